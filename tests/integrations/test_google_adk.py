"""ADK: an agent of 200 turns on ACMS sessions, and the services beside ADK's own in memory."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.memory import BaseMemoryService, InMemoryMemoryService
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.adk.sessions.base_session_service import BaseSessionService, GetSessionConfig
from google.genai import types

from acms import ACMS, TokenBudgetExceededError, open_storage
from acms.integrations.google_adk import ACMSMemoryService, ACMSPlugin, ACMSSessionService
from acms.kv import open_kv
from acms.model import ToolCall
from tests.integrations import agent as script
from tests.integrations.pages import run_example, run_page

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::UserWarning"
)  # of ADK and its parts

APP, USER = "app", "ana"
ANA = {"app_name": APP, "user_id": USER}


def chat(contents: Sequence[types.Content]) -> list[dict[str, Any]]:
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
    """The model of the script, and what it was shown."""

    model: str = "script"
    budget: int = script.BUDGET
    seen: list[list[types.Content]] = []  # noqa: RUF012  a field of pydantic is copied for each instance
    thought: str = ""

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        self.seen.append(list(llm_request.contents))
        sent = chat(llm_request.contents)
        system = [{"role": "system", "content": str(llm_request.config.system_instruction)}]
        script.check([*system, *sent], self.budget)
        last = dict(sent[-1])
        if last["role"] == "tool":
            last["content"] = json.loads(last["content"])["result"]
        said = script.answer([*sent[:-1], last])
        parts = [types.Part(text=self.thought, thought=True)] if self.thought else []
        if said["content"]:
            parts.append(types.Part(text=said["content"]))
        for call in said.get("tool_calls", ()):
            arguments = json.loads(call["function"]["arguments"])
            parts.append(
                types.Part(function_call=types.FunctionCall(name=call["function"]["name"], args=arguments))
            )
        yield LlmResponse(content=types.Content(role="model", parts=parts))


class Talk:
    """A runner of the agent on a store."""

    def __init__(self, sessions: ACMSSessionService, budget: int = script.BUDGET, thought: str = "") -> None:
        self.model = Model(budget=budget, thought=thought)
        agent = LlmAgent(
            name="keeper", model=self.model, instruction="You look after disks.", tools=[script.disk]
        )
        plugin = ACMSPlugin(sessions, budget=budget)
        self.sessions = sessions
        self.runner = Runner(
            app=App(name=APP, root_agent=agent, plugins=[plugin]),
            session_service=sessions,
            auto_create_session=True,
        )

    async def run(self, text: str, session_id: str = "s", user: str = USER) -> str:
        message = types.Content(role="user", parts=[types.Part(text=text)])
        answer = ""
        async for event in self.runner.run_async(user_id=user, session_id=session_id, new_message=message):
            answer = "".join(part.text or "" for part in (event.content and event.content.parts) or ())
        return answer

    def memory(self, session_id: str = "s") -> ACMS:
        return self.sessions.memory(app_name=APP, user_id=USER, session_id=session_id)

    async def said(self, session_id: str = "s") -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        for entry in await self.memory(session_id).entries():
            assert entry.role is not None
            text = "" if any(isinstance(part, ToolCall) for part in entry.parts) else entry.content
            found.append(
                (entry.role.value, json.loads(text)["result"] if entry.role.value == "tool" else text)
            )
        return found


class Opened:
    def __init__(self, folder: Path | str) -> None:
        self._url = f"sqlite:///{folder}/m.db"

    async def __aenter__(self) -> ACMSSessionService:
        self.storage, self.kv = open_storage(self._url), open_kv(self._url)
        self.sessions = ACMSSessionService(self.storage, self.kv)
        return self.sessions

    async def __aexit__(self, *error: object) -> None:
        await self.sessions.aclose()
        await self.kv.aclose()
        await self.storage.aclose()


@pytest.fixture
async def sessions(tmp_path: Path) -> AsyncIterator[ACMSSessionService]:
    async with Opened(tmp_path) as found:
        yield found


async def test_200_turns_stay_within_the_budget_and_are_kept_once(sessions: ACMSSessionService) -> None:
    talk = Talk(sessions)
    for turn in range(script.TURNS):
        await talk.run(script.said(turn))
    assert await talk.said() == script.expected(0, script.TURNS)
    assert await talk.run(script.QUESTION) == "It is marzipan-4711."
    kept = await sessions.get_session(**ANA, session_id="s")
    assert kept is not None
    contents = [event.content for event in kept.events]
    own = [content for content in talk.model.seen[-1] if content in contents]
    assert len(own) >= len(talk.model.seen[-1]) - 3  # what was recalled is not


async def _talk(folder: str, session_id: str, first: int, last: int, acknowledged: bool = False) -> list[Any]:
    async with Opened(folder) as sessions:
        talk = Talk(sessions)
        for turn in range(first, last):
            await talk.run(script.said(turn), session_id)
            if acknowledged:
                script.acknowledge(turn)
        return await talk.said(session_id)


def main(folder: str, first: int, last: int) -> None:
    asyncio.run(_talk(folder, "s", first, last, acknowledged=True))


async def test_a_killed_agent_goes_on_where_it_was(tmp_path: Path) -> None:
    done = await asyncio.to_thread(script.killed, __name__, str(tmp_path), 0, script.TURNS, after=40)
    assert done >= 40
    async with Opened(tmp_path) as sessions:  # a call whose answer died with it
        tail = (await Talk(sessions).memory().entries(1))[0]
        if any(isinstance(part, ToolCall) for part in tail.parts):
            await Talk(sessions).memory().retract(tail.id)
    found = await _talk(str(tmp_path), "s", done + 1, done + 21)
    assert found[: len(script.expected(0, done + 1))] == script.expected(0, done + 1)
    assert found[-len(script.expected(done + 2, done + 21)) :] == script.expected(done + 2, done + 21)


async def test_a_fork_goes_on_alone(tmp_path: Path) -> None:
    await _talk(str(tmp_path), "s", 0, 12)
    async with Opened(tmp_path) as sessions:
        await Talk(sessions).memory().fork(session_id="what-if")
        fork = await sessions.create_session(**ANA, session_id="what-if")
        assert len((await sessions.get_session(**ANA, session_id=fork.id)).events) == len(
            script.expected(0, 12)
        )
    found = await _talk(str(tmp_path), "what-if", 20, 25)
    assert found == [*script.expected(0, 12), *script.expected(20, 25)]
    assert await _talk(str(tmp_path), "s", 12, 14) == script.expected(0, 14)


async def test_another_session_of_the_user_knows_and_erasing_leaves_nothing(
    sessions: ACMSSessionService, tmp_path: Path
) -> None:
    talk = Talk(sessions)
    await talk.run(script.said(3), "one")
    assert await talk.run(script.QUESTION, "two") == "It is marzipan-4711."
    assert await talk.run(script.QUESTION, "two", user="ben") == "I do not know."
    await sessions.create_session(**ANA, state={"user:likes": "marzipan"})
    await sessions.erase_user(**ANA, verify=True)
    assert (await sessions.list_sessions(**ANA)).sessions == []
    assert await sessions.get_user_state(**ANA) == {}
    assert script.left_in(tmp_path, ["marzipan"]) == []


async def test_thoughts_and_tools_count(sessions: ACMSSessionService) -> None:
    talk = Talk(sessions, budget=500, thought="Let me think about it. " * 8)
    for turn in range(9):
        await talk.run(script.said(turn))
    with pytest.raises(RuntimeError, match="more than the budget of 20") as raised:  # as ADK passes it on
        await Talk(sessions, budget=20).run("Hello?")
    assert isinstance(raised.value.__cause__, TokenBudgetExceededError)


async def test_what_was_edited_is_shown_as_it_is_now(sessions: ACMSSessionService) -> None:
    talk = Talk(sessions, budget=2000)
    await talk.run("The floor is 3.")
    memory = talk.memory()
    await memory.replace((await memory.entries())[0].id, "The floor is 4.")
    await talk.run("Say it again.")
    assert chat(talk.model.seen[-1])[0]["content"] == "The floor is 4."
    kept = await sessions.get_session(**ANA, session_id="s")
    assert kept.events[0].content.parts[0].text == "The floor is 4."


# ── beside the services in memory ───────────────────────────────────────────────────────────────────────────────────


async def both(services: Sequence[BaseSessionService], call: Any) -> list[Any]:
    results: list[Any] = []
    for index, service in enumerate(services):
        try:
            results.append(await call(service, index))
        except (AlreadyExistsError, ValueError) as error:
            results.append(type(error))
    assert _plain(results[0]) == _plain(results[1])
    return results


def _plain(found: Any) -> Any:
    if hasattr(found, "sessions"):
        return sorted((one.user_id, one.id, one.state) for one in found.sessions)
    if hasattr(found, "events"):
        return found.id, found.app_name, found.user_id, found.state, found.events
    return found


async def _append(
    services: Sequence[BaseSessionService], rng: random.Random, number: int, where: Any
) -> None:
    sessions = await both(services, lambda service, _: service.get_session(**where))
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
        await both(services, lambda service, index: service.append_event(sessions[index], copies[index]))
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
            await both(services, lambda service, _: service.create_session(**where, state=state))  # noqa: B023
        elif what == "append":
            await _append(services, rng, number, where)
        elif what == "delete":
            await both(services, lambda service, _: service.delete_session(**where))  # noqa: B023
        config = rng.choice([None, GetSessionConfig(num_recent_events=rng.randrange(4)),
                             GetSessionConfig(after_timestamp=1_700_000_000.0 + number - 9)])  # fmt: skip
        await both(services, lambda service, _: service.get_session(**where, config=config))  # noqa: B023
        for one in (user, None):
            await both(services, lambda service, _: service.list_sessions(app_name=APP, user_id=one))  # noqa: B023
        await both(services, lambda service, _: service.get_user_state(app_name=APP, user_id=user))  # noqa: B023


def said(id: str, text: str) -> Event:
    return Event(id=id, author="user", content=types.Content(role="user", parts=[types.Part(text=text)]))


async def test_memories_are_found_and_deleted_as_in_memory(tmp_path: Path) -> None:
    async with open_storage(f"sqlite:///{tmp_path}/m.db") as storage:
        for memory in (ACMSMemoryService(storage), InMemoryMemoryService()):
            session = await InMemorySessionService().create_session(**ANA, session_id="s")
            session.events = [said("e1", "My cat is called Miezi."), said("e2", "The disk is full.")]
            await memory.add_session_to_memory(session)
            await memory.add_session_to_memory(session)
            await memory.add_events_to_memory(
                **ANA, events=[said("e3", "My dog is called Wuff."), Event(id="e4")]
            )
            found, *_ = (await memory.search_memory(**ANA, query="Miezi")).memories
            assert found.content.parts[0].text == "My cat is called Miezi."
            assert found.author == "user"
            assert await texts(memory, "Wuff") >= {"My dog is called Wuff."}
            assert (await memory.search_memory(app_name=APP, user_id="ben", query="Miezi")).memories == []
            await memory.delete_memory(app_name=APP, user_id="ben", memory_id=found.id)
            assert "My cat is called Miezi." in await texts(memory, "Miezi")
            await memory.delete_memory(**ANA, memory_id=found.id)
            await memory.add_session_to_memory(session)
            assert "My cat is called Miezi." not in await texts(memory, "Miezi")
        memory = ACMSMemoryService(storage)
        await memory.add_memory(**ANA, memories=[found.model_copy(update={"id": None})])
        assert "My cat is called Miezi." in await texts(memory, "Miezi")


async def texts(memory: BaseMemoryService, query: str) -> set[str]:
    found = (await memory.search_memory(**ANA, query=query)).memories
    return {one.content.parts[0].text for one in found}


async def test_the_page_and_the_example_run_and_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        await run_page("google-adk.md", tmp_path, monkeypatch)
    assert run_example("google_adk_agent.py", tmp_path).strip().endswith("124 messages kept; It is 4711.")


def measure() -> list[float]:
    """Return how long the plugin takes before a request to the model in a long conversation, warm."""

    async def run(folder: str) -> list[float]:
        times: list[float] = []
        async with Opened(folder) as sessions:
            talk = Talk(sessions)
            (plugin,) = talk.runner.app.plugins
            prepare = plugin.before_model_callback

            async def timed(**given: Any) -> Any:
                began = perf_counter()
                found = await prepare(**given)
                times.append(perf_counter() - began)
                return found

            with pytest.MonkeyPatch.context() as monkey:
                monkey.setattr(plugin, "before_model_callback", timed)
                for turn in range(script.TURNS):
                    await talk.run(script.said(turn))
        return times[20:]

    with TemporaryDirectory() as folder:
        return asyncio.run(run(folder))


if __name__ == "__main__":
    script.report("google-adk", measure)
