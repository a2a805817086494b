"""A session: one conversation's log, written and read through one object (seed 004, `ACMS`).

`View` has the verbs that read, at the head or at a past version; `ACMS` adds those that write.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from acms import compose
from acms.config import ACMSConfig
from acms.errors import (
    EpisodeNotFoundError,
    GoneError,
    IdempotencyMismatchError,
    ValidationError,
)
from acms.knowledge import Cardinality, Fact, Scope
from acms.log import policy as policy_levels
from acms.log import trust, validation
from acms.log.policy import ResolvedPolicy
from acms.log.repair import rename_repeated_calls
from acms.model import (
    ANY,
    EMPTY,
    Draft,
    Entry,
    Job,
    JobQuery,
    Json,
    Kind,
    Origin,
    Part,
    Privacy,
    Raw,
    Role,
    Seen,
    Text,
    ToolResult,
)
from acms.nouns import episode_id
from acms.observability.events import EpisodeClosed, Ingested
from acms.observability.logging import log_event
from acms.observability.operations import annotate_operation, trace_class
from acms.ports import Embedder, Reflector, Reranker, StorageBackend, Summarizer, TokenCounter
from acms.privacy.modes import stored_mode
from acms.recall.planner import media_tokens
from acms.results import Branch, Compaction, Erasure, Ledger, LogEvent, MessageReceipt, Synced
from acms.session_state import SharedSession
from acms.storage import handles, open_storage
from acms.storage.sessions import build_session_settings
from acms.text.markers import detect_markers
from acms.view import View
from acms.write import retirement, rewrite
from acms.write import sync as syncing
from acms.write.episodes import TIME_GAP
from acms.write.intake import (
    check_list,
    draft_plain_message,
    log_cut_texts,
    message_from_arguments,
    read_drafts,
)
from acms.write.queue import AppendRequest, AppendResult, Writer, build_receipts
from acms.write.rewrite import MARKED_ORIGINS

if TYPE_CHECKING:
    from acms.log.merges import Merged, MergeStrategy

__all__ = ["ACMS"]


@trace_class
class ACMS(View):
    """A session: the log of one conversation, which is stored, recalled from, forked and compacted through it.

    `session_id` names the conversation within its namespace; the first write creates its log. `storage` is the URL or
    `Path` of a store, which the session opens itself, or an opened store. Many objects and processes may use the same
    session and the same store.
    With an `embedder`, recall ranks by words and by meaning; with None, by words alone. "auto" is the local embedder
    if the extra `local` is installed, else None. A `reranker` scores the best candidates of a recall again.
    A `reflector` distils closed episodes into facts, in the background. The caller closes these providers.
    `name`, `labels` and `metadata` describe the session: `storage.sessions(where=…)` finds it by them. The next write
    stores the values given here in place of the old ones; "", [] and {} remove them.
    """

    def __init__(
        self,
        session_id: str,
        storage: StorageBackend | str | Path,
        embedder: Embedder | Literal["auto"] | None = "auto",
        *,
        reflector: Reflector | None = None,
        reranker: Reranker | None = None,
        summarizer: Summarizer | None = None,
        token_counter: TokenCounter | None = None,
        config: ACMSConfig | None = None,
        namespace: str = "default",
        name: str | None = None,
        labels: Sequence[str] | None = None,
        metadata: Mapping[str, Json] | None = None,
    ) -> None:
        self._begin(
            SharedSession(
                session_id,
                open_storage(storage) if isinstance(storage, str | Path) else storage,
                token_counter,
                config,
                namespace,
                embedder,
                summarizer,
                reflector,
                reranker,
                about=build_session_settings(name, labels, metadata),
                composition=compose,
            )
        )

    def _begin(self, shared: SharedSession) -> None:
        super().__init__(shared, None)
        self._writer = Writer(shared)
        #: The receipt of the last ingested message; None before the first one.
        self.last_receipt: MessageReceipt | None = None

    async def __aenter__(self) -> ACMS:
        """Open the session, also one that was closed."""
        self._shared.closed = False
        self._shared.retain()
        return self

    async def __aexit__(self, *error: object) -> None:
        """Close the session."""
        await self.close()

    async def close(self) -> None:
        """Finish pending writes and release the storage, which closes with its last user; idempotent.

        The last user waits at most two seconds for pending vectors; the next session computes the others.
        Every later call raises `HandleError`, also on a view, until the session is entered again.
        """
        shared = self._shared
        await self._writer.idle()
        await shared.wait_for_renders()
        shared.closed = True
        if shared.release():
            await shared.flush_indexes()
            await handles.release_handle(shared.handle)

    def at(self, version: int | str) -> View:
        """Return a read-only view of the session as if its log ended at a version, or at a tag.

        The first use of the view looks it up: `NotFoundError` if there is no such version or tag.
        """
        return View(self._shared, validation.validate_version_or_tag(version, "at"))

    async def wait_pending(self) -> None:
        """Wait until missing vectors have been requested and all jobs of this process are done.

        This includes the jobs of this session that another process runs; if that process was killed, this one takes
        them over. A failing provider ends the wait too: its vectors and jobs are tried again later.
        """
        shared = self._shared
        context = await shared.find()
        if shared.embedding is not None and context is not None:
            await shared.embedding.settle(context)
        with handles.register_waiter(shared.handle):
            await shared.wait_until_idle(context)

    async def ingest(
        self,
        role: str | Role | Mapping[str, Any],
        content: str | Sequence[Any] | None = "",
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
        """Append one message and return its id once it is durable; `last_receipt` describes the stored message.

        Its vectors are computed afterwards, in the background.

        Instead of a role you can pass a whole message in a provider's format: of Chat Completions, an item of
        Responses, a message of Anthropic; its own id is its key. A message with several tool results becomes several
        messages, stored together: the id is that of the last. `content` may be a provider's list of parts. Media stay
        references; bytes go to `ACMSConfig(media=…)`, without it only their hash is stored.

        Text that cannot be stored unchanged is repaired and noted in `last_receipt.notes`, or refused with
        `ACMSConfig(strict=True)`. Of a text of more than 1 MiB, the first 768 KiB and the last 128 KiB are stored.

        Explicit `markers` replace those found in the text; `[]` means none. `tool_calls` are `{"id", "name",
        "arguments"}` or the nested form of chat completions; `tool_call_id` answers one. With an `idempotency_key` a
        repeated call changes nothing and returns the id of the first one. Raises `ValidationError` with the field at
        fault, `IdempotencyMismatchError`, or a `StorageError`; then nothing was stored.
        """
        if parts is not None:
            validation.require_list(parts, "parts")
        fields: dict[str, Any] = {"markers": markers, "actor_id": actor_id, "metadata": metadata}
        fields.update(created_at=created_at, origin=origin)
        if isinstance(role, Mapping):
            if content or tool_calls or tool_call_id or parts:
                raise ValidationError("stands alone: it says all that there is to say", field="message")
            message = role if idempotency_key is None else {**role, "key": idempotency_key}
        else:
            values: dict[str, Any] = {"content": content, "parts": parts}
            values.update(tool_calls=tool_calls, tool_call_id=tool_call_id)
            draft = draft_plain_message(
                self._draft, self._shared.config, role, values, privacy=privacy, key=idempotency_key, **fields
            )
            if draft is not None:
                receipts = await self._ingest([draft])
                return receipts[-1].message_id
            message = message_from_arguments(role, values, idempotency_key)
        given = {name: value for name, value in fields.items() if value is not None}
        if privacy is not Privacy.ALLOW:
            given["privacy"] = privacy
        renamed: tuple[str, ...] = ()
        if not self._shared.config.strict:
            (message,), renamed = rename_repeated_calls([message])
        drafts, repairs = read_drafts(self._draft, self._shared.config, message, "", given)
        notes = (*renamed, *repairs)
        receipts = await self._ingest(drafts)
        last = receipts[-1]
        if not last.repeated:
            log_cut_texts(last.message_id, notes)
        self.last_receipt = replace(last, notes=(*notes, *last.notes)) if notes else last
        return last.message_id

    async def ingest_many(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        idempotency_key: str | None = None,
        last_message: Seen = ANY,
    ) -> list[MessageReceipt]:
        """Append messages in order, all or none; each is a mapping of the arguments of `ingest`, or a provider's own.

        `idempotency_key` gives them the keys `<key>:0`, `<key>:1`…; a message may carry its own as "key" or "id".
        `last_message` is the id of the newest message that the caller has seen, or None if there was none. If the log
        has a newer message, `PreconditionError` is raised; newer facts and summaries are allowed. A list that is stored
        in part raises `IdempotencyMismatchError`: use `sync`. A list of more than 1,000 messages (at a service: 256)
        raises `ValidationError`: split it, and give each part its own `idempotency_key`.
        """
        checked = check_list(messages, validation.BATCH)
        renamed: tuple[str, ...] = ()
        if not self._shared.config.strict:
            checked, renamed = rename_repeated_calls(checked)
        drafts: list[Draft] = []
        notes: list[tuple[str, ...]] = []
        for index, message in enumerate(checked):
            values = dict(message)
            has_key = any(values.get(name) is not None for name in ("key", "idempotency_key", "id"))
            if idempotency_key is not None and not has_key:
                common_key = validation.validate_name(idempotency_key, "idempotency_key")
                values["key"] = f"{common_key}:{index}"
            new_drafts, repairs = read_drafts(self._draft, self._shared.config, values, f"messages[{index}]")
            drafts += new_drafts
            notes += [(*renamed, *repairs)] * len(new_drafts)
        try:
            receipts = await self._ingest(drafts, last_message) if drafts else []
        except IdempotencyMismatchError as error:
            hint = "hand the whole list to sync(messages): it appends what is new and replaces what changed"
            raise IdempotencyMismatchError(str(error), options=(*error.options, hint)) from error
        if not any(notes):
            return receipts
        receipts = [
            replace(receipt, notes=(*repairs, *receipt.notes))
            for receipt, repairs in zip(receipts, notes, strict=True)
        ]
        for receipt in receipts:
            if not receipt.repeated:
                log_cut_texts(receipt.message_id, receipt.notes)
        self.last_receipt = receipts[-1]
        return receipts

    async def sync(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        gone: Literal["keep", "retract"] = "keep",
        insert: Literal["append", "refuse"] = "append",
    ) -> Synced:
        """Update the log to a framework's list of messages, atomically, and return the changes.

        New messages are appended; messages that changed under their "key" or "id" are replaced. Messages without a key
        are matched by role and text, in order; instructions at the start of the list replace those at the start of the
        log. A list that was trimmed at its start retracts nothing; with `gone="retract"` all other missing messages
        are retracted, and restored if the list has them again. Text that ACMS wrote into a prompt is skipped.

        A log grows only at its end. A message listed before older ones is appended and reported in `inserted`; without
        keys the messages after it are appended again. With `insert="refuse"` that raises `ConflictError`. Raises
        `ValidationError` with the field at fault. On an error nothing is stored.
        """
        checked = check_list(messages, validation.LIST)
        if gone not in ("keep", "retract"):
            raise ValidationError(f"{gone!r} is not one of keep, retract", field="gone")
        if insert not in ("append", "refuse"):
            raise ValidationError(f"{insert!r} is not one of append, refuse", field="insert")
        retract, refuse = gone == "retract", insert == "refuse"
        sync = syncing.Sync(self._shared, self._writer, self._draft, checked, retract=retract, refuse=refuse)
        done = await sync.run()
        if done.delivered is not None:
            await self._finish_append(done.context, done.delivered, done.rewrites)
        return done.result

    def _draft(
        self,
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
        key_name: str = "idempotency_key",
    ) -> Draft:
        """Return a validated draft of a message; errors name its key by `key_name`."""
        config, counter = self._shared.config, self._shared.counter
        validation.require_role_first(role, content, tool_calls, tool_call_id, parts)
        role = validation.parse_choice(role, Role, "role")
        limit = validation.STRICT_PARTS if config.strict else validation.PARTS
        parts, text = validation.build_message_parts(
            role, content, parts, tool_calls, tool_call_id, max_parts=limit
        )
        privacy = validation.parse_choice(privacy, Privacy, "privacy")
        metadata = EMPTY if metadata is None else validation.validate_metadata(metadata)
        actor_id = validation.validate_optional_name(actor_id, "actor_id")
        key = validation.validate_optional_name(key, key_name)
        if config.privacy.redact_before_persist:
            from acms.privacy.redact_entry import redact_for_storage  # it loads the rules

            mode = stored_mode(config.privacy.mode, privacy)
            text, parts, metadata, actor_id, key = redact_for_storage(
                text, parts, metadata, actor_id, key, mode
            )
        origin = trust.OF_ROLE[role] if origin is None else origin
        origin = validation.parse_choice(origin, Origin, "origin")
        explicit = validation.validate_markers(markers)
        detected = self._detect_markers(origin, text, parts) if explicit is None else ()
        return Draft(
            kind=Kind.MESSAGE,
            content=text,
            key=key,
            created_at=datetime.now(UTC) if created_at is None else validation.parse_moment(created_at),
            tokens=counter.count(text) + (media_tokens(parts) if parts else 0),
            origin=origin,
            privacy=privacy,
            role=role,
            actor=actor_id,
            parts=parts,
            markers=detected if explicit is None else explicit,
            detected=bool(detected),
            metadata=metadata,
        )

    def _detect_markers(self, origin: Origin, text: str, parts: Sequence[Part]) -> tuple[str, ...]:
        """Return the markers found in the texts of a message, if detection is on and its origin allows it."""
        shared = self._shared
        if not shared.config.auto_detect_markers or origin not in MARKED_ORIGINS:
            return ()
        if parts:
            texts = [part.text for part in parts if isinstance(part, Text)]
            text = "\n".join([*texts, *(part.output for part in parts if isinstance(part, ToolResult))])
        return detect_markers(text, shared.patterns)

    async def _ingest(self, drafts: Sequence[Draft], seen: Seen = ANY) -> list[MessageReceipt]:
        """Store validated messages and return their receipts; `seen` is the newest message the caller knows."""
        shared = self._shared
        if any(isinstance(part, Raw) for draft in drafts for part in draft.parts):
            from acms.compaction import provided

            if provided.holds_compaction(drafts):
                receipts = await provided.ingest_compactions(
                    shared, self._writer, drafts, seen, self._finish_append
                )
                self.last_receipt = receipts[-1]
                return receipts
        is_ready = shared.retained and not shared.about
        context = (shared.context_id if is_ready else None) or await shared.ensure()
        config = shared.config
        request = AppendRequest(
            drafts, config.episodes, config.retry, seen=seen, watch=shared.watch, reflect=shared.reflects
        )
        delivered = await self._writer.post(context, request)
        assert delivered is not None
        return await self._finish_append(context, delivered)

    async def _finish_append(
        self, context: str, delivered: AppendResult, rewrites: int = 0
    ) -> list[MessageReceipt]:
        """Update index, vectors, jobs and events after an append, and return the receipts of its messages.

        The first `rewrites` of the delivered entries are edits and retractions, which have no receipt.
        """
        shared = self._shared
        embedded = await self._writer.finish_append(context, delivered)
        if rewrites:
            messages, start = delivered.drafts[rewrites:], delivered.start + rewrites
            delivered = delivered._replace(drafts=messages, start=start)
        if not delivered.drafts:
            return []
        repeated: Sequence[Entry] = ()
        if delivered.receipt.repeated:
            ids = delivered.receipt.ids[delivered.start : delivered.start + len(delivered.drafts)]
            repeated = [entry for entry in await shared.storage.get(ids) if entry is not None]
        receipts = build_receipts(context, delivered, embedded, repeated)
        self.last_receipt = receipts[-1]
        annotate_operation(receipts)
        if shared.config.on_event is not None:
            self._emit_ingested(context, delivered, receipts)
        log_event(
            logging.DEBUG, "ingest", context=context, version=receipts[-1].version, messages=len(receipts)
        )
        if delivered.reflects and shared.config.reflection.inline:
            await self._wait_for_reflection(context)
        return receipts

    def _emit_ingested(
        self, context: str, delivered: AppendResult, receipts: Sequence[MessageReceipt]
    ) -> None:
        """Pass the events of new messages, and of the episodes they ended, to the listener."""
        emit = self._shared.emit
        for ordinal in delivered.gaps:
            emit(EpisodeClosed(context_id=context, episode_id=episode_id(context, ordinal), reason=TIME_GAP))
        for receipt, draft in zip(receipts, delivered.drafts, strict=True):
            emit(
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
                emit(EpisodeClosed(context_id=context, episode_id=receipt.episode_id, reason=draft.closes))

    async def close_episode(self, reason: str = "manual") -> str:
        """End the current episode and return its id.

        If no episode is open, return the id of the last one. Raises `EpisodeNotFoundError` if there is none.
        """
        reason = validation.validate_name(reason, "reason")
        context = await self._shared.find()
        if context is None:
            raise EpisodeNotFoundError(f"the session {self.session_id!r} has no episode")
        draft = Draft(
            kind=Kind.EPISODE, created_at=datetime.now(UTC), origin=Origin.DERIVED, data={"reason": reason}
        )
        shared = self._shared
        request = AppendRequest(
            [draft], shared.config.episodes, shared.config.retry, close=reason, reflect=shared.reflects
        )
        delivered = await self._writer.post(context, request)
        if delivered is not None:
            await self._writer.finish_append(context, delivered)
            closed = episode_id(context, delivered.drafts[0].episode)
            shared.emit(EpisodeClosed(context_id=context, episode_id=closed, reason=reason))
            if delivered.reflects and shared.config.reflection.inline:
                await self._wait_for_reflection(context)
            return closed
        head = await shared.storage.head(context)
        ordinal = await self._newest_episode(context, head.version)
        if not ordinal:
            raise EpisodeNotFoundError(f"the session {self.session_id!r} has no episode")
        return episode_id(context, ordinal)

    async def retract(self, message_id: str, *, reason: str = "retracted", alone: bool = False) -> int:
        """Retract an entry, or the whole tool group it belongs to; return the version of the retraction.

        Earlier versions still show it. An edited message is retracted with its edits. Retracting a retracted entry
        changes nothing and returns the version that did it; retracting a retraction or an edit undoes it. With `alone`
        the rest of a tool group stays in the log, and is not shown as long as it is incomplete. Facts made from a
        message are retracted with it, and a fact with all facts that it replaced.
        """
        return await rewrite.retract_by_id(self._shared, self._writer, message_id, reason=reason, alone=alone)

    async def cite(self, answer: object, shown: object = None) -> tuple[str, ...]:
        """Record the entries of `shown` that a model's answer cites, and return their ids.

        `answer` is a text, the object of a provider's SDK or the same as a mapping; `shown` is the recalled items or
        the rendered prompt it answers. Citations, annotations, and entry ids in the text are read. They count in
        `citations` and `get_session_stats`, appear in the ledger of `shown`, and do not affect any ranking.
        """
        from acms.recall import citation_counts
        from acms.text.citations import find_cited_ids, texts_of

        cited = find_cited_ids(answer, texts_of(shown))
        context = await self._find()
        if cited and context is not None:
            await citation_counts.record_citations(self._shared.storage, context, cited, self._shared.clock())
        ledger = getattr(shown, "ledger", None)
        if isinstance(ledger, Ledger):
            ledger.cited |= set(cited)
        return cited

    async def forget_renders(self) -> None:
        """Delete the stored `renders`; later renders are stored again if that is enabled."""
        await self.internals.open_renders().clear()

    async def clear(self, *, reason: str = "cleared") -> int:
        """Retract every active entry and return the version of the retraction, 0 for an empty session.

        Facts that the profile of the namespace has from this session alone are retired too.
        """
        return await rewrite.retract_all(self._shared, self._writer, reason=reason)

    async def replace(self, message_id: str, content: str, *, sha256: str | None = None) -> str:
        """Correct the text of a message and return the id of the new entry.

        Reads show the new text at the place of the old one, with the same role, tool calls and metadata; `history`
        shows both. The id of the original also names its newest edit. Facts made from the old text are retired.
        `sha256` is the hash, in hex, of the text that the caller means to correct: `PreconditionError` if the text has
        changed. Raises `GoneError` if the message was retracted or its content is gone.
        """
        return await rewrite.replace_message(self._shared, self._writer, message_id, content, sha256=sha256)

    # ── forks and versions ──────────────────────────────────────────────────────────────────────────────────────────

    async def fork(self, at: int | str | None = None, session_id: str | None = None) -> ACMS:
        """Return a new session that shares everything up to a version, or a tag, with this one; the head by default.

        Nothing is copied, so a fork of a long log costs no more. Later changes on either side are not seen by the
        other. A fork with a `session_id` is made once: the same call again returns the same session. Without a
        `session_id` its id is its name. Raises `ConflictError` if the name belongs to another session, `ForkDepthError`
        if the fork would inherit more than 64 segments, and `SessionNotFoundError` if nothing was ever written.
        """
        from acms.branches import forks

        shared = self._shared
        context = await forks.create_fork(shared, at, session_id)
        child = ACMS.__new__(ACMS)
        child._begin(shared.sibling(context))
        return child

    async def copy(self, at: int | str | None = None, session_id: str | None = None) -> ACMS:
        """Return a new session with everything this one reads up to a version, or a tag; it inherits nothing.

        Use it for sessions too deep to fork. Versions, texts, times, tags and policy are the same; ids and hashes are
        new. The copy is visible once it is complete. With a `session_id` it is made once: the same call returns it or
        resumes an interrupted copy, and raises `ConflictError` if the name belongs to another session. An erasure here
        later also erases the content in the copies, but not the reverse.
        """
        from acms.branches import copying

        shared = self._shared
        copied = await copying.copy_session(shared, at, session_id)
        if (await shared.storage.jobs(JobQuery(context=copied.id, limit=1))).items:
            shared.start_worker()
        session = ACMS.__new__(ACMS)
        session._begin(shared.sibling(copied))
        return session

    async def merge(
        self, other: View, *, strategy: MergeStrategy = "refuse", dry_run: bool = False
    ) -> Merged:
        """Merge the changes of another session of the same fork tree, or of a view of one, into this session.

        These are the changes since the fork or the last merge. New messages are appended in order, tool groups whole,
        then edits and retractions of older messages, and facts by their address. A conflict is an entry that both sides
        changed differently: by default `MergeConflictError` lists all conflicts and nothing is merged; "ours" and
        "theirs" resolve them like git's options, and the rest is merged as usual. The merge is one commit; with
        `dry_run` nothing is written, and the result describes the plan. Merging again brings only newer changes.
        `undo(version)` undoes a merge. The other side is not changed. Raises `ConflictError` if it is private and this
        one is not.
        """
        from acms.branches import forks, merge

        if not isinstance(other, View):
            raise ValidationError("must be a session, or a view of one", field="other")
        await self._shared.require_context()
        side = forks.Side(other._shared, other.ends_at)
        return await merge.merge_session(self._shared, self._writer, side, strategy, dry_run=dry_run)

    async def tag(self, name: str, version: int | None = None, *, move: bool = False) -> int:
        """Name a version, the newest by default, and return it.

        `ConflictError` if another version has the name, unless `move` is set; `ValidationError` for a name that reads
        as a version, such as 12 or v12. A fork inherits tags.
        """
        from acms.branches import forks

        return await forks.tag_version(
            self._shared.storage, await self._shared.require_context(), name, version, move=move
        )

    async def untag(self, name: str) -> None:
        """Remove a tag; `NotFoundError` if this session has not given it, even if it inherited it."""
        from acms.branches import forks

        await forks.remove_tag(self._shared.storage, await self._shared.require_context(), name)

    async def delete(self) -> list[Branch]:
        """Hide the session and return its live forks, which keep reading the entries they share with it.

        Its name is free again. Entries that no live fork reads are deleted by a later job; until then an administrator
        can restore the session. To remove content from forks too, erase it.
        """
        from acms.branches import forks

        live_forks = await forks.hide_context(self._shared.storage, await self._shared.require_context())
        await self._writer.idle()  # later writes go to a new log
        self._shared.context_id = None
        return live_forks

    # ── compaction and policy ───────────────────────────────────────────────────────────────────────────────────────

    async def compact(self, **overrides: Json) -> Job:
        """Request a summary of the older part of the log now, whatever the threshold; return the job.

        `overrides` are fields of `CompactionPolicy` for this run only. If a requested compaction is in progress, its
        job is returned; if its settings differ, `ConflictError` is raised.
        """
        from acms.compaction import job as compaction

        return await compaction.request_compaction(
            self._shared, await self._shared.require_context(), overrides
        )

    async def reflect(self) -> Job:
        """Request a reflection on all closed episodes now, including those usually too short; return the job.

        It reads closed episodes and edits of older messages; to have the open episode read, close it first. A
        reflection in progress ends before the new one is requested; `wait` waits for the new one. A session without a
        reflector uses the offline one.
        """
        from acms.facts import request

        context = await self._shared.require_context()
        with handles.register_waiter(self._shared.handle):
            return await request.request_reflection(self._shared, context)

    async def _wait_for_reflection(self, context: str) -> None:
        from acms.facts import request

        with handles.register_waiter(self._shared.handle):
            await request.wait_for_reflection(self._shared, context)

    async def state(
        self,
        subject: str,
        attribute: str,
        value: str,
        *,
        names: Sequence[str] = (),
        valid_from: datetime | date | str | None = None,
        valid_to: datetime | date | str | None = None,
        sources: Sequence[str] = (),
        cardinality: Cardinality = "one",
        scope: Scope = "session",
        expected: int | None = None,
    ) -> Fact:
        """Write a fact without a reflector, and return it; if an active fact states the same, return that one.

        It replaces the facts about the subject and the attribute; with `cardinality="many"`, or if several values are
        known already, it is added. `names` are other names of the subject, under which the fact is found too. It is
        valid from `valid_from` until before `valid_to`: aware times, dates, which begin at midnight UTC, or either in
        ISO 8601. `sources` are ids or keys of its source messages: it is retracted or erased with them.
        `undo(fact.version)` undoes the change, `retract(fact.id)` retracts the fact with all that it replaced.
        With `scope="namespace"` it goes to the profile, which all sessions of the namespace share; "default", shared by
        unrelated sessions, refuses that. `expected` is the version of the newest active fact there, 0 for none:
        `PreconditionError` if it has changed. Raises `ValidationError`. On an error nothing is stored.
        """
        from acms.facts import manual

        texts = {"subject": subject, "attribute": attribute, "value": value}
        given = (names, valid_from, valid_to, cardinality, scope)
        stated = manual.build_proposal(self._shared, texts, *given)
        return await manual.store_fact(self._shared, stated, sources=sources, expected=expected)

    async def unstate(self, subject: str, attribute: str, *, scope: Scope = "session") -> list[Fact]:
        """Withdraw the facts about a subject and an attribute, stated or distilled, and return them.

        They are no longer true from now on, and the facts they replaced are not restored. Without such facts nothing
        changes.
        """
        from acms.facts import manual

        return await manual.withdraw_facts(self._shared, subject, attribute, scope)

    async def wait(self, job: Job, *, timeout: float | None = None) -> Compaction | None:
        """Wait until a job has ended and return its compaction, or None if it made none.

        The `reason` of the ended job says why it made none, see `job`.
        Raises `JobFailedError` if it was given up or cancelled, `TimeoutError` after `timeout` seconds.
        """
        from acms.compaction import job as compaction

        with handles.register_waiter(self._shared.handle):
            return await compaction.wait_for_compaction(
                self._shared, await self._shared.require_context(), job, timeout
            )

    async def job(self, id: str) -> Job:
        """Return the current state of a job of this session; raise `GoneError` if there is none with this id."""
        from acms.compaction import job as compaction

        job = await compaction.read_current_job(self._shared.storage, validation.validate_name(id, "id"))
        if job.context != await self._shared.require_context():
            raise GoneError(f"job {id} does not exist")
        return job

    def events(self, *, after: str | int = 0, follow: bool = True) -> AsyncGenerator[LogEvent]:
        """Yield each entry after a cursor, in order, and each change of a job; continue with new ones as they happen.

        `after` is an event's cursor, or a version. Private text is redacted as in `recall`, erased text is blank.
        With `follow=False` it stops at the end of the log. Raises `SessionNotFoundError` if there is no such session.
        """
        return compose.stream_session_events(self._shared, after, follow=follow)

    async def undo(self, version: int) -> int:
        """Undo the summary, edit, fact or retraction at a version; the entries it replaced are active again.

        Returns the version of the retraction; doing it again changes nothing and returns the same one. `ExpiredError`
        if retention has deleted content to be restored, `ConflictError` if a later entry replaced it, or another fact
        has the address of a fact to be restored: the options name the versions to undo first.
        """
        from acms.compaction import job as compaction

        return await compaction.revert_rewrite(self._shared, self._writer, version)

    async def set_policy(self, **changes: Json) -> ResolvedPolicy:
        """Change fields of this session's policy, and return the resolved one; None resets to the level above."""
        shared = self._shared
        context = await shared.ensure()
        policy = await policy_levels.change_context_policy(
            shared.storage,
            context,
            changes,
            service=shared.config.compaction,
            service_retention=shared.config.retention_seconds,
        )
        self._writer.forget_policy(context)
        return policy

    async def set_private(self, private: bool = True) -> None:
        """Hide this session from recalls in other sessions of the namespace, or show it again.

        The setting is stored with the session: every process honours it from its next recall on, also for earlier
        messages. Later forks start with it; the session itself still finds everything. Facts that the profile has from
        this session alone are permanently retired, and facts learned while it is private stay here.
        """
        storage = self._shared.storage
        context = await policy_levels.set_private(storage, await self._shared.ensure(), private)
        await retirement.apply_private_setting(storage, context)

    # ── erasure ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def erase(self, id: str, *, verify: bool = False) -> Erasure:
        """Delete the content of an entry permanently, in every fork; its version stays as a tombstone.

        The entry is named by its id, or by the caller's key, which is deleted with the content.
        Its edits are erased too, and every summary and fact made from it: entries that such a summary replaced are
        active again. The original of a copy made by a merge or `copy` stays, and so do entries that quote the text;
        `remaining` of the result lists them. With `verify` the store is searched for remains afterwards. This cannot
        be undone.
        """
        from acms.erasure import erase as erasure

        validation.validate_name(validation.validate_id_or_key(id), "id")
        validation.require_flag(verify, "verify")
        shared = self._shared
        context, mode = await shared.require_context(), shared.config.privacy.mode
        erased = await erasure.erase_entries(  # by the handle: damaged entries can be erased
            shared.handle, context, [id], verify=verify, service=shared.config.compaction, privacy=mode
        )
        shared.redactor.forget(erased.ids)
        shared.start_worker()  # erasing a summary requests a new compaction
        return erased


async def withdraw_from_session(session: ACMS, entries: Sequence[Entry], *, reason: str) -> int:
    """Withdraw messages and summaries permanently, for adapters; see `rewrite.withdraw_entries`."""
    shared, writer = session._shared, session._writer  # pyright: ignore[reportPrivateUsage]
    return await rewrite.withdraw_entries(shared, writer, entries, reason=reason)
