"""What the reading verbs give: recall and its options, windows, chat messages, pages of history, past versions."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from acms import ACMS, ACMSError, ContextItems, View
from acms.providers import LocalEmbedder

from .book import Records
from .plain import Names, short, without_numbers
from .sources import SAMPLE, Talk, told

BUDGETS = (300, 1000, 4000)
BEST = 5
"""Items of a recall whose order by score is recorded."""


async def tried(work: Awaitable[Any]) -> Any:
    """Return what comes of a call; of a typed error its code."""
    try:
        return await work
    except ACMSError as error:
        return {"error": error.code}


def shown(items: ContextItems, names: Names, *, full: bool = True) -> dict[str, Any]:
    """Write recalled or windowed items: all on lines of their own, or only which."""
    lines = [names.item(item) for item in items]
    best = sorted(items, key=lambda item: (-round(item.score, 4), item.version))[:BEST]
    order = " ".join(names.text(item.id) for item in best)
    summary = (
        f"v{items.version} {items.tokens}t sure {names.number(items.confidence)} left out {items.ledger.omitted} "
        f"warned {len(items.ledger.warnings)} text {names.digest(items.text())}"
    )
    if full:
        return {"all": summary, "best": order, "items": lines}
    return {"all": f"{summary} items {names.digest(lines)}", "best": order, "shown": short(lines)}


def verdicts(items: ContextItems, names: Names) -> dict[str, Any]:
    """Write the ledger: how many verdicts of each rule, and a digest of all."""
    lines = [
        (
            one.id,
            one.included,
            one.rule,
            one.source,
            one.tokens,
            without_numbers(one.reason),
        )
        for one in sorted(items.ledger, key=lambda one: (one.version, names.text(one.id)))
    ]
    rules: dict[str, int] = {}
    for line in lines:
        rules[line[2]] = rules.get(line[2], 0) + 1
    certainty = without_numbers(str(items.ledger.certainty))
    return {
        "rules": rules,
        "ledger": names.digest(lines),
        "certainty": names.digest(certainty),
        "band": items.band.value,
    }


async def asked(
    view: View, names: Names, questions: list[tuple[str, str]], label: str, budget: int = 1000, **options: Any
) -> Records:
    """Recall a few questions and return only which entries are shown."""
    found: Records = {}
    for name, question in questions:
        items = await view.recall(question, token_budget=budget, **options)
        found[f"{label} {budget:04} {name}"] = shown(items, names, full=False)
    return found


async def recall(talk: Talk) -> Records:
    """Recall every question at three budgets, and some with each option."""
    found: Records = {}
    async with told(talk, namespace="golden") as (session, names):
        for place, (name, question) in enumerate(talk.some(SAMPLE)):
            for budget in BUDGETS:
                items = await session.recall(question, token_budget=budget)
                full = budget < 1000 or (budget < 4000 and place < 2)
                found[f"recall {budget:04} {name}"] = shown(items, names, full=full)
        few = talk.some(4)
        for name, question in few:
            items = await session.recall(question, token_budget=1000)
            found[f"ledger 1000 {name}"] = verdicts(items, names)
        first = await session.recall(few[0][1], token_budget=1000)
        options: dict[str, dict[str, Any]] = {
            "without-current": {"include_current_episode": False},
            "relevant-only": {"relevant_only": True},
            "min-relevance": {"min_relevance": 0.35},
            "exclude": {"exclude": [item.id for item in first][::2]},
            "superseded": {"include_superseded": True},
            "namespace": {"scope": "namespace"},
        }
        for label, option in options.items():
            found |= await asked(session, names, few, f"recall-{label}", **option)
    return found


async def window(talk: Talk) -> Records:
    """Take windows and chat messages at several budgets, and everything in force."""
    found: Records = {}
    async with told(talk) as (session, names):
        for budget in (40, *BUDGETS, 16_000):
            found[f"window {budget:05}"] = shown(await session.window(budget), names, full=budget < 1000)
            found[f"window-keep {budget:05}"] = shown(
                await session.window(budget, keep=["system"]), names, full=False
            )
        for name, question in talk.some(6):
            for budget in (600, 3000, 200_000):
                told_ = await tried(session.messages(question, budget=budget))
                found[f"messages {budget:06} {name}"] = chat(told_, names)
        for newest in (None, 7):
            entries = await session.entries(newest)
            found[f"entries {newest}"] = {
                "count": len(entries),
                "digest": names.digest([names.entry(e) for e in entries]),
            }
    return found


def chat(messages: Any, names: Names) -> Any:
    """Write chat messages: roles in order, and a digest of each of the first and last ones."""
    if isinstance(messages, dict):
        return messages
    roles = "".join(str(one["role"])[0] for one in messages)
    digests = [names.digest(one)[:8] for one in messages]
    edge = digests if len(digests) <= 24 else [*digests[:8], *digests[-16:]]
    return {
        "count": len(messages),
        "roles": roles[-60:],
        "digest": names.digest(messages),
        "each": " ".join(edge),
    }


async def log(talk: Talk) -> Records:
    """Read history, episodes, statistics and past versions."""
    found: Records = {}
    async with told(talk) as (session, names):
        found |= await _pages(session, names)
        stats = await session.get_session_stats()
        for part in (1, 2, 3):
            version = stats.version * part // 4
            view = session.at(version)
            found[f"at-stats {part}/4"] = names.plain(await view.get_session_stats())
            found[f"at-window {part}/4"] = shown(await view.window(800), names)
            found |= await asked(view, names, talk.some(4), f"at-recall {part}/4")
        found["stats"] = names.plain(stats)
        found["tree"] = names.plain([(depth, branch) for depth, branch in await session.tree() or ()])
        found["receipt"] = _receipt(session, names)
        (newest,) = await session.entries(1) if stats.version else [None]
        found["get"] = names.entry(await session.get(newest.id)) if newest else None
        found["policy"] = names.plain(await session.policy())
        found["at-beyond"] = await tried(session.at(stats.version + 1).window(100))
    return found


async def _pages(session: ACMS, names: Names) -> Records:
    found: Records = {}
    after: int | None = 0
    while after is not None:
        page = await session.history(limit=100, after=after)
        found[f"history {after:05}"] = {
            "count": len(page.entries),
            "tokens": sum(entry.tokens for entry in page.entries),
            "digest": names.digest(page.entries),
        }
        after = page.next_after
    episodes = await session.episodes()
    for start in range(0, len(episodes), 50):
        part = episodes[start : start + 50]
        found[f"episodes {start:04}"] = {
            "spans": " ".join(f"{one.first}-{one.last}:{(one.reason or 'open')[:4]}" for one in part),
            "digest": names.digest(part),
        }
    found["episodes open"] = [one.ordinal for one in await session.episodes("open")]
    return found


def _receipt(session: ACMS, names: Names) -> Any:
    receipt = names.plain(session.last_receipt)
    return {**receipt, "chain_hash": len(receipt["chain_hash"])}


async def by_meaning(talk: Talk) -> Records:
    """Recall by words and by meaning, with the embedder that runs on this machine."""
    found: Records = {}
    async with told(talk, embedder=LocalEmbedder()) as (session, names):
        await session.wait_pending()
        for name, question in talk.some(12):
            for budget in (300, 1000):
                items = await session.recall(question, token_budget=budget)
                found[f"recall {budget:04} {name}"] = {
                    "coverage": names.number(items.coverage),
                    **shown(items, names, full=budget < 1000),
                }
        for name, question in talk.some(3):
            items = await session.recall(question, token_budget=1000)
            found[f"ledger 1000 {name}"] = verdicts(items, names)
            found[f"messages 1500 {name}"] = chat(await session.messages(question, budget=1500), names)
    return found


async def full(talk: Talk) -> Records:
    """Recall every question of a conversation at three budgets: one line for each question."""
    found: Records = {}
    async with told(talk) as (session, names):
        for name, question in talk.some(len(talk.questions)):
            lines = []
            counts = []
            for budget in BUDGETS:
                items = await session.recall(question, token_budget=budget)
                lines.append([names.item(item) for item in items])
                counts.append(f"{len(items)}/{items.tokens}t")
            found[f"recall {name}"] = f"{' '.join(counts)} {names.digest(lines)}"
    return found
