"""Requests of a session about facts: read the facts at a version, request a reflection, wait for its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from acms.errors import ACMSError
from acms.jobs import requests
from acms.knowledge import Fact
from acms.log import facts as log_facts
from acms.log import read, validation
from acms.log.active_entries import Replacements
from acms.log.validity import facts_at_moment
from acms.model import UNFINISHED, Append, ContextDraft, Entry, Head, Job, JobDraft, JobQuery, JobState, Kind
from acms.observability.logging import log_event
from acms.ports import StorageBackend
from acms.privacy.redactor import NO_REDACTION, Redactor

if TYPE_CHECKING:
    from acms.session_state import SharedSession

POLL_SECONDS = 0.02
"""Seconds between two reads of a job that another process runs: much shorter than a reflection."""


async def read_facts(
    storage: StorageBackend,
    context: str,
    at: int | None,
    *,
    subject: str | None = None,
    attribute: str | None = None,
    fact_type: str | None = None,
    history: bool = False,
    as_of: datetime | None = None,
    valid_at: datetime | None = None,
    redactor: Redactor = NO_REDACTION,
) -> list[Fact]:
    """Return the active facts at a version, redacted for output, oldest first; with `history` the retired ones too.

    `subject` and `attribute` filter by address: case, articles, plurals and punctuation are ignored. With `as_of`, the
    facts that were known at that time are returned. With `valid_at`, the facts that were true at that moment are
    returned, retired or not, as far as they were known at the version.
    """
    head = await storage.head(context)
    version = read.version_to_read(head, at)
    if as_of is not None:
        version = await _find_version_known_at(storage, context, version, as_of)
    entries = await storage.read(context, at=version, kinds=(Kind.FACT,)) if version else []
    if not entries:
        return []
    replacing = await storage.read(context, at=version, replacing=True) if head.rewrites else []
    facts = log_facts.collect_facts(entries, Replacements(replacing), replacing)
    if valid_at is not None:
        facts = facts_at_moment(facts, valid_at, log_facts.find_rival_pairs(facts))
    elif not history:
        facts = [fact for fact in facts if fact.retired is None]
    redacted = redactor.redact_facts(facts, entries)
    return [fact for fact in redacted if _matches_filter(fact, subject, attribute, fact_type)]


def _matches_filter(fact: Fact, subject: str | None, attribute: str | None, fact_type: str | None) -> bool:
    """Return whether a fact has a subject, an attribute and a type; None matches any."""
    if fact_type is not None and fact.fact_type != fact_type:
        return False
    if subject is None and attribute is None:
        return True
    wanted_subject = fact.subject if subject is None else subject
    wanted_attribute = fact.attribute if attribute is None else attribute
    wanted = log_facts.normalize_address(wanted_subject, wanted_attribute)
    return log_facts.normalize_address(fact.subject, fact.attribute) == wanted


class FactLog(NamedTuple):
    """The facts of one log at its head."""

    context: str
    head: Head
    #: The stored facts, active and retired.
    entries: list[Entry]
    #: The replacements for searching: messages behind a compaction count as active, in their original wording.
    replacements: Replacements
    #: The active facts.
    facts: list[Fact]


async def read_active_facts(storage: StorageBackend, context: str, head: Head) -> FactLog:
    """Return the active facts of a log at its head, with the entries they were read from."""
    entries = await storage.read(context, at=head.version, kinds=(Kind.FACT,))
    replacing = await storage.read(context, at=head.version, replacing=True) if head.rewrites else []
    replacements = Replacements(replacing, searchable=True)
    facts = [
        fact for fact in log_facts.collect_facts(entries, replacements, replacing) if fact.retired is None
    ]
    return FactLog(context, head, entries, replacements, facts)


async def ensure_profile(storage: StorageBackend, namespace: str, counter_name: str) -> str:
    """Return the id of the log of the namespace's facts; create it if it does not exist."""
    profile = await read.find_profile(storage, namespace)
    if profile is None:
        now = datetime.now(UTC)
        draft = ContextDraft(key=read.PROFILE, namespace=namespace, counter=counter_name, created_at=now)
        profile = await storage.create(draft)
    return profile.id


async def _find_version_known_at(
    storage: StorageBackend, context: str, newest_version: int, moment: datetime
) -> int:
    """Return the version before the first fact or retraction that was written after a moment."""
    for entry in await storage.read(context, at=newest_version, kinds=(Kind.FACT, Kind.RETRACTION)):
        if entry.created_at > moment:
            return entry.version - 1
    return newest_version


def check_filter(subject: str | None, attribute: str | None, fact_type: str | None) -> None:
    """Raise `ValidationError` for a filter that is not a text."""
    for field, value in (("subject", subject), ("attribute", attribute), ("fact_type", fact_type)):
        if value is not None:
            validation.validate_text(value, field)


async def request_reflection(shared: SharedSession, context: str) -> Job:
    """Enqueue a reflection on all closed episodes, including short ones, and return its job.

    A waiting job of another reflector, or with less privacy than required, is withdrawn; a running one is waited for.
    """
    storage = shared.storage
    kind = requests.REFLECT if shared.reflector is None else requests.reflection_kind(shared.reflector)
    mode = shared.config.privacy.mode
    while True:
        draft = requests.draft_reflection(context, kind, mode, force=True)
        await _enqueue_job(storage, context, draft)
        job = await requests.find_latest_job(storage, context, requests.reflection_name(context))
        if job is None:
            continue
        shared.start_worker()
        is_ready = job.state is JobState.READY
        # A job of another kind needs a worker with another reflector; one that runs or has ended has found a worker.
        if requests.satisfies_request(job, mode) and (job.kind == kind or not is_ready):
            return job
        mode = requests.privacy_of_job(job, mode, mode)  # at least as strict as this job
        if is_ready:
            await requests.withdraw_job(storage, job, requests.WITHDRAWN)
        else:  # wait for the running job, then enqueue another
            while await _find_newest_reflection(storage, context, (JobState.RUNNING,)) is not None:
                await asyncio.sleep(POLL_SECONDS)


async def _enqueue_job(storage: StorageBackend, context: str, draft: JobDraft) -> None:
    (result,) = await storage.append([Append(context=context, drafts=(), jobs=(draft,))])
    if isinstance(result, ACMSError):
        raise result


async def resume_reflection(shared: SharedSession, context: str) -> None:
    """Resume a reflection that another process requested and did not finish; errors of the store are only logged.

    A job that waits for another reflector is enqueued for the reflector of this session instead, because workers with
    the other one may no longer exist.
    """
    try:
        await _take_over_reflection(shared, context)
    except ACMSError as error:
        log_event(logging.WARNING, "catch_up_failed", context=context, code=error.code)


async def _take_over_reflection(shared: SharedSession, context: str) -> None:
    """Wake the worker for an unfinished reflection; enqueue it again if it was withdrawn or needs another reflector."""
    storage, mode = shared.storage, shared.config.privacy.mode
    job = await requests.find_latest_job(storage, context, requests.reflection_name(context))
    if job is None:
        return
    kind = requests.reflection_kind(shared.reflector)
    # The latest job was withdrawn: no other one was enqueued in its place.
    must_enqueue = job.state is JobState.CANCELLED and job.error == requests.WITHDRAWN
    if not must_enqueue and job.state not in UNFINISHED:
        return
    if job.state is JobState.READY and job.kind != kind:
        must_enqueue = await requests.withdraw_job(storage, job, requests.WITHDRAWN)
    if must_enqueue:
        mode = requests.privacy_of_job(job, mode, mode)
        force = bool(job.payload.get("force"))
        await _enqueue_job(storage, context, requests.draft_reflection(context, kind, mode, force=force))
    shared.start_worker()


async def wait_for_reflection(shared: SharedSession, context: str) -> None:
    """Wait until the reflection of a session has ended or an attempt of it has failed."""
    try:
        while True:
            job = await _find_newest_reflection(shared.storage, context, UNFINISHED)
            if job is None or job.error is not None:
                return
            await asyncio.sleep(POLL_SECONDS)
    except ACMSError as error:
        log_event(logging.WARNING, "reflection_unknown", context=context, code=error.code)


async def _find_newest_reflection(
    storage: StorageBackend, context: str, states: Sequence[JobState]
) -> Job | None:
    """Return the newest reflection job of a log that is in one of some states, or None."""
    name = requests.reflection_name(context)
    page = await storage.jobs(JobQuery(context=context, states=tuple(states), limit=validation.PAGE))
    return next((job for job in page.items if job.dedupe == name), None)
