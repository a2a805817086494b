"""A Pydantic AI agent that forgets nothing, within 1,000 tokens a request. No key, no network: its model is here."""

import asyncio

from pydantic_ai import Agent, ModelResponse, TextPart
from pydantic_ai.models.function import FunctionModel

from acms import ACMS
from acms.integrations.pydantic_ai import ACMSHistory


def model(messages, info):
    """Stand in for a model: say whether the code was in what it was shown."""
    shown = str(messages)
    return ModelResponse(
        [TextPart("It is 4711." if "is 4711" in shown else f"Noted ({len(messages)} messages).")]
    )


async def main() -> None:
    async with ACMS("chat", "memory://", namespace="user:1") as session:
        agent = Agent(FunctionModel(model), capabilities=[ACMSHistory(session, budget=1_000)])
        await agent.run("The code of the vault is 4711.")
        for number in range(60):
            await agent.run(
                f"Please note that invoice {number} over {number * 3} euros was paid today, thank you."
            )
        result = await agent.run("What is the code of the vault?")
        stats = await session.get_session_stats()
        print(f"{stats.messages} messages kept; {result.output}")


asyncio.run(main())
