"""The border: what may enter a log, with a named limit and the field at fault for everything that may not."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acms import Media, Origin, Privacy, Raw, Reasoning, Role, Text, ToolCall, ToolResult, ValidationError
from acms.log import validation

MANY = 10**6


def validation_error(call: Callable[[], Any], field: str) -> ValidationError:
    with pytest.raises(ValidationError) as caught:
        call()
    assert caught.value.field == field
    assert caught.value.retryable is False
    return caught.value


# ── texts and names ─────────────────────────────────────────────────────────────────────────────────────────────────


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")))
def test_any_text_without_nul_and_surrogates_passes_unchanged(text: str) -> None:
    assert validation.validate_text(text, "content") == text


@pytest.mark.parametrize("value", ["a\0b", "\0", "\ud800", "ok \udfff", None, 5, b"bytes", ["x"]])
def test_a_text_no_backend_could_store_is_refused(value: Any) -> None:
    validation_error(lambda: validation.validate_text(value, "content"), "content")


def test_a_text_is_measured_in_bytes() -> None:
    assert validation.validate_text("x" * validation.MESSAGE_BYTES, "content")
    assert validation.validate_text("é" * (validation.MESSAGE_BYTES // 2), "content")
    error = validation_error(
        lambda: validation.validate_text("é" * (validation.MESSAGE_BYTES // 2) + "x", "content"), "content"
    )
    assert str(validation.MESSAGE_BYTES) in str(error)


def test_a_name_is_measured_in_characters() -> None:
    assert validation.validate_name("名" * validation.NAME_CHARS, "session_id")
    validation_error(
        lambda: validation.validate_name("n" * (validation.NAME_CHARS + 1), "session_id"), "session_id"
    )
    validation_error(lambda: validation.validate_name("n" * MANY, "session_id"), "session_id")


@pytest.mark.parametrize("value", ["", "  ", "\n", "a\0", "\ud800", None, 7])
def test_an_empty_or_unwritable_name_is_refused(value: Any) -> None:
    validation_error(lambda: validation.validate_name(value, "session_id"), "session_id")


def test_a_name_may_be_missing_where_it_is_optional() -> None:
    assert validation.validate_optional_name(None, "actor_id") is None
    assert validation.validate_optional_name("Sam", "actor_id") == "Sam"
    validation_error(lambda: validation.validate_optional_name("", "actor_id"), "actor_id")


# ── closed vocabularies ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("role", list(Role))
def test_a_role_is_matched_without_regard_to_case(role: Role) -> None:
    assert validation.parse_choice(role, Role, "role") is role
    assert validation.parse_choice(role.value.upper(), Role, "role") is role


@pytest.mark.parametrize("value", ["bot", "", " user", None, 1, ["user"], Origin.EXTERNAL])
def test_an_unknown_word_is_refused_and_the_known_ones_are_named(value: Any) -> None:
    error = validation_error(lambda: validation.parse_choice(value, Role, "role"), "role")
    assert "system, developer, user, assistant, tool" in str(error)


def test_privacy_and_origin_are_closed_too() -> None:
    assert validation.parse_choice("redact", Privacy, "privacy") is Privacy.REDACT
    validation_error(lambda: validation.parse_choice("derived!", Origin, "origin"), "origin")


def test_markers_are_kept_once_in_order() -> None:
    assert validation.validate_markers(None) is None
    assert validation.validate_markers([]) == ()
    assert validation.validate_markers(["goal", "custom:x", "goal"]) == ("goal", "custom:x")
    assert validation.validate_markers([f"custom:{n}" for n in range(validation.MARKERS)]) is not None


@pytest.mark.parametrize(
    "value",
    [
        "goal",
        ["GOAL"],
        ["custom:"],
        ["custom:a b"],
        [None],
        [5],
        ["custom:" + "x" * 65],
        5,
        {"goal": 1.5}.values(),
    ],
)
def test_markers_that_make_no_sense_are_refused(value: Any) -> None:
    validation_error(lambda: validation.validate_markers(value), "markers")


def test_markers_have_a_limit() -> None:
    validation_error(
        lambda: validation.validate_markers([f"custom:{n}" for n in range(validation.MARKERS + 1)]), "markers"
    )


# ── numbers ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("value", [0, 4000, 10**8])
def test_a_budget_is_a_whole_number_of_zero_or_more(value: int) -> None:
    assert validation.validate_budget(value) == value


@pytest.mark.parametrize(
    "value",
    [
        -1,
        -0.5,
        0.5,
        100.0,
        float("nan"),
        float("inf"),
        float("-inf"),
        True,
        "100",
        None,
        [1],
        10**8 + 1,
        10**30,
        1e300,
    ],
)
def test_a_budget_that_makes_no_sense_is_refused(value: Any) -> None:
    validation_error(lambda: validation.validate_budget(value), "token_budget")


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan"), float("inf"), True, "0.5", None])
def test_a_fraction_lies_between_zero_and_one(value: Any) -> None:
    validation_error(lambda: validation.validate_fraction(value, "min_relevance"), "min_relevance")
    assert validation.validate_fraction(0, "x") == 0.0
    assert validation.validate_fraction(1, "x") == 1.0


@pytest.mark.parametrize("value", [-1, 11, 2.0, True, "3", None, 2**63])
def test_a_whole_number_lies_within_its_bounds(value: Any) -> None:
    validation_error(lambda: validation.validate_integer(value, "limit", maximum=10), "limit")
    assert validation.validate_integer(10, "limit", maximum=10) == 10


# ── times ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "value",
    [
        datetime(2026, 3, 14, 12, tzinfo=UTC),
        datetime(2026, 3, 14, 7, tzinfo=timezone(timedelta(hours=-5))),
        "2026-03-14T12:00:00Z",
        "2026-03-14T12:00:00+00:00",
        "2026-03-14T13:00:00+01:00",
    ],
)
def test_an_aware_time_becomes_utc(value: Any) -> None:
    found = validation.parse_moment(value)
    assert found == datetime(2026, 3, 14, 12, tzinfo=UTC)
    assert found.tzinfo is UTC


@pytest.mark.parametrize(
    "value",
    [
        datetime(2026, 3, 14),
        "2026-03-14T12:00:00",
        "2026-03-14",
        "yesterday",
        "",
        1_700_000_000,
        None,
        datetime.max.replace(tzinfo=timezone(timedelta(hours=-5))),
        datetime.min.replace(tzinfo=timezone(timedelta(hours=5))),
    ],
)
def test_a_time_without_a_zone_or_sense_is_refused(value: Any) -> None:
    validation_error(lambda: validation.parse_moment(value), "created_at")


# ── metadata ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_metadata_is_copied_plain() -> None:
    given = OrderedDict(run=12, tags=("a", "b"), deep={"x": [None, True, 1.5, {"y": "z"}]}, role=Role.USER)
    copy = validation.validate_metadata(given)
    assert copy == {
        "run": 12,
        "tags": ["a", "b"],
        "deep": {"x": [None, True, 1.5, {"y": "z"}]},
        "role": "user",
    }
    given["deep"]["x"].append("later")  # type: ignore[index]
    assert copy["deep"]["x"][-1] == {"y": "z"}
    assert validation.validate_metadata(MappingProxyType({"a": 1})) == {"a": 1}


@pytest.mark.parametrize("value", [None, {}, MappingProxyType({})])
def test_no_metadata_is_fine(value: Any) -> None:
    assert validation.validate_metadata(value) == {}


def nest_value(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return value


def looped_value() -> Any:
    value: dict[str, Any] = {}
    value["again"] = value
    return value


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ({"run": float("nan")}, "metadata.run"),
        ({"run": float("inf")}, "metadata.run"),
        ({"run": 2**63}, "metadata.run"),
        ({"run": -(2**63) - 1}, "metadata.run"),
        ({"run": {1, 2}}, "metadata.run"),
        ({"run": b"x"}, "metadata.run"),
        ({"run": datetime(2026, 1, 1, tzinfo=UTC)}, "metadata.run"),
        ({"run": object()}, "metadata.run"),
        ({"run": "a\0"}, "metadata.run"),
        ({"run": ["fine", "\ud800"]}, "metadata.run[1]"),
        ({"a": {"b": [0, {"c": float("nan")}]}}, "metadata.a.b[1].c"),
        ({1: "x"}, "metadata"),
        ({"": "x"}, "metadata"),
        ({"n" * 256: "x"}, "metadata"),
        ({"a\0": "x"}, "metadata"),
        ({f"k{n}": n for n in range(65)}, "metadata"),
        ({"run": "x" * 16_385}, "metadata.run"),
        ({f"k{n}": "x" * 1000 for n in range(20)}, "metadata"),
        ([("a", 1)], "metadata"),
        ("run=12", "metadata"),
        (5, "metadata"),
        (0, "metadata"),
        ("", "metadata"),
        ([], "metadata"),
    ],
)
def test_metadata_that_is_no_small_json_object_is_refused(value: Any, field: str) -> None:
    validation_error(lambda: validation.validate_metadata(value), field)


@pytest.mark.parametrize(
    "value", [nest_value(9), nest_value(10_000), looped_value(), {"a": [[[[[[[[1]]]]]]]]}]
)
def test_metadata_nested_too_deep_is_refused(value: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        validation.validate_metadata(value)
    assert caught.value.field.startswith("metadata.a")


def test_metadata_up_to_every_limit_is_fine() -> None:
    assert validation.validate_metadata(nest_value(validation.METADATA_DEPTH))
    assert validation.validate_metadata({f"k{n}": n for n in range(validation.METADATA_KEYS)})
    assert validation.validate_metadata({"a": "x" * (validation.METADATA_BYTES - 9)})
    validation_error(
        lambda: validation.validate_metadata({"a": "x" * (validation.METADATA_BYTES - 8)}), "metadata"
    )
    assert validation.validate_metadata({"a": 2**63 - 1, "b": -(2**63)})


# ── parts ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def build_parts(role: Role = Role.ASSISTANT, content: str = "", **given: Any) -> tuple[tuple[Any, ...], str]:
    return validation.build_message_parts(
        role, content, given.get("parts"), given.get("tool_calls"), given.get("tool_call_id")
    )


CALL = {"id": "c1", "name": "disk", "arguments": "{}"}


def test_a_plain_message_is_its_text() -> None:
    assert build_parts(Role.USER, "  hello\n") == ((), "  hello\n")


@pytest.mark.parametrize("content", ["", " ", "\n\t"])
@pytest.mark.parametrize("role", list(Role))
def test_a_message_that_says_nothing_is_refused(role: Role, content: str) -> None:
    error = validation_error(lambda: build_parts(role, content), "content")
    assert error.options


def test_an_assistant_may_only_call_and_a_tool_may_answer_nothing() -> None:
    assert build_parts(tool_calls=[CALL]) == ((ToolCall("c1", "disk", "{}"),), "disk({})")
    assert build_parts(Role.TOOL, "", tool_call_id="c1") == ((ToolResult("c1", ""),), "")


def test_calls_are_read_in_both_forms() -> None:
    nested_form = {
        "id": "c1",
        "type": "function",
        "function": {"name": "disk", "arguments": '{"host":"db1"}'},
    }
    assert build_parts(tool_calls=[nested_form])[0] == (ToolCall("c1", "disk", '{"host":"db1"}'),)
    assert build_parts(tool_calls=[{"id": "c1", "name": "disk"}])[0] == (ToolCall("c1", "disk", "{}"),)
    given = {"id": "c1", "name": "disk", "arguments": {"host": "ü"}}
    assert build_parts(tool_calls=[given])[0] == (ToolCall("c1", "disk", '{"host": "ü"}'),)


def test_the_text_of_a_message_with_parts_is_what_it_says_in_order() -> None:
    found, text = build_parts(
        Role.ASSISTANT,
        "first",
        tool_calls=[CALL],
        parts=[Reasoning("unsaid"), Text("second"), Media("image/png", "s3://b/k"), Raw("openai", "{}")],
    )
    assert [type(part).__name__ for part in found] == [
        "Text",
        "ToolCall",
        "Reasoning",
        "Text",
        "Media",
        "Raw",
    ]
    assert text == "first\ndisk({})\nsecond"


@pytest.mark.parametrize("role", [Role.USER, Role.SYSTEM, Role.DEVELOPER, Role.TOOL])
def test_only_an_assistant_calls_and_reasons(role: Role) -> None:
    validation_error(lambda: build_parts(role, "x", tool_calls=[CALL]), "parts")
    validation_error(lambda: build_parts(role, "x", parts=[Reasoning("hm")]), "parts")


@pytest.mark.parametrize("role", [Role.USER, Role.SYSTEM, Role.DEVELOPER, Role.ASSISTANT])
def test_only_a_tool_answers(role: Role) -> None:
    validation_error(lambda: build_parts(role, "x", tool_call_id="c1"), "tool_call_id")
    validation_error(lambda: build_parts(role, "x", parts=[ToolResult("c1", "x")]), "parts")


@pytest.mark.parametrize(
    ("call", "field"),
    [
        ({}, "tool_calls[0].id"),
        ({"name": "disk"}, "tool_calls[0].id"),
        ({"id": "c1"}, "tool_calls[0].name"),
        ({"id": "", "name": "disk"}, "tool_calls[0].id"),
        ({"id": "c1", "name": " "}, "tool_calls[0].name"),
        ({"id": "c1", "name": "disk", "arguments": None}, "tool_calls[0].arguments"),
        ({"id": "c1", "name": "disk", "arguments": "\0"}, "tool_calls[0].arguments"),
        ({"id": "c1", "name": "disk", "arguments": {"x": object()}}, "tool_calls[0].arguments"),
        ({"id": "c1", "name": "disk", "arguments": {"x": float("nan")}}, "tool_calls[0].arguments"),
        ({"id": 5, "name": "disk"}, "tool_calls[0].id"),
        ({"id": "c1", "function": "disk"}, "tool_calls[0].function"),
        ({"id": "c1", "function": {}}, "tool_calls[0].name"),
        ("disk", "tool_calls[0]"),
        (None, "tool_calls[0]"),
        ({"id": "c" * 256, "name": "disk"}, "tool_calls[0].id"),
    ],
)
def test_a_call_that_makes_no_sense_is_refused(call: Any, field: str) -> None:
    validation_error(lambda: build_parts(tool_calls=[call]), field)


@pytest.mark.parametrize(
    ("part", "field"),
    [
        (Text("\0"), "parts[0].text"),
        (Text(None), "parts[0].text"),  # type: ignore[arg-type]
        (Reasoning("\ud800"), "parts[0].text"),
        (Reasoning("x", "\0"), "parts[0].signature"),
        (ToolCall("", "disk"), "parts[0].call_id"),
        (ToolCall("c1", ""), "parts[0].name"),
        (ToolCall("c1", "disk", "\0"), "parts[0].arguments"),
        (Media("", "ref"), "parts[0].mime"),
        (Media("image/png", "x" * 16_385), "parts[0].ref"),
        (Media("image/png", "ref", "0" * 65), "parts[0].sha256"),
        (Media("image/png", "ref", tokens=-1), "parts[0].tokens"),
        (Media("image/png", "ref", tokens=1.5), "parts[0].tokens"),  # type: ignore[arg-type]
        (Media("image/png", "ref", tokens=validation.BUDGET + 1), "parts[0].tokens"),
        (Raw("", "{}"), "parts[0].vendor"),
        (Raw("openai", "\0"), "parts[0].json"),
        ({"type": "text", "text": "x"}, "parts[0]"),
        ("x", "parts[0]"),
        (None, "parts[0]"),
    ],
)
def test_a_part_that_makes_no_sense_is_refused(part: Any, field: str) -> None:
    validation_error(lambda: build_parts(parts=[part]), field)


@pytest.mark.parametrize(
    ("part", "field"),
    [
        (ToolResult("", "x"), "parts[0].call_id"),
        (ToolResult("c1", "\0"), "parts[0].output"),
        (ToolResult("c1", "x", "yes"), "parts[0].is_error"),  # type: ignore[arg-type]
    ],
)
def test_a_result_that_makes_no_sense_is_refused(part: Any, field: str) -> None:
    validation_error(lambda: build_parts(Role.TOOL, parts=[part]), field)


@pytest.mark.parametrize("given", [{"parts": 5}, {"parts": Text("x")}, {"parts": "x"}])
def test_parts_must_be_a_list(given: Any) -> None:
    validation_error(lambda: build_parts(**given), "parts" if given["parts"] != "x" else "parts[0]")


@pytest.mark.parametrize("given", [5, "c1", CALL])
def test_tool_calls_must_be_a_list(given: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        build_parts(tool_calls=given)
    assert caught.value.field.startswith("tool_calls")


def test_parts_have_a_limit() -> None:
    assert len(build_parts(parts=[Text("x")] * validation.PARTS)[0]) == validation.PARTS
    validation_error(lambda: build_parts(parts=[Text("x")] * (validation.PARTS + 1)), "parts")


def test_the_joined_text_of_parts_has_the_limit_of_a_message() -> None:
    half = Text("x" * (validation.MESSAGE_BYTES // 2))
    validation_error(lambda: build_parts(parts=[half, half]), "content")


def test_two_calls_of_one_message_cannot_share_an_id() -> None:
    validation_error(lambda: build_parts(tool_calls=[CALL, {**CALL, "name": "memory"}]), "parts")


def test_one_message_cannot_answer_a_call_twice() -> None:
    validation_error(
        lambda: build_parts(Role.TOOL, parts=[ToolResult("c1", "a"), ToolResult("c1", "b")]), "parts"
    )


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("MESSAGE_BYTES", 1_048_576),
        ("NAME_CHARS", 255),
        ("PARTS", 4_096),
        ("MARKERS", 16),
        ("BATCH", 1_000),
        ("METADATA_BYTES", 16_384),
        ("METADATA_KEYS", 64),
        ("METADATA_DEPTH", 8),
        ("KEY_CHARS", 512),
        ("VALUE_BYTES", 1_048_576),
        ("VALUE_DEPTH", 64),
        ("PAGE", 500),
        ("BUDGET", 100_000_000),
    ],
)
def test_the_limits_are_those_that_are_promised(name: str, limit: int) -> None:
    assert getattr(validation, name) == limit
