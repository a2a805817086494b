"""Strategies to shrink a section that is too large: omit, truncate, move a window, or substitute a summary.

Every strategy gets the number of excess tokens and acts in one step. No strategy ever makes a section more expensive or
shrinks it below a floor; any remaining excess is left to the next.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Generator, Sequence
from itertools import accumulate

from acms.model import Text
from acms.plan.nodes import Atom, Composed, Keep, NeedSummary, Omit, Piece, Summarise, Truncate, Window
from acms.plan.prefix_cache import epoch_length, find_start
from acms.ports import Codec
from acms.prompt.fit_state import LOWEST, Leaf, Section, by_rank, compose_message, omit_leaves
from acms.prompt.truncate import cut_messages, cut_text, shorten_text
from acms.prompt_types import PromptMessage
from acms.text.chat_messages import SUMMARY, wrap_text


def apply_strategy(
    section: Section, over: int, scale: int, codec: Codec
) -> Generator[NeedSummary, str | None, None]:
    """Make a section cost `over` tokens less, or as much less as it can; `scale` is the limit of its container."""
    strategy = section.scope.strategy
    if isinstance(strategy, Omit):
        omit_section(section)
    elif isinstance(strategy, Truncate):
        truncate_section(section, over, codec, strategy.keep)
    elif isinstance(strategy, Window):
        move_window(section, over, scale, strategy)
    elif isinstance(strategy, Summarise):
        yield from summarise_section(section, over, codec, strategy)


def cut_mandatory(section: Section, over: int, codec: Codec) -> None:
    """Cut mandatory content, once nothing else can shrink."""
    strategy = section.scope.strategy
    keep = strategy.keep if isinstance(strategy, Truncate) else None
    target = section.used - over
    for leaf in section.leaves():
        if section.used <= target:
            return
        if leaf.mandatory and not leaf.gone:
            shorten_leaf(
                section,
                leaf,
                target,
                codec,
                keep,
                name_of_strategy(section),
                "it must stay, and nothing else could shrink",
            )


def name_of_strategy(section: Section) -> str:
    """Return the name of a section's strategy in ledgers."""
    strategy = section.scope.strategy
    return "summary" if isinstance(strategy, Summarise) else type(strategy).__name__.lower()


def omit_section(section: Section) -> None:
    """Leave everything out, unless a floor holds."""
    if section.free():
        omit_leaves(section.leaves(), "omit", "left out as a whole when room was short")


def truncate_section(section: Section, over: int, codec: Codec, keep: Keep) -> None:
    """Leave whole units and pieces out from the end that is not kept, then cut the last one, then leave it out."""
    left = [leaf for leaf in section.leaves() if not leaf.gone]
    if keep is Keep.START:
        left.reverse()
    end = "first" if keep is Keep.END else "last"
    reason = f"what comes {end} goes before the rest"
    target = section.used - over
    optional = [leaf for leaf in left if not leaf.mandatory]
    for leaf in optional:
        if section.used <= target:
            return
        if isinstance(leaf.node, Composed):
            drop_pieces(section, leaf, target, codec)
            if section.used <= target:
                return
        if leaf is left[-1]:
            break
        if leaf.section.spare() >= leaf.tokens:
            leaf.leave("truncate", reason)
            continue
        shorten_leaf(section, leaf, target, codec, keep, "truncate", "cut to the room that is left")
        if section.spare() < leaf.tokens:
            return  # its floor: the next one is not left out before this
    for leaf in optional[-1:]:
        if section.used > target and not leaf.gone:
            shorten_leaf(section, leaf, target, codec, keep, "truncate", "cut to the room that is left")
            if section.used > target and leaf.section.spare() >= leaf.tokens:
                leaf.leave("truncate", "even cut it did not fit")


def move_window(section: Section, over: int, scale: int, strategy: Window) -> None:
    """Move the start of the shown messages to a line of a grid from which everything after it fits.

    The grid is measured by `scale`, the limit, halved until the available tokens are more than half of it, so the grid
    stays the same while the rest of the prompt grows or shrinks a little.
    """
    left = [leaf for leaf in section.leaves() if not leaf.gone]
    if not left:
        return
    room = max(0, section.used - over)
    costs = [leaf.tokens for leaf in left]
    befores = [leaf.node.before if isinstance(leaf.node, Atom) else 0 for leaf in left]
    if not any(befores):  # the caller's messages have no position in a log: their costs give one
        befores = [0, *accumulate(costs[:-1])]
    while scale >= 2 * room > 0:
        scale //= 2
    length = strategy.length or epoch_length(scale, strategy.slack, 1)
    first = held = 0
    while True:  # older ones that must stay take room from the rest
        first = find_start(befores, costs, room - held, length, scale)
        if costs[first] > room - held and first == len(left) - 1:
            first += 1
        found = sum([leaf.tokens for leaf in left[:first] if leaf.mandatory]) if first < len(left) else 0
        if found <= held:
            break
        held = found
    reason = f"older than the newest messages that fit {room} tokens"
    if section.free():
        omit_leaves([leaf for leaf in left[:first] if not leaf.mandatory], "window", reason)
        return
    for leaf in left[:first]:
        if section.spare() < leaf.tokens:
            break
        if not leaf.mandatory and leaf.section.spare() >= leaf.tokens:
            leaf.leave("window", reason)


def summarise_section(
    section: Section, over: int, codec: Codec, strategy: Summarise
) -> Generator[NeedSummary, str | None, None]:
    """Let a summary stand for the oldest units: the stored one when it is enough, else a new one that is asked for.

    A summarised section shrinks further: the remaining units go, oldest first, then the summary is cut, then it goes.
    """
    units = list(section.leaves())
    target = section.used - over
    if section.summary is None and not section.text:
        section.text, section.covers = (strategy.text, strategy.covers) if strategy.text.strip() else ("", 0)
    most = next(
        (
            place
            for place, leaf in enumerate(units)
            if leaf.mandatory or (leaf.section is not section and _has_floor_between(leaf, section))
        ),
        len(units),
    )
    section.covers = min(section.covers, most)
    if section.covers == 0:
        section.text = ""
    if _apply_summary(section, units, target, codec, strategy):
        return
    frame = codec.cost(_summary_message(strategy, ""))
    passed = [0, *accumulate([leaf.full for leaf in units])]
    least = passed[-1] + frame + strategy.tokens - (target - target // 2)
    wanted = min(most, bisect_left(passed, least, lo=1)) if most else 0
    allowed = min(strategy.tokens, passed[wanted] - frame - 1)
    if wanted > section.covers and allowed > 0:
        atoms = tuple([_atom_of_leaf(leaf) for leaf in units[section.covers : wanted]])
        answer = yield NeedSummary(strategy.id, section.text, atoms, allowed)
        if answer is not None and answer.strip():
            section.text = shorten_text(answer.strip(), allowed, codec.counter, Keep.START)
            section.covers = wanted
            section.answered = True
            if _apply_summary(section, units, target, codec, strategy):
                return
    _apply_summary(section, units, None, codec, strategy)
    if section.summary is not None:
        _shrink_summarised(section, units, target, codec, strategy)


def _shrink_summarised(
    section: Section, units: Sequence[Leaf], target: int, codec: Codec, strategy: Summarise
) -> None:
    rest = [leaf for leaf in units if not leaf.gone]
    for leaf in rest:
        if section.used <= target:
            return
        if not leaf.mandatory and leaf.section.spare() >= leaf.tokens:
            leaf.leave("summary", "the oldest after the summary goes first")
    summary = section.summary
    if summary is not None and section.used > target:
        room = summary.tokens - min(section.used - target, section.spare())
        _, message, cost = cut_text(
            section.text, lambda text: _summary_message(strategy, text), room, codec, Keep.START
        )
        if summary.tokens - section.spare() <= cost < summary.tokens:
            summary.write((message,), (cost,), "", "")
        if section.used > target and section.spare() >= summary.tokens:
            summary.leave("summary", "even cut it did not fit")


def _apply_summary(
    section: Section, units: Sequence[Leaf], target: int | None, codec: Codec, strategy: Summarise
) -> bool:
    """Replace the units a summary covers by it, if it is shorter and, when asked, fits within `target`."""
    if not section.text:
        return False
    covered = units[: section.covers]
    message = _summary_message(
        strategy, shorten_text(section.text, strategy.tokens, codec.counter, Keep.START)
    )
    cost = codec.cost(message)
    old = section.summary.tokens if section.summary is not None else 0
    saved = sum([leaf.tokens for leaf in covered]) + old - cost
    if saved <= 0 or saved > section.spare() or (target is not None and section.used - saved > target):
        return False
    omit_leaves(covered, "summary", f"the summary {strategy.id} stands for it")
    if section.summary is None:
        section.summary = Leaf(Atom((message,)), section, 0)
    section.summary.write((message,), (cost,), "", "")
    return True


def _has_floor_between(leaf: Leaf, section: Section) -> bool:
    """Return whether a floor holds somewhere between a section and a unit under it."""
    around = leaf.section
    while around is not section and around.parent is not None:
        if around.floor:
            return True
        around = around.parent
    return False


def _summary_message(strategy: Summarise, text: str) -> PromptMessage:
    return PromptMessage(role=strategy.role, parts=(Text(wrap_text(text, SUMMARY)),))


def _atom_of_leaf(leaf: Leaf) -> Atom:
    """Return a unit as it was before anything was left out of it."""
    node = leaf.node
    return node if isinstance(node, Atom) else Atom((compose_message(node, node.pieces),))


def drop_pieces(section: Section, leaf: Leaf, target: int, codec: Codec) -> None:
    """Omit pieces of a composed message, the lowest ranked first, until the section fits or one is left.

    Counts of joined text do not add up, so the remaining text is counted as a whole; the number of pieces is found by
    bisection.
    """
    node = leaf.node
    pieces = leaf.pieces
    if not isinstance(node, Composed) or len(pieces) < 2:
        return
    best = by_rank(pieces)

    def best_of(count: int) -> tuple[PromptMessage, int]:
        message = compose_message(node, [pieces[index] for index in sorted(best[:count])])
        return message, codec.cost(message)

    room = target - (section.used - leaf.tokens)
    low, high = 1, len(pieces) - 1
    found = best_of(low)
    if found[1] <= room:
        while low < high:
            middle = (low + high + 1) // 2
            wider = best_of(middle)
            if wider[1] <= room:
                low, found = middle, wider
            else:
                high = middle - 1
    while found[1] >= leaf.tokens or leaf.section.spare() < leaf.tokens - found[1]:
        low += 1
        if low >= len(pieces):
            return
        found = best_of(low)
        if found[1] >= leaf.tokens:
            return
    message, cost = found
    leaf.pieces = tuple([pieces[index] for index in sorted(best[:low])])
    leaf.write((message,), (cost,), "pieces", LOWEST)


def shorten_leaf(
    section: Section, leaf: Leaf, target: int, codec: Codec, keep: Keep | None, rule: str, reason: str
) -> None:
    """Cut a unit so that the section fits, or as far as cutting and floors let it.

    Recalled text keeps its beginning, which says who spoke; where no more is left of it, it is left out.
    """
    node = leaf.node
    recalled = isinstance(node, Composed) and node.kind == "recall"
    keep = Keep.START if recalled else keep
    room = max(leaf.tokens - (section.used - target), leaf.tokens - leaf.section.spare(), 0)
    for _ in range(3):
        if room >= leaf.tokens:
            return
        pieces, messages, costs = _cut_leaf(leaf, room, codec, keep)
        cost = sum(costs)
        if cost >= leaf.tokens:
            return
        if recalled and not any(": " in piece.text for piece in pieces):
            if leaf.section.spare() >= leaf.tokens:
                leaf.leave(rule, "not even its beginning fits")
            return
        if leaf.section.spare() >= leaf.tokens - cost:
            leaf.pieces = pieces
            leaf.write(messages, costs, rule, reason)
            leaf.cut = True
            return
        room += max(1, room - cost)


def _cut_leaf(
    leaf: Leaf, room: int, codec: Codec, keep: Keep | None
) -> tuple[tuple[Piece, ...], tuple[PromptMessage, ...], tuple[int, ...]]:
    """Return a unit cut to a room, of a composed message its lowest piece; always from the whole text."""
    node = leaf.node
    if isinstance(node, Atom):
        return ((), *cut_messages(node.messages, leaf.whole or (leaf.full,), room, codec, keep))
    pieces = list(leaf.pieces)
    place = by_rank(pieces)[-1]
    piece = next(one for one in node.pieces if one.id == pieces[place].id)

    def write(text: str) -> PromptMessage:
        pieces[place] = piece._replace(text=text)
        return compose_message(node, pieces)

    text, message, cost = cut_text(piece.text, write, room, codec, keep)
    pieces[place] = piece._replace(text=text)
    return tuple(pieces), (message,), (cost,)
