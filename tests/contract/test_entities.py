"""Entities of texts, and what a request asks for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acms.contract import RenderRequest
from acms.contract.entities import MAX_ENTITIES, MAX_ENTITY_CHARS, extract_entities, gaze_of_request


def entity_request(intent: str, entities: tuple[str, ...] | None = None) -> RenderRequest:
    return RenderRequest(
        id="6f3b6f21-7a5f-4e3f-9af0-1b2c3d4e5f60",
        request_id="req-1",
        intent=intent,
        tokens_max=1000,
        time_ms=500,
        entities=entities,
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Where does Caroline keep the paintings?", ("caroline", "keep", "paintings")),
        ("call getUserName twice", ("call", "getusername", "user", "name", "twice")),
        ("OAuth in MySQL v1.2", ("oauth", "mysql", "v1.2")),
        ("the HTTPServer", ("httpserver", "http", "server")),
        ("in orders_db now", ("orders_db", "orders", "db")),
        ("see src/core/plan.py", ("see", "src/core/plan.py", "src", "core", "plan", "py")),
        ("due 2026-05-01 at 10:30 or 48k", ("due", "2026-05-01", "10:30", "48k")),
        ("Zoë's café", ("zoë", "café")),
        ("数据库迁移", ("数据", "据库", "库迁", "迁移")),
        ("数据库", ("数据库",)),
        ("what is it that you would do?", ()),
        ("...", ()),
        ("", ()),
    ],
)
def test_entities_are_words_and_names_in_the_order_of_first_mention(
    text: str, expected: tuple[str, ...]
) -> None:
    assert extract_entities(text) == expected


def test_of_too_many_entities_names_are_kept_before_plain_words() -> None:
    text = " ".join(f"word{chr(97 + n // 26)}{chr(97 + n % 26)}" for n in range(100)) + " orders_db Caroline"
    found = extract_entities(text)
    assert len(found) == MAX_ENTITIES
    assert found[-1] == "caroline"
    assert "orders_db" in found


@given(st.text(max_size=400))
def test_entities_of_any_text_are_few_short_and_in_lower_case(text: str) -> None:
    found = extract_entities(text)
    assert found == extract_entities(text)
    assert len(found) == len(set(found)) <= MAX_ENTITIES
    assert all(one and one == one.lower() and len(one) <= MAX_ENTITY_CHARS for one in found)


def test_a_long_run_of_letters_is_data_and_no_entity() -> None:
    assert extract_entities("x" * 5000 + " token") == ("token",)


def test_a_request_asks_for_what_it_states() -> None:
    assert gaze_of_request(
        entity_request("anything at all", ("Orders_DB ", "", "orders_db", "Migration"))
    ) == (
        "orders_db",
        "migration",
    )
    assert gaze_of_request(entity_request("anything", ())) == ()


def test_a_slug_is_its_words_without_what_is_to_be_done() -> None:
    found = gaze_of_request(entity_request("implement_hyperbolic_search_with_performance_constraints"))
    assert found == ("hyperbolic", "search", "performance", "constraints")
    assert gaze_of_request(entity_request("Debug the memory leak")) == ("memory", "leak")
    assert gaze_of_request(entity_request("implementHyperbolicSearch")) == ("hyperbolic", "search")
    assert gaze_of_request(entity_request("orders_db")) == ("orders_db", "orders", "db")
    assert gaze_of_request(entity_request("search")) == ("search",)
    assert gaze_of_request(entity_request("what is it?")) == ()


def test_words_that_stand_side_by_side_are_the_name_others_know_them_by() -> None:
    slug = entity_request("implement_hyperbolic_search_with_performance_constraints")
    known = ("hyperbolic_search", "Performance", "gpu_native", "search_constraints")
    assert gaze_of_request(slug, known_names=known) == ("hyperbolic_search", "performance", "constraints")
    twice = entity_request("the memory leak, and memory in general")
    assert gaze_of_request(twice, known_names=("memory_leak",)) == ("memory_leak", "memory", "general")
    longest = entity_request("fix the vector index rebuild job")
    assert gaze_of_request(longest, known_names=("vector_index", "vector-index-rebuild")) == (
        "vector-index-rebuild",
        "job",
    )


def test_the_mark_of_a_redaction_is_about_nothing() -> None:
    assert extract_entities("ask [REDACTED: email] about Kafka") == extract_entities("ask about Kafka")
