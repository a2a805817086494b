"""Which messages of a list a log already holds, and which changes make the log hold them all; pure.

An *item* is a message of the list, a *row* is a message of the log, and a *key* is the id that the caller gave it.
Messages with a key are matched by it, at any position. The others are matched by role and text, in order: the longest
common subsequence, at its latest position in the log. Leading instructions of a list are matched at any position and
replace the leading instructions of the log. Calls of tools and results whose text changed are matched by the ids of
their calls, next to matched messages; a streamed answer, the last of the log, by its beginning.
If no key of a role is known, a framework generated new ids: such messages are matched by role and text directly after
a matched message, or at the start of both. So are messages under new keys before a message with a known key. An answer
that was cut short, with messages after it, is the beginning of the log's message at its position.
A message that lost its content is matched by its position between others, under a key only with the same number of
tokens: a key that the log does not know indicates a new message. A message corrected in the log is also matched by its
earlier wordings; such a list is outdated and does not revert the correction.

Calls of tools and their results are then paired as if the log had always held its current content, and
`episodes.assign_episode` had placed it: a call opens a group, a result joins the group in which its call is unanswered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from itertools import pairwise, takewhile
from typing import NamedTuple, cast

from acms.log.known_messages import Row
from acms.log.trust import LEADING, lowest_trust
from acms.model import Origin, Privacy, Role
from acms.privacy.modes import stricter_mode

MAX_PAIRS = 500_000
"""Pairs of equal messages to search for the longest common subsequence: about a second of work."""

_TURN_ROLES = (Role.ASSISTANT, Role.TOOL)


class Item(NamedTuple):
    """One message of a list: its position there, and its digests and attributes."""

    #: Index of the given message, and of the turn within it: one message of a provider may be several turns.
    message: int
    turn: int
    role: Role
    key: str | None
    wording: bytes
    body: bytes
    #: Ids of its calls of tools, and of those it answers.
    calls: tuple[str, ...]
    answers: tuple[str, ...]
    #: None if the list does not have the value.
    actor: str | None
    metadata: bytes | None
    privacy: Privacy | None
    origin: Origin | None


@dataclass(slots=True)
class Alignment:
    """The changes to make, as indexes of items and of rows; pairs are (item, row)."""

    appended: list[int] = field(default_factory=list)
    inserted: list[int] = field(default_factory=list)
    replaced: list[tuple[int, int]] = field(default_factory=list)
    unchanged: list[tuple[int, int]] = field(default_factory=list)
    retracted: list[int] = field(default_factory=list)
    #: Items taken for messages that lost their content, by their position alone.
    erased: list[int] = field(default_factory=list)


def align_messages(
    items: Sequence[Item],
    rows: Sequence[Row],
    count_tokens: Callable[[Item], int],
    continues: Callable[[Item, Row], bool],
    is_beginning: Callable[[Item, Row], bool],
    *,
    retract: bool,
) -> Alignment:
    """Return the changes to make; with `retract` missing messages are retracted and reappearing ones restored.

    `continues` returns whether a message begins with the whole text of a row, `is_beginning` whether the text of a row
    begins with the message.
    """
    matching = _Matching(items, rows)
    matching.match_keys()
    matching.match_instructions()
    matching.anchor_matches()
    matching.match_in_order()
    matching.match_new_keys()
    matching.match_call_ids()
    matching.match_streamed_answer(continues)
    matching.match_interrupted_answers(is_beginning)
    matching.match_erased(count_tokens)

    alignment = Alignment(inserted=matching.find_insertions())
    for index, item in enumerate(items):
        row_index = matching.rows_of_items[index]
        if row_index is None:
            alignment.appended.append(index)
            continue
        row = rows[row_index]
        # Only its position matches an erased message. Whether it is the same message is a guess, so it is reported.
        if index not in matching.anchored and not row.has_content:
            alignment.erased.append(index)
        elif _is_changed(item, row, restore=retract, may_be_edit=index in matching.possible_edits):
            alignment.replaced.append((index, row_index))
        else:
            alignment.unchanged.append((index, row_index))
    if retract:
        alignment.retracted = matching.find_missing()
    return alignment


def _is_changed(item: Item, row: Row, *, restore: bool, may_be_edit: bool) -> bool:
    """Return whether the message of the log must be replaced by that of the list.

    With `restore`, retracted messages are restored. `may_be_edit` is true for an item that may be another version of
    the row.
    """
    if not row.has_content:
        return False
    if not row.is_live:
        return restore
    if item.wording in row.earlier_wordings:  # the list is older than the correction
        return False
    if may_be_edit and item.wording != row.wording:
        return True
    if item.key is None or item.key != row.key:  # matched by its text, which is the same
        return False
    if item.body != row.body:
        return True
    if item.actor not in (None, row.actor) or item.metadata not in (None, row.metadata):
        return True
    if item.privacy is not None and stricter_mode(item.privacy, row.privacy) is not row.privacy:
        return True
    return item.origin is not None and lowest_trust((item.origin, row.origin)) is not row.origin


class _Matching:
    """The rows found for the items of a list so far; each method matches some of the remaining items."""

    def __init__(self, items: Sequence[Item], rows: Sequence[Row]) -> None:
        self.items = items
        self.rows = rows
        #: By item: the index of its row.
        self.rows_of_items: list[int | None] = [None] * len(items)
        #: Items matched by their key, or as instructions: their position does not matter. The last of them, or -1.
        self.anchored: set[int] = set()
        self.last_anchor = -1
        #: The roles of which the log knows a key: for these, a new key means a new message.
        self.roles_with_known_keys: set[Role] = set()
        #: Items that may be another version of their row.
        self.possible_edits: set[int] = set()
        #: Rows that have an item.
        self._matched_rows: set[int] = set()
        #: How many items, and how many rows, are instructions at the start.
        self._leading_items = _count_leading(item.role for item in items)
        self._leading_rows = _count_leading(row.role for row in rows)

    def _match(self, item_index: int, row_index: int, *, may_be_edit: bool = False) -> None:
        self.rows_of_items[item_index] = row_index
        self._matched_rows.add(row_index)
        if may_be_edit:
            self.possible_edits.add(item_index)

    def _may_be_edit(self, item: Item, row: Row, *, new_keys: bool = False) -> bool:
        """Return whether an item may be another version of a row; `new_keys` if a framework generated new keys."""
        if not row.is_live or not row.has_content or row.role is not item.role:
            return False
        if row.key is None or item.key is None:
            return row.key is item.key  # true if neither has a key
        return new_keys

    def anchor_matches(self) -> None:
        """Note the items matched so far as anchored."""
        self.anchored = {index for index, row in enumerate(self.rows_of_items) if row is not None}
        self.last_anchor = max(self.anchored, default=-1)
        self.roles_with_known_keys = {self.items[index].role for index in self.anchored}

    # ── steps ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def match_keys(self) -> None:
        """Match items by their key, at any position."""
        by_key = {row.key: index for index, row in enumerate(self.rows) if row.key is not None}
        for index, item in enumerate(self.items):
            if item.key in by_key:
                self._match(index, by_key[item.key])

    def match_instructions(self) -> None:
        """Match the instructions at the start of the list.

        An instruction matches a row of the same text anywhere in the log, or else a leading row as its edit.
        """
        free_rows = [
            index
            for index, row in enumerate(self.rows)
            if row.role in LEADING and index not in self._matched_rows
        ]
        unmatched_items: list[int] = []
        for item_index in range(self._leading_items):
            if self.rows_of_items[item_index] is not None:
                continue
            item = self.items[item_index]
            same = [row_index for row_index in free_rows if self.rows[row_index].wording == item.wording]
            if same:
                # The newest row that is live, else the newest one.
                best = max(same, key=lambda row_index: (self.rows[row_index].is_live, row_index))
                self._match(item_index, best)
                free_rows.remove(best)
            elif item.key is None:
                unmatched_items.append(item_index)
        leading_rows = [row_index for row_index in free_rows if row_index < self._leading_rows]
        for item_index in unmatched_items:
            for row_index in leading_rows:
                if self._may_be_edit(self.items[item_index], self.rows[row_index]):
                    self._match(item_index, row_index, may_be_edit=True)
                    leading_rows.remove(row_index)
                    break

    def match_in_order(self) -> None:
        """Match messages without a known key: the longest common subsequence, as late in the log as possible."""
        items = [index for index, row in enumerate(self.rows_of_items) if row is None]
        rows = [
            index
            for index, row in enumerate(self.rows)
            if row.has_content and index not in self._matched_rows
        ]
        wordings = [self.items[index].wording for index in items]
        distinct = set(wordings)
        row_wordings = [_matching_wording(self.rows[index], distinct) for index in rows]
        live = [self.rows[index].is_live for index in rows]

        # In most lists, the first items are the last messages of the log: then no search is needed.
        overlap = _count_overlap(wordings, row_wordings)
        first = len(rows) - overlap
        pairs = {order: first + order for order in range(overlap)}
        is_longest = all(live[first:]) and set(row_wordings).isdisjoint(wordings[overlap:])
        if not is_longest:
            candidates = self._find_candidates(items, rows, row_wordings)
            # With more pairs the search takes too long: keep the overlap.
            if sum(map(len, candidates)) <= MAX_PAIRS:
                pairs = _longest_common_subsequence(candidates, live)
        for item_order, row_order in pairs.items():
            item_index, row_index = items[item_order], rows[row_order]
            if self.items[item_index].key is None or self.rows[row_index].key is None:
                self._match(item_index, row_index)

    def _find_candidates(
        self, items: Sequence[int], rows: Sequence[int], row_wordings: Sequence[bytes]
    ) -> list[Sequence[int]]:
        """Return for each of some items the indexes in `rows` of the rows with its wording, unless both have a key."""
        by_wording: dict[bytes, list[int]] = {}
        for order, wording in enumerate(row_wordings):
            by_wording.setdefault(wording, []).append(order)
        candidates: list[Sequence[int]] = []
        for index in items:
            same: Sequence[int] = by_wording.get(self.items[index].wording, ())
            if self.items[index].key is not None:
                same = [order for order in same if self.rows[rows[order]].key is None]
            candidates.append(same)
        return candidates

    def match_new_keys(self) -> None:
        """Match messages under new keys with equal messages of the log at the same position, under keys now gone.

        Not for roles of which the log knows a key: there a new key is a new message, except before a message with a
        known key. A framework that generates new ids for every list has such messages, if an earlier list was matched.

        Such a message directly follows a matched one. The first message of a list is matched with the first one of the
        log, unless the list has only one message and the log has more: it may be the last one of a trimmed list. A
        trimmed list is recognized by at least two messages of the user with everything between them.
        """
        rows = self._find_rows_for_new_keys()
        conversation_rows = [index for index in rows if index >= self._leading_rows]
        first_item = self._leading_items
        has_several_items = len(self.items) - first_item > 1
        if conversation_rows and (has_several_items or len(conversation_rows) == 1):
            self._match_new_key(first_item, conversation_rows[0])
        following = dict(pairwise(rows))
        for index in range(first_item + 1, len(self.items)):
            previous = self.rows_of_items[index - 1]
            if previous is not None:
                self._match_new_key(index, following.get(previous))
        # A trimmed list has no first message to begin with: go back from a message whose key is known.
        preceding = {row: previous for previous, row in pairwise(rows)}
        for index in reversed(range(first_item, self.last_anchor)):
            next_row = self.rows_of_items[index + 1]
            if next_row is not None:
                self._match_new_key(index, preceding.get(next_row))
        if not self.roles_with_known_keys:
            self._match_trimmed_list(conversation_rows)

    def _find_rows_for_new_keys(self) -> list[int]:
        """Return the rows with live content that are matched, or whose key is no longer in the list."""
        listed_keys = {item.key for item in self.items if item.key is not None}
        rows: list[int] = []
        for index, row in enumerate(self.rows):
            key_is_gone = row.key is not None and row.key not in listed_keys
            if row.is_live and row.has_content and (index in self._matched_rows or key_is_gone):
                rows.append(index)
        return rows

    def _match_new_key(self, index: int, row_index: int | None) -> None:
        """Match an item with a row of the same wording, current or earlier, although the log does not know its key.

        If the log knows keys of its role, an unknown key means a new message, except before a message with a known key.
        """
        if row_index is None or row_index in self._matched_rows:
            return
        if index >= len(self.items) or self.rows_of_items[index] is not None:
            return
        item, row = self.items[index], self.rows[row_index]
        is_before_known_key = index < self.last_anchor
        is_new_message = item.role in self.roles_with_known_keys and not is_before_known_key
        if item.key is None or is_new_message:
            return
        if item.wording == row.wording or item.wording in row.earlier_wordings:
            self._match(index, row_index)

    def _match_trimmed_list(self, rows: Sequence[int]) -> None:
        """Match the start of a list in which no message is known with the end of the log, `rows`."""
        leading = self._leading_items
        items = self.items[leading:]
        any_matched = any(row is not None for row in self.rows_of_items[leading:])
        if any_matched or not all(item.key for item in items):
            return
        row_wordings = [self.rows[index].wording for index in rows]
        overlap = _count_overlap([item.wording for item in items], row_wordings)
        user_messages = sum(item.role is Role.USER for item in items[:overlap])
        if user_messages > 1:  # one might be a new message of the same wording
            for order in range(overlap):
                self._match(leading + order, rows[len(rows) - overlap + order])

    def match_call_ids(self) -> None:
        """Match calls and results whose text changed, by the ids of their calls.

        Providers may reuse an id. So the search stays next to matched messages: first after the message before them, or
        after a result's call, then before the message after them; and it never passes another user turn.
        """
        previous: int | None = None
        for index, item in enumerate(self.items):
            if previous is not None:
                self._search_calls(index, range(previous + 1, len(self.rows)))
            row_index = self.rows_of_items[index]
            if row_index is None or item.role is not Role.TOOL:
                previous = row_index  # after a matched result, the search continues after its call
        following: int | None = None
        for index in reversed(range(len(self.items))):
            if following is not None:
                self._search_calls(index, range(following - 1, -1, -1))
            following = self.rows_of_items[index]

    def _search_calls(self, index: int, row_indexes: Iterable[int]) -> None:
        """Match an item without a key with the first of some rows that has its calls, in the same turn."""
        item = self.items[index]
        if item.key is not None or self.rows_of_items[index] is not None:
            return
        for row_index in row_indexes:
            row = self.rows[row_index]
            is_matched = row_index in self._matched_rows
            if not is_matched and row.has_content and _has_same_calls(item, row):
                self._match(index, row_index, may_be_edit=True)
                return
            # Another turn begins, or the messages of another item: behind it the same id is another call.
            if row.role not in _TURN_ROLES or (is_matched and row.role is not Role.TOOL):
                return
            if not set(item.answers).isdisjoint(row.calls):  # a result does not stand before its call
                return

    def match_streamed_answer(self, continues: Callable[[Item, Row], bool]) -> None:
        """Match an answer that continues the last message of the log, directly after the previous match."""
        last = len(self.rows) - 1
        if last < 1 or last in self._matched_rows or last - 1 not in self._matched_rows:
            return
        index = self.rows_of_items.index(last - 1) + 1
        if index == len(self.items) or self.rows_of_items[index] is not None:
            return
        item, row = self.items[index], self.rows[last]
        if self._may_be_other_answer(item, row) and continues(item, row):
            self._match(index, last, may_be_edit=True)

    def match_interrupted_answers(self, is_beginning: Callable[[Item, Row], bool]) -> None:
        """Match interrupted answers with their full text, directly after the previous match.

        Another message must follow in the list: a list that ends with such a beginning may be an older one.
        """
        for index in range(1, len(self.items) - 1):
            previous = self.rows_of_items[index - 1]
            if self.rows_of_items[index] is not None or previous is None:
                continue
            row_index = previous + 1
            if row_index in self._matched_rows or row_index == len(self.rows):
                continue
            item, row = self.items[index], self.rows[row_index]
            has_calls = item.calls or row.calls  # these are matched by the ids of their calls
            if not has_calls and self._may_be_other_answer(item, row) and is_beginning(item, row):
                self._match(index, row_index, may_be_edit=True)

    def _may_be_other_answer(self, item: Item, row: Row) -> bool:
        if item.role is not Role.ASSISTANT:
            return False
        return self._may_be_edit(item, row, new_keys=Role.ASSISTANT not in self.roles_with_known_keys)

    def match_erased(self, count_tokens: Callable[[Item], int]) -> None:
        """Match messages between two matches, or before the first, with messages that lost their content.

        By role; under a key also by size, because an unknown key indicates a new message.
        """
        erased = [
            index
            for index, row in enumerate(self.rows)
            if not row.has_content and index not in self._matched_rows
        ]
        if not erased:
            return
        #: By item: the highest row matched before it.
        highest: list[int] = []
        floor = -1
        for row_index in self.rows_of_items:
            highest.append(floor)
            floor = max(floor, -1 if row_index is None else row_index)
        following: int | None = None
        for index in reversed(range(len(self.items))):
            matched, item = self.rows_of_items[index], self.items[index]
            if matched is None and following is not None:
                between = [row for row in erased if highest[index] < row < following]
                matched = self._choose_erased(item, between, count_tokens)
                if matched is not None:
                    self._match(index, matched)
            if matched is not None:
                following = matched

    def _choose_erased(
        self, item: Item, erased: Sequence[int], count_tokens: Callable[[Item], int]
    ) -> int | None:
        """Return the last of some erased rows that has the role of an item, or None.

        For an item with a key, the row must also have the same size and no key.
        """
        candidates = [index for index in erased if self.rows[index].role is item.role]
        if candidates and item.key is not None:
            size = count_tokens(item)
            same_role, candidates = candidates, []
            for index in same_role:
                if self.rows[index].key is None and self.rows[index].tokens == size:
                    candidates.append(index)
        return candidates[-1] if candidates else None

    # ── results ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def find_insertions(self) -> list[int]:
        """Return the unmatched items that stand before matched ones.

        After an inserted item without a key, items that were matched only by their order lose their match: they are
        appended again after it, so that the log has the order of the list.
        """
        matched = [index for index, row in enumerate(self.rows_of_items) if row is not None]
        last = max(matched, default=-1)
        last_in_order = max((index for index in matched if index not in self.anchored), default=-1)
        inserted: list[int] = []
        appends_rest = False
        for index, item in enumerate(self.items):
            row_index = self.rows_of_items[index]
            if row_index is None and index < last:
                inserted.append(index)
                breaks_order = item.key is None and self._leading_items <= index < last_in_order
                appends_rest = appends_rest or breaks_order
            elif row_index is None or not appends_rest or index in self.anchored:
                continue
            elif self.rows[row_index].has_content:
                self.rows_of_items[index] = None
                self._matched_rows.discard(row_index)
        return inserted

    def find_missing(self) -> list[int]:
        """Return the live rows missing from the list, except those trimmed from its start."""
        conversation_rows = [index for index in self._matched_rows if index >= self._leading_rows]
        first = min(conversation_rows, default=len(self.rows))
        return [
            index
            for index in range(first, len(self.rows))
            if self.rows[index].is_live and index not in self._matched_rows
        ]


def _count_leading(roles: Iterable[Role | None]) -> int:
    return len(list(takewhile(LEADING.__contains__, roles)))


def _matching_wording(row: Row, wordings: Set[bytes]) -> bytes:
    """Return the wording of a row that the list has: its current one, or one from before a correction."""
    for wording in (row.wording, *row.earlier_wordings):
        if wording in wordings:
            return wording
    return row.wording


def _has_same_calls(item: Item, row: Row) -> bool:
    if not item.calls and not item.answers:
        return False
    return (item.role, item.calls, item.answers) == (row.role, row.calls, row.answers)


def _count_overlap(items: Sequence[bytes], rows: Sequence[bytes]) -> int:
    """Return how many of the first items equal the last rows (the search of Knuth, Morris and Pratt)."""
    if items == rows[len(rows) - len(items) :]:
        return len(items)
    #: By length of a matched prefix, less one: the longest shorter prefix that also ends there.
    fallback = [0] * len(items)

    def extend(length: int, wording: bytes) -> int:
        """Return the length of the longest prefix that ends with a wording, after one of a given length."""
        while length and (length == len(items) or items[length] != wording):
            length = fallback[length - 1]
        return length + 1 if length < len(items) and items[length] == wording else length

    length = 0
    for index in range(1, len(items)):
        length = extend(length, items[index])
        fallback[index] = length
    length = 0
    for wording in rows[max(0, len(rows) - len(items)) :]:
        length = extend(length, wording)
    return length


def _longest_common_subsequence(candidates: Sequence[Sequence[int]], live: Sequence[bool]) -> dict[int, int]:
    """Return a longest common subsequence: if several, the one with the most live rows, then the latest in the log.

    Of consecutive equal messages in the list the first is matched, so a repeated message is new.
    A chain is a linked list of matched pairs: its first item, its first row and the chain after it. Its score is its
    length, the number of its live rows, and its first row. A Fenwick tree over the rows, from the end of the log, holds
    the best chain by first row.
    """
    size = len(live)
    scores = [(0, 0, 0)] * (size + 1)
    chains: list[object] = [None] * (size + 1)

    def best_chain(count: int) -> tuple[tuple[int, int, int], object]:
        """Return the best chain that begins among the last `count` rows, with its score."""
        score, chain = (0, 0, 0), None
        while count:
            if scores[count] > score:
                score, chain = scores[count], chains[count]
            count &= count - 1
        return score, chain

    for item in reversed(range(len(candidates))):
        for row in candidates[item]:  # ascending, so a chain that begins with this item is not extended by it
            (length, count_live, _), chain = best_chain(size - 1 - row)
            score = (length + 1, count_live + live[row], row)
            node = size - row
            while node <= size:
                if score >= scores[node]:  # a chain of an earlier item replaces an equal one
                    scores[node], chains[node] = score, (item, row, chain)
                node += node & -node
    pairs: dict[int, int] = {}
    _, chain = best_chain(size)
    while isinstance(chain, tuple):
        item, row, chain = cast("tuple[int, int, object]", chain)
        pairs[item] = row
    return pairs


# ── tool groups ─────────────────────────────────────────────────────────────────────────────────────────────────────


def changes_groups(items: Sequence[Item], rows: Sequence[Row], alignment: Alignment) -> bool:
    """Return whether an alignment may change which calls wait for results; edits of a streamed answer do not."""
    if alignment.retracted or any(not rows[row].is_live for _, row in alignment.replaced):
        return True
    return bool(_changed_call_ids(items, rows, alignment))


def pair_calls_with_results(
    items: Sequence[Item], rows: Sequence[Row], alignment: Alignment, new_group: Callable[[], str]
) -> dict[int, str | None]:
    """Pair the calls and results of the messages an alignment edits and retracts; return the tool groups by item.

    A message of the list that joins another group must be written again: it is moved to `alignment.replaced`.
    """
    groups = {item: rows[row].group for item, row in alignment.replaced}
    changed_ids = _changed_call_ids(items, rows, alignment)
    if not changed_ids:
        return groups
    edited = {row: item for item, row in alignment.replaced}
    listed = {row: item for item, row in alignment.unchanged} | edited
    #: By call id: the group that waits for its result.
    waiting: dict[str, str | None] = dict.fromkeys(changed_ids)
    moved: list[tuple[int, int]] = []
    for index, row, message in _list_active(items, rows, alignment):
        if changed_ids.isdisjoint((*message.calls, *message.answers, *row.calls, *row.answers)):
            continue
        group = row.group
        if row.has_content and index in listed:
            item = listed[index]
            if index in edited or not row.calls:
                group = _group_of_message(message, row, waiting, new_group)
            if group != row.group and index not in edited:
                moved.append((item, index))
            groups[item] = group
        waiting.update(dict.fromkeys(changed_ids.intersection(message.calls), group))
        if not message.calls:
            answered = [id for id in message.answers if group and waiting.get(id) == group]
            waiting.update(dict.fromkeys(answered))
    if moved:
        alignment.unchanged = [pair for pair in alignment.unchanged if pair not in moved]
        alignment.replaced = sorted([*alignment.replaced, *moved])
    return groups


def _list_active(
    items: Sequence[Item], rows: Sequence[Row], alignment: Alignment
) -> Iterator[tuple[int, Row, Row | Item]]:
    """Yield the messages that are active after an alignment: the index of the row, the row, and as it will read."""
    edited = {row: item for item, row in alignment.replaced}
    retracted = set(alignment.retracted)
    for index, row in enumerate(rows):
        if index in edited:
            yield index, row, items[edited[index]]
        elif row.is_live and index not in retracted:
            yield index, row, row


def _changed_call_ids(items: Sequence[Item], rows: Sequence[Row], alignment: Alignment) -> set[str]:
    """Return the ids of calls that are made or answered by others than before."""
    changed: set[str] = set()
    for item, row in alignment.replaced:
        before, after = rows[row], items[item]
        if not before.is_live or (before.calls, before.answers) != (after.calls, after.answers):
            changed.update(before.calls, before.answers, after.calls, after.answers)
    for row in alignment.retracted:
        changed.update(rows[row].calls, rows[row].answers)
    return changed


def _group_of_message(
    message: Row | Item, row: Row, waiting: dict[str, str | None], new_group: Callable[[], str]
) -> str | None:
    """Return the tool group of a message that is aligned with a stored row; None if it belongs to no tool call.

    A message with calls keeps the group of its row while it makes one of that row's calls. An answer joins the group of
    the call it answers; `waiting` maps the calls before it to their groups.
    """
    if message.calls:
        keeps_call = not set(message.calls).isdisjoint(row.calls)
        return (row.group if keeps_call else None) or new_group()
    for call_id in message.answers:
        if waiting.get(call_id) is not None:
            return waiting[call_id]
    return None
