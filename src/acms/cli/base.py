"""What all commands share: the application, its common options, opening a store, leaving with an exit code."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Concatenate, Literal, ParamSpec, Protocol, cast, runtime_checkable
from urllib.parse import quote

import typer
from typer.core import TyperGroup

from acms import providers
from acms.branches import forks
from acms.cli import render
from acms.config import ACMSConfig
from acms.errors import (
    ACMSError,
    ConfigurationError,
    MissingExtraError,
    SessionNotFoundError,
    StorageError,
    ValidationError,
)
from acms.log.validation import PROFILE, same_namespace
from acms.model import Context, ContextQuery
from acms.observability.events import Event
from acms.ports import Embedder, Handle, Reflector, StorageBackend
from acms.providers import registry
from acms.providers.tokens import token_counter
from acms.session import ACMS
from acms.storage import open_storage
from acms.storage.files import create_file, create_folder
from acms.view import View

GROUPS = {
    "Every day": "demo add recall window facts messages history sessions",
    "What is in a session": "stats episodes events log at diff replace retract reflect state unstate"
    " prompt render pin pins unpin",
    "Forks and summaries": "fork merge tag delete compact compactions expand undo policy",
    "Move, check and erase": "import export restore copy backup verify witness migrate reindex scan erase",
    "Run": "serve gateway mcp inspect keys grant grants revoke audit webhook worker jobs eval",
}
"""The commands as help lists them."""


class Grouped(TyperGroup):
    """The application, whose help lists its commands in groups."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the commands in the order of their groups; what no group names comes last."""
        order = " ".join(GROUPS.values()).split()
        return sorted(self.commands, key=lambda name: order.index(name) if name in order else len(order))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a section for each group."""
        left = self.list_commands(ctx)
        for group, words in {**GROUPS, "More": ""}.items():
            named = [name for name in left if name in words.split() or group == "More"]
            left = [name for name in left if name not in named]
            if named:
                with formatter.section(group):
                    rows = [
                        (f"{name:<11}", self.commands[name].get_short_help_str(limit=63)) for name in named
                    ]
                    formatter.write_dl(rows)


app = typer.Typer(
    cls=Grouped,
    help="ACMS: keep every message of an agent, and decide what the model sees.",
    epilog="Start with:  acms demo",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
)


def _sessions(context: typer.Context, incomplete: str) -> list[str]:
    """Return the sessions whose names begin like this, for a shell that completes a word; none in doubt."""

    async def names() -> list[str]:
        async with opened(context.params.get("db") or os.environ.get("ACMS_DB")) as storage:
            found = contexts(storage, context.params.get("namespace") or "default")
            return [one.key async for one in found if one.key and one.key.startswith(incomplete)]

    try:
        return [name for name in asyncio.run(names()) if not name.startswith("@")]
    except ACMSError:
        return []


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
Session = Annotated[
    str, typer.Argument(metavar="SESSION", autocompletion=_sessions, help="Name of the session, or its id.")
]
Query = Annotated[str, typer.Argument(metavar="QUERY", help="What to look for, in words.")]
Budget = Annotated[int | None, typer.Option("--budget", min=0, metavar="N", help="Tokens that may be used.")]
Needed = Annotated[int, typer.Option("--budget", min=0, metavar="N", help="Tokens that may be used.")]
Full = Annotated[bool, typer.Option("--full", help="Show whole texts, not previews.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=500, metavar="N", help="How many to show.")]
Ranking = Annotated[
    str | None,
    typer.Option(
        "--embedder",
        metavar="auto|local|none|fastembed#MODEL|URL#MODEL",
        help="What finds by meaning: a local model, none, or one on a server; default: ACMS_EMBEDDER, or auto.",
    ),
]


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


def _there(file: Path) -> Path:
    if file.name != "-" and not file.is_file():
        raise typer.BadParameter(f"{str(file)!r} is not a file")
    return file


File = Annotated[Path, typer.Argument(metavar="FILE", callback=_there, help="A file, or - for stdin.")]


@contextmanager
def interruptible() -> Generator[None]:
    """Let one Ctrl-C end what waits for a person or a pipe inside the block.

    An event loop that stands still there would only note it, and go on waiting until a second one.
    """
    noted = signal.getsignal(signal.SIGINT)
    if not callable(noted) or threading.current_thread() is not threading.main_thread():
        yield  # it is ignored, or comes to another thread
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, noted)


def write_file(file: Path, text: str) -> None:
    """Write a file that nobody else may read."""
    try:
        create_file(file)
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ValidationError(f"cannot be written: {error.strerror}", field=str(file)) from error


def run(
    as_json: bool,
    work: Coroutine[Any, Any, int | None],
    flags: Mapping[str, str] | None = None,
    *,
    resumes: bool = False,
) -> None:
    """Run a command and leave with its exit code; an error is told in words, never as a traceback.

    `flags` are the command's options, by the names that arguments have in Python; one that `resumes` goes on where it
    was interrupted.
    """
    code = 1
    try:
        code = asyncio.run(work) or 0
        sys.stdout.flush()
    except (typer.BadParameter, typer.Abort, typer.Exit):  # wrong usage that shows late
        raise
    except ACMSError as error:
        render.fail(error, as_json, flags)
    except BrokenPipeError:  # the reader has gone
        _write_no_more()
    except KeyboardInterrupt:
        more = "; the same command goes on where it stopped" if resumes else ""
        print(f"interrupted{more}", file=sys.stderr)
        code = 130
    except Exception as error:
        if os.environ.get("ACMS_DEBUG"):
            raise
        if isinstance(error, OSError) and error.strerror:  # a file or the output: what the system says
            where = f"{error.filename}: " if error.filename else ""
            render.fail(ACMSError(f"{where}{error.strerror}"), as_json)
            _flush()
        else:
            hint = "set ACMS_DEBUG=1 to see where, and report it"
            render.fail(ACMSError(f"{type(error).__name__}: {error}", options=(hint,)), as_json)
    raise typer.Exit(code)


def _flush() -> None:
    try:
        sys.stdout.flush()
    except OSError:
        _write_no_more()


def _write_no_more() -> None:
    """Let nothing more be written to stdout, not even what is left of it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Shell(render.Screen):
    """Where a command looks and answers: the options that all of them have."""

    def __init__(self, db: str | None, namespace: str, as_json: bool) -> None:
        super().__init__(as_json)
        self.db = db
        self.namespace = namespace

    def opened(self, *, write: bool = False) -> AbstractAsyncContextManager[Handle]:
        """Open the store; only a command that writes creates one."""
        return opened(self.db, write=write)

    async def known(self, storage: StorageBackend, name: str) -> Context:
        """Return a session's context; an unknown session is an error."""
        return await known(storage, name, self.namespace)

    @asynccontextmanager
    async def reading(self, name: str) -> AsyncGenerator[ACMS]:
        """Open an existing session."""
        async with self.opened() as storage, over(storage, await self.known(storage, name), name) as one:
            yield one

    @asynccontextmanager
    async def looking(self, name: str, at: str | None, ranking: str | None = None) -> AsyncGenerator[View]:
        """Open an existing session as it was at a version or tag, or as it is."""
        async with self.opened() as storage:
            context = await self.known(storage, name)
            version = None if at is None else await forks.version_of(storage, context.id, point(at))
            async with over(storage, context, name, ranking=ranking) as one:
                yield one if version is None else one.at(version)

    @asynccontextmanager
    async def writing(
        self,
        name: str,
        *,
        works: bool,
        reflector: Reflector | None = None,
        on_event: Callable[[Event], Any] | None = None,
    ) -> AsyncGenerator[ACMS]:
        """Open an existing session to write in it; with `works` it works off the jobs it asks for."""
        config = ACMSConfig.from_env()
        config = replace(config, worker=replace(config.worker, enabled=works), on_event=on_event)
        async with self.opened() as storage:
            context = await self.known(storage, name)
            async with over(storage, context, name, reflector=reflector, config=config) as one:
                yield one

    def confirm(self, question: str, yes: bool) -> None:
        """Ask before something that cannot be taken back, unless it was said already."""
        if not yes:
            if not sys.stdin.isatty():
                raise typer.BadParameter("nobody can be asked here: say --yes")
            with interruptible():
                typer.confirm(question, abort=True)


_P = ParamSpec("_P")
_Work = Callable[Concatenate[Shell, _P], Coroutine[Any, Any, int | None]]


def command(
    example: str,
    *,
    name: str | None = None,
    home: typer.Typer = app,
    db: bool = True,
    namespace: Literal["used", "unused"] | None = "used",
    waits: bool = True,
    resumes: bool = False,
) -> Callable[[_Work[_P]], Callable[..., None]]:
    """Make a command of a coroutine that is given a `Shell` and its own arguments.

    `--db`, `--namespace` and `--json` come behind them; `namespace` is "unused" where the option is taken and ignored.
    What takes longer than a second shows that it works, unless nobody is to wait for it. Called again, a command that
    `resumes` goes on where it was interrupted.
    """

    def register(work: _Work[_P]) -> Callable[..., None]:
        signature = inspect.signature(work, eval_str=True)
        common: list[tuple[str, Any, Any]] = [("as_json", AsJson, False)]
        if namespace is not None:
            common.insert(0, ("namespace", Namespace if namespace == "used" else Unused, "default"))
        if db:
            common.insert(0, ("db", Db, None))
        named = inspect.Parameter.KEYWORD_ONLY
        parameters = [
            inspect.Parameter("context", named, annotation=typer.Context),
            *(one.replace(kind=named) for one in list(signature.parameters.values())[1:]),
            *(
                inspect.Parameter(one, named, default=default, annotation=kind)
                for one, kind, default in common
            ),
        ]

        def called(context: typer.Context, as_json: bool, **given: Any) -> None:
            here = {one: given.pop(one) for one, _, _ in common[:-1]}
            shell = Shell(here.get("db"), here.get("namespace", "default"), as_json)

            async def watched() -> int | None:
                with shell.progress("working" if waits else None):
                    return await cast("Any", work)(shell, **given)

            run(as_json, watched(), _flags(context), resumes=resumes)

        called.__name__, called.__doc__, called.__module__ = work.__name__, work.__doc__, work.__module__
        called.__annotations__ = {one.name: one.annotation for one in parameters}
        vars(called)["__signature__"] = signature.replace(parameters=parameters, return_annotation=None)
        home.command(name, epilog=f"Example:  {example}")(called)
        return called

    return register


_PYTHON = {
    "session_id": "--as",
    "preserve_recent_count": "--recent",
    "summary_tokens": "--tokens",
    "idempotency_key": "--key",
    "tool_call_id": "--tool-call",
    "actor_id": "--actor",
}
"""Options that are called otherwise in Python."""


def _flags(context: typer.Context) -> dict[str, str]:
    """Return the options of a command, by the names that arguments have in Python."""
    longest = [max(one.opts, key=len) for one in context.command.params]
    found = {flag[2:].replace("-", "_"): flag for flag in longest if flag.startswith("--")}
    return {**{name: flag for name, flag in _PYTHON.items() if flag in longest}, **found}


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
class InFile(Protocol):
    """A store that is a file."""

    path: Path
    tenant: str


@asynccontextmanager
async def opened(db: str | None, *, write: bool = False) -> AsyncGenerator[Handle]:
    """Open the store; only a command that writes creates one."""
    storage = open_storage(db or file_url(data_file()))
    if isinstance(storage, InFile):
        made(storage.path, write, "acms add SESSION user TEXT", given=db is not None)
    try:
        async with storage:
            yield storage
    finally:
        await storage.aclose()  # a session that was left open ends with its command


def made(file: Path, write: bool, hint: str, *, given: bool) -> None:
    """Refuse to read a database file that is not there; make the folder of the default one before it is written."""
    if not write and not file.exists():
        raise StorageError(f"there is no database at {file}", options=(hint, "name another with --db"))
    if write and not given:
        create_folder(file.parent)


async def known(storage: StorageBackend, name: str, namespace: str) -> Context:
    """Return a session's context; an unknown session is an error."""
    try:
        found = await storage.context(name, namespace=namespace)
    except SessionNotFoundError as error:
        raise SessionNotFoundError(
            f"no session is named {name!r} in namespace {namespace!r}",
            options=("acms sessions --all lists them",),
        ) from error
    same_namespace(namespace, found.namespace, name)
    return found


_SHELL = {
    "api_key": "ACMS_MODEL_KEY",
    "give dimension": "name the model as MODEL@DIMENSION",
    "dimension must": "DIMENSION must",
    "dimension=…": "MODEL@DIMENSION",
}
"""What the arguments of a model on a server are called in a shell, besides its address."""


@contextmanager
def _in_shell_words(address: str) -> Generator[None]:
    """Say what is wrong with a model on a server as a shell knows it; `address` is what its address is called."""
    try:
        yield
    except ConfigurationError as error:
        for word, known in {"base_url": address, **_SHELL}.items():
            error.args = (str(error).replace(word, known),)
            error.options = tuple([option.replace(word, known) for option in error.options])
        raise


def embedder(choice: str | None = None) -> Embedder | Literal["auto"] | None:
    """Return what finds by meaning: auto, none, NAME or NAME#MODEL of the registry, URL#MODEL or with @DIMENSION."""
    name = choice or os.environ.get("ACMS_EMBEDDER") or "auto"
    if name == "auto":
        return "auto"
    if name == "none":
        return None
    address, _, model = name.partition("#")
    if "://" not in address:
        try:
            return registry.create("embedder", address, **({"model": model} if model else {}))
        except MissingExtraError:
            raise
        except ConfigurationError as error:
            raise typer.BadParameter(str(error), param_hint="--embedder") from error
    model, _, size = model.partition("@")
    if not model or not (size or "0").isdecimal():
        raise typer.BadParameter(
            f"{name!r} is not URL#MODEL, or URL#MODEL@DIMENSION", param_hint="--embedder"
        )
    key = os.environ.get("ACMS_MODEL_KEY") or None
    with _in_shell_words("URL"):
        return providers.HTTPEmbedder(address, model, api_key=key, dimension=int(size) if size else None)


def over(
    storage: StorageBackend,
    context: Context,
    name: str,
    *,
    ranking: str | None = None,
    reflector: Reflector | None = None,
    config: ACMSConfig | None = None,
) -> ACMS:
    """Return a session on an open store, with the token counter its messages were counted with."""
    counter, config = token_counter(context.counter), config or ACMSConfig.from_env()
    return ACMS(
        context.id if context.key == PROFILE else name,
        storage,
        embedder(ranking),
        reflector=reflector,
        token_counter=counter,
        config=config,
        namespace=context.namespace,
    )


async def continued(storage: StorageBackend, name: str, namespace: str) -> ACMS:
    """Return a session on an open store that its first message begins, where it is not there yet."""
    try:
        found = await storage.context(name, namespace=namespace)
    except SessionNotFoundError:
        return ACMS(name, storage, embedder(), config=ACMSConfig.from_env(), namespace=namespace)
    same_namespace(namespace, found.namespace, name)
    return over(storage, found, name)


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
    with _in_shell_words("--url"):
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
