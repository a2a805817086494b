"""Proof of an erasure: a search for residue of entries whose content was erased."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import replace
from datetime import datetime
from typing import Literal, Protocol, runtime_checkable

from acms.branches import export
from acms.branches.export import PAGE
from acms.erasure.quotes import QuoteIndex
from acms.errors import ConfigurationError
from acms.log import encoding
from acms.log.provenance import Link
from acms.model import Context, Entry, JobQuery, Json, Kind, Media, Raw, Reasoning, State, Text, ToolCall
from acms.ports import Searchable, StorageBackend
from acms.results import UNREACHED, Remaining, Rewriting
from acms.storage.wrapper import WrapperStorage, innermost_storage


@runtime_checkable
class Rewritable(Protocol):
    """A store whose files can be rewritten without erased content."""

    #: Descriptions of the places that still hold an erased text until the files are rewritten.
    until_rewritten: tuple[str, ...]

    async def rewrite(self, contexts: Sequence[str], texts: Sequence[bytes]) -> Rewriting:
        """Rewrite the files or tables of some contexts, and search them for texts where that is possible."""
        ...


@runtime_checkable
class FindsRepeats(Protocol):
    """A store that finds messages by their time and by the caller's key, in all logs of its tenant."""

    async def find_messages(self, times: Sequence[datetime], keys: Sequence[str]) -> list[str]:
        """Return the ids of the messages with content that have one of these times or keys."""
        ...


async def find_repeats(storage: StorageBackend, entries: Iterable[Entry]) -> list[str]:
    """Return the ids of the tenant's messages that have the time or the key of one of these entries.

    The list is empty if the store cannot search for times and keys.
    """
    store = innermost_storage(storage)
    searched = list(entries)
    if not searched or not isinstance(store, FindsRepeats):
        return []
    times = {entry.created_at for entry in searched}
    keys = {entry.key for entry in searched if entry.key is not None}
    return await store.find_messages(sorted(times), sorted(keys))


async def find_quotes(
    storage: StorageBackend,
    contexts: Iterable[Context],
    index: QuoteIndex | None,
    erased_ids: Collection[str],
) -> list[Remaining]:
    """Return the entries of some contexts that quote an erased message; none without an index."""
    quotes: list[Remaining] = []
    if index is None or index.is_empty:
        return quotes
    kinds = (Kind.MESSAGE, Kind.FACT, Kind.SUMMARY)
    for context in contexts:
        async for page in export.read_pages(
            storage, context.id, after=context.fork or 0, deleted=True, kinds=kinds
        ):
            for entry in page:
                if entry.state is not State.LIVE or entry.id in erased_ids:
                    continue
                source = index.find_source(entry.content)
                if source is not None:
                    quotes.append(
                        Remaining(
                            id=entry.id, kind="quote", of=source, context=context.id, version=entry.version
                        )
                    )
    return quotes


def require_rewritable_store(storage: StorageBackend) -> Rewritable:
    """Return the store behind its wrappers; raise `ConfigurationError` if its files cannot be rewritten."""
    store = innermost_storage(storage)
    if not isinstance(store, Rewritable):
        raise ConfigurationError(
            f"{type(store).__name__} has no files that can be rewritten", options=("omit rewrite",)
        )
    return store


def describe_unreached_data(storage: StorageBackend, rewriting: Rewriting | None) -> tuple[str, ...]:
    """Return the places that an erasure in this store does not reach, and the remedies."""
    store = innermost_storage(storage)
    if rewriting is not None:
        return (*rewriting.unreached, *UNREACHED)
    return (*store.until_rewritten, *UNREACHED) if isinstance(store, Rewritable) else UNREACHED


def determine_proof_level(
    storage: StorageBackend, rewriting: Rewriting | None, texts: Sized
) -> Literal["rows", "bytes"]:
    """Return what was searched for these texts: the "rows" of the store, or all stored "bytes".

    Without texts only rows were searched: a repeated call finds the entries erased and no longer knows their texts.
    """
    if rewriting is not None and rewriting.searched:
        searched = True
    else:
        searched = getattr(innermost_storage(storage), "searches_bytes", False)
    return "bytes" if texts and searched else "rows"


async def find_residue(
    storage: StorageBackend, links: Sequence[Link], contexts: Iterable[str], texts: Sequence[bytes]
) -> list[str]:
    """Return the places where residue of erased entries is found, never the text itself.

    The search covers the rows, the hash chains, the jobs of the contexts, and what the store itself can search: its
    keys, its derived rows, and for a file every byte.
    """
    residue: list[str] = []
    ids = [link.id for link in links]
    while isinstance(storage, WrapperStorage):  # search the store itself, not a cache of it
        if isinstance(storage, Searchable):  # a wrapper with storage of its own
            for start in range(0, len(ids), PAGE):
                residue += await storage.residue(ids[start : start + PAGE], texts)
        storage = storage.inner
    for start in range(0, len(ids), PAGE):
        batch = ids[start : start + PAGE]
        for id, entry in zip(batch, await storage.get(batch), strict=True):
            if entry is None:
                residue.append(f"{id} is missing: its place should stay")
            elif entry.state is not State.ERASED or _has_content(entry):
                residue.append(f"{id} still has content")
    for owner in dict.fromkeys(link.owner for link in links):
        residue += await _find_chain_problems(storage, await storage.context(owner))
    for context in contexts:
        residue += await _find_job_references(storage, context, ids)
    if isinstance(storage, Searchable):
        residue += await storage.residue(ids, texts)
    return residue


async def _find_job_references(storage: StorageBackend, context: str, ids: Sequence[str]) -> list[str]:
    """Return the jobs whose payload still names an erased entry."""
    references: list[str] = []
    query = JobQuery(context=context, limit=PAGE)
    while True:
        page = await storage.jobs(query)
        for job in page.items:
            payload = json.dumps(dict(job.payload))
            if any(id in payload for id in ids):
                references.append(f"the payload of job {job.id} names it")
        if page.next_after is None:
            return references
        query = replace(query, after=page.next_after)


def _has_content(entry: Entry) -> bool:
    content = (entry.content, entry.parts, entry.data, entry.metadata, entry.salt, entry.key, entry.actor)
    return any(content)


def iter_erased_texts(entry: Entry) -> Iterator[str]:
    """Yield every text of an entry that must not be found after its erasure."""
    yield entry.content
    yield from (entry.key or "", entry.actor or "")
    yield from _iter_strings(entry.data, keys=False)  # its keys are written by the engine
    yield from _iter_strings(entry.metadata)
    for part in entry.parts:
        match part:
            case Text(text) | Reasoning(text):
                yield text
            case ToolCall():
                yield part.arguments
            case Media():
                yield part.ref
            case Raw():
                yield part.json
            case _:
                yield part.output


def _iter_strings(value: Json, *, keys: bool = True) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        if keys:
            yield from map(str, value)
        for item in value.values():
            yield from _iter_strings(item, keys=keys)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _iter_strings(item, keys=keys)


async def _find_chain_problems(storage: StorageBackend, context: Context) -> list[str]:
    """Return the failures in the hash chain of a log; a deleted log can be read, but has no head to check."""
    if context.deleted_at is None:
        return [str(problem) for problem in await export.verify(storage, context)]
    chain, version = await export.genesis_of(storage, context), 0
    problems: list[str] = []
    async for append in export.read_appends(storage, context.id):
        for problem_version, message in encoding.verify_chain(append, head=chain, version=version):
            problems.append(f"{context.id} v{problem_version}: {message}")
        chain, version = append[-1].chain, append[-1].version
    return problems
