"""Taking content out of an SQLite file: from its tables, its pages and its write-ahead log.

`secure_delete` puts zeros where content was, but the write-ahead log still holds the pages as they were. So after an
erasure the log is moved into the file and cut to nothing, on the writer's thread, before the caller is answered.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw

from acms.errors import CorruptRecordError, SessionNotFoundError, ValidationError
from acms.log.entry_json import dump, load_mapping
from acms.log.hash_chain import locate, micros
from acms.model import Entry, Head, Json, State
from acms.observability.logging import log as tell
from acms.storage import append_rules
from acms.storage.sql import VERSION_BITS, VERSION_MASK, read_entry, read_lineage
from acms.storage.sqlite.jobs import SQLiteJobs

if TYPE_CHECKING:
    from acms.storage.traces import Traces

WAIT = 1000
"""Milliseconds that emptying the write-ahead log waits for readers who still need it; writers wait meanwhile."""
AGAIN = 1.0
"""Seconds after which a commit tries again, without waiting."""
CHUNK = 4 << 20
"""Bytes of a file that are searched at once."""


class SQLiteErase(SQLiteJobs):
    """An SQLite file whose content can be taken away."""

    #: Whether the write-ahead log may hold what was erased, and when to try again; only the writer's thread looks.
    _stale = False
    _again = 0.0
    #: Whether the file is to be written anew after the next commit.
    _anew = False

    # ── finding rows ────────────────────────────────────────────────────────────────────────────────────────────────

    def _head(
        self, connection: apsw.Connection, context: str, *, deleted: bool = False
    ) -> tuple[int, Head, tuple[tuple[str, int], ...]]:
        row = self._row(connection, "head", (self.tenant, context))
        if row is None:
            raise SessionNotFoundError(f"no context has the id {context!r}")
        ref, deleted_at, lineage, version, messages, tokens, last, rewrites, derived, epoch, chain, tail = row
        if deleted_at is not None and not deleted:
            raise SessionNotFoundError(f"the context {context!r} was deleted", options=("undelete it first",))
        head = Head(
            context=context,
            version=version,
            messages=messages,
            tokens=tokens,
            last_message=last,
            rewrites=rewrites,
            derived=derived,
            epoch=epoch,
            chain=chain,
            tail=dict(load_mapping(tail)),
        )
        return ref, head, read_lineage(lineage)

    def _ref(self, connection: apsw.Connection, context: str) -> int:
        row = self._row(connection, "ref", (self.tenant, context))
        if row is None:
            raise CorruptRecordError(f"the ancestor {context} is missing")
        return int(row[0])

    def _found(self, connection: apsw.Connection, ids: Sequence[str]) -> list[Entry | None]:
        """Return entries by id, None for what does not exist."""
        places = self._places(connection, ids)
        owners = {ref: owner for owner, ref, _ in places.values()}
        rows = [ref << VERSION_BITS | version for _, ref, version in places.values()]
        entries = [
            read_entry(row, owners[row[0] >> VERSION_BITS])
            for row in self._rows(connection, "entries_at", (dump(rows),))
        ]
        found = {entry.id: entry for entry in entries}
        return [found.get(id) for id in ids]

    def _places(self, connection: apsw.Connection, ids: Sequence[str]) -> dict[str, tuple[str, int, int]]:
        """Return (owner, ref of the owner, version) of the ids that may exist."""
        located = {id: place for id in ids if (place := locate(id)) is not None}
        refs = {
            owner: int(row[0])
            for owner in {owner for owner, _ in located.values()}
            if (row := self._row(connection, "ref", (self.tenant, owner))) is not None
        }
        return {
            id: (owner, refs[owner], version)
            for id, (owner, version) in located.items()
            if owner in refs and version <= VERSION_MASK
        }

    # ── taking content away ─────────────────────────────────────────────────────────────────────────────────────────

    async def blank(
        self, context: str, versions: Sequence[int], *, to: State, audit: Mapping[str, Json]
    ) -> int:
        """Delete the content of entries for ever, in every lineage."""
        if to is State.LIVE:
            raise ValidationError("must be expired or erased", field="to")

        def work(connection: apsw.Connection) -> int:
            ref, head, lineage = self._head(connection, context, deleted=True)
            changed: list[int] = []
            for owner, low, high in append_rules.segments(context, lineage, 1, head.version):
                number = self._ref(connection, owner)
                for version in sorted({version for version in versions if low <= version <= high}):
                    row = number << VERSION_BITS | version
                    found = self._row(connection, "entries_at", (dump([row]),))
                    if found is None:
                        continue
                    entry = read_entry(found, owner)
                    if entry.state is to or entry.state is State.ERASED:
                        continue
                    connection.execute(self._sql["blank_entry"], (to.value, row)).fetchall()
                    if to is State.ERASED:
                        if entry.key is not None:
                            connection.execute(self._sql["forget_key"], (number, entry.key)).fetchall()
                        connection.execute(self._sql["forget_derived"], (number, version)).fetchall()
                        connection.execute(
                            self._sql["forget_payload"], (self.tenant, ref, entry.id)
                        ).fetchall()
                    changed.append(version)
            if changed:
                connection.execute(self._sql["count_rewrite"], (ref,)).fetchall()
                connection.execute(self._sql["raise_epoch"], (ref,)).fetchall()
                detail = dump(dict(audit)) if audit else None
                values = (self.tenant, context, to.value, dump(changed), detail, micros(self._clock()))
                connection.execute(self._sql["insert_audit"], values).fetchall()
                self._stale = self._stale or to is State.ERASED
            return len(changed)

        return await self._write(work)

    def _committed(self, writer: apsw.Connection) -> None:
        if self._anew:
            self._anew, self._stale = False, True
            try:
                writer.execute("VACUUM").fetchall()
            except apsw.Error as error:
                tell(logging.WARNING, "vacuum_failed", error=type(error).__name__)
        if self._stale and time.monotonic() >= self._again:
            self._empty_wal(writer)

    def _empty_wal(self, writer: apsw.Connection) -> None:
        """Move the write-ahead log into the file and cut it to nothing, unless a reader still needs it."""
        first = self._again == 0.0
        writer.set_busy_timeout(min(self._busy, WAIT) if first else 0)
        try:
            busy = writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()[0][0]
        except apsw.Error:
            busy = True
        finally:
            writer.set_busy_timeout(self._busy)
        if not busy:
            self._stale, self._again = False, 0.0
            return
        self._again = time.monotonic() + AGAIN
        if first:
            tell(logging.WARNING, "wal_not_emptied", file=self.path.name)

    # ── proving it ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def residue(self, ids: Sequence[str], texts: Sequence[bytes]) -> list[str]:
        """Return what the file still holds of erased entries, in words without their content.

        Keys and derived rows of the ids; and the texts, in every byte of the file and its write-ahead
        log. A text that something else still says, of whatever tenant, is no residue; one of less than eight bytes is
        not looked for. When one is found the file is written anew, once, and searched again.
        """
        from acms.storage.traces import Traces  # numpy is loaded when something is looked for

        found = await self._read(lambda connection: self._left(connection, ids), large=True)
        traces = Traces(texts)
        if not traces:
            return found
        if not self.read_only:
            await self._clean(anew=False)
        places = await self._read(lambda connection: self._traced(connection, traces), large=True)
        if places and not self.read_only:
            await self._clean(anew=True)
            places = await self._read(lambda connection: self._traced(connection, traces), large=True)
        return [*found, *places]

    async def _clean(self, *, anew: bool) -> None:
        """Let the writer empty the write-ahead log, after writing the whole file anew if asked to."""

        def work(_connection: apsw.Connection) -> None:
            self._stale, self._again, self._anew = True, 0.0, anew

        await self._write(work)

    def _left(self, connection: apsw.Connection, ids: Sequence[str]) -> list[str]:
        owned: dict[tuple[str, int], dict[int, str]] = {}
        for id, (owner, ref, version) in self._places(connection, ids).items():
            owned.setdefault((owner, ref), {})[version] = id
        found: list[str] = []
        for (owner, ref), versions in owned.items():
            values = (ref, dump(list(versions)))
            for what, query in (("keys", "left_keys"), ("derived rows", "left_derived")):
                count = self._rows(connection, query, values)[0][0]
                if count:
                    found.append(f"{owner}: {count} {what}")
        return found

    def _traced(self, connection: apsw.Connection, traces: Traces) -> list[str]:
        """Return where texts were found that nothing in the file says any more."""
        places: dict[bytes, str] = {}
        for file in (self.path, self.path.with_name(self.path.name + "-wal")):
            overlap, start = b"", 0
            for data in _bytes_of(file, raw=file is not self.path):
                for piece, place in traces.find(overlap + data).items():
                    places.setdefault(piece, f"{file.name}: at byte {start - len(overlap) + place}")
                start += len(data)
                overlap = (overlap + data)[1 - traces.longest :]
        if places:
            for said in self._said(connection):
                for piece in traces.find(said):
                    places.pop(piece, None)
        return list(places.values())

    def _said(self, connection: apsw.Connection) -> Iterator[bytes]:
        """Yield what the file says, many rows at once."""
        waiting: list[bytes] = []
        size = 0
        for (said,) in connection.execute(self._sql["said"]):
            waiting.append(said.encode())
            size += len(waiting[-1])
            if size >= CHUNK:
                yield b"\n".join(waiting)
                waiting, size = [], 0
        yield b"\n".join(waiting)


def _bytes_of(file: Path, *, raw: bool) -> Iterator[bytes]:
    """Yield the bytes of a file; of a database by SQLite: closing it otherwise would drop the locks of this process."""
    if raw:
        try:
            with file.open("rb") as opened:
                while data := opened.read(CHUNK):
                    yield data
        except FileNotFoundError:
            return
        return
    flags: list[Any] = [apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_READONLY, 0]
    database = apsw.VFSFile("", str(file), flags)
    try:
        size = database.xFileSize()
        for start in range(0, size, CHUNK):
            yield database.xRead(min(CHUNK, size - start), start)
    finally:
        database.xClose()
