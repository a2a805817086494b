"""The OpenAPI 3.1 document of the service, written from its operations."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from acms.contract import problem_details
from acms.model import Json
from acms.server.operation import BASE, Operation
from acms.server.replies import REF, build_reply_schema

__all__ = ["build_openapi_document"]

_PROBLEM: Mapping[str, Json] = {
    "type": "object",
    "required": ["type", "title", "status", "detail", "code", "retryable", "options", "requestId"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string", "enum": sorted(problem_details.STATUS)},
        "retryable": {"type": "boolean"},
        "options": {"type": "array", "items": {"type": "string"}},
        "pythonOptions": {"type": "array", "items": {"type": "string"}},
        "requestId": {"type": "string"},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["field", "message"],
                "properties": {"field": {"type": "string"}, "message": {"type": "string"}},
            },
        },
        "budget": {"type": "integer"},
        "required": {"type": "integer"},
        "where": {"type": "string"},
        "tried": {"type": "array", "items": {"type": "string"}},
        "conflicts": {"type": "array", "items": {"$ref": "#/components/schemas/MergeConflict"}},
        "jobId": {"type": "string"},
        "provider": {"type": "string"},
        "scope": {"type": "string"},
    },
}
_HEADERS: Mapping[str, str] = {
    "Idempotency-Key": "Makes the request have its effect once, however often it is sent.",
    "If-Match": "The ETag that was last seen: refused with 412 when a message came after it.",
    "Last-Event-ID": "The id of the last event that was handled; goes before `after`. A browser sends it by itself.",
    "Prefer": "`wait=n`: wait up to n seconds for the job to end (RFC 7240).",
}
_PATTERNS: Mapping[str, str] = {
    "Idempotency-Key": r"\S",
    "If-Match": r'^(\*|"[A-Za-z0-9_.:-]{1,128}")$',
}
_GIVES: Mapping[str, Mapping[str, str]] = {
    "createContext": {"context_id": "/data/id"},
    "forkContext": {"context_id": "/data/id"},
    "appendMessages": {"entry_id": "/data/0/id", "version": "/data/0/version"},
    "compactContext": {"job_id": "/data/job/id"},
    "reflectContext": {"job_id": "/data/id"},
    "addWebhook": {"webhook_id": "/data/id"},
    "putTag": {"name": "/data/name"},
}
"""Where an answer has what the paths of other operations ask for: these become its links."""


def build_openapi_document(operations: Iterable[Operation], version: str) -> dict[str, Json]:
    """Return the document."""
    listed = list(operations)
    bodies = {one.body for one in listed if _is_model(one.body)}
    queries = {one.query for one in listed if one.query is not None}
    wanted: list[tuple[Any, Any]] = [(one, "validation") for one in (*bodies, *queries)]
    wanted.sort(key=lambda pair: pair[0].__name__)
    keys, found = models_json_schema(wanted, by_alias=True, ref_template=REF)
    schemas: dict[str, Json] = {**found.get("$defs", {}), "Problem": dict(_PROBLEM)}
    paths: dict[str, dict[str, Json]] = {}
    for one in listed:
        path = one.path if one.rooted else BASE + one.path
        paths.setdefault(path, {})[one.method.lower()] = _describe_operation(
            one, path, keys, schemas, _build_links(one, listed)
        )
    for query in queries:
        schemas.pop(str(keys[query, "validation"]["$ref"]).rpartition("/")[2], None)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "ACMS",
            "version": version,
            "description": "Keeps every message of an agent, and decides what the model sees.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"key": []}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer", "bearerFormat": "acms_<id>_<secret>"}
            },
            "responses": {
                "Problem": {
                    "description": "What went wrong, and what can be done (RFC 9457).",
                    "content": {problem_details.MEDIA: {"schema": {"$ref": REF.format(model="Problem")}}},
                }
            },
        },
    }


def _is_model(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, BaseModel)


def _describe_operation(
    one: Operation,
    path: str,
    keys: Mapping[Any, Mapping[str, Json]],
    schemas: dict[str, Json],
    links: Mapping[str, Json],
) -> dict[str, Json]:
    answer = _describe_response(one, schemas, links)
    written: dict[str, Json] = {
        "operationId": one.name,
        "tags": [one.tag],
        "summary": one.summary,
        "parameters": _describe_parameters(one, path, keys, schemas),
        "responses": {
            str(one.status): answer,
            **{str(status): {**answer, "description": said} for status, said in one.also.items()},
            "default": {"$ref": "#/components/responses/Problem"},
        },
    }
    if one.description:
        written["description"] = one.description
    if one.scope is None:
        written["security"] = []
    else:
        written["x-scope"] = one.scope.value
    if one.body is not None or one.streams:
        written["requestBody"] = _describe_request_body(one, keys)
    return written


def _describe_parameters(
    one: Operation, path: str, keys: Mapping[Any, Mapping[str, Json]], schemas: Mapping[str, Json]
) -> list[Json]:
    parameters: list[Json] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _find_path_parameters(path)
    ]
    if one.query is not None:
        shape = schemas[str(keys[one.query, "validation"]["$ref"]).rpartition("/")[2]]
        needed = shape.get("required", ())
        parameters += [
            {"name": name, "in": "query", "required": name in needed, "schema": schema}
            for name, schema in shape.get("properties", {}).items()
        ]
    return parameters + [
        {
            "name": name,
            "in": "header",
            "required": False,
            "description": _HEADERS[name],
            "schema": {"type": "string", **({"pattern": _PATTERNS[name]} if name in _PATTERNS else {})},
        }
        for name in one.takes
    ]


def _describe_response(
    one: Operation, schemas: dict[str, Json], links: Mapping[str, Json]
) -> dict[str, Json]:
    answer: dict[str, Json] = {"description": "Done."}
    if links:
        answer["links"] = dict(links)
    if one.reply is not None:
        shown = one.reply if isinstance(one.reply, dict) else build_reply_schema(one.reply, schemas)
        answer["content"] = {one.media: {"schema": shown}}
        if one.reply_example is not None:
            answer["content"][one.media]["example"] = one.reply_example
    return answer


def _describe_request_body(one: Operation, keys: Mapping[Any, Mapping[str, Json]]) -> dict[str, Json]:
    wanted: dict[str, Json] = dict(one.schema or {"type": "object"})
    if _is_model(one.body):
        wanted = dict(keys[one.body, "validation"])
    elif one.streams and one.schema is None:
        wanted = {"type": "string"}
    content: dict[str, Json] = {"schema": wanted}
    if one.example is not None:
        content["example"] = one.example
    media = one.streams or ("application/json",)
    return {"required": not one.optional, "content": dict.fromkeys(media, content)}


def _build_links(one: Operation, listed: Iterable[Operation]) -> dict[str, Json]:
    """Return what can be asked next with what an answer says: every operation whose path it fills."""
    given = {name: f"$response.body#{where}" for name, where in _GIVES.get(one.name, {}).items()}
    known = {name: f"$request.path.{name}" for name in _find_path_parameters(one.path)} | given
    return {
        each.name: {
            "operationId": each.name,
            "parameters": {name: known[name] for name in _find_path_parameters(each.path)},
        }
        for each in listed
        if given.keys() & _find_path_parameters(each.path)
        and known.keys() >= set(_find_path_parameters(each.path))
    }


def _find_path_parameters(path: str) -> list[str]:
    return re.findall(r"{(\w+)[^}]*}", path)
