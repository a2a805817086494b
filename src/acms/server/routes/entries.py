"""Entries over HTTP: look at one, correct it, retract it, undo that, erase it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import Field

from acms.erasure import erase_context
from acms.log.read import replacements_at
from acms.model import Entry, Json
from acms.nouns import encode_noun
from acms.results import Erasure
from acms.server.operation import Body, Call, Operations, Query, Reply, Scope
from acms.server.replies import describe_single_reply, reply_with_data
from acms.server.routes.compaction import Rewrite
from acms.server.routes.messages import message_too_large_error
from acms.server.versions import Version, VersionQuery, resolve_version, view_at

__all__ = ["operations"]

operations = Operations("entries")

_CONTEXT = "/contexts/{context_id}"
_ENTRY = f"{_CONTEXT}/entries/{{entry_id}}"
_NOW = VersionQuery()


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeEntry(Entry):
    """An entry with all that it says."""

    #: Whether it is neither replaced nor retracted, at the version that was asked for.
    in_force: bool


async def _whole_entry(call: Call[Any, Any], id: str, place: VersionQuery = _NOW) -> dict[str, Json]:
    """Serialize an entry as it reads at a version of the log, with `inForce` for whether it is active there."""
    context, storage = call.path["context_id"], call.tenant.handle
    session = await call.tenant.session(context)
    version = await resolve_version(session, context, place.at_version, place.at_message, place.at_tag)
    view = session if version is None else session.at(version)
    entry = session.internals.redactor.redact_entry(await view.get(id))
    head = await storage.head(context)
    replacements = await replacements_at(storage, context, head, head.version if version is None else version)
    return {**encode_noun(entry, Entry), "inForce": replacements.replaced_by(entry.version) is None}


@operations("GET", _ENTRY, scope=Scope.READ, query=VersionQuery, reply=describe_single_reply(WholeEntry))
async def get_entry(call: Call[VersionQuery, None]) -> Reply:
    """Return any entry of a context by its id: a message, a fact, a summary, a retraction.

    Private content is redacted or withheld. Only an export, which requires an administrator's key, is verbatim.
    """
    return Reply(body={"data": await _whole_entry(call, call.path["entry_id"], call.query)})


class KeysBody(Body):
    """The entries whose keys are requested."""

    ids: Annotated[list[str], Field(max_length=10_000)]
    """Ids of the entries."""
    at_version: Version | None = None
    """Version of the log to read; the newest by default. Give at most one of `atVersion`, `atMessage`, `atTag`."""
    at_message: Version | None = None
    """Number of messages after which to read the log."""
    at_tag: str | None = None
    """Tag of the version to read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """What the caller called entries, by their ids; those without a name are left out."""

    keys: Mapping[str, str]


@operations(
    "POST",
    f"{_CONTEXT}/keys",
    scope=Scope.READ,
    body=KeysBody,
    reply=describe_single_reply(Keys),
    writes=False,
    example={"ids": ["m_0123456789abcdef_1_abcdef"]},
)
async def find_keys(call: Call[None, KeysBody]) -> Reply:
    """Return the client's keys of entries by entry id. An edit has the key of the message it edits.

    Entries without a key are left out. The method is POST because the list of ids may be too long for an address.
    """
    return reply_with_data(Keys(keys=await (await view_at(call, call.body)).keys(call.body.ids)))


class ReplaceBody(Body):
    """The corrected text of a message."""

    content: str
    """The corrected text."""
    sha256: Annotated[str, Field(pattern="^[0-9a-fA-F]{64}$")] | None = None
    """SHA-256 of the text to correct, in hex; refused when the text has changed since."""


@operations(
    "PATCH",
    _ENTRY,
    scope=Scope.APPEND,
    body=ReplaceBody,
    reply=describe_single_reply(WholeEntry),
    example={"content": "Which database should the orders service use? We expect 2 TB."},
)
async def replace_entry(call: Call[None, ReplaceBody]) -> Reply:
    """Correct the text of a message, and return the new entry.

    The correction is read at the position of the message; earlier versions read as before. Facts made from the old text
    are retired. 412 if `sha256` does not match the current text; 410 if the message was retracted or its content is
    gone.
    """
    content, max_bytes = call.body.content, call.config.limits.message_bytes
    size = len(content.encode("utf-8", "surrogatepass"))
    if size > max_bytes:
        raise message_too_large_error(size, max_bytes, "content")
    session = await call.tenant.session(call.path["context_id"])
    id = await session.replace(call.path["entry_id"], content, sha256=call.body.sha256)
    return Reply(body={"data": await _whole_entry(call, id)})


class RetractBody(Body):
    """The reason for a retraction."""

    reason: Annotated[str, Field(min_length=1, max_length=255)] = "retracted"
    """Reason to record."""
    alone: bool = False
    """Leave the rest of a tool group active."""


@operations(
    "POST",
    f"{_ENTRY}/retract",
    scope=Scope.APPEND,
    body=RetractBody,
    optional=True,
    reply=describe_single_reply(Rewrite),
    example={"reason": "said by mistake"},
)
async def retract_entry(call: Call[None, RetractBody]) -> Reply:
    """Retract an entry from now on, with its whole tool group, and return the version of the retraction.

    Earlier versions still show it. Facts made from a message are retracted with it. Repeating it changes nothing and
    returns the same version.
    """
    session = await call.tenant.session(call.path["context_id"])
    body = call.body
    version = await session.retract(call.path["entry_id"], reason=body.reason, alone=body.alone)
    return reply_with_data(Rewrite(version=version))


class EraseEntry(Query):
    """Whether to search for remaining copies."""

    verify: bool = False
    """Search the store afterwards for other places that hold the erased text; `remaining` lists them."""


@operations(
    "DELETE",
    _ENTRY,
    scope=Scope.ERASE,
    query=EraseEntry,
    reply=describe_single_reply(Erasure),
    takes=("Idempotency-Key",),
)
async def erase_entry(call: Call[EraseEntry, None]) -> Reply:
    """Delete the content of an entry permanently, in every fork. Its version stays as a tombstone.

    Its edits are erased too, with every summary and fact made from it; the entries that such a summary replaced are
    active again. With `verify` the store is searched afterwards for copies. `remaining` lists entries that hold or
    quote the same text, as far as the key may read them; `verified` is false while there is one, listed or not. This
    cannot be undone; repeating it completes an interrupted erasure. 423 under a legal hold.
    """
    session = await call.tenant.session(call.path["context_id"])
    try:
        erasure = await session.erase(call.path["entry_id"], verify=call.query.verify)
    finally:
        call.tenant.forget_contracts()
    return await _reply_with_erasure(call, erasure)


@operations(
    "DELETE",
    f"{_CONTEXT}/entries",
    scope=Scope.ERASE,
    query=EraseEntry,
    reply=describe_single_reply(Erasure),
    takes=("Idempotency-Key",),
)
async def erase_context_entries(call: Call[EraseEntry, None]) -> Reply:
    """Delete the content of all entries of a context permanently, in every fork. Their versions stay as tombstones.

    The context may be deleted: `GET /contexts?deleted=true` lists it with its id. Inherited entries belong to its
    ancestors and stay. Otherwise it is like erasing each entry.
    """
    context = await call.tenant.live_or_deleted_context(call.path["context_id"])
    try:
        erasure = await erase_context(
            call.tenant.handle,
            context.id,
            verify=call.query.verify,
            service=call.tenant.engine.config.compaction,
        )
    finally:
        call.tenant.forget(context.id)
        call.tenant.forget_contracts()
    return await _reply_with_erasure(call, erasure)


async def _reply_with_erasure(call: Call[Any, Any], erasure: Erasure) -> Reply:
    """Return an erasure as a reply; it lists only the remaining places that the request may see."""
    visible = [copy for copy in erasure.remaining if await call.tenant.may_see_context(copy.context)]
    return reply_with_data(replace(erasure, remaining=tuple(visible)))


class UndoBody(Body):
    """The rewrite to undo."""

    version: Annotated[int, Field(ge=1)]
    """Version of the rewrite to undo."""


@operations(
    "POST",
    f"{_CONTEXT}/undo",
    scope=Scope.APPEND,
    body=UndoBody,
    reply=describe_single_reply(Rewrite),
    example={"version": 12},
)
async def undo_rewrite(call: Call[None, UndoBody]) -> Reply:
    """Undo the summary, edit, fact or retraction at a version: the entries it replaced are active again.

    Repeating it changes nothing and returns the same version. 409 if a later entry replaced it, or if another fact has
    the address of a returning one: the options name the entry to undo first.
    """
    session = await call.tenant.session(call.path["context_id"])
    return reply_with_data(Rewrite(version=await session.undo(call.body.version)))


class ClearBody(Body):
    """The reason for clearing a context."""

    reason: Annotated[str, Field(min_length=1, max_length=255)] = "cleared"
    """Reason to record."""


@operations(
    "POST",
    f"{_CONTEXT}/clear",
    scope=Scope.APPEND,
    body=ClearBody,
    optional=True,
    reply=describe_single_reply(Rewrite),
)
async def clear_context(call: Call[None, ClearBody]) -> Reply:
    """Retract all messages so far; version 0 means that there were none.

    What the profile of the namespace knows from this context alone is retired too. Nothing is deleted.
    """
    session = await call.tenant.session(call.path["context_id"])
    return reply_with_data(Rewrite(version=await session.clear(reason=call.body.reason)))
