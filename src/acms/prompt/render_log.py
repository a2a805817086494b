"""The log of renders: the requests a session really sent, kept beside its log, with their text by reference.

It is off unless `ACMSConfig.renders` enables it. It is kept in records of the context (decision 0059): the newest rows
in a current record, older ones in a ring. So it does not change the log, a fork does not inherit it, and erasing an
entry deletes the log of renders of the whole fork tree in the same commit. Content of other trees is kept by reference
alone, since their erasures do not reach here: see `acms.prompt.kept_request`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import zlib
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache, partial
from hashlib import sha256
from typing import Any, Literal, NamedTuple
from uuid import uuid4

from acms.config import RenderLogConfig
from acms.errors import ConflictError, NotFoundError, StorageReadOnlyError
from acms.log.active_entries import preview_text
from acms.log.encoding import from_microseconds, parse_entry_id, to_microseconds
from acms.log.validation import RECORD_BYTES
from acms.model import Entry, Head, Json, Role, State
from acms.observability.logging import correlation_id, log_event, safe_error
from acms.ports import HasRecords, StorageBackend
from acms.privacy.redactor import Redactor
from acms.prompt.cache_forecast import count_shared_messages, predict_cache
from acms.prompt.excerpts import find_own_logs
from acms.prompt.kept_request import (
    drop_own_words,
    foreign_sources,
    keep_request,
    rebuild_request,
)
from acms.prompt.manifest import (
    Manifest,
    Quote,
    Read,
    Sent,
    Whole,
    Written,
    canonical,
    part_of_request,
    version_of_id,
)
from acms.prompt.manifest_writer import add_candidates, join_segments, ledger_of_manifest
from acms.prompt_types import CachePrediction, LoggedRender, RenderBlock, RenderDetails, Use
from acms.results import ContextItems, Ledger
from acms.runtime.threads import in_thread, off_loop

__all__ = ["RenderLog", "manifest_of_messages", "manifest_of_reply"]

KindOf = Literal["prompt", "messages", "acs"]
_ATTEMPTS = 4
"""Attempts to write a record that other renders write at the same time."""
NEWEST = "renders"
"""Name of the record that is written on; those of the ring are `renders:0` and so on."""
ROWS_BYTES = RECORD_BYTES - 2048
"""Bytes of rows in a record: the rest is for its frame."""
ROW_BYTES = 40_000
"""Most bytes of one row, so that a record holds several; a larger row loses the caller's text, then candidates."""
WORK_PER_ROW = 60
"""Entries' worth of work to read one row: decides whether rows are read off the event loop."""


class _Row(NamedTuple):
    """A render as it lies in a record."""

    id: str
    request: str
    kind: KindOf
    at: int
    #: The manifest without candidates, the candidates, and how many of them were left out: a list needs no candidates.
    outline: str
    candidates: str
    rejected: int


class RenderLog:
    """The log of renders of one context."""

    def __init__(
        self,
        storage: StorageBackend,
        config: RenderLogConfig,
        redactor: Redactor,
        find: Callable[[], Awaitable[str | None]],
        pending: set[asyncio.Task[None]],
    ) -> None:
        self._storage = storage
        self._config = config
        self._redactor = redactor
        self._find_context = find
        #: Pending writes.
        self._pending = pending
        self._slots = max(1, config.max_bytes // RECORD_BYTES - 1)
        self._context = ""
        #: Head of the log when a render began: entries erased since may be in the row to be kept.
        self._head: Head | None = None

    async def begin(self) -> RenderLog | None:
        """Note the head of the log before anything is read for a render, and return this log of renders.

        Return None if the log does not exist yet or cannot be read: the render goes on and is not kept.
        """
        try:
            if await self._find_records() is None:
                return None
            self._head = await self._storage.head(self._context)
        except Exception as error:
            log_event(logging.WARNING, "render_not_logged", error=safe_error(error))
            return None
        return self

    async def _find_records(self) -> HasRecords | None:
        """Look up the context; return the store of its records, or None without a context or if it keeps none."""
        self._context = self._context or await self._find_context() or ""
        if not self._context or not isinstance(self._storage, HasRecords):
            return None
        return self._storage

    # ── writing ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def add(self, kind: KindOf, manifest: Callable[[], Manifest], *, request: str | None = None) -> None:
        """Keep a render in the background; the caller does not wait for its manifest to be written.

        A failure loses this row and nothing else; it is reported to the application's log.
        """
        request_id, timestamp = request or correlation_id.get() or "", to_microseconds(datetime.now(UTC))
        task = asyncio.create_task(
            self._keep(kind, manifest, request_id, timestamp, self._head), name="acms-render-log"
        )
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)

    async def _keep(
        self, kind: KindOf, manifest: Callable[[], Manifest], request: str, timestamp: int, head: Head | None
    ) -> None:
        """Store a record of a request; a failure is logged and has no other effect."""
        storage = self._storage
        if head is None or not isinstance(storage, HasRecords):
            return
        try:
            lineage = find_own_logs(await self._storage.context(self._context))
            sent_manifest = await in_thread(manifest)
            actors = await self._actors(foreign_sources(sent_manifest, lineage))
            kept_manifest = await in_thread(
                partial(keep_request, sent_manifest, lineage, self._redactor, actors)
            )
            row = await in_thread(partial(_pack_row, kind, kept_manifest, request, timestamp, head))
            await self._add_row(storage, row, head.epoch)
            new_head = await self._storage.head(self._context)
            if new_head.epoch != head.epoch:  # content was erased while this was stored
                await self._drop_row(storage, row.id)
        except StorageReadOnlyError:
            return
        except Exception as error:
            log_event(logging.WARNING, "render_not_logged", error=safe_error(error))

    async def idle(self) -> None:
        """Wait for pending writes."""
        if self._pending:
            await asyncio.wait(set(self._pending))

    async def clear(self) -> None:
        """Delete every row."""
        storage = await self._find_records()
        if storage is not None:
            await self.idle()
            for name in self._names():
                await self._replace_record(storage, name, {})

    async def _add_row(self, storage: HasRecords, row: _Row, epoch: int) -> None:
        """Add a row to the newest record, unless something was erased since it was made.

        Rows that leave no space for it go to the next record of the ring, whose oldest record they replace.
        """
        for _ in range(_ATTEMPTS):
            if (await self._storage.head(self._context)).epoch != epoch:
                return
            record = await storage.record(self._context, NEWEST)
            data, revision = ({}, 0) if record is None else (record.data, record.rev)
            serial = int(data.get("serial", 0))
            rows = self._unexpired(data.get("rows", ()), row.at)
            size = sum(map(_row_size, [*rows, row]))
            if rows and size > ROWS_BYTES:
                await self._replace_record(storage, f"{NEWEST}:{serial % self._slots}", {"rows": rows})
                rows, serial = [], serial + 1
            try:
                data = {"serial": serial, "rows": [*rows, list(row)]}
                await storage.put_record(self._context, NEWEST, data, rev=revision)
                return
            except ConflictError:
                continue
        raise ConflictError(f"other renders were written first in {_ATTEMPTS} attempts")

    async def _drop_row(self, storage: HasRecords, id: str) -> None:
        """Delete the row of a render from the newest record, if it is there."""

        def drop(data: Mapping[str, Json]) -> Mapping[str, Json]:
            rows = data.get("rows", ())
            kept_rows = [row for row in rows if row[0] != id]
            return data if len(kept_rows) == len(rows) else {**data, "rows": kept_rows}

        await self._update_record(storage, NEWEST, drop)

    async def _replace_record(self, storage: HasRecords, name: str, data: Mapping[str, Json]) -> None:
        await self._update_record(storage, name, lambda _: data)

    async def _update_record(
        self, storage: HasRecords, name: str, change: Callable[[Mapping[str, Json]], Mapping[str, Json]]
    ) -> None:
        """Change the data of a record, empty if there is none; a warning is logged if others write at the same time."""
        for _ in range(_ATTEMPTS):
            record = await storage.record(self._context, name)
            data, revision = ({}, 0) if record is None else (record.data, record.rev)
            changed_data = change(data)
            if changed_data == data:
                return
            try:
                await storage.put_record(self._context, name, changed_data, rev=revision)
                return
            except ConflictError:
                continue
        log_event(logging.WARNING, "render_log_not_changed", context=self._context, record=name)

    async def _actors(self, ids: Sequence[str]) -> dict[str, str]:
        """Return the speakers of some entries, by id."""
        entries = await self._storage.get(ids) if ids else []
        return {entry.id: entry.actor for entry in entries if entry is not None and entry.actor}

    def _unexpired(self, rows: Iterable[Any], now: int) -> list[list[Any]]:
        oldest = now - round(self._config.max_age_seconds * 1_000_000)
        return [list(row) for row in rows if row[3] >= oldest]

    def _names(self) -> list[str]:
        return [NEWEST, *(f"{NEWEST}:{slot}" for slot in range(15))]

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def page(self, limit: int, after: str | None) -> list[LoggedRender]:
        """Return up to `limit` renders before `after`, newest first, each compared with the previous of its kind."""
        rows = await self._rows()
        start = 0 if after is None else 1 + _index_of_row(rows, after)
        stop = min(len(rows), start + limit)

        def list_renders() -> list[LoggedRender]:
            renders: list[LoggedRender] = []
            for index in range(start, stop):
                renders.append(LoggedRender(**_summarize_row(rows[index], _find_previous_row(rows, index))))
            return renders

        return await off_loop(list_renders, WORK_PER_ROW * min(limit, len(rows)))

    async def details(self, id: str, against: str | None = None) -> RenderDetails:
        """Return one render with its blocks and verdicts; `NotFoundError` for one that is not there any more.

        It is compared with the render `against`, by default with the previous one of its kind.
        """
        rows = await self._rows()
        index = _index_of_row(rows, id)
        row = rows[index]
        previous = _find_previous_row(rows, index)
        if against is not None:
            previous = rows[_index_of_row(rows, against)]
        candidates = _unpack_manifest(row.candidates).candidates
        manifest = replace(_unpack_manifest(row.outline), candidates=candidates)
        verdicts = list(ledger_of_manifest(lambda: manifest).candidates.values())
        left_ids = [verdict.id for verdict in verdicts if not verdict.included and verdict.version]
        previous_ids = () if previous is None else _unpack_manifest(previous.outline).entries
        rows_of_entries = await self._storage.get(
            list(dict.fromkeys([*manifest.entries, *left_ids, *previous_ids]))
        )
        live = [entry for entry in rows_of_entries if entry is not None and entry.state is State.LIVE]
        entries = {entry.id: entry for entry in self._redactor.redact_entries(live)}
        previews = {id: preview_text(entries[id].content, 160) for id in left_ids if id in entries}
        extra_fields = {"verdicts": verdicts, "previews": previews}
        return await off_loop(partial(_build_details, row, previous, entries, extra_fields), WORK_PER_ROW * 4)

    async def _rows(self) -> list[_Row]:
        """Return the rows that have not expired, newest first, and delete the expired ones."""
        storage = await self._find_records()
        if storage is None:
            return []
        await self.idle()
        now = to_microseconds(datetime.now(UTC))
        rows_by_id: dict[str, _Row] = {}
        for name in self._names():
            record = await storage.record(self._context, name)
            if record is None:
                continue
            rows = record.data.get("rows", ())
            unexpired = self._unexpired(rows, now)
            rows_by_id.update({row[0]: _Row(*row) for row in unexpired})
            if len(unexpired) < len(rows):
                data = {**record.data, "rows": unexpired}
                with suppress(ConflictError, StorageReadOnlyError):
                    await storage.put_record(self._context, name, data, rev=record.rev)
        return sorted(rows_by_id.values(), key=lambda row: (row.at, row.id), reverse=True)


# ── manifests of requests without one ───────────────────────────────────────────────────────────────────────────────


def manifest_of_messages(
    messages: Sequence[Mapping[str, Json]],
    sources: Sequence[tuple[str, ...]],
    items: ContextItems,
    *,
    budget: int,
    tokens: int,
    counter: str,
) -> Manifest:
    """Return the manifest of a list of chat messages: the entries each one shows, and the candidates."""
    costs = {item.id: item.token_count for item in items}
    sent: list[Sent] = []
    for message, ids in zip(messages, sources, strict=True):
        is_recalled = len(ids) > 1
        versions = [version_of_id(id) for id in ids if parse_entry_id(id)]
        sent.append(
            Sent(
                path="recalled" if is_recalled else "history",
                role=Role(str(message["role"])),
                hash=sha256(canonical(message).encode("utf-8", "surrogatepass")).hexdigest()[:32],
                tokens=sum([costs.get(id, 0) for id in ids]),
                parts=tuple([_quote_entry(id) for id in ids]),
                sources=ids,
                pieces=ids if is_recalled else (),
                first=min(versions, default=0),
                last=max(versions, default=0),
            )
        )
    reads = (Read(items.context, items.version),)
    return _build_manifest("messages", sent, items.ledger, budget, tokens, counter, reads)


def manifest_of_reply(
    fragments: Sequence[tuple[str, str, str, int]], ledger: Ledger, *, budget: int
) -> Manifest:
    """Return the manifest of a reply of the contract; a fragment is (id, layer, level of detail, tokens)."""
    sent: list[Sent] = []
    for id, layer, level_of_detail, tokens in fragments:
        entry_ids = (id,) if parse_entry_id(id) else ()
        version = version_of_id(id)
        sent.append(
            Sent(
                path=layer,
                role=Role.USER,
                hash=sha256(f"{id} {level_of_detail} {tokens}".encode()).hexdigest()[:32],
                tokens=tokens,
                parts=tuple(map(_quote_entry, entry_ids)),
                rendition=level_of_detail,
                sources=entry_ids,
                pieces=(id,),
                first=version,
                last=version,
            )
        )
    return _build_manifest("acs", sent, ledger, budget, sum([one.tokens for one in sent]), "", ())


def _build_manifest(
    codec: str,
    sent: Sequence[Sent],
    ledger: Ledger,
    budget: int,
    tokens: int,
    counter: str,
    reads: tuple[Read, ...],
) -> Manifest:
    manifest = Manifest(
        codec=codec,
        model=codec,
        counter=counter,
        budget=budget,
        limit=budget,
        tokens=tokens,
        upper_bound=tokens,
        messages=tuple(sent),
        reads=reads,
    )
    return add_candidates(manifest, [ledger])


def _quote_entry(id: str) -> Written:
    whole = Quote(id, 0, 1 << 30)  # more characters than an entry has
    return Written("text", (("text", (whole, "\n")),))


# ── rows ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _pack_row(kind: KindOf, manifest: Manifest, request: str, at: int, head: Head) -> _Row:
    """Return a render as a row of at most `ROW_BYTES`: without the caller's text, then with fewer candidates."""
    if not manifest.reads:
        manifest = replace(manifest, reads=(Read(head.context, head.version),))
    outline = _pack_manifest(replace(manifest, candidates=()))
    if len(outline) > ROW_BYTES:
        manifest = drop_own_words(manifest)
        outline = _pack_manifest(replace(manifest, candidates=()))
    best_first = sorted(manifest.candidates, key=lambda verdict: (not verdict.included, -verdict.score))
    rejected = sum([not verdict.included for verdict in best_first])
    empty = Manifest(codec=manifest.codec, model=manifest.model, tokens=0, upper_bound=0)
    while True:
        candidates = _pack_manifest(replace(empty, candidates=tuple(best_first)))
        if len(outline) + len(candidates) <= ROW_BYTES or not best_first:
            return _Row(uuid4().hex[:16], request, kind, at, outline, candidates, rejected)
        best_first = best_first[: len(best_first) // 2]


def _pack_manifest(manifest: Manifest) -> str:
    return b64encode(zlib.compress(canonical(manifest.to_json()).encode(), 1)).decode()


@lru_cache(maxsize=256)
def _unpack_manifest(written: str) -> Manifest:
    return Manifest.from_json(json.loads(zlib.decompress(b64decode(written))))


def _row_size(row: Sequence[Any]) -> int:
    return 120 + sum([len(str(value)) for value in row])  # and the JSON around its values


# ── reports ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _index_of_row(rows: Sequence[_Row], id: str) -> int:
    for index, row in enumerate(rows):
        if row.id == id:
            return index
    raise NotFoundError(f"no render has the id {id!r}, or it is too old", options=("list the renders",))


def _find_previous_row(rows: Sequence[_Row], index: int) -> _Row | None:
    """Return the render of the same kind that came before one."""
    return next((row for row in rows[index + 1 :] if row.kind == rows[index].kind), None)


def _summarize_row(row: _Row, previous_row: _Row | None) -> dict[str, Any]:
    manifest = _unpack_manifest(row.outline)
    previous = None if previous_row is None else _unpack_manifest(previous_row.outline)
    cache, lost = _predict_cache_loss(row.kind, manifest, previous)
    return {
        "id": row.id,
        "request_id": row.request,
        "kind": row.kind,
        "created_at": from_microseconds(row.at),
        "version": max((read.version for read in manifest.reads), default=0),
        "codec": manifest.codec,
        "model": manifest.model,
        "budget": manifest.budget,
        "tokens": manifest.tokens,
        "upper_bound": manifest.upper_bound,
        "messages": len(manifest.messages),
        "left_out": row.rejected + sum([len(omission.ids) for omission in manifest.left if omission.gone]),
        "use": _use_of_manifest(manifest),
        "cache": cache,
        "paid": round(manifest.tokens if cache is None else cache.paid()),
        "lost": lost,
        "previous": None if previous_row is None else previous_row.id,
    }


def _predict_cache_loss(
    kind: KindOf, manifest: Manifest, previous: Manifest | None
) -> tuple[CachePrediction | None, int]:
    """Return the part the provider can read from its cache and the cost of a miss; None where nothing is cached."""
    if kind == "acs":
        return None, 0
    from acms.providers import codecs  # the formats of all providers

    # A list of messages has no format of its own.
    format = ("openai-chat", "gpt-5") if kind == "messages" else (manifest.codec, manifest.model)
    codec = codecs.named(*format)
    prediction = predict_cache(manifest, previous, codec)
    if previous is None:
        return prediction, 0
    best = replace(prediction, predicted_tokens=codec.cached(min(previous.tokens, manifest.tokens)))
    return prediction, max(0, round(prediction.paid() - best.paid()))


def _part_of_sent(sent: Sent) -> str:
    return part_of_request(sent.role, sent.sources, sent.pieces, sent.rendition)


def _use_of_manifest(manifest: Manifest) -> Use:
    tokens = Counter[str]()
    for sent in manifest.messages:
        tokens[_part_of_sent(sent)] += sent.tokens
    free = 0 if manifest.budget is None else manifest.budget - manifest.upper_bound
    return Use(**tokens, tools=max(0, manifest.tokens - tokens.total()), free=free)


def _build_details(
    row: _Row, previous_row: _Row | None, entries: Mapping[str, Entry], extra_fields: Mapping[str, Any]
) -> RenderDetails:
    manifest = _unpack_manifest(row.outline)
    messages = manifest.messages
    previous = () if previous_row is None else _unpack_manifest(previous_row.outline).messages
    shared_count = count_shared_messages(previous, messages)
    previous_hashes = {sent.hash for sent in previous}
    hashes = {sent.hash for sent in messages}
    blocks: list[RenderBlock] = []
    for index, sent in enumerate(messages):
        change = "same"
        if index >= shared_count:
            change = "moved" if sent.hash in previous_hashes else "added"
        blocks.append(_build_block(sent, index, change, entries))
    removed_blocks: list[RenderBlock] = []
    for index, sent in enumerate(previous):
        if sent.hash not in hashes:
            removed_blocks.append(_build_block(sent, index, "removed", entries))
    payload: dict[str, Json] | None = None
    note = f"of {row.kind} only what it showed is kept; the request was written elsewhere"
    if row.kind == "prompt":
        payload, note = rebuild_request(manifest, entries)
    return RenderDetails(
        **_summarize_row(row, previous_row),
        **extra_fields,
        payload=payload,
        payload_note=note,
        blocks=blocks,
        removed=removed_blocks,
        steps=[step._asdict() for step in manifest.steps],
        redactions={redaction.entry: dict(redaction.kinds) for redaction in manifest.redactions},
    )


def _build_block(sent: Sent, index: int, change: str, entries: Mapping[str, Entry]) -> RenderBlock:
    text: str | None = None
    with suppress(KeyError, IndexError, AttributeError):  # the log no longer has all of it
        text = "\n".join([_text_of_part(part, entries) for part in sent.parts]).strip()
    return RenderBlock(
        place=index,
        role=sent.role,
        part=_part_of_sent(sent),
        path=sent.path,
        tokens=sent.tokens,
        rendition=sent.rendition,
        sources=sent.sources,
        first=sent.first,
        last=sent.last,
        change=change,
        text=text if sent.parts else None,
    )


def _text_of_part(part: Whole | Written, entries: Mapping[str, Entry]) -> str:
    """Return the text of a part, read from the log."""
    if isinstance(part, Written):
        texts = [value for _, value in part.fields if isinstance(value, tuple)]
        return "".join([join_segments(text, entries) for text in texts])
    whole = entries[part.entry].parts[part.part]
    names = ("name", "text", "arguments", "output")
    return " ".join([str(getattr(whole, name)) for name in names if hasattr(whole, name)])
