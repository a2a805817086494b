"""Access tokens of an OpenID Connect provider: JWTs of one issuer, verified with the keys that it publishes.

The operator chooses the issuer. Its discovery document and its keys are refreshed every five minutes in the background:
a provider that does not answer delays no check of a token, and its known keys stay in use for a day. For an unknown
key the keys are read at once, but at most every ten seconds in total.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from time import monotonic, time
from typing import Any
from urllib.parse import urlsplit

from acms.config import RetryConfig
from acms.errors import (
    AuthenticationError,
    ConfigurationError,
    MissingExtraError,
    PermissionDeniedError,
    ProviderError,
    UnreachableError,
    ValidationError,
)
from acms.log import validation
from acms.observability.logging import log_event
from acms.providers.addresses import is_loopback_host
from acms.providers.http import Endpoint
from acms.server.principal import Principal, Scope

__all__ = ["ROLES", "OIDCConfig", "Tokens"]

READER = frozenset({Scope.READ, Scope.MEMORY_READ})
WRITER = READER | {Scope.APPEND, Scope.FORK, Scope.COMPACT, Scope.MEMORY_WRITE}
ROLES: Mapping[str, frozenset[Scope]] = {"reader": READER, "writer": WRITER, "admin": frozenset(Scope)}
"""Scopes of each role."""
ALGORITHMS: Mapping[str, str] = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), "RSA"),
    **dict.fromkeys(("ES256", "ES384", "ES512"), "EC"),
    "EdDSA": "OKP",
}
"""Accepted algorithms with their key types: none without a signature, none with a shared secret."""
FRESH = 300.0
"""Seconds after which the keys are read again."""
PAUSE = 10.0
"""Shortest time between two attempts to read them, in seconds: unknown key ids must not flood the provider."""
STALE = 86_400.0
"""Seconds for which known keys stay in use while the provider does not answer."""
_CHECKS: Any = {"require": ["exp", "iss", "aud", "sub"], "enforce_minimum_key_length": True}
_DISCOVERY = "/.well-known/openid-configuration"
_NEW = ("get a new access token from the identity provider",)


@dataclass(frozen=True, slots=True, kw_only=True)
class OIDCConfig:
    """The provider whose access tokens open the service, and the meaning of their claims.

    A claim is given by its name or by its path: `realm_access.roles`. It must be one that users cannot set themselves.
    """

    #: The provider, exactly as it calls itself; https unless it is on this machine.
    issuer: str
    #: The name of this service that a token must be for.
    audience: str
    #: The claim that names the tenant.
    tenant_claim: str = "tenant"
    #: The claim that holds the rights: a role, a scope, or a list of them.
    roles_claim: str = "roles"
    #: The claim that lists the namespaces of the subject, which also sees those shared with it; with None every
    #: subject sees all namespaces of its tenant.
    namespaces_claim: str | None = None
    #: Scopes of each role; other values of the claim are ignored.
    roles: Mapping[str, frozenset[Scope]] = field(default_factory=lambda: ROLES)
    #: How far the clocks of the provider and of this machine may differ, in seconds.
    skew_seconds: float = 60.0

    def __post_init__(self) -> None:
        try:
            for name in ("issuer", "audience", "tenant_claim", "roles_claim"):
                validation.validate_name(getattr(self, name), f"oidc.{name}")
            validation.validate_optional_name(self.namespaces_claim, "oidc.namespaces_claim")
        except ValidationError as error:
            raise ConfigurationError(str(error)) from error
        if not 0 <= self.skew_seconds <= 300:
            raise ConfigurationError("oidc.skew_seconds must be between 0 and 300")
        parts = urlsplit(self.issuer)
        local = parts.scheme == "http" and is_loopback_host(parts.hostname or "")
        if parts.scheme != "https" and not local:
            raise ConfigurationError(
                "the issuer must be https, unless it is on this machine",
                options=("--oidc-issuer https://login.example.org",),
            )
        Endpoint(self.issuer)  # checks the rest of the URL


class Tokens:
    """Identifies callers by their access tokens."""

    def __init__(
        self,
        config: OIDCConfig,
        *,
        clock: Callable[[], float] = time,
        elapsed: Callable[[], float] = monotonic,
    ) -> None:
        try:
            import jwt
        except ImportError:
            raise MissingExtraError("oidc", "pyjwt") from None
        self._jwt = jwt
        self._config = config
        #: Seconds since 1970, for the times in tokens.
        self.clock = clock
        self._keys = _PublishedKeys(config.issuer, jwt.PyJWK, elapsed)

    async def open(self) -> None:
        """Read the keys. `ConfigurationError` if the issuer has another name; a provider that is down is logged."""
        try:
            await self._keys.refresh()
        except ProviderError as error:
            log_event(logging.WARNING, "identity_provider_down", error=str(error))

    async def aclose(self) -> None:
        """Close the connections to the provider."""
        await self._keys.aclose()

    async def find(self, token: str) -> Principal:
        """Return the principal that an access token identifies.

        Raises `AuthenticationError` for an invalid token, `PermissionDeniedError` for a token without a tenant, and
        `UnreachableError` if the token's key is unknown and the identity provider does not answer.
        """
        claims = await self._verify_claims(token)
        config = self._config
        subject = _parse_name(claims["sub"])
        tenant = _parse_name(_find_claim(claims, config.tenant_claim))
        if not subject or not tenant or tenant.startswith("@"):
            raise PermissionDeniedError(
                "the access token names no tenant",
                options=("ask the operator of the identity provider to assign you one",),
            )
        namespaces = None
        if config.namespaces_claim is not None:
            namespaces = frozenset(_parse_name_list(_find_claim(claims, config.namespaces_claim)))
        scopes = self._scopes_of_roles(_parse_name_list(_find_claim(claims, config.roles_claim)))
        key = f"oidc:{subject}"
        return Principal(key=key, name=key, tenant=tenant, scopes=scopes, namespaces=namespaces)

    def _scopes_of_roles(self, roles: Iterable[str]) -> frozenset[Scope]:
        """Return the scopes of roles; a role that is not configured may be the name of a scope."""
        scopes: set[Scope] = set()
        for role in roles:
            if role in self._config.roles:
                scopes |= self._config.roles[role]
            elif role in frozenset(Scope):
                scopes.add(Scope(role))
        return frozenset(scopes)

    async def _verify_claims(self, token: str) -> Mapping[str, Any]:
        """Return the claims of a token after its signature, issuer, audience and times were checked."""
        jwt = self._jwt
        try:
            header = jwt.get_unverified_header(token)
            claims = await self._decode(token, header.get("kid"), header.get("alg"))
            # PyJWT compared the time with the system's clock, and `clock` may be another one.
            expires_at = int(claims["exp"])  # may be a string of digits
            if expires_at <= self.clock() - self._config.skew_seconds:
                raise jwt.ExpiredSignatureError
            return claims
        except jwt.ExpiredSignatureError:
            reason = "the access token has expired"
        except jwt.InvalidAudienceError:
            reason = "the access token is not for this service"
        except jwt.PyJWTError as error:
            log_event(logging.INFO, "token_refused", error=type(error).__name__)
            reason = "the access token is not valid here"
        failure = AuthenticationError(reason, options=_NEW)
        failure.challenge = f'Bearer error="invalid_token", error_description="{reason}"'
        raise failure

    async def _decode(self, token: str, kid: str | None, algorithm: Any) -> Mapping[str, Any]:
        """Return the claims of a token, verified with the key it names, or with any key if it names none.

        If no key matches, the keys are read again once, because the provider may have changed them.
        """
        jwt, config = self._jwt, self._config
        if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
            raise jwt.InvalidAlgorithmError
        for reread in (False, True):
            for key in await self._keys.find(kid, algorithm, reread=reread):
                try:
                    return jwt.decode(
                        token,
                        key,
                        [algorithm],
                        _CHECKS,
                        audience=config.audience,
                        issuer=config.issuer,
                        leeway=config.skew_seconds,
                    )
                except jwt.InvalidSignatureError:
                    if kid is not None:
                        raise  # the token names its key, so no other key can fit
        raise jwt.InvalidKeyError("no key matches")


class _PublishedKeys:
    """The cached keys of a provider."""

    def __init__(self, issuer: str, create_key: Callable[..., Any], elapsed: Callable[[], float]) -> None:
        self._issuer = issuer
        self._create_key = create_key
        self._elapsed = elapsed
        self._provider = _create_endpoint(issuer)
        #: The address of the keys that the provider last stated, and the connection to it.
        self._keys_url = ""
        self._keys_endpoint: Endpoint | None = None
        self._keys_by_id: Mapping[str, Mapping[str, Any]] = {}
        #: Parsed keys, by id and algorithm.
        self._prepared: dict[tuple[str, str], Any] = {}
        #: Times, in seconds, of the last successful read of the keys and of the last attempt.
        self._read_at = self._tried_at = -STALE
        self._last_read_failed = False
        self._reading: asyncio.Future[None] | None = None
        #: Refreshes the keys in the background, while the known ones are used.
        self._background: asyncio.Future[None] | None = None

    async def find(self, kid: str | None, algorithm: str, *, reread: bool) -> list[Any]:
        """Return the key with the id `kid` if it is for the algorithm, or without an id all keys for the algorithm.

        Keys older than `FRESH` seconds are read again in the background. They are read before this method returns if
        they are older than `STALE` seconds, if the id is unknown, or with `reread`. Raises `UnreachableError` if the
        provider does not answer and no key, or not this one, is known.
        """
        age = self._elapsed() - self._read_at
        is_known = bool(self._keys_by_id) if kid is None else kid in self._keys_by_id
        must_wait = not is_known or reread or age >= STALE
        if must_wait:
            # For an unknown id among fresh keys the caller asks again with `reread`, which reads them.
            if reread or age >= FRESH:
                await self._refresh_when_due()
        elif age >= FRESH:
            self._refresh_in_background()
        if self._elapsed() - self._read_at >= STALE:
            raise UnreachableError("the identity provider does not answer, and its keys are not known")
        if reread and self._last_read_failed and kid is not None and kid not in self._keys_by_id:
            raise UnreachableError("the identity provider does not answer, and this key is not known")
        kids = list(self._keys_by_id) if kid is None else [kid]
        return [self._prepare_key(kid, algorithm) for kid in kids if self._is_key_for(kid, algorithm)]

    def _is_key_for(self, kid: str, algorithm: str) -> bool:
        key = self._keys_by_id.get(kid, {})
        return key.get("kty") == ALGORITHMS[algorithm] and key.get("alg", algorithm) == algorithm

    def _prepare_key(self, kid: str, algorithm: str) -> Any:
        key = self._prepared.get((kid, algorithm))
        if key is None:
            key = self._create_key(dict(self._keys_by_id[kid]), algorithm)
            self._prepared[kid, algorithm] = key
        return key

    def _refresh_in_background(self) -> None:
        """Start to read the keys in the background if that is due."""
        if self._background is None and self._is_due():
            self._background = asyncio.ensure_future(self._refresh_when_due())
            self._background.add_done_callback(self._forget_background)

    def _forget_background(self, _: asyncio.Future[None]) -> None:
        self._background = None

    def _is_due(self) -> bool:
        return self._elapsed() - self._tried_at >= PAUSE

    async def _refresh_when_due(self) -> None:
        """Refresh the keys if that is due, or wait for a refresh in progress; log a failure."""
        if self._reading is None and not self._is_due():
            return
        try:
            await self.refresh()
        except (ProviderError, ConfigurationError) as error:
            log_event(logging.WARNING, "identity_provider_down", error=str(error))

    async def refresh(self) -> None:
        """Read the keys, once for all concurrent callers."""
        if self._reading is None:
            self._tried_at = self._elapsed()
            self._reading = asyncio.ensure_future(self._refresh())
            self._reading.add_done_callback(self._finish_reading)
        await asyncio.shield(self._reading)

    def _finish_reading(self, reading: asyncio.Future[None]) -> None:
        self._reading = None
        self._last_read_failed = reading.cancelled() or reading.exception() is not None

    async def _refresh(self) -> None:
        """Read the address of the keys from the discovery document, and then the keys."""
        url = await self._provider.get(_DISCOVERY, self._keys_url_of_discovery)
        if url != self._keys_url or self._keys_endpoint is None:
            if self._keys_endpoint is not None:
                await self._keys_endpoint.aclose()
            self._keys_url, self._keys_endpoint = url, _create_keys_endpoint(url, self._issuer)
        parts = urlsplit(url)
        self._keys_by_id = await self._keys_endpoint.get(
            parts.path, _select_signature_keys, query=parts.query
        )
        self._prepared = {}
        self._read_at = self._elapsed()

    def _keys_url_of_discovery(self, document: Mapping[str, Any]) -> str:
        """Return the URL of the keys; raise `ConfigurationError` if the document is of another issuer."""
        if document["issuer"] != self._issuer:
            raise ConfigurationError(
                "the provider's issuer is not the configured issuer",
                options=("name the issuer exactly as its discovery document does",),
            )
        return str(document["jwks_uri"])

    async def aclose(self) -> None:
        """Cancel reads in progress, and close the connections."""
        for task in (self._background, self._reading):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        await self._provider.aclose()
        if self._keys_endpoint is not None:
            await self._keys_endpoint.aclose()


def _create_endpoint(url: str, *, trusted: bool = True) -> Endpoint:
    """Return an endpoint of the provider, without retries, because a request may wait for its answer."""
    return Endpoint(
        url,
        timeout=5.0,
        retry=RetryConfig(max_attempts=1),
        max_bytes=1_048_576,
        concurrency=1,
        trusted=trusted,
    )


def _create_keys_endpoint(url: str, issuer: str) -> Endpoint:
    """Return the endpoint that lists the keys: outside the issuer only at a public address, by https."""
    keys, home = urlsplit(url), urlsplit(issuer)
    trusted = (keys.scheme, keys.netloc) == (home.scheme, home.netloc)
    return _create_endpoint(f"{keys.scheme}://{keys.netloc}", trusted=trusted)


def _select_signature_keys(document: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the public keys for signatures by id; a key without an id gets its index, such as "#0"."""
    key_types = frozenset(ALGORITHMS.values())
    keys = [key for key in document["keys"] if isinstance(key, dict)]
    selected: dict[str, Mapping[str, Any]] = {}
    for index, key in enumerate(keys):
        if key.get("kty") in key_types and key.get("use", "sig") == "sig":
            selected[str(key.get("kid") or f"#{index}")] = key
    return selected


def _parse_name(claim: Any) -> str:
    """Return a claim that is a valid name, or "" for any other value."""
    try:
        return validation.validate_name(claim, "claim")
    except ValidationError:
        return ""


def _find_claim(claims: Mapping[str, Any], name: str) -> Any:
    """Return a claim by its name or by its path, such as "realm_access.roles", or None."""
    if name in claims:
        return claims[name]
    value: Any = claims
    for step in name.split("."):
        value = value.get(step) if isinstance(value, dict) else None
    return value


def _parse_name_list(claim: Any) -> list[str]:
    """Return the names in a claim: a list, or a text with spaces."""
    if isinstance(claim, str):
        return claim.split()
    if not isinstance(claim, list):
        return []
    return [name for name in claim if isinstance(name, str)]
