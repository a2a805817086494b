"""The pages: what each asks the service for, and which template writes it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from functools import partial
from importlib.resources import files
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from acms.errors import NotFoundError, PermissionDeniedError, TooLargeError, ValidationError
from acms.inspector import charts, views
from acms.inspector.api import API, Refused, quote_path_parts
from acms.inspector.visitors import Visitors, same_origin
from acms.runtime.threads import in_thread, pause_if_busy
from acms.runtime.version import __version__
from acms.server import App

__all__ = ["mounted"]

T = TypeVar("T")
Shown = Mapping[str, Any]
Handler = Callable[["Visit"], Awaitable[Response]]

ROWS = 80
"""Entries of a log that are loaded at a time."""
RENDERS = 50
SHOWN = 25
"""Of what a recall left out: how many are read, to say how they begin."""
FORM_BYTES = 65_536
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


def mounted(app: App, *, client_requests: ClientRequests | None = None) -> App:
    """Serve the pages below `/` of a service and return it; a read-only service has none of the buttons that write.

    With `client_requests` there is a page about the requests that came through a gateway.
    """
    app.mount("/", Inspector(app, client_requests).router)
    return app


class Visit:
    """One request for a page."""

    def __init__(self, of: Inspector, request: Request, form: Mapping[str, str]) -> None:
        self.request = request
        self.form = form
        self.api = API(of.app, request.scope, of.visitors.key(request))
        self._of = of

    @property
    def context(self) -> str:
        """The id of the session that is looked at."""
        return str(self.request.path_params["context"])

    def asked(self, name: str, default: str = "") -> str:
        """Return an argument of the form or the address."""
        return self.form.get(name) or self.request.query_params.get(name) or default

    def number(self, name: str, default: int) -> int:
        """Return a whole number above 0; `ValidationError` for anything else."""
        text = self.asked(name)
        if text and not (text.isascii() and text.isdecimal() and len(text) < 16 and int(text)):
            raise ValidationError("must be a whole number above 0", field=name)
        return int(text or default)

    async def session(self, tab: str, at: str = "") -> dict[str, Any]:
        """Return what every page of a session shows above its own matter."""
        here = quote_path_parts("contexts", self.context)
        details, stats, tags = await gather_requests(
            self.api.get(here),
            self.api.get(f"{here}/stats", **build_version_query(at)),
            self.api.get(f"{here}/tags"),
        )
        info, counts = details["data"], stats["data"]
        return {
            "tab": tab,
            "context": info,
            "name": views.display_name_of_context(info),
            "stats": counts,
            "tags": tags["data"],
            "head": info["latestVersion"],
            "at": counts["version"],
            "past": bool(at) and counts["version"] < info["latestVersion"],
            "url": f"/s{quote_path_parts(self.context)}",
            "here": here,
        }

    async def page(self, template: str, status: int = 200, **values: Any) -> Response:
        """Write a page, off the event loop."""
        return await self._of.write(self.request, template, status, values)


class Inspector:
    """The pages of one service."""

    def __init__(self, app: App, client_requests: ClientRequests | None = None) -> None:
        self.app: ASGIApp = app
        self._client_requests = client_requests
        self._tabs = TABS if client_requests is None else (*TABS, "gateway")
        self.visitors = Visitors()
        self._writes = app.config.writes
        self._keys = app.config.auth == "required"
        self._files = {
            one.name: one.read_bytes() for one in files("acms.inspector").joinpath("static").iterdir()
        }
        self._templates = _build_templates()
        session = "/s/{context}"
        pages: list[tuple[str, Handler, str]] = [
            ("/", show_sessions, "GET"),
            (session, show_timeline, "GET"),
            (f"{session}/entry/{{entry}}", show_entry, "GET"),
            (f"{session}/sent", show_render, "GET"),
            (f"{session}/sent/{{render}}", show_render, "GET"),
            (f"{session}/diff", partial(show_render, compared=True), "GET"),
            (f"{session}/diff/{{render}}", partial(show_render, compared=True), "GET"),
            (f"{session}/ask", show_recall, "GET"),
            (f"{session}/ask", show_recall, "POST"),
            (f"{session}/facts", show_facts, "GET"),
            (f"{session}/jobs", show_jobs, "GET"),
            (f"{session}/cost", show_costs, "GET"),
            (f"{session}/forks", show_forks, "GET"),
            ("/docs", show_api_reference, "GET"),
        ]
        if client_requests is not None:
            pages.append((f"{session}/gateway", partial(show_client_requests, client_requests), "GET"))
        if self._writes:
            pages.append((f"{session}/do/{{what}}", run_action, "POST"))
        paths: dict[str, dict[str, Handler]] = {}
        for at, handler, method in pages:
            paths.setdefault(at, {})[method] = handler
        routes = [
            Route(at, self._answering(handlers), methods=list(handlers)) for at, handlers in paths.items()
        ]
        routes += [
            Route("/static/{name}", self._static),
            Route("/sign-in", self._sign_in, methods=["GET", "POST"]),
            Route("/sign-out", self._sign_out, methods=["POST"]),
        ]
        self.router = Router(routes, redirect_slashes=False, default=_reject_unknown_path)

    # ── answering ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _answering(self, handlers: Mapping[str, Handler]) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            if self._keys and self.visitors.key(request) is None:
                return RedirectResponse("/sign-in", 303, headers=HEADERS)
            form = await self._form(request) if request.method == "POST" else {}
            visit = Visit(self, request, form)
            try:
                return await handlers["GET" if request.method == "HEAD" else request.method](visit)
            except Refused as refused:
                if refused.status == 401:
                    return RedirectResponse("/sign-in", 303, headers=HEADERS)
                return await visit.page("error.html", refused.status, error=refused)
            except ValidationError as error:
                return await visit.page(
                    "error.html", 400, error=Refused(400, {"detail": str(error), "code": error.code})
                )

        return answer

    async def write(self, request: Request, template: str, status: int, values: Shown) -> Response:
        """Write a template with what all of them are given."""
        common = {"writes": self._writes, "keys": self._keys, "tabs": self._tabs, "path": request.url.path}
        shown = self._templates.get_template(template)
        text = await in_thread(partial(_render_template, shown, {**common, **values}))
        return Response(text, status, HEADERS, "text/html; charset=utf-8")

    async def _form(self, request: Request) -> dict[str, str]:
        """Return what a page of ours sends; `PermissionDeniedError` for one of somebody else."""
        if not same_origin(request):
            raise PermissionDeniedError("this is accepted from the inspector's own pages only")
        body = bytearray()
        async for piece in request.stream():
            body += piece
            if len(body) > FORM_BYTES:
                raise TooLargeError(f"has more than {FORM_BYTES} bytes", field="body")
        return dict(parse_qsl(body.decode("utf-8", "replace"), max_num_fields=64))

    # ── what is there without a session ─────────────────────────────────────────────────────────────────────────────

    async def _static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._files:
            raise NotFoundError("there is no such file")
        caching = {"cache-control": "private, max-age=3600"}
        return Response(self._files[name], 200, caching, TYPES.get(name.rpartition(".")[2]))

    async def _sign_in(self, request: Request) -> Response:
        refused = None
        if request.method == "POST":
            key = (await self._form(request)).get("key", "").strip()
            try:
                await API(self.app, request.scope, key).get("/contexts", limit=1)
                found = RedirectResponse("/", 303, headers=HEADERS)
                self.visitors.enter(request, found, key)
                return found
            except Refused as error:
                refused = error
        return await self.write(
            request, "sign_in.html", 200 if refused is None else refused.status, {"error": refused}
        )

    async def _sign_out(self, request: Request) -> Response:
        await self._form(request)
        found = RedirectResponse("/sign-in" if self._keys else "/", 303, headers=HEADERS)
        self.visitors.leave(request, found)
        return found


def _build_templates() -> Environment:
    """Return the templates, with the filters and functions that they use."""
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
        "ticks": _markup_backticks,
    }
    templates.filters.update(filters)
    known: dict[str, Any] = {
        "advice": views.suggest_inclusion,
        "url_of": quote_path_parts,
        "version": __version__,
    }
    templates.globals.update(known)
    return templates


async def _reject_unknown_path(scope: Scope, receive: Receive, send: Send) -> None:
    raise NotFoundError("there is nothing at this path", options=("/ is the inspector, /docs the reference",))


async def gather_requests(*asked: Awaitable[Any]) -> tuple[Any, ...]:
    """Ask for several things at a time, each from a turn of the event loop of its own on."""
    began: list[Awaitable[Any]] = []
    for one in asked:
        began.append(asyncio.ensure_future(one))
        await asyncio.sleep(0)
    return tuple(await asyncio.gather(*began))


def _render_template(template: Template, values: Shown) -> str:
    """Write a template, and let the event loop in between."""
    pieces: list[str] = []
    for piece in template.generate(values):
        pieces.append(piece)
        pause_if_busy()
    return "".join(pieces)


def build_version_query(at: str) -> dict[str, str]:
    """Return a version or a tag as operations take it."""
    return {} if not at else {"atVersion": at} if at.isdecimal() else {"atTag": at}


def _format_time(text: str | None, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    return "" if not text else datetime.fromisoformat(text).strftime(form)


def _markup_backticks(text: str) -> Markup:
    """Return a text whose words in backticks are code."""
    pieces = [escape(one) for one in text.split("`")]
    return Markup("").join(
        [Markup("<code>{}</code>").format(one) if at % 2 else one for at, one in enumerate(pieces)]
    )


def _format_percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "–"


# ── pages ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def show_sessions(visit: Visit) -> Response:
    """List the sessions whose name, label or namespace holds what is looked for."""
    query, cursor = visit.asked("q"), visit.asked("cursor")
    listed = await visit.api.get("/contexts", limit=500 if query else 100, cursor=cursor)
    words = query.lower().split()
    found = [
        one
        for one in listed["data"]
        if all(
            word
            in " ".join(
                [views.display_name_of_context(one), one["namespace"], one["id"], *one["labels"]]
            ).lower()
            for word in words
        )
    ]
    more = None if listed["nextCursor"] is None else urlencode({"cursor": listed["nextCursor"], "q": query})
    return await visit.page(
        "sessions.html", sessions=found, query=query, more=more, named=views.display_name_of_context
    )


async def show_timeline(visit: Visit) -> Response:
    """Show a log as it was at a version, newest first, a stretch at a time."""
    at = visit.asked("at")
    shown = await visit.session("timeline", at)
    before = min(visit.number("before", shown["at"] + 1), shown["at"] + 1)
    after = max(0, before - 1 - ROWS)
    entries: list[Any] = []
    messages: list[Any] = []
    if before - 1 > after:
        limit, here = before - 1 - after, shown["here"]
        history, spoken = await gather_requests(
            visit.api.get(f"{here}/history", atVersion=shown["at"], cursor=after, limit=limit),
            visit.api.get(f"{here}/messages", cursor=after, limit=limit),
        )
        entries, messages = history["data"], spoken["data"]
    rows = views.build_timeline_rows(entries, messages)
    return await visit.page("timeline.html", **shown, rows=rows, older=after + 1 if after else None)


async def show_entry(visit: Visit) -> Response:
    """Show one entry whole, with where it comes from."""
    shown = await visit.session("timeline")
    found = await visit.api.get(
        shown["here"] + quote_path_parts("entries", visit.request.path_params["entry"])
    )
    return await visit.page("entry.html", **shown, entry=found["data"])


async def show_render(visit: Visit, *, compared: bool = False) -> Response:
    """Show what the model saw, or what is different about it from the render before."""
    shown = await visit.session("diff" if compared else "sent")
    listed = await visit.api.get(f"{shown['here']}/renders", limit=RENDERS)
    renders = listed["data"]
    first = next((one["id"] for one in renders if not compared or one["previous"]), None)
    chosen = visit.request.path_params.get("render") or first or (renders[0]["id"] if renders else None)
    render = None
    if chosen:
        render = (await visit.api.get(shown["here"] + quote_path_parts("renders", chosen)))["data"]
    more: dict[str, Any] = {"render": render, "renders": renders}
    if render is not None:
        verdicts = {one["id"]: one for one in render["verdicts"]}
        left = [one for one in render["verdicts"] if not one["included"]]
        more |= {
            "segments": charts.build_waterfall(render["use"], 1000),
            "verdicts": verdicts,
            "left": sorted(left, key=lambda one: -one["score"]),
            "lines": views.build_diff_lines(render),
        }
    return await visit.page("diff.html" if compared else "sent.html", **shown, **more)


async def show_client_requests(read: ClientRequests, visit: Visit) -> Response:
    """Show what a client asked of a gateway, what was sent, and why they differ, newest first."""
    shown = await visit.session("gateway")
    requests = await read(shown["context"]["namespace"], shown["name"])
    return await visit.page("gateway.html", **shown, requests=list(reversed(requests)))


async def show_recall(visit: Visit) -> Response:
    """Ask the memory, and say of everything why it is shown or not; side by side with other settings where given."""
    at, about = visit.asked("at"), visit.asked("entry")
    shown = await visit.session("ask")
    query, other = visit.asked("query"), visit.asked("budget2") or visit.asked("at2")
    budget, budget2 = visit.number("budget", 1000), visit.number("budget2", 0)
    sides: list[dict[str, Any]] = []
    if query:
        asked = [(budget, at), (budget2 or budget, visit.asked("at2"))][: 2 if other else 1]
        found = [
            one["data"]
            for one in await gather_requests(*[_request_recall(visit, query, *one, about) for one in asked])
        ]
        for side, (size, version) in zip(found, asked, strict=True):
            rest = [one for one in side["verdicts"] if not one["included"]]
            beside = None if len(found) == 1 else found[1 - found.index(side)]
            sides.append(
                {
                    "found": side,
                    "items": views.rank_recalled_items(side, beside),
                    "left": rest,
                    "about": next((one for one in side["verdicts"] if one["id"] == about), None),
                    "budget": size,
                    "at": version,
                }
            )
    previews = await _load_previews(
        visit, shown["here"], [one["id"] for side in sides for one in side["left"][:SHOWN]], about
    )
    form = {"query": query, "budget": budget, "at": at, "budget2": budget2 or "", "at2": visit.asked("at2")}
    return await visit.page("ask.html", **shown, sides=sides, form=form, about=about, previews=previews)


async def _request_recall(visit: Visit, query: str, budget: int, at: str, about: str) -> Any:
    body: dict[str, Any] = {"query": query, "budget": budget, "why": True, "about": [about] if about else []}
    body |= {
        name: int(value) if name == "atVersion" else value for name, value in build_version_query(at).items()
    }
    return await visit.api.post(quote_path_parts("contexts", visit.context, "recall"), body)


async def _load_previews(visit: Visit, here: str, ids: list[str], about: str) -> dict[str, str]:
    """Return how some entries begin; of what may not be read, nothing."""

    async def one(id: str) -> str:
        try:
            return str((await visit.api.get(here + quote_path_parts("entries", id)))["data"]["content"])[:400]
        except Refused:
            return ""

    wanted: list[str] = list(dict.fromkeys([about, *ids] if about else ids))
    return dict(zip(wanted, await gather_requests(*map(one, wanted)), strict=True))


async def show_facts(visit: Visit) -> Response:
    """Show what is known, by subject, with its evidence and what it replaced."""
    at = visit.asked("at")
    shown = await visit.session("facts", at)
    listed = await visit.api.get(f"{shown['here']}/facts", history=True, limit=500, **build_version_query(at))
    return await visit.page(
        "facts.html", **shown, subjects=views.group_by_subject(listed["data"]), more=listed["hasMore"]
    )


async def show_jobs(visit: Visit) -> Response:
    """Show what is being worked off, and what summaries stand for."""
    shown = await visit.session("jobs")
    listed, compactions, episodes = await gather_requests(
        visit.api.get("/jobs", contextId=visit.context, limit=100),
        visit.api.get(f"{shown['here']}/compactions", limit=100),
        visit.api.get(f"{shown['here']}/episodes", limit=50, cursor=max(0, shown["stats"]["episodes"] - 50)),
    )
    more = {"jobs": listed["data"], "compactions": compactions["data"], "episodes": episodes["data"][::-1]}
    return await visit.page("jobs.html", **shown, **more)


async def show_costs(visit: Visit) -> Response:
    """Show what requests cost over time, by part and by speaker, and what of it answers cited."""
    shown = await visit.session("cost")
    listed, messages, cited = await gather_requests(
        visit.api.get(f"{shown['here']}/renders", limit=100),
        visit.api.get(f"{shown['here']}/messages", order="desc", limit=500),
        visit.api.get(f"{shown['here']}/citations"),
    )
    renders = listed["data"]
    parts = {name: sum(max(0, one["use"][name]) for one in renders) for name in charts.PARTS}
    more: dict[str, Any] = {
        "renders": renders,
        "bars": charts.build_cost_bars(renders, 1000, 200),
        "parts_of": parts,
        "speakers": views.by_speaker(messages["data"]),
        "cited": sorted(cited["data"], key=lambda one: (-one["count"], one["id"])),
        "most": max((one["tokens"] for one in renders), default=0),
    }
    return await visit.page("cost.html", **shown, **more)


async def show_forks(visit: Visit) -> Response:
    """Show the tree, how what is in force differs between two branches or versions, and what a merge would do."""
    shown = await visit.session("forks")
    tree = (await visit.api.get(f"{shown['here']}/tree"))["data"]
    left, other, right = visit.asked("left"), visit.asked("other"), visit.asked("right")
    diff = None
    if other or left or right:
        there = {
            "other": other,
            **{f"other{name[2:]}": value for name, value in build_version_query(right).items()},
        }
        diff = (await visit.api.get(f"{shown['here']}/diff", **build_version_query(left), **there))["data"]
    source, merge = visit.asked("merge"), None
    if source:
        merge = (await visit.api.get(f"{shown['here']}/merge", other=source))["data"]
    form = {"left": left, "other": other, "right": right, "merge": source}
    return await visit.page("forks.html", **shown, tree=tree, diff=diff, merge=merge, form=form)


async def show_api_reference(visit: Visit) -> Response:
    """Show the reference of the HTTP API, written from its OpenAPI document."""
    document = await visit.api.get("/openapi.json")
    groups: dict[str, list[dict[str, Any]]] = {}
    for at, methods in document["paths"].items():
        for method, one in methods.items():
            groups.setdefault(one["tags"][0], []).append({**one, "path": at, "method": method.upper()})
    return await visit.page(
        "docs.html", document=document, groups=groups, schemas=document["components"]["schemas"]
    )


async def run_action(visit: Visit) -> Response:
    """Do what a button says, and go back to its page."""
    here, what = quote_path_parts("contexts", visit.context), visit.request.path_params["what"]
    if what == "undo":
        await visit.api.post(f"{here}/undo", {"version": visit.number("version", 0)})
    elif what == "undo-compaction":
        await visit.api.post(here + quote_path_parts("compactions", visit.asked("version"), "undo"))
    elif what == "withdraw":
        address = {name: visit.asked(name) for name in ("subject", "attribute")}
        await visit.api.post(f"{here}/facts/withdraw", address)
    elif what in ("retry", "cancel"):
        await visit.api.post(quote_path_parts("jobs", visit.asked("job"), what))
    elif what == "forget":
        await visit.api.post(f"{here}/renders", method="DELETE")
    else:
        raise NotFoundError("there is no such action")
    back = visit.asked("back")
    return RedirectResponse(
        f"/s{quote_path_parts(visit.context)}/{back if back in TABS else ''}".rstrip("/"),
        303,
        headers=HEADERS,
    )
