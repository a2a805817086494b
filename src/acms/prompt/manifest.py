"""The manifest of a prompt: the messages sent, the log entry behind each span of text, and the omitted entries.

It holds no text of the log: for text that comes from an entry it records which characters of which entry. So it is
small enough to keep, and `acms.prompt.replay` rebuilds exactly the same payload from it. Text written by the caller,
pins, and stored summaries are not entries and are included verbatim.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any, NamedTuple, TypeAlias

from acms.errors import ValidationError
from acms.log.encoding import parse_entry_id
from acms.log.trust import LEADING
from acms.model import Json, Privacy, Role, Source
from acms.plan.nodes import Omission, Step
from acms.prompt_types import CacheMark, Redacted, Tool, Verdict

__all__ = [
    "FORMAT",
    "Manifest",
    "Quote",
    "Read",
    "Redacted",
    "Segment",
    "Sent",
    "Whole",
    "Written",
    "canonical",
]

FORMAT = 1
"""Version of the format."""

canonical = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode
"""Write JSON in one way only: sorted keys, no spaces."""


class Quote(NamedTuple):
    """A span of an entry of the log."""

    entry: str
    #: Characters of it, the end excluded.
    start: int
    end: int
    #: Where in the entry: "" for its content, "2.output" for a field of its third part.
    field: str = ""


Segment: TypeAlias = str | Quote
"""A span of a text: literal, or quoted from an entry."""


class Whole(NamedTuple):
    """A part of an entry, unchanged."""

    entry: str
    part: int


class Written(NamedTuple):
    """A part of a message that is no part of an entry as it stands."""

    #: "text", "reasoning", "tool_call", "tool_result", "media", "raw".
    kind: str
    #: Its fields by name: texts as segments, everything else as it is.
    fields: tuple[tuple[str, tuple[Segment, ...] | int | None], ...]

    @property
    def quotes(self) -> list[Quote]:
        """The quotes in its texts."""
        quotes: list[Quote] = []
        for _, value in self.fields:
            if isinstance(value, tuple):
                quotes += [segment for segment in value if isinstance(segment, Quote)]
        return quotes


class Sent(NamedTuple):
    """One message as it was given to the codec, and where each span of it comes from."""

    #: Scope it came from.
    path: str
    role: Role
    #: First 32 hex digits of the SHA-256 of role, name and parts: equal where the same is said, wherever it comes from.
    hash: str
    #: Raw tokens by the codec.
    tokens: int
    parts: tuple[Whole | Written, ...] = ()
    name: str | None = None
    #: Tool group of the log.
    group: str | None = None
    #: "whole", "cut", "pieces", "summary", "placeholder".
    rendition: str = "whole"
    #: Entries whose text it shows, in order.
    sources: tuple[str, ...] = ()
    #: The pieces shown in it: ids of entries, keys of pins.
    pieces: tuple[str, ...] = ()
    #: Whether it changes from turn to turn.
    moves: bool = False
    #: Versions of the first and last entry shown; 0 for text written by the caller.
    first: int = 0
    last: int = 0

    @property
    def entries(self) -> list[str]:
        """Ids of the entries that it shows or quotes; an id may be repeated."""
        ids = list(self.sources)
        for part in self.parts:
            ids += [part.entry] if isinstance(part, Whole) else [quote.entry for quote in part.quotes]
        return ids


class Read(NamedTuple):
    """A log that was read, and the version it was read at."""

    context: str
    version: int
    #: Version of the oldest message that was handed to the fit: older ones could not fit; 0 when there are none.
    first: int = 0
    #: Inherited segments: (owner, last version read from it).
    lineage: tuple[tuple[str, int], ...] = ()
    #: Name of the stored summary that replaces the messages older than `first`, or "".
    summary: str = ""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Everything about one rendered prompt but the text of the log, addressed by its hash."""

    format: int = FORMAT
    #: Name and model of the codec, and the name of its token counter.
    codec: str
    model: str
    counter: str = ""
    budget: int | None = None
    #: Raw tokens that the budget allowed; None without a budget.
    limit: int | None = None
    #: The codec's count of the whole request, and what the budget was compared with.
    tokens: int
    upper_bound: int
    tools: tuple[Tool, ...] = ()
    marks: tuple[CacheMark, ...] = ()
    messages: tuple[Sent, ...] = ()
    #: Logs that were read.
    reads: tuple[Read, ...] = ()
    #: Every candidate of every recall, shown or not.
    candidates: tuple[Verdict, ...] = ()
    left: tuple[Omission, ...] = ()
    steps: tuple[Step, ...] = ()
    #: Entries that were redacted or withheld, in the order of the prompt; a replay does it again.
    redactions: tuple[Redacted, ...] = ()
    #: SHA-256 of the canonical JSON of the payload, compared on replay; "" when it is not known.
    payload: str = ""
    #: Tokens that an answer may take, for formats that state it in the request.
    max_tokens: int | None = None

    @cached_property
    def digest(self) -> str:
        """SHA-256 of its canonical JSON, in hex: its address."""
        return sha256(canonical(self.to_json()).encode()).hexdigest()

    @cached_property
    def entries(self) -> tuple[str, ...]:
        """Ids of the entries whose text is shown, each once, in the order of the prompt."""
        return tuple(dict.fromkeys([id for message in self.messages for id in message.entries]))

    def to_json(self) -> dict[str, Json]:
        """Return it as a JSON object without empty fields."""
        index_by_entry = {entry: index for index, entry in enumerate(self.entries)}
        words: dict[str, int] = {}  # words that occur many times are written once, rows hold their index
        document: dict[str, Json] = {
            "format": self.format,
            "codec": self.codec,
            "model": self.model,
            "counter": self.counter,
            "budget": self.budget,
            "limit": self.limit,
            "tokens": self.tokens,
            "upper_bound": self.upper_bound,
            "tools": [_tool_to_json(tool) for tool in self.tools],
            "marks": [[mark.messages, mark.id, mark.version, mark.ttl] for mark in self.marks],
            "entries": list(index_by_entry),
            "messages": [_sent_to_json(message, index_by_entry, words) for message in self.messages],
            "reads": [[*read[:3], list(map(list, read.lineage)), read.summary] for read in self.reads],
            "candidates": [_candidate_to_json(candidate, words) for candidate in self.candidates],
            "left": [_omission_to_json(left, words) for left in self.left],
            "steps": list(map(list, self.steps)),
            "redactions": [
                [index_by_entry[redaction.entry], redaction.mode.value, dict(redaction.kinds)]
                for redaction in self.redactions
            ],
            "payload": self.payload,
            "words": list(words),
        }
        if self.max_tokens is not None:
            document["max_tokens"] = self.max_tokens
        return {name: value for name, value in document.items() if value not in ("", [])}

    @classmethod
    def from_json(cls, written: Mapping[str, Json]) -> Manifest:
        """Parse the result of `to_json`; `ValidationError` if it is none, or was written by a newer release."""
        format = written.get("format") if isinstance(written, Mapping) else None
        if format != FORMAT:
            raise ValidationError(
                f"has format {format!r}, this release reads {FORMAT}",
                field="manifest",
                options=("read it with the release that wrote it", "render the prompt again"),
            )
        try:
            return _parse_manifest(written)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise ValidationError(f"is damaged: {error!r}", field="manifest") from error


# ── writing ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _tool_to_json(tool: Tool) -> dict[str, Json]:
    return {
        "name": tool.name,
        "description": tool.description,
        "parameters": dict(tool.parameters),
        "strict": tool.strict,
    }


def _index_word(word: str, words: dict[str, int]) -> int:
    return words.setdefault(word, len(words))


def _sent_to_json(message: Sent, index_by_entry: Mapping[str, int], words: dict[str, int]) -> dict[str, Json]:
    document: dict[str, Json] = {
        "path": _index_word(message.path, words),
        "role": message.role.value,
        "hash": message.hash,
        "tokens": message.tokens,
        "parts": [_part_to_json(part, index_by_entry) for part in message.parts],
        "name": message.name,
        "group": message.group,
        "rendition": "" if message.rendition == "whole" else message.rendition,
        "sources": [index_by_entry[source] for source in message.sources],
        "pieces": list(message.pieces),
        "moves": message.moves,
        "first": message.first,
        "last": 0 if message.last == message.first else message.last,
    }
    return {name: value for name, value in document.items() if value or name in ("path", "tokens")}


def _part_to_json(part: Whole | Written, index_by_entry: Mapping[str, int]) -> Json:
    """Write a whole part as [entry, part], a written one as an object."""
    if isinstance(part, Whole):
        return [index_by_entry[part.entry], part.part]
    document: dict[str, Json] = {} if part.kind == "text" else {"type": part.kind}
    for name, value in part.fields:
        document[name] = value
        if isinstance(value, tuple):
            document[name] = [_segment_to_json(segment, index_by_entry) for segment in value]
    return document


def _segment_to_json(segment: Segment, index_by_entry: Mapping[str, int]) -> Json:
    """Write a quote as [entry, start, end], and its field if that is not the content."""
    if isinstance(segment, str):
        return segment
    quote: list[Json] = [index_by_entry[segment.entry], segment.start, segment.end]
    return [*quote, segment.field] if segment.field else quote


def _candidate_to_json(candidate: Verdict, words: dict[str, int]) -> list[Json]:
    """Write a candidate as a row: six fields, then its scores unless they are all 0."""
    row: list[Json] = [
        candidate.id,
        int(candidate.included),
        _index_word(candidate.rule, words),
        _index_word(candidate.reason, words),
        _index_word("" if candidate.source is None else candidate.source.value, words),
        candidate.tokens,
    ]
    scores = (candidate.score, candidate.relevance, candidate.boost)
    if any(scores) or candidate.parts:
        parts = [[_index_word(name, words), value] for name, value in candidate.parts.items()]
        row += [*scores, parts]
    return row


def _omission_to_json(omission: Omission, words: dict[str, int]) -> list[Json]:
    word_indexes = [_index_word(word, words) for word in (omission.path, omission.rule, omission.reason)]
    return [list(omission.ids), *word_indexes, omission.tokens, int(omission.gone)]


# ── parsing ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _parse_manifest(document: Mapping[str, Json]) -> Manifest:
    """Parse a JSON object in which rows name entries and repeated words by their index in two tables."""
    entries = list(map(_require_text, document.get("entries", ())))
    words = list(map(_require_text, document.get("words", ())))

    def parse_rows(name: str, parse: Callable[..., Any], *tables: list[str]) -> tuple[Any, ...]:
        return tuple([parse(row, *tables) for row in document.get(name, ())])

    return Manifest(
        codec=_require_text(document["codec"]),
        model=_require_text(document["model"]),
        counter=_require_text(document.get("counter", "")),
        budget=_require_optional_number(document.get("budget")),
        limit=_require_optional_number(document.get("limit")),
        tokens=_require_number(document["tokens"]),
        upper_bound=_require_number(document["upper_bound"]),
        tools=parse_rows("tools", _parse_tool),
        marks=parse_rows("marks", _parse_mark),
        messages=parse_rows("messages", _parse_sent, entries, words),
        reads=parse_rows("reads", _parse_read),
        candidates=parse_rows("candidates", _parse_candidate, words),
        left=parse_rows("left", _parse_omission, words),
        steps=parse_rows("steps", _parse_step),
        redactions=parse_rows("redactions", _parse_redacted, entries),
        payload=_require_text(document.get("payload", "")),
        max_tokens=_require_optional_number(document.get("max_tokens")),
    )


def _parse_tool(document: Mapping[str, Json]) -> Tool:
    if not isinstance(document["parameters"], dict):
        raise TypeError("a tool without parameters")
    return Tool(
        name=_require_text(document["name"]),
        description=_require_text(document["description"]),
        parameters=document["parameters"],
        strict=bool(document["strict"]),
    )


def _parse_mark(row: Sequence[Json]) -> CacheMark:
    messages, id, version, ttl = row
    return CacheMark(
        messages=_require_number(messages),
        id=_require_text(id),
        version=_require_text(version),
        ttl=_require_optional_number(ttl),
    )


def _parse_sent(row: Mapping[str, Json], entries: list[str], words: list[str]) -> Sent:
    first = _require_number(row.get("first", 0))
    return Sent(
        path=words[row["path"]],
        role=Role(row["role"]),
        hash=_require_text(row["hash"]),
        tokens=_require_number(row["tokens"]),
        parts=tuple([_parse_part(part, entries) for part in row.get("parts", ())]),
        name=row.get("name"),
        group=row.get("group"),
        rendition=_require_text(row.get("rendition", "whole")),
        sources=tuple([entries[index] for index in row.get("sources", ())]),
        pieces=tuple(map(_require_text, row.get("pieces", ()))),
        moves=bool(row.get("moves", False)),
        first=first,
        last=_require_number(row.get("last", first)),
    )


def _parse_part(document: Json, entries: list[str]) -> Whole | Written:
    """Parse the result of `_part_to_json`."""
    if isinstance(document, list):
        entry, part = document
        return Whole(entries[entry], _require_number(part))
    fields: list[tuple[str, tuple[Segment, ...] | int | None]] = []
    for name, value in document.items():
        if name == "type":
            continue
        if isinstance(value, list):
            fields.append((name, tuple([_parse_segment(segment, entries) for segment in value])))
        elif value is None or isinstance(value, int):
            fields.append((name, value))
        else:
            raise TypeError(f"{type(value).__name__} in {name} of a part")
    return Written(document.get("type", "text"), tuple(sorted(fields)))


def _parse_segment(segment: Json, entries: list[str]) -> Segment:
    if isinstance(segment, str):
        return segment
    entry, start, end, *field = segment
    return Quote(entries[entry], _require_number(start), _require_number(end), *field)


def _parse_read(row: Sequence[Json]) -> Read:
    context, version, first, lineage, summary = row
    segments = tuple([(_require_text(owner), _require_number(last)) for owner, last in lineage])
    return Read(
        _require_text(context),
        _require_number(version),
        _require_number(first),
        segments,
        _require_text(summary),
    )


def _parse_candidate(row: Sequence[Json], words: list[str]) -> Verdict:
    id, included, rule, reason, source, tokens = row[:6]
    score, relevance, boost, parts = row[6:] or (0.0, 0.0, 0.0, ())
    return Verdict(
        id=_require_text(id),
        version=version_of_id(id),
        included=bool(included),
        rule=words[rule],
        source=Source(words[source]) if words[source] else None,
        relevance=float(relevance),
        boost=float(boost),
        score=float(score),
        parts={words[name]: float(value) for name, value in parts},
        tokens=_require_number(tokens),
        reason=words[reason],
    )


def part_of_request(role: Role, sources: Sequence[str], pieces: Sequence[object], rendition: str) -> str:
    """Return the part of a request that a message belongs to, as `Use` names it."""
    if pieces:
        return "recalled" if sources else "pins"
    if sources or rendition in ("summary", "placeholder"):
        return "history"
    return "system" if role in LEADING else "written"


def version_of_id(id: str) -> int:
    """Return the version of the entry with an id; 0 for the key of a pin and the path of a scope."""
    parsed = parse_entry_id(id)
    return 0 if parsed is None else parsed[1]


def _parse_omission(row: Sequence[Json], words: list[str]) -> Omission:
    ids, path, rule, reason, tokens, gone = row
    return Omission(
        tuple(map(_require_text, ids)),
        words[path],
        words[rule],
        words[reason],
        _require_number(tokens),
        bool(gone),
    )


def _parse_step(row: Sequence[Json]) -> Step:
    path, priority, strategy, before, after = row
    return Step(
        _require_text(path),
        int(priority),
        _require_text(strategy),
        _require_number(before),
        _require_number(after),
    )


def _parse_redacted(row: Sequence[Json], entries: list[str]) -> Redacted:
    index, mode, kinds = row
    counts = [(_require_text(kind), _require_number(count)) for kind, count in sorted(kinds.items())]
    return Redacted(entries[index], Privacy(mode), tuple(counts))


def _require_text(value: Json) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} where a text belongs")
    return value


def _require_number(value: Json) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise TypeError(f"{value!r} where a number belongs")
    return value


def _require_optional_number(value: Json) -> int | None:
    return None if value is None else _require_number(value)
