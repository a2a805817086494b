"""Outputs and arguments of finished tool calls, cut to the tokens that a prompt has for them.

As much of the newest call is shown as fits; of older ones the most relevant parts. Text shown in one request is shown
again word for word, so the tokens of each call are kept with the placement (`acms.prompt.placements`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from acms.log.encoding import is_summary
from acms.model import Role
from acms.plan.nodes import Atom
from acms.ports import Codec
from acms.prompt import placements
from acms.text.condense import find_level

PARTS = 4
"""A condensed call has as many tokens as so many condensed outputs, at most."""


class CallCutter:
    """Cuts the tool calls of a history, and remembers the last cuts."""

    def __init__(self, codec: Codec, *, room: int, result: int) -> None:
        self._codec = codec
        #: Tokens that are never too few, and those of a condensed output.
        self._whole = room
        self._result = result
        #: Of the calls that were cut last, by version: tokens of each message, whole and as shown.
        self.cut_calls: dict[int, dict[str, tuple[int, int]]] = {}

    def cut(self, units: Sequence[Atom], tokens: Mapping[int, int], question: str = "") -> list[Atom]:
        """Return units with each part of a finished tool call cut to its tokens, by the version of the call.

        Calls without tokens of their own are condensed. The user message before an output decides which parts of it are
        kept; `question` is the user message before all units.
        """
        self.cut_calls = {}
        found: list[Atom] = []
        for unit in units:
            first = unit.messages[0]
            if first.role is Role.USER and not any(map(is_summary, first.sources)):
                question = first.text
            shown = placements.condense_call(
                unit, tokens.get(unit.first) or self._least(unit), self._codec.counter, question
            )
            self._note(unit, shown)
            found.append(shown)
        return found

    def _note(self, unit: Atom, shown: Atom) -> None:
        cost = self._codec.cost
        both = zip(unit.messages, shown.messages, strict=True)
        cut = {id: (cost(was), cost(one)) for was, one in both if one is not was for id in one.sources}
        if cut:
            self.cut_calls[unit.first] = cut

    def condense(
        self, units: Sequence[Atom], tokens: Mapping[int, int], question: str = ""
    ) -> tuple[list[Atom], dict[int, int]]:
        """Return the same units, and the tokens of all calls: as given, of others that are cut those they have now."""
        found = self.cut(units, tokens, question)
        least = {unit.first: self._least(unit) for unit in units if unit.first in self.cut_calls}
        return found, least | dict(tokens)

    def _least(self, unit: Atom) -> int:
        """Return the tokens that each part of a condensed call has: of many parts each has less."""
        parts = sum(len(message.parts) for message in unit.messages)
        return max(1, min(self._result, PARTS * self._result // max(1, parts)))

    def tokens_within(self, unit: Atom, room: int) -> int:
        """Return the tokens that each part of a call may have so that the call takes no more than a room."""
        whole = sum(map(self._codec.cost, unit.messages))
        if whole <= room:
            return self._whole
        costs = placements.variable_costs(unit, self._codec.counter)
        return max(self._least(unit), find_level(costs, room - (whole - sum(costs))))
