"""Retention advice: which keys a caller should keep, compress or evict after a reply (`kv_policy`).

The rule reads only ids, costs and benefits, so the same reply always has the same policy:

    pin       selected now; macro, or micro that covers something asked for; costs a quarter of the budget at most; not
              blocked. In the order of the reply, until half of the budget is pinned.
    compress  not pinned; costs 200 tokens or more; 0.2 ≤ benefit < 0.6
    evict     neither; score ≥ 0.6, or not selected now and redundant with a pinned key, or in excess of the capacity
    score     = 0.4 · min(1, turns / 8) + 0.3 · min(1, tokens / 1000) + 0.3 · (1 - benefit)

`acms.contract.caller_cache` is the other side, which applies one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from acms.contract.benefit import SCORE_DECIMALS
from acms.contract.schema import Fragment, KVPolicy, Lod
from acms.errors import ValidationError
from acms.privacy.detect import safe_key

DEFAULT_CAPACITY = 64
"""Default capacity of a cache, in keys (published)."""
PIN_SHARE, PINS_SHARE = 0.25, 0.5
"""Share of the token budget that one pinned key may cost, and that all of them may cost together."""
LARGE_TOKENS = 200
"""Tokens from which a text is worth compressing."""
MEDIUM_BENEFIT, GOOD_BENEFIT = 0.2, 0.6
"""Benefit from which something is worth keeping at all, and from which it is worth keeping whole."""
EVICT_SCORE = 0.6
"""Evict score from which a key is evicted even below capacity."""
QUOTE_CHARS = 20
"""Consecutive characters of a text that reveal it."""
_HALF = QUOTE_CHARS // 2


class CachedKey(NamedTuple):
    """A key of a cache, with its cost, benefit and age."""

    key: str
    lod: Lod = Lod.MICRO
    #: Tokens of the cached text.
    cost: int = 0
    #: As of the last reply that contained it, in [0, 1].
    benefit: float = 0.0
    #: Turns since its last use: 1 if the last reply used it.
    turns: int = 0
    entities: tuple[str, ...] = ()


@runtime_checkable
class ListsKeys(Protocol):
    """A cache that can list its keys."""

    @property
    def capacity(self) -> int:
        """Largest number of keys, not counting pinned ones."""
        ...

    def held(self) -> tuple[CachedKey, ...]:
        """Return the keys with their costs, benefits and ages."""
        ...


class NormalizedPolicy(NamedTuple):
    """A policy without duplicates and conflicts."""

    policy: KVPolicy
    #: Keys that were in more than one list, sorted.
    conflicts: tuple[str, ...]


def parse_cache_keys(cache: ListsKeys | Iterable[CachedKey | str] | None) -> tuple[CachedKey, ...]:
    """Return the entries of a caller's cache, which is given as a cache, as entries, as plain keys, or as None."""
    if cache is None:
        return ()
    entries: object = cache.held() if isinstance(cache, ListsKeys) else cache
    if not isinstance(entries, Iterable) or isinstance(entries, str | bytes | Mapping):
        raise ValidationError("must be a cache or a list of keys", field="cache")
    by_key: dict[str, CachedKey] = {}
    for index, entry in enumerate(entries):
        cached_key = CachedKey(entry) if isinstance(entry, str) else entry
        if not isinstance(cached_key, CachedKey):
            raise ValidationError("must be a key", field=f"cache[{index}]")
        by_key.setdefault(cached_key.key, cached_key)
    return tuple(by_key.values())


def evict_score(*, turns: int, cost: int, benefit: float) -> float:
    """Return the evict score of a key, in [0, 1]; a higher score is evicted first."""
    age = min(1.0, turns / 8)
    size = min(1.0, cost / 1000)
    uselessness = 1 - min(1.0, max(0.0, benefit))
    return round(0.4 * age + 0.3 * size + 0.3 * uselessness, SCORE_DECIMALS)


def resolve_conflicts(policy: KVPolicy) -> NormalizedPolicy:
    """Return a policy with each key in one list only: pin takes precedence over compress, and compress over evict."""
    action_of_key: dict[str, str] = {}
    conflicts: set[str] = set()
    for action in ("pin", "compress", "evict"):
        for key in getattr(policy, action):
            chosen_action = action_of_key.setdefault(key, action)
            if chosen_action != action:
                conflicts.add(key)
    keys: dict[str, list[str]] = {"pin": [], "compress": [], "evict": []}
    for key, action in action_of_key.items():
        keys[action].append(key)
    resolved = KVPolicy(pin=tuple(keys["pin"]), compress=tuple(keys["compress"]), evict=tuple(keys["evict"]))
    return NormalizedPolicy(resolved, tuple(sorted(conflicts)))


def policy(
    *,
    selected: Sequence[Fragment],
    tokens_max: int,
    gaze: Sequence[str] = (),
    benefits: Mapping[str, float] | None = None,
    cache: ListsKeys | Iterable[CachedKey | str] | None = None,
    capacity: int | None = None,
    safe: Callable[[str], bool] = safe_key,
) -> KVPolicy:
    """Return the advice for a cache after a reply: which keys to pin, to compress and to evict.

    Every key of the advice is in the reply or in the cache. `selected` are the fragments of the reply, best first; the
    first eligible ones are pinned. `gaze` are the entities that the request asked for. `benefits` are those of this
    request by id, including candidates that were not selected; a key without one keeps its cached benefit. A fragment
    without a text is blocked. `capacity` defaults to that of the cache, or 64. `safe` returns whether a key may be
    sent: a key that holds a secret, or twenty consecutive characters of a text of the reply, is in no list.

    Pins are in the order of the reply, keys to compress by falling cost, keys to evict by falling evict score.
    """
    if capacity is None:
        capacity = cache.capacity if isinstance(cache, ListsKeys) else DEFAULT_CAPACITY
    units = _collect_keys(selected, benefits or {}, parse_cache_keys(cache))
    safe_keys = [key for key in units if safe(key)]
    texts = [fragment.text for fragment in selected if fragment.text is not None]
    allowed_keys = set(safe_keys) - find_quoting_keys(safe_keys, texts)
    pins = _choose_pins(selected, _normalize_names(gaze), tokens_max, allowed_keys)
    unpinned = [unit for key, unit in units.items() if key not in pins and key in allowed_keys]
    compress = [unit for unit in unpinned if _is_compressible(unit)]
    compress.sort(key=lambda unit: (-unit.cost, unit.key))
    evictable = [unit for unit in unpinned if not _is_compressible(unit)]
    pinned = [units[key] for key in pins]
    keys_of_reply = {fragment.id for fragment in selected}
    evict = _choose_evictions(evictable, keys_of_reply, pinned, to_remain=capacity, total=len(units))
    return KVPolicy(
        pin=tuple(pins),
        compress=tuple(unit.key for unit in compress),
        evict=tuple(evict),
    )


def _choose_evictions(
    evictable: Iterable[CachedKey],
    keys_of_reply: Collection[str],
    pinned: Sequence[CachedKey],
    *,
    to_remain: int,
    total: int,
) -> list[str]:
    """Return the keys to evict: all obsolete ones, then by falling evict score until only `to_remain` keys are left.

    `total` counts every key of the reply and of the cache, including pinned ones and those in no list.
    """
    by_score = sorted(evictable, key=eviction_sort_key)
    evict = {unit.key for unit in by_score if _is_obsolete(unit, keys_of_reply, pinned)}
    excess = max(0, total - len(evict) - to_remain)
    other_keys = [unit.key for unit in by_score if unit.key not in evict]
    evict.update(other_keys[:excess])
    return [unit.key for unit in by_score if unit.key in evict]


def _is_compressible(unit: CachedKey) -> bool:
    return unit.cost >= LARGE_TOKENS and MEDIUM_BENEFIT <= unit.benefit < GOOD_BENEFIT


def _is_obsolete(unit: CachedKey, keys_of_reply: Collection[str], pinned: Iterable[CachedKey]) -> bool:
    """Return whether a key is stale, or not in the reply and redundant with a pinned one."""
    if _score_for_eviction(unit) >= EVICT_SCORE:
        return True
    return unit.key not in keys_of_reply and any(_is_redundant(unit, pin) for pin in pinned)


def eviction_sort_key(unit: CachedKey) -> tuple[float, int, str]:
    """Return the sort key of eviction: highest score first, then oldest use, then id."""
    return -_score_for_eviction(unit), -unit.turns, unit.key


def _score_for_eviction(unit: CachedKey) -> float:
    return evict_score(turns=unit.turns, cost=unit.cost, benefit=unit.benefit)


def _collect_keys(
    selected: Iterable[Fragment], benefits: Mapping[str, float], cache: Iterable[CachedKey]
) -> dict[str, CachedKey]:
    """Return all keys of the reply and of the cache; values from the reply take precedence."""
    cached_keys = {cached_key.key: cached_key for cached_key in cache}
    units: dict[str, CachedKey] = {}
    for fragment in selected:
        cached_key = cached_keys.get(fragment.id)
        # A key that is no longer rated keeps the benefit that it had in the cache.
        benefit = benefits.get(fragment.id, cached_key.benefit if cached_key else 0.0)
        units[fragment.id] = CachedKey(
            fragment.id, fragment.lod, fragment.cost_tokens, benefit, 0, fragment.entities
        )
    for key, cached_key in cached_keys.items():
        if key not in units:
            units[key] = cached_key._replace(benefit=benefits.get(key, cached_key.benefit))
    return units


def _choose_pins(
    selected: Iterable[Fragment],
    requested_names: frozenset[str],
    tokens_max: int,
    allowed_keys: Collection[str],
) -> list[str]:
    """Return the keys to pin: overviews (macro), and micro fragments that cover a requested entity.

    A single pin may cost `PIN_SHARE` of the tokens, and all pins together `PINS_SHARE`.
    """
    pins: list[str] = []
    total = 0
    for fragment in selected:
        covers = not requested_names.isdisjoint(_normalize_names(fragment.entities))
        is_active = fragment.lod is Lod.MACRO or (fragment.lod is Lod.MICRO and covers)
        if not is_active or fragment.text is None or fragment.id not in allowed_keys:
            continue
        if fragment.cost_tokens > PIN_SHARE * tokens_max:
            continue
        total += fragment.cost_tokens
        if total > PINS_SHARE * tokens_max:
            break
        pins.append(fragment.id)
    return pins


def _is_redundant(unit: CachedKey, pinned: CachedKey) -> bool:
    """Return whether a pinned key covers this one: all its entities, at least its detail, at least its benefit."""
    own_names = _normalize_names(unit.entities)
    if not own_names or not own_names <= _normalize_names(pinned.entities):
        return False
    return unit.lod.rank <= pinned.lod.rank and unit.benefit <= pinned.benefit


def _normalize_names(entities: Iterable[str]) -> frozenset[str]:
    return frozenset(name.strip().lower() for name in entities)


# ── keys that quote text ────────────────────────────────────────────────────────────────────────────────────────────


def find_quoting_keys(keys: Iterable[str], texts: Iterable[str]) -> set[str]:
    """Return the keys that contain `QUOTE_CHARS` consecutive characters of one of the texts."""
    keys_by_window: dict[str, set[str]] = {}
    halves: set[str] = set()
    for key in keys:
        for start in range(len(key) - QUOTE_CHARS + 1):
            window = key[start : start + QUOTE_CHARS]
            keys_by_window.setdefault(window, set()).add(key)
            halves.update(window[offset : offset + _HALF] for offset in range(_HALF + 1))
    quoting: set[str] = set()
    if not keys_by_window:
        return quoting
    for text in texts:
        # The text is divided into pieces of half a window. Every window of it contains a whole piece, so only the
        # windows around a piece that occurs in a key are looked up.
        for piece_start in range(0, len(text) - _HALF + 1, _HALF):
            if text[piece_start : piece_start + _HALF] not in halves:
                continue
            for start in range(max(0, piece_start - _HALF + 1), piece_start + 1):
                window = text[start : start + QUOTE_CHARS]
                quoting.update(keys_by_window.pop(window, ()))
    return quoting
