"""Make a log hold a list of messages as a framework keeps it, in one append."""

from __future__ import annotations

import marshal
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from typing import Any, NamedTuple, TypeVar

from acms.errors import ConflictError, ValidationError
from acms.log import known_messages, provider_messages, trust, validation
from acms.log.active_entries import GONE
from acms.log.encoding import draw_token
from acms.log.known_messages import Row
from acms.log.provider_messages import Turn
from acms.log.repair import rename_repeated_calls
from acms.model import EMPTY, Draft, Entry, Head, Kind, Origin, Privacy, Role, Span
from acms.privacy.modes import stored_mode, stricter_mode
from acms.results import Synced
from acms.session_state import SharedSession
from acms.text.chat_messages import FRAMES, NO_RESULT
from acms.write import retirement
from acms.write.alignment import Alignment, Item, align_messages, changes_groups, pair_calls_with_results
from acms.write.intake import DraftOf, is_empty_turn, log_cut_texts, read_message
from acms.write.queue import AppendRequest, AppendResult, LogChangedError, Writer, placement_notes

T = TypeVar("T")


class SyncOutcome(NamedTuple):
    """The result of a sync, and what it appended."""

    result: Synced
    context: str = ""
    #: None if nothing had to be stored.
    delivered: AppendResult | None = None
    #: Number of its drafts that are edits and retractions, which come first.
    rewrites: int = 0


class Sync:
    """Makes the log of one session hold one list of messages."""

    def __init__(
        self,
        shared: SharedSession,
        writer: Writer,
        make_draft: DraftOf,
        messages: Sequence[Mapping[str, Any]],
        *,
        retract: bool,
        refuse: bool,
    ) -> None:
        self._shared = shared
        self._writer = writer
        self._make_draft = make_draft
        self._messages = messages
        self._retract = retract
        self._refuse = refuse
        #: Notes on repairs, in words.
        self._notes: dict[str, None] = {}
        #: By position of a message: the notes on its repairs.
        self._repairs: dict[int, tuple[str, ...]] = {}
        self._items: list[Item] = []
        #: By entry id: texts of the log that messages are compared with. None for a text that has to be read first.
        self._texts: dict[str, str | None] = {}

    async def run(self) -> SyncOutcome:
        """Parse the list, align it with the log, and append the changes; align again after a concurrent write."""
        shared = self._shared
        if not shared.config.strict:
            self._messages, rename_notes = rename_repeated_calls(self._messages)
            self._add_notes(*rename_notes)
        by_message = self._parse_items()
        ignored = tuple(index for index, items in enumerate(by_message) if not items)
        items = [item for items in by_message for item in items]
        self._items = self._with_unique_keys(items)
        while True:
            context = await shared.find()
            head = None if context is None else await shared.known.catch_up(shared.storage, context)
            rows = [] if head is None else shared.known.rows
            self._redact_as_stored(rows)
            alignment = await self._align(rows)
            if self._refuse and alignment.inserted:
                raise _insertion_error(self._items[alignment.inserted[0]])
            groups = pair_calls_with_results(self._items, rows, alignment, _new_group_id)
            unchanged = {item: rows[row].id for item, row in alignment.unchanged}
            erased = dict.fromkeys(self._items[item].message for item in alignment.erased)
            result = Synced(
                unchanged=tuple(unchanged.values()),
                ignored=ignored,
                erased=tuple(erased),
                ids=self._ids_by_message(unchanged),
                notes=tuple(self._notes),
            )
            if not (alignment.appended or alignment.replaced or alignment.retracted):
                return SyncOutcome(result)
            try:
                return await self._append(rows, alignment, groups, head, result)
            except LogChangedError:
                continue

    def _add_notes(self, *notes: str) -> None:
        self._notes.update(dict.fromkeys(notes))

    async def _align(self, rows: Sequence[Row]) -> Alignment:
        """Align the list with a log; texts of the log are read only for messages that may have been cut short.

        The first alignment notes the texts that it needs; the next one has them.
        """
        while True:
            alignment = align_messages(
                self._items,
                rows,
                self._count_tokens,
                self._continues,
                self._is_beginning,
                retract=self._retract,
            )
            unread = sorted(id for id, text in self._texts.items() if text is None)
            if not unread:
                return alignment
            entries = await self._shared.storage.get(unread)
            for id, entry in zip(unread, entries, strict=True):
                self._texts[id] = "" if entry is None else entry.content

    async def _append(
        self,
        rows: Sequence[Row],
        alignment: Alignment,
        groups: Mapping[int, str | None],
        head: Head | None,
        result: Synced,
    ) -> SyncOutcome:
        """Append the changes of an alignment in one commit: edits and a retraction first, then the new messages."""
        shared = self._shared
        new_drafts = [self._draft_for_storage(self._items[item]) for item in alignment.appended]
        edits = await self._draft_edits(rows, alignment, groups)
        rewritten = [rows[row] for _, row in alignment.replaced]
        if alignment.retracted:
            retracted = [rows[row] for row in alignment.retracted]
            edits.append(await self._draft_retraction(retracted))
            rewritten += retracted
        context = await shared.ensure()
        version = 0 if head is None else head.version
        removed_ids = frozenset([row.id for row in rewritten] + [row.original_id for row in rewritten])
        rewrite_drafts: Sequence[Draft] = edits
        if edits:
            rewrite_drafts = await retirement.append_retirements(
                shared.storage, context, edits, shared.known.replacements, version, removed_ids
            )
        request = AppendRequest(
            new_drafts,
            shared.config.episodes,
            shared.config.retry,
            before=rewrite_drafts,
            regroups=changes_groups(self._items, rows, alignment),
            at=version,
            rewrites=None if head is None else head.rewrites,
            watch=shared.watch,
            reflect=shared.reflects,
        )
        delivered = await self._writer.post(context, request)
        assert delivered is not None
        receipt = delivered.receipt
        ids = receipt.ids[delivered.start :]
        for draft in delivered.drafts[len(rewrite_drafts) :]:
            self._add_notes(*placement_notes(draft))
        if edits:
            change = retirement.ProfileChange(removed_ids)
            await retirement.propagate_to_profile(shared.storage, shared.namespace, change, ids[0])
            for draft in edits:
                reason = GONE if draft.kind is Kind.RETRACTION else "replaced"
                shared.emit_rewritten(context, receipt.versions[0], draft.sources[0], reason)
        result = self._complete_result(result, rows, alignment, ids, rewrites=len(rewrite_drafts))
        self._log_cut_texts(alignment, result)
        return SyncOutcome(result, context, delivered, rewrites=len(rewrite_drafts))

    def _complete_result(
        self, result: Synced, rows: Sequence[Row], alignment: Alignment, ids: Sequence[str], rewrites: int
    ) -> Synced:
        """Add the stored entries to a result; the first `rewrites` of the appended `ids` are edits and retractions."""
        stored = {item: rows[row].id for item, row in alignment.unchanged}
        replaced = ids[: len(alignment.replaced)]
        stored |= zip([item for item, _ in alignment.replaced], replaced, strict=True)
        appended = ids[rewrites:]
        stored |= zip(alignment.appended, appended, strict=True)
        return replace(
            result,
            appended=tuple(appended),
            replaced=tuple(replaced),
            retracted=tuple([rows[row].id for row in alignment.retracted]),
            inserted=tuple([stored[item] for item in alignment.inserted]),
            ids=self._ids_by_message(stored),
            notes=tuple(self._notes),
        )

    def _log_cut_texts(self, alignment: Alignment, result: Synced) -> None:
        """Warn about the texts that were cut in the messages just stored."""
        stored_items = [*alignment.appended, *[item for item, _ in alignment.replaced]]
        for message in sorted({self._items[item].message for item in stored_items}):
            log_cut_texts(result.ids[message][-1], self._repairs[message])

    def _ids_by_message(self, ids_by_item: Mapping[int, str]) -> tuple[tuple[str, ...], ...]:
        """Return for each message of the list the ids of the entries that hold it."""
        ids: list[tuple[str, ...]] = [()] * len(self._messages)
        for index, item in enumerate(self._items):
            if index in ids_by_item:
                ids[item.message] += (ids_by_item[index],)
        return tuple(ids)

    # ── the list ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _parse_items(self) -> list[tuple[Item, ...]]:
        """Return the items of each message of the list; messages of the previous list are not parsed again."""
        previous = self._shared.listed
        parsed: dict[bytes, tuple[Item, ...]] = {}
        by_message: list[tuple[Item, ...]] = []
        for index, message in enumerate(self._messages):
            fingerprint = _fingerprint_message(message)
            # Frameworks hand over nearly the same list each time, so most messages were parsed before.
            items = None if fingerprint is None else previous.get(fingerprint)
            if items is None:
                items = tuple(self._parse_message(index))
            if fingerprint is not None:
                parsed[fingerprint] = items
            if items and items[0].message != index:
                items = tuple([item._replace(message=index) for item in items])
            by_message.append(items)
        self._shared.listed = parsed
        repeated = [] if self._shared.config.strict else _find_repeated_ids(self._messages)
        if repeated:
            self._add_notes("an id that messages of the list share names none of them")
        for index in repeated:
            by_message[index] = tuple([item._replace(key=None) for item in by_message[index]])
        return by_message

    def _parse_message(self, index: int) -> list[Item]:
        """Return the items of a message of the list; errors name the message by its position."""

        def make_items(turns: Sequence[Turn]) -> list[Item]:
            items: list[Item] = []
            for number, parsed_turn in enumerate(turns):
                turn = self._without_rendered_text(parsed_turn)
                if turn is None:
                    continue
                with validation.prefix_field_errors(f"messages[{index}]."):
                    items.append(self._make_item(index, number, turn))
            return items

        return self._read(index, _defer_keeping, make_items)

    def _read(
        self, index: int, keep: provider_messages.KeepMedia | None, convert: Callable[[Sequence[Turn]], T]
    ) -> T:
        """Read a message of the list, repaired if needed, and convert its turns."""
        config = self._shared.config
        keep = None if config.media is None else keep
        message, field = self._messages[index], f"messages[{index}]"
        result, notes = read_message(message, field, keep, convert, strict=config.strict)
        self._add_notes(*notes)
        self._repairs[index] = notes
        return result

    def _without_rendered_text(self, turn: Turn) -> Turn | None:
        """Return a message without the text that ACMS added to it; None if nothing is left to be stored."""
        stripped = _strip_rendered_text(turn)
        if stripped is not None and not self._shared.config.strict and is_empty_turn(stripped):
            return None
        return stripped

    def _make_item(
        self, index: int, number: int, turn: Turn, stored_privacy: Privacy = Privacy.ALLOW
    ) -> Item:
        """Return the item of a turn, redacted at least as much as the privacy of its stored message requires."""
        role = validation.parse_choice(turn["role"], Role, "role")
        parts, text = validation.build_message_parts(
            role, turn.get("content", ""), turn.get("parts"), turn.get("tool_calls"), turn.get("tool_call_id")
        )
        metadata = turn.get("metadata")
        metadata = None if metadata is None else validation.validate_metadata(metadata)
        actor = turn.get("actor_id")
        key = validation.validate_optional_name(turn.get("key"), "key")
        privacy, origin = turn.get("privacy"), turn.get("origin")
        privacy = None if privacy is None else validation.parse_choice(privacy, Privacy, "privacy")
        origin = None if origin is None else validation.parse_choice(origin, Origin, "origin")
        config = self._shared.config.privacy
        if config.redact_before_persist:
            from acms.privacy.redact_entry import redact_for_storage  # imports the redaction rules

            mode = stored_mode(config.mode, stricter_mode(stored_privacy, privacy or Privacy.ALLOW))
            text, parts, redacted, actor, key = redact_for_storage(
                text, parts, metadata or EMPTY, actor, key, mode
            )
            metadata = None if metadata is None else redacted
        wording = known_messages.wording_digest(role, text, parts)
        return Item(
            message=index,
            turn=number,
            role=role,
            key=key,
            wording=wording,
            body=known_messages.body_digest(role, text, parts) if parts else wording,
            calls=known_messages.ids_of_calls(parts),
            answers=known_messages.ids_of_answers(parts),
            actor=actor,
            metadata=None if metadata is None else known_messages.metadata_digest(metadata),
            privacy=privacy,
            origin=origin,
        )

    def _with_unique_keys(self, items: list[Item]) -> list[Item]:
        """Return the items with each key once, on its first message; when strict, a key used twice is an error."""
        #: By key: the position of the first message that has it.
        first_positions: dict[str, int] = {}
        unique: list[Item] = []
        for item in items:
            key = item.key
            if key is not None and first_positions.setdefault(key, item.message) != item.message:
                if self._shared.config.strict:
                    raise ValidationError(
                        f"is the key of messages[{first_positions[key]}] too: {key!r}",
                        field=f"messages[{item.message}].key",
                    )
                self._add_notes("a key that messages of the list share is the first one's")
                item = item._replace(key=None)
            unique.append(item)
        return unique

    def _redact_as_stored(self, rows: Sequence[Row]) -> None:
        """Redact items under a known key at least as much as when their message was first stored."""
        if not self._shared.config.privacy.redact_before_persist:
            return
        privacy_by_key = {row.key: row.privacy for row in rows if row.key is not None}
        for index, item in enumerate(self._items):
            if item.key is None:
                continue
            own_mode = item.privacy or Privacy.ALLOW
            # The log holds the hash of a key that was redacted itself.
            hashed_key = known_messages.hash_sensitive_key(item.key)
            stored_privacy = privacy_by_key.get(item.key) or privacy_by_key.get(hashed_key)
            if stored_privacy is not None and stricter_mode(stored_privacy, own_mode) is not own_mode:
                make_item = partial(self._make_item, item.message, item.turn, stored_privacy=stored_privacy)
                self._items[index] = self._read_turn(item, _defer_keeping, make_item)

    def _read_turn(
        self, item: Item, keep: provider_messages.KeepMedia | None, convert: Callable[[Turn], T]
    ) -> T:
        """Parse the message of an item again and convert its turn: an item holds only digests of the text."""

        def convert_turn(turns: Sequence[Turn]) -> T:
            turn = self._without_rendered_text(turns[item.turn])
            assert turn is not None
            if item.key is None:  # the key was removed because another message of the list has it too
                turn.pop("key", None)
            return convert(turn)

        return self._read(item.message, keep, convert_turn)

    def _draft_turn(self, item: Item, keep: provider_messages.KeepMedia | None, **values: Any) -> Draft:
        """Return the draft of an item; `values` override those of the list."""

        def convert(turn: Turn) -> Draft:
            with validation.prefix_field_errors(f"messages[{item.message}]."):
                return self._make_draft(key_name="key", **{**turn, **values})

        return self._read_turn(item, keep, convert)

    def _draft_for_comparison(self, item: Item) -> Draft:
        """Return the draft of an item without keeping the bytes of its media."""
        return self._draft_turn(item, _defer_keeping)

    def _draft_for_storage(self, item: Item, stored: Entry | None = None) -> Draft:
        """Return the draft of an item; an edit of a stored message never lowers its privacy or raises its trust."""
        values: dict[str, Any] = {"key": None} if item.key is None else {}
        if stored is not None:
            values["privacy"] = stricter_mode(stored.privacy, item.privacy or stored.privacy)
            values["origin"] = trust.lowest_trust((stored.origin, item.origin or stored.origin))
        return self._draft_turn(item, self._shared.config.media, **values)

    # ── comparisons with the log ────────────────────────────────────────────────────────────────────────────────────

    def _count_tokens(self, item: Item) -> int:
        return self._draft_for_comparison(item).tokens

    def _continues(self, item: Item, row: Row) -> bool:
        """Return whether a message begins with the whole text of a row."""
        content = self._draft_for_comparison(item).content
        return known_messages.continues_row(row, item.role, content, item.calls)

    def _is_beginning(self, item: Item, row: Row) -> bool:
        """Return whether a message is the beginning of the text of a row; False while that text is unread."""
        text = self._texts.setdefault(row.id, None)
        if text is None:
            return False
        beginning = self._draft_for_comparison(item).content.rstrip()
        return bool(beginning) and text.startswith(beginning)

    # ── rewrites ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _draft_edits(
        self, rows: Sequence[Row], alignment: Alignment, groups: Mapping[int, str | None]
    ) -> list[Draft]:
        """Return the edits for changed messages."""
        stored = await self._shared.storage.get([rows[row].id for _, row in alignment.replaced])
        edits: list[Draft] = []
        for (index, _), entry in zip(alignment.replaced, stored, strict=True):
            if entry is None:  # deleted since the alignment
                raise LogChangedError
            item = self._items[index]
            if entry.role is not item.role:
                raise ValidationError(
                    f"is of the {item.role.value}; the message of this key was of the {entry.role}",
                    field=f"messages[{item.message}].role",
                    options=("give it its own key",),
                )
            draft = self._draft_for_storage(item, entry)
            edits.append(_make_edit(draft, entry, item, groups[index]))
        return edits

    async def _draft_retraction(self, rows: Sequence[Row]) -> Draft:
        """Return the retraction of messages with their edits."""
        edit_ids = [row.id for row in rows if row.id != row.original_id]
        spans: set[Span] = {(row.version, row.version) for row in rows}
        for entry in await self._shared.storage.get(edit_ids):
            if entry is None:  # deleted since the alignment, which is made again
                raise LogChangedError
            spans.update(entry.replaces, [(entry.version, entry.version)])
        return retirement.draft_retraction(sorted(spans), [row.original_id for row in rows], GONE)


def _make_edit(draft: Draft, stored: Entry, item: Item, group: str | None) -> Draft:
    """Return a draft as the edit of a stored entry: it is read at the position of the entry, in a tool group.

    Values that the list does not have stay as they are, and so do markers that a caller gave.
    """
    has_explicit = draft.markers and not draft.detected
    keeps_markers = stored.markers and not stored.detected and not has_explicit
    return replace(
        draft,
        key=None,
        actor=draft.actor if item.actor is not None else stored.actor,
        metadata=draft.metadata if item.metadata is not None else stored.metadata,
        markers=stored.markers if keeps_markers else draft.markers,
        detected=draft.detected and not keeps_markers,
        episode=stored.episode,
        group=group,
        replaces=(*stored.replaces, (stored.version, stored.version)),
        sources=(stored.id,),
        data={known_messages.LISTED: True},
    )


def _new_group_id() -> str:
    return f"g_{draw_token(os.urandom, 10)}"


def _insertion_error(item: Item) -> ConflictError:
    return ConflictError(
        f"messages[{item.message}] is new, but comes before messages that are already in the log",
        retryable=False,
        options=('insert="append" stores it at the end', "pass the list without it"),
    )


# ── reading a list ──────────────────────────────────────────────────────────────────────────────────────────────────


def _fingerprint_message(message: Any) -> bytes | None:
    """Return a digest of a message, or None if it holds objects other than plain values."""
    try:
        return blake2b(marshal.dumps(message, 2), digest_size=16).digest()
    except ValueError:
        return None


def _defer_keeping(data: bytes, mime: str) -> str:
    """Return no reference: the bytes of media are kept only once it is known that the message is new."""
    return ""


def _strip_rendered_text(turn: Turn) -> Turn | None:
    """Return a message of a list without the text that ACMS added to it; None if nothing is left."""
    role, content = turn["role"], turn.get("content")
    if role == "tool" and content == NO_RESULT:
        return None
    if role != "user" or not isinstance(content, str):
        return turn
    own_text = content
    for start, end in FRAMES:
        if own_text.startswith(start) and end in own_text:
            own_text = own_text.partition(end)[2].lstrip("\n")
    if own_text == content:
        return turn
    return {**turn, "content": own_text} if own_text or turn.get("parts") else None


def _find_repeated_ids(messages: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the positions of messages that share an id of a provider: such an id identifies none of them."""
    by_id: dict[str, list[int]] = {}
    for index, message in enumerate(messages):
        key = message.get("key", message.get("idempotency_key"))
        if key is None and isinstance(message.get("id"), str):
            by_id.setdefault(message["id"], []).append(index)
    return [index for indexes in by_id.values() if len(indexes) > 1 for index in indexes]
