"""A store that checks every entry it reads against its digest, so that no damaged text reaches a model unnoticed.

Disks and copies may flip bytes that the database does not notice. The check costs about 3 µs for a short message and is
made once for an entry that is cached. `acms verify` reads without it, to list every damage.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from acms.errors import CorruptRecordError
from acms.log.encoding import find_content_problem
from acms.model import Entry
from acms.storage.wrapper import WrapperStorage


class CheckedStorage(WrapperStorage):
    """Raises `CorruptRecordError` for entries whose content does not match their digest."""

    async def read(self, context: str, **options: Any) -> list[Entry]:
        """Read entries of a log; see `StorageBackend.read`."""
        entries = await self.inner.read(context, **options)
        _check_entries(entries)
        return entries

    async def get(self, ids: Sequence[str]) -> list[Entry | None]:
        """Return entries by id; see `StorageBackend.get`."""
        entries = await self.inner.get(ids)
        _check_entries([entry for entry in entries if entry is not None])
        return entries


def _check_entries(entries: Iterable[Entry]) -> None:
    for entry in entries:
        problem = find_content_problem(entry)
        if problem is not None:
            raise CorruptRecordError(
                f"entry {entry.version} of {entry.context}: {problem}",
                options=("restore the store from a backup", "acms verify lists what is damaged"),
            )
