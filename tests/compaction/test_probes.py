"""Probes: small facts planted in a long talk must survive compaction word for word.

ACMS_PROBE_SEED chooses the text; without it every run draws another one, and the name of a failed test says which.
"""

from __future__ import annotations

import os
import random

import pytest

from acms import ACMS, ACMSConfig, CompactionPolicy, open_storage

# A new text each time; the processes of one run draw the same.
DRAW = random.Random(os.environ.get("PYTEST_XDIST_TESTRUNUID"))
SEED = int(os.environ.get("ACMS_PROBE_SEED", DRAW.randrange(10**6)))

FILLER = (
    "Let me look at that again and see what comes out of it.",
    "I think the next step is to check the output of the last run.",
    "Nothing unusual there, moving on.",
    "The logs look clean, apart from the usual noise about retries.",
    "Could you run the tests once more and tell me what fails?",
    "It works on my side, maybe the cache was stale.",
    "That makes sense, let us go with the simpler version first.",
    "I am going to refactor this a little before we continue.",
    "All green after {n} seconds, {m} tests passed.",
    "The build took {n} minutes today, Kim was not amused.",
    "See src/orders/main.py, as before.",
)


class Talk:
    """A thousand turns of an agent at work, with fifty details of five kinds in unmarked turns."""

    def __init__(self, seed: int, turns: int = 1000) -> None:
        self.draw = random.Random(seed)
        self.details: list[str] = []
        places = set(self.draw.sample(range(turns - 15), 50))
        self.turns = [self._turn(n in places) for n in range(turns)]

    def _turn(self, planted: bool) -> str:
        draw = self.draw
        said = [
            draw.choice(FILLER).format(n=draw.randint(2, 60), m=draw.randint(100, 400))
            for _ in range(draw.randint(2, 5))
        ]
        if planted:
            said.insert(draw.randint(0, len(said)), self._plant(len(self.details) % 5))
        return " ".join(said)

    def _plant(self, kind: int) -> str:
        draw, name = self.draw, self._name
        detail, sentence = [
            (f"/srv/{name(5)}/{name(6)}.yaml", "The settings are in {} on the usual machine."),
            (f"{name(3).upper()}-{draw.randint(1000, 9999)}", "I filed that as {} for later."),
            (f"{draw.randint(1000, 99999)} MB", "The dump came out at {} this time."),
            (f"{name(4).title()} {name(7).title()}", "Ask {} about it, not whoever is on call."),
            (f"2027-{draw.randint(1, 12):02}-{draw.randint(1, 28):02}", "The window closes on {} for good."),
        ][kind]
        self.details.append(detail)
        return sentence.format(detail)

    def _name(self, length: int) -> str:
        return "".join(self.draw.choice("abcdefghjkmnpqrstuvwxyz") for _ in range(length))


@pytest.mark.parametrize("seed", [SEED, pytest.param(SEED + 1, marks=pytest.mark.slow)], ids="seed-{}".format)
async def test_details_survive_the_compactions_of_a_thousand_turns(seed: int, url: str) -> None:
    talk = Talk(seed)
    config = ACMSConfig(compaction=CompactionPolicy(budget=8000))
    async with ACMS("agent", open_storage(url), config=config) as session:
        for n, text in enumerate(talk.turns):
            await session.ingest(("user", "assistant")[n % 2], text)
            if n % 25 == 0:
                assert (await session.window(8000)).tokens <= 8000
        await session.wait_pending()
        stats = await session.get_session_stats()
        window = await session.window(8000)
    assert stats.active_tokens <= 0.25 * stats.tokens
    assert window.tokens <= 8000
    shown = window.text()
    lost = [detail for detail in talk.details if detail not in shown]
    assert len(lost) <= 5, lost
