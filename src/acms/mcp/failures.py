"""Results of tools, and errors of ACMS in terms of an MCP client, which knows tools and its connection."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from math import ceil

import pydantic
from mcp_types import CallToolResult, TextContent

from acms.contract import problem_details
from acms.errors import ACMSError, RateLimitError, ValidationError
from acms.model import Json
from acms.runtime.input_errors import (
    UNKNOWN_NAME,
    build_unknown_name_error,
    describe_input_error,
    select_input_error,
)

__all__ = [
    "build_argument_error",
    "build_error_result",
    "build_tool_result",
    "describe_error",
    "dump_compact_json",
]

_KNOWN_IDS = "take an id from an answer of recall, facts or history"
_ADVICE: Mapping[str, tuple[str, ...]] = {
    "ENTRY_NOT_FOUND": (_KNOWN_IDS,),
    "SESSION_NOT_FOUND": ("call remember first: nothing was said in this session yet",),
    "IDEMPOTENCY_MISMATCH": ("give another key, or none",),
    "GONE": ("it cannot be restored: go on without it",),
    "UNAUTHENTICATED": ("put the key into the header Authorization: Bearer acms_… of the connection",),
    "DEADLINE": ("call again; a remember with the same key has its effect once",),
    "STORAGE_READ_ONLY": ("ask who runs the server: the store cannot be written",),
}
"""Advice for the caller of a tool, by the code of an error."""
_NAMESPACE = (
    "stdio: start the server with --namespace NAME",
    "HTTP: connect to /mcp/NAMESPACE/SESSION",
)


def build_tool_result(content: Mapping[str, Json]) -> CallToolResult:
    """Return the result of a tool, as text and as structured content."""
    return CallToolResult(
        content=[TextContent(text=dump_compact_json(content))], structured_content=dict(content)
    )


def build_error_result(error: ACMSError) -> CallToolResult:
    """Return an error as the result of a tool, which a model can read."""
    described = describe_error(error)
    lines = [
        f"{described['code']}: {described['message']}",
        *[f"- {option}" for option in described["options"]],
    ]
    text = TextContent(text="\n".join(lines))
    return CallToolResult(content=[text], structured_content={"error": described}, is_error=True)


def dump_compact_json(value: Mapping[str, Json]) -> str:
    """Return compact JSON for a model."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def describe_error(error: ACMSError) -> dict[str, Json]:
    """Return an error as JSON: code, message, options, and whether a repeated call may succeed."""
    is_internal = problem_details.status_of(error) == 500
    described: dict[str, Json] = {
        "code": error.code,
        "message": "the server failed; its log says why" if is_internal else str(error),
        "options": _select_advice(error),
        "retryable": error.retryable,
    }
    if isinstance(error, ValidationError) and error.field:
        described["argument"] = error.field
    return described


def _select_advice(error: ACMSError) -> list[str]:
    """Return advice for a model on an error, without advice that names parts of the HTTP API."""
    if isinstance(error, ValidationError) and error.field == "scope" and error.options:
        return list(_NAMESPACE)
    if isinstance(error, RateLimitError):
        return [f"call again after {max(1, ceil(error.retry_after))} seconds"]
    if error.code in _ADVICE:
        return list(_ADVICE[error.code])
    return [
        option
        for option in error.options
        if not problem_details.PROGRAM_TEXT.search(option) and "/api/" not in option
    ]


def build_argument_error(error: pydantic.ValidationError, argument_names: Collection[str]) -> ValidationError:
    """Return the error for wrong arguments of a tool; `argument_names` are the names that it takes."""
    details = select_input_error(error.errors(include_url=False, include_input=False))
    field = ".".join(str(step)[:64] for step in details["loc"]) or "arguments"
    if details["type"] == UNKNOWN_NAME:
        return build_unknown_name_error(field, "argument", argument_names)
    return ValidationError(describe_input_error(details), field=field)
