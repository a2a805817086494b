"""Moving and checking whole logs: export and verify. The medium is JSONL, one context and its own entries.

An export is verbatim: ids, versions, hashes, salts and tombstones. Only keys that a client made up are left out, as no
hash covers them. What a fork inherited is not part of it, so a tree is moved parents first.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

from acms.errors import ACMSError, SessionNotFoundError, ValidationError
from acms.log import encoding
from acms.log.encoding import context_to_json, dump, entry_to_json
from acms.log.settings import validate_settings
from acms.model import Context, Entry, Head, Kind, client_supplied_key
from acms.ports import Progress, StorageBackend
from acms.storage.wrapper import innermost_storage

__all__ = ["Problem", "Progress", "export", "read_pages", "verify"]

PAGE = 500
"""Entries or contexts that are read at once: of short messages a page takes about 1 MB of memory."""


@runtime_checkable
class KeepsSeals(Protocol):
    """A store that keeps a seal with every context it makes or changes."""

    async def seal_fits(self, context: str) -> bool:
        """Return whether a context is as ACMS wrote it; true of one that was stored before there were seals."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something that is wrong with a stored log."""

    context: str
    #: Where it was found; 0 when it concerns the log as a whole.
    version: int
    what: str

    def __str__(self) -> str:
        return f"{self.context} v{self.version}: {self.what}"


async def read_pages(
    storage: StorageBackend, context: str, *, after: int = 0, at: int | None = None, **selection: Any
) -> AsyncIterator[list[Entry]]:
    """Yield the entries of a log in pages, inherited entries too.

    `after` is the last version that is left out, `at` the last one that is read, and `selection` further filters of
    `StorageBackend.read`.
    """
    while at is None or after < at:
        page = await storage.read(context, at=at, after=after, limit=PAGE, **selection)
        if page:
            yield page
            after = page[-1].version
        if len(page) < PAGE:  # the log has no more entries
            return


async def read_appends(
    storage: StorageBackend, context: str, *, after: int = 0, at: int | None = None
) -> AsyncIterator[list[Entry]]:
    """Yield the entries of a log, one append at a time, because half of an append cannot be verified.

    The logs of deleted contexts are read too.
    """
    batch: list[Entry] = []
    async for page in read_pages(storage, context, after=after, at=at, deleted=True):
        for entry in page:
            if batch and entry.batch != batch[0].batch:
                yield batch
                batch = []
            batch.append(entry)
    if batch:
        yield batch


async def export(
    storage: StorageBackend, id_or_key: str, *, namespace: str = "default", progress: Progress | None = None
) -> AsyncIterator[str]:
    """Yield a context and its own entries as lines of JSON, each with its newline.

    The log is written up to its version at the start. The first line has that version, so that an export that was cut
    off is recognised.
    """
    context = await storage.context(id_or_key, namespace=namespace)
    head = await storage.head(context.id)
    start = context.fork or 0
    end = {"version": head.version, "chain": head.chain.hex()}
    yield dump({**context_to_json(context), "end": end}) + "\n"
    async for entries in read_pages(storage, context.id, after=start, at=head.version):
        for entry in entries:
            yield dump(entry_to_json(replace(entry, key=client_supplied_key(entry.key)))) + "\n"
        if progress is not None:
            progress(entries[-1].version - start, head.version - start)


async def verify(
    storage: StorageBackend, context: Context, *, progress: Progress | None = None
) -> list[Problem]:
    """Recompute every hash, counter and seal of a log, inherited segments too; return what does not agree.

    Settings that the API would refuse are reported too.
    """
    head = await storage.head(context.id)
    check = _Check(context.id, await genesis_of(storage, context))
    after = 0
    while after < head.version:
        try:
            entries = await storage.read(context.id, at=head.version, after=after, limit=PAGE)
        except (ACMSError, ValueError):  # one unreadable entry makes the whole page unreadable
            last = min(after + PAGE, head.version)
            entries = await _read_readable_entries(storage, check, after, last)
        else:
            if not entries:
                break
            last = entries[-1].version
        for entry in entries:
            check.add(entry)
        after = last
        if progress is not None:
            progress(after, head.version)
    check.flush()
    check.compare_head(head)
    problems = [*_check_settings(context), *check.problems]
    for problem in await _check_context(storage, context):
        problems.append(Problem(context=context.id, version=0, what=problem))
    return problems


async def genesis_of(storage: StorageBackend, context: Context) -> bytes:
    """Return the chain value before the first entry of a log.

    The log of a fork begins with entries of its oldest ancestor, so its chain begins with that ancestor's id.
    """
    oldest = context
    if context.lineage:
        oldest = await storage.context(context.lineage[0][0])
    return encoding.genesis_hash(oldest.parent or oldest.id)


def _check_settings(context: Context) -> list[Problem]:
    """Return descriptions of the settings of a context that the API would refuse."""
    try:
        validate_settings(context.settings)
    except ValidationError as error:
        return [Problem(context=context.id, version=0, what=str(error))]
    return []


async def _check_context(storage: StorageBackend, context: Context) -> list[str]:
    """Describe the changes to a context that were not made by ACMS."""
    storage = innermost_storage(storage)
    problems: list[str] = []
    if isinstance(storage, KeepsSeals) and not await storage.seal_fits(context.id):
        problems.append("its namespace, name, parent or settings were changed by something else than ACMS")
    root = context.id
    if context.parent is not None:
        try:
            root = (await storage.context(context.parent)).root
        except SessionNotFoundError:
            return [*problems, f"its parent {context.parent} is not in the store"]
    if context.root != root:
        problems.append(f"it is listed in the fork tree of {context.root}, its parent is in that of {root}")
    return problems


async def _read_readable_entries(
    storage: StorageBackend, check: _Check, previous: int, last: int
) -> list[Entry]:
    """Return the readable entries after `previous` up to `last`, and report the others as problems."""
    entries: list[Entry] = []
    for version in range(previous + 1, last + 1):
        try:
            entries += await storage.read(check.context, after=version - 1, before=version + 1)
        except (ACMSError, ValueError) as error:
            check.report(version, f"cannot be read: {error}")
            check.unreadable.add(version)
    return entries


class _Check:
    """Verifies the entries of a log, one append at a time, because the hash chain links appends."""

    def __init__(self, context: str, chain: bytes) -> None:
        self.context = context
        self.problems: list[Problem] = []
        self.unreadable: set[int] = set()
        self._chain = chain
        self._version = 0
        self._counters = Counters()
        self._last_message: str | None = None
        self._rewrites = 0
        self._batch: list[Entry] = []

    def report(self, version: int, problem: str) -> None:
        self.problems.append(Problem(context=self.context, version=version, what=problem))

    def add(self, entry: Entry) -> None:
        if self._batch and (entry.batch, entry.context) != (self._batch[0].batch, self._batch[0].context):
            self.flush()
        self._batch.append(entry)

    def flush(self) -> None:
        """Verify the append that is complete."""
        batch, self._batch = self._batch, []
        if not batch:
            return
        first, last = batch[0].version, batch[-1].version
        previous = self._version
        while previous + 1 < first and previous + 1 in self.unreadable:
            previous += 1
        has_gap = not self.unreadable.isdisjoint(range(first, last))
        unverifiable = has_gap or previous != self._version
        # After an unreadable entry the chain always looks broken: that is no problem of its own.
        for version, problem in encoding.verify_chain(batch, head=self._chain, version=previous):
            is_consequence = "broken" in problem or version in self.unreadable
            if not (unverifiable and is_consequence):
                self.report(version, problem)
        if unverifiable:
            self._counters = Counters.before(batch[0])
        for entry in batch:
            for problem in self._counters.add(entry):
                self.report(entry.version, problem)
            self._rewrites += bool(entry.replaces)
            if entry.kind is Kind.MESSAGE:
                self._last_message = entry.id
        self._chain, self._version = batch[-1].chain, last

    def compare_head(self, head: Head) -> None:
        """Compare the end of the log, and if all entries are right also the counters of its head."""
        if self._version < head.version and self._version not in self.unreadable:
            self.report(self._version + 1, f"missing: the log should end at {head.version}")
        if self.problems:
            return
        for name, head_value, log_value in (
            ("chain hash", head.chain.hex(), self._chain.hex()),
            ("number of messages", head.messages, self._counters.position),
            ("number of tokens", head.tokens, self._counters.total),
            ("last message", head.last_message, self._last_message),
        ):
            if head_value != log_value:
                self.report(head.version, f"the {name} of the head is {head_value}, the log says {log_value}")
        if head.rewrites < self._rewrites:
            self.report(head.version, f"the head counts {head.rewrites} rewrites, the log {self._rewrites}")


@dataclass(slots=True)
class Counters:
    """The number of messages and tokens up to an entry. Every entry records both; no hash covers them."""

    position: int = 0
    total: int = 0

    @classmethod
    def before(cls, entry: Entry) -> Counters:
        """Return the counters before an entry whose predecessor is unknown."""
        if entry.position is None:
            return cls(-1, entry.total)  # unknown: no message has been counted yet
        return cls(entry.position - 1, entry.total - entry.tokens)

    def add(self, entry: Entry) -> Iterator[str]:
        """Count an entry and yield a message for each recorded number that differs from the count."""
        if entry.kind is Kind.MESSAGE:
            position = self.position + 1
            # The number of messages before the entry is unknown: its own position says it.
            if self.position < 0 and entry.position is not None:
                position = entry.position
            self.position = position
            self.total += entry.tokens
            if entry.position != position:
                yield f"has position {entry.position}, the messages before it make it {position}"
                # Count on from the recorded number, so that one wrong number is reported once.
                self.position = entry.position or position
        elif entry.position is not None:
            yield f"has position {entry.position}, but it is no message"
        if entry.total != self.total:
            yield f"has a running total of {entry.total} tokens, counted {self.total}"
            self.total = entry.total
