"""Cache windows: where the prompts of a session show their history and what they recalled.

A provider reads from its cache the prefix a request shares with the one before, up to the first change, and accepts
signed reasoning only after the exact prefix it was produced under. Placing a recall again each turn would change the
request in its middle, every turn. So the passages recalled for a turn become a block before that turn's user message
and stay there, before everything that follows, until the budget is full. Then a new window begins with the newest
messages and a new recall.

The positions cannot be derived from the log alone (recalls depend on the question, and on vectors that arrive late), so
they are kept in a record of ids and spans, without text, beside the log (decision 0060). One record holds the windows
of the budgets that were used last. A budget without a window of its own continues the newest of another one, so that a
caller whose budget changes from turn to turn keeps the provider's cache.

A render never fails because of this record. If it cannot be read or stored, the prompt loses its cache, and a warning
says so.
"""

from __future__ import annotations

import asyncio
import json
import logging
import zlib
from base64 import b64decode, b64encode
from collections.abc import Container, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from hashlib import sha256
from typing import Any, NamedTuple

from acms.errors import ConflictError, SessionNotFoundError, StorageBusyError, StorageReadOnlyError
from acms.knowledge import DOUBT
from acms.log.active_entries import Replacements, is_automatic_summary, is_sealed
from acms.log.encoding import parse_entry_id
from acms.log.native_items import EXTRA_FIELDS
from acms.log.policy import PRIVATE
from acms.log.read import replacements_at, valid_times_at
from acms.log.validation import RECORD_BYTES, UNNAMED
from acms.log.validity import Period, label_at_end
from acms.model import (
    Context,
    Entry,
    Json,
    Kind,
    Part,
    Raw,
    Reasoning,
    State,
    Text,
    ToolCall,
    ToolResult,
)
from acms.observability.logging import log_event, safe_error
from acms.plan.nodes import ComposedMessage, FittedPrompt, MessageGroup, Piece, PlacedMessage, is_path_inside
from acms.plan.turns import is_question
from acms.ports import Codec, HasRecords, StorageBackend
from acms.prompt.cache_forecast import find_hoisted_roles
from acms.prompt.excerpts import find_own_logs
from acms.prompt.manifest import Quote, Segment, canonical
from acms.prompt.manifest_writer import Quotable, fingerprint_message, join_segments, quote_text
from acms.prompt.steps import Log, Readable, RecallStep
from acms.prompt_types import PromptMessage, Tool

MOST_BUDGETS_SEARCHED = 32
"""How far back the question that began a turn is searched for, in multiples of the prompt's budget."""

_REASONING = ("reasoning", "redacted_thinking")
"""Types of items that hold encrypted reasoning."""

FORMAT = 3
"""Version of the record's format; a record of another version is ignored."""

STORE_SECONDS = 1.0
"""Seconds that a render waits for its record to be stored: more than a commit on a busy disk takes.

Another process may hold the lock of an SQLite file for longer. A request is not delayed for the sake of the cache.
"""

Windows = dict[int, str]
"""Packed windows by budget, the ones stored last first."""


class QuotedPiece(NamedTuple):
    """A piece of a block: the entries it shows, and which spans of them."""

    sources: tuple[str, ...]
    text: tuple[Segment, ...]


class Block(NamedTuple):
    """The passages recalled for one turn, and their position."""

    #: The block stands before everything that was written after this version of the log.
    after: int
    #: Hash of the query, of 16 bits only: enough to compare two queries, too little to find out the text.
    tag: int
    pieces: tuple[QuotedPiece, ...]


class CacheWindow(NamedTuple):
    """A run of requests that share a beginning: where their history starts, and the blocks among it."""

    #: Tokens of the log before the first message shown, and the version of that message.
    start_tokens: int
    first_version: int
    #: Version of the log when the window began: earlier reasoning was produced under another prefix.
    began_at: int
    #: Erasure generation of the log then.
    generation: int
    #: Hashes of the requests rendered in it: reasoning is sent again only behind one of them.
    request_hashes: tuple[str, ...] = ()
    #: Entries in front: system messages, a question, and summaries with the tokens of the text shown (0 for a message).
    front_entries: tuple[tuple[str, int], ...] = ()
    blocks: tuple[Block, ...] = ()
    #: Labels of messages and summaries of the history that may be outdated, by id.
    labels: tuple[tuple[str, str], ...] = ()
    #: Tool calls by version, each with the most tokens that one of its outputs was shown with.
    outputs: tuple[tuple[int, int], ...] = ()

    @property
    def ids(self) -> list[str]:
        """Ids of the entries that the front and the blocks show."""
        ids = [id for id, _ in self.front_entries]
        for block in self.blocks:
            for piece in block.pieces:
                ids += piece.sources
        return ids

    def pack(self) -> str:
        """Serialize as compressed text: the same ids and field names repeat many times."""
        fields: dict[str, Json] = {
            "start": self.start_tokens,
            "first": self.first_version,
            "began": self.began_at,
            "generation": self.generation,
            "sent": self.request_hashes,
            "lead": self.front_entries,
            "labels": self.labels,
            "outputs": self.outputs,
            "blocks": [block._asdict() for block in self.blocks],
        }
        return b64encode(zlib.compress(canonical(fields).encode("utf-8", "surrogatepass"))).decode()

    @classmethod
    def unpack(cls, text: str) -> CacheWindow:
        """Parse the result of `pack`."""
        fields = json.loads(zlib.decompress(b64decode(text)))
        return cls(
            start_tokens=fields["start"],
            first_version=fields["first"],
            began_at=fields["began"],
            generation=fields["generation"],
            request_hashes=tuple(fields["sent"]),
            front_entries=tuple(map(tuple, fields["lead"])),
            labels=tuple(map(tuple, fields.get("labels", ()))),
            outputs=tuple(map(tuple, fields.get("outputs", ()))),
            blocks=tuple(map(_block_from_json, fields["blocks"])),
        )

    def inherit(self, fork_version: int) -> CacheWindow | None:
        """Return the part that a fork at a version continues, or None if the window began later."""
        if self.began_at > fork_version:
            return None
        return self._replace(
            blocks=tuple(block for block in self.blocks if block.after <= fork_version),
            outputs=tuple(output for output in self.outputs if output[0] <= fork_version),
        )


def _block_from_json(block: Mapping[str, Any]) -> Block:
    pieces = [QuotedPiece(tuple(ids), tuple(map(_segment_from_json, text))) for ids, text in block["pieces"]]
    return Block(block["after"], block["tag"], tuple(pieces))


def _segment_from_json(segment: Any) -> Segment:
    return segment if isinstance(segment, str) else Quote(*segment)


# ── the stored windows ──────────────────────────────────────────────────────────────────────────────────────────────


def name_record(codec: Codec, history_name: str, log: Log, recall: RecallStep | None) -> str:
    """Return a hash of the properties shared by prompts whose recalls have the same positions."""
    shape: list[Json] = [codec.name, codec.model, history_name]
    if recall is not None:
        options = recall.options
        where = json.dumps(options["where"], default=str, sort_keys=True)
        shape += [recall.tokens, log.session.effort, options["scope"], options["min_relevance"]]
        if options["where"] or options["limit"]:
            shape += [where, options["limit"]]
    shape += [*log.first, str(log.session.redactor.mode or "")]
    return sha256(canonical(shape).encode("utf-8", "surrogatepass")).hexdigest()[:32]


class WindowRecord:
    """Reads and stores the cache windows of one prompt of one log."""

    def __init__(self, storage: HasRecords, name: str, budget: int) -> None:
        self._storage = storage
        self._name = name
        #: The budget of the render.
        self.budget = budget
        #: Revision that was read; 0 if this log has no record of its own, None if it could not be read.
        self._revision: int | None = None
        self._windows: Windows = {}
        #: The window for the budget in this log's own record.
        self.own_window: CacheWindow | None = None
        #: The budget that the loaded window was made for.
        self.made_for = budget
        #: Warnings about failed reads and writes.
        self.warnings: list[str] = []

    async def load(self, context: Context) -> CacheWindow | None:
        """Return the window of a log, or the part a fork inherits from the nearest ancestor that has one.

        It is the one for the budget; if there is none, the one that was stored last for another budget.
        """
        try:
            return await self._load(context)
        except Exception as error:
            log_event(logging.WARNING, "placement_not_read", context=context.id, error=safe_error(error))
            self.warnings.append(
                "this request and the next one miss the provider's cache: "
                f"the positions of recalled messages could not be read ({safe_error(error)})"
            )
            return None

    async def _load(self, context: Context) -> CacheWindow | None:
        """Read this log's own record, else that of the nearest ancestor, and return the window to continue."""
        record = await self._storage.record(context.id, self._name)
        if record is not None:
            self._revision = record.rev
            self._windows = read_windows(record.data)
            window = self._choose(self._windows)
            self.own_window = window if self.made_for == self.budget else None
            return window
        self._revision = 0
        for ancestor, fork in reversed(context.lineage):
            if ancestor == context.id:  # its own record was looked for above
                continue
            try:
                record = await self._storage.record(ancestor, self._name)
            except SessionNotFoundError:  # the parent was deleted
                continue
            if record is not None:
                window = self._choose(read_windows(record.data))
                return None if window is None else window.inherit(fork)
        return None

    def _choose(self, windows: Windows) -> CacheWindow | None:
        """Return the window of the budget, else the one that was stored last; None if none is stored."""
        if not windows:
            return None
        self.made_for = self.budget if self.budget in windows else next(iter(windows))
        return CacheWindow.unpack(windows[self.made_for])

    async def store(self, context: str, window: CacheWindow, *, replaces: bool) -> bool:
        """Store a window; return False if another render stored one since this one was read.

        `replaces` says that a new window began: the stored one is finished, and is dropped if its successor cannot be
        stored.
        """
        if self._revision is None:  # the record could not be read, so it is not overwritten
            return True
        other_windows = {
            budget: packed_window for budget, packed_window in self._windows.items() if budget != self.budget
        }
        try:
            data = _write_windows({self.budget: window.pack(), **other_windows})
            await self._put(context, data, self._revision)
        except ConflictError:
            return False
        except StorageReadOnlyError:  # nothing can be stored, as with a view, and trying again would not help
            return True
        except Exception as error:
            log_event(logging.WARNING, "placement_not_stored", context=context, error=safe_error(error))
            self.warnings.append(
                "the next request misses the provider's cache: "
                f"the positions of recalled messages could not be stored ({safe_error(error)})"
            )
            # The stored window must not be continued: this request did not show it.
            if replaces and self._revision:
                data = _write_windows(other_windows) if other_windows else {}
                with suppress(Exception):
                    await self._put(context, data, self._revision)
        return True

    async def _put(self, context: str, data: dict[str, Json], revision: int) -> None:
        """Store the record; raise `StorageBusyError` if this takes longer than `STORE_SECONDS`."""
        try:
            async with asyncio.timeout(STORE_SECONDS):
                await self._storage.put_record(context, self._name, data, rev=revision)
        except TimeoutError:
            raise StorageBusyError(f"the store did not answer within {STORE_SECONDS:g} s") from None


def read_windows(record: Mapping[str, Any]) -> Windows:
    """Parse the data of a record; one of another format has no windows, which only costs the cache."""
    if record.get("format") != FORMAT:
        return {}
    return dict(record["epochs"])


def _write_windows(windows: Windows) -> dict[str, Json]:
    """Serialize the first window, and up to three others, as far as they fit into a record."""
    rows: list[list[Json]] = []
    bytes_left = RECORD_BYTES - 1024  # the rest is for the frame of the record
    for budget, packed_window in windows.items():
        bytes_left -= len(json.dumps([budget, packed_window])) + 1
        if rows and (bytes_left < 0 or len(rows) == 4):
            break
        rows.append([budget, packed_window])
    return {"format": FORMAT, "epochs": rows}


# ── whether a window can go on ──────────────────────────────────────────────────────────────────────────────────────


def _is_window_valid(
    window: CacheWindow,
    log_replacements: Replacements,
    recall_replacements: Replacements,
    entries: Sequence[Entry],
) -> bool:
    """Return whether nothing that a window shows was replaced or retracted since it began.

    `log_replacements` covers the entries superseded or retracted in the log, `recall_replacements` those that a recall
    cannot find. `entries` are those of this log that the window shows in front and in blocks. An automatic summary
    takes effect with the next window; the messages a summary covers are recalled in their original wording.
    """
    for entry in log_replacements.replacing_after(window.began_at):
        if not is_automatic_summary(entry) and _changes_history(entry, window.first_version):
            return False
    log_replacements = log_replacements.without_automatic_after(window.began_at)
    recall_replacements = recall_replacements.without_automatic_after(window.began_at)
    front_ids = {id for id, _ in window.front_entries}
    for entry in entries:
        replacements = log_replacements if entry.id in front_ids else recall_replacements
        if replacements.replaced_by(entry.version) is not None:
            return False
        if is_sealed(entry) and log_replacements.is_outdated(entry):
            return False
    return True


def _changes_history(entry: Entry, first_version: int) -> bool:
    """Return whether an entry changes the history from a version on; facts replace facts, which are not part of it."""
    if entry.kind is Kind.SUMMARY:
        return True
    return entry.kind is not Kind.FACT and any(last >= first_version for _, last in entry.replaces)


def _group_foreign_ids(window: CacheWindow, lineage: Container[str]) -> dict[str, list[str]]:
    """Return the ids of the entries of other logs (a profile, another session) that a window shows, by log."""
    ids_by_log: dict[str, list[str]] = {}
    for id in window.ids:
        parsed = parse_entry_id(id)
        if parsed is not None and parsed[0] not in lineage:
            ids_by_log.setdefault(parsed[0], []).append(id)
    return ids_by_log


def _is_label_current(shown_text: str | None, period: Period, entry: Entry, moment: datetime | None) -> bool:
    """Return whether the shown text of an entry carries its current label; None means it is not shown here.

    An ended fact is not shown at all, and a tool call and its answer have no label.
    """
    if entry.kind is Kind.FACT and moment is not None and period.is_over(moment):
        return False
    own_text_has_label = bool(label_at_end(entry.content))
    if shown_text is None or entry.group is not None or own_text_has_label:
        return True
    if entry.kind is Kind.FACT:
        return period.doubt in shown_text and bool(period.doubt) == (DOUBT in shown_text)
    return label_at_end(shown_text).strip() == period.warning(moment)


async def load_window_entries(
    session: Readable, window: CacheWindow, context: Context
) -> dict[str, Entry] | None:
    """Return the entries that a window shows, redacted, by id; None if the window can no longer be continued.

    That is the case if an entry it shows was erased, replaced or retracted, or has another label now.
    """
    storage = session.storage
    head = await storage.head(context.id)
    if head.epoch != window.generation:
        return None
    rows = await storage.get(window.ids) if window.ids else []
    live = [row for row in rows if row is not None and row.state is State.LIVE]
    if len(live) < len(rows):
        return None
    own_logs = find_own_logs(context)
    foreign_ids = _group_foreign_ids(window, own_logs)
    own_rows = [row for row in live if row.context in own_logs]
    log_replacements = await replacements_at(storage, context.id, head, head.version)
    recall_replacements = await replacements_at(storage, context.id, head, head.version, searchable=True)
    if not _is_window_valid(window, log_replacements, recall_replacements, own_rows):
        return None
    if not await _are_foreign_entries_valid(storage, foreign_ids):
        return None
    entries = {entry.id: entry for entry in session.redactor.redact_entries(live)}
    labels_are_current = await _are_labels_current(session, window, context, foreign_ids, live, entries)
    return entries if labels_are_current else None


async def _are_foreign_entries_valid(
    storage: StorageBackend, ids_by_log: Mapping[str, Sequence[str]]
) -> bool:
    """Return whether the entries shown of other logs are active there and may still be shown outside of them."""
    for owner, ids in ids_by_log.items():
        try:
            context, head = await storage.context(owner), await storage.head(owner)
        except SessionNotFoundError:
            return False
        if context.settings.get(PRIVATE) or context.namespace == UNNAMED:
            return False  # no other session may show a private log, or one without a namespace
        replacements = await replacements_at(storage, owner, head, head.version)
        for row in await storage.get(ids):
            if row is None or replacements.replaced_by(row.version) is not None:
                return False
    return True


async def _are_labels_current(
    session: Readable,
    window: CacheWindow,
    context: Context,
    foreign_ids: Mapping[str, Sequence[str]],
    rows: Sequence[Entry],
    entries: Mapping[str, Entry],
) -> bool:
    """Return whether no fact that is shown has ended by now, and every doubtful entry carries its label."""
    storage = session.storage
    rows_by_log: dict[str, list[Entry]] = {}
    for row in rows:
        owner = row.context if row.context in foreign_ids else context.id
        rows_by_log.setdefault(owner, []).append(row)
    heads = [await storage.head(owner) for owner in rows_by_log]
    heads = [head for head in heads if head.version > head.messages]
    if not heads:  # there are no facts
        return True
    labels = (await session.read_span(messages=1)).labels
    texts = collect_visible_texts((), window.blocks, entries)
    for head in heads:
        owner = head.context
        rows_of_log = rows_by_log[owner]
        periods = labels.times
        if owner != context.id:
            periods = await valid_times_at(storage, owner, head, head.version)
        for row in rows_of_log:
            period = periods.get(row.version)
            if period is None and row.kind is not Kind.FACT:
                period = Period()
            text, entry = texts.get(row.id), entries[row.id]
            if period is None or not _is_label_current(text, period, entry, labels.moment):
                return False
    return True


# ── positions among the messages ────────────────────────────────────────────────────────────────────────────────────


def index_after_version(groups: Sequence[MessageGroup], after: int) -> int:
    """Return the index of the first of the groups that were all written after a version."""
    index = len(groups)
    while index and groups[index - 1].first > after:
        index -= 1
    return index


def has_recalled(query: str, window: CacheWindow, groups: Sequence[MessageGroup], index: int) -> bool:
    """Return whether a window has a block for a query at the beginning of the newest turn, at `index`, or later."""
    tag = tag_of_query(query)
    return any(
        block.tag == tag and index_after_version(groups, block.after) >= index for block in window.blocks
    )


def find_newest_start(costs: Sequence[int], share: int, budget: int, turn_start: int) -> int:
    """Return the index of the first of the newest groups that fit `share` tokens.

    Those of the newest turn, from `turn_start` on, are taken as far as they fit the whole budget.
    """
    if not costs:
        return 0
    start = len(costs)
    tokens = 0
    while start:
        tokens += costs[start - 1]
        if tokens > (budget if start > turn_start else share):
            break
        start -= 1
    return min(start, len(costs) - 1)


def question_of(front: Sequence[MessageGroup]) -> str:
    """Return the newest user message among the groups in front of a history, or "" if there is none."""
    return next((group.messages[0].text for group in reversed(front) if is_question(group)), "")


def interleave_blocks(
    groups: Sequence[MessageGroup], blocks: Sequence[tuple[int, ComposedMessage]]
) -> list[MessageGroup | ComposedMessage]:
    """Return groups with blocks among them: each before everything that was written after its version."""
    blocks_by_index: dict[int, list[ComposedMessage]] = {}
    for after, block in blocks:
        blocks_by_index.setdefault(index_after_version(groups, after), []).append(block)
    nodes: list[MessageGroup | ComposedMessage] = []
    for index, group in enumerate(groups):
        nodes += blocks_by_index.get(index, ())
        nodes.append(group)
    return nodes + blocks_by_index.get(len(groups), [])


def tag_of_query(query: str) -> int:
    """Return a hash of 16 bits that identifies a query."""
    digest = sha256(query.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[2:4], "big")


# ── the shown text ──────────────────────────────────────────────────────────────────────────────────────────────────


def build_recall_block(
    after: int, query: str, pieces: Sequence[Piece], entries: Mapping[str, Quotable]
) -> Block:
    """Return recalled pieces as they are stored: by the spans of the entries they show."""
    quoted_pieces: list[QuotedPiece] = []
    for piece in pieces:
        known_ids = [id for id in piece.sources if id in entries]
        quoted_pieces.append(QuotedPiece(piece.sources, quote_text(piece.text, known_ids, entries)))
    return Block(after, tag_of_query(query), tuple(quoted_pieces))


def pieces_of_block(block: Block, entries: Mapping[str, Quotable]) -> tuple[Piece, ...]:
    """Return the pieces of a block as they were shown."""
    return tuple(
        Piece(join_segments(piece.text, entries), piece.sources[0], sources=piece.sources)
        for piece in block.pieces
    )


def collect_visible_texts(
    groups: Sequence[MessageGroup], blocks: Sequence[Block], entries: Mapping[str, Quotable]
) -> dict[str, str]:
    """Return the shown text of each entry, by its id."""
    shown_texts: list[tuple[Sequence[str], str]] = []
    for group in groups:
        for message in group.messages:
            shown_texts.append((message.sources, "\n".join(map(_text_of_part, message.parts))))
    for block in blocks:
        for piece in block.pieces:
            shown_texts.append((piece.sources, join_segments(piece.text, entries)))
    texts: dict[str, str] = {}
    for ids, text in shown_texts:
        for id in ids:
            texts[id] = texts.get(id, "") + text
    return texts


def _text_of_part(part: Part) -> str:
    match part:
        case ToolResult():
            return part.output
        case ToolCall():
            return part.arguments
        case Text():
            return part.text
        case _:
            return ""


def visible_ids(groups: Iterable[MessageGroup]) -> frozenset[str]:
    """Return the ids of the entries that groups show."""
    return frozenset(id for group in groups for id in group.sources)


# ── what a fit left out ─────────────────────────────────────────────────────────────────────────────────────────────


def list_lost_entries(fitted: FittedPrompt, path: str) -> set[str]:
    """Return the ids of the entries that a fit left out of the history at a path of the prompt tree."""
    lost_ids: set[str] = set()
    for omission in fitted.omissions:
        if omission.gone and is_path_inside(omission.path, path):
            lost_ids.update(omission.ids)
    return lost_ids


def drop_lost_entries(
    window: CacheWindow, nodes: Sequence[MessageGroup | ComposedMessage], lost_ids: AbstractSet[str]
) -> CacheWindow:
    """Return a window without the entries that were left out of its nodes: it starts at the first group still shown."""
    first_group: MessageGroup | None = None
    for node in nodes:
        if isinstance(node, MessageGroup) and node.first and lost_ids.isdisjoint(node.sources):
            first_group = node
            break
    blocks: list[Block] = []
    for block in window.blocks:
        pieces = [piece for piece in block.pieces if lost_ids.isdisjoint(piece.sources)]
        blocks.append(block._replace(pieces=tuple(pieces)))
    return window._replace(
        start_tokens=window.start_tokens if first_group is None else first_group.before,
        first_version=window.first_version if first_group is None else first_group.first,
        front_entries=tuple([(id, tokens) for id, tokens in window.front_entries if id not in lost_ids]),
        blocks=tuple(blocks),
    )


# ── reasoning ───────────────────────────────────────────────────────────────────────────────────────────────────────


def strip_old_reasoning(groups: Sequence[MessageGroup], window_version: int) -> list[MessageGroup]:
    """Return groups without the signed or encrypted reasoning from before a window, produced under another prefix."""
    stripped_groups: list[MessageGroup] = []
    for group in groups:
        has_bound_reasoning = any(
            _is_prefix_bound(part) for message in group.messages for part in message.parts
        )
        if group.first <= window_version and has_bound_reasoning:
            group = group._replace(messages=tuple(map(_strip_reasoning, group.messages)))
        stripped_groups.append(group)
    return stripped_groups


def _strip_reasoning(message: PromptMessage) -> PromptMessage:
    parts = tuple([part for part in message.parts if not _is_prefix_bound(part)])
    if len(parts) == len(message.parts):
        return message
    return replace(message, parts=parts or (Text(""),))


def _is_prefix_bound(part: Part) -> bool:
    """Return whether a provider accepts a part only behind the prefix it was produced under."""
    if isinstance(part, Reasoning):
        return bool(part.signature)
    if not isinstance(part, Raw) or part.vendor == EXTRA_FIELDS:
        return False
    return any(f'"{kind}"' in part.json for kind in _REASONING)


def drop_unproven_reasoning(
    placed: Sequence[PlacedMessage], sent_hashes: AbstractSet[str], codec: Codec, tools: Sequence[Tool]
) -> tuple[tuple[PlacedMessage, ...], str]:
    """Return messages without the reasoning of a log that no known request led to, and a hash of the whole request.

    A provider takes signed reasoning only behind the very request that it answered: tools, system, every message.
    `sent_hashes` are the hashes of requests; reasoning stays where one of them is that of everything before it.
    """
    hoisted_roles = find_hoisted_roles(codec.normal)
    kept_messages = list(placed)
    signatures = [[tool.name, tool.description, tool.parameters, tool.strict] for tool in tools]
    digest = sha256(canonical(signatures).encode())
    reading_order = sorted(
        range(len(placed)), key=lambda index: placed[index].message.role not in hoisted_roles
    )
    for index in reading_order:
        message = placed[index].message
        has_bound_reasoning = bool(message.sources) and any(map(_is_prefix_bound, message.parts))
        if has_bound_reasoning and _short_hash(digest.hexdigest()) not in sent_hashes:
            message = _strip_reasoning(message)
            kept_messages[index] = placed[index]._replace(message=message, tokens=codec.cost(message))
        digest.update(fingerprint_message(message).encode())
    return tuple(kept_messages), _short_hash(digest.hexdigest())


def _short_hash(digest: str) -> str:
    """Return the 64 bits of a hash that tell the requests of one window apart."""
    return digest[:16]
