"""Versions of a log that a request may name: by number, by message position, or by tag."""

from __future__ import annotations

from typing import Annotated, Any, Protocol

from pydantic import Field

from acms.errors import NotFoundError, ValidationError
from acms.log import validation
from acms.log.read import version_to_read
from acms.model import Head, Kind
from acms.ports import StorageBackend
from acms.server.operation import Call, Query
from acms.session import ACMS
from acms.view import View

__all__ = ["Name", "Version", "VersionQuery", "VersionSelector", "resolve_version", "view_at"]

Version = Annotated[int, Field(ge=0)]
Name = Annotated[str, Field(min_length=1, max_length=validation.NAME_CHARS)]


class VersionQuery(Query):
    """A version of a log: by its number, by a number of messages, or by a tag; the newest version without any."""

    at_version: Version | None = None
    """Version of the log to read; the newest by default. Give at most one of `atVersion`, `atMessage`, `atTag`."""
    at_message: Version | None = None
    """Number of messages after which to read the log."""
    at_tag: Name | None = None
    """Tag of the version to read."""


class VersionSelector(Protocol):
    """A query or a part of a body with the three fields of `VersionQuery`; at most one of them is set."""

    @property
    def at_version(self) -> int | None:
        """The number of the version."""
        ...

    @property
    def at_message(self) -> int | None:
        """The number of messages after which to read."""
        ...

    @property
    def at_tag(self) -> str | None:
        """The tag of the version."""
        ...


async def resolve_version(
    session: ACMS, context: str, version: int | None, message: int | None, tag: str | None, side: str = "at"
) -> int | None:
    """Return the version that a version, a message position or a tag names, or None if none is given.

    `side` begins the names of the parameters in errors. Raises `ValidationError` if more than one is given, and
    `NotFoundError` for an unknown tag or if the log is shorter.
    """
    number_given = sum(value is not None for value in (version, message, tag))
    if number_given == 0:
        return None
    if number_given > 1:
        options = (f"give one of {side}Version, {side}Message, {side}Tag",)
        raise ValidationError("says it twice", field=f"{side}Version", options=options)
    if tag is not None:
        from acms.branches import forks

        return await forks.resolve_version(
            session.storage, context, validation.validate_name(tag, f"{side}Tag")
        )
    head = await session.storage.head(context)
    if version is not None:
        return version_to_read(head, version)
    assert message is not None
    if message > head.messages:
        raise NotFoundError(
            f"the log has {head.messages} messages, message {message} does not exist yet",
            options=(f"give a number of messages from 0 to {head.messages}",),
        )
    return await _version_of_message(session.storage, head, message)


async def _version_of_message(storage: StorageBackend, head: Head, message: int) -> int:
    """Return the version of a message by its position, by binary search.

    Positions rise with versions, and no position is higher than its version.
    """
    has_only_messages = head.messages == head.version
    if has_only_messages or message == 0:
        return message
    low, high = message, head.version
    while low < high:
        middle = (low + high) // 2
        entries = await storage.read(head.context, at=middle, kinds=(Kind.MESSAGE,), newest=1)
        newest = entries[0] if entries else None
        if newest is not None and (newest.position or 0) >= message:
            high = newest.version
        else:
            low = middle + 1
    return low


async def view_at(call: Call[Any, Any], selector: VersionSelector, session: ACMS | None = None) -> View:
    """Return the session of a request, or a view of it at the version, message or tag that its query names.

    `session` is used instead of the session that the tenant keeps open.
    """
    context = call.path["context_id"]
    if session is None:
        session = await call.tenant.session(context)
    version = await resolve_version(
        session, context, selector.at_version, selector.at_message, selector.at_tag
    )
    return session if version is None else session.at(version)
