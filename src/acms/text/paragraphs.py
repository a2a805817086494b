"""Several texts in one: each is a paragraph that begins with who said it and, in a log of several days, when."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from acms.model import Role

SEPARATOR = "\n\n"
"""What stands between two paragraphs."""

_BREAKS = r"\n\r\v\f\x85\u2028\u2029"
_DAY = r", \d{4}-\d\d-\d\d"
_SPEAKERS = "|".join((*(role.value for role in Role), "fact", "summary"))
_SPOKEN = re.compile(rf"(?<=[{_BREAKS}])(?=[^\S{_BREAKS}]{{0,80}}(?:{_SPEAKERS})(?:{_DAY})?:)", re.IGNORECASE)
_DATED = re.compile(rf"([^\n:]{{1,300}}?)({_DAY}): ")


def speak(speaker: str | None, content: str) -> str:
    """Write who said something before it."""
    return f"{speaker}: {content}" if speaker else content


def paragraph(speaker: str | None, content: str, day: str | None = None) -> str:
    """Write what somebody said as a paragraph; a line in it that begins as one of a role does is quoted."""
    if not speaker:
        return content
    name = " ".join(speaker.split())
    return speak(f"{name}, {day}" if day else name, _SPOKEN.sub("> ", content))


def under_days(paragraphs: Iterable[str]) -> Iterator[str]:
    """Leave the day out of a paragraph that follows one of the same day."""
    before = None
    for text in paragraphs:
        dated = _DATED.match(text)
        day = dated[2] if dated else None
        yield f"{dated[1]}: {text[dated.end() :]}" if dated and day == before else text
        before = day
