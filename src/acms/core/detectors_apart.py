"""Values that stand apart from their names: in an answer, an argument, the next line of a block, an address."""

# ruff: noqa: E501  an alternative of a pattern stays in one line

from __future__ import annotations

import re
from collections.abc import Iterator

from acms.core.detectors import Found
from acms.core.detectors_values import DIGIT, LETTER, MOMENT, names_itself, opaque, plausible

# ── the answer to a question ────────────────────────────────────────────────────────────────────────────────────────

#: After the name the question ends, or says what it is of: "token limit?" asks for something else.
_REST = re.compile(
    r"""s?(?:[ \t](?=again|please|pls|for|of|to|on|in|at|here|there|now|is|was|für|von|vom|zum|de|del|della|di|da|do|du|van|voor|[?\n])|(?![ \t\w])|(?=[^\x00-\x7f]))[^\n?？]{0,48}+(?:[?？][^\n]{0,24})?+\r?\n(?:[ \t]*\r?\n)?"""
)
_ASKED = re.compile(r"\b(?:send|give|share|tell|paste|need|what|remind|resend)\b")
#: Who answers, in a chat or a protocol: `Ben: `, `[10:05] ben: `, `A: `, `> `.
_SPEAKER = re.compile(
    r"""[ \t]{0,8}(?:[>*-][ \t])?(?:[\[(][^\])\n]{1,24}[\])][ \t]?)?"""
    r"""(?:[^\s:：<>]{1,24}(?:[ \t][^\s:：<>]{1,16})?(?:[ \t]\([^)\n]{1,20}\))?[ \t]?[:：][ \t]?|<[^\s<>]{1,24}>[ \t])?"""
)
_LEAD = re.compile(
    r"(?i)(?:(?:sure|yes|yeah|yep|ok|okay|hi|here|there you go|here you go|it['’]?s|its|it is|it was|that['’]?s|try|use|"
    r"should be|still|is|das ist|es ist|ist|c['’]est|es|est|è|é|it should be|think|i think)[ \t,:.!-]{1,3}){1,4}"
)
_ANSWER = re.compile(
    r"""["'`“「]?([^\s"'`<>/\\“”「」]{5,64}+)["'`”」]?[.!,;]?[ \t]*(?:\r?\n|$|[ \t]\(|[ \t]?[:;]-?[)(])"""
)
_TICKET = re.compile(r"#.*|@.*|[A-Z]{2,8}-\d{1,6}|\w+@[\w.-]+|[\w-]+(?:\.[\w-]+)+|\d.*\+|[\d.,:+%-]+\w{0,5}")


def answered(text: str, low: str, start: int, end: int, kind: str) -> Found | None:
    """Return the line that answers a question for something secret, when the line is nothing else."""
    if text.find("\n", end, end + 80) < 0:
        return None
    rest = _REST.match(text, end)
    if not rest:
        return None
    if "?" not in rest[0] and "？" not in rest[0]:
        line = max(low.rfind("\n", max(0, start - 60), start), start - 60, 0)
        if not _ASKED.search(low, line, start) or rest.end() - end > 28:
            return None
    speaker = _SPEAKER.match(text, rest.end())
    for at in {speaker.end() if speaker else rest.end(), rest.end()}:
        lead = _LEAD.match(text, at)
        value = _ANSWER.match(text, lead.end() if lead else at)
        if (
            value
            and DIGIT.search(value[1])
            and LETTER.search(value[1])
            and not _TICKET.fullmatch(value[1])
            and not MOMENT.fullmatch(value[1])
            and "==" not in value[1]
            and plausible(text, value[1], value.start(1), kind, "is", False, False)
        ):
            return Found(value.start(1), value.end(1), kind)
    return None


_PASS = re.compile(r"PASS[ \t]([^\s/]{4,64})[ \t]*(?:\r?\n|$)")


def signed_in(text: str, start: int) -> Found | None:
    """Return what follows `PASS` in a protocol, where `USER` stands before: tests that passed are reported alike."""
    value = _PASS.match(text, start)
    before = text[max(0, start - 200) : start]
    if value and ("USER " in before or "331 " in before or "+OK" in before):
        return Found(value.start(1), value.end(1), "password")
    return None


# ── arguments ───────────────────────────────────────────────────────────────────────────────────────────────────────

_ARGUMENT = re.compile(r"""\([ \t]{0,2}[rbufN]{0,2}["']([^"'\n\\]{4,256})["'][ \t]{0,2}[,)]""")
_SETTER = re.compile(r"(?:\.|->|::|\bset|\bwith|_set|_with)[\w]{0,40}$", re.IGNORECASE)
_READER = re.compile(
    r"(?:get|read|fetch|find|load|lookup|prompt|ask|check|verify|hash|is|has|by)_?\w{0,12}$", re.IGNORECASE
)


def argument(text: str, start: int, end: int, kind: str) -> Found | None:
    """Return the text that a setter is given: `.setPassword("…")`, `with_token('…')`."""
    value = _ARGUMENT.match(text, end)
    if not value:
        return None
    former = text[max(0, start - 24) : start]
    setter = _SETTER.search(former)
    if not setter or _READER.search(former) or names_itself(value[1]) or " " in value[1]:
        return None
    if DIGIT.search(value[1]) and plausible(text, value[1], value.start(1), kind, "=", True, False):
        return Found(value.start(1), value.end(1), kind)
    return None


# ── blocks ──────────────────────────────────────────────────────────────────────────────────────────────────────────

#: A name and its value apart, as in lists of variables: `name: DB_PASSWORD`, `value: …`.
_NAMED = re.compile(r"""(?:name|key)(?:["']?[ \t]{0,3}[:=][ \t]{0,3}["']?|>)[\w.:-]{0,48}$""", re.IGNORECASE)
_ITEM = re.compile(
    r"""["']?(?:</\w{1,12}>)?,?[ \t\r\n]{0,40}"""
    r"""(?:["']?(?:type|secret|masked|description|sensitive|protected|enabled)["']?[ \t]?[:=][^\n,{}]{1,60}+[,\n][ \t\n]{0,20}){0,3}"""
    r"""(?:["']?(?:\w{0,12}[vV]alue|default|content)["']?[ \t]{0,4}[:=]|<(?:value|string)>)"""
)
_VARIABLE = re.compile(r"""variable[ \t]{1,4}["'][\w-]{0,48}$""")
_DEFAULT = re.compile(
    r"""["'][ \t]{0,4}\{[ \t]*\r?\n?(?:[ \t]{0,12}(?!default)\w{1,20}[ \t]{0,16}=[^\n{}]{0,160}+\n){0,6}"""
    r"""[ \t]{0,12}default[ \t]{0,16}="""
)


def item(text: str, start: int, end: int) -> int | None:
    """Return where the value of a name begins that is an item of a list or a block of its own."""
    value = _ITEM.match(text, end)
    if value and _NAMED.search(text, max(0, start - 64), start):
        return value.end()
    value = _DEFAULT.match(text, end)
    if value and _VARIABLE.search(text, max(0, start - 64), start):
        return value.end()
    return None


# ── addresses of the web ────────────────────────────────────────────────────────────────────────────────────────────

_QUERY = re.compile(
    r"[?&;](?:app_?id|app_?key|key|auth|auth_?key|code|hapikey)=([A-Za-z0-9_.~%+=-]{16,200}+)(?![/:@])",
    re.IGNORECASE,
)


def queries(text: str) -> Iterator[Found]:
    """Find opaque values of parameters that open something where they stand in an address: `?appid=…&key=…`."""
    for match in _QUERY.finditer(text):
        value = match[1]
        if opaque(value) and not names_itself(value):
            yield Found(match.start(1), match.end(1), "api_key")
