"""Placements: the positions at which a session's prompts show recalled content, so that requests grow at their end.

A provider reads from its cache the prefix a request shares with the one before, up to the first change, and accepts
signed reasoning only after the exact prefix it was produced under. Placing a recall again each turn would change the
request in its middle, every turn. So the content recalled for a turn becomes a block before that turn's user message
and stays there, before everything that follows, until the budget is full. Then a new *epoch* begins with the newest
messages and a new recall.

The positions cannot be derived from the log alone (recalls depend on the question, and on vectors that arrive late), so
they are kept in a record of ids and stretches, without text, beside the log (decision 0060). Everything here is a pure
function of such a record and of the entries read; `acms.prompt.staying` reads and stores.
"""

from __future__ import annotations

import json
import re
import zlib
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from datetime import datetime
from hashlib import sha256
from typing import Any, NamedTuple

from acms.knowledge import DOUBT
from acms.log.encoding import is_summary, parse_entry_id
from acms.log.in_force import Cover, is_automatic_summary, is_sealed
from acms.log.native_items import AS_GIVEN
from acms.log.validity import Period, label_of
from acms.model import Entry, Json, Kind, Part, Raw, Reasoning, Role, State, Text, ToolCall, ToolResult
from acms.plan.nodes import Atom, Composed, Piece, Placed
from acms.ports import Codec, TokenCounter
from acms.prompt.cache_forecast import find_hoisted_roles
from acms.prompt.manifest import Quote, Segment, canonical
from acms.prompt.manifest_writer import Quotable, fingerprint_message, join_segments, quote_text
from acms.prompt_types import PromptMessage, Tool
from acms.recall.pipeline import Gathered
from acms.results import ContextItem
from acms.text import condense

NEWEST = 0.15
"""Share of the room that the newest messages take when an epoch begins: questions about them need no recall."""

HALF = 0.5
"""The same of a history without a recall beside it."""

BEGUN = 0.4
"""Least share of the budget that an epoch begins with: tokens a recall does not need show more of the history."""

MOST_RECALLED = 6_000
"""Tokens that a turn recalls at most: a larger budget holds more turns, which share their recalls."""

RESULT = 12
"""A condensed output of a tool takes one part in so many of a prompt."""
NEWEST_RESULT = 0.85
"""Share of the room that the newest output of a tool may fill in its own turn, if it does not fit whole."""

FILLED = 0.6
"""Share of a recall's budget that is filled by score alone."""
OWN = 2 / 3
"""Share of the room beyond which the newest turn is cut, so that it can go on growing."""
LOOP = 1 / 3
"""Share of the room that is left free for a loop of tools, at most."""
INSTRUCTIONS = 0.9
"""Share of the room that the system messages of a log may take: the newest message needs the rest."""
FAR = 32
"""How many rooms back the message that began a turn is looked for."""

CUTOFF = 0.2
"""Least relevance, relative to the best answer, of content recalled beyond the share `FILLED`."""

_BREAK = re.compile(rf"{condense.MARK.pattern}|\n")

_REASONING = ("reasoning", "redacted_thinking")
"""Types of items that hold encrypted reasoning."""

HASH = 16
"""Hex digits of the hash of a request."""
SENT = 400
"""Newest requests of an epoch whose hashes are kept."""

TAG = 0xFFFF
"""A query is told from others by 16 bits of a hash, which say nothing about its text."""


class Quoted(NamedTuple):
    """A piece of a block: which entries it shows, and which stretches of them."""

    sources: tuple[str, ...]
    text: tuple[Segment, ...]


class Block(NamedTuple):
    """The content recalled for one turn, and its position."""

    #: The block goes before everything that came after this version of the log.
    after: int
    tag: int
    pieces: tuple[Quoted, ...]


class Placements(NamedTuple):
    """An epoch: where the history starts, and the blocks among it."""

    #: Tokens of the log before the first message shown, and the version of that message.
    start: int
    first: int
    #: Version of the log when the epoch began: reasoning from before was produced under another prefix.
    began: int
    #: Generation of erasures of the log then.
    generation: int
    #: Hashes of the requests that were rendered in it: reasoning is sent again only behind one of them.
    sent: tuple[str, ...] = ()
    #: Entries in front of it: system messages, summaries with the tokens of the text that is shown, a question.
    lead: tuple[tuple[str, int], ...] = ()
    blocks: tuple[Block, ...] = ()
    #: Labels of messages and summaries of the history that may be outdated, by id.
    labels: tuple[tuple[str, str], ...] = ()
    #: Calls of tools by version, each with the tokens that an output of it is shown with at most, once it was shown so.
    outputs: tuple[tuple[int, int], ...] = ()

    @property
    def ids(self) -> list[str]:
        """Ids of the entries that the summaries in front and the blocks show."""
        shown = [id for block in self.blocks for piece in block.pieces for id in piece.sources]
        return [*(id for id, _ in self.lead), *shown]

    def pack(self) -> str:
        """Write it as compressed text: the same ids and field names repeat many times."""
        placed: dict[str, Json] = {
            "start": self.start,
            "first": self.first,
            "began": self.began,
            "generation": self.generation,
            "sent": list(self.sent),
            "lead": list(map(list, self.lead)),
            "labels": list(map(list, self.labels)),
            "outputs": list(map(list, self.outputs)),
            "blocks": [
                {
                    "after": block.after,
                    "tag": block.tag,
                    "pieces": [
                        [list(piece.sources), list(map(_segment_to_json, piece.text))]
                        for piece in block.pieces
                    ],
                }
                for block in self.blocks
            ],
        }
        return b64encode(zlib.compress(canonical(placed).encode("utf-8", "surrogatepass"))).decode()

    @classmethod
    def unpack(cls, packed: str) -> Placements:
        """Read one back."""
        data = json.loads(zlib.decompress(b64decode(packed)))
        return cls(
            start=data["start"],
            first=data["first"],
            began=data["began"],
            generation=data["generation"],
            sent=tuple(data["sent"]),
            lead=tuple((id, tokens) for id, tokens in data["lead"]),
            labels=tuple((id, label) for id, label in data.get("labels", ())),
            outputs=tuple((version, tokens) for version, tokens in data.get("outputs", ())),
            blocks=tuple(
                Block(
                    block["after"],
                    block["tag"],
                    tuple(
                        Quoted(tuple(ids), tuple(map(_segment_from_json, text)))
                        for ids, text in block["pieces"]
                    ),
                )
                for block in data["blocks"]
            ),
        )

    def inherited(self, fork: int) -> Placements | None:
        """Return the part that a fork at a version continues with, or None when the epoch began later."""
        if self.began > fork:
            return None
        return self._replace(
            blocks=tuple(block for block in self.blocks if block.after <= fork),
            outputs=tuple(one for one in self.outputs if one[0] <= fork),
        )


def _segment_to_json(one: Segment) -> Json:
    return one if isinstance(one, str) else list(one)


def _segment_from_json(one: Any) -> Segment:
    return one if isinstance(one, str) else Quote(*one)


# ── is it still so ──────────────────────────────────────────────────────────────────────────────────────────────────


def is_epoch_valid(kept: Placements, shown: Cover, found: Cover, rows: Sequence[Entry | None]) -> bool:
    """Return whether an epoch can go on: nothing it shows was replaced, retracted, erased or lost since it began.

    `shown` covers the entries superseded or retracted in the log, `found` those that a recall cannot find, `rows` are
    the entries that `kept.ids` name. An automatic summary takes effect with the next epoch; the messages a summary
    covers are recalled in their original wording.
    """
    news = shown.after(kept.began)
    if any(not is_automatic_summary(entry) and _changes_history(entry, kept.first) for entry in news):
        return False
    shown, found = shown.asked(kept.began), found.asked(kept.began)
    lead = dict(kept.lead)
    return all(
        row is not None
        and row.state is State.LIVE
        and (shown if row.id in lead else found).by(row.version) is None
        and not (is_sealed(row) and shown.outdates(row))
        for row in rows
    )


def _changes_history(entry: Entry, first: int) -> bool:
    """Return whether an entry changes the history from a version on; one fact replaces another, which is none of it."""
    if entry.kind is Kind.SUMMARY:
        return True
    return entry.kind is not Kind.FACT and any(last >= first for _, last in entry.replaces)


def group_foreign_ids(kept: Placements, lineage: Sequence[str]) -> dict[str, list[str]]:
    """Return the ids that blocks show of other logs, by log: a profile, another session."""
    found: dict[str, list[str]] = {}
    for id in kept.ids:
        place = parse_entry_id(id)
        if place is not None and place[0] not in lineage:
            found.setdefault(place[0], []).append(id)
    return found


# ── where a turn begins ─────────────────────────────────────────────────────────────────────────────────────────────


def find_turn_start(units: Sequence[Atom], *, asked: bool) -> int:
    """Return the unit before which a block of the newest turn stands; their number when that is behind all of them.

    That is the newest message of a user, unless it was answered: by a text with no call of a tool behind it. `asked`
    says that the caller wrote one behind them.
    """
    if asked:
        return len(units)
    called = False
    for place in range(len(units) - 1, -1, -1):
        message = units[place].messages[0]
        if message.role is Role.USER and not any(map(is_summary, message.sources)):
            return place
        called = called or any(isinstance(part, ToolCall) for part in message.parts)
        if message.role is Role.ASSISTANT and message.text and not called:
            break
    return len(units)


def call_tokens_by_turn(units: Sequence[Atom], costs: Sequence[int]) -> list[int]:
    """Return the tokens of each turn's tool calls and their answers, oldest first."""
    found, now = list[int](), 0
    for unit, cost in zip(units, costs, strict=True):
        if unit.messages[0].role is Role.USER:
            found.append(now)
            now = 0
        elif len(unit.messages) > 1:
            now += cost
    return [*found, now]


def index_after_version(units: Sequence[Atom], after: int) -> int:
    """Return the unit before which a block stands: the first of those that all came after a version."""
    place = len(units)
    while place and units[place - 1].first > after:
        place -= 1
    return place


def tag_of_query(query: str) -> int:
    """Return a short hash that identifies a query."""
    return int.from_bytes(sha256(query.encode("utf-8", "surrogatepass")).digest()[:4], "big") & TAG


def hash_prompt_shape(*parts: Json) -> str:
    """Return the name of the record for prompts of one shape."""
    return sha256(canonical(list(parts)).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def start_of_exchange(units: Sequence[Atom], start: int, most: int) -> int:
    """Return the first unit from `start` on that does not answer an omitted message, at most `most`."""
    while 0 < start < most and units[start].messages[0].role is Role.ASSISTANT:
        start += 1
    return start


def question_of(lead: Sequence[Atom]) -> str:
    """Return the message of the user that stands in front of a history; "" when none does."""
    said = [unit.messages[0] for unit in lead if unit.messages[0].role is Role.USER]
    return next((one.text for one in reversed(said) if not any(map(is_summary, one.sources))), "")


def is_label_current(shown: str | None, period: Period, entry: Entry, moment: datetime | None) -> bool:
    """Return whether the shown text of an entry carries its current label; None means it is not shown here.

    An ended fact is not shown at all, and a tool call and its answer have no label.
    """
    if entry.kind is Kind.FACT and moment is not None and period.over(moment):
        return False
    if shown is None or entry.group is not None or label_of(entry.content):  # written like a label
        return True
    if entry.kind is Kind.FACT:
        return period.doubt in shown and bool(period.doubt) == (DOUBT in shown)
    return label_of(shown).strip() == period.warning(moment)


def label_in_front(entry: Entry, gathered: Gathered) -> str:
    """Return the label of an entry at the front; none for a question, which waits for its answer."""
    return "" if entry.role is Role.USER else gathered.labels.of(entry)


# ── the shown text ──────────────────────────────────────────────────────────────────────────────────────────────────


def build_recall_block(
    after: int, query: str, pieces: Sequence[Piece], told: Mapping[str, Quotable]
) -> Block:
    """Return recalled pieces as they are kept: by the stretches of the entries they show."""
    found = [
        Quoted(piece.sources, quote_text(piece.text, [id for id in piece.sources if id in told], told))
        for piece in pieces
    ]
    return Block(after, tag_of_query(query), tuple(found))


def pieces_of_block(kept: Block, told: Mapping[str, Quotable]) -> tuple[Piece, ...]:
    """Return the pieces of a block as they were shown."""
    return tuple(
        Piece(join_segments(piece.text, told), piece.sources[0], sources=piece.sources)
        for piece in kept.pieces
    )


def select_answers(items: Sequence[ContextItem], least: int, cutoff: float) -> list[ContextItem]:
    """Return the items worth their tokens: the best until they take `least`, then those not far below the best.

    Answers of one tool call are one. In their order.
    """
    groups: dict[str, list[ContextItem]] = {}
    for item in items:
        groups.setdefault(item.group or item.id, []).append(item)
    ordered = sorted(groups.values(), key=lambda group: -max(item.score for item in group))
    best = max((item.relevance for item in items), default=0.0)
    chosen: set[str] = set()
    taken = 0
    for group in ordered:
        if taken >= least and max(item.relevance for item in group) < cutoff * best:
            continue
        chosen.update(item.id for item in group)
        taken += sum(item.token_count for item in group)
    return [item for item in items if item.id in chosen]


def collect_visible_texts(
    units: Sequence[Atom], blocks: Sequence[Block], told: Mapping[str, Quotable]
) -> dict[str, str]:
    """Return the shown text of each entry, by its id."""
    found: dict[str, str] = {}
    for message in (message for unit in units for message in unit.messages):
        text = "\n".join(map(_part_text, message.parts))
        found.update((id, found.get(id, "") + text) for id in message.sources)
    for piece in (piece for one in blocks for piece in one.pieces):
        text = join_segments(piece.text, told)
        found.update((id, found.get(id, "") + text) for id in piece.sources)
    return found


def _part_text(part: Part) -> str:
    if isinstance(part, ToolResult):
        return part.output
    return part.arguments if isinstance(part, ToolCall) else part.text if isinstance(part, Text) else ""


def covers_content(text: str | None, content: str) -> bool:
    """Return whether the shown text of an entry (None if not shown) contains the content a recall would add."""
    if text is None or not condense.MARK.search(text):
        return text is not None
    return all(fragment.strip() in text for fragment in _BREAK.split(content))


def condense_call(unit: Atom, tokens: int, counter: TokenCounter, question: str) -> Atom:
    """Return a finished tool call whose arguments and outputs each have at most so many tokens.

    The whole call stays in the log. Parts of an output that share words with the question are kept first.
    """
    if not any(message.role is Role.TOOL for message in unit.messages):
        return unit
    found = [_condense_message(one, tokens, counter, question) for one in unit.messages]
    return unit._replace(messages=tuple(found))


def _condense_message(
    message: PromptMessage, tokens: int, counter: TokenCounter, question: str
) -> PromptMessage:
    known = message.tokens if message.counter == counter.name else None
    if message.role is Role.TOOL and known is not None and known <= tokens:
        return message
    entry = message.sources[0] if message.sources else ""
    parts = tuple([_condense_part(part, tokens, counter, question, entry) for part in message.parts])
    return message if parts == message.parts else replace(message, parts=parts, tokens=None, counter="")


def _condense_part(part: Part, tokens: int, counter: TokenCounter, question: str, entry: str) -> Part:
    if isinstance(part, ToolCall):
        arguments = condense.condense_arguments(part.arguments, tokens, counter)
        return part if arguments == part.arguments else replace(part, arguments=arguments)
    if not isinstance(part, ToolResult):
        return part
    output = condense.condense_output(part.output, tokens, counter, question=question, entry=entry)
    return replace(part, output=output or condense.CUT)


def variable_costs(unit: Atom, counter: TokenCounter) -> list[int]:
    """Return the tokens of each part of a tool call that may be condensed: arguments and outputs."""
    return [
        counter.count(part.arguments if isinstance(part, ToolCall) else part.output)
        for message in unit.messages
        for part in message.parts
        if isinstance(part, ToolCall | ToolResult)
    ]


def strip_reasoning(unit: Atom) -> Atom:
    """Return a unit without signed or encrypted reasoning, which holds only behind the prefix it was produced under."""
    if not any(_is_prefix_bound(part) for message in unit.messages for part in message.parts):
        return unit
    return unit._replace(messages=tuple(map(_strip_message_reasoning, unit.messages)))


def _strip_message_reasoning(message: PromptMessage) -> PromptMessage:
    parts = tuple([part for part in message.parts if not _is_prefix_bound(part)])
    return message if len(parts) == len(message.parts) else replace(message, parts=parts or (Text(""),))


def _is_prefix_bound(part: Part) -> bool:
    """Return whether a provider accepts a part only behind the prefix it was produced under."""
    if isinstance(part, Reasoning):
        return bool(part.signature)
    return (
        isinstance(part, Raw)
        and part.vendor != AS_GIVEN
        and any(f'"{kind}"' in part.json for kind in _REASONING)
    )


def strip_old_reasoning(units: Sequence[Atom], began: int) -> list[Atom]:
    """Return units without the reasoning from before an epoch."""
    return [strip_reasoning(unit) if unit.first <= began else unit for unit in units]


def visible_ids(units: Sequence[Atom], blocks: Sequence[Block]) -> frozenset[str]:
    """Return the ids of the entries that units and blocks show."""
    found = {id for unit in units for message in unit.messages for id in message.sources}
    return frozenset(found.union(id for one in blocks for piece in one.pieces for id in piece.sources))


def ends_with_call(units: Sequence[Atom]) -> bool:
    """Return whether the newest unit is a call of a tool with its answer."""
    return bool(units) and len(units[-1].messages) > 1


def interleave_blocks(units: Sequence[Atom], blocks: Sequence[tuple[int, Composed]]) -> list[Atom | Composed]:
    """Return units with blocks among them: each before everything that came after its version."""
    found: list[Atom | Composed] = []
    places = [(index_after_version(units, after), node) for after, node in blocks]
    for place, unit in enumerate(units):
        found += [node for at, node in places if at == place]
        found.append(unit)
    return found + [node for at, node in places if at == len(units)]


def find_newest_start(costs: Sequence[int], share: int, room: int, turn: int) -> int:
    """Return the first of the newest units that fit a share of the room.

    Those of the newest turn, from unit `turn` on, are taken as far as they fit the room itself.
    """
    place = len(costs)
    taken = 0
    while place and taken + costs[place - 1] <= (room if place > turn else share):
        place -= 1
        taken += costs[place]
    return min(place, len(costs) - 1) if costs else 0


# ── the requests a provider has read ────────────────────────────────────────────────────────────────────────────────


def drop_unproven_reasoning(
    placed: Sequence[Placed], sent: AbstractSet[str], codec: Codec, tools: Sequence[Tool]
) -> tuple[tuple[Placed, ...], str]:
    """Return messages without the reasoning of a log that no request is known to have led to, and a hash of them all.

    A provider takes signed reasoning only behind the very request that it answered: tools, system, every message.
    `sent` are the hashes of requests; reasoning stays where one of them is that of all that stands before it.
    """
    front = find_hoisted_roles(codec.normal)
    found = list(placed)
    digest = sha256(
        canonical([[one.name, one.description, one.parameters, one.strict] for one in tools]).encode()
    )
    for place, one in sorted(enumerate(placed), key=lambda each: each[1].message.role not in front):
        message = one.message
        if (
            message.sources
            and any(map(_is_prefix_bound, message.parts))
            and digest.hexdigest()[:HASH] not in sent
        ):
            message = _strip_message_reasoning(message)
            found[place] = one._replace(message=message, tokens=codec.cost(message))
        digest.update(fingerprint_message(message).encode())
    return tuple(found), digest.hexdigest()[:HASH]
