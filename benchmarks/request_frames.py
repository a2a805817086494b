"""What is replayed to compare requests: chats with questions along the way, the same with tools, and a support log.

A *turn* is what was said before it, a question whose evidence was said earlier, and what comes after each call of the
model: its tool calls with their answers, and in the end its own answer.

- "chat": after every fourth message of the last three quarters of a conversation one question whose evidence was said
  at least 40 messages before; no question is asked twice. One call a turn.
- "loop": the same with three calls a turn; each of the first two asks a tool, which answers in a few words.
- "support": an agent with tickets, made from a seed. Three calls a turn; tools answer with 200 to 1,500 tokens of JSON,
  log or table. What is asked for is one line of such an answer, or of a message, that is at least seven turns old; some
  of the messages are corrected by a later one.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, TypeAlias

from acms_eval import Conversation, Question

Message: TypeAlias = dict[str, Any]
"""Arguments of `ingest`."""

EVERY = 4
APART = 40
"""Messages between evidence and a question, at least."""
TURNS_APART = 7
"""The same in turns of the support log."""
SUPPORT_TURNS = 100


class Evidence(NamedTuple):
    """A text that answers a question."""

    text: str
    #: A newer one of the same question says otherwise.
    outdated: bool = False


class Turn(NamedTuple):
    """What is said up to a question, and what follows it."""

    before: tuple[Message, ...]
    question: Message
    evidence: tuple[Evidence, ...]
    #: What is appended after each call of the model; there are as many calls.
    steps: tuple[tuple[Message, ...], ...]


class Script(NamedTuple):
    """A conversation to replay."""

    dataset: str
    name: str
    frame: str
    turns: tuple[Turn, ...]

    @property
    def calls(self) -> int:
        """Number of requests."""
        return sum(len(turn.steps) for turn in self.turns)


# ── conversations ───────────────────────────────────────────────────────────────────────────────────────────────────


def chat(conversation: Conversation, most: int | None = None, *, seed: int = 7, loop: bool = False) -> Script:
    """Return a conversation with its questions along the way, at most so many."""
    rng = random.Random(seed)
    said = conversation.said
    open_questions = [one for one in conversation.questions if one.gold and one.answerable]
    turns: list[Turn] = []
    before: list[Message] = []
    for place, one in enumerate(said):
        speaker = {} if one.speaker is None else {"actor_id": one.speaker}
        before.append({"role": one.role, "content": one.text, "created_at": one.created_at, **speaker})
        if len(turns) == most:
            break
        if place < len(said) // 4 or place % EVERY:
            continue
        ready = [asked for asked in open_questions if max(asked.gold) < place - APART]
        if not ready:
            continue
        asked = rng.choice(ready)
        open_questions.remove(asked)
        turns.append(
            Turn(
                tuple(before),
                _at(one.created_at, 1, role="user", content=asked.text),
                _evidence(conversation, asked),
                _steps(rng, len(turns), one.created_at, loop=loop),
            )
        )
        before = []
    return Script(conversation.dataset, conversation.name, "loop" if loop else "chat", tuple(turns))


def _evidence(conversation: Conversation, asked: Question) -> tuple[Evidence, ...]:
    return tuple(
        Evidence(conversation.said[place].text.strip(), place in asked.outdated)
        for place in sorted(asked.gold)
    )


def _at(start: datetime, seconds: int, **message: Any) -> Message:
    return {**message, "created_at": start + timedelta(seconds=seconds)}


def _steps(rng: random.Random, turn: int, now: datetime, *, loop: bool) -> tuple[tuple[Message, ...], ...]:
    """Return what follows a question: in a loop two tools answer in a few words before the model does."""
    steps: list[tuple[Message, ...]] = []
    for number in range(2 if loop else 0):
        found = {"page": number + 1, "hits": rng.randint(0, 9), "took_ms": rng.randint(3, 900), "more": False}
        arguments = {"page": number + 1, "limit": rng.choice((5, 10, 20))}
        called = _called(f"call_{turn}_{number}", "search_notes", arguments, json.dumps(found))
        steps.append(tuple(_at(now, 2 + number, **one) for one in called))
    return (*steps, (_at(now, 5, role="assistant", content=_answer(rng)),))


def _called(id: str, name: str, arguments: dict[str, Any], output: str) -> tuple[Message, Message]:
    call = {"id": id, "name": name, "arguments": json.dumps(arguments)}
    return (
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": id, "content": output},
    )


_OPENINGS = (
    "Thanks for asking.",
    "Good question.",
    "Let me see.",
    "I looked at that again.",
    "One moment, I have it.",
)
_BODIES = (
    "As far as I can tell it is just as we had it before, and nothing speaks against it",
    "It seems clear enough to me, though I may have missed a detail or two on the way",
    "I would leave it like that for now, since nobody has said anything else about it",
)
_ENDINGS = ("so let us go on.", "but tell me if it looks wrong.", "and we can come back to it later.")


def _answer(rng: random.Random) -> str:
    """Return an answer of about 30 tokens that gives nothing away."""
    return f"{rng.choice(_OPENINGS)} {rng.choice(_BODIES)}, {rng.choice(_ENDINGS)}"


# ── support ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Planted(NamedTuple):
    """A question that can be asked some turns after its evidence was said."""

    turn: int
    question: str
    evidence: tuple[Evidence, ...]


class _Line(NamedTuple):
    """A line of what a tool answers, and what one may ask about it."""

    text: str
    question: str = ""


class _Tool(NamedTuple):
    name: str
    line: Callable[[random.Random], _Line]
    around: tuple[str, str] = ("", "")
    between: str = "\n"


def _word(rng: random.Random, syllables: int = 3) -> str:
    return "".join(rng.choice("bdfgklmnprstvz") + rng.choice("aeiou") for _ in range(syllables))


def _name(rng: random.Random) -> str:
    return (
        f"{_word(rng).title()} {rng.choice(('Foods', 'Logistics', 'Media', 'Clinics', 'Systems', 'Motors'))}"
    )


def _day(rng: random.Random) -> str:
    return f"2026-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"


def _account(rng: random.Random) -> _Line:
    name = _name(rng)
    row = {
        "account": name,
        "plan": rng.choice(("free", "team", "business", "enterprise")),
        "seats": rng.randint(2, 900),
        "owner": f"{_word(rng, 2).title()} {_word(rng).title()}",
        "renews": _day(rng),
    }
    asked = (f"Who is the owner of the account {name}?", f"When does the contract of {name} renew?")
    return _Line(json.dumps(row), rng.choice((*asked, f"How many seats does {name} pay for?")))


def _logged(rng: random.Random) -> _Line:
    at = f"{_day(rng)}T{rng.randint(0, 23):02}:{rng.randint(0, 59):02}:{rng.randint(0, 59):02}Z"
    service, job = (
        rng.choice(("billing", "import", "mailer", "search", "webhooks")),
        f"{_word(rng, 2)}-{rng.randint(1000, 99999)}",
    )
    if rng.random() < 0.8:
        return _Line(
            f"{at} INFO {service} job {job} done in {rng.randint(5, 9000)} ms, {rng.randint(0, 500)} rows"
        )
    why = rng.choice(
        (
            f"card declined by {_word(rng).title()} Bank after {rng.randint(2, 6)} tries",
            f"certificate of {_word(rng)}.example.com expired on {_day(rng)}",
            f"column {_word(rng, 2)}_id missing in row {rng.randint(10, 9999)}",
            f"quota of {rng.randint(2, 90)} GB used up by tenant {_word(rng)}",
        )
    )
    return _Line(f"{at} ERROR {service} job {job} failed: {why}", f"Why did the job {job} fail?")


def _host(rng: random.Random) -> _Line:
    host = f"{rng.choice(('db', 'web', 'queue', 'cache'))}-{_word(rng)}-{rng.randint(1, 9)}"
    version, zone = f"{rng.randint(9, 18)}.{rng.randint(0, 12)}", f"{_word(rng, 2)}-{rng.randint(1, 3)}"
    asked = (
        f"How full was the disk of {host}?",
        f"Which version runs on {host}?",
        f"In which zone is {host}?",
    )
    return _Line(f"| {host} | {version} | {rng.randint(5, 99)} % | {zone} |", rng.choice(asked))


_TOOLS = (
    _Tool("list_accounts", _account, ('{"accounts": [\n', '\n], "next": null}'), ",\n"),
    _Tool("read_logs", _logged),
    _Tool("list_hosts", _host, ("| host | version | disk | zone |\n| --- | --- | --- | --- |\n", "")),
)
_CHARACTERS = 2.6
"""Of a token, in lines of this kind."""


def _output(rng: random.Random, tool: _Tool, tokens: int) -> tuple[str, list[_Line]]:
    lines: list[_Line] = []
    while sum(len(one.text) for one in lines) < tokens * _CHARACTERS:
        lines.append(tool.line(rng))
    return tool.around[0] + tool.between.join(one.text for one in lines) + tool.around[1], lines


def support(seed: int, most: int | None = None, *, turns: int = SUPPORT_TURNS) -> Script:
    """Return the log of a support agent; the same for the same seed."""
    rng = random.Random(f"support {seed}")
    now = datetime(2026, 3, 2, 8, tzinfo=UTC)
    planted: list[_Planted] = []
    found: list[Turn] = []
    before: list[Message] = []
    desk = _tickets(rng)
    for turn in range(turns):
        now += timedelta(minutes=rng.randint(2, 20))
        before += [_at(now, 0, **one) for one in next(desk)(turn, planted)]
        steps, seen = _worked(rng, turn, now)
        ready = [one for one in planted if one.turn <= turn - TURNS_APART]
        if ready:
            asked = rng.choice(ready)
            planted.remove(asked)
            question = _at(now, 2, role="user", content=asked.question)
            found.append(Turn(tuple(before), question, asked.evidence, steps))
            before = []
        else:
            before.append(_at(now, 2, role="user", content="Please go on with this ticket."))
            before += [message for step in steps for message in step]
        planted += seen
        if len(found) == most:
            break
    return Script("support", f"seed {seed}", "support", tuple(found))


def _worked(
    rng: random.Random, turn: int, now: datetime
) -> tuple[tuple[tuple[Message, ...], ...], list[_Planted]]:
    """Return what two tools and the model say in a turn, and one question about each of the tools' answers."""
    steps: list[tuple[Message, ...]] = []
    planted: list[_Planted] = []
    for number in range(2):
        tool = rng.choice(_TOOLS)
        output, lines = _output(rng, tool, rng.randint(200, 1500))
        called = _called(f"call_{turn}_{number}", tool.name, {"page": rng.randint(1, 40)}, output)
        steps.append(tuple(_at(now, 3 + number, **one) for one in called))
        askable = [one for one in lines if one.question]
        if askable and rng.random() < 0.5:
            one = rng.choice(askable)
            planted.append(_Planted(turn, one.question, (Evidence(one.text),)))
    steps.append((_at(now, 6, role="assistant", content=_answer(rng)),))
    return tuple(steps), planted


def _wish(rng: random.Random) -> str:
    return f"wants the refund on the account ending in {rng.randint(1000, 9999)}."


def _tickets(rng: random.Random) -> Iterator[Callable[[int, list[_Planted]], Sequence[Message]]]:
    """Yield what opens each turn: every third a ticket with a wish in it, sometimes a wish that has changed."""
    wishes: list[tuple[int, str, str]] = []

    def opened(turn: int, planted: list[_Planted]) -> Sequence[Message]:
        if turn % 3:
            return ()
        if turn % 9 == 6 and wishes:
            ticket, name, old = wishes.pop(0)
            new = f"Correction for ticket {ticket}: {name} {_wish(rng)}"
            place = next((at for at, one in enumerate(planted) if one.evidence[0].text == old), None)
            if place is not None:
                evidence = (Evidence(old, True), Evidence(new))
                planted[place] = _Planted(turn, planted[place].question, evidence)
            return ({"role": "user", "content": new},)
        ticket, name = rng.randint(1000, 99999), _name(rng)
        wish = f"Ticket {ticket}: {name} {_wish(rng)}"
        wishes.append((ticket, name, wish))
        planted.append(
            _Planted(turn, f"Where does {name} want the refund of ticket {ticket}?", (Evidence(wish),))
        )
        trouble = rng.choice(("an import", "the last invoice", "a login", "the search", "a webhook"))
        text = f"{wish} They say there was trouble with {trouble} on {_day(rng)}, please look into it."
        return ({"role": "user", "content": text}, {"role": "assistant", "content": "I will look into it."})

    while True:
        yield opened
