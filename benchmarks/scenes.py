"""Facts that a real model finds in twenty short conversations: values stored, and values that nobody said.

    python -m benchmarks.scenes --url http://127.0.0.1:8080/v1 --model NAME      # 20 minutes with 1.5B on two cores

`scenes.jsonl` has the turns of each conversation, the values that were planted in it and those that must not be stored.
Counted are planted values in an active fact, facts without a word in a field, values that stand in the prompt of the
reflector and in no turn, and values of which a number, or more than half of the words, stands in no turn.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from acms import ACMS, ACMSConfig, Fact, open_storage
from acms.observability import Reflected
from acms.observability.events import Event
from acms.providers import HTTPReflector
from acms.providers.reflector import load_reflection_template

SCENES = Path(__file__).with_name("scenes.jsonl")
SECONDS = 600.0
"""How long one answer of the model may take."""


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A conversation, the values that it plants, and those that must not become facts."""

    turns: list[dict[str, str]]
    values: list[str]
    forbidden: list[str]


@dataclass(kw_only=True)
class Tally:
    """What was counted so far."""

    planted: int = 0
    stored: int = 0
    forbidden: int = 0
    placeholders: int = 0
    from_prompt: int = 0
    ungrounded: int = 0
    facts: int = 0
    outcomes: Counter[str] = field(default_factory=Counter[str])


def split_into_words(text: str) -> list[str]:
    """Return the words of a text in lower case; what is written without spaces is one word."""
    return re.findall(r"[^\W_]+", text.casefold())


def is_grounded(value: str, said: str) -> bool:
    """Return whether every number and at least half of the words of a value occur in a text: 40000 is 40,000."""
    said = re.sub(r"(?<=\d),(?=\d{3})", "", said) + " " + said
    words = split_into_words(value)
    occurring = [word for word in words if word in said]
    numbers_occur = all(word in said for word in words if any(map(str.isdigit, word)))
    return numbers_occur and 2 * len(occurring) >= len(words)


async def reflect_on(scene: Scene, reflector: HTTPReflector) -> tuple[list[Fact], Reflected]:
    """Ingest a conversation, have it reflected on, and return the active facts and the trace."""
    heard: list[Event] = []
    config = ACMSConfig(on_event=heard.append)
    storage = open_storage("memory://")
    async with ACMS("scene", storage, None, reflector=reflector, config=config, namespace="scene") as session:
        for turn in scene.turns:
            await session.ingest(turn["role"], turn["content"])
        await session.close_episode()
        await session.wait_pending()
        facts = [*await session.facts(), *await session.facts(scope="namespace")]
    (trace,) = [event for event in heard if isinstance(event, Reflected)]
    return list({fact.id: fact for fact in facts}.values()), trace


def count_scene(tally: Tally, scene: Scene, facts: list[Fact], trace: Reflected) -> list[str]:
    """Add one conversation to the tally and return the planted values that were missed."""
    said = " ".join(turn["content"] for turn in scene.turns).casefold()
    prompt = load_reflection_template().casefold()
    written = "\n".join(f"{fact.content} {fact.value}" for fact in facts)
    missed = [value for value in scene.values if value not in written]
    tally.planted += len(scene.values)
    tally.stored += len(scene.values) - len(missed)
    tally.forbidden += sum(value in written for value in scene.forbidden)
    tally.facts += len(facts)
    tally.outcomes.update(decision.outcome for decision in trace.decisions)
    for fact in facts:
        fields = [text for text in (fact.content, fact.subject, fact.attribute, fact.value) if text]
        tally.placeholders += not all(map(split_into_words, fields))
        grounded = is_grounded(fact.value or fact.content, said)
        tally.ungrounded += not grounded
        tally.from_prompt += bool(fact.value) and fact.value.casefold() in prompt and not grounded
    return missed


async def main() -> None:
    """Reflect on each conversation and print its facts, then the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", required=True, help="a server that speaks /chat/completions")
    parser.add_argument("--model", required=True)
    parser.add_argument("--limit", type=int, default=None, help="how many conversations")
    options = parser.parse_args()
    scenes = [Scene(**json.loads(line)) for line in SCENES.read_text("utf-8").splitlines()]
    tally = Tally()
    async with HTTPReflector(options.url, options.model, timeout=SECONDS) as reflector:
        for number, scene in enumerate(scenes[: options.limit]):
            began = time.perf_counter()
            facts, trace = await reflect_on(scene, reflector)
            missed = count_scene(tally, scene, facts, trace)
            stored = [{"content": fact.content, "value": fact.value} for fact in facts]
            refused = [(one.outcome, one.proposal.content) for one in trace.decisions if not one.fact_id]
            say(scene=number, seconds=round(time.perf_counter() - began, 1), missed=missed, facts=stored,
                refused=refused, unreadable=trace.unreadable)  # fmt: skip
    say(planted=tally.planted, stored=tally.stored, facts=tally.facts, placeholders=tally.placeholders,
        from_prompt=tally.from_prompt, ungrounded=tally.ungrounded, forbidden=tally.forbidden,
        outcomes=dict(tally.outcomes))  # fmt: skip


def say(**figures: Any) -> None:
    """Print figures as one line of JSON."""
    print(json.dumps(figures, ensure_ascii=False), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
