"""Shards: which tenant's data lies in which store. Each shard is a database of its own, with its own failover.

    default = "eu-1"                       # of tenants that are not listed; without it they are refused

    [shards]
    eu-1 = "postgresql://acms:${EU_1_PASSWORD}@eu-1a,eu-1b/acms?target_session_attrs=read-write"
    us-1 = "postgresql://acms:${US_1_PASSWORD}@us-1/acms"

    [tenants]
    acme = "us-1"

`${NAME}` is a variable of the environment. Inside a URL its value is percent-encoded, so any password will do; alone it
is the whole URL. A relative file of SQLite lies beside this one.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable
from urllib.parse import quote, unquote

from acms import storage
from acms.errors import ConfigurationError, HandleError, NotFoundError
from acms.log.validation import validate_name
from acms.ports import Handle
from acms.storage import urls

_VARIABLE = re.compile(r"\$\{(\w+)\}")
_RELATIVE = re.compile(r"sqlite:///(?!/)([^?]+)(.*)", re.DOTALL)


@runtime_checkable
class _ForTenants(Protocol):
    """A store whose handles share their connections."""

    def for_tenant(self, tenant: str) -> Handle:
        """Return a handle for another tenant on the same connections."""
        ...


class Shards:
    """The stores of many tenants, by a file that maps tenants to stores.

    The file is read once. Nothing is opened before it is used, and the tenants of one shard share its connections.
    `read_only` opens every shard with `mode=ro`.
    """

    def __init__(self, path: str | os.PathLike[str], *, read_only: bool = False) -> None:
        self.path = Path(path)
        self._read_only = read_only
        self._default, self._shards, self._tenants = _read_config(self.path)
        #: By tenant.
        self._handles: dict[str, Handle] = {}
        #: By shard: the handle that was opened first, whose connections the others share.
        self._first_handles: dict[str, Handle] = {}
        self._closed = False

    def __repr__(self) -> str:
        return f"Shards({str(self.path)!r}: {len(self._shards)} shards, {len(self._tenants)} tenants)"

    async def __aenter__(self) -> Shards:
        """Use the shards in a block."""
        return self

    async def __aexit__(self, *error: object) -> None:
        """Close all opened handles."""
        await self.aclose()

    def tenants(self) -> dict[str, str]:
        """Return the shard of every tenant that is listed, by its name."""
        return dict(sorted(self._tenants.items()))

    def shard(self, tenant: str) -> str:
        """Return the name of the shard that holds a tenant; `NotFoundError` when none does."""
        shard = self._tenants.get(validate_name(tenant, "tenant"), self._default)
        if shard is None:
            raise NotFoundError(
                f"no shard has the tenant {tenant!r}",
                options=(f"name its shard under [tenants] in {self.path}", "name a default shard there"),
            )
        return shard

    def names(self) -> list[str]:
        """Return the names of all shards, sorted."""
        return sorted(self._shards)

    def of(self, tenant: str) -> Handle:
        """Return the handle on a tenant's data, the same one each time."""
        if self._closed:
            raise HandleError("these shards were closed", options=("read the file again: Shards(path)",))
        handle = self._handles.get(tenant)
        if handle is None:
            shard = self.shard(tenant)
            shared_handle = self._first_handles.get(shard)
            # One pool for all tenants of a shard: a pool for each would use up the connections of its server.
            if isinstance(shared_handle, _ForTenants):
                handle = shared_handle.for_tenant(tenant)
            else:
                handle = self.open(tenant)
                self._first_handles.setdefault(shard, handle)
            self._handles[tenant] = handle
        return handle

    def open(self, tenant: str) -> Handle:
        """Return a new handle on a tenant's data; the caller closes it."""
        return self.at(self.shard(tenant), tenant)

    def at(self, shard: str, tenant: str = "default") -> Handle:
        """Return a new handle on a shard by its name, regardless of whose data it holds, for schema maintenance."""
        if shard not in self._shards:
            raise NotFoundError(f"there is no shard {shard!r}", options=tuple(self.names()[:20]))
        url = self._expand_url(shard)
        # A relative file is relative to the file of shards.
        relative = _RELATIVE.fullmatch(url)
        if relative is not None:
            file = (self.path.parent / unquote(relative[1])).absolute()
            url = f"sqlite:///{quote(file.as_posix())}{relative[2]}"
        if self._read_only:
            url = urls.read_only(url)
        try:
            return storage.open_storage(f"{url}{'&' if '?' in url else '?'}tenant={quote(tenant, safe='')}")
        except ConfigurationError as error:
            raise self._config_error(f"shards.{shard}", str(error), error.options) from error

    def _expand_url(self, shard: str) -> str:
        """Return the URL of a shard with environment variables substituted."""
        template = self._shards[shard]
        # A variable that is the whole URL is a URL already; one inside it may have any characters, so it is quoted.
        is_whole_url = _VARIABLE.fullmatch(template) is not None

        def read_variable(match: re.Match[str]) -> str:
            value = os.environ.get(match[1])
            if not value:
                raise self._config_error(f"shards.{shard}", f"the variable {match[1]} is not set")
            return value if is_whole_url else quote(value, safe="")

        url = _VARIABLE.sub(read_variable, template)
        _check_url(self.path, shard, url)
        return url

    def _config_error(self, field: str, problem: str, options: tuple[str, ...] = ()) -> ConfigurationError:
        return ConfigurationError(f"{self.path}: {field}: {problem}", options=options)

    async def aclose(self) -> None:
        """Close every handle that was given out; idempotent."""
        self._closed = True
        handles = list(self._handles.values())
        shared = list(self._first_handles.values())
        self._handles.clear()
        self._first_handles.clear()
        for handle in handles:
            if handle not in shared:
                await handle.aclose()
        for handle in shared:  # last: other handles use their connections
            await handle.aclose()


def _read_config(path: Path) -> tuple[str | None, dict[str, str], dict[str, str]]:
    """Return (default shard, URL by shard, shard by tenant); `ConfigurationError` names the field at fault."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigurationError(
            f"there is no file {path}", options=("create it: [shards], [tenants]",)
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{path} is not TOML: {error}") from None  # a line of it may hold a password
    for field in document.keys() - {"default", "shards", "tenants"}:
        raise ConfigurationError(f"{path}: {field}: is not one of default, [shards], [tenants]")
    shards = _read_table(path, document, "shards")
    if not shards:
        raise ConfigurationError(f"{path}: shards: names no store", options=('eu-1 = "postgresql://…"',))
    for shard, url in shards.items():
        if _VARIABLE.search(url) is None:
            _check_url(path, shard, url)
    tenants = _read_table(path, document, "tenants")
    default = document.get("default")
    if default is not None and not isinstance(default, str):
        raise ConfigurationError(f"{path}: default: must be the name of a shard")
    shard_of_field = {f"tenants.{tenant}": shard for tenant, shard in tenants.items()}
    if default is not None:
        shard_of_field["default"] = default
    for field, shard in shard_of_field.items():
        if shard not in shards:
            raise ConfigurationError(
                f"{path}: {field}: there is no shard {shard!r}", options=tuple(sorted(shards)[:20])
            )
    return default, shards, tenants


def _read_table(path: Path, document: Mapping[str, Any], table: str) -> dict[str, str]:
    """Return a table of the document as texts; `ConfigurationError` for other values."""
    values = document.get(table, {})
    if not isinstance(values, dict):
        raise ConfigurationError(f"{path}: {table}: must be a table")
    for key, value in values.items():
        if not isinstance(value, str):
            raise ConfigurationError(f"{path}: {table}.{key}: must be text")
    return {str(key): str(value) for key, value in values.items()}


def _check_url(path: Path, shard: str, url: str) -> None:
    """Refuse a URL that cannot be a shard; the tenant must not be part of it."""
    field = f"{path}: shards.{shard}"
    if url.partition("?")[0].endswith(".toml"):
        raise ConfigurationError(f"{field}: must name a store, not another file of shards")
    if re.search(r"[?&]tenant=", url):
        raise ConfigurationError(
            f"{field}: names a tenant: a shard serves all of its tenants",
            options=("remove ?tenant=: it is added for each tenant",),
        )
    if "://" not in url:
        raise ConfigurationError(f"{field}: {urls.without_password(url)!r} is not the URL of a store")
