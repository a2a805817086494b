"""Rules for what is chosen: what is used for what, what was decided, what something is called."""

from __future__ import annotations

import re
from dataclasses import replace

from acms.providers.offline.rules.patterns import ATTRIBUTES, NP, TRIM
from acms.providers.offline.rules.phrases import (
    PROJECT,
    USER,
    Cut,
    Topic,
    cut,
    is_value,
    nature,
    pattern,
    person,
)
from acms.providers.offline.rules.statement import DECISION, FACT, PREFERENCE, Made, Reading, about, state

_USE = pattern(
    r"""(?P<verb>use|uses|using|go(?:ing)?[ ]with|went[ ]with|gone[ ]with|choos(?:e|ing)|chose|chosen|pick(?:ed
        |ing)?
    |select(?:ed|ing)?|adopt(?:ed|ing)?|settl(?:e|ed|ing)[ ](?:on|for)|stick(?:ing)?[ ](?:with|to)
        |stay(?:ing)?[ ]with
    |take|opt(?:ed|ing)?[ ]for|standardi[sz](?:e|ed|ing)[ ]on|rely(?:ing)?[ ]on|relies[ ]on|depend[ ]on|landed[ ]on
    |run(?:ning)?[ ]on|put|on|for)[ ](?P<v>.+)"""
)


_SYSTEM = pattern(
    r"""(?:.*\b)?(?:services?|apps?|application|api|backend|front[ -]?end|back[ ]end|servers?|site|website
        |pipelines?|workers?
    |clusters?|module|component|jobs?|project|system|platform|gateway|client|bot|repo|repository|package
        |dashboard|tests?
    |builds?|deployments?|staging|production|ci|ui|scheduler|importer|exporter|crawler|engine|storefront|cli
        |code|codebase
    |data|infrastructure|stack|database|everything|notebooks?|scripts?|events?|files|assets|messages|logs
        |metrics|users
    |queue|cache|cd|ml|model|search|config|configuration|backups|secrets|docs|images|pages|queries|requests
        |traffic|sessions|uploads|documents|emails|payments
    |checkout|billing|auth|authentication|whole[ ]thing)"""
)


_Y_USES = pattern(
    rf"""(?P<t>{NP}?)[ ](?:will[ ]|is[ ]going[ ]to[ ])?(?P<verb>uses?|is[ ]using|are[ ]using|runs?[ ]on|(?:is
        |are)[ ]running[ ]on|relies[ ]on
    |sits[ ]on|lives?[ ](?:in|on)|(?:is|are)[ ]going[ ]to[ ]live[ ]in|goes[ ](?:through|to|into|over)
        |go[ ](?:through|to|into|over)
    |log[ ]in[ ]with|authenticate[ ]with|talks?[ ]to|connects?[ ]to|listens?[ ]on|depends?[ ]on|requires?
        |supports?)[ ](?P<v>.+)"""
)


#: Where something is used, when it is a part of the system.
_IN = pattern(
    rf"""(?P<v>[A-Z][\w.+\#-]*(?:[ ][\w.+\#-]+){{0,2}}?)[ ](?:on|in|at)[ ](?P<t>(?:the|our)[ ]{NP})"""
)


_DONE = (
    r"(?:written|stored|kept|built|styled|deployed|hosted|served|tested|tracked|managed|monitored|sent|pushed"
    r"|cached"
    r"|handled|processed|rendered|formatted|done|run|backed|powered|implemented|developed|provided|signed|watched"
    r"|documented|published|released|shipped|scheduled|queued|indexed|searched|linted|packaged|bundled|logged"
    r"|driven"
    r"|secured|encrypted|orchestrated|provisioned|based|routed|collected|drawn|coded)"
)


_PASSIVE = pattern(
    rf"""(?P<t>{NP}?)[ ](?:is|are|will[ ]be|is[ ]being|are[ ]being|(?:is|are)[ ]going[ ]to[ ]be|gets?
        |shall[ ]be|must[ ]be|has[ ]to[ ]be|have[ ]to[ ]be)[ ]
    (?P<verb>{_DONE})(?:[ ](?:out|over|up))?[ ](?:with|in|on|to|by|through|using|via|at|into|from)[ ](?P<v>.+)"""
)


_DOES = pattern(
    r"""(?P<verb>writ(?:e|ing)|stor(?:e|ing)|keep(?:ing)?|build(?:ing)?|styl(?:e|ing)|deploy(?:ing)?
        |host(?:ing)?|run(?:ning)?
    |serv(?:e|ing)|test(?:ing)?|track(?:ing)?|manag(?:e|ing)|monitor(?:ing)?|watch|send(?:ing)?|push(?:ing)?
        |cach(?:e|ing)
    |handl(?:e|ing)|render(?:ing)?|format(?:ting)?|document(?:ing)?|publish(?:ing)?|releas(?:e|ing)
        |ship(?:ping)?|log(?:ging)?
    |put|authenticate|schedul(?:e|ing)|lint(?:ing)?|packag(?:e|ing)|index(?:ing)?)
    (?:[ ](?P<t>(?:(?:the|our|all|its|my)[ ])?[\w-]{1,30}(?:[ ][\w-]{1,30}){0,2}?))?[ ](?:with|in|on|onto|to
        |using|via|through|at)[ ](?P<v>.+)"""
)


_ACTIVITY = {
    "deploy": "deployment", "host": "hosting", "monitor": "monitoring", "test": "testing", "lint": "linting",
    "log": "logging", "cach": "cache", "publish": "publishing", "document": "documentation", "releas": "release",
    "authenticate": "authentication", "ship": "shipping", "format": "formatting", "schedul": "scheduling",
    "serv": "serving", "search": "search", "styl": "styling", "run": "platform", "build": "build", "index": "indexing",
}  # fmt: skip


_INVERTED = pattern(
    rf"""(?P<v>[^,;:]{{1,50}}?)[ ](?:(?:is|are)[ ]going[ ]to[ ]be|is|are|will[ ]be|becomes|remains|stays
        |serves[ ]as|replaces[ ](?P<a>[^,;]{{1,40}}?)[ ]as)[ ](?P<det>our|my|the)[ ](?P<t>{NP})"""
)


_THE_WE = pattern(
    rf"""the[ ](?P<t>{NP}?)[ ](?:that[ ])?we(?:'ve|[ ]have|[ ]are|'re)?[ ](?:picked|use|chose|chosen
        |signed[ ](?:with|up[ ]with)|agreed[ ]on|settled[ ]on|selected|went[ ]with|decided[ ]on|using
        |going[ ]with|run|want)[ ](?:is|are)[ ](?P<v>.+)"""
)


_FIRST = pattern(
    rf"""(?:for|as)[ ](?P<t>{NP}?),?[ ](?:we|i|the[ ]team|our[ ]team|let's)(?:'(?:ll|re|ve|m))?[ ](?:(?:will
        |are|have|going[ ]to|be|decided|agreed)[ ])*(?:to[ ])?
    (?:(?:use|using|go[ ]with|going[ ]with|went[ ]with|take|took|chose|choose|pick|picked|settled[ ]on
        |decided[ ]on|decided|selected|prefer|opted[ ]for|rely[ ]on|stick[ ]with|adopt|adopted|run|on|for
        |chosen)[ ])?(?P<v>.+)"""
)


_CALLED = pattern(
    r"""(?:(?P<t>(?:the|our|my|this)[ ](?:project|product|app|service|team|company|repo|repository|library|tool
        |package|bot|startup|codebase|platform|branch))[ ](?:is|will[ ]be)[ ](?:called|named)
        |(?:we[ ])?(?:call(?:ed)?|named?|renamed?)[ ](?P<t2>(?:the|our|this)[ ](?:project|product|app|service
        |team|company|repo|library|tool|package|bot))(?:[ ]to)?)[ ](?P<v>.+)"""
)


_PREFER = pattern(
    r"""(?P<t>we|i|the[ ](?:client|customer|user|team|boss|manager)|our[ ](?:client|customer|users|team)
        |[A-Z][a-z]{1,20})(?:'d)?[ ]prefers?[ ](?P<v>.+)"""
)


_EVERYTHING = frozenset({"project", "app", "application", "website", "site", "product", "work"})


def used(reading: Reading) -> Made:
    """Read "we use A for B", "let's go with A", "decided on A as B"."""
    agent = reading.agent
    rest = reading.text[agent.end() :] if agent else reading.text
    who = (agent["agent"] or "").lower() if agent else ""
    decided = bool(
        agent and (agent["decided"] or (who.startswith(("the ", "our ", "it")) and "team" not in who))
    )
    if rest.lower().startswith(("not ", "against ")):
        return None
    match = _USE.match(rest)
    if not match:
        return None
    verb = match["verb"].lower()
    if verb in ("on", "for") and not decided:
        return None
    if not who and not reading.marker and not reading.speaker.user:
        return None
    if who == "i" and verb in (
        "take",
        "put",
        "pick",
        "run on",
        "go with",
        "going with",
        "went with",
        "relying on",
    ):
        return None
    if not who and not decided and not reading.marker and verb != "use":
        return None
    found = cut(match["v"], to=reading.speaker.user)
    if not is_value(found.value, most=6) or re.match(r"(?:my|your|his|her|their) ", found.value, re.I):
        return None
    if not found.purpose and (place := _IN.fullmatch(found.value)) and _SYSTEM.fullmatch(place["t"]):
        found = replace(found, value=place["v"], purpose=place["t"])
    named = reading.speaker.name != reading.speaker.role
    if named and who != "we" and not decided and nature(found.value) != "name":
        return None  # people talking to each other mean their day, not a project
    of = about(reading, found.purpose) if found.purpose else None
    end = match.start("v") + len(reading.text) - len(rest) + found.end
    kind = DECISION if decided or verb not in ("use", "uses", "using") else FACT
    if who.startswith("let"):
        kind = DECISION
    if (
        of and of.attribute.lower() in _EVERYTHING and not found.role
    ):  # "for my project" says nothing about what for
        of = Topic(PROJECT, "technology")
        return [state(reading, of, found.value, found, cardinality="many", fact_type=kind)], end
    if of:
        if who == "i" and of.subject == PROJECT and reading.speaker.name != reading.speaker.role:
            of = Topic(person(reading.speaker.name, reading.speaker.role), of.attribute)
        return [state(reading, of, found.value, found, fact_type=kind)], end
    if not who and not reading.marker:
        return None
    if verb in ("put", "take", "run on") or (
        nature(found.value) != "name" and (kind == FACT or who not in ("we", "let's", "let us"))
    ):
        return None
    if who == "i" and not (decided or reading.marker):
        return None
    if not (reading.speaker.user or decided or reading.marker):
        return None
    if reading.change or found.old:  # only what is known tells what it stands in for
        return [state(reading, None, found.value, found, change=True, fact_type=DECISION)], end
    attribute = "technology" if kind == FACT else "decision"
    of = Topic(PROJECT, attribute)
    return [state(reading, of, found.value, found, cardinality="many", fact_type=kind)], end


def does(reading: Reading) -> Made:
    """Read "we write tests with A" and "we deploy to A"."""
    agent = reading.agent
    if not agent or not agent["agent"] or agent["agent"].lower() == "i":
        return None
    match = _DOES.fullmatch(reading.text, agent.end())
    if not match:
        return None
    found = cut(match["v"])
    if not is_value(found.value, most=5):
        return None
    if (
        nature(found.value) != "name"
        and not reading.marker
        and not (match["t"] and len(found.value.split()) == 1)
    ):
        return None
    return _done(reading, match, found)


def _done(reading: Reading, match: re.Match[str], found: Cut) -> Made:
    verb = match["verb"].lower()
    raw = re.sub(r"^all (?:the |our )?", "", match["t"] or "", flags=re.I)
    of = about(reading, found.purpose) if found.role else None
    if tail := re.match(
        r"\W+(?:the|our|no other) (?P<t>[\w -]{2,40}?)(?= (?:with|that|everybody|of|in|for|on)\b|$|[,;])",
        match["v"][found.end :],
    ):
        of = of or (about(reading, tail["t"]) if ATTRIBUTES.fullmatch(tail["t"]) else None)
    if of is None:
        general = not raw or raw.lower().removeprefix("the ") in (
            "everything",
            "whole thing",
            "app",
            "application",
            "it",
            "project",
            "code",
            "things",
            "servers",
            "system",
        )
        activity = next((name for stem, name in _ACTIVITY.items() if verb.startswith(stem)), "")
        if (general and verb.startswith("writ")) or (raw.lower() == "everything" and verb == "coded"):
            activity = "programming language"
        of = Topic(PROJECT, activity) if general and activity else about(reading, raw) if raw else None
    if of is None:
        return None
    end = match.start("v") + found.end
    return [state(reading, of, found.value, found)], end


def passive(reading: Reading) -> Made:
    """Read "B is done with A"."""
    match = _PASSIVE.fullmatch(reading.text)
    if not match:
        return None
    found = cut(match["v"])
    t = match["t"]
    if not is_value(found.value, most=5) or t.lower() in (
        "it",
        "this",
        "that",
        "i",
        "we",
        "he",
        "she",
        "they",
        "you",
    ):
        return None
    if nature(found.value) in ("number", "date"):
        return None
    if not reading.marker and nature(found.value) != "name" and not _SYSTEM.fullmatch(t):
        return None
    return _done(reading, match, found)


def y_uses(reading: Reading) -> Made:
    """Read "the service uses A for B" and "B runs on A"."""
    match = _Y_USES.fullmatch(reading.text)
    if not match or not _SYSTEM.fullmatch(re.sub(r" (?:will|is going to)$", "", match["t"], flags=re.I)):
        return None
    found = cut(match["v"], to=match["verb"].startswith("use"))
    if not is_value(found.value, most=6):
        return None
    verb = match["verb"].lower()
    t = re.sub(r"^all (?:the |our )?", "", match["t"], flags=re.I)
    owner = about(reading, t)
    if owner is None:
        return None
    end = match.start("v") + found.end
    if verb.startswith(("log in", "authenticate")):
        return [state(reading, Topic(PROJECT, "authentication"), found.value, found)], end
    purpose = about(reading, found.purpose) if found.purpose else None
    bare = owner.attribute if owner.subject == PROJECT else f"{owner.subject} {owner.attribute}"
    if bare.lower() in ("everything", "project", "app", "application", "system", "whole thing"):
        bare = PROJECT
    if purpose:
        of = purpose if bare == PROJECT or found.role else Topic(bare, purpose.attribute)
        return [state(reading, of, found.value, found)], end
    if verb.startswith(("use", "is using", "are using", "depend", "require", "support", "talk", "connect")):
        if nature(found.value) != "name":
            return None
        attribute = "technology" if "us" in verb else verb.rstrip("s")
        return [state(reading, Topic(bare, attribute), found.value, found, cardinality="many")], end
    if "listen" in verb or found.value.lower().startswith("port "):
        return [state(reading, Topic(bare, "port"), found.value, found)], end
    if nature(found.value) not in ("name",) and not reading.marker:
        return None
    return [state(reading, owner, found.value, found)], end


def inverted(reading: Reading) -> Made:
    """Read "A is our B"."""
    match = _INVERTED.match(reading.text)
    if not match or reading.text.lower().startswith(("the ", "our ", "my ", "this ")):
        return None
    raw = TRIM.sub("", match["t"])
    value = match["v"].strip()
    of = about(
        reading,
        f"{match['det']} {re.sub(' (?:of|for) .*', '', raw) if not re.search(' (?:of|for) ', raw) else raw}",
    )
    if of is None or not is_value(value, most=4) or re.match(r"(?:there|here|what|who|which)\b", value, re.I):
        return None
    if not reading.marker and (match["det"].lower() == "the" and not reading.change):
        return None
    if (
        not reading.marker
        and (nature(value) != "name" or not ATTRIBUTES.fullmatch(of.attribute))
        and not match["a"]
    ):
        return None
    old = match["a"] or ""
    return [state(reading, of, value, None, old=old, change=reading.change or bool(old))], match.end("det")


def chosen(reading: Reading) -> Made:
    """Read "the B we picked is A" and "for B we take A"."""
    match = _THE_WE.fullmatch(reading.text) or _FIRST.fullmatch(reading.text)
    if not match:
        return None
    of = about(reading, match["t"])
    found = cut(match["v"])
    if (
        of is None
        or not is_value(found.value, most=5)
        or re.match(r"(?:have|need|must|can|want|had|did|were|was|should|made|got)\b", found.value)
    ):
        return None
    if not nature(found.value) and len(found.value.split()) > 2:
        return None
    return [state(reading, of, found.value, found, fact_type=DECISION)], match.start("v") + found.end


def called(reading: Reading) -> Made:
    """Read "the project is called A"."""
    match = _CALLED.fullmatch(reading.text)
    if not match:
        return None
    found = cut(match["v"])
    of = about(reading, match["t"] or match["t2"])
    if of is None or not is_value(found.value, most=4):
        return None
    owner = PROJECT if of.attribute == "project" else of.attribute
    attribute = "name"
    return [state(reading, Topic(owner, attribute), found.value, found)], match.start("v") + found.end


def prefers(reading: Reading) -> Made:
    """Read "I prefer A over B"."""
    match = _PREFER.fullmatch(reading.text)
    if not match:
        return None
    found = cut(match["v"], to=False, over=True)
    if not is_value(found.value, most=8) or re.match(r"(?:to|not|if|that)\b", found.value):
        return None
    who = match["t"].lower()
    subject = (
        person(reading.speaker.name, reading.speaker.role)
        if who == "i"
        else "team"
        if who in ("we", "our team", "the team")
        else re.sub(r"^(?:the|our) ", "", match["t"])
    )
    of = about(reading, found.purpose) if found.purpose else None
    attribute = f"{of.attribute} preference" if of else "preference"
    value = found.value if not found.old else f"{found.value} over {found.old}"
    content = f"{reading.text[:1].upper()}{reading.text[1:]}."
    if who == "i":
        content = f"{'The user' if subject == USER else subject} prefers {match['v']}."
    made = state(
        reading,
        Topic(subject, attribute),
        value,
        fact_type=PREFERENCE,
        cardinality="one" if of else "many",
        content=content,
    )
    return [made], match.start("v") + len(match["v"])
