"""Logs of agents at work, made from a seed: tool calls with long answers, a user who comes back, details said once.

A *turn* is one call of the model: what came in since the last one, then its answer. Between the turns stand messages
as `ingest` takes them, so a log can be written to a file and imported.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any, NamedTuple

Message = dict[str, Any]

_NOUNS = (
    "cache queue worker schema index session request deploy branch cluster shard replica token backup report test "
    "module parser ticket invoice build image volume secret policy timeout batch stream window page table column"
).split()
_VERBS = (
    "check update restart inspect rename move compare retry measure document review split merge trace".split()
)
_ADJECTIVES = "slow old new broken flaky large small shared local remote empty stale green noisy".split()


class Probe(NamedTuple):
    """A question about something said once, and the answer that only this place holds."""

    question: str
    answer: str
    #: Turn in which it was said.
    turn: int


class Log(NamedTuple):
    """A conversation of an agent."""

    #: What comes in before each call of the model, and what it answers.
    turns: tuple[tuple[list[Message], Message], ...]
    probes: tuple[Probe, ...]


def _sentence(rng: random.Random) -> str:
    noun, verb, adjective = rng.choice(_NOUNS), rng.choice(_VERBS), rng.choice(_ADJECTIVES)
    other, also = rng.choice(_NOUNS), rng.choice(_VERBS)
    return rng.choice(
        (
            f"I will {verb} the {noun} and then {also} the {other}.",
            f"The {noun} looks {adjective}, so we should {verb} it before the {other}.",
            f"It is strange that the {noun} is {adjective} after the {other} is done.",
            f"The {noun} can wait until we {verb} the {other}, which took {rng.randint(2, 90)} s.",
            f"There are {rng.randint(2, 999)} rows in the {adjective} {noun}, as many as in the {other}.",
            f"We {verb} the {adjective} {noun} anyway and look at the {other} on day {rng.randint(2, 28)}.",
        )
    )


def _prose(rng: random.Random, tokens: int) -> str:
    return " ".join(_sentence(rng) for _ in range(max(1, tokens // 14)))


def _lines(rng: random.Random, tokens: int) -> str:
    found: list[str] = []
    for _ in range(max(1, tokens // 32)):
        noun = rng.choice(_NOUNS)
        found.append(
            rng.choice(
                (
                    f"2026-03-{rng.randint(1, 28):02}T{rng.randint(0, 23):02}:{rng.randint(0, 59):02}:00Z INFO {noun} "
                    f"id={rng.getrandbits(32):08x} took {rng.randint(2, 900)} ms",
                    f"  PASS tests/{noun}/test_{rng.choice(_VERBS)}.py ({rng.randint(1, 90)} tests in 0.{rng.randint(10, 99)} s)",
                    f'{{"id": "{rng.getrandbits(40):010x}", "name": "{noun}", "ms": {rng.randint(1, 5000)}}}',
                )
            )
        )
    return "\n".join(found)


def _word(rng: random.Random) -> str:
    return "".join(rng.choice("bdfgklmnprstvz") + rng.choice("aeiou") for _ in range(3))


def _plant(rng: random.Random) -> tuple[str, str, str]:
    """Return a sentence, a question about it, and the answer."""
    name, noun = _word(rng).title(), rng.choice(_NOUNS)
    path = f"/srv/{_word(rng)}/{_word(rng)}-{rng.randint(1, 99)}.conf"
    ticket = f"{_word(rng)[:3].upper()}-{rng.randint(1000, 99999)}"
    person = f"{_word(rng).title()} {_word(rng).title()}"
    figure = f"{rng.randint(11, 98)}.{rng.randint(1, 9)} GB"
    host = f"{_word(rng)}-{rng.randint(1, 9)}.internal:{rng.randint(1000, 9999)}"
    return rng.choice(
        (
            (f"The override file of the {name} {noun} is {path}.", f"Which override file has the {name} {noun}?", path),
            (f"Problems with the {name} {noun} are tracked as {ticket}.", f"Which ticket tracks problems with the {name} {noun}?", ticket),
            (f"{person} from legal has to approve the {name} {noun}.", f"Who has to approve the {name} {noun}?", person),
            (f"The {name} {noun} must never take more than {figure}.", f"How much may the {name} {noun} take at most?", figure),
            (f"The {name} {noun} answers at {host} only.", f"At which address does the {name} {noun} answer?", host),
        )
    )  # fmt: skip


class Style(NamedTuple):
    """What a kind of agent does in a turn."""

    #: Share of turns that a user begins; in the others a tool has answered.
    asked: float
    #: Tokens of what a user says, a tool answers, the model says: the middle one of a skewed draw.
    user: int
    tool: int
    reply: int
    #: Tool calls beside each other, at most.
    calls: int
    text: Callable[[random.Random, int], str] = _lines


STYLES = {
    "chat": Style(1.0, 40, 0, 110, 0),
    "support": Style(0.6, 60, 90, 70, 1, _prose),
    "ops": Style(0.3, 40, 160, 40, 2),
    "coding": Style(0.15, 60, 220, 60, 2),
    "research": Style(0.4, 120, 350, 160, 1, _prose),
}


def agent_log(style: str, seed: int, *, turns: int = 200, planted: int = 30) -> Log:
    """Return the log of one agent; the same for the same seed."""
    rng = random.Random(f"{style} {seed}")
    kind = STYLES[style]
    places = set(rng.sample(range(turns), planted))
    found: list[tuple[list[Message], Message]] = []
    probes: list[Probe] = []
    calls: list[Message] = []
    for turn in range(turns):
        said = ""
        if turn in places:
            said, question, answer = _plant(rng)
            probes.append(Probe(question, answer, turn))
        incoming: list[Message] = []
        for number, call in enumerate(calls):
            output = kind.text(rng, _size(rng, kind.tool // len(calls)))
            if said and number == 0:
                lines = output.split("\n")
                lines.insert(rng.randint(0, len(lines)), said)
                output = "\n".join(lines)
            incoming.append({"role": "tool", "tool_call_id": call["id"], "content": output})
        if not calls:
            text = _prose(rng, _size(rng, kind.user))
            incoming.append({"role": "user", "content": f"{said} {text}".strip()})
        reply: Message = {"role": "assistant", "content": _prose(rng, _size(rng, kind.reply))}
        calls = []
        if rng.random() >= kind.asked:
            calls = [
                {
                    "id": f"call_{turn}_{number}",
                    "name": f"{rng.choice(_VERBS)}_{rng.choice(_NOUNS)}",
                    "arguments": json.dumps({"target": rng.choice(_NOUNS), "limit": rng.randint(1, 50)}),
                }
                for number in range(rng.randint(1, kind.calls))
            ]
            reply["tool_calls"] = calls
        found.append((incoming, reply))
    return Log(tuple(found), tuple(probes))


def _size(rng: random.Random, middle: int) -> int:
    """Draw a size: half of them between a half and twice the middle, one in twenty above four times."""
    return int(middle * min(6.0, rng.lognormvariate(0, 0.85)))
