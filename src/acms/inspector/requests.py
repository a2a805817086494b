"""The pages about requests that were sent: the payload, its blocks, the entries left out, two requests compared."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from starlette.responses import PlainTextResponse, Response

from acms.errors import NotFoundError
from acms.inspector import advice, charts, views
from acms.inspector.api import Refused, quote_path_parts
from acms.inspector.payloads import format_curl_command, list_payload_parts
from acms.inspector.recalls import find_messages
from acms.inspector.visit import Visit, gather_requests

__all__ = ["show_render", "show_render_diff", "show_request_command", "show_request_json"]

JsonObject = dict[str, Any]

PLAIN = {"x-content-type-options": "nosniff", "cache-control": "no-store"}
"""Headers of text that a browser must not take for a page."""
LISTED = 40
"""Left-out entries that the template lists."""
ASKED_BUDGET = 4000
"""Tokens of a recall that only explains entries; its items are not shown."""


async def show_render(visit: Visit) -> Response:
    """Show a request as it was sent, or its blocks with their sources, and why any message is not in it."""
    header = await visit.session_header("sent")
    renders = await _list_renders(visit)
    newest = renders[0]["id"] if renders else None
    values = await _load_render(visit, newest)
    render = values["render"]
    query = visit.argument("find")
    found_messages: list[JsonObject] = []
    if render is not None and query:
        found_messages = await _explain_found_messages(visit, header["named"], render, query)
    parts = list_payload_parts(render["payload"]) if render is not None and render["payload"] else []
    as_blocks = visit.argument("as") == "blocks" or not parts
    return await visit.page(
        "sent.html",
        **header,
        **values,
        renders=renders,
        parts_sent=parts,
        blocks=as_blocks,
        query=query,
        found=found_messages,
    )


async def show_render_diff(visit: Visit) -> Response:
    """Show the changes of a request since another one, by default the previous one of its kind."""
    header = await visit.session_header("diff")
    renders = await _list_renders(visit)
    comparable = [render for render in renders if render["previous"]]
    newest = next((render["id"] for render in comparable or renders), None)
    against = visit.argument("against")
    values = await _load_render(visit, newest, against)
    return await visit.page("diff.html", **header, **values, renders=renders, against=against)


async def show_request_json(visit: Visit) -> Response:
    """Return the payload of a request as JSON text."""
    render = await _get_render(visit, visit.request.path_params["render"])
    if not render["payload"]:
        raise NotFoundError(render["payloadNote"])
    return PlainTextResponse(json.dumps(render["payload"], ensure_ascii=False, indent=1), headers=PLAIN)


async def show_request_command(visit: Visit) -> Response:
    """Return a shell command that sends the payload of a request."""
    render = await _get_render(visit, visit.request.path_params["render"])
    command = None
    if render["payload"]:
        command = format_curl_command(render["codec"], render["model"], render["payload"])
    if command is None:
        raise NotFoundError(
            render["payloadNote"] or f"no address is known for the format {render['codec']!r}"
        )
    return PlainTextResponse(command, headers=PLAIN)


async def _list_renders(visit: Visit) -> list[JsonObject]:
    page = await visit.api.get(f"{visit.path}/renders", limit=50)
    return page["data"]


async def _get_render(visit: Visit, id: str, against: str = "") -> JsonObject:
    reply = await visit.api.get(visit.path + quote_path_parts("renders", id), against=against)
    render = reply["data"]
    return {**render, "verdicts": advice.count_tokens_ahead(render["verdicts"])}


async def _load_render(visit: Visit, default: str | None, against: str = "") -> JsonObject:
    """Return the template values of the render in the path, or of a default one."""
    id = visit.request.path_params.get("render") or default
    if id is None:
        return {"render": None}
    render = await _get_render(visit, id, against)
    left_out = [verdict for verdict in render["verdicts"] if not verdict["included"]]
    left_out.sort(key=lambda verdict: -verdict["score"])
    ids = [verdict["id"] for verdict in left_out[:LISTED]]
    for block in render["blocks"]:
        ids += block["sources"]
    return {
        "render": render,
        "segments": charts.build_waterfall(render["use"], 1000),
        "verdicts": {verdict["id"]: verdict for verdict in render["verdicts"]},
        "left": left_out,
        "lines": views.build_diff_lines(render),
        "sessions": await visit.session_names(ids),
        "counts": views.count_sources(render["blocks"]),
        "question": views.last_question(render["blocks"]),
    }


# ── why not this one? ───────────────────────────────────────────────────────────────────────────────────────────────


async def _explain_found_messages(
    visit: Visit, has_shared_namespace: bool, render: JsonObject, query: str
) -> list[JsonObject]:
    """Return messages that match a query, each with the decision of the request about it, where there is one."""
    items = await find_messages(visit, query, everywhere=has_shared_namespace)
    recorded = {verdict["id"]: verdict for verdict in render["verdicts"]}
    unknown = [item["id"] for item in items if item["id"] not in recorded]
    verdicts = recorded | await _decide_again(visit, has_shared_namespace, render, unknown)
    rows: list[JsonObject] = []
    for item in items:
        verdict = verdicts.get(item["id"])
        if verdict is not None:
            free = render["use"]["free"]
            rows.append(
                {
                    "item": item,
                    "verdict": verdict,
                    # Whether a recall of today decided; an entry that is later, or elsewhere, needs none.
                    "again": item["id"] not in recorded and verdict["rule"] not in ("later", "scope"),
                    "figures": "" if verdict["included"] else advice.describe_figures(verdict, free),
                    "advice": advice.suggest_inclusion(verdict, free),
                }
            )
    rows.sort(key=lambda row: row["verdict"]["rule"] == "later")  # what the request could not know comes last
    return rows


async def _decide_again(
    visit: Visit, has_shared_namespace: bool, render: JsonObject, ids: Sequence[str]
) -> dict[str, JsonObject]:
    """Return verdicts on entries that the request decided nothing about, by id.

    Their context and version explain some; a recall of the request's question explains the others.
    """
    verdicts: dict[str, JsonObject] = {}
    own_ids: list[str] = []
    foreign_ids: list[str] = []
    reads_others = has_shared_namespace and _considers_other_sessions(visit.context, render)
    for id in ids:
        version = views.version_of_entry(id)
        if views.context_of_entry(id) == visit.context:
            if version <= render["version"]:
                own_ids.append(id)
                continue
            reason = f"written as v{version}; the request read the log up to v{render['version']}"
            verdicts[id] = views.build_rejection(id, "later", reason)
        elif reads_others:
            foreign_ids.append(id)
        else:
            reason = "it belongs to another session, and the request considered no entry of another session"
            verdicts[id] = views.build_rejection(id, "scope", reason)
    question = views.last_question(render["blocks"])
    recalls: list[JsonObject] = []
    if own_ids and question:
        recalls.append({"about": own_ids, "atVersion": render["version"]})
    if foreign_ids and question:
        recalls.append({"about": foreign_ids, "scope": "namespace"})
    replies = await gather_requests(
        *[_ask_recall_for_verdicts(visit, question, recall) for recall in recalls]
    )
    for reply in replies:
        verdicts |= {verdict["id"]: verdict for verdict in map(_reject_unconsidered, reply)}
    return verdicts


def _considers_other_sessions(context: str, render: JsonObject) -> bool:
    """Return whether a request shows or rejects a message of another session."""
    ids = [verdict["id"] for verdict in render["verdicts"] if not verdict["id"].startswith("f_")]
    return bool({views.context_of_entry(id) for id in ids} - {"", context})


def _reject_unconsidered(verdict: JsonObject) -> JsonObject:
    """Return the verdict of a later recall as one on a request that did not show the entry."""
    if not verdict["included"]:
        return verdict  # the recall's own reason also explains the request
    reason = (
        f"the request did not consider it; a recall of its question with {ASKED_BUDGET:,} tokens shows it"
    )
    return {**verdict, "included": False, "rule": "unasked", "reason": reason}


async def _ask_recall_for_verdicts(visit: Visit, question: str, options: JsonObject) -> list[JsonObject]:
    """Return the verdicts of a recall of a question on the entries that its options name.

    Return none if the service refuses the recall: the page then shows no decision for these entries.
    """
    body = {"query": question, "budget": ASKED_BUDGET, "relevantOnly": True, **options}
    try:
        reply = await visit.api.post(f"{visit.path}/recall", body)
    except Refused:
        return []
    return reply["data"]["verdicts"] or []
