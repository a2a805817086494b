"""What a cache does with a policy: checks 27 to 29 and 31, and a story told to a cache and to a plain dict."""

from __future__ import annotations

import json

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from acms import ValidationError
from acms.acs import Applied, KVCache
from acms.contract import Code, Fragment, KVPolicy, Lod, RenderReply, Variant
from acms.contract.caller_cache import FREQUENT_CONFLICTS, RECENT_POLICIES, QuarterCounter
from acms.contract.kv_policy import policy

MIXED = (
    '{ "kv_policy": { "pin": ["frag:macro:123"], "compress": ["frag:micro:789", "frag:atomic:777", "frag:macro:123"], '
    '"evict": ["frag:atomic:555", "frag:micro:789"] } }'
)
LONG = "the orders table is written by the importer and read by the report. " * 30
KEYS = ("frag:macro:123", "frag:micro:789", "frag:atomic:777", "frag:atomic:555", "doc:sum:Q")


def filled_cache() -> KVCache:
    cache = KVCache()
    for key in KEYS:
        cache.put(key, LONG, lod=Lod.ATOMIC if "atomic" in key else Lod.MICRO, benefit=0.4)
    return cache


def sample_reply(*ids: str, policy: KVPolicy | None = None) -> RenderReply:
    fragments = tuple(
        Fragment(id=id, lod=Lod.MICRO, text=f"text of {id}", entities=("a",), cost_tokens=5) for id in ids
    )
    return RenderReply(request_id="r", fragments=fragments, kv_policy=policy)


def cache_keys(cache: KVCache) -> set[str]:
    return set(cache)


def pinned_keys(cache: KVCache) -> set[str]:
    return {one.key for one in cache.units() if one.pinned}


# ── the checks ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_check_27_the_mixed_example_of_the_seed_pins_compresses_and_evicts() -> None:
    cache = filled_cache()
    before = {one.key: one for one in cache.units()}
    applied = cache.apply(json.loads(MIXED)["kv_policy"])
    assert cache_keys(cache) == set(KEYS) - {"frag:atomic:555"}
    assert pinned_keys(cache) == {"frag:macro:123"}
    for key in ("frag:micro:789", "frag:atomic:777"):
        shrunk = cache.peek(key)
        assert shrunk is not None
        assert shrunk.compressed
        assert shrunk.key == key
        assert shrunk.text
        assert len(shrunk.text) < len(LONG) / 2
        assert shrunk.cost <= before[key].cost / 2
        assert shrunk.cost < 200
    assert cache.peek("frag:macro:123") is not None
    assert cache.peek("doc:sum:Q") == before["doc:sum:Q"]
    assert applied == Applied(
        pinned=("frag:macro:123",),
        compressed=("frag:micro:789", "frag:atomic:777"),
        evicted=("frag:atomic:555",),
        conflicts=("frag:macro:123", "frag:micro:789"),
    )


def test_check_28_unknown_and_duplicate_keys_change_nothing() -> None:
    cache, plain = filled_cache(), filled_cache()
    doubled = KVPolicy(
        pin=("doc:sum:Q", "nobody", "doc:sum:Q"),
        compress=("frag:micro:789", "nowhere", "frag:micro:789"),
        evict=("frag:atomic:555", "nothing", "frag:atomic:555"),
    )
    applied = cache.apply(doubled)
    plain.apply(KVPolicy(pin=("doc:sum:Q",), compress=("frag:micro:789",), evict=("frag:atomic:555",)))
    assert cache.to_wire() == plain.to_wire()
    assert applied.ignored == ("nobody", "nowhere", "nothing")
    cache.put("nobody", "a pin on a key that was not there is not remembered")
    assert pinned_keys(cache) == {"doc:sum:Q"}


def test_check_29_a_pinned_key_survives_pressure_until_the_next_decision() -> None:
    cache = KVCache(capacity=64)
    cache.put("pinned", LONG, benefit=0.0)
    cache.apply(KVPolicy(pin=("pinned",)))
    for index in range(200):
        cache.receive(sample_reply(f"other:{index}"))
    assert len(cache) == 64
    assert pinned_keys(cache) == {"pinned"}
    cache.receive(sample_reply("next", policy=KVPolicy()))  # a decision without it
    assert pinned_keys(cache) == set()
    assert "pinned" not in cache  # it was the one missed least
    assert len(cache) == 64


def test_check_31_a_policy_applied_twice_leaves_the_same_state() -> None:
    cache = filled_cache()
    decided = KVPolicy.of(json.loads(MIXED)["kv_policy"])
    cache.apply(decided)
    once = cache.to_wire()
    again = cache.apply(decided)
    assert cache.to_wire() == once
    assert again.ignored == ("frag:atomic:555",)


# ── pins ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_reply_without_a_policy_changes_no_pin() -> None:
    cache = filled_cache()
    cache.apply(KVPolicy(pin=("doc:sum:Q",)))
    cache.receive(sample_reply("new"))
    assert pinned_keys(cache) == {"doc:sum:Q"}
    cache.receive(RenderReply(request_id="r", fragments=()))
    assert pinned_keys(cache) == {"doc:sum:Q"}


def test_a_reply_may_pin_what_it_brings_into_a_full_cache() -> None:
    cache = KVCache(capacity=2)
    cache.receive(sample_reply("a", "b", policy=KVPolicy(pin=("a", "b"))))
    applied = cache.receive(sample_reply("c", "d", policy=KVPolicy(pin=("c", "d"))))
    assert pinned_keys(cache) == cache_keys(cache) == {"c", "d"}
    assert set(applied.evicted) == {"a", "b"}


def test_pinned_keys_may_exceed_the_capacity_and_then_nothing_else_is_held() -> None:
    cache = KVCache(capacity=2)
    cache.receive(sample_reply("a", "b", "c", policy=KVPolicy(pin=("a", "b", "c"))))
    cache.put("d", "text")
    assert cache_keys(cache) == {"a", "b", "c"}


# ── compress ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_shortest_variant_at_hand_is_taken() -> None:
    cache = KVCache()
    variants = (
        Variant(lod=Lod.MICRO, text="orders: importer writes, report reads", cost_tokens=9),
        Variant(lod=Lod.MACRO, text="orders table", cost_tokens=3),
    )
    cache.put("one", LONG, lod=Lod.ATOMIC, variants=variants)
    cache.apply(KVPolicy(compress=("one",)))
    shrunk = cache.peek("one")
    assert shrunk is not None
    assert (shrunk.lod, shrunk.text, shrunk.cost) == (Lod.MACRO, "orders table", 3)


def test_a_shortener_writes_the_text_and_is_told_how_long_it_may_be() -> None:
    told: list[int] = []

    def shorten(text: str, tokens: int) -> str:
        told.append(tokens)
        return "orders, in short"

    cache = KVCache(shorten=shorten)
    cache.put("one", LONG, lod=Lod.ATOMIC, variants=(Variant(lod=Lod.MICRO, text="orders", cost_tokens=2),))
    cache.apply(KVPolicy(compress=("one",)))
    cache.apply(KVPolicy(compress=("one",)))
    shrunk = cache.peek("one")
    assert shrunk is not None
    assert (shrunk.text, shrunk.lod, shrunk.cost) == ("orders, in short", Lod.MICRO, 4)
    assert shrunk.variants == ()
    assert told == [199]


def test_a_shortener_that_does_not_shorten_is_not_believed() -> None:
    cache = KVCache(shorten=lambda text, tokens: text + "!")
    cache.put("one", LONG)
    cache.apply(KVPolicy(compress=("one",)))
    shrunk = cache.peek("one")
    assert shrunk is not None
    assert shrunk.text is not None
    assert len(shrunk.text) < len(LONG)


def test_a_shortener_that_fails_leaves_everything_as_it_was() -> None:
    def shorten(text: str, tokens: int) -> str:
        raise RuntimeError("no model")

    cache = KVCache(shorten=shorten)
    cache.put("one", LONG)
    cache.put("two", LONG)
    before = cache.to_wire()
    with pytest.raises(RuntimeError):
        cache.receive(sample_reply("three", policy=KVPolicy(pin=("two",), compress=("one",), evict=("two",))))
    assert cache.to_wire() == before


def test_what_another_tokenizer_counted_shrinks_by_the_same_share() -> None:
    cache = KVCache()
    text = "订单表由导入程序写入。" * 30  # 330 characters: 83 by the estimate, 400 by who counted it
    cache.put("one", text, cost=400)
    cache.apply(KVPolicy(compress=("one",)))
    shrunk = cache.peek("one")
    assert shrunk is not None
    assert shrunk.text is not None
    assert len(shrunk.text) <= len(text) / 2
    assert shrunk.cost < 200


def test_what_is_blocked_or_tiny_is_not_shrunk() -> None:
    cache = KVCache()
    cache.put("blocked", None)
    cache.put("tiny", "ok")
    before = [cache.peek("blocked"), cache.peek("tiny")]
    cache.apply(KVPolicy(compress=("blocked", "tiny")))
    assert [cache.peek("blocked"), cache.peek("tiny")] == before


def test_a_fragment_that_comes_again_is_whole_again() -> None:
    cache = filled_cache()
    cache.apply(KVPolicy(pin=("doc:sum:Q",), compress=("frag:micro:789",)))
    for key in ("frag:micro:789", "doc:sum:Q"):
        cache.put(key, LONG)
        again = cache.peek(key)
        assert again is not None
        assert again.text == LONG
        assert not again.compressed
    assert pinned_keys(cache) == {"doc:sum:Q"}


def test_what_is_blocked_now_keeps_nothing_of_its_text() -> None:
    cache = KVCache()
    cache.put("one", "planted text", variants=(Variant(lod=Lod.MACRO, text="planted", cost_tokens=1),))
    cache.put("two", None, variants=(Variant(lod=Lod.MACRO, text="planted", cost_tokens=1),))
    blocked = Fragment(id="one", lod=Lod.MICRO, text=None, cost_tokens=0)
    cache.receive(RenderReply(request_id="r", fragments=(blocked,)))
    assert "planted" not in json.dumps(cache.to_wire())


# ── room, use ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_was_shrunk_and_had_to_go_nevertheless_is_told_as_gone() -> None:
    cache = KVCache(capacity=1)
    cache.put("old", LONG)
    cache.advance()
    applied = cache.receive(sample_reply("new", policy=KVPolicy(pin=("new",), compress=("old",))))
    assert (applied.compressed, applied.evicted) == ((), ("old",))


def test_use_keeps_a_key_and_benefit_and_size_weigh_against_it() -> None:
    cache = KVCache(capacity=3)
    cache.put("large", LONG, benefit=0.6)
    cache.put("poor", "text", benefit=0.0)
    cache.put("used", "text", benefit=0.0)
    for _ in range(4):
        cache.advance()
        assert cache.get("used") is not None
    assert {one.key: one.turns for one in cache.held()} == {"large": 5, "poor": 5, "used": 1}
    cache.put("new", "text", benefit=0.9)
    assert cache_keys(cache) == {"large", "used", "new"}
    cache.put("newer", "text", benefit=0.9)
    assert cache_keys(cache) == {"used", "new", "newer"}
    assert cache.get("nobody") is None


def test_a_reply_says_by_its_entities_how_well_its_fragments_answer() -> None:
    cache = KVCache()
    cache.receive(sample_reply("one"), gaze=["A", "b"])
    cache.receive(sample_reply("two"))
    cache.receive(sample_reply("three"), benefits={"three": 0.9})
    assert {one.key: one.benefit for one in cache.units()} == pytest.approx(
        {"one": 0.65, "two": 0.35, "three": 0.9}
    )


def test_the_keys_a_cache_hands_over_make_the_policy_that_it_then_applies() -> None:
    cache = KVCache(capacity=8)
    for turn in range(30):
        fragments = sample_reply(f"k{turn}", f"k{turn // 2}").fragments or ()
        decided = policy(selected=fragments, gaze=["a"], tokens_max=100, cache=cache)
        applied = cache.receive(RenderReply(request_id="r", fragments=fragments, kv_policy=decided))
        assert applied.ignored == applied.conflicts == ()
        assert set(applied.pinned) == {one.id for one in fragments}
        assert len(cache) <= 8
        assert set(applied.evicted) == set(decided.evict)  # no other had to go


# ── conflicts ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_frequent_conflicts_are_told_until_they_are_rare_again() -> None:
    cache = filled_cache()
    bad = KVPolicy(pin=("doc:sum:Q",), evict=("doc:sum:Q",))
    for _ in range(FREQUENT_CONFLICTS - 1):
        assert cache.receive(sample_reply(policy=bad)).warnings == ()
    cache.apply(bad)  # the same turn: no further conflict
    cache.apply(KVPolicy())  # nor is it as if there had been none
    assert cache.notices() == ()
    (told,) = cache.receive(sample_reply(policy=bad)).warnings
    assert told.code == Code.PARTIAL_DATA.value
    assert "3 of the last 3" in told.message
    assert "doc:sum:Q" not in told.message
    for _ in range(RECENT_POLICIES - FREQUENT_CONFLICTS):
        assert cache.receive(sample_reply(policy=KVPolicy())).warnings == (cache.notices())
    assert cache.receive(sample_reply(policy=KVPolicy())).warnings == ()


# ── keeping ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_cache_is_written_as_json_and_read_again() -> None:
    cache = filled_cache()
    cache.put("one", LONG, entities=("a",), variants=(Variant(lod=Lod.MACRO, text="t", cost_tokens=1),))
    cache.put("blocked", None)
    cache.receive(sample_reply("new", policy=KVPolicy.of(json.loads(MIXED)["kv_policy"])))
    again = KVCache.of(json.loads(json.dumps(cache.to_wire())))
    assert again.to_wire() == cache.to_wire()
    assert again.held() == cache.held()
    assert again.capacity == cache.capacity == 64


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("version",), 2), (("capacity",), 0), (("turn",), -1), (("units",), "no"), (("conflicts", 0), [1]),
        (("units", 0, "key"), ""), (("units", 0, "lod"), "huge"), (("units", 0, "benefit"), 2),
        (("units", 0, "text"), 5), (("units", 0, "variants"), {}), (("units", 0, "more"), 1),
    ],
)  # fmt: skip
def test_a_state_that_was_tampered_with_is_refused(path: tuple[str | int, ...], value: object) -> None:
    cache = filled_cache()
    cache.apply(KVPolicy())
    state = at = json.loads(json.dumps(cache.to_wire()))
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    with pytest.raises(ValidationError):
        KVCache.of(state)


@pytest.mark.parametrize(
    "more", [{"key": ""}, {"cost": -1}, {"benefit": 1.5}, {"benefit": float("nan")}], ids=str
)
def test_a_bad_fragment_is_refused(more: dict[str, object]) -> None:
    cache = KVCache()
    with pytest.raises(ValidationError):
        cache.put(**({"key": "one", "text": "text"} | more))
    assert len(cache) == 0
    with pytest.raises(ValidationError):
        KVCache(capacity=0)


# ── the story ───────────────────────────────────────────────────────────────────────────────────────────────────────

_names = st.sampled_from([f"k{index}" for index in range(8)])
_lists = st.lists(_names, max_size=4).map(tuple)
_policies = st.builds(KVPolicy, pin=_lists, compress=_lists, evict=_lists)


class Story(RuleBasedStateMachine):
    """A cache, and a dict that knows which keys it must hold and which it may."""

    @initialize(capacity=st.integers(1, 6))
    def begin(self, capacity: int) -> None:
        self.cache = KVCache(capacity=capacity)
        self.pinned: set[str] = set()
        self.seen: dict[str, int] = {}

    @rule(key=_names, size=st.integers(0, 400), benefit=st.floats(0, 1))
    def put(self, key: str, size: int, benefit: float) -> None:
        self.cache.put(key, "word " * size, benefit=benefit)
        self.seen[key] = size * 5

    @rule(key=_names)
    def use(self, key: str) -> None:
        assert (self.cache.get(key) is not None) is (key in self.cache)

    @rule(names=st.lists(_names, max_size=8, unique=True), decided=st.none() | _policies)
    def receive(self, names: list[str], decided: KVPolicy | None) -> None:
        before = cache_keys(self.cache) | set(names)
        self.cache.receive(sample_reply(*names, policy=decided))
        self.seen |= {name: len(f"text of {name}") for name in names}
        if decided is not None:
            self.pinned = set(decided.pin) & before

    @rule(decided=_policies)
    def apply(self, decided: KVPolicy) -> None:
        before = cache_keys(self.cache)
        applied = self.cache.apply(decided)
        self.pinned = set(decided.pin) & before
        assert set(applied.pinned) == self.pinned
        assert not set(decided.evict) - set(decided.pin) - set(decided.compress) & cache_keys(self.cache)
        assert (set(decided.compress) - set(applied.evicted)) & before <= cache_keys(self.cache)
        once = self.cache.to_wire()
        self.cache.apply(decided)
        assert self.cache.to_wire() == once

    @rule()
    def keep_and_read(self) -> None:
        self.cache = KVCache.of(json.loads(json.dumps(self.cache.to_wire())), counter=QuarterCounter())

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "cache"):
            return
        assert pinned_keys(self.cache) == self.pinned
        assert len(self.cache) <= max(self.cache.capacity, len(self.pinned))
        assert all(len(one.text or "") <= self.seen[one.key] for one in self.cache.units())
        assert all(one.turns >= 1 for one in self.cache.held())


TestStory = Story.TestCase
TestStory.settings = settings(max_examples=20, stateful_step_count=20, deadline=None)
