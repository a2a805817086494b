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

        Excluded are an interrupted turn, which continues, and entries without a key, which no framework wrote.
        """
        known = self._known.setdefault(session, {})
        ours = {*done.unchanged, *done.replaced}
        listed = ours.union(done.appended)
        if ours:
            last, tail = await _find_tail(session, ours, frozenset(done.appended))
            keys = await session.keys([entry.id for entry in tail])
            said = [entry for entry in tail if entry.id in keys]
            if said and not _is_turn_unfinished(said):
                known.update(dict.fromkeys([entry.id for entry in said], last))
        return frozenset(id for id, last in known.items() if last in listed and id not in listed)


async def _find_tail(
    session: ACMS, ours: Collection[str], new: Collection[str]
) -> tuple[str, Sequence[Entry]]:
    """Return the last active entry of a list, and the entries behind it that are not among the new ones."""
    count = len(new) + 1
    while True:
        entries = await session.entries(count)
        place = max((at for at, entry in enumerate(entries) if entry.id in ours), default=-1)
        if place >= 0:
            return entries[place].id, [entry for entry in entries[place + 1 :] if entry.id not in new]
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
