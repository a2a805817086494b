"""Access tokens of an OpenID Connect provider: JWTs of one issuer, verified with the keys that it publishes.

The operator chooses the issuer. Its discovery document and its keys are refreshed every five minutes in the background:
a provider that does not answer delays no check of a token, and its known keys stay in use for a day. For an unknown
key the keys are read at once, but at most every ten seconds in total.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
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
"""What each role is for."""
ALGORITHMS: Mapping[str, str] = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), "RSA"),
    **dict.fromkeys(("ES256", "ES384", "ES512"), "EC"),
    "EdDSA": "OKP",
}
"""Algorithms that are believed, and the kind of key of each: none without a signature, none with a shared secret."""
FRESH = 300.0
"""Seconds for which the keys of the provider are not asked for again."""
PAUSE = 10.0
"""Seconds between two attempts to read them."""
STALE = 86_400.0
"""Seconds for which known keys go on while the provider does not answer."""
_TIMEOUT = 5.0
_MOST = 1_048_576
_CHECKS: Any = {"require": ["exp", "iss", "aud", "sub"], "enforce_minimum_key_length": True}
_DISCOVERY = "/.well-known/openid-configuration"
_NEW = ("get a new access token from the identity provider",)


@dataclass(frozen=True, slots=True, kw_only=True)
class OIDCConfig:
    """Whose access tokens open the service, and what their claims mean.

    A claim is named as it stands in the token, or by its path: `realm_access.roles`. It must be one that users cannot
    set for themselves.
    """

    #: The provider, exactly as it calls itself; https unless it is on this machine.
    issuer: str
    #: The name of this service that a token must be for.
    audience: str
    #: The claim that says whose data is meant: one tenant.
    tenant_claim: str = "tenant"
    #: The claim that holds the rights: a role, a scope, or a list of them.
    roles_claim: str = "roles"
    #: The claim that lists the namespaces of the subject, which also sees those shared with it; with None every
    #: subject sees all namespaces of its tenant.
    namespaces_claim: str | None = None
    #: What each role is for; others in the claim mean nothing.
    roles: Mapping[str, frozenset[Scope]] = field(default_factory=lambda: ROLES)
    #: How far the clocks of the provider and of this machine may differ, in seconds.
    skew_seconds: float = 60.0

    def __post_init__(self) -> None:
        try:
            for name in ("issuer", "audience", "tenant_claim", "roles_claim"):
                validation.validate_name(getattr(self, name), f"oidc.{name}")
            validation.optional_name(self.namespaces_claim, "oidc.namespaces_claim")
        except ValidationError as error:
            raise ConfigurationError(str(error)) from error
        if not 0 <= self.skew_seconds <= 300:
            raise ConfigurationError("oidc.skew_seconds must be between 0 and 300")
        parts = urlsplit(self.issuer)
        if parts.scheme != "https" and not (
            parts.scheme == "http" and is_loopback_host(parts.hostname or "")
        ):
            raise ConfigurationError(
                "the issuer must be https, unless it is on this machine",
                options=("--oidc-issuer https://login.example.org",),
            )
        Endpoint(self.issuer)  # says what else is wrong with it


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
        """Read the keys; `ConfigurationError` when the provider is another one, a line in the log when it is down."""
        try:
            await self._keys.refresh()
        except ProviderError as error:
            log_event(logging.WARNING, "identity_provider_down", error=str(error))

    async def aclose(self) -> None:
        """Close the connections to the provider."""
        await self._keys.aclose()

    async def find(self, token: str) -> Principal:
        """Return the principal that a token identifies.

        Raises `AuthenticationError` for an invalid token, `PermissionDeniedError` for one that names no tenant, and
        `UnreachableError` if its key is not known and the provider does not answer.
        """
        claims = await self._claims(token)
        config = self._config
        subject, tenant = _parse_name(claims["sub"]), _parse_name(_find_claim(claims, config.tenant_claim))
        if not subject or not tenant or tenant.startswith("@"):
            raise PermissionDeniedError(
                "the access token names no tenant whose data it opens",
                options=("ask who runs the identity provider to assign you one",),
            )
        own = config.namespaces_claim
        namespaces = None if own is None else frozenset(_parse_name_list(_find_claim(claims, own)))
        scopes = self._scopes(_parse_name_list(_find_claim(claims, config.roles_claim)))
        key = f"oidc:{subject}"
        return Principal(key=key, name=key, tenant=tenant, scopes=scopes, namespaces=namespaces)

    def _scopes(self, said: Sequence[str]) -> frozenset[Scope]:
        found = frozenset[Scope]()
        for one in said:
            found |= self._config.roles.get(one, frozenset({Scope(one)} if one in frozenset(Scope) else ()))
        return found

    async def _claims(self, token: str) -> Mapping[str, Any]:
        """Return the claims of a token once its signature, issuer, audience and times were checked."""
        jwt = self._jwt
        try:
            header = jwt.get_unverified_header(token)
            claims = await self._decoded(token, header.get("kid"), header.get("alg"))
            if claims["exp"] <= self.clock() - self._config.skew_seconds:
                raise jwt.ExpiredSignatureError
            return claims
        except jwt.ExpiredSignatureError:
            why = "the access token has expired"
        except jwt.InvalidAudienceError:
            why = "the access token is not for this service"
        except jwt.PyJWTError as error:
            log_event(logging.INFO, "token_refused", error=type(error).__name__)
            why = "the access token is not valid here"
        failure = AuthenticationError(why, options=_NEW)
        failure.challenge = f'Bearer error="invalid_token", error_description="{why}"'
        raise failure

    async def _decoded(self, token: str, kid: str | None, algorithm: Any) -> Mapping[str, Any]:
        """Verify a token with the key it names, or with all keys if it names none; reread the keys if necessary."""
        jwt, config = self._jwt, self._config
        if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
            raise jwt.InvalidAlgorithmError
        for anew in (False, True):
            for key in await self._keys.find(kid, algorithm, anew=anew):
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
                        raise
        raise jwt.InvalidKeyError("no key fits")


class _PublishedKeys:
    """The keys that a provider publishes, as they were when they were last read."""

    def __init__(self, issuer: str, make: Callable[..., Any], elapsed: Callable[[], float]) -> None:
        self._issuer = issuer
        self._make = make
        self._elapsed = elapsed
        self._provider = _create_endpoint(issuer)
        self._listing: tuple[str, Endpoint] | None = None
        self._known: Mapping[str, Mapping[str, Any]] = {}
        #: Keys that were used, ready for it.
        self._made: dict[tuple[str, str], Any] = {}
        #: When they were read, and when that was last tried.
        self._read = self._tried = -STALE
        self._failed = False
        self._reading: asyncio.Future[None] | None = None
        #: Refreshes the keys in the background, while the known ones are used.
        self._background: asyncio.Future[None] | None = None

    async def find(self, kid: str | None, algorithm: str, *, anew: bool) -> list[Any]:
        """Return the key of an id if it is for the algorithm; without an id all that are.

        They are read again when that is due, or is wanted and was not done just now. `UnreachableError` when the
        provider does not answer and none is known, or not this one.
        """
        age = self._elapsed() - self._read
        known = bool(self._known) if kid is None else kid in self._known
        if known and not anew and age < STALE:
            if age >= FRESH:
                self._refresh_in_background()
        elif anew or age >= FRESH:
            await self._refresh_when_due()
        if self._elapsed() - self._read >= STALE:
            raise UnreachableError("the identity provider does not answer, and its keys are not known")
        if anew and self._failed and kid is not None and kid not in self._known:
            raise UnreachableError("the identity provider does not answer, and this key is not known")
        wanted = [kid] if kid is not None else list(self._known)
        return [self._ready(one, algorithm) for one in wanted if self._fits(one, algorithm)]

    def _fits(self, kid: str, algorithm: str) -> bool:
        key = self._known.get(kid, {})
        return key.get("kty") == ALGORITHMS[algorithm] and key.get("alg", algorithm) == algorithm

    def _ready(self, kid: str, algorithm: str) -> Any:
        made = self._made.get((kid, algorithm))
        if made is None:
            made = self._made[kid, algorithm] = self._make(dict(self._known[kid]), algorithm)
        return made

    def _refresh_in_background(self) -> None:
        """Start to read the keys in the background if that is due."""
        if self._background is None and self._due():
            self._background = asyncio.ensure_future(self._refresh_when_due())
            self._background.add_done_callback(self._refreshed)

    def _refreshed(self, _: asyncio.Future[None]) -> None:
        self._background = None

    def _due(self) -> bool:
        return self._elapsed() - self._tried >= PAUSE

    async def _refresh_when_due(self) -> None:
        if self._reading is None and not self._due():
            return
        try:
            await self.refresh()
        except (ProviderError, ConfigurationError) as error:
            log_event(logging.WARNING, "identity_provider_down", error=str(error))

    async def refresh(self) -> None:
        """Read the keys, once for all who wait for it."""
        if self._reading is None:
            self._tried = self._elapsed()
            self._reading = asyncio.ensure_future(self._refresh())
            self._reading.add_done_callback(self._done)
        await asyncio.shield(self._reading)

    def _done(self, reading: asyncio.Future[None]) -> None:
        self._reading = None
        self._failed = reading.cancelled() or reading.exception() is not None

    async def _refresh(self) -> None:
        at = await self._provider.get(_DISCOVERY, self._discovered)
        if self._listing is None or self._listing[0] != at:
            if self._listing is not None:
                await self._listing[1].aclose()
            self._listing = (at, _create_keys_endpoint(at, self._issuer))
        parts = urlsplit(at)
        self._known = await self._listing[1].get(parts.path, _select_signature_keys, query=parts.query)
        self._made = {}
        self._read = self._elapsed()

    def _discovered(self, document: Mapping[str, Any]) -> str:
        if document["issuer"] != self._issuer:
            raise ConfigurationError(
                "the provider calls itself by another name than the configured issuer",
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
        if self._listing is not None:
            await self._listing[1].aclose()


def _create_endpoint(url: str, *, trusted: bool = True) -> Endpoint:
    """Return who is asked without a second try: a request waits for it."""
    once = RetryConfig(max_attempts=1)
    return Endpoint(url, timeout=_TIMEOUT, retry=once, max_bytes=_MOST, concurrency=1, trusted=trusted)


def _create_keys_endpoint(at: str, issuer: str) -> Endpoint:
    """Return who lists the keys: elsewhere than at the issuer only at a public address, by https."""
    there, home = urlsplit(at), urlsplit(issuer)
    origin = f"{there.scheme}://{there.netloc}"
    return _create_endpoint(origin, trusted=(there.scheme, there.netloc) == (home.scheme, home.netloc))


def _select_signature_keys(document: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the public keys that signatures are checked with, by id."""
    kinds = frozenset(ALGORITHMS.values())
    listed = [one for one in document["keys"] if isinstance(one, dict)]
    return {
        str(one.get("kid") or f"#{place}"): one  # without an id each is tried
        for place, one in enumerate(listed)
        if one.get("kty") in kinds and one.get("use", "sig") == "sig"
    }


def _parse_name(said: Any) -> str:
    """Return a claim that is a valid name, or "" for any other value."""
    try:
        return validation.validate_name(said, "claim")
    except ValidationError:
        return ""


def _find_claim(claims: Mapping[str, Any], name: str) -> Any:
    """Return a claim by its name, or by its path."""
    if name in claims:
        return claims[name]
    found: Any = claims
    for step in name.split("."):
        found = found.get(step) if isinstance(found, dict) else None
    return found


def _parse_name_list(said: Any) -> list[str]:
    """Return the names that a claim lists: in a list, or in a text between spaces."""
    if isinstance(said, str):
        return said.split()
    return [one for one in said if isinstance(one, str)] if isinstance(said, list) else []
