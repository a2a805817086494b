"""Access tokens of an identity provider: what opens the service, what does not, and what happens when keys change."""

from __future__ import annotations

import asyncio
import hmac
import secrets
import time
import warnings
from collections.abc import AsyncIterator, Iterator
from hashlib import sha256
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from acms import ConfigurationError
from acms.errors import AuthenticationError, PermissionDeniedError, UnreachableError
from acms.server import ServerConfig, oidc
from acms.server.audit import read_audit_trail
from acms.server.oidc import OIDCConfig, Tokens
from acms.server.operation import Scope
from tests.server.guarded import GUARDED, Guarded, guarded_service
from tests.support.identity import (
    AUDIENCE,
    Pages,
    Provider,
    Providers,
    claims_of_token,
    free_port,
    serve_pages,
    unsigned_token,
)

ALICE = {"sub": "alice", "tenant": "acme", "roles": ["writer"]}
BOB = {"sub": "bob", "tenant": "globex", "roles": ["admin"]}
RITA = {"sub": "rita", "tenant": "acme", "roles": "reader"}
NOBODY = {"sub": "nobody", "roles": ["writer"]}
THIEF = {"sub": "thief", "tenant": "@acms", "roles": ["admin"]}


def oidc_config(issuer: str, **given: Any) -> ServerConfig:
    return ServerConfig(limits=GUARDED.limits, oidc=OIDCConfig(issuer=issuer, audience=AUDIENCE, **given))


# ── a real provider ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def providers() -> Iterator[Providers]:
    found = Providers()
    yield found
    found.close()


@pytest.fixture(scope="module")
def signing(providers: Providers) -> Iterator[Provider]:
    with providers.run(free_port(), ALICE, BOB, RITA, NOBODY, THIEF) as running:
        yield running


@pytest.fixture(scope="module")
def expiring(providers: Providers) -> Iterator[Provider]:
    """A provider whose tokens are over when they are made."""
    with providers.run(free_port(), ALICE, seconds=-120) as running:
        yield running


@pytest.fixture(scope="module")
async def service(signing: Provider) -> AsyncIterator[Guarded]:
    async with guarded_service("memory://", oidc_config(signing.issuer)) as running:
        yield running


async def body_of_refusal(service: Guarded, token: str, status: int = 401) -> dict[str, Any]:
    client = await service.client(token)
    reply = await client.get("/contexts")
    assert reply.status_code == status, reply.text
    assert token not in reply.text
    if status == 401:
        assert reply.headers["www-authenticate"].startswith('Bearer error="invalid_token"')
        assert reply.json()["options"] == ["get a new access token from the identity provider"]
    return dict(reply.json())


async def test_a_subject_signs_in_and_does_what_its_role_is_for(service: Guarded, signing: Provider) -> None:
    writer = await service.client(signing.token("alice"))
    made = await writer.post("/contexts", json={"key": "plan"})
    assert made.status_code == 201, made.text
    context = made.json()["data"]["id"]
    said = {"messages": [{"role": "user", "content": "We chose PostgreSQL."}]}
    assert (await writer.post(f"/contexts/{context}/messages", json=said)).status_code == 201
    reader = await service.client(signing.token("rita"))
    assert (await reader.get(f"/contexts/{context}/messages")).status_code == 200
    denied = await reader.post(f"/contexts/{context}/messages", json=said)
    assert (denied.status_code, denied.json()["code"]) == (403, "FORBIDDEN")
    assert (await writer.get("/audit")).status_code == 403
    noted = await read_audit_trail(await service.app.stores.tenant("acme"), limit=2)
    assert {one.key for one in noted} == {"oidc:alice"}


async def test_no_subject_reaches_the_data_of_another_tenant(service: Guarded, signing: Provider) -> None:
    alice = await service.client(signing.token("alice"))
    context = (await alice.post("/contexts", json={"key": "hers"})).json()["data"]["id"]
    bob = await service.client(signing.token("bob"))
    for path in (f"/contexts/{context}", f"/contexts/{context}/messages"):
        assert (await bob.get(path)).status_code == 404
    assert (await bob.get("/contexts")).json()["data"] == []
    assert (await bob.get("/export", params={"contextId": context})).status_code == 404
    for subject in ("nobody", "thief"):
        assert (await body_of_refusal(service, signing.token(subject), 403))["code"] == "FORBIDDEN"


async def test_keys_go_on_beside_tokens(service: Guarded) -> None:
    client = await service.key("acme")
    assert (await client.get("/contexts")).status_code == 200
    stranger = await service.client("acms_aaaaaaaa_" + "b" * 52)
    reply = await stranger.get("/contexts")
    assert (reply.status_code, reply.headers["www-authenticate"]) == (401, "Bearer")
    assert reply.json()["options"][1] == "Authorization: Bearer, and an access token of the identity provider"


async def test_a_token_that_is_over_is_refused(expiring: Provider) -> None:
    async with guarded_service("memory://", oidc_config(expiring.issuer)) as service:
        assert (await body_of_refusal(service, expiring.token("alice")))[
            "detail"
        ] == "the access token has expired"


async def test_a_token_of_another_issuer_or_for_another_service_is_refused(
    service: Guarded, signing: Provider, expiring: Provider
) -> None:
    assert "is not valid here" in (await body_of_refusal(service, expiring.token("alice")))["detail"]
    told = await body_of_refusal(service, signing.token("alice", audience="another"))
    assert told["detail"] == "the access token is not for this service"


async def test_a_token_that_the_provider_did_not_sign_is_refused(service: Guarded, signing: Provider) -> None:
    real = signing.token("alice")
    said, (key,) = claims_of_token(real), signing.keys()
    head, body, signature = real.split(".")
    shared = jwt.PyJWK(key).key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    forged = [
        unsigned_token(said),
        unsigned_token(said, "None"),
        unsigned_token(said, "RS256"),
        _hmac_token(said, shared),  # the public key taken for a shared secret
        _hmac_token(said, key["n"].encode()),
        f"{head}.{unsigned_token({**said, 'tenant': 'globex'}).split('.')[1]}.{signature}",
        f"{head}.{body}.{signature[:-8]}AAAAAAAA",
        f"{head}.{body}.",
        "a.b.c",
        jwt.encode(said, rsa.generate_private_key(65537, 2048), "RS256"),
        jwt.encode(said, rsa.generate_private_key(65537, 2048), "RS256", headers={"kid": key["kid"]}),
    ]
    for one in forged:
        assert "is not valid here" in (await body_of_refusal(service, one))["detail"]
    assert (await (await service.client(real)).get("/contexts")).status_code == 200


async def test_keys_are_changed_and_the_provider_goes_down(providers: Providers) -> None:
    port, seconds = free_port(), [1000.0]
    with providers.run(port, ALICE) as first:
        tokens = Tokens(OIDCConfig(issuer=first.issuer, audience=AUDIENCE), elapsed=lambda: seconds[0])
        old = first.token("alice")
        assert (await tokens.find(old)).tenant == "acme"
    # Down: what is known goes on for a day.
    seconds[0] += oidc.FRESH + 1
    assert (await tokens.find(old)).key == "oidc:alice"
    with pytest.raises(UnreachableError):  # it waits for the reading that this began
        await tokens.find(Signer("unknown").token(first.issuer))
    with providers.run(port, ALICE) as second:
        new = second.token("alice")
        with pytest.raises(AuthenticationError):
            await tokens.find(new)  # asked for just now: not again for anybody
        seconds[0] += oidc.PAUSE
        assert (await tokens.find(new)).tenant == "acme"
        with pytest.raises(AuthenticationError):
            await tokens.find(old)
    seconds[0] += oidc.STALE
    with pytest.raises(UnreachableError):
        await tokens.find(new)
    await tokens.aclose()


# ── keys and tokens of our own ──────────────────────────────────────────────────────────────────────────────────────


def _hmac_token(said: dict[str, Any], secret: bytes) -> str:
    """Sign with a shared secret, also with one that no library takes for one."""
    head = unsigned_token(said, "HS256").rstrip(".")
    signature = jwt.utils.base64url_encode(hmac.new(secret, head.encode(), sha256).digest())
    return f"{head}.{signature.decode()}"


class Signer:
    """A key, as it is published, and the tokens that it signs."""

    def __init__(self, kid: str | None, algorithm: str = "ES256") -> None:
        self.algorithm = algorithm
        curve = {"ES256": ec.SECP256R1, "ES384": ec.SECP384R1}
        self._key = ec.generate_private_key(curve[algorithm]())
        written: dict[str, Any] = ECAlgorithm.to_jwk(self._key.public_key(), as_dict=True)
        self.published = {**written, "alg": algorithm, "use": "sig"} | ({} if kid is None else {"kid": kid})
        self._headers = {} if kid is None else {"kid": kid}

    def token(self, issuer: str, **said: Any) -> str:
        now = int(time.time())
        usual = {
            "iss": issuer,
            "aud": AUDIENCE,
            "sub": "alice",
            "iat": now,
            "exp": now + 60,
            "tenant": "acme",
        }
        found = {name: value for name, value in (usual | said).items() if value is not None}
        return jwt.encode(found, self._key, self.algorithm, headers=self._headers)


@pytest.fixture
async def home() -> AsyncIterator[Pages]:
    async with serve_pages() as running:
        yield running


def tokens_of(home: Pages, seconds: list[float] | None = None, **given: Any) -> Tokens:
    at = seconds or [1000.0]
    return Tokens(OIDCConfig(issuer=home.issuer, audience=AUDIENCE, **given), elapsed=lambda: at[0])


async def test_keys_are_read_once_and_again_for_one_that_is_not_known(home: Pages) -> None:
    seconds, old, new = [1000.0], Signer("1"), Signer("2")
    home.publish(old.published)
    tokens = tokens_of(home, seconds)
    for _ in range(3):
        await tokens.find(old.token(home.issuer))
    assert len(home.asked) == 2
    home.publish(old.published, new.published)
    seconds[0] += oidc.PAUSE
    await tokens.find(new.token(home.issuer))
    for number in range(20):  # strangers cannot make it ask
        with pytest.raises(AuthenticationError):
            await tokens.find(Signer(f"unknown-{number}").token(home.issuer))
    assert len(home.asked) == 4
    home.pages.clear()
    seconds[0] += oidc.PAUSE
    with pytest.raises(UnreachableError):  # it may be valid: nobody can tell
        await tokens.find(Signer("3").token(home.issuer))
    await tokens.find(old.token(home.issuer))
    await tokens.aclose()


async def test_keys_without_an_id_are_all_tried(home: Pages) -> None:
    first, second = Signer(None), Signer(None)
    home.publish(first.published, second.published)
    tokens = tokens_of(home)
    for signer in (first, second):
        assert (await tokens.find(signer.token(home.issuer))).tenant == "acme"
    await tokens.aclose()


async def test_a_silent_provider_delays_no_token_whose_key_is_known(home: Pages) -> None:
    seconds, old, new = [1000.0], Signer("1"), Signer("2")
    home.publish(old.published)
    tokens = tokens_of(home, seconds)
    await tokens.find(old.token(home.issuer))
    assert len(home.asked) == 2
    home.answers.clear()
    home.publish(old.published, new.published)
    seconds[0] += oidc.FRESH
    for _ in range(3):
        await tokens.find(old.token(home.issuer))
    later = asyncio.ensure_future(tokens.find(new.token(home.issuer)))
    while len(home.asked) < 3:
        await asyncio.sleep(0.01)
    home.answers.set()
    # The keys are read while tokens are checked: an unknown one waits for the reading that is under way.
    assert (await later).tenant == "acme"
    assert len(home.asked) == 4
    await tokens.aclose()


async def test_many_unknown_keys_are_asked_for_once_while_the_provider_is_silent(home: Pages) -> None:
    seconds, known = [1000.0], Signer("1")
    home.publish(known.published)
    tokens = tokens_of(home, seconds)
    await tokens.find(known.token(home.issuer))
    home.answers.clear()
    seconds[0] += oidc.PAUSE
    strangers = [Signer(f"unknown-{number}").token(home.issuer) for number in range(50)]
    asking = [asyncio.ensure_future(tokens.find(token)) for token in strangers]
    while len(home.asked) < 3:
        await asyncio.sleep(0.01)
    await tokens.find(known.token(home.issuer))
    home.answers.set()
    found = await asyncio.gather(*asking, return_exceptions=True)
    assert {type(one) for one in found} == {AuthenticationError}
    assert len(home.asked) == 4
    await tokens.aclose()


async def test_claims_are_checked(home: Pages) -> None:
    signer, now = Signer("1"), int(time.time())
    home.publish(signer.published)
    tokens = tokens_of(home)
    wrong: list[dict[str, Any]] = [
        {"exp": now - 61}, {"exp": None}, {"exp": "soon"}, {"nbf": now + 90}, {"iat": now + 90},
        {"iss": home.issuer + "/"}, {"iss": None}, {"aud": None}, {"aud": []}, {"aud": "acms2"}, {"sub": None},
        {"sub": 7},
    ]  # fmt: skip
    for said in wrong:
        with pytest.raises(AuthenticationError):
            await tokens.find(signer.token(home.issuer, **said))
    for said in ({"exp": now - 30}, {"iat": now + 30}, {"aud": ["other", AUDIENCE]}):  # within the skew
        assert (await tokens.find(signer.token(home.issuer, **said))).tenant == "acme"
    for tenant in (None, "", " ", "@acms", 7, ["acme"], {"name": "acme"}, "a" * 256, "a\0b"):
        with pytest.raises(PermissionDeniedError):
            await tokens.find(signer.token(home.issuer, tenant=tenant))
    await tokens.aclose()


async def test_claims_have_the_names_that_the_operator_gives(home: Pages) -> None:
    signer = Signer("1")
    home.publish(signer.published)
    tokens = tokens_of(
        home,
        tenant_claim="https://acms.example/org",
        roles_claim="realm_access.roles",
        namespaces_claim="teams",
        roles={"team-lead": frozenset({Scope.ERASE})},
    )
    said = {"https://acms.example/org": "globex", "realm_access": {"roles": ["team-lead", "other", 7]}}
    found = await tokens.find(signer.token(home.issuer, **said, teams=["orders", "billing"]))
    assert (found.tenant, found.scopes) == ("globex", {Scope.ERASE})
    assert found.namespaces == {"orders", "billing"}
    bare = await tokens.find(signer.token(home.issuer, **said | {"realm_access": "context:read erase"}))
    assert (bare.scopes, bare.namespaces) == (frozenset(), frozenset())
    await tokens.aclose()


async def test_a_key_is_used_for_what_it_was_published_for(home: Pages) -> None:
    secret = secrets.token_urlsafe(32)
    small, wide = Signer("small"), Signer("small", "ES384")
    shared = {"kty": "oct", "kid": "shared", "k": secret, "alg": "HS256"}
    closed = Signer("closed")
    home.publish(small.published, shared, {**closed.published, "use": "enc"})
    tokens = tokens_of(home)
    stolen = unsigned_token(claims_of_token(small.token(home.issuer)), "HS256", kid="shared")
    for one in (wide.token(home.issuer), closed.token(home.issuer), stolen):
        with pytest.raises(AuthenticationError):
            await tokens.find(one)
    await tokens.find(small.token(home.issuer))
    await tokens.aclose()


async def test_a_short_key_is_not_believed(home: Pages) -> None:
    weak = rsa.generate_private_key(65537, 1024)
    home.publish({**RSAAlgorithm.to_jwk(weak.public_key(), as_dict=True), "kid": "weak"})
    tokens, said = tokens_of(home), claims_of_token(Signer("1").token(home.issuer))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the library that signs
        signed = jwt.encode(said, weak, "RS256", headers={"kid": "weak"})
    with pytest.raises(AuthenticationError):
        await tokens.find(signed)
    await tokens.aclose()


async def test_a_key_without_an_id_is_tried(home: Pages) -> None:
    signer = Signer(None)
    home.publish(signer.published)
    tokens = tokens_of(home)
    assert (await tokens.find(signer.token(home.issuer))).key == "oidc:alice"
    with pytest.raises(AuthenticationError):
        await tokens.find(Signer(None).token(home.issuer))
    await tokens.aclose()


# ── the provider that is meant ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "issuer",
    ["http://login.example.org", "ftp://127.0.0.1", "https://user:pw@login.example.org", "login", ""],
)
def test_an_issuer_is_https_unless_it_is_on_this_machine(issuer: str) -> None:
    with pytest.raises(ConfigurationError):
        OIDCConfig(issuer=issuer, audience=AUDIENCE)


async def test_a_document_that_names_another_issuer_is_not_believed(home: Pages) -> None:
    home.publish(Signer("1").published, issuer="https://login.example.org")
    with pytest.raises(ConfigurationError, match="is not the configured issuer"):
        await tokens_of(home).open()


@pytest.mark.parametrize(
    "at", ["http://127.0.0.1:1/keys", "https://127.0.0.1:1/keys", "https://169.254.169.254/k"]
)
async def test_keys_elsewhere_are_only_asked_for_at_a_public_address(home: Pages, at: str) -> None:
    signer = Signer("1")
    home.publish(signer.published, at=at)
    tokens = tokens_of(home)
    with pytest.raises(UnreachableError):
        await tokens.find(signer.token(home.issuer))
    assert home.asked == ["/.well-known/openid-configuration"]
    await tokens.aclose()


async def test_a_service_starts_while_the_provider_is_down() -> None:
    down = OIDCConfig(issuer=f"http://127.0.0.1:{free_port()}", audience=AUDIENCE)
    async with guarded_service("memory://", ServerConfig(limits=GUARDED.limits, oidc=down)) as service:
        token = Signer("1").token(down.issuer)
        assert (await body_of_refusal(service, token, 503))["retryable"] is True
        assert (await (await service.key("acme")).get("/contexts")).status_code == 200


def test_tokens_are_not_looked_at_where_everybody_may_come_in() -> None:
    with pytest.raises(ConfigurationError):
        ServerConfig(auth="off", oidc=OIDCConfig(issuer="https://login.example.org", audience=AUDIENCE))
