"""What a message forbids is shown to no model, whichever operation puts the answer together (T41)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.server.guarded import Guarded, guarded_service

SECRET = "sk-proj-abcdEFGH1234ijklMNOP5678qrstUVWX"
WORD = "Zanzibarquartz"


@pytest.fixture(scope="module")
async def service() -> AsyncIterator[Guarded]:
    async with guarded_service("memory://") as running:
        yield running


@pytest.mark.parametrize("privacy", ["block", "redact"])
async def test_what_is_forbidden_is_shown_to_no_model(service: Guarded, privacy: str) -> None:
    client = await service.key("acme")
    context = (await client.post("/contexts", json={})).json()["data"]["id"]
    messages = [
        {"role": "user", "content": "What about the key of the vault?"},
        {
            "role": "user",
            "content": f"DECISION: the vault of {WORD} opens with {SECRET}.",
            "privacy": privacy,
        },
        {"role": "assistant", "content": "The key of the vault is noted."},
    ]
    sent = await client.post(f"/contexts/{context}/messages", json={"messages": messages})
    assert sent.status_code == 201, sent.text
    at, asked = f"/contexts/{context}", "which key opens the vault"
    contract = {
        "version": "v0",
        "id": "6f3b6f21-7a5f-4e3f-9af0-1b2c3d4e5f60",
        "request_id": "r",
        "intent": asked,
        "budgets": {"tokens_max": 4500, "time_ms": 5000},
        "risk_profile": {"level": "medium"},
        "privacy_mode": "allow",
    }
    answers = {
        "recall": await client.post(f"{at}/recall", json={"query": asked}),
        "chat": await client.post(f"{at}/chat", json={"query": asked, "budget": 4000}),
        "prompt": await client.post(f"{at}/prompt", json={"user": asked, "budget": 4000}),
        "window": await client.get(f"{at}/window", params={"budget": 4000}),
        "facts": await client.get(f"{at}/facts"),
        "render": await client.post("/orchestration/render", params={"contexts": context}, json=contract),
    }
    assert {name: reply.status_code for name, reply in answers.items()} == dict.fromkeys(answers, 200)
    shown = [name for name, reply in answers.items() if SECRET in reply.text]
    assert shown == []
    if privacy == "block":
        assert [name for name, reply in answers.items() if WORD in reply.text] == []
