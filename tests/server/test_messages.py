"""Messages over HTTP: stored once, after the expected message, or refused."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import httpx2
import pytest

from acms.server import Limits
from tests.server.serving import OPEN, Service, serving
from tests.server.test_versioned_contexts import checked_problem


def post_messages(service: Service, context: str, *messages: Any, **headers: str) -> httpx2.Response:
    """Append messages; header names are written with underscores."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return service.client.post(f"/contexts/{context}/messages", json={"messages": messages}, headers=named)


def user_message(content: str, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **more}


# ── what is stored ──────────────────────────────────────────────────────────────────────────────────────────────────


FULL = {
    "role": "assistant",
    "content": "Let me look.",
    "toolCalls": [{"id": "call_1", "name": "disk", "arguments": '{"host":"db1"}'}],
    "actorId": "agent-7",
    "metadata": {"run": 12, "snake_case": {"kept_as": "it is"}},
    "markers": ["decision", "custom:mine"],
    "createdAt": "2026-03-01T12:00:00+02:00",
    "privacy": "redact",
    "origin": "external",
    "key": "full",
}


def test_an_append_answers_what_a_list_shows(service: Service) -> None:
    context = service.create()
    parts = [
        {"type": "media", "mime": "image/png", "ref": "s3://a", "sha256": "", "tokens": 7},
        {"type": "raw", "vendor": "v", "json": '{"a":1}'},
    ]
    reply = post_messages(
        service,
        context,
        FULL,
        {"role": "tool", "content": "40% used", "toolCallId": "call_1", "toolName": "disk"},
        user_message("look", parts=parts),
        {"role": "developer", "content": "be brief"},
        user_message("Decision: PostgreSQL 18."),
    )
    assert reply.status_code == 201, reply.text
    stored, listed = reply.json()["data"], service.get(f"/contexts/{context}/messages")["data"]
    for one in stored:
        assert (one.pop("embedded"), one.pop("repeated"), one.pop("notes")) == ("stored", False, [])
        assert one.pop("durability") in ("memory", "disk", "quorum", "relaxed")
    assert all(one.pop("inForce") for one in listed)
    assert stored == listed
    full, told, looked, brief, decided = listed
    call = {"type": "tool_call", "callId": "call_1", "name": "disk", "arguments": '{"host":"db1"}'}
    assert full["parts"] == [{"type": "text", "text": "Let me look."}, call]
    assert full["content"] == 'Let me look.\ndisk({"host":"db1"})'
    assert {name: full[name] for name in ("actorId", "metadata", "markers", "privacy", "origin")} == {
        name: FULL[name] for name in ("actorId", "metadata", "markers", "privacy", "origin")
    }
    assert full["createdAt"] == "2026-03-01T10:00:00Z"
    assert (told["toolCallId"], told["toolName"], told["origin"]) == ("call_1", "disk", "tool")
    assert looked["parts"][1:] == parts
    assert looked["tokenCount"] == 1 + 7
    assert brief["origin"] == "system"
    assert (decided["markers"], decided["position"]) == (["decision"], 5)


def test_what_is_listed_as_parts_can_be_appended_again(service: Service) -> None:
    context = service.create()
    post_messages(service, context, {name: value for name, value in FULL.items() if name != "key"})
    (first,) = service.get(f"/contexts/{context}/messages")["data"]
    again = {"role": first["role"], "parts": first["parts"]}
    assert post_messages(service, context, again).status_code == 201
    assert service.get(f"/contexts/{context}/messages")["data"][1]["content"] == first["content"]


@pytest.mark.parametrize(
    ("arguments", "kept"),
    [({"host": "db1"}, '{"host": "db1"}'), ("not json", "not json"), ({"n": [1, None]}, '{"n": [1, null]}')],
)
def test_calls_are_taken_as_chat_completions_have_them(
    sqlite_service: Service, arguments: Any, kept: str
) -> None:
    context = sqlite_service.create()
    call = {"id": "call_1", "type": "function", "function": {"name": "disk", "arguments": arguments}}
    reply = post_messages(sqlite_service, context, {"role": "assistant", "content": "", "toolCalls": [call]})
    assert reply.json()["data"][0]["parts"] == [
        {"type": "tool_call", "callId": "call_1", "name": "disk", "arguments": kept}
    ]


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (user_message("x", parts=[{"type": "nothing"}]), "messages[0].parts[0]"),
        (user_message("x", parts=[{"type": "text"}]), "messages[0].parts[0].text.text"),
        (user_message("x", toolCalls=[{"id": "c", "name": "n"}]), "messages[0].parts"),
        (user_message("x", markers=["nonsense"]), "messages[0].markers"),
        (user_message("x", createdAt="yesterday"), "messages[0].createdAt"),
        (user_message("x", createdAt="2026-03-01T12:00:00"), "messages[0].createdAt"),
        (user_message("x", privacy="secret"), "messages[0].privacy"),
        (user_message("x", origin="nowhere"), "messages[0].origin"),
        (user_message("x", actorId=""), "messages[0].actorId"),
        (user_message("x", key=""), "messages[0].key"),
        (user_message("x", metadata={"run_id": "a\0b"}), "messages[0].metadata.run_id"),
        ({"role": "assistant", "toolCalls": [{"id": "c"}]}, "messages[0].toolCalls[0].name"),
    ],
)
def test_a_field_at_fault_is_named_as_it_was_sent(
    sqlite_service: Service, message: dict[str, Any], field: str
) -> None:
    checked_problem(post_messages(sqlite_service, sqlite_service.create(), message), 400, field)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"messages":[{"role":"user","content":"a\\ud800b"}]}', "messages[0].content"),
        (
            b'{"messages":[{"role":"user","content":"a","metadata":{"x":"\\udfff"}}]}',
            "messages[0].metadata.x",
        ),
        (b'{"messages":[{"role":"user","content":"a","metadata":{"x":NaN}}]}', "messages[0].metadata.x"),
        (b'{"messages":[{"role":"user","content":"a","metadata":{"x":1e999}}]}', "messages[0].metadata.x"),
        (b'{"messages":[{"role":"user","content":"\xff"}]}', "body"),
        (b'{"messages":[{"role":"user","content":"a"}', "body"),
        (b'{"messages":[{"role":"user","metadata":' + b'{"a":' * 5000 + b"1" + b"}" * 5000 + b"}]}", "body"),
    ],
)
def test_json_that_no_store_can_hold_is_refused(sqlite_service: Service, body: bytes, field: str) -> None:
    at = f"/contexts/{sqlite_service.create()}/messages"
    json = {"content-type": "application/json"}
    checked_problem(sqlite_service.client.post(at, content=body, headers=json), 400, field)


def test_an_empty_list_is_refused_in_good_english(sqlite_service: Service) -> None:
    reply = sqlite_service.client.post(f"/contexts/{sqlite_service.create()}/messages", json={"messages": []})
    problem = checked_problem(reply, 400, "messages")
    assert problem["errors"][0]["message"] == "must have at least 1 element"


def test_an_invalid_message_refuses_the_whole_append(sqlite_service: Service) -> None:
    context = sqlite_service.create()
    messages = [user_message("fine"), {"role": "user", "content": 5}]
    reply = sqlite_service.client.post(f"/contexts/{context}/messages", json={"messages": messages})
    checked_problem(reply, 400, "messages[1].content")
    assert sqlite_service.get(f"/contexts/{context}/messages")["data"] == []


def test_arguments_of_a_call_must_be_json(sqlite_service: Service) -> None:
    at = f"/contexts/{sqlite_service.create()}/messages"
    json = {"content-type": "application/json"}
    body = b'{"messages":[{"role":"assistant","toolCalls":[{"id":"c","name":"n","arguments":{"a":1e999}}]}]}'
    reply = sqlite_service.client.post(at, content=body, headers=json)
    checked_problem(reply, 400, "messages[0].toolCalls[0].arguments")


# ── limits ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_message_is_measured_with_its_parts_and_calls() -> None:
    config = replace(OPEN, limits=Limits(message_bytes=100, batch=2, body_bytes=2000))
    with serving("memory://", config) as service:
        context = service.create()
        assert post_messages(service, context, user_message("x" * 100)).status_code == 201
        call = {"id": "c", "name": "n", "arguments": {"a": "x" * 90}}
        for large in (
            user_message("x" * 101),
            user_message("é" * 51),
            user_message("x" * 60, parts=[{"type": "text", "text": "x" * 60}]),
            {"role": "assistant", "content": "", "toolCalls": [call]},
        ):
            reply = post_messages(service, context, user_message("ok"), large)
            problem = checked_problem(reply, 413, "messages[1]")
            assert problem["options"][0] == "split the text into several messages"
        checked_problem(
            post_messages(service, context, user_message("a"), user_message("b"), user_message("c")),
            413,
            "messages",
        )
        checked_problem(post_messages(service, context, user_message("x" * 3000)), 413, "body")
        assert service.get(f"/contexts/{context}")["data"]["latestVersion"] == 1


# ── once ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_same_request_again_changes_nothing(service: Service) -> None:
    context = service.create()
    first = post_messages(service, context, user_message("a"), user_message("b"), Idempotency_Key="import-1")
    again = post_messages(service, context, user_message("a"), user_message("b"), Idempotency_Key="import-1")
    assert (first.status_code, again.status_code) == (201, 201)
    shown = first.json()["data"]
    assert [one["repeated"] for one in shown] == [False, False]
    assert [{**one, "repeated": False} for one in again.json()["data"]] == shown
    assert [one["repeated"] for one in again.json()["data"]] == [True, True]
    assert service.get(f"/contexts/{context}")["data"]["messageCount"] == 2


@pytest.mark.parametrize("other", [[user_message("other")], [user_message("a"), user_message("more")]])
def test_a_key_that_was_used_for_something_else_is_refused(service: Service, other: list[Any]) -> None:
    context = service.create()
    post_messages(service, context, user_message("a"), Idempotency_Key="k")
    assert (
        checked_problem(post_messages(service, context, *other, Idempotency_Key="k"), 422)["code"]
        == "IDEMPOTENCY_MISMATCH"
    )


def test_a_message_may_bring_a_key_of_its_own(service: Service) -> None:
    context = service.create()
    post_messages(service, context, user_message("a", key="mine"))
    assert post_messages(service, context, user_message("a", key="mine")).json()["data"][0]["repeated"]
    assert post_messages(service, context, user_message("a", key="mine"), Idempotency_Key="k").json()["data"][
        0
    ]["repeated"]


@pytest.mark.parametrize("key", ["", "k" * 248])
def test_an_idempotency_key_that_makes_no_sense_is_refused(sqlite_service: Service, key: str) -> None:
    checked_problem(
        post_messages(sqlite_service, sqlite_service.create(), user_message("a"), Idempotency_Key=key),
        400,
        "Idempotency-Key",
    )


def test_many_clients_with_one_key_append_once(service: Service) -> None:
    context = service.create()

    def write(_: int) -> tuple[int, bool]:
        reply = post_messages(service, context, user_message("once"), Idempotency_Key="one")
        assert reply.status_code == 201, reply.text
        (one,) = reply.json()["data"]
        return one["version"], one["repeated"]

    with ThreadPoolExecutor(6) as pool:
        done = list(pool.map(write, range(12)))
    assert sorted(done) == [(1, False)] + [(1, True)] * 11


# ── after which message ─────────────────────────────────────────────────────────────────────────────────────────────


def test_an_append_can_ask_that_nobody_spoke_since(service: Service) -> None:
    context = service.create()
    first = post_messages(service, context, user_message("a"), If_Match='"empty"')
    assert first.status_code == 201
    second = post_messages(service, context, user_message("b"), If_Match=first.headers["etag"])
    assert second.status_code == 201
    refused = checked_problem(
        post_messages(service, context, user_message("c"), If_Match=first.headers["etag"]), 412
    )
    assert refused["code"] == "PRECONDITION"
    checked_problem(post_messages(service, context, user_message("c"), If_Match='"empty"'), 412)
    assert post_messages(service, context, user_message("c"), If_Match="*").status_code == 201
    contents = [one["content"] for one in service.get(f"/contexts/{context}/messages")["data"]]
    assert contents == ["a", "b", "c"]


def test_a_repeated_append_is_answered_though_its_precondition_is_past(service: Service) -> None:
    context = service.create()
    for repeated in (False, True):
        reply = post_messages(service, context, user_message("a"), If_Match='"empty"', Idempotency_Key="k")
        assert reply.status_code == 201
        assert reply.json()["data"][0]["repeated"] is repeated


def test_of_many_who_have_seen_the_same_one_may_speak(service: Service) -> None:
    context = service.talk("question")
    etag = service.client.get(f"/contexts/{context}").headers["etag"]

    def write(who: int) -> int:
        return post_messages(service, context, user_message(f"answer {who}"), If_Match=etag).status_code

    with ThreadPoolExecutor(6) as pool:
        assert sorted(pool.map(write, range(6))) == [201, 412, 412, 412, 412, 412]


@pytest.mark.parametrize("wrong", ["text", 'W/"empty"', '"a", "b"', '""'])
def test_a_precondition_that_is_not_understood_is_refused(sqlite_service: Service, wrong: str) -> None:
    checked_problem(
        post_messages(sqlite_service, sqlite_service.create(), user_message("a"), If_Match=wrong),
        400,
        "If-Match",
    )


# ── lists ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_is_out_of_force_is_listed_and_marked(service: Service) -> None:
    context = service.talk("a", "b", "c")
    second = service.get(f"/contexts/{context}/messages")["data"][1]["id"]

    async def retract(tenant: Any) -> int:
        return await (await tenant.session(context)).retract(second)

    assert service.inside(retract) == 4
    listed = service.get(f"/contexts/{context}/messages")["data"]
    assert [(one["content"], one["inForce"]) for one in listed] == [("a", True), ("b", False), ("c", True)]


def test_pages_pass_over_versions_that_are_no_messages(service: Service) -> None:
    context = service.talk("a", "b")

    async def close(tenant: Any) -> str:
        return await (await tenant.session(context)).close_episode()

    service.inside(close)
    service.say(context, "c", "d")
    found = [
        service.get(f"/contexts/{context}/messages", limit=2, cursor=cursor)["data"] for cursor in (0, 2, 5)
    ]
    places = [[(one["version"], one["position"]) for one in page] for page in found]
    assert places == [[(1, 1), (2, 2)], [(4, 3), (5, 4)], []]
    last = service.get(f"/contexts/{context}/messages", limit=3, cursor=5, order="desc")
    assert [one["version"] for one in last["data"]] == [4, 2, 1]


@pytest.mark.parametrize(("privacy", "shown"), [("redact", True), ("block", False)])
def test_what_is_read_passes_the_stage_of_privacy(service: Service, privacy: str, shown: bool) -> None:
    context = service.create()
    secret = "ann.miller@example.org"
    said = user_message(f"Write to {secret} about the orders.", privacy=privacy)
    assert post_messages(service, context, said).status_code == 201
    at = f"/contexts/{context}"
    for path in ("/messages", "/at/1", "/window?budget=1000", "/history", "/diff?atVersion=0&otherVersion=1"):
        reply = service.client.get(f"{at}{path}")
        assert reply.status_code == 200, reply.text
        assert secret not in reply.text, path
        assert ("about the orders" in reply.text) == shown, path
    (item,) = service.get(f"{at}/window", budget=1000)["data"]
    assert item["redaction"]["mode"] == privacy


# ── what is private ─────────────────────────────────────────────────────────────────────────────────────────────────
def test_what_is_blocked_or_redacted_is_so_in_every_list(service: Service) -> None:
    context = service.create()
    said = [
        user_message("Mail ann@example.org.", privacy="redact"),
        user_message("My diagnosis.", privacy="block"),
    ]
    assert post_messages(service, context, *said, user_message("Friday.")).status_code == 201
    for place in ("messages", "at/3"):
        page = service.get(f"/contexts/{context}/{place}")["data"]
        assert [one["content"] for one in page] == ["Mail [REDACTED: email].", "[withheld]", "Friday."]
    whole = service.get(f"/contexts/{context}/entries/{page[1]['id']}")["data"]
    assert whole["content"] == "[withheld]"
    assert whole["salt"] is None


def test_a_compaction_and_a_content_of_gemini_are_taken_as_they_are(service: Service) -> None:
    context = service.create()
    service.say(context, "One.", "Two.")
    block = {"type": "compaction", "content": "They counted.", "signature": "c2ln"}
    answer = {"role": "assistant", "content": [block, {"type": "text", "text": "Go on."}]}
    reply = service.client.post(f"/contexts/{context}/messages", json={"messages": [answer]})
    assert [(one["kind"], one["content"]) for one in reply.json()["data"]] == [
        ("summary", "They counted."),
        ("message", "Go on."),
    ]
    (made,) = service.get(f"/contexts/{context}/compactions")["data"]
    assert (made["replaces"], made["summarizer"], made["preserved"]) == ([1, 2], "anthropic", 0)
    content = {"role": "model", "parts": [{"text": "Three.", "thoughtSignature": "c2ln"}]}
    reply = service.client.post(f"/contexts/{context}/messages", json={"messages": [content]})
    assert [(one["role"], one["content"]) for one in reply.json()["data"]] == [("assistant", "Three.")]
