"""Twenty facts, three corrections, and noise beside the words of every topic: the scenario of `benchmarks/facts.py`."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from acms.errors import ValidationError
from acms_eval.nouns import Probe, Scenario
from acms_eval.scenarios.writer import (
    Part,
    Statement,
    Writer,
    answer_keywords,
    build_proposal,
    without_currency,
)
from acms_eval.topics import Phrases, Topic
from acms_eval.topics import phrases as _phrases

__all__ = ["corrections"]

LEAST = 100
"""Messages that hold all facts, their corrections and some noise between."""
EARLY = 40
"""Exchanges within which all facts are said."""
CORRECTIONS = 3
FACTS = 20


def corrections(
    *,
    turns: int = 200,
    seed: int = 0,
    phrases: Phrases | None = None,
    marked: bool = True,
    spread: bool = False,
) -> Scenario:
    """Return a conversation of twenty early facts, three of them corrected later, with noise and twenty probes.

    Half of what is said otherwise is noise: other people's products named beside the words of a topic, before and
    after its correction; the rest is small talk. Facts are said by the user, `marked` with the built-in markers or
    in plain conversation; the assistant acknowledges each, with or without its value. Every topic is asked about once,
    at the end, or with `spread` evenly from the last correction on. `turns` counts the messages, at least 100.
    """
    if turns < LEAST:
        raise ValidationError(f"must be at least {LEAST}, was {turns}", field="turns")
    writer = Writer(Random(f"corrections/{turns}/{seed}/{marked}"), phrases or _phrases())
    plan = _Plan(writer, marked)
    for exchange in plan.exchanges(turns // 2):
        plan.write(exchange)
    if turns % 2:
        writer.add_message("user", writer.random.choice(writer.phrases.bland))
    first_asked = plan.settled if spread else turns
    asked_topics = list(plan.topics)
    writer.random.shuffle(asked_topics)
    probes = [
        Probe(
            question=writer.random.choice(topic.questions),
            expected=answer_keywords(topic, plan.values[topic.name][-1]),
            forbidden=tuple(without_currency(value) for value in plan.values[topic.name][:-1]),
            after=first_asked + round((turns - first_asked) * place / len(asked_topics)),
            topic=topic.name,
        )
        for place, topic in enumerate(asked_topics, 1)
    ]
    return Scenario(
        name=f"corrections-{turns}-{'marked' if marked else 'plain'}-{seed}",
        said=tuple(writer.said),
        probes=tuple(probes),
        proposals=tuple(writer.proposals),
        words=writer.phrases.name,
    )


@dataclass(frozen=True, slots=True)
class _Exchange:
    """One remark of the user and the assistant's answer, still to be worded."""

    part: Part | None = None
    topic: Topic | None = None


@dataclass(slots=True)
class _Plan:
    """The order of the exchanges, and their wording."""

    writer: Writer
    marked: bool
    topics: tuple[Topic, ...] = ()
    #: The decided values of each topic, first to last.
    values: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    #: The values of each topic that noise names; never one that was decided.
    rivals: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    #: Messages up to the last fact or correction.
    settled: int = 0
    _next_values: dict[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        self.topics = self.writer.phrases.topics[:FACTS]

    def exchanges(self, count: int) -> list[_Exchange]:
        """Return the exchanges in order: early facts, their corrections, noise on both sides of these, small talk."""
        random = self.writer.random
        for topic in self.topics:
            chosen = random.sample(topic.values, len(topic.values))
            self.values[topic.name] = chosen[:1]
            self.rivals[topic.name] = chosen[2:]
        changing = random.sample([topic for topic in self.topics if topic.corrected], CORRECTIONS)
        self._next_values = {
            topic.name: next(
                value
                for value in topic.values
                if value not in self.rivals[topic.name] and value not in self.values[topic.name]
            )
            for topic in changing
        }
        for topic in self.topics:
            for value in (*self.values[topic.name], self._next_values.get(topic.name, "")):
                self.writer.reserve_words(
                    [word for word in (*answer_keywords(topic, value), without_currency(value)) if word]
                )
        plan: list[_Exchange | None] = [None] * count
        early_end = min(EARLY, count * 3 // 5)
        for place, topic in zip(
            sorted(random.sample(range(early_end), len(self.topics))),
            random.sample(self.topics, len(self.topics)),
            strict=True,
        ):
            plan[place] = _Exchange("fact", topic)
        first_place = max(early_end, count * 45 // 100) + CORRECTIONS
        last_place = count * 7 // 10 + CORRECTIONS
        places = sorted(random.sample(range(first_place, last_place), CORRECTIONS))
        for place, topic in zip(places, changing, strict=True):
            plan[place] = _Exchange("correction", topic)
        free = [place for place, exchange in enumerate(plan) if exchange is None]
        places_before = random.sample([place for place in free if place < places[0]], CORRECTIONS)
        places_after = random.sample([place for place in free if place > places[-1]], CORRECTIONS)
        for place, topic in zip(places_before + places_after, changing + changing, strict=True):
            plan[place] = _Exchange(None, topic)
        free = [place for place in free if plan[place] is None]
        noise_places = sorted(random.sample(free, len(free) // 2))
        topics_to_come: list[Topic] = []
        for place in noise_places:
            if not topics_to_come:
                topics_to_come = random.sample(self.topics, len(self.topics))
            plan[place] = _Exchange(None, topics_to_come.pop())
        return [exchange or _Exchange() for exchange in plan]

    def write(self, exchange: _Exchange) -> None:
        """Say both sides of an exchange."""
        topic, part = exchange.topic, exchange.part
        if topic is None:
            self.writer.add_small_talk()
        elif part is None:
            self.writer.add_remark(topic.noise, self.rivals[topic.name], topic.name)
        else:
            values = self.values[topic.name]
            if part == "correction":
                values.append(self._next_values[topic.name])
                phrasings = topic.corrected if self.marked else topic.corrected_plain
            else:
                phrasings = topic.marked if self.marked else topic.plain
            self.writer.add_statement(
                Statement(
                    topic=topic.name,
                    text=self.writer.random.choice(phrasings).format(v=values[-1], old=values[0]),
                    value=values[-1],
                    part=part,
                    proposal=build_proposal(topic, values[-1], part),
                )
            )
            self.settled = len(self.writer.said)
