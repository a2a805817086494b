"""Compaction, policy and jobs over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.document import checked_by_document
from tests.server.serving import Service

SAID = [
    f"Point {number} of the plan is that the orders service gets a table number {number}."
    for number in range(12)
]


@pytest.fixture(scope="module")
def one(sqlite_service: Service) -> Service:
    """A service, every answer of which is held against its document."""
    return checked_by_document(sqlite_service)


def _post_compaction(service: Service, context: str, wait: str = "wait=20", **policy: Any) -> Any:
    return service.client.post(f"/contexts/{context}/compact", json=policy, headers={"Prefer": wait})


def _chat_texts(service: Service, context: str) -> list[str]:
    reply = service.client.post(f"/contexts/{context}/chat", json={"query": "plan", "budget": 4000})
    return [one["content"] for one in reply.json()["data"]["messages"]]


def test_a_compaction_can_be_waited_for(service: Service) -> None:
    context = service.talk(*SAID)
    reply = _post_compaction(service, context, preserveRecentCount=2)
    assert (reply.status_code, reply.headers["preference-applied"]) == (200, "wait=20")
    data = reply.json()["data"]
    assert data["job"]["state"] == "done"
    made = data["compaction"]
    assert (made["version"], made["replaces"], made["preserved"], made["removed"]) == (13, [1, 10], 2, 10)
    assert made["tokensAfter"] < made["tokensBefore"]
    assert made["policy"]["preserveRecentCount"] == 2
    assert service.get(f"/contexts/{context}/compactions")["data"] == [made]


def test_a_summarised_message_can_be_corrected_and_its_summary_made_anew(one: Service) -> None:
    context = one.talk(*SAID)
    made = _post_compaction(one, context, preserveRecentCount=2).json()["data"]["compaction"]
    path = f"/contexts/{context}/compactions/{made['version']}/entries"
    first = one.get(path)["data"][0]["id"]
    reply = one.client.patch(f"/contexts/{context}/entries/{first}", json={"content": "There is no table 0."})
    assert (reply.status_code, reply.json()["data"]["version"]) == (200, made["version"] + 1)
    assert "[in doubt: rests on v1" in _chat_texts(one, context)[0]
    anew = _post_compaction(one, context).json()["data"]["compaction"]
    assert (anew["renews"], made["renews"]) == ([made["version"]], [])
    assert "[in doubt" not in "".join(_chat_texts(one, context))


def test_a_compaction_is_a_job_that_can_be_asked_after(one: Service) -> None:
    context = one.talk(*SAID)
    reply = one.client.post(f"/contexts/{context}/compact", json={"preserveRecentCount": 2})
    assert reply.status_code == 202
    assert reply.json()["data"]["compaction"] is None
    job = reply.json()["data"]["job"]
    assert reply.headers["location"] == f"/api/v1/jobs/{job['id']}"
    other = _post_compaction(
        one, context, wait="wait=0", preserveRecentCount=3
    )  # or the first has ended by now
    assert other.status_code == 409 or other.json()["data"]["job"]["id"] != job["id"]
    ended = _post_compaction(one, context).json()["data"]["job"]  # the one that is under way, or the next one
    assert one.get(f"/jobs/{ended['id']}")["data"]["state"] == "done"
    assert one.get(f"/jobs/{job['id']}")["data"]["compaction"]["removed"] == 10


def test_a_preference_that_is_not_understood_is_none(one: Service) -> None:
    context = one.talk(*SAID)
    reply = _post_compaction(one, context, wait="respond-async, wait=soon")
    assert (reply.status_code, "preference-applied" in reply.headers) == (202, False)
    assert _post_compaction(one, context, wait="respond-async, wait=20").status_code == 200


def test_waiting_ends_when_it_is_over(one: Service) -> None:
    context = one.talk(*SAID)
    reply = _post_compaction(one, context, wait="wait=0")
    assert (reply.status_code, reply.headers["preference-applied"]) == (202, "wait=0")


def test_a_compaction_is_taken_back_by_its_version(one: Service) -> None:
    context = one.talk(*SAID)
    version = _post_compaction(one, context, preserveRecentCount=2).json()["data"]["compaction"]["version"]
    assert SAID[0] not in _chat_texts(one, context)
    expanded = one.get(f"/contexts/{context}/compactions/{version}/entries")["data"]
    assert [each["content"] for each in expanded] == SAID[: len(expanded)]
    assert one.client.get(f"/contexts/{context}/compactions/99/entries").status_code == 404
    undo = f"/contexts/{context}/compactions/{version}/undo"
    done = one.client.post(undo).json()["data"]["version"]
    assert done == version + 1
    assert SAID[0] in _chat_texts(one, context)
    assert one.client.post(undo).json()["data"]["version"] == done
    assert [each["inForce"] for each in one.get(f"/contexts/{context}/compactions")["data"]] == [False]
    assert one.get(f"/contexts/{context}/compactions", atVersion=version)["data"][0]["inForce"]


@pytest.mark.parametrize(
    ("version", "status"), [("1", 404), ("99", 404), ("0", 404), ("soon", 400), ("-1", 400)]
)
def test_only_a_compaction_is_taken_back_as_one(one: Service, version: str, status: int) -> None:
    context = one.talk("a")
    assert one.client.post(f"/contexts/{context}/compactions/{version}/undo").status_code == status


def test_compactions_come_in_pages(one: Service) -> None:
    context = one.talk(*SAID)
    for _ in range(3):
        _post_compaction(one, context, preserveRecentCount=2)
        one.say(context, *SAID)
    path = f"/contexts/{context}/compactions"
    whole = one.get(path)["data"]
    assert len(whole) == 3
    first = one.get(path, limit=2)
    rest = one.get(path, limit=2, cursor=first["nextCursor"])
    assert (first["data"] + rest["data"], first["hasMore"], rest["hasMore"]) == (whole, True, False)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"threshold": "much"}, "threshold"),
        ({"preserveRecentCount": -1}, "preserveRecentCount"),
        ({"keep": 2}, "keep"),
        ({"strategy": "model"}, "strategy"),
    ],
)
def test_a_wrong_policy_is_refused_with_the_field(one: Service, body: dict[str, Any], field: str) -> None:
    context = one.talk("a")
    for method, path in (("POST", "compact"), ("PUT", "policy"), ("PATCH", "policy")):
        reply = one.client.request(method, f"/contexts/{context}/{path}", json=body)
        assert (reply.status_code, reply.json()["errors"][0]["field"]) == (400, field)


def test_put_says_all_of_a_policy_and_patch_a_part_of_it(one: Service) -> None:
    context = one.create(policyConfig={"budget": 500, "keep": 0.5})
    path = f"/contexts/{context}/policy"

    def own(reply: Any) -> dict[str, Any]:
        data = reply["data"]
        return {name: data["policy"][name] for name, level in data["levels"].items() if level == "context"}

    assert own(one.get(path)) == {"budget": 500, "keep": 0.5}
    assert own(one.client.patch(path, json={"threshold": 0.9}).json()) == {
        "budget": 500,
        "keep": 0.5,
        "threshold": 0.9,
    }
    assert own(one.client.patch(path, json={"budget": None}).json()) == {"keep": 0.5, "threshold": 0.9}
    assert own(one.client.put(path, json={"budget": 800}).json()) == {"budget": 800}
    assert own(one.client.put(path, json={}).json()) == {}


def test_a_namespace_has_a_policy_a_retention_and_a_legal_hold(one: Service) -> None:
    path = "/namespaces/held/policy"
    assert one.get(path)["data"]["legalHold"] is False
    change = {"legalHold": True, "retentionSeconds": 60, "policy": {"keep": 0.5}}
    changed = one.client.patch(path, json=change).json()["data"]
    assert (changed["legalHold"], changed["retentionSeconds"], changed["policy"]["keep"]) == (True, 60, 0.5)
    assert changed["levels"]["legalHold"] == changed["levels"]["keep"] == "namespace"
    context = one.create(namespace="held")
    message = one.client.post(
        f"/contexts/{context}/messages", json={"messages": [{"role": "user", "content": "a"}]}
    ).json()["data"][0]
    assert one.get(f"/contexts/{context}/policy")["data"]["legalHold"] is True
    refused = one.client.delete(f"/contexts/{context}/entries/{message['id']}")
    assert refused.status_code == 423
    assert refused.json()["options"] == [
        'PATCH /api/v1/namespaces/{namespace}/policy {"legalHold": false} lifts it'
    ]
    one.client.delete(f"/contexts/{context}")
    lifted = one.client.patch(path, json={"legalHold": None, "retentionSeconds": None}).json()["data"]
    assert (lifted["legalHold"], lifted["retentionSeconds"], lifted["policy"]["keep"]) == (False, None, 0.5)
    assert one.client.delete(f"/contexts/{context}/entries").status_code == 200


def test_a_policy_decides_with_the_next_message(one: Service) -> None:
    context = one.talk(*SAID)
    one.client.put(f"/contexts/{context}/policy", json={"budget": 100, "preserveRecentCount": 1})
    one.say(context, "And one more.")
    (job,) = one.get("/jobs", contextId=context)["data"]
    assert job["kind"] == "compact"


def test_jobs_are_listed_by_context_and_state(service: Service) -> None:
    context, other = service.talk(*SAID), service.talk(*SAID)
    done = _post_compaction(service, context).json()["data"]["job"]
    _post_compaction(service, other)
    assert service.get("/jobs", contextId=context)["data"] == [done]
    assert service.get("/jobs", contextId=context, state="failed")["data"] == []
    listed = service.get("/jobs", limit=1)
    assert listed["hasMore"]
    assert service.get("/jobs", limit=1, cursor=listed["nextCursor"])["data"] != listed["data"]


def test_a_job_that_is_done_is_neither_cancelled_nor_tried_again(service: Service) -> None:
    context = service.talk(*SAID)
    id = _post_compaction(service, context).json()["data"]["job"]["id"]
    for verb in ("cancel", "retry"):
        reply = service.client.post(f"/jobs/{id}/{verb}")
        assert (reply.status_code, reply.json()["code"]) == (409, "CONFLICT")


def test_an_unknown_job_is_404(service: Service) -> None:
    for id in ("999999", "nobody", "c_1"):
        assert service.client.get(f"/jobs/{id}").status_code == 404
        assert service.client.post(f"/jobs/{id}/cancel").status_code == 404
    assert service.client.get("/jobs", params={"contextId": "c_nobody"}).status_code == 404
