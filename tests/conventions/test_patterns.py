"""Regular expressions match the same on every supported version of Python."""

from __future__ import annotations

import re
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[2] / "src" / "acms"

_POSSESSIVE_GROUP = re.compile(r"(?<!\\)\)(?:[?*+]|\{\{?\d*,?\d*\}?\})\+")
"""A group with a possessive quantifier: it matches too much before Python 3.11.5 (cpython issue 106052).

An atomic group matches the same text in all versions: `(?>(?:ab?)*)` instead of `(?:ab?)*+`.
"""


_PUNCTUATION = "()*+,-./"
"""The order of ASCII: in a set of punctuation marks, not in a pattern."""


def test_no_group_has_a_possessive_quantifier() -> None:
    found: list[str] = []
    for path in sorted(SOURCES.rglob("*")):
        if path.suffix not in (".py", ".json", ".jsonl"):
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if _POSSESSIVE_GROUP.search(line) and _PUNCTUATION not in line:
                found.append(f"{path.relative_to(SOURCES)}:{number}")
    assert found == []
