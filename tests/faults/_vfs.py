"""Two file systems between SQLite and the disk: one that writes everything down, one that fails when told to.

Both become the default of the process while they exist, so the store under test needs no hook: it opens its connections
as it always does. The shared memory beside a WAL file passes through untouched; a power cut loses it, as it should.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import apsw

SECTOR = 512
#: (what, file name, offset or size, bytes); "ack" and "start" are put in by the tests
Event = tuple[str, str, int, bytes]


class _Default(apsw.VFS):
    """Registers itself as the default, under a fresh name, until it is closed."""

    _count = 0

    def __init__(self) -> None:
        _Default._count += 1
        self.label = f"faults-{_Default._count}"
        super().__init__(self.label, "unix", makedefault=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        self.unregister()  # the one registered before, SQLite's own, becomes the default again

    def excepthook(self, *_error: object) -> None:
        """Say nothing: the failures are meant."""


def _file_name(path: str | apsw.URIFilename | None) -> str:
    text = path.filename() if isinstance(path, apsw.URIFilename) else path
    return Path(text).name if text else ""


class RecordingVFS(_Default):
    """Keeps every write, sync, truncation and deletion in the order in which they happened."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Event] = []

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        return _RecordingFile(self, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        super().xDelete(filename, syncdir)
        self.events.append(("delete", _file_name(filename), int(syncdir), b""))


class _RecordingFile(apsw.VFSFile):
    def __init__(self, vfs: RecordingVFS, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        super().__init__("unix", name, flags)
        self._events = vfs.events
        self._name = _file_name(name)

    def excepthook(self, *_error: object) -> None:
        return None

    def xWrite(self, data: bytes, offset: int) -> None:
        super().xWrite(data, offset)
        self._events.append(("write", self._name, offset, bytes(data)))

    def xSync(self, flags: int) -> None:
        super().xSync(flags)
        self._events.append(("sync", self._name, 0, b""))

    def xTruncate(self, size: int) -> None:
        super().xTruncate(size)
        self._events.append(("truncate", self._name, size, b""))


class Disk:
    """What a disk holds after some events, and what may still be only in its cache."""

    def __init__(self) -> None:
        self.safe: dict[str, bytearray] = {}
        self.pending: dict[str, list[Event]] = {}

    def replay(self, event: Event) -> None:
        """Take the next event."""
        what, name, number, _ = event
        if what in ("write", "truncate"):
            self.pending.setdefault(name, []).append(event)
        elif what == "sync":
            if name not in self.safe and name.endswith(("-wal", "-journal")):
                self._sync_folder()  # SQLite syncs the folder with the first sync of such a file
            file = self.safe.setdefault(name, bytearray())
            for change in self.pending.pop(name, []):
                _apply_event(file, change)
        elif what == "delete":
            if number:  # the folder was synced too: the file is gone for good
                self.safe.pop(name, None)
                self.pending.pop(name, None)
            else:
                self.pending.setdefault(name, []).append(event)

    def _sync_folder(self) -> None:
        for name in [name for name, changes in self.pending.items() if changes[-1][0] == "delete"]:
            self.pending.pop(name)
            self.safe.pop(name, None)

    def crash(self, rng: random.Random, folder: Path) -> None:
        """Write the disk as a power cut leaves it: any of the unsynced changes may be there, whole or torn."""
        chance = rng.choice((0.0, 0.1, 0.5, 0.9, 1.0))
        for name in sorted({*self.safe, *self.pending}):
            file: bytearray | None = bytearray(self.safe[name]) if name in self.safe else None
            for change in self.pending.get(name, []):
                what, _, offset, data = change
                if what == "write":
                    for start in range(0, len(data), SECTOR):
                        if rng.random() < chance:
                            file = bytearray() if file is None else file
                            _apply_event(file, ("write", name, offset + start, data[start : start + SECTOR]))
                elif rng.random() < chance:
                    if what == "delete":
                        file = None
                    elif file is not None:
                        _apply_event(file, change)
            if file is not None:
                (folder / name).write_bytes(file)


def _apply_event(file: bytearray, change: Event) -> None:
    what, _, offset, data = change
    if what == "write":
        if len(file) < offset:
            file.extend(bytes(offset - len(file)))
        file[offset : offset + len(data)] = data
    elif what == "truncate":
        del file[offset:]


class FaultyVFS(_Default):
    """Does something at the n-th call of some kinds: raise an error of SQLite, or end the process."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.tripped = 0
        self._lock = threading.Lock()
        self._kinds: frozenset[str] = frozenset()
        self._left = 0
        self._last = 0
        self._act: Callable[[], Any] | None = None

    def arm(self, kinds: set[str], nth: int, act: Callable[[], Any], *, times: int | None = 1) -> None:
        """Act at the n-th call from now, counted from 1, and at the next ones until it was `times` (None: always)."""
        with self._lock:
            self._kinds, self._left, self._act, self.tripped = frozenset(kinds), nth - 1, act, 0
            self._last = -1 if times is None else times

    def disarm(self) -> int:
        """Stop; return how often it acted."""
        with self._lock:
            self._act = None
            return self.tripped

    def call(self, kind: str, name: str) -> None:
        """Count a call of the code under test, and fail it when its turn has come."""
        with self._lock:
            self.calls[kind] += 1
            if self._act is None or (kind not in self._kinds and f"{kind} {name[-4:]}" not in self._kinds):
                return
            if self._left > 0:
                self._left -= 1
                return
            if self.tripped == self._last:
                return
            self.tripped += 1
            act = self._act
        act()

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        self.call("open", _file_name(name))
        return _FaultyFile(self, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        self.call("delete", _file_name(filename))
        super().xDelete(filename, syncdir)


class _FaultyFile(apsw.VFSFile):
    def __init__(self, vfs: FaultyVFS, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        super().__init__("unix", name, flags)
        self._vfs = vfs
        self._name = _file_name(name)

    def excepthook(self, *_error: object) -> None:
        return None

    def xRead(self, amount: int, offset: int) -> bytes:
        self._vfs.call("read", self._name)
        return super().xRead(amount, offset)

    def xWrite(self, data: bytes, offset: int) -> None:
        self._vfs.call("write", self._name)
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:
        self._vfs.call("sync", self._name)
        super().xSync(flags)

    def xTruncate(self, size: int) -> None:
        self._vfs.call("truncate", self._name)
        super().xTruncate(size)


def make_failure(error: type[apsw.Error], extended: int = 0) -> Callable[[], None]:
    """Return an act that raises an error of SQLite, with an extended code where one is given."""

    def act() -> None:
        found = error("injected")
        if extended:
            found.extendedresult = extended
        raise found

    return act


@contextmanager
def checkpoint_every(pages: int) -> Iterator[None]:
    """Let every connection opened meanwhile move the WAL into the file after this many pages."""

    def hook(connection: apsw.Connection) -> None:
        connection.wal_autocheckpoint(pages)

    apsw.connection_hooks.append(hook)
    try:
        yield
    finally:
        apsw.connection_hooks.remove(hook)
