"""Where the conversations of the golden outputs come from: generated ones, and the development sets in a folder."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from acms import ACMS, ACMSConfig
from acms.storage import MemoryStorage
from acms_eval import load

from .generated import LOGS, QUESTIONS, Dice, Message
from .plain import Names

ROOT = Path(__file__).parents[2]
SAMPLE = 25
"""Questions of a conversation that are asked in the default run."""

SETS = {
    "locomo": ("locomo-dev/conv-26.json",),
    "realtalk": ("realtalk-dev/Chat_1_Emi_Elise.json",),
    "beam-100k": ("beam-100k-dev/1",),
    "beam-500k": ("beam-500k-dev/1",),
    "vehicle": ("vehicle-dev/vmb-1.json",),
    "memsim": ("memsim-dev/02_conditional_events.json",),
}
"""The files of each development set that the default run reads."""
"""The source of what needs no conversation."""
FOLDERS = tuple(f"{name}-dev" for name in SETS)


@dataclass(frozen=True)
class Talk:
    """A conversation and what is asked about it."""

    name: str
    messages: tuple[Message, ...]
    questions: tuple[str, ...]
    #: True when its text is ours and may be shown.
    ours: bool = False

    def some(self, most: int) -> list[tuple[str, str]]:
        """Return (name, question) of some questions, spread evenly."""
        count = len(self.questions)
        places = range(count) if count <= most else [count * n // most for n in range(most)]
        return [(f"q{place:03}", self.questions[place]) for place in places]


def data_folder() -> Path:
    """Return the folder of the development conversations."""
    return Path(os.environ.get("ACMS_DATA") or ROOT.parent / "shared" / "data")


@cache
def _read(path: Path) -> tuple[Talk, ...]:
    found = []
    for one in load(path):
        messages = tuple(
            {"role": said.role, "content": said.text, "actor_id": said.speaker, "created_at": said.created_at}
            for said in one.said
        )
        found.append(Talk(one.name, messages, tuple(question.text for question in one.questions)))
    return tuple(found)


def talks(source: str) -> list[Talk]:
    """Return the conversations of a source: "agent", "locomo", or all of a folder such as "locomo-dev"."""
    if source in LOGS:
        return [Talk(source, tuple(LOGS[source]()), QUESTIONS[source], ours=True)]
    if source not in SETS and source not in FOLDERS:  # the verbs have their own
        return [Talk(source, (), (), ours=True)]
    paths = SETS.get(source) or (source,)
    return [talk for path in paths for talk in _read(data_folder() / path)]


def storage(seed: str = "store") -> MemoryStorage:
    """Return a store in memory that draws the same ids and salts in every run."""
    return MemoryStorage(entropy=Dice(seed).bytes)


@asynccontextmanager
async def told(
    talk: Talk, config: ACMSConfig | None = None, **given: Any
) -> AsyncIterator[tuple[ACMS, Names]]:
    """Open a session in a new store, with everything said, and the names of its ids."""
    store = given.pop("store", None) or storage(talk.name)
    async with ACMS(talk.name, store, given.pop("embedder", None), config=config, **given) as session:
        await ingest(session, talk.messages)
        yield session, Names(await context(session))


async def ingest(session: ACMS, messages: tuple[Message, ...] | list[Message]) -> None:
    """Say everything, some hundred messages at a time."""
    for start in range(0, len(messages), 400):
        await session.ingest_many(messages[start : start + 400])


async def context(session: ACMS) -> str:
    """Return the id of the log of a session."""
    return (await session.ancestry())[-1].context_id
