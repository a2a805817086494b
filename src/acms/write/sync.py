"""Make a log hold a list of messages as a framework keeps it, in one append."""

from __future__ import annotations

import marshal
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from hashlib import blake2b
from typing import Any, NamedTuple, TypeVar

from acms.errors import ConflictError, ValidationError
from acms.log import foreign, known, trust, validation
from acms.log.encoding import draw_token
from acms.log.foreign import Turn
from acms.log.in_force import GONE
from acms.log.known import Row
from acms.log.repair import rename_repeated_calls
from acms.model import EMPTY, Draft, Entry, Head, Kind, Origin, Privacy, Role, Span
from acms.privacy.modes import stored_mode, stricter_mode
from acms.results import Synced
from acms.session_state import SharedSession
from acms.text.chat_messages import NO_RESULT, ORPHAN, RECALLED, SUMMARY
from acms.write import retirement
from acms.write.alignment import Aligned, Item, align_messages, changes_groups, pair_calls_with_results
from acms.write.door import DraftOf, is_empty_turn, read_message
from acms.write.queue import AppendRequest, Delivered, Overtaken, Writer

T = TypeVar("T")

_ROLES = {role.value: role for role in Role}


class Done(NamedTuple):
    """The result of a sync."""

    result: Synced
    context: str = ""
    #: None when nothing had to be stored.
    delivered: Delivered | None = None
    #: How many of its drafts are edits and retractions; they come first.
    rewrites: int = 0


class Sync:
    """One list handed over to one session."""

    def __init__(
        self, shared: SharedSession, writer: Writer, draft: DraftOf, *, retract: bool, refuse: bool
    ) -> None:
        self._shared = shared
        self._writer = writer
        self._draft = draft
        self._retract = retract
        self._refuse = refuse
        #: Notes on repairs, in words.
        self._notes: dict[str, None] = {}

    async def run(self, messages: Sequence[Mapping[str, Any]]) -> Done:
        """Read the list, decide, and append; start again after a concurrent write."""
        shared = self._shared
        if not shared.config.strict:
            messages, renamed = rename_repeated_calls(messages)
            self._notes.update(dict.fromkeys(renamed))
        items = self._items(messages)
        ignored = tuple(index for index, found in enumerate(items) if not found)
        flat = [item for found in items for item in found]
        if shared.config.strict:
            _check_keys(flat)
        elif (own := _with_own_keys(flat)) != flat:
            self._notes["a key that messages of the list share is the first one's"] = None
            flat = own
        while True:
            context = await shared.find()
            head = None if context is None else await shared.known.catch_up(shared.storage, context)
            rows = [] if head is None else shared.known.rows
            flat = self._as_stored(messages, flat, rows)
            found = await self._align(messages, flat, rows)
            if self._refuse and found.inserted:
                raise _insertion_error(flat[found.inserted[0]])
            groups = pair_calls_with_results(flat, rows, found, _new_group_id)
            unchanged = tuple([rows[place].id for _, place in found.unchanged])
            erased = tuple(dict.fromkeys([flat[at].at for at in found.erased]))
            result = Synced(unchanged=unchanged, ignored=ignored, erased=erased, notes=tuple(self._notes))
            places = {at: rows[place].id for at, place in found.unchanged}
            result = replace(result, ids=_ids_by_index(len(messages), flat, places))
            if not (found.appended or found.replaced or found.retracted):
                return Done(result)
            try:
                return await self._append(messages, flat, rows, found, groups, head, result)
            except Overtaken:
                continue

    async def _align(
        self, messages: Sequence[Mapping[str, Any]], items: Sequence[Item], rows: Sequence[Row]
    ) -> Aligned:
        """Align a list with a log; texts of the log are read only where one may have been cut short."""
        size, goes_on = partial(self._tokens, messages), partial(self._goes_on, messages)
        texts: dict[str, str] = {}
        while True:
            unread: set[str] = set()
            is_cut = partial(self._is_cut, messages, texts, unread)
            found = align_messages(items, rows, size, goes_on, is_cut, retract=self._retract)
            if not unread:
                return found
            ids = sorted(unread)
            entries = await self._shared.storage.get(ids)
            texts |= {
                id: "" if entry is None else entry.content for id, entry in zip(ids, entries, strict=True)
            }

    async def _append(
        self,
        messages: Sequence[Mapping[str, Any]],
        items: Sequence[Item],
        rows: Sequence[Row],
        found: Aligned,
        groups: Mapping[int, str | None],
        head: Head | None,
        result: Synced,
    ) -> Done:
        shared = self._shared
        news = [self._drafted(messages, items[at]) for at in found.appended]
        edits, gone = await self._edits(messages, items, rows, found, groups)
        if found.retracted:
            gone += [rows[place].id for place in found.retracted]
            gone += [rows[place].first for place in found.retracted]
            edits.append(await self._retraction([rows[place] for place in found.retracted]))
        context, version = await shared.ensure(), 0 if head is None else head.version
        ids = frozenset(gone)
        before: Sequence[Draft] = edits
        if edits:
            cover = shared.known.cover
            before = await retirement.with_facts(shared.storage, context, edits, cover, version, ids)
        request = AppendRequest(
            news,
            shared.config.episodes,
            shared.config.retry,
            before=before,
            regroups=changes_groups(items, rows, found),
            at=version,
            rewrites=None if head is None else head.rewrites,
            watch=shared.watch,
            reflect=shared.reflects,
        )
        delivered = await self._writer.post(context, request)
        assert delivered is not None
        receipt, made = delivered.receipt, delivered.receipt.ids[delivered.start :]
        if edits:
            by = retirement.Rewrite(tuple(before), ids)
            await retirement.propagate_to_profile(shared.storage, shared.namespace, by, made[0])
            for draft in edits:
                reason = GONE if draft.kind is Kind.RETRACTION else "replaced"
                shared.rewritten(context, receipt.versions[0], draft.sources[0], reason)
        appended = made[len(before) :]
        places = dict(zip(found.appended, appended, strict=True))
        edited = dict(zip([at for at, _ in found.replaced], made, strict=False))
        known = {at: rows[place].id for at, place in found.unchanged}
        return Done(
            replace(
                result,
                appended=tuple(appended),
                replaced=tuple(made[: len(found.replaced)]),
                retracted=tuple([rows[place].id for place in found.retracted]),
                inserted=tuple([places[at] for at in found.inserted]),
                ids=_ids_by_index(len(messages), items, known | places | edited),
            ),
            context,
            delivered,
            len(before),
        )

    # ── the list ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _items(self, messages: Sequence[Mapping[str, Any]]) -> list[tuple[Item, ...]]:
        """Return the items of each message of a list; messages of the previous list are not parsed again."""
        known_before = self._shared.listed
        read: dict[bytes, tuple[Item, ...]] = {}
        found: list[tuple[Item, ...]] = []
        for index, message in enumerate(messages):
            mark = _fingerprint_message(message)
            items = known_before.get(mark) if mark is not None else None
            if items is None:
                items = tuple(self._read(message, index))
            if mark is not None:
                read[mark] = items
            if items and items[0].at != index:
                items = tuple([item._replace(at=index) for item in items])
            found.append(items)
        self._shared.listed = read
        repeated = [] if self._shared.config.strict else _find_repeated_ids(messages)
        if repeated:
            self._notes["an id that messages of the list share names none of them"] = None
        for index in repeated:
            found[index] = tuple([item._replace(key=None) for item in found[index]])
        return found

    def _read(self, message: Mapping[str, Any], index: int) -> Sequence[Item]:
        def check(turns: Sequence[Turn]) -> list[Item]:
            left = [(number, self._stripped(turn)) for number, turn in enumerate(turns)]
            return [self._checked_item(turn, index, number) for number, turn in left if turn is not None]

        return self._opened(message, index, _defer_keeping, check)

    def _opened(
        self,
        message: Mapping[str, Any],
        index: int,
        keep: foreign.Keep | None,
        check: Callable[[Sequence[Turn]], T],
    ) -> T:
        """Read a message of the list, repaired where it has to be, and make something of it."""
        config = self._shared.config
        keeper = None if config.media is None else keep
        found, notes = read_message(message, f"messages[{index}]", keeper, check, strict=config.strict)
        self._notes.update(dict.fromkeys(notes))
        return found

    def _stripped(self, turn: Turn) -> Turn | None:
        """Return a message without the text that ACMS added to it; None if nothing is left to be stored."""
        left = _without_rendered_text(turn)
        return None if left is not None and not self._shared.config.strict and is_empty_turn(left) else left

    def _checked_item(self, turn: Turn, index: int, number: int) -> Item:
        try:
            return self._item(turn, index, number)
        except ValidationError as error:
            said = str(error).removeprefix(f"{error.field}: ")
            field = f"messages[{index}].{error.field}"
            raise ValidationError(said, field=field, options=error.options) from error

    def _item(self, turn: Turn, index: int, number: int, known_as: Privacy = Privacy.ALLOW) -> Item:
        config = self._shared.config
        given, content = turn["role"], turn.get("content", "")
        role = (_ROLES.get(given) if type(given) is str else None) or validation.parse_choice(
            given, Role, "role"
        )
        parts, text = validation.build_message_parts(
            role, content, turn.get("parts"), turn.get("tool_calls"), turn.get("tool_call_id")
        )
        actor, key = turn.get("actor_id"), turn.get("key")
        metadata = None if turn.get("metadata") is None else validation.validate_metadata(turn["metadata"])
        key = None if key is None else validation.validate_name(key, "key")
        privacy, origin = turn.get("privacy"), turn.get("origin")
        privacy = None if privacy is None else validation.parse_choice(privacy, Privacy, "privacy")
        origin = None if origin is None else validation.parse_choice(origin, Origin, "origin")
        if config.privacy.redact_before_persist:
            from acms.privacy.redact_entry import redact_for_storage  # the rules come with it

            mode = stored_mode(config.privacy.mode, stricter_mode(known_as, privacy or Privacy.ALLOW))
            text, parts, plain, actor, key = redact_for_storage(
                text, parts, metadata or EMPTY, actor, key, mode
            )
            metadata = None if metadata is None else plain
        wording = known.wording_digest(role, text, parts)
        return Item(
            at=index,
            turn=number,
            role=role,
            key=key,
            wording=wording,
            body=known.body_digest(role, text, parts) if parts else wording,
            calls=known.ids_of_calls(parts),
            answers=known.ids_of_answers(parts),
            actor=actor,
            metadata=None if metadata is None else known.metadata_digest(metadata),
            privacy=privacy,
            origin=origin,
        )

    def _as_stored(
        self, messages: Sequence[Mapping[str, Any]], items: list[Item], rows: Sequence[Row]
    ) -> list[Item]:
        """Return the items of a list as they would be stored: redacted at least as much as when first stored."""
        config = self._shared.config.privacy
        if not config.redact_before_persist:
            return items
        private = {row.key: row.privacy for row in rows if row.key is not None}
        found: list[Item] = []
        for item in items:
            given = item.privacy or Privacy.ALLOW
            old = None
            if item.key is not None:
                old = private.get(item.key) or private.get(known.hash_sensitive_key(item.key))
            if old is not None and stricter_mode(old, given) is not given:
                at, turn, private_as = item.at, item.turn, old
                make = partial(self._item, index=at, number=turn, known_as=private_as)
                item = self._turn(messages, item, _defer_keeping, make)
            found.append(item)
        return found

    def _turn(
        self,
        messages: Sequence[Mapping[str, Any]],
        item: Item,
        keep: foreign.Keep | None,
        make: Callable[[Turn], T],
    ) -> T:
        """Read a message of the list again, and make something of the part of it that an item is."""

        def check(turns: Sequence[Turn]) -> T:
            turn = self._stripped(turns[item.turn])
            assert turn is not None
            if item.key is None:
                turn.pop("key", None)
            return make(turn)

        return self._opened(messages[item.at], item.at, keep, check)

    def _tokens(self, messages: Sequence[Mapping[str, Any]], item: Item) -> int:
        return self._unkept(messages, item).tokens

    def _goes_on(self, messages: Sequence[Mapping[str, Any]], item: Item, row: Row) -> bool:
        draft = self._unkept(messages, item)
        return known.goes_on(row, item.role, draft.content, item.calls)

    def _is_cut(
        self,
        messages: Sequence[Mapping[str, Any]],
        texts: Mapping[str, str],
        unread: set[str],
        item: Item,
        row: Row,
    ) -> bool:
        """Return whether a message is the beginning of another; False for one whose text is unread yet."""
        if row.id not in texts:
            unread.add(row.id)
            return False
        beginning = self._unkept(messages, item).content.rstrip()
        return bool(beginning) and texts[row.id].startswith(beginning)

    def _unkept(self, messages: Sequence[Mapping[str, Any]], item: Item) -> Draft:
        return self._turn(messages, item, _defer_keeping, partial(self._draft_of, item.at))

    def _draft_of(self, at: int, turn: Turn) -> Draft:
        return self._draft(f"messages[{at}].", called="key", **turn)

    def _drafted(self, messages: Sequence[Mapping[str, Any]], item: Item, old: Entry | None = None) -> Draft:
        """Return a message as it is stored: a known one keeps its privacy, and does not gain trust."""
        more: dict[str, Any] = {"key": None} if item.key is None else {}
        if old is not None:
            more["privacy"] = stricter_mode(old.privacy, item.privacy or old.privacy)
            more["origin"] = trust.lowest_trust((old.origin, item.origin or old.origin))
        return self._turn(
            messages, item, self._shared.config.media, lambda turn: self._draft_of(item.at, {**turn, **more})
        )

    # ── rewrites ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _edits(
        self,
        messages: Sequence[Mapping[str, Any]],
        items: Sequence[Item],
        rows: Sequence[Row],
        found: Aligned,
        groups: Mapping[int, str | None],
    ) -> tuple[list[Draft], list[str]]:
        """Return the edits for changed messages, and the ids of the messages they replace."""
        old = await self._shared.storage.get([rows[place].id for _, place in found.replaced])
        edits: list[Draft] = []
        gone: list[str] = []
        for (at, place), entry in zip(found.replaced, old, strict=True):
            if entry is None:
                raise Overtaken
            if entry.role is not items[at].role:
                raise ValidationError(
                    f"is of the {items[at].role.value}; the message of this key was of the {entry.role}",
                    field=f"messages[{items[at].at}].role",
                    options=("give it a key of its own",),
                )
            draft = self._drafted(messages, items[at], entry)
            edits.append(_make_edit(draft, entry, items[at], groups[at]))
            gone += [entry.id, rows[place].first]
        return edits, gone

    async def _retraction(self, rows: Sequence[Row]) -> Draft:
        """Return the retraction of messages with their edits."""
        changed = [row.id for row in rows if row.id != row.first]
        spans: list[Span] = [(row.version, row.version) for row in rows]
        for entry in await self._shared.storage.get(changed):
            if entry is None:
                raise Overtaken
            spans += [*entry.replaces, (entry.version, entry.version)]
        return Draft(
            kind=Kind.RETRACTION,
            created_at=datetime.now(UTC),
            origin=Origin.DERIVED,
            replaces=tuple(sorted(set(spans))),
            sources=tuple([row.first for row in rows]),
            data={"reason": GONE},
        )


def _make_edit(draft: Draft, old: Entry, item: Item, group: str | None) -> Draft:
    """Return a draft as the edit of an entry: it is read at the old place, in a tool group."""
    marked = draft.markers and not draft.detected
    kept = old.markers if old.markers and not old.detected and not marked else None
    return replace(
        draft,
        key=None,
        actor=draft.actor if item.actor is not None else old.actor,
        metadata=draft.metadata if item.metadata is not None else old.metadata,
        markers=draft.markers if kept is None else kept,
        detected=draft.detected if kept is None else False,
        episode=old.episode,
        group=group,
        replaces=(*old.replaces, (old.version, old.version)),
        sources=(old.id,),
        data={known.LISTED: True},
    )


def _new_group_id() -> str:
    return f"g_{draw_token(os.urandom, 10)}"


# ── reading a list ──────────────────────────────────────────────────────────────────────────────────────────────────


def _fingerprint_message(message: Any) -> bytes | None:
    """Return a digest of a message as it was given; None for one that holds more than plain values."""
    try:
        return blake2b(marshal.dumps(message, 2), digest_size=16).digest()
    except ValueError:
        return None


def _defer_keeping(data: bytes, mime: str) -> str:
    """Refer to bytes that are not to be kept before it is known that they are new."""
    return ""


def _without_rendered_text(turn: Turn) -> Turn | None:
    """Return a message of a list without the text that ACMS added to it; None if nothing is left."""
    content = turn.get("content")
    if not isinstance(content, str):
        return turn
    if turn["role"] == "tool" and content == NO_RESULT:
        return None
    if turn["role"] != "user" or not content.startswith("<"):
        return turn
    rest = content
    for start, end in (RECALLED, SUMMARY, ORPHAN):
        if rest.startswith(start) and end in rest:
            rest = rest[rest.index(end) + len(end) :].lstrip("\n")
    if rest == content:
        return turn
    return {**turn, "content": rest} if rest or turn.get("parts") else None


def _find_repeated_ids(messages: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the messages whose provider's id is that of another message of the list, and so names none of them."""
    places: dict[str, list[int]] = {}
    for index, message in enumerate(messages):
        named = message.get("key", message.get("idempotency_key"))
        if named is None and isinstance(message.get("id"), str):
            places.setdefault(message["id"], []).append(index)
    return [index for found in places.values() if len(found) > 1 for index in found]


def _ids_by_index(
    length: int, items: Sequence[Item], stored: Mapping[int, str]
) -> tuple[tuple[str, ...], ...]:
    """Return the ids of the entries that hold each message of a list; `stored` has them by the place of an item."""
    found: list[list[str]] = [[] for _ in range(length)]
    for place, item in enumerate(items):
        if place in stored:
            found[item.at].append(stored[place])
    return tuple(map(tuple, found))


def _with_own_keys(items: Sequence[Item]) -> list[Item]:
    """Return the items of a list with each key once, on its first message."""
    seen: dict[str, int] = {}
    return [
        item if item.key is None or seen.setdefault(item.key, item.at) == item.at else item._replace(key=None)
        for item in items
    ]


def _check_keys(items: Sequence[Item]) -> None:
    """Raise `ValidationError` when two messages of a list have one key."""
    seen: dict[str, int] = {}
    for item in items:
        if item.key is not None:
            first = seen.setdefault(item.key, item.at)
            if first != item.at:
                raise ValidationError(
                    f"is the key of messages[{first}] too: {item.key!r}", field=f"messages[{item.at}].key"
                )


def _insertion_error(item: Item) -> ConflictError:
    return ConflictError(
        f"messages[{item.at}] is new and stands before messages that the log holds",
        retryable=False,
        options=('insert="append" stores it at the end', "hand over the list without it"),
    )
