"""Tool calls and their answers: one atomic group of a prompt, wherever the answers were written.

Providers want the answers to a call directly behind it, each call answered once. Logs have them late, interleaved,
twice, or not at all, and a caller may write the answer to a call that the history ends with.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import is_

from acms.model import Part, Role, Text, ToolCall, ToolResult
from acms.plan.nodes import Atom, Node, Scope
from acms.prompt_types import PromptMessage
from acms.text.chat_messages import NO_RESULT, ORPHAN, wrap_text


def join_answers(units: Sequence[Atom]) -> list[Atom]:
    """Return units that are shown together or not at all: every tool call with its answers.

    Answers stand directly behind their call, in the order of the calls; one answers the nearest call before it that
    has its id, is open, and has its group where both have one. A call that nothing answers gets a placeholder; an
    answer to no call, and a second one to the same, becomes text of the user in marks. Calls that were made one after
    the other before any of them was answered stay together, in one unit, their answers behind the last of them.

    Units that become empty are dropped; the versions of a unit span those of the answers that joined it.
    """
    pairing = _Pairing()
    drafts = [pairing.read(unit) for unit in units]
    joined: list[Atom] = []
    for draft in drafts:
        joined += [draft] if isinstance(draft, Atom) else draft.build()
    return merge_parallel_calls(joined)


def merge_parallel_calls(units: Sequence[Atom]) -> list[Atom]:
    """Return units in which calls that were made side by side, each a message of its own, are one.

    They are where all were made before the first answer came, as the versions of the units say.
    """
    merged: list[Atom] = []
    last_call, first_answer = 0, 0  # versions in the newest unit
    for unit in units:
        if not _is_single_call(unit):
            merged.append(unit)
            last_call, first_answer = 0, 0
        elif max(last_call, unit.first) < min(first_answer, unit.last):
            merged[-1] = _merge_call(merged[-1], unit)
            last_call, first_answer = max(last_call, unit.first), min(first_answer, unit.last)
        else:
            merged.append(unit)
            last_call, first_answer = unit.first, unit.last
    return merged


def _is_single_call(unit: Atom) -> bool:
    """Return whether a unit is a message that makes one call, and its answer."""
    messages = unit.messages
    if len(messages) != 2 or messages[1].role is not Role.TOOL or not unit.first:
        return False
    calls = [part for part in messages[0].parts if isinstance(part, ToolCall)]
    return len(calls) == 1 and not is_placeholder(messages[1])


def _merge_call(before: Atom, unit: Atom) -> Atom:
    """Put a call and its answer into the unit of calls that were made beside it."""
    call, answer = unit.messages
    half = len(before.messages) // 2
    calls, answers = before.messages[:half], before.messages[half:]
    calls = (call, *calls) if unit.first < before.first else (*calls, call)
    return Atom(
        (*calls, *answers, answer),
        min(before.first, unit.first),
        max(before.last, unit.last),
        before.before,
        before.mandatory or unit.mandatory,
    )


def pair_tool_calls(tree: Scope) -> Scope:
    """Return a tree in which every tool call has its answers with it, also those written in another scope.

    An answer joins the unit of its call, in the scope of the call: it is shown or left out with it. One that the caller
    wrote makes a unit of the log mandatory. Idempotent.
    """
    drafts: list[Atom | _Draft] = []
    _read_scope(tree, _Pairing(), drafts)
    return _rebuild_scope(tree, iter(drafts))


def is_placeholder(message: PromptMessage) -> bool:
    """Return whether a message is the placeholder of an answer that was never given."""
    if message.role is not Role.TOOL or message.sources or len(message.parts) != 1:
        return False
    (part,) = message.parts
    return isinstance(part, ToolResult) and part.output == NO_RESULT


def _read_scope(scope: Scope, pairing: _Pairing, drafts: list[Atom | _Draft]) -> None:
    """Read the units of a scope in order."""
    for node in scope.children:
        if isinstance(node, Atom):
            drafts.append(pairing.read(node))
        elif isinstance(node, Scope):
            _read_scope(node, pairing, drafts)


def _rebuild_scope(scope: Scope, drafts: Iterator[Atom | _Draft]) -> Scope:
    children: list[Node] = []
    for node in scope.children:
        if isinstance(node, Atom):
            draft = next(drafts)
            children += [draft] if isinstance(draft, Atom) else draft.build()
        elif isinstance(node, Scope):
            children.append(_rebuild_scope(node, drafts))
        else:
            children.append(node)
    children = _merge_parallel_runs(children)
    same = len(children) == len(scope.children) and all(map(is_, children, scope.children))
    return scope if same else replace(scope, children=tuple(children))


def _merge_parallel_runs(children: Sequence[Node]) -> list[Node]:
    """Return the nodes of a scope with calls that were made side by side in one unit."""
    merged: list[Node] = []
    run: list[Atom] = []
    for node in children:
        if isinstance(node, Atom):
            run.append(node)
            continue
        merged += merge_parallel_calls(run)
        merged.append(node)
        run = []
    return [*merged, *merge_parallel_calls(run)]


def _needs_no_pairing(unit: Atom) -> bool:
    """Return whether a unit has nothing to do with tools, or is a call with all its answers already."""
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
    """Return whether messages are a call and its answers in order, and nothing else."""
    call, *answers = messages
    if call.role is not Role.ASSISTANT or any(isinstance(part, ToolResult) for part in call.parts):
        return False
    ids = [part.call_id for part in call.parts if isinstance(part, ToolCall)]
    if len(ids) != len(answers):
        return False
    return all(_answers_call(answer, id, call.group) for id, answer in zip(ids, answers, strict=True))


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


class _Draft:
    """A unit under way: its messages, and the calls among them that are still to be answered."""

    __slots__ = ("answer_units", "lines", "unit")

    def __init__(self, unit: Atom) -> None:
        self.unit = unit
        #: Messages in order, each with the calls it makes, and its number in the order of reading.
        self.lines: list[tuple[PromptMessage, Sequence[_Call], int]] = []
        #: Units that gave an answer to a call of this one.
        self.answer_units: list[Atom] = []

    def build(self) -> list[Atom]:
        """Return the unit with all its answers; nothing if it has no message left."""
        messages = self._order_messages()
        unit = self.unit
        if not messages:
            return []
        if not self.answer_units and tuple(messages) == unit.messages:
            return [unit]
        first, last, mandatory = unit.first, unit.last, unit.mandatory
        for other in self.answer_units:
            # The caller's text is never left out; its answer to a call of the log keeps that call.
            is_written = unit.first > 0 and not other.first
            mandatory = mandatory or other.mandatory or is_written
            if other.first:
                first = min(first or other.first, other.first)
                last = max(last, other.last)
        return [Atom(tuple(messages), first, last, unit.before, mandatory)]

    def _order_messages(self) -> list[PromptMessage]:
        """Return the messages with answers behind their calls; calls made before any answer came stay together."""
        messages: list[PromptMessage] = []
        waiting: list[_Call] = []
        for message, calls, number in self.lines:
            answered_later = all(call.answer and call.answered_at > number for call in waiting)
            if not calls or not answered_later:
                messages += [call.answer_or_placeholder() for call in waiting]
                waiting = []
            messages.append(message)
            waiting += calls
        return messages + [call.answer_or_placeholder() for call in waiting]


class _Pairing:
    """Reads messages in order and gives each answer to its call."""

    def __init__(self) -> None:
        self._open: dict[str, list[_Call]] = {}
        #: Number of the message that is read.
        self._number = 0

    def read(self, unit: Atom) -> Atom | _Draft:
        """Return the unit itself if it needs no pairing, else what is to be built once everything is read."""
        if _needs_no_pairing(unit):
            return unit
        draft = _Draft(unit)
        for message in unit.messages:
            self._number += 1
            if message.role is Role.TOOL:
                self._read_answers(message, draft)
                continue
            rest = self._without_results(message, draft)
            calls: list[_Call] = []
            if message.role is Role.ASSISTANT:
                calls = [
                    _Call(part.call_id, rest.group, draft)
                    for part in rest.parts
                    if isinstance(part, ToolCall)
                ]
            for call in reversed(calls):  # of two with one id in a message the first is answered first
                self._open.setdefault(call.id, []).append(call)
            if rest.parts or rest is message:
                draft.lines.append((rest, calls, self._number))
        return draft

    def _without_results(self, message: PromptMessage, draft: _Draft) -> PromptMessage:
        """Return a message without the answers in it, which are handed out first."""
        results = tuple([part for part in message.parts if isinstance(part, ToolResult)])
        if not results:
            return message
        self._read_answers(replace(message, parts=results), draft)
        rest = tuple([part for part in message.parts if not isinstance(part, ToolResult)])
        return replace(message, parts=rest, tokens=None, counter="")

    def _read_answers(self, message: PromptMessage, draft: _Draft) -> None:
        """Assign the answers of a message to their calls; an answer without a call becomes user text."""
        if is_placeholder(message):
            return  # written again while nothing better answers the call
        results = [part for part in message.parts if isinstance(part, ToolResult)]
        others: tuple[Part, ...] = tuple([part for part in message.parts if not isinstance(part, ToolResult)])
        stray_outputs: list[str] = []
        for part in results:
            call = self._close_call(part.call_id, message.group)
            if call is None:
                stray_outputs.append(part.output)
                continue
            call.answered_at = self._number
            call.answer = message
            if message.role is not Role.TOOL or len(message.parts) > 1:
                parts = (*others, part)
                call.answer = replace(message, role=Role.TOOL, parts=parts, tokens=None, counter="")
            others = ()
            if call.draft is not draft:
                call.draft.answer_units.append(draft.unit)
        if not results:
            stray_outputs = [message.text]
            others = tuple([part for part in others if not isinstance(part, Text)])
        if stray_outputs or others:
            texts = [Text(wrap_text(output, ORPHAN)) for output in stray_outputs]
            orphan = replace(
                message,
                role=Role.USER,
                parts=(*texts, *others),
                name=None,
                group=None,
                tokens=None,
                counter="",
            )
            draft.lines.append((orphan, (), self._number))

    def _close_call(self, id: str, group: str | None) -> _Call | None:
        """Return the nearest open call that an answer can belong to, which it closes."""
        waiting = self._open.get(id, [])
        for index in reversed(range(len(waiting))):
            call = waiting[index]
            if group is None or call.group is None or call.group == group:
                return waiting.pop(index)
        return None
