"""The building blocks of `acms.sync`: proxies that wait for the event loop in the background."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from acms.errors import ACMSError, HandleError
from acms.runtime.loops import current_loop
from acms.runtime.portal import run_in_portal

__all__ = [
    "BlockingProxy",
    "ClosableProxy",
    "make_blocking_iterator",
    "make_blocking_method",
    "property_of_inner",
    "run_blocking",
    "set_return_annotation",
    "wrap_in_proxy",
]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
D = TypeVar("D", bound="BlockingProxy")


def run_blocking(work: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine to its end on the portal's loop; raise `HandleError` in a running loop, which it would block."""
    if current_loop() is not None:
        work.close()
        raise HandleError(
            "acms.sync would block the event loop that is running here, as in an async function or a notebook",
            options=(
                "`from acms import ACMS`, then `async with ACMS(…) as session:` and `await session.recall(…)`",
                "run the blocking code in a thread: `await asyncio.to_thread(function)`",
            ),
        )
    try:
        return run_in_portal(work)
    except ACMSError as error:
        _remove_async_from_advice(error)
        raise


def _remove_async_from_advice(error: ACMSError) -> None:
    """Remove `async` and `await` from the advice of an error."""
    if not any("async " in option or "await " in option for option in error.options):
        return
    error.options = tuple([_remove_async_words(option) for option in error.options])
    error.__notes__ = [_remove_async_words(note) for note in getattr(error, "__notes__", ())]


def _remove_async_words(text: str) -> str:
    return text.replace("async with", "with").replace("await ", "")


class BlockingProxy:
    """A blocking proxy: it runs the async methods of the object `inner` on the portal's loop and waits for them."""

    inner: Any

    def __init__(self, /, *args: Any, **kwargs: Any) -> None:
        (self.inner,) = args

    def __repr__(self) -> str:
        return repr(self.inner)


class ClosableProxy(BlockingProxy):
    """A blocking proxy that is opened and closed."""

    def __enter__(self) -> Self:
        """Open it for a block."""
        run_blocking(self.inner.__aenter__())
        return self

    def __exit__(self, *error: object) -> None:
        """Close it."""
        run_blocking(self.inner.__aexit__(*error))


def wrap_in_proxy(kind: type[D], inner: Any) -> D:
    """Return a proxy of an existing object, without calling `__init__`, which may create another one."""
    proxy = kind.__new__(kind)
    proxy.inner = inner
    return proxy


def property_of_inner(name: str, doc: str) -> Any:
    """Return a property that reads an attribute of the wrapped object."""
    return property(lambda proxy: getattr(proxy.inner, name), doc=doc)


def make_blocking_method(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Any, P], R]:
    """Return a method that calls the async method of the wrapped object and waits for its result."""

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
    """Set the return annotation that editors and `inspect.signature` show for a function."""
    function.__dict__["__signature__"] = inspect.signature(function).replace(return_annotation=kind)
