"""ADK: an agent of 200 turns on ACMS sessions, and the services beside ADK's own in memory."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents import LlmAgent, ParallelAgent, SequentialAgent
from google.adk.apps import App
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions, EventCompaction
from google.adk.memory import BaseMemoryService, InMemoryMemoryService
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.adk.sessions.base_session_service import BaseSessionService, GetSessionConfig
from google.adk.sessions.session import Session
from google.genai import types
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from acms import ACMS, FitError, TokenBudgetExceededError, ValidationError, open_storage
from acms.codecs import OpenAIChat
from acms.integrations.google_adk import ACMSMemoryService, ACMSPlugin, ACMSSessionService
from acms.integrations.google_adk.events import EventDialect, namespace_of
from acms.integrations.google_adk.visible import find_visible_events
from acms.integrations.model_input import Request, build_model_input
from acms.kv import open_kv
from tests.integrations import agent as script
from tests.integrations import transcripts
from tests.integrations.pages import run_example, run_page

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::UserWarning"
)  # of ADK and its parts

APP, USER = "app", "ana"
ANA = {"app_name": APP, "user_id": USER}

CODEC = OpenAIChat("gpt-5")


def contents_as_chat(contents: Sequence[types.Content]) -> list[dict[str, Any]]:
    """Write contents as a provider of chat completions would be sent them."""
    found: list[dict[str, Any]] = []
    for content in contents:
        parts = content.parts or []
        for part in parts:
            if answer := part.function_response:
                found.append(
                    {"role": "tool", "tool_call_id": answer.id, "content": json.dumps(answer.response)}
                )
        calls = [part.function_call for part in parts if part.function_call]
        text = "\n".join(part.text for part in parts if part.text)
        if calls or text:
            found.append({"role": "user" if content.role == "user" else "assistant", "content": text or None})
        if calls:
            found[-1]["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": json.dumps(call.args)},
                }
                for call in calls
            ]
    return found


class Model(BaseLlm):
    """The model of the script, and its prompts."""

    model: str = "script"
    budget: int = script.BUDGET
    seen: list[list[types.Content]] = []  # noqa: RUF012  a field of pydantic is copied for each instance
    thought: str = ""
    interrupted: bool = False

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        self.seen.append(list(llm_request.contents))
        sent = contents_as_chat(llm_request.contents)
        system = [{"role": "system", "content": str(llm_request.config.system_instruction)}]
        script.assert_valid_request([*system, *sent], self.budget, interrupted=self.interrupted)
        said = script.answer(sent)
        parts = [types.Part(text=self.thought, thought=True)] if self.thought else []
        if said["content"]:
            parts.append(types.Part(text=said["content"]))
        for call in said.get("tool_calls", ()):
            arguments = json.loads(call["function"]["arguments"])
            parts.append(
                types.Part(function_call=types.FunctionCall(name=call["function"]["name"], args=arguments))
            )
        yield LlmResponse(content=types.Content(role="model", parts=parts))


class Driver(script.Driver):
    def __init__(self, *where: Any, budget: int = script.BUDGET, thought: str = "", **how: Any) -> None:
        super().__init__(*where, **how)
        self.storage, self.kv = open_storage(self.url), open_kv(self.url)
        self.sessions = ACMSSessionService(self.storage, self.kv)
        self.model = Model(budget=budget, thought=thought, interrupted=self.interrupted)
        agent = LlmAgent(
            name="keeper", model=self.model, instruction=script.INSTRUCTIONS, tools=[script.disk]
        )
        self.runner = Runner(
            app=App(name=APP, root_agent=agent, plugins=[ACMSPlugin(self.sessions, budget=budget)]),
            session_service=self.sessions,
            auto_create_session=True,
        )
        agent.model = self.model  # type: ignore[assignment]  # pydantic may have copied it
        self.seen = self.model.seen
        self.where = {"app_name": APP, "user_id": self.namespace, "session_id": self.name}

    @property
    def memory(self) -> ACMS:
        return self.sessions.memory(**self.where)

    async def turn(self, text: str, id: str | None = None) -> str:
        message = types.Content(role="user", parts=[types.Part(text=text)])
        self.made.append(message.model_copy(deep=True))
        run = self.runner.run_async(user_id=self.namespace, session_id=self.name, new_message=message)
        answer = ""
        async for event in run:
            if event.content is not None:  # an error has none
                self.made.append(event.content.model_copy(deep=True))
                answer = "".join(part.text or "" for part in event.content.parts or ())
        return answer

    async def kept(self) -> list[Any]:
        found = await self.sessions.get_session(**self.where)
        assert found is not None
        return [event.content for event in found.events]

    async def erase(self) -> None:
        found = await self.sessions.erase_user(app_name=APP, user_id=self.namespace, verify=True)
        assert found.residue == ()
        assert (await self.sessions.list_sessions(app_name=APP, user_id=self.namespace)).sessions == []

    async def aclose(self) -> None:
        await self.sessions.aclose()
        await self.kv.aclose()
        await self.storage.aclose()


class TestStory(script.Story):
    driver = Driver


@pytest.fixture
async def sessions(tmp_path: Path) -> AsyncIterator[ACMSSessionService]:
    async with Driver(f"sqlite:///{tmp_path}/m.db") as agent:
        yield agent.sessions


async def test_a_fork_is_a_session_when_it_is_created(sessions: ACMSSessionService) -> None:
    await sessions.create_session(**ANA, session_id="s", state={"user:likes": "marzipan"})
    session = await sessions.get_session(**ANA, session_id="s")
    assert session is not None
    await sessions.append_event(session, user_event("e1", "My cat is called Miezi."))
    await sessions.memory(**ANA, session_id="s").fork(session_id="what-if")
    await sessions.create_session(**ANA, session_id="what-if")
    fork = await sessions.get_session(**ANA, session_id="what-if")
    assert fork is not None
    assert [event.id for event in fork.events] == ["e1"]
    await sessions.erase_user(**ANA)
    assert await sessions.get_user_state(**ANA) == {}


async def test_thoughts_and_tools_count(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/m.db"
    async with Driver(url, budget=500, thought="Let me think about it. " * 8) as agent:
        for turn in range(9):
            await agent.turn(script.said(turn))
    async with Driver(url, budget=20) as agent:
        with pytest.raises(RuntimeError, match="more than the budget of 20") as raised:  # as ADK passes it on
            await agent.turn("Hello?")
    assert isinstance(raised.value.__cause__, TokenBudgetExceededError)


async def test_what_was_edited_is_shown_as_it_is_now(tmp_path: Path) -> None:
    async with Driver(f"sqlite:///{tmp_path}/m.db", budget=2000) as agent:
        await agent.turn("The floor is 3.")
        await agent.memory.replace((await agent.memory.entries())[0].id, "The floor is 4.")
        await agent.turn("Say it again.")
        assert contents_as_chat(agent.model.seen[-1])[0]["content"] == "The floor is 4."
        kept = await agent.sessions.get_session(**agent.where)
        assert kept is not None
        assert kept.events[0].content.parts[0].text == "The floor is 4."


class Told(BaseLlm):
    """A model that gives its name and call count; of the first turn it remembers its last prompt."""

    seen: list[list[tuple[str, str]]] = []  # noqa: RUF012  a field of pydantic is copied for each instance

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        texts = ["".join(part.text or "" for part in one.parts or ()) for one in llm_request.contents]
        roles = [one.role or "" for one in llm_request.contents]
        self.seen.append(list(zip(roles, texts, strict=True)))
        text = f"{self.model} {len(self.seen)}"
        yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text=text)]))


def make_agent(name: str, **more: Any) -> LlmAgent:
    return LlmAgent(name=name, model=Told(model=name), **more)


async def run_agent_turns(folder: Path, root: Any, *turns: str, acms: bool = True) -> None:
    """Run turns of an agent; of "rewind" the last one is taken back."""
    storage, kv = open_storage(f"sqlite:///{folder}/m.db"), open_kv(f"sqlite:///{folder}/m.db")
    sessions: Any = ACMSSessionService(storage, kv) if acms else InMemorySessionService()
    plugins = [ACMSPlugin(sessions, budget=4000)] if acms else []
    runner = Runner(app=App(name=APP, root_agent=root, plugins=plugins), session_service=sessions)
    await sessions.create_session(**ANA, session_id="s")
    where = {"user_id": USER, "session_id": "s"}
    for text in turns:
        if text == "rewind":
            found = await load_session(sessions)
            last = [event.invocation_id for event in found.events if event.author == "user"][-1]
            await runner.rewind_async(**where, rewind_before_invocation_id=last)
            continue
        message = types.Content(role="user", parts=[types.Part(text=text)])
        async for _ in runner.run_async(**where, new_message=message):
            pass
    if acms:
        await sessions.aclose()
    await kv.aclose()
    await storage.aclose()


@pytest.mark.parametrize(
    ("made", "turns"),
    [
        (lambda: [make_agent("a")], ["Yes.", "Yes.", "rewind", "Yes.", "My PIN is 1234.", "rewind", "No."]),
        (lambda: [make_agent("a", include_contents="none")], ["Hello.", "Hello.", "Bye."]),
        (
            lambda: [ParallelAgent(name="p", sub_agents=[make_agent("a"), make_agent("b")])],
            ["Hello.", "Hello."],
        ),
        (
            lambda: [make_agent("a", static_instruction="Be brief.", instruction="It is Monday.")],
            ["Hello.", "Bye."],
        ),
    ],
    ids=["rewind", "no contents", "branches", "instructions"],
)
async def test_an_agent_is_shown_what_adk_shows_it(tmp_path: Path, made: Any, turns: Sequence[str]) -> None:
    seen: list[Any] = []
    for acms in (False, True):
        root = SequentialAgent(name="root", sub_agents=made())
        await run_agent_turns(tmp_path, root, *turns, acms=acms)
        agents = [one for agent in root.sub_agents for one in (agent.sub_agents or [agent])]
        seen.append([one.model.seen for one in agents])
    assert seen[1] == seen[0]
    assert seen[0][0]


async def test_what_others_said_is_left_out_where_it_was_rewound(tmp_path: Path) -> None:
    first, second = make_agent("a"), make_agent("b")
    root = SequentialAgent(name="root", sub_agents=[first, second])
    await run_agent_turns(tmp_path, root, "Hello.", "Again.", "rewind", "Bye.")
    assert [text for _, text in second.model.seen[-1]] == ["Hello.", "[a]: a 1", "b 1", "Bye.", "[a]: a 3"]


def test_what_adk_compacted_is_for_the_log_to_show() -> None:
    events = [user_event(f"e{number}", f"Message {number}.") for number in range(4)]
    for number, event in enumerate(events):
        event.timestamp = float(number)
    summary = types.Content(role="model", parts=[types.Part(text="Two messages.")])
    compaction = EventCompaction(start_timestamp=0.0, end_timestamp=1.0, compacted_content=summary)
    events.append(Event(author="user", actions=EventActions(compaction=compaction)))
    contents = [summary, *(event.content for event in events[2:4] if event.content)]
    assert find_visible_events(contents, events, "keeper") == (frozenset(), [])
    assert find_visible_events(contents[:2], events, "keeper") == (frozenset({"e3"}), [])


class Disk(BaseModel):
    checked: datetime
    serial: bytes


def answer_event(id: str, given: Any, **more: Any) -> Event:
    answer = types.FunctionResponse(id="c1", name="disk", response={"result": given})
    content = types.Content(role="user", parts=[types.Part(function_response=answer)])
    return Event(id=id, author="keeper", content=content, **more)


def call_event(id: str) -> Event:
    call = types.FunctionCall(id="c1", name="disk", args={"host": "db1"})
    content = types.Content(role="model", parts=[types.Part(function_call=call)])
    return Event(id=id, author="keeper", content=content)


async def begin_session(sessions: BaseSessionService, *events: Event) -> Session:
    session = await sessions.create_session(**ANA, session_id="s")
    for event in events:
        await sessions.append_event(session, event)
    return session


async def load_session(sessions: BaseSessionService) -> Session:
    found = await sessions.get_session(**ANA, session_id="s")
    assert found is not None
    return found


@pytest.mark.parametrize(
    "given",
    [
        Disk(checked=datetime(2026, 11, 1, tzinfo=UTC), serial=b"\xff\0"),
        {"disks": [datetime(2026, 11, 1, tzinfo=UTC), {1}, float("nan"), object(), b"\xff"]},
        "40 %\0 of \udcff",
    ],
)
async def test_an_answer_of_any_kind_is_kept_with_its_state(sessions: ACMSSessionService, given: Any) -> None:
    event = answer_event("e2", given, actions=EventActions(state_delta={"seen": 1, "temp:x": object()}))
    session = await begin_session(sessions, call_event("e1"), event)
    found = await load_session(sessions)
    assert [one.id for one in found.events] == ["e1", "e2"]
    assert found.state == {"seen": 1}
    assert found.events[1].content.role == "user"
    (answer,) = found.events[1].get_function_responses()
    assert (answer.id, answer.name) == ("c1", "disk")
    assert str(answer.response["result"]).count("40 %") == str(given).count("40 %")
    await sessions.append_event(session, event)
    assert len((await load_session(sessions)).events) == len(session.events) == 2


async def test_no_state_changes_without_its_event(
    sessions: ACMSSessionService, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await begin_session(sessions)
    state = {"a": 1, "app:a": 1, "user:a": 1}
    with pytest.raises(ValidationError):
        await sessions.append_event(
            session, Event(id="e1", author="x" * 2_000_000, actions=EventActions(state_delta=dict(state)))
        )
    assert session.state == (await load_session(sessions)).state == {}
    event = user_event("e2", "Hello.")
    event.actions.state_delta = state
    with monkeypatch.context() as patch:
        patch.setattr(sessions, "_change", raise_unreachable)
        with pytest.raises(OSError, match="the state"):
            await sessions.append_event(session, event)
    assert (await load_session(sessions)).events == [event]
    for _ in range(2):
        await sessions.append_event(session, event)
        assert session.state == (await load_session(sessions)).state == state
        assert session.events == (await load_session(sessions)).events == [event]


async def test_an_older_event_changes_the_state_once(
    sessions: ACMSSessionService, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await begin_session(sessions)
    now = session.last_update_time + 10

    def event(number: int, late: float = 0) -> Event:
        changed = EventActions(state_delta={"k": number, f"k{number}": number, "user:k": number})
        return Event(id=f"e{number}", author="user", timestamp=now - late, actions=changed)

    await sessions.append_event(session, event(1))
    await sessions.append_event(session, event(2, late=20))
    assert session.last_update_time == now
    with monkeypatch.context() as patch:
        patch.setattr(sessions, "_change", raise_unreachable)
        with pytest.raises(OSError, match="the state"):
            await sessions.append_event(session, event(3, late=20))
    assert (await load_session(sessions)).state == {"k": 2, "k1": 1, "k2": 2, "user:k": 2}
    for again in (event(1), event(3, late=20), event(2, late=20), event(1), event(3, late=20)):
        await sessions.append_event(session, again)
    found = await load_session(sessions)
    assert found.state == {"k": 3, "k1": 1, "k2": 2, "k3": 3, "user:k": 3}
    assert [one.id for one in found.events] == [one.id for one in session.events] == ["e1", "e2", "e3"]
    assert found.last_update_time == now


async def raise_unreachable(*given: Any) -> None:
    raise OSError("the state cannot be reached")


async def test_what_was_edited_keeps_its_frame(sessions: ACMSSessionService) -> None:
    await begin_session(sessions, call_event("e1"), answer_event("e2", "40 %"))
    memory = sessions.memory(**ANA, session_id="s")
    call, answer = await memory.entries()
    await memory.replace(call.id, "I look.")
    await memory.replace(answer.id, "50 %")
    call, answer = (await load_session(sessions)).events
    assert (call.id, call.author, call.content.parts[0].text) == ("e1", "keeper", "I look.")
    assert [(one.id, one.name, one.args) for one in call.get_function_calls()] == [
        ("c1", "disk", {"host": "db1"})
    ]
    (found,) = answer.get_function_responses()
    assert (answer.id, found.id, found.name, found.response) == ("e2", "c1", "disk", {"result": "50 %"})
    recent = await sessions.get_session(**ANA, session_id="s", config=GetSessionConfig(num_recent_events=1))
    assert recent is not None
    assert recent.events == [answer]


@pytest.mark.parametrize("arguments", ['{"host": ', '"db1"', ""])
async def test_broken_arguments_break_no_session(tmp_path: Path, arguments: str) -> None:
    async with Driver(f"sqlite:///{tmp_path}/m.db") as agent:
        await agent.turn("Hello?")
        calls = [{"id": "c1", "function": {"name": "disk", "arguments": arguments}}]
        await agent.memory.ingest("user", "Check.")
        await agent.memory.ingest("assistant", "", tool_calls=calls)
        await agent.memory.ingest("tool", "40 %", tool_call_id="c1")
        await agent.turn("And now?")
        found = await agent.sessions.get_session(**agent.where)
        assert found is not None
        for contents in (agent.model.seen[-1], [event.content for event in found.events]):
            (call,) = [part.function_call for one in contents for part in one.parts if part.function_call]
            assert call.args == {"arguments": arguments}


# ── beside the services in memory ───────────────────────────────────────────────────────────────────────────────────


async def call_both(services: Sequence[BaseSessionService], call: Any) -> list[Any]:
    results: list[Any] = []
    for index, service in enumerate(services):
        try:
            results.append(await call(service, index))
        except (AlreadyExistsError, ValueError) as error:
            results.append(type(error))
    assert _comparable_result(results[0]) == _comparable_result(results[1])
    return results


def _comparable_result(found: Any) -> Any:
    if hasattr(found, "sessions"):
        return sorted((one.user_id, one.id, one.state) for one in found.sessions)
    if hasattr(found, "events"):
        return found.id, found.app_name, found.user_id, found.state, found.events
    return found


async def _append_to_both(
    services: Sequence[BaseSessionService], rng: random.Random, number: int, where: Any
) -> None:
    sessions = await call_both(services, lambda service, _: service.get_session(**where))
    if sessions[0] is None:
        return
    delta = {rng.choice(["a", "app:a", "user:a", "temp:a"]): number} if rng.random() < 0.6 else {}
    text = types.Content(role="user", parts=[types.Part(text=f"Event {number}.")])
    blob = types.Content(
        role="model", parts=[types.Part(inline_data=types.Blob(data=b"PIG", mime_type="image/png"))]
    )
    event = Event(
        id=f"e{number}",
        author=rng.choice(["user", "keeper"]),
        content=rng.choice([text, text, blob, None]),
        actions=EventActions(state_delta=delta),
        timestamp=1_700_000_000.0 + number,
        partial=rng.random() < 0.1 or None,
    )
    again = 1 + (rng.random() < 0.2)
    copies = [event.model_copy(deep=True) for _ in services]
    for _ in range(again):
        await call_both(services, lambda service, index: service.append_event(sessions[index], copies[index]))
    assert sessions[0].state == sessions[1].state
    assert sessions[0].events == sessions[1].events


@pytest.mark.parametrize("seed", range(6))
async def test_same_answers_as_the_session_service_in_memory(sessions: ACMSSessionService, seed: int) -> None:
    services = (sessions, InMemorySessionService())
    rng = random.Random(seed)
    for number in range(60):
        user, name = rng.choice(["ana", "b/en"]), rng.choice(["s1", " s2 ", "s/3"])
        where = {"app_name": APP, "user_id": user, "session_id": name}
        what = rng.choice(["create", "append", "append", "append", "append", "delete", "get"])
        if what == "create":
            state = {"x": number, "app:x": number, "user:x": number, "temp:x": 1}
            await call_both(services, lambda service, _: service.create_session(**where, state=state))  # noqa: B023
        elif what == "append":
            await _append_to_both(services, rng, number, where)
        elif what == "delete":
            await call_both(services, lambda service, _: service.delete_session(**where))  # noqa: B023
        config = rng.choice([None, GetSessionConfig(num_recent_events=rng.randrange(4)),
                             GetSessionConfig(after_timestamp=1_700_000_000.0 + number - 9)])  # fmt: skip
        await call_both(services, lambda service, _: service.get_session(**where, config=config))  # noqa: B023
        for one in (user, None):
            await call_both(services, lambda service, _: service.list_sessions(app_name=APP, user_id=one))  # noqa: B023
        await call_both(services, lambda service, _: service.get_user_state(app_name=APP, user_id=user))  # noqa: B023


def user_event(id: str, text: str) -> Event:
    return Event(id=id, author="user", content=types.Content(role="user", parts=[types.Part(text=text)]))


async def test_memories_are_found_and_deleted_as_in_memory(tmp_path: Path) -> None:
    async with open_storage(f"sqlite:///{tmp_path}/m.db") as storage:
        for memory in (ACMSMemoryService(storage), InMemoryMemoryService()):
            session = await InMemorySessionService().create_session(**ANA, session_id="s")
            session.events = [
                user_event("e1", "My cat is called Miezi."),
                user_event("e2", "The disk is full."),
            ]
            await memory.add_session_to_memory(session)
            await memory.add_session_to_memory(session)
            await memory.add_events_to_memory(
                **ANA, events=[user_event("e3", "My dog is called Wuff."), Event(id="e4")]
            )
            found, *_ = (await memory.search_memory(**ANA, query="Miezi")).memories
            assert found.content.parts[0].text == "My cat is called Miezi."
            assert found.author == "user"
            assert await memory_texts(memory, "Wuff") >= {"My dog is called Wuff."}
            assert (await memory.search_memory(app_name=APP, user_id="ben", query="Miezi")).memories == []
            await memory.delete_memory(app_name=APP, user_id="ben", memory_id=found.id)
            assert "My cat is called Miezi." in await memory_texts(memory, "Miezi")
            await memory.delete_memory(**ANA, memory_id=found.id)
            await memory.add_session_to_memory(session)
            assert "My cat is called Miezi." not in await memory_texts(memory, "Miezi")


async def test_a_memory_that_was_edited_is_deleted_with_its_edits(tmp_path: Path) -> None:
    async with open_storage(f"sqlite:///{tmp_path}/m.db") as storage:
        memory = ACMSMemoryService(storage)
        await memory.add_events_to_memory(
            **ANA, events=[user_event("e1", "The code is 1234.")], session_id="s"
        )
        async with ACMS("s", storage, None, namespace=namespace_of(APP, USER)) as session:
            for code in (5678, 9999):
                await session.replace((await session.entries())[0].id, f"The code is {code}.")
        (found,) = (await memory.search_memory(**ANA, query="code")).memories
        await memory.delete_memory(**ANA, memory_id=found.id)
        assert await memory_texts(memory, "code") == set()


async def test_a_query_that_no_store_could_keep_is_answered(tmp_path: Path) -> None:
    async with open_storage(f"sqlite:///{tmp_path}/m.db") as storage:
        memory = ACMSMemoryService(storage)
        await memory.add_events_to_memory(**ANA, events=[user_event("e1", "My cat is called Miezi.")])
        assert await memory_texts(memory, "Miezi\0 \ud800") == {"My cat is called Miezi."}
        assert await memory_texts(memory, "\0") == set()


async def memory_texts(memory: BaseMemoryService, query: str) -> set[str]:
    found = (await memory.search_memory(**ANA, query=query)).memories
    return {one.content.parts[0].text for one in found}


async def test_the_page_and_the_example_run_and_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        await run_page("google-adk.md", tmp_path, monkeypatch)
    assert run_example("google_adk_agent.py", tmp_path).strip().endswith("124 messages kept; It is 4711.")


def event_of_step(step: transcripts.Step, number: int) -> Event:
    parts = [types.Part(text=step.thought, thought=True)] if step.thought else []
    if step.answers is not None:
        answer = types.FunctionResponse(id=step.answers.id, name="disk", response={"result": step.text})
        parts = [types.Part(function_response=answer)]
    else:
        parts += [types.Part(text=step.text)] if step.text else []
    for call in step.calls:
        called = types.FunctionCall(id=call.id, name=call.name, args=call.arguments)
        parts.append(types.Part(function_call=called))
    role, author = ("model", "keeper") if step.role == "assistant" else ("user", "user")
    author = "keeper" if step.role == "tool" else author
    return Event(id=f"e{number}", author=author, content=types.Content(role=role, parts=parts))


@given(seed=st.integers(0, 2**32))
def test_any_conversation_is_stored_and_shown_as_a_valid_request(seed: int) -> None:
    async def run() -> None:
        events = [
            event_of_step(step, number)
            for number, step in enumerate(transcripts.random_conversation(random.Random(seed)))
        ]
        async with open_storage("memory://") as storage, open_kv("memory://") as kv:
            sessions = ACMSSessionService(storage, kv)
            session = await begin_session(sessions, *events)
            assert [one.id for one in (await load_session(sessions)).events] == [one.id for one in events]
            memory = sessions.memory(**ANA, session_id=session.id)
            known = {event.id: event for event in session.events}
            for budget in transcripts.BUDGETS:
                request = Request(codec=CODEC, budget=budget, query="crane", instructions="Be brief.")
                with suppress(FitError, TokenBudgetExceededError):
                    shown = await build_model_input(memory, request, EventDialect("keeper"), known)
                    contents = [event.content for event in shown if event.content is not None]
                    transcripts.assert_valid_request(contents_as_chat(contents), None)
            await sessions.aclose()

    asyncio.run(run())
