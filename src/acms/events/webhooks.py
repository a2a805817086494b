"""The webhooks of a tenant, and the progress of each delivery of a log to a webhook.

Both are stored in the tenant's own values, which no pin and no request can name: one value for all webhooks, and one
for each log that is delivered to a webhook.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias, get_args
from urllib.parse import urlsplit

from acms.errors import ConfigurationError, ConflictError, NotFoundError, ValidationError
from acms.events.signing import generate_secret
from acms.jobs import requests
from acms.log import validation
from acms.log.encoding import Entropy, draw_token
from acms.model import WEBHOOK, Job, JobQuery, JobState, Json, KVEntry, Webhook
from acms.nouns import decode_noun, encode_noun
from acms.observability.logging import log_event
from acms.ports import HasOwnValues, ListingKV, Searchable, StorageBackend
from acms.providers.http import Endpoint
from acms.storage.kv import update_entry
from acms.storage.outbox import JOB, WEBHOOKS
from acms.storage.wrapper import innermost_storage

__all__ = ["KINDS", "Progress", "Told", "Webhooks", "delivers_job_changes", "progress_key_of"]

MAX_WEBHOOKS = 16
"""Maximum number of webhooks of a tenant."""
URL_CHARS = 2048
"""Maximum characters of an address."""
Told: TypeAlias = Literal["message", "fact", "summary", "episode", "retraction", "job"]
"""The event kinds of webhooks: kinds of entries, and changes of jobs."""
KINDS: tuple[Told, ...] = get_args(Told)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a log was delivered to a webhook."""

    #: Entries up to this version were accepted, or are of other kinds.
    version: int
    #: Failed attempts since an entry was accepted.
    failures: int = 0
    #: Progress in the changes of jobs, as a cursor of events; it has a key of its own.
    jobs: str = ""


class Webhooks:
    """The webhooks of the tenant of a store."""

    def __init__(
        self,
        storage: StorageBackend,
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        entropy: Entropy = os.urandom,
    ) -> None:
        if not isinstance(storage, HasOwnValues):
            raise ConfigurationError(
                "this store does not support webhooks", options=("sqlite:///", "postgresql://")
            )
        self._storage = storage
        self._kv: ListingKV = storage.own_values()
        self._clock = clock
        self._entropy = entropy

    async def add(
        self, url: str, *, events: Iterable[str] = KINDS, private: bool = False
    ) -> tuple[Webhook, str]:
        """Add a webhook; return it and its secret, which is not shown again.

        It receives entries appended from two seconds later on. Without `private`, the address must be https, and every
        address that its name resolves to must be public, at each delivery.
        """
        kinds = set(events)
        unknown = sorted(kinds - set(KINDS))
        if unknown:
            raise ValidationError(
                f"{unknown[0]!r} is no kind of entry, and not {JOB!r}", field="events", options=KINDS
            )
        if not kinds:
            raise ValidationError("must name at least one kind", field="events", options=KINDS)
        webhook = Webhook(
            id=draw_token(self._entropy, 12),
            url=_validate_url(url, private),
            events=tuple([kind for kind in KINDS if kind in kinds]),  # in a fixed order
            private=private,
            created_at=self._clock(),
        )
        secret = generate_secret(self._entropy)

        def add_row(entry: KVEntry | None) -> Json:
            rows = _read_rows(entry)
            if len(rows) >= MAX_WEBHOOKS:
                raise ConflictError(
                    f"there are {MAX_WEBHOOKS} webhooks already",
                    retryable=False,
                    options=("remove one of them",),
                )
            return {**rows, webhook.id: {**encode_noun(webhook, wire=False), "secret": secret}}

        await update_entry(self._kv, WEBHOOKS, add_row)
        return webhook, secret

    async def list(self) -> list[Webhook]:
        """Return the webhooks, oldest first; never their secrets."""
        rows = _read_rows(await self._kv.get(WEBHOOKS))
        webhooks = [_parse_webhook(row) for row in rows.values()]
        return sorted(webhooks, key=lambda webhook: webhook.created_at)

    async def find(self, id: str) -> tuple[Webhook, str] | None:
        """Return a webhook and its secret, for delivery, or None if there is none."""
        row = _read_rows(await self._kv.get(WEBHOOKS)).get(id)
        return None if row is None else (_parse_webhook(row), row["secret"])

    async def remove(self, id: str) -> None:
        """Remove a webhook and its secret; entries not delivered to it by now are never delivered.

        On SQLite the secret is gone from the file and its write-ahead log when this returns. If readers keep them, a
        warning is logged. `NotFoundError` if there is no such webhook.
        """
        webhook_and_secret = await self.find(id)
        if webhook_and_secret is None:
            raise _unknown_webhook_error(id)
        _, secret = webhook_and_secret

        def remove_row(entry: KVEntry | None) -> Json:
            return {other: row for other, row in _read_rows(entry).items() if other != id}

        await update_entry(self._kv, WEBHOOKS, remove_row)
        while True:
            page = await self._kv.list(_build_progress_key(id, ""), limit=validation.PAGE)
            for entry in page.entries:
                await self._kv.delete(entry.key)
            if not page.entries:
                break
        await self._wipe_secret(secret)

    async def _wipe_secret(self, secret: str) -> None:
        """Remove the bytes of a removed secret from the files of the store, like those of an erased text."""
        storage = innermost_storage(self._storage)
        if isinstance(storage, Searchable):
            remains = await storage.residue((), (secret.encode(),))
            if remains:
                log_event(logging.WARNING, "webhook_secret_left", places=remains)

    async def replay(self, id: str) -> list[Job]:
        """Retry the deliveries that were given up, each with a new full set of attempts; return the jobs.

        Each continues with the first entry that was not accepted, so the order of the log holds. `NotFoundError` if
        there is no such webhook.
        """
        await self._require_webhook(id)
        retried: list[Job] = []
        async for job in self._list_given_up(id):
            progress_key = progress_key_of(job)
            progress = await self.read_progress(id, progress_key)
            if progress is not None:
                await self.store_progress(id, progress_key, replace(progress, failures=0))
            try:
                retried.append(await requests.retry_job_by_id(self._storage, job.id))
            except ConflictError:  # a later job delivers the same log now
                continue
        return retried

    async def _list_given_up(self, id: str) -> AsyncIterator[Job]:
        """Yield the failed delivery jobs of a webhook."""
        after: str | None = None
        while True:
            query = JobQuery(states=(JobState.FAILED,), after=after, limit=validation.PAGE)
            page = await self._storage.jobs(query)
            for job in page.items:
                if job.kind == WEBHOOK and job.payload.get("webhook") == id:
                    yield job
            after = page.next_after
            if after is None:
                return

    # ── progress ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def read_progress(self, id: str, progress_key: str) -> Progress | None:
        """Return how far a log or its jobs (see `progress_key_of`) were delivered, or None before the first one."""
        entry = await self._kv.get(_build_progress_key(id, progress_key))
        return None if entry is None else decode_noun(Progress, entry.data, wire=False)

    async def store_progress(self, id: str, progress_key: str, progress: Progress) -> None:
        """Store how far a log was delivered, or its jobs."""
        await self._kv.set(_build_progress_key(id, progress_key), encode_noun(progress, wire=False))

    async def _require_webhook(self, id: str) -> None:
        if id not in _read_rows(await self._kv.get(WEBHOOKS)):
            raise _unknown_webhook_error(id)


def _unknown_webhook_error(id: str) -> NotFoundError:
    return NotFoundError(f"no webhook has the id {id!r}", options=("list the webhooks",))


def delivers_job_changes(job: Job) -> bool:
    """Return whether a delivery job reports changes of jobs instead of entries."""
    return job.payload.get("follows") == JOB


def progress_key_of(job: Job) -> str:
    """Return the key under which a delivery job stores its progress: the log, or the jobs of the log."""
    return f"{job.context}/{JOB}" if delivers_job_changes(job) else job.context


def _read_rows(entry: KVEntry | None) -> dict[str, Any]:
    return {} if entry is None else dict(entry.data)


def _parse_webhook(row: Mapping[str, Any]) -> Webhook:
    without_secret = {name: value for name, value in row.items() if name != "secret"}
    return decode_noun(Webhook, without_secret, wire=False)


def _build_progress_key(id: str, progress_key: str) -> str:
    return f"{WEBHOOKS}/{id}/{progress_key}"


def _validate_url(url: str, private: bool) -> str:
    """Return a valid address of a webhook; errors do not repeat the address, because it may contain a password."""
    text = validation.validate_text(url, "url", limit=URL_CHARS)
    malformed = ValidationError("is not an address such as https://example.com/hook", field="url")
    try:
        parts = urlsplit(text)
        is_complete = bool(parts.hostname) and parts.port != 0
    except ValueError:
        raise malformed from None
    if not is_complete or parts.scheme not in ("http", "https"):
        raise malformed
    has_user = parts.username is not None or parts.password is not None
    if has_user or parts.query or parts.fragment:
        raise ValidationError("must not contain a user, a password, a query or a fragment", field="url")
    if parts.scheme != "https" and not private:
        raise ValidationError("must be https", field="url")
    try:
        Endpoint(text, trusted=private)
    except ConfigurationError:  # a name that cannot be in a request
        raise malformed from None
    return text
