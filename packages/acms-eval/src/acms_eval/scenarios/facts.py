"""Scenarios of facts that stay as they are: the original five, and what makes finding one hard (E1)."""

from __future__ import annotations

from collections.abc import Sequence

from acms.knowledge import Proposal
from acms_eval.nouns import Probe, Scenario
from acms_eval.scenarios.writer import Decided, Statement, Writer
from acms_eval.topics import Domain, Phrases, Topic, Use
from acms_eval.topics import phrases as _phrases

__all__ = [
    "constraint_awareness",
    "decision_tracking",
    "failure_memory",
    "goal_tracking",
    "high_density",
    "multi_fact_tracking",
    "overlapping_facts",
    "semantic_distractors",
    "unmarked_facts",
]

EARLY = 10
"""Exchanges within which facts are said, or as many as there are facts."""
ASIDE = 0.2
"""Share of remarks about other topics in the small talk of the original five."""


def _fact_count(turns: int, most: int) -> int:
    """Return how many facts a short conversation holds: half of its exchanges are for something else."""
    return max(1, min(most, turns // 4))


def _early(writer: Writer, statements: Sequence[Statement], turns: int) -> dict[int, Statement]:
    count = len(statements)
    places = writer.places(count, 0, min(max(EARLY, count), max(count, turns // 2 * 3 // 5)))
    return dict(zip(places, writer.random.sample(statements, count), strict=True))


def _others(writer: Writer, decided: Sequence[Decided]) -> list[Decided]:
    """Return topics that nothing was decided about, to talk about in passing."""
    names = {one.topic.name for one in decided}
    return [
        Decided(topic=topic, values=(), rivals=topic.values)
        for topic in writer.phrases.topics
        if topic.name not in names
    ]


def _original(
    name: str, topics: Sequence[Topic], count: int, writer: Writer, *, turns: int, seed: int
) -> Scenario:
    decided = writer.decide(writer.random.sample(topics, min(len(topics), _fact_count(turns, count))))
    return writer.write(
        f"{name}-{turns}-{seed}",
        turns=turns,
        stated=_early(writer, [one.state(writer.random, marked=True) for one in decided], turns),
        probes=[one.probe(writer.random.choice(one.topic.questions)) for one in decided],
        noise=ASIDE,
        about=_others(writer, decided),
    )


def decision_tracking(*, turns: int = 200, seed: int = 0, phrases: Phrases | None = None) -> Scenario:
    """Return five marked decisions and small talk."""
    writer = Writer.named("decision_tracking", turns, seed, phrases or _phrases())
    topics = [topic for topic in writer.phrases.topics if topic.fact_type == "decision"]
    return _original("decision_tracking", topics, 5, writer, turns=turns, seed=seed)


def constraint_awareness(*, turns: int = 200, seed: int = 0, phrases: Phrases | None = None) -> Scenario:
    """Return five marked constraints and small talk."""
    writer = Writer.named("constraint_awareness", turns, seed, phrases or _phrases())
    found = writer.phrases
    topics = [*found.constraints, *(topic for topic in found.topics if topic.fact_type == "constraint")]
    return _original("constraint_awareness", topics, 5, writer, turns=turns, seed=seed)


def failure_memory(*, turns: int = 200, seed: int = 0, phrases: Phrases | None = None) -> Scenario:
    """Return four things that failed and small talk."""
    writer = Writer.named("failure_memory", turns, seed, phrases or _phrases())
    return _original("failure_memory", writer.phrases.failures, 4, writer, turns=turns, seed=seed)


def goal_tracking(*, turns: int = 200, seed: int = 0, phrases: Phrases | None = None) -> Scenario:
    """Return four goals and small talk."""
    writer = Writer.named("goal_tracking", turns, seed, phrases or _phrases())
    return _original("goal_tracking", writer.phrases.goals, 4, writer, turns=turns, seed=seed)


def multi_fact_tracking(*, turns: int = 200, seed: int = 0, phrases: Phrases | None = None) -> Scenario:
    """Return ten facts of all kinds, half of them unmarked, asked about one by one and two at a time."""
    writer = Writer.named("multi_fact_tracking", turns, seed, phrases or _phrases())
    random, found = writer.random, writer.phrases
    chosen = random.sample(found.topics, 4)
    for topics in (found.constraints, found.failures, found.goals):
        chosen += random.sample(topics, 2)
    decided = writer.decide(random.sample(chosen, _fact_count(turns, len(chosen))))
    marks = [place % 2 == 0 for place in range(len(decided))]
    random.shuffle(marks)
    statements = [one.state(random, marked=marked) for one, marked in zip(decided, marks, strict=True)]
    probes = [one.probe(random.choice(one.topic.questions)) for one in decided]
    for one, two in zip(decided[0:-1:2], decided[1::2], strict=True):
        parts = [one.probe(random.choice(one.topic.questions)), two.probe(random.choice(two.topic.questions))]
        probes.append(
            Probe(
                question=random.choice(found.joins).format(one=parts[0].question, two=parts[1].question),
                expected=(*parts[0].expected, *parts[1].expected),
                after=0,
                topic=f"{one.topic.name} + {two.topic.name}",
            )
        )
    return writer.write(
        f"multi_fact_tracking-{turns}-{seed}",
        turns=turns,
        stated=_early(writer, statements, turns),
        probes=probes,
        noise=ASIDE,
        about=_others(writer, decided),
    )


def semantic_distractors(*, turns: int = 200, seed: int = 0, phrases: Phrases | None = None) -> Scenario:
    """Return five marked decisions among remarks about just these topics, which name other values or none (E1.1)."""
    writer = Writer.named("semantic_distractors", turns, seed, phrases or _phrases())
    random = writer.random
    topics = [topic for topic in writer.phrases.topics if topic.fact_type == "decision" and topic.related]
    decided = writer.decide(random.sample(topics, min(len(topics), _fact_count(turns, 5))))
    return writer.write(
        f"semantic_distractors-{turns}-{seed}",
        turns=turns,
        stated=_early(writer, [one.state(random, marked=True) for one in decided], turns),
        probes=[one.probe(random.choice(one.topic.questions)) for one in decided],
        noise=0.6,
        related=0.4,
        about=decided,
    )


def overlapping_facts(*, turns: int = 200, seed: int = 0, phrases: Phrases | None = None) -> Scenario:
    """Return two domains, in each several things decided apart, with values of one category (E1.2)."""
    writer = Writer.named("overlapping_facts", turns, seed, phrases or _phrases(), least=40)
    random = writer.random
    statements: list[Statement] = []
    probes: list[Probe] = []
    about: list[Decided] = []
    for domain in random.sample(writer.phrases.domains, 2):
        values = random.sample(domain.values, len(domain.values))
        for use, value in zip(domain.uses, values, strict=False):
            statements.append(_used(domain, use, value, random.choice(use.marked)))
            probes.append(
                Probe(question=random.choice(use.questions), expected=(value,), after=0, topic=use.name)
            )
        writer.keep(values[: len(domain.uses)])
        about.append(_talk(domain, tuple(values[len(domain.uses) :])))
    return writer.write(
        f"overlapping_facts-{turns}-{seed}",
        turns=turns,
        stated=_early(writer, statements, turns),
        probes=probes,
        noise=0.4,
        about=about,
    )


def _used(domain: Domain, use: Use, value: str, text: str) -> Statement:
    return Statement(
        topic=use.name,
        text=text.format(v=value),
        value=value,
        part="fact",
        proposal=Proposal(
            action="add",
            content=use.content.format(v=value),
            subject=domain.subject,
            attribute=use.name,
            value=value,
            cardinality="one",
            fact_type="decision",
            confidence=1.0,
            reason="fact",
        ),
    )


def _talk(domain: Domain, rivals: tuple[str, ...]) -> Decided:
    """Return a domain as something to talk about in passing."""
    topic = Topic(
        name=domain.name,
        subject=domain.subject,
        attribute=domain.name,
        values=domain.values,
        content="",
        fact_type="decision",
        marked=(),
        plain=(),
        questions=(),
        noise=domain.noise,
    )
    return Decided(topic=topic, values=(), rivals=rivals)


def unmarked_facts(*, turns: int = 200, seed: int = 0, phrases: Phrases | None = None) -> Scenario:
    """Return eight facts in plain conversation, asked about in other words than they were said in (E1.4).

    With the word list of ACMS six of the questions share a word or two with the fact, and two share none.
    """
    writer = Writer.named("unmarked_facts", turns, seed, phrases or _phrases())
    random = writer.random
    topics = [topic for topic in writer.phrases.topics if topic.indirect]
    decided = writer.decide(random.sample(topics, min(len(topics), _fact_count(turns, 8))))
    return writer.write(
        f"unmarked_facts-{turns}-{seed}",
        turns=turns,
        stated=_early(writer, [one.state(random, marked=False) for one in decided], turns),
        probes=[
            one.probe(one.topic.indirect[place % len(one.topic.indirect)])
            for place, one in enumerate(decided)
        ],
        noise=0.3,
        about=_others(writer, decided),
    )


def high_density(*, turns: int = 200, seed: int = 0, phrases: Phrases | None = None) -> Scenario:
    """Return twenty facts in the first twenty exchanges, half of them unmarked, each asked about (E1.5)."""
    writer = Writer.named("high_density", turns, seed, phrases or _phrases(), least=50)
    random = writer.random
    decided = writer.decide(random.sample(writer.phrases.topics, 20))
    statements = [one.state(random, marked=place % 2 == 0) for place, one in enumerate(decided)]
    return writer.write(
        f"high_density-{turns}-{seed}",
        turns=turns,
        stated=dict(enumerate(random.sample(statements, len(statements)))),
        probes=[one.probe(random.choice(one.topic.questions)) for one in decided],
        noise=0.3,
        about=decided,
    )
