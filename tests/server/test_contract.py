"""The v0 contract over HTTP (checks 2, 36, 38, 39 and 40)."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from acms.observability import JSONFormatter
from acms_eval import GoldItem, evaluation_result
from tests.server.serving import Service, serving
from tests.support.sources import Source, load_schema, make_item, request

PATH = "/orchestration/render"
_REPLIED = jsonschema.Draft7Validator(load_schema("render_context_reply"))
SECRET = "The orders database moves to PostgreSQL 18 on Friday night."


@pytest.fixture(scope="module")
def project() -> Source:
    """A library of a project that the operator has connected."""
    return Source("L2", [make_item("proj:orders#db", SECRET, "orders", "database")])


@pytest.fixture(scope="module")
def service(project: Source) -> Iterator[Service]:
    """A service with that library."""
    with serving("memory://", sources=[project]) as running:
        yield running


def checked_wire(reply: dict[str, Any]) -> dict[str, Any]:
    """Return a reply that was checked against the published schema."""
    _REPLIED.validate(reply)
    return reply


def _post_render(service: Service, body: Any, **more: Any) -> Any:
    return service.client.post(PATH, json=body, **more)


def test_a_request_is_answered_from_the_contexts_that_it_names(service: Service) -> None:
    context = service.talk("We chose PostgreSQL for the orders service.")
    reply = _post_render(service, request("orders database"), params={"contexts": context})
    wire = checked_wire(reply.json())
    texts = [one["text"] for one in wire["fragments"]]
    assert SECRET in texts
    assert any("We chose PostgreSQL" in text for text in texts)


def test_no_context_named_asks_only_what_the_operator_connected(service: Service) -> None:
    service.talk("We chose PostgreSQL for the orders service.")
    wire = checked_wire(_post_render(service, request("orders database")).json())
    assert [one["id"] for one in wire["fragments"]] == ["proj:orders#db"]


def test_without_anything_to_ask_a_request_has_to_name_contexts(sqlite_service: Service) -> None:
    reply = _post_render(sqlite_service, request())
    assert reply.status_code == 400
    assert reply.json()["errors"][0]["field"] == "contexts"


def test_an_unknown_context_is_404_under_the_id_of_the_request(service: Service) -> None:
    reply = _post_render(service, request(), params={"contexts": "c_nobody"})
    assert (reply.status_code, reply.headers["x-request-id"]) == (404, "req-1")


@pytest.mark.parametrize("field", ["version", "id", "intent", "budgets", "request_id"])
def test_check_02_a_request_without_a_required_field_is_400_and_asks_nobody(
    service: Service, project: Source, field: str
) -> None:
    body = request()
    del body[field]
    calls = len(project.calls)
    reply = _post_render(service, body)
    assert (reply.status_code, len(project.calls)) == (400, calls)
    assert reply.json()["errors"][0]["field"] == field


def test_check_36_errors_of_the_contract_come_with_200(service: Service) -> None:
    reply = _post_render(service, request(tokens=0))
    assert reply.status_code == 200
    assert checked_wire(reply.json())["error"]["code"] == "BUDGET_TOO_SMALL"


def test_check_36_malformed_json_is_400_with_a_message(service: Service) -> None:
    reply = service.client.post(PATH, content="{", headers={"Content-Type": "application/json"})
    assert reply.status_code == 400
    assert reply.json()["message"] == reply.json()["detail"]
    assert reply.json()["request_id"] == reply.headers["x-request-id"]


def test_check_36_the_headers_name_the_request_and_the_warnings(service: Service) -> None:
    reply = _post_render(service, request("something else altogether"))
    warned = [one["code"] for one in checked_wire(reply.json())["warnings"]]
    assert "LOW_COVERAGE" in warned
    assert reply.headers["x-warnings"].split(",") == warned
    assert reply.headers["x-request-id"] == "req-1"
    assert reply.headers["cache-control"] == "no-store"
    assert reply.headers["content-type"] == "application/json"


def test_check_36_an_id_that_no_header_can_hold_splits_none(service: Service) -> None:
    reply = _post_render(service, {**request("orders"), "request_id": "a\r\nset-cookie: é"})
    assert reply.json()["request_id"] == "a\r\nset-cookie: é"
    assert reply.headers["x-request-id"] == "a%0D%0Aset-cookie:%20%C3%A9"
    assert "set-cookie" not in reply.headers


def test_check_38_records_of_a_request_name_it_and_quote_nothing(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    context = service.talk("The password of the vault is never written down, says Ann.")
    caplog.clear()
    with caplog.at_level(logging.DEBUG, logger="acms"):
        wire = _post_render(
            service, request("orders database vault password"), params={"contexts": context}
        ).json()
    records = [json.loads(JSONFormatter().format(one)) for one in caplog.records if one.name == "acms"]
    asked = [one for one in records if "." in one["event"]]
    assert {"render.received", "provider.called", "render.replied"} <= {one["event"] for one in asked}
    assert all(one["request_id"] == "req-1" and "ms" in one for one in asked)
    written = json.dumps(records)
    for fragment in wire["fragments"]:
        text = fragment["text"]
        assert not any(text[at : at + 20] in written for at in range(len(text) - 19))
    assert "vault" not in written


@pytest.mark.parametrize("accept", ["text/event-stream", "text/event-stream, text/html;q=0.5"])
def test_check_39_a_stream_is_not_acceptable(service: Service, accept: str) -> None:
    reply = _post_render(service, request("orders"), headers={"Accept": accept})
    assert reply.status_code == 406
    assert "no streams" in reply.json()["message"]


@pytest.mark.parametrize("accept", ["application/json", "*/*", "application/json, text/event-stream"])
def test_check_39_the_same_request_without_it_works(service: Service, accept: str) -> None:
    assert _post_render(service, request("orders"), headers={"Accept": accept}).status_code == 200


def test_an_option_of_an_error_is_executed(service: Service, project: Source) -> None:
    calls = len(project.calls)
    body = {**request("orders database"), "request_id": "req-minimal"}
    reply = _post_render(service, body, params={"action": "return_minimal", "attempt": 2})
    assert (reply.status_code, len(project.calls)) == (200, calls)
    assert _post_render(service, body, params={"action": "guess"}).json()["errors"][0]["field"] == "action"


def test_advice_covers_the_keys_of_the_callers_cache(service: Service) -> None:
    held = [f"doc:sum:{number}" for number in range(70)]
    reply = _post_render(service, request("orders database"), params={"cache": ",".join(held)})
    policy = reply.json()["kv_policy"]
    assert policy["pin"] == ["proj:orders#db"]
    assert set(policy["evict"]) < set(held)
    assert len(policy["evict"]) >= 70 - 64


def test_the_layer_of_a_fragment_is_told_when_it_is_asked_for(service: Service) -> None:
    reply = _post_render(service, request("orders database"), params={"extended": "true"})
    assert reply.json()["fragments"][0]["source"] == "L2"


def test_what_is_erased_comes_back_from_no_attempt() -> None:
    with serving("memory://", sources=[Source("L2", RuntimeError("down"))]) as service:
        _erased_between_attempts(service)


def _erased_between_attempts(service: Service) -> None:
    context = service.talk("Ann lives in the yellow house at the lake.")
    (message,) = service.get(f"/contexts/{context}/messages")["data"]
    body = {**request("yellow house lake"), "request_id": "req-house"}
    params = {"contexts": context}
    assert "yellow" in _post_render(service, body, params=params).text
    assert service.client.delete(f"/contexts/{context}/entries/{message['id']}").status_code == 200
    again = _post_render(service, body, params={**params, "action": "return_minimal", "attempt": 2})
    assert "yellow" not in again.text


def test_what_another_process_erased_comes_back_from_no_attempt(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    failing = Source("L2", RuntimeError("down"))  # else nothing of the attempt is kept
    with serving(url) as here, serving(url, sources=[failing]) as there:
        context = here.talk("Ann lives in the yellow house at the lake.")
        (message,) = here.get(f"/contexts/{context}/messages")["data"]
        body = {**request("yellow house lake"), "request_id": "req-house"}
        assert "yellow" in _post_render(there, body, params={"contexts": context}).text
        assert here.client.delete(f"/contexts/{context}/entries/{message['id']}").status_code == 200
        reply = _post_render(
            there, body, params={"contexts": context, "action": "return_minimal", "attempt": 2}
        )
        assert reply.status_code == 200
        assert "yellow" not in reply.text


def test_a_context_that_was_deleted_elsewhere_is_404(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    with serving(url) as here, serving(url) as there:
        context = here.talk("We chose PostgreSQL.")
        assert _post_render(there, request(), params={"contexts": context}).status_code == 200
        here.client.delete(f"/contexts/{context}")
        assert _post_render(there, request(), params={"contexts": context}).status_code == 404


def test_check_40_an_item_is_computed_from_what_came_over_the_wire(service: Service) -> None:
    gold = GoldItem.of(
        {
            "id": "q-1",
            "query": "orders database",
            "expected_ids": ["proj:orders#db"],
            "layers": ["L2"],
            "entities": ["orders", "database"],
        }
    )
    wire = checked_wire(_post_render(service, request("orders database")).json())
    result = evaluation_result(gold, wire, latencies_ms=[1.0, 2.0], planted=["nowhere"])
    jsonschema.Draft202012Validator(load_schema("evaluation_result")).validate(result)
    assert result["retrieved_ids"] == ["proj:orders#db"]
    metrics = result["metrics"]
    assert (metrics["mrr_10"], metrics["ndcg_10"], metrics["cov_entities"], metrics["errors"]) == (
        1.0,
        1.0,
        1.0,
        0,
    )
    assert metrics["privacy_leak"] == 0
    assert evaluation_result(gold, wire, planted=["Friday night"])["metrics"]["privacy_leak"] == 1
