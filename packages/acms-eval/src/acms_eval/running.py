"""Runs a scenario: tells it to a system as a user would, asks the questions, and scores the answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from acms.config import ACMSConfig
from acms.errors import FitError
from acms.model import Source
from acms.ports import Embedder, Reflector, StorageBackend
from acms.prompt import Prompt
from acms.providers.codecs import OpenAIChat
from acms.session import ACMS
from acms.storage import open_storage
from acms_eval.metrics import score
from acms_eval.nouns import Probe, Recalled, Report, Said, Scenario, Score, System

__all__ = ["Remembering", "Requesting", "measure", "measure_budgets", "run"]

CURRENT = (Source.CURRENT, Source.WINDOW)


class Remembering:
    """An ACMS session as a system to be measured; the caller closes the session."""

    def __init__(self, session: ACMS, name: str = "acms", *, include_current_episode: bool = True) -> None:
        self.session = session
        self.name = name
        #: How sure the last recall was that something answers the question.
        self.confidence: float | None = None
        self._include_current = include_current_episode
        #: The number of the told message, counted from 0, by the id of its entry.
        self.told: dict[str, int] = {}

    async def tell(self, said: Said) -> None:
        """Ingest a message."""
        id = await self.session.ingest(
            said.role,
            said.text,
            actor_id=said.speaker,
            markers=said.markers,
            created_at=said.created_at,
        )
        self.told[id] = len(self.told)

    async def settle(self) -> None:
        """Wait for vectors and jobs."""
        await self.session.wait_pending()

    async def ask(self, question: str, budget: int) -> Sequence[Recalled]:
        """Recall; nothing is ingested."""
        items = await self.session.recall(
            question, budget=budget, include_current_episode=self._include_current
        )
        self.confidence = items.confidence
        return [
            Recalled(
                text=item.content,
                score=item.score,
                current=item.source in CURRENT,
                tokens=item.token_count,
                source=item.source,
                index=self.told.get(item.id),
            )
            for item in items
        ]


class Requesting(Remembering):
    """An ACMS session that is judged by whole requests: history and recalled entries, within the budget."""

    #: The cost of the last request, in units of one token of uncached input; None when it did not fit.
    paid: float | None = None

    async def ask(self, question: str, budget: int) -> Sequence[Recalled]:
        """Render a prompt; the entries that its messages show count as recalled, all with the same score."""
        prompt = Prompt(OpenAIChat("gpt-5")).history(self.session)
        try:
            rendered = await prompt.recall(self.session, question).user(question).render(budget=budget)
        except FitError:
            self.paid = None
            return ()
        self.paid = rendered.cache.paid()
        entry_texts = rendered.entry_texts()
        tokens_each = rendered.tokens.upper_bound // max(1, len(entry_texts))
        return [
            Recalled(text=text, score=1.0, tokens=tokens_each, source="request", index=self.told.get(id))
            for id, text in entry_texts.items()
        ]


async def measure(scenario: Scenario, system: System, *, budget: int | None = None) -> Report:
    """Tell a system a scenario, ask every probe when it is due, and return how good the answers were.

    Before a probe the system comes to rest: an answer is judged by what it can know, not by how busy it was. Probes
    due at the same message are asked one after the other and do not see each other. The budget is that of the scenario
    where none is given.
    """
    budget = scenario.budget if budget is None else budget
    return (await measure_budgets(scenario, system, [budget]))[0]


async def measure_budgets(
    scenario: Scenario, system: System, token_budgets: Sequence[int], *, roomy: int | None = None
) -> tuple[Report, ...]:
    """Measure as `measure` does, each probe asked within every one of the budgets; one report for each.

    With `roomy`, a larger budget, the last report is that of `roomy`. A probe is asked within it only where it was
    missed within another; elsewhere the last score stands in, for a hit stays one with more room.
    """
    probes_by_place: dict[int, list[Probe]] = {}
    for probe in scenario.probes:
        probes_by_place.setdefault(probe.after, []).append(probe)
    scores: list[list[Score]] = [[] for _ in token_budgets]
    roomy_scores: list[Score] = []
    tell_seconds = 0.0
    for count in range(len(scenario.said) + 1):
        start = time.perf_counter()
        if count:
            await system.tell(scenario.said[count - 1])
        probes_now = probes_by_place.get(count, ())
        if probes_now or count == len(scenario.said):
            await system.settle()
        tell_seconds += time.perf_counter() - start
        for probe in probes_now:
            for budget_scores, budget in zip(scores, token_budgets, strict=True):
                budget_scores.append(await _score_probe(system, probe, budget))
            if roomy is not None:
                missed = [budget_scores[-1] for budget_scores in scores if not budget_scores[-1].hit]
                roomy_scores.append(await _score_probe(system, probe, roomy) if missed else scores[-1][-1])
    scores_by_budget = [
        *zip(scores, token_budgets, strict=True),
        *([] if roomy is None else [(roomy_scores, roomy)]),
    ]
    return tuple(
        Report(
            system=system.name,
            scenario=scenario.name,
            turns=len(scenario.said),
            budget=budget,
            scores=tuple(budget_scores),
            tell_seconds=tell_seconds,
            words=scenario.words,
        )
        for budget_scores, budget in scores_by_budget
    )


async def _score_probe(system: System, probe: Probe, budget: int) -> Score:
    start = time.perf_counter()
    items = await system.ask(probe.question, budget)
    seconds = time.perf_counter() - start
    return score(probe, items, seconds=seconds, paid=getattr(system, "paid", None))


async def run(
    scenario: Scenario,
    *,
    storage: str | Callable[[], StorageBackend] = "memory://",
    reflector: Reflector | None = None,
    embedder: Embedder | None = None,
    budget: int | None = None,
    config: ACMSConfig | None = None,
    name: str = "acms",
) -> Report:
    """Feed a new session a scenario as a user would, and return how good its recalls were.

    `storage` is an address or makes a handle; the session bears the name of the scenario and must not exist yet.
    """
    handle = open_storage(storage) if isinstance(storage, str) else storage()
    async with ACMS(scenario.name, handle, embedder, reflector=reflector, config=config) as session:
        report = await measure(scenario, Remembering(session, name), budget=budget)
        return replace(report, facts=len(await session.facts()))
