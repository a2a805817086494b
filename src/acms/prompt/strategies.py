"""Strategies to shrink a section that is too large: omit, truncate, move a window, or substitute a summary.

Every strategy gets the number of excess tokens and acts in one step. No strategy ever makes a section more expensive or
shrinks it below a floor; any remaining excess is left to the next.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Generator, Sequence
from itertools import accumulate

from acms.log.encoding import is_summary_id
from acms.model import Role
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
from acms.plan.prefix_cache import find_start, grid_step
from acms.ports import Codec
from acms.prompt.fit_state import (
    LOWEST_RANK,
    Leaf,
    Section,
    build_summary_message,
    compose_message,
    omit_leaves,
    sort_by_rank,
)
from acms.prompt.truncate import cut_messages, cut_text, shorten_text
from acms.prompt_types import PromptMessage
from acms.text.condense import find_level


def apply_strategy(
    section: Section, excess: int, scale: int, codec: Codec
) -> Generator[NeedSummary, str | None, None]:
    """Make a section cost `excess` tokens less, or as much less as it can; `scale` is the limit of its container."""
    strategy = section.scope.strategy
    if isinstance(strategy, Omit):
        if section.can_be_omitted():
            omit_leaves(section.leaves(), "omit", "left out as a whole when room was short")
    elif isinstance(strategy, Truncate):
        truncate_section(section, excess, codec, strategy.keep)
    elif isinstance(strategy, Window):
        move_window(section, excess, scale, strategy)
    elif isinstance(strategy, Summarise):
        yield from summarise_section(section, excess, codec, strategy)


def cut_mandatory(section: Section, excess: int, codec: Codec) -> None:
    """Cut mandatory units once nothing else can shrink: all to one common size; units below it stay whole.

    The system messages that the content begins with are not cut.
    """
    strategy = section.scope.strategy
    keep = strategy.keep if isinstance(strategy, Truncate) else None
    target = section.tokens - excess
    rule, reason = name_of_strategy(section), "it must stay, and nothing else could shrink"
    leaves = _skip_instructions([leaf for leaf in section.leaves() if leaf.mandatory and not leaf.gone])
    costs = [leaf.tokens for leaf in leaves]
    size = find_level(costs, sum(costs) - excess)
    for leaf in sorted(leaves, key=lambda leaf: -leaf.tokens):
        leaf_excess = max(0, leaf.tokens - size)
        shorten_leaf(section, leaf, max(target, section.tokens - leaf_excess), codec, keep, rule, reason)
    for leaf in leaves:  # the marks of a cut, and words that are cut as a whole, may take more than that size
        if section.tokens > target:
            shorten_leaf(section, leaf, target, codec, keep, rule, reason)


def _skip_instructions(leaves: Sequence[Leaf]) -> Sequence[Leaf]:
    """Return leaves without the system messages at their beginning; at least the last leaf is returned."""
    for index, leaf in enumerate(leaves[:-1]):
        message = leaf.node.messages[0] if isinstance(leaf.node, MessageGroup) else None
        if message is None or message.role is not Role.SYSTEM or any(map(is_summary_id, message.sources)):
            return leaves[index:]
    return leaves[-1:]


def name_of_strategy(section: Section) -> str:
    """Return the name of a section's strategy in ledgers."""
    strategy = section.scope.strategy
    return "summary" if isinstance(strategy, Summarise) else type(strategy).__name__.lower()


def truncate_section(section: Section, excess: int, codec: Codec, keep: KeptEnd) -> None:
    """Leave whole units and pieces out from the end that is not kept, then cut the last one, then leave it out."""
    leaves = [leaf for leaf in section.leaves() if not leaf.gone]
    if keep is KeptEnd.START:
        leaves.reverse()
    optional = [leaf for leaf in leaves if not leaf.mandatory]
    if not optional:
        return
    end = "first" if keep is KeptEnd.END else "last"
    target = section.tokens - excess
    cut_reason = "cut to the tokens that are left"
    last_leaf = optional[-1]
    for leaf in optional:
        if section.tokens > target and isinstance(leaf.node, ComposedMessage):
            drop_pieces(section, leaf, target, codec)
        if section.tokens <= target:
            return
        if leaf is leaves[-1]:
            break
        if leaf.section.count_spare_tokens() >= leaf.tokens:
            leaf.omit("truncate", f"what comes {end} goes before the rest")
            continue
        shorten_leaf(section, leaf, target, codec, keep, "truncate", cut_reason)
        if section.count_spare_tokens() < leaf.tokens:
            return  # a floor holds this unit, and the next is not left out before it
    if section.tokens <= target or last_leaf.gone:
        return
    shorten_leaf(section, last_leaf, target, codec, keep, "truncate", cut_reason)
    if section.tokens > target and last_leaf.section.count_spare_tokens() >= last_leaf.tokens:
        last_leaf.omit("truncate", "even cut it did not fit")


def move_window(section: Section, excess: int, scale: int, strategy: Window) -> None:
    """Leave out the oldest messages: the shown ones start at a line of a grid from which everything after it fits.

    The grid is measured by `scale`, the limit, halved until the available tokens are more than half of it, so the grid
    stays the same while the rest of the prompt grows or shrinks a little.
    """
    leaves = [leaf for leaf in section.leaves() if not leaf.gone]
    if not leaves:
        return
    room = max(0, section.tokens - excess)
    while scale >= 2 * room > 0:
        scale //= 2
    start = _find_window_start(leaves, room, scale, strategy)
    older_leaves = [leaf for leaf in leaves[:start] if not leaf.mandatory]
    reason = f"older than the newest messages that fit {room} tokens"
    if section.can_be_omitted():
        omit_leaves(older_leaves, "window", reason)
        return
    for leaf in leaves[:start]:
        if section.count_spare_tokens() < leaf.tokens:
            break
        if not leaf.mandatory and leaf.section.count_spare_tokens() >= leaf.tokens:
            leaf.omit("window", reason)


def _find_window_start(leaves: Sequence[Leaf], room: int, scale: int, strategy: Window) -> int:
    """Return the index of the first leaf to show; mandatory leaves before it stay too, and take tokens from the others.

    So the start is searched again with fewer tokens until the mandatory leaves before it are paid for.
    """
    costs = [leaf.tokens for leaf in leaves]
    positions = [leaf.node.before if isinstance(leaf.node, MessageGroup) else 0 for leaf in leaves]
    if not any(positions):  # the caller's messages have no position in a log: their costs give one
        positions = [0, *accumulate(costs[:-1])]
    step = grid_step(scale, strategy.slack) if strategy.slack else 0
    older_tokens = 0
    while True:
        start = find_start(positions, costs, room - older_tokens, step)
        if start == len(leaves) - 1 and costs[start] > room - older_tokens:
            return len(leaves)  # not even the newest leaf fits; it stays only if it is mandatory
        mandatory_tokens = sum([leaf.tokens for leaf in leaves[:start] if leaf.mandatory])
        if mandatory_tokens <= older_tokens:
            return start
        older_tokens = mandatory_tokens


def summarise_section(
    section: Section, excess: int, codec: Codec, strategy: Summarise
) -> Generator[NeedSummary, str | None, None]:
    """Let a summary replace the oldest units: the stored one when it is enough, else a new one that is asked for.

    If that is not enough, the remaining units are left out, oldest first, then the summary is cut, then left out.
    """
    leaves = list(section.leaves())
    target = section.tokens - excess
    if section.summary is None and not section.summary_text and strategy.text.strip():
        section.summary_text, section.covered_count = strategy.text, strategy.covers
    replaceable_count = _count_replaceable(leaves, section)
    section.covered_count = min(section.covered_count, replaceable_count)
    if section.covered_count == 0:
        section.summary_text = ""
    if _apply_summary(section, leaves, target, codec, strategy):
        return
    frame = codec.cost(build_summary_message("", strategy.role))
    tokens_up_to = [0, *accumulate([leaf.full_tokens for leaf in leaves])]
    # Replace so many tokens that the other units and a summary of full size take half of the target: then the next
    # messages fit without another summary.
    min_replaced_tokens = tokens_up_to[-1] + frame + strategy.tokens - (target - target // 2)
    new_count = min(replaceable_count, bisect_left(tokens_up_to, min_replaced_tokens, lo=1))
    max_tokens = min(strategy.tokens, tokens_up_to[new_count] - frame - 1)
    if new_count > section.covered_count and max_tokens > 0:
        groups = tuple([_group_of_leaf(leaf) for leaf in leaves[section.covered_count : new_count]])
        answer = (yield NeedSummary(strategy.id, section.summary_text, groups, max_tokens)) or ""
        if answer.strip():
            section.summary_text = shorten_text(answer.strip(), max_tokens, codec.counter, KeptEnd.START)
            section.covered_count = new_count
            section.has_new_summary = True
            if _apply_summary(section, leaves, target, codec, strategy):
                return
    _apply_summary(section, leaves, None, codec, strategy)  # not enough, but the section becomes smaller
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
    """Shrink a section that shows a summary: leave out its oldest units, then cut the summary, then leave it out."""
    for leaf in leaves:
        if leaf.gone or leaf.mandatory:
            continue
        if section.tokens <= target:
            return
        if leaf.section.count_spare_tokens() >= leaf.tokens:
            leaf.omit("summary", "the oldest after the summary goes first")
    summary = section.summary
    if summary is None or section.tokens <= target:
        return
    room = summary.tokens - min(section.tokens - target, section.count_spare_tokens())
    _, message, cost = cut_text(
        section.summary_text,
        lambda text: build_summary_message(text, strategy.role),
        room,
        codec,
        KeptEnd.START,
    )
    if summary.tokens - section.count_spare_tokens() <= cost < summary.tokens:
        summary.write((message,), (cost,), "", "")
    if section.tokens > target and section.count_spare_tokens() >= summary.tokens:
        summary.omit("summary", "even cut it did not fit")


def _apply_summary(
    section: Section, leaves: Sequence[Leaf], target: int | None, codec: Codec, strategy: Summarise
) -> bool:
    """Replace the units a summary covers by it, if it is shorter and, with a target, makes the section fit it."""
    if not section.summary_text:
        return False
    covered_leaves = leaves[: section.covered_count]
    text = shorten_text(section.summary_text, strategy.tokens, codec.counter, KeptEnd.START)
    message = build_summary_message(text, strategy.role)
    cost = codec.cost(message)
    replaced_tokens = sum([leaf.tokens for leaf in covered_leaves])
    if section.summary is not None:
        replaced_tokens += section.summary.tokens
    saved_tokens = replaced_tokens - cost
    if saved_tokens <= 0 or saved_tokens > section.count_spare_tokens():
        return False
    if target is not None and section.tokens - saved_tokens > target:
        return False
    omit_leaves(covered_leaves, "summary", f"the summary {strategy.id} replaces it")
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

    room = target - (section.tokens - leaf.tokens)
    count, max_count = 1, len(pieces) - 1
    message, cost = compose_best(count)
    while cost <= room and count < max_count:
        middle = (count + max_count + 1) // 2
        larger, larger_cost = compose_best(middle)
        if larger_cost <= room:
            count, message, cost = middle, larger, larger_cost
        else:
            max_count = middle - 1
    while cost >= leaf.tokens or leaf.section.count_spare_tokens() < leaf.tokens - cost:
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

    A floor is the least that a section keeps; its spare tokens are those above the floor. Recalled text keeps its
    beginning, which names the speaker ("user: …"); it is left out if the cut would not keep the name.
    """
    node = leaf.node
    is_recalled = isinstance(node, ComposedMessage) and node.kind == "recall"
    if is_recalled:
        keep = KeptEnd.START
    excess = min(section.tokens - target, leaf.section.count_spare_tokens())
    room = max(leaf.tokens - excess, 0)
    for _ in range(3):  # a floor may refuse a cut that is too deep: then cut a little less
        if room >= leaf.tokens:
            return
        pieces, messages, costs = _cut_leaf(leaf, room, codec, keep)
        cost = sum(costs)
        if cost >= leaf.tokens:
            return
        spare = leaf.section.count_spare_tokens()
        if is_recalled and not any(": " in piece.text for piece in pieces):
            if spare >= leaf.tokens:
                leaf.omit(rule, "not even its beginning fits")
            return
        if spare >= leaf.tokens - cost:
            leaf.pieces = pieces
            leaf.write(messages, costs, rule, reason)
            leaf.is_cut = True
            return
        room += max(1, room - cost)


def _cut_leaf(
    leaf: Leaf, room: int, codec: Codec, keep: KeptEnd | None
) -> tuple[tuple[Piece, ...], tuple[PromptMessage, ...], tuple[int, ...]]:
    """Return a unit cut to `room` tokens, from its original text; of a composed message the lowest-ranked piece."""
    node = leaf.node
    if isinstance(node, MessageGroup):
        return ((), *cut_messages(node.messages, leaf.whole_costs or (leaf.full_tokens,), room, codec, keep))
    pieces = leaf.pieces
    index = sort_by_rank(pieces)[-1]
    whole_piece = next(piece for piece in node.pieces if piece.id == pieces[index].id)

    def replace_text(text: str) -> tuple[Piece, ...]:
        return (*pieces[:index], whole_piece._replace(text=text), *pieces[index + 1 :])

    text, message, cost = cut_text(
        whole_piece.text, lambda text: compose_message(node, replace_text(text)), room, codec, keep
    )
    return replace_text(text), (message,), (cost,)
