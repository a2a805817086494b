"""What the model of each framework is really sent, and what it costs: one conversation through every adapter.

    python -m benchmarks.integrations                          # all, each in an environment of its own; minutes
    python -m benchmarks.integrations google_adk --turns 20
    python -m benchmarks.integrations checkpoints              # what LangGraph's checkpointer stores of 200 turns

The support log of `request_frames` (three calls a turn, long answers of tools) is said to an agent whose model and
tool are fakes, on a new SQLite file, and beside it to `Prompt`. Columns as in `request.py`: the share of the evidence
that stands in the requests, the median share of the budget once the log is larger, tokens, and tokens paid at 0.1 of
the price for what the cache holds. "p50", "p95": milliseconds of a turn for each of its requests, with all that the
framework does itself; "CPU": what the process computed of the median.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import subprocess
import tempfile
import time
import tomllib
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

from tests.integrations import agent as script
from tests.integrations.__main__ import Environment

ROOT = Path(__file__).parents[1]
DRIVERS = {
    "prompt": "",
    "langchain": "langchain_agent",
    "openai-agents": "openai_agent",
    "pydantic_ai": "test_pydantic_ai",
    "llama_index": "test_llama_index",
    "google_adk": "test_google_adk",
    "agent_framework": "test_agent_framework",
}
"""The module of tests/integrations with the agent of a framework, by the name of its environment."""
READ = 0.1
"""Price of a token that the cache holds."""


class Turn(NamedTuple):
    """What is said to an agent, what its tool answers, and what the model says in the end."""

    text: str
    outputs: Sequence[str]
    answer: str
    evidence: Sequence[str]


class Sent(NamedTuple):
    """A request that arrived at the model."""

    messages: Sequence[dict[str, Any]]
    evidence: Sequence[str]
    #: Tokens of the whole log.
    log: int


def conversation(turns: int) -> list[Turn]:
    """Return the support log as turns of an agent."""
    from request_frames import support

    found: list[Turn] = []

    def add(messages: Sequence[dict[str, Any]], evidence: Sequence[str] = ()) -> None:
        for one in messages:
            if one["role"] == "user":
                found.append(Turn(one["content"], [], "Noted.", evidence))
            elif one["role"] == "tool":
                found[-1] = found[-1]._replace(outputs=[*found[-1].outputs, one["content"]])
            elif not one.get("tool_calls"):
                found[-1] = found[-1]._replace(answer=one["content"])

    for turn in support(1, turns).turns:
        add(turn.before)
        current = tuple(one.text for one in turn.evidence if not one.outdated)
        add([turn.question, *(message for step in turn.steps for message in step)], current)
    return found


class Fake:
    """The model and the tool of the agent: they go on with the turn that was begun, and keep what they were sent."""

    def __init__(self) -> None:
        self.sent: list[Sent] = []
        self.log = 0
        self._turn = Turn("", (), "", ())
        self._calls = 0
        self._number = 0

    def begin(self, turn: Turn) -> None:
        """Begin a turn."""
        self._turn, self._calls = turn, 0
        self._number += 1
        self.log += script.COUNTER.count(turn.text + turn.answer)

    def answer(self, messages: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return the next answer of the model."""
        if messages[0]["role"] == "system":
            messages = messages[1:]
        system = {"role": "system", "content": script.INSTRUCTIONS}
        self.sent.append(Sent([system, *messages], self._turn.evidence, self.log))
        if self._calls == len(self._turn.outputs):
            return {"role": "assistant", "content": self._turn.answer}
        host = json.dumps({"host": f"host-{self._calls}"})
        call = {"id": f"call_{self._number}_{self._calls}", "type": "function"}
        called = {**call, "function": {"name": "disk", "arguments": host}}
        return {"role": "assistant", "content": None, "tool_calls": [called]}

    def disk(self, host: str) -> str:
        """Return how full the disk of a host is."""
        output = self._turn.outputs[self._calls]
        self._calls += 1
        self.log += script.COUNTER.count(output)
        return output


class PromptDriver:
    """Prompts of a session, without a framework: what the adapters are held to."""

    def __init__(self, url: str) -> None:
        from acms import ACMS, open_storage

        self.session = ACMS("s", open_storage(url), None, namespace=script.USER)

    async def turn(self, text: str, id: str | None = None) -> str:
        """Run a turn."""
        await self.session.ingest("user", text)
        while True:
            said = script.answer(await self._request(text))
            if not said.get("tool_calls"):
                await self.session.ingest("assistant", said["content"])
                return str(said["content"])
            (call,) = said["tool_calls"]
            calls = [{"id": call["id"], **call["function"]}]
            await self.session.ingest_many([{"role": "assistant", "content": "", "tool_calls": calls}])
            output = script.disk(**json.loads(call["function"]["arguments"]))
            answered = {"role": "tool", "tool_call_id": call["id"], "content": output}
            await self.session.ingest_many([answered])

    async def _request(self, text: str) -> list[dict[str, Any]]:
        from acms.codecs import OpenAIChat
        from acms.prompt import Prompt
        from acms.prompt_types import Tool

        about = {"type": "object", "properties": {"host": {"type": "string"}}, "required": ["host"]}
        tool = Tool(name="disk", description=script.disk.__doc__ or "", parameters=about)
        prompt = Prompt(OpenAIChat("gpt-5")).system(script.INSTRUCTIONS).tools([tool]).history(self.session)
        rendered = await prompt.recall(self.session, text, scope="namespace").render(script.BUDGET)
        return list(rendered.payload["messages"])

    async def aclose(self) -> None:
        """Let go of the storage."""
        await self.session.close()


def figures(sent: Sequence[Sent], times: Sequence[float], computed: Sequence[float]) -> dict[str, float]:
    """Return the figures of the requests that arrived."""
    from request_systems import held, shared, tokens

    said = [[{**one, "content": script.text_of(one)} for one in each.messages] for each in sent]
    sizes = list(map(tokens, said))
    cached = [0, *(shared(before, now) for before, now in itertools.pairwise(said))]
    evidence: list[float] = []
    for messages, each in zip(said, sent, strict=True):
        text = "\n".join(one["content"] for one in messages)
        for one in each.evidence:  # a framework may send what a tool answered as JSON
            evidence.append(max(held(text, one), held(text, json.dumps(one)[1:-1])))
    full = [size / script.BUDGET for size, each in zip(sizes, sent, strict=True) if each.log > script.BUDGET]
    return {
        "requests": len(sent),
        "evidence": 100 * fmean(evidence),
        "use": 100 * median(full),
        "tokens": fmean(sizes),
        "paid": fmean(size - (1 - READ) * had for size, had in zip(sizes, cached, strict=True)),
        "p50": 1000 * median(times),
        "p95": script.p95(times),
        "CPU": 1000 * median(computed),
    }


async def replay(name: str, turns: int) -> dict[str, float]:
    """Say the conversation to the agent of a framework, in this process."""
    fake = Fake()
    script.answer, script.disk = fake.answer, fake.disk  # type: ignore[assignment]
    module = DRIVERS[name] and import_module(f"tests.integrations.{DRIVERS[name]}")
    times: list[float] = []
    computed: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        driver = (module.Driver if module else PromptDriver)(f"sqlite:///{folder}/memory.db")
        for number, turn in enumerate(conversation(turns)):
            fake.begin(turn)
            before, began, cpu = len(fake.sent), time.perf_counter(), time.process_time()
            await driver.turn(turn.text, f"u{number}")
            made = len(fake.sent) - before
            times.append((time.perf_counter() - began) / made)
            computed.append((time.process_time() - cpu) / made)
        await driver.aclose()
    return figures(fake.sent, times[len(times) // 5 :], computed[len(computed) // 5 :])


def measured(name: str, options: argparse.Namespace) -> dict[str, float]:
    """Replay in the environment of a framework, with its newest release."""
    of = "langchain" if name == "prompt" else name
    plan = tomllib.loads((ROOT / "tests" / "integrations" / f"{of}.toml").read_text(encoding="utf-8"))
    here = Environment(name=of, end="newest", packages=plan["newest"])
    here.make(())
    paths = (ROOT, ROOT / "benchmarks", ROOT / "packages" / "acms-eval" / "src")
    command = [here.python, "-W", "ignore", "-m", "benchmarks.integrations", name, "--here"]
    given = ["--turns", str(options.turns), "--budget", str(options.budget)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "ACMS_EMBEDDER": "none"}
    done = subprocess.run(
        [*command, *given], cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True, check=True
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))


async def checkpoints() -> None:
    """Run the agent of 200 turns with LangGraph's own checkpointer on SQLite, and with the middleware."""
    from langchain.agents import create_agent
    from langchain_core.messages import HumanMessage
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
    from tests.integrations.langchain_agent import Driver, Model, disk

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with Driver(f"sqlite:///{folder / 'acms.db'}") as agent:
            for turn in range(script.TURNS):
                await agent.turn(script.said(turn), f"u{turn}")
        script.BUDGET = 100_000
        async with AsyncSqliteSaver.from_conn_string(str(folder / "checkpoints.db")) as saver:
            graph = create_agent(Model(), [disk], system_prompt=script.INSTRUCTIONS, checkpointer=saver)
            for turn in range(script.TURNS):
                asked = {"messages": [HumanMessage(script.said(turn))]}
                await graph.ainvoke(asked, {"configurable": {"thread_id": "t"}})
        for file in ("acms", "checkpoints"):
            size = sum(one.stat().st_size for one in folder.glob(f"{file}.db*")) // 1024
            print(f"{file}: {size} KB", flush=True)


def main() -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.integrations")
    parser.add_argument("names", nargs="*", help=f"of {', '.join(DRIVERS)}, or checkpoints; all but that")
    parser.add_argument("--turns", type=int, default=40, help="questions of the support log")
    parser.add_argument("--budget", type=int, default=4000)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    script.BUDGET = options.budget
    if options.names == ["checkpoints"]:
        asyncio.run(checkpoints())
        return
    if options.here:
        print(json.dumps(asyncio.run(replay(options.names[0], options.turns))))
        return
    for place, name in enumerate(options.names or DRIVERS):
        found = measured(name, options)
        if not place:
            print(f"{'':16}" + "".join(f"{column:>9}" for column in found))
        print(f"{name:16}" + "".join(f"{value:9.1f}" for value in found.values()), flush=True)


if __name__ == "__main__":
    main()
