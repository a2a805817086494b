"""The v0 contract over HTTP: `render_request.v0` in, `render_context_reply.v0` out.

Names are those of the contract, in snake_case, and the body is bare: what a caller of that contract expects.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from importlib.resources import files
from typing import Annotated
from urllib.parse import quote

from pydantic import Field

from acms.contract import problem_details
from acms.contract.schema import RenderRequest
from acms.errors import ACMSError, NotAcceptableError, ValidationError
from acms.model import Json
from acms.server.operation import Call, Operations, Query, Reply, Scope

__all__ = ["operations"]

operations = Operations("contract")

_PRINTED = "".join(map(chr, range(0x21, 0x7F)))


def _load_schema(name: str) -> dict[str, Json]:
    text = (files("acms") / "schemas" / f"{name}.v0.json").read_text(encoding="utf-8")
    return {key: value for key, value in json.loads(text).items() if not key.startswith("$")}


class RenderQuery(Query):
    """Parameters that the contract leaves to the adapter. Lists are separated by commas."""

    contexts: str = ""
    """Ids of the contexts to read, separated by commas."""
    action: str | None = None
    """Option of an earlier error to execute; send the same `request_id` as attempt 2."""
    attempt: Annotated[int, Field(ge=1)] = 1
    """Number of this attempt, from 1."""
    cache: str = ""
    """Keys that the caller's cache holds, separated by commas; `kv_policy` also gives advice about them."""
    lenient: bool = False
    """Accept an intent of the form `{goal, entities}`, and ignore unknown fields."""
    extended: bool = False
    """Add fields beyond strict v0: the layer of each fragment and the experience slice."""


def _split_names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(filter(None, text.split(","))))


def _quote_header(value: str) -> str:
    """Return a text as a header value, percent-encoded where it holds characters that a header cannot."""
    return quote(value, safe=_PRINTED)


@operations(
    "POST",
    "/orchestration/render",
    scope=Scope.MEMORY_READ,
    query=RenderQuery,
    body=dict,
    schema=_load_schema("render_request"),
    reply=_load_schema("render_context_reply"),
    writes=False,
    contract=True,
    example={
        "version": "v0",
        "id": "6f3b6f21-7a5f-4e3f-9af0-1b2c3d4e5f60",
        "request_id": "req-1",
        "intent": "implement orders migration",
        "budgets": {"tokens_max": 4500, "time_ms": 800},
        "risk_profile": {"level": "medium"},
        "privacy_mode": "redact",
    },
)
async def render_context(call: Call[RenderQuery, Mapping[str, Json]]) -> Reply:
    """Answer a `render_request.v0`: fragments within the budget, or an error with options.

    `contexts` names the contexts to read. Errors of the contract come with status 200 in `error`; status 400 is an
    invalid request, for which no source was asked. `X-Request-ID` is the `request_id` of the body, `X-Warnings` lists
    the codes of the warnings. The reply is one JSON object: streams of v0.2 are refused with 406.
    """
    _check_accept(call.headers.get("accept", ""))
    try:
        return await _build_render_reply(call)
    except ACMSError as error:
        request_id = call.body.get("request_id")
        has_valid_id = isinstance(request_id, str) and 0 < len(request_id) <= 128
        if error.retryable or not has_valid_id:
            raise  # it is answered like the errors of other operations
        assert isinstance(request_id, str)
        problem = problem_details.serialize_problem(error, request_id=request_id)
        return Reply(
            body={**problem, "message": problem["detail"], "request_id": request_id},
            status=problem["status"],
            headers={"X-Request-ID": _quote_header(request_id)},
            media=problem_details.MEDIA_TYPE,
        )


async def _build_render_reply(call: Call[RenderQuery, Mapping[str, Json]]) -> Reply:
    """Answer a render request from the named contexts and the sources of the service."""
    query = call.query
    request = RenderRequest.of(call.body, lenient=query.lenient)
    ids = _split_names(query.contexts)
    if len(ids) > 16:  # each requires a separate search
        raise ValidationError(f"names {len(ids)} contexts, the limit is 16", field="contexts")
    if not ids and not call.tenant.engine.sources:
        raise ValidationError("must name the contexts to search", field="contexts")
    acs = await call.tenant.contract(ids)
    # The sources get nine tenths of the deadline, the reply the rest.
    max_ms = 0.9 * 1000 * call.config.limits.deadline_seconds
    reply = await acs.render(
        replace(request, time_ms=min(request.time_ms, max_ms)),
        action=query.action,
        attempt=query.attempt,
        cache=_split_names(query.cache) or None,
    )
    headers = {"X-Request-ID": _quote_header(reply.request_id)}
    if reply.warnings:
        codes = dict.fromkeys(_quote_header(warning.code) for warning in reply.warnings)
        headers["X-Warnings"] = ",".join(codes)
    return Reply(body=reply.to_wire(extended=query.extended), headers=headers)


def _check_accept(accept: str) -> None:
    """Raise `NotAcceptableError` if the client does not accept JSON."""
    media_types = {media_type.partition(";")[0].strip().lower() for media_type in accept.split(",")}
    media_types.discard("")
    if media_types and media_types.isdisjoint(("application/json", "application/*", "*/*")):
        raise NotAcceptableError("the reply is application/json; there are no streams", field="accept")
