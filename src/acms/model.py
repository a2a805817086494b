"""The nouns of ACMS: frozen, keyword-only values that every package shares.

A *context* is one conversation's append-only log of *entries*. A caller makes a `Draft`; the store turns it into an
`Entry` by giving it a version, an id and a place in the hash chain. The rest is the vocabulary of the storage protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum, StrEnum
from types import MappingProxyType
from typing import Any, Generic, Literal, NamedTuple, TypeAlias, TypeVar

__all__ = [
    "ANY",
    "Append",
    "Context",
    "ContextDraft",
    "ContextQuery",
    "Derived",
    "Done",
    "Draft",
    "Durability",
    "Embedded",
    "Entry",
    "Expect",
    "Failed",
    "Head",
    "Hit",
    "Job",
    "JobDraft",
    "JobQuery",
    "JobState",
    "Json",
    "KVEntry",
    "Kind",
    "Layer",
    "Lease",
    "MarkerType",
    "Media",
    "Migration",
    "Origin",
    "Page",
    "Part",
    "Privacy",
    "Raw",
    "Reasoning",
    "Receipt",
    "Record",
    "Redaction",
    "Retry",
    "Role",
    "Search",
    "Seen",
    "SessionHead",
    "Source",
    "Span",
    "State",
    "Text",
    "ToolCall",
    "ToolResult",
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


def _empty_mapping() -> Mapping[str, Json]:
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


class EpisodeStatus(StrEnum):
    """Whether an episode still takes messages."""

    OPEN = "open"
    CLOSED = "closed"


class Role(StrEnum):
    """Who speaks, as model providers name it."""

    SYSTEM = "system"
    DEVELOPER = "developer"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class Origin(StrEnum):
    """Where a text came from, which decides how far it is trusted."""

    SYSTEM = "system"  # written by the operator of the application
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


class Layer(StrEnum):
    """Where knowledge comes from: the world, the project, experience, or the caller's own cache."""

    L1 = "L1"
    L2 = "L2"
    L4 = "L4"
    CACHED = "cached"


@dataclass(frozen=True, slots=True)
class Redaction:
    """What the stage of privacy took out of an entry before it was shown."""

    #: The mode it was shown under; under `block` nothing of its text is left.
    mode: Privacy
    #: How often it took out what, by kind; empty under `block`.
    kinds: tuple[tuple[str, int], ...] = ()


class MarkerType(StrEnum):
    """Built-in markers of importance; a custom one is written `custom:<name>`."""

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
    #: Cost of the media in tokens, as stated by the caller.
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Raw:
    """A vendor's own item, kept byte for byte; not shown to other vendors."""

    vendor: str
    json: str


Part: TypeAlias = Text | Reasoning | ToolCall | ToolResult | Media | Raw


ONCE = "@once:"
"""Prefix of a key that a client generated to repeat one call safely; it is not the caller's name of the message."""


def client_supplied_key(key: str | None) -> str | None:
    """Return the key of a message if the caller supplied it, or None if a client generated it."""
    return None if key is None or key.startswith(ONCE) else key


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
    #: The entries that a summary or an episode covers.
    covers: Span | None = None
    #: The entries that are superseded or retracted from this entry's version on.
    replaces: tuple[Span, ...] = ()
    #: Ids of the entries this one was made from, also of other contexts.
    sources: tuple[str, ...] = ()
    #: Fields that depend on the kind: a fact's subject and attribute, a retraction's reason.
    data: Mapping[str, Json] = field(default_factory=_empty_mapping)
    #: The caller's, opaque.
    metadata: Mapping[str, Json] = field(default_factory=_empty_mapping)


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
    #: Of the root of the fork tree: rises when something is expired or erased anywhere in it; 0 while nothing was.
    epoch: int = 0
    chain: bytes = b""
    #: The session's own notes about the end of the log; opaque to a store.
    tail: Mapping[str, Json] = field(default_factory=_empty_mapping)


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
    settings: Mapping[str, Json] = field(default_factory=_empty_mapping)
    settings_rev: int = 0
    created_at: datetime
    deleted_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextDraft:
    """A context to be created; with `parent` it is a fork."""

    key: str | None = None
    namespace: str = "default"
    counter: str
    settings: Mapping[str, Json] = field(default_factory=_empty_mapping)
    created_at: datetime
    parent: str | None = None
    #: Version of the parent to fork at; its head when None.
    fork: int | None = None
    #: Names of settings a fork takes over from its parent as they are.
    inherit: tuple[str, ...] = ()


class _Any(Enum):
    ANY = "any"

    def __repr__(self) -> str:
        return "ANY"


ANY = _Any.ANY
"""No expectation."""

Seen: TypeAlias = str | Literal[_Any.ANY] | None
"""Id of the newest message that was seen, None for an empty log, or no expectation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expect:
    """What must still be true when an append commits."""

    #: Id of the newest message the writer has seen, None for an empty log.
    last_message: Seen = ANY
    #: `Head.rewrites` as the writer read it: the precondition of a worker.
    rewrites: int | None = None
    #: `Head.version` as the writer read it: the precondition of a writer whose decision depends on the whole log.
    version: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDraft:
    """Work to be enqueued in the commit of an append."""

    kind: str
    #: At most one unfinished job of a tenant has this name.
    dedupe: str
    payload: Mapping[str, Json] = field(default_factory=_empty_mapping)
    not_before: datetime | None = None


class JobState(StrEnum):
    """Where a job stands."""

    READY = "ready"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


UNFINISHED = (JobState.READY, JobState.RUNNING)
"""States of a job that is still to be done."""
WEBHOOK = "webhook"
"""Kind of the jobs that deliver appended entries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Work done later by a worker."""

    id: str
    kind: str
    dedupe: str
    context: str
    payload: Mapping[str, Json] = field(default_factory=_empty_mapping)
    state: JobState = JobState.READY
    #: Rises with every claim; the fencing token of a lease.
    attempt: int = 0
    not_before: datetime
    lease_until: datetime | None = None
    #: Why its last attempt failed.
    error: str | None = None
    #: Why it changed nothing, when it is done and did not.
    reason: str | None = None
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right to finish one attempt of a job until a point in time."""

    job: Job
    attempt: int
    until: datetime
    #: Whether the attempt before this one ended without an answer: its worker died, or was too slow.
    silent: bool = False


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

    #: Why it changed nothing, for people.
    reason: str | None = None


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
    #: Only those of one fork tree: the id of its first context.
    root: str | None = None
    #: Only those whose settings hold all of this, as jsonb of PostgreSQL contains it.
    where: Mapping[str, Json] = field(default_factory=_empty_mapping)
    #: Only conversations: not what a namespace keeps for itself, settings and facts.
    spoken: bool = False
    deleted: bool = False
    after: str | None = None
    limit: int = 100


class SessionHead(NamedTuple):
    """Where one session of a namespace stands: what a search across sessions asks of its head and its settings."""

    context: str
    key: str | None
    counter: str
    #: Version of its parent from which it was forked; 0 for one that was not.
    fork: int
    version: int
    rewrites: int
    derived: int
    epoch: int
    #: Its messages are not found from other sessions.
    private: bool


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


VectorSearchResult = Hit
"""The name that the implementation plan gave it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A small JSON object under a name, kept beside the log of a context: derived state, no part of the log."""

    context: str
    name: str
    #: Number of times it was put, from 1; after a deletion the count starts again.
    rev: int
    data: Mapping[str, Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[T]):
    """A slice of a list and where the next one starts."""

    items: tuple[T, ...]
    next_after: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """One numbered step of the schema of a store."""

    version: int
    #: Oldest release schema that can go on working beside it.
    needs: int
    checksum: str
    #: Whether this database has it.
    applied: bool
    #: The SQL that applies it, with all that must run before it and nothing else: it may be run by hand.
    script: str
    #: The feature that the server lacks for it; everything else works without it, and a later `migrate` applies it.
    waits_for: str | None = None


# ── key-value memory ────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class KVEntry:
    """One value under its key."""

    key: str
    #: A private copy: changing it does not change the stored value.
    data: Json
    #: When the key was first set, or first set again after a deletion. Aware UTC, microseconds.
    created_at: datetime
    #: When the key was last set; never goes back.
    updated_at: datetime
    metadata: Mapping[str, Json] = field(default_factory=_empty_mapping)
    #: Changes with every write and never comes back, not even after a delete; "" where the store cannot compare.
    revision: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KVPage:
    """A page of values, in the order of their keys."""

    entries: tuple[KVEntry, ...]
    #: What the next page is asked for with: the last key here; None after the last page.
    next_after: str | None = None
