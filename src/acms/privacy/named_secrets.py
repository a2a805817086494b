"""Secrets named by an adjacent word: in prose, code, configuration, headers and tables, in many languages.

A name such as "password" is searched first. A value that a sign assigns (`password = …`) must look like a value; a
value that is only near the name must look random, the more so the further away it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from acms.privacy import phrased_secrets, separated_secrets
from acms.privacy.detector_types import Detection, Name, ScanBudget
from acms.privacy.rules import get_word_set, join_literals, load_pattern, load_word_lists
from acms.privacy.value_checks import (  # fmt: skip
    COUNTED,
    COUNTER,
    DIGIT,
    LETTER,
    SCRIPT,
    end_of_value,
    is_no_value,
    is_stop_word,
    looks_harmless,
    looks_random,
    names_itself,
    rate_randomness,
    shannon_entropy,
    skip_match,
    trim_bare_value,
)  # fmt: skip

_KINDS = {word: kind for kind, some in load_word_lists()["names"].items() for word in some}
_WHOLE_WORDS = frozenset(
    (
        *load_word_lists()["names"]["password_whole"],
        *load_word_lists()["names"]["code"],
        *load_word_lists()["whole"],
    )
)
#: One search finds all names. Most texts are ASCII and need only half of the words.
_ASCII_NAME = re.compile(join_literals([word for word in _KINDS if word.isascii()]))
_ANY_NAME = re.compile(join_literals(list(_KINDS)))
#: Prefixes that are joined to a name to form a compound.
_COMPOUND = re.compile(r"(?:store|key|user|db|root|bind|admin|auth|smtp|mail|ftp|api|wlan|wifi|passwort)$")
_IDENTIFIER_REST = re.compile(r"[A-Za-z0-9_\-]{0,40}+")
_SPLIT = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
#: The text before a name that is part of something else: a template, a path, a URN, the name of a hash.
_REFERENCE = load_pattern("reference")
_PATH = load_pattern("name in path")
_NETWORK = re.compile(r"(?<![a-z])(?:wi-?fi|wlan|ssid)(?![a-z])")
_FOREIGN_KEY = load_pattern("foreign key")


#: Lists of names whose values have digits: without a digit nearby there is nothing to find.
_WITH_DIGITS = frozenset(("code", "code_of", "sign in"))
_PHRASES = frozenset(load_word_lists()["phrases"])
_LOCKS = join_literals(load_word_lists()["locks"])
_LOCK_BEFORE = re.compile(rf"(?<![^\W\d_])(?:{_LOCKS})[^.!?。]*$")
_LOCK_AFTER = re.compile(
    rf"[ ](?:{'|'.join(load_word_lists()['of'])})[ ]?(?:[^\W\d_]{{1,12}}+[ '’]){{0,2}}(?:{_LOCKS})"
)


def lower_keeping_offsets(text: str) -> str:
    """Return a text in lower case with unchanged offsets: only "İ" would become two characters."""
    low = text.lower()
    return low if len(low) == len(text) else text.replace("İ", "i").lower()


def find_secret_names(text: str, lower_text: str, scan_budget: ScanBudget) -> Iterator[Name]:
    """Find names of secrets."""
    for match in (_ASCII_NAME if lower_text.isascii() else _ANY_NAME).finditer(lower_text):
        scan_budget.spend(100)
        name = _read_name(text, lower_text, match.start(), match.end(), match[0])
        if name:
            yield name


def _read_name(text: str, lower_text: str, start: int, end: int, word: str) -> Name | None:
    """Return the name at a word of the lists, or None if it names no secret there."""
    kind = _KINDS[word]
    text_before = lower_text[max(0, start - 48) : start]
    # 110 characters are as far as a sentence may reach from a name to its value.
    if kind in _WITH_DIGITS and not DIGIT.search(text, max(0, start - 110), end + 110):
        return None
    if kind == "sign in":
        return Name(start, end, kind, word) if _begins_word(text, start, text_before) else None
    if word in _WHOLE_WORDS and not (_begins_word(text, start, text_before) and _ends_word(text, end)):
        return None
    if text_before.endswith(_HARMLESS_QUALIFIERS) or text_before.rstrip(" _-").endswith(_HARMLESS_QUALIFIERS):
        return None
    name = _classify_name(text, lower_text, start, end, word)
    return _extend_name(text, name, text_before) if name else None


def _classify_name(text: str, lower_text: str, start: int, end: int, word: str) -> Name | None:
    """Return a name with the kind of its secret and the form of its value, or None if it names no secret."""
    kind = _KINDS[word]
    if kind == "lock":
        return _classify_foreign_key(lower_text, start, end, word)
    if kind == "login":
        return Name(start, end, "secret", word, form="login")
    if kind == "code_of":
        return (
            Name(start, end, "password", word, form="code") if _is_of_lock(lower_text, start, end) else None
        )
    if kind == "code":
        is_capital = text[start:end].isupper()
        of_chip = word == "pin" and not is_capital and not _is_of_lock(lower_text, start, end)
        return Name(start, end, "password", word, form="stated code" if of_chip else "code")
    if word == "key":
        return _classify_key(text, lower_text, start, end)
    form = "phrase" if word in _PHRASES else ""
    return Name(start, end, kind.removesuffix("_whole"), word, form=form)


def _classify_foreign_key(lower_text: str, start: int, end: int, word: str) -> Name:
    """Return a word for "key" in another language as the name of a code, a network password or an API key."""
    end = skip_match(_FOREIGN_KEY, lower_text, end)
    if _is_of_lock(lower_text, start, end):
        return Name(start, end, "password", word, form="code")
    of_network = _NETWORK.search(lower_text, max(0, start - 40), end + 16)
    return Name(start, end, "password" if of_network else "api_key", word, form="login")


def _classify_key(text: str, lower_text: str, start: int, end: int) -> Name | None:
    """Return "key" as the name of a network password or an API key, or None if it only ends another word."""
    text_before = lower_text[max(0, start - 48) : start]
    if text_before.rstrip(" _.-").endswith(_KEY_QUALIFIERS):
        return Name(start, end, "api_key", "key")
    if _NETWORK.search(text_before):
        return Name(start, end, "password", "key")
    if text_before.endswith((" ", "_", "-")) or text[start].isupper():
        return Name(start, end, "api_key", "key", must_look_random=True)
    return None


def _extend_name(text: str, name: Name, text_before: str) -> Name | None:
    """Return a name with the rest of its identifier, or None if the identifier names something else."""
    kind, word = name.kind, name.word
    suffix = ""
    is_followed_by_value = word[-1] == "="
    if not is_followed_by_value and not _is_ideograph(word[-1]):
        suffix = text[name.end : skip_match(_IDENTIFIER_REST, text, name.end)]
    is_plural = suffix == "s"
    if suffix and not is_plural and not _is_name_suffix(suffix):
        return None
    if kind == "secret" and suffix.lower().endswith("key"):
        kind = "api_key"
    elif kind == "secret" and text_before.rstrip(" _.-").endswith(("client", "consumer")):
        kind = "client_secret"
    reference_pattern = _PATH if kind == "password" else _REFERENCE
    if kind not in ("header", "cookie") and reference_pattern.search(text_before):
        return None
    if "${" in text_before[-24:]:
        return None
    return Name(name.start, name.end + len(suffix), kind, word, suffix, name.must_look_random, name.form)


def _is_of_lock(lower_text: str, start: int, end: int) -> bool:
    """Return whether a code is of a door, an alarm or a card: the text names that before it or right after it."""
    text_before = lower_text[max(0, start - 48) : start]
    if text_before.rstrip(" -_").endswith(_OTHER_CODES):
        return False
    return _LOCK_BEFORE.search(text_before) is not None or _LOCK_AFTER.match(lower_text, end) is not None


def _begins_word(text: str, start: int, text_before: str) -> bool:
    """Return whether a word begins here: not after a letter, as a capital after a small one, or in a compound."""
    previous_character = text[max(0, start - 1) : start]
    is_camel_case = text[start].isupper() and previous_character.islower()
    if not previous_character.isalpha() or _is_ideograph(previous_character) or is_camel_case:
        return True
    return _COMPOUND.search(text_before) is not None


def _ends_word(text: str, end: int) -> bool:
    next_character = text[end : end + 1]
    is_camel_case = next_character.isupper() and text[end - 1].islower()
    return (
        not next_character.isalpha()
        or _is_ideograph(next_character)
        or next_character == "s"
        or is_camel_case
    )


def _is_ideograph(char: str) -> bool:
    """Return whether a character is of a script without blanks between words."""
    return char >= "\u2e80"


class _Assignment(NamedTuple):
    """A sign that assigns a value to a name."""

    #: Offset at which the value may begin.
    offset: int
    #: "=" for all that assign clearly, "flag" after an option such as --password, "-" after a short one or a verb.
    sign: str


_NO_ASSIGNMENT = _Assignment(-1, "")
"""The result for a sign that assigns no value, such as a comparison. The sentence around it is not searched either."""


class _Value(NamedTuple):
    """A value that a sign assigns."""

    text: str
    start: int
    name: Name
    sign: str
    is_quoted: bool
    #: Whether the sign makes clear that this is the value of the name.
    is_stated: bool
    value: str


def _is_name_suffix(suffix: str) -> bool:
    """Return whether a name with this suffix still names the secret itself: `password_value`, `token2`."""
    return all(word.isdigit() or word.lower() in get_word_set("still") for word in _SPLIT.findall(suffix))


_KEY_QUALIFIERS = tuple(load_word_lists()["openers"])
_OTHER_CODES = tuple(load_word_lists()["other codes"])
_HARMLESS_QUALIFIERS = tuple(load_word_lists()["harmless_of"])

# ── values ──────────────────────────────────────────────────────────────────────────────────────────────────────────

#: Every alternative begins with a character or a set of them, so most positions are rejected by the first character.
_SIGN = load_pattern("sign")
_VALUE = load_pattern("value")
_CLEAR_SIGNS, _WEAK_SIGNS = frozenset(("=", ":=", "flag", "%3d", "%3D")), frozenset(":：->|")
_GROUPS = ("bare", "double", "single", "tick", "curly", "bold", "escaped")
_VALUE_BEGIN = re.compile(r"""[ \t]{0,12}+["'`“「*]{0,2}""")
_PHRASE_END = re.compile(r"""["'`”」*]|[.,]?[ \t]*(?:\r?\n|$)""")
_LINE_END = re.compile(r"[ \t]*(?:\r?\n|$)")
_SENTENCE_CONTINUES = re.compile(r"[ \t]+[a-z]+(?![\w=:@/.-]*[=:@])")
#: The text required before a name for some signs: a bracket, a tag, the name of a setter.
_REQUIRED_BEFORE_SIGN = {
    ",": re.compile(r"""[(\[][ \t\n]{0,4}["'][\w.:#\[\]='-]{0,48}$"""),
    ">": re.compile(r"<[\w.:-]{0,48}$"),
    "(": re.compile(
        r"(?:\.|->|::|\bset|\bwith|_set|_with)(?!\w{0,24}(?:get|read|fetch|find|load|ask|check|verif|hash|is|has))\w{0,40}$"
    ),
}
_FLAG = re.compile(r"(?:^|\s)(--?|/)[\w.-]{0,40}$")
_SET_COMMAND = load_pattern("set before")
_LOGIN_COMMAND = load_pattern("login before")


def find_named_secrets(text: str, lower_text: str, scan_budget: ScanBudget) -> list[Detection]:
    """Find passwords, keys, tokens and secrets that are named in prose, code, configuration, headers and commands."""
    detections: list[Detection] = []
    searched_until = 0
    for name in find_secret_names(text, lower_text, scan_budget):
        if name.start < searched_until:  # the name is part of a value that was found
            continue
        secret = _find_secret(text, lower_text, name, scan_budget)
        if secret is None:
            if name.suffix != "s" and name.kind not in ("header", "cookie", "phrase", "sign in"):
                detections += separated_secrets.find_column_values(
                    text, name.start, name.end, name.kind, scan_budget
                )
        elif not name.must_look_random or looks_random(text[secret.start : secret.end]):
            detections.append(secret)
            searched_until = secret.end
    return detections


def _find_secret(text: str, lower_text: str, name: Name, scan_budget: ScanBudget) -> Detection | None:
    """Return the value of a name: assigned by a sign, in a sentence after or before it, or in an answer."""
    if name.kind == "header":
        return separated_secrets.find_header_credential(text, name.end, name.word)
    if name.kind == "cookie":
        return separated_secrets.find_cookie(text, name.end)
    if name.kind == "phrase":
        return separated_secrets.find_mnemonic(text, name.end)
    if name.kind == "sign in":
        return phrased_secrets.find_sign_in(text, name)
    assignment = _find_assignment(text, lower_text, name)
    if assignment is _NO_ASSIGNMENT:
        return None
    if assignment is not None:
        return _find_phrase_or_code(text, name, assignment.offset) or _match_value(text, name, assignment)
    if text[max(0, name.start - 1) : name.start] in ("/", "$") or text[name.end : name.end + 1] in ("(", "_"):
        return None
    return phrased_secrets.find_phrased_secret(text, lower_text, name, scan_budget)


def _find_phrase_or_code(text: str, name: Name, offset: int) -> Detection | None:
    """Return the passphrase, or for a name such as "PIN" the digits, that a sign assigns to a password's name.

    The sign is "=", ":" or a command, and `offset` is the offset after it. None if neither follows.
    """
    if name.kind != "password":
        return None
    start = skip_match(_VALUE_BEGIN, text, offset)
    end = phrased_secrets.find_phrase(text, start)
    if end and not _PHRASE_END.match(text, end):
        end = 0  # more words follow: this is a sentence, not a passphrase
    if "code" in name.form:  # "code" or "stated code": the value may be digits
        end = end or phrased_secrets.find_code(text, start, name)
    return Detection(start, end, "password") if end else None


def _find_assignment(text: str, lower_text: str, name: Name) -> _Assignment | None:
    """Return the sign or the command that assigns a value to a name, or None if there is no usable sign."""
    text_before = lower_text[max(0, name.start - 90) : name.start]
    offset = skip_match(phrased_secrets.CLOSE, text, name.end)
    if name.word[-1] == "=":
        return _Assignment(name.end, "=")
    if name.word == "identified by":
        is_quoted = text[name.end + 1 : name.end + 2] in ("'", '"')
        return _Assignment(offset, "=") if is_quoted else _NO_ASSIGNMENT
    item_offset = separated_secrets.find_item_value(text, text_before, name.start, offset)
    if item_offset is not None:
        return _Assignment(item_offset, "=")
    sign = _SIGN.match(text, offset)
    if sign and sign["op"]:
        return _check_sign(text, sign, text_before)
    if text[offset : offset + 1] in (" ", "\t"):
        flag = _FLAG.search(text_before)
        if flag:
            return _Assignment(offset, "flag" if flag[1] == "--" else "-")
        if _SET_COMMAND.search(text_before) or (
            name.kind == "password" and _LOGIN_COMMAND.search(text_before)
        ):
            return _Assignment(offset, "-")
    return _Assignment(sign.end(), '"') if sign else None


def _check_sign(text: str, sign: re.Match[str], text_before: str) -> _Assignment | None:
    """Return the assignment of a sign, `_NO_ASSIGNMENT` for a comparison, or None for a line of a table."""
    op, end = sign["op"], sign.end()
    if op == "|" and ("{{" in text_before or text[end : end + 1] == "-" or text[end - 1] == "|"):
        return None
    required = _REQUIRED_BEFORE_SIGN.get(op)
    if required and not required.search(text_before):
        return _NO_ASSIGNMENT
    is_comparison = op == "=" and text[sign.start("op") - 1] in "!<>"
    return _NO_ASSIGNMENT if is_comparison else _Assignment(end, op)


def _match_value(text: str, name: Name, assignment: _Assignment) -> Detection | None:
    """Return the value, quoted or bare, at the offset of an assignment if it is plausible as a secret."""
    match = _VALUE.match(text, assignment.offset)
    if not match:
        return None
    group = next(group for group in _GROUPS if match[group])
    value, start, is_quoted = match[group], match.start(group), group != "bare"
    is_incomplete = not is_quoted
    if not is_quoted:
        if SCRIPT.match(value):
            return None  # a sentence continues, in a script without blanks
        trimmed = trim_bare_value(value)
        is_incomplete = trimmed == value
        value = trimmed
    min_length = 16 if name.word == "sig=" else 4  # a signature in a URL is long
    if len(value) < min_length:
        return None
    end = start + len(value)
    sign = assignment.sign
    is_stated = sign in _CLEAR_SIGNS or (sign in _WEAK_SIGNS and _LINE_END.match(text, end) is not None)
    if not _is_plausible_value(_Value(text, start, name, sign, is_quoted, is_stated, value)):
        return None
    kind = "bearer_token" if match["scheme"] else name.kind
    return Detection(start, end_of_value(text, end) if is_incomplete else end, kind)


_NAMES = re.compile(r"(?>(?:[A-Z]?[a-z]{3,}+[._-]?)+)")


def _is_plausible_value(candidate: _Value) -> bool:
    """Return whether an assigned value is a secret, not a type, a call, a variable or a word of prose."""
    value, sign = candidate.value, candidate.sign
    if is_no_value(candidate.text, value, candidate.start) or names_itself(value):
        return False
    if not candidate.is_quoted and (looks_harmless(value) or candidate.name.suffix == "s"):
        return False
    rating = rate_randomness(value)
    if sign[0] in '".' and not rating:
        return False
    if sign in ('"', "(") and (rating < 2 or COUNTER.fullmatch(value)):
        return False
    if "code" in candidate.name.form and (rating < 2 or not value.isalnum() or len(value) > 12):
        return False
    if candidate.name.kind == "password":
        return _is_plausible_password(candidate, rating)
    return _is_plausible_key(candidate, rating)


def _is_plausible_password(candidate: _Value, rating: int) -> bool:
    """Return whether an assigned value is a password: varied characters, or a word or number clearly assigned."""
    value, sign, size = candidate.value, candidate.sign, len(candidate.value)
    if " " in value:
        return _is_passphrase(value) or (rating == 3 and len(value.split()) <= 3)
    if rating:
        is_pass_count = candidate.name.word == "pass" and sign == ":"
        return not (is_pass_count and COUNTER.fullmatch(value))
    end = candidate.start + size
    text_after = candidate.text[end : end + 24]
    if not LETTER.search(value):
        min_length = 4 if candidate.is_quoted else 6
        return (
            size >= min_length
            and (candidate.is_stated or candidate.is_quoted)
            and not COUNTED.match(text_after)
        )
    if not value.isascii() or not value.isalpha():
        return False
    if candidate.is_quoted:
        return True
    return candidate.is_stated and size >= 5 and sign != "-" and not _SENTENCE_CONTINUES.match(text_after)


def _is_plausible_key(candidate: _Value, rating: int) -> bool:
    """Return whether a value is a key, a token or another generated secret, which looks random."""
    value, size = candidate.value, len(candidate.value)
    if " " in value or not LETTER.search(value):
        return False
    entropy = shannon_entropy(value)
    if not DIGIT.search(value):
        return entropy >= 3.4 and (_is_capital_key(candidate) or _is_alphabetic_key(value, rating))
    if size < 6 or (size < 12 and rating < 3 and not candidate.is_stated and not candidate.is_quoted):
        return False
    if size < 10:
        return entropy >= 2.2
    return entropy >= (2.8 if candidate.name.kind == "token" else 2.5)


def _is_capital_key(candidate: _Value) -> bool:
    """Return whether the value of an option is a long key of capitals, not the name of a variable."""
    value = candidate.value
    is_long = candidate.sign == "flag" and len(value) >= 24
    return is_long and value.isupper() and not re.search("TOKEN|KEY", value)


def _is_alphabetic_key(value: str, rating: int) -> bool:
    """Return whether a value without digits is a long random key, not an identifier of words."""
    is_varied = len(value) >= 20 and rating > 0 and len(set(value)) >= 14
    return is_varied and value.count("-") < 3 and not _NAMES.fullmatch(value)


def _is_passphrase(value: str) -> bool:
    """Return whether some words are a passphrase: at least four, and not a sentence about one."""
    words = value.split()
    if len(words) < 4 or not value.islower() or not all(map(str.isalnum, words)):
        return False
    return sum(map(is_stop_word, words)) < 2
