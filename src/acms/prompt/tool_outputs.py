"""Outputs and arguments of finished tool calls, and long messages, cut to the tokens that a prompt has for them.

As much of the newest call is shown as fits; of older ones the most relevant parts. A message that is longer than the
budget, such as a pasted document, is shown with its beginning and its end. Text shown in one request is shown again
word for word, so the tokens of each are kept with the cache window (`acms.prompt.cache_window`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from acms.model import Part, Role, Text, ToolCall, ToolResult
from acms.plan.nodes import Atom
from acms.ports import Codec
from acms.prompt.cache_window import is_question
from acms.prompt_types import PromptMessage
from acms.text import condense

LEAST_SHOWN = 64
"""Fewest tokens of a long message that are worth showing."""


class CallCutter:
    """Cuts the tool calls and the long messages of a history, and remembers the last cuts."""

    def __init__(self, codec: Codec, *, budget: int, condensed_tokens: int) -> None:
        self._codec = codec
        #: Tokens that no part of a call exceeds, and those of a condensed output.
        self._budget = budget
        self._condensed_tokens = condensed_tokens
        #: Of the calls that were cut last, by version: tokens of each message, whole and as shown.
        self.last_cuts: dict[int, dict[str, tuple[int, int]]] = {}

    def cut(self, atoms: Sequence[Atom], limits: Mapping[int, int], question: str = "") -> list[Atom]:
        """Return atoms with each part of a finished tool call cut to its limit, by the version of the call.

        Calls without a limit of their own are condensed, other messages without one are left whole. The user message
        before an output decides which parts of it are kept; `question` is the user message before all atoms.
        """
        self.last_cuts = {}
        cut_atoms: list[Atom] = []
        for atom in atoms:
            if is_question(atom):
                question = atom.messages[0].text
            cut_atoms.append(self._cut_atom(atom, limits.get(atom.first), question))
        return cut_atoms

    def _cut_atom(self, atom: Atom, limit: int | None, question: str) -> Atom:
        """Return an atom with each part cut to a limit, and note the tokens of what was cut."""
        if limit is None:
            if not _is_call(atom):
                return atom
            limit = self._condensed_limit(atom)
        if _is_call(atom):
            messages = tuple([self._cut_message(message, limit, question) for message in atom.messages])
        else:
            messages = tuple([self._cut_long_message(message, limit) for message in atom.messages])
        cost = self._codec.cost
        cuts: dict[str, tuple[int, int]] = {}
        for whole, shown in zip(atom.messages, messages, strict=True):
            if shown is not whole:
                cuts.update(dict.fromkeys(whole.sources, (cost(whole), cost(shown))))
        if cuts:
            self.last_cuts[atom.first] = cuts
        return atom._replace(messages=messages)

    def _cut_message(self, message: PromptMessage, limit: int, question: str) -> PromptMessage:
        """Return a message with each part cut to a limit; itself if nothing has to be cut."""
        known = message.tokens if message.counter == self._codec.counter.name else None
        if message.role is Role.TOOL and known is not None and known <= limit:
            return message
        entry = message.sources[0] if message.sources else ""
        parts = tuple([self._cut_part(part, limit, question, entry) for part in message.parts])
        if parts == message.parts:
            return message
        return replace(message, parts=parts, tokens=None, counter="")

    def _cut_part(self, part: Part, limit: int, question: str, entry: str) -> Part:
        """Return the arguments of a call or the output of a tool, cut to a limit; other parts unchanged."""
        counter = self._codec.counter
        if isinstance(part, ToolCall):
            arguments = condense.condense_arguments(part.arguments, limit, counter)
            return part if arguments == part.arguments else replace(part, arguments=arguments)
        if isinstance(part, ToolResult):
            output = condense.condense_output(part.output, limit, counter, question=question, entry=entry)
            return replace(part, output=output or condense.CUT)
        return part

    def _cut_long_message(self, message: PromptMessage, limit: int) -> PromptMessage:
        entry = message.sources[0] if message.sources else ""
        parts: list[Part] = []
        for part in message.parts:
            if isinstance(part, Text):
                part = Text(condense.keep_ends(part.text, limit, self._codec.counter, entry=entry))
            parts.append(part)
        if tuple(parts) == message.parts:
            return message
        return replace(message, parts=tuple(parts), tokens=None, counter="")

    def condense(
        self, atoms: Sequence[Atom], limits: Mapping[int, int], question: str = ""
    ) -> tuple[list[Atom], dict[int, int]]:
        """Return atoms cut to the given limits, all other calls condensed, and the limits of all calls cut."""
        cut_atoms = self.cut(atoms, limits, question)
        condensed = {
            atom.first: self._condensed_limit(atom) for atom in atoms if atom.first in self.last_cuts
        }
        return cut_atoms, condensed | dict(limits)

    def _condensed_limit(self, atom: Atom) -> int:
        """Return the tokens of each part of a condensed call, which has at most four times those of one output."""
        parts = sum(len(message.parts) for message in atom.messages)
        share = 4 * self._condensed_tokens // max(1, parts)
        return max(1, min(self._condensed_tokens, share))

    def fill(
        self, atoms: Sequence[Atom], costs: Sequence[int], limits: Mapping[int, int], start: int, budget: int
    ) -> tuple[int, dict[int, int]]:
        """Return an earlier start and higher limits that show more of some whole atoms, newest first.

        `costs` are those of the atoms as they would be shown, `budget` is how much the atoms from `start` on may grow.
        What does not fit whole is cut.
        """
        limits = dict(limits)
        for index in reversed(range(len(atoms))):
            atom = atoms[index]
            shown = costs[index] if index >= start else 0
            whole = sum(map(self._codec.cost, atom.messages))
            if whole > shown + budget:
                if shown + budget < LEAST_SHOWN:
                    break
                limits[atom.first] = self.limit_within(atom, shown + budget)
            elif _is_call(atom):
                limits[atom.first] = self._budget
            (cut,) = self.cut([atom], limits)
            budget -= sum(map(self._codec.cost, cut.messages)) - shown
            start = min(start, index)
        return start, limits

    def limit_within(self, atom: Atom, budget: int) -> int:
        """Return the tokens that each part of a call or message may have so that all of it fits a budget."""
        whole_cost = sum(map(self._codec.cost, atom.messages))
        if whole_cost <= budget:
            return self._budget
        costs: list[int] = []
        for message in atom.messages:
            for part in message.parts:
                text = _text_to_cut(part, is_call=_is_call(atom))
                if text is not None:
                    costs.append(self._codec.counter.count(text))
        frame_cost = whole_cost - sum(costs)
        return max(self._condensed_limit(atom), condense.find_level(costs, budget - frame_cost))


def _is_call(atom: Atom) -> bool:
    """Return whether an atom is a tool call with its results."""
    return any(message.role is Role.TOOL for message in atom.messages)


def _text_to_cut(part: Part, *, is_call: bool) -> str | None:
    """Return the text of a part that may be cut: arguments and outputs of a call, or the text of another message."""
    match part:
        case ToolCall():
            return part.arguments
        case ToolResult():
            return part.output
        case Text():
            return None if is_call else part.text
        case _:
            return None
