"""What consecutive prompts of an agent share, turn by turn, beside two other layouts; and what that costs.

    python benchmarks/cache.py                                # made-up agents, four budgets: about half an hour
    python benchmarks/cache.py --quick                        # one budget, shorter logs: a minute
    python benchmarks/cache.py --log chat.jsonl --budgets 16000
    python benchmarks/cache.py --log ../beam-100k --turns 100 # conversations with annotated questions
    python benchmarks/cache.py --model                        # the cost model behind the default slack
    python benchmarks/cache.py --bound                        # what nobody can beat, by the size of a recall: seconds

A turn is one call of the model. Every turn has a recall for what the user said last, the log compacts itself through
the worker on SQLite, at the budget of the prompts, and each prompt is compared with the one before it.

- "ours": `Prompt` with a history and a recall, which stays where it was shown; it divides the room by itself, unless
  `--recall` says how much may be recalled. "sliding": the newest messages that fit, what is recalled right before the
  last of them. "top": the same with what is recalled on top. Both recall half of the budget, or as much as `--recall`.
- "grown": share of the requests that begin with all of the one before. All others begin a new epoch.
- "kept": mean of what two prompts share, of what they share with recalled text and summaries taken out of both.
- "bound": the most that can be cached by whoever knows the whole log: starts move when that is best, every message may
  be the first, the newest fifth of the budget is always shown, summaries of `--summaries` of it stand in front, new
  at each move, and what is recalled is new every turn.
- "cached": tokens shared with the prompt before, of all input tokens.
- "evidence": share of what a question asks for that is in the prompt. Details said once in made-up logs, annotated
  messages in given ones, asked on the way: every question at every `--every`-th turn after it was said.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from statistics import mean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support.agents import STYLES, SYSTEM, Followed, Layout, Log, Message, Probe, agent_log, follow
from tests.support.cache_costs import Prices, best_slack, cost_per_turn

from acms import CompactionPolicy, open_storage
from acms.branches.importers import read_chat
from acms.codecs import OpenAIChat
from acms.errors import ValidationError
from acms.plan.prefix_cache import SLACK
from acms.prompt import steps
from acms_eval.datasets import Conversation, read_conversations

PRICES = {
    "read 0.1, write 1": Prices(),
    "read 0.1, write 1.25": Prices(write=1.25),
    "read 0.1, write 2": Prices(write=2.0),
    "read 0.25, write 1": Prices(read=0.25),
    "read 0.5, write 1": Prices(read=0.5),
}
"""Of input tokens that are neither read from a cache nor written to it, as providers list them in 2026."""
SHARES = {"1/16": 1 / 16, "1/32": 1 / 32, "0": 0.0}
NEWEST = 0.2
"""Share of a budget that is always shown of the newest messages, where a bound is asked for."""
TURNS = (0.025, 0.05, 0.1, 0.2, 0.3)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--log", type=Path, help="a chat file, or a folder of conversations with questions")
    parser.add_argument("--budgets", default="4000,8000,16000,32000")
    parser.add_argument("--styles", default=",".join(STYLES))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--every", type=int, default=20)
    parser.add_argument("--recall", type=int, help="tokens a recall may have; see above without")
    parser.add_argument("--no-compaction", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--model", action="store_true")
    parser.add_argument("--bound", action="store_true")
    parser.add_argument("--summaries", type=float, default=0.22)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.model:
        print(json.dumps(model(), indent=2) if options.json else priced())
        return
    if options.bound:
        print("\n".join(bounds(options)))
        return
    if options.quick:
        options.budgets, options.turns, options.every = "8000", 60, 30
    rows: list[dict[str, Any]] = []
    for name, log in logs(options):
        for budget in map(int, options.budgets.split(",")):
            row = asyncio.run(measured(name, log, budget, options))
            rows.append(row)
            if not options.json:
                if len(rows) == 1:
                    print(HEAD)
                print(line(row), flush=True)
    if options.json:
        print(json.dumps(rows, indent=2))
    elif rows:
        print(f"\nsmallest: grown {min(row['grown'] for row in rows):.3f}", end="")
        print(f", cached {min(row['ours']['cached'] for row in rows):.3f}")
        asked = [row for row in rows if row["questions"]]
        if asked:
            apart = mean(row["ours"]["evidence"] - row["sliding"]["evidence"] for row in asked)
            print(f"evidence, ours less sliding: {100 * apart:+.1f} points")


# ── logs ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def logs(options: argparse.Namespace) -> Iterator[tuple[str, Log]]:
    """Yield the logs to follow."""
    if options.log is None:
        for style in options.styles.split(","):
            yield style, agent_log(style, options.seed, turns=options.turns)
        return
    try:
        conversations = list(read_conversations(options.log))
    except ValidationError:
        said = [{key: one for key, one in turn.items() if key != "key"} for turn in read_chat(options.log)]
        yield options.log.name, cut(said, (), options.turns)
        return
    for conversation in conversations:
        said = [_message(one.role, one.text, one.speaker) for one in conversation.said]
        yield f"{conversation.dataset} {conversation.name}", cut(said, (conversation,), options.turns)


def _message(role: str, text: str, speaker: str | None) -> Message:
    return {"role": role, "content": text, **({"actor_id": speaker} if speaker else {})}


def cut(said: list[Message], asked: tuple[Conversation, ...], turns: int) -> Log:
    """Return messages as turns: each ends with what the assistant says; the first so many of them."""
    found: list[tuple[list[Message], list[Message]]] = []
    turn_of: list[int] = []
    incoming: list[Message] = []
    for message in said:
        turn_of.append(len(found))
        if message["role"] == "assistant" and incoming:
            found.append((incoming, [message]))
            incoming = []
        else:
            incoming.append(message)
    if incoming:
        found.append((incoming, []))
    probes = [
        Probe(question.text, turn_of[max(question.gold)], gold=question.gold)
        for conversation in asked
        for question in conversation.questions
        if question.gold and turn_of[max(question.gold)] < turns
    ]
    return Log(tuple(found[:turns]), tuple(probes))


# ── figures ─────────────────────────────────────────────────────────────────────────────────────────────────────────

HEAD = (
    f"{'log':<16} {'budget':>7} {'tokens':>8} {'comp.':>5} | {'grown':>5} {'kept':>5} {'cached':>6} {'a turn':>7} "
    f"{'evid.':>6} | {'sliding: kept':>13} {'cached':>6} {'evid.':>6} | {'top: kept':>9} {'cached':>6}"
)


async def measured(name: str, log: Log, budget: int, options: argparse.Namespace) -> dict[str, Any]:
    """Follow one log within one budget."""

    def progress(done: int) -> None:
        if sys.stderr.isatty():
            print(f"\r{name} {budget}: turn {done} of {len(log.turns)} ", end="", file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory() as folder:
        found = await follow(
            log,
            open_storage(f"sqlite:///{folder}/agent.db"),
            OpenAIChat("gpt-5"),
            budget=budget,
            recall=options.recall,
            every=options.every,
            policy=CompactionPolicy(budget=None if options.no_compaction else budget),
            progress=progress,
        )
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    return report(name, budget, found)


def report(name: str, budget: int, found: Followed) -> dict[str, Any]:
    """Return the figures of one log as plain data."""

    def layout(one: Layout) -> dict[str, float]:
        figures = {"kept": one.kept, "cached": one.cached, "tokens": mean(one.tokens)}
        return {**figures, "evidence": mean(one.evidence)} if one.evidence else figures

    return {
        "log": name,
        "budget": budget,
        "tokens": found.tokens,
        "turns": len(found.ours.tokens),
        "grown": found.grown / max(1, len(found.ours.shared)),
        "compactions": found.compactions,
        "questions": len(found.ours.evidence),
        "ours": layout(found.ours),
        "sliding": layout(found.sliding),
        "top": layout(found.top),
        "reasons": found.reasons,
    }


def line(row: dict[str, Any]) -> str:
    """Return the figures of one log as a line."""
    ours, sliding, top = row["ours"], row["sliding"], row["top"]

    def evidence(one: dict[str, float]) -> str:
        return f"{one['evidence']:6.3f}" if "evidence" in one else "     -"

    return (
        f"{row['log']:<16} {row['budget']:>7} {row['tokens']:>8} {row['compactions']:>5} | {row['grown']:5.3f} "
        f"{ours['kept']:5.3f} {ours['cached']:6.3f} {ours['tokens']:7.0f} {evidence(ours)} | {sliding['kept']:13.3f} "
        f"{sliding['cached']:6.3f} {evidence(sliding)} | {top['kept']:9.3f} {top['cached']:6.3f}"
    )


def bounds(options: argparse.Namespace) -> Iterator[str]:
    """Yield the bounds of each log as lines, for recalls of several shares of the budget."""
    codec = OpenAIChat("gpt-5")
    head = codec.cost(steps.build_message("system", SYSTEM))
    yield f"{'log':<16} {'budget':>7} {'a turn':>7} | " + " ".join(
        f"{f'recall {name}':>12}" for name in SHARES
    )
    for name, log in logs(options):
        costs: list[int] = []
        ends: list[int] = []
        for incoming, reply in log.turns:
            costs += [codec.cost(steps.parse_message_mapping(one, "message")) for one in incoming]
            ends.append(len(costs))
            costs += [codec.cost(steps.parse_message_mapping(one, "message")) for one in reply]
        for budget in map(int, options.budgets.split(",")):
            found = [
                bound(costs, ends, budget, head, int(share * budget), int(options.summaries * budget))
                for share in SHARES.values()
            ]
            turn = sum(costs) / len(ends) / budget
            yield f"{name:<16} {budget:>7} {turn:7.3f} | " + " ".join(f"{one:12.3f}" for one in found)


def bound(costs: list[int], ends: list[int], budget: int, head: int, recall: int, summaries: int) -> float:
    """Return the largest share of input tokens that prompts of a log can have in common with the ones before.

    `ends` are how many messages there are at each turn. The share is found by Dinkelbach's method: the starts for which
    `shared - share * shown` is most are found turn by turn, until that is nothing.
    """
    passed = [0, *accumulate(costs)]
    share = 0.5
    while True:
        # By the start of the last prompt: shared tokens less their price, shared tokens, shown tokens.
        best: dict[int, tuple[float, int, int]] = {}
        for turn, end in enumerate(ends):
            now: dict[int, tuple[float, int, int]] = {}
            before: tuple[float, int, int] | None = None
            waiting = sorted(best)
            for first in range(end):
                while waiting and waiting[0] < first:
                    one = best[waiting.pop(0)]
                    before = one if before is None else max(before, one)
                said = passed[end] - passed[first]
                beside = head + (summaries + recall if first else 0)
                newer = passed[end] - passed[first + 1]
                if said + beside > budget and first < end - 1:
                    continue
                if first and newer < NEWEST * budget and now:
                    break
                ways = [(0.0, 0, 0)] if not turn else []
                if before is not None:
                    ways.append((before[0] + head, before[1] + head, before[2]))
                if first in best:
                    old = best[first]
                    kept = beside - (recall if first else 0) + passed[ends[turn - 1]] - passed[first]
                    ways.append((old[0] + kept, old[1] + kept, old[2]))
                if ways:
                    most = max(ways)
                    shown = said + beside
                    now[first] = (most[0] - share * shown, most[1], most[2] + shown)
            best = now
        _, shared, shown = max(best.values())
        if shared / shown <= share + 1e-6:
            return share
        share = shared / shown


def model() -> list[dict[str, Any]]:
    """Return the best slack, and what the default costs beside it, by prices and by the size of a turn."""
    return [
        {
            "prices": name,
            "turn": turn,
            "best": best_slack(turn, 1, prices),
            "dearer": cost_per_turn(SLACK, turn, 1, prices)
            / cost_per_turn(best_slack(turn, 1, prices), turn, 1, prices)
            - 1,
        }
        for name, prices in PRICES.items()
        for turn in TURNS
    ]


def priced() -> str:
    """Return the cost model as a table."""
    rows = {(row["prices"], row["turn"]): row for row in model()}
    lines = [f"best slack (and how much dearer {SLACK} is), by tokens a turn as a share of the room", ""]
    lines.append(f"{'':<22}" + "".join(f"{turn:>14}" for turn in TURNS))
    for name in PRICES:
        cells = [f"{rows[name, turn]['best']:.2f} ({rows[name, turn]['dearer']:+.0%})" for turn in TURNS]
        lines.append(f"{name:<22}" + "".join(f"{cell:>14}" for cell in cells))
    return "\n".join(lines)


if __name__ == "__main__":
    main()
