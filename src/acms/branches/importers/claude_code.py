"""Sessions of Claude Code: `~/.claude/projects/<project>/<session>.jsonl`, one event a line.

The blocks of one answer are on several lines with the same `message.id` and become one message. Results of parallel
calls may stand between them. Side chains are sessions of their own. Not read is what only the program needs: meta
lines, snapshots, queues, progress, its own error messages, and the summary that a compaction wrote of messages that the
file has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from acms.branches.importers.conversation import Conversation, make_turn, mapping
from acms.branches.importers.shapes import any_of, has, is_object
from acms.branches.importers.source import Source
from acms.log import foreign
from acms.log.foreign import Turn
from acms.log.repair import refer_by_hash
from acms.model import EMPTY, Json

__all__ = ["SHAPES", "read"]

_SPEAKERS = ("user", "assistant")
SHAPES = (
    (any_of("type", *_SPEAKERS), is_object("message"), any_of("message.role", *_SPEAKERS), has("uuid")),
)

_SYNTHETIC = "<synthetic>"
"""The model that Claude Code names for messages that it wrote itself, about an error or an interruption."""


@dataclass(slots=True)
class _Chain:
    """One conversation while its lines arrive: the answer that may go on, and what came after its last block."""

    answer: dict[str, Any] | None = None
    waiting: list[Mapping[str, Json]] = field(default_factory=list[Mapping[str, Json]])


def read(source: Source) -> Iterator[Conversation]:
    """Read the main conversation and the side chains, a message at a time."""
    chains: dict[str, _Chain] = {}
    for _, value in source.records():
        line = mapping(value)
        reason = _reason_to_skip(line)
        if reason:
            source.skip(reason)
            continue
        id = _conversation_of(line, source.stem)
        chain = chains.setdefault(id, _Chain())
        for turn in _take(chain, line):
            yield Conversation(id=id, messages=[turn])
    for id, chain in chains.items():
        for turn in _flush(chain):
            yield Conversation(id=id, messages=[turn])


def _reason_to_skip(line: Mapping[str, Json]) -> str | None:
    kind = line.get("type")
    message = mapping(line.get("message"))
    if kind not in _SPEAKERS:
        return f"lines of the type {kind}"
    if line.get("isMeta"):
        return "meta lines"
    if line.get("isCompactSummary"):
        return "summaries of a compaction"
    if message.get("model") == _SYNTHETIC:
        return "messages of the program itself"
    return None


def _conversation_of(line: Mapping[str, Json], stem: str) -> str:
    session = str(line.get("sessionId") or stem)
    if not line.get("isSidechain"):
        return session
    return f"{session}-agent-{line.get('agentId') or 'sidechain'}"


def _take(chain: _Chain, line: Mapping[str, Json]) -> Iterator[Turn]:
    """Add a line to a conversation; yield the messages that it completes."""
    message = mapping(line.get("message"))
    if line["type"] == "assistant":
        open_id = None if chain.answer is None else chain.answer["id"]
        if open_id is not None and message.get("id") == open_id:
            assert chain.answer is not None
            chain.answer["content"] += _blocks(message)
            chain.answer["usage"] = message.get("usage") or chain.answer["usage"]
            return
        yield from _flush(chain)
        chain.answer = {
            "line": line,
            "id": message.get("id"),
            "content": _blocks(message),
            "model": message.get("model"),
            "usage": message.get("usage"),
        }
        return
    if chain.answer is not None and _is_only_results(message):
        chain.waiting.append(line)
        return
    yield from _flush(chain)
    yield from _turns(line, message.get("content"))


def _flush(chain: _Chain) -> Iterator[Turn]:
    answer = chain.answer
    if answer is not None:
        yield from _turns(
            answer["line"], answer["content"], {name: answer[name] for name in ("model", "usage")}
        )
    for line in chain.waiting:
        yield from _turns(line, mapping(line.get("message")).get("content"))
    chain.answer = None
    chain.waiting = []


def _blocks(message: Mapping[str, Json]) -> list[Json]:
    content = message.get("content")
    if isinstance(content, list):
        return list(content)
    return [{"type": "text", "text": content}] if isinstance(content, str) and content else []


def _is_only_results(message: Mapping[str, Json]) -> bool:
    blocks = _blocks(message)
    return bool(blocks) and all(mapping(one).get("type") == "tool_result" for one in blocks)


def _turns(line: Mapping[str, Json], content: Json, details: Mapping[str, Json] = EMPTY) -> Iterator[Turn]:
    """Translate one message of Anthropic."""
    message = {"role": line["type"], "content": content}
    base = make_turn(str(line["type"]), key=str(line.get("uuid")), at=line.get("timestamp"), details=details)
    for number, turn in enumerate(foreign.read(message, keep=refer_by_hash)):
        merged = {**base, **turn}
        merged["key"] = f"{base['key']}:{number}" if number else base["key"]
        yield merged
