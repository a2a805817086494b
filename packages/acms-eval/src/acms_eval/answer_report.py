"""The run and the tables of `acms eval answers`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from acms.providers.http import Endpoint
from acms_eval import sections
from acms_eval.agent_days import DayTurn, count_days, load_days, run_day
from acms_eval.answers import (
    Progress,
    Row,
    RowAnswer,
    SceneAnswer,
    answer_questions,
    answer_scenes,
    choose_questions,
    compare_rows,
    write_correction_scenes,
)
from acms_eval.bootstrap import Interval
from acms_eval.datasets import Conversation
from acms_eval.judge import Answer, Judge, Judgement
from acms_eval.nouns import Recalled
from acms_eval.report import Section, Table

__all__ = ["PARTS", "AnswerReport", "measure_answers"]

PARTS = ("questions", "corrections", "days")
_VERDICTS = ("current", "both", "outdated", "neither")


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerReport:
    """What a model answered; a part that was not run is empty."""

    answers: Sequence[RowAnswer] = ()
    scenes: Sequence[SceneAnswer] = ()
    turns: Sequence[DayTurn] = ()
    #: The judge's verdicts on the answers to the questions, by row.
    judgements: Mapping[str, Judgement]

    def figures(self) -> dict[str, Any]:
        """Return every figure and every answer, as JSON."""
        compared = compare_rows(self.answers)
        return {
            "rows": {
                str(row): {name: asdict(interval) for name, interval in figures.items()}
                for row, figures in compared.items()
            },
            "corrections": dict(Counter(answer.verdict for answer in self.scenes)),
            "days": count_days(self.turns),
            "judge": {row: interval.figures() for row, interval in self.judgements.items()},
            "answers": [asdict(answer) for answer in self.answers],
            "correction answers": [asdict(answer) for answer in self.scenes],
            "turns": [asdict(answer) for answer in self.turns],
        }

    def sections(self) -> tuple[Section, ...]:
        """Return the tables of the parts that were run."""
        tables: list[Section] = []
        if self.answers:
            tables.append(self._question_section())
        if self.scenes:
            tables.append(self._scene_section())
        if self.turns:
            tables.append(self._day_section())
        if self.judgements:
            tables.append(sections.judge_section(self.judgements))
        return tuple(tables)

    def _question_section(self) -> Section:
        rows: list[tuple[str, ...]] = []
        for row, figures in compare_rows(self.answers).items():
            tokens = fmean(answer.prompt_tokens for answer in self.answers if answer.row is row)
            margin = figures.get("F1 margin")
            rows.append(
                (
                    str(row),
                    _format_interval(figures["exact match"], ".2f"),
                    _format_interval(figures["F1"], ".2f"),
                    "–" if margin is None else _format_interval(margin, "+.2f"),
                    f"{tokens:.0f}",
                )
            )
        heads = ("", "exact match", "F1", "F1 above the default prompt", "request tokens")
        count = len(self.answers) // len(rows)
        return _one_table("questions", f"Answers to {count} questions, with 95 % intervals", heads, rows)

    def _scene_section(self) -> Section:
        counts = Counter(answer.verdict for answer in self.scenes)
        row = ("default prompt", *(str(counts[verdict]) for verdict in _VERDICTS))
        title = f"Which value the model gives of {len(self.scenes)} that were corrected"
        return _one_table("corrections", title, ("", *_VERDICTS), [row])

    def _day_section(self) -> Section:
        rows = [
            (
                day,
                f"{day_counts['called']} of {day_counts['needed']}",
                f"{day_counts['right']} of {day_counts['graded']}",
                str(day_counts["requests"]),
                str(day_counts["over budget"]),
            )
            for day, day_counts in count_days(self.turns).items()
        ]
        heads = ("", "tools called", "right answers", "requests", "over budget")
        return _one_table("days", "Days of an agent with tools", heads, rows)


async def measure_answers(
    endpoint: Endpoint,
    model: str,
    conversations: Sequence[Conversation],
    *,
    parts: Sequence[str] = PARTS,
    rows: Sequence[Row] = tuple(Row),
    count: int = 60,
    budget: int = 400,
    max_tokens: int = 32,
    judge_model: str | None = None,
    progress: Progress | None = None,
) -> AnswerReport:
    """Ask `count` questions about the conversations, ask about corrections, and run the days of an agent.

    `judge_model`, of the same server, rates the answers to the questions (E4.3).
    """
    answers: list[RowAnswer] = []
    corrected: list[SceneAnswer] = []
    turns: list[DayTurn] = []
    if "questions" in parts:
        chosen = choose_questions(conversations, count)
        answers = await answer_questions(
            endpoint, model, chosen, rows=rows, budget=budget, max_tokens=max_tokens, progress=progress
        )
    if "corrections" in parts:
        corrected = await answer_scenes(
            endpoint,
            model,
            write_correction_scenes(),
            budget=budget,
            max_tokens=max_tokens,
            progress=progress,
        )
    if "days" in parts:
        for day in load_days():
            turns += await run_day(endpoint, model, day, max_tokens=2 * max_tokens, progress=progress)
    judgements: dict[str, Judgement] = {}
    if judge_model is not None:
        judgements = await _judge_answers(Judge(endpoint, judge_model, concurrency=1), answers, progress)
    return AnswerReport(answers=answers, scenes=corrected, turns=turns, judgements=judgements)


async def _judge_answers(
    judge: Judge, answers: Sequence[RowAnswer], progress: Progress | None
) -> dict[str, Judgement]:
    judgements: dict[str, Judgement] = {}
    for row in dict.fromkeys(answer.row for answer in answers):
        answers_of_row = [
            Answer(
                question=answer.question, expected=(answer.expected,), items=(Recalled(text=answer.answer),)
            )
            for answer in answers
            if answer.row is row
        ]

        def report_progress(judged_count: int, answer_count: int, row: str = row) -> None:
            if progress is not None:
                progress(f"judge: {row}", judged_count, answer_count)

        judgements[str(row)] = await judge.judge(answers_of_row, report_progress)
    return judgements


def _one_table(name: str, title: str, heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Section:
    table = Table(title=title, heads=heads, rows=tuple(rows))
    return Section(name=name, title=name.capitalize(), text=(), tables=(table,))


def _format_interval(interval: Interval, form: str) -> str:
    return f"{interval.mean:{form}} [{interval.low:{form}}, {interval.high:{form}}]"
