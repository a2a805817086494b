"""Keys: every caller without a valid key gets the same answer; one with a key gets the rights of that key (T43)."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from acms import ACMSConfig, ConfigurationError, NotFoundError, ValidationError
from acms.server import Limits, ServerConfig, create_app
from acms.server.audit import Audit, read_audit_trail
from acms.server.keys import USUAL, Keys
from acms.server.operation import BASE, Scope
from acms.server.rates import Buckets, network_of_address
from acms.server.routes.table import OPERATIONS
from acms.server.tenants import SERVICE_TENANT, Engine, Stores
from tests.server.guarded import GUARDED, Guarded, guarded_service


@pytest.fixture(scope="module")
async def service() -> AsyncIterator[Guarded]:
    async with guarded_service("memory://") as running:
        yield running


class Clock:
    """Time that only passes when it is told to."""

    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.seconds = 0.0

    def __call__(self) -> datetime:
        return self.now

    def elapsed(self) -> float:
        return self.seconds


@pytest.fixture
async def clock() -> Clock:
    return Clock()


@pytest.fixture
async def stores(any_url: str) -> AsyncIterator[Stores]:
    """The stores of one replica; a URL with a tenant in it is that of the whole database."""
    found = Stores(any_url.partition("?")[0], Engine(config=ACMSConfig()))
    yield found
    await found.aclose()


def keys_of(stores: Stores, clock: Clock) -> Keys:
    return Keys(stores, Audit(stores, clock=clock), clock=clock, elapsed=clock.elapsed)


def bearer_header(secret: str) -> str:
    return f"Bearer {secret}"


# ── the life of a key ───────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_key_opens_its_tenant_until_it_expires(stores: Stores, clock: Clock) -> None:
    keys = keys_of(stores, clock)
    key, secret = await keys.create("acme", name="bot", expires=timedelta(days=90))
    assert secret.startswith(f"acms_{key.id}_")
    assert secret.count("_") == 2
    found = await keys.find(bearer_header(secret))
    assert found is not None
    assert (found.key, found.tenant, found.scopes) == (key.id, "acme", USUAL)
    clock.now += timedelta(days=90, seconds=-1)
    assert await keys.find(bearer_header(secret)) is not None
    clock.now += timedelta(seconds=1)
    assert await keys.find(bearer_header(secret)) is None


async def test_only_a_hash_of_a_key_is_stored(tmp_path_factory: pytest.TempPathFactory, clock: Clock) -> None:
    folder = tmp_path_factory.mktemp("store")
    stores = Stores(f"sqlite:///{folder / 'log.db'}", Engine(config=ACMSConfig()))
    _, secret = await keys_of(stores, clock).create("acme")
    await stores.aclose()
    raw = b"".join(file.read_bytes() for file in folder.iterdir())
    assert b"acme" in raw
    assert secret.rpartition("_")[2].encode() not in raw


async def test_a_revoked_key_ends_on_every_replica_within_five_seconds(stores: Stores, clock: Clock) -> None:
    keys = keys_of(stores, clock)
    other = keys_of(stores, clock)
    key, secret = await keys.create("acme")
    assert await other.find(bearer_header(secret)) is not None
    await keys.revoke(key.id)
    assert await keys.find(bearer_header(secret)) is None, "where it was revoked it ends at once"
    clock.seconds += 4.9
    assert await other.find(bearer_header(secret)) is None


async def test_a_new_key_opens_on_every_replica_within_five_seconds(stores: Stores, clock: Clock) -> None:
    keys, other = keys_of(stores, clock), keys_of(stores, clock)
    for _ in range(3):
        assert await other.find("Bearer acms_00000000_x") is None
    _, secret = await keys.create("acme")
    clock.seconds += 4.9
    assert await other.find(bearer_header(secret)) is not None


async def test_trying_keys_reads_the_store_once_in_two_seconds(
    stores: Stores, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = keys_of(stores, clock)
    read: list[str] = []
    home = (await stores.tenant(SERVICE_TENANT)).kv
    get = home.get

    async def counted(key: str):  # type: ignore[no-untyped-def]
        read.append(key)
        return await get(key)

    monkeypatch.setattr(home, "get", counted)
    for number in range(200):
        assert (
            await keys.find(f"Bearer acms_{number % 10}{secrets.token_hex(4)}_{secrets.token_hex(26)}")
            is None
        )
    assert len(read) == len(set(read)) == 10
    clock.seconds += 2
    await keys.find("Bearer acms_0_0")
    assert len(read) == 11


async def test_a_rotated_key_goes_on_for_the_overlap(stores: Stores, clock: Clock) -> None:
    keys = keys_of(stores, clock)
    key, old = await keys.create("acme", name="bot", scopes=[Scope.READ], expires=timedelta(days=90))
    clock.now += timedelta(days=80)
    made, new = await keys.rotate(key.id, overlap=timedelta(hours=1))
    assert (made.tenant, made.name, made.scopes, made.succeeds) == ("acme", "bot", {Scope.READ}, key.id)
    assert made.expires_at == clock.now + timedelta(days=90)
    assert await keys.find(bearer_header(old)) is not None
    clock.now += timedelta(hours=1)
    assert await keys.find(bearer_header(old)) is None
    assert await keys.find(bearer_header(new)) is not None
    with pytest.raises(NotFoundError, match="no longer valid"):
        await keys.rotate(key.id)


async def test_an_overlap_makes_no_key_live_longer(stores: Stores, clock: Clock) -> None:
    keys = keys_of(stores, clock)
    key, old = await keys.create("acme", expires=timedelta(hours=1))
    await keys.rotate(key.id, overlap=timedelta(days=30))
    clock.now += timedelta(hours=1)
    assert await keys.find(bearer_header(old)) is None


async def test_the_day_of_its_last_use_is_known(stores: Stores, clock: Clock) -> None:
    keys, tenant = keys_of(stores, clock), f"t-{secrets.token_hex(6)}"
    _, secret = await keys.create(tenant)
    assert [one.used_on for one in await keys.list(tenant)] == [None]
    clock.now += timedelta(days=3)
    await keys.find(bearer_header(secret))
    assert [one.used_on for one in await keys.list(tenant)] == ["2026-01-04"]


async def test_keys_are_listed_by_tenant_oldest_first(stores: Stores, clock: Clock) -> None:
    keys, tenant = keys_of(stores, clock), f"t-{secrets.token_hex(6)}"
    names = [f"key {number}" for number in range(8)]
    for name in names:
        clock.now += timedelta(seconds=1)
        await keys.create(tenant, name=name)
    await keys.create(f"{tenant}-other")
    assert [one.name for one in await keys.list(tenant)] == names


async def test_no_key_is_lost_when_replicas_make_them_at_once(any_url: str, clock: Clock) -> None:
    one, other = [Stores(any_url.partition("?")[0], Engine(config=ACMSConfig())) for _ in range(2)]
    if any_url == "memory://":
        other = one
    tenant, replicas = f"t-{secrets.token_hex(6)}", [keys_of(one, clock), keys_of(other, clock)]
    made = await asyncio.gather(*[replicas[number % 2].create(tenant) for number in range(40)])
    assert {key.id for key in await replicas[0].list(tenant)} == {key.id for key, _ in made}
    await asyncio.gather(*[replicas[number % 2].revoke(key.id) for number, (key, _) in enumerate(made)])
    assert all(key.revoked_at is not None for key in await replicas[1].list(tenant))
    for stores in (one, other):
        await stores.aclose()


async def test_what_cannot_be_a_key_is_refused(clock: Clock) -> None:
    keys = keys_of(Stores("memory://", Engine(config=ACMSConfig())), clock)
    with pytest.raises(ValidationError, match="tenant"):
        await keys.create(SERVICE_TENANT)
    with pytest.raises(ValidationError, match="scopes"):
        await keys.create("acme", scopes=["everything"])
    with pytest.raises(ValidationError, match="scopes"):
        await keys.create("acme", scopes=[])
    with pytest.raises(ValidationError, match="expires"):
        await keys.create("acme", expires=timedelta(0))
    with pytest.raises(ValidationError, match="overlap"):
        await keys.rotate("x", overlap=timedelta(-1))
    for id in ("", "_", "zzzzzzzz", "ß"):
        with pytest.raises(NotFoundError, match="no key"):
            await keys.revoke(id)


async def test_what_becomes_of_a_key_is_in_the_trail_of_its_tenant(stores: Stores, clock: Clock) -> None:
    keys, tenant = keys_of(stores, clock), f"t-{secrets.token_hex(6)}"
    key, _ = await keys.create(tenant)
    made, _ = await keys.rotate(key.id)
    await keys.revoke(made.id)
    noted = await read_audit_trail(await stores.tenant(tenant))
    assert [(one.step, one.operation) for one in reversed(noted)] == [
        (step, operation)
        for operation in ("createKey", "rotateKey", "revokeKey")
        for step in ("intent", "outcome")
    ]


# ── at the door ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_it_does_not_start_open_to_the_network() -> None:
    with pytest.raises(ConfigurationError, match="no key is required"):
        ServerConfig(auth="off", host="0.0.0.0")


async def test_it_does_not_start_before_there_is_a_key() -> None:
    app = create_app("memory://", GUARDED)
    with pytest.raises(ConfigurationError, match="acms keys create --tenant"):
        await app.start()
    await app.keys.create("acme")
    await app.start()
    await app.stop()


async def test_whatever_is_wrong_with_a_key_the_answer_is_the_same(service: Guarded) -> None:
    valid, secret = await service.app.keys.create("acme")
    expired, ended = await service.app.keys.create("acme", expires=timedelta(microseconds=1))
    revoked, gone = await service.app.keys.create("acme")
    await service.app.keys.revoke(revoked.id)
    tried = [
        "",
        "Bearer",
        "Bearer x",
        f"Basic {secret}",
        f"Bearer {secret}x",
        f"Bearer {secret[:-1]}",
        f"Bearer acms_{valid.id}_",
        f"Bearer acms_{valid.id}",
        f"Bearer acms_{expired.id}_{secret.rpartition('_')[2]}",
        "Bearer acms_00000000_" + "0" * 52,
        "Bearer acms__" + "0" * 52,
        "Bearer " + "acms_" * 1000,
        "Bearer acms_é_ü",
        f"Bearer {ended}",
        f"Bearer {gone}",
    ]
    client = await service.client()
    answers = set()
    for given in tried:
        for path in ("/contexts", "/contexts/c_0000000000000000"):
            reply = await client.get(path, headers={"Authorization": given.encode()})
            assert reply.status_code == 401, given
            body = reply.json()
            assert body.pop("requestId") == reply.headers["x-request-id"]
            answers.add((json.dumps(body), reply.headers["www-authenticate"]))
    assert len(answers) == 1
    assert (
        await client.get("/contexts", headers={"Authorization": bearer_header(secret)})
    ).status_code == 200


async def test_every_operation_asks_for_a_key_and_for_its_scope(service: Guarded) -> None:
    nobody = await service.client()
    for one in OPERATIONS:
        path = (one.path if one.rooted else BASE + one.path).replace("{", "").replace("}", "")
        url = service.url + path
        if one.scope is None:
            assert (await nobody.request(one.method, url)).status_code < 400, one.name
            continue
        assert (await nobody.request(one.method, url)).status_code == 401, one.name
        other = await service.key("acme", [scope for scope in Scope if scope is not one.scope])
        refused = await other.request(one.method, url)
        assert refused.status_code == 403, one.name
        assert one.scope.value in refused.json()["detail"]
        assert refused.json()["scope"] == one.scope.value
        challenge = f'Bearer error="insufficient_scope", scope="{one.scope.value}"'
        assert refused.headers["www-authenticate"] == challenge
        fitting = await service.key("acme", [one.scope])
        assert (await fitting.request(one.method, url)).status_code not in (401, 403), one.name


async def test_only_what_says_nothing_about_data_is_open(service: Guarded) -> None:
    assert {one.path for one in OPERATIONS if one.scope is None} <= {"/health", "/ready", "/openapi.json"}


async def test_a_stranger_is_slowed_down_and_nobody_else() -> None:
    limits = replace(GUARDED.limits, stranger_rate=0.001, stranger_burst=5)
    async with guarded_service("memory://", replace(GUARDED, limits=limits)) as service:
        nobody, client = await service.client("acms_00000000_x"), await service.key("acme")
        statuses = []
        for _ in range(20):
            reply = await nobody.get("/contexts")
            statuses.append(reply.status_code)
            assert (await client.get("/contexts")).status_code == 200, "from the same address"
        assert statuses == [401] * 5 + [429] * 15
        assert reply.json()["code"] == "RATE_LIMITED"
        assert reply.json()["retryable"]
        assert int(reply.headers["retry-after"]) > 100
        assert (await nobody.get(f"{service.url}/health")).status_code == 200


async def test_a_key_and_a_tenant_have_their_limits() -> None:
    limits = Limits(key_rate=0.001, key_burst=3, tenant_rate=0.001, tenant_burst=5)
    async with guarded_service("memory://", replace(GUARDED, limits=limits)) as service:
        one, two, other = await service.key("acme"), await service.key("acme"), await service.key("globex")
        assert [(await one.get("/contexts")).status_code for _ in range(4)] == [200, 200, 200, 429]
        assert [(await two.get("/contexts")).status_code for _ in range(3)] == [200, 200, 429]
        assert (await other.get("/contexts")).status_code == 200


# ── buckets ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_bucket_takes_its_burst_and_fills_again() -> None:
    clock = Clock()
    buckets = Buckets(2, 4, clock=clock.elapsed)
    assert [buckets.take("a") for _ in range(5)] == [0, 0, 0, 0, 0.5]
    clock.seconds += 0.5
    assert [buckets.take("a"), buckets.take("a")] == [0, 0.5]
    assert buckets.take("b") == 0
    clock.seconds += 100
    assert [buckets.take("a") for _ in range(5)] == [0, 0, 0, 0, 0.5]


def test_buckets_are_bounded() -> None:
    buckets = Buckets(1, 1, clock=Clock().elapsed, max_buckets=10)
    for number in range(1000):
        assert buckets.take(str(number)) == 0
    assert len(buckets._tokens) == 10


def test_a_customer_with_many_addresses_is_one_stranger() -> None:
    assert (
        network_of_address("2001:db8:1:2:3::1")
        == network_of_address("2001:db8:1:2:ffff::9")
        != network_of_address("2001:db8:1:3::1")
    )
    assert network_of_address("::ffff:192.0.2.7") == network_of_address("192.0.2.7") == "192.0.2.7"
    assert network_of_address("") == ""
