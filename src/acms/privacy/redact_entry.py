"""Redaction of entries, for every sink that shows, sends or distils text.

`block` keeps ids, roles, times, markers and the frame of tool calls, and replaces the text with `WITHHELD`. `redact`
and `allow` replace the findings of `acms.privacy.detect` with marks: in the content, in every part, in the other stored
fields. JSON stays valid JSON. Tokens are counted again.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from acms.log.compacted import REDACTED, compaction_text
from acms.log.encoding import quote_json
from acms.log.known import hash_sensitive_key
from acms.log.summary_levels import LEVELS, Level, read_shorter_levels, to_json
from acms.log.validation import canonical_text
from acms.model import (
    EMPTY,
    Draft,
    Entry,
    Json,
    Kind,
    Media,
    Part,
    Privacy,
    Raw,
    Reasoning,
    Redaction,
    State,
    Text,
    ToolCall,
    ToolResult,
)
from acms.privacy.detect import Redacted, find_sensitive_spans, redact_text, redaction_mark
from acms.privacy.modes import Cleared

if TYPE_CHECKING:
    from acms.knowledge import Fact

WITHHELD = "[withheld]"
"""Replaces a text that must not leave."""
TOLD = ("subject", "attribute", "value", "names")
"""Fields of a fact that are text."""
_DEEP = 3
"""JSON within strings of JSON is read to this depth."""
_ROUNDS = 4
#: A string or a bare value of JSON.
_TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+"|[^\s"{}\[\],:]++')
#: Fields of a vendor's item that are ids and proofs, not text: the vendor refuses changed ones.
_OPAQUE = frozenset(("id", "call_id", "type", "role", "status", "encrypted_content", "signature"))
_NOTHING: frozenset[str] = frozenset()

Count = Callable[[str], int]


class RedactedMessage(NamedTuple):
    """The content of a message after redaction."""

    content: str
    parts: tuple[Part, ...]
    #: Number of removals by kind.
    kinds: Counter[str]


# ── entries ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def apply_privacy_mode(entry: Entry, mode: Privacy, count: Count) -> Entry:
    """Redact an entry under a mode; return the entry itself if nothing has to be removed.

    An erased or expired entry has no content to hide and is returned unchanged.
    """
    if entry.state is not State.LIVE or isinstance(entry, Cleared):
        return entry
    if mode is Privacy.BLOCK:
        return _withhold_text(entry, count)
    said = redact_message(entry.content, entry.parts, mode)
    kinds = said.kinds
    data, found = _redact_fact_fields(entry, mode)
    kinds += found
    data, found = _redact_summary_levels(data, mode, count)
    kinds += found
    metadata, found = redact_mapping(entry.metadata, mode)
    kinds += found
    actor = redact_name(entry.actor, mode)
    markers = tuple([one for one in entry.markers if not find_sensitive_spans(one, mode)])
    key = redact_name(entry.key, mode)
    unsafe = (actor, markers, key) != (entry.actor, entry.markers, entry.key)
    if not kinds and not unsafe:
        return entry
    return _build_cleared(
        entry,
        mode,
        kinds,
        content=said.content,
        parts=said.parts,
        tokens=_count_tokens(said, count) if said.kinds else entry.tokens,
        data=data,
        metadata=metadata,
        actor=actor,
        markers=markers,
        key=key,
    )


def _withhold_text(entry: Entry, count: Count) -> Entry:
    parts: list[Part] = []
    for part in entry.parts:
        if isinstance(part, ToolCall):
            parts.append(ToolCall(part.call_id, part.name))
        elif isinstance(part, ToolResult):
            parts.append(ToolResult(part.call_id, WITHHELD, part.is_error))
    if parts and any(isinstance(part, Text) for part in entry.parts):
        parts.insert(0, Text(WITHHELD))
    said = bool(entry.content or entry.parts)
    content = canonical_text(parts) if parts else WITHHELD if said else ""
    data = entry.data
    if entry.kind is Kind.FACT:
        data = {field: value for field, value in data.items() if field not in TOLD}
    if LEVELS in data:
        data = {field: value for field, value in data.items() if field != LEVELS}
    return _build_cleared(
        entry,
        Privacy.BLOCK,
        Counter(),
        content=content,
        parts=tuple(parts),
        tokens=count(content),
        data=data,
        metadata=EMPTY,
        actor=redact_name(entry.actor, Privacy.REDACT),
        markers=tuple([one for one in entry.markers if not find_sensitive_spans(one)]),
        key=None,
    )


def _build_cleared(entry: Entry, mode: Privacy, kinds: Counter[str], **changes: Any) -> Cleared:
    values = {field.name: getattr(entry, field.name) for field in fields(Entry)}
    values.update(changes, privacy=mode)
    moves: tuple[tuple[int, int, int], ...] = ()
    if mode is not Privacy.BLOCK and values["content"] != entry.content:
        moves = _find_replaced_spans(entry, values["content"], mode)
    return Cleared(**values, redaction=Redaction(mode, tuple(sorted(kinds.items()))), moves=moves)


def _find_replaced_spans(entry: Entry, content: str, mode: Privacy) -> tuple[tuple[int, int, int], ...]:
    """Return the replaced spans of a content, or one span that contains them all for a message with parts."""
    if not entry.parts:
        return tuple(
            [
                (one.start, one.end, len(redaction_mark(one.kind)))
                for one in find_sensitive_spans(entry.content, mode)
            ]
        )
    before, most = entry.content, min(len(entry.content), len(content))
    start = next((at for at in range(most) if before[at] != content[at]), most)
    end = next((at for at in range(most - start) if before[-1 - at] != content[-1 - at]), most - start)
    return ((start, len(before) - end, len(content) - end - start),)


def _count_tokens(said: RedactedMessage, count: Count) -> int:
    return count(said.content) + sum([part.tokens for part in said.parts if isinstance(part, Media)])


def _redact_fact_fields(entry: Draft, mode: Privacy) -> tuple[Mapping[str, Json], Counter[str]]:
    """Redact the text fields of a fact; the data of other kinds is written by the engine and stays as is."""
    if entry.kind is not Kind.FACT:
        return entry.data, Counter()
    told = {field: entry.data[field] for field in TOLD if field in entry.data}
    clean, kinds = redact_mapping(told, mode)
    return ({**entry.data, **clean} if kinds else entry.data), kinds


def _redact_summary_levels(
    data: Mapping[str, Json], mode: Privacy, count: Count
) -> tuple[Mapping[str, Json], Counter[str]]:
    """Redact the shorter texts of a summary; other data is returned unchanged."""
    kinds: Counter[str] = Counter()
    if LEVELS not in data:
        return data, kinds
    made: list[Level] = []
    for one in read_shorter_levels(data):
        clean = redact_text(one.content, mode)
        kinds += _count_kinds(clean)
        made.append(Level(clean.text, count(clean.text)) if clean.spans else one)
    return ({**data, LEVELS: to_json(made)} if kinds else data), kinds


def redact_fact(found: Fact, entry: Entry) -> Fact:
    """Return a fact with the redactions of its entry."""
    if not isinstance(entry, Cleared):
        return found
    data = entry.data
    return replace(
        found,
        content=entry.content,
        tokens=entry.tokens,
        subject=str(data.get("subject", "")),
        attribute=str(data.get("attribute", "")),
        value=str(data.get("value", "")),
        names=tuple(data.get("names", ())),
    )


# ── drafts ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def redact_for_storage(
    content: str,
    parts: tuple[Part, ...],
    metadata: Mapping[str, Json],
    actor: str | None,
    key: str | None,
    mode: Privacy,
) -> tuple[str, tuple[Part, ...], Mapping[str, Json], str | None, str | None]:
    """Redact a message before it is stored; everything derived from it is derived from the redacted message.

    A sensitive key is replaced by its hash, so repeated keys are still recognized.
    """
    said = redact_message(content, parts, mode)
    if redact_name(key, mode) != key:
        key = hash_sensitive_key(key or "")
    return said.content, said.parts, redact_mapping(metadata, mode)[0], redact_name(actor, mode), key


def redact_for_embedding(draft: Draft, mode: Privacy) -> Draft | None:
    """Return the draft that is sent to an embedder, or None under `block`."""
    if mode is Privacy.BLOCK:
        return None
    content = redact_text(draft.content, mode).text
    data, _ = _redact_fact_fields(draft, mode)
    actor = redact_name(draft.actor, mode)
    if (content, data, actor) == (draft.content, draft.data, draft.actor):
        return draft
    return replace(draft, content=content, data=data, actor=actor)


# ── texts ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def redact_message(content: str, parts: Sequence[Part], mode: Privacy) -> RedactedMessage:
    """Redact the content of a message; if it has parts, the content is rebuilt from the redacted parts."""
    if not parts:
        clean = redact_text(content, mode)
        return RedactedMessage(clean.text, (), _count_kinds(clean))
    kinds: Counter[str] = Counter()
    kept: list[Part] = []
    for part in parts:
        made, found = _redact_part(part, mode)
        kinds += found
        if made is not None:
            kept.append(made)
    if not kinds:
        return RedactedMessage(content, tuple(parts), kinds)
    return RedactedMessage(canonical_text(kept), tuple(kept), kinds)


def _redact_part(part: Part, mode: Privacy) -> tuple[Part | None, Counter[str]]:
    """Redact a part; sensitive reasoning is removed whole, because changed text would not match its signature."""
    if isinstance(part, Text):
        clean = redact_text(part.text, mode)
        return (Text(clean.text) if clean.spans else part), _count_kinds(clean)
    if isinstance(part, Reasoning):
        kinds = _count_kinds(redact_text(part.text, mode))
        return (None if kinds else part), kinds
    if isinstance(part, ToolCall):
        text, kinds = text_or_json(part.arguments, mode)
        return (replace(part, arguments=text) if kinds else part), kinds
    if isinstance(part, ToolResult):
        text, kinds = text_or_json(part.output, mode)
        return (replace(part, output=text) if kinds else part), kinds
    if isinstance(part, Media):
        if part.ref.startswith("data:"):
            return part, Counter()
        clean = redact_text(part.ref, mode)
        return (Text(clean.text) if clean.spans else part), _count_kinds(clean)
    text, kinds = text_or_json(part.json, mode, opaque=_OPAQUE)
    if not kinds:
        return part, kinds
    altered = REDACTED if compaction_text(part) is not None else ""  # it no longer matches its signature
    return Raw(altered + part.vendor.removeprefix(altered), text), kinds


def redact_name(value: str | None, mode: Privacy) -> str | None:
    """Return a name, or None if it contains something sensitive."""
    return None if value is None or find_sensitive_spans(value, mode) else value


def redact_mapping(values: Mapping[str, Json], mode: Privacy) -> tuple[Mapping[str, Json], Counter[str]]:
    """Redact the values of a JSON object; return them with the removals by kind."""
    if not values:
        return values, Counter()
    written = json.dumps(dict(values), ensure_ascii=False)
    text, kinds = _redact_document(written, mode, _NOTHING, 0)
    return (json.loads(text) if kinds else values), kinds


def text_or_json(
    text: str, mode: Privacy, *, opaque: frozenset[str] = _NOTHING, depth: int = 0
) -> tuple[str, Counter[str]]:
    """Redact a text; return it with the removals by kind. A JSON object or list stays valid JSON.

    `opaque` names fields whose values are left unchanged.
    """
    if depth < _DEEP and text.lstrip()[:1] in ("{", "[") and _is_json(text):
        return _redact_document(text, mode, opaque, depth)
    clean = redact_text(text, mode)
    return clean.text, _count_kinds(clean)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _redact_document(
    text: str, mode: Privacy, opaque: frozenset[str], depth: int
) -> tuple[str, Counter[str]]:
    """Redact the decoded strings of a JSON document, then its raw text.

    Only the first pass sees through escapes; only the second sees the name beside a value.
    """
    kinds: Counter[str] = Counter()
    cuts: list[tuple[int, int, str]] = []
    for start, end, said, closed in _iter_strings(text, opaque):
        if closed:
            continue
        clean, found = text_or_json(said, mode, opaque=opaque, depth=depth + 1)
        if found:
            cuts.append((start, end, quote_json(clean)))
            kinds += found
    text = _replace_spans(text, cuts)
    for _ in range(_ROUNDS):
        shut = (
            [(start, end) for start, end, _, closed in _iter_strings(text, opaque) if closed]
            if opaque
            else []
        )
        found_here = [
            one
            for one in find_sensitive_spans(text, mode)
            if not any(start <= one.start and one.end <= end for start, end in shut)
        ]
        if not found_here:
            break
        kinds.update(one.kind for one in found_here)
        shorter = _replace_spans(text, [(one.start, one.end, redaction_mark(one.kind)) for one in found_here])
        if not _is_json(shorter):
            shorter = _replace_spans(
                text, _widen_to_values(text, [(one.start, one.end, one.kind) for one in found_here])
            )
        text = shorter
    return text, kinds


def _iter_strings(text: str, opaque: frozenset[str]) -> Iterator[tuple[int, int, str, bool]]:
    """Yield the strings of a document: start, end, decoded text, and whether it is the value of an opaque field."""
    field = ""
    for token in _TOKEN.finditer(text):
        if token[0][0] != '"':
            field = ""
            continue
        said = json.loads(token[0])
        named = text[token.end() : token.end() + 8].lstrip().startswith(":")
        yield token.start(), token.end(), said, not named and field in opaque
        field = said if named else ""


def _widen_to_values(text: str, found: Sequence[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    """Return the strings and values that overlap some spans, each with a redaction mark as its replacement."""
    hit: list[tuple[int, int, str]] = []
    for token in _TOKEN.finditer(text):
        kind = next((kind for start, end, kind in found if start < token.end() and token.start() < end), None)
        if kind is not None:
            hit.append((token.start(), token.end(), quote_json(redaction_mark(kind))))
    return hit


def _replace_spans(text: str, found: Sequence[tuple[int, int, str]]) -> str:
    parts: list[str] = []
    at = 0
    for start, end, instead in found:
        parts += (text[at:start], instead)
        at = end
    return "".join([*parts, text[at:]])


def _count_kinds(found: Redacted) -> Counter[str]:
    return Counter(one.kind for one in found.spans)
