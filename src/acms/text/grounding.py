"""Grounding: check whether the words of a statement stand (occur) in the texts it was made from.

A small model copies its instructions, adds knowledge from elsewhere, and fills fields with dashes. None of that may
become a fact. No word list can recognise all of it, so statements are compared with the texts that were read. There
are three measures, each against a different fault:

- *Numbers* must all stand: 16 is not 18. Grouping is read, and k and M ("55,000", "55 000", "55k"), Chinese numerals,
  and the parts of a date that a text names relative to the day it was said ("next Friday", in the languages of
  `acms.text.date_phrases`). Other numbers written as words do not stand for digits: models are told to copy.
- *Coined names* must all stand: words with a capital inside, such as PostgreSQL or gRPC. Other capitals prove nothing:
  they begin sentences, and every German noun.
- *Words* stand by their stem in the language of the text, or when most of their letters do, and half of them are
  enough. So "no deployments on Fridays" stands in "never deploy on Fridays", and a value of one word stands or does
  not. Function words are not counted, nor words of the field that a value fills: "PostgreSQL database" at the attribute
  "database" is "PostgreSQL". Scripts without spaces are compared as a whole, then by pairs of characters.

A value translated into another language does not stand: models are told to keep the language.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from datetime import date, datetime, timedelta

from acms.log.validity import Period
from acms.text.date_phrases import find_periods, is_weekday
from acms.text.tokenizer import (
    ENGLISH,
    MONTHS,
    detect_language,
    function_words,
    primary_term,
    split_words,
    strip_accents,
    variant_terms,
)

MIN_WORD_SHARE = 0.5
"""Share of the words of a statement that must occur in a text."""

MIN_PREFIX_LETTERS = 4
"""Letters two forms of a word begin with, at least."""
MIN_PREFIX_SHARE = 2 / 3
"""Share of the longer of two forms of a word that both begin with, at least: counselor, counsellor."""

_NUMBER = re.compile(r"\d+(?:[.,'’\u00a0\u202f ]\d+)*(?:\s?[kKmM](?!\w))?")
_GROUPED = re.compile(r"\d{1,3}(?:[,.'’\u00a0\u202f ]\d{3})+")
_ABBREVIATED = re.compile(r"(\d+)(?:[.,](\d+))?\s?([kKmM])")
_COINED = re.compile(r"\w*(?:[a-z][A-Z]|[A-Z]{2}[a-z]{2})\w*")
_LETTERS = re.compile(r"[^\d_]+")
_DIGITS = re.compile(r"\d+")
_NUMERALS = re.compile("[〇一二三四五六七八九十百千]+")
_ZEROS = {"k": 3, "m": 6}


def is_placeholder(text: str) -> bool:
    """Return whether a text has no letter, digit, symbol or emoji: "…", "-", "?"."""
    return bool(text.strip()) and not any(_has_content(char) for char in text)


def _has_content(char: str) -> bool:
    return unicodedata.category(char)[0] in "LN" or _is_symbol(char)


def _is_symbol(char: str) -> bool:
    return unicodedata.category(char) in ("So", "Sc")


class _IndexedText:
    """The words of one text, looked up by stem and by their first letters."""

    def __init__(self, text: str, months: Sequence[str]) -> None:
        words = [*split_words(text), *_alphabetic_parts(text), *months]
        #: Enough words to detect the language.
        self._head = words[:64]
        self._terms = set(map(primary_term, words)).union(*variant_terms(words).values())
        self._by_prefix: dict[str, set[str]] = {}
        for word in map(strip_accents, words):
            self._by_prefix.setdefault(word[:MIN_PREFIX_LETTERS], set()).add(word)
        self.joined_text = _strip_separators(text)

    def share(self, words: Sequence[str]) -> float:
        """Return the share of some words that occur in the text, from 0 to 1."""
        variants = variant_terms([*self._head, *words])
        found_words = [word for word in words if self._contains(word, variants[word])]
        return len(found_words) / len(words)

    def _contains(self, word: str, variants: Sequence[int]) -> bool:
        """Return whether a word occurs, by its stem or by most of its letters."""
        if not self._terms.isdisjoint((primary_term(word), *variants)):
            return True
        has_case = word.lower() != word.upper()
        if not has_case:  # in most scripts without case, words are not separated by spaces
            return word in self.joined_text
        bare = strip_accents(word)
        similar = self._by_prefix.get(bare[:MIN_PREFIX_LETTERS], ())
        return any(_is_inflection(bare, other) for other in similar)


def _is_day(period: Period, day: date) -> bool:
    """Return whether a period begins with a day."""
    return period.start is not None and period.start.date() == day


class Evidence:
    """Texts that statements are compared with, each with its time, from which relative dates count."""

    def __init__(self, texts: Iterable[tuple[str, datetime | None]]) -> None:
        self._texts: list[_IndexedText] = []
        self._numbers = set[str]()
        #: First days of the periods that the texts name, and the first days after them.
        self._days = set[date]()
        for text, created_at in texts:
            text = unicodedata.normalize("NFKC", text)
            periods = find_periods(text, created_at) if created_at is not None else []
            if created_at is not None and any(map(is_weekday, split_words(text))):
                # "Monday", said on a Monday, is seldom this day: small models write the day of the turn.
                periods = [period for period in periods if not _is_day(period, created_at.date())]
            starts = [period.start.date() for period in periods if period.start is not None]
            ends = [period.end.date() for period in periods if period.end is not None]
            self._days.update(starts, ends)
            self._texts.append(_IndexedText(text, [MONTHS[day.month - 1] for day in starts]))
            self._numbers |= _find_numbers(text)
            for day in starts:
                self._numbers |= {str(day.year), str(day.month), str(day.day)}

    def missing_details(self, statement: str) -> list[str]:
        """Return the numbers and coined names of a statement that occur in none of the texts."""
        statement = unicodedata.normalize("NFKC", statement)
        missing = [number.strip() for number in _NUMBER.findall(statement) if not self._has_number(number)]
        for name in _COINED.findall(statement):
            joined = _strip_separators(name)
            if not any(joined in text.joined_text for text in self._texts):
                missing.append(name)
        return missing

    def _has_number(self, number: str) -> bool:
        if _normalize_number(number) in self._numbers:
            return True
        parts = _find_digit_runs(number) - {"0"}  # full hours are written both ways: "at 10", "10:00"
        return parts <= self._numbers

    def names_day(self, day: date) -> bool:
        """Return whether the texts name a day or the day before it.

        The day before counts because a statement that is valid through 5 May ends on 6 May.
        """
        for candidate in (day, day - timedelta(days=1)):
            day_and_month = {str(candidate.day), str(candidate.month)}
            if candidate in self._days or day_and_month <= self._numbers:
                return True
        return False

    def share(self, statement: str, ignored: str = "") -> float:
        """Return the share of a statement's words that occur in the text with most of them, from 0 to 1.

        Function words and the words of `ignored` are counted only if there are no others. Numbers are never counted:
        `missing_details` checks them.
        """
        statement = unicodedata.normalize("NFKC", statement)
        joined = _strip_separators(statement)
        may_lack_spaces = bool(joined) and not statement.isascii()
        if may_lack_spaces and any(joined in text.joined_text for text in self._texts):
            return 1.0
        words = _alphabetic_parts(statement)
        if not words:
            return 1.0
        counted_words = _select_content_words(words, split_words(unicodedata.normalize("NFKC", ignored)))
        return max((text.share(counted_words) for text in self._texts), default=0.0)

    def says(self, statement: str, ignored: str = "") -> bool:
        """Return whether a statement occurs in the texts: its numbers and names, and enough of its words."""
        return not self.missing_details(statement) and self.share(statement, ignored) >= MIN_WORD_SHARE


def _alphabetic_parts(text: str) -> list[str]:
    """Return the words of a text without their digits: of "200ms" it is "ms"."""
    return [part for word in split_words(text) for part in _LETTERS.findall(word)]


def _select_content_words(words: Sequence[str], ignored: Sequence[str]) -> Sequence[str]:
    """Remove function words, then the words of `ignored`; skip a step that would leave no word."""
    function = function_words(ENGLISH) | function_words(detect_language(words))
    content = [word for word in words if word not in function] or words
    ignored_terms = set(map(primary_term, ignored))
    counted_words = [word for word in content if primary_term(word) not in ignored_terms]
    return counted_words or content


def _is_inflection(word: str, other_word: str) -> bool:
    """Return whether two words share a prefix long enough to be forms of one word, such as counselor, counsellor."""
    shared_letters = 0
    for letter, other_letter in zip(word, other_word, strict=False):
        if letter != other_letter:
            break
        shared_letters += 1
    return shared_letters >= MIN_PREFIX_LETTERS and shared_letters >= MIN_PREFIX_SHARE * max(
        len(word), len(other_word)
    )


def _strip_separators(text: str) -> str:
    """Return a text in lower case without space and punctuation."""
    return "".join(char for char in text.casefold() if char.isalnum() or _is_symbol(char))


def _find_numbers(text: str) -> set[str]:
    """Return the numbers of a text: whole numbers, each run of digits alone, and Chinese numerals."""
    numbers = _find_digit_runs(text)
    numbers |= {_normalize_number(number) for number in _NUMBER.findall(text)}
    numbers |= {str(_parse_chinese_numeral(run)) for run in _NUMERALS.findall(text)}
    return numbers


def _find_digit_runs(text: str) -> set[str]:
    """Return the runs of digits in a text, without leading zeros."""
    return {run.lstrip("0") or "0" for run in _DIGITS.findall(text)}


def _normalize_number(number: str) -> str:
    """Return a number in one spelling, so that equal numbers compare equal: "55000" for "55,000", "55 000" and "55k".

    A number without grouping and suffix is returned unchanged.
    """
    abbreviated = _ABBREVIATED.fullmatch(number)
    if abbreviated is not None:
        whole, fraction, suffix = abbreviated.groups(default="")
        digits = whole + fraction.ljust(_ZEROS[suffix.lower()], "0")
        return digits.lstrip("0") or "0"
    if _GROUPED.fullmatch(number):
        return "".join(char for char in number if char.isdigit())
    return number


def _parse_chinese_numeral(run: str) -> int:
    """Return the number of a run of Chinese numerals: 二十三 is 23."""
    total = 0
    digits = 0  # the number before the next ten, hundred or thousand
    for char in run:
        value = int(unicodedata.numeric(char))
        if value >= 10:
            total += max(digits, 1) * value
            digits = 0
        else:
            digits = digits * 10 + value
    return total + digits
