"""What prompts render to for the three providers, and what ACS and CEO answer."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any
from uuid import UUID

from acms import ACMS
from acms.acs import ACS, CEO, KVCache
from acms.codecs import AnthropicMessages, OpenAIChat, OpenAIResponses, Tool
from acms.kv import InMemoryKV
from acms.pins import create_pin_registry
from acms.prompt import Prompt, Rendered

from .book import Records
from .plain import Names, short
from .reading import tried
from .sources import Talk, told

CODECS = {
    "chat": lambda: OpenAIChat("gpt-5"),
    "responses": lambda: OpenAIResponses("gpt-5"),
    "anthropic": lambda: AnthropicMessages("claude-sonnet-4-5"),
}
NOON = datetime(2025, 11, 30, 12, tzinfo=UTC)
_TOOL = Tool(
    name="read_file",
    description="Read a file of the repository.",
    parameters={"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
)


def rendered(found: Any, names: Names) -> Any:
    """Write a rendered prompt: tokens, what each message shows, digests of payload and manifest."""
    if not isinstance(found, Rendered):
        return found
    return {
        "tokens": names.plain(found.tokens),
        "keys": sorted(found.payload),
        "payload": names.digest(found.payload),
        "count": len(found.messages),
        "messages": [
            f"{one.role.value[:4]} {names.digest(one.parts)[:6]} {' '.join(map(names.text, one.sources[:6]))}".strip()
            for one in found.messages[-6:]
        ],
        "steps": names.digest(found.steps),
        "warnings": len(found.warnings),
        "cache": names.digest(found.cache),
        "ledger": names.digest(
            sorted((names.text(one.id), one.included, one.rule, one.tokens) for one in found.ledger)
        ),
    }


def recipes(prompt: Prompt, session: ACMS, question: str, store: InMemoryKV) -> dict[str, Prompt]:
    """Return prompts that use every way to fill one."""
    head = prompt.system("You help with what was said. Cite it.").developer("Never guess.")
    return {
        "usual": head.recall(session, question, tokens=500).last(session, n=12).user(question),
        "history": head.tools([_TOOL]).history(session).user(question),
        "cached": head.cache_hint(version="1").history(session).recall(session, question).user(question),
        "sections": head.section("past", lambda p: p.recall(session, question, in_place=True), share=0.3)
        .section("now", session, ceiling=900, priority=2)
        .omit("A remark that may go.")
        .truncate("One two three four five. " * 60, 40)
        .user(question),
        "pinned": head.pinned_kv(store=store, namespace="golden").last(session, n=4).user(question),
        "summary": head.summary(session, id="story", store=store, tokens=200).user(question),
    }


async def prompt(talk: Talk) -> Records:
    """Render every recipe for every provider at two budgets, and once more after the first."""
    found: Records = {}
    async with told(talk) as (session, names):
        for (name, question), (label, codec) in (
            (q, c) for q in talk.some(2 if talk.ours else 1) for c in CODECS.items()
        ):
            store = await pinned()
            made = recipes(Prompt(codec()), session, question, store)
            for recipe, one in made.items():
                for budget in (700, 4000):
                    key = f"prompt-{label} {recipe} {budget:04} {name}"
                    found[key] = rendered(await tried(one.render(budget)), names)
            before = await made["cached"].render(4000)
            again = await made["cached"].assistant("Well.").user("And then?").render(4000, after=before)
            found[f"prompt-{label} after 4000 {name}"] = rendered(again, names)
            if label == "chat":
                found[f"manifest 4000 {name}"] = names.digest(before.manifest.to_json())
                found[f"stored-summary {name}"] = names.digest((await store.get("story")).data)  # type: ignore[union-attr]
    return found


async def pinned() -> InMemoryKV:
    """Return a key-value memory with three pins."""
    store = InMemoryKV(clock=lambda: NOON)
    registry = create_pin_registry(store, namespace="golden", clock=lambda: NOON)
    await store.set("style", "Answer in one sentence.")
    await store.set("profile", {"name": "Sam", "team": "orders", "since": 2021})
    await registry.pin("style", priority=10)
    await registry.pin("profile", label="User profile", tags=["who"])
    await registry.pin("missing", priority=1)
    return store


async def pins(_talk: Talk) -> Records:
    """Change pins and values, and read them back."""
    names, store = Names(), await pinned()
    registry = create_pin_registry(store, namespace="golden", clock=lambda: NOON + timedelta(hours=1))
    found: Records = {"pins listed": names.plain(await registry.list())}
    await registry.pin("profile", label="Who", priority=20)
    found["pins unpin"] = [await registry.unpin("missing"), await registry.unpin("missing")]
    found["pins changed"] = names.plain(await registry.list())
    entry = await store.get("profile")
    found["kv entry"] = names.plain({"data": entry.data, "metadata": entry.metadata}) if entry else None
    found["kv index"] = names.plain((await store.get(registry.index_key)).data)  # type: ignore[union-attr]
    await store.delete("style")
    for label, codec in CODECS.items():
        made = Prompt(codec()).pinned_kv(store=store, namespace="golden").user("Who am I?")
        found[f"pins prompt-{label}"] = {"payload": (await made.render(500)).payload}
    return found


def request(question: str, number: int, tokens: int, **more: Any) -> dict[str, Any]:
    """Return a `render_request.v0` with time enough."""
    return {
        "version": "v0",
        "id": str(UUID(int=number)),
        "intent": question,
        "budgets": {"tokens_max": tokens, "time_ms": 600_000},
        "request_id": f"golden-{number}",
        **more,
    }


async def acs(talk: Talk) -> Records:
    """Ask ACS for context at three budgets, in both profiles and orders and all modes; and a CEO with a cache."""
    found: Records = {}
    async with told(talk) as (session, names):
        frozen: dict[str, Any] = {"timer": lambda: 0.0, "clock": lambda: talk.messages[-1]["created_at"]}
        plain = ACS([session], **frozen)
        for name, question in talk.some(6):
            for tokens in (200, 1000, 4000):
                reply = await plain.render(request(question, 1, tokens))
                found[f"acs {tokens:04} {name}"] = _reply(reply, names, full=tokens < 1000)
        other = ACS([session], profile="published", order="lod", **frozen)
        for name, question in talk.some(4):
            found[f"acs-published 1000 {name}"] = _reply(
                await other.render(request(question, 2, 1000)), names
            )
            for mode in ("redact", "block"):
                body = request(question, 3, 1000, privacy_mode=mode, risk_profile={"level": "high"})
                found[f"acs-{mode} 1000 {name}"] = _reply(await plain.render(body), names, full=False)
        cache, numbers = KVCache(), count(100)
        caller = CEO(plain, cache=cache, ids=lambda: str(UUID(int=next(numbers))), clock=lambda: 0.0)
        for name, question in talk.some(4):
            outcome = await caller.ask(question)
            found[f"ceo {name}"] = {
                "intent": names.digest(outcome.intent),
                "request": names.digest({**outcome.request.to_wire()}),
                "tried": len(outcome.tried),
                "applied": names.digest(outcome.applied),
                "reply": _reply(outcome.reply, names, full=False),
            }
    return found


def _reply(reply: Any, names: Names, *, full: bool = True) -> dict[str, Any]:
    wire = reply.to_wire(extended=True)
    fragments = wire.get("fragments") or []
    lines = [
        f"{names.text(one['id'])} {one['lod']} {one['cost_tokens']}t {names.digest(one)[:6]}"
        for one in fragments
    ]
    return {
        "fragments": lines if full else f"{len(lines)}: {short(lines[:25])}",
        "metrics": names.plain(wire.get("metrics")),
        "error": wire.get("error", {}).get("code"),
        "warnings": [one["code"] for one in wire.get("warnings", [])],
        "wire": names.digest(wire),
        "ledger": names.digest(
            sorted((names.text(v.id), v.included, v.rule, v.tokens) for v in reply.ledger)
        ),
    }
