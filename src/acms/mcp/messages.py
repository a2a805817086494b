"""Checks messages of the protocol: a message that the SDK can parse, or the errors that answer it.

The SDK drops messages that it cannot parse, and the client would wait for an answer until its timeout.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pydantic
from mcp_types import INVALID_REQUEST, PARSE_ERROR, ErrorData, JSONRPCError, RequestId
from mcp_types.jsonrpc import JSONRPCNotification, jsonrpc_message_adapter

__all__ = ["check_message", "envelope_error"]

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
# A string without an end is one token, or every quote in it would be tried.
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"?|[\[\]{}]', re.DOTALL)
_ID_VALUE = re.compile(r'\s*:\s*(-?\d{1,300}(?![\d.eE])|"(?:[^"\\]|\\.)*")', re.DOTALL)


def check_message(line: str) -> str | list[JSONRPCError]:
    """Return a line that the SDK understands, or the errors to answer; an empty list for an empty line.

    Half a surrogate pair becomes U+FFFD, as bytes that are no UTF-8 do.
    """
    try:
        message = jsonrpc_message_adapter.validate_json(line, by_name=False)
    except pydantic.ValidationError:
        return _repair_line(line)
    if isinstance(message, JSONRPCNotification) and '"id"' in line:
        return _repair_line(line)  # the SDK parses a request with an invalid id as a notification
    return line


def _repair_line(line: str) -> str | list[JSONRPCError]:
    """Return a line without half surrogate pairs, or the errors in it."""
    if not line.strip():
        return []
    try:
        message = json.loads(line, parse_constant=_refuse_constant)
    except RecursionError:
        return [_build_error(PARSE_ERROR, "it is nested too deeply", _find_id(line))]
    except ValueError as error:
        return [_build_error(PARSE_ERROR, f"it is no JSON: {error}", _find_id(line))]
    if isinstance(message, list):
        return _refuse_batch(message)
    if not isinstance(message, dict):
        return [envelope_error("a message must be a JSON object")]
    repaired = _LONE_SURROGATE.sub("\ufffd", json.dumps(message, ensure_ascii=False))
    fault = _find_fault(message) or _find_parser_fault(repaired)
    if fault is None:
        return repaired
    id = message.get("id")
    return [_build_error(INVALID_REQUEST, fault, id if _is_id(id) else None)]


def _refuse_batch(messages: Sequence[Any]) -> list[JSONRPCError]:
    """Return an error for each id in a batch, or one without an id."""
    ids: list[RequestId | None] = []
    for message in messages:
        if isinstance(message, dict) and _is_id(message.get("id")):
            ids.append(message["id"])
    text = "MCP has no batches: send one message at a time"
    return [_build_error(INVALID_REQUEST, text, id) for id in ids or [None]]


def _find_parser_fault(line: str) -> str | None:
    """Return the fault that the SDK's parser finds, which allows less nesting than Python's, or None."""
    try:
        jsonrpc_message_adapter.validate_json(line, by_name=False)
    except pydantic.ValidationError as error:
        first_error = error.errors(include_url=False, include_context=False, include_input=False)[0]
        return str(first_error["msg"])
    return None


def _find_fault(message: Mapping[str, Any]) -> str | None:
    """Return the fault in the envelope of a message, or None."""
    if "id" in message and not _is_id(message["id"]):
        return "id must be a string or an integer"
    if message.get("jsonrpc") != "2.0":
        return 'jsonrpc must be "2.0"'
    if "result" in message or "error" in message:
        return None
    if not isinstance(message.get("method"), str):
        return "method must be a string"
    if not isinstance(message.get("params", {}), dict):
        return "params must be an object"
    return None


def _is_id(value: object) -> bool:
    """Return whether a value may be the id of a request, and can be sent back."""
    if isinstance(value, str):
        return _LONE_SURROGATE.search(value) is None
    return isinstance(value, int) and not isinstance(value, bool)


def _find_id(line: str) -> RequestId | None:
    """Return the id of a message that cannot be parsed, or None if it is not found."""
    depth = 0
    for match in _TOKEN.finditer(line):
        token = match[0]
        # Only the id of the outermost object counts.
        if token in "[{":
            depth += 1
        elif token in "]}":
            depth -= 1
        elif depth == 1 and token == '"id"' and (value := _ID_VALUE.match(line, match.end())):
            id = json.loads(value[1], strict=False)
            return id if _is_id(id) else None
    return None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


def envelope_error(message: str) -> JSONRPCError:
    """Return the error for a text that is no message."""
    return _build_error(INVALID_REQUEST, message, None)


def _build_error(code: int, message: str, id: RequestId | None) -> JSONRPCError:
    return JSONRPCError(jsonrpc="2.0", id=id, error=ErrorData(code=code, message=message))
