"""A session of which a prompt shows only some entries.

A framework or a gateway holds a message list of its own: entries missing from that list are kept in the log and can be
recalled, but are not shown among the history.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from acms.log.active_entries import EntryGroup
from acms.model import Entry
from acms.prompt.steps import Readable

if TYPE_CHECKING:
    from acms.recall.window import LogSpan


class SelectedLog:
    """A session as a prompt reads it, without the units of entries that are not to be shown."""

    def __init__(self, session: Readable, shows: Callable[[EntryGroup[Entry]], bool]) -> None:
        self.session = session
        self._shows = shows

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the session: only what is read of its log differs."""
        return getattr(self.session, name)

    async def read_span(self, *, budget: int | None = None, **options: Any) -> LogSpan:
        """Return the active entries that are shown as units, oldest first; hidden entries do not use up the budget.

        The session is read again with a budget that is larger by the tokens of the entries that were hidden, until no
        more are.
        """
        hidden_tokens = 0
        while True:
            read_budget = None if budget is None else budget + hidden_tokens
            span = await self.session.read_span(budget=read_budget, **options)
            units = [unit for unit in span.units if self._shows(unit)]
            hidden = [unit for unit in span.units if not self._shows(unit)]
            newly_hidden_tokens = sum(entry.tokens for unit in hidden for entry in unit.entries)
            if read_budget is None or span.whole or newly_hidden_tokens <= hidden_tokens:
                return replace(span, units=units)
            hidden_tokens = newly_hidden_tokens


def show_only(session: Readable, ids: Iterable[str]) -> Readable:
    """Return a session of which only some entries are shown; a tool call with its results if one of them is."""
    shown_ids = frozenset(ids)
    selected = SelectedLog(session, lambda unit: any(entry.id in shown_ids for entry in unit.entries))
    return cast("Readable", selected)
