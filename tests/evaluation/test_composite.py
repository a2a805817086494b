"""One figure over the scenarios, by their weights."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from acms import ValidationError
from acms_eval import WEIGHTS, Probe, Recalled, Report, composite, score

PROBE = Probe(question="Which framework?", expected=("FastAPI",), forbidden=("Flask",), after=0)
RIGHT = score(PROBE, [Recalled(text="FastAPI", score=1.0)])
OUTDATED = score(PROBE, [Recalled(text="Flask", score=1.0), Recalled(text="FastAPI", score=0.5)])
WRONG = score(PROBE, [])


def _make_report(name: str, *scores: object) -> Report:
    return Report(
        system="acms",
        scenario=f"{name}-200-0",
        turns=200,
        budget=500,
        scores=tuple(scores),  # type: ignore[arg-type]
        tell_seconds=0.0,
    )


def _full_reports() -> list[Report]:
    return [_make_report(name, RIGHT) for name in WEIGHTS]


def test_the_weights_are_those_of_the_seed() -> None:
    assert dict(WEIGHTS) == {
        "decision_tracking": 1.0,
        "constraint_awareness": 1.2,
        "failure_memory": 1.0,
        "multi_fact_tracking": 1.5,
        "goal_tracking": 0.8,
        "unmarked_facts": 1.5,
        "fact_correction": 1.3,
        "high_density": 1.5,
    }


def test_every_answer_right_is_one_and_none_is_zero() -> None:
    assert composite(_full_reports()).score == 1.0
    assert composite([_make_report(name, WRONG) for name in WEIGHTS]).score == 0.0


def test_a_scenario_counts_by_its_weight_and_reports_of_several_seeds_together() -> None:
    reports = [one for one in _full_reports() if one.kind != "high_density"]
    reports += [_make_report("high_density", RIGHT, WRONG), _make_report("high_density", WRONG, WRONG)]
    found = composite(reports)
    assert found.score == pytest.approx(1 - 1.5 * 0.75 / 9.8)
    part = next(part for part in found.parts if part.scenario == "high_density")
    assert (part.score, part.probes, part.weight) == (0.25, 4, 1.5)


def test_an_answer_below_what_is_no_longer_so_counts_as_it_is_shown() -> None:
    reports = [one for one in _full_reports() if one.kind != "fact_correction"]
    assert composite([*reports, _make_report("fact_correction", OUTDATED)]).score == 1.0


def test_other_scenarios_do_not_count() -> None:
    assert composite([*_full_reports(), _make_report("noise_injection", WRONG)]).score == 1.0


def test_a_missing_scenario_and_a_second_system_are_refused() -> None:
    with pytest.raises(ValidationError, match="lack decision_tracking"):
        composite(_full_reports()[1:])
    with pytest.raises(ValidationError, match="lack"):
        composite([])
    with pytest.raises(ValidationError, match="of one system"):
        composite([*_full_reports(), replace(_full_reports()[0], system="other")])


def test_it_is_json_with_its_parts() -> None:
    document = json.loads(composite(_full_reports()).to_json())
    assert document["score"] == 1.0
    assert [part["scenario"] for part in document["parts"]] == list(WEIGHTS)
