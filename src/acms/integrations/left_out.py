"""Find the entries of a log that a framework's own list leaves out: kept, and not shown to the model.

A framework may go back to an earlier point of a conversation, repeat a turn, or show one agent less than another. The
log keeps everything; a request made of it ends where the list ends.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, cast
from weakref import WeakKeyDictionary

from acms.model import Entry, Role, ToolCall
from acms.prompt.selected import SelectedLog
from acms.prompt.steps import Readable
from acms.results import ContextItems, Synced
from acms.session import ACMS

__all__ = ["LeftBehind", "hide_entries"]


class LeftBehind:
    """Entries of a log that a framework's list leaves out: they follow the last message that both have.

    They are remembered for each open session: a list that continues from there still leaves them out.
    """

    def __init__(self) -> None:
        #: For each session the ids of such entries, each with the id of the message before it.
        self._known: WeakKeyDictionary[ACMS, dict[str, str]] = WeakKeyDictionary()

    async def find(self, session: ACMS, synced: Synced) -> frozenset[str]:
        """Return the ids of the entries that a synced list leaves out.

        `synced` states which entries the list has. Entries after its last known one are left out, except an
        interrupted turn, which continues, and entries without a key, which no framework wrote.
        """
        left_out = self._known.setdefault(session, {})
        known_in_list = {*synced.unchanged, *synced.replaced}
        listed_ids = known_in_list.union(synced.appended)
        if known_in_list:
            previous_id, tail = await _find_tail(session, known_in_list, frozenset(synced.appended))
            keys = await session.keys([entry.id for entry in tail])
            written_by_framework = [entry for entry in tail if entry.id in keys]
            if written_by_framework and not _is_turn_unfinished(written_by_framework):
                left_out.update(dict.fromkeys([entry.id for entry in written_by_framework], previous_id))
        # An entry stays left out as long as the list has the entry before it.
        return frozenset(
            id for id, previous_id in left_out.items() if previous_id in listed_ids and id not in listed_ids
        )


async def _find_tail(
    session: ACMS, known_in_list: Collection[str], new_ids: Collection[str]
) -> tuple[str, Sequence[Entry]]:
    """Return the id of the last known entry of a list, and the entries of the log after it that are not new.

    The log is read from its end, each time twice as far, since the entry is nearly always among the newest.
    """
    count = len(new_ids) + 1
    while True:
        entries = await session.entries(count)
        index = max(
            (position for position, entry in enumerate(entries) if entry.id in known_in_list), default=-1
        )
        if index >= 0:
            return entries[index].id, [entry for entry in entries[index + 1 :] if entry.id not in new_ids]
        if len(entries) < count:
            return "", ()
        count *= 2


def _is_turn_unfinished(entries: Sequence[Entry]) -> bool:
    """Return whether entries are calls and answers of a turn that the model has not ended."""
    called = any(isinstance(part, ToolCall) for part in entries[-1].parts)
    return (called or entries[-1].role is Role.TOOL) and all(entry.role is not Role.USER for entry in entries)


def hide_entries(session: ACMS, hidden_ids: Collection[str]) -> Readable:
    """Return a session without some entries, as a prompt reads it; tool groups go as a whole."""
    if not hidden_ids:
        return session.internals
    return cast("Readable", _Without(session.internals, frozenset(hidden_ids)))


class _Without(SelectedLog):
    def __init__(self, session: Readable, hidden: frozenset[str]) -> None:
        super().__init__(session, lambda unit: all(entry.id not in hidden for entry in unit.entries))
        self._hidden = hidden

    @property
    def ends_at(self) -> str:
        """Return a name for where this log ends; with one, a prompt does not continue a placement of the whole log."""
        return "list"

    async def recall_for_prompt(self, query: str, *, exclude: Iterable[str] = (), **how: Any) -> ContextItems:
        return await self.session.recall_for_prompt(query, exclude={*exclude, *self._hidden}, **how)
