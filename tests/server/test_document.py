"""The OpenAPI document: its examples are requests that work."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import jsonschema
import pytest

from acms.server.routes.table import OPERATIONS
from tests.server.document import checked_by_document
from tests.server.serving import Service

EXAMPLES = [one for one in OPERATIONS if one.example is not None]


@pytest.fixture(scope="module")
def one(sqlite_service: Service) -> Service:
    """A service, every answer of which is held against its document."""
    return checked_by_document(sqlite_service)


@pytest.mark.parametrize("operation", EXAMPLES, ids=lambda one: one.name)
def test_an_example_can_be_sent_as_it_stands(one: Service, operation: Any) -> None:
    context = one.talk(*[f"Message {number} about the orders service." for number in range(30)])
    one.client.patch(
        f"/contexts/{context}/entries/{_newest_message_id(one, context)}", json={"content": "Edited."}
    )
    places = {
        "context_id": context,
        "entry_id": _newest_message_id(one, context),
        "namespace": "user:123",
        "name": "release",
        "version": "3",
        "principal": "oidc:alice",
    }
    path = operation.path.format(**places)
    body = operation.example
    query = {"contexts": context} if operation.contract else {}
    if operation.streams:
        headers = {"Content-Type": operation.streams[0]}
        reply = one.client.post(path, content=body, params={"contextId": context}, headers=headers)
    else:
        body = _example_for_context(one, context, body)
        reply = one.client.request(operation.method, path, json=body, params=query)
    assert reply.status_code in {operation.status, *operation.also}, reply.text


def _newest_message_id(service: Service, context: str) -> str:
    return str(service.get(f"/contexts/{context}")["data"]["lastMessageId"])


def _example_for_context(service: Service, context: str, body: Any) -> Any:
    """Return an example with a version that is there to be undone, or a fork that is there to be merged."""
    if isinstance(body, dict) and "other" in body:
        return {**body, "other": service.client.post(f"/contexts/{context}/fork").json()["data"]["id"]}
    return {"version": 31} if body == {"version": 12} else body


def test_the_document_says_of_every_body_and_answer_what_it_is(one: Service) -> None:
    document = httpx2.get(f"{one.url}/openapi.json").json()
    written = json.dumps(document)
    assert "#/components/schemas/" in written
    for path, methods in document["paths"].items():
        for method, said in methods.items():
            answers = [each for status, each in said["responses"].items() if status != "default"]
            assert all(each.get("content") for each in answers if "204" not in said["responses"]), (
                method,
                path,
            )
    for name in document["components"]["schemas"]:
        assert "__" not in name, f"{name}: two shapes have one name"


def test_every_parameter_has_a_description(one: Service) -> None:
    document = httpx2.get(f"{one.url}/openapi.json").json()
    missing = [
        (said["operationId"], parameter["name"])
        for methods in document["paths"].values()
        for said in methods.values()
        for parameter in said["parameters"]
        if not parameter.get("description")
    ]
    assert missing == []


def test_every_operation_has_an_example_that_fits_its_schema(one: Service) -> None:
    document = httpx2.get(f"{one.url}/openapi.json").json()
    without: set[str] = set()
    for methods in document["paths"].values():
        for said in methods.values():
            for status, answer in said["responses"].items():
                content = answer.get("content", {}).get("application/json")
                if content is None or status == "default":
                    continue
                if "example" not in content:
                    without.add(said["operationId"])
                    continue
                schema = {**content["schema"], "components": document["components"]}
                jsonschema.Draft202012Validator(schema).validate(content["example"])
    assert without == set()


def test_the_document_has_what_linters_require(one: Service) -> None:
    document = httpx2.get(f"{one.url}/openapi.json").json()
    defined = {tag["name"] for tag in document["tags"]}
    used = {
        tag for methods in document["paths"].values() for said in methods.values() for tag in said["tags"]
    }
    assert used == defined
    without_items = [
        value for value in _objects(document) if value.get("type") == "array" and "items" not in value
    ]
    assert without_items == []


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every object of a JSON value."""
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _objects(item)
