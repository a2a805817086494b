"""Rules for what has a value: limits, dates, sizes, goals, and lines "Key: value"."""

from __future__ import annotations

import re

from acms.providers.offline.rules.patterns import ATTRIBUTES, NP, TRIM, kind_of
from acms.providers.offline.rules.phrases import (
    PROJECT,
    USER,
    Topic,
    cut,
    is_value,
    names,
    nature,
    pattern,
    person,
)
from acms.providers.offline.rules.statement import (
    CONSTRAINT,
    DECISION,
    GOAL,
    Made,
    Reading,
    about,
    line,
    state,
)

_COPULA = pattern(
    rf"""(?P<t>(?:(?:the|our|my|this)[ ])?{NP}?)(?:[ ](?:(?:is|are)[ ]going[ ]to[ ]be|is|are|will[ ]be
        |shall[ ]be|remains?|stays?|becomes?|became|must[ ]be|should[ ]be|was[ ](?=set|fixed|capped|agreed
        |decided|called|named)))[ ]
    (?:(?:set|fixed|capped|limited|due|scheduled|planned|agreed|called|named|pinned|decided|restricted
        |configured|based)[ ])?(?:(?:to[ ](?:be[ ])?|at[ ](?=\S)|for[ ]|on[ ]|by[ ]|in[ ])(?=[\d$€£]|[A-Z]
        |the[ ]end|next|end))?(?P<v>.+)"""
)


_APPOSED = pattern(
    r"""(?P<x>.{3,200}?),?[ ](?:(?:so|and)[ ])?(?:that|this|which|it)(?:'s|[ ]is
        |[ ]will[ ]be)(?:[ ]going[ ]to[ ]be)?[ ](?P<det>our|the|my)[ ](?P<t>[\w][^,;]{1,80})"""
)


_WHICH = pattern(
    r"""(?:.{0,80}?\b)?(?P<t>(?:my|our|the)[ ](?:[\w-]{1,30}[ ]){0,3}[\w-]{1,30}),[ ]which[ ]is[ ](?P<v>.+)"""
)


_AT_END = pattern(
    r""".*?\b(?:in|on|to|with|through|by|have|use|using|be|prefer|via|at|is)[ ](?P<v>[^,;]{1,50})"""
)


_OF = pattern(
    r"""(?:we|i|you|there)(?:'ve|'s|[ ]have|[ ]has|[ ]is|[ ]are)?(?:[ ](?:have|got|given))?[ ](?:a
        |an)[ ](?:[\w-]{1,20}[ ]){0,2}?(?P<t>budget|deadline|limit|cap|quota|timeout|maximum|minimum|ceiling
        |headcount|[\w-]{2,20}[ ](?:budget|deadline|limit|cap|quota|timeout))[ ](?:of|on|at)[ ](?P<v>.+)"""
)


_NUM = (
    r"(?:\d{1,6}|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|fifteen|twenty"
    r"|thirty)"
)


_TEAM = pattern(
    rf"""(?:(?:the|our)[ ]team[ ](?:has|is|consists[ ]of|counts|now[ ]has)|we(?:'re|[ ]are|[ ]have)
        |our[ ]team[ ]size[ ]is|my[ ]team[ ](?:has|is))[ ](?:a[ ]team[ ]of[ ])?(?:only[ ])?
    (?P<v>{_NUM})[ ](?:(?:senior|software|full-time|backend|front-end)[ ])?(?:people|engineers|developers|devs
        |members|persons|of[ ]us|designers|programmers)(?P<rest>.*)"""
)


_EXCEED = pattern(
    rf"""(?:(?P<t>{NP}?)[ ])?(?:can't|cannot|can[ ]not|must[ ]not|mustn't|may[ ]not|should[ ]not|shouldn't
        |won't)[ ](?:exceed|go[ ](?:over|above|beyond)|be[ ](?:more|larger|longer|higher|bigger|greater)[ ]than
        |spend[ ]more[ ]than|take[ ](?:more|longer)[ ]than|last[ ]longer[ ]than|use[ ]more[ ]than)[ ](?P<v>.+)"""
)


_BOUND = pattern(
    rf"""(?P<t>{NP}?)[ ](?:must|has[ ]to|have[ ]to|needs?[ ]to|should)[ ](?:be|stay|remain|run|finish|respond
        |return|answer|complete|fit|load)[ ](?:in[ ])?(?P<v>(?:under|below|less[ ]than|at[ ]least|at[ ]most
        |within|above|no[ ]more[ ]than|over|in)[ ].+)"""
)


_BY = pattern(
    rf"""(?:(?:we|i)[ ])?(?:must|need[ ]to|have[ ]to|has[ ]to|needs[ ]to)[ ](?:be[ ])?(?:finish(?:ed)?
        |ship(?:ped)?|deliver(?:ed)?|launch(?:ed)?|submit(?:ted)?|complete[d]?|release[d]?|done|ready
        |hand(?:ed)?[ ]in|go[ ]live)(?:[ ](?P<t>(?:with[ ])?{NP}?))?[ ](?:by|before|until|no[ ]later[ ]than
        |on)[ ](?P<v>.+)"""
)


_T_BY = pattern(
    rf"""(?P<t>{NP}?)[ ](?:(?:must|needs[ ]to|has[ ]to|have[ ]to)[ ](?:be[ ])?(?:finished|shipped|ship
        |delivered|launched|launch|submitted|completed|released|done|ready|live|go[ ]live)[ ](?:by|before|until
        |no[ ]later[ ]than|on)|(?:is|are)[ ]due(?:[ ](?:by|on|at|before))?|launches[ ]on|ships[ ]on
        |goes[ ]live[ ]on)[ ](?P<v>.+)"""
)


_GOAL = pattern(
    r"""(?:(?:the|our|my)[ ](?:(?:main|primary|next|overall|current|ultimate|final|big|team|project|sprint
        |quarterly|long-term|short-term)[ ])*(?:goal|objective|aim|mission|target)(?:[ ](?:for
        |of)[ ][^,;]{2,40}?)?[ ](?:is|is[ ]still|will[ ]be)[ ](?:to[ ])?|we[ ]aim[ ]to[ ]|we(?:'re
        |[ ]are)[ ]aiming[ ]to[ ]|i(?:'m|[ ]am)[ ]aiming[ ]to[ ])(?P<v>.+)"""
)


def copula(reading: Reading) -> Made:
    """Read "the B is A"."""
    match = _COPULA.fullmatch(reading.text)
    if not match:
        return None
    raw = match["t"]
    of = about(reading, raw)
    found = cut(match["v"])
    value = re.sub(r"^(?:on|at|by|for|to be) (?=\S)", "", found.value)
    value = re.sub(r" only$", "", value)
    if (
        of is None
        or not is_value(value, most=8)
        or re.match(r"\w+(?:ing|ed) (?:the|a|to|up|out|with|by|for|on|about|in)\b", value)
    ):
        return None
    kind = nature(value)
    if not reading.marker and not reading.clause.change:
        known = ATTRIBUTES.fullmatch(of.attribute) is not None
        definite = raw.lower().startswith(("the ", "our ", "my ", "this ")) or of.subject != PROJECT
        if kind == "name" and not value[:1].isupper() and not known:
            return None
        if not known and (not definite or not kind or len(value.split()) > 4 or len(raw.split()) > 6):
            return None
        if (
            known
            and not kind
            and (
                len(value.split()) > 3
                or re.search(r"\w(?:ing|ed|ly|ous|ful|ive|able|ible|less|ent|ant)$", value)
            )
        ):
            return None
        if known and not definite and not kind and not reading.change:
            return None
    subject_of = "user" if re.match(r"my (?:full )?name$", raw, re.I) else None
    if subject_of:
        of = Topic(of.subject, "name")
    if not kind and (reading.speaker.name != reading.speaker.role) and not reading.marker:
        return None
    return [state(reading, of, value, found, fact_type=kind_of(of, kind))], match.start("v") + found.end


def apposed(reading: Reading) -> Made:
    """Read "…A, that is our B"."""
    match = _APPOSED.fullmatch(reading.text)
    if not match:
        return None
    raw = TRIM.sub("", match["t"])
    of = about(reading, f"{match['det']} {raw}")
    if of is None or not (ATTRIBUTES.fullmatch(of.attribute) or reading.marker):
        return None
    before = match["x"]
    found = _AT_END.fullmatch(before)
    value = cut(found["v"]).value if found else ""
    if not (is_value(value, most=4) and (nature(value) or (value.islower() and len(value.split()) <= 2))):
        named = names(before[2:])
        value = named[0] if len(named) == 1 else ""
    if not value:
        return None
    return [state(reading, of, value, None, fact_type=kind_of(of, nature(value)))], match.end("x")


def which(reading: Reading) -> Made:
    """Read "my B, which is A"."""
    match = _WHICH.fullmatch(reading.text)
    of = about(reading, match["t"]) if match else None
    if not match or of is None or not (ATTRIBUTES.fullmatch(of.attribute) or reading.marker):
        return None
    found = cut(match["v"])
    if not is_value(found.value, most=5) or not nature(found.value):
        return None
    return [
        state(
            reading,
            Topic(of.subject, "name") if of.attribute.endswith("name") and of.subject == USER else of,
            found.value,
            found,
        )
    ], match.start("v") + found.end


def amount(reading: Reading) -> Made:
    """Read team sizes, deadlines and limits."""
    if match := _TEAM.fullmatch(reading.text):
        found = cut(f"{match['v']}{match['rest'][match['rest'].find(',') :] if ',' in match['rest'] else ''}")
        made = state(reading, Topic(PROJECT, "team size"), match["v"], found, fact_type=CONSTRAINT)
        return [made], match.end("v")
    if match := _OF.fullmatch(reading.text):
        found = cut(match["v"])
        if nature(found.value) in ("number", "date"):
            return [
                state(reading, Topic(PROJECT, match["t"]), found.value, found, fact_type=CONSTRAINT)
            ], match.start("v") + found.end
    if (match := _T_BY.fullmatch(reading.text)) or (match := _BY.fullmatch(reading.text)):
        found = cut(match["v"])
        raw = re.sub(r"^with ", "", match["t"] or "project")
        of = about(reading, raw)
        if nature(found.value) != "date" or of is None:
            return None
        if of.attribute.lower() in ("everything", "project", "it"):
            of = Topic("", "")
        of = (
            Topic(of.attribute or PROJECT, "deadline")
            if of.subject in (PROJECT, "")
            else Topic(f"{of.subject} {of.attribute}", "deadline")
        )
        return [state(reading, of, found.value, found, fact_type=CONSTRAINT)], match.start("v") + found.end
    if match := _EXCEED.fullmatch(reading.text):
        found = cut(match["v"])
        raw = match["t"] or "we"
        if nature(found.value) != "number":
            return None
        of = Topic(PROJECT, "limit") if raw.lower() in ("we", "it", "you", "this") else about(reading, raw)
        if of is None:
            return None
        if "spend" in reading.text.lower()[: match.start("v")] or re.search(r"[$€£]", found.value):
            of = Topic(PROJECT, "budget") if raw.lower() in ("we", "it", "you") else of
        return [state(reading, of, found.value, found, fact_type=CONSTRAINT)], match.start("v") + found.end
    if match := _BOUND.fullmatch(reading.text):
        found = cut(match["v"])
        of = about(reading, match["t"])
        if of and nature(found.value) == "number" and (reading.marker or "should" not in reading.text):
            return [state(reading, of, found.value, found, fact_type=CONSTRAINT)], match.start(
                "v"
            ) + found.end
    return None


def goal(reading: Reading) -> Made:
    """Read "our goal is to …"."""
    match = _GOAL.fullmatch(reading.text)
    if not match or not is_value(match["v"], most=30):
        return None
    of = Topic(PROJECT, "goal")
    if reading.text.lower().startswith(("my", "i")):
        of = Topic(person(reading.speaker.name, reading.speaker.role), "goal")
    return [state(reading, of, match["v"], None, fact_type=GOAL, cardinality="many")], len(reading.text)


def bare(reading: Reading) -> Made:
    """Read what follows a marker without a verb: "Decision: Redis for caching"."""
    if not reading.marker or reading.clause.listed:
        return None
    word = reading.clause.key.lower()
    if word in ("budget", "limit"):
        rest = re.sub(
            r"^(?:it is|it's|it’s|is|we have|was (?:raised|changed|set|cut) to|of)\s+",
            "",
            reading.text,
            flags=re.I,
        )
        found = cut(rest)
        if nature(found.value) != "number" or len(found.value.split()) > 6:
            return None
        of = about(reading, f"{found.purpose} {word}") if found.purpose and word == "limit" else None
        of = of or Topic(PROJECT, word)
        content = line(of.subject, of.attribute, found.value, found.reason)
        return [state(reading, of, found.value, found, content=content, fact_type=CONSTRAINT)], len(
            reading.text
        )
    if reading.marker != DECISION:
        return None
    found = cut(reading.text, to=True)
    if not is_value(found.value, most=4) or re.search(r"\b(?:it|is|be|shall|will|are)\b", found.value):
        return None
    of = about(reading, found.purpose) if found.purpose else None
    if of and (nature(found.value) == "name" or len(found.value.split()) <= 2):
        content = line(of.subject, of.attribute, found.value, found.reason)
        return [state(reading, of, found.value, found, content=content)], len(reading.text)
    return None


_KEYS_NOT = re.compile(
    r"(?:note|example|question|answer|thanks|hi|hello|ps|step|http|https|code|summary|task|todo|input|output"
    r"|error|user|assistant"
    r"|system|tool|re|subject|from|to|cc|date|title|problem|solution|tip|warning|hint|link|source|context"
    r"|p\.s|edit|result|results|day|week|part|option|page|chapter|line|phase|today|yesterday|time anchor|q|a"
    r"|fig|table|issue|issues)(?:\b.*)?$",
    re.I,
)


def listed(reading: Reading) -> Made:
    """Read a line "Key: value" of a user."""
    clause = reading.clause
    if not clause.listed or not reading.speaker.user or _KEYS_NOT.match(clause.key):
        return None
    of = about(reading, clause.key)
    found = cut(clause.text)
    if (
        of is None
        or not is_value(found.value, most=6)
        or (clause.key.islower() and not ATTRIBUTES.fullmatch(of.attribute))
    ):
        return None
    if not ATTRIBUTES.fullmatch(of.attribute):
        return None
    if not nature(found.value) and len(found.value.split()) > 3:
        return None
    content = f"{clause.key[:1].upper()}{clause.key[1:]}: {clause.text}."
    return [
        state(reading, of, found.value, found, content=content, fact_type=kind_of(of, nature(found.value)))
    ], len(reading.text)
