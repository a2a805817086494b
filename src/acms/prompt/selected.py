"""A session of which a prompt shows only some entries.

A framework or a gateway holds a message list of its own: entries missing from that list are kept in the log and can be
recalled, but are not shown among the history.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from acms.log.active_entries import EntryGroup
from acms.model import Entry
from acms.prompt.steps import Readable, SessionOrView

if TYPE_CHECKING:
    from acms.ports import StorageBackend, TokenCounter
    from acms.privacy.redactor import Redactor
    from acms.prompt.render_log import RenderLog
    from acms.recall.window import LogSpan
    from acms.results import ContextItems


class SelectedLog:
    """A session as a prompt reads it, without the units of entries that are not to be shown."""

    def __init__(self, session: Readable | SessionOrView, shows: Callable[[EntryGroup[Entry]], bool]) -> None:
        self._session = session.internals if isinstance(session, SessionOrView) else session
        self._shows = shows

    @property
    def session_id(self) -> str:
        """The caller's name for the conversation."""
        return self._session.session_id

    @property
    def ends_at(self) -> int | str | None:
        """The version at which it ends, or its tag; None for a session, which goes on."""
        return self._session.ends_at

    @property
    def effort(self) -> float:
        """Share of a prompt's budget that the recall for a turn may take."""
        return self._session.effort

    @property
    def counter(self) -> TokenCounter:
        """How the tokens of its messages are counted."""
        return self._session.counter

    @property
    def storage(self) -> StorageBackend:
        """Where its log lies."""
        return self._session.storage

    @property
    def redactor(self) -> Redactor:
        """The redaction applied to its entries."""
        return self._session.redactor

    @property
    def render_log(self) -> RenderLog | None:
        """The log of its renders, or None if they are not kept."""
        return getattr(self._session, "render_log", None)

    async def context_id(self) -> str | None:
        """Return the id of its log; None while nothing was written."""
        return await self._session.context_id()

    async def read_span(self, *, budget: int | None = None, **options: Any) -> LogSpan:
        """Return the active entries that are shown as units, oldest first; hidden entries do not use up the budget.

        The session is read again with a budget that is larger by the tokens of the entries that were hidden, until no
        more are.
        """
        hidden_tokens = 0
        while True:
            read_budget = None if budget is None else budget + hidden_tokens
            span = await self._session.read_span(budget=read_budget, **options)
            units = [unit for unit in span.units if self._shows(unit)]
            hidden = [unit for unit in span.units if not self._shows(unit)]
            newly_hidden_tokens = sum(entry.tokens for unit in hidden for entry in unit.entries)
            if read_budget is None or span.whole or newly_hidden_tokens <= hidden_tokens:
                return replace(span, units=units)
            hidden_tokens = newly_hidden_tokens

    async def recall_for_prompt(
        self, query: str, *, exclude: Iterable[str] = (), **options: Any
    ) -> ContextItems:
        """Return the recalled items that a prompt shows with its history."""
        return await self._session.recall_for_prompt(query, exclude=exclude, **options)


def show_only(session: Readable | SessionOrView, ids: Iterable[str]) -> SelectedLog:
    """Return a session of which only some entries are shown; a tool call with its results if one of them is."""
    shown_ids = frozenset(ids)
    return SelectedLog(session, lambda unit: any(entry.id in shown_ids for entry in unit.entries))
