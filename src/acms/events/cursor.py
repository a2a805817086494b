"""The position of a reader of events: a version of the log, and the job states it has received.

Versions are gap-free, so one number covers all received entries. A job has no number for each of its changes: the
cursor has the highest job number received, and the last received states of the jobs that were not done then.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from acms.errors import ValidationError
from acms.model import Job, JobState

__all__ = ["Cursor"]

MAX_UNFINISHED = 64
"""Maximum number of unfinished jobs whose states a cursor holds; changes of older ones are no longer reported."""
_LETTER_OF_STATE = {JobState.READY: "w", JobState.RUNNING: "r", JobState.FAILED: "f", JobState.CANCELLED: "c"}
_STATE_OF_LETTER = {letter: state for state, letter in _LETTER_OF_STATE.items()}
_JOB_PATTERN = r"\.([0-9]{1,18})([wrfc])([0-9]{1,9})"
_CURSOR_PATTERN = re.compile(
    rf"([0-9]{{1,18}})(?:-([0-9]{{1,18}})((?:{_JOB_PATTERN}){{0,{MAX_UNFINISHED}}}))?"
)
"""Groups: the version, the highest job number, and the unfinished jobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """A position in the events of a log.

    As text it is `42`, a version, or `42-17.12r3`: also the highest job number 17, and job 12 running in attempt 3.
    """

    #: Entries up to this version were sent.
    version: int = 0
    #: Highest number of a job that was sent; None before jobs were read for the first time.
    job: int | None = None
    #: State and attempt of the unfinished jobs when they were last sent, by number.
    unfinished: Mapping[int, tuple[JobState, int]] = field(default_factory=dict[int, tuple[JobState, int]])

    @classmethod
    def parse(cls, text: str | int) -> Self:
        """Parse a cursor, or a version alone; `ValidationError` for anything else."""
        match = None if isinstance(text, bool) else _CURSOR_PATTERN.fullmatch(str(text))
        if match is None:
            raise ValidationError(
                "is not an event cursor",
                field="after",
                options=("the cursor of the last event you handled", "a version of the log"),
            )
        version, job, jobs_text = match[1], match[2], match[3] or ""
        unfinished = {
            int(number): (_STATE_OF_LETTER[letter], int(attempt))
            for number, letter, attempt in re.findall(_JOB_PATTERN, jobs_text)
        }
        return cls(version=int(version), job=None if job is None else int(job), unfinished=unfinished)

    def __str__(self) -> str:
        if self.job is None:
            return str(self.version)
        jobs_text = ""
        for number, (state, attempt) in self.unfinished.items():
            jobs_text += f".{number}{_LETTER_OF_STATE[state]}{attempt}"
        return f"{self.version}-{self.job}{jobs_text}"

    def after_entry(self, version: int) -> Cursor:
        """Return the cursor after the entry at a version was sent."""
        return Cursor(version=version, job=self.job, unfinished=self.unfinished)

    def after_job(self, job: Job) -> Cursor:
        """Return the cursor after a job's current state was sent."""
        number = int(job.id)
        unfinished = dict(self.unfinished)
        unfinished.pop(number, None)
        if job.state in _LETTER_OF_STATE:  # a job that is done does not change again
            unfinished[number] = job.state, job.attempt
        newest_numbers = sorted(unfinished)[-MAX_UNFINISHED:]
        newest = {newest_number: unfinished[newest_number] for newest_number in newest_numbers}
        return Cursor(version=self.version, job=max(self.job or 0, number), unfinished=newest)

    def after_jobs_upto(self, number: int) -> Cursor:
        """Return the cursor after every job up to a number was sent."""
        return Cursor(version=self.version, job=max(self.job or 0, number), unfinished=self.unfinished)

    def has_sent(self, job: Job) -> bool:
        """Return whether the current state of a job was sent, or its changes are no longer reported."""
        number = int(job.id)
        state = self.unfinished.get(number)
        if state is None:
            return number <= (self.job or 0)
        return state == (job.state, job.attempt)
