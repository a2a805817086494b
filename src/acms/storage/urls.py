"""What the URL of a store says: whose data, how durable, the rest for the driver; and how it is shown."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import unquote_plus

from acms.errors import ConfigurationError
from acms.model import Durability

_PASSWORD = re.compile(
    r"(?:(?<=://)|^(?!\w+://))(?P<user>[^/?#@:]*):.*@|(?P<option>[?&](?:password|sslpassword)=)[^&]*"
)
_DURABILITIES: dict[str, Durability] = {"disk": "disk", "quorum": "quorum", "relaxed": "relaxed"}


class PostgresUrl(NamedTuple):
    """What a `postgresql://` URL says."""

    #: For libpq, which reads it as it was written: several hosts, sockets, certificates.
    dsn: str
    tenant: str
    #: None leaves it to the server.
    durability: Durability | None


def shown(url: str) -> str:
    """Return a URL as an error may show it: without its password."""
    return _PASSWORD.sub(
        lambda found: f"{found['option']}…" if found["option"] else f"{found['user']}:…@", url
    )


def postgres(url: str) -> PostgresUrl:
    """Take our options out of the URL of a PostgreSQL database; all others are libpq's."""
    place, _, query = url.partition("?")
    ours: dict[str, str] = {}
    rest: list[str] = []
    for option in filter(None, query.split("&")):
        name, _, value = option.partition("=")
        if name in ("tenant", "durability"):
            ours[name] = unquote_plus(value)
        else:
            rest.append(option)
    durability = ours.get("durability")
    if durability is not None and durability not in _DURABILITIES:
        raise ConfigurationError(
            f"{shown(url)!r}: durability must be one of {', '.join(_DURABILITIES)}",
            options=("leave it out: the server's own setting holds, and the receipts say which it is",),
        )
    return PostgresUrl(
        place + ("?" + "&".join(rest) if rest else ""),
        ours.get("tenant", "default"),
        None if durability is None else _DURABILITIES[durability],
    )
