"""Restoring exported logs: every line is checked before the first one is stored.

A restore is verbatim: hashes cover roles and origins, so a log comes back as it was or not at all. The hashes of a file
say that it is whole, not who wrote it; who may restore is decided by the caller (decision 0097).
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TypeVar, cast

from acms.branches import limits
from acms.branches.export import PAGE, Counters
from acms.branches.forks import find_context
from acms.errors import ConflictError, CorruptRecordError, TooLargeError, ValidationError
from acms.log import encoding, trust
from acms.log.encoding import context_from_json, entry_from_json
from acms.log.exported import validate_context, validate_entry
from acms.model import Context, Entry, Json
from acms.ports import Progress, StorageBackend
from acms.storage import append_rules

T = TypeVar("T")
Lines = Iterator[tuple[int, str]]
"""Lines that are not blank, each with its number."""
Batch = list[tuple[int, Entry]]
"""The entries of one append, each with the number of its line."""

_SQLITE = b"SQLite format 3\x00"
"""The beginning of a SQLite file, such as a backup of a store."""
_HEADER = '{"acms":'
"""The beginning of the first line of an export."""


async def restore(
    storage: StorageBackend,
    lines: Path | Iterable[str] | AsyncIterable[str],
    *,
    name: str = "export",
    progress: Progress | None = None,
) -> Context:
    """Write an exported context verbatim, after the last version that is already stored.

    The whole export is checked first, including every hash: if anything is wrong, nothing is stored. `name` is the name
    of the file in errors. Raises `ValidationError` for a field that the API would refuse too, with its line;
    `TooLargeError` for an exceeded limit; `CorruptRecordError` for a line that is no export or does not follow the one
    before, and for missing lines at the end; and `ConflictError` if another log has the id or the key, or if the parent
    of a fork is not in the store.
    """
    async with make_rereadable(lines, name) as read_lines:
        await check_exports(storage, [read_lines()], name)
        return await write_export(storage, read_lines(), name, progress=progress)


@asynccontextmanager
async def make_rereadable(
    lines: Path | Iterable[str] | AsyncIterable[str], name: str
) -> AsyncGenerator[Callable[[], Lines]]:
    """Return a function that reads lines from the start: from their file, or from a temporary copy."""
    if isinstance(lines, Path):
        yield partial(_read_file_lines, lines, name)
        return
    async with limits.spool_lines(_number_lines(lines, name), name) as spool:
        yield spool.lines


def _read_file_lines(file: Path, name: str) -> Lines:
    with file.open("rb") as opened:
        if opened.read(len(_SQLITE)) == _SQLITE:
            raise ValidationError(
                "is a SQLite database, not an export of a session",
                field=name,
                options=(
                    f"acms copy {shlex.quote(str(file))} TO copies all of its sessions into another store",
                    "or open it as it is: a backup is a store",
                ),
            )
        opened.seek(0)
        for number, line in enumerate(limits.read_lines_within(opened, name), 1):
            if line.strip():
                yield number, line


async def _number_lines(
    lines: Iterable[str] | AsyncIterable[str], name: str
) -> AsyncIterator[tuple[int, str]]:
    """Yield lines with their numbers, from 1; `ValidationError` names the line that is not UTF-8."""
    number = 0
    if isinstance(lines, AsyncIterable):
        async for line in lines:
            number += 1
            yield number, line
        return
    try:
        for line in lines:
            number += 1
            yield number, line
    except UnicodeDecodeError as error:
        raise ValidationError("is not UTF-8 text", field=f"{name}:{number + 1}") from error


def split_exports(lines: Lines) -> Iterator[Lines]:
    """Yield the lines of each export, which begins with a header.

    Read all lines of one before the next: they come from the same iterator.
    """
    headers = 0

    def count_headers(line: tuple[int, str]) -> int:
        nonlocal headers
        headers += line[1].startswith(_HEADER)
        return headers

    for _, group in groupby(lines, count_headers):
        yield group


# ── checking ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def check_exports(
    storage: StorageBackend, exports: Iterable[Lines], name: str, *, instructions: bool = True
) -> list[Context]:
    """Check exported contexts, parents before their forks, and return them; nothing is stored.

    Without `instructions` a message that would instruct a model is refused.
    """
    checked_contexts: dict[str, Context] = {}
    for lines in exports:
        reader = _Reader(lines, name)
        context = reader.context
        chain = await _check_parent(storage, context, checked_contexts, reader.header)
        if context.id in checked_contexts:
            raise CorruptRecordError(f"{reader.header}: {context.id} appears twice in this file")
        checked_contexts[context.id] = context
        version = context.fork or 0
        for count, batch in enumerate(reader.batches(), 1):
            _check_batch(batch, chain, version, name)
            if not instructions:
                _refuse_instructions(batch, name)
            chain, version = batch[-1][1].chain, batch[-1][1].version
            if count % 64 == 0:  # a few milliseconds of work: let other tasks run
                await asyncio.sleep(0)
        reader.check_end()
    return list(checked_contexts.values())


async def _check_parent(
    storage: StorageBackend, context: Context, checked_contexts: dict[str, Context], header: str
) -> bytes | None:
    """Check that a fork belongs to its parent; return the chain value that its own entries follow, or None.

    It is None if the parent is in the same file, because its entries are not stored yet. The store then compares the
    chain when the fork is written.
    """
    if context.parent is None:
        return encoding.genesis_hash(context.id)
    parent = checked_contexts.get(context.parent) or await find_context(storage, context.parent)
    if parent is None:
        raise ConflictError(
            f"{header}: the parent {context.parent} is not in this store",
            options=(f"restore the export of {context.parent} first",),
        )
    fork = context.fork or 0
    inherited = (parent.root, parent.namespace, append_rules.lineage_of_fork(parent.id, parent.lineage, fork))
    if (context.root, context.namespace, context.lineage) != inherited:
        raise CorruptRecordError(f"{header}: {context.id} is no fork of {parent.id} as it is stored here")
    if parent.id in checked_contexts or not fork:
        return None
    newest = await storage.read(parent.id, at=fork, newest=1, deleted=True)
    return newest[0].chain if newest else None


def _check_batch(batch: Batch, chain: bytes | None, version: int, name: str) -> None:
    """Check the hashes of one append; `chain` is the chain value before it, or None if it is unknown.

    `version` is the last version before the append. Without a chain value, problems of the chain are ignored and only
    the digests of the entries are checked.
    """
    entries = [entry for _, entry in batch]
    line_of = {entry.version: number for number, entry in batch}
    for problem_version, problem in encoding.verify_chain(entries, head=chain or b"", version=version):
        if chain is not None or "chain" not in problem:
            line = line_of.get(problem_version, batch[0][0])
            raise CorruptRecordError(f"line {line} of {name}, version {problem_version}: {problem}")


def _refuse_instructions(batch: Batch, name: str) -> None:
    for number, entry in batch:
        if trust.is_instruction(entry):
            raise ValidationError(
                "is a system or developer message, which would instruct the model",
                field=f"{name}:{number}",
                options=("pass trust=true if you know who wrote this export",),
            )


# ── writing ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def write_export(
    storage: StorageBackend, lines: Lines, name: str, *, progress: Progress | None = None
) -> Context:
    """Write one exported context that was checked."""
    reader = _Reader(lines, name, progress)
    context = reader.context
    await storage.restore(context, reader.entries())
    reader.check_end()
    return await storage.context(context.id, namespace=context.namespace)


# ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Reader:
    """One exported context: its header, and its entries, each checked by itself and against the one before."""

    def __init__(self, lines: Lines, name: str, progress: Progress | None = None) -> None:
        self._lines = lines
        self._name = name
        self._progress = progress
        number, line = next(lines, (0, ""))
        if not line:
            raise CorruptRecordError(f"{name} is empty")
        #: The position of the header, for errors.
        self.header = f"line {number} of {name}"
        #: The last version and chain value of the log, if the header says them.
        self.context, self._end = self._parse(number, line, _parse_header)
        with limits.set_error_field(f"{self._name}:{number}"):
            validate_context(self.context)
        self._start = self.context.fork or 0
        # The numbers of messages and tokens that a fork inherits are known only from its first entry.
        self._counters = Counters() if self.context.parent is None else None
        #: The last version and chain value so far.
        self._last: tuple[int, bytes] = (self._start, b"")

    async def entries(self) -> AsyncIterator[Entry]:
        """Yield the entries, whole appends only."""
        for batch in self.batches():
            for _, entry in batch:
                yield entry

    def batches(self) -> Iterator[Batch]:
        """Yield the entries of one append at a time, each with its line number; half an append cannot be checked.

        If the log should end at another version, the last append is left out, because it may be cut off.
        """
        batch: Batch = []
        size = 0
        for number, line in self._lines:
            entry = self._parse(number, line, entry_from_json)
            with limits.set_error_field(f"{self._name}:{number}"):
                validate_entry(entry)
            self._count(number, entry)
            if batch and entry.batch != batch[0][1].batch:
                yield batch
                batch, size = [], 0
            batch.append((number, entry))
            size += len(line)
            if len(batch) > limits.RECORDS or size > limits.IMPORT_BYTES:
                position = f"{self._name}:{number}"
                raise TooLargeError("belongs to an append that is too large for memory", field=position)
            self._last = (entry.version, entry.chain)
            if number % PAGE == 0:
                self._report()
        if batch and self._end in (None, self._last):
            yield batch

    def check_end(self) -> None:
        """Raise `CorruptRecordError` if entries are missing at the end; otherwise report that all were read."""
        if self._end is not None:
            end_version, _ = self._end
            last_version, _ = self._last
            has_own_entries = end_version > self._start
            if has_own_entries and self._last != self._end:
                raise CorruptRecordError(
                    f"{self._name} ends at version {last_version} of {end_version}",
                    options=("export again, and restore that file",),
                )
        self._end = None
        self._report()

    def _report(self) -> None:
        if self._progress is not None:
            read_count = self._last[0] - self._start
            total = read_count if self._end is None else self._end[0] - self._start
            self._progress(read_count, max(total, read_count))

    def _count(self, number: int, entry: Entry) -> None:
        """Raise `CorruptRecordError` for an entry of another context, or one that does not follow the one before."""
        position = f"line {number} of {self._name}"
        if entry.context != self.context.id:
            raise CorruptRecordError(
                f"{position}: version {entry.version} does not belong to {self.context.id}"
            )
        if self._counters is None:
            self._counters = Counters.before(entry)
        for problem in self._counters.add(entry):
            raise CorruptRecordError(f"{position}, version {entry.version}: {problem}")

    def _parse(self, number: int, line: str, parse: Callable[[dict[str, Json]], T]) -> T:
        """Parse the object of a line; `CorruptRecordError` names the line."""
        position = f"line {number} of {self._name}"
        try:
            value = limits.parse_json(line, f"{self._name}:{number}", parse_constant=_refuse_constant)
        except ValueError as error:
            raise CorruptRecordError(f"{position} is not JSON: {error}") from error
        if not isinstance(value, dict):
            raise CorruptRecordError(f"{position} is not a JSON object")
        # Such characters can be in parsed JSON only by an escape, because the line itself is UTF-8 without NUL.
        if "\\u" in line and not all(map(_is_storable_text, _iter_texts(value))):
            raise CorruptRecordError(f"{position} contains a NUL character or half a surrogate pair")
        try:
            return parse(cast("dict[str, Json]", value))
        except CorruptRecordError as error:
            raise CorruptRecordError(f"{position}: {error}") from error


def _refuse_constant(name: str) -> Json:
    raise ValueError(f"{name} is not a JSON number")


def _is_storable_text(text: str) -> bool:
    return "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in text)


def _iter_texts(value: Json) -> Iterator[str]:
    """Yield every text and name, without recursion: the JSON may be deeply nested."""
    pending: list[Json] = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            pending += [*item, *cast("dict[str, Json]", item).values()]
        elif isinstance(item, list):
            pending += item


def _parse_header(value: dict[str, Json]) -> tuple[Context, tuple[int, bytes] | None]:
    """Parse the first line: the context, and the version and chain value that its log ends with, if it says so."""
    context = context_from_json(value)
    end = value.get("end")
    if end is None:
        return context, None
    try:
        return context, (int(end["version"]), bytes.fromhex(end["chain"]))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise CorruptRecordError(f"this is not an exported context: {error}") from error
