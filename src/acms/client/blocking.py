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

from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar

from acms import client as _client
from acms import session as _async
from acms import view as _view
from acms.client.log import Log
from acms.client.portal import (
    BlockingProxy,
    ClosableProxy,
    make_blocking_iterator,
    make_blocking_method,
    property_of_inner,
    run_blocking,
)
from acms.client.session import Reads, Writes
from acms.client.verb import define_verb
from acms.config import ACMSConfig, RetryConfig
from acms.log.merges import Merged, MergeStrategy
from acms.model import Json
from acms.ports import Embedder, KVMemory, Reflector, Reranker, StorageBackend, Summarizer, TokenCounter
from acms.prompt import builder as _prompt
from acms.prompt import pins as _pins
from acms.results import Diff, MessageReceipt
from acms.storage import kv as _kv
from acms.storage.kv_base import Clock, utc_now

if TYPE_CHECKING:
    import ssl

    import httpx2

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


# ── in this process ─────────────────────────────────────────────────────────────────────────────────────────────────


class View(BlockingProxy, Reads):
    """A session as it was at a version, for blocking code."""

    def __init__(self, inner: _view.View) -> None:
        self.inner = inner

    session_id: str = property_of_inner("session_id", "The caller's name for the conversation.")
    namespace: str = property_of_inner(
        "namespace", "The group of conversations it belongs to: a user, a project."
    )

    entries = define_verb(_view.View.entries)
    context_id = define_verb(_view.View.context_id)

    def diff(self, other: View | int | str) -> Diff:
        """Return how the active content differs from another session, or from a version or tag of this one."""
        return run_blocking(self.inner.diff(_unwrap_proxies(other)))


class ACMS(View, ClosableProxy, Writes):
    """Session-scoped context manager for agents, for blocking code; see `acms.ACMS`."""

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
        name: str | None = None,
        labels: Sequence[str] | None = None,
        metadata: Mapping[str, Json] | None = None,
    ) -> None:
        self.inner = _async.ACMS(
            session_id,
            storage,
            embedder,
            reflector=reflector,
            reranker=reranker,
            summarizer=summarizer,
            token_counter=token_counter,
            config=config,
            namespace=namespace,
            name=name,
            labels=labels,
            metadata=metadata,
        )

    last_receipt: MessageReceipt | None = property_of_inner(
        "last_receipt", "What the last ingested message became; None before the first one."
    )

    wait_pending = define_verb(_async.ACMS.wait_pending)
    events = make_blocking_iterator(_async.ACMS.events)

    def merge(self, other: View, *, strategy: MergeStrategy = "refuse", dry_run: bool = False) -> Merged:
        """Bring in what another session of the same fork tree changed since this one last knew it.

        See `acms.ACMS.merge`.
        """
        return run_blocking(self.inner.merge(_unwrap_proxies(other), strategy=strategy, dry_run=dry_run))

    def at(self, version: int | str) -> View:
        """Return a read-only view of the session as if its log ended at a version, or at a tag."""
        return View(self.inner.at(version))


class KV(ClosableProxy):
    """Key-value memory for blocking code; made by `open_kv`."""

    def __init__(self, inner: _kv.BaseKV) -> None:
        self.inner = inner

    get = make_blocking_method(_kv.BaseKV.get)
    set = make_blocking_method(_kv.BaseKV.set)
    compare_and_set = make_blocking_method(_kv.BaseKV.compare_and_set)
    list = make_blocking_method(_kv.BaseKV.list)
    delete = make_blocking_method(_kv.BaseKV.delete)
    close = make_blocking_method(_kv.BaseKV.aclose)


def open_kv(url: str | Path) -> KV:
    """Return a handle on the key-value memory a URL names; see `acms.kv.open_kv`."""
    return KV(_kv.open_kv(url))


class PinRegistry(BlockingProxy):
    """The pins of one namespace, for blocking code; made by `create_pin_registry`."""

    def __init__(self, inner: _pins.KVPinRegistry) -> None:
        self.inner = inner

    pin = make_blocking_method(_pins.KVPinRegistry.pin)
    unpin = make_blocking_method(_pins.KVPinRegistry.unpin)
    list = make_blocking_method(_pins.KVPinRegistry.list)


def create_pin_registry(
    store: KV | KVMemory, *, namespace: str, index_key: str = _pins.INDEX_KEY, clock: Clock = utc_now
) -> PinRegistry:
    """Return the pins of a namespace in a key-value memory; see `acms.pins.create_pin_registry`.

    A store that is not a `KV` must be used by the loop of `acms.sync` alone.
    """
    return PinRegistry(
        _pins.create_pin_registry(
            _unwrap_proxies(store), namespace=namespace, index_key=index_key, clock=clock
        )
    )


def _unwrap_proxies(value: Any) -> Any:
    """Return the awaitable object of a session or a store of this module, also within a list."""
    if isinstance(value, BlockingProxy):
        return value.inner
    return [_unwrap_proxies(item) for item in value] if isinstance(value, list | tuple) else value


def _make_blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Any, P], R]:
    @wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return run_blocking(method(self, *args, **kwargs))

    return call


class Prompt(_prompt.Builder):
    """A prompt as a recipe, for blocking code; see `acms.prompt.Prompt`. Plugins stay async."""

    _unwrap = staticmethod(_unwrap_proxies)
    render = _make_blocking(_prompt.Prompt.render)


# ── over HTTP ───────────────────────────────────────────────────────────────────────────────────────────────────────


class RemoteView(BlockingProxy, Reads):
    """A session at a service as it was at a version, for blocking code."""

    def __init__(self, inner: _client.RemoteView) -> None:
        self.inner = inner

    log: Log = property_of_inner("log", "Which log at the service it is.")
    session_id: str = property_of_inner("session_id", "The caller's name for the conversation.")
    namespace: str = property_of_inner(
        "namespace", "The group of conversations it belongs to: a user, a project."
    )
    ends_at: int | str | None = property_of_inner(
        "ends_at", "The version at which it ends, or its tag; None for a session, which goes on."
    )

    def diff(self, other: RemoteView | int | str) -> Diff:
        """Return how the active content differs from another session, or from a version or tag of this one."""
        return run_blocking(self.inner.diff(_unwrap_proxies(other)))


class RemoteSession(RemoteView, ClosableProxy, Writes):
    """A session at a service, for blocking code; made by `Client.session`. See `acms.client.RemoteSession`."""

    def __init__(self, inner: _client.RemoteSession) -> None:
        self.inner = inner

    last_receipt: MessageReceipt | None = property_of_inner(
        "last_receipt", "What the last ingested message became; None before the first one."
    )

    events = make_blocking_iterator(_client.RemoteSession.events)

    def merge(
        self, other: RemoteView, *, strategy: MergeStrategy = "refuse", dry_run: bool = False
    ) -> Merged:
        """Bring in what another session of the same fork tree changed since this one last knew it.

        See `acms.ACMS.merge`.
        """
        return run_blocking(self.inner.merge(_unwrap_proxies(other), strategy=strategy, dry_run=dry_run))

    def at(self, version: int | str) -> RemoteView:
        """Return a read-only view of the session as if its log ended at a version, or at a tag."""
        return RemoteView(self.inner.at(version))


class Client(ClosableProxy):
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
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self.inner = _client.Client(
            base_url,
            api_key=api_key,
            timeout=timeout,
            retry=retry,
            why=why,
            verify=verify,
            transport=transport,
        )

    close = make_blocking_method(_client.Client.aclose)
    contexts = make_blocking_iterator(_client.Client.contexts)
    sessions = make_blocking_method(_client.Client.sessions)
    render = make_blocking_method(_client.Client.render)
    prompt = make_blocking_method(_client.Client.prompt)
    grant = make_blocking_method(_client.Client.grant)
    grants = make_blocking_method(_client.Client.grants)
    revoke = make_blocking_method(_client.Client.revoke)
    namespace_policy = make_blocking_method(_client.Client.namespace_policy)
    set_namespace_policy = make_blocking_method(_client.Client.set_namespace_policy)
    erase_session = make_blocking_method(_client.Client.erase_session)
    export = make_blocking_iterator(_client.Client.export)
    restore = make_blocking_method(_client.Client.restore)

    def session(
        self,
        session_id: str,
        *,
        namespace: str = "default",
        name: str | None = None,
        labels: Sequence[str] | None = None,
        metadata: Mapping[str, Json] | None = None,
    ) -> RemoteSession:
        """Return the session with a name, or with the id of its context; see `acms.client.Client.session`."""
        return RemoteSession(
            self.inner.session(session_id, namespace=namespace, name=name, labels=labels, metadata=metadata)
        )
