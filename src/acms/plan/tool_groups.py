"""Tool calls and their answers: one atomic group of a prompt, wherever the answers were written.

Providers want the answers to a call directly behind it, each call answered once. Logs have them late, interleaved,
twice, or not at all, and a caller may write the answer to a call that the history ends with.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from operator import is_

from acms.model import Part, Role, Text, ToolCall, ToolResult
from acms.plan.nodes import Atom, Node, Scope
from acms.prompt_types import PromptMessage
from acms.text.chat_messages import NO_RESULT, ORPHAN, wrap_text


def group_messages(messages: Sequence[PromptMessage]) -> list[Atom]:
    """Return messages as units that are shown together or not at all, every tool call with its answers.

    Answers stand directly behind their call, in the order of the calls; one answers the nearest call before it that
    has its id, is open, and has its group where both have one. A call that nothing answers gets a placeholder; an
    answer to no call, and a second one to the same, becomes text of the user in marks. Calls that were made one after
    the other before any of them was answered stay together, in one unit, their answers behind the last of them.
    """
    return join_answers([Atom((message,)) for message in messages])


def join_answers(units: Sequence[Atom]) -> list[Atom]:
    """Return units with the answers moved behind their calls, as `atoms` does; units that become empty are gone.

    The versions of a unit span those of the answers that joined it.
    """
    pairing = _Pairing()
    drafts = [None if _needs_no_pairing(unit) else pairing.read(unit) for unit in units]
    found: list[Atom] = []
    for unit, draft in zip(units, drafts, strict=True):
        if draft is None:
            found.append(unit)
        else:
            found += draft.written()
    return merge_parallel_calls(found)


def merge_parallel_calls(units: Sequence[Atom]) -> list[Atom]:
    """Return units in which calls that were made side by side, each a message of its own, are one.

    They are where all were made before the first answer came, as the versions of the units say.
    """
    found: list[Atom] = []
    made, answered = 0, 0  # version of the last call of the newest unit, and of its first answer
    for unit in units:
        if not _is_single_call(unit):
            found.append(unit)
            made, answered = 0, 0
        elif max(made, unit.first) < min(answered, unit.last):
            found[-1] = _merge_call(found[-1], unit)
            made, answered = max(made, unit.first), min(answered, unit.last)
        else:
            found.append(unit)
            made, answered = unit.first, unit.last
    return found


def _is_single_call(unit: Atom) -> bool:
    """Return whether a unit is a message that makes one call, and its answer."""
    messages = unit.messages
    if len(messages) != 2 or messages[1].role is not Role.TOOL or not unit.first:
        return False
    parts = messages[0].parts
    return sum(isinstance(part, ToolCall) for part in parts) == 1 and not is_placeholder(messages[1])


def _merge_call(before: Atom, unit: Atom) -> Atom:
    """Put a call and its answer into the unit of calls that were made beside it."""
    call, answer = unit.messages
    half = len(before.messages) // 2
    calls, answers = before.messages[:half], before.messages[half:]
    ordered = (call, *calls) if unit.first < before.first else (*calls, call)
    return Atom(
        (*ordered, *answers, answer),
        min(before.first, unit.first),
        max(before.last, unit.last),
        before.before,
        before.mandatory or unit.mandatory,
    )


def pair_tool_calls(tree: Scope) -> Scope:
    """Return a tree in which every tool call has its answers with it, also those written in another scope.

    An answer joins the unit of its call, in the scope of the call: it lives and dies with it. One that the caller wrote
    makes a unit of the log mandatory. Idempotent.
    """
    pairing = _Pairing()
    drafts: list[_Draft | None] = []
    _read_scope(tree, pairing, drafts)
    return _rebuild_scope(tree, iter(drafts))


def is_placeholder(message: PromptMessage) -> bool:
    """Return whether a message is the placeholder of an answer that was never given."""
    if message.role is not Role.TOOL or message.sources or len(message.parts) != 1:
        return False
    (part,) = message.parts
    return isinstance(part, ToolResult) and part.output == NO_RESULT


def _read_scope(scope: Scope, pairing: _Pairing, drafts: list[_Draft | None]) -> None:
    """Read the units of a scope in order; None for a unit without tool calls or results."""
    for node in scope.children:
        if type(node) is Atom:
            drafts.append(None if _needs_no_pairing(node) else pairing.read(node))
        elif isinstance(node, Scope):
            _read_scope(node, pairing, drafts)


def _needs_no_pairing(unit: Atom) -> bool:
    """Return whether a unit has nothing to do with tools, or is a call with all its answers already."""
    messages = unit.messages
    for place, message in enumerate(messages):
        if message.role is Role.TOOL:
            return False
        for part in message.parts:
            kind = type(part)
            if kind is ToolCall:
                return place == 0 and _is_complete_group(messages)
            if kind is ToolResult:
                return False
    return True


def _is_complete_group(messages: Sequence[PromptMessage]) -> bool:
    """Return whether messages are a call and its answers in order, and nothing else."""
    call, *answers = messages
    ids = [part.call_id for part in call.parts if isinstance(part, ToolCall)]
    if call.role is not Role.ASSISTANT or len(ids) != len(answers):
        return False
    if any(isinstance(part, ToolResult) for part in call.parts):
        return False
    for id, message in zip(ids, answers, strict=True):
        if message.role is not Role.TOOL or len(message.parts) != 1 or is_placeholder(message):
            return False
        part = message.parts[0]
        if not isinstance(part, ToolResult) or part.call_id != id:
            return False
        if None not in (message.group, call.group) and message.group != call.group:
            return False
    return True


def _rebuild_scope(scope: Scope, drafts: Iterator[_Draft | None]) -> Scope:
    children: list[Node] = []
    for node in scope.children:
        if type(node) is Atom:
            draft = next(drafts)
            if draft is None:
                children.append(node)
            else:
                children += draft.written()
        elif isinstance(node, Scope):
            children.append(_rebuild_scope(node, drafts))
        else:
            children.append(node)
    children = _merge_parallel_runs(children)
    same = len(children) == len(scope.children) and all(map(is_, children, scope.children))
    return scope if same else replace(scope, children=tuple(children))


def _merge_parallel_runs(children: Sequence[Node]) -> list[Node]:
    """Return the nodes of a scope with calls that were made side by side in one unit."""
    found: list[Node] = []
    for atoms_, run in groupby(children, lambda node: type(node) is Atom):
        nodes = list(run)
        found += merge_parallel_calls([node for node in nodes if isinstance(node, Atom)]) if atoms_ else nodes
    return found


class _Call:
    """A tool call and the answer it has so far, and which of the messages read is the answer."""

    __slots__ = ("answer", "at", "draft", "group", "id")

    def __init__(self, id: str, group: str | None, draft: _Draft) -> None:
        self.id = id
        self.group = group
        self.draft = draft
        self.answer: PromptMessage | None = None
        self.at = 0

    def placeholder(self) -> PromptMessage:
        return PromptMessage(role=Role.TOOL, parts=(ToolResult(self.id, NO_RESULT),), group=self.group)


class _Draft:
    """A unit under way: its messages, and the calls among them that are still to be answered."""

    __slots__ = ("joins", "lines", "unit")

    def __init__(self, unit: Atom) -> None:
        self.unit = unit
        #: Messages in order, each with the calls it makes, and which of the messages read it is.
        self.lines: list[tuple[PromptMessage, Sequence[_Call], int]] = []
        #: Units that gave an answer to a call of this one.
        self.joins: list[Atom] = []

    def written(self) -> tuple[Atom, ...]:
        if not self.lines:
            return ()
        messages: list[PromptMessage] = []
        waiting: list[_Call] = []
        for message, calls, at in self.lines:
            if not (calls and waiting and all(call.answer and call.at > at for call in waiting)):
                messages += [call.answer or call.placeholder() for call in waiting]
                waiting = []
            messages.append(message)
            waiting += calls
        messages += [call.answer or call.placeholder() for call in waiting]
        unit = self.unit
        if not self.joins and len(messages) == len(unit.messages):
            same = all(map(is_, messages, unit.messages))
            if same or tuple(messages) == unit.messages:
                return (unit,)
        first, last, mandatory = unit.first, unit.last, unit.mandatory
        for one in self.joins:
            # The caller's text is never left out; its answer to a call of the log keeps that call.
            mandatory = mandatory or one.mandatory or (unit.first > 0 and not one.first)
            if one.first:
                first = min(first or one.first, one.first)
                last = max(last, one.last)
        return (Atom(tuple(messages), first, last, unit.before, mandatory),)


class _Pairing:
    """Reads messages in order and gives each answer to its call."""

    def __init__(self) -> None:
        self._open: dict[str, list[_Call]] = {}
        self._at = 0

    def read(self, unit: Atom) -> _Draft:
        draft = _Draft(unit)
        for message in unit.messages:
            self._at += 1
            parts = message.parts
            if message.role is Role.TOOL:
                self._answers(message, draft)
            elif message.role is Role.ASSISTANT and any(type(part) is ToolCall for part in parts):
                kept = self._without_results(message, draft)
                calls = [
                    _Call(part.call_id, message.group, draft)
                    for part in kept.parts
                    if isinstance(part, ToolCall)
                ]
                for call in reversed(calls):  # of two with one id in a message the first is answered first
                    self._open.setdefault(call.id, []).append(call)
                draft.lines.append((kept, calls, self._at))
            elif any(type(part) is ToolResult for part in parts):
                kept = self._without_results(message, draft)
                if kept.parts:
                    draft.lines.append((kept, (), self._at))
            else:
                draft.lines.append((message, (), self._at))
        return draft

    def _without_results(self, message: PromptMessage, draft: _Draft) -> PromptMessage:
        """Return a message without the answers in it, which are handed out first."""
        results = tuple([part for part in message.parts if isinstance(part, ToolResult)])
        if not results:
            return message
        self._answers(replace(message, parts=results), draft)
        rest = tuple([part for part in message.parts if not isinstance(part, ToolResult)])
        return replace(message, parts=rest, tokens=None, counter="")

    def _answers(self, message: PromptMessage, draft: _Draft) -> None:
        """Assign the answers of a message to their calls; an answer without a call becomes user text."""
        if is_placeholder(message):
            return  # written again while nothing better answers the call
        if len(message.parts) == 1 and message.role is Role.TOOL:  # most of them
            (only,) = message.parts
            call = self._call(only.call_id, message.group) if isinstance(only, ToolResult) else None
            if call is not None:
                call.answer, call.at = message, self._at
                if call.draft is not draft:
                    call.draft.joins.append(draft.unit)
                return
        results = [part for part in message.parts if isinstance(part, ToolResult)]
        others: tuple[Part, ...] = tuple([part for part in message.parts if not isinstance(part, ToolResult)])
        stray: list[str] = []
        for part in results:
            call = self._call(part.call_id, message.group)
            if call is None:
                stray.append(part.output)
                continue
            call.at = self._at
            call.answer = replace(message, role=Role.TOOL, parts=(*others, part), tokens=None, counter="")
            others = ()
            if call.draft is not draft:
                call.draft.joins.append(draft.unit)
        if not results:
            stray = [message.text]
            others = tuple([part for part in others if not isinstance(part, Text)])
        if stray or others:
            told = tuple([Text(wrap_text(output, ORPHAN)) for output in stray])
            orphan = replace(
                message,
                role=Role.USER,
                parts=(*told, *others),
                name=None,
                group=None,
                tokens=None,
                counter="",
            )
            draft.lines.append((orphan, (), self._at))

    def _call(self, id: str, group: str | None) -> _Call | None:
        """Return the nearest open call that an answer can belong to, which it closes."""
        waiting = self._open.get(id, [])
        for index in range(len(waiting) - 1, -1, -1):
            call = waiting[index]
            if group is None or call.group is None or call.group == group:
                return waiting.pop(index)
        return None
