"""Search a namespace of a PostgreSQL database: a small one completely, a large one through its indexes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any

from acms.model import Hit, Search
from acms.storage import search
from acms.storage.postgres.database import Database
from acms.text.tokenizer import content_term

SMALL = 2_000
"""Searchable entries of a namespace up to which all are compared, as other stores do."""
CANDIDATES = 500
"""Entries that are looked at closely in a larger one, at least; and five times as many as are asked for."""
EXACT = 50_000
"""Vectors of a namespace up to which the server compares them one by one, which misses none."""
COUNTED = 20_000
"""Places of one word that are counted: a word in more of them tells little."""
WORDS = 32
"""Words of a query that are looked up in a large namespace; the others only count in what those find."""
LONGEST = 255
"""Characters of a word that is looked up."""
MOST_NUMBERS = 16_000
"""Numbers of a vector that can be looked up."""

_WORD = re.compile(r"\w+")


class Searcher:
    """Searches the namespaces of a tenant."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def search(self, query: Search) -> list[Hit]:
        """Search facts, summaries and marked messages across the live contexts of a namespace."""
        ((count,),) = await self._db.one(
            "count_searchable", {"namespace": query.namespace, "limit": max(SMALL, COUNTED) + 1}
        )
        if count <= SMALL:
            return await self._all(query)
        return await self._some(query, count)

    async def _all(self, query: Search) -> list[Hit]:
        """Compare every searchable entry."""
        asked: list[tuple[str, dict[str, Any]]] = [("searchable", {"namespace": query.namespace})]
        if query.vector is not None and query.space is not None:
            asked.append(("searchable_vectors", {"namespace": query.namespace, "space": query.space}))
        rows, *vectors = await self._db.ask(*asked)
        return await asyncio.to_thread(search.rank_hits, query, rows, vectors[0] if vectors else ())

    async def _some(self, query: Search, count: int) -> list[Hit]:
        """Rank the entries with the rarest query words and those nearest to the query vector."""
        limit = max(CANDIDATES, 5 * query.limit)
        base = {"namespace": query.namespace, "limit": limit}
        words = _select_search_words(query.terms)
        places: set[tuple[str, int]] = set()
        having: dict[int, int] = {}
        if words:
            found = await self._db.one("places", {**base, "words": words, "counted": COUNTED})
            places |= {(context, version) for context, version, _ in found}
            for word, number in zip(words, found[0][2] if found else (), strict=bool(found)):
                having[content_term(word)] = max(number, having.get(content_term(word), 0))
        vectors: Sequence[Sequence[Any]] = ()
        if query.vector is not None and query.space is not None:
            direction = search.scale_vector(query.vector)
            indexed = self._db.pool.vectors and search.is_named(query.space, len(query.vector))
            if direction is None:
                pass
            elif indexed and len(direction) <= MOST_NUMBERS:
                values = {**base, "space": query.space, "vector": direction, "exact": EXACT}
                places |= {(context, version) for context, version in await self._db.one("nearest", values)}
            else:
                values = {"namespace": query.namespace, "space": query.space}
                vectors = await self._db.one("searchable_vectors", values)
                places |= await asyncio.to_thread(search.select_nearest, query, vectors, limit)
        if not places:
            return []
        contexts, versions = zip(*sorted(places), strict=True)
        at = {"namespace": query.namespace, "contexts": list(contexts), "versions": list(versions)}
        asked: list[tuple[str, dict[str, Any]]] = [("searchable_at", at)]
        if query.vector is not None and query.space is not None and not vectors:
            asked.append(("searchable_vectors_at", {**at, "space": query.space}))
        rows, *read = await self._db.ask(*asked)
        known = search.Known(total=count, having=having)
        return await asyncio.to_thread(search.rank_hits, query, rows, read[0] if read else vectors, known)


def _select_search_words(terms: Sequence[str]) -> list[str]:
    """Return the words to look up, as the server divides a text: those that tell something, or all when none does."""
    said = [word for word in dict.fromkeys(_WORD.findall(" ".join(terms).lower())) if len(word) <= LONGEST]
    return ([word for word in said if content_term(word)] or said)[:WORDS]
