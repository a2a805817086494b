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
    is_placeholder_value,
    is_stop_word,
    looks_harmless,
    looks_like_secret,
    looks_random,
    names_itself,
    rate_randomness,
    rest_of,
)
from acms.privacy.rules import compile_pattern, get_word_set, load_pattern, load_table_rows

# ── headers ─────────────────────────────────────────────────────────────────────────────────────────────────────────

_AUTH = load_pattern("auth")
_COOKIE = load_pattern("cookie")


def _is_pair(value: str) -> bool:
    """Return whether base64 encodes `user:password`."""
    try:
        return b":" in a2b_base64(value[: len(value) // 4 * 4])
    except BinasciiError:
        return False


def find_header_credential(text: str, end: int, kind: str, word: str) -> Found | None:
    """Return the credential of a header whose name ends here."""
    if kind == "cookie":
        match = _COOKIE.match(text, end)
        return (
            Found(match.start(1), match.end(1), "token")
            if match and not is_placeholder_value(match[1])
            else None
        )
    match = _AUTH.match(text, end)
    if not match or text[match.start("value") - 1] not in " \t:=\"'`,0+":
        return None
    value, scheme, start = match["value"].rstrip("."), (match["scheme"] or "").lower(), match.start("value")
    if word == "bearer":
        if text[end : end + 1] not in " \t:=%" or scheme:
            return None
        scheme = "bearer"
    if is_placeholder_value(value) or EXPRESSION.fullmatch(value):
        return None
    found = Found(
        start, rest_of(text, start + len(value)), "password" if scheme == "basic" else "bearer_token"
    )
    if scheme == "basic" and _is_pair(value):
        return found
    telling = DIGIT.search(value) and LETTER.search(value) and not (value.isupper() and "-" in value)
    return found if telling and len(value) >= (12 if scheme else 16) else None


_WORDS = load_pattern("words")


def find_mnemonic(text: str, end: int) -> Found | None:
    """Return a BIP 39 mnemonic of twelve words or more."""
    words = _WORDS.match(text, end)
    if not words or sum(word in get_word_set("function") for word in words[1].lower().split()) > 2:
        return None
    return Found(words.start(1), words.end(1), "secret")


# ── blocks ──────────────────────────────────────────────────────────────────────────────────────────────────────────

#: A name and its value apart, as in lists of variables: `name: DB_PASSWORD`, `value: …`.
_LISTED = re.compile(r"""(?:name|key)(?:["']?[ \t]{0,3}[:=][ \t]{0,3}["']?|>)[\w.:-]{0,48}$""")
_ITEM = load_pattern("item")
_VARIABLE = re.compile(r"""variable[ \t]{1,4}["'][\w-]{0,48}$""")
_DEFAULT = load_pattern("default")


def find_item_value(text: str, former: str, start: int, end: int) -> int | None:
    """Return the offset of a value that is in a list item or a block of its own, or None."""
    for before, after in ((_LISTED, _ITEM), (_VARIABLE, _DEFAULT)):
        if before.search(former) and (value := after.match(text, end)):
            return value.end()
    return None


# ── tables ──────────────────────────────────────────────────────────────────────────────────────────────────────────

#: A line of names, each of one word or a few. Blanks belong to the preceding name, and a tab is a separator only if
#: there is no other one: an ambiguous pattern would try every combination on a line that does not match.
_HEAD = load_pattern("head")
_OF_IT = re.compile(r"""[\s"'`*]*(?!(?i:hash|encr|min|max|old|last))(?:[\w'-]{1,12}[ _-]?){0,2}""")
_TITLE = load_pattern("title")
_SIDES = " \t\"'`*\r"
_ROWS = 200


def find_column_values(text: str, start: int, end: int, kind: str, work: Work) -> list[Found]:
    """Return the values below a name that is a column header, in CSV or in a Markdown table."""
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
        drawn = (
            rate_randomness(value) >= 2 and len(value) >= 6 and (kind == "password" or looks_random(value))
        )
        if (
            drawn
            and " " not in value
            and not looks_harmless(value)
            and not names_itself(value)
            and value[0] != "$"
        ):
            found.append(Found(at, at + len(value), kind))
    return found


# ── commands ────────────────────────────────────────────────────────────────────────────────────────────────────────


@cache
def _index_commands() -> list[tuple[re.Pattern[str], list[tuple[str, int]]]]:
    """Return literals and the numbers of their rows, grouped by a sign that all of these rows need."""
    found: dict[str, list[tuple[str, int]]] = {}
    for number, row in enumerate(load_table_rows("commands")):
        found.setdefault(row["sign"], []).extend((literal, number) for literal in row["has"])
    return [(compile_pattern(sign), literals) for sign, literals in found.items()]


def find_command_secrets(text: str, low: str, work: Work) -> Iterator[Found]:
    """Find the passwords and keys that commands, calls and addresses contain, by rows of data."""
    for sign, literals in _index_commands():
        if not sign.search(text):
            continue
        for number in dict.fromkeys([number for literal, number in literals if literal in low]):
            row = load_table_rows("commands")[number]
            work.spend(len(text))
            for match in compile_pattern(row["shape"]).finditer(text):
                value = match[1].rstrip(".,;?)")
                near = low[max(0, match.start() - 100) : match.start()]
                if compile_pattern(row.get("near", "")).search(near) and _LOOKS[row["look"]](value):
                    kind = "api_key" if row["look"] == "drawn" else "password"
                    yield Found(match.start(1), match.start(1) + len(value), kind)


def _is_actual_value(value: str) -> bool:
    return not names_itself(value) and not is_stop_word(value) and len(set(value)) > 2


def _is_random_value(value: str) -> bool:
    return looks_random(value) and not names_itself(value)


_LOOKS = {"given": _is_actual_value, "made up": looks_like_secret, "drawn": _is_random_value}
