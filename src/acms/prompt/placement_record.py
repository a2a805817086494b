"""The stored placement of a prompt: a record beside the log, read before a render and stored after it.

A render never fails because of this record. One that cannot be read or stored costs the prompt its cache, and a warning
says so.
"""

from __future__ import annotations

import logging
from contextlib import suppress

from acms.errors import ConflictError, SessionNotFoundError, StorageReadOnlyError
from acms.model import Context
from acms.observability.logging import log, safe_error
from acms.ports import HasRecords
from acms.prompt.placements import Placements


class PlacementRecord:
    """Reads and stores the placement of one prompt of one log."""

    def __init__(self, storage: HasRecords, name: str) -> None:
        self._storage = storage
        self._name = name
        #: Revision that was read; 0 if this log has no record of its own, None if it could not be read.
        self._rev: int | None = None
        #: What the record of this log itself holds.
        self.own: Placements | None = None
        #: What went wrong.
        self.warnings: list[str] = []

    async def load(self, context: Context) -> Placements | None:
        """Return the placement of a log, or what a fork takes over of the nearest ancestor that has one."""
        self._rev, self.own, self.warnings = None, None, []
        try:
            return await self._load(context)
        except Exception as error:
            log(logging.WARNING, "placement_not_read", context=context.id, error=safe_error(error))
            self.warnings.append(
                "this request of the prompt and the next one lose the provider's cache: the record of where "
                f"earlier ones show what was recalled could not be read ({safe_error(error)})"
            )
            return None

    async def _load(self, context: Context) -> Placements | None:
        record = await self._storage.record(context.id, self._name)
        self._rev = 0 if record is None else record.rev
        if record is not None:
            self.own = Placements.from_json(record.data)
            return self.own
        for owner, fork in reversed(context.lineage):
            if owner == context.id:
                continue
            try:
                record = await self._storage.record(owner, self._name)
            except SessionNotFoundError:  # the parent was deleted
                continue
            if record is not None:
                inherited = Placements.from_json(record.data)
                return None if inherited is None else inherited.inherited(fork)
        return None

    async def store(self, context: str, placed: Placements, *, replaces: bool) -> bool:
        """Store a placement; return False if another render stored one since this one was read.

        `replaces` says that a new epoch began: the stored one is finished, and is dropped if its successor cannot be
        stored.
        """
        if self._rev is None:
            return True
        try:
            await self._storage.put_record(context, self._name, placed.to_json(), rev=self._rev)
        except ConflictError:
            return False
        except StorageReadOnlyError:  # as with a view
            return True
        except Exception as error:
            log(logging.WARNING, "placement_not_stored", context=context, error=safe_error(error))
            self.warnings.append(
                "the next request of this prompt loses the provider's cache: the record of where this one shows what "
                f"was recalled could not be stored ({safe_error(error)})"
            )
            if replaces and self._rev:
                with suppress(Exception):
                    await self._storage.put_record(context, self._name, {}, rev=self._rev)
        return True
