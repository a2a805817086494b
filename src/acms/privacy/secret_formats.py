"""Secrets that are recognized by their own form: private keys, credentials in URLs, tokens of known services.

Every search is linear. A format is tried only at one of its literals, each repetition has an upper bound, and matched
text is not searched again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from acms.privacy.detector_types import Detection, ScanBudget
from acms.privacy.rules import compile_pattern, join_literals, load_pattern, load_table_rows
from acms.privacy.value_checks import looks_random, names_itself, shannon_entropy, skip_match

# ── private keys ────────────────────────────────────────────────────────────────────────────────────────────────────

_BEGIN = re.compile(r"-----BEGIN[ A-Z0-9_-]{0,60}?PRIVATE KEY(?: BLOCK)?-----|PuTTY-User-Key-File-\d:")
_END = re.compile(r"-----END[ A-Z0-9_-]{0,60}?PRIVATE KEY(?: BLOCK)?-----|Private-MAC: [0-9a-f]{0,64}")
#: A further line of a key: base64, its header fields, quotes and line joins in code, JSON and diffs.
_BODY = load_pattern("body")
_LONG = re.compile(r"[A-Za-z0-9+/]{16}")
#: The last line of a text that ends within a key.
_CUT = re.compile(r"\n[ \t>]{0,12}([A-Za-z0-9+/]{1,80}={0,2})\s*\Z")
_LINE = re.compile(r"[A-Za-z0-9+/]{1,100}={0,2}")
_KEY_LENGTH = 20_000
"""Characters of a key: RSA keys of 16,384 bits have 13,000."""


def find_private_keys(text: str, scan_budget: ScanBudget) -> Iterator[Detection]:
    """Find keys in PEM, PGP and PuTTY form; a truncated key extends as far as its lines look like a key."""
    begins = [(match.start(), match.end(), False) for match in _BEGIN.finditer(text)]
    ends = [(match.start(), match.end(), True) for match in _END.finditer(text)]
    boundaries = sorted([*begins, *ends])
    searched_until = 0
    for index, (start, end, is_end) in enumerate(boundaries):
        scan_budget.spend(200)
        if start < searched_until:
            continue
        following = boundaries[index + 1] if index + 1 < len(boundaries) else None
        if is_end:  # its beginning was cut away
            start = material = _find_key_start(text, searched_until, start)
            material_end, searched_until = boundaries[index][0], end
        elif following and following[2] and following[1] - start <= _KEY_LENGTH:
            material, material_end, searched_until = end, following[0], following[1]
        else:
            material, material_end = end, _find_key_end(text, end)
            last_line = _CUT.match(text, material_end)
            searched_until = last_line.end(1) if last_line else material_end
        if _has_key_material(text, material, material_end):  # otherwise the text only mentions a key
            yield Detection(start, searched_until, "private_key")


def _find_key_start(text: str, earliest: int, end: int) -> int:
    """Return the offset of the first line of a key whose end mark begins at `end`."""
    lines = text[max(earliest, end - 8000) : end].split("\n")
    start = end
    while lines:
        line = lines[-1].strip()
        if line and (len(line) < 12 or not _LINE.fullmatch(line)):
            break
        start -= len(lines.pop()) + 1
    return max(start + 1, earliest)


def _find_key_end(text: str, begin: int) -> int:
    """Return the end of the lines that look like a key; `begin` is the end of its begin mark."""
    body = _BODY.match(text, begin, begin + _KEY_LENGTH)
    return begin + len(body[0].rstrip(" \t\n\r\"'`,|>\\")) if body else begin


def _has_key_material(text: str, start: int, end: int) -> bool:
    """Return whether this span contains key material, not dots or "your key here"."""
    return any(len(set(line[0])) > 6 for line in _LONG.finditer(text, start, end))


# ── credentials in addresses ────────────────────────────────────────────────────────────────────────────────────────

_SCHEME = re.compile(r"(?:jdbc:)?[A-Za-z][A-Za-z0-9+.-]{1,30}$")
_CREDENTIALS = re.compile(r"""://([^\s/?#:@"'`<>]{0,128}+):([^\s/"'`<>]{1,256})@([^\s"'`<>,;)\]}]{1,512}+)""")
VARIABLE = load_pattern("variable")


def find_credential_urls(text: str, scan_budget: ScanBudget) -> Iterator[Detection]:
    """Find `scheme://user:password@host…`, whole."""
    separator = text.find("://")
    while separator >= 0:
        scan_budget.spend(100)
        search_from = separator + 3
        match = _CREDENTIALS.match(text, separator)
        scheme = _SCHEME.search(text, max(0, separator - 32), separator) if match else None
        if match and scheme and not VARIABLE.fullmatch(match[2]) and not names_itself(match[2]):
            end = match.start() + len(match[0].rstrip(".:!?"))
            yield Detection(scheme.start(), end, "connection_string")
            search_from = match.end()
        separator = text.find("://", search_from)


# ── tokens of known services ────────────────────────────────────────────────────────────────────────────────────────

#: A run of token characters of sufficient length; prose has few of these.
_RUN = re.compile(r"(?<![A-Za-z0-9_.~+/=%:$-])[A-Za-z0-9_.~+/=%:$-]{16,}+")
_MORE = re.compile(r"[A-Za-z0-9_-]*+")
#: In lower case; each alternative begins with one character, so that a search can skip to the next of these.
_DUMMY = re.compile(
    r"example(?:key)?$|xxxxx|\*\*\*|\.\.\.|_here$|-here$|placeholder|changeme|redacted|00000000|"
    + "|".join(
        rf"{word[0]}(?<![a-z0-9]{word[0]}){word[1:]}[_-]"
        for word in "your my insert replace enter put change some fake".split()
    )
)
#: An issuer's prefix and a random part, the form of newer tokens. Ids are shorter or hexadecimal.
_PREFIXED = load_pattern("prefixed")
_PUBLIC = re.compile(r"pk_|pk$|phc|pub|sb_pub|price|cs_|cs$|evt|acct|img|file|hash|sha|id_|ref")


def _is_genuine_token(value: str, min_entropy: float) -> bool:
    """Return whether a value in the shape of a token is random, not an example."""
    if len(set(value)) < 2**min_entropy or (min_entropy and shannon_entropy(value) < min_entropy):
        return False  # a cheap check first: the entropy is at most log2 of the number of distinct characters
    lower_value = value.lower()
    return len(set(lower_value)) > 1 and not _DUMMY.search(lower_value)


class _Formats(NamedTuple):
    """The rows of `privacy-tokens.jsonl`, compiled for searching."""

    #: Any prefix that is not inside a word.
    heads: re.Pattern[str]
    #: Shape and least entropy, by prefix.
    shapes: dict[str, list[tuple[str, float]]]
    #: A literal inside the token, the shape of the whole token, and its kind. A group in the shape is where it begins.
    infixes: list[tuple[str, re.Pattern[str], str]]


@cache
def _load_formats() -> _Formats:
    """Load and compile the table of token formats, once.

    A row has the prefixes of its tokens (`heads`), or a literal that is `inside` them.
    """
    shapes: dict[str, list[tuple[str, float]]] = {}
    infixes: list[tuple[str, re.Pattern[str], str]] = []
    for row in load_table_rows("tokens"):
        if "inside" in row:
            infixes.append((row["inside"], re.compile(row["shape"]), row["kind"]))
        for head in row.get("heads", ()):
            shapes.setdefault(head, []).append((row["shape"], row.get("least", 0.0)))
    # A text with a longer prefix also begins with its shorter ones, so it has their shapes too.
    for head, own_shapes in shapes.items():
        for shorter_head in sorted(shapes, key=len, reverse=True):
            if shorter_head != head and head.startswith(shorter_head):
                own_shapes += [shape for shape in shapes[shorter_head] if shape not in own_shapes]
    # The pattern begins with a set of characters, which the search finds fastest. A token may directly follow a letter
    # that is part of an escape, as in "\ntoken" or "%3Dtoken".
    first_characters = "".join(sorted({re.escape(head[0]) for head in shapes}))
    boundary = r"(?:(?<![A-Za-z0-9])|(?<=\\[nrt])|(?<=%[0-9A-Fa-f][0-9A-Fa-f]))"
    heads = re.compile(rf"(?=[{first_characters}]){boundary}(?:{join_literals(list(shapes))})")
    return _Formats(heads, shapes, infixes)


def find_tokens(text: str, scan_budget: ScanBudget) -> Iterator[Detection]:
    """Find tokens that are identified by their prefix or by a literal inside them."""
    for run in _RUN.finditer(text):
        scan_budget.spend(run.end() - run.start())
        yield from _find_tokens_in_run(text, run.start(), run.end())
    for literal, shape, kind in _load_formats().infixes:
        if literal in text:
            for match in shape.finditer(text):
                token_group = match.lastindex or 0  # the whole match if the shape has no group
                yield Detection(match.start(token_group), match.end(), kind)


def _find_tokens_in_run(text: str, start: int, stop: int) -> Iterator[Detection]:
    """Yield the tokens in a run of token characters: those with a known prefix, then others like `prefix_random`."""
    formats = _load_formats()
    offset = start
    while head := formats.heads.search(text, offset, stop):
        match = _match_token(text, head, formats.shapes[head[0]])
        if match is None:
            offset = head.end()
            continue
        offset = skip_match(_MORE, text, match.end())
        token_start = match.start()
        if "." in head[0] and text.endswith("https://", start, token_start):
            token_start -= len("https://")
        yield Detection(token_start, offset, "api_key")
    if text.find("_", start, stop) >= 0:
        for match in _PREFIXED.finditer(text, start, stop):
            is_mixed = not match[2].islower() and not match[2].isupper()
            if is_mixed and looks_random(match[2]) and not _PUBLIC.match(match[1]):
                yield Detection(match.start(), match.end(), "api_key")


def _match_token(text: str, head: re.Match[str], shapes: list[tuple[str, float]]) -> re.Match[str] | None:
    """Return the match of a genuine token that begins with a prefix, or None."""
    for shape, min_entropy in shapes:
        match = compile_pattern(shape, re.ASCII).match(text, head.start())
        if not match or not _is_genuine_token(match[0][:100], min_entropy):
            continue
        is_cut = len(match[0]) < 24 and text.startswith(("...", "…", "***"), match.end())
        if not is_cut:
            return match
    return None
