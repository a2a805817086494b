"""The one pipeline behind every read: gather from the log, rank, plan, present.

Only `gather_*` awaits; everything after it is a pure function of what was gathered, so a plan can be made again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from acms.core import chat
from acms.core.history import Cover, Unit, Units, effective, shown_role, units
from acms.core.markers import boost
from acms.core.plan import (
    Candidate,
    Choice,
    candidate,
    fit,
    join,
    ledger,
    present,
    share,
    source_of,
    suffix,
)
from acms.core.rank import document, fuse, relevance
from acms.errors import TokenBudgetExceededError, ValidationError
from acms.model import (
    ContextItem,
    ContextItems,
    Entry,
    Head,
    Json,
    Kind,
    Role,
    Source,
)
from acms.protocols import Frame, StorageBackend, TokenCounter

THREAD_ABOVE = 1_000
"""Ranking more entries than this leaves the event loop to others."""

RECALL_SHARE = 0.25
"""Share of a prompt that retrieval may use when the history does not fit (decision 0013)."""

_SHOWN = (Kind.MESSAGE, Kind.SUMMARY)


@dataclass(frozen=True, slots=True)
class Gathered:
    """A stretch of a log up to one version, as units."""

    context: str
    version: int
    cover: Cover
    units: list[Unit]
    #: Entries that cannot be shown, and why.
    hidden: list[tuple[Entry, str]]
    #: True when it starts at the beginning of the log.
    whole: bool


def version_of(head: Head, at: int | None) -> int:
    """Return the version to read; `ValidationError` when the log does not reach it."""
    if at is None:
        return head.version
    if at > head.version:
        raise ValidationError(f"the log ends at version {head.version}, {at} does not exist yet", field="at")
    return at


async def gather_all(storage: StorageBackend, context: str, at: int | None) -> Gathered:
    """Read everything in force at a version."""
    head = await storage.head(context)
    version = version_of(head, at)
    entries = await storage.read(context, at=version, kinds=_SHOWN)
    cover = Cover(await storage.read(context, at=version, replacing=True) if head.rewrites else [])
    return _gathered(context, version, entries, cover, units(effective(entries, cover), whole=True), 0)


def _gathered(
    context: str, version: int, entries: Sequence[Entry], cover: Cover, folded: Units, after: int
) -> Gathered:
    hidden = list(folded.hidden)
    if cover:
        for entry in entries:
            by = cover.by(entry.version)
            if by is not None:
                hidden.append((entry, f"out of force since v{by}"))
    return Gathered(context, version, cover, folded.units, hidden, whole=after == 0)


async def gather_newest(
    storage: StorageBackend, context: str, at: int | None, frame: Frame, budget: int
) -> Gathered:
    """Read back from a version until a budget is filled, or the log ends."""
    head = await storage.head(context)
    version = version_of(head, at)
    cover = Cover(await storage.read(context, at=version, replacing=True) if head.rewrites else [])
    least = frame.cost(Role.USER, ())
    average = max(1.0, head.tokens / head.messages + least) if head.messages else 1.0
    size = min(int(budget / average * 1.05) + 4, max(version, 1))
    while True:
        entries = await storage.read(context, at=version, newest=size)
        after = entries[0].version - 1 if entries else 0
        sequence = effective(entries, cover, after=after)
        folded = units(sequence, whole=after == 0)
        if after == 0 or (not folded.unresolved and _cost(folded.units, frame) > budget):
            return _gathered(context, version, entries, cover, folded, after)
        size = min(2 * size, version)


def _cost(found: Sequence[Unit], frame: Frame) -> int:
    entries = [entry for unit in found for entry in unit.entries]
    return sum([entry.tokens + frame.cost(shown_role(entry), entry.parts, entry.actor) for entry in entries])


async def in_force(storage: StorageBackend, context: str, at: int | None, newest: int | None) -> list[Entry]:
    """Return the effective sequence at a version, or its newest entries."""
    head = await storage.head(context)
    version = version_of(head, at)
    cover = Cover(await storage.read(context, at=version, replacing=True) if head.rewrites else [])
    if newest is None:
        return effective(await storage.read(context, at=version, kinds=_SHOWN), cover)
    size = newest + 16
    while True:
        entries = await storage.read(context, at=version, newest=size)
        after = entries[0].version - 1 if entries else 0
        found = effective(entries, cover, after=after)
        if after == 0 or len(found) >= newest:
            return found[max(0, len(found) - newest) :]
        size *= 2


def plan_window(
    gathered: Gathered, budget: int, counter: TokenCounter, frame: Frame, keep: Collection[Role] = ()
) -> ContextItems:
    """Choose the newest contiguous units; `keep` holds on to a leading run of messages of these roles."""
    lead = _leading(gathered, keep)
    candidates = [candidate(unit, Source.WINDOW, frame) for unit in gathered.units]
    prefix, rest = candidates[:lead], candidates[lead:]
    led = sum(one.tokens for one in prefix)

    def choose(limit: int) -> list[Choice]:
        holds = led <= limit
        reason = (
            "a leading message of a role to keep" if holds else f"needs {led} tokens, the budget is {limit}"
        )
        kept = [Choice(one, holds, "keep" if holds else "budget", reason) for one in prefix]
        return kept + suffix(rest, limit - led if holds else limit)

    items, choices = fit(choose, budget, counter, frame)
    return _items(gathered, items, choices, budget)


def _leading(gathered: Gathered, roles: Collection[Role]) -> int:
    if not gathered.whole:
        return 0
    lead = 0
    for unit in gathered.units[:-1]:
        if unit.entries[0].role not in roles:
            break
        lead += 1
    return lead


def _items(
    gathered: Gathered,
    items: Sequence[ContextItem],
    choices: Sequence[Choice],
    budget: int,
    warnings: Sequence[str] = (),
    found: Sequence[Candidate] = (),
) -> ContextItems:
    cut = [f"the latest message was cut to fit ({item.id})" for item in items if item.truncated]
    return ContextItems(
        items,
        budget=budget,
        ledger=ledger(choices, gathered.hidden, (*warnings, *cut)),
        context=gathered.context,
        version=gathered.version,
        confidence=max((one.relevance for one in found), default=0.0),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Recall:
    """What a recall was asked for."""

    query: str
    budget: int
    include_current: bool = True
    min_relevance: float = 0.0
    exclude: frozenset[str] = frozenset()
    floor: float = 0.4
    weights: Mapping[str, float]


def _ranked(gathered: Gathered, query: str, weights: Mapping[str, float], frame: Frame) -> list[Candidate]:
    """Return every unit as a candidate with its relevance: that of its best entry."""
    entries = [entry for unit in gathered.units for entry in unit.entries]
    scores = dict(
        zip(
            (entry.id for entry in entries),
            relevance(query, [document(entry) for entry in entries]),
            strict=True,
        )
    )
    found: list[Candidate] = []
    for unit in gathered.units:
        best = max(scores[entry.id] for entry in unit.entries)
        one = candidate(unit, source_of(unit), frame)
        raised = boost(one.markers, weights)
        found.append(one._replace(relevance=best, boost=raised, score=fuse(best, raised)))
    return found


def plan_recall(gathered: Gathered, asked: Recall, counter: TokenCounter, frame: Frame) -> ContextItems:
    """Choose the current episode's newest messages and what in the past answers the query (seed 004, steps 2-6)."""
    ranked = _ranked(gathered, asked.query, asked.weights, frame)
    past: list[Candidate] = []
    current: list[Candidate] = []
    rejected: list[Choice] = []

    def reject(one: Candidate, rule: str, reason: str) -> None:
        rejected.append(Choice(one, False, rule, reason))

    if ranked and _asks(ranked[-1].unit, asked.query):
        reject(ranked.pop(), "query", "it is the query itself")
    episode = ranked[-1].unit.entries[-1].episode if ranked else 0
    for index, one in enumerate(ranked):
        newest = index == len(ranked) - 1
        if any(entry.id in asked.exclude for entry in one.unit.entries):
            reject(one, "excluded", "excluded by the caller")
        elif newest or (episode and one.unit.entries[-1].episode == episode):
            if asked.include_current:
                current.append(one._replace(source=Source.CURRENT))
            else:
                reject(one, "current_episode", "the current episode was not asked for")
        elif one.relevance <= 0:
            reject(one, "irrelevant", "shares no word with the query")
        elif one.relevance < asked.min_relevance:
            reject(one, "min_relevance", f"below the least relevance of {asked.min_relevance:.2f}")
        else:
            past.append(one)

    def choose(limit: int) -> list[Choice]:
        return share(past, current, limit, asked.floor)

    items, choices = fit(choose, asked.budget, counter, frame)
    left_out = sum(1 for choice in choices if not choice.included and choice.candidate.markers)
    warnings = [f"{left_out} relevant marked messages did not fit the budget"] if left_out else []
    return _items(gathered, items, [*choices, *rejected], asked.budget, warnings, past)


def _asks(unit: Unit, query: str) -> bool:
    entry = unit.entries[-1]
    return entry.role is Role.USER and entry.content.strip() == query.strip()


@dataclass(frozen=True, slots=True)
class ChatPlan:
    """Provider-ready messages, their cost, and what was decided."""

    messages: list[dict[str, Json]]
    tokens: int
    items: ContextItems


def plan_chat(gathered: Gathered, asked: Recall, counter: TokenCounter, text: Frame) -> ChatPlan:
    """Write the whole history when it fits, else the newest messages and, before the last turn, what the past answers.

    Leading system and developer messages stay. Recalled text stands right before the newest user message, so what
    comes before it is the same from turn to turn. `TokenBudgetExceededError` when not even the newest unit fits.
    """
    limit = asked.budget
    while True:
        plan = _plan_chat(gathered, asked, counter, text, limit)
        over = plan.tokens - asked.budget
        if over <= 0:
            return plan
        limit -= over
        if limit <= 0:
            raise _too_much(asked.budget, plan.tokens)


def _too_much(budget: int, required: int) -> TokenBudgetExceededError:
    return TokenBudgetExceededError(
        budget=budget, required=required, options=("raise the budget", "shorten the leading system messages")
    )


def _plan_chat(gathered: Gathered, asked: Recall, counter: TokenCounter, text: Frame, limit: int) -> ChatPlan:
    frame = chat.ChatFrame(counter)
    lead = _leading(gathered, (Role.SYSTEM, Role.DEVELOPER))
    candidates = [candidate(unit, Source.WINDOW, frame) for unit in gathered.units]
    rest = candidates[lead:]
    kept = [Choice(one, True, "keep", "a leading system message") for one in candidates[:lead]]
    room = limit - (chat.PRIMER if candidates else 0) - sum(one.tokens for one in candidates[:lead])
    choices = suffix(rest, room)
    found: list[ContextItem] = []
    ranked: list[Choice] = []
    past: list[Candidate] = []
    if not all(choice.included for choice in choices):
        reserved = int(max(0, room) * RECALL_SHARE)
        narrow = {id(choice.candidate.unit) for choice in suffix(rest, room - reserved) if choice.included}
        past = [
            one
            for one in _ranked(gathered, asked.query, asked.weights, text)[lead:]
            if id(one.unit) not in narrow and one.relevance > 0
        ]
        overhead = chat.tokens([chat.recalled("")], counter) - chat.PRIMER
        found, ranked = fit(
            lambda limit: share(past, (), limit, 0.0), max(0, reserved - overhead), counter, text
        )
        choices = suffix(rest, room - (overhead + sum(item.token_count for item in found) if found else 0))
        shown = {entry.id for choice in choices if choice.included for entry in choice.candidate.unit.entries}
        found = [item for item in found if item.id not in shown]
        ranked = [choice for choice in ranked if choice.candidate.unit.entries[0].id not in shown]
    items = [
        item for choice in (*kept, *choices) if choice.included for item in present(choice, counter, frame)
    ]
    if items and items[-1].truncated and not items[-1].token_count:
        raise _too_much(asked.budget, asked.budget - room + rest[-1].tokens)
    written = chat.render(items)
    if found:
        written.insert(_before_last_turn(written), chat.recalled(join(found)))
    decided = {id(choice.candidate.unit) for choice in ranked}
    decisions = [choice for choice in (*kept, *choices) if id(choice.candidate.unit) not in decided]
    return ChatPlan(
        written,
        chat.tokens(written, counter) if written else 0,
        _items(gathered, [*found, *items], [*decisions, *ranked], asked.budget, found=past),
    )


def _before_last_turn(written: Sequence[Mapping[str, Json]]) -> int:
    """Return the index of the newest user message; the end when there is none."""
    for index in range(len(written) - 1, -1, -1):
        if written[index]["role"] == "user":
            return index
    return len(written)


T = TypeVar("T")


async def planned(gathered: Gathered, plan: Callable[[], T]) -> T:
    """Make a plan, in a thread when there is much to rank."""
    return await asyncio.to_thread(plan) if len(gathered.units) > THREAD_ABOVE else plan()
