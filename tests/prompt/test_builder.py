"""The builder: allowed parts of a prompt, their order, and the errors raised before anything is read."""

from __future__ import annotations

from typing import Any

import pytest

from acms import (
    ACMS,
    ConfigurationError,
    Media,
    Reasoning,
    Role,
    Text,
    ToolCall,
    ToolResult,
    ValidationError,
    open_storage,
)
from acms.codecs import AnthropicMessages, OpenAIChat, OpenAIResponses, Tool
from acms.errors import FitError, PayloadError
from acms.plan.nodes import ComposedMessage, MessageGroup, Piece, Scope
from acms.prompt import Prompt, Rendered, Request
from acms.prompt_types import PromptMessage
from tests.support.talk import Storage, ingest_texts, session_on, tool_turn


def make_codec() -> OpenAIChat:
    return OpenAIChat("gpt-4o")


def make_prompt() -> Prompt:
    return Prompt(make_codec())


def roles_and_texts(rendered: Rendered) -> list[tuple[str, str]]:
    """Return role and text of every message; of a result its output."""
    found: list[tuple[str, str]] = []
    for message in rendered.messages:
        outputs = [part.output for part in message.parts if isinstance(part, ToolResult)]
        found.append((message.role.value, outputs[0] if outputs else message.text))
    return found


CALL = {"id": "call_1", "name": "disk", "arguments": '{"host": "db1"}'}
NOBODY = ACMS("nobody", open_storage("memory://"), None)


# ── messages ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_messages_come_out_in_the_order_of_calls() -> None:
    rendered = await (
        make_prompt()
        .system("S")
        .developer("D")
        .user("U", name="sam")
        .assistant("A")
        .message("user", "U2")
        .message(Role.ASSISTANT, [Text("A"), Text("2")])
        .render()
    )
    assert roles_and_texts(rendered) == [
        ("system", "S"),
        ("developer", "D"),
        ("user", "U"),
        ("assistant", "A"),
        ("user", "U2"),
        ("assistant", "A\n2"),
    ]
    assert rendered.payload["messages"][2]["name"] == "sam"
    assert make_codec().parse(rendered.payload) == tuple(
        PromptMessage(role=one.role, parts=one.parts, name=one.name) for one in rendered.messages
    )


async def test_a_tool_call_and_its_answer_are_typed_parts() -> None:
    rendered = await (
        make_prompt()
        .user("How full is db1?")
        .assistant("Let me look.", tool_calls=[CALL], reasoning="The disk tool knows.")
        .tool("call_1", "40%")
        .render()
    )
    asked, answered = rendered.payload["messages"][1:]
    assert asked["tool_calls"][0]["function"] == {"name": "disk", "arguments": '{"host": "db1"}'}
    assert answered == {"role": "tool", "tool_call_id": "call_1", "content": "40%"}


async def test_a_failed_tool_is_told_apart() -> None:
    told = {"role": "tool", "tool_call_id": "call_1", "content": "no such host", "is_error": True}
    asked = Prompt(AnthropicMessages("claude-opus-5")).user("How full?").assistant(tool_calls=[CALL])
    for built in (asked.tool("call_1", "no such host", is_error=True), asked.add(told)):
        (block,) = (await built.render()).payload["messages"][2]["content"]
        assert (block["content"], block["is_error"]) == ("no such host", True)


async def test_images_are_parts_with_a_stated_cost() -> None:
    picture = Media("image/png", "https://example.com/plan.png", tokens=765)
    rendered = await make_prompt().user([Text("What is this?"), picture]).render()
    bare = await make_prompt().user("What is this?").render()
    assert rendered.tokens.tokens >= bare.tokens.tokens + 765


async def test_one_part_may_stand_for_a_list_of_it() -> None:
    assert roles_and_texts(await make_prompt().user(Text("U")).assistant(Text("A")).render()) == [  # type: ignore[arg-type]
        ("user", "U"),
        ("assistant", "A"),
    ]


def test_a_recall_has_one_number_of_tokens() -> None:
    with pytest.raises(TypeError, match="budget or tokens, not both"):
        make_prompt().recall(NOBODY, "q", tokens=100, budget=100)


async def test_an_answer_stands_with_its_call_wherever_it_was_written() -> None:
    rendered = await (
        make_prompt().user("?").assistant(tool_calls=[CALL]).user("hurry").tool("call_1", "40%").render()
    )
    assert roles_and_texts(rendered) == [("user", "?"), ("assistant", ""), ("tool", "40%"), ("user", "hurry")]


async def test_a_call_without_an_answer_gets_one_that_says_so_and_an_answer_without_a_call_is_text() -> None:
    rendered = await make_prompt().assistant(tool_calls=[CALL]).tool("call_9", "lost").render()
    roles = [role for role, _ in roles_and_texts(rendered)]
    assert roles == ["assistant", "tool", "user"]
    assert "lost" in roles_and_texts(rendered)[2][1]


@pytest.mark.parametrize(
    ("build", "field"),
    [
        (lambda: make_prompt().user(""), "content"),
        (lambda: make_prompt().user("   "), "content"),
        (lambda: make_prompt().user(7), "content"),  # type: ignore[arg-type]
        (lambda: make_prompt().user("a" * 1_048_577), "content"),
        (lambda: make_prompt().message("narrator", "x"), "role"),
        (lambda: make_prompt().message("tool", "x"), "tool_call_id"),
        (lambda: make_prompt().message("tool", [Text("x")]), "tool_call_id"),
        (lambda: make_prompt().user([ToolResult("call_1", "x")]), "parts"),
        (lambda: make_prompt().system([ToolCall("call_1", "disk")]), "parts"),
        (lambda: make_prompt().user([Reasoning("hm")]), "parts"),
        (lambda: make_prompt().assistant([ToolResult("call_1", "x")]), "parts"),
        (lambda: make_prompt().assistant(), "content"),
        (lambda: make_prompt().assistant(tool_calls=[{"name": "disk"}]), "tool_calls[0].id"),
        (lambda: make_prompt().tool("", "x"), "parts[0].call_id"),
        (lambda: make_prompt().user([ComposedMessage(Role.USER, ())]), "content[0]"),  # type: ignore[list-item]
        (lambda: make_prompt().last(["x"], n=0), "n"),
        (lambda: make_prompt().truncate("x", tokens=-1), "tokens"),
        (lambda: make_prompt().truncate("x", tokens=1.5), "tokens"),  # type: ignore[arg-type]
        (lambda: make_prompt().truncate("x", tokens=5, keep="middle"), "keep"),
        (lambda: make_prompt().omit("x", priority=-1), "priority"),
        (lambda: make_prompt().omit("x", priority=True), "priority"),
        (lambda: make_prompt().history(object()), "content"),  # type: ignore[arg-type]
        (lambda: make_prompt().history([{"role": "user"}]), "content[0].content"),
        (
            lambda: make_prompt().history([{"role": "user", "content": "x", "colour": "red"}]),
            "content[0].colour",
        ),
        (lambda: make_prompt().history([{"content": "x"}]), "content[0]"),
        (lambda: make_prompt().add(b"bytes"), "content"),  # type: ignore[arg-type]
        (lambda: make_prompt().use(object()), "plugin"),  # type: ignore[arg-type]
        (lambda: make_prompt().use(Prompt), "plugin"),  # type: ignore[arg-type]
        (lambda: make_prompt().raw("text"), "node"),  # type: ignore[arg-type]
        (lambda: make_prompt().merge("text"), "prompts"),  # type: ignore[arg-type]
        (lambda: make_prompt().when(True, lambda one: None), "then"),  # type: ignore[arg-type,return-value]
        (lambda: make_prompt().section("s", "x", floor=5, ceiling=4), "ceiling"),
        (lambda: make_prompt().section("s", "x", share=1.5), "share"),
        (lambda: make_prompt().section("a/b", "x"), "name"),
        (lambda: make_prompt().section("s", "x").section("s", "y"), "name"),
        (lambda: make_prompt().section("s", lambda empty: None), "content"),  # type: ignore[arg-type,return-value]
        (lambda: make_prompt().tools([{"name": "no spaces please"}]), "tools[0].name"),
        (lambda: make_prompt().tools(["disk"]), "tools[0]"),  # type: ignore[list-item]
        (lambda: make_prompt().tools([{"name": "disk", "colour": "red"}]), "tools[0].colour"),
        (lambda: make_prompt().tools([{"type": "function", "function": "disk"}]), "tools[0].function"),
        (lambda: make_prompt().tools([{"type": "custom", "name": "disk"}]), "tools[0].type"),
        (lambda: make_prompt().tools([{"name": "disk", "parameters": "host"}]), "tools[0].parameters"),
        (lambda: make_prompt().omit(Prompt().tools([Tool(name="a")])), "content"),
        (lambda: make_prompt().tools([Tool(name="a"), Tool(name="a")]), "tools"),
        (lambda: make_prompt().tools({"name": "a"}), "tools"),  # type: ignore[arg-type]
        (lambda: make_prompt().recall("session", "q"), "session"),  # type: ignore[arg-type]
        (lambda: make_prompt().recall(NOBODY, "q", scope="team"), "scope"),  # type: ignore[arg-type]
        (lambda: make_prompt().history(Prompt().recall(NOBODY, "q")), "content"),
        (lambda: make_prompt().last([Prompt().recall(NOBODY, "q")], n=3), "content"),
        (lambda: make_prompt().cache_hint(ttl=0), "ttl"),
        (lambda: make_prompt().cache_hint().cache_hint(), "id"),
    ],
)
def test_what_makes_no_sense_is_refused_when_it_is_said(build: Any, field: str) -> None:
    with pytest.raises(ValidationError) as caught:
        build()
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("build", "field"),
    [
        (lambda: make_prompt().history("user_123"), "content"),
        (lambda: make_prompt().last("user_123", n=3), "content"),
        (lambda: make_prompt().recall("user_123", "q"), "session"),  # type: ignore[arg-type]
    ],
)
def test_the_name_of_a_session_in_place_of_the_session_is_refused(build: Any, field: str) -> None:
    with pytest.raises(ValidationError, match="must be a session") as caught:
        build()
    assert caught.value.field == field
    assert caught.value.options[0] == 'pass the session itself: ACMS("user_123", "sqlite:///memory.db")'


async def test_a_message_takes_the_content_of_a_providers_message() -> None:
    blocks: list[dict[str, Any]] = [
        {"type": "text", "text": "Read this."},
        {"type": "text", "text": "Then answer."},
    ]
    answer: list[dict[str, Any]] = [{"type": "tool_use", "id": "call_1", "name": "disk", "input": {}}]
    results: list[dict[str, Any]] = [{"type": "tool_result", "tool_use_id": "call_1", "content": "40%"}]
    prompt = make_prompt().user(blocks).assistant(answer).user(results)
    assert [message["role"] for message in (await prompt.render()).payload["messages"]] == [
        "user",
        "assistant",
        "tool",
    ]


# ── content ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_content_is_read_the_same_everywhere(storage: Storage) -> None:
    session = session_on(storage)
    await ingest_texts(session, "logged")
    view = session.at(1)
    content = [
        "text",
        {"role": "assistant", "content": "mapping"},
        PromptMessage(role=Role.USER, parts=(Text("message"),)),
        [Text("two"), Text("parts")],
        Text("part"),
        [ToolCall("c", "disk"), Reasoning("hm")],
        [ToolResult("c", "result")],
        Prompt().system("fragment"),
        ["nested", ["deeper"]],
        session,
        view,
        MessageGroup((PromptMessage(role=Role.USER, parts=(Text("group"),)),)),
        ComposedMessage(Role.USER, (Piece("composed", "p"),)),
        Scope(id="mine", children=(MessageGroup((PromptMessage(role=Role.USER, parts=(Text("scope"),)),)),)),
        None,
    ]
    expected = [
        ("user", "text"),
        ("assistant", "mapping"),
        ("user", "message"),
        ("user", "two\nparts"),
        ("user", "part"),
        ("assistant", ""),
        ("tool", "result"),
        ("system", "fragment"),
        ("user", "nested"),
        ("user", "deeper"),
        ("user", "logged"),
        ("user", "logged"),
        ("user", "group"),
        ("user", "composed"),
        ("user", "scope"),
    ]
    assert roles_and_texts(await make_prompt().add(content).render()) == expected
    assert roles_and_texts(await make_prompt().history(content).render()) == expected
    assert roles_and_texts(await make_prompt().last(content, n=99).render()) == expected
    assert roles_and_texts(await make_prompt().truncate(content, tokens=10_000).render()) == expected
    assert roles_and_texts(await make_prompt().omit(content).render()) == expected
    assert roles_and_texts(await make_prompt().section("all", content).render()) == expected


async def test_what_has_nothing_to_say_is_no_message_of_the_last_ones() -> None:
    content = ["a", "b", ComposedMessage(Role.USER, ())]
    assert [text for _, text in roles_and_texts(await make_prompt().last(content, n=2).render())] == [
        "a",
        "b",
    ]


async def test_scopes_of_one_name_are_told_apart_whatever_the_others_are_called() -> None:
    names = ("docs-2", "docs", "docs")
    scopes = [
        Scope(id=name, children=(MessageGroup((PromptMessage(role=Role.USER, parts=(Text(str(at)),)),)),))
        for at, name in enumerate(names)
    ]
    rendered = await make_prompt().raw(scopes[0]).raw(scopes[1]).raw(scopes[2]).render()
    assert [one.path for one in rendered.manifest.messages] == [
        "prompt/docs-2", "prompt/docs", "prompt/docs-3"
    ]  # fmt: skip


async def test_a_plain_text_is_the_users_unless_a_role_is_given() -> None:
    rendered = (
        await make_prompt()
        .truncate("a", 50)
        .truncate("b", 50, role="system")
        .omit("c", role="developer")
        .render()
    )
    assert roles_and_texts(rendered) == [("user", "a"), ("system", "b"), ("developer", "c")]


async def test_a_message_of_chat_completions_is_read_as_it_is_written() -> None:
    written = [
        {"role": "user", "content": "How full?", "name": "sam"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "disk", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c", "content": "40%"},
    ]
    rendered = await make_prompt().history(written).render()
    assert rendered.payload["messages"] == written


async def test_a_session_is_its_history_and_a_view_what_it_was(storage: Storage) -> None:
    session = session_on(storage)
    await ingest_texts(session, "one", "two")
    await tool_turn(session, "c", "40%")
    assert [text for _, text in roles_and_texts(await make_prompt().add(session).render())] == [
        "one",
        "two",
        "",
        "40%",
    ]
    assert [text for _, text in roles_and_texts(await make_prompt().add(session.at(1)).render())] == ["one"]


async def test_a_session_without_messages_is_nothing(storage: Storage) -> None:
    session = session_on(storage, "new")
    rendered = await (
        make_prompt()
        .history(session)
        .last(session, n=3)
        .recall(session, "what?")
        .user("hi")
        .render(budget=100)
    )
    assert roles_and_texts(rendered) == [("user", "hi")]


# ── last ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_last_shows_the_last_n_messages_of_a_log(storage: Storage) -> None:
    session = session_on(storage)
    await ingest_texts(session, *(f"m{number}" for number in range(10)))
    rendered = await make_prompt().last(session, n=3).render()
    assert [text for _, text in roles_and_texts(rendered)] == ["m7", "m8", "m9"]


async def test_last_never_splits_a_call_from_its_answers(storage: Storage) -> None:
    session = session_on(storage)
    await ingest_texts(session, "before")
    await tool_turn(session, "c", "40%", text="looking")
    await ingest_texts(session, "after")
    for n, expected in [
        (1, ["after"]),
        (2, ["looking", "40%", "after"]),
        (3, ["looking", "40%", "after"]),
        (4, ["before", "looking", "40%", "after"]),
    ]:
        assert [
            text for _, text in roles_and_texts(await make_prompt().last(session, n=n).render())
        ] == expected


async def test_defect_6_last_counts_messages_inside_nested_parts_too() -> None:
    """A content is the text it shows: a nested part is no hole."""
    inner = Prompt().section("notes", Prompt().user("a").omit(Prompt().user("b").user("c"))).user("d")
    assert [text for _, text in roles_and_texts(await make_prompt().last(inner, n=3).render())] == [
        "b",
        "c",
        "d",
    ]


# ── composition ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_every_call_returns_a_new_prompt() -> None:
    base = make_prompt().system("S")
    left, right = base.user("left"), base.user("right")
    assert roles_and_texts(await base.render()) == [("system", "S")]
    assert roles_and_texts(await left.render())[1] == ("user", "left")
    assert roles_and_texts(await right.render())[1] == ("user", "right")
    assert (await base.tools([Tool(name="a")]).render()).payload != (await base.render()).payload


async def test_when_builds_only_if_the_condition_holds() -> None:
    built = (
        make_prompt().user("a").when(False, lambda one: one.user("no")).when("yes", lambda one: one.user("b"))
    )
    assert [text for _, text in roles_and_texts(await built.render())] == ["a", "b"]


async def test_prompts_merge_in_order_with_their_tools() -> None:
    fragment = Prompt().developer("rules").tools([Tool(name="search")])
    merged = (
        make_prompt().system("S").tools([Tool(name="disk")]).merge(fragment, Prompt().user("U"), fragment)
    )
    rendered = await merged.render()
    assert [text for _, text in roles_and_texts(rendered)] == ["S", "rules", "U", "rules"]
    assert [tool["function"]["name"] for tool in rendered.payload["tools"]] == ["disk", "search"]


async def test_a_fragment_takes_the_codec_of_what_it_is_merged_with() -> None:
    rendered = await Prompt().system("S").merge(make_prompt().user("U")).render()
    assert rendered.codec.name.startswith("openai-chat")
    rendered = await Prompt().truncate(make_prompt().user("U"), 50).render()
    assert roles_and_texts(rendered) == [("user", "U")]


def test_one_codec_per_prompt() -> None:
    other = Prompt(OpenAIResponses("gpt-4o")).user("U")
    for build in (
        lambda: make_prompt().merge(other),
        lambda: make_prompt().truncate(other, 50),
        lambda: make_prompt().section("s", [other]),
        lambda: Prompt().omit(other).merge(make_prompt()),
    ):
        with pytest.raises(ValidationError) as caught:
            build()
        assert caught.value.field == "prompts"
    make_prompt().merge(Prompt(OpenAIChat("gpt-4o")).user("the same format and model"))


async def test_a_prompt_without_a_codec_cannot_be_rendered() -> None:
    with pytest.raises(ConfigurationError) as caught:
        await Prompt().user("U").render()
    assert caught.value.options


@pytest.mark.parametrize("codec", ["gpt-4o", OpenAIChat, Prompt(), object()])
def test_what_is_no_codec_is_refused_at_once(codec: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Prompt(codec)
    assert "OpenAIChat(model)" in caught.value.options


async def test_an_empty_prompt_is_no_request() -> None:
    with pytest.raises(PayloadError, match="there is no message to send") as caught:
        await make_prompt().render()
    assert caught.value.options == ("add a message that is required, such as user(…)",)


@pytest.mark.parametrize("keep", ["start", "end"])
async def test_a_cap_that_holds_no_message_is_named(keep: str) -> None:
    text = "All of the report, from its first line on."
    with pytest.raises(FitError, match="prompt/truncate may have 2 tokens, which hold no message") as caught:
        await make_prompt().truncate(text, 2, keep=keep).render(budget=500)
    assert caught.value.options[0] == "raise the tokens of prompt/truncate"
    assert (caught.value.where, caught.value.budget) == ("prompt/truncate", 2)
    assert (await make_prompt().truncate(text, 2, keep=keep).user("Go on.").render(budget=500)).payload


async def test_a_budget_that_holds_no_message_is_named() -> None:
    with pytest.raises(FitError, match="no message is left to send") as caught:
        await make_prompt().omit("All of it.").render(budget=5)
    assert caught.value.options[0] == "raise the budget"
    assert (await make_prompt().omit("All of it.").render(budget=caught.value.required)).payload


async def test_tools_are_read_in_neutral_and_in_openais_form() -> None:
    schema = {"type": "object", "properties": {"host": {"type": "string"}}}
    given = [
        Tool(name="a", description="A", parameters=schema),
        {"name": "b", "description": "B", "parameters": schema},
        {"type": "function", "function": {"name": "c", "description": "C", "parameters": schema}},
        {"type": "function", "name": "d", "description": "D", "parameters": schema},
    ]
    rendered = await make_prompt().user("U").tools(given).render()
    functions = [tool["function"] for tool in rendered.payload["tools"]]
    assert [function["name"] for function in functions] == ["a", "b", "c", "d"]
    assert all(function["parameters"] == schema for function in functions)


# ── plugins ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class Clock:
    """Says the time, and notes its calls."""

    def __init__(self, content: Any) -> None:
        self.content = content
        self.requests: list[Request] = []

    async def render(self, request: Request) -> Any:
        self.requests.append(request)
        return self.content


async def test_a_plugin_stands_where_it_was_used_and_is_asked_at_each_render() -> None:
    clock = Clock([{"role": "system", "content": "It is noon."}, "really"])
    built = make_prompt().user("before").use(clock).user("after")
    for _ in range(2):
        rendered = await built.render(budget=200)
        assert [text for _, text in roles_and_texts(rendered)] == ["before", "It is noon.", "really", "after"]
    assert [request.budget for request in clock.requests] == [200, 200]
    assert len({request.render_id for request in clock.requests}) == 2
    assert rendered.ledger.why("prompt/clock").included


async def test_a_plugin_may_return_anything_that_may_stand_in_a_prompt() -> None:
    fragment = Prompt().omit("extra", priority=9).user("kept")
    rendered = await make_prompt().use(Clock(fragment)).use(Clock(None)).render(budget=12)
    assert [text for _, text in roles_and_texts(rendered)] == ["kept"]
    with pytest.raises(ValidationError) as caught:
        await make_prompt().use(Clock(object())).render()
    assert caught.value.field == "plugin"


class Late:
    """A plugin whose method is not async."""

    def render(self, request: Request) -> str:
        return "now"


async def test_a_plugin_that_cannot_be_awaited_is_named() -> None:
    with pytest.raises(ValidationError) as caught:
        await make_prompt().use(Late()).render()  # type: ignore[arg-type]
    assert caught.value.field == "plugin"
    assert "'late'" in str(caught.value)


class Endless:
    """A plugin that asks for itself."""

    async def render(self, request: Request) -> Any:
        return Prompt().use(self)


async def test_what_is_nested_without_end_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(ValidationError) as caught:
        make_prompt().add(endless)
    assert caught.value.field == "content"
    with pytest.raises(ValidationError) as caught:
        await make_prompt().use(Endless()).render()
    assert caught.value.field == "plugin"
    nested, scope = Prompt().user("U"), Scope(id="s", children=())
    for number in range(99):
        nested = Prompt().section(f"part-{number}", nested)
    for _ in range(5000):
        scope = Scope(id="s", children=(scope,))
    rendered = await make_prompt().add(nested).render(budget=100)
    assert [message.text for message in rendered.messages] == ["U"]
    for build in (
        lambda: make_prompt().section("more", nested).section("s", Prompt().section("t", nested)),
        lambda: make_prompt().raw(scope),
    ):
        with pytest.raises(ValidationError) as caught:
            build()
        assert "deep" in str(caught.value)


async def test_plugins_run_at_the_same_time() -> None:
    import asyncio

    both = asyncio.Barrier(2)

    class Waits:
        async def render(self, request: Request) -> str:
            await both.wait()
            return "met"

    rendered = await make_prompt().use(Waits()).use(Waits()).render()
    assert [text for _, text in roles_and_texts(rendered)] == ["met", "met"]


async def test_what_a_plugin_raises_ends_the_render() -> None:
    class Breaks:
        async def render(self, request: Request) -> str:
            raise LookupError("no weather today")

    heard: list[Any] = []
    with pytest.raises(LookupError, match="no weather"):
        await make_prompt().user("U").use(Breaks()).render(on_event=heard.append)
    assert [type(event).__name__ for event in heard] == ["PromptFailed"]
    assert heard[0].code == "LookupError"


# ── cache hints ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_defect_13_the_key_of_a_cache_hint_hashes_everything_before_it() -> None:
    async def key(rules: str, version: str = "v1") -> str:
        built = make_prompt().system(rules).cache_hint(id="rules", version=version, ttl=3600).user("U")
        rendered = await built.render(budget=200)
        (mark,) = rendered.manifest.marks
        assert (mark.id, mark.version, mark.ttl, mark.messages) == ("rules", version, 3600, 1)
        assert rendered.cache.key == rendered.payload["prompt_cache_key"]
        return rendered.payload["prompt_cache_key"]

    assert await key("be kind") == await key("be kind")
    assert await key("be kind") != await key("be strict"), "content changed under the same version"
    assert await key("be kind") != await key("be kind", "v2")


async def test_what_is_recalled_cannot_be_in_a_cached_prefix(storage: Storage) -> None:
    session = session_on(storage)
    recalling = make_prompt().recall(session, "what?")
    for build in (
        lambda: recalling.cache_hint(),
        lambda: make_prompt().section("s", Prompt().recall(session, "what?")).cache_hint(),
        lambda: make_prompt().recall(session, "what?").merge(Prompt().cache_hint()),
    ):
        with pytest.raises(ValidationError) as caught:
            build()
        assert caught.value.field == "cache_hint"


def test_defect_7_a_cache_hint_inside_a_content_is_refused_and_not_ignored() -> None:
    hinted = Prompt().system("rules").cache_hint()
    for build in (
        lambda: make_prompt().truncate(hinted, 100),
        lambda: make_prompt().section("s", lambda empty: empty.system("rules").cache_hint()),
        lambda: make_prompt().last([hinted], n=1),
    ):
        with pytest.raises(ValidationError, match="cache hint"):
            build()


async def test_a_merged_hint_marks_what_stands_before_it_in_the_whole() -> None:
    rendered = await make_prompt().system("S").merge(Prompt().developer("D").cache_hint()).user("U").render()
    assert [mark.messages for mark in rendered.manifest.marks] == [2]


async def test_a_hint_before_which_nothing_is_left_is_told() -> None:
    built = make_prompt().omit("word " * 50).cache_hint().user("U")
    rendered = await built.render(budget=20)
    assert roles_and_texts(rendered) == [("user", "U")]
    assert rendered.manifest.marks == ()
    assert any("marks nothing" in warning for warning in rendered.warnings)


async def test_beside_a_hint_the_end_of_a_history_is_marked_for_the_next_turn(storage: Storage) -> None:
    session = session_on(storage)

    async def turn(text: str, after: Rendered | None = None) -> Rendered:
        await session.ingest("user", text)
        built = Prompt(AnthropicMessages("claude-sonnet-4-5")).system("Be kind. " * 500).cache_hint()
        rendered = await built.history(session).recall(session, text).render(budget=20_000, after=after)
        await session.ingest("assistant", "Yes.")
        return rendered

    first = await turn("Is the sky blue?")
    second = await turn("Is the sea blue?", first)
    assert [mark.messages for mark in second.manifest.marks] == [1, 4]
    assert second.cache.predicted_tokens == first.tokens.tokens
    blocks = [block for message in second.payload["messages"] for block in message["content"]]
    assert ["cache_control" in block for block in blocks] == [False, False, True]


async def test_a_hint_may_mark_the_tools_alone() -> None:
    rendered = await make_prompt().cache_hint().tools([Tool(name="a")]).user("U").render()
    assert [mark.messages for mark in rendered.manifest.marks] == [0]


async def test_tools_in_the_form_of_anthropic_are_read() -> None:
    tool = {"name": "disk", "description": "How full a disk is.", "input_schema": {"type": "object"}}
    rendered = await Prompt(OpenAIChat("gpt-5")).user("Full?").tools([tool]).render()
    assert rendered.payload["tools"][0]["function"]["parameters"] == {"type": "object"}
