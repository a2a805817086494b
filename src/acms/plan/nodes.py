"""The prompt tree: scopes and leaves, and how each of them may shrink when the budget is short.

The prompt builder makes a tree, and `acms.prompt.fit` reads it, in the order of the prompt. A *leaf* is a message
group (one message, or a tool call with its answers), or one message composed of pieces that can be left out one by one,
such as pins and recalled items.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from acms.model import Role
from acms.plan.prefix_cache import SLACK
from acms.prompt_types import PromptMessage

REQUIRED = 0
"""Priority of the caller's text: never left out."""
PINS = 1
RECALL = 2
"""Priority of recalled text: kept longer than history, not as long as pins."""
SHRINKABLE = 3
"""Priority of history, and of text that the caller lets shrink without a priority."""


class KeptEnd(StrEnum):
    """Which end of a content stays when it is cut."""

    START = "start"
    END = "end"


class MessageGroup(NamedTuple):
    """Messages shown together or not at all: one message, or a tool call with all its answers."""

    messages: tuple[PromptMessage, ...]
    #: Versions of the first and last entry shown; 0 for the caller's text.
    first: int = 0
    last: int = 0
    #: Tokens of all messages of the log before it: a position that never changes. Histories start at such positions.
    before: int = 0
    #: True for a leaf that must stay even when its scope shrinks: the newest message of a history.
    mandatory: bool = False

    @property
    def sources(self) -> tuple[str, ...]:
        """Ids of the entries whose text it shows; one is repeated if several messages show it."""
        return tuple([id for message in self.messages for id in message.sources])


class Piece(NamedTuple):
    """A part of a composed message that can be left out: a pin, a recalled item."""

    text: str
    #: Its identifier in the ledger: the id of an entry, the key of a pin.
    id: str
    #: The lowest goes first; of equals the later one.
    rank: float = 0.0
    #: Entries whose text it shows.
    sources: tuple[str, ...] = ()
    #: Tokens of its text, where they are known; an upper bound.
    tokens: int | None = None


class ComposedMessage(NamedTuple):
    """One message written from pieces: nothing when no piece is left."""

    role: Role
    pieces: tuple[Piece, ...]
    #: Around and between the pieces.
    opening: str = ""
    separator: str = "\n"
    closing: str = ""
    #: Where the pieces come from: "pins", "recall".
    kind: str = "text"
    #: Whether each piece says which entries it is from.
    cited: bool = False


class Omit(NamedTuple):
    """Leave the whole content out when the budget is short."""


class Truncate(NamedTuple):
    """Keep a content within a cap of tokens, always, and shrink it further when the budget is short.

    Whole groups (or pieces) go first, from the end that is not kept; the last one left is cut on a token boundary.
    """

    tokens: int | None = None
    keep: KeptEnd = KeptEnd.END


class Window(NamedTuple):
    """Keep the newest contiguous groups that fit, at least the mandatory ones; move the start in steps."""

    #: Share of its budget that is freed when the start must move, so that it does not move again soon.
    slack: float = SLACK


class Summarise(NamedTuple):
    """Replace the oldest messages of a content with a summary when the budget is short."""

    #: Name of the stored summary.
    id: str
    #: The stored text, and how many leading groups it covers; "" and 0 without a stored text that matches the content.
    text: str = ""
    covers: int = 0
    #: Tokens a summary may have.
    tokens: int = 400
    role: Role = Role.SYSTEM


Strategy: TypeAlias = Omit | Truncate | Window | Summarise


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """A part of a prompt with a priority and, if it can shrink by itself, a strategy to do so."""

    #: Unique among its siblings; paths such as "prompt/history" name scopes in errors and ledgers.
    id: str
    children: tuple[Node, ...] = ()
    #: Lower is kept longer.
    priority: int = REQUIRED
    #: None when it cannot shrink by itself; its children may.
    strategy: Strategy | None = None
    #: Tokens it may have at most, always, and tokens it is not shrunk below.
    ceiling: int | None = None
    floor: int = 0
    #: True for content that changes from turn to turn: it is laid out behind all content that stays the same.
    moves: bool = False


Node: TypeAlias = Scope | MessageGroup | ComposedMessage


def is_path_inside(path: str, scope_path: str) -> bool:
    """Return whether a path of the tree is that of a scope, or of something in it."""
    return f"{path}/".startswith(f"{scope_path}/")


def replace_scopes(tree: Scope, scopes: Mapping[str, Scope], path: str = "") -> Scope:
    """Return a tree with other scopes at some paths."""
    path = path or tree.id
    children: list[Node] = []
    for node in tree.children:
        if isinstance(node, Scope):
            inner_path = f"{path}/{node.id}"
            if inner_path in scopes:
                node = scopes[inner_path]
            elif any(scope_path.startswith(f"{inner_path}/") for scope_path in scopes):
                node = replace_scopes(node, scopes, inner_path)
        children.append(node)
    return replace(tree, children=tuple(children))


def scope_at_path(tree: Scope, path: str) -> Scope:
    """Return the scope at a path of a tree."""
    _, *names = path.split("/")
    for name in names:
        tree = next(node for node in tree.children if isinstance(node, Scope) and node.id == name)
    return tree


def drop_earlier_sections(tree: Scope, priority: int) -> tuple[Scope, int]:
    """Return a tree without the content that shrinks before a priority, and the sum of the floors of that content.

    A floor is the number of tokens to which a section can shrink, so the floors must stay free.
    """
    children: list[Node] = []
    floors = 0
    for node in tree.children:
        # The highest priority number shrinks first.
        if isinstance(node, Scope) and node.strategy is not None and node.priority > priority:
            floors += node.floor
            node = Scope(id=node.id)
        elif isinstance(node, Scope):
            node, inner_floors = drop_earlier_sections(node, priority)
            floors += inner_floors
        children.append(node)
    return replace(tree, children=tuple(children)), floors


# ── results of a fit ────────────────────────────────────────────────────────────────────────────────────────────────


class PlacedMessage(NamedTuple):
    """One message as it will be sent, and where it came from."""

    message: PromptMessage
    #: Scope it came from.
    path: str
    #: "whole", "cut", "pieces" (a composed message), "summary", "placeholder".
    rendition: str = "whole"
    #: Raw tokens by the codec.
    tokens: int = 0
    #: Whether it changes from turn to turn.
    moves: bool = False
    #: Messages of one group share this number: nothing may come between them.
    group: int = 0
    #: Pieces shown, of a composed message.
    pieces: tuple[Piece, ...] = ()
    #: Entries shown, by versions; 0 for the caller's text.
    first: int = 0
    last: int = 0


class Omission(NamedTuple):
    """Something that was left out or cut, and the rule that did it."""

    #: Ids of entries, keys of pins; the path of the scope for the caller's text.
    ids: tuple[str, ...]
    path: str
    #: "truncate", "omit", "window", "summary", "ceiling", "pieces", "condensed".
    rule: str
    reason: str
    tokens: int
    #: False when it is shown in part.
    gone: bool = True


class Step(NamedTuple):
    """One shrinking of one scope by a fit, successful or not."""

    path: str
    priority: int
    strategy: str
    #: Raw tokens of the whole prompt before and after.
    before: int
    after: int


class FittedPrompt(NamedTuple):
    """A prompt within its budget."""

    placed: tuple[PlacedMessage, ...]
    #: Raw tokens of the whole request, base included.
    tokens: int
    omissions: tuple[Omission, ...]
    steps: tuple[Step, ...]
    #: Stored summaries to be written once the prompt is rendered: (id, text, groups it replaces).
    summaries: tuple[tuple[str, str, int], ...] = ()


class NeedSummary(NamedTuple):
    """The request of a fit for a text that can replace some messages, answered with the text, or None without one."""

    id: str
    #: The summary of the messages before them, or "" if there were none.
    existing: str
    groups: tuple[MessageGroup, ...]
    tokens: int
