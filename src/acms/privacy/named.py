"""Secrets named by an adjacent word: in prose, code, configuration, headers and tables, in many languages.

A name such as "password" is searched first. A value that a sign assigns (`password = …`) must look like a value; a
value that is only near the name must look random, the more so the further away it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from acms.privacy import apart, prose
from acms.privacy.found import Found, Name, Work
from acms.privacy.looks import (  # fmt: skip
    COUNTED,
    COUNTER,
    DIGIT,
    LETTER,
    SCRIPT,
    is_no_value,
    is_stop_word,
    looks_harmless,
    looks_random,
    names_itself,
    rate_randomness,
    rest_of,
    shannon_entropy,
    trim_bare_value,
)  # fmt: skip
from acms.privacy.rules import get_word_set, load_pattern, load_word_lists, one_of

_KINDS = {word: kind for kind, some in load_word_lists()["names"].items() for word in some}
_WHOLE = frozenset(
    (
        *load_word_lists()["names"]["password_whole"],
        *load_word_lists()["names"]["code"],
        *load_word_lists()["whole"],
    )
)
#: One search finds them all; most texts hold no character beyond ASCII and need half of the words.
_PLAIN = re.compile(one_of([word for word in _KINDS if word.isascii()]))
_ALL = re.compile(one_of(list(_KINDS)))
#: Prefixes that are joined to a name to form a compound.
_COMPOUND = re.compile(r"(?:store|key|user|db|root|bind|admin|auth|smtp|mail|ftp|api|wlan|wifi|passwort)$")
_TAIL = re.compile(r"[A-Za-z0-9_\-]{0,40}+")
_SPLIT = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
#: The text before a name that is part of something else: a template, a path, a URN, the name of a hash.
_REFERENCE = load_pattern("reference")
_PATH = load_pattern("name in path")
_NETWORK = re.compile(r"(?<![a-z])(?:wi-?fi|wlan|ssid)(?![a-z])")
_FOREIGN_KEY = load_pattern("foreign key")


#: Lists of names whose values have digits: without a digit nearby there is nothing to find.
_WITH_DIGITS = frozenset(("code", "code_of", "sign in"))
_PHRASES = frozenset(load_word_lists()["phrases"])
_LOCKS = one_of(load_word_lists()["locks"])
_LOCK_BEFORE = re.compile(rf"(?<![^\W\d_])(?:{_LOCKS})[^.!?。]*$")
_LOCK_AFTER = re.compile(
    rf"[ ](?:{'|'.join(load_word_lists()['of'])})[ ]?(?:[^\W\d_]{{1,12}}+[ '’]){{0,2}}(?:{_LOCKS})"
)


def lower_keeping_offsets(text: str) -> str:
    """Return a text in lower case with unchanged offsets: only "İ" would become two characters."""
    low = text.lower()
    return low if len(low) == len(text) else text.replace("İ", "i").lower()


def find_secret_names(text: str, low: str, work: Work) -> Iterator[Name]:
    """Find names of secrets."""
    for found in (_PLAIN if low.isascii() else _ALL).finditer(low):
        work.spend(100)
        name = _read_name(text, low, found.start(), found.end(), found[0])
        if name:
            yield name


def _read_name(text: str, low: str, start: int, end: int, word: str) -> Name | None:
    """Return the name at a word of the lists, or None if it names no secret there."""
    kind = _KINDS[word]
    former = low[max(0, start - 48) : start]
    if kind in _WITH_DIGITS and not DIGIT.search(text, max(0, start - 110), end + 110):
        return None
    if kind == "sign in":
        return Name(start, end, kind, word) if _begins_word(text, start, former) else None
    if word in _WHOLE and not (_begins_word(text, start, former) and _ends_word(text, end)):
        return None
    if former.endswith(_HARMLESS) or former.rstrip(" _-").endswith(_HARMLESS):
        return None
    name = _classify_name(text, low, start, end, word)
    return _extend_name(text, name, former) if name else None


def _classify_name(text: str, low: str, start: int, end: int, word: str) -> Name | None:
    """Return a name with the kind of its secret and the form of its value, or None if it names no secret."""
    kind = _KINDS[word]
    if kind == "lock":
        return _classify_foreign_key(low, start, end, word)
    if kind == "login":
        return Name(start, end, "secret", word, form="login")
    if kind == "code_of":
        return Name(start, end, "password", word, form="code") if _is_of_lock(low, start, end) else None
    if kind == "code":
        of_chip = word == "pin" and not (text[start:end].isupper() or _is_of_lock(low, start, end))
        return Name(start, end, "password", word, form="stated code" if of_chip else "code")
    if word == "key":
        return _classify_key(text, low, start, end)
    form = "phrase" if word in _PHRASES else ""
    return Name(start, end, kind.removesuffix("_whole"), word, form=form)


def _classify_foreign_key(low: str, start: int, end: int, word: str) -> Name:
    """Return a word for "key" in another language as the name of a code, a network password or an API key."""
    if follow := _FOREIGN_KEY.match(low, end):
        end = follow.end()
    if _is_of_lock(low, start, end):
        return Name(start, end, "password", word, form="code")
    of_network = _NETWORK.search(low, max(0, start - 40), end + 16)
    return Name(start, end, "password" if of_network else "api_key", word, form="login")


def _classify_key(text: str, low: str, start: int, end: int) -> Name | None:
    """Return "key" as the name of a network password or an API key, or None if it only ends another word."""
    former = low[max(0, start - 48) : start]
    if former.rstrip(" _.-").endswith(_OPENERS):
        return Name(start, end, "api_key", "key")
    if _NETWORK.search(former):
        return Name(start, end, "password", "key")
    if former.endswith((" ", "_", "-")) or text[start].isupper():
        return Name(start, end, "api_key", "key", drawn=True)
    return None


def _extend_name(text: str, name: Name, former: str) -> Name | None:
    """Return a name with the rest of its identifier, or None if the whole names something else."""
    kind, word = name.kind, name.word
    tail = _TAIL.match(text, name.end)
    rest = tail[0] if tail and word[-1] != "=" and word[-1] < "\u2e80" else ""
    if rest not in ("", "s") and not _is_name_suffix(rest):
        return None
    if kind == "secret":
        if rest.lower().endswith("key"):
            kind = "api_key"
        elif former.rstrip(" _.-").endswith(("client", "consumer")):
            kind = "client_secret"
    refers = _PATH if kind == "password" else _REFERENCE
    if (kind not in ("header", "cookie") and refers.search(former)) or "${" in former[-24:]:
        return None
    return Name(name.start, name.end + len(rest), kind, word, rest, name.drawn, name.form)


def _is_of_lock(low: str, start: int, end: int) -> bool:
    """Return whether a code is of a door, an alarm or a card: the text names that before it or right after it."""
    before = low[max(0, start - 48) : start]
    if before.rstrip(" -_").endswith(_OTHER_CODES):
        return False
    return _LOCK_BEFORE.search(before) is not None or _LOCK_AFTER.match(low, end) is not None


def _begins_word(text: str, start: int, former: str) -> bool:
    """Return whether a word begins here: not after a letter, as a capital after a small one, or in a compound."""
    before = text[max(0, start - 1) : start]
    joined = before.isalpha() and before < "\u2e80" and not (text[start].isupper() and before.islower())
    return not joined or _COMPOUND.search(former) is not None


def _ends_word(text: str, end: int) -> bool:
    after = text[end : end + 1]
    return (
        not after.isalpha()
        or after > "\u2e80"
        or after == "s"
        or (after.isupper() and text[end - 1].islower())
    )


def _is_name_suffix(rest: str) -> bool:
    """Return whether a name with this suffix still names the secret itself: `password_value`, `token2`."""
    return all(part.isdigit() or part.lower() in get_word_set("still") for part in _SPLIT.findall(rest))


_OPENERS = tuple(load_word_lists()["openers"])
_OTHER_CODES = tuple(load_word_lists()["other codes"])
_HARMLESS = tuple(load_word_lists()["harmless_of"])

# ── values ──────────────────────────────────────────────────────────────────────────────────────────────────────────

#: Every alternative begins with a character or a set of them, so most positions are rejected by the first character.
_SIGN = load_pattern("sign")
_VALUE = load_pattern("value")
_EQUAL, _GIVES = frozenset(("=", ":=", "flag", "%3d", "%3D")), frozenset(":：->|")
_GROUPS = ("bare", "double", "single", "tick", "curly", "bold", "escaped")
_VALUE_BEGIN = re.compile(r"""[ \t]{0,12}+["'`“「*]{0,2}""")
_PHRASE_END = re.compile(r"""["'`”」*]|[.,]?[ \t]*(?:\r?\n|$)""")
_LINE_END = re.compile(r"[ \t]*(?:\r?\n|$)")
_ON = re.compile(r"[ \t]+[a-z]+(?![\w=:@/.-]*[=:@])")
#: The text required before a name for some signs: a bracket, a tag, the name of a setter.
_NEEDS = {
    ",": re.compile(r"""[(\[][ \t\n]{0,4}["'][\w.:#\[\]='-]{0,48}$"""),
    ">": re.compile(r"<[\w.:-]{0,48}$"),
    "(": re.compile(
        r"(?:\.|->|::|\bset|\bwith|_set|_with)(?!\w{0,24}(?:get|read|fetch|find|load|ask|check|verif|hash|is|has))\w{0,40}$"
    ),
}
_FLAG = re.compile(r"(?:^|\s)(--?|/)[\w.-]{0,40}$")
_SET = load_pattern("set before")
_LOGIN = load_pattern("login before")


def find_named_secrets(text: str, low: str, work: Work) -> list[Found]:
    """Find passwords, keys, tokens and secrets that are named in prose, code, configuration, headers and commands."""
    found: list[Found] = []
    passed = 0
    for name in find_secret_names(text, low, work):
        if name.start < passed:
            continue
        hit = _find_secret(text, low, name, work)
        if hit is None and name.rest != "s" and name.kind not in ("header", "cookie", "phrase", "sign in"):
            found += apart.find_column_values(text, name.start, name.end, name.kind, work)
        elif hit is not None and not (name.drawn and not looks_random(text[hit.start : hit.end])):
            found.append(hit)
            passed = hit.end
    return found


def _find_secret(text: str, low: str, name: Name, work: Work) -> Found | None:
    """Return the value of a name: assigned by a sign, in a sentence after or before it, or in an answer."""
    if name.kind in ("header", "cookie"):
        return apart.find_header_credential(text, name.end, name.kind, name.word)
    if name.kind == "phrase":
        return apart.find_mnemonic(text, name.end)
    if name.kind == "sign in":
        return prose.find_sign_in(text, name)
    place = _find_assignment(text, low, name)
    if place:
        return _phrase_or_code(text, name, place[0]) or _match_value(text, name, *place)
    around = text[max(0, name.start - 1) : name.start], text[name.end : name.end + 1]
    if place is not None or around[0] in ("/", "$") or around[1] in ("(", "_"):
        return None
    return prose.find_phrased_secret(text, low, name, work)


def _phrase_or_code(text: str, name: Name, at: int) -> Found | None:
    """Return the passphrase or the code that a sign assigns to a name."""
    if name.kind != "password":
        return None
    begin = _VALUE_BEGIN.match(text, at)
    start = begin.end() if begin else at
    end = prose.find_phrase(text, start)
    if end and not _PHRASE_END.match(text, end):
        end = 0
    if "code" in name.form:
        end = end or prose.find_code(text, start, name)
    return Found(start, end, "password") if end else None


def _find_assignment(text: str, low: str, name: Name) -> tuple[int, str] | tuple[()] | None:
    """Return the offset of the value that a sign or a command assigns to a name, and the sign.

    Return () if the sign assigns no value, or None if there is no usable sign.
    """
    former = low[max(0, name.start - 90) : name.start]
    close = prose.CLOSE.match(text, name.end)
    at = close.end() if close else name.end
    if name.word[-1] == "=":
        return name.end, "="
    if name.word == "identified by":
        return (at, "=") if text[name.end + 1 : name.end + 2] in ("'", '"') else ()
    if (place := apart.find_item_value(text, former, name.start, at)) is not None:
        return place, "="
    sign = _SIGN.match(text, at)
    op = sign["op"] if sign else ""
    if sign and op:
        needs, at = _NEEDS.get(op), sign.end()
        if op == "|" and ("{{" in former or text[at : at + 1] == "-" or text[at - 1] == "|"):
            return None
        wrong = (needs and not needs.search(former)) or (op == "=" and text[sign.start("op") - 1] in "!<>")
        return () if wrong else (at, op)
    if text[at : at + 1] in (" ", "\t"):
        if flag := _FLAG.search(former):
            return at, "flag" if flag[1] == "--" else "-"
        if _SET.search(former) or (name.kind == "password" and _LOGIN.search(former)):
            return at, "-"
    return (sign.end(), '"') if sign else None


def _match_value(text: str, name: Name, at: int, op: str) -> Found | None:
    match = _VALUE.match(text, at)
    if not match:
        return None
    group = next(one for one in _GROUPS if match[one])
    value, start, quoted = match[group], match.start(group), group != "bare"
    whole = not quoted
    if not quoted:
        if SCRIPT.match(value):
            return None  # a sentence goes on
        judged = trim_bare_value(value)
        whole, value = judged == value, judged
    end = start + len(value)
    stated = op in _EQUAL or (op in _GIVES and _LINE_END.match(text, end) is not None)
    if len(value) < (16 if name.word == "sig=" else 4) or not _is_plausible_value(
        text, value, start, name, stated, quoted, op
    ):
        return None
    return Found(
        start, rest_of(text, end) if whole else end, "bearer_token" if match["scheme"] else name.kind
    )


_NAMES = re.compile(r"(?:[A-Z]?[a-z]{3,}+[._-]?)++")


def _is_plausible_value(
    text: str, value: str, start: int, name: Name, stated: bool, quoted: bool, op: str
) -> bool:
    """Return whether an assigned value is a secret, not a type, a call, a variable or a word of prose."""
    if (
        is_no_value(text, value, start)
        or (not quoted and looks_harmless(value))
        or (name.rest == "s" and not quoted)
    ):
        return False
    look, size = rate_randomness(value), len(value)
    counter = COUNTER.fullmatch(value) is not None
    if names_itself(value) or (op[0] in '".' and not look) or (op in ('"', "(") and (look < 2 or counter)):
        return False
    if "code" in name.form and (rate_randomness(value) < 2 or not value.isalnum() or len(value) > 12):
        return False
    if name.kind == "password":
        if " " in value:
            return _is_passphrase(value) or (look == 3 and len(value.split()) <= 3)
        if look:
            return not (counter and name.word == "pass" and op == ":")
        after = text[start + size : start + size + 24]
        if not LETTER.search(value):
            return size >= (4 if quoted else 6) and (stated or quoted) and not COUNTED.match(after)
        alone = stated and size >= 5 and op != "-" and not _ON.match(after)
        return value.isascii() and value.isalpha() and (quoted or alone)
    if " " in value or not LETTER.search(value):
        return False
    if not DIGIT.search(value):
        upper = op == "flag" and size >= 24 and value.isupper() and not re.search("TOKEN|KEY", value)
        long = size >= 20 and rate_randomness(value) and len(set(value)) >= 14 and value.count("-") < 3
        return shannon_entropy(value) >= 3.4 and bool(upper or (long and not _NAMES.fullmatch(value)))
    if not (stated or quoted) and size < 12 and look < 3:
        return False
    return size >= 6 and shannon_entropy(value) >= (
        2.2 if size < 10 else 2.5 if name.kind != "token" else 2.8
    )


def _is_passphrase(value: str) -> bool:
    """Return whether some words are a passphrase: at least four, and not a sentence about one."""
    some = value.split()
    return (
        len(some) > 3 and value.islower() and all(map(str.isalnum, some)) and sum(map(is_stop_word, some)) < 2
    )
