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

from acms.contract.schema import Fragment, KVPolicy, Lod
from acms.errors import ValidationError
from acms.privacy.detect import safe_key

__all__ = [
    "Held",
    "Holds",
    "Resolved",
    "evict_score",
    "eviction_sort_key",
    "find_quoting_keys",
    "parse_cache_keys",
    "policy",
    "resolve_conflicts",
]

CAPACITY = 64
"""Default capacity of a cache, in keys."""
PIN_SHARE, PINS_SHARE = 0.25, 0.5
"""Share of the token budget that one pinned key may cost, and that all of them may cost together."""
LARGE = 200
"""Tokens from which a text is worth compressing."""
MEDIUM, GOOD = 0.2, 0.6
"""Benefit from which something is worth keeping at all, and from which it is worth keeping whole."""
STALE = 0.6
"""Evict score from which a key is evicted even below capacity."""
TURNS, TOKENS = 8, 1000
"""Turns without use, and tokens, that count in full."""
WINDOW = 20
"""A key that contains this many consecutive characters of a text counts as text."""
DIGITS = 9
"""Decimals that count when two scores are compared."""


class Held(NamedTuple):
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
class Holds(Protocol):
    """A cache that can list its keys."""

    @property
    def capacity(self) -> int:
        """Largest number of keys, not counting pinned ones."""
        ...

    def held(self) -> tuple[Held, ...]:
        """Return the keys with their costs, benefits and ages."""
        ...


class Resolved(NamedTuple):
    """A policy without duplicates and conflicts."""

    policy: KVPolicy
    #: Keys that were in more than one list, sorted.
    conflicts: tuple[str, ...]


def parse_cache_keys(cache: Holds | Iterable[Held | str] | None) -> tuple[Held, ...]:
    """Return the entries of a caller's cache, given as a cache, as entries, as plain keys, or None."""
    if cache is None:
        return ()
    found: object = cache.held() if isinstance(cache, Holds) else cache
    if not isinstance(found, Iterable) or isinstance(found, str | bytes | Mapping):
        raise ValidationError("must be a cache or a list of keys", field="cache")
    keys: dict[str, Held] = {}
    for index, one in enumerate(found):
        held = Held(one) if isinstance(one, str) else one
        if not isinstance(held, Held):
            raise ValidationError("must be a key", field=f"cache[{index}]")
        keys.setdefault(held.key, held)
    return tuple(keys.values())


def evict_score(*, turns: int, cost: int, benefit: float) -> float:
    """Return the evict score of a key, in [0, 1]; a higher score is evicted first."""
    return round(
        0.4 * min(1.0, turns / TURNS)
        + 0.3 * min(1.0, cost / TOKENS)
        + 0.3 * (1 - min(1.0, max(0.0, benefit))),
        DIGITS,
    )


def resolve_conflicts(policy: KVPolicy) -> Resolved:
    """Return a policy with each key in one list, once: pin wins over compress, compress over evict."""
    pin = dict.fromkeys(policy.pin)
    compress = dict.fromkeys(key for key in policy.compress if key not in pin)
    evict = dict.fromkeys(key for key in policy.evict if key not in pin and key not in compress)
    all_compress, all_evict = frozenset(policy.compress), frozenset(policy.evict)
    conflicts = {key for key in pin if key in all_compress or key in all_evict}
    conflicts.update(key for key in compress if key in all_evict)
    return Resolved(
        KVPolicy(pin=tuple(pin), compress=tuple(compress), evict=tuple(evict)), tuple(sorted(conflicts))
    )


def policy(
    *,
    selected: Sequence[Fragment],
    tokens_max: int,
    gaze: Sequence[str] = (),
    benefits: Mapping[str, float] | None = None,
    cache: Holds | Iterable[Held | str] | None = None,
    capacity: int | None = None,
    safe: Callable[[str], bool] = safe_key,
) -> KVPolicy:
    """Return the advice for a cache after a reply, by the rule above; every key is in the reply or in the cache.

    `selected` are the fragments of the reply, best first; the first eligible ones are pinned. `benefits` are those of
    this request by id, including candidates that were not selected; a key without one keeps its cached benefit. A
    fragment without a text is blocked. `capacity` defaults to that of the cache, or 64. `safe` returns whether a key
    may be sent: a key that holds a secret, or twenty consecutive characters of a text of the reply, is in no list. Pins
    are in the order of the reply; compress and evict list the largest gain first.
    """
    told = benefits or {}
    now = {one.id for one in selected}
    if capacity is None:
        capacity = cache.capacity if isinstance(cache, Holds) else CAPACITY
    units = _collect_keys(selected, told, parse_cache_keys(cache))
    hidden = {key for key in units if not safe(key)}
    hidden |= find_quoting_keys(
        [key for key in units if key not in hidden], [one.text for one in selected if one.text is not None]
    )
    asked = frozenset(one.strip().lower() for one in gaze)
    pin = _choose_pins(selected, asked, tokens_max, hidden)
    rest = [unit for key, unit in units.items() if key not in pin]
    compress = {unit.key for unit in rest if unit.cost >= LARGE and MEDIUM <= unit.benefit < GOOD} - hidden
    left = sorted((unit for unit in rest if unit.key not in compress), key=eviction_sort_key)
    evict = {
        unit.key
        for unit in left
        if _score_for_eviction(unit) >= STALE
        or (unit.key not in now and any(_is_redundant(unit, units[key]) for key in pin))
    } - hidden
    excess = len(units) - len(evict) - capacity
    for unit in left:
        if excess <= 0:
            break
        if unit.key not in evict and unit.key not in hidden:
            evict.add(unit.key)
            excess -= 1
    return KVPolicy(
        pin=tuple(pin),
        compress=tuple(sorted(compress, key=lambda key: (-units[key].cost, key))),
        evict=tuple(unit.key for unit in left if unit.key in evict),
    )


def eviction_sort_key(unit: Held) -> tuple[float, int, str]:
    """Return the sort key of eviction: highest score first, then oldest use, then id."""
    return -_score_for_eviction(unit), -unit.turns, unit.key


def _score_for_eviction(unit: Held) -> float:
    return evict_score(turns=unit.turns, cost=unit.cost, benefit=unit.benefit)


def _collect_keys(
    selected: Iterable[Fragment], benefits: Mapping[str, float], cache: Iterable[Held]
) -> dict[str, Held]:
    """Return every key of the reply and of the cache; values from the reply take precedence."""
    remembered = {held.key: held for held in cache}
    units = {
        one.id: Held(
            one.id,
            one.lod,
            one.cost_tokens,
            benefits.get(one.id, remembered[one.id].benefit if one.id in remembered else 0.0),
            0,
            one.entities,
        )
        for one in selected
    }
    for key, held in remembered.items():
        if key not in units:
            units[key] = held._replace(benefit=benefits.get(key, held.benefit))
    return units


def _choose_pins(
    selected: Iterable[Fragment], asked: frozenset[str], tokens_max: int, hidden: Collection[str]
) -> dict[str, None]:
    pin: dict[str, None] = {}
    total = 0
    for one in selected:
        active = one.lod is Lod.MACRO or (
            one.lod is Lod.MICRO and bool(_normalize_names(one.entities) & asked)
        )
        if not active or one.text is None or one.id in hidden or one.cost_tokens > PIN_SHARE * tokens_max:
            continue
        total += one.cost_tokens
        if total > PINS_SHARE * tokens_max:
            break
        pin[one.id] = None
    return pin


def _is_redundant(unit: Held, pinned: Held) -> bool:
    """Return whether a pinned key covers this one: all its entities, at least its detail, at least its benefit."""
    own = _normalize_names(unit.entities)
    return (
        bool(own)
        and own <= _normalize_names(pinned.entities)
        and unit.lod.rank <= pinned.lod.rank
        and unit.benefit <= pinned.benefit
    )


def _normalize_names(entities: Iterable[str]) -> frozenset[str]:
    return frozenset(one.strip().lower() for one in entities)


# ── keys are not text ───────────────────────────────────────────────────────────────────────────────────────────────


def find_quoting_keys(keys: Iterable[str], texts: Iterable[str]) -> set[str]:
    """Return the keys that contain `WINDOW` consecutive characters of one of the texts."""
    half = WINDOW // 2
    windows: dict[str, list[str]] = {}
    for key in keys:
        for window in {key[at : at + WINDOW] for at in range(len(key) - WINDOW + 1)}:
            windows.setdefault(window, []).append(key)
    halves = {window[at : at + half] for window in windows for at in range(half + 1)}
    found: set[str] = set()
    for text in texts if windows else ():
        # Every window of a text contains one of these pieces whole.
        for piece in range(0, len(text) - half + 1, half):
            if text[piece : piece + half] in halves:
                for at in range(max(0, piece - half + 1), piece + 1):
                    found.update(windows.pop(text[at : at + WINDOW], ()))
    return found
