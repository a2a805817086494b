"""The reflector that needs no model: marked lines, a few shapes of plain sentences, and what takes whose place."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from acms.knowledge import Proposal, Reflection
from acms.providers.offline.corrections import settle
from acms.providers.offline.statements import statements

if TYPE_CHECKING:
    from acms.ports import ReflectionRequest

__all__ = ["OfflineReflector"]

_LONG = 100_000  # letters, about 40 ms


class OfflineReflector:
    """Finds facts by rules: every line that a marker announces, in its own words, and a few plain statements.

    A marked line is a fact in any language. Unmarked, only a short sentence of a user that says nothing else is read:
    "my name is Ada", "the deadline is May 5", "we use Redis for caching", "I live in Lyon". A later marked line takes
    the place of the fact that it names as gone ("switching from Flask to FastAPI"); in doubt both stay in force. The
    same turns and facts give the same proposals. Needs no network; a long stretch is read in a worker thread. It writes
    no summary, so the extractive one stands.

    It understands nothing: what is said in any other way, without a marker, is left out.
    """

    #: Names the recipe: another one finds other facts.
    model: str = "offline2"

    async def reflect(self, request: ReflectionRequest) -> Reflection:
        """Return what the turns state, as changes to the facts in force."""
        if sum(len(turn.text) for turn in request.turns) > _LONG:
            return await asyncio.to_thread(_reflect, request)
        found: list[Proposal] = []
        for turn in request.turns:
            found += statements(turn)
            await asyncio.sleep(0)  # it works where others wait: a message at a time
        return Reflection(proposals=tuple(settle(found, request.facts)))


def _reflect(request: ReflectionRequest) -> Reflection:
    found = [statement for turn in request.turns for statement in statements(turn)]
    return Reflection(proposals=tuple(settle(found, request.facts)))
