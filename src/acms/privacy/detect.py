"""Privacy: find the sensitive spans of a text and redact them before every sink.

Clearly sensitive spans are removed even under `allow`: secrets, keys, cards, bank accounts. `redact` also removes email
addresses and telephone numbers. Under `block` no text leaves at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from acms.model import Privacy
from acms.privacy import identity_numbers, personal_data, secret_formats, separated_secrets
from acms.privacy.detector_types import Detection, ScanBudget, ScanBudgetExceeded
from acms.privacy.named_secrets import find_named_secrets, lower_keeping_offsets

RULES_VERSION = "2026-11-29"
"""Version of the rules: the date of the last change to their findings."""

#: Kinds from the most specific to the least: the first one names a merged span.
KINDS = (
    "private_key", "connection_string", "jwt", "api_key", "iban", "credit_card", "national_id", "passport",
    "client_secret", "password", "bearer_token", "token", "secret", "email", "phone",
)  # fmt: skip
_RANK = {kind: rank for rank, kind in enumerate(KINDS)}
#: Kinds that identify a person but grant no access: they are removed only under `redact`.
PERSONAL = frozenset(("email", "phone"))
_REDACTION_MARK = re.compile(rf"\[REDACTED: (?:{'|'.join(KINDS)})\]")
#: Enough digits for a personal number, with possible separators.
_DIGITS = re.compile(r"[0-9](?:[^0-9]{0,4}+[0-9]){5}")
SEARCH_ROUNDS = 4
"""Number of searches of a text. Each removal changes the surroundings of the rest; real texts need two searches."""
_MIN_CHARACTERS = 6
"""Characters of the shortest text in which a rule can match."""


class SensitiveSpan(NamedTuple):
    """A sensitive span of a text."""

    #: Offset of its first character.
    start: int
    #: Offset after its last character.
    end: int
    #: One of `KINDS`.
    kind: str
    #: Whether it is removed under `allow`, too.
    clear: bool


class RedactedText(NamedTuple):
    """A redacted text, and the spans that were removed from it."""

    text: str
    #: In order, without overlaps; the offsets are those of the original text.
    spans: tuple[SensitiveSpan, ...]


def redaction_mark(kind: str) -> str:
    """Return the mark that replaces a sensitive span."""
    return f"[REDACTED: {kind}]"


def find_sensitive_spans(text: str, mode: Privacy = Privacy.REDACT) -> list[SensitiveSpan]:
    """Return the spans that `redact_text` removes under a mode, in order, without overlaps.

    A removal changes the surroundings of the remaining text, so that is searched again until nothing is found. Pieces
    that would need more than four rounds are removed whole; a text that exceeds the work limit for its length is
    sensitive as a whole.
    """
    # The shortest word in which a rule matches is `rootpw` with a value.
    is_word = len(text) < 9 and text.isalnum() and text.isascii()
    if is_word and not _DIGITS.search(text):
        return []  # a short cut: most names are one word, and a reply checks hundreds of names
    try:
        return _search_until_clean(text, mode, ScanBudget(len(text)))
    except ScanBudgetExceeded:
        return [SensitiveSpan(0, len(text), "secret", clear=True)]


def _search_until_clean(text: str, mode: Privacy, scan_budget: ScanBudget) -> list[SensitiveSpan]:
    """Search a text, then the pieces between the findings, `SEARCH_ROUNDS` times; skip existing redaction marks."""
    sensitive_spans: list[SensitiveSpan] = []
    pieces = [(0, len(text))]
    if "[REDACTED: " in text:
        pieces = _split_around(0, len(text), [match.span() for match in _REDACTION_MARK.finditer(text)])
    for round in range(SEARCH_ROUNDS):
        remaining: list[tuple[int, int]] = []
        for start, end in pieces:
            spans = _merge_overlaps(_run_detectors(text[start:end], mode, scan_budget), start)
            if not spans:
                continue
            if round == SEARCH_ROUNDS - 1:  # still not clean: remove the whole piece
                spans = [SensitiveSpan(start, end, spans[0].kind, clear=True)]
            sensitive_spans += spans
            remaining += _split_around(start, end, [(span.start, span.end) for span in spans])
        pieces = remaining
    sensitive_spans.sort()
    return sensitive_spans


def _split_around(start: int, end: int, spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the pieces of a text between some spans that are long enough for a rule to match."""
    starts = [start, *(span_end for _, span_end in spans)]
    ends = [*(span_start for span_start, _ in spans), end]
    return [piece for piece in zip(starts, ends, strict=True) if piece[1] - piece[0] >= _MIN_CHARACTERS]


def redact_text(text: str, mode: Privacy) -> RedactedText:
    """Replace the sensitive spans of a text with marks; under `block` the result is empty.

    Redacting a redacted text again does not change it. Count its tokens again.
    """
    if mode == Privacy.BLOCK:
        return RedactedText("", ())
    spans = find_sensitive_spans(text, mode)
    if not spans:
        return RedactedText(text, ())
    replacements = [(span.start, span.end, redaction_mark(span.kind)) for span in spans]
    return RedactedText(replace_spans(text, replacements), tuple(spans))


def replace_spans(text: str, replacements: Iterable[tuple[int, int, str]]) -> str:
    """Replace spans of a text: each with its start, its end and the new text, in order, without overlaps."""
    parts: list[str] = []
    offset = 0
    for start, end, replacement in replacements:
        parts += (text[offset:start], replacement)
        offset = end
    parts.append(text[offset:])
    return "".join(parts)


def safe_key(key: str) -> bool:
    """Return whether a key, an id or an entity contains nothing sensitive and may be shown unchanged."""
    return not find_sensitive_spans(key)


def _run_detectors(text: str, mode: Privacy, scan_budget: ScanBudget) -> list[Detection]:
    """Return the findings of all detectors that may find something: cheap tests of the text rule out the others."""
    lower_text = lower_keeping_offsets(text)
    detections = [
        *secret_formats.find_tokens(text, scan_budget),
        *find_named_secrets(text, lower_text, scan_budget),
    ]
    detections += separated_secrets.find_command_secrets(text, lower_text, scan_budget)
    if "PRIVATE KEY" in text or "PuTTY-User-Key-File" in text:
        detections += secret_formats.find_private_keys(text, scan_budget)
    if "://" in text:
        detections += secret_formats.find_credential_urls(text, scan_budget)
    if "@" in text:
        detections += personal_data.find_host_logins(text, scan_budget)
    if "pas" in lower_text or not lower_text.isascii():
        detections += identity_numbers.find_passports(text, lower_text, scan_budget)
    has_digits = _DIGITS.search(text) is not None
    if has_digits:
        detections += personal_data.find_ibans(text, scan_budget)
        detections += personal_data.find_card_numbers(text, scan_budget)
        detections += identity_numbers.find_national_ids(text, lower_text, scan_budget)
    if mode != Privacy.ALLOW:
        detections += _find_personal_data(text, has_digits, scan_budget)
    return detections


def _find_personal_data(text: str, has_digits: bool, scan_budget: ScanBudget) -> list[Detection]:
    """Find the kinds that are removed only under `redact`."""
    detections: list[Detection] = []
    if "@" in text or "at" in text:
        detections += personal_data.find_emails(text, scan_budget)
    if has_digits:
        detections += personal_data.find_phone_numbers(text, scan_budget)
    return detections


def _merge_overlaps(detections: Sequence[Detection], offset: int) -> list[SensitiveSpan]:
    """Return spans in order, with overlapping ones merged into one of their most specific kind."""
    merged_spans: list[SensitiveSpan] = []
    for detection in sorted(detections):
        start, end, kind = detection.start + offset, detection.end + offset, detection.kind
        if end <= start:
            continue
        if merged_spans and start < merged_spans[-1].end:
            last_span = merged_spans.pop()
            kind = min(kind, last_span.kind, key=_RANK.__getitem__)
            start, end = last_span.start, max(end, last_span.end)
        merged_spans.append(SensitiveSpan(start, end, kind, kind not in PERSONAL))
    return merged_spans
