"""The scripted agent on the OpenAI Agents SDK."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from agents import Agent, Model, ModelResponse, RunConfig, Runner, Usage, function_tool, set_tracing_disabled
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseReasoningItem,
)

from acms import ACMS, open_storage
from acms.codecs import OpenAIResponses
from acms.integrations.openai_agents import ACMSSession
from tests.integrations import agent as script

set_tracing_disabled(True)


def items_as_chat(items: Sequence[Any]) -> list[dict[str, Any]]:
    """Return items of Responses as chat messages."""
    found: list[dict[str, Any]] = []
    for item in items:
        kind = item.get("type", "message")
        if kind == "function_call":
            function = {"name": item["name"], "arguments": item["arguments"]}
            call = {"id": item["call_id"], "type": "function", "function": function}
            if not found or not found[-1].get("tool_calls"):
                found.append({"role": "assistant", "content": "", "tool_calls": []})
            found[-1]["tool_calls"].append(call)
        elif kind == "function_call_output":
            found.append({"role": "tool", "tool_call_id": item["call_id"], "content": item["output"]})
        elif kind == "message":
            found.append({"role": item["role"], "content": item["content"]})
    return found


def _plain_item(item: Any) -> dict[str, Any]:
    """Return an item of Responses without its uncounted fields."""
    plain = {name: value for name, value in item.items() if name not in ("id", "status")}
    if plain.get("type", "message") == "message":
        return {"type": "message", "role": plain["role"], "content": script.text_of(plain)}
    return item if plain["type"] == "reasoning" else plain


class Scripted(Model):
    """The scripted model; it thinks before it calls a tool, and keeps its prompts."""

    def __init__(self, *, interrupted: bool = False) -> None:
        self.seen: list[list[Any]] = []
        self.costs: list[int] = []
        self._interrupted = interrupted

    async def get_response(self, system_instructions: Any, input: Any, *args: Any, **options: Any) -> Any:
        shown = items_as_chat(input)
        script.assert_valid_request(shown, budget=1_000_000, interrupted=self._interrupted)
        system = {"type": "message", "role": "system", "content": system_instructions}
        payload = {"input": [system, *map(_plain_item, input)], "tools": [TOOL]}
        self.costs.append(CODEC.count(payload).upper_bound)
        assert self.costs[-1] <= script.BUDGET
        self.seen.append(list(input))
        said = script.answer(shown)
        number = uuid4().hex
        output: list[Any] = []
        for call in said.get("tool_calls", ()):
            output.append(ResponseReasoningItem(id=f"rs_{number}", type="reasoning", summary=[]))
            named = {"type": "function_call", "id": f"fc_{number}", "call_id": call["id"]}
            output.append(ResponseFunctionToolCall(**named, **call["function"]))
        if not output:
            text = ResponseOutputText(type="output_text", text=said["content"], annotations=[])
            about = {"id": f"msg_{number}", "type": "message", "role": "assistant", "status": "completed"}
            output.append(ResponseOutputMessage(**about, content=[text]))
        return ModelResponse(output=output, usage=Usage(), response_id=None)

    def stream_response(self, *args: Any, **options: Any) -> Any:
        raise NotImplementedError("the scripted model does not stream")


@function_tool
def disk(host: str) -> str:
    """Return how full the disk of a host is."""
    return script.disk(host)


CODEC = OpenAIResponses("gpt-5")
TOOL = {
    "type": "function",
    "name": disk.name,
    "description": disk.description,
    "parameters": disk.params_json_schema,
    "strict": False,
}


class Driver(script.Driver):
    def __init__(self, *where: Any, **how: Any) -> None:
        super().__init__(*where, **how)
        self.model = Scripted(interrupted=self.interrupted)
        self.seen = self.model.seen
        self.agent = Agent(name="disks", instructions=script.INSTRUCTIONS, model=self.model, tools=[disk])
        storage = open_storage(self.url)
        self.session = ACMSSession(self.name, storage, embedder=None, namespace=self.namespace)
        self.config = RunConfig(call_model_input_filter=self.session.within(script.BUDGET))

    @property
    def memory(self) -> ACMS:
        return self.session.memory

    async def turn(self, text: str, id: str | None = None) -> str:
        done = await Runner.run(self.agent, text, session=self.session, run_config=self.config)
        return str(done.final_output)

    async def kept(self) -> list[Any]:
        return await self.session.get_items()

    async def check_ids(self) -> None:
        known = {item["id"]: item for item in await self.kept() if "id" in item}
        for items in self.seen:
            for before, item in zip([{}, *items], items, strict=False):
                if "id" in item:
                    assert item == known[item["id"]]
                if str(item.get("id")).startswith("fc_"):
                    assert before["id"] == item["id"].replace("fc_", "rs_"), "a call without its reasoning"
        called = [items for items in self.seen if items[-1].get("type") == "function_call_output"]
        assert all(items[-3]["type"] == "reasoning" for items in called)

    async def aclose(self) -> None:
        await self.session.close()
