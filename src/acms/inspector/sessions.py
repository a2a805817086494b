"""The pages about sessions: their list, their namespace, their facts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from starlette.responses import Response

from acms.inspector import views
from acms.inspector.api import Refused, quote_path_parts
from acms.inspector.recalls import FOUND, SEARCH_BUDGET
from acms.inspector.visit import Visit, build_version_query, gather_requests
from acms.log.validation import UNNAMED

__all__ = ["show_facts", "show_namespace", "show_sessions"]

JsonObject = dict[str, Any]

SESSIONS = 50
"""Sessions of a namespace on one page, whose facts are read one by one."""


async def show_sessions(visit: Visit) -> Response:
    """List the sessions whose name, label, namespace or id contains all words of the query."""
    query = visit.argument("q")
    limit = 500 if query else 100
    page = await visit.api.get("/contexts", limit=limit, cursor=visit.argument("cursor"))
    words = query.lower().split()
    sessions = [context for context in page["data"] if _matches_all_words(context, words)]
    next_page = None
    if page["nextCursor"] is not None:
        next_page = urlencode({"cursor": page["nextCursor"], "q": query})
    return await visit.page(
        "sessions.html", sessions=sessions, query=query, more=next_page, named=views.display_name_of_context
    )


def _matches_all_words(context: Mapping[str, Any], words: Iterable[str]) -> bool:
    name = views.display_name_of_context(context)
    text = " ".join([name, context["namespace"], context["id"], *context["labels"]]).lower()
    return all(word in text for word in words)


async def show_namespace(visit: Visit) -> Response:
    """Show the sessions of a namespace, the facts of each and of the profile, and messages that match a query."""
    namespace = visit.request.path_params["namespace"]
    query = visit.argument("q")
    page = await visit.api.get("/contexts", namespace=namespace, limit=SESSIONS)
    sessions = page["data"]
    names = {context["id"]: views.display_name_of_context(context) for context in sessions}
    facts = await _list_facts(visit, namespace, sessions)
    facts_by_context = Counter(views.context_of_entry(fact["id"]) for fact in facts)
    contributions = Counter[str]()
    for fact in facts:
        contributions.update({views.context_of_entry(id) for id in fact["sources"]})
    found_messages = await _search_sessions(visit, namespace, sessions, query) if query else []
    return await visit.page(
        "namespace.html",
        namespace=namespace,
        sessions=sessions,
        names=names,
        facts=facts,
        facts_by_context=facts_by_context,
        contributions=contributions,
        found=found_messages,
        query=query,
        more=page["nextCursor"] is not None,
    )


async def _list_facts(visit: Visit, namespace: str, sessions: Sequence[JsonObject]) -> list[JsonObject]:
    """Return the facts of the profile and then those of each session, retired ones too."""
    paths = [f"{quote_path_parts('contexts', context['id'])}/facts" for context in sessions]
    requests: list[Any] = []
    if paths and namespace != UNNAMED:  # the profile is read through any of its sessions
        requests.append(visit.api.get(paths[0], history=True, limit=500, scope="namespace"))
    requests += [visit.api.get(path, history=True, limit=100) for path in paths]
    facts: list[JsonObject] = []
    for page in await gather_requests(*requests):
        facts += page["data"]
    return facts


async def _search_sessions(
    visit: Visit, namespace: str, sessions: Sequence[JsonObject], query: str
) -> list[tuple[JsonObject, JsonObject]]:
    """Return the messages of a namespace that match a query, best first, each with its session.

    The namespace "default" has no recall over all sessions, so each one is asked by itself.
    """
    by_key = {context["key"]: context for context in sessions}
    if namespace == UNNAMED:
        searched_sessions, scope = sessions, "session"
    else:
        searched_sessions, scope = sessions[:1], "namespace"
    results = await gather_requests(
        *[_search_session(visit, context, query, scope) for context in searched_sessions]
    )
    rows: list[tuple[JsonObject, JsonObject]] = []
    for context, items in zip(searched_sessions, results, strict=True):
        for item in items:
            rows.append((by_key.get(item["sessionId"], context), item))
    return sorted(rows, key=lambda row: -row[1]["relevance"])


async def _search_session(visit: Visit, context: JsonObject, query: str, scope: str) -> list[JsonObject]:
    body = {
        "query": query,
        "budget": SEARCH_BUDGET,
        "limit": FOUND * 2,
        "scope": scope,
        "relevantOnly": True,
        "includeSuperseded": True,
    }
    try:
        reply = await visit.api.post(f"{quote_path_parts('contexts', context['id'])}/recall", body)
    except Refused:
        return []
    return reply["data"]["items"]


async def show_facts(visit: Visit) -> Response:
    """Show facts of the session and of its profile by subject, with their evidence and the facts they replaced."""
    version = visit.argument("at")
    header = await visit.session_header("facts", version)
    page = await visit.api.get(f"{visit.path}/facts", history=True, limit=500, **build_version_query(version))
    facts = page["data"]
    if header["named"] and not header["past"]:
        profile = await visit.api.get(f"{visit.path}/facts", history=True, limit=500, scope="namespace")
        facts = [*profile["data"], *facts]
    ids = [fact["id"] for fact in facts]
    for fact in facts:
        ids += fact["sources"]
    return await visit.page(
        "facts.html",
        **header,
        subjects=views.group_by_subject(facts),
        more=page["hasMore"],
        sessions=await visit.session_names(ids),
    )
