"""Corrections: which fact a later marked line takes the place of.

A line takes the place of another one when it says what goes ("from Flask to", "instead of Flask") and exactly one fact
holds that, or when it says what comes ("switching to cookies") and names a fact beside it. A line that only speaks of
an earlier one builds on it. In doubt both stay: a fact that was retired by mistake is worse than one too many.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

from acms.knowledge import Fact, Proposal
from acms.log.facts import address
from acms.model import MarkerType
from acms.providers.offline.statements import MARKED, NAME, UNREAL
from acms.text.tokenizer import found_by, rarity, term, words

RIVALS = 200
"""Facts of which a line may take the place of one, the newest: twice as many as are in force by default."""
VALUE = 6
"""Words of a value, at most."""

_MOVES = r"(?:switch|mov|migrat|chang|wechsel|cambi|pass)\w*"
_TAKES = r"(?:replac|ersetz|reemplaz|remplac)\w*"
_FROM, _TO = r"(?:from|von|vom|de)", r"(?:to|with|by|auf|zu|durch|a|por|con|à|par)"
_AWAY = r"(?:instead of|rather than|no longer|statt|nicht mehr|en vez de|ya no|au lieu de)"
_INSIDE = r"(?:[^,;:.(–—]|[,.](?=\d))"
_OLD, _NEW = rf"(?P<old>{_INSIDE}{{1,60}}?)", rf"(?P<new>{_INSIDE}{{1,60}})"
#: What says which value goes, and often which one comes. Words of change in five languages, as data: nothing else
#: tells "switching to cookies, JWT was too complex" from "since we chose Python, we take SQLAlchemy".
_GOES = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"\b{_MOVES} (?:\S+ ){{0,3}}?{_FROM} {_OLD} {_TO} {_NEW}",
        rf"\b{_TAKES} {_OLD} {_TO} {_NEW}",
        rf"\b{_AWAY} (?P<old>(?:[^\s,;:.(–—]+ ?){{1,4}})",
        rf", (?:not|nicht|no|pas) (?P<old>(?-i:[A-ZÀ-Þ\d$€£]){_INSIDE}{{0,60}})",
        r"[从把将]\s*(?P<old>\S{1,20}?)\s*(?:换成|改成|改用)\s*(?P<new>[^\s，。；]+)",
        r"(?:不再用|代替)\s*(?P<old>[^\s，。；]+)",
    )
)
#: What says only which value comes.
_COMES = re.compile(rf"\b{_MOVES} {_TO} {_NEW}|(?:换成|改成|改用)\s*(?P<then>[^\s，。；]+)", re.IGNORECASE)
_INSTEAD = re.compile(rf"\b(?:instead|stattdessen|{_AWAY})\b|不再|改用", re.IGNORECASE)
_CAPITAL = re.compile(r"\w*[A-ZÀ-Þ\d]\w*")
_SENTENCE = re.compile(r"[.!?]\s+")

Known = Fact | Proposal
"""A fact in force, or one proposed a moment ago."""


def settle(found: Sequence[Proposal], facts: Sequence[Fact]) -> list[Proposal]:
    """Return statements as changes of what is known, in the order in which they apply."""
    known: list[Known] = list(facts)
    contents = {_folded(fact.content) for fact in facts}
    changes: list[Proposal] = []
    for one in found:
        if _folded(one.content) in contents:
            continue
        contents.add(_folded(one.content))
        old, value = _predecessor(one, known[-RIVALS:])
        if old is not None:
            known.remove(old)
            contents.discard(_folded(old.content))
            one = _succeeding(one, old, value)
            if isinstance(old, Proposal) and one.fact_id is None and not _meet(one, old):
                changes.append(replace(old, action="remove", sources=one.sources, reason="no longer so"))
        changes.append(one)
        known.append(one)
    return changes


def _succeeding(one: Proposal, old: Known, value: str) -> Proposal:
    """Return a statement as the successor of a fact, at its address unless it names one itself."""
    if one.attribute == one.fact_type and old.attribute not in ("", old.fact_type):
        one = replace(
            one,
            subject=old.subject,
            attribute=old.attribute,
            value=value or one.value,
            cardinality=old.cardinality,
        )
    id = old.id if isinstance(old, Fact) else old.fact_id
    return replace(one, action="update", fact_id=id) if id else one


def _meet(one: Proposal, old: Known) -> bool:
    """Whether a fact takes the place of another one because their address holds one value."""
    same = address(one.subject, one.attribute) == address(old.subject, old.attribute)
    return same and old.cardinality == "one"


def _predecessor(one: Proposal, known: Sequence[Known]) -> tuple[Known | None, str]:
    """Return the fact that a marked line takes the place of, and the value that comes where the line says it."""
    if one.confidence < MARKED or one.fact_type == MarkerType.FAILURE:  # what failed has failed
        return None, ""
    rivals = [other for other in known if other.fact_type in (one.fact_type, "fact")]
    if one.attribute != one.fact_type and _INSTEAD.search(one.content):
        where = address(one.subject, one.attribute)
        there = [other for other in rivals if address(other.subject, other.attribute) == where]
        if len(there) == 1:
            return there[0], ""
    announced = list(_announced(one.content))
    held = [(other, _terms(f"{other.content} {other.value}")) for other in rivals if announced]
    often = Counter(number for _, numbers in held for number in numbers)
    for gone, enough, value in announced:
        found: dict[float, list[Known]] = {}
        for other, numbers in held:
            shared = gone & numbers
            if shared & enough or 2 * len(shared) > len(gone):
                weight = sum(rarity(len(held), often[number]) for number in sorted(shared))
                found.setdefault(weight, []).append(other)
        if found and len(best := found[max(found)]) == 1:
            return best[0], value
    return None, ""


def _announced(content: str) -> Iterator[tuple[frozenset[int], frozenset[int], str]]:
    """Yield the terms of what goes, those of which one is enough to name it, and the value that comes."""
    for pattern in _GOES:
        for match in pattern.finditer(content):
            if _real(content, match):
                old = match["old"]
                yield _terms(old), _terms(" ".join(_CAPITAL.findall(old))), _value(match)
    for match in _COMES.finditer(content):
        if _real(content, match):
            beside = f"{content[: match.start()]} {content[match.end() :]}"
            named = [
                word for word in _CAPITAL.findall(beside) if not (word.istitle() and content.startswith(word))
            ]
            found = _terms(" ".join(named))
            yield found, found, _value(match)


def _real(content: str, match: re.Match[str]) -> bool:
    """Whether words of change are neither denied nor only thought of."""
    return not UNREAL.search(_SENTENCE.split(content[: match.start()])[-1])


def _value(match: re.Match[str]) -> str:
    """Return the value that comes, "" where it is not said or no value."""
    parts = match.groupdict()
    said = (parts.get("new") or parts.get("then") or "").strip(" \"'`*_")
    if name := NAME.match(said):  # "Spanner for the orders": what it is for is no part of it
        return name["value"]
    return said if len(said.split()) <= VALUE else ""


def _folded(text: str) -> str:
    """Return a text without what two of the same words may differ in: case and spaces."""
    return " ".join(text.casefold().split())


@lru_cache(maxsize=1024)
def _terms(text: str) -> frozenset[int]:
    """Return the terms of a text that say something."""
    return frozenset(found_by(text) if any(map(term, words(text))) else ())
