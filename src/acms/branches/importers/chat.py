"""One conversation a file: messages as JSON or JSONL in the form of a provider."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from itertools import chain
from pathlib import Path

from acms.branches import limits
from acms.branches.importers.conversation import (
    SAYS_NOTHING,
    Record,
    as_mapping,
    first_value,
    has_content,
    parse_timestamp,
)
from acms.branches.importers.documents import EXPECTED, join_lines, parse_record
from acms.branches.importers.source import LINES, is_object
from acms.branches.importers.turns import admit_turn
from acms.errors import TooLargeError, ValidationError
from acms.log import provider_messages, validation
from acms.log.provider_messages import Turn
from acms.log.repair import refer_by_hash
from acms.model import Json, Role

_TIMES = ("created_at", "timestamp", "create_time", "created")
_DROPPED = frozenset((*_TIMES, "key", "idempotency_key", "privacy", "origin"))
"""Fields of a message in a file that are not part of its content, or that a file may not set."""


def read_chat(path: str | Path, *, trust: bool = False) -> Iterator[Turn]:
    """Read the messages of a chat file; the format is detected from the content.

    System and developer messages are treated as external text, not as instructions, unless you `trust` the file.
    `ValidationError` names the file and the line or message at fault, and the expected form.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            yield from read_lines(limits.read_lines_within(file, path.name), path.name, trust=trust)
    except OSError as error:
        raise ValidationError(f"cannot be read: {error.strerror}", field=str(path)) from error


def read_lines(
    lines: Iterable[str], name: str, *, trust: bool = False, skip: Callable[[str], None] | None = None
) -> Iterator[Turn]:
    """Read the messages of a chat file from its lines; `name` is the file's name for errors and for its suffix.

    `skip` is called with a reason for each message that is left out.
    """
    count = 0
    for index, (position, message) in enumerate(_read_messages(lines, name)):
        turns = _translate_message(message, index, position, trust)
        if not turns and skip is not None:
            skip(SAYS_NOTHING)
        for turn in turns:
            count += 1
            if count > limits.RECORDS:
                raise TooLargeError(f"has more than {limits.RECORDS:,} messages", field=name)
            yield turn


def _read_messages(lines: Iterable[str], name: str) -> Iterator[tuple[str, Json]]:
    """Yield every message of a file, with its position for errors."""
    numbered = _number_lines(lines, name)
    start = next((numbered_line for numbered_line in numbered if numbered_line[1].strip()), None)
    if start is None:
        raise ValidationError("is empty", field=name, options=EXPECTED)
    if name.lower().endswith(LINES) or is_object(start[1]):  # JSONL: each line is a record
        for number, line in chain([start], numbered):
            if line.strip():
                position = f"{name}:{number}"
                yield from _expand_messages(parse_record(line, name, number), position)
        return
    remaining_lines = (line for _, line in numbered)
    document = parse_record(join_lines(chain([start[1]], remaining_lines), name), name, start[0])
    if not isinstance(document, list):
        yield from _expand_messages(document, name)
        return
    for index, record in enumerate(document):
        yield from _expand_messages(record, f"{name}: messages[{index}]")


def _number_lines(lines: Iterable[str], name: str) -> Iterator[tuple[int, str]]:
    try:
        yield from enumerate(lines, 1)
    except UnicodeDecodeError as error:
        raise ValidationError(f"is not UTF-8 text: byte {error.start} of a block", field=name) from error


def _expand_messages(record: Json, position: str) -> Iterator[tuple[str, Json]]:
    """Yield the messages of a record, which is a message or an object with a list of them."""
    messages = as_mapping(record).get("messages")
    if not isinstance(messages, list):
        yield position, record
        return
    for index, message in enumerate(messages):
        yield f"{position}: messages[{index}]", message


def _translate_message(message: Json, index: int, position: str, trust: bool) -> list[Turn]:
    """Translate one message into turns: mostly one, none if it has no content, several if it holds tool results."""
    if not isinstance(message, dict) or not ("role" in message or _is_item(message)):
        raise ValidationError('is not a chat message: it has no "role"', field=position, options=EXPECTED)
    with limits.set_error_field(position):
        turns = _parse_message(message, trust)
    serialized = json.dumps(message, sort_keys=True, separators=(",", ":"))
    key = f"{index}-{sha256(serialized.encode()).hexdigest()[:12]}"
    for number, turn in enumerate(turns):
        turn["key"] = f"{key}:{number}" if number else key
    return turns


def _is_item(message: Record) -> bool:
    """Return whether a record is an item of OpenAI Responses that has no role: a call, an output or reasoning."""
    kind = message.get("type")
    if not isinstance(kind, str):
        return False
    return kind.endswith(("_call", "_output")) or kind in ("reasoning", "compaction")


def _parse_message(message: Record, trust: bool) -> list[Turn]:
    """Parse a message, and validate it as `ingest` does; `trust` keeps the role of instructions.

    Bytes of media are replaced by a reference with their hash.
    """
    fields = {name: value for name, value in message.items() if name not in _DROPPED}
    if "role" in message:
        known_fields = provider_messages.KNOWN.union(provider_messages.REASONING_FIELDS)
        fields = {name: value for name, value in fields.items() if name in known_fields}
        fields["role"] = validation.parse_choice(message["role"], Role, "role").value
    time = first_value(message, _TIMES)
    turns: list[Turn] = []
    for turn in provider_messages.parse_provider_message(fields, keep=refer_by_hash):
        if not has_content(turn) and turn.get("tool_call_id") is None:  # a call may have an empty result
            continue
        if time is not None:
            turn["created_at"] = parse_timestamp(time)
        turns.append(admit_turn(turn, trust=trust))
    return turns
