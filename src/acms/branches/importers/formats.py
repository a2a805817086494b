"""The formats that are imported, and which of them a file has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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
from acms.branches.importers.documents import EXPECTED
from acms.branches.importers.shapes import Misfit, Shape, any_of, find_misfit, has_value
from acms.branches.importers.source import Source
from acms.errors import ValidationError


@dataclass(frozen=True, slots=True)
class Format:
    """A format that a program writes."""

    name: str
    #: A file has the format if one of its first records has one of these shapes.
    shapes: Sequence[Shape]
    read: Callable[[Source], Iterator[Conversation]]
    #: Whether a file has complete conversations, so that messages missing from it were removed from them.
    whole: bool = False


def _read_chat(source: Source) -> Iterator[Conversation]:
    # Trusted here: `Import` itself takes the trust away where it must.
    for turn in read_lines(source.lines(), source.name, trust=True, skip=source.skip):
        yield Conversation(id="", messages=[turn])


CHAT = Format(
    "chat",
    (
        (has_value("role"),),
        (has_value("messages.0.role"),),
        (any_of("type", "message", "reasoning", "function_call", "function_call_output"),),
    ),
    _read_chat,
)
_ALL = (
    Format("claude-code", claude_code.SHAPES, claude_code.read_claude_code),
    Format("codex", codex.SHAPES, codex.read_codex),
    Format("gemini-cli", gemini_cli.SHAPES, gemini_cli.read_gemini_cli),
    Format("aider", (), aider.read_aider),
    Format("swe-agent", trajectories.SWE_AGENT, trajectories.read_swe_agent),
    Format("openhands", openhands.SHAPES, openhands.read_openhands),
    Format("tau-bench", trajectories.TAU_BENCH, trajectories.read_tau_bench),
    Format("langgraph-state", langchain.STATE, langchain.read_states),
    Format("langsmith", langchain.LANGSMITH, langchain.read_runs),
    Format("chatgpt", chatgpt.SHAPES, chatgpt.read_chatgpt, whole=True),
    Format("claude", claude.SHAPES, claude.read_claude, whole=True),
    Format("librechat", chats.LIBRECHAT, chats.read_librechat, whole=True),
    Format("open-webui", chats.OPEN_WEBUI, chats.read_open_webui, whole=True),
    Format("slack", channels.SLACK, channels.read_slack),
    Format("discord", channels.DISCORD, channels.read_discord),
    Format("mem0", mem0.SHAPES, mem0.read_mem0, whole=True),
    Format("openai-responses", bodies.RESPONSES, bodies.read_bodies),
    Format("anthropic", bodies.ANTHROPIC, bodies.read_bodies),
    Format("gemini", bodies.GEMINI, bodies.read_bodies),
    Format("openai-chat", bodies.CHAT_LOG, bodies.read_bodies),
    Format("langchain", langchain.MESSAGES, langchain.read_messages),
    CHAT,
)
"""The more specific ones first: the first whose fields a file has is its format."""
LANGGRAPH = "langgraph"
"""Checkpoints in a SQLite file, which is no text."""
FORMATS = (*sorted(format.name for format in _ALL), LANGGRAPH)


def get_format(name: str) -> Format:
    """Return a format by its name."""
    return next(format for format in _ALL if format.name == name)


def find_format(source: Source) -> Format:
    """Return the format of a file by its content.

    Raises `ValidationError` for a file of no known format; it names the nearest format and the field that differs.
    """
    if not source.opening:
        raise ValidationError("is empty", field=source.name, options=EXPECTED)
    if source.opening.startswith(aider.BEGINS):
        return get_format("aider")
    # For each shape of each format, the misfit of the sample that comes nearest to it.
    misfits: dict[tuple[str, Shape], Misfit] = {}
    matching: set[str] = set()
    for sample in source.samples():
        for format in _ALL:
            for shape in format.shapes:
                misfit = find_misfit(shape, sample)
                if misfit is None:
                    matching.add(format.name)
                else:
                    nearest_misfit = misfits.get((format.name, shape), misfit)
                    misfits[format.name, shape] = max(nearest_misfit, misfit, key=_count_fitting)
    for format in _ALL:
        if format.name in matching:
            return format
    raise _unknown_format_error(source, misfits)


def _count_fitting(misfit: Misfit) -> int:
    return misfit.fitting


def _unknown_format_error(source: Source, misfits: Mapping[tuple[str, Shape], Misfit]) -> ValidationError:
    """Return the error for a file that fits no format; it names the format that the file comes nearest to."""
    nearest, nearest_share = "", 0.0
    problem = ""
    for (name, _), misfit in misfits.items():
        share = misfit.fitting / misfit.total
        if share > nearest_share:
            nearest, nearest_share, problem = name, share, misfit.message
    if not nearest:
        return ValidationError(
            "has none of the fields of a known format", field=source.name, options=EXPECTED
        )
    return ValidationError(
        f"is not in a known format. The nearest is {nearest}, but {problem}",
        field=source.name,
        options=(f"correct the field and import it again as {nearest}", *EXPECTED),
    )
