"""Values that a word beside them calls secret: in prose, code, configuration, headers and tables, in many languages.

A name such as "password" is looked for first. What it is given by a sign (`password = …`) needs to look like a value;
what only stands near it needs to look made up, the more the further away it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from acms.privacy import apart
from acms.privacy.found import Found, Work
from acms.privacy.looks import (  # fmt: skip
    DIGIT,
    LETTER,
    ODD,
    SCRIPT,
    bare,
    entropy,
    harmless,
    level,
    names_itself,
    opaque,
    placeholder,
    rest_of,
    stopped,
)  # fmt: skip
from acms.privacy.rules import listed, one_of, shape, words


class Name(NamedTuple):
    """A name of something secret, where it stands and what it is of."""

    start: int
    #: Offset after all that belongs to the identifier it stands in.
    end: int
    kind: str
    #: The word itself, in lower case.
    word: str
    #: What follows it in its identifier.
    rest: str = ""
    #: Whether its value must look drawn at random: of a key of which only is said whose it is.
    drawn: bool = False


_KINDS = {word: kind for kind, some in words()["names"].items() for word in some}
_WHOLE = frozenset((*words()["names"]["password_whole"], *words()["whole"]))
#: By their first characters, which are looked for before them.
_STEMS: dict[str, list[str]] = {}
for _word in _KINDS:
    _STEMS.setdefault(_word[:4], []).append(_word)
_PLAIN, _BEYOND = (tuple([stem for stem in _STEMS if stem.isascii() is plain]) for plain in (True, False))
#: Names that are written together with what they are of, though they are short.
_COMPOUND = re.compile(r"(?:store|key|user|db|root|bind|admin|auth|smtp|mail|ftp|api|wlan|wifi|passwort)$")
_TAIL = re.compile(r"[A-Za-z0-9_\-]{0,40}+")
_SPLIT = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
#: What stands before a name that is a part of something else: of a template, a path, a URN, the name of a hash.
_REFERENCE = shape("reference")
_PATH = shape("name in path")
_NETWORK = re.compile(r"(?<![a-z])(?:wi-?fi|wlan|ssid)(?![a-z])")
_FOREIGN_KEY = shape("foreign key")


def lower(text: str) -> str:
    """Return a text in lower case with the same offsets: "İ" alone would become two characters."""
    low = text.lower()
    return low if len(low) == len(text) else text.replace("İ", "i").lower()


@lru_cache(512)
def _any(stems: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(one_of(list(stems)))


def names(text: str, low: str, work: Work) -> Iterator[Name]:
    """Find names of something secret."""
    here = [stem for stem in _PLAIN if stem in low]
    if not low.isascii():
        here += [stem for stem in _BEYOND if stem in low]
    stems = tuple([word for stem in here for word in _STEMS[stem] if word in low])
    if not stems:
        return
    for found in _any(stems).finditer(low):
        work.spend(100)
        name = _name(text, low, found.start(), found.end(), found[0])
        if name:
            yield name


def _name(text: str, low: str, start: int, end: int, word: str) -> Name | None:
    kind = _KINDS[word]
    former = low[max(0, start - 48) : start]
    if word in _WHOLE and not (_begins(text, start, former) and _ends(text, end)):
        return None
    kind = kind.removesuffix("_whole")
    drawn = False
    if former.endswith(_HARMLESS) or former.rstrip(" _-").endswith(_HARMLESS):
        return None
    if kind == "lock":
        if follow := _FOREIGN_KEY.match(low, end):
            end = follow.end()
        kind = "password" if _NETWORK.search(low, max(0, start - 40), end + 16) else "api_key"
    elif word == "key" and not former.rstrip(" _.-").endswith(_OPENERS):
        if not (drawn := _NETWORK.search(former) is None):
            kind = "password"
        elif former[-1:] not in tuple(" _-") and not text[start].isupper():
            return None
    tail = _TAIL.match(text, end)
    rest = tail[0] if tail and word[-1] != "=" else ""
    if rest != "s" and not _still(rest):
        return None
    if kind == "secret":
        kind = "client_secret" if former.rstrip(" _.-").endswith(("client", "consumer")) else kind
        kind = "api_key" if rest.lower().endswith("key") else kind
    refers = _PATH if kind == "password" else _REFERENCE
    if (kind not in ("header", "cookie") and refers.search(former)) or "${" in former[-24:]:
        return None
    return Name(start, end + len(rest), kind, word, rest, drawn)


def _begins(text: str, start: int, former: str) -> bool:
    """Tell whether a word begins here: after no letter, after a small one as a capital, or after what it is of."""
    before = text[max(0, start - 1) : start]
    joined = before.isalpha() and before < "\u2e80" and not (text[start].isupper() and before.islower())
    return not joined or _COMPOUND.search(former) is not None


def _ends(text: str, end: int) -> bool:
    after = text[end : end + 1]
    return (
        not after.isalpha()
        or after > "\u2e80"
        or after == "s"
        or (after.isupper() and text[end - 1].islower())
    )


def _still(rest: str) -> bool:
    """Tell whether a name with this behind it still names the secret itself: `password_value`, `token2`."""
    return all(part.isdigit() or part.lower() in listed("still") for part in _SPLIT.findall(rest))


_OPENERS = tuple(words()["openers"])
_HARMLESS = tuple(words()["harmless_of"])

# ── values ──────────────────────────────────────────────────────────────────────────────────────────────────────────

_CLOSE = re.compile(r"""(?:[\\"`\])*]|'(?!s[ \t])){0,6}+""")
#: Every alternative begins with a character or a set of them, so that most places are refused at a look.
_SIGN = shape("sign")
_VALUE = shape("value")
_EQUAL, _GIVES = frozenset(("=", ":=", "flag", "%3d", "%3D")), frozenset(":：->|")
_GROUPS = ("bare", "double", "single", "tick", "curly", "bold", "escaped")
_LINE_END = re.compile(r"[ \t]*(?:\r?\n|$)")
_ON = re.compile(r"[ \t]+[a-z]+(?![\w=:@/.-]*[=:@])")
_COUNTED = re.compile(r"[ \t]*(?:char|day|min|hour|sec|time|digit|of|attempt|user|%)")
#: What must stand before a name that some sign gives a value: a bracket, a tag, the name of a setter.
_NEEDS = {
    ",": re.compile(r"""[(\[][ \t\n]{0,4}["'][\w.:#\[\]='-]{0,48}$"""),
    ">": re.compile(r"<[\w.:-]{0,48}$"),
    "(": re.compile(
        r"(?:\.|->|::|\bset|\bwith|_set|_with)(?!\w{0,24}(?:get|read|fetch|find|load|ask|check|verif|hash|is|has))\w{0,40}$"
    ),
}
_FLAG = re.compile(r"(?:^|\s)(--?|/)[\w.-]{0,40}$")
_SET = shape("set before")
_LOGIN = shape("login before")


def named(text: str, low: str, work: Work) -> list[Found]:
    """Find what prose, code, configuration, headers and commands call a password, a key, a token or a secret."""
    found: list[Found] = []
    passed = 0
    for name in names(text, low, work):
        if name.start < passed:
            continue
        hit = _of(text, low, name, work)
        if hit is None and name.rest != "s" and name.kind not in ("header", "cookie", "phrase"):
            found += apart.column(text, name.start, name.end, name.kind, work)
        elif hit is not None and not (name.drawn and not opaque(text[hit.start : hit.end])):
            found.append(hit)
            passed = hit.end
    return found


def _of(text: str, low: str, name: Name, work: Work) -> Found | None:
    """Return the value of a name: given by a sign, told near it, before it, or in an answer."""
    if name.kind in ("header", "cookie"):
        return apart.header(text, name.end, name.kind, name.word)
    if name.kind == "phrase":
        return apart.mnemonic(text, name.end)
    if name.kind == "password" and (phrase := _PHRASE.match(text, name.end)):
        stop = any(map(stopped, phrase[1].split()))
        return None if stop else Found(phrase.start(1), phrase.end(1), "password")
    place = _given(text, low, name)
    if place:
        return _value(text, name, *place)
    around = text[max(0, name.start - 1) : name.start], text[name.end : name.end + 1]
    if place is not None or around[0] in ("/", "$") or around[1] in ("(", "_"):
        return None
    work.spend(200)
    return _in_sentence(text, low, name) or _before(text, low, name) or _answer(text, low, name)


def _given(text: str, low: str, name: Name) -> tuple[int, str] | tuple[()] | None:
    """Return where what a sign or a command gives to a name begins, and the sign; () when that is no value."""
    former = low[max(0, name.start - 90) : name.start]
    close = _CLOSE.match(text, name.end)
    at = close.end() if close else name.end
    if name.word[-1] == "=":
        return name.end, "="
    if name.word == "identified by":
        return (at, "=") if text[name.end + 1 : name.end + 2] in ("'", '"') else ()
    if (place := apart.item(text, former, name.start, at)) is not None:
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


def _value(text: str, name: Name, at: int, op: str) -> Found | None:
    match = _VALUE.match(text, at)
    if not match:
        return None
    group = next(one for one in _GROUPS if match[one])
    value, start, quoted = match[group], match.start(group), group != "bare"
    whole = not quoted
    if not quoted:
        if SCRIPT.match(value):
            return None  # a sentence goes on
        judged = bare(value)
        whole, value = judged == value, judged
    end = start + len(value)
    stated = op in _EQUAL or (op in _GIVES and _LINE_END.match(text, end) is not None)
    if len(value) < (16 if name.word == "sig=" else 4) or not _plausible(
        text, value, start, name, stated, quoted, op
    ):
        return None
    return Found(
        start, rest_of(text, end) if whole else end, "bearer_token" if match["scheme"] else name.kind
    )


_NAMES = re.compile(r"(?:[A-Z]?[a-z]{3,}+[._-]?)++")


def _none(text: str, value: str, start: int) -> bool:
    """Tell whether something can be no value of any name: a word about values, what stands for one."""
    return (
        len(value) < 4
        or stopped(value)
        or placeholder(value)
        or (len(set(value.lower())) < 3 and not value.isdigit())
        or "[redacted" in value.lower()
        or (len(value) < 24 and level(value) < 3 and text.startswith(("...", "…", "***"), start + len(value)))
    )


def _plausible(text: str, value: str, start: int, name: Name, stated: bool, quoted: bool, op: str) -> bool:
    """Tell whether what a sign gives to a name is a secret, no type, call, variable or word of prose."""
    if _none(text, value, start) or (not quoted and harmless(value)) or (name.rest == "s" and not quoted):
        return False
    look, size = level(value), len(value)
    counter = _COUNTER.fullmatch(value) is not None
    if names_itself(value) or (op[0] in '".' and not look) or (op in ('"', "(") and (look < 2 or counter)):
        return False
    if name.kind == "password":
        if " " in value:
            return _phrase(value) or (look == 3 and len(value.split()) <= 3)
        if look:
            return not (counter and name.word == "pass" and op == ":")
        after = text[start + size : start + size + 24]
        if not LETTER.search(value):
            return size >= (4 if quoted else 6) and (stated or quoted) and not _COUNTED.match(after)
        alone = stated and size >= 5 and op != "-" and not _ON.match(after)
        return value.isascii() and value.isalpha() and (quoted or alone)
    if " " in value or not LETTER.search(value):
        return False
    if not DIGIT.search(value):
        upper = op == "flag" and size >= 24 and value.isupper() and not re.search("TOKEN|KEY", value)
        long = size >= 20 and level(value) and len(set(value)) >= 14 and value.count("-") < 3
        return entropy(value) >= 3.4 and bool(upper or (long and not _NAMES.fullmatch(value)))
    if not (stated or quoted) and size < 12 and look < 3:
        return False
    return size >= 6 and entropy(value) >= (2.2 if size < 10 else 2.5 if name.kind != "token" else 2.8)


def _phrase(value: str) -> bool:
    """Tell whether some words are a passphrase: four at least, and not a sentence about one."""
    some = value.split()
    return len(some) > 3 and value.islower() and all(map(str.isalnum, some)) and sum(map(stopped, some)) < 2


# ── sentences ───────────────────────────────────────────────────────────────────────────────────────────────────────

_REACH = 110
"""Characters of a line after a name within which a sentence tells its value."""
_MOST = 7
"""Words that may stand between a name and its value."""
_OPEN, _SHUT = "\"'`“„«「(*", "\"'`”“»」)*"
_WORD = re.compile(r"\S+")
_QUOTED = re.compile(r"""["'`>]|<(?!\d)""")
#: What a word begins with that is written without blanks: Chinese, Japanese, Korean.
_SCRIPTED = re.compile("[\u2e80-\uffff][\u2e80-\uffff「“\"']*")
_STOPS = (".", "?", "!", ";")
_PHRASE = shape("phrase")


def _in_sentence(text: str, low: str, name: Name) -> Found | None:
    """Return the value that a sentence tells after a name: the more it looks made up, the further away it may be."""
    line = low.find("\n", name.end, name.end + _REACH)
    stop = line if line >= 0 else name.end + _REACH
    linked, since, signed = False, 0, False
    for at, piece in enumerate(_WORD.finditer(text, name.end, stop)):
        if at > _MOST + 2 * linked:
            return None
        raw, start = piece[0], piece.start()
        if start == name.end:
            cut = _CLOSE.match(text, start)
            raw, start = (raw[cut.end() - start :], cut.end()) if cut else (raw, start)
            if raw[:1] in tuple("=@|:/\\<>&?.;({") or raw[1:2] == "=":
                return None
            linked = raw in ("'s", "’s")
            if not raw or raw[0] in ",'’":
                continue
        elif raw[:1] in ("=", "!", "?") and raw.strip("=!?") == "":
            return None
        if script := _SCRIPTED.match(raw):
            linked = linked or not listed("links").isdisjoint(script[0])
            raw, start = raw[script.end() :], start + script.end()
        core = raw.lstrip(_OPEN)
        start += len(raw) - len(core)
        word = core.lower().rstrip(".,:;?!" + _SHUT)
        turned = word in listed("towards") and any(
            map(low[max(0, name.start - 48) : stop].__contains__, listed("turned"))
        )
        if turned or word in listed("links"):
            linked, since = True, 0
            continue
        if not linked and word in listed("about") and core[-1] != ",":
            return None
        value = _QUOTED.split(bare(core), 1)[0].rstrip(_SHUT)
        link = "said" if (linked and since < 3) or signed else "next" if at == 0 else "far"
        if value and _made_up(text, value, start, name, link):
            end = start + len(value)
            return Found(start, end, name.kind)
        if core.endswith(_STOPS) and len(word) > 2:
            return None
        signed, since = core.endswith((":", "=", "：", ":**")) or (signed and not word), since + 1
    return None


def _made_up(text: str, value: str, start: int, name: Name, link: str) -> bool:
    """Tell whether what stands near a name looks so much made up that it is its value."""
    if _none(text, value, start) or harmless(value) or name.rest == "s":
        return False
    look, size = level(value), len(value)
    if link != "said" and (names_itself(value) or name.word == "pass" or _COUNTER.fullmatch(value)):
        return False
    if name.kind == "password":
        if link == "said":
            return look >= 1 or (value.isdigit() and size >= 6 and not _COUNTED.match(text, start + size))
        if link == "next":
            return look >= 2 and size >= 6
        return look == 3 and size >= 7 and ODD.search(value) is not None
    if names_itself(value) or _HASH.search(text, max(0, start - 14), start):
        return False
    if link == "far":
        return size >= 20 and opaque(value)
    long = (look == 3 and size >= 8) or (look >= 2 and size >= (12 if link == "said" else 16))
    return long and entropy(value) >= 2.8


#: A word and a number of one digit.
_COUNTER = re.compile(r"[A-Za-z]+(?:[_-][A-Za-z]+)*[_-]?\d")
_HASH = shape("hash named")


_EARLIER = shape("earlier")


def _before(text: str, low: str, name: Name) -> Found | None:
    """Return a value that is called a password after it was said: "use … as the password"."""
    if name.kind != "password" or text[name.start - 1 : name.start] != " ":
        return None
    start = max(0, name.start - 110)
    if not any(f" {join} " in low[start : name.start] for join in listed("joins")):
        return None
    match = _EARLIER.search(text[start : name.start])
    if (
        not match
        or match["join"].lower() not in listed("joins")
        or match[0].rstrip().endswith(tuple(listed("poor")))
    ):
        return None
    at = start + match.start(1)
    if names_itself(match[1]) or not _made_up(text, match[1], at, name, "said"):
        return None
    return Found(at, at + len(match[1]), "password")


_ANSWER = shape("answer")
_ASKED = shape("asked")


def _answer(text: str, low: str, name: Name) -> Found | None:
    """Return what stands alone in the answer to a question for a secret: "the password?", next line, the value."""
    before = low[max(0, name.start - 60) : name.start].rpartition("\n")[2]
    match = _ANSWER.match(text, name.end, name.end + 300)
    if not match and any(word in before for word in ("send", "need", "give", "tell")):
        match = _ASKED.match(text, name.end, name.end + 300)
    if not match:
        return None
    value = match[1].rstrip(".,")
    asked = text[name.end : match.start(1)].partition("\n")[0].lower().strip("?？ ").split()
    several = sum(map(str.isdigit, value)) > 1 or ODD.search(value, 1) is not None
    if several and listed("about").isdisjoint(asked) and _made_up(text, value, match.start(1), name, "said"):
        return Found(match.start(1), match.start(1) + len(value), name.kind)
    return None
