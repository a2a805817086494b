"""Facts, episodes and reflection over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.document import checked_by_document
from tests.server.serving import Service


@pytest.fixture(scope="module")
def one(sqlite_service: Service) -> Service:
    """A service, every answer of which is held against its document."""
    return checked_by_document(sqlite_service)


def _say_and_reflect(service: Service, context: str, *said: str) -> None:
    """Say something, end the episode, and wait until it was reflected on."""
    service.say(context, *said)
    assert service.client.post(f"/contexts/{context}/episodes/close").status_code == 200
    reply = service.client.post(f"/contexts/{context}/reflect", headers={"Prefer": "wait=20"})
    assert (reply.status_code, reply.json()["data"]["state"]) == (200, "done"), reply.text


def _list_facts(service: Service, context: str, **query: Any) -> list[dict[str, Any]]:
    return list(service.get(f"/contexts/{context}/facts", **query)["data"])


def _fact_contents(service: Service, context: str, **query: Any) -> list[str]:
    return [fact["content"] for fact in _list_facts(service, context, **query)]


def _context_with_facts(service: Service) -> str:
    """Return a context that knows a few things, and a deadline that was moved."""
    context = service.create()
    _say_and_reflect(service, context, "Decision: the deadline is May 2.", "Goal: ship on Friday.")
    _say_and_reflect(service, context, "Decision: the deadline is June 9.")
    return context


def test_facts_are_listed_with_what_they_were_made_from(service: Service) -> None:
    context = _context_with_facts(service)
    found = _list_facts(service, context)
    assert "the deadline is June 9." in [fact["content"] for fact in found]
    messages = {each["id"] for each in service.get(f"/contexts/{context}/messages")["data"]}
    for fact in found:
        assert fact["contextId"] == context
        assert set(fact["sources"]) <= messages
        assert fact["retired"] is None
    versions = [fact["version"] for fact in found]
    assert versions == sorted(versions)


def test_facts_are_chosen_by_their_address_and_history_is_told(one: Service) -> None:
    context = _context_with_facts(one)
    assert _fact_contents(one, context, subject="project", attribute="deadline") == [
        "the deadline is June 9."
    ]
    old, new = _list_facts(one, context, attribute="deadline", history="true")
    assert (old["content"], old["retired"]["reason"], old["retired"]["by"]) == (
        "the deadline is May 2.",
        "updated",
        new["id"],
    )
    before = _fact_contents(one, context, attribute="deadline", atVersion=new["version"] - 1)
    assert before == ["the deadline is May 2."]
    assert _list_facts(one, context, factType="nonsense") == []


def test_facts_come_in_pages(one: Service) -> None:
    context = _context_with_facts(one)
    whole = _list_facts(one, context)
    path = f"/contexts/{context}/facts"
    first = one.get(path, limit=1)
    rest = one.get(path, limit=1, cursor=first["nextCursor"])
    assert (first["data"] + rest["data"], first["hasMore"], rest["nextCursor"]) == (whole, True, None)


def test_a_fact_is_retracted_as_the_entry_that_it_is(one: Service) -> None:
    context = _context_with_facts(one)
    (deadline,) = _list_facts(one, context, attribute="deadline")
    path = f"/contexts/{deadline['contextId']}/entries/{deadline['id']}"
    assert one.get(path)["data"]["kind"] == "fact"
    version = one.client.post(f"{path}/retract", json={"reason": "wrong"}).json()["data"]["version"]
    assert _list_facts(one, context, attribute="deadline") == []
    assert [
        fact["retired"]["reason"] for fact in _list_facts(one, context, attribute="deadline", history="true")
    ][-1] == "wrong"
    one.client.post(f"/contexts/{context}/undo", json={"version": version})
    assert _fact_contents(one, context, attribute="deadline") == ["the deadline is June 9."]


def test_a_namespace_without_a_profile_knows_nothing(one: Service) -> None:
    context = one.talk("a", namespace="empty")
    assert _list_facts(one, context, scope="namespace") == []
    reply = one.client.get(f"/contexts/{context}/facts", params={"scope": "namespace", "atVersion": 1})
    assert (reply.status_code, reply.json()["errors"][0]["field"]) == (400, "scope")


def test_a_reflection_is_a_job(one: Service) -> None:
    context = one.talk("I live in Oslo.")
    reply = one.client.post(f"/contexts/{context}/reflect")
    assert reply.status_code == 202
    assert reply.headers["location"] == f"/api/v1/jobs/{reply.json()['data']['id']}"


def test_episodes_are_listed_and_ended(service: Service) -> None:
    context = service.talk("a", "b")
    path = f"/contexts/{context}/episodes"
    (open_,) = service.get(path)["data"]
    assert (open_["status"], open_["first"], open_["last"], open_["messages"]) == ("open", 1, 2, 2)
    reply = service.client.post(f"{path}/close", json={"reason": "topic changed"})
    assert reply.json() == {"data": {"episodeId": open_["id"]}}
    again = service.client.post(f"{path}/close")
    assert again.json() == reply.json(), "with nothing open it is the last one"
    service.say(context, "c")
    assert [each["reason"] for each in service.get(path)["data"]] == ["topic changed", None]
    assert [each["ordinal"] for each in service.get(path, status="open")["data"]] == [2]
    assert [each["ordinal"] for each in service.get(path, cursor=1)["data"]] == [2]
    first = service.get(path, limit=1)
    assert (first["nextCursor"], first["hasMore"]) == (1, True)
    assert [each["status"] for each in service.get(path, atVersion=2)["data"]] == ["open"]


def test_there_is_no_episode_to_end_where_nothing_was_said(one: Service) -> None:
    reply = one.client.post(f"/contexts/{one.create()}/episodes/close")
    assert (reply.status_code, reply.json()["code"]) == (404, "EPISODE_NOT_FOUND")
