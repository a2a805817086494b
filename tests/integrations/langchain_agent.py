"""The scripted agent on LangChain."""

from __future__ import annotations

import asyncio
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage, HumanMessage, convert_to_messages, convert_to_openai_messages
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool

from acms import ACMS, open_storage
from acms.integrations.langchain import ACMSChatMessageHistory, ACMSMiddleware
from tests.integrations import agent as script


class Model(BaseChatModel):
    """The scripted model; keeps what it was shown."""

    seen: list[list[BaseMessage]] = []  # noqa: RUF012  # pydantic copies it
    costs: list[int] = []  # noqa: RUF012
    interrupted: bool = False
    given: list[BaseMessage] = []  # noqa: RUF012
    """What it answers instead of what the script says, the first one first."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **options: Any) -> ChatResult:
        chat = convert_to_openai_messages(messages)
        self.costs.append(script.check(chat, interrupted=self.interrupted))
        self.seen.append(messages)
        answer = self.given.pop(0) if self.given else convert_to_messages([script.answer(chat)])[0]
        return ChatResult(generations=[ChatGeneration(message=answer)])


@tool
def disk(host: str) -> str:
    """Return how full the disk of a host is."""
    return script.disk(host)


class Agent:
    """A LangChain agent on a storage."""

    def __init__(self, url: str, *, namespace: str = "default", interrupted: bool = False, **options: Any):
        self.storage = open_storage(url)
        self.model = Model(interrupted=interrupted)
        self.memory = ACMSMiddleware(self.storage, budget=script.BUDGET, namespace=namespace, embedder=None)
        self.graph = create_agent(
            self.model, [disk], system_prompt="You look after disks.", middleware=[self.memory], **options
        )

    async def turn(self, text: str, id: str, thread: str = "t") -> BaseMessage:
        asked = {"messages": [HumanMessage(text, id=id)]}
        done = await self.graph.ainvoke(asked, {"configurable": {"thread_id": thread}})
        return done["messages"][-1]

    async def history(self, thread: str = "t") -> list[BaseMessage]:
        async with ACMS(thread, self.storage, namespace=self.memory._namespace) as session:
            return await ACMSChatMessageHistory(session).aget_messages()


def main(url: str, first: int, last: int) -> None:
    """Run turns, and tell of each: what is killed."""

    async def run() -> None:
        agent = Agent(url, interrupted=True)
        for turn in range(first, last):
            await agent.turn(script.said(turn), f"u{turn}")
            script.acknowledge(turn)

    asyncio.run(run())
