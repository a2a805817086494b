"""Contexts over HTTP: create, get, list, change and delete."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import Field

from acms.errors import NotFoundError, SessionNotFoundError, ValidationError
from acms.log import policy as policy_levels
from acms.log import validation
from acms.log.policy import POLICY, PRIVATE, CompactionPolicy, merge_policy
from acms.log.settings import read_setting
from acms.model import Context, ContextDraft, ContextQuery, Head, Json
from acms.nouns import encode_noun
from acms.providers.tokens import default_counter
from acms.results import ContextInfo
from acms.server import replies
from acms.server.operation import Body, Call, Operations, Query, Reply, Scope
from acms.server.replies import describe_list_reply, describe_single_reply
from acms.server.tenants import Tenant
from acms.server.versions import Name
from acms.storage.sessions import build_context_info, build_session_settings, heads_of, parse_session_filter
from acms.write import retirement

__all__ = [
    "ContextDetails",
    "ListPage",
    "build_etag_header",
    "context_json",
    "one_context",
    "operations",
    "reply_with_contexts",
]

operations = Operations("contexts")


_Share = Annotated[float, Field(ge=0, le=1)]


class PolicyBody(Body):
    """A compaction policy. The namespace or the service decides every omitted field."""

    threshold: _Share | None = None
    """Compact when the active tokens reach this share of the budget, from 0 to 1."""
    preserve_recent_count: Annotated[int, Field(ge=0)] | None = None
    """Number of newest messages that are never summarized."""
    enabled: bool | None = None
    """Whether an append may start a compaction; an explicit request always may."""
    budget: Annotated[int, Field(ge=0, le=validation.BUDGET)] | None = None
    """Tokens that the active log should stay below; without it no append starts a compaction."""
    keep: _Share | None = None
    """Share of the active tokens, from 0 to 1, that stays verbatim besides the newest messages."""
    summary_tokens: Annotated[int, Field(ge=1)] | None = None
    """Largest number of tokens of a summary; by default a fifth of the tokens it replaces."""
    smallest_prompt: Annotated[int, Field(ge=1)] | None = None
    """Tokens of the smallest prompt that shows a summary."""

    def set_fields(self) -> dict[str, Json]:
        """Return the fields of the request, by the names of `CompactionPolicy`."""
        return {name: getattr(self, name) for name in self.model_fields_set}


class ContextBody(Body):
    """A context to create."""

    name: Annotated[str, Field(max_length=255)] | None = None
    """Name to show."""
    labels: list[str] | None = None
    """Labels to list it by."""
    key: Annotated[str, Field(min_length=1, max_length=255)] | None = None
    """The client's own id: creating it again returns the existing context."""
    namespace: Annotated[str, Field(min_length=1, max_length=255)] = "default"
    """Namespace of the context."""
    metadata: dict[str, Any] | None = None
    """Any JSON object; kept with the context."""
    policy_config: PolicyBody | None = None
    """When the context is compacted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextDetails(ContextInfo):
    """One conversation's log."""

    policy_config: Mapping[str, Json]
    #: Whether its content is hidden from the other contexts of its namespace.
    private: bool


class ListPage(Query):
    """A page of a list of contexts."""

    cursor: str | None = None
    """`nextCursor` of the previous page."""
    limit: Annotated[int, Field(ge=1, le=500)] = 50
    """Largest number of items in the page."""


class ListContexts(ListPage):
    """The contexts to list."""

    namespace: str | None = None
    """List only the contexts of this namespace."""
    key: str | None = None
    """List only the context with this key, chosen by the client when it was created."""
    parent: str | None = None
    """List only the forks of the context with this id."""
    label: Name | None = None
    """List only the contexts with this label."""
    name: Name | None = None
    """List only the contexts with this name."""
    deleted: bool = False
    """List deleted contexts too, until they are collected or erased; `deletedAt` marks them."""
    where: str | None = None
    """A JSON object; list only the contexts that match all of it: `label` (one or a list), `name`, `metadata`
    (values)."""


class ChangeBody(Body):
    """Changes of a context. Omitted fields stay as they are; null removes one."""

    name: Annotated[str, Field(max_length=255)] | None = None
    """Name to show; null removes it."""
    labels: list[str] | None = None
    """Labels to list it by; null removes them."""
    metadata: dict[str, Any] | None = None
    """Replaces the metadata; null removes it."""
    private: bool = False
    """Whether its content is hidden from the other contexts of its namespace."""


def build_etag_header(head: Head) -> dict[str, str]:
    """Return the ETag of a log: the newest message, which facts and summaries do not change (rule 1.2)."""
    return {"ETag": f'"{head.last_message or "empty"}"'}


def context_json(context: Context, head: Head) -> dict[str, Json]:
    """Serialize a context."""
    settings = context.settings
    policy: Mapping[str, Json] = read_setting(settings, POLICY, {})
    info = build_context_info(context, head)
    return encode_noun(
        ContextDetails(
            **{field.name: getattr(info, field.name) for field in fields(info)},
            policy_config=CompactionPolicy().to_json() | dict(policy),
            private=bool(settings.get(PRIVATE)),
        )
    )


@operations(
    "POST",
    "/contexts",
    scope=Scope.APPEND,
    body=ContextBody,
    optional=True,
    reply=describe_single_reply(ContextDetails),
    status=201,
    also={200: "It is there already, under this key."},
    example={"key": "user_123", "name": "Orders migration", "metadata": {"team": "orders"}},
)
async def create_context(call: Call[None, ContextBody]) -> Reply:
    """Create a context.

    With a `key`, a repeated request returns the same context with status 200.
    """
    body, storage = call.body, call.tenant.handle
    namespace = validation.validate_namespace(body.namespace)
    call.tenant.check(namespace)
    about = build_session_settings(body.name, body.labels, body.metadata)
    settings = {name: value for name, value in about.items() if value is not None}
    if body.policy_config is not None:
        try:
            policy = merge_policy({}, body.policy_config.set_fields())
        except ValidationError as error:
            message = str(error).removeprefix(f"{error.field}: ")
            raise ValidationError(
                message, field=f"policyConfig.{error.field}", options=error.options
            ) from error
        if policy:
            settings[POLICY] = policy
    key = None if body.key is None else validation.validate_new_session_name(body.key, "key")
    if key is not None:
        try:
            existing = await storage.context(key, namespace=namespace)
        except SessionNotFoundError:
            pass
        else:
            if existing.key == key:  # not a context whose id happens to be this text
                return await one_context(call.tenant, existing, status=200)
    created = await storage.create(
        ContextDraft(
            key=key,
            namespace=namespace,
            counter=default_counter().name,
            settings=settings,
            created_at=datetime.now(UTC),
        )
    )
    reply = await one_context(call.tenant, created, status=201)
    reply.headers = {**reply.headers, "Location": f"/api/v1/contexts/{created.id}"}
    return reply


async def one_context(tenant: Tenant, context: Context, *, status: int = 200) -> Reply:
    """Return a context as a reply, with the head of its log."""
    head = await tenant.handle.head(context.id)
    return Reply(body={"data": context_json(context, head)}, status=status, headers=build_etag_header(head))


@operations("GET", "/contexts/{context_id}", scope=Scope.READ, reply=describe_single_reply(ContextDetails))
async def get_context(call: Call[None, None]) -> Reply:
    """Return a context with the head of its log.

    `latestVersion`, `messageCount`, `totalTokens` and `lastMessageId` describe the head. `totalTokens` counts the
    stored texts; a window or a recall also counts the framing of each message.
    """
    return await one_context(call.tenant, await call.tenant.context(call.path["context_id"]))


@operations(
    "GET", "/contexts", scope=Scope.READ, query=ListContexts, reply=describe_list_reply(ContextDetails, str)
)
async def list_contexts(call: Call[ListContexts, None]) -> Reply:
    """List contexts, newest first.

    `namespace`, `parent`, `key`, `label`, `name` and `where` filter the list. Pass `nextCursor` as `cursor` for the
    next page.
    """
    query = call.query
    if query.key is None:
        return await reply_with_contexts(
            call.tenant,
            namespace=query.namespace,
            parent=query.parent,
            where=_parse_filter(query),
            deleted=query.deleted,
            cursor=query.cursor,
            limit=query.limit,
        )
    try:
        context = await call.tenant.handle.context(query.key, namespace=query.namespace or "default")
        is_inner_key = query.key in validation.INNER  # a context of the engine itself
        has_key = context.key == query.key and not is_inner_key
        is_visible = has_key and call.tenant.may_see(context.namespace)
        items = [context] if is_visible else []
    except NotFoundError:
        items = []
    return await _build_page_reply(call.tenant, items, None)


async def reply_with_contexts(
    tenant: Tenant,
    *,
    namespace: str | None = None,
    parent: str | None = None,
    where: Mapping[str, Any] | None = None,
    deleted: bool = False,
    cursor: str | None = None,
    limit: int,
) -> Reply:
    """Return a page of contexts as a reply, newest first."""
    query = ContextQuery(
        namespace=namespace,
        parent=parent,
        where=parse_session_filter(where),
        spoken=True,
        deleted=deleted,
        after=cursor,
        limit=limit,
    )
    try:
        page = await tenant.contexts(query)
    except SessionNotFoundError:
        raise ValidationError("is not a cursor of this list", field="cursor") from None
    return await _build_page_reply(tenant, page.items, page.next_after)


def _parse_filter(query: ListContexts) -> dict[str, Any]:
    """Return the conditions that the listed contexts must match: those in `where`, and `label` and `name`."""
    try:
        conditions = json.loads(query.where or "{}")
    except (ValueError, RecursionError):
        conditions = None
    if not isinstance(conditions, dict):
        raise ValidationError(
            "must be a JSON object", field="where", options=('a JSON object such as {"label": "support"}',)
        )
    shortcuts = {"label": query.label, "name": query.name}
    return {**conditions, **{name: value for name, value in shortcuts.items() if value is not None}}


async def _build_page_reply(tenant: Tenant, items: Sequence[Context], next_cursor: str | None) -> Reply:
    heads = await heads_of(tenant.handle, items)
    data = [
        context_json(context, head) for context, head in zip(items, heads, strict=True) if head is not None
    ]
    return replies.reply_with_page(data, next_cursor)


@operations(
    "PATCH",
    "/contexts/{context_id}",
    scope=Scope.APPEND,
    body=ChangeBody,
    reply=describe_single_reply(ContextDetails),
    example={"name": "Orders migration"},
)
async def change_context(call: Call[None, ChangeBody]) -> Reply:
    """Change the name, labels, metadata or privacy of a context. These are not part of its log.

    Omitted fields stay unchanged; null removes a value. The log gets no new version.
    """
    tenant, body = call.tenant, call.body
    context = await tenant.context(call.path["context_id"])
    given_fields = body.model_fields_set
    change: dict[str, Json] = {name: None for name in given_fields if name != PRIVATE}
    change |= build_session_settings(body.name, body.labels, body.metadata)
    if PRIVATE in given_fields:
        change[PRIVATE] = True if body.private else None
    changed_context = await policy_levels.update_settings(tenant.handle, context.id, lambda _: change)
    if PRIVATE in given_fields:
        await retirement.apply_private_setting(tenant.handle, changed_context)
    return await one_context(tenant, changed_context)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """A live context that still reads entries it shares with a deleted one."""

    id: str
    key: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedContext(ContextDetails):
    """A deleted context."""

    #: Live forks that still read entries they share with it. Erase these entries to remove them there too.
    live_forks: tuple[Fork, ...]


@operations(
    "DELETE", "/contexts/{context_id}", scope=Scope.APPEND, reply=describe_single_reply(DeletedContext)
)
async def delete_context(call: Call[None, None]) -> Reply:
    """Hide a context.

    Its key can be used again. The reply lists the forks that still read entries they share with it.
    """
    tenant, id = call.tenant, call.path["context_id"]
    session = await tenant.session(id)
    head = await tenant.handle.head(id)
    forks = await session.delete()
    tenant.forget(id)
    context = await tenant.handle.context(id)
    live = [encode_noun(Fork(id=fork.context_id, key=fork.session_id)) for fork in forks]
    return Reply(body={"data": {**context_json(context, head), "liveForks": live}})
