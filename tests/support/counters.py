"""Token counters for tests: the shipped ones, and ones that do whatever a budget may trip over."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil

from acms.ports import TokenCounter
from acms.providers.tokens import token_counter


class Counting:
    def __init__(self, name: str, count: Callable[[str], int]) -> None:
        self.name = name
        self.count = count


COUNTERS: list[TokenCounter] = [
    token_counter("o200k_base"),
    token_counter("heuristic/4"),
    token_counter("estimate/1"),
    Counting("quarter", lambda text: len(text) // 4),  # short texts are free
    Counting("third", lambda text: ceil(len(text) / 3)),
    Counting("bytes", lambda text: len(text.encode())),
    Counting("words", lambda text: len(text.split())),  # separators are free
    Counting("constant", lambda text: 7 if text else 0),  # joining makes it cheaper, cutting does not
    Counting("squares", lambda text: len(text) ** 2 // 64),  # the whole costs more than its parts
]

NAMES = [counter.name for counter in COUNTERS]
