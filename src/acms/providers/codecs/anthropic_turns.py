"""Convert messages to turns that the Messages API accepts: the order of roles, joined and omitted parts."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from acms.log.native_items import AS_GIVEN, item_text
from acms.model import Media, Part, Raw, Reasoning, Role, Text, ToolCall, ToolResult
from acms.prompt_types import PromptMessage
from acms.providers.codecs import anthropic_blocks
from acms.text.chat_messages import NO_RESULT, ORPHAN, wrap_text

__all__ = ["BEGINNING", "Arranged", "Arranging", "SentMessage", "Turn", "arrange_turns", "speaker_name"]

BEGINNING = "(The beginning of the conversation is not shown.)"
"""What the user says when the first message shown is the assistant's: the first turn must be the user's."""

DEVELOPER = "developer messages are sent as system text"
TOLD = "system text after the first message is sent as text of the user, marked as a reminder"
NAMES = (
    "a name, for which the format has no place, stands before the text of a user, and is left out elsewhere"
)
BLANK = "texts without a word are left out: the provider refuses them"
ORPHANS = "tool results without a call are sent as text of the user, marked as a tool result"
OPEN = "tool calls without a result get one that says so"
LATE = "late tool results are moved behind their calls"
IDS = "ids and names that the provider would refuse, and ids used twice, are replaced"
ARGUMENTS = 'arguments that are no JSON object are sent as {"_raw": …}'
UNSIGNED = "reasoning without the provider's signature is left out"
UNSENT = "signed reasoning is left out: it is not known that this model takes it back"
MISPLACED = "reasoning that does not begin an assistant message, or ends one, is left out"
MEDIA = "media that the format cannot hold are named in text"
FOREIGN = "items of other vendors are left out"
READ = "items of other vendors are shown as text"
UNPAIRED = (
    "calls of the provider's own tools are left out without their result, and results without their call"
)
MISFITS = "parts that a role cannot have are left out"
CALLS = "tool calls are moved to the end of their message: nothing may follow them there"
BEGUN = "a message of the user is put before a conversation that begins with the assistant"
FIRST = "a compaction is put in front of the messages: it stands for what came before them"
NEWER = "of several compactions only the newest is sent: it stands for the others too"
ENDS = "white space at the end of the last answer is left out"

_UNFIT = re.compile(r"[^a-zA-Z0-9_-]")


class SentPart(NamedTuple):
    """A part as it is sent, and the number of the message that it came from."""

    part: Part
    at: int


@dataclass(slots=True)
class _Call:
    part: ToolCall
    at: int
    result: ToolResult | None = None
    #: Number of the message that answered it.
    answer: int = 0
    #: Parts that precede the call and belong to it.
    prefix: tuple[SentPart, ...] = ()


@dataclass(slots=True)
class Turn:
    """An unfinished turn: consecutive parts of one role."""

    role: Role
    shown: list[SentPart] = field(default_factory=list)
    calls: list[_Call] = field(default_factory=list)
    sources: dict[str, None] = field(default_factory=dict)
    #: Sources of the results of its calls.
    answered: dict[str, None] = field(default_factory=dict)


class SentMessage(NamedTuple):
    """One message as it is sent; results come first in one of the user."""

    role: Role
    shown: tuple[SentPart, ...]
    sources: tuple[str, ...]
    #: How many of them are results, and the sources of those.
    results: int = 0
    answered: tuple[str, ...] = ()

    def messages(self) -> Iterator[PromptMessage]:
        """Yield it as messages: results are of the role tool."""
        for role, shown, sources in (
            (Role.TOOL, self.shown[: self.results], self.answered),
            (self.role, self.shown[self.results :], self.sources),
        ):
            if shown:
                yield PromptMessage(role=role, parts=tuple([one.part for one in shown]), sources=sources)


class Arranged(NamedTuple):
    """A prompt as it is sent, and notes on the changes made for it."""

    said: tuple[SentMessage, ...]
    notes: tuple[str, ...]


def arrange_turns(
    messages: Sequence[PromptMessage], *, system: bool, reasoning: bool, cited: bool = False
) -> Arranged:
    """Return the turns of a prompt.

    `system` says whether the model takes system messages later on, `reasoning` whether signed reasoning is sent back,
    `cited` whether each passage that was recalled is a part by itself.
    """
    return Arranging(system, reasoning, cited).of(messages)


class Arranging:
    """Makes turns of messages; another format overrides the steps in which it differs."""

    #: Vendor of the items that are sent as they are, or not at all.
    _own = "anthropic"

    def __init__(self, system: bool, reasoning: bool, cited: bool) -> None:
        self._system = system
        self._cited = cited
        self._reasoning = reasoning
        self._turns: list[Turn] = []
        self._waiting: dict[str, list[tuple[str | None, Turn, _Call]]] = {}
        self._notes: dict[str, None] = {}
        #: The compaction that all other messages follow, and its sources.
        self._first: tuple[SentPart, tuple[str, ...]] | None = None

    def of(self, messages: Sequence[PromptMessage]) -> Arranged:
        """Return the turns of a prompt; once."""
        for index, message in enumerate(messages):
            self._add(index, message)
        self._serve()
        self._trim()
        self._place()
        self._begin()
        self._name()
        return Arranged(tuple(self._sent_messages()), tuple(self._notes))

    # ── one message after the other ─────────────────────────────────────────────────────────────────────────────────

    def _add(self, index: int, message: PromptMessage) -> None:
        if message.name is not None:
            self._notes[NAMES] = None
        role = message.role
        if role is Role.DEVELOPER:
            self._notes[DEVELOPER] = None
            role = Role.SYSTEM
        if role is Role.TOOL:
            role = Role.USER
        name = speaker_name(message)
        turn: Turn | None = None
        made: list[tuple[str, Turn, _Call]] = []
        for one in self._parts(message):
            if isinstance(one, ToolResult):
                self._answer(one, index, message)
                turn = None
                continue
            part = self._part(one, role)
            if part is None or (isinstance(part, Raw) and self._comes_first(part, index, message, role)):
                continue
            if turn is None or turn is not self._turns[-1]:
                turn = self._turn(role, message)
            turn.sources.update(dict.fromkeys(message.sources))
            if name:
                said, name = anthropic_blocks.prefix_user_name(name, part), ""
                turn.shown += [SentPart(one, index) for one in said]
            elif isinstance(part, ToolCall):
                call = _Call(part, index, prefix=self._taken(turn, index))
                turn.calls.append(call)
                made.append((part.call_id, turn, call))
            else:
                if turn.calls and not self._precedes(part):
                    self._notes[CALLS] = None
                turn.shown.append(SentPart(part, index))
        for id_, turn, call in reversed(made):  # of two with one id in a message the first is answered first
            self._waiting.setdefault(id_, []).append((message.group, turn, call))

    def _taken(self, turn: Turn, index: int) -> tuple[SentPart, ...]:
        """Remove the parts that belong to the following call from the end of a message, and return them."""
        last = turn.shown[-1] if turn.shown else None
        return (turn.shown.pop(),) if last and last.at == index and self._precedes(last.part) else ()

    def _precedes(self, one: Part) -> bool:
        """Return whether a part belongs to the call that follows it."""
        return False

    def _parts(self, message: PromptMessage) -> Iterable[Part]:
        """Return the parts of a message, with each recalled passage by itself where these are cited."""
        if not self._cited or message.role is not Role.USER:
            return message.parts
        return [
            each for one in message.parts for each in anthropic_blocks.split_recalled_passages(one) or (one,)
        ]

    def _comes_first(self, part: Raw, index: int, message: PromptMessage, role: Role) -> bool:
        """Return whether an item is a compaction that must come first; if so, remember it.

        It is signed, or comes from a log that leaves out the compacted messages; then other parts may precede it.
        """
        signed = anthropic_blocks.comes_first(part)
        others = [one for one in message.parts if not isinstance(one, Raw | Reasoning)]
        summary = message.sources and all(self._part(one, role) is None for one in others)
        if signed is None or not (signed or summary):
            return False
        if self._first is not None:
            self._notes[NEWER] = None
        elif any(turn.role is not Role.SYSTEM for turn in self._turns):
            self._notes[FIRST] = None
        self._first = SentPart(part, index), message.sources
        return True

    def _turn(self, role: Role, message: PromptMessage) -> Turn:
        """Return the turn to continue, or begin one.

        Calls that follow calls are parallel to them; text that follows calls comes after the answers.
        """
        last = self._turns[-1] if self._turns else None
        if last is not None and last.role is role:
            if role is not Role.ASSISTANT or not last.calls:
                return last
            if all(isinstance(part, ToolCall) for part in message.parts) and not any(
                call.result for call in last.calls
            ):
                return last
        self._turns.append(Turn(role))
        return self._turns[-1]

    def _answer(self, result: ToolResult, index: int, message: PromptMessage) -> None:
        waiting = self._open(result.call_id, message.group)
        output = result.output
        if output and output.isspace():
            self._notes[BLANK] = None
            output = ""
        if waiting:
            turn, call = waiting
            if turn is not self._turns[-1]:
                self._notes[LATE] = None
            call.result, call.answer = ToolResult(result.call_id, output, result.is_error), index
            turn.answered.update(dict.fromkeys(message.sources))
            return
        self._notes[ORPHANS] = None
        if output and output != NO_RESULT:
            turn = self._turn(Role.USER, message)
            turn.shown.append(SentPart(Text(wrap_text(output, ORPHAN)), index))
            turn.sources.update(dict.fromkeys(message.sources))

    def _open(self, id_: str, group: str | None) -> tuple[Turn, _Call] | None:
        """Return the latest open call that an answer may be to, open no more: of its group where both have one."""
        waiting = self._waiting.get(id_, [])
        for at in range(len(waiting) - 1, -1, -1):
            of, turn, call = waiting[at]
            if of is None or group is None or of == group:
                del waiting[at]
                return turn, call
        return None

    def _part(self, one: Part, role: Role) -> Part | None:
        """Return a part as it can be sent by a role; None when it cannot."""
        match one:
            case Text():
                return one if one.text and not one.text.isspace() else self._without(BLANK)
            case Media():
                return self._media(one, role)
            case Raw():
                return self._item(one, role)
            case Reasoning():
                if not one.signature:
                    return self._without(UNSIGNED)
            case ToolCall() | ToolResult():
                pass
        if role is not Role.ASSISTANT:
            return self._without(MISFITS)
        if isinstance(one, ToolCall):
            return self._call(one)
        if not self._reasoning and anthropic_blocks.is_reasoning_part(one):
            return self._without(UNSENT)
        return one

    def _item(self, one: Raw, role: Role) -> Part | None:
        """Return an item of the vendor as it can be sent by a role; None when it cannot."""
        block = anthropic_blocks.raw_to_block(one)
        if block is None:
            return self._read(one)
        if role is Role.SYSTEM or not anthropic_blocks.is_allowed_block(block, user=role is Role.USER):
            return self._without(MISFITS)
        if not self._reasoning and anthropic_blocks.is_reasoning_part(one):
            return self._without(UNSENT)
        return anthropic_blocks.block_to_part(block)

    def _read(self, one: Raw) -> Text | None:
        """Return the content of an item of another vendor, as a text; None if it has none."""
        said = "" if one.vendor == self._own else item_text(one)
        if said:
            self._notes[READ] = None
            return Text(said)
        return None if one.vendor == AS_GIVEN else self._without(FOREIGN)

    def _media(self, one: Media, role: Role) -> Part:
        """Return media as a user can show it, else a mention of it."""
        media = self._sendable(one) if role is Role.USER else None
        if media is not None:
            return media
        self._notes[MEDIA] = None
        return Text(anthropic_blocks.describe_media(one))

    def _sendable(self, one: Media) -> Media | None:
        """Return media as the provider can fetch or hold them; None when it cannot."""
        return anthropic_blocks.to_sendable_media(one)

    def _call(self, one: ToolCall) -> ToolCall:
        """Return a call with arguments that are an object."""
        _, written, valid = anthropic_blocks.parse_call_arguments(one.arguments)
        if not valid:
            self._notes[ARGUMENTS] = None
        return ToolCall(one.call_id, one.name, written)

    def _without(self, note: str) -> None:
        self._notes[note] = None

    # ── all of them ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _serve(self) -> None:
        """Leave out calls of the provider's own tools without a result, and results without a call: it refuses them.

        A call may be open at the end, where the model continues with it: only its other tools may follow it.
        """
        called: set[str] = set()
        unpaired: list[SentPart] = []
        answered: set[str] = set()
        for sent in [one for turn in self._turns for one in turn.shown]:
            if (found := anthropic_blocks.server_tool_reference(sent.part)) is None:
                continue
            id_, result = found
            if not result:
                called.add(id_)
            elif id_ in called:
                answered.add(id_)
            else:
                unpaired.append(sent)
        last = True
        for turn in reversed(self._turns):
            last = last and turn.role is Role.ASSISTANT
            for sent in reversed(turn.shown):
                found = anthropic_blocks.server_tool_reference(sent.part)
                last = last and found is not None
                if found is not None and found[0] in called - answered and not last:
                    unpaired.append(sent)
        if unpaired:
            self._notes[UNPAIRED] = None
            for turn in self._turns:
                turn.shown = [one for one in turn.shown if one not in unpaired]

    def _trim(self) -> None:
        """Leave out reasoning where it is refused: not first, last, or in an answer that the model is to go on with."""
        last = True
        kept: list[Turn] = []
        for turn in reversed(self._turns):
            if turn.role is Role.ASSISTANT:
                self._trim_turn(turn, open_=last and not turn.calls)
            if turn.shown or turn.calls:
                kept.append(turn)
                last = False
        kept.reverse()
        self._turns = kept
        if kept and kept[-1].role is Role.ASSISTANT and not kept[-1].calls:
            final, index = kept[-1].shown[-1]
            if isinstance(final, Text) and final.text != final.text.rstrip():
                self._notes[ENDS] = None
                kept[-1].shown[-1] = SentPart(Text(final.text.rstrip()), index)

    def _trim_turn(self, turn: Turn, *, open_: bool) -> None:
        shown = turn.shown
        if self._first is not None and any(map(_is_effective_compaction, shown)):
            self._notes[NEWER] = None
            shown = [one for one in shown if not _is_effective_compaction(one)]
        before = len(shown)
        first = next((one for one in shown if not _is_compaction(one)), None)
        open_ = open_ and bool(shown) and anthropic_blocks.server_tool_reference(shown[-1].part) is None
        if open_ or (first is not None and not _is_reasoning_part(first)):
            shown = [one for one in shown if not _is_reasoning_part(one)]
        while shown and not turn.calls and _is_reasoning_part(shown[-1]):
            shown.pop()
        if len(shown) < before:
            self._notes[MISPLACED] = None
        turn.shown = shown

    def _place(self) -> None:
        """Join turns of one role, and convert system text to user text where the system may not speak."""
        found: list[Turn] = []
        for at, turn in enumerate(self._turns):
            if turn.role is Role.SYSTEM and at > 0 and not self._may_stand(found, at):
                self._notes[TOLD] = None
                turn.role = Role.USER
                turn.shown = [
                    SentPart(Text(wrap_text(part.text, anthropic_blocks.REMINDER)), index)
                    for part, index in turn.shown
                    if isinstance(part, Text)
                ]
            last = found[-1] if found else None
            if last is not None and last.role is turn.role and turn.role is not Role.ASSISTANT:
                last.shown += turn.shown
                last.sources.update(turn.sources)
            else:
                found.append(turn)
        self._turns = found

    def _begin(self) -> None:
        """Let a conversation begin as it may: with a compaction, else with the user."""
        found = self._turns
        at = 1 if found and found[0].role is Role.SYSTEM else 0
        if self._first is not None:
            first, sources = self._first
            first = first._replace(at=_first_message_index(found[at]) if len(found) > at else first.at)
            if len(found) == at or found[at].role is not Role.ASSISTANT:
                found.insert(at, Turn(Role.ASSISTANT))
            found[at].shown.insert(0, first)
            found[at].sources = {**dict.fromkeys(sources), **found[at].sources}
        elif (
            len(found) > at
            and found[at].role is Role.ASSISTANT
            and not any(map(_is_effective_compaction, found[at].shown[:1]))
        ):
            self._notes[BEGUN] = None
            opening = SentPart(Text(BEGINNING), _first_message_index(found[at]))
            found.insert(at, Turn(Role.USER, [opening]))

    def _may_stand(self, before: Sequence[Turn], at: int) -> bool:
        """Whether a system message is taken: behind one of the user, and before one of the assistant or last."""
        after = self._turns[at + 1 : at + 2]
        behind = before[-1].role is Role.USER or bool(before[-1].calls)
        return self._system and behind and all(turn.role is Role.ASSISTANT for turn in after)

    def _name(self) -> None:
        """Give every call an id and a name that are accepted, no id twice, and every call an answer."""
        taken: dict[str, int] = {}
        for turn in self._turns:
            for call in turn.calls:
                part = call.part
                id_ = _generate_unused_id(part.call_id, taken)
                call.part = ToolCall(id_, anthropic_blocks.sanitize_tool_name(part.name), part.arguments)
                if call.part != part:
                    self._notes[IDS] = None
                if call.result is None:
                    self._notes[OPEN] = None
                    call.result, call.answer = ToolResult(id_, NO_RESULT), call.at
                elif call.result.call_id != id_:
                    call.result = ToolResult(id_, call.result.output, call.result.is_error)

    def _sent_messages(self) -> Iterator[SentMessage]:
        results: list[SentPart] = []
        answered: Mapping[str, None] = {}
        for turn in self._turns:
            if turn.role is Role.USER:
                yield SentMessage(
                    Role.USER, (*results, *turn.shown), tuple(turn.sources), len(results), tuple(answered)
                )
                results, answered = [], {}
                continue
            if results:
                yield SentMessage(Role.USER, tuple(results), (), len(results), tuple(answered))
            calls = [one for call in turn.calls for one in (*call.prefix, SentPart(call.part, call.at))]
            yield SentMessage(turn.role, (*turn.shown, *calls), tuple(turn.sources))
            results = [SentPart(call.result, call.answer) for call in turn.calls if call.result is not None]
            answered = turn.answered
        if results:
            yield SentMessage(Role.USER, tuple(results), (), len(results), tuple(answered))


def speaker_name(message: PromptMessage) -> str:
    """Return the name that stands before the text of a message of the user; "" for none."""
    return message.name.strip() if message.name is not None and message.role is Role.USER else ""


def _is_reasoning_part(one: SentPart) -> bool:
    return anthropic_blocks.is_reasoning_part(one.part)


def _generate_unused_id(id_: str, taken: dict[str, int]) -> str:
    """Return an id as it is accepted, no longer than it was (or than twelve characters) where it is taken already.

    `taken` holds how often each was asked for, so that an id used a thousand times takes no thousand tries each time.
    """
    fit = _UNFIT.sub("_", id_) or "call"
    longest = anthropic_blocks.ID[1]
    if len(fit) > longest:
        digest = hashlib.sha256(id_.encode("utf-8", "surrogatepass")).hexdigest()[:11]
        fit = f"{fit[: longest - 12]}_{digest}"
    found, number = fit, taken.get(fit, 0)
    room = max(len(fit), anthropic_blocks.ID[0])
    while found in taken:
        number += 1
        ending = f"_{number}"
        found = fit[: room - len(ending)] + ending
    taken[fit] = max(number, 1)
    taken.setdefault(found, 1)
    return found


def _is_effective_compaction(one: SentPart) -> bool:
    """Return whether a part is a compaction with content."""
    return isinstance(one.part, Raw) and anthropic_blocks.comes_first(one.part) is not None


def _is_compaction(one: SentPart) -> bool:
    """Return whether a part is a compaction, with or without content."""
    block = anthropic_blocks.raw_to_block(one.part) if isinstance(one.part, Raw) else None
    return block is not None and block["type"] == "compaction"


def _first_message_index(turn: Turn) -> int:
    return turn.shown[0].at if turn.shown else turn.calls[0].at
