"""Moving logs over HTTP: export and import as lines of JSON, neither of which is ever held as a whole."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal, cast

from pydantic import Field

from acms.branches import export as transfer
from acms.branches import limits, restoring
from acms.branches.importers import LineReader, Turn
from acms.errors import (
    ConflictError,
    CorruptRecordError,
    DeadlineError,
    IdempotencyMismatchError,
    PermissionDeniedError,
    SessionNotFoundError,
    TooLargeError,
    ValidationError,
)
from acms.log import validation
from acms.model import Context, ContextQuery
from acms.ports import StorageBackend
from acms.server.operation import BASE, Call, Operations, Query, Reply, Scope
from acms.server.replies import show, single
from acms.server.tenants import OWN, Tenant
from acms.session import ACMS

__all__ = ["operations"]

operations = Operations("moving")

LINES = "application/x-ndjson"
PIECE = 65_536
"""Characters of an export that are sent at once, at least."""
BATCH = 64
BATCH_CHARACTERS = 4_000_000
"""Messages, and characters of them, that an import stores in one commit."""
BODY = "body"
"""What errors call the file that is imported."""
_AT = re.compile(r"messages\[(\d+)\]")


# ── export ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class ExportQuery(Query):
    """What to export: one context, or a namespace."""

    context_id: str | None = None
    namespace: Annotated[str, Field(min_length=1, max_length=255)] | None = None


@operations(
    "GET",
    "/export",
    scope=Scope.ADMIN,
    query=ExportQuery,
    reply={"type": "string", "description": "One JSON object a line, as `acms restore` reads it."},
    media=LINES,
)
async def export(call: Call[ExportQuery, None]) -> Reply:
    """Stream a context verbatim, or all contexts of a namespace, parents first: also what is private.

    A context is a line that describes it and then its own entries, a line each: ids, versions, hashes, tombstones. Its
    first line says at which version it ends, so that a stream which was cut off is recognised. `/import` reads it.
    """
    query, tenant = call.query, call.tenant
    if (query.context_id is None) == (query.namespace is None):
        raise ValidationError("give contextId or namespace", field="contextId")
    if query.context_id is not None:
        found = [await tenant.context(query.context_id)]
    else:
        found = await _of_namespace(tenant, cast("str", query.namespace))
    return Reply(body=_exported(tenant.handle, [one.id for one in found]), media=LINES)


async def _of_namespace(tenant: Tenant, namespace: str) -> list[Context]:
    """Return the live contexts of a namespace, a parent before its forks."""
    found: list[Context] = []
    if namespace == OWN:
        return found
    query = ContextQuery(namespace=namespace, limit=validation.PAGE)
    while True:
        page = await tenant.handle.contexts(query)
        found += page.items
        if page.next_after is None:
            break
        query = ContextQuery(namespace=namespace, after=page.next_after, limit=validation.PAGE)
    found.reverse()  # the newest was first
    known: set[str | None] = {None}
    for one in found:
        if one.parent not in known:
            raise ConflictError(
                f"{one.id} is a fork of {one.parent}, which was deleted: it cannot be restored alone",
                retryable=False,
                options=(f"POST {BASE}/contexts/{one.id}/copy, and delete the fork",),
            )
        known.add(one.id)
    return found


async def _exported(storage: StorageBackend, ids: Sequence[str]) -> AsyncIterator[bytes]:
    piece: list[str] = []
    size = 0
    for id in ids:
        async for line in transfer.export(storage, id):
            piece.append(line)
            size += len(line)
            if size >= PIECE:
                yield "".join(piece).encode()
                piece, size = [], 0
                await asyncio.sleep(0)  # a fast reader never makes this wait: others want to be served too
    if piece:
        yield "".join(piece).encode()


# ── import ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class ImportQuery(Query):
    """Where chat lines go, and whether they may instruct."""

    #: The context that the messages of a chat go to.
    context_id: str | None = None
    #: Whether system and developer messages may instruct the model: only when you know who wrote the file.
    trust: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedContext:
    """A context that was written to."""

    id: str
    key: str | None
    namespace: str
    #: Entries that were not there before.
    new: int
    version: int
    message_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """What an import did."""

    format: Literal["chat", "export"]
    lines: int
    #: Entries that were not there before.
    new: int
    contexts: list[ImportedContext]


class _Body:
    """The lines of a body as they arrive, numbered from 1."""

    def __init__(self, stream: AsyncIterator[bytes], seconds: float) -> None:
        self._stream = stream
        self._seconds = seconds
        #: Number of the line that was read last.
        self.number = 0

    async def lines(self) -> AsyncIterator[tuple[int, str]]:
        """Yield each line; one that is too long is refused before it is held."""
        left: list[bytes] = []
        size = 0
        while True:
            try:
                async with asyncio.timeout(self._seconds):
                    piece = await anext(self._stream, None)
            except TimeoutError:
                raise DeadlineError(f"nothing arrived for {self._seconds:g} seconds") from None
            if piece is None and not any(left):
                return
            *whole, rest = (b"\n" if piece is None else piece).split(b"\n")
            for one in whole:
                self.number += 1
                line = self._text(b"".join([*left, one]) if left else one)
                left, size = [], 0
                yield self.number, line
            if piece is None:
                return
            left.append(rest)
            size += len(rest)
            if size > limits.LINE_BYTES:
                where = f"{BODY}:{self.number + 1}"
                raise TooLargeError(f"has more than {limits.LINE_BYTES:,} bytes", field=where)

    def _text(self, line: bytes) -> str:
        try:
            return line.decode("utf-8-sig" if self.number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            where = f"{BODY}:{self.number}"
            raise ValidationError(f"is not UTF-8: byte {error.start}", field=where) from None


@operations(
    "POST",
    "/import",
    scope=Scope.APPEND,
    query=ImportQuery,
    reply=single(Imported),
    streams=LINES,
    example='{"role": "user", "content": "Which database should the orders service use?"}\n',
)
async def import_lines(call: Call[ImportQuery, None]) -> Reply:
    """Read what `/export` wrote, verbatim, or the messages of a chat into a context; the first line says which.

    An export keeps its ids, versions, hashes and roles, and may hold several contexts, parents first; it needs the
    scope admin:config, as it brings settings too, and `trust` when it has system or developer messages. A chat has one
    message a line, `{"role", "content"}` with what else chat completions know, or `{"messages": […]}`, and goes into
    `contextId`; its system and developer messages are stored as external text, unless `trust` is given. All of it is
    checked before anything is stored: what is wrong is refused with the number of the line. The same import again
    stores nothing twice.
    """
    assert call.stream is not None
    body = _Body(call.stream, call.config.limits.deadline_seconds)
    async with limits.spooled(body.lines(), BODY) as spool:
        first = next(spool.lines(), None)
        if first is None:
            raise ValidationError("is empty", field=BODY, options=("send one JSON object a line",))
        if _is_header(first[1]):
            kind, contexts = "export", await _restore(call, spool)
        else:
            kind, contexts = "chat", [await _chat(call, spool)]
    new = sum(one.new for one in contexts)
    return show(Imported(format=kind, lines=body.number, new=new, contexts=contexts))


def _is_header(line: str) -> bool:
    try:
        found = limits.parse_json(line, f"{BODY}:1")
    except ValueError:
        return False
    return isinstance(found, dict) and "acms" in found


async def _restore(call: Call[ImportQuery, None], spool: limits.Spool) -> list[ImportedContext]:
    if call.query.context_id is not None:
        raise ValidationError("is for chats: an export says itself what it is", field="contextId")
    if Scope.ADMIN not in call.principal.scopes:
        raise PermissionDeniedError(f"an export brings ids and settings: the key needs {Scope.ADMIN.value}")
    storage = call.tenant.handle
    contexts: list[ImportedContext] = []
    try:
        exports = restoring.split_exports(spool.lines())
        checked = await restoring.check_exports(storage, exports, BODY, instructions=call.query.trust)
        for context in checked:
            call.tenant.check(context.namespace)
        for written, lines in zip(checked, restoring.split_exports(spool.lines()), strict=True):
            before = await _version(storage, written)
            context = await restoring.write_export(storage, lines, BODY)
            contexts.append(await _imported(storage, context, before))
    except CorruptRecordError as error:
        raise ValidationError(str(error), field=BODY, options=error.options) from error
    return contexts


async def _version(storage: StorageBackend, context: Context) -> int:
    """Return up to which version a context is there."""
    try:
        return (await storage.head(context.id)).version
    except SessionNotFoundError:
        return context.fork or 0


async def _imported(storage: StorageBackend, context: Context, before: int) -> ImportedContext:
    head = await storage.head(context.id)
    return ImportedContext(
        id=context.id,
        key=context.key,
        namespace=context.namespace,
        new=head.version - before,
        version=head.version,
        message_count=head.messages,
    )


async def _chat(call: Call[ImportQuery, None], spool: limits.Spool) -> ImportedContext:
    id = call.query.context_id
    if id is None:
        raise ValidationError("must name the context that the messages go to", field="contextId")
    session = await call.tenant.session(id)
    most = call.config.limits.message_bytes
    async for number, turn, _ in _turns(call, spool):
        _check_size(turn, most, number)
    new, size = 0, 0
    batch: list[tuple[int, Turn]] = []
    async for number, turn, line in _turns(call, spool):
        batch.append((number, turn))
        size += len(line)
        if len(batch) == BATCH or size > BATCH_CHARACTERS:
            new += await _stored(session, batch)
            batch, size = [], 0
    if batch:
        new += await _stored(session, batch)
    told = await _imported(call.tenant.handle, await call.tenant.context(id), 0)
    return replace(told, new=new)


async def _turns(call: Call[ImportQuery, None], spool: limits.Spool) -> AsyncIterator[tuple[int, Turn, str]]:
    """Yield the messages of a chat, each with the number of its line and the line."""
    reader = LineReader(BODY, trust=call.query.trust)
    for read, (number, line) in enumerate(spool.lines()):
        for turn in reader.read(line, number):
            yield number, turn, line
        if read % BATCH == 0:
            await asyncio.sleep(0)


def _check_size(turn: Turn, most: int, number: int) -> None:
    size = len(turn["content"].encode("utf-8", "surrogatepass"))
    if size > most:
        raise TooLargeError(f"has {size} bytes, the limit is {most}", field=f"{BODY}:{number}")


async def _stored(session: ACMS, batch: Sequence[tuple[int, Turn]]) -> int:
    """Store a batch and return how many were new; one that is known in part is stored message by message."""
    try:
        receipts = await session.ingest_many([turn for _, turn in batch])
    except IdempotencyMismatchError as error:
        if len(batch) == 1:
            raise IdempotencyMismatchError(f"{BODY}:{batch[0][0]}: {error}") from error
        return sum([await _stored(session, [one]) for one in batch])
    except ValidationError as error:
        found = _AT.search(error.field)
        if found is None:
            raise
        number = batch[int(found[1])][0]
        raise ValidationError(str(error), field=f"{BODY}:{number}", options=error.options) from error
    return sum(not one.repeated for one in receipts)
