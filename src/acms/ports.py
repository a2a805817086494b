"""Protocols that stores, token counters, embedders, reflectors and other providers implement.

A storage handle is bound to one tenant; any event loops and threads of its process may use it. Every key in a store
begins with (tenant, context).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias, runtime_checkable

from acms.errors import ACMSError
from acms.knowledge import Fact, Proposal, Reflection
from acms.model import (
    Append,
    Context,
    ContextDraft,
    ContextQuery,
    Derived,
    Done,
    Durability,
    Entry,
    Failed,
    Head,
    Hit,
    Job,
    JobQuery,
    Json,
    Kind,
    KVEntry,
    KVPage,
    Lease,
    Migration,
    Origin,
    Page,
    Part,
    Receipt,
    Record,
    Retry,
    Role,
    Search,
    SessionHead,
    State,
)
from acms.prompt_types import (
    SEPARATOR,
    CacheMark,
    Count,
    Exactness,
    PromptMessage,
    Tool,
    Usage,
    format_paragraph,
)
from acms.results import SessionPage

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "Codec",
    "CompareAndSetKV",
    "Embedder",
    "Frame",
    "Handle",
    "HasBackup",
    "HasHeads",
    "HasHints",
    "HasIntegrity",
    "HasMigrations",
    "HasOwnValues",
    "HasRecords",
    "HasSpaces",
    "HasStrayRows",
    "KVMemory",
    "Progress",
    "Proposal",
    "Reflection",
    "ReflectionRequest",
    "Reflector",
    "Reranker",
    "StorageBackend",
    "Summarizer",
    "SummaryRequest",
    "TokenCounter",
    "Turn",
]


Progress: TypeAlias = Callable[[int, int], None]
"""Called with (entries done, entries in total) after every page."""


@runtime_checkable
class TokenCounter(Protocol):
    """Counts the tokens of a text."""

    #: Stored with every context, so that two counters are never mixed; without it the class name is used.
    name: str

    def count(self, text: str) -> int:
        """Return the number of tokens of `text`; 0 for an empty text, never negative."""
        ...


class RequestCounter(Protocol):
    """Counts the tokens of a whole request as the model's server does."""

    #: How reliable its counts are: `SERVER`, or `EXACT` for the model's own tokenizer and chat template.
    exactness: Exactness

    async def count_request(self, payload: Mapping[str, Json], *, model: str) -> int:
        """Return the tokens of a request that a codec rendered; raise an `ACMSError` if it cannot be counted."""
        ...


class Embedder(Protocol):
    """Turns texts into vectors: the closer two texts are in meaning, the smaller the angle between them.

    An attribute `model` names the model, so that the vectors of two models are never compared; without it the class
    name is used. Two methods are optional:

    - `async def embed_query(self, text: str)` returns the vector of a question, for a model that embeds questions
      differently from the passages that `embed` is given; without it `embed` is called.
    - `def reads(self, text: str) -> bool` returns whether the model knows the language of a text. Other texts are not
      embedded, and are found by their words.
    """

    @property
    def dimension(self) -> int:
        """Numbers in a vector."""
        ...

    async def embed(self, texts: list[str]) -> Sequence[Sequence[float]] | NDArray[np.float32]:
        """Return one vector for each text, in order, also for an empty text.

        The vector of a text does not depend on the other texts. Calls may overlap. A long text may be cut; after an
        `acms.providers.InputRefusedError` it is embedded in parts. It must not block the event loop; a method that is
        no coroutine function may, since it is called in a thread.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One message, or one earlier summary, as a summarizer or a reflector reads it."""

    #: Who spoke: the actor or the role; "summary" for an earlier summary.
    speaker: str
    text: str
    markers: tuple[str, ...] = ()
    #: Its version in the log.
    version: int
    #: Whether it is an earlier summary.
    summary: bool = False
    #: When it was written; None for a text made from several messages.
    created_at: datetime | None = None
    #: Origin of the text, which decides which facts it may change.
    origin: Origin = Origin.USER


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryRequest:
    """A stretch of a conversation to be shortened."""

    #: Oldest first; at least one.
    turns: tuple[Turn, ...]
    #: The answer should have at most this many tokens, counted by `counter`; a longer one is cut between its sentences.
    max_tokens: int
    counter: TokenCounter

    def text(self) -> str:
        """Return the turns as `speaker: text` paragraphs."""
        return SEPARATOR.join(format_paragraph(turn.speaker, turn.text) for turn in self.turns)


class Summarizer(Protocol):
    """Shortens a stretch of a conversation.

    Two attributes are optional: `model` names it (default: the class name), and `window` is the number of tokens it
    reads in one call; a longer stretch is passed in pieces. Without a window it reads everything at once.
    """

    async def summarize(self, request: SummaryRequest) -> str:
        """Return a text that can replace the turns.

        On an exception, an empty text, or one no shorter than the turns, nothing is changed: the job is retried.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ReflectionRequest:
    """Episodes to be distilled into facts, and the active facts that they may change."""

    #: Oldest first; at least one. Proposals cite them by `Turn.version`.
    turns: tuple[Turn, ...]
    #: Active facts, the most relevant to the turns first; proposals name them by id.
    facts: tuple[Fact, ...] = ()
    #: Facts that the answer may add: the rules ignore further ones.
    max_facts: int = 10
    #: A summary in the answer should have at most this many tokens, counted by `counter`.
    max_summary_tokens: int
    counter: TokenCounter

    def text(self) -> str:
        """Return the turns as `[version] speaker: text` paragraphs."""
        return "\n\n".join(f"[{turn.version}] {turn.speaker}: {turn.text}" for turn in self.turns)


class Reflector(Protocol):
    """Distils facts from episodes: proposes facts to add, update, remove or keep; rules decide which are applied.

    An attribute `model` names it (default: the class name): a job waits for a worker that has it. A reflector with
    the simpler method `reflect(episode, turns) -> list[Fact]` is accepted too; all its facts are to be added.
    """

    async def reflect(self, request: ReflectionRequest) -> Reflection:
        """Return the changes to the facts that follow from the turns.

        On an exception nothing is changed: the job is retried. The same turns may be passed twice.
        """
        ...


class Reranker(Protocol):
    """Scores how well texts answer a query by reading each together with it, as a cross-encoder does.

    Two attributes are optional: `model` names it in logs and warnings (default: the class name), and `candidates` is
    the maximum number of texts it is asked to score, 32 by default.
    """

    async def rerank(self, query: str, texts: Sequence[str]) -> Sequence[float]:
        """Return one score in [0, 1] for each text, in order: 0 when it does not match the query.

        The score of a text does not depend on the other texts. Calls may overlap. A long text may be cut. On an
        exception or an invalid answer the candidates keep their order.
        """
        ...


class Frame(Protocol):
    """The tokens that a prompt format adds to the text of one message."""

    def cost(self, role: Role | None, parts: Sequence[Part], speaker: str | None = None) -> int:
        """Return the tokens added for one message, an upper bound."""
        ...


class Codec(Protocol):
    """Converts a prompt to a provider's request and back, and counts the tokens of the whole request.

    Counts add up: the raw tokens of a payload are `base(tools)` and the `cost` of every message, or fewer if a message
    had to be mapped or contains the tools. `limit` returns the raw tokens that are certain to fit a budget. A codec is
    safe to use from several threads.

    A codec may have `async def count_request(payload) -> Count`, which then gives the final count of a payload.
    """

    #: Format and model, such as "openai-chat" and "gpt-5".
    name: str
    model: str
    counter: TokenCounter
    #: Whether recalled text has a separate block for each entry, which answers can cite.
    search_results: bool
    #: Vendors whose own items (`Raw`) it sends back unchanged.
    vendors: tuple[str, ...]
    #: Whether the provider caches only prefixes that end at a mark.
    marks_only: bool
    #: Whether a prompt marks the end of its history for the cache if it has no cache hint.
    marks_history: bool
    #: Whether the provider accepts signed reasoning only after exactly the prefix for which it was produced.
    binds_reasoning: bool
    #: Whether the provider itself sets a mark after the newest message of the user or a tool.
    implicit_mark: bool

    def normal(self, messages: Sequence[PromptMessage]) -> tuple[PromptMessage, ...]:
        """Return the messages in the form that the provider accepts, which `parse` returns for a rendered request.

        A role that the provider lacks is mapped, messages that it requires as one are joined, a tool call without an
        answer gets an answer that states this, and an answer without a call becomes text of the user. Sources are kept.
        Idempotent.
        """
        ...

    def notes(self, messages: Sequence[PromptMessage]) -> tuple[str, ...]:
        """Return descriptions of the changes that `normal` makes to the messages, each kind of change once."""
        ...

    def render(
        self,
        messages: Sequence[PromptMessage],
        *,
        tools: Sequence[Tool] = (),
        marks: Sequence[CacheMark] = (),
    ) -> dict[str, Json]:
        """Return the arguments of a request: messages, tools and cache hints, but not the model.

        `marks` refer to the messages as given here. Raises `PayloadError` if the provider would refuse the request.
        """
        ...

    def parse(self, payload: Mapping[str, Json]) -> tuple[PromptMessage, ...]:
        """Return the messages of a payload in normal form, without sources.

        Raises `PayloadError` if the payload has another format.
        """
        ...

    def check(self, payload: Mapping[str, Json]) -> None:
        """Raise `PayloadError` if the provider would refuse a payload: role order, tool pairs, system placement."""
        ...

    def cost(self, message: PromptMessage) -> int:
        """Return the raw tokens of one message, its frame included; an upper bound if it has to be mapped."""
        ...

    def base(self, tools: Sequence[Tool] = ()) -> int:
        """Return the raw tokens of everything except the messages."""
        ...

    def count(self, payload: Mapping[str, Json]) -> Count:
        """Count the tokens of a whole payload."""
        ...

    def limit(self, budget: int, tools: int = 0) -> int:
        """Return the maximum raw tokens, `tools` of them for tools, whose upper bound is within a budget."""
        ...

    def cached(self, tokens: int) -> int:
        """Return how many tokens of an unchanged prefix of `tokens` the provider reads from its prompt cache."""
        ...

    def diagnosed(self, payload: Mapping[str, Json], previous: str | None) -> dict[str, Json]:
        """Return a payload that requests a diagnosis: why its cache was not read, compared with an earlier answer.

        `previous` is the id of that answer, or None for the first request of a conversation. The payload is returned
        unchanged if the model has no diagnostics.
        """
        ...

    def usage(self, usage: object) -> Usage:
        """Parse the usage that the provider reported, from an SDK's object or a mapping.

        It may be the usage alone, or the whole answer, which may also contain the diagnosis of the cache and the edits
        that the provider made to the request. Raises `ValidationError` for another format.
        """
        ...

    def observe(self, count: Count, usage: Usage) -> None:
        """Calibrate counts with the usage that the provider reported for a request."""
        ...


class StorageBackend(Protocol):
    """Stores logs: append-only, gap-free, atomic per operation (rules of the store in docs/architecture.md).

    Unless a method documents otherwise, an unknown or deleted context raises `SessionNotFoundError`, invalid input
    `ValidationError`, and a failure of the medium a subclass of `StorageError`; no operation is partially stored.
    """

    #: Owner of all data that this handle reads and writes.
    tenant: str

    @property
    def durability(self) -> Durability:
        """The failures that an acknowledged append survives; for a server it is known once the handle is open."""
        ...

    async def create(self, context: ContextDraft) -> Context:
        """Create a context, or return the live one with the same namespace and key. With `parent` it is a fork."""
        ...

    async def context(self, id_or_key: str, *, namespace: str = "default") -> Context:
        """Return a context by its id (also a deleted one) or by the key of a live one."""
        ...

    async def contexts(self, query: ContextQuery) -> Page[Context]:
        """List contexts, newest first."""
        ...

    async def settings(self, context: str, change: Mapping[str, Json], *, rev: int) -> Context:
        """Merge `change` into the settings if they are still at `rev`, else `ConflictError`.

        A value of None removes a name. The name "deleted" hides (True) or brings back (False) the context.
        """
        ...

    async def head(self, context: str) -> Head:
        """Return the state of a log at its end."""
        ...

    async def append(self, ops: Sequence[Append]) -> list[Receipt | ACMSError]:
        """Append; each operation is atomic, and several may share a commit.

        Returns one result per operation, in order: a receipt once it is as durable as the handle promises, or the error
        that refused it. A cancelled call may still commit: repeat it with the same keys. A key identifies one entry
        among those that the context reads: a fork has the keys of inherited entries, until these are erased. A message,
        fact or summary that names an erased entry among its sources is refused with `GoneError`.
        """
        ...

    async def read(
        self,
        context: str,
        *,
        at: int | None = None,
        after: int = 0,
        before: int | None = None,
        kinds: Sequence[Kind] | None = None,
        replacing: bool = False,
        newest: int | None = None,
        limit: int | None = None,
        deleted: bool = False,
    ) -> list[Entry]:
        """Read entries with after < version < before and version <= at, ascending.

        `newest` keeps the last n of them, `limit` the first n; `kinds` selects, `replacing` keeps only entries that
        supersede or retract others. Inherited entries of a fork are part of its log. With `deleted` a deleted context
        is read too: use it for erasure, not to show entries.
        """
        ...

    async def get(self, ids: Sequence[str]) -> list[Entry | None]:
        """Return entries by id, also of deleted contexts; None for an id that does not exist.

        This reads rows by key: it is meant for a few dozen entries scattered over a long log.
        """
        ...

    async def put_derived(self, context: str, rows: Sequence[Derived], *, wait: bool = True) -> int:
        """Store derived rows, replacing those of the same version, space and part; return how many were stored.

        Rows of blanked versions are dropped silently. With `wait=False` the call returns before the rows are durable:
        they are stored with the next commit, or lost in a crash and computed again.
        """
        ...

    async def derived(
        self, context: str, space: str, *, after: int = 0, at: int | None = None
    ) -> list[Derived]:
        """Return the derived rows of one space with a sequence number above `after`, in that order.

        Numbers count up over the whole fork tree, and a row that is replaced gets a new one: `Head.derived` read before
        this call is the next `after`, and no row of an ancestor or a fork is skipped.
        """
        ...

    async def missing(
        self, space: str, *, context: str | None = None, limit: int, after: int = 0
    ) -> list[tuple[str, int]]:
        """Return (context, version) of live messages, facts and summaries that have no row in the space.

        Only those with text and a version above `after`, ascending. Of one context inherited entries are listed too,
        under its name; without a context every entry of the live ones is listed once, under its owner.
        """
        ...

    async def blank(
        self, context: str, versions: Sequence[int], *, to: State, audit: Mapping[str, Json]
    ) -> int:
        """Delete the content of entries permanently, in every lineage; return how many were changed.

        ERASED also deletes keys, actors and derived rows, and empties job payloads that name the entries; EXPIRED keeps
        these. The same commit raises the erasure generation (`epoch`) of the fork tree and writes an audit row. When
        the call for an erasure returns, the medium holds no copy either, as far as the store can ensure it.
        """
        ...

    async def restore(self, context: Context, entries: AsyncIterator[Entry]) -> None:
        """Write a context verbatim: ids, versions, hashes and tombstones. Resumes after the last stored version.

        A tombstone raises an erasure generation (`epoch`) of 0, because 0 means that the tree has no tombstones. Raises
        `ConflictError` if the id or key belongs to another log, and `CorruptRecordError` if the chain breaks.
        """
        ...

    async def search(self, query: Search) -> list[Hit]:
        """Search facts, summaries and marked messages across the live contexts of a namespace, best first."""
        ...

    async def claim(self, kinds: Sequence[str], *, lease: timedelta, limit: int = 1) -> list[Lease]:
        """Claim due jobs, oldest first, each until the lease ends; a job whose lease ended is due again.

        If the clock was set back by more than a minute, a job that was changed before is due within a minute. Nothing
        is written if no job is due.
        """
        ...

    async def extend(self, lease: Lease, *, by: timedelta) -> Lease:
        """Extend a lease; raise `LeaseLostError` if another attempt holds the job."""
        ...

    async def settle(self, lease: Lease, outcome: Retry | Failed | Done) -> Job:
        """Set the outcome of an attempt that has no effect on the log, or change the outcome of one that has ended.

        The job must have the attempt and the state of the lease, and must not be done; otherwise `LeaseLostError` is
        raised. So a lease that is built from a listed job can cancel a waiting job, and a `Retry` can restart a failed
        or cancelled one. Raises `ConflictError` if another unfinished job has its name.
        """
        ...

    async def jobs(self, query: JobQuery) -> Page[Job]:
        """List jobs, newest first."""
        ...

    async def aclose(self) -> None:
        """Flush and release all resources; idempotent. A later call opens the store again."""
        ...


class Handle(StorageBackend, Protocol):
    """A store that an `async with` block keeps open: the result of `open_storage`."""

    async def __aenter__(self) -> Self:
        """Keep the handle open until the block ends."""
        ...

    async def __aexit__(self, *error: object) -> None:
        """Release the handle, which its last user closes."""
        ...

    async def sessions(
        self,
        *,
        namespace: str | None = None,
        where: Mapping[str, Any] | None = None,
        deleted: bool = False,
        after: str | None = None,
        limit: int = 50,
    ) -> SessionPage:
        """Return a page of the sessions, newest first: of one namespace, or of all; see `acms.storage.sessions`."""
        ...


# ── optional capabilities of stores ─────────────────────────────────────────────────────────────────────────────────


@runtime_checkable
class HasBackup(Protocol):
    """A store that can copy itself completely while it is in use."""

    async def backup(self, to: str, *, progress: Callable[[int, int], None] | None = None) -> None:
        """Write a copy of the whole store to a new file; `progress` receives (pages done, pages in total)."""
        ...


@runtime_checkable
class HasIntegrity(Protocol):
    """A store whose medium can be checked separately from the logs."""

    async def integrity(self) -> list[str]:
        """Return the problems of the storage medium, or an empty list if it is sound."""
        ...


@runtime_checkable
class HasSpaces(Protocol):
    """A store that can list its spaces of derived rows."""

    async def spaces(self, context: str) -> list[str]:
        """Return the names of the spaces in which a context has derived rows of its own entries, sorted."""
        ...


@runtime_checkable
class HasStrayRows(Protocol):
    """A store that finds derived rows without an entry: no write of a store leaves any behind."""

    async def stray_rows(self, context: str) -> list[tuple[str, int]]:
        """Return (space, version) of a context's own derived rows that belong to no entry, or to an erased one."""
        ...

    async def delete_stray_rows(self, context: str) -> int:
        """Delete the rows that `stray_rows` returns; return their number, counted per space and version."""
        ...


@runtime_checkable
class HasRecords(Protocol):
    """A store that keeps small records next to a log: derived state, such as the entries that a prompt showed.

    A record is not an entry and does not change the head. It is as durable as other writes of the handle, but does not
    wait for a standby; forks do not inherit it, and exports, copies and restored logs do not contain it. The erasure of
    an entry deletes every record of its fork tree in the same commit, and the deletion of a context deletes its
    records.
    """

    async def record(self, context: str, name: str) -> Record | None:
        """Return the record that a context itself has under a name, or None, with one indexed read.

        Raises `CorruptRecordError` if the record differs from the one that was written.
        """
        ...

    async def put_record(self, context: str, name: str, data: Mapping[str, Json], *, rev: int) -> Record:
        """Store a record if it is still at `rev`, where 0 means that there is none; return it at the next revision.

        Raises `ConflictError` if it is at another revision, even if this call stored it and the answer was lost: read
        it again. A name has up to 64 characters, data up to 64 KB of JSON. A context keeps 32 records: a new one
        replaces the one that was stored the longest ago.
        """
        ...


@runtime_checkable
class HasOwnValues(Protocol):
    """A store that keeps values of ACMS itself next to the logs of a tenant: no pin and no request can name them."""

    def own_values(self) -> ListingKV:
        """Return the values; they use the connections of this handle, close with it, and support compare-and-set."""
        ...


@runtime_checkable
class Searchable(Protocol):
    """A store that can be searched for remains of erased entries."""

    async def residue(self, ids: Sequence[str], texts: Sequence[bytes]) -> list[str]:
        """Return descriptions of all remains of the entries and their texts, without their content."""
        ...


@runtime_checkable
class HasHeads(Protocol):
    """A store that reads the heads of many sessions at once: all of a namespace, or those of a page."""

    async def session_page(self, query: ContextQuery) -> SessionPage:
        """Return a page of contexts with the state of their logs, newest first; like `contexts`, of all trees."""
        ...

    async def heads(self, namespace: str) -> list[SessionHead]:
        """Return the heads of all live contexts of a namespace, in the order in which they were created."""
        ...

    async def heads_of(self, contexts: Sequence[str]) -> list[Head | None]:
        """Return the heads of contexts, in order; None for a context that does not exist or was deleted."""
        ...


@runtime_checkable
class HasHints(Protocol):
    """A store that can notify at once of new jobs, also of those that another process enqueued."""

    def hints(self, wake: Callable[[], object]) -> AbstractAsyncContextManager[None]:
        """Call `wake` inside the block when jobs were enqueued; a call is only a hint and may be lost."""
        ...


@runtime_checkable
class HasCommits(Protocol):
    """A store that can report cheaply whether any process has committed to it."""

    async def commits(self) -> int:
        """Return a number that changes with every commit; its value has no other meaning."""
        ...


@runtime_checkable
class HasMigrations(Protocol):
    """A store whose schema is created in numbered steps."""

    async def migrations(self, *, partitions: int | None = None) -> list[Migration]:
        """Return every step that the release or the database knows, in order, without changing the database.

        `partitions` is the number of hash partitions that the scripts create; None leaves it to the store.
        """
        ...

    async def migrate(
        self, *, partitions: int | None = None, progress: Callable[[Migration], None] | None = None
    ) -> list[Migration]:
        """Apply the missing migrations, each in its own transaction; return those that were applied.

        Only one migrator runs at a time: another one waits, and then finds the migrations applied. The next run resumes
        an interrupted one. `progress` is called with each migration after it was applied. Raises `ConfigurationError`
        for `partitions` of a database that is not empty, or of a store without partitions.
        """
        ...


# ── values under keys ──────────────────────────────────────────────────────────────────────────────────────────────


class KVMemory(Protocol):
    """Stores JSON values under keys, such as pins and summaries.

    Invalid input raises `ValidationError`, and a failure of the medium a subclass of `StorageError`; no operation is
    partially stored.
    """

    async def get(self, key: str) -> KVEntry | None:
        """Return the entry under a key, or None if there is none."""
        ...

    async def set(self, key: str, data: Json, metadata: Mapping[str, Json] | None = None) -> KVEntry:
        """Store a value, replacing any earlier one; return it as stored.

        Data and metadata are replaced completely: without `metadata` the entry has none afterwards. `created_at` stays.
        """
        ...

    async def delete(self, key: str) -> bool:
        """Remove a key; return whether it existed."""
        ...

    async def aclose(self) -> None:
        """Release all resources; idempotent. A later call opens the store again."""
        ...


@runtime_checkable
class ListingKV(KVMemory, Protocol):
    """A key-value memory that can list its entries."""

    async def list(self, prefix: str = "", *, after: str | None = None, limit: int = 100) -> KVPage:
        """Return the entries whose keys begin with `prefix` and come after `after`, in the order of code points.

        A page has up to 500. Entries set or deleted between two pages may be missing; all others are returned once.
        """
        ...


@runtime_checkable
class CompareAndSetKV(KVMemory, Protocol):
    """A key-value memory that can change a value without losing the change of another writer."""

    async def compare_and_set(
        self, key: str, data: Json, *, expect: str | None, metadata: Mapping[str, Json] | None = None
    ) -> KVEntry:
        """Store a value if the key is still at the revision `expect`, or, for None, if there is no such key.

        Otherwise nothing is stored and `ConflictError` is raised: read the value and decide again.
        """
        ...
