"""Outputs and arguments of finished tool calls, cut to the tokens that a prompt has for them.

As much of the newest call is shown as fits; of older ones the most relevant parts. Text shown in one request is shown
again word for word, so the tokens of each call are kept with the cache window (`acms.prompt.cache_window`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from acms.model import Part, Role, ToolCall, ToolResult
from acms.plan.nodes import Atom
from acms.ports import Codec
from acms.prompt.cache_window import is_question
from acms.prompt_types import PromptMessage
from acms.text import condense


class CallCutter:
    """Cuts the tool calls of a history, and remembers the last cuts."""

    def __init__(self, codec: Codec, *, budget: int, condensed_tokens: int) -> None:
        self._codec = codec
        #: Tokens that no part of a call exceeds, and those of a condensed output.
        self._budget = budget
        self._condensed_tokens = condensed_tokens
        #: Of the calls that were cut last, by version: tokens of each message, whole and as shown.
        self.last_cuts: dict[int, dict[str, tuple[int, int]]] = {}

    def cut(self, atoms: Sequence[Atom], limits: Mapping[int, int], question: str = "") -> list[Atom]:
        """Return atoms with each part of a finished tool call cut to its limit, by the version of the call.

        Calls without a limit of their own are condensed. The user message before an output decides which parts of it
        are kept; `question` is the user message before all atoms.
        """
        self.last_cuts = {}
        cut_atoms: list[Atom] = []
        for atom in atoms:
            if is_question(atom):
                question = atom.messages[0].text
            cut_atoms.append(self._cut_atom(atom, limits.get(atom.first), question))
        return cut_atoms

    def _cut_atom(self, atom: Atom, limit: int | None, question: str) -> Atom:
        """Return a finished tool call with each part cut to a limit, and note the tokens of what was cut."""
        if not any(message.role is Role.TOOL for message in atom.messages):
            return atom
        limit = limit or self._condensed_limit(atom)
        messages = tuple([self._cut_message(message, limit, question) for message in atom.messages])
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

    def limit_within(self, atom: Atom, budget: int) -> int:
        """Return the tokens that each part of a call may have so that the whole call fits a budget."""
        whole_cost = sum(map(self._codec.cost, atom.messages))
        if whole_cost <= budget:
            return self._budget
        costs: list[int] = []
        for message in atom.messages:
            for part in message.parts:
                if isinstance(part, ToolCall | ToolResult):
                    text = part.arguments if isinstance(part, ToolCall) else part.output
                    costs.append(self._codec.counter.count(text))
        frame_cost = whole_cost - sum(costs)
        return max(self._condensed_limit(atom), condense.find_level(costs, budget - frame_cost))
