"""The same ACMS for blocking code: every verb runs on one event loop in a background thread.

    with ACMS("user_123", open_storage("sqlite:///memory.db")) as session, open_kv("sqlite:///memory.db") as kv:
        session.ingest("user", "…")
        kv.set("style", "Answer in German.")
        create_pin_registry(kv, namespace="user:123").pin("style")

    with Client("http://127.0.0.1:8000") as client:
        client.session("user_123").ingest("user", "…")

All blocking sessions of a process share that loop, so they can share a storage handle. Not for use inside a running
event loop: await `acms.ACMS` there.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar

from acms import client as _client
from acms import session as _async
from acms import view as _view
from acms.client import ContextInfo
from acms.config import ACMSConfig, RetryConfig
from acms.contract.schema import RenderRequest
from acms.errors import HandleError
from acms.model import Json
from acms.observability.events import Event
from acms.ports import (
    Codec,
    Embedder,
    KVMemory,
    Reflector,
    Reranker,
    StorageBackend,
    Summarizer,
    TokenCounter,
)
from acms.prompt import builder as _prompt
from acms.prompt import pins as _pins
from acms.prompt.manifest import Manifest
from acms.prompt.render import Rendered
from acms.results import Diff, IndexStats, MessageReceipt
from acms.storage import kv as _kv
from acms.storage.kv_home import Clock, utc_now
from acms.storage.wrapper import CacheStats

if TYPE_CHECKING:
    import ssl

__all__ = [
    "ACMS",
    "KV",
    "Client",
    "PinRegistry",
    "Prompt",
    "RemoteSession",
    "RemoteView",
    "View",
    "create_pin_registry",
    "open_kv",
]

P = ParamSpec("P")
R = TypeVar("R")


class _Portal:
    """One event loop in a daemon thread, started by its first call and again after `os.fork()`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine to its end; interrupting the caller cancels it."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            work.close()
            raise HandleError(
                "acms.sync blocks the event loop it is called from", options=("await acms.ACMS",)
            )
        future = asyncio.run_coroutine_threadsafe(work, self._running())
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._pid != os.getpid():
                self._loop = asyncio.new_event_loop()
                self._pid = os.getpid()
                threading.Thread(target=self._loop.run_forever, name="acms-portal", daemon=True).start()
            return self._loop


_portal = _Portal()


def _blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Any, P], R]:
    @wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return _portal.run(method(self.inner, *args, **kwargs))

    return call


class View:
    """A session as it was at a version, for blocking code."""

    def __init__(self, session: _view.View) -> None:
        self.inner = session

    @property
    def session_id(self) -> str:
        """The caller's name for the conversation."""
        return self.inner.session_id

    recall = _blocking(_view.View.recall)
    window = _blocking(_view.View.window)
    messages = _blocking(_view.View.messages)
    entries = _blocking(_view.View.entries)
    context_id = _blocking(_view.View.context_id)
    said = _blocking(_view.View.said)
    history = _blocking(_view.View.history)
    episodes = _blocking(_view.View.episodes)
    facts = _blocking(_view.View.facts)
    get = _blocking(_view.View.get)
    get_session_stats = _blocking(_view.View.get_session_stats)
    forks = _blocking(_view.View.forks)
    ancestry = _blocking(_view.View.ancestry)
    tree = _blocking(_view.View.tree)
    tags = _blocking(_view.View.tags)
    compactions = _blocking(_view.View.compactions)
    expand = _blocking(_view.View.expand)
    keys = _blocking(_view.View.keys)
    policy = _blocking(_view.View.policy)

    def diff(self, other: View | int | str) -> Diff:
        """Return how what is in force differs on another side: another session, or a version or tag of this one."""
        return _portal.run(self.inner.diff(other.inner if isinstance(other, View) else other))


class ACMS(View):
    """Session-scoped context manager for agents, for blocking code; see `acms.ACMS`."""

    inner: _async.ACMS

    def __init__(
        self,
        session_id: str,
        storage: StorageBackend | str | Path,
        embedder: Embedder | Literal["auto"] | None = "auto",
        *,
        reflector: Reflector | None = None,
        reranker: Reranker | None = None,
        summarizer: Summarizer | None = None,
        token_counter: TokenCounter | None = None,
        config: ACMSConfig | None = None,
        namespace: str = "default",
    ) -> None:
        super().__init__(
            _async.ACMS(
                session_id,
                storage,
                embedder,
                reflector=reflector,
                reranker=reranker,
                summarizer=summarizer,
                token_counter=token_counter,
                config=config,
                namespace=namespace,
            )
        )

    def __enter__(self) -> ACMS:
        """Open the session."""
        _portal.run(self.inner.__aenter__())
        return self

    def __exit__(self, *error: object) -> None:
        """Close the session."""
        self.close()

    def at(self, version: int) -> View:
        """Return a read-only view of the session as if its log ended at a version."""
        return View(self.inner.at(version))

    @property
    def cache(self) -> CacheStats | None:
        """Return how the cache in front of the storage is doing; None when it is off."""
        return self.inner.cache

    @property
    def last_receipt(self) -> MessageReceipt | None:
        """What the last ingested message became; None before the first one."""
        return self.inner.last_receipt

    @property
    def index(self) -> IndexStats:
        """Return how the indexes of the storage handle are doing."""
        return self.inner.index

    wait_pending = _blocking(_async.ACMS.wait_pending)
    ingest = _blocking(_async.ACMS.ingest)
    ingest_many = _blocking(_async.ACMS.ingest_many)
    sync = _blocking(_async.ACMS.sync)
    close_episode = _blocking(_async.ACMS.close_episode)
    retract = _blocking(_async.ACMS.retract)
    replace = _blocking(_async.ACMS.replace)
    clear = _blocking(_async.ACMS.clear)
    tag = _blocking(_async.ACMS.tag)
    untag = _blocking(_async.ACMS.untag)
    delete = _blocking(_async.ACMS.delete)
    compact = _blocking(_async.ACMS.compact)
    reflect = _blocking(_async.ACMS.reflect)
    state = _blocking(_async.ACMS.state)
    unstate = _blocking(_async.ACMS.unstate)
    wait = _blocking(_async.ACMS.wait)
    undo = _blocking(_async.ACMS.undo)
    set_policy = _blocking(_async.ACMS.set_policy)
    erase = _blocking(_async.ACMS.erase)
    close = _blocking(_async.ACMS.close)

    def fork(self, at: int | str | None = None, session_id: str | None = None) -> ACMS:
        """Return a new session that shares everything up to a version with this one; see `acms.ACMS.fork`."""
        return ACMS._of(_portal.run(self.inner.fork(at, session_id)))

    def copy(self, at: int | str | None = None, session_id: str | None = None) -> ACMS:
        """Return a new session with everything this one reads up to a version; see `acms.ACMS.copy`."""
        return ACMS._of(_portal.run(self.inner.copy(at, session_id)))

    @classmethod
    def _of(cls, inner: _async.ACMS) -> ACMS:
        found = cls.__new__(cls)
        View.__init__(found, inner)
        return found


class KV:
    """Key-value memory for blocking code; made by `open_kv`."""

    def __init__(self, store: _kv.KVHome) -> None:
        self.inner = store

    def __enter__(self) -> KV:
        """Use the store in a block."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close it."""
        self.close()

    get = _blocking(_kv.KVHome.get)
    set = _blocking(_kv.KVHome.set)
    compare_and_set = _blocking(_kv.KVHome.compare_and_set)
    delete = _blocking(_kv.KVHome.delete)

    def close(self) -> None:
        """Release everything; idempotent. A later call opens the store again."""
        _portal.run(self.inner.aclose())


def open_kv(url: str) -> KV:
    """Return a handle on the key-value memory a URL names; see `acms.kv.open_kv`."""
    return KV(_kv.open_kv(url))


class PinRegistry:
    """The pins of one namespace, for blocking code; made by `create_pin_registry`."""

    def __init__(self, registry: _pins.KVPinRegistry) -> None:
        self.inner = registry

    pin = _blocking(_pins.KVPinRegistry.pin)
    unpin = _blocking(_pins.KVPinRegistry.unpin)
    list = _blocking(_pins.KVPinRegistry.list)


def create_pin_registry(
    store: KV | KVMemory, *, namespace: str, index_key: str = _pins.INDEX_KEY, clock: Clock = utc_now
) -> PinRegistry:
    """Return the pins of a namespace in a key-value memory; see `acms.pins.create_pin_registry`.

    A store that is not a `KV` must be used by the loop of `acms.sync` alone.
    """
    inner = store.inner if isinstance(store, KV) else store
    return PinRegistry(
        _pins.create_pin_registry(inner, namespace=namespace, index_key=index_key, clock=clock)
    )


def _given(value: Any) -> Any:
    """Return what the async door takes in place of a session, a store or a prompt of this one, also in a list."""
    if isinstance(value, View | Prompt | KV | PinRegistry):
        return value.inner
    if isinstance(value, list | tuple):
        return [_given(item) for item in value]
    return value


def _filling(function: Any) -> Callable[[_prompt.Prompt], Any]:
    """Return a function that fills a prompt of the async door."""
    return lambda prompt: _given(function(Prompt.of(prompt)))


def _building(
    method: Callable[..., _prompt.Prompt], *, fills: bool = False
) -> Callable[Concatenate[Prompt, ...], Prompt]:
    """Return the twin of a step; it takes sessions, views and prompts of this door."""

    @wraps(method)
    def call(self: Prompt, /, *args: Any, **kwargs: Any) -> Prompt:
        def given(value: Any) -> Any:
            return _filling(value) if fills and callable(value) else _given(value)

        named = {name: given(value) for name, value in kwargs.items()}
        return Prompt.of(method(self.inner, *map(given, args), **named))

    return call


class Prompt:
    """A prompt as a recipe, for blocking code; see `acms.prompt.Prompt`. Plugins stay async."""

    def __init__(
        self, codec: Codec | None = None, *, on_event: Callable[[Event], object] | None = None
    ) -> None:
        self.inner = _prompt.Prompt(codec, on_event=on_event)

    @classmethod
    def of(cls, inner: _prompt.Prompt) -> Prompt:
        """Return the blocking door to a prompt."""
        found = cls.__new__(cls)
        found.inner = inner
        return found

    system = _building(_prompt.Prompt.system)
    developer = _building(_prompt.Prompt.developer)
    user = _building(_prompt.Prompt.user)
    assistant = _building(_prompt.Prompt.assistant)
    tool = _building(_prompt.Prompt.tool)
    message = _building(_prompt.Prompt.message)
    history = _building(_prompt.Prompt.history)
    last = _building(_prompt.Prompt.last)
    truncate = _building(_prompt.Prompt.truncate)
    omit = _building(_prompt.Prompt.omit)
    summary = _building(_prompt.Prompt.summary)
    recall = _building(_prompt.Prompt.recall)
    pinned_kv = _building(_prompt.Prompt.pinned_kv)
    section = _building(_prompt.Prompt.section, fills=True)
    add = _building(_prompt.Prompt.add)
    when = _building(_prompt.Prompt.when, fills=True)
    use = _building(_prompt.Prompt.use)
    raw = _building(_prompt.Prompt.raw)
    merge = _building(_prompt.Prompt.merge)
    tools = _building(_prompt.Prompt.tools)
    cache_hint = _building(_prompt.Prompt.cache_hint)

    def render(
        self,
        budget: int | None = None,
        *,
        after: Rendered | Manifest | None = None,
        on_event: Callable[[Event], object] | None = None,
    ) -> Rendered:
        """Return the request for the provider; see `acms.prompt.Prompt.render`."""
        return _portal.run(self.inner.render(budget, after=after, on_event=on_event))


# ── over HTTP ───────────────────────────────────────────────────────────────────────────────────────────────────────


class RemoteView:
    """A session at a service as it was at a version, for blocking code."""

    def __init__(self, session: _client.RemoteView) -> None:
        self.inner = session

    @property
    def session_id(self) -> str:
        """The caller's name for the conversation."""
        return self.inner.session_id

    @property
    def namespace(self) -> str:
        """The group of conversations it belongs to: a user, a project."""
        return self.inner.namespace

    recall = _blocking(_client.RemoteView.recall)
    window = _blocking(_client.RemoteView.window)
    messages = _blocking(_client.RemoteView.messages)
    history = _blocking(_client.RemoteView.history)
    episodes = _blocking(_client.RemoteView.episodes)
    facts = _blocking(_client.RemoteView.facts)
    get = _blocking(_client.RemoteView.get)
    get_session_stats = _blocking(_client.RemoteView.get_session_stats)
    forks = _blocking(_client.RemoteView.forks)
    ancestry = _blocking(_client.RemoteView.ancestry)
    tree = _blocking(_client.RemoteView.tree)
    tags = _blocking(_client.RemoteView.tags)
    compactions = _blocking(_client.RemoteView.compactions)
    policy = _blocking(_client.RemoteView.policy)

    def diff(self, other: RemoteView | int | str) -> Diff:
        """Return how what is in force differs on another side: another session, or a version or tag of this one."""
        return _portal.run(self.inner.diff(other.inner if isinstance(other, RemoteView) else other))


class RemoteSession(RemoteView):
    """A session at a service, for blocking code; made by `Client.session`. See `acms.client.RemoteSession`."""

    inner: _client.RemoteSession

    def __init__(self, session: _client.RemoteSession) -> None:
        super().__init__(session)

    def __enter__(self) -> RemoteSession:
        """Use the session in a block."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close the session."""
        self.close()

    def at(self, version: int) -> RemoteView:
        """Return a read-only view of the session as if its log ended at a version."""
        return RemoteView(self.inner.at(version))

    @property
    def last_receipt(self) -> MessageReceipt | None:
        """What the last ingested message became; None before the first one."""
        return self.inner.last_receipt

    ingest = _blocking(_client.RemoteSession.ingest)
    ingest_many = _blocking(_client.RemoteSession.ingest_many)
    close_episode = _blocking(_client.RemoteSession.close_episode)
    retract = _blocking(_client.RemoteSession.retract)
    replace = _blocking(_client.RemoteSession.replace)
    clear = _blocking(_client.RemoteSession.clear)
    tag = _blocking(_client.RemoteSession.tag)
    untag = _blocking(_client.RemoteSession.untag)
    delete = _blocking(_client.RemoteSession.delete)
    compact = _blocking(_client.RemoteSession.compact)
    reflect = _blocking(_client.RemoteSession.reflect)
    wait = _blocking(_client.RemoteSession.wait)
    undo = _blocking(_client.RemoteSession.undo)
    set_policy = _blocking(_client.RemoteSession.set_policy)
    erase = _blocking(_client.RemoteSession.erase)
    close = _blocking(_client.RemoteSession.close)

    def fork(self, at: int | str | None = None, session_id: str | None = None) -> RemoteSession:
        """Return a new session that shares everything up to a version with this one; see `acms.ACMS.fork`."""
        return RemoteSession(_portal.run(self.inner.fork(at, session_id)))

    def copy(self, at: int | str | None = None, session_id: str | None = None) -> RemoteSession:
        """Return a new session with everything this one reads up to a version; see `acms.ACMS.copy`."""
        return RemoteSession(_portal.run(self.inner.copy(at, session_id)))


class Client:
    """The service at an address, for blocking code; see `acms.client.Client`."""

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        timeout: float = 60.0,
        retry: RetryConfig | None = None,
        why: bool = True,
        verify: ssl.SSLContext | None = None,
    ) -> None:
        self.inner = _client.Client(
            base_url, api_key=api_key, timeout=timeout, retry=retry, why=why, verify=verify
        )

    def __repr__(self) -> str:
        return repr(self.inner)

    def __enter__(self) -> Client:
        """Keep the connections open until the block ends."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close the connections."""
        self.close()

    def close(self) -> None:
        """Close the connections; a later call opens new ones. Idempotent."""
        _portal.run(self.inner.aclose())

    def session(self, session_id: str, *, namespace: str = "default") -> RemoteSession:
        """Return the session with a name, or with the id of its context; nothing is sent yet."""
        return RemoteSession(self.inner.session(session_id, namespace=namespace))

    def contexts(self, *, namespace: str | None = None, parent: str | None = None) -> Iterator[ContextInfo]:
        """Yield every live context, newest first: of a namespace, or the forks of one by its id."""
        return _stepping(self.inner.contexts(namespace=namespace, parent=parent))

    def render(
        self,
        request: RenderRequest | Mapping[str, Json],
        contexts: Sequence[RemoteSession | str] = (),
        *,
        action: str | None = None,
        attempt: int = 1,
        cache: Sequence[str] = (),
        lenient: bool = False,
        extended: bool = False,
    ) -> dict[str, Json]:
        """Answer a request of the contract from some contexts; see `acms.client.Client.render`."""
        return _portal.run(
            self.inner.render(
                request,
                [one.inner if isinstance(one, RemoteSession) else one for one in contexts],
                action=action,
                attempt=attempt,
                cache=cache,
                lenient=lenient,
                extended=extended,
            )
        )

    def export(
        self, context: RemoteSession | str | None = None, *, namespace: str | None = None
    ) -> Iterator[str]:
        """Yield contexts and their own entries as lines of JSON; see `acms.client.Client.export`."""
        inner = context.inner if isinstance(context, RemoteSession) else context
        return _stepping(self.inner.export(inner, namespace=namespace))

    def restore(self, lines: Iterable[str]) -> list[ContextInfo]:
        """Write exported contexts verbatim; see `acms.client.Client.restore`."""
        return _portal.run(self.inner.restore(lines))


def _stepping(items: AsyncGenerator[R]) -> Iterator[R]:
    """Yield what the other loop yields, one step of it at a time."""

    async def step() -> tuple[R, ...]:
        async for one in items:
            return (one,)
        return ()

    try:
        while found := _portal.run(step()):
            yield found[0]
    finally:
        _portal.run(items.aclose())
