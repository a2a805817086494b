"""Recall and chat over HTTP: what the past says, within a budget."""

from __future__ import annotations

from typing import Any

import pytest

from acms import ACMSConfig, Privacy, PrivacyConfig
from acms.testing import HashEmbedder
from tests.server.document import checked_by_document
from tests.server.serving import Service, serving

QUESTION = "Which database should the orders service use? We expect 2 TB."
DECISION = "Decision: PostgreSQL 18 with pgvector for the orders service, because we need transactions."
SMALL = ["The cat sleeps on the sofa.", "Lunch is at noon today.", "It will rain on Friday."]


@pytest.fixture(scope="module")
def one(sqlite_service: Service) -> Service:
    """A service, every answer of which is held against its document."""
    return checked_by_document(sqlite_service)


def _post_recall(
    service: Service, context: str, query: str = "what did we choose for orders?", **more: Any
) -> Any:
    reply = service.client.post(f"/contexts/{context}/recall", json={"query": query, **more})
    assert reply.status_code == 200, reply.text
    return reply.json()["data"]


def _context_with_closed_episode(service: Service, *contents: str, **body: Any) -> str:
    """Return a context whose messages lie in an episode that has ended."""
    context = service.talk(*contents, **body)
    service.client.post(f"/contexts/{context}/episodes/close")
    return context


def test_a_query_brings_back_what_was_said(service: Service) -> None:
    context = _context_with_closed_episode(service, QUESTION, DECISION, *SMALL)
    service.say(context, "Good morning.")
    found = _post_recall(service, context, tokenBudget=60, includeCurrentEpisode=False)
    item = max(found["items"], key=lambda item: item["score"])
    assert item["content"] == DECISION
    assert found["tokens"] <= found["budget"] == 60
    assert found["tokens"] == sum(item["tokenCount"] for item in found["items"])
    assert (found["version"], found["coverage"], found["warnings"]) == (7, 1.0, [])
    assert found["band"] in ("strong", "possible", "none")
    assert (item["version"], item["markers"], item["source"]) == (2, ["decision"], "marked")
    assert "verdicts" not in found


def test_every_candidate_has_a_reason(one: Service) -> None:
    context = _context_with_closed_episode(one, QUESTION, DECISION, *SMALL)
    found = _post_recall(one, context, tokenBudget=30, includeCurrentEpisode=False, why=True)
    verdicts = {each["version"]: each for each in found["verdicts"]}
    shown = [item["version"] for item in found["items"]]
    assert [version for version, each in verdicts.items() if each["included"]] == shown
    assert all(each["rule"] and each["reason"] for each in verdicts.values())
    left = next(each for each in verdicts.values() if not each["included"])
    assert left["parts"].keys()


def test_what_is_excluded_is_not_recalled(one: Service) -> None:
    context = _context_with_closed_episode(one, QUESTION, DECISION)
    first = _post_recall(one, context)["items"]
    rest = _post_recall(one, context, exclude=[first[-1]["id"]])["items"]
    assert [item["id"] for item in rest] == [item["id"] for item in first[:-1]]


def test_the_past_is_asked_at_a_version_or_a_message(one: Service) -> None:
    context = _context_with_closed_episode(one, QUESTION, DECISION)  # v1, v2, and the end of the episode
    one.say(context, "Now it is MySQL for the orders service.")
    by_version = _post_recall(one, context, atVersion=3)
    assert [item["version"] for item in by_version["items"]] == [1, 2]
    assert (
        _post_recall(one, context, atMessage=2)["items"] == _post_recall(one, context, atVersion=2)["items"]
    )
    assert _post_recall(one, context, atMessage=3)["version"] == 4
    assert _post_recall(one, context, atMessage=0)["items"] == []


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"atVersion": 1, "atMessage": 1}, "atVersion"),
        ({"tokenBudget": -1}, "tokenBudget"),
        ({"tokenBudget": "many"}, "tokenBudget"),
        ({"tokenBudget": 2_000_001}, "tokenBudget"),
        ({"minRelevance": 2}, "minRelevance"),
        ({"scope": "tenant"}, "scope"),
        ({"scope": "namespace", "atVersion": 1}, "scope"),
        ({"exclude": "m_1"}, "exclude"),
        ({"query": None}, "query"),
        ({"query": " "}, "query"),
        ({"limit": 0}, "limit"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_what_makes_no_sense_is_refused_with_the_field(
    one: Service, more: dict[str, Any], field: str
) -> None:
    context = one.talk("a", "b")
    reply = one.client.post(f"/contexts/{context}/recall", json={"query": "a", **more})
    assert (reply.status_code, reply.json()["errors"][0]["field"]) == (400, field)


def test_other_contexts_of_a_namespace_answer_when_they_are_asked(one: Service) -> None:
    _context_with_closed_episode(one, QUESTION, DECISION, namespace="team-a")
    context = one.talk("Hello.", namespace="team-a")
    elsewhere = _context_with_closed_episode(
        one, "Decision: the orders service uses MySQL.", namespace="team-b"
    )
    assert DECISION not in str(_post_recall(one, context))
    found = _post_recall(one, context, scope="namespace")
    assert DECISION in [item["content"] for item in found["items"]]
    assert elsewhere not in str(found)


def test_a_chat_is_what_a_provider_takes(service: Service) -> None:
    context = service.create()
    call = {"id": "call_1", "name": "disk", "arguments": '{"host": "db1"}'}
    messages = [
        {"role": "system", "content": "You are brief."},
        {"role": "user", "content": "How full is the disk?"},
        {"role": "assistant", "content": "", "toolCalls": [call]},
        {"role": "tool", "content": "40% used", "toolCallId": "call_1"},
    ]
    assert (
        service.client.post(f"/contexts/{context}/messages", json={"messages": messages}).status_code == 201
    )
    reply = service.client.post(f"/contexts/{context}/chat", json={"query": "disk?", "budget": 400})
    data = reply.json()["data"]
    assert [one["role"] for one in data["messages"]] == ["system", "user", "assistant", "tool"]
    assert data["messages"][2]["tool_calls"][0]["function"]["name"] == "disk"
    assert data["messages"][3]["tool_call_id"] == "call_1"
    assert data["tokens"] <= data["budget"]


def test_a_chat_that_cannot_fit_says_what_it_needs(one: Service) -> None:
    context = one.create()
    messages = [{"role": "system", "content": "You are brief. " * 40}, {"role": "user", "content": "Hi."}]
    one.client.post(f"/contexts/{context}/messages", json={"messages": messages})
    reply = one.client.post(f"/contexts/{context}/chat", json={"query": "hi", "budget": 20})
    assert (reply.status_code, reply.json()["code"]) == (422, "BUDGET_EXCEEDED")
    assert reply.json()["required"] > reply.json()["budget"]


def test_nothing_is_recalled_of_an_unknown_context(one: Service) -> None:
    for path in ("recall", "chat", "prompt"):
        body = (
            {"query": "a"}
            if path == "recall"
            else {"budget": 10, **({"query": "a"} if path == "chat" else {})}
        )
        assert one.client.post(f"/contexts/c_nobody/{path}", json=body).status_code == 404


def test_what_was_taken_out_of_an_item_is_told() -> None:
    engine = ACMSConfig(privacy=PrivacyConfig(mode=Privacy.REDACT))
    with serving("memory://", engine=engine) as running:
        service = checked_by_document(running)
        context = service.talk("Write to ana@example.com about the orders.")
        (item,) = _post_recall(service, context)["items"]
        assert "ana@example.com" not in item["content"]
        assert item["redaction"] == {"mode": "redact", "kinds": {"email": 1}}
        (shown,) = service.get(f"/contexts/{context}/window", budget=100)["data"]
        assert shown["redaction"] == item["redaction"]


def test_words_alone_rank_without_the_embedder() -> None:
    with serving("memory://", embedder=HashEmbedder()) as service:
        context = _context_with_closed_episode(service, QUESTION, DECISION, *SMALL)
        assert _post_recall(service, context)["tier"] == "hash/64"
        words = _post_recall(service, context, wordsOnly=True)
        assert words["tier"] == "words"
        assert DECISION in [item["content"] for item in words["items"]]
        assert _post_recall(service, context, wordsOnly=True, atVersion=1)["version"] == 1
