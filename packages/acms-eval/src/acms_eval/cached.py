"""An embedder that keeps its vectors in a file, so that a run is repeated in seconds and all systems see the same."""

from __future__ import annotations

import sqlite3
from array import array
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from types import TracebackType

from acms.errors import ValidationError
from acms.ports import Embedder

__all__ = ["CachedEmbedder"]

BATCH = 64
"""Texts of one call to the embedder inside; what a batch brought is kept before the next one starts."""


class CachedEmbedder:
    """An embedder that looks up the vectors of texts it has seen: in this run or, with a file, in an earlier one.

    Vectors are kept by model, dimension and text, so one file serves several models. `close`, or `async with`, closes
    the file.
    """

    def __init__(self, inner: Embedder, path: str | Path | None = None) -> None:
        self.inner = inner
        #: Numbers in a vector.
        self.dimension: int = inner.dimension
        #: The model of the embedder inside.
        self.model: str = getattr(inner, "model", None) or type(inner).__name__
        #: Texts that were not known and had to be embedded.
        self.embedded = 0
        try:
            if path is not None:
                Path(path).parent.mkdir(parents=True, exist_ok=True)
            self._file = sqlite3.connect(path or ":memory:", isolation_level=None)
            self._file.execute(
                "CREATE TABLE IF NOT EXISTS vector (key BLOB PRIMARY KEY, value BLOB) WITHOUT ROWID"
            )
        except (OSError, sqlite3.Error) as error:
            raise ValidationError(f"is no file of vectors: {error}", field=str(path)) from error

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Return one vector for each text, in order; what is new is embedded and kept."""
        keys = [sha256(f"{self.model}\n{self.dimension}\n{text}".encode()).digest() for text in texts]
        known: dict[bytes, list[float]] = {}
        for key in dict.fromkeys(keys):
            row = self._file.execute("SELECT value FROM vector WHERE key = ?", (key,)).fetchone()
            if row is not None:
                known[key] = array("f", row[0]).tolist()
        missing = list({key: text for key, text in zip(keys, texts, strict=True) if key not in known}.items())
        for start in range(0, len(missing), BATCH):
            part = missing[start : start + BATCH]
            vectors = await self.inner.embed([text for _, text in part])
            rows = [
                (key, array("f", map(float, vector))) for (key, _), vector in zip(part, vectors, strict=True)
            ]
            self._file.execute("BEGIN")
            self._file.executemany(
                "INSERT OR IGNORE INTO vector VALUES (?, ?)", [(key, row.tobytes()) for key, row in rows]
            )
            self._file.execute("COMMIT")
            self.embedded += len(rows)
            known.update((key, row.tolist()) for key, row in rows)
        return [known[key] for key in keys]

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    async def __aenter__(self) -> CachedEmbedder:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
