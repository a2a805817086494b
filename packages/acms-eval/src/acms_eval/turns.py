"""The messages of published conversations: LoCoMo, REALTALK and BEAM, one conversation a file."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

from acms.branches.importers import Turn
from acms.errors import ValidationError
from acms.model import Json

__all__ = ["MONTHS", "read_file", "read_turns"]

MONTHS = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november",
    "december",
)  # fmt: skip
_LOCOMO_TIME = re.compile(r"(\d{1,2}):(\d{2}) ?([ap])m on (\d{1,2}) ([a-z]+),? (\d{4})", re.IGNORECASE)
_REALTALK_TIME = re.compile(r"(\d{1,2})\.(\d{1,2})\.(\d{4}), (\d{1,2}):(\d{2}):(\d{2})")
_BEAM_TIME = re.compile(r"([a-z]+)-(\d{1,2})-(\d{4})", re.IGNORECASE)
_SESSION = re.compile(r"session_\d+")


def _iterate_sessions(conversation: Mapping[str, Json]) -> Iterator[tuple[str, list[Json]]]:
    """Yield (name, turns) of session_1, session_2… in order."""
    names = [name for name in conversation if _SESSION.fullmatch(name)]
    for name in sorted(names, key=lambda name: int(name.removeprefix("session_"))):
        if isinstance(conversation[name], list):
            yield name, conversation[name]


def _read_locomo(document: Mapping[str, Json]) -> Iterator[Turn]:
    conversation = document["conversation"]
    for name, turns in _iterate_sessions(conversation):
        match = _LOCOMO_TIME.search(conversation[f"{name}_date_time"])
        if match is None:
            raise ValueError(f"{name}_date_time is {conversation[f'{name}_date_time']!r}")
        hour, minute, half, day, month, year = match.groups()
        started = datetime(
            int(year),
            _month_number(month),
            int(day),
            int(hour) % 12 + 12 * (half in "pP"),
            int(minute),
            tzinfo=UTC,
        )
        for number, turn in enumerate(turns, 1):
            is_first_speaker = turn["speaker"] == conversation["speaker_a"]
            yield from _make_turn(turn, turn["text"], is_first_speaker, started + timedelta(seconds=number))


def _read_realtalk(document: Mapping[str, Json]) -> Iterator[Turn]:
    for _, turns in _iterate_sessions(document):
        for turn in turns:
            match = _REALTALK_TIME.search(turn["date_time"])
            if match is None:
                raise ValueError(f"date_time is {turn['date_time']!r}")
            day, month, year, hour, minute, second = map(int, match.groups())
            said_at = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
            yield from _make_turn(
                turn, turn["clean_text"], turn["speaker"] == document["name"]["speaker_1"], said_at
            )


def _make_turn(
    turn: Mapping[str, Json], text: str, is_first_speaker: bool, said_at: datetime
) -> Iterator[Turn]:
    """Yield one turn of a conversation between two people; what an image shows is appended in words."""
    caption = turn.get("blip_caption")
    content = f"{text} [shares: {caption}]".strip() if caption else text
    if content.strip():
        yield {
            "role": "user" if is_first_speaker else "assistant",
            "content": content,
            "actor_id": turn["speaker"],
            "metadata": {"dia_id": turn["dia_id"]},
            "created_at": said_at,
            "key": turn["dia_id"],
        }


def _read_beam(document: Mapping[str, Json]) -> Iterator[Turn]:
    said_at: datetime | None = None
    for batch in document["batches"]:
        for turn in (turn for exchange in batch["turns"] for turn in exchange):
            match = _BEAM_TIME.fullmatch(turn.get("time_anchor") or "")
            if match is not None:
                said_at = datetime(int(match[3]), _month_number(match[1]), int(match[2]), tzinfo=UTC)
            message: Turn = {
                "role": turn["role"],
                "content": turn["content"],
                "metadata": {"chat_id": turn["id"]},
                "key": str(turn["id"]),
            }
            if said_at is not None:
                said_at += timedelta(seconds=1)
                message["created_at"] = said_at
            if message["content"].strip():
                yield message


def _month_number(name: str) -> int:
    return MONTHS.index(name.lower()) + 1


_FORMATS: tuple[
    tuple[Callable[[Mapping[str, Json]], bool], Callable[[Mapping[str, Json]], Iterator[Turn]]], ...
] = (
    (
        lambda one: isinstance(one.get("conversation"), dict) and "speaker_a" in one["conversation"],
        _read_locomo,
    ),
    (lambda one: isinstance(one.get("name"), dict) and "speaker_1" in one["name"], _read_realtalk),
    (lambda one: isinstance(one.get("batches"), list), _read_beam),
)
"""How the conversation of a data set is recognised and read."""


def read_file(path: str | Path) -> list[Turn]:
    """Read the messages of a file that holds one conversation of LoCoMo, REALTALK or BEAM."""
    path = Path(path)
    return list(read_turns(json.loads(path.read_text(encoding="utf-8")), path.name))


def read_turns(document: Json, name: str) -> Iterator[Turn]:
    """Read the messages of one conversation from its JSON; `name` is the file's name for errors."""
    records = cast("list[Json]", document) if isinstance(document, list) else [document]
    record = cast("dict[str, Json]", records[0]) if records and isinstance(records[0], dict) else {}
    if "turns" in record:
        record = {"batches": records}
    read_format = next((read_format for recognise, read_format in _FORMATS if recognise(record)), None)
    if read_format is None:
        raise ValidationError("is no conversation of LoCoMo, REALTALK or BEAM", field=name)
    if len(records) > 1 and "batches" not in record:
        raise ValidationError(f"holds {len(records)} conversations", field=name)
    try:
        yield from read_format(record)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValidationError(
            f"looks like a data set, but {type(error).__name__}: {error}", field=name
        ) from error
