"""Where the bands of a confidence begin, and where scores are noise."""

from __future__ import annotations

import pytest

from acms.log.in_force import Unit
from acms.model import Source
from acms.recall.candidates import Offer
from acms.recall.cutoff import FLOOR, stop, unmarked
from acms.recall.planner import Candidate
from acms.recall.rank import raise_score
from acms.results import POSSIBLE_FROM, STRONG_FROM, Band
from tests.support.logs import entry


@pytest.mark.parametrize(
    ("confidence", "band"),
    [
        (0.0, Band.NONE),
        (POSSIBLE_FROM - 1e-9, Band.NONE),
        (POSSIBLE_FROM, Band.POSSIBLE),
        (STRONG_FROM - 1e-9, Band.POSSIBLE),
        (STRONG_FROM, Band.STRONG),
        (1.0, Band.STRONG),
    ],
)
def test_a_band_begins_at_its_least_confidence(confidence: float, band: Band) -> None:
    assert Band.of(confidence) is band


def _candidate(version: int, worth: float, boost: float = 0.0) -> Candidate:
    unit = Unit((entry(version),))
    return Candidate(unit, Source.SIMILAR, (1,), 1, worth, boost, raise_score(worth, boost))


def _left(*candidates: Candidate) -> list[int]:
    offered = stop(Offer(past=candidates, current=(), rejected=()))
    assert {choice.rule for choice in offered.rejected} <= {"noise"}
    return [one.unit.version for one in offered.past]


def test_the_surer_the_best_answer_the_more_the_rest_must_be() -> None:
    assert _left(_candidate(1, 1.0), _candidate(2, 0.05), _candidate(3, 0.2)) == [1, 3]
    assert _left(_candidate(1, 0.3), _candidate(2, 0.1), _candidate(3, 0.02)) == [1, 2]
    assert _left(_candidate(1, 0.1), _candidate(2, 0.005)) == [1, 2]
    assert _left() == []


def test_a_marker_does_not_make_noise_of_what_answers() -> None:
    marked = _candidate(1, 0.2, boost=2.0)
    assert unmarked(marked) == pytest.approx(raise_score(0.2, 0.0))
    assert FLOOR * marked.score**2 > _candidate(2, 0.05).score
    assert _left(marked, _candidate(2, 0.05)) == [1, 2]
