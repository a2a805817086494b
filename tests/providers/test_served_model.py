"""A real model behind ACMS_MODEL_URL: `pytest -m model`.

Nothing is said about how clever it is: the checks hold for a model of any size.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from acms import ACMS, FitError, Prompt, ProviderError, RetryConfig, open_storage
from acms.codecs import OpenAIChat
from acms.providers import Endpoint, HTTPEmbedder, HTTPReflector, HTTPSummarizer, ServerTokenCounter
from acms_eval.agent_days import load_days, run_day
from acms_eval.answers import complete_chat

pytestmark = pytest.mark.model

PATIENT = 1_800.0
"""Seconds of one call: a small machine reads a few tokens a second."""
SAID = (
    ("user", "Decision: the orders service uses PostgreSQL 16."),
    ("assistant", "Noted, PostgreSQL 16."),
    ("user", "The launch is on March 15, and Priya leads it."),
    ("assistant", "March 15 with Priya as lead."),
    ("user", "Correction: the launch moved to March 22."),
    ("assistant", "March 22 it is."),
)


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    url = os.environ.get("ACMS_MODEL_URL")
    if not url:
        pytest.fail("set ACMS_MODEL_URL to a server that speaks /chat/completions, with its /v1")
    once = RetryConfig(max_attempts=1)
    key = os.environ.get("ACMS_MODEL_KEY") or None
    async with Endpoint(url, api_key=key, timeout=PATIENT, retry=once) as endpoint:
        yield endpoint


@pytest.fixture
async def model(endpoint: Endpoint) -> str:
    if named := os.environ.get("ACMS_MODEL"):
        return named
    name: str = await endpoint.get("models", lambda answer: answer["data"][0]["id"])
    return name


async def tell_all(session: ACMS) -> list[str]:
    return [await session.ingest(role, text) for role, text in SAID]


async def test_an_agent_with_tools_is_served_within_its_budget(endpoint: Endpoint, model: str) -> None:
    day = load_days()[0]
    done = await run_day(endpoint, model, replace(day, turns=day.turns[:4]), budget=600)
    assert len(done) == 4
    assert any(turn.answer for turn in done)
    assert sum(turn.over_budget for turn in done) == 0


async def test_reflection_stores_facts_of_what_was_said(endpoint: Endpoint, model: str) -> None:
    reflector = HTTPReflector(endpoint, model, max_tokens=512)
    async with ACMS("s", open_storage("memory://"), None, reflector=reflector) as session:
        ids = await tell_all(session)
        await session.close_episode()
        await session.wait(await session.reflect(), timeout=PATIENT)
        facts = await session.facts()
    for fact in facts:
        assert fact.content.strip()
        assert {*fact.sources} <= {*ids}


async def test_a_summary_is_text_within_its_tokens(endpoint: Endpoint, model: str) -> None:
    summarizer = HTTPSummarizer(endpoint, model)
    async with ACMS("s", open_storage("memory://"), None, summarizer=summarizer) as session:
        for _ in range(8):
            await tell_all(session)
        job = await session.compact(preserve_recent_count=4, summary_tokens=100)
        done = await session.wait(job, timeout=PATIENT)
    assert done is not None
    assert done.summary.strip()
    assert done.summarizer == model
    assert done.tokens_after < done.tokens_before


async def test_texts_are_embedded_and_found_by_meaning(endpoint: Endpoint, model: str) -> None:
    try:
        dimension = await endpoint.post(
            "embeddings", {"model": model, "input": ["a"]}, lambda answer: len(answer["data"][0]["embedding"])
        )
    except ProviderError as error:
        pytest.skip(f"the server offers no embeddings: {error}")
    embedder = HTTPEmbedder(endpoint, model, dimension=dimension)
    once, again, other = await embedder.embed(["The launch is in March.", "The launch is in March.", "Rain."])
    assert np.dot(once, again) > np.dot(once, other)
    async with ACMS("s", open_storage("memory://"), embedder) as session:
        await tell_all(session)
        await session.wait_pending()
        found = await session.recall("When do we launch?", budget=500)
    assert any("March 22" in item.content for item in found)


TEXTS = {
    "English": "The carrier picks the boxes up at four, and somebody has to sign for them. ",
    "Japanese": "締め切りは三月二十日に変更されました。注文サービスは今も動いています。",
    "Chinese": "我们决定把会议改到下周五上午十点，请大家带上资料。",
    "German": "Die Krankenversicherungsbeitragserhöhung gilt ab dem nächsten Geschäftsjahr. ",
    "JSON": json.dumps({"id": 9_223_372_036, "at": "2026-11-03T10:15:22.123Z", "tags": ["a1", "b2"]}),
    "emoji": "🎉🎉 shipped!! 👩‍👩‍👧‍👦 thanks 🙏🏽 🏖️ ",
}


async def count_request(endpoint: Endpoint, model: str, payload: Mapping[str, Any]) -> int:
    """Count by the routes of llama.cpp where there are any, else by a request for one token."""
    url = os.environ["ACMS_MODEL_URL"]
    key = os.environ.get("ACMS_MODEL_KEY") or None
    async with ServerTokenCounter(url, api="llama.cpp", api_key=key, timeout=PATIENT) as counter:
        try:
            return await counter.count_request(payload, model=model)
        except ProviderError:
            return (await complete_chat(endpoint, model, payload, max_tokens=1)).prompt_tokens


@pytest.mark.parametrize("language", TEXTS)
@pytest.mark.parametrize("tools", [0, 3])
async def test_no_request_has_more_tokens_than_its_bound(
    endpoint: Endpoint, model: str, language: str, tools: int
) -> None:
    described: list[dict[str, Any]] = [
        {
            "type": "function",
            "function": {
                "name": f"tool_{number}",
                "description": "Look a number up in the register of the town hall.",
                "parameters": {"type": "object", "properties": {"number": {"type": "integer"}}},
            },
        }
        for number in range(tools)
    ]
    async with ACMS("s", open_storage("memory://"), None) as session:
        for number in range(12):
            await session.ingest("assistant" if number % 2 else "user", f"{number}: {TEXTS[language] * 2}")
        prompt = Prompt(OpenAIChat(model)).system("Be brief.").tools(described).history(session)
        for budget in (300, 700):
            try:
                rendered = await prompt.user("What next?").render(budget=budget)
            except FitError:
                continue  # the tools alone are larger
            counted = await count_request(endpoint, model, rendered.payload)
            assert counted <= rendered.tokens.upper_bound <= budget
