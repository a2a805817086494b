"""Conversations that are ours: an agent with tools, two people, a project that changes its mind.

Drawn from a seed by SHA-256, so that they are the same under every Python.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from acms import Media, Reasoning, Text

T = TypeVar("T")
Message = dict[str, Any]

_START = datetime(2025, 3, 3, 9, 0, tzinfo=UTC)
_FILES = (
    "billing/invoice.py billing/tax.py orders/cart.py orders/api.py search/index.py auth/session.py".split()
)
_TOOLS = "read_file run_tests search_code list_files query_database".split()
_ERRORS = (
    "TimeoutError: no answer from 10.4.2.17:5432 after 30 s",
    "AssertionError: expected 1204.50, got 1204.49",
    "KeyError: 'customer_id'",
    "ConnectionRefusedError: [Errno 111] connect to redis://cache-2:6379",
)
_PEOPLE = ("Mira", "Jonas")
_PLACES = "Lisbon Trondheim Kyoto Ghent Oaxaca Tallinn".split()
_HOBBIES = "pottery|night swimming|restoring old radios|bouldering|baking rye bread|birdwatching".split("|")
_SMALL = (
    "How was your week?",
    "It rained all day here, I barely left the house.",
    "Ha, that sounds exactly like you!",
    "I still have to call my sister back.",
    "Let's talk about it over dinner on Thursday.",
)


class Dice:
    """Numbers from a seed."""

    def __init__(self, seed: str) -> None:
        self._seed = seed
        self._drawn = 0

    def below(self, bound: int) -> int:
        """Return a number from 0 to one below the bound."""
        self._drawn += 1
        found = hashlib.sha256(f"{self._seed}/{self._drawn}".encode()).digest()
        return int.from_bytes(found[:8], "big") % bound

    def pick(self, choices: Sequence[T]) -> T:
        """Return one of some."""
        return choices[self.below(len(choices))]

    def bytes(self, length: int) -> bytes:
        """Return random bytes: what a store makes ids and salts of."""
        return bytes(self.below(256) for _ in range(length))


def agent(tasks: int = 16) -> list[Message]:
    """An agent works on tasks: it calls tools, alone and two at once, some fail, and it decides things."""
    dice, said, at = Dice("agent"), [], _START
    said.append(_message("system", "You maintain the shop's backend. Answer briefly, cite files.", at))
    for task in range(tasks):
        at += timedelta(minutes=dice.pick((5, 12, 50)))
        file = dice.pick(_FILES)
        said.append(
            _message("user", f"Task {task}: {file} fails for order {4000 + dice.below(900)}, look at it.", at)
        )
        for step in range(1 + dice.below(3)):
            at += timedelta(seconds=20)
            said += _loop(dice, task, step, file, at)
        at += timedelta(seconds=40)
        said.append(_message("assistant", _outcome(dice, task, file), at))
    return said


def _loop(dice: Dice, task: int, step: int, file: str, at: datetime) -> list[Message]:
    calls = [
        {
            "id": f"call_{task}_{step}_{n}",
            "name": dice.pick(_TOOLS),
            "arguments": json.dumps({"path": file, "n": n}),
        }
        for n in range(1 + dice.below(2))
    ]
    found = [_message("assistant", dice.pick(("", f"I look at {file}.")), at, tool_calls=calls)]
    for place, call in enumerate(calls):
        lines = [
            f"{file}:{10 * n + dice.below(9)}: value_{dice.below(99)} = {dice.below(9999)}"
            for n in range(3 + dice.below(9))
        ]
        output = dice.pick(_ERRORS) if dice.below(4) == 0 else "\n".join(lines)
        found.append(_message("tool", output, at + timedelta(seconds=place + 1), tool_call_id=call["id"]))
    return found


def _outcome(dice: Dice, task: int, file: str) -> str:
    limit = 30 + dice.below(200)
    return dice.pick(
        (
            f"Decision: {file} retries {2 + dice.below(5)} times with a timeout of {limit} s.",
            f"Failure: tried caching in {file}, but it failed because keys of task {task} collide.",
            f"Constraint: never call the tax service from {file} inside a transaction.",
            f"Goal: {file} answers in less than {limit} ms.",
            f"Fixed {file}: the rounding of task {task} was off by {dice.below(9)} cents.",
        )
    )


def people(days: int = 24) -> list[Message]:
    """Two people talk over weeks: where they were, what they like, and much that says little."""
    dice, said, at = Dice("people"), [], _START
    for day in range(days):
        at += timedelta(days=1 + dice.below(4), minutes=dice.below(300))
        for turn in range(4 + dice.below(4)):
            at += timedelta(minutes=1 + dice.below(6))
            who = _PEOPLE[(day + turn) % 2]
            text = dice.pick(_SMALL) if dice.below(3) else _about(dice, day)
            role = "user" if who == _PEOPLE[0] else "assistant"
            said.append(_message(role, text, at, actor_id=who, metadata={"day": day}))
    return said


def _about(dice: Dice, day: int) -> str:
    other = dice.pick(("Ana", "Piet", "my brother", "our neighbour"))
    return dice.pick(
        (
            f"Last weekend I went to {dice.pick(_PLACES)} with {other}, the train took {3 + dice.below(8)} hours.",
            f"I have taken up {dice.pick(_HOBBIES)}, {other} talked me into it.",
            f"My favourite dish is the {dice.pick(('saffron', 'barley', 'plum'))} soup from {dice.pick(_PLACES)}.",
            f"{other[0].upper()}{other[1:]} moved to {dice.pick(_PLACES)} in {dice.pick(('May', 'June', 'October'))}.",
            f"I'm allergic to {dice.pick(('walnuts', 'cats', 'penicillin'))}, did I tell you on day {day}?",
        )
    )


_SUBJECTS = (
    ("the cache", ("Redis", "Memcached", "Valkey")),
    ("the database", ("PostgreSQL 16", "CockroachDB", "SQLite")),
    ("the message queue", ("RabbitMQ", "NATS", "Kafka")),
    ("the deadline", ("May 5", "June 12", "July 1")),
    ("the token limit", ("32,000", "64,000", "128,000")),
    ("the deployment region", ("eu-west-1", "eu-north-1", "us-east-2")),
)


def project(rounds: int = 3) -> list[Message]:
    """A project: what is used is stated and then corrected; secrets, media, long texts and other scripts between."""
    dice, said, at = Dice("project"), [], _START
    for turn in range(rounds):
        for subject, values in _SUBJECTS:
            at += timedelta(minutes=7)
            value = values[turn % len(values)]
            said.append(_message("user", _stated(turn, subject, value), at))
            said.append(_message("assistant", f"Noted: {subject} is {value}.", at + timedelta(seconds=9)))
        at += timedelta(hours=2)
        said += _special(dice, turn, at)
    return said


def _stated(turn: int, subject: str, value: str) -> str:
    if subject == "the deadline":
        return f"The deadline is {value}." if turn == 0 else f"The deadline moved to {value}."
    return (
        f"We use {value} as {subject}."
        if turn == 0
        else f"Actually, {subject} is {value} now, not what I said before."
    )


def _special(dice: Dice, turn: int, at: datetime) -> list[Message]:
    key = f"sk-live-{dice.below(10**12):012d}abcdefghijkl"
    rows = " ".join(f"Row {n}: shard {dice.below(64)} took {dice.below(5000)} ms." for n in range(220))
    picture = Media("image/png", f"https://img.example.com/{turn}.png", tokens=85)
    return [
        _message("user", f"My mail is dev{turn}@example.com, the key is {key}.", at, privacy="redact"),
        _message("user", f"Only between us: the salary is {4000 + turn} euros.", at, privacy="block"),
        _message("user", f"Here is the log of night {turn}. {rows}", at),
        _message("user", "", at, parts=[Text(f"The chart of week {turn}."), picture]),
        _message(
            "assistant",
            "",
            at,
            parts=[Reasoning("They want the peak."), Text(f"The peak is {dice.below(90)}.")],
        ),
        _message(
            "user", f"我们在上海的会议改到{3 + turn}月{10 + turn}日。Größere Änderungen folgen später.", at
        ),
        _message("user", f"Remember checkpoint {turn}.", at, markers=["goal", "custom:checkpoint"]),
        _message(
            "user",
            f"Once said {turn}",
            at,
            idempotency_key=f"once-{turn}",
            metadata={"turn": turn, "tags": ["a"]},
        ),
        _message("assistant", "OK", at, origin="external"),
    ]


def _message(role: str, content: str, at: datetime, **more: Any) -> Message:
    return {"role": role, "content": content, "created_at": at, **more}


QUESTIONS = {
    "agent": (
        "Which timeout does billing/invoice.py have?",
        "What failed in orders/cart.py?",
        "Why must the tax service not be called inside a transaction?",
        "What did the tests of task 7 say?",
        "redis connection refused",
        "customer_id KeyError",
        "Which decisions were made about search/index.py?",
        "How many times are calls retried?",
        "What is the weather in Rome?",
        "auth/session.py",
    ),
    "people": (
        "Where did Mira go with Ana?",
        "What is Jonas allergic to?",
        "Who moved to Kyoto, and when?",
        "Which hobbies has Mira taken up?",
        "What is your favourite dish?",
        "What did they talk about in March 2025?",
        "When did Ana move?",
        "Does Jonas have a dog?",
        "night swimming",
        "How long did the train to Lisbon take?",
        "Where did Mira go last weekend?",
    ),
    "project": (
        "Which cache do we use?",
        "What is the deadline?",
        "What was the database before?",
        "What is the token limit now?",
        "Where is it deployed?",
        "What is the email address and the key?",
        "上海的会议是什么时候？",
        "Which shard was slow in row 17?",
        "What is the checkpoint?",
        "Who won the football match?",
    ),
}
"""What is asked of each of them.

A question with a time as it is seen from the newest entry, such as "last weekend", stands last: it is asked only where
all times are given, as an edit or a summary has that of the clock.
"""

LOGS = {"agent": agent, "people": people, "project": project}
