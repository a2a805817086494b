"""The command that serves a store over HTTP."""

from __future__ import annotations

import json
import logging
import secrets
import signal
import socket
import sys
import webbrowser
from collections.abc import Callable, Generator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

import typer

from acms.cli.base import Model, ReflectorName, Shell, Url, command, data_file, embedder, file_url, reflecting
from acms.cli.render import clean
from acms.config import ACMSConfig
from acms.errors import ConfigurationError, MissingExtraError
from acms.observability.logging import JSONFormatter
from acms.server.garbage import defer_full_collections
from acms.storage import urls
from acms.storage.files import create_folder

if TYPE_CHECKING:
    from uvicorn import Server

    from acms.inspector import ClientRequests
    from acms.server import App
    from acms.server.oidc import OIDCConfig


Origins = Annotated[
    list[str] | None, typer.Option("--origin", metavar="URL", help="A web page that may call it; repeat.")
]
Names = Annotated[
    list[str] | None, typer.Option("--name", metavar="HOST", help="A name it may be called by; repeat.")
]
OverMCP = Annotated[bool, typer.Option("--mcp", help="Also serve sessions to MCP clients, below /mcp.")]
Sources = Annotated[
    Path | None,
    typer.Option(
        "--sources",
        metavar="FILE",
        exists=True,
        dir_okay=False,
        help="TOML: whom /orchestration/render asks.",
    ),
]
Issuer = Annotated[
    str | None,
    typer.Option("--oidc-issuer", metavar="URL", help="Whose access tokens open it too, beside keys."),
]
Audience = Annotated[
    str | None,
    typer.Option("--oidc-audience", metavar="NAME", help="Which name of it they must be for."),
]
Claims = Annotated[
    list[str] | None,
    typer.Option(
        "--oidc-claim",
        metavar="tenant|roles|namespaces=CLAIM",
        help="Where a token says so; default: tenant and roles, and a subject sees all of its tenant; repeat.",
    ),
]
Host = Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Where to listen.")]
Port = Annotated[int, typer.Option("--port", min=0, max=65535, metavar="N", help="0: a free one.")]
Auth = Annotated[
    str | None,
    typer.Option("--auth", metavar="required|off", help="Whether a key is needed; off on this machine only."),
]
Works = Annotated[
    bool, typer.Option("--work/--no-work", help="Work off jobs here, or leave them to `acms worker`.")
]
Renders = Annotated[bool, typer.Option("--renders", help="Keep the requests sent to models for a week.")]
Logs = Annotated[bool, typer.Option("--log/--no-log", help="Write a line of JSON per request to stderr.")]


@command("acms serve --port 8000", namespace=None, waits=False)
async def serve(
    shell: Shell,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    auth: Auth = None,
    works: Works = True,
    origins: Origins = None,
    names: Names = None,
    issuer: Issuer = None,
    audience: Audience = None,
    claims: Claims = None,
    reflector: ReflectorName = None,
    url: Url = None,
    model: Model = None,
    sources: Sources = None,
    renders: Renders = False,
    over_mcp: OverMCP = False,
    log_requests: Logs = False,
) -> None:
    """Serve the store over HTTP until told to stop.

    On this machine alone nobody needs a key unless --auth required; elsewhere everybody does: acms keys create.
    SIGTERM and SIGINT stop it: what is under way may finish within ten seconds, jobs are handed back.
    """
    try:
        from uvicorn import Config
    except ImportError:
        raise MissingExtraError("server", "uvicorn") from None
    from acms.inspector import mounted
    from acms.server import ServerConfig, create_app
    from acms.server.listen import Listening, build_bounded_protocol
    from acms.server.sources import load_http_sources as read_sources

    oidc = _oidc(issuer, audience, claims or ())
    wanted = _auth(auth, host, oidc)
    store = shell.db or default_store()
    if log_requests:
        log_to_stderr()
    config = ServerConfig(
        auth=wanted,
        oidc=oidc,
        host=host,
        hosts=tuple(names or ()),
        origins=tuple(origins or ()),
        works=works,
    )
    async with AsyncExitStack() as stack:
        found = None
        if reflector is not None:
            found = await stack.enter_async_context(reflecting(reflector, url=url, model=model))
        asked = [] if sources is None else read_sources(sources)
        for one in asked:
            stack.push_async_callback(one.aclose)
        made = create_app(store, config, **_engine(renders=renders), reflector=found, sources=asked)
        made = mounted(
            _with_mcp(made) if over_mcp else made, client_requests=_find_client_requests(store, made)
        )
        grace: dict[str, Any] = {"timeout_graceful_shutdown": int(config.grace_seconds), **_UVICORN}
        server = Listening(Config(made, http=build_bounded_protocol(), **grace), made.streams.end)
        await _serve(made, server, open_port(host, port), lambda at: _announce(at, wanted, shell.as_json))


@command("acms inspect memory.db", namespace=None, waits=False)
async def inspect(
    shell: Shell,
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="An SQLite file; else the store of --db.")
    ] = None,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, metavar="N", help="0: a free one.")] = 0,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")
    ] = True,
) -> None:
    """Look at a store in your browser, read-only.

    What the model saw, what was left out and why, what broke the cache, facts, jobs, forks. The store is opened
    read-only, and the service behind the pages refuses whatever writes. Only the address with its token opens them.
    """
    try:
        from uvicorn import Config
    except ImportError:
        raise MissingExtraError("server", "uvicorn") from None
    from acms.inspector import mounted
    from acms.server import ServerConfig, create_app
    from acms.server.listen import Listening, build_bounded_protocol
    from acms.server.token import PARAMETER

    store = file_url(_there(file)) if file is not None else shell.db or file_url(_there(data_file()))
    store = urls.read_only(store)
    token = secrets.token_urlsafe(32)
    config = ServerConfig(auth="off", works=False, writes=False, token=token)
    app = create_app(store, config, **_engine(read_only=True))
    made = mounted(app, client_requests=_find_client_requests(store, app))
    server = Listening(Config(made, http=build_bounded_protocol(), **_UVICORN), made.streams.end)

    def announce(at: tuple[str, int]) -> None:
        url = f"http://{at[0]}:{at[1]}/?{PARAMETER}={token}"
        shown = urls.without_password(store)
        shell.show({"url": url}, lambda: shell.line(f"looking at {shown} on {url} (Ctrl-C ends it)"))
        sys.stdout.flush()
        if browser:
            webbrowser.open(url)

    await _serve(made, server, open_port("127.0.0.1", port), announce)


def default_store() -> str:
    """Return the URL of the default store, in a folder that is there."""
    create_folder(data_file().parent)
    return file_url(data_file())


def _with_mcp(made: App) -> App:
    """Serve MCP too; its paths come before the pages, which take all that is left."""
    from acms.mcp import mounted

    return mounted(made)


def _there(file: Path) -> Path:
    if not file.is_file():
        raise ConfigurationError(
            f"there is no file {str(file)!r}", options=("acms demo --db sqlite:///demo.db makes one",)
        )
    return file


def _engine(*, renders: bool = False, read_only: bool = False) -> dict[str, Any]:
    """Return what the environment says about sessions, and whether what they send is kept."""
    engine = ACMSConfig.from_env()
    kept = replace(engine.renders, enabled=not read_only and (renders or engine.renders.enabled))
    return {"engine": replace(engine, renders=kept), "embedder": embedder()}


async def _serve(
    made: App, server: Server, listening: socket.socket, announce: Callable[[tuple[str, int]], None]
) -> None:
    with _signals():
        await made.start()
        try:
            announce(listening.getsockname())
            async with defer_full_collections(made.quiet):
                await server.serve(sockets=[listening])
        finally:
            await made.stop()


def _find_client_requests(store: str, made: App) -> ClientRequests | None:
    """Return how to read what a gateway decided, where one ran over the store and no key is needed."""
    from acms.gateway.tenants import has_gateway_records, open_gateway_kv

    if made.config.auth == "required" or not store.startswith("sqlite:") or not has_gateway_records(store):
        return None
    from acms.gateway.memory import read_requests

    async def read(namespace: str, session: str) -> list[dict[str, Any]]:
        kv = open_gateway_kv(store, made.config.tenant)
        try:
            return await read_requests(kv, namespace, session)
        finally:
            await kv.aclose()

    return read


class Stoppable(Protocol):
    """An application with a start and an end of its own."""

    async def start(self) -> None:
        """Open what it needs."""
        ...

    async def stop(self) -> None:
        """Finish, and close everything."""
        ...

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request."""
        ...


async def serve_until_stopped(
    made: Stoppable, listening: socket.socket, announce: Callable[[str], None]
) -> None:
    """Serve an application at an open port; headers of its answers are its own."""
    from uvicorn import Config, Server

    from acms.server.listen import build_bounded_protocol

    options: dict[str, Any] = {**_UVICORN, "date_header": False, "timeout_graceful_shutdown": 10}
    server = Server(Config(made, http=build_bounded_protocol(), **options))
    with _signals():
        await made.start()
        try:
            host, port = listening.getsockname()[:2]
            announce(f"http://{f'[{host}]' if ':' in host else host}:{port}")
            await server.serve(sockets=[listening])
        finally:
            await made.stop()


def _oidc(issuer: str | None, audience: str | None, claims: Sequence[str]) -> OIDCConfig | None:
    """Return whose access tokens open the service, as it was given."""
    from acms.server.oidc import OIDCConfig

    if issuer is None and audience is None and not claims:
        return None
    if issuer is None or audience is None:
        raise ConfigurationError("access tokens take --oidc-issuer and --oidc-audience, both")
    made = OIDCConfig(issuer=issuer, audience=audience)
    for one in claims:
        name, _, claim = one.partition("=")
        if name not in ("tenant", "roles", "namespaces") or not claim:
            raise ConfigurationError(
                f"--oidc-claim {one!r} does not say where a token has its tenant, roles or namespaces",
                options=("--oidc-claim tenant=org_id",),
            )
        made = replace(made, **{f"{name}_claim": claim})
    return made


def _auth(given: str | None, host: str, oidc: OIDCConfig | None) -> Literal["required", "off"]:
    """Return whether a key is needed: as it was given, or by who can reach the host and whose tokens open it."""
    from acms.providers.addresses import is_loopback_host

    wanted = given or ("off" if is_loopback_host(host) and oidc is None else "required")
    if wanted not in ("required", "off"):
        raise ConfigurationError(f"--auth is required or off, not {wanted!r}")
    return "off" if wanted == "off" else "required"


_UVICORN: dict[str, Any] = {
    "log_config": None,
    "log_level": "error",  # else any stranger's garbage is a line on stderr
    "access_log": False,
    "server_header": False,
    "proxy_headers": False,
    "lifespan": "off",  # it is started and stopped here, where its errors can be told
    "ws": "none",
}


def _announce(at: tuple[str, int], auth: str, as_json: bool) -> None:
    url = f"http://{f'[{at[0]}]' if ':' in at[0] else at[0]}:{at[1]}"
    if as_json:
        print(json.dumps({"url": url, "auth": auth}), flush=True)
        return
    who = "nobody needs a key" if auth == "off" else "a key is required"
    print(clean(f"serving on {url} ({who}; {url}/ is the inspector, {url}/docs the reference)"), flush=True)


@contextmanager
def _signals() -> Generator[None]:
    """Outlive SIGTERM and SIGINT inside the block: the server, which they stop, raises them again when it has ended."""
    before = {name: signal.signal(name, _nothing) for name in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)


def _nothing(*_: object) -> None:
    """Let a signal pass."""


def open_port(host: str, port: int) -> socket.socket:
    """Open the port before anything else, so that what is announced is true."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # Named as TCP, as only then asyncio sends small pieces at once: else each answer waits 40 ms.
        made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(2048)
    except OSError as error:
        raise ConfigurationError(
            f"cannot listen on {host} port {port}: {error.strerror or error}", options=("another --port",)
        ) from None
    return made


def log_to_stderr() -> None:
    """Write what the service logs to stderr, one JSON object a line."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JSONFormatter())
    logger = logging.getLogger("acms")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
