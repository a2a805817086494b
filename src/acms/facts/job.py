"""Reflection: a job distills closed episodes into facts, in order, and never while a message is being stored.

A reflector proposes, rules decide (`acms.facts.consolidate`), one append writes: the facts, the facts they retire, and
a mark for each episode that was read. After a concurrent rewrite the same answer is consolidated again; a model is
asked twice about a stretch only when a message it read is no longer active, or when the process was killed.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Awaitable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from time import monotonic
from typing import Any

from acms.config import ACMSConfig
from acms.errors import ACMSError, ConflictError, GoneError, IdempotencyMismatchError, ProviderError
from acms.facts import adopt, backlog
from acms.facts import consolidate as rules
from acms.facts.backlog import Limits, Reached, Stretch
from acms.facts.consolidate import Around, Consolidated, Rules
from acms.jobs.requests import REFLECT, model_name, privacy_of, reflection_kind
from acms.jobs.worker import Handler
from acms.knowledge import Decision, Fact, Proposal, Reflection
from acms.log import facts as known_facts
from acms.log.in_force import Cover
from acms.log.policy import PRIVATE
from acms.log.read import PROFILE
from acms.log.read import find_profile as profile_of
from acms.log.validation import UNNAMED
from acms.model import (
    Append,
    Context,
    ContextDraft,
    Draft,
    Entry,
    Expect,
    Head,
    Kind,
    Lease,
    Privacy,
    Receipt,
)
from acms.observability.events import Reflected
from acms.observability.logging import emit_event, log_event
from acms.ports import ReflectionRequest, Reflector, StorageBackend, TokenCounter, Turn
from acms.privacy.stage import Stage
from acms.privacy.stage import create_redaction_stage as stage_of
from acms.providers.tokens import token_counter
from acms.recall.index_cache import record_new_profile
from acms.runtime.chance import chance
from acms.storage import handles
from acms.storage.handles import LoopState
from acms.text.markers import own_words
from acms.text.summary_form import RECIPE
from acms.write.retirement import Rewrite, follow_private, propagate_to_profile

BUSY = 0.25
"""Seconds after an append of this process for which the event loop is left to more of them."""
SHARE = 9
"""While it is busy, a reflection rests for this multiple of the time it worked."""
LONGEST_REST = 0.1


class Pace:
    """Leaves the event loop to writers: works in slices, and rests between them while messages arrive."""

    def __init__(self, here: LoopState | None) -> None:
        self.here = here
        self._began = monotonic()

    @property
    def busy(self) -> bool:
        """Whether messages are arriving in this process, and no caller waits for the work."""
        here = self.here
        return here is not None and not here.waiting and monotonic() - here.appended < BUSY

    def enter(self, context: str) -> None:
        """Record that a log will be read again before the work ends: no worker needs to be woken for it."""
        if self.here is not None:
            self.here.reflecting.add(context)

    def leave(self, context: str) -> None:
        """Record that requests from now on may be missed."""
        if self.here is not None:
            self.here.reflecting.discard(context)

    def begin(self) -> None:
        """Start a slice of work."""
        self._began = monotonic()

    async def rest(self) -> None:
        """End a slice and start the next one."""
        worked = monotonic() - self._began
        await asyncio.sleep(min(LONGEST_REST, SHARE * worked) if self.busy else 0)
        self._began = monotonic()

    async def pause(self) -> None:
        """Let more arrive before it is looked at again."""
        await asyncio.sleep(LONGEST_REST if self.busy else 0)
        self._began = monotonic()


CHUNK = 256
"""Entries that are looked at for the next episodes; more when one of them is longer."""
SLICE = 12
"""Messages that rules read in one call: they work on the event loop, where others wait meanwhile."""
LONG = 100_000
"""Letters of which an extract is made in a thread."""


# ── the worker ──────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _Work:
    """The state needed to reflect on one log."""

    storage: StorageBackend
    context: Context
    counter: TokenCounter
    reflector: Reflector
    #: Whether it is shaped like that of seed 004.
    seeded: bool
    name: str
    config: ACMSConfig
    #: Redaction of content sent to the reflector.
    stage: Stage
    lease: Lease
    pace: Pace

    @property
    def force(self) -> bool:
        """Whether short episodes are read too."""
        return bool(self.lease.job.payload.get("force"))


@dataclass(frozen=True, slots=True)
class _Log:
    """The state of a log: its head, its cover, and its active facts."""

    context: str
    head: Head
    cover: Cover
    facts: tuple[Fact, ...]
    #: Those a reflector may be shown, as they may leave.
    shown: tuple[Fact, ...]


@dataclass(frozen=True, slots=True)
class _Asked:
    """A stretch, the input of the reflector for it, and its answer."""

    stretch: Stretch
    turns: tuple[Turn, ...]
    known: tuple[str, ...]
    answer: Reflection
    seconds: float
    #: When it began.
    began: float


class _Overtaken(Exception):
    """The messages read have changed, or another process reflected on them: read again."""


def make_reflection_handler(
    config: ACMSConfig,
    reflector: Reflector,
    counters: Mapping[str, TokenCounter] = {},
    *,
    handle: StorageBackend | None = None,
    modes: Mapping[str, Privacy] | None = None,
) -> Handler:
    """Return the job handler for reflections; `counters` are those that are not known by name.

    With the `handle` that the sessions of this process write to it yields to their writes, and its calls end when the
    handle is closed. `modes` are the least privacy modes in which jobs are done, by log; the default is that of
    `config`.
    """
    seeded = backlog.has_seed_signature(reflector)
    name = model_name(reflector)

    async def run(storage: StorageBackend, lease: Lease) -> None:
        context = await storage.context(lease.job.context)
        counter = counters.get(context.counter) or token_counter(context.counter)
        pace = Pace(None if handle is None else handles.get_loop_state(handle))
        own = config.privacy.mode
        mode = privacy_of(lease.job, own, own if modes is None else modes.get(lease.job.context))
        stage = stage_of(storage, mode, counter)
        work = _Work(storage, context, counter, reflector, seeded, name, config, stage, lease, pace)
        try:
            await _run_reflection(work)
            if handle is not None:
                record_new_profile(handle)  # it may have been
        finally:
            pace.leave(context.id)

    return run


async def _run_reflection(work: _Work) -> None:
    """Reflect on everything there is, then end the job if nothing came meanwhile."""
    storage, context = work.storage, work.context.id
    adopted = work.context.parent is None
    stuck = 0
    await asyncio.to_thread(importlib.import_module, "acms.text.extract")  # it brings numpy
    await work.pace.pause()
    while True:
        before = await _read_progress(storage, context)
        if not adopted:
            fork = work.context.fork or 0
            if before.mark is None or before.mark.version <= fork:
                await adopt.adopt_late(storage, context)
                before = await _read_progress(storage, context)
            adopted = True
        work.pace.enter(context)
        seen = await storage.head(context)
        found, state = await _find_next_stretch(work, before, seen)
        if found is not None:
            try:
                await _reflect_on_stretch(work, found, state)
                stuck = 0
            except _Overtaken as error:
                stuck += 1
                if stuck > 8 and await _read_progress(storage, context) == before:
                    raise ConflictError("what is read changes faster than it can be reflected on") from error
            await work.pace.rest()
            continue
        work.pace.leave(context)
        op = Append(context=context, drafts=(), expect=Expect(version=seen.version), finish=work.lease)
        (result,) = await storage.append([op])
        if not isinstance(result, ACMSError):
            return
        if type(result) is not ConflictError:
            raise result
        await work.pace.pause()  # something was said meanwhile: it may have closed an episode


async def _read_progress(storage: StorageBackend, context: str) -> Reached:
    """Return how far a log was reflected on."""
    size = 16
    while True:
        newest = await storage.read(context, kinds=(Kind.SUMMARY,), newest=size)
        found = backlog.find_progress(newest)
        if found.mark is not None or len(newest) < size:
            return found
        size *= 4


async def _read_log_state(work: _Work, context: str, head: Head) -> _Log:
    storage = work.storage
    replacing = await storage.read(context, at=head.version, replacing=True) if head.rewrites else []
    # The messages behind a compaction are read in their original wording.
    cover = Cover(replacing, searchable=True)
    entries = await storage.read(context, at=head.version, kinds=(Kind.FACT,))
    facts = [fact for fact in known_facts.collect_facts(entries, cover, replacing) if fact.retired is None]
    stage = work.stage
    blocked = {one.id for one in entries if stage.entry(one).privacy is Privacy.BLOCK}
    shown = [fact for fact in stage.facts(facts, entries) if fact.id not in blocked]
    return _Log(context, head, cover, tuple(facts), tuple(shown))


async def _find_next_stretch(work: _Work, before: Reached, head: Head) -> tuple[Stretch | None, _Log]:
    """Return the next stretch to read, and the state of the log at that point."""
    storage, context, config = work.storage, work.context.id, work.config.reflection
    turns = config.max_turns
    if reflection_kind(work.reflector) == REFLECT:
        turns = min(turns, SLICE)
    limits = Limits(least=config.min_episode_turns, turns=turns, tokens=config.max_tokens)
    work.pace.begin()
    state = await _read_log_state(work, context, head)
    edits: list[Entry] = []
    if head.rewrites and before.mark is not None:
        edits = await storage.read(
            context, at=head.version, after=before.upto, kinds=(Kind.MESSAGE,), replacing=True
        )
    size = CHUNK
    while True:
        entries = await storage.read(
            context, at=head.version, after=before.last, kinds=(Kind.MESSAGE, Kind.EPISODE), limit=size
        )
        found = backlog.next_stretch(
            context, entries, edits, state.cover, before, head.version, limits, force=work.force
        )
        whole = len(entries) < size
        if whole or (found is not None and found.parts):
            return found, state
        size *= 4


async def _reflect_on_stretch(work: _Work, found: Stretch, state: _Log) -> None:
    """Ask about one stretch, and append the facts that the rules accept from the answer."""
    began = monotonic()
    profile = None if work.context.namespace == UNNAMED else await _read_profile(work)
    known = (*state.facts, *(profile.facts if profile is not None else ()))
    contents = {fact.content for fact in known}
    speakers = {entry.actor for entry in found.entries if entry.actor}
    pairs = [
        (entry, text)
        for entry in map(work.stage.entry, found.entries)
        if entry.privacy is not Privacy.BLOCK
        and (text := own_words(entry.content, known=contents, speakers=speakers)).strip()
    ]
    turns = tuple(backlog.build_turn(entry, text) for entry, text in pairs)
    shown = backlog.select_known_facts((*state.shown, *(profile.shown if profile is not None else ())), turns)
    await work.pace.rest()
    called = monotonic()
    answer = Reflection()
    if turns:
        answer = await _ask_reflector(work, found, pairs, turns, shown)
    asked = _Asked(found, turns, tuple(fact.id for fact in shown), answer, monotonic() - called, began)
    work.pace.begin()
    marks = await _build_marks(work, asked)
    taken = {entry.id for entry, _ in pairs}
    read = [
        entry for entry in found.entries if entry.id in taken
    ]  # as stored: places in a text are those of that
    await _write_answer(work, asked, marks, read, state, profile)


# ── asking ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def _ask_reflector(
    work: _Work,
    found: Stretch,
    pairs: Sequence[tuple[Entry, str]],
    turns: tuple[Turn, ...],
    shown: tuple[Fact, ...],
) -> Reflection:
    """Return the readable part of a reflector's answer; raise `ProviderError` when it failed.

    The reflector limits how long it may take: no other timeout ends a call that answers.
    """
    reflector: Any = work.reflector
    if work.seeded:
        parts = found.parts
        episode = backlog.seed_episode(parts, work.context) if parts else None
        said = [backlog.seed_turn(entry, text, work.context) for entry, text in pairs]
        call: Awaitable[object] = reflector.reflect(episode, said)
    else:
        limit = backlog.summary_tokens(sum(entry.tokens for entry, _ in pairs))
        asked = ReflectionRequest(
            turns=turns,
            facts=shown,
            max_facts=_most_facts(work, found),
            max_summary_tokens=limit,
            counter=work.counter,
        )
        call = reflector.reflect(asked)
    try:
        answer = await _await_until_closed(work.pace.here, call)
    except ACMSError:
        raise
    except Exception as error:
        raise ProviderError(type(error).__name__, provider=work.name, retryable=True) from error
    versions = {entry.id: entry.version for entry, _ in pairs}
    return backlog.parse_answer(answer, versions)


def _most_facts(work: _Work, found: Stretch) -> int:
    """Return how many facts one answer about a stretch may add."""
    config = work.config.reflection
    return min(config.max_facts_per_call * max(1, len(found.parts)), config.max_active_facts)


async def _await_until_closed(here: handles.LoopState | None, call: Awaitable[object]) -> object:
    """Await a call that is ended when the storage handle closes: closing a session never waits for a model."""
    if here is None:
        return await call
    task = asyncio.ensure_future(call)
    here.calls.add(task)
    try:
        return await task
    finally:
        here.calls.discard(task)


async def _build_marks(work: _Work, asked: _Asked) -> list[Draft]:
    """Return one mark for each episode that was read."""
    from acms.text.extract import extract_summary

    now = datetime.now(UTC)
    found = asked.stretch
    if not found.parts:
        return [backlog.draft_extended_mark(found, now)]
    count = work.counter.count
    marks: list[Draft] = []
    by_version = {turn.version: turn for turn in asked.turns}
    for part in found.parts:
        said = [by_version[entry.version] for entry in part.entries if entry.version in by_version]
        limit = backlog.summary_tokens(sum(count(turn.text) for turn in said))
        summarizer, text = RECIPE, ""
        if asked.answer.summary is not None and len(found.parts) == 1:
            summarizer, text = work.name, asked.answer.summary
            if count(text) > limit:
                whole = Turn(speaker="summary", text=text, version=part.episode.last, summary=True)
                text = extract_summary([whole], limit, count)
        if not text and said:
            summarizer = RECIPE
            if sum(len(turn.text) for turn in said) > LONG:
                text = await asyncio.to_thread(extract_summary, said, limit, count)
            else:
                text = extract_summary(said, limit, count)
        made = backlog.draft_mark(
            part, found, text, count(text), reflector=work.name, summarizer=summarizer, now=now
        )
        marks.append(made)
        await work.pace.rest()
    return marks


# ── writing ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def _write_answer(
    work: _Work,
    asked: _Asked,
    marks: Sequence[Draft],
    read: Sequence[Entry],
    state: _Log,
    profile: _Log | None,
) -> None:
    """Append the accepted facts, those of the namespace first; a private or unshared session has only its own."""
    proposals = asked.answer.proposals
    private = (await work.storage.context(work.context.id)).settings.get(PRIVATE)
    if private or work.context.namespace == UNNAMED:
        proposals, profile = tuple(replace(one, scope="session") for one in proposals), None
    own_ids = {fact.id for fact in state.facts}
    profile_ids = {fact.id for fact in profile.facts} if profile is not None else set[str]()
    own, shared = backlog.route_proposals(proposals, own_ids, profile_ids)
    decisions: dict[int, Decision] = {}
    if shared:
        await _check_stretch_current(work, asked.stretch, state.head)
        known = profile.facts if profile is not None else ()
        for part in rules.split_rounds([proposals[number] for number in shared], known):
            numbers = [shared[place] for place in part]
            told = await _append_profile(work, asked, [proposals[number] for number in numbers], read)
            decisions.update(zip(numbers, told, strict=True))
        await _check_profile(work, asked.stretch, state.head)
    parts = rules.split_rounds([proposals[number] for number in own], state.facts)
    for part in parts:
        last = part is parts[-1]
        numbers = [own[place] for place in part]
        state, plan, receipt = await _append_own(
            work, asked, state, [proposals[number] for number in numbers], read, marks if last else ()
        )
        decisions.update(zip(numbers, backlog.resolve_fact_ids(plan.decisions, receipt.ids), strict=True))
        if last:
            decided = [decisions[number] for number in range(len(proposals))]
            _emit_reflected(work, asked, [*decided, *asked.answer.rejected], receipt)
        else:
            state = await _read_log_state(work, state.context, await work.storage.head(state.context))


async def _append_own(
    work: _Work,
    asked: _Asked,
    state: _Log,
    proposals: Sequence[Proposal],
    read: Sequence[Entry],
    marks: Sequence[Draft],
) -> tuple[_Log, Consolidated, Receipt]:
    """Append facts to the session's own log, retrying on conflicts; the last append includes the marks."""
    while True:
        plan = await _consolidate_proposals(
            work, asked, state, proposals, read, f"reflect:{asked.stretch.key}"
        )
        await work.pace.rest()
        op = Append(
            context=state.context,
            drafts=(*plan.drafts, *marks),
            expect=Expect(rewrites=state.head.rewrites),
        )
        result = await _append_with_retry(work, op)
        if isinstance(result, Receipt):
            if result.repeated and marks:
                raise _Overtaken
            return state, plan, result
        if isinstance(result, IdempotencyMismatchError | GoneError):
            raise _Overtaken from result  # another process reflected on it, or a source was erased
        if type(result) is not ConflictError:
            raise result
        head = await work.storage.head(state.context)
        if head.rewrites == state.head.rewrites:
            raise result  # refused for another reason
        await _check_stretch_current(work, asked.stretch, state.head)
        state = await _read_log_state(work, state.context, head)


async def _append_with_retry(work: _Work, op: Append) -> Receipt | ACMSError:
    """Append, and retry when the store is busy: a model is not asked twice for the same answer."""
    retry = work.config.retry
    attempt = 0
    while True:
        attempt += 1
        try:
            (result,) = await work.storage.append([op])
        except ACMSError as error:
            result = error
        if isinstance(result, Receipt | ConflictError):
            return result
        if not result.retryable or attempt >= retry.max_attempts:
            return result
        await asyncio.sleep(retry.delay(attempt, chance.random()))


async def _check_stretch_current(work: _Work, found: Stretch, before: Head) -> None:
    """Raise when something that was read is no longer in force: facts are not made from it."""
    head = await work.storage.head(before.context)
    if (head.rewrites, head.epoch) == (before.rewrites, before.epoch):
        return
    replacing = await work.storage.read(before.context, at=head.version, replacing=True)
    current = await work.storage.get([entry.id for entry in found.entries])
    if not backlog.is_stretch_current(found, Cover(replacing, searchable=True), current):
        raise _Overtaken


async def _check_profile(work: _Work, found: Stretch, before: Head) -> None:
    """Remove from the profile the facts made from messages that were removed, or became private, meanwhile.

    The removal itself updated the profile before these facts were in it, or will do so after this check.
    """
    context = await work.storage.context(before.context)
    if context.settings.get(PRIVATE):
        await follow_private(work.storage, context)
        raise _Overtaken
    head = await work.storage.head(before.context)
    if head.rewrites == before.rewrites:
        return
    replacing = await work.storage.read(before.context, at=head.version, replacing=True)
    gone = backlog.superseded_ids_by_version(found, Cover(replacing, searchable=True))
    for entry in replacing:
        if entry.version in gone:
            done = Rewrite((), gone[entry.version])
            await propagate_to_profile(work.storage, work.context.namespace, done, entry.id)
    if gone:
        raise _Overtaken


async def _read_profile(work: _Work, *, create: bool = False) -> _Log | None:
    """Return the state of the namespace's fact log, or None if it does not exist."""
    storage, namespace = work.storage, work.context.namespace
    found = await profile_of(storage, namespace)
    if found is None:
        if not create:
            return None
        draft = ContextDraft(
            key=PROFILE, namespace=namespace, counter=work.context.counter, created_at=datetime.now(UTC)
        )
        found = await storage.create(draft)
    return await _read_log_state(work, found.id, await storage.head(found.id))


async def _append_profile(
    work: _Work, asked: _Asked, proposals: Sequence[Proposal], read: Sequence[Entry]
) -> list[Decision]:
    """Append facts of scope namespace to the profile, retrying on conflicts; return the outcome of each proposal."""
    proposals = [replace(one, scope="namespace") for one in proposals]
    key = f"reflect:{work.context.id}:{asked.stretch.key}"
    while True:
        state = await _read_profile(work, create=True)
        assert state is not None
        plan = await _consolidate_proposals(work, asked, state, proposals, read, key)
        decisions = list(plan.decisions)
        if not plan.drafts:
            return decisions
        op = Append(context=state.context, drafts=plan.drafts, expect=Expect(version=state.head.version))
        result = await _append_with_retry(work, op)
        if isinstance(result, Receipt):
            return backlog.resolve_fact_ids(decisions, result.ids)
        if isinstance(result, IdempotencyMismatchError):
            # An attempt that was killed before it came to the session's own log has said it.
            return [replace(one, draft=None) for one in decisions]
        if isinstance(result, GoneError):
            raise _Overtaken from result
        if type(result) is not ConflictError:
            raise result


async def _consolidate_proposals(
    work: _Work, asked: _Asked, state: _Log, proposals: Sequence[Proposal], read: Sequence[Entry], key: str
) -> Consolidated:
    """Apply the rules to proposals, and read the messages they request."""
    config = work.config.reflection
    limits = Rules(
        min_confidence=config.min_confidence,
        max_facts=_most_facts(work, asked.stretch),
        max_tokens=config.max_fact_tokens,
        max_active=config.max_active_facts,
    )
    deciding: Generator[Around, Mapping[str, Sequence[Entry]], Consolidated] = rules.consolidate_proposals(
        proposals, state.facts, read, limits, now=datetime.now(UTC), count=work.counter.count, key=key
    )
    try:
        question = next(deciding)
        while True:
            question = deciding.send(await read_adjacent(work.storage, question.ids))
    except StopIteration as done:
        found: Consolidated = done.value
        return found


async def read_adjacent(storage: StorageBackend, ids: Sequence[str]) -> Mapping[str, Sequence[Entry]]:
    """Return messages with those said directly before and after each."""
    found: dict[str, Sequence[Entry]] = {}
    for entry in await storage.get(list(dict.fromkeys(ids))):
        if entry is None or entry.kind is not Kind.MESSAGE:
            continue
        first = entry.replaces[0][0] if entry.replaces else entry.version
        before = await storage.read(
            entry.context, before=first, kinds=(Kind.MESSAGE,), newest=4, deleted=True
        )
        after = await storage.read(entry.context, after=first, kinds=(Kind.MESSAGE,), limit=4, deleted=True)
        found[entry.id] = backlog.select_adjacent(entry, [*before, *after])
    return found


def _emit_reflected(work: _Work, asked: _Asked, decisions: Sequence[Decision], receipt: Receipt) -> None:
    found = asked.stretch
    first, last = receipt.versions
    event = Reflected(
        context_id=work.context.id,
        job_id=work.lease.job.id,
        reflector=work.name,
        episodes=tuple(part.episode.ordinal for part in found.parts),
        turns=tuple(turn.version for turn in asked.turns),
        known=asked.known,
        decisions=tuple(decisions),
        unreadable=asked.answer.unreadable,
        versions=(first, last) if last >= first else None,
        call_seconds=asked.seconds,
        seconds=monotonic() - asked.began,
    )
    log_event(
        logging.INFO,
        "reflected",
        context=work.context.id,
        job=work.lease.job.id,
        reflector=work.name,
        episodes=list(event.episodes),
        turns=len(event.turns),
        proposals=len(event.decisions),
        changed=sum(1 for one in decisions if one.draft is not None),
        rejected=len(asked.answer.rejected),
        unreadable=len(event.unreadable),
        ms=round(event.seconds * 1000),
    )
    emit_event(work.config.on_event, event)
