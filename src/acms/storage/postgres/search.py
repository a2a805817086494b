"""Search a namespace of a PostgreSQL database: a small one completely, a large one through its indexes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any

from acms.model import Hit, Search
from acms.storage import search
from acms.storage.postgres.database import Database, NamedQuery
from acms.storage.postgres.pool import Row
from acms.text.tokenizer import content_term

SMALL = 2_000
"""Searchable entries of a namespace up to which all are compared, as other stores do."""
EXACT = 50_000
"""Vectors of a namespace up to which the server compares them one by one, which misses none."""
COUNTED = 20_000
"""Places of one word that are counted: a word in more of them hardly narrows a search."""
MOST_NUMBERS = 16_000
"""Numbers of a vector that can be looked up."""

_WORD = re.compile(r"\w+")


class Searcher:
    """Searches the namespaces of a tenant."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def search(self, query: Search) -> list[Hit]:
        """Search facts, summaries and marked messages across the live contexts of a namespace."""
        ((count,),) = await self._db.query(
            "count_searchable", {"namespace": query.namespace, "limit": max(SMALL, COUNTED) + 1}
        )
        if count <= SMALL:
            return await self._search_all(query)
        return await self._search_selected(query, count)

    async def _search_all(self, query: Search) -> list[Hit]:
        """Compare every searchable entry."""
        namespace = {"namespace": query.namespace}
        queries: list[NamedQuery] = [("searchable", namespace)]
        if query.vector is not None and query.space is not None:
            queries.append(("searchable_vectors", {**namespace, "space": query.space}))
        rows, *vectors = await self._db.query_all(*queries)
        return await asyncio.to_thread(search.rank_hits, query, rows, vectors[0] if vectors else ())

    async def _search_selected(self, query: Search, count: int) -> list[Hit]:
        """Rank only the entries with the rarest query words and those nearest to the query vector.

        `count` is the number of searchable entries, over which the rarity of a word is computed.
        """
        limit = max(500, 5 * query.limit)  # entries whose score is computed
        locations, entries_with_term = await self._find_words(query, limit)
        nearest, vectors = await self._find_nearest(query, limit)
        locations |= nearest
        if not locations:
            return []
        contexts, versions = zip(*sorted(locations), strict=True)
        places = {"namespace": query.namespace, "contexts": list(contexts), "versions": list(versions)}
        queries: list[NamedQuery] = [("searchable_at", places)]
        if query.vector is not None and query.space is not None and not vectors:
            queries.append(("searchable_vectors_at", {**places, "space": query.space}))
        rows, *vectors_at = await self._db.query_all(*queries)
        statistics = search.CorpusStatistics(total=count, having=entries_with_term)
        candidates = vectors_at[0] if vectors_at else vectors
        return await asyncio.to_thread(search.rank_hits, query, rows, candidates, statistics)

    async def _find_words(self, query: Search, limit: int) -> tuple[set[tuple[str, int]], dict[int, int]]:
        """Return the locations (context, version) of entries with the rarest query words, and the entries per term."""
        words = _select_search_words(query.terms)
        if not words:
            return set(), {}
        values = {"namespace": query.namespace, "limit": limit, "words": words, "counted": COUNTED}
        rows = await self._db.query("places", values)
        entries_with_term: dict[int, int] = {}
        if rows:
            for word, number in zip(words, rows[0][2], strict=True):
                term = content_term(word)
                # Several word forms share a term.
                entries_with_term[term] = max(number, entries_with_term.get(term, 0))
        return {(context, version) for context, version, _ in rows}, entries_with_term

    async def _find_nearest(self, query: Search, limit: int) -> tuple[set[tuple[str, int]], Sequence[Row]]:
        """Return the locations of the nearest vectors, and the rows of all vectors if they had to be read.

        They are read where no index covers the space, and compared here.
        """
        if query.vector is None or query.space is None:
            return set(), ()
        direction = search.scale_vector(query.vector)
        if direction is None:
            return set(), ()
        values: dict[str, Any] = {"namespace": query.namespace, "space": query.space}
        is_indexed = self._db.pool.vectors and search.is_named(query.space, len(query.vector))
        if is_indexed and len(direction) <= MOST_NUMBERS:
            values |= {"limit": limit, "vector": direction, "exact": EXACT}
            return {(context, version) for context, version in await self._db.query("nearest", values)}, ()
        vectors = await self._db.query("searchable_vectors", values)
        return await asyncio.to_thread(search.select_nearest, query, vectors, limit), vectors


def _select_search_words(terms: Sequence[str]) -> list[str]:
    """Return the words to look up, as the server divides a text: the content words, or all words if there are none."""
    distinct = dict.fromkeys(_WORD.findall(" ".join(terms).lower()))
    words = [word for word in distinct if len(word) <= 255]  # longer ones are not indexed
    content_words = [word for word in words if content_term(word)]
    return (content_words or words)[:32]  # the others only count in the entries that these find
