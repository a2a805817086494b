"""The pages: the requests each makes to the service, and its template."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from functools import partial
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qsl

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from acms.errors import NotFoundError, PermissionDeniedError, TooLargeError, ValidationError
from acms.inspector import advice, charts, recalls, requests, sessions, views
from acms.inspector.api import API, Refused, quote_path_parts
from acms.inspector.visit import Visit, build_version_query, gather_requests
from acms.inspector.visitors import Visitors, same_origin
from acms.runtime.threads import in_thread, pause_if_busy
from acms.runtime.version import __version__
from acms.server import App

__all__ = ["mount_inspector"]

Handler = Callable[["Visit"], Awaitable[Response]]

ROWS = 80
"""Entries of a log on one page, about two screens."""
FORM_BYTES = 65_536
"""Bytes of a form; a question is the longest field."""
TABS = ("timeline", "sent", "diff", "ask", "facts", "jobs", "cost", "forks")
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "referrer-policy": "same-origin",  # without one a browser does not say from which page a form comes
    "cross-origin-opener-policy": "same-origin",
}
TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


ClientRequests = Callable[[str, str], Awaitable[list[dict[str, Any]]]]
"""Returns what a gateway decided about the requests of a session, by its namespace and its name."""


def mount_inspector(app: App, *, client_requests: ClientRequests | None = None) -> App:
    """Serve the pages below `/` of a service and return it; a read-only service has none of the buttons that write.

    With `client_requests` there is a page about the requests that came through a gateway.
    """
    app.mount("/", Inspector(app, client_requests).router)
    return app


class Inspector:
    """The pages of one service."""

    def __init__(self, app: App, client_requests: ClientRequests | None = None) -> None:
        self.app: ASGIApp = app
        self._tabs = TABS if client_requests is None else (*TABS, "gateway")
        self.visitors = Visitors()
        self._writes = app.config.writes
        self._keys = app.config.auth == "required"
        static = files("acms.inspector").joinpath("static")
        self._files = {file.name: file.read_bytes() for file in static.iterdir()}
        self._templates = _create_templates()
        routes = [
            Route("/static/{name}", self._static),
            Route("/sign-in", self._sign_in, methods=["GET", "POST"]),
            Route("/sign-out", self._sign_out, methods=["POST"]),
        ]
        for path, (handler, methods) in PAGES.items():
            routes.append(Route(path, self._adapt_handler(handler), methods=methods))
        if client_requests is not None:
            show_requests = self._adapt_handler(partial(show_client_requests, client_requests))
            routes.append(Route(f"{SESSION_PATH}/gateway", show_requests))
        if self._writes:
            routes.append(Route(ACTION_PATH, self._adapt_handler(run_action), methods=["POST"]))
        self.router = Router(routes, redirect_slashes=False, default=_reject_unknown_path)

    # ── answering ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _adapt_handler(self, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        """Return an endpoint that calls a handler with a visit and shows its errors as pages."""

        async def endpoint(request: Request) -> Response:
            if self._keys and self.visitors.key(request) is None:
                return RedirectResponse("/sign-in", 303, headers=HEADERS)
            form = await self._form(request) if request.method == "POST" else {}
            api = API(self.app, request.scope, self.visitors.key(request))
            visit = Visit(request, form, api, self.render)
            try:
                return await handler(visit)
            except Refused as refused:
                if refused.status == 401:
                    return RedirectResponse("/sign-in", 303, headers=HEADERS)
                return await visit.page("error.html", refused.status, error=refused)
            except ValidationError as error:
                problem = Refused(400, {"detail": str(error), "code": error.code})
                return await visit.page("error.html", 400, error=problem)

        return endpoint

    async def render(self, request: Request, name: str, status: int, values: Mapping[str, Any]) -> Response:
        """Render a template with the values that every page needs."""
        common = {"writes": self._writes, "keys": self._keys, "tabs": self._tabs, "path": request.url.path}
        template = self._templates.get_template(name)
        text = await in_thread(partial(_render_template, template, {**common, **values}))
        return Response(text, status, HEADERS, "text/html; charset=utf-8")

    async def _form(self, request: Request) -> dict[str, str]:
        """Return the fields of a form; `PermissionDeniedError` if a page of another origin sent it."""
        if not same_origin(request):
            raise PermissionDeniedError("this is accepted from the inspector's own pages only")
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > FORM_BYTES:
                raise TooLargeError(f"has more than {FORM_BYTES} bytes", field="body")
        return dict(parse_qsl(body.decode("utf-8", "replace"), max_num_fields=64))

    # ── paths outside a session ─────────────────────────────────────────────────────────────────────────────────────

    async def _static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._files:
            raise NotFoundError("there is no such file")
        suffix = name.rpartition(".")[2]
        caching = {"cache-control": "private, max-age=3600"}
        return Response(self._files[name], 200, caching, TYPES.get(suffix))

    async def _sign_in(self, request: Request) -> Response:
        if request.method != "POST":
            return await self.render(request, "sign_in.html", 200, {"error": None})
        form = await self._form(request)
        key = form.get("key", "").strip()
        try:
            await API(self.app, request.scope, key).get("/contexts", limit=1)
        except Refused as refused:
            return await self.render(request, "sign_in.html", refused.status, {"error": refused})
        response = RedirectResponse("/", 303, headers=HEADERS)
        self.visitors.enter(request, response, key)
        return response

    async def _sign_out(self, request: Request) -> Response:
        await self._form(request)
        response = RedirectResponse("/sign-in" if self._keys else "/", 303, headers=HEADERS)
        self.visitors.leave(request, response)
        return response


def _create_templates() -> Environment:
    templates = Environment(
        loader=PackageLoader("acms.inspector"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: dict[str, Any] = {
        "time": _format_time,
        "pct": _format_percent,
        "place": views.format_entry_version,
        "session": views.display_name_of_session,
        "ticks": _markup_backticks,
    }
    templates.filters.update(filters)
    global_names: dict[str, Any] = {
        "advice": advice.suggest_inclusion,
        "context_of": views.context_of_entry,
        "figures": advice.describe_figures,
        "url_of": quote_path_parts,
        "version": __version__,
    }
    templates.globals.update(global_names)
    return templates


async def _reject_unknown_path(scope: Scope, receive: Receive, send: Send) -> None:
    raise NotFoundError("there is nothing at this path", options=("/ is the inspector, /docs the reference",))


def _render_template(template: Template, values: Mapping[str, Any]) -> str:
    """Render a template in a thread, with pauses between its pieces in which the event loop can run."""
    pieces: list[str] = []
    for piece in template.generate(values):
        pieces.append(piece)
        pause_if_busy()
    return "".join(pieces)


def _format_time(text: str | None, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    if not text:
        return ""
    return datetime.fromisoformat(text).strftime(form)


def _markup_backticks(text: str) -> Markup:
    """Return a text as HTML, with words in backticks as code."""
    pieces = [escape(piece) for piece in text.split("`")]
    for index in range(1, len(pieces), 2):
        pieces[index] = Markup("<code>{}</code>").format(pieces[index])
    return Markup("").join(pieces)


def _format_percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "–"


# ── pages ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def show_timeline(visit: Visit) -> Response:
    """Show a page of a log as it was at a version, newest first."""
    header = await visit.session_header("timeline", visit.argument("at"))
    version = header["at"]
    newest = min(visit.number("before", version + 1), version + 1) - 1
    cursor = max(0, newest - ROWS)
    rows: list[dict[str, Any]] = []
    if newest > cursor:
        limit = newest - cursor
        history, messages, renders = await gather_requests(
            visit.api.get(f"{visit.path}/history", atVersion=version, cursor=cursor, limit=limit),
            visit.api.get(f"{visit.path}/messages", cursor=cursor, limit=limit),
            visit.api.get(f"{visit.path}/renders", limit=50),
        )
        rows = views.build_timeline_rows(history["data"], messages["data"], renders["data"])
    older = cursor + 1 if cursor else None
    return await visit.page("timeline.html", **header, rows=rows, older=older)


async def show_entry(visit: Visit) -> Response:
    """Show a whole entry and its sources."""
    header = await visit.session_header("timeline")
    entry = quote_path_parts("entries", visit.request.path_params["entry"])
    reply = await visit.api.get(visit.path + entry)
    return await visit.page("entry.html", **header, entry=reply["data"])


async def show_client_requests(read_requests: ClientRequests, visit: Visit) -> Response:
    """Show what a client asked of a gateway, what was sent, and why they differ, newest first."""
    header = await visit.session_header("gateway")
    requests = await read_requests(header["context"]["namespace"], header["name"])
    return await visit.page("gateway.html", **header, requests=list(reversed(requests)))


async def show_jobs(visit: Visit) -> Response:
    """Show jobs, summaries with the entries they replace, and episodes.

    Episodes are read only when they are asked for, as the page does once it is painted: it takes the whole log.
    """
    header = await visit.session_header("jobs")
    jobs, compactions = await gather_requests(
        visit.api.get("/jobs", contextId=visit.context, limit=100),
        visit.api.get(f"{visit.path}/compactions", limit=100),
    )
    episodes: list[dict[str, Any]] | None = None
    if visit.argument("episodes"):
        first_episode = max(0, header["stats"]["episodes"] - 50)
        page = await visit.api.get(f"{visit.path}/episodes", limit=50, cursor=first_episode)
        episodes = list(reversed(page["data"]))
    return await visit.page(
        "jobs.html",
        **header,
        jobs=jobs["data"],
        compactions=compactions["data"],
        episodes=episodes,
    )


async def show_costs(visit: Visit) -> Response:
    """Show the costs of requests over time, by part and by speaker, and the entries that answers cited."""
    header = await visit.session_header("cost")
    page, messages, citations = await gather_requests(
        visit.api.get(f"{visit.path}/renders", limit=100),
        visit.api.get(f"{visit.path}/messages", order="desc", limit=500),
        visit.api.get(f"{visit.path}/citations"),
    )
    renders = page["data"]
    tokens_by_part = Counter[str](dict.fromkeys(charts.PARTS, 0))
    for render in renders:
        for part in charts.PARTS:
            tokens_by_part[part] += max(0, render["use"][part])
    return await visit.page(
        "cost.html",
        **header,
        renders=renders,
        bars=charts.build_cost_bars(renders, 1000, 200),
        parts_of=tokens_by_part,
        speakers=views.sum_by_speaker(messages["data"]),
        cited=sorted(citations["data"], key=lambda citation: (-citation["count"], citation["id"])),
        most=max((render["tokens"] for render in renders), default=0),
    )


async def show_forks(visit: Visit) -> Response:
    """Show the fork tree, the diff of two branches or versions, and a preview of a merge."""
    header = await visit.session_header("forks")
    form = {name: visit.argument(name) for name in ("left", "other", "right", "merge")}
    tree = await visit.api.get(f"{visit.path}/tree")
    diff: Any = {"data": None}
    if form["left"] or form["other"] or form["right"]:
        query = build_version_query(form["left"]) | build_version_query(form["right"], "other")
        diff = await visit.api.get(f"{visit.path}/diff", **query, other=form["other"])
    merge: Any = {"data": None}
    if form["merge"]:
        merge = await visit.api.get(f"{visit.path}/merge", other=form["merge"])
    return await visit.page(
        "forks.html", **header, tree=tree["data"], diff=diff["data"], merge=merge["data"], form=form
    )


async def show_api_reference(visit: Visit) -> Response:
    """Show the reference of the HTTP API, rendered from its OpenAPI document."""
    document = await visit.api.get("/openapi.json")
    groups: dict[str, list[dict[str, Any]]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            group = groups.setdefault(operation["tags"][0], [])
            group.append({**operation, "path": path, "method": method.upper()})
    schemas = document["components"]["schemas"]
    return await visit.page("docs.html", document=document, groups=groups, schemas=schemas)


async def run_action(visit: Visit) -> Response:
    """Run the action of a button and redirect to the page it was on."""
    action = visit.request.path_params["what"]
    if action == "undo":
        await visit.api.post(f"{visit.path}/undo", {"version": visit.number("version", 0)})
    elif action == "undo-compaction":
        compaction = quote_path_parts("compactions", visit.argument("version"), "undo")
        await visit.api.post(visit.path + compaction)
    elif action == "withdraw":
        address = {name: visit.argument(name) for name in ("subject", "attribute")}
        await visit.api.post(f"{visit.path}/facts/withdraw", address)
    elif action in ("retry", "cancel"):
        await visit.api.post(quote_path_parts("jobs", visit.argument("job"), action))
    elif action == "forget":
        await visit.api.post(f"{visit.path}/renders", method="DELETE")
    else:
        raise NotFoundError("there is no such action")
    page = f"/s{quote_path_parts(visit.context)}"
    tab = visit.argument("back")
    if tab in TABS:
        page += f"/{tab}"
    return RedirectResponse(page, 303, headers=HEADERS)


SESSION_PATH = "/s/{context}"
ACTION_PATH = f"{SESSION_PATH}/do/{{what}}"
PAGES: Mapping[str, tuple[Handler, list[str]]] = {
    "/": (sessions.show_sessions, ["GET"]),
    SESSION_PATH: (show_timeline, ["GET"]),
    f"{SESSION_PATH}/entry/{{entry}}": (show_entry, ["GET"]),
    f"{SESSION_PATH}/sent": (requests.show_render, ["GET"]),
    f"{SESSION_PATH}/sent/{{render}}": (requests.show_render, ["GET"]),
    f"{SESSION_PATH}/sent/{{render}}/request.json": (requests.show_request_json, ["GET"]),
    f"{SESSION_PATH}/sent/{{render}}/request.sh": (requests.show_request_command, ["GET"]),
    f"{SESSION_PATH}/diff": (requests.show_render_diff, ["GET"]),
    f"{SESSION_PATH}/diff/{{render}}": (requests.show_render_diff, ["GET"]),
    f"{SESSION_PATH}/ask": (recalls.show_recall, ["GET", "POST"]),
    f"{SESSION_PATH}/facts": (sessions.show_facts, ["GET"]),
    f"{SESSION_PATH}/jobs": (show_jobs, ["GET"]),
    f"{SESSION_PATH}/cost": (show_costs, ["GET"]),
    f"{SESSION_PATH}/forks": (show_forks, ["GET"]),
    "/n/{namespace:path}": (sessions.show_namespace, ["GET"]),
    "/docs": (show_api_reference, ["GET"]),
}
