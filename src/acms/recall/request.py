"""The request of a recall, the objects it reads with, and a ranked log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, TypeAlias

from acms.log.active_entries import NO_DEMOTIONS, Demotions
from acms.log.validity import UNLABELLED, Labels, Period
from acms.ports import Frame, StorageBackend, TokenCounter
from acms.privacy.redactor import NO_REDACTION, Redactor

if TYPE_CHECKING:  # they bring numpy: loaded by the first recall
    from acms.recall.corpus import Corpus
    from acms.recall.embeddings import Embedding
    from acms.recall.filters import Where
    from acms.recall.index_cache import Indexes
    from acms.recall.namespace import Namespaces
    from acms.recall.ranking import Ranking
    from acms.recall.reranker_calls import Reranking


def parse_filter(mapping: object) -> Where | None:
    """Return a filter as callers write it, see `Where.parse`."""
    from acms.recall.filters import Where

    return Where.parse(mapping)


Markers: TypeAlias = tuple[tuple[int, str], ...]
"""Markers by the terms of their own names and patterns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recall:
    """The request of a recall."""

    query: str
    budget: int
    include_current: bool = True
    min_relevance: float = 0.0
    exclude: frozenset[str] = frozenset()
    floor: float = 0.4
    weights: Mapping[str, float]
    markers: Markers = ()
    #: Also search the other sessions of this namespace.
    namespace: str | None = None
    #: Share of the budget that external text may take while other text that answers is left out.
    external_share: float = 0.25
    #: Show only what this lets through; `home` is the namespace in which it names sessions.
    where: Where | None = None
    home: str = ""
    #: Items, at most.
    limit: int | None = None
    #: Also ask the profile of this namespace.
    profile: str | None = None
    #: Show outdated statements of messages and ended facts too.
    include_superseded: bool = False
    #: Time of the recall: entries that have ended by then are not shown as current. None: when the log last grew.
    moment: datetime | None = None
    #: Show the current episode only as far as it is relevant.
    only_relevant: bool = False
    #: Best candidates of the past that the reranker is asked about; 0 without one.
    rerank: int = 0
    #: Ask other sessions of the namespace only if they say something about the query, see `acms.recall.topic`.
    only_on_topic: bool = False
    #: Tokens up to which other sessions of the namespace are shown whole, including messages that do not answer.
    others_whole: int = 0
    #: Tokens for words of the user that are shown before all answers, at most half of the budget: see
    #: `acms.recall.user_words`.
    user_words: int = 0


@dataclass(frozen=True, slots=True)
class Reader:
    """The objects that reads need: the store, the indexes over it, and the token counter."""

    storage: StorageBackend
    indexes: Indexes
    embedding: Embedding | None
    counter: TokenCounter
    frame: Frame
    reranking: Reranking | None = None
    #: The redaction applied to everything read.
    redactor: Redactor = NO_REDACTION
    #: The indexes of namespaces; None where only single logs are read.
    namespaces: Namespaces | None = None


@dataclass(frozen=True, slots=True)
class RankedLog:
    """A log at a version, ranked for a query."""

    context: str
    version: int
    corpus: Corpus
    ranking: Ranking
    #: Messages with outdated statements.
    stale: Demotions = NO_DEMOTIONS
    #: Number of its entries, at its head, that are not messages.
    non_messages: int = 0
    #: The validity periods of its active facts, and of messages and summaries with a label, by version.
    times: Mapping[int, Period] = field(default_factory=dict[int, Period])
    warnings: tuple[str, ...] = ()

    def labels(self, moment: datetime | None) -> Labels:
        """Return the labels of its messages and summaries at a moment; None means the time of the last write."""
        return Labels(self.times, moment or self.corpus.newest_time) if self.times else UNLABELLED
