"""A store that fails when it is told to."""

from __future__ import annotations

from collections import Counter
from functools import partial, wraps
from typing import Any

from acms.ports import StorageBackend
from acms.storage import WrapperStorage

_NEVER_FAILING = ("aclose", "durability", "sessions")
_METHODS = [name for name in vars(WrapperStorage) if name[0] != "_" and name not in _NEVER_FAILING]
_OPTIONAL_METHODS = ("record", "put_record", "heads", "heads_of", "session_page")
"""Methods that a wrapper has only when the store inside has them."""


class FaultyStorage(WrapperStorage):
    """Raises the scripted faults; without faults it is the store inside.

    store.fail("append", 3, StorageBusyError())                 the third append is refused
    store.fail("append", 3, StorageError(), after=True)         it is stored, but its answer is lost
    """

    def __init__(self, inner: StorageBackend) -> None:
        super().__init__(inner)
        self._faults: dict[tuple[str, int], tuple[Exception, bool]] = {}
        #: How often each method was called.
        self.calls: Counter[str] = Counter()
        for method in _OPTIONAL_METHODS:
            if hasattr(self, method):
                setattr(self, method, partial(self._call, method))

    def fail(self, method: str, nth: int, error: Exception, *, after: bool = False) -> None:
        """Raise `error` at the n-th call of a method from now on, counted from 1."""
        if method not in _METHODS and not (method in _OPTIONAL_METHODS and hasattr(self, method)):
            raise ValueError(f"{method!r} is not a method that can fail")
        self._faults[method, self.calls[method] + nth] = (error, after)

    async def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        self.calls[method] += 1
        place = (method, self.calls[method])
        error, after = self._faults.get(place, (None, True))
        if error is not None and not after:
            raise error
        result = await getattr(self.inner, method)(*args, **kwargs)
        fault = self._faults.get(place)  # it may have been told meanwhile
        if fault is not None:
            raise fault[0]
        return result


def _make_failing_method(name: str) -> Any:
    """Return a method of a wrapper as one that can fail."""

    @wraps(getattr(WrapperStorage, name))
    async def method(self: FaultyStorage, *args: Any, **kwargs: Any) -> Any:
        return await self._call(name, *args, **kwargs)  # pyright: ignore[reportPrivateUsage]

    return method


for _name in _METHODS:
    setattr(FaultyStorage, _name, _make_failing_method(_name))
