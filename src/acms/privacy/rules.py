"""The data of the detectors, loaded once: words, formats of tokens, commands that take a password."""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.resources import files
from typing import Any


def _read_data_file(name: str) -> str:
    return (files("acms") / "data" / name).read_text(encoding="utf-8")


@cache
def load_word_lists() -> dict[str, Any]:
    """Return lists of words by purpose: names of secrets, links, placeholders, names of numbers."""
    return json.loads(_read_data_file("privacy-words.json"))


@cache
def get_word_set(name: str) -> frozenset[str]:
    """Return one list of words."""
    return frozenset(load_word_lists()[name])


@cache
def load_table_rows(name: str) -> list[dict[str, Any]]:
    """Return the rows of a table: formats of tokens, commands."""
    return [json.loads(line) for line in _read_data_file(f"privacy-{name}.jsonl").splitlines()]


def join_literals(words: list[str]) -> str:
    """Return a pattern of literals, longest first, grouped by first character to reject most positions quickly."""
    by_first: dict[str, list[str]] = {}
    for word in sorted(set(words), key=len, reverse=True):
        by_first.setdefault(re.escape(word[0]), []).append(re.escape(word[1:]))
    return "|".join(
        f"{first_character}(?:{'|'.join(endings)})" for first_character, endings in by_first.items()
    )


@cache
def compile_pattern(shape: str, flags: int = 0) -> re.Pattern[str]:
    """Compile a pattern of the data on first use."""
    return re.compile(shape, flags)


@cache
def _load_patterns() -> dict[str, list[str]]:
    return json.loads(_read_data_file("privacy-shapes.json"))


def load_pattern(name: str) -> re.Pattern[str]:
    """Compile a pattern of the data: one alternative per row, with the flags in an optional first row."""
    rows = _load_patterns()[name]
    if rows[0] == "(?i)":
        return re.compile("(?i)" + "|".join(rows[1:]))
    return re.compile("|".join(rows))
