"""Promises of a render for any prompt: random trees over real sessions, three formats, any budget."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from acms import ACMS, FitError, Media, Role, ToolCall, ToolResult, open_storage
from acms.codecs import AnthropicMessages, OpenAIChat, OpenAIResponses, Tool
from acms.kv import InMemoryKV
from acms.pins import create_pin_registry
from acms.ports import Codec
from acms.prompt import Prompt, Rendered
from acms.prompt.replay import replay
from tests.providers import validators
from tests.providers.prompts import generated_conversations, texts, tools
from tests.support.talk import session_on

CODECS: dict[str, tuple[Callable[[], Codec], Callable[[Any], None]]] = {
    "chat": (lambda: OpenAIChat("gpt-4o"), validators.openai_chat),
    "chat, calibrated": (lambda: OpenAIChat("gpt-5"), validators.openai_chat),
    "responses": (lambda: OpenAIResponses("gpt-5"), validators.openai_responses),
    "anthropic": (
        lambda: AnthropicMessages("claude-sonnet-4-5"),
        partial(validators.anthropic, prefill=True),
    ),
}
SAID = "db1 orders PostgreSQL weather licence costs full disk Monday chose backup".split()
words = st.lists(st.sampled_from(SAID), min_size=1, max_size=30).map(" ".join)


# ── logs ────────────────────────────────────────────────────────────────────────────────────────────────────────────

Turn: TypeAlias = tuple[str, str, int]
turns: st.SearchStrategy[list[Turn]] = st.lists(
    st.tuples(
        st.sampled_from(("user", "assistant", "system", "tools", "open", "stray", "close", "edit")),
        words,
        st.integers(1, 3),
    ),
    max_size=14,
)


async def write_log(session: ACMS, log: list[Turn]) -> None:
    """Write a log: tool calls answered out of order, never, or without having been asked; edits; closed episodes."""
    ids: list[str] = []
    for number, (kind, text, many) in enumerate(log):
        if kind == "close":
            if ids:
                await session.close_episode()
        elif kind == "edit":
            if ids:
                await session.replace(ids[number % len(ids)], text)
        elif kind == "stray":
            await session.ingest("tool", text, tool_call_id=f"never {number}")
        elif kind in ("tools", "open"):
            calls = [{"id": f"c{one}", "name": "disk", "arguments": "{}"} for one in range(many)]
            await session.ingest("assistant", text if many == 2 else "", tool_calls=calls)
            if kind == "tools":
                for one in reversed(range(many)):
                    await session.ingest("tool", f"{one} {text}", tool_call_id=f"c{one}")
        else:
            ids.append(await session.ingest(kind, text))


# ── prompts ─────────────────────────────────────────────────────────────────────────────────────────────────────────

Step: TypeAlias = Callable[[Prompt, Any], Prompt]
priorities = st.integers(0, 4)
sizes = st.integers(0, 120)


def content_of(given: Any, world: Any) -> Any:
    """Return a content: of the world where it asks for a session, a view or a part of a prompt."""
    if given == "session":
        return world.session
    if given == "view":
        return world.view
    return given(Prompt(), world) if callable(given) else given


def log_of(given: Any, world: Any) -> Any:
    """Return a content that can be a history: a text is the only message of one."""
    return (
        [given] if isinstance(given, str) and given not in ("session", "view") else content_of(given, world)
    )


contents: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from(("session", "view")),
    words,
    st.lists(words, max_size=4),
    generated_conversations(max_steps=4).map(
        lambda found: [replace(one, sources=()) for one in found if one.parts and _is_accepted_message(one)]
    ),
)


def _is_accepted_message(message: Any) -> bool:
    """Whether the builder takes a message: it must say something, and calls and results have one id each."""
    ids = [part.call_id for part in message.parts if isinstance(part, ToolCall | ToolResult)]
    return len(set(ids)) == len(ids)


leaves: st.SearchStrategy[Step] = st.one_of(
    st.builds(lambda text: lambda prompt, _: prompt.user(text), words),
    st.builds(lambda text: lambda prompt, _: prompt.system(text), words),
    st.builds(lambda text: lambda prompt, _: prompt.assistant(text), words),
    st.just(
        lambda prompt, _: (
            prompt.assistant(tool_calls=[{"id": "own", "name": "disk"}])
            .user("meanwhile")
            .tool("own", "full of things")
        )
    ),
    st.just(lambda prompt, _: prompt.tool("c0", "late")),
    st.builds(
        lambda given, priority: lambda prompt, world: prompt.history(log_of(given, world), priority=priority),
        contents,
        priorities,
    ),
    st.builds(
        lambda given, n, priority: (
            lambda prompt, world: prompt.last(log_of(given, world), n=n, priority=priority)
        ),
        contents,
        st.integers(1, 9),
        priorities,
    ),
    st.builds(
        lambda query, tokens, priority, in_place: (
            lambda prompt, world: prompt.recall(
                world.session, query, tokens=tokens, priority=priority, in_place=in_place
            )
        ),
        words,
        sizes,
        priorities,
        st.booleans(),
    ),
    st.just(lambda prompt, world: prompt.pinned_kv(store=world.kv, namespace="n")),
    st.builds(
        lambda given, tokens: (
            lambda prompt, world: prompt.summary(
                content_of(given, world), id=world.fresh(), store=world.kv, tokens=tokens
            )
        ),
        st.one_of(st.just("session"), st.lists(words, max_size=4)),
        st.integers(5, 60),
    ),
)


def nested_steps(inner: st.SearchStrategy[Step]) -> st.SearchStrategy[Step]:
    content = st.one_of(
        contents, st.lists(inner, max_size=3).map(lambda steps: lambda p, w: apply_steps(p, steps, w))
    )
    return st.one_of(
        st.builds(
            lambda given, tokens, keep, priority: (
                lambda prompt, world: prompt.truncate(
                    content_of(given, world), tokens, keep=keep, priority=priority
                )
            ),
            content,
            sizes,
            st.sampled_from(("start", "end")),
            priorities,
        ),
        st.builds(
            lambda given, priority: (
                lambda prompt, world: prompt.omit(content_of(given, world), priority=priority)
            ),
            content,
            priorities,
        ),
        st.builds(
            lambda given, floor, more, priority: (
                lambda prompt, world: prompt.section(
                    f"part {len(prompt.steps)}",
                    content_of(given, world),
                    floor=floor,
                    ceiling=None if more is None else floor + more,
                    share=0.5 if floor % 2 else None,
                    priority=priority,
                )
            ),
            content,
            st.integers(0, 40),
            st.none() | sizes,
            st.none() | priorities,
        ),
    )


prompts: st.SearchStrategy[list[Step]] = st.lists(
    st.recursive(leaves, nested_steps, max_leaves=4), max_size=5
)


def apply_steps(prompt: Prompt, steps: list[Step], world: Any) -> Prompt:
    for step in steps:
        prompt = step(prompt, world)
    return prompt


def without_strict(offered: list[Tool]) -> list[Tool]:
    """Return tools that no provider refuses: what a strict one must say is a matter of its codec."""
    return [replace(tool, strict=False) for tool in offered]


# ── promises ────────────────────────────────────────────────────────────────────────────────────────────────────────


class World:
    """What a prompt is made of."""

    def __init__(self, session: ACMS, view: Any, kv: InMemoryKV) -> None:
        self.session, self.view, self.kv = session, view, kv
        self._ids = count(1)

    def fresh(self) -> str:
        """Return an id that no other summary has."""
        return f"s{next(self._ids)}"


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'logs.db'}"


@pytest.fixture
def within(url: str) -> Iterator[Callable[[Callable[[Any, str], Awaitable[None]]], None]]:
    """Run something with the store, each time for a session of another name, in one event loop."""
    with asyncio.Runner() as runner:
        storage = open_storage(url)
        names = iter(range(10**9))
        runner.run(storage.__aenter__())
        yield lambda work: runner.run(work(storage, f"s{next(names)}"))  # type: ignore[arg-type]
        runner.run(storage.__aexit__(None, None, None))


def comparable_messages(messages: Any) -> list[Any]:
    """Return messages as they can be told apart in a request: not by what their media cost."""
    return [
        (one.role, one.name, [Media if isinstance(part, Media) else part for part in one.parts])
        for one in messages
    ]


def pairs_hold(rendered: Rendered) -> None:
    """Every call is followed by its answers, every answer follows its call."""
    waiting: set[str] = set()
    for message in rendered.messages:
        answers = [part.call_id for part in message.parts if isinstance(part, ToolResult)]
        if answers:
            assert waiting.issuperset(answers)
            waiting.difference_update(answers)
        else:
            assert message.role is not Role.TOOL
        calls = [part.call_id for part in message.parts if isinstance(part, ToolCall)]
        if calls:
            assert not waiting
            waiting = set(calls)
    assert not waiting


@pytest.mark.parametrize("name", CODECS)
@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(log=turns, steps=prompts, offered=tools.map(without_strict), budget=st.integers(0, 700))
def test_what_is_sent_is_within_the_budget(
    name: str, within: Any, log: list[Turn], steps: list[Step], offered: Any, budget: int
) -> None:
    """Or a typed error says what to do; either way both times the same."""

    async def work(storage: Any, session_id: str) -> None:
        session = session_on(storage, session_id)
        await write_log(session, log)
        kv = InMemoryKV()
        await kv.set("profile", {"name": "Sam", "notes": ["likes brevity"] * 5})
        await create_pin_registry(kv, namespace="n").pin("profile")
        make, accepts = CODECS[name]
        codec = make()
        version = (await session.get_session_stats()).version
        world = World(session, session.at(version // 2) if version else session, kv)
        made = apply_steps(Prompt(codec).user("start"), steps, world).tools(offered)
        try:
            rendered = await made.render(budget=budget)
        except FitError as error:
            assert error.budget in (budget, error.budget)
            assert error.over > 0
            assert error.options
            assert error.where
            with pytest.raises(FitError):
                await made.render(budget=budget)
            return
        assert codec.count(rendered.payload) == rendered.tokens
        assert rendered.tokens.upper_bound <= budget
        codec.check(rendered.payload)
        accepts(rendered.payload)
        pairs_hold(rendered)
        shown: list[str] = []
        for message in rendered.manifest.messages:
            if "recall" in message.path:
                shown += message.sources
        assert len(shown) == len(set(shown))
        others = {
            source
            for message in rendered.manifest.messages
            if "recall" not in message.path
            for source in message.sources
        }
        assert others.isdisjoint(shown)
        again = await made.render(budget=budget)
        assert again.payload == rendered.payload
        assert await replay(rendered.manifest, storage, codec) == rendered.payload

    within(work)


@pytest.mark.parametrize("name", CODECS)
@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(log=turns, steps=prompts)
def test_without_a_budget_what_is_parsed_is_what_was_rendered(
    name: str, within: Any, log: list[Turn], steps: list[Step]
) -> None:
    async def work(storage: Any, session_id: str) -> None:
        session = session_on(storage, session_id)
        await write_log(session, log)
        codec = CODECS[name][0]()
        world = World(session, session, InMemoryKV())
        try:
            rendered = await apply_steps(Prompt(codec).user("start"), steps, world).render()
        except FitError as error:
            assert "ceiling" in str(error) or error.options
            return
        assert comparable_messages(codec.parse(rendered.payload)) == comparable_messages(rendered.messages)

    within(work)


def test_texts_of_every_script_can_be_said() -> None:
    """Blank texts are refused by the builder, all others are kept."""

    @given(text=texts)
    def check(text: str) -> None:
        if text.strip():
            assert Prompt(OpenAIChat("gpt-4o")).user(text).steps

    check()
