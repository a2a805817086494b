"""Fit a prompt of a long history, pins and many recalled candidates into its budget.

    python benchmarks/prompt.py                 # 1,000 to 30,000 messages, about a minute
    python benchmarks/prompt.py --render        # and render one over a session of 10,000 messages, 8 at a time

Median and p95 of CPU milliseconds. "pair": a log, of which a quarter has to do with tools, becomes units; the rest
begins with those, pairs them across the prompt, fits and lays out. The history is windowed into 8,000 tokens,
truncated, shown whole, so that every message is counted, or a stored summary stands for most of it.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from ingest import text

from acms import ACMS, open_storage
from acms.codecs import OpenAIChat
from acms.model import Role, Text, ToolCall, ToolResult
from acms.plan.nodes import (
    PINS,
    RECALL,
    SHRINKABLE,
    ComposedMessage,
    FittedPrompt,
    MessageGroup,
    Piece,
    Scope,
    Strategy,
    Summarise,
    Truncate,
    Window,
)
from acms.plan.tool_groups import join_answers, pair_tool_calls
from acms.prompt import Prompt
from acms.prompt.fit import fit_prompt
from acms.prompt.resolve import lay_out_messages
from acms.prompt_types import PromptMessage

CANDIDATES = 1_000
BUDGET = 8_000
RECALLED = 2_000


def history(messages: int, codec: OpenAIChat, rng: random.Random) -> list[MessageGroup]:
    """Return messages as a log has them, counted; every eighth is a tool call and its answer."""
    counter = codec.counter
    groups: list[MessageGroup] = []
    before = 0
    said = [text(rng) for _ in range(200)]
    counts = [counter.count(one) for one in said]
    while len(groups) < messages:
        version = len(groups) + 1
        place = rng.randrange(len(said))
        sources = (f"m_{version}",)
        if version % 8 == 3:
            call = ToolCall(f"call_{version}", "search", '{"q": "orders"}')
            message = PromptMessage(role=Role.ASSISTANT, parts=(call,), sources=sources, group=f"g{version}")
        elif version % 8 == 4:
            result = ToolResult(f"call_{version - 1}", said[place])
            message = PromptMessage(
                role=Role.TOOL,
                parts=(result,),
                sources=sources,
                group=f"g{version - 1}",
                tokens=counts[place],
                counter=counter.name,
            )
        else:
            message = PromptMessage(
                role=Role.USER if version % 2 else Role.ASSISTANT,
                parts=(Text(said[place]),),
                sources=sources,
                tokens=counts[place],
                counter=counter.name,
            )
        groups.append(MessageGroup((message,), version, version, before, version == messages))
        before += counts[place]
    return groups


def tree(groups: list[MessageGroup], strategy: Strategy, codec: OpenAIChat, rng: random.Random) -> Scope:
    """Return a prompt of rules, pins, a history, what is recalled, and a question."""
    said = [text(rng) for _ in range(CANDIDATES)]
    pieces = tuple(
        Piece(one, f"r_{place}", rng.random(), (f"r_{place}",), codec.counter.count(one))
        for place, one in enumerate(said)
    )
    pins = tuple(Piece(text(rng), f"pin_{place}", -place) for place in range(20))
    rules = PromptMessage(role=Role.SYSTEM, parts=(Text(text(rng)),))
    question = PromptMessage(role=Role.USER, parts=(Text(text(rng)),))
    return Scope(
        id="prompt",
        children=(
            MessageGroup((rules,)),
            Scope(
                id="pins",
                priority=PINS,
                strategy=Truncate(1_200),
                children=(ComposedMessage(Role.DEVELOPER, pins, kind="pins"),),
            ),
            Scope(
                id="recall",
                priority=RECALL,
                strategy=Truncate(RECALLED),
                moves=True,
                children=(ComposedMessage(Role.USER, pieces, kind="recall"),),
            ),
            Scope(id="history", priority=SHRINKABLE, strategy=strategy, children=tuple(groups)),
            MessageGroup((question,)),
        ),
    )


def fitted(made: Scope, codec: OpenAIChat, limit: int | None) -> FittedPrompt:
    """Pair, fit and lay out; nothing is asked."""
    try:
        next(fit_prompt(pair_tool_calls(made), codec, limit))
    except StopIteration as end:
        found: FittedPrompt = end.value
        lay_out_messages(found.placed)
        return found
    raise AssertionError("a summary is asked for")


def measured(run: Callable[[], object], rounds: int) -> dict[str, float]:
    """Return median and p95 of the CPU milliseconds of a call, collections of its own garbage included."""
    run()
    samples: list[float] = []
    gc.freeze()  # the log it is made from is not its garbage
    for _ in range(rounds):
        gc.collect()
        start = time.process_time()
        run()
        samples.append((time.process_time() - start) * 1e3)
    gc.unfreeze()
    samples.sort()
    return {"p50": statistics.median(samples), "p95": samples[int(len(samples) * 0.95)]}


def fits(sizes: list[int], rounds: int) -> dict[str, dict[str, dict[str, float]]]:
    """Measure every kind of history at every size."""
    codec = OpenAIChat("gpt-5")
    report: dict[str, dict[str, dict[str, float]]] = {}
    for size in sizes:
        rng = random.Random(5)
        log = history(size, codec, rng)
        groups = join_answers(log)
        report.setdefault("pair", {})[str(size)] = measured(lambda: join_answers(log), rounds)  # noqa: B023
        summary = Summarise("history", "What was said. " * 20, int(len(groups) * 0.9))
        for name, strategy, limit in (
            ("window", Window(), BUDGET),
            ("whole", Window(), None),
            ("truncate", Truncate(), BUDGET),
            ("summary", summary, size * 14),
        ):
            made = tree(groups, strategy, codec, random.Random(7))
            found = fitted(made, codec, limit)
            assert limit is None or found.tokens <= limit
            report.setdefault(name, {})[str(size)] = measured(lambda: fitted(made, codec, limit), rounds)  # noqa: B023
    return report


async def renders(messages: int, rounds: int) -> dict[str, dict[str, float]]:
    """Measure a render over a session, alone and 8 at a time, in wall milliseconds each."""
    rng = random.Random(5)
    codec = OpenAIChat("gpt-5")
    report: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as name:
        url = f"sqlite:///{Path(name) / 'prompt.db'}"
        async with ACMS("long", open_storage(url), None) as session:
            for _ in range(0, messages, 1_000):
                await session.ingest_many([{"role": "user", "content": text(rng)} for _ in range(1_000)])
            prompt = (
                Prompt(codec)
                .system("You are the orders team's assistant.")
                .recall(session, text(rng), tokens=RECALLED)
                .history(session)
                .user("Write the migration plan.")
            )
            alone = await prompt.render(budget=BUDGET)
            for at_once in (1, 8):
                samples: list[float] = []
                for _ in range(max(1, rounds // at_once)):
                    start = time.perf_counter()
                    found = await asyncio.gather(*(prompt.render(budget=BUDGET) for _ in range(at_once)))
                    samples.append((time.perf_counter() - start) * 1e3 / at_once)
                    assert all(one.payload == alone.payload for one in found)
                samples.sort()
                report[f"{at_once} at once"] = {
                    "p50": statistics.median(samples),
                    "p95": samples[int(len(samples) * 0.95)],
                }
    return report


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, nargs="+", default=[1_000, 3_000, 10_000, 30_000])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--render", action="store_true", help="also render over a session")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    report: dict[str, object] = {"fit": fits(options.messages, options.rounds)}
    if options.render:
        report["render"] = asyncio.run(renders(10_000, options.rounds))
    if options.json:
        print(json.dumps(report, indent=2))
        return
    print(f"fit of a prompt with {CANDIDATES} recalled candidates, CPU milliseconds")
    for part, kinds in report.items():
        for kind, sizes in kinds.items():  # type: ignore[attr-defined]
            if part == "render":
                print(
                    f"  render of 10000 messages, {kind:<10} p50 {sizes['p50']:7.1f}   p95 {sizes['p95']:7.1f}"
                )
                continue
            for size, found in sizes.items():
                print(f"  {kind:<10} {size:>6} messages   p50 {found['p50']:7.1f}   p95 {found['p95']:7.1f}")


if __name__ == "__main__":
    main()
