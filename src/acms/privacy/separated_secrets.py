"""Find secrets that do not directly follow their names: in headers, tables, lists of variables and commands."""

from __future__ import annotations

import re
from binascii import Error as BinasciiError
from binascii import a2b_base64
from collections.abc import Iterator
from functools import cache

from acms.privacy.detector_types import Detection, ScanBudget
from acms.privacy.rules import compile_pattern, get_word_set, load_pattern, load_table_rows
from acms.privacy.value_checks import (
    DIGIT,
    EXPRESSION,
    LETTER,
    end_of_value,
    is_placeholder_value,
    is_stop_word,
    looks_harmless,
    looks_like_secret,
    looks_random,
    names_itself,
    rate_randomness,
)

# ── headers ─────────────────────────────────────────────────────────────────────────────────────────────────────────

_AUTH = load_pattern("auth")
_COOKIE = load_pattern("cookie")


def _is_pair(value: str) -> bool:
    """Return whether base64 encodes `user:password`."""
    try:
        return b":" in a2b_base64(value[: len(value) // 4 * 4])
    except BinasciiError:
        return False


def find_cookie(text: str, end: int) -> Detection | None:
    """Return the value of a cookie whose header ends here."""
    match = _COOKIE.match(text, end)
    if not match or is_placeholder_value(match[1]):
        return None
    return Detection(match.start(1), match.end(1), "token")


def find_header_credential(text: str, end: int, word: str) -> Detection | None:
    """Return the credential in a header such as `Authorization`, whose name `word` ends at `end`."""
    match = _AUTH.match(text, end)
    # A value follows a separator; "0" and "+" are the ends of an encoded space, "%20" or "+".
    if not match or text[match.start("value") - 1] not in " \t:=\"'`,0+":
        return None
    value, start = match["value"].rstrip("."), match.start("value")
    scheme = (match["scheme"] or "").lower()
    if word == "bearer":  # there is no header name: "Bearer" itself was found as the name
        if scheme or text[end : end + 1] not in " \t:=%":
            return None
        scheme = "bearer"
    if is_placeholder_value(value) or EXPRESSION.fullmatch(value):
        return None
    stop = end_of_value(text, start + len(value))
    if scheme == "basic" and _is_pair(value):
        return Detection(start, stop, "password")
    # Without a scheme less shows that it is a credential, so it must be longer.
    if len(value) < (12 if scheme else 16) or not _is_mixed_credential(value):
        return None
    return Detection(start, stop, "password" if scheme == "basic" else "bearer_token")


def _is_mixed_credential(value: str) -> bool:
    """Return whether a value has letters and digits, and is no constant such as SHA-256."""
    is_constant = value.isupper() and "-" in value
    return not is_constant and DIGIT.search(value) is not None and LETTER.search(value) is not None


_WORDS = load_pattern("words")


def find_mnemonic(text: str, start: int) -> Detection | None:
    """Return the BIP 39 mnemonic of twelve words or more that follows a name which ends at `start`."""
    match = _WORDS.match(text, start)
    if not match:
        return None
    function_words = get_word_set("function")
    count = sum(word in function_words for word in match[1].lower().split())
    if count > 2:  # prose: the list of BIP 39 has few function words
        return None
    return Detection(match.start(1), match.end(1), "secret")


# ── blocks ──────────────────────────────────────────────────────────────────────────────────────────────────────────

#: A name and its value apart, as in lists of variables: `name: DB_PASSWORD`, `value: …`.
_NAME_FIELD = re.compile(r"""(?:name|key)(?:["']?[ \t]{0,3}[:=][ \t]{0,3}["']?|>)[\w.:-]{0,48}$""")
_VALUE_FIELD = load_pattern("item")
_VARIABLE = re.compile(r"""variable[ \t]{1,4}["'][\w-]{0,48}$""")
_DEFAULT = load_pattern("default")


def find_item_value(text: str, text_before: str, start: int, end: int) -> int | None:
    """Return the offset of a value that is in a list item or a block of its own, or None."""
    for name_pattern, value_pattern in ((_NAME_FIELD, _VALUE_FIELD), (_VARIABLE, _DEFAULT)):
        if name_pattern.search(text_before) and (value := value_pattern.match(text, end)):
            return value.end()
    return None


# ── tables ──────────────────────────────────────────────────────────────────────────────────────────────────────────

#: A line of names, each of one word or a few. Blanks belong to the preceding name, and a tab is a separator only if
#: there is no other one: an ambiguous pattern would try every combination on a line that does not match.
_HEAD = load_pattern("head")
_QUALIFIER = re.compile(r"""[\s"'`*]*(?!(?i:hash|encr|min|max|old|last))(?:[\w'-]{1,12}[ _-]?){0,2}""")
_TITLE = load_pattern("title")
_CELL_EDGES = " \t\"'`*\r"
_HEAD_REACH = 300
"""Characters of a header on either side of a name."""
_ROW_LENGTH = 1200
"""Characters of a row."""


def find_column_values(
    text: str, start: int, end: int, kind: str, scan_budget: ScanBudget
) -> list[Detection]:
    """Return the values below a name that is a column header, in CSV or in a Markdown table.

    The name of a secret of a kind is at `start` to `end`. The table ends with a row that has other columns.
    """
    begin = text.rfind("\n", max(0, start - _HEAD_REACH), start) + 1
    stop = text.find("\n", end, end + _HEAD_REACH)
    is_cut = begin == 0 and start > _HEAD_REACH
    if stop < 0 or is_cut or not _HEAD.fullmatch(text, begin, stop):
        return []
    header = text[begin:stop]
    separator = max("\t,;|", key=header.count)  # the most frequent one
    header_before = text[begin:start].rstrip("\"'`*\r ")
    header_after = text[end:stop].lstrip("\"'`*\r ")
    if header_after and header_after[0] != separator:
        return []
    if not _QUALIFIER.fullmatch(header_before.rpartition(separator)[2]):
        return []
    column, columns = header_before.count(separator), header.count(separator) + 1
    title = text[start:end].lower()
    detections: list[Detection] = []
    for _ in range(200):  # rows; bounded, because a text may have thousands of lines that look like headers
        scan_budget.spend(300)
        begin = stop + 1
        stop = text.find("\n", begin, begin + _ROW_LENGTH - 1)
        if stop < 0:
            is_last = len(text) - begin < _ROW_LENGTH
            stop = len(text) if is_last else begin
        cells = text[begin:stop].split(separator)
        if len(cells) != columns:
            break
        cell = cells[column]
        value = cell.strip(_CELL_EDGES)
        if title in value.lower() or _TITLE.fullmatch(value):
            break  # the header of another table
        if _is_column_secret(value, kind):
            value_start = begin + sum(map(len, cells[:column])) + column + cell.find(value)
            detections.append(Detection(value_start, value_start + len(value), kind))
    return detections


def _is_column_secret(value: str, kind: str) -> bool:
    """Return whether a cell below the name of a secret looks like one."""
    if len(value) < 6 or rate_randomness(value) < 2 or " " in value or value[0] == "$":
        return False
    if kind != "password" and not looks_random(value):
        return False
    return not looks_harmless(value) and not names_itself(value)


# ── commands ────────────────────────────────────────────────────────────────────────────────────────────────────────


@cache
def _index_commands() -> list[tuple[re.Pattern[str], list[tuple[str, int]]]]:
    """Return the literals of the table of commands with their row numbers, by a pattern that these rows all need.

    One search for that pattern rules out all of its rows for most texts.
    """
    literals_by_sign: dict[str, list[tuple[str, int]]] = {}
    for number, row in enumerate(load_table_rows("commands")):
        literals_by_sign.setdefault(row["sign"], []).extend((literal, number) for literal in row["has"])
    return [(compile_pattern(sign), literals) for sign, literals in literals_by_sign.items()]


def find_command_secrets(text: str, lower_text: str, scan_budget: ScanBudget) -> Iterator[Detection]:
    """Find the passwords and keys that commands, calls and addresses contain, by rows of data."""
    rows = load_table_rows("commands")
    for sign, literals in _index_commands():
        if not sign.search(text):
            continue
        for number in dict.fromkeys([number for literal, number in literals if literal in lower_text]):
            row = rows[number]
            required = compile_pattern(row.get("near", ""))
            kind = "api_key" if row["look"] == "drawn" else "password"
            scan_budget.spend(len(text))
            for match in compile_pattern(row["shape"]).finditer(text):
                value = match[1].rstrip(".,;?)")
                text_before = lower_text[max(0, match.start() - 100) : match.start()]
                if required.search(text_before) and _LOOKS[row["look"]](value):
                    yield Detection(match.start(1), match.start(1) + len(value), kind)


def _is_actual_value(value: str) -> bool:
    return not names_itself(value) and not is_stop_word(value) and len(set(value)) > 2


def _is_random_value(value: str) -> bool:
    return looks_random(value) and not names_itself(value)


_LOOKS = {"given": _is_actual_value, "made up": looks_like_secret, "drawn": _is_random_value}
