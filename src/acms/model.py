"""The nouns of ACMS: frozen values that all packages share.

A *context* is one conversation's append-only log of *entries*. A caller makes a `Draft`; the store turns it into an
`Entry` by giving it a version, an id and a place in the hash chain. The rest is the vocabulary of the storage protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sized
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
    "Grant",
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
    "Webhook",
    "show_in_repr",
]

Json: TypeAlias = Any
"""A value that is unchanged after `json.dumps` and `json.loads`."""

Span: TypeAlias = tuple[int, int]
"""First and last version, inclusive, in the coordinates of the context's lineage."""

Durability: TypeAlias = Literal["memory", "relaxed", "disk", "quorum"]
"""What an acknowledged append survives: nothing, a crash, a power cut, the loss of a machine."""

Embedded: TypeAlias = Literal["stored", "queued", "pending"]
"""State of an entry's vectors: durable, computed but not yet written, or not yet computed."""

EMPTY: Mapping[str, Json] = MappingProxyType({})


def _empty_mapping() -> Mapping[str, Json]:
    return EMPTY


T = TypeVar("T")


_REPR_CHARS = 40
"""Characters of a text in a repr: an id, or the beginning of a sentence."""


def show_in_repr(*names: str) -> Callable[[type[T]], type[T]]:
    """Return a class decorator: the repr is one short line with these fields, of a collection only its size.

    Fields that are None are left out.
    """

    def describe(self: object) -> str:
        values = [(name, getattr(self, name)) for name in names]
        fields = [f"{name}={_shorten_value(value)}" for name, value in values if value is not None]
        return f"<{type(self).__name__} {', '.join(fields)}>"

    def decorate(cls: type[T]) -> type[T]:
        cls.__repr__ = describe
        return cls

    return decorate


def _shorten_value(value: object) -> str:
    """Return a value for a repr: the beginning of a text, the size of a collection."""
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, str):
        is_long = len(value) > _REPR_CHARS
        return repr(f"{value[:_REPR_CHARS]}…" if is_long else value)
    return str(len(value)) if isinstance(value, Sized) else repr(value)


class Kind(StrEnum):
    """The kinds of entries."""

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
    """Whether an episode is still open for messages."""

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
    """The source of a text, which decides how far it is trusted."""

    SYSTEM = "system"  # written by the operator of the application
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"
    EXTERNAL = "external"
    DERIVED = "derived"  # made by ACMS from other entries


class Privacy(StrEnum):
    """How much of a text may leave the engine: all of it, a redacted text, or only the id."""

    ALLOW = "allow"
    REDACT = "redact"
    BLOCK = "block"


class Layer(StrEnum):
    """The source of knowledge: the world, the project, experience, or the caller's own cache."""

    L1 = "L1"
    L2 = "L2"
    L4 = "L4"
    CACHED = "cached"


@dataclass(frozen=True, slots=True)
class Redaction:
    """The redaction of an entry before it was shown."""

    #: The mode in which it was shown; in `block` nothing of its text remains.
    mode: Privacy
    #: Number of removed texts by kind; empty in `block`.
    kinds: tuple[tuple[str, int], ...] = ()


class MarkerType(StrEnum):
    """Built-in markers of importance; a custom one is written `custom:<name>`."""

    DECISION = "decision"
    CONSTRAINT = "constraint"
    FAILURE = "failure"
    GOAL = "goal"


class Source(StrEnum):
    """The source of a recalled item, in the order in which items are shown."""

    FACT = "fact"
    SUMMARY = "summary"
    MARKED = "marked"
    SIMILAR = "similar"
    CURRENT = "current_episode"
    WINDOW = "window"


# ── the parts of a message ──────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Text:
    """Plain text of a message."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A model's visible reasoning, with the provider's signature if there is one."""

    text: str
    signature: str | None = None


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A model's request to run a tool."""

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
"""Prefix of a key that a client generated to repeat a call safely; it is not the caller's name for the message."""


def client_supplied_key(key: str | None) -> str | None:
    """Return the key of a message if the caller supplied it, or None if a client generated it."""
    return None if key is None or key.startswith(ONCE) else key


# ── the log ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """An entry before it is appended to a log."""

    kind: Kind = Kind.MESSAGE
    #: Canonical text, which is counted, indexed and redacted; for a message with parts it is derived from them.
    content: str = ""
    #: The caller's id, unique in the context: appending the same key again changes nothing.
    key: str | None = None
    #: Aware UTC, in microseconds. Entries are ordered by their versions, never by time.
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
    #: Data of the caller, which ACMS does not interpret.
    metadata: Mapping[str, Json] = field(default_factory=_empty_mapping)


@show_in_repr("version", "id", "kind", "role", "tokens", "state", "content")
@dataclass(frozen=True, slots=True, kw_only=True)
class Entry(Draft):
    """One immutable record of a log."""

    #: Id of the context that owns the row: an ancestor if a fork inherited it.
    context: str
    #: Number in the log: 1, 2, 3…, without gaps and never reused.
    version: int
    #: Ordinal among the messages of the lineage; None for other kinds.
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
    """The state of a log at its end: the one row that every verb reads first."""

    context: str
    version: int = 0
    #: Messages and their tokens so far; neither ever decreases.
    messages: int = 0
    tokens: int = 0
    last_message: str | None = None
    #: How often entries were replaced, retracted, expired or erased.
    rewrites: int = 0
    #: Highest sequence number of a derived row in the fork tree; the same in every context of the tree.
    derived: int = 0
    #: Rises when an entry anywhere in the fork tree is expired or erased; 0 if none was.
    epoch: int = 0
    chain: bytes = b""
    #: The session's state at the end of the log, which a store does not interpret.
    tail: Mapping[str, Json] = field(default_factory=_empty_mapping)


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """One conversation's log and its settings."""

    id: str
    namespace: str = "default"
    #: The caller's name for it (the session id), unique among the live contexts of a namespace.
    key: str | None = None
    #: Id of the first context of the fork tree; its own id if it is not a fork.
    root: str
    parent: str | None = None
    #: Version of the parent at which it was forked.
    fork: int | None = None
    #: Inherited segments, oldest first: (owner, last version read from it).
    lineage: tuple[tuple[str, int], ...] = ()
    #: Name of the token counter that counted its entries.
    counter: str
    #: Policy, tags, name, and the caller's metadata.
    settings: Mapping[str, Json] = field(default_factory=_empty_mapping)
    settings_rev: int = 0
    created_at: datetime
    deleted_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextDraft:
    """A context before it is created; with `parent` it is a fork."""

    key: str | None = None
    namespace: str = "default"
    counter: str
    settings: Mapping[str, Json] = field(default_factory=_empty_mapping)
    created_at: datetime
    parent: str | None = None
    #: Version of the parent at which to fork; None for its head.
    fork: int | None = None
    #: Names of settings that a fork copies from its parent unchanged.
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
    """Preconditions that must still hold when an append commits."""

    #: Id of the newest message that the writer has seen; None for an empty log.
    last_message: Seen = ANY
    #: `Head.rewrites` when the writer read it: the precondition of a worker.
    rewrites: int | None = None
    #: `Head.version` when the writer read it: the precondition of a writer whose decision depends on the whole log.
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
    """The states of a job."""

    READY = "ready"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


UNFINISHED = (JobState.READY, JobState.RUNNING)
"""States of a job that is still to be done."""
WEBHOOK = "webhook"
"""Kind of the jobs that deliver appended entries."""


@show_in_repr("id", "kind", "state", "attempt", "error", "reason")
@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Work that a worker runs in the background."""

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
    #: Why it changed nothing, if it is done without an effect.
    reason: str | None = None
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right to finish one attempt of a job until a point in time."""

    job: Job
    attempt: int
    until: datetime
    #: Whether the previous attempt ended without an outcome: its worker died, or was too slow.
    silent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """Outcome of an attempt: the job is tried again, not before a point in time."""

    error: str
    not_before: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """Outcome of a job that failed for good or was cancelled."""

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
    #: Replaces `Head.tail`, unless it is None.
    tail: Mapping[str, Json] | None = None
    jobs: tuple[JobDraft, ...] = ()
    #: Completes this job in the same commit; the append is refused if the lease is lost.
    finish: Lease | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """The result of an append."""

    head: Head
    versions: Span
    ids: tuple[str, ...]
    positions: tuple[int | None, ...]
    chains: tuple[bytes, ...]
    #: Whether every draft had been appended before under the same key.
    repeated: bool = False
    durability: Durability = "disk"


@dataclass(frozen=True, slots=True, kw_only=True)
class Derived:
    """A row that can be computed again from an entry: a vector, packed terms."""

    version: int
    #: Name of the model, dimension, number type and input recipe; rows of two spaces are never compared.
    space: str
    part: int = 0
    #: Range of characters of the entry's content from which it was computed.
    start: int = 0
    end: int = 0
    data: bytes
    #: Sequence number in the fork tree, set by the store.
    seq: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextQuery:
    """Which contexts to list, newest first."""

    namespace: str | None = None
    parent: str | None = None
    #: Only those of one fork tree: the id of its first context.
    root: str | None = None
    #: Only those whose settings contain these, as with the operator @> of jsonb in PostgreSQL.
    where: Mapping[str, Json] = field(default_factory=_empty_mapping)
    #: Only conversations, without the contexts in which a namespace keeps its settings and facts.
    spoken: bool = False
    deleted: bool = False
    after: str | None = None
    limit: int = 100


class SessionHead(NamedTuple):
    """The fields of a session's head and settings that a search across sessions needs."""

    context: str
    key: str | None
    counter: str
    #: Version of its parent at which it was forked; 0 if it is not a fork.
    fork: int
    version: int
    rewrites: int
    derived: int
    epoch: int
    #: Whether its messages are hidden from other sessions.
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
    """A search across the contexts of one namespace for facts, summaries and marked messages, active or not."""

    namespace: str
    terms: tuple[str, ...] = ()
    space: str | None = None
    vector: tuple[float, ...] | None = None
    limit: int = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """One result of a search across contexts; a higher score is better."""

    context: str
    id: str
    score: float


VectorSearchResult = Hit
"""An alias of `Hit`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A small JSON object that is stored under a name next to the log of a context: derived state, not an entry."""

    context: str
    name: str
    #: Number of times it was stored, from 1; after a deletion the count starts again.
    rev: int
    data: Mapping[str, Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[T]):
    """A page of a list; `next_after` is the cursor of the next page, or None after the last one."""

    items: tuple[T, ...]
    next_after: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """One numbered step of the schema of a store."""

    version: int
    #: Oldest schema version whose releases can still use the database once it is applied.
    needs: int
    checksum: str
    #: Whether it is applied to this database.
    applied: bool
    #: The complete SQL that applies it, which may be run by hand.
    script: str
    #: The feature of the server without which it cannot be applied; a later `migrate` applies it.
    waits_for: str | None = None


# ── key-value memory ────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class KVEntry:
    """A value with its key."""

    key: str
    #: A private copy: changing it does not change the stored value.
    data: Json
    #: When the key was first set, or first set again after a deletion. Aware UTC, microseconds.
    created_at: datetime
    #: When the key was last set; it never decreases.
    updated_at: datetime
    metadata: Mapping[str, Json] = field(default_factory=_empty_mapping)
    #: Different after every write, even after a deletion; "" if the store has no compare-and-set.
    revision: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KVPage:
    """A page of values, in the order of their keys."""

    entries: tuple[KVEntry, ...]
    #: The `after` of the next page: the last key here; None after the last page.
    next_after: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A namespace of a service that is shared with a principal of its tenant."""

    namespace: str
    #: Id of a key, or of the first key that it replaces, or `oidc:` and the subject of an access token.
    principal: str
    #: read, write, share.
    actions: tuple[str, ...]
    created_at: datetime
    #: Who shared it: a key, a subject; "" for the operator.
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """An address that receives the entries appended to the logs of a tenant. Its secret is shown once, when added."""

    id: str
    url: str
    #: Kinds of the entries that it receives.
    events: tuple[str, ...]
    #: Whether it may be in a private network and use plain HTTP; only the operator of the service can allow this.
    private: bool = False
    created_at: datetime
