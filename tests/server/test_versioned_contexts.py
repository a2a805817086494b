"""What users of versioned contexts expect of the routes, as cases of our own.

Taken from the behaviour of the public project that the routes grew out of; what
the engine does below the routes stands in tests/session/test_versioned_contexts.py. Each difference is on
purpose and stands, with its reason, in docs/how-to/http-differences.md: a case whose name says "unlike" is one of them.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any

import httpx2
import pytest

from tests.server.serving import Service

NOBODY = "c_0000000000000000"
"""An id that could be one of the service and is not."""
FRAME = 4
"""Tokens that a message of a user costs in a window beside its text."""


def text_of_tokens(tokens: int, mark: str = "w") -> str:
    """A message that costs so many tokens in a window."""
    return " ".join([mark] * (tokens - FRAME))


def checked_problem(reply: httpx2.Response, status: int, field: str = "") -> Any:
    """Check that an answer is a problem about a field, and return it."""
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"] == "application/problem+json"
    written = reply.json()
    assert written["status"] == status
    assert written["type"] == f"urn:acms:error:{written['code'].lower()}"
    assert [one["field"] for one in written.get("errors", [])] == ([field] if field else [])
    return written


def versions_of_page(page: Any) -> list[int]:
    return [one["version"] for one in page["data"]]


def contents_of_page(page: Any) -> list[str]:
    return [one["content"] for one in page["data"]]


# ── contexts ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_context_is_born_with_an_id_and_times_and_nothing_in_it(service: Service) -> None:
    reply = service.client.post("/contexts", json={})
    assert reply.status_code == 201
    made = reply.json()["data"]
    assert made["id"].startswith("c_")
    assert made["createdAt"].endswith("Z")
    assert [made[name] for name in ("name", "parentId", "forkVersion", "deletedAt")] == [None] * 4
    assert [made[name] for name in ("messageCount", "totalTokens", "latestVersion")] == [0] * 3
    assert made["policyConfig"]["threshold"] == 0.8
    assert (made["policyConfig"]["preserveRecentCount"], made["policyConfig"]["enabled"]) == (10, True)


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({"threshold": 0.6, "preserveRecentCount": 5, "enabled": False}, (0.6, 5, False)),
        ({"threshold": 0.5}, (0.5, 10, True)),
        ({"threshold": 0}, (0, 10, True)),
        ({"threshold": 1}, (1, 10, True)),
    ],
)
def test_a_policy_comes_back_with_defaults_for_what_was_left_out(
    sqlite_service: Service, given: dict[str, Any], shown: tuple[Any, ...]
) -> None:
    context = sqlite_service.create(policyConfig=given)
    policy = sqlite_service.get(f"/contexts/{context}")["data"]["policyConfig"]
    assert (policy["threshold"], policy["preserveRecentCount"], policy["enabled"]) == shown


@pytest.mark.parametrize("wrong", [1.1, -0.1, -1, 1.5, "high"])
def test_a_threshold_out_of_bounds_is_refused(sqlite_service: Service, wrong: Any) -> None:
    body = {"policyConfig": {"threshold": wrong}}
    checked_problem(sqlite_service.client.post("/contexts", json=body), 400, "policyConfig.threshold")


def test_a_name_has_at_most_255_characters(sqlite_service: Service) -> None:
    context = sqlite_service.create(name="n" * 255)
    assert sqlite_service.get(f"/contexts/{context}")["data"]["name"] == "n" * 255
    checked_problem(sqlite_service.client.post("/contexts", json={"name": "n" * 256}), 400, "name")


def test_metadata_is_kept_unlike_there(service: Service) -> None:
    metadata = {"team": "orders", "nested": {"some_key": [1, 2.5, None, True]}}
    context = service.create(metadata=metadata)
    assert service.get(f"/contexts/{context}")["data"]["metadata"] == metadata


def test_a_name_that_is_not_known_is_refused_unlike_there(sqlite_service: Service) -> None:
    checked_problem(sqlite_service.client.post("/contexts", json={"colour": "red"}), 400, "colour")


@pytest.mark.parametrize("body", [b"{", b"null", b"[]", b'"text"', b"\xff\xfe", b"{}x"])
def test_what_is_no_json_object_is_refused(sqlite_service: Service, body: bytes) -> None:
    json = {"content-type": "application/json"}
    checked_problem(sqlite_service.client.post("/contexts", content=body, headers=json), 400, "body")


def test_the_life_of_a_context(service: Service) -> None:
    context = service.create(name="life")
    service.say(context, "a")
    read = service.get(f"/contexts/{context}")["data"]
    assert (read["id"], read["name"], read["messageCount"]) == (context, "life", 1)
    gone = service.client.delete(f"/contexts/{context}")
    assert gone.status_code == 200
    assert gone.json()["data"]["deletedAt"].endswith("Z")
    at = f"/contexts/{context}"
    for reply in (
        service.client.get(at),
        service.client.delete(at),
        service.client.post(f"{at}/messages", json={"messages": [{"role": "user", "content": "late"}]}),
        service.client.get(f"{at}/messages"),
        service.client.get(f"{at}/window", params={"budget": 10}),
        service.client.post(f"{at}/fork", json={}),
    ):
        checked_problem(reply, 404)


@pytest.mark.parametrize("id", [NOBODY, "not-an-id", "00000000-0000-0000-0000-000000000000"])
def test_an_unknown_context_is_not_found_whatever_its_id_looks_like_unlike_there(
    service: Service, id: str
) -> None:
    checked_problem(service.client.get(f"/contexts/{id}"), 404)
    checked_problem(service.client.delete(f"/contexts/{id}"), 404)


# ── append ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_versions_count_up_from_one_and_go_on(service: Service) -> None:
    context = service.create()
    first = service.say(context, "a", "b")
    assert [(one["version"], one["position"], one["content"]) for one in first] == [(1, 1, "a"), (2, 2, "b")]
    assert [one["version"] for one in service.say(context, "c")] == [3]


def test_an_append_counts_messages_tokens_and_version_at_once(service: Service) -> None:
    context = service.talk(text_of_tokens(9), text_of_tokens(14))
    shown = service.get(f"/contexts/{context}")["data"]
    assert (shown["messageCount"], shown["totalTokens"], shown["latestVersion"]) == (2, 15, 2)


def test_messages_of_one_batch_have_one_time(service: Service) -> None:
    context = service.create()
    stored = service.say(context, *(str(n) for n in range(20)))
    assert len({one["createdAt"] for one in stored}) == 1
    listed = service.get(f"/contexts/{context}/messages")["data"]
    assert {one["createdAt"] for one in listed} == {stored[0]["createdAt"]}


def test_what_belongs_to_a_tool_comes_back_as_it_was(service: Service) -> None:
    context = service.create()
    sent = {
        "role": "tool",
        "content": "3",
        "toolCallId": "call_123",
        "toolName": "calculator",
        "model": "gpt-4",
        "tokenCount": 7,
    }
    reply = service.client.post(f"/contexts/{context}/messages", json={"messages": [sent]})
    assert reply.status_code == 201
    (listed,) = service.get(f"/contexts/{context}/messages")["data"]
    for shown in (reply.json()["data"][0], listed):
        assert {name: shown[name] for name in sent} == {**sent, "tokenCount": 1}  # ours, unlike there
        assert shown["metadata"] == {"toolName": "calculator", "model": "gpt-4"}


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ({"role": "robot", "content": "x"}, "messages[0].role"),
        ({"content": "x"}, "messages[0].role"),
        ({"role": "user", "content": 7}, "messages[0].content"),
        ({"role": "user", "content": None}, "messages[0].content"),
        ({"role": "user", "content": "x", "tokenCount": 0}, "messages[0].tokenCount"),
        ({"role": "user", "content": "x", "tokenCount": -1}, "messages[0].tokenCount"),
        ({"role": "user", "content": "x", "tokenCount": 1.5}, "messages[0].tokenCount"),
        ({"role": "tool", "content": "x"}, "messages[0].toolCallId"),
        ({"role": "user", "content": "x", "toolCallId": "call_1"}, "messages[0].toolCallId"),
        ({"role": "user", "content": "x", "privcay": "block"}, "messages[0].privcay"),
        ("text", "messages[0]"),
    ],
)
def test_a_message_that_makes_no_sense_is_refused(sqlite_service: Service, message: Any, field: str) -> None:
    context = sqlite_service.create()
    reply = sqlite_service.client.post(f"/contexts/{context}/messages", json={"messages": [message]})
    checked_problem(reply, 400, field)


def test_odd_text_is_repaired_and_unknown_fields_are_kept(sqlite_service: Service) -> None:
    context = sqlite_service.create()
    odd = [{"role": "user", "content": "a\0b"}, {"role": "user", "content": "x", "colour": "red"}]
    reply = sqlite_service.client.post(f"/contexts/{context}/messages", json={"messages": odd})
    assert reply.status_code == 201
    repaired, kept = reply.json()["data"]
    assert repaired["notes"]
    assert kept["content"] == "x"


def test_an_empty_message_is_refused_unlike_there(sqlite_service: Service) -> None:
    context = sqlite_service.create()
    body = {"messages": [{"role": "user", "content": ""}]}
    checked_problem(
        sqlite_service.client.post(f"/contexts/{context}/messages", json=body), 400, "messages[0].content"
    )


@pytest.mark.parametrize("body", [{}, {"messages": []}, {"messages": {}}, {"messages": None}])
def test_an_append_of_nothing_is_refused(sqlite_service: Service, body: Any) -> None:
    context = sqlite_service.create()
    checked_problem(sqlite_service.client.post(f"/contexts/{context}/messages", json=body), 400, "messages")


def test_one_bad_message_refuses_the_batch(service: Service) -> None:
    context = service.talk("a")
    body = {
        "messages": [
            {"role": "user", "content": "good"},
            {"role": "user", "content": "x", "privcay": "block"},
        ]
    }
    checked_problem(
        service.client.post(f"/contexts/{context}/messages", json=body), 400, "messages[1].privcay"
    )
    assert service.get(f"/contexts/{context}")["data"]["latestVersion"] == 1


def test_a_huge_batch_is_too_large_and_no_error_of_the_service(service: Service) -> None:
    context = service.create()
    for count in (257, 9000):
        body = {"messages": [{"role": "user", "content": "x"}] * count}
        reply = service.client.post(f"/contexts/{context}/messages", json=body)
        problem = checked_problem(reply, 413, "messages")
        assert problem["detail"] == f"messages: has {count} messages, the limit is 256"
        assert problem["options"] == ["split the list into parts of at most 256 messages"]
    assert len(service.say(context, *["x"] * 256)) == 256


def test_appending_to_an_unknown_context_is_not_found(service: Service) -> None:
    body = {"messages": [{"role": "user", "content": "x"}]}
    checked_problem(service.client.post(f"/contexts/{NOBODY}/messages", json=body), 404)


def test_text_of_any_script_comes_back(service: Service) -> None:
    said = "héllo 👋🏽 مرحبا \u2028 x\n\ty"
    context = service.talk(said)
    assert contents_of_page(service.get(f"/contexts/{context}/messages")) == [said]


def test_eight_clients_append_at_once_without_gap_or_loss(service: Service) -> None:
    context = service.create()

    def write(who: int) -> list[tuple[int, str]]:
        found: list[tuple[int, str]] = []
        for n in range(6):
            stored = service.say(context, *(f"{who}.{n}.{k}" for k in range(1 + who % 2)))
            assert [one["version"] - stored[0]["version"] for one in stored] == list(range(len(stored)))
            found += [(one["version"], one["content"]) for one in stored]
        return found

    with ThreadPoolExecutor(8) as pool:
        done = sorted(chain.from_iterable(pool.map(write, range(8))))
    listed = service.get(f"/contexts/{context}/messages", limit=1000)
    assert [(one["version"], one["content"]) for one in listed["data"]] == done
    assert versions_of_page(listed) == list(range(1, 73))


# ── list ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_messages_are_listed_oldest_first_or_newest_first(service: Service) -> None:
    at = f"/contexts/{service.talk('M1', 'M2', 'M3')}/messages"
    assert (
        contents_of_page(service.get(at))
        == contents_of_page(service.get(at, order="asc"))
        == ["M1", "M2", "M3"]
    )
    assert contents_of_page(service.get(at, order="desc")) == ["M3", "M2", "M1"]
    page = service.get(at, order="desc", limit=1)
    assert (contents_of_page(page), page["nextCursor"], page["hasMore"]) == (["M3"], 3, True)
    page = service.get(at, order="desc", limit=1, cursor=page["nextCursor"])
    assert (contents_of_page(page), page["nextCursor"]) == (["M2"], 2)
    page = service.get(at, order="desc", limit=1, cursor=page["nextCursor"])
    assert (contents_of_page(page), page["nextCursor"], page["hasMore"]) == (["M1"], None, False)


def test_messages_are_paged_without_skip_or_repeat(service: Service) -> None:
    at = f"/contexts/{service.talk(*'abcde')}/messages"
    pages, cursor = [], 0
    while cursor is not None:
        page = service.get(at, limit=2, cursor=cursor)
        cursor = page["nextCursor"]
        pages.append((versions_of_page(page), cursor, page["hasMore"]))
    assert pages == [([1, 2], 2, True), ([3, 4], 4, True), ([5], None, False)]


def test_a_cursor_behind_the_log_is_no_error(service: Service) -> None:
    at = f"/contexts/{service.talk('a', 'b')}/messages"
    assert service.client.get(at, params={"cursor": -5}).status_code == 400
    assert versions_of_page(service.get(at, cursor=99)) == []
    assert versions_of_page(service.get(at, cursor=99, order="desc")) == [2, 1]
    assert versions_of_page(service.get(at, cursor=10**30)) == []


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"limit": 0}, "limit"),
        ({"limit": 1001}, "limit"),
        ({"limit": ""}, "limit"),
        ({"limit": "many"}, "limit"),
        ({"order": "sideways"}, "order"),
        ({"cursor": "x"}, "cursor"),
        ({"cursor": ""}, "cursor"),  # 0 there
        ({"colour": "red"}, "colour"),  # ignored there
    ],
)
def test_a_page_that_makes_no_sense_is_refused(
    sqlite_service: Service, query: dict[str, Any], field: str
) -> None:
    context = sqlite_service.talk("a")
    checked_problem(sqlite_service.client.get(f"/contexts/{context}/messages", params=query), 400, field)


def test_an_unknown_context_has_no_messages_and_no_window_unlike_there(service: Service) -> None:
    checked_problem(service.client.get(f"/contexts/{NOBODY}/messages"), 404)
    checked_problem(service.client.get(f"/contexts/{NOBODY}/window", params={"budget": 10}), 404)


def test_an_empty_context_has_an_empty_list_and_an_empty_window(service: Service) -> None:
    context = service.create()
    assert service.get(f"/contexts/{context}/messages") == {"data": [], "nextCursor": None, "hasMore": False}
    window = service.get(f"/contexts/{context}/window", budget=100)
    assert (window["data"], window["tokens"], window["version"]) == ([], 0, 0)


# ── window ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("sizes", "budget", "shown"),
    [
        ((10, 20, 15, 25), 40, (15, 25)),
        ((10, 20, 15, 25), 39, (25,)),
        ((10, 20, 15, 25), 70, (10, 20, 15, 25)),
        ((10, 20, 15, 25), 1000, (10, 20, 15, 25)),
        ((25, 25), 25, (25,)),
        ((8, 100, 8), 20, (8,)),
    ],
)
def test_a_window_is_the_newest_contiguous_messages_that_fit(
    service: Service, sizes: tuple[int, ...], budget: int, shown: tuple[int, ...]
) -> None:
    context = service.talk(*(text_of_tokens(size) for size in sizes))
    window = service.get(f"/contexts/{context}/window", budget=budget)
    assert tuple(one["tokenCount"] for one in window["data"]) == shown
    assert versions_of_page(window) == list(range(len(sizes) - len(shown) + 1, len(sizes) + 1))
    assert window["tokens"] == sum(shown) <= budget
    assert window["omitted"] == len(sizes) - len(shown) or window["omitted"] == 0


def test_a_message_larger_than_the_budget_is_cut_and_flagged_unlike_there(service: Service) -> None:
    context = service.talk(text_of_tokens(100))
    window = service.get(f"/contexts/{context}/window", budget=10)
    assert [one["truncated"] for one in window["data"]] == [True]
    assert window["tokens"] <= 10
    assert service.get(f"/contexts/{context}/messages")["data"][0]["content"] == text_of_tokens(100)


@pytest.mark.parametrize("budget", ["-100", "NaN", "Infinity", "2.5", "many", "", "0x10", "1e3"])
def test_a_budget_that_is_no_number_of_tokens_is_refused(sqlite_service: Service, budget: str) -> None:
    context = sqlite_service.talk("a")
    checked_problem(
        sqlite_service.client.get(f"/contexts/{context}/window", params={"budget": budget}), 400, "budget"
    )


def test_a_window_needs_a_budget_and_no_more_than_the_service_allows(sqlite_service: Service) -> None:
    context = sqlite_service.talk("a")
    checked_problem(sqlite_service.client.get(f"/contexts/{context}/window"), 400, "budget")
    checked_problem(
        sqlite_service.client.get(f"/contexts/{context}/window", params={"budget": 10**12}), 413, "budget"
    )


def test_tokens_are_counted_as_the_models_count_them(sqlite_service: Service) -> None:
    assert [one["tokenCount"] for one in sqlite_service.say(sqlite_service.create(), "hello world")] == [2]


# ── the service itself ──────────────────────────────────────────────────────────────────────────────────────────────


def test_the_service_says_that_it_is_well(sqlite_service: Service) -> None:
    reply = sqlite_service.client.get(f"{sqlite_service.url}/health")
    assert (reply.status_code, reply.json()["status"]) == (200, "ok")


def test_what_is_not_there_is_a_problem_and_a_wrong_method_names_the_right_ones(
    sqlite_service: Service,
) -> None:
    checked_problem(sqlite_service.client.get("/nothing"), 404)
    reply = sqlite_service.client.put("/contexts", json={})
    assert checked_problem(reply, 405)["options"] == ["GET", "POST"]
    assert reply.headers["allow"] == "GET, POST"


def test_a_body_that_is_no_json_by_its_type_is_refused_unlike_there(sqlite_service: Service) -> None:
    text = {"content-type": "text/plain"}
    checked_problem(sqlite_service.client.post("/contexts", content=b"{}", headers=text), 415, "content-type")
