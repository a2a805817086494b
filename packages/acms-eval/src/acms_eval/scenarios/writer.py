"""The writer of all scenarios: it puts exchanges in order, and lets no remark give an answer away."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Literal

from acms.errors import ValidationError
from acms.knowledge import Proposal
from acms_eval.metrics import carries
from acms_eval.nouns import Probe, Said, Scenario
from acms_eval.topics import Phrases, Topic

__all__ = [
    "Decision",
    "Part",
    "Statement",
    "Writer",
    "answer_keywords",
    "build_proposal",
    "spread",
    "without_currency",
]

START = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
CURRENCIES = "$€£"
TRIES = 12
"""Draws of a remark before small talk takes its place."""

Part = Literal["fact", "correction"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """A message of the user that states or corrects a decision, before it is written."""

    topic: str
    text: str
    value: str
    part: Part
    proposal: Proposal


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A topic with the values of this conversation."""

    topic: Topic
    #: First to last; the last one holds in the end.
    values: tuple[str, ...]
    #: Values that noise names; never one that was decided.
    rivals: tuple[str, ...]

    def state(self, random: Random, *, marked: bool) -> Statement:
        """Return the statement that decides the first value."""
        text = random.choice(self.topic.marked if marked else self.topic.plain)
        return Statement(
            topic=self.topic.name,
            text=text.format(v=self.values[0]),
            value=self.values[0],
            part="fact",
            proposal=build_proposal(self.topic, self.values[0], "fact"),
        )

    def change(self, text: str, to: int) -> Statement:
        """Return the correction that replaces value number `to - 1` by value number `to`."""
        value, old_value = self.values[to], self.values[to - 1]
        return Statement(
            topic=self.topic.name,
            text=text.format(v=value, old=old_value, what=self.topic.attribute),
            value=value,
            part="correction",
            proposal=build_proposal(self.topic, value, "correction"),
        )

    def probe(self, question: str, *, after: int = 0) -> Probe:
        """Return a question about the value that holds in the end."""
        return Probe(
            question=question,
            expected=answer_keywords(self.topic, self.values[-1]),
            forbidden=tuple(without_currency(value) for value in self.values[:-1]),
            after=after,
            topic=self.topic.name,
        )


def without_currency(value: str) -> str:
    """Return a value without its currency sign."""
    return value.lstrip(CURRENCIES)


def answer_keywords(topic: Topic, value: str) -> tuple[str, ...]:
    """Return the expected words of an answer: the whole value without its currency sign, or each of its words."""
    return (without_currency(value),) if topic.whole else tuple(value.split())


def build_proposal(topic: Topic, value: str, part: str) -> Proposal:
    """Return the proposal that a perfect reflector makes of a statement."""
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


@dataclass(slots=True)
class Writer:
    """Writes a conversation, exchange after exchange; the same `random` gives the same conversation."""

    random: Random
    phrases: Phrases
    said: list[Said] = field(default_factory=list[Said])
    proposals: list[tuple[int, Proposal]] = field(default_factory=list[tuple[int, Proposal]])
    #: Words that no remark in passing may name.
    reserved_words: tuple[str, ...] = ()
    #: Remarks that name the value of a topic without deciding it, by the topic.
    echoes: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    now: datetime = START

    @staticmethod
    def for_scenario(name: str, turns: int, seed: int, phrases: Phrases, *, least: int = 10) -> Writer:
        """Return the writer of a scenario; raise `ValidationError` for fewer than `least` turns."""
        if turns < least:
            raise ValidationError(f"must be at least {least}, was {turns}", field="turns")
        return Writer(Random(f"{name}/{turns}/{seed}"), phrases)

    # ── choosing ────────────────────────────────────────────────────────────────────────────────────────────────────

    def decide(self, topics: Sequence[Topic], changes: Mapping[str, int] | None = None) -> list[Decision]:
        """Choose the values of topics: one each, and one more for each change. No remark may name them."""
        decided: list[Decision] = []
        for topic in topics:
            chosen = self.random.sample(topic.values, len(topic.values))
            count = 1 + (changes or {}).get(topic.name, 0)
            decided.append(Decision(topic=topic, values=tuple(chosen[:count]), rivals=tuple(chosen[count:])))
        self.reserve_words(
            word
            for decision in decided
            for value in decision.values
            for word in (*answer_keywords(decision.topic, value), without_currency(value))
        )
        return decided

    def reserve_words(self, words: Iterable[str]) -> None:
        """Let no remark in passing name these words."""
        self.reserved_words = tuple(dict.fromkeys((*self.reserved_words, *words)))

    def gives_away(self, text: str, *, but: str = "") -> bool:
        """Return whether a text names a reserved word that the text `but` does not name."""
        return any(carries(text, word) and not (but and carries(but, word)) for word in self.reserved_words)

    def draw_places(self, count: int, first: int, last: int) -> list[int]:
        """Return different places of exchanges in [first, last), in order."""
        return sorted(self.random.sample(range(first, max(last, first + count)), count))

    # ── saying ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def add_message(self, role: str, text: str, topic: str = "", part: str = "filler") -> None:
        """Add a message, seconds after the previous one; 1 in 40 user messages starts on another day."""
        self.now += timedelta(seconds=self.random.randint(15, 90))
        if role == "user" and self.random.random() < 1 / 40:
            self.now += timedelta(hours=self.random.randint(12, 40))
        self.said.append(Said(role=role, text=text, created_at=self.now, topic=topic, part=part))

    def add_statement(self, statement: Statement) -> None:
        """Say a fact or its correction, and acknowledge it."""
        self.proposals.append((len(self.said), statement.proposal))
        self.add_message("user", statement.text, statement.topic, statement.part)
        reply = self.random.choice(self.phrases.acknowledged).format(v=statement.value)
        self.add_message("assistant", reply, statement.topic, "reply")

    def add_small_talk(self) -> None:
        """Add an exchange of small talk."""
        self.add_message("user", self._choose_harmless(self.phrases.bland))
        self.add_message("assistant", self._choose_harmless(self.phrases.nods))

    def add_remark(
        self, texts: Sequence[str], rivals: Sequence[str], topic: str = "", *, echo: str = ""
    ) -> None:
        """Add a remark in passing that names rivals, and no answer except `echo`; small talk if none can be found."""
        for _ in range(TRIES):
            first_rival, second_rival = self.random.sample(rivals, 2)
            text = self.random.choice(texts).format(a=first_rival, b=second_rival, v=echo)
            opener = self.random.choice(self.phrases.openers)
            if (
                opener
                and not text.startswith((first_rival, "I ", "I'"))
                and not (echo and text.startswith(echo))
            ):
                text = text[0].lower() + text[1:]
            if not self.gives_away(opener + text, but=echo):
                break
        else:
            self.add_small_talk()
            return
        if echo:
            self.echoes.setdefault(topic, []).append(opener + text)
        self.add_message("user", opener + text, topic, "echo" if echo else "noise")
        # A reply such as "{a} comes up a lot" is said of a name that the remark holds, never of a number.
        has_capitals = first_rival.casefold() != first_rival
        has_currency = first_rival != without_currency(first_rival)
        is_name = has_capitals and not has_currency and first_rival in text
        replies = [
            reply.format(a=first_rival) for reply in self.phrases.replies if is_name or "{a}" not in reply
        ]
        self.add_message("assistant", self._choose_harmless(replies), topic, "noise")

    def _choose_harmless(self, texts: Sequence[str]) -> str:
        """Return one of the texts that name no answer, drawn by chance."""
        for _ in range(TRIES):
            text = self.random.choice(texts)
            if not self.gives_away(text):
                return text
        harmless = [text for text in texts if not self.gives_away(text)]
        if not harmless:
            raise ValidationError("every text of small talk names a value that was decided", field="bland")
        return self.random.choice(harmless)

    def _draw_kinds(self, places: Sequence[int], shares: Mapping[str, float]) -> dict[int, str]:
        """Return the kind of remark at every place, shuffled; an empty kind is small talk."""
        kinds = [kind for kind, share in shares.items() for _ in range(round(share * len(places)))]
        kinds += [""] * (len(places) - len(kinds))
        self.random.shuffle(kinds)
        return dict(zip(places, kinds, strict=True))

    # ── the whole ───────────────────────────────────────────────────────────────────────────────────────────────────

    def write(
        self,
        name: str,
        *,
        turns: int,
        stated: Mapping[int, Statement],
        probes: Sequence[Probe],
        noise: float = 0.0,
        about: Sequence[Decision] = (),
        related: float = 0.0,
        echoed: float = 0.0,
        budget: int = 1000,
    ) -> Scenario:
        """Return the scenario: statements at their exchanges, and between them remarks and small talk.

        `noise`, `related` and `echoed` are the shares of the other exchanges that name rivals of the decisions
        `about`, that name no value, and that repeat the decided value. Probes whose `after` is 0 are asked at the
        end, shuffled.
        """
        free = [place for place in range(turns // 2) if place not in stated]
        kinds = self._draw_kinds(free, {"noise": noise, "related": related, "echo": echoed})
        decisions_to_come: dict[str, list[Decision]] = {}
        decided: dict[str, str] = {}
        for place in range(turns // 2):
            if place in stated:
                self.add_statement(stated[place])
                decided[stated[place].topic] = stated[place].value
                continue
            kind = kinds[place]
            fitting = [decision for decision in about if _texts_of_kind(decision.topic, kind)] if kind else []
            if not fitting:
                self.add_small_talk()
                continue
            if not decisions_to_come.get(kind):
                decisions_to_come[kind] = self.random.sample(fitting, len(fitting))
            decision = decisions_to_come[kind].pop()
            # An echo before the decision would be the first message to state it.
            value = decided.get(decision.topic.name, "")
            if kind == "echo" and not value:
                kind = "noise"
            self.add_remark(
                _texts_of_kind(decision.topic, kind),
                decision.rivals,
                decision.topic.name,
                echo=value if kind == "echo" else "",
            )
        if turns % 2:
            self.add_message("user", self._choose_harmless(self.phrases.bland))
        probes_in_order = [replace(probe, after=probe.after or turns) for probe in probes]
        self.random.shuffle(probes_in_order)
        probes_in_order.sort(key=lambda probe: probe.after)
        return Scenario(
            name=name,
            said=tuple(self.said),
            probes=tuple(
                replace(probe, decoys=tuple(self.echoes.get(probe.topic, ()))) for probe in probes_in_order
            ),
            proposals=tuple(self.proposals),
            budget=budget,
            words=self.phrases.name,
        )


def _texts_of_kind(topic: Topic, kind: str) -> tuple[str, ...]:
    return {"noise": topic.noise, "related": topic.related, "echo": topic.echoes}[kind]


def spread(scenario: Scenario) -> Scenario:
    """Return a scenario with its probes asked one by one, evenly from its last fact or correction to its end."""
    stating = (index for index, message in enumerate(scenario.said) if message.part in ("fact", "correction"))
    settled = max(stating) + 2  # the statement itself and its acknowledgement
    messages_left = len(scenario.said) - settled
    count = len(scenario.probes)
    return replace(
        scenario,
        probes=tuple(
            replace(probe, after=settled + round(messages_left * place / count))
            for place, probe in enumerate(scenario.probes, 1)
        ),
    )
