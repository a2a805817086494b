"""Aside: long work beside the event loop, so that a render holds it for milliseconds only.

A thread that runs Python lets the loop in every 5 ms, one of these every millisecond. Three things do not: a garbage
collection, which looks at every object that is new, or at every object of the process; one call into C over much data;
and the end of a long list, whose objects go all at once.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from _thread import start_new_thread
from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from contextvars import ContextVar, copy_context
from functools import partial
from time import monotonic, perf_counter, sleep
from typing import Any, TypeVar

Y = TypeVar("Y")
T = TypeVar("T")

INLINE = 8_000
"""Characters that are read on the event loop, about 2 ms; more go to a thread."""
EACH = 4
"""Characters that an entry counts for of which the text is not read."""
BREATH, PAUSE = 0.002, 0.0001
"""Seconds of work after which a thread pauses, and for how long."""
LONGEST = 2.0
"""Seconds for which a render keeps the garbage collector off, at most."""
MANY = 20_000
"""New objects that the garbage collector shall not look at in one go: about 3 ms."""
TURN = 0.001
"""Seconds after which a thread beside the event loop lets it in."""


async def in_thread(work: Callable[[], T]) -> T:
    """Do something long beside the event loop, in a thread of its own: nobody who fills up a pool can delay it.

    What it makes is not looked at by the garbage collector meanwhile, and within a reply not until that is made.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(end: Callable[[], None]) -> None:
        if not done.done():
            end()

    def run() -> None:
        _busy.until = perf_counter() + BREATH
        try:
            end = partial(done.set_result, context.run(work))
        except BaseException as error:
            end = partial(done.set_exception, error)
        _turns.end()
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, end)

    context = copy_context()
    around = of_reply.get()
    quiet = around or Quiet()
    quiet.begin()
    _turns.begin()  # here: begun in the thread, the loop may wait for its first turn as long as before
    try:
        try:
            start_new_thread(run, ())  # Thread.start would wait here until the thread runs
        except BaseException:
            _turns.end()
            raise
        return await done
    finally:
        if around is None:
            quiet.end()


async def off_loop(work: Callable[[], T], size: int) -> T:
    """Do something on the event loop when it is short, else in a thread; `size` is the characters it reads, about."""
    return work() if size <= INLINE else await in_thread(work)


async def driven(steps: Generator[Y, Any, T], answer: Callable[[Y], Awaitable[object]], size: int) -> T:
    """Run a generator to its end as `off_loop` does, giving it an answer to all it asks for."""
    given: object = None
    made: list[T] = []

    def work() -> list[Y]:
        try:
            return [steps.send(given)]
        except StopIteration as end:
            made.append(end.value)
            return []

    while asked := await off_loop(work, size):
        given = await answer(asked[0])
    return made[0]


class _Pause:
    """The garbage collector, off while somebody needs it to be: there is one in a process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holders = 0
        self._since = 0.0

    def begin(self) -> bool:
        """Switch it off; False when that may not be: it is off by somebody else's will, or was for long."""
        with self._lock:
            if self._holders == 0:
                if not gc.isenabled():
                    return False
                self._since = monotonic()
                gc.disable()
            elif monotonic() - self._since > LONGEST:
                return False
            self._holders += 1
            return True

    def end(self) -> None:
        """Switch it on again once nobody is left."""
        with self._lock:
            self._holders -= 1
            if self._holders == 0:
                if gc.get_count()[0] > MANY and not gc.get_freeze_count():
                    # They count as old without being looked at: garbage among them waits for a full collection.
                    gc.freeze()
                    gc.unfreeze()
                gc.enable()


_pause = _Pause()


class _Turns:
    """How soon threads let each other in, sooner while somebody needs it: there is one interval in a process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holders = 0
        self._before = self._ours = 0.0

    def begin(self) -> None:
        """Make turns short, unless they are."""
        with self._lock:
            if self._holders == 0:
                self._before = sys.getswitchinterval()
                sys.setswitchinterval(min(self._before, TURN))
                self._ours = sys.getswitchinterval()
            self._holders += 1

    def end(self) -> None:
        """Make them as long as before once nobody is left, unless somebody else has set them since."""
        with self._lock:
            self._holders -= 1
            if self._holders == 0 and sys.getswitchinterval() == self._ours:
                sys.setswitchinterval(self._before)


_turns = _Turns()


class Quiet:
    """Keeps the garbage collector off while many objects without cycles are made that are gone soon.

    It would look at every object of the process for nothing, tens of milliseconds each time. Of those who need that at
    the same time the last one switches it on again; each has `longest` seconds, and after `LONGEST` nobody joins.
    """

    def __init__(self, longest: float = LONGEST) -> None:
        self._longest = longest
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Keep it off from now on, unless it is somebody else's to say."""
        if self._timer is None and _pause.begin():
            self._timer = asyncio.get_running_loop().call_later(self._longest, self.end)

    def end(self) -> None:
        """Need that no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            _pause.end()


of_reply: ContextVar[Quiet | None] = ContextVar("of_reply", default=None)
"""What keeps the garbage collector off until a reply is made."""

_busy = threading.local()


def breathe() -> None:
    """Pause when this is a thread of `in_thread` and was busy for `BREATH` seconds; on the event loop do nothing.

    Without a pause a thread that calls into C again and again may take the interpreter back before the event loop has
    woken up.
    """
    until: float | None = getattr(_busy, "until", None)
    if until is not None and perf_counter() > until:
        sleep(PAUSE)
        _busy.until = perf_counter() + BREATH
