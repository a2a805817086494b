"""The gateway in front of model providers, and what it did."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any, Literal

import typer

from acms.cli.base import Ranking, Shell, app, create_embedder, define_command
from acms.cli.hints import keep_store
from acms.cli.output import Column, count_noun, strip_control_characters
from acms.cli.serving import default_store_url, log_to_stderr, open_socket, serve_until_stopped
from acms.cli.stores import data_file, file_url, refuse_option
from acms.config import ACMSConfig
from acms.errors import MissingExtraError, NotFoundError
from acms.gateway.config import DEFAULT_UPSTREAMS, KEY_VARIABLES, GatewayConfig, Recall
from acms.kv import CompareAndSetKV, ListingKV
from acms.log.validation import parse_choice
from acms.model import Privacy
from acms.providers.addresses import is_loopback_host
from acms.storage.urls import without_password

gateway = typer.Typer(
    help="Serve as the base URL of any client of OpenAI or Anthropic.", rich_markup_mode=None
)
app.add_typer(gateway, name="gateway")

SESSIONS = (
    Column("session", "cyan", wide=True),
    Column("model"),
    Column("client"),
    Column("requests", align_right=True),
    Column("trimmed", align_right=True),
    Column("recalled", align_right=True),
    Column("bypassed", align_right=True),
    Column("namespace", "dim"),
)
REQUESTS = (
    Column("at", "dim"),
    Column("outcome", "magenta", wide=True),
    Column("asked", align_right=True),
    Column("tokens asked", align_right=True, value="asked_tokens"),
    Column("sent", align_right=True, value=lambda one: one.get("sent", one["asked"])),
    Column("tokens sent", align_right=True, value=lambda one: one.get("tokens", one["asked_tokens"])),
    Column("budget", align_right=True),
    Column("recalled", align_right=True, value=lambda one: len(one.get("recalled", ()))),
    Column("line", "dim"),
)

NOT_COUNTED = (
    "without tokens: the request fits the budget even if each byte is a token, so it was not counted"
)

_RULES = {
    "irrelevant": "have nothing to do with the question",
    "cutoff": "did not reach the cutoff",
    "min_relevance": "are below the minimum relevance",
    "score": "are less relevant than those recalled",
    "budget": "did not fit",
    "rank": "ranked too low",
    "window": "are older than those shown",
    "duplicate": "say what is shown already",
}
"""The reason why messages were not shown, in words, by the rule of a recall's verdict."""

Upstreams = Annotated[
    list[str] | None,
    typer.Option("--upstream", metavar="NAME=URL", help="A provider, such as openai=https://…; repeat."),
]
BudgetChoice = Annotated[
    str, typer.Option("--budget", metavar="N|model", help="Tokens of a request, or the model's window.")
]
RecallChoice = Annotated[
    str,
    typer.Option(
        "--recall", metavar="off|trim|namespace", help="What is recalled: default what was trimmed."
    ),
]
Stores = Annotated[bool, typer.Option("--store/--no-store", help="Remember, or only forward.")]
PrivacyChoice = Annotated[
    str,
    typer.Option("--privacy", metavar="off|allow|redact|block", help="How texts are redacted when stored."),
]
Host = Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Where to listen.")]
Port = Annotated[int, typer.Option("--port", min=0, max=65535, metavar="N", help="0: a free one.")]
Auth = Annotated[
    str | None,
    typer.Option("--auth", metavar="required|off", help="Whether a key is needed; off on this machine only."),
]
ProviderKeys = Annotated[
    bool,
    typer.Option(
        "--keys", help="Take ACMS keys for provider keys, which OPENAI_API_KEY and others hold here."
    ),
]
Logs = Annotated[bool, typer.Option("--log/--no-log", help="Write what happens to stderr, as JSON.")]


async def serve_gateway(
    shell: Shell,
    upstreams: Upstreams = None,
    budget: BudgetChoice = "100000",
    recall: RecallChoice = "trim",
    store: Stores = True,
    privacy: PrivacyChoice = "allow",
    host: Host = "127.0.0.1",
    port: Port = 8787,
    auth: Auth = None,
    keys: ProviderKeys = False,
    ranking: Ranking = None,
    logs: Logs = False,
) -> None:
    """Forward requests to model providers, and remember what was said.

    Clients set their base URL to this address and change nothing else. A request that is too long is made to fit; what
    need not change goes on byte by byte. Elsewhere than on this machine a key is needed: acms keys create.
    """
    try:
        from acms.gateway import create_gateway
    except ImportError as missing:
        raise MissingExtraError("server", missing.name or "starlette") from None

    upstream_urls = _parse_upstreams(upstreams or ())
    auth_mode = auth or ("off" if is_loopback_host(host) else "required")
    if logs:
        log_to_stderr()
    with refuse_option("auth"):
        config = GatewayConfig(
            upstreams=upstream_urls,
            budget=100_000 if budget == "model" else _parse_budget(budget),
            budget_by_model=budget == "model",
            recall=_parse_recall(recall),
            store=store,
            privacy=None if privacy == "off" else parse_choice(privacy, Privacy, "privacy"),
            host=host,
            auth=_parse_auth(auth_mode),
            provider_keys=_read_provider_keys(upstream_urls) if keys else {},
        )
    gateway_app = create_gateway(
        shell.db or default_store_url(),
        config,
        engine=ACMSConfig.from_env(),
        embedder=create_embedder(ranking),
    )
    await serve_until_stopped(
        gateway_app, open_socket(host, port), lambda url: _announce_url(url, shell.as_json)
    )


def _register_server(serve: Callable[..., None]) -> None:
    """Run the server for `acms gateway` without a subcommand: the group gets a callback with the server's options."""

    def callback(context: typer.Context, **arguments: Any) -> None:
        if context.invoked_subcommand is None:
            serve(context=context, **arguments)

    callback.__doc__ = serve.__doc__
    callback.__annotations__ = serve.__annotations__
    vars(callback)["__signature__"] = vars(serve)["__signature__"]
    example = "Example:  acms gateway --budget 60000"
    gateway.callback(invoke_without_command=True, epilog=example)(callback)


_register_server(
    define_command(
        "gateway", "acms gateway --budget 60000", group=typer.Typer(), namespace=None, waits=False
    )(serve_gateway)
)


@define_command("status", "acms gateway status", group=gateway, namespace=None)
async def show_status(
    shell: Shell,
    url: Annotated[str, typer.Option("--url", metavar="URL", help="Where the gateway is.")] = (
        "http://127.0.0.1:8787"
    ),
) -> None:
    """Show whether a gateway answers at an address, and what gateways did over a store."""
    from acms.gateway.decisions import list_session_rows
    from acms.gateway.tenants import has_gateway_records

    answers = await _is_answering(url)
    store = _store_url(shell.db)
    rows: list[dict[str, Any]] = []
    if has_gateway_records(store):
        async with _open_records(shell.db) as kv:
            rows = await list_session_rows(kv)
    outcomes = Counter[str]()
    for name in ("untouched", "trimmed", "recalled", "bypassed"):
        outcomes[name] = sum(row[name] for row in rows)
    shown_store = without_password(store)
    status = {
        "url": url,
        "answers": answers,
        "store": shown_store,
        "sessions": len(rows),
        "outcomes": dict(outcomes),
    }

    def draw() -> None:
        shell.line(f"gateway {url} {'answers' if answers else 'does not answer (--url names another)'}")
        shell.line(f"store {shown_store}{'' if shell.db else ' (--db names another)'}")
        shell.line(f"{count_noun(len(rows), 'session')} with requests")
        for outcome, count in sorted(outcomes.items()):
            shell.line(f"{count:>8,} {outcome}")

    shell.show(status, draw)


@define_command("sessions", "acms gateway sessions", group=gateway, namespace=None)
async def list_sessions(shell: Shell) -> None:
    """List the conversations that the gateway has recorded, newest first."""
    from acms.gateway.decisions import list_session_rows

    async with _open_records(shell.db) as kv:
        rows = await list_session_rows(kv)
    if_empty = "the gateway has recorded nothing yet: acms gateway"
    shell.show({"sessions": rows}, lambda: shell.list(SESSIONS, rows, if_empty=if_empty))


@define_command("why", "acms gateway why chat-3f2a91c07d", group=gateway, namespace=None)
async def explain_requests(
    shell: Shell, session: Annotated[str, typer.Argument(metavar="SESSION", help="Name of the session.")]
) -> None:
    """Show what a client asked, what was sent, why they differ and why nothing was recalled; the newest last."""
    from acms.gateway.decisions import list_session_rows, read_requests

    async with _open_records(shell.db) as kv:
        rows = await list_session_rows(kv)
        session_row = next((row for row in rows if row["session"] == session), None)
        if session_row is None:
            raise NotFoundError(
                f"the gateway has recorded no session {session!r}", options=("acms gateway sessions",)
            )
        namespace = session_row["namespace"]
        assert isinstance(kv, CompareAndSetKV)
        requests = await read_requests(kv, namespace, session)

    def draw() -> None:
        shell.list(REQUESTS, requests, if_empty="there is no request")
        if any(request["asked_tokens"] is None for request in requests):
            shell.line(NOT_COUNTED, "dim")
        newest = requests[-1]
        if newest.get("left_out"):
            shell.line(f"left out of the newest one: messages {_write_ranges(newest['left_out'])}")
        for line in _explain_recall(newest):
            shell.line(line)
        inspect = keep_store("acms inspect")
        shell.line(f"{inspect} shows each request with its reasons; namespace {namespace}", "dim")

    shell.show({"session": session, "namespace": namespace, "requests": requests}, draw)


@asynccontextmanager
async def _open_records(db: str | None) -> AsyncGenerator[ListingKV]:
    """Open the records of the gateway on a store."""
    from acms.gateway.tenants import has_gateway_records, open_gateway_kv

    url = _store_url(db)
    if not has_gateway_records(url):
        shown_url = without_password(url)
        raise NotFoundError(
            f"no gateway has recorded requests in {shown_url}", options=("acms gateway", "--db URL")
        )
    kv = open_gateway_kv(url, "default")
    assert isinstance(kv, ListingKV)
    try:
        yield kv
    finally:
        await kv.aclose()


def _store_url(db: str | None) -> str:
    """Return the URL of the store that a command is about."""
    return db or file_url(data_file())


async def _is_answering(url: str) -> bool:
    """Return whether a gateway answers at a URL."""
    from acms.gateway.proxy import ask_health

    return await ask_health(url)


def _explain_recall(request: Mapping[str, Any]) -> list[str]:
    """Return how much was recalled for a request, or how many messages were searched in vain and why."""
    if request.get("not_searched"):
        return [f"nothing was searched for the newest one: {request['not_searched']}"]
    recalled = request.get("recalled")
    if recalled:
        return [
            f"recalled in the newest one: {count_noun(len(recalled), 'message')}; those of earlier requests stay in it"
        ]
    search = request.get("search")
    if search is None:
        return []  # a request that an earlier release recorded, without its search
    begin = f"recalled for the newest one: nothing; {search['free']:,} tokens were free"
    not_shown = search["not_shown"]
    searched = f"searched and not shown: {count_noun(sum(not_shown.values()), 'message')}"
    if not_shown:
        reasons = [f"{count:,} {_RULES.get(rule, rule)}" for rule, count in not_shown.items()]
        searched += f" ({', '.join(reasons)})"
    return [begin, searched, *search["warnings"]]


def _write_ranges(ranges: Sequence[Sequence[int]]) -> str:
    """Write ranges of messages, counted from 1."""
    range_texts = [
        f"{first_index + 1}" if first_index == last_index else f"{first_index + 1} to {last_index + 1}"
        for first_index, last_index in ranges
    ]
    return ", ".join(range_texts)


def _announce_url(url: str, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"url": url}), flush=True)
        return
    print(
        strip_control_characters(f"gateway on {url}: OpenAI base_url={url}/v1, Anthropic base_url={url}"),
        flush=True,
    )


def _parse_upstreams(options: Sequence[str]) -> dict[str, str]:
    urls = dict(DEFAULT_UPSTREAMS)
    for option in options:
        name, _, url = option.partition("=")
        if not name or not url:
            raise typer.BadParameter(
                f"{option!r} is not NAME=URL, such as openai=http://127.0.0.1:8080", param_hint="--upstream"
            )
        if not url.startswith(("http://", "https://")):
            raise typer.BadParameter(f"{url!r} is not an http or https URL", param_hint="--upstream")
        urls[name] = url.removesuffix("/").removesuffix("/v1")
    return urls


def _parse_budget(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or int(text) < 1:
        raise typer.BadParameter(
            f"{text!r} must be a number of tokens of at least 1, or the word model", param_hint="--budget"
        )
    return int(text)


def _parse_recall(text: str) -> Recall:
    if text == "off" or text == "trim" or text == "namespace":
        return text
    raise typer.BadParameter(f"{text!r} is not off, trim or namespace", param_hint="--recall")


def _parse_auth(text: str) -> Literal["required", "off"]:
    if text == "required" or text == "off":
        return text
    raise typer.BadParameter(f"{text!r} is not required or off", param_hint="--auth")


def _read_provider_keys(upstreams: Mapping[str, str]) -> dict[str, str]:
    """Return the provider keys that the environment holds."""
    variables = {name: KEY_VARIABLES.get(name, f"{name.upper()}_API_KEY") for name in upstreams}
    return {name: os.environ[variable] for name, variable in variables.items() if variable in os.environ}
