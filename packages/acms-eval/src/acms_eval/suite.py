"""Several scenarios through several systems: the choice of systems, and their reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from acms.errors import ValidationError
from acms.ports import Embedder, Reflector
from acms_eval.baselines import MostRecent, PlainBM25, PlainVectors, ReciprocalRankFusion
from acms_eval.judge import Answer
from acms_eval.nouns import Recalled, Report, Said, Scenario, System
from acms_eval.peers import ChromaVectors, GleanrSession, OpenSystem, open_acms, systems
from acms_eval.running import measure

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

__all__ = ["DEFAULT", "SHORT", "LineUp", "Suite", "line_up", "run_suite"]

SHORT: Mapping[str, str] = {
    "acms": "acms",
    "recent": MostRecent.name,
    "bm25": PlainBM25.name,
    "vectors": PlainVectors.name,
    "rrf": ReciprocalRankFusion.name,
    "gleanr": GleanrSession.name,
    "chroma": ChromaVectors.name,
}
"""The name of a system in a report, by its name on a command line."""
DEFAULT = ("acms", "recent", "bm25", "vectors", "rrf", "gleanr")
"""Chroma is left out: it finds what plain vectors find."""
_WITH_OR_WITHOUT_EMBEDDER = ("acms", GleanrSession.name)
"""Systems that run with an embedder and without: in a report the embedder becomes part of their names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineUp:
    """Systems to be measured, ACMS first, and those that cannot be."""

    systems: Mapping[str, OpenSystem]
    #: The systems that cannot be measured, and the reason for each.
    left_out: Mapping[str, str]
    #: The embedder of each ACMS among them.
    acms: Mapping[str, Embedder | None]


def line_up(
    tiers: Sequence[tuple[str, Embedder | None]] = (("none", None),),
    *,
    names: Sequence[str] = DEFAULT,
    reflector: Callable[[], Reflector] | None = None,
) -> LineUp:
    """Return systems by the name they have in a report.

    A tier is the name of an embedder, and the embedder or None. Systems that run with an embedder and without are run
    in every tier, and named after it ("acms + local"). Names are those of `SHORT`; `ValidationError` for another one.
    """
    unknown = [name for name in names if name not in SHORT]
    if unknown:
        raise ValidationError(f"{unknown[0]!r} is no known system", field="system", options=tuple(SHORT))
    full_names = [SHORT[name] for name in SHORT if name in names]
    open_by_name: dict[str, OpenSystem] = {}
    left_out: dict[str, str] = {}
    embedders: dict[str, Embedder | None] = {}
    for tier, embedder in tiers:
        open_systems, reasons = systems(embedder, names=full_names)
        for name, open_system in open_systems.items():
            report_name = (
                f"{name} + {tier}" if embedder is not None and name in _WITH_OR_WITHOUT_EMBEDDER else name
            )
            if name == "acms":
                open_system = open_acms(embedder, name=report_name, reflector=reflector)
                embedders[report_name] = embedder
            open_by_name.setdefault(report_name, open_system)
        left_out |= reasons
    # A system that one tier leaves out for want of an embedder runs in another one.
    left_out = {name: reason for name, reason in left_out.items() if name not in open_by_name}
    return LineUp(
        systems=dict(sorted(open_by_name.items(), key=lambda item: not item[0].startswith("acms"))),
        left_out=left_out,
        acms=embedders,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """The reports of every system on every scenario."""

    #: In the order in which they ran, each with the name that its system has in the line-up.
    reports: tuple[Report, ...]
    #: By system: the items that every probe brought back, for a judge; empty unless `through` was to keep them.
    answers: Mapping[str, tuple[Answer, ...]] = field(default_factory=dict)

    @property
    def systems(self) -> list[str]:
        """The systems, in the order in which they ran."""
        return list(dict.fromkeys(report.system for report in self.reports))

    @property
    def kinds(self) -> list[str]:
        """The scenarios, in the order in which they ran."""
        return list(dict.fromkeys(report.kind for report in self.reports))

    def of(self, system: str, kind: str | None = None) -> list[Report]:
        """Return the reports of a system, of one scenario or of all."""
        return [report for report in self.reports if report.system == system and kind in (None, report.kind)]


async def run_suite(
    scenarios: Sequence[Scenario],
    entered: Mapping[str, OpenSystem],
    *,
    budget: int | None = None,
    keep: bool = False,
    progress: Callable[[str, int, int], None] | None = None,
) -> Suite:
    """Tell every system every scenario, each to a new system, and return the reports.

    `budget` is for all of them; without it each scenario has its own. `progress(what, done, of)` is told before
    each run. `keep` keeps the recalled items.
    """
    reports: list[Report] = []
    answers: dict[str, list[Answer]] = {}
    run_count = len(scenarios) * len(entered)
    for name, open_system in entered.items():
        for scenario in scenarios:
            if progress is not None:
                progress(f"{name}: {scenario.name}", len(reports), run_count)
            async with _record_answers(open_system()) as system:
                report = await measure(scenario, system, budget=budget)
            reports.append(replace(report, system=name))
            if keep:
                answers.setdefault(name, []).extend(
                    Answer(question=score.probe.question, expected=score.probe.expected, items=items)
                    for score, items in zip(report.scores, system.answers_given, strict=True)
                )
    return Suite(
        reports=tuple(reports),
        answers={name: tuple(system_answers) for name, system_answers in answers.items()},
    )


class _RecordedSystem:
    """A system whose answers are recorded, for a judge: a report holds only their figures."""

    def __init__(self, inner: System) -> None:
        self._inner = inner
        self.name = inner.name
        self.answers_given: list[tuple[Recalled, ...]] = []

    async def tell(self, said: Said) -> None:
        await self._inner.tell(said)

    async def settle(self) -> None:
        await self._inner.settle()

    async def ask(self, question: str, budget: int) -> Sequence[Recalled]:
        items = await self._inner.ask(question, budget)
        self.answers_given.append(tuple(items))
        return items


@asynccontextmanager
async def _record_answers(
    system_context: AbstractAsyncContextManager[System],
) -> AsyncGenerator[_RecordedSystem]:
    async with system_context as system:
        yield _RecordedSystem(system)
