"""An agent loop on ACMS: every message is ingested, `messages()` builds each prompt. Runs offline.

`fake_model` stands where your provider's client goes: it gets chat messages and returns one. It calls a tool when it
is asked about a disk, and otherwise repeats what it was shown about the question.

    python examples/agent_loop.py
"""

from __future__ import annotations

import asyncio
import json
import sys
from itertools import count
from typing import Any

from acms import ACMS, open_storage

BUDGET = 300
"""Tokens a prompt may have: small on purpose, so that the past has to be recalled."""

_ids = count(1)


def disk(host: str) -> str:
    return f"{host}: 61 % of 800 GB used"


TOOLS = {"disk": disk}


def fake_model(messages: list[dict[str, Any]]) -> dict[str, Any]:
    last = messages[-1]
    if last["role"] == "tool":
        return {"role": "assistant", "content": f"The tool says: {last['content']}."}
    if last["role"] == "user" and "disk" in last["content"]:
        call = {
            "id": f"call_{next(_ids)}",
            "type": "function",
            "function": {"name": "disk", "arguments": json.dumps({"host": "orders-db-1"})},
        }
        return {"role": "assistant", "content": None, "tool_calls": [call]}
    if last["role"] == "user" and "our decision" in last["content"]:
        for line in (line for message in messages[:-1] for line in str(message["content"]).splitlines()):
            if "Decision: " in line:
                return {"role": "assistant", "content": f"We said: {line.partition('Decision: ')[2]}"}
    return {"role": "assistant", "content": "Noted."}


async def turn(session: ACMS, said: str) -> str:
    """Answer one message of the user; tools run until the model has nothing more to ask."""
    await session.ingest("user", said)
    while True:
        prompt = await session.messages(said, budget=BUDGET)
        answer = fake_model(prompt)
        calls = answer.get("tool_calls") or []
        await session.ingest("assistant", answer["content"] or "", tool_calls=calls)
        if not calls:
            return str(answer["content"])
        for call in calls:
            run = TOOLS[call["function"]["name"]]
            result = run(**json.loads(call["function"]["arguments"]))
            await session.ingest("tool", result, tool_call_id=call["id"])


async def main(url: str = "memory://") -> None:
    async with ACMS("agent", open_storage(url)) as session:
        await session.ingest("system", "You help the orders team. Be brief.")
        for said in (
            "Decision: the orders service runs on PostgreSQL 18.",
            "How full is the disk of the orders database?",
            *(
                f"Small talk number {number}: the weather is fine and the coffee is good."
                for number in range(20)
            ),
            "What was our decision about the orders service?",
        ):
            answer = await turn(session, said)
            if not said.startswith("Small talk"):
                print(f"user: {said}\nassistant: {answer}\n")
        stats = await session.get_session_stats()
        print(
            f"{stats.messages} messages, {stats.tokens} tokens in the log; no prompt had more than {BUDGET}"
        )


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:2]))
