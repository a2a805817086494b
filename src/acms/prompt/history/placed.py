"""A history as it is read from the log, and as it is placed in a prompt.

The passages recalled for a turn form a *block*, which stands among the messages of the history. Some entries stand *in
front*, before all groups: system messages, summaries, and a question that is older than the messages shown.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import ceil
from types import MappingProxyType
from typing import NamedTuple

from acms.errors import FitError
from acms.log.active_entries import EntryGroup
from acms.model import Context, Entry, Role, State
from acms.plan import turns
from acms.plan.nodes import ComposedMessage, MessageGroup, Node, Omission, Scope
from acms.prompt import excerpts
from acms.prompt.history import cache_window
from acms.prompt.history.cache_window import CacheWindow
from acms.prompt.resolve import LogRead
from acms.prompt.steps import Readable
from acms.recall.window import LogSpan, load_instructions

INSTRUCTIONS_SHARE = 0.9
"""Share of the budget that the system messages of a log may take: the newest message needs the rest."""


class HistoryRead(NamedTuple):
    """The part of a log that a history shows."""

    span: LogSpan
    groups: list[MessageGroup]
    #: The groups in front. The ids of their entries follow, each with the tokens of the text shown: a summary has texts
    #: of several lengths. A message has 0, or the tokens that it was cut to.
    front: list[MessageGroup]
    front_entries: tuple[tuple[str, int], ...]
    #: Whether the groups are all active messages: no summary replaces any of them.
    is_complete: bool
    #: Labels of some of the groups, by id.
    labels: Mapping[str, str]

    @property
    def front_ids(self) -> frozenset[str]:
        """Ids of the entries in front."""
        return frozenset(id for id, _ in self.front_entries)

    def collect_labels(self, entries: Mapping[str, Entry]) -> dict[str, str]:
        """Return the labels of the entries shown, by id, without empty ones; `entries` has those in front."""
        labels = {id: self.labels.get(id, "") for id in cache_window.visible_ids(self.groups)}
        for id, _ in self.front_entries:
            labels[id] = label_in_front(entries[id], self.span)
        return {id: label for id, label in labels.items() if label}


class PlacedHistory(NamedTuple):
    """A history with the recalled blocks in it."""

    nodes: tuple[MessageGroup | ComposedMessage, ...]
    #: None if nothing is stored: at a past version, or in a store that keeps no records.
    window: CacheWindow | None
    log: LogRead | None
    #: Groups that were read and are older than the start of a window that begins.
    older: tuple[MessageGroup, ...] = ()
    #: Messages that are shown cut, by id: tokens of the whole, and of what is shown.
    cut_tokens: Mapping[str, tuple[int, int]] = MappingProxyType({})
    #: Ids of the entries in front.
    front_ids: frozenset[str] = frozenset()

    def wrap_blocks(self) -> tuple[Node, ...]:
        """Return the nodes with each recalled block in a scope of its own, which names it in the ledger."""
        number = 0
        nodes: list[Node] = []
        for node in self.nodes:
            if isinstance(node, ComposedMessage):
                number += 1
                node = Scope(id="recall" if number == 1 else f"recall-{number}", children=(node,))
            nodes.append(node)
        return tuple(nodes)

    def keep_cuts(self, shown_ids: Collection[str]) -> PlacedHistory:
        """Return the history with only the cuts of messages that are shown: the fit may leave out others."""
        cut_tokens = {id: tokens for id, tokens in self.cut_tokens.items() if id in shown_ids}
        return self._replace(cut_tokens=cut_tokens)

    def list_cut_warnings(self) -> list[str]:
        """Return warnings: for a cut question, each cut message of the newest unit, and others if half is missing."""
        newest_ids = self._find_newest_ids()
        newest_name = "newest tool call" if len(newest_ids) > 1 else "newest message"
        warnings: list[str] = []
        older_counts: list[tuple[int, int]] = []
        for id, (whole_tokens, shown_tokens) in self.cut_tokens.items():
            if id in newest_ids or id in self.front_ids:
                name = newest_name if id in newest_ids else "question"
                warnings.append(f"{name}: {shown_tokens:,} of {whole_tokens:,} tokens of {id} are shown")
            else:
                older_counts.append((whole_tokens, shown_tokens))
        whole_tokens = sum(whole for whole, _ in older_counts)
        shown_tokens = sum(shown for _, shown in older_counts)
        if shown_tokens < whole_tokens / 2:
            warnings.append(
                f"older messages are cut: {shown_tokens:,} of {whole_tokens:,} tokens of "
                f"{len(older_counts):,} are shown"
            )
        return warnings

    def could_show_more(self, free_tokens: int) -> bool:
        """Return whether the newest unit is cut, and twice as much of it would fit with some free tokens."""
        newest_ids = self._find_newest_ids()
        shown_tokens = sum(shown for id, (_, shown) in self.cut_tokens.items() if id in newest_ids)
        return 0 < shown_tokens <= free_tokens

    def _find_newest_ids(self) -> Collection[str]:
        """Return the ids of the entries that the newest group shows."""
        groups = [node for node in self.nodes if isinstance(node, MessageGroup)]
        return groups[-1].sources if groups else ()

    def list_older(self, path: str) -> list[Omission]:
        """Return the ledger's records of the messages that are older than the start of the history."""
        reason = "older than the first message of the history"
        omissions: list[Omission] = []
        for group in self.older:
            tokens = sum([message.tokens or 0 for message in group.messages])
            omissions.append(Omission(group.sources, path, "window", reason, tokens))
        return omissions


def label_in_front(entry: Entry, span: LogSpan) -> str:
    """Return the label of an entry in front of a history; none for a question, which waits for its answer."""
    return "" if entry.role is Role.USER else span.labels.label_of_entry(entry)


def find_missing_question(history: HistoryRead, older: Sequence[MessageGroup]) -> MessageGroup | None:
    """Return the question that the first messages of a history answer if it is left out, else None.

    `older` are the groups before those of the history. Without the question a request would begin with an answer.
    """
    groups = history.groups
    if not groups or turns.is_question(groups[0]) or cache_window.question_of(history.front):
        return None
    return next((group for group in reversed(older) if turns.is_question(group)), None)


def check_instructions_fit(tokens: int, budget: int) -> None:
    """Raise `FitError` if the system messages of a log leave no room in its budget for the newest message."""
    max_tokens = int(budget * INSTRUCTIONS_SHARE)
    if tokens > max_tokens:
        raise FitError(
            "the leading system messages of the log and the entries of `first` take "
            f"{tokens} tokens; the rest of the prompt leaves {max_tokens} for them",
            budget=max_tokens,
            required=tokens,
            where="prompt/history",
            options=(
                f"raise the budget by {ceil((tokens - max_tokens) / INSTRUCTIONS_SHARE)}",
                "retract(id) makes a stored one inactive",
            ),
        )


async def load_front_entries(
    session: Readable, span: LogSpan, first: Sequence[str], context: Context | None
) -> list[EntryGroup[Entry]]:
    """Return the system messages that a log begins with, and the messages that the caller wants first.

    `first` are ids, and `context` is the log. A message counts if it is active and no part of a tool call.
    """
    units = list(await load_instructions(session.storage, session.redactor, span))
    instruction_ids = {entry.id for unit in units for entry in unit.entries}
    own_logs = excerpts.find_own_logs(context)
    entries: list[Entry] = []
    for entry in await session.storage.get([id for id in first if id not in instruction_ids]):
        if entry is None or entry.group is not None or entry.state is not State.LIVE:
            continue
        if entry.context in own_logs and span.replacements.replaced_by(entry.version) is None:
            entries.append(entry)
    return units + [EntryGroup((entry,)) for entry in session.redactor.redact_entries(entries)]
