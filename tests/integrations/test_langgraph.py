"""LangGraph: a store of long-term memory; LangGraph's own tests of stores run with `python -m tests.integrations`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Annotated, Any, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.runtime import Runtime
from langgraph.store.base import ListNamespacesOp, MatchCondition, PutOp, SearchOp

from acms import ValidationError
from acms.integrations.langgraph import ACMSStore
from acms.kv import open_kv
from acms.log.repair import repair_value
from tests.integrations import agent as script
from tests.integrations import transcripts


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ACMSStore]:
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'memory.db'}"
    made = ACMSStore(open_kv(url))
    yield made
    await made.kv.aclose()


async def test_items_keep_their_times_and_are_in_the_order_of_their_keys(store: ACMSStore) -> None:
    for key in ("b", "a", "a..c"):
        await store.aput(("users", "1"), key, {"n": 1})
    first = await store.aget(("users", "1"), "a..c")
    await store.aput(("users", "1"), "a..c", {"n": 2})
    second = await store.aget(("users", "1"), "a..c")
    assert first is not None
    assert second is not None
    assert (second.key, second.namespace, second.value) == ("a..c", ("users", "1"), {"n": 2})
    assert first.created_at == second.created_at < second.updated_at
    assert [item.key for item in await store.asearch(("users",))] == ["a", "a..c", "b"]


async def test_a_query_ranks_by_the_words_that_are_shared(store: ACMSStore) -> None:
    for key, text in (("1", "Ana likes tea."), ("2", "Ben likes coffee."), ("3", "The disk is full.")):
        await store.aput(("facts",), key, {"text": text})
    found = await store.asearch(("facts",), query="Who likes coffee?")
    assert [item.key for item in found] == ["2", "1", "3"]
    assert found[0].score > found[1].score
    assert found[2].score is None


async def test_filters_compare_numbers_times_and_fields_in_fields(store: ACMSStore) -> None:
    values = [
        {"n": n, "day": f"2026-11-0{n}", "about": {"city": "Lyon", "tags": ["a", n]}} for n in range(1, 5)
    ]
    for value in values:
        await store.aput(("all",), str(value["n"]), value)

    async def keys(wanted: dict[str, Any]) -> str:
        return "".join(item.key for item in await store.asearch(("all",), filter=wanted))

    assert await keys({"n": {"$gt": 1, "$lte": 3}}) == "23"
    assert await keys({"n": {"$ne": 2}}) == "134"
    assert await keys({"day": {"$gte": "2026-11-03"}}) == "34"
    assert await keys({"about": {"city": "Lyon", "tags": ["a", 2]}}) == "2"
    assert await keys({"n": {"$lt": "many"}, "about": {"city": "Rome"}}) == ""
    with pytest.raises(ValidationError, match="filter"):
        await keys({"n": {"$like": 1}})


async def test_what_is_read_in_a_batch_is_what_was_there_before_it(store: ACMSStore) -> None:
    writes = [PutOp(("a",), "k", {"n": n}) for n in range(3)]
    results = await store.abatch([SearchOp(("a",)), *writes, SearchOp(("a",))])
    assert results == [[], None, None, None, []]
    assert [item.value for item in store.search(("a",))] == [{"n": 2}]


async def test_search_reads_more_than_a_page(store: ACMSStore) -> None:
    await store.abatch([PutOp(("many", str(n % 3)), f"{n:04}", {"n": n}) for n in range(1100)])
    assert len(await store.asearch(("many",), limit=2000)) == 1100
    assert len(await store.alist_namespaces(prefix=("many",))) == 3


async def test_namespaces_are_listed_by_how_they_end(store: ACMSStore) -> None:
    for namespace in (("a", "x"), ("b", "x"), ("x",), ("b", "y")):
        await store.aput(namespace, "k", {"n": 1})
    assert await store.alist_namespaces(suffix=("x",)) == [("a", "x"), ("b", "x"), ("x",)]
    assert await store.alist_namespaces(suffix=("b", "*")) == [("b", "x"), ("b", "y")]
    every_namespace = ListNamespacesOp(match_conditions=(MatchCondition("suffix", ()),))
    assert len((await store.abatch([every_namespace]))[0]) == 4


@pytest.mark.faults
async def test_a_killed_process_has_lost_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'memory.db'}"
    done = script.run_and_kill("tests.integrations.langgraph_store", url, after=40)
    store = ACMSStore(open_kv(url))
    kept = await store.asearch(("user:1",), limit=10_000)
    assert {item.key: item.value["text"] for item in kept}.items() >= {
        (f"u{turn}", script.said(turn)) for turn in range(done + 1)
    }
    await store.kv.aclose()


# ── in a graph ──────────────────────────────────────────────────────────────────────────────────────────────────────


class State(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


class User(TypedDict):
    id: str


async def _answer_from_memory(state: State, runtime: Runtime[User]) -> dict[str, Any]:
    """Keep what the user says, and answer from what the user has said anywhere."""
    store, text = runtime.store, state["messages"][-1].text
    assert store is not None
    home = (f"user:{runtime.context['id']}", "said")
    found = await store.asearch(home, query=text, limit=1)
    await store.aput(home, str(state["messages"][-1].id), {"text": text})
    known = found[0].value["text"] if found and found[0].score else "nothing"
    return {"messages": [AIMessage(f"You said: {known}")]}


def _build_graph(store: ACMSStore) -> Any:
    builder = StateGraph(State, context_schema=User)
    builder.add_node("answer", _answer_from_memory)
    builder.add_edge(START, "answer")
    builder.add_edge("answer", END)
    return builder.compile(store=store)


async def _ask_graph(graph: Any, user: str, text: str) -> str:
    done = await graph.ainvoke({"messages": [HumanMessage(text)]}, context={"id": user})
    return done["messages"][-1].text


async def test_one_run_finds_what_another_of_the_user_kept_until_it_is_deleted(tmp_path: Path) -> None:
    store = ACMSStore(open_kv(f"sqlite:///{tmp_path / 'memory.db'}"))
    graph = _build_graph(store)
    await _ask_graph(graph, "1", script.said(3))
    assert "marzipan-4711" in await _ask_graph(graph, "1", script.QUESTION)
    assert await _ask_graph(graph, "2", script.QUESTION) == "You said: nothing"
    for item in await store.asearch(("user:1",), limit=1000):
        await store.adelete(item.namespace, item.key)
    assert await _ask_graph(graph, "1", script.QUESTION) == "You said: nothing"
    await store.kv.aclose()
    assert script.left_in(tmp_path, ["marzipan-4711"]) == []


@pytest.mark.parametrize("turns", [20, pytest.param(script.TURNS, marks=pytest.mark.slow)])
async def test_a_long_run_keeps_every_item(store: ACMSStore, turns: int) -> None:
    graph = _build_graph(store)
    for turn in range(turns):
        await _ask_graph(graph, str(turn % 2), script.said(turn))
    for user in (0, 1):
        kept = await store.asearch((f"user:{user}",), limit=1000)
        assert {item.value["text"] for item in kept} == {script.said(n) for n in range(user, turns, 2)}


def test_blocking_code_and_many_event_loops_share_a_store(tmp_path: Path) -> None:
    store = ACMSStore(open_kv(f"sqlite:///{tmp_path / 'memory.db'}"))
    for number in range(3):
        asyncio.run(store.aput(("a",), str(number), {"n": number}))
    store.put(("a",), "3", {"n": 3})

    async def inside() -> int:
        return len(store.search(("a",)))

    assert asyncio.run(inside()) == 4
    asyncio.run(store.kv.aclose())


@given(seed=st.integers(0, 2**32))
def test_any_conversation_is_kept_and_found(seed: int) -> None:
    async def run() -> None:
        steps = transcripts.random_conversation(Random(seed))
        values = [
            repair_value({**step._asdict(), "calls": [call._asdict() for call in step.calls]})
            for step in steps
        ]
        kv = open_kv("memory://")
        kept = ACMSStore(kv)
        for number, value in enumerate(values):
            await kept.aput(("steps",), str(number), value)
        found = [await kept.aget(("steps",), str(number)) for number in range(len(values))]
        assert [one and one.value for one in found] == json.loads(json.dumps(values))
        assert await kept.asearch(("steps",), query=steps[0].text or "x")
        await kv.aclose()

    asyncio.run(run())
