"""Settings of the HTTP service for its operator; no request can change them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from acms.errors import ConfigurationError, ValidationError
from acms.log import validation
from acms.providers.addresses import is_loopback_host
from acms.server.oidc import OIDCConfig

__all__ = ["Limits", "ServerConfig"]

_ORIGIN = re.compile(r"https?://[a-z0-9.:\[\]-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much one request, one key and one tenant may ask for."""

    #: Bytes of a request body; of an import, which is read as a stream.
    body_bytes: int = 1_048_576
    import_bytes: int = 1_073_741_824
    #: Bytes of one message's text. In Python the limit is 1 MiB; a higher value than that has no effect.
    message_bytes: int = 262_144
    #: Messages in one append.
    batch: int = 256
    #: Tokens a window, a recall or a prompt may be asked for.
    tokens: int = 2_000_000
    #: Streams of events that one key may have open at a process; without keys, everybody together.
    key_streams: int = 64
    #: Seconds until a request is answered; streams are not bound by it.
    deadline_seconds: float = 30.0
    #: Requests a second that a key and a tenant may make in the long run, and at once.
    key_rate: float = 200.0
    key_burst: int = 400
    tenant_rate: float = 1000.0
    tenant_burst: int = 2000
    #: Requests without a valid key that one address may make a second, and at once.
    stranger_rate: float = 5.0
    stranger_burst: int = 20

    def __post_init__(self) -> None:
        try:
            for name in ("body_bytes", "import_bytes", "message_bytes", "batch", "tokens"):
                validation.validate_integer(getattr(self, name), name, minimum=1)
            for name in ("key_streams", "key_burst", "tenant_burst", "stranger_burst"):
                validation.validate_integer(getattr(self, name), name, minimum=1)
        except ValidationError as error:
            raise ConfigurationError(str(error)) from error
        for name in ("deadline_seconds", "key_rate", "tenant_rate", "stranger_rate"):
            if not getattr(self, name) > 0:
                raise ConfigurationError(f"{name} must be above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """The address, the access rules and the limits of the HTTP service."""

    #: Whether a key is needed. Without one everybody is the tenant `tenant` and may do everything.
    auth: Literal["required", "off"] = "required"
    #: Whose access tokens open it too, beside keys.
    oidc: OIDCConfig | None = None
    #: Whose data requests without a key see.
    tenant: str = "default"
    #: Where it listens: without keys it must be this machine only.
    host: str = "127.0.0.1"
    #: Names by which clients may call it; others are refused, so that no web page can reach it by a name of its own.
    #: Empty: this machine's names when no key is required, else any name.
    hosts: tuple[str, ...] = ()
    #: Web pages that may call it (`https://app.example.org`); none by default.
    origins: tuple[str, ...] = ()
    limits: Limits = Limits()
    #: Whether operations that write are answered. Without it each is refused with 403, and the store is opened
    #: read-only where it lies in a file or on a server.
    writes: bool = True
    #: A secret without which every request is refused. A browser shows it once in the query, as `?token=`, and is
    #: given a cookie. None: it is open to everybody on this machine, or to keys.
    token: str | None = field(default=None, repr=False)
    #: Whether this process works off jobs; else `acms worker` must run somewhere.
    works: bool = True
    #: Sessions of one tenant that are kept ready.
    ready_sessions: int = 1024
    #: Seconds that requests and jobs under way may take to finish when it is stopped.
    grace_seconds: float = 10.0

    def __post_init__(self) -> None:
        if self.auth not in ("required", "off"):
            raise ConfigurationError("auth must be 'required' or 'off'")
        if self.auth == "off" and not is_loopback_host(self.host):
            raise ConfigurationError(
                f"{self.host} can be reached from other machines, and no key is required",
                options=("--auth required, and acms keys create --tenant NAME", "--host 127.0.0.1"),
            )
        if self.auth == "off" and self.oidc is not None:
            raise ConfigurationError("access tokens need auth='required'")
        if self.works and not self.writes:
            raise ConfigurationError("a service that does not write cannot run jobs: pass works=False")
        if self.token is not None and len(self.token) < 22:  # 128 random bits in base64
            raise ConfigurationError("the token must have at least 22 characters")
        for origin in self.origins:
            if not _ORIGIN.fullmatch(origin):
                raise ConfigurationError(
                    f"{origin!r} is not the origin of a web page", options=("https://app.example.org",)
                )
        try:
            if validation.validate_name(self.tenant, "tenant").startswith("@"):
                raise ValidationError("names that begin with @ are the service's own", field="tenant")
            validation.validate_integer(self.ready_sessions, "ready_sessions", minimum=1)
        except ValidationError as error:
            raise ConfigurationError(str(error)) from error
