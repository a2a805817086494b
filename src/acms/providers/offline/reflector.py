"""The reflector that needs no model: rules for what is marked or plainly said."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from acms.knowledge import Reflection
from acms.model import Origin
from acms.providers.offline.rules.settle import settle
from acms.providers.offline.rules.statement import Speaker, Statement
from acms.providers.offline.rules.statements import statements

if TYPE_CHECKING:
    from acms.ports import ReflectionRequest, Turn

__all__ = ["OfflineReflector"]

_LONG = 100_000  # letters, about 40 ms
_HEARD = (Origin.USER, Origin.ASSISTANT)


class OfflineReflector:
    """Finds facts by rules: what a marker announces, and what is said plainly in English.

    "We use Redis as the cache", "the deadline moved to May 5", "never deploy on Fridays", "tried A, but it failed
    because B", "I'm allergic to nuts", "actually, make that 64,000". It reads text of users and assistants only, never
    that of tools; an assistant's mere statements are below the default confidence. The same turns and facts give the
    same proposals. Needs no network; a long stretch is read in a worker thread. It writes no summary, so the extractive
    one stands.

    It does not understand: irony, what is only implied, a reference to something said long ago, a sentence that says
    two things at once in unusual words, and any language but English. What it is not sure to understand it leaves out.
    """

    #: Names the recipe: another one finds other facts.
    model: str = "offline1"

    async def reflect(self, request: ReflectionRequest) -> Reflection:
        """Return what the turns state, as changes to the facts in force."""
        if sum(len(turn.text) for turn in request.turns) > _LONG:
            return await asyncio.to_thread(_reflect, request)
        found: list[Statement] = []
        for turn in request.turns:
            found += _stated(turn)
            await asyncio.sleep(0)  # it works where others wait: a message at a time
        return Reflection(proposals=tuple(settle(found, request.facts)))


def _reflect(request: ReflectionRequest) -> Reflection:
    found = [statement for turn in request.turns for statement in _stated(turn)]
    return Reflection(proposals=tuple(settle(found, request.facts)))


def _stated(turn: Turn) -> list[Statement]:
    if turn.origin not in _HEARD or turn.summary:
        return []
    speaker = Speaker(name=turn.speaker, role=turn.origin.value, user=turn.origin is Origin.USER)
    return statements(turn.text, speaker, markers=turn.markers, said=turn.created_at, version=turn.version)
