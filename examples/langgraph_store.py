"""A LangGraph graph that remembers its users in a store. Runs offline.

python examples/langgraph_store.py
"""

from __future__ import annotations

import sys
from typing import Any, TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.runtime import Runtime

from acms.integrations.langgraph import ACMSStore
from acms.kv import open_kv


class State(TypedDict, total=False):
    said: str
    answer: str


class User(TypedDict):
    id: str


def answer(state: State, runtime: Runtime[User]) -> State:
    """Answer a question from what the user has said before; keep everything else."""
    store, home = runtime.store, ("facts", runtime.context["id"])
    assert store is not None
    if state["said"].endswith("?"):
        found = store.search(home, query=state["said"], limit=1)
        return {"answer": f"You said: {found[0].value['text']}" if found else "I do not know."}
    store.put(home, str(len(store.search(home, limit=1000))), {"text": state["said"]})
    return {"answer": "Noted."}


def main(url: str = "memory://") -> None:
    builder = StateGraph(State, context_schema=User)
    builder.add_node("answer", answer)
    builder.add_edge(START, "answer")
    builder.add_edge("answer", END)
    graph: Any = builder.compile(store=ACMSStore(open_kv(url)))
    for user, said in (
        ("ana", "My deploys go to Frankfurt."),
        ("ana", "My tests run on Python 3.14."),
        ("ana", "Where do my deploys go?"),
        ("ben", "Where do my deploys go?"),
    ):
        done = graph.invoke({"said": said}, context={"id": user})
        print(f"{user}: {said} → {done['answer']}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
