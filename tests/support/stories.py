"""Random logs for the tests of the index: everything that may stand in a log, of several speakers and days."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import numpy as np
from hypothesis import strategies as st

from acms import EpisodeBoundaryConfig, Kind, State
from tests.support.indexes import Row, pack_half_floats
from tests.support.logs import Log

WORDS = "orders database postgres cache redis blue deploy friday not march sam 42 the we ?".split()
QUERIES = [
    "orders database",
    "which database did Sam deploy in March 2026?",
    "redis",
    "the we not",
    "zanzibar orders",
    "",
    "blue cache 42 friday postgres march sam deploy",
]


def random_log(random: Random, steps: int, *, erasing: bool = True) -> Log:
    """A log of about so many entries; erased entries have lost their content."""
    log = Log(rules=EpisodeBoundaryConfig(max_turns=random.randint(2, 9)))

    def text() -> str:
        return " ".join(random.choices(WORDS, k=random.randint(0, 12)))

    for _ in range(steps):
        match random.choice("say say say say call answer edit retract summarise fact erase close".split()):
            case "call":
                log.say("assistant", text(), calls=random.sample(["c1", "c2", "c3"], random.randint(1, 2)))
            case "answer":
                log.say("tool", text(), answers=random.choice(["c1", "c2", "c3"]))
            case "edit" if found := [one for one in log.sequence() if one.kind is Kind.MESSAGE]:
                log.edit(random.choice(found).version, text())
            case "retract" if log.version:
                log.retract(random.randint(1, log.version))
            case "summarise" if log.version > 3:
                first = random.randint(1, log.version - 1)
                state = random.choice([State.LIVE, State.LIVE, State.ERASED if erasing else State.LIVE])
                last = min(first + random.randint(0, 4), log.version)
                log.summarise((first, last), content=text(), state=state)
            case "fact":
                log.fact(text(), actor=random.choice([None, "Zoe"]))
            case "erase" if log.version and erasing:
                index = random.randrange(log.version)
                log.entries[index] = replace(log.entries[index], content="", parts=(), state=State.ERASED)
            case "close":
                log.close()
            case _:
                log.say(
                    random.choice(["user", "assistant", "system"]),
                    text(),
                    actor=random.choice([None, "Sam", "Melanie", "March Sam"]),
                    markers=random.choice([(), (), (), ("constraint",), ("goal", "custom:x")]),
                    after=random.choice([1, 60, 4000, 90_000]),
                )
    return log


def random_vectors(random: Random, log: Log, dimension: int = 24) -> list[Row]:
    """Vectors of most entries, one or several of each; those without content have an empty one."""
    drawn = np.random.default_rng(random.getrandbits(32))
    rows: list[Row] = []
    for entry in log.entries:
        if entry.state is State.LIVE and random.random() < 0.8:
            if not entry.content.strip():
                rows.append((entry.version, 0, b""))
                continue
            for part in range(random.choice([1, 1, 2, 4])):
                rows.append((entry.version, part, pack_half_floats(drawn.normal(size=dimension))))
    return rows


def shuffle_rows(random: Random, rows: Sequence[Row]) -> list[list[Row]]:
    """The same rows as they may come: those of an entry together, entries late, out of order and in batches."""
    by_version: dict[int, list[Row]] = {}
    for row in rows:
        by_version.setdefault(row[0], []).append(row)
    versions = list(by_version)
    random.shuffle(versions)
    batches: list[list[Row]] = [[]]
    for version in versions:
        batches[-1].extend(by_version[version])
        if random.random() < 0.3:
            batches.append([])
    for batch in batches:
        random.shuffle(batch)
    return batches


randoms = st.integers(0, 2**32).map(Random)
