"""A session: one conversation's log, written and read through one object (seed 004, `ACMS`).

`View` has the verbs that read, at the head or at a past version; `ACMS` adds those that write.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Coroutine, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from acms import handles
from acms.config import ACMSConfig
from acms.core import validate
from acms.core.chain import episode_id
from acms.core.episodes import TIME_GAP
from acms.core.history import Cover, group_spans
from acms.core.markers import detect
from acms.core.plan import media_tokens
from acms.errors import (
    ConfigurationError,
    EpisodeNotFoundError,
    GoneError,
    ValidationError,
)
from acms.events import EpisodeClosed, Ingested, Rewritten
from acms.logs import log
from acms.mailbox import Delivered, Letter, Mailbox, Overtaken, mailbox
from acms.model import (
    EMPTY,
    Draft,
    Embedded,
    Entry,
    Json,
    Kind,
    Origin,
    Part,
    Privacy,
    Role,
    State,
    Text,
    ToolResult,
)
from acms.projections import IndexStats, MessageReceipt
from acms.protocols import Embedder, StorageBackend, TokenCounter
from acms.storage.cached import CachedStorage, CacheStats
from acms.view import SharedSession, View

__all__ = ["ACMS"]

_ORIGINS = {
    Role.SYSTEM: Origin.SYSTEM,
    Role.DEVELOPER: Origin.SYSTEM,
    Role.USER: Origin.USER,
    Role.ASSISTANT: Origin.ASSISTANT,
    Role.TOOL: Origin.TOOL,
}
_DETECTED = (Origin.USER, Origin.ASSISTANT)


class ACMS(View):
    """Session-scoped context manager for agents (seed 004).

    `session_id` names the conversation within its namespace; the log is created by the first write. One object is one
    session; many objects and processes may share a session and a storage. Without an `embedder` recall ranks by words
    alone; with one also by meaning. `reflector` must be None in this release: facts are not distilled yet.
    """

    def __init__(
        self,
        session_id: str,
        storage: StorageBackend,
        embedder: Embedder | None = None,
        *,
        reflector: None = None,
        token_counter: TokenCounter | None = None,
        config: ACMSConfig | None = None,
        namespace: str = "default",
    ) -> None:
        if reflector is not None:
            raise ConfigurationError(
                "this release has no use for a reflector", options=("leave reflector out",)
            )
        super().__init__(SharedSession(session_id, storage, token_counter, config, namespace, embedder), None)
        self._mailbox: Mailbox | None = None
        #: What the last ingested message became; None before the first one.
        self.last_receipt: MessageReceipt | None = None

    async def __aenter__(self) -> ACMS:
        """Open the session."""
        self._shared.retain()
        return self

    async def __aexit__(self, *error: object) -> None:
        """Close the session."""
        await self.close()

    async def close(self) -> None:
        """Finish what is being written and let go of the storage, which closes with its last user; idempotent."""
        if self._mailbox is not None:
            await self._mailbox.idle()
            self._mailbox = None
        if self._shared.retained:
            self._shared.retained = False
            await self._shared.settle()
            await handles.release(self._shared.handle)

    def at(self, version: int) -> View:
        """Return a read-only view of the session as if its log ended at a version."""
        return View(self._shared, validate.whole(version, "at"))

    @property
    def cache(self) -> CacheStats | None:
        """Return how the cache in front of the storage is doing; None when it is off."""
        storage = self._shared.storage
        return storage.stats if isinstance(storage, CachedStorage) else None

    @property
    def index(self) -> IndexStats:
        """Return how the indexes of the storage handle are doing."""
        return self._shared.indexes.stats

    async def wait_pending(self) -> None:
        """Wait until vectors that were found missing have been asked for; a provider that fails ends the wait too."""
        shared = self._shared
        context = await shared.find()
        if shared.embedding is not None and context is not None:
            shared.embedding.heal(context)
            await shared.embedding.settle()

    async def ingest(
        self,
        role: str | Role,
        content: str = "",
        *,
        markers: Sequence[str] | None = None,
        actor_id: str | None = None,
        metadata: Mapping[str, Json] | None = None,
        tool_calls: Sequence[Mapping[str, Json]] | None = None,
        tool_call_id: str | None = None,
        parts: Sequence[Part] | None = None,
        created_at: datetime | str | None = None,
        privacy: str | Privacy = Privacy.ALLOW,
        origin: str | Origin | None = None,
        idempotency_key: str | None = None,
    ) -> str:
        """Append one message and return its id once it is durable; `last_receipt` says what it became.

        Explicit `markers` replace those found in the text; `[]` means none. `tool_calls` are `{"id", "name",
        "arguments"}` or the nested form of chat completions; `tool_call_id` answers one. With an `idempotency_key` a
        repeated call changes nothing and returns the id of the first one. Raises `ValidationError` with the field at
        fault, `IdempotencyMismatchError`, or a `StorageError`; then nothing was stored.
        """
        draft = self._draft(
            "",
            role=role,
            content=content,
            markers=markers,
            actor_id=actor_id,
            metadata=metadata,
            tool_calls=tool_calls,
            tool_call_id=tool_call_id,
            parts=parts,
            created_at=created_at,
            privacy=privacy,
            origin=origin,
            key=idempotency_key,
        )
        (receipt,) = await self._ingest([draft])
        return receipt.message_id

    async def ingest_many(
        self, messages: Sequence[Mapping[str, Any]], *, idempotency_key: str | None = None
    ) -> list[MessageReceipt]:
        """Append messages in order, all or none; each is a mapping of the arguments of `ingest`.

        `idempotency_key` gives them the keys `<key>:0`, `<key>:1`…; a message may carry its own as "key".
        """
        if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
            raise ValidationError(f"must be a list, not {type(messages).__name__}", field="messages")
        if len(messages) > validate.BATCH:
            raise ValidationError(
                f"has {len(messages)} messages, the limit is {validate.BATCH}", field="messages"
            )
        drafts: list[Draft] = []
        for index, message in enumerate(messages):
            field = f"messages[{index}]"
            if not isinstance(message, Mapping):
                raise ValidationError(f"must be a mapping, not {type(message).__name__}", field=field)
            values = dict(message)
            values.setdefault("key", values.pop("idempotency_key", None))
            if values["key"] is None and idempotency_key is not None:
                values["key"] = f"{validate.name(idempotency_key, 'idempotency_key')}:{index}"
            unknown = set(values) - _INGEST_FIELDS
            if unknown or "role" not in values:
                what = f"unknown field {sorted(unknown, key=str)[0]!r}" if unknown else "needs a role"
                raise ValidationError(what, field=field)
            drafts.append(self._draft(f"{field}.", **values))
        return await self._ingest(drafts) if drafts else []

    def _draft(
        self,
        prefix: str,
        *,
        role: str | Role,
        content: str = "",
        markers: Sequence[str] | None = None,
        actor_id: str | None = None,
        metadata: Mapping[str, Json] | None = None,
        tool_calls: Sequence[Mapping[str, Json]] | None = None,
        tool_call_id: str | None = None,
        parts: Sequence[Part] | None = None,
        created_at: datetime | str | None = None,
        privacy: str | Privacy = Privacy.ALLOW,
        origin: str | Origin | None = None,
        key: str | None = None,
    ) -> Draft:
        """Check one message at the border and count it."""
        shared = self._shared
        try:
            who = validate.choice(role, Role, "role")
            found, text = validate.parts(who, content, parts, tool_calls, tool_call_id)
            came = _ORIGINS[who] if origin is None else validate.choice(origin, Origin, "origin")
            explicit = None if markers is None else validate.markers(markers)
            detected: tuple[str, ...] = ()
            if explicit is None and shared.config.auto_detect_markers and came in _DETECTED:
                said = "\n".join(part.text for part in found if isinstance(part, Text)) if found else text
                detected = detect(said, shared.patterns)
            return Draft(
                content=text,
                key=validate.optional_name(key, "idempotency_key"),
                created_at=datetime.now(UTC) if created_at is None else validate.moment(created_at),
                tokens=shared.counter.count(text) + (media_tokens(found) if found else 0),
                origin=came,
                privacy=privacy if privacy is Privacy.ALLOW else validate.choice(privacy, Privacy, "privacy"),
                role=who,
                actor=validate.optional_name(actor_id, "actor_id"),
                parts=found,
                markers=detected if explicit is None else explicit,
                detected=explicit is None and bool(detected),
                metadata=EMPTY if metadata is None else validate.metadata(metadata),
            )
        except ValidationError as error:
            if not prefix:
                raise
            message = str(error).removeprefix(f"{error.field}: ")
            raise ValidationError(message, field=prefix + error.field, options=error.options) from error

    async def _ingest(self, drafts: Sequence[Draft]) -> list[MessageReceipt]:
        shared = self._shared
        context = (shared.context_id if shared.retained else None) or await shared.ensure()
        delivered = await self._post(context, Letter(drafts, shared.rules, shared.config.retry))
        assert delivered is not None
        embedded: Embedded = "stored"
        if self._note(context, delivered):
            embedded = await self._index(context, delivered)
        receipts = await self._receipts(context, delivered, embedded)
        self.last_receipt = receipts[-1]
        if shared.config.on_event is not None:
            for ordinal in delivered.gaps:
                ended = episode_id(context, ordinal)
                shared.tell(EpisodeClosed(context_id=context, episode_id=ended, reason=TIME_GAP))
            for receipt, draft in zip(receipts, delivered.drafts, strict=True):
                shared.tell(
                    Ingested(
                        context_id=context,
                        message_id=receipt.message_id,
                        version=receipt.version,
                        role=str(draft.role),
                        tokens=receipt.tokens,
                        markers=receipt.markers,
                        repeated=receipt.repeated,
                    )
                )
                if draft.closes is not None and not receipt.repeated:
                    closed = EpisodeClosed(
                        context_id=context, episode_id=receipt.episode_id, reason=draft.closes
                    )
                    shared.tell(closed)
        log(logging.DEBUG, "ingest", context=context, version=receipts[-1].version, messages=len(receipts))
        return receipts

    def _note(self, context: str, delivered: Delivered) -> bool:
        """Hand new entries to the index; return whether there is more to do that takes time."""
        shared, receipt = self._shared, delivered.receipt
        if receipt.repeated:
            return False
        indexes, epoch, start = shared.indexes, receipt.head.epoch, delivered.start
        for offset, draft in enumerate(delivered.drafts, start):
            indexes.note(context, epoch, receipt.versions[0] + offset, receipt.ids[offset], draft)
        return indexes.due or shared.embedding is not None

    async def _index(self, context: str, delivered: Delivered) -> Embedded:
        """Let the index store what waits, and the embedder, which is waited for, embed new messages."""
        shared, receipt = self._shared, delivered.receipt
        if shared.indexes.due:
            await shared.indexes.flush(everything=False)
        first = receipt.versions[0] + delivered.start
        said = [one for one in enumerate(delivered.drafts, first) if one[1].kind is Kind.MESSAGE]
        if shared.embedding is None or not said:
            return "stored"
        embedded, rows = await shared.embedding.entries(context, said)
        shared.indexes.learn(context, receipt.head.epoch, rows)
        return embedded

    async def _receipts(self, context: str, delivered: Delivered, embedded: Embedded) -> list[MessageReceipt]:
        receipt, start = delivered.receipt, delivered.start
        drafts: Sequence[Draft | Entry] = delivered.drafts
        versions: Sequence[int] = range(
            receipt.versions[0] + start, receipt.versions[0] + start + len(drafts)
        )
        if receipt.repeated:
            stored = await self._shared.storage.get(receipt.ids[start : start + len(drafts)])
            entries = [entry for entry in stored if entry is not None]
            drafts, versions = entries, [entry.version for entry in entries]
        found: list[MessageReceipt] = []
        for offset, (draft, version) in enumerate(zip(drafts, versions, strict=True), start):
            position = receipt.positions[offset]
            assert position is not None
            found.append(
                MessageReceipt(
                    message_id=receipt.ids[offset],
                    version=version,
                    position=position,
                    chain_hash=receipt.chains[offset].hex(),
                    episode_id=episode_id(context, draft.episode),
                    tokens=draft.tokens,
                    markers=draft.markers,
                    durability=receipt.durability,
                    embedded=embedded,
                    repeated=receipt.repeated,
                )
            )
        return found

    def _post(self, context: str, letter: Letter) -> Coroutine[Any, Any, Delivered | None]:
        if self._mailbox is None:
            self._mailbox = mailbox(self._shared.handle, context, os.urandom)
        return self._mailbox.post(letter)

    async def close_episode(self, reason: str = "manual") -> str:
        """End the current episode and return its id.

        With nothing open it returns the id of the last episode; `EpisodeNotFoundError` when there is none.
        """
        reason = validate.name(reason, "reason")
        context = await self._shared.find()
        if context is None:
            raise EpisodeNotFoundError(f"the session {self.session_id!r} has no episode")
        draft = Draft(
            kind=Kind.EPISODE, created_at=datetime.now(UTC), origin=Origin.DERIVED, data={"reason": reason}
        )
        letter = Letter([draft], self._shared.rules, self._shared.config.retry, close=reason)
        delivered = await self._post(context, letter)
        if delivered is not None:
            if self._note(context, delivered):
                await self._index(context, delivered)
            closed = episode_id(context, delivered.drafts[0].episode)
            self._shared.tell(EpisodeClosed(context_id=context, episode_id=closed, reason=reason))
            return closed
        ordinal = await self._newest_episode(context, (await self._shared.storage.head(context)).version)
        if not ordinal:
            raise EpisodeNotFoundError(f"the session {self.session_id!r} has no episode")
        return episode_id(context, ordinal)

    async def retract(self, message_id: str, *, reason: str = "retracted", alone: bool = False) -> int:
        """Put an entry out of force from now on, a tool group whole; return the version of the retraction.

        Earlier versions still show it. An edited message goes with its edits. Retracting what was retracted already
        changes nothing and returns the version that did it; retracting a retraction or an edit undoes it. With `alone`
        the rest of a tool group stays in the log, and is not shown as long as it is incomplete.
        """
        reason = validate.name(reason, "reason")
        context, target, cover, rewrites = await self._target(message_id)
        edit = cover.edit_of(target)
        by = cover.by(target.version)
        if by is not None and edit is None:
            return by
        members = [target]
        if target.group is not None and not alone and not target.replaces:
            members = await self._shared.storage.read(context, kinds=(Kind.MESSAGE,))
        draft = Draft(
            kind=Kind.RETRACTION,
            created_at=datetime.now(UTC),
            origin=Origin.DERIVED,
            replaces=(
                *group_spans(target, members),
                *((*edit.replaces, (edit.version, edit.version)) if edit is not None else ()),
            ),
            sources=(target.id,),
            data={"reason": reason},
        )
        delivered = await self._rewrite(context, draft, rewrites)
        if delivered is None:
            return await self.retract(message_id, reason=reason, alone=alone)
        version = delivered.receipt.versions[0]
        self._shared.tell(Rewritten(context_id=context, version=version, target_id=target.id, reason=reason))
        return version

    async def clear(self, *, reason: str = "cleared") -> int:
        """Put everything said so far out of force; return the version of the retraction, 0 for an empty session."""
        reason = validate.name(reason, "reason")
        context = await self._shared.find()
        head = None if context is None else await self._shared.storage.head(context)
        if context is None or head is None or head.version == 0:
            return 0
        draft = Draft(
            kind=Kind.RETRACTION,
            created_at=datetime.now(UTC),
            origin=Origin.DERIVED,
            replaces=((1, head.version),),
            data={"reason": reason},
        )
        delivered = await self._rewrite(context, draft, head.rewrites)
        return await self.clear(reason=reason) if delivered is None else delivered.receipt.versions[0]

    async def replace(self, message_id: str, content: str) -> str:
        """Correct the text of a message and return the id of the new entry.

        The correction is read at the old place, with the old role, tool calls and metadata; history keeps both. The id
        of the original also names its newest edit. `GoneError` when the message was retracted or its content is gone.
        """
        content = validate.text(content, "content")
        context, target, cover, rewrites = await self._target(message_id)
        target = cover.edit_of(target) or target
        if target.kind is not Kind.MESSAGE or target.role is None:
            raise ValidationError(
                f"is a {target.kind.value}, only messages can be replaced", field="message_id"
            )
        if target.state is not State.LIVE or cover.by(target.version) is not None:
            raise GoneError(f"{message_id} is out of force or its content is gone")
        parts, text = _edited(target, content)
        detects = self._shared.config.auto_detect_markers and target.origin in _DETECTED
        kept = target.markers if not target.detected else ()
        found = detect(content, self._shared.patterns) if detects and not kept else ()
        draft = Draft(
            content=text,
            created_at=datetime.now(UTC),
            tokens=self._shared.counter.count(text) + media_tokens(parts),
            origin=target.origin,
            privacy=target.privacy,
            role=target.role,
            actor=target.actor,
            parts=parts,
            markers=kept or found,
            detected=bool(found) and not kept,
            episode=target.episode,
            group=target.group,
            replaces=(*target.replaces, (target.version, target.version)),
            sources=(target.id,),
            metadata=target.metadata,
        )
        delivered = await self._rewrite(context, draft, rewrites)
        if delivered is None:
            return await self.replace(message_id, content)
        version = delivered.receipt.versions[0]
        self._shared.tell(
            Rewritten(context_id=context, version=version, target_id=target.id, reason="replaced")
        )
        return delivered.receipt.ids[0]

    async def _target(self, id: str) -> tuple[str, Entry, Cover, int]:
        target = await self.get(id)
        context = await self._shared.ensure()
        head = await self._shared.storage.head(context)
        cover = Cover(await self._shared.storage.read(context, at=head.version, replacing=True))
        return context, target, cover, head.rewrites

    async def _rewrite(self, context: str, draft: Draft, rewrites: int) -> Delivered | None:
        """Append an edit or a retraction; None when another one came first: decide again."""
        shared = self._shared
        letter = Letter([draft], shared.rules, shared.config.retry, rewrite=True, rewrites=rewrites)
        try:
            delivered = await self._post(context, letter)
        except Overtaken:
            return None
        if delivered is not None and self._note(context, delivered):
            await self._index(context, delivered)
        return delivered


_INGEST_FIELDS = frozenset(
    "role content markers actor_id metadata tool_calls tool_call_id parts created_at privacy origin key".split()
)


def _edited(target: Entry, content: str) -> tuple[tuple[Part, ...], str]:
    """Return the parts and text of an edit: the first text or the only result changes, calls and media stay."""
    assert target.role is not None
    if not target.parts:
        return validate.parts(target.role, content, None, None, None)
    parts: list[Part] = []
    done = False
    for part in target.parts:
        if not done and isinstance(part, Text):
            parts.append(Text(content))
            done = True
        elif not done and isinstance(part, ToolResult):
            parts.append(ToolResult(part.call_id, content, part.is_error))
            done = True
        elif not isinstance(part, Text):
            parts.append(part)
    if not done:
        parts.insert(0, Text(content))
    return tuple(parts), validate.text(validate.canonical_text(parts), "content")
