"""Which messages of a list a log already holds, and which changes make the log hold them all; pure.

Messages with a key are matched by it, at any position. The others are matched by role and text, in order: the longest
common subsequence, at its latest position in the log. Leading instructions of a list are matched at any position and
replace the leading instructions of the log. Calls of tools and results whose text changed are matched by the ids of
their calls, next to matched messages; a streamed answer, the last of the log, by its beginning.
If no key of a role is known, a framework generated new ids: such messages are matched by role and text directly after
a matched message, or at the start of both. An answer that was cut short, with messages after it, is the beginning of
the log's message at its position.
A message that lost its content is matched by its position between others, under a key only with the same number of
tokens: a key that the log does not know indicates a new message. A message corrected in the log is also matched by its
earlier wordings; such a list is outdated and does not revert the correction.

Calls of tools and their results are then paired as if the log had always held its current content, and
`episodes.place` had placed it: a call opens a group, a result joins the group in which its call is unanswered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple, cast

from acms.log.known import Row
from acms.log.trust import LEADING, lowest_trust
from acms.model import Origin, Privacy, Role
from acms.privacy.modes import stricter_mode

PAIRS = 500_000
"""Pairs of equal messages that are looked at for the longest common subsequence."""

_TURN = (Role.ASSISTANT, Role.TOOL)


class Item(NamedTuple):
    """One message of a list: its position there, and its digests and attributes."""

    at: int
    turn: int
    role: Role
    key: str | None
    wording: bytes
    body: bytes
    #: Its calls of tools, and those it answers.
    calls: tuple[str, ...]
    answers: tuple[str, ...]
    #: None where the list does not say.
    actor: str | None
    metadata: bytes | None
    privacy: Privacy | None
    origin: Origin | None


@dataclass(slots=True)
class Aligned:
    """The changes to make, as positions in the list and in the log."""

    appended: list[int] = field(default_factory=list)
    inserted: list[int] = field(default_factory=list)
    #: (item, row).
    replaced: list[tuple[int, int]] = field(default_factory=list)
    unchanged: list[tuple[int, int]] = field(default_factory=list)
    retracted: list[int] = field(default_factory=list)
    #: Items taken for messages that lost their content, by their places alone.
    erased: list[int] = field(default_factory=list)


def align_messages(
    items: Sequence[Item],
    rows: Sequence[Row],
    tokens: Callable[[Item], int],
    goes_on: Callable[[Item, Row], bool],
    is_cut: Callable[[Item, Row], bool],
    *,
    retract: bool,
) -> Aligned:
    """Return the changes to make; with `retract` missing messages are retracted and reappearing ones restored.

    `goes_on` is whether a message begins with the whole text of a row, `is_cut` whether it is the start of that text.
    """
    matched = _match_by_key(items, rows)
    edited = _match_instructions(items, rows, matched)
    keyed = {at for at, row in enumerate(matched) if row is not None}
    _match_in_order(items, rows, matched)
    named = {items[at].role for at in keyed}
    _match_by_position(items, rows, matched, named)
    edited |= _match_by_call_ids(items, rows, matched)
    renamed = Role.ASSISTANT not in named
    edited |= _match_streamed_answer(items, rows, matched, goes_on, renamed=renamed)
    edited |= _match_interrupted_answers(items, rows, matched, is_cut, renamed=renamed)
    _match_erased(items, rows, matched, tokens)
    found = Aligned()
    _find_insertions(items, rows, matched, keyed, found)
    for at, item in enumerate(items):
        place = matched[at]
        if place is None:
            found.appended.append(at)
        elif at not in keyed and not rows[place].legible:
            found.erased.append(at)
        elif _is_changed(item, rows[place], retract, at in edited):
            found.replaced.append((at, place))
        else:
            found.unchanged.append((at, place))
    if retract:
        found.retracted = _find_missing(rows, matched)
    return found


def _is_changed(item: Item, row: Row, retract: bool, edited: bool) -> bool:
    if not row.legible:
        return False
    if not row.live:
        return retract
    if item.wording in row.corrected:
        return False
    if edited and item.wording != row.wording:
        return True
    if item.key is None or item.key != row.key:
        return False
    return (
        item.body != row.body
        or (item.actor is not None and item.actor != row.actor)
        or (item.metadata is not None and item.metadata != row.metadata)
        or (item.privacy is not None and stricter_mode(item.privacy, row.privacy) is not row.privacy)
        or (item.origin is not None and lowest_trust((item.origin, row.origin)) is not row.origin)
    )


def _match_by_key(items: Sequence[Item], rows: Sequence[Row]) -> list[int | None]:
    known = {row.key: place for place, row in enumerate(rows) if row.key is not None}
    return [known.get(item.key) if item.key is not None else None for item in items]


def _match_instructions(items: Sequence[Item], rows: Sequence[Row], matched: list[int | None]) -> set[int]:
    """Match the instructions that a list begins with; return which of them take the place of others."""
    leading = _count_leading(item.role for item in items)
    taken = {place for place in matched if place is not None}
    spare = [place for place, row in enumerate(rows) if row.role in LEADING and place not in taken]
    for at in range(leading):
        if matched[at] is None:
            same = [place for place in spare if rows[place].wording == items[at].wording]
            if same:
                matched[at] = best = max(same, key=lambda place: (rows[place].live, place))
                spare.remove(best)
    front = _count_leading(row.role for row in rows)
    changed: set[int] = set()
    for at in range(leading):
        if matched[at] is not None or items[at].key is not None:
            continue
        place = next((one for one in spare if one < front and _may_change(items[at], rows[one])), None)
        if place is not None:
            matched[at] = place
            spare.remove(place)
            changed.add(at)
    return changed


def _may_change(item: Item, row: Row, *, renamed: bool = False) -> bool:
    """Return whether a message may be another version of the one at its place; `renamed` when ids are made anew."""
    unnamed = row.key is None and item.key is None
    both_named = row.key is not None and item.key is not None
    return row.live and row.legible and row.role is item.role and (unnamed or (renamed and both_named))


def _count_leading(roles: Iterable[Role | None]) -> int:
    count = 0
    for role in roles:
        if role not in LEADING:
            break
        count += 1
    return count


def _match_in_order(items: Sequence[Item], rows: Sequence[Row], matched: list[int | None]) -> None:
    """Match messages without a known key: the longest common subsequence, as late in the log as possible."""
    taken = {place for place in matched if place is not None}
    ours = [at for at, place in enumerate(matched) if place is None]
    theirs = [place for place, row in enumerate(rows) if row.legible and place not in taken]
    said = [items[at].wording for at in ours]
    texts = set(said)
    known = [_matching_wording(rows[place], texts) for place in theirs]
    live = [rows[place].live for place in theirs]
    overlap = _count_overlap(said, known)
    found = {at: len(theirs) - overlap + at for at in range(overlap)}
    if not all(live[len(live) - overlap :]) or not set(known).isdisjoint(said[overlap:]):
        places: dict[bytes, list[int]] = {}
        for order, one in enumerate(known):
            places.setdefault(one, []).append(order)
        candidates = [_candidate_rows(items[at], places, rows, theirs) for at in ours]
        if sum(map(len, candidates)) <= PAIRS:
            found = _longest_common_subsequence(candidates, live)
    for at, order in found.items():
        if items[ours[at]].key is None or rows[theirs[order]].key is None:
            matched[ours[at]] = theirs[order]


def _match_by_position(
    items: Sequence[Item], rows: Sequence[Row], matched: list[int | None], named: Set[Role]
) -> None:
    """Match messages whose keys are new, where the log says the same at the same place under a key that is gone.

    Not for the roles that are `named` by keys which the log knows: there a new key is a new message.

    Their place is right behind a message that is known. At the start of a list it is the start of the log, unless
    the list has one message only and the log more: that may be the last of a trimmed list. A list that was trimmed
    is known by at least two turns of the user with all that lies between them.
    """
    keys = {item.key for item in items if item.key is not None}
    taken = {place for place in matched if place is not None}
    spare = [
        place
        for place, row in enumerate(rows)
        if row.live and row.legible and (place in taken or (row.key is not None and row.key not in keys))
    ]
    following = dict(zip([None, *spare], spare, strict=False))
    leading, front = _count_leading(item.role for item in items), _count_leading(row.role for row in rows)
    spoken = [place for place in spare if place >= front]

    def is_same(at: int, place: int | None) -> bool:
        if place is None or place in taken or items[at].key is None or items[at].role in named:
            return False
        return items[at].wording in (rows[place].wording, *rows[place].corrected)

    start = spoken[0] if spoken and (len(items) - leading > 1 or len(spoken) == 1) else None
    if leading < len(items) and matched[leading] is None and is_same(leading, start):
        matched[leading] = start
    for at in range(leading + 1, len(items)):
        before = matched[at - 1]
        if matched[at] is None and before is not None and is_same(at, following.get(before)):
            matched[at] = following[before]
    unknown = all(place is None for place in matched[leading:])
    if unknown and not named and all(item.key for item in items[leading:]):
        count = _count_overlap(
            [item.wording for item in items[leading:]], [rows[place].wording for place in spoken]
        )
        if sum(item.role is Role.USER for item in items[leading : leading + count]) > 1:
            matched[leading : leading + count] = spoken[-count:]


def _matching_wording(row: Row, said: Set[bytes]) -> bytes:
    """Return the wording by which a list may contain a row: its current one, or an earlier one if it was corrected."""
    return next((one for one in (row.wording, *row.corrected) if one in said), row.wording)


def _candidate_rows(
    item: Item, places: dict[bytes, list[int]], rows: Sequence[Row], theirs: Sequence[int]
) -> Sequence[int]:
    found = places.get(item.wording, ())
    return found if item.key is None else [order for order in found if rows[theirs[order]].key is None]


def _count_overlap(ours: Sequence[bytes], theirs: Sequence[bytes]) -> int:
    """Return how many of ours, from the first on, are the last of theirs."""
    if ours == theirs[len(theirs) - len(ours) :]:
        return len(ours)
    falls = [0] * len(ours)
    length = 0
    for at in range(1, len(ours)):
        while length and ours[at] != ours[length]:
            length = falls[length - 1]
        length += ours[at] == ours[length]
        falls[at] = length
    length = 0
    for one in theirs[max(0, len(theirs) - len(ours)) :]:
        while length and (length == len(ours) or ours[length] != one):
            length = falls[length - 1]
        if length < len(ours) and ours[length] == one:
            length += 1
    return length


def _longest_common_subsequence(candidates: Sequence[Sequence[int]], live: Sequence[bool]) -> dict[int, int]:
    """Return a longest common subsequence: if several, the one with the most live rows, then the latest in the log.

    Of consecutive equal messages in the list the first is matched, so a repeated message is new.
    The best chains by their first position in the log are the maxima of a Fenwick tree, from the end of the log.
    """
    size = len(live)
    best = [0] * (size + 1)
    chains: list[object] = [None] * (size + 1)

    def after(spot: int) -> tuple[int, object]:
        """Return the best chain that begins among the last places of the log."""
        key, chain = 0, None
        while spot:
            if best[spot] > key:
                key, chain = best[spot], chains[spot]
            spot &= spot - 1
        return key, chain

    for at in range(len(candidates) - 1, -1, -1):
        for order in candidates[at]:  # ascending: a chain made here is not extended by its own item
            key, chain = after(size - 1 - order)
            key = (key // size + size + 1 + live[order]) * size + order  # length, how many are live, place
            spot = size - order
            while spot <= size:
                if key >= best[spot]:
                    best[spot], chains[spot] = key, (at, order, chain)
                spot += spot & -spot
    found: dict[int, int] = {}
    _, link = after(size)
    while isinstance(link, tuple):
        at, order, link = cast("tuple[int, int, object]", link)
        found[at] = order
    return found


def _match_by_call_ids(items: Sequence[Item], rows: Sequence[Row], matched: list[int | None]) -> set[int]:
    """Match calls and results whose text changed, by the ids of their calls; return which.

    Providers may reuse an id. So the search stays next to matched messages: first after the message before them, or
    after a result's call, then before the message after them; and it never passes another user turn.
    """
    taken = {place for place in matched if place is not None}
    found: set[int] = set()

    def look(at: int, places: Iterable[int]) -> None:
        item = items[at]
        for place in places:
            row = rows[place]
            if place not in taken and row.legible and _same_calls(item, row):
                matched[at] = place
                taken.add(place)
                found.add(at)
                return
            ends = place in taken and row.role is not Role.TOOL
            if ends or row.role not in _TURN or not set(item.answers).isdisjoint(row.calls):
                return

    behind: int | None = None
    for at, item in enumerate(items):
        if matched[at] is None and behind is not None and item.key is None:
            look(at, range(behind + 1, len(rows)))
        behind = behind if item.role is Role.TOOL and matched[at] is not None else matched[at]
    before: int | None = None
    for at in range(len(items) - 1, -1, -1):
        if matched[at] is None and before is not None and items[at].key is None:
            look(at, range(before - 1, -1, -1))
        before = matched[at]
    return found


def _same_calls(item: Item, row: Row) -> bool:
    calls = item.calls or item.answers
    return bool(calls) and (item.role, item.calls, item.answers) == (row.role, row.calls, row.answers)


def _match_streamed_answer(
    items: Sequence[Item],
    rows: Sequence[Row],
    matched: list[int | None],
    goes_on: Callable[[Item, Row], bool],
    *,
    renamed: bool,
) -> set[int]:
    """Match an answer that goes on where the last message of the log ended, right behind the one before; return it."""
    last = len(rows) - 1
    if last < 1 or last in matched:
        return set()
    row, at = rows[last], matched.index(last - 1) + 1 if last - 1 in matched else len(items)
    if at < len(items) and matched[at] is None and _may_change(items[at], row, renamed=renamed):
        item = items[at]
        if item.role is Role.ASSISTANT and goes_on(item, row):
            matched[at] = last
            return {at}
    return set()


def _match_interrupted_answers(
    items: Sequence[Item],
    rows: Sequence[Row],
    matched: list[int | None],
    is_cut: Callable[[Item, Row], bool],
    *,
    renamed: bool,
) -> set[int]:
    """Match interrupted answers with their full text, directly after the previous match; return them.

    Another message must follow in the list: a list that ends with such a beginning may be an older one.
    """
    taken = {place for place in matched if place is not None}
    found: set[int] = set()
    for at in range(1, len(items) - 1):
        before, item = matched[at - 1], items[at]
        place = None if before is None else before + 1
        if matched[at] is not None or place is None or place in taken or place >= len(rows):
            continue
        row = rows[place]
        is_answer = item.role is Role.ASSISTANT and not item.calls and not row.calls
        if is_answer and _may_change(item, row, renamed=renamed) and is_cut(item, row):
            matched[at] = place
            taken.add(place)
            found.add(at)
    return found


def _match_erased(
    items: Sequence[Item], rows: Sequence[Row], matched: list[int | None], tokens: Callable[[Item], int]
) -> None:
    """Match messages between two matches, or before the first, with messages that lost their content.

    By role; under a key also by size, because an unknown key indicates a new message.
    """
    taken = {place for place in matched if place is not None}
    blank = [place for place, row in enumerate(rows) if not row.legible and place not in taken]
    if not blank:
        return
    floors = list(accumulate([-1 if place is None else place for place in matched], max, initial=-1))
    before = None
    for at in range(len(items) - 1, -1, -1):
        place, item = matched[at], items[at]
        if place is not None:
            before = place
            continue
        if before is None:
            continue
        spare = [one for one in blank if floors[at] < one < before and rows[one].role is item.role]
        if spare and item.key is not None:
            size = tokens(item)
            spare = [one for one in spare if rows[one].key is None and rows[one].tokens == size]
        if spare:
            matched[at] = before = spare[-1]


def _find_insertions(
    items: Sequence[Item], rows: Sequence[Row], matched: list[int | None], keyed: set[int], found: Aligned
) -> None:
    """Find unmatched messages before matched ones; without keys, messages after the first of them lose their match."""
    last = max((at for at, place in enumerate(matched) if place is not None), default=-1)
    ordered = max(
        (at for at, place in enumerate(matched) if place is not None and at not in keyed), default=-1
    )
    leading = _count_leading([item.role for item in items])
    cut = False
    for at, item in enumerate(items):
        place = matched[at]
        if place is None and at < last:
            found.inserted.append(at)
            cut = cut or (item.key is None and leading <= at < ordered)
        elif cut and place is not None and at not in keyed and rows[place].legible:
            matched[at] = None


def _find_missing(rows: Sequence[Row], matched: Sequence[int | None]) -> list[int]:
    """Return the rows missing from the list, except those trimmed from its start."""
    front = _count_leading([row.role for row in rows])
    known = {place for place in matched if place is not None}
    first = min((place for place in known if place >= front), default=len(rows))
    return [place for place in range(max(first, front), len(rows)) if place not in known and rows[place].live]


# ── tool groups ─────────────────────────────────────────────────────────────────────────────────────────────────────


def changes_groups(items: Sequence[Item], rows: Sequence[Row], found: Aligned) -> bool:
    """Return whether an alignment may change which calls wait for results: by far most edits of a stream do not."""
    comes_back = any(not rows[place].live for _, place in found.replaced)
    return bool(found.retracted) or comes_back or bool(_changed_call_ids(items, rows, found))


def pair_calls_with_results(
    items: Sequence[Item], rows: Sequence[Row], found: Aligned, fresh: Callable[[], str]
) -> dict[int, str | None]:
    """Pair the calls and results of the messages an alignment edits and retracts; `fresh` names a new group.

    A message of the list that joins another group must be written again, and becomes one of the replaced.
    """
    edits = {place: at for at, place in found.replaced}
    groups = {at: rows[place].group for at, place in found.replaced}
    gone = set(found.retracted)
    touched = _changed_call_ids(items, rows, found)
    calls: dict[str, str | None] = dict.fromkeys(touched)
    if not touched:
        return groups
    listed = {place: at for at, place in (*found.unchanged, *found.replaced)}
    moved: list[tuple[int, int]] = []
    for place, row in enumerate(rows):
        if place in gone or not (row.live or place in edits):
            continue
        at = listed.get(place) if row.legible else None
        now = row if at is None or place not in edits else items[at]
        group = row.group
        if not touched.isdisjoint((*now.calls, *now.answers, *row.calls, *row.answers)):
            if at is not None:
                group = (
                    _group_of_message(now, row, calls, fresh)
                    if place in edits or not row.calls
                    else row.group
                )
                if group != row.group and place not in edits:
                    moved.append((at, place))
                groups[at] = group
            if now.calls:
                calls.update({id: group for id in now.calls if id in touched})
            else:
                calls.update({id: None for id in now.answers if group and calls.get(id) == group})
    if moved:
        found.unchanged = [one for one in found.unchanged if one not in moved]
        found.replaced = sorted([*found.replaced, *moved])
    return groups


def _changed_call_ids(items: Sequence[Item], rows: Sequence[Row], found: Aligned) -> set[str]:
    """Return the ids of calls that are made or answered by others than before."""
    touched: set[str] = set()
    for at, place in found.replaced:
        old, new = rows[place], items[at]
        if not old.live or (old.calls, old.answers) != (new.calls, new.answers):
            touched.update(old.calls, old.answers, new.calls, new.answers)
    for place in found.retracted:
        touched.update(rows[place].calls, rows[place].answers)
    return touched


def _group_of_message(
    now: Row | Item, old: Row, calls: dict[str, str | None], fresh: Callable[[], str]
) -> str | None:
    """Return the group of a message of the list: calls keep theirs while one of them stays."""
    if now.calls:
        return (old.group if not set(now.calls).isdisjoint(old.calls) else None) or fresh()
    return next((group for id in now.answers if (group := calls.get(id)) is not None), None)
