"""Compaction: a job writes a summary that replaces the older part of a log.

Nothing is deleted, and past versions read as before. Messages can be appended during a compaction. The chosen entries
are checked again before the summary is appended: while all of them are active, the same text is used, so a model is
never called twice for the same entries (rule 1.4).
"""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from acms.compaction.plan import (
    CompactionPlan,
    Outdated,
    chunk_turns,
    complete_summary,
    is_plan_current,
    is_worthwhile,
    plan_compaction,
    subtract_spans,
    turns_of_entries,
)
from acms.config import ACMSConfig
from acms.errors import (
    ACMSError,
    ConflictError,
    EntryNotFoundError,
    GoneError,
    IdempotencyMismatchError,
    JobFailedError,
    LeaseLostError,
    ProviderError,
    ValidationError,
)
from acms.jobs import requests
from acms.jobs.worker import POLL, Handler
from acms.log import active_entries, read, summary_levels, trust, validation
from acms.log import policy as policy_levels
from acms.log.active_entries import Replacements, is_merge_record
from acms.log.policy import CompactionPolicy, merge_policy
from acms.log.summary_levels import Level
from acms.model import (
    Append,
    Context,
    Done,
    Draft,
    Entry,
    Expect,
    Failed,
    Head,
    Job,
    JobDraft,
    JobQuery,
    JobState,
    Json,
    Kind,
    Lease,
    Origin,
    Privacy,
    Receipt,
    Retry,
    Span,
    State,
)
from acms.observability.events import Compacted
from acms.observability.logging import emit_event, log_event
from acms.ports import StorageBackend, Summarizer, SummaryRequest, TokenCounter, Turn
from acms.privacy.modes import privacy_of_sources
from acms.privacy.redactor import NO_REDACTION, Redactor, create_redaction_stage
from acms.providers.tokens import token_counter
from acms.results import Compaction, Lost
from acms.text.summary_form import MIN_SUMMARY_TOKENS, sanitize_summary
from acms.write.rewrite import (
    append_undo,
    complete_earlier_undo,
    refuse_expired,
    superseded_error,
    undo_merge,
)

if TYPE_CHECKING:
    from acms.session_state import SharedSession
    from acms.write.queue import Writer

_ENDED_STATES = (JobState.DONE, JobState.FAILED, JobState.CANCELLED)
MODEL_PERCENT = 70
"""Percent of the tokens of a summary that a model may fill; the remaining ones are for details that it omits."""
RENEWS = "renews"
"""Key in the data of a summary: versions of the outdated summaries that it replaces."""


# ── requests of a session ───────────────────────────────────────────────────────────────────────────────────────────


async def request_compaction(shared: SharedSession, context: str, overrides: Mapping[str, Json]) -> Job:
    """Enqueue a compaction and return its job, or return the unfinished job of this log.

    `ConflictError` is raised if the unfinished job has other settings than the `overrides`. A waiting job that would
    redact less than this session requires is withdrawn; a running one is waited for.
    """
    storage = shared.storage
    service = shared.config.compaction
    resolved = await policy_levels.resolve_policy(
        storage, context, namespace=shared.namespace, service=service
    )
    requested = merge_policy({}, overrides)
    policy = CompactionPolicy(**{**resolved.policy.to_json(), **requested})
    mode = shared.config.privacy.mode
    while True:
        draft = requests.draft_compaction(context, shared.watch._replace(privacy=mode), policy, force=True)
        (result,) = await storage.append([Append(context=context, drafts=(), jobs=(draft,))])
        if isinstance(result, ACMSError):
            raise result
        job = await requests.find_latest_job(storage, context, draft.dedupe)
        if job is None:
            continue  # it was deleted meanwhile: enqueue another
        shared.start_worker()
        has_ended = job.state in _ENDED_STATES
        if not requests.satisfies_request(job, mode):
            if job.state is JobState.READY:
                mode = requests.privacy_of_job(job, mode, mode)  # at least as strict as the withdrawn job
                await requests.withdraw_job(storage, job, requests.WITHDRAWN)
                continue
            # Without a worker in this process, a running job may never end.
            if has_ended or shared.config.worker.enabled:
                while (await read_current_job(storage, job.id)).state is JobState.RUNNING:
                    await asyncio.sleep(POLL)
                continue
        if all(requests.read_policy_field(job, name) == value for name, value in requested.items()):
            return job
        if not has_ended:  # a job that has ended since does not count: enqueue another
            raise ConflictError(
                f"a compaction with other settings is running: job {job.id}",
                options=("request it again when it has ended", "omit the settings to get the running job"),
            )


async def read_current_job(storage: StorageBackend, id: str) -> Job:
    """Return the current state of a job; `GoneError` if it does not exist."""
    jobs = (await storage.jobs(JobQuery(ids=(id,)))).items
    if not jobs:
        raise GoneError(f"job {id} does not exist")
    return jobs[0]


async def wait_for_compaction(
    shared: SharedSession, context: str, job: Job, timeout: float | None
) -> Compaction | None:
    """Wait until a job has ended and return its compaction; None if it made none."""
    job = validation.require_job(job)
    storage = shared.storage
    shared.start_worker()
    async with asyncio.timeout(validation.validate_timeout(timeout)):
        current = await read_current_job(storage, job.id)
        while current.state not in _ENDED_STATES:
            await asyncio.sleep(POLL)
            current = await read_current_job(storage, job.id)
    if current.state is not JobState.DONE:
        raise JobFailedError(
            f"job {current.id} is {current.state.value} after {current.attempt} attempts: {current.error}",
            job_id=current.id,
            options=(f"acms jobs retry {current.id}", "request it again"),
        )
    compactions = await read_compactions(storage, context, None, job.id, redactor=shared.redactor)
    # The last one: an imported log may have summaries by an older job of this id.
    return compactions[-1] if compactions else None


async def revert_rewrite(shared: SharedSession, writer: Writer, version: int) -> int:
    """Revert the rewrite at a version; return the version of the retraction."""
    storage = shared.storage
    version = validation.validate_integer(version, "version", minimum=1)
    while True:
        context = await shared.find()
        if context is None:
            raise validation.missing_version_error(0, version)
        entry = await _read_entry_at_version(storage, context, version)
        if entry is None:
            raise validation.missing_version_error((await storage.head(context)).version, version)
        if is_merge_record(entry):
            return await undo_merge(shared, writer, context, entry)
        if not entry.replaces:
            raise ValidationError(
                f"v{version} is a {entry.kind.value} that replaces nothing",
                field="version",
                options=(f'retract("{entry.id}") makes it inactive',),
            )
        head = await storage.head(context)
        replacements = await read.replacements_at(storage, context, head, head.version)
        replacing_version = replacements.replaced_by(version)
        if replacing_version is not None:
            newer = next(other for other in replacements.replacing if other.version == replacing_version)
            if await complete_earlier_undo(shared, entry, newer):
                return replacing_version
            raise superseded_error(version, replacing_version)
        await refuse_expired(storage, context, [entry], replacements)
        receipt = await append_undo(shared, writer, context, entry, head)
        if receipt is not None:
            return receipt.versions[0]


async def _read_entry_at_version(storage: StorageBackend, context: str, version: int) -> Entry | None:
    if version < 1:
        return None
    entries = await storage.read(context, after=version - 1, before=version + 1)
    return entries[0] if entries else None


async def read_compactions(
    storage: StorageBackend,
    context: str,
    at: int | None,
    job_id: str | None = None,
    *,
    redactor: Redactor = NO_REDACTION,
) -> list[Compaction]:
    """Return the compactions of a log up to a version, oldest first; with `job_id` only those of that job."""
    head = await storage.head(context)
    version = read.version_to_read(head, at)
    replacements = await read.replacements_at(storage, context, head, version)
    compactions: list[Compaction] = []
    for entry in await storage.read(context, at=version, kinds=(Kind.SUMMARY,)):
        is_of_job = job_id is None or entry.data.get("job") == job_id
        if not entry.replaces or not is_of_job:  # a summary that replaces nothing is of an episode
            continue
        is_active = replacements.replaced_by(entry.version) is None and entry.state is not State.ERASED
        text = redactor.redact_entry(entry).content
        compactions.append(_parse_compaction(entry, text, is_active))
    return compactions


def _parse_compaction(summary: Entry, text: str, is_active: bool) -> Compaction:
    """Return a compaction from its summary; statistics that an older release did not store are empty.

    `text` is the redacted content of the summary.
    """
    data = summary.data
    lost = data.get("lost", {})
    return Compaction(
        version=summary.version,
        id=summary.id,
        summary=text,
        replaces=summary.covers or (summary.version, summary.version),
        spans=summary.replaces,
        tokens_before=int(data.get("before", 0)),
        tokens_after=int(data.get("after", 0)),
        preserved=int(data.get("preserved", 0)),
        removed=int(data.get("removed", 0)),
        policy=data.get("policy", {}),
        summarizer=str(data.get("summarizer", "")),
        lost=Lost(counts=lost.get("counts", {}), ids=tuple(lost.get("ids", ()))),
        renews=tuple(data.get(RENEWS, ())),
        trust=trust.trust_of_entry(summary),
        created_at=summary.created_at,
        in_force=is_active,
    )


async def expand_summary(
    storage: StorageBackend, context: str | None, at: int | None, version: int
) -> list[Entry]:
    """Return the entries that a summary replaced, as they were read just before it."""
    newest = 0 if context is None else read.version_to_read(await storage.head(context), at)
    if context is None or version > newest:
        raise validation.missing_version_error(newest, version)
    summary = await _read_entry_at_version(storage, context, version)
    if summary is None or summary.kind is not Kind.SUMMARY or not summary.replaces:
        raise EntryNotFoundError(
            f"there is no summary at v{version}",
            options=("compactions() lists them with the versions of their summaries",),
        )
    # Entries that were already inactive before the summary are not part of it.
    replacing_before = await storage.read(context, at=version - 1, replacing=True)
    replacements_before = Replacements(replacing_before)
    entries: list[Entry] = []
    for first, last in summary.replaces:
        entries += await storage.read(context, at=last, after=first - 1, kinds=read.CONVERSATION_KINDS)
    versions = {entry.version for entry in entries}
    active_before = active_entries.effective_sequence(entries, replacements_before)
    # The replacements add the active edits and summaries of the whole log: only those of the spans belong here.
    return [entry for entry in active_before if entry.version in versions]


# ── the work of a worker ────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _Work:
    """The inputs of one compaction."""

    storage: StorageBackend
    context: Context
    policy: CompactionPolicy
    counter: TokenCounter
    summarizer: Summarizer
    config: ACMSConfig
    #: Seconds for which summarized messages are kept, unless the namespace overrides it; None keeps them.
    retention: float | None
    #: Redacts the entries that the summarizer reads.
    redactor: Redactor
    #: Whether a model writes the summary: then details that it omits are added.
    uses_model: bool


def make_compaction_handler(
    config: ACMSConfig,
    summarizer: Summarizer | None = None,
    counters: Mapping[str, TokenCounter] = {},
    *,
    modes: Mapping[str, Privacy] | None = None,
) -> Handler:
    """Return the handler of compaction jobs; `counters` are token counters that are not known by name.

    `modes` are the minimum privacy modes of jobs by log; without it, the mode of `config` applies to all.
    """

    async def run(storage: StorageBackend, lease: Lease) -> Done | Retry | Failed | None:
        payload = lease.job.payload
        context = await storage.context(lease.job.context)
        counter = counters.get(context.counter) or token_counter(context.counter)
        if payload.get("policy") is None:
            resolved = await policy_levels.resolve_policy(
                storage, context.id, namespace=context.namespace, service=config.compaction
            )
            policy = resolved.policy
        else:
            policy = CompactionPolicy(**payload["policy"])
        configured = config.privacy.mode
        minimum = configured if modes is None else modes.get(context.id)
        mode = requests.privacy_of_job(lease.job, configured, minimum)
        retention = payload.get(policy_levels.RETENTION, config.retention_seconds)
        if retention is None and modes is None:  # a remote worker falls back to its own configuration
            retention = config.retention_seconds
        work = _Work(
            storage=storage,
            context=context,
            policy=policy,
            counter=counter,
            summarizer=await resolve_summarizer(summarizer),
            config=config,
            retention=retention,
            redactor=create_redaction_stage(storage, mode, counter),
            uses_model=summarizer is not None,
        )
        return await _compact_log(work, lease)

    return run


async def _compact_log(work: _Work, lease: Lease) -> Done | Retry | Failed | None:
    """Choose the entries to summarise, write their summary and append it; return the outcome of the job.

    The outcome is None if the append has ended the job. With a retention, the append also enqueues a job that expires
    the summarized messages.
    """
    storage, context = work.storage, work.context.id
    head = await storage.head(context)
    replacements = await read.replacements_at(storage, context, head, head.version)
    entries = await read.read_conversation(storage, context, replacements, head.version)
    outdated = await _find_outdated(storage, head, replacements)
    choose = partial(
        _plan_due_compaction,
        entries,
        replacements,
        work,
        outdated,
        force=bool(lease.job.payload.get("force")),
    )
    # For a longer log the choice takes milliseconds, which must not block the event loop.
    plan = await asyncio.to_thread(choose) if len(entries) > 1_000 else choose()
    if isinstance(plan, str):  # there is nothing to summarise: this is the reason
        return Done(reason=plan)
    messages = await read.messages_behind(storage, context, head, plan.entries)
    if not messages:  # all were retracted since they were summarised: end their summaries
        return await _append_summary(work, lease, plan, messages, _build_retraction(plan), head, ())
    draft = await _build_summary(work, lease, plan, messages)
    jobs = await _draft_expiry_jobs(work, lease, head)
    return await _append_summary(work, lease, plan, messages, draft, head, jobs)


async def _draft_expiry_jobs(work: _Work, lease: Lease, head: Head) -> tuple[JobDraft, ...]:
    """Draft the job that expires the summarized messages after their retention; none if they are kept."""
    settings = await policy_levels.namespace_settings(work.storage, work.context.namespace)
    retention_seconds = settings.get(policy_levels.RETENTION, work.retention)
    if retention_seconds is None:
        return ()
    payload = {"job": lease.job.id, "after": head.version, "seconds": retention_seconds}
    name = f"expire:{work.context.id}:{head.version}:{lease.job.id}"
    return (JobDraft(kind="expire", dedupe=name, payload=payload),)


async def _find_outdated(storage: StorageBackend, head: Head, replacements: Replacements) -> Outdated:
    """Find the active summaries of which some replaced entries were retracted or edited since.

    A summary can be renewed from its remaining spans if the messages of these can still be read.
    """
    remaining_spans: dict[str, tuple[Span, ...]] = {}
    unrenewable: set[str] = set()
    for summary in replacements.substitutes:
        if summary.kind is not Kind.SUMMARY:
            continue
        changes = replacements.changes(summary)
        if not changes:
            continue
        spans = subtract_spans(summary.replaces, changes)
        renewed = replace(summary, replaces=spans)
        behind = await read.messages_behind(storage, head.context, head, [renewed])
        if behind == (renewed,):  # retention has deleted its messages: only the summary still has the text
            unrenewable.add(summary.id)
        else:
            remaining_spans[summary.id] = spans
    return Outdated(remaining_spans, unrenewable)


def _plan_due_compaction(
    entries: Sequence[Entry], replacements: Replacements, work: _Work, outdated: Outdated, *, force: bool
) -> CompactionPlan | str:
    """Return the plan of a compaction, or the reason why there is none.

    With `force`, which means that a caller requested the compaction, it may free any number of tokens. Otherwise a plan
    that frees too little is reduced to its outdated summaries.
    """
    groups = active_entries.fold_atomic_groups(
        active_entries.effective_sequence(entries, replacements), whole=True
    )
    plan = plan_compaction(groups, work.policy, outdated)
    if force or isinstance(plan, str):
        return plan
    total_tokens = max((entry.total for entry in entries), default=0)
    if is_worthwhile(work.policy, plan, total_tokens):
        return plan
    if plan.renews:
        return plan_compaction(groups, work.policy, outdated, messages=False)
    return "the log is short enough again, or a summary would free too little"


async def _build_summary(work: _Work, lease: Lease, plan: CompactionPlan, messages: Sequence[Entry]) -> Draft:
    """Write a summary of the messages behind the planned entries; return its draft, with statistics as data."""
    redacted = work.redactor.redact_entries(messages)
    text, coverage = await shorten_turns(
        work.summarizer,
        turns_of_entries(redacted),
        limit=plan.limit,
        below=max(plan.tokens, plan.limit + 1),  # a renewed summary may keep its length
        counter=work.counter,
        uses_model=work.uses_model,
    )
    tokens = work.counter.count(text)
    lost = await asyncio.to_thread(_find_lost, redacted, text)
    data: dict[str, Json] = {
        "job": lease.job.id,
        "policy": work.policy.to_json(),
        "before": plan.active_tokens,
        "after": plan.active_tokens - plan.tokens + tokens,
        "preserved": plan.preserved,
        "removed": len(plan.entries),
        "summarizer": requests.model_name(work.summarizer),
        "coverage": coverage,
        "level": plan.level,
        "lost": {"counts": dict(lost.counts), "ids": list(lost.ids)},
        trust.TRUST: trust.lowest_trust(map(trust.trust_of_entry, messages)).value,
        summary_levels.LEVELS: summary_levels.to_json(await build_levels(work, text, tokens)),
        active_entries.ASKED: bool(lease.job.payload.get("force")),
    }
    if plan.renews:
        data[RENEWS] = list(plan.renews)
    return Draft(
        kind=Kind.SUMMARY,
        content=text,
        created_at=datetime.now(UTC),
        tokens=tokens,
        origin=Origin.DERIVED,
        privacy=privacy_of_sources(plan.entries),
        covers=plan.covers,
        replaces=plan.spans,
        data=data,
    )


def _build_retraction(plan: CompactionPlan) -> Draft:
    """Draft a retraction of summaries whose entries were all retracted."""
    return Draft(
        kind=Kind.RETRACTION,
        created_at=datetime.now(UTC),
        origin=Origin.DERIVED,
        replaces=plan.spans,
        sources=tuple(entry.id for entry in plan.entries),
        data={"reason": "emptied", "after": plan.active_tokens - plan.tokens},
    )


def _find_lost(messages: Sequence[Entry], text: str) -> Lost:
    from acms.compaction.lost import find_lost  # it imports stemmers, and sessions import this module

    return find_lost(messages, text)


async def _append_summary(
    work: _Work,
    lease: Lease,
    plan: CompactionPlan,
    messages: Sequence[Entry],
    draft: Draft,
    head: Head,
    jobs: tuple[JobDraft, ...],
) -> Done | Retry | Failed | None:
    """Append a draft that replaces the planned entries, with retries after conflicts; return the outcome of the job.

    The outcome is None if the append has ended the job. If the entries that it replaces were rewritten meanwhile, the
    job is retried; if they were erased, it fails.
    """
    storage, context = work.storage, work.context.id
    while True:
        expect = Expect(rewrites=head.rewrites)
        append = Append(context=context, drafts=(draft,), expect=expect, jobs=jobs, finish=lease)
        (result,) = await storage.append([append])
        if isinstance(result, Receipt):
            _emit_compacted(work, result, plan, draft)
            return None
        # Of the conflicts, only a concurrent rewrite is worth another attempt.
        is_final = isinstance(result, LeaseLostError | IdempotencyMismatchError)
        if is_final or not isinstance(result, ConflictError):
            raise result
        previous_rewrites = head.rewrites
        head = await storage.head(context)
        replacements = await read.replacements_at(storage, context, head, head.version)
        current = await storage.get(_list_ids(plan.entries))
        if any(entry is None or entry.state is not State.LIVE for entry in current):
            return Failed(error="the entries to be summarized were erased or have expired", cancelled=True)
        is_active = is_plan_current(plan, replacements, current)
        current_messages = await read.messages_behind(storage, context, head, plan.entries)
        has_same_messages = _list_ids(current_messages) == _list_ids(messages)
        outdated = await _find_outdated(storage, head, replacements)
        has_new_outdated = not outdated.remaining_spans.keys() <= set(_list_ids(plan.entries))
        if not is_active or not has_same_messages or has_new_outdated:
            return Retry(error="the entries to be summarized were rewritten", not_before=datetime.now(UTC))
        if head.rewrites == previous_rewrites:
            raise result  # refused for another reason


def _list_ids(entries: Iterable[Entry]) -> list[str]:
    return [entry.id for entry in entries]


def _emit_compacted(work: _Work, receipt: Receipt, plan: CompactionPlan, draft: Draft) -> None:
    """Report a compaction in the log of the process, and as an event."""
    version = receipt.versions[0]
    log_event(logging.INFO, "compacted", context=work.context.id, version=version, removed=len(plan.entries))
    event = Compacted(
        context_id=work.context.id,
        version=version,
        first=plan.covers[0],
        last=plan.covers[1],
        tokens_before=plan.active_tokens,
        tokens_after=int(draft.data["after"]),
    )
    emit_event(work.config.on_event, event)


# ── writing the text ────────────────────────────────────────────────────────────────────────────────────────────────


async def build_levels(work: _Work, text: str, tokens: int) -> list[Level]:
    """Return shorter texts of a summary, longest first, each shortened from the one before it.

    The shortest has a tenth of the tokens of the smallest prompt. Each other text has twice as many as the next, so
    every token budget has a text that uses at least half of it. If the model fails, the extractive summarizer shortens
    the text.
    """
    limits: list[int] = []
    limit = max(MIN_SUMMARY_TOKENS, work.policy.smallest_prompt // 10)
    while 2 * limit <= tokens:
        limits.append(limit)
        limit *= 2
    levels: list[Level] = []
    for limit in reversed(limits):
        turns = (Turn(speaker="summary", text=text, version=0, summary=True),)
        try:
            text, _ = await shorten_turns(
                work.summarizer,
                turns,
                limit=limit,
                below=tokens,
                counter=work.counter,
                uses_model=work.uses_model,
            )
        except ProviderError:
            request = SummaryRequest(turns=turns, max_tokens=limit, counter=work.counter)
            text = await (await resolve_summarizer(None)).summarize(request)
        if not text:
            break
        tokens = work.counter.count(text)
        levels.append(Level(text, tokens))
    return levels


async def resolve_summarizer(summarizer: Summarizer | None) -> Summarizer:
    """Return the given summarizer, or the extractive one as the default."""
    if summarizer is not None:
        return summarizer
    module_name = "acms.providers.offline.summarizer"
    module = await asyncio.to_thread(importlib.import_module, module_name)  # it imports numpy
    return module.ExtractiveSummarizer()


async def shorten_turns(
    summarizer: Summarizer,
    turns: Sequence[Turn],
    *,
    limit: int,
    below: int,
    counter: TokenCounter,
    uses_model: bool,
) -> tuple[str, float]:
    """Summarise turns in at most `limit` tokens; return the summary, and the share of their characters that was read.

    A summarizer with a limited window receives parts of the turns, and then the summaries of these parts. With
    `uses_model`, the summarizer is asked for `MODEL_PERCENT` of the tokens, and details that it omits are added as far
    as they fit. `ProviderError` is raised if the summarizer fails, returns no text, or returns a text of `below`
    tokens or more.
    """
    call = _Call(summarizer, counter)
    if not turns:
        raise call.build_error("there is no text to summarise", retryable=False)
    requested = limit * MODEL_PERCENT // 100 if uses_model else limit
    parts = await call.split(turns, requested)
    coverage = sum(map(_count_characters, parts)) / _count_characters(turns)
    source = turns
    while True:
        texts = [text async for text in call.summarize(parts, requested)]
        text = "\n".join(texts)
        if len(texts) == 1 or counter.count(text) <= requested:
            break
        if len(text) >= _count_characters(source):  # another round would not end
            raise call.build_error("its summaries are no shorter than its input")
        source = [
            Turn(speaker="summary", text=text, version=part[-1].version, summary=True)
            for text, part in zip(texts, parts, strict=True)
        ]
        parts = await call.split(source, requested)
    if counter.count(text) >= below:
        raise call.build_error("its summary is no shorter than its input")
    if uses_model:
        text = await asyncio.to_thread(complete_summary, text, turns, limit, counter.count)
    if not text:
        raise call.build_error("nothing of its summary fits")
    return text, coverage


def _count_characters(turns: Sequence[Turn]) -> int:
    return sum(len(turn.text) for turn in turns)


@dataclass(frozen=True, slots=True)
class _Call:
    """A summarizer, and the counter for its texts."""

    summarizer: Summarizer
    counter: TokenCounter

    def build_error(self, reason: str, *, retryable: bool = True) -> ProviderError:
        return ProviderError(reason, provider=requests.model_name(self.summarizer), retryable=retryable)

    async def split(self, turns: Sequence[Turn], limit: int) -> Sequence[tuple[Turn, ...]]:
        """Split turns into parts that each fit the window of the summarizer with a summary of `limit` tokens."""
        window: int | None = getattr(self.summarizer, "window", None)
        if window is None:
            return [tuple(turns)]
        max_tokens = max(1, window - limit - 64)  # a provider adds up to 64 tokens of text around a part
        return await asyncio.to_thread(chunk_turns, turns, max_tokens, self.counter)

    async def summarize(self, parts: Sequence[tuple[Turn, ...]], limit: int) -> AsyncIterator[str]:
        """Yield a summary of each part; the `limit` tokens are shared in proportion to the characters of the parts."""
        total = sum(map(_count_characters, parts))
        for part in parts:
            max_tokens = limit
            if len(parts) > 1:
                max_tokens = max(MIN_SUMMARY_TOKENS, limit * _count_characters(part) // total)
            request = SummaryRequest(turns=part, max_tokens=max_tokens, counter=self.counter)
            try:
                text = await self.summarizer.summarize(request)
            except ACMSError:
                raise
            except Exception as error:
                raise self.build_error(type(error).__name__) from error
            text = sanitize_summary(text) if isinstance(text, str) else ""
            if not text:
                raise self.build_error("it returned no text")
            yield text
