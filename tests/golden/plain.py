"""Results as plain JSON that is the same in every run: ids as versions, times of the run as "now", texts as digests."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any

from acms import ContextItem, Entry, Fact

_DIGITS = "0123456789abcdefghjkmnpqrstvwxyz"
_ENTRY = re.compile(r"\b([mfser])_([0-9a-z]{16})_([0-9a-hjkmnp-tv-z]{1,13})_[0-9a-z]{6}(?![0-9a-z])")
_EPISODE = re.compile(r"\bep_([0-9a-z]{16})_(\d+)\b")
_CONTEXT = re.compile(r"\bc_([0-9a-z]{16})\b")
_GROUP = re.compile(r"\bg_[0-9a-hjkmnp-tv-z]{10}\b")
_TIME = re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|\+00:00)?")
_NUMBER = re.compile(r"-?\d+\.\d+")
DIGITS = 2
"""Of scores. Nothing that is digested holds any: one in thousands lies where the last digit of a sum decides."""
_START = datetime.now(UTC) - timedelta(seconds=5)
_TODAY = re.compile("|".join(f"{_START + timedelta(days=days):%Y-%m-%d}" for days in (0, 1)))
DAY = "2026-11-26"
"""What stands for the day of the run, which recalled text says of what is written now: as long, and on record."""


class Names:
    """Writes ids so that they say what they name: `m12` is the message of version 12 of the log at hand.

    Entries of other logs carry a number of their log, in the order in which the logs are first seen: `f3@2`.
    """

    def __init__(self, context: str = "") -> None:
        self._contexts: dict[str, int] = {context.removeprefix("c_"): 1} if context else {}
        self._groups: dict[str, int] = {}

    def _at(self, context: str) -> str:
        number = self._contexts.setdefault(context, len(self._contexts) + 1)
        return "" if number == 1 else f"@{number}"

    def text(self, text: str) -> str:
        """Replace every id, and every time and day of this run."""
        if "_" in text:
            text = _ENTRY.sub(lambda m: f"{m[1]}{_version(m[3])}{self._at(m[2])}", text)
            text = _EPISODE.sub(lambda m: f"ep{m[2]}{self._at(m[1])}", text)
            text = _GROUP.sub(lambda m: f"group{self._groups.setdefault(m[0], len(self._groups) + 1)}", text)
            text = _CONTEXT.sub(lambda m: f"log{self._at(m[1]) or '@1'}", text)
        return _TODAY.sub(DAY, _TIME.sub(_time, text))

    def plain(self, value: Any) -> Any:
        """Return a value as JSON: dataclasses as their fields, times as ISO texts, numbers rounded."""
        if isinstance(value, Enum):
            return self.plain(value.value)
        if isinstance(value, str):
            return self.text(value)
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, float):
            return self.number(value)
        if isinstance(value, int):
            return value
        if isinstance(value, datetime):
            return self.moment(value)
        if isinstance(value, bytes):
            return value.hex()
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {one.name: getattr(value, one.name) for one in dataclasses.fields(value) if one.compare}
            return {"": type(value).__name__, **self.plain(fields)}
        if isinstance(value, Mapping):
            return {self.text(str(key)): self.plain(one) for key, one in value.items()}
        if isinstance(value, set | frozenset):
            return sorted(self.plain(one) for one in value)
        if isinstance(value, Iterable):
            return [self.plain(one) for one in value]
        raise TypeError(f"{type(value).__name__} has no plain form")

    def number(self, value: float) -> float | int:
        """Round a number so far that it is the same on a processor that adds in another order."""
        found = round(value, DIGITS)
        return int(found) if found == int(found) else found

    def moment(self, value: datetime) -> str:
        """Write a time as ISO text; one of this run is "now"."""
        return "now" if _of_this_run(value) else value.isoformat()

    def digest(self, value: Any) -> str:
        """Return twelve hex digits of SHA-256 of the canonical JSON of a value."""
        written = json.dumps(self.plain(value), ensure_ascii=False, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(written.encode("utf-8", "surrogatepass")).hexdigest()[:12]

    def item(self, item: ContextItem) -> str:
        """Write an item of a recall or a window on a line: entry, source, tokens, digest of the rest but the score."""
        rest = (
            item.position, item.role, item.content, item.markers, item.parts, item.actor_id, item.metadata,
            item.created_at, item.truncated, without_numbers(item.why), item.redaction,
        )  # fmt: skip
        return f"{self.text(item.id)} {item.source.value[:4]} {item.token_count}t {self.digest(rest)[:6]}"

    def entry(self, entry: Entry) -> str:
        """Write an entry of a log on a line: which, its state, episode and tokens, digest of the rest."""
        rest = (
            entry.kind, entry.role, entry.content, entry.parts, entry.markers, entry.detected, entry.actor,
            entry.origin, entry.privacy, entry.closes, entry.group is None, entry.covers, entry.replaces,
            entry.sources, entry.data, entry.metadata, entry.key, entry.created_at, entry.position, entry.total,
        )  # fmt: skip
        return f"{self.text(entry.id)} {entry.state.value} ep{entry.episode} {entry.tokens}t {self.digest(rest)[:6]}"

    def fact(self, fact: Fact) -> str:
        """Write a fact on a line: which, what it stands for, what ended it, digest of the rest."""
        rest = {one.name: getattr(fact, one.name) for one in dataclasses.fields(fact)}
        ended = "" if fact.retired is None else f" {fact.retired.reason} v{fact.retired.version}"
        known = self.number(fact.confidence)
        sources = ",".join(map(self.text, fact.sources))
        return f"{self.text(fact.id)} {fact.fact_type} {known} {fact.tokens}t from {sources}{ended} {self.digest(rest)}"


def without_numbers(reason: str) -> str:
    """Leave out of a reason the scores that it names."""
    return _NUMBER.sub("#", reason)


def short(lines: list[str]) -> str:
    """Write only which entries a list of lines names, in order."""
    return " ".join(line.split(" ", 1)[0] for line in lines)


def _version(digits: str) -> int:
    found = 0
    for digit in digits:
        found = found << 5 | _DIGITS.index(digit)
    return found


def _time(match: re.Match[str]) -> str:
    try:
        found = datetime.fromisoformat(match[0])
    except ValueError:
        return match[0]
    return "now" if _of_this_run(found.replace(tzinfo=found.tzinfo or UTC)) else match[0]


def _of_this_run(moment: datetime) -> bool:
    """Whether a time was read off the clock since this process began: a log may tell of next year."""
    return _START <= moment <= datetime.now(UTC) + timedelta(seconds=5)
