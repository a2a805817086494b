"""Reflection: a job distills closed episodes into facts, in order, and never while a message is being stored.

A reflector proposes facts, rules decide about them (`acms.facts.consolidate`), and one append stores the new facts, the
facts they retire, and a mark for each episode that was read. After a concurrent rewrite the same answer is consolidated
again. A model is asked twice about a batch only if a message in it is no longer active, or the process was killed.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from time import monotonic
from typing import Any

from acms.config import ACMSConfig
from acms.errors import ACMSError, ConflictError, GoneError, IdempotencyMismatchError, ProviderError
from acms.facts import adopt, backlog
from acms.facts.backlog import Batch, EpisodeInput, Limits, Progress
from acms.facts.consolidate import Consolidated, Consolidation, FactLimits, split_rounds
from acms.facts.request import FactLog, ensure_profile, read_active_facts
from acms.jobs.requests import REFLECT, model_name, privacy_of_job, reflection_kind
from acms.jobs.worker import Handler
from acms.knowledge import Decision, Fact, Proposal, Reflection
from acms.log.active_entries import Replacements
from acms.log.policy import PRIVATE
from acms.log.read import find_profile
from acms.log.validation import UNNAMED
from acms.model import (
    Append,
    Context,
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
from acms.privacy.redactor import Redactor, create_redaction_stage
from acms.providers.tokens import token_counter
from acms.recall.index_cache import record_new_profile
from acms.runtime.chance import chance
from acms.storage import handles
from acms.storage.handles import LoopState
from acms.text.markers import remove_rendered_text
from acms.text.summary_form import RECIPE
from acms.write.retirement import ProfileChange, apply_private_setting, propagate_to_profile

MAX_REST_SECONDS = 0.1
"""Maximum seconds of a rest: a longer one would delay the job without helping writers."""


class Pace:
    """Yields the event loop to writers: work is done in slices, with a rest between them while messages arrive."""

    def __init__(self, loop_state: LoopState | None) -> None:
        """Take the state of the handle in this event loop; with None there are no writers to yield to."""
        self.loop_state = loop_state
        self._began = monotonic()

    @property
    def is_busy(self) -> bool:
        """Whether messages are arriving in this process, and no caller waits for the work."""
        state = self.loop_state
        if state is None or state.waiting:
            return False
        seconds_since_append = monotonic() - state.appended
        return seconds_since_append < 0.25  # messages arrive in bursts

    def enter(self, context: str) -> None:
        """Record that a log will be read again before the work ends: no worker needs to be woken for it."""
        if self.loop_state is not None:
            self.loop_state.reflecting.add(context)

    def leave(self, context: str) -> None:
        """Record that a log may not be read again: a later request must wake a worker."""
        if self.loop_state is not None:
            self.loop_state.reflecting.discard(context)

    def begin(self) -> None:
        """Start a slice of work."""
        self._began = monotonic()

    async def rest(self) -> None:
        """End a slice and start the next one."""
        worked_seconds = monotonic() - self._began
        # While messages arrive, the work takes a tenth of the time of the event loop.
        await asyncio.sleep(min(MAX_REST_SECONDS, 9 * worked_seconds) if self.is_busy else 0)
        self._began = monotonic()

    async def pause(self) -> None:
        """Let more messages arrive before the log is read again."""
        await asyncio.sleep(MAX_REST_SECONDS if self.is_busy else 0)
        self._began = monotonic()


MAX_CHANGED_BATCHES = 8
"""Maximum batches in a row that change while they are reflected on; after one more, the attempt of the job fails."""
CHUNK = 256
"""Entries that are first read for the next episodes; four times as many, repeatedly, until an episode is whole."""
OFFLINE_MAX_MESSAGES = 12
"""Maximum messages that a reflector without a model reads in one call: it runs on the event loop and blocks it."""
THREAD_MIN_CHARS = 100_000
"""Characters above which an extract is made in a thread: on the event loop it would take about 50 ms."""


# ── the worker ──────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _Work:
    """The state needed to reflect on one log."""

    storage: StorageBackend
    context: Context
    counter: TokenCounter
    reflector: Reflector
    #: Whether the reflector has the older signature: `reflect(episode, turns)` instead of one request.
    has_seed_signature: bool
    #: Name of the reflector.
    name: str
    config: ACMSConfig
    #: Redaction of content sent to the reflector.
    redactor: Redactor
    lease: Lease
    pace: Pace

    @property
    def force(self) -> bool:
        """Whether short episodes are read too."""
        return bool(self.lease.job.payload.get("force"))


@dataclass(frozen=True, slots=True)
class _AnsweredBatch:
    """A batch, the input of the reflector for it, and its answer."""

    batch: Batch
    turns: tuple[Turn, ...]
    #: Ids of the facts that the reflector read.
    known: tuple[str, ...]
    #: The messages that the reflector read, as stored: offsets in a text must be those of the stored text.
    read_messages: tuple[Entry, ...]
    answer: Reflection
    #: Seconds of the call, and the monotonic time at which work on the batch began.
    seconds: float
    began: float


class _BatchChanged(Exception):
    """Raised when messages of a batch have changed, or another process reflected on them: read again."""


def make_reflection_handler(
    config: ACMSConfig,
    reflector: Reflector,
    counters: Mapping[str, TokenCounter] = {},
    *,
    handle: StorageBackend | None = None,
    modes: Mapping[str, Privacy] | None = None,
) -> Handler:
    """Return the job handler for reflections; `counters` are token counters that are not known by name.

    With a `handle`, the handler yields to writes of the sessions on that handle, and its calls end when it is closed.
    `modes` are the minimum privacy modes of jobs by log; without it, the mode of `config` applies to all.
    """
    has_seed_signature = backlog.has_seed_signature(reflector)
    name = model_name(reflector)

    async def run(storage: StorageBackend, lease: Lease) -> None:
        context = await storage.context(lease.job.context)
        counter = counters.get(context.counter) or token_counter(context.counter)
        pace = Pace(None if handle is None else handles.get_loop_state(handle))
        configured = config.privacy.mode
        minimum = configured if modes is None else modes.get(lease.job.context)
        mode = privacy_of_job(lease.job, configured, minimum)
        redactor = create_redaction_stage(storage, mode, counter)
        work = _Work(
            storage, context, counter, reflector, has_seed_signature, name, config, redactor, lease, pace
        )
        try:
            await _run_reflection(work)
            if handle is not None:
                record_new_profile(handle)  # the reflection may have created the profile of the namespace
        finally:
            pace.leave(context.id)

    return run


async def _run_reflection(work: _Work) -> None:
    """Reflect on a log batch by batch until nothing is left; end the job unless something was appended meanwhile."""
    storage, context = work.storage, work.context.id
    changed_batches = 0
    await asyncio.to_thread(importlib.import_module, "acms.text.extract")  # imports numpy, which takes long
    await work.pace.pause()
    await _adopt_before_first(work)
    while True:
        before = await _read_progress(storage, context)
        work.pace.enter(context)
        head = await storage.head(context)
        batch, log = await _find_next_batch(work, before, head)
        if batch is not None:
            try:
                await _reflect_on_batch(work, batch, log)
                changed_batches = 0
            except _BatchChanged as error:
                changed_batches += 1
                is_stuck = changed_batches > MAX_CHANGED_BATCHES
                if is_stuck and await _read_progress(storage, context) == before:
                    raise ConflictError("the log changes faster than it can be reflected on") from error
            await work.pace.rest()
            continue
        work.pace.leave(context)
        append = Append(context=context, drafts=(), expect=Expect(version=head.version), finish=work.lease)
        (result,) = await storage.append([append])
        if not isinstance(result, ACMSError):
            return
        if type(result) is not ConflictError:
            raise result
        await work.pace.pause()  # an entry was appended meanwhile, which may have closed an episode


async def _adopt_before_first(work: _Work) -> None:
    """Give a fork the late facts of its parent before its first reflection."""
    if work.context.parent is None:
        return
    progress = await _read_progress(work.storage, work.context.id)
    if progress.mark is None or progress.mark.version <= (work.context.fork or 0):
        await adopt.adopt_late(work.storage, work.context.id)


async def _read_progress(storage: StorageBackend, context: str) -> Progress:
    """Return how far a log was reflected on, from its newest mark, which is searched for from the end of the log."""
    size = 16
    while True:
        newest = await storage.read(context, kinds=(Kind.SUMMARY,), newest=size)
        progress = backlog.find_progress(newest)
        if progress.mark is not None or len(newest) < size:
            return progress
        size *= 4


def _redact_facts(work: _Work, log: FactLog) -> list[Fact]:
    """Return the active facts as a reflector may read them, without blocked ones."""
    blocked = {
        entry.id for entry in log.entries if work.redactor.redact_entry(entry).privacy is Privacy.BLOCK
    }
    return [fact for fact in work.redactor.redact_facts(log.facts, log.entries) if fact.id not in blocked]


async def _find_next_batch(work: _Work, before: Progress, head: Head) -> tuple[Batch | None, FactLog]:
    """Return the next batch to reflect on, or None if there is none, and the active facts of the log at a head.

    `before` is the progress so far. Entries are read until they hold a whole episode or the log ends.
    """
    storage, context, config = work.storage, work.context.id, work.config.reflection
    max_messages = config.max_turns
    uses_model = reflection_kind(work.reflector) != REFLECT
    if not uses_model:
        max_messages = min(max_messages, OFFLINE_MAX_MESSAGES)
    limits = Limits(
        min_messages=config.min_episode_turns, max_messages=max_messages, max_tokens=config.max_tokens
    )
    work.pace.begin()
    log = await read_active_facts(storage, context, head)
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
        batch = backlog.find_next_batch(
            context, entries, edits, log.replacements, before, head.version, limits, force=work.force
        )
        has_episodes = batch is not None and batch.parts
        if len(entries) < size or has_episodes:
            return batch, log
        size *= 4


async def _reflect_on_batch(work: _Work, batch: Batch, log: FactLog) -> None:
    """Ask the reflector about one batch, and append the facts of its answer that the rules accept."""
    began = monotonic()
    facts = log.facts
    redacted_facts = _redact_facts(work, log)
    profile = None if work.context.namespace == UNNAMED else await _read_profile(work)
    if profile is not None:
        facts = facts + profile.facts
        redacted_facts += _redact_facts(work, profile)
    messages = _read_own_texts(work, batch, facts)
    turns = tuple(backlog.build_turn(entry, text) for entry, text in messages)
    known = backlog.select_known_facts(redacted_facts, turns)
    await work.pace.rest()
    called = monotonic()
    answer = Reflection()
    if turns:
        answer = await _ask_reflector(work, batch, messages, turns, known)
    seconds = monotonic() - called
    ids = {entry.id for entry, _ in messages}
    read_messages = tuple(entry for entry in batch.entries if entry.id in ids)
    known_ids = tuple(fact.id for fact in known)
    answered = _AnsweredBatch(batch, turns, known_ids, read_messages, answer, seconds, began)
    work.pace.begin()
    marks = await _build_marks(work, answered)
    await _write_answer(work, answered, marks, log, profile)


def _read_own_texts(work: _Work, batch: Batch, facts: Iterable[Fact]) -> list[tuple[Entry, str]]:
    """Return the messages that the reflector may read, redacted, each with the text that its speaker wrote.

    Blocked messages are left out. So is text that only repeats what ACMS showed: known facts, and a transcript of other
    speakers. Otherwise a fact would be found again in every message that quotes it.
    """
    contents = {fact.content for fact in facts}
    speakers = {entry.actor for entry in batch.entries if entry.actor}
    messages: list[tuple[Entry, str]] = []
    for entry in map(work.redactor.redact_entry, batch.entries):
        if entry.privacy is Privacy.BLOCK:
            continue
        text = remove_rendered_text(entry.content, known=contents, speakers=speakers)
        if text.strip():
            messages.append((entry, text))
    return messages


# ── calls to the reflector ──────────────────────────────────────────────────────────────────────────────────────────


async def _ask_reflector(
    work: _Work,
    batch: Batch,
    messages: Sequence[tuple[Entry, str]],
    turns: tuple[Turn, ...],
    known: tuple[Fact, ...],
) -> Reflection:
    """Call the reflector about a batch and parse its answer; raise `ProviderError` if it failed.

    `messages` are the entries with the texts of the `turns`. There is no timeout: the reflector limits its own time.
    """
    reflector: Any = work.reflector
    if work.has_seed_signature:
        episode = backlog.build_seed_episode(batch.parts, work.context) if batch.parts else None
        seed_turns = [backlog.build_seed_turn(entry, text, work.context) for entry, text in messages]
        call: Awaitable[object] = reflector.reflect(episode, seed_turns)
    else:
        request = ReflectionRequest(
            turns=turns,
            facts=known,
            max_facts=_max_new_facts(work, batch),
            max_summary_tokens=backlog.limit_summary_tokens(sum(entry.tokens for entry, _ in messages)),
            counter=work.counter,
        )
        call = reflector.reflect(request)
    try:
        answer = await _await_until_closed(work.pace.loop_state, call)
    except ACMSError:
        raise
    except Exception as error:
        raise ProviderError(type(error).__name__, provider=work.name, retryable=True) from error
    versions_by_id = {entry.id: entry.version for entry, _ in messages}
    return backlog.parse_answer(answer, versions_by_id)


def _max_new_facts(work: _Work, batch: Batch) -> int:
    """Return how many facts one answer about a batch may add."""
    config = work.config.reflection
    return min(config.max_facts_per_call * max(1, len(batch.parts)), config.max_active_facts)


async def _await_until_closed(loop_state: handles.LoopState | None, call: Awaitable[object]) -> object:
    """Await a call, which is cancelled when the storage handle closes: closing a session never waits for a model."""
    if loop_state is None:
        return await call
    task = asyncio.ensure_future(call)
    loop_state.calls.add(task)
    try:
        return await task
    finally:
        loop_state.calls.discard(task)


async def _build_marks(work: _Work, answered: _AnsweredBatch) -> list[Draft]:
    """Draft a mark with a summary for each episode of a batch, or one mark for a batch without episodes."""
    now = datetime.now(UTC)
    batch = answered.batch
    if not batch.parts:
        return [backlog.draft_extended_mark(batch, now)]
    marks: list[Draft] = []
    turns_by_version = {turn.version: turn for turn in answered.turns}
    for part in batch.parts:
        read_entries = [entry for entry in part.entries if entry.version in turns_by_version]
        part_turns = [turns_by_version[entry.version] for entry in read_entries]
        summarizer, text = await _summarize_part(work, answered, part, part_turns)
        mark = backlog.draft_mark(
            part, batch, text, work.counter.count(text), reflector=work.name, summarizer=summarizer, now=now
        )
        marks.append(mark)
        await work.pace.rest()
    return marks


async def _summarize_part(
    work: _Work, answered: _AnsweredBatch, part: EpisodeInput, turns: Sequence[Turn]
) -> tuple[str, str]:
    """Return the name of the summarizer of an episode, and the summary.

    If the batch is one episode, the reflector's own summary is used, cut to the limit; otherwise an extract is made.
    """
    from acms.text.extract import extract_summary

    count = work.counter.count
    limit = backlog.limit_summary_tokens(sum(count(turn.text) for turn in turns))
    text = answered.answer.summary if len(answered.batch.parts) == 1 else None
    if text is not None and count(text) > limit:
        summary = Turn(speaker="summary", text=text, version=part.episode.last, summary=True)
        text = extract_summary([summary], limit, count)
    # The text is empty if nothing of the reflector's summary fits the limit.
    if text is not None and (text or not turns):
        return work.name, text
    if not turns:
        return RECIPE, ""
    if sum(len(turn.text) for turn in turns) > THREAD_MIN_CHARS:
        return RECIPE, await asyncio.to_thread(extract_summary, turns, limit, count)
    return RECIPE, extract_summary(turns, limit, count)


# ── appends ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def _write_answer(
    work: _Work, answered: _AnsweredBatch, marks: Sequence[Draft], log: FactLog, profile: FactLog | None
) -> None:
    """Append the accepted facts: first those of the namespace's profile, then those of the session with the marks.

    A session that is private or has no namespace shares no facts. Proposals that contradict each other are appended in
    several rounds, the marks with the last one.
    """
    proposals = answered.answer.proposals
    context = await work.storage.context(
        work.context.id
    )  # it may have become private since the batch was read
    if context.settings.get(PRIVATE) or context.namespace == UNNAMED:
        proposals = tuple(replace(proposal, scope="session") for proposal in proposals)
        profile = None
    profile_facts = [] if profile is None else profile.facts
    session_indexes, profile_indexes = backlog.route_proposals(
        proposals, {fact.id for fact in log.facts}, {fact.id for fact in profile_facts}
    )
    decisions: dict[int, Decision] = {}
    if profile_indexes:
        await _check_batch_current(work, answered.batch, log.head)
        for indexes in _split_rounds(proposals, profile_indexes, profile_facts):
            round_proposals = [proposals[index] for index in indexes]
            round_decisions = await _append_to_profile(work, answered, round_proposals)
            decisions.update(zip(indexes, round_decisions, strict=True))
        await _update_profile(work, answered.batch, log.head)
    *first_rounds, last_round = _split_rounds(proposals, session_indexes, log.facts)
    for indexes in first_rounds:
        round_proposals = [proposals[index] for index in indexes]
        _, round_decisions = await _append_to_session(work, answered, log, round_proposals, ())
        decisions.update(zip(indexes, round_decisions, strict=True))
        log = await read_active_facts(work.storage, log.context, await work.storage.head(log.context))
    round_proposals = [proposals[index] for index in last_round]
    receipt, round_decisions = await _append_to_session(work, answered, log, round_proposals, marks)
    decisions.update(zip(last_round, round_decisions, strict=True))
    in_order = [decisions[index] for index in range(len(proposals))]
    _emit_reflected(work, answered, [*in_order, *answered.answer.rejected], receipt)


def _split_rounds(
    proposals: Sequence[Proposal], indexes: Sequence[int], known: Sequence[Fact]
) -> list[list[int]]:
    """Divide some of the proposals into rounds; return the indexes of each."""
    rounds = split_rounds([proposals[index] for index in indexes], known)
    return [[indexes[position] for position in positions] for positions in rounds]


async def _append_to_session(
    work: _Work, answered: _AnsweredBatch, log: FactLog, proposals: Sequence[Proposal], marks: Sequence[Draft]
) -> tuple[Receipt, list[Decision]]:
    """Append facts and marks to the session's own log; return the receipt and the decision about each proposal.

    After a concurrent rewrite the proposals are consolidated again; `_BatchChanged` is raised if the batch has changed.
    """
    while True:
        key = f"reflect:{answered.batch.key}"
        consolidated = await _consolidate_proposals(work, answered, log, proposals, key)
        await work.pace.rest()
        drafts, expect = (*consolidated.drafts, *marks), Expect(rewrites=log.head.rewrites)
        result = await _append_with_retry(work, Append(context=log.context, drafts=drafts, expect=expect))
        if isinstance(result, Receipt):
            if result.repeated and marks:
                raise _BatchChanged  # an earlier attempt has appended this answer with its marks
            return result, backlog.resolve_fact_ids(consolidated.decisions, result.ids)
        if isinstance(result, IdempotencyMismatchError | GoneError):
            raise _BatchChanged from result  # another process reflected on it, or a source was erased
        if type(result) is not ConflictError:
            raise result
        head = await work.storage.head(log.context)
        if head.rewrites == log.head.rewrites:
            raise result  # refused for another reason
        await _check_batch_current(work, answered.batch, log.head)
        log = await read_active_facts(work.storage, log.context, head)


async def _append_with_retry(work: _Work, append: Append) -> Receipt | ACMSError:
    """Append, and retry when the store is busy, so that a model is not asked twice for the same answer."""
    retry = work.config.retry
    attempt = 0
    while True:
        attempt += 1
        try:
            (result,) = await work.storage.append([append])
        except ACMSError as error:
            result = error
        if isinstance(result, Receipt | ConflictError):
            return result
        if not result.retryable or attempt >= retry.max_attempts:
            return result
        await asyncio.sleep(retry.delay(attempt, chance.random()))


async def _check_batch_current(work: _Work, batch: Batch, before: Head) -> None:
    """Raise `_BatchChanged` if an entry of the batch is no longer active; `before` is the head when it was read."""
    head = await work.storage.head(before.context)
    if (head.rewrites, head.epoch) == (before.rewrites, before.epoch):
        return
    replacing = await work.storage.read(before.context, at=head.version, replacing=True)
    current = await work.storage.get([entry.id for entry in batch.entries])
    if not backlog.is_batch_current(batch, Replacements(replacing, searchable=True), current):
        raise _BatchChanged


async def _update_profile(work: _Work, batch: Batch, before: Head) -> None:
    """Retire facts of the profile that come from messages which were replaced, or became private, since `before`.

    The removal of a message updates the profile, but perhaps before these facts were added to it. Raise `_BatchChanged`
    if the batch must be read again.
    """
    context = await work.storage.context(before.context)
    if context.settings.get(PRIVATE):
        await apply_private_setting(work.storage, context)
        raise _BatchChanged
    head = await work.storage.head(before.context)
    if head.rewrites == before.rewrites:
        return
    replacing = await work.storage.read(before.context, at=head.version, replacing=True)
    superseded = backlog.superseded_ids_by_version(batch, Replacements(replacing, searchable=True))
    for entry in replacing:
        if entry.version in superseded:
            change = ProfileChange(superseded[entry.version])
            await propagate_to_profile(work.storage, work.context.namespace, change, entry.id)
    if superseded:
        raise _BatchChanged


async def _read_profile(work: _Work) -> FactLog | None:
    """Return the facts of the namespace, or None if its profile does not exist."""
    profile = await find_profile(work.storage, work.context.namespace)
    if profile is None:
        return None
    return await read_active_facts(work.storage, profile.id, await work.storage.head(profile.id))


async def _append_to_profile(
    work: _Work, answered: _AnsweredBatch, proposals: Sequence[Proposal]
) -> list[Decision]:
    """Append facts to the namespace's profile, with retries after conflicts; return the decision on each proposal."""
    storage, session = work.storage, work.context
    proposals = [replace(proposal, scope="namespace") for proposal in proposals]
    key = f"reflect:{session.id}:{answered.batch.key}"
    while True:
        profile = await ensure_profile(storage, session.namespace, session.counter)
        log = await read_active_facts(storage, profile, await storage.head(profile))
        consolidated = await _consolidate_proposals(work, answered, log, proposals, key)
        decisions = list(consolidated.decisions)
        if not consolidated.drafts:
            return decisions
        expect = Expect(version=log.head.version)
        append = Append(context=profile, drafts=consolidated.drafts, expect=expect)
        result = await _append_with_retry(work, append)
        if isinstance(result, Receipt):
            return backlog.resolve_fact_ids(decisions, result.ids)
        if isinstance(result, IdempotencyMismatchError):
            # An earlier attempt has appended them, and was killed before it appended to the session's own log.
            return [replace(decision, draft=None) for decision in decisions]
        if isinstance(result, GoneError):
            raise _BatchChanged from result
        if type(result) is not ConflictError:
            raise result


async def _consolidate_proposals(
    work: _Work, answered: _AnsweredBatch, log: FactLog, proposals: Sequence[Proposal], key: str
) -> Consolidated:
    """Decide about proposals by the rules, and return the drafts to append; `key` begins their keys."""
    config = work.config.reflection
    limits = FactLimits(
        min_confidence=config.min_confidence,
        max_facts=_max_new_facts(work, answered.batch),
        max_tokens=config.max_fact_tokens,
        max_active=config.max_active_facts,
    )
    now, count = datetime.now(UTC), work.counter.count
    consolidation = Consolidation(
        proposals, log.facts, answered.read_messages, limits, now=now, count=count, key=key
    )
    return consolidation.build_drafts(await work.storage.get(consolidation.cited_ids))


def _emit_reflected(
    work: _Work, answered: _AnsweredBatch, decisions: Sequence[Decision], receipt: Receipt
) -> None:
    """Report a reflection as an event, and in the log of the process."""
    first, last = receipt.versions
    event = Reflected(
        context_id=work.context.id,
        job_id=work.lease.job.id,
        reflector=work.name,
        episodes=tuple(part.episode.ordinal for part in answered.batch.parts),
        turns=tuple(turn.version for turn in answered.turns),
        known=answered.known,
        decisions=tuple(decisions),
        unreadable=answered.answer.unreadable,
        versions=(first, last) if last >= first else None,
        call_seconds=answered.seconds,
        seconds=monotonic() - answered.began,
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
        changed=sum(decision.draft is not None for decision in decisions),
        rejected=len(answered.answer.rejected),
        unreadable=len(event.unreadable),
        ms=round(event.seconds * 1000),
    )
    emit_event(work.config.on_event, event)
