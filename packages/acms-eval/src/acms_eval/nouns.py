"""The nouns of an evaluation: messages, questions, recalled items and their scores."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from statistics import fmean
from typing import Any, Protocol

from acms.knowledge import Proposal

__all__ = ["Probe", "Recalled", "Report", "Said", "Scenario", "Score", "System", "align_columns", "table"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One message of a scenario."""

    role: str
    text: str
    #: None lets the system find them in the text.
    markers: tuple[str, ...] | None = None
    created_at: datetime
    #: Name of who speaks; None when the role says it all.
    speaker: str | None = None
    #: Name of what it is about; empty for small talk.
    topic: str = ""
    #: "fact", "correction", "reply", "noise" (near a topic, but not about the project), "echo" (the same, and names the
    #: value that was decided) or "filler".
    part: str = "filler"


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A question, and the words that tell a right answer from a stale one. It is asked, never said."""

    question: str
    #: All of them must be recalled.
    expected: tuple[str, ...]
    #: Words of an answer that is no longer true.
    forbidden: tuple[str, ...] = ()
    #: Words that are not part of the answer but useful with it: the decisions it follows from.
    bonus: tuple[str, ...] = ()
    #: Texts that name an expected keyword without giving the answer, such as hearsay: they count as no answer.
    decoys: tuple[str, ...] = ()
    #: How many messages were said before it is asked.
    after: int
    topic: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A conversation and the questions it is judged by."""

    name: str
    said: tuple[Said, ...]
    probes: tuple[Probe, ...]
    #: The proposals of a perfect reflector, each with the index of the message it follows from.
    proposals: tuple[tuple[int, Proposal], ...] = ()
    #: Tokens that it is asked within, where a run does not say.
    budget: int = 1000
    #: The word list that it was written from.
    words: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recalled:
    """One thing a system brought back."""

    text: str
    #: The higher the better; 0 for what was not ranked.
    score: float = 0.0
    #: It is of the episode that is still going on, which many systems always show.
    current: bool = False
    tokens: int = 0
    #: Where it came from, in the words of the system.
    source: str = ""
    #: Which told message it is, counted from 0; None for a fact, a summary, or anything else.
    index: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """How good one recall was; `acms_eval.metrics` defines every figure."""

    probe: Probe
    hit: bool
    #: In the item of the best score, and in the best five.
    hit_at_1: bool
    hit_at_5: bool
    #: Whether a superseded value ranks above the present one; None where nothing was superseded.
    outdated: bool | None
    #: Share of the bonus keywords; None where there are none.
    surfaced: float | None
    stale: bool
    #: The harsher figure: a stale value was shown anywhere outside the current episode, also beside the present one.
    stale_anywhere: bool
    #: None when nothing was recalled.
    precision: float | None
    #: Without the items of the current episode; None when there are no others.
    precision_past: float | None
    ndcg: float
    items: int
    tokens: int
    seconds: float
    #: The cost of the request made of it, in units of one token of uncached input; None where none was made.
    paid: float | None = None

    @property
    def only_outdated(self) -> bool | None:
        """Whether a superseded value was shown and the present one was not; None where nothing was superseded."""
        return None if self.outdated is None else self.stale_anywhere and not self.hit

    @property
    def answered(self) -> bool:
        """Whether the answer was recalled, and does not rank below a superseded value."""
        return self.hit and not self.outdated


class System(Protocol):
    """A memory under measurement: it is told a conversation, then asked about it.

    It may have an attribute `confidence` of its last answer, in [0, 1] or None if unknown, and an attribute `paid`:
    the cost of the request made from that answer.
    """

    #: The name of the system in a report.
    name: str

    async def tell(self, said: Said) -> None:
        """Remember a message."""
        ...

    async def settle(self) -> None:
        """Wait until all background work is done."""
        ...

    async def ask(self, question: str, budget: int) -> Sequence[Recalled]:
        """Return the items that answer a question, in the order shown; the question is not stored."""
        ...


def _mean_of_known(values: Sequence[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return fmean(numbers) if numbers else None


_FIGURES: tuple[tuple[str, Callable[[Score], float | None]], ...] = (
    ("hit", lambda score: score.hit),
    ("hit@1", lambda score: score.hit_at_1),
    ("hit@5", lambda score: score.hit_at_5),
    ("outdated", lambda score: score.outdated),
    ("answered", lambda score: score.answered),
    ("stale", lambda score: score.stale),
    ("stale anywhere", lambda score: score.stale_anywhere),
    ("precision", lambda score: score.precision),
    ("precision past", lambda score: score.precision_past),
    ("nDCG@5", lambda score: score.ndcg),
    ("surfaced", lambda score: score.surfaced),
    ("items", lambda score: score.items),
    ("tokens", lambda score: score.tokens),
    ("ask ms", lambda score: 1000 * score.seconds),
    ("only outdated", lambda score: score.only_outdated),
    ("paid", lambda score: score.paid),
)
"""Column of a table, and the figure of a score in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The scores of one system on one scenario, or on several."""

    system: str
    scenario: str
    turns: int
    budget: int
    scores: tuple[Score, ...]
    #: Telling everything, background work included.
    tell_seconds: float
    #: Facts in force at the end, where the system can tell.
    facts: int | None = None
    #: The word list that the scenario was written from.
    words: str = ""

    @property
    def kind(self) -> str:
        """Return the name of the scenario without its length, variant and seed."""
        return self.scenario.partition("-")[0]

    def figures(self) -> dict[str, float | None]:
        """Return the mean of every figure over the probes; None where none of them has it."""
        return {
            name: _mean_of_known([read_figure(score) for score in self.scores])
            for name, read_figure in _FIGURES
        }

    def to_json(self) -> str:
        """Return everything as JSON, scores one by one included."""
        document: dict[str, Any] = {
            "system": self.system,
            "scenario": self.scenario,
            "turns": self.turns,
            "budget": self.budget,
            "tell_seconds": round(self.tell_seconds, 3),
            "facts": self.facts,
            "figures": self.figures(),
            "scores": [asdict(score) for score in self.scores],
        }
        return json.dumps(document, indent=2, ensure_ascii=False)

    def table(self) -> str:
        """Return the figures as a table of one row."""
        return table([self])

    @staticmethod
    def together(reports: Sequence[Report]) -> Report:
        """Return one report over the probes of several runs of a system, of the same length and budget."""
        first_report = reports[0]
        fact_counts = [report.facts for report in reports if report.facts is not None]
        return Report(
            system=first_report.system,
            scenario=first_report.scenario,
            turns=first_report.turns,
            budget=first_report.budget,
            scores=tuple(score for report in reports for score in report.scores),
            tell_seconds=sum(report.tell_seconds for report in reports),
            facts=round(fmean(fact_counts)) if fact_counts else None,
        )


def table(reports: Sequence[Report]) -> str:
    """Return reports as the rows of a plain table, figures to three places."""
    heads = ["turns", "system", *(name for name, _ in _FIGURES), "facts", "tell s"]
    rows = [heads]
    for report in reports:
        row = [str(report.turns), report.system]
        for name, value in report.figures().items():
            places = 1 if name in ("items", "tokens", "ask ms") else 3
            row.append("-" if value is None else f"{value:.{places}f}")
        row += ["-" if report.facts is None else str(report.facts), f"{report.tell_seconds:.1f}"]
        rows.append(row)
    return align_columns(rows, text_column=1)


def align_columns(rows: Sequence[Sequence[str]], *, text_column: int) -> str:
    """Return rows as lines with aligned columns: the text column to the left, all others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines: list[str] = []
    for row in rows:
        cells = [
            cell.ljust(width) if column == text_column else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
