"""A LlamaIndex agent that forgets nothing, within 1,000 tokens of history. No key, no network: its model is here."""

import asyncio

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.llms.mock import MockFunctionCallingLLM

from acms import ACMS
from acms.integrations.llama_index import ACMSFunctionAgent, ACMSMemory


def model(messages, **kwargs):
    """Stand in for a model: say whether the code was in what it was shown."""
    shown = "\n".join(message.content or "" for message in messages)
    text = "It is 4711." if "is 4711" in shown else f"Noted ({len(messages)} messages)."
    return ChatMessage(role="assistant", content=text)


async def main() -> None:
    async with ACMS("chat", "memory://", namespace="user:1") as session:
        memory = ACMSMemory(session=session, budget=1_000)
        llm = MockFunctionCallingLLM(response_generator=model, is_chat_model=True)
        agent = ACMSFunctionAgent(llm=llm, streaming=False)
        await agent.run("The code of the vault is 4711.", memory=memory)
        for number in range(60):
            text = f"Please note that invoice {number} over {number * 3} euros was paid today, thank you."
            await agent.run(text, memory=memory)
        result = await agent.run("What is the code of the vault?", memory=memory)
        stats = await session.get_session_stats()
        print(f"{stats.messages} messages kept; {result.response.content}")


asyncio.run(main())
