"""Vectors for entries and queries: asked from an embedder in batches, stored beside the log, healed when missing.

A message is committed first and embedded second, so an embedder that is down costs a vector and never a message
(rule 2.4). Which entries lack a vector is asked of the store, not remembered: that covers a provider that failed, a
crash in between, and a model that is new (rule 2.3).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from acms.errors import ACMSError, ProviderError
from acms.model import Derived, Draft, Embedded, Privacy, State
from acms.observability.logging import log
from acms.ports import Embedder, StorageBackend
from acms.privacy.modes import mode_of
from acms.text.chunks import RECIPE, Passage, passages

BATCH = 64
"""Texts of one call to an embedder."""
QUERIES = 64
"""Queries whose vectors are remembered."""
SECONDS = 30.0
"""How long a call to an embedder may take, and a query wait for its vector before words alone must do."""
BACKOFF = 5.0
"""Seconds after a failure before missing vectors are asked for again."""


class Embedding:
    """One embedder on one storage handle."""

    def __init__(self, storage: StorageBackend, embedder: Embedder, mode: Privacy | None = None) -> None:
        self.storage = storage
        self._mode = mode
        self._embedder = embedder
        self.dimension = embedder.dimension
        model = getattr(embedder, "model", None) or type(embedder).__name__
        #: Names everything that makes two vectors comparable.
        self.space = f"{model}/{self.dimension}/f16/{RECIPE}"
        self._queries: OrderedDict[str, NDArray[np.float32]] = OrderedDict()
        self._waiting: list[tuple[Sequence[str], asyncio.Future[NDArray[np.float32]]]] = []
        self._pump: asyncio.Task[None] | None = None
        self._healing: dict[str, asyncio.Task[None]] = {}
        #: Version of each log up to which no vector is missing, and what is being embedded after it was stored.
        self._whole: dict[str, int] = {}
        self._under_way: set[tuple[str, int]] = set()
        self._not_before = -math.inf

    async def query(self, text: str) -> NDArray[np.float32] | None:
        """Return the unit vector of a query; None when the embedder fails, which is logged."""
        found = self._queries.get(text)
        if found is None:
            try:
                async with asyncio.timeout(SECONDS):
                    (found,) = await self._embed([text])
            except Exception as error:
                self._failed("query", error)
                return None
            norm = float(np.sqrt(found @ found))
            found = found / np.float32(norm) if norm else found
            self._queries[text] = found
            if len(self._queries) > QUERIES:
                self._queries.popitem(last=False)
        else:
            self._queries.move_to_end(text)
        return found

    async def entries(
        self, context: str, drafts: Sequence[tuple[int, Draft]]
    ) -> tuple[Embedded, list[Derived]]:
        """Embed entries that were just committed; their vectors, which are returned, ride on the next commit."""
        under_way = {(context, version) for version, _ in drafts}
        self._under_way |= under_way
        try:
            rows = await self._rows(drafts)
            await self.storage.put_derived(context, rows, wait=False)
        except Exception as error:
            self._failed("entries", error)
            return "pending", []
        finally:
            self._under_way -= under_way
        if self._whole.get(context, 0) == drafts[0][0] - 1:
            self._whole[context] = drafts[-1][0]
        return "queued", rows

    def passages(self, draft: Draft) -> list[Passage]:
        """Return the texts of an entry that may be sent to the embedder; none of a blocked one."""
        mode = mode_of(self._mode, draft.privacy)
        if mode is None:
            return passages(draft)
        from acms.privacy.redact_entry import embedded  # the rules come with it

        shown = embedded(draft, mode)
        return [] if shown is None else passages(shown)

    async def _rows(self, drafts: Sequence[tuple[int, Draft]]) -> list[Derived]:
        found = [(version, self.passages(draft)) for version, draft in drafts]
        texts = [passage.text for _, some in found for passage in some]
        vectors = iter(await self._embed(texts)) if texts else iter(())
        rows: list[Derived] = []
        for version, some in found:
            if not some:  # nothing to embed: said once, so that it is not asked for again
                rows.append(Derived(version=version, space=self.space, data=b""))
            for part, passage in enumerate(some):
                data = next(vectors).astype("<f2").tobytes()
                rows.append(
                    Derived(
                        version=version,
                        space=self.space,
                        part=part,
                        start=passage.start,
                        end=passage.end,
                        data=data,
                    )
                )
        return rows

    # ── healing ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def heal(self, context: str, version: int | None = None) -> None:
        """Ask for the vectors a log lacks, in the background.

        With a version only when some may be missing up to it, and not right after a failure.
        """
        loop = asyncio.get_running_loop()
        known = version is not None and version <= self._whole.get(context, 0)
        if context in self._healing or known or (version is not None and loop.time() < self._not_before):
            return
        task = self._healing[context] = loop.create_task(self._heal(context))
        task.add_done_callback(lambda _: self._healing.pop(context, None))

    async def _heal(self, context: str) -> None:
        refused: set[tuple[str, int]] = set()
        try:
            await self.storage.put_derived(context, ())  # what is queued is there before it is asked for
            version, after = (await self.storage.head(context)).version, self._whole.get(context, 0)
            while True:
                missing = await self.storage.missing(
                    self.space, context=context, after=after, limit=BATCH + len(refused)
                )
                if not missing:
                    self._whole[context] = max(version, self._whole.get(context, 0))
                    return
                drafts: list[tuple[int, Draft]] = []
                for _, number in (one for one in missing if one not in self._under_way | refused):
                    for entry in await self.storage.read(context, after=number - 1, before=number + 1):
                        if entry.state is State.LIVE:
                            drafts.append((number, entry))
                rows = await self.possible(drafts) if drafts else []
                if not rows or not await self.storage.put_derived(context, rows):
                    return
                stored = {row.version for row in rows}
                refused |= {(context, of) for of, _ in drafts if of not in stored}
        except Exception as error:
            self._failed("heal", error)

    async def possible(self, drafts: Sequence[tuple[int, Draft]]) -> list[Derived]:
        """Embed together, or one by one when that fails: a text that is refused keeps no other from its vector."""
        try:
            return await self._rows(drafts)
        except Exception as error:
            self._failed("heal", error)
            if len(drafts) == 1:
                return []
        rows: list[Derived] = []
        for number, one in enumerate(drafts):
            try:
                rows += await self._rows([one])
            except Exception:
                if not rows and number == 2:  # it is no matter of the text
                    break
        return rows

    async def settle(self) -> None:
        """Wait until the healing under way has ended."""
        while self._healing:
            await asyncio.gather(*self._healing.values(), return_exceptions=True)

    async def stop(self) -> None:
        """Give up the healing under way: what is missing is found again by the next session."""
        tasks = [*self._healing.values()]
        if self._pump is not None:
            tasks.append(self._pump)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._give_up([future for _, future in self._waiting])
        self._waiting.clear()

    def _give_up(self, waiting: Sequence[asyncio.Future[NDArray[np.float32]]]) -> None:
        """Tell those who wait that there will be no vectors: their message is stored, their query has its words."""
        for future in waiting:
            if not future.done():
                future.set_exception(
                    ProviderError("the session was closed", provider=self.space, retryable=True)
                )

    def _failed(self, what: str, error: Exception) -> None:
        self._not_before = asyncio.get_running_loop().time() + BACKOFF
        code = error.code if isinstance(error, ACMSError) else type(error).__name__
        log(logging.WARNING, "embedding_failed", space=self.space, what=what, code=code)

    # ── the embedder ────────────────────────────────────────────────────────────────────────────────────────────────

    async def _embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Embed texts together with those of others who wait at the same time."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[NDArray[np.float32]] = loop.create_future()
        self._waiting.append((texts, future))
        if self._pump is None or self._pump.done():
            self._pump = loop.create_task(self._run())
        return await future

    async def _run(self) -> None:
        while self._waiting:
            taken = [self._waiting.pop(0)]
            while self._waiting and sum(len(texts) for texts, _ in taken) + len(self._waiting[0][0]) <= BATCH:
                taken.append(self._waiting.pop(0))
            taken = [(texts, future) for texts, future in taken if not future.done()]
            unique = list(dict.fromkeys(text for texts, _ in taken for text in texts))
            try:
                vectors = [
                    await self._call(unique[start : start + BATCH]) for start in range(0, len(unique), BATCH)
                ]
                known = dict(zip(unique, np.concatenate(vectors), strict=True)) if vectors else {}
            except Exception as error:
                for _, future in taken:
                    if not future.done():
                        future.set_exception(error)
                continue
            except BaseException:
                self._give_up([future for _, future in taken])
                raise
            for texts, future in taken:
                if not future.done():
                    future.set_result(np.array([known[text] for text in texts], np.float32))

    async def _call(self, texts: list[str]) -> NDArray[np.float32]:
        async with asyncio.timeout(SECONDS):
            found = np.asarray(await self._embedder.embed(texts), np.float32)
        if found.shape != (len(texts), self.dimension) or not np.isfinite(found).all():
            raise ProviderError(
                f"embedder gave {found.shape}, not {len(texts)} vectors of {self.dimension} finite numbers",
                provider=self.space,
            )
        norms = np.sqrt(np.einsum("ij,ij->i", found, found))
        return np.asarray(found / np.where(norms > 0, norms, 1)[:, None], np.float32)
