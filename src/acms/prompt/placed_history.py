"""A history as it is read from the log, and as it is placed in a prompt with the recalled blocks among it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from acms.model import Entry, Role
from acms.plan.nodes import ComposedMessage, MessageGroup, Omission
from acms.prompt import cache_window
from acms.prompt.cache_window import CacheWindow
from acms.prompt.resolve import LogRead
from acms.recall.pipeline import LogSpan


class HistoryRead(NamedTuple):
    """The part of a log that a history shows."""

    gathered: LogSpan
    groups: list[MessageGroup]
    #: System messages, summaries and a question before the groups, and their ids with the tokens of the text that is
    #: shown of a summary, 0 for a message.
    front: list[MessageGroup]
    front_entries: tuple[tuple[str, int], ...]
    #: Whether the groups are all active messages: no summary replaces any of them.
    whole: bool
    #: Labels of some of the groups, by id.
    labels: Mapping[str, str]


class PlacedHistory(NamedTuple):
    """A history with the recalled blocks in it."""

    nodes: tuple[MessageGroup | ComposedMessage, ...]
    #: None if nothing is stored: at a past version, or in a store that keeps no records.
    window: CacheWindow | None
    log: LogRead | None
    #: Groups that were read and are older than the start of a window that begins.
    older: tuple[MessageGroup, ...] = ()
    #: Messages that are shown cut, by id: tokens of the whole, and of what is shown.
    condensed: Mapping[str, tuple[int, int]] = MappingProxyType({})

    def list_cut_warnings(self) -> list[str]:
        """Return a warning for each message of the newest unit that is cut, and one if half of others is missing."""
        newest = next((node for node in reversed(self.nodes) if isinstance(node, MessageGroup)), None)
        newest_ids = set[str]() if newest is None else cache_window.visible_ids([newest])
        warnings = [
            f"newest tool call: {shown:,} of {whole:,} tokens of {id} are shown"
            for id, (whole, shown) in self.condensed.items()
            if id in newest_ids
        ]
        older = [tokens for id, tokens in self.condensed.items() if id not in newest_ids]
        whole, shown = sum(tokens[0] for tokens in older), sum(tokens[1] for tokens in older)
        if shown < whole / 2:
            warnings.append(
                f"older messages are cut: {shown:,} of {whole:,} tokens of {len(older):,} are shown"
            )
        return warnings

    def list_older(self, path: str) -> list[Omission]:
        """Return the ledger's records of the messages that are older than the start of the history."""
        reason = "older than the newest messages, with which the history begins"
        omissions: list[Omission] = []
        for group in self.older:
            ids = tuple([id for message in group.messages for id in message.sources])
            tokens = sum([message.tokens or 0 for message in group.messages])
            omissions.append(Omission(ids, path, "window", reason, tokens))
        return omissions


def label_in_front(entry: Entry, gathered: LogSpan) -> str:
    """Return the label of an entry in front of a history; none for a question, which waits for its answer."""
    return "" if entry.role is Role.USER else gathered.labels.label_of_entry(entry)
