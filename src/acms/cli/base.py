"""The parts that all commands share: the application, common options, opening a store, exit codes."""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import signal
import sys
import threading
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Collection,
    Coroutine,
    Generator,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Concatenate, Literal, ParamSpec, Protocol, cast, runtime_checkable

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException

from acms import providers
from acms.branches import forks
from acms.cli import output
from acms.cli.hints import given_store
from acms.cli.stores import FileStore, data_file, file_url, open_store, parse_store, refuse_option
from acms.config import ACMSConfig
from acms.errors import (
    ACMSError,
    ConfigurationError,
    EntryNotFoundError,
    GoneError,
    MissingExtraError,
    NotFoundError,
    SessionNotFoundError,
    ValidationError,
)
from acms.knowledge import Scope
from acms.log.validation import PROFILE, require_same_namespace
from acms.model import Context, ContextQuery
from acms.observability.events import Event
from acms.ports import Embedder, Handle, Reflector, StorageBackend
from acms.providers import registry
from acms.providers.tokens import token_counter
from acms.runtime.input_errors import describe_input_error
from acms.session import ACMS
from acms.storage import open_storage
from acms.storage.files import create_file
from acms.view import View

GROUPS = {
    "Every day": "demo add recall window facts messages history sessions",
    "What is in a session": "events log diff replace retract undo prompt render pin",
    "Forks and summaries": "fork merge tag compact",
    "Move, check and erase": "import export restore copy backup verify witness migrate reindex scan delete erase",
    "Run": "serve gateway mcp inspect keys grants worker jobs eval",
}
"""The commands, in the order of the help."""


def _asks_for_json(words: Sequence[str]) -> bool:
    options = words[: words.index("--")] if "--" in words else words
    return "--json" in options


class GroupedCommands(TyperGroup):
    """The application, whose help lists its commands in groups."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, **options: Any) -> Any:
        """Run a command line; with --json, a usage error is JSON too."""
        given_store.set(None)
        words = sys.argv[1:] if args is None else args
        if not _asks_for_json(words):
            return super().main(args, *rest, **options)
        options["standalone_mode"] = False  # raises errors instead of printing them
        try:
            code = super().main(args, *rest, **options)
        except TyperException as error:
            code = error.exit_code
            output.write_usage_error(error.format_message())
        except typer.Abort:
            code = 1
            print("Aborted!", file=sys.stderr)
        sys.exit(code)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the commands in the order of their groups, then those without a group."""
        order = " ".join(GROUPS.values()).split()
        grouped = [name for name in order if name in self.commands]
        ungrouped = [name for name in self.commands if name not in order]
        return grouped + ungrouped

    def invoke(self, ctx: Any) -> Any:
        """Run a command; replace the messages of the library that validates the values."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = _describe_bad_parameter(error)
            raise
        except TyperException as error:
            error.message += _suggest_correction(error)
            raise

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the first word names; `eval` is in a package of its own."""
        if args[0] == "eval" and "eval" not in self.commands:
            ctx.fail("'eval' needs acms-eval: pip install ./packages/acms-eval, in a checkout")
        if args[0] not in self.commands and not get_close_matches(args[0], self.commands):
            ctx.fail(f"No such command {args[0]!r}. acms --help lists the commands.")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a section for each group."""
        sections: dict[str, list[str]] = {}
        for name in self.list_commands(ctx):
            sections.setdefault(_group_of_command(name), []).append(name)
        for group, names in sections.items():
            with formatter.section(group):
                formatter.write_dl([self._help_row(name) for name in names])

    def _help_row(self, name: str) -> tuple[str, str]:
        return f"{name:<11}", self.commands[name].get_short_help_str(limit=63)


_OPTION_OF_EXTRA_WORD = {"fork": ("--as", "the name of the fork")}
"""By command: the option that a superfluous argument was most likely meant for."""


def _suggest_correction(error: TyperException) -> str:
    """Return how to write an argument given as an option, or the other way round; "" if it is not known."""
    context = getattr(error, "ctx", None)
    if context is None:
        return ""
    option = getattr(error, "option_name", None)
    if option is not None:
        for parameter in context.command.params:
            if parameter.param_type_name == "argument" and f"--{parameter.name}" == option:
                name = (parameter.metavar or parameter.name.upper()).strip("[]")
                return f". {name} is an argument: write its value without {option}."
    if "unexpected extra argument" in error.message and context.command.name in _OPTION_OF_EXTRA_WORD:
        flag, meaning = _OPTION_OF_EXTRA_WORD[context.command.name]
        return f". Did you mean {flag}, {meaning}?"
    return ""


def _describe_bad_parameter(error: typer.BadParameter) -> str:
    import pydantic  # with typer, which imports it only when it validates

    cause = error.__cause__
    if not isinstance(cause, pydantic.ValidationError):
        return error.message
    details = cause.errors(include_url=False)[0]
    value = details["input"]
    message = describe_input_error(details)
    if details["type"] == "value_error" or not isinstance(value, str):
        return message
    return f"{value!r} {message}"


def _group_of_command(name: str) -> str:
    for group, commands in GROUPS.items():
        if name in commands.split():
            return group
    return "More"


app = typer.Typer(
    cls=GroupedCommands,
    help="ACMS: keep every message of an agent, and decide what the model sees.",
    epilog="Start with:  acms demo",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
)


_FIRST_WORD = "acms.first_word"
"""Where the context of a group keeps a first word that is not one of its commands."""


def _describe_unknown_command(group: TyperGroup, default: str, word: str) -> str | None:
    """Return the error for a first word that is no command, or None if it was an argument of the default command."""
    similar = get_close_matches(word, group.commands)
    if similar:
        return f"No such command {word!r}. Did you mean {' or '.join(map(repr, similar))}?"
    takes_arguments = any(one.param_type_name == "argument" for one in group.commands[default].params)
    if takes_arguments:
        return None
    return f"No such command {word!r}. The commands are {', '.join(group.commands)}."


def create_group(
    name: str, help: str, *, parent: typer.Typer = app, default: str | None = None
) -> typer.Typer:
    """Register a group of commands; the arguments of the default command may follow the name of the group."""

    class DefaultCommandGroup(TyperGroup):
        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            first_word = args[0] if args else ""
            if default is not None and first_word != "--help" and first_word not in self.commands:
                ctx.meta[_FIRST_WORD] = first_word
                args = [default, *args]
            return super().parse_args(ctx, args)

        def invoke(self, ctx: Any) -> Any:
            try:
                return super().invoke(ctx)
            except TyperException as error:
                word = ctx.meta.get(_FIRST_WORD)
                if default is not None and word and "unexpected extra argument" in error.message:
                    error.message = _describe_unknown_command(self, default, word) or error.message
                raise

    hint = None
    if default is not None:
        hint = f"Without a command: {default}. Its help:  acms {name} {default} --help"
    group = typer.Typer(
        cls=DefaultCommandGroup,
        help=help,
        epilog=hint,
        rich_markup_mode=None,
        no_args_is_help=default is None,
    )
    parent.add_typer(group, name=name)
    return group


def _complete_session(context: typer.Context, incomplete: str) -> list[str]:
    """Return the session names that complete a word in a shell, or none on an error."""

    async def find_names() -> list[str]:
        names: list[str] = []
        async with open_store(context.params.get("db") or os.environ.get("ACMS_DB")) as storage:
            async for candidate in iterate_contexts(storage, context.params.get("namespace") or "default"):
                name = candidate.key or ""
                if name.startswith(incomplete):
                    names.append(name)
        return names

    try:
        return [name for name in asyncio.run(find_names()) if name and not name.startswith("@")]
    except ACMSError:
        return []


def _take_store(context: typer.Context, text: str | None) -> str | None:
    """Parse `--db`, and record for hints that it was given."""
    source = context.get_parameter_source("db")
    if source is not None and source.name == "COMMANDLINE":
        given_store.set(text)
    return parse_store(text)


Db = Annotated[
    str | None,
    typer.Option(
        "--db",
        envvar="ACMS_DB",
        metavar="URL|FILE",
        callback=_take_store,
        help="The store; default: a file in your data folder.",
    ),
]
Namespace = Annotated[str, typer.Option("--namespace", metavar="NAME", help="Namespace to use.")]
Unused = Annotated[str, typer.Option("--namespace", hidden=True)]
AsJson = Annotated[bool, typer.Option("--json", help="Write one JSON object.")]
Session = Annotated[
    str,
    typer.Argument(
        metavar="SESSION", autocompletion=_complete_session, help="Name of the session, or its id."
    ),
]
Query = Annotated[str, typer.Argument(metavar="QUERY", help="Query text.")]
Budget = Annotated[int | None, typer.Option("--budget", min=0, metavar="N", help="Token budget.")]
RequiredBudget = Annotated[int, typer.Option("--budget", min=0, metavar="N", help="Token budget.")]
Full = Annotated[bool, typer.Option("--full", help="Show full texts instead of previews.")]
Yes = Annotated[bool, typer.Option("--yes", help="Skip the confirmation.")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=500, metavar="N", help="Maximum number of rows.")]
Ranking = Annotated[
    str | None,
    typer.Option(
        "--embedder",
        metavar="auto|local|none|fastembed#MODEL|URL#MODEL",
        help="Embedder for semantic search: local, none, or a server; default: ACMS_EMBEDDER, else auto.",
    ),
]


_VERSION = re.compile(r"v?[0-9]+")


def parse_scope(scope: str) -> Scope:
    """Return the value of an option `--scope`, or raise a usage error."""
    if scope == "session" or scope == "namespace":
        return scope
    raise typer.BadParameter(f"{scope!r} is not session or namespace", param_hint="--scope")


def parse_version(version: str | int) -> int:
    """Return the number of a version, written as 12 or as v12; the default of an option is a number already."""
    text = str(version)
    if not _VERSION.fullmatch(text):
        raise typer.BadParameter(f"{text!r} is not a version")
    return int(text.removeprefix("v"))


async def resolve_version(storage: StorageBackend, context_id: str, text: str) -> int:
    """Return the version that 12, v12 or a tag names; a tag with the name v12 goes first."""
    if text.isdecimal():
        return await forks.resolve_version(storage, context_id, int(text))
    try:
        return await forks.resolve_version(storage, context_id, text)
    except NotFoundError:
        if not _VERSION.fullmatch(text):
            raise
    return await forks.resolve_version(storage, context_id, parse_version(text))


def _check_version(version_or_tag: str | None) -> str | None:
    if version_or_tag is not None and version_or_tag.startswith("-") and version_or_tag[1:].isdecimal():
        raise typer.BadParameter(f"{version_or_tag} is not a version")
    return version_or_tag


At = Annotated[
    str | None,
    typer.Option(
        "--at", metavar="VERSION|TAG", callback=_check_version, help="State at this version or tag."
    ),
]


def _check_file_exists(file: Path) -> Path:
    if file.name != "-" and not file.is_file():
        raise typer.BadParameter(f"{str(file)!r} is not a file")
    return file


File = Annotated[
    Path, typer.Argument(metavar="FILE", callback=_check_file_exists, help="A file, or - for stdin.")
]


@contextmanager
def allow_interrupt() -> Generator[None]:
    """Let one Ctrl-C interrupt a blocking read from a terminal or pipe inside the block.

    A blocked event loop would otherwise only record the first Ctrl-C and wait for a second one.
    """
    handler = signal.getsignal(signal.SIGINT)
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not callable(handler) or not in_main_thread:
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def write_file(file: Path, text: str) -> None:
    """Write a file that only the current user can read."""
    try:
        create_file(file)
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ValidationError(f"cannot be written: {error.strerror}", field=str(file)) from error


def run_command(
    as_json: bool,
    work: Coroutine[Any, Any, int | None],
    flags: Mapping[str, str] | None = None,
    *,
    given_flags: Collection[str] = (),
    resumes: bool = False,
) -> None:
    """Run a command and exit with its code; report errors without a traceback, unless ACMS_DEBUG is set.

    `flags` maps Python names to the command's options and arguments. `given_flags` are the options with a value from
    the caller: an error about one of them is wrong usage. `resumes` says that running the command again continues it
    after an interruption.
    """
    code = 1
    try:
        code = asyncio.run(work) or 0
        sys.stdout.flush()
    except (typer.BadParameter, typer.Abort, typer.Exit):  # usage errors found by the command itself
        raise
    except ACMSError as error:
        output.write_error(error, as_json, flags)
        argument = output.find_wrong_option(error, flags or {})
        if flags and argument is not None and flags[argument] in given_flags:
            code = 2
    except BrokenPipeError:  # the reader closed the pipe
        _discard_output()
    except KeyboardInterrupt:
        hint = "; the same command goes on where it stopped" if resumes else ""
        print(f"interrupted{hint}", file=sys.stderr)
        code = 130
    except Exception as error:
        if os.environ.get("ACMS_DEBUG"):
            raise
        if isinstance(error, OSError) and error.strerror:
            prefix = f"{error.filename}: " if error.filename else ""
            output.write_error(ACMSError(f"{prefix}{error.strerror}"), as_json)
            _flush_output()
        else:
            hint = "set ACMS_DEBUG=1 to see where, and report it"
            output.write_error(ACMSError(f"{type(error).__name__}: {error}", options=(hint,)), as_json)
    raise typer.Exit(code)


def _flush_output() -> None:
    try:
        sys.stdout.flush()
    except OSError:
        _discard_output()


def _discard_output() -> None:
    """Discard all further output, including the buffer that is flushed at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Shell(output.Screen):
    """The common options of a command and its output."""

    def __init__(self, db: str | None, namespace: str, as_json: bool) -> None:
        super().__init__(as_json)
        self.db = db
        self.namespace = namespace

    def open_store(self, *, write: bool = False, lasting: bool = True) -> AbstractAsyncContextManager[Handle]:
        """Open the store; only a command that writes creates one. With `lasting`, a store in memory is refused."""
        return open_store(self.db, write=write, lasting=lasting)

    async def has_store(self) -> bool:
        """Return whether the store exists; only that of a file may not."""
        with refuse_option("db"):
            storage = open_storage(self.db or file_url(data_file()))
        await storage.aclose()
        return not isinstance(storage, FileStore) or storage.path.exists()

    async def find_session(self, storage: StorageBackend, name: str) -> Context:
        """Return a session's context; an unknown session is an error."""
        return await find_session(storage, name, self.namespace)

    @asynccontextmanager
    async def open_session(self, name: str) -> AsyncGenerator[ACMS]:
        """Open an existing session."""
        async with self.open_store() as storage:
            context = await self.find_session(storage, name)
            async with build_session(storage, context, name) as session:
                yield session

    @asynccontextmanager
    async def open_view(self, name: str, at: str | None, ranking: str | None = None) -> AsyncGenerator[View]:
        """Open an existing session, or its state at a version or tag."""
        async with self.open_store() as storage:
            context = await self.find_session(storage, name)
            version = None if at is None else await resolve_version(storage, context.id, at)
            async with build_session(storage, context, name, ranking=ranking) as session:
                yield session if version is None else session.at(version)

    @asynccontextmanager
    async def open_for_writing(
        self,
        name: str,
        *,
        works: bool,
        reflector: Reflector | None = None,
        on_event: Callable[[Event], Any] | None = None,
    ) -> AsyncGenerator[ACMS]:
        """Open an existing session for writing; with `works`, its worker runs the jobs it requests."""
        config = ACMSConfig.from_env()
        config = replace(config, worker=replace(config.worker, enabled=works), on_event=on_event)
        async with self.open_store() as storage:
            context = await self.find_session(storage, name)
            async with build_session(storage, context, name, reflector=reflector, config=config) as session:
                yield session

    def confirm(self, question: str, yes: bool) -> None:
        """Ask before an action that cannot be undone, unless `yes` is set."""
        if yes:
            return
        if not sys.stdin.isatty():
            raise typer.BadParameter("Cannot prompt for confirmation without a terminal. Pass --yes.")
        with allow_interrupt():
            typer.confirm(question, abort=True)


_P = ParamSpec("_P")
_Command = Callable[Concatenate[Shell, _P], Coroutine[Any, Any, int | None]]


def define_command(
    name: str,
    example: str,
    *,
    group: typer.Typer = app,
    db: bool = True,
    namespace: Literal["used", "unused"] | None = "used",
    waits: bool = True,
    resumes: bool = False,
) -> Callable[[_Command[_P]], Callable[..., None]]:
    """Register a coroutine that takes a `Shell` and its own arguments as a command.

    The options `--db`, `--namespace` and `--json` are appended. `namespace="unused"` accepts the option and ignores it.
    With `waits`, a command that takes longer than a second shows progress. With `resumes`, running an interrupted
    command again continues it.
    """
    common: list[inspect.Parameter] = []
    if db:
        common.append(_keyword_parameter("db", Db, None))
    if namespace is not None:
        annotation = Namespace if namespace == "used" else Unused
        common.append(_keyword_parameter("namespace", annotation, "default"))
    as_json_option = _keyword_parameter("as_json", AsJson, False)

    def register(function: _Command[_P]) -> Callable[..., None]:
        def call(context: typer.Context, as_json: bool, **arguments: Any) -> None:
            options = {parameter.name: arguments.pop(parameter.name) for parameter in common}
            shell = Shell(options.get("db"), options.get("namespace", "default"), as_json)

            async def execute() -> int | None:
                with shell.progress("working" if waits else None):
                    return await cast("Any", function)(shell, **arguments)

            run_command(
                as_json,
                execute(),
                _map_flags(context),
                given_flags=_find_given_flags(context),
                resumes=resumes,
            )

        _set_identity(call, function, [*common, as_json_option])
        group.command(name, epilog=f"Example:  {example}")(call)
        return call

    return register


def _set_identity(
    call: Callable[..., None], function: Callable[..., Any], common: Sequence[inspect.Parameter]
) -> None:
    """Give a command the name, the docstring and the options of its function, and the common options."""
    signature = inspect.signature(function, eval_str=True)
    own_parameters = list(signature.parameters.values())[1:]
    parameters = [inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)]
    parameters += [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own_parameters]
    parameters += common
    call.__name__ = function.__name__
    call.__doc__ = function.__doc__
    call.__module__ = function.__module__
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    vars(call)["__signature__"] = signature.replace(parameters=parameters, return_annotation=None)


def _keyword_parameter(name: str, annotation: Any, default: object) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


_PYTHON_NAMES = {
    "session_id": "--as",
    "preserve_recent_count": "--recent",
    "summary_tokens": "--tokens",
    "idempotency_key": "--key",
    "tool_call_id": "--tool-call",
    "actor_id": "--actor",
    "actions": "--allow",
    "markers": "--marker",
    "names": "--name",
    "retention_seconds": "--retention",
}
"""Options whose Python argument has another name."""


def _find_given_flags(context: typer.Context) -> set[str]:
    """Return the options that the command line or the environment gives a value."""
    given: set[str] = set()
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if source is not None and source.name in ("COMMANDLINE", "ENVIRONMENT"):
            given.update(parameter.opts)
    return given


_ARGUMENT_NAMES = {"session_id": "SESSION", "content": "TEXT"}
"""Arguments of commands whose Python argument has another name."""


def _map_flags(context: typer.Context) -> dict[str, str]:
    """Return the options and arguments of a command, as its help shows them, by their Python names."""
    arguments = {
        parameter.name or "": (parameter.metavar or "").strip("[]")
        for parameter in context.command.params
        if parameter.param_type_name == "argument"
    }
    flags = {name: shown for name, shown in _ARGUMENT_NAMES.items() if shown in arguments.values()}
    flags |= {name: shown for name, shown in arguments.items() if shown.isalpha()}
    longest = [max(parameter.opts, key=len) for parameter in context.command.params]
    flags |= {name: flag for name, flag in _PYTHON_NAMES.items() if flag in longest}
    for flag in longest:
        if flag.startswith("--"):
            flags[flag[2:].replace("-", "_")] = flag
    return flags


async def find_session(storage: StorageBackend, name: str, namespace: str) -> Context:
    """Return a session's context; an unknown session is an error."""
    try:
        context = await storage.context(name, namespace=namespace)
    except SessionNotFoundError as error:
        raise SessionNotFoundError(
            f"no session is named {name!r} in namespace {namespace!r}",
            options=("acms sessions --all lists them",),
        ) from error
    require_same_namespace(namespace, context.namespace, name)  # an id finds a session in any namespace
    return context


async def resolve_entry(session: ACMS, entry: str) -> str:
    """Return the id of an entry that is named by its version, unless the name is a key of the session."""
    if not re.fullmatch(r"v[1-9][0-9]{0,17}", entry):
        return entry
    with suppress(EntryNotFoundError, GoneError):
        return (await session.get(entry)).id
    page = await session.history(limit=1, after=int(entry[1:]) - 1)
    return page.entries[0].id if page.entries else entry


_SHELL_WORDS = {
    "api_key": "ACMS_MODEL_KEY",
    "give dimension": "name the model as MODEL@DIMENSION",
    "dimension must": "DIMENSION must",
    "dimension=…": "MODEL@DIMENSION",
}
"""Shell words for the arguments of a model on a server, without its address."""


@contextmanager
def _name_shell_options(address: str) -> Generator[None]:
    """Translate errors about a model on a server into shell words; `address` replaces `base_url`."""
    try:
        yield
    except ConfigurationError as error:
        for word, replacement in {"base_url": address, **_SHELL_WORDS}.items():
            error.args = (str(error).replace(word, replacement),)
            error.options = tuple([option.replace(word, replacement) for option in error.options])
        raise


def create_embedder(choice: str | None = None) -> Embedder | Literal["auto"] | None:
    """Return the embedder for auto, none, NAME[#MODEL] of the registry, or URL#MODEL[@DIMENSION]."""
    name = choice or os.environ.get("ACMS_EMBEDDER") or "auto"
    if name == "auto":
        return "auto"
    if name == "none":
        return None
    if "://" in name.partition("#")[0]:
        return _create_http_embedder(name)
    return _create_registered_embedder(name)


def _create_registered_embedder(name: str) -> Embedder:
    provider, _, model = name.partition("#")
    options = {"model": model} if model else {}
    try:
        return registry.create("embedder", provider, **options)
    except MissingExtraError:
        raise
    except ConfigurationError as error:
        raise typer.BadParameter(str(error), param_hint="--embedder") from error


def _create_http_embedder(name: str) -> Embedder:
    address, _, model_and_dimension = name.partition("#")
    model, _, dimension = model_and_dimension.partition("@")
    if not model or (dimension and not dimension.isdecimal()):
        raise typer.BadParameter(
            f"{name!r} is not URL#MODEL, or URL#MODEL@DIMENSION", param_hint="--embedder"
        )
    key = os.environ.get("ACMS_MODEL_KEY") or None
    size = int(dimension) if dimension else None
    with _name_shell_options("URL"):
        return providers.HTTPEmbedder(address, model, api_key=key, dimension=size)


def build_session(
    storage: StorageBackend,
    context: Context,
    name: str,
    *,
    ranking: str | None = None,
    reflector: Reflector | None = None,
    config: ACMSConfig | None = None,
) -> ACMS:
    """Return a session on an open store, with the token counter of its stored messages."""
    is_profile = context.key == PROFILE  # its name is reserved, so it is opened by its id
    return ACMS(
        context.id if is_profile else name,
        storage,
        create_embedder(ranking),
        reflector=reflector,
        token_counter=token_counter(context.counter),
        config=config or ACMSConfig.from_env(),
        namespace=context.namespace,
    )


async def get_or_create_session(storage: StorageBackend, name: str, namespace: str) -> ACMS:
    """Return a session on an open store; if it does not exist, its first message creates it."""
    try:
        context = await storage.context(name, namespace=namespace)
    except SessionNotFoundError:
        return ACMS(name, storage, create_embedder(), config=ACMSConfig.from_env(), namespace=namespace)
    require_same_namespace(namespace, context.namespace, name)
    return build_session(storage, context, name)


ReflectorName = Annotated[
    str | None,
    typer.Option("--reflector", metavar="NAME", help="offline, http, openai or anthropic."),
]
Url = Annotated[str | None, typer.Option("--url", metavar="URL", help="Address of the model's server.")]
Model = Annotated[str | None, typer.Option("--model", metavar="MODEL", help="Name of the model.")]


@asynccontextmanager
async def open_reflector(name: str, *, url: str | None, model: str | None) -> AsyncGenerator[Reflector]:
    """Open a reflector by name; API keys come from the environment, so that process lists do not show them."""
    options: dict[str, str] = {}
    if url:
        options["base_url"] = url
    if model:
        options["model"] = model
    known_names = registry.names("reflector")
    if name not in known_names:
        raise ValidationError(f"{name!r} is not one of {', '.join(known_names)}", field="reflector")
    with _name_shell_options("--url"):
        reflector = registry.create("reflector", name, **options)
    try:
        yield reflector
    finally:
        if isinstance(reflector, _Closable):
            await reflector.aclose()


@runtime_checkable
class _Closable(Protocol):
    """A provider with open connections."""

    async def aclose(self) -> None:
        """Close them."""
        ...


async def iterate_contexts(storage: StorageBackend, namespace: str | None) -> AsyncIterator[Context]:
    """Yield the contexts that are not deleted, newest first."""
    cursor: str | None = None
    while True:
        page = await storage.contexts(ContextQuery(namespace=namespace, after=cursor, limit=500))
        for context in page.items:
            yield context
        if page.next_after is None:
            return
        cursor = page.next_after
