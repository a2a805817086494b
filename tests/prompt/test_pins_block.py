"""Pins in a prompt: which are shown, in which form, and the notices about the others."""

from __future__ import annotations

import asyncio

import pytest

from acms import ValidationError
from acms.errors import CorruptRecordError
from acms.kv import InMemoryKV
from acms.observability import PinsLoaded, PinsSkipped
from acms.pins import Pin, PinMetadata, Pinned, PinnedKV, create_pin_registry
from acms.plan.nodes import KeptEnd, Omit, Truncate
from tests.prompt.test_pins import clock, store

__all__ = ["clock", "store"]

SEED = """\
Pinned context:
- profile (User profile)
  {"name":"Sam","timezone":"America/Los_Angeles"}
- preferences
  {"tone":"concise","units":"metric"}"""


class Request:
    """The caller of a block, and the notices it gets."""

    def __init__(self):
        self.told = []

    def tell(self, event):
        self.told.append(event)


def block_text(scope):
    """Return the text of a block, "" when there is none."""
    if not scope.children:
        return ""
    (message,) = scope.children
    return message.opening + message.separator.join(piece.text for piece in message.pieces) + message.closing


async def pin_values(store, namespace="user:123", **values):
    registry = create_pin_registry(store, namespace=namespace)
    for place, (key, value) in enumerate(values.items()):
        await store.set(key, value)
        await registry.pin(key, priority=-place)
    return registry


# ── what is shown ───────────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_block_of_the_seed(store, clock):
    registry = create_pin_registry(store, namespace="user:123", clock=clock)
    await store.set("preferences", {"tone": "concise", "units": "metric"})
    await store.set("profile", {"name": "Sam", "timezone": "America/Los_Angeles"})
    await registry.pin("preferences")
    await registry.pin("profile", label="User profile", priority=10)
    request = Request()
    scope = await PinnedKV(store=store, namespace="user:123").render(request)
    assert block_text(scope) == SEED
    assert (scope.id, scope.priority, scope.floor) == ("pins:user:123", 1, 0)
    assert scope.strategy == Truncate(1200, KeptEnd.START)
    (message,) = scope.children
    assert (message.role, message.kind) == ("developer", "pins")
    assert request.told == [PinsLoaded(namespace="user:123", keys=("profile", "preferences"))]
    assert block_text(await PinnedKV(store=store, namespace="user:123").render()) == SEED, (
        "the same text each time"
    )


async def test_no_index_is_no_block(store):
    request = Request()
    scope = await PinnedKV(store=store, namespace="nobody").render(request)
    assert scope.children == ()
    assert request.told == [PinsLoaded(namespace="nobody", keys=())]


async def test_the_first_twenty_are_shown_and_the_others_told():
    store = InMemoryKV()
    await pin_values(store, **{f"k{n}": n for n in range(23)})
    request = Request()
    scope = await PinnedKV(store=store, namespace="user:123").render(request)
    assert [piece.id for piece in scope.children[0].pieces] == [f"k{n}" for n in range(20)]
    assert request.told[1] == PinsSkipped(namespace="user:123", missing=(), beyond=("k20", "k21", "k22"))
    scope = await PinnedKV(store=store, namespace="user:123", max_pins=1).render()
    assert block_text(scope) == "Pinned context:\n- k0\n  0"


async def test_a_pin_without_a_value_is_skipped_and_told(store):
    await pin_values(store, first="1", gone="2", last="3")
    await store.delete("gone")
    request = Request()
    scope = await PinnedKV(store=store, namespace="user:123").render(request)
    assert block_text(scope) == "Pinned context:\n- first\n  1\n- last\n  3"
    assert request.told == [
        PinsLoaded(namespace="user:123", keys=("first", "last")),
        PinsSkipped(namespace="user:123", missing=("gone",), beyond=()),
    ]
    await store.delete("first")
    await store.delete("last")
    assert (await PinnedKV(store=store, namespace="user:123").render()).children == ()


async def test_a_namespace_shows_its_own_pins(store):
    await pin_values(store, "user:123", mine="1", both="2")
    await pin_values(store, "user:1234", theirs="3", both="2")
    for namespace, expected in (("user:123", ["mine", "both"]), ("user:1234", ["theirs", "both"])):
        scope = await PinnedKV(store=store, namespace=namespace).render()
        assert [piece.id for piece in scope.children[0].pieces] == expected


async def test_values_are_read_at_once():
    """A store that answers only when all have asked."""

    class Together(InMemoryKV):
        waiting = 0
        all_there = asyncio.Event()

        async def get(self, key):
            if key.startswith("k"):
                self.waiting += 1
                if self.waiting == 5:
                    self.all_there.set()
                await self.all_there.wait()
            return await super().get(key)

    store = Together()
    await pin_values(store, **{f"k{n}": n for n in range(5)})
    async with asyncio.timeout(300):
        scope = await PinnedKV(store=store, namespace="user:123").render()
    assert len(scope.children[0].pieces) == 5


async def test_many_renders_at_once_share_nothing(store):
    await pin_values(store, a="1", b="2")
    block = PinnedKV(store=store, namespace="user:123")
    requests = [Request() for _ in range(8)]
    scopes = await asyncio.gather(*(block.render(request) for request in requests))
    assert len({block_text(scope) for scope in scopes}) == 1
    assert all(request.told == [PinsLoaded(namespace="user:123", keys=("a", "b"))] for request in requests)


async def test_a_registry_of_somebody_else_will_do():
    class Fixed:
        async def pin(self, key, metadata=None):
            raise NotImplementedError

        async def unpin(self, key):
            raise NotImplementedError

        async def list(self):
            return [Pin("b", PinMetadata(label="B")), Pin("a", PinMetadata())]

    store = InMemoryKV()
    await store.set("a", 1)
    await store.set("b", 2)
    for given in ({}, {"namespace": "theirs"}):
        block = PinnedKV(store=store, registry=Fixed(), **given)
        assert block_text(await block.render()) == "Pinned context:\n- b (B)\n  2\n- a\n  1"
        assert block.namespace == given.get("namespace", "default")


async def test_what_a_registry_knows_may_lie_in_another_store():
    index, values = InMemoryKV(), InMemoryKV()
    registry = create_pin_registry(index, namespace="user:123", index_key="__ours__")
    await registry.pin("a")
    await values.set("a", 1)
    block = PinnedKV(store=values, registry=registry)
    assert (block.namespace, block_text(await block.render())) == ("user:123", "Pinned context:\n- a\n  1")


async def test_a_value_that_does_not_read_back_ends_the_render():
    class Broken(InMemoryKV):
        async def get(self, key):
            if key == "a":
                raise CorruptRecordError("the value of 'a' cannot be read")
            return await super().get(key)

    store = Broken()
    await pin_values(store, a=1, b=2)
    with pytest.raises(CorruptRecordError, match="'a'"):
        await PinnedKV(store=store, namespace="user:123").render()


# ── a formatter of one's own ────────────────────────────────────────────────────────────────────────────────────────


async def test_a_formatter_gets_key_data_and_metadata_and_its_text_is_shown_as_it_is():
    store = InMemoryKV()
    registry = await pin_values(store, a={"n": 1})
    await registry.pin("a", label="A")
    got = []

    def format(entry):
        got.append(entry)
        return f"{entry.key}={entry.data['n']} {entry.metadata.label}\nunindented"

    scope = await PinnedKV(store=store, namespace="user:123", format=format).render()
    assert block_text(scope) == "Pinned context:\na=1 A\nunindented"
    ((key, data, metadata),) = got
    assert isinstance(got[0], Pinned)
    assert (key, data, metadata.label) == ("a", {"n": 1}, "A")


async def test_what_a_formatter_raises_is_told_with_key_and_namespace():
    store = InMemoryKV()
    await pin_values(store, secret={"name": "Sam"})
    block = PinnedKV(store=store, namespace="user:123", format=lambda entry: entry.data["Sam's address"])
    with pytest.raises(
        ValidationError, match="raised KeyError on pin 'secret' of namespace 'user:123'"
    ) as told:
        await block.render()
    assert told.value.field == "format"
    assert isinstance(told.value.__cause__, KeyError)
    assert "Sam" not in str(told.value)


@pytest.mark.parametrize("returned", [None, 5, b"text", "a\0b", "\ud800", ["text"]], ids=repr)
async def test_a_formatter_must_return_a_text(returned):
    store = InMemoryKV()
    await pin_values(store, a=1)
    block = PinnedKV(store=store, namespace="user:123", format=lambda entry: returned)
    with pytest.raises(ValidationError, match="on pin 'a' of namespace 'user:123' must") as told:
        await block.render()
    assert told.value.field == "format"


async def test_cancelling_goes_through_a_formatter():
    store = InMemoryKV()
    await pin_values(store, a=1)

    def cancelled(entry):
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await PinnedKV(store=store, namespace="user:123", format=cancelled).render()


# ── how it shrinks, and what makes no sense ─────────────────────────────────────────────────────────────────────────


async def test_strategy_role_priority_and_reserve_are_those_of_the_scope():
    store = InMemoryKV()
    registry = await pin_values(store, a=1)
    await registry.pin("a", role="user")
    scope = await PinnedKV(
        store=store, namespace="user:123", strategy="omit", role="system", priority=4
    ).render()
    assert (scope.strategy, scope.priority, scope.floor) == (Omit(), 4, 0)
    assert scope.children[0].role == "system", "the role of a pin says nothing about the block"
    scope = await PinnedKV(
        store=store, namespace="user:123", strategy={"truncate_tokens": 50}, reserve=50, role="user"
    ).render()
    assert (scope.strategy, scope.floor) == (Truncate(50, KeptEnd.START), 50)
    assert scope.children[0].role == "user"


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("namespace", {"namespace": None}),
        ("namespace", {"namespace": ""}),
        ("namespace", {"namespace": "x" * 256}),
        ("namespace", {"namespace": "a\0"}),
        ("namespace", {"namespace": "\ud800"}),
        ("namespace", {"namespace": 123}),
        ("namespace", {"registry": create_pin_registry(InMemoryKV(), namespace="another")}),
        ("registry", {"registry": 5}),
        ("registry", {"registry": InMemoryKV()}),
        ("store", {"store": "sqlite:///pins.db"}),
        ("store", {"store": None, "registry": create_pin_registry(InMemoryKV(), namespace="user:123")}),
        ("max_pins", {"max_pins": 0}),
        ("max_pins", {"max_pins": -1}),
        ("max_pins", {"max_pins": 2.5}),
        ("max_pins", {"max_pins": 1001}),
        ("strategy", {"strategy": "drop"}),
        ("strategy", {"strategy": None}),
        ("strategy", {"strategy": 1200}),
        ("strategy", {"strategy": {}}),
        ("strategy", {"strategy": {"truncateTokens": 1200}}),
        ("strategy", {"strategy": {"truncate_tokens": 1200, "keep": "end"}}),
        ("strategy.truncate_tokens", {"strategy": {"truncate_tokens": 0}}),
        ("strategy.truncate_tokens", {"strategy": {"truncate_tokens": -5}}),
        ("strategy.truncate_tokens", {"strategy": {"truncate_tokens": float("nan")}}),
        ("strategy.truncate_tokens", {"strategy": {"truncate_tokens": "many"}}),
        ("strategy.truncate_tokens", {"strategy": {"truncate_tokens": True}}),
        ("role", {"role": "assistant"}),
        ("role", {"role": "tool"}),
        ("role", {"role": "boss"}),
        ("priority", {"priority": -1}),
        ("priority", {"priority": "high"}),
        ("reserve", {"reserve": 1201}),
        ("reserve", {"reserve": -1}),
        ("reserve", {"reserve": 1, "strategy": "omit"}),
        ("format", {"format": "text"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_what_makes_no_sense_is_refused_at_once(field, given):
    with pytest.raises(ValidationError) as refused:
        PinnedKV(**{"store": InMemoryKV(), "namespace": "user:123", **given})
    assert refused.value.field == field
