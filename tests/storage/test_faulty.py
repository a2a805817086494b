from datetime import timedelta

import pytest

from acms import State, StorageBusyError, StorageError
from acms.model import ContextQuery, Done, JobDraft, JobQuery, Search
from acms.ports import HasHeads, HasRecords, StorageBackend
from acms.storage import CachedStorage, MemoryStorage, WrapperStorage, open_storage
from acms.testing import run_story, sound
from acms.testing.logs import append_drafts, create_log, draft_message, fork_log, stream_entries
from tests.storage.suite import StorageBackendTests
from tests.support.faulty import FaultyStorage


class TestFaultyWithoutFaults(StorageBackendTests):
    takes_clock = True

    @pytest.fixture
    async def store(self, clock):
        async with FaultyStorage(MemoryStorage(clock=clock)) as store:
            yield store


@pytest.mark.slow  # a server and this wrapper each pass the suite by themselves
class TestFaultyPostgresWithoutFaults(StorageBackendTests):
    crowd = (8, 80)

    @pytest.fixture
    async def store(self, tenant_url):
        async with FaultyStorage(open_storage(tenant_url)) as store:
            yield store


def test_a_faulty_store_without_faults_and_plain_lists_tell_the_same_story():
    run_story(lambda: FaultyStorage(MemoryStorage()), max_examples=8, steps=20)


async def test_the_nth_call_fails_before_it_took_effect():
    store = FaultyStorage(MemoryStorage())
    context = await create_log(store)
    store.fail("append", 2, StorageBusyError())
    await append_drafts(store, context, draft_message("first"))
    with pytest.raises(StorageBusyError):
        await append_drafts(store, context, draft_message("second", key="2"))
    assert [entry.content for entry in await sound(store, context.id)] == ["first"]
    assert not (await append_drafts(store, context, draft_message("second", key="2"))).repeated
    assert store.calls["append"] == 3


async def test_the_nth_call_fails_after_it_took_effect():
    store = FaultyStorage(MemoryStorage())
    context = await create_log(store)
    store.fail("append", 1, StorageError("the answer is lost"), after=True)
    with pytest.raises(StorageError, match="the answer is lost"):
        await append_drafts(store, context, draft_message("first", key="1"))
    assert (await append_drafts(store, context, draft_message("first", key="1"))).repeated
    assert len(await sound(store, context.id)) == 1


async def test_faults_are_counted_from_now_on():
    store = FaultyStorage(MemoryStorage())
    context = await create_log(store)
    await append_drafts(store, context, draft_message("first"))
    store.fail("append", 1, StorageBusyError())
    store.fail("append", 3, StorageBusyError())
    for fails in (True, False, True, False):
        if fails:
            with pytest.raises(StorageBusyError):
                await append_drafts(store, context, draft_message("x"))
        else:
            await append_drafts(store, context, draft_message("x"))


async def test_every_method_of_the_protocol_can_fail():
    inner = MemoryStorage()
    context = await create_log(inner)
    await append_drafts(
        inner,
        context,
        draft_message("a"),
        jobs=(JobDraft(kind="k", dedupe="a"), JobDraft(kind="k", dedupe="b")),
    )
    one, two = await inner.claim(["k"], lease=timedelta(minutes=1), limit=2)
    store = FaultyStorage(inner)
    calls = {
        "create": lambda: fork_log(store, context),
        "context": lambda: store.context(context.id),
        "contexts": lambda: store.contexts(ContextQuery()),
        "settings": lambda: store.settings(context.id, {}, rev=0),
        "head": lambda: store.head(context.id),
        "append": lambda: append_drafts(store, context, draft_message("x")),
        "read": lambda: store.read(context.id),
        "get": lambda: store.get([]),
        "put_derived": lambda: store.put_derived(context.id, []),
        "derived": lambda: store.derived(context.id, "s"),
        "missing": lambda: store.missing("s", limit=1),
        "blank": lambda: store.blank(context.id, [], to=State.ERASED, audit={}),
        "restore": lambda: store.restore(context, stream_entries([])),
        "search": lambda: store.search(Search(namespace="default")),
        "claim": lambda: store.claim(["k"], lease=timedelta(minutes=1)),
        "extend": lambda: store.extend(one, by=timedelta(minutes=1)),
        "settle": lambda: store.settle(two, outcome=Done()),
        "jobs": lambda: store.jobs(JobQuery()),
        "record": lambda: store.record(context.id, "a"),
        "put_record": lambda: store.put_record(context.id, "a", {}, rev=0),
        "heads": lambda: store.heads("default"),
        "session_page": lambda: store.session_page(ContextQuery()),
        "heads_of": lambda: store.heads_of([context.id]),
    }
    promised = {
        name
        for protocol in (StorageBackend, HasRecords, HasHeads)
        for name, of in vars(protocol).items()
        if callable(of) and not name.startswith("_")
    }
    assert set(calls) == promised - {"aclose"}
    for name, call in calls.items():
        store.fail(name, 1, StorageBusyError(name))
        store.fail(name, 2, StorageError(name), after=True)
        with pytest.raises(StorageBusyError, match=name):
            await call()
        with pytest.raises(StorageError, match=name):
            await call()


class Bare:
    """A store that keeps no records."""

    tenant = "default"


@pytest.mark.parametrize("wrapper", [WrapperStorage, CachedStorage, FaultyStorage])
def test_a_wrapper_keeps_records_only_when_the_store_inside_does(wrapper):
    for protocol in (HasRecords, HasHeads):
        assert isinstance(wrapper(wrapper(MemoryStorage())), protocol)
        assert not isinstance(wrapper(wrapper(Bare())), protocol)
    with pytest.raises(ValueError, match="put_record"):
        FaultyStorage(wrapper(Bare())).fail("put_record", 1, StorageError())


def test_a_fault_of_a_method_that_does_not_exist_is_a_mistake():
    with pytest.raises(ValueError, match="appnd"):
        FaultyStorage(MemoryStorage()).fail("appnd", 1, StorageError())
