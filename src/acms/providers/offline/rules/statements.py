"""Statements: what a turn says plainly about a project or its speaker, found by rules and without a model.

Every rule is anchored where a clause begins, so a sentence that only mentions something states nothing: a question, a
guess, hearsay, a quotation and somebody else's affairs are passed over. What no rule understands is no statement,
unless a marker announces it: then the whole line is one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from acms.model import MarkerType
from acms.providers.offline.rules.clauses import HEARSAY, HYPOTHETICAL, Clause, clauses, plainly, starts
from acms.providers.offline.rules.compound import parts
from acms.providers.offline.rules.grammar import RULES, WHOLE, Entry
from acms.providers.offline.rules.patterns import AGENT
from acms.providers.offline.rules.phrases import mentions
from acms.providers.offline.rules.statement import (
    CONSTRAINT,
    DECISION,
    FACT,
    FAILURE,
    GOAL,
    MARKED,
    WEAK,
    Reading,
    Speaker,
    Statement,
)
from acms.text.dates import begins, day_in, ends

EXPLAINED = 800
"""Characters from which on what an assistant says is an explanation: its examples and advice are no facts."""


def statements(
    text: str,
    speaker: Speaker,
    *,
    markers: Sequence[str] = (),
    said: datetime | None = None,
    version: int = 0,
) -> list[Statement]:
    """Return what a turn states, in order. `markers` are those the caller set; those in the text are found here."""
    found: list[Statement] = []
    if not speaker.user and len(text) > EXPLAINED:
        return []
    read = clauses(text)
    announced = any(clause.marker for clause in read)
    given = next((marker for marker in markers if not announced), None)
    for clause in read:
        if clause.question:
            continue
        marker = clause.marker or given
        whole = clause.marker in (GOAL, FAILURE) or clause.key.lower() in ("must", "cannot")
        stated = [] if whole else _sentence(clause, speaker, marker)
        if not stated and marker and (clause.marker or len(read) == 1):
            stated = [_whole(clause, speaker, marker)]
        for one in stated:
            confidence = one.confidence
            if marker or clause.change:
                confidence = MARKED
            elif not speaker.user and one.rule not in _ASSISTANT:
                confidence = min(confidence, WEAK)
            if (
                confidence == MARKED
                and marker
                and one.fact_type in (FACT, DECISION, CONSTRAINT)
                and not one.ended
            ):
                kind = marker if marker in tuple(MarkerType) else one.fact_type
            else:
                kind = one.fact_type
            one = replace(one, fact_type=kind, confidence=confidence, version=version)
            found.append(_dated(one, one.said or clause.text, said))
    return found


#: What an assistant says of its own doing is as good as what a user says.
_ASSISTANT = frozenset({"decide", "switch", "replace", "drop", "failure", "tried", "set to"})


def _sentence(clause: Clause, speaker: Speaker, marker: str | None) -> list[Statement]:
    """Return what one sentence states, part by part."""
    text = clause.text
    pieces = parts(text, marked=marker is not None)
    found: list[Statement] = []
    over = 0
    for end in dict.fromkeys(part.end for part in pieces):  # "tried A, but the B was too slow" is one
        if not clause.listed and _NEEDED.isdisjoint(_words(text[:end])):
            continue
        if found := _part(clause, text[:end], 0, speaker, marker, WHOLE):
            over = end
            break
    for part in pieces:
        if part.start >= over:
            found += _part(clause, part.text, part.start, speaker, marker, RULES)
    if len(found) > 1:
        found = _apart(found)
    if len(found) > 1 and any(one.ended for one in found):
        kept = [one for one in found if not one.ended]
        if kept:  # "we no longer use A, the cache is B": one change
            old = next(one.old for one in found if one.ended)
            found = [replace(one, old=one.old or old, change=True) for one in kept]
    return found


#: Words of which one must be there for a rule that needs the sentence from its beginning.
_NEEDED = frozenset[str]().union(*(needs for _, _, needs in WHOLE if needs))


def _words(text: str) -> set[str]:
    return set(text.lower().replace("’", "'").replace(",", "").split())


def _apart(found: list[Statement]) -> list[Statement]:
    """Leave out words that name the value of another statement of the same sentence."""
    values = [one.value for one in found if one.value]
    return [
        replace(one, content="")
        if one.cardinality == "one"
        and one.attribute
        and any(
            mentions(one.content, value) and not mentions(one.value, value)
            for value in values
            if value != one.value
        )
        else one
        for one in found
    ]


def _part(
    clause: Clause, text: str, at: int, speaker: Speaker, marker: str | None, rules: Sequence[Entry]
) -> list[Statement]:
    """Return what a part of a sentence states: the first rule that fits at each place where a clause begins."""
    found: list[Statement] = []
    before = clause.text[:at]
    over = 0
    for start in starts(text) if rules is RULES else (0,):
        if start < over:
            continue
        plain, change = plainly(text[start:])
        if len(plain) < 4 and not (change or clause.listed):
            continue
        reading = Reading(
            text=plain,
            clause=clause,
            speaker=speaker,
            change=change or clause.change,
            marker=marker,
            agent=AGENT.match(plain),
        )
        words = _words(plain)
        for name, rule, needs in rules:
            if needs is not None and needs.isdisjoint(words):
                continue
            made = rule(reading)
            if made is None:
                continue
            stated, end = made
            said = f"{before} {text[:start]} {plain[:end]}"
            if not marker and (
                not _stated(said) or (name not in _UNDER_TERMS and _ONLY_IF.match(plain, end))
            ):
                break
            if marker and re.match(r"(?:if|maybe|perhaps|should we|could)\b", clause.text, re.I):
                break
            for one in stated:
                found.append(
                    replace(one, rule=name, said=text, content=one.content or _content(one, text, start))
                )
            last = stated[-1].value or stated[-1].old
            place = text.find(last, start)
            over = place + len(last) if place >= 0 else len(text)
            break
    return found


#: Rules and failures may have conditions; a value that has one is a guess.
_UNDER_TERMS = frozenset({"rule", "failure", "tried", "goal"})
_ONLY_IF = re.compile(r",? (?:only )?(?:if|provided|assuming|as long as|in case)\b", re.I)


def _stated(said: str) -> bool:
    return not HYPOTHETICAL.search(said) and not HEARSAY.search(said)


def _content(one: Statement, text: str, start: int) -> str:
    """Return a statement's own words as a sentence; "" when they need others to be understood."""
    said = text[start:]
    lead = re.match(
        r"(?:(?:so|now|ok|okay|also|and|but|by the way|btw|actually|no|sorry|wait|correction|update|well|note that"
        r"|please note that|fyi|for the record|great|good|yes|yeah)\b[,:]? )+",
        said,
        re.I,
    )
    said = said[lead.end() :] if lead else said
    if not one.attribute or (one.old and mentions(said, one.old)) or _POINTS.match(said):
        return ""
    if not mentions(said, one.value):
        return ""
    return said[:1].upper() + said[1:] + "."


_POINTS = re.compile(
    r"(?:it|that|this|these|those|they|he|she|i|i['’]m|i['’]ve|i['’]ll|my|make|let['’]?s|let us|it['’]s"
    r"|that['’]s)\b",
    re.I,
)


def _whole(clause: Clause, speaker: Speaker, marker: str) -> Statement:
    """Return a marked line that no rule understood as one statement of many."""
    text = clause.text.strip()
    word = clause.key.lower()
    if word in ("must", "cannot", "need to"):
        said = f"{clause.key[:1].upper()}{clause.key[1:].lower()} {text}."
    elif marker in (GOAL, FAILURE) or word in ("budget", "limit"):
        said = f"{clause.key or marker.capitalize()}: {text}."
    elif marker == DECISION and len(text.split()) <= 3:
        said = f"Decided: {text}."
    else:
        said = f"{text[:1].upper()}{text[1:]}."
    kind = marker if marker in tuple(MarkerType) else FACT
    negative = word in ("cannot", "didn't work") or bool(
        re.match(r"(?:never|no|do not|don['’]t|must not|not)\b", text, re.I)
    )
    return Statement(
        subject="project",
        attribute=kind,
        value=text,
        content=said,
        fact_type=kind,
        cardinality="many",
        negative=negative and kind != FAILURE,
        change=clause.change,
        rule="marked",
    )


def _dated(one: Statement, text: str, said: datetime | None) -> Statement:
    """Add when it begins or ends to be so, where it says so."""
    if one.ended:
        return one
    if one.attribute.endswith(("deadline", "due date")):
        day = day_in(one.value, said)
        return replace(one, valid_to=ends(day)) if day else one
    past = one.attribute in _MOVES
    first = _MOVED if past else _FIRST
    if (found := first.search(text)) and (day := day_in(found[1], said, past=past)):
        return replace(one, valid_from=begins(day))
    if "ntil" in text and (found := _LAST.search(text)) and (day := day_in(found[1], said)):
        return replace(one, valid_to=ends(day))
    return one


_LAST = re.compile(r"\buntil (.{3,40})", re.I)
_FIRST = re.compile(r"\b(?:starting|as of|effective|beginning|from) (.{3,40})", re.I)
_MOVED = re.compile(r"\b(?:since|in|on) (.{3,40})", re.I)
_MOVES = frozenset({"city", "employer", "occupation"})
