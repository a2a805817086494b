"""Every area that is recorded: a family of verbs on a source of conversations."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from . import prompts, reading, rewriting
from .book import Records
from .generated import LOGS
from .sources import FOLDERS, SETS, Talk, talks

Family = Callable[[Talk], Awaitable[Records]]

FAMILIES: dict[str, Family] = {
    "recall": reading.recall,
    "window": reading.window,
    "log": reading.log,
    "prompt": prompts.prompt,
    "acs": prompts.acs,
    "facts": rewriting.facts,
    "compaction": rewriting.compaction,
    "rewriting": rewriting.rewriting,
    "branches": rewriting.branches,
}

LARGE = ("beam-500k", "vehicle")
"""Sources with long conversations, and families that take seconds there: compared only when asked for."""
DEAR = ("prompt", "acs", "facts", "compaction", "branches")


@dataclass(frozen=True)
class Area:
    """One family on one source; `slow` ones are compared only when asked for."""

    family: str
    source: str
    make: Family
    slow: bool = False

    def __str__(self) -> str:
        return f"{self.family}/{self.source}"

    @property
    def given(self) -> bool:
        """Whether it reads a conversation of a development set."""
        return self.source in SETS or self.source in FOLDERS

    async def records(self) -> Records:
        """Make the records anew, each under the names of its source and conversation."""
        found: Records = {}
        for talk in talks(self.source):
            made = await self.make(talk)
            found |= {
                f"{self.source} {talk.name.replace(' ', '_')} {key}": value for key, value in made.items()
            }
        return found


def areas() -> list[Area]:
    """Return every area, family by family."""
    found = [
        Area(family, source, make, slow=source in LARGE and family in DEAR)
        for family, make in FAMILIES.items()
        for source in (*LOGS, *SETS)
    ]
    found += [Area("reflection", source, rewriting.reflection) for source in LOGS]
    found.append(Area("pins", "project", prompts.pins))
    found += [Area("full", folder, reading.full, slow=True) for folder in FOLDERS]
    return found
