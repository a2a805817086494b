"""A session over HTTP: the verbs of `acms.ACMS`, worked off by a service."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from acms.client import nouns
from acms.client.log import Log, given
from acms.client.nouns import noun
from acms.client.transport import path
from acms.client.view import RemoteView
from acms.errors import EntryNotFoundError, EpisodeNotFoundError, JobFailedError, ValidationError
from acms.log import validation
from acms.log.policy import ResolvedPolicy
from acms.model import ANY, Job, JobState, Json, Origin, Part, Privacy, Role, Seen
from acms.nouns import camel, read, write_part
from acms.results import Branch, Compaction, ContextInfo, Erasure, MessageReceipt

__all__ = ["RemoteSession"]

_POLLS = (0.05, 2.0)
"""Seconds after which a job is looked at again, at first and at most."""


class RemoteSession(RemoteView):
    """A session at a service: the verbs of `acms.ACMS`, over HTTP.

    Made by `Client.session`. The log is created by the first write. One object is one session; many objects, clients
    and processes may share one. Every change is sent with a key of its own, so that it has its effect once however
    often the connection breaks. Which models are used is the service's choice.
    """

    def __init__(self, log: Log) -> None:
        super().__init__(log, None)
        #: What the last ingested message became; None before the first one.
        self.last_receipt: MessageReceipt | None = None

    async def __aenter__(self) -> RemoteSession:
        """Use the session in a block."""
        return self

    async def __aexit__(self, *error: object) -> None:
        """Close the session."""
        await self.close()

    async def close(self) -> None:
        """Do nothing: whatever returned is stored, and the connections are the client's."""

    def at(self, version: int) -> RemoteView:
        """Return a read-only view of the session as if its log ended at a version."""
        if isinstance(version, bool) or not isinstance(version, int) or version < 0:
            raise ValidationError(f"must be a whole number from 0, was {version!r}", field="at")
        return RemoteView(self.log, version)

    # ── writing ─────────────────────────────────────────────────────────────────────────────────────────────────────

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
        """Append one message and return its id once it is durable; see `acms.ACMS.ingest`."""
        draft = {
            "role": role,
            "content": content,
            "markers": markers,
            "actor_id": actor_id,
            "metadata": metadata,
            "tool_calls": tool_calls,
            "tool_call_id": tool_call_id,
            "parts": parts,
            "created_at": created_at,
            "privacy": privacy,
            "origin": origin,
            "key": idempotency_key,
        }
        (receipt,) = await self._append([draft], {}, single=True)
        return receipt.message_id

    async def ingest_many(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        idempotency_key: str | None = None,
        last_message: Seen = ANY,
    ) -> list[MessageReceipt]:
        """Append messages in order, all or none; each is a mapping of the arguments of `ingest`.

        `idempotency_key` gives them the keys `<key>:0`, `<key>:1`…; a message may carry its own as "key". With
        `last_message`, the id of the newest message the caller has seen (None: there was none), `PreconditionError`
        when another one came after it; facts and summaries may come.
        """
        if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
            raise ValidationError(f"must be a list, not {type(messages).__name__}", field="messages")
        for index, message in enumerate(messages):
            if not isinstance(message, Mapping):
                raise ValidationError(
                    f"must be a mapping, not {type(message).__name__}", field=f"messages[{index}]"
                )
        drafts = [dict(message) for message in messages]
        for index, draft in enumerate(drafts):
            draft.setdefault("key", draft.pop("idempotency_key", None))
            if draft["key"] is None and idempotency_key is not None:
                # In the body: a header has no room for every name.
                draft["key"] = f"{validation.name(idempotency_key, 'idempotency_key')}:{index}"
        headers = {} if last_message is ANY else {"if-match": f'"{last_message or "empty"}"'}
        return await self._append(drafts, headers) if drafts else []

    async def _append(
        self, messages: Sequence[Mapping[str, Any]], headers: Mapping[str, str], *, single: bool = False
    ) -> list[MessageReceipt]:
        context = await self.log.ensure()
        try:
            body = {"messages": [_message(one, f"messages[{index}].") for index, one in enumerate(messages)]}
            answer = await self.log.change("POST", context, "messages", body=body, headers=headers)
        except ValidationError as error:
            said = str(error).removeprefix(f"{error.field}: ")
            field = re.sub(r"\.key$", ".idempotency_key", error.field)
            error.field = field.removeprefix("messages[0].") if single else field
            error.args = (f"{error.field}: {said}",)
            raise
        with nouns.reading("receipts"):
            receipts = [read(MessageReceipt, one) for one in answer.data]
            if len(receipts) != len(messages):
                raise ValueError(f"{len(receipts)} for {len(messages)} messages")
        self.last_receipt = receipts[-1]
        return receipts

    async def close_episode(self, reason: str = "manual") -> str:
        """End the current episode and return its id.

        With nothing open it returns the id of the last episode; `EpisodeNotFoundError` when there is none.
        """
        context = await self.log.find()
        if context is None:
            raise EpisodeNotFoundError(f"the session {self.session_id!r} has no episode")
        answer = await self.log.change(
            "POST", context, "episodes", "close", body={"reason": reason}, again=False
        )
        return nouns.value(str, answer.data, "episodeId")

    async def retract(self, message_id: str, *, reason: str = "retracted", alone: bool = False) -> int:
        """Put an entry out of force from now on, a tool group whole; return the version of the retraction.

        See `acms.ACMS.retract`.
        """
        body = {"reason": reason, "alone": alone}
        answer = await self.log.change(
            "POST", await self._entry(message_id), "entries", message_id, "retract", body=body
        )
        return nouns.value(int, answer.data, "version")

    async def clear(self, *, reason: str = "cleared") -> int:
        """Put everything said so far out of force; return the version of the retraction, 0 for an empty session."""
        context = await self.log.find()
        if context is None:
            return 0
        answer = await self.log.change("POST", context, "clear", body={"reason": reason}, again=False)
        return nouns.value(int, answer.data, "version")

    async def replace(self, message_id: str, content: str) -> str:
        """Correct the text of a message and return the id of the new entry; see `acms.ACMS.replace`."""
        answer = await self.log.change(
            "PATCH",
            await self._entry(message_id),
            "entries",
            message_id,
            body={"content": content},
            again=False,
        )
        return nouns.value(str, answer.data, "id")

    async def erase(self, id: str, *, verify: bool = False) -> Erasure:
        """Delete the content of an entry for ever, in every fork; its version stays as a tombstone.

        See `acms.ACMS.erase`.
        """
        answer = await self.log.change(
            "DELETE", await self.log.known(), "entries", id, query={"verify": verify}
        )
        return noun(Erasure, answer.data)

    async def _entry(self, id: str) -> str:
        context = await self.log.find()
        if context is None:
            raise EntryNotFoundError(f"the session {self.session_id!r} has no entry {id!r}")
        return context

    # ── forks and versions ──────────────────────────────────────────────────────────────────────────────────────────

    async def fork(self, at: int | str | None = None, session_id: str | None = None) -> RemoteSession:
        """Return a new session that shares everything up to a version, or a tag, with this one; the head by default.

        One without a `session_id` is named by the key of this call. See `acms.ACMS.fork`.
        """
        return await self._branched("fork", at, session_id)

    async def copy(self, at: int | str | None = None, session_id: str | None = None) -> RemoteSession:
        """Return a new session with everything this one reads up to a version, or a tag; it inherits nothing.

        See `acms.ACMS.copy`.
        """
        return await self._branched("copy", at, session_id)

    async def _branched(self, how: str, at: int | str | None, session_id: str | None) -> RemoteSession:
        body = given({"at_tag" if isinstance(at, str) else "at_version": at, "key": session_id})
        made = (await self.log.change("POST", await self.log.known(), how, body=body)).data
        found = noun(ContextInfo, made)
        return RemoteSession(Log(self.log.transport, found.key or found.id, found.namespace, found.id))

    async def tag(self, name: str, version: int | None = None, *, move: bool = False) -> int:
        """Name a version, the newest by default, and return it; `ConflictError` when the name stands for another one.

        A fork knows the tags it inherited. With `move` a name may be given to another version.
        """
        body = given({"at_version": version, "move": move})
        answer = await self.log.change("PUT", await self.log.known(), "tags", name, body=body)
        return nouns.value(int, answer.data, "version")

    async def untag(self, name: str) -> None:
        """Take a name off its version; `NotFoundError` when this session did not give it."""
        await self.log.change("DELETE", await self.log.known(), "tags", name, again=False)

    async def delete(self) -> list[Branch]:
        """Hide the session and return the live forks that keep on reading what they share with it.

        See `acms.ACMS.delete`.
        """
        answer = await self.log.change("DELETE", await self.log.known(), again=False)
        self.log.id = None
        live = [nouns.value(str, one, "id") for one in nouns.value(list, answer.data, "liveForks")]
        return [noun(Branch, await self.log.get(id)) for id in live]

    # ── compaction and policy ───────────────────────────────────────────────────────────────────────────────────────

    async def compact(self, **overrides: Json) -> Job:
        """Ask for the older part of the log to be summarised now, whatever the threshold; return the job.

        See `acms.ACMS.compact`.
        """
        answer = await self.log.change("POST", await self.log.known(), "compact", body=given(overrides))
        return noun(Job, nouns.value(dict, answer.data, "job"))

    async def reflect(self) -> Job:
        """Ask for everything closed to be reflected on now, also what is too short to be; return the job.

        See `acms.ACMS.reflect`.
        """
        return noun(Job, (await self.log.change("POST", await self.log.known(), "reflect")).data)

    async def wait(self, job: Job, *, timeout: float | None = None) -> Compaction | None:
        """Wait until a job has ended and return the compaction it made; None when it made none.

        `JobFailedError` when it was given up or cancelled, `TimeoutError` after that many seconds.
        """
        wait, most = _POLLS
        async with asyncio.timeout(timeout):
            while True:
                found = (await self.log.transport.call("GET", path("jobs", job.id))).data
                now = noun(Job, found)
                if now.state not in (JobState.READY, JobState.RUNNING):
                    break
                await asyncio.sleep(wait)
                wait = min(most, wait * 1.5)
        if now.state is not JobState.DONE:
            raise JobFailedError(
                f"job {now.id} is {now.state.value} after {now.attempt} attempts: {now.error}",
                job_id=now.id,
                options=("acms jobs retry", "ask for it again"),
            )
        made = nouns.value(object, found, "compaction")
        return None if made is None else noun(Compaction, made)

    async def undo(self, version: int) -> int:
        """Take back the summary, edit, fact or retraction at a version; what it replaced is in force again.

        See `acms.ACMS.undo`.
        """
        context = await self.log.find()
        if context is None:
            raise EntryNotFoundError(f"the session {self.session_id!r} has no version {version}")
        answer = await self.log.change("POST", context, "undo", body={"version": version})
        return nouns.value(int, answer.data, "version")

    async def set_policy(self, **changes: Json) -> ResolvedPolicy:
        """Change fields of this session's policy and return the one in force; None goes back to the level above."""
        body = {camel(name): value for name, value in changes.items()}
        answer = await self.log.change("PATCH", await self.log.ensure(), "policy", body=body)
        return noun(ResolvedPolicy, answer.data)


def _message(given: Mapping[str, Any], at: str) -> dict[str, Json]:
    """Write the arguments of `ingest`; checked here is what cannot be written."""
    values = {name: value for name, value in given.items() if value is not None}
    moment = values.get("created_at")
    if isinstance(moment, datetime):
        values["created_at"] = validation.moment(moment, f"{at}created_at").isoformat()
    for name in ("role", "privacy", "origin"):
        if isinstance(values.get(name), str):
            values[name] = str(values[name]).lower()
    for name in ("markers", "tool_calls"):
        if name in values and not isinstance(values[name], str):
            values[name] = list(values[name])
    if "metadata" in values:
        values["metadata"] = validation.metadata(values["metadata"], f"{at}metadata")
    for index, part in enumerate(values.get("parts", ())):
        if not isinstance(part, Part):
            raise ValidationError(f"{type(part).__name__} is not a part", field=f"{at}parts[{index}]")
    if "parts" in values:
        values["parts"] = [write_part(part) for part in values["parts"]]
    return {camel(str(name)): value for name, value in values.items()}
