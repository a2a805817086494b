"""Frames: finding what in a text could end the frame it is put into, or pass for another speaker, however it is spelt.

Characters are compared as a reader sees them: NFKC and case are folded, and what is invisible does not count.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from functools import lru_cache

BREAKS = r"\n\r\v\f\x1c-\x1e\x85\u2028\u2029"
"""Characters that end a line, inside a class of a regular expression."""

OPENING = "<\uff1c\ufe64"
"""Characters that look like the opening bracket of a tag."""

_OPENING = re.compile(f"[{OPENING}]")
_SLASHES = dict.fromkeys("\u2044\u2215\u29f8", "/")
_BLANK = frozenset("\u115f\u1160\u2800\u3164\uffa0")
"""Characters that show nothing although they count as letters or symbols."""
_INVISIBLE = ("Cc", "Cf", "Mn", "Me")
"""Unicode categories of what shows nothing by itself."""

_COLONS = ":\uff1a\ufe55\ufe13\u2236\ua789"
_LINE = re.compile(rf"(?<=[{BREAKS}])(?=([^{BREAKS}{_COLONS}]+)[{_COLONS}])")
LONGEST = 120
"""Visible characters before the colon of a line that may begin with a speaker, at most."""


@lru_cache(maxsize=4096)
def fold_character(char: str) -> str:
    """Return what a reader sees in a character: "" for what is invisible, " " for any space, lower case for letters."""
    if char.isspace():
        return " "
    if unicodedata.category(char) in _INVISIBLE or char in _BLANK:
        return ""
    return unicodedata.normalize("NFKC", _SLASHES.get(char, char)).casefold()


def open_closing_tags(text: str, name: str) -> str:
    """Return a text in which no closing tag of a name is left: each has lost its opening bracket."""
    return _replace_brackets(text, (name,), "", closing=True)


def escape_tags(text: str, names: Sequence[str]) -> str:
    """Return a text in which no opening or closing tag of some names is left: their brackets are escaped."""
    return _replace_brackets(text, names, "&lt;", closing=False)


def _replace_brackets(text: str, names: Sequence[str], by: str, *, closing: bool) -> str:
    def replaced(found: re.Match[str]) -> str:
        tag = any(_is_tag(text, found.end(), name, closing=closing) for name in names)
        return by if tag else found[0]

    return _OPENING.sub(replaced, text)


def _is_tag(text: str, place: int, name: str, *, closing: bool) -> bool:
    """Return whether the rest of a tag stands at a place, with or without attributes or an end."""
    left = name
    slash = not closing
    while place < len(text):
        folded = fold_character(text[place])
        place += 1
        if folded == "/" and left == name:
            slash = True
        elif folded.strip():
            if not slash or not left.startswith(folded):
                return False
            left = left[len(folded) :]
            if not left:
                following = fold_character(text[place]) if place < len(text) else ""
                return not re.match(r"[\w-]", following)
    return False


def quote_speakers(text: str, speakers: Sequence[str]) -> str:
    """Return a text in which each line but the first that begins like one of a speaker is quoted."""
    return _LINE.sub(_quotes(tuple(speakers)), text)


@lru_cache(maxsize=8)
def _quotes(speakers: tuple[str, ...]) -> Callable[[re.Match[str]], str]:
    """Return what is put before a line, by its beginning up to a colon."""
    brackets = r"[(\[{<\u3010\u3014\u300c\u300e\u300a\u3008]"
    ends = r"[)\]}>\u3011\u3015\u300d\u300f\u300b\u3009]"
    names = "|".join(speakers)
    attribute = rf"(?:, \d{{4}}-\d\d-\d\d|{brackets}[^:]*{ends})"
    pattern = re.compile(rf"[\s*_#]*{brackets}*\s*(?:{names})[\s*_]*{ends}*(?:\s*{attribute})*[\s*_]*\Z")

    def quote(line: re.Match[str]) -> str:
        return "> " if pattern.match(_visible(line[1])) else ""

    return quote


def _visible(text: str) -> str:
    """Return what a reader sees of the beginning of a text, each space once; of a longer one a bit too much."""
    if text.isprintable() and text.isascii():
        return " ".join(text.split())[: LONGEST + 1].lower()
    found: list[str] = []
    for char in text:
        folded = fold_character(char)
        if folded != " " or found[-1:] != [" "]:
            found += [folded] if folded else []
        if len(found) > LONGEST:
            break
    return "".join(found)
