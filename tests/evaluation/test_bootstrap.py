"""Intervals: they cover what they claim, repeat with their seed, and say nothing they cannot know."""

from __future__ import annotations

import numpy as np
import pytest

from acms import ValidationError
from acms_eval.bootstrap import difference_interval, draw_weights, mean_interval


def test_the_same_seed_gives_the_same_interval_and_another_one_does_not() -> None:
    values = np.random.default_rng(7).uniform(size=30)
    clusters = list("abc" * 10)
    assert mean_interval(values, clusters, seed=3) == mean_interval(values, clusters, seed=3)
    assert mean_interval(values, clusters, seed=3) != mean_interval(values, clusters, seed=4)


def test_every_resample_draws_whole_conversations_worth_of_questions() -> None:
    clusters = ["a"] * 4 + ["b"] * 4
    drawn = draw_weights(clusters, seed=1, rounds=500)
    assert drawn.shape == (500, 8)
    assert np.allclose(drawn.sum(axis=1), 1)
    share_of_a = drawn[:, :4].sum(axis=1)
    assert set(np.round(share_of_a, 6)) == {0.0, 0.5, 1.0}  # none, one or both of the two draws
    assert np.allclose(drawn.mean(axis=0), 1 / 8, atol=0.02)


def test_values_that_are_all_alike_have_no_spread() -> None:
    found = mean_interval([0.5, 0.5, 0.5], ["a", "b", "b"])
    assert (found.mean, found.low, found.high, found.count) == (0.5, 0.5, 0.5, 3)


def test_a_single_question_is_its_own_interval() -> None:
    found = mean_interval([0.25], ["a"])
    assert (found.mean, found.low, found.high) == (0.25, 0.25, 0.25)


def test_one_conversation_still_varies_by_its_questions() -> None:
    found = mean_interval([0.0, 1.0] * 20, ["a"] * 40)
    assert 0.3 < found.low < 0.4 < found.mean == 0.5 < found.high < 0.7


def test_questions_that_stand_and_fall_together_make_the_interval_wider() -> None:
    values = [0.0] * 20 + [1.0] * 20
    apart = mean_interval(values, [str(place) for place in range(40)])
    together = mean_interval(values, ["a"] * 20 + ["b"] * 20)
    assert together.high - together.low > 1.5 * (apart.high - apart.low)


def test_nineteen_of_twenty_intervals_cover_the_true_mean() -> None:
    random = np.random.default_rng(0)
    clusters = [place // 5 for place in range(200)]  # 40 conversations of 5 questions
    covered = 0
    for seed in range(100):
        level = np.repeat(random.normal(0.5, 0.1, 40), 5)
        found = mean_interval(level + random.normal(0, 0.2, 200), clusters, seed=seed, rounds=500)
        covered += found.low <= 0.5 <= found.high
    assert 0.90 <= covered / 100 <= 0.99


def test_a_margin_is_sharper_than_the_two_means_it_lies_between() -> None:
    random = np.random.default_rng(1)
    hard = random.uniform(0, 1, 100)
    theirs, ours = hard * 0.8, hard * 0.8 + 0.1
    clusters = [place // 20 for place in range(100)]
    margin = mean_interval(ours - theirs, clusters)
    assert margin.low == pytest.approx(margin.high) == pytest.approx(0.1)
    assert mean_interval(ours, clusters).high - mean_interval(ours, clusters).low > 0.05


def test_the_difference_of_two_sets_of_data_is_wider_than_either() -> None:
    random = np.random.default_rng(2)
    first, second = random.normal(0.3, 0.2, 100), random.normal(0.1, 0.2, 60)
    one, other = [place // 20 for place in range(100)], [place // 20 for place in range(60)]
    found = difference_interval((first, one), (second, other))
    assert found.mean == pytest.approx(first.mean() - second.mean())
    assert found.low < found.mean < found.high
    assert found.count == 60
    alone = mean_interval(second, other)
    assert found.high - found.low > alone.high - alone.low


@pytest.mark.parametrize(
    ("values", "clusters", "field"), [([], [], "clusters"), ([1.0], ["a", "b"], "values")]
)
def test_what_makes_no_mean_is_refused(values: list[float], clusters: list[str], field: str) -> None:
    with pytest.raises(ValidationError) as failed:
        mean_interval(values, clusters)
    assert failed.value.field == field
