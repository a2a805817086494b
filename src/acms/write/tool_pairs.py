"""Which tool groups messages are in once others were edited or retracted; pure.

It is as if the log had said from the start what it says now, and `episodes.place` had placed it: a call opens a group,
a result joins the group in which its call waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from acms.log.known import Row
from acms.model import Role
from acms.write.alignment import Aligned, Item


class Pairs(NamedTuple):
    """Where messages that are written again belong, and what is waited for behind them."""

    #: Item → its tool group.
    groups: dict[int, str | None]
    #: Call → the group in which its result is waited for, None when it no longer is.
    calls: dict[str, str | None]
    #: Group of the calls that nothing but results follows.
    newest: str | None = None


def pair(items: Sequence[Item], rows: Sequence[Row], found: Aligned, fresh: Callable[[], str]) -> Pairs:
    """Pair the calls and results of what an alignment edits and retracts; `fresh` names a new group.

    A message of the list that joins another group must be written again, and becomes one of the replaced.
    """
    edits = {place: at for at, place in found.replaced}
    groups = {at: rows[place].group for at, place in found.replaced}
    gone = set(found.retracted)
    touched = _touched(items, rows, found)
    calls: dict[str, str | None] = dict.fromkeys(touched)
    if not touched:
        return Pairs(groups, calls)
    listed = {place: at for at, place in (*found.unchanged, *found.replaced)}
    moved: list[tuple[int, int]] = []
    newest = None
    for place, row in enumerate(rows):
        if place in gone or not (row.live or place in edits):
            continue
        at = listed.get(place) if row.legible else None
        now = row if at is None or place not in edits else items[at]
        group = row.group
        if not touched.isdisjoint((*now.calls, *now.answers, *row.calls, *row.answers)):
            if at is not None:
                group = _group(now, row, calls, fresh) if place in edits or not row.calls else row.group
                if group != row.group and place not in edits:
                    moved.append((at, place))
                groups[at] = group
            if now.calls:
                calls.update({id: group for id in now.calls if id in touched})
            else:
                calls.update({id: None for id in now.answers if group and calls.get(id) == group})
        if row.role is not Role.TOOL:
            newest = group if now.calls else None
    if moved:
        found.unchanged = [one for one in found.unchanged if one not in moved]
        found.replaced = sorted([*found.replaced, *moved])
    return Pairs(groups, calls, newest)


def _touched(items: Sequence[Item], rows: Sequence[Row], found: Aligned) -> set[str]:
    """Return the ids of calls that are made or answered by others than before."""
    touched: set[str] = set()
    for at, place in found.replaced:
        old, new = rows[place], items[at]
        if not old.live or (old.calls, old.answers) != (new.calls, new.answers):
            touched.update(old.calls, old.answers, new.calls, new.answers)
    for place in found.retracted:
        touched.update(rows[place].calls, rows[place].answers)
    return touched


def _group(now: Row | Item, old: Row, calls: dict[str, str | None], fresh: Callable[[], str]) -> str | None:
    """Return the group of a message of the list: calls keep theirs while one of them stays."""
    if now.calls:
        return (old.group if not set(now.calls).isdisjoint(old.calls) else None) or fresh()
    return next((group for id in now.answers if (group := calls.get(id)) is not None), None)
