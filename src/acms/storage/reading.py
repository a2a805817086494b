"""What a read asks for, handed on whole from the method of a store down to its rows."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import NamedTuple

from acms.model import Entry, Kind
from acms.ports import StorageBackend


class Read(NamedTuple):
    """The keywords of `StorageBackend.read`; a tuple, since one is made for every read."""

    at: int | None = None
    after: int = 0
    before: int | None = None
    kinds: Sequence[Kind] | None = None
    replacing: bool = False
    newest: int | None = None
    limit: int | None = None
    deleted: bool = False

    def last(self, version: int) -> int:
        """Return the last version that is read of a log that stands at a version."""
        if self.at is not None:
            version = min(version, self.at)
        return version if self.before is None else min(version, self.before - 1)

    def at_most(self, count: int) -> bool:
        """Return whether no more entries than this can be found, however long the log is."""
        return (
            (self.newest is not None and self.newest <= count)
            or (self.limit is not None and self.limit <= count)
            or any(end is not None and end - self.after <= count for end in (self.before, self.at))
        )

    def cut(self, entries: list[Entry]) -> list[Entry]:
        """Return the entries of the wanted kinds, as many as are wanted of them; ascending."""
        kinds = self.kinds
        found = entries if kinds is None else [entry for entry in entries if entry.kind in kinds]
        return found[: self.limit] if self.newest is None else found[max(0, len(found) - self.newest) :]

    def of(self, storage: StorageBackend, context: str) -> Awaitable[list[Entry]]:
        """Read a log of a store."""
        return storage.read(context, **self._asdict())
