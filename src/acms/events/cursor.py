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

FOLLOWED = 64
"""Jobs that are not done of which a cursor knows how they stand; older ones are not followed any more."""
_LETTERS = {JobState.READY: "w", JobState.RUNNING: "r", JobState.FAILED: "f", JobState.CANCELLED: "c"}
_STATES = {letter: state for state, letter in _LETTERS.items()}
_JOB = r"\.([0-9]{1,18})([wrfc])([0-9]{1,9})"
_TEXT = re.compile(rf"([0-9]{{1,18}})(?:-([0-9]{{1,18}})((?:{_JOB}){{0,{FOLLOWED}}}))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """A place in the events of a log; as text `42`, or `42-17.12r3` when it knows of jobs too."""

    #: Entries up to this version were sent.
    version: int = 0
    #: Highest number of a job that was sent; None before the first look at jobs.
    job: int | None = None
    #: State and attempt of the unfinished jobs when they were last sent, by number.
    unfinished: Mapping[int, tuple[JobState, int]] = field(default_factory=dict[int, tuple[JobState, int]])

    @classmethod
    def read(cls, text: str | int) -> Self:
        """Parse a cursor, or a version alone; `ValidationError` for anything else."""
        found = _TEXT.fullmatch(str(text)) if not isinstance(text, bool) else None
        if found is None:
            raise ValidationError(
                "is no cursor of events",
                field="after",
                options=("the cursor of the last event that was seen", "a version of the log"),
            )
        known = {
            int(number): (_STATES[letter], int(attempt))
            for number, letter, attempt in re.findall(_JOB, found[3] or "")
        }
        return cls(version=int(found[1]), job=None if found[2] is None else int(found[2]), unfinished=known)

    def __str__(self) -> str:
        if self.job is None:
            return str(self.version)
        jobs = (
            f".{number}{_LETTERS[state]}{attempt}" for number, (state, attempt) in self.unfinished.items()
        )
        return f"{self.version}-{self.job}{''.join(jobs)}"

    def at(self, version: int) -> Cursor:
        """Return the cursor behind an entry."""
        return Cursor(version=version, job=self.job, unfinished=self.unfinished)

    def behind(self, job: Job) -> Cursor:
        """Return the cursor after a job's current state was sent."""
        number, unfinished = int(job.id), dict(self.unfinished)
        unfinished.pop(number, None)
        if job.state in _LETTERS:
            unfinished[number] = job.state, job.attempt
        newest = {key: unfinished[key] for key in sorted(unfinished)[-FOLLOWED:]}
        return Cursor(version=self.version, job=max(self.job or 0, number), unfinished=newest)

    def upto(self, number: int) -> Cursor:
        """Return the cursor after every job up to a number was sent."""
        return Cursor(version=self.version, job=max(self.job or 0, number), unfinished=self.unfinished)

    def knows(self, job: Job) -> bool:
        """Return whether a job's current state was sent, or the job is not followed."""
        number = int(job.id)
        state = self.unfinished.get(number)
        if state is None:
            return number <= (self.job or 0)
        return state == (job.state, job.attempt)
