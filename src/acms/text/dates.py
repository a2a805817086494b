"""Dates: what a written or relative date means on the day on which it was said."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time, timedelta

MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
MONTH = (
    r"jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?"
    r"|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?"
)
"""A month by its name, as a pattern."""
_MONTH = rf"(?P<month>{MONTH})\b\.?"
_DATE = re.compile(
    rf"\b(?:(?P<iso>\d{{4}}-\d\d-\d\d)"
    rf"|{_MONTH} (?P<day>\d{{1,2}})(?:st|nd|rd|th)?\b(?:,? (?P<year>\d{{4}}))?"
    rf"|(?P<day2>\d{{1,2}})(?:st|nd|rd|th)?\.?(?: of)? {_MONTH.replace('month', 'month2')}(?:,? (?P<year2>\d{{4}}))?"
    r"|(?P<near>today|tonight|tomorrow|yesterday)"
    r"|(?:(?P<next>next|this|coming) )?(?P<weekday>mon|tues?|wed(?:nes)?|thurs?|fri|satur|sun)day"
    r"|end of (?:the |this )?(?P<end>week|month|quarter|year)"
    r"|(?P<ahead>next) (?P<unit>week|month|year)"
    r"|in (?P<count>\d{1,3}|an?|one|two|three|four|five|six) (?P<span>day|week|month|year)s?)\b",
    re.I,
)
_COUNTS = {"a": 1, "an": 1, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6}


def day_in(text: str, said: datetime | None, *, past: bool = False) -> date | None:
    """Return the first day a text names; None when it names none, or none that can be known.

    A relative one needs the moment at which it was said; a day without its year is the next one, with `past` the last.
    """
    match = _DATE.search(text)
    if not match:
        return None
    try:
        return _day(match, None if said is None else said.astimezone(UTC).date(), past)
    except (ValueError, OverflowError):
        return None


def _day(match: re.Match[str], today: date | None, past: bool) -> date | None:
    if match["iso"]:
        return date.fromisoformat(match["iso"])
    written = match["month"] or match["month2"]
    if written:
        month = MONTHS.index(written[:3].lower()) + 1
        number = int(match["day"] or match["day2"])
        if year := match["year"] or match["year2"]:
            return date(int(year), month, number)
        if today is None:
            return None
        found = date(today.year, month, number)
        if past:
            return found if found <= today else date(today.year - 1, month, number)
        return found if found >= today else date(today.year + 1, month, number)
    if today is None:
        return None
    if match["near"]:
        return today + timedelta(days={"tomorrow": 1, "yesterday": -1}.get(match["near"].lower(), 0))
    if match["weekday"]:
        ahead = (DAYS.index(match["weekday"][:3].lower()) - today.weekday()) % 7
        if (match["next"] or "").lower() == "next":  # of the week that begins on the next Monday
            return today + timedelta(days=7 - today.weekday() + DAYS.index(match["weekday"][:3].lower()))
        return today + timedelta(days=ahead - 7 if past and ahead else ahead)
    if match["end"]:
        return _last(today, match["end"].lower())
    if match["ahead"]:
        return later(today, match["unit"].lower(), 1)
    count = match["count"].lower()
    return later(today, match["span"].lower(), _COUNTS.get(count) or int(count))


def _last(today: date, of: str) -> date:
    if of == "week":
        return today + timedelta(days=6 - today.weekday())
    month = {"month": today.month, "quarter": -(-today.month // 3) * 3, "year": 12}[of]
    return later(date(today.year, month, 1), "month", 1) - timedelta(days=1)


def later(day: date, unit: str, count: int) -> date:
    """Return the day that lies some days, weeks, months or years after another one."""
    if unit in ("day", "week"):
        return day + timedelta(days=count * (7 if unit == "week" else 1))
    months = day.month - 1 + count * (12 if unit == "year" else 1)
    first = date(day.year + months // 12, months % 12 + 1, 1)
    last = (date(first.year + first.month // 12, first.month % 12 + 1, 1) - timedelta(days=1)).day
    return first.replace(day=min(day.day, last))


def begins(day: date) -> datetime:
    """Return the first moment of a day, UTC."""
    return datetime.combine(day, time(0), UTC)


def ends(day: date) -> datetime:
    """Return the last second of a day, UTC."""
    return datetime.combine(day, time(23, 59, 59), UTC)
