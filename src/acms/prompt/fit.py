"""Fit: reduce a prompt to its budget, or report why that is impossible.

Sections with a cap are reduced to it first, each as if it were a prompt of its own. Then, while the whole is over the
limit, sections shrink in the order of their priorities, the largest number first, children before parents. Each shrinks
in one step, as far as needed and possible; a section that cannot shrink is skipped. The cost of a message is counted
once, and again only when the message is cut, so the total time is proportional to the number of messages (decision
0037).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from functools import partial
from typing import Any

from acms.errors import FitError
from acms.model import Role
from acms.plan.nodes import (
    Atom,
    Composed,
    Fitted,
    Keep,
    Left,
    NeedSummary,
    Placed,
    Scope,
    Step,
    Truncate,
    Window,
)
from acms.plan.tool_groups import is_placeholder
from acms.ports import Codec, TokenCounter
from acms.prompt.fit_state import LOWEST, Leaf, Section, build_section_tree, compose_message
from acms.prompt.strategies import apply_strategy, cut_mandatory, drop_pieces, name_of_strategy
from acms.prompt_types import PromptMessage, Tool

_place: Any = partial(tuple.__new__, Placed)
_leave: Any = partial(tuple.__new__, Left)


def fit_prompt(
    tree: Scope, codec: Codec, limit: int | None, *, tools: Sequence[Tool] = (), budget: int | None = None
) -> Generator[NeedSummary, str | None, Fitted]:
    """Fit a prompt into `limit` raw tokens, base included; with None, reduce only sections over their ceiling.

    Yield a request for each summary needed, to be answered with a text or None, and return the prompt. Raise `FitError`
    when the required content does not fit. `budget` is the caller's budget, named in the error.
    """
    base = codec.base(tools)
    root = build_section_tree(tree, codec, None if limit is None else max(0, limit - base))
    steps: list[Step] = []
    for section in list(root.sections()):
        section.floor = (
            section.scope.floor if section.allowed is None else min(section.scope.floor, section.allowed)
        )
        if section.allowed is not None:
            yield from _enforce_cap(section, root, base, codec, steps)
    if limit is not None:
        yield from _shrink_to_limit(root, limit - base, root, base, codec, steps)
        if base + root.used > limit:
            raise _build_fit_error(root, root.used + base - limit, limit, budget, codec, tools, steps)
    return _build_fitted(root, base, codec, steps)


def _enforce_cap(
    section: Section, root: Section, base: int, codec: Codec, steps: list[Step]
) -> Generator[NeedSummary, str | None, None]:
    """Hold a section to the tokens it may have, as if it were a prompt of its own."""
    strategy = section.scope.strategy
    if isinstance(strategy, Truncate) and strategy.tokens is not None:
        room = strategy.tokens
        yield from _shrink_to_limit(section, room, root, base, codec, steps, least=section.scope.priority)
        for leaf in section.leaves():  # a cap is one, also for what must stay when there is no cap
            if section.used > room and leaf.section.spare() >= leaf.tokens:
                leaf.leave("truncate", "even cut it did not fit the cap")
    ceiling = section.scope.ceiling
    if ceiling is None or section.used <= ceiling:
        return
    yield from _shrink_to_limit(section, ceiling, root, base, codec, steps)
    if section.used > ceiling:
        before = root.used
        _drop_first(section, ceiling, codec)
        _record_step(steps, section, "ceiling", base + before, base + root.used)
    if section.used > ceiling:
        over = section.used - ceiling
        raise FitError(
            f"{section.path} needs {section.used} tokens, {over} more than its ceiling of {ceiling}",
            budget=ceiling,
            required=section.used,
            where=section.path,
            tried=_describe_steps(steps),
            options=(
                f"raise the ceiling of {section.path} to {section.used}",
                *_suggest_options(section, over),
            ),
        )


def _drop_first(section: Section, ceiling: int, codec: Codec) -> None:
    """Leave whole units out from the start, whatever they are; the last one stays."""
    units = [leaf for leaf in section.leaves() if not leaf.gone]
    for leaf in units:
        if section.used <= ceiling:
            return
        if isinstance(leaf.node, Composed):
            drop_pieces(section, leaf, ceiling, codec)
            if section.used <= ceiling:
                return
        if leaf is not units[-1] and not leaf.mandatory and leaf.section.spare() >= leaf.tokens:
            leaf.leave("ceiling", f"its section may have {ceiling} tokens, and what comes first goes first")


def _shrink_to_limit(
    area: Section,
    room: int,
    root: Section,
    base: int,
    codec: Codec,
    steps: list[Step],
    *,
    least: int | None = None,
) -> Generator[NeedSummary, str | None, None]:
    """Shrink the sections of an area until it costs no more than `room`, or none can shrink."""
    waiting = [one for one in area.sections() if one.scope.strategy is not None]
    if least is not None:
        waiting = [one for one in waiting if one.scope.priority >= least]
    waiting.sort(key=lambda one: -one.scope.priority)
    moving = [one for one in area.sections() if one.moves and one.allowed is not None]
    for place, section in enumerate(waiting):
        over = area.used - room
        reserve = 0
        strategy = section.scope.strategy
        if isinstance(strategy, Window) and strategy.slack and moving:
            reserve = _compute_reserve(section, section.used - over, moving, waiting[:place])
        if over + reserve <= 0:
            continue
        before = root.used
        yield from apply_strategy(section, over + reserve, room, codec)
        _record_step(steps, section, name_of_strategy(section), base + before, base + root.used)
    for section in waiting:
        if area.used > room:
            before = root.used
            cut_mandatory(section, area.used - room, codec)
            _record_step(steps, section, name_of_strategy(section), base + before, base + root.used)


def _compute_reserve(window: Section, room: int, moving: Sequence[Section], done: Sequence[Section]) -> int:
    """Return the tokens to keep free for sections that move: otherwise the window would move whenever they grow.

    This is the number of tokens they may still grow by, limited so that the window keeps half of the tokens it shares
    with them: a ceiling far above the actual use does not justify dropping history.
    """
    used = grows = 0
    for one in moving:
        around = one.parent
        while around is not None and not (around.moves and around.allowed is not None):
            around = around.parent
        if around is None and one is not window and one not in done:
            used += one.used
            grows += max(0, (one.allowed or 0) - one.used)
    return max(0, min(grows, room - (room + used) // 2))


def _record_step(steps: list[Step], section: Section, strategy: str, before: int, after: int) -> None:
    if after != before:
        steps.append(Step(section.path, section.scope.priority, strategy, before, after))


# ── the error ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _build_fit_error(
    root: Section,
    over: int,
    limit: int,
    budget: int | None,
    codec: Codec,
    tools: Sequence[Tool],
    steps: Sequence[Step],
) -> FitError:
    """Build the error: the excess in tokens, the largest section, the steps tried, and suggested remedies."""
    named, needed = (
        (limit, limit + over)
        if budget is None
        else (budget, _compute_required_budget(codec, budget, limit, over, tools))
    )
    own = {section.path: _count_own_tokens(section) for section in root.sections()}
    where = max(own, key=lambda path: own[path])
    offered = codec.base(tools) - codec.base(()) if tools else 0
    if offered > own[where]:
        where = "tools"
    options = [f"raise the budget by {needed - named}", *_suggest_options(root, over)]
    if offered >= over:
        options.append(f"offer fewer tools: they take {offered} tokens")
    return FitError(
        budget=named, required=needed, where=where, tried=_describe_steps(steps), options=tuple(options)
    )


def _compute_required_budget(codec: Codec, budget: int, limit: int, over: int, tools: Sequence[Tool]) -> int:
    """Return a budget whose limit is `over` more: of a bound that has a margin it is more than that more."""
    needed = budget + over
    offered = codec.base(tools) - codec.base(())
    for _ in range(50):
        missing = limit + over - codec.limit(needed, offered)
        if missing <= 0:
            break
        needed += missing
    return needed


def _count_own_tokens(section: Section) -> int:
    """Return the tokens of a section without its subsections."""
    total = sum([part.tokens for part in section.parts if isinstance(part, Leaf)])
    return total + (section.summary.tokens if section.summary is not None else 0)


def _suggest_options(area: Section, over: int) -> Iterator[str]:
    """Yield remedies that would each be enough alone, the largest section first."""
    found = sorted(area.sections(), key=lambda one: (-one.used, one.path))
    for section in found:
        shrinks = any(one.scope.strategy is not None for one in section.sections())
        if section.floor and shrinks and section.used >= over:
            yield f"lower the floor of {section.path} to {max(0, section.used - over)}"
    for section in found:
        own = _count_own_tokens(section)
        if section.parent is None and own >= over:
            yield f"let messages directly in {section.path} shrink, by truncate or omit: they take {own} tokens"
        elif section.parent is not None and own and section.used >= over and not _can_shrink(section):
            yield f"give {section.path} a priority and a strategy: it takes {section.used} tokens"


def _can_shrink(section: Section) -> bool:
    around: Section | None = section
    while around is not None:
        if around.scope.strategy is not None:
            return True
        around = around.parent
    return False


def _describe_steps(steps: Sequence[Step]) -> tuple[str, ...]:
    return tuple(
        [
            f"{step.strategy} of {step.path} (priority {step.priority}): {step.before} → {step.after} tokens"
            for step in steps
        ]
    )


# ── results ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _build_fitted(root: Section, base: int, codec: Codec, steps: Sequence[Step]) -> Fitted:
    placed: list[Placed] = []
    left: list[Left] = []
    summaries: list[tuple[str, str, int]] = []
    _write_section(root, codec.counter, placed, left, summaries)
    return Fitted(tuple(placed), base + root.used, tuple(left), tuple(steps), tuple(summaries))


def _write_section(
    section: Section,
    counter: TokenCounter,
    placed: list[Placed],
    left: list[Left],
    summaries: list[tuple[str, str, int]],
) -> None:
    """Record which content a section shows and which it omits."""
    path, moves = section.path, section.moves
    strategy = section.scope.strategy
    window = isinstance(strategy, Window)
    keeps_end = window or (isinstance(strategy, Truncate) and strategy.keep is Keep.END)
    if keeps_end:
        _write_early(section, path, left, window=window)
    if section.answered:
        summaries.append((getattr(strategy, "id", ""), section.text, section.covers))
    summary = section.summary
    if summary is not None and summary.messages and not summary.gone:
        number = len(placed)
        placed.append(_place((summary.messages[0], path, "summary", summary.tokens, moves, number, (), 0, 0)))
    for part in section.parts:
        if isinstance(part, Section):
            _write_section(part, counter, placed, left, summaries)
            continue
        node = part.node
        if isinstance(node, Composed):
            _write_composed(part, node, path, counter, placed, left, moves=moves)
            continue
        if part.rule:
            lost = part.full - part.tokens
            ids = collect_entry_ids(node.messages) or (path,)
            left.append(_leave((ids, path, part.rule, part.reason, lost, part.gone)))
        if part.gone:
            continue
        if part.messages is None and len(node.messages) == 1:
            one = (
                node.messages[0],
                path,
                "whole",
                part.tokens,
                moves,
                len(placed),
                (),
                node.first,
                node.last,
            )
            placed.append(_place(one))
        else:
            _write_atom(part, node, path, moves=moves, placed=placed)
    if not keeps_end:
        _write_early(section, path, left, window=window)


def _write_composed(
    leaf: Leaf,
    node: Composed,
    path: str,
    counter: TokenCounter,
    placed: list[Placed],
    left: list[Left],
    *,
    moves: bool,
) -> None:
    """Write down which pieces of a composed message are shown and which are not."""
    if leaf.rule:
        left += _list_omitted_pieces(leaf, path, counter)
    if not leaf.gone:
        message = leaf.messages[0] if leaf.messages else compose_message(node, leaf.pieces)
        kind = "cut" if leaf.cut else "pieces"
        placed.append(_place((message, path, kind, leaf.tokens, moves, len(placed), leaf.pieces, 0, 0)))


def _write_early(section: Section, path: str, left: list[Left], *, window: bool) -> None:
    """Record the messages that were never counted, with the tokens of their text where these are known."""
    rule = "window" if window else "truncate"
    reason = "older than all that there is room for" if window else "beyond all that there is room for"
    for atom in section.early:
        messages = atom.messages
        tokens = (
            (messages[0].tokens or 0) if len(messages) == 1 else sum([one.tokens or 0 for one in messages])
        )
        left.append(_leave((collect_entry_ids(messages) or (path,), path, rule, reason, tokens, True)))


def _write_atom(leaf: Leaf, node: Atom, path: str, *, moves: bool, placed: list[Placed]) -> None:
    """Place the messages of a unit that has several, or that was cut."""
    number = len(placed)
    messages = leaf.messages or node.messages
    costs = leaf.costs or leaf.whole or (leaf.full,)
    for index, (message, cost) in enumerate(zip(messages, costs, strict=True)):
        rendition = "whole"
        if message is not node.messages[index]:
            rendition = "cut"
        elif message.role is Role.TOOL and is_placeholder(message):
            rendition = "placeholder"
        placed.append(_place((message, path, rendition, cost, moves, number, (), node.first, node.last)))


def _list_omitted_pieces(leaf: Leaf, path: str, counter: TokenCounter) -> Iterator[Left]:
    """Yield the pieces of a composed message that are not shown, or only in part."""
    node = leaf.node
    shown = {} if leaf.gone else {piece.id: piece.text for piece in leaf.pieces}
    for piece in node.pieces if isinstance(node, Composed) else ():
        text = shown.get(piece.id)
        if text == piece.text:
            continue
        tokens = piece.tokens if piece.tokens is not None else counter.count(piece.text)
        gone = text is None
        told = (leaf.rule, leaf.reason) if leaf.gone or not gone else ("pieces", LOWEST)
        yield _leave(((piece.id,), path, *told, tokens, gone))


def collect_entry_ids(messages: Sequence[PromptMessage]) -> tuple[str, ...]:
    """Return the ids of the entries that some messages show, each once."""
    if len(messages) == 1:
        return messages[0].sources
    return tuple(dict.fromkeys([source for message in messages for source in message.sources]))
