"""Convert messages to turns that the Messages API accepts: roles in order, parts joined, invalid parts left out.

The constants in capitals are notes: they tell the caller, each once, how its messages were changed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from acms.log.native_items import EXTRA_FIELDS, item_text
from acms.model import Media, Part, Raw, Reasoning, Role, Text, ToolCall, ToolResult
from acms.prompt_types import PromptMessage
from acms.providers.codecs import anthropic_blocks
from acms.text.chat_messages import NO_RESULT, ORPHAN, sanitize_tool_name, wrap_text

__all__ = ["BEGINNING", "Arranged", "Arranging", "SentMessage", "SentPart", "Turn", "speaker_name"]

BEGINNING = "(The beginning of the conversation is not shown.)"
"""Text of a user message that is put before a first message of the assistant: the first turn must be the user's."""

DEVELOPER = "developer messages are sent as system text"
SYSTEM_AS_USER_TEXT = "system text after the first message is sent as text of the user, marked as a reminder"
NAMES_OMITTED = "names are left out of messages that are not the user's: the format has no field for them"
BLANK_TEXTS_OMITTED = "texts without a word are left out: the provider refuses them"
ORPHANS_AS_TEXT = "tool results without a call are sent as text of the user, marked as a tool result"
RESULTS_ADDED = "tool calls without a result get one that says so"
RESULTS_MOVED = "late tool results are moved behind their calls"
IDS_REPLACED = "ids and names that the provider would refuse, and ids used twice, are replaced"
ARGUMENTS = 'arguments that are no JSON object are sent as {"_raw": …}'
UNSIGNED_REASONING_OMITTED = "reasoning without the provider's signature is left out"
SIGNED_REASONING_OMITTED = "signed reasoning is left out: it is not known that this model takes it back"
MISPLACED_REASONING_OMITTED = "reasoning that does not begin an assistant message, or ends one, is left out"
MEDIA_AS_TEXT = "media that the format cannot hold are named in text"
FOREIGN = "items of other vendors are left out"
FOREIGN_AS_TEXT = "items of other vendors are shown as text"
UNPAIRED_OMITTED = (
    "calls of the provider's own tools are left out without their result, and results without their call"
)
MISFITS_OMITTED = "parts that a role cannot have are left out"
CALLS_MOVED = "tool calls are moved to the end of their message: nothing may follow them there"
BEGINNING_ADDED = (
    "a message of the user was added in front: no conversation may begin with the assistant here"
)
COMPACTION_MOVED = "a compaction is moved before the messages: it replaces the earlier ones"
OLDER_COMPACTION_OMITTED = "of several compactions only the newest is sent: it covers the others too"
TRAILING_SPACE_OMITTED = "white space at the end of the last answer is left out"

_INVALID_IN_ID = re.compile(r"[^a-zA-Z0-9_-]")


class SentPart(NamedTuple):
    """A part as it is sent, and the number of the message that it came from."""

    part: Part
    message_index: int


@dataclass(slots=True)
class _Call:
    """A call of an unfinished turn, and its result."""

    part: ToolCall
    message_index: int
    #: Tool group of its message.
    group: str | None
    turn: Turn
    result: ToolResult | None = None
    #: Number of the message that answered it.
    answered_at: int = 0
    #: Parts that precede the call and belong to it.
    prefix: tuple[SentPart, ...] = ()


@dataclass(slots=True)
class Turn:
    """An unfinished turn: consecutive parts of one role."""

    role: Role
    sent_parts: list[SentPart] = field(default_factory=list)
    calls: list[_Call] = field(default_factory=list)
    sources: dict[str, None] = field(default_factory=dict)
    #: Sources of the results of its calls.
    result_sources: dict[str, None] = field(default_factory=dict)


class SentMessage(NamedTuple):
    """One message as it is sent. In a message of the user, tool results come first."""

    role: Role
    sent_parts: tuple[SentPart, ...]
    sources: tuple[str, ...]
    #: Number of tool results among the parts, and the sources of these results.
    result_count: int = 0
    result_sources: tuple[str, ...] = ()

    def messages(self) -> Iterator[PromptMessage]:
        """Yield the message in the form of prompts, in which tool results are a message of the role tool."""
        parts = tuple([sent.part for sent in self.sent_parts])
        if self.result_count:
            yield PromptMessage(role=Role.TOOL, parts=parts[: self.result_count], sources=self.result_sources)
        if len(parts) > self.result_count:
            yield PromptMessage(role=self.role, parts=parts[self.result_count :], sources=self.sources)


class Arranged(NamedTuple):
    """A prompt as it is sent, and notes on the changes made for it."""

    turns: tuple[SentMessage, ...]
    notes: tuple[str, ...]


class Arranging:
    """Converts messages to turns. The codec of another format overrides the steps in which it differs.

    `has_system_messages` says whether the model takes system messages later on, `sends_reasoning` whether signed
    reasoning is sent back, `cites_passages` whether each passage that was recalled is a part by itself.
    """

    #: Vendor of the items that are sent as they are, or not at all.
    _vendor = "anthropic"

    def __init__(self, has_system_messages: bool, sends_reasoning: bool, cites_passages: bool) -> None:
        self._has_system_messages = has_system_messages
        self._sends_reasoning = sends_reasoning
        self._cites_passages = cites_passages
        self._turns: list[Turn] = []
        self._open_calls: dict[str, list[_Call]] = {}
        self._notes: dict[str, None] = {}
        #: The compaction that all other messages follow, and its sources.
        self._leading_compaction: tuple[SentPart, tuple[str, ...]] | None = None

    def arrange(self, messages: Sequence[PromptMessage]) -> Arranged:
        """Return the turns of a prompt. An instance arranges one prompt only."""
        for index, message in enumerate(messages):
            self._add_message(index, message)
        self._omit_unpaired_server_tools()
        self._omit_misplaced_parts()
        self._join_turns()
        self._add_beginning()
        self._complete_calls()
        return Arranged(tuple(self._sent_messages()), tuple(self._notes))

    # ── one message after the other ─────────────────────────────────────────────────────────────────────────────────

    def _add_message(self, index: int, message: PromptMessage) -> None:
        """Add the parts of a message to the turns as they can be sent; results go to the calls they answer.

        A compaction that replaces everything before it is set aside, to lead the prompt. `index` is the message's
        place in the prompt, which each part keeps.
        """
        name = speaker_name(message)
        if message.name is not None and not name:
            self._notes[NAMES_OMITTED] = None
        role = Role.USER if message.role is Role.TOOL else message.role
        if role is Role.DEVELOPER:
            self._notes[DEVELOPER] = None
            role = Role.SYSTEM
        turn: Turn | None = None
        calls: list[_Call] = []
        for original in self._split_parts(message):
            if isinstance(original, ToolResult):
                self._add_result(original, index, message)
                turn = None
                continue
            part = self._sendable_part(original, role)
            if part is None:
                continue
            if isinstance(part, Raw) and self._replaces_logged_messages(part, message, role):
                self._set_leading_compaction(part, index, message)
                continue
            # A result, or another message, has opened a new turn meanwhile.
            if turn is None or turn is not self._turns[-1]:
                turn = self._open_turn(role, message)
            turn.sources.update(dict.fromkeys(message.sources))
            # The speaker is named once, before the first part.
            if name:
                named_parts = anthropic_blocks.prefix_user_name(name, part)
                turn.sent_parts += [SentPart(named_part, index) for named_part in named_parts]
                name = ""
            elif isinstance(part, ToolCall):
                call = _Call(part, index, message.group, turn, prefix=self._take_prefix(turn, index))
                turn.calls.append(call)
                calls.append(call)
            else:
                if turn.calls and not self._precedes_call(part):
                    self._notes[CALLS_MOVED] = None
                turn.sent_parts.append(SentPart(part, index))
        # Results take the newest open call of their id. Reversed, so that of two calls with one id in this message the
        # first one gets the first result.
        for call in reversed(calls):
            self._open_calls.setdefault(call.part.call_id, []).append(call)

    def _take_prefix(self, turn: Turn, index: int) -> tuple[SentPart, ...]:
        """Remove the part that belongs to the following call from the end of a message, and return it."""
        last_part = turn.sent_parts[-1] if turn.sent_parts else None
        if last_part is None or last_part.message_index != index or not self._precedes_call(last_part.part):
            return ()
        return (turn.sent_parts.pop(),)

    def _precedes_call(self, part: Part) -> bool:
        """Return whether a part belongs to the call that follows it."""
        return False

    def _split_parts(self, message: PromptMessage) -> Iterable[Part]:
        """Return the parts of a message, with each recalled passage by itself where these are cited."""
        if not self._cites_passages or message.role is not Role.USER:
            return message.parts
        parts: list[Part] = []
        for part in message.parts:
            parts += anthropic_blocks.split_recalled_passages(part) or [part]
        return parts

    def _replaces_logged_messages(self, item: Raw, message: PromptMessage, role: Role) -> bool:
        """Return whether an item is a compaction that replaces all messages before it, so it must come first.

        A signed one always does. An unsigned one does if it comes from a log (which then leaves out the compacted
        messages) and its message has nothing else to send.
        """
        if not anthropic_blocks.is_effective_compaction(item):
            return False
        other_parts = [part for part in message.parts if not isinstance(part, Raw | Reasoning)]
        is_alone = all(self._sendable_part(part, role) is None for part in other_parts)
        is_logged = bool(message.sources)
        return anthropic_blocks.is_signed(item) or (is_logged and is_alone)

    def _set_leading_compaction(self, item: Raw, index: int, message: PromptMessage) -> None:
        """Put a compaction before all messages; it takes the place of an earlier one."""
        if self._leading_compaction is not None:
            self._notes[OLDER_COMPACTION_OMITTED] = None
        elif any(turn.role is not Role.SYSTEM for turn in self._turns):
            self._notes[COMPACTION_MOVED] = None
        self._leading_compaction = SentPart(item, index), message.sources

    def _open_turn(self, role: Role, message: PromptMessage) -> Turn:
        """Return the turn to continue, or begin one.

        Calls that follow calls are parallel to them; text that follows calls comes after the answers.
        """
        last_turn = self._turns[-1] if self._turns else None
        if last_turn is not None and last_turn.role is role and self._may_continue(last_turn, message):
            return last_turn
        self._turns.append(Turn(role))
        return self._turns[-1]

    def _may_continue(self, turn: Turn, message: PromptMessage) -> bool:
        if turn.role is not Role.ASSISTANT or not turn.calls:
            return True
        makes_calls = all(isinstance(part, ToolCall) for part in message.parts)
        return makes_calls and not any(call.result for call in turn.calls)

    def _add_result(self, result: ToolResult, index: int, message: PromptMessage) -> None:
        """Give a result to the open call that it answers; without one, send it as text of the user."""
        call = self._take_open_call(result.call_id, message.group)
        output = result.output
        if output and output.isspace():
            self._notes[BLANK_TEXTS_OMITTED] = None
            output = ""
        if call is not None:
            if call.turn is not self._turns[-1]:
                self._notes[RESULTS_MOVED] = None
            call.result = ToolResult(result.call_id, output, result.is_error)
            call.answered_at = index
            call.turn.result_sources.update(dict.fromkeys(message.sources))
            return
        self._notes[ORPHANS_AS_TEXT] = None
        if output and output != NO_RESULT:
            turn = self._open_turn(Role.USER, message)
            turn.sent_parts.append(SentPart(Text(wrap_text(output, ORPHAN)), index))
            turn.sources.update(dict.fromkeys(message.sources))

    def _take_open_call(self, call_id: str, group: str | None) -> _Call | None:
        """Return the latest open call with an id, and close it; where both have a group, it must be the same."""
        open_calls = self._open_calls.get(call_id, [])
        for index in range(len(open_calls) - 1, -1, -1):
            call = open_calls[index]
            if call.group is None or group is None or call.group == group:
                return open_calls.pop(index)
        return None

    # ── one part ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _sendable_part(self, part: Part, role: Role) -> Part | None:
        """Return a part as it can be sent by a role, or None if it cannot."""
        match part:
            case Text():
                if not part.text or part.text.isspace():
                    return self._omit_with_note(BLANK_TEXTS_OMITTED)
                return part
            case Media():
                return self._media_or_text(part, role)
            case Raw():
                return self._sendable_item(part, role)
            case ToolCall() | ToolResult():
                if role is not Role.ASSISTANT:
                    return self._omit_with_note(MISFITS_OMITTED)
                return self._sendable_call(part)
            case Reasoning():
                if not part.signature:
                    return self._omit_with_note(UNSIGNED_REASONING_OMITTED)
                if role is not Role.ASSISTANT:
                    return self._omit_with_note(MISFITS_OMITTED)
                if not self._sends_reasoning:
                    return self._omit_with_note(SIGNED_REASONING_OMITTED)
                return part

    def _sendable_item(self, raw: Raw, role: Role) -> Part | None:
        """Return an item of the vendor as it can be sent by a role, or None if it cannot."""
        block = anthropic_blocks.raw_to_block(raw)
        if block is None:
            return self._item_to_text(raw)
        if role is Role.SYSTEM or not anthropic_blocks.is_allowed_block(block, of_user=role is Role.USER):
            return self._omit_with_note(MISFITS_OMITTED)
        if not self._sends_reasoning and anthropic_blocks.is_reasoning_part(raw):
            return self._omit_with_note(SIGNED_REASONING_OMITTED)
        return anthropic_blocks.block_to_part(block)

    def _item_to_text(self, raw: Raw) -> Text | None:
        """Return the content of an item of another vendor as a text, or None if it has none."""
        text = "" if raw.vendor == self._vendor else item_text(raw)
        if text:
            self._notes[FOREIGN_AS_TEXT] = None
            return Text(text)
        return None if raw.vendor == EXTRA_FIELDS else self._omit_with_note(FOREIGN)

    def _media_or_text(self, media: Media, role: Role) -> Part:
        """Return media as a user can show them, else a mention of them."""
        sendable = self._sendable_media(media) if role is Role.USER else None
        if sendable is not None:
            return sendable
        self._notes[MEDIA_AS_TEXT] = None
        return Text(anthropic_blocks.describe_media(media))

    def _sendable_media(self, media: Media) -> Media | None:
        """Return media as the provider can fetch or hold them, or None if it cannot."""
        return anthropic_blocks.to_sendable_media(media)

    def _sendable_call(self, part: ToolCall | ToolResult) -> Part:
        """Return a call with arguments that are an object."""
        if isinstance(part, ToolResult):
            return part
        _, arguments, is_object = anthropic_blocks.parse_call_arguments(part.arguments)
        if not is_object:
            self._notes[ARGUMENTS] = None
        return ToolCall(part.call_id, part.name, arguments)

    def _omit_with_note(self, note: str) -> None:
        self._notes[note] = None

    # ── all turns ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _omit_unpaired_server_tools(self) -> None:
        """Leave out calls of the provider's own tools without a result, and results without a call: it refuses them.

        A call may be open at the end, where the model continues with it: only its other tools may follow it.
        """
        called: set[str] = set()
        answered: set[str] = set()
        unpaired: list[SentPart] = []
        for turn in self._turns:
            for sent in turn.sent_parts:
                id, is_result = anthropic_blocks.server_tool_reference(sent.part) or ("", False)
                if id and not is_result:
                    called.add(id)
                elif id in called:
                    answered.add(id)
                elif id:
                    unpaired.append(sent)
        unpaired += self._find_open_server_calls(called - answered)
        if unpaired:
            self._notes[UNPAIRED_OMITTED] = None
            for turn in self._turns:
                turn.sent_parts = [sent for sent in turn.sent_parts if sent not in unpaired]

    def _find_open_server_calls(self, open_ids: set[str]) -> list[SentPart]:
        """Return the open calls of the provider's tools that are not at the end, where the model continues."""
        unpaired: list[SentPart] = []
        is_end = True
        for turn in reversed(self._turns):
            is_end = is_end and turn.role is Role.ASSISTANT
            for sent in reversed(turn.sent_parts):
                reference = anthropic_blocks.server_tool_reference(sent.part)
                # A block that belongs to no server tool ends the tail in which the model may continue.
                is_end = is_end and reference is not None
                if reference is not None and reference[0] in open_ids and not is_end:
                    unpaired.append(sent)
        return unpaired

    def _omit_misplaced_parts(self) -> None:
        """Leave out reasoning where it is refused, empty turns, and white space at the end of the last answer."""
        kept_turns: list[Turn] = []
        for turn in reversed(self._turns):
            if turn.role is Role.ASSISTANT:
                self._trim_turn(turn, is_continued=not kept_turns and not turn.calls)
            if turn.sent_parts or turn.calls:
                kept_turns.append(turn)
        self._turns = kept_turns[::-1]
        last_turn = self._turns[-1] if self._turns else None
        if last_turn is not None and last_turn.role is Role.ASSISTANT and not last_turn.calls:
            final, index = last_turn.sent_parts[-1]
            if isinstance(final, Text) and final.text != final.text.rstrip():
                self._notes[TRAILING_SPACE_OMITTED] = None
                last_turn.sent_parts[-1] = SentPart(Text(final.text.rstrip()), index)

    def _trim_turn(self, turn: Turn, *, is_continued: bool) -> None:
        """Leave out reasoning that the API refuses.

        That is all of it if the turn begins with something else, or is an answer to be continued, and any at the very
        end of a turn without calls. Also leave out compactions if the prompt begins with a newer one.
        """
        shown = turn.sent_parts
        if self._leading_compaction is not None and any(map(_is_effective_compaction, shown)):
            self._notes[OLDER_COMPACTION_OMITTED] = None
            shown = [sent for sent in shown if not _is_effective_compaction(sent)]
        length = len(shown)
        # Compactions may come before the reasoning.
        first_part = next((sent for sent in shown if not _is_compaction(sent)), None)
        begins_without_reasoning = first_part is not None and not _is_reasoning(first_part)
        # Within calls of the provider's own tools the model goes on, and needs its reasoning.
        ends_in_server_tools = shown and anthropic_blocks.server_tool_reference(shown[-1].part) is not None
        if begins_without_reasoning or (is_continued and not ends_in_server_tools):
            shown = [sent for sent in shown if not _is_reasoning(sent)]
        while shown and not turn.calls and _is_reasoning(shown[-1]):
            shown.pop()
        if len(shown) < length:
            self._notes[MISPLACED_REASONING_OMITTED] = None
        turn.sent_parts = shown

    def _join_turns(self) -> None:
        """Join turns of one role, and convert system text to user text where the system may not speak."""
        joined_turns: list[Turn] = []
        for index, turn in enumerate(self._turns):
            if (
                turn.role is Role.SYSTEM
                and index > 0
                and not self._accepts_system_turn(joined_turns[-1], index)
            ):
                self._notes[SYSTEM_AS_USER_TEXT] = None
                turn.role = Role.USER
                turn.sent_parts = [
                    _to_reminder(part, at) for part, at in turn.sent_parts if isinstance(part, Text)
                ]
            last_turn = joined_turns[-1] if joined_turns else None
            if last_turn is not None and last_turn.role is turn.role and turn.role is not Role.ASSISTANT:
                last_turn.sent_parts += turn.sent_parts
                last_turn.sources.update(turn.sources)
            else:
                joined_turns.append(turn)
        self._turns = joined_turns

    def _accepts_system_turn(self, previous: Turn, index: int) -> bool:
        """Return whether a system turn can be sent: after the user's, and last or before the assistant's."""
        # Answers to calls are sent as the user's.
        follows_user = previous.role is Role.USER or bool(previous.calls)
        is_last = index + 1 == len(self._turns)
        precedes_assistant = not is_last and self._turns[index + 1].role is Role.ASSISTANT
        return self._has_system_messages and follows_user and (is_last or precedes_assistant)

    def _add_beginning(self) -> None:
        """Make the conversation begin with a compaction or with a message of the user, as the API demands."""
        start = 1 if self._turns and self._turns[0].role is Role.SYSTEM else 0
        first_turn = self._turns[start] if len(self._turns) > start else None  # after the system's turn
        begins_with_assistant = first_turn is not None and first_turn.role is Role.ASSISTANT
        if self._leading_compaction is not None:
            compaction, sources = self._leading_compaction
            # Cache marks go by the highest index so far: the index of a later message here would misplace them.
            if first_turn is not None:
                compaction = SentPart(compaction.part, _first_message_index(first_turn))
            if first_turn is None or not begins_with_assistant:
                first_turn = Turn(Role.ASSISTANT)
                self._turns.insert(start, first_turn)
            first_turn.sent_parts.insert(0, compaction)
            first_turn.sources = {**dict.fromkeys(sources), **first_turn.sources}
            return
        if first_turn is None or not begins_with_assistant:
            return
        # A compaction may come before the first user message.
        if not any(map(_is_effective_compaction, first_turn.sent_parts[:1])):
            self._notes[BEGINNING_ADDED] = None
            opening = SentPart(Text(BEGINNING), _first_message_index(first_turn))
            self._turns.insert(start, Turn(Role.USER, [opening]))

    def _complete_calls(self) -> None:
        """Give every call an id and a name that are accepted, no id twice, and every call an answer."""
        used_ids: dict[str, int] = {}
        for call in [call for turn in self._turns for call in turn.calls]:
            original = call.part
            id = _generate_unused_id(original.call_id, used_ids)
            call.part = ToolCall(id, sanitize_tool_name(original.name), original.arguments)
            if call.part != original:
                self._notes[IDS_REPLACED] = None
            if call.result is None:
                self._notes[RESULTS_ADDED] = None
                call.result, call.answered_at = ToolResult(id, NO_RESULT), call.message_index
            elif call.result.call_id != id:
                call.result = ToolResult(id, call.result.output, call.result.is_error)

    def _sent_messages(self) -> Iterator[SentMessage]:
        """Yield the messages to send; the results of a turn's calls come first in the user message that follows it.

        Without such a message, the results get one of their own.
        """
        results: tuple[SentPart, ...] = ()
        result_sources: tuple[str, ...] = ()
        for turn in self._turns:
            if turn.role is Role.USER:
                shown = (*results, *turn.sent_parts)
                yield SentMessage(Role.USER, shown, tuple(turn.sources), len(results), result_sources)
                results, result_sources = (), ()
                continue
            if results:
                yield SentMessage(Role.USER, results, (), len(results), result_sources)
            calls: list[SentPart] = []
            for call in turn.calls:
                calls += [*call.prefix, SentPart(call.part, call.message_index)]
            yield SentMessage(turn.role, (*turn.sent_parts, *calls), tuple(turn.sources))
            results = tuple([SentPart(call.result, call.answered_at) for call in turn.calls if call.result])
            result_sources = tuple(turn.result_sources)
        if results:
            yield SentMessage(Role.USER, results, (), len(results), result_sources)


def speaker_name(message: PromptMessage) -> str:
    """Return the name that stands before the text of a message of the user; "" for none."""
    return message.name.strip() if message.name is not None and message.role is Role.USER else ""


def _to_reminder(text: Text, message_index: int) -> SentPart:
    return SentPart(Text(wrap_text(text.text, anthropic_blocks.REMINDER)), message_index)


def _is_reasoning(sent: SentPart) -> bool:
    return anthropic_blocks.is_reasoning_part(sent.part)


def _generate_unused_id(id_: str, used_ids: dict[str, int]) -> str:
    """Return a valid id that is not used yet.

    It is not longer than the original (or the shortest length that is charged), because its tokens are counted already.
    `used_ids` holds, for each id, the last number that was appended to it, so that numbers are not tried again.
    """
    valid = _INVALID_IN_ID.sub("_", id_) or "call"
    max_chars = anthropic_blocks.ID[1]
    if len(valid) > max_chars:
        digest = hashlib.sha256(id_.encode("utf-8", "surrogatepass")).hexdigest()[:11]
        valid = f"{valid[: max_chars - 12]}_{digest}"
    unused, number = valid, used_ids.get(valid, 0)
    length = max(len(valid), anthropic_blocks.ID[0])
    while unused in used_ids:
        number += 1
        suffix = f"_{number}"
        unused = valid[: length - len(suffix)] + suffix
    used_ids[valid] = max(number, 1)
    used_ids.setdefault(unused, 1)
    return unused


def _is_effective_compaction(sent: SentPart) -> bool:
    """Return whether a part is a compaction with content."""
    return isinstance(sent.part, Raw) and anthropic_blocks.is_effective_compaction(sent.part)


def _is_compaction(sent: SentPart) -> bool:
    """Return whether a part is a compaction, with or without content."""
    block = anthropic_blocks.raw_to_block(sent.part) if isinstance(sent.part, Raw) else None
    return block is not None and block["type"] == "compaction"


def _first_message_index(turn: Turn) -> int:
    return turn.sent_parts[0].message_index if turn.sent_parts else turn.calls[0].message_index
