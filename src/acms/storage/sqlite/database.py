"""The common parts of a SQLite database in a file and one in memory: connections, transactions, translated errors."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, TypeAlias, TypeVar

import apsw

from acms.errors import (
    ACMSError,
    ConflictError,
    CorruptRecordError,
    StorageBusyError,
    StorageError,
    StorageFullError,
    StorageReadOnlyError,
)
from acms.storage import append_rules
from acms.storage.sessions import json_contains

T = TypeVar("T")
Function: TypeAlias = Callable[[apsw.Connection], Any]

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_ACCESS_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)


class ErrorTranslation:
    """Translate the errors of SQLite inside a block into ours; `name` identifies the database."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        return None

    def __exit__(self, _type: object, error: BaseException | None, _trace: object) -> None:
        if error is None:
            return
        if isinstance(error, UnicodeDecodeError):  # bytes that are no text, in a row not written by ACMS
            raise CorruptRecordError(f"{self.name}: {error}", options=("acms verify",)) from error
        if isinstance(error, UnicodeEncodeError | OverflowError):  # a value that no stored row can have
            raise append_rules.wrap_unexpected_error(error) from error
        if isinstance(error, ACMSError) or not isinstance(error, apsw.Error | OSError):
            return
        raise self._translate(error) from error

    def _translate(self, error: apsw.Error | OSError) -> StorageError:
        """Return the ACMS error for an error of SQLite or of the operating system."""
        text = f"{self.name}: {error}"
        number = error.errno if isinstance(error, OSError) else None
        if isinstance(error, apsw.FullError) or number in _DISK_FULL:
            return StorageFullError(
                f"{text}; nothing of this commit was written",
                options=("free some space and repeat the call",),
            )
        if isinstance(error, apsw.BusyError | apsw.LockedError):
            busy = StorageBusyError(f"{text}; nothing was written", options=("repeat the call",))
            busy.waited = True
            return busy
        # A file that ends too early is damaged, not unreadable.
        too_short = getattr(error, "extendedresult", 0) == apsw.SQLITE_IOERR_SHORT_READ
        if too_short or isinstance(error, apsw.CorruptError | apsw.NotADBError):
            options = ("restore the file from a backup", "acms verify lists what is damaged")
            return CorruptRecordError(text, options=options)
        denied = isinstance(error, apsw.ReadOnlyError | apsw.PermissionsError | apsw.CantOpenError)
        if denied or number in _ACCESS_DENIED:
            return StorageReadOnlyError(
                text, options=("check the permissions of the folder", "open it with ?mode=ro")
            )
        return StorageError(text)


def open_connection(file: str, flags: int) -> apsw.Connection:
    """Open a database and plan each query once: with sampled statistics, SQLite replans joins for every value."""
    connection = apsw.Connection(file, flags=flags)
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, True)
    connection.create_scalar_function("holds", _settings_contain, 2, deterministic=True)
    return connection


@lru_cache(maxsize=16)
def _parse_wanted(text: str) -> Any:
    return json.loads(text)


def _settings_contain(*arguments: Any) -> bool:
    """Return whether the settings of a context contain all wanted values."""
    settings, wanted = arguments
    return settings is not None and json_contains(json.loads(settings), _parse_wanted(wanted))


def _no_batch(_connection: apsw.Connection, _functions: Sequence[Function], _start: int) -> Sequence[Any]:
    return ()


def _do_nothing(*_: object) -> None:
    return None


@dataclass(slots=True)
class CommitHooks:
    """Hooks around the functions of a commit, called on the thread that writes."""

    #: Run a batch of the functions from an index on and return their results in order; none if none can be batched.
    run_batch: Callable[[apsw.Connection, Sequence[Function], int], Sequence[Any]] = _no_batch
    #: Called before the transaction is committed; an error undoes it.
    before_commit: Callable[[], object] = _do_nothing
    #: Clear the caches after a transaction was rolled back, in part or whole.
    after_rollback: Callable[[], object] = _do_nothing
    #: Do what must not be done inside a transaction, before the callers are answered.
    after_commit: Callable[[apsw.Connection], object] = _do_nothing


class Database(Protocol):
    """A SQLite database whose functions get a connection."""

    hooks: CommitHooks

    async def read(self, function: Callable[[apsw.Connection], T], *, large: bool = False) -> T:
        """Run a function that only reads; a `large` one may take long."""
        ...

    async def write(self, function: Callable[[apsw.Connection], T]) -> T:
        """Run a function in the next commit."""
        ...

    async def write_all(self, functions: Sequence[Function]) -> list[Any]:
        """Run functions in one transaction, each undone on its own when it fails; return results and errors."""
        ...

    async def defer(self, function: Function) -> None:
        """Run a function in the next commit, or soon, without waiting for it."""
        ...


def run_transaction(
    writer: apsw.Connection, functions: Sequence[Function], hooks: CommitHooks, errors: ErrorTranslation
) -> list[Any]:
    """Run functions in one transaction; return a result or an `ACMSError` for each.

    Raises an `ACMSError` when the whole transaction failed.
    """
    single = len(functions) == 1
    results: list[Any] = []
    try:
        with errors:
            writer.execute("BEGIN IMMEDIATE")
            try:
                while len(results) < len(functions):
                    # Several simple appends are written at once; an empty result means that the next function
                    # runs by itself.
                    batch = () if single else hooks.run_batch(writer, functions, len(results))
                    if batch:
                        results.extend(batch)
                    else:
                        results.append(run_undoable(writer, functions[len(results)], hooks, single=single))
                hooks.before_commit()
                writer.execute("COMMIT")
            except BaseException:
                hooks.after_rollback()
                if writer.in_transaction:
                    writer.execute("ROLLBACK").fetchall()
                raise
    except ACMSError:
        raise
    except Exception as error:
        raise append_rules.wrap_unexpected_error(error) from error
    return results


def run_undoable(writer: apsw.Connection, function: Function, hooks: CommitHooks, *, single: bool) -> Any:
    """Run one function of a transaction; if it is refused, roll back only its own changes and return the error.

    A `single` function needs no savepoint: the whole transaction is rolled back and begun again.
    """
    if not single:
        writer.execute("SAVEPOINT op")
    try:
        result = function(writer)
    except ACMSError as error:
        result = error
    except apsw.ConstraintError as error:
        result = ConflictError(f"another writer was first: {error}")
        result.__cause__ = error
    except apsw.Error:  # of the medium: it spoils the whole commit
        raise
    except Exception as error:  # caused by the caller's values: the other functions must not fail with it
        result = append_rules.wrap_unexpected_error(error)
    if isinstance(result, ACMSError):
        hooks.after_rollback()
        if single:
            writer.execute("ROLLBACK").fetchall()
            writer.execute("BEGIN").fetchall()
        else:
            writer.execute("ROLLBACK TO op").fetchall()
    if not single:
        writer.execute("RELEASE op").fetchall()
    return result
