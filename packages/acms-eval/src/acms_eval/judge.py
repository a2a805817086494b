"""A chat model as judge of answers (E4.3). Optional: no other figure of an evaluation needs a model.

What a model says is no measurement until it is read with care: a rating counts when the model's whole answer is one
JSON object whose `rating` is 1, 0.5 or 0. Everything else is counted as unreadable and left out of the mean.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from statistics import fmean
from typing import Any

from acms.errors import ConfigurationError, ProviderError
from acms.providers.chat import Chat
from acms.providers.http import Endpoint, EndpointProvider, StatusError, resolve_endpoint
from acms_eval.nouns import Recalled

__all__ = ["Answer", "Judge", "Judgement", "Verdict", "parse_rating"]

RATINGS = (0.0, 0.5, 1.0)
_TOKENS = 2_048  # of an answer: a rating and a few words, and room for a model that thinks first
_IN_A_ROW = 5
"""Failures in a row after which a run ends: the server is gone, it is not one answer that is hard to judge."""
_SCHEMA = {
    "type": "object",
    "properties": {"reason": {"type": "string"}, "rating": {"type": "number", "enum": [0, 0.5, 1]}},
    "required": ["reason", "rating"],
    "additionalProperties": False,
}
_FENCED = re.compile(r"\A```(?:json)?\s*\n(.*)\n```\Z", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A question that was put to a memory, and what came back."""

    question: str
    #: What a right answer says.
    expected: tuple[str, ...]
    items: tuple[Recalled, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The judge's rating of one answer."""

    question: str
    #: The judged text: the recalled items, or the answer that a model made of them.
    answer: str
    #: 1 right, 0.5 in part, 0 wrong or missing; None when the judge gave no rating that can be read.
    rating: float | None
    #: Why there is no rating: "unreadable", or "failed" when the server gave no answer; empty when there is one.
    missing: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """All verdicts of a run, in the order of the questions."""

    model: str
    #: Who answered from the recalled items; empty when the items were judged themselves.
    answered_by: str
    verdicts: tuple[Verdict, ...]

    @property
    def rating(self) -> float | None:
        """The mean over the answers that were rated; None when there is none."""
        ratings = [verdict.rating for verdict in self.verdicts if verdict.rating is not None]
        return fmean(ratings) if ratings else None

    def figures(self) -> dict[str, float | int | None]:
        """Return the mean rating, how many answers have one, and how many have none and why."""
        reasons = [verdict.missing for verdict in self.verdicts]
        return {
            "rating": self.rating,
            "rated": reasons.count(""),
            "unreadable": reasons.count("unreadable"),
            "failed": reasons.count("failed"),
        }


class Judge(EndpointProvider):
    """Rates answers by a chat model: `base_url` ends where `/chat/completions` is added.

    With `answers_with`, the name of a model of the same server, that model first answers from the recalled items, and
    its answer is rated; otherwise the items are. At most `concurrency` questions are under way. Passing failures are
    tried again as the endpoint's `RetryConfig` says; then the answer counts as failed. A server that refuses for good
    (a wrong key, an unknown model), or fails five times in a row, ends the run with its `ProviderError`.

    Close it, or use it as a block: connections are kept open between calls.
    """

    def __init__(
        self,
        base_url: str | Endpoint,
        model: str,
        *,
        answers_with: str | None = None,
        api_key: str | None = None,
        timeout: float = 60.0,
        max_retries: int = 3,
        concurrency: int = 4,
    ) -> None:
        if type(concurrency) is not int or concurrency < 1:
            raise ConfigurationError(f"concurrency must be a whole number above 0, was {concurrency!r}")
        self._endpoint = resolve_endpoint(base_url, api_key=api_key, timeout=timeout, max_retries=max_retries)
        self._judge = Chat(self._endpoint, model)
        self._answers = None if answers_with is None else Chat(self._endpoint, answers_with)
        self._concurrency = concurrency

    async def judge(
        self, asked: Sequence[Answer], progress: Callable[[int, int], None] | None = None
    ) -> Judgement:
        """Return a verdict for each question, in their order, whatever order the server answers in."""
        verdicts: list[Verdict | None] = [None] * len(asked)
        waiting = iter(range(len(asked)))
        judged_count = failures_in_a_row = 0

        async def work() -> None:
            nonlocal judged_count, failures_in_a_row
            for index in waiting:
                verdict, error = await self._judge_answer(asked[index])
                verdicts[index] = verdict
                failures_in_a_row = 0 if error is None else failures_in_a_row + 1
                if error is not None and failures_in_a_row >= _IN_A_ROW:
                    raise error
                judged_count += 1
                if progress is not None:
                    progress(judged_count, len(asked))

        tasks = [asyncio.ensure_future(work()) for _ in range(min(self._concurrency, len(asked)))]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return Judgement(
            model=self._judge.model,
            answered_by="" if self._answers is None else self._answers.model,
            verdicts=tuple(verdict for verdict in verdicts if verdict is not None),
        )

    async def _judge_answer(self, answer_to_judge: Answer) -> tuple[Verdict, ProviderError | None]:
        texts = [item.text for item in answer_to_judge.items]
        answer = "\n".join(texts)
        try:
            if self._answers is not None:
                data = {"question": answer_to_judge.question, "notes": texts}
                answer = await self._answers.complete(
                    _load_prompt("answer"), _write_data(data), max_tokens=_TOKENS
                )
            data = {
                "question": answer_to_judge.question,
                "expected": list(answer_to_judge.expected),
                "answer": answer,
            }
            judge_reply = await self._judge.complete(
                _load_prompt("judge"), _write_data(data), max_tokens=_TOKENS, schema=_SCHEMA
            )
        except ProviderError as error:
            if isinstance(error, StatusError) and not error.retryable:
                raise
            return Verdict(
                question=answer_to_judge.question, answer=answer, rating=None, missing="failed"
            ), error
        rated = parse_rating(judge_reply)
        reason = "" if rated is not None else "unreadable"
        return Verdict(question=answer_to_judge.question, answer=answer, rating=rated, missing=reason), None

    def __repr__(self) -> str:
        return f"Judge({self._endpoint!r}, {self._judge.model!r})"


def parse_rating(said: str) -> float | None:
    """Return the rating that a judge wrote, or None when its answer is anything but one object with one rating."""
    fenced = _FENCED.match(said.strip())
    try:
        document = json.loads(fenced[1] if fenced else said, object_pairs_hook=_refuse_repeated_names)
    except (ValueError, RecursionError):
        return None
    value: Any = document.get("rating") if isinstance(document, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or value not in RATINGS:
        return None
    return float(value)


def _refuse_repeated_names(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse an object with a repeated name: which of its two values is meant cannot be known."""
    result = dict(pairs)
    if len(result) < len(pairs):
        raise ValueError("a name stands twice")
    return result


def _write_data(data: dict[str, Any]) -> str:
    """Write data as JSON on one line without "<", so that no text in it can pass for a part of the prompt."""
    return json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")


@cache
def _load_prompt(name: str) -> str:
    return (files("acms_eval") / "data" / f"{name}.md").read_text(encoding="utf-8")
