"""Pins over HTTP: values under keys that prompts always show."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.document import checked_by_document
from tests.server.serving import Service


@pytest.fixture(scope="module")
def one(sqlite_service: Service) -> Service:
    """A service, every answer of which is held against its document."""
    return checked_by_document(sqlite_service)


def _put_pin(service: Service, namespace: str, key: str, **more: Any) -> Any:
    reply = service.client.put(f"/pins/{namespace}", json={"key": key, **more})
    assert reply.status_code == 200, reply.text
    return reply.json()["data"]


def test_a_value_is_pinned_listed_and_let_go_of(service: Service) -> None:
    pin = _put_pin(
        service, "user:1", "1/profile", value={"first_name": "Sam"}, label="Profile", priority=10, tags=["a"]
    )
    assert (pin["label"], pin["priority"], pin["tags"], pin["missing"]) == ("Profile", 10, ["a"], False)
    assert service.get("/pins/user:1")["data"] == [pin]
    assert service.get("/pins/user:2")["data"] == []
    gone = service.client.delete("/pins/user:1", params={"key": "1/profile"}).json()["data"]
    assert gone == {"key": "1/profile", "unpinned": True, "deleted": False}
    assert service.get("/pins/user:1")["data"] == []
    assert _put_pin(service, "user:1", "1/profile")["value"] == {"first_name": "Sam"}, "its value has stayed"


def test_a_value_is_deleted_when_that_is_asked_for(service: Service) -> None:
    _put_pin(service, "user:3", "3/profile", value="Sam")
    params = {"key": "3/profile", "value": "true"}
    assert service.client.delete("/pins/user:3", params=params).json()["data"]["deleted"]
    assert service.client.delete("/pins/user:3", params=params).json()["data"] == {
        "key": "3/profile",
        "unpinned": False,
        "deleted": False,
    }
    assert _put_pin(service, "user:3", "3/profile")["missing"]


@pytest.mark.parametrize("value", [None, False, 0, "", [], {}, {"a_b": [{"c_d": None}]}, "é\U0001f4a9", 1.5])
def test_any_json_is_kept_as_it_is(one: Service, value: Any) -> None:
    pin = _put_pin(one, "values", "v", value=value)
    assert (pin["value"], pin["missing"]) == (value, False)
    assert one.get("/pins/values")["data"][0]["value"] == value


def test_what_is_said_of_a_pin_replaces_what_was_said(one: Service) -> None:
    _put_pin(one, "again", "x", value=1, label="First", role="user")
    pin = _put_pin(one, "again", "x", priority=1)
    assert (pin["label"], pin["role"], pin["priority"], pin["value"]) == (None, None, 1, 1)


def test_pins_come_in_pages_in_their_order(one: Service) -> None:
    for number in range(5):
        _put_pin(one, "many", f"key {number}", value=number, priority=number)
    first = one.get("/pins/many", limit=3)
    rest = one.get("/pins/many", limit=3, cursor=first["nextCursor"])
    assert [pin["value"] for pin in first["data"] + rest["data"]] == [4, 3, 2, 1, 0]
    assert (first["hasMore"], rest["hasMore"], rest["nextCursor"]) == (True, False, None)
    assert one.client.get("/pins/many", params={"cursor": "gone"}).status_code == 404


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "key"),
        ({"key": ""}, "key"),
        ({"key": "__cria:pins:v1__:user:1", "value": {}}, "key"),
        ({"key": "a", "role": "tool"}, "role"),
        ({"key": "a", "label": "two\nlines"}, "label"),
        ({"key": "a", "priority": "high"}, "priority"),
        ({"key": "a", "value": "\u0000"}, "value"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_what_makes_no_sense_is_refused_with_the_field(
    one: Service, body: dict[str, Any], field: str
) -> None:
    reply = one.client.put("/pins/wrong", json=body)
    assert (reply.status_code, reply.json()["errors"][0]["field"]) == (400, field)
    assert one.get("/pins/wrong")["data"] == []


def test_the_index_of_the_pins_is_no_value_to_delete(one: Service) -> None:
    _put_pin(one, "kept", "a", value=1)
    params = {"key": "__cria:pins:v1__:kept", "value": "true"}
    assert not one.client.delete("/pins/kept", params=params).json()["data"]["deleted"]
    assert len(one.get("/pins/kept")["data"]) == 1
