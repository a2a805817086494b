"""Contexts over HTTP: keys, names, metadata, lists, pages, deletion."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from acms.model import ContextDraft
from tests.server.serving import Service
from tests.server.test_versioned_contexts import checked_problem


def test_a_key_makes_a_context_once(service: Service) -> None:
    first = service.client.post("/contexts", json={"key": "once", "name": "first"})
    again = service.client.post("/contexts", json={"key": "once", "name": "second"})
    other = service.client.post("/contexts", json={"key": "once", "namespace": "other"})
    assert (first.status_code, again.status_code, other.status_code) == (201, 200, 201)
    assert again.json() == first.json(), "it is returned as it is, not changed"
    assert other.json()["data"]["id"] != first.json()["data"]["id"]
    made = first.json()["data"]["id"]
    assert first.headers["location"] == f"/api/v1/contexts/{made}"
    assert first.headers["etag"] == '"empty"'


def test_a_key_is_free_again_once_its_context_is_deleted(service: Service) -> None:
    before = service.create(key="freed")
    service.client.delete(f"/contexts/{before}")
    assert service.create(key="freed") != before


def test_a_key_in_a_path_is_not_found_and_the_error_says_how_to_find_the_id(service: Service) -> None:
    service.create(key="orders")
    problem = service.client.get("/contexts/orders").json()
    assert (problem["status"], problem["code"]) == (404, "SESSION_NOT_FOUND")
    assert problem["options"] == [
        "a path takes the id of a context: GET /api/v1/contexts with the parameter key finds it by its key"
    ]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"key": ""}, "key"),
        ({"key": " "}, "key"),
        ({"key": "k" * 256}, "key"),
        ({"key": "@namespace"}, "key"),
        ({"key": "@profile"}, "key"),
        ({"key": "c_0123456789abcdef"}, "key"),  # it would stand in the way of the id
        ({"key": "a\0b"}, "key"),
        ({"namespace": ""}, "namespace"),
        ({"namespace": "@acms"}, "namespace"),
        ({"name": 7}, "name"),
        ({"name": "a\0b"}, "name"),
        ({"metadata": []}, "metadata"),
        ({"metadata": {"a": {"b": "\0"}}}, "metadata.a.b"),
        ({"metadata": {"some_key": 2**63}}, "metadata.some_key"),
        ({"policyConfig": {"preserveRecentCount": -1}}, "policyConfig.preserveRecentCount"),
        ({"policyConfig": {"colour": 1}}, "policyConfig.colour"),
    ],
)
def test_a_context_that_makes_no_sense_is_refused(
    sqlite_service: Service, body: dict[str, Any], field: str
) -> None:
    checked_problem(sqlite_service.client.post("/contexts", json=body), 400, field)


def test_half_a_character_is_refused_with_its_field(sqlite_service: Service) -> None:
    json = {"content-type": "application/json"}
    for body, field in (
        (b'{"name": "a\\ud800b"}', "name"),
        (b'{"metadata": {"a": ["\\ude00"]}}', "metadata.a[0]"),
    ):
        checked_problem(sqlite_service.client.post("/contexts", content=body, headers=json), 400, field)


def test_a_context_is_created_without_a_body(sqlite_service: Service) -> None:
    assert sqlite_service.client.post("/contexts").status_code == 201


def test_name_and_metadata_can_be_changed_and_removed(service: Service) -> None:
    context = service.create(name="before", metadata={"team": "orders"})
    at = f"/contexts/{context}"

    def change(body: dict[str, Any]) -> tuple[Any, Any]:
        reply = service.client.patch(at, json=body)
        assert reply.status_code == 200, reply.text
        assert reply.json() == service.get(at)
        return reply.json()["data"]["name"], reply.json()["data"]["metadata"]

    assert change({"name": "after"}) == ("after", {"team": "orders"})
    assert change({"metadata": {"run": 12}}) == ("after", {"run": 12})
    assert change({}) == ("after", {"run": 12})
    assert change({"name": None, "metadata": None}) == (None, {})
    checked_problem(service.client.patch(at, json={"key": "new"}), 400, "key")
    assert service.get(at)["data"]["latestVersion"] == 0, "names stand outside the log"


def test_contexts_are_listed_newest_first_and_paged(service: Service) -> None:
    made = [service.create(namespace="listed") for _ in range(5)]
    everything = service.get("/contexts", namespace="listed")
    assert [one["id"] for one in everything["data"]] == made[::-1]
    assert (everything["nextCursor"], everything["hasMore"]) == (None, False)
    found: list[str] = []
    query: dict[str, Any] = {"namespace": "listed", "limit": 2}
    while True:
        page = service.get("/contexts", **query)
        found += [one["id"] for one in page["data"]]
        assert page["hasMore"] == (page["nextCursor"] is not None)
        if not page["hasMore"]:
            break
        query["cursor"] = page["nextCursor"]
    assert found == made[::-1]


def test_contexts_are_found_by_key_and_by_parent(service: Service) -> None:
    parent = service.talk("a", key="parent", namespace="family")
    child = service.client.post(f"/contexts/{parent}/fork", json={"key": "child"}).json()["data"]["id"]

    def listed(**query: Any) -> list[str]:
        return [one["id"] for one in service.get("/contexts", **query)["data"]]

    assert listed(key="parent", namespace="family") == [parent]
    assert listed(key="parent") == []
    assert listed(key=parent) == [], "an id is no key"
    assert listed(parent=parent) == [child]


def test_what_a_namespace_keeps_for_itself_is_no_context(service: Service) -> None:
    said = service.talk("a", namespace="inner")

    async def kept(tenant: Any) -> None:
        for key in ("@profile", "@namespace"):
            now = datetime.now(UTC)
            await tenant.handle.create(
                ContextDraft(key=key, namespace="inner", counter="o200k_base", created_at=now)
            )

    service.inside(kept)
    assert [one["id"] for one in service.get("/contexts", namespace="inner")["data"]] == [said]
    for key in ("@profile", "@namespace"):
        assert service.get("/contexts", namespace="inner", key=key)["data"] == []


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"limit": 0}, "limit"),
        ({"limit": 501}, "limit"),
        ({"cursor": "nothing"}, "cursor"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_list_that_makes_no_sense_is_refused(
    sqlite_service: Service, query: dict[str, Any], field: str
) -> None:
    checked_problem(sqlite_service.client.get("/contexts", params=query), 400, field)


def test_a_nul_is_refused_wherever_it_stands(service: Service) -> None:
    for path in ("/contexts/a%00b", "/contexts/a%00b/messages"):
        checked_problem(service.client.get(path), 400, "contextId")
    for name in ("key", "namespace", "parent", "cursor"):
        checked_problem(service.client.get(f"/contexts?{name}=a%00b"), 400, name)


def test_a_parameter_that_comes_twice_is_refused(sqlite_service: Service) -> None:
    checked_problem(sqlite_service.client.get("/contexts?limit=1&limit=2"), 400, "limit")


def test_a_deleted_context_names_the_forks_that_still_read_it(service: Service) -> None:
    parent = service.talk("a", "b", "c")
    child = service.client.post(f"/contexts/{parent}/fork", json={"atVersion": 2}).json()["data"]["id"]
    gone = service.client.delete(f"/contexts/{parent}").json()["data"]
    assert gone["liveForks"] == [{"id": child, "key": child}]
    listed = service.get(f"/contexts/{child}/messages")
    assert [one["content"] for one in listed["data"]] == ["a", "b"]
    assert [one["deleted"] for one in service.get(f"/contexts/{child}/ancestry")["data"]] == [True, False]


def test_a_deleted_context_is_listed_and_its_content_erased(service: Service) -> None:
    context = service.create(key="gone", namespace="deleted")
    service.client.post(
        f"/contexts/{context}/messages", json={"messages": [{"role": "user", "content": "a"}]}
    )
    service.client.delete(f"/contexts/{context}")
    assert service.get("/contexts", namespace="deleted")["data"] == []
    (listed,) = service.get("/contexts", namespace="deleted", deleted="true")["data"]
    assert (listed["id"], listed["key"], listed["messageCount"]) == (context, "gone", 1)
    assert listed["deletedAt"] is not None
    erased = service.client.delete(f"/contexts/{context}/entries", params={"verify": "true"}).json()["data"]
    assert (len(erased["ids"]), erased["verified"]) == (1, True)
    (listed,) = service.get("/contexts", namespace="deleted", deleted="true")["data"]
    assert listed["messageCount"] == 0


def test_etags_change_with_messages_and_with_nothing_else(service: Service) -> None:
    context = service.create()
    at = f"/contexts/{context}"
    assert service.client.get(at).headers["etag"] == '"empty"'
    (message,) = service.say(context, "a")
    for reply in (
        service.client.get(at),
        service.client.get(f"{at}/messages"),
        service.client.get(f"{at}/window", params={"budget": 10}),
        service.client.patch(at, json={"name": "named"}),
    ):
        assert reply.headers["etag"] == f'"{message["id"]}"'


@pytest.mark.parametrize(
    ("method", "path", "body", "detail"),
    [
        ("GET", "/window?budgt=4", None, "budgt: is not a known parameter; did you mean budget?"),
        ("GET", "/window?budget=4&at=1", None, "at: is not a known parameter; did you mean atVersion?"),
        ("GET", "?x=1", None, "x: is not a known parameter"),
        ("GET", "/policy?colour=red", None, "colour: is not a known parameter"),
        ("DELETE", "/entries?verfy=true", None, "verfy: is not a known parameter; did you mean verify?"),
        ("POST", "/recall", {"qurey": "tea"}, "qurey: is not a known field; did you mean query?"),
        (
            "POST",
            "",
            {"policyConfig": {"treshold": 0.5}},
            "policyConfig.treshold: is not a known field; did you mean threshold?",
        ),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest_known_one(
    sqlite_service: Service, method: str, path: str, body: dict[str, Any] | None, detail: str
) -> None:
    context = "" if body and "policyConfig" in body else f"/{sqlite_service.create()}"
    problem = sqlite_service.client.request(method, f"/contexts{context}{path}", json=body)
    assert (problem.status_code, problem.json()["detail"]) == (400, detail)


def test_an_unknown_name_unlike_any_other_is_answered_with_all_of_them(sqlite_service: Service) -> None:
    problem = sqlite_service.client.get("/jobs", params={"colour": "red"}).json()
    known = "colour: is not a known parameter; the parameters are "
    assert problem["detail"].startswith(known)
    assert set(problem["detail"].removeprefix(known).split(", ")) >= {"limit", "cursor"}


def test_errors_speak_of_contexts_as_the_paths_do(sqlite_service: Service) -> None:
    """Names that a client chose, and `session` as the name of a filter, stay unchanged."""
    client, context, other = sqlite_service.client, sqlite_service.talk("tea"), sqlite_service.talk("coffee")
    merge = f"/contexts/{context}/merge"
    recall = f"/contexts/{context}/recall"
    problems = [
        client.get("/contexts/c_absent"),
        client.get(f"/contexts/{context}/entries/my session"),
        client.delete(f"/contexts/{context}/tags/my session"),
        client.get(merge, params={"other": other}),
        client.post(recall, json={"query": "tea", "scope": "namespace"}),
        client.post(recall, json={"query": "tea", "where": {"session": ""}}),
    ]
    assert [one.json()["detail"] for one in problems] == [
        "no context is named 'c_absent'",
        f"the context '{context}' has no entry 'my session'",
        "this context has no tag 'my session'",
        "other: has no history in common with this context: only forks of one tree can be merged",
        "scope: the contexts of the namespace 'default' may be anybody's,"
        " and one must not find what another has said",
        "where.session: must not be empty",
    ]
    wrong_filter = client.post(recall, json={"query": "tea", "where": {"colour": "red"}}).json()
    assert "filter by role, actor, marker, metadata, after, before, session" in wrong_filter["options"]
