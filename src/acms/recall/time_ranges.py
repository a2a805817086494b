"""When: the stretches of time that a question names, and how near to them each message was said.

"In May", "two weeks ago" or "since the release on March 3" tell which messages are meant even where words alone cannot.
What is relative is counted from the newest message the reader sees, never from the clock, so that a past version
answers as it did then. A message outside of a stretch loses the advantage, never its place: people tell in June what
happened in May. A question for a time ("when did …?") names none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from acms.text.dates import DAYS, MONTH, MONTHS, day_in, ends, later
from acms.text.tokenizer import words

SOON = 4.0
"""Days after a stretch within which much of it is told."""
TAIL = 0.5
"""Share of a stretch by which that time grows."""
AHEAD = 0.25
"""Of that time, what counts before a stretch begins: plans."""

FAR = 4.0
"""How many times that time after or before a stretch nothing counts any more."""

Kind = Literal["in", "before", "after"]

_OPERATORS = {
    **dict.fromkeys(("before", "prior to"), "before"),
    **dict.fromkeys(("after", "following"), "after"),
    **dict.fromkeys(("until", "till", "up to", "by"), "until"),
}
_WIDE = {"day": 0, "week": 3, "month": 15, "year": 180}
"""Days by which a time that is counted in some unit may be off."""
_MINUTES = 1440
_NEVER = 2**31 - 1
_EPOCH = date(1970, 1, 1).toordinal()
_DAY = timedelta(days=1)


class Span(NamedTuple):
    """A stretch of time: its first minute and the one after its last, counted from 1970; None where it is open."""

    begins: int | None
    ends: int | None

    @property
    def kind(self) -> Kind:
        """Return what was said: in it, before its end, or after its beginning."""
        return "before" if self.begins is None else "after" if self.ends is None else "in"


class _Days(NamedTuple):
    """A stretch of whole days: its first one and the one after its last."""

    begins: date
    ends: date


# ── what texts name ─────────────────────────────────────────────────────────────────────────────────────────────────

_YEAR = r"(?:19|20)\d\d\b"
_NUMBER = r"\d{1,3}|an?|one|two|three|four|five|six|seven|eight|nine|ten|twelve|a couple of|couple of|a few|few|several"
_NUMBERS = {
    **{word: count for count, word in enumerate("one two three four five six seven eight nine ten".split(), 1)},
    **{"a": 1, "an": 1, "twelve": 12, "a couple of": 2, "couple of": 2, "a few": 4, "few": 4, "several": 5},
}  # fmt: skip
_UNIT = r"day|week|month|year"
_WEEKDAY = r"(?:mon|tues|wednes|thurs|fri|satur|sun)day"
_ORDINAL = r"first|second|third|fourth|last|1st|2nd|3rd|4th"
_ORDINALS = {
    "first": 1,
    "1st": 1,
    "second": 2,
    "2nd": 2,
    "third": 3,
    "3rd": 3,
    "fourth": 4,
    "4th": 4,
    "last": 0,
}
_SEASONS = {"spring": 3, "summer": 6, "autumn": 9, "fall": 9, "winter": 12}
_PART = r"beginning|start|early|first half|mid|middle|second half|late|end"
_TH = r"(?:st|nd|rd|th)?\b"

_TIME = re.compile(
    r"\b(?:"
    rf"(?P<iso>{_YEAR}-\d\d-\d\d)\b(?!-)"
    rf"|(?P<isomonth>{_YEAR}-(?:0[1-9]|1[0-2]))\b(?!-)"
    rf"|(?<![.\d/])(?P<d1>\d{{1,2}})(?P<sep>[./])(?P<m1>\d{{1,2}})(?P=sep)(?P<y1>{_YEAR})(?![./]\d)"
    # 3 to 5 May, May 3-5
    rf"|(?P<from1>\d{{1,2}}){_TH} ?(?:-|–|to|and|through|until) ?(?P<to1>\d{{1,2}}){_TH} (?:of )?"
    rf"(?P<month1>{MONTH})\b\.?(?:,? (?P<year1>{_YEAR}))?"
    rf"|(?P<month2>{MONTH})\b\.? (?:the )?(?P<from2>\d{{1,2}}){_TH} ?(?:-|–|to|and|through|until) ?"
    rf"(?P<to2>\d{{1,2}}){_TH}(?:,? (?P<year2>{_YEAR}))?"
    rf"|(?P<day>(?:{MONTH})\b\.? (?:the )?\d{{1,2}}{_TH}(?!:)(?:,? {_YEAR})?"
    rf"|\d{{1,2}}{_TH}(?: of)? (?:{MONTH})\b\.?(?:,? {_YEAR})?)"
    rf"|(?:(?P<week>{_ORDINAL}) week of |(?:the )?(?P<part>{_PART})[ -](?:of )?)?(?:the )?"
    rf"(?:(?P<which>last|this|past) )?(?:(?P<month>{MONTH})\b\.?|(?P<season>spring|summer|autumn|fall|winter)"
    r"|(?P<quarter>q[1-4]|(?:first|second|third|fourth) quarter))(?:,?(?: of)? "
    rf"(?P<year>{_YEAR})(?: ?[-–/] ?(?:20)?\d\d\b)?)?(?![\w']| break)"
    rf"|(?:(?P<week3>{_ORDINAL}) week of |(?:the )?(?P<part3>{_PART})[ -](?:of )?)?(?P<year3>{_YEAR})(?!\.\d)"
    # counted from now
    r"|(?P<near>the day before yesterday|yesterday|last night|today|tonight|this (?:morning|afternoon|evening))"
    rf"|(?P<count>{_NUMBER}) (?P<unit>minute|hour|{_UNIT})s? (?P<ago>ago|earlier)"
    rf"|(?:last|past|previous) (?P<back>{_NUMBER}) (?P<backs>minute|hour|{_UNIT})s?"
    r"|(?P<past>past|last few) (?P<pasts>days?|weeks?|months?|years?)"
    r"|(?:earlier )?(?P<this>this|last|previous) (?P<period>week|weekend|month|quarter|year)(?! before| after)"
    rf"|(?P<on>on|last|this|past|since|until|before|after|by) (?P<weekday>{_WEEKDAY})(?! before| after)"
    r")(?![\w-])"
)
_CUES = frozenset(
    """january february march april may june july august september october november december jan feb mar apr jun jul
    aug sept sep oct nov dec spring summer autumn fall winter quarter q1 q2 q3 q4 yesterday today tonight night morning
    afternoon evening ago earlier minutes hours day days week weeks weekend month months year years monday tuesday
    wednesday thursday friday saturday sunday""".split()
)
#: What makes a bare month, season or year one: "in May", but not "may I".
_PLACED = re.compile(
    r"\b(?:in|during|since|from|until|till|before|after|by|between|throughout|around|of|over|starting|prior to|up to)"
    r"(?P<the> the(?: year)?)? ?$"
)
_LEAD = re.compile(
    rf"\b(?:(?:(?P<count>{_NUMBER}) )?(?P<unit>{_UNIT}|weekend|{_WEEKDAY})s? )?"
    r"(?P<op>before|prior to|after|following|since|until|till|up to|by|between|from)"
    r"(?P<event>(?: (?:the|my|our|your|his|her|their|an?|[\w-]+'s))(?: [\w'-]+){1,4} (?:on|in|of|at))?(?: the)? ?$"
)
_LINK = re.compile(r"\s*(?:,? and|to|until|till|through|-|–)\s*(?:in |on |the )?$")


def spans(text: str, now: datetime) -> tuple[Span, ...]:
    """Return the stretches of time that a text names at a moment; none for most texts."""
    said = words(text)
    if _CUES.isdisjoint(said) and not any(map(str.isdigit, "".join(said))):
        return ()
    text = " ".join(re.sub(r",(?=\d{4})", ", ", text.lower()).split())
    try:
        found = _found(text, now)
    except (ValueError, OverflowError):  # a day that no calendar has
        return ()
    sure = [
        one for one in found if not one[1]
    ] or found  # "last week, as said on 6 November" means that day's week
    return tuple(dict.fromkeys(span for span, _ in sure))


def _found(text: str, now: datetime) -> list[tuple[Span, bool]]:
    """Return each stretch, and whether it was counted from now."""
    matches: list[tuple[re.Match[str], str]] = []
    end = 0
    for match in _TIME.finditer(text):
        lead = text[end : match.start()]
        if _bare(match) and not (matches and _LINK.fullmatch(lead)):
            placed = _PLACED.search(lead)
            if not placed or (placed["the"] == " the" and not match["season"]):
                continue
        matches.append((match, lead))
        end = match.end()
    found: list[tuple[Span, bool]] = []
    index = 0
    while index < len(matches):
        match, lead = matches[index]
        operator = _LEAD.search(lead)
        op = operator["op"] if operator else match["on"] or ""
        op = _OPERATORS.get(op, op)
        if (
            index + 1 < len(matches)
            and _LINK.fullmatch(matches[index + 1][1])
            and _ranges(op, matches[index + 1][1])
        ):
            last = _days(matches[index + 1][0], now)
            first = None if last is None else _days(match, _moment(last.ends - _DAY))
            if first is not None and last is not None:
                found.append((_span(first.begins, last.ends), _relative(match)))
            index += 2
            continue
        index += 1
        if match["unit"] in ("minute", "hour") or match["backs"] in ("minute", "hour"):
            found.append((_minutes(match, now), True))
            continue
        days = _days(match, now)
        if days is None:
            continue
        if operator and operator["unit"] and op in ("before", "after"):
            found.append((_beside(days, operator, op == "before"), _relative(match)))
        else:
            found.append((_led(days, op, bool(operator and operator["event"])), _relative(match)))
    return found


def _bare(match: re.Match[str]) -> bool:
    """Return whether a match is a month, season or year with nothing beside it."""
    if match["year3"]:
        return not (match["week3"] or match["part3"])
    alone = match["month"] or match["season"]
    return bool(alone) and not (match["year"] or match["which"] or match["part"] or match["week"])


def _relative(match: re.Match[str]) -> bool:
    return bool(
        match["near"] or match["ago"] or match["back"] or match["past"] or match["this"] or match["weekday"]
    )


def _ranges(op: str, link: str) -> bool:
    """Return whether two times are the ends of one stretch."""
    return op in ("between", "from") or not link.strip(" ,").startswith(("and", "in", "on"))


def _led(days: _Days, op: str, within: bool) -> Span:
    """Return the stretch before or after a time, or after an event within it."""
    if op == "before":
        return _span(None, days.ends if within else days.begins)
    if op == "after":
        return _span(days.begins if within else days.ends, None)
    if op == "since":
        return _span(days.begins, None)
    return _span(None if op == "until" else days.begins, days.ends)


def _beside(days: _Days, said: re.Match[str], back: bool) -> Span:
    """Return the days, the week or the weekday before or after another stretch."""
    unit = said["unit"]
    count = _count(said["count"] or "one")
    if unit.endswith("day") and unit != "day":
        step = (days.begins.weekday() - DAYS.index(unit[:3]) - 1) % 7 + 1
        ahead = (DAYS.index(unit[:3]) - days.ends.weekday()) % 7
        first = days.begins - step * _DAY if back else days.ends + ahead * _DAY
        return _span(first, first + _DAY)
    if unit == "weekend":
        behind = (days.begins.weekday() - 7) % 7 + 2  # to the Saturday of the week before
        ahead = (DAYS.index("sat") - days.ends.weekday()) % 7
        first = days.begins - behind * _DAY if back else days.ends + ahead * _DAY
        return _span(first, first + 2 * _DAY)
    if said["count"] or unit == "day":  # two weeks before it: about then
        return _span(
            *_around(later(days.begins if back else days.ends - _DAY, unit, -count if back else count), unit)
        )
    if back:
        return _span(later(days.begins, unit, -1), days.begins)
    return _span(days.ends, later(days.ends, unit, 1))


# ── what they mean ──────────────────────────────────────────────────────────────────────────────────────────────────


def _days(match: re.Match[str], now: datetime) -> _Days | None:
    """Return the days that a time means at a moment; None for one that means none."""
    today = now.date()
    if match["iso"]:
        return _one(date.fromisoformat(match["iso"]))
    if match["isomonth"]:
        year, month = match["isomonth"].split("-")
        return _month(int(year), int(month))
    if match["d1"]:
        first, second = int(match["d1"]), int(match["m1"])
        swapped = (
            match["sep"] == "/" and second <= 31 and first <= 12
        )  # 3/14/2026, but 14/3/2026 and 14.3.2026
        return _one(date(int(match["y1"]), *((first, second) if swapped else (second, first))))
    for form in ("1", "2"):
        if match[f"from{form}"]:
            year = match[f"year{form}"]
            last = day_in(f"{match[f'to{form}']} {match[f'month{form}']} {year or ''}", now, past=True)
            return None if last is None else _Days(last.replace(day=int(match[f"from{form}"])), last + _DAY)
    if match["day"]:
        found = day_in(re.sub(r"\bthe ", "", match["day"]), now, past=True)
        return None if found is None else _one(found)
    if match["month"] or match["season"] or match["quarter"]:
        return _within(_named(match, today), match["week"], match["part"])
    if match["year3"]:
        year = int(match["year3"])
        return _within(_Days(date(year, 1, 1), date(year + 1, 1, 1)), match["week3"], match["part3"])
    if match["near"]:
        return _near(match["near"], today)
    if match["ago"]:
        return _ago(today, match["unit"], _count(match["count"]))
    if match["back"]:
        return _Days(later(today, match["backs"], -_count(match["back"])), today + _DAY)
    if match["past"]:
        many = match["pasts"]
        count = 4 if match["past"] == "last few" or many.endswith("s") else 1
        return _Days(later(today, many.rstrip("s"), -count), today + _DAY)
    if match["this"]:
        return _period(match["period"], today, match["this"] == "this")
    behind = (today.weekday() - DAYS.index(match["weekday"][:3])) % 7
    if match["on"] == "this":
        return _one(today - (today.weekday() - DAYS.index(match["weekday"][:3])) * _DAY)
    return _one(today - (behind or (7 if match["on"] == "last" else 0)) * _DAY)


def _one(day: date) -> _Days:
    return _Days(day, day + _DAY)


def _month(year: int, month: int, many: int = 1) -> _Days:
    first = date(year, month, 1)
    return _Days(first, later(first, "month", many))


def _named(match: re.Match[str], today: date) -> _Days:
    """Return the month, season or quarter that is meant: of the year said, else the last one that began."""
    months = 3
    if match["month"]:
        first, months = MONTHS.index(match["month"][:3]) + 1, 1
    elif match["season"]:
        first = _SEASONS[match["season"]]
    else:
        said = match["quarter"]
        first = 3 * (int(said[1]) if said[0] == "q" else _ORDINALS[said.split()[0]]) - 2
    if match["year"]:
        return _month(int(match["year"]), first, months)
    found = _month(today.year, first, months)
    which = match["which"]
    while which != "this" and (found.begins > today or (which == "last" and found.ends > today)):
        found = _month(found.begins.year - 1, first, months)
    return found


def _within(days: _Days, week: str | None, part: str | None) -> _Days:
    """Return the week or the part of a stretch that is meant."""
    if week:
        number = _ORDINALS[week]
        first = days.begins + 7 * (number - 1) * _DAY if number else days.ends - 7 * _DAY
        return _Days(first, first + 7 * _DAY)
    if not part:
        return days
    size = (days.ends - days.begins).days
    low, high = {
        "first half": (0, size // 2), "second half": (size // 2, size), "beginning": (0, size // 3),
        "start": (0, size // 3), "early": (0, size // 3), "mid": (size // 3, size * 2 // 3),
        "middle": (size // 3, size * 2 // 3),
    }.get(part, (size * 2 // 3, size))  # fmt: skip
    return _Days(days.begins + low * _DAY, days.begins + high * _DAY)


def _near(said: str, today: date) -> _Days:
    if said == "the day before yesterday":
        return _one(today - 2 * _DAY)
    if said == "last night":
        return _Days(today - _DAY, today + _DAY)
    return _one(today - _DAY if said == "yesterday" else today)


def _ago(today: date, unit: str, count: int) -> _Days:
    """Return the stretch around a day some time ago: the longer ago, the less exactly it is meant."""
    return _around(later(today, unit, -count), unit)


def _around(day: date, unit: str) -> _Days:
    wide = _WIDE[unit] * _DAY
    return _Days(day - wide, day + wide + _DAY)


def _period(period: str, today: date, this: bool) -> _Days:
    monday = today - today.weekday() * _DAY
    if period == "week":
        first = monday if this else monday - 7 * _DAY
        return _Days(first, first + 7 * _DAY)
    if period == "weekend":
        first = monday + (5 if this else -2) * _DAY
        return _Days(first, first + 2 * _DAY)
    length = {"month": 1, "quarter": 3, "year": 12}[period]
    begins = date(today.year, (today.month - 1) // length * length + 1, 1)
    if not this:
        begins = later(begins, "month", -length)
    return _Days(begins, later(begins, "month", length))


def _minutes(match: re.Match[str], now: datetime) -> Span:
    """Return the stretch that a number of minutes or hours means."""
    at = _minute(now.date()) + now.hour * 60 + now.minute
    back = match["back"]
    unit = 60 if (match["backs"] if back else match["unit"]) == "hour" else 1
    count = _count(back or match["count"])
    if back:
        return Span(at - count * unit, at + 1)
    return Span(at - count * unit - max(unit // 2, 5), at - count * unit + max(unit // 2, 5))


def _count(said: str) -> int:
    return _NUMBERS.get(said) or int(said)


def _moment(day: date) -> datetime:
    return ends(day)


def _minute(day: date) -> int:
    return (day.toordinal() - _EPOCH) * _MINUTES


def _span(begins: date | None, ends: date | None) -> Span:
    return Span(None if begins is None else _minute(begins), None if ends is None else _minute(ends))


# ── what it is worth ────────────────────────────────────────────────────────────────────────────────────────────────


def nearness(found: Sequence[Span], minutes: NDArray[np.int32]) -> NDArray[np.float32]:
    """Return for each message how near it was said to the nearest of some stretches: 1 inside, falling to 0 outside.

    It falls to a half within `SOON` days after a stretch, and sooner before it.
    """
    best = np.zeros(len(minutes), np.float32)
    for span in found:
        whole = 0 if span.begins is None or span.ends is None else span.ends - span.begins
        late = SOON * _MINUTES + TAIL * whole
        early = AHEAD * late
        begins = -_NEVER if span.begins is None else span.begins
        end = _NEVER if span.ends is None else span.ends
        first, last = max(begins - int(FAR * early), -_NEVER), min(end + int(FAR * late), _NEVER)
        for low, high, nearest, wide in ((first, begins, begins, early), (end, last, end - 1, late)):
            places = np.flatnonzero((minutes >= np.int32(low)) & (minutes < np.int32(high)))
            off = np.abs(minutes[places] - np.int32(nearest)) * (1 / wide)
            best[places] = np.maximum(best[places], 1 / (1 + off * off))
        best[(minutes >= np.int32(begins)) & (minutes < np.int32(end))] = 1
    return best
