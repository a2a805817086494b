"""Sessions of Claude Code: `~/.claude/projects/<project>/<session>.jsonl`, one event per line.

The blocks of one answer are on several lines with the same `message.id` and become one message. Results of parallel
calls may appear between them. Side chains are separate sessions. A prompt whose `parentUuid` is earlier than the
prompt before it was written after a rewind: the abandoned messages become a branch, and the newest prompt ends the
conversation. Lines that only the program needs are skipped: meta lines, snapshots, queues, progress, its own error
messages, and the summary that a compaction wrote of messages that the file has.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from acms.branches.importers.conversation import (
    Conversation,
    Fork,
    Record,
    digest_text,
    find_value,
    has_content,
    make_turn,
    parse_turns,
    record_at,
    split_branches,
)
from acms.branches.importers.shapes import any_of, has_value, is_object
from acms.branches.importers.source import Source
from acms.model import EMPTY, Json

_SPEAKERS = ("user", "assistant")
SHAPES = (
    (any_of("type", *_SPEAKERS), is_object("message"), any_of("message.role", *_SPEAKERS), has_value("uuid")),
)

_SYNTHETIC = "<synthetic>"
"""The model that Claude Code names for messages that it wrote itself, about an error or an interruption."""


class _Branch(NamedTuple):
    """A part of a conversation that the user abandoned."""

    #: Its first turn.
    first: int
    #: The last turn that it shares with the rest of the conversation.
    shared: int


class _Tree:
    """The turns of one conversation: which line is in which of them, and which turns were abandoned.

    A turn is a prompt of the user and all that follows from it. The parents of single lines are no branches: results of
    parallel calls have several.
    """

    def __init__(self) -> None:
        #: By the digest of a line's uuid: the number of its turn.
        self.turn_of: dict[bytes, int] = {}
        #: By the number of a turn: the turn before it. Turn 0 has the lines before the first prompt.
        self.parents: list[int | None] = [None]
        #: The branch of each turn that was abandoned.
        self.branches: dict[int, _Branch] = {}
        #: The turn of the line that was added last.
        self._last_turn = 0

    def add(self, line: Record) -> None:
        """Add the next line: a prompt begins a turn, any other line belongs to the turn of its parent.

        The parent of a line is the line of its `parentUuid`, else of its `logicalParentUuid`, else the line before.
        """
        digest = digest_text(str(line["uuid"]))
        if digest in self.turn_of:  # lines of a session that was resumed are in the file again
            return
        parent_turn = self._last_turn
        for name in ("logicalParentUuid", "parentUuid"):  # the last one that is known wins
            parent_turn = self.turn_of.get(digest_text(str(line.get(name))), parent_turn)
        turn = parent_turn
        if _is_prompt(line):
            turn = len(self.parents)
            self.parents.append(parent_turn)
        self.turn_of[digest] = turn
        self._last_turn = turn

    def mark_abandoned(self) -> None:
        """Find the turns that the user abandoned: the newest prompt does not follow from them."""
        parents = {str(turn): str(parent) for turn, parent in enumerate(self.parents)}
        _, *abandoned = split_branches(parents, str(len(self.parents) - 1))
        for path in abandoned:
            branch = _Branch(int(path.nodes[0]), int(path.shared or 0))
            for turn in path.nodes:
                self.branches[int(turn)] = branch


class _Answer(NamedTuple):
    """An answer of the model, whose blocks arrive on several lines."""

    id: Json
    #: The first line of it.
    line: Record
    blocks: list[Json]
    usage: Json


class _Chain:
    """One conversation while its lines arrive; `tree` is None if it has no branches."""

    def __init__(self, id: str, tree: _Tree | None) -> None:
        self._id = id
        self._tree = tree
        #: The conversation, or the branch of it, to which the lines belong.
        self._current = Conversation(id=id)
        self._turn = 0
        #: The answer that may go on, and the lines that came after its last block.
        self._answer: _Answer | None = None
        self._pending: list[Record] = []
        #: The branches so far, by their first turn.
        self._branches: dict[int, Conversation] = {}
        #: The key of the last message of each turn.
        self._last_keys: dict[int, str] = {}

    def take_line(self, line: Record) -> Iterator[Conversation]:
        """Add a line; yield the messages that are complete with it.

        An answer is complete when a line follows that is neither a block of it nor results of its calls.
        """
        if self._tree is not None:
            turn = self._tree.turn_of[digest_text(str(line.get("uuid")))]
            if turn != self._turn:
                yield from self.flush()
                self._enter_turn(turn, line, self._tree)
        message = record_at(line, "message")
        answer = self._answer
        if line["type"] == "assistant":
            if answer is not None and message.get("id") and message["id"] == answer.id:
                answer.blocks.extend(_blocks_of_message(message))
                self._answer = answer._replace(usage=message.get("usage") or answer.usage)
                return
            yield from self.flush()
            blocks = _blocks_of_message(message)
            self._answer = _Answer(message.get("id"), line, blocks, message.get("usage"))
        elif answer is not None and _has_only_results(message):
            self._pending.append(line)
        else:
            yield from self.flush()
            yield from self._emit_line(line, message.get("content"))

    def flush(self) -> Iterator[Conversation]:
        """Yield the answer that was open and the messages after it."""
        answer, pending = self._answer, self._pending
        self._answer, self._pending = None, []
        if answer is not None:
            model = find_value(answer.line, "message.model")
            yield from self._emit_line(answer.line, answer.blocks, {"model": model, "usage": answer.usage})
        for line in pending:
            yield from self._emit_line(line, find_value(line, "message.content"))

    def _emit_line(self, line: Record, content: Json, details: Record = EMPTY) -> Iterator[Conversation]:
        """Yield the messages of a line. A message of a branch is also taken back from the main conversation.

        An earlier import may have stored it there, before the user abandoned the branch.
        """
        role = str(line["type"])
        base = make_turn(role, key=str(line.get("uuid")), created_at=line.get("timestamp"), details=details)
        for turn in parse_turns({"role": role, "content": content}, base):
            yield replace(self._current, messages=[turn])
            if self._tree is None or not has_content(turn):
                continue
            self._last_keys[self._turn] = turn["key"]
            if self._current.fork is not None:
                yield Conversation(id=self._id, taken_back=[turn["key"]])

    def _enter_turn(self, turn: int, line: Record, tree: _Tree) -> None:
        """Begin a part of the conversation, or of a fork of it if the user abandoned the turn.

        A fork is created at its first turn, with the uuid of the line that begins it in its id.
        """
        self._turn = turn
        branch = tree.branches.get(turn)
        if branch is None:
            self._current = Conversation(id=self._id)
            return
        if branch.first not in self._branches:
            first_key = str(line.get("uuid"))
            parent = tree.branches.get(branch.shared)
            parent_id = self._id if parent is None else self._branches[parent.first].id
            fork = Fork(parent_id, self._last_key(branch.shared, tree), first_key)
            self._branches[branch.first] = Conversation(id=f"{self._id}-{first_key}", fork=fork)
        self._current = self._branches[branch.first]

    def _last_key(self, turn: int | None, tree: _Tree) -> str | None:
        """Return the key of the last message up to a turn, or None if there is no message."""
        while turn is not None and turn not in self._last_keys:
            turn = tree.parents[turn]
        return None if turn is None else self._last_keys[turn]


def read_claude_code(source: Source) -> Iterator[Conversation]:
    """Read the main conversation, its branches and the side chains, a message at a time."""
    trees = _read_branched_conversations(source)
    chains: dict[str, _Chain] = {}
    for line in source.records():
        reason = _reason_to_skip(line)
        if reason:
            source.skip(reason)
            continue
        id = _conversation_of(line, source.stem)
        if id not in chains:
            chains[id] = _Chain(id, trees.get(id))
        yield from chains[id].take_line(line)
    for chain in chains.values():
        yield from chain.flush()


def _read_branched_conversations(source: Source) -> dict[str, _Tree]:
    """Return the turns of those conversations that have branches."""
    trees: dict[str, _Tree] = {}
    for line in source.records():
        if line.get("uuid") and not line.get("isSidechain"):
            trees.setdefault(_conversation_of(line, source.stem), _Tree()).add(line)
    for tree in trees.values():
        tree.mark_abandoned()
    return {id: tree for id, tree in trees.items() if tree.branches}


def _is_prompt(line: Record) -> bool:
    """Return whether a line was written by the user; results of calls are lines of the user too."""
    if line.get("type") != "user" or _reason_to_skip(line):
        return False
    return not _has_only_results(record_at(line, "message"))


def _reason_to_skip(line: Record) -> str | None:
    """Return why a line is no part of the conversation, or None if it is one."""
    kind = line.get("type")
    if kind not in _SPEAKERS:
        return f"lines of the type {kind}"
    if line.get("isMeta"):
        return "meta lines"
    if line.get("isCompactSummary"):
        return "summaries of a compaction"
    if find_value(line, "message.model") == _SYNTHETIC:
        return "messages of the program itself"
    return None


def _conversation_of(line: Record, stem: str) -> str:
    session = str(line.get("sessionId") or stem)
    if not line.get("isSidechain"):
        return session
    return f"{session}-agent-{line.get('agentId') or 'sidechain'}"


def _blocks_of_message(message: Record) -> list[Json]:
    content = message.get("content")
    if isinstance(content, list):
        return list(content)
    if isinstance(content, str) and content:
        return [{"type": "text", "text": content}]
    return []


def _has_only_results(message: Record) -> bool:
    blocks = _blocks_of_message(message)
    return bool(blocks) and all(find_value(block, "type") == "tool_result" for block in blocks)
