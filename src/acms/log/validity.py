"""Validity: when a fact is or was so, which is another clock than when the log learned it.

A fact is so from `valid_from` until before `valid_to`; a side that was not said is open. What takes the place of
another one begins, unless it says when, at the moment it was said, and the older one ends there. So a log tells both
what it knew at a version and, of that, what was so at a moment; what is over needs no job to end it.

Facts, messages and summaries that may not be so any more say it at their end, wherever they are shown. Of a message of
a history a reader who sees below it what changed knows already: no label of doubt is put there, so what a request
showed stays as it was while the conversation goes on.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from acms.knowledge import Fact
from acms.log.in_force import Unit
from acms.model import Entry, Kind, Role

_FIRST = datetime.min.replace(tzinfo=UTC)
_LAST = datetime.max.replace(tzinfo=UTC)


class Period(NamedTuple):
    """A stretch of time; None leaves a side open, and its end is no part of it."""

    start: datetime | None = None
    end: datetime | None = None
    #: What a reader is told of something that may not be so any more, although nobody said when it ended.
    doubt: str = ""
    #: Versions of the messages that brought the doubt up: who reads one of them knows.
    news: tuple[int, ...] = ()
    #: Id of the newest message that a fact comes from.
    source: str = ""

    def holds(self, moment: datetime) -> bool:
        """Whether a moment lies in it."""
        return (self.start is None or self.start <= moment) and not self.over(moment)

    def over(self, moment: datetime) -> bool:
        """Whether it has ended by a moment, or never was."""
        return self.end is not None and (
            self.end <= moment or (self.start is not None and self.end <= self.start)
        )

    def meets(self, other: Period) -> bool:
        """Whether two have a moment in common."""
        start = max(self.start or _FIRST, other.start or _FIRST)
        return start < min(self.end or _LAST, other.end or _LAST)

    def label(self, moment: datetime) -> str:
        """Return what a reader has to be told at a moment: when it begins and ends, why it is in doubt; else ""."""
        start = self.start if self.start is not None and self.start > moment else None
        said = [
            f"{word} {_format_day(when)}" for word, when in (("from", start), ("until", self.end)) if when
        ]
        return " ".join(filter(None, (f"[{' '.join(said)}]" if said else "", self.doubt)))

    def warning(self, moment: datetime | None) -> str:
        """Return what a reader of a message or a summary is told: that it is over, why it is in doubt; else ""."""
        over = self.end is not None and moment is not None and self.over(moment)
        return " ".join(
            filter(None, (f"[until {_format_day(self.end)}]" if over and self.end else "", self.doubt))
        )


class Labels(NamedTuple):
    """What has to be told of the messages and summaries of a log, and at which moment."""

    times: Mapping[int, Period] = {}
    #: When they are shown: what is over by then says so. None where that is not known.
    moment: datetime | None = None

    def of(self, entry: Entry, shown: Container[int] = ()) -> str:
        """Return the label of a message or a summary where messages of some versions are shown with it; "" for none.

        What is kept word for word has none: calls of tools and their answers, messages with parts of a provider.
        """
        period = self.times.get(entry.version)
        kept = entry.group is not None or (entry.parts and entry.kind is not Kind.SUMMARY)
        if period is None or kept:
            return ""
        known = entry.kind is Kind.MESSAGE and any(version in shown for version in period.news)
        return (period._replace(doubt="") if known else period).warning(self.moment)

    def by_id(self, units: Sequence[Unit[Entry]], lead: Iterable[Unit[Entry]] = ()) -> dict[str, str]:
        """Return the labels of the newest messages of a log and of what stands in front of them, by id.

        One that was put in doubt by a message below it says nothing of that. The message of the user that waits for an
        answer has none.
        """
        if not self.times:
            return {}
        front = [entry for unit in lead for entry in unit.entries]
        said = [entry for unit in units for entry in unit.entries]
        waiting = _unanswered_user_message([*front, *said])
        found = {entry.id: self.of(entry) for entry in front}
        below = set[int]()
        for entry in reversed(said):  # whoever cuts takes away what is above
            found[entry.id] = self.of(entry, below)
            below.add(entry.version)
        if waiting is not None:
            del found[waiting.id]
        return {id: label for id, label in found.items() if label}


def _unanswered_user_message(said: Sequence[Entry]) -> Entry | None:
    """Return the newest message of the user, unless it was answered: by a text with no call of a tool behind it."""
    called = False
    for entry in reversed(said):
        if entry.role is Role.USER and entry.kind is Kind.MESSAGE:
            return entry
        called = called or entry.group is not None
        if not called:
            return None
    return None


UNLABELLED = Labels()


def attach_label(text: str, label: str) -> str:
    """Return a text with what its reader has to be told of it."""
    return f"{text} {label}" if text and label else text


LONGEST_LABEL = 400
"""Characters of a label, at most."""
_LABEL = re.compile(
    r"(?: \[(?:(?:from|until) [\d: -]+(?:UTC)?(?: until [\d: -]+(?:UTC)?)?"
    r"|in doubt: rests on v\d+, which v\d+ [a-z ]+)\])+\Z"
)


def label_of(shown: str) -> str:
    """Return the label that ends what was shown, with the space before it; "" without one."""
    found = _LABEL.search(shown[-LONGEST_LABEL:])
    return found[0] if found else ""


def _format_day(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d}" if moment.time() == _FIRST.time() else f"{moment:%Y-%m-%d %H:%M} UTC"


def ends_older_period(new: Period, old: Period, said: datetime) -> bool:
    """Whether what is said at a moment puts what was said before at the same place out of force for good.

    Not where both can be so, one after the other: what is over already ends nothing, and what begins later leaves the
    older one its time until then.
    """
    if new.over(said):
        return False
    if new.end is not None and old.start is not None and old.start >= new.end:
        return False
    if new.start is not None and new.start > said:
        return old.start is not None and old.start >= new.start
    return True


def stated_validity(fact: Fact) -> Period:
    """Return when a fact is so by its own words."""
    return Period(fact.valid_from, fact.valid_to)


def stated_at(fact: Fact) -> datetime:
    """Return when a fact was said."""
    return fact.stated_at or fact.created_at or _FIRST


def validity_periods(facts: Sequence[Fact], rivals: Iterable[tuple[str, str]]) -> dict[str, Period]:
    """Return when each fact was so, by id, as far as what was said later tells; what was taken back never was.

    `facts` are all that a log ever held at a version, oldest first, each with what retired it; `rivals` are pairs of
    ids, an older and a newer fact whose address holds one value at a time.
    """
    before: dict[str, list[str]] = {}
    for old, new in rivals:
        before.setdefault(new, []).append(old)
    by_id = {fact.id: fact for fact in facts}
    found: dict[str, Period] = {}
    for fact in facts:
        gone = fact.retired
        if gone is not None and gone.reason not in ("updated", "removed"):
            continue
        older = [id for id in dict.fromkeys((*fact.replaces, *before.get(fact.id, ()))) if id in found]
        said, own = stated_at(fact), stated_validity(fact)
        again = [id for id in older if id in fact.replaces and by_id[id].value == fact.value]
        if own.start is None and older and not own.over(said):  # what says the same again means the same time
            own = own._replace(start=found[again[0]].start if again else said)
        for id in older:
            if id in again:
                del found[id]
            elif own.start is not None and (
                id in fact.replaces or (own.meets(found[id]) and not own.over(said))
            ):
                found[id] = found[id]._replace(end=min(found[id].end or _LAST, own.start))
        if gone is not None and gone.reason == "removed" and gone.at is not None:
            own = own._replace(end=min(own.end or _LAST, gone.at))
        found[fact.id] = own
    return found


def at_moment(facts: Sequence[Fact], moment: datetime, rivals: Sequence[tuple[str, str]]) -> list[Fact]:
    """Return the facts that were so at a moment: of those that cannot be so together the one said last."""
    when = validity_periods(facts, rivals)
    there = {id for id, period in when.items() if period.holds(moment)}
    there -= {old for old, new in rivals if new in there}
    return [fact for fact in facts if fact.id in there]
