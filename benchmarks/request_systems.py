"""Ways to make a request, and the replay that measures what each of them brings before the model.

All are rendered at the same places of the same logs. What one request shares with the one before it of the same way is
read off the messages as they are sent: role, name, text and tool calls.
"""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple, TypeAlias

from request_frames import Evidence, Message, Script, Turn

from acms import ACMS, ACMSConfig, open_storage
from acms.acs import ACS
from acms.codecs import OpenAIChat
from acms.errors import ACMSError
from acms.ports import Embedder
from acms.prompt import Prompt
from acms.prompt_types import SEPARATOR, prefix_speaker
from acms.providers.tokens import default_counter
from acms.results import ContextItem
from acms.text import chat_messages

Sent: TypeAlias = list[dict[str, Any]]
"""Chat messages."""

SYSTEM = {"role": "system", "content": "You are a helpful assistant who remembers what was said."}
MODEL = "gpt-4o"
BATCH = 500
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
FRAMING = 24
"""Tokens around recalled text, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What is known when a request is made."""

    session: ACMS
    budget: int
    query: str
    #: Everything said, as chat messages; the turn begins at this place, with its question.
    log: Sent
    turn: int
    #: Ids of the messages of the turn.
    ids: frozenset[str]


Render: TypeAlias = Callable[[Call], Awaitable[Sent]]


class System(NamedTuple):
    """A way to make requests."""

    name: str
    #: Makes one for a log and a budget; it may remember.
    make: Callable[[], Render]
    #: It leaves records in the log, so that it needs one of its own for each budget.
    own: bool = False
    #: False: it is the same for every budget.
    budgeted: bool = True


# ── counting ────────────────────────────────────────────────────────────────────────────────────────────────────────


@lru_cache(maxsize=200_000)
def count(text: str) -> int:
    """Return the o200k tokens of a text."""
    return default_counter().count(text)


class _Counter:
    name = "o200k_base"

    def count(self, text: str) -> int:
        return count(text)


COUNTER = _Counter()


def tokens(messages: Sequence[dict[str, Any]]) -> int:
    """Return what messages cost, without the primer of the reply."""
    return chat_messages.count_message_tokens(messages, COUNTER) - chat_messages.PRIMER_TOKENS


def text_of(message: dict[str, Any]) -> str:
    """Return a message as it is sent, for comparing with another."""
    content = message.get("content") or ""
    called = "".join(
        f"[{one['id']} {one['function']['name']} {one['function']['arguments']}]"
        for one in message.get("tool_calls", ())
    )
    return f"<{message['role']} {message.get('name', '')}{message.get('tool_call_id', '')}>{content}{called}"


def plain(messages: Iterable[dict[str, Any]]) -> Sent:
    """Return messages whose contents are texts and not lists of parts."""
    found: Sent = []
    for message in messages:
        content = message.get("content")
        if isinstance(content, list):
            content = "\n".join(part.get("text", "") for part in content)
        found.append({**message, "content": content})
    return found


def shared(before: Sequence[dict[str, Any]], now: Sequence[dict[str, Any]]) -> int:
    """Return the tokens of the longest prefix of two requests."""
    total = 0
    for one, other in zip(before, now, strict=False):
        if one == other:
            total += tokens([other])
            continue
        a, b = text_of(one), text_of(other)
        same = next(
            (place for place, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
        )
        return total + min(tokens([other]), count(b[:same]))
    return total


def held(text: str, evidence: str) -> float:
    """Return the share of an evidence that stands in a text: all of it, or of a long one those lines that do."""
    if evidence in text:
        return 1.0
    lines = [line.strip() for line in evidence.splitlines() if line.strip()]
    if len(lines) < 2:
        return 0.0
    return sum(len(line) for line in lines if line in text) / sum(map(len, lines))


# ── systems ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def cut(message: dict[str, Any], room: int) -> dict[str, Any]:
    """Return a message with so much of its text as fits."""
    text = message["content"] or ""
    while text and tokens([{**message, "content": text}]) > room:
        text = text[: int(len(text) * 0.9)]
    return {**message, "content": text}


def newest(call: Call, room: int) -> Sent:
    """Return the question and the newest of what followed it, tool calls with their answers; one too large is cut."""
    question, *after = call.log[call.turn :]
    groups: list[Sent] = []
    for message in after:
        if message["role"] == "tool" and groups:
            groups[-1].append(message)
        else:
            groups.append([message])
    room -= tokens([question])
    kept: Sent = []
    for group in reversed(groups):
        if tokens(group) > room:
            if not kept:
                kept = [*group[:-1], cut(group[-1], room - tokens(group[:-1]))]
            break
        kept = group + kept
        room -= tokens(group)
    return [question, *kept]


async def history(call: Call, room: int) -> tuple[Sent, set[str]]:
    """Return the newest messages before the turn, and their ids."""
    if room < 1:
        return [], set()
    items = await call.session.window(room + tokens(call.log[call.turn :]))
    found = [item for item in items if item.id not in call.ids]
    messages = chat_messages.render_chat_messages(found)
    while found and (over := tokens(messages) - room) > 0:
        sizes = accumulate(item.token_count for item in found)
        found = found[1 + next((place for place, size in enumerate(sizes) if size >= over), len(found)) :]
        messages = chat_messages.render_chat_messages(found)
    return messages, {item.id for item in found}


def written(items: Iterable[ContextItem]) -> str:
    return SEPARATOR.join(prefix_speaker(item.speaker, item.content) for item in items if item.content)


def block(text: str) -> Sent:
    return [chat_messages.render_recalled_text(text)] if text else []


async def window(call: Call) -> Sent:
    """Show the newest messages only."""
    room = call.budget - tokens([SYSTEM])
    turn = newest(call, room)
    return [SYSTEM, *(await history(call, room - tokens(turn)))[0], *turn]


async def _halves(call: Call) -> tuple[str, Sent, Sent]:
    """Return what half of the budget recalls, and the newest messages in the other one."""
    half = call.budget // 2
    items = await call.session.recall(call.query, token_budget=half - FRAMING, include_current_episode=False)
    room = half - tokens([SYSTEM])
    turn = newest(call, room)
    past, ids = await history(call, room - tokens(turn))
    return written(item for item in items if item.id not in ids | call.ids), past, turn


async def recall_at_end(call: Call) -> Sent:
    """Show the newest messages, and what is recalled right before the question."""
    text, past, turn = await _halves(call)
    return [SYSTEM, *past, *block(text), *turn]


async def recall_on_top(call: Call) -> Sent:
    """Show what is recalled in front of the newest messages."""
    text, past, turn = await _halves(call)
    return [{**SYSTEM, "content": f"{SYSTEM['content']}\n{text}"}, *past, *turn]


async def messages(call: Call) -> Sent:
    return [SYSTEM, *await call.session.messages(call.query, budget=call.budget - tokens([SYSTEM]))]


def prompt(**options: Any) -> Render:
    """Return the default prompt of a history and a recall."""

    async def render(call: Call) -> Sent:
        made = Prompt(OpenAIChat(MODEL)).system(SYSTEM["content"]).history(call.session)
        made = made.recall(call.session, call.query, **options)
        return plain((await made.render(budget=call.budget)).payload["messages"])

    return render


async def acs(call: Call) -> Sent:
    """Show what a reply of the engine holds before the question."""
    turn = newest(call, call.budget // 2)
    room = call.budget - tokens([SYSTEM, *turn]) - FRAMING
    request = {
        "version": "v0",
        "id": "6f3b6f21-7a5f-4e3f-9af0-1b2c3d4e5f60",
        "request_id": f"{call.session.session_id}-{len(call.log)}-{call.budget}",
        "intent": call.query,
        "budgets": {"tokens_max": room, "time_ms": 60_000},
    }
    reply = await ACS(sources=[call.session]).render(request)
    texts = [one.text for one in reply.fragments or () if one.text and one.id not in call.ids]
    while texts and tokens(block("\n".join(texts))) > room + FRAMING:
        texts.pop()
    return [SYSTEM, *block("\n".join(texts)), *turn]


async def bound(call: Call) -> Sent:
    """Give all of the budget to recall."""
    turn = newest(call, call.budget // 2)
    room = call.budget - tokens([SYSTEM, *turn]) - FRAMING
    items = await call.session.recall(call.query, token_budget=room, exclude=call.ids, relevant_only=True)
    return [SYSTEM, *block(written(items)), *turn]


def rolling() -> Render:
    """Return a window that grows until it is full, and then begins anew with the newest half of the budget."""
    start = 0

    async def render(call: Call) -> Sent:
        nonlocal start
        room = call.budget - tokens([SYSTEM])
        if tokens(call.log[start:]) > room:
            start, left = len(call.log), room // 2
            while start > 0 and (cost := tokens([call.log[start - 1]])) <= left:
                start, left = start - 1, left - cost
            if tokens(call.log[call.turn :]) <= room:
                start = min(start, call.turn)
            while start < len(call.log) and call.log[start]["role"] == "tool":
                start += 1
        return [SYSTEM, *call.log[start:]]

    return render


async def transcript(call: Call) -> Sent:
    """Show everything."""
    return [SYSTEM, *call.log]


SYSTEMS = [
    System("window", lambda: window),
    System("recall at end", lambda: recall_at_end),
    System("recall on top", lambda: recall_on_top),
    System("messages", lambda: messages),
    System("prompt", prompt, own=True),
    System("acs", lambda: acs),
    System("bound", lambda: bound),
    System("rolling", rolling),
    System("transcript", lambda: transcript, budgeted=False),
]
if "keep" in inspect.signature(Prompt.recall).parameters:
    SYSTEMS.insert(5, System("prompt, turn", lambda: prompt(keep="turn"), own=True))


# ── replay ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class Sample(NamedTuple):
    """One request."""

    dataset: str
    conversation: str
    frame: str
    #: Its turn, and which call of that turn it is.
    turn: int
    call: int
    system: str
    #: 0: none.
    budget: int
    evidence: float
    #: Whether it holds only evidence that is outdated; None where none is.
    stale: bool | None
    tokens: int
    shared: int
    seconds: float
    #: Tokens of the whole log.
    log: int
    #: There is no request: what must be in it does not fit.
    failed: bool = False


@dataclass
class Reader:
    """A session that is told a log, and the systems that read it."""

    session: ACMS
    #: By system and budget: what makes its requests, and the last one.
    renders: dict[tuple[str, int], Render]
    last: dict[tuple[str, int], Sent] = field(default_factory=dict)
    log: Sent = field(default_factory=list)
    turn: int = 0
    ids: set[str] = field(default_factory=set)

    async def tell(self, said: Sequence[Message]) -> None:
        for start in range(0, len(said), BATCH):
            receipts = await self.session.ingest_many(said[start : start + BATCH])
            self.ids.update(one.message_id for one in receipts)
        self.log += [as_sent(one) for one in said]
        await self.session.wait_pending()

    async def ask(self, turn: Turn) -> None:
        """Tell what came before a question, and the question."""
        await self.tell(turn.before)
        self.turn, self.ids = len(self.log), set()
        await self.tell([turn.question])

    async def close(self) -> None:
        await self.session.close()


def as_sent(message: Message) -> dict[str, Any]:
    """Return a message of a log as it is sent."""
    found: dict[str, Any] = {"role": message["role"], "content": message["content"]}
    if NAME.match(message.get("actor_id") or ""):
        found["name"] = message["actor_id"]
    if "tool_call_id" in message:
        found["tool_call_id"] = message["tool_call_id"]
    if "tool_calls" in message:
        found["tool_calls"] = [
            {
                "id": one["id"],
                "type": "function",
                "function": {"name": one["name"], "arguments": one["arguments"]},
            }
            for one in message["tool_calls"]
        ]
    return found


def readers(
    script: Script,
    systems: Sequence[System],
    budgets: Sequence[int],
    embedder: Embedder | None,
    config: ACMSConfig | None,
) -> list[Reader]:
    """Open a session for all systems that only read, and one for each of the others at each budget."""
    together: dict[tuple[str, int], Render] = {}
    found: list[dict[tuple[str, int], Render]] = [together]
    for system in systems:
        for budget in budgets if system.budgeted else (0,):
            if system.own:
                found.append({(system.name, budget): system.make()})
            else:
                together[system.name, budget] = system.make()
    return [
        Reader(
            ACMS(
                f"{script.name} {script.frame} {number}",
                open_storage("memory://"),
                embedder=embedder,
                config=config,
            ),
            renders,
        )
        for number, renders in enumerate(found)
        if renders
    ]


async def replay(
    script: Script,
    systems: Sequence[System],
    budgets: Sequence[int],
    *,
    embedder: Embedder | None = None,
    config: ACMSConfig | None = None,
    progress: Callable[[], object] = lambda: None,
) -> list[Sample]:
    """Replay a script, and make a request of every system at every budget for each call of the model."""
    samples: list[Sample] = []
    told = readers(script, systems, budgets, embedder, config)
    try:
        for number, turn in enumerate(script.turns):
            for reader in told:
                await reader.ask(turn)
            for place, step in enumerate(turn.steps):
                for reader in told:
                    samples += await _requests(script, reader, turn, number, place)
                    await reader.tell(step)
                progress()
    finally:
        for reader in told:
            await reader.close()
    return samples


async def _requests(script: Script, reader: Reader, turn: Turn, number: int, place: int) -> list[Sample]:
    query = turn.question["content"]
    await reader.session.recall(query, token_budget=100)  # reads what is new
    samples: list[Sample] = []
    whole = tokens(reader.log)
    for (name, budget), render in reader.renders.items():
        call = Call(
            session=reader.session,
            budget=budget,
            query=query,
            log=reader.log,
            turn=reader.turn,
            ids=frozenset(reader.ids),
        )
        start = time.perf_counter()
        try:
            sent: Sent | None = await render(call)
        except ACMSError:
            sent = None
        seconds = time.perf_counter() - start
        key = (script.dataset, script.name, script.frame, number, place, name, budget)
        if sent is None:
            samples.append(Sample(*key, 0.0, None, 0, 0, seconds, whole, failed=True))
            continue
        evidence, stale = judged("\n".join(map(text_of, sent)), turn.evidence)
        same = shared(reader.last.get((name, budget), ()), sent)
        reader.last[name, budget] = sent
        samples.append(Sample(*key, evidence, stale, tokens(sent), same, seconds, whole))
    return samples


def judged(text: str, evidence: Sequence[Evidence]) -> tuple[float, bool | None]:
    """Return how much of the evidence a request holds, and whether that is only what is outdated."""
    shares = [held(text, one.text) for one in evidence]
    if not any(one.outdated for one in evidence):
        return sum(shares) / len(shares), None
    newest_too = any(share for share, one in zip(shares, evidence, strict=True) if not one.outdated)
    return sum(shares) / len(shares), any(shares) and not newest_too
