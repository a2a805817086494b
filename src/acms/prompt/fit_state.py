"""The state of a fit: the cost and the shown content of every leaf of a prompt, and the totals of every section."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from acms.model import Text
from acms.plan.nodes import Atom, Composed, Keep, Piece, Scope, Truncate, Window
from acms.ports import Codec
from acms.prompt_types import PromptMessage, omit_repeated_dates
from acms.text.chat_messages import wrap_passage

GENEROUS = 1.5
"""Pieces of a composed message are counted until their stated tokens are this many times the room there could be."""


LOWEST = "ranked lowest, and there was no room for it"


class Leaf:
    """A unit of the prompt: its content, the part of it that is shown, and the reason for any omission.

    A prompt has thousands of these, most of which never change, so default values are kept on the class.
    """

    #: Messages as they are now, and what each costs; None while they are those of the node.
    messages: tuple[PromptMessage, ...] | None = None
    costs: tuple[int, ...] | None = None
    #: Cost of each message of a node with several, with nothing left out.
    whole: tuple[int, ...] | None = None
    #: Pieces shown, of a composed message.
    pieces: tuple[Piece, ...] = ()
    gone = False
    #: Whether some of its text was cut off.
    cut = False
    #: The last rule that left out or cut it, and the reason.
    rule = ""
    reason = ""

    def __init__(self, node: Atom | Composed, section: Section, tokens: int) -> None:
        self.node = node
        self.section = section
        #: Raw tokens of the shown content, and of the content with nothing left out.
        self.tokens = self.full = tokens

    @property
    def mandatory(self) -> bool:
        """Whether it stays when its section shrinks."""
        node = self.node
        return type(node) is Atom and node.mandatory

    def write(
        self, messages: tuple[PromptMessage, ...], costs: tuple[int, ...], rule: str, reason: str
    ) -> None:
        """Show it as other messages, which are shorter."""
        change = sum(costs) - self.tokens
        self.messages, self.costs, self.tokens = messages, costs, sum(costs)
        self.rule, self.reason = rule, reason
        self.section.change(change)

    def leave(self, rule: str, reason: str) -> None:
        """Leave it out."""
        omit_leaves((self,), rule, reason)


def omit_leaves(leaves: Iterable[Leaf], rule: str, reason: str) -> None:
    """Leave units out; those that are gone already keep their reason."""
    section: Section | None = None
    change = 0
    for leaf in leaves:
        if leaf.gone:
            continue
        if leaf.section is not section:
            if section is not None:
                section.change(change)
            section, change = leaf.section, 0
        change -= leaf.tokens
        leaf.tokens = 0
        leaf.gone, leaf.rule, leaf.reason = True, rule, reason
    if section is not None:
        section.change(change)


class Section:
    """A scope and the total cost of its content."""

    __slots__ = (
        "allowed", "answered", "covers", "early", "floor", "moves", "parent", "parts", "path", "scope",
        "summary", "text", "used",
    )  # fmt: skip

    def __init__(self, scope: Scope, path: str, parent: Section | None, cap: int | None) -> None:
        self.scope = scope
        self.path = path
        self.parent = parent
        self.parts: list[Section | Leaf] = []
        self.used = 0
        #: Units at one end that could not be shown whatever else is left out: never counted.
        self.early: tuple[Atom, ...] = ()
        self.moves: bool = scope.moves or (parent is not None and parent.moves)
        #: Tokens it may have at most, by a ceiling or its own cap.
        self.allowed = cap
        #: Tokens it is not shrunk below; applies only once all its content is within the allowed tokens.
        self.floor = 0
        #: The summary at hand: its text, the units it stands for, the leaf that shows it, whether it is a new one.
        self.text = ""
        self.answered = False
        self.covers = 0
        self.summary: Leaf | None = None

    def change(self, tokens: int) -> None:
        """Add `tokens` to the cost of this section and of every section around it."""
        section: Section | None = self
        while section is not None:
            section.used += tokens
            section = section.parent

    def free(self) -> bool:
        """Return whether no floor in force keeps it, or anything in it, from being left out."""
        return self.spare() == self.used and not any(one.floor for one in self.sections())

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

    def spare(self) -> int:
        """Return how many tokens less it may cost under the floors in force: its own and those around it."""
        found = self.used
        section: Section | None = self
        while section is not None:
            if section.floor:
                found = min(found, section.used - section.floor)
            section = section.parent
        return max(0, found)


def build_section_tree(tree: Scope, codec: Codec, room: int | None) -> Section:
    """Return the state of a prompt with everything shown.

    `room` is the maximum cost of all messages, None for no limit. For a longer window only the end is counted: the
    messages before it could not be shown even if everything else were omitted.
    """
    return _build_section(tree, tree.id, None, codec, room, plain=True)


def compose_message(node: Composed, pieces: Sequence[Piece]) -> PromptMessage:
    """Return a composed message of some of its pieces."""
    said = [wrap_passage(" ".join(one.sources), one.text) if node.cited else one.text for one in pieces]
    if node.kind == "recall" and not node.cited:
        said = list(omit_repeated_dates(said))
    text = node.opening + node.separator.join(said) + node.closing
    sources = dict.fromkeys(source for piece in pieces for source in piece.sources)
    return PromptMessage(role=node.role, parts=(Text(text),), sources=tuple(sources))


def by_rank(pieces: Sequence[Piece]) -> list[int]:
    """Return the places of pieces, the one kept longest first: by rank, of equals the earlier one."""
    return sorted(range(len(pieces)), key=lambda index: (-pieces[index].rank, index))


def _build_section(
    scope: Scope, path: str, parent: Section | None, codec: Codec, room: int | None, *, plain: bool
) -> Section:
    strategy = scope.strategy
    caps = [
        cap
        for cap in (scope.ceiling, strategy.tokens if isinstance(strategy, Truncate) else None)
        if cap is not None
    ]
    section = Section(scope, path, parent, min(caps) if caps else None)
    bound = _smaller_limit(room, section.allowed)
    children = scope.children
    kept = _end_to_keep(section) if plain and bound is not None and len(children) > 1 else None
    if kept is not None and bound is not None:
        units = [node for node in children if isinstance(node, Atom)]
        if len(units) == len(children):
            _count_within_bound(section, units, max(bound, scope.floor), kept, codec)
            return section
    cost = codec.cost
    parts = section.parts
    used = 0
    for node in children:
        if isinstance(node, Atom):
            messages = node.messages
            # Most units are one message: for those what `_atom` does, without the call.
            leaf = (
                Leaf(node, section, cost(messages[0]))
                if len(messages) == 1
                else _build_atom_leaf(node, section, cost)
            )
            used += leaf.tokens
            parts.append(leaf)
        elif isinstance(node, Composed):
            if node.pieces:
                leaf = _build_composed_leaf(node, section, codec, bound)
                used += leaf.tokens
                parts.append(leaf)
        else:
            below = _build_section(
                node, f"{path}/{node.id}", section, codec, bound, plain=plain and strategy is None
            )
            used += below.used
            parts.append(below)
    section.used = used
    return section


def _end_to_keep(section: Section) -> Keep | None:
    """Return the end from which a section keeps whole units, None for one that does not."""
    strategy = section.scope.strategy
    if isinstance(strategy, Window):
        return Keep.END
    return strategy.keep if isinstance(strategy, Truncate) else None


def _count_within_bound(
    section: Section, atoms: Sequence[Atom], bound: int, keep: Keep, codec: Codec
) -> None:
    """Count units from the end that is kept until they cost more than there is room for."""
    cost = codec.cost
    left = bound
    ordered = reversed(atoms) if keep is Keep.END else iter(atoms)
    parts: list[Section | Leaf] = []
    early: list[Atom] = []
    for atom in ordered:
        if left < 0 and not atom.mandatory:
            early.append(atom)
            continue
        leaf = _build_atom_leaf(atom, section, cost)
        left -= leaf.tokens
        section.used += leaf.tokens
        parts.append(leaf)
    if keep is Keep.END:
        parts.reverse()
        early.reverse()
    section.parts = parts
    section.early = tuple(early)


def _build_atom_leaf(node: Atom, section: Section, cost: Callable[[PromptMessage], int]) -> Leaf:
    messages = node.messages
    if len(messages) == 1:
        return Leaf(node, section, cost(messages[0]))
    costs = tuple(map(cost, messages))
    leaf = Leaf(node, section, sum(costs))
    leaf.whole = costs
    return leaf


def _build_composed_leaf(node: Composed, section: Section, codec: Codec, bound: int | None) -> Leaf:
    """Return a composed message, without the pieces whose stated costs show that they cannot fit."""
    pieces = node.pieces
    if bound is not None and len(pieces) > 1:
        room = int(max(bound, section.scope.floor) * GENEROUS)
        kept: list[int] = []
        for index in by_rank(pieces):
            room -= pieces[index].tokens or 0
            if room < 0 and kept:
                break
            kept.append(index)
        if len(kept) < len(pieces):
            pieces = tuple([pieces[index] for index in sorted(kept)])
    message = compose_message(node, pieces)
    leaf = Leaf(node, section, codec.cost(message))
    leaf.messages = (message,)
    leaf.pieces = pieces
    if len(pieces) < len(node.pieces):
        leaf.rule, leaf.reason = "pieces", LOWEST
    return leaf


def _smaller_limit(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
