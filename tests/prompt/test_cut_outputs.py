"""Tool calls that are longer than the budget: what is shown of a long output, and of the calls of a long turn."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from acms import ACMS, FitError, Prompt, ToolCall, ToolResult, open_storage
from acms.codecs import AnthropicMessages, OpenAIChat
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


def _make_orders(count: int) -> list[dict[str, Any]]:
    """Orders that are all paid, but for one in the middle."""
    rng = random.Random(count)
    orders: list[dict[str, Any]] = []
    for _ in range(count):
        customer = "".join(rng.choices(["ka", "lo", "mi", "ren", "tu", "vas", "pel", "dor"], k=3))
        order = {"id": rng.randrange(10**6), "customer": customer.capitalize(), "total": rng.randrange(5_000)}
        orders.append({**order, "exit": 0, "state": "paid"})
    orders[count // 2]["state"] = "FAILED"
    orders[count // 4]["exit"] = 137_000_000
    return orders


def _as_items(orders: list[dict[str, Any]]) -> str:
    return "\n".join(
        "- " + "\n  ".join(f"{name}: {value}" for name, value in order.items()) for order in orders
    )


def _as_elements(orders: list[dict[str, Any]]) -> str:
    elements = [
        "<order>\n" + "".join(f"  <{name}>{value}</{name}>\n" for name, value in order.items()) + "</order>"
        for order in orders
    ]
    return "\n".join(elements)


def _as_rows(orders: list[dict[str, Any]], delimiter: str) -> str:
    rows = [delimiter.join(orders[0]), *[delimiter.join(map(str, order.values())) for order in orders]]
    return "\n".join(rows)


ORDER_FORMATS: dict[str, Callable[[list[dict[str, Any]]], str]] = {
    "printed JSON": lambda orders: json.dumps(orders, indent=1),
    "nested JSON": lambda orders: json.dumps(
        {"items": [{"spec": order, "args": [f"{order['customer']}-run", "--now"]} for order in orders]},
        indent=4,
    ),
    "JSON in one line": json.dumps,
    "JSON lines": lambda orders: "\n".join(map(json.dumps, orders)),
    "YAML": _as_items,
    "XML": _as_elements,
    "CSV": lambda orders: _as_rows(orders, ","),
    "table": lambda orders: _as_rows(orders, " | "),
    "logfmt": lambda orders: "\n".join(
        " ".join(f"{name}={value}" for name, value in order.items()) for order in orders
    ),
}


@pytest.mark.parametrize("budget", [1_000, 2_000, 4_000])
@pytest.mark.parametrize("count", [40, 130, 330])
@pytest.mark.parametrize("name", ORDER_FORMATS)
async def test_a_record_with_an_unusual_value_is_shown_whole(name: str, count: int, budget: int) -> None:
    orders = _make_orders(count)
    output = ORDER_FORMATS[name](orders)
    codec = OpenAIChat("gpt-4o")
    async with ACMS("s", "memory://", None) as session:
        await session.ingest("user", "Can you check the shipping for Kalomi?")
        call = {"id": "call_1", "name": "search_orders", "arguments": "{}"}
        await session.ingest("assistant", "", tool_calls=[call])
        await session.ingest("tool", output, tool_call_id="call_1")
        rendered = await Prompt(codec).history(session).render(budget=budget)
    shown = rendered.payload["messages"][-1]["content"]
    whole_lines = {"", *output.split("\n")}
    if name != "JSON in one line":
        assert all(line in whole_lines or line.startswith("[…") for line in shown.split("\n"))
    for order in (orders[count // 2], orders[count // 4]):
        value = "FAILED" if order["state"] == "FAILED" else str(order["exit"])
        assert value in shown
        record = shown[max(0, shown.index(value) - 200) :][:400]
        assert all(str(other) in record for other in order.values())
    assert rendered.tokens.upper_bound <= budget
    # An agent's turn leaves a sixth of the budget free.
    assert shown == output or rendered.tokens.upper_bound > 0.8 * 5 / 6 * budget


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
    assert times_shown == [1] * 16
    without_results, *lines = named.split("tool call: ")
    assert "earlier tool calls (results not shown): edit_file(" in without_results
    assert 3 < len(lines) < 12
    for line in lines:
        number = int(line.partition("module_")[2].partition(".py")[0])
        assert f"→ 1 replacement in {number} […] saved {number}" in line.replace("line of the file", "")
    assert again.payload == rendered.payload


async def ingest_checks(session: ACMS, hosts: int) -> None:
    """A turn with a call for each host, and an output of some ninety tokens each."""
    await session.ingest("user", "Which host has a full disk?")
    for number in range(hosts):
        await check_host(session, f"web{number:02d}")


async def check_host(session: ACMS, host: str) -> None:
    call_id = f"call_{host}"
    call = {"id": call_id, "name": "df", "arguments": json.dumps({"host": host})}
    await session.ingest("assistant", "", tool_calls=[call])
    await session.ingest(
        "tool", f"disks of {host}\n" + "/dev/sdb1 200G 20G 180G 10%\n" * 4, tool_call_id=call_id
    )


def shown_hosts(payload: Mapping[str, Any]) -> set[str]:
    """The hosts that the messages behind the question name."""
    return set(re.findall(r"web\d\d", json.dumps(payload["messages"][1:])))


async def test_the_earlier_calls_of_a_turn_take_half_of_the_free_tokens_and_all_others_are_counted() -> None:
    async with ACMS("s", "memory://", None) as session:
        await ingest_checks(session, 90)
        rendered = await Prompt(OpenAIChat("gpt-5")).history(session).render(budget=1000)
    text = json.dumps(rendered.payload)
    named = shown_hosts(rendered.payload)
    assert 20 < len(named) < 90
    assert f"{90 - len(named)} not named, df(" in text
    assert rendered.tokens.upper_bound <= 800


@pytest.mark.parametrize("budget", [800, 1500])
async def test_an_agent_that_calls_each_host_it_does_not_see_comes_to_an_end(budget: int) -> None:
    hosts = [f"web{number:02d}" for number in range(20)]
    async with ACMS("s", "memory://", None) as session:
        await session.ingest("user", "Which host has a full disk?")
        for _ in hosts:
            rendered = await Prompt(OpenAIChat("gpt-5")).history(session).render(budget=budget)
            shown = shown_hosts(rendered.payload)
            await check_host(session, next(host for host in hosts if host not in shown))
        rendered = await Prompt(OpenAIChat("gpt-5")).history(session).render(budget=budget)
        assert shown_hosts(rendered.payload) == set(hosts)


async def test_a_cut_output_grows_with_the_budget() -> None:
    output = "disks: " + " ".join(f"/dev/sd{number} {number * 7 % 97}% used;" for number in range(60))
    async with ACMS("s", "memory://", None) as session:
        await session.ingest("user", "How full are the disks?")
        call = {"id": "call_1", "name": "df", "arguments": "{}"}
        await session.ingest("assistant", "", tool_calls=[call])
        await session.ingest("tool", output, tool_call_id="call_1")
        for budget in range(120, 600, 10):
            rendered = await Prompt(OpenAIChat("gpt-5")).history(session).render(budget=budget)
            shown = rendered.payload["messages"][-1]["content"]
            assert "/dev/sd0 0%" in shown
            assert budget - rendered.tokens.upper_bound <= budget / 2


@pytest.mark.parametrize("budget", range(150, 900, 50))
async def test_no_number_is_cut(budget: int) -> None:
    numbers = [str(100_000 + 7_919 * number) for number in range(120)]
    text = " ".join(f"latency={number}ms" for number in numbers)
    async with ACMS("s", "memory://", None) as session:
        await session.ingest("user", "Which latencies did we see? " + text)
        call = {"id": "call_1", "name": "latencies", "arguments": json.dumps({"old": text})}
        await session.ingest("assistant", "", tool_calls=[call])
        await session.ingest("tool", text, tool_call_id="call_1")
        rendered = await Prompt(OpenAIChat("gpt-5")).history(session).render(budget=budget)
    without_marks = re.sub(r"\[….*?\]|call_1", " ", str(rendered.payload["messages"]))
    assert set(re.findall(r"\d+", without_marks)) <= set(numbers)


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


async def test_short_results_stay_whole_beside_a_long_one_of_the_same_message() -> None:
    async with ACMS("s", "memory://", None) as session:
        await session.ingest("user", "Check all hosts.")
        calls = [{"id": f"call_{number}", "name": "check", "arguments": "{}"} for number in range(12)]
        await session.ingest("assistant", "", tool_calls=calls)
        report = "\n".join(f"line {number} of a long report" for number in range(800))
        short_results = [f"Host {number} is well. " + "All its disks are fine. " * 12 for number in range(11)]
        for call, result in zip(calls, [*short_results, report], strict=True):
            await session.ingest("tool", result, tool_call_id=call["id"])
        await session.ingest("assistant", "The last host has a long report.")
        await session.ingest("user", "And the tickets?")
        rendered = await Prompt(OpenAIChat("gpt-5")).history(session).render(budget=3_000)
    shown = [message["content"] for message in rendered.payload["messages"] if message["role"] == "tool"]
    assert shown[:11] == short_results
    assert shown[11] != report


async def test_an_error_before_any_message_of_the_history_says_so() -> None:
    async with ACMS("s", "memory://", None) as session:
        await session.ingest("user", "Check all hosts.")
        prompt = Prompt(OpenAIChat("gpt-5")).system("Be brief. " * 100).history(session)
        with pytest.raises(FitError, match="no message of the history is among them"):
            await prompt.render(budget=100)


@pytest.mark.parametrize("budget", [30, 40, 60, 90])
async def test_a_short_message_is_shown_whole_or_not_at_all(budget: int) -> None:
    async with ACMS("s", "memory://", None) as session:
        for number in range(20):
            await session.ingest("user", f"Ticket {number}: the printer on floor {number} is broken.")
        prompt = Prompt(OpenAIChat("gpt-4o")).history(session)
        rendered = await prompt.render(budget=budget)
    texts = [message.text for message in rendered.placed]
    assert texts
    assert all(text.endswith("is broken.") for text in texts)


@pytest.mark.parametrize("kind", ["user", "assistant", "external"])
@pytest.mark.parametrize("budget", [1_000, 8_000])
async def test_a_long_message_does_not_hide_what_was_said_before_it(kind: str, budget: int) -> None:
    document = "\n".join(f"line {number}: shard {number} is backed up" for number in range(1_500))
    async with ACMS("s", "memory://", None) as session:
        for number in range(10):
            await session.ingest("user", f"Remark {number} on gardens.")
            await session.ingest("assistant", f"Fine {number}.")
        origin = "external" if kind == "external" else None
        await session.ingest("assistant" if kind == "assistant" else "user", document, origin=origin)
        await session.ingest("user", "Thanks.")
        await session.ingest("assistant", "You are welcome.")
        prompt = Prompt(OpenAIChat("gpt-5")).history(session).recall(session, "Why?").user("Why?")
        rendered = await prompt.render(budget=budget)
        payload = json.dumps(rendered.payload)
        assert "Remark 3 on gardens." in payload
        assert "line 0: shard 0" in payload
        assert "line 1499: shard 1499" in payload
        assert budget * 0.3 < rendered.tokens.upper_bound <= budget
        assert any("are cut" in warning for warning in rendered.warnings)
        await session.ingest("user", "Why?")
        await session.ingest("assistant", "Because of the backups.")
        later = await prompt.render(budget=budget)
    shown = [message.text for message in rendered.placed if "line 0: shard 0" in message.text]
    assert shown == [message.text for message in later.placed if "line 0: shard 0" in message.text]


@pytest.mark.parametrize("lines", [5, 600])
@pytest.mark.parametrize("in_place", [False, True])
async def test_the_question_of_a_loop_stays_beside_its_call(in_place: bool, lines: int) -> None:
    question = "Never touch shard 7. Why is it slow?"
    async with ACMS("s", "memory://", None) as session:
        for number in range(40):
            await session.ingest("user", f"Remark {number} about shard {number} and the garden.")
            await session.ingest("assistant", f"Fine {number}.")
        await session.ingest("user", question)
        call = {"id": "c", "name": "read_file", "arguments": "{}"}
        await session.ingest("assistant", "I look.", tool_calls=[call])
        output = "\n".join(
            f"line {number}: shard {number} took {number * 7 % 91} ms" for number in range(lines)
        )
        await session.ingest("tool", output, tool_call_id="c")
        for codec in (OpenAIChat("gpt-5"), AnthropicMessages("claude-sonnet-4-5", max_tokens=64)):
            prompt = Prompt(codec).recall(session, question, in_place=in_place).history(session)
            for budget in (300, 500, 800, 1_200):
                rendered = await prompt.render(budget=budget)
                assert question in json.dumps(rendered.payload), (codec.name, budget)


async def test_calls_before_a_question_of_the_caller_may_be_left_out() -> None:
    async with ACMS("s", "memory://", None) as session:
        await session.ingest("user", "Read all the modules.")
        calls = [{"id": f"c{number}", "name": "read", "arguments": "{}"} for number in range(20)]
        await session.ingest("assistant", "", tool_calls=calls)
        for call in calls:
            await session.ingest("tool", "def f(): pass", tool_call_id=call["id"])
        prompt = Prompt(OpenAIChat("gpt-5")).history(session).user("What is in them?")
        rendered = await prompt.render(budget=200)
    assert "What is in them?" in json.dumps(rendered.payload)


@pytest.mark.parametrize("budget", [300, 1_000])
@pytest.mark.parametrize("codec", [OpenAIChat("gpt-4o"), AnthropicMessages("claude-sonnet-4-5")])
async def test_a_newest_answer_larger_than_the_budget_is_cut_before_a_question(
    codec: Any, budget: int
) -> None:
    async with ACMS("long", open_storage("memory://")) as session:
        await session.ingest("user", "I use Helix as my editor. How do I configure it?")
        steps = [
            f"Step {number}: open page {number}, choose item {number} and save." for number in range(110)
        ]
        await session.ingest("assistant", "\n\n".join(steps))
        question = "Which editor do I use?"
        prompt = Prompt(codec).history(session).recall(session, question).user(question)
        rendered = await prompt.render(budget=budget)
    text = str(rendered.payload)
    assert "I use Helix" in text
    assert "Step 0: open" in text
    assert rendered.tokens.upper_bound > 0.8 * budget
    assert any(warning.startswith("newest message: ") for warning in rendered.warnings)


async def show_finished_output(output: str, question: str, budget: int) -> str:
    """Return the output of an earlier call as it stands in the history of a prompt."""
    async with ACMS("s", "memory://", None) as session:
        await session.ingest("user", "Start.")
        call = {"id": "call_1", "name": "search", "arguments": "{}"}
        await session.ingest("assistant", "", tool_calls=[call])
        await session.ingest("tool", output, tool_call_id="call_1")
        await session.ingest("assistant", "Done.")
        for number in range(6):
            await session.ingest("user", f"Note {number} about lunch.")
            await session.ingest("assistant", f"Filed {number}.")
        prompt = Prompt(OpenAIChat("gpt-4o")).history(session).recall(session, question).user(question)
        rendered = await prompt.render(budget=budget)
    (shown,) = [message["content"] for message in rendered.payload["messages"] if message["role"] == "tool"]
    return shown


@pytest.mark.parametrize("budget", [500, 800, 1_500])
async def test_no_line_is_cut_that_fits(budget: int) -> None:
    lines = [
        f'src/mod{number}.py:{number * 7}:    """Return item {number}. Of a log without tools, the sum. See below."""'
        for number in range(60)
    ]
    shown = (await show_finished_output("\n".join(lines), "log without tools", budget)).split("\n")
    assert set(shown) & set(lines)
    assert all(line in lines or line.startswith("[…") for line in shown)
    assert sum("; entry m_" in line for line in shown) <= 1


@pytest.mark.parametrize("budget", [500, 800, 1_500])
async def test_no_record_of_json_in_one_line_is_cut_that_fits(budget: int) -> None:
    records = [
        json.dumps({"week": 15, "region": "North", "customer": 100 + n, "orders": n}) for n in range(48)
    ]
    shown = await show_finished_output(f"[{', '.join(records)}]", "customer 130", budget)
    found = re.findall(r"\{[^}]*\}", shown)
    assert found
    assert set(found) <= set(records)
    assert re.sub(r"\{[^}]*\}|\[…[^]]*\]", "", shown).strip("[], \n") == ""


async def test_the_name_of_a_failed_test_stands_above_its_error() -> None:
    passed = "\n".join(f"tests/test_mod{number}.py {'.' * 20} [{number}%]" for number in range(90))
    failure = "____ test_login ____\n\n    def test_login():\n>       assert total() == 1\nE       where 2 = total()\n"
    output = f"{passed}\n==== FAILURES ====\n{failure}\n{'WARNING slow path' * 40}\n1 failed, 89 passed"
    shown = await show_finished_output(output, "Run the tests.", 1_000)
    assert "where 2 =" not in shown or "test_login" in shown


@pytest.mark.parametrize("step", [100, 120])
async def test_an_excerpt_of_a_shown_output_adds_lines_and_names_the_call(step: int) -> None:
    subjects = ["Drop a recall of lists", "Test the recall of a query", "Name a test", "Move the cache"]
    log = [f"{number:08x} {subjects[number % 4]} in module number {number}" for number in range(400)]
    question = "Which commits changed the recall?"
    async with ACMS("s", "memory://", None) as session:
        for skip in (0, step, 2 * step):
            await session.ingest("user", f"What is new since {skip}?")
            call = {"id": f"c{skip}", "name": "git_log", "arguments": json.dumps({"skip": skip})}
            await session.ingest("assistant", "", tool_calls=[call])
            await session.ingest("tool", "\n".join(log[skip : skip + 120]), tool_call_id=f"c{skip}")
            await session.ingest("assistant", "I see.")
        prompt = Prompt(OpenAIChat("gpt-4o")).history(session).recall(session, question).user(question)
        rendered = [await prompt.render(budget=budget) for budget in (1_500, 3_000, 6_000)]
    blocks: list[str] = []
    for one in rendered:
        text = "\n\n".join([message["content"] or "" for message in one.payload["messages"]])
        block = text[text.find("<recalled>") : text.find("</recalled>")]
        blocks.append(block)
        shown = re.findall(r"[0-9a-f]{8} .* number \d+", text if step == 120 else block)
        assert len(shown) == len(set(shown))
        assert not any(piece.startswith("tool: ") for piece in block.split("\n\n"))
    assert "tool call: git_log(" in "".join(blocks)
