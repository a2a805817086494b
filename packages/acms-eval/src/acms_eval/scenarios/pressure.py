"""Scenarios of pressure on one fact: time, a small budget, and talk that sounds the same (E5.3, E5.4, E5.5)."""

from __future__ import annotations

from dataclasses import replace

from acms_eval.nouns import Scenario
from acms_eval.scenarios.writer import Statement, Writer
from acms_eval.topics import Phrases
from acms_eval.topics import phrases as _phrases

__all__ = ["DISTANCES", "budget_pressure", "noise_injection", "temporal_degradation"]

DISTANCES = (10, 20, 30, 50, 75, 100, 150, 200, 300, 500, 750, 1000, 2000, 5000)
"""Messages between a fact and the question, of the curve of E5.3 and beyond."""


def temporal_degradation(
    *, turns: int = 200, seed: int = 0, phrases: Phrases | None = None, noise: float = 0.0
) -> Scenario:
    """Return one marked fact at the start, and the same question again and again (E5.3).

    It is asked at every distance of the curve that fits, within 300 tokens. `noise` is the share of the other exchanges
    that talk about the topic of the fact, and name other values.
    """
    writer = Writer.for_scenario(
        f"temporal_degradation/{noise}", turns, seed, phrases or _phrases(), least=12
    )
    random = writer.random
    decision = writer.decide([random.choice(writer.phrases.topics)])[0]
    probe = decision.probe(random.choice(decision.topic.questions))
    return writer.write(
        f"temporal_degradation-{turns}-{seed}" + (f"-{noise}" if noise else ""),
        turns=turns,
        stated={0: decision.state(random, marked=True)},
        probes=[replace(probe, after=1 + distance) for distance in DISTANCES if distance < turns],
        noise=noise,
        about=[decision],
        budget=300,
    )


def budget_pressure(*, turns: int = 200, seed: int = 0, phrases: Phrases | None = None) -> Scenario:
    """Return twenty marked facts, each at length: together more than the 1,000 tokens they are recalled in (E5.4)."""
    writer = Writer.for_scenario("budget_pressure", turns, seed, phrases or _phrases(), least=60)
    random = writer.random
    decided = writer.decide(random.sample(writer.phrases.topics, 20))
    details = [text for text in writer.phrases.details if not writer.gives_away(text)]
    unused_details: list[str] = []
    stated: dict[int, Statement] = {}
    for place, decision in zip(writer.draw_places(20, 0, 28), random.sample(decided, 20), strict=True):
        statement = decision.state(random, marked=True)
        parts = [statement.text]
        for _ in range(2):
            unused_details = unused_details or random.sample(details, len(details))
            parts += [unused_details.pop()] if unused_details else []
        stated[place] = replace(statement, text=" ".join(parts))
    return writer.write(
        f"budget_pressure-{turns}-{seed}",
        turns=turns,
        stated=stated,
        probes=[decision.probe(random.choice(decision.topic.questions)) for decision in decided],
        noise=0.3,
        about=decided,
        budget=1000,
    )


def noise_injection(*, turns: int = 200, seed: int = 0, phrases: Phrases | None = None) -> Scenario:
    """Return eight marked facts; half of everything else is their like, with slightly other details (E5.5).

    Half of that names other values. The other half names the value itself, as hearsay ("is popular, but some prefer"):
    these are the decoys of its probe, for they do not say what was decided.
    """
    writer = Writer.for_scenario("noise_injection", turns, seed, phrases or _phrases(), least=40)
    random = writer.random
    topics = [topic for topic in writer.phrases.topics if topic.echoes]
    decided = writer.decide(random.sample(topics, 8))
    statements = [decision.state(random, marked=True) for decision in decided]
    return writer.write(
        f"noise_injection-{turns}-{seed}",
        turns=turns,
        stated=dict(zip(writer.draw_places(8, 0, 10), random.sample(statements, 8), strict=True)),
        probes=[decision.probe(random.choice(decision.topic.questions)) for decision in decided],
        noise=0.25,
        echoed=0.25,
        about=decided,
    )
