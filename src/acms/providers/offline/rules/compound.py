"""Parts: the clauses of a compound sentence, each with the words it shares with the others.

"The budget is 40k and the deadline is May 5" says two things, "we use A for B and C for D" says two as well. Each part
is read by itself, so that no fact carries another's value in its words.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from acms.providers.offline.rules.phrases import pattern


class Part(NamedTuple):
    """A clause of a sentence."""

    #: Where it begins and ends in the sentence: what stands before may make a guess of it.
    start: int
    end: int
    #: Its own words, with those it shares.
    text: str


_FINITE = (
    r"(?:is|isn't|are|aren't|was|were|(?-i:will)|has|have|had|can|cannot|can't|must|(?-i:may)|should|uses?|runs?|lives?|goes"
    r"|moves?|moved|changes|changed|stays?|remains?|becomes?|became|went|relies|depends|requires?|supports?|needs?"
    r"|costs?|gets?|talks|connects|listens|prefers?|takes|ends|starts|begins|launches|ships|grew|rose|dropped"
    r"|slipped|sits|switched|migrated|wants?)\b"
)
_BOUNDARY = pattern(
    rf"""(?:[,;]?[ ](?P<and>and|but|so|while|whereas)[ ](?:(?:also|then|now)[ ])?|[,;][ ]|[ ][-–—]+[ ])
    (?=(?:(?:the|our|my|all)[ ](?:[\w.+\#/'-]{{1,30}}[ ]){{1,5}}?
        |(?!(?:it|that|this|these|those|which|who|there|they|he|she|you|what|if|when|because|since|as|not|no|or|to
          |with|then|only|also|in|on|at|for|from|by|of|is|are|was|were|be|a|an|their|his|her|its|the|our|my)\b)
          (?:[\w.+\#/'-]{{1,30}}[ ]){{1,3}}?){_FINITE}
      |(?:(?:we|i|let's|let[ ]us)\b|never\b|always\b|do[ ]not\b|don't\b|please\b)
      |(?:for|as)[ ](?:[\w-]{{1,30}}[ ]){{1,4}}?(?:we|i)\b
      |(?P<shared>(?:live|work|deploy|host|store|write|test|log|prefer|speak|run|use)[ ]))"""
)
_JOINED = re.compile(r"[,;] | (?:and|but|so|while|whereas|[-–—]+) ", re.I)
_COORDINATED = pattern(
    r"""(?:both[ ])?(?:(?:the|our|my|all)[ ])?[\w.+\#/'-]{1,30}(?:[ ][\w.+\#/'-]{1,30}){0,2}"""
)
_VERB = pattern(
    rf"""(?:.*[ ])?{_FINITE}|(?:we|i|let)\b.*|(?:use|never|always|do|don't|please|set|make|keep|choose|pick|drop
        |replace|switch|raise|lower|change|move|i'm)\b.*|.*\b\w{{2,}}ed\b"""
)
_AGENT = pattern(
    r"""(?:.*?[ ])??(?P<agent>(?:we|i|our[ ]team|the[ ]team))[ ](?!(?:need|want|have|must|should|can)\b)"""
)
_GIVES_WAY = pattern(
    r"""\b(?:drop|ditch|abandon|leav|left|retir|remov|stop|gave|give|giving|got|no[ ]longer)"""
)
_INFINITIVE = re.compile(r"\bto \w+$")
_WHEN = re.compile(r"\b(?:when|whenever|wherever|whoever|every time)\b(?:(?![,;] ).)*$", re.I)

_HEAD = pattern(
    r"""(?P<head>(?:[^;]{0,60}?[ ])??(?:use|uses|using|go[ ]with|going[ ]with|went[ ]with|choose|chose|chosen|pick
      |picked|select|selected|adopt|adopted|settled[ ]on|settle[ ]on|rely[ ]on|relying[ ]on|decided[ ]on
      |agreed[ ]on|take|took|opted[ ]for|stick[ ]with|stay[ ]with|standardi[sz]ed[ ]on
      |switch(?:ed|ing)?|mov(?:e|ed|ing)|migrat(?:e|ed|ing))[ ])(?P<rest>.+)"""
)
_STORED = pattern(
    r"""(?P<head>[\w][\w /-]{1,40}?[ ](?P<verb>(?:is|are|will[ ]be|gets?)[ ]\w{2,}(?:ed|en|pt|nt|ilt|un|one)
      |lives?|runs?|goes|go|sits?)[ ](?P<by>in|on|with|to|by|through)[ ][\w.+\#/-]{1,30}(?:[ ][\w.+\#/-]{1,30}){0,2}?)
    (?P<rest>(?:,?[ ]and|,)[ ].+)"""
)
_GAPPED = pattern(
    r"""(?P<t>(?:(?:the|our|all)[ ])?[a-z][\w-]{1,30}(?:[ ][a-z][\w-]{1,30}){0,2})[ ]
    (?P<by>in|on|with|to|by|through)[ ](?P<v>[A-Z`"\d].*)"""
)
_MEMBER = pattern(
    r"""(?P<value>(?:from[ ])?[`"]?[\w.+\#/-]{1,30}[`"]?(?:[ ][\w.+\#/-]{1,30}){0,3}?)
    [ ](?P<by>for|as|on|in|to)[ ][`"\w].*"""
)
_BETWEEN = re.compile(r",? and |, (?:and )?|; ")
_NAMED = re.compile(r"[A-Z0-9`\"]")


def parts(text: str, *, marked: bool = False) -> list[Part]:
    """Return the clauses of a sentence in order; the whole of it when it is one."""
    if not _JOINED.search(text):
        return [Part(0, len(text), text)]
    found: list[Part] = []
    start, lead, agent = 0, "", ""
    for match in _BOUNDARY.finditer(text):
        said = text[start : match.start()]
        shared = match["shared"]
        if shared:
            who = _AGENT.match(lead + said)
            if (
                not who
                or match["and"] not in ("and", "but")
                or _INFINITIVE.search(said)
                or (shared == "use " and _GIVES_WAY.search(said))
            ):
                continue
            agent = who["agent"]
        elif not _VERB.match(said) and not (marked and not start) and _COORDINATED.fullmatch(said):
            continue
        found.append(Part(start, match.start(), lead + said))
        start, lead = match.end(), f"{agent} " if shared else ""
    found.append(Part(start, len(text), lead + text[start:]))
    kept = [part for part in found if not (part.start and _WHEN.search(text[: part.start]))]
    return [one for part in kept for one in _members(part, marked=marked)]


def _members(part: Part, *, marked: bool) -> list[Part]:
    """Return "we use A for B and C for D" as "we use A for B" and "we use C for D"."""
    if " and " not in part.text and ", " not in part.text:
        return [part]
    if (match := _STORED.fullmatch(part.text)) and (gapped := _gapped(match)):
        return [part._replace(text=text) for text in gapped]
    match = _HEAD.fullmatch(part.text)
    if match:
        head, rest = match["head"], match["rest"]
    elif marked:
        head, rest = "", part.text
    else:
        return [part]
    places = [0, *(found.end() for found in _BETWEEN.finditer(rest))]
    ends = [*(found.start() for found in _BETWEEN.finditer(rest)), len(rest)]
    first = _MEMBER.fullmatch(rest[: ends[0]])
    if first is None:
        return [part]
    named = _NAMED.search(first["value"])
    pieces = [rest[: ends[0]]]
    last = ends[0]
    for place, end in zip(places[1:], ends[1:], strict=True):
        member = _MEMBER.fullmatch(rest[place:end])
        if (
            member
            and member["by"].lower() == first["by"].lower()
            and (_NAMED.search(member["value"]) if named else " " not in member["value"])
        ):
            pieces.append(rest[place:end])
        else:
            pieces[-1] += rest[last:end]
        last = end
    if len(pieces) == 1:
        return [part]
    return [part._replace(text=head + piece) for piece in pieces]


def _gapped(match: re.Match[str]) -> list[str]:
    """Return "A is kept in B and C in D" as two; nothing when a member lacks a part of it."""
    found = [match["head"]]
    for said in _BETWEEN.split(match["rest"])[1:]:
        member = _GAPPED.fullmatch(said)
        if member is None or member["by"].lower() != match["by"].lower():
            return []
        found.append(f"{member['t']} {match['verb']} {member['by']} {member['v']}")
    return found
