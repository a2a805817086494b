"""Tool calls that are longer than the budget: what is shown of a long output, and of the calls of a long turn."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from acms import ACMS, Prompt, ToolCall, ToolResult, open_storage
from acms.codecs import OpenAIChat
from acms.prompt.manifest import Manifest

NAMES = [
    f"{shop}-{part}" for shop in ("orders", "billing", "search", "cart") for part in ("api", "db", "cache")
]
SERVICES = [
    {
        "service": name,
        "port": 4_000 + 37 * number,
        "limits": {"cpu": number, "memory": f"{200 + number} GB"},
        "tags": ["shop", "live"],
    }
    for number, name in enumerate(4 * NAMES)
    if number < len(NAMES) or not name.startswith("search")  # the services that are asked for stand once
]
ASKED = next(service for service in SERVICES if service["service"] == "search-db")


def _as_markdown(services: list[dict[str, Any]]) -> str:
    sections = [
        f"## {service['service']}\n\nIn production.\n\n- port: {service['port']}\n"
        f"- memory: {service['limits']['memory']}\n"
        for service in services
    ]
    return "# Services\n\n" + "\n".join(sections)


def _as_yaml(services: list[dict[str, Any]]) -> str:
    records = [
        f"  - name: {service['service']}\n    port: {service['port']}\n    limits:\n"
        f"      cpu: {service['limits']['cpu']}\n      memory: {service['limits']['memory']}"
        for service in services
    ]
    return "services:\n" + "\n".join(records)


def _as_code(services: list[dict[str, Any]]) -> str:
    functions = [
        f"def start_{service['service'].replace('-', '_')}(host):\n    options = load(host)\n\n"
        f"    port = {service['port']}\n    return run(host, port, options)\n"
        for service in services
    ]
    return "import os\n\n\n" + "\n\n".join(functions)


FORMATS: dict[str, Callable[[list[dict[str, Any]]], str]] = {
    "printed JSON": lambda services: json.dumps({"data": {"items": services}, "next": None}, indent=2),
    "JSON in one line": lambda services: json.dumps({"data": {"items": services}}),
    "JSON by name": lambda services: json.dumps(
        {service["service"]: service for service in services}, indent=2
    ),
    "JSON lines": lambda services: "\n".join(map(json.dumps, services)),
    "Markdown": _as_markdown,
    "YAML": _as_yaml,
    "code": _as_code,
}


@pytest.mark.parametrize("name", FORMATS)
async def test_the_record_that_answers_is_shown_whole(name: str) -> None:
    output = FORMATS[name](SERVICES)
    async with ACMS("s", "memory://", None) as session:
        await session.ingest("user", "Which port does search-db listen on?")
        call = {"id": "call_1", "name": "services", "arguments": "{}"}
        await session.ingest("assistant", "", tool_calls=[call])
        await session.ingest("tool", output, tool_call_id="call_1")
        rendered = await Prompt(OpenAIChat("gpt-5")).history(session).render(budget=400)
    (shown,) = [message["content"] for message in rendered.payload["messages"] if message["role"] == "tool"]
    asked = "search_db" if name == "code" else "search-db"
    record = shown[shown.index(asked) :].partition("[…")[0]
    assert str(ASKED["port"]) in record[:200]
    assert len(shown) < len(output)


async def test_calls_of_a_long_turn_are_shown_or_named_in_one_line() -> None:
    async with ACMS("s", "memory://", None) as session:
        await session.ingest("user", "Rename the field in all modules.")
        for number in range(16):
            arguments = json.dumps({"path": f"src/module_{number}.py", "text": f"field_{number} = 1\n" * 40})
            call = {"id": f"call_{number}", "name": "edit_file", "arguments": arguments}
            await session.ingest("assistant", "", tool_calls=[call])
            output = f"1 replacement in {number}\n" + "line of the file\n" * 60 + f"saved {number}"
            await session.ingest("tool", output, tool_call_id=f"call_{number}")
        prompt = Prompt(OpenAIChat("gpt-5")).history(session)
        rendered = await prompt.render(budget=6000)
        messages = rendered.payload["messages"]
        again = await prompt.render(budget=6000)
    assert rendered.tokens.upper_bound <= 6000
    assert messages[0]["content"] == "Rename the field in all modules."
    (named,) = [message["content"] for message in messages if "<recalled>" in (message["content"] or "")]
    shown = [call["function"]["arguments"] for message in messages for call in message.get("tool_calls", ())]
    times_shown: list[int] = []
    for number in range(16):
        path = f'"src/module_{number}.py"'
        times_shown.append((path in named) + sum(path in arguments for arguments in shown))
        if path in named:
            assert f"→ 1 replacement in {number} […] saved {number}" in named.replace("line of the file", "")
    assert times_shown == sorted(times_shown)  # only the oldest may be missing
    assert sum(times_shown) >= 12
    assert max(times_shown) == 1
    assert again.payload == rendered.payload


async def test_the_named_calls_of_a_long_turn_take_a_tenth_of_the_budget() -> None:
    async with ACMS("s", "memory://", None) as session:
        await session.ingest("user", "Rename the field in all modules.")
        for number in range(60):
            arguments = json.dumps({"path": f"src/module_{number}.py"})
            call = {"id": f"call_{number}", "name": "edit_file", "arguments": arguments}
            await session.ingest("assistant", "", tool_calls=[call])
            await session.ingest(
                "tool", f"saved {number}\n" + "line of the file\n" * 90, tool_call_id=call["id"]
            )
        rendered = await Prompt(OpenAIChat("gpt-5")).history(session).render(budget=3000)
    assert 0 < rendered.use.recalled <= 300


async def test_a_recall_adds_what_a_cut_document_does_not_show() -> None:
    sections = [
        f"Section {number}. " + f"The river of village {number} is calm. " * 12 for number in range(40)
    ]
    sections[22] += "The crane of the harbour lifts 40 tons."
    document = "The report of the harbour. The harbour master is Vera.\n\n" + "\n\n".join(sections)
    question = "How much does the crane of the harbour lift, and who is the harbour master?"
    async with ACMS("s", "memory://", None) as session:
        await session.ingest("user", document)
        await session.ingest("assistant", "I have read it.")
        prompt = Prompt(OpenAIChat("gpt-5")).history(session).recall(session, question).user(question)
        rendered = await prompt.render(budget=1200)
    texts = "\n".join([message["content"] for message in rendered.payload["messages"]])
    assert texts.count("The harbour master is Vera.") == 1
    assert texts.count("lifts 40 tons.") == 1
    assert rendered.tokens.upper_bound <= 1200
    assert rendered.use.free < 120


@pytest.mark.parametrize("budget", [400, 100_000])
async def test_an_empty_output_stays_empty(budget: int) -> None:
    async with ACMS("s", open_storage("memory://"), None) as session:
        for n in range(20):
            await session.ingest("user", f"Earlier question {n} about lunch and more.")
            await session.ingest("assistant", f"Earlier answer {n}.")
        await session.ingest("user", "Make the folder.")
        await session.ingest("assistant", "", tool_calls=[{"id": "c1", "name": "mkdir", "arguments": "{}"}])
        await session.ingest("tool", "", tool_call_id="c1")
        rendered = await Prompt(OpenAIChat("gpt-4o")).history(session).user("Next?").render(budget=budget)
    outputs = [part.output for one in rendered.placed for part in one.parts if isinstance(part, ToolResult)]
    assert outputs == [""]
    assert Manifest.from_json(rendered.manifest.to_json()) == rendered.manifest


@pytest.mark.parametrize("calls", [1, 2, 6])
async def test_arguments_are_only_cut_if_that_saves_tokens(calls: int) -> None:
    query = "which orders of customer {0} came in from the northern warehouse on Monday, and why late"
    arguments = [json.dumps({"q": query.format(n)}) for n in range(calls)]
    codec = OpenAIChat("gpt-4o")
    async with ACMS("s", open_storage("memory://"), None) as session:
        for n in range(30):
            await session.ingest("user", f"Earlier question {n} about lunch and more.")
            await session.ingest("assistant", f"Earlier answer {n}.")
        await session.ingest("user", "Find it.")
        tool_calls = [
            {"id": f"c{n}", "name": "search", "arguments": text} for n, text in enumerate(arguments)
        ]
        await session.ingest("assistant", "", tool_calls=tool_calls)
        for n in range(calls):
            await session.ingest("tool", "order 4711 was late because of snow; " * 12, tool_call_id=f"c{n}")
        await session.ingest("assistant", "Snow.")
        for budget in (600, 1_000, 3_000):
            rendered = await Prompt(codec).history(session).user("Next?").render(budget=budget)
            shown = [part for one in rendered.placed for part in one.parts if isinstance(part, ToolCall)]
            for part, whole in zip(shown, arguments, strict=False):
                count = codec.counter.count
                assert part.arguments == whole or count(part.arguments) < count(whole)
            assert Manifest.from_json(rendered.manifest.to_json()) == rendered.manifest
