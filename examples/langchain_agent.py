"""A LangChain agent whose memory is a log: two sessions of a user, a tool, a budget. Runs offline.

`Model` stands where your chat model goes: it calls the tool when it is asked about a disk, and otherwise repeats what
it was shown about the question.

    python examples/langchain_agent.py
"""

from __future__ import annotations

import sys
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool

from acms import open_storage
from acms.integrations.langchain import ACMSMiddleware


class Model(BaseChatModel):
    @property
    def _llm_type(self) -> str:
        return "offline"

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **options: Any) -> ChatResult:
        last = messages[-1]
        answer = AIMessage("Noted.")
        if last.type == "tool":
            answer = AIMessage(f"The tool says: {last.text}.")
        elif "disk" in last.text:
            call = {
                "id": f"call_{len(messages)}",
                "name": "disk",
                "args": {"host": "db1"},
                "type": "tool_call",
            }
            answer = AIMessage("", tool_calls=[call])
        elif last.text.endswith("?"):
            known = [
                line for message in messages[:-1] for line in message.text.splitlines() if "Decision" in line
            ]
            answer = AIMessage(
                f"We said: {known[0].partition('Decision: ')[2]}" if known else "I do not know."
            )
        return ChatResult(generations=[ChatGeneration(message=answer)])


@tool
def disk(host: str) -> str:
    """Return how full the disk of a host is."""
    return f"{host}: 61 % of 800 GB used"


def main(url: str = "memory://") -> None:
    memory = ACMSMiddleware(open_storage(url), budget=500, namespace=lambda run: run["configurable"]["user"])
    agent = create_agent(Model(), [disk], system_prompt="You help the orders team.", middleware=[memory])

    def ask(thread: str, text: str, user: str = "user:ana") -> str:
        run = {"configurable": {"thread_id": thread, "user": user}}
        return agent.invoke({"messages": [("user", text)]}, run)["messages"][-1].text

    ask("monday", "Decision: the orders service runs on PostgreSQL 18.")
    print("monday:", ask("monday", "How full is the disk of the orders database?"))
    for number in range(20):
        ask("monday", f"Small talk number {number}: the weather is fine and the coffee is good.")
    print("friday:", ask("friday", "What does the orders service run on?"))
    print("somebody else:", ask("friday", "What does the orders service run on?", "user:ben"))
    memory.close()


if __name__ == "__main__":
    main(*sys.argv[1:2])
