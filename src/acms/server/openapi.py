"""The OpenAPI 3.1 document of the service, written from its operations."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from importlib.resources import files
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
        "code": {"type": "string", "enum": sorted(problem_details.STATUS_BY_CODE)},
        "retryable": {"type": "boolean"},
        "options": {"type": "array", "items": {"type": "string"}},
        "pythonDetail": {"type": "string"},
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
_LINKED_VALUES: Mapping[str, Mapping[str, str]] = {
    "createContext": {"context_id": "/data/id"},
    "forkContext": {"context_id": "/data/id"},
    "appendMessages": {"entry_id": "/data/0/id", "version": "/data/0/version"},
    "compactContext": {"job_id": "/data/job/id"},
    "reflectContext": {"job_id": "/data/id"},
    "addWebhook": {"webhook_id": "/data/id"},
    "putTag": {"name": "/data/name"},
}
"""JSON pointers into a reply to the path parameters of other operations."""
_PATH_PARAMETERS: Mapping[str, tuple[str, str]] = {
    "context_id": ("Id of the context.", "0198c0de-0000-7000-8000-000000000001"),
    "entry_id": ("Id of the entry.", "0198c0de-0000-7000-8000-000000000002"),
    "job_id": ("Id of the job.", "0198c0de-0000-7000-8000-000000000003"),
    "name": ("Name of the tag.", "release"),
    "namespace": ("Namespace, percent-encoded.", "user:123"),
    "principal": ("Id of the API key, or `oidc:` and the subject of an access token.", "oidc:alice"),
    "render_id": ("Id of the logged render.", "0198c0de-0000-7000-8000-000000000004"),
    "version": ("Version of the log.", "3"),
    "webhook_id": ("Id of the webhook.", "0198c0de-0000-7000-8000-000000000005"),
}
"""Description and example of each path parameter."""

_SchemaKeys = Mapping[Any, Mapping[str, Json]]


def build_openapi_document(operations: Iterable[Operation], version: str) -> dict[str, Json]:
    """Return the OpenAPI document of the operations."""
    operation_list = list(operations)
    bodies = {operation.body for operation in operation_list if _is_model(operation.body)}
    queries = {operation.query for operation in operation_list if operation.query is not None}
    models: list[tuple[Any, Any]] = [(model, "validation") for model in (*bodies, *queries)]
    models.sort(key=lambda pair: pair[0].__name__)
    keys, definitions = models_json_schema(models, by_alias=True, ref_template=REF)
    schemas: dict[str, Json] = {**definitions.get("$defs", {}), "Problem": dict(_PROBLEM)}
    reply_examples: Mapping[str, Json] = json.loads(
        files("acms.server").joinpath("reply_examples.json").read_text(encoding="utf-8")
    )
    paths: dict[str, dict[str, Json]] = {}
    for operation in operation_list:
        path = operation.path if operation.rooted else BASE + operation.path
        links = _build_links(operation, operation_list)
        description = _describe_operation(operation, path, keys, schemas, links, reply_examples)
        paths.setdefault(path, {})[operation.method.lower()] = description
    # Queries are described as parameters, not as schemas.
    for query in queries:
        schemas.pop(_find_schema_name(keys, query), None)
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
        "tags": [{"name": tag} for tag in sorted({operation.tag for operation in operation_list})],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer", "bearerFormat": "acms_<id>_<secret>"}
            },
            "responses": {
                "Problem": {
                    "description": "What went wrong, and what can be done (RFC 9457).",
                    "content": {
                        problem_details.MEDIA_TYPE: {"schema": {"$ref": REF.format(model="Problem")}}
                    },
                }
            },
        },
    }


def _find_schema_name(keys: _SchemaKeys, model: Any) -> str:
    reference: str = keys[model, "validation"]["$ref"]
    return reference.rpartition("/")[2]


def _is_model(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, BaseModel)


def _describe_operation(
    operation: Operation,
    path: str,
    keys: _SchemaKeys,
    schemas: dict[str, Json],
    links: Mapping[str, Json],
    reply_examples: Mapping[str, Json],
) -> dict[str, Json]:
    """Return the description of an operation: its parameters, body and responses."""
    response = _describe_response(operation, schemas, links, reply_examples)
    responses: dict[str, Json] = {str(operation.status): response}
    for status, description in operation.also.items():
        responses[str(status)] = {**response, "description": description}
    responses["default"] = {"$ref": "#/components/responses/Problem"}
    described: dict[str, Json] = {
        "operationId": operation.name,
        "tags": [operation.tag],
        "summary": operation.summary,
        "parameters": _describe_parameters(operation, path, keys, schemas),
        "responses": responses,
    }
    if operation.description:
        described["description"] = operation.description
    if operation.scope is None:
        described["security"] = []
    else:
        described["x-scope"] = operation.scope.value
    if operation.body is not None or operation.streams:
        described["requestBody"] = _describe_request_body(operation, keys)
    return described


def _describe_parameters(
    operation: Operation, path: str, keys: _SchemaKeys, schemas: Mapping[str, Json]
) -> list[Json]:
    """Return the parameters of an operation: of its path, its query and its headers."""
    parameters = [_describe_path_parameter(name) for name in _find_path_parameters(path)]
    if operation.query is not None:
        query = schemas[_find_schema_name(keys, operation.query)]
        required = query.get("required", ())
        for name, schema in query.get("properties", {}).items():
            parameters.append(_describe_query_parameter(name, schema, name in required))
    parameters += [_describe_header(name) for name in operation.takes]
    return parameters


def _describe_path_parameter(name: str) -> dict[str, Json]:
    description, example = _PATH_PARAMETERS[name]
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": description,
        "schema": {"type": "string"},
        "example": example,
    }


def _describe_query_parameter(name: str, schema: Mapping[str, Json], required: bool) -> dict[str, Json]:
    value_schema = dict(schema)
    description = " ".join(value_schema.pop("description").split())
    return {
        "name": name,
        "in": "query",
        "required": required,
        "description": description,
        "schema": value_schema,
    }


def _describe_header(name: str) -> dict[str, Json]:
    schema = {"type": "string"}
    if name in _PATTERNS:
        schema["pattern"] = _PATTERNS[name]
    return {
        "name": name,
        "in": "header",
        "required": False,
        "description": _HEADERS[name],
        "schema": schema,
    }


def _describe_response(
    operation: Operation,
    schemas: dict[str, Json],
    links: Mapping[str, Json],
    reply_examples: Mapping[str, Json],
) -> dict[str, Json]:
    """Return the description of a successful response; new schemas are added to `schemas`."""
    response: dict[str, Json] = {"description": "Done."}
    if links:
        response["links"] = dict(links)
    if operation.reply is None:
        return response
    schema = operation.reply
    if not isinstance(schema, dict):
        schema = build_reply_schema(schema, schemas)
    content: dict[str, Json] = {"schema": schema}
    if operation.name in reply_examples:
        content["example"] = reply_examples[operation.name]
    response["content"] = {operation.media: content}
    return response


def _describe_request_body(operation: Operation, keys: _SchemaKeys) -> dict[str, Json]:
    """Return the description of a body: a model, a stream, or any object."""
    schema: dict[str, Json] = dict(operation.schema or {"type": "object"})
    if _is_model(operation.body):
        schema = dict(keys[operation.body, "validation"])
    elif operation.streams and operation.schema is None:
        schema = {"type": "string"}
    content: dict[str, Json] = {"schema": schema}
    if operation.example is not None:
        content["example"] = operation.example
    media_types = operation.streams or ("application/json",)
    return {"required": not operation.optional, "content": dict.fromkeys(media_types, content)}


def _build_links(operation: Operation, operations: Iterable[Operation]) -> dict[str, Json]:
    """Return the OpenAPI links from an operation to all operations that need a value of its reply in their path.

    The other path parameters of such an operation must be in the path of this one.
    """
    from_reply = {
        name: f"$response.body#{pointer}" for name, pointer in _LINKED_VALUES.get(operation.name, {}).items()
    }
    from_path = {name: f"$request.path.{name}" for name in _find_path_parameters(operation.path)}
    available = from_path | from_reply
    links: dict[str, Json] = {}
    for target in operations:
        needed = _find_path_parameters(target.path)
        uses_reply = any(name in from_reply for name in needed)
        if uses_reply and all(name in available for name in needed):
            links[target.name] = {
                "operationId": target.name,
                "parameters": {name: available[name] for name in needed},
            }
    return links


def _find_path_parameters(path: str) -> list[str]:
    return re.findall(r"{(\w+)[^}]*}", path)
