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
from acms.log.active_entries import EntryGroup
from acms.model import Entry, Kind, Role

_FIRST = datetime.min.replace(tzinfo=UTC)
_LAST = datetime.max.replace(tzinfo=UTC)


class Period(NamedTuple):
    """A period of time that includes its start and excludes its end; None leaves a side open."""

    start: datetime | None = None
    end: datetime | None = None
    #: A notice that the entry may be outdated although no end was stated, or "".
    doubt: str = ""
    #: Versions of the messages that raised the doubt: a reader of one of them needs no label.
    raised_by: tuple[int, ...] = ()
    #: Id of the newest message that a fact comes from.
    source: str = ""

    def holds(self, moment: datetime) -> bool:
        """Return whether a moment lies in the period."""
        return (self.start is None or self.start <= moment) and not self.is_over(moment)

    def is_over(self, moment: datetime) -> bool:
        """Return whether the period has ended by a moment, or is empty."""
        if self.end is None:
            return False
        is_empty = self.start is not None and self.end <= self.start
        return self.end <= moment or is_empty

    def overlaps(self, other: Period) -> bool:
        """Return whether two periods have a moment in common."""
        start = max(self.start or _FIRST, other.start or _FIRST)
        return start < min(self.end or _LAST, other.end or _LAST)

    def cut_at(self, moment: datetime) -> Period:
        """Return the period, shortened so that it ends at a moment at the latest."""
        return self._replace(end=min(self.end or _LAST, moment))

    def label(self, moment: datetime) -> str:
        """Return the label of a fact at a moment: when its period begins and ends, and why it is in doubt; or ""."""
        words: list[str] = []
        if self.start is not None and self.start > moment:
            words.append(f"from {_format_day(self.start)}")
        if self.end is not None:
            words.append(f"until {_format_day(self.end)}")
        return self._with_doubt(f"[{' '.join(words)}]" if words else "")

    def warning(self, moment: datetime | None) -> str:
        """Return the label of a message or summary: that its period is over, and why it is in doubt; or ""."""
        if self.end is None or moment is None or not self.is_over(moment):
            return self.doubt
        return self._with_doubt(f"[until {_format_day(self.end)}]")

    def _with_doubt(self, label: str) -> str:
        return " ".join(filter(None, (label, self.doubt)))


class Labels(NamedTuple):
    """The labels of the messages and summaries of a log at a moment."""

    times: Mapping[int, Period] = {}
    #: The moment for which the entries are shown: periods that have ended by then are labelled. None if unknown.
    moment: datetime | None = None

    def label_of_entry(self, entry: Entry, shown_versions: Container[int] = ()) -> str:
        """Return the label of a message or summary, or "".

        `shown_versions` are those of the messages shown with it: a message needs no doubt label beside the message that
        raised the doubt. Entries that are kept verbatim have no label: tool calls and their answers, and messages with
        parts of a provider.
        """
        period = self.times.get(entry.version)
        has_provider_parts = entry.parts and entry.kind is not Kind.SUMMARY
        if period is None or entry.group is not None or has_provider_parts:
            return ""
        if entry.kind is Kind.MESSAGE and any(version in shown_versions for version in period.raised_by):
            period = period._replace(doubt="")
        return period.warning(self.moment)

    def by_id(
        self, units: Sequence[EntryGroup[Entry]], lead: Iterable[EntryGroup[Entry]] = ()
    ) -> dict[str, str]:
        """Return by id the labels of the newest messages of a log, and of the entries `lead` in front of them.

        A message put in doubt by a message below it has no doubt label. The user message that waits for an answer has
        no label at all.
        """
        if not self.times:
            return {}
        front = [entry for unit in lead for entry in unit.entries]
        sequence = [entry for unit in units for entry in unit.entries]
        labels = {entry.id: self.label_of_entry(entry) for entry in front}
        # Only the messages below count: a prompt that is cut to fit loses entries from the top.
        versions_below: set[int] = set()
        for entry in reversed(sequence):
            labels[entry.id] = self.label_of_entry(entry, versions_below)
            versions_below.add(entry.version)
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


MAX_LABEL_CHARS = 400
"""Maximum characters of a label."""
_LABEL = re.compile(
    r"(?: \[(?:(?:from|until) [\d: -]+(?:UTC)?(?: until [\d: -]+(?:UTC)?)?"
    r"|in doubt: rests on v\d+, which v\d+ [a-z ]+)\])+\Z"
)


def label_at_end(text: str) -> str:
    """Return the label at the end of a text, with the space before it, or ""."""
    match = _LABEL.search(text[-MAX_LABEL_CHARS:])
    return match[0] if match else ""


def _format_day(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d}" if moment.time() == _FIRST.time() else f"{moment:%Y-%m-%d %H:%M} UTC"


def ends_older_period(newer: Period, older: Period, stated_at: datetime) -> bool:
    """Return whether a fact stated at a moment supersedes an older fact at the same address for good.

    The newer fact does not if both can be true, one after the other: a fact that is already over ends nothing, and a
    fact that begins later leaves the older one valid until then.
    """
    if newer.is_over(stated_at):
        return False
    if newer.end is not None and older.start is not None and older.start >= newer.end:
        return False  # the older fact begins only after the newer one ends
    if newer.start is not None and newer.start > stated_at:
        # The newer fact begins in the future: the older one stays valid until then, unless it begins later still.
        return older.start is not None and older.start >= newer.start
    return True


def stated_at(fact: Fact) -> datetime:
    """Return when a fact was stated: the time of its sources, else when it was written."""
    return fact.stated_at or fact.created_at or _FIRST


def validity_periods(facts: Sequence[Fact], rivals: Iterable[tuple[str, str]]) -> dict[str, Period]:
    """Return the period in which each fact was true, by id, given all later facts; retracted facts have none.

    `facts` are all that a log ever held at a version, oldest first, each with the entry that retired it; `rivals` are
    pairs of ids, an older and a newer fact whose address holds one value at a time.
    """
    older_rivals: dict[str, list[str]] = {}
    for older_id, newer_id in rivals:
        older_rivals.setdefault(newer_id, []).append(older_id)
    values = {fact.id: fact.value for fact in facts}
    periods: dict[str, Period] = {}
    for fact in facts:
        retired = fact.retired
        if retired is not None and retired.reason not in ("updated", "removed"):
            continue  # a retracted or archived fact has no period
        older_ids = dict.fromkeys((*fact.replaces, *older_rivals.get(fact.id, ())))
        older_periods = {id: periods[id] for id in older_ids if id in periods}
        restated_ids = [id for id in older_periods if id in fact.replaces and values[id] == fact.value]
        period = _period_after(fact, older_periods, restated_ids)
        periods |= _end_older_periods(fact, period, older_periods)
        for id in restated_ids:
            del periods[id]  # the newer fact says the same for the whole period
        if retired is not None and retired.reason == "removed" and retired.at is not None:
            period = period.cut_at(retired.at)
        periods[fact.id] = period
    return periods


def _period_after(fact: Fact, older_periods: Mapping[str, Period], restated_ids: Sequence[str]) -> Period:
    """Return the period of a fact, given the periods of the older facts it replaces or competes with.

    A fact without a stated start begins when it was stated, or where the fact began that it restates. The first fact at
    an address keeps an open start, and so does a fact that was already over when it was stated.
    """
    period, moment = Period(fact.valid_from, fact.valid_to), stated_at(fact)
    if period.start is not None or not older_periods or period.is_over(moment):
        return period
    return period._replace(start=older_periods[restated_ids[0]].start if restated_ids else moment)


def _end_older_periods(fact: Fact, period: Period, older_periods: Mapping[str, Period]) -> dict[str, Period]:
    """Return the shortened periods of the older facts that end where the period of a newer fact begins.

    The facts that the newer one replaces end there. Unless it is already over, all facts end that it overlaps with.
    """
    if period.start is None:
        return {}
    is_over = period.is_over(stated_at(fact))
    shortened: dict[str, Period] = {}
    for id, older in older_periods.items():
        if id in fact.replaces or (not is_over and period.overlaps(older)):
            shortened[id] = older.cut_at(period.start)
    return shortened


def facts_at_moment(facts: Sequence[Fact], moment: datetime, rivals: Sequence[tuple[str, str]]) -> list[Fact]:
    """Return the facts that were true at a moment; of rivals, the one stated last."""
    periods = validity_periods(facts, rivals)
    valid_ids = {id for id, period in periods.items() if period.holds(moment)}
    valid_ids -= {older_id for older_id, newer_id in rivals if newer_id in valid_ids}
    return [fact for fact in facts if fact.id in valid_ids]
