"""Commands that serve a store: serve and inspect over HTTP, mcp on stdin and stdout."""

from __future__ import annotations

import errno
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

from acms.cli.base import (
    Model,
    ReflectorName,
    Shell,
    Url,
    create_embedder,
    define_command,
    get_or_create_session,
    open_reflector,
)
from acms.cli.output import strip_control_characters
from acms.cli.stores import data_file, file_url, refuse_option
from acms.config import ACMSConfig
from acms.errors import ConfigurationError, MissingExtraError, ValidationError
from acms.observability.logging import JSONFormatter
from acms.storage import urls
from acms.storage.files import create_folder

if TYPE_CHECKING:
    from uvicorn import Server

    from acms.inspector import ClientRequests
    from acms.providers import HTTPSource
    from acms.server import App
    from acms.server.oidc import OIDCConfig


Origins = Annotated[
    list[str] | None, typer.Option("--origin", metavar="URL", help="Allowed CORS origin; repeatable.")
]
Names = Annotated[
    list[str] | None, typer.Option("--name", metavar="HOST", help="Allowed Host header; repeatable.")
]
OverMCP = Annotated[bool, typer.Option("--mcp", help="Also serve MCP clients, below /mcp.")]
Sources = Annotated[
    Path | None,
    typer.Option(
        "--sources",
        metavar="FILE",
        exists=True,
        dir_okay=False,
        help="TOML file with sources for /orchestration/render.",
    ),
]
Issuer = Annotated[
    str | None,
    typer.Option(
        "--oidc-issuer", metavar="URL", help="Issuer of access tokens, accepted in addition to keys."
    ),
]
Audience = Annotated[
    str | None,
    typer.Option("--oidc-audience", metavar="NAME", help="Audience that access tokens must have."),
]
Claims = Annotated[
    list[str] | None,
    typer.Option(
        "--oidc-claim",
        metavar="tenant|roles|namespaces=CLAIM",
        help="Claim for a field; default: tenant, roles, and all namespaces; repeatable.",
    ),
]
Host = Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Address to listen on.")]
Port = Annotated[int, typer.Option("--port", min=0, max=65535, metavar="N", help="Port; 0: a free port.")]
Auth = Annotated[
    str | None,
    typer.Option(
        "--auth", metavar="required|off", help="Whether a key is required; off needs a loopback --host."
    ),
]
Works = Annotated[
    bool, typer.Option("--work/--no-work", help="Run jobs here, or leave them to `acms worker`.")
]
Renders = Annotated[bool, typer.Option("--renders", help="Store the requests to models for a week.")]
Logs = Annotated[bool, typer.Option("--log/--no-log", help="Log each request as a JSON line to stderr.")]


@define_command("serve", "acms serve --port 8000", namespace=None, waits=False)
async def serve_store(
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
    """Serve the store over HTTP until stopped.

    A key (`acms keys create`) is required, except on a loopback address without --auth required. SIGTERM and SIGINT
    stop the service: running requests get ten seconds to finish, jobs are released.
    """
    _require_uvicorn()
    from acms.server import ServerConfig, create_app

    oidc = _build_oidc_config(issuer, audience, claims or ())
    resolved_auth = _resolve_auth(auth, host, oidc)
    store = shell.db or default_store_url()
    if log_requests:
        log_to_stderr()
    with refuse_option("origin"):
        config = ServerConfig(origins=tuple(origins or ()))
    with refuse_option("auth"):
        config = replace(
            config, auth=resolved_auth, oidc=oidc, host=host, hosts=tuple(names or ()), works=works
        )
    async with AsyncExitStack() as stack:
        chosen_reflector = None
        if reflector is not None:
            reflector_context = open_reflector(reflector, url=url, model=model)
            chosen_reflector = await stack.enter_async_context(reflector_context)
        app = create_app(
            store,
            config,
            **_engine_options(renders=renders),
            reflector=chosen_reflector,
            sources=[] if sources is None else _open_sources(stack, sources),
        )
        app = _mount_pages(app, store, over_mcp=over_mcp)

        def announce(address: tuple[str, int]) -> None:
            _announce_address(address, resolved_auth, shell.as_json)

        server = _create_server(app, timeout_graceful_shutdown=int(config.grace_seconds))
        await _run_server(app, server, open_socket(host, port), announce)


@define_command("inspect", "acms inspect memory.db", namespace=None, waits=False)
async def inspect_store(
    shell: Shell,
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="An SQLite file; default: the store of --db.")
    ] = None,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, metavar="N", help="Port; 0: a free port.")
    ] = 0,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open a browser.")] = True,
) -> None:
    """Inspect a store in a browser, read-only.

    Shows requests to models, the reasons for included and rejected entries, cache misses, facts, jobs and forks. The
    store is opened read-only and the service refuses writes. The pages require the token in the printed address.
    """
    _require_uvicorn()
    from acms.server import ServerConfig, create_app
    from acms.server.token import PARAMETER

    if file is not None:
        store = file_url(_check_file_exists(file))
    else:
        store = shell.db or file_url(_check_file_exists(data_file()))
    store = urls.read_only(store)
    token = secrets.token_urlsafe(32)
    config = ServerConfig(auth="off", works=False, writes=False, token=token)
    app = _mount_pages(create_app(store, config, **_engine_options(read_only=True)), store)

    def announce(address: tuple[str, int]) -> None:
        host, port = address
        url = f"http://{host}:{port}/?{PARAMETER}={token}"
        name = urls.without_password(store)
        shell.show_line({"url": url}, f"looking at {name} on {url} (Ctrl-C ends it)")
        sys.stdout.flush()
        if browser:
            webbrowser.open(url)

    await _run_server(app, _create_server(app), open_socket("127.0.0.1", port), announce)


@define_command("mcp", "acms mcp --db sqlite:///memory.db --session user_123", waits=False)
async def serve_session(
    shell: Shell,
    session: Annotated[
        str, typer.Option("--session", metavar="SESSION", help="Name of the session, or its id.")
    ] = "default",
) -> None:
    """Serve a session to an MCP client on stdin and stdout.

    The client starts this command; the guide shows its configuration. The first write creates the session. Acknowledged
    writes are on disk.
    """
    from acms.mcp import serve_stdio

    async with (
        shell.open_store(write=True, lasting=False) as storage,
        await get_or_create_session(storage, session, shell.namespace) as served,
    ):
        await serve_stdio(served)


def _require_uvicorn() -> None:
    try:
        import uvicorn
    except ImportError:
        raise MissingExtraError("server", "uvicorn") from None
    del uvicorn


def _create_server(app: App, *, timeout_graceful_shutdown: int | None = None) -> Server:
    from uvicorn import Config

    from acms.server.connections import StoppingServer, build_bounded_protocol

    config = Config(
        app,
        http=build_bounded_protocol(),
        timeout_graceful_shutdown=timeout_graceful_shutdown,
        **_UVICORN,
    )
    return StoppingServer(config, app.streams.end)


def _open_sources(stack: AsyncExitStack, file: Path) -> list[HTTPSource]:
    """Return the sources of a file, and close them with the stack."""
    from acms.server.sources import load_http_sources

    sources = load_http_sources(file)
    for source in sources:
        stack.push_async_callback(source.aclose)
    return sources


def _mount_pages(app: App, store: str, *, over_mcp: bool = False) -> App:
    """Mount MCP if requested, then the inspector, because its pages take all remaining paths."""
    from acms.inspector import mount_inspector

    client_requests = _find_client_requests(store, app)
    if over_mcp:
        from acms.mcp import mount_mcp

        app = mount_mcp(app)
    return mount_inspector(app, client_requests=client_requests)


def default_store_url() -> str:
    """Return the URL of the default store, and create its folder."""
    file = data_file()
    create_folder(file.parent)
    return file_url(file)


def _check_file_exists(file: Path) -> Path:
    if not file.is_file():
        raise ConfigurationError(
            f"there is no file {str(file)!r}", options=("acms demo --db sqlite:///demo.db makes one",)
        )
    return file


def _engine_options(*, renders: bool = False, read_only: bool = False) -> dict[str, Any]:
    """Return the engine options of the environment, with or without stored requests."""
    config = ACMSConfig.from_env()
    enabled = renders or config.renders.enabled
    if read_only:
        enabled = False
    config = replace(config, renders=replace(config.renders, enabled=enabled))
    return {"engine": config, "embedder": create_embedder()}


async def _run_server(
    app: App, server: Server, listener: socket.socket, announce: Callable[[tuple[str, int]], None]
) -> None:
    from acms.server.garbage import defer_full_collections

    with listener, _outlive_signals():
        await app.start()
        try:
            announce(listener.getsockname())
            async with defer_full_collections(app.is_quiet):
                await server.serve(sockets=[listener])
        finally:
            await app.stop()


def _find_client_requests(store: str, app: App) -> ClientRequests | None:
    """Return a reader of a gateway's decisions; None without such records, or if a key is needed."""
    from acms.gateway.tenants import has_gateway_records, open_gateway_kv

    if app.config.auth == "required" or not store.startswith("sqlite:") or not has_gateway_records(store):
        return None
    from acms.gateway.decisions import read_requests

    async def read_decisions(namespace: str, session: str) -> list[dict[str, Any]]:
        kv = open_gateway_kv(store, app.config.tenant)
        try:
            return await read_requests(kv, namespace, session)
        finally:
            await kv.aclose()

    return read_decisions


class Stoppable(Protocol):
    """An ASGI application that is started before it serves and stopped afterwards."""

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
    app: Stoppable, listener: socket.socket, announce: Callable[[str], None]
) -> None:
    """Serve an application at an open port until a signal stops it; the server adds no headers to its answers."""
    from uvicorn import Config, Server

    from acms.server.connections import build_bounded_protocol

    options: dict[str, Any] = {**_UVICORN, "date_header": False, "timeout_graceful_shutdown": 10}
    server = Server(Config(app, http=build_bounded_protocol(), **options))
    with listener, _outlive_signals():
        await app.start()
        try:
            host, port = listener.getsockname()[:2]
            announce(f"http://{f'[{host}]' if ':' in host else host}:{port}")
            await server.serve(sockets=[listener])
        finally:
            await app.stop()


def _build_oidc_config(issuer: str | None, audience: str | None, claims: Sequence[str]) -> OIDCConfig | None:
    """Return the configuration of access tokens, or None without options."""
    from acms.server.oidc import OIDCConfig

    if issuer is None and audience is None and not claims:
        return None
    if issuer is None or audience is None:
        missing = "--oidc-issuer" if issuer is None else "--oidc-audience"
        raise typer.BadParameter(
            "access tokens need both --oidc-issuer and --oidc-audience", param_hint=missing
        )
    with refuse_option("oidc_issuer"):
        config = OIDCConfig(issuer=issuer, audience=audience)
    for option in claims:
        field, _, claim = option.partition("=")
        if field not in ("tenant", "roles", "namespaces") or not claim:
            raise typer.BadParameter(
                f"{option!r} is not tenant=CLAIM, roles=CLAIM or namespaces=CLAIM", param_hint="--oidc-claim"
            )
        config = replace(config, **{f"{field}_claim": claim})
    return config


def _resolve_auth(option: str | None, host: str, oidc: OIDCConfig | None) -> Literal["required", "off"]:
    """Return the --auth option; by default, a loopback host without access tokens needs no key."""
    from acms.providers.addresses import is_loopback_host

    if not option:
        is_open = is_loopback_host(host) and oidc is None
        return "off" if is_open else "required"
    if option == "required" or option == "off":
        return option
    raise typer.BadParameter(f"{option!r} is not required or off", param_hint="--auth")


_UVICORN: dict[str, Any] = {
    "log_config": None,
    "log_level": "error",  # uvicorn warns about every malformed request
    "access_log": False,
    "server_header": False,
    "proxy_headers": False,
    "lifespan": "off",  # the command starts and stops the app itself, to report its errors
    "ws": "none",
}


def _announce_address(address: tuple[str, int], auth: str, as_json: bool) -> None:
    host, port = address[:2]  # an IPv6 address has two more parts
    if ":" in host:
        host = f"[{host}]"
    url = f"http://{host}:{port}"
    if as_json:
        print(json.dumps({"url": url, "auth": auth}), flush=True)
        return
    access = "nobody needs a key" if auth == "off" else "a key is required"
    message = f"serving on {url} ({access}; {url}/ is the inspector, {url}/docs the reference)"
    print(strip_control_characters(message), flush=True)


@contextmanager
def _outlive_signals() -> Generator[None]:
    """Ignore SIGTERM and SIGINT inside the block, because the server raises them again after it has stopped."""
    previous = {number: signal.signal(number, _ignore_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _ignore_signal(*_: object) -> None:
    """Do nothing."""


def open_socket(host: str, port: int) -> socket.socket:
    """Listen on the port before the service starts, so that the announced address is valid."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With an explicit protocol asyncio sets TCP_NODELAY; otherwise each response is delayed by 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
            raise ValidationError(f"{host!r} is not an address of this machine", field="host") from None
        raise ConfigurationError(
            f"cannot listen on {host} port {port}: {error.strerror or error}", options=("another --port",)
        ) from None
    return listener


def log_to_stderr() -> None:
    """Write the log of the service to stderr, one JSON object per line."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JSONFormatter())
    logger = logging.getLogger("acms")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
