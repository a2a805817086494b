"""A reflector that makes no mistakes: what the rest of the system does with perfect proposals."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from acms.knowledge import Proposal, Reflection
from acms.ports import ReflectionRequest
from acms_eval.nouns import Scenario

__all__ = ["PerfectReflector"]


class PerfectReflector:
    """Proposes what follows from a scenario, read off the scenario.

    A turn is known by its text. An update names the fact in force at its address; while there is none it is left to the
    address alone.
    """

    def __init__(self, scenario: Scenario) -> None:
        #: A name of its own for every scenario, so that no other worker takes its jobs.
        self.model = f"perfect/{scenario.name}"
        self._known: dict[str, list[Proposal]] = defaultdict(list)
        for index, proposal in scenario.proposals:
            self._known[scenario.said[index].text.strip()].append(proposal)

    async def reflect(self, request: ReflectionRequest) -> Reflection:
        """Return the proposals of the turns, in their order."""
        ids_by_address = {(fact.subject, fact.attribute): fact.id for fact in request.facts}
        proposals: list[Proposal] = []
        for turn in request.turns:
            for proposal in self._known.get(turn.text.strip(), ()):
                id = (
                    ids_by_address.get((proposal.subject, proposal.attribute))
                    if proposal.action == "update"
                    else None
                )
                proposals.append(replace(proposal, sources=(turn.version,), fact_id=id))
        return Reflection(proposals=tuple(proposals))
