"""The bundled conversation of `acms demo`, told by an agent that renders prompts along the way."""

from __future__ import annotations

from importlib.resources import as_file, files
from typing import Any

from acms import ACMS, ACMSConfig, Prompt, ReflectionConfig, RenderLogConfig
from acms.branches.importers import read_chat
from acms.codecs import OpenAIChat
from acms.providers import OfflineReflector

CONFIG = ACMSConfig(renders=RenderLogConfig(enabled=True), reflection=ReflectionConfig(enabled=False))
KAFKA = "Decision: order events go to the warehouse and to billing through Kafka"


async def tell(url: str) -> None:
    """Tell it to a store: prompts at each question, a decision taken back, facts, a fork, a summary."""
    codec = OpenAIChat("gpt-5")
    with as_file(files("acms") / "data" / "demo.jsonl") as path:
        turns = list(read_chat(path))
    async with ACMS("demo", url, None, config=CONFIG, reflector=OfflineReflector()) as session:
        for number, turn in enumerate(turns, 1):
            given: dict[str, Any] = {
                ("idempotency_key" if key == "key" else key): one for key, one in turn.items()
            }
            await session.ingest(**given)
            if number > 4 and turn["role"] == "user" and "?" in str(turn["content"]):
                prompt = Prompt(codec).system("You are the orders team's assistant.").history(session)
                await prompt.recall(session, turn["content"]).render(budget=2000)
                await session.renders(limit=1)  # in order: one after the other
        await session.messages("what did we decide about Kafka?", budget=500)
        await session.tag("before-retraction")
        entries = (await session.history(limit=500)).entries
        old = next(one for one in entries if one.preview.startswith(KAFKA))
        await session.cite(f"As decided in [{old.id}], events go to Kafka.")
        await session.retract(old.id, reason="replaced by the outbox")
        await session.wait(await session.reflect())
        fork = await session.fork(at=53, session_id="what-if-kafka")
        await fork.ingest("user", "Let us keep Kafka, the platform team pays for it.")
        await session.wait(await session.compact())
