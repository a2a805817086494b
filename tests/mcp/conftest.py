"""What the tests of the MCP server share."""

from __future__ import annotations

from typing import Any

REQUEST = {
    "version": "v0",
    "id": "6f3b6f21-7a5f-4e3f-9af0-1b2c3d4e5f60",
    "request_id": "req-1",
    "intent": "Where does Ada live?",
    "budgets": {"tokens_max": 500, "time_ms": 5000},
}
"""A request of the contract."""


def text_of(result: Any) -> str:
    """Return what a model reads of a result."""
    (block,) = result.content
    return str(block.text)


def error_of_result(result: Any, code: str) -> dict[str, Any]:
    """Return the error that a tool answered with."""
    assert result.is_error, result
    error: dict[str, Any] = result.structured_content["error"]
    assert error["code"] == code, error
    assert text_of(result).startswith(f"{code}: ")
    return error
