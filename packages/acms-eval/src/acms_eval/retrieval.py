"""How well a system finds the messages that answer a question, on real conversations.

Gold is what the annotators named as evidence; questions without gold count for abstention only. A message is gold, and
shown, by its content: of two by the same speaker with the same text, showing either is showing both.

- B*n*: |gold ∩ shown| / |gold|, shown is what a recall with a budget of *n* tokens returns, the current episode
  included, as the system itself counts tokens. The baselines show what fits *n* cl100k tokens of "Speaker: text"
  lines in rank order, skipping what does not fit. Nothing is added to what a system shows.
- P*n*: |gold ∩ shown| / |shown|: the precision of the same recall, of all items, facts and summaries included.
- S*n*: how often the same recall shows evidence that is outdated, and nothing of the newer evidence; only for questions
  whose set says what is outdated.
- R@k: |gold ∩ first k| / |gold|. nDCG@10: binary. Ranked is what the recall with the largest budget returns, by score;
  its current episode has no rank.

Every figure is the mean over questions. "all" are the questions that have an answer; those that have none are a group
of their own (LoCoMo category 5 has gold: what was said by the other speaker).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import log2
from typing import Any

from acms.errors import ProviderError, ValidationError
from acms.results import POSSIBLE_FROM
from acms_eval import bootstrap
from acms_eval.bootstrap import Interval
from acms_eval.datasets import Conversation
from acms_eval.nouns import Recalled, System, align_columns
from acms_eval.peers import OpenSystem

__all__ = [
    "Abstention",
    "DataSize",
    "Progress",
    "QuestionFigures",
    "RetrievalReport",
    "budgets_of_dataset",
    "compute_auc",
    "evaluate",
    "headline_figures",
    "rank_messages",
    "ranked_figures",
    "recall_figures",
]

CHAT, LONG, ANY = (500, 1000, 2000, 4000), (2000, 4000, 8000, 16000), (1000, 2000, 4000, 16000)
SHORT_MESSAGES = ("LoCoMo", "REALTALK", "Vehicle", "MemSim")
LONG_MESSAGES = ("BEAM-100K", "BEAM-500K", "BEAM-1M", "BEAM-10M", "LongMemEval")
ALL = "all"


def budgets_of_dataset(dataset: str) -> tuple[int, ...]:
    """Return the token budgets a set is measured at: small ones for short messages, both for a set of your own."""
    if dataset in SHORT_MESSAGES:
        return CHAT
    return LONG if dataset in LONG_MESSAGES else ANY


def headline_figures(dataset: str) -> tuple[str, ...]:
    """Return the names of the figures by which a set is judged: at its main budgets."""
    return (
        ("R@10", "B1k", "P1k", "S1k") if dataset in SHORT_MESSAGES else ("R@10", "B4k", "B16k", "P4k", "S4k")
    )


def _short_number(budget: int) -> str:
    return f"{budget // 1000}k" if budget >= 1000 and budget % 1000 == 0 else str(budget)


# ── one question ────────────────────────────────────────────────────────────────────────────────────────────────────


def rank_messages(items: Sequence[Recalled]) -> list[int]:
    """Return the indexes of the recalled messages, best score first, without the current episode."""
    ranked_items = sorted((item for item in items if not item.current), key=lambda item: -item.score)
    return list(dict.fromkeys(item.index for item in ranked_items if item.index is not None))


def ranked_figures(ranked: Sequence[int], gold: Collection[int]) -> dict[str, float]:
    """Return R@5, R@10 and nDCG@10 of an order of messages."""
    if not gold:
        raise ValidationError("must not be empty", field="gold")
    gains = [1 / log2(place + 2) for place in range(10)]
    hits = [index in gold for index in ranked[:10]]
    return {
        "R@5": sum(hits[:5]) / len(gold),
        "R@10": sum(hits) / len(gold),
        "nDCG@10": sum(gain for gain, hit in zip(gains, hits, strict=False) if hit) / sum(gains[: len(gold)]),
    }


def recall_figures(
    shown: Sequence[int | None], gold: Collection[int], outdated: Collection[int] = ()
) -> dict[str, float]:
    """Return B, P and S of what one recall shows: a message, or None for anything else."""
    shown_gold = set(gold).intersection(shown)
    figures = {
        "B": len(shown_gold) / len(gold),
        "P": sum(index in shown_gold for index in shown) / len(shown) if shown else 0.0,
    }
    if outdated:
        shows_newest = not shown_gold <= set(outdated)
        figures["S"] = float(not shows_newest and not set(outdated).isdisjoint(shown))
    return figures


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionFigures:
    """The figures of one system for one question."""

    system: str
    dataset: str
    conversation: str
    #: Its place among the questions of the conversation.
    question: int
    group: str
    answerable: bool
    #: Figure by name, in [0, 1]; empty when the question has no gold.
    figures: Mapping[str, float]
    #: How sure the system was that there is an answer; None: it cannot tell.
    confidence: float | None = None
    #: The recall with the largest budget.
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSize:
    """How much of a set was read."""

    conversations: int = 0
    messages: int = 0
    questions: int = 0
    #: Questions whose evidence names no message, for lack of which they count for abstention only.
    without_gold: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress of a run; `done` counts the questions of this system and conversation, 0 while it is told."""

    dataset: str
    conversation: str
    system: str
    done: int
    of: int


# ── the run ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def evaluate(
    conversations: Iterable[Conversation],
    systems: Mapping[str, OpenSystem],
    *,
    every: Mapping[str, int] | None = None,
    left_out: Mapping[str, str] | None = None,
    settings: Mapping[str, str] | None = None,
    seed: int = 0,
    rounds: int = bootstrap.ROUNDS,
    progress: Callable[[Progress], None] | None = None,
) -> RetrievalReport:
    """Tell every system every conversation, ask all questions, and return how well they did.

    Conversations are taken one by one, so an iterator of a large set never holds more than one. A system is told
    everything and comes to rest before its first question; questions are asked one after the other and are not told.
    Each question is asked once with each budget. `every` names slow systems, each with an n: it is asked every nth
    question of a data set only. A system that raises `ProviderError` is left out of the whole report,
    with the reason. `left_out` and `settings` go into the report as they are.
    """
    rows: list[QuestionFigures] = []
    sizes: dict[str, DataSize] = {}
    running, reasons = dict(systems), dict(left_out or {})
    for conversation in conversations:
        questions = conversation.questions
        size = sizes.get(conversation.dataset, DataSize())
        sizes[conversation.dataset] = DataSize(
            conversations=size.conversations + 1,
            messages=size.messages + len(conversation.said),
            questions=size.questions + len(questions),
            without_gold=size.without_gold + sum(not question.gold for question in questions),
        )
        for name, open_system in list(running.items()):
            step = (every or {}).get(name, 1)
            places = range(-size.questions % step, len(questions), step)
            try:
                async with open_system() as system:
                    rows += await _ask_questions(system, name, conversation, places, progress)
            except ProviderError as error:
                del running[name]
                reasons[name] = f"failed in {conversation.dataset} {conversation.name}: {error}"
                rows = [row for row in rows if row.system != name]
    return RetrievalReport(
        asked=tuple(rows),
        sizes=sizes,
        left_out=reasons,
        settings=dict(settings or {}),
        seed=seed,
        rounds=rounds,
    )


async def _ask_questions(
    system: System,
    name: str,
    conversation: Conversation,
    places: Iterable[int],
    progress: Callable[[Progress], None] | None,
) -> list[QuestionFigures]:
    """Tell a system a conversation, and ask it the questions at these places."""

    def report_done(done: int) -> None:
        if progress is not None:
            progress(
                Progress(
                    dataset=conversation.dataset,
                    conversation=conversation.name,
                    system=name,
                    done=done,
                    of=len(conversation.questions),
                )
            )

    report_done(0)
    for said in conversation.said:
        await system.tell(said)
    await system.settle()
    rows: list[QuestionFigures] = []
    first_places = conversation.first_occurrences()
    for index in places:
        rows.append(await _ask_question(system, name, conversation, index, first_places))
        report_done(index + 1)
    return rows


async def _ask_question(
    system: System, name: str, conversation: Conversation, place: int, first_places: Sequence[int]
) -> QuestionFigures:
    question = conversation.questions[place]
    gold, newest, outdated = (
        {first_places[index] for index in indices}
        for indices in (question.gold, question.gold - question.outdated, question.outdated)
    )
    by_budget: list[tuple[int, dict[str, float]]] = []
    items: Sequence[Recalled] = ()
    seconds: float | None = None
    for budget in (
        budgets_of_dataset(conversation.dataset) if gold else budgets_of_dataset(conversation.dataset)[-1:]
    ):
        start = time.perf_counter()
        items = await system.ask(question.text, budget)
        seconds = time.perf_counter() - start
        items = [
            item if item.index is None else replace(item, index=first_places[item.index]) for item in items
        ]
        if gold:
            by_budget.append(
                (budget, recall_figures([item.index for item in items], gold, outdated - newest))
            )
    figures = ranked_figures(rank_messages(items), gold) if gold else {}
    for figure in "BPS":
        figures |= {
            f"{figure}{_short_number(budget)}": figures_there[figure]
            for budget, figures_there in by_budget
            if figure in figures_there
        }
    return QuestionFigures(
        system=name,
        dataset=conversation.dataset,
        conversation=conversation.name,
        question=place,
        group=question.group,
        answerable=question.answerable,
        figures=figures,
        confidence=getattr(system, "confidence", None),
        seconds=seconds,
    )


# ── abstention ──────────────────────────────────────────────────────────────────────────────────────────────────────


def compute_auc(answerable: Sequence[float], unanswerable: Sequence[float]) -> float:
    """Return the area under the ROC curve of the confidence: 1 separates both kinds of question, 0.5 is chance.

    It is the probability that a question with an answer has a higher confidence than one without; a tie counts half.
    """
    if not answerable or not unanswerable:
        raise ValidationError("needs questions of both kinds", field="unanswerable")
    wins = 0.0
    for with_answer in answerable:
        for without_answer in unanswerable:
            if with_answer > without_answer:
                wins += 1.0
            elif with_answer == without_answer:
                wins += 0.5
    return wins / (len(answerable) * len(unanswerable))


@dataclass(frozen=True, slots=True, kw_only=True)
class Abstention:
    """How well a system recognizes questions without an answer; it declines those below a confidence."""

    answerable: int
    unanswerable: int
    auc: float
    #: Below this confidence it declines.
    threshold: float
    declined: int
    #: Share of the declined questions that have no answer; None if it declined none.
    precision: float | None
    #: Share of the questions without an answer that it declined.
    recall: float
    #: Share of the questions with an answer that it declined.
    false_alarms: float


# ── the report ──────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrievalReport:
    """The figures of all systems for all questions; every mean has its 95 % bootstrap interval."""

    asked: tuple[QuestionFigures, ...]
    #: By set.
    sizes: Mapping[str, DataSize]
    #: Systems that were not run, and why.
    left_out: Mapping[str, str] = field(default_factory=dict)
    #: The settings of the run, such as the embedder.
    settings: Mapping[str, str] = field(default_factory=dict)
    seed: int = 0
    rounds: int = bootstrap.ROUNDS

    @property
    def datasets(self) -> list[str]:
        """The sets, in the order in which they came."""
        return list(self.sizes)

    @property
    def systems(self) -> list[str]:
        """The systems, in the order in which they ran."""
        return list(dict.fromkeys(row.system for row in self.asked))

    def groups(self, dataset: str) -> list[str]:
        """Return "all" and the kinds of question of a set, those without an answer last."""
        answerable_by_group = {
            row.group: row.answerable for row in self.asked if row.dataset == dataset and row.figures
        }
        return [ALL, *sorted(answerable_by_group, key=lambda group: (not answerable_by_group[group], group))]

    def names(self, dataset: str) -> list[str]:
        """Return the names of the figures of a set, those that only some questions have at the end."""
        rows = [row.figures for row in self.asked if row.dataset == dataset]
        figure_names = dict.fromkeys(name for figures in rows for name in figures)
        return sorted(figure_names, key=lambda name: name.startswith("S"))

    def _rows(self, dataset: str, system: str, group: str) -> list[QuestionFigures]:
        return [
            row
            for row in self.asked
            if row.figures
            and (row.dataset, row.system) == (dataset, system)
            and (row.answerable if group == ALL else row.group == group)
        ]

    def means(self, dataset: str, system: str, group: str = ALL) -> dict[str, Interval]:
        """Return every figure of a system over those of a group of questions that have it."""
        intervals: dict[str, Interval] = {}
        for name in self.names(dataset):
            rows = [row for row in self._rows(dataset, system, group) if name in row.figures]
            if rows:
                values, clusters = [row.figures[name] for row in rows], [row.conversation for row in rows]
                intervals[name] = bootstrap.mean_interval(
                    values, clusters, seed=self.seed, rounds=self.rounds
                )
        return intervals

    def margin(
        self, dataset: str, name: str, *, of: str = "acms", over: str = "plain BM25", group: str = ALL
    ) -> Interval | None:
        """Return by how much a figure of one system is above another's, on the questions both were asked.

        None when there are none.
        """
        values, clusters = self._margins(dataset, name, of, over, group)
        return (
            bootstrap.mean_interval(values, clusters, seed=self.seed, rounds=self.rounds) if values else None
        )

    def _margins(
        self, dataset: str, name: str, of: str, over: str, group: str = ALL
    ) -> tuple[list[float], list[str]]:
        figures_over = {
            (row.conversation, row.question): row.figures[name]
            for row in self._rows(dataset, over, group)
            if name in row.figures
        }
        pairs = [
            (row.figures[name] - figures_over[row.conversation, row.question], row.conversation)
            for row in self._rows(dataset, of, group)
            if (row.conversation, row.question) in figures_over
        ]
        return [value for value, _ in pairs], [cluster for _, cluster in pairs]

    def shrinkage(
        self,
        left_out: RetrievalReport,
        dataset: str,
        name: str,
        *,
        of: str = "acms",
        over: str = "plain BM25",
    ) -> Interval | None:
        """Return how much smaller a margin is on data that was left out than here, on the data it was tuned on.

        The margin holds when the interval reaches down to 0 or below. None when one of the two has no such questions.
        """
        margins_here, margins_left_out = (
            report._margins(dataset, name, of, over) for report in (self, left_out)
        )
        if not margins_here[0] or not margins_left_out[0]:
            return None
        return bootstrap.difference_interval(
            margins_here, margins_left_out, seed=self.seed, rounds=self.rounds
        )

    def abstention(self, dataset: str, system: str, *, threshold: float = POSSIBLE_FROM) -> Abstention | None:
        """Return how well a system knows what a set does not answer, when it declines below a confidence.

        The confidence is by default the one below which a recall of ACMS is of the band "none".
        None when it cannot tell, or when all questions are of one kind.
        Questions without gold count too: they have an answer, or none, all the same.
        """
        rows = [
            row
            for row in self.asked
            if (row.dataset, row.system) == (dataset, system) and row.confidence is not None
        ]
        confidences = {
            kind: [row.confidence or 0.0 for row in rows if row.answerable is kind] for kind in (True, False)
        }
        if not confidences[True] or not confidences[False]:
            return None
        declined = {kind: sum(value < threshold for value in values) for kind, values in confidences.items()}
        declined_count = declined[True] + declined[False]
        return Abstention(
            answerable=len(confidences[True]),
            unanswerable=len(confidences[False]),
            auc=compute_auc(confidences[True], confidences[False]),
            threshold=threshold,
            declined=declined_count,
            precision=declined[False] / declined_count if declined_count else None,
            recall=declined[False] / len(confidences[False]),
            false_alarms=declined[True] / len(confidences[True]),
        )

    def table(self, *, intervals: bool = False, groups: bool = False, main: bool = False) -> str:
        """Return a plain table for each set: a line a system, in percent; with intervals and groups if asked.

        `main` shows the figures at the main budgets only.
        """
        blocks: list[str] = []
        for dataset in self.datasets:
            size = self.sizes[dataset]
            names = [name for name in self.names(dataset) if name in headline_figures(dataset) or not main]
            rows = [["", "n", *names]]
            for group in self.groups(dataset) if groups else (ALL,):
                for system in self.systems:
                    means = self.means(dataset, system, group)
                    if means:
                        label = system if group == ALL else f"{group}: {system}"
                        figures = (_format_percent(means.get(name), intervals) for name in names)
                        rows.append([label, str(means[names[0]].count), *figures])
            blocks.append(
                f"{dataset}: {size.conversations} conversations, {size.messages} messages, {size.questions}"
                f" questions, {size.without_gold} without gold\n{align_columns(rows, text_column=0)}"
            )
        if self.left_out:
            blocks.append(
                "left out: " + "; ".join(f"{name} ({reason})" for name, reason in self.left_out.items())
            )
        return "\n\n".join(blocks)

    def to_json(self) -> str:
        """Return everything as JSON: the means and, for comparing with other data later, every question.

        No text of a conversation or a question is in it.
        """
        document = {
            "settings": dict(self.settings),
            "seed": self.seed,
            "rounds": self.rounds,
            "left_out": dict(self.left_out),
            "sizes": {name: asdict(size) for name, size in self.sizes.items()},
            "means": {
                dataset: {
                    system: {
                        group: {
                            name: asdict(value) for name, value in self.means(dataset, system, group).items()
                        }
                        for group in self.groups(dataset)
                    }
                    for system in self.systems
                }
                for dataset in self.datasets
            },
            "asked": [asdict(row) for row in self.asked],
        }
        return json.dumps(document, indent=1, ensure_ascii=False)

    @staticmethod
    def from_json(text: str) -> RetrievalReport:
        """Read what `to_json` wrote; `ValidationError` for anything else."""
        try:
            document: dict[str, Any] = json.loads(text)
            return RetrievalReport(
                asked=tuple(QuestionFigures(**row) for row in document["asked"]),
                sizes={name: DataSize(**size) for name, size in document["sizes"].items()},
                left_out=document["left_out"],
                settings=document["settings"],
                seed=document["seed"],
                rounds=document["rounds"],
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValidationError(f"is no report of a retrieval: {error}", field="report") from error


def _format_percent(value: Interval | None, interval: bool) -> str:
    if value is None:
        return "-"
    mean = f"{100 * value.mean:.1f}"
    return f"{mean} [{100 * value.low:.1f}, {100 * value.high:.1f}]" if interval else mean
