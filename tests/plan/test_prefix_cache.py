"""Where a history starts: on a grid, so that it rarely moves; what that costs; what two prompts share, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from itertools import accumulate, pairwise
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from acms import Role
from acms.codecs import Tool, Usage
from acms.plan.prefix_cache import SLACK, find_start, grid_step
from acms.ports import Codec
from acms.prompt.cache_forecast import describe_cache_mismatch, find_hoisted_roles, predict_cache
from acms.prompt.manifest import Manifest, Sent
from acms.prompt_types import CacheMark, PromptMessage
from tests.support.cache_costs import Prices, best_slack, cost_per_turn

TOKENS = st.lists(st.one_of(st.integers(0, 60), st.integers(0, 3000)), min_size=1, max_size=120)
EVEN = st.lists(st.integers(40, 160), min_size=120, max_size=200)
ROOMS = st.integers(1, 9000)
STEPS = st.sampled_from((1, 100, 500, 2000, 9000))


def message_starts(tokens: list[int]) -> tuple[list[int], list[int]]:
    """Return where each message begins, and its cost with a frame of four tokens."""
    return [0, *accumulate(tokens)][:-1], [one + 4 for one in tokens]


def prompt_starts(tokens: list[int], room: int, step: int) -> list[int]:
    """Return the start of every prompt while a log grows message by message."""
    befores, costs = message_starts(tokens)
    return [find_start(befores[:end], costs[:end], room, step) for end in range(1, len(tokens) + 1)]


@given(TOKENS, ROOMS, STEPS)
def test_what_is_shown_fits_the_room_or_is_the_newest_alone(tokens: list[int], room: int, step: int) -> None:
    costs = message_starts(tokens)[1]
    for end, first in enumerate(prompt_starts(tokens, room, step), 1):
        assert 0 <= first < end
        assert sum(costs[first:end]) <= room or first == end - 1


@given(EVEN, st.integers(3000, 9000), st.sampled_from((500, 1000, 2000)))
def test_a_start_moves_forward_only_and_from_line_to_line(tokens: list[int], room: int, step: int) -> None:
    befores = message_starts(tokens)[0]
    found = prompt_starts(tokens, room, step)
    assert found == sorted(found)
    for start in found:
        assert start == 0 or befores[start] // step > befores[start - 1] // step


@given(EVEN, st.integers(3000, 9000), st.sampled_from((500, 1000, 2000)))
def test_a_start_moves_when_what_follows_no_longer_fits_and_by_no_more_than_a_step(
    tokens: list[int], room: int, step: int
) -> None:
    costs = message_starts(tokens)[1]
    found = prompt_starts(tokens, room, step)
    for end, (one, other) in enumerate(pairwise(found), 1):
        if other > one:
            assert sum(costs[one : end + 1]) > room
            assert sum(costs[other : end + 1]) > room - 1.15 * step - 2 * 164


@given(TOKENS, st.integers(0, 4000), ROOMS, STEPS)
def test_a_start_needs_only_the_part_of_the_log_that_does_not_fit(
    tokens: list[int], skipped: int, room: int, step: int
) -> None:
    befores, costs = message_starts(tokens)
    whole = find_start(befores, costs, room, step)
    reach = next((n for n in range(len(costs), -1, -1) if sum(costs[n:]) > room), 0)
    cut = min(skipped, reach)
    assert cut + find_start(befores[cut:], costs[cut:], room, step) == whole


@given(EVEN, st.integers(4000, 9000), st.integers(1, 200))
def test_a_room_that_varies_a_little_changes_a_start_by_one_line(
    tokens: list[int], room: int, less: int
) -> None:
    befores = message_starts(tokens)[0]
    for one, other in zip(
        prompt_starts(tokens, room, 1000), prompt_starts(tokens, room - less, 1000), strict=True
    ):
        if one:
            assert 0 <= befores[other] - befores[one] <= 1000 + 160


def test_a_room_for_everything_shows_everything() -> None:
    assert find_start((), (), 100, 50) == 0
    assert find_start([0, 10], [10, 10], 20, 5) == 0
    assert find_start([0], [500], 20, 5) == 0


def test_a_start_without_a_grid_is_the_oldest_message_that_fits() -> None:
    assert find_start([0, 10, 20, 30], [10, 10, 10, 10], 25, 0) == 2


def test_steps_are_the_same_for_budgets_that_are_nearly_the_same() -> None:
    assert grid_step(8000, 0.5) == grid_step(8192, 0.5) - 512 == 3584
    assert grid_step(7200, 0.5) == grid_step(8100, 0.5)
    assert grid_step(1, 0.1) == 1
    assert all(0.8 * 0.3 * scale <= grid_step(scale, 0.3) <= 0.3 * scale for scale in range(200, 9000, 7))


def test_the_best_slack_is_where_the_cost_is_least() -> None:
    for prices in (Prices(), Prices(write=1.25), Prices(read=0.5)):
        for turn in (80, 300, 900):
            found = best_slack(turn, 8000, prices)
            least = cost_per_turn(found, turn, 8000, prices)
            assert all(
                least <= cost_per_turn(other / 100, turn, 8000, prices) + 1e-9 for other in range(5, 101)
            )


def test_the_default_slack_is_near_the_best_for_turns_of_many_sizes() -> None:
    for prices in (Prices(), Prices(write=1.25)):
        for turn in (0.025, 0.05, 0.1, 0.2, 0.3):
            least = cost_per_turn(best_slack(turn, 1, prices), turn, 1, prices)
            assert cost_per_turn(SLACK, turn, 1, prices) <= 1.25 * least


# ── what two prompts share ──────────────────────────────────────────────────────────────────────────────────────────


class Plain:
    """As much of a codec as a prediction asks: ten tokens beside the messages, a cache that reads from 20 tokens on."""

    def __init__(self, *front: Role, marks_only: bool = False) -> None:
        self._front = front
        self.marks_only = marks_only
        self.implicit_mark = self.marks_history = False

    def normal(self, messages: Sequence[PromptMessage]) -> tuple[PromptMessage, ...]:
        return tuple(sorted(messages, key=lambda one: one.role not in self._front))

    def base(self, tools: Sequence[Tool] = ()) -> int:
        return 10 + len(tools)

    def cached(self, tokens: int) -> int:
        return tokens if tokens >= 20 else 0


PLAIN = cast("Codec", Plain())
FRONT = cast("Codec", Plain(Role.SYSTEM))


def sent_message(text: str, path: str = "prompt/history", *, role: Role = Role.USER, **more: object) -> Sent:
    """Return a message of seven tokens."""
    known = sha256(f"{role} {text}".encode()).hexdigest()[:32]
    return Sent(path, role, known, 7, **more)  # pyright: ignore[reportArgumentType]


def sent_messages(first: int, last: int) -> tuple[Sent, ...]:
    """Return the messages of a log from one version to another."""
    return tuple(sent_message(f"m{n}", first=n, last=n) for n in range(first, last + 1))


def manifest_of(*messages: Sent) -> Manifest:
    """Return the manifest of a prompt."""
    return Manifest(
        codec="plain", model="one", tokens=10 + 7 * len(messages), upper_bound=0, messages=messages
    )


RULES = sent_message("Be kind.", "prompt/system", role=Role.SYSTEM)


def recalled_message(text: str) -> Sent:
    return sent_message(text, "prompt/recall", moves=True, rendition="pieces", pieces=("m1",))


def test_without_an_earlier_prompt_nothing_is_predicted() -> None:
    found = predict_cache(manifest_of(RULES), None, PLAIN, key="k")
    assert (found.predicted_tokens, found.first_change, found.key) == (0, None, "k")
    assert found.reason == "there is no earlier prompt to compare with"


def test_a_prompt_that_only_grew_is_read_from_the_cache_as_far_as_it_went() -> None:
    found = predict_cache(
        manifest_of(RULES, *sent_messages(1, 4)), manifest_of(RULES, *sent_messages(1, 3)), PLAIN
    )
    assert (found.predicted_tokens, found.shared_tokens, found.first_change) == (38, 38, None)
    assert found.reason == "the earlier prompt is the beginning of this one, one message more"
    assert predict_cache(manifest_of(RULES), manifest_of(RULES), PLAIN).reason == "nothing changed"
    assert (
        predict_cache(manifest_of(RULES), manifest_of(RULES), PLAIN).predicted_tokens == 0
    )  # 17 tokens are too few
    assert predict_cache(manifest_of(RULES), manifest_of(RULES), PLAIN).shared_tokens == 17


def test_what_was_recalled_changes_every_turn_and_nothing_before_it_does() -> None:
    old = manifest_of(RULES, *sent_messages(1, 3), recalled_message("old"))
    found = predict_cache(manifest_of(RULES, *sent_messages(1, 4), recalled_message("new")), old, PLAIN)
    assert found.predicted_tokens == 38
    assert found.first_change is not None
    assert (found.first_change.index, found.first_change.role) == (4, Role.USER)
    assert found.reason.startswith("what was recalled stood here")


def test_a_provider_that_reads_up_to_marks_reads_no_further() -> None:
    marking = cast("Codec", Plain(marks_only=True))
    old = replace(
        manifest_of(RULES, *sent_messages(1, 3), recalled_message("old")), marks=(CacheMark(messages=4),)
    )
    now = replace(
        manifest_of(RULES, *sent_messages(1, 5), recalled_message("new")), marks=(CacheMark(messages=6),)
    )
    assert predict_cache(now, old, marking).predicted_tokens == 38
    early = replace(old, marks=(CacheMark(messages=2), CacheMark(messages=5)))
    found = predict_cache(now, early, marking)  # the second mark ends behind what was recalled
    assert (found.predicted_tokens, found.shared_tokens) == (24, 38)
    for unmarked in (
        predict_cache(now, replace(old, marks=()), marking),
        predict_cache(replace(now, marks=()), old, marking),
    ):
        assert unmarked.predicted_tokens == 0
        assert unmarked.reason.endswith("give a cache hint")


def test_a_reason_names_what_left_a_window() -> None:
    found = predict_cache(
        manifest_of(RULES, *sent_messages(20, 31)), manifest_of(RULES, *sent_messages(12, 30)), PLAIN
    )
    assert found.shared_tokens == 17
    assert found.reason == "the start of prompt/history moved: v12 to v19 left"
    back = predict_cache(
        manifest_of(RULES, *sent_messages(10, 31)), manifest_of(RULES, *sent_messages(12, 30)), PLAIN
    )
    assert back.reason == "prompt/history: v10 to v11 came in before v12"


def test_a_reason_names_a_summary_and_what_it_stands_for() -> None:
    summary = sent_message("in short", first=51, last=51)
    found = predict_cache(
        manifest_of(RULES, summary, *sent_messages(41, 50)), manifest_of(RULES, *sent_messages(1, 50)), PLAIN
    )
    assert found.reason == "prompt/history: a summary, v51, replaces v1 to v40"
    made = sent_message("in short", rendition="summary")
    assert predict_cache(
        manifest_of(made, *sent_messages(41, 50)), manifest_of(*sent_messages(1, 50)), PLAIN
    ).reason == ("prompt/history: a summary replaces the messages that began here")
    other = sent_message("shorter", rendition="summary")
    assert (
        predict_cache(manifest_of(other), manifest_of(made), PLAIN).reason
        == "prompt/history: the summary changed"
    )


def test_a_reason_names_pins() -> None:
    def pins(text: str, *keys: str) -> Manifest:
        return manifest_of(
            sent_message(text, "prompt/pins", rendition="pieces", pieces=keys), *sent_messages(1, 3)
        )

    assert (
        predict_cache(pins("b", "a", "b"), pins("a", "a", "c"), PLAIN).reason
        == "prompt/pins: b is new, c is gone"
    )
    assert predict_cache(pins("b", "a"), pins("a", "a"), PLAIN).reason == "prompt/pins: the text of a changed"
    assert (
        predict_cache(pins("b", "b", "a"), pins("a", "a", "b"), PLAIN).reason
        == "prompt/pins: their order changed"
    )


def test_a_reason_names_edits_cuts_scopes_and_ends() -> None:
    old = manifest_of(RULES, *sent_messages(1, 3))
    edited = sent_message("other", first=1, last=1)
    cut = sent_message("oth", first=1, last=1, rendition="cut")
    assert predict_cache(manifest_of(RULES, edited), old, PLAIN).reason == "prompt/history: v1 changed"
    assert (
        predict_cache(manifest_of(RULES, cut), old, PLAIN).reason
        == "prompt/history: v1 changed and is now cut"
    )
    assert predict_cache(manifest_of(RULES, sent_message("x", first=9, last=9)), old, PLAIN).reason == (
        "prompt/history: v9 stands where v1 was"
    )
    assert predict_cache(manifest_of(*sent_messages(1, 3)), old, PLAIN).reason == "prompt/system is gone"
    assert predict_cache(
        manifest_of(sent_message("x", "prompt/user"), *sent_messages(1, 3)), old, PLAIN
    ).reason == ("prompt/user stands where prompt/system was")
    ended = predict_cache(manifest_of(RULES), old, PLAIN)
    assert ended.reason == "this prompt ends where the earlier one went on with prompt/history"
    assert ended.first_change is not None
    assert (ended.first_change.index, ended.first_change.role) == (1, None)
    said_twice = predict_cache(
        manifest_of(sent_message("b", "prompt/user")), manifest_of(sent_message("a", "prompt/user")), PLAIN
    )
    assert said_twice.reason == "prompt/user: the text changed"


def test_nothing_is_shared_by_other_tools_or_another_model() -> None:
    old, tool = manifest_of(RULES, *sent_messages(1, 3)), Tool(name="disk")
    found = predict_cache(replace(old, tools=(tool,)), old, PLAIN)
    assert (found.predicted_tokens, found.shared_tokens) == (0, 0)
    assert found.first_change is not None
    assert found.first_change.index == 0
    assert found.reason == "tools come first, and disk is new"
    changed = replace(old, tools=(Tool(name="disk", description="now with words"),))
    assert predict_cache(changed, replace(old, tools=(tool,)), PLAIN).reason.endswith("disk changed")
    assert predict_cache(old, changed, PLAIN).reason.endswith("disk is gone")
    swapped = predict_cache(replace(old, model="two"), old, PLAIN)
    assert swapped.reason == "it was sent to one by plain, this one goes to two by plain"
    assert swapped.predicted_tokens == 0


def test_messages_are_compared_in_the_order_in_which_the_provider_reads_them() -> None:
    late = sent_message("Now be brief.", "prompt/system-2", role=Role.SYSTEM)
    old, new = manifest_of(RULES, *sent_messages(1, 3)), manifest_of(RULES, *sent_messages(1, 3), late)
    assert predict_cache(new, old, PLAIN).first_change is None
    found = predict_cache(new, old, FRONT)
    assert found.shared_tokens == 17
    assert found.first_change is not None
    assert (found.first_change.index, found.first_change.role) == (4, Role.SYSTEM)
    assert found.reason == "prompt/system-2 stands where prompt/history was"
    assert find_hoisted_roles(FRONT.normal) == {Role.SYSTEM}
    assert find_hoisted_roles(PLAIN.normal) == frozenset()


def test_a_prediction_is_held_against_what_the_provider_reports() -> None:
    found = predict_cache(
        manifest_of(RULES, *sent_messages(1, 4)), manifest_of(RULES, *sent_messages(1, 3)), PLAIN
    )
    assert describe_cache_mismatch(found, Usage(input_tokens=45, cached_tokens=38)) == ""
    assert describe_cache_mismatch(found, Usage(input_tokens=45, cached_tokens=40)) == ""
    assert describe_cache_mismatch(found, Usage(input_tokens=45, cached_tokens=20)).startswith(
        "20 of the 38 tokens"
    )
    assert "expired" in describe_cache_mismatch(found, Usage(input_tokens=45))


@given(
    st.lists(st.integers(0, 3), max_size=8),
    st.lists(st.integers(0, 3), max_size=8),
    st.sampled_from((PLAIN, FRONT)),
)
def test_what_is_shared_is_the_longest_common_beginning(old: list[int], new: list[int], codec: Codec) -> None:
    def made(numbers: list[int]) -> Manifest:
        return manifest_of(
            *[sent_message(str(n), role=Role.SYSTEM if n == 3 else Role.USER) for n in numbers]
        )

    def read(numbers: list[int]) -> list[int]:
        return sorted(numbers, key=lambda n: n != 3) if codec is FRONT else numbers

    found = predict_cache(made(new), made(old), codec)
    same = 0
    for one, other in zip(read(old), read(new), strict=False):
        if one != other:
            break
        same += 1
    assert found.shared_tokens == 10 + 7 * same
    assert (found.first_change is None) == (same == len(old))
    assert found.reason
