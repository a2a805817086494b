"""The stores that commands open: their URLs, the default file, and the errors about them."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Protocol, runtime_checkable
from urllib.parse import quote

import typer

from acms.errors import ConfigurationError, MissingExtraError, StorageError, ValidationError
from acms.ports import Handle
from acms.storage import open_storage
from acms.storage.files import create_folder
from acms.storage.sqlite import schema

_MEMORY = "memory:"
"""The scheme of a store in memory, which ends with the command."""


def file_url(path: Path) -> str:
    """Return the URL of a database file."""
    return f"sqlite:///{quote(path.as_posix())}"


def parse_store(text: str | None) -> str | None:
    """Return the URL of a store; the path of a database file is accepted too."""
    if text == "":
        raise typer.BadParameter("is empty. Leave it out to use the default store")
    if text is None or ":memory:" in text or text.startswith("sqlite:") or "://" in text:
        return text
    path = Path(text)
    is_named_like_database = path.suffix.lower() in (".db", ".sqlite", ".sqlite3")
    is_other_file = path.suffix.lower() != ".toml" and path.is_file()
    if is_named_like_database or is_other_file:
        return file_url(path)
    is_shard_file = text.partition("?")[0].endswith(".toml")
    if not is_shard_file and not path.is_dir():
        raise typer.BadParameter(f"{text!r} is not the URL of a store, and not a file such as notes.db")
    return text


def data_file() -> Path:
    """Return the default database: a file in the user's data folder."""
    if sys.platform == "win32":
        folder = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        folder = Path.home() / "Library" / "Application Support"
    else:
        folder = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return folder / "acms" / "acms.db"


@runtime_checkable
class FileStore(Protocol):
    """A store in a file."""

    path: Path
    tenant: str


@asynccontextmanager
async def open_store(
    db: str | None, *, write: bool = False, lasting: bool = True, field: str = "db"
) -> AsyncGenerator[Handle]:
    """Open the store; only a command that writes creates one.

    With `lasting`, a store in memory is refused. `field` names the argument in errors about the URL.
    """
    if lasting:
        check_store_lasts(db, field)
    with refuse_option(field):
        storage = open_storage(db or file_url(data_file()))
    if isinstance(storage, FileStore):
        prepare_database_file(storage.path, write, "acms add SESSION user TEXT", is_named=db is not None)
    try:
        async with storage:
            yield storage
    finally:
        await storage.aclose()  # also closes sessions that are still open


def prepare_database_file(file: Path, write: bool, hint: str, *, is_named: bool) -> None:
    """Refuse to read a missing or blank database file; create the folder of the default file before a write."""
    if not write:
        options = (hint, "name another with --db")
        if not file.exists():
            raise StorageError(f"there is no database at {file}", options=options)
        if schema.is_blank_file(file):
            problem = f"{file} holds no ACMS store: nothing was ever created in it"
            raise StorageError(problem, options=options)
    elif not is_named:
        create_folder(file.parent)


def check_store_lasts(db: str | None, field: str = "db") -> None:
    """Refuse a store in memory, which ends with the command."""
    if db is not None and db.startswith(_MEMORY):
        raise ValidationError(
            "a store in memory ends with this command, and everything in it is lost",
            field=field,
            options=("name a file, such as notes.db",),
        )


@contextmanager
def refuse_option(argument: str) -> Generator[None]:
    """Report a `ConfigurationError` inside the block as a wrong value of an option, named by its Python argument."""
    try:
        yield
    except MissingExtraError:
        raise
    except ConfigurationError as error:
        options = [option for option in error.options if not option.startswith(_MEMORY)]
        raise ValidationError(str(error), field=argument, options=options) from error
