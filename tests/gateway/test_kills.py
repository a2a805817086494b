"""A gateway that is killed in the middle of streams, and clients that repeat what was not answered."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import httpx2
import pytest

from acms import ACMS, open_storage
from tests.cli.test_gateway import served
from tests.gateway.serving import serve_app
from tests.gateway.upstream import Upstream

KILLS = 10
PATH = "/v1/chat/completions"


@pytest.mark.faults
async def test_nothing_is_there_twice_and_nothing_answered_is_lost(tmp_path: Path) -> None:
    db = f"sqlite:///{tmp_path / 'log.db'}"
    upstream = Upstream(pause=0.01)
    chance = random.Random(3)
    messages: list[dict[str, Any]] = []
    with serve_app(upstream.app, "off") as (address, _):
        for number in range(KILLS):
            messages.append({"role": "user", "content": f"SLOW question {number} SIZE=200"})
            body = {"model": "gpt-4o", "messages": messages}
            with served(db, address, kills=True) as url:
                read_pieces(url, {**body, "stream": True}, chance.randrange(12))
            with served(db, address) as url:
                answer = httpx2.post(url + PATH, json=body, timeout=60)
                messages.append(answer.json()["choices"][0]["message"])
        with served(db, address) as url:
            messages.append({"role": "user", "content": "the end"})
            httpx2.post(url + PATH, json={"model": "gpt-4o", "messages": messages}, timeout=60)
    async with open_storage(db) as storage:
        page = await storage.sessions()
        logs: list[list[str]] = []
        for one in page.sessions:
            async with ACMS(one.session_id, storage, None, namespace=one.namespace) as session:
                logs.append([entry.content for entry in await session.entries()])
    for log in logs:
        assert len(log) == len(set(log)), "something is there twice"
    answered = [message["content"] for message in messages if message["role"] == "assistant"]
    assert any(set(answered) <= set(log) for log in logs), "an answer is lost"


def read_pieces(url: str, body: dict[str, Any], pieces: int) -> None:
    """Read so many pieces of a stream, and leave."""
    with httpx2.stream("POST", url + PATH, json=body, timeout=60) as answer:
        for number, _ in enumerate(answer.iter_raw()):
            if number >= pieces:
                return
