"""Whether facts that were said early, and corrected later, are still recalled right after a long conversation.

    python benchmarks/facts.py
    python benchmarks/facts.py --embedder local --cache ../vectors
    python benchmarks/facts.py --turns 200 --seeds 1 --misses

Conversations come from `acms_eval.corrections`: twenty facts, three corrections, noise about other products
beside the words of every topic, small talk; twenty probes at the end, which are asked and never said. "marked" states
facts with markers, "plain" in plain conversation. Figures are means over the probes of all seeds,
defined in `acms_eval.metrics`; "past" leaves the current episode out. All systems are asked within one budget.

"acms" recalls messages alone; with "offline" its rules distil facts, with "perfect" a reflector that proposes exactly
what follows. gleanr 0.5.0 gets the same perfect proposals, reflects before it goes on (in the background it loses
corrections), and runs where it is installed, with its own count of tokens; "facts only" is its option of that name.
Without an embedder its facts are never recalled, for they are found by vectors alone. "tell s" is one conversation;
with an embedder the systems share the vectors of what was said, so the first one pays for them.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import json
import logging
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from quality import embedder_named, say

from acms.providers import OfflineReflector
from acms_eval import (
    MostRecent,
    PerfectReflector,
    PlainBM25,
    Report,
    Scenario,
    corrections,
    measure,
    run,
    table,
)
from acms_eval.peers import open_gleanr


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What one system is run with."""

    scenario: Scenario
    embedder: Any
    budget: int


Run = Callable[[Setting], Awaitable[Report]]


async def recent(setting: Setting) -> Report:
    return await measure(setting.scenario, MostRecent(), budget=setting.budget)


async def plain_bm25(setting: Setting) -> Report:
    return await measure(setting.scenario, PlainBM25(), budget=setting.budget)


def acms(reflector: Callable[[Scenario], Any] | None) -> Run:
    async def go(setting: Setting) -> Report:
        return await run(
            setting.scenario,
            reflector=None if reflector is None else reflector(setting.scenario),
            embedder=setting.embedder,
            budget=setting.budget,
        )

    return go


# ── gleanr ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class PerfectForGleanr:
    """The same proposals in gleanr's words; an update names the fact in force by its text."""

    def __init__(self, scenario: Scenario) -> None:
        self.by_text = {scenario.said[index].text: proposal for index, proposal in scenario.proposals}
        self.stated = {
            (proposal.subject, proposal.attribute): proposal.content
            for _, proposal in scenario.proposals
            if proposal.action == "add"
        }

    async def reflect(self, episode: Any, turns: Sequence[Any]) -> list[Any]:
        from gleanr.models import Fact
        from gleanr.utils import generate_fact_id

        return [
            Fact(
                id=generate_fact_id(),
                session_id=episode.session_id,
                episode_id=episode.id,
                content=proposal.content,
                created_at=turn.created_at,
                fact_type=proposal.fact_type,
                confidence=1.0,
            )
            for turn in turns
            if (proposal := self.by_text.get(turn.content)) is not None
        ]

    async def reflect_with_consolidation(
        self, episode: Any, turns: Sequence[Any], prior_facts: Sequence[Any]
    ) -> list[Any]:
        from gleanr.models.consolidation import ConsolidationAction, ConsolidationActionType

        ids = {fact.content: fact.id for fact in prior_facts}
        actions: list[Any] = []
        for turn in turns:
            proposal = self.by_text.get(turn.content)
            if proposal is not None:
                known = ids.get(self.stated[proposal.subject, proposal.attribute])
                update = proposal.action == "update" and known is not None
                actions.append(
                    ConsolidationAction(
                        action=ConsolidationActionType.UPDATE if update else ConsolidationActionType.ADD,
                        content=proposal.content,
                        fact_type=proposal.fact_type,
                        confidence=1.0,
                        source_fact_id=known if update else None,
                    )
                )
        return actions


def gleanr(facts_only: bool) -> Run:
    async def go(setting: Setting) -> Report:
        from gleanr import GleanrConfig, RecallConfig, ReflectionConfig

        config = GleanrConfig(
            recall=RecallConfig(facts_only_recall=facts_only), reflection=ReflectionConfig(background=False)
        )
        reflector = PerfectForGleanr(setting.scenario)
        async with open_gleanr(setting.embedder, reflector=reflector, config=config)() as system:
            report = await measure(setting.scenario, system, budget=setting.budget)
            facts = await system.session._storage.get_active_facts_by_session(system.session.session_id)
        return replace(report, facts=len(facts))

    return go


# ── the run ─────────────────────────────────────────────────────────────────────────────────────────────────────────

SYSTEMS: dict[str, Run] = {
    "most recent window": recent,
    "plain BM25": plain_bm25,
    "gleanr, perfect": gleanr(facts_only=False),
    "gleanr, perfect, facts only": gleanr(facts_only=True),
    "acms": acms(None),
    "acms, offline": acms(lambda scenario: OfflineReflector()),
    "acms, perfect": acms(PerfectReflector),
}


def available(wanted: Sequence[str]) -> list[str]:
    """Return the systems to run, without peers that are not installed."""
    try:
        importlib.metadata.version("gleanr")
    except importlib.metadata.PackageNotFoundError:
        print("gleanr is not installed: left out", file=sys.stderr)
        return [name for name in wanted if not name.startswith("gleanr")]
    logging.getLogger("gleanr").setLevel(logging.ERROR)  # it warns of every episode without news
    return list(wanted)


def misses(report: Report) -> str:
    """Return the probes that were missed or answered with what is no longer so."""
    lines = [
        f"  {'miss' if not score.hit else 'stale'}: {score.probe.question} (want {' '.join(score.probe.expected)}"
        + (f", not {' '.join(score.probe.forbidden)})" if score.probe.forbidden else ")")
        for score in report.scores
        if not score.hit or score.stale
    ]
    return "\n".join(lines)


async def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, nargs="+", default=[200, 1000, 3000])
    parser.add_argument("--seeds", type=int, default=3, help="conversations of each length")
    parser.add_argument("--variants", nargs="+", choices=("marked", "plain"), default=["marked", "plain"])
    parser.add_argument("--systems", nargs="+", choices=tuple(SYSTEMS), default=list(SYSTEMS))
    parser.add_argument("--budget", type=int, default=1000)
    parser.add_argument("--embedder", choices=("none", "local"), default="none")
    parser.add_argument("--cache", type=Path, metavar="FOLDER", help="keep vectors here for the next run")
    parser.add_argument("--misses", action="store_true", help="name the probes that went wrong")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    embedder = embedder_named(options.embedder, options.cache)
    systems = available(options.systems)
    documents: list[dict[str, Any]] = []
    for variant in options.variants:
        reports: list[Report] = []
        for turns in options.turns:
            for name in systems:
                found: list[Report] = []
                for seed in range(options.seeds):
                    say(f"{variant}, {turns} turns, seed {seed}: {name}")
                    scenario = corrections(turns=turns, seed=seed, marked=variant == "marked")
                    setting = Setting(scenario=scenario, embedder=embedder, budget=options.budget)
                    found.append(await SYSTEMS[name](setting))
                    if options.misses and (text := misses(found[-1])):
                        print(f"{variant}, {turns} turns, seed {seed}: {name}\n{text}", file=sys.stderr)
                together = Report.together(found)
                reports.append(
                    replace(together, system=name, tell_seconds=together.tell_seconds / len(found))
                )
        say("")
        for report in reports:
            documents.append({"variant": variant, **json.loads(report.to_json())})
        if not options.json:
            print(
                f"\n{variant} facts, {options.seeds} conversations of each length,"
                f" {options.budget} tokens, embedder: {options.embedder}\n{table(reports)}"
            )
    if options.json:
        print(json.dumps({"embedder": options.embedder, "reports": documents}, indent=2))


if __name__ == "__main__":
    asyncio.run(main())
