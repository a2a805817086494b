"""Parse the URL of a store: tenant, durability, the rest for the driver; and render it without its password."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote, unquote_plus

from acms.errors import ConfigurationError
from acms.model import Durability

_PASSWORD = re.compile(
    r"(?:(?<=://)|^(?!\w+://))(?P<user>[^/?#@:]*):.*@|(?P<option>[?&](?:password|sslpassword)=)[^&]*"
)
MOST_CONNECTIONS = 1000
MOST_SECONDS = 86_400
_DURABILITIES: dict[str, Durability] = {"disk": "disk", "quorum": "quorum", "relaxed": "relaxed"}


class PostgresUrl(NamedTuple):
    """The parsed form of a `postgresql://` URL."""

    #: For libpq, which reads it as it was written: several hosts, sockets, certificates.
    dsn: str
    tenant: str
    #: Arguments of the store that the URL names, by their names.
    options: dict[str, Any]


def without_password(url: str) -> str:
    """Return a URL as an error may show it: without its password."""
    return _PASSWORD.sub(
        lambda match: f"{match['option']}…" if match["option"] else f"{match['user']}:…@", url
    )


_FILE = re.compile(r"(?:sqlite:/{0,2})?(?!\w+://)(.+\.(?:db|sqlite3?))", re.IGNORECASE)
_DRIVER = re.compile(r"(sqlite|postgresql|postgres)\+\w+(://.*)", re.DOTALL)


def refuse_mistakes(url: str, forms: tuple[str, ...]) -> None:
    """Raise `ConfigurationError` for common mistakes in a store URL, with the probably intended URL first."""
    mistake = _find_mistake(url)
    if mistake is not None:
        problem, intended = mistake
        other_forms = [form for form in forms if form != intended]
        raise ConfigurationError(problem, options=(intended, *other_forms))


def _find_mistake(url: str) -> tuple[str, str] | None:
    """Return what is wrong with a store URL and what was probably meant."""
    masked = without_password(url)
    if ":memory:" in url:
        return "a store in memory is named memory://", "memory://"
    driver = _DRIVER.fullmatch(url)
    if driver is not None:
        problem = f"a URL that begins with {url.partition(':')[0]!r} names a driver, not a store"
        return problem, without_password(f"{driver[1]}{driver[2]}")
    path = None if url.startswith("sqlite:///") else _FILE.fullmatch(url)
    if path is not None:
        file = path[1].replace("\\", "/").removeprefix("./")
        return f"{masked!r} is the name of a file, not a URL", f"sqlite:///{quote(file, safe='/:')}"
    if url.startswith(("http://", "https://")):
        return f"{masked!r} is a service, not a store", f"acms.client.Client({masked!r})"
    if url.startswith("memory://") and url.removeprefix("memory://").partition("?")[0]:
        return (
            "memory:// has no name: every store in memory is its own, gone with the object",
            "open it once, and hand that object to whoever shares it",
        )
    return None


def refuse_options(url: str, options: Mapping[str, str], *names: str, **choices: tuple[str, ...]) -> None:
    """Raise `ConfigurationError` for an unknown option or value in a URL.

    `names` are options with any value, `choices` those with a few, which it lists.
    """
    for name, value in options.items():
        allowed_values = choices.get(name)
        if allowed_values is not None and value not in allowed_values:
            problem = f"{name} must be {' or '.join(allowed_values)}, not {value!r}"
            raise ConfigurationError(f"{without_password(url)!r}: {problem}")
        if allowed_values is None and name not in names:
            known_options = ", ".join([*names, *choices])
            raise ConfigurationError(
                f"{without_password(url)!r}: there is no option {name!r}, only {known_options}"
            )


def refuse_repeated_options(url: str) -> None:
    """Raise `ConfigurationError` for an option that a URL gives twice, and for a tenant without a name."""
    options = parse_qsl(url.partition("?")[2], keep_blank_values=True)
    given: set[str] = set()
    for name, value in options:
        if name in given:
            raise ConfigurationError(
                f"{without_password(url)!r}: {name} is given twice", options=(f"give {name}= once",)
            )
        given.add(name)
        if name == "tenant" and not value.strip():
            raise ConfigurationError(
                f"{without_password(url)!r}: tenant is empty",
                options=("name the tenant: tenant=acme", "leave tenant= out: the tenant is 'default'"),
            )


def read_only(url: str) -> str:
    """Return the URL of the same store, opened read-only where it lies in a file or on a server."""
    if not url.startswith(("sqlite:", "postgresql:", "postgres:")):
        return url
    address, _, query = url.partition("?")
    options = [option for option in query.split("&") if option and not option.startswith("mode=")]
    return f"{address}?{'&'.join([*options, 'mode=ro'])}"


def parse_postgres_url(url: str) -> PostgresUrl:
    """Take our options out of the URL of a PostgreSQL database; all others are libpq's."""
    address, _, query = url.partition("?")
    own_options: dict[str, Any] = {}
    libpq_options: list[str] = []
    for option in filter(None, query.split("&")):
        name, _, text = option.partition("=")
        if name == "tenant" or name in _POSTGRES:
            own_options[name] = unquote_plus(text)
        else:
            libpq_options.append(option)
    tenant = own_options.pop("tenant", "default")
    for name, value in own_options.items():
        parse_value, requirement, advice = _POSTGRES[name]
        try:
            own_options[name] = parse_value(value)
        except (KeyError, ValueError):
            raise ConfigurationError(
                f"{without_password(url)!r}: {name} must be {requirement}",
                options=(f"leave it out: {advice}",),
            ) from None
    if "mode" in own_options:
        own_options["read_only"] = own_options.pop("mode")
    return PostgresUrl(
        address + ("?" + "&".join(libpq_options) if libpq_options else ""), tenant, own_options
    )


def _parse_pool_size(value: str) -> int:
    if not (value.isascii() and value.isdecimal() and 1 <= int(value) <= MOST_CONNECTIONS):
        raise ValueError
    return int(value)


def _parse_seconds(value: str) -> float:
    seconds = float(value)
    if not 0 <= seconds <= MOST_SECONDS:  # nor not a number
        raise ValueError
    return seconds


_POSTGRES: Mapping[str, tuple[Callable[[str], Any], str, str]] = {
    "durability": (
        _DURABILITIES.__getitem__,
        f"one of {', '.join(_DURABILITIES)}",
        "the server's own setting holds, and the receipts say which it is",
    ),
    "hints": ({"on": True, "off": False}.__getitem__, "on or off", "workers look for jobs every few seconds"),
    "mode": ({"ro": True, "rw": False}.__getitem__, "ro or rw", "the store can be written"),
    "pool_size": (_parse_pool_size, f"from 1 to {MOST_CONNECTIONS}", "a process has up to 10 connections"),
    "retry_seconds": (
        _parse_seconds,
        f"from 0 to {MOST_SECONDS}",
        "what passes by itself is tried again for 30 seconds",
    ),
}
"""The options of a URL besides the tenant: parser, requirement, default."""
