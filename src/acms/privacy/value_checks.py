"""Checks of a value: how random it looks, and whether it looks like something other than a secret."""

from __future__ import annotations

import re
from math import log2

from acms.privacy.rules import get_word_set, load_pattern

DIGIT = re.compile("[0-9]")
LETTER = re.compile(r"[^\W\d_]")
#: Characters that are common in passwords and rare in names of code.
ODD = re.compile(r"[!@#$%^&*?+~<]")
SCRIPT = re.compile("[\u3000-\u30ff\u3400-\u9fff\uac00-\ud7af\uff01-\uff0f\uff1a-\uff20]")

#: Placeholders for a value, in lower case.
_STAND_IN = load_pattern("stand in")
_PATH = load_pattern("path")
_VARIABLE = re.compile(r"\$(?:[A-Z_][A-Z0-9_]*|[a-z_]+)")


def is_placeholder_value(value: str) -> bool:
    """Return whether a value is a placeholder: a variable, a path, dots, or words that describe the value."""
    if value[:1] in tuple("<[{(}") or value[-1:] in tuple(">]})"):
        return True
    if _STAND_IN.fullmatch(value.lower()):
        return True
    return _PATH.fullmatch(value) is not None or _VARIABLE.fullmatch(value) is not None


#: Words for a secret, alone or with a qualifier: `password`, `db_pass`, `myToken2`.
_NAMED = load_pattern("value named")


def names_itself(value: str) -> bool:
    """Return whether a value is a placeholder or a name for itself, as in `user:password@host`."""
    return is_placeholder_value(value) or _NAMED.fullmatch(value) is not None


#: Code rather than a value: an attribute, a call, a name in one of the usual cases.
EXPRESSION = load_pattern("expression")
#: The two parts of a token that joins a machine to a cluster, which read like an attribute.
_JOINING = re.compile(r"[a-z0-9]{6}\.[a-z0-9]{16}")
#: A parameter, an address of memory, the name of an algorithm, a moment, an amount, a place in a file, a ticket, mail.
_TECHNICAL = load_pattern("technical")


def looks_harmless(value: str) -> bool:
    """Return whether an unquoted value looks like an expression, a version or a place in a file."""
    if not EXPRESSION.fullmatch(value) and not _TECHNICAL.fullmatch(value):
        return False
    return not _JOINING.fullmatch(value)


_TERMS = (0.0, *(count * log2(count) for count in range(1, 257)))
"""Terms of the entropy by count, because computing them is most of the work."""


def shannon_entropy(text: str) -> float:
    """Return Shannon's entropy in bits per character."""
    size = len(text)
    if not size:
        return 0.0
    counts = map(text.count, set(text))
    terms = (
        map(_TERMS.__getitem__, counts) if size < len(_TERMS) else (count * log2(count) for count in counts)
    )
    return log2(size) - sum(terms) / size


_CHANGE = re.compile(r"[a-z](?=[A-Z0-9])|[A-Z](?=[0-9])|[0-9](?=[A-Za-z])")
_HEX = re.compile(r"[0-9a-f]{24,128}|[0-9A-F]{24,128}")
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def looks_random(value: str) -> bool:
    """Return whether a value looks random: hexadecimal, or letters and digits that alternate more than in words."""
    if _HEX.fullmatch(value) or _UUID.fullmatch(value):
        return shannon_entropy(value) > 2.8 and LETTER.search(value) is not None
    if not DIGIT.search(value):
        return False
    changes = len(_CHANGE.findall(value)) / len(value)
    return changes >= 0.28 and shannon_entropy(value) > 3


def rate_randomness(value: str) -> int:
    """Return how random a value looks: 0 a word or number, 1 a varied word, 2 letters and digits, 3 mixed or random."""
    if not LETTER.search(value):
        return 0
    inner = value.strip("?.,:;")
    if DIGIT.search(inner):
        return 3 if _is_mixed_with_digits(inner) or looks_random(inner) else 2
    return _rate_word(inner.strip("!*~"), _has_mixed_case(inner))


def _has_mixed_case(text: str) -> bool:
    """Return whether a text has small and capital letters, in another way than a word at the start of a sentence."""
    has_small = any(map(str.islower, text))
    has_capital = any(map(str.isupper, text))
    return has_small and has_capital and not text[1:].islower()


def _is_mixed_with_digits(text: str) -> bool:
    """Return whether a text with digits has odd characters too, or mixes letters and digits as no name does."""
    if ODD.search(text, 1):
        return True
    without_end_digits = text.rstrip("0123456789")
    if without_end_digits[1:].islower():  # a word with a number, such as "Summer2024"
        return False
    has_small = any(map(str.islower, text))
    has_capital = any(map(str.isupper, text))
    is_code_in_capitals = has_capital and not has_small and text.isalnum()
    if not is_code_in_capitals:
        return _has_mixed_case(text)
    begins_with_digit = without_end_digits != without_end_digits.lstrip("0123456789")
    return begins_with_digit or shannon_entropy(text) > 3  # bits per character


def _rate_word(word: str, is_mixed: bool) -> int:
    """Return how random a word without digits looks."""
    if not word.isascii():
        return 0
    changes = len(_CHANGE.findall(word)) if len(word) >= 10 and word.isalnum() else 0
    if changes > 2 and not EXPRESSION.fullmatch(word):
        return 2
    if ODD.search(word) or (is_mixed and word.isalnum()):
        return 1
    is_list_of_words = word.count("-") >= 3 and word.replace("-", "").isalpha()
    return 1 if is_list_of_words else 0


#: The end of a value without quotes: a comma before a space, the next parameter, an escape.
_ENDS = load_pattern("ends")


def trim_bare_value(value: str) -> str:
    """Return an unquoted value up to a comma, the next parameter, a closing bracket or a full stop."""
    end = _ENDS.search(value)
    if end:
        value = value[: end.start()]
    script = None if value.isascii() else SCRIPT.search(value)
    if script:
        value = value[: script.start()]  # a sentence continues, in a script without blanks between words
    if not any(bracket in value for bracket in "([{"):
        value = value.rstrip(")]},;.:") or value
    return value.rstrip(".,;:") if len(value) > 1 else value


_REST = re.compile(r"(?>(?:[^\s\"'`<>“”,;&\\)\]}]|<(?=\d))*)")


def end_of_value(text: str, end: int) -> int:
    """Return the end of a value of which only the first characters were checked."""
    return skip_match(_REST, text, end)


def skip_match(pattern: re.Pattern[str], text: str, offset: int) -> int:
    """Return the end of the match of a pattern at an offset, or the offset itself if it does not match."""
    match = pattern.match(text, offset)
    return match.end() if match else offset


def is_stop_word(value: str) -> bool:
    """Return whether a value is a word that describes a value: required, invalid, hidden."""
    lower_value = value.lower()
    return lower_value in get_word_set("stop") or lower_value.rstrip("?!.") in get_word_set("stop")


def is_no_value(text: str, value: str, start: int) -> bool:
    """Return whether a string cannot be the value of any name: too short, a stop word, a placeholder, a mask."""
    if len(value) < 4 or is_stop_word(value) or is_placeholder_value(value):
        return True
    lower_value = value.lower()
    is_mask = len(set(lower_value)) < 3 and not value.isdigit()
    if is_mask or "[redacted" in lower_value:
        return True
    is_cut = text.startswith(("...", "…", "***"), start + len(value))
    return is_cut and len(value) < 24 and rate_randomness(value) < 3


def looks_like_secret(value: str) -> bool:
    """Return whether a value looks like a secret by itself: mixed or with several digits, and not a name."""
    rating = rate_randomness(value)
    if sum(map(str.isdigit, value)) > 1 or ODD.search(value):
        rating += 1
    if rating < 3 or value[0] == "$":
        return False
    return not looks_harmless(value) and not names_itself(value.rstrip("0123456789"))


#: Units after a number, which is then not a secret.
COUNTED = load_pattern("counted")
#: A word and a number of one digit.
COUNTER = re.compile(r"[A-Za-z]+(?:[_-][A-Za-z]+)*[_-]?\d")
