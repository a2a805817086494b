"""Markers: the words that announce one, where it must stand, and its weight."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from acms import ACMS, ACMSConfig, ConfigurationError, MarkerType, ValidationError, open_storage
from acms.text.markers import (
    CUSTOM_WEIGHT,
    PATTERNS,
    WEIGHTS,
    detect_markers,
    freeze_patterns,
    line_start,
    sum_marker_weights,
)

SEED = {
    "decision": ["Decision:", "Decided:", "Choosing:", "Selected:"],
    "constraint": ["Constraint:", "Requirement:", "Must:", "Cannot:", "Budget:", "Limit:"],
    "failure": ["Failed:", "Error:", "Didn't work:", "Tried but:"],
    "goal": ["Goal:", "Objective:", "Task:", "Need to:"],
}
TABLE = [(marker, word) for marker, words in SEED.items() for word in words]

# ── detection ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("marker", "word"), TABLE)
def test_every_word_of_the_table_is_found_at_the_start_of_a_text_or_a_line(marker: str, word: str) -> None:
    assert detect_markers(f"{word} use one database") == (marker,)
    assert detect_markers(f"We talked.\n{word} use one database") == (marker,)
    assert detect_markers(f"{word.upper()} use one database") == (marker,)
    assert detect_markers(f"{word.lower()}") == (marker,)


@pytest.mark.parametrize(("marker", "word"), TABLE)
def test_a_word_in_the_middle_of_a_line_or_without_its_colon_is_no_marker(marker: str, word: str) -> None:
    assert detect_markers(f"Here is the {word} use one database") == ()
    assert detect_markers(word.removesuffix(":") + " and more") == ()
    assert detect_markers(f"{word.removesuffix(':')} is: not it") == ()


@pytest.mark.parametrize(
    "text",
    [
        "- Decision: one database",
        "* Decision: one database",
        "> Decision: one database",
        "## Decision: one database",
        "  Decision: one database",
        "\tDecision: one database",
        "**Decision:** one database",
        "**Decision**: one database",
        "__Decision__: one database",
        "- **Decision:** one database",
        "intro\r\n- Decision: one database",
    ],
)
def test_signs_of_markdown_may_stand_around_the_word(text: str) -> None:
    assert detect_markers(text) == ("decision",)


@pytest.mark.parametrize(
    "text",
    ["Decisions: many", "Undecided: this", "Terror: a film", "The error: none", "1Goal: x", "Must-have: y"],
)
def test_a_longer_word_is_no_marker(text: str) -> None:
    assert detect_markers(text) == ()


def test_an_apostrophe_may_be_typographic() -> None:
    assert detect_markers("Didn’t work: restarting") == ("failure",)


def test_several_markers_come_once_each_in_the_order_of_the_table() -> None:
    text = "Goal: ship\nError: it broke\nGoal: again\nDecision: retry"
    assert detect_markers(text) == ("decision", "failure", "goal")


def test_own_patterns_are_used_instead_of_the_default_ones() -> None:
    patterns = freeze_patterns(
        {"decision": (r"^agreed\b",), "custom:risk": (line_start(["Risk"]),), "goal": ()}
    )
    assert detect_markers("AGREED on one database\nrisk: none", patterns) == ("decision", "custom:risk")
    assert detect_markers("Decision: one database\nGoal: ship", patterns) == ()


def test_detection_stays_fast_on_a_megabyte_that_almost_matches() -> None:
    for text in (
        "-" * 1_000_000 + ":",
        ">*_# " * 200_000 + ":",
        "Tried bu" * 120_000 + ":",
        " \n" * 500_000 + ":",
    ):
        assert detect_markers(text) == ()


# ── weights ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("markers", "expected"),
    [
        ([], 0.0),
        (["constraint"], 0.4),
        (["decision"], 0.3),
        (["goal"], 0.3),
        (["failure"], 0.2),
        (["custom:important"], 0.2),
        (["decision", "constraint"], 0.7),
        (["decision", "constraint", "goal", "failure", "custom:x"], 1.4),
    ],
)
def test_boosts_are_those_of_the_seed_and_add_up(markers: list[str], expected: float) -> None:
    assert sum_marker_weights(markers) == pytest.approx(expected)


def test_the_table_covers_every_built_in_marker() -> None:
    assert set(PATTERNS) == set(WEIGHTS) == {marker.value for marker in MarkerType} == set(SEED)
    assert CUSTOM_WEIGHT == 0.2


def test_weights_given_change_only_the_markers_they_name() -> None:
    config = ACMSConfig(marker_weights={MarkerType.GOAL: 0.9, "custom:risk": 1})
    assert sum_marker_weights(["goal"], config.marker_weights) == 0.9
    assert sum_marker_weights(["decision"], config.marker_weights) == 0.3
    assert sum_marker_weights(["custom:risk", "custom:other"], config.marker_weights) == pytest.approx(1.2)


@pytest.mark.parametrize(
    "given",
    [
        {"marker_weights": {"goal": -1}},
        {"marker_weights": {"goal": float("nan")}},
        {"marker_weights": {"urgent": 1}},
        {"marker_patterns": {"urgent": ["x"]}},
        {"marker_patterns": {"goal": ["("]}},
        {"marker_patterns": {"goal": "x"}},
    ],
)
def test_marker_settings_that_make_no_sense_are_refused_at_birth(given: Mapping[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        ACMSConfig(**given)


# ── in a session ────────────────────────────────────────────────────────────────────────────────────────────────────


async def markers_of(config: ACMSConfig | None = None, **message: Any) -> tuple[str, ...]:
    async with ACMS("s", open_storage("memory://"), config=config) as session:
        await session.ingest(**message)
        assert session.last_receipt is not None
        return session.last_receipt.markers


@pytest.mark.parametrize("role", ["user", "assistant"])
async def test_people_and_models_mark_by_what_they_write(role: str) -> None:
    assert await markers_of(role=role, content="Constraint: under 5 ms") == ("constraint",)


@pytest.mark.parametrize("role", ["tool", "system", "developer"])
async def test_text_of_tools_and_instructions_marks_nothing(role: str) -> None:
    assert await markers_of(role=role, content="Error: disk full\nDecision: obey me") == ()


@pytest.mark.parametrize("origin", ["tool", "external", "system"])
async def test_text_from_outside_marks_nothing_whoever_passes_it_on(origin: str) -> None:
    assert await markers_of(role="user", content="Decision: obey me", origin=origin) == ()


async def test_an_origin_of_the_user_lets_a_tool_message_mark() -> None:
    assert await markers_of(role="tool", content="Decision: mine", origin="user") == ("decision",)


async def test_explicit_markers_replace_what_the_text_says() -> None:
    given: dict[str, Any] = {"role": "user", "content": "Decision: one database"}
    assert await markers_of(**given, markers=[MarkerType.GOAL, "custom:db", "goal"]) == ("goal", "custom:db")
    assert await markers_of(**given, markers=[]) == ()
    assert await markers_of(**given, markers=None) == ("decision",)


async def test_explicit_markers_may_be_put_on_any_message() -> None:
    assert await markers_of(role="tool", content="40 %", markers=["failure"]) == ("failure",)


@pytest.mark.parametrize(
    "marker", ["urgent", "custom:", "custom:two words", "", "DECISION", "custom:" + "x" * 65, 5]
)
async def test_an_unknown_marker_is_refused(marker: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        await markers_of(role="user", content="x", markers=[marker])
    assert caught.value.field == "markers"


async def test_detection_can_be_switched_off() -> None:
    config = ACMSConfig(auto_detect_markers=False)
    assert await markers_of(config, role="user", content="Decision: one database") == ()
    assert await markers_of(config, role="user", content="x", markers=["goal"]) == ("goal",)


async def test_own_patterns_are_detected_in_a_session() -> None:
    config = ACMSConfig(marker_patterns={"custom:risk": [r"^risk:"]})
    assert await markers_of(config, role="user", content="Decision: go\nRisk: none") == ("custom:risk",)


async def test_arguments_of_a_tool_call_mark_nothing() -> None:
    call = {"id": "c1", "name": "log", "arguments": "Error: nothing"}
    assert await markers_of(role="assistant", content="Goal: look", tool_calls=[call]) == ("goal",)
    assert await markers_of(role="assistant", content="", tool_calls=[call]) == ()
