"""Values that stand apart from their names: in headers, in tables, in lists of variables, in arguments of commands."""

from __future__ import annotations

import re
from binascii import Error as BinasciiError
from binascii import a2b_base64
from collections.abc import Iterator
from functools import cache

from acms.privacy.found import Found, Work
from acms.privacy.looks import (
    DIGIT,
    EXPRESSION,
    LETTER,
    harmless,
    is_made_up,
    level,
    names_itself,
    opaque,
    placeholder,
    rest_of,
    stopped,
)
from acms.privacy.rules import compiled, listed, rows, shape

# ── headers ─────────────────────────────────────────────────────────────────────────────────────────────────────────

_AUTH = shape("auth")
_COOKIE = shape("cookie")


def _is_pair(value: str) -> bool:
    """Tell whether base64 holds `user:password`."""
    try:
        return b":" in a2b_base64(value[: len(value) // 4 * 4])
    except BinasciiError:
        return False


def header(text: str, end: int, kind: str, word: str) -> Found | None:
    """Return the credential of a header whose name ends here."""
    if kind == "cookie":
        match = _COOKIE.match(text, end)
        return Found(match.start(1), match.end(1), "token") if match and not placeholder(match[1]) else None
    match = _AUTH.match(text, end)
    if not match or text[match.start("value") - 1] not in " \t:=\"'`,0+":
        return None
    value, scheme, start = match["value"].rstrip("."), (match["scheme"] or "").lower(), match.start("value")
    if word == "bearer":
        if text[end : end + 1] not in " \t:=%" or scheme:
            return None
        scheme = "bearer"
    if placeholder(value) or EXPRESSION.fullmatch(value):
        return None
    found = Found(
        start, rest_of(text, start + len(value)), "password" if scheme == "basic" else "bearer_token"
    )
    if scheme == "basic" and _is_pair(value):
        return found
    telling = DIGIT.search(value) and LETTER.search(value) and not (value.isupper() and "-" in value)
    return found if telling and len(value) >= (12 if scheme else 16) else None


_WORDS = shape("words")


def mnemonic(text: str, end: int) -> Found | None:
    """Return twelve words or more: a mnemonic of BIP 39."""
    words = _WORDS.match(text, end)
    if not words or sum(word in listed("function") for word in words[1].lower().split()) > 2:
        return None
    return Found(words.start(1), words.end(1), "secret")


# ── blocks ──────────────────────────────────────────────────────────────────────────────────────────────────────────

#: A name and its value apart, as in lists of variables: `name: DB_PASSWORD`, `value: …`.
_LISTED = re.compile(r"""(?:name|key)(?:["']?[ \t]{0,3}[:=][ \t]{0,3}["']?|>)[\w.:-]{0,48}$""")
_ITEM = shape("item")
_VARIABLE = re.compile(r"""variable[ \t]{1,4}["'][\w-]{0,48}$""")
_DEFAULT = shape("default")


def item(text: str, former: str, start: int, end: int) -> int | None:
    """Return where the value of a name begins that is an item of a list or a block of its own."""
    for before, after in ((_LISTED, _ITEM), (_VARIABLE, _DEFAULT)):
        if before.search(former) and (value := after.match(text, end)):
            return value.end()
    return None


# ── tables ──────────────────────────────────────────────────────────────────────────────────────────────────────────

#: A line of names, each a word or a few. Blanks belong to what stands before them, and a tab is a sign only where no
#: other one is: read in two ways, a line that is none would be tried in every mixture of them.
_HEAD = shape("head")
_OF_IT = re.compile(r"""[\s"'`*]*(?!(?i:hash|encr|min|max|old|last))(?:[\w'-]{1,12}[ _-]?){0,2}""")
_TITLE = shape("title")
_SIDES = " \t\"'`*\r"
_ROWS = 200


def column(text: str, start: int, end: int, kind: str, work: Work) -> list[Found]:
    """Return what stands below a name that heads a column: of lines of CSV, of a table in Markdown."""
    begin, stop = text.rfind("\n", max(0, start - 300), start) + 1, text.find("\n", end, end + 300)
    if stop < 0 or (begin == 0 and start > 300) or not _HEAD.fullmatch(text, begin, stop):
        return []
    line = text[begin:stop]
    sign = max("\t,;|", key=line.count)
    before, after = text[begin:start].rstrip("\"'`*\r "), text[end:stop].lstrip("\"'`*\r ")
    if (after and after[0] != sign) or not _OF_IT.fullmatch(before.rpartition(sign)[2]):
        return []
    place, cells = before.count(sign), line.count(sign)
    found: list[Found] = []
    title = text[start:end].lower()
    for _ in range(_ROWS):
        work.spend(300)
        begin, stop = stop + 1, text.find("\n", stop + 1, stop + 1200)
        if stop < 0:
            stop = len(text) if len(text) - begin < 1200 else begin
        row = text[begin:stop].split(sign)
        value = row[place].strip(_SIDES) if len(row) == cells + 1 else title
        if title in value.lower() or _TITLE.fullmatch(value):
            break  # another table
        at = begin + sum(map(len, row[:place])) + place + row[place].find(value)
        drawn = level(value) >= 2 and len(value) >= 6 and (kind == "password" or opaque(value))
        if drawn and " " not in value and not harmless(value) and not names_itself(value) and value[0] != "$":
            found.append(Found(at, at + len(value), kind))
    return found


# ── commands ────────────────────────────────────────────────────────────────────────────────────────────────────────


@cache
def _commands() -> list[tuple[re.Pattern[str], list[tuple[str, int]]]]:
    """Return literals and the rows they belong to, by a sign that all of these rows need."""
    found: dict[str, list[tuple[str, int]]] = {}
    for number, row in enumerate(rows("commands")):
        found.setdefault(row["sign"], []).extend((literal, number) for literal in row["has"])
    return [(compiled(sign), literals) for sign, literals in found.items()]


def commands(text: str, low: str, work: Work) -> Iterator[Found]:
    """Find what commands, calls and addresses are given as a password or a key, by rows of data."""
    for sign, literals in _commands():
        if not sign.search(text):
            continue
        for number in dict.fromkeys([number for literal, number in literals if literal in low]):
            row = rows("commands")[number]
            work.spend(len(text))
            for match in compiled(row["shape"]).finditer(text):
                value = match[1].rstrip(".,;?)")
                near = low[max(0, match.start() - 100) : match.start()]
                if compiled(row.get("near", "")).search(near) and _LOOKS[row["look"]](value):
                    kind = "api_key" if row["look"] == "drawn" else "password"
                    yield Found(match.start(1), match.start(1) + len(value), kind)


def _given(value: str) -> bool:
    return not names_itself(value) and not stopped(value) and len(set(value)) > 2


def _drawn(value: str) -> bool:
    return opaque(value) and not names_itself(value)


_LOOKS = {"given": _given, "made up": is_made_up, "drawn": _drawn}
