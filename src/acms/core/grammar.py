"""Grammar: how people say what a project has decided, uses, is limited to, and no longer does.

A rule reads a clause from its first word and returns its statements and where in the clause they end, or None. The
first that fits counts, so the order of the tables is part of the rules.
"""

from __future__ import annotations

import re

from acms.core.personal import PERSONAL
from acms.core.phrases import PROJECT, USER, Cut, Topic, cut, is_value, names, nature, pattern, person
from acms.core.said import (
    CONSTRAINT,
    DECISION,
    FACT,
    GOAL,
    PREFERENCE,
    Made,
    Reading,
    Rule,
    about,
    line,
    state,
)

#: Nouns whose value is worth keeping whatever it looks like.
ATTRIBUTES = pattern(
    r"""(?:.*\b)?(?:deadline|due[ ]date|budget|limit|quota|timeout|port|region|version|names?|database|db|framework|language
    |cache|colou?r|size|email|schedule|cadence|owner|lead|maintainer|priority|url|path|branch|target|threshold|rate|price
    |cost|license|licence|format|protocol|style|strategy|policy|method|provider|host|hosting|engine|layer|library|tool
    |tooling|stack|platform|queue|broker|bus|cdn|registry|repository|repo|bucket|storage|store|editor|ide|model|shell|os
    |timezone|time[ ]zone|currency|locale|encoding|charset|license|date|launch|release|start|end|duration|length|width
    |height|maximum|minimum|max|min|ceiling|cap|floor|interval|ttl|retention|window|headcount|sla|slo|latency|throughput
    |password[ ]policy|algorithm|architecture|pattern|convention|indentation|theme|font|domain|subdomain|endpoint|api
    |backend|frontend|runtime|orm|ci|pipeline|monitoring|logging|search|proxy|gateway|balancer|scheduler|linter|formatter
    |compiler|bundler|package[ ]manager|test[ ]runner|codename|code[ ]name|title|client|customer|stakeholder|contact
    |authentication|auth|deployment|service|server|cluster|environment|audience|address|phone|birthday|job|diet|team)"""
)
_DET = r"(?:the|our|my|this)[ ]"
_NP = r"(?:(?!from[ ])[\w.+\#/'-]{1,40}[ ]){0,6}(?!from[ ])[\w.+\#/'-]{1,40}"
_AGENT = pattern(
    r"""(?:(?P<agent>we|i|our[ ]team|the[ ]team|my[ ]team|team|let's|let[ ]us
          |(?:the|our)[ ](?:final[ ])?(?:decision|choice|verdict|agreement|outcome)(?:[ ](?:is|was))(?:[ ]that)?(?:[ ]we)?
          |it(?:'s|[ ]is|[ ]was)[ ](?:decided|agreed|settled|clear|final|official)[ ]that(?:[ ]we)?)
        (?:'(?:re|ll|ve|m|s))?(?:[ ]|$))?
    (?P<aux>(?:have|has|will|shall|are|am|been|be|going[ ]to|gonna|to|do)[ ])*+
    (?P<decided>(?:decided|agreed|voted|resolved|concluded|elected|made[ ]the[ ](?:decision|call))[ ](?:that[ ]|to[ ])?)?
    (?:(?:we|the[ ]team)(?:'(?:re|ll|ve))?[ ])?(?:(?:will|shall|are|going[ ]to|to|be)[ ])*+"""
)
_USE = pattern(
    r"""(?P<verb>use|uses|using|go(?:ing)?[ ]with|went[ ]with|gone[ ]with|choos(?:e|ing)|chose|chosen|pick(?:ed|ing)?
    |select(?:ed|ing)?|adopt(?:ed|ing)?|settl(?:e|ed|ing)[ ](?:on|for)|stick(?:ing)?[ ](?:with|to)|stay(?:ing)?[ ]with
    |take|opt(?:ed|ing)?[ ]for|standardi[sz](?:e|ed|ing)[ ]on|rely(?:ing)?[ ]on|relies[ ]on|depend[ ]on|landed[ ]on
    |run(?:ning)?[ ]on|put|on|for)[ ](?P<v>.+)"""
)
_SYSTEM = pattern(
    r"""(?:.*\b)?(?:services?|apps?|application|api|backend|front[ -]?end|back[ ]end|servers?|site|website|pipelines?|workers?
    |clusters?|module|component|jobs?|project|system|platform|gateway|client|bot|repo|repository|package|dashboard|tests?
    |builds?|deployments?|staging|production|ci|ui|scheduler|importer|exporter|crawler|engine|storefront|cli|code|codebase
    |data|infrastructure|stack|database|everything|notebooks?|scripts?|events?|files|assets|messages|logs|metrics|users
    |queue|cache|cd|ml|model|search|config|configuration|backups|secrets|docs|images|pages|queries|requests|traffic|sessions|uploads|documents|emails|payments
    |checkout|billing|auth|authentication|whole[ ]thing)"""
)
_Y_USES = pattern(
    rf"""(?P<t>{_NP}?)[ ](?:will[ ]|is[ ]going[ ]to[ ])?(?P<verb>uses?|is[ ]using|are[ ]using|runs?[ ]on|(?:is|are)[ ]running[ ]on|relies[ ]on
    |sits[ ]on|lives?[ ](?:in|on)|(?:is|are)[ ]going[ ]to[ ]live[ ]in|goes[ ](?:through|to|into|over)|go[ ](?:through|to|into|over)
    |log[ ]in[ ]with|authenticate[ ]with|talks?[ ]to|connects?[ ]to|listens?[ ]on|depends?[ ]on|requires?|supports?)[ ](?P<v>.+)"""
)
_DONE = (
    r"(?:written|stored|kept|built|styled|deployed|hosted|served|tested|tracked|managed|monitored|sent|pushed|cached"
    r"|handled|processed|rendered|formatted|done|run|backed|powered|implemented|developed|provided|signed|watched"
    r"|documented|published|released|shipped|scheduled|queued|indexed|searched|linted|packaged|bundled|logged|driven"
    r"|secured|encrypted|orchestrated|provisioned|based|routed|collected|drawn|coded)"
)
_PASSIVE = pattern(
    rf"""(?P<t>{_NP}?)[ ](?:is|are|will[ ]be|is[ ]being|are[ ]being|(?:is|are)[ ]going[ ]to[ ]be|gets?|shall[ ]be|must[ ]be|has[ ]to[ ]be|have[ ]to[ ]be)[ ]
    (?P<verb>{_DONE})(?:[ ](?:out|over|up))?[ ](?:with|in|on|to|by|through|using|via|at|into|from)[ ](?P<v>.+)"""
)
_DOES = pattern(
    r"""(?P<verb>writ(?:e|ing)|stor(?:e|ing)|keep(?:ing)?|build(?:ing)?|styl(?:e|ing)|deploy(?:ing)?|host(?:ing)?|run(?:ning)?
    |serv(?:e|ing)|test(?:ing)?|track(?:ing)?|manag(?:e|ing)|monitor(?:ing)?|watch|send(?:ing)?|push(?:ing)?|cach(?:e|ing)
    |handl(?:e|ing)|render(?:ing)?|format(?:ting)?|document(?:ing)?|publish(?:ing)?|releas(?:e|ing)|ship(?:ping)?|log(?:ging)?
    |put|authenticate|schedul(?:e|ing)|lint(?:ing)?|packag(?:e|ing)|index(?:ing)?)
    (?:[ ](?P<t>(?:(?:the|our|all|its|my)[ ])?[\w-]{1,30}(?:[ ][\w-]{1,30}){0,2}?))?[ ](?:with|in|on|onto|to|using|via|through|at)[ ](?P<v>.+)"""
)
_ACTIVITY = {
    "deploy": "deployment", "host": "hosting", "monitor": "monitoring", "test": "testing", "lint": "linting",
    "log": "logging", "cach": "cache", "publish": "publishing", "document": "documentation", "releas": "release",
    "authenticate": "authentication", "ship": "shipping", "format": "formatting", "schedul": "scheduling",
    "serv": "serving", "search": "search", "styl": "styling", "run": "platform", "build": "build", "index": "indexing",
}  # fmt: skip


_SWITCH = pattern(
    rf"""(?P<verb>switch(?:ed|ing|es)?|mov(?:e|ed|ing)|migrat(?:e|ed|ing)|chang(?:e|ed|ing)|convert(?:ed|ing)?
    |upgrad(?:e|ed|ing)|downgrad(?:e|ed|ing)|port(?:ed|ing)|transition(?:ed|ing)?)[ ](?P<t>{_NP}?[ ])??(?:(?:over|back|away)[ ])?
    (?:from[ ](?P<a>.{{1,60}}?)[ ])?(?:over[ ])?to[ ](?P<v>.+)"""
)
_REPLACE = pattern(
    r"""(?:replac(?:e|ed|ing)|swap(?:ped|ping)?(?:[ ]out)?|exchang(?:e|ed|ing)|substitut(?:e|ed|ing))[ ](?P<a>.{1,60}?)[ ](?:out[ ])?
    (?:with|by|for)[ ](?P<v>.+)"""
)
_DROP = pattern(
    r"""(?:drop(?:ped|ping)?|ditch(?:ed|ing)?|abandon(?:ed|ing)?|leav(?:e|ing)|left|retir(?:e|ed|ing)|remov(?:e|ed|ing)
    |stop(?:ped|ping)?[ ]using|gave[ ]up[ ]on|giv(?:e|ing)[ ]up[ ]on|got[ ]rid[ ]of|mov(?:e|ed|ing)[ ]away[ ]from)[ ](?P<a>.{1,60}?)[ ]
    (?:(?:and|to)[ ](?:use|using|go[ ]with|going[ ]with|went[ ]with|mov(?:e|ed|ing)[ ]to|switch(?:ed|ing)?[ ]to|take|adopt(?:ed|ing)?|chose|picked)
      |in[ ]favou?r[ ]of)[ ](?P<v>.+)"""
)
_BUT = pattern(
    r"""no[ ]longer[ ](?P<verb>\w{2,20}(?:[ ](?:to|on|with|in|from|through))?)[ ](?P<a>.{1,60}?),?[ ]but[ ](?:(?:to|on|with|in|use|using|through)[ ])?(?P<v>.+)"""
)
_END = pattern(
    r"""(?:(?:no[ ]longer|don't|do[ ]not|stopped|quit|stop)[ ](?:use|using|need|needing|have|having|rely[ ]on|relying[ ]on|support|supporting
        |deploy[ ](?:to|on)|deploying[ ](?:to|on)|run[ ]on|running[ ]on|want)
      |(?:drop|ditch|abandon|remov|retir|cancel|scrapp?|discard)(?:e|ed|ing|led|ped|ping)?|got[ ]rid[ ]of|(?:are[ ])?done[ ]with|gave[ ]up[ ]on|forget[ ]about|scratch)
    [ ](?P<a>[^,;]{1,60})"""
)
_GONE = pattern(
    rf"""(?P<a>{_NP}?)[ ](?:is|are|was|were|has[ ]been|have[ ]been)[ ](?:
      no[ ]longer[ ](?:used|needed|required|valid|relevant|in[ ]use|necessary|applicable|in[ ]force|a[ ]requirement|a[ ]constraint|a[ ]goal|supported|true|the[ ]case)
      |(?:dropped|lifted|removed|cancelled|canceled|scrapped|abandoned|retired|obsolete|withdrawn|off[ ]the[ ]table|gone|deprecated))(?:[ ].{{0,80}})?"""
)
_MOVED = (
    r"set|fixed|moved|changed|raised|increased|lowered|reduced|cut|extended|pushed|postponed|bumped|updated|switched"
    r"|shifted|delayed|dropped|decreased|doubled|adjusted|revised|brought|upgraded|downgraded|migrated|renamed"
)
_SET = pattern(
    rf"""(?P<t>{_NP}?)[ ](?:(?:is|are|was|were|will[ ]be|has[ ]been|have[ ]been|had[ ]to[ ]be|got|gets|is[ ]being|must[ ]be)[ ])?
    (?P<verb>{_MOVED}|moves?|changes?|goes|went|grew|rose|shrank|switches|migrates?|slipped)(?:[ ](?:back|up|down|forward|out|over|again))?
    (?:[ ]from[ ](?P<a>.{{1,60}}?))?(?:[ ](?:back|up|down|over))?[ ](?:to[ ](?:be[ ])?|at[ ]|until[ ]|till[ ]|by[ ](?=\D))(?P<v>.+)"""
)
_IMPERATIVE = pattern(
    rf"""(?:set|rais(?:e|ed|ing)|increas(?:e|ed|ing)|lower(?:ed|ing)?|reduc(?:e|ed|ing)|bump(?:ed|ing)?|cut(?:ting)?|extend(?:ed|ing)?|push(?:ed|ing)?|mov(?:e|ed|ing)
    |chang(?:e|ed|ing)|updat(?:e|ed|ing)|cap(?:ped|ping)?|limit(?:ed|ing)?|shift(?:ed|ing)?|postpon(?:e|ed|ing)|delay(?:ed|ing)?|adjust(?:ed|ing)?|renam(?:e|ed|ing)
    |keep(?:ing)?|drop(?:ped|ping)?)[ ](?P<t>(?:the|our|my)[ ]{_NP}?)(?:[ ](?:back|up|down|out|forward))?(?:[ ]from[ ](?P<a>.{{1,60}}?))?[ ](?:to|at|until|under|below|by[ ](?=\D))[ ]?(?P<v>.+)"""
)
_COPULA = pattern(
    rf"""(?P<t>(?:(?:the|our|my|this)[ ])?{_NP}?)(?:[ ](?:(?:is|are)[ ]going[ ]to[ ]be|is|are|will[ ]be|shall[ ]be|remains?|stays?|becomes?|became|must[ ]be|should[ ]be|was[ ](?=set|fixed|capped|agreed|decided|called|named)))[ ]
    (?:(?:set|fixed|capped|limited|due|scheduled|planned|agreed|called|named|pinned|decided|restricted|configured|based)[ ])?(?:(?:to[ ](?:be[ ])?|at[ ](?=\S)|for[ ]|on[ ]|by[ ]|in[ ])(?=[\d$€£A-Z]|the[ ]end|next|end))?(?P<v>.+)"""
)
_INVERTED = pattern(
    rf"""(?P<v>[^,;:]{{1,50}}?)[ ](?:(?:is|are)[ ]going[ ]to[ ]be|is|are|will[ ]be|becomes|remains|stays|serves[ ]as|replaces[ ](?P<a>[^,;]{{1,40}}?)[ ]as)[ ](?P<det>our|my|the)[ ](?P<t>{_NP})"""
)
_TRIM = re.compile(
    r" (?:the|that|which|who|we|i|you|they|he|she|everybody|everyone|nobody|our|with|in|on|to|and|because|since|so|as"
    r"|know|knows|from|when|where|until)\b.*|[,;(].*",
    re.I,
)
_APPOSED = pattern(
    r"""(?P<x>.{3,200}?),?[ ](?:(?:so|and)[ ])?(?:that|this|which|it)(?:'s|[ ]is|[ ]will[ ]be)(?:[ ]going[ ]to[ ]be)?[ ](?P<det>our|the|my)[ ](?P<t>[\w][^,;]{1,80})"""
)
_WHICH = pattern(
    r"""(?:.{0,80}?\b)?(?P<t>(?:my|our|the)[ ](?:[\w-]{1,30}[ ]){0,3}[\w-]{1,30}),[ ]which[ ]is[ ](?P<v>.+)"""
)
_AT_END = pattern(
    r""".*?\b(?:in|on|to|with|through|by|have|use|using|be|prefer|via|at|is)[ ](?P<v>[^,;]{1,50})"""
)
_THE_WE = pattern(
    rf"""the[ ](?P<t>{_NP}?)[ ](?:that[ ])?we(?:'ve|[ ]have|[ ]are|'re)?[ ](?:picked|use|chose|chosen|signed[ ](?:with|up[ ]with)|agreed[ ]on|settled[ ]on|selected|went[ ]with|decided[ ]on|using|going[ ]with|run|want)[ ](?:is|are)[ ](?P<v>.+)"""
)
_FIRST = pattern(
    rf"""(?:for|as)[ ](?P<t>{_NP}?),?[ ](?:we|i|the[ ]team|our[ ]team|let's)(?:'(?:ll|re|ve|m))?[ ](?:(?:will|are|have|going[ ]to|be|decided|agreed)[ ])*(?:to[ ])?
    (?:(?:use|using|go[ ]with|going[ ]with|went[ ]with|take|took|chose|choose|pick|picked|settled[ ]on|decided[ ]on|decided|selected|prefer|opted[ ]for|rely[ ]on|stick[ ]with|adopt|adopted|run|on|for|chosen)[ ])?(?P<v>.+)"""
)
_OF = pattern(
    r"""(?:we|i|you|there)(?:'ve|'s|[ ]have|[ ]has|[ ]is|[ ]are)?(?:[ ](?:have|got|given))?[ ](?:a|an)[ ](?:[\w-]{1,20}[ ]){0,2}?(?P<t>budget|deadline|limit|cap|quota|timeout|maximum|minimum|ceiling|headcount|[\w-]{2,20}[ ](?:budget|deadline|limit|cap|quota|timeout))[ ](?:of|on|at)[ ](?P<v>.+)"""
)
_NUM = r"(?:\d{1,6}|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|fifteen|twenty|thirty)"
_TEAM = pattern(
    rf"""(?:(?:the|our)[ ]team[ ](?:has|is|consists[ ]of|counts|now[ ]has)|we(?:'re|[ ]are|[ ]have)|our[ ]team[ ]size[ ]is|my[ ]team[ ](?:has|is))[ ](?:a[ ]team[ ]of[ ])?(?:only[ ])?
    (?P<v>{_NUM})[ ](?:(?:senior|software|full-time|backend|front-end)[ ])?(?:people|engineers|developers|devs|members|persons|of[ ]us|designers|programmers)(?P<rest>.*)"""
)
_EXCEED = pattern(
    rf"""(?:(?P<t>{_NP}?)[ ])?(?:can't|cannot|can[ ]not|must[ ]not|mustn't|may[ ]not|should[ ]not|shouldn't|won't)[ ](?:exceed|go[ ](?:over|above|beyond)|be[ ](?:more|larger|longer|higher|bigger|greater)[ ]than|spend[ ]more[ ]than|take[ ](?:more|longer)[ ]than|last[ ]longer[ ]than|use[ ]more[ ]than)[ ](?P<v>.+)"""
)
_BOUND = pattern(
    rf"""(?P<t>{_NP}?)[ ](?:must|has[ ]to|have[ ]to|needs?[ ]to|should)[ ](?:be|stay|remain|run|finish|respond|return|answer|complete|fit|load)[ ](?:in[ ])?(?P<v>(?:under|below|less[ ]than|at[ ]least|at[ ]most|within|above|no[ ]more[ ]than|over|in)[ ].+)"""
)
_BY = pattern(
    rf"""(?:(?:we|i)[ ])?(?:must|need[ ]to|have[ ]to|has[ ]to|needs[ ]to)[ ](?:be[ ])?(?:finish(?:ed)?|ship(?:ped)?|deliver(?:ed)?|launch(?:ed)?|submit(?:ted)?|complete[d]?|release[d]?|done|ready|hand(?:ed)?[ ]in|go[ ]live)(?:[ ](?P<t>(?:with[ ])?{_NP}?))?[ ](?:by|before|until|no[ ]later[ ]than|on)[ ](?P<v>.+)"""
)
_T_BY = pattern(
    rf"""(?P<t>{_NP}?)[ ](?:(?:must|needs[ ]to|has[ ]to|have[ ]to)[ ](?:be[ ])?(?:finished|shipped|ship|delivered|launched|launch|submitted|completed|released|done|ready|live|go[ ]live)[ ](?:by|before|until|no[ ]later[ ]than|on)|(?:is|are)[ ]due(?:[ ](?:by|on|at|before))?|launches[ ]on|ships[ ]on|goes[ ]live[ ]on)[ ](?P<v>.+)"""
)
_CALLED = pattern(
    r"""(?:(?P<t>(?:the|our|my|this)[ ](?:project|product|app|service|team|company|repo|repository|library|tool|package|bot|startup|codebase|platform|branch))[ ](?:is|will[ ]be)[ ](?:called|named)|(?:we[ ])?(?:call(?:ed)?|named?|renamed?)[ ](?P<t2>(?:the|our|this)[ ](?:project|product|app|service|team|company|repo|library|tool|package|bot))(?:[ ]to)?)[ ](?P<v>.+)"""
)
_GOAL = pattern(
    r"""(?:(?:the|our|my)[ ](?:(?:main|primary|next|overall|current|ultimate|final|big|team|project|sprint|quarterly|long-term|short-term)[ ])*(?:goal|objective|aim|mission|target)(?:[ ](?:for|of)[ ][^,;]{2,40}?)?[ ](?:is|is[ ]still|will[ ]be)[ ](?:to[ ])?|we[ ]aim[ ]to[ ]|we(?:'re|[ ]are)[ ]aiming[ ]to[ ]|i(?:'m|[ ]am)[ ]aiming[ ]to[ ])(?P<v>.+)"""
)
_PREFER = pattern(
    r"""(?P<t>we|i|the[ ](?:client|customer|user|team|boss|manager)|our[ ](?:client|customer|users|team)|[A-Z][a-z]{1,20})(?:'d)?[ ]prefers?[ ](?P<v>.+)"""
)
_MAKE = pattern(
    r"""(?:(?:let's[ ]|let[ ]us[ ])?make[ ](?:that|it)(?:[ ]a)?|(?:it|that)(?:'s|[ ]is|[ ]should[ ]be|[ ]will[ ]be|[ ]has[ ]to[ ]be|'ll[ ]be)(?:[ ](?:going[ ]to[ ]be|supposed[ ]to[ ]be|set[ ]to|moved[ ]to))?|i[ ]meant(?:[ ]to[ ]say)?|rather)[ ](?P<v>.+)"""
)


def _switched(reading: Reading) -> Made:
    agent = _AGENT.match(reading.text)
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


def _dropped(reading: Reading) -> Made:
    agent = _AGENT.match(reading.text)
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


def _used(reading: Reading) -> Made:
    agent = _AGENT.match(reading.text)
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
    named = reading.speaker.name != reading.speaker.role
    if named and who != "we" and not decided and nature(found.value) != "name":
        return None  # people talking to each other mean their day, not a project
    of = about(reading, found.purpose) if found.purpose else None
    end = match.start("v") + len(reading.text) - len(rest) + found.end
    kind = DECISION if decided or verb not in ("use", "uses", "using") else FACT
    if who.startswith("let"):
        kind = DECISION
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
    if reading.change or found.old:  # only what is known tells what it stands in for
        return [state(reading, None, found.value, found, change=True, fact_type=DECISION)], end
    attribute = "technology" if kind == FACT else "decision"
    of = Topic(PROJECT, attribute)
    return [state(reading, of, found.value, found, cardinality="many", fact_type=kind)], end


def _does(reading: Reading) -> Made:
    agent = _AGENT.match(reading.text)
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


def _passive(reading: Reading) -> Made:
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


def _y_uses(reading: Reading) -> Made:
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


def _set(reading: Reading) -> Made:
    match = _SET.fullmatch(reading.text)
    if not match:
        return None
    return _assigned(
        reading, match["t"], match["v"], match.start("v"), match["a"] or "", change=match["verb"] != "set"
    )


def _imperative(reading: Reading) -> Made:
    agent = _AGENT.match(reading.text)
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
    if not reading.marker and not (
        kind in ("number", "date", "name") and (kind != "name" or ATTRIBUTES.fullmatch(of.attribute) or old)
    ):
        if not (ATTRIBUTES.fullmatch(of.attribute) and len(found.value.split()) <= 3):
            return None
    if (
        kind == "date"
        and not ATTRIBUTES.fullmatch(of.attribute)
        and not raw.lower().startswith(("the ", "our ", "my "))
    ):
        return None
    named = cut(old).value if old else found.old
    made = state(
        reading, of, found.value, found, old=named, change=change or reading.change, fact_type=_type(of, kind)
    )
    return [made], at + found.end


def _type(of: Topic, kind: str) -> str:
    if kind in ("number", "date") or re.search(
        r"\b(?:deadline|budget|limit|quota|timeout|cap)\b", of.attribute
    ):
        return CONSTRAINT
    return FACT


def _copula(reading: Reading) -> Made:
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
    return [state(reading, of, value, found, fact_type=_type(of, kind))], match.start("v") + found.end


def _inverted(reading: Reading) -> Made:
    match = _INVERTED.match(reading.text)
    if not match or reading.text.lower().startswith(("the ", "our ", "my ", "this ")):
        return None
    raw = _TRIM.sub("", match["t"])
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


def _apposed(reading: Reading) -> Made:
    match = _APPOSED.fullmatch(reading.text)
    if not match:
        return None
    raw = _TRIM.sub("", match["t"])
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
    return [state(reading, of, value, None, fact_type=_type(of, nature(value)))], match.end("x")


def _which(reading: Reading) -> Made:
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


def _chosen(reading: Reading) -> Made:
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


def _amount(reading: Reading) -> Made:
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


def _called(reading: Reading) -> Made:
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


def _goal(reading: Reading) -> Made:
    match = _GOAL.fullmatch(reading.text)
    if not match or not is_value(match["v"], most=30):
        return None
    of = Topic(PROJECT, "goal")
    if reading.text.lower().startswith(("my", "i")):
        of = Topic(person(reading.speaker.name, reading.speaker.role), "goal")
    return [state(reading, of, match["v"], None, fact_type=GOAL, cardinality="many")], len(reading.text)


def _prefers(reading: Reading) -> Made:
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
    text = reading.text
    made = state(
        reading, Topic(subject, attribute), value, None,
        fact_type=PREFERENCE, cardinality="one" if of else "many", change=reading.change,
        content=(f"The user prefers {match['v']}." if who == "i" and subject == USER else f"{subject} prefers {match['v']}." if who == "i" else f"{text[:1].upper()}{text[1:]}."),
    )  # fmt: skip
    return [made], match.start("v") + len(match["v"])


_ANNOUNCED = re.compile(
    r"(?:no|nope|actually|sorry|wait|oops|scratch that|correction|i meant?|rather|hold on|my mistake|my bad)\b",
    re.I,
)


def _corrected(reading: Reading) -> Made:
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


def _bare(reading: Reading) -> Made:
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
    if not is_value(found.value, most=4):
        return None
    of = about(reading, found.purpose) if found.purpose else None
    if of and (nature(found.value) == "name" or len(found.value.split()) <= 2):
        content = line(of.subject, of.attribute, found.value, found.reason)
        return [state(reading, of, found.value, found, content=content)], len(reading.text)
    return None


_KEYS_NOT = re.compile(
    r"(?:note|example|question|answer|thanks|hi|hello|ps|step|http|https|code|summary|task|todo|input|output|error|user|assistant"
    r"|system|tool|re|subject|from|to|cc|date|title|problem|solution|tip|warning|hint|link|source|context|p\.s|edit|result|results|day|week|part|option|page|chapter|line|phase|today|yesterday|time anchor|q|a|fig|table|issue|issues)(?:\b.*)?$",
    re.I,
)


def _listed(reading: Reading) -> Made:
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
        state(reading, of, found.value, found, content=content, fact_type=_type(of, nature(found.value)))
    ], len(reading.text)


#: Rules that need the sentence from its beginning, and those of any clause; in the order in which they are tried.
WHOLE: tuple[tuple[str, Rule], ...] = (
    ("listed", _listed),
    ("apposed", _apposed),
    ("which", _which),
    *PERSONAL["whole"],
)
RULES: tuple[tuple[str, Rule], ...] = (
    *PERSONAL["clause"],
    ("amount", _amount),
    *PERSONAL["rule"],
    ("called", _called),
    ("goal", _goal),
    ("switch", _switched),
    ("drop", _dropped),
    ("chosen", _chosen),
    ("decide", _used),
    ("does", _does),
    ("inverted", _inverted),
    ("passive", _passive),
    ("uses", _y_uses),
    ("set to", _imperative),
    ("set", _set),
    ("prefers", _prefers),
    ("bare", _bare),
    ("copula", _copula),
    ("correction", _corrected),
)
