"""A codec whose counts are plain to see: a token a word, and a few for every message and part."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import TypeVar

from acms import Media, Reasoning, Role, Text, ToolCall, ToolResult
from acms.codecs import Count, Exactness, Tool, Usage
from acms.model import Json
from acms.plan.nodes import FittedPrompt, MessageGroup, NeedSummary, Scope
from acms.ports import TokenCounter
from acms.prompt.fit import fit_prompt
from acms.prompt_types import CacheMark, PromptMessage

T = TypeVar("T")


class Words:
    """Counts words: the texts between spaces."""

    name = "words"

    def count(self, text: str) -> int:
        return len(text.split())


class Toy:
    """Two tokens a message and one a tool call or answer, besides the words; a word a tool."""

    name = "toy"
    model = "toy"
    search_results = False
    vendors: tuple[str, ...] = ()
    marks_only = False
    implicit_mark = False
    marks_history = False
    binds_reasoning = False

    def __init__(self, primer: int = 0) -> None:
        self.counter: TokenCounter = Words()
        self.primer = primer
        self.costed = 0
        #: Tokens of every media.
        self.media = 0

    def cost(self, message: PromptMessage) -> int:
        self.costed += 1
        total = 2
        for part in message.parts:
            if isinstance(part, Text | Reasoning):
                total += self.counter.count(part.text)
            elif isinstance(part, ToolCall):
                total += 1 + self.counter.count(part.arguments)
            elif isinstance(part, Media):
                total += self.media
            elif isinstance(part, ToolResult):
                total += 1 + self.counter.count(part.output)
        return total

    def base(self, tools: Sequence[Tool] = ()) -> int:
        return self.primer + len(tools)

    def limit(self, budget: int, tools: int = 0) -> int:
        return budget

    def normal(self, messages: Sequence[PromptMessage]) -> tuple[PromptMessage, ...]:
        return tuple(messages)

    def notes(self, messages: Sequence[PromptMessage]) -> tuple[str, ...]:
        return ()

    def render(
        self,
        messages: Sequence[PromptMessage],
        *,
        tools: Sequence[Tool] = (),
        marks: Sequence[CacheMark] = (),
    ) -> dict[str, Json]:
        return {"tokens": self.base(tools) + sum(self.cost(message) for message in messages)}

    def parse(self, payload: Mapping[str, Json]) -> tuple[PromptMessage, ...]:
        return ()

    def check(self, payload: Mapping[str, Json]) -> None:
        return

    def count(self, payload: Mapping[str, Json]) -> Count:
        tokens = payload["tokens"]
        return Count(tokens=tokens, exactness=Exactness.EXACT, upper_bound=tokens)

    def cached(self, tokens: int) -> int:
        return tokens

    def diagnosed(self, payload: Mapping[str, Json], previous: str | None) -> dict[str, Json]:
        return dict(payload)

    def usage(self, usage: object) -> Usage:
        return Usage(input_tokens=0)

    def observe(self, count: Count, usage: Usage) -> None:
        return


def run_to_end(steps: Generator[NeedSummary, str | None, T], answers: Iterable[str | None] = ()) -> T:
    """Run a fit to its end with these answers, then None to every further question."""
    waiting = iter(answers)
    try:
        next(steps)
        while True:
            steps.send(next(waiting, None))
    except StopIteration as end:
        result: T = end.value
        return result


def fit_tree(tree: Scope, limit: int | None, *answers: str | None, codec: Toy | None = None) -> FittedPrompt:
    """Fit a tree with the toy codec."""
    return run_to_end(fit_prompt(tree, codec or Toy(), limit), answers)


def text_message(text: str, role: Role = Role.USER, **fields: Json) -> PromptMessage:
    """Return a message of one text."""
    return PromptMessage(role=role, parts=(Text(text),), **fields)


def text_group(text: str, role: Role = Role.USER, **fields: Json) -> MessageGroup:
    """Return a unit of one message of one text."""
    return MessageGroup((text_message(text, role),), **fields)


def numbered_words(number: int, word: str = "w") -> str:
    """Return so many words, each different."""
    return " ".join(f"{word}{index}" for index in range(number))


def texts_of_fit(found: FittedPrompt) -> list[str]:
    """Return what a prompt shows, a text a message."""
    return [
        " ".join(
            part.text
            if isinstance(part, Text | Reasoning)
            else getattr(part, "output", getattr(part, "name", ""))
            for part in one.message.parts
        )
        for one in found.placed
    ]
