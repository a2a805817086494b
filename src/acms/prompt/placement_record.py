"""The stored placements of a prompt: a record beside the log, read before a render and stored after it.

One record holds the epochs of the budgets that were used last. A budget without an epoch of its own goes on with the
newest of another one, so that a caller whose budget changes from turn to turn keeps the provider's cache.

A render never fails because of this record. One that cannot be read or stored costs the prompt its cache, and a warning
says so.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from acms.errors import ConflictError, SessionNotFoundError, StorageReadOnlyError
from acms.log.validation import RECORD_BYTES
from acms.model import Context, Json
from acms.observability.logging import log_event, safe_error
from acms.ports import HasRecords
from acms.prompt.placements import Placements

FORMAT = 3
"""Version of the record's format; one of another version counts as none."""

BUDGETS = 4
"""Budgets whose epochs are kept: an application rarely uses more at a time for one conversation."""

ROOM = RECORD_BYTES - 1024
"""Bytes that the epochs of a record may take together."""

Epochs = dict[int, str]
"""Packed placements by budget, the ones stored last first."""


class PlacementRecord:
    """Reads and stores the placements of one prompt of one log."""

    def __init__(self, storage: HasRecords, name: str, budget: int) -> None:
        self._storage = storage
        self._name = name
        self._budget = budget
        #: Revision that was read; 0 if this log has no record of its own, None if it could not be read.
        self._rev: int | None = None
        self._epochs: Epochs = {}
        #: The placement for the budget in this log's own record.
        self.own: Placements | None = None
        #: Whether the loaded placement was made for another budget.
        self.borrowed = False
        #: Warnings about failed reads and writes.
        self.warnings: list[str] = []

    async def load(self, context: Context) -> Placements | None:
        """Return the placement of a log, or the part a fork takes over from the nearest ancestor that has one.

        It is the one for the budget; if there is none, the one that was stored last for another budget.
        """
        self._rev, self._epochs, self.own, self.borrowed, self.warnings = None, {}, None, False, []
        try:
            return await self._load(context)
        except Exception as error:
            log_event(logging.WARNING, "placement_not_read", context=context.id, error=safe_error(error))
            self.warnings.append(
                "this request of the prompt and the next one lose the provider's cache: the record of where "
                f"earlier ones show what was recalled could not be read ({safe_error(error)})"
            )
            return None

    async def _load(self, context: Context) -> Placements | None:
        record = await self._storage.record(context.id, self._name)
        self._rev = 0 if record is None else record.rev
        if record is not None:
            self._epochs = read_epochs(record.data)
            found = self._choose(self._epochs)
            self.own = None if self.borrowed else found
            return found
        for owner, fork in reversed(context.lineage):
            if owner == context.id:
                continue
            try:
                record = await self._storage.record(owner, self._name)
            except SessionNotFoundError:  # the parent was deleted
                continue
            if record is not None:
                inherited = self._choose(read_epochs(record.data))
                return None if inherited is None else inherited.inherited(fork)
        return None

    def _choose(self, epochs: Epochs) -> Placements | None:
        """Return the epoch of the budget, else the one that was stored last."""
        if not epochs:
            return None
        self.borrowed = self._budget not in epochs
        budget = next(iter(epochs)) if self.borrowed else self._budget
        return Placements.unpack(epochs[budget])

    async def store(self, context: str, placed: Placements, *, replaces: bool) -> bool:
        """Store a placement; return False if another render stored one since this one was read.

        `replaces` says that a new epoch began: the stored one is finished, and is dropped if its successor cannot be
        stored.
        """
        if self._rev is None:
            return True
        others = {budget: packed for budget, packed in self._epochs.items() if budget != self._budget}
        try:
            data = write_epochs({self._budget: placed.pack(), **others})
            await self._storage.put_record(context, self._name, data, rev=self._rev)
        except ConflictError:
            return False
        except StorageReadOnlyError:  # as with a view
            return True
        except Exception as error:
            log_event(logging.WARNING, "placement_not_stored", context=context, error=safe_error(error))
            self.warnings.append(
                "the next request of this prompt loses the provider's cache: the record of where this one shows what "
                f"was recalled could not be stored ({safe_error(error)})"
            )
            if replaces and self._rev:
                data = write_epochs(others) if others else {}
                with suppress(Exception):
                    await self._storage.put_record(context, self._name, data, rev=self._rev)
        return True


def read_epochs(record: Mapping[str, Any]) -> Epochs:
    """Read the data of a record; one of another format has no epochs, which costs the cache and nothing else."""
    if record.get("format") != FORMAT:
        return {}
    return dict(record["epochs"])


def write_epochs(epochs: Epochs) -> dict[str, Json]:
    """Write the data of a record: the first epoch, and as many of the others as there is room for."""
    kept: list[list[Json]] = []
    size = 0
    for budget, packed in epochs.items():
        size += len(json.dumps([budget, packed])) + 1
        if kept and (size > ROOM or len(kept) == BUDGETS):
            break
        kept.append([budget, packed])
    return {"format": FORMAT, "epochs": kept}
