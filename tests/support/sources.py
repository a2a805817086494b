"""Scripted sources of knowledge, requests, and replies that are checked against the published schemas."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from typing import Any

import jsonschema

from acms.acs import ACS
from acms.contract import Layer, ProviderRequest, RenderReply

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
Said = Any
"""Candidates, a whole answer, an error to raise, or an async function of the request."""


def load_schema(name: str) -> dict[str, Any]:
    """Return a schema as it is shipped."""
    return json.loads((files("acms") / "schemas" / f"{name}.v0.json").read_text(encoding="utf-8"))


_ASKED = jsonschema.Draft7Validator(load_schema("provider_request"))
_REPLIED = jsonschema.Draft7Validator(load_schema("render_context_reply"))


def make_item(
    id: str, text: str | None = None, *entities: str, cost: int = 10, **more: Any
) -> dict[str, Any]:
    """Return a candidate as it is on the wire."""
    body: dict[str, Any] = {"id": id, "entities": list(entities), "cost_tokens": cost, "source": "L2"}
    if text is not None:
        body["text"] = text
    return {**body, "timestamp": (NOW - timedelta(hours=1)).isoformat(), **more}


def request(intent: Any = "implement orders migration", **more: Any) -> dict[str, Any]:
    """Return a request as it is on the wire; `tokens`, `ms`, `risk`, `privacy` and `top_k` have short names."""
    body: dict[str, Any] = {
        "version": "v0",
        "id": "6f3b6f21-7a5f-4e3f-9af0-1b2c3d4e5f60",
        "request_id": "req-1",
        "intent": intent,
        "budgets": {"tokens_max": more.pop("tokens", 4500), "time_ms": more.pop("ms", 10_000)},
    }
    if "top_k" in more:
        body["budgets"]["experience_top_k"] = more.pop("top_k")
    if "risk" in more:
        body["risk_profile"] = {"level": more.pop("risk")}
    if "privacy" in more:
        body["privacy_mode"] = more.pop("privacy")
    return {**body, **more}


class Source:
    """Gives scripted answers: each call takes the next of `said`, or the last one again.

    It may take long, for a machine may be busy; with `deadline_ms=None` its layer decides.
    """

    def __init__(
        self, layer: Layer | str, *said: Said, name: str | None = None, deadline_ms: float | None = 5_000
    ) -> None:
        self.layer = layer
        self.name = name or f"{layer}-source"
        self.deadline_ms = deadline_ms
        self.said = list(said) or [[]]
        #: Every request that came.
        self.calls: list[ProviderRequest] = []

    async def search(self, request: ProviderRequest) -> Any:
        self.calls.append(request)
        _ASKED.validate(request.to_wire())
        said = self.said.pop(0) if len(self.said) > 1 else self.said[0]
        if isinstance(said, BaseException):
            raise said
        if callable(said):
            act: Callable[[ProviderRequest], Awaitable[Any]] = said
            said = await act(request)
        if isinstance(said, list):
            return {"request_id": request.request_id, "candidates": said, "latency_ms": 1}
        return said


async def never_answer(request: ProviderRequest) -> Any:
    """Never answer."""
    await asyncio.Event().wait()


def make_engine(*sources: Any, **more: Any) -> ACS:
    """Return an engine whose clocks stand still."""
    return ACS(sources, **{"clock": lambda: NOW, "timer": lambda: 0.0, **more})


def checked_reply(reply: RenderReply) -> dict[str, Any]:
    """Return a reply as it is on the wire, after both forms of it were checked against the schema."""
    for extended in (False, True):
        _REPLIED.validate(reply.to_wire(extended=extended))
    return reply.to_wire(extended=True)


def warning_codes(reply: RenderReply) -> list[str]:
    """Return the codes of the warnings."""
    return [one.code for one in reply.warnings]


def fragment_ids(reply: RenderReply) -> list[str]:
    """Return the ids of the fragments."""
    return [one.id for one in reply.fragments or ()]


def offered_actions(reply: RenderReply) -> list[str]:
    """Return the actions that are offered."""
    assert reply.error is not None
    return [one.action.value for one in reply.error.options]


def strict_json(body: Mapping[str, Any]) -> bytes:
    """Return a reply byte for byte."""
    return json.dumps(body, ensure_ascii=False).encode()
