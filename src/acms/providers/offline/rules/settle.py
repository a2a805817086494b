"""Settling: what statements change about the facts in force, as proposals.

A statement finds the fact it corrects by its topic, by the value it stands in for, or, when it names neither, by the
one value of the same sort that was spoken of. When two could be meant nothing is proposed: a wrong correction is worse
than a late one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from acms.knowledge import Cardinality, Fact, Proposal
from acms.providers.offline.rules.phrases import PROJECT, USER, heading, key, mentions, nature, same, unit
from acms.providers.offline.rules.statement import FACT, Statement, line

NEAR = 3
"""Turns back in which a correction without a subject looks for what it corrects."""

_ANY = frozenset({"decision", "technology"})
"""Attributes that say nothing about what a value is for."""


@dataclass(slots=True, kw_only=True)
class _Known:
    """A fact in force, or one proposed a moment ago."""

    subject: str
    attribute: str
    value: str
    content: str
    cardinality: Cardinality
    fact_type: str
    id: str | None = None
    #: Place of its proposal and of its turn, when it was proposed a moment ago.
    proposal: int | None = None
    version: int = 0
    topic: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        self.topic = _topic(self.subject, self.attribute)


def _topic(subject: str, attribute: str) -> frozenset[int]:
    return key(attribute if subject.lower() in (PROJECT, USER, "") else f"{subject} {attribute}")


def settle(statements: Sequence[Statement], facts: Sequence[Fact]) -> list[Proposal]:
    """Return what statements change about facts in force, in the order in which it applies."""
    known = [
        _Known(
            subject=fact.subject,
            attribute=fact.attribute,
            value=fact.value,
            content=fact.content,
            cardinality=fact.cardinality,
            fact_type=fact.fact_type,
            id=fact.id or None,
        )
        for fact in facts
    ]
    proposals: list[Proposal | None] = []
    for one in statements:
        if one.ended:
            _end(one, known, proposals)
        else:
            _add(one, known, proposals)
    return [proposal for proposal in proposals if proposal is not None]


def _end(one: Statement, known: list[_Known], proposals: list[Proposal | None]) -> None:
    """Propose to remove the one fact that a statement ends."""
    found = [fact for fact in known if fact.value and same(fact.value, one.old)]
    found = found or [fact for fact in known if fact.value and mentions(fact.value, one.old)]
    found = found or [fact for fact in known if fact.topic == key(one.old)]
    found = found or [fact for fact in known if mentions(fact.content, one.old)]
    if len(found) > 1 and one.attribute:
        wanted = _topic(one.subject, one.attribute)
        found = [fact for fact in found if fact.topic & wanted]
    if len(found) != 1:
        return
    target = found[0]
    known.remove(target)
    _retire(target, one, proposals)


def _retire(target: _Known, one: Statement, proposals: list[Proposal | None]) -> None:
    """Propose to remove a fact; one proposed in the same turn is not proposed at all."""
    if target.proposal is not None and target.version == one.version:
        proposals[target.proposal] = None
        if target.id is None:
            return
    proposals.append(
        Proposal(
            action="remove",
            fact_id=target.id,
            subject=target.subject,
            attribute=target.attribute,
            value=target.value,
            confidence=one.confidence,
            sources=(one.version,),
            reason=f"it is no longer so: {one.old}",
        )
    )


def _add(one: Statement, known: list[_Known], proposals: list[Proposal | None]) -> None:
    """Propose a fact, at the address of the one it stands in for where there is one."""
    target, unsure = _target(one, known)
    if unsure or (target is None and not one.attribute and not one.old):
        return
    subject, attribute = one.subject, one.attribute
    cardinality = one.cardinality
    if target is None and (not attribute or (one.loose and one.old)):
        subject, attribute, cardinality = PROJECT, "decision", "many"
    if target is not None:
        subject, attribute, cardinality = target.subject, target.attribute, target.cardinality
    same_value = [
        fact
        for fact in known
        if (fact is target or fact.topic == _topic(subject, attribute)) and same(fact.value, one.value)
    ]
    if same_value and not (target is not None and target not in same_value):
        return
    replaced = target if target is not None and (cardinality == "one" or one.change) else None
    content = _content(one, subject, attribute, replaced)
    if replaced is not None:
        known.remove(replaced)
        if cardinality == "many" and replaced.id is None:  # one of several has no address of its own
            _retire(replaced, one, proposals)
    fact_type = one.fact_type if one.fact_type != FACT or target is None else target.fact_type
    id = replaced.id if replaced is not None else None
    proposals.append(
        Proposal(
            action="update" if id else "add",
            content=content,
            subject=subject,
            attribute=attribute,
            value=one.value,
            cardinality=cardinality,
            fact_type=fact_type,
            confidence=one.confidence,
            negative=one.negative,
            valid_from=one.valid_from,
            valid_to=one.valid_to,
            fact_id=id,
            sources=(one.version,),
            reason=f"rule {one.rule}",
        )
    )
    known.append(
        _Known(
            subject=subject,
            attribute=attribute,
            value=one.value,
            content=content,
            cardinality=cardinality,
            fact_type=fact_type,
            id=id,
            proposal=len(proposals) - 1,
            version=one.version,
        )
    )


def _content(one: Statement, subject: str, attribute: str, replaced: _Known | None) -> str:
    """Return the statement of a fact: the words that were said, unless they name what is no longer so."""
    past = [
        text for text in (one.old, replaced.value if replaced else "") if text and not same(text, one.value)
    ]

    def stale(text: str) -> bool:
        # A new value may hold the old one, as "8 GB per node" holds "8 GB".
        return any(mentions(text, old) and not mentions(one.value, old) for old in past)

    if one.content and not stale(one.content):
        return one.content
    reason = "" if stale(one.reason) or len(one.reason) > 120 else one.reason
    if attribute in _ANY:
        return f"Now using {one.value}{f' ({reason})' if reason else ''}."
    if subject not in (PROJECT, USER, "") and attribute == "name":
        return f"{heading([subject])} is called {one.value}."
    return line(subject, attribute, one.value, reason)


def _target(one: Statement, known: list[_Known]) -> tuple[_Known | None, bool]:
    """Return the fact that a statement is about, and whether more than one could be meant."""
    if one.cardinality == "many" and not one.change:
        return None, False
    if one.attribute and not one.loose:
        return _by_topic(one, known)
    if one.old:
        found = _by_value(one, known)
        if len(found) > 1 and one.attribute:
            wanted = _topic(one.subject, one.attribute)
            found = [fact for fact in found if fact.topic & wanted] or found
        if found:
            return (found[0], False) if len(found) == 1 else (None, True)
    if one.attribute:  # "for caching": a topic when there is one of that name
        wanted = _topic(one.subject, one.attribute)
        found = _one([fact for fact in known if fact.topic == wanted])
        if found:
            return found, False
        if one.old:
            return None, False
    return _spoken_of(one, known), False


def _by_topic(one: Statement, known: list[_Known]) -> tuple[_Known | None, bool]:
    wanted = _topic(one.subject, one.attribute)
    personal = one.subject == USER

    def fits(fact: _Known) -> bool:
        return one.change or (fact.subject == USER) == personal

    exact = [fact for fact in known if fact.topic == wanted and fits(fact)]
    if exact:
        if one.change and len(exact) > 1 and one.old:
            exact = [fact for fact in exact if same(fact.value, one.old)] or exact
        if len(exact) == 1:
            return exact[0], False
        single = _one([fact for fact in exact if fact.cardinality == "one"])
        return single or (None if one.cardinality == "many" else exact[-1]), False
    if not one.change:
        return None, False
    if one.old and (found := _by_value(one, known)):
        near = [fact for fact in found if fact.topic & wanted] or found
        return (near[0], False) if len(near) == 1 else (None, False)
    sort = nature(one.value)
    close = [
        fact
        for fact in known
        if fact.cardinality == "one"
        and (fact.topic <= wanted or wanted <= fact.topic)
        and (not sort or nature(fact.value) in (sort, ""))
    ]
    return (close[0], False) if len(close) == 1 else (None, False)


def _by_value(one: Statement, known: list[_Known]) -> list[_Known]:
    """Return the facts that have the value a statement stands in for."""
    found = [fact for fact in known if fact.value and same(fact.value, one.old)]
    return found or [
        fact
        for fact in known
        if fact.value and (mentions(fact.value, one.old) or mentions(one.old, fact.value))
    ]


def _spoken_of(one: Statement, known: list[_Known]) -> _Known | None:
    """Return the one fact of the same sort of value: of this turn, of the last few, then of all that are in force."""
    sort, units = nature(one.value), unit(one.value)
    if not sort:
        return None

    def alike(fact: _Known) -> bool:
        if fact.cardinality != "one" or nature(fact.value) != sort:
            return False
        return sort != "number" or not units or not unit(fact.value) or bool(units & unit(fact.value))

    scopes: tuple[Callable[[_Known], bool], ...] = (
        lambda fact: fact.proposal is not None and fact.version == one.version,
        lambda fact: fact.proposal is not None and one.version - fact.version <= NEAR,
        lambda fact: True,
    )
    for near in scopes:
        found = [fact for fact in known if near(fact) and alike(fact)]
        if found:
            return _one(found)
    return None


def _one(found: list[_Known]) -> _Known | None:
    return found[0] if len(found) == 1 else None
