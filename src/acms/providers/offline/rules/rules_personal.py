"""Rules for what people say of themselves, of what must never happen, and of what did not work."""

from __future__ import annotations

import re

from acms.providers.offline.rules.phrases import PROJECT, USER, Topic, cut, is_value, nature, pattern
from acms.providers.offline.rules.phrases import person as subject_of
from acms.providers.offline.rules.statement import (
    CONSTRAINT,
    FAILURE,
    PREFERENCE,
    Made,
    Reading,
    about,
    state,
)

_TRIED = pattern(
    r"""(?:(?:we|i|the[ ]team)(?:'ve|[ ]have|[ ]had)?[ ])?(?:tried|attempted|tested
        |experimented[ ]with)[ ](?P<v>.{2,100}?),?[ ]
    (?:but|and|however,?|yet)[ ](?:(?:it|that|this|they|we|the[ ][\w ]{2,30}?|i)[ ])?
    (?P<how>(?:just[ ])?(?:fail|didn't|did[ ]not|doesn't|does[ ]not|broke|crash|couldn't|could[ ]not
        |was[ ](?:too|not)|wasn't|were[ ](?:too|not)|kept|hit|ran[ ]into|got|caused|gave|had|timed[ ]out|never
        |turned[ ]out|made|lost|corrupt|deadlock|leak|threw|produced|no[ ]luck).*)"""
)
_TRIED_FAILED = pattern(
    r"""(?:(?:we|i)[ ])?tried[ ](?P<v>[^,;]{2,100}),[ ](?P<how>(?:it[ ])?(?:failed|didn't[ ]work
        |did[ ]not[ ]work|no[ ]luck|broke|crashed).*)"""
)
_FAILED = pattern(
    r"""(?P<v>(?!i[ ]|he[ ]|she[ ]|it[ ]|that[ ]|this[ ]|they[ ]|you[ ]|we[ ])[\w'`"./+\#-][^,;]{1,80}?)[ ]
    (?P<how>(?:failed(?:[ ](?:because|due[ ]to|with|when|on|again|in|at|for)\b)|(?:didn't|did[ ]not|doesn't
        |does[ ]not)[ ]work(?:[ ]out)?(?:$|[ ,](?:because|due[ ]to|with|on|for|when|in|as|since|,|at)?)
        |kept[ ](?:crashing|failing|timing[ ]out)|(?:crashed|crashes|timed[ ]out|times[ ]out
        |broke)[ ](?:because|due[ ]to|with|when|on|under|the|at|after)).*)"""
)
_RULE = pattern(
    r"""(?:(?:you|we|i)[ ](?:should[ ]|must[ ]|will[ ])?|please[ ])?(?P<how>never|always|don't[ ]ever
        |do[ ]not[ ]ever|don't|do[ ]not|under[ ]no[ ]circumstances|at[ ]all[ ]times)[ ](?P<v>[a-z].{3,160})"""
)
_MUST = pattern(
    r"""(?P<t>(?:(?:the|our|all|any|every|each|no)[ ])?(?!i\b|you\b|it\b|he\b|she\b|they\b|that\b|this\b
        |there\b)[\w/-]{2,30}(?:[ ][\w/-]{1,30}){0,4}?)[ ]
    (?P<how>must[ ]not|mustn't|must[ ]never|must[ ]always|must|cannot|can't|may[ ]not|are[ ]not[ ]allowed[ ]to
        |is[ ]not[ ]allowed[ ]to|aren't[ ]allowed[ ]to|isn't[ ]allowed[ ]to|has[ ]to|have[ ]to
        |shall[ ]not)[ ](?P<v>(?:be[ ])?[a-z].{2,160})"""
)
_FORBIDDEN = pattern(
    r"""(?P<v>[\w/'-][^,;]{2,80}?)[ ](?:is|are)[ ](?:strictly[ ])?(?P<how>not[ ](?:allowed|permitted
        |an[ ]option|acceptable)|forbidden|prohibited|off[ ]limits|banned|mandatory|required|non-negotiable
        |out[ ]of[ ]scope)\b.{0,80}"""
)
#: Verbs of idle talk: "don't worry", "never mind", "I can't wait".
_IDLE = re.compile(
    r"(?:worry|forget|mind|know|think|get me wrong|hesitate|be (?:shy|afraid|sorry|sad|silly|too|so|a )"
    r"|give up|stop|let|hurt"
    r"|matter|need|have|want|care|see|understand|believe|like|love|hate|wait|feel|say|tell|ask|remember|sure"
    r"|agree|seem|been|had"
    r"|thought|knew|got|did|do\b|happen|heard|expected|imagine|help|wanted|wish|miss|underestimate|look|sound"
    r"|gonna|make it"
    r"|make sense|work|try|keep (?:me|you|us)|fear|panic|sweat|bother|ever|get\b|be\b(?! (?:stored|used"
    r"|logged|committed|deployed|exposed|sent|merged|changed|deleted|run|written|encrypted|signed|shared|kept"
    r"|cached|blocked|opened|installed))|a |an |the |good|nice|great|fun|there|here|so |very|too |in my"
    r"|in your|take (?:it|things)"
    r"|appreciate|enjoy|go wrong|end\b|ends\b|too|easy|fully|ready|happy|wonderful|inspiring|nervous|trying"
    r"|learning|looking)",
    re.I,
)
_STRICT = re.compile(
    r"(?:exceed|use|deploy|store|change|spend|break|touch|modify|ship|log|access|depend|require|rely|upgrade"
    r"|downgrade|expose|send"
    r"|share|delete|merge|commit|push|write|call|install|import|hard-?code|block|run|support|comply|pass"
    r"|include|contain|have"
    r"|respond|return|validate|authenticate|encrypt|sign|keep|retain|be )",
    re.I,
)

_ME = r"(?:i'm|i[ ]am)"
_NAME = pattern(
    r"""(?:my[ ](?:full[ ])?name(?:'s|[ ]is)|(?:please[ ])?call[ ]me|i'm[ ]called
        |i[ ]am[ ]called)[ ](?P<v>[A-Z][\w.'-]{0,30}(?:[ ][A-Z][\w.'-]{0,30}){0,3})(?P<rest>.*)"""
)
_INTRODUCED = pattern(
    r"""(?:i'm|i[ ]am|this[ ]is)[ ](?P<v>[A-Z][\w.'-]{1,30}(?:[ ][A-Z][\w.'-]{1,30}){1,2}),?[ ]
    (?:and[ ]my[ ]name|your[ ].*|and[ ]i[ ].*)(?P<rest>.*)"""
)
_LIVE = pattern(
    rf"""(?:(?:i|we)[ ](?:live|reside|am[ ]based|am[ ]living|am[ ]located|are[ ]based)[ ]in|{_ME}[ ](?:based
        |living|located)[ ](?:in|out[ ]of))[ ](?P<v>.+)"""
)
_MOVED = pattern(
    r"""i(?:'ve|[ ]have)?[ ](?:moved|relocated)[ ](?:here[ ])?(?:back[ ])?
    (?:from[ ](?P<a>[A-Z][\w .'-]{1,40}?)[ ])?to[ ](?P<v>[A-Z].+)"""
)
_FROM = pattern(r"""i(?:'m|[ ]am)?[ ](?:come[ ]from|originally[ ]from|from)[ ](?P<v>[A-Z].+)""")
_WORK = pattern(r"""i[ ]work[ ](?P<how>at|for|as)[ ](?P<v>.+)""")
_JOB = pattern(
    rf"""{_ME}[ ](?:a|an|the)[ ](?P<v>(?:[\w-]{{2,20}}[ ]){{0,3}}(?:engineer|developer|teacher|nurse|doctor
        |designer|manager|student|lawyer|scientist|analyst|researcher|writer|artist|architect|consultant
        |accountant|programmer|administrator|admin|founder|owner|director|editor|chef|photographer|musician
        |therapist|professor|lecturer|physicist|biologist|chemist|journalist|freelancer|contractor|coach|pilot
        |electrician|plumber|carpenter|translator|librarian|pharmacist|dentist|vet|paralegal|producer
        |colou?rist|technician|mechanic|salesperson|recruiter|cto|ceo|cfo))(?P<rest>\b.*)"""
)
_DIET = pattern(
    rf"""{_ME}[ ](?:a[ ])?(?:strict[ ])?(?P<v>vegetarian|vegan|pescatarian|lactose[ ]intolerant
        |gluten[ ]intolerant|celiac|coeliac|diabetic|kosher|halal|teetotal)(?P<rest>\b.*)"""
)
_ALLERGIC = pattern(
    rf"""(?:{_ME}[ ](?:(?:severely|very|highly|deathly|mildly)[ ])?allergic[ ]to
        |i[ ]have[ ]an?[ ](?:\w+[ ])?allergy[ ](?:to|against))[ ](?P<v>.+)|i[ ]have[ ]an?[ ](?:(?:severe|bad
        |mild|serious)[ ])?(?P<n>[\w-]{{2,20}}(?:[ ][\w-]{{2,20}})?)[ ]allergy\b.*"""
)
_NOT_ALLERGIC = pattern(
    rf"""{_ME}[ ](?:not|no[ ]longer)[ ](?P<how>allergic[ ]to[ ])?(?P<a>(?:(?<=to[ ])[\w -]{{2,40}}|vegan
        |vegetarian|pescatarian))\b.*"""
)
_OLD = pattern(
    rf"""(?:{_ME}[ ]|my[ ]age[ ]is[ ])(?P<v>\d{{1,3}})(?:[ ]years?[ ]old|[ ]?yo)?(?P<rest>(?:[ ,].*)?)"""
)
_BORN = pattern(r"""i[ ]was[ ]born[ ](?P<how>in|on)[ ](?P<v>.+)""")
_SPEAK = pattern(
    r"""i[ ]speak[ ](?:fluent[ ]|native[ ])?(?P<v>[A-Z]\w+(?:(?:,[ ]|[ ]and[ ]
        |,[ ]and[ ])[A-Z]\w+){0,5})(?P<rest>.*)"""
)
_FAVOURITE = pattern(
    r"""my[ ](?:all[- ]time[ ])?(?P<t>favou?rite[ ][\w -]{2,40}?)(?:[ ]is|[ ]are|'s)[ ](?P<v>.+)"""
)
_RELATED = pattern(
    r"""my[ ](?P<t>wife|husband|partner|son|daughter|brother|sister|mother|father|mom|mum|dad|dog|cat|boss
        |manager|fiancé|fiancée|girlfriend|boyfriend|friend)(?:'s[ ]name[ ]is|[ ]is[ ](?:called
        |named))[ ](?P<v>[A-Z].+)"""
)
_ZONE = pattern(
    rf"""{_ME}[ ](?:in|on)[ ](?P<v>(?:UTC|GMT|[A-Z]{{2,4}}T|CET|Eastern|Pacific|Central
        |Mountain)(?:[ ]?[+-][ ]?\d{{1,2}}(?::\d\d)?)?)(?:[ ]time)?(?P<rest>.*)"""
)


def _me(reading: Reading) -> str:
    return subject_of(reading.speaker.name, reading.speaker.role)


def _own(reading: Reading, attribute: str, value: str, more: str = "", **rest: object) -> Made:
    """Return what a speaker says of themselves, in the third person."""
    me = _me(reading)
    who = "The user" if me == USER else me
    content = more.format(who=who, v=value) if more else f"{who}'s {attribute} is {value}."
    made = state(reading, Topic(me, attribute), value, None, content=content, **rest)
    place = reading.text.find(value)
    return [made], place + len(value) if place >= 0 else len(reading.text)


def person(reading: Reading) -> Made:
    """Read what a speaker says of themselves."""
    text = reading.text
    if not reading.speaker.user:
        return None
    if text[:3].lower() not in (
        "i'm",
        "i’m",
        "my ",
        "i a",
        "i l",
        "i h",
        "i w",
        "i m",
        "i'v",
        "i r",
        "i s",
        "i c",
        "i f",
    ) and not (
        text.lower().startswith(("call me", "this is", "i ", "i’v", "we live", "we are", "i’", "please call"))
    ):
        return None
    if (match := _NAME.fullmatch(text)) and match["v"][:1].isupper():
        return _own(reading, "name", cut(match["v"]).value, "{who}'s name is {v}.")
    if (match := _INTRODUCED.fullmatch(text)) and match["v"][:1].isupper():
        return _own(reading, "name", match["v"], "{who}'s name is {v}.")
    for known, attribute, words in (
        (_LIVE, "city", "{who} lives in {v}."),
        (_MOVED, "city", "{who} lives in {v}."),
        (_FROM, "origin", "{who} comes from {v}."),
    ):
        if match := known.fullmatch(text):
            found = cut(
                re.split(
                    r" (?:from|in (?=\d|January|February|March|April|May|June|July|August|Septem|Octo|Novem"
                    r"|Decem)|last|this|about|back|at|on|for|to|by|near|as|right|and)\b",
                    match["v"],
                )[0]
            )
            if not found.value[:1].isupper() or not is_value(found.value, most=4):
                return None
            old = match["a"] if "a" in match.groupdict() else ""
            return _own(
                reading,
                attribute,
                found.value,
                words,
                old=old or "",
                change=known is _MOVED or reading.change,
            )
    if match := _WORK.fullmatch(text):
        found = cut(match["v"])
        if not is_value(found.value, most=6) or (
            match["how"].lower() != "as" and not found.value[:1].isupper()
        ):
            return None
        if match["how"].lower() == "as":
            value = re.sub(r"^(?:a|an|the) ", "", found.value)
            return _own(reading, "occupation", value)
        return _own(reading, "employer", found.value, "{who} works at {v}.")
    if (match := _JOB.fullmatch(text)) and len(match["rest"].split()) <= 8:
        return _own(reading, "occupation", match["v"])
    if match := _DIET.fullmatch(text):
        return _own(reading, "diet", match["v"].lower())
    if match := _ALLERGIC.fullmatch(text):
        things = re.split(r",? and |, | or ", cut(match["v"] or match["n"]).value)
        who = "The user" if _me(reading) == USER else _me(reading)
        stated = [
            state(reading, Topic(_me(reading), "allergy"), thing, None, cardinality="many", fact_type=CONSTRAINT,
                  content=f"{who} is allergic to {thing}.", change=False)
            for thing in things if is_value(thing, most=4)
        ]  # fmt: skip
        return (stated, len(text)) if stated else None
    if match := _NOT_ALLERGIC.fullmatch(text):
        if reading.change or "no longer" in text.lower() or match["how"]:
            value = cut(match["a"]).value
            return [state(reading, None, "", old=value, change=True, ended=True)], len(text)
        return None
    if match := _OLD.fullmatch(text):
        if " old" in text or text.lower().startswith("my age"):
            return _own(reading, "age", match["v"], "{who} is {v} years old.")
        return None
    if match := _BORN.fullmatch(text):
        found = cut(match["v"])
        if nature(found.value) in ("date", "name", "number"):
            attribute = (
                "birthplace"
                if nature(found.value) == "name"
                else "birthday"
                if match["how"] == "on"
                else "year of birth"
            )
            return _own(reading, attribute, found.value, f"{{who}} was born {match['how'].lower()} {{v}}.")
    if match := _SPEAK.fullmatch(text):
        stated = [
            state(reading, Topic(_me(reading), "language spoken"), one, None, cardinality="many",
                  content=f"{'The user' if _me(reading) == USER else _me(reading)} speaks {one}.")
            for one in re.split(r",? and |, ", match["v"])
        ]  # fmt: skip
        return stated, len(text)
    if match := _FAVOURITE.fullmatch(text):
        found = cut(match["v"])
        if is_value(found.value, most=6):
            return _own(reading, match["t"], found.value, fact_type=PREFERENCE)
    if match := _RELATED.fullmatch(text):
        found = cut(match["v"])
        if found.value[:1].isupper() and is_value(found.value, most=3):
            me = "user" if _me(reading) == USER else _me(reading)
            whose = f"the user's {match['t']}" if me == "user" else f"{me}'s {match['t']}"
            return [state(reading, Topic(f"{me}'s {match['t']}", "name"), found.value, None,
                          content=f"{whose[:1].upper()}{whose[1:]} is called {found.value}.")], len(text)  # fmt: skip
    if (match := _ZONE.fullmatch(text)) and match["v"][:2].isupper():
        return _own(reading, "time zone", match["v"])
    return None


_NOT_TRIED = re.compile(
    r"\A(?:but|and|so|or|if|when|my best|our best|that|this|it)\b|\b(?:why|how|what|which)\b", re.I
)
_FAILS = re.compile(
    r"(?:just )?(?:fail|did|does|broke|crash|couldn|could not|timed|never|deadlock|leak)", re.I
)


def failure(reading: Reading) -> Made:
    """Read "tried A, but it failed because …" and "A didn't work"."""
    text = reading.text
    match = _TRIED.fullmatch(text) or _TRIED_FAILED.fullmatch(text) or _FAILED.fullmatch(text)
    if not match or not is_value(match["v"].strip(), most=16) or _NOT_TRIED.search(match["v"]):
        return None
    if " and " in text[match.end("v") : match.start("how")] and not _FAILS.match(match["how"]):
        return None
    named = re.sub(r"^(?:the|a|an|our) ", "", match["v"].strip(' `"'), flags=re.I)
    content = text[:1].upper() + text[1:] + "."
    made = state(
        reading, Topic(PROJECT, "failure"), named, None,
        fact_type=FAILURE, cardinality="many", content=content, change=False,
    )  # fmt: skip
    return [made], match.end("v")


def rule(reading: Reading) -> Made:
    """Read what must never or always be done."""
    text = reading.text
    spoken = reading.speaker.name == reading.speaker.role  # a person talking to a person gives advice
    if match := _RULE.fullmatch(text):
        how = match["how"].lower()
        first = text[: match.start("how")].lower().strip()
        if not reading.marker:
            if (
                first.startswith(("i", "you"))
                or (reading.clause.exclaimed and not spoken)
                or _IDLE.match(match["v"])
                or not spoken
            ):
                return None
            if re.search(
                r"\b(?:your|yourself|i)\b|(?<!before )(?<!after )(?<!when )(?<!unless )(?<!if )\byou\b",
                match["v"],
                re.I,
            ):
                return None
            if first == "we" and how in ("always", "don't", "do not", "don’t"):
                return None
        negative = how not in ("always", "at all times")
        content = text[:1].upper() + text[1:] + "."
        return [_rule(reading, match["v"], content, negative)], len(
            text.split(" if ")[0].split(" unless ")[0]
        )
    if match := _MUST.fullmatch(text):
        if not reading.marker:
            if not _STRICT.match(match["v"]) or not spoken or reading.clause.exclaimed:
                return None
            if re.search(r"\b(?:you|your|my|me|i)\b", text, re.I) or (
                match["t"].lower() == "we" and match["how"].lower() in ("have to", "has to")
            ):
                return None
            if match["how"].lower() in ("have to", "has to") or (
                about(reading, re.sub(r"^(?:all|any|every|each|no) ", "", match["t"], flags=re.I)) is None
                and match["t"].lower() != "we"
            ):
                return None
        how = match["how"].lower().replace("’", "'")
        negative = how not in ("must", "must always", "has to", "have to") or match["t"].lower().startswith(
            "no "
        )
        content = text[:1].upper() + text[1:] + "."
        return [_rule(reading, f"{match['t']} {match['how']} {match['v']}", content, negative)], len(
            text.split(" if ")[0]
        )
    if match := _FORBIDDEN.fullmatch(text):
        if not reading.marker and (
            not spoken
            or not is_value(match["v"], most=8)
            or ("required" in match["how"] and "the" not in text.lower())
        ):
            return None
        negative = match["how"].lower() not in ("mandatory", "required", "non-negotiable")
        content = text[:1].upper() + text[1:] + "."
        return [_rule(reading, text, content, negative)], len(text)
    return None


def _rule(reading: Reading, value: str, content: str, negative: bool):
    return state(
        reading, Topic(PROJECT, "rule"), value, None,
        fact_type=CONSTRAINT, cardinality="many", content=content, negative=negative,
    )  # fmt: skip
