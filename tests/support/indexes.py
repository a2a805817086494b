"""Indexes over logs made by hand, built in every way a living index may have come about."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from acms import Entry, State
from acms.log.active_entries import Replacements
from acms.recall.corpus import Corpus
from acms.recall.index import NO_POSITIONS, Segment, Snapshot
from acms.recall.query import Query, parse_query
from acms.recall.ranking import MIN_CANDIDATES, Ranking
from acms.text import index_record
from acms.text.markers import WEIGHTS
from tests.support.logs import CONTEXT, NONCE

Row = tuple[int, int, bytes]
"""Version, part and float16 bytes of a vector."""


def make_query(
    field: Corpus, query: str, space: str | None = None, vector: NDArray[np.float32] | None = None
) -> Query:
    """A question as the pipeline asks it."""
    return parse_query(query, field.speakers, space=space, vector=vector, marker_weights=WEIGHTS)


def rank_corpus(
    field: Corpus,
    query: str,
    size: int = MIN_CANDIDATES,
    *,
    space: str | None = None,
    vector: NDArray[np.float32] | None = None,
    query_position: int = -1,
) -> Ranking:
    """A field, ranked for a question, which may be the last entry itself."""
    asking = NO_POSITIONS if query_position < 0 else np.array([query_position])
    question = make_query(field, query, space, vector)
    return Ranking(field, question, size, asking_positions=asking, query_position=query_position)


def index_record_of(entry: Entry) -> bytes | None:
    """The index record of an entry; None for one whose content is gone."""
    return index_record.encode_index_record(entry, NONCE) if entry.state is State.LIVE else None


def index_records_of(entries: Iterable[Entry]) -> list[bytes | None]:
    return [index_record_of(entry) for entry in entries]


def grow_segment(found: Sequence[bytes | None], base: int = 0, step: int = 1) -> Segment:
    """A segment that grew a few records at a time."""
    segment = Segment(base)
    for start in range(0, len(found), step):
        segment.extend(found[start : start + step])
    return segment


def build_segment(found: Sequence[bytes | None], base: int = 0) -> Segment:
    """A segment that was made of all records at once."""
    segment = Segment(base)
    segment.extend(found)
    return segment


def snapshot_of(*segments: Segment) -> Snapshot:
    """Everything in segments that follow each other, as one lineage."""
    return Snapshot([(CONTEXT, segment, segment.count) for segment in segments])


def split_into_segments(found: Sequence[bytes | None], cuts: Collection[int]) -> list[Segment]:
    """One segment for each fork: cut after these versions."""
    ends = sorted({*(cut for cut in cuts if 0 < cut < len(found)), len(found)})
    starts = [0, *ends[:-1]]
    return [build_segment(found[start:end], start) for start, end in zip(starts, ends, strict=True)]


def replacements_of(entries: Iterable[Entry]) -> Replacements:
    return Replacements(entry for entry in entries if entry.replaces)


def field_of(entries: Sequence[Entry], vectors: Iterable[Row] = (), space: str = "s") -> Corpus:
    """The field of some entries, in the simplest way."""
    segment = build_segment(index_records_of(entries))
    segment.add_vectors(space, vectors)
    return Corpus(snapshot_of(segment), replacements_of(entries))


def pack_half_floats(vector: NDArray[np.float64] | NDArray[np.float32] | Sequence[float]) -> bytes:
    return np.asarray(vector, np.float32).astype("<f2").tobytes()


def unit_vector(vector: NDArray[np.float64] | NDArray[np.float32] | Sequence[float]) -> NDArray[np.float32]:
    """The unit vector in a direction, as an embedder gives it."""
    found = np.asarray(vector, np.float32)
    return np.asarray(found / np.sqrt(found @ found), np.float32)
