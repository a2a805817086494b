"""Wording: the parts that sentences about decisions are put together from."""

from __future__ import annotations

import re

from acms.providers.offline.rules.phrases import Topic, pattern
from acms.providers.offline.rules.statement import CONSTRAINT, FACT

#: Nouns whose value is worth keeping whatever it looks like.
ATTRIBUTES = pattern(
    r"""(?:.*\b)?(?:deadline|due[ ]date|budget|limit|quota|timeout|port|region|version|names?|database|db
        |framework|language
    |cache|colou?r|size|email|schedule|cadence|owner|lead|maintainer|priority|url|path|branch|target|threshold
        |rate|price
    |cost|license|licence|format|protocol|style|strategy|policy|method|provider|host|hosting|engine|layer
        |library|tool
    |tooling|stack|platform|queue|broker|bus|cdn|registry|repository|repo|bucket|storage|store|editor|ide|model
        |shell|os
    |timezone|time[ ]zone|currency|locale|encoding|charset|license|date|launch|release|start|end|duration
        |length|width
    |height|maximum|minimum|max|min|ceiling|cap|floor|interval|ttl|retention|window|headcount|sla|slo|latency
        |throughput
    |password[ ]policy|algorithm|architecture|pattern|convention|indentation|theme|font|domain|subdomain
        |endpoint|api
    |backend|frontend|runtime|orm|ci|pipeline|monitoring|logging|search|proxy|gateway|balancer|scheduler|linter
        |formatter
    |compiler|bundler|package[ ]manager|test[ ]runner|codename|code[ ]name|title|client|customer|stakeholder|contact
    |authentication|auth|deployment|service|server|cluster|environment|audience|address|phone|birthday|job|diet
        |team)"""
)


NP = r"(?:(?!from[ ])[\w.+\#/'-]{1,40}[ ]){0,6}(?!from[ ])[\w.+\#/'-]{1,40}"


AGENT = pattern(
    r"""(?:(?P<agent>we|i|our[ ]team|the[ ]team|my[ ]team|team|let's|let[ ]us
          |(?:the|our)[ ](?:final[ ])?(?:decision|choice|verdict|agreement|outcome)(?:[ ](?:is
        |was))(?:[ ]that)?(?:[ ]we)?
          |it(?:'s|[ ]is|[ ]was)[ ](?:decided|agreed|settled|clear|final|official)[ ]that(?:[ ]we)?)
        (?:'(?:re|ll|ve|m|s))?(?:[ ]|$))?
    (?P<aux>(?:have|has|will|shall|are|am|been|be|going[ ]to|gonna|to|do)[ ])*+
    (?P<decided>(?:decided|agreed|voted|resolved|concluded|elected|made[ ]the[ ](?:decision|call))[ ](?:that[ ]
        |to[ ])?)?
    (?:(?:we|the[ ]team)(?:'(?:re|ll|ve))?[ ])?(?:(?:will|shall|are|going[ ]to|to|be)[ ])*+"""
)


TRIM = re.compile(
    r" (?:the|that|which|who|we|i|you|they|he|she|everybody|everyone|nobody|our|with|in|on|to|and|because"
    r"|since|so|as"
    r"|know|knows|from|when|where|until)\b.*|[,;(].*",
    re.I,
)


def kind_of(of: Topic, kind: str) -> str:
    """Return the type of a fact: what limits is a constraint."""
    if kind in ("number", "date") or re.search(
        r"\b(?:deadline|budget|limit|quota|timeout|cap)\b", of.attribute
    ):
        return CONSTRAINT
    return FACT
