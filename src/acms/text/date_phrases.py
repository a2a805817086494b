"""Parse the start and end of a statement's validity from its text, relative to the time of the message.

"until March", "from 5 May 2027", "since Monday", "next Friday". The words of dates are data, in four languages; only
the forms below are read, and ambiguous text is ignored. Days are UTC days. "Until" a day includes that day; "until" a
month or a year ends at its start, unless the text names its end.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from typing import NamedTuple

from acms.log.validity import Period

_WEEKDAYS = (
    "monday montag lunes lundi", "tuesday dienstag martes mardi", "wednesday mittwoch miércoles mercredi",
    "thursday donnerstag jueves jeudi", "friday freitag viernes vendredi", "saturday samstag sábado samedi",
    "sunday sonntag domingo dimanche",
)  # fmt: skip
_MONTHS = (
    "january jan januar enero janvier", "february feb februar febrero février", "march mar märz marzo mars",
    "april apr abril avril", "may mai mayo", "june jun juni junio juin", "july jul juli julio juillet",
    "august aug agosto août", "september sep sept septiembre septembre", "october oct oktober octubre octobre",
    "november nov noviembre novembre", "december dec dezember diciembre décembre",
)  # fmt: skip
_DAYS = ("today tonight heute hoy", "tomorrow mañana demain")
_UNITS = (
    "day days tag tagen día días jour jours", "week weeks woche wochen semana semanas semaine semaines",
    "month months monat monaten mes meses mois", "year years jahr jahren año años an ans année",
)  # fmt: skip
_DAYS_UNIT, _WEEKS, _MONTHS_UNIT, _YEARS = range(len(_UNITS))
_COUNTS = ("a an one einem einer un una une", "two zwei dos deux", "three drei tres trois")
_UNTIL = "until|till|through|bis zum|bis|hasta|jusqu['’](?:au|à|en)"
_SINCE = "since|seit|depuis"
_FROM = "starting from|starting on|starting in|starting|as of|from|ab|desde|a partir de|à partir de"


def _join_alternatives(rows: tuple[str, ...]) -> str:
    return "|".join(sorted((word for row in rows for word in row.split()), key=len, reverse=True))


def _row_index(word: str, rows: tuple[str, ...]) -> int:
    return next(index for index, row in enumerate(rows) if word.casefold() in row.split())


_MONTH = _join_alternatives(_MONTHS)
_UNIT = _join_alternatives(_UNITS)
_WEEKDAY = _join_alternatives(_WEEKDAYS)
_DAY = _join_alternatives(_DAYS)
_COUNT = _join_alternatives(_COUNTS)
_NEXT = "next|coming|nächste[nrs]?|kommende[nrs]?|próxim[oa]"
_THE = "(?:(?:the|el|la|le|dem|den|der) )?"
_YEAR = r"(?:,? (?:de |of )?(?P<{}>(?:19|20)\d\d)\b)?"
_FORMS = (
    r"(?P<iso>\d{4}-\d\d-\d\d)\b(?!T)",
    rf"(?P<day>\d{{1,2}})(?:st|nd|rd|th|er|\.)?(?: of| de)? (?P<of>{_MONTH})\b{_YEAR.format('of_year')}",
    rf"(?P<on>{_MONTH}) (?P<nth>\d{{1,2}})(?:st|nd|rd|th)?\b(?!:){_YEAR.format('on_year')}",
    rf"(?P<end>end|ende|fin)(?: of| de)? {_THE}(?:(?P<end_next>{_NEXT}) |this )?"
    rf"(?:(?P<end_month>{_MONTH})\b{_YEAR.format('end_year')}|(?P<end_unit>{_UNIT})\b)",
    rf"(?P<month>{_MONTH})\b{_YEAR.format('month_year')}",
    rf"(?:(?:{_NEXT}|this) )?(?P<weekday>{_WEEKDAY})\b(?: prochain)?",
    rf"(?P<near>{_DAY})\b",
    rf"(?:{_NEXT}) (?P<unit>{_UNIT})\b",
    rf"in (?P<count>\d{{1,3}}|{_COUNT}) (?P<units>{_UNIT})\b",
    r"(?P<year>(?:19|20)\d\d)\b(?![-:.,]?\d)",
)
_DATE = re.compile(_THE + "(?:" + "|".join(_FORMS) + ")", re.IGNORECASE)
_LEAD = re.compile(
    rf"(?<![\w-])(?:(?P<until>{_UNTIL})|(?P<since>{_SINCE})|(?P<from>{_FROM})) ", re.IGNORECASE
)
_TO = re.compile(r" ?(?:to|[-–]|bis|a|au) ", re.IGNORECASE)
_AHEAD = re.compile(
    rf"(?:on |am )?(?:(?:{_NEXT}) (?:{_WEEKDAY}|{_UNIT})|(?:{_WEEKDAY}) prochain|{_DAY}"
    rf"|in (?:\d{{1,3}}|{_COUNT}) (?:{_UNIT}))",
    re.IGNORECASE,
)
AHEAD_PATTERN = _AHEAD.pattern
"""What names a day or more to come by how far it is: "next Friday", "tomorrow", "in two weeks"."""


class DatedStatement(NamedTuple):
    """A statement without its dates, and the period in which it is valid."""

    text: str
    period: Period


def extract_validity(text: str, said_at: datetime) -> DatedStatement:
    """Split a text into its statement and the period in which that is valid.

    A text with two starts, with two ends, or with a date that does not exist is returned unchanged.
    """
    unchanged = DatedStatement(text, Period())
    start: datetime | None = None
    end: datetime | None = None
    kept_parts: list[str] = []
    position = 0
    for lead in _LEAD.finditer(text):
        date_match = _DATE.match(text, lead.end()) if lead.start() >= position else None
        if date_match is None:
            continue
        end_of_date = date_match.end()
        if lead["until"]:
            if end is not None:
                return unchanged
            # "Through May" includes May; "until May" ends when May begins.
            end = _resolve_end(date_match, said_at, inclusive=lead["until"].casefold() == "through")
            if end is None:
                return unchanged
        else:
            if start is not None:
                return unchanged
            start = _resolve_period(date_match, said_at, prefer_past=bool(lead["since"])).start
            if start is None:
                return unchanged
            range_end = _match_range_end(text, end_of_date) if lead["from"] else None
            if range_end is not None:
                end = _resolve_end(range_end, start, inclusive=False)
                end_of_date = range_end.end()
        kept_parts.append(text[position : lead.start()].rstrip(" ,"))
        position = end_of_date
    if start is not None and end is not None and end <= start:
        return unchanged
    statement = "".join([*kept_parts, text[position:]]).strip()
    return DatedStatement(statement, Period(start, end))


def _match_range_end(text: str, position: int) -> re.Match[str] | None:
    """Return the second date of a range: "from 5 May to 8 May"."""
    joint = _TO.match(text, position)
    return None if joint is None else _DATE.match(text, joint.end())


def parse_future_period(text: str, said_at: datetime) -> Period | None:
    """Return the future day or longer period that a whole text names, or None if it says something else."""
    text = text.strip(" .!")
    match = _DATE.search(text) if _AHEAD.fullmatch(text) else None
    return None if match is None else _resolve_period(match, said_at, prefer_past=False)


def parse_date_bound(text: str, said_at: datetime, *, end: bool) -> datetime | None:
    """Return the start of a validity period that a whole text names, or with `end` its end; None for other texts."""
    match = _DATE.fullmatch(text.strip(" ."))
    if match is None:
        return None
    if end:
        return _resolve_end(match, said_at, inclusive=False)
    return _resolve_period(match, said_at, prefer_past=False).start


def find_periods(text: str, said_at: datetime) -> list[Period]:
    """Return the days and longer periods that a text names: for each date the next and the previous one it may mean."""
    periods: list[Period] = []
    for match in _DATE.finditer(text):
        for prefer_past in (False, True):
            period = _resolve_period(match, said_at, prefer_past=prefer_past)
            if period.start is not None:
                periods.append(period)
    return periods


def _resolve_end(match: re.Match[str], said_at: datetime, *, inclusive: bool) -> datetime | None:
    """Return the moment that "until" and a date mean, or None for a date that does not exist.

    "Until" a future month or longer period ends at the start of the period, or with `inclusive` at its end.
    """
    period = _resolve_period(match, said_at, prefer_past=False)
    is_long = match["month"] or match["year"] or match["unit"] or match["units"]
    lies_ahead = period.start is not None and period.start > said_at
    if is_long and lies_ahead and not inclusive:
        return period.start
    return period.end


def _resolve_period(match: re.Match[str], said_at: datetime, *, prefer_past: bool) -> Period:
    """Return the period that a date names, the next or with `prefer_past` the last; empty if there is no such date."""
    today = said_at.astimezone(UTC).date()
    try:
        return _calendar_date(match, today, prefer_past) or _relative_period(match, today, prefer_past)
    except ValueError:  # the 31st of February
        return Period()


def _calendar_date(match: re.Match[str], today: date, prefer_past: bool) -> Period | None:
    """Return the day, month or year of a calendar date such as "5 May" or "2027", or None for any other form."""
    if match["iso"]:
        return _period_of_days(date.fromisoformat(match["iso"]))
    if match["year"]:
        return _calendar_period(date(int(match["year"]), 1, 1), _YEARS)
    day = match["day"] or match["nth"]
    if day:
        month = _row_index(match["of"] or match["on"], _MONTHS) + 1
        year = match["of_year"] or match["on_year"]
        return _period_of_days(_nearest_yearly_date(today, year, month, int(day), prefer_past))
    name = match["month"] or match["end_month"]
    if name:
        year = match["month_year"] or match["end_year"]
        first = _nearest_yearly_date(today, year, _row_index(name, _MONTHS) + 1, 1, prefer_past)
        return _calendar_period(first, _MONTHS_UNIT)
    return None


def _relative_period(match: re.Match[str], today: date, prefer_past: bool) -> Period:
    """Return the period of a date that is relative to today, such as "next Friday" or "in two weeks"."""
    if match["weekday"]:
        return _period_of_days(_nearest_weekday(today, _row_index(match["weekday"], _WEEKDAYS), prefer_past))
    if match["near"]:
        return _period_of_days(today + timedelta(days=_row_index(match["near"], _DAYS)))
    if match["units"]:
        number = match["count"]
        count = int(number) if number.isdigit() else _row_index(number, _COUNTS) + 1
        unit = _row_index(match["units"], _UNITS)
        return _period_of_days(_advance_date(today, unit, count, same_day=True))
    unit = _row_index(match["unit"] or match["end_unit"], _UNITS)
    is_next = match["unit"] or match["end_next"]
    return _calendar_period(_advance_date(today, unit, 1 if is_next else 0), unit)


def _nearest_weekday(today: date, weekday: int, prefer_past: bool) -> date:
    """Return the next date after today with a weekday (Monday is 0), or with `prefer_past` the last one up to today."""
    days_ahead = (weekday - today.weekday()) % 7
    if prefer_past:
        days_behind = (7 - days_ahead) % 7
        return today - timedelta(days=days_behind)
    return today + timedelta(days=days_ahead or 7)


def _nearest_yearly_date(today: date, year: str | None, month: int, day: int, prefer_past: bool) -> date:
    """Return a day in the given year, or without one the next such day, or with `prefer_past` the last.

    Today and the first day of this month count as both.
    """
    if year:
        return date(int(year), month, day)
    this_year = date(today.year, month, day)
    is_current = month == today.month and day in (1, today.day)
    is_in_direction = this_year <= today if prefer_past else this_year >= today
    if is_current or is_in_direction:
        return this_year
    other_year = today.year - 1 if prefer_past else today.year + 1
    return date(other_year, month, day)


def _advance_date(today: date, unit: int, count: int, *, same_day: bool = False) -> date:
    """Return the date `count` units ahead: the first day of that week, month or year, or with `same_day` the same day.

    The 31st becomes the last day of a shorter month.
    """
    if unit == _DAYS_UNIT:
        return today + timedelta(days=count)
    if unit == _WEEKS:
        start = today if same_day else today - timedelta(days=today.weekday())
        return start + timedelta(weeks=count)
    if unit == _YEARS and not same_day:
        return date(today.year + count, 1, 1)
    added_months = count * 12 if unit == _YEARS else count
    years, month_index = divmod(today.month - 1 + added_months, 12)
    first = date(today.year + years, month_index + 1, 1)
    if not same_day:
        return first
    last = _advance_date(first, _MONTHS_UNIT, 1) - timedelta(days=1)
    return min(first + timedelta(days=today.day - 1), last)


def _period_of_days(day: date) -> Period:
    return Period(_utc_midnight(day), _utc_midnight(day + timedelta(days=1)))


def _calendar_period(first: date, unit: int) -> Period:
    """Return the day, week, month or year that begins on a date."""
    return Period(_utc_midnight(first), _utc_midnight(_advance_date(first, unit, 1)))


def _utc_midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)


_WEEKDAY_NAMES = frozenset(name for names in _WEEKDAYS for name in names.split())


def is_weekday(word: str) -> bool:
    """Return whether a word is the name of a weekday, in the singular or the plural."""
    name = word.casefold()
    return name in _WEEKDAY_NAMES or name.removesuffix("s") in _WEEKDAY_NAMES
