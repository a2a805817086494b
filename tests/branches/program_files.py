"""Files as other programs write them, each with the same conversation, and what an import of it finds.

The fields are those that the programs write; `docs/how-to/import.md` says where each format is documented.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

from langchain_core.messages import convert_to_messages
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.sqlite import SqliteSaver

QUESTIONS = (
    ("Which database does the orders service use?", "PostgreSQL 18"),
    ("When do we deploy?", "Tuesday"),
    ("Who owns invoices?", "Ines"),
)
ASK = "Which database does the orders service use?"
LOOK = "I look it up."
OUTPUT = "orders: PostgreSQL 18 on db1"
OTHER_OUTPUT = "no incident is open"
ANSWER = "The orders service uses PostgreSQL 18."
DEPLOY = "Deploy only on Tuesday at 07:00."
NOTED = "Noted."
OWNER = "Ines owns the invoices service."
ARGUMENTS = {"service": "orders"}
START = datetime(2026, 2, 1, 10, tzinfo=UTC)

WITH_TOOLS = [
    ("user", ASK),
    ("assistant", LOOK),
    ("tool", OUTPUT),
    ("tool", OTHER_OUTPUT),
    ("assistant", ANSWER),
    ("user", DEPLOY),
    ("assistant", NOTED),
    ("user", OWNER),
]
SPOKEN = [one for one in WITH_TOOLS if one[0] != "tool" and one[1] != LOOK]


def at(number: int) -> str:
    """Return the time of a message as most programs write it."""
    return (START + timedelta(minutes=number)).isoformat().replace("+00:00", "Z")


def seconds_of_message(number: int) -> float:
    """Return the time of a message in seconds since 1970."""
    return (START + timedelta(minutes=number)).timestamp()


@dataclass(frozen=True)
class File:
    """A file, and what an import of it finds."""

    name: str
    format: str
    text: str
    #: (role, text) of each message of the first conversation; a result of a tool has its output.
    messages: list[tuple[str, str]] = field(default_factory=lambda: WITH_TOOLS)
    #: Whether the program writes times, model names and token usage.
    times: bool = True
    models: bool = True
    usage: bool = True
    #: Ids of the conversations.
    ids: list[str] | None = None
    skipped: dict[str, int] = field(default_factory=dict[str, int])


def lines(*values: Any) -> str:
    """Return values as JSON, one a line."""
    return "".join(json.dumps(value) + "\n" for value in values)


# ── coding agents ───────────────────────────────────────────────────────────────────────────────────────────────────

USAGE = {"input_tokens": 100, "output_tokens": 7}


def _claude_code() -> File:
    made: list[Any] = [{"type": "summary", "summary": "Orders", "leafUuid": "u9"}]

    def line(kind: str, number: int, content: Any, **more: Any) -> None:
        message = {"role": kind, "content": content}
        id = more.pop("id", None)
        if kind == "assistant":
            message |= {"id": id, "type": "message", "model": "claude-opus-4-5", "usage": USAGE}
        made.append(
            {"parentUuid": made[-1].get("uuid"), "isSidechain": False, "userType": "external", "cwd": "/src",
             "sessionId": "s1", "version": "2.0.14", "gitBranch": "main", "type": kind, "message": message,
             "uuid": f"u{len(made)}", "timestamp": at(number), **more}
        )  # fmt: skip

    line("user", 0, "Caveat: local commands follow.", isMeta=True)
    line("user", 0, ASK)
    line("assistant", 1, [{"type": "text", "text": LOOK}], id="msg_1")
    line("assistant", 1, [_tool_use_block("toolu_1", "lookup")], id="msg_1")
    line("user", 2, [_tool_result_block("toolu_1", OUTPUT)], toolUseResult={"stdout": OUTPUT})
    line("assistant", 1, [_tool_use_block("toolu_2", "incidents")], id="msg_1")
    line("user", 3, [_tool_result_block("toolu_2", OTHER_OUTPUT)])
    line("user", 3, "Warmup", isSidechain=True, agentId="a1")
    line("assistant", 3, [{"type": "text", "text": "Ready."}], id="msg_s", isSidechain=True, agentId="a1")
    line("assistant", 4, [{"type": "text", "text": ANSWER}], id="msg_2")
    line("user", 5, [{"type": "text", "text": DEPLOY}])
    line("assistant", 6, [{"type": "text", "text": NOTED}], id="msg_3")
    line("user", 7, OWNER)
    made.append(
        {"type": "file-history-snapshot", "messageId": "m", "snapshot": {}, "isSnapshotUpdate": False}
    )
    skipped = {"lines of the type summary": 1, "lines of the type file-history-snapshot": 1, "meta lines": 1}
    return File("0205f437.jsonl", "claude-code", lines(*made), ids=["s1", "s1-agent-a1"], skipped=skipped)


def _tool_use_block(id: str, name: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": name, "input": ARGUMENTS}


def _tool_result_block(id: str, text: str) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id, "content": [{"type": "text", "text": text}]}


def rewound(*, rewinds: bool) -> str:
    """Return a session of Claude Code with parallel calls, before or after the user went back to its second prompt."""
    made: list[Any] = []

    def line(kind: str, uuid: str, parent: str | None, content: Any, answer: str | None = None) -> None:
        message = {"role": kind, "content": content, "id": answer or uuid}
        made.append({"parentUuid": parent, "isSidechain": False, "sessionId": "s2", "type": kind, "message": message,
                     "uuid": uuid, "timestamp": at(len(made))})  # fmt: skip

    line("user", "p1", None, ASK)
    line("assistant", "a1", "p1", [_tool_use_block("toolu_1", "lookup")], answer="msg_1")
    line("assistant", "a2", "a1", [_tool_use_block("toolu_2", "incidents")], answer="msg_1")
    line("user", "r1", "a1", [_tool_result_block("toolu_1", OUTPUT)])
    line("user", "r2", "a2", [_tool_result_block("toolu_2", OTHER_OUTPUT)])
    line("assistant", "a3", "r2", [{"type": "text", "text": ANSWER}])
    made.append({"type": "system", "uuid": "s1", "parentUuid": "a3", "sessionId": "s2", "isSidechain": False})
    line("user", "p2", "s1", "Deploy now.")
    line("assistant", "a4", "p2", [{"type": "text", "text": "Deployed."}])
    line("user", "p3", "a4", "Roll it back.")
    line("assistant", "a5", "p3", [{"type": "text", "text": "Rolled back."}])
    if rewinds:
        line("user", "p4", "a4", "Is it up?")
        line("user", "p5", "s1", DEPLOY)
        line("assistant", "a6", "p5", [{"type": "text", "text": NOTED}])
        line("user", "p6", "a6", OWNER)
    return lines(*made)


def _codex_file() -> File:
    made: list[Any] = []

    def line(kind: str, number: int, **payload: Any) -> None:
        made.append({"timestamp": at(number), "type": kind, "payload": payload})

    def say(role: str, number: int, text: str) -> None:
        part = {"type": "output_text" if role == "assistant" else "input_text", "text": text}
        line("response_item", number, type="message", role=role, content=[part])

    usage = {"input_tokens": 90, "output_tokens": 5, "total_tokens": 95}
    line(
        "session_meta",
        0,
        id="019a-1",
        timestamp=at(0),
        cwd="/src",
        originator="codex_cli_rs",
        cli_version="0.60.0",
    )
    say("user", 0, "<environment_context>\n  <cwd>/src</cwd>\n</environment_context>")
    line("turn_context", 0, cwd="/src", model="gpt-5-codex", approval_policy="never")
    say("user", 0, ASK)
    line("event_msg", 0, type="user_message", message=ASK)
    line(
        "response_item",
        1,
        type="reasoning",
        summary=[{"type": "summary_text", "text": "Look."}],
        encrypted_content="x",
    )
    say("assistant", 1, LOOK)
    line(
        "response_item", 1, type="function_call", name="lookup", arguments=json.dumps(ARGUMENTS), call_id="c1"
    )
    line(
        "response_item",
        1,
        type="custom_tool_call",
        name="incidents",
        input="all",
        call_id="c2",
        status="completed",
    )
    line("response_item", 2, type="function_call_output", call_id="c1", output=OUTPUT)
    line("response_item", 3, type="custom_tool_call_output", call_id="c2", output=OTHER_OUTPUT)
    say("assistant", 4, ANSWER)
    line("event_msg", 4, type="token_count", info={"last_token_usage": usage, "total_token_usage": usage})
    say("user", 5, DEPLOY)
    say("assistant", 6, NOTED)
    line("compacted", 6, message="A summary.")
    say("user", 7, OWNER)
    skipped = {
        "messages of the program itself": 1,
        "lines of the type event_msg": 1,
        "lines of the type compacted": 1,
    }
    return File(
        "rollout-2026-02-01T10-00-00-019a-1.jsonl", "codex", lines(*made), ids=["019a-1"], skipped=skipped
    )


def _gemini_cli(*, newer: bool) -> File:
    id = "gc2" if newer else "gc1"
    head = {"sessionId": id, "projectHash": "ab12", "startTime": at(0), "lastUpdated": at(7)}
    tokens = {"input": 80, "output": 6, "cached": 0, "total": 86}

    def answered(id: str, name: str, text: str) -> dict[str, Any]:
        response = {"functionResponse": {"id": id, "name": name, "response": {"output": text}}}
        return {
            "id": id,
            "name": name,
            "args": ARGUMENTS,
            "result": [response],
            "status": "success",
            "timestamp": at(2),
        }

    calls = [answered("lookup-1", "lookup", OUTPUT), answered("incidents-1", "incidents", OTHER_OUTPUT)]
    looked: dict[str, Any] = {
        "id": "2",
        "timestamp": at(1),
        "type": "gemini",
        "content": LOOK,
        "model": "gemini-3-pro",
    }
    looked |= {
        "tokens": tokens,
        "thoughts": [{"subject": "Look", "description": "it up", "timestamp": at(1)}],
    }
    messages: list[Any] = [
        {"id": "1", "timestamp": at(0), "type": "user", "content": [{"text": ASK}]},
        {**looked, "toolCalls": calls},
        {
            "id": "3",
            "timestamp": at(4),
            "type": "gemini",
            "content": ANSWER,
            "model": "gemini-3-pro",
            "tokens": tokens,
        },
        {"id": "4", "timestamp": at(4), "type": "info", "content": "Update available."},
        {"id": "5", "timestamp": at(5), "type": "user", "content": DEPLOY},
        {
            "id": "6",
            "timestamp": at(6),
            "type": "gemini",
            "content": NOTED,
            "model": "gemini-3-pro",
            "tokens": tokens,
        },
        {"id": "7", "timestamp": at(7), "type": "user", "content": OWNER},
    ]
    skipped = {"messages of the type info": 1}
    if not newer:
        document = json.dumps({**head, "messages": messages})
        return File("session-2026-02-01T10-00-g1.json", "gemini-cli", document, ids=[id], skipped=skipped)
    undone = {"id": "8", "timestamp": at(7), "type": "user", "content": "Delete it all."}
    text = lines(
        head, messages[0], looked, *messages[1:], undone, {"$rewindTo": "8"}, {"$set": {"summary": "Orders"}}
    )
    skipped |= {"messages that were taken back": 1}
    return File("session-2026-02-01T10-00-g1.jsonl", "gemini-cli", text, ids=[id], skipped=skipped)


AIDER = f"""
# aider chat started at 2026-02-01 10:00:00

> /usr/bin/aider --model sonnet
> Aider v0.86.0
> Main model: claude-sonnet-4 with diff edit format

#### {ASK}

{ANSWER}

```python
> quoted = 1
#### no question
# aider chat started at noon
```

> Tokens: 2.3k sent, 212 received. Cost: $0.01 message, $0.01 session.

#### {DEPLOY}

{NOTED}

#### {OWNER}
"""


def _aider_file() -> File:
    answer = f"{ANSWER}\n\n```python\n> quoted = 1\n#### no question\n# aider chat started at noon\n```"
    said = [(role, answer if text == ANSWER else text) for role, text in SPOKEN]
    skipped = {"lines that the program printed": 4}
    ids = ["aider.chat.history-2026-02-01-10-00-00"]
    return File(".aider.chat.history.md", "aider", AIDER, said, ids=ids, skipped=skipped)


# ── benchmarks ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _function_call(id: str, name: str) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": json.dumps(ARGUMENTS)}}


CALLS = [_function_call("call_1", "lookup"), _function_call("call_2", "incidents")]
CHAT: list[dict[str, Any]] = [
    {"role": "user", "content": ASK},
    {"role": "assistant", "content": LOOK, "tool_calls": CALLS},
    {"role": "tool", "tool_call_id": "call_1", "content": OUTPUT},
    {"role": "tool", "tool_call_id": "call_2", "content": OTHER_OUTPUT},
    {"role": "assistant", "content": ANSWER},
    {"role": "user", "content": DEPLOY},
    {"role": "assistant", "content": NOTED},
    {"role": "user", "content": OWNER},
]
SYSTEM = "You are a helpful agent."
WITH_SYSTEM = [("system", SYSTEM), *WITH_TOOLS]


def _swe_agent() -> File:
    demo = {"role": "user", "content": "Here is a demonstration.", "agent": "main", "is_demo": True}
    system = {"role": "system", "content": SYSTEM, "agent": "main", "message_type": "system_prompt"}
    history: list[Any] = [system, demo]
    for message in CHAT:
        one = {**message, "agent": "main"}
        if one["role"] == "assistant":
            one |= {"thought": one["content"], "action": "lookup orders", "message_type": "action"}
        if one["role"] == "tool":
            one |= {"tool_call_ids": [one.pop("tool_call_id")], "message_type": "observation"}
        history.append(one)
    run = {
        "trajectory": [{"action": "lookup orders", "observation": OUTPUT, "response": LOOK, "thought": LOOK}],
        "history": history,
        "info": {"exit_status": "submitted", "model_stats": {"tokens_sent": 900}},
        "environment": "main",
    }
    skipped = {"demonstrations": 1}
    text = json.dumps(run, indent=2)
    return File("django-1.traj", "swe-agent", text, WITH_SYSTEM, False, False, False, ["django-1"], skipped)


def _openhands_file() -> File:
    made: list[Any] = []

    def event(number: int, source: str, **more: Any) -> None:
        made.append({"id": len(made), "timestamp": at(number).removesuffix("Z"), "source": source, **more})

    response = {
        "id": "chatcmpl-1",
        "model": "claude-sonnet-4",
        "usage": USAGE,
        "choices": [{"message": {"role": "assistant", "content": LOOK, "tool_calls": CALLS}}],
    }

    def metadata(number: int) -> dict[str, Any]:
        made = CALLS[number]
        return {"function_name": made["function"]["name"], "tool_call_id": made["id"], "model_response": response,
                "total_calls_in_response": 2}  # fmt: skip

    event(0, "agent", message=SYSTEM, action="system", args={"content": SYSTEM, "tools": []})
    event(0, "user", message=ASK, action="message", args={"content": ASK, "image_urls": None})
    event(0, "environment", observation="agent_state_changed", content="", extras={"agent_state": "running"})
    event(
        1, "agent", action="run", tool_call_metadata=metadata(0), args={"command": "lookup", "thought": LOOK}
    )
    event(2, "agent", observation="run", content=OUTPUT, cause=3, tool_call_metadata=metadata(0), extras={})
    event(
        2, "agent", action="run", tool_call_metadata=metadata(1), args={"command": "incidents", "thought": ""}
    )
    event(
        3,
        "agent",
        observation="run",
        content=OTHER_OUTPUT,
        cause=5,
        tool_call_metadata=metadata(1),
        extras={},
    )
    event(4, "agent", message=ANSWER, action="message", args={"content": ANSWER, "wait_for_response": True})
    event(5, "user", message=DEPLOY, action="message", args={"content": DEPLOY})
    event(6, "agent", message=NOTED, action="message", args={"content": NOTED})
    event(7, "user", message=OWNER, action="message", args={"content": OWNER})
    skipped = {"events of the type agent_state_changed": 1}
    return File(
        "trajectory.json", "openhands", json.dumps(made), WITH_SYSTEM, ids=["trajectory"], skipped=skipped
    )


def _openhands_sdk() -> File:
    made: list[Any] = []

    def event(number: int, kind: str, source: str, **more: Any) -> None:
        made.append({"id": f"e{len(made)}", "timestamp": at(number), "source": source, "kind": kind, **more})

    def say(number: int, role: str, text: str) -> None:
        message = {"role": role, "content": [{"type": "text", "text": text}]}
        event(number, "MessageEvent", "user" if role == "user" else "agent", llm_message=message)

    def act(number: int, thought: str) -> None:
        made = CALLS[number]
        call = {"id": made["id"], **made["function"]}
        event(1, "ActionEvent", "agent", thought=[{"type": "text", "text": thought}] if thought else [],
              action={"kind": "LookupAction"}, tool_name=call["name"], tool_call_id=call["id"], tool_call=call,
              llm_response_id="r1")  # fmt: skip

    def see(number: int, text: str) -> None:
        made = CALLS[number]
        seen = {"kind": "LookupObservation", "content": [{"type": "text", "text": text}], "is_error": False}
        event(2, "ObservationEvent", "environment", observation=seen, action_id="e2",
              tool_name=made["function"]["name"], tool_call_id=made["id"])  # fmt: skip

    event(0, "SystemPromptEvent", "agent", system_prompt={"type": "text", "text": SYSTEM}, tools=[])
    say(0, "user", ASK)
    act(0, LOOK)
    act(1, "")
    see(0, OUTPUT)
    see(1, OTHER_OUTPUT)
    event(3, "ConversationStateUpdateEvent", "environment", key="stats", value={})
    say(4, "assistant", ANSWER)
    say(5, "user", DEPLOY)
    say(6, "assistant", NOTED)
    say(7, "user", OWNER)
    skipped = {"events of the type ConversationStateUpdateEvent": 1}
    return File(
        "events.json", "openhands", json.dumps(made), WITH_SYSTEM, True, False, False, ["events"], skipped
    )


def _tau_bench() -> File:
    traj = [{"role": "system", "content": SYSTEM}, *CHAT]
    run = {"task_id": 4, "reward": 1.0, "info": {"task": {}}, "traj": traj, "trial": 0}
    return File(
        "airline.json", "tau-bench", json.dumps([run]), WITH_SYSTEM, False, False, False, ["airline-4-0"]
    )


def _tau2_bench() -> File:
    made: list[Any] = []
    for number, message in enumerate(CHAT):
        one = {**message, "turn_idx": number, "timestamp": at(number).removesuffix("Z")}
        if one["role"] == "tool":
            one |= {"id": one.pop("tool_call_id"), "requestor": "assistant", "error": False}
        if "tool_calls" in one:
            one["tool_calls"] = [
                {
                    "id": call["id"],
                    "name": call["function"]["name"],
                    "arguments": ARGUMENTS,
                    "requestor": "assistant",
                }
                for call in CALLS
            ]
        if one["role"] == "assistant":
            one["usage"] = {"prompt_tokens": 10, "completion_tokens": 2}
        made.append(one)
    own = {"id": "u1", "name": "toggle", "arguments": {}, "requestor": "user"}
    made.append({"role": "user", "content": None, "tool_calls": [own]})
    made.append({"role": "tool", "id": "u1", "content": "on", "requestor": "user"})
    run = {"id": "x", "task_id": "7", "trial": 1, "messages": made, "reward_info": {"reward": 1.0}}
    document = {"timestamp": at(0), "info": {}, "tasks": [], "simulations": [run]}
    skipped = {"tool use of the simulated user": 2}
    return File(
        "telecom.json", "tau-bench", json.dumps(document), models=False, ids=["telecom-7-1"], skipped=skipped
    )


# ── frameworks ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _langchain_fields() -> list[tuple[str, dict[str, Any]]]:
    found: list[tuple[str, dict[str, Any]]] = []
    kinds = {"user": "human", "assistant": "ai", "tool": "tool"}
    for number, message in enumerate(CHAT):
        fields: dict[str, Any] = {"content": message["content"], "additional_kwargs": {}, "id": f"m{number}"}
        if message["role"] == "assistant":
            calls = [{"name": one["function"]["name"], "args": ARGUMENTS, "id": one["id"], "type": "tool_call"}
                     for one in message.get("tool_calls", ())]  # fmt: skip
            fields |= {
                "tool_calls": calls,
                "response_metadata": {"model_name": "gpt-5"},
                "usage_metadata": USAGE,
            }
        if message["role"] == "tool":
            fields |= {"tool_call_id": message["tool_call_id"], "status": "success"}
        found.append((kinds[message["role"]], fields))
    return found


def _langchain_file(form: str) -> File:
    names = {"human": "HumanMessage", "ai": "AIMessage", "tool": "ToolMessage"}
    made: list[Any] = []
    for kind, fields in _langchain_fields():
        if form == "dicts":
            made.append({"type": kind, "data": {**fields, "type": kind}})
        elif form == "dumpd":
            path = ["langchain", "schema", "messages", names[kind]]
            made.append({"lc": 1, "type": "constructor", "id": path, "kwargs": fields})
        else:
            made.append({**fields, "type": kind})
    return File(f"{form}.json", "langchain", json.dumps(made), times=False, ids=[form])


def _langgraph_state() -> File:
    messages = [{**fields, "type": kind} for kind, fields in _langchain_fields()]
    config = {"configurable": {"thread_id": "t1", "checkpoint_id": "2"}}
    newest = {
        "values": {"messages": messages},
        "next": [],
        "config": config,
        "created_at": at(7),
        "metadata": {"step": 9},
    }
    older = {**newest, "values": {"messages": messages[:3]}, "created_at": at(2)}
    skipped = {"older states of a thread": 1}
    text = json.dumps([newest, older])
    return File("history.json", "langgraph-state", text, times=False, ids=["t1"], skipped=skipped)


def _langsmith_file() -> File:
    fields = [{"lc": 1, "type": "constructor", "id": ["langchain", "schema", "messages", name], "kwargs": one}
              for (kind, one) in _langchain_fields()
              for name in [{"human": "HumanMessage", "ai": "AIMessage", "tool": "ToolMessage"}[kind]]]  # fmt: skip
    made: list[Any] = []

    def run(number: int, kind: str, inputs: Any, outputs: Any, parent: str | None) -> None:
        made.append(
            {"id": f"r{number}", "name": kind, "run_type": kind, "inputs": inputs, "outputs": outputs,
             "start_time": at(number), "end_time": at(number), "trace_id": "r0", "parent_run_id": parent,
             "dotted_order": f"{number}", "extra": {"metadata": {"thread_id": "th1"}}}
        )  # fmt: skip

    run(0, "chain", {"messages": fields[:1]}, {"messages": fields[:5]}, None)
    for number, end in ((0, 1), (4, 4), (6, 6)):
        answer = {"generations": [[{"text": "", "message": fields[end]}]], "llm_output": None}
        run(number, "llm", {"messages": [fields[:end]]}, answer, "r0")
    run(7, "llm", {"messages": [fields]}, {"generations": []}, "r0")
    made.reverse()  # the newest comes first
    return File("runs.jsonl", "langsmith", lines(*made), ids=["th1"], skipped={"runs of the type chain": 1})


# ── providers ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _responses_items() -> list[Any]:
    items: list[Any] = []
    for message in CHAT:
        if message["role"] == "tool":
            items.append(
                {
                    "type": "function_call_output",
                    "call_id": message["tool_call_id"],
                    "output": message["content"],
                }
            )
            continue
        part = {
            "type": "output_text" if message["role"] == "assistant" else "input_text",
            "text": message["content"],
        }
        items.append({"type": "message", "role": message["role"], "content": [part]})
        for one in message.get("tool_calls", ()):
            items.append({"type": "function_call", "call_id": one["id"], **one["function"]})
    return items


def _responses_log() -> File:
    items = _responses_items()
    made: list[Any] = []
    for number, (start, end) in enumerate(((1, 4), (6, 7), (8, 9))):
        response = {"id": f"resp_{number}", "object": "response", "created_at": seconds_of_message(number * 2 + 1),
                    "model": "gpt-5", "output": items[start:end], "usage": USAGE}  # fmt: skip
        request = {"model": "gpt-5", "instructions": SYSTEM, "input": items[:start]}
        made.append({"request": request, "response": response, "timestamp": at(number * 2)})
    last = {"model": "gpt-5", "instructions": SYSTEM, "input": items}
    made.append({"request": last, "response": {}, "timestamp": at(7)})
    said = [("system", SYSTEM), *WITH_TOOLS]
    return File("calls.jsonl", "openai-responses", lines(*made), said, ids=["calls"])


def _anthropic_messages() -> list[Any]:
    looked = [
        {"type": "text", "text": LOOK},
        _tool_use_block("toolu_1", "lookup"),
        _tool_use_block("toolu_2", "incidents"),
    ]
    return [
        {"role": "user", "content": ASK},
        {"role": "assistant", "content": looked},
        {"role": "user", "content": [
            _tool_result_block("toolu_1", OUTPUT), _tool_result_block("toolu_2", OTHER_OUTPUT),
        ]},
        {"role": "assistant", "content": [{"type": "text", "text": ANSWER}]},
        {"role": "user", "content": DEPLOY},
        {"role": "assistant", "content": NOTED},
        {"role": "user", "content": OWNER},
    ]  # fmt: skip


def _anthropic_file() -> File:
    system = [{"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}}]
    body = {
        "model": "claude-opus-4-5",
        "max_tokens": 1000,
        "system": system,
        "messages": _anthropic_messages(),
    }
    return File("body.json", "anthropic", json.dumps(body), WITH_SYSTEM, False, False, False, ["body"])


def _anthropic_log() -> File:
    messages = _anthropic_messages()
    made: list[Any] = []
    for number, end in enumerate((1, 3, 5)):
        request = {
            "model": "claude-opus-4-5",
            "max_tokens": 1000,
            "system": SYSTEM,
            "messages": messages[:end],
        }
        said = messages[end]["content"]
        content = [{"type": "text", "text": said}] if isinstance(said, str) else said
        response = {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": "claude-opus-4-5",
                    "content": content, "usage": USAGE}  # fmt: skip
        made.append({"timestamp": at(number), "request": request, "response": response})
    made.append({"timestamp": at(7), "request": {"system": SYSTEM, "messages": messages}, "response": {}})
    return File("anthropic.jsonl", "anthropic", lines(*made), WITH_SYSTEM, ids=["anthropic"])


def _gemini_file() -> File:
    def content(role: str, *parts: Any) -> dict[str, Any]:
        return {"role": role, "parts": list(parts)}

    def text(said: str) -> dict[str, Any]:
        return {"text": said}

    calls = [
        {"functionCall": {"id": one["id"], "name": one["function"]["name"], "args": ARGUMENTS}}
        for one in CALLS
    ]
    outputs = [{"functionResponse": {"id": one["id"], "name": one["function"]["name"], "response": {"output": said}}}
               for one, said in zip(CALLS, (OUTPUT, OTHER_OUTPUT), strict=True)]  # fmt: skip
    contents = [
        content("user", text(ASK)),
        content("model", text(LOOK), *calls),
        content("user", *outputs),
        content("model", text(ANSWER)),
        content("user", text(DEPLOY)),
        content("model", text(NOTED)),
        content("user", text(OWNER)),
    ]
    body = {"systemInstruction": {"parts": [text(SYSTEM)]}, "contents": contents}
    return File("gemini.json", "gemini", json.dumps(body), WITH_SYSTEM, False, False, False, ["gemini"])


def _chat_log() -> File:
    made: list[Any] = []
    for number, end in enumerate((1, 4, 6)):
        request = {"model": "gpt-5", "messages": CHAT[:end]}
        choice = {"index": 0, "message": CHAT[end], "finish_reason": "stop"}
        response = {"id": f"chatcmpl-{number}", "object": "chat.completion", "created": int(seconds_of_message(number)),
                    "model": "gpt-5", "choices": [choice], "usage": USAGE}  # fmt: skip
        made.append({"timestamp": at(number), "request": request, "response": response})
    made.append({"timestamp": at(7), "request": {"messages": CHAT}, "response": {"choices": []}})
    return File("chats.jsonl", "openai-chat", lines(*made), ids=["chats"])


# ── chat programs and channels ──────────────────────────────────────────────────────────────────────────────────────


def _claude_export() -> File:
    def message(number: int, sender: str, *blocks: Any) -> dict[str, Any]:
        return {"uuid": f"m{number}", "sender": sender, "text": "", "content": list(blocks), "created_at": at(number),
                "updated_at": at(number), "attachments": [], "files": []}  # fmt: skip

    def text(said: str) -> dict[str, Any]:
        return {"type": "text", "text": said}

    def use(name: str) -> dict[str, Any]:
        return {"type": "tool_use", "id": None, "name": name, "input": ARGUMENTS}

    def answer(said: str) -> dict[str, Any]:
        return {
            "type": "tool_result",
            "tool_use_id": None,
            "name": "x",
            "content": [text(said)],
            "is_error": False,
        }

    looked = [use("lookup"), use("incidents"), answer(OUTPUT), answer(OTHER_OUTPUT)]
    chat = [
        message(0, "human", text(ASK)),
        message(1, "assistant", text(LOOK), *looked, text(ANSWER)),
        message(5, "human", text(DEPLOY)),
        message(6, "assistant", text(NOTED)),
        message(7, "human", text(OWNER)),
    ]  # fmt: skip
    one = {"uuid": "c1", "name": "Orders", "created_at": at(0), "updated_at": at(7), "chat_messages": chat}
    return File("conversations.json", "claude", json.dumps([one]), models=False, usage=False, ids=["c1"])


def _chatgpt_export() -> File:
    mapping: dict[str, Any] = {"root": {"id": "root", "message": None, "parent": None, "children": ["n0"]}}
    parent = "root"
    for number, (role, said) in enumerate(SPOKEN):
        created = seconds_of_message(number)
        message = {"id": f"n{number}", "author": {"role": role}, "create_time": created, "recipient": "all",
                   "content": {"content_type": "text", "parts": [said]},
                   "metadata": {"model_slug": "gpt-5"} if role == "assistant" else {}}  # fmt: skip
        mapping[parent]["children"] = [f"n{number}"]
        mapping[f"n{number}"] = {"id": f"n{number}", "message": message, "parent": parent, "children": []}
        parent = f"n{number}"
    one = {"title": "Orders", "conversation_id": "g1", "mapping": mapping, "current_node": parent}
    return File("conversations.json", "chatgpt", json.dumps([one]), SPOKEN, usage=False, ids=["g1"])


NO_PARENT = "00000000-0000-0000-0000-000000000000"


def _librechat_file(*, nested: bool) -> File:
    made: list[Any] = []
    id = "l2" if nested else "l1"

    def message(number: int, user: bool, **more: Any) -> None:
        parent = made[-1]["messageId"] if made else NO_PARENT
        made.append(
            {"messageId": f"m{number}", "parentMessageId": parent, "conversationId": id, "isCreatedByUser": user,
             "sender": "User" if user else "Claude", "createdAt": at(number), "error": False, "unfinished": False,
             **({} if user else {"model": "claude-opus-4-5", "tokenCount": 9}), **more}
        )  # fmt: skip

    def call(number: int, output: str) -> dict[str, Any]:
        one = CALLS[number]
        made = {"id": one["id"], "name": one["function"]["name"], "args": json.dumps(ARGUMENTS), "type": "tool_call",
                "progress": 1, "output": output}  # fmt: skip
        return {"type": "tool_call", "tool_call": made}

    answered = [
        {"type": "text", "text": LOOK},
        call(0, OUTPUT),
        call(1, OTHER_OUTPUT),
        {"type": "text", "text": ANSWER},
    ]
    message(0, True, text=ASK)
    message(1, False, text="", content=answered)
    message(5, True, text=DEPLOY)
    message(6, False, text=NOTED)
    message(7, True, text=OWNER)
    head = {"conversationId": id, "endpoint": "anthropic", "title": "Orders", "exportAt": "10:00:00 GMT",
            "branches": True, "recursive": nested}  # fmt: skip
    said = [
        ("user", ASK),
        ("assistant", LOOK),
        ("tool", OUTPUT),
        ("assistant", ""),
        ("tool", OTHER_OUTPUT),
        *WITH_TOOLS[4:],
    ]
    if not nested:
        return File("Orders.json", "librechat", json.dumps({**head, "messages": made}), said, ids=[id])
    for before, after in pairwise(made):
        before["children"] = [after]
    return File("Tree.json", "librechat", json.dumps({**head, "messagesTree": made[:1]}), said, ids=[id])


def _open_webui() -> File:
    messages: dict[str, Any] = {}
    for number, (role, said) in enumerate(SPOKEN):
        parent = f"w{number - 1}" if number else None
        messages[f"w{number}"] = {"id": f"w{number}", "parentId": parent, "childrenIds": [], "role": role,
                                  "content": said, "timestamp": int(seconds_of_message(number)),
                                  **({"model": "llama3.1", "usage": USAGE} if role == "assistant" else {})}  # fmt: skip
        if parent:
            messages[parent]["childrenIds"].append(f"w{number}")
    other = {**messages["w1"], "id": "w1b", "content": "It uses MySQL, I think.", "childrenIds": []}
    messages["w1b"] = other
    history = {"messages": messages, "currentId": f"w{len(SPOKEN) - 1}"}
    chat = {"title": "Orders", "models": ["llama3.1"], "history": history, "messages": []}
    one = {"id": "o1", "user_id": "u", "title": "Orders", "chat": chat, "created_at": 1, "updated_at": 2}
    return File("chat-export-1.json", "open-webui", json.dumps([one]), SPOKEN, ids=["o1", "o1-w1b"])


PEOPLE = [("user", DEPLOY), ("assistant", OUTPUT), ("user", OWNER)]


def _slack_file() -> File:
    joined = {
        "type": "message",
        "subtype": "channel_join",
        "ts": f"{seconds_of_message(0):.6f}",
        "user": "U1",
        "text": "joined",
    }
    sent_at = f"{seconds_of_message(0):.6f}"
    first = {"client_msg_id": "a", "type": "message", "text": DEPLOY, "user": "U1", "ts": sent_at,
             "user_profile": {"real_name": "Ana Lima"}}  # fmt: skip
    bot = {"type": "message", "subtype": "bot_message", "bot_id": "B1", "username": "lookup", "text": OUTPUT,
           "ts": f"{seconds_of_message(1):.6f}"}  # fmt: skip
    reply = {
        "type": "message",
        "text": OWNER,
        "user": "U2",
        "ts": f"{seconds_of_message(2):.6f}",
        "thread_ts": first["ts"],
    }
    text = json.dumps([joined, first, bot, reply])
    skipped = {"announcements of the channel": 1}
    return File("2026-02-01.json", "slack", text, PEOPLE, models=False, usage=False, skipped=skipped)


def _discord_file() -> File:
    def message(number: int, name: str, said: str, bot: bool = False, **more: Any) -> dict[str, Any]:
        author = {"id": f"{number}9", "name": name.lower(), "nickname": name, "isBot": bot}
        return {"id": f"{number}", "type": "Default", "timestamp": at(number), "isPinned": False, "content": said,
                "author": author, "attachments": [], "embeds": [], "reactions": [], **more}  # fmt: skip

    messages = [
        message(0, "Ana", DEPLOY),
        message(1, "Lookup", OUTPUT, True),
        message(
            2, "Ben", OWNER, type="Reply", reference={"messageId": "0", "channelId": "7", "guildId": "8"}
        ),
        message(3, "Ben", "Pinned a message.", type="ChannelPinnedMessage"),
    ]
    document = {
        "guild": {"id": "8", "name": "Shop"},
        "channel": {"id": "7", "type": "GuildTextChat", "name": "orders", "topic": None},
        "dateRange": {"after": None, "before": None},
        "exportedAt": at(9),
        "messages": messages,
        "messageCount": 4,
    }
    skipped = {"announcements of the channel": 1}
    text = json.dumps(document)
    return File("Shop - orders [7].json", "discord", text, PEOPLE, True, False, False, ["7"], skipped)


# ── memories ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _mem0_file() -> File:
    said = [ANSWER, DEPLOY, OWNER]
    memories = [{"id": f"m{number}", "memory": text, "user_id": "ana", "created_at": at(number)}
                for number, text in enumerate(said)]  # fmt: skip
    messages = [("user", text) for text in said]
    text = json.dumps({"results": memories[::-1]})
    return File("memories.json", "mem0", text, messages, models=False, usage=False, ids=["ana"])


def write_checkpoints(path: Path) -> None:
    """Write a SQLite file as LangGraph does."""
    config: Any = {"configurable": {"thread_id": "lg1", "checkpoint_ns": ""}}
    messages = convert_to_messages([{**one, "id": f"m{number}"} for number, one in enumerate(CHAT)])
    with SqliteSaver.from_conn_string(str(path)) as saver:
        state: Any = {**empty_checkpoint(), "channel_values": {"messages": messages}}
        saver.put(config, state, {"source": "loop", "step": 1}, {})


FILES: dict[str, File] = {
    "claude-code": _claude_code(),
    "codex": _codex_file(),
    "gemini-cli": _gemini_cli(newer=False),
    "gemini-cli lines": _gemini_cli(newer=True),
    "aider": _aider_file(),
    "swe-agent": _swe_agent(),
    "openhands": _openhands_file(),
    "openhands sdk": _openhands_sdk(),
    "tau-bench": _tau_bench(),
    "tau2-bench": _tau2_bench(),
    "langchain dicts": _langchain_file("dicts"),
    "langchain dumpd": _langchain_file("dumpd"),
    "langchain fields": _langchain_file("fields"),
    "langgraph-state": _langgraph_state(),
    "langsmith": _langsmith_file(),
    "responses log": _responses_log(),
    "anthropic": _anthropic_file(),
    "anthropic log": _anthropic_log(),
    "gemini": _gemini_file(),
    "chat log": _chat_log(),
    "claude": _claude_export(),
    "chatgpt": _chatgpt_export(),
    "librechat": _librechat_file(nested=False),
    "librechat tree": _librechat_file(nested=True),
    "open-webui": _open_webui(),
    "slack": _slack_file(),
    "discord": _discord_file(),
    "mem0": _mem0_file(),
}
