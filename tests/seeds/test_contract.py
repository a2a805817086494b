"""The examples of the contract and of the service, with the data of their documents, over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from acms.contract import KVPolicy
from acms.contract.kv_policy import resolve_conflicts
from tests.server.serving import Service, serving
from tests.support.sources import Source, load_schema, make_item, never_answer

EXAMPLES: dict[str, Any] = json.loads(Path(__file__).with_name("examples.json").read_text(encoding="utf-8"))
LAYERS = {"proj": "L2", "exp": "L4", "global": "L1"}
SECRET = "8f3kLq92xVb7Tw4m"


def validate_body(name: str, body: Any) -> Any:
    jsonschema.Draft7Validator(load_schema(name)).validate(body)
    return body


@pytest.fixture(scope="module")
def project() -> Source:
    return Source("L2", [])


@pytest.fixture(scope="module")
def service(project: Source) -> Iterator[Service]:
    """A service with sources of its own: a request names no contexts."""
    found: dict[str, list[Any]] = {}
    for one in EXAMPLES["multi_layer_reply"]["fragments"]:
        layer = LAYERS[one["id"].partition(":")[0]]
        said = make_item(one["id"], one["text"], *one["entities"], cost=one["cost_tokens"], source=layer)
        found.setdefault(layer, []).append(said)
    project.said = [found["L2"]]
    sources = (project, Source("L4", found["L4"]), Source("L1", found["L1"]))
    with serving("memory://", sources=sources) as running:
        yield running


def post_render(service: Service, body: Any, **query: Any) -> Any:
    reply = service.client.post("/orchestration/render", json=body, params=query)
    assert reply.status_code == 200, reply.text
    return validate_body("render_context_reply", reply.json())


@pytest.mark.parametrize("name", ["multi_layer_reply", "timeout_reply", "redacted_reply"])
def test_the_replies_as_they_stand_are_valid(name: str) -> None:
    validate_body("render_context_reply", EXAMPLES[name])


def test_example_1_several_layers(service: Service) -> None:
    asked = validate_body("render_request", EXAMPLES["multi_layer_request"])
    wanted = {one["id"]: one for one in EXAMPLES["multi_layer_reply"]["fragments"]}
    reply = post_render(service, asked)
    assert reply["request_id"] == asked["request_id"]
    assert [one["id"] for one in reply["fragments"]] == [id for id in wanted if not id.startswith("global:")]
    for one in reply["fragments"]:
        for name in ("text", "entities", "cost_tokens"):
            assert one[name] == wanted[one["id"]][name]
    assert reply["metrics"]["used_tokens"] == sum(one["cost_tokens"] for one in reply["fragments"])


def test_example_2_a_layer_that_is_late(service: Service, project: Source) -> None:
    asked = validate_body("render_request", EXAMPLES["timeout_request"])
    wanted = EXAMPLES["timeout_reply"]["error"]
    project.said.insert(0, never_answer)
    project.deadline_ms = 300
    error = post_render(service, asked)["error"]
    same = ("code", "retriable", "attempt", "max_attempts")
    assert {name: error[name] for name in same} == {name: wanted[name] for name in same}
    assert [one["action"] for one in error["options"]][:3] == [one["action"] for one in wanted["options"]]
    expanded = post_render(service, asked, action="explicit_l1_expansion", attempt=2)
    assert any(one["id"].startswith("global:") for one in expanded["fragments"])


def test_example_3_a_secret(service: Service, project: Source) -> None:
    (wanted,) = EXAMPLES["redacted_reply"]["fragments"]
    told = wanted["text"].replace("[REDACTED: client_secret]", f"client_secret={SECRET}")
    project.said.insert(0, [make_item(wanted["id"], told, *wanted["entities"])])
    asked = {
        **EXAMPLES["multi_layer_request"],
        "request_id": EXAMPLES["redacted_reply"]["request_id"],
        "intent": "oauth authentication token_exchange",
    }
    reply = post_render(service, asked)
    (found,) = [one for one in reply["fragments"] if one["id"] == wanted["id"]]
    assert "[REDACTED: client_secret] for token exchange" in found["text"]
    assert SECRET not in json.dumps(reply)


def test_retention_advice_with_conflicts() -> None:
    minimal, mixed = (
        resolve_conflicts(KVPolicy.of(EXAMPLES[name]["kv_policy"]))
        for name in ("kv_policy_minimal", "kv_policy_mixed")
    )
    assert minimal.policy.to_wire() == EXAMPLES["kv_policy_minimal"]["kv_policy"]
    assert mixed.policy.to_wire() == {
        "pin": ["frag:macro:123"],
        "compress": ["frag:micro:789", "frag:atomic:777"],
        "evict": ["frag:atomic:555"],
    }


def test_fork_compaction_and_the_past_as_their_flows_are_drawn(service: Service) -> None:
    context = service.talk(
        *(f"Message {n}. " + "The orders service writes rows. " * 20 for n in range(1, 13))
    )
    at = f"/contexts/{context}"
    child = service.client.post(f"{at}/fork", params={"atVersion": 5})
    assert child.status_code == 201, child.text
    found = child.json()["data"]
    assert (found["parentId"], found["forkVersion"], found["messageCount"]) == (context, 5, 5)
    twice = service.client.post(f"{at}/fork", params={"atVersion": 5}, json={"atVersion": 4})
    assert (twice.status_code, twice.json()["errors"][0]["field"]) == (400, "atVersion")
    before = service.get(f"{at}/window", atVersion=12, budget=100_000)["data"]
    asked = service.client.post(
        f"{at}/compact", json={"preserveRecentCount": 2}, headers={"Prefer": "wait=20"}
    )
    done = asked.json()["data"]["compaction"]
    assert (done["preserved"], done["removed"]) == (2, 10)
    now = service.get(f"{at}/window", budget=100_000)["data"]
    assert [one["version"] for one in now] == [done["version"], 11, 12], (
        "the summary stands for the first ten"
    )
    assert service.get(f"{at}/window", atVersion=12, budget=100_000)["data"] == before
    assert len(service.get(f"/contexts/{found['id']}/messages")["data"]) == 5
