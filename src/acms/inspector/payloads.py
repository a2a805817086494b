"""The payload of a request, part by part and as a command: pure functions of JSON."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

__all__ = ["PayloadPart", "format_curl_command", "list_payload_parts"]

JsonObject = Mapping[str, Any]

_TEXT_FIELDS = ("content", "parts", "text", "output")
"""Fields of an element that hold its text, in the formats of all providers."""

_ENDPOINTS = {
    "openai-chat": ("https://api.openai.com/v1/chat/completions", "authorization: Bearer $OPENAI_API_KEY"),
    "openai-responses": ("https://api.openai.com/v1/responses", "authorization: Bearer $OPENAI_API_KEY"),
    "anthropic-messages": ("https://api.anthropic.com/v1/messages", "x-api-key: $ANTHROPIC_API_KEY"),
    "gemini": ("https://generativelanguage.googleapis.com/v1beta/models", "x-goog-api-key: $GEMINI_API_KEY"),
}
"""Address and authentication header of each format."""

_ANSWER_TOKENS = 1024
"""Length of an answer in tokens, which Anthropic requires, where the request does not state one."""


class PayloadPart(NamedTuple):
    """One part of a payload: its path, a label, its text without JSON escapes, and its other fields as JSON."""

    path: str
    label: str
    text: str
    other_fields: str


def list_payload_parts(payload: JsonObject) -> list[PayloadPart]:
    """Return the parts of a payload in the order in which it has them. Nothing is left out or shortened."""
    return list(_iterate_parts(payload, ""))


def _iterate_parts(payload: JsonObject, prefix: str) -> Iterator[PayloadPart]:
    for name, value in payload.items():
        path = f"{prefix}{name}"
        if name == "config":  # Gemini's system text and tools are in it
            yield from _iterate_parts(value, "config.")
        elif isinstance(value, list):
            elements: list[Any] = value
            for index, element in enumerate(elements):
                yield _describe_element(f"{path}[{index}]", element)
        else:
            yield _describe_element(path, value)


def _describe_element(path: str, element: Any) -> PayloadPart:
    if isinstance(element, str):
        return PayloadPart(path, "", element, "")
    if not isinstance(element, dict):
        return PayloadPart(path, "", "", _format_json(element))
    fields: dict[str, Any] = element
    texts: list[str] = []
    other_fields: dict[str, Any] = {}
    for name, value in fields.items():
        text = _plain_text(value) if name in _TEXT_FIELDS else None
        if text is not None:
            texts.append(text)
        elif name != "role":
            other_fields[name] = value
    function: Any = fields.get("function") or {}
    label = fields.get("role") or function.get("name") or fields.get("name") or fields.get("type") or ""
    return PayloadPart(path, str(label), "\n".join(texts), _format_json(other_fields) if other_fields else "")


def _plain_text(value: Any) -> str | None:
    """Return the text of a field that holds nothing but text, or None."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        return None
    blocks: list[Any] = value
    texts: list[str] = []
    for block in blocks:
        is_text = isinstance(block, dict) and "text" in block and block.keys() <= {"type", "text"}
        if not is_text:
            return None
        texts.append(block["text"])
    return "\n".join(texts)


def _format_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1)


def format_curl_command(codec: str, model: str, payload: JsonObject) -> str | None:
    """Return a shell command that sends a payload, with the key in a variable; None for a format without an address."""
    if codec not in _ENDPOINTS:
        return None
    address, authentication = _ENDPOINTS[codec]
    body = {"model": model, **payload}
    headers = [authentication, "content-type: application/json"]
    if codec == "gemini":
        address += f"/{model}:generateContent"
        body = {name: value for name, value in payload.items() if name != "config"}
        body |= payload.get("config", {})
    if codec == "anthropic-messages":
        body = {"model": model, "max_tokens": _ANSWER_TOKENS, **payload}
        headers.append("anthropic-version: 2023-06-01")
    options = " ".join(f'-H "{header}"' for header in headers)
    data = shlex.quote(json.dumps(body, ensure_ascii=False))
    return f"curl {shlex.quote(address)} {options} -d {data}\n"
