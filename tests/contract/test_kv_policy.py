"""Who is advised to keep what: the policy of a reply, check 30 and the rule behind it."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

import acms
from acms import ValidationError
from acms.acs import KVCache
from acms.contract import Fragment, KVPolicy, Lod
from acms.contract.kv_policy import (
    CachedKey,
    evict_score,
    find_quoting_keys,
    parse_cache_keys,
    policy,
    resolve_conflicts,
)

SCHEMAS = Path(acms.__file__).parent / "schemas"


def make_fragment(
    id: str, lod: str = "micro", cost: int = 100, entities: str = "", text: str | None = "some text"
) -> Fragment:
    return Fragment(id=id, lod=Lod(lod), text=text, entities=tuple(entities), cost_tokens=cost)


def make_held(key: str, cost: int = 0, benefit: float = 0.0, turns: int = 0, **more: object) -> CachedKey:
    return CachedKey(key, cost=cost, benefit=benefit, turns=turns)._replace(**more)


# ── pin ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_the_coming_answer_stands_on_is_pinned() -> None:
    found = policy(
        selected=[
            make_fragment("summary", "macro"),
            make_fragment("active", "micro", entities="ab"),
            make_fragment("aside", "micro", entities="x"),
            make_fragment("whole", "atomic", entities="ab"),
        ],
        gaze=["A"],
        tokens_max=1000,
    )
    assert found == KVPolicy(pin=("summary", "active"))


@pytest.mark.parametrize(("cost", "pinned"), [(250, True), (251, False)])
def test_a_large_fragment_is_not_pinned(cost: int, pinned: bool) -> None:
    assert bool(policy(selected=[make_fragment("one", "macro", cost)], tokens_max=1000).pin) is pinned


def test_pins_take_half_of_the_budget_at_most() -> None:
    selected = [
        make_fragment(id, "macro", cost) for id, cost in (("a", 250), ("b", 200), ("c", 51), ("d", 10))
    ]
    assert policy(selected=selected, tokens_max=1000).pin == (
        "a",
        "b",
    )  # it stops there: d is no prerequisite
    assert policy(selected=selected, tokens_max=1002).pin == ("a", "b", "c")


def test_what_is_blocked_is_never_pinned() -> None:
    blocked = make_fragment("one", "macro", 0, "a", text=None)
    assert policy(selected=[blocked], gaze=["a"], tokens_max=1000) == KVPolicy()


def test_a_key_of_the_cache_is_pinned_only_while_it_is_selected() -> None:
    cache = [make_held("one", benefit=1.0, lod=Lod.MACRO)]
    assert policy(selected=[], cache=cache, tokens_max=1000).pin == ()
    assert policy(selected=[make_fragment("one", "macro")], cache=cache, tokens_max=1000).pin == ("one",)


# ── compress, evict ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("cost", "benefit", "compressed"),
    [(200, 0.2, True), (199, 0.4, False), (200, 0.59, True), (200, 0.6, False), (5000, 0.19, False)],
)
def test_what_is_large_and_middling_is_compressed(cost: int, benefit: float, compressed: bool) -> None:
    found = policy(
        selected=[make_fragment("new", "atomic", cost)],
        benefits={"new": benefit},
        cache=[make_held("old", cost, benefit)],
        tokens_max=100_000,
    )
    assert set(found.compress) == ({"new", "old"} if compressed else set())


@pytest.mark.parametrize(
    ("turns", "cost", "benefit", "score"),
    [
        (0, 0, 1.0, 0.0), (8, 1000, 0.0, 1.0), (80, 9000, 0.0, 1.0), (4, 0, 1.0, 0.2), (0, 500, 1.0, 0.15),
        (0, 0, 0.5, 0.15), (2, 300, 0.7, 0.28), (8, 0, 0.0, 0.7),
    ],
)  # fmt: skip
def test_the_evict_score_weighs_use_size_and_benefit(
    turns: int, cost: int, benefit: float, score: float
) -> None:
    assert evict_score(turns=turns, cost=cost, benefit=benefit) == pytest.approx(score, abs=1e-9)


def test_what_is_stale_goes_the_least_missed_first() -> None:
    cache = [
        make_held("kept", 0, 0.9, 8),
        make_held("b", 0, 0.0, 8),
        make_held("a", 0, 0.0, 8),
        make_held("c", 900, 0.0, 20),
    ]
    assert policy(selected=[], cache=cache, tokens_max=1000).evict == ("c", "a", "b")


def test_what_a_pinned_key_says_too_goes() -> None:
    selected = [make_fragment("pinned", "micro", entities="ab")]
    cache = [
        make_held("same", benefit=0.3, entities=("A",)),
        make_held("other", benefit=0.3, entities=("a", "c")),
        make_held("whole", benefit=0.3, entities=("a",), lod=Lod.ATOMIC),
        make_held("better", benefit=0.9, entities=("a",)),
        make_held("unnamed", benefit=0.3),
    ]
    found = policy(selected=selected, benefits={"pinned": 0.5}, gaze=["a"], cache=cache, tokens_max=1000)
    assert found == KVPolicy(pin=("pinned",), evict=("same",))
    again = [
        *selected,
        make_fragment("same", "micro", 600, entities="a"),
    ]  # brought by this reply, too large to pin
    found = policy(selected=again, benefits={"pinned": 0.7, "same": 0.7}, gaze=["a"], tokens_max=1000)
    assert found == KVPolicy(pin=("pinned",))


def test_what_exceeds_the_capacity_goes_the_oldest_of_equals_first() -> None:
    cache = [make_held(f"k{index:02}", benefit=0.5, turns=2) for index in range(64)]
    old = make_held("old", benefit=1.0, turns=5)  # 0.4·5/8 = 0.25: as much as the others
    assert evict_score(turns=5, cost=0, benefit=1.0) == evict_score(turns=2, cost=0, benefit=0.5)
    assert policy(selected=[], cache=[*cache, old], tokens_max=1000).evict == ("old",)
    new = make_fragment("new", "atomic")
    found = policy(selected=[new], benefits={"new": 1.0}, cache=[*cache, old], tokens_max=1000)
    assert found.evict == ("old", "k00")


def test_a_cache_says_its_capacity_itself() -> None:
    cache = KVCache(capacity=3)
    for index in range(3):
        cache.put(f"k{index}", "text", benefit=index / 3)
    new = make_fragment("new", "atomic")
    assert policy(selected=[new], benefits={"new": 1.0}, cache=cache, tokens_max=1000).evict == ("k0",)
    assert policy(selected=[new], benefits={"new": 1.0}, cache=cache, tokens_max=1000, capacity=4).evict == ()


def test_what_this_request_says_of_a_key_counts_more_than_what_the_cache_remembers() -> None:
    cache = [make_held("one", 500, 0.9), make_held("two", 500, 0.9)]
    assert policy(selected=[], cache=cache, benefits={"one": 0.3}, tokens_max=1000).compress == ("one",)


# ── check 30 ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _random_case(seed: int) -> dict[str, object]:
    rng = random.Random(seed)
    said = [" ".join(rng.choices("alpha beta gamma delta orders db".split(), k=30)) for _ in range(20)]
    ids = [rng.choice([f"doc:{index}", f"proj:orders#{index}", text[:25], f"x {text} y"]) for index, text in
           enumerate(said)]  # fmt: skip
    ids[0] = "key:AKIAQ3EGRZXWCNVKB7PT"
    selected = [
        make_fragment(id, rng.choice(list(Lod)), rng.randrange(600), rng.choice(["", "a", "ab", "cd"]), text)
        for id, text in dict(zip(ids, said, strict=True)).items()
    ]
    cache = [make_held(id, rng.randrange(1500), rng.random(), rng.randrange(12)) for id in ids[10:]]
    cache += [
        make_held(f"old:{index}", rng.randrange(1500), rng.random(), rng.randrange(12)) for index in range(80)
    ]
    rng.shuffle(selected)
    return {
        "selected": selected,
        "cache": cache,
        "benefits": {one.id: rng.random() for one in selected},
        "gaze": ["a", "c"],
        "tokens_max": rng.randrange(100, 5000),
    }


@pytest.mark.parametrize("seed", range(20))
def test_check_30_a_policy_names_known_keys_once_and_never_a_text(seed: int) -> None:
    case = _random_case(seed)
    found = policy(**case)
    named = [*found.pin, *found.compress, *found.evict]
    assert len(named) == len(set(named))
    assert found.evict
    keys = {one.id for one in case["selected"]} | {one.key for one in case["cache"]}
    assert set(named) <= keys
    wire = json.dumps(found.to_wire(), ensure_ascii=False)
    for one in case["selected"]:
        assert one.text is not None
        assert not any(one.text[at : at + 20] in wire for at in range(len(one.text) - 19))
    assert "AKIAQ3EGRZXWCNVKB7PT" not in wire
    assert sum(one.cost_tokens for one in case["selected"] if one.id in found.pin) <= case["tokens_max"] / 2
    assert resolve_conflicts(found) == (found, ())


@pytest.mark.parametrize("seed", range(5))
def test_a_policy_does_not_depend_on_the_order_of_the_cache(seed: int) -> None:
    case = _random_case(seed)
    random.Random(seed).shuffle(shuffled := list(case["cache"]))
    assert policy(**{**case, "cache": shuffled}) == policy(**case)


@pytest.mark.parametrize("seed", range(5))
def test_a_policy_leaves_no_more_keys_than_the_capacity(seed: int) -> None:
    case = _random_case(seed)
    found = policy(**case, capacity=60)
    keys = {one.id for one in case["selected"]} | {one.key for one in case["cache"]}
    assert len(keys) > 60
    assert len(keys - set(found.evict)) <= 60


def test_a_key_that_is_not_safe_is_in_no_list() -> None:
    selected = [
        make_fragment("safe", "macro"),
        make_fragment("secret", "macro"),
        make_fragment("secret too", "atomic", 300),
    ]
    cache = [make_held("a secret", 900, 0.0, 20)]
    found = policy(
        selected=selected,
        benefits={"secret too": 0.4},
        cache=cache,
        tokens_max=4000,
        safe=lambda key: "secret" not in key,
    )
    assert found == KVPolicy(pin=("safe",))


@given(
    st.text("ab", min_size=15, max_size=60),
    st.lists(st.text("ab", max_size=40), max_size=4),
)
def test_keys_that_quote_a_text_are_found_as_a_plain_search_finds_them(text: str, keys: list[str]) -> None:
    plain = {key for key in keys if any(text[at : at + 20] in key for at in range(len(text) - 19))}
    assert find_quoting_keys(keys, [text]) == plain


# ── what a caller says of its cache ─────────────────────────────────────────────────────────────────────────────────


def test_a_cache_may_be_named_in_several_ways() -> None:
    cache = KVCache()
    cache.put("one", "text", benefit=0.5)
    assert parse_cache_keys(None) == ()
    assert parse_cache_keys(["one", "one", CachedKey("two", cost=3)]) == (
        CachedKey("one"),
        CachedKey("two", cost=3),
    )
    assert parse_cache_keys(cache) == (CachedKey("one", Lod.MICRO, 1, 0.5, 1),)


@pytest.mark.parametrize("cache", ["one", {"one": 1}, 5, [1]])
def test_what_is_no_cache_is_refused(cache: object) -> None:
    with pytest.raises(ValidationError) as caught:
        parse_cache_keys(cache)
    assert (caught.value.field or "").startswith("cache")


def test_check_05_a_fourth_list_is_refused_and_empty_ones_are_not() -> None:
    schema = json.loads((SCHEMAS / "render_context_reply.v0.json").read_text())["properties"]["kv_policy"]
    good: dict[str, Any] = {"pin": ["a"], "compress": [], "evict": []}
    jsonschema.validate(good, schema)
    assert KVPolicy.of(good).to_wire() == good
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**good, "keep": []}, schema)
    with pytest.raises(ValidationError) as refused:
        KVPolicy.of({**good, "keep": []})
    assert refused.value.field == "kv_policy.keep"
