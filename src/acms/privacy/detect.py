"""Privacy: what in a text is sensitive, and the text without it. One stage before every sink.

Under `allow` what is clearly sensitive still goes: secrets, keys, cards, bank accounts. Under `redact` email addresses
and telephone numbers go, too. Under `block` no text leaves at all.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from acms.model import Privacy
from acms.privacy import apart, identity, personal, tokens
from acms.privacy.found import Exhausted, Found, Work
from acms.privacy.named import find_named_secrets, lower_keeping_offsets

RULES = "2026-11-29"
"""Version of the rules: the day on which what they find was last changed."""

#: Kinds from the most specific to the least: of stretches that overlap the first names the whole.
KINDS = (
    "private_key", "connection_string", "jwt", "api_key", "iban", "credit_card", "national_id", "passport",
    "client_secret", "password", "bearer_token", "token", "secret", "email", "phone",
)  # fmt: skip
_RANK = {kind: rank for rank, kind in enumerate(KINDS)}
#: Kinds that identify a person and open nothing: they go under `redact` only.
PERSONAL = frozenset(("email", "phone"))
_MARK = re.compile(rf"\[REDACTED: (?:{'|'.join(KINDS)})\]")
#: Digits enough for a number of a person, with what may stand between them.
_DIGITS = re.compile(r"[0-9](?:[^0-9]{0,4}+[0-9]){5}")
_ROUNDS = 4
_LEAST = 6
"""Characters of the shortest stretch that a rule can find something in."""
_NAME = 9
"""Characters of the shortest text of letters and digits alone, fewer than six digits in a row or nearly so, that a
rule finds something in: `rootpw` and a value."""


class Sensitive(NamedTuple):
    """A stretch of a text that is sensitive."""

    #: Offset of its first character.
    start: int
    #: Offset after its last character.
    end: int
    #: What it is: one of `KINDS`.
    kind: str
    #: Whether it goes under `allow`, too.
    clear: bool


class Redacted(NamedTuple):
    """A text that may leave, and what was taken out of it."""

    text: str
    #: Offsets are those of the text before, in order, without overlaps.
    spans: tuple[Sensitive, ...]


def strictest_mode(*modes: Privacy) -> Privacy:
    """Return the strictest of the modes of a request, its tenant and an item; `allow` of none."""
    return max(modes, key=_STRICT.__getitem__, default=Privacy.ALLOW)


_STRICT = {Privacy.ALLOW: 0, Privacy.REDACT: 1, Privacy.BLOCK: 2}


def redaction_mark(kind: str) -> str:
    """Return what stands in the place of something sensitive."""
    return f"[REDACTED: {kind}]"


def find_sensitive_spans(text: str, mode: Privacy = Privacy.REDACT) -> list[Sensitive]:
    """Return what `redact` takes out of a text under this mode, in order, without overlaps.

    Taking something out changes what stands beside it, so what is left is searched again until nothing is found. A text
    made to need more rounds than four loses the stretches in question whole, one made to take more work than any of its
    length should is sensitive as a whole.
    """
    if len(text) < _NAME and text.isalnum() and text.isascii() and not _DIGITS.search(text):
        return []  # most names are a word, and a reply looks at hundreds
    try:
        return _search_until_clean(text, mode, Work(len(text)))
    except Exhausted:
        return [Sensitive(0, len(text), "secret", clear=True)]


def _search_until_clean(text: str, mode: Privacy, work: Work) -> list[Sensitive]:
    found: list[Sensitive] = []
    waiting = _split_at_marks(text) if "[REDACTED: " in text else [(0, len(text))]
    for turn in range(_ROUNDS):
        left: list[tuple[int, int]] = []
        for start, end in waiting:
            here = _merge_overlaps(_run_detectors(text[start:end], mode, work), start)
            if here and turn == _ROUNDS - 1:
                here = [Sensitive(start, end, here[0].kind, clear=True)]
            if here:
                found += here
                at = start
                for one in (*here, Sensitive(end, end, "", clear=True)):
                    if one.start - at >= _LEAST:
                        left.append((at, one.start))
                    at = one.end
        waiting = left
    found.sort()
    return found


def redact_text(text: str, mode: Privacy) -> Redacted:
    """Return a text without what is sensitive under a mode; under `block` it is empty.

    What was redacted stays as it is when it is redacted again. Token counts must be taken anew.
    """
    if mode == Privacy.BLOCK:
        return Redacted("", ())
    found = find_sensitive_spans(text, mode)
    if not found:
        return Redacted(text, ())
    parts: list[str] = []
    at = 0
    for one in found:
        parts += (text[at : one.start], redaction_mark(one.kind))
        at = one.end
    parts.append(text[at:])
    return Redacted("".join(parts), tuple(found))


def safe_key(key: str) -> bool:
    """Tell whether a key, an id or an entity may be shown as it is: nothing sensitive was found in it."""
    return not find_sensitive_spans(key)


def _run_detectors(text: str, mode: Privacy, work: Work) -> list[Found]:
    found: list[Found] = []
    low = lower_keeping_offsets(text)
    if "PRIVATE KEY" in text or "PuTTY-User-Key-File" in text:
        found += tokens.private_keys(text, work)
    if "://" in text:
        found += tokens.find_credential_urls(text, work)
    found += tokens.find_tokens(text, work)
    found += find_named_secrets(text, low, work)
    found += apart.find_command_secrets(text, low, work)
    if "@" in text:
        found += personal.find_host_logins(text, work)
    digits = _DIGITS.search(text) is not None
    if digits:
        found += personal.find_ibans(text, work)
        found += personal.find_card_numbers(text, work)
        found += identity.find_national_ids(text, low, work)
    if "pas" in low or not low.isascii():
        found += identity.find_passports(text, low, work)
    if mode != Privacy.ALLOW:
        if "@" in text or "at" in text:
            found += personal.find_emails(text, work)
        if digits:
            found += personal.find_phone_numbers(text, work)
    return found


def _merge_overlaps(found: Sequence[Found], offset: int) -> list[Sensitive]:
    """Return stretches in order, those that overlap as one of the most specific kind among them."""
    merged: list[Sensitive] = []
    for one in sorted(found):
        start, end, kind = one.start + offset, one.end + offset, one.kind
        if end <= start:
            continue
        if merged and start < merged[-1].end:
            last = merged.pop()
            kind = min(kind, last.kind, key=_RANK.__getitem__)
            start, end = last.start, max(end, last.end)
        merged.append(Sensitive(start, end, kind, kind not in PERSONAL))
    return merged


def _split_at_marks(text: str) -> list[tuple[int, int]]:
    """Return what lies between the marks of an earlier redaction."""
    ends = [(one.start(), one.end()) for one in _MARK.finditer(text)]
    starts = [0, *(end for _, end in ends)]
    stops = [*(start for start, _ in ends), len(text)]
    return [(start, end) for start, end in zip(starts, stops, strict=True) if end - start >= _LEAST]
