"""Scenarios of what changes or follows: corrections, contradictions, and chains of decisions (E1.3, E5.1, E5.2)."""

from __future__ import annotations

from random import Random

from acms.knowledge import Proposal
from acms_eval.nouns import Probe, Scenario
from acms_eval.scenarios.writer import Decision, Statement, Writer
from acms_eval.topics import Phrases
from acms_eval.topics import phrases as _phrases

__all__ = ["cascading_decisions", "contradiction", "fact_correction"]


def _correct_with_cue(writer: Writer, decision: Decision, place: int) -> Statement:
    """Return a marked correction: a cue of any topic, or a phrasing of this one."""
    random: Random = writer.random
    if random.random() < 0.5:
        return decision.change(random.choice(decision.topic.corrected), place)
    beginning = random.choice(writer.phrases.announced[decision.topic.fact_type])
    return decision.change(beginning + random.choice(writer.phrases.cues), place)


def fact_correction(*, turns: int = 200, seed: int = 0, phrases: Phrases | None = None) -> Scenario:
    """Return eight marked facts of which five are corrected later, in many words (E1.3).

    Noise names other values of the same topics, before and after.
    """
    writer = Writer.for_scenario("fact_correction", turns, seed, phrases or _phrases(), least=50)
    random = writer.random
    changing = random.sample([topic for topic in writer.phrases.topics if topic.corrected], 5)
    unchanged = [topic for topic in writer.phrases.topics if topic not in changing]
    decided = writer.decide(changing + random.sample(unchanged, 3), {topic.name: 1 for topic in changing})
    statements = [decision.state(random, marked=True) for decision in decided]
    exchanges = turns // 2
    stated = dict(zip(writer.draw_places(8, 0, 10), random.sample(statements, 8), strict=True))
    later = writer.draw_places(5, max(10, exchanges * 3 // 10), exchanges * 7 // 10)
    stated.update(
        zip(later, [_correct_with_cue(writer, decision, 1) for decision in decided[:5]], strict=True)
    )
    return writer.write(
        f"fact_correction-{turns}-{seed}",
        turns=turns,
        stated=stated,
        probes=[decision.probe(random.choice(decision.topic.questions)) for decision in decided],
        noise=0.4,
        about=decided,
    )


def contradiction(*, turns: int = 200, seed: int = 0, phrases: Phrases | None = None) -> Scenario:
    """Return decisions that are contradicted later (E5.1): with a cue, twice with a cue, and without a word of it."""
    writer = Writer.for_scenario("contradiction", turns, seed, phrases or _phrases(), least=40)
    random = writer.random
    topics = random.sample([topic for topic in writer.phrases.topics if topic.corrected], 3)
    once, twice, flat = decided = writer.decide(
        topics, {topics[0].name: 1, topics[1].name: 2, topics[2].name: 1}
    )
    exchanges = turns // 2
    stated = dict(
        zip(
            writer.draw_places(3, 0, 6),
            [decision.state(random, marked=True) for decision in decided],
            strict=True,
        )
    )
    later = writer.draw_places(4, max(6, exchanges * 3 // 10), exchanges * 7 // 10)
    changes = [_correct_with_cue(writer, once, 1), flat.change(random.choice(flat.topic.marked), 1)]
    changes.insert(random.randrange(3), _correct_with_cue(writer, twice, 1))
    stated.update(zip(later, [*changes, _correct_with_cue(writer, twice, 2)], strict=True))
    return writer.write(
        f"contradiction-{turns}-{seed}",
        turns=turns,
        stated=stated,
        probes=[decision.probe(random.choice(decision.topic.questions)) for decision in decided],
        noise=0.3,
        about=decided,
    )


def cascading_decisions(*, turns: int = 200, seed: int = 0, phrases: Phrases | None = None) -> Scenario:
    """Return two chains of decisions, each following from the one before, and a question about every step (E5.2).

    To surface what a step follows from is a bonus: those values are the bonus keywords of its probe.
    """
    writer = Writer.for_scenario("cascading_decisions", turns, seed, phrases or _phrases(), least=40)
    random = writer.random
    statements: list[Statement] = []
    probes: list[Probe] = []
    chains = random.sample(writer.phrases.chains, 2)
    for chain in chains:
        option = random.choice(chain.options)
        writer.reserve_words(option)
        for step, value in enumerate(option):
            statements.append(
                Statement(
                    topic=chain.steps[step],
                    text=random.choice(chain.said[step]).format(*option),
                    value=value,
                    part="fact",
                    proposal=Proposal(
                        action="add",
                        content=chain.contents[step].format(*option),
                        subject=chain.subject,
                        attribute=chain.steps[step],
                        value=value,
                        cardinality="one",
                        fact_type="decision",
                        confidence=1.0,
                        reason="fact",
                    ),
                )
            )
            probes.append(
                Probe(
                    question=random.choice(chain.questions[step]),
                    expected=(value,),
                    bonus=option[:step],
                    after=0,
                    topic=chain.steps[step],
                )
            )
    # A step may not come before the one it follows from, nor one chain after the other as a block.
    order = random.sample(range(len(statements)), len(statements))
    split = len(chains[0].steps)
    chain_places = [
        sorted(place for place in order if place < split),
        sorted(place for place in order if place >= split),
    ]
    mixed = [statements[chain_places[0 if place < split else 1].pop(0)] for place in order]
    remark_topics = [Decision(topic=topic, values=(), rivals=topic.values) for topic in writer.phrases.topics]
    return writer.write(
        f"cascading_decisions-{turns}-{seed}",
        turns=turns,
        stated=dict(zip(writer.draw_places(len(mixed), 0, 12), mixed, strict=True)),
        probes=probes,
        noise=0.3,
        about=remark_topics,
    )
