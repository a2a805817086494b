"""A model's answers with different memories: exact match and token F1 beside the published answers.

Every row is asked the same questions with the same instruction and the same budget of memory in cl100k tokens; what
differs is the memory. The instruction and the question are not counted against it, dates and speakers are.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from importlib.resources import files
from random import Random
from typing import Any

from acms.errors import ValidationError
from acms.prompt import Prompt
from acms.providers.chat import THINKING
from acms.providers.codecs import OpenAIChat
from acms.providers.http import Endpoint
from acms.providers.tokens import BPETokenCounter
from acms_eval import bootstrap
from acms_eval.baselines import MostRecent, PlainBM25
from acms_eval.bootstrap import Interval
from acms_eval.datasets import Conversation, Question
from acms_eval.metrics import carries, exact_match, token_f1
from acms_eval.nouns import Probe, Said, Scenario
from acms_eval.peers import open_acms
from acms_eval.running import Remembering
from acms_eval.scenarios import SCENARIOS, corrections
from acms_eval.topics import SHIPPED, phrases

__all__ = [
    "SCENES",
    "Reply",
    "Row",
    "RowAnswer",
    "SceneAnswer",
    "answer_questions",
    "answer_scenes",
    "choose_questions",
    "compare_rows",
    "complete_chat",
    "judge_correction",
    "scenario_conversation",
    "write_correction_scenes",
]

SCENES = 20
"""Corrections that a model is asked about."""
_COUNTED_AS = "gpt-4"
"""The model whose vocabulary, cl100k, counts every row."""

Progress = Callable[[str, int, int], None]
"""Takes the name of the part under way, how many of its questions were asked, and how many there are."""


class Row(StrEnum):
    """A way to remember, in the order of the table."""

    NONE = "no memory"
    WINDOW = "window"
    BM25 = "BM25"
    RECALL = "recall"
    PROMPT = "default prompt"
    GOLD = "gold evidence"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A model's reply to one request."""

    text: str
    #: Calls of tools, as the chat format has them.
    calls: tuple[Mapping[str, Any], ...] = ()
    #: Tokens of the request by the server's count; 0 where it gives none.
    prompt_tokens: int = 0
    #: The server's account of the tokens, as it came.
    usage: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowAnswer:
    """One question, asked with one memory."""

    row: Row
    conversation: str
    question: str
    expected: str
    answer: str
    #: 1 when the answer is the expected one word for word, else 0.
    exact_match: float
    f1: float
    #: Tokens of the request by the server's count.
    prompt_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SceneAnswer:
    """A model's answer about a value that was corrected."""

    scene: str
    question: str
    expected: tuple[str, ...]
    outdated: tuple[str, ...]
    answer: str
    #: Which of the values the answer names: "current", "both", "outdated" or "neither".
    verdict: str


# ── questions ───────────────────────────────────────────────────────────────────────────────────────────────────────


def choose_questions(
    conversations: Sequence[Conversation], count: int, *, seed: int = 0
) -> list[tuple[Conversation, list[Question]]]:
    """Choose up to `count` questions that have an answer and evidence, taking turns among the conversations.

    With the same seed a smaller choice is part of a larger one. Raises `ValidationError` if there is no such question.
    """
    unused_questions: list[list[Question]] = []
    for conversation in conversations:
        usable = [
            question
            for question in conversation.questions
            if question.answerable and question.answer and question.gold
        ]
        Random(f"{conversation.name}/{seed}").shuffle(usable)
        unused_questions.append(usable)
    chosen: list[list[Question]] = [[] for _ in conversations]
    remaining = min(count, sum(map(len, unused_questions)))
    while remaining > 0:
        for usable, questions in zip(unused_questions, chosen, strict=True):
            if usable and remaining > 0:
                questions.append(usable.pop())
                remaining -= 1
    if not any(chosen):
        raise ValidationError("has no question with an answer and evidence", field="data")
    return [
        (conversation, questions)
        for conversation, questions in zip(conversations, chosen, strict=True)
        if questions
    ]


def scenario_conversation(scenario: Scenario) -> Conversation:
    """Return a scenario as a conversation: the answer of a question is its keywords, the evidence what states them."""
    questions: list[Question] = []
    for probe in scenario.probes:
        stated = [
            index
            for index, message in enumerate(scenario.said)
            if message.topic == probe.topic and message.part in ("fact", "correction")
        ]
        gold = frozenset(stated[-1:])
        answer = " ".join(probe.expected)
        questions.append(Question(text=probe.question, group=probe.topic, gold=gold, answer=answer))
    return Conversation(
        name=scenario.name, dataset="scenario", said=scenario.said, questions=tuple(questions)
    )


async def answer_questions(
    endpoint: Endpoint,
    model: str,
    chosen: Sequence[tuple[Conversation, Sequence[Question]]],
    *,
    rows: Sequence[Row] = tuple(Row),
    budget: int = 400,
    max_tokens: int = 32,
    progress: Progress | None = None,
) -> list[RowAnswer]:
    """Ask every question with every memory, and return the answers.

    Questions of one conversation and row follow one another, so that a server reads what they share from its cache.
    """
    request_count = len(rows) * sum(len(questions) for _, questions in chosen)
    answers: list[RowAnswer] = []
    for conversation, questions in chosen:
        async with _open_memories(conversation) as memories:
            for row in rows:
                for question in questions:
                    if progress is not None:
                        progress(f"{conversation.name}: {row}", len(answers), request_count)
                    messages = await memories.write_request(row, question, budget)
                    reply = await complete_chat(
                        endpoint, model, {"messages": messages}, max_tokens=max_tokens
                    )
                    answers.append(
                        RowAnswer(
                            row=row,
                            conversation=conversation.name,
                            question=question.text,
                            expected=question.answer,
                            answer=reply.text,
                            exact_match=float(exact_match(reply.text, question.answer)),
                            f1=token_f1(reply.text, question.answer),
                            prompt_tokens=reply.prompt_tokens,
                        )
                    )
    return answers


def compare_rows(answers: Sequence[RowAnswer], *, seed: int = 0) -> dict[Row, dict[str, Interval]]:
    """Return for every row its exact match, its F1, and its F1 above that of the default prompt, question by question.

    Means with 95 % intervals of `acms_eval.bootstrap`. The margin is missing where the default prompt was not asked.
    """
    by_row: dict[Row, list[RowAnswer]] = {}
    for answer in answers:
        by_row.setdefault(answer.row, []).append(answer)
    compared: dict[Row, dict[str, Interval]] = {}
    for row, row_answers in by_row.items():
        clusters = [answer.conversation for answer in row_answers]
        values = {
            "exact match": [answer.exact_match for answer in row_answers],
            "F1": [answer.f1 for answer in row_answers],
        }
        if row is not Row.PROMPT and Row.PROMPT in by_row:
            pairs = zip(row_answers, by_row[Row.PROMPT], strict=True)
            values["F1 margin"] = [answer.f1 - prompt.f1 for answer, prompt in pairs]
        compared[row] = {
            name: bootstrap.mean_interval(figures, clusters, seed=seed) for name, figures in values.items()
        }
    return compared


# ── corrections ─────────────────────────────────────────────────────────────────────────────────────────────────────


def write_correction_scenes(count: int = SCENES) -> list[tuple[Scenario, Probe]]:
    """Return corrections and the question about each: half marked as decisions, half said in plain conversation."""
    lists = [phrases(name) for name in SHIPPED]
    marked: list[tuple[Scenario, Probe]] = []
    plain: list[tuple[Scenario, Probe]] = []
    for seed in range(count):
        words = lists[seed % len(lists)]
        for scenario, chosen in (
            (SCENARIOS["fact_correction"](turns=60, seed=seed, phrases=words), marked),
            (corrections(turns=100, seed=seed, phrases=words, marked=False), plain),
        ):
            chosen += [(scenario, probe) for probe in scenario.probes if probe.forbidden]
    return [*marked[: count - count // 2], *plain[: count // 2]]


async def answer_scenes(
    endpoint: Endpoint,
    model: str,
    asked: Sequence[tuple[Scenario, Probe]],
    *,
    budget: int = 400,
    max_tokens: int = 32,
    progress: Progress | None = None,
) -> list[SceneAnswer]:
    """Ask about every correction with the default prompt, and return the answers."""
    answers: list[SceneAnswer] = []
    for scenario, probe in asked:
        if progress is not None:
            progress("corrections", len(answers), len(asked))
        conversation = scenario_conversation(scenario)
        question = next(asked for asked in conversation.questions if asked.text == probe.question)
        async with _open_memories(conversation) as memories:
            messages = await memories.write_request(Row.PROMPT, question, budget)
        reply = await complete_chat(endpoint, model, {"messages": messages}, max_tokens=max_tokens)
        answers.append(
            SceneAnswer(
                scene=scenario.name,
                question=probe.question,
                expected=probe.expected,
                outdated=probe.forbidden,
                answer=reply.text,
                verdict=judge_correction(reply.text, probe),
            )
        )
    return answers


def judge_correction(answer: str, probe: Probe) -> str:
    """Return which values an answer names: "current", "both", "outdated" or "neither"."""
    outdated = any(carries(answer, word) for word in probe.forbidden)
    if all(carries(answer, word) for word in probe.expected):
        return "both" if outdated else "current"
    return "outdated" if outdated else "neither"


# ── requests ────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _Memories:
    """One conversation in every memory."""

    said: tuple[Said, ...]
    window: MostRecent
    bm25: PlainBM25
    acms: Remembering

    async def write_request(self, row: Row, question: Question, budget: int) -> list[Mapping[str, Any]]:
        """Return the messages of a request, with at most `budget` tokens of memory."""
        if row is Row.PROMPT:
            return await self._write_prompt(question.text, budget)
        lines = await self._choose_lines(row, question, budget)
        notes = "".join(f"{line}\n" for line in lines)
        return [
            {"role": "system", "content": load_instruction()},
            {"role": "user", "content": f"{notes}\n{question.text}" if notes else question.text},
        ]

    async def _choose_lines(self, row: Row, question: Question, budget: int) -> list[str]:
        if row is Row.NONE:
            return []
        if row is Row.GOLD:
            return [
                _format_dated_line(self.said[index], self.said[index].text) for index in sorted(question.gold)
            ]
        if row is Row.RECALL:
            return await self._recall_within(question.text, budget)
        items = await (self.window if row is Row.WINDOW else self.bm25).ask(question.text, budget)
        return [item.text for item in sorted(items, key=lambda item: item.index or 0)]

    async def _recall_within(self, question: str, budget: int) -> list[str]:
        """Recall less until the lines fit, with their dates and speakers."""
        counter = BPETokenCounter("cl100k_base")
        recall_budget = budget
        while recall_budget > 0:
            items = await self.acms.ask(question, recall_budget)
            lines = [
                _format_dated_line(self.said[item.index], item.text)
                for item in items
                if item.index is not None
            ]
            excess = counter.count("".join(f"{line}\n" for line in lines)) - budget
            if excess <= 0:
                return lines
            recall_budget -= excess
        return []

    async def _write_prompt(self, question: str, budget: int) -> list[Mapping[str, Any]]:
        # A view at the current version: rendering through it stores nothing that the next question could see.
        context = await self.acms.session.context_id()
        assert context is not None
        head = await self.acms.session.storage.head(context)
        session = self.acms.session.at(head.version)
        prompt = Prompt(OpenAIChat(_COUNTED_AS)).system(load_instruction())
        without_memory = await prompt.user(question).render()
        rendered = (
            await prompt.history(session)
            .recall(session, question)
            .user(question)
            .render(budget=budget + without_memory.tokens.upper_bound)
        )
        messages: list[Mapping[str, Any]] = rendered.payload["messages"]
        return messages


@asynccontextmanager
async def _open_memories(conversation: Conversation) -> AsyncGenerator[_Memories]:
    """Tell every memory a conversation; ACMS has its default configuration and no embedder."""
    async with open_acms()() as acms:
        assert isinstance(acms, Remembering)
        memories = _Memories(conversation.said, MostRecent(), PlainBM25(), acms)
        for message in conversation.said:
            await acms.tell(message)
            dated = replace(message, speaker=_format_speaker_and_date(message))
            await memories.window.tell(dated)
            await memories.bm25.tell(dated)
        await acms.settle()
        yield memories


def _format_speaker_and_date(message: Said) -> str:
    return f"{message.speaker or message.role}, {message.created_at:%Y-%m-%d}"


def _format_dated_line(message: Said, text: str) -> str:
    return f"{_format_speaker_and_date(message)}: {text}"


@cache
def load_instruction() -> str:
    """Return the system message of every request."""
    return (files("acms_eval") / "data" / "answering.md").read_text(encoding="utf-8").strip()


async def complete_chat(
    endpoint: Endpoint, model: str, payload: Mapping[str, Any], *, max_tokens: int
) -> Reply:
    """Send a request of the chat format, and return the reply without the model's thinking."""

    def read_reply(answer: dict[str, Any]) -> Reply:
        message = answer["choices"][0]["message"]
        usage = answer.get("usage") or {}
        return Reply(
            text=THINKING.sub("", message.get("content") or "", count=1).strip(),
            calls=tuple(message.get("tool_calls") or ()),
            prompt_tokens=usage.get("prompt_tokens", 0),
            usage=usage or None,
        )

    body = {"model": model, "max_tokens": max_tokens, **payload}
    return await endpoint.post("chat/completions", body, read_reply)
