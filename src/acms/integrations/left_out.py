"""Find the entries of a log that a framework's own list leaves out: kept, and not shown to the model.

A framework may go back to an earlier point of a conversation, repeat a turn, or show one agent less than another. The
log keeps everything; a request made of it ends where the list ends.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from acms.model import Entry, Role, ToolCall
from acms.prompt.selected import SelectedLog
from acms.prompt.steps import Readable
from acms.results import ContextItems, Synced
from acms.session import ACMS

__all__ = ["LeftBehind", "hide_entries"]


class LeftBehind:
    """Entries that a list leaves out: they followed its last message when the log knew no more of the list.

    They are remembered for each open session: a list that continues from there still leaves them out.
    """

    def __init__(self) -> None:
        #: For each session the ids of such entries, each with the id of the message before it.
        self._known: WeakKeyDictionary[ACMS, dict[str, str]] = WeakKeyDictionary()

    async def find(self, session: ACMS, done: Synced) -> frozenset[str]:
        """Return the ids of the entries that a synced list leaves out.

        `done` tells which entries the list has. Entries behind its last known one are left out, except an
        interrupted turn, which continues, and entries without a key, which no framework wrote.
        """
        left_out = self._known.setdefault(session, {})
        known_in_list = {*done.unchanged, *done.replaced}
        listed = known_in_list.union(done.appended)
        if known_in_list:
            last, tail = await _find_tail(session, known_in_list, frozenset(done.appended))
            keys = await session.keys([entry.id for entry in tail])
            written_by_framework = [entry for entry in tail if entry.id in keys]
            if written_by_framework and not _is_turn_unfinished(written_by_framework):
                left_out.update(dict.fromkeys([entry.id for entry in written_by_framework], last))
        # Valid while the list still has the entry that they followed.
        return frozenset(id for id, last in left_out.items() if last in listed and id not in listed)


async def _find_tail(
    session: ACMS, known_in_list: Collection[str], new: Collection[str]
) -> tuple[str, Sequence[Entry]]:
    """Return the last active entry of a list, and the entries behind it that are not among the new ones."""
    count = len(new) + 1
    while True:
        entries = await session.entries(count)
        index = max(
            (position for position, entry in enumerate(entries) if entry.id in known_in_list), default=-1
        )
        if index >= 0:
            return entries[index].id, [entry for entry in entries[index + 1 :] if entry.id not in new]
        if len(entries) < count:
            return "", ()
        count *= 2


def _is_turn_unfinished(entries: Sequence[Entry]) -> bool:
    """Return whether entries are calls and answers of a turn that the model has not ended."""
    called = any(isinstance(part, ToolCall) for part in entries[-1].parts)
    return (called or entries[-1].role is Role.TOOL) and all(entry.role is not Role.USER for entry in entries)


def hide_entries(session: ACMS, hidden: Collection[str]) -> Readable:
    """Return a session without some entries, as a prompt reads it; tool groups go as a whole."""
    return _Without(session, frozenset(hidden)) if hidden else session


class _Without(SelectedLog):
    def __init__(self, session: ACMS, hidden: frozenset[str]) -> None:
        super().__init__(session, lambda unit: all(entry.id not in hidden for entry in unit.entries))
        self._hidden = hidden

    @property
    def ends_at(self) -> str:
        """Not None: a prompt does not continue a placement that was made while all entries were shown."""
        return "list"

    async def recall_for_prompt(self, query: str, *, exclude: Iterable[str] = (), **how: Any) -> ContextItems:
        return await super().recall_for_prompt(query, exclude={*exclude, *self._hidden}, **how)
