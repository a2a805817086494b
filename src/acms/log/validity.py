"""Validity: the period in which a fact is or was true, independent of when the log learned it.

A fact is true from `valid_from` until before `valid_to`; a side that was not stated is open. A fact that replaces
another one begins at the moment it was stated, unless it gives a time, and the older one ends there. So a log knows
both its facts at a version and which of those were true at a moment; no job is needed to end a fact.

Facts, messages and summaries that may be outdated end with a label, wherever they are shown. A message of a history
gets no label of doubt if the message that raised the doubt is shown below it, so the text of an earlier request does
not change as the conversation goes on.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from acms.knowledge import Fact
from acms.log.in_force import EntryGroup
from acms.model import Entry, Kind, Role

_FIRST = datetime.min.replace(tzinfo=UTC)
_LAST = datetime.max.replace(tzinfo=UTC)


class Period(NamedTuple):
    """A half-open period of time, without its end; None leaves a side open."""

    start: datetime | None = None
    end: datetime | None = None
    #: Notice that it may be outdated, although its end was not stated.
    doubt: str = ""
    #: Versions of the messages that raised the doubt: a reader of one of them needs no label.
    news: tuple[int, ...] = ()
    #: Id of the newest message that a fact comes from.
    source: str = ""

    def holds(self, moment: datetime) -> bool:
        """Whether a moment lies in it."""
        return (self.start is None or self.start <= moment) and not self.over(moment)

    def over(self, moment: datetime) -> bool:
        """Whether it has ended by a moment, or never was."""
        if self.end is None:
            return False
        is_empty = self.start is not None and self.end <= self.start
        return self.end <= moment or is_empty

    def meets(self, other: Period) -> bool:
        """Whether two have a moment in common."""
        start = max(self.start or _FIRST, other.start or _FIRST)
        return start < min(self.end or _LAST, other.end or _LAST)

    def cut_at(self, moment: datetime) -> Period:
        """Return the same period, ended at a moment at the latest."""
        return self._replace(end=min(self.end or _LAST, moment))

    def label(self, moment: datetime) -> str:
        """Return the label at a moment: when the period begins and ends, why it is in doubt; or ""."""
        words: list[str] = []
        if self.start is not None and self.start > moment:
            words.append(f"from {_format_day(self.start)}")
        if self.end is not None:
            words.append(f"until {_format_day(self.end)}")
        return self._with_doubt(f"[{' '.join(words)}]" if words else "")

    def warning(self, moment: datetime | None) -> str:
        """Return the label of a message or summary: that the period is over, why it is in doubt; or ""."""
        if self.end is None or moment is None or not self.over(moment):
            return self.doubt
        return self._with_doubt(f"[until {_format_day(self.end)}]")

    def _with_doubt(self, label: str) -> str:
        return " ".join(filter(None, (label, self.doubt)))


class Labels(NamedTuple):
    """The labels of the messages and summaries of a log at a moment."""

    times: Mapping[int, Period] = {}
    #: When they are shown: periods that have ended by then are labelled. None if not known.
    moment: datetime | None = None

    def of(self, entry: Entry, shown: Container[int] = ()) -> str:
        """Return the label of a message or summary, or ""; `shown` are the versions of the messages shown with it.

        Entries that are kept verbatim have no label: tool calls and their answers, messages with parts of a provider.
        """
        period = self.times.get(entry.version)
        has_provider_parts = entry.parts and entry.kind is not Kind.SUMMARY
        if period is None or entry.group is not None or has_provider_parts:
            return ""
        if entry.kind is Kind.MESSAGE and any(version in shown for version in period.news):
            period = period._replace(doubt="")
        return period.warning(self.moment)

    def by_id(
        self, units: Sequence[EntryGroup[Entry]], lead: Iterable[EntryGroup[Entry]] = ()
    ) -> dict[str, str]:
        """Return the labels of the newest messages of a log and of the entries in front of them, by id.

        A message put in doubt by a message below it has no doubt label. The user message that waits for an answer has
        no label at all.
        """
        if not self.times:
            return {}
        front = [entry for unit in lead for entry in unit.entries]
        sequence = [entry for unit in units for entry in unit.entries]
        labels = {entry.id: self.of(entry) for entry in front}
        below: set[int] = set()
        for entry in reversed(sequence):  # cutting removes entries from the top
            labels[entry.id] = self.of(entry, below)
            below.add(entry.version)
        waiting = _unanswered_user_message([*front, *sequence])
        if waiting is not None:
            del labels[waiting.id]
        return {id: label for id, label in labels.items() if label}


def _unanswered_user_message(sequence: Sequence[Entry]) -> Entry | None:
    """Return the newest user message, unless it was answered by a text with no tool call after it."""
    has_calls = False
    for entry in reversed(sequence):
        if entry.role is Role.USER and entry.kind is Kind.MESSAGE:
            return entry
        has_calls = has_calls or entry.group is not None
        if not has_calls:
            return None
    return None


UNLABELLED = Labels()


def attach_label(text: str, label: str) -> str:
    """Return a text with its label appended."""
    return f"{text} {label}" if text and label else text


LONGEST_LABEL = 400
"""Maximum characters of a label."""
_LABEL = re.compile(
    r"(?: \[(?:(?:from|until) [\d: -]+(?:UTC)?(?: until [\d: -]+(?:UTC)?)?"
    r"|in doubt: rests on v\d+, which v\d+ [a-z ]+)\])+\Z"
)


def label_of(shown: str) -> str:
    """Return the label at the end of a shown text, with the space before it, or ""."""
    found = _LABEL.search(shown[-LONGEST_LABEL:])
    return found[0] if found else ""


def _format_day(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d}" if moment.time() == _FIRST.time() else f"{moment:%Y-%m-%d %H:%M} UTC"


def ends_older_period(new: Period, old: Period, said: datetime) -> bool:
    """Whether a fact stated at a moment supersedes an older fact at the same address for good.

    It does not if both can be true, one after the other: a fact that is already over ends nothing, and a fact that
    begins later leaves the older one valid until then.
    """
    if new.over(said):
        return False
    if new.end is not None and old.start is not None and old.start >= new.end:
        return False
    if new.start is not None and new.start > said:
        return old.start is not None and old.start >= new.start
    return True


def stated_validity(fact: Fact) -> Period:
    """Return the period that a fact states itself."""
    return Period(fact.valid_from, fact.valid_to)


def stated_at(fact: Fact) -> datetime:
    """Return when a fact was said."""
    return fact.stated_at or fact.created_at or _FIRST


def validity_periods(facts: Sequence[Fact], rivals: Iterable[tuple[str, str]]) -> dict[str, Period]:
    """Return the period in which each fact was true, by id, given all later facts; retracted facts have none.

    `facts` are all that a log ever held at a version, oldest first, each with the entry that retired it; `rivals` are
    pairs of ids, an older and a newer fact whose address holds one value at a time.
    """
    older_rivals: dict[str, list[str]] = {}
    for old, new in rivals:
        older_rivals.setdefault(new, []).append(old)
    values = {fact.id: fact.value for fact in facts}
    periods: dict[str, Period] = {}
    for fact in facts:
        retired = fact.retired
        if retired is not None and retired.reason not in ("updated", "removed"):
            continue
        older = dict.fromkeys((*fact.replaces, *older_rivals.get(fact.id, ())))
        older_periods = {id: periods[id] for id in older if id in periods}
        restated = [id for id in older_periods if id in fact.replaces and values[id] == fact.value]
        period = _period_after(fact, older_periods, restated)
        periods |= _end_older_periods(fact, period, older_periods)
        for id in restated:
            del periods[id]
        if retired is not None and retired.reason == "removed" and retired.at is not None:
            period = period.cut_at(retired.at)
        periods[fact.id] = period
    return periods


def _period_after(fact: Fact, older: Mapping[str, Period], restated: Sequence[str]) -> Period:
    """Return the period of a fact, given the periods of the older facts it replaces.

    Without a stated start it begins when it was stated, or where the fact began that it restates.
    """
    period, stated = stated_validity(fact), stated_at(fact)
    if period.start is not None or not older or period.over(stated):
        return period
    return period._replace(start=older[restated[0]].start if restated else stated)


def _end_older_periods(fact: Fact, period: Period, older: Mapping[str, Period]) -> dict[str, Period]:
    """Return the shortened periods of the older facts that end where the period of a newer fact begins.

    Those that it replaces end there, and unless it is already over, all that it overlaps with.
    """
    if period.start is None:
        return {}
    is_over = period.over(stated_at(fact))
    ended: dict[str, Period] = {}
    for id, old in older.items():
        if id in fact.replaces or (not is_over and period.meets(old)):
            ended[id] = old.cut_at(period.start)
    return ended


def at_moment(facts: Sequence[Fact], moment: datetime, rivals: Sequence[tuple[str, str]]) -> list[Fact]:
    """Return the facts that were true at a moment; of rivals, the one stated last."""
    periods = validity_periods(facts, rivals)
    valid = {id for id, period in periods.items() if period.holds(moment)}
    valid -= {old for old, new in rivals if new in valid}
    return [fact for fact in facts if fact.id in valid]
