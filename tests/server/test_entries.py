"""Entries over HTTP: look at one, correct, retract, undo, erase."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.document import checked_by_document
from tests.server.serving import Service


@pytest.fixture(scope="module")
def one(sqlite_service: Service) -> Service:
    """A service, every answer of which is held against its document."""
    return checked_by_document(sqlite_service)


def _chat_texts(service: Service, context: str, **at: int) -> list[str]:
    body = {"query": "", "budget": 4000, **at}
    reply = service.client.post(f"/contexts/{context}/chat", json=body)
    return [each["content"] for each in reply.json()["data"]["messages"]]


def _create_with_messages(service: Service, *contents: str) -> tuple[str, list[str]]:
    """Return a context and the paths of its messages."""
    context = service.create()
    ids = [each["id"] for each in service.say(context, *contents)]
    return context, [f"/contexts/{context}/entries/{id}" for id in ids]


def test_an_entry_is_found_by_its_id(one: Service) -> None:
    context = one.create()
    (stored,) = one.say(context, "a")
    entry = one.get(f"/contexts/{context}/entries/{stored['id']}")["data"]
    same = set(stored) & set(entry)
    assert {name: entry[name] for name in same} == {name: stored[name] for name in same}
    assert (entry["inForce"], entry["replaces"], entry["sources"]) == (True, [], [])


@pytest.mark.parametrize("id", ["m_nobody_1_x", "x", "m_", "%00", "%F0%9F%92%A9"])
def test_an_unknown_entry_is_404(one: Service, id: str) -> None:
    context = one.talk("a")
    path = f"/contexts/{context}/entries/{id}"
    assert one.client.get(path).status_code in (400, 404)
    assert one.client.delete(path).status_code in (400, 404)
    assert one.client.patch(path, json={"content": "b"}).status_code in (400, 404)
    assert one.client.post(f"{path}/retract").status_code in (400, 404)


def test_an_entry_of_another_context_is_404(one: Service) -> None:
    context = one.talk("a")
    _, (path,) = _create_with_messages(one, "b")
    foreign = f"/contexts/{context}/entries/{path.rpartition('/')[2]}"
    assert one.client.get(foreign).status_code == 404
    assert one.client.delete(foreign).status_code == 404
    assert one.client.patch(foreign, json={"content": "c"}).status_code == 404


def test_a_correction_is_read_at_the_old_place_and_earlier_versions_as_before(service: Service) -> None:
    context, (first, _) = _create_with_messages(service, "Teh plan.", "Yes.")
    reply = service.client.patch(first, json={"content": "The plan."})
    assert reply.status_code == 200
    made = reply.json()["data"]
    assert (made["version"], made["content"], made["replaces"]) == (3, "The plan.", [[1, 1]])
    assert _chat_texts(service, context) == ["The plan.", "Yes."]
    assert _chat_texts(service, context, atVersion=2) == ["Teh plan.", "Yes."]
    assert not service.get(first)["data"]["inForce"]
    assert service.get(first, atVersion=2)["data"]["inForce"]
    assert service.client.post(f"/contexts/{context}/undo", json={"version": 3}).status_code == 200
    stale = {"content": "A plan.", "sha256": "0" * 64}
    assert service.client.patch(first, json=stale).status_code == 412
    assert _chat_texts(service, context) == ["Teh plan.", "Yes."]
    assert _chat_texts(service, context) == ["Teh plan.", "Yes."]


def test_what_is_retracted_is_out_of_force_from_then_on(service: Service) -> None:
    context, (first, _) = _create_with_messages(service, "Secret.", "Yes.")
    version = service.client.post(f"{first}/retract", json={"reason": "by mistake"}).json()["data"]["version"]
    assert version == 3
    assert service.client.post(f"{first}/retract").json()["data"]["version"] == version
    assert _chat_texts(service, context) == ["Yes."]
    history = service.get(first, atVersion=2)["data"]
    assert (history["content"], history["inForce"]) == ("Secret.", True)
    service.client.post(f"/contexts/{context}/undo", json={"version": version})
    assert _chat_texts(service, context) == ["Secret.", "Yes."]


def test_an_entry_at_a_message_is_that_right_after_it(one: Service) -> None:
    context, (first, _) = _create_with_messages(one, "a", "b")
    one.client.post(f"{first}/retract")
    one.say(context, "c")  # v4, the third message
    assert one.get(first, atMessage=2)["data"]["inForce"]
    assert not one.get(first, atMessage=3)["data"]["inForce"]


def test_clearing_puts_everything_out_of_force(one: Service) -> None:
    context, _ = _create_with_messages(one, "a", "b")
    version = one.client.post(f"/contexts/{context}/clear", json={"reason": "new topic"}).json()["data"][
        "version"
    ]
    assert _chat_texts(one, context) == []
    one.client.post(f"/contexts/{context}/undo", json={"version": version})
    assert _chat_texts(one, context) == ["a", "b"]
    assert one.client.post(f"/contexts/{one.create()}/clear").json() == {"data": {"version": 0}}


def test_what_is_erased_is_gone_at_every_version_and_in_every_fork(service: Service) -> None:
    context, (first, _) = _create_with_messages(service, "My number is 0170 1234567.", "Thanks.")
    reply = service.client.delete(first, params={"verify": "true"})
    assert reply.status_code == 200
    data = reply.json()["data"]
    assert (data["ids"], data["verified"], data["residue"]) == ([first.rpartition("/")[2]], True, [])
    assert any("pinned values" in place for place in data["unreached"])
    assert data["contexts"] == [context]
    entry = service.get(first)["data"]
    assert (entry["state"], entry["content"]) == ("erased", "")
    assert _chat_texts(service, context) == ["Thanks."]
    assert "1234567" not in service.client.get("/export", params={"contextId": context}).text
    again = service.client.delete(first)
    assert (again.status_code, again.json()["data"]["ids"]) == (200, data["ids"])


def test_an_erasure_names_the_entries_that_quote_the_message(service: Service) -> None:
    context = service.create()
    (said,) = service.say(context, "My phone is 0171 2345678.")
    (quote,) = service.say(context, "I will call 0171 2345678 today.", role="assistant")
    reply = service.client.delete(f"/contexts/{context}/entries/{said['id']}")
    (remaining,) = reply.json()["data"]["remaining"]
    assert (remaining["id"], remaining["kind"], remaining["of"]) == (quote["id"], "quote", said["id"])


def test_a_message_is_erased_by_the_callers_key(one: Service) -> None:
    context = one.create()
    url = f"/contexts/{context}"
    message = {"role": "user", "content": "My number is 4711.", "key": "my-1"}
    assert one.client.post(f"{url}/messages", json={"messages": [message]}).status_code == 201
    assert one.client.delete(f"{url}/entries/my-1").status_code == 200
    assert _chat_texts(one, context) == []
    assert one.client.delete(f"{url}/entries/my-1").json()["code"] == "ENTRY_NOT_FOUND"


def test_what_is_erased_cannot_be_corrected(one: Service) -> None:
    _, (first,) = _create_with_messages(one, "a")
    one.client.delete(first)
    reply = one.client.patch(first, json={"content": "b"})
    assert (reply.status_code, reply.json()["code"]) == (410, "GONE")


@pytest.mark.parametrize(
    ("method", "path", "body", "field", "status"),
    [
        ("PATCH", "", {}, "content", 400),
        ("PATCH", "", {"content": "a" * 262_145}, "content", 413),
        ("PATCH", "", {"content": "a\u0000b"}, "content", 400),
        ("POST", "/retract", {"reason": ""}, "reason", 400),
        ("POST", "/retract", {"alone": "yes"}, "alone", 400),
    ],
    ids=["missing", "large", "NUL", "reason", "alone"],
)
def test_what_makes_no_sense_is_refused_with_the_field(
    one: Service, method: str, path: str, body: Any, field: str, status: int
) -> None:
    _, (first,) = _create_with_messages(one, "a")
    reply = one.client.request(method, first + path, json=body)
    assert (reply.status_code, reply.json()["errors"][0]["field"]) == (status, field)


def test_only_a_rewrite_is_undone(one: Service) -> None:
    context, _ = _create_with_messages(one, "a")
    for version, status in ((1, 400), (9, 404), (0, 400)):
        assert one.client.post(f"/contexts/{context}/undo", json={"version": version}).status_code == status
