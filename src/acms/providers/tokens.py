"""Token counters: exact, estimated and the crude seed rule.

Exact counts come from toktok-rs, which carries the vocabularies in its wheel and is imported at the
first count.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from acms.errors import ConfigurationError, ValidationError
from acms.runtime.threads import pause_if_busy

if TYPE_CHECKING:
    from acms.ports import TokenCounter

__all__ = [
    "BPETokenCounter",
    "CautiousTokenCounter",
    "EstimatingTokenCounter",
    "HeuristicTokenCounter",
    "TiktokenCounter",
    "default_counter",
    "token_counter",
]

_ENCODINGS = ("o200k_base", "cl100k_base")
_BATCH = 256
"""Texts of one batch. A batch takes 10 µs to set up, and while its texts are read no other thread runs."""


class BPETokenCounter:
    """Exact token counts of an OpenAI encoding, offline.

    `encoding` is `o200k_base` or `cl100k_base`; anything else raises `ConfigurationError`. Special tokens
    inside a text, such as `<|endoftext|>`, are counted as ordinary text. The first count of a
    process loads the vocabulary (about 0.4 s and 48 MB for `o200k_base`), and each thread takes 17 MB of its own
    to count with. Safe to use from several threads.
    """

    #: A text counts as much as its parts together, when each part ends in a line break and the next one begins with
    #: a letter: no pattern of the encodings goes on there.
    paragraphs = True

    def __init__(self, encoding: str = "o200k_base") -> None:
        if encoding not in _ENCODINGS:
            raise ConfigurationError(f"unknown encoding {encoding!r}; known: {', '.join(_ENCODINGS)}")
        self.name = encoding
        self._truncate: Callable[[str, int, str], tuple[str, int]] | None = None

    def count(self, text: str) -> int:
        """Return the number of tokens of `text`.

        Raises `ValidationError` (field "text") for a lone surrogate, which no encoding can express.
        """
        truncate = self._truncate
        if truncate is None:
            import toktok

            truncate = self._truncate = toktok.truncate
        # `truncate` with a limit out of reach is toktok's shortest public way to one count, under 1 µs a
        # message: `batch_count` of a single text spends 10 µs on setting up the batch.
        try:
            token_count = truncate(text, sys.maxsize, self.name)[1]
        except UnicodeEncodeError as error:
            raise ValidationError(f"lone surrogate at character {error.start}", field="text") from error
        pause_if_busy()
        return token_count


TiktokenCounter = BPETokenCounter
"""The name that the implementation plan gave it: the same counts as the package tiktoken, without it."""


class HeuristicTokenCounter:
    """One token for every four characters: the seed rule, good for rough English only.

    Chinese text has about three times more tokens than this says. Prefer `EstimatingTokenCounter`.
    """

    name = "heuristic/4"

    def count(self, text: str) -> int:
        """Return `len(text) // 4`, at least 1 for a text that is not empty."""
        # At least 1: a log of "ok" and "yes" must not be free, or any number of them would fit a budget.
        return max(len(text) // 4, 1) if text else 0


# The estimator maps every character to one class letter and counts how often short patterns of classes occur.
# A class is read off the first byte of the character's UTF-8 form, so whole scripts fall together.
_CLASSES = (
    (b"a", range(ord("a"), ord("z") + 1)),
    (b"A", range(ord("A"), ord("Z") + 1)),
    (b"0", range(ord("0"), ord("9") + 1)),
    (b" ", b" \t\v\f"),
    (b"\n", b"\r\n"),
    (b"s", (0xC2, 0xE2, 0xEE, 0xEF)),  # typographic punctuation, symbols, full-width and private forms
    (b"l", range(0xC3, 0xCC)),  # Latin letters with accents, IPA
    (b"o", range(0xCC, 0xE2)),  # combining marks, Greek, Cyrillic, Hebrew, Arabic, Indic, Thai, Georgian, ...
    (b"k", (0xE3,)),  # kana and CJK punctuation
    (b"h", range(0xE4, 0xEA)),  # Han
    (b"g", range(0xEA, 0xEE)),  # Hangul
    (b"e", range(0xF0, 0xF8)),  # emoji and everything else outside the BMP
)


def _build_byte_table(default: int, *groups: tuple[bytes, Sequence[int]]) -> bytes:
    """Return a translation table: each byte to the letter of its group, or to the default."""
    table = bytearray([default]) * 256
    for letter, members in groups:
        for byte in members:
            table[byte] = letter[0]
    return bytes(table)


_CLASS = _build_byte_table(ord("."), *_CLASSES)
_CONTINUATION = bytes(range(0x80, 0xC0))
_LETTERS = _build_byte_table(ord(" "), (b"a", b"aAl"))
_DIGITS = _build_byte_table(ord(" "), (b"0", b"0"))
_MARKS = _build_byte_table(ord(" "), (b".", b"."))
_SPACES = _build_byte_table(ord("x"), (b" ", b" "))


class EstimatingTokenCounter:
    """Estimated token counts without any dependency, fitted to o200k_base.

    Counts patterns of character classes. Totals of chat, code and JSON are within 5 %, simplified Chinese is
    7 % over and traditional 12 % under; single texts of 2 kB mostly within 20 %. Furthest off: Cyrillic
    capitals and Telugu (too low), Vietnamese (too high). Accepts any string.
    """

    name = "estimate/1"

    def count(self, text: str) -> int:
        """Return the estimate, at least 1 for a text that is not empty.

        Each character is replaced by the letter of its class (`_CLASSES`), so that runs of one kind, such as digits or
        letters, can be counted as substrings.
        """
        if not text:
            return 0
        classes = b" " + text.encode("utf-8", "surrogatepass").translate(_CLASS, _CONTINUATION)
        count = classes.count
        letters = classes.translate(_LETTERS)
        digits = classes.translate(_DIGITS)
        spaces = classes.translate(_SPACES)
        mark_runs = classes.translate(_MARKS).count(b" .")
        marks_before_letters = sum(
            count(b"." + letter) - count(b" ." + letter) - count(b".." + letter) for letter in (b"a", b"A")
        )
        # Tokens per occurrence: a non-negative least-squares fit to o200k_base counts, 2026-11, on every other 2 kB
        # chunk of LoCoMo, REALTALK and BEAM conversations, Python, JavaScript and C sources, JSON (configuration,
        # tool results, conversations), Markdown and reStructuredText, manual pages in 10 languages and program
        # messages in 22. On the other chunks, which also guided the choice of patterns, the totals of chat, code and
        # JSON were within 3 %, all Chinese together 2 % under, and any one other language within 25 %.
        tokens = (
            # A run of ASCII or accented Latin letters, or a camelCase part of one; every ninth letter of a run.
            0.89 * (letters.count(b" a") + count(b"aA"))
            + 1.26 * letters.count(b"a" * 9)
            # A run of digits, with the space before it; every fourth digit of a run.
            + 1.60 * digits.count(b" 0")
            + 1.07 * digits.count(b"0000")
            # A run of ASCII punctuation; a single mark right before a letter, as in "(x" or "_x", which is often one
            # token with the word; every further character of a run of punctuation.
            + 1.03 * (mark_runs - marks_before_letters)
            + 0.36 * marks_before_letters
            + 0.07 * (count(b".") - mark_runs)
            # A line break not swallowed by the punctuation or the line break before it.
            + 1.93 * (count(b"\n") - count(b".\n") - count(b"\n\n"))
            # A run of two spaces or more, and every 80 spaces of it.
            + 0.67 * (spaces.count(b"x  ") + spaces.count(b" " * 80))
        )
        if not text.isascii():
            tokens += (
                1.15 * count(b"l")  # a Latin letter with an accent: on top of its word
                + 1.11 * count(b"s")  # a symbol
                + 0.36 * count(b"o")  # a letter of another script
                + 0.65 * count(b"k")  # kana
                + 0.79 * count(b"h")  # Han
                + 0.73 * count(b"g")  # Hangul
                + 3.09 * count(b"e")  # a character outside the BMP
            )
        return max(1, round(tokens))


_BY_CLASS: tuple[tuple[bytes, float], ...] = (
    (b"0", 0.38),
    (b".", 0.18),
    (b"l", 1.1),
    (b"o", 0.38),
    (b"i", 1.0),
    (b"k", 0.72),
    (b"h", 0.66),
    (b"g", 1.7),
)
"""Tokens to add for each character of a class, beyond what the two vocabularies count.

These, and the weights of the two vocabularies, were fitted 2026-11 by quantile regression to the largest count of
Qwen2.5, SmolLM2 and Gemma 3 for 2,000 texts: chat in English and Chinese, Python, TypeScript, JSON, numbers, emoji, and
program messages in 33 languages.
"""
_SCRIPT = _build_byte_table(
    ord(" "),
    (b".", b"!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"),
    (b"0", range(ord("0"), ord("9") + 1)),
    (b"l", range(0xC3, 0xCC)),  # Latin letters with accents
    (b"o", range(0xCC, 0xE0)),  # scripts of two bytes: Greek, Cyrillic, Hebrew, Arabic, Armenian
    (b"i", (0xE0, 0xE1)),  # Indic, Thai, Georgian
    (b"k", (0xE3,)),
    (b"h", range(0xE4, 0xEA)),
    (b"g", range(0xEA, 0xEE)),
)


class CautiousTokenCounter:
    """An estimate for a model whose vocabulary is unknown: most models need fewer tokens, some a few more.

    Small vocabularies need up to three times as many tokens for Chinese, Japanese, Korean and Thai as large ones do;
    this is near the larger number. For English it is about a fifth above what all models need.
    """

    name = "cautious/1"

    def __init__(self) -> None:
        self._newer = BPETokenCounter("o200k_base")
        self._older = BPETokenCounter("cl100k_base")

    def count(self, text: str) -> int:
        """Return the estimate, at least 1 for a text that is not empty."""
        if not text:
            return 0
        newer = self._newer.count(text)
        # Tokens that cl100k_base needs beyond those of o200k_base weigh more up to a share of 18 %: no English text.
        older = max(0, self._older.count(text) - newer)
        some_older = min(older, 0.18 * newer)
        tokens = 1.15 * newer + 2.2 * some_older + 0.7 * (older - some_older)
        classes = text.encode("utf-8").translate(_SCRIPT, _CONTINUATION)
        for letter, weight in _BY_CLASS:
            tokens += weight * classes.count(letter)
        return max(1, round(tokens))


_DEFAULT = BPETokenCounter()
_COUNTERS: dict[str, Callable[[], TokenCounter]] = {
    "o200k_base": lambda: _DEFAULT,
    "cl100k_base": lambda: BPETokenCounter("cl100k_base"),
    "heuristic/4": HeuristicTokenCounter,
    "estimate/1": EstimatingTokenCounter,
    "cautious/1": CautiousTokenCounter,
}


def token_counter(name: str) -> TokenCounter:
    """Return the counter of this name: o200k_base, cl100k_base, heuristic/4, estimate/1 or cautious/1.

    Raises `ConfigurationError` for any other name.
    """
    try:
        return _COUNTERS[name]()
    except KeyError:
        raise ConfigurationError(f"unknown token counter {name!r}; known: {', '.join(_COUNTERS)}") from None


def build_batch_counter(counter: TokenCounter) -> Callable[[Iterable[str]], Iterable[int]]:
    """Return a function that counts many texts; for our BPE counter it is faster, and lets other threads run."""
    if type(counter) is not BPETokenCounter:
        return partial(map, counter.count)

    def counts(texts: Iterable[str]) -> Iterator[int]:
        import toktok

        waiting = iter(texts)
        while batch := list(islice(waiting, _BATCH)):
            try:
                yield from toktok.batch_count(batch, counter.name, 1)
            except UnicodeEncodeError:
                yield from map(counter.count, batch)  # raises the error with the position of the surrogate

    return counts


def default_counter() -> BPETokenCounter:
    """Return the counter used when none is given: `o200k_base`, one object per process."""
    return _DEFAULT
