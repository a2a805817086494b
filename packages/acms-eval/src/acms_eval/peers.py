"""The systems that are measured: ACMS, the baselines, and other packages where they are installed.

Each is given as a function that opens a new one, which was told nothing yet.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from importlib import import_module
from typing import Any, TypeAlias
from uuid import uuid4

from acms.config import ACMSConfig
from acms.errors import ConfigurationError, ProviderError, ValidationError
from acms.ports import Embedder, Reflector, TokenCounter
from acms.providers import OfflineReflector
from acms.session import ACMS
from acms.storage import open_storage
from acms_eval.baselines import MostRecent, PlainBM25, PlainVectors, ReciprocalRankFusion, WindowBM25
from acms_eval.nouns import Recalled, Said, System
from acms_eval.running import Remembering, Requesting

__all__ = ["ChromaVectors", "GleanrSession", "OpenSystem", "open_acms", "open_gleanr", "systems"]

OpenSystem: TypeAlias = Callable[[], AbstractAsyncContextManager[System]]
"""Makes a system that has been told nothing yet; leaving the context closes it."""

GLEANR_TEXT = 100_000
"""Characters of the longest text gleanr takes; of a longer one it gets the beginning."""


def systems(
    embedder: Embedder | None = None, *, names: Sequence[str] | None = None
) -> tuple[dict[str, OpenSystem], dict[str, str]]:
    """Return systems by name, in the order of a table, and the reason for each one that had to be left out.

    Without `names` all but the variants of ACMS ("acms, past only", "acms, offline") are made. All of them use the same
    embedder; those that are nothing without one are left out when there is none. `ValidationError` for an unknown name.
    """
    makers: dict[str, Callable[[], OpenSystem]] = {
        MostRecent.name: lambda: _open_baseline(MostRecent),
        PlainBM25.name: lambda: _open_baseline(PlainBM25),
        WindowBM25.name: lambda: _open_baseline(WindowBM25),
        PlainVectors.name: lambda: _open_baseline(lambda: PlainVectors(_require_embedder(embedder))),
        ReciprocalRankFusion.name: lambda: _open_baseline(
            lambda: ReciprocalRankFusion(_require_embedder(embedder))
        ),
        ChromaVectors.name: lambda: _open_chroma(embedder),
        GleanrSession.name: lambda: open_gleanr(embedder),
        "acms": lambda: open_acms(embedder),
        "acms, past only": lambda: open_acms(embedder, name="acms, past only", include_current_episode=False),
        "acms, offline": lambda: open_acms(embedder, name="acms, offline", reflector=OfflineReflector),
    }
    chosen_names = [name for name in makers if not name.startswith("acms,")] if names is None else list(names)
    unknown = [name for name in chosen_names if name not in makers]
    if unknown:
        raise ValidationError(f"{unknown[0]!r} is no known system", field="names", options=tuple(makers))
    open_by_name: dict[str, OpenSystem] = {}
    left_out: dict[str, str] = {}
    for name in chosen_names:
        try:
            open_by_name[name] = makers[name]()
        except ConfigurationError as reason:
            left_out[name] = str(reason)
    return open_by_name, left_out


def _require_embedder(embedder: Embedder | None) -> Embedder:
    if embedder is None:
        raise ConfigurationError("needs an embedder")
    return embedder


def _import_package(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise ConfigurationError(f"{name} is not installed") from error


@contextmanager
def _name_foreign_errors(name: str) -> Generator[None]:
    """Turn exceptions of another package into a `ProviderError` that names it."""
    try:
        yield
    except Exception as error:
        raise ProviderError(f"{type(error).__name__}: {error}", provider=name) from error


def _open_baseline(make: Callable[[], System]) -> OpenSystem:
    make()  # a missing package or embedder raises here, not in the middle of a run

    @asynccontextmanager
    async def open_system() -> AsyncGenerator[System]:
        yield make()

    return open_system


def open_acms(
    embedder: Embedder | None = None,
    *,
    name: str = "acms",
    reflector: Callable[[], Reflector] | None = None,
    config: ACMSConfig | None = None,
    include_current_episode: bool = True,
    requests: bool = False,
) -> OpenSystem:
    """Return a function that opens ACMS sessions in memory, with the default configuration if none is given.

    With `requests` they are judged by whole requests, not by recalled items.
    """
    session_type = Requesting if requests else Remembering

    @asynccontextmanager
    async def open_system() -> AsyncGenerator[System]:
        session = ACMS(
            "evaluation",
            open_storage("memory://"),
            embedder,
            reflector=None if reflector is None else reflector(),
            config=config,
        )
        async with session:
            yield session_type(session, name, include_current_episode=include_current_episode)

    return open_system


# ── gleanr ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class _ListEmbedder:
    """An embedder that answers with lists of floats: gleanr takes no arrays."""

    def __init__(self, inner: Embedder) -> None:
        self._inner = inner
        self.dimension: int = inner.dimension

    async def embed(self, texts: list[str]) -> list[list[float]]:
        return [[float(number) for number in vector] for vector in await self._inner.embed(texts)]


class GleanrSession:
    """A session of gleanr (0.5) as a system to be measured.

    A message of a named speaker is ingested as "speaker: text", for gleanr makes its vectors of the text alone. What
    it recalls of the current episode is known as such.
    """

    name = "gleanr"

    def __init__(self, session: Any) -> None:
        self.session = session
        self._index_by_id: dict[str, int] = {}

    async def tell(self, said: Said) -> None:
        """Ingest a message; of roles gleanr knows user, assistant and tool."""
        text = f"{said.speaker}: {said.text}" if said.speaker else said.text
        role = said.role if said.role in ("user", "assistant", "tool") else "user"
        with _name_foreign_errors(self.name):
            id = await self.session.ingest(role, text[:GLEANR_TEXT])
        self._index_by_id[id] = len(self._index_by_id)

    async def settle(self) -> None:
        """Do nothing: gleanr embeds and reflects before its `ingest` returns."""

    async def ask(self, question: str, budget: int) -> Sequence[Recalled]:
        """Recall; nothing is ingested."""
        with _name_foreign_errors(self.name):
            items = await self.session.recall(question, budget=budget)
            episode = self.session.current_episode_id
            turns = [] if episode is None else await self.session._storage.get_turns_by_episode(episode)
        current = {turn.id for turn in turns}
        return [
            Recalled(
                text=item.content,
                score=item.score,
                current=item.id in current,
                tokens=item.token_count,
                source=str(item.source),
                index=self._index_by_id.get(item.id),
            )
            for item in items
        ]


def open_gleanr(embedder: Embedder | None = None, *, reflector: Any = None, config: Any = None) -> OpenSystem:
    """Return a function that opens gleanr sessions in memory; `reflector` and `config` are objects of gleanr."""
    gleanr = _import_package("gleanr")

    @asynccontextmanager
    async def open_system() -> AsyncGenerator[System]:
        session = gleanr.Gleanr(
            "evaluation",
            gleanr.InMemoryBackend(),
            None if embedder is None else _ListEmbedder(embedder),
            reflector=reflector,
            config=config,
        )
        await session.initialize()
        try:
            yield GleanrSession(session)
        finally:
            await session.close()

    return open_system


# ── Chroma ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class ChromaVectors(PlainVectors):
    """Plain vectors, stored and searched by Chroma: cosine, its approximate index, its defaults."""

    name = "chroma"

    def __init__(self, embedder: Embedder, client: Any, counter: TokenCounter | None = None) -> None:
        super().__init__(embedder, counter)
        self._collection = client.create_collection(
            f"acms-{uuid4().hex}", metadata={"hnsw:space": "cosine"}, embedding_function=None
        )
        self._added = 0

    async def settle(self) -> None:
        """Add the vectors that are missing."""
        while new_items := self._said[self._added : self._added + 1000]:
            vectors = await self._embed_normalized([item.text for item in new_items])
            ids = [str(self._added + index) for index in range(len(new_items))]
            with _name_foreign_errors(self.name):
                self._collection.add(ids=ids, embeddings=vectors)
            self._added += len(new_items)

    async def scores(self, question: str) -> dict[int, float]:
        """Return the cosine of the messages it finds, of all if it can; sets the confidence."""
        await self.settle()
        if not self._added:
            self.confidence = 0.0
            return {}
        query = await self._embed_normalized([question])
        with _name_foreign_errors(self.name):
            answer = self._collection.query(
                query_embeddings=query, n_results=self._added, include=["distances"]
            )
        cosines = {
            int(id): 1 - distance
            for id, distance in zip(answer["ids"][0], answer["distances"][0], strict=True)
        }
        self.confidence = min(1.0, max(0.0, *cosines.values(), 0.0))
        return cosines


def _open_chroma(embedder: Embedder | None) -> OpenSystem:
    needed_embedder = _require_embedder(embedder)
    chromadb = _import_package("chromadb")
    client = chromadb.EphemeralClient(chromadb.Settings(anonymized_telemetry=False))
    return _open_baseline(lambda: ChromaVectors(needed_embedder, client))
