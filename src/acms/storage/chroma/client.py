"""A client of Chroma with a time limit: blocking calls run in threads; after a failure none is tried for a while."""

from __future__ import annotations

import asyncio
import logging
import threading
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import numpy as np

from acms.errors import ACMSError, ConfigurationError, MissingExtraError, VectorsUnavailableError
from acms.observability.logging import log_event
from acms.runtime.loops import PerLoop

READ = 1_000
"""Rows of one call that reads or deletes."""
LOCAL_OPEN_TIMEOUT = 30.0
"""Seconds that loading the vendor's package may take, and opening a folder: both read much from a disk."""

T = TypeVar("T")


class FoundVector(NamedTuple):
    """A vector that a search found: the id of its entry, and its bytes."""

    entry: str
    data: bytes


class Chroma:
    """The collections of one name in one Chroma."""

    def __init__(
        self,
        client: Any,
        *,
        path: str | Path | None,
        url: str | None,
        collection: str,
        timeout: float,
        backoff: float,
    ) -> None:
        if sum(option is not None for option in (client, path, url)) != 1:
            raise ConfigurationError("give a client, a path or a url", options=("path='vectors'",))
        if url is not None and urlsplit(url).scheme not in ("http", "https"):
            raise ConfigurationError(f"{url!r} is not the address of a server", options=("http://host:8000",))
        if client is None and not _is_chromadb_installed():
            raise MissingExtraError("chroma", "chromadb")
        self._prefix = f"{collection}-"
        self._timeout = timeout
        self._backoff = backoff
        self._client_factory = None if client is not None else partial(_create_client, path, url, timeout)
        self._open_timeout = LOCAL_OPEN_TIMEOUT if url is None else timeout
        self._client: Any = client
        self._opening_locks: PerLoop[asyncio.Lock] = PerLoop(asyncio.Lock)
        # Four calls at a time: a call that hangs holds its thread and its permit until it ends.
        self._permits: PerLoop[asyncio.Semaphore] = PerLoop(lambda: asyncio.Semaphore(4))
        self._not_before = float("-inf")
        self._collections: dict[str, Any] = {}

    def name(self, space: str, dimension: int) -> str:
        """Return the collection name of a space: a hash, as space names may hold characters Chroma does not allow."""
        digest = blake2b(space.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
        return f"{self._prefix}{digest}-{dimension}"

    async def names(self) -> list[str]:
        """Return the names of all collections with this prefix."""
        return await self._ask(self._names)

    async def work(self, collection: str, call: Callable[[Any], T]) -> T | None:
        """Run a call on a collection and return its result, or None if there is no such collection."""
        return await self._ask(partial(self._call_collection, collection, call, None))

    async def write(self, space: str, dimension: int, **rows: Any) -> None:
        """Write ids, embeddings and metadatas to the collection of a space, which is made when it is new."""
        call = partial(_upsert_rows, rows)
        await self._ask(partial(self._call_collection, self.name(space, dimension), call, space))

    async def close(self) -> None:
        """Close a client that was opened here; the next call opens it again."""
        client = self._client
        if self._client_factory is None or client is None:
            return
        self._client = None
        self._collections.clear()
        try:
            await self._run_in_thread(partial(_close_client, client), self._timeout)
        except Exception as error:
            log_event(logging.WARNING, "vectors_not_closed", code=code_of_error(error))

    async def _ask(self, work: Callable[[], T]) -> T:
        """Run a blocking call in a thread; open the client before if there is none.

        Any failure raises `VectorsUnavailableError`. During the backoff after it, so does every call, without a try.
        """
        loop = asyncio.get_running_loop()
        if loop.time() < self._not_before:
            raise VectorsUnavailableError
        try:
            if self._client is None and self._client_factory is not None:
                lock_of_this_loop = self._opening_locks.here()
                async with lock_of_this_loop:
                    if self._client is None:  # else another task opened it meanwhile
                        await self._run_in_thread(_load_chromadb, LOCAL_OPEN_TIMEOUT)
                        self._client = await self._run_in_thread(
                            self._client_factory, self._open_timeout, on_late_result=_close_client
                        )
            return await self._run_in_thread(work, self._timeout)
        except Exception as error:
            self._not_before = loop.time() + self._backoff
            log_event(
                logging.WARNING, "vectors_unavailable", code=code_of_error(error), seconds=self._backoff
            )
            raise VectorsUnavailableError(f"Chroma failed: {type(error).__name__}: {error}") from error

    async def _run_in_thread(
        self, work: Callable[[], T], seconds: float, *, on_late_result: Callable[[T], None] | None = None
    ) -> T:
        """Run a call in a daemon thread, so that a call that hangs does not keep the process from exiting.

        `on_late_result` receives a result that arrives after the timeout.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        permits = self._permits.here()

        def release_and_answer(answer: Callable[[], None]) -> None:
            permits.release()
            if not future.done():
                answer()

        def run() -> None:
            try:
                result = work()
            except BaseException as error:
                answer = partial(future.set_exception, error)
            else:
                answer = partial(future.set_result, result)
                has_timed_out = future.done()
                if has_timed_out and on_late_result is not None:
                    on_late_result(result)
            try:
                loop.call_soon_threadsafe(release_and_answer, answer)
            except RuntimeError:  # the loop was closed meanwhile
                return

        async with asyncio.timeout(seconds):
            await permits.acquire()
            threading.Thread(target=run, name="acms-chroma", daemon=True).start()
            return await future

    # ── in a thread ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _names(self) -> list[str]:
        """Return the names of all collections with our prefix, read page by page."""
        collections: list[str] = []
        while True:
            page = self._client.list_collections(limit=READ, offset=len(collections))
            collections += [collection.name for collection in page]
            if len(page) < READ:
                return [collection for collection in collections if collection.startswith(self._prefix)]

    def _call_collection(self, name: str, call: Callable[[Any], T], space: str | None) -> T | None:
        """Call with a collection, which is opened first and cached; None if it does not exist.

        With the name of a `space` it is created. Must run in a thread.
        """
        from chromadb.errors import NotFoundError

        collection = self._collections.get(name)
        if collection is not None:
            try:
                return call(collection)
            except NotFoundError:  # Chroma was emptied: the cached collection is gone
                self._collections.pop(name, None)
        try:
            if space is None:
                collection = self._client.get_collection(name, embedding_function=None)
            else:
                collection = self._client.get_or_create_collection(
                    name,
                    embedding_function=None,
                    configuration={"hnsw": {"space": "cosine", "ef_construction": 200, "ef_search": 200}},
                    metadata={"space": ascii(space)},
                )
            answer = call(collection)
        except NotFoundError:
            if space is not None:
                raise
            return None
        self._collections[name] = collection
        return answer


def _is_chromadb_installed() -> bool:
    """Look for the package without loading it, which takes a second or two."""
    try:
        return find_spec("chromadb") is not None
    except ImportError:
        return False


def code_of_error(error: Exception) -> str:
    """Return how a log names an error."""
    return error.code if isinstance(error, ACMSError) else type(error).__name__


# ── calls on a collection, in a thread ──────────────────────────────────────────────────────────────────────────────


def _load_chromadb() -> None:
    import chromadb

    del chromadb


def _create_client(path: str | Path | None, url: str | None, timeout: float) -> Any:
    """Create a client for a local folder, or for a server, whose calls get a timeout."""
    import chromadb
    from chromadb.config import Settings

    settings = Settings(anonymized_telemetry=False)
    if path is not None:
        return chromadb.PersistentClient(path=str(path), settings=settings)
    parts = urlsplit(str(url))
    secure = parts.scheme == "https"
    port = parts.port or (443 if secure else 8000)
    client: Any = chromadb.HttpClient(host=parts.hostname or "", port=port, ssl=secure, settings=settings)
    for session in _list_http_sessions(client):  # without a timeout they would block their thread forever
        session.timeout = timeout
    return client


def _list_http_sessions(client: Any) -> list[Any]:
    """Return the HTTP sessions of a client; a folder has none."""
    servers = [getattr(api, "_server", None) for api in (client, getattr(client, "_admin_client", None))]
    sessions = [getattr(server, "_session", None) for server in servers]
    return [session for session in sessions if session is not None]


def _close_client(client: Any) -> None:
    client.close()
    for session in _list_http_sessions(client):  # which it leaves open
        session.close()


def _upsert_rows(rows: Mapping[str, Any], collection: Any) -> None:
    collection.upsert(**rows)


def delete_rows(collection: Any, **which: Any) -> None:
    """Delete rows by `ids` or `where`."""
    collection.delete(**which)


def count_rows(collection: Any, where: Mapping[str, Any]) -> int:
    """Return how many rows there are of a kind."""
    return len(collection.get(where=where, include=[])["ids"])


def read_id_page(collection: Any, where: Mapping[str, Any], start: int) -> list[tuple[str, str]]:
    """Return (id, id of the entry) of the next `READ` rows of a kind."""
    answer = collection.get(where=where, limit=READ, offset=start, include=["metadatas"])
    return [
        (id, str(metadata["entry"])) for id, metadata in zip(answer["ids"], answer["metadatas"], strict=True)
    ]


def read_vectors(collection: Any, ids: Sequence[str], half: bool) -> list[tuple[str, bytes]]:
    """Return (id, vector) of the rows that exist."""
    answer = collection.get(ids=list(ids), include=["embeddings"] if half else ["metadatas"])
    rows = _pack_half_floats(answer["embeddings"]) if half else _decode_exact(answer["metadatas"])
    return list(zip(answer["ids"], rows, strict=True))


def query_nearest(
    collection: Any, vector: Sequence[float], size: int, where: Mapping[str, Any], half: bool
) -> list[FoundVector]:
    """Return the nearest of a kind, best first."""
    answer = collection.query(
        query_embeddings=[list(vector)], n_results=size, where=where, include=["metadatas", "embeddings"]
    )
    return _build_records(answer["metadatas"][0], answer["embeddings"][0], half)


def sample_records(collection: Any, where: Mapping[str, Any], half: bool) -> list[FoundVector]:
    """Return the first `READ` of a kind, in no order."""
    answer = collection.get(where=where, limit=READ, include=["metadatas", "embeddings"])
    return _build_records(answer["metadatas"], answer["embeddings"], half)


def _build_records(metadatas: Sequence[Mapping[str, Any]], embeddings: Any, half: bool) -> list[FoundVector]:
    rows = _pack_half_floats(embeddings) if half else _decode_exact(metadatas)
    return [FoundVector(str(metadata["entry"]), data) for metadata, data in zip(metadatas, rows, strict=True)]


def _pack_half_floats(embeddings: Any) -> list[bytes]:
    """Return vectors as 16-bit floats: Chroma changes only the last bits of 32-bit ones, below 16-bit precision."""
    return [row.tobytes() for row in np.asarray(embeddings, np.float32).astype("<f2")]


def _decode_exact(metadatas: Sequence[Mapping[str, Any]]) -> list[bytes]:
    return [b64decode(metadata["exact"]) for metadata in metadatas]
