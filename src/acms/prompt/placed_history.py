"""A history as it is read from the log, and as it is placed in a prompt with the recalled blocks among it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from acms.plan.nodes import Atom, Composed
from acms.prompt import cache_window
from acms.prompt.cache_window import CacheWindow
from acms.prompt.resolve import LogRead
from acms.recall.pipeline import Gathered


class HistoryRead(NamedTuple):
    """The part of a log that a history shows."""

    gathered: Gathered
    atoms: list[Atom]
    #: System messages, summaries and a question before the atoms, and their ids with the tokens of the text that is
    #: shown of a summary, 0 for a message.
    front: list[Atom]
    front_entries: tuple[tuple[str, int], ...]
    #: Whether the atoms are all active messages: no summary replaces any of them.
    whole: bool
    #: Labels of some of the atoms, by id.
    labels: Mapping[str, str]


class PlacedHistory(NamedTuple):
    """A history with the recalled blocks in it."""

    nodes: tuple[Atom | Composed, ...]
    #: None if nothing is stored: at a past version, or in a store that keeps no records.
    window: CacheWindow | None
    log: LogRead | None
    #: Atoms that were read and are older than the start of a window that begins.
    older: tuple[Atom, ...] = ()
    #: Messages that are shown cut, by id: tokens of the whole, and of what is shown.
    condensed: Mapping[str, tuple[int, int]] = MappingProxyType({})

    def list_cut_warnings(self) -> list[str]:
        """Return a warning for each message of the newest unit that is cut, and one if half of others is missing."""
        newest = next((node for node in reversed(self.nodes) if isinstance(node, Atom)), None)
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
