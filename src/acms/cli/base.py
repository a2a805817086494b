"""What all commands share: the application, its common options, opening a store, leaving with an exit code."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, runtime_checkable
from urllib.parse import quote

import typer

from acms.branches import forks
from acms.cli import render
from acms.config import ACMSConfig
from acms.errors import ACMSError, SessionNotFoundError, StorageError
from acms.model import Context, ContextQuery
from acms.observability.events import Event
from acms.ports import Embedder, Handle, Reflector, StorageBackend
from acms.providers import registry
from acms.providers.tokens import token_counter
from acms.session import ACMS
from acms.storage import open_storage
from acms.storage.files import create_folder
from acms.view import View

app = typer.Typer(
    help="ACMS: keep every message of an agent, and decide what the model sees.",
    epilog="Start with:  acms demo",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    no_args_is_help=True,
)

Db = Annotated[
    str | None,
    typer.Option(
        "--db", envvar="ACMS_DB", metavar="URL", help="The store; default: a file in your data folder."
    ),
]
Namespace = Annotated[
    str, typer.Option("--namespace", metavar="NAME", help="The group of sessions to look in.")
]
Unused = Annotated[str, typer.Option("--namespace", hidden=True)]
AsJson = Annotated[bool, typer.Option("--json", help="Write one JSON object.")]
Session = Annotated[str, typer.Argument(metavar="SESSION", help="Name of the session, or its id.")]
Query = Annotated[str, typer.Argument(metavar="QUERY", help="What to look for, in words.")]
Budget = Annotated[int | None, typer.Option("--budget", min=0, metavar="N", help="Tokens that may be used.")]
Needed = Annotated[int, typer.Option("--budget", min=0, metavar="N", help="Tokens that may be used.")]


def point(text: str) -> int | str:
    """Return a version, or the name of one."""
    return int(text) if text.isdecimal() else text


def _no_negative(at: str | None) -> str | None:
    if at is not None and at.startswith("-") and at[1:].isdecimal():
        raise typer.BadParameter(f"{at} is not a version")
    return at


At = Annotated[
    str | None,
    typer.Option(
        "--at", metavar="VERSION|TAG", callback=_no_negative, help="As it was at this version, or tag."
    ),
]
Full = Annotated[bool, typer.Option("--full", help="Show whole texts, not previews.")]


def _there(file: Path) -> Path:
    if file.name != "-" and not file.is_file():
        raise typer.BadParameter(f"{str(file)!r} is not a file")
    return file


File = Annotated[Path, typer.Argument(metavar="FILE", callback=_there, help="A file, or - for stdin.")]


def run(as_json: bool, work: Coroutine[Any, Any, int | None]) -> None:
    """Run a command and leave with its exit code; an error is told in words, never as a traceback."""
    code = 1
    try:
        code = asyncio.run(work) or 0
        sys.stdout.flush()
    except ACMSError as error:
        render.fail(error, as_json)
    except BrokenPipeError:  # the reader has gone: nothing may be written any more, not even at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        print("interrupted; the same command goes on where it stopped", file=sys.stderr)
        code = 130
    except Exception as error:
        if os.environ.get("ACMS_DEBUG"):
            raise
        hint = "set ACMS_DEBUG=1 to see where, and report it"
        render.fail(ACMSError(f"{type(error).__name__}: {error}", options=(hint,)), as_json)
    raise typer.Exit(code)


def data_file() -> Path:
    """Return the default database: a file in the user's data folder."""
    if sys.platform == "win32":
        folder = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        folder = Path.home() / "Library" / "Application Support"
    else:
        folder = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return folder / "acms" / "acms.db"


def file_url(path: Path) -> str:
    """Return the URL of a database file."""
    return f"sqlite:///{quote(path.as_posix())}"


@runtime_checkable
class _InFile(Protocol):
    """A store that is a file."""

    path: Path


@asynccontextmanager
async def opened(db: str | None, *, write: bool = False) -> AsyncGenerator[Handle]:
    """Open the store; only a command that writes creates one."""
    storage = open_storage(db or file_url(data_file()))
    if isinstance(storage, _InFile):
        if not write and not storage.path.exists():
            raise StorageError(
                f"there is no database at {storage.path}",
                options=("acms import chat.jsonl", "name another with --db"),
            )
        if write and not db:
            create_folder(storage.path.parent)
    try:
        async with storage:
            yield storage
    finally:
        await storage.aclose()  # a session that was left open ends with its command


async def known(storage: StorageBackend, name: str, namespace: str) -> Context:
    """Return a session's context; an unknown session is an error."""
    try:
        return await storage.context(name, namespace=namespace)
    except SessionNotFoundError as error:
        raise SessionNotFoundError(
            f"no session is named {name!r} in namespace {namespace!r}",
            options=("acms sessions --all lists them",),
        ) from error


def embedder() -> Embedder | Literal["auto"] | None:
    """Return what sessions rank with: ACMS_EMBEDDER is auto, none, or the name of an embedder."""
    name = os.environ.get("ACMS_EMBEDDER") or "auto"
    if name == "auto":
        return "auto"
    return None if name == "none" else registry.create("embedder", name)


def over(storage: StorageBackend, context: Context, name: str) -> ACMS:
    """Return a session on an open store, with the token counter its messages were counted with."""
    counter, config = token_counter(context.counter), ACMSConfig.from_env()
    return ACMS(name, storage, embedder(), token_counter=counter, config=config, namespace=context.namespace)


@asynccontextmanager
async def reading(db: str | None, namespace: str, name: str) -> AsyncGenerator[ACMS]:
    """Open an existing session."""
    async with opened(db) as storage, over(storage, await known(storage, name, namespace), name) as one:
        yield one


@asynccontextmanager
async def looking(db: str | None, namespace: str, name: str, at: str | None) -> AsyncGenerator[View]:
    """Open an existing session as it was at a version or tag, or as it is."""
    async with opened(db) as storage:
        context = await known(storage, name, namespace)
        version = None if at is None else await forks.version_of(storage, context.id, point(at))
        async with over(storage, context, name) as one:
            yield one if version is None else one.at(version)


@asynccontextmanager
async def writing(
    db: str | None,
    namespace: str,
    name: str,
    *,
    works: bool,
    reflector: Reflector | None = None,
    on_event: Callable[[Event], Any] | None = None,
) -> AsyncGenerator[ACMS]:
    """Open an existing session to write in it; with `works` it works off the jobs it asks for."""
    config = ACMSConfig.from_env()
    config = replace(config, worker=replace(config.worker, enabled=works), on_event=on_event)
    async with opened(db) as storage:
        context = await known(storage, name, namespace)
        counter = token_counter(context.counter)
        async with ACMS(
            name,
            storage,
            embedder(),
            reflector=reflector,
            token_counter=counter,
            config=config,
            namespace=namespace,
        ) as one:
            yield one


ReflectorName = Annotated[
    str | None,
    typer.Option("--reflector", metavar="NAME", help="offline, http, openai or anthropic."),
]
Url = Annotated[str | None, typer.Option("--url", metavar="URL", help="Address of the model's server.")]
Model = Annotated[str | None, typer.Option("--model", metavar="MODEL", help="Name of the model.")]


@asynccontextmanager
async def reflecting(name: str, *, url: str | None, model: str | None) -> AsyncGenerator[Reflector]:
    """Open a reflector by its name; keys come from the environment, where no list of processes shows them."""
    given = {"base_url": url, "model": model}
    found = registry.create("reflector", name, **{key: value for key, value in given.items() if value})
    try:
        yield found
    finally:
        if isinstance(found, _Closing):
            await found.aclose()


@runtime_checkable
class _Closing(Protocol):
    """What holds connections."""

    async def aclose(self) -> None:
        """Let go of them."""
        ...


async def contexts(storage: StorageBackend, namespace: str | None) -> AsyncIterator[Context]:
    """Go through the live contexts, newest first."""
    after: str | None = None
    while True:
        page = await storage.contexts(ContextQuery(namespace=namespace, after=after, limit=500))
        for context in page.items:
            yield context
        if page.next_after is None:
            return
        after = page.next_after
