"""Which of the texts of a summary is shown in the room there is."""

from __future__ import annotations

import json

import pytest

from acms import Kind
from acms.log.summary_levels import (
    LEVELS,
    Level,
    choose_level,
    levels_of_summary,
    read_shorter_levels,
    summary_at_level,
    to_json,
)
from tests.support.logs import make_entry

SUMMARY = make_entry(
    9,
    "all of it",
    kind=Kind.SUMMARY,
    tokens=1000,
    data={LEVELS: [{"tokens": 40, "content": "least"}, {"tokens": 200, "content": "some"}]},
)


@pytest.mark.parametrize(
    ("room", "wanted"),
    [(5000, 1000), (1000, 1000), (999, 200), (200, 200), (199, 40), (40, 40), (39, 40), (0, 40)],
)
def test_the_longest_text_that_fits_is_shown_and_the_shortest_where_none_does(room: int, wanted: int) -> None:
    assert choose_level(SUMMARY, room).tokens == wanted


def test_a_summary_without_levels_has_its_content_alone() -> None:
    old = make_entry(9, "all of it", kind=Kind.SUMMARY, tokens=1000)
    assert levels_of_summary(old) == [Level("all of it", 1000)]
    assert summary_at_level(old, choose_level(old, 10)) is old


def test_levels_are_stored_as_json_the_shortest_first() -> None:
    stored = to_json([Level("longer", 9), Level("short", 4)])
    assert read_shorter_levels({LEVELS: json.loads(json.dumps(stored))}) == [
        Level("short", 4),
        Level("longer", 9),
    ]


def test_a_summary_is_shown_under_its_own_id() -> None:
    found = summary_at_level(SUMMARY, choose_level(SUMMARY, 50))
    assert (found.id, found.content, found.tokens) == (SUMMARY.id, "least", 40)
