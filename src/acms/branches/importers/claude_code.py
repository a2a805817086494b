"""Sessions of Claude Code: `~/.claude/projects/<project>/<session>.jsonl`, one event per line.

The blocks of one answer are on several lines with the same `message.id` and become one message. Results of parallel
calls may appear between them. Side chains are separate sessions. A prompt whose `parentUuid` is earlier than the
prompt before it was written after a rewind: the abandoned messages become a branch, and the newest prompt ends the
conversation. Lines that only the program needs are skipped: meta lines, snapshots, queues, progress, its own error
messages, and the summary that a compaction wrote of messages that the file has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, NamedTuple

from acms.branches.importers.conversation import (
    Conversation,
    Fork,
    as_mapping,
    has_content,
    make_turn,
    split_branches,
)
from acms.branches.importers.shapes import any_of, has_value, is_object
from acms.branches.importers.source import Source
from acms.log import foreign
from acms.log.foreign import Turn
from acms.log.repair import refer_by_hash
from acms.model import EMPTY, Json

__all__ = ["SHAPES", "read_claude_code"]

_SPEAKERS = ("user", "assistant")
SHAPES = (
    (any_of("type", *_SPEAKERS), is_object("message"), any_of("message.role", *_SPEAKERS), has_value("uuid")),
)

_SYNTHETIC = "<synthetic>"
"""The model that Claude Code names for messages that it wrote itself, about an error or an interruption."""


class _Branch(NamedTuple):
    """A branch of a conversation: the turns from a prompt on that the user abandoned."""

    #: The first turn of it, and the last one that it shares.
    first: int
    shared: int


class _Tree:
    """The turns of one conversation: which line is in which of them, and which turns were abandoned.

    A turn is a prompt of the user and all that follows from it. The parents of single lines are no branches: results of
    parallel calls have several.
    """

    def __init__(self) -> None:
        #: By the digest of a line's uuid.
        self.turn_of: dict[bytes, int] = {}
        #: The turn before each turn. The first one holds the lines before the first prompt.
        self.parents: list[int | None] = [None]
        #: The branch of each turn that was abandoned.
        self.branches: dict[int, _Branch] = {}
        self._last = 0

    def add(self, line: Mapping[str, Json]) -> None:
        """Add the next line. One without a known parent goes on where the line before it ended."""
        digest = _digest_uuid(line["uuid"])
        if digest in self.turn_of:  # lines of a session that was resumed are in the file again
            return
        turn = self._last
        for name in ("logicalParentUuid", "parentUuid"):
            turn = self.turn_of.get(_digest_uuid(line.get(name)), turn)
        if _is_prompt(line):
            self.parents.append(turn)
            turn = len(self.parents) - 1
        self._last = self.turn_of[digest] = turn

    def find_branches(self) -> None:
        """Find the turns that the newest prompt does not follow from."""
        parents = {
            str(turn): None if parent is None else str(parent) for turn, parent in enumerate(self.parents)
        }
        _, *abandoned = split_branches(parents, str(len(self.parents) - 1))
        for path in abandoned:
            branch = _Branch(int(path.nodes[0]), int(path.leaves or 0))
            self.branches |= dict.fromkeys(map(int, path.nodes), branch)


@dataclass(slots=True)
class _Chain:
    """One conversation while its lines arrive: the answer that may go on, and what came after its last block."""

    id: str
    tree: _Tree | None = None
    #: What the lines that arrive belong to: the conversation, or a branch of it.
    part: Conversation | None = None
    turn: int = 0
    answer: dict[str, Any] | None = None
    waiting: list[Mapping[str, Json]] = field(default_factory=list[Mapping[str, Json]])
    #: The branches that were begun, by their first turn.
    begun: dict[int, Conversation] = field(default_factory=dict[int, Conversation])
    #: The key of the last message of each turn.
    ends: dict[int, str] = field(default_factory=dict[int, str])


def read_claude_code(source: Source) -> Iterator[Conversation]:
    """Read the main conversation, its branches and the side chains, a message at a time."""
    trees = _find_trees(source)
    chains: dict[str, _Chain] = {}
    for _, value in source.records():
        line = as_mapping(value)
        reason = _reason_to_skip(line)
        if reason:
            source.skip(reason)
            continue
        id = _conversation_of(line, source.stem)
        chain = chains.setdefault(id, _Chain(id, trees.get(id)))
        yield from _enter_turn(chain, line)
        for turn in _take_line(chain, line):
            yield from _emit_turn(chain, turn)
    for chain in chains.values():
        yield from _close_turn(chain)


def _find_trees(source: Source) -> dict[str, _Tree]:
    """Return the turns of those conversations that have branches."""
    trees: dict[str, _Tree] = {}
    for _, value in source.records():
        line = as_mapping(value)
        if line.get("uuid") and not line.get("isSidechain"):
            trees.setdefault(_conversation_of(line, source.stem), _Tree()).add(line)
    for tree in trees.values():
        tree.find_branches()
    return {id: tree for id, tree in trees.items() if tree.branches}


def _digest_uuid(uuid: Json) -> bytes:
    return blake2b(str(uuid).encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _is_prompt(line: Mapping[str, Json]) -> bool:
    """Return whether a line is what the user wrote, and not the results of calls."""
    if line.get("type") != "user" or _reason_to_skip(line):
        return False
    return not _is_only_results(as_mapping(line.get("message")))


def _enter_turn(chain: _Chain, line: Mapping[str, Json]) -> Iterator[Conversation]:
    """Go to the turn of a line; the answer of the turn before it is complete."""
    tree = chain.tree
    if tree is None:
        chain.part = chain.part or Conversation(id=chain.id)
        return
    turn = tree.turn_of[_digest_uuid(line.get("uuid"))]
    if turn == chain.turn and chain.part is not None:
        return
    yield from _close_turn(chain)
    chain.turn = turn
    branch = tree.branches.get(turn)
    if branch is None:
        chain.part = Conversation(id=chain.id)
        return
    if branch.first not in chain.begun:
        first = str(line.get("uuid"))
        owner = tree.branches.get(branch.shared)
        leaves = chain.id if owner is None else chain.begun[owner.first].id
        fork = Fork(leaves, _last_key(chain, tree, branch.shared), first)
        chain.begun[branch.first] = Conversation(id=f"{chain.id}-{first}", fork=fork)
    chain.part = chain.begun[branch.first]


def _last_key(chain: _Chain, tree: _Tree, turn: int | None) -> str | None:
    """Return the key of the last message up to a turn, or None where nothing was said."""
    while turn is not None and turn not in chain.ends:
        turn = tree.parents[turn]
    return None if turn is None else chain.ends[turn]


def _close_turn(chain: _Chain) -> Iterator[Conversation]:
    for turn in _flush_turns(chain):
        yield from _emit_turn(chain, turn)


def _emit_turn(chain: _Chain, turn: Turn) -> Iterator[Conversation]:
    """Yield a message as a piece of its conversation; one of a branch is taken back from the main conversation."""
    assert chain.part is not None
    yield replace(chain.part, messages=[turn])
    if chain.tree is None or not has_content(turn):
        return
    chain.ends[chain.turn] = str(turn["key"])
    if chain.part.fork is not None:
        yield Conversation(id=chain.id, taken_back=[str(turn["key"])])


def _reason_to_skip(line: Mapping[str, Json]) -> str | None:
    kind = line.get("type")
    message = as_mapping(line.get("message"))
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


def _take_line(chain: _Chain, line: Mapping[str, Json]) -> Iterator[Turn]:
    """Add a line to a conversation; yield the messages that it completes."""
    message = as_mapping(line.get("message"))
    if line["type"] == "assistant":
        open_id = None if chain.answer is None else chain.answer["id"]
        if open_id is not None and message.get("id") == open_id:
            assert chain.answer is not None
            chain.answer["content"] += _blocks_of_message(message)
            chain.answer["usage"] = message.get("usage") or chain.answer["usage"]
            return
        yield from _flush_turns(chain)
        chain.answer = {
            "line": line,
            "id": message.get("id"),
            "content": _blocks_of_message(message),
            "model": message.get("model"),
            "usage": message.get("usage"),
        }
        return
    if chain.answer is not None and _is_only_results(message):
        chain.waiting.append(line)
        return
    yield from _flush_turns(chain)
    yield from _translate_line(line, message.get("content"))


def _flush_turns(chain: _Chain) -> Iterator[Turn]:
    answer = chain.answer
    if answer is not None:
        yield from _translate_line(
            answer["line"], answer["content"], {name: answer[name] for name in ("model", "usage")}
        )
    for line in chain.waiting:
        yield from _translate_line(line, as_mapping(line.get("message")).get("content"))
    chain.answer = None
    chain.waiting = []


def _blocks_of_message(message: Mapping[str, Json]) -> list[Json]:
    content = message.get("content")
    if isinstance(content, list):
        return list(content)
    return [{"type": "text", "text": content}] if isinstance(content, str) and content else []


def _is_only_results(message: Mapping[str, Json]) -> bool:
    blocks = _blocks_of_message(message)
    return bool(blocks) and all(as_mapping(one).get("type") == "tool_result" for one in blocks)


def _translate_line(
    line: Mapping[str, Json], content: Json, details: Mapping[str, Json] = EMPTY
) -> Iterator[Turn]:
    """Translate one message of Anthropic."""
    message = {"role": line["type"], "content": content}
    base = make_turn(str(line["type"]), key=str(line.get("uuid")), at=line.get("timestamp"), details=details)
    for number, turn in enumerate(foreign.parse_provider_message(message, keep=refer_by_hash)):
        merged = {**base, **turn}
        merged["key"] = f"{base['key']}:{number}" if number else base["key"]
        yield merged
