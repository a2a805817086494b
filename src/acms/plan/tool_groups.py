"""Tool calls and their answers: each call is grouped with its answers in a prompt, wherever these were written.

Providers require the answers to a call directly behind it, and one answer to each call. Logs hold them late,
interleaved, twice, or not at all, and a caller may write the answer to a call that the history ends with. A *unit*
(`MessageGroup`) is a group of messages that are shown together or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import is_
from typing import NamedTuple

from acms.model import Part, Role, Text, ToolCall, ToolResult
from acms.plan.nodes import MessageGroup, Node, Scope
from acms.prompt_types import PromptMessage, with_parts
from acms.text.chat_messages import NO_RESULT, ORPHAN, wrap_text


def join_answers(units: Sequence[MessageGroup]) -> list[MessageGroup]:
    """Move every tool answer into the unit of its call, directly behind the call and in the order of the calls.

    An answer belongs to the nearest unanswered call before it that has its id, and its group where both have one. A
    call without an answer gets a placeholder; an answer without a call, or a second one to the same call, becomes
    marked text of the user. Consecutive calls that were made before any of them was answered become one unit, with
    their answers behind the last call.

    Units that become empty are dropped; the versions of a unit span those of the answers moved into it.
    """
    pairing = _Pairing()
    drafts = [pairing.read(unit) for unit in units]
    joined_units: list[MessageGroup] = []
    for draft in drafts:
        joined_units += [draft] if isinstance(draft, MessageGroup) else draft.build()
    return merge_parallel_calls(joined_units)


def merge_parallel_calls(units: Sequence[MessageGroup]) -> list[MessageGroup]:
    """Merge adjacent units of one call each into one unit if all calls were made before the first answer came.

    The first version of such a unit is that of its call, the last version that of its answer.
    """
    merged_units: list[MessageGroup] = []
    latest_call = earliest_answer = 0  # versions in the newest merged unit
    for unit in units:
        if not _is_single_call(unit):
            merged_units.append(unit)
            latest_call = earliest_answer = 0
            continue
        latest_call = max(latest_call, unit.first)
        earliest_answer = min(earliest_answer, unit.last)
        if latest_call < earliest_answer:
            merged_units[-1] = _merge_call(merged_units[-1], unit)
        else:
            merged_units.append(unit)
            latest_call, earliest_answer = unit.first, unit.last
    return merged_units


def _is_single_call(unit: MessageGroup) -> bool:
    """Return whether a unit of a log is one call and its real answer, no placeholder for one."""
    messages = unit.messages
    # A unit that the caller wrote has no first version.
    if len(messages) != 2 or messages[1].role is not Role.TOOL or not unit.first:
        return False
    calls = [part for part in messages[0].parts if isinstance(part, ToolCall)]
    return len(calls) == 1 and not is_placeholder(messages[1])


def _merge_call(merged: MessageGroup, unit: MessageGroup) -> MessageGroup:
    """Add the call and the answer of a unit to a unit of parallel calls, which has as many answers as calls."""
    call, answer = unit.messages
    half = len(merged.messages) // 2
    calls, answers = merged.messages[:half], merged.messages[half:]
    calls = (call, *calls) if unit.first < merged.first else (*calls, call)
    return MessageGroup(
        (*calls, *answers, answer),
        first=min(merged.first, unit.first),
        last=max(merged.last, unit.last),
        before=merged.before,
        mandatory=merged.mandatory or unit.mandatory,
    )


def pair_tool_calls(tree: Scope) -> Scope:
    """Return a tree in which every tool call is grouped with its answers, also those written in another scope.

    An answer moves into the unit of its call, in the scope of the call: both are shown or left out together. An answer
    that the caller wrote makes the unit of a logged call mandatory. Idempotent.
    """
    drafts: list[MessageGroup | _Draft] = []
    _read_scope(tree, _Pairing(), drafts)
    return _rebuild_scope(tree, iter(drafts))


def is_placeholder(message: PromptMessage) -> bool:
    """Return whether a message is the placeholder of an answer that was never given."""
    if message.role is not Role.TOOL or message.sources or len(message.parts) != 1:
        return False
    (part,) = message.parts
    return isinstance(part, ToolResult) and part.output == NO_RESULT


def _read_scope(scope: Scope, pairing: _Pairing, drafts: list[MessageGroup | _Draft]) -> None:
    """Read the units of a scope and of the scopes in it, in order; append each to `drafts`."""
    for node in scope.children:
        if isinstance(node, MessageGroup):
            drafts.append(pairing.read(node))
        elif isinstance(node, Scope):
            _read_scope(node, pairing, drafts)


def _rebuild_scope(scope: Scope, drafts: Iterator[MessageGroup | _Draft]) -> Scope:
    """Return a scope with its units replaced by the next drafts, in order; the scope itself if nothing changed."""
    children: list[Node] = []
    for node in scope.children:
        if isinstance(node, MessageGroup):
            draft = next(drafts)
            children += [draft] if isinstance(draft, MessageGroup) else draft.build()
        elif isinstance(node, Scope):
            children.append(_rebuild_scope(node, drafts))
        else:
            children.append(node)
    children = _merge_parallel_runs(children)
    is_unchanged = len(children) == len(scope.children) and all(map(is_, children, scope.children))
    return scope if is_unchanged else replace(scope, children=tuple(children))


def _merge_parallel_runs(children: Sequence[Node]) -> list[Node]:
    """Merge the parallel calls in each run of adjacent units among the nodes of a scope."""
    nodes: list[Node] = []
    run: list[MessageGroup] = []
    for node in children:
        if isinstance(node, MessageGroup):
            run.append(node)
            continue
        nodes += merge_parallel_calls(run)
        nodes.append(node)
        run = []
    return [*nodes, *merge_parallel_calls(run)]


def _needs_no_pairing(unit: MessageGroup) -> bool:
    """Return whether a unit has no tool calls or answers, or is already a call with all its answers."""
    for index, message in enumerate(unit.messages):
        if message.role is Role.TOOL:
            return False
        for part in message.parts:
            if isinstance(part, ToolCall):
                return index == 0 and _is_complete_group(unit.messages)
            if isinstance(part, ToolResult):
                return False
    return True


def _is_complete_group(messages: Sequence[PromptMessage]) -> bool:
    """Return whether messages are one message with calls and the answers to all of them in order, nothing else."""
    calling, *answers = messages
    if calling.role is not Role.ASSISTANT or any(isinstance(part, ToolResult) for part in calling.parts):
        return False
    call_ids = [part.call_id for part in calling.parts if isinstance(part, ToolCall)]
    if len(call_ids) != len(answers):
        return False
    return all(_answers_call(answer, id, calling.group) for id, answer in zip(call_ids, answers, strict=True))


def _answers_call(message: PromptMessage, id: str, group: str | None) -> bool:
    if message.role is not Role.TOOL or len(message.parts) != 1 or is_placeholder(message):
        return False
    (part,) = message.parts
    same_group = message.group is None or group is None or message.group == group
    return isinstance(part, ToolResult) and part.call_id == id and same_group


class _Call:
    """A tool call, and the answer it has so far."""

    __slots__ = ("answer", "answered_at", "draft", "group", "id")

    def __init__(self, id: str, group: str | None, draft: _Draft) -> None:
        self.id = id
        self.group = group
        self.draft = draft
        self.answer: PromptMessage | None = None
        #: Number of the message that is the answer, in the order of reading.
        self.answered_at = 0

    def answer_or_placeholder(self) -> PromptMessage:
        """Return the message to show behind the call."""
        if self.answer is not None:
            return self.answer
        return PromptMessage(role=Role.TOOL, parts=(ToolResult(self.id, NO_RESULT),), group=self.group)


class _DraftMessage(NamedTuple):
    """A message of a draft, and the calls it makes."""

    message: PromptMessage
    calls: Sequence[_Call]
    #: Number of the message in the order of reading.
    number: int


class _Draft:
    """A unit under construction: its messages without answers, and the calls they make."""

    __slots__ = ("answer_units", "messages", "unit")

    def __init__(self, unit: MessageGroup) -> None:
        self.unit = unit
        #: Messages in order.
        self.messages: list[_DraftMessage] = []
        #: Units that gave an answer to a call of this one.
        self.answer_units: list[MessageGroup] = []

    def build(self) -> list[MessageGroup]:
        """Return a list of the unit with all its answers, or an empty list if no message is left."""
        messages = self._order_messages()
        unit = self.unit
        if not messages:
            return []
        if not self.answer_units and tuple(messages) == unit.messages:
            return [unit]
        first, last, mandatory = unit.first, unit.last, unit.mandatory
        for answer_unit in self.answer_units:
            # The caller's text is never left out, so a logged call that it answers is not left out either.
            is_answered_by_caller = unit.first > 0 and not answer_unit.first
            mandatory = mandatory or answer_unit.mandatory or is_answered_by_caller
            if answer_unit.first:
                first = min(first or answer_unit.first, answer_unit.first)
                last = max(last, answer_unit.last)
        return [MessageGroup(tuple(messages), first, last, unit.before, mandatory)]

    def _order_messages(self) -> list[PromptMessage]:
        """Return the messages with answers behind their calls; calls made before any answer came stay together."""
        messages: list[PromptMessage] = []
        pending: list[_Call] = []  # calls whose answers are not placed yet
        for message, calls, number in self.messages:
            are_answered_later = all(call.answer and call.answered_at > number for call in pending)
            if not calls or not are_answered_later:
                messages += [call.answer_or_placeholder() for call in pending]
                pending = []
            messages.append(message)
            pending += calls
        return messages + [call.answer_or_placeholder() for call in pending]


class _Pairing:
    """Reads messages in order and gives each answer to its call."""

    def __init__(self) -> None:
        #: Calls without an answer, by id, oldest first.
        self._open_calls: dict[str, list[_Call]] = {}
        #: Number of the message being read.
        self._number = 0

    def read(self, unit: MessageGroup) -> MessageGroup | _Draft:
        """Read a unit; return the unit itself if it needs no pairing, else a draft to build once all units are read."""
        if _needs_no_pairing(unit):
            return unit
        draft = _Draft(unit)
        for message in unit.messages:
            self._number += 1
            if message.role is Role.TOOL:
                self._read_answers(message, draft)
                continue
            without_results = self._extract_results(message, draft)
            calls: list[_Call] = []
            if message.role is Role.ASSISTANT:
                calls = [
                    _Call(part.call_id, without_results.group, draft)
                    for part in without_results.parts
                    if isinstance(part, ToolCall)
                ]
            for call in reversed(calls):  # of two calls with one id in a message, the first is answered first
                self._open_calls.setdefault(call.id, []).append(call)
            if without_results.parts or without_results is message:  # a message of results only is dropped
                draft.messages.append(_DraftMessage(without_results, calls, self._number))
        return draft

    def _extract_results(self, message: PromptMessage, draft: _Draft) -> PromptMessage:
        """Assign the tool results in a message to their calls, and return the message without them."""
        results = tuple([part for part in message.parts if isinstance(part, ToolResult)])
        if not results:
            return message
        self._read_answers(replace(message, parts=results), draft)
        return with_parts(message, [part for part in message.parts if not isinstance(part, ToolResult)])

    def _read_answers(self, message: PromptMessage, draft: _Draft) -> None:
        """Assign the tool results in a message to their calls; a result without a call becomes text of the user."""
        if is_placeholder(message):
            return  # a new placeholder is made if the call stays without an answer
        results = [part for part in message.parts if isinstance(part, ToolResult)]
        other_parts: tuple[Part, ...] = tuple(
            [part for part in message.parts if not isinstance(part, ToolResult)]
        )
        stray_outputs: list[str] = []
        for part in results:
            call = self._close_call(part.call_id, message.group)
            if call is None:
                stray_outputs.append(part.output)
                continue
            call.answered_at = self._number
            call.answer = message
            if message.role is not Role.TOOL or len(message.parts) > 1:
                call.answer = with_parts(message, (*other_parts, part), Role.TOOL)
            other_parts = ()  # the first answer has the other parts of the message
            if call.draft is not draft:
                call.draft.answer_units.append(draft.unit)
        if not results:  # a tool message that names no call: its text is all there is
            stray_outputs = [message.text]
            other_parts = tuple([part for part in other_parts if not isinstance(part, Text)])
        if stray_outputs or other_parts:
            texts = [Text(wrap_text(output, ORPHAN)) for output in stray_outputs]
            as_user = replace(
                message,
                role=Role.USER,
                parts=(*texts, *other_parts),
                name=None,
                group=None,
                tokens=None,
                counter="",
            )
            draft.messages.append(_DraftMessage(as_user, (), self._number))

    def _close_call(self, id: str, group: str | None) -> _Call | None:
        """Remove and return the newest open call that an answer with this id and group belongs to; None without one."""
        calls = self._open_calls.get(id, [])
        for index in reversed(range(len(calls))):
            call = calls[index]
            if group is None or call.group is None or call.group == group:
                return calls.pop(index)
        return None
