"""The code shared by reflectors that ask a chat model, on any server: one question, one answer."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Protocol

from acms.providers.arguments import validate_model_name, validate_positive_int
from acms.providers.reflection_grounding import ground_reflection
from acms.providers.reflection_parser import parse_reflection
from acms.providers.reflection_prompt import answer_schema, build_reflection_prompt

if TYPE_CHECKING:
    from acms.knowledge import Reflection
    from acms.ports import ReflectionRequest

__all__ = ["ANSWER_TOKENS", "ChatCompleter", "ModelReflector"]

ANSWER_TOKENS = 8192
"""Tokens that an answer may have: proposals for a stretch of turns, and room for a model that thinks first."""


class ChatCompleter(Protocol):
    """A chat model that answers one prompt."""

    async def complete(
        self, system: str, prompt: str, *, max_tokens: int, schema: Mapping[str, Any] | None = None
    ) -> str:
        """Return the text of the answer, JSON that follows `schema` where the model can be held to it."""
        ...


class ModelReflector:
    """Asks a chat model how turns change the known facts, and parses its answer with care.

    Proposals that the turns do not support are refused and reported. An answer in which nothing can be read raises a
    `ProviderError`, `retryable`. Turns and facts are passed as data, in a section of the prompt that they cannot end.
    """

    def __init__(self, chat: ChatCompleter, model: str, provider: str, max_tokens: int) -> None:
        self._chat = chat
        #: Names the model: a job waits for a worker that has it.
        self.model = validate_model_name(model)
        #: Named in errors.
        self.provider = provider
        self.max_tokens = validate_positive_int(max_tokens, "max_tokens")

    async def reflect(self, request: ReflectionRequest) -> Reflection:
        """Return the proposals and the summary that the model wrote, and the parts that could not be read."""
        system, prompt = build_reflection_prompt(load_reflection_template(), request)
        text = await self._chat.complete(
            system, prompt, max_tokens=self.max_tokens, schema=answer_schema(request)
        )
        return ground_reflection(parse_reflection(text, request, provider=self.provider), request)


@cache
def load_reflection_template() -> str:
    """Return the prompt template: the system text, `---`, the user text."""
    return (files("acms.providers") / "prompts" / "reflect.md").read_text(encoding="utf-8")
