"""The stored cache windows of a prompt: a record beside the log, read before a render and stored after it.

One record holds the windows of the budgets that were used last. A budget without a window of its own continues the
newest of another one, so that a caller whose budget changes from turn to turn keeps the provider's cache.

A render never fails because of this record. If it cannot be read or stored, the prompt loses its cache, and a warning
says so.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Any

from acms.errors import ConflictError, SessionNotFoundError, StorageReadOnlyError
from acms.log.policy import PRIVATE
from acms.log.read import replacements_at, valid_times_at
from acms.log.validation import RECORD_BYTES, UNNAMED
from acms.log.validity import Period
from acms.model import Context, Entry, Json, Kind, State
from acms.observability.logging import log_event, safe_error
from acms.ports import Codec, HasRecords, StorageBackend
from acms.prompt.excerpts import find_own_logs
from acms.prompt.history import cache_window
from acms.prompt.history.cache_window import CacheWindow
from acms.prompt.manifest import canonical
from acms.prompt.steps import Log, Readable, RecallStep

FORMAT = 3
"""Version of the record's format; a record of another version is ignored."""

Windows = dict[int, str]
"""Packed windows by budget, the ones stored last first."""


def name_record(codec: Codec, history_name: str, log: Log, recall: RecallStep | None) -> str:
    """Return a hash of the properties shared by prompts whose recalls have the same positions."""
    shape: list[Json] = [codec.name, codec.model, history_name]
    if recall is not None:
        options = recall.options
        where = json.dumps(options["where"], default=str, sort_keys=True)
        shape += [recall.tokens, log.session.effort, options["scope"], options["min_relevance"]]
        if options["where"] or options["limit"]:
            shape += [where, options["limit"]]
    shape += [*log.first, str(log.session.redactor.mode or "")]
    return sha256(canonical(shape).encode("utf-8", "surrogatepass")).hexdigest()[:32]


class WindowRecord:
    """Reads and stores the cache windows of one prompt of one log."""

    def __init__(self, storage: HasRecords, name: str, budget: int) -> None:
        self._storage = storage
        self._name = name
        #: The budget of the render.
        self.budget = budget
        #: Revision that was read; 0 if this log has no record of its own, None if it could not be read.
        self._revision: int | None = None
        self._windows: Windows = {}
        #: The window for the budget in this log's own record.
        self.own_window: CacheWindow | None = None
        #: The budget that the loaded window was made for.
        self.made_for = budget
        #: Warnings about failed reads and writes.
        self.warnings: list[str] = []

    async def load(self, context: Context) -> CacheWindow | None:
        """Return the window of a log, or the part a fork inherits from the nearest ancestor that has one.

        It is the one for the budget; if there is none, the one that was stored last for another budget.
        """
        try:
            return await self._load(context)
        except Exception as error:
            log_event(logging.WARNING, "placement_not_read", context=context.id, error=safe_error(error))
            self.warnings.append(
                "this request and the next one miss the provider's cache: "
                f"the positions of recalled messages could not be read ({safe_error(error)})"
            )
            return None

    async def _load(self, context: Context) -> CacheWindow | None:
        """Read this log's own record, else that of the nearest ancestor, and return the window to continue."""
        record = await self._storage.record(context.id, self._name)
        if record is not None:
            self._revision = record.rev
            self._windows = read_windows(record.data)
            window = self._choose(self._windows)
            self.own_window = window if self.made_for == self.budget else None
            return window
        self._revision = 0
        for ancestor, fork in reversed(context.lineage):
            if ancestor == context.id:  # its own record was looked for above
                continue
            try:
                record = await self._storage.record(ancestor, self._name)
            except SessionNotFoundError:  # the parent was deleted
                continue
            if record is not None:
                window = self._choose(read_windows(record.data))
                return None if window is None else window.inherit(fork)
        return None

    def _choose(self, windows: Windows) -> CacheWindow | None:
        """Return the window of the budget, else the one that was stored last; None if none is stored."""
        if not windows:
            return None
        self.made_for = self.budget if self.budget in windows else next(iter(windows))
        return CacheWindow.unpack(windows[self.made_for])

    async def store(self, context: str, window: CacheWindow, *, replaces: bool) -> bool:
        """Store a window; return False if another render stored one since this one was read.

        `replaces` says that a new window began: the stored one is finished, and is dropped if its successor cannot be
        stored.
        """
        if self._revision is None:  # the record could not be read, so it is not overwritten
            return True
        other_windows = {
            budget: packed_window for budget, packed_window in self._windows.items() if budget != self.budget
        }
        try:
            data = write_windows({self.budget: window.pack(), **other_windows})
            await self._storage.put_record(context, self._name, data, rev=self._revision)
        except ConflictError:
            return False
        except StorageReadOnlyError:  # nothing can be stored, as with a view, and trying again would not help
            return True
        except Exception as error:
            log_event(logging.WARNING, "placement_not_stored", context=context, error=safe_error(error))
            self.warnings.append(
                "the next request misses the provider's cache: "
                f"the positions of recalled messages could not be stored ({safe_error(error)})"
            )
            # The stored window must not be continued: this request did not show it.
            if replaces and self._revision:
                data = write_windows(other_windows) if other_windows else {}
                with suppress(Exception):
                    await self._storage.put_record(context, self._name, data, rev=self._revision)
        return True


def read_windows(record: Mapping[str, Any]) -> Windows:
    """Parse the data of a record; one of another format has no windows, which only costs the cache."""
    if record.get("format") != FORMAT:
        return {}
    return dict(record["epochs"])


def write_windows(windows: Windows) -> dict[str, Json]:
    """Serialize the first window, and up to three others, as far as they fit into a record."""
    rows: list[list[Json]] = []
    bytes_left = RECORD_BYTES - 1024  # the rest is for the frame of the record
    for budget, packed_window in windows.items():
        bytes_left -= len(json.dumps([budget, packed_window])) + 1
        if rows and (bytes_left < 0 or len(rows) == 4):
            break
        rows.append([budget, packed_window])
    return {"format": FORMAT, "epochs": rows}


# ── whether a window can go on ──────────────────────────────────────────────────────────────────────────────────────


async def load_window_entries(
    session: Readable, window: CacheWindow, context: Context
) -> dict[str, Entry] | None:
    """Return the entries that a window shows, redacted, by id; None if the window can no longer be continued.

    That is the case if an entry it shows was erased, replaced or retracted, or has another label now.
    """
    storage = session.storage
    head = await storage.head(context.id)
    if head.epoch != window.generation:
        return None
    rows = await storage.get(window.ids) if window.ids else []
    live = [row for row in rows if row is not None and row.state is State.LIVE]
    if len(live) < len(rows):
        return None
    own_logs = find_own_logs(context)
    foreign_ids = cache_window.group_foreign_ids(window, own_logs)
    own_rows = [row for row in live if row.context in own_logs]
    log_replacements = await replacements_at(storage, context.id, head, head.version)
    recall_replacements = await replacements_at(storage, context.id, head, head.version, searchable=True)
    if not cache_window.is_window_valid(window, log_replacements, recall_replacements, own_rows):
        return None
    if not await _are_foreign_entries_valid(storage, foreign_ids):
        return None
    entries = {entry.id: entry for entry in session.redactor.redact_entries(live)}
    labels_are_current = await _are_labels_current(session, window, context, foreign_ids, live, entries)
    return entries if labels_are_current else None


async def _are_foreign_entries_valid(
    storage: StorageBackend, ids_by_log: Mapping[str, Sequence[str]]
) -> bool:
    """Return whether the entries shown of other logs are active there and may still be shown outside of them."""
    for owner, ids in ids_by_log.items():
        try:
            context, head = await storage.context(owner), await storage.head(owner)
        except SessionNotFoundError:
            return False
        if context.settings.get(PRIVATE) or context.namespace == UNNAMED:
            return False  # no other session may show a private log, or one without a namespace
        replacements = await replacements_at(storage, owner, head, head.version)
        for row in await storage.get(ids):
            if row is None or replacements.replaced_by(row.version) is not None:
                return False
    return True


async def _are_labels_current(
    session: Readable,
    window: CacheWindow,
    context: Context,
    foreign_ids: Mapping[str, Sequence[str]],
    rows: Sequence[Entry],
    entries: Mapping[str, Entry],
) -> bool:
    """Return whether no fact that is shown has ended by now, and every doubtful entry carries its label."""
    storage = session.storage
    rows_by_log: dict[str, list[Entry]] = {}
    for row in rows:
        owner = row.context if row.context in foreign_ids else context.id
        rows_by_log.setdefault(owner, []).append(row)
    heads = [await storage.head(owner) for owner in rows_by_log]
    heads = [head for head in heads if head.version > head.messages]
    if not heads:  # there are no facts
        return True
    labels = (await session.read_span(messages=1)).labels
    texts = cache_window.collect_visible_texts((), window.blocks, entries)
    for head in heads:
        owner = head.context
        rows_of_log = rows_by_log[owner]
        periods = labels.times
        if owner != context.id:
            periods = await valid_times_at(storage, owner, head, head.version)
        for row in rows_of_log:
            period = periods.get(row.version)
            if period is None and row.kind is not Kind.FACT:
                period = Period()
            text, entry = texts.get(row.id), entries[row.id]
            if period is None or not cache_window.is_label_current(text, period, entry, labels.moment):
                return False
    return True
