"""The page that runs recalls: one or two with their rankings, side by side; and the search in messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.responses import Response

from acms.inspector import advice, views
from acms.inspector.visit import Visit, build_version_query, gather_requests

__all__ = ["find_messages", "show_recall"]

PREVIEWS = 25
"""Left-out entries of a recall whose beginnings are shown, as the template lists as many."""
FOUND = 12
"""Messages that a search shows, about one screen."""
SEARCH_BUDGET = 20_000
"""Tokens of all messages of a search together, so that long tool results do not push others out."""
SIDE_FIELDS = ("query", "budget", "at", "scope", "rank")
"""Fields of a question; those of the second one end in 2."""
FILTER_FIELDS = ("role", "actor", "marker", "session", "after", "before")
OPTION_FIELDS = ("includeSuperseded", "relevantOnly")


async def show_recall(visit: Visit) -> Response:
    """Recall a question and explain every candidate, side by side with a second one if any of its fields is given."""
    header = await visit.session_header("ask")
    about = visit.argument("entry")
    form = _read_form(visit)
    sides: list[dict[str, Any]] = []
    if form["query"]:
        bodies = [_build_recall_body(visit, form, "", about)]
        if any(form[f"{name}2"] for name in SIDE_FIELDS):
            bodies.append(_build_recall_body(visit, form, "2", about))
        requests = [visit.api.post(f"{visit.path}/recall", body) for body in bodies]
        results = [reply["data"] for reply in await gather_requests(*requests)]
        for body, result in zip(bodies, results, strict=True):
            other_result = next((candidate for candidate in results if candidate is not result), None)
            sides.append(_build_recall_side(body, result, other_result, about))
    previewed = [about] if about else []
    for side in sides:
        previewed += [verdict["id"] for verdict in side["left"][:PREVIEWS]]
    previews = await visit.previews(previewed)
    sessions = await visit.session_names(previewed)
    return await visit.page(
        "ask.html", **header, sides=sides, form=form, about=about, previews=previews, sessions=sessions
    )


def _read_form(visit: Visit) -> dict[str, str]:
    names = [*SIDE_FIELDS, *(f"{name}2" for name in SIDE_FIELDS), *FILTER_FIELDS, *OPTION_FIELDS, "limit"]
    form = {name: visit.argument(name).strip() for name in names}
    form["budget"] = form["budget"] or "1000"
    return form


def _build_recall_body(visit: Visit, form: Mapping[str, str], suffix: str, about: str) -> dict[str, Any]:
    """Return the request of one side; fields that the second side leaves empty are those of the first."""
    side = {name: form[f"{name}{suffix}"] or form[name] for name in SIDE_FIELDS}
    budget = visit.number(f"budget{suffix}", 0) or visit.number("budget", 1000)
    body: dict[str, Any] = {"query": side["query"], "budget": budget, "why": True}
    body["about"] = [about] if about else []
    body |= build_version_query(side["at"])
    if "atVersion" in body:
        body["atVersion"] = int(body["atVersion"])
    body["scope"] = side["scope"] or "session"
    body["wordsOnly"] = side["rank"] == "words"
    where = {name: form[name] for name in FILTER_FIELDS if form[name]}
    if where:
        body["where"] = where
    if form["limit"]:
        body["limit"] = visit.number("limit", 1)
    for name in OPTION_FIELDS:
        body[name] = bool(form[name])
    return body


def _build_recall_side(
    body: Mapping[str, Any], result: Mapping[str, Any], other_result: Mapping[str, Any] | None, about: str
) -> dict[str, Any]:
    """Return the template values of one recall."""
    verdicts = advice.count_tokens_ahead(result["verdicts"])
    free = result["budget"] - result["tokens"]
    explained = next((verdict for verdict in verdicts if verdict["id"] == about), None)
    if about and explained is None:
        explained = _explain_unseen_entry(body, about)
    return {
        "found": result,
        "query": body["query"],
        "scope": body["scope"],
        "free": free,
        "items": views.rank_recalled_items(result, other_result),
        "left": [verdict for verdict in verdicts if not verdict["included"]],
        "about": explained,
        "advice": "" if explained is None else advice.suggest_inclusion(explained, free),
    }


def _explain_unseen_entry(body: Mapping[str, Any], about: str) -> dict[str, Any]:
    """Return the verdict on an entry that was no candidate of the recall."""
    if body["scope"] == "session":
        return views.build_rejection(
            about, "scope", "it belongs to another session, and this recall asks only one"
        )
    return views.build_rejection(about, "unseen", "no session of this namespace shows it at this version")


async def find_messages(visit: Visit, query: str, *, everywhere: bool) -> Sequence[Mapping[str, Any]]:
    """Return messages and facts that match a query, best first; `everywhere` searches all sessions of the namespace."""
    body = {
        "query": query,
        "budget": SEARCH_BUDGET,
        "limit": FOUND,
        "scope": "namespace" if everywhere else "session",
        "relevantOnly": True,
        "includeSuperseded": True,
    }
    reply = await visit.api.post(f"{visit.path}/recall", body)
    return views.sort_found_items(reply["data"]["items"], query)
