"""The results of a session: receipts, items and the reasons for them, episodes, pages of history, statistics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from operator import itemgetter
from types import MappingProxyType
from typing import Literal, NamedTuple, Protocol

from acms.errors import EntryNotFoundError, ValidationError
from acms.model import (
    Durability,
    Embedded,
    Entry,
    EpisodeStatus,
    Job,
    Json,
    Kind,
    Origin,
    Part,
    Redaction,
    Role,
    Source,
    Span,
    State,
    ToolResult,
    show_in_repr,
)
from acms.prompt_types import SEPARATOR, Verdict, format_paragraph, prefix_speaker

__all__ = [
    "Band",
    "Branch",
    "Certainty",
    "Change",
    "Compaction",
    "ContextInfo",
    "ContextItem",
    "ContextItems",
    "Delta",
    "Diff",
    "Episode",
    "Erasure",
    "HistoryEntry",
    "HistoryPage",
    "IndexStats",
    "Ledger",
    "LogEvent",
    "MessageReceipt",
    "SessionPage",
    "SessionStats",
    "Synced",
    "Tree",
    "Verdict",
]


def _empty_mapping() -> Mapping[str, Json]:
    return MappingProxyType({})


@show_in_repr("version", "position", "message_id", "tokens", "durability", "embedded", "repeated", "notes")
@dataclass(frozen=True, slots=True, kw_only=True)
class MessageReceipt:
    """The stored form of one ingested message."""

    message_id: str
    version: int
    position: int
    #: Hex SHA-256 of the log up to this message; together they identify a version, also after a failover.
    chain_hash: str
    episode_id: str
    tokens: int
    markers: tuple[str, ...]
    durability: Durability
    #: State of its vectors: complete, being computed (the next recall waits), or computed at the next use of the log.
    embedded: Embedded = "stored"
    #: Whether this key had been ingested before: then nothing new was stored.
    repeated: bool = False
    #: Descriptions of repairs and cuts that were needed to store it.
    notes: tuple[str, ...] = ()


@show_in_repr("appended", "replaced", "retracted", "unchanged", "inserted", "ignored", "erased", "notes")
@dataclass(frozen=True, slots=True, kw_only=True)
class Synced:
    """The result of a synced list of messages, as ids; all changes were stored together."""

    #: New messages, in the order of the list.
    appended: tuple[str, ...] = ()
    #: Edits of messages whose text has changed.
    replaced: tuple[str, ...] = ()
    #: Messages that are no longer in the list, and were retracted.
    retracted: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    inserted: tuple[str, ...] = ()  # appended, but in the list before an older message
    #: Positions in the list of text that ACMS wrote into a prompt, and of empty messages: not stored.
    ignored: tuple[int, ...] = ()
    #: Positions in the list of messages that were matched to an erased or expired message: not stored.
    erased: tuple[int, ...] = ()
    #: Ids of the entries that hold each message, by its position in the list.
    ids: tuple[tuple[str, ...], ...] = ()
    #: Descriptions of repairs and cuts that were needed to store it.
    notes: tuple[str, ...] = ()


# It is not frozen: a frozen dataclass of this size takes four times as long to build.
@dataclass(slots=True, kw_only=True)
class ContextItem:
    """An entry that the model should see, and the reason."""

    #: Id of the entry that it shows.
    id: str
    version: int
    position: int | None
    role: Role | None
    content: str
    source: Source
    #: Value for its tokens, relative to the best answer, in [0, 1]; 0 for an item that was not ranked.
    score: float = 0.0
    #: Rank by score among the recalled items: 1 is the best; 0 in a window, whose items are not ranked.
    rank: int = 0
    #: Share of the question that it answers alone, in [0, 1], independent of the rest of the log.
    relevance: float = 0.0
    #: Its tokens in the prompt, its frame included.
    token_count: int
    markers: tuple[str, ...] = ()
    parts: tuple[Part, ...] = ()
    group: str | None = None
    actor_id: str | None = None
    metadata: Mapping[str, Json] = field(default_factory=_empty_mapping)
    created_at: datetime
    #: The day on which it was written, in UTC, if the log spans several days: joined text shows it.
    day: str | None = None
    #: Name of the session in which it was written, also if a fork inherits it; None if it was not recalled.
    session_id: str | None = None
    #: Whether the content was cut to fit.
    truncated: bool = False
    #: Id of the question, if a question and its answer were recalled together and this is one of them.
    exchange: str | None = None
    #: The reason it was chosen, in words.
    why: str = ""
    #: The redaction applied before it was shown, or None.
    redaction: Redaction | None = None
    #: Its origin; for a fact or a summary the least trusted origin of its sources; `external` if none is recorded.
    trust: Origin = Origin.EXTERNAL

    def __repr__(self) -> str:
        text = " ".join(self.content[:80].split())
        preview = f"{text[:40]}…" if len(text) > 40 else text
        return f"<ContextItem v{self.version} {self.source} {self.score:.2f}, {self.token_count} tokens: {preview!r}>"

    @property
    def speaker(self) -> str | None:
        """The name before it in a joined text: a person, a role, or "fact"; None for a summary."""
        is_result = bool(self.parts) and any(isinstance(part, ToolResult) for part in self.parts)
        speaker = resolve_speaker(self.actor_id, Role.TOOL if is_result else self.role)
        return "fact" if self.source is Source.FACT else speaker


class Band(StrEnum):
    """How likely it is that memory has an answer to a query.

    It holds on average over many questions, not for each one: see the figures in docs/how-to/certainty.md.
    """

    #: One place matches most of the query: answer from the items.
    STRONG = "strong"
    #: Something close to the query was found: the items may hold the answer, or only related text.
    POSSIBLE = "possible"
    #: No place matches most of the query: most such questions have no answer in memory.
    NONE = "none"

    @classmethod
    def of(cls, confidence: float) -> Band:
        """Return the band of a confidence."""
        if confidence >= STRONG_FROM:
            return cls.STRONG
        return cls.POSSIBLE if confidence >= POSSIBLE_FROM else cls.NONE


STRONG_FROM = 0.65
"""Minimum confidence of a strong recall."""
POSSIBLE_FROM = 0.3
"""Minimum confidence of a recall that may contain the answer."""


class Certainty(NamedTuple):
    """The confidence that memory has an answer, and the signals on which it is based."""

    #: In [0, 1].
    confidence: float
    #: Share of the query that the best places match.
    reach: float = 0.0
    #: Share of the query that one message of the named speaker matches beyond any message of another speaker.
    lead: float = 0.0
    #: Similarity of the best entry by meaning, in [0, 1].
    rise: float = 0.0

    def __str__(self) -> str:
        reasons = [f"the best places match {self.reach:.0%} of the query"]
        if self.lead:
            speaker = "the named speaker" if self.lead > 0 else "another speaker"
            reasons.append(f"{speaker} said {abs(self.lead):.0%} more of it in one message")
        if self.rise:
            reasons.append(f"the best one answers {self.rise:.0%} by meaning")
        return f"{Band.of(self.confidence)} ({self.confidence:.2f}): {'; '.join(reasons)}"


UNSURE = Certainty(0.0)


class Others(Protocol):
    """The verdicts on entries of a log that were not candidates of a plan."""

    def why(self, id: str) -> Verdict | None:
        """Return why an entry was not a candidate, or None if the log has no such entry."""
        ...

    def __iter__(self) -> Iterator[Verdict]:
        """Yield the verdicts on all messages and summaries of the log."""
        ...


class Ledger:
    """All decisions of one plan, rejections included; they are computed when they are first read."""

    def __init__(
        self,
        write: Callable[[], Mapping[str, Verdict]],
        warnings: tuple[str, ...] = (),
        others: Others | None = None,
        *,
        omitted: int = 0,
        certainty: Callable[[], Certainty] = lambda: UNSURE,
    ) -> None:
        self._certainty = certainty
        #: Number of candidates and hidden entries that are not shown.
        self.omitted = omitted
        self._compute_verdicts = write
        self._others = others
        #: Warnings for the caller: marked messages that did not fit, a latest message that was cut.
        self.warnings = warnings
        #: Ids of the entries that the model's answer cited; `session.cite` sets them.
        self.cited: frozenset[str] = frozenset()

    @cached_property
    def certainty(self) -> Certainty:
        """The confidence that memory has an answer, and its reasons; computed when it is first read."""
        return self._certainty()

    @cached_property
    def _verdicts(self) -> Mapping[str, Verdict]:
        return self._compute_verdicts()

    def __repr__(self) -> str:
        shown = sum(1 for verdict in self._verdicts.values() if verdict.included)
        return f"<Ledger {shown} shown, {self.omitted} left out, {len(self.warnings)} warnings>"

    def why(self, id: str) -> Verdict:
        """Return the verdict on an entry; raise `EntryNotFoundError` if the plan never saw it."""
        if not isinstance(id, str):
            raise ValidationError(f"must be an id, not {type(id).__name__}", field="id")
        verdict = self._verdicts.get(id)
        if verdict is None and self._others is not None:
            verdict = self._others.why(id)
        if verdict is None:
            raise EntryNotFoundError(f"not the id of an entry that this plan considered: {id!r}")
        return verdict

    def why_not(self, id: str) -> Verdict | None:
        """Return why an entry was left out, or None if it was shown; raise `EntryNotFoundError` as `why` does."""
        verdict = self.why(id)
        return None if verdict.included else verdict

    @property
    def candidates(self) -> Mapping[str, Verdict]:
        """Verdicts by id on the candidates of the plan, without the rest of the log."""
        return self._verdicts

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


class ContextItems(list[ContextItem]):
    """Recalled or windowed items, a list in the order in which the model should see them.

    A recall lists facts first, then items of past episodes, then the current episode; each group oldest first.
    `rank` of an item and `best` give the order by relevance.
    """

    __slots__ = ("budget", "context", "coverage", "ledger", "tier", "tokens", "version")

    def __init__(
        self,
        items: Sequence[ContextItem],
        *,
        budget: int,
        ledger: Ledger,
        context: str,
        version: int,
        coverage: float = 1.0,
        tier: str = "words",
    ) -> None:
        super().__init__(items)
        _assign_ranks(self)
        #: The token budget of the request.
        self.budget = budget
        #: The tokens of all items, including their frames; the days that `text()` adds between them are not counted.
        self.tokens = sum([item.token_count for item in items])
        self.ledger = ledger
        #: The id of the log, and the version of it that was read.
        self.context = context
        self.version = version
        #: Share of the active entries that could be compared by meaning; 1 without an embedder.
        self.coverage = coverage
        #: The kind of ranking: "words", or the name of the embedder's model if meaning was compared too.
        self.tier = tier

    def __repr__(self) -> str:
        return f"<ContextItems {len(self)} items, {self.tokens} of {self.budget} tokens, v{self.version}>"

    def best(self, n: int) -> list[ContextItem]:
        """Return the `n` items with the highest score, the best first; items of a window are not ranked."""
        ranked = sorted((item for item in self if item.rank), key=lambda item: item.rank)
        return ranked[:n]

    @property
    def confidence(self) -> float:
        """The confidence that memory has an answer, shown or not, in [0, 1]; 0 for a window, which has no query."""
        return self.ledger.certainty.confidence

    @property
    def band(self) -> Band:
        """The band of the confidence: strong, possible or none."""
        return Band.of(self.confidence)

    def entry_texts(self) -> dict[str, str]:
        """Return the shown texts by the ids of their entries."""
        return {item.id: item.content for item in self}

    def text(self) -> str:
        """Join the items as `speaker: content` paragraphs; the joined text fits the budget they were chosen for.

        In a log of several days, the first item of each day is `speaker, 2026-03-14: content`.
        """
        return join_items(self)


def _assign_ranks(items: Iterable[ContextItem]) -> None:
    """Set the rank of recalled items by score; of equal scores the older item is first."""
    recalled = [item for item in items if item.source is not Source.WINDOW]
    recalled.sort(key=lambda item: (-item.score, item.version))
    for rank, item in enumerate(recalled, 1):
        item.rank = rank


def format_item(item: ContextItem, day: str | None) -> str:
    """Format an item as a paragraph of a joined text, with a day unless that is None."""
    return format_paragraph(item.speaker or None, item.content, day, external=is_external(item))


def is_external(item: ContextItem) -> bool:
    """Return whether an item is a message with external text: a page, a mail, a file."""
    return item.source is not Source.FACT and item.role is not None and item.trust is Origin.EXTERNAL


def join_items(items: Iterable[ContextItem]) -> str:
    """Join items as paragraphs; those without content are left out."""
    nonempty = [item for item in items if item.content]
    return SEPARATOR.join(map(format_item, nonempty, new_days(nonempty)))


def new_days(items: Sequence[ContextItem]) -> list[str | None]:
    """Return the day to show for each item: None if the previous item has the same day."""
    previous_days: list[str | None] = [None, *[item.day for item in items[:-1]]]
    return [None if item.day == day else item.day for item, day in zip(items, previous_days, strict=False)]


def resolve_speaker(actor: str | None, role: Role | None) -> str | None:
    """Return the speaker of a message: the actor, unless the name could be mistaken for a role or a fact."""
    return role if actor is None or actor.strip().casefold() in _RESERVED_NAMES else actor


_RESERVED_NAMES = frozenset(("", "fact", "summary", *Role))


@show_in_repr("ordinal", "id", "status", "messages", "tokens", "first", "last", "reason", "summary")
@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """A contiguous span of messages that belong together."""

    id: str
    ordinal: int
    status: EpisodeStatus
    #: Versions of its first and last message.
    first: int
    last: int
    messages: int
    tokens: int
    #: Why it ended: max_turns, time_gap, tool_result, pattern, or the caller's reason; None while it is open.
    reason: str | None = None
    summary: str | None = None
    started_at: datetime
    ended_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStats:
    """Counts of one session at one version."""

    session_id: str
    version: int
    #: All messages ever stored, except erased ones.
    messages: int
    tokens: int
    #: Active messages, and summaries that replace some.
    active_messages: int
    active_tokens: int
    episodes: int
    current_episode_id: str | None
    facts: int
    summaries: int
    counter: str
    #: The kind of ranking of its recalls: "words", or the name of the embedder's model.
    tier: str = "words"
    #: Share of its entries whose vectors are computed; 1 without an embedder.
    coverage: float = 1.0
    #: Number of entries that answers have cited until now, and of their citations; the same at a past version.
    cited: int = 0
    citations: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Citation:
    """The citations of an entry in the answers of a session."""

    id: str
    count: int
    #: When it was last cited.
    at: datetime


@show_in_repr("version", "id", "kind", "role", "tokens", "state", "in_force", "preview")
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
    #: Whether it is active at this version: neither replaced nor retracted.
    in_force: bool


@show_in_repr("entries", "next_after")
@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryPage:
    """A slice of a session's history, oldest first."""

    entries: tuple[HistoryEntry, ...]
    #: Pass as `after` for the next page; None at the end.
    next_after: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexStats:
    """Statistics of the indexes of a storage handle."""

    #: Number of uses that found the index in memory, and of uses that had to build it.
    hits: int
    builds: int
    #: Memory of all indexes, and the number of their logs.
    bytes: int
    contexts: int
    #: Index records that were missing and were rebuilt from entries.
    healed: int


# ── contexts, forks, compactions, erasures ──────────────────────────────────────────────────────────────────────────


@show_in_repr("key", "id", "namespace", "latest_version", "message_count", "total_tokens")
@dataclass(frozen=True, slots=True, kw_only=True)
class ContextInfo:
    """The names of a session and the state of its log; over HTTP it is a context."""

    id: str
    #: The caller's name for it within its namespace; None for a fork without a name.
    key: str | None = None
    namespace: str
    #: A display name.
    name: str | None = None
    #: Labels by which sessions can be listed.
    labels: tuple[str, ...] = ()
    metadata: Mapping[str, Json] = field(default_factory=_empty_mapping)
    #: Id of the context it was forked from, and at which version.
    parent_id: str | None = None
    fork_version: int | None = None
    #: Number of messages so far, and their tokens; only an erasure decreases them.
    message_count: int
    total_tokens: int
    latest_version: int
    last_message_id: str | None = None
    #: Name of the token counter.
    counter: str
    created_at: datetime
    deleted_at: datetime | None = None

    @property
    def session_id(self) -> str:
        """The caller's name for it, or its id if it has none; `ACMS` opens the session by it."""
        return self.key or self.id


@show_in_repr("sessions", "next_after")
@dataclass(frozen=True, slots=True, kw_only=True)
class SessionPage:
    """A page of sessions, newest first."""

    sessions: tuple[ContextInfo, ...]
    #: The `after` of the next page; None after the last one.
    next_after: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """One context of a fork tree."""

    context_id: str
    #: The caller's name for it, or its id if it was forked without a name.
    session_id: str
    #: Id of the context it was forked from, and at which version; None for the first one.
    parent: str | None = None
    fork: int | None = None
    #: Version of its newest entry.
    version: int
    created_at: datetime
    #: Whether it is deleted and hidden; entries it shares with other branches can still be read there.
    deleted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """A branch and its forks, oldest first.

    Iterating yields (depth, branch), parents first; `str` draws the tree. Both work at any depth.
    """

    branch: Branch
    forks: tuple[Tree, ...] = ()

    def __iter__(self) -> Iterator[tuple[int, Branch]]:
        """Yield (depth, branch) of every branch, parents first."""
        stack: list[tuple[int, Tree]] = [(0, self)]
        while stack:  # not recursive, because a tree may be deep
            depth, tree = stack.pop()
            yield depth, tree.branch
            stack.extend((depth + 1, fork) for fork in reversed(tree.forks))

    def __str__(self) -> str:
        return "\n".join(
            f"{'  ' * depth}{branch.session_id} v{branch.version}"
            + (f", forked at v{branch.fork}" if branch.fork is not None else "")
            + (" (deleted)" if branch.deleted else "")
            for depth, branch in self
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tree) and list(self) == list(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"<Tree of {self.branch.session_id!r}, {sum(1 for _ in self)} branches>"


@show_in_repr("before", "after")
@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """An entry that differs on the other side: an edited message, a fact with another value."""

    before: Entry
    after: Entry


@show_in_repr("added", "removed", "changed")
@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """Differences between the active entries of two sides, of one kind."""

    added: tuple[Entry, ...] = ()
    removed: tuple[Entry, ...] = ()
    changed: tuple[Change, ...] = ()

    def __bool__(self) -> bool:
        """Return whether there is any difference."""
        return bool(self.added or self.removed or self.changed)

    def __str__(self) -> str:
        counts = (("added", self.added), ("removed", self.removed), ("changed", self.changed))
        return ", ".join(f"{len(entries)} {name}" for name, entries in counts if entries) or "no difference"


@show_in_repr("left", "right", "common", "messages", "facts", "summaries")
@dataclass(frozen=True, slots=True, kw_only=True)
class Diff:
    """The differences between the active entries of two logs or two versions, from the left side to the right one."""

    #: Name of each side, such as "user_123 v12".
    left: str
    right: str
    #: Newest version up to which both sides are the same log; 0 if they have nothing in common.
    common: int
    messages: Delta = Delta()
    facts: Delta = Delta()
    summaries: Delta = Delta()

    def __bool__(self) -> bool:
        """Return whether there is any difference."""
        return bool(self.messages or self.facts or self.summaries)

    def __str__(self) -> str:
        shared = f"the same up to v{self.common}" if self.common else "nothing in common"
        lines = [f"--- {self.left}", f"+++ {self.right}", f"    {shared}{'' if self else ', no difference'}"]
        deltas = {"messages": self.messages, "facts": self.facts, "summaries": self.summaries}
        for name, delta in deltas.items():
            if delta:
                lines.append(f"@@ {name}: {delta} @@")
            lines += _format_delta(delta)
        return "\n".join(lines)


def _format_delta(delta: Delta) -> list[str]:
    """Return the lines of a delta in the order of the log; an entry that changed has two lines."""
    rows = [(entry.version, 0, "-", entry) for entry in delta.removed]
    rows += [(entry.version, 1, "+", entry) for entry in delta.added]
    for change in delta.changed:
        version = change.before.version
        rows += [(version, 2, "-", change.before), (version, 3, "+", change.after)]
    rows.sort(key=itemgetter(0, 1))
    return [f"{sign} v{entry.version} {format_entry_line(entry)}" for _, _, sign, entry in rows]


def format_entry_line(entry: Entry) -> str:
    """Return the speaker and the content of an entry on one line, shortened."""
    line = " ".join(prefix_speaker(entry.actor or entry.role, entry.content).split())
    return line if len(line) <= LINE else line[: LINE - 1].rstrip() + "…"


LINE = 160
"""Maximum characters of an entry that a difference shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """Details of a stretch of the log that its summary omits; the log still has them."""

    #: Number of each kind: a kind of detail, "instruction", "marked" or "question"; kinds without any are absent.
    counts: Mapping[str, int] = field(default_factory=_empty_mapping)
    #: Ids of up to ten messages that held them: instructions first, then marked messages, questions and details.
    ids: tuple[str, ...] = ()


@show_in_repr("version", "id", "tokens_before", "tokens_after", "preserved", "removed", "in_force", "summary")
@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """A summary that replaces, or once replaced, a stretch of the log."""

    #: Version and id of the summary.
    version: int
    id: str
    #: Its text.
    summary: str
    #: First and last version that it replaces; `spans` lists the versions between them.
    replaces: Span
    spans: tuple[Span, ...]
    #: Active tokens before and after it.
    tokens_before: int
    tokens_after: int
    #: Number of messages that stayed unchanged, and of entries that it replaces.
    preserved: int
    removed: int
    #: The policy by which it was made, and the name of its summarizer.
    policy: Mapping[str, Json] = field(default_factory=_empty_mapping)
    summarizer: str = ""
    #: Details that its text omits.
    lost: Lost = field(default_factory=Lost)
    #: Versions of earlier summaries that it renews because entries that they replaced were rewritten.
    renews: tuple[int, ...] = ()
    created_at: datetime
    #: Whether it is active: not undone, and not replaced by a later summary.
    in_force: bool = True
    #: The least trusted origin among its sources; `external` if none is recorded.
    trust: Origin = Origin.EXTERNAL


@dataclass(frozen=True, slots=True, kw_only=True)
class Remaining:
    """An entry that remains after an erasure although it repeats erased content."""

    id: str
    #: A source message of an erased fact, a fact stated by hand with an erased value, a copy of an erased entry, or an
    #: entry that quotes an erased message word for word.
    kind: Literal["source", "statement", "copy", "quote"]
    #: Id of the erased entry.
    of: str
    context: str = ""
    version: int = 0


UNREACHED = (
    "pinned values and stored summaries of prompts: delete them by key, store.delete(key)",
    "vectors in Chroma: acms reindex --embedder local --chroma PATH",
    "backups, exports, other stores, and what a model provider has kept",
)
"""Places that no erasure reaches, whatever the store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewriting:
    """Files or tables that a store rewrote to remove every trace of an erased text."""

    #: The tables or the file.
    rewritten: tuple[str, ...]
    #: Whether all of their bytes were searched for the texts, and where the texts were found.
    searched: bool = False
    found: tuple[str, ...] = ()
    #: Parts that this database user has no access to, and the users that have it.
    unreached: tuple[str, ...] = ()


@show_in_repr("ids", "cascaded", "remaining", "residue", "verified", "proof")
@dataclass(frozen=True, slots=True, kw_only=True)
class Erasure:
    """The result of an erasure: the erased entries, and the checks made afterwards."""

    #: Ids of the entries whose content was erased, including those that were made from others.
    ids: tuple[str, ...]
    #: Ids of the summaries and facts among them that were erased because they were made from others.
    cascaded: tuple[str, ...] = ()
    #: Other entries that repeat the content, as far as the caller may read them: erase them too.
    remaining: tuple[Remaining, ...] = ()
    #: Ids of the contexts in which something was erased.
    contexts: tuple[str, ...] = ()
    #: Remains of the content found by the search; ideally empty.
    residue: tuple[str, ...] = ()
    #: Whether a search found nothing of the content; false if anything remains, listed or not.
    verified: bool = False
    #: The extent of the search: "rows" of the store, "bytes" of its files too, or None. "rows" if erased before.
    proof: Literal["rows", "bytes"] | None = None
    #: Tables or files that were rewritten without the content.
    rewritten: tuple[str, ...] = ()
    #: Places that no erasure reaches, because it has the logs of one store only, and how to erase the content there.
    unreached: tuple[str, ...] = UNREACHED


@show_in_repr("cursor", "entry", "job")
@dataclass(frozen=True, slots=True, kw_only=True)
class LogEvent:
    """An event of a log: an appended entry or a changed job; exactly one of them is set."""

    #: The `after` with which a reader continues: a version, and the states of jobs.
    cursor: str
    #: The entry in its state when it was read.
    entry: Entry | None = None
    #: The job in its state when it was read.
    job: Job | None = None
