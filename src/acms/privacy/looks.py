"""The look of a value: how random it looks, and whether it looks like something other than a secret."""

from __future__ import annotations

import re
from math import log2
from sys import maxsize

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
    return (
        value[:1] in tuple("<[{(}")
        or value[-1:] in tuple(">]})")
        or _STAND_IN.fullmatch(value.lower()) is not None
        or _PATH.fullmatch(value) is not None
        or _VARIABLE.fullmatch(value) is not None
    )


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
    return (
        EXPRESSION.fullmatch(value) is not None or _TECHNICAL.fullmatch(value) is not None
    ) and not _JOINING.fullmatch(value)


_TERMS = (0.0, *(count * log2(count) for count in range(1, 257)))


def shannon_entropy(text: str) -> float:
    """Return Shannon's entropy in bits per character."""
    size = len(text)
    if not size:
        return 0.0
    counts = map(text.count, set(text))
    terms = map(_TERMS.__getitem__, counts) if size < len(_TERMS) else (one * log2(one) for one in counts)
    return log2(size) - sum(terms) / size


_CHANGE = re.compile(r"[a-z](?=[A-Z0-9])|[A-Z](?=[0-9])|[0-9](?=[A-Za-z])")
_HEX = re.compile(r"[0-9a-f]{24,128}|[0-9A-F]{24,128}")
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def looks_random(value: str) -> bool:
    """Return whether a value looks random: hexadecimal, or letters and digits that alternate more than in words."""
    if _HEX.fullmatch(value) or _UUID.fullmatch(value):
        return shannon_entropy(value) > 2.8 and LETTER.search(value) is not None
    return (
        DIGIT.search(value) is not None
        and len(_CHANGE.findall(value)) * 25 >= len(value) * 7
        and shannon_entropy(value) > 3
    )


def rate_randomness(value: str) -> int:
    """Return how random a value looks: 0 a word or a number, 1 varied, 2 letters and digits, 3 mixed or random."""
    if not LETTER.search(value):
        return 0
    inner = value.strip("?.,:;")
    odd = ODD.search(inner, 1) is not None
    low, up = any(map(str.islower, inner)), any(map(str.isupper, inner))
    mixed = low and up and not inner[1:].islower()
    if DIGIT.search(inner):
        if not low and up and inner.isalnum():
            mixed = (
                inner.rstrip("0123456789") != inner.rstrip("0123456789").strip("0123456789")
                or shannon_entropy(inner) > 3
            )
        return (
            3 if odd or (mixed and not inner[1:].rstrip("0123456789").islower()) or looks_random(inner) else 2
        )
    inner = inner.strip("!*~")
    if not inner.isascii():
        return 0
    if (
        len(inner) >= 10
        and inner.isalnum()
        and len(_CHANGE.findall(inner)) > 2
        and not EXPRESSION.fullmatch(inner)
    ):
        return 2
    words = inner.count("-") >= 3 and inner.replace("-", "").isalpha()
    return 1 if ODD.search(inner) or (mixed and inner.isalnum()) or words else 0


#: The end of a value without quotes: a comma before a space, the next parameter, an escape.
_ENDS = load_pattern("ends")


def trim_bare_value(value: str) -> str:
    """Return an unquoted value up to a comma, the next parameter, a closing bracket or a full stop."""
    end = _ENDS.search(value)
    if end:
        value = value[: end.start()]
    if not value.isascii() and (end := SCRIPT.search(value)):
        value = value[: end.start()]  # a sentence goes on: no blank stands before it
    if not any(map(value.__contains__, "([{")):
        value = value.rstrip(")]},;.:") or value
    return value.rstrip(".,;:") if len(value) > 1 else value


_REST = re.compile(r"(?:[^\s\"'`<>“”,;&\\)\]}]|<(?=\d))*+")


def rest_of(text: str, end: int, stop: int = maxsize) -> int:
    """Return the end of a value of which only the first characters were checked, at most `stop`."""
    rest = _REST.match(text, end, stop)
    return rest.end() if rest else end


def is_stop_word(value: str) -> bool:
    """Return whether a value is a word that describes a value: required, invalid, hidden."""
    low = value.lower()
    return low in get_word_set("stop") or low.rstrip("?!.") in get_word_set("stop")


def is_no_value(text: str, value: str, start: int) -> bool:
    """Return whether a string cannot be the value of any name: too short, a stop word, a placeholder, a mask."""
    return (
        len(value) < 4
        or is_stop_word(value)
        or is_placeholder_value(value)
        or (len(set(value.lower())) < 3 and not value.isdigit())
        or "[redacted" in value.lower()
        or (
            len(value) < 24
            and rate_randomness(value) < 3
            and text.startswith(("...", "…", "***"), start + len(value))
        )
    )


def looks_like_secret(value: str) -> bool:
    """Return whether a value looks like a secret by itself: mixed or with several digits, and not a name."""
    several = sum(map(str.isdigit, value)) > 1 or ODD.search(value) is not None
    look = rate_randomness(value) + several
    return (
        look > 2
        and value[0] != "$"
        and not looks_harmless(value)
        and not names_itself(value.rstrip("0123456789"))
    )


#: Units after a number, which is then not a secret.
COUNTED = load_pattern("counted")
#: A word and a number of one digit.
COUNTER = re.compile(r"[A-Za-z]+(?:[_-][A-Za-z]+)*[_-]?\d")
