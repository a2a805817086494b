"""Redaction of entries, for every sink that shows, sends or distils text.

`block` keeps ids, roles, times, markers and the frame of tool calls, and replaces the text with `WITHHELD`. `redact`
and `allow` replace the findings of `acms.privacy.detect` with marks: in the content, in every part, in the other stored
fields. JSON stays valid JSON. Tokens are counted again.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from acms.log.compacted import REDACTED_VENDOR_PREFIX, compaction_text
from acms.log.encoding import quote_json
from acms.log.known_messages import hash_sensitive_key
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
from acms.privacy.detect import (
    SEARCH_ROUNDS,
    RedactedText,
    SensitiveSpan,
    find_sensitive_spans,
    redact_text,
    redaction_mark,
    replace_spans,
)
from acms.privacy.modes import RedactedEntry

if TYPE_CHECKING:
    from acms.knowledge import Fact

WITHHELD = "[withheld]"
"""Replaces a text that must not leave."""
FACT_TEXTS = ("subject", "attribute", "value", "names")
"""Fields of a fact that are text."""
#: A string or a bare value of JSON.
_TOKEN = re.compile(r'"(?>(?:[^"\\]++|\\.)*)"|[^\s"{}\[\],:]++')
_COLON = re.compile(r"\s*:")
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
    if entry.state is not State.LIVE or isinstance(entry, RedactedEntry):
        return entry
    if mode is Privacy.BLOCK:
        return _withhold_text(entry, count)
    message = redact_message(entry.content, entry.parts, mode)
    data, fact_kinds = _redact_fact_fields(entry, mode)
    data, level_kinds = _redact_summary_levels(data, mode, count)
    metadata, metadata_kinds = redact_mapping(entry.metadata, mode)
    kinds = message.kinds + fact_kinds + level_kinds + metadata_kinds
    actor = redact_name(entry.actor, mode)
    markers = _safe_markers(entry, mode)
    key = redact_name(entry.key, mode)
    if not kinds and (actor, markers, key) == (entry.actor, entry.markers, entry.key):
        return entry
    return _build_redacted_entry(
        entry,
        mode,
        kinds,
        content=message.content,
        parts=message.parts,
        tokens=_count_tokens(message, count) if message.kinds else entry.tokens,
        data=data,
        metadata=metadata,
        actor=actor,
        markers=markers,
        key=key,
    )


def _safe_markers(entry: Entry, mode: Privacy) -> tuple[str, ...]:
    return tuple(marker for marker in entry.markers if not find_sensitive_spans(marker, mode))


def _withhold_text(entry: Entry, count: Count) -> Entry:
    """Return an entry under `block`: only its frame, such as the names and ids of calls, without any text."""
    parts: list[Part] = []
    for part in entry.parts:
        if isinstance(part, ToolCall):
            parts.append(ToolCall(part.call_id, part.name))
        elif isinstance(part, ToolResult):
            parts.append(ToolResult(part.call_id, WITHHELD, part.is_error))
    # Show that there was a text beside the calls.
    if parts and any(isinstance(part, Text) for part in entry.parts):
        parts.insert(0, Text(WITHHELD))
    content = ""
    if parts:
        content = canonical_text(parts)
    elif entry.content or entry.parts:
        content = WITHHELD
    texts = (*FACT_TEXTS, LEVELS) if entry.kind is Kind.FACT else (LEVELS,)
    return _build_redacted_entry(
        entry,
        Privacy.BLOCK,
        Counter(),
        content=content,
        parts=tuple(parts),
        tokens=count(content),
        data={field: value for field, value in entry.data.items() if field not in texts},
        metadata=EMPTY,
        actor=redact_name(entry.actor, Privacy.REDACT),
        markers=_safe_markers(entry, Privacy.REDACT),
        key=None,
    )


def _build_redacted_entry(entry: Entry, mode: Privacy, kinds: Counter[str], **changes: Any) -> RedactedEntry:
    """Return a redacted entry with changed fields, what was removed, and where its content moved."""
    values = {field.name: getattr(entry, field.name) for field in fields(Entry)}
    values.update(changes, privacy=mode)
    moves: tuple[tuple[int, int, int], ...] = ()
    if mode is not Privacy.BLOCK and values["content"] != entry.content:
        moves = _find_replaced_spans(entry, values["content"], mode)
    return RedactedEntry(**values, redaction=Redaction(mode, tuple(sorted(kinds.items()))), moves=moves)


def _find_replaced_spans(entry: Entry, content: str, mode: Privacy) -> tuple[tuple[int, int, int], ...]:
    """Return the replaced spans of a content, or one span that contains them all for a message with parts."""
    original = entry.content
    if not entry.parts:
        spans = find_sensitive_spans(original, mode)
        return tuple((span.start, span.end, len(redaction_mark(span.kind))) for span in spans)
    start = _common_prefix_length(original, content)
    end = _common_prefix_length(reversed(original[start:]), reversed(content[start:]))
    return ((start, len(original) - end, len(content) - end - start),)


def _common_prefix_length(first: Iterable[str], second: Iterable[str]) -> int:
    """Return how many characters two texts have in common at their start."""
    count = 0
    for first_character, second_character in zip(first, second, strict=False):
        if first_character != second_character:
            break
        count += 1
    return count


def _count_tokens(message: RedactedMessage, count: Count) -> int:
    return count(message.content) + sum(part.tokens for part in message.parts if isinstance(part, Media))


def _redact_fact_fields(entry: Draft, mode: Privacy) -> tuple[Mapping[str, Json], Counter[str]]:
    """Redact the text fields of a fact; the data of other kinds is written by the engine and stays as is."""
    if entry.kind is not Kind.FACT:
        return entry.data, Counter()
    texts = {field: entry.data[field] for field in FACT_TEXTS if field in entry.data}
    redacted, kinds = redact_mapping(texts, mode)
    return ({**entry.data, **redacted} if kinds else entry.data), kinds


def _redact_summary_levels(
    data: Mapping[str, Json], mode: Privacy, count: Count
) -> tuple[Mapping[str, Json], Counter[str]]:
    """Redact the shorter texts of a summary; other data is returned unchanged."""
    kinds: Counter[str] = Counter()
    if LEVELS not in data:
        return data, kinds
    levels: list[Level] = []
    for level in read_shorter_levels(data):
        redacted = redact_text(level.content, mode)
        kinds += _count_kinds(redacted)
        levels.append(Level(redacted.text, count(redacted.text)) if redacted.spans else level)
    return ({**data, LEVELS: to_json(levels)} if kinds else data), kinds


def redact_fact(fact: Fact, entry: Entry) -> Fact:
    """Return a fact with the redactions of its entry."""
    if not isinstance(entry, RedactedEntry):
        return fact
    data = entry.data
    return replace(
        fact,
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
    redacted = redact_message(content, parts, mode)
    if redact_name(key, mode) != key:
        key = hash_sensitive_key(key or "")
    return redacted.content, redacted.parts, redact_mapping(metadata, mode)[0], redact_name(actor, mode), key


def redact_draft_for_storage(draft: Draft, mode: Privacy) -> Draft:
    """Return a draft of any kind as it is stored under a mode."""
    if draft.kind is not Kind.MESSAGE:
        return redact_for_embedding(draft, mode) or draft
    content, parts, metadata, actor, key = redact_for_storage(
        draft.content, draft.parts, draft.metadata, draft.actor, draft.key, mode
    )
    return replace(draft, content=content, parts=parts, metadata=metadata, actor=actor, key=key)


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
        redacted = redact_text(content, mode)
        return RedactedMessage(redacted.text, (), _count_kinds(redacted))
    kinds: Counter[str] = Counter()
    remaining: list[Part] = []
    for part in parts:
        redacted_part, part_kinds = _redact_part(part, mode)
        kinds += part_kinds
        if redacted_part is not None:
            remaining.append(redacted_part)
    if not kinds:
        return RedactedMessage(content, tuple(parts), kinds)
    return RedactedMessage(canonical_text(remaining), tuple(remaining), kinds)


def _redact_part(part: Part, mode: Privacy) -> tuple[Part | None, Counter[str]]:
    """Return a part without the sensitive text, and the removals by kind; a part without any is returned unchanged.

    Sensitive reasoning is removed whole (None), because changed text would not match its signature.
    """
    redacted: Part | None
    match part:
        case Text():
            text, kinds = _redact_plain_text(part.text, mode)
            redacted = Text(text)
        case Reasoning():
            _, kinds = _redact_plain_text(part.text, mode)
            redacted = None
        case Media():
            is_inline = part.ref.startswith("data:")
            text, kinds = _redact_plain_text("" if is_inline else part.ref, mode)
            redacted = Text(text)  # a changed address leads nowhere: only its text stays
        case ToolCall():
            text, kinds = redact_text_or_json(part.arguments, mode)
            redacted = replace(part, arguments=text)
        case ToolResult():
            text, kinds = redact_text_or_json(part.output, mode)
            redacted = replace(part, output=text)
        case Raw():
            text, kinds = redact_text_or_json(part.json, mode, opaque=_OPAQUE)
            vendor = part.vendor
            # A provider's signature of its compaction does not fit changed text. Under a vendor with this prefix, which
            # an earlier redaction may have set, no codec sends the item back unchanged.
            if compaction_text(part) is not None:
                vendor = REDACTED_VENDOR_PREFIX + vendor.removeprefix(REDACTED_VENDOR_PREFIX)
            redacted = Raw(vendor, text)
    return (redacted if kinds else part), kinds


def _redact_plain_text(text: str, mode: Privacy) -> tuple[str, Counter[str]]:
    redacted = redact_text(text, mode)
    return redacted.text, _count_kinds(redacted)


def redact_name(value: str | None, mode: Privacy) -> str | None:
    """Return a name, or None if it contains sensitive text."""
    return None if value is None or find_sensitive_spans(value, mode) else value


def redact_mapping(values: Mapping[str, Json], mode: Privacy) -> tuple[Mapping[str, Json], Counter[str]]:
    """Redact the values of a JSON object; return them with the removals by kind."""
    if not values:
        return values, Counter()
    serialized = json.dumps(dict(values), ensure_ascii=False)
    text, kinds = _redact_document(serialized, mode, opaque=_NOTHING, depth=0)
    return (json.loads(text) if kinds else values), kinds


def redact_text_or_json(
    text: str, mode: Privacy, *, opaque: frozenset[str] = _NOTHING, depth: int = 0
) -> tuple[str, Counter[str]]:
    """Redact a text; return it with the removals by kind. A JSON object or list stays valid JSON.

    `opaque` names fields whose values are left unchanged.
    """
    # Deepest in practice: a vendor's item holds a tool call, whose arguments hold JSON as text.
    if depth < 3 and text.lstrip()[:1] in ("{", "[") and _is_json(text):
        return _redact_document(text, mode, opaque=opaque, depth=depth)
    return _redact_plain_text(text, mode)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _redact_document(
    text: str, mode: Privacy, *, opaque: frozenset[str], depth: int
) -> tuple[str, Counter[str]]:
    """Redact the decoded strings of a JSON document, then its raw text; return it with the removals by kind.

    Only the first pass sees through escapes; only the second sees the name beside a value. `opaque` names fields whose
    values are left unchanged, and `depth` counts the documents around this one.
    """
    kinds: Counter[str] = Counter()
    replacements: list[tuple[int, int, str]] = []
    for start, end, decoded, is_opaque in _iter_strings(text, opaque):
        if is_opaque:
            continue
        redacted, string_kinds = redact_text_or_json(decoded, mode, opaque=opaque, depth=depth + 1)
        if string_kinds:
            replacements.append((start, end, quote_json(redacted)))
            kinds += string_kinds
    text = replace_spans(text, replacements)
    for _ in range(SEARCH_ROUNDS):
        spans = _find_spans_outside(text, mode, opaque)
        if not spans:
            break
        kinds.update(span.kind for span in spans)
        marked_text = replace_spans(
            text, [(span.start, span.end, redaction_mark(span.kind)) for span in spans]
        )
        # A span may reach across quotes or commas. Then the whole strings and values are replaced.
        text = marked_text if _is_json(marked_text) else replace_spans(text, _widen_to_values(text, spans))
    return text, kinds


def _find_spans_outside(text: str, mode: Privacy, opaque: frozenset[str]) -> list[SensitiveSpan]:
    """Return the sensitive spans of a document that are not inside the value of an opaque field."""
    spans = find_sensitive_spans(text, mode)
    if not spans or not opaque:
        return spans
    values = [(start, end) for start, end, _, is_opaque in _iter_strings(text, opaque) if is_opaque]
    return [
        span for span in spans if not any(start <= span.start and span.end <= end for start, end in values)
    ]


def _iter_strings(text: str, opaque: frozenset[str]) -> Iterator[tuple[int, int, str, bool]]:
    """Yield the strings of a document: start, end, decoded text, and whether it is the value of an opaque field."""
    field = ""
    for token in _TOKEN.finditer(text):
        if not token[0].startswith('"'):
            field = ""
            continue
        decoded = json.loads(token[0])
        is_name = _COLON.match(text, token.end()) is not None
        yield token.start(), token.end(), decoded, not is_name and field in opaque
        field = decoded if is_name else ""


def _widen_to_values(text: str, spans: Sequence[SensitiveSpan]) -> list[tuple[int, int, str]]:
    """Return the strings and values that overlap some spans, each with a redaction mark as its replacement."""
    replacements: list[tuple[int, int, str]] = []
    for token in _TOKEN.finditer(text):
        for span in spans:
            if span.start < token.end() and token.start() < span.end:
                replacements.append((token.start(), token.end(), quote_json(redaction_mark(span.kind))))
                break
    return replacements


def _count_kinds(redacted: RedactedText) -> Counter[str]:
    return Counter(span.kind for span in redacted.spans)
