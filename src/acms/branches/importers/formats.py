"""The formats that are imported, and which of them a file has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from acms.branches.importers import (
    aider,
    bodies,
    channels,
    chatgpt,
    chats,
    claude,
    claude_code,
    codex,
    gemini_cli,
    langchain,
    mem0,
    openhands,
    trajectories,
)
from acms.branches.importers.chat import read_lines
from acms.branches.importers.conversation import Conversation
from acms.branches.importers.shapes import Misfit, Shape, any_of, find_misfit, has
from acms.branches.importers.source import EXPECTED, Source
from acms.errors import ValidationError
from acms.model import Json

__all__ = ["CHAT", "FORMATS", "LANGGRAPH", "Format", "find_format", "named_format"]


@dataclass(frozen=True, slots=True)
class Format:
    """What a program writes."""

    name: str
    #: It is recognised by any of them.
    shapes: Sequence[Shape]
    read: Callable[[Source], Iterator[Conversation]]
    #: Whether a file has its conversations whole, so that what it no longer has was taken out of them.
    whole: bool = False


def _read_chat(source: Source) -> Iterator[Conversation]:
    for turn in read_lines(source.lines(), source.name, trust=True):
        yield Conversation(id="", messages=[turn])


CHAT = Format(
    "chat",
    (
        (has("role"),),
        (has("messages.0.role"),),
        (any_of("type", "message", "reasoning", "function_call", "function_call_output"),),
    ),
    _read_chat,
)
_ALL = (
    Format("claude-code", claude_code.SHAPES, claude_code.read),
    Format("codex", codex.SHAPES, codex.read),
    Format("gemini-cli", gemini_cli.SHAPES, gemini_cli.read, whole=True),
    Format("aider", (), aider.read),
    Format("swe-agent", trajectories.SWE_AGENT, trajectories.read_swe_agent),
    Format("openhands", openhands.SHAPES, openhands.read),
    Format("tau-bench", trajectories.TAU_BENCH, trajectories.read_tau_bench),
    Format("langgraph-state", langchain.STATE, langchain.read_states),
    Format("langsmith", langchain.LANGSMITH, langchain.read_runs),
    Format("chatgpt", chatgpt.SHAPES, chatgpt.read, whole=True),
    Format("claude", claude.SHAPES, claude.read, whole=True),
    Format("librechat", chats.LIBRECHAT, chats.read_librechat, whole=True),
    Format("open-webui", chats.OPEN_WEBUI, chats.read_open_webui, whole=True),
    Format("slack", channels.SLACK, channels.read_slack),
    Format("discord", channels.DISCORD, channels.read_discord),
    Format("mem0", mem0.SHAPES, mem0.read, whole=True),
    Format("openai-responses", bodies.RESPONSES, bodies.read),
    Format("anthropic", bodies.ANTHROPIC, bodies.read),
    Format("gemini", bodies.GEMINI, bodies.read),
    Format("openai-chat", bodies.CHAT_LOG, bodies.read),
    Format("langchain", langchain.MESSAGES, langchain.read_messages),
    CHAT,
)
"""The more telling ones first: the first whose fields a file has is its format."""
LANGGRAPH = "langgraph"
"""Checkpoints in a SQLite file, which is no text."""
FORMATS = (*sorted(one.name for one in _ALL), LANGGRAPH)


def named_format(name: str) -> Format:
    """Return a format by its name."""
    return next(one for one in _ALL if one.name == name)


def find_format(source: Source) -> Format:
    """Return the format of a file by its content.

    `ValidationError` for a file of no known one names the nearest and the field that differs.
    """
    first = next((line for line in source.lines() if line.strip()), None)
    if first is None:
        raise ValidationError("is empty", field=source.name, options=EXPECTED)
    if first.startswith(aider.BEGINS):
        return named_format("aider")
    samples = source.sample()
    nearest: tuple[float, str, Misfit] | None = None
    for one in _ALL:
        for shape in one.shapes:
            misfit = find_misfit(shape, samples)
            if misfit is None:
                return one
            share = misfit.fitting / misfit.total
            if misfit.fitting and (nearest is None or share > nearest[0]):
                nearest = share, one.name, misfit
    raise _unknown(source, samples, nearest)


def _unknown(
    source: Source, samples: Sequence[Json], nearest: tuple[float, str, Misfit] | None
) -> ValidationError:
    if nearest is None:
        return ValidationError(
            "has none of the fields of a known format", field=source.name, options=EXPECTED
        )
    _, name, misfit = nearest
    return ValidationError(
        f"is of no known format. The nearest is {name}, but {misfit.message}",
        field=source.name,
        options=(f"correct the field and import it again as {name}", *EXPECTED),
    )
