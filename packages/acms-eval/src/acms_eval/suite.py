"""Several scenarios through several systems: who is run, and what all of them made of everything."""

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

__all__ = ["DEFAULT", "SHORT", "LineUp", "Suite", "line_up", "through"]

SHORT: Mapping[str, str] = {
    "acms": "acms",
    "recent": MostRecent.name,
    "bm25": PlainBM25.name,
    "vectors": PlainVectors.name,
    "rrf": ReciprocalRankFusion.name,
    "gleanr": GleanrSession.name,
    "chroma": ChromaVectors.name,
}
"""What a system is called on a command line, and in a report."""
DEFAULT = ("acms", "recent", "bm25", "vectors", "rrf", "gleanr")
"""Chroma is left out: it finds what plain vectors find."""
_EITHER = ("acms", GleanrSession.name)
"""These do with an embedder and without."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineUp:
    """Systems to be measured, ACMS first, and those that cannot be."""

    systems: Mapping[str, OpenSystem]
    #: The reason for each one.
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

    A tier is the name of an embedder and the embedder, or None; what does with one and without is run once in each
    tier, and is then called after it ("acms + local"). Names are those of `SHORT`; `ValidationError` for another one.
    """
    unknown = [name for name in names if name not in SHORT]
    if unknown:
        raise ValidationError(f"{unknown[0]!r} is no known system", field="system", options=tuple(SHORT))
    wanted = [SHORT[name] for name in SHORT if name in names]
    found: dict[str, OpenSystem] = {}
    left_out: dict[str, str] = {}
    ours: dict[str, Embedder | None] = {}
    for tier, embedder in tiers:
        made, missing = systems(embedder, names=wanted)
        for name, opened in made.items():
            called = f"{name} + {tier}" if embedder is not None and name in _EITHER else name
            if name == "acms":
                opened = open_acms(embedder, name=called, reflector=reflector)
                ours[called] = embedder
            found.setdefault(called, opened)
        left_out |= missing
    left_out = {name: why for name, why in left_out.items() if name not in found}
    return LineUp(
        systems=dict(sorted(found.items(), key=lambda item: not item[0].startswith("acms"))),
        left_out=left_out,
        acms=ours,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """What every system made of every scenario."""

    #: In the order in which they ran; a system is called as in the line-up.
    reports: tuple[Report, ...]
    #: By system: what every probe brought back, for a judge; empty unless it was to be kept.
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
        return [one for one in self.reports if one.system == system and kind in (None, one.kind)]


async def through(
    scenarios: Sequence[Scenario],
    entered: Mapping[str, OpenSystem],
    *,
    token_budget: int | None = None,
    keep: bool = False,
    progress: Callable[[str, int, int], None] | None = None,
) -> Suite:
    """Tell every system every scenario, each anew, and return what came of it.

    `token_budget` is for all of them; without it each scenario has its own. `progress(what, done, of)` is told before
    each run. `keep` keeps what was recalled.
    """
    reports: list[Report] = []
    answers: dict[str, list[Answer]] = {}
    total = len(scenarios) * len(entered)
    for name, opened in entered.items():
        for scenario in scenarios:
            if progress is not None:
                progress(f"{name}: {scenario.name}", len(reports), total)
            async with _listening(opened()) as system:
                report = await measure(scenario, system, token_budget=token_budget)
            reports.append(replace(report, system=name))
            if keep:
                answers.setdefault(name, []).extend(
                    Answer(question=score.probe.question, expected=score.probe.expected, items=items)
                    for score, items in zip(report.scores, system.heard, strict=True)
                )
    return Suite(reports=tuple(reports), answers={name: tuple(found) for name, found in answers.items()})


class _Listening:
    """A system whose answers are written down."""

    def __init__(self, inner: System) -> None:
        self._inner = inner
        self.name = inner.name
        self.heard: list[tuple[Recalled, ...]] = []

    async def tell(self, said: Said) -> None:
        await self._inner.tell(said)

    async def settle(self) -> None:
        await self._inner.settle()

    async def ask(self, question: str, token_budget: int) -> Sequence[Recalled]:
        found = await self._inner.ask(question, token_budget)
        self.heard.append(tuple(found))
        return found


@asynccontextmanager
async def _listening(opening: AbstractAsyncContextManager[System]) -> AsyncGenerator[_Listening]:
    async with opening as system:
        yield _Listening(system)
