"""Conversations of Pydantic AI in ACMS: messages in logs, with their names and branches stored beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, cast

from pydantic import TypeAdapter
from pydantic_ai.conversation_store import (
    ConversationConflict,
    ConversationEntry,
    ConversationRecord,
    ConversationStore,
)
from pydantic_ai.messages import ModelMessage, ModelResponse

from acms.config import ACMSConfig
from acms.erasure.erase import erase_subject
from acms.errors import ConflictError
from acms.integrations.model_input import original_of_entry
from acms.integrations.pydantic_ai.history import (
    DIALECT,
    Piece,
    dump_model_message,
    has_binary_content,
    load_model_message,
    split_into_pieces,
)
from acms.integrations.sessions import Sessions, StateMemory
from acms.kv import list_entries
from acms.model import Json, KVEntry
from acms.ports import StorageBackend
from acms.results import Erasure
from acms.session import ACMS, withdraw_from_session

__all__ = ["ACMSConversationStore"]


class _EntryRow(TypedDict):
    """The value under the id of an entry: its position, and the parts of its message that are not in the log."""

    namespace: str
    #: Id of the entry before it.
    parent: str | None
    #: The message with a None in place of each part of a request that is in the log; None for a response that is there.
    message: Any
    #: For each message of the log: the index of its part, and its id; "" if it was erased.
    kept: list[tuple[int, str]]


_RECORDS = TypeAdapter(ConversationRecord)
_RECORD = "pydantic-ai/record/"
_ENTRY = "pydantic-ai/entry/"


class ACMSConversationStore(ConversationStore):
    """A `ConversationStore` whose conversations are sessions.

    Messages are in the session named like the conversation, in the namespace named like its scope ("default" without
    one), where they can be recalled; `kv` has the records, and for each entry its position and the parts that are not
    in the log. Several processes may use both. A session shows the history of its conversation: messages that a branch
    leaves are retracted there, a fork inherits them. `delete` removes the record and hides the session, and entries
    stay for conversations that share them: `erase` erases. An erased message is missing in its history.
    """

    def __init__(self, storage: StorageBackend, kv: StateMemory, *, config: ACMSConfig | None = None) -> None:
        self._storage = storage
        self._kv = kv
        self._sessions = Sessions(storage, config=config)

    async def session(self, conversation_id: str) -> ACMS | None:
        """Return the session of a conversation, for recall and the like; None when it is not stored.

        It stays open until the store is closed.
        """
        row = await self._row(conversation_id)
        return None if row is None else self._sessions.hand_out(row.data["namespace"], conversation_id)

    async def aclose(self) -> None:
        """Close the sessions; the caller closes the storage and the key-value memory."""
        await self._sessions.aclose()

    async def erase(self, scope: str, *, verify: bool = False) -> Erasure:
        """Erase all data of a scope permanently: its records, its messages, and all sessions of its namespace."""
        for prefix in (_ENTRY, _RECORD):
            async for row in list_entries(self._kv, prefix):
                if row.data["namespace"] == scope:
                    await self._kv.delete(row.key)
        return await erase_subject(self._storage, namespace=scope, verify=verify)

    async def read_record(self, conversation_id: str) -> ConversationRecord | None:
        """Return the record of a conversation; None when it is not stored."""
        row = await self._row(conversation_id)
        return None if row is None else _record_of_row(row)

    async def read_records(
        self, *, scope: str | None = None, limit: int | None = None
    ) -> Sequence[ConversationRecord]:
        """Return the records of a scope, or all, the last saved first; it reads them all."""
        records: list[ConversationRecord] = []
        async for row in list_entries(self._kv, _RECORD):
            if row.data["record"]:
                record = _record_of_row(row)
                if scope is None or record.scope == scope:
                    records.append(record)
        records.sort(key=lambda record: record.updated_at, reverse=True)
        return records[:limit]

    async def write_record(
        self,
        record: ConversationRecord,
        *,
        new_entries: Sequence[ConversationEntry] = (),
        expected_revision: str | None,
    ) -> None:
        """Store new entries, then the record that ends with them; see `ConversationStore`.

        After a conflict the entries are gone from the session, and nothing refers to them.
        """
        key = _RECORD + record.conversation_id
        row = await self._kv.get(key)
        stored_record = None if row is None or not row.data["record"] else _record_of_row(row)
        stored_revision = None if stored_record is None else stored_record.revision
        if stored_revision != expected_revision or not await self._has_head(record, new_entries):
            raise ConversationConflict(record.conversation_id)
        namespace = record.scope or "default"
        forked = stored_record is None and await self._begin_fork(record, namespace)
        async with self._sessions.use(namespace, record.conversation_id) as session:
            appended = await self._append_entries(session, new_entries)
            data = {"namespace": namespace, "record": _RECORDS.dump_python(record, mode="json")}
            try:
                await self._kv.compare_and_set(key, data, expect=None if row is None else row.revision)
            except ConflictError as error:
                await self._withdraw_entries(session, new_entries, appended)
                raise ConversationConflict(record.conversation_id) from error
            # A history that does not continue from the stored head leaves a branch behind.
            previous_head = new_entries[0].parent_id if new_entries else record.head_id
            stored_head = None if stored_record is None else stored_record.head_id
            if not forked and previous_head != stored_head:
                await self._retract_left_branch(session, record)

    async def _has_head(self, record: ConversationRecord, new_entries: Sequence[ConversationEntry]) -> bool:
        """Return whether the last entry of a record is stored, or among the new ones."""
        if not record.head_id or any(entry.id == record.head_id for entry in new_entries):
            return True
        return bool(await self._kv.get(_ENTRY + record.head_id))

    async def _withdraw_entries(
        self, session: ACMS, entries: Sequence[ConversationEntry], appended: Sequence[str]
    ) -> None:
        """Retract the appended messages, and delete the records of the entries."""
        stored_entries = [entry for entry in await self._storage.get(appended) if entry is not None]
        if stored_entries:
            await withdraw_from_session(session, stored_entries, reason="conflict")
        for entry in entries:
            await self._kv.delete(_ENTRY + entry.id)

    async def _retract_left_branch(self, session: ACMS, record: ConversationRecord) -> None:
        """Retract the messages that the history of a record does not hold any more."""
        history = await self.read_history(record.head_id)
        pieces = split_into_pieces([entry.message for entry in history])
        await session.sync([DIALECT.write(piece) for piece in pieces], gone="retract")

    async def delete_record(self, conversation_id: str, *, expected_revision: str) -> None:
        """Delete a record and hide its session; entries stay, as forks may share them."""
        row = await self._row(conversation_id)
        if row is None or _record_of_row(row).revision != expected_revision:
            raise ConversationConflict(conversation_id)
        hidden_row = {**row.data, "record": None}
        try:
            await self._kv.compare_and_set(_RECORD + conversation_id, hidden_row, expect=row.revision)
        except ConflictError as error:
            raise ConversationConflict(conversation_id) from error
        async with self._sessions.use(row.data["namespace"], conversation_id) as session:
            if await session.context_id() is not None:
                await session.delete()

    async def read_entry(self, entry_id: str) -> ConversationEntry:
        """Return an entry; `KeyError` when there is none."""
        row = await self._kv.get(_ENTRY + entry_id)
        if row is None:
            raise KeyError(entry_id)
        (entry,) = await self._read_entries([(entry_id, row.data)])
        return entry

    async def read_history(self, head_id: str | None, *, limit: int | None = None) -> list[ConversationEntry]:
        """Return the entries up to one, oldest first, or the last of them; `KeyError` when there is none."""
        rows: list[tuple[str, _EntryRow]] = []
        while head_id is not None and (limit is None or len(rows) < limit):
            row = await self._kv.get(_ENTRY + head_id)
            if row is None:
                raise KeyError(head_id)
            rows.append((head_id, row.data))
            head_id = row.data["parent"]
        rows.reverse()
        return await self._read_entries(rows)

    async def _read_entries(self, rows: Sequence[tuple[str, _EntryRow]]) -> list[ConversationEntry]:
        """Put entries together, without those that were erased."""
        ids = list(dict.fromkeys(id for _, data in rows for _, id in data["kept"] if id))
        pieces: dict[str, Piece] = {}
        for id, entry in zip(ids, await self._storage.get(ids), strict=True):
            piece = None if entry is None else original_of_entry(entry, DIALECT)
            if piece is not None:
                pieces[id] = piece
        entries: list[ConversationEntry] = []
        for id, data in rows:
            message = _assemble_message(data, pieces)
            if message is not None:
                entries.append(ConversationEntry(id=id, parent_id=data["parent"], message=message))
        return entries

    async def _append_entries(self, session: ACMS, entries: Sequence[ConversationEntry]) -> Sequence[str]:
        """Store the messages of entries in a session, and the entries with their ids; return the appended ids."""
        pieces_of_entries = [split_into_pieces([entry.message]) for entry in entries]
        messages = {piece.key: DIALECT.write(piece) for pieces in pieces_of_entries for piece in pieces}
        ids: dict[str, str] = {}
        appended: Sequence[str] = ()
        if messages:
            result = await session.sync(list(messages.values()))
            appended = result.appended
            keys = await session.keys([*result.unchanged, *result.appended, *result.replaced])
            ids = {key: id for id, key in keys.items()}
            message_keys = list(messages)
            for index in result.erased:
                ids[message_keys[index]] = ""
        for entry, pieces in zip(entries, pieces_of_entries, strict=True):
            message, kept = _divide_message(entry.message, pieces, ids)
            entry_row = _EntryRow(
                namespace=session.namespace, parent=entry.parent_id, message=message, kept=kept
            )
            await self._kv.set(_ENTRY + entry.id, cast(dict[str, Json], entry_row))
        return appended

    async def _begin_fork(self, record: ConversationRecord, namespace: str) -> bool:
        """Fork the session of the conversation that a record was forked from, at the record's head.

        Return False if that is not possible; the whole history is then stored in a new session.
        """
        parent = None if record.forked_from is None else await self._row(record.forked_from)
        if parent is None or parent.data["namespace"] != namespace or record.head_id is None:
            return False
        row = await self._kv.get(_ENTRY + record.head_id)
        ids = [id for _, id in row.data["kept"] if id] if row else []
        (last_entry,) = await self._storage.get(ids[-1:]) or (None,)
        if last_entry is None:
            return False
        try:
            async with self._sessions.use(namespace, str(record.forked_from)) as session:
                await session.fork(at=last_entry.version, session_id=record.conversation_id)
        except ConflictError:  # a session of this name exists: the history is appended to it
            return False
        return True

    async def _row(self, conversation_id: str) -> KVEntry | None:
        """Return the record of a conversation; None if it is not stored, or was deleted."""
        row = await self._kv.get(_RECORD + conversation_id)
        return row if row is not None and row.data["record"] else None


def _record_of_row(row: KVEntry) -> ConversationRecord:
    return _RECORDS.validate_python(row.data["record"])


def _divide_message(
    message: ModelMessage, pieces: Sequence[Piece], ids: Mapping[str, str]
) -> tuple[Any, list[tuple[int, str]]]:
    """Return the parts of a message that the log does not hold, and those that it holds; see `_EntryRow`.

    `ids` are the ids of messages of the log by the keys of pieces.
    """
    logged = [piece for piece in pieces if piece.key in ids and not has_binary_content(piece)]
    unlogged = dump_model_message(message)
    if isinstance(message, ModelResponse):
        return None if logged else unlogged, [(0, ids[piece.key]) for piece in logged]
    kept: list[tuple[int, str]] = []
    for piece in logged:
        index = int(piece.key.rpartition("/")[2])
        unlogged["parts"][index] = None
        kept.append((index, ids[piece.key]))
    return unlogged, kept


def _assemble_message(data: _EntryRow, pieces_by_id: Mapping[str, Piece]) -> ModelMessage | None:
    """Return the message of an entry without the parts that were erased; None when nothing is left of it."""
    message_at_index = {index: pieces_by_id[id].message for index, id in data["kept"] if id in pieces_by_id}
    if data["kept"] and not message_at_index:
        return None
    if data["message"] is None:
        return message_at_index[0]
    message = {**data["message"], "parts": list(data["message"]["parts"])}
    for index, piece_message in message_at_index.items():
        message["parts"][index] = dump_model_message(piece_message)["parts"][0]
    message["parts"] = [part for part in message["parts"] if part is not None]
    return load_model_message(message)
