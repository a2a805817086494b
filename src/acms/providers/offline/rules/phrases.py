"""Phrases: what a noun phrase is about, what a value is, and where a value ends and its reason begins."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from acms.text.details import details
from acms.text.tokenizer import term, words

PROJECT = "project"
"""The subject of what belongs to nobody in particular: what is being worked on."""
USER = "user"


def pattern(text: str) -> re.Pattern[str]:
    """Compile a pattern in which case does not count but for `[A-Z]`, nor do spaces and line ends.

    An apostrophe may be typographic.
    """
    text = text.replace("[A-Z]", "(?-i:[A-Z])")
    inside = re.sub(r"\[[^\]]*\]", lambda found: found[0].replace("'", "\0"), text)
    return re.compile(inside.replace("'", "['’]").replace("\0", "'’"), re.I | re.X)


class Topic(NamedTuple):
    """What a value is of: an address before it is compared with those in force."""

    subject: str
    attribute: str


_ARTICLE = re.compile(
    r"(?:(?:the|our|a|an|this|my|both|new|current|primary|main|default|final|official|overall|whole|entire"
    r"|own|initial"
    r"|original|preferred|chosen|total|latest|actual|present|first|only|team['’]s|project['’]s|app['’]s) )+",
    re.I,
)
_OF = re.compile(r"(?P<a>.{2,60}?) (?:of|for|in|on|at) (?P<b>.{2,60})")
_OWNER = re.compile(r"(?P<b>[\w .-]{1,40}?)['’]s? (?P<a>.{2,60})")
#: Phrases that point at something else and name nothing, or that belong to others.
_NO_TOPIC = re.compile(
    r"(?:it|its|that|this|these|those|there|here|he|she|they|you|we|i|me|us|him|them|who|which|what|when"
    r"|where|why|how"
    r"|his|her|their|your|yours|another|other|others|some|someone|somebody|something|every|each|any|anything|anyone"
    r"|nothing|no|one|ones|thing|things|everything|most|many|much|more|few|several|all|and|or|but|because|so|such|for|result"
    r"|\ufffc)(?:$|[ '’])"
    r"|(?:way|lot|kind|sort|reason|problem|problems|issue|issues|point|question|questions|answer|idea|truth"
    r"|fact|people"
    r"|guy|guys)(?:$|['’]| (?:with|of|is|for|in|about|to)\b)",
    re.I,
)
_INSIDE = re.compile(
    r"\b(?:he|she|they|you|we|i|it|them|us|me|this|that|each|why|how|what|who|which|that|whose|his|her|their"
    r"|your|is|are|was|were|has|have|had|does|did|said|says"
    r"|will|would|since|as|not|read|saw|think|know|feels?|if|because|when|while)\b",
    re.I,
)
_OTHERS = re.compile(
    r"\b(?:friend|brother|sister|mother|father|mom|mum|dad|cousin|neighbou?r|colleague|coworker|competitors?"
    r"|competition"
    r"|startup|vendor|agency|bank|newspaper|airline|compan(?:y|ies)|departments?|article|blog"
    r"|forum|survey"
    r"|study|conference|auditor|intern|employer|supplier|partner|team|teams|people|guys|uncle|aunt|boss"
    r"|landlord|school"
    r"|shop|hobby|industry|world|country|next door|upstairs|downstairs|across|office move|ex)\b",
    re.I,
)
_OWN = re.compile(r"(?:team size|team name|size of the team|(?:the )?team)\Z", re.I)
#: Words that tell nothing about which of two topics is meant.
_GENERIC = frozenset(
    term(word)
    for word in """layer system tool engine provider solution framework style method service choice technology stack
    target library platform main primary new current final default public overall whole official project value
    type software app application own full first one selected chosen preferred user data use server store setup product
    initial date name's programming team everything thing people""".split()
) - {0, term("data"), term("user"), term("team")}
_SAME = {
    "db": "database", "databases": "database", "auth": "authentication", "authn": "authentication",
    "login": "authentication", "caching": "cache", "caches": "cache", "cached": "cache", "favourite": "favorite",
    "colour": "color", "repo": "repository", "k8s": "kubernetes", "docs": "documentation", "env": "environment",
    "prod": "production", "due": "deadline", "timezone": "zone", "hosting": "deployment", "host": "deployment",
    "hosted": "deployment", "deploys": "deployment", "deploy": "deployment", "testing": "test", "tests": "test",
    "logging": "log", "logs": "log", "queueing": "queue", "queuing": "queue", "monitored": "monitoring",
    "coding": "language", "mail": "email", "e-mail": "email", "phone": "telephone", "frontend": "front",
    "backend": "back", "config": "configuration", "max": "maximum", "min": "minimum",
}  # fmt: skip


@lru_cache(maxsize=4096)
def key(text: str) -> frozenset[int]:
    """Return the words that tell which topic is meant, whatever their order, number and synonyms."""
    found = frozenset(term(_SAME.get(word, word)) for word in words(text.replace("-", " "))) - {0}
    return (found - _GENERIC) or found


_ABOUT_ONE = re.compile(
    r"(?:full |last |first )?(?:name|birthday|job|age|email|phone|number|address|favou?rite .*)", re.I
)
_AUX = re.compile(
    r"(?: (?:is|are|was|were|will|shall|has|have|had|be|been|being|must|got|gets?|going|to))+\Z", re.I
)


def topic(raw: str, *, speaker: str = USER, role: str = USER) -> Topic | None:
    """Return the topic that a noun phrase names; None for one that points elsewhere or belongs to others."""
    raw = _AUX.sub("", raw.strip(" ,;:\"“”`'*()"))
    if not 1 < len(raw) <= 80 or len(raw.split()) > 8:
        return None
    mine = re.match(r"my ", raw, re.I) is not None
    if raw[0].isdigit() or (not mine and _NO_TOPIC.match(raw)):
        return None
    bare = _ARTICLE.sub("", raw, count=1) if _ARTICLE.match(raw) else raw
    if not bare or _NO_TOPIC.match(bare) or _INSIDE.search(bare):
        return None
    if _OTHERS.search(bare) and not (_OWN.match(bare) or raw.lower().startswith(("our ", "my "))):
        return None
    subject = person(speaker, role) if mine else PROJECT
    if owned := _OWNER.fullmatch(bare):
        if _OTHERS.search(owned["b"]) and not (mine and _ABOUT_ONE.fullmatch(owned["a"])):
            return None
        owner = _ARTICLE.sub("", owned["b"], count=1)
        attribute = _ARTICLE.sub("", owned["a"], count=1)
        return Topic(subject if owner.lower() in ("project", "team", "app") else owner, attribute)
    if (parts := _OF.fullmatch(bare)) and key(parts["a"]):
        owner = _ARTICLE.sub("", parts["b"], count=1)
        if _NO_TOPIC.match(owner) or (_OTHERS.search(owner) and not _OWN.match(parts["b"])):
            return None
        if owner.lower() not in ("project", "team", "app", "whole project"):
            return Topic(owner, parts["a"])
        return Topic(subject, "team size" if parts["a"].lower() == "size" else parts["a"])
    first = bare.split()[0]
    return Topic(subject, bare[0].lower() + bare[1:] if first[1:].islower() else bare)


def person(speaker: str, role: str) -> str:
    """Return the subject of what a speaker says about themselves."""
    return USER if speaker == role else speaker


# ── values ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Cut:
    """What follows a verb, taken apart."""

    value: str
    #: What it is for ("for caching", "as the cache", "to parse logs").
    purpose: str = ""
    #: "as": the purpose is what the value is, not what it is good for.
    role: bool = False
    #: What it stands in for.
    old: str = ""
    reason: str = ""
    #: Where the value and its purpose end.
    end: int = 0


_JOINT = pattern(
    r"""(?P<why>,?[ ](?:because[ ]of|because|since|so[ ]that|due[ ]to|given[ ]that|given|thanks[ ]to
          |as[ ](?=it\b|we\b|they\b|this\b|that\b|he\b|she\b|there\b)|(?=for[ ]its\b|for[ ]the[ ]sake)))\b[ ]
      | (?P<inst>,?[ ]\(?(?:instead[ ]of|rather[ ]than|in[ ]place[ ]of|in[ ]favou?r[ ]of|not|no[ ]longer
        |replacing))[ ]
      | (?P<as>[ ]as)[ ](?:(?:the|our|a|an|my|its|their)[ ])?
      | (?P<for>,?[ ]for)[ ]
      | (?P<to>,?[ ](?:in[ ]order[ ])?to)[ ](?=[a-z])
      | (?P<stop>[,;][ ](?!\d{4}\b)|:[ ]|[ ]-+[ ]|[ ]?[–—][ ]?|[ ]\(|[ ](?:but|so|which|that|where|while|when
        |if|unless|with|until
          |in[ ]front|among|everywhere)[ ]
        |[ ]and[ ](?=(?:not|it|we|they|the|our|i|is|are|this|that|nobody|will|can|cannot|then|so|have|has|also
        |you|he|she
          |never|always|no|a)\b)|[ ](?:too|yet|soon|though|please|today|everywhere)$)"""
)
_PRONOUN = re.compile(
    r"(?:it|that|this|these|those|there|here|he|she|they|you|we|i|me|us|him|her|them|what|which|one|ones"
    r"|something|nothing"
    r"|everything|anything|someone|whatever|how|why|who|so|too|very|not|such|more|less|some|any|other|another"
    r"|others|all"
    r"|pretty|quite|really|good|great|fine|ok|okay|bad|nice|cool|done|ready|well|wrong|right|true"
    r"|false positive|open|up"
    r"|unclear|unknown|tbd|pending|undecided|missing|different|same|the same|important|amazing|awesome"
    r"|perfect|beautiful"
    r"|important|hard|easy|possible|impossible|necessary|better|worse|best|going|getting|being|doing|having"
    r"|looking|making|starting"
    r"|the following|following|been|about|like|to|(?-i:[a-z]+ly)"
    r"|\ufffc)(?:$|[ ,'’])",
    re.I,
)


def cut(text: str, *, to: bool = False, over: bool = False) -> Cut:
    """Take apart what follows a verb; with `to` and `over` these words end a value too."""
    pieces: list[tuple[str, str, int]] = []
    kind, place = "value", 0
    for match in _JOINT.finditer(text):
        found = match.lastgroup or "stop"
        if found == "to" and not to:
            continue
        if found == "inst" and "not" in match[0] and not match[0].startswith(","):
            continue
        pieces.append((kind, text[place : match.start()], match.start()))
        kind, place = found, match.end()
    pieces.append((kind, text[place:], len(text)))
    value, purpose, old, reason = pieces[0][1], "", "", ""
    role, end, open_ = False, pieces[0][2], True
    if over and (found := re.search(r" (?:over|to|than|rather than) ", value)):
        value, old = value[: found.start()], value[found.end() :]
    for name, piece, last in pieces[1:]:
        if name in ("as", "for", "to") and open_:
            if not purpose or (name == "as" and not role):
                if purpose:
                    reason = f"for {purpose}"
                purpose, role = piece, name == "as"
                end = last
            elif not reason:
                reason = f"{name} {piece}"
        elif name == "inst":
            old = old or re.split(r" (?:for|as|because|since) ", piece)[0]
        elif name == "why":
            reason, open_ = reason or f"because {piece}", False
        elif name == "stop" and not reason and open_:
            open_ = False
    return Cut(_value(value), purpose.strip().removesuffix(" and"), role, _value(old), reason.strip(), end)


def _value(text: str) -> str:
    text = text.strip(" \t,;:")
    if len(text) > 1 and (text[0], text[-1]) in (
        ('"', '"'),
        ("`", "`"),
        ("“", "”"),
        ("'", "'"),
        ("*", "*"),
        ("(", ")"),
    ):
        text = text[1:-1]
    text = text.strip('`"“” ')
    return (
        text[2:] if text.startswith(("a ", "A ")) else text[3:] if text.startswith(("an ", "An ")) else text
    )


def is_value(text: str, *, most: int = 10) -> bool:
    """Return whether a text can stand as a value: short, and not a word that points elsewhere."""
    return bool(text) and len(text) <= 100 and len(text.split()) <= most and not _PRONOUN.match(text)


_COUNT = re.compile(
    r"(?:\d|(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|fifteen|twenty|thirty|fifty"
    r"|hundred|a dozen)\b)",
    re.I,
)
_RELATIVE = re.compile(
    r"\b(?:mon|tues|wednes|thurs|fri|satur|sun)day|today|tomorrow|tonight|(?:next|end of(?: the)?) (?:week"
    r"|month|quarter|year)"
    r"|january|february|march|april|june|july|august|september|october|november|december|\d{1,2} ?(?:am|pm)\b",
    re.I,
)


def nature(value: str) -> str:
    """Return what sort of value this is, so that a date never corrects a number: date, number, name, or ""."""
    if _RELATIVE.search(value):
        return "date"
    found = [one.kind for one in details(f"= {value}")]
    for kind, sort in (("date", "date"), ("number", "number")):
        if kind in found:
            return sort
    if _COUNT.match(value):
        return "number"
    if value[:1].isupper() or any(
        kind in found for kind in ("name", "code", "id", "host", "path", "url", "version", "email")
    ):
        return "name"
    return "name" if len(value.split()) == 1 and value.isalpha() and any(c.isupper() for c in value) else ""


def unit(value: str) -> frozenset[str]:
    """Return the words and signs of a number that say of what it is."""
    return frozenset(re.findall(r"[^\W\d]{2,}|[$€£¥%]", value.lower()))


def same(one: str, other: str) -> bool:
    """Return whether two values are the same words in the same order, articles and case aside."""
    return _plain(one) == _plain(other)


def mentions(text: str, value: str) -> bool:
    """Return whether a text holds a value as whole words."""
    said, wanted = _plain(text), _plain(value)
    return bool(wanted) and any(
        said[place : place + len(wanted)] == wanted for place in range(len(said) - len(wanted) + 1)
    )


def _plain(text: str) -> list[str]:
    return [word for word in re.findall(r"[^\W_]+", text.lower()) if word not in ("the", "a", "an", "our")]


def names(text: str) -> list[str]:
    """Return the names, numbers, dates and code of a text in order."""
    return [one.text for one in details(text) if one.kind != "quote"]


def heading(parts: Iterable[str]) -> str:
    """Return words as the beginning of a line."""
    text = " ".join(part for part in parts if part)
    return text[:1].upper() + text[1:]
