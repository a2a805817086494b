"""The blocking door has the same verbs as the async one, and one loop behind all of them."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import threading

import pytest

from acms import ACMS as AsyncACMS
from acms import ValidationError, View, client, open_storage, sync
from acms.codecs import OpenAIChat
from acms.errors import HandleError
from acms.pins import KVPinRegistry, create_pin_registry
from acms.prompt import Prompt as AsyncPrompt
from acms.storage.kv_base import BaseKV


def verb_arguments(of: type) -> dict[str, list[tuple[str, object, object]]]:
    """Return the arguments of each verb: name, kind and default."""
    return {
        "close" if name == "aclose" else name: [
            (one.name, one.kind, one.default) for one in inspect.signature(member).parameters.values()
        ][1:]
        for name, member in inspect.getmembers(of, callable)
        if not name.startswith("_")
    }


NEEDS_THE_STORE = {"context_id", "entries", "internals", "wait_pending"}
"""What prompts are built from, and the worker of this process."""


@pytest.mark.parametrize(
    ("ours", "theirs", "without"),
    [
        (sync.ACMS, AsyncACMS, set()),
        (sync.View, View, set()),
        (sync.PinRegistry, KVPinRegistry, set()),
        (sync.KV, BaseKV, set()),
        (sync.Prompt, AsyncPrompt, set()),
        (sync.Client, client.Client, set()),
        (sync.RemoteSession, client.RemoteSession, set()),
        (sync.RemoteView, client.RemoteView, set()),
        (client.RemoteSession, AsyncACMS, NEEDS_THE_STORE),
        (client.RemoteView, View, NEEDS_THE_STORE),
    ],
)
def test_every_door_has_the_same_verbs(ours: type, theirs: type, without: set[str]) -> None:
    assert verb_arguments(ours) == {
        name: of for name, of in verb_arguments(theirs).items() if name not in without
    }
    for name in verb_arguments(ours):
        assert inspect.getdoc(getattr(ours, name)), name
    if ours.__module__ == "acms.client.blocking" and not issubclass(ours, sync.View | sync.RemoteView):
        return
    properties = {name for name, _ in inspect.getmembers(theirs, lambda one: isinstance(one, property))}
    kept = {name for name, _ in inspect.getmembers(ours, lambda one: isinstance(one, property))}
    assert properties - kept <= {
        "cache",
        "counter",
        "effort",
        "ends_at",
        "external_share",
        "home",
        "index",
        "render_log",
        "redactor",
        "storage",
    }


def test_a_prompt_without_await(url: str) -> None:
    heard: list[object] = []
    with sync.ACMS("s", open_storage(url)) as session:
        session.ingest("user", "We chose PostgreSQL for the orders service.")
        session.ingest("assistant", "Noted.")
        prompt = (
            sync.Prompt(OpenAIChat("gpt-4o"), on_event=heard.append)
            .system("Be brief.")
            .section("log", lambda empty: empty.last(session, n=1), ceiling=100)
            .when(True, lambda so_far: so_far.truncate([session.at(1), "and now?"], tokens=50))
            .recall(session, "orders", tokens=100)
        )
        rendered = prompt.render(budget=500)
    said = [message.text for message in rendered.messages]
    assert said[:3] == ["Be brief.", "Noted.", "We chose PostgreSQL for the orders service."]
    assert "and now?" in said[3]
    assert rendered.tokens.upper_bound <= 500
    assert heard


def test_doors_are_not_mixed(url: str) -> None:
    with sync.ACMS("s", open_storage(url)) as session:
        for build in (
            lambda: AsyncPrompt().recall(session, "q"),  # type: ignore[arg-type]
            lambda: AsyncPrompt().history(session),  # type: ignore[arg-type]
        ):
            with pytest.raises(ValidationError) as caught:
                build()
            assert caught.value.options == ("from acms.sync import Prompt",)


@pytest.mark.parametrize("name", sync.__all__)
def test_a_constructor_is_a_function_which_type_checkers_read(name: str) -> None:
    member = getattr(sync, name)
    if inspect.isclass(member):
        assert inspect.getsource(member.__init__).lstrip().startswith("def __init__(")


def test_constructors_take_the_same_arguments() -> None:
    for ours, theirs in ((sync.ACMS, AsyncACMS), (sync.Client, client.Client), (sync.Prompt, AsyncPrompt)):
        assert inspect.signature(ours) == inspect.signature(theirs)
    blocking, awaited = (
        inspect.signature(make).parameters for make in (sync.create_pin_registry, create_pin_registry)
    )
    assert list(blocking) == list(awaited)
    assert list(blocking.values())[1:] == list(awaited.values())[1:]


def test_pins_without_await(url: str) -> None:
    with sync.ACMS("user_123", open_storage(url)) as session, sync.open_kv(url) as kv:
        session.ingest("user", "hello")
        kv.set("style", "Answer in German.")
        registry = sync.create_pin_registry(kv, namespace="user:123")
        registry.pin("style", label="Style", priority=1)
        threads = [threading.Thread(target=registry.pin, args=(f"k{n}",)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert registry.unpin("k0")
        assert registry.list()[0].key == "style"
        assert len(registry.list()) == 8
        for given in ({}, {"registry": registry}):
            prompt = sync.Prompt(OpenAIChat("gpt-4o")).pinned_kv(store=kv, namespace="user:123", **given)
            assert prompt.render().messages[0].text == "Pinned context:\n- style (Style)\n  Answer in German."
        entry = kv.get("style")
        assert entry is not None
        assert kv.compare_and_set("style", "Be brief.", expect=entry.revision).data == "Be brief."
        assert kv.delete("style")
    kv.close()
    assert len(sync.create_pin_registry(kv.inner, namespace="user:123").list()) == 8, "opened again"
    kv.close()


def test_a_session_without_await(url: str) -> None:
    storage = open_storage(url)
    with sync.ACMS("user_123", storage) as session, sync.ACMS("other", storage) as other:
        id = session.ingest("user", "We chose PostgreSQL for the orders service.")
        other.ingest("user", "hello")
        assert session.last_receipt is not None
        assert session.last_receipt.message_id == id
        assert [item.id for item in session.recall("orders database", token_budget=200)] == [id]
        session.ingest("assistant", "Noted.")
        assert session.at(1).get_session_stats().messages == 1
        assert session.get_session_stats().messages == 2
    with sync.ACMS("user_123", storage) as session:
        assert session.get(id).content.startswith("We chose")


def test_errors_arrive_typed() -> None:
    with sync.ACMS("s", open_storage("memory://")) as session, pytest.raises(ValidationError):
        session.ingest("user", "")


def test_many_threads_share_one_session(url: str) -> None:
    with sync.ACMS("s", open_storage(url)) as session:
        threads = [
            threading.Thread(target=lambda n=n: [session.ingest("user", f"{n} {i}") for i in range(20)])
            for n in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        stats = session.get_session_stats()
        assert (stats.version, stats.messages) == (160, 160)


async def test_refuses_to_block_a_running_event_loop() -> None:
    session = sync.ACMS("s", open_storage("memory://"))
    with pytest.raises(HandleError) as refused:
        session.ingest("user", "hello")
    awaited, in_a_thread = refused.value.options
    assert "async with ACMS" in awaited
    assert "asyncio.to_thread" in in_a_thread


def test_a_closed_session_is_opened_again_without_async() -> None:
    session = sync.ACMS("s", open_storage("memory://"))
    session.close()
    with pytest.raises(HandleError) as refused:
        session.ingest("user", "hello")
    assert refused.value.options[0] == "open it again: `with session:`"
    assert refused.value.__notes__[0] == "try: open it again: `with session:`"
    with session:
        session.ingest("user", "hello")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_forked_child_gets_a_portal_of_its_own(url: str) -> None:
    script = f"""
import os, sys
from acms import open_storage
from acms.sync import ACMS
with ACMS("parent", open_storage({url!r})) as session:
    session.ingest("user", "before")
child = os.fork()
with ACMS("child" if child == 0 else "parent", open_storage({url!r})) as session:
    session.ingest("user", "after")
if child == 0:
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr.decode()


_FOLLOWS = """
import asyncio, os, signal, sys, threading, time
from acms.client.portal import BlockingProxy, make_blocking_iterator

signal.signal(signal.SIGINT, signal.default_int_handler)  # what a background job ignores
ended = []

def interrupt():
    main = threading.main_thread().ident
    while sys._current_frames()[main].f_code.co_name != "wait":
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGINT)

class Log:
    async def events(self):
        yield "first"
        try:
            threading.Thread(target=interrupt).start()
            await asyncio.Event().wait()
        finally:
            if "twice" in sys.argv:  # while a connection is closed
                threading.Thread(target=interrupt).start()
                await asyncio.Event().wait()
            ended.append("closed")

class Follower(BlockingProxy):
    events = make_blocking_iterator(Log.events)

try:
    for event in Follower(Log()).events():
        pass
except KeyboardInterrupt:
    print("interrupted", *ended, flush=True)
    os._exit(0)  # without a word about what is still being closed
"""


@pytest.mark.parametrize(("times", "said"), [("once", "interrupted closed\n"), ("twice", "interrupted\n")])
def test_a_loop_over_what_happens_can_be_interrupted(times: str, said: str) -> None:
    words = [sys.executable, "-c", _FOLLOWS, times]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == (said, "")


def test_an_error_is_shown_without_what_the_door_looked_for() -> None:
    with sync.ACMS("u", "memory://") as session, pytest.raises(ValidationError) as refused:
        session.ingest("banana", "x")
    found: list[BaseException | None] = [refused.value]
    while found[-1] is not None:
        found.append(found[-1].__context__)
    assert not [one for one in found if isinstance(one, RuntimeError)]
