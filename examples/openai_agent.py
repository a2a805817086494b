"""An agent of the OpenAI Agents SDK with a session on a log, and a budget for each call. Runs offline.

`OfflineModel` stands where your model goes: it calls the tool when it is asked about a disk, and otherwise repeats what
it was shown about the question.

    python examples/openai_agent.py
"""

from __future__ import annotations

import sys
from typing import Any

from agents import Agent, Model, ModelResponse, RunConfig, Runner, Usage, function_tool, set_tracing_disabled
from agents.testing import assistant_message, function_call

from acms import open_storage
from acms.integrations.openai_agents import ACMSSession


class OfflineModel(Model):
    async def get_response(
        self, system_instructions: Any, input: Any, *args: Any, **options: Any
    ) -> ModelResponse:
        last, shown = input[-1], "\n".join(str(item.get("content", "")) for item in input[:-1])
        if last.get("type") == "function_call_output":
            output = assistant_message(f"The tool says: {last['output']}.")
        elif "disk" in last["content"]:
            output = function_call("disk", {"host": "db1"}, call_id=f"call_{len(input)}")
        elif last["content"].endswith("?"):
            known = shown.partition("Decision: ")[2].splitlines()
            output = assistant_message(f"We said: {known[0]}" if known else "I do not know.")
        else:
            output = assistant_message("Noted.")
        return ModelResponse(output=[output], usage=Usage(), response_id=None)

    def stream_response(self, *args: Any, **options: Any) -> Any:
        raise NotImplementedError("this model does not stream")


@function_tool
def disk(host: str) -> str:
    """Return how full the disk of a host is."""
    return f"{host}: 61 % of 800 GB used"


def main(url: str = "memory://") -> None:
    set_tracing_disabled(True)
    agent = Agent(name="orders", instructions="You help the orders team.", model=OfflineModel(), tools=[disk])
    storage = open_storage(url)

    def ask(name: str, text: str) -> str:
        session = ACMSSession(name, storage, namespace="user:ana")
        config = RunConfig(call_model_input_filter=session.within(500))
        return str(Runner.run_sync(agent, text, session=session, run_config=config).final_output)

    ask("monday", "Decision: the orders service runs on PostgreSQL 18.")
    print("monday:", ask("monday", "How full is the disk of the orders database?"))
    for number in range(20):
        ask("monday", f"Small talk number {number}: the weather is fine and the coffee is good.")
    print("friday:", ask("friday", "What does the orders service run on?"))


if __name__ == "__main__":
    main(*sys.argv[1:2])
