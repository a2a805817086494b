"""Privacy: what in a text is sensitive, and the text without it. One stage before every sink.

Under `allow` what is clearly sensitive still goes: secrets, keys, cards, bank accounts. Under `redact` email addresses
and telephone numbers go, too. Under `block` no text leaves at all.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from acms.model import Privacy
from acms.privacy import assigned, assigned_apart, personal, tokens
from acms.privacy import commands as detectors_commands
from acms.privacy.tokens import Found

RULES = "2026-11-22"
"""Version of the rules: the day on which what they find was last changed."""

#: Kinds from the most specific to the least: of stretches that overlap the first names the whole.
KINDS = (
    "private_key", "connection_string", "jwt", "api_key", "iban", "credit_card", "client_secret", "password",
    "bearer_token", "token", "secret", "email", "phone",
)  # fmt: skip
_RANK = {kind: rank for rank, kind in enumerate(KINDS)}
#: Kinds that identify a person and open nothing: they go under `redact` only.
PERSONAL = frozenset(("email", "phone"))
_MARK = re.compile(rf"\[REDACTED: (?:{'|'.join(KINDS)})\]")
#: Digits enough for a telephone number, with what may stand between them.
_DIGITS = re.compile(r"[0-9](?:[^0-9]{0,4}+[0-9]){6}")
_ROUNDS = 4
_SHORT = 256
"""Characters of a stretch that is remembered, once searched."""
_LEAST = 6
"""Characters of the shortest stretch that a rule can find something in."""
_NAME = 9
"""Characters of the shortest text of letters and digits alone, fewer than seven of these in a row or nearly so, that a
rule finds something in: `rootpw` and a value."""
_REACH = 64_000
"""Characters that one find can depend on at most: those of the longest token and what is read around it."""


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


def effective(*modes: Privacy) -> Privacy:
    """Return the strictest of the modes of a request, its tenant and an item; `allow` of none."""
    return max(modes, key=_STRICT.__getitem__, default=Privacy.ALLOW)


_STRICT = {Privacy.ALLOW: 0, Privacy.REDACT: 1, Privacy.BLOCK: 2}


def mark(kind: str) -> str:
    """Return what stands in the place of something sensitive."""
    return f"[REDACTED: {kind}]"


def spans(text: str, mode: Privacy = Privacy.REDACT) -> list[Sensitive]:
    """Return what `redact` takes out of a text under this mode, in order, without overlaps.

    Taking something out changes what stands beside it, so what is left is searched again until nothing is found. A text
    made to need more rounds than four loses the stretches in question whole.
    """
    if len(text) < _NAME and text.isalnum() and text.isascii() and not _DIGITS.search(text):
        return []  # most names are a word, and a reply looks at hundreds
    found: list[Sensitive] = []
    #: What was found in short stretches: lists have the same ones again and again.
    seen: dict[str, list[Found]] = {}
    waiting = _between(text) if "[REDACTED: " in text else [_Stretch(0, len(text))]
    names = assigned.named(text)
    words = _Words(names, detectors_commands.groups(text, names))
    for turn in range(_ROUNDS):
        left: list[_Stretch] = []
        for stretch in waiting:
            start, end = stretch.start, stretch.end
            part = text if end - start == len(text) else text[start:end]
            raw = seen.get(part)
            if raw is None:
                raw = _detect(part, mode, words) if turn == 0 else _at_ends(part, mode, words, stretch)
                if len(part) < _SHORT:
                    seen[part] = raw
            here = _merged(raw, start) if raw else []
            if here and turn == _ROUNDS - 1:
                here = [Sensitive(start, end, here[0].kind, clear=True)]
            if here:
                found += here
                at = start
                for one in here:
                    if one.start - at >= _LEAST:
                        left.append(_Stretch(at, one.start, at > start, True))
                    at = one.end
                if end - at >= _LEAST:
                    left.append(_Stretch(at, end, True, False))
        waiting = left
        if not waiting:
            break
    found.sort()
    return found


def redact(text: str, mode: Privacy) -> Redacted:
    """Return a text without what is sensitive under a mode; under `block` it is empty.

    What was redacted stays as it is when it is redacted again. Token counts must be taken anew.
    """
    if mode == Privacy.BLOCK:
        return Redacted("", ())
    found = spans(text, mode)
    if not found:
        return Redacted(text, ())
    parts: list[str] = []
    at = 0
    for one in found:
        parts += (text[at : one.start], mark(one.kind))
        at = one.end
    parts.append(text[at:])
    return Redacted("".join(parts), tuple(found))


def safe_key(key: str) -> bool:
    """Tell whether a key, an id or an entity may be shown as it is: nothing sensitive was found in it."""
    return not spans(key)


class _Stretch(NamedTuple):
    """A part of a text that is to be searched."""

    start: int
    end: int
    #: Whether something that stood before it was taken out since it was searched last.
    after: bool = True
    #: Whether something that stood behind it was.
    before: bool = True


class _Words(NamedTuple):
    """What of the literals that rules wait for occurs in a text: looked for once, for its parts have no others."""

    #: Of names of secrets.
    names: tuple[str, ...]
    #: Of commands, by group.
    commands: frozenset[str]


def _detect(text: str, mode: Privacy, words: _Words) -> list[Found]:
    found: list[Found] = []
    if "PRIVATE KEY" in text or "PuTTY-User-Key-File" in text:
        found += tokens.private_keys(text)
    if "://" in text:
        found += tokens.addresses(text)
    found += tokens.tokens(text)
    found += assigned.assigned(text, words.names)
    found += detectors_commands.commands(text, words.commands)
    if "=" in text and ("?" in text or "&" in text):
        found += assigned_apart.queries(text)
    if "@" in text:
        found += personal.logins(text)
        found += assigned_apart.beside_mail(text)
    if ":" in text:
        found += assigned_apart.pgpass(text)
    found += personal.ibans(text)
    digits = _DIGITS.search(text) is not None
    if digits:
        found += personal.cards(text)
    if mode != Privacy.ALLOW:
        if "@" in text or "at" in text:
            found += personal.emails(text)
        if digits:
            found += personal.phones(text)
    return found


def _at_ends(text: str, mode: Privacy, words: _Words, stretch: _Stretch) -> list[Found]:
    """Return what is sensitive in what was searched already beside something that is gone now: at its new ends only."""
    far = len(text) - 2 * _REACH
    if far <= 2 * _REACH:
        return _detect(text, mode, words)
    # What is found beside the cuts made here is none: it was not found when they were not there.
    first: list[Found] = []
    last: list[Found] = []
    if stretch.after:
        first = [one for one in _detect(text[: 2 * _REACH], mode, words) if one.start < _REACH]
    if stretch.before:
        last = [one for one in _detect(text[far:], mode, words) if one.end > _REACH]
    if any(one.end > _REACH for one in first) or any(one.start < _REACH for one in last):
        return _detect(text, mode, words)
    return first + [Found(far + one.start, far + one.end, one.kind) for one in last]


def _merged(found: Sequence[Found], offset: int) -> list[Sensitive]:
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


def _between(text: str) -> list[_Stretch]:
    """Return what lies between the marks of an earlier redaction."""
    parts: list[_Stretch] = []
    start, end = 0, len(text)
    for one in _MARK.finditer(text):
        if one.start() - start >= _LEAST:
            parts.append(_Stretch(start, one.start()))
        start = one.end()
    if end - start >= _LEAST:
        parts.append(_Stretch(start, end))
    return parts
