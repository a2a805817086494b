"""Requests of a session about facts: the facts at a version, a reflection now, waiting for its end.

No job waits for a model that is gone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from acms.errors import ACMSError
from acms.jobs import requests
from acms.knowledge import Fact
from acms.log import facts as rules
from acms.log import read, validation
from acms.log.in_force import Cover
from acms.log.validity import at_moment
from acms.model import UNFINISHED, Append, Job, JobQuery, JobState, Kind
from acms.observability.logging import log_event
from acms.ports import StorageBackend
from acms.privacy.stage import OPEN, Stage

if TYPE_CHECKING:
    from acms.session_state import SharedSession


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
    stage: Stage = OPEN,
) -> list[Fact]:
    """Return the active facts at a version, redacted for output, oldest first; with `history` the retired ones too.

    `subject` and `attribute` match as addresses do: case, articles, plurals and punctuation are ignored. `as_of` reads
    the facts known at a time; `valid_at` returns the facts true at a moment, retired or not, as far as known then.
    """
    head = await storage.head(context)
    version = read.version_of(head, at)
    if as_of is not None:
        version = await _version_at(storage, context, version, as_of)
    made = await storage.read(context, at=version, kinds=(Kind.FACT,)) if version else []
    if not made:
        return []
    replacing = await storage.read(context, at=version, replacing=True) if head.rewrites else []
    every = rules.collect_facts(made, Cover(replacing), replacing)
    if valid_at is not None:
        every, history = at_moment(every, valid_at, rules.find_rival_pairs(every)), True
    found = stage.facts(every, made)
    about = rules.normalize_address(subject or "", attribute or "")
    return [
        fact
        for fact in found
        if (history or fact.retired is None)
        and (subject is None or rules.normalize_address(fact.subject, "")[0] == about[0])
        and (attribute is None or rules.normalize_address("", fact.attribute)[1] == about[1])
        and (fact_type is None or fact.fact_type == fact_type)
    ]


async def _version_at(storage: StorageBackend, context: str, version: int, moment: datetime) -> int:
    """Return the version before the first fact or retraction that was written after a moment."""
    kinds = (Kind.FACT, Kind.RETRACTION)
    changes = await storage.read(context, at=version, kinds=kinds)
    return next((one.version - 1 for one in changes if one.created_at > moment), version)


def check_filter(subject: str | None, attribute: str | None, fact_type: str | None) -> None:
    """Raise `ValidationError` for a filter that is not a text."""
    for field, value in (("subject", subject), ("attribute", attribute), ("fact_type", fact_type)):
        if value is not None:
            validation.validate_text(value, field)


POLL = 0.02
"""Seconds between two looks at a job that another process works off."""


async def request_reflection(shared: SharedSession, context: str) -> Job:
    """Enqueue a reflection on everything closed, including short episodes, and return its job."""
    storage = shared.storage
    kind = requests.REFLECT if shared.reflector is None else requests.reflection_kind(shared.reflector)
    mode = shared.config.privacy.mode
    while True:
        draft = requests.draft_reflection(context, kind, mode, force=True)
        (result,) = await storage.append([Append(context=context, drafts=(), jobs=(draft,))])
        if isinstance(result, ACMSError):
            raise result
        found = await requests.find_latest_job(storage, context, requests.reflection_name(context))
        if found is None:
            continue
        shared.work()
        if requests.satisfies_request(found, mode) and (
            found.kind == kind or found.state is not JobState.READY
        ):
            return found
        mode = requests.privacy_of(found, mode, mode)
        if found.state is JobState.READY:
            await requests.withdraw_job(storage, found, requests.WITHDRAWN)
        else:  # enqueue the rest after the running job
            while await _newest_reflection(storage, context, (JobState.RUNNING,)) is not None:
                await asyncio.sleep(POLL)


async def catch_up(shared: SharedSession, context: str) -> None:
    """Resume a reflection that another process requested and did not finish.

    One queued for a reflector of another name is requested from this session's: no job waits for a model that is gone.
    A store that refuses the write does not fail a caller that only reads.
    """
    try:
        await _take_over(shared, context)
    except ACMSError as error:
        log_event(logging.WARNING, "catch_up_failed", context=context, code=error.code)


async def _take_over(shared: SharedSession, context: str) -> None:
    storage = shared.storage
    # The newer job is found if one was withdrawn and enqueued again; a withdrawn one alone was never replaced.
    found = await requests.find_latest_job(storage, context, requests.reflection_name(context))
    if found is None:
        return
    kind = requests.reflection_kind(shared.reflector)
    lost = found.state is JobState.CANCELLED and found.error == requests.WITHDRAWN
    if not lost and found.state not in UNFINISHED:
        return
    other = found.state is JobState.READY and found.kind != kind
    if lost or (other and await requests.withdraw_job(storage, found, requests.WITHDRAWN)):
        mode = requests.privacy_of(found, shared.config.privacy.mode, shared.config.privacy.mode)
        draft = requests.draft_reflection(context, kind, mode, force=bool(found.payload.get("force")))
        (result,) = await storage.append([Append(context=context, drafts=(), jobs=(draft,))])
        if isinstance(result, ACMSError):
            raise result
    shared.work()


async def wait_for_reflection(shared: SharedSession, context: str) -> None:
    """Wait until the reflection of a session has ended or an attempt of it has failed."""
    try:
        while (
            job := await _newest_reflection(shared.storage, context, UNFINISHED)
        ) is not None and job.error is None:
            await asyncio.sleep(POLL)
    except ACMSError as error:
        log_event(logging.WARNING, "reflection_unknown", context=context, code=error.code)


async def _newest_reflection(storage: StorageBackend, context: str, states: Sequence[JobState]) -> Job | None:
    """Return the newest reflection of a log of those in some states."""
    name = requests.reflection_name(context)
    page = await storage.jobs(JobQuery(context=context, states=tuple(states), limit=500))
    return next((job for job in page.items if job.dedupe == name), None)
