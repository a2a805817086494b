"""One request for a page: its arguments, and the operations that it may use."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from acms.errors import ValidationError
from acms.inspector import views
from acms.inspector.api import API, Refused, quote_path_parts
from acms.log.validation import UNNAMED

__all__ = ["Visit", "build_version_query", "gather_requests"]

PREVIEW_CHARACTERS = 400
"""Characters of the beginning of an entry, about four lines of a table."""

Render = Callable[[Request, str, int, Mapping[str, Any]], Awaitable[Response]]
"""Renders a template with a status and values."""


class Visit:
    """One request for a page."""

    def __init__(self, request: Request, form: Mapping[str, str], api: API, render: Render) -> None:
        self.request = request
        self.form = form
        self.api = api
        self._render = render

    @property
    def context(self) -> str:
        """The id of the session that the page shows."""
        return str(self.request.path_params["context"])

    @property
    def url(self) -> str:
        """The address of the session's pages."""
        return f"/s{quote_path_parts(self.context)}"

    @property
    def path(self) -> str:
        """The path of the session's operations, below the service's base."""
        return quote_path_parts("contexts", self.context)

    def argument(self, name: str, default: str = "") -> str:
        """Return an argument of the form or the address."""
        return self.form.get(name) or self.request.query_params.get(name) or default

    def number(self, name: str, default: int) -> int:
        """Return a whole number above 0; `ValidationError` for anything else."""
        text = self.argument(name)
        if not text:
            return default
        is_number = text.isascii() and text.isdecimal() and len(text) < 16
        if not is_number or int(text) == 0:
            raise ValidationError("must be a whole number above 0", field=name)
        return int(text)

    async def session_header(self, tab: str, place: str = "") -> dict[str, Any]:
        """Return the values of the header of every page of a session."""
        details, stats, tags = await gather_requests(
            self.api.get(self.path),
            self.api.get(f"{self.path}/stats", **build_version_query(place)),
            self.api.get(f"{self.path}/tags"),
        )
        context = details["data"]
        head = context["latestVersion"]
        version = stats["data"]["version"]
        return {
            "tab": tab,
            "context": context,
            "name": views.display_name_of_context(context),
            "stats": stats["data"],
            "tags": tags["data"],
            "head": head,
            "at": version,
            "past": bool(place) and version < head,
            "url": self.url,
            "named": context["namespace"] != UNNAMED,
        }

    async def session_names(self, ids: Iterable[str]) -> dict[str, str]:
        """Return the names of the sessions whose logs hold some entries, by context id, without the page's own session.

        A session that is deleted, or that the visitor may not see, has no name.
        """
        contexts = {views.context_of_entry(id) for id in ids} - {"", self.context}
        ordered = sorted(contexts)
        names = await gather_requests(*[self._session_name(context) for context in ordered])
        return {context: name for context, name in zip(ordered, names, strict=True) if name}

    async def _session_name(self, context: str) -> str:
        try:
            reply = await self.api.get(quote_path_parts("contexts", context))
        except Refused:
            return ""
        return views.display_name_of_context(reply["data"])

    async def previews(self, ids: Iterable[str]) -> dict[str, str]:
        """Return the beginnings of entries by id; empty for an entry that the visitor may not read."""
        unique_ids = list(dict.fromkeys(ids))
        previews = await gather_requests(*[self._preview(id) for id in unique_ids])
        return dict(zip(unique_ids, previews, strict=True))

    async def _preview(self, id: str) -> str:
        context = views.context_of_entry(id) or self.context
        try:
            reply = await self.api.get(quote_path_parts("contexts", context, "entries", id))
        except Refused:
            return ""
        return str(reply["data"]["content"])[:PREVIEW_CHARACTERS]

    async def page(self, template: str, status: int = 200, **values: Any) -> Response:
        """Render a page, off the event loop."""
        return await self._render(self.request, template, status, values)


async def gather_requests(*requests: Awaitable[Any]) -> tuple[Any, ...]:
    """Run requests concurrently; each starts in its own turn of the event loop, so that none holds it for long."""
    tasks: list[Awaitable[Any]] = []
    for request in requests:
        tasks.append(asyncio.ensure_future(request))
        await asyncio.sleep(0)
    return tuple(await asyncio.gather(*tasks))


def build_version_query(place: str, side: str = "at") -> dict[str, str]:
    """Return the query parameter that names a version, such as "12" or "v12", or a tag; `side` begins its name."""
    if not place:
        return {}
    number = place.removeprefix("v")
    return {f"{side}Version": number} if number.isdecimal() else {f"{side}Tag": place}
