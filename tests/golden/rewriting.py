"""What changes a log and what comes of it: facts, compaction, edits, retraction, erasure, forks, copies, tags."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from acms import ACMS, ACMSConfig, EpisodeBoundaryConfig, ReflectionConfig, View
from acms.providers import OfflineReflector

from .book import Records
from .plain import Names, short
from .reading import asked, shown, tried
from .sources import Talk, context, storage, told

LATER = datetime(2025, 12, 1, 12, tzinfo=UTC)


async def state(view: View, names: Names, label: str) -> Records:
    """Write where a log stands: counts, what is in force, what is known."""
    entries = await view.entries()
    known = [names.fact(fact) for fact in await view.facts(history=True)]
    return {
        f"{label} stats": names.plain(await view.get_session_stats()),
        f"{label} entries": {
            "count": len(entries),
            "digest": names.digest([names.entry(one) for one in entries]),
        },
        f"{label} facts": {"count": len(known), "digest": names.digest(known)},
        f"{label} window": shown(await view.window(600), names),
    }


async def facts(talk: Talk) -> Records:
    """Reflect on everything by rules, and see what is known, at the head and before, and what is recalled of it."""
    found: Records = {}
    config = ACMSConfig(reflection=ReflectionConfig(enabled=False))
    async with told(talk, config, namespace="golden", reflector=OfflineReflector()) as (session, names):
        await session.close_episode("golden")
        before = (await session.get_session_stats()).version
        await session.wait(await session.reflect())
        await session.wait_pending()
        known = await session.facts(history=True)
        for number, fact in enumerate(known):
            found[f"fact {number:03}"] = names.fact(fact)
        found["facts in-force"] = [names.text(fact.id) for fact in await session.facts()]
        found["facts before"] = len(await session.at(before).facts(history=True))
        found["facts namespace"] = [names.fact(fact) for fact in await session.facts(scope="namespace")]
        for fact_type in sorted({fact.fact_type for fact in known}):
            found[f"facts-of {fact_type}"] = [
                names.text(f.id) for f in await session.facts(fact_type=fact_type)
            ]
        for fact in known[:3]:
            same = await session.facts(subject=fact.subject, attribute=fact.attribute, history=True)
            found[f"facts-at {names.text(fact.id)}"] = [names.text(one.id) for one in same]
        found |= await asked(session, names, talk.some(10), "recall-known")
        found |= await asked(session, names, talk.some(5), "recall-known-superseded", include_superseded=True)
        found |= await state(session, names, "reflected")
        found |= await _without_a_source(session, names, known)
    return found


async def _without_a_source(session: ACMS, names: Names, known: list[Any]) -> Records:
    """Take away what a fact was made from."""
    live = [fact for fact in known if fact.retired is None and fact.sources]
    if not live:
        return {}
    await session.retract(live[0].sources[0])
    return {
        f"source-retracted {number:03}": names.fact(fact)
        for number, fact in enumerate(await session.facts(history=True))
        if fact.retired is not None
    }


async def reflection(talk: Talk) -> Records:
    """Say one message after the other with a reflector that works in the background, and wait for it each time."""
    found: Records = {}
    episodes = EpisodeBoundaryConfig(max_turns=4)
    async with ACMS(
        talk.name, storage(), None, reflector=OfflineReflector(), config=ACMSConfig(episodes=episodes)
    ) as session:
        for message in talk.messages[:40]:
            await session.ingest(**message)
            await session.wait_pending()
        names = Names(await context(session))
        for number, fact in enumerate(await session.facts(history=True)):
            found[f"fact-by-turn {number:03}"] = names.fact(fact)
        found |= await state(session, names, "by-turn")
        page = await session.history(limit=200)
        kinds = [
            f"{names.text(entry.id)} {entry.tokens}t"
            for entry in page.entries
            if entry.kind.value != "message"
        ]
        found["by-turn derived"] = kinds
    return found


async def compaction(talk: Talk) -> Records:
    """Let summaries stand for the older part, twice; look behind them, go back, and take the last one away."""
    found: Records = {}
    async with told(talk) as (session, names):
        whole = await session.get_session_stats()
        for turn, overrides in enumerate(
            ({}, {"keep": 0.1, "preserve_recent_count": 4, "summary_tokens": 200})
        ):
            made = await session.wait(await session.compact(**overrides))
            found[f"compacted {turn}"] = (
                names.plain(made) | {"summary": names.digest(made.summary)} if made else None
            )
            found |= await state(session, names, f"compacted-{turn}")
            found |= await asked(session, names, talk.some(5), f"compacted-{turn} recall")
            await session.ingest("user", f"Later remark {turn}.", created_at=LATER + timedelta(hours=turn))
        made_all = await session.compactions()
        found["compactions"] = [f"{one.version} {one.spans} {one.in_force}" for one in made_all]
        for one in made_all:
            behind = [names.entry(entry) for entry in await session.expand(one.version)]
            found[f"expand {one.version}"] = {"count": len(behind), "digest": names.digest(behind)}
        found |= await asked(session.at(whole.version), names, talk.some(3), "before-compaction recall")
        if made_all:
            found["undone"] = await session.undo(made_all[-1].version)
            found |= await state(session, names, "undone")
        await session.set_policy(budget=3000, threshold=0.5)
        found["policy"] = names.plain(await session.policy())
        await session.ingest("user", "One more, under the policy.", created_at=LATER + timedelta(days=1))
        await session.wait_pending()
        found |= await state(session, names, "by-policy")
    return found


async def rewriting(talk: Talk) -> Records:
    """Correct, retract, erase and undo; each time the log, and what is recalled."""
    found: Records = {}
    async with told(talk) as (session, names):
        said = await session.entries()
        before = said[-1].version
        few = talk.some(4)

        async def look(label: str) -> None:
            found.update(await state(session, names, label))
            found.update(await asked(session, names, few, f"{label} recall"))

        places = [len(said) * n // 7 for n in range(7)]
        edited = await session.replace(said[places[1]].id, "Corrected: the answer is forty-two.")
        found["replace"] = names.text(edited)
        await look("replaced")
        found["retract"] = [await session.retract(said[places[n]].id, reason="golden") for n in (2, 3)]
        found["retract again"] = await session.retract(said[places[2]].id)
        await look("retracted")
        found["undo"] = await session.undo(found["retract"][0])
        await look("undone")
        erased = [await session.erase(said[places[n]].id, verify=n == 4) for n in (1, 4)]
        found["erase"] = [names.plain(replace(one, unreached=())) for one in erased]
        await look("erased")
        found["gone"] = await tried(session.replace(said[places[4]].id, "Too late."))
        found["at-before entries"] = names.digest(
            [names.entry(e) for e in await session.at(before).entries()]
        )
        found |= await asked(session.at(before), names, few, "at-before recall")
        found["history"] = names.digest((await session.history(limit=500)).entries)
        found["clear"] = await session.clear()
        await look("cleared")
    return found


async def branches(talk: Talk) -> Records:
    """Fork, copy and tag at several places, say other things there, and compare."""
    found: Records = {}
    async with told(talk) as (session, names):
        head = (await session.get_session_stats()).version
        found["tag"] = [await session.tag("half", head // 2), await session.tag("now")]
        async with (
            await session.fork("half", "forked") as fork,
            await session.copy(head // 3, "copied") as copy,
        ):
            await fork.ingest("user", "On the fork we use MongoDB as the database.", created_at=LATER)
            first = (await fork.entries())[0]
            await fork.replace(first.id, "The beginning was different here.")
            await copy.ingest("user", "In the copy it is quiet.", created_at=LATER)
            for label, one in (("fork", fork), ("copy", copy), ("parent", session)):
                found |= await state(one, names, label)
                found |= await asked(one, names, talk.some(3), f"{label} recall")
                found[f"{label} tags"] = await one.tags()
                found[f"{label} ancestry"] = names.plain(await one.ancestry())
                found[f"{label} history"] = names.digest((await one.history(limit=500)).entries)
            async with await fork.fork(session_id="twice") as twice:
                await twice.close_episode("golden")
                found |= await state(twice, names, "fork-of-fork")
            found |= await _apart(session, fork, copy, names)
            found["delete"] = names.plain(await session.delete())
            found |= await state(fork, names, "orphan")
    return found


async def _apart(session: ACMS, fork: ACMS, copy: ACMS, names: Names) -> Records:
    pairs = {
        "fork": await session.diff(fork),
        "copy": await session.diff(copy),
        "tag": await session.diff("half"),
        "fork-half": await fork.diff("half"),
    }
    found: Records = {}
    for label, diff in pairs.items():
        messages = diff.messages
        found[f"diff {label}"] = {
            "common": diff.common,
            "messages": str(messages),
            "added": short([names.text(entry.id) for entry in messages.added][:40]),
            "removed": short([names.text(entry.id) for entry in messages.removed][:40]),
            "changed": [f"{names.text(c.before.id)} {names.text(c.after.id)}" for c in messages.changed],
            "text": names.digest(str(diff)),
        }
    found["tree"] = names.plain([(depth, branch) for depth, branch in await session.tree() or ()])
    found["forks"] = names.plain(await session.forks())
    return found
