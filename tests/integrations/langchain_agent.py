"""The scripted agent on LangChain."""

from __future__ import annotations

from copy import deepcopy
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
    """The scripted model; keeps its prompts."""

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
        self.costs.append(script.assert_valid_request(chat, interrupted=self.interrupted))
        self.seen.append(messages[1:])
        answer = self.given.pop(0) if self.given else convert_to_messages([script.answer(chat)])[0]
        return ChatResult(generations=[ChatGeneration(message=answer)])


@tool
def disk(host: str) -> str:
    """Return how full the disk of a host is."""
    return script.disk(host)


class Driver(script.Driver):
    def __init__(self, *where: Any, **how: Any) -> None:
        options = how.pop("options", {})
        super().__init__(*where, **how)
        self.storage = open_storage(self.url)
        self.model = Model(interrupted=self.interrupted)
        self.seen = self.model.seen
        self.middleware = ACMSMiddleware(
            self.storage, budget=script.BUDGET, namespace=self.namespace, embedder=None
        )
        prompt = script.INSTRUCTIONS
        self.graph = create_agent(
            self.model, [disk], system_prompt=prompt, middleware=[self.middleware], **options
        )
        self.session = ACMS(self.name, self.storage, namespace=self.namespace)

    @property
    def memory(self) -> ACMS:
        return self.session

    async def turn(self, text: str, id: str | None = None) -> str:
        return (await self.answer(text, id, self.name)).text

    async def answer(self, text: str, id: str | None, thread: str) -> BaseMessage:
        """Run a turn in a thread."""
        asked = {"messages": [HumanMessage(text, id=id)]}
        done = await self.graph.ainvoke(asked, {"configurable": {"thread_id": thread}})
        self.made += deepcopy(done["messages"])
        return done["messages"][-1]

    async def kept(self) -> list[BaseMessage]:
        return await ACMSChatMessageHistory(self.session).aget_messages()

    async def aclose(self) -> None:
        await self.session.close()
        await self.middleware.aclose()
