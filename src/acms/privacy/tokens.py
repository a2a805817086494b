"""Secrets that tell by their own look what they are: private keys, credentials in URLs, tokens of known services.

Every search is linear. A rule is tried only where a literal of it stands, each repetition has an upper bound, and what
is taken once is not tried again. A text without long words, digits and words like "password" costs a few scans in C.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from acms.privacy import secret_patterns
from acms.privacy.plausibility import entropy, names_itself, opaque


class Found(NamedTuple):
    """A sensitive stretch of a text, before overlaps are settled."""

    start: int
    end: int
    kind: str


# ── private keys ────────────────────────────────────────────────────────────────────────────────────────────────────

_BEGIN = re.compile(r"-----BEGIN[ A-Z0-9_-]{0,60}?PRIVATE KEY(?: BLOCK)?-----|PuTTY-User-Key-File-\d:")
_END = re.compile(r"-----END[ A-Z0-9_-]{0,60}?PRIVATE KEY(?: BLOCK)?-----|Private-MAC: [0-9a-f]{0,64}")
#: A line of a key that goes on: base64, its header fields, what quotes and joins lines in code, JSON and diffs.
_BODY = re.compile(
    r"""(?:(?:\s|\\+[nrt]|["'`,+|>\\])++"""
    r"""|(?:Proc-Type|DEK-Info|Comment|Version|Hash|Encryption|Public-Lines|Private-Lines|Key-Derivation|Argon2-\w{1,20})"""
    r""":[^\n\\]{0,120}+|(?:[A-Za-z0-9/]|\+(?=[A-Za-z0-9/+=])){12,}+[A-Za-z0-9+/]{0,80}+={0,2}+"""
    r"""|[A-Za-z0-9+/]{1,80}+={1,2}+|\.{3,}+|…)++"""
)
_LONG = re.compile(r"[A-Za-z0-9+/]{16}")
#: The last line of a text that ends within a key.
_CUT = re.compile(r"\n[ \t>]{0,12}([A-Za-z0-9+/]{1,80}={0,2})\s*\Z")
_LINE = re.compile(r"[A-Za-z0-9+/]{1,100}={0,2}")


class _Next:
    """The next place of a pattern, from offsets that only grow: looked for anew when it was passed, so once each."""

    def __init__(self, pattern: re.Pattern[str], text: str) -> None:
        self._search = pattern.search
        self._text = text
        self._found = self._search(text)

    def after(self, at: int) -> re.Match[str] | None:
        """Return the first place at an offset or behind it."""
        if self._found and self._found.start() < at:
            self._found = self._search(self._text, at)
        return self._found


def private_keys(text: str) -> Iterator[Found]:
    """Find keys in PEM, PGP and PuTTY form; one without its end goes as far as its lines look like a key."""
    at = 0
    begins, ends = _Next(_BEGIN, text), _Next(_END, text)
    while begin := begins.after(at):
        end = ends.after(begin.end())
        another = begins.after(begin.end())
        if end and not (another and another.start() < end.start()) and end.end() - begin.start() <= 20_000:
            at = end.end()
            if not _body(text, begin.end(), end.start()):
                continue  # only shown where it begins and ends
        else:
            body = _BODY.match(text, begin.end(), begin.end() + 20_000)
            at = begin.end() + len(body[0].rstrip(" \t\n\r\"'`,|>\\")) if body else begin.end()
            if not _body(text, begin.end(), at):
                continue  # only spoken of
            if cut := _CUT.match(text, at):
                at = cut.end(1)
        yield Found(begin.start(), at, "private_key")
    at = 0
    for end in _END.finditer(text):  # the end of one whose beginning was cut away
        start = end.start()
        lines = text[max(at, start - 8000) : start].split("\n")
        while lines and (not (line := lines[-1].strip()) or (_LINE.fullmatch(line) and len(line) > 11)):
            start -= len(lines.pop()) + 1
        if start < end.start() and _body(text, start, end.start()):
            yield Found(max(start + 1, at), end.end(), "private_key")
        at = end.end()


def _body(text: str, start: int, end: int) -> bool:
    """Tell whether something of a key stands here, not dots or "your key here"."""
    return any(len(set(one[0])) > 6 for one in _LONG.finditer(text, start, end))


# ── credentials in addresses ────────────────────────────────────────────────────────────────────────────────────────

_SCHEME = re.compile(r"(?:jdbc:)?[A-Za-z][A-Za-z0-9+.-]{1,30}$")
_CREDENTIALS = re.compile(r"""://([^\s/?#:@"'`<>]{0,128}+):([^\s/"'`<>]{1,256})@([^\s"'`<>,;)\]}]{1,512}+)""")
VARIABLE = re.compile(
    r"""\$?\$?\{[^}]*\}?\}?|\$\(?(?:[A-Z_][A-Z0-9_]{0,60}|[a-z_]{1,60})\)?|%\w{1,60}%|%\(\w{1,60}\)s|%[sdrv]|<[^>]*>?|\[[^\]]*\]?|\*+|x{3,}|X{3,}|\.{2,}|…|_+"""
)


def addresses(text: str) -> Iterator[Found]:
    """Find `scheme://user:password@host…`, whole."""
    at = text.find("://")
    while at >= 0:
        match = _CREDENTIALS.match(text, at)
        after = at + 3
        if match:
            scheme = _SCHEME.search(text, max(0, at - 32), at)
            if scheme and not VARIABLE.fullmatch(match[2]) and not names_itself(match[2]):
                yield Found(scheme.start(), match.start() + len(match[0].rstrip(".:!?")), "connection_string")
                after = match.end()
        at = text.find("://", after)


# ── tokens of known services ────────────────────────────────────────────────────────────────────────────────────────

#: What a token can be made of, long enough to be one; prose has few of these.
_RUN = re.compile(r"(?<![A-Za-z0-9_.~+/=%:$-])[A-Za-z0-9_.~+/=%:$-]{16,}+")
_MORE = re.compile(r"[A-Za-z0-9_-]*+")
_JWT = re.compile(
    r"(?<![\w-])ey[A-Za-z0-9_-]{10,8000}+\.(?:ey[A-Za-z0-9_-]{5,16000}+|[A-Za-z0-9_-]{40,16000}+)"
    r"(?:\.[A-Za-z0-9_-]{0,8000}+){0,3}+"
)
_AZURE = re.compile(r"(?<![A-Za-z0-9_~.-])[A-Za-z0-9_~.]{3}\dQ~[A-Za-z0-9_~.-]{31,34}(?![A-Za-z0-9_~-])")
_MAXMIND = re.compile(r"(?<![A-Za-z0-9_])[A-Za-z0-9]{6}_[A-Za-z0-9]{29}_mmk")
_ATLAS = re.compile(r"(?<![A-Za-z0-9])[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_=-]{60,70}")
_ENCODED = re.compile(r"(?<![A-Za-z0-9+/])ZXlK[A-Za-z0-9+/_-]{60,8000}+={0,2}+")
_FACEBOOK = re.compile(r"(?<![A-Za-z0-9])\d{15,16}(?:\||%7[Cc])[0-9A-Za-z_-]{27,40}(?![A-Za-z0-9_-])")
_SPECIAL = (
    ("ey", _JWT, "jwt"),
    ("Q~", _AZURE, "client_secret"),
    ("_mmk", _MAXMIND, "api_key"),
    (".atlasv1.", _ATLAS, "api_key"),
    ("ZXlK", _ENCODED, "jwt"),
)
#: In lower case; each alternative begins with one character, so that a search can skip to the next of these.
_DUMMY = re.compile(
    r"example(?:key)?$|xxxxx|\*\*\*|\.\.\.|_here$|-here$|placeholder|changeme|redacted|00000000|"
    + "|".join(
        rf"{word[0]}(?<![a-z0-9]{word[0]}){word[1:]}[_-]"
        for word in "your my insert replace enter put change some fake".split()
    )
)


@cache
def _compiled(shape: str, flags: int = 0) -> re.Pattern[str]:
    """Return a rule, compiled when its literal was first seen."""
    return re.compile(shape, flags | re.ASCII)


def _random(value: str, least: float) -> bool:
    # The entropy is at most that of its characters drawn evenly, which is told at once.
    if len(set(value)) < 2**least or (least and entropy(value) < least):
        return False
    low = value.lower()
    return len(set(low)) > 1 and not _DUMMY.search(low)


#: Who gave it out, and what was drawn: newer services write their tokens so. Ids are shorter or have digits of base 16.
_PREFIXED = re.compile(
    r"(?<![A-Za-z0-9_])([a-z][a-z0-9]{1,11}(?:_[a-z0-9]{1,10}){0,3})_([A-Za-z0-9]{32,200}+)(?![A-Za-z0-9_/+=-])"
)
_PUBLIC = re.compile(r"pk_|pk$|phc|pub|sb_pub|price|cs_|cs$|evt|acct|img|file|hash|sha|id_|ref")


def _shortened(text: str, match: re.Match[str]) -> bool:
    """Tell whether only the beginning of a token is shown: `sk-abc123...`."""
    return len(match[0]) < 24 and text.startswith(("...", "…", "***"), match.end())


class _Known(NamedTuple):
    """The rules of tokens, ready to look for."""

    #: A beginning, after no character of a word.
    heads: re.Pattern[str]
    #: Shape and least entropy, by beginning.
    shapes: dict[str, list[tuple[str, float]]]


def _one_of(words: list[str]) -> str:
    """Return a pattern of literals or patterns that begin with one, the longest first, by first character."""
    by_first: dict[str, list[str]] = {}
    for word in sorted(words, key=len, reverse=True):
        by_first.setdefault(word[0], []).append(word[1:])
    return "|".join(f"{first}(?:{'|'.join(rest)})" for first, rest in by_first.items())


@cache
def _known() -> _Known:
    shapes: dict[str, list[tuple[str, float]]] = {}
    for row in (*secret_patterns.TOKENS.strip().splitlines(), *secret_patterns.OURS.strip().splitlines()):
        _, heads, shape, *least = row.split(" | ")
        for head in heads.split():
            shapes.setdefault(head, []).append((shape, float(least[0]) if least else 0.0))
    longest = sorted(shapes, key=len, reverse=True)
    for head in longest:  # a longer beginning has the shapes of the shorter ones, too
        for other in longest:
            if other != head and head.startswith(other):
                shapes[head] += [one for one in shapes[other] if one not in shapes[head]]
    rest: dict[str, list[str]] = {}
    for head in longest:
        rest.setdefault(head[0], []).append(re.escape(head[1:]))
    heads = "|".join(f"(?<={first})(?:{'|'.join(some)})" for first, some in rest.items())
    return _Known(
        # A set of characters first, which is looked for fastest. A token may follow an escape of JSON or of a URL:
        # `\nAKIA…`, `%3Dghp_…`.
        re.compile(
            rf"[{''.join(rest)}](?:(?<![A-Za-z0-9].)|(?<=\\[nrt].)|(?<=%[0-9A-Fa-f][0-9A-Fa-f].))"
            rf"(?:{heads})",
            re.DOTALL,
        ),
        shapes,
    )


def tokens(text: str) -> list[Found]:
    """Find tokens that tell by their beginning what they are."""
    found: list[Found] = []
    run = _RUN.search(text)
    if not run:
        return found
    known = _known()
    while run:
        found += _tokens(text, run.start(), run.end(), known)
        run = _RUN.search(text, run.end())
    for sign, shape, kind in _SPECIAL:
        if sign in text:
            found += (Found(match.start(), match.end(), kind) for match in shape.finditer(text))
    if "|" in text and "acebook" in text:
        found += (Found(match.start(), match.end(), "api_key") for match in _FACEBOOK.finditer(text))
    return found


def _tokens(text: str, start: int, stop: int, known: _Known) -> Iterator[Found]:
    at = start
    while head := known.heads.search(text, at, stop):
        at = head.end()
        for shape, least in known.shapes[head[0]]:
            match = _compiled(shape).match(text, head.start())
            if match and _random(match[0][:100], least) and not _shortened(text, match):
                more = _MORE.match(text, match.end())
                at = more.end() if more else match.end()
                scheme = (
                    "https://" if "." in head[0] and text.endswith("https://", start, match.start()) else ""
                )
                yield Found(match.start() - len(scheme), at, "api_key")
                break
    if text.find("_", start, stop) >= 0:
        for match in _PREFIXED.finditer(text, start, stop):
            if (
                not _PUBLIC.match(match[1])
                and opaque(match[2])
                and not match[2].islower()
                and not match[2].isupper()
            ):
                yield Found(match.start(), match.end(), "api_key")
    near = _near(text, start, stop)
    if near:
        yield near


@cache
def _services() -> tuple[re.Pattern[str], list[tuple[str, str, float]]]:
    """Return what finds the name of a service in a key, and the shapes of the values of each."""
    rows = [row.split(" | ") for row in secret_patterns.NEAR.strip().splitlines()]
    names = {name for row in rows for name in re.split(r"\|(?![^(]*\))", row[1].lower())}
    return re.compile(_one_of(sorted(names))), [
        (row[1].lower(), row[2], float(row[3]) if row[3:] else 2.5) for row in rows
    ]


_DIGIT = re.compile("[0-9]")


def _near(text: str, start: int, stop: int) -> Found | None:
    """Return the value of a key that names a service, where it has the shape of that service's secrets."""
    if (cut := max(text.rfind("=", start, stop - 8), text.rfind(":", start, stop - 20))) > start:
        key, start = text[max(0, start - 40) : cut], cut + 1
    else:
        before = text[max(0, start - 80) : start].rstrip(" \t\n'\"`")
        if not before or before[-1] not in "=:,>|":
            return None
        key = before
    value = text[start:stop].rstrip(".:")
    if not 14 <= len(value) <= 200 or not _DIGIT.search(value):
        return None
    key = key.rstrip("=:,>|?").rstrip(" \t'\"`\\])")[-50:].rpartition("\n")[2].lower()
    service, kinds = _services()
    names = service.findall(key)
    if not names or len(key) - key.rfind(names[-1]) - len(names[-1]) > 20:
        return None
    for named, shape, least in kinds:
        if not _compiled(named).fullmatch(names[-1]):
            continue
        if _compiled(shape, re.IGNORECASE).fullmatch(value):
            if not _random(value, least):
                return None
            return Found(start, start + len(value), "api_key")
    return None
