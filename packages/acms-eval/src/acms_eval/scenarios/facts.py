"""Scenarios of facts that stay as they are: the original five, and what makes finding one hard (E1)."""

from __future__ import annotations

from collections.abc import Sequence

from acms.knowledge import Proposal
from acms_eval.nouns import Probe, Scenario
from acms_eval.scenarios.writer import Decision, Statement, Writer
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


def _fact_count(turns: int, max_facts: int) -> int:
    """Return how many facts a short conversation holds: half of its exchanges are for something else."""
    return max(1, min(max_facts, turns // 4))


def _place_early(writer: Writer, statements: Sequence[Statement], turns: int) -> dict[int, Statement]:
    count = len(statements)
    places = writer.draw_places(count, 0, min(max(EARLY, count), max(count, turns // 2 * 3 // 5)))
    return dict(zip(places, writer.random.sample(statements, count), strict=True))


def _undecided_topics(writer: Writer, decided: Sequence[Decision]) -> list[Decision]:
    """Return the topics that nothing was decided about, for remarks in passing."""
    names = {decision.topic.name for decision in decided}
    return [
        Decision(topic=topic, values=(), rivals=topic.values)
        for topic in writer.phrases.topics
        if topic.name not in names
    ]


def _write_original(
    name: str, topics: Sequence[Topic], count: int, writer: Writer, *, turns: int, seed: int
) -> Scenario:
    decided = writer.decide(writer.random.sample(topics, min(len(topics), _fact_count(turns, count))))
    return writer.write(
        f"{name}-{turns}-{seed}",
        turns=turns,
        stated=_place_early(
            writer, [decision.state(writer.random, marked=True) for decision in decided], turns
        ),
        probes=[decision.probe(writer.random.choice(decision.topic.questions)) for decision in decided],
        noise=ASIDE,
        about=_undecided_topics(writer, decided),
    )


def decision_tracking(*, turns: int = 200, seed: int = 0, phrases: Phrases | None = None) -> Scenario:
    """Return five marked decisions and small talk."""
    writer = Writer.for_scenario("decision_tracking", turns, seed, phrases or _phrases())
    topics = [topic for topic in writer.phrases.topics if topic.fact_type == "decision"]
    return _write_original("decision_tracking", topics, 5, writer, turns=turns, seed=seed)


def constraint_awareness(*, turns: int = 200, seed: int = 0, phrases: Phrases | None = None) -> Scenario:
    """Return five marked constraints and small talk."""
    writer = Writer.for_scenario("constraint_awareness", turns, seed, phrases or _phrases())
    word_list = writer.phrases
    topics = [
        *word_list.constraints,
        *(topic for topic in word_list.topics if topic.fact_type == "constraint"),
    ]
    return _write_original("constraint_awareness", topics, 5, writer, turns=turns, seed=seed)


def failure_memory(*, turns: int = 200, seed: int = 0, phrases: Phrases | None = None) -> Scenario:
    """Return four things that failed and small talk."""
    writer = Writer.for_scenario("failure_memory", turns, seed, phrases or _phrases())
    return _write_original("failure_memory", writer.phrases.failures, 4, writer, turns=turns, seed=seed)


def goal_tracking(*, turns: int = 200, seed: int = 0, phrases: Phrases | None = None) -> Scenario:
    """Return four goals and small talk."""
    writer = Writer.for_scenario("goal_tracking", turns, seed, phrases or _phrases())
    return _write_original("goal_tracking", writer.phrases.goals, 4, writer, turns=turns, seed=seed)


def multi_fact_tracking(*, turns: int = 200, seed: int = 0, phrases: Phrases | None = None) -> Scenario:
    """Return ten facts of all kinds, half of them unmarked, asked about one by one and two at a time."""
    writer = Writer.for_scenario("multi_fact_tracking", turns, seed, phrases or _phrases())
    random, word_list = writer.random, writer.phrases
    chosen = random.sample(word_list.topics, 4)
    for topics in (word_list.constraints, word_list.failures, word_list.goals):
        chosen += random.sample(topics, 2)
    decided = writer.decide(random.sample(chosen, _fact_count(turns, len(chosen))))
    marks = [place % 2 == 0 for place in range(len(decided))]
    random.shuffle(marks)
    statements = [
        decision.state(random, marked=marked) for decision, marked in zip(decided, marks, strict=True)
    ]
    probes = [decision.probe(random.choice(decision.topic.questions)) for decision in decided]
    for decision, next_decision in zip(decided[0:-1:2], decided[1::2], strict=True):
        parts = [
            decision.probe(random.choice(decision.topic.questions)),
            next_decision.probe(random.choice(next_decision.topic.questions)),
        ]
        probes.append(
            Probe(
                question=random.choice(word_list.joins).format(one=parts[0].question, two=parts[1].question),
                expected=(*parts[0].expected, *parts[1].expected),
                after=0,
                topic=f"{decision.topic.name} + {next_decision.topic.name}",
            )
        )
    return writer.write(
        f"multi_fact_tracking-{turns}-{seed}",
        turns=turns,
        stated=_place_early(writer, statements, turns),
        probes=probes,
        noise=ASIDE,
        about=_undecided_topics(writer, decided),
    )


def semantic_distractors(*, turns: int = 200, seed: int = 0, phrases: Phrases | None = None) -> Scenario:
    """Return five marked decisions among remarks about just these topics, which name other values or none (E1.1)."""
    writer = Writer.for_scenario("semantic_distractors", turns, seed, phrases or _phrases())
    random = writer.random
    topics = [topic for topic in writer.phrases.topics if topic.fact_type == "decision" and topic.related]
    decided = writer.decide(random.sample(topics, min(len(topics), _fact_count(turns, 5))))
    return writer.write(
        f"semantic_distractors-{turns}-{seed}",
        turns=turns,
        stated=_place_early(writer, [decision.state(random, marked=True) for decision in decided], turns),
        probes=[decision.probe(random.choice(decision.topic.questions)) for decision in decided],
        noise=0.6,
        related=0.4,
        about=decided,
    )


def overlapping_facts(*, turns: int = 200, seed: int = 0, phrases: Phrases | None = None) -> Scenario:
    """Return two domains, in each several things decided apart, with values of one category (E1.2)."""
    writer = Writer.for_scenario("overlapping_facts", turns, seed, phrases or _phrases(), least=40)
    random = writer.random
    statements: list[Statement] = []
    probes: list[Probe] = []
    about: list[Decision] = []
    for domain in random.sample(writer.phrases.domains, 2):
        values = random.sample(domain.values, len(domain.values))
        for use, value in zip(domain.uses, values, strict=False):
            statements.append(_state_use(domain, use, value, random.choice(use.marked)))
            probes.append(
                Probe(question=random.choice(use.questions), expected=(value,), after=0, topic=use.name)
            )
        writer.reserve_words(values[: len(domain.uses)])
        about.append(_domain_as_topic(domain, tuple(values[len(domain.uses) :])))
    return writer.write(
        f"overlapping_facts-{turns}-{seed}",
        turns=turns,
        stated=_place_early(writer, statements, turns),
        probes=probes,
        noise=0.4,
        about=about,
    )


def _state_use(domain: Domain, use: Use, value: str, text: str) -> Statement:
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


def _domain_as_topic(domain: Domain, rivals: tuple[str, ...]) -> Decision:
    """Return a domain as a topic for remarks in passing."""
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
    return Decision(topic=topic, values=(), rivals=rivals)


def unmarked_facts(*, turns: int = 200, seed: int = 0, phrases: Phrases | None = None) -> Scenario:
    """Return eight facts in plain conversation, asked about in other words than they were said in (E1.4).

    With the word list of ACMS six of the questions share a word or two with the fact, and two share none.
    """
    writer = Writer.for_scenario("unmarked_facts", turns, seed, phrases or _phrases())
    random = writer.random
    topics = [topic for topic in writer.phrases.topics if topic.indirect]
    decided = writer.decide(random.sample(topics, min(len(topics), _fact_count(turns, 8))))
    return writer.write(
        f"unmarked_facts-{turns}-{seed}",
        turns=turns,
        stated=_place_early(writer, [decision.state(random, marked=False) for decision in decided], turns),
        probes=[
            decision.probe(decision.topic.indirect[place % len(decision.topic.indirect)])
            for place, decision in enumerate(decided)
        ],
        noise=0.3,
        about=_undecided_topics(writer, decided),
    )


def high_density(*, turns: int = 200, seed: int = 0, phrases: Phrases | None = None) -> Scenario:
    """Return twenty facts in the first twenty exchanges, half of them unmarked, each asked about (E1.5)."""
    writer = Writer.for_scenario("high_density", turns, seed, phrases or _phrases(), least=50)
    random = writer.random
    decided = writer.decide(random.sample(writer.phrases.topics, 20))
    statements = [decision.state(random, marked=place % 2 == 0) for place, decision in enumerate(decided)]
    return writer.write(
        f"high_density-{turns}-{seed}",
        turns=turns,
        stated=dict(enumerate(random.sample(statements, len(statements)))),
        probes=[decision.probe(random.choice(decision.topic.questions)) for decision in decided],
        noise=0.3,
        about=decided,
    )
