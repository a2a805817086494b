"""Rules for what changes: something gives way to something else, is set to a new value, or is no longer so."""

from __future__ import annotations

import re

from acms.providers.offline.rules.patterns import ATTRIBUTES, NP, kind_of
from acms.providers.offline.rules.phrases import cut, is_value, nature, pattern
from acms.providers.offline.rules.statement import DECISION, Made, Reading, about, state

_SWITCH = pattern(
    rf"""(?P<verb>switch(?:ed|ing|es)?|mov(?:e|ed|ing)|migrat(?:e|ed|ing)|chang(?:e|ed|ing)|convert(?:ed|ing)?
    |upgrad(?:e|ed|ing)|downgrad(?:e|ed|ing)|port(?:ed|ing)|transition(?:ed
        |ing)?)[ ](?P<t>{NP}?[ ])??(?:(?:over|back|away)[ ])?
    (?:from[ ](?P<a>.{{1,60}}?)[ ])?(?:over[ ])?to[ ](?P<v>.+)"""
)


_REPLACE = pattern(
    r"""(?:replac(?:e|ed|ing)|swap(?:ped|ping)?(?:[ ]out)?|exchang(?:e|ed|ing)|substitut(?:e|ed
        |ing))[ ](?P<a>.{1,60}?)[ ](?:out[ ])?
    (?:with|by|for)[ ](?P<v>.+)"""
)


_DROP = pattern(
    r"""(?:drop(?:ped|ping)?|ditch(?:ed|ing)?|abandon(?:ed|ing)?|leav(?:e|ing)|left|retir(?:e|ed|ing)|remov(?:e
        |ed|ing)
    |stop(?:ped|ping)?[ ]using|gave[ ]up[ ]on|giv(?:e|ing)[ ]up[ ]on|got[ ]rid[ ]of|mov(?:e|ed
        |ing)[ ]away[ ]from)[ ](?P<a>.{1,60}?)[ ]
    (?:(?:and|to)[ ](?:use|using|go[ ]with|going[ ]with|went[ ]with|mov(?:e|ed|ing)[ ]to|switch(?:ed|ing)?[ ]to
        |take|adopt(?:ed|ing)?|chose|picked)
      |in[ ]favou?r[ ]of)[ ](?P<v>.+)"""
)


_BUT = pattern(
    r"""no[ ]longer[ ](?P<verb>\w{2,20}(?:[ ](?:to|on|with|in|from
        |through))?)[ ](?P<a>.{1,60}?),?[ ]but[ ](?:(?:to|on|with|in|use|using|through)[ ])?(?P<v>.+)"""
)


_END = pattern(
    r"""(?:(?:no[ ]longer|don't|do[ ]not|stopped|quit|stop)[ ](?:use|using|need|needing|have|having|rely[ ]on
        |relying[ ]on|support|supporting
        |deploy[ ](?:to|on)|deploying[ ](?:to|on)|run[ ]on|running[ ]on|want)
      |(?:drop|ditch|abandon|remov|retir|cancel|scrapp?|discard)(?:e|ed|ing|led|ling|ped|ping)?|got[ ]rid[ ]of
        |(?:are[ ])?done[ ]with|gave[ ]up[ ]on|forget[ ]about|scratch)
    [ ](?P<a>[^,;]{1,60})"""
)


_GONE = pattern(
    rf"""(?P<a>{NP}?)[ ](?:is|are|was|were|has[ ]been|have[ ]been)[ ](?:
      no[ ]longer[ ](?:used|needed|required|valid|relevant|in[ ]use|necessary|applicable|in[ ]force
        |a[ ]requirement|a[ ]constraint|a[ ]goal|supported|true|the[ ]case)
      |(?:dropped|lifted|removed|cancelled|canceled|scrapped|abandoned|retired|obsolete|withdrawn
        |off[ ]the[ ]table|gone|deprecated))(?:[ ].{{0,80}})?"""
)


MOVED = (
    r"set|fixed|moved|changed|raised|increased|lowered|reduced|cut|extended|pushed|postponed|bumped|updated"
    r"|switched"
    r"|shifted|delayed|dropped|decreased|doubled|adjusted|revised|brought|upgraded|downgraded|migrated|renamed"
)


_SET = pattern(
    rf"""(?P<t>{NP}?)[ ](?:(?:is|are|was|were|will[ ]be|has[ ]been|have[ ]been|had[ ]to[ ]be|got|gets
        |is[ ]being|must[ ]be)[ ])?
    (?P<verb>{MOVED}|moves?|changes?|goes|went|grew|rose|shrank|switches|migrates?|slipped)(?:[ ](?:back|up
        |down|forward|out|over|again))?
    (?:[ ]from[ ](?P<a>.{{1,60}}?))?(?:[ ](?:back|up|down|over))?[ ](?:to[ ](?:be[ ])?|at[ ]|until[ ]|till[ ]
        |by[ ](?=\D))(?P<v>.+)"""
)


_IMPERATIVE = pattern(
    rf"""(?:set|rais(?:e|ed|ing)|increas(?:e|ed|ing)|lower(?:ed|ing)?|reduc(?:e|ed|ing)|bump(?:ed|ing)?
        |cut(?:ting)?|extend(?:ed|ing)?|push(?:ed|ing)?|mov(?:e|ed|ing)
    |chang(?:e|ed|ing)|updat(?:e|ed|ing)|cap(?:ped|ping)?|limit(?:ed|ing)?|shift(?:ed|ing)?|postpon(?:e|ed|ing)
        |delay(?:ed|ing)?|adjust(?:ed|ing)?|renam(?:e|ed|ing)
    |keep(?:ing)?|drop(?:ped|ping)?)[ ](?P<t>(?:the|our|my)[ ]{NP}?)(?:[ ](?:back|up|down|out
        |forward))?(?:[ ]from[ ](?P<a>.{{1,60}}?))?[ ](?:to|at|until|under|below|by[ ](?=\D))[ ]?(?P<v>.+)"""
)


_MAKE = pattern(
    r"""(?:(?:let's[ ]|let[ ]us[ ])?make[ ](?:that|it)(?:[ ]a)?|(?:it|that)(?:'s|[ ]is|[ ]should[ ]be
        |[ ]will[ ]be|[ ]has[ ]to[ ]be|'ll[ ]be)(?:[ ](?:going[ ]to[ ]be|supposed[ ]to[ ]be|set[ ]to
        |moved[ ]to))?|i[ ]meant(?:[ ]to[ ]say)?|rather)[ ](?P<v>.+)"""
)


def switched(reading: Reading) -> Made:
    """Read "moving from A to B", "replace A by B", "drop A and use B", "no longer on A but on B"."""
    agent = reading.agent
    rest = reading.text[agent.end() :] if agent else reading.text
    who = (agent["agent"] or "").lower() if agent else ""
    offset = len(reading.text) - len(rest)
    if not who and not reading.speaker.user and not reading.marker:
        return None
    if (match := _DROP.match(rest)) or (match := _REPLACE.match(rest)):
        rule = match
        named = rule["a"]
        of = None
        if inside := re.match(r"(?P<t>(?:the|our|my) .{2,50}?) (?P<a>[A-Z0-9][^,;]{1,40})$", named):
            of, named = about(reading, inside["t"]), inside["a"]
    elif match := _SWITCH.match(rest):
        rule = match
        named = rule["a"] or ""
        of = about(reading, rule["t"]) if rule["t"] else None
        if rule["t"] and not of:
            return None
        if who == "i" and not of and not named:
            return None
        if not (who or named or of) and not reading.marker and not rest[:1].isupper() and offset == 0:
            return None
        if of and not named and nature(cut(rule["v"]).value) not in ("name", "number", "date"):
            return None
    elif match := _BUT.match(rest):
        rule, named, of = match, match["a"], None
    else:
        return None
    found = cut(rule["v"])
    if not is_value(found.value, most=6):
        return None
    loose = False
    reason = found.reason
    if found.purpose and of is None:
        of, loose = about(reading, found.purpose), not found.role
        reason = reason or (f"for {found.purpose}" if loose else "")
    old = cut(named).value if named else ""
    made = state(
        reading, of, found.value, change=True, old=old, reason=reason, loose=loose, fact_type=DECISION
    )
    return [made], offset + rule.start("v") + found.end


def dropped(reading: Reading) -> Made:
    """Read "we no longer use A" and "A is no longer needed"."""
    agent = reading.agent
    rest = reading.text[agent.end() :] if agent else reading.text
    who = (agent["agent"] or "").lower() if agent else ""
    if (match := _END.match(rest)) and (who or (reading.speaker.user and rest[:1].lower() in "fsdr")):
        if rest.lower().startswith(("don", "do not", "stop ")) and not (who and reading.change):
            return None
        named = match["a"]
    elif match := _GONE.match(reading.text):
        named, rest = match["a"], reading.text
    else:
        return None
    found = cut(re.sub(r"^(?:the|our|any|that|this) ", "", named, flags=re.I))
    if not is_value(found.value, most=7):
        return None
    of = about(reading, found.purpose) if found.purpose else None
    return [state(reading, of, "", old=found.value, change=True, ended=True)], len(reading.text)


def set(reading: Reading) -> Made:
    """Read "the deadline moved to D" and "the budget was raised from A to B"."""
    match = _SET.fullmatch(reading.text)
    if not match:
        return None
    return _assigned(
        reading, match["t"], match["v"], match.start("v"), match["a"] or "", change=match["verb"] != "set"
    )


def imperative(reading: Reading) -> Made:
    """Read "raise the budget to N"."""
    agent = reading.agent
    if not reading.speaker.user and not (agent and agent["agent"]):
        return None
    match = _IMPERATIVE.fullmatch(reading.text, agent.end() if agent else 0)
    if not match:
        return None
    return _assigned(reading, match["t"], match["v"], match.start("v"), match["a"] or "", change=True)


def _assigned(reading: Reading, raw: str, v: str, at: int, old: str, *, change: bool) -> Made:
    found = cut(v)
    of = about(reading, raw)
    if of is None or not is_value(found.value, most=8):
        return None
    kind = nature(found.value)
    if (
        not reading.marker
        and not (
            kind in ("number", "date", "name")
            and (kind != "name" or ATTRIBUTES.fullmatch(of.attribute) or old)
        )
        and not (ATTRIBUTES.fullmatch(of.attribute) and len(found.value.split()) <= 3)
    ):
        return None
    if (
        kind == "date"
        and not ATTRIBUTES.fullmatch(of.attribute)
        and not raw.lower().startswith(("the ", "our ", "my "))
    ):
        return None
    named = cut(old).value if old else found.old
    made = state(
        reading,
        of,
        found.value,
        found,
        old=named,
        change=change or reading.change,
        fact_type=kind_of(of, kind),
    )
    return [made], at + found.end


_ANNOUNCED = re.compile(
    r"(?:no|nope|actually|sorry|wait|oops|scratch that|correction|i meant?|rather|hold on|my mistake|my bad)\b",
    re.I,
)


def corrected(reading: Reading) -> Made:
    """Read a correction that does not say of what: "make that 64,000"."""
    match = _MAKE.fullmatch(reading.text)
    said_new = reading.change or (
        match is not None and reading.text.lower().startswith(("make", "let's make", "i meant"))
    )
    if match and said_new:
        found = cut(match["v"])
    elif reading.change and (reading.clause.change or _ANNOUNCED.match(reading.clause.text)):
        found = cut(reading.text)
        if len(found.value.split()) > 5 or re.search(r"\b(?:is|are|was|were|has|have)\b", found.value):
            return None
    else:
        return None
    if not is_value(found.value, most=5) or not (nature(found.value) or found.old):
        return None
    of = about(reading, found.purpose) if found.purpose else None
    return [state(reading, of, found.value, found, change=True, loose=of is not None)], len(reading.text)
