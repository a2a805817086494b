"""Reflectors that say what a test has written down for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeAlias

from acms.ports import Proposal, Reflection, ReflectionRequest

Answer: TypeAlias = Reflection | Exception | Callable[[ReflectionRequest], Any]


class Scripted:
    """Gives its answers in order, then has nothing more to say; remembers its requests."""

    def __init__(self, *answers: Answer, model: str = "scripted/1") -> None:
        self.model = model
        self.answers = list(answers)
        self.requests: list[ReflectionRequest] = []
        #: Calls wait for it.
        self.gate: asyncio.Event | None = None
        #: Set when a call has come.
        self.called = asyncio.Event()

    async def reflect(self, request: ReflectionRequest) -> Reflection:
        self.requests.append(request)
        self.called.set()
        if self.gate is not None:
            await self.gate.wait()
        answer = self.answers.pop(0) if self.answers else Reflection()
        if isinstance(answer, Exception):
            raise answer
        found: Reflection = answer if isinstance(answer, Reflection) else answer(request)
        return found

    @property
    def read(self) -> list[list[str]]:
        """The texts that each call read."""
        return [[turn.text for turn in request.turns] for request in self.requests]


def says(*proposals: Proposal, summary: str | None = None) -> Reflection:
    """An answer of these proposals."""
    return Reflection(proposals=proposals, summary=summary)


def one(subject: str, attribute: str, value: str, **given: Any) -> Proposal:
    """A proposal at an address that holds one value at a time."""
    given.setdefault("content", f"The {attribute} of the {subject} is {value}.")
    given.setdefault("cardinality", "one")
    return Proposal(subject=subject, attribute=attribute, value=value, **given)
