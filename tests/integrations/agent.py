"""A 200-turn agent with fake tools, the same for every framework, and what must hold of what its model is shown.

`said` is what happens in each turn; `answer` is the model: it reads chat messages and gives the next one, so it can
stand behind any framework's model class. A turn in which a tool is called has four messages. `Story` are the tests that
every framework passes, and a `Driver` is its agent.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Self

import pytest

from acms import ACMS, ToolCall
from acms.erasure import erase_subject
from acms.providers import BPETokenCounter
from acms.text.chat_messages import NO_RESULT, RECALLED, count_message_tokens

ROOT = Path(__file__).parents[2]
TURNS = 200
BUDGET = 1200
"""Tokens that a model may be shown: a tenth of the whole conversation."""
SECRET = "the vault code is marzipan-4711"
"""What a user says in turn 3, and asks for much later or in another session."""
QUESTION = "What is the vault code?"
USER = "user:1"
INSTRUCTIONS = "You look after disks."
COUNTER = BPETokenCounter()
_SUBJECTS = ("queue", "cache", "index", "backup", "report", "deploy", "invoice", "shard")


def said(turn: int) -> str:
    """Return what the user says in a turn; in two of three it makes the model call a tool."""
    if turn == 3:
        return f"Please remember: {SECRET}."
    subject = _SUBJECTS[turn % len(_SUBJECTS)]
    if turn % 3:
        return f"[{turn}] Please check host-{turn} of the {subject} and tell me how full its disk is."
    return f"[{turn}] Thanks. The {subject} can wait, we look at it again on day {turn % 28 + 1} with the others."


def disk(host: str) -> str:
    """Return how full the disk of a host is; the tool of the agent."""
    number = int(host.rpartition("-")[2])
    lines = (f"/dev/sd{part} {number * 7 % 90 + 5} % of {number % 9 + 1} TB" for part in "abcd")
    return f"{host}: " + "; ".join(lines)


def answer(messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the assistant message that follows chat messages, as Chat Completions writes it."""
    last = messages[-1]
    text = text_of(last)
    if last["role"] == "tool":
        with suppress(ValueError):  # a framework may wrap what a tool answered
            text = json.loads(text)["result"]
        if NO_RESULT in text:  # the process was killed before the tool had answered
            return _call_message(
                json.loads(messages[-2]["tool_calls"][0]["function"]["arguments"])["host"], "again"
            )
        return {"role": "assistant", "content": f"I looked: {text.partition(';')[0]}."}
    if last["role"] == "user" and "check host-" in text:
        return _call_message(text.partition("check ")[2].partition(" ")[0])
    if QUESTION in text:
        known = any("marzipan-4711" in text_of(message) for message in messages)
        return {"role": "assistant", "content": "It is marzipan-4711." if known else "I do not know."}
    return {"role": "assistant", "content": "Noted, I will come back to it."}


def _call_message(host: str, time: str = "first") -> dict[str, Any]:
    call = {"name": "disk", "arguments": json.dumps({"host": host})}
    calls = [{"id": f"call_{host}_{time}", "type": "function", "function": call}]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def expected_messages(first: int, last: int) -> list[tuple[str, str]]:
    """Return the role and the text of every message of the turns from `first` up to `last`, without the last."""
    found: list[tuple[str, str]] = []
    for turn in range(first, last):
        user = {"role": "user", "content": said(turn)}
        reply = answer([user])
        found.append(("user", said(turn)))
        for call in reply.get("tool_calls", ()):
            result = disk(**json.loads(call["function"]["arguments"]))
            found += [("assistant", ""), ("tool", result)]
            reply = answer([{"role": "tool", "content": result}])
        found.append(("assistant", reply["content"]))
    return found


def assert_valid_request(
    messages: Sequence[Mapping[str, Any]], budget: int | None = None, *, interrupted: bool = False
) -> int:
    """Hold chat messages to what every request must be, and return what they cost.

    Every tool call is followed by its answers and no answer stands alone; the exact count is within the budget; nothing
    stands for a lost result, unless a process was killed.
    """
    waiting: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            assert message["tool_call_id"] in waiting, "an answer without its call"
            waiting.remove(message["tool_call_id"])
            assert interrupted or NO_RESULT not in text_of(message)
        else:
            assert not waiting, f"{waiting} have no answer"
            waiting = [call["id"] for call in message.get("tool_calls") or ()]
    assert not waiting, f"{waiting} have no answer"
    cost = sum(map(_uncounted_tokens, messages)) + count_message_tokens(
        [{**one, "content": text_of(one)} for one in messages], COUNTER
    )
    assert cost <= (BUDGET if budget is None else budget)
    return cost


def _uncounted_tokens(message: Mapping[str, Any]) -> int:
    """Return what the parts of a message that are no text cost."""
    content = message.get("content") or ()
    others = [one for one in content if isinstance(one, Mapping) and one.get("type") != "text"]
    return COUNTER.count(json.dumps(others)) if others else 0


def text_of(message: Mapping[str, Any]) -> str:
    """Return the text of a chat message."""
    content = message.get("content") or ""
    return content if isinstance(content, str) else "\n".join(part.get("text") or "" for part in content)


# ── the story ───────────────────────────────────────────────────────────────────────────────────────────────────────


class Driver(ABC):
    """The agent of a framework in one session, whose log lies behind a URL of a storage."""

    def __init__(
        self, url: str, name: str = "s", *, namespace: str = USER, interrupted: bool = False
    ) -> None:
        self.url = url
        self.name = name
        self.namespace = namespace
        #: Whether a process was killed: a result of a tool may be lost.
        self.interrupted = interrupted
        #: What the model was shown, as messages of the framework without its instructions.
        self.seen: list[Sequence[Any]] = []
        #: What the framework itself has made in the session, in the form of `seen`, before ACMS had a hand in it.
        self.made: list[Any] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    @property
    @abstractmethod
    def memory(self) -> ACMS:
        """The session of ACMS."""

    @abstractmethod
    async def turn(self, text: str, id: str | None = None) -> str:
        """Run a turn, under an id where the framework's messages have one, and return the answer."""

    @abstractmethod
    async def kept(self) -> Sequence[Any]:
        """Return all messages of the session, as the framework's own."""

    @abstractmethod
    async def aclose(self) -> None:
        """Let go of the storage."""

    async def erase(self) -> None:
        """Erase the user."""
        await erase_subject(self.memory.storage, namespace=self.namespace, verify=True)

    async def check_ids(self) -> None:
        """Compare the stored and the recently shown messages with those of the framework, ids included.

        Nothing else is kept, and nothing else is shown but what ACMS says that it wrote.
        """
        kept = await self.kept()
        lost = [one for one in self.made if one not in kept]
        assert not lost, lost
        shown = [one for messages in self.seen[-9:] for one in messages]
        other = [one for one in (*kept, *shown) if one not in self.made]
        marks = RECALLED[0].strip(), NO_RESULT
        other = [one for one in other if not any(mark in str(one) for mark in marks)]
        assert not other, other

    async def said(self) -> list[tuple[str, str]]:
        """Return the role and the text of every message of the log, a call of a tool without its text."""
        found: list[tuple[str, str]] = []
        for entry in await self.memory.entries():
            assert entry.role is not None
            called = any(isinstance(part, ToolCall) for part in entry.parts)
            if called or entry.content:
                found.append((entry.role.value, "" if called else entry.content))
        return found


class Story:
    """What every framework's agent passes: subclass it as `TestStory` with a driver."""

    driver: type[Driver]

    @pytest.mark.parametrize("turns", [25, pytest.param(TURNS, marks=pytest.mark.slow)])
    async def test_a_long_run_is_valid_within_its_budget_and_kept_once(
        self, tmp_path: Path, turns: int
    ) -> None:
        async with self.driver(_database_url(tmp_path)) as agent:
            for turn in range(turns):
                await agent.turn(said(turn), f"u{turn}")
            assert await agent.said() == expected_messages(0, turns)
            assert await agent.turn(QUESTION, "q") == "It is marzipan-4711."
            await agent.check_ids()

    @pytest.mark.faults
    async def test_a_killed_run_goes_on_where_it_was(self, tmp_path: Path) -> None:
        done = await asyncio.to_thread(run_and_kill, self.driver.__module__, _database_url(tmp_path), 6)
        async with self.driver(_database_url(tmp_path), interrupted=True) as agent:
            agent.made += await agent.kept()
            for turn in range(done + 1, done + 4):
                await agent.turn(said(turn), f"u{turn}")
            found = await agent.said()
            before, after = expected_messages(0, done + 1), expected_messages(done + 2, done + 4)
            assert (found[: len(before)], found[-len(after) :]) == (before, after)
            await agent.check_ids()

    async def test_a_fork_goes_on_alone(self, tmp_path: Path) -> None:
        async with self.driver(_database_url(tmp_path)) as agent:
            for turn in range(4):
                await agent.turn(said(turn), f"u{turn}")
            await (await agent.memory.fork(session_id="fork")).close()
            async with self.driver(_database_url(tmp_path), "fork") as fork:
                fork.made += agent.made
                assert await fork.turn(QUESTION, "q") == "It is marzipan-4711."
                assert (await fork.said())[:-2] == expected_messages(0, 4)
                await fork.check_ids()
            await agent.turn(said(4), "u4")
            assert await agent.said() == expected_messages(0, 5)

    async def test_another_session_of_the_user_knows_until_the_user_is_erased(self, tmp_path: Path) -> None:
        async def asked(name: str, text: str, namespace: str = USER) -> str:
            async with self.driver(_database_url(tmp_path), name, namespace=namespace) as agent:
                return await agent.turn(text, f"u-{name}")

        await asked("monday", said(3))
        assert await asked("friday", QUESTION) == "It is marzipan-4711."
        assert await asked("friday", QUESTION, "user:2") == "I do not know."
        async with self.driver(_database_url(tmp_path)) as agent:
            await agent.erase()
        assert await asked("saturday", QUESTION) == "I do not know."
        assert left_in(tmp_path, ["marzipan-4711"]) == []


def _database_url(folder: Path) -> str:
    return f"sqlite:///{folder / 'memory.db'}"


def run_and_kill(module: str, url: str, after: int) -> int:
    """Run the `Driver` of a module in a process of its own, and kill it with SIGKILL once it has acknowledged a turn.

    Returns the last turn it had acknowledged.
    """
    code = "import sys; from tests.integrations.agent import _run_turns; _run_turns(*sys.argv[1:])"
    command = [sys.executable, "-c", code, module, url]
    done = -1
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("turn "):
                done = int(line.split()[1])
            if done >= after and process.poll() is None:
                process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL, "it ended before it could be killed"
    return done


def _run_turns(module: str, url: str) -> None:
    """Run turns, and report each on stdout: the program that is killed."""

    async def run() -> None:
        async with import_module(module).Driver(url) as agent:
            for turn in range(10_000):
                await agent.turn(said(turn), f"u{turn}")
                print(f"turn {turn}", flush=True)

    asyncio.run(run())


def left_in(folder: Path, words: Iterable[str]) -> list[str]:
    """Return which of some words are still in the bytes of any file of a folder."""
    texts = [file.read_bytes() for file in folder.rglob("*") if file.is_file()]
    return [word for word in words if any(word.encode() in text for text in texts)]


def p95(seconds: Sequence[float]) -> float:
    """Return the 95th percentile in milliseconds."""
    return sorted(seconds)[int(len(seconds) * 0.95)] * 1000


def print_report(name: str, measure: Callable[[], Sequence[float]]) -> None:
    """Print what a benchmark measured: overhead per call of the model."""
    times = measure()
    middle = sorted(times)[len(times) // 2] * 1000
    print(f"{name}: {len(times)} calls, p50 {middle:.1f} ms, p95 {p95(times):.1f} ms", flush=True)
