"""Protocols that stores, token counters, embedders, reflectors and other providers implement.

A storage handle is bound to one tenant; any event loops and threads of its process may use it. Every key a store holds
leads with (tenant, context).
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
"""Told (entries done, entries in all) after every page."""


@runtime_checkable
class TokenCounter(Protocol):
    """Counts the tokens of a text."""

    #: Stored with every context, so that two counters are never mixed; the class name stands in where it is missing.
    name: str

    def count(self, text: str) -> int:
        """Return the number of tokens of `text`; 0 for an empty text, never negative."""
        ...


class RequestCounter(Protocol):
    """Counts the tokens of a whole request as the model's server does."""

    #: What its counts are: `SERVER`, or `EXACT` for the model's own tokenizer and chat template.
    exactness: Exactness

    async def count_request(self, payload: Mapping[str, Json], *, model: str) -> int:
        """Return the tokens of a request that a codec rendered; an `ACMSError` when it cannot be counted."""
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
        """Return one vector for each text, in order; none for no texts, but one for an empty text.

        The vector of a text does not depend on the texts beside it. Calls may overlap. A long text may be cut; an
        `acms.providers.InputRefusedError` has it embedded in parts.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One message, or one earlier summary, as a summarizer or a reflector reads it."""

    #: Who spoke: the actor or the role; "summary" for an earlier summary.
    speaker: str
    text: str
    markers: tuple[str, ...] = ()
    #: Its place in the log.
    version: int
    #: Whether it is an earlier summary.
    summary: bool = False
    #: When it was said; None for a text made from several messages.
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
    """Episodes to be distilled into facts, and the facts in force that they may change."""

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
    """What a prompt format adds to the text of one message."""

    def cost(self, role: Role | None, parts: Sequence[Part], speaker: str | None = None) -> int:
        """Return the tokens added for one message, an upper bound."""
        ...


class Codec(Protocol):
    """Turns a prompt into a provider's request and back, and counts the whole of it.

    Counts add up: the raw tokens of a payload are `base(tools)` and the `cost` of every message, or fewer where a
    message had to be mapped or takes in the tools. `limit` says how many raw tokens a budget allows for certain. Safe
    to use from several threads.

    A codec may have `async def count_request(payload) -> Count`: the final count of a payload then comes from there.
    """

    #: Format and model, as "openai-chat" and "gpt-5".
    name: str
    model: str
    counter: TokenCounter
    #: Whether recalled text is a block of its own for each entry, which answers can cite.
    search_results: bool
    #: Vendors whose own items (`Raw`) it sends back word for word.
    vendors: tuple[str, ...]
    #: Whether the provider caches only what ends at a mark, and whether it sets one itself behind the newest message of
    #: the user or a tool.
    marks_only: bool
    #: Whether the provider takes signed reasoning only behind the very prefix it was produced under.
    binds_reasoning: bool
    implicit_mark: bool

    def normal(self, messages: Sequence[PromptMessage]) -> tuple[PromptMessage, ...]:
        """Return the messages as the provider can have them: what `parse` gives back for what `render` makes.

        A role it lacks is mapped, messages that it wants as one are joined, a tool call without an answer gets one that
        says so, an answer without a call is shown as text of the user. Sources are kept. Idempotent.
        """
        ...

    def notes(self, messages: Sequence[PromptMessage]) -> tuple[str, ...]:
        """Return what `normal` changes about the messages, in words, each kind of change once."""
        ...

    def render(
        self,
        messages: Sequence[PromptMessage],
        *,
        tools: Sequence[Tool] = (),
        marks: Sequence[CacheMark] = (),
    ) -> dict[str, Json]:
        """Return the arguments of a request: messages, tools and cache hints; not the model.

        `marks` count messages as they are given here. `PayloadError` when the provider would refuse it.
        """
        ...

    def parse(self, payload: Mapping[str, Json]) -> tuple[PromptMessage, ...]:
        """Return the messages of a payload in normal form, without sources; `PayloadError` for another format."""
        ...

    def check(self, payload: Mapping[str, Json]) -> None:
        """Raise `PayloadError` when the provider would refuse a payload: role order, tool pairs, system placement."""
        ...

    def cost(self, message: PromptMessage) -> int:
        """Return the raw tokens of one message, its frame included; an upper bound where it has to be mapped."""
        ...

    def base(self, tools: Sequence[Tool] = ()) -> int:
        """Return the raw tokens of everything that is no message."""
        ...

    def count(self, payload: Mapping[str, Json]) -> Count:
        """Count a payload from scratch."""
        ...

    def limit(self, budget: int, tools: int = 0) -> int:
        """Return the most raw tokens, `tools` of them for tools, whose upper bound is within a budget."""
        ...

    def cached(self, tokens: int) -> int:
        """Return how many tokens of an unchanged prefix of so many the provider reads from its prompt cache."""
        ...

    def diagnosed(self, payload: Mapping[str, Json], previous: str | None) -> dict[str, Json]:
        """Return a payload that asks why the cache was not read, compared with the answer of that id.

        None is for the first request of a conversation. As it was where the model has no diagnostics.
        """
        ...

    def usage(self, usage: object) -> Usage:
        """Read what the provider reported, an SDK's object or a mapping; `ValidationError` when it is none of its.

        Either the usage alone, or the whole answer, which also says what the cache was not read for and what the
        provider changed in the request.
        """
        ...

    def observe(self, count: Count, usage: Usage) -> None:
        """Learn from what the provider reported for a request how far its count can be relied on."""
        ...


class StorageBackend(Protocol):
    """Keeps logs: append-only, gap-free, atomic per operation (rules of the store in docs/architecture.md).

    Unless a method says otherwise an unknown or deleted context raises `SessionNotFoundError`, bad input
    `ValidationError`, and a failure of the medium a subclass of `StorageError`; nothing is ever half stored.
    """

    #: Owner of everything this handle reads and writes.
    tenant: str

    @property
    def durability(self) -> Durability:
        """What an acknowledged append survives; a server tells when the handle is opened."""
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
        """Return where the log stands."""
        ...

    async def append(self, ops: Sequence[Append]) -> list[Receipt | ACMSError]:
        """Append; each operation is atomic on its own, many may share a commit.

        One result per operation, in order: a receipt once it is as durable as the handle promises, or the error that
        refused it. A cancelled call may still commit: repeat it with the same keys. A key names one entry among those
        that the context reads: a fork knows the keys of inherited entries, until these are erased. A message, fact or
        summary that names an erased entry among its sources is refused with `GoneError`.
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
        """Return entries by id, None for what does not exist; also of deleted contexts.

        As fast as a store reads rows by key: made for a few dozen entries scattered over a long log.
        """
        ...

    async def put_derived(self, context: str, rows: Sequence[Derived], *, wait: bool = True) -> int:
        """Store derived rows, replacing those of the same version, space and part; return how many were kept.

        Rows of versions that are blanked are dropped silently. With `wait=False` the call returns before they are
        durable: they ride on the next commit, or are lost in a crash and computed again.
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

        To ERASED also deletes keys, actors and derived rows, and empties job payloads that name them; to EXPIRED
        keeps all that. Raises the epoch of the fork tree and writes an audit row in the same commit. Once an erasure
        is answered the medium holds no copy either, as far as the store can see to it.
        """
        ...

    async def restore(self, context: Context, entries: AsyncIterator[Entry]) -> None:
        """Write a context verbatim: ids, versions, hashes and tombstones. Resumes after the last stored version.

        A tombstone raises an epoch of 0, which says that the tree has none.

        `ConflictError` when the id or key is taken by another log, `CorruptRecordError` when the chain breaks.
        """
        ...

    async def search(self, query: Search) -> list[Hit]:
        """Search facts, summaries and marked messages across the live contexts of a namespace, best first."""
        ...

    async def claim(self, kinds: Sequence[str], *, lease: timedelta, limit: int = 1) -> list[Lease]:
        """Take due jobs, oldest first, each until the lease ends; a job whose lease ended is due again.

        So is, within a minute, one that was changed under a clock that has been set back since by more than a minute.
        When nothing is due nothing is written.
        """
        ...

    async def extend(self, lease: Lease, *, by: timedelta) -> Lease:
        """Prolong a lease; `LeaseLostError` when another attempt holds the job."""
        ...

    async def settle(self, lease: Lease, outcome: Retry | Failed | Done) -> Job:
        """End an attempt that has no effect on the log, or one that had ended already.

        The job must be as the lease saw it, attempt and state, and not be done; else `LeaseLostError`. So a lease made
        from a listed job cancels one that waits, and a `Retry` brings back one that failed or was cancelled.
        `ConflictError` when an unfinished job has taken its name meanwhile.
        """
        ...

    async def jobs(self, query: JobQuery) -> Page[Job]:
        """List jobs, newest first."""
        ...

    async def aclose(self) -> None:
        """Flush and release everything; idempotent. A later call opens the store again."""
        ...


class Handle(StorageBackend, Protocol):
    """A store that is kept open by a block: what `open_storage` returns."""

    async def __aenter__(self) -> Self:
        """Keep the handle open until the block ends."""
        ...

    async def __aexit__(self, *error: object) -> None:
        """Let go of the handle, which is closed by its last user."""
        ...

    async def sessions(
        self,
        *,
        namespace: str | None = None,
        where: Mapping[str, Any] | None = None,
        after: str | None = None,
        limit: int = 50,
    ) -> SessionPage:
        """Return a page of the sessions, newest first: of one namespace, or of all; see `acms.storage.sessions`."""
        ...


# ── what some stores can do besides ─────────────────────────────────────────────────────────────────────────────────


@runtime_checkable
class HasBackup(Protocol):
    """A store that copies itself as a whole, while it is in use."""

    async def backup(self, to: str, *, progress: Callable[[int, int], None] | None = None) -> None:
        """Write a copy of the whole store to a new file; `progress` receives (pages done, pages in all)."""
        ...


@runtime_checkable
class HasIntegrity(Protocol):
    """A store whose medium can be checked apart from the logs in it."""

    async def integrity(self) -> list[str]:
        """Return the problems of the storage medium, or an empty list if it is sound."""
        ...


@runtime_checkable
class HasSpaces(Protocol):
    """A store that knows which derived rows it has."""

    async def spaces(self, context: str) -> list[str]:
        """Return the names of the spaces in which a context has derived rows of its own entries, sorted."""
        ...


@runtime_checkable
class HasRecords(Protocol):
    """A store that keeps small records beside a log: derived state, such as the entries a prompt showed and where.

    A record is no entry and does not change the head. It is as durable as other writes of the handle, but waits for no
    standby; forks do not inherit it, and exports, copies and restored logs do not contain it. Erasing an entry deletes
    every record of its fork tree in the same commit, deleting a context deletes those of the context.
    """

    async def record(self, context: str, name: str) -> Record | None:
        """Return the record a context itself has under a name; None when there is none.

        One indexed read. `CorruptRecordError` when it does not read back as it was written.
        """
        ...

    async def put_record(self, context: str, name: str, data: Mapping[str, Json], *, rev: int) -> Record:
        """Store a record if it is still at `rev`, where 0 says that there is none; return it at the next revision.

        `ConflictError` when it is at another one, also where the answer to the call itself was lost: read it again. A
        name has up to 64 characters, data 64 KB of JSON. A context keeps 32 records: a new one drives out the one put
        longest ago.
        """
        ...


@runtime_checkable
class HasOwnValues(Protocol):
    """A store that keeps values of ACMS itself beside the logs of a tenant: no pin and no request can name them."""

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
    """A store that tells in one read where many sessions stand: all of a namespace, or those of a page."""

    async def session_page(self, query: ContextQuery) -> SessionPage:
        """Return a page of contexts with where their logs stand, newest first; as `contexts`, of all trees."""
        ...

    async def heads(self, namespace: str) -> list[SessionHead]:
        """Return where each live context of a namespace stands, in the order in which they were created."""
        ...

    async def heads_of(self, contexts: Sequence[str]) -> list[Head | None]:
        """Return the heads of contexts in their order; None for one that is not there, or was deleted."""
        ...


@runtime_checkable
class HasHints(Protocol):
    """A store that can tell at once that there is work, also work that another process enqueued."""

    def hints(self, wake: Callable[[], object]) -> AbstractAsyncContextManager[None]:
        """Call `wake` inside the block when jobs were enqueued; only a hint, which may be lost."""
        ...


@runtime_checkable
class HasCommits(Protocol):
    """A store that can tell cheaply whether anything was committed to it, by whatever process."""

    async def commits(self) -> int:
        """Return a number that changes with every commit; its value has no other meaning."""
        ...


@runtime_checkable
class HasMigrations(Protocol):
    """A store whose schema is made in numbered steps."""

    async def migrations(self, *, partitions: int | None = None) -> list[Migration]:
        """Return every step that the release or the database knows, in order; opens nothing and changes nothing.

        `partitions` is how many hash partitions the scripts make; None leaves it to the store.
        """
        ...

    async def migrate(
        self, *, partitions: int | None = None, progress: Callable[[Migration], None] | None = None
    ) -> list[Migration]:
        """Apply the missing migrations, each in its own transaction; return those that were applied.

        Only one migrator runs at a time: another one waits, and finds the work done. An interrupted run is resumed by
        the next one. `progress` is called with each migration once it is applied. Raises `ConfigurationError` for
        `partitions` of a database that is not empty, or of a store without partitions.
        """
        ...


# ── values under keys ──────────────────────────────────────────────────────────────────────────────────────────────


class KVMemory(Protocol):
    """Keeps JSON values under keys: what pins and stored summaries lie in.

    Bad input raises `ValidationError`, a failure of the medium a subclass of `StorageError`; nothing is half stored.
    """

    async def get(self, key: str) -> KVEntry | None:
        """Return the entry under a key, or None if there is none."""
        ...

    async def set(self, key: str, data: Json, metadata: Mapping[str, Json] | None = None) -> KVEntry:
        """Store a value, whatever was there; return it as stored.

        Data and metadata are replaced whole: without `metadata` the entry has none afterwards. `created_at` stays.
        """
        ...

    async def delete(self, key: str) -> bool:
        """Remove a key; return whether it was there."""
        ...

    async def aclose(self) -> None:
        """Release everything; idempotent. A later call opens the store again."""
        ...


@runtime_checkable
class ListingKV(KVMemory, Protocol):
    """A key-value memory that can list its entries."""

    async def list(self, prefix: str = "", *, after: str | None = None, limit: int = 100) -> KVPage:
        """Return the entries whose keys begin with `prefix` and come after `after`, in the order of code points.

        Up to 500 per page. Entries set or deleted between two pages may be seen or not; all others are seen once.
        """
        ...


@runtime_checkable
class CompareAndSetKV(KVMemory, Protocol):
    """A key-value memory in which a value can be changed so that no other writer's change is lost."""

    async def compare_and_set(
        self, key: str, data: Json, *, expect: str | None, metadata: Mapping[str, Json] | None = None
    ) -> KVEntry:
        """Store a value if the key is still at the revision `expect`, or, for None, if there is no such key.

        `ConflictError` when it is not, and nothing is stored: read it and decide again.
        """
        ...
