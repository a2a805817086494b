"""The nouns of ACMS: frozen, keyword-only values that every room shares.

A *context* is one conversation's append-only log of *entries*. A caller makes a `Draft`; the store turns it into an
`Entry` by giving it a version, an id and a place in the hash chain. Everything else here is a projection of entries
(`ContextItem`, `Episode`, `SessionStats`) or the vocabulary of the storage protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum, StrEnum
from functools import cached_property
from types import MappingProxyType
from typing import Any, Generic, Literal, TypeAlias, TypeVar, overload

from acms.errors import EntryNotFoundError

__all__ = [
    "ANY",
    "Append",
    "Context",
    "ContextDraft",
    "ContextItem",
    "ContextItems",
    "ContextQuery",
    "Derived",
    "Done",
    "Draft",
    "Durability",
    "Embedded",
    "Entry",
    "Episode",
    "Expect",
    "Failed",
    "Head",
    "HistoryEntry",
    "HistoryPage",
    "Hit",
    "Job",
    "JobDraft",
    "JobQuery",
    "JobState",
    "Json",
    "Kind",
    "Lease",
    "Ledger",
    "MarkerType",
    "Media",
    "MessageReceipt",
    "Origin",
    "Page",
    "Part",
    "Privacy",
    "Raw",
    "Reasoning",
    "Receipt",
    "Retry",
    "Role",
    "Search",
    "SessionStats",
    "Source",
    "Span",
    "State",
    "Text",
    "ToolCall",
    "ToolResult",
    "Verdict",
]

Json: TypeAlias = Any
"""A value that `json.dumps` writes and reads back unchanged."""

Span: TypeAlias = tuple[int, int]
"""First and last version, inclusive, in the coordinates of the context's lineage."""

Durability: TypeAlias = Literal["memory", "relaxed", "disk", "quorum"]
"""What an acknowledged append survives: nothing, a crash, a power cut, the loss of a machine."""

Embedded: TypeAlias = Literal["stored", "queued", "pending"]
"""Where an entry's vectors are: durable, computed and about to be written, or still to be computed."""

EMPTY: Mapping[str, Json] = MappingProxyType({})


def _empty() -> Mapping[str, Json]:
    return EMPTY


T = TypeVar("T")


class Kind(StrEnum):
    """What an entry is."""

    MESSAGE = "message"
    FACT = "fact"
    SUMMARY = "summary"
    EPISODE = "episode"  # a manual close only: automatic ends are fields of messages
    RETRACTION = "retraction"


class State(StrEnum):
    """Whether an entry still has its content."""

    LIVE = "live"
    EXPIRED = "expired"
    ERASED = "erased"


class Role(StrEnum):
    """Who speaks, as model providers name it."""

    SYSTEM = "system"
    DEVELOPER = "developer"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class Origin(StrEnum):
    """Where a text came from, which decides how far it is trusted."""

    SYSTEM = "system"  # written by whoever runs the application
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"
    EXTERNAL = "external"
    DERIVED = "derived"  # made by ACMS from other entries


class Privacy(StrEnum):
    """What may leave the engine: everything, a redacted text, or only the id."""

    ALLOW = "allow"
    REDACT = "redact"
    BLOCK = "block"


class MarkerType(StrEnum):
    """Built-in markers of importance; a custom one is written `custom:<name>` (seed 004)."""

    DECISION = "decision"
    CONSTRAINT = "constraint"
    FAILURE = "failure"
    GOAL = "goal"


class Source(StrEnum):
    """Where a recalled item came from, in the order in which items are shown."""

    FACT = "fact"
    SUMMARY = "summary"
    MARKED = "marked"
    SIMILAR = "similar"
    CURRENT = "current_episode"
    WINDOW = "window"


# ── the parts of a message ──────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Text:
    """Plain text said in a message."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A model's visible reasoning, with the provider's signature where there is one."""

    text: str
    signature: str | None = None


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A model asks for a tool to be run."""

    call_id: str
    name: str
    #: JSON text exactly as the model wrote it, valid or not.
    arguments: str = "{}"


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The answer to one tool call."""

    call_id: str
    output: str
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class Media:
    """A reference to media that is kept elsewhere; ACMS never stores the bytes."""

    mime: str
    ref: str
    sha256: str = ""
    #: What the media costs in tokens, as stated by whoever knows.
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Raw:
    """A vendor's own item, kept byte for byte; not shown to other vendors."""

    vendor: str
    json: str


Part: TypeAlias = Text | Reasoning | ToolCall | ToolResult | Media | Raw


# ── the log ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """One thing to be appended to a log."""

    kind: Kind = Kind.MESSAGE
    #: Canonical text: counted, indexed, redacted. Of a message with parts it is derived from them.
    content: str = ""
    #: The caller's id, unique per context where given: appending the same key again changes nothing.
    key: str | None = None
    #: Aware UTC, microseconds. Never orders anything: versions do.
    created_at: datetime
    #: Tokens of `content` and media, by the context's counter.
    tokens: int = 0
    origin: Origin = Origin.USER
    privacy: Privacy = Privacy.ALLOW
    role: Role | None = None
    #: Who spoke: a person or an agent.
    actor: str | None = None
    parts: tuple[Part, ...] = ()
    markers: tuple[str, ...] = ()
    #: True when the markers were found in the text, False when the caller gave them.
    detected: bool = False
    #: Ordinal of the episode a message belongs to, from 1.
    episode: int = 0
    #: On the message that ends an episode: why it ends.
    closes: str | None = None
    #: Tool group: an opaque id shared by a message with tool calls and the answers to them.
    group: str | None = None
    #: What a summary or an episode stands for.
    covers: Span | None = None
    #: What is out of force from this entry's version on.
    replaces: tuple[Span, ...] = ()
    #: Ids of the entries this one was made from, also of other contexts.
    sources: tuple[str, ...] = ()
    #: Fields that depend on the kind: a fact's subject and attribute, a retraction's reason.
    data: Mapping[str, Json] = field(default_factory=_empty)
    #: The caller's, opaque.
    metadata: Mapping[str, Json] = field(default_factory=_empty)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry(Draft):
    """One immutable record of a log."""

    #: Id of the context that owns the row: an ancestor's for what a fork inherited.
    context: str
    #: Place in the log: 1, 2, 3…, gap-free, never reused.
    version: int
    #: Ordinal among the messages of the lineage; None for everything else.
    position: int | None
    id: str
    #: First version of the append that wrote it.
    batch: int
    #: Tokens of all messages of the lineage up to and including this version.
    total: int
    salt: bytes | None
    digest: bytes
    chain: bytes
    state: State = State.LIVE


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """Where a log stands: the one row every verb reads first."""

    context: str
    version: int = 0
    #: Messages and their tokens so far; neither ever decreases.
    messages: int = 0
    tokens: int = 0
    last_message: str | None = None
    #: How often something was replaced, retracted, expired or erased.
    rewrites: int = 0
    #: Of the root of the fork tree: highest sequence number of a derived row, in every context of the tree the same.
    derived: int = 0
    #: Of the root of the fork tree: rises when something is expired or erased anywhere in it.
    epoch: int = 0
    chain: bytes = b""
    #: The session's own notes about the end of the log; opaque to a store.
    tail: Mapping[str, Json] = field(default_factory=_empty)


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """One conversation's log and its settings."""

    id: str
    namespace: str = "default"
    #: The caller's name for it (the session id), unique among the live contexts of a namespace.
    key: str | None = None
    #: First ancestor of the fork tree; its own id when it was not forked.
    root: str
    parent: str | None = None
    #: Version of the parent at which it was forked.
    fork: int | None = None
    #: Inherited segments, oldest first: (owner, last version read from it).
    lineage: tuple[tuple[str, int], ...] = ()
    #: Name of the token counter its entries were counted with.
    counter: str
    #: Policy, tags, name; the caller's metadata.
    settings: Mapping[str, Json] = field(default_factory=_empty)
    settings_rev: int = 0
    created_at: datetime
    deleted_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextDraft:
    """A context to be created; with `parent` it is a fork."""

    key: str | None = None
    namespace: str = "default"
    counter: str
    settings: Mapping[str, Json] = field(default_factory=_empty)
    created_at: datetime
    parent: str | None = None
    #: Version of the parent to fork at; its head when None.
    fork: int | None = None


class _Any(Enum):
    ANY = "any"

    def __repr__(self) -> str:
        return "ANY"


ANY = _Any.ANY
"""No expectation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expect:
    """What must still be true when an append commits."""

    #: Id of the newest message the writer has seen, None for an empty log.
    last_message: str | Literal[_Any.ANY] | None = ANY
    #: `Head.rewrites` as the writer read it: the precondition of a worker.
    rewrites: int | None = None
    #: `Head.version` as the writer read it: for whoever decides by everything at the end of the log.
    version: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDraft:
    """Work to be enqueued in the commit of an append."""

    kind: str
    #: At most one unfinished job of a tenant has this name.
    dedupe: str
    payload: Mapping[str, Json] = field(default_factory=_empty)
    not_before: datetime | None = None


class JobState(StrEnum):
    """Where a job stands."""

    READY = "ready"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Work done later by a worker."""

    id: str
    kind: str
    dedupe: str
    context: str
    payload: Mapping[str, Json] = field(default_factory=_empty)
    state: JobState = JobState.READY
    #: Rises with every claim; the fencing token of a lease.
    attempt: int = 0
    not_before: datetime
    lease_until: datetime | None = None
    error: str | None = None
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right to finish one attempt of a job until a point in time."""

    job: Job
    attempt: int
    until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """Outcome of an attempt: try again, not before a point in time."""

    error: str
    not_before: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """Outcome of a job: given up, or cancelled."""

    error: str
    cancelled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """Outcome of a job that has no effect on the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """One atomic addition to one log: all of its drafts or none."""

    context: str
    drafts: tuple[Draft, ...]
    expect: Expect = Expect()
    #: Replaces `Head.tail` when given.
    tail: Mapping[str, Json] | None = None
    jobs: tuple[JobDraft, ...] = ()
    #: Completes this job in the same commit; refused when the lease is lost.
    finish: Lease | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What an append did."""

    head: Head
    versions: Span
    ids: tuple[str, ...]
    positions: tuple[int | None, ...]
    chains: tuple[bytes, ...]
    #: True when every draft had been appended before under the same key.
    repeated: bool = False
    durability: Durability = "disk"


@dataclass(frozen=True, slots=True, kw_only=True)
class Derived:
    """A row that can be computed again from an entry: a vector, packed terms."""

    version: int
    #: Names the model, dimension, number type and input recipe; two spaces are never compared.
    space: str
    part: int = 0
    #: Characters of the entry's content that it stands for.
    start: int = 0
    end: int = 0
    data: bytes
    #: Per-context counter, given by the store.
    seq: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextQuery:
    """Which contexts to list, newest first."""

    namespace: str | None = None
    parent: str | None = None
    deleted: bool = False
    after: str | None = None
    limit: int = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class JobQuery:
    """Which jobs to list, newest first."""

    ids: tuple[str, ...] = ()
    context: str | None = None
    states: tuple[JobState, ...] = ()
    after: str | None = None
    limit: int = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """A search across the contexts of one namespace: facts, summaries and marked messages in force or not."""

    namespace: str
    terms: tuple[str, ...] = ()
    space: str | None = None
    vector: tuple[float, ...] | None = None
    limit: int = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """One answer of a search across contexts; a higher score is better."""

    context: str
    id: str
    score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[T]):
    """A slice of a list and where the next one starts."""

    items: tuple[T, ...]
    next_after: str | None = None


# ── projections ─────────────────────────────────────────────────────────────────────────────────────────────────────


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


class Ledger:
    """Every decision of one plan, also each rejection; written down when it is first read."""

    def __init__(self, write: Callable[[], Mapping[str, Verdict]], warnings: tuple[str, ...] = ()) -> None:
        self._write = write
        #: What the caller should know: marked messages that did not fit, a latest message that was cut.
        self.warnings = warnings

    @cached_property
    def _verdicts(self) -> Mapping[str, Verdict]:
        return self._write()

    def why(self, id: str) -> Verdict:
        """Return the verdict on an entry; `EntryNotFoundError` when the plan never saw it."""
        try:
            return self._verdicts[id]
        except KeyError:
            raise EntryNotFoundError(f"the plan never saw {id!r}") from None

    def why_not(self, id: str) -> Verdict | None:
        """Return why an entry was left out; None when it was shown, `EntryNotFoundError` when it was never seen."""
        verdict = self.why(id)
        return None if verdict.included else verdict

    def __iter__(self) -> Iterator[Verdict]:
        return iter(sorted(self._verdicts.values(), key=lambda v: (not v.included, -v.score, v.version)))

    def __len__(self) -> int:
        return len(self._verdicts)

    def __contains__(self, id: object) -> bool:
        return id in self._verdicts


class ContextItems(Sequence[ContextItem]):
    """Recalled or windowed items in the order in which the model should see them."""

    __slots__ = ("_items", "budget", "confidence", "context", "ledger", "tokens", "version")

    def __init__(
        self,
        items: Sequence[ContextItem],
        *,
        budget: int,
        ledger: Ledger,
        context: str,
        version: int,
        confidence: float = 0.0,
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
