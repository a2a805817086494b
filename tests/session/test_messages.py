"""`messages()`: what it shows of a log that is longer than the budget, and that a provider accepts it."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acms import ACMS, BPETokenCounter, TokenBudgetExceededError
from acms.storage import MemoryStorage
from acms.text.chat_messages import count_message_tokens

Message = dict[str, Any]
RULE = "My rule: indent with tabs."
CODE = "\n".join(f"def f{number}(x): return x + {number}" for number in range(900))
ARGUMENTS = json.dumps({"path": "a.py", "content": CODE})


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


def call(id: str, name: str, arguments: str = "{}") -> Message:
    function = {"name": name, "arguments": arguments}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": id, "type": "function", "function": function}],
    }


def result(id: str, text: str) -> Message:
    return {"role": "tool", "tool_call_id": id, "content": text}


async def messages_of(held: Sequence[Message], query: str, budget: int) -> list[Message]:
    """Return the messages of a new session for a query, which are within the budget."""
    async with ACMS("s", MemoryStorage(), None) as session:
        await session.sync(list(held))
        messages = await session.messages(query, budget=budget)
        assert count_message_tokens(messages, BPETokenCounter()) <= budget
        return messages


LARGE_CALL = [user("write it"), call("c", "write_file", ARGUMENTS), result("c", "ok")]


async def test_a_large_call_is_cut_and_leaves_tokens_for_what_is_older() -> None:
    messages = await messages_of([user(RULE), assistant("Yes."), *LARGE_CALL], "2+2?", 4_000)
    assert [message["role"] for message in messages] == ["user", "assistant", "user", "assistant", "tool"]
    assert messages[0]["content"] == RULE
    assert messages[3]["content"] is None, "the arguments are written once"
    arguments = json.loads(messages[3]["tool_calls"][0]["function"]["arguments"])
    assert arguments["path"] == "a.py"
    assert arguments["content"].startswith("def f0(x)")
    assert "characters left out" in arguments["content"]


@pytest.mark.parametrize(
    "large",
    [
        pytest.param(LARGE_CALL, id="call"),
        pytest.param([user("read it"), call("c", "read_file"), result("c", CODE)], id="result"),
        pytest.param([user(CODE)], id="user"),
        pytest.param([user("write it"), assistant(CODE)], id="assistant"),
    ],
)
async def test_a_large_message_does_not_hide_what_is_older(large: list[Message]) -> None:
    held = [user(RULE), assistant("Yes."), *large, assistant("Done."), user("Thanks, go on.")]
    messages = await messages_of(held, "Thanks, go on.", 4_000)
    assert messages[0]["content"] == RULE
    assert messages[-1]["content"] == "Thanks, go on."
    shown = json.dumps(messages)
    assert "def f0(x)" in shown
    assert "def f450(x)" not in shown


async def test_a_large_first_message_gets_all_tokens_that_others_leave() -> None:
    messages = await messages_of([user(CODE), assistant("Done."), user("Thanks, go on.")], "Thanks", 4_000)
    assert count_message_tokens(messages, BPETokenCounter()) > 3_800


async def test_a_long_question_is_not_cut_for_what_it_recalls() -> None:
    question = "Which backup of the orders database failed? " + "It ran at night. " * 60
    held: list[Message] = []
    for number in range(60):
        held += [user(f"Backup {number} of the orders database failed at night."), assistant("I see.")]
    messages = await messages_of([*held, user(question)], question, 800)
    assert messages[-1]["content"] == question


async def test_the_question_of_a_long_turn_stays_behind_what_is_older() -> None:
    calls: list[Message] = []
    for number in range(12):
        calls += [call(f"c{number}", "read_file"), result(f"c{number}", f"line {number}: " + "fine " * 60)]
    calls[-1] = result("c11", CODE)
    held = [user(RULE), assistant("Yes."), user("check all files"), *calls]
    messages = await messages_of(held, "check all files", 4_000)
    contents = [message["content"] for message in messages if message["role"] == "user"]
    assert contents[-1] == "check all files"
    assert RULE not in contents or contents.index(RULE) < contents.index("check all files")


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("read-file_2", "read-file_2"),
        ("multi_tool_use.parallel", "multi_tool_use_parallel"),
        ("ns/tool", "ns_tool"),
        ("n" * 70, "n" * 64),
    ],
)
async def test_names_of_tools_are_sent_as_openai_accepts_them(name: str, sent: str) -> None:
    held = [user("q"), call("c", name), result("c", "r"), assistant("x")]
    async with ACMS("s", MemoryStorage(), None) as session:
        await session.sync(held)
        messages = await session.messages("q", budget=900)
        assert messages[1]["tool_calls"][0]["function"]["name"] == sent
        assert (await session.entries())[1].content == f"{name}({{}})", "the log keeps the name"
        again = await session.sync([*messages, user("next")])
        assert len(again.appended) == 1


TEXTS = st.sampled_from(
    ["ok", "締め切りは三月二十日 " * 9, "x" * 3_000, CODE, "The backup failed at night. " * 20]
)
NAMES = st.sampled_from(["disk", "a.b.c", "ns/tool", "bad name!", "n" * 70])
ARGUMENT_TEXTS = st.sampled_from(["{}", "", "[1, 2]", '{"a": ', ARGUMENTS, '{"host": "db1"}'])


@st.composite
def histories(draw: st.DrawFn) -> list[Message]:
    """Draw turns of a user, of calls with some of their results, and of answers."""
    held: list[Message] = []
    for turn in range(draw(st.integers(1, 6))):
        held.append(user(f"{turn} {draw(TEXTS)}"))
        for step in range(draw(st.integers(0, 3))):
            id = f"call_{turn}_{step}"
            held.append(call(id, draw(NAMES), draw(ARGUMENT_TEXTS)))
            if draw(st.integers(0, 9)):
                held.append(result(id, draw(TEXTS)))
        if draw(st.booleans()):
            held.append(assistant(draw(TEXTS)))
    return held


def find_violations(messages: Sequence[Message]) -> list[str]:
    """Return where messages break a rule of OpenAI's chat format."""
    violations: list[str] = []
    open_calls: set[str] = set()
    for index, message in enumerate(messages):
        if message["role"] == "tool":
            if message["tool_call_id"] not in open_calls:
                violations.append(f"{index}: a result without its call")
            open_calls.discard(message["tool_call_id"])
            continue
        if open_calls:
            violations.append(f"{index}: calls without results: {open_calls}")
        open_calls = {made["id"] for made in message.get("tool_calls", ())}
        if not open_calls and not message["content"]:
            violations.append(f"{index}: an empty message")
    return violations + [f"the end: calls without results: {open_calls}"] * bool(open_calls)


@given(held=histories(), budget=st.integers(60, 9_000))
async def test_messages_are_valid_and_within_any_budget(held: list[Message], budget: int) -> None:
    try:
        messages = await messages_of(held, "Which backup failed?", budget)
    except TokenBudgetExceededError:
        assert held[-1]["role"] != "user"
        return
    assert find_violations(messages) == []
