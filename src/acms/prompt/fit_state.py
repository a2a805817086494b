"""The state of a fit: the cost and the shown content of every leaf of a prompt, and the totals of every section."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from acms.model import Role, Text
from acms.plan.nodes import ComposedMessage, KeptEnd, MessageGroup, Piece, Scope, Truncate, Window
from acms.ports import Codec
from acms.prompt_types import PromptMessage, omit_repeated_dates
from acms.text.chat_messages import wrap_passage, wrap_summary

LOWEST_RANK = "ranked lowest, and it did not fit"


class Leaf:
    """A unit of the prompt (a message group or a composed message): the part that is shown, and why not all of it.

    A prompt has thousands of these, most of which never change, so default values are kept on the class.
    """

    #: Messages as they are shown now, and the cost of each; None while they are those of the node.
    messages: tuple[PromptMessage, ...] | None = None
    costs: tuple[int, ...] | None = None
    #: Cost of each message of a node with several, with nothing left out.
    whole_costs: tuple[int, ...] | None = None
    #: Pieces shown, of a composed message.
    pieces: tuple[Piece, ...] = ()
    gone = False
    #: Whether some of its text was cut off.
    is_cut = False
    #: The last rule that left out or cut it, and the reason.
    rule = ""
    reason = ""

    def __init__(self, node: MessageGroup | ComposedMessage, section: Section, tokens: int) -> None:
        self.node = node
        self.section = section
        #: Raw tokens of the shown content, and of the content with nothing left out.
        self.tokens = self.full_tokens = tokens

    @property
    def mandatory(self) -> bool:
        """Whether it stays when its section shrinks."""
        node = self.node
        return type(node) is MessageGroup and node.mandatory

    def write(
        self, messages: tuple[PromptMessage, ...], costs: tuple[int, ...], rule: str, reason: str
    ) -> None:
        """Show the unit as other, shorter messages, and note the rule that made them."""
        change = sum(costs) - self.tokens
        self.messages, self.costs, self.tokens = messages, costs, sum(costs)
        self.rule, self.reason = rule, reason
        self.section.add_tokens(change)

    def omit(self, rule: str, reason: str) -> None:
        """Leave the unit out."""
        omit_leaves((self,), rule, reason)


def omit_leaves(leaves: Iterable[Leaf], rule: str, reason: str) -> None:
    """Leave units out; those that are gone already keep their reason."""
    section: Section | None = None
    token_change = 0
    for leaf in leaves:
        if leaf.gone:
            continue
        if leaf.section is not section:
            if section is not None:
                section.add_tokens(token_change)
            section, token_change = leaf.section, 0
        token_change -= leaf.tokens
        leaf.tokens = 0
        leaf.gone, leaf.rule, leaf.reason = True, rule, reason
    if section is not None:
        section.add_tokens(token_change)


class Section:
    """A scope and the total cost of its content."""

    __slots__ = (
        "covered_count", "floor", "has_new_summary", "max_tokens", "moves", "parent", "parts", "path", "scope",
        "summary", "summary_text", "tokens", "uncounted_groups",
    )  # fmt: skip

    def __init__(self, scope: Scope, path: str, parent: Section | None, cap: int | None) -> None:
        self.scope = scope
        self.path = path
        self.parent = parent
        self.parts: list[Section | Leaf] = []
        self.tokens = 0
        #: Units at one end that could not be shown even if everything else were left out, so they are never counted.
        self.uncounted_groups: tuple[MessageGroup, ...] = ()
        self.moves: bool = scope.moves or (parent is not None and parent.moves)
        #: Tokens it may have at most, by a ceiling or its own cap.
        self.max_tokens = cap
        #: Tokens it is not shrunk below; 0 until the sections inside it have been shrunk to their own limits.
        self.floor = 0
        #: The current summary: its text, whether the text is new, how many units it replaces, the leaf that shows it.
        self.summary_text = ""
        self.has_new_summary = False
        self.covered_count = 0
        self.summary: Leaf | None = None

    def ancestors(self) -> Iterator[Section]:
        """Yield the sections around it, the innermost first."""
        section = self.parent
        while section is not None:
            yield section
            section = section.parent

    def add_tokens(self, tokens: int) -> None:
        """Add `tokens` to the cost of this section and of every section around it."""
        section: Section | None = self
        while section is not None:
            section.tokens += tokens
            section = section.parent

    def can_be_omitted(self) -> bool:
        """Return whether no floor keeps it, or anything in it, from being left out."""
        return self.count_spare_tokens() == self.tokens and not any(
            section.floor for section in self.sections()
        )

    def leaves(self) -> Iterator[Leaf]:
        """Yield every unit under it in order, but no summary."""
        for part in self.parts:
            if isinstance(part, Leaf):
                yield part
            else:
                yield from part.leaves()

    def sections(self) -> Iterator[Section]:
        """Yield the sections under it and then itself: children before parents, in order of the prompt."""
        for part in self.parts:
            if isinstance(part, Section):
                yield from part.sections()
        yield self

    def count_spare_tokens(self) -> int:
        """Return how many tokens it can lose before its own floor or one around it is reached."""
        spare_tokens = self.tokens
        section: Section | None = self
        while section is not None:
            if section.floor:
                spare_tokens = min(spare_tokens, section.tokens - section.floor)
            section = section.parent
        return max(0, spare_tokens)


def build_section_tree(tree: Scope, codec: Codec, room: int | None) -> Section:
    """Return the state of a prompt with everything shown.

    `room` is the maximum cost of all messages, None for no limit. For a longer window only the end is counted: the
    messages before it could not be shown even if everything else were omitted.
    """
    return _build_section(tree, tree.id, None, codec, room, plain=True)


def compose_message(node: ComposedMessage, pieces: Sequence[Piece]) -> PromptMessage:
    """Return a composed message of some of its pieces."""
    if node.cited:
        texts = [wrap_passage(" ".join(piece.sources), piece.text) for piece in pieces]
    else:
        texts = [piece.text for piece in pieces]
        if node.kind == "recall":
            texts = list(omit_repeated_dates(texts))
    text = node.opening + node.separator.join(texts) + node.closing
    sources = dict.fromkeys(source for piece in pieces for source in piece.sources)
    return PromptMessage(role=node.role, parts=(Text(text),), sources=tuple(sources))


def build_summary_message(text: str, role: Role) -> PromptMessage:
    """Return the text of a summary as a message, marked as a summary."""
    return PromptMessage(role=role, parts=(Text(wrap_summary(text)),))


def sort_by_rank(pieces: Sequence[Piece]) -> list[int]:
    """Return the indexes of pieces, the one kept longest first: by rank, of equals the earlier one."""
    return sorted(range(len(pieces)), key=lambda index: (-pieces[index].rank, index))


def _build_section(
    scope: Scope, path: str, parent: Section | None, codec: Codec, room: int | None, *, plain: bool
) -> Section:
    """Return a scope as a section with its content and cost.

    `room` is the most it could cost. `plain` says that no section around it has a strategy: another strategy might
    need the content that cannot fit here, so only then it stays uncounted.
    """
    strategy = scope.strategy
    cap = strategy.tokens if isinstance(strategy, Truncate) else None
    section = Section(scope, path, parent, smallest_limit(scope.ceiling, cap))
    bound = smallest_limit(room, section.max_tokens)
    end = end_to_keep(section) if plain and len(scope.children) > 1 else None
    if end is not None and bound is not None:
        groups = [node for node in scope.children if isinstance(node, MessageGroup)]
        if len(groups) == len(scope.children):
            _count_within_bound(section, groups, max(bound, scope.floor), end, codec)
            return section
    for node in scope.children:
        part: Leaf | Section
        if isinstance(node, MessageGroup):
            part = _build_group_leaf(node, section, codec.cost)
        elif isinstance(node, Scope):
            inner_path = f"{path}/{node.id}"
            part = _build_section(node, inner_path, section, codec, bound, plain=plain and strategy is None)
        elif node.pieces:
            part = _build_composed_leaf(node, section, codec, bound)
        else:
            continue
        section.parts.append(part)
        section.tokens += part.tokens
    return section


def end_to_keep(section: Section) -> KeptEnd | None:
    """Return the end from which a section keeps whole units, None for one that does not."""
    strategy = section.scope.strategy
    if isinstance(strategy, Window):
        return KeptEnd.END
    return strategy.keep if isinstance(strategy, Truncate) else None


def _count_within_bound(
    section: Section, groups: Sequence[MessageGroup], bound: int, keep: KeptEnd, codec: Codec
) -> None:
    """Count units from the end that is kept until they cost more than there is room for."""
    remaining = bound
    uncounted_groups: list[MessageGroup] = []
    for group in reversed(groups) if keep is KeptEnd.END else groups:
        if remaining < 0 and not group.mandatory:
            uncounted_groups.append(group)
            continue
        leaf = _build_group_leaf(group, section, codec.cost)
        remaining -= leaf.tokens
        section.tokens += leaf.tokens
        section.parts.append(leaf)
    if keep is KeptEnd.END:
        section.parts.reverse()
        uncounted_groups.reverse()
    section.uncounted_groups = tuple(uncounted_groups)


def _build_group_leaf(node: MessageGroup, section: Section, cost: Callable[[PromptMessage], int]) -> Leaf:
    """Return a group with its cost, and that of each of its messages if there are several."""
    messages = node.messages
    if len(messages) == 1:
        return Leaf(node, section, cost(messages[0]))
    costs = tuple(map(cost, messages))
    leaf = Leaf(node, section, sum(costs))
    leaf.whole_costs = costs
    return leaf


def _build_composed_leaf(node: ComposedMessage, section: Section, codec: Codec, bound: int | None) -> Leaf:
    """Return a composed message, without the pieces whose stated costs show that they cannot fit."""
    pieces = node.pieces
    if bound is not None and len(pieces) > 1:
        # Stated tokens are upper bounds, so pieces that seem to need half as many again may still fit.
        room = int(max(bound, section.scope.floor) * 1.5)
        indexes: list[int] = []
        for index in sort_by_rank(pieces):
            room -= pieces[index].tokens or 0
            if room < 0 and indexes:
                break
            indexes.append(index)
        pieces = tuple([pieces[index] for index in sorted(indexes)])
    message = compose_message(node, pieces)
    leaf = Leaf(node, section, codec.cost(message))
    leaf.messages = (message,)
    leaf.pieces = pieces
    if len(pieces) < len(node.pieces):
        leaf.rule, leaf.reason = "pieces", LOWEST_RANK
    return leaf


def smallest_limit(*limits: int | None) -> int | None:
    """Return the smallest of some limits; None is no limit."""
    return min([limit for limit in limits if limit is not None], default=None)
