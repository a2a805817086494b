"""Scenarios: conversations that are written by rule from a seed, so that every run of an evaluation sees the same."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random

from acms.errors import ValidationError
from acms.evaluation.nouns import Probe, Said, Scenario
from acms.evaluation.topics import Topic, phrases
from acms.knowledge import Proposal

__all__ = ["corrections"]

START = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
LEAST = 100
"""Messages that hold all facts, their corrections and some noise between."""
EARLY = 40
"""Exchanges within which all facts are said."""
CORRECTIONS = 3


def corrections(*, turns: int = 200, seed: int = 0, marked: bool = True, spread: bool = False) -> Scenario:
    """Return a conversation of twenty early facts, three of them corrected later, with noise and twenty probes.

    Half of what is said otherwise is noise: other people's products named beside the words of a topic, before and
    after its correction; the rest is small talk. Facts are said by the user, `marked` with the markers of seed 004 or
    in plain conversation; the assistant acknowledges each, with or without its value. Every topic is asked about once,
    at the end, or with `spread` evenly from the last correction on. `turns` counts the messages, at least 100.
    """
    if turns < LEAST:
        raise ValidationError(f"must be at least {LEAST}, was {turns}", field="turns")
    topics = phrases().topics
    writer = _Writer(Random(f"corrections/{turns}/{seed}/{marked}"), marked)
    plan = writer.plan(turns // 2)
    for exchange in plan:
        writer.write(exchange)
    if turns % 2:
        writer.say("user", writer.random.choice(phrases().bland))
    since = writer.settled if spread else turns
    asked = list(topics)
    writer.random.shuffle(asked)
    probes = [
        Probe(
            question=writer.random.choice(topic.questions),
            expected=_keywords(topic, writer.values[topic.name][-1]),
            forbidden=tuple(value.lstrip("$") for value in writer.values[topic.name][:-1]),
            after=since + round((turns - since) * place / len(asked)),
            topic=topic.name,
        )
        for place, topic in enumerate(asked, 1)
    ]
    return Scenario(
        name=f"corrections-{turns}-{'marked' if marked else 'plain'}-{seed}",
        said=tuple(writer.said),
        probes=tuple(probes),
        proposals=tuple(writer.proposals),
    )


def _keywords(topic: Topic, value: str) -> tuple[str, ...]:
    """Return the words of a value: those of a person's name one by one, for half a name is no answer."""
    return tuple(value.split()) if topic.name == "user name" else (value.lstrip("$"),)


@dataclass(frozen=True, slots=True)
class _Exchange:
    """One remark of the user and the assistant's answer, still to be worded."""

    part: str
    topic: Topic | None = None


class _Writer:
    """Words a scenario, exchange after exchange."""

    def __init__(self, random: Random, marked: bool) -> None:
        self.random = random
        self.marked = marked
        self.phrases = phrases()
        self.said: list[Said] = []
        self.proposals: list[tuple[int, Proposal]] = []
        #: Of each topic: what was decided, first to last.
        self.values: dict[str, list[str]] = {}
        #: Of each topic: what is named by noise; never a value that was decided.
        self.rivals: dict[str, list[str]] = {}
        #: Messages up to the last fact or correction.
        self.settled = 0
        self._now = START
        self._next: dict[str, str] = {}

    # ── what comes when ─────────────────────────────────────────────────────────────────────────────────────────────

    def plan(self, exchanges: int) -> list[_Exchange]:
        """Return what the exchanges are about."""
        random = self.random
        for topic in self.phrases.topics:
            chosen = random.sample(topic.values, len(topic.values))
            self.values[topic.name] = chosen[:1]
            self.rivals[topic.name] = chosen[2:]
        changing = random.sample([topic for topic in self.phrases.topics if topic.corrected], CORRECTIONS)
        self._next = {
            topic.name: next(
                value
                for value in topic.values
                if value not in self.rivals[topic.name] and value not in self.values[topic.name]
            )
            for topic in changing
        }
        plan: list[_Exchange | None] = [None] * exchanges
        early = min(EARLY, exchanges * 3 // 5)
        for place, topic in zip(
            sorted(random.sample(range(early), len(self.phrases.topics))),
            random.sample(self.phrases.topics, len(self.phrases.topics)),
            strict=True,
        ):
            plan[place] = _Exchange("fact", topic)
        first = max(early, exchanges * 45 // 100) + CORRECTIONS
        last = exchanges * 7 // 10 + CORRECTIONS
        places = sorted(random.sample(range(first, last), CORRECTIONS))
        for place, topic in zip(places, changing, strict=True):
            plan[place] = _Exchange("correction", topic)
        free = [place for place, found in enumerate(plan) if found is None]
        before = random.sample([place for place in free if place < places[0]], CORRECTIONS)
        after = random.sample([place for place in free if place > places[-1]], CORRECTIONS)
        for place, topic in zip(before + after, changing + changing, strict=True):
            plan[place] = _Exchange("noise", topic)
        free = [place for place in free if plan[place] is None]
        noisy = sorted(random.sample(free, len(free) // 2))
        rounds: list[Topic] = []
        for place in noisy:
            if not rounds:
                rounds = random.sample(self.phrases.topics, len(self.phrases.topics))
            plan[place] = _Exchange("noise", rounds.pop())
        return [found or _Exchange("filler") for found in plan]

    # ── how it is said ──────────────────────────────────────────────────────────────────────────────────────────────

    def write(self, exchange: _Exchange) -> None:
        """Say both sides of an exchange."""
        topic = exchange.topic
        if topic is None:
            self.say("user", self.random.choice(self.phrases.bland))
            self.say("assistant", self.random.choice(self.phrases.nods))
        elif exchange.part == "noise":
            self._noise(topic)
        else:
            self._state(topic, exchange.part)

    def say(self, role: str, text: str, topic: Topic | None = None, part: str = "filler") -> None:
        """Add a message, a little after the one before, and now and then on another day."""
        self._now += timedelta(seconds=self.random.randint(15, 90))
        if role == "user" and self.random.random() < 1 / 40:
            self._now += timedelta(hours=self.random.randint(12, 40))
        self.said.append(
            Said(
                role=role,
                text=text,
                created_at=self._now,
                topic="" if topic is None else topic.name,
                part=part,
            )
        )

    def _state(self, topic: Topic, part: str) -> None:
        values = self.values[topic.name]
        if part == "correction":
            values.append(self._next[topic.name])
            phrasings = topic.corrected if self.marked else topic.corrected_plain
        else:
            phrasings = topic.marked if self.marked else topic.plain
        value = values[-1]
        text = self.random.choice(phrasings).format(v=value, old=values[0])
        self.proposals.append((len(self.said), _proposal(topic, value, part)))
        self.say("user", text, topic, part)
        self.say("assistant", self.random.choice(self.phrases.acknowledged).format(v=value), topic, "reply")
        self.settled = len(self.said)

    def _noise(self, topic: Topic) -> None:
        a, b = self.random.sample(self.rivals[topic.name], 2)
        text = self.random.choice(topic.noise).format(a=a, b=b)
        opener = self.random.choice(self.phrases.openers)
        if opener and not text.startswith((a, "I ", "I'")):
            text = text[0].lower() + text[1:]
        self.say("user", opener + text, topic, "noise")
        named = a.casefold() != a and not a.startswith("$")  # nobody says that a number comes up a lot
        replies = [one for one in self.phrases.replies if named or "{a}" not in one]
        reply = self.random.choice(replies).format(a=a)
        self.say("assistant", reply, topic, "noise")


def _proposal(topic: Topic, value: str, part: str) -> Proposal:
    return Proposal(
        action="add" if part == "fact" else "update",
        content=topic.content.format(v=value),
        subject=topic.subject,
        attribute=topic.attribute,
        value=value,
        cardinality=topic.cardinality,
        fact_type=topic.fact_type,
        confidence=1.0,
        reason=part,
    )
