"""The sessions of a store: their description, and a page of them, by one function for every store."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from acms.errors import CorruptRecordError, SessionNotFoundError, ValidationError
from acms.log import policy, validation
from acms.log.encoding import from_microseconds, load_mapping
from acms.log.settings import ERASED, LABELS, METADATA, NAME, read_setting, validate_session_title
from acms.model import EMPTY, Context, ContextQuery, Head, Json, Kind, State
from acms.ports import HasHeads, StorageBackend
from acms.results import ContextInfo, SessionPage

_TIMES = ("after", "before")


def build_session_settings(
    name: str | None, labels: Sequence[str] | None, metadata: Mapping[str, Json] | None
) -> dict[str, Json]:
    """Return the settings that describe a session, from the given values; None removes an empty one."""
    settings: dict[str, Json] = {}
    if name is not None:
        settings[NAME] = validate_session_title(name) or None
    if labels is not None:
        settings[LABELS] = list(validation.validate_labels(labels)) or None
    if metadata is not None:
        settings[METADATA] = dict(validation.validate_metadata(metadata)) or None
    return settings


def build_context_info(context: Context, head: Head) -> ContextInfo:
    """Return the description of a session and the state of its log."""
    return ContextInfo(
        id=context.id,
        key=context.key,
        namespace=context.namespace,
        parent_id=context.parent,
        fork_version=context.fork,
        **_subtract_erased(context.settings, head.messages, head.tokens),
        latest_version=head.version,
        last_message_id=head.last_message,
        counter=context.counter,
        created_at=context.created_at,
        deleted_at=context.deleted_at,
        **_read_description(context.settings),
    )


def build_session_page(rows: Sequence[Sequence[Any]], limit: int) -> SessionPage:
    """Build a page from rows of the query `sessions`, of which there is one more where another page follows.

    Their columns: id, namespace, key, settings, parent, fork, version, messages, tokens, last message, counter, when it
    was made, and when it was deleted.
    """
    sessions = [_info_from_row(row) for row in rows[:limit]]
    return SessionPage(sessions=tuple(sessions), next_after=sessions[-1].id if len(rows) > limit else None)


def _info_from_row(row: Sequence[Any]) -> ContextInfo:
    """Build the description of a session from its columns; `CorruptRecordError` if they are not valid."""
    (
        id,
        namespace,
        key,
        settings_text,
        parent,
        fork,
        version,
        messages,
        tokens,
        last_message,
        counter,
        created_at,
        deleted_at,
    ) = row
    try:
        settings = load_mapping(settings_text) if settings_text else EMPTY
        return ContextInfo(
            id=id,
            key=key,
            namespace=namespace,
            parent_id=parent,
            fork_version=fork,
            **_subtract_erased(settings, messages, tokens),
            latest_version=version,
            last_message_id=last_message,
            counter=counter,
            created_at=from_microseconds(created_at),
            deleted_at=None if deleted_at is None else from_microseconds(deleted_at),
            **_read_description(settings),
        )
    except (CorruptRecordError, TypeError, ValueError, OverflowError) as error:
        raise CorruptRecordError(f"context {id} cannot be read: {error}") from error


def _subtract_erased(settings: Mapping[str, Json], messages: int, tokens: int) -> dict[str, int]:
    """Return the counters of a session: those of its head, minus the erased messages and tokens."""
    erased = read_setting(settings, ERASED, {})
    return {
        "message_count": messages - erased.get("messages", 0),
        "total_tokens": tokens - erased.get("tokens", 0),
    }


async def count_erased(storage: StorageBackend, context: str) -> None:
    """Count in the settings of a context how many of its messages were erased, inherited ones too.

    The head keeps counting them: positions and the hash chain depend on it. A list of sessions reads settings anyway.
    """
    messages = await storage.read(context, kinds=(Kind.MESSAGE,), deleted=True)
    erased = [entry for entry in messages if entry.state is State.ERASED]
    counts = {"messages": len(erased), "tokens": sum(entry.tokens for entry in erased)} if erased else None
    known_counts = (await storage.context(context)).settings.get(ERASED)
    if known_counts != counts:
        await policy.update_settings(storage, context, lambda _: {ERASED: counts})


def _read_description(settings: Mapping[str, Json]) -> dict[str, Any]:
    """Return the name, labels and metadata of a session from its settings; `verify` reports damaged ones."""
    return {
        NAME: read_setting(settings, NAME),
        LABELS: tuple(read_setting(settings, LABELS, ())),
        METADATA: read_setting(settings, METADATA, EMPTY),
    }


async def read_session_page(
    storage: StorageBackend,
    *,
    namespace: str | None = None,
    where: Mapping[str, Any] | None = None,
    deleted: bool = False,
    after: str | None = None,
    limit: int = 50,
) -> SessionPage:
    """Return a page of the sessions of a namespace, or of all namespaces, newest first.

    Sessions must match every condition in `where`: `label` (one or a list), `name`, and any other key as a key of their
    metadata; `{"metadata": {…}}` is for metadata keys called label or name. With `deleted`, deleted sessions are
    listed too. `after` is the `next_after` of the previous page. Raises `ValidationError` for an invalid argument.
    """
    query = ContextQuery(
        namespace=None if namespace is None else validation.validate_name(namespace, "namespace"),
        where=parse_session_filter(where),
        spoken=True,
        deleted=validation.require_flag(deleted, "deleted"),
        after=None if after is None else validation.validate_name(after, "after"),
        limit=validation.validate_integer(limit, "limit", minimum=1, maximum=validation.PAGE),
    )
    try:
        if isinstance(storage, HasHeads):
            return await storage.session_page(query)
        return await compose_session_page(storage, query)
    except SessionNotFoundError:
        raise ValidationError(
            "is not the end of a page of sessions", field="after", options=("pass `next_after` of a page",)
        ) from None


async def compose_session_page(storage: StorageBackend, query: ContextQuery) -> SessionPage:
    """Return a page of sessions from a page of contexts and their heads, for a store without a query for both."""
    page = await storage.contexts(query)
    heads = await heads_of(storage, page.items)
    sessions = [
        build_context_info(context, head)
        for context, head in zip(page.items, heads, strict=True)
        if head is not None
    ]
    return SessionPage(sessions=tuple(sessions), next_after=page.next_after)


async def heads_of(storage: StorageBackend, contexts: Sequence[Context]) -> list[Head | None]:
    """Return the heads of contexts in their order; None for one that was deleted since it was listed."""
    ids = [context.id for context in contexts]
    if isinstance(storage, HasHeads):
        heads = await storage.heads_of(ids)
    else:
        heads = await asyncio.gather(*[_read_head(storage, id) for id in ids])
    for index, context in enumerate(contexts):
        if context.deleted_at is not None:
            heads[index] = await _read_deleted_head(storage, context.id)
    return heads


async def _read_head(storage: StorageBackend, context: str) -> Head | None:
    try:
        return await storage.head(context)
    except SessionNotFoundError:  # deleted since it was listed
        return None


async def _read_deleted_head(storage: StorageBackend, context: str) -> Head:
    """Return the counters of a deleted context's head, which a store does not return, from its newest entries."""
    newest = await storage.read(context, newest=1, deleted=True)
    messages = await storage.read(context, newest=1, kinds=(Kind.MESSAGE,), deleted=True)
    return Head(
        context=context,
        version=newest[0].version if newest else 0,
        messages=(messages[0].position or 0) if messages else 0,
        tokens=newest[0].total if newest else 0,
        last_message=messages[0].id if messages else None,
    )


def parse_session_filter(where: Mapping[str, Any] | None) -> Mapping[str, Json]:
    """Return the settings that a listed session must have."""
    if where is None:
        return EMPTY
    if not isinstance(where, Mapping):
        raise ValidationError(f"must be a mapping, not {type(where).__name__}", field="where")
    settings: dict[str, Json] = {}
    metadata: dict[str, Json] = {}
    for key, value in where.items():
        if key == "label":
            labels = [value] if isinstance(value, str) else value
            settings[LABELS] = list(validation.validate_labels(labels, "where.label"))
        elif key == NAME:
            settings[NAME] = validation.validate_text(value, "where.name")
        elif key == METADATA:
            metadata |= validation.validate_metadata(value, "where.metadata")
        elif key in _TIMES:
            problem = "sessions are found by label, name and metadata, not by time: they come newest first"
            raise ValidationError(problem, field=f"where.{key}")
        else:
            metadata |= validation.validate_metadata({key: value}, "where")
    return settings | ({METADATA: metadata} if metadata else {})


def json_contains(value: Json, wanted: Json) -> bool:
    """Return whether a JSON value contains another one, as `@>` of PostgreSQL defines it for jsonb."""
    if isinstance(wanted, Mapping):
        return isinstance(value, Mapping) and all(
            key in value and json_contains(value[key], item) for key, item in wanted.items()
        )
    if isinstance(wanted, list | tuple):
        return isinstance(value, list | tuple) and all(
            any(json_contains(item, wanted_item) for item in value) for wanted_item in wanted
        )
    return isinstance(value, bool) is isinstance(wanted, bool) and bool(value == wanted)
