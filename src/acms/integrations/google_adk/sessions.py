"""ADK sessions in ACMS: events in logs, state beside them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any
from urllib.parse import quote, unquote
from uuid import uuid4

from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.sessions.base_session_service import (
    BaseSessionService,
    GetSessionConfig,
    ListSessionsResponse,
)
from google.adk.sessions.session import Session
from google.adk.sessions.state import State
from pydantic_core import to_jsonable_python

from acms.config import ACMSConfig
from acms.erasure.erase import erase_subject
from acms.errors import ConflictError, EntryNotFoundError, IdempotencyMismatchError
from acms.integrations.google_adk.events import EventDialect, events_of, namespace_of
from acms.integrations.model_input import original_of_entry, raw_of
from acms.integrations.sessions import Sessions, StateMemory
from acms.kv import list_entries, update_entry
from acms.model import EMPTY, Json, KVEntry
from acms.ports import StorageBackend
from acms.results import Erasure
from acms.session import ACMS
from acms.write.intake import read_repaired

__all__ = ["ACMSSessionService"]

_ROOT = "google-adk"
_BEGUN = 64
"""Maximum number of interrupted events that a session remembers, so that its row stays small."""


class ACMSSessionService(BaseSessionService):
    """A session service whose sessions are ACMS sessions, in a namespace for each user of an app.

    An event is one message, under its own id; `kv` has the state of apps, users and sessions. Several processes may
    use both. `memory` returns the ACMS session underneath, for recall, forks and time travel. `delete_session` hides
    the log, `erase_user` erases. Of an event over 1 MB its text is kept, cut: files are for artifacts.
    State must be JSON.
    """

    def __init__(self, storage: StorageBackend, kv: StateMemory, *, config: ACMSConfig | None = None) -> None:
        self._storage = storage
        self._kv = kv
        self._sessions = Sessions(storage, config=config)

    def memory(self, *, app_name: str, user_id: str, session_id: str) -> ACMS:
        """Return the ACMS session of an ADK session; it stays open until the service is closed."""
        return self._sessions.hand_out(namespace_of(app_name, user_id), session_id)

    def use(self, session: Session) -> AbstractAsyncContextManager[ACMS]:
        """Yield the ACMS session of an ADK session; it may be closed after the block."""
        return self._sessions.use(namespace_of(session.app_name, session.user_id), session.id)

    async def aclose(self) -> None:
        """Close the sessions; the caller closes the storage and the key-value memory."""
        await self._sessions.aclose()

    async def create_session(
        self,
        *,
        app_name: str,
        user_id: str,
        state: dict[str, Any] | None = None,
        session_id: str | None = None,
    ) -> Session:
        """Create a session; `AlreadyExistsError` when there is one of this id."""
        session_id = (session_id or "").strip() or str(uuid4())
        app_state, user_state, session_state = _split_state(state or {})
        data = {"state": session_state, "updated": time.time()}
        try:
            await self._kv.compare_and_set(
                _build_key("session", app_name, user_id, session_id), data, expect=None
            )
        except ConflictError as error:
            raise AlreadyExistsError(f"Session with id {session_id} already exists.") from error
        await self._change(_build_key("app", app_name), app_state)
        await self._change(_build_key("user", app_name, user_id), user_state)
        return await self._build_session(app_name, user_id, session_id, data)

    async def get_session(
        self, *, app_name: str, user_id: str, session_id: str, config: GetSessionConfig | None = None
    ) -> Session | None:
        """Return a session with its events and its state, those of its user and app merged in; None without one."""
        session_id = session_id.strip() if session_id else session_id
        row = await self._kv.get(_build_key("session", app_name, user_id, session_id))
        if row is None:
            return None
        session = await self._build_session(app_name, user_id, session_id, row.data)
        recent = None if config is None else config.num_recent_events
        async with self.use(session) as memory:
            entries = [] if recent == 0 else await memory.entries(recent)
        session.events = events_of(entries)
        if config is not None and config.after_timestamp is not None:
            # Keep the events after the last one that is too early.
            early_indexes = [
                index
                for index, event in enumerate(session.events)
                if event.timestamp < config.after_timestamp
            ]
            session.events = session.events[early_indexes[-1] + 1 if early_indexes else 0 :]
        return session

    async def list_sessions(self, *, app_name: str, user_id: str | None = None) -> ListSessionsResponse:
        """List the sessions of a user, or of all, without events; the last used session comes last."""
        names = [app_name] if user_id is None else [app_name, user_id]
        prefix = _build_key("session", *names, "")
        sessions: list[Session] = []
        async for row in list_entries(self._kv, prefix):
            user, id = map(unquote, row.key.split("/")[-2:])
            sessions.append(await self._build_session(app_name, user, id, row.data))
        sessions.sort(key=lambda session: (session.last_update_time, session.user_id, session.id))
        return ListSessionsResponse(sessions=sessions)

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Delete a session and hide its log. Its text stays stored; `erase_user` erases it."""
        session_id = session_id.strip() if session_id else session_id
        if await self._kv.delete(_build_key("session", app_name, user_id, session_id)):
            async with self._sessions.use(namespace_of(app_name, user_id), session_id) as memory:
                if await memory.context_id() is not None:
                    await memory.delete()

    async def erase_user(self, *, app_name: str, user_id: str, verify: bool = False) -> Erasure:
        """Erase all data of a user of an app permanently: sessions, state, memories."""
        async for row in list_entries(self._kv, _build_key("session", app_name, user_id, "")):
            await self._kv.delete(row.key)
        await self._kv.delete(_build_key("user", app_name, user_id))
        return await erase_subject(self._storage, namespace=namespace_of(app_name, user_id), verify=verify)

    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        """Return the state of a user of an app, without the prefix of its keys."""
        row = await self._kv.get(_build_key("user", app_name, user_id))
        return {} if row is None else row.data

    async def append_event(self, session: Session, event: Event) -> Event:
        """Store an event, then its changes to the state; appending the same event again changes nothing.

        The state never changes without its event. If storing was interrupted in between, appending the same event again
        completes it, and overwrites later changes.
        """
        if event.partial:
            return event
        row = await self._kv.get(_build_key("session", session.app_name, session.user_id, session.id))
        if row is None:
            raise SessionNotFoundError(f"Session {session.id} not found.")
        event.id = event.id or str(uuid4())
        is_stored = await self._is_known(session, event)
        # Events in "begun" may have been stored without their changes to the state.
        was_interrupted = event.id in row.data.get("begun", ())
        if is_stored and not was_interrupted and row.data["updated"] >= event.timestamp:
            return event
        self._apply_temp_state(session, event)
        event = self._trim_temp_delta_state(event)
        app_state, user_state, session_state = _split_state(event.actions.state_delta)
        if not is_stored:
            if app_state or user_state or session_state:
                # Noted first: if the process dies in between, the same event completes its changes when it comes again.
                await self._update(session, event, begun=True)
            await self._store(session, event)
        await self._change(_build_key("app", session.app_name), app_state)
        await self._change(_build_key("user", session.app_name, session.user_id), user_state)
        await self._update(session, event, session_state)
        session.last_update_time = max(session.last_update_time, event.timestamp)
        if not is_stored or event not in session.events:
            session.events.append(event)
        self._update_session_state(session, event)
        return event

    async def _is_known(self, session: Session, event: Event) -> bool:
        """Return whether exactly this event is stored."""
        dialect = EventDialect()
        try:
            async with self.use(session) as memory:
                entry = await memory.get(event.id)
        except EntryNotFoundError:
            return False
        raw = raw_of(read_repaired(dialect.write(event))[0]["parts"], dialect.vendor)
        return original_of_entry(entry, dialect) == (dialect.read(raw) if raw else None)

    async def _store(self, session: Session, event: Event) -> None:
        """Store an event in the log; it gets another key if another event has its id."""
        stored_form = EventDialect().write(event)
        async with self.use(session) as memory:
            try:
                await memory.ingest_many([stored_form])
            except IdempotencyMismatchError:  # another event has the id
                await memory.ingest_many([{**stored_form, "key": f"{event.id}:{uuid4().hex}"}])

    async def _update(
        self, session: Session, event: Event, state: Mapping[str, Any] = EMPTY, *, begun: bool = False
    ) -> None:
        """Record that an event is about to be stored, or that it is stored and changes the state of its session."""

        def update(entry: KVEntry | None) -> Json:
            if entry is None:
                raise SessionNotFoundError(f"Session {session.id} not found.")
            data = entry.data
            other_begun_ids = [id for id in data.get("begun", ()) if id != event.id]
            if begun:
                return {**data, "begun": [*other_begun_ids, event.id][-_BEGUN:]}
            updated = {
                "state": {**data["state"], **state},
                "updated": max(data["updated"], event.timestamp),
            }
            if other_begun_ids:
                updated["begun"] = other_begun_ids
            return updated

        key = _build_key("session", session.app_name, session.user_id, session.id)
        await update_entry(self._kv, key, update)

    async def _build_session(self, app_name: str, user_id: str, session_id: str, data: Any) -> Session:
        """Return a session with its state, those of its app and user merged in under their prefixes; no events."""
        state = dict(data["state"])
        shared = {
            State.APP_PREFIX: _build_key("app", app_name),
            State.USER_PREFIX: _build_key("user", app_name, user_id),
        }
        for prefix, key in shared.items():
            entry = await self._kv.get(key)
            if entry is not None:
                state |= {prefix + name: value for name, value in entry.data.items()}
        session = Session(app_name=app_name, user_id=user_id, id=session_id, state=state)
        session.last_update_time = data["updated"]
        return session

    async def _change(self, key: str, delta: dict[str, Any]) -> None:
        def change(entry: KVEntry | None) -> Json:
            return {**(entry.data if entry else {}), **delta}

        if delta:
            await update_entry(self._kv, key, change)


def _build_key(kind: str, *names: str) -> str:
    return "/".join((_ROOT, kind, *(quote(name, safe="") for name in names)))


def _split_state(state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return the state of the app, of the user and of the session; temporary state is dropped."""
    app: dict[str, Any] = {}
    user: dict[str, Any] = {}
    session_state: dict[str, Any] = {}
    for name, value in to_jsonable_python(state).items():
        if name.startswith(State.APP_PREFIX):
            app[name.removeprefix(State.APP_PREFIX)] = value
        elif name.startswith(State.USER_PREFIX):
            user[name.removeprefix(State.USER_PREFIX)] = value
        elif not name.startswith(State.TEMP_PREFIX):
            session_state[name] = value
    return app, user, session_state
