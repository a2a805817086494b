"""Which conversation a request belongs to, and what of it is stored."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from tests.gateway.conversations import PATHS, Conversation
from tests.gateway.serving import Running, running_gateway

PROTOCOLS = list(PATHS)


@pytest.fixture
def running() -> Iterator[Running]:
    with running_gateway() as made:
        yield made


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_without_a_name_is_one_session(running: Running, protocol: str, stream: bool) -> None:
    client = Conversation(running.client, protocol, stream=stream)
    client.say("THINK hello")
    client.say('look\nCALL f {"a": 1}\nCALL f {"a": 2}', result="seen")
    client.say("goodbye")
    (texts,) = running.sessions().values()
    assert len([text for text in texts if "hello" in text]) == 1
    assert [text for text in texts if text] == [
        *(["You keep the books."] if protocol == "openai-chat" else []),
        "THINK hello",
        "answer 1",
        'look\nCALL f {"a": 1}\nCALL f {"a": 2}',
        "answer 2",
        "goodbye",
        "answer 4",
    ] or texts.count("goodbye") == 1
    assert {answer.headers["x-acms-session"] for answer in client.answers} == {client.session}
    assert all(one.headers["x-acms-memory"] == "untouched" for one in client.answers)
    assert not running.upstream.problems


def test_clients_that_write_messages_in_another_form_go_on(running: Running) -> None:
    client = Conversation(running.client, "anthropic")
    client.say("THINK first")
    client.say('second\nCALL f {"a": 1}')
    for message in client.messages:
        if isinstance(message["content"], str):
            text = {"type": "text", "text": message["content"] + " ", "cache_control": {"type": "ephemeral"}}
            message["content"] = [text]
        message["content"] = [block for block in message["content"] if block["type"] != "thinking"]
    for message in client.messages[:-1]:
        for block in message["content"]:
            block.pop("cache_control", None)
    client.say("third")
    assert len(running.sessions()) == 1


def test_an_edit_is_a_fork_and_both_lines_live(running: Running) -> None:
    client = Conversation(running.client, "openai-chat")
    client.say("one")
    client.say("two")
    client.say("three")
    edited = Conversation(running.client, "openai-chat", messages=client.messages[:2])
    running.settle()
    edited.say("two, edited")
    edited.say("goes on from the edit")
    client.say("goes on from the original")
    sessions = running.sessions()
    assert len(sessions) == 2
    assert "goes on from the original" in sessions[client.session]
    fork = sessions[edited.session]
    assert "two, edited" in fork
    assert "goes on from the edit" in fork
    assert "one" in fork
    assert "two" not in fork


def test_the_same_request_again_is_a_retry_until_it_is_answered(running: Running) -> None:
    client = Conversation(running.client, "openai-chat")
    client.say("one")
    running.settle()
    request = client.body() | {
        "messages": [*client.body()["messages"], {"role": "user", "content": "FAIL two"}]
    }
    for _ in range(3):
        assert running.client.post("/v1/chat/completions", json=request).status_code == 500
    assert list(running.sessions()) == [client.session]


def test_a_regenerated_answer_is_a_fork(running: Running) -> None:
    client = Conversation(running.client, "openai-chat")
    client.say("one")
    client.say("two")
    again = Conversation(running.client, "openai-chat", messages=client.messages[:3])
    running.settle()
    again.ask()
    again.say("on")
    client.say("on")
    sessions = running.sessions()
    assert len(sessions) == 2
    assert sessions[again.session].count("two") == 1


def test_parallel_branches_of_one_tip_are_lines_of_their_own(running: Running) -> None:
    start = Conversation(running.client, "openai-chat")
    start.say("start")

    def branch(number: int) -> str:
        with httpx2.Client(base_url=running.url, headers={"authorization": "Bearer sk-test"}) as client:
            made = Conversation(client, "openai-chat", messages=list(start.messages))
            made.say(f"branch {number}")
            return made.session

    with ThreadPoolExecutor(8) as pool:
        names = list(pool.map(branch, range(8)))
    assert len(set(names)) == 8
    for texts in running.sessions().values():
        assert len([text for text in texts if text.startswith("branch")]) <= 1


def test_the_same_first_request_five_times_at_once_is_one_session(running: Running) -> None:
    body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "SLOW SIZE=90 first"}]}

    def post(_: int) -> str:
        answer = httpx2.post(f"{running.url}/v1/chat/completions", json=body, headers={"authorization": "k"})
        return answer.headers["x-acms-session"]

    with ThreadPoolExecutor(5) as pool:
        assert len(set(pool.map(post, range(5)))) == 1


HINTS: list[tuple[dict[str, str], dict[str, Any]]] = [
    ({"x-acms-session": "s1"}, {}),
    ({"x-claude-code-session-id": "s1"}, {}),
    ({"session-id": "s1"}, {}),
    ({}, {"metadata": {"user_id": json.dumps({"session_id": "s1"})}}),
    ({}, {"prompt_cache_key": "s1"}),
]


@pytest.mark.parametrize(("headers", "fields"), HINTS)
def test_the_name_of_a_client_names_the_session(
    running: Running, headers: dict[str, str], fields: dict[str, Any]
) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
    answer = running.client.post("/v1/chat/completions", json=body, headers=headers)
    assert answer.headers["x-acms-session"] == "s1"


def test_a_list_trimmed_at_its_start_belongs_to_the_named_session(running: Running) -> None:
    client = Conversation(running.client, "openai-chat", headers={"session-id": "s1"})
    client.say("one")
    client.say("two")
    client.messages = client.messages[-2:]
    client.say("three")
    assert list(running.sessions()) == ["s1"]


def test_a_client_that_compacted_begins_a_new_line(running: Running) -> None:
    client = Conversation(running.client, "openai-chat", headers={"session-id": "s1"})
    client.say("one")
    client.messages = []
    client.say("a summary of everything")
    assert client.session.startswith("s1~")
    assert len(running.sessions()) == 2


def test_side_requests_are_passed_and_not_stored(running: Running) -> None:
    client = Conversation(running.client, "openai-chat", headers={"session-id": "s1"})
    client.say("one")
    side: list[tuple[dict[str, str], dict[str, Any]]] = [
        ({"session-id": "s1"}, {"messages": [{"role": "user", "content": "make a title"}]}),
        ({"x-claude-code-request-class": "auxiliary"}, {"messages": [{"role": "user", "content": "x"}]}),
        (
            {"x-codex-turn-metadata": '{"request_kind": "memory"}'},
            {"messages": [{"role": "user", "content": "x"}]},
        ),
        ({}, {"messages": [{"role": "system", "content": "You are a title generator."}, *client.messages]}),
        ({"x-acms-store": "no"}, {"messages": [{"role": "user", "content": "private"}]}),
    ]
    for headers, body in side:
        answer = running.client.post("/v1/chat/completions", json={"model": "m", **body}, headers=headers)
        assert answer.headers["x-acms-memory"] == "bypassed;side request"
    assert list(running.sessions()) == ["s1"]


def test_namespaces_are_kept_apart_by_key(running: Running) -> None:
    for key in ("Bearer a", "Bearer b"):
        Conversation(running.client, "openai-chat", headers={"authorization": key}).say("hello")

    async def read() -> set[str]:
        memory = await running.gateway.tenants.memory("default")
        page = await memory.sessions.storage.sessions()
        return {one.namespace for one in page.sessions}

    running.settle()
    names = running.inside(read)
    assert len(names) == 2
    assert all(name.startswith("gateway-") for name in names)


def test_answers_that_the_provider_keeps_are_stored_in_one_session(running: Running) -> None:
    first = running.client.post("/v1/responses", json={"model": "m", "input": "one"})
    second = running.client.post(
        "/v1/responses", json={"model": "m", "input": "two", "previous_response_id": first.json()["id"]}
    )
    assert second.headers["x-acms-session"] == first.headers["x-acms-session"]
    (texts,) = running.sessions().values()
    assert texts == ["one", "answer 1", "two", "answer 2"]


def test_a_client_that_leaves_has_its_question_stored_and_no_half_answer(running: Running) -> None:
    body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "SLOW SIZE=900 leave"}]}
    with running.client.stream("POST", "/v1/chat/completions", json=body) as answer:
        next(answer.iter_raw())
    (texts,) = _wait_for_sessions(running)
    assert texts == ["SLOW SIZE=900 leave"]


def _wait_for_sessions(running: Running) -> list[list[str]]:
    found: list[list[str]] = []
    for _ in range(200):
        found = list(running.sessions().values())
        if found:
            return found
    raise AssertionError("nothing was stored")


def test_lines_are_kept_in_postgresql(postgres_home: str) -> None:
    with running_gateway(url=postgres_home) as running:
        client = Conversation(running.client, "openai-chat")
        client.say("one")
        client.say("two")
        branch = Conversation(running.client, "openai-chat", messages=client.messages[:2])
        running.settle()
        branch.say("other")
        client.say("three")
        sessions = running.sessions()
        assert "three" in sessions[client.session]
        assert "other" in sessions[branch.session]
        assert "two" not in sessions[branch.session]
