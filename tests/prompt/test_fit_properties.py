"""Whatever a prompt is made of and whatever it may cost: what a fit promises holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, count
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acms import FitError, Role, ToolCall, ToolResult
from acms.codecs import Tool
from acms.plan.nodes import (
    ComposedMessage,
    FittedPrompt,
    KeptEnd,
    MessageGroup,
    NeedSummary,
    Node,
    Omit,
    Piece,
    Scope,
    Strategy,
    Summarise,
    Truncate,
    Window,
)
from acms.prompt.fit import fit_prompt
from acms.prompt.truncate import MARK
from acms.prompt_types import PromptMessage
from tests.support.toy import Toy, numbered_words, text_message

SIZES = st.one_of(st.integers(0, 6), st.integers(0, 40))
LIMITS = st.one_of(st.integers(0, 60), st.integers(0, 400), st.none())
ANSWERS = st.lists(
    st.one_of(st.none(), st.just("  "), st.integers(1, 30).map(lambda size: numbered_words(size, "s"))),
    max_size=4,
)


def generated_strategies(*, slack: float | None = None) -> st.SearchStrategy[Strategy | None]:
    caps = st.one_of(st.none(), st.integers(0, 60))
    return st.one_of(
        st.none(),
        st.just(Omit()),
        st.builds(Truncate, caps, st.sampled_from(KeptEnd)),
        st.builds(
            Window,
            slack=st.just(slack) if slack is not None else st.sampled_from([0.0, 0.25, 0.5]),
        ),
        st.builds(
            Summarise,
            st.just("sum"),
            st.sampled_from(["", "kept", numbered_words(9, "k")]),
            st.integers(0, 6),
            st.integers(1, 12),
            st.sampled_from([Role.SYSTEM, Role.USER]),
        ),
    )


@st.composite
def generated_units(draw: st.DrawFn, numbers: Iterator[int]) -> MessageGroup:
    number = next(numbers)
    if draw(st.integers(0, 3)):
        role = draw(st.sampled_from([Role.USER, Role.ASSISTANT, Role.SYSTEM]))
        return MessageGroup(
            (text_message(numbered_words(draw(SIZES), f"e{number}-"), role, sources=(f"e{number}",)),)
        )
    ids = [f"c{place}" for place in range(draw(st.integers(1, 3)))]
    call = PromptMessage(
        role=Role.ASSISTANT, parts=tuple(ToolCall(id, "look") for id in ids), sources=(f"e{number}",)
    )
    answers = [
        PromptMessage(
            role=Role.TOOL,
            parts=(ToolResult(id, numbered_words(draw(SIZES), f"e{number}-")),),
            sources=(f"e{number}-{id}",),
        )
        for id in ids
    ]
    return MessageGroup((call, *answers))


@st.composite
def generated_compositions(draw: st.DrawFn, numbers: Iterator[int]) -> ComposedMessage:
    number = next(numbers)
    pieces = tuple(
        Piece(
            text,
            f"p{number}-{place}",
            float(draw(st.integers(0, 2))),
            tokens=draw(st.sampled_from([None, len(text.split())])),
        )
        for place, text in enumerate(
            numbered_words(draw(SIZES), f"p{number}-{place}-") for place in range(draw(st.integers(0, 5)))
        )
    )
    return ComposedMessage(
        Role.USER, pieces, draw(st.sampled_from(["", "open\n"])), "\n", draw(st.sampled_from(["", "\nclose"]))
    )


@st.composite
def generated_scopes(
    draw: st.DrawFn,
    numbers: Iterator[int],
    id: str,
    kinds: st.SearchStrategy[Strategy | None],
    depth: int,
    *,
    bounds: bool,
) -> Scope:
    children: list[Node] = []
    for place in range(draw(st.integers(0, 4))):
        kind = draw(st.integers(0, 5 if depth else 3))
        if kind > 3:
            children.append(draw(generated_scopes(numbers, f"s{place}", kinds, depth - 1, bounds=bounds)))
        elif kind == 3:
            children.append(draw(generated_compositions(numbers)))
        else:
            children += [draw(generated_units(numbers)) for _ in range(draw(st.integers(1, 4)))]
    strategy = draw(kinds)
    if isinstance(strategy, Window | Truncate) and children and draw(st.booleans()):
        befores = accumulate([draw(st.integers(0, 12)) for _ in children])
        children = [
            node._replace(before=before) if isinstance(node, MessageGroup) else node
            for node, before in zip(children, befores, strict=True)
        ]
        if isinstance(children[-1], MessageGroup):
            children[-1] = children[-1]._replace(mandatory=True)
    floor = draw(st.integers(0, 30)) if bounds and not draw(st.integers(0, 3)) else 0
    ceiling = draw(st.integers(floor, 80)) if bounds and not draw(st.integers(0, 3)) else None
    return Scope(
        id=id,
        children=tuple(children),
        priority=draw(st.integers(0, 3)),
        strategy=strategy,
        floor=floor,
        ceiling=ceiling,
        moves=draw(st.booleans()),
    )


@st.composite
def generated_trees(
    draw: st.DrawFn, *, bounds: bool = True, slack: float | None = None, sums: bool = True
) -> Scope:
    kinds = generated_strategies(slack=slack)
    if not sums:
        kinds = kinds.filter(lambda one: not isinstance(one, Summarise))
    numbers = count()
    children: list[Node] = []
    for place in range(draw(st.integers(1, 4))):
        children.append(draw(generated_scopes(numbers, f"s{place}", kinds, 2, bounds=bounds)))
        if draw(st.booleans()):
            children.append(draw(generated_units(numbers)))
    return Scope(id="prompt", children=tuple(children))


class Told(NamedTuple):
    """The result of a fit, and its requests for summaries."""

    fitted: FittedPrompt | None
    error: FitError | None
    questions: tuple[NeedSummary, ...]


def run_fit(
    tree: Scope, limit: int | None, answers: Sequence[str | None] = (), tools: Sequence[Tool] = ()
) -> Told:
    waiting = iter(answers)
    questions: list[NeedSummary] = []
    steps = fit_prompt(tree, Toy(primer=1), limit, tools=tools)
    try:
        questions.append(next(steps))
        while True:
            assert len(questions) < 50
            questions.append(steps.send(next(waiting, None)))
    except StopIteration as end:
        return Told(end.value, None, tuple(questions))
    except FitError as error:
        return Told(None, error, tuple(questions))


class Where(NamedTuple):
    """A unit of a tree and the scopes around it, the outermost first."""

    node: MessageGroup | ComposedMessage
    around: tuple[Scope, ...]

    @property
    def path(self) -> str:
        return "/".join(one.id for one in self.around)


def iterate_leaves(scope: Scope, around: tuple[Scope, ...] = ()) -> Iterator[Where]:
    around = (*around, scope)
    for node in scope.children:
        if isinstance(node, Scope):
            yield from iterate_leaves(node, around)
        else:
            yield Where(node, around)


def is_part_of(shorter: str, text: str) -> bool:
    """Return whether a text is another one with something cut off, and a mark where it was."""
    if shorter == text:
        return True
    head, mark, tail = shorter.partition(MARK)
    return bool(mark) and text.startswith(head.rstrip()) and text.endswith(tail.lstrip())


@given(generated_trees(), LIMITS, ANSWERS)
def test_a_fitted_prompt_is_within_its_limit_and_accounts_for_all(
    tree: Scope, limit: int | None, answers: list[str | None]
) -> None:
    told = run_fit(tree, limit, answers)
    assert (
        run_fit(tree, limit, answers) == told or told.error is not None
    )  # errors are equal by what they say only
    codec = Toy(primer=1)
    if told.error is not None:
        assert told.error.over > 0
        assert str(run_fit(tree, limit, answers).error) == str(told.error)
        return
    found = told.fitted
    assert found is not None
    assert limit is None or found.tokens <= limit
    assert found.tokens == codec.base() + sum(codec.cost(one.message) for one in found.placed)
    assert all(one.tokens == codec.cost(one.message) for one in found.placed)
    assert all(step.after < step.before for step in found.steps)
    units = list(iterate_leaves(tree))
    left = {id: one for one in found.omissions for id in one.ids}
    assert all(one.rule and one.reason and one.tokens >= 0 for one in found.omissions)
    shown = iter([one for one in found.placed if one.rendition != "summary"])
    place = next(shown, None)
    for where in units:  # in order: what is shown comes in the order of the tree
        node = where.node
        if isinstance(node, ComposedMessage):
            texts = {piece.id: piece.text for piece in node.pieces}
            pieces = (
                place.pieces if place is not None and place.pieces and place.pieces[0].id in texts else ()
            )
            for piece in pieces:
                assert is_part_of(piece.text, texts[piece.id])
                assert piece.text == texts[piece.id] or not left[piece.id].gone
            assert {id for id in texts if id in left and left[id].gone} == texts.keys() - {
                one.id for one in pieces
            }
            place = next(shown, None) if pieces else place
            continue
        ids = [id for message in node.messages for id in message.sources]
        whole = place is not None and place.message.sources == node.messages[0].sources
        if not whole:
            assert all(left[id].gone for id in ids)
            continue
        number = place.group if place is not None else 0
        for message in node.messages:
            assert place is not None
            assert place.group == number  # nothing comes between
            assert place.path == where.path
            assert place.message.role is message.role
            if place.rendition == "whole":
                assert place.message is message
            else:
                assert place.rendition == "cut"
                assert not left[message.sources[0]].gone
                for new, old in zip(place.message.parts, message.parts, strict=True):
                    if isinstance(old, ToolCall):
                        assert new == old
                    text, other = (
                        getattr(one, "text", None) or getattr(one, "output", "") for one in (new, old)
                    )
                    assert is_part_of(text, other)
            place = next(shown, None)
    assert place is None


@given(generated_trees(), LIMITS, ANSWERS)
def test_required_content_is_never_cut_and_bounds_hold(
    tree: Scope, limit: int | None, answers: list[str | None]
) -> None:
    told = run_fit(tree, limit, answers)
    if told.fitted is None:
        return
    whole = {id for one in told.fitted.placed if one.rendition == "whole" for id in one.message.sources}
    for where in iterate_leaves(tree):
        if isinstance(where.node, MessageGroup) and all(
            one.strategy is None and one.ceiling is None for one in where.around
        ):
            assert whole.issuperset(id for message in where.node.messages for id in message.sources)
    codec = Toy()
    full: dict[str, int] = {}
    around: dict[str, tuple[Scope, ...]] = {}
    for where in iterate_leaves(tree):
        messages = where.node.messages if isinstance(where.node, MessageGroup) else ()
        for depth in range(len(where.around)):
            path = "/".join(one.id for one in where.around[: depth + 1])
            full[path] = full.get(path, 0) + sum(map(codec.cost, messages))
            around[path] = where.around[: depth + 1]
    used = dict.fromkeys(full, 0)
    for one in told.fitted.placed:
        for path in used:
            if one.path == path or one.path.startswith(path + "/"):
                used[path] += one.tokens
    for path, tokens in used.items():
        scope = around[path][-1]
        if scope.ceiling is not None:
            assert tokens <= scope.ceiling
        cap = scope.strategy.tokens if isinstance(scope.strategy, Truncate) else None
        if cap is not None and not any(one.floor for one in (*around[path], *_iterate_scopes(scope))):
            assert (
                tokens <= cap
            )  # what cannot be divided is kept whole for a floor, and goes over the cap then
        inside = (*around[path][:-1], *_iterate_scopes(scope))
        if all(one.ceiling is None and getattr(one.strategy, "tokens", None) is None for one in inside):
            caps = [
                cap for cap in (scope.ceiling, getattr(scope.strategy, "tokens", None)) if cap is not None
            ]
            assert tokens >= min([scope.floor, full[path], *caps])


def _iterate_scopes(scope: Scope) -> Iterator[Scope]:
    for node in scope.children:
        if isinstance(node, Scope):
            yield node
            yield from _iterate_scopes(node)


@given(generated_trees(bounds=False, slack=0.0, sums=False), st.integers(0, 200), st.integers(1, 80))
def test_a_higher_limit_never_shows_less_of_what_is_kept_longest(tree: Scope, limit: int, more: int) -> None:
    less, most = run_fit(tree, limit).fitted, run_fit(tree, limit + more).fitted
    if less is None:
        return
    assert most is not None
    for first in range(4):
        paths = {
            where.path
            for where in iterate_leaves(tree)
            if max([one.priority for one in where.around if one.strategy is not None], default=0) <= first
        }
        assert sum(one.tokens for one in less.placed if one.path in paths) <= sum(
            one.tokens for one in most.placed if one.path in paths
        )


@given(generated_trees(), st.integers(0, 300), ANSWERS)
def test_a_second_fit_of_the_same_asks_nothing(tree: Scope, limit: int, answers: list[str | None]) -> None:
    told = run_fit(tree, limit, answers)
    if told.fitted is None or None in answers or len(told.questions) > len(answers):
        return
    scopes = [one for one in _iterate_scopes(tree) if isinstance(one.strategy, Summarise)]
    if len(scopes) != 1 or not told.fitted.summaries:
        return
    ((_, text, covers),) = told.fitted.summaries
    again = run_fit(_with_summary(tree, text, covers), limit)
    assert again.questions == ()
    assert again.fitted is not None
    assert [one.message for one in again.fitted.placed] == [one.message for one in told.fitted.placed]


def _with_summary(scope: Scope, text: str, covers: int) -> Scope:
    strategy = scope.strategy
    if isinstance(strategy, Summarise):
        strategy = strategy._replace(text=text, covers=covers)
    children = tuple(
        _with_summary(node, text, covers) if isinstance(node, Scope) else node for node in scope.children
    )
    return replace(scope, children=children, strategy=strategy)


@pytest.mark.parametrize("size", [100, 1_000])
def test_a_message_is_counted_once(size: int) -> None:
    codec = Toy()
    history = Scope(
        id="history",
        priority=3,
        strategy=Truncate(),
        children=tuple(
            MessageGroup((text_message(numbered_words(5, f"m{number}-")),)) for number in range(size)
        ),
    )
    pins = Scope(id="pins", priority=1, strategy=Omit(), children=(MessageGroup((text_message("pin"),)),))
    tree = Scope(
        id="prompt", children=(pins, Scope(id="outer", priority=2, strategy=Omit(), children=(history,)))
    )
    steps = fit_prompt(tree, codec, size)
    with pytest.raises(StopIteration):
        next(steps)
    assert codec.costed <= size + 40
