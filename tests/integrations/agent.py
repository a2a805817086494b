"""A 200-turn agent with fake tools, the same for every framework, and what must hold of what its model is shown.

`Script` says what happens in each turn; `answer` is the model: it reads chat messages and gives the next one, so it can
stand behind any framework's model class or a server on loopback. A turn in which a tool is called has four messages.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from acms import BPETokenCounter
from acms.text.chat_messages import NO_RESULT, tokens

ROOT = Path(__file__).parents[2]
TURNS = 200
BUDGET = 1200
"""Tokens that a model may be shown: a tenth of the whole conversation."""
SECRET = "the vault code is marzipan-4711"
"""What a user says in turn 3, and asks for much later or in another session."""
QUESTION = "What is the vault code?"
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
        if NO_RESULT in text:  # the process was killed before the tool had answered
            return _called(
                json.loads(messages[-2]["tool_calls"][0]["function"]["arguments"])["host"], "again"
            )
        return {"role": "assistant", "content": f"I looked: {text.partition(';')[0]}."}
    if last["role"] == "user" and "check host-" in text:
        return _called(text.partition("check ")[2].partition(" ")[0])
    if QUESTION in text:
        known = any("marzipan-4711" in text_of(message) for message in messages)
        return {"role": "assistant", "content": "It is marzipan-4711." if known else "I do not know."}
    return {"role": "assistant", "content": "Noted, I will come back to it."}


def _called(host: str, time: str = "first") -> dict[str, Any]:
    call = {"name": "disk", "arguments": json.dumps({"host": host})}
    calls = [{"id": f"call_{host}_{time}", "type": "function", "function": call}]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def expected(first: int, last: int) -> list[tuple[str, str]]:
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


def check(
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
    cost = sum(map(_uncounted, messages)) + tokens(
        [{**one, "content": text_of(one)} for one in messages], COUNTER
    )
    assert cost <= (BUDGET if budget is None else budget)
    return cost


def _uncounted(message: Mapping[str, Any]) -> int:
    """Return what the parts of a message that are no text cost."""
    content = message.get("content") or ()
    others = [one for one in content if isinstance(one, Mapping) and one.get("type") != "text"]
    return COUNTER.count(json.dumps(others)) if others else 0


def text_of(message: Mapping[str, Any]) -> str:
    """Return the text of a chat message."""
    content = message.get("content") or ""
    return content if isinstance(content, str) else "\n".join(part.get("text") or "" for part in content)


# ── kill and restart ────────────────────────────────────────────────────────────────────────────────────────────────


def acknowledge(turn: int) -> None:
    """Say on standard output that a turn is done, for `killed`."""
    print(f"turn {turn}", flush=True)


def killed(module: str, *arguments: object, after: int, more: Iterable[str] = ()) -> int:
    """Run `module.main(*arguments)` in a process of its own, kill it with SIGKILL once it has acknowledged a turn.

    Returns the last turn it had acknowledged. `arguments` go there as JSON.
    """
    code = f"import json, sys; from {module} import main; main(*json.loads(sys.argv[1]))"
    command = [sys.executable, *more, "-c", code, json.dumps(arguments)]
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


def left_in(folder: Path, words: Iterable[str]) -> list[str]:
    """Return which of some words are still in the bytes of any file of a folder."""
    texts = [file.read_bytes() for file in folder.rglob("*") if file.is_file()]
    return [word for word in words if any(word.encode() in text for text in texts)]


def p95(seconds: Sequence[float]) -> float:
    """Return the 95th percentile in milliseconds."""
    return sorted(seconds)[int(len(seconds) * 0.95)] * 1000


def report(name: str, measure: Callable[[], Sequence[float]]) -> None:
    """Print what a benchmark measured: overhead per call of the model."""
    times = measure()
    middle = sorted(times)[len(times) // 2] * 1000
    print(f"{name}: {len(times)} calls, p50 {middle:.1f} ms, p95 {p95(times):.1f} ms", flush=True)
