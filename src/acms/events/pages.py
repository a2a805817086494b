"""Pages of logs for streams of events. A page is read when a client has taken the one before it; streams share pages.

Streams that wait for the same entries, as after an append or after a restart of the service, ask for the same page at
the same time: it is read from the store, redacted and serialized once. One page is read at a time, so that however
many streams there are, a request of another tenant waits for one page at most.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import monotonic

from acms.model import Entry
from acms.ports import StorageBackend
from acms.privacy.redactor import Redactor
from acms.runtime.threads import off_loop
from acms.storage import handles

__all__ = ["FRESH", "PAGE_CHARS", "PAGE_ENTRIES", "Page", "PageReader", "PageSpan", "get_page_reader"]

PAGE_ENTRIES = 16
"""Maximum entries of a page."""
PAGE_CHARS = 65_536
"""Characters of text in a page, unless its first entry alone has more."""
FRESH = 0.1
"""Seconds for which the entries of a page may be sent without checking again whether they were erased."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageSpan:
    """The source of a page: a part of a log at a version, and at the erasure generation `epoch` of its head."""

    context: str
    #: The version after which the page begins, and the last version that it may hold.
    after: int
    version: int
    epoch: int
    #: Maximum number of entries.
    limit: int


@dataclass(slots=True, eq=False, kw_only=True)
class Page:
    """Redacted entries, and the monotonic time at which they were read."""

    entries: Sequence[Entry]
    read_at: float
    #: Entries that were serialized, by version.
    _serialized: dict[int, bytes] = field(default_factory=dict[int, bytes])

    @property
    def is_outdated(self) -> bool:
        """Whether an entry may have been erased since."""
        return monotonic() - self.read_at > FRESH

    def serialize(self, entry: Entry, serializer: Callable[[Entry], bytes]) -> bytes:
        """Return an entry as bytes, serialized once for all streams that send this page."""
        content = self._serialized.get(entry.version)
        if content is None:
            content = self._serialized[entry.version] = serializer(entry)
        return content


class PageReader:
    """Reads pages for the streams of one storage handle in one event loop."""

    def __init__(self, storage: StorageBackend) -> None:
        self._storage = storage
        #: Held while a page is read, so that one is read at a time.
        self._read_lock = asyncio.Lock()
        #: Pages being read, and those read in the last `FRESH` seconds.
        self._pages: dict[tuple[PageSpan, Redactor], asyncio.Future[Page]] = {}

    async def read(self, span: PageSpan, redactor: Redactor) -> Page:
        """Return the page of a span; other streams that ask for the same span get the same page."""
        key = (span, redactor)
        reading = self._pages.get(key)
        if reading is None:
            reading = self._pages[key] = asyncio.ensure_future(self._load(span, redactor))
            reading.add_done_callback(partial(self._keep_while_fresh, key))
        return await asyncio.shield(reading)  # a stream that is cancelled does not end the read of the others

    def _keep_while_fresh(self, key: tuple[PageSpan, Redactor], reading: asyncio.Future[Page]) -> None:
        """Keep a page while it is fresh; drop one that could not be read."""
        if reading.cancelled() or reading.exception() is not None:
            del self._pages[key]
        else:
            asyncio.get_running_loop().call_later(FRESH, self._pages.pop, key)

    async def _load(self, span: PageSpan, redactor: Redactor) -> Page:
        """Read a page from the store and redact it, off the event loop if that is much work.

        `read` calls it once for all streams that ask for the page.
        """
        async with self._read_lock:
            stored = await self._storage.read(
                span.context, after=span.after, at=span.version, limit=span.limit
            )
            stored = stored[: _count_fitting(stored)]
            characters = redactor.count_unredacted_characters(stored)
            entries = await off_loop(partial(redactor.redact_entries, stored), characters)
            return Page(entries=entries, read_at=monotonic())


def _count_fitting(entries: Sequence[Entry]) -> int:
    """Return how many entries fit in a page: at least one."""
    characters = 0
    for entries_before, entry in enumerate(entries):
        characters += len(entry.content)
        if characters > PAGE_CHARS:
            return max(entries_before, 1)
    return len(entries)


def get_page_reader(handle: StorageBackend) -> PageReader:
    """Return the page reader that the streams of a handle share in this event loop."""
    state = handles.get_loop_state(handle)
    if state.pages is None:
        state.pages = PageReader(handle)
    reader: PageReader = state.pages
    return reader
