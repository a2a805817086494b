"""Validation of the lines of an exported log: the rules of the API, for complete entries.

A hash proves that a line was not changed since it was written. It does not prove who wrote it: anyone can compute the
hashes of a log of their own. So every field is validated as if a caller gave it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from acms.errors import ValidationError
from acms.log import summary_levels, trust, validation
from acms.log.active_entries import ASKED, MERGED, SEEN
from acms.log.doubt import MENTIONS
from acms.log.encoding import encode_base32, entry_id
from acms.log.merges import KEPT
from acms.log.settings import validate_settings
from acms.model import Context, Entry, Json, Kind, Origin, Span, State

LAST_VERSION = 2**32 - 1
"""A store packs versions into 32 bits."""
_NONCE = re.compile(r"[0-9a-hjkmnp-tv-z]{6}\Z")


def validate_context(context: Context, *, own_name: str | None = None) -> None:
    """Raise `ValidationError` with the field at fault of a context that is to be restored or copied.

    `own_name` is the name of the one session that may be in the reserved namespace of the service.
    """
    validation.validate_context_id(context.id, "id")
    if own_name is None or context.key != own_name:
        validation.validate_namespace(context.namespace)
    if context.key is not None and context.key not in validation.INNER:
        validation.validate_new_session_name(context.key, "key")
    validation.validate_name(context.counter, "counter")
    validation.validate_context_id(context.root, "root")
    if (context.parent is None) != (context.fork is None):
        raise ValidationError("a fork has a parent and a version, any other session neither", field="fork")
    if context.parent is None:
        if context.root != context.id or context.lineage:
            raise ValidationError(
                "a session that is no fork is its own root, and inherits nothing", field="root"
            )
    else:
        validation.validate_context_id(context.parent, "parent")
        validation.validate_integer(context.fork, "fork", maximum=LAST_VERSION)
        for owner, last in context.lineage:
            validation.validate_context_id(owner, "lineage")
            validation.validate_integer(last, "lineage", maximum=LAST_VERSION)
    validation.validate_integer(context.settings_rev, "settings_rev")
    validate_settings(context.settings)


def validate_entry(entry: Entry) -> None:
    """Raise `ValidationError` with the field at fault of an entry that is to be restored or copied."""
    validation.validate_integer(entry.version, "version", minimum=1, maximum=LAST_VERSION)
    _check_id(entry)
    validation.validate_integer(entry.batch, "batch", minimum=1, maximum=entry.version)
    validation.validate_integer(entry.tokens, "tokens", maximum=validation.PARTS * validation.BUDGET)
    validation.validate_integer(entry.total, "total")
    validation.validate_integer(entry.episode, "episode", maximum=entry.version)
    validation.validate_optional_name(entry.key, "key")
    validation.validate_optional_name(entry.actor, "actor")
    validation.validate_optional_name(entry.group, "group")
    if entry.closes is not None:
        validation.validate_text(entry.closes, "closes", limit=validation.METADATA_BYTES)
    _check_hashes(entry)
    _check_message(entry)
    validation.validate_markers(entry.markers)
    _check_spans(entry.replaces, "replaces", before=entry.version)
    if entry.covers:
        _check_spans([entry.covers], "covers", before=entry.version)
    for source in entry.sources:
        validation.validate_text(source, "sources", limit=validation.NAME_CHARS)
    validation.validate_metadata(entry.metadata)
    validation.serialize_document(dict(entry.data), "data")
    if entry.kind is not Kind.MESSAGE:  # these names belong to the other kinds
        for name, value in entry.data.items():
            if name in _DATA_CHECKS:
                _DATA_CHECKS[name](value, f"data.{name}")


def _check_id(entry: Entry) -> None:
    validation.validate_context_id(entry.context, "context")
    nonce = entry.id[-6:]
    if entry.id != entry_id(entry.kind, entry.context, entry.version, nonce) or not _NONCE.match(nonce):
        expected = f"{entry.kind.value[0]}_{entry.context[2:]}_{encode_base32(entry.version)}_ and six more"
        raise ValidationError(f"is not the id of this entry, which is {expected}", field="id")


def _check_hashes(entry: Entry) -> None:
    _check_length(entry.digest, "digest", 32)
    _check_length(entry.chain, "chain", 32)
    if entry.salt is not None:
        _check_length(entry.salt, "salt", 16)


def _check_length(value: bytes, field: str, length: int) -> None:
    if len(value) != length:
        raise ValidationError(f"must have {length} bytes, has {len(value)}", field=field)


def _check_message(entry: Entry) -> None:
    """Check the content of an entry, and that a message has a role and no other entry has one."""
    # Redaction may have lengthened a message that was within the limit when it was stored.
    validation.validate_text(entry.content, "content", limit=4 * validation.MESSAGE_BYTES)
    is_message = entry.kind is Kind.MESSAGE
    if is_message != (entry.role is not None):
        raise ValidationError("belongs to a message, and to nothing else", field="role")
    if entry.role is not None:
        validation.validate_stored_parts(entry.role, entry.parts)
        is_empty = not (entry.content.strip() or entry.parts or entry.data)
        if is_empty and entry.state is State.LIVE:
            raise ValidationError("must not be empty", field="content")
    elif entry.parts:
        raise ValidationError("belong to a message", field="parts")


def _check_spans(spans: Sequence[Span], field: str, *, before: int) -> None:
    for first, last in spans:
        if not 1 <= first <= last < before:
            raise ValidationError(f"{first}..{last} is not a span of earlier versions", field=field)


# ── data of facts, summaries, retractions ───────────────────────────────────────────────────────────────────────────


def _check_number(value: Json, field: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValidationError(f"must be a number, not {type(value).__name__}", field=field)


def _check_texts(value: Json, field: str) -> None:
    for text in validation.require_list(value, field):
        validation.validate_text(text, field)


def _check_time(value: Json, field: str) -> None:
    try:
        datetime.fromisoformat(validation.validate_text(value, field))
    except ValueError as error:
        raise ValidationError(f"{value!r} is not an ISO 8601 time", field=field) from error


def _check_counts(value: Json, field: str) -> None:
    """Check an object that has whole numbers by name."""
    for name, count in validation.require_object(value, field).items():
        validation.validate_integer(count, f"{field}.{name}")


def _check_lost(value: Json, field: str) -> None:
    lost = validation.require_object(value, field)
    _check_counts(lost.get("counts", {}), f"{field}.counts")
    _check_texts(lost.get("ids"), f"{field}.ids")


def _check_levels(value: Json, field: str) -> None:
    for index, item in enumerate(validation.require_list(value, field)):
        level = validation.require_object(item, f"{field}[{index}]")
        validation.validate_text(level.get("content"), f"{field}[{index}].content")
        validation.validate_integer(level.get("tokens"), f"{field}[{index}].tokens")


def _check_demoted(value: Json, field: str) -> None:
    """Check pairs of the id of a demoted message and its spans of characters that are still valid."""
    for row in validation.require_list(value, field):
        if len(validation.require_list(row, field)) != 2:
            raise ValidationError("must hold pairs of an id and its spans", field=field)
        id, spans = row
        validation.validate_text(id, field)
        for span in validation.require_list(spans, field):
            if len(validation.require_list(span, field)) != 2:
                raise ValidationError("must hold spans of two numbers", field=field)
            for end in span:
                validation.validate_integer(end, field)


def _check_origin(value: Json, field: str) -> None:
    validation.parse_choice(value, Origin, field)


_TEXTS = "subject attribute value cardinality fact_type scope reason summarizer job".split()
_INTEGERS = "before after preserved removed level upto episode".split()
_DATA_CHECKS: Mapping[str, Callable[[Json, str], object]] = {
    **dict.fromkeys(_TEXTS, validation.validate_text),
    **dict.fromkeys(_INTEGERS, validation.validate_integer),
    **dict.fromkeys(("valid_from", "valid_to", "said"), _check_time),
    **dict.fromkeys(("names", "depends_on", "renews", MENTIONS, KEPT), _check_texts),
    **dict.fromkeys(("negative", ASKED), validation.require_flag),
    MERGED: validation.validate_text,
    SEEN: _check_counts,
    "confidence": _check_number,
    "policy": validation.require_object,
    "lost": _check_lost,
    "demotes": _check_demoted,
    summary_levels.LEVELS: _check_levels,
    trust.TRUST: _check_origin,
}
"""Checks for the values that ACMS itself writes into the data of an entry, by name; other names hold plain JSON."""
