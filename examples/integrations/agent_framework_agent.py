"""An agent of Microsoft's framework that forgets nothing, within 1,000 tokens a request. No key, no network."""

import asyncio

from agent_framework import Agent, AgentSession, BaseChatClient, ChatMiddlewareLayer, ChatResponse, Message

from acms import open_storage
from acms.integrations.agent_framework import ACMSHistoryProvider


class Model(ChatMiddlewareLayer, BaseChatClient):
    """Stand in for a model: say whether the code was in what it was shown."""

    async def _inner_get_response(self, *, messages, stream, options, **kwargs):
        shown = "\n".join(message.text for message in messages)
        text = "It is 4711." if "is 4711" in shown else f"Noted ({len(messages)} messages)."
        return ChatResponse(messages=[Message("assistant", [text])])


async def main() -> None:
    async with open_storage("memory://") as storage:
        history = ACMSHistoryProvider(storage, budget=1_000, namespace="user:1")
        agent = Agent(Model(), context_providers=[history])
        session = AgentSession(session_id="chat")
        await agent.run("The code of the vault is 4711.", session=session)
        for number in range(60):
            text = f"Please note that invoice {number} over {number * 3} euros was paid today, thank you."
            await agent.run(text, session=session)
        result = await agent.run("What is the code of the vault?", session=session)
        print(f"{len(await history.get_messages('chat'))} messages kept; {result.text}")
        await history.aclose()


asyncio.run(main())
