"""One conversation a file: messages as JSON or JSONL in the form of a provider."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import cast

from acms.branches import limits
from acms.branches.importers.conversation import parse_timestamp
from acms.branches.importers.documents import EXPECTED, parse_record
from acms.branches.importers.source import LINES, is_object
from acms.branches.importers.turns import admit_turn, count_records
from acms.errors import TooLargeError, ValidationError
from acms.log import foreign, validation
from acms.log.foreign import Turn
from acms.log.repair import refer_by_hash
from acms.model import Json, Role

__all__ = ["read_chat", "read_lines"]

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


def read_lines(lines: Iterable[str], name: str, *, trust: bool = False) -> Iterator[Turn]:
    """Read the messages of a chat file from its lines; `name` is the file's name for errors and for its suffix."""
    yield from count_records(_read_lines(lines, name, trust), name)


def _read_lines(lines: Iterable[str], name: str, trust: bool) -> Iterator[Turn]:
    numbered = enumerate(_iter_decoded_lines(lines, name), 1)
    number, first = next(((number, line) for number, line in numbered if line.strip()), (0, ""))
    if not first:
        raise ValidationError("is empty", field=name, options=EXPECTED)
    if name.lower().endswith(LINES) or is_object(first):
        records = (
            (f"{name}:{number}", parse_record(line, name, number))
            for number, line in _chain_nonblank_lines((number, first), numbered)
        )
        items = (item for where, record in records for item in _iter_record_messages(record, where))
        yield from _translate_messages(items, trust=trust)
        return
    pieces = ["\n" * (number - 1), first]
    size = len(first)
    for _, line in numbered:
        size += len(line)
        if size > limits.IMPORT_BYTES:
            raise TooLargeError(f"has more than {limits.IMPORT_BYTES:,} bytes", field=name)
        pieces.append(line)
    yield from _read_document(parse_record("".join(pieces), name, 1), name, trust=trust)


def _iter_decoded_lines(lines: Iterable[str], name: str) -> Iterator[str]:
    try:
        yield from lines
    except UnicodeDecodeError as error:
        raise ValidationError(f"is not UTF-8 text: byte {error.start} of a block", field=name) from error


def _chain_nonblank_lines(
    first: tuple[int, str], rest: Iterator[tuple[int, str]]
) -> Iterator[tuple[int, str]]:
    yield first
    yield from ((number, line) for number, line in rest if line.strip())


# ── formats ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _as_object(value: Json) -> dict[str, Json] | None:
    return cast("dict[str, Json]", value) if isinstance(value, dict) else None


def _as_list(value: Json) -> list[Json] | None:
    return cast("list[Json]", value) if isinstance(value, list) else None


def _read_document(document: Json, name: str, *, trust: bool) -> Iterator[Turn]:
    """Read the messages of a chat file from its JSON; `name` is the file's name for errors."""
    records = _as_list(document)
    if records is None:
        return _translate_messages(_iter_record_messages(document, name), trust=trust)
    items = (
        item
        for index, record in enumerate(records)
        for item in _iter_record_messages(record, f"{name}: messages[{index}]")
    )
    return _translate_messages(items, trust=trust)


# ── OpenAI-style messages ───────────────────────────────────────────────────────────────────────────────────────────


def _iter_record_messages(record: Json, place: str) -> Iterator[tuple[str, Json]]:
    """Yield (place, message) of a record: a message, or an object with a list of them."""
    found = _as_list((_as_object(record) or {}).get("messages"))
    if found is None:
        yield place, record
    else:
        yield from ((f"{place}: messages[{index}]", message) for index, message in enumerate(found))


def _translate_messages(items: Iterable[tuple[str, Json]], *, trust: bool) -> Iterator[Turn]:
    for index, (place, item) in enumerate(items):
        message = _as_object(item)
        if message is None or not ("role" in message or _is_item(message)):
            raise ValidationError('is not a chat message: it has no "role"', field=place, options=EXPECTED)
        try:
            turns = _translate_message(message, trust)
        except ValidationError as error:
            raise ValidationError(str(error), field=place, options=error.options) from error
        written = json.dumps(message, sort_keys=True, separators=(",", ":"))
        key = f"{index}-{sha256(written.encode()).hexdigest()[:12]}"
        for number, turn in enumerate(turns):
            yield {**turn, "key": f"{key}:{number}" if number else key}


def _is_item(message: Mapping[str, Json]) -> bool:
    """Whether a record without a role is an item of Responses."""
    kind = message.get("type")
    return isinstance(kind, str) and (
        kind.endswith(("_call", "_output")) or kind in ("reasoning", "compaction")
    )


def _translate_message(message: Mapping[str, Json], trust: bool) -> list[Turn]:
    """Translate one message, mostly into one; none when it says nothing. Media in it are referred to by their hash."""
    given = {name: value for name, value in message.items() if name not in _DROPPED}
    if "role" in message:
        known = foreign.KNOWN.union(foreign.REASONING_FIELDS)
        given = {name: value for name, value in given.items() if name in known}
        given["role"] = validation.parse_choice(message["role"], Role, "role").value
    said = next((message[name] for name in _TIMES if message.get(name) is not None), None)
    found: list[Turn] = []
    for turn in foreign.parse_provider_message(given, keep=refer_by_hash):
        content, calls = turn.get("content") or "", turn.get("tool_calls")
        if not content.strip() and not turn.get("parts") and not calls and turn.get("tool_call_id") is None:
            continue
        if said is not None:
            turn["created_at"] = parse_timestamp(said)
        found.append(admit_turn(turn, trust=trust))
    return found
