"""Records next to a log: the checks, storage format and parsing shared by every store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from acms.errors import ConflictError, CorruptRecordError, SessionNotFoundError, ValidationError
from acms.log.encoding import load_mapping
from acms.log.validation import (
    RECORD_BYTES,
    RECORD_NAME_CHARS,
    serialize_document,
    validate_integer,
    validate_name,
)
from acms.model import Json, Record

KEPT = 32
"""Records that a context keeps; a further one replaces the one that was put longest ago."""


def validate_record_name(name: str) -> str:
    """Return the name of a record: 1 to 64 characters."""
    checked = validate_name(name, "name")
    if len(checked) > RECORD_NAME_CHARS:
        problem = f"is {len(checked)} characters long, the limit is {RECORD_NAME_CHARS}"
        raise ValidationError(problem, field="name")
    return checked


def serialize_record_data(data: Mapping[str, Json], rev: int) -> str:
    """Return the data of a record as JSON that is put over the revision `rev`."""
    validate_integer(rev, "rev")
    if not isinstance(data, Mapping):
        raise ValidationError(f"must be a mapping, not {type(data).__name__}", field="data")
    text = serialize_document(data, "data")
    size = len(text.encode())
    if size > RECORD_BYTES:
        raise ValidationError(f"is {size} bytes of JSON, the limit is {RECORD_BYTES}", field="data")
    return text


def revision_conflict_error(name: str, rev: int) -> ConflictError:
    """Return the error for a write that expects a revision the record is no longer at."""
    return ConflictError(f"the record {name!r} is not at revision {rev}", options=("read it again",))


def unknown_session_error(id_or_key: str) -> SessionNotFoundError:
    """Return the error for a context that a store does not have."""
    return SessionNotFoundError(
        f"no session or context is named {id_or_key!r}",
        options=("storage.sessions() lists the sessions of all namespaces",),
    )


def deleted_session_error(id_or_key: str) -> SessionNotFoundError:
    """Return the error for a context that was deleted."""
    return SessionNotFoundError(
        f"the session {id_or_key!r} was deleted",
        options=('storage.settings(id, {"deleted": False}, rev=…) brings it back',),
    )


def record_from_rows(context: str, name: str, rows: Sequence[Sequence[Any]]) -> Record | None:
    """Build a record from the rows (when its context was deleted, rev, data): none of an unknown context."""
    if not rows:
        raise SessionNotFoundError(f"no context has the id {context!r}")
    deleted_at, rev, data = rows[0]
    if deleted_at is not None:
        raise deleted_session_error(context)
    return None if rev is None and data is None else record_from_columns(context, name, rev, data)


def record_from_columns(context: str, name: str, rev: Any, data: Any) -> Record:
    """Build a record from its columns; `CorruptRecordError` if they are not valid."""
    try:
        if type(rev) is not int or rev < 1 or type(data) is not str:
            raise CorruptRecordError("a column has the wrong type")
        return Record(context=context, name=name, rev=rev, data=load_mapping(data))
    except CorruptRecordError as error:
        raise CorruptRecordError(f"the record {name!r} of {context} cannot be read: {error}") from error
