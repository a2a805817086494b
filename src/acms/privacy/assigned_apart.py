"""Values that stand apart from their names: in an answer, an argument, the next line of a block, an address."""

# ruff: noqa: E501  an alternative of a pattern stays in one line

from __future__ import annotations

import re
from collections.abc import Iterator

from acms.privacy.plausibility import DIGIT, LETTER, MOMENT, NOT_VALUES, ODD, names_itself, opaque, plausible
from acms.privacy.tokens import Found

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
    r"""["']?(?:</\w{1,12}>)?,?[ \t\r\n]{0,40}+"""
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


# ── tables ──────────────────────────────────────────────────────────────────────────────────────────────────────────

#: A line of names, each a word or a few. Blanks belong to what stands before them, and a tab is a sign only where no
#: other one is: read in two ways, a line that is none would be tried in every mixture of them.
_HEAD = re.compile(
    r"""[|]?[ \t]*+["'`*]{0,2}+\w[\w .#-]{0,30}+["'`*]{0,2}+"""
    r"""(?:[ ]*+(?:\t[ \t]*+[,;|]?|[,;|])[ \t]*+["'`*]{0,2}+[\w .#-]{0,31}+["'`*]{0,2}+){1,11}+[ \t]*+[|]?\r?"""
)
#: What may stand before the name in its cell: "Wi-Fi ", "mot de ".
_OF_IT = re.compile(r"""[\s"'`*]*(?!(?i:hash|encr|min|max|old|last))(?:[\w'-]{1,12}[ _-]?){0,2}""")
_SIDES = " \t\"'`*"
_ROWS = 200
#: The name of a column, so that each row is read below one only.
_TITLE = re.compile(
    r"(?i)[\w -]{0,24}?(?:pass\w{0,8}|pwd|pw|psk|secret|token|key|credentials?|kennwort|wachtwoord|senha|clave|mdp)"
)


def column(text: str, start: int, end: int, kind: str) -> list[Found]:
    """Return what stands below a name that heads a column: of lines of CSV, of a table in Markdown."""
    begin = text.rfind("\n", max(0, start - 300), start) + 1
    stop = text.find("\n", end, end + 300)
    if (
        stop < 0
        or start - begin > 300
        or (begin == 0 and start > 300)
        or not _HEAD.fullmatch(text, begin, stop)
    ):
        return []
    before, after = text[begin:start].rstrip("\"'`*\r "), text[end:stop].lstrip("\"'`*\r ")
    line = text[begin:stop]
    sign = max("\t,;|", key=line.count)
    if (after and after[0] != sign) or not _OF_IT.fullmatch(before.rpartition(sign)[2]):
        return []
    place, cells = before.count(sign), line.count(sign)
    found: list[Found] = []
    name = text[start:end].lower()
    for _ in range(_ROWS):
        begin, stop = stop + 1, text.find("\n", stop + 1, stop + 1200)
        if stop < 0:
            stop = len(text) if len(text) - begin < 1200 else begin
        row = text[begin:stop].split(sign)
        if len(row) != cells + 1:
            break
        cell = row[place]
        value = cell.strip(_SIDES + "\r")
        at = begin + sum(map(len, row[:place])) + place + cell.find(value)
        if name in value.lower() or _TITLE.fullmatch(value):
            break  # another table
        if _cell(text, value, at, kind):
            found.append(Found(at, at + len(value), kind))
    return found


def _cell(text: str, value: str, at: int, kind: str) -> bool:
    if len(value) < 6 or " " in value or not DIGIT.search(value) or not LETTER.search(value):
        return False
    if value.startswith("$") or _TICKET.fullmatch(value) or MOMENT.fullmatch(value):
        return False
    if kind != "password" and not opaque(value):
        return False
    return plausible(text, value, at, kind, "=", False, False)


#: A line of `.pgpass`: host, port, database, user, password.
_PGPASS = re.compile(
    r"^[\w.*-]{1,64}+:(?:54\d\d|6432|\*):[\w.*-]{1,64}+:[\w.*-]{1,64}+:([^\s:]{4,128}+)$", re.MULTILINE
)
#: After the sign of an address of mail: its host, and what is told to be the password where somebody signs in.
_MAIL_HOST = re.compile(
    r"""@[\w-]{1,63}+(?:\.[\w-]{1,63}+){1,4}+["'`]?[ \t]?[/|][ \t]?["'`]?([^\s"'`<>/|]{6,64}+)"""
)
_SIGNING = re.compile(
    r"log(?:ging|ged)?[ -]?(?:in|on)\b|login|sign(?:ing|ed)? ?in|cred|account|access|zugang|einlog|anmeld|connexion|identifiant|acceso|accesso|acesso|inlog"
)


def pgpass(text: str) -> Iterator[Found]:
    """Find the passwords of lines of `.pgpass`."""
    for match in _PGPASS.finditer(text) if ":54" in text or ":6432:" in text or ":*:" in text else ():
        if not names_itself(match[1]) and len(set(match[1])) > 2:
            yield Found(match.start(1), match.end(1), "password")


def beside_mail(text: str) -> Iterator[Found]:
    """Find what stands beside an address of mail where somebody is to sign in: `log in with ann@example.org / …`."""
    at = text.find("@")
    while at >= 0:
        host = _MAIL_HOST.match(text, at)
        if host:
            value = host[1].rstrip(".,;?)")
            digits = sum(map(str.isdigit, value))
            made_up = digits > 1 or (digits and (ODD.search(value) or not value.islower()))
            if (
                made_up
                and LETTER.search(value)
                and not _TICKET.fullmatch(value)
                and not MOMENT.fullmatch(value)
                and _SIGNING.search(text[max(0, at - 100) : at].lower())
                and plausible(text, value, host.start(1), "password", "=", False, False)
            ):
                yield Found(host.start(1), host.start(1) + len(value), "password")
        at = text.find("@", at + 1)


# ── what was set, in sentences ──────────────────────────────────────────────────────────────────────────────────────

_TO = re.compile(
    r"""[ \t](?:[^\s:=]{1,16}[ \t]){0,2}?(?:auf|zu|en|à|a|por|para|in|op|naar|na|på|til|为|成)[ \t]["'`„“«]?([^\s"'`“”»<>]{6,64}+)["'`“”»]?([^\n]{0,24})"""
)
_TURNED = re.compile(
    r"setz|geänder|ändert|gestellt|chang|modifi|réinit|cambi|restabl|mud(?:ei|ou)|alter|redefin|imposta|reimpost|"
    r"gewijzig|verander|ingesteld|zmieni|ustawi|ändra|ändret|endre"
)
_WORDS_OF_IT = re.compile(
    r"""["']?[ \t]?(?:[:=]|is|was|ist)[ \t]{1,3}["']?((?:[a-z]{3,12}[ ]){2,7}\d{1,6})["']?[.,]?[ \t]*(?:\r?\n|$)"""
)


def spoken(text: str, low: str, start: int, end: int) -> Found | None:
    """Return the password that a sentence says it was turned to, or that is several words and a number."""
    words = _WORDS_OF_IT.match(text, end)
    if words and NOT_VALUES.isdisjoint(words[1].split()):
        return Found(words.start(1), words.end(1), "password")
    to = _TO.match(text, end)
    if to and (_TURNED.search(low, max(0, start - 40), to.start(1)) or _TURNED.search(to[2].lower())):
        value = to[1].rstrip(".,;?)")
        if (
            DIGIT.search(value)
            and LETTER.search(value)
            and not _TICKET.fullmatch(value)
            and plausible(text, value, to.start(1), "password", "=", False, False)
        ):
            return Found(to.start(1), to.start(1) + len(value), "password")
    return None
