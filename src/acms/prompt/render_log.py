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
from dataclasses import fields, replace
from datetime import UTC, datetime
from functools import lru_cache, partial
from hashlib import sha256
from typing import Any, Literal, NamedTuple
from uuid import uuid4

from acms.config import RenderLogConfig
from acms.errors import ConflictError, NotFoundError, StorageReadOnlyError
from acms.log.encoding import from_microseconds, parse_entry_id, to_microseconds
from acms.log.in_force import preview_text
from acms.log.validation import RECORD_BYTES
from acms.model import Entry, Head, Json, Role, State
from acms.observability.logging import correlation_id, log_event, safe_error
from acms.ports import HasRecords, StorageBackend
from acms.privacy.stage import Stage
from acms.prompt.cache_forecast import predict_cache
from acms.prompt.kept_request import (
    Rebuilt,
    drop_own_words,
    foreign_sources,
    keep_request,
    rebuild_request,
)
from acms.prompt.manifest import Manifest, Quote, Read, Sent, Whole, Written, canonical
from acms.prompt.manifest_writer import add_candidates, join_segments, ledger_of_manifest
from acms.prompt_types import CachePrediction, LoggedRender, RenderBlock, RenderDetails, Use
from acms.results import ContextItems, Ledger
from acms.runtime.threads import in_thread, off_loop

__all__ = ["RenderLog", "manifest_of_messages", "manifest_of_reply"]

KindOf = Literal["prompt", "messages", "acs"]
NEWEST = "renders"
"""Name of the record that is written on; those of the ring are `renders:0` and so on."""
ROOM = RECORD_BYTES - 2048
"""Bytes of rows in a record."""
ROW = 40_000
"""Bytes of one row, at most: of a larger one the candidates that were left out go first."""
TRIES = 4
LONGEST = 1 << 30
"""More characters than an entry has: all of it."""
PREVIEW = 160
"""Characters shown of an omitted text."""
READ = 60
"""How long a log it is read off the event loop for, in entries' worth of work per row."""
INSTRUCTING = (Role.SYSTEM, Role.DEVELOPER)
TEXTS = ("name", "text", "arguments", "output")
"""Fields of parts that hold the message text."""
LIKE = {"messages": ("openai-chat", "gpt-5")}
"""Formats that stand in where a request has none of its own."""


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
        stage: Stage,
        find: Callable[[], Awaitable[str | None]],
        pending: set[asyncio.Task[None]],
    ) -> None:
        self._storage = storage
        self._config = config
        self._stage = stage
        self._find = find
        #: Pending writes.
        self._pending = pending
        self._slots = max(1, config.max_bytes // RECORD_BYTES - 1)
        self._context = ""
        #: Head of the log when a render began: entries erased since may be in the row to be kept.
        self._head: Head | None = None

    async def begin(self) -> RenderLog | None:
        """Note where the log stands, before anything is read for a render; None where nothing was written yet.

        None too where that cannot be read: the render goes on and is not kept.
        """
        try:
            if not await self._known():
                return None
            self._head = await self._storage.head(self._context)
        except Exception as error:
            log_event(logging.WARNING, "render_not_logged", error=safe_error(error))
            return None
        return self

    async def _known(self) -> bool:
        self._context = self._context or await self._find() or ""
        return bool(self._context) and isinstance(self._storage, HasRecords)

    # ── writing ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def add(self, kind: KindOf, manifest: Callable[[], Manifest], *, request: str | None = None) -> None:
        """Keep a render in the background; the caller does not wait for its manifest to be written.

        A failure loses this row and nothing else; it is reported to the application's log.
        """
        asked, at = request or correlation_id.get() or "", to_microseconds(datetime.now(UTC))
        task = asyncio.create_task(self._keep(kind, manifest, asked, at, self._head), name="acms-render-log")
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)

    async def _keep(
        self, kind: KindOf, manifest: Callable[[], Manifest], asked: str, at: int, head: Head | None
    ) -> None:
        storage = self._storage
        if head is None or not isinstance(storage, HasRecords):
            return
        try:
            own = await self._lineage()
            sent = await in_thread(manifest)
            actors = await self._actors(foreign_sources(sent, own))
            kept = await in_thread(partial(keep_request, sent, own, self._stage, actors))
            row = await in_thread(partial(_pack_row, kind, kept, asked, at, head))
            await self._put(storage, row, head.epoch)
            now = await self._storage.head(self._context)
            if now.epoch != head.epoch:  # it was erased while this was put
                await self._drop(storage, row.id)
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
        if await self._known() and isinstance(self._storage, HasRecords):
            await self.idle()
            for name in self._names():
                await self._replace(self._storage, name, {})

    async def _put(self, storage: HasRecords, row: _Row, epoch: int) -> None:
        """Put a row behind the others, unless something was erased since it was made."""
        for _ in range(TRIES):
            if (await self._storage.head(self._context)).epoch != epoch:
                return
            found = await storage.record(self._context, NEWEST)
            data, rev = (found.data, found.rev) if found is not None else ({}, 0)
            serial = int(data.get("serial", 0))
            rows = self._young(data.get("rows", ()), row.at)
            size = sum([_row_size(one) for one in rows])
            if rows and size + _row_size(row) > ROOM:
                await self._replace(storage, f"{NEWEST}:{serial % self._slots}", {"rows": rows})
                rows, serial = [], serial + 1
            try:
                await storage.put_record(
                    self._context, NEWEST, {"serial": serial, "rows": [*rows, list(row)]}, rev=rev
                )
                return
            except ConflictError:
                continue
        raise ConflictError("other renders kept theirs")

    async def _drop(self, storage: HasRecords, id: str) -> None:
        for _ in range(TRIES):
            found = await storage.record(self._context, NEWEST)
            rows = [] if found is None else [one for one in found.data.get("rows", ()) if one[0] != id]
            if found is None or len(rows) == len(found.data["rows"]):
                return
            try:
                await storage.put_record(self._context, NEWEST, {**found.data, "rows": rows}, rev=found.rev)
                return
            except ConflictError:
                continue

    async def _replace(self, storage: HasRecords, name: str, data: Mapping[str, Json]) -> None:
        """Put a record whatever is there; nothing over nothing."""
        for _ in range(TRIES):
            found = await storage.record(self._context, name)
            if (found is None or not found.data) and not data:
                return
            try:
                await storage.put_record(self._context, name, data, rev=0 if found is None else found.rev)
                return
            except ConflictError:
                continue

    async def _lineage(self) -> frozenset[str]:
        context = await self._storage.context(self._context)
        return frozenset([context.id, *(owner for owner, _ in context.lineage)])

    async def _actors(self, ids: Sequence[str]) -> dict[str, str]:
        """Return who said some entries, by id."""
        entries = await self._storage.get(ids) if ids else []
        return {one.id: one.actor for one in entries if one is not None and one.actor}

    def _young(self, rows: Iterable[Any], now: int) -> list[list[Any]]:
        oldest = now - round(self._config.max_age_seconds * 1_000_000)
        return [list(one) for one in rows if one[3] >= oldest]

    def _names(self) -> list[str]:
        return [NEWEST, *(f"{NEWEST}:{slot}" for slot in range(15))]

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def page(self, limit: int, after: str | None) -> list[LoggedRender]:
        """Return the newest renders before one, newest first, each compared with the one before it."""
        rows = await self._rows()
        start = 0 if after is None else 1 + _index_of_row(rows, after)
        return await off_loop(partial(_list_renders, rows, start, limit), READ * min(limit, len(rows)))

    async def details(self, id: str) -> RenderDetails:
        """Return one render with its blocks and verdicts; `NotFoundError` for one that is not there any more."""
        rows = await self._rows()
        place = _index_of_row(rows, id)
        row, earlier = rows[place], _find_previous_row(rows, place)
        found, was = (
            _unpack_full_manifest(row),
            None if earlier is None else _unpack_manifest(earlier.outline),
        )
        verdicts = list(ledger_of_manifest(lambda: found).candidates.values())
        left = [one.id for one in verdicts if not one.included and one.version]
        ids = dict.fromkeys([*found.entries, *left, *(() if was is None else was.entries)])
        entries = [one for one in await self._storage.get(list(ids)) if one is not None]
        told = {
            one.id: one for one in self._stage.entries([one for one in entries if one.state is State.LIVE])
        }
        previews = {id: preview_text(told[id].content, PREVIEW) for id in left if id in told}
        more = {"verdicts": verdicts, "previews": previews}
        return await off_loop(partial(_build_details, rows, place, told, more), READ * 4)

    async def _rows(self) -> list[_Row]:
        """Return the rows that have not expired, newest first, and delete the expired ones."""
        storage = self._storage
        if not await self._known() or not isinstance(storage, HasRecords):
            return []
        await self.idle()
        now = to_microseconds(datetime.now(UTC))
        found: dict[str, _Row] = {}
        for name in self._names():
            record = await storage.record(self._context, name)
            rows = () if record is None else record.data.get("rows", ())
            young = self._young(rows, now)
            found.update({one[0]: _Row(*one) for one in young})
            if len(young) < len(rows) and record is not None:
                try:
                    await storage.put_record(
                        self._context, name, {**record.data, "rows": young}, rev=record.rev
                    )
                except (ConflictError, StorageReadOnlyError):
                    continue
        return sorted(found.values(), key=lambda one: (one.at, one.id), reverse=True)


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
    sent = [
        Sent(
            path="recalled" if len(ids) > 1 else "history",
            role=Role(str(message["role"])),
            hash=sha256(canonical(message).encode("utf-8", "surrogatepass")).hexdigest()[:32],
            tokens=sum([costs.get(id, 0) for id in ids]),
            parts=tuple([_quote_entry(id) for id in ids]),
            sources=ids,
            pieces=ids if len(ids) > 1 else (),
            first=min(_versions_of_ids(ids), default=0),
            last=max(_versions_of_ids(ids), default=0),
        )
        for message, ids in zip(messages, sources, strict=True)
    ]
    return _build_manifest(
        "messages", sent, items.ledger, budget, tokens, counter, (Read(items.context, items.version),)
    )


def manifest_of_reply(
    fragments: Sequence[tuple[str, str, str, int]], ledger: Ledger, *, budget: int
) -> Manifest:
    """Return the manifest of a reply of the contract; a fragment is (id, layer, level of detail, tokens)."""
    sent = [
        Sent(
            path=layer,
            role=Role.USER,
            hash=sha256(f"{id} {lod} {tokens}".encode()).hexdigest()[:32],
            tokens=tokens,
            parts=(_quote_entry(id),) if parse_entry_id(id) else (),
            rendition=lod,
            sources=(id,) if parse_entry_id(id) else (),
            pieces=(id,),
            first=min(_versions_of_ids((id,)), default=0),
            last=max(_versions_of_ids((id,)), default=0),
        )
        for id, layer, lod, tokens in fragments
    ]
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
    return Written("text", (("text", (Quote(id, 0, LONGEST), "\n")),))


def _versions_of_ids(ids: Sequence[str]) -> list[int]:
    return [place[1] for id in ids if (place := parse_entry_id(id)) is not None]


# ── rows ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _pack_row(kind: KindOf, manifest: Manifest, request: str, at: int, head: Head) -> _Row:
    kept = manifest
    if not kept.reads:
        kept = replace(kept, reads=(Read(head.context, head.version),))
    outline = _pack_manifest(replace(kept, candidates=()))
    if len(outline) > ROW:
        kept = drop_own_words(kept)
        outline = _pack_manifest(replace(kept, candidates=()))
    chosen = sorted(kept.candidates, key=lambda one: (not one.included, -one.score))
    rejected = sum([not one.included for one in chosen])
    nothing = Manifest(codec=kept.codec, model=kept.model, tokens=0, upper_bound=0)
    while True:
        candidates = _pack_manifest(replace(nothing, candidates=tuple(chosen)))
        if len(outline) + len(candidates) <= ROW or not chosen:
            return _Row(uuid4().hex[:16], request, kind, at, outline, candidates, rejected)
        chosen = chosen[: len(chosen) // 2]


def _pack_manifest(manifest: Manifest) -> str:
    return b64encode(zlib.compress(canonical(manifest.to_json()).encode(), 1)).decode()


@lru_cache(maxsize=256)
def _unpack_manifest(written: str) -> Manifest:
    return Manifest.from_json(json.loads(zlib.decompress(b64decode(written))))


def _row_size(row: Sequence[Any]) -> int:
    return 120 + sum([len(str(one)) for one in row])


def _unpack_full_manifest(row: _Row) -> Manifest:
    return replace(_unpack_manifest(row.outline), candidates=_unpack_manifest(row.candidates).candidates)


# ── reports ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _index_of_row(rows: Sequence[_Row], id: str) -> int:
    for place, row in enumerate(rows):
        if row.id == id:
            return place
    raise NotFoundError(f"no render has the id {id!r}, or it is too old", options=("list the renders",))


def _find_previous_row(rows: Sequence[_Row], place: int) -> _Row | None:
    """Return the render of the same kind that came before one."""
    return next((row for row in rows[place + 1 :] if row.kind == rows[place].kind), None)


def _list_renders(rows: Sequence[_Row], start: int, limit: int) -> list[LoggedRender]:
    return [
        LoggedRender(**_summarize_row(rows, place)) for place in range(start, min(len(rows), start + limit))
    ]


def _summarize_row(rows: Sequence[_Row], place: int) -> dict[str, Any]:
    row, earlier = rows[place], _find_previous_row(rows, place)
    manifest = _unpack_manifest(row.outline)
    cache, price = _predict_cache_loss(
        row.kind, manifest, None if earlier is None else _unpack_manifest(earlier.outline)
    )
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
        "left_out": row.rejected + sum([len(one.ids) for one in manifest.left if one.gone]),
        "use": _use_of_manifest(manifest),
        "cache": cache,
        "paid": round(manifest.tokens if cache is None else cache.paid()),
        "lost": price,
        "previous": None if earlier is None else earlier.id,
    }


def _predict_cache_loss(
    kind: KindOf, now: Manifest, was: Manifest | None
) -> tuple[CachePrediction | None, int]:
    """Return the part the provider can read from its cache and the cost of a miss; None where nothing is cached."""
    if kind == "acs":
        return None, 0
    from acms.providers import codecs  # the formats of all providers

    codec = codecs.named(*LIKE.get(kind, (now.codec, now.model)))
    found = predict_cache(now, was, codec)
    if was is None:
        return found, 0
    grown = replace(found, predicted_tokens=codec.cached(min(was.tokens, now.tokens)))
    return found, max(0, round(found.paid() - grown.paid()))


def _part_of_request(one: Sent) -> str:
    """Return the part of a request that a message belongs to, as `Use` names it."""
    if one.pieces:
        return "recalled" if one.sources else "pins"
    if one.sources or one.rendition in ("summary", "placeholder"):
        return "history"
    return "system" if one.role in INSTRUCTING else "written"


def _use_of_manifest(manifest: Manifest) -> Use:
    found = Counter[str]()
    for one in manifest.messages:
        found[_part_of_request(one)] += one.tokens
    known = {one.name for one in fields(Use)}
    free = 0 if manifest.budget is None else manifest.budget - manifest.upper_bound
    frame = max(0, manifest.tokens - sum(found.values()))
    return Use(**{name: found[name] for name in found if name in known}, tools=frame, free=free)


def _build_details(
    rows: Sequence[_Row], place: int, told: Mapping[str, Entry], more: Mapping[str, Any]
) -> RenderDetails:
    earlier = _find_previous_row(rows, place)
    manifest = _unpack_manifest(rows[place].outline)
    was = () if earlier is None else _unpack_manifest(earlier.outline).messages
    old, new = [sent.hash for sent in was], [sent.hash for sent in manifest.messages]
    both = zip(old, new, strict=False)
    shared = next((at for at, (a, b) in enumerate(both) if a != b), min(len(old), len(new)))
    known, now = frozenset(old), frozenset(new)
    blocks = [
        _build_block(sent, at, "same" if at < shared else "moved" if sent.hash in known else "added", told)
        for at, sent in enumerate(manifest.messages)
    ]
    request = _request_of(rows[place], told)
    return RenderDetails(
        **_summarize_row(rows, place),
        **more,
        payload=request.payload,
        payload_note=request.note,
        blocks=blocks,
        removed=[
            _build_block(sent, at, "removed", told) for at, sent in enumerate(was) if sent.hash not in now
        ],
        steps=[one._asdict() for one in manifest.steps],
        redactions={one.entry: dict(one.kinds) for one in manifest.redactions},
    )


def _request_of(row: _Row, told: Mapping[str, Entry]) -> Rebuilt:
    if row.kind != "prompt":
        return Rebuilt(None, f"of {row.kind} only what it showed is kept; the request was written elsewhere")
    return rebuild_request(_unpack_manifest(row.outline), told)


def _build_block(sent: Sent, place: int, change: str, told: Mapping[str, Entry]) -> RenderBlock:
    texts = [_text_of(part, told) for part in sent.parts]
    return RenderBlock(
        place=place,
        role=sent.role,
        part=_part_of_request(sent),
        path=sent.path,
        tokens=sent.tokens,
        rendition=sent.rendition,
        sources=sent.sources,
        first=sent.first,
        last=sent.last,
        change=change,
        text=None if not texts or None in texts else "\n".join(map(str, texts)).strip(),
    )


def _text_of(part: Whole | Written, told: Mapping[str, Entry]) -> str | None:
    """Return the text of a part, read from the log; None when the log no longer has it."""
    try:
        if isinstance(part, Whole):
            said = told[part.entry].parts[part.part]
            return " ".join([str(getattr(said, name)) for name in TEXTS if hasattr(said, name)])
        return "".join(join_segments(value, told) for _, value in part.fields if isinstance(value, tuple))
    except (KeyError, IndexError, AttributeError):
        return None
