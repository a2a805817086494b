"""What an adapter adds to a call of the model, and what a checkpointer would store besides, after 200 turns.

    python -m benchmarks.integrations

The scripted agent of tests/integrations, on a new SQLite file each: warm, one turn after the other, budget 4,000.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from tests.integrations import agent as script
from tests.integrations.langchain_agent import Agent, Model, disk
from tests.integrations.openai_agent import Scene

WARM = 20
script.BUDGET = 4000


class Times:
    """Seconds that calls took, and those of them that the process was computing."""

    def __init__(self) -> None:
        self.wall: list[float] = []
        self.cpu: list[float] = []

    def report(self, name: str) -> None:
        """Print both, without the first calls."""
        script.report(name, lambda: self.wall[WARM:])
        script.report(f"{name} (CPU)", lambda: self.cpu[WARM:])


def timed(method: Callable[..., Awaitable[Any]], times: Times) -> Callable[..., Awaitable[Any]]:
    """Return a method that notes how long each call of it took."""

    async def call(*args: Any) -> Any:
        began, computed = time.perf_counter(), time.process_time()
        found = await method(*args)
        times.wall.append(time.perf_counter() - began)
        times.cpu.append(time.process_time() - computed)
        return found

    return call


async def langchain(folder: Path) -> None:
    """Time the middleware: what is done before and behind the model."""
    agent = Agent(f"sqlite:///{folder / 'langchain.db'}")
    times = Times()
    agent.memory._rendered = timed(agent.memory._rendered, times)  # type: ignore[method-assign]
    stored = Times()
    agent.memory._store = timed(agent.memory._store, stored)  # type: ignore[method-assign]
    for turn in range(script.TURNS):
        await agent.turn(script.said(turn), f"u{turn}")
    await agent.memory.aclose()
    times.report("langchain, before a call of the model")
    stored.report("langchain, behind it")
    print(f"langchain, file: {_size(folder / 'langchain.db')} KB", flush=True)


async def openai_agents(folder: Path) -> None:
    """Time the filter of the model's input."""
    scene = Scene(f"sqlite:///{folder / 'openai.db'}")
    times = Times()
    filtered = scene.session.within(script.BUDGET)
    scene.config.call_model_input_filter = timed(filtered, times)
    for turn in range(script.TURNS):
        await scene.turn(script.said(turn))
    await scene.session.close()
    times.report("openai-agents, filter")


async def checkpointer(folder: Path) -> None:
    """Run the same agent with LangGraph's own checkpointer on SQLite, and all messages in every request."""
    async with AsyncSqliteSaver.from_conn_string(str(folder / "checkpoints.db")) as saver:
        model = Model()
        script.BUDGET = 100_000
        graph = create_agent(model, [disk], system_prompt="You look after disks.", checkpointer=saver)
        times: list[float] = []
        for turn in range(script.TURNS):
            began = time.perf_counter()
            asked = {"messages": [HumanMessage(script.said(turn))]}
            await graph.ainvoke(asked, {"configurable": {"thread_id": "t"}})
            times.append(time.perf_counter() - began)
    script.report("a turn with LangGraph's checkpointer and no ACMS", lambda: times[WARM:])
    print(f"checkpoints, file: {_size(folder / 'checkpoints.db')} KB", flush=True)


def _size(file: Path) -> int:
    return sum(one.stat().st_size for one in file.parent.glob(f"{file.name}*")) // 1024


async def main() -> None:
    """Measure one after the other."""
    with tempfile.TemporaryDirectory() as name:
        for measure in (langchain, openai_agents, checkpointer):
            await measure(Path(name))


if __name__ == "__main__":
    asyncio.run(main())
