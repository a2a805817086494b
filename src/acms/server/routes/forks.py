"""Branches over HTTP: forks, copies, their tree, differences, named versions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from acms.errors import ConflictError, IdempotencyMismatchError, NotFoundError, ValidationError
from acms.log import validation
from acms.log.merges import Merged, MergeStrategy
from acms.model import Context
from acms.nouns import encode_noun
from acms.results import Branch, Diff
from acms.server.operation import BASE, Body, Call, Operations, Query, Reply, Scope
from acms.server.replies import describe_list_reply, describe_single_reply, reply_with_data
from acms.server.routes.contexts import ContextDetails, ListPage, one_context, reply_with_contexts
from acms.server.versions import Name, Version, VersionQuery, VersionSelector, resolve_version
from acms.session import ACMS

__all__ = ["operations"]

operations = Operations("forks")


class VersionBody(Body):
    """A version of a log: by its number, by a number of messages, or by a tag. The newest one by default."""

    at_version: Version | None = None
    """Version of the log to read; the newest by default. Give at most one of `atVersion`, `atMessage`, `atTag`."""
    at_message: Version | None = None
    """Number of messages after which to read the log."""
    at_tag: Name | None = None
    """Tag of the version to read."""


class ForkBody(VersionBody):
    """The version to fork, and the key of the fork."""

    key: Annotated[str, Field(min_length=1, max_length=255)] | None = None
    """The client's own id of the fork: forking again under it returns the existing one."""


class TagBody(VersionBody):
    """The version to tag."""

    move: bool = False
    """Allow the tag to be moved from another version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeBranch(Branch):
    """A context of a fork tree, with its depth below the root."""

    depth: int


class DiffQuery(VersionQuery):
    """The comparison: this context at a version, with another one or with another version of itself."""

    other: Name | None = None
    """Id of the other context; by default the one in the path."""
    other_version: Version | None = None
    """Version of the other context; its newest by default."""
    other_message: Version | None = None
    """Number of messages after which to read the other context."""
    other_tag: Name | None = None
    """Tag of the version of the other context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tag:
    """A named version."""

    name: str
    version: int


# ── forks ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@operations(
    "POST",
    "/contexts/{context_id}/fork",
    scope=Scope.FORK,
    query=VersionQuery,
    body=ForkBody,
    optional=True,
    reply=describe_single_reply(ContextDetails),
    status=201,
    also={200: "It is there already, under this key."},
    takes=("Idempotency-Key",),
    example={"key": "what-if"},
)
async def fork_context(call: Call[VersionQuery, ForkBody]) -> Reply:
    """Fork a context: create one that shares everything up to a version, the newest by default.

    The body or the query names the version. Nothing is copied and versions stay the same; later entries of either side
    are not visible to the other. With a `key` a repeated request returns the same fork with status 200; without one the
    Idempotency-Key is its key.
    """
    return await _create_branch(call, copied=False)


@operations(
    "POST",
    "/contexts/{context_id}/copy",
    scope=Scope.FORK,
    query=VersionQuery,
    body=ForkBody,
    optional=True,
    reply=describe_single_reply(ContextDetails),
    status=201,
    also={200: "It is there already, under this key."},
    takes=("Idempotency-Key",),
    example={"key": "user_123-flat"},
)
async def copy_context(call: Call[VersionQuery, ForkBody]) -> Reply:
    """Copy a context: create one with everything that is read in this one, and without a parent.

    Use it when a context is too deep to fork. An interrupted copy continues when it is requested again with the same
    `key` or Idempotency-Key.
    """
    return await _create_branch(call, copied=True)


def _select_version(
    query: VersionSelector, body: VersionSelector
) -> tuple[int | None, int | None, str | None]:
    """Return (version, message, tag) of the query or the body; raise `ValidationError` if both name one."""
    unset = (None, None, None)
    in_query = (query.at_version, query.at_message, query.at_tag)
    in_body = (body.at_version, body.at_message, body.at_tag)
    if in_query != unset and in_body != unset:
        raise ValidationError("is named in the query and in the body: leave one out", field="atVersion")
    return in_body if in_query == unset else in_query


async def _create_branch(call: Call[VersionQuery, ForkBody], *, copied: bool) -> Reply:
    """Fork or copy a context, and return it as the reply; 200 if one with this key existed before."""
    body, id, tenant = call.body, call.path["context_id"], call.tenant
    session = await tenant.session(id)
    key = _key_of_branch(call)
    parent = await tenant.context(id)
    version = await resolve_version(session, id, *_select_version(call.query, body))
    exists = key is not None and await _find_context(call, key, parent.namespace) is not None
    try:
        create = session.copy if copied else session.fork
        child = await create(version, key)
    except ConflictError as error:
        # The key came from the Idempotency-Key header, so the conflict is about that.
        if body.key is None and key is not None and not error.retryable:
            raise IdempotencyMismatchError(
                "this idempotency key was used before for something else", options=("use a new key",)
            ) from error
        raise
    try:
        context = await tenant.handle.context(child.session_id, namespace=parent.namespace)
    finally:
        await child.close()
    reply = await one_context(tenant, context, status=200 if exists else 201)
    reply.headers = {**reply.headers, "Location": f"{BASE}/contexts/{context.id}"}
    return reply


def _key_of_branch(call: Call[VersionQuery, ForkBody]) -> str | None:
    """Return the key of a fork or a copy: that of the body, or the Idempotency-Key."""
    if call.body.key is not None:
        return validation.validate_new_session_name(call.body.key, "key")
    if call.idempotency_key is None:
        return None
    key = validation.validate_name(call.idempotency_key, "Idempotency-Key")
    return validation.validate_new_session_name(key, "Idempotency-Key")


async def _find_context(call: Call[Any, Any], key: str, namespace: str) -> Context | None:
    try:
        return await call.tenant.handle.context(key, namespace=namespace)
    except NotFoundError:
        return None


@operations(
    "GET",
    "/contexts/{context_id}/forks",
    scope=Scope.READ,
    query=ListPage,
    reply=describe_list_reply(ContextDetails, str),
)
async def list_forks(call: Call[ListPage, None]) -> Reply:
    """List the direct forks of a context, newest first.

    Forks of forks are listed by the tree. Deleted forks are left out.
    """
    parent = await call.tenant.context(call.path["context_id"])
    return await reply_with_contexts(
        call.tenant, parent=parent.id, cursor=call.query.cursor, limit=call.query.limit
    )


@operations("GET", "/contexts/{context_id}/ancestry", scope=Scope.READ, reply=describe_list_reply(Branch))
async def list_ancestry(call: Call[None, None]) -> Reply:
    """List the ancestors of a context, the root first and the context itself last. Deleted ones are included.

    For a context that is not a fork the list has one element.
    """
    session = await call.tenant.session(call.path["context_id"])
    return Reply(body={"data": [encode_noun(branch) for branch in await session.ancestry()]})


@operations("GET", "/contexts/{context_id}/tree", scope=Scope.READ, reply=describe_list_reply(TreeBranch))
async def show_tree(call: Call[None, None]) -> Reply:
    """Show the whole fork tree of a context, deleted branches included.

    The tree starts at its root, also when the context is a fork itself. A parent comes before its forks; `depth` is 0
    for the root.
    """
    session = await call.tenant.session(call.path["context_id"])
    tree = await session.tree()
    return Reply(body={"data": [{**encode_noun(branch), "depth": depth} for depth, branch in tree or ()]})


# ── differences ─────────────────────────────────────────────────────────────────────────────────────────────────────


@operations(
    "GET", "/contexts/{context_id}/diff", scope=Scope.READ, query=DiffQuery, reply=describe_single_reply(Diff)
)
async def show_diff(call: Call[DiffQuery, None]) -> Reply:
    """Compare the active entries of this context with another context, or with another version of itself.

    Added entries are active in the other one only.
    """
    query, id = call.query, call.path["context_id"]
    left = await call.tenant.session(id)
    right, right_version = await _open_other(call, query, query.other or id)
    left_version = await resolve_version(left, id, query.at_version, query.at_message, query.at_tag)
    if query.other is None and right_version is None:
        raise ValidationError(
            "is required", field="other", options=("give other, otherVersion, otherMessage or otherTag",)
        )
    diff = await _session_at_version(left, left_version).diff(_session_at_version(right, right_version))
    return reply_with_data(diff)


async def _open_other(
    call: Call[Any, Any], query: DiffQuery | MergeQuery | MergeBody, id: str
) -> tuple[ACMS, int | None]:
    """Return the session of the other context, and the version that the request names."""
    session = await call.tenant.session(id)
    version = await resolve_version(
        session, id, query.other_version, query.other_message, query.other_tag, "other"
    )
    return session, version


def _session_at_version(session: ACMS, version: int | None) -> Any:
    return session if version is None else session.at(version)


# ── merging ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class MergeQuery(Query):
    """The merge to preview: another context of the same tree at a version, and the strategy for conflicts."""

    other: Name
    """Id of the context to merge, from the same fork tree."""
    other_version: Version | None = None
    """Version of the other context; its newest by default."""
    other_message: Version | None = None
    """Number of messages after which to read the other context."""
    other_tag: Name | None = None
    """Tag of the version of the other context."""
    strategy: MergeStrategy = "refuse"
    """How conflicts are resolved; `refuse` reports them."""


class MergeBody(Body):
    """The context to merge, from the same tree, at a version; the newest by default."""

    other: Annotated[str, Field(min_length=1, max_length=255)]
    """Id of the context to merge, from the same fork tree."""
    other_version: Version | None = None
    """Version of the other context; its newest by default."""
    other_message: Version | None = None
    """Number of messages after which to read the other context."""
    other_tag: Name | None = None
    """Tag of the version of the other context."""
    strategy: MergeStrategy = "refuse"
    """What becomes of conflicts: they are refused, or one side has its way in them."""


@operations(
    "GET",
    "/contexts/{context_id}/merge",
    scope=Scope.READ,
    query=MergeQuery,
    reply=describe_single_reply(Merged),
)
async def preview_merge(call: Call[MergeQuery, None]) -> Reply:
    """Preview a merge of another context into this one, with its conflicts. Nothing is written.

    The reply is that of the merge: what would be appended, and what both sides changed differently.
    """
    return await _run_merge(call, call.query, dry_run=True)


@operations(
    "POST",
    "/contexts/{context_id}/merge",
    scope=Scope.APPEND,
    body=MergeBody,
    reply=describe_single_reply(Merged),
    example={"other": "c_7m3k0q2v9x4t8w1y", "strategy": "theirs"},
)
async def merge_context(call: Call[None, MergeBody]) -> Reply:
    """Merge the changes of another context of the same fork tree since the last merge, in one commit.

    Conflicts are refused with 409, which lists them, unless the strategy resolves them. Changes that were merged before
    are not merged again. Undo reverts a merge by its version.
    """
    return await _run_merge(call, call.body, dry_run=False)


async def _run_merge(call: Call[Any, Any], merge: MergeQuery | MergeBody, *, dry_run: bool) -> Reply:
    ours = await call.tenant.session(call.path["context_id"])
    other, version = await _open_other(call, merge, merge.other)
    theirs = _session_at_version(other, version)
    return reply_with_data(await ours.merge(theirs, strategy=merge.strategy, dry_run=dry_run))


# ── named versions ──────────────────────────────────────────────────────────────────────────────────────────────────


@operations("GET", "/contexts/{context_id}/tags", scope=Scope.READ, reply=describe_list_reply(Tag))
async def list_tags(call: Call[None, None]) -> Reply:
    """List the tags of a context, oldest first, including inherited ones.

    A fork inherits the tags of the versions that it shares with its parent. `version` is the tagged version.
    """
    session = await call.tenant.session(call.path["context_id"])
    tags = [Tag(name=name, version=version) for name, version in (await session.tags()).items()]
    return Reply(body={"data": [encode_noun(tag) for tag in tags]})


@operations(
    "PUT",
    "/contexts/{context_id}/tags/{name}",
    scope=Scope.APPEND,
    body=TagBody,
    optional=True,
    reply=describe_single_reply(Tag),
    example={"move": True},
)
async def put_tag(call: Call[None, TagBody]) -> Reply:
    """Tag a version, the newest by default.

    A tag of another version is refused with 409, unless `move` is set.
    """
    body, id, name = call.body, call.path["context_id"], call.path["name"]
    session = await call.tenant.session(id)
    version = await resolve_version(session, id, body.at_version, body.at_message, body.at_tag)
    tagged_version = await session.tag(name, version, move=body.move)
    return reply_with_data(Tag(name=name, version=tagged_version))


@operations("DELETE", "/contexts/{context_id}/tags/{name}", scope=Scope.APPEND, status=204)
async def delete_tag(call: Call[None, None]) -> Reply:
    """Delete a tag.

    The tagged version stays. A tag that the context does not have itself, such as an inherited one, is an error with
    status 404.
    """
    await (await call.tenant.session(call.path["context_id"])).untag(call.path["name"])
    return Reply()
