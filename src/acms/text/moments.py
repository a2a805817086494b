"""Moments: parse the start and end of a statement's validity from its text, relative to the time of the message.

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
_COUNTS = ("a an one einem einer un una une", "two zwei dos deux", "three drei tres trois")
_UNTIL = "until|till|through|bis zum|bis|hasta|jusqu['’](?:au|à|en)"
_SINCE = "since|seit|depuis"
_FROM = "starting from|starting on|starting in|starting|as of|from|ab|desde|a partir de|à partir de"


def _join_alternatives(rows: tuple[str, ...]) -> str:
    return "|".join(sorted((word for row in rows for word in row.split()), key=len, reverse=True))


def _row_index(word: str, rows: tuple[str, ...]) -> int:
    return next(place for place, row in enumerate(rows) if word.casefold() in row.split())


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
AHEAD = _AHEAD.pattern
"""What names a day or more to come by how far it is: "next Friday", "tomorrow", "in two weeks"."""


class Timed(NamedTuple):
    """A statement without its dates, and the period in which it is valid."""

    text: str
    period: Period


def extract_validity(text: str, said: datetime) -> Timed:
    """Split a text into statement and validity period; a text with two starts or two ends is left unchanged."""
    start: datetime | None = None
    end: datetime | None = None
    left: list[str] = []
    place = 0
    for lead in _LEAD.finditer(text):
        if lead.start() < place or (found := _DATE.match(text, lead.end())) is None:
            continue
        stop = found.end()
        if (end if lead["until"] else start) is not None:
            return Timed(text, Period())
        if lead["until"]:
            end = _resolve_end(found, said, whole=lead["until"].casefold() == "through")
        else:
            start = _resolve_period(found, said, back=bool(lead["since"])).start
            to = _TO.match(text, stop)
            then = _DATE.match(text, to.end()) if to else None
            if start is not None and then is not None and lead["from"]:
                end, stop = _resolve_end(then, start, whole=False), then.end()
        if (end if lead["until"] else start) is None:  # there is no such day
            return Timed(text, Period())
        left.append(text[place : lead.start()].rstrip(" ,"))
        place = stop
    if start is not None and end is not None and end <= start:
        return Timed(text, Period())
    return Timed("".join([*left, text[place:]]).strip(), Period(start, end))


def parse_future_period(text: str, said: datetime) -> Period | None:
    """Return the day or more to come that a whole text names; None when it says something else."""
    text = text.strip(" .!")
    if not _AHEAD.fullmatch(text):
        return None
    found = _DATE.search(text)
    return None if found is None else _resolve_period(found, said, back=False)


def parse_date_bound(text: str, said: datetime, *, end: bool) -> datetime | None:
    """Return the start of the period that a text names, or with `end` the moment it means by "until"; else None."""
    found = _DATE.fullmatch(text.strip(" ."))
    if found is None:
        return None
    return _resolve_end(found, said, whole=False) if end else _resolve_period(found, said, back=False).start


def find_periods(text: str, said: datetime) -> list[Period]:
    """Return the days and longer periods that a text names: for each the nearest before and after it was said."""
    found = [
        _resolve_period(match, said, back=back) for match in _DATE.finditer(text) for back in (False, True)
    ]
    return [period for period in found if period.start is not None]


def _resolve_end(found: re.Match[str], said: datetime, *, whole: bool) -> datetime | None:
    """Return until when something is so that is so until a date."""
    period = _resolve_period(found, said, back=False)
    larger = found["month"] or found["year"] or found["unit"] or found["units"]
    return period.start if larger and not whole and period.start and period.start > said else period.end


def _resolve_period(found: re.Match[str], said: datetime, *, back: bool) -> Period:
    """Return what a date names: the next one, or with `back` the last one, where it could be several."""
    try:
        return _period_of_match(found, said.astimezone(UTC).date(), back)
    except ValueError:  # the 31st of February
        return Period()


def _period_of_match(found: re.Match[str], today: date, back: bool) -> Period:
    if found["iso"]:
        return _period_of_days(date.fromisoformat(found["iso"]))
    if day := found["day"] or found["nth"]:
        month = _row_index(found["of"] or found["on"], _MONTHS) + 1
        year = found["of_year"] or found["on_year"]
        return _period_of_days(_nearest_yearly_date(today, year, month, int(day), back))
    if name := found["month"] or found["end_month"]:
        first = _nearest_yearly_date(
            today, found["month_year"] or found["end_year"], _row_index(name, _MONTHS) + 1, 1, back
        )
        return _calendar_period(first, 2)
    if name := found["weekday"]:
        away = (_row_index(name, _WEEKDAYS) - today.weekday()) % 7
        return _period_of_days(
            today + timedelta(days=away - 7 if back and away else away if back else away or 7)
        )
    if name := found["near"]:
        return _period_of_days(today + timedelta(days=_row_index(name, _DAYS)))
    if name := found["unit"] or found["end_unit"]:
        return _calendar_period(
            _advance_date(today, _row_index(name, _UNITS), 1 if found["unit"] or found["end_next"] else 0),
            name,
        )
    if name := found["units"]:
        said = found["count"]
        count = int(said) if said.isdigit() else _row_index(said, _COUNTS) + 1
        return _period_of_days(_advance_date(today, _row_index(name, _UNITS), count, same_day=True))
    return _calendar_period(date(int(found["year"]), 1, 1), 3)


def _nearest_yearly_date(today: date, year: str | None, month: int, day: int, back: bool) -> date:
    """Return a day of a year, or the nearest on one side; the month under way counts on both."""
    if year:
        return date(int(year), month, day)
    found = date(today.year, month, day)
    now = (month,) == (today.month,) and (day == 1 or day == today.day)
    if now or (found <= today if back else found >= today):
        return found
    return date(today.year + (-1 if back else 1), month, day)


def _advance_date(today: date, unit: int, count: int, *, same_day: bool = False) -> date:
    """Return a day so many units ahead: the first of the unit, or the same day in it."""
    if unit < 2:
        start = today if same_day or unit == 0 else today - timedelta(days=today.weekday())
        return start + timedelta(days=count * (7 if unit else 1))
    months = today.year * 12 + today.month - 1 + count * (12 if unit == 3 else 1)
    first = date(months // 12, months % 12 + 1 if unit == 2 or same_day else 1, 1)
    if not same_day:
        return first
    return min(first + timedelta(days=today.day - 1), _advance_date(first, 2, 1) - timedelta(days=1))


def _period_of_days(first: date, count: int = 1) -> Period:
    return Period(_utc_midnight(first), _utc_midnight(first + timedelta(days=count)))


def _calendar_period(first: date, unit: int | str) -> Period:
    """Return a day, a week, a month or a year from its first day on."""
    kind = unit if isinstance(unit, int) else _row_index(unit, _UNITS)
    return Period(_utc_midnight(first), _utc_midnight(_advance_date(first, kind, 1)))


def _utc_midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)


_WEEKDAY_NAMES = frozenset(name for names in _WEEKDAYS for name in names.split())


def is_weekday(word: str) -> bool:
    """Return whether a word is the name of a weekday, in the singular or the plural."""
    name = word.casefold()
    return name in _WEEKDAY_NAMES or name.removesuffix("s") in _WEEKDAY_NAMES
