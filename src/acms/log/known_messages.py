"""The keys and digests of the messages in a log, used to recognize repeated messages.

Texts are not kept, only their digests. `KnownMessages` is caught up before each use: it reads the new entries, or the
whole log after an erasure or expiry.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b, sha256

from acms.log.active_entries import Replacements, edit_and_end_lookup
from acms.log.encoding import dump
from acms.log.read import replacements_at
from acms.model import (
    Entry,
    Head,
    Json,
    Kind,
    Media,
    Origin,
    Part,
    Privacy,
    Raw,
    Role,
    State,
    Text,
    ToolCall,
    ToolResult,
    client_supplied_key,
)
from acms.ports import StorageBackend

_PAGE = 1_000
"""Entries to read at once. The texts of no more than these are in memory, however long the log is."""
COMPACTION_KEY_SUFFIX = ":compaction"
"""Suffix of the key of a summary that a provider's message brought; before it comes the key of that message."""

LISTED = "listed"
"""Key in the data of an edit that came from a synced list; other edits are corrections, which a list may not have."""


@dataclass(slots=True)
class Row:
    """One message of a log in its current form."""

    #: Version, id and key of the original entry.
    version: int
    original_id: str
    key: str | None
    role: Role | None
    #: Id of the newest edit, digests of its wording, of its whole body and of its metadata, and its actor.
    id: str
    wording: bytes
    body: bytes
    metadata: bytes
    actor: str | None
    privacy: Privacy
    origin: Origin
    #: Characters of its text.
    length: int
    #: Ids of its tool calls and of those it answers, its tool group, and its tokens, which are kept after an erasure.
    calls: tuple[str, ...]
    answers: tuple[str, ...]
    group: str | None
    tokens: int
    #: False once it was retracted; True also when a summary replaced it.
    is_live: bool = True
    #: False once its content was erased or has expired.
    has_content: bool = True
    #: Digests of its earlier wordings, if the newest edit is a correction.
    earlier_wordings: tuple[bytes, ...] = ()


def digest_text(text: str) -> bytes:
    """Return the digest of a text."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def hash_sensitive_key(key: str) -> str:
    """Return the hash that is stored in place of a sensitive key."""
    return sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def wording_digest(role: Role, content: str, parts: Sequence[Part]) -> bytes:
    """Return the digest by which a message is recognized.

    It covers the role, the text, and the ids of calls and media. Other parts count only if there is nothing else.
    """
    if not parts:
        return digest_text(f"{role._value_}\0{content}")
    names = [part.call_id for part in parts if isinstance(part, ToolCall | ToolResult)]
    names += [part.sha256 or part.ref for part in parts if isinstance(part, Media)]
    if not names:
        return digest_text(f"{role._value_}\0{content or repr(tuple(parts))}")
    return digest_text("\0".join((role._value_, content, *names)))


def continues_row(row: Row, role: Role, content: str, calls: Sequence[str]) -> bool:
    """Return whether a message begins with the whole text and all calls of another one."""
    beginning = (role._value_, content[: row.length], *calls[: len(row.calls)])
    return digest_text("\0".join(beginning)) == row.wording


def body_digest(role: Role, content: str, parts: Sequence[Part]) -> bytes:
    """Return the digest of the whole body of a message."""
    if not parts:
        return wording_digest(role, content, parts)
    # Media are recognized by the hash of their bytes: the place where these are kept may change.
    without_refs: list[Part] = []
    for part in parts:
        is_hashed = isinstance(part, Media) and part.sha256
        without_refs.append(replace(part, ref="") if is_hashed else part)
    return digest_text(f"{role._value_}\0{content}\0{without_refs!r}")


def metadata_digest(value: Mapping[str, Json]) -> bytes:
    """Return the digest of metadata, or no bytes if there is none."""
    return digest_text(dump(dict(value))) if value else b""


def ids_of_calls(parts: Sequence[Part]) -> tuple[str, ...]:
    """Return the ids of the calls that a message makes."""
    return tuple([part.call_id for part in parts if isinstance(part, ToolCall)]) if parts else ()


def ids_of_answers(parts: Sequence[Part]) -> tuple[str, ...]:
    """Return the ids of the calls that a message answers."""
    return tuple([part.call_id for part in parts if isinstance(part, ToolResult)]) if parts else ()


def _row_of_entry(entry: Entry) -> Row:
    """Return the row of an entry, with the wording of that entry."""
    role = entry.role or Role.USER
    body = body_digest(role, entry.content, entry.parts)
    return Row(
        version=entry.version,
        original_id=entry.id,
        key=client_supplied_key(entry.key),
        role=entry.role,
        id=entry.id,
        wording=wording_digest(role, entry.content, entry.parts) if entry.parts else body,
        body=body,
        metadata=metadata_digest(entry.metadata),
        actor=entry.actor,
        privacy=entry.privacy,
        origin=entry.origin,
        length=len(entry.content),
        calls=ids_of_calls(entry.parts),
        answers=ids_of_answers(entry.parts),
        group=entry.group,
        tokens=entry.tokens,
        has_content=entry.state is State.LIVE,
    )


def _row_with_compaction(rows: list[Row], row: Row, entry: Entry, summary: Entry) -> Row:
    """Return the row of a message, joined with a compaction that its caller handed over in the same message.

    `summary` is the entry before the message. If it holds that compaction, its row, the last of `rows`, is removed.
    """
    if row.key is None or not rows or rows[-1].original_id != summary.id or rows[-1].key != row.key:
        return row
    rows.pop()
    parts = entry.parts or (Text(entry.content),)
    row.body = body_digest(entry.role or Role.USER, entry.content, (*_raw_parts(summary), *parts))
    return row


def _raw_parts(entry: Entry) -> tuple[Part, ...]:
    """Return the items of a provider that a summary holds."""
    return tuple([part for part in entry.parts if isinstance(part, Raw)])


def _row_of_compaction(entry: Entry) -> Row | None:
    """Return the row of a provider's compaction, which a caller handed over as a message; None for other summaries."""
    items = _raw_parts(entry)
    if entry.key is None or not entry.key.endswith(COMPACTION_KEY_SUFFIX) or not items:
        return None
    key = entry.key.removesuffix(COMPACTION_KEY_SUFFIX)
    return _row_of_entry(replace(entry, role=Role.ASSISTANT, key=key, content="", parts=items))


class KnownMessages:
    """The messages of one log, in order; cleared messages are left out."""

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._head: Head | None = None
        #: The messages in their original wording.
        self._originals: list[Row] = []
        self._by_key: dict[str, Row] = {}
        #: The messages as they read now; None until they are asked for.
        self._rows: list[Row] | None = None
        #: The replacements of the log for searching.
        self.replacements = Replacements(())

    async def catch_up(self, storage: StorageBackend, context: str) -> Head:
        """Read the entries since the last call; return the head of the log."""
        head = await storage.head(context)
        if self._head is not None and not _continues(head, self._head):
            self._forget()
        known_head = self._head
        if known_head is not None and known_head.version == head.version:
            return head
        known_version, known_rewrites = 0, 0
        if known_head is not None:
            known_version, known_rewrites = known_head.version, known_head.rewrites
        rows = await self._read_rows(storage, head, known_version)
        replacements = self.replacements
        if head.rewrites != known_rewrites:
            replacements = await replacements_at(storage, context, head, head.version, searchable=True)
        if self._head is not known_head:  # another task has read the entries meanwhile
            return await self.catch_up(storage, context)
        self._originals += rows
        self._by_key |= {row.key: row for row in rows if row.key is not None}
        self._head, self.replacements, self._rows = head, replacements, None
        return head

    async def _read_rows(self, storage: StorageBackend, head: Head, after: int) -> list[Row]:
        """Return the rows of a log above a version; only one page of texts is in memory at a time."""
        kinds = (Kind.MESSAGE, Kind.SUMMARY)
        rows: list[Row] = []
        summary: Entry | None = None
        while True:
            page = await storage.read(head.context, after=after, at=head.version, kinds=kinds, limit=_PAGE)
            for entry in page:
                if entry.kind is Kind.SUMMARY:
                    summary = entry
                    row = _row_of_compaction(entry)
                else:
                    row = None if entry.replaces else _row_of_entry(entry)  # edits are applied later
                    if row is not None and summary is not None and entry.version == summary.version + 1:
                        row = _row_with_compaction(rows, row, entry, summary)
                if row is not None:
                    rows.append(row)
            if len(page) < _PAGE:
                return rows
            after = page[-1].version

    def find_by_key(self, key: str) -> Row | None:
        """Return the message stored under a caller's key, or None."""
        return self._by_key.get(key)

    @property
    def rows(self) -> list[Row]:
        """The messages in their current form, oldest first."""
        if self._rows is None:
            self._rows = self._current_rows() if self.replacements.replacing else self._originals
        return self._rows

    def _current_rows(self) -> list[Row]:
        """Return the messages with their newest edits; retracted messages are included as rows that are not live."""
        find_edit_and_end = edit_and_end_lookup(self.replacements)
        edits: dict[int, list[Entry]] = {}
        for entry in self.replacements.replacing:
            if entry.kind is Kind.MESSAGE:
                for first, _ in entry.replaces:
                    edits.setdefault(first, []).append(entry)
        rows: list[Row] = []
        for original in self._originals:
            edit, ended_by = find_edit_and_end(original.version)
            if ended_by is not None and not ended_by.sources:
                # The retraction names no source: it cleared the whole log. The same text is then a new message, unless
                # it has the same key.
                if original.key is not None:
                    rows.append(replace(original, role=None, wording=b"", is_live=False))
                continue
            if edit is not None:
                row = _row_of_edit(edit, original, edits[original.version])
            else:
                row = original if ended_by is None else replace(original)
            row.is_live = ended_by is None
            rows.append(row)
        return rows


def _continues(head: Head, earlier: Head) -> bool:
    """Return whether a head belongs to the same log as an earlier one, and no content was deleted in between."""
    return (head.context, head.epoch) == (earlier.context, earlier.epoch) and head.version >= earlier.version


def _row_of_edit(edit: Entry, original: Row, edits: Sequence[Entry]) -> Row:
    """Return a message in the wording of its newest edit; `edits` are all the edits it ever had."""
    row = _row_of_entry(edit)
    row.version, row.original_id, row.key = original.version, original.original_id, original.key
    if LISTED not in edit.data:
        earlier_edits = [earlier for earlier in edits if earlier.version < edit.version]
        row.earlier_wordings = (
            original.wording,
            *[_row_of_entry(earlier).wording for earlier in earlier_edits],
        )
    return row
