"""Transcripts of every kind of item that providers return, made at random and cut off anywhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random
from typing import Any, NamedTuple

WORDS = "harbour crane rope 48213 deploy München 列車 tests green pumpkin invoice 🚢 quay".split()
NATIVE = (
    "function custom_tool local_shell shell apply_patch computer tool_search program mcp unknown unknown_form"
).split()

Message = dict[str, Any]


def random_words(random: Random, most: int = 30) -> str:
    """Return some words."""
    return " ".join(random.choices(WORDS, k=random.randint(1, most)))


def native_pair(random: Random, id: str) -> list[Message]:
    """Return a call of a native tool of Responses and its result."""
    call: Message = {"call_id": id}
    kind = random.choice(NATIVE)
    text = random_words(random, 60)
    match kind:
        case "function":
            return [
                {"type": "function_call", **call, "name": "lookup", "arguments": json.dumps({"q": text})},
                {"type": "function_call_output", **call, "output": random_words(random, 200)},
            ]
        case "custom_tool":
            output: Any = [{"type": "input_text", "text": text}] if random.random() < 0.3 else text
            return [
                {"type": "custom_tool_call", "id": f"ctc_{id}", **call, "name": "apply_patch", "input": text},
                {"type": "custom_tool_call_output", **call, "output": output},
            ]
        case "local_shell":
            action = {"type": "exec", "command": ["ls", text], "env": {}}
            return [
                {
                    "type": "local_shell_call",
                    "id": f"lsh_{id}",
                    **call,
                    "status": "completed",
                    "action": action,
                },
                {"type": "local_shell_call_output", **call, "output": random_words(random, 200)},
            ]
        case "shell":
            outcome = {"type": "exit", "exit_code": 0}
            chunks = [
                {"stdout": random_words(random), "stderr": random.choice(["", text]), "outcome": outcome}
            ] * 2
            return [
                {
                    "type": "shell_call",
                    "id": f"sh_{id}",
                    **call,
                    "status": "completed",
                    "action": {"commands": [text]},
                },
                {"type": "shell_call_output", **call, "output": chunks},
            ]
        case "apply_patch":
            operation = {"type": "update_file", "path": f"src/{id}.py", "diff": text}
            done: Message = {"type": "apply_patch_call_output", **call, "status": "completed"}
            return [
                {"type": "apply_patch_call", **call, "status": "completed", "operation": operation},
                done if random.random() < 0.5 else {**done, "output": text},
            ]
        case "computer":
            screen = {"type": "computer_screenshot", "image_url": "https://example.org/screen.png"}
            return [
                {"type": "computer_call", "id": f"cu_{id}", **call, "status": "completed", "pending_safety_checks": [],
                 "action": {"type": "click", "x": 1, "y": 2, "button": "left"}},
                {"type": "computer_call_output", **call, "output": screen},
            ]  # fmt: skip
        case "tool_search":
            tools = [{"type": "function", "name": "found", "parameters": {"type": "object"}}]
            return [
                {"type": "tool_search_call", **call, "arguments": {"query": text}, "execution": "client"},
                {"type": "tool_search_output", **call, "tools": tools},
            ]
        case "program":
            return [
                {"type": "program", "id": f"prog_{id}", **call, "code": text, "fingerprint": "f"},
                {"type": "program_output", "id": f"po_{id}", **call, "result": text, "status": "completed"},
            ]
        case "mcp":
            asked = {"server_label": "mail", "name": "send", "arguments": json.dumps({"to": text})}
            return [
                {"type": "mcp_approval_request", "id": f"mcpr_{id}", **asked},
                {
                    "type": "mcp_approval_response",
                    "approval_request_id": f"mcpr_{id}",
                    "approve": random.random() < 0.5,
                },
            ]
        case "unknown_form":
            return [
                {"type": "qubit_request", **call, "circuit": {"gates": [text]}, "shots": 3},
                {"type": "qubit_measurement", **call, "output": {"bits": [text]}, "seconds": 0.5},
            ]
        case _:
            return [
                {"type": "quantum_call", **call, "circuit": text},
                {"type": "quantum_call_output", **call, "output": {"qubits": [text]}},
            ]


def native_item(random: Random, id: str) -> Message:
    """Return an item of Responses that is a call and its result in one, or says something else."""
    text = random_words(random)
    return random.choice(
        [
            {"type": "mcp_call", "id": f"mcp_{id}", "server_label": "mail", "name": "read", "arguments": "{}",
             "output": text},
            {"type": "mcp_list_tools", "id": f"mcpl_{id}", "server_label": "mail",
             "tools": [{"name": "read", "input_schema": {}, "description": text}]},
            {"type": "code_interpreter_call", "id": f"ci_{id}", "status": "completed", "container_id": "c",
             "code": text, "outputs": [{"type": "logs", "logs": text}]},
            {"type": "web_search_call", "id": f"ws_{id}", "status": "completed",
             "action": {"type": "search", "query": text}},
            {"type": "file_search_call", "id": f"fs_{id}", "status": "completed", "queries": [text], "results": None},
            {"type": "image_generation_call", "id": f"ig_{id}", "status": "completed", "result": "aGk="},
            {"type": "reasoning", "id": f"rs_{id}", "summary": [], "encrypted_content": "gAAAA" + id},
            {"type": "unheard_of", "id": f"u_{id}", "deep": [{"er": text}]},
        ]
    )  # fmt: skip


def claude_answer(random: Random, id: str) -> list[Message]:
    """Return an answer of Claude that used tools of the provider's own, or calls some of the client's."""
    text = random_words(random)
    blocks: list[Message] = []
    if random.random() < 0.3:
        blocks.append({"type": "thinking", "thinking": text, "signature": "c2ln"})
    if random.random() < 0.5:
        blocks.append({"type": "text", "text": text, "citations": [{"cited_text": text}]})
    served, result = random.choice(
        [
            ("server_tool_use", "bash_code_execution_tool_result"),
            ("server_tool_use", "web_search_tool_result"),
            ("mcp_tool_use", "mcp_tool_result"),
        ]
    )
    if random.random() < 0.6:
        blocks.append({"type": served, "id": f"srv_{id}", "name": "run", "input": {"a": text}, **(
            {"server_name": "mail"} if served == "mcp_tool_use" else {})})  # fmt: skip
        if random.random() < 0.8:
            blocks.append(
                {"type": result, "tool_use_id": f"srv_{id}", "content": [{"type": "text", "text": text}]}
            )
    calls = [f"toolu_{id}_{n}" for n in range(random.choice([0, 0, 1, 2]))]
    given = {"name": "disk", "input": {"of": text}, "caller": {"of": text}}
    blocks += [{"type": "tool_use", "id": call, **given} for call in calls]
    answers = [
        {"type": "tool_result", "tool_use_id": call, "content": random_words(random, 200)} for call in calls
    ]
    random.shuffle(answers)
    return [
        {"role": "assistant", "content": blocks or text},
        *([{"role": "user", "content": [*answers, {"type": "text", "text": text}]}] if answers else []),
    ]


def gemini_answer(random: Random, id: str) -> list[Message]:
    """Return an answer of Gemini with code that it ran, or with calls and their answers."""
    text = random_words(random)
    if random.random() < 0.5:
        code = {"executableCode": {"language": "PYTHON", "code": text}, "thoughtSignature": "c2ln"}
        done = {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": text}}
        return [{"role": "model", "parts": [code, done, {"text": text}]}]
    call = {"functionCall": {"id": f"fc_{id}", "name": "disk", "args": {"of": text}, "unheard": text}}
    signed = {**call, "thoughtSignature": "c2ln"} if random.random() < 0.5 else call
    answer = {"functionResponse": {"id": f"fc_{id}", "name": "disk", "response": {"output": text}}}
    return [{"role": "model", "parts": [{"text": text}, signed]}, {"role": "user", "parts": [answer]}]


def chat_answer(random: Random, id: str) -> list[Message]:
    """Return an answer of a server of the chat format, with the fields that such servers add."""
    text = random_words(random)
    extra = random.choice(
        [
            {},
            {"reasoning_content": text},
            {"reasoning": text, "reasoning_details": [{"type": "reasoning.encrypted", "data": "E"}]},
            {"thinking_blocks": [{"type": "thinking", "thinking": text, "signature": "S"}]},
            {"unheard_of": {"a": 1}},
        ]
    )
    ids = [f"call_{id}_{n}" for n in range(random.choice([0, 0, 1, 2, 3]))]
    if ids and random.random() < 0.2:
        ids = [ids[0]] * len(ids)
    if ids and random.random() < 0.1:
        ids = [one + "__thought__" + "A" * 400 for one in ids]
    calls = [
        {"id": one, "type": "function", "function": {"name": "disk", "arguments": json.dumps({"of": text})},
         **random.choice([{}, {"extra_content": {"google": {"thought_signature": "SIG"}}}])}
        for one in ids
    ]  # fmt: skip
    content = random.choice([text, None, "", text])
    answers: list[Message] = [
        {
            "role": "tool",
            "tool_call_id": one,
            "content": random.choice([random_words(random, 200), "cut \ud83d", "a\0b", ""]),
        }
        for one in ids
    ]
    return [
        {"role": "assistant", "content": content, **({"tool_calls": calls} if calls else {}), **extra},
        *answers,
    ]


def random_transcript(random: Random, turns: int, *, interrupted: float = 0.15) -> list[Message]:
    """Return a transcript of some turns; at `interrupted` of its places the next message is missing."""
    return list(_interrupt_messages(random, _iterate_turns(random, turns), interrupted))


def _iterate_turns(random: Random, turns: int) -> Iterator[Message]:
    yield {"role": "system", "content": "You are careful."}
    for turn in range(turns):
        yield {"role": "user", "content": random_words(random)}
        for step in range(random.randint(1, 4)):
            id = f"{turn}_{step}"
            match random.randrange(6):
                case 0:
                    yield {"role": "assistant", "content": random_words(random)}
                case 1:
                    yield native_item(random, id)
                case 2:
                    yield from claude_answer(random, id)
                case 3:
                    yield from gemini_answer(random, id)
                case 4:
                    yield from chat_answer(random, id)
                case _:
                    yield from native_pair(random, id)


def _interrupt_messages(random: Random, messages: Iterator[Message], interrupted: float) -> Iterator[Message]:
    for message in messages:
        if message.get("role") == "system" or random.random() > interrupted:
            yield message


# ── a coding agent ──────────────────────────────────────────────────────────────────────────────────────────────────


class Edit(NamedTuple):
    """What a patch changes."""

    path: str
    old: str
    new: str


def coding_session(random: Random, size: int) -> tuple[list[Message], list[Edit]]:
    """Return a session as Codex records it, of so many bytes, and what its patches change in order.

    The files are named in patches only, each once.
    """
    messages: list[Message] = []
    edits: list[Edit] = []
    written = 0
    while written < size:
        turn = len(edits)
        edit = Edit(
            f"src/{random.choice(WORDS[:3])}/part{turn}.py",
            f"    limit = {random.randint(1, 99)}",
            f"    limit = {random.randint(100, 999)}  # {random_words(random, 5)}",
        )
        edits.append(edit)
        items = list(_coding_turn(random, turn, edit))
        written += sum(len(json.dumps(item, ensure_ascii=False)) for item in items)
        messages += items
    return messages, edits


def _coding_turn(random: Random, turn: int, edit: Edit) -> Iterator[Message]:
    yield {
        "role": "user",
        "content": [{"type": "input_text", "text": f"Task {turn}: {random_words(random)}"}],
    }
    for step in range(random.randint(1, 3)):
        yield _reasoning_item(random, f"{turn}_{step}")
        yield from _shell_call(random, f"{turn}_{step}")
    yield _reasoning_item(random, f"{turn}_patch")
    call = {"call_id": f"patch_{turn}"}
    if random.random() < 0.7:
        hunk = f"@@ def load():\n-{edit.old}\n+{edit.new}"
        patch = f"*** Begin Patch\n*** Update File: {edit.path}\n{hunk}\n*** End Patch"
        yield {"type": "custom_tool_call", "id": f"ctc_{turn}", **call, "name": "apply_patch", "input": patch}
        yield {"type": "custom_tool_call_output", **call, "output": "Done!"}
    else:
        operation = {"type": "update_file", "path": edit.path, "diff": f"@@\n-{edit.old}\n+{edit.new}"}
        yield {"type": "apply_patch_call", "id": f"apc_{turn}", **call, "status": "completed",
               "operation": operation}  # fmt: skip
        yield {"type": "apply_patch_call_output", **call, "status": "completed"}
    yield {"type": "message", "id": f"msg_{turn}", "role": "assistant", "status": "completed",
           "content": [{"type": "output_text", "text": random_words(random), "annotations": []}]}  # fmt: skip


def _reasoning_item(random: Random, id: str) -> Message:
    summary = [{"type": "summary_text", "text": random_words(random)}]
    return {"type": "reasoning", "id": f"rs_{id}", "summary": summary, "encrypted_content": "gAAA" * 50}


def _shell_call(random: Random, id: str) -> list[Message]:
    command = ["bash", "-lc", f"rg -n {random.choice(WORDS)} | head -{random.randint(1, 90)}"]
    output = random_words(random, random.choice([20, 200, 2_000]))
    call = {"call_id": f"shell_{id}"}
    if random.random() < 0.5:
        arguments = json.dumps({"command": command, "timeout_ms": 10_000})
        result = json.dumps({"output": output, "metadata": {"exit_code": 0, "duration_seconds": 0.2}})
        return [
            {"type": "function_call", "id": f"fc_{id}", **call, "name": "shell", "arguments": arguments},
            {"type": "function_call_output", **call, "output": result},
        ]
    action = {"type": "exec", "command": command, "env": {}}
    return [
        {"type": "local_shell_call", "id": f"lsh_{id}", **call, "status": "completed", "action": action},
        {"type": "local_shell_call_output", **call, "output": output},
    ]
