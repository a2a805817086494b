"""API keys: `acms_<id>_<secret>`, of which only the SHA-256 of the secret is kept.

A key is a row in one of 32 partitions, which are values of the service's own tenant. A partition is read at most once
per second, however often keys are tried: so an unknown id costs no more than a known one, and a revoked key stops
working in every process within two seconds, with the streams that it opened (`rights`). A plain hash is enough: 260
random bits cannot be guessed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from hmac import compare_digest
from time import monotonic
from typing import Any

from acms.errors import ACMSError, ConflictError, NotFoundError, ValidationError
from acms.log import validation
from acms.log.encoding import Entropy, draw_token
from acms.model import Json, KVEntry
from acms.nouns import decode_noun, encode_noun
from acms.ports import KVMemory
from acms.server.audit import Audit
from acms.server.operation import Principal, Scope
from acms.server.tenants import SERVICE_NAMESPACE, SERVICE_TENANT, Stores
from acms.storage.kv import update_entry

__all__ = ["USUAL", "Key", "Keys"]

FRESH = 1.0
"""Seconds for which a partition is cached; with `rights.LOOK_SECONDS` a revoked key ends within two seconds."""
_ID, _SECRET = 8, 52  # digits of 5 bits
_PARTITIONS = "0123456789abcdefghjkmnpqrstvwxyz"
_NO_DIGEST = sha256(b"").digest()
USUAL = frozenset(Scope) - {Scope.ERASE, Scope.ADMIN}
"""Default scopes of a key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """An API key without its secret, which is not stored."""

    id: str
    #: The tenant whose data it opens.
    tenant: str
    #: Its user, for people.
    name: str
    scopes: frozenset[Scope]
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    #: Day on which it was last used.
    used_on: str | None = None
    #: Id of the key that it replaces.
    succeeds: str | None = None
    #: The name under which namespaces are shared with it: the id of the first key before any rotation.
    principal: str = ""
    #: Its own namespaces; it also sees those shared with it. None: it sees all namespaces of its tenant.
    namespaces: tuple[str, ...] | None = None

    def valid(self, now: datetime) -> bool:
        """Return whether the key is valid at a point in time."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


@dataclass(frozen=True, slots=True)
class _StoredKey:
    key: Key
    digest: bytes
    principal: Principal


class Keys:
    """The API keys of a service."""

    def __init__(
        self,
        stores: Stores,
        audit: Audit,
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        elapsed: Callable[[], float] = monotonic,
        entropy: Entropy = os.urandom,
    ) -> None:
        self._stores = stores
        #: Records changes to keys.
        self.audit = audit
        self._clock = clock
        self._elapsed = elapsed
        self._entropy = entropy
        #: Partitions by the first digit of the ids of their keys: when the partition was read, and its keys by id.
        self._partitions: dict[str, tuple[float, Mapping[str, _StoredKey]]] = {}
        self._reading: dict[str, asyncio.Future[Mapping[str, _StoredKey]]] = {}
        #: A day, and the keys whose use on it is recorded.
        self._uses: tuple[str, set[str]] = ("", set())

    # ── asking ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def find(self, authorization: str) -> Principal | None:
        """Return the principal of an Authorization header, or None if its key is not valid."""
        id, secret = _parse_api_key(authorization)
        partition = await self._load_partition(id[0])
        stored_key = partition.get(id)
        digest = sha256(secret.encode()).digest()
        now = self._clock()
        # An unknown key is compared too, so that the time taken does not reveal which ids exist.
        matches = compare_digest(digest, _NO_DIGEST if stored_key is None else stored_key.digest)
        if stored_key is None or not matches or not stored_key.key.valid(now):
            return None
        day = now.date().isoformat()
        if stored_key.key.used_on != day:
            await self._record_use(id, day)
        return stored_key.principal

    async def list(self, tenant: str | None = None) -> list[Key]:
        """Return the keys of a tenant, or of all, oldest first, including expired and revoked ones."""
        partitions = await asyncio.gather(*[self._read_partition(name) for name in _PARTITIONS])
        keys = [stored_key.key for partition in partitions for stored_key in partition.values()]
        if tenant is not None:
            keys = [key for key in keys if key.tenant == tenant]
        return sorted(keys, key=lambda key: (key.created_at, key.id))

    async def get(self, id: str) -> Key:
        """Return a key by its id; raise `NotFoundError` for an unknown one."""
        stored_key = None
        if id and id[0] in _PARTITIONS:
            stored_key = (await self._read_partition(id[0])).get(id)
        if stored_key is None:
            raise NotFoundError(f"no key has the id {id!r}", options=("acms keys list",))
        return stored_key.key

    async def any(self) -> bool:
        """Return whether a key was ever created, also if it was revoked or has expired."""
        return bool(await self.list())

    # ── changing ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def create(
        self,
        tenant: str,
        *,
        name: str = "",
        scopes: Iterable[Scope | str] = USUAL,
        expires: timedelta | None = None,
        namespaces: Iterable[str] | None = None,
    ) -> tuple[Key, str]:
        """Create a key, and return it with the token that its owner sends, which cannot be shown again.

        `namespaces` binds the key: it then sees only these, which may be none, and those shared with it.
        """
        if validation.validate_name(tenant, "tenant") == SERVICE_TENANT:
            raise ValidationError(f"{SERVICE_TENANT!r} is the service itself", field="tenant")
        if expires is not None and expires <= timedelta(0):
            raise ValidationError("must be in the future", field="expires")
        own_namespaces = None if namespaces is None else _validate_namespaces(namespaces)
        key_scopes = _validate_scopes(scopes, bound=own_namespaces is not None)
        id = draw_token(self._entropy, _ID)
        key = Key(
            id=id,
            principal=id,
            namespaces=own_namespaces,
            tenant=tenant,
            name=validation.validate_text(name, "name", limit=validation.NAME_CHARS),
            scopes=key_scopes,
            created_at=self._clock(),
            expires_at=None if expires is None else self._clock() + expires,
        )
        async with self.audit.record(tenant, "createKey", {"key_id": key.id}):
            return key, await self._store_key(key)

    async def rotate(self, id: str, *, overlap: timedelta = timedelta(days=1)) -> tuple[Key, str]:
        """Create the successor of a key, with the same rights and lifetime; return it with its token.

        The old key stays valid for at most `overlap`. Raises `NotFoundError` if it is not valid now.
        """
        if overlap < timedelta(0):
            raise ValidationError("must not be negative", field="overlap")
        now = self._clock()
        old_key = await self.get(id)
        if not old_key.valid(now):
            raise NotFoundError(f"the key {id!r} is no longer valid", options=("acms keys create",))
        new_key = replace(
            old_key,
            id=draw_token(self._entropy, _ID),
            created_at=now,
            expires_at=None
            if old_key.expires_at is None
            else now + (old_key.expires_at - old_key.created_at),
            used_on=None,
            succeeds=old_key.id,
            principal=old_key.principal or old_key.id,
        )
        end = now + overlap
        async with self.audit.record(old_key.tenant, "rotateKey", {"key_id": id, "new_key_id": new_key.id}):
            token = await self._store_key(new_key)
            if old_key.expires_at is None or end < old_key.expires_at:
                await self._change(id, {"expires_at": end.isoformat()})
        return new_key, token

    async def revoke(self, id: str) -> Key:
        """Revoke a key: in this process at once, in all others within two seconds; return it.

        Raises `NotFoundError` if there is no key with this id.
        """
        key = await self.get(id)
        if key.revoked_at is None:
            async with self.audit.record(key.tenant, "revokeKey", {"key_id": id}):
                await self._change(id, {"revoked_at": self._clock().isoformat()})
        return await self.get(id)

    # ── partitions ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _kv(self) -> KVMemory:
        return (await self._stores.tenant(SERVICE_TENANT)).kv

    async def _load_partition(self, name: str) -> Mapping[str, _StoredKey]:
        """Return the keys of a partition, that is, of the ids that begin with this digit.

        They are read again if they are older than `FRESH` seconds. Concurrent calls share one read.
        """
        cached = self._partitions.get(name)
        if cached is not None:
            read_at, partition = cached
            if self._elapsed() - read_at < FRESH:
                return partition
        reading = self._reading.get(name)
        if reading is None:
            reading = asyncio.ensure_future(self._read_partition(name))
            self._reading[name] = reading
            reading.add_done_callback(lambda _: self._reading.pop(name, None))
        return await asyncio.shield(reading)

    async def _read_partition(self, name: str) -> Mapping[str, _StoredKey]:
        """Read the keys of a partition from the store, and cache them."""
        began = self._elapsed()
        kv = await self._kv()
        entry = await kv.get(_key_of_partition(name))
        partition = {id: _parse_key_row(id, row) for id, row in _rows_of_entry(entry).items()}
        self._partitions[name] = (began, partition)
        return partition

    async def _store_key(self, key: Key) -> str:
        """Store a key with the digest of a new secret; return the token that its owner sends."""
        secret = draw_token(self._entropy, _SECRET)
        digest = sha256(secret.encode()).hexdigest()
        row = {**encode_noun(key, wire=False), "scopes": sorted(key.scopes), "digest": digest}

        def change(entry: KVEntry | None) -> Json:
            rows = _rows_of_entry(entry)
            if key.id in rows:
                raise ConflictError("a key with this id already exists")
            return {**rows, key.id: row}

        await self._update(key.id, change)
        return f"acms_{key.id}_{secret}"

    async def _change(self, id: str, fields: Mapping[str, Json]) -> None:
        """Change fields of a key; do nothing if it was deleted."""

        def change(entry: KVEntry | None) -> Json:
            rows = _rows_of_entry(entry)
            if id in rows:
                rows[id] = {**rows[id], **fields}
            return rows

        await self._update(id, change)

    async def _update(self, id: str, change: Callable[[KVEntry | None], Json]) -> None:
        try:
            await update_entry(await self._kv(), _key_of_partition(id[0]), change)
        finally:
            self._partitions.pop(id[0], None)
            self._reading.pop(id[0], None)  # a read in progress may return the old state

    async def _record_use(self, id: str, day: str) -> None:
        """Record once a day that a key is in use; ignore errors of the store."""
        recorded_day, ids = self._uses
        if recorded_day != day:
            ids = set()
            self._uses = (day, ids)
        if id in ids:
            return
        ids.add(id)
        with suppress(ACMSError):
            await self._change(id, {"used_on": day})


def _validate_scopes(requested_scopes: Iterable[Scope | str], *, bound: bool) -> frozenset[Scope]:
    """Return the scopes of a key, which cannot include the tenant's administration if it is bound to namespaces."""
    scopes = frozenset(validation.parse_choice(scope, Scope, "scopes") for scope in requested_scopes)
    if not scopes:
        raise ValidationError("must name at least one", field="scopes", options=tuple(Scope))
    if bound and Scope.ADMIN in scopes:
        raise ValidationError(
            f"{Scope.ADMIN.value} concerns the whole tenant: a key that is bound to namespaces cannot have it",
            field="scopes",
            options=tuple(scope for scope in Scope if scope is not Scope.ADMIN),
        )
    return scopes


def _validate_namespaces(requested_names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of namespaces in order; `ValidationError` for the one that the service keeps for itself."""
    if isinstance(requested_names, str):
        raise ValidationError("must be a list of names", field="namespaces")
    names = {validation.validate_namespace(name, "namespaces") for name in requested_names}
    if SERVICE_NAMESPACE in names:
        raise ValidationError(f"{SERVICE_NAMESPACE!r} is reserved", field="namespaces")
    return tuple(sorted(names))


def _key_of_partition(partition: str) -> str:
    return f"keys/{partition}"


def _rows_of_entry(entry: KVEntry | None) -> dict[str, Any]:
    return {} if entry is None else dict(entry.data)


def _parse_api_key(authorization: str) -> tuple[str, str]:
    """Parse the id and the secret of an API key; for any other text return a pair that matches no key.

    So a malformed key takes the same path, and the same time, as an unknown one.
    """
    scheme, _, token = authorization.partition(" ")
    prefix, _, id_and_secret = token.strip().partition("_")
    id, _, secret = id_and_secret.partition("_")
    is_api_key = scheme.lower() == "bearer" and prefix == "acms"
    if not is_api_key or not id or id[0] not in _PARTITIONS:
        return "0", "-"
    return id, secret


def _parse_key_row(id: str, row: Mapping[str, Any]) -> _StoredKey:
    """Return a stored key with the digest of its secret and its principal."""
    scopes = frozenset(Scope(scope) for scope in row["scopes"])
    key = decode_noun(Key, row, wire=False, id=id, scopes=scopes)
    namespaces = None if key.namespaces is None else frozenset(key.namespaces)
    principal = Principal(
        key=id, tenant=key.tenant, scopes=scopes, name=key.principal or id, namespaces=namespaces
    )
    return _StoredKey(key, bytes.fromhex(row["digest"]), principal)
