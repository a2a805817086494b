"""Versions over HTTP: windows and states of the past, history, forks, copies, differences, tags.

With the criteria of success of versioned contexts, and the contradictions in their papers, as cases.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.server.serving import Service
from tests.server.test_versioned_contexts import NOBODY, checked_problem, contents_of_page, versions_of_page

LONG = [f"Message number {n} says that the orders service {'writes rows ' * 20}." for n in range(1, 9)]
"""Worth a summary."""


def fork_context(service: Service, context: str, **body: Any) -> str:
    reply = service.client.post(f"/contexts/{context}/fork", json=body)
    assert reply.status_code == 201, reply.text
    return str(reply.json()["data"]["id"])


def window_contents(service: Service, context: str, budget: int = 10_000, **query: Any) -> list[str]:
    return contents_of_page(service.get(f"/contexts/{context}/window", budget=budget, **query))


def entries_in_force(service: Service, context: str, version: int, limit: int = 500) -> list[Any]:
    """Everything in force at a version, page by page."""
    found: list[Any] = []
    cursor = 0
    while cursor is not None:
        page = service.get(f"/contexts/{context}/at/{version}", limit=limit, cursor=cursor)
        assert page["version"] == version
        assert len(page["data"]) <= limit
        assert page["hasMore"] == (page["nextCursor"] is not None)
        found, cursor = found + page["data"], page["nextCursor"]
    return found


def compact_context(service: Service, context: str) -> Any:
    """Compact all but the last two messages, and return the compaction."""
    at, wait = f"/contexts/{context}/compact", {"Prefer": "wait=20"}
    reply = service.client.post(at, json={"preserveRecentCount": 2}, headers=wait)
    assert reply.status_code == 200, reply.text
    return reply.json()["data"]["compaction"]


# ── windows ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_window_never_has_the_etag_of_a_message_that_it_does_not_show(sqlite_service: Service) -> None:
    context = sqlite_service.talk("first")
    done = threading.Event()

    def talk() -> None:
        while not done.is_set():
            sqlite_service.say(context, "x")

    others = threading.Thread(target=talk)
    others.start()
    try:
        for _ in range(60):
            reply = sqlite_service.client.get(f"/contexts/{context}/window", params={"budget": 100_000})
            shown = {item["id"] for item in reply.json()["data"]}
            assert reply.headers["etag"].strip('"') in shown
    finally:
        done.set()
        others.join(60)


# ── forks ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_fork_at_five_holds_exactly_the_first_five_messages(service: Service) -> None:
    parent = service.talk(*(f"m{n}" for n in range(1, 11)))
    reply = service.client.post(f"/contexts/{parent}/fork", json={"atVersion": 5})
    assert reply.status_code == 201
    child = reply.json()["data"]
    assert reply.headers["location"] == f"/api/v1/contexts/{child['id']}"
    assert (child["parentId"], child["forkVersion"], child["latestVersion"]) == (parent, 5, 5)
    assert (child["messageCount"], child["totalTokens"]) == (5, 10)
    listed = service.get(f"/contexts/{child['id']}/messages")
    assert contents_of_page(listed) == [f"m{n}" for n in range(1, 6)]
    assert versions_of_page(listed) == [1, 2, 3, 4, 5]
    assert listed["data"] == service.get(f"/contexts/{parent}/messages")["data"][:5], "nothing is copied"


def test_parent_and_fork_go_their_own_ways(service: Service) -> None:
    parent = service.talk("a", "b", "c")
    child = fork_context(service, parent, atVersion=2)
    service.say(child, "child")
    service.say(parent, "parent")
    assert window_contents(service, child) == ["a", "b", "child"]
    assert window_contents(service, parent) == ["a", "b", "c", "parent"]
    assert versions_of_page(service.get(f"/contexts/{child}/messages")) == [1, 2, 3]


def test_a_fork_is_at_the_newest_version_unless_it_says_where(service: Service) -> None:
    parent = service.talk("a", "b", "c")
    service.client.put(f"/contexts/{parent}/tags/second", json={"atVersion": 2})
    for body, version in (
        ({}, 3),
        ({"atVersion": 0}, 0),
        ({"atVersion": 3}, 3),
        ({"atMessage": 1}, 1),
        ({"atTag": "second"}, 2),
    ):
        child = fork_context(service, parent, **body)
        assert service.get(f"/contexts/{child}")["data"]["latestVersion"] == version
    assert service.client.post(f"/contexts/{parent}/fork").status_code == 201, "a body is not needed"


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({"atVersion": 4}, 404, ""),
        ({"atVersion": -1}, 400, "atVersion"),
        ({"atVersion": "2"}, 400, "atVersion"),
        ({"atVersion": 1.5}, 400, "atVersion"),
        ({"atMessage": 4}, 404, ""),
        ({"atVersion": 1, "atMessage": 1}, 400, "atVersion"),
        ({"atTag": "nothing"}, 404, ""),
        ({"key": "c_0123456789abcdef"}, 400, "key"),
        ({"key": "a\0b"}, 400, "key"),
        ({"colour": "red"}, 400, "colour"),
    ],
)
def test_a_fork_that_makes_no_sense_is_refused(
    sqlite_service: Service, body: dict[str, Any], status: int, field: str
) -> None:
    parent = sqlite_service.talk("a", "b", "c")
    checked_problem(sqlite_service.client.post(f"/contexts/{parent}/fork", json=body), status, field)
    assert sqlite_service.get(f"/contexts/{parent}/forks")["data"] == []


def test_an_unknown_context_cannot_be_forked(service: Service) -> None:
    checked_problem(service.client.post(f"/contexts/{NOBODY}/fork", json={}), 404)


@pytest.mark.parametrize("verb", ["fork", "copy"])
def test_a_fork_with_a_key_is_made_once(service: Service, verb: str) -> None:
    parent = service.talk("a", "b", namespace=f"once-{verb}")
    at = f"/contexts/{parent}/{verb}"
    first = service.client.post(at, json={"atVersion": 1, "key": "child"})
    again = service.client.post(at, json={"atVersion": 1, "key": "child"})
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == again.json()
    assert first.json()["data"]["key"] == "child"
    checked_problem(service.client.post(at, json={"atVersion": 2, "key": "child"}), 409)


@pytest.mark.parametrize("verb", ["fork", "copy"])
def test_an_idempotency_key_makes_one_fork_though_the_log_went_on(service: Service, verb: str) -> None:
    parent = service.talk("a", namespace=f"retried-{verb}")
    at, headers = f"/contexts/{parent}/{verb}", {"Idempotency-Key": "retry-1"}
    first = service.client.post(at, json={"atVersion": 1}, headers=headers)
    service.say(parent, "b")
    again = service.client.post(at, json={"atVersion": 1}, headers=headers)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == again.json()
    other = service.client.post(at, json={"atVersion": 2}, headers=headers)
    assert checked_problem(other, 422)["code"] == "IDEMPOTENCY_MISMATCH"


def test_forks_their_line_and_their_tree_can_be_listed(service: Service) -> None:
    root = service.talk("a", "b", "c", key="root", namespace="tree")
    one = fork_context(service, root, atVersion=1, key="one")
    two = fork_context(service, root, atVersion=2)
    deeper = fork_context(service, one, key="deeper")
    forks = service.get(f"/contexts/{root}/forks")
    assert [(fork["id"], fork["forkVersion"]) for fork in forks["data"]] == [(two, 2), (one, 1)]
    page = service.get(f"/contexts/{root}/forks", limit=1)
    assert [fork["id"] for fork in page["data"]] == [two]
    page = service.get(f"/contexts/{root}/forks", limit=1, cursor=page["nextCursor"])
    assert ([fork["id"] for fork in page["data"]], page["hasMore"]) == ([one], False)
    line = service.get(f"/contexts/{deeper}/ancestry")["data"]
    assert [(branch["id"], branch["key"], branch["parentId"], branch["forkVersion"]) for branch in line] == [
        (root, "root", None, None),
        (one, "one", root, 1),
        (deeper, "deeper", one, 1),
    ]
    for context in (root, two, deeper):
        tree = service.get(f"/contexts/{context}/tree")["data"]
        assert [(branch["depth"], branch["id"]) for branch in tree] == [
            (0, root),
            (1, one),
            (2, deeper),
            (1, two),
        ]
    service.client.delete(f"/contexts/{one}")
    tree = service.get(f"/contexts/{root}/tree")["data"]
    assert [branch["id"] for branch in tree if branch["deleted"]] == [one]
    assert [one["id"] for one in service.get(f"/contexts/{root}/forks")["data"]] == [two]


def test_what_is_too_deep_to_be_forked_can_be_copied(sqlite_service: Service) -> None:
    service = sqlite_service
    context, depth = service.talk("m0"), 0
    while True:
        reply = service.client.post(f"/contexts/{context}/fork", json={})
        if reply.status_code != 201:
            break
        depth += 1
        context = reply.json()["data"]["id"]
        service.say(context, f"m{depth}")
    assert checked_problem(reply, 422)["code"] == "FORK_DEPTH"
    copied = service.client.post(f"/contexts/{context}/copy", json={})
    assert copied.status_code == 201, copied.text
    copy = copied.json()["data"]
    assert (copy["parentId"], copy["latestVersion"]) == (None, depth + 1)
    assert window_contents(service, copy["id"]) == window_contents(service, context)
    assert service.client.post(f"/contexts/{copy['id']}/fork", json={}).status_code == 201


# ── the past ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_state_at_a_version_is_the_messages_up_to_it(service: Service) -> None:
    context = service.talk(*(f"m{n}" for n in range(1, 8)))
    for n in range(8):
        said = [f"m{k}" for k in range(1, n + 1)]
        assert [one["content"] for one in entries_in_force(service, context, n)] == said
        assert window_contents(service, context, atVersion=n) == said
        stats = service.get(f"/contexts/{context}/stats", atVersion=n)["data"]
        assert (stats["version"], stats["messages"], stats["activeMessages"]) == (n, n, n)
        assert window_contents(service, context, budget=12, atVersion=n) == said[-2:]


@pytest.mark.parametrize("place", ["window", "history", "stats"])
@pytest.mark.parametrize(
    ("query", "status", "field"),
    [
        ({"atVersion": 4}, 404, ""),
        ({"atVersion": -1}, 400, "atVersion"),
        ({"atVersion": 10**30}, 404, ""),
        ({"atVersion": "x"}, 400, "atVersion"),
        ({"atMessage": 4}, 404, ""),
        ({"atTag": "nothing"}, 404, ""),
        ({"atTag": ""}, 400, "atTag"),
        ({"atVersion": 1, "atTag": "x"}, 400, "atVersion"),
    ],
)
def test_a_place_that_is_not_in_the_log_is_refused(
    sqlite_service: Service, place: str, query: dict[str, Any], status: int, field: str
) -> None:
    context = sqlite_service.talk("a", "b", "c")
    if place == "window":
        query = {"budget": 10, **query}
    checked_problem(sqlite_service.client.get(f"/contexts/{context}/{place}", params=query), status, field)


@pytest.mark.parametrize("version", ["4", "-1", "x", "1.5", "9" * 30, "²"])
def test_a_state_that_is_not_in_the_log_is_refused(sqlite_service: Service, version: str) -> None:
    context = sqlite_service.talk("a", "b", "c")
    status, field = (404, "") if version == "4" else (400, "version")
    checked_problem(sqlite_service.client.get(f"/contexts/{context}/at/{version}"), status, field)


async def _write_every_retirement(tenant: Any, context: str) -> None:
    """Give a log everything that puts entries out of force, and return the versions at which that happened."""
    session = await tenant.session(context)
    ids = [await session.ingest("user", said) for said in (*LONG, *"abcd")]
    await session.close_episode()
    await session.replace(ids[2], "corrected")
    await session.retract(ids[4])
    assert await session.wait(await session.compact(preserve_recent_count=3)) is not None
    await session.ingest("user", "after the summary")
    await session.replace(ids[10], "corrected late")
    tail = await session.ingest("user", "to be erased")
    await session.ingest("user", "the end")
    await session.erase(tail)


def test_a_state_is_paged_as_it_is_read_at_every_version(service: Service) -> None:
    """Pages of any size, put together, are what the engine reads in one piece."""
    context = service.create()

    async def told(tenant: Any) -> list[list[str]]:
        await _write_every_retirement(tenant, context)
        session = await tenant.session(context)
        head = await session.storage.head(context)
        return [[one.id for one in await session.at(n).entries()] for n in range(head.version + 1)]

    expected = service.inside(told)
    for version, ids in enumerate(expected):
        for limit in (2, 500):
            assert [one["id"] for one in entries_in_force(service, context, version, limit)] == ids, (
                version,
                limit,
            )


def test_contradiction_5_compaction_changes_no_read_below_its_version(service: Service) -> None:
    context = service.create()
    said = LONG
    service.say(context, *said)
    before = [
        (
            window_contents(service, context, atVersion=n),
            service.get(f"/contexts/{context}/stats", atVersion=n),
        )
        for n in range(9)
    ]

    done = compact_context(service, context)
    assert (done["version"], done["preserved"], done["removed"]) == (9, 2, 6)
    for n in range(9):
        assert window_contents(service, context, atVersion=n) == before[n][0] == said[:n]
        assert service.get(f"/contexts/{context}/stats", atVersion=n) == before[n][1]
        assert [one["content"] for one in entries_in_force(service, context, n)] == said[:n]
    for n in (3, 8):  # also a fork inside what the summary stands for
        child = fork_context(service, context, atVersion=n)
        assert window_contents(service, child) == said[:n]
    assert contents_of_page(service.get(f"/contexts/{context}/messages")) == said, (
        "the originals are still listed"
    )


def test_contradiction_6_the_summary_is_read_at_the_place_of_what_it_stands_for(service: Service) -> None:
    context = service.create()
    service.say(context, *LONG)

    done = compact_context(service, context)
    shown = service.get(f"/contexts/{context}/window", budget=10_000)["data"]
    assert [one["version"] for one in shown] == [9, 7, 8]
    assert [(one["version"], one["kind"]) for one in entries_in_force(service, context, 9)] == [
        (9, "summary"),
        (7, "message"),
        (8, "message"),
    ]
    assert shown[0]["content"] == done["summary"]
    stats = service.get(f"/contexts/{context}/stats")["data"]
    assert (stats["messages"], stats["activeMessages"], stats["summaries"]) == (8, 2, 1)


def test_a_place_can_be_counted_in_messages(service: Service) -> None:
    context = service.create()

    async def told(tenant: Any) -> None:
        session = await tenant.session(context)
        for n in range(1, 7):
            await session.ingest("user", f"m{n}")
            if n % 2 == 0:
                await session.close_episode()

    service.inside(told)
    places = {one["position"]: one["version"] for one in service.get(f"/contexts/{context}/messages")["data"]}
    assert places == {1: 1, 2: 2, 3: 4, 4: 5, 5: 7, 6: 8}
    for position, version in {0: 0, **places}.items():
        shown = service.get(f"/contexts/{context}/window", budget=10_000, atMessage=position)
        assert shown["version"] == version
        assert contents_of_page(shown) == [f"m{n}" for n in range(1, position + 1)]
        child = fork_context(service, context, atMessage=position)
        assert service.get(f"/contexts/{child}")["data"]["forkVersion"] == version
    checked_problem(
        service.client.get(f"/contexts/{context}/window", params={"budget": 9, "atMessage": 7}), 404
    )


# ── window ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_leading_messages_of_a_role_can_be_kept(service: Service) -> None:
    context = service.create()
    service.say(context, "You are brief.", role="system")
    service.say(context, *(f"m{n}" for n in range(9)))
    assert "You are brief." not in window_contents(service, context, budget=30)
    shown = service.get(f"/contexts/{context}/window", budget=30, keep="system,developer")
    assert contents_of_page(shown)[0] == "You are brief."
    assert shown["tokens"] <= 30
    wrong = service.client.get(f"/contexts/{context}/window", params={"budget": 30, "keep": "robot"})
    checked_problem(wrong, 400, "keep")


def test_a_call_is_never_shown_without_its_answer(sqlite_service: Service) -> None:
    context = sqlite_service.create()
    call = {"id": "call_1", "name": "disk", "arguments": "{}"}
    body = {
        "messages": [
            {"role": "user", "content": "how full is it?"},
            {"role": "assistant", "content": "", "toolCalls": [call]},
            {"role": "tool", "content": "40% used", "toolCallId": "call_1"},
        ]
    }
    assert sqlite_service.client.post(f"/contexts/{context}/messages", json=body).status_code == 201
    shown = [
        sqlite_service.get(f"/contexts/{context}/window", budget=budget)["data"] for budget in range(1, 60)
    ]
    roles = [[one["role"] for one in window] for window in shown]
    assert all(("tool" in found) == ("assistant" in found) for found in roles)
    assert roles[-1] == ["user", "assistant", "tool"]


# ── history ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_history_is_paged_without_skip_or_repeat(service: Service) -> None:
    context = service.talk(*"abcde")
    pages, cursor = [], 0
    while cursor is not None:
        page = service.get(f"/contexts/{context}/history", limit=2, cursor=cursor)
        cursor = page["nextCursor"]
        pages.append(([one["preview"] for one in page["data"]], cursor, page["hasMore"]))
    assert pages == [(["a", "b"], 2, True), (["c", "d"], 4, True), (["e"], None, False)]
    assert service.get(f"/contexts/{context}/history", cursor=99)["data"] == []
    for query, field in (({"limit": 0}, "limit"), ({"limit": 501}, "limit"), ({"cursor": -1}, "cursor")):
        checked_problem(service.client.get(f"/contexts/{context}/history", params=query), 400, field)


def test_history_says_when_who_and_what_and_keeps_what_was_taken_back(service: Service) -> None:
    context = service.create()
    when = "2026-03-01T12:00:00Z"
    body = {"messages": [{"role": "assistant", "content": "long " * 100, "createdAt": when}]}
    (said,) = service.client.post(f"/contexts/{context}/messages", json=body).json()["data"]

    async def retract(tenant: Any) -> int:
        return await (await tenant.session(context)).retract(said["id"])

    service.inside(retract)
    line, taken = service.get(f"/contexts/{context}/history")["data"]
    assert (line["createdAt"], line["role"], line["kind"]) == (when, "assistant", "message")
    assert 90 <= len(line["preview"]) <= 100
    assert (line["inForce"], taken["kind"], taken["position"]) == (False, "retraction", None)
    assert window_contents(service, context) == []
    assert len(window_contents(service, context, atVersion=1)) == 1
    assert [one["version"] for one in service.get(f"/contexts/{context}/history", atVersion=1)["data"]] == [1]


# ── tags and differences ────────────────────────────────────────────────────────────────────────────────────────────


def test_versions_can_be_named(service: Service) -> None:
    context = service.talk("a", "b", "c")
    at = f"/contexts/{context}/tags"
    put = service.client.put(f"{at}/before migration", json={"atVersion": 2})
    assert (put.status_code, put.json()["data"]) == (200, {"name": "before migration", "version": 2})
    assert service.client.put(f"{at}/now").json()["data"]["version"] == 3
    assert service.get(at)["data"] == [
        {"name": "before migration", "version": 2},
        {"name": "now", "version": 3},
    ]
    assert window_contents(service, context, atTag="before migration") == ["a", "b"]
    child = fork_context(service, context, atTag="before migration")
    assert service.get(f"/contexts/{child}/tags")["data"] == [{"name": "before migration", "version": 2}]
    same = service.client.put(f"{at}/now", json={"atVersion": 3})
    assert same.status_code == 200
    checked_problem(service.client.put(f"{at}/now", json={"atVersion": 1}), 409)
    assert service.client.put(f"{at}/now", json={"atVersion": 1, "move": True}).status_code == 200
    assert service.client.delete(f"{at}/now").status_code == 204
    checked_problem(service.client.delete(f"{at}/now"), 404)
    for name in ("7", "n" * 256):
        checked_problem(service.client.put(f"{at}/{name}", json={}), 400, "name")
    checked_problem(service.client.put(f"{at}/x", json={"atVersion": 9}), 404)


def test_two_sides_can_be_compared(service: Service) -> None:
    context = service.talk("a", "b", "c", key="left", namespace="diff")
    child = fork_context(service, context, atVersion=2)
    service.say(child, "d")
    at = f"/contexts/{context}/diff"
    found = service.get(at, other=child)["data"]
    assert found["common"] == 2
    assert contents_of_page({"data": found["messages"]["added"]}) == ["d"]
    assert contents_of_page({"data": found["messages"]["removed"]}) == ["c"]
    assert "the same up to v2" in found["text"]
    past = service.get(at, otherVersion=1)["data"]["messages"]
    assert contents_of_page({"data": past["removed"]}) == ["b", "c"]
    same = service.get(at, atVersion=2, other=child, otherMessage=2)["data"]
    assert same["messages"] == {"added": [], "removed": [], "changed": []}
    checked_problem(service.client.get(at), 400, "other")
    checked_problem(service.client.get(at, params={"other": NOBODY}), 404)
    checked_problem(service.client.get(at, params={"otherVersion": 9}), 404)


def test_a_branch_is_previewed_merged_once_and_taken_back(service: Service) -> None:
    context = service.talk("a", "b", key="ours", namespace="merge")
    child = fork_context(service, context)
    service.say(child, "c")
    at = f"/contexts/{context}/merge"
    plan = service.get(at, other=child)["data"]
    assert (contents_of_page({"data": plan["appended"]}), plan["dryRun"], plan["version"]) == (
        ["c"],
        True,
        None,
    )
    assert window_contents(service, context) == ["a", "b"]
    done = service.client.post(at, json={"other": child}).json()["data"]
    assert (done["version"], done["common"]) == (4, 2)
    assert window_contents(service, context) == ["a", "b", "c"]
    assert service.client.post(at, json={"other": child}).json()["data"]["version"] is None
    assert service.client.post(f"/contexts/{context}/undo", json={"version": 4}).status_code == 200
    assert window_contents(service, context) == ["a", "b"]
    early = service.get(at, other=child, otherVersion=2)["data"]
    assert early["appended"] == []
    checked_problem(service.client.post(at, json={"other": context}), 400, "other")
    checked_problem(service.client.post(at, json={"other": child, "strategy": "both"}), 400, "strategy")
    checked_problem(service.client.post(at, json={"other": NOBODY}), 404)


def test_conflicts_of_a_merge_are_listed_and_settled_by_a_strategy(service: Service) -> None:
    context = service.talk("a", "b", key="disputed", namespace="merge")
    child = fork_context(service, context)
    first = service.get(f"/contexts/{context}/messages")["data"][0]["id"]
    for one, text in ((context, "ours"), (child, "theirs")):
        service.client.patch(f"/contexts/{one}/entries/{first}", json={"content": text})
    at = f"/contexts/{context}/merge"
    refused = service.client.post(at, json={"other": child})
    checked_problem(refused, 409)
    said = refused.json()
    (conflict,) = said["conflicts"]
    assert (said["code"], conflict["kind"], conflict["type"]) == (
        "MERGE_CONFLICT",
        "message",
        "modify/modify",
    )
    assert 'send "strategy": "theirs"' in said["options"]
    assert contents_of_page({"data": conflict["theirs"]}) == ["theirs"]
    assert service.client.post(at, json={"other": child, "strategy": "theirs"}).status_code == 200
    assert window_contents(service, context) == ["theirs", "b"]


def test_an_edit_is_a_change(service: Service) -> None:
    context = service.talk("a", "b")
    first = service.get(f"/contexts/{context}/messages")["data"][0]["id"]

    async def edit(tenant: Any) -> str:
        return await (await tenant.session(context)).replace(first, "corrected")

    service.inside(edit)
    (change,) = service.get(f"/contexts/{context}/diff", atVersion=2, otherVersion=3)["data"]["messages"][
        "changed"
    ]
    assert (change["before"]["content"], change["after"]["content"]) == ("a", "corrected")
    assert [one["content"] for one in entries_in_force(service, context, 3)] == ["corrected", "b"]
