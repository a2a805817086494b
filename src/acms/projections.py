"""What a session gives back: receipts, items and the reasons for them, episodes, pages of history, statistics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from types import MappingProxyType
from typing import Literal, Protocol, overload

from acms.errors import EntryNotFoundError
from acms.model import Durability, Embedded, Json, Kind, Part, Role, Source, State

__all__ = [
    "ContextItem",
    "ContextItems",
    "Episode",
    "HistoryEntry",
    "HistoryPage",
    "IndexStats",
    "Ledger",
    "MessageReceipt",
    "SessionStats",
    "Verdict",
]


def _empty() -> Mapping[str, Json]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageReceipt:
    """What one ingested message became."""

    message_id: str
    version: int
    position: int
    #: Hex SHA-256 of the log up to this message: with it a version is an identity, also after a failover.
    chain_hash: str
    episode_id: str
    tokens: int
    markers: tuple[str, ...]
    durability: Durability
    #: Without an embedder nothing is pending: "stored".
    embedded: Embedded = "stored"
    #: True when this key had been ingested before: nothing new was stored.
    repeated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextItem:
    """One thing the model should see, and why."""

    #: Of the entry it shows.
    id: str
    version: int
    position: int | None
    role: Role | None
    content: str
    source: Source
    #: Relevance raised by the markers, in [0, 1]; 0 for what was not ranked.
    score: float = 0.0
    #: How well it answers the query, in [0, 1].
    relevance: float = 0.0
    #: What it costs in the prompt, its frame included.
    token_count: int
    markers: tuple[str, ...] = ()
    parts: tuple[Part, ...] = ()
    group: str | None = None
    actor_id: str | None = None
    metadata: Mapping[str, Json] = field(default_factory=_empty)
    created_at: datetime
    #: True when the content was cut to fit.
    truncated: bool = False
    #: The reason it was chosen, in words.
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the planner decided about one candidate, and by which rule."""

    id: str
    version: int
    included: bool
    #: Name of the rule that decided, such as "latest", "score", "budget", "replaced".
    rule: str
    source: Source | None = None
    relevance: float = 0.0
    #: Sum of the marker weights.
    boost: float = 0.0
    score: float = 0.0
    #: What each signal adds to the relevance, by name.
    parts: Mapping[str, float] = field(default_factory=_empty)
    tokens: int = 0
    #: The reason in words.
    reason: str = ""

    def __str__(self) -> str:
        verb = "shown" if self.included else "left out"
        return (
            f"v{self.version} {verb} ({self.rule}): {self.reason} "
            f"[score {self.score:.2f} = relevance {self.relevance:.2f} raised by markers {self.boost:.2f}; "
            f"{self.tokens} tokens]"
        )


class Others(Protocol):
    """Answers for the entries of a log that were no candidates of a plan."""

    def why(self, id: str) -> Verdict | None:
        """Return why an entry was no candidate; None when the log has no such entry."""
        ...

    def __iter__(self) -> Iterator[Verdict]:
        """Say it of every message and summary of the log."""
        ...


class Ledger:
    """Every decision of one plan, also each rejection; written down when it is first read."""

    def __init__(
        self,
        write: Callable[[], Mapping[str, Verdict]],
        warnings: tuple[str, ...] = (),
        others: Others | None = None,
        *,
        omitted: int = 0,
    ) -> None:
        #: Candidates and hidden entries that are not shown.
        self.omitted = omitted
        self._write = write
        self._others = others
        #: What the caller should know: marked messages that did not fit, a latest message that was cut.
        self.warnings = warnings

    @cached_property
    def _verdicts(self) -> Mapping[str, Verdict]:
        return self._write()

    def why(self, id: str) -> Verdict:
        """Return the verdict on an entry; `EntryNotFoundError` when the plan never saw it."""
        found = self._verdicts.get(id)
        if found is None and self._others is not None:
            found = self._others.why(id)
        if found is None:
            raise EntryNotFoundError(f"the plan never saw {id!r}")
        return found

    def why_not(self, id: str) -> Verdict | None:
        """Return why an entry was left out; None when it was shown, `EntryNotFoundError` when it was never seen."""
        verdict = self.why(id)
        return None if verdict.included else verdict

    @cached_property
    def _all(self) -> Mapping[str, Verdict]:
        if self._others is None:
            return self._verdicts
        return {**{verdict.id: verdict for verdict in self._others}, **self._verdicts}

    def __iter__(self) -> Iterator[Verdict]:
        return iter(sorted(self._all.values(), key=lambda v: (not v.included, -v.score, v.version)))

    def __len__(self) -> int:
        return len(self._all)

    def __contains__(self, id: object) -> bool:
        return id in self._all


class ContextItems(Sequence[ContextItem]):
    """Recalled or windowed items in the order in which the model should see them."""

    __slots__ = ("_items", "budget", "confidence", "context", "coverage", "ledger", "tokens", "version")

    def __init__(
        self,
        items: Sequence[ContextItem],
        *,
        budget: int,
        ledger: Ledger,
        context: str,
        version: int,
        confidence: float = 0.0,
        coverage: float = 1.0,
    ) -> None:
        self._items = tuple(items)
        #: The token budget they were chosen for, and what they use of it, frames included.
        self.budget = budget
        self.tokens = sum(item.token_count for item in items)
        self.ledger = ledger
        #: The log and the version of it that was read.
        self.context = context
        self.version = version
        #: Best relevance of what was found in the past, shown or not, in [0, 1]; 0: nothing there answers the query.
        self.confidence = confidence
        #: Share of the entries in force that could be compared by meaning; 1 when there is no embedder.
        self.coverage = coverage

    @overload
    def __getitem__(self, index: int) -> ContextItem: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[ContextItem, ...]: ...
    def __getitem__(self, index: int | slice) -> ContextItem | tuple[ContextItem, ...]:
        return self._items[index]

    def __len__(self) -> int:
        return len(self._items)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ContextItems) and self._items == other._items

    def __repr__(self) -> str:
        return f"<ContextItems {len(self)} items, {self.tokens} of {self.budget} tokens, v{self.version}>"

    def text(self) -> str:
        """Join the items as `speaker: content` paragraphs; the joined text fits the budget they were chosen for."""
        return SEPARATOR.join(
            speak(item.actor_id or item.role, item.content) for item in self._items if item.content
        )


SEPARATOR = "\n\n"
"""What stands between two items of a joined text."""


def speak(speaker: str | None, content: str) -> str:
    """Write one item of a joined text."""
    return f"{speaker}: {content}" if speaker else content


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """A contiguous span of messages that belong together (L1 of seed 004)."""

    id: str
    ordinal: int
    status: Literal["open", "closed"]
    #: Versions of its first and last message.
    first: int
    last: int
    messages: int
    tokens: int
    #: Why it ended: max_turns, time_gap, tool_result, pattern, or the caller's word; None while open.
    reason: str | None = None
    summary: str | None = None
    started_at: datetime
    ended_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStats:
    """Counts of one session at one version."""

    session_id: str
    version: int
    #: Everything ever said; neither decreases.
    messages: int
    tokens: int
    #: What is in force: messages and the summaries that stand for some.
    active_messages: int
    active_tokens: int
    episodes: int
    current_episode_id: str | None
    facts: int
    summaries: int
    counter: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEntry:
    """One line of a session's history."""

    id: str
    version: int
    position: int | None
    kind: Kind
    role: Role | None
    #: About 100 characters of the content, on one line.
    preview: str
    tokens: int
    created_at: datetime
    state: State
    #: False when it was replaced or retracted at this version.
    in_force: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryPage:
    """A slice of a session's history, oldest first."""

    entries: tuple[HistoryEntry, ...]
    #: Pass as `after` for the next page; None at the end.
    next_after: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexStats:
    """How the indexes of a storage handle are doing."""

    #: Uses that found the index there, and uses that had to build it.
    hits: int
    builds: int
    #: What all indexes take in memory, and of how many logs.
    bytes: int
    contexts: int
    #: Cards written from entries because nobody had stored them.
    healed: int
