"""Every area that is recorded: a family of verbs on a source of conversations."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tests.support.virtual_time import VirtualTimeLoop

from . import cli, prompts, reading, rewriting, stored
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
DEAR = ("window", "prompt", "acs", "facts", "compaction", "rewriting", "branches")
ALIKE = {
    *(("acs", source) for source in ("locomo", "realtalk", "memsim", "beam-100k", "people", "project")),
    *(("prompt", source) for source in ("realtalk", "memsim", "people", "project")),
    *(("window", "memsim"), ("facts", "realtalk"), ("compaction", "realtalk"), ("recall", "vehicle")),
    *((family, "beam-100k") for family in ("prompt", "window", "facts", "compaction", "rewriting")),
    *(("recall", source) for source in ("beam-100k", "beam-500k")),
    *(("log", "vehicle"), ("recall", "people"), ("rewriting", "people")),
}
"""What takes seconds and is much like that of another source."""
MODEL = ("locomo", "realtalk")
"""Development sets that are recalled by meaning too: a model takes 8 to 50 ms a message."""


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

    def records(self) -> Records:
        """Make the records again, each under the names of its source and conversation.

        A reply of ACS depends on what its sources found before a deadline: time is virtual there.
        """
        with asyncio.Runner(loop_factory=VirtualTimeLoop if self.family == "acs" else None) as runner:
            return runner.run(self._records())

    async def _records(self) -> Records:
        found: Records = {}
        for talk in talks(self.source):
            name = talk.name.replace(" ", "_")
            before = self.source if name == self.source else f"{self.source} {name}"
            found |= {f"{before} {key}": value for key, value in (await self.make(talk)).items()}
        return found


def areas() -> list[Area]:
    """Return every area, family by family."""
    found = [
        Area(family, source, make, slow=(source in LARGE and family in DEAR) or (family, source) in ALIKE)
        for family, make in FAMILIES.items()
        for source in (*LOGS, *SETS)
    ]
    found += [Area("reflection", source, rewriting.reflection) for source in LOGS]
    found.append(Area("pins", "project", prompts.pins))
    found += [
        Area("model", source, reading.by_meaning, slow=True) for source in ("people", "project", *MODEL)
    ]
    found += [Area("stored", name, stored.read) for name in stored.files()]
    found += [Area("cli", source, cli.commands, slow=source == "agent") for source in ("agent", "project")]
    found += [Area("full", folder, reading.full, slow=True) for folder in FOLDERS]
    return found
