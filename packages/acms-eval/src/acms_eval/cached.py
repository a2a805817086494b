"""Store what models return in a file: a run is repeated in seconds, and an interrupted one continues."""

from __future__ import annotations

import json
import sqlite3
from array import array
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from acms.config import RetryConfig
from acms.errors import ValidationError
from acms.ports import Embedder
from acms.providers.http import Endpoint

__all__ = ["CachedEmbedder", "CachedEndpoint"]

T = TypeVar("T")

BATCH = 64
"""Texts of one call to the embedder inside; the vectors of a batch are stored before the next one starts."""


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
        self._file = _open_table(path, "vector")

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Return one vector for each text, in order; new texts are embedded and stored."""
        return await self._look_up(texts, "", self.inner.embed)

    async def embed_query(self, text: str) -> list[float]:
        """Return the vector of a question, by the model's own `embed_query` if it has one."""
        embed_query = getattr(self.inner, "embed_query", None)
        if embed_query is None:
            return (await self.embed([text]))[0]

        async def embed_queries(texts: Sequence[str]) -> list[Any]:
            return [await embed_query(text) for text in texts]

        return (await self._look_up([text], "query\n", embed_queries))[0]

    def reads(self, text: str) -> bool:
        """Return whether the model reads the language of a text."""
        reads = getattr(self.inner, "reads", None)
        return reads is None or reads(text)

    async def _look_up(
        self,
        texts: Sequence[str],
        prefix: str,
        embed: Callable[[list[str]], Awaitable[Iterable[Any]]],
    ) -> list[list[float]]:
        keys = [sha256(f"{self.model}\n{self.dimension}\n{prefix}{text}".encode()).digest() for text in texts]
        vectors_by_key: dict[bytes, list[float]] = {}
        for key in dict.fromkeys(keys):
            row = self._file.execute("SELECT value FROM vector WHERE key = ?", (key,)).fetchone()
            if row is not None:
                vectors_by_key[key] = array("f", row[0]).tolist()
        new_texts = {key: text for key, text in zip(keys, texts, strict=True) if key not in vectors_by_key}
        items = list(new_texts.items())
        for start in range(0, len(items), BATCH):
            batch = items[start : start + BATCH]
            vectors = await embed([text for _, text in batch])
            rows = [
                (key, array("f", map(float, vector))) for (key, _), vector in zip(batch, vectors, strict=True)
            ]
            self._file.execute("BEGIN")
            self._file.executemany(
                "INSERT OR IGNORE INTO vector VALUES (?, ?)", [(key, row.tobytes()) for key, row in rows]
            )
            self._file.execute("COMMIT")
            self.embedded += len(rows)
            vectors_by_key.update((key, row.tolist()) for key, row in rows)
        return [vectors_by_key[key] for key in keys]

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    async def __aenter__(self) -> CachedEmbedder:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class CachedEndpoint(Endpoint):
    """A model server whose answers are kept by path and body, the model with it: the same question is sent once.

    `settings` are sent with every call, such as `{"temperature": 0}`. An answer is kept when its reader accepts it;
    failures are not kept. `aclose`, or `async with`, closes the file too.
    """

    def __init__(
        self,
        base_url: str,
        path: str | Path | None = None,
        *,
        settings: Mapping[str, Any] | None = None,
        api_key: str | None = None,
        timeout: float = 600.0,
        retry: RetryConfig | None = None,
    ) -> None:
        super().__init__(base_url, api_key=api_key, timeout=timeout, retry=retry)
        self._settings = dict(settings or {})
        self._file = _open_table(path, "answer")
        #: Questions that were sent to the server.
        self.sent = 0

    async def post(self, path: str, body: Mapping[str, Any], read: Callable[[dict[str, Any]], T]) -> T:
        """Return what `read` makes of the stored answer, or of the server's, which is then stored."""
        full_body = {**self._settings, **body}
        question = json.dumps([path, full_body], sort_keys=True)
        key = sha256(question.encode()).digest()
        row = self._file.execute("SELECT value FROM answer WHERE key = ?", (key,)).fetchone()
        if row is not None:
            return read(json.loads(row[0]))
        accepted: list[dict[str, Any]] = []

        def read_answer(answer: dict[str, Any]) -> T:
            result = read(answer)
            accepted.append(answer)
            return result

        result = await super().post(path, full_body, read_answer)
        self.sent += 1
        self._file.execute("INSERT OR REPLACE INTO answer VALUES (?, ?)", (key, json.dumps(accepted[-1])))
        return result

    async def aclose(self) -> None:
        """Close the connections and the file."""
        await super().aclose()
        self._file.close()


def _open_table(path: str | Path | None, name: str) -> sqlite3.Connection:
    """Open a file with a table of values by key, or one in memory."""
    try:
        if path is not None:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        file = sqlite3.connect(path or ":memory:", isolation_level=None)
        file.execute(f"CREATE TABLE IF NOT EXISTS {name} (key BLOB PRIMARY KEY, value BLOB) WITHOUT ROWID")
    except (OSError, sqlite3.Error) as error:
        raise ValidationError(f"is no file of {name}s: {error}", field=str(path)) from error
    return file
