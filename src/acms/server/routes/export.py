"""Moving logs over HTTP: export and import as lines of JSON, neither of which is ever held as a whole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, cast

from pydantic import Field

from acms.branches import export as transfer
from acms.branches import limits, restoring
from acms.branches.importers import Conversation, Import, open_import
from acms.branches.importing import Importer, survey_import
from acms.errors import (
    ConflictError,
    CorruptRecordError,
    DeadlineError,
    PermissionDeniedError,
    SessionNotFoundError,
    ValidationError,
)
from acms.log import validation
from acms.model import Context, ContextDraft, ContextQuery
from acms.ports import StorageBackend
from acms.providers.tokens import default_counter
from acms.runtime.threads import in_thread
from acms.server.operation import BASE, Call, Operations, Query, Reply, Scope
from acms.server.replies import describe_single_reply, reply_with_data
from acms.server.routes.messages import message_too_large_error
from acms.server.streams import PIECE_BYTES
from acms.server.tenants import SERVICE_NAMESPACE, Tenant
from acms.session import ACMS

__all__ = ["operations"]

operations = Operations("moving")

LINES = "application/x-ndjson"
MEDIA = (LINES, "application/json", "application/octet-stream")
"""Media types of an import: lines, a JSON document, any other file."""
BODY = "body"
"""Name of the imported file in errors."""


# ── export ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class ExportQuery(Query):
    """The context or the namespace to export."""

    context_id: str | None = None
    """Id of the context to export."""
    namespace: Annotated[str, Field(min_length=1, max_length=255)] | None = None
    """Namespace to export, with all its contexts. Give either this or `contextId`."""


@operations(
    "GET",
    "/export",
    scope=Scope.ADMIN,
    query=ExportQuery,
    reply={"type": "string", "description": "One JSON object a line, as `acms restore` reads it."},
    media=LINES,
)
async def export(call: Call[ExportQuery, None]) -> Reply:
    """Stream a context verbatim, or all contexts of a namespace, parents first. Private content is included.

    Each context is a line that describes it, followed by a line for each of its own entries: ids, versions, hashes,
    tombstones. The first line holds the last version, so a truncated stream can be recognized. `/import` reads this
    format.
    """
    query, tenant = call.query, call.tenant
    if (query.context_id is None) == (query.namespace is None):
        raise ValidationError("give contextId or namespace", field="contextId")
    if query.context_id is not None:
        contexts = [await tenant.context(query.context_id)]
    else:
        contexts = await _list_parents_first(tenant.handle, cast("str", query.namespace))
    ids = [context.id for context in contexts]
    return Reply(body=_stream_export(tenant.handle, ids), media=LINES)


async def _list_namespace_contexts(storage: StorageBackend, namespace: str) -> list[Context]:
    """Return the live contexts of a namespace, newest first."""
    contexts: list[Context] = []
    if namespace == SERVICE_NAMESPACE:  # it is never visible to requests
        return contexts
    cursor: str | None = None
    while True:
        page = await storage.contexts(ContextQuery(namespace=namespace, after=cursor, limit=validation.PAGE))
        contexts += page.items
        cursor = page.next_after
        if cursor is None:
            return contexts


async def _list_parents_first(storage: StorageBackend, namespace: str) -> list[Context]:
    """Return the live contexts of a namespace, a parent before its forks."""
    contexts = await _list_namespace_contexts(storage, namespace)
    contexts.reverse()
    listed_ids: set[str | None] = {None}
    for context in contexts:
        if context.parent not in listed_ids:
            raise ConflictError(
                f"{context.id} is a fork of {context.parent}, which was deleted: it cannot be restored alone",
                retryable=False,
                options=(f"POST {BASE}/contexts/{context.id}/copy, and delete the fork",),
            )
        listed_ids.add(context.id)
    return contexts


async def _stream_export(storage: StorageBackend, ids: Sequence[str]) -> AsyncIterator[bytes]:
    """Yield the lines of the exports of contexts, in pieces of about `PIECE_BYTES`."""
    lines: list[str] = []
    size = 0
    for id in ids:
        async for line in transfer.export(storage, id):
            lines.append(line)
            size += len(line)
            if size >= PIECE_BYTES:
                yield "".join(lines).encode()
                lines, size = [], 0
                # Lets other requests run, even if the client reads so fast that this one never waits.
                await asyncio.sleep(0)
    if lines:
        yield "".join(lines).encode()


# ── import ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class ImportQuery(Query):
    """The destination of conversations, and whether they may instruct the model."""

    context_id: str | None = None
    """Id of the context that receives the one conversation of the file; required for a file of chat messages."""
    namespace: Annotated[str, Field(min_length=1, max_length=255)] | None = None
    """Namespace in which each conversation becomes a context, with its name as key."""
    trust: bool = False
    """Allow system and developer messages of the file to instruct the model. Use it only for files whose author you
    trust."""


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
    """The result of an import."""

    #: `export`, or the name of the format.
    format: str
    lines: int
    #: Entries that were not there before.
    new: int
    contexts: list[ImportedContext]
    #: What was read and not imported: how often, by reason.
    skipped: dict[str, int]


@operations(
    "POST",
    "/import",
    scope=Scope.APPEND,
    query=ImportQuery,
    reply=describe_single_reply(Imported),
    streams=MEDIA,
    example='{"role": "user", "content": "Which database should the orders service use?"}\n',
)
async def import_file(call: Call[ImportQuery, None]) -> Reply:
    """Import an export of `/export` verbatim, or conversations of another program. The content decides which.

    An export keeps its ids, versions, hashes and roles, and may hold several contexts, parents first. It requires the
    scope admin:config, as it brings settings too, and `trust` if it has system or developer messages. Any other file is
    read as by `acms import`: transcripts of coding agents, logs of providers, exports of chat programs. Each
    conversation becomes a context in `namespace`, with a fork for each branch. A single conversation may go into
    `contextId`; chat messages, one `{"role", "content"}` per line, must. System and developer messages are stored as
    external text unless `trust` is set. The whole file is checked before anything is stored: an error names its line.
    Importing the same file again stores nothing twice.
    """
    assert call.stream is not None
    async with _spool_body(call.stream, call.config.limits.deadline_seconds) as path:
        lines = await in_thread(partial(_count_lines, path))
        skipped: dict[str, int] = {}
        if _is_export(path):
            format = "export"
            contexts = await _restore_exports(call, path)
        else:
            parsed_file = await in_thread(
                partial(open_import, path, trust=call.query.trust, most=limits.LINE_BYTES)
            )
            contexts = await _import_conversations(call, parsed_file)
            format, skipped = parsed_file.format, dict(parsed_file.skipped)
    new_entries = sum(context.new for context in contexts)
    return reply_with_data(
        Imported(format=format, lines=lines, new=new_entries, contexts=contexts, skipped=skipped)
    )


@asynccontextmanager
async def _spool_body(stream: AsyncIterator[bytes], seconds: float) -> AsyncGenerator[Path]:
    """Write a body to a temporary file that exists inside the block; the import reads it twice.

    Raises `DeadlineError` if nothing arrives for `seconds`.
    """
    with TemporaryDirectory(prefix="acms-") as folder:
        path = Path(folder) / BODY
        with path.open("wb") as file:
            while True:
                try:
                    async with asyncio.timeout(seconds):
                        piece = await anext(stream, None)
                except TimeoutError:
                    raise DeadlineError(f"nothing arrived for {seconds:g} seconds") from None
                if piece is None:
                    break
                file.write(piece)
        yield path


def _count_lines(path: Path) -> int:
    """Return the number of lines of a file; the last line may lack its line feed."""
    line_feeds = 0
    last_byte = b"\n"
    with path.open("rb") as file:
        while data := file.read(1 << 20):
            line_feeds += data.count(b"\n")
            last_byte = data[-1:]
    return line_feeds if last_byte == b"\n" else line_feeds + 1


def _is_export(path: Path) -> bool:
    """Return whether the first line that is not blank describes a context; such a line is shorter than 1 MiB."""
    with path.open("rb") as file:
        line = b"\n"
        while line and not line.strip():
            line = file.readline(1 << 20)
    if b'"acms"' not in line:
        return False
    try:
        document = limits.parse_json(line.decode("utf-8-sig"), f"{BODY}:1")
    except ValueError:
        return False
    return isinstance(document, dict) and "acms" in document


def _numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    with path.open("rb") as file:
        for number, line in enumerate(limits.read_lines_within(file, BODY), 1):
            if line.strip():
                yield number, line.strip()


async def _restore_exports(call: Call[ImportQuery, None], path: Path) -> list[ImportedContext]:
    """Check all exports of a file, then store them, and return their contexts.

    The file is read twice, so that nothing is stored if any export is invalid.
    """
    for name, value in (("contextId", call.query.context_id), ("namespace", call.query.namespace)):
        if value is not None:
            raise ValidationError("is for conversations: an export says itself what it is", field=name)
    if Scope.ADMIN not in call.principal.scopes:
        raise PermissionDeniedError(f"an export contains ids and settings: the key needs {Scope.ADMIN.value}")
    storage = call.tenant.handle
    contexts: list[ImportedContext] = []
    try:
        exports = restoring.split_exports(_numbered_lines(path))
        checked = await restoring.check_exports(storage, exports, BODY, instructions=call.query.trust)
        for context in checked:
            call.tenant.check(context.namespace)
        for exported, lines in zip(checked, restoring.split_exports(_numbered_lines(path)), strict=True):
            version_before = await _find_stored_version(storage, exported)
            context = await restoring.write_export(storage, lines, BODY)
            contexts.append(await _build_imported_context(storage, context, version_before))
    except CorruptRecordError as error:
        raise ValidationError(str(error), field=BODY, options=error.options) from error
    return contexts


async def _find_stored_version(storage: StorageBackend, context: Context) -> int:
    """Return the last stored version of a context; the version of the fork if nothing is stored."""
    try:
        return (await storage.head(context.id)).version
    except SessionNotFoundError:
        return context.fork or 0


async def _build_imported_context(
    storage: StorageBackend, context: Context, version_before: int
) -> ImportedContext:
    head = await storage.head(context.id)
    return ImportedContext(
        id=context.id,
        key=context.key,
        namespace=context.namespace,
        new=head.version - version_before,
        version=head.version,
        message_count=head.messages,
    )


class _Contexts:
    """The contexts of a tenant that an import writes to, by their keys."""

    def __init__(self, tenant: Tenant, namespace: str, target: Context | None) -> None:
        self._tenant = tenant
        self._namespace = namespace
        self._target = target
        #: Ids by name, of those that were opened.
        self.ids: dict[str, str] = {}

    @asynccontextmanager
    async def session(self, name: str) -> AsyncGenerator[ACMS]:
        """Return the session of a context, and create the context if it is missing. The tenant closes the session."""
        if name not in self.ids:
            self.ids[name] = await self._find(name)
        yield await self._tenant.session(self.ids[name])

    async def _find(self, name: str) -> str:
        """Return the id of the context for a session name: the given one, an existing one, or a new one."""
        if self._target is not None and name == _name_of(self._target):
            return self._target.id
        storage = self._tenant.handle
        try:
            return (await storage.context(name, namespace=self._namespace)).id
        except SessionNotFoundError:
            draft = ContextDraft(
                key=name,
                namespace=self._namespace,
                counter=default_counter().name,
                created_at=datetime.now(UTC),
            )
            return (await storage.create(draft)).id


def _name_of(context: Context) -> str:
    """Return the key of a context, or its id in a form that its forks can be named after."""
    return context.key or context.id.removeprefix("c_")  # names of the form of an id are reserved


async def _import_conversations(call: Call[ImportQuery, None], parsed_file: Import) -> list[ImportedContext]:
    """Store the conversations of a file, and return their contexts."""
    tenant = call.tenant
    target = await _find_import_target(call, parsed_file)
    namespace = validation.validate_namespace(call.query.namespace or "default")
    if target is not None:
        namespace = target.namespace
    tenant.check(namespace)
    contexts = _Contexts(tenant, namespace, target)
    names = [_name_of(context) for context in await _list_namespace_contexts(tenant.handle, namespace)]
    importer = Importer(tenant.handle, contexts, names, follows=True)
    target_name = None if target is None else _name_of(target)
    try:
        survey = await survey_import(parsed_file, _make_size_check(call.config.limits.message_bytes))
        conversations = await importer.import_file(parsed_file, survey, target_name, BODY)
    except ValidationError as error:
        if error.field != "session":
            raise
        # The request has no field `session`: the name comes from the file, or from the context that it names.
        message = str(error).removeprefix("session: ")
        field = BODY if target is None else "contextId"
        raise ValidationError(message, field=field, options=error.options) from error
    imported: list[ImportedContext] = []
    for conversation in conversations:
        context = await tenant.handle.context(contexts.ids[conversation.session])
        described = await _build_imported_context(tenant.handle, context, 0)
        # The importer counts its own new entries: others may have been appended in the meantime.
        imported.append(replace(described, new=conversation.new))
    return imported


async def _find_import_target(call: Call[ImportQuery, None], parsed_file: Import) -> Context | None:
    """Return the context that the query names for the only conversation of a file, or None for new contexts.

    Raises `ValidationError` if the format requires one.
    """
    query = call.query
    if query.context_id is None:
        if parsed_file.format == "chat":
            raise ValidationError("must name the context that the messages go to", field="contextId")
        return None
    target = await call.tenant.context(query.context_id)
    if query.namespace is not None:
        raise ValidationError("give contextId or namespace", field="contextId")
    return target


def _make_size_check(max_bytes: int) -> Callable[[Conversation], None]:
    """Return a function that raises `TooLargeError` if a message of a conversation has more than `max_bytes` bytes."""
    numbers = count()  # messages are numbered through all conversations of the file

    def check_sizes(conversation: Conversation) -> None:
        for message in conversation.messages:
            number = next(numbers)
            content = message.get("content")
            size = len(content.encode("utf-8", "surrogatepass")) if isinstance(content, str) else 0
            if size > max_bytes:
                field = f"{BODY}: messages[{number}]"
                raise message_too_large_error(size, max_bytes, field)

    return check_sizes
