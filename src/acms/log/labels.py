"""Labels: what a reader is told beside a text of a log that may not be so any more.

Facts, messages and summaries carry them at their end, wherever a text is shown. Of a message of a history a reader who
sees below it what changed knows already: no label of doubt is put there, so what a request showed stays as it was while
the conversation goes on.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from acms.log.in_force import Unit
from acms.log.validity import Period
from acms.model import Entry, Kind, Role


class Labels(NamedTuple):
    """What has to be told of the messages and summaries of a log, and at which moment."""

    times: Mapping[int, Period] = {}
    #: When they are shown: what is over by then says so. None where that is not known.
    moment: datetime | None = None

    def of(self, entry: Entry, shown: Container[int] = ()) -> str:
        """Return the label of a message or a summary where messages of some versions are shown with it; "" for none.

        What is kept word for word has none: calls of tools and their answers, parts of a provider.
        """
        period = self.times.get(entry.version)
        if period is None or entry.parts or entry.group is not None:
            return ""
        known = entry.kind is Kind.MESSAGE and any(version in shown for version in period.news)
        return (period._replace(doubt="") if known else period).warning(self.moment)

    def by_id(self, units: Sequence[Unit[Entry]], lead: Iterable[Unit[Entry]] = ()) -> dict[str, str]:
        """Return the labels of the newest messages of a log and of what stands in front of them, by id.

        The message of the user that waits for an answer has none.
        """
        if not self.times:
            return {}
        said = [entry for unit in units for entry in unit.entries]
        shown = {entry.version for entry in said}
        if said and said[-1].role is Role.USER:
            said.pop()
        found = {entry.id: self.of(entry) for unit in lead for entry in unit.entries}
        found |= {entry.id: self.of(entry, shown) for entry in said}
        return {id: label for id, label in found.items() if label}


UNLABELLED = Labels()


def labelled(text: str, label: str) -> str:
    """Return a text with what its reader has to be told of it."""
    return f"{text} {label}" if text and label else text
