"""The memory of the gateway: find the line of a request, make it fit, store it once it is answered."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from hmac import new as hmac
from secrets import token_hex
from typing import Any, Literal

from acms.codecs import named as named_codec
from acms.config import ACMSConfig
from acms.errors import ACMSError, ConflictError, PermissionDeniedError
from acms.gateway import hints
from acms.gateway.config import GatewayConfig
from acms.gateway.decisions import Remembered, list_session_rows, record_request
from acms.gateway.lines import Line, Lines
from acms.gateway.protocols import Protocol, Reply
from acms.gateway.requests import ClientRequest, MessageDigests, position_of_answer, read_request
from acms.gateway.sessions import LineSessions
from acms.gateway.trimming import (
    Trimmed,
    TrimmingError,
    TrimmingState,
    count_body,
    newest_question,
    trim_request,
    why_not_searched,
)
from acms.kv import CompareAndSetKV, ListingKV
from acms.observability.logging import log_event, safe_error
from acms.ports import Codec, Embedder, StorageBackend
from acms.providers.codecs.request_count import CountingCodec
from acms.server.principal import Principal

__all__ = ["Memory"]

_SIDE = "bypassed;side request"
_CLOSE_SECONDS = 10.0
"""Seconds that storing may take when the gateway stops; the client's next list holds the missing messages again."""
_STORE_DELAY = 0.02
"""Seconds until an answer is stored: its end is relayed first."""
_STORE_ATTEMPTS = 5
_STORE_PAUSE = 2.0
"""Attempts to store an answer, and seconds between them: enough for a lock of some seconds or a restart."""


class Memory:
    """The memory of one tenant."""

    def __init__(
        self,
        storage: StorageBackend,
        kv: CompareAndSetKV,
        config: GatewayConfig,
        engine: ACMSConfig,
        embedder: Embedder | Literal["auto"] | None,
    ) -> None:
        self._config = config
        self._kv = kv
        self.lines = Lines(kv)
        self.sessions = LineSessions(storage, engine, embedder)
        self._digests = MessageDigests()
        self._codecs: dict[str, Codec] = {}
        self._secret = b""
        self._patterns = [re.compile(text) for text in (*hints.SIDE_PATTERNS, *config.side_patterns)]
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Load or create the secret for namespace names, and delete the records of idle conversations."""
        entry = await self._kv.get("secret")
        if entry is None:
            try:
                entry = await self._kv.compare_and_set("secret", token_hex(32), expect=None)
            except ConflictError:
                entry = await self._kv.get("secret")
        assert entry is not None
        self._secret = str(entry.data).encode()
        await self.lines.prune(datetime.now(UTC))

    async def idle(self) -> None:
        """Wait until all answered requests are stored."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def aclose(self) -> None:
        """Wait for pending writes, up to `_CLOSE_SECONDS`, and close the sessions."""
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self.idle()
        except TimeoutError:
            log_event(logging.WARNING, "gateway_not_stored", open=len(self._tasks))
        await self.sessions.aclose()
        await self._kv.aclose()

    def namespace_of_client(self, headers: Mapping[str, str], caller: Principal) -> str:
        """Return the namespace of a client: the one that its headers name, or one derived from its key.

        Raises `PermissionDeniedError` if the key does not allow the namespace.
        """
        requested = headers.get("x-acms-namespace", "")
        if requested.startswith("@"):
            raise PermissionDeniedError("names that begin with @ are the service's own")
        if caller.namespaces is not None:
            if requested and requested not in caller.namespaces:
                raise PermissionDeniedError(f"the key is not for the namespace {requested!r}")
            if not caller.namespaces:
                raise PermissionDeniedError("the key is bound to no namespace")
            return requested or min(caller.namespaces)
        if requested and self._config.namespaces:
            return requested[:200]
        key = caller.key or headers.get("authorization") or headers.get("x-api-key") or ""
        return f"gateway-{hmac(self._secret, key.encode(), 'sha256').hexdigest()[:16]}"

    async def list_sessions(self, caller: Principal) -> list[dict[str, Any]]:
        """Return a row for each session with requests in the namespaces of a caller, the newest first."""
        assert isinstance(self._kv, ListingKV)
        rows = await list_session_rows(self._kv)
        if caller.namespaces is None:
            return rows
        return [row for row in rows if row["namespace"] in caller.namespaces]

    # ── before the request is sent ──────────────────────────────────────────────────────────────────────────────────

    async def begin(
        self, protocol: Protocol, raw_body: bytes, headers: Mapping[str, str], caller: Principal
    ) -> Remembered:
        """Parse a request and find the conversation line that it continues."""
        request = read_request(
            protocol, raw_body, headers, self.namespace_of_client(headers, caller), self._digests
        )
        if self._is_side_request(request):
            return Remembered(request=request, line=None, outcome=_SIDE)
        line = await self.lines.begin(request.position)
        outcome = "untouched" if line is not None else _SIDE
        return Remembered(
            request=request, line=line, budget=self._budget_of_request(request), outcome=outcome
        )

    def _is_side_request(self, request: ClientRequest) -> bool:
        if hints.is_marked_side_request(request.headers):
            return True
        if request.position.explicit:
            return False  # the client itself says which conversation the request belongs to
        return hints.matches_side_pattern(
            request.protocol, request.body.fields, request.items, self._patterns
        )

    def _budget_of_request(self, request: ClientRequest) -> int:
        budget_header = request.headers.get("x-acms-budget", "")
        if budget_header.isascii() and budget_header.isdecimal() and int(budget_header) > 0:
            return int(budget_header)
        return self._config.budget_for(request.model)

    async def fit(self, remembered: Remembered, size: int) -> None:
        """Trim a request of `size` bytes if it exceeds its token budget, and add recalled text if configured."""
        request, line = remembered.request, remembered.line
        if line is None:
            return
        if not request.can_be_trimmed:
            remembered.not_searched = "the provider keeps the conversation"
            return
        state = await self._load_state(request, line)
        searches_namespace = self._config.recall == "namespace" and _asks_something_new(request)
        # Notes that an earlier request inserted stay, or the provider's cache would be lost from there on.
        must_render = searches_namespace or state.has_notes
        remembered.not_searched = "it fits, and nothing was left out"
        fits_surely = size <= remembered.budget  # a token has at least one byte
        if fits_surely and not must_render:
            return
        codec = await self._load_codec(request)
        remembered.client_count = await count_body(codec, request.body.fields)
        remembered.sent_count = remembered.client_count
        if remembered.client_count.upper_bound <= remembered.budget and not must_render:
            return
        try:
            async with self.sessions.lock(request.namespace, line.name):
                trimmed = await self._trim(remembered, line, codec, state)
        except TrimmingError as error:
            remembered.outcome, remembered.not_searched = f"bypassed;{error}", str(error)
            return
        remembered.rendered = trimmed.rendered
        remembered.not_searched = why_not_searched(request, self._config)
        if trimmed.notes or len(trimmed.sent_indexes) < len(request.items):
            remembered.trimmed = trimmed
            remembered.sent_count = trimmed.count
            remembered.outcome = "recalled" if trimmed.recalled else "trimmed"

    async def _trim(self, remembered: Remembered, line: Line, codec: Codec, state: TrimmingState) -> Trimmed:
        """Return a request within the budget, and store the trimming state for the next request of the line."""
        request, state_before = remembered.request, asdict(state)
        session, synced = await self.sessions.sync(request, line)
        trimmed = await trim_request(request, session, synced, codec, self._config, remembered.budget, state)
        if asdict(state) != state_before:
            await self._kv.set(_state_key(request, line), asdict(state))
        return trimmed

    async def _load_state(self, request: ClientRequest, line: Line) -> TrimmingState:
        entry = await self._kv.get(_state_key(request, line))
        return TrimmingState() if entry is None else TrimmingState(**entry.data)

    async def _load_codec(self, request: ClientRequest) -> Codec:
        """Return the codec of a model, with the stored calibration of its token counts."""
        key = _calibration_key(request)
        if key not in self._codecs:
            entry = await self._kv.get(key)
            calibration = None if entry is None else entry.data
            self._codecs[key] = named_codec(
                request.protocol.name, request.model or None, calibrated=calibration
            )
        return self._codecs[key]

    async def _calibrate_counts(self, remembered: Remembered, reply: Reply | None) -> None:
        """Calibrate the token counts of a model with the usage that the provider reports, and store the calibration."""
        codec = self._codecs.get(_calibration_key(remembered.request))
        if codec is None or remembered.sent_count is None or reply is None or reply.response is None:
            return
        try:
            usage = codec.usage(reply.response)
        except (ACMSError, LookupError, TypeError, ValueError):
            return  # this server reports its usage in another form
        codec.observe(remembered.sent_count, usage)
        if isinstance(codec, CountingCodec):
            await self._kv.set(_calibration_key(remembered.request), codec.calibration.state())

    # ── after the answer ────────────────────────────────────────────────────────────────────────────────────────────

    async def finish(self, remembered: Remembered, reply: Reply) -> None:
        """Record the answer before its end is relayed, so that a client that sends it back continues this line."""
        line, request = remembered.line, remembered.request
        if line is None or not reply.items:
            return
        answer = position_of_answer(request, reply)
        keys = [message["key"] for message in request.keyed_messages(reply.items)]
        remembered.line = await self.lines.finish(
            request.position,
            line,
            answer,
            answer_key=keys[-1],
            question_key=request.keys[-1],
            response_id=reply.id,
        )

    def store_later(self, remembered: Remembered, reply: Reply | None) -> None:
        """Store a request and its answer in the background."""
        if remembered.line is None:
            return
        task = asyncio.create_task(
            self._store_with_retries(remembered, remembered.line, reply), name="acms-gateway-store"
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _store_with_retries(self, remembered: Remembered, line: Line, reply: Reply | None) -> None:
        """Store a request and its answer, with retries, and then the calibration and the decisions."""
        await asyncio.sleep(_STORE_DELAY)
        items = () if reply is None else reply.items
        request = remembered.request
        for attempt in range(1, _STORE_ATTEMPTS + 1):
            try:
                async with self.sessions.lock(request.namespace, line.name):
                    await self.sessions.sync(request, line, items)
                await self._calibrate_counts(remembered, reply)
                await record_request(self._kv, remembered, line)
                return
            except Exception as error:
                retries = isinstance(error, ACMSError) and error.retryable and attempt < _STORE_ATTEMPTS
                log_event(logging.WARNING, "gateway_not_stored", error=safe_error(error), retries=retries)
                if not retries:
                    return
            await asyncio.sleep(_STORE_PAUSE)


def _asks_something_new(request: ClientRequest) -> bool:
    """Return whether the newest message is one of the user, and no result of a tool."""
    newest = request.items[-1]
    if request.protocol.result_ids(newest):
        return False
    return newest.get("role") == "user" and bool(newest_question(request))


def _calibration_key(request: ClientRequest) -> str:
    return f"calibration/{request.protocol.name}/{request.model[:200]}"


def _state_key(request: ClientRequest, line: Line) -> str:
    return f"trimming/{request.namespace}/{line.name}"
