"""Where a history starts: on a grid, so that it rarely moves; and what that costs."""

from __future__ import annotations

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from acms.core.caching import SLACK, Prices, best, cost, start, step

TOKENS = st.lists(st.one_of(st.integers(0, 60), st.integers(0, 3000)), min_size=1, max_size=120)
ROOMS = st.integers(1, 9000)
SLACKS = st.sampled_from((0.1, 0.25, 0.5, 0.9, 1.0))


def log(tokens: list[int]) -> tuple[list[int], list[int]]:
    """Return where each message begins, and what it costs with a frame of four tokens."""
    return [0, *accumulate(tokens)][:-1], [one + 4 for one in tokens]


def starts(tokens: list[int], room: int, slack: float, scale: int | None = None) -> list[int]:
    """Return the start of every prompt while a log grows message by message."""
    befores, costs = log(tokens)
    return [start(befores[:end], costs[:end], room, slack, scale=scale) for end in range(1, len(tokens) + 1)]


@given(TOKENS, ROOMS, SLACKS)
def test_what_is_shown_fits_the_room_or_is_the_newest_alone(
    tokens: list[int], room: int, slack: float
) -> None:
    costs = log(tokens)[1]
    for end, first in enumerate(starts(tokens, room, slack), 1):
        assert 0 <= first < end
        assert sum(costs[first:end]) <= room or first == end - 1


@given(TOKENS, ROOMS, SLACKS)
def test_a_start_never_goes_back_while_the_log_grows(tokens: list[int], room: int, slack: float) -> None:
    found = starts(tokens, room, slack)
    assert found == sorted(found)


@given(st.lists(st.integers(0, 400), min_size=1, max_size=150), st.integers(2000, 9000), SLACKS)
def test_a_start_moves_only_when_what_follows_no_longer_fits(
    tokens: list[int], room: int, slack: float
) -> None:
    costs = log(tokens)[1]
    found = starts(tokens, room, slack)
    for end in range(1, len(tokens)):
        if found[end] != found[end - 1]:
            assert sum(costs[found[end - 1] : end + 1]) > room


@given(st.lists(st.integers(1, 200), min_size=1, max_size=200), st.integers(2000, 6000), SLACKS)
def test_moves_are_no_more_than_the_lines_the_log_has_crossed(
    tokens: list[int], room: int, slack: float
) -> None:
    found = starts(tokens, room, slack)
    moves = sum(1 for one, next_one in zip(found, found[1:], strict=False) if one != next_one)
    assert moves <= sum(tokens) // step(room, slack)


@given(st.lists(st.integers(1, 200), min_size=60, max_size=200), st.integers(2000, 6000))
def test_a_move_gives_up_no_more_than_the_slack_and_two_messages(tokens: list[int], room: int) -> None:
    costs = log(tokens)[1]
    found = starts(tokens, room, 0.5)
    for end in range(1, len(tokens)):
        if found[end] != found[end - 1]:
            frames = 4 * (found[end] - found[end - 1])
            assert sum(costs[found[end] : end + 1]) > room - 0.5 * room - frames - 2 * 204


@given(TOKENS, st.integers(0, 4000), ROOMS, SLACKS)
def test_a_start_needs_only_the_part_of_the_log_that_does_not_fit(
    tokens: list[int], skipped: int, room: int, slack: float
) -> None:
    befores, costs = log(tokens)
    whole = start(befores, costs, room, slack)
    reach = next((n for n in range(len(costs), -1, -1) if sum(costs[n:]) > room), 0)
    cut = min(skipped, reach)
    assert cut + start(befores[cut:], costs[cut:], room, slack) == whole


@given(TOKENS, st.integers(3000, 9000), st.integers(-200, 200))
def test_by_the_same_scale_a_room_that_varies_only_chooses_among_the_same_lines(
    tokens: list[int], room: int, other: int
) -> None:
    befores, costs = log(tokens)
    distance = step(10_000, 0.5)
    largest = max(costs)
    for one in (room, room + other):
        first = start(befores, costs, one, 0.5, scale=10_000)
        if first and sum(costs) > one and 2 * largest + 2 * distance < one:
            end = befores[first + 1] if first + 1 < len(befores) else befores[first] + tokens[first]
            assert -(-befores[first] // distance) * distance < max(end, befores[first] + 1)


def test_a_room_for_everything_shows_everything() -> None:
    assert start((), (), 100, 0.5) == 0
    assert start([0, 10], [10, 10], 20, 0.5) == 0
    assert start([0], [500], 20, 0.5) == 0


def test_steps_are_the_same_for_budgets_that_are_nearly_the_same() -> None:
    assert step(8000, 0.5) == step(8192, 0.5) - 512 == 3584
    assert step(7200, 0.5) == step(8100, 0.5)
    assert step(1, 0.1) == 1
    assert all(0.8 * 0.3 * scale <= step(scale, 0.3) <= 0.3 * scale for scale in range(200, 9000, 7))


def test_the_best_slack_is_where_the_cost_is_least() -> None:
    for prices in (Prices(), Prices(write=1.25), Prices(read=0.5)):
        for turn in (80, 300, 900):
            found = best(turn, 8000, prices)
            least = cost(found, turn, 8000, prices)
            assert all(least <= cost(other / 100, turn, 8000, prices) + 1e-9 for other in range(5, 101))


def test_the_default_slack_is_near_the_best_for_turns_of_many_sizes() -> None:
    for prices in (Prices(), Prices(write=1.25)):
        for turn in (0.025, 0.05, 0.1, 0.2, 0.4):
            least = cost(best(turn, 1, prices), turn, 1, prices)
            assert cost(SLACK, turn, 1, prices) <= 1.25 * least
