"""A store that wraps another one, with the same contract: subclasses change single calls, all others are delegated."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, cast

from acms.model import Durability
from acms.ports import HasHeads, HasOwnValues, HasRecords, StorageBackend
from acms.storage import handles
from acms.storage.sessions import read_session_page

P = ParamSpec("P")
R = TypeVar("R")


def _delegate_method(
    method: Callable[Concatenate[StorageBackend, P], R],
) -> Callable[Concatenate[WrapperStorage, P], R]:
    """Return a method of the protocol as one that asks the store inside."""
    name = method.__name__

    @wraps(method)
    async def ask(self: WrapperStorage, *args: Any, **kwargs: Any) -> Any:
        return await getattr(self.inner, name)(*args, **kwargs)

    ask.__doc__ = f"See `StorageBackend.{name}`."
    return cast("Any", ask)


class WrapperStorage:
    """Delegates every call to the store inside; supports records and heads if that store does."""

    def __init__(self, inner: StorageBackend) -> None:
        self.inner = inner
        self.tenant = inner.tenant
        if isinstance(inner, HasRecords):  # else the wrapper must not look as if it could
            self.record, self.put_record = inner.record, inner.put_record
        if isinstance(inner, HasOwnValues):
            self.own_values = inner.own_values
        if isinstance(inner, HasHeads):
            self.heads, self.heads_of, self.session_page = inner.heads, inner.heads_of, inner.session_page

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.inner!r})"

    @property
    def durability(self) -> Durability:
        """Durability of an acknowledged append; a server reports it when the handle is opened."""
        return self.inner.durability

    async def __aenter__(self) -> Self:
        """Keep the handle open until the block ends."""
        handles.retain_handle(self)
        return self

    async def __aexit__(self, *error: object) -> None:
        """Let go of the handle."""
        await handles.release_handle(self)

    create = _delegate_method(StorageBackend.create)
    context = _delegate_method(StorageBackend.context)
    contexts = _delegate_method(StorageBackend.contexts)
    sessions = read_session_page
    settings = _delegate_method(StorageBackend.settings)
    head = _delegate_method(StorageBackend.head)
    append = _delegate_method(StorageBackend.append)
    read = _delegate_method(StorageBackend.read)
    get = _delegate_method(StorageBackend.get)
    put_derived = _delegate_method(StorageBackend.put_derived)
    derived = _delegate_method(StorageBackend.derived)
    missing = _delegate_method(StorageBackend.missing)
    blank = _delegate_method(StorageBackend.blank)
    restore = _delegate_method(StorageBackend.restore)
    search = _delegate_method(StorageBackend.search)
    claim = _delegate_method(StorageBackend.claim)
    extend = _delegate_method(StorageBackend.extend)
    settle = _delegate_method(StorageBackend.settle)
    jobs = _delegate_method(StorageBackend.jobs)
    aclose = _delegate_method(StorageBackend.aclose)


def find_layer(storage: StorageBackend, protocol: type[R]) -> R | None:
    """Return the outermost of a store and the stores inside it that satisfies a protocol, or None."""
    while not isinstance(storage, protocol):
        if not isinstance(storage, WrapperStorage):
            return None
        storage = storage.inner
    return storage


def innermost_storage(storage: StorageBackend) -> StorageBackend:
    """Return the store inside all wrappers."""
    while isinstance(storage, WrapperStorage):
        storage = storage.inner
    return storage
