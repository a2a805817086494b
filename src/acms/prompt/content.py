"""Content: the values a prompt accepts, and their conversion to steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, Union

from acms.errors import ValidationError
from acms.model import Media, Part, Raw, Reasoning, Role, Text, ToolCall, ToolResult
from acms.plan.nodes import ComposedMessage, MessageGroup, Node, Scope
from acms.ports import Codec
from acms.prompt import steps as contents
from acms.prompt.steps import (
    FixedNode,
    Hint,
    Inside,
    Log,
    Readable,
    SessionAtService,
    SessionOrView,
    Step,
    WrittenMessage,
)
from acms.prompt_types import PromptMessage, Tool

Content: TypeAlias = Union[
    str,
    Mapping[str, Any],
    PromptMessage,
    Part,
    Node,
    Readable,
    SessionOrView,
    SessionAtService,
    Inside,
    "Recipe",
    "Sequence[Content]",
    None,
]
"""What may stand in a prompt.

A text is a message of the user; a mapping is a message as `ingest` takes it, also a provider's own; a list of parts is
one message of the user, any other list is its items in order; a session or a view is its history; None is nothing.
"""

MessageContent: TypeAlias = str | Part | Sequence[Part] | Sequence[str | Mapping[str, Any]]
"""The content of one message: a text, parts, or the content of a provider's message."""

PARTS = (Text, Reasoning, ToolCall, ToolResult, Media, Raw)


class Recipe:
    """The steps of a prompt: `Prompt` builds them, and a prompt may contain another."""

    def __init__(self, codec: Codec | None = None) -> None:
        #: The codec it is bound to, its steps in order, and the functions it offers. A recipe is never changed: methods
        #: return a new one.
        self.codec = codec
        self.steps: tuple[Step, ...] = ()
        self.offered: tuple[Tool, ...] = ()


def steps_of(content: object, field: str, nested: list[Recipe]) -> list[Step]:
    """Return a content as checked steps, and add the prompts inside it to `nested`, for their codecs."""
    steps = _parse_content(content, field, nested)
    if contents.depth_of_steps(steps) > contents.DEPTH:
        raise _too_deep(field)
    return steps


def _too_deep(field: str) -> ValidationError:
    return ValidationError(f"is nested more than {contents.DEPTH} deep", field=field.partition("[")[0])


def _parse_content(content: object, field: str, nested: list[Recipe], depth: int = 0) -> list[Step]:
    """Return a content as steps, and add the prompts inside it to `nested`; `ValidationError` if it is invalid."""
    if content is None:
        return []
    if isinstance(content, str):
        return [WrittenMessage(contents.build_message(Role.USER, content))]
    if isinstance(content, PromptMessage):
        return [WrittenMessage(contents.validate_message(content, field))]
    if isinstance(content, Scope | MessageGroup | ComposedMessage):
        return [FixedNode(content)]
    if isinstance(content, PARTS):
        return _parse_content([content], field, nested)
    if isinstance(content, Mapping):
        return [WrittenMessage(message) for message in contents.parse_message_mapping(content, field)]
    if isinstance(content, Recipe):
        nested.append(content)
        return _steps_of(content, field)
    if isinstance(content, Sequence) and not isinstance(content, bytes | bytearray):
        return _parse_sequence(content, field, nested, depth)
    session = contents.find_readable(content)
    if session is not None:
        return [Log(session)]
    sync_import = suggest_sync_import(content)
    if sync_import:
        raise ValidationError(
            "this is a session of acms.sync: use Prompt of acms.sync with it",
            field=field,
            options=sync_import,
        )
    raise ValidationError(f"{type(content).__name__} cannot be part of a prompt", field=field)


def _steps_of(recipe: Recipe, field: str) -> list[Step]:
    """Return the steps of a nested prompt; raise `ValidationError` for settings that belong to a whole prompt."""
    if recipe.offered:
        raise ValidationError("has tools: merge it instead", field=field)
    if any(isinstance(step, Hint) for step in recipe.steps):
        raise ValidationError(
            "has a cache hint, which applies to the whole prompt",
            field=field,
            options=("call cache_hint on the prompt that is rendered", "merge it"),
        )
    return list(recipe.steps)


def _parse_sequence(items: Sequence[Any], field: str, nested: list[Recipe], depth: int) -> list[Step]:
    """Return one message for a sequence of parts, and the steps of each content of any other."""
    if items and all(isinstance(item, PARTS) for item in items):
        return [WrittenMessage(contents.build_message(_role_of(items), parts=list(items)))]
    if depth >= contents.DEPTH:
        raise _too_deep(field)
    return [
        step
        for index, item in enumerate(items)
        for step in _parse_content(item, f"{field}[{index}]", nested, depth + 1)
    ]


def _role_of(parts: Sequence[object]) -> Role:
    """Return the role of a message of some parts: results are a tool's, calls and reasoning the assistant's."""
    if any(isinstance(part, ToolResult) for part in parts):
        return Role.TOOL
    return Role.ASSISTANT if any(isinstance(part, ToolCall | Reasoning) for part in parts) else Role.USER


def suggest_sync_import(value: object) -> tuple[str, ...]:
    """Return the import to suggest for a session of the blocking API; empty for any other value."""
    inner = getattr(value, "inner", None)
    return ("from acms.sync import Prompt",) if isinstance(inner, SessionOrView | SessionAtService) else ()
