"""The bound of a request's tokens, without reports or a counting server, beside the count of a model's own server.

    python -m benchmarks.bound --data FOLDER --server qwen2.5=http://127.0.0.1:8080 --server smollm2=http://127.0.0.1:8081

Conversations of seven kinds of text are rendered at seven budgets with 0 to 10 tools. Each server (llama.cpp) writes
the requests by its chat template and counts them by its vocabulary, in half a minute. A template without tools drops
them: requests with tools say nothing about the bound of such a model. FOLDER has `locomo-dev/conv-26.json` and
`memsim-dev/01_simple_events.json`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from acms import ACMS, Prompt, open_storage
from acms.codecs import OpenAIChat, Tool
from acms.errors import ACMSError

BUDGETS = (150, 200, 300, 500, 800, 1_500, 3_000)
TOOLS = (0, 1, 3, 10)
MESSAGES = 120


@dataclass(frozen=True, kw_only=True)
class Count:
    """The tokens of one request: its budget, the bound, and the server's count."""

    budget: int
    bound: int
    counted: int


def read_turns(path: Path) -> list[str]:
    """Return the texts of a conversation in the format of LoCoMo."""
    read = json.loads(path.read_text("utf-8"))
    conversation = (read[0] if isinstance(read, list) else read)["conversation"]
    sessions = [name for name in conversation if re.fullmatch(r"session_\d+", name)]
    return [turn["text"] for name in sessions for turn in conversation[name]]


def make_log_line(chance: random.Random) -> str:
    """Return a line of a log in JSON, with numbers and a hash."""
    minute = f"2026-11-{chance.randint(1, 28):02d}T0{chance.randint(0, 9)}:15"
    fields = {
        "id": chance.getrandbits(64),
        "ts": f"{minute}:2{chance.randint(0, 9)}.{chance.randint(100, 999)}Z",
        "level": "ERROR",
        "host": f"orders-db-{chance.randint(1, 9)}",
        "mem": chance.random(),
        "hash": f"{chance.getrandbits(128):032x}",
    }
    return json.dumps(fields)


def collect_texts(data: Path) -> dict[str, list[str]]:
    """Return the messages of each kind of text."""
    chance = random.Random(3)
    source = Path(__file__).parents[1] / "src" / "acms" / "recall" / "ranking.py"
    german = (
        "Die Bundesversicherungsanstalt hat die Krankenversicherungsbeitragserhöhung für das nächste "
        "Geschäftsjahr angekündigt.",
        "Können wir den Liefertermin auf übermorgen verschieben? Der Straßenverkehr ist fürchterlich.",
    )
    japanese = (
        "締め切りは三月二十日に変更されました。注文サービスはPostgreSQLで動いています。",
        "来週の金曜日に東京で打ち合わせがあります。資料を忘れないでください。",
    )
    emoji = ("🎉🎉 shipped!! 👩‍👩‍👧‍👦 thanks 🙏🏽 see you 🏖️🍹", "ok 👍🏿 ✅✅✅ → next: 🧪 tests")
    return {
        "english": read_turns(data / "locomo-dev" / "conv-26.json"),
        "chinese": read_turns(data / "memsim-dev" / "01_simple_events.json"),
        "japanese": [*japanese] * (MESSAGES // 2),
        "german": [*german] * (MESSAGES // 2),
        "code": [part for part in source.read_text("utf-8").split("\n\n") if part.strip()],
        "json": [make_log_line(chance) for _ in range(MESSAGES)],
        "emoji": [*emoji] * (MESSAGES // 2),
    }


def make_tool(number: int) -> Tool:
    """Return a tool with a description and two parameters."""
    properties = {
        "host": {"type": "string", "description": "host name"},
        "limit": {"type": "integer", "description": "at most so many rows"},
    }
    return Tool(
        name=f"tool_{number}",
        description=f"Look up number {number} in the register of the town hall and return its state",
        parameters={"type": "object", "properties": properties, "required": ["host"]},
    )


async def count_on_server(client: httpx2.AsyncClient, payload: dict[str, Any]) -> int:
    """Return the tokens of a request as its server writes and counts it."""
    shown = {name: payload[name] for name in ("messages", "tools") if name in payload}
    written = (await client.post("/apply-template", json=shown)).raise_for_status().json()["prompt"]
    body = {"content": written, "add_special": True, "parse_special": True}
    return len((await client.post("/tokenize", json=body)).raise_for_status().json()["tokens"])


async def measure_kind(
    client: httpx2.AsyncClient, model: str, texts: Sequence[str], tools: int
) -> list[Count]:
    """Render one kind of text at each budget; a budget that is too small for the fixed parts is left out."""
    counts: list[Count] = []
    async with ACMS("bound", open_storage("memory://"), None) as session:
        for number, text in enumerate(texts[:MESSAGES]):
            await session.ingest("assistant" if number % 2 else "user", text)
        prompt = Prompt(OpenAIChat(model)).system("You help the team. Be brief.")
        if tools:
            prompt = prompt.tools([make_tool(number) for number in range(tools)])
        for budget in BUDGETS:
            try:
                rendered = await prompt.history(session).user("What next?").render(budget=budget)
            except ACMSError:
                continue
            counted = await count_on_server(client, rendered.payload)
            counts.append(Count(budget=budget, bound=rendered.tokens.upper_bound, counted=counted))
    return counts


def show(model: str, kind: str, counts: Sequence[Count]) -> None:
    """Print how the bound compares with the counts."""
    ratios = [one.bound / one.counted for one in counts]
    figures = {
        "renders": len(counts),
        "over_bound": sum(one.counted > one.bound for one in counts),
        "over_budget": sum(one.counted > one.budget for one in counts),
        "median": round(statistics.median(ratios), 2),
        "least": round(min(ratios), 2),
        "most": round(max(ratios), 2),
    }
    print(json.dumps({"model": model, "text": kind, **figures}), flush=True)


async def measure_server(model: str, url: str, texts: dict[str, list[str]]) -> dict[str, list[Count]]:
    """Measure each kind of text on one server, print the figures, and return the counts without tools and with them."""
    counts: dict[str, list[Count]] = {"english": [], "other texts": [], "with tools": []}
    async with httpx2.AsyncClient(base_url=url, timeout=300) as client:
        for kind, messages in texts.items():
            plain = await measure_kind(client, model, messages, 0)
            show(model, kind, plain)
            counts["english" if kind == "english" else "other texts"] += plain
            for tools in TOOLS[1:]:
                counts["with tools"] += await measure_kind(client, model, messages, tools)
    show(model, "with tools", counts["with tools"])
    return counts


async def main() -> None:
    """Measure each server and print the figures, then those of all servers together."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--server", action="append", required=True, metavar="MODEL=URL")
    parser.add_argument("--data", type=Path, required=True)
    options = parser.parse_args()
    texts = collect_texts(options.data)
    together: dict[str, list[Count]] = {}
    for server in options.server:
        model, _, url = server.partition("=")
        for kind, counts in (await measure_server(model, url, texts)).items():
            together.setdefault(kind, []).extend(counts)
    for kind, counts in together.items():
        show("all", kind, counts)


if __name__ == "__main__":
    asyncio.run(main())
