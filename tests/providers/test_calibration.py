from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acms import ValidationError
from acms.codecs import Calibration
from acms.providers.codecs.calibration import ADDED, KEPT, STARTS

REPORTS = st.lists(st.tuples(st.integers(1, 400_000), st.floats(0.5, 4.0)), max_size=80)


def calibrate_from(reports: list[tuple[int, float]], **how: float) -> Calibration:
    calibration = Calibration(1.5, **how)
    for raw, ratio in reports:
        calibration.observe(raw, max(1, round(raw * ratio)))
    return calibration


@given(REPORTS, st.integers(0, 1_000_000), st.sampled_from([0.5, 0.9, 0.99]))
def test_the_limit_is_the_exact_inverse_of_the_bound(
    reports: list[tuple[int, float]], budget: int, quantile: float
) -> None:
    calibration = calibrate_from(reports, quantile=quantile)
    limit = calibration.limit(budget)
    assert calibration.upper(limit) <= budget < calibration.upper(limit + 1)


@given(REPORTS, st.integers(0, 600_000), st.integers(0, 600_000))
def test_more_raw_tokens_never_have_a_lower_bound(
    reports: list[tuple[int, float]], one: int, other: int
) -> None:
    calibration = calibrate_from(reports, quantile=0.9)
    assert calibration.upper(min(one, other)) <= calibration.upper(max(one, other))


@given(REPORTS)
def test_until_the_quantile_is_known_no_report_seen_is_above_its_bound(
    reports: list[tuple[int, float]],
) -> None:
    calibration = calibrate_from(reports)  # 0.99 needs 99 reports of one band
    for raw, ratio in reports:
        assert max(1, round(raw * ratio)) <= calibration.upper(raw)
        assert calibration.upper(raw) >= 1.5 * raw


@pytest.mark.parametrize("quantile", [0.9, 0.95, 0.99])
@pytest.mark.parametrize("seed", range(3))
def test_the_bound_covers_its_quantile_of_requests_held_out(quantile: float, seed: int) -> None:
    # Ratios of two kinds of text, one of them rare and dear; sizes over the whole of every band. The guarantee is on
    # the mean over calibrations, so a number of them is made; with margin 0, which leaves the quantile bare.
    draw = random.Random(seed)

    def request() -> tuple[int, int]:
        raw = int(512 * 8 ** draw.uniform(0, 3))
        ratio = draw.gauss(1.9, 0.1) if draw.random() < 0.1 else draw.gauss(1.3, 0.05)
        return raw, max(1, round(raw * ratio))

    covered = asked = 0
    for _ in range(12):
        calibration = Calibration(1.2, quantile=quantile, margin=0)
        for _ in range(3 * calibration.needed + 30):
            calibration.observe(*request())
        for _ in range(400):
            raw, reported = request()
            asked += 1
            covered += reported <= calibration.upper(raw)
    assert covered / asked >= quantile - 3 * (quantile * (1 - quantile) / 12 / 99) ** 0.5


def test_enough_reports_lower_the_bound_below_a_cautious_default_in_their_band_only() -> None:
    calibration = Calibration(2.0, margin=0)
    assert calibration.needed == 99
    for _ in range(98):
        calibration.observe(10_000, 12_000)
    assert calibration.upper(10_000) == 20_000 + ADDED
    calibration.observe(10_000, 12_000)
    assert calibration.upper(10_000) == 12_000 + ADDED
    assert calibration.upper(2_000) == 4_000 + ADDED
    assert calibration.upper(100_000) == 200_000 + ADDED
    assert calibration.upper(4_096) == 2 * 4_095 + ADDED  # never less than for a smaller request


def test_one_rare_report_does_not_move_the_quantile_of_many() -> None:
    calibration = Calibration(2.0, margin=0)
    for _ in range(300):
        calibration.observe(10_000, 12_000)
    calibration.observe(10_000, 40_000)
    assert calibration.upper(10_000) == 12_000 + ADDED


def test_what_is_added_to_a_tiny_request_does_not_count_as_a_ratio() -> None:
    calibration = Calibration(1.5)
    calibration.observe(4, 4 + ADDED)
    assert calibration.upper(400) == 612 + ADDED
    for _ in range(500):
        calibration.observe(40, 20)  # nor does a small one lower the bound
    assert calibration.upper(400) == 612 + ADDED


def test_nothing_takes_no_tokens() -> None:
    assert Calibration(1.5).upper(0) == 0
    assert Calibration(1.5).limit(0) == 0
    assert Calibration(1.5).limit(ADDED) == 0


def test_memory_is_bounded_and_the_newest_reports_count() -> None:
    calibration = Calibration(2.0, quantile=0.9, margin=0)
    for index in range(2_000):
        calibration.observe(10_000, 30_000 if index < 1_000 else 12_000)
    assert max(map(len, calibration.state()["ratios"])) == KEPT * calibration.needed == 36
    assert calibration.upper(10_000) == 12_000 + ADDED


@given(REPORTS)
def test_what_was_learnt_survives_a_round_trip_through_json(reports: list[tuple[int, float]]) -> None:
    calibration = calibrate_from(reports, quantile=0.9)
    other = Calibration(1.5, quantile=0.9)
    other.restore(json.loads(json.dumps(calibration.state())))
    assert other.state() == calibration.state()
    assert all(other.upper(raw) == calibration.upper(raw) for start in STARTS for raw in (start, start + 77))


def test_reports_from_many_threads_are_all_kept() -> None:
    calibration = Calibration(2.0, margin=0)

    def report(_: int) -> None:
        for _ in range(20):
            calibration.observe(10_000, 12_000)
            limit = calibration.limit(24_000)
            assert limit >= 11_990

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(report, range(16)))
    assert len(calibration.state()["ratios"][2]) == 320


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"default": 0}, "default"),
        ({"default": float("nan")}, "default"),
        ({"default": 1.5, "quantile": 1}, "quantile"),
        ({"default": 1.5, "quantile": 0.1}, "quantile"),
        ({"default": 1.5, "margin": -0.1}, "margin"),
        ({"default": 1.5, "margin": float("inf")}, "margin"),
    ],
)
def test_a_calibration_out_of_range_is_refused(arguments: dict[str, float], field: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Calibration(**arguments)
    assert refused.value.field == field


@pytest.mark.parametrize(("raw", "reported", "field"), [(0, 5, "raw"), (5, 0, "reported"), (-1, 5, "raw")])
def test_a_report_of_nothing_is_refused(raw: int, reported: int, field: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Calibration(1.5).observe(raw, reported)
    assert refused.value.field == field


def test_a_negative_budget_is_refused() -> None:
    with pytest.raises(ValidationError) as refused:
        Calibration(1.5).limit(-1)
    assert refused.value.field == "budget"


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"version": 2, "starts": list(STARTS), "ratios": [[]] * 5},
        {"version": 1, "starts": [0], "ratios": [[]]},
        {"version": 1, "starts": list(STARTS), "ratios": [[], [], [], [], 1.5]},
        {"version": 1, "starts": list(STARTS), "ratios": [[], [], [], [], ["1.5"]]},
        {"version": 1, "starts": list(STARTS), "ratios": [[], [], [], [], [float("nan")]]},
    ],
)
def test_a_state_of_another_kind_is_refused_and_changes_nothing(state: dict[str, object]) -> None:
    calibration = calibrate_from([(10_000, 1.9)])
    before = calibration.state()
    with pytest.raises(ValidationError) as refused:
        calibration.restore(state)
    assert refused.value.field == "state"
    assert calibration.state() == before
