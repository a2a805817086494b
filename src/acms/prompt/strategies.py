"""Strategies to shrink a section that is too large: omit, truncate, move a window, or substitute a summary.

Every strategy gets the number of excess tokens and acts in one step. No strategy ever makes a section more expensive or
shrinks it below a floor; any remaining excess is left to the next.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Generator, Sequence
from itertools import accumulate

from acms.log.encoding import is_summary
from acms.model import Role, Text
from acms.plan.nodes import (
    ComposedMessage,
    KeptEnd,
    MessageGroup,
    NeedSummary,
    Omit,
    Piece,
    Summarise,
    Truncate,
    Window,
)
from acms.plan.prefix_cache import find_start, window_length
from acms.ports import Codec
from acms.prompt.fit_state import LOWEST_RANK, Leaf, Section, compose_message, omit_leaves, sort_by_rank
from acms.prompt.truncate import cut_messages, cut_text, shorten_text
from acms.prompt_types import PromptMessage
from acms.text.chat_messages import SUMMARY, wrap_text


def apply_strategy(
    section: Section, over: int, scale: int, codec: Codec
) -> Generator[NeedSummary, str | None, None]:
    """Make a section cost `over` tokens less, or as much less as it can; `scale` is the limit of its container."""
    strategy = section.scope.strategy
    if isinstance(strategy, Omit):
        if section.free():
            omit_leaves(section.leaves(), "omit", "left out as a whole when room was short")
    elif isinstance(strategy, Truncate):
        truncate_section(section, over, codec, strategy.keep)
    elif isinstance(strategy, Window):
        move_window(section, over, scale, strategy)
    elif isinstance(strategy, Summarise):
        yield from summarise_section(section, over, codec, strategy)


def cut_mandatory(section: Section, over: int, codec: Codec) -> None:
    """Cut mandatory content, once nothing else can shrink: all of it to one size, which the smaller ones keep.

    The system messages that the content begins with are not cut.
    """
    strategy = section.scope.strategy
    keep = strategy.keep if isinstance(strategy, Truncate) else None
    target = section.used - over
    rule, reason = name_of_strategy(section), "it must stay, and nothing else could shrink"
    leaves = _skip_instructions([leaf for leaf in section.leaves() if leaf.mandatory and not leaf.gone])
    largest_first = sorted(leaves, key=lambda leaf: -leaf.tokens)
    size = _find_common_size([leaf.tokens for leaf in largest_first], over)
    for leaf in largest_first:
        excess = max(0, leaf.tokens - size)
        shorten_leaf(section, leaf, max(target, section.used - excess), codec, keep, rule, reason)
    for leaf in leaves:  # the marks of a cut, and words that are cut as a whole, may take more than that size
        if section.used > target:
            shorten_leaf(section, leaf, target, codec, keep, rule, reason)


def _skip_instructions(leaves: Sequence[Leaf]) -> Sequence[Leaf]:
    """Return leaves without the system messages that they begin with; the last leaf stays."""
    for index, leaf in enumerate(leaves[:-1]):
        message = leaf.node.messages[0] if isinstance(leaf.node, MessageGroup) else None
        if message is None or message.role is not Role.SYSTEM or any(map(is_summary, message.sources)):
            return leaves[index:]
    return leaves[-1:]


def _find_common_size(largest_first: Sequence[int], over: int) -> int:
    """Return the size to which all larger ones are cut so that together they are `over` smaller."""
    total = 0
    for count, tokens in enumerate(largest_first, 1):
        total += tokens
        size = (total - over) // count
        if count == len(largest_first) or size >= largest_first[count]:
            return max(0, size)
    return 0


def name_of_strategy(section: Section) -> str:
    """Return the name of a section's strategy in ledgers."""
    strategy = section.scope.strategy
    return "summary" if isinstance(strategy, Summarise) else type(strategy).__name__.lower()


def truncate_section(section: Section, over: int, codec: Codec, keep: KeptEnd) -> None:
    """Leave whole units and pieces out from the end that is not kept, then cut the last one, then leave it out."""
    leaves = [leaf for leaf in section.leaves() if not leaf.gone]
    if keep is KeptEnd.START:
        leaves.reverse()
    optional = [leaf for leaf in leaves if not leaf.mandatory]
    if not optional:
        return
    end = "first" if keep is KeptEnd.END else "last"
    target = section.used - over
    cut_reason = "cut to the room that is left"
    last = optional[-1]
    for leaf in optional:
        if section.used > target and isinstance(leaf.node, ComposedMessage):
            drop_pieces(section, leaf, target, codec)
        if section.used <= target:
            return
        if leaf is leaves[-1]:
            break
        if leaf.section.spare() >= leaf.tokens:
            leaf.leave("truncate", f"what comes {end} goes before the rest")
            continue
        shorten_leaf(section, leaf, target, codec, keep, "truncate", cut_reason)
        if section.spare() < leaf.tokens:
            return  # a floor holds this unit, and the next is not left out before it
    if section.used <= target or last.gone:
        return
    shorten_leaf(section, last, target, codec, keep, "truncate", cut_reason)
    if section.used > target and last.section.spare() >= last.tokens:
        last.leave("truncate", "even cut it did not fit")


def move_window(section: Section, over: int, scale: int, strategy: Window) -> None:
    """Leave out the oldest messages: the shown ones start at a line of a grid from which everything after it fits.

    The grid is measured by `scale`, the limit, halved until the available tokens are more than half of it, so the grid
    stays the same while the rest of the prompt grows or shrinks a little.
    """
    leaves = [leaf for leaf in section.leaves() if not leaf.gone]
    if not leaves:
        return
    room = max(0, section.used - over)
    while scale >= 2 * room > 0:
        scale //= 2
    start = _find_window_start(leaves, room, scale, strategy)
    older = [leaf for leaf in leaves[:start] if not leaf.mandatory]
    reason = f"older than the newest messages that fit {room} tokens"
    if section.free():
        omit_leaves(older, "window", reason)
        return
    for leaf in leaves[:start]:
        if section.spare() < leaf.tokens:
            break
        if not leaf.mandatory and leaf.section.spare() >= leaf.tokens:
            leaf.leave("window", reason)


def _find_window_start(leaves: Sequence[Leaf], room: int, scale: int, strategy: Window) -> int:
    """Return the first leaf to be shown; older mandatory ones take room from the rest."""
    costs = [leaf.tokens for leaf in leaves]
    positions = [leaf.node.before if isinstance(leaf.node, MessageGroup) else 0 for leaf in leaves]
    if not any(positions):  # the caller's messages have no position in a log: their costs give one
        positions = [0, *accumulate(costs[:-1])]
    length = strategy.length or window_length(scale, strategy.slack, 1)
    older_tokens = 0
    while True:
        start = find_start(positions, costs, room - older_tokens, length, scale)
        if start == len(leaves) - 1 and costs[start] > room - older_tokens:
            return len(leaves)
        mandatory_tokens = sum([leaf.tokens for leaf in leaves[:start] if leaf.mandatory])
        if mandatory_tokens <= older_tokens:
            return start
        older_tokens = mandatory_tokens


def summarise_section(
    section: Section, over: int, codec: Codec, strategy: Summarise
) -> Generator[NeedSummary, str | None, None]:
    """Let a summary replace the oldest units: the stored one when it is enough, else a new one that is asked for.

    A summarised section shrinks further: the remaining units go, oldest first, then the summary is cut, then it goes.
    """
    leaves = list(section.leaves())
    target = section.used - over
    if section.summary is None and not section.text and strategy.text.strip():
        section.text, section.covers = strategy.text, strategy.covers
    most = _count_replaceable(leaves, section)
    section.covers = min(section.covers, most)
    if section.covers == 0:
        section.text = ""
    if _apply_summary(section, leaves, target, codec, strategy):
        return
    frame = codec.cost(_summary_message(strategy, ""))
    sums = [0, *accumulate([leaf.full for leaf in leaves])]
    # The units replaced must have at least these tokens: then, beside a summary of full size, the rest takes half.
    least = sums[-1] + frame + strategy.tokens - (target - target // 2)
    wanted = min(most, bisect_left(sums, least, lo=1)) if most else 0
    allowed = min(strategy.tokens, sums[wanted] - frame - 1)
    if wanted > section.covers and allowed > 0:
        groups = tuple([_group_of_leaf(leaf) for leaf in leaves[section.covers : wanted]])
        answer = (yield NeedSummary(strategy.id, section.text, groups, allowed)) or ""
        if answer.strip():
            section.text = shorten_text(answer.strip(), allowed, codec.counter, KeptEnd.START)
            section.covers = wanted
            section.answered = True
            if _apply_summary(section, leaves, target, codec, strategy):
                return
    _apply_summary(section, leaves, None, codec, strategy)
    if section.summary is not None:
        _shrink_summarised(section, leaves, target, codec, strategy)


def _count_replaceable(leaves: Sequence[Leaf], section: Section) -> int:
    """Return how many of the oldest units a summary may replace: up to one that must stay, or that a floor holds."""
    for index, leaf in enumerate(leaves):
        if leaf.mandatory or (leaf.section is not section and _has_floor_between(leaf, section)):
            return index
    return len(leaves)


def _shrink_summarised(
    section: Section, leaves: Sequence[Leaf], target: int, codec: Codec, strategy: Summarise
) -> None:
    """Shrink a section that shows a summary: its oldest units go first, then the summary is cut, then it goes."""
    for leaf in leaves:
        if leaf.gone or leaf.mandatory:
            continue
        if section.used <= target:
            return
        if leaf.section.spare() >= leaf.tokens:
            leaf.leave("summary", "the oldest after the summary goes first")
    summary = section.summary
    if summary is None or section.used <= target:
        return
    room = summary.tokens - min(section.used - target, section.spare())
    _, message, cost = cut_text(
        section.text, lambda text: _summary_message(strategy, text), room, codec, KeptEnd.START
    )
    if summary.tokens - section.spare() <= cost < summary.tokens:
        summary.write((message,), (cost,), "", "")
    if section.used > target and section.spare() >= summary.tokens:
        summary.leave("summary", "even cut it did not fit")


def _apply_summary(
    section: Section, leaves: Sequence[Leaf], target: int | None, codec: Codec, strategy: Summarise
) -> bool:
    """Replace the units a summary covers by it, if it is shorter and, with a target, makes the section fit it."""
    if not section.text:
        return False
    covered = leaves[: section.covers]
    text = shorten_text(section.text, strategy.tokens, codec.counter, KeptEnd.START)
    message = _summary_message(strategy, text)
    cost = codec.cost(message)
    replaced = sum([leaf.tokens for leaf in covered])
    if section.summary is not None:
        replaced += section.summary.tokens
    saved = replaced - cost
    if saved <= 0 or saved > section.spare():
        return False
    if target is not None and section.used - saved > target:
        return False
    omit_leaves(covered, "summary", f"the summary {strategy.id} stands for it")
    if section.summary is None:
        section.summary = Leaf(MessageGroup((message,)), section, 0)
    section.summary.write((message,), (cost,), "", "")
    return True


def _has_floor_between(leaf: Leaf, section: Section) -> bool:
    """Return whether a floor holds somewhere between a section and a unit under it."""
    for inner in (leaf.section, *leaf.section.ancestors()):
        if inner is section:
            return False
        if inner.floor:
            return True
    return False


def _summary_message(strategy: Summarise, text: str) -> PromptMessage:
    return PromptMessage(role=strategy.role, parts=(Text(wrap_text(text, SUMMARY)),))


def _group_of_leaf(leaf: Leaf) -> MessageGroup:
    """Return a unit as it was before anything was left out of it."""
    node = leaf.node
    return node if isinstance(node, MessageGroup) else MessageGroup((compose_message(node, node.pieces),))


def drop_pieces(section: Section, leaf: Leaf, target: int, codec: Codec) -> None:
    """Omit pieces of a composed message, the lowest ranked first, until the section fits or one is left.

    Counts of joined text do not add up, so the remaining text is counted as a whole; the number of pieces is found by
    bisection.
    """
    node, pieces = leaf.node, leaf.pieces
    if not isinstance(node, ComposedMessage) or len(pieces) < 2:
        return
    best_first = sort_by_rank(pieces)

    def compose_best(count: int) -> tuple[PromptMessage, int]:
        message = compose_message(node, [pieces[index] for index in sorted(best_first[:count])])
        return message, codec.cost(message)

    room = target - (section.used - leaf.tokens)
    count, most = 1, len(pieces) - 1
    message, cost = compose_best(count)
    while cost <= room and count < most:
        middle = (count + most + 1) // 2
        larger, larger_cost = compose_best(middle)
        if larger_cost <= room:
            count, message, cost = middle, larger, larger_cost
        else:
            most = middle - 1
    while cost >= leaf.tokens or leaf.section.spare() < leaf.tokens - cost:
        count += 1
        if count >= len(pieces):
            return
        message, cost = compose_best(count)
        if cost >= leaf.tokens:
            return
    leaf.pieces = tuple([pieces[index] for index in sorted(best_first[:count])])
    leaf.write((message,), (cost,), "pieces", LOWEST_RANK)


def shorten_leaf(
    section: Section, leaf: Leaf, target: int, codec: Codec, keep: KeptEnd | None, rule: str, reason: str
) -> None:
    """Cut a unit so that the section fits, or as far as cutting and floors let it.

    Recalled text keeps its beginning, which says who spoke; where no more is left of it, it is left out.
    """
    node = leaf.node
    is_recalled = isinstance(node, ComposedMessage) and node.kind == "recall"
    if is_recalled:
        keep = KeptEnd.START
    excess = min(section.used - target, leaf.section.spare())
    room = max(leaf.tokens - excess, 0)
    for _ in range(3):
        if room >= leaf.tokens:
            return
        pieces, messages, costs = _cut_leaf(leaf, room, codec, keep)
        cost = sum(costs)
        if cost >= leaf.tokens:
            return
        spare = leaf.section.spare()
        if is_recalled and not any(": " in piece.text for piece in pieces):
            if spare >= leaf.tokens:
                leaf.leave(rule, "not even its beginning fits")
            return
        if spare >= leaf.tokens - cost:
            leaf.pieces = pieces
            leaf.write(messages, costs, rule, reason)
            leaf.cut = True
            return
        room += max(1, room - cost)


def _cut_leaf(
    leaf: Leaf, room: int, codec: Codec, keep: KeptEnd | None
) -> tuple[tuple[Piece, ...], tuple[PromptMessage, ...], tuple[int, ...]]:
    """Return a unit cut to a room, of a composed message its lowest piece; always from the whole text."""
    node = leaf.node
    if isinstance(node, MessageGroup):
        return ((), *cut_messages(node.messages, leaf.whole or (leaf.full,), room, codec, keep))
    pieces = list(leaf.pieces)
    index = sort_by_rank(pieces)[-1]
    whole = next(piece for piece in node.pieces if piece.id == pieces[index].id)

    def write(text: str) -> PromptMessage:
        pieces[index] = whole._replace(text=text)
        return compose_message(node, pieces)

    text, message, cost = cut_text(whole.text, write, room, codec, keep)
    pieces[index] = whole._replace(text=text)
    return tuple(pieces), (message,), (cost,)
