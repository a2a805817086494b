"""The audit trail: each change with its author and time, but never the content of messages.

Every tenant has one trail, an ordinary log whose hashes `acms verify` checks. A change is two entries: the intent
before it and the outcome after it, even if the client no longer waits for the answer. If the process ended in between,
the next process that writes to the trail adds an outcome with the code UNKNOWN.

An Idempotency-Key is the key of its intent. So a repeated request finds the first one and its answer.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any
from weakref import WeakKeyDictionary

from pydantic import BaseModel

from acms.contract import problem_details
from acms.errors import ACMSError, IdempotencyMismatchError, NotFoundError, SessionNotFoundError
from acms.log import validation
from acms.log.encoding import dump
from acms.model import EMPTY, Append, ContextDraft, Draft, Head, Json, Kind, Origin, Receipt, Role
from acms.nouns import decode_noun
from acms.observability.logging import log_event, safe_error
from acms.server.deadlines import Deadlines, run_within_deadline
from acms.server.operation import Call, Operation, Reply, Scope
from acms.server.tenants import SERVICE_NAMESPACE, Stores, Tenant

__all__ = ["Audit", "Noted", "read_audit_trail"]

IDEMPOTENCY_KEY = "Idempotency-Key"
KEY = validation.AUDIT
"""The name of the log."""
_PAGE = 500
"""Entries that are read at a time, as many as a client may list."""
UNKNOWN = "UNKNOWN"
"""Code of an unknown outcome."""
_NAMES = ("namespace", "key", "version", "context_id", "actions")
"""Fields of a body that name the object to change, or the actions that a grant allows; none holds content."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Noted:
    """An entry of the audit trail."""

    #: Its place in the trail.
    version: int
    at: datetime
    #: "intent" or "outcome".
    step: str = ""
    operation: str = ""
    #: Id of the key, or `oidc:` and the subject of a token; "" for the operator, and for everybody where no key is
    #: required.
    key: str = ""
    #: Id of the request; of an intent under an Idempotency-Key it is with the outcomes.
    request: str | None = None
    context: str | None = None
    #: The objects that the request names, such as a tag, a pin or an entry.
    target: Mapping[str, Json] = field(default_factory=lambda: EMPTY)
    #: The head of the log before and after, (version, chain value in hex); only an outcome has them.
    before: tuple[int, str] | None = None
    after: tuple[int, str] | None = None
    status: int | None = None
    #: Code of the error; "" when it was done. After "DEADLINE" and "UNKNOWN" it may have been done as well.
    code: str = ""
    #: The version of the intent; only an outcome has it. Of several outcomes of one intent the last one counts.
    intent: int | None = None


class Audit:
    """Writes the audit trails of the tenants of a service."""

    def __init__(self, stores: Stores, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._stores = stores
        self._clock = clock
        self._trails: WeakKeyDictionary[Tenant, asyncio.Future[str]] = WeakKeyDictionary()
        #: Changes under way.
        self._running: set[asyncio.Future[Reply]] = set()

    def run(self, call: Call[Any, Any], deadlines: Deadlines | None) -> Awaitable[Reply]:
        """Run a request between its intent and its outcome.

        A request that was done before under the same Idempotency-Key gets the same answer. Another request under
        that key raises `IdempotencyMismatchError`. A request that was not done, or has an unknown outcome, is run. The
        request is cancelled at its deadline; its outcome is recorded even if the client no longer waits.
        """
        running = asyncio.ensure_future(self._run_with_lease(call, deadlines))
        self._running.add(running)
        running.add_done_callback(self._discard)
        return asyncio.shield(running)

    def _discard(self, running: asyncio.Future[Reply]) -> None:
        self._running.discard(running)
        if not running.cancelled():
            running.exception()  # mark the error as retrieved: the client may no longer wait

    async def idle(self) -> None:
        """Wait until every change in progress has its outcome."""
        if self._running:
            await asyncio.wait(self._running)

    async def stop(self) -> None:
        """Cancel the changes in progress and wait until they end; the trail gets no outcome of them."""
        for running in self._running:
            running.cancel()
        await self.idle()

    async def _run_with_lease(self, call: Call[Any, Any], deadlines: Deadlines | None) -> Reply:
        lease = call.tenant.enter(call.principal.access, call.operation.action)
        try:
            return await self._run_recorded(call, deadlines)
        finally:
            call.tenant.leave(lease)

    async def _run_recorded(self, call: Call[Any, Any], deadlines: Deadlines | None) -> Reply:
        """Run an operation, and record its intent before it and its outcome after it.

        A request that repeats an Idempotency-Key gets the recorded answer of the first one, if there is one.
        """
        tenant, operation, context = call.tenant, call.operation, call.path.get("context_id")
        key = call.idempotency_key if IDEMPOTENCY_KEY in operation.takes else None
        record: dict[str, Json] = {
            "operation": operation.name,
            "key": call.principal.key,
            "target": _describe_target(call),
            "context": context,
        }
        before = await _read_log_head(tenant, context)
        if key is None:
            intent = {**record, "step": "intent", "request": call.request_id, "before": before}
            receipt = await self._append(tenant, intent)
        else:
            receipt = await self._append_intent(
                call, validation.validate_name(key, "idempotency-key"), record
            )
            if receipt.repeated and _records_answer(operation):
                repeated = await self._find_answer(call, receipt)
                if repeated is not None:
                    return repeated
        record |= {"step": "outcome", "intent": receipt.versions[0], "request": call.request_id}
        record["before"] = before
        try:
            reply = await run_within_deadline(operation.handler(call), deadlines)
        except Exception as error:
            code = _code_of_error(error)
            record |= {"status": problem_details.STATUS_BY_CODE.get(code, 500), "code": code}
            await self._append_outcome(tenant, record)
            raise
        record["status"] = reply.status or operation.status
        location = reply.headers.get("Location")
        if context is None and location is not None:
            record["context"] = location.partition("/contexts/")[2] or None
        if operation.answer_repeated is not None:
            record["made"] = location  # a repeated request reads the created object from its address
        elif key is not None and _records_answer(operation):
            record["reply"] = {"body": reply.body, "headers": dict(reply.headers)}
        await self._append_outcome(tenant, record)
        return reply

    @asynccontextmanager
    async def record(self, tenant: str, operation: str, target: Mapping[str, Json]) -> AsyncGenerator[None]:
        """Record an action of the operator: its intent before the block, and its outcome after it."""
        store = await self._stores.tenant(tenant)
        record: dict[str, Json] = {"operation": operation, "key": "", "target": dict(target)}
        receipt = await self._append(store, {"step": "intent", **record})
        record |= {"step": "outcome", "intent": receipt.versions[0]}
        try:
            yield
        except Exception as error:
            record["code"] = _code_of_error(error)
            await self._append_outcome(store, record)
            raise
        await self._append_outcome(store, record)

    async def _append_intent(self, call: Call[Any, Any], key: str, record: Mapping[str, Json]) -> Receipt:
        """Record an intent under an Idempotency-Key, with a digest of the request that only the key can verify."""
        request = dump([_serialize_parameters(call.query), _serialize_parameters(call.body)])
        caller_and_path = dump([call.principal.key, dict(call.path)])
        digest = _hash_with_key(key, request)
        entry_key = f"{call.operation.name}:{_hash_with_key(key, caller_and_path)}"
        try:
            return await self._append(call.tenant, {"step": "intent", **record, "asked": digest}, entry_key)
        except IdempotencyMismatchError:
            raise IdempotencyMismatchError(
                "this Idempotency-Key was used before for another request",
                options=("use a new key for a new request",),
            ) from None

    async def _find_answer(self, call: Call[Any, Any], receipt: Receipt) -> Reply | None:
        """Return the answer to the first request with an Idempotency-Key, or None if no outcome is recorded.

        The outcome follows the intent in the trail. It has the whole answer, or the address of the created object.
        """
        tenant, answer_repeated = call.tenant, call.operation.answer_repeated
        intent = receipt.versions[0]
        last_version = intent
        log_id = await self._trail(tenant)
        for _ in range(20):  # pages after the intent: an outcome follows within one deadline
            entries = await tenant.handle.read(log_id, after=last_version, limit=_PAGE)
            for entry in entries:
                data = entry.data
                if data.get("intent") != intent:
                    continue
                if answer_repeated is not None and "made" in data:
                    return await answer_repeated(call, data["made"])
                if "reply" in data:
                    reply = data["reply"]
                    return Reply(body=reply["body"], status=data["status"], headers=reply["headers"])
            if len(entries) < _PAGE:
                break
            last_version = entries[-1].version
        return None

    async def _append_outcome(self, tenant: Tenant, record: dict[str, Json]) -> None:
        """Record an outcome; if that fails, log the failure, since the change itself is already made."""
        try:
            after = await _read_log_head(tenant, record.get("context"))
            await self._append(tenant, {**record, "after": after})
        except ACMSError as error:
            log_event(
                logging.ERROR, "audit_outcome_not_stored", intent=record["intent"], error=safe_error(error)
            )

    async def _append(self, tenant: Tenant, data: Mapping[str, Json], key: str | None = None) -> Receipt:
        return await self._write(tenant, await self._trail(tenant), data, key)

    async def _write(
        self, tenant: Tenant, trail_id: str, data: Mapping[str, Json], key: str | None
    ) -> Receipt:
        """Append an entry to a trail, and return its receipt; raise the error of the store if it refuses the entry."""
        draft = Draft(
            kind=Kind.MESSAGE,
            role=Role.SYSTEM,
            origin=Origin.DERIVED,
            key=key,
            created_at=self._clock(),
            data={name: value for name, value in data.items() if value is not None},
        )
        (result,) = await tenant.handle.append([Append(context=trail_id, drafts=(draft,))])
        if isinstance(result, ACMSError):
            raise result
        return result

    async def _trail(self, tenant: Tenant) -> str:
        """Return the id of a tenant's trail; concurrent calls share one opening, and a failed one is repeated."""
        trail = self._trails.get(tenant)
        if trail is None or (trail.done() and trail.exception() is not None):
            trail = asyncio.ensure_future(self._open_trail(tenant))
            self._trails[tenant] = trail
        return await asyncio.shield(trail)

    async def _open_trail(self, tenant: Tenant) -> str:
        """Find or create the trail, and add an UNKNOWN outcome to each intent that an ended process left open.

        An intent whose operation still runs in another process gets one too, and its own outcome later.
        """
        draft = ContextDraft(key=KEY, namespace=SERVICE_NAMESPACE, counter="none", created_at=self._clock())
        id = (await tenant.handle.create(draft)).id
        entries = await tenant.handle.read(id, newest=_PAGE)
        completed = {entry.data.get("intent") for entry in entries}
        for entry in entries:
            if entry.data.get("step") == "intent" and entry.version not in completed:
                outcome = {name: value for name, value in entry.data.items() if name != "asked"}
                outcome |= {"step": "outcome", "intent": entry.version, "code": UNKNOWN}
                key = f"unknown:{entry.version}"  # so that only one process appends it
                await self._write(tenant, id, outcome, key)
        return id


def _code_of_error(error: Exception) -> str:
    return error.code if isinstance(error, ACMSError) else ACMSError.code


def _hash_with_key(key: str, text: str) -> str:
    return hmac.new(key.encode(), text.encode(), sha256).hexdigest()


def _serialize_parameters(value: Any) -> Any:
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else value


def _records_answer(operation: Operation) -> bool:
    """Return whether a repeated request can be answered from the trail, which must not hold content.

    It can if the operation finds its answer by an address, or if it is an erasure, whose reply holds only ids.
    """
    return operation.answer_repeated is not None or operation.scope is Scope.ERASE


def _describe_target(call: Call[Any, Any]) -> dict[str, Json]:
    """Return the target of a request: its path, its query, and the fields of its body that name an object."""
    target: dict[str, Json] = dict(call.path)
    if isinstance(call.query, BaseModel):
        target |= call.query.model_dump(mode="json", exclude_none=True)
    if isinstance(call.body, BaseModel):
        target |= call.body.model_dump(mode="json", include=set(_NAMES), exclude_none=True)
    return target


async def _read_log_head(tenant: Tenant, context: str | None) -> list[Json] | None:
    """Return the version and the chain value of a log's head, or None for a missing log."""
    if context is None:
        return None
    try:
        head: Head = await tenant.handle.head(context)
    except NotFoundError:
        return None
    return [head.version, head.chain.hex()]


async def read_audit_trail(tenant: Tenant, *, before: int | None = None, limit: int = _PAGE) -> list[Noted]:
    """Return the newest entries of a tenant's audit trail, newest first, or those before a version."""
    try:
        trail = await tenant.handle.context(KEY, namespace=SERVICE_NAMESPACE)
    except SessionNotFoundError:
        return []
    entries = await tenant.handle.read(trail.id, before=before, newest=limit)
    return [
        decode_noun(Noted, entry.data, wire=False, version=entry.version, at=entry.created_at)
        for entry in reversed(entries)
    ]
