"""Key-value memory: the base class of its stores, the store in memory, and `open_kv`.

A store keeps the JSON text of a value unchanged: digits, names and their order are preserved in all of them.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from heapq import nsmallest
from typing import Any, Literal, Self, TypeAlias

from acms.errors import ConflictError, CorruptRecordError
from acms.log import validation
from acms.log.encoding import Entropy, draw_token, dump, from_microseconds, load_mapping, to_microseconds
from acms.model import Json, KVEntry, KVPage

Clock = Callable[[], datetime]
Row: TypeAlias = tuple[str, Any, Any, Any, Any, Any]
"""Key, data, metadata, created_at, updated_at and revision."""
PutMode = Literal["any", "new", "known"]
"""Whatever is there, only when nothing is there, or only when it is still at a revision."""


def utc_now() -> datetime:
    """Return the time."""
    return datetime.now(UTC)


QUERY_TO_PUT: Mapping[PutMode, str] = {"any": "set", "new": "set_new", "known": "set_known"}
"""The name of the SQL query that stores a value."""


class BaseKV(ABC):
    """The base class of every key-value store: checks arguments, converts values to JSON and back.

    A subclass stores and reads rows.
    """

    _clock: Clock
    _entropy: Entropy

    async def __aenter__(self) -> Self:
        """Use the store in a block."""
        return self

    async def __aexit__(self, *error: object) -> None:
        """Close it; a later call opens it again."""
        await self.aclose()

    async def get(self, key: str) -> KVEntry | None:
        """Return the entry stored under a key, or None if there is none."""
        row = await self._get(validation.validate_key(key))
        return None if row is None else _entry_from_row(key, *row)

    async def set(self, key: str, data: Json, metadata: Mapping[str, Json] | None = None) -> KVEntry:
        """Store a value, replacing any earlier one; return it as stored.

        Data and metadata are replaced whole: without `metadata` the entry has none afterwards. `created_at` stays.
        """
        return await self._store("any", key, data, metadata, None)

    async def compare_and_set(
        self, key: str, data: Json, *, expect: str | None, metadata: Mapping[str, Json] | None = None
    ) -> KVEntry:
        """Store a value if the key is still at the revision `expect`, or, for None, if there is no such key.

        Otherwise nothing is stored and `ConflictError` is raised: read the value and decide again.
        """
        if expect is None:
            return await self._store("new", key, data, metadata, None)
        expect = validation.validate_text(expect, "expect", limit=validation.NAME_CHARS)
        return await self._store("known", key, data, metadata, expect)

    async def delete(self, key: str) -> bool:
        """Remove a key; return whether it was there."""
        return await self._delete(validation.validate_key(key))

    async def list(self, prefix: str = "", *, after: str | None = None, limit: int = 100) -> KVPage:
        """Return a page of the entries whose keys begin with `prefix`, in the order of code points.

        `after` is the `next_after` of the page before, or any key; `limit` is up to 500.
        """
        valid_prefix = validation.validate_text(prefix, "prefix", limit=4 * validation.KEY_CHARS)
        last_key = (
            "" if after is None else validation.validate_text(after, "after", limit=4 * validation.KEY_CHARS)
        )
        page_size = validation.validate_integer(limit, "limit", minimum=1, maximum=validation.PAGE)
        rows = await self._list(valid_prefix, last_key, page_size + 1)
        entries = tuple([_entry_from_row(*row) for row in rows[:page_size]])
        return KVPage(entries=entries, next_after=entries[-1].key if len(rows) > page_size else None)

    async def _store(
        self, mode: PutMode, key: str, data: Json, metadata: Mapping[str, Json] | None, expect: str | None
    ) -> KVEntry:
        """Write an entry; `ConflictError` if the mode requires a new key or a revision that the key does not have."""
        validation.validate_key(key)
        text = validation.serialize_document(data)
        labels = validation.validate_metadata(metadata)
        values = {
            "key": key,
            "data": text,
            "metadata": dump(labels) if labels else None,
            "now": to_microseconds(self._clock()),
            # 80 random bits, not a counter: a counter would come to the same revision again after a delete, or with a
            # restored backup, and `compare_and_set` would take the new value for the one that its caller read.
            "revision": draw_token(self._entropy, 16),
            "expect": expect,
        }
        times = await self._put(mode, values)
        if times is None:
            raise ConflictError(
                f"{key!r} exists already" if expect is None else f"{key!r} was changed or deleted meanwhile",
                options=("get it and decide again", "acms.kv.update_entry does so for you"),
            )
        return _entry_from_row(key, text, values["metadata"], *times, values["revision"])

    @abstractmethod
    async def _get(self, key: str) -> tuple[Any, Any, Any, Any, Any] | None:
        """Return data, metadata, created_at, updated_at and revision."""

    @abstractmethod
    async def _put(self, mode: PutMode, values: Mapping[str, Any]) -> tuple[Any, Any] | None:
        """Store in one atomic step; return created_at and updated_at, None when it is not as expected."""

    @abstractmethod
    async def _delete(self, key: str) -> bool:
        """Remove a row."""

    @abstractmethod
    async def _list(self, prefix: str, after: str, limit: int) -> Sequence[Row]:
        """Return the first rows with a prefix behind a key, ascending."""

    @abstractmethod
    async def aclose(self) -> None:
        """Release everything; idempotent. A later call opens the store again."""


def upper_bound_of_prefix(prefix: str) -> str | None:
    """Return the least text above all that begin with a prefix, by code points; None when there is none."""
    for index in range(len(prefix) - 1, -1, -1):
        code = ord(prefix[index]) + 1
        if code <= sys.maxunicode:  # else this character has no successor: increment the one before it
            return prefix[:index] + chr(0xE000 if code == 0xD800 else code)  # no text has a surrogate
    return None


def _entry_from_row(
    key: str, data: Any, metadata: Any, created_at: Any, updated_at: Any, revision: Any
) -> KVEntry:
    """Build an entry from its columns; `CorruptRecordError` if they are not valid."""
    try:
        if type(data) is not str or type(revision) is not str:
            raise TypeError("a column has the wrong type")
        return KVEntry(
            key=key,
            data=json.loads(data),
            metadata=load_mapping(metadata),
            created_at=from_microseconds(created_at),
            updated_at=from_microseconds(updated_at),
            revision=revision,
        )
    except (TypeError, ValueError, OverflowError, RecursionError, CorruptRecordError) as error:
        raise CorruptRecordError(
            f"the value of {key!r} cannot be read: {error}", options=("delete it and set it again",)
        ) from error


class InMemoryKV(BaseKV):
    """Key-value memory in this process, for tests and data that need not survive.

    Any thread and any event loop may use it.
    """

    def __init__(self, *, clock: Clock = utc_now, entropy: Entropy = os.urandom) -> None:
        self._clock = clock
        self._entropy = entropy
        self._rows: dict[str, tuple[str, str | None, int, int, str]] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self._rows)} keys)"

    async def _get(self, key: str) -> tuple[Any, Any, Any, Any, Any] | None:
        return self._rows.get(key)

    async def _put(self, mode: PutMode, values: Mapping[str, Any]) -> tuple[int, int] | None:
        """Write an entry; return its times, or None if the mode does not allow it."""
        with self._lock:
            previous = self._rows.get(values["key"])
            if mode == "new" and previous is not None:
                return None
            if mode == "known" and (previous is None or previous[4] != values["expect"]):
                return None
            created_at = values["now"] if previous is None else previous[2]
            # The clock may have been set back: an update must not lie before the previous one.
            updated_at = values["now"] if previous is None else max(previous[3], values["now"])
            self._rows[values["key"]] = (
                values["data"], values["metadata"], created_at, updated_at, values["revision"],
            )  # fmt: skip
        return created_at, updated_at

    async def _delete(self, key: str) -> bool:
        return self._rows.pop(key, None) is not None

    async def _list(self, prefix: str, after: str, limit: int) -> Sequence[Row]:
        with self._lock:
            keys = nsmallest(limit, (key for key in self._rows if key > after and key.startswith(prefix)))
            return [(key, *self._rows[key]) for key in keys]

    async def aclose(self) -> None:
        """Do nothing: stored values live as long as the object."""
