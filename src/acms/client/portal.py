"""The building blocks of `acms.sync`: doors that wait for the event loop in the background."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from acms.errors import HandleError
from acms.runtime.loops import current_loop
from acms.runtime.portal import blocked

__all__ = [
    "Block",
    "Door",
    "init_from_arguments",
    "init_from_inner",
    "make_blocking_iterator",
    "make_blocking_method",
    "property_of_inner",
    "run_blocking",
    "set_return_annotation",
    "wrap_in_door",
]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
D = TypeVar("D", bound="Door")


def run_blocking(work: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine to its end on the portal's loop; not inside a running one, which would stand still meanwhile."""
    if current_loop() is not None:
        work.close()
        raise HandleError("acms.sync blocks the event loop it is called from", options=("await acms.ACMS",))
    return blocked(work)


class Door:
    """A blocking object: the object `inner`, whose methods are awaited, does the work on the portal's loop."""

    inner: Any

    def __init__(self, /, *given: Any, **named: Any) -> None:
        (self.inner,) = given

    def __repr__(self) -> str:
        return repr(self.inner)


class Block(Door):
    """A door that is opened and closed."""

    def __enter__(self) -> Self:
        """Open it for a block."""
        run_blocking(self.inner.__aenter__())
        return self

    def __exit__(self, *error: object) -> None:
        """Close it."""
        run_blocking(self.inner.__aexit__(*error))


def wrap_in_door(kind: type[D], inner: Any) -> D:
    """Return a door to an object that is there."""
    door = kind.__new__(kind)
    door.inner = inner
    return door


def init_from_inner(kind: Callable[..., T]) -> Callable[[Any, T], None]:
    """Return the `__init__` of a door that wraps a given object."""

    def __init__(self: Any, inner: T) -> None:
        self.inner = inner

    __init__.__annotations__["inner"] = kind
    return __init__


def init_from_arguments(inner: Callable[P, Any]) -> Callable[Concatenate[Any, P], None]:
    """Return the `__init__` of a door that creates the object it wraps."""

    @wraps(inner.__init__)
    def __init__(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> None:
        self.inner = inner(*args, **kwargs)

    return __init__


def property_of_inner(name: str, doc: str) -> Any:
    """Return a property that reads an attribute of the object inside."""
    return property(lambda door: getattr(door.inner, name), doc=doc)


def make_blocking_method(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Any, P], R]:
    """Return a method that waits for the one of the object inside."""

    @wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return run_blocking(getattr(self.inner, method.__name__)(*args, **kwargs))

    return call


def make_blocking_iterator(
    method: Callable[Concatenate[Any, P], AsyncGenerator[R]],
) -> Callable[Concatenate[Any, P], Iterator[R]]:
    """Return a blocking method that yields the values of an async generator method of the wrapped object."""

    @wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[R]:
        items = method(self.inner, *args, **kwargs)

        async def fetch_next() -> tuple[R, ...]:
            """Return the next value in a tuple, or an empty tuple at the end."""
            async for item in items:
                return (item,)
            return ()

        try:
            while item := run_blocking(fetch_next()):
                yield item[0]
        finally:
            if not getattr(items, "ag_running", False):  # a running iterator closes by itself
                run_blocking(items.aclose())

    set_return_annotation(
        call, str(inspect.signature(method).return_annotation).replace("AsyncGenerator", "Iterator")
    )
    return call


def set_return_annotation(function: Callable[..., Any], kind: str) -> None:
    """Let a function show that it returns a kind."""
    function.__dict__["__signature__"] = inspect.signature(function).replace(return_annotation=kind)
