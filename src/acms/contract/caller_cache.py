"""The caller's cache: fragments of past replies by id, kept, shortened and evicted as `kv_policy` advises.

`acms.contract.kv_policy` creates the advice; this module applies it atomically. Pin wins over compress, and compress
over evict. A key that is not in the cache is ignored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from acms import nouns
from acms.contract.benefit import CITATION, OVERLAP, RECENCY
from acms.contract.kv_policy import (
    DEFAULT_CAPACITY,
    LARGE_TOKENS,
    CachedKey,
    eviction_sort_key,
    resolve_conflicts,
)
from acms.contract.schema import Code, Fragment, KVPolicy, Lod, Notice, RenderReply, Variant
from acms.contract.wire import Fields, parse_integer, parse_number, parse_text
from acms.errors import ValidationError
from acms.model import Json
from acms.ports import TokenCounter
from acms.recall.shortening import cut_middle

FREQUENT_CONFLICTS, RECENT_POLICIES = 3, 8
"""Conflicts are frequent if at least `FREQUENT_CONFLICTS` of the last `RECENT_POLICIES` had one."""
DEFAULT_BENEFIT = RECENCY + CITATION / 2
"""Benefit of a fragment without a stated one: the published benefit of a fresh text without a citation."""

_STATE = ("version", "capacity", "turn", "conflicts", "units")
_UNIT = ("key", "lod", "text", "entities", "cost", "benefit", "used", "pinned", "compressed", "variants")


class QuarterCounter:
    """Counts one token per four characters, rounded up: the contract's estimate without a tokenizer."""

    name = "quarters"

    def count(self, text: str) -> int:
        """Return the estimate."""
        return math.ceil(len(text) / 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A fragment in the cache."""

    key: str
    lod: Lod
    #: None if it is blocked.
    text: str | None
    entities: tuple[str, ...] = ()
    cost: int = 0
    #: In [0, 1].
    benefit: float = 0.0
    #: The last turn that used it.
    used: int = 0
    pinned: bool = False
    #: True once it was shortened; it is not shortened again until the fragment returns.
    compressed: bool = False
    #: Its other renditions; none once it was shortened.
    variants: tuple[Variant, ...] = ()

    def held(self, turn: int) -> CachedKey:
        """Return its key, level, cost, benefit, age and entities as of a turn, without its text."""
        return CachedKey(self.key, self.lod, self.cost, self.benefit, turn - self.used, self.entities)


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """The effect of a policy on a cache: keys by outcome."""

    #: Kept until the next reply that has a policy.
    pinned: tuple[str, ...] = ()
    compressed: tuple[str, ...] = ()
    #: Evicted by the policy or because the cache was over capacity.
    evicted: tuple[str, ...] = ()
    #: Listed more than once; the strongest action was applied.
    conflicts: tuple[str, ...] = ()
    #: Not in the cache.
    ignored: tuple[str, ...] = ()
    #: `PARTIAL_DATA` if conflicts are frequent.
    warnings: tuple[Notice, ...] = ()


class KVCache:
    """A cache of up to `capacity` fragments by id; pinned fragments stay even above that capacity.

    Above capacity the fragment with the highest evict score is evicted, then the least recently used. To compress a
    text, `shorten(text, tokens)` returns one of at most that many tokens; without it the shortest variant is used, or
    the text is cut. `counter` counts tokens, by default one per four characters. A change that raises has no effect.
    """

    def __init__(
        self,
        *,
        capacity: int = DEFAULT_CAPACITY,
        counter: TokenCounter | None = None,
        shorten: Callable[[str, int], str] | None = None,
    ) -> None:
        self._capacity = parse_integer(capacity, "capacity", minimum=1, maximum=1_000_000)
        self._counter = counter or QuarterCounter()
        self._shorten = shorten
        self._units: dict[str, Kept] = {}
        self._turn = 0
        #: The last turns with a policy, and whether it had conflicts.
        self._conflicts: dict[int, bool] = {}

    # ── reads ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def __len__(self) -> int:
        return len(self._units)

    def __contains__(self, key: object) -> bool:
        return key in self._units

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._units))

    @property
    def capacity(self) -> int:
        """Largest number of keys, unless more are pinned."""
        return self._capacity

    def units(self) -> tuple[Kept, ...]:
        """Return the cached fragments, most recently added last."""
        return tuple(self._units.values())

    def peek(self, key: str) -> Kept | None:
        """Return the fragment under a key without counting it as used, or None if there is none."""
        return self._units.get(key)

    def held(self) -> tuple[CachedKey, ...]:
        """Return the keys with their costs, benefits and ages as of the next turn; never a text."""
        return tuple(unit.held(self._turn + 1) for unit in self._units.values())

    def notices(self) -> tuple[Notice, ...]:
        """Return the warnings for the next reply: `PARTIAL_DATA` while conflicts are frequent."""
        conflicts = sum(self._conflicts.values())
        if conflicts < FREQUENT_CONFLICTS:
            return ()
        message = (
            f"{conflicts} of the last {len(self._conflicts)} cache policies named a key in more than one list"
        )
        return (Notice(code=Code.PARTIAL_DATA.value, message=message),)

    # ── changes ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def advance(self) -> None:
        """Advance by one turn without a reply; `receive` advances by itself."""
        self._turn += 1

    def get(self, key: str) -> Kept | None:
        """Return the fragment under a key and count it as used in this turn; None if there is none."""
        unit = self._units.get(key)
        if unit is not None:
            unit = self._units[key] = replace(unit, used=self._turn)
        return unit

    def put(
        self,
        key: str,
        text: str | None,
        *,
        lod: Lod = Lod.MICRO,
        entities: Sequence[str] = (),
        cost: int | None = None,
        benefit: float = DEFAULT_BENEFIT,
        variants: Sequence[Variant] = (),
    ) -> None:
        """Store a fragment, replacing a shortened version of it; a pin on its key stays.

        Without a `cost` its tokens are counted. Without a text it is blocked, and the cached text is removed.
        """
        units = dict(self._units)
        self._hold(units, self._turn, key, text, lod, entities, cost, benefit, variants)
        _evict_excess(units, self._turn, self._capacity)
        self._units = units

    def apply(self, policy: KVPolicy | Mapping[str, object]) -> Applied:
        """Apply a policy; applying it again has no effect. Pins of earlier policies that it does not repeat lapse."""
        units = dict(self._units)
        applied, conflicts = self._apply(units, self._turn, KVPolicy.of(policy))
        self._units, self._conflicts = units, conflicts
        return replace(applied, warnings=self.notices())

    def receive(
        self,
        reply: RenderReply,
        *,
        benefits: Mapping[str, float] | None = None,
        gaze: Sequence[str] = (),
    ) -> Applied:
        """Advance by one turn: store the fragments of a reply, then apply its policy, if it has one.

        The benefit of a fragment is the stated one, otherwise an estimate from the share of `gaze` that it covers.
        Excess fragments are evicted last, so a key that the policy pins is not evicted before.
        """
        units, turn = dict(self._units), self._turn + 1
        requested = frozenset(name.strip().lower() for name in gaze)
        stated_benefits = benefits or {}
        for fragment in reply.fragments or ():
            benefit = stated_benefits.get(fragment.id, _estimate_benefit(fragment, requested))
            self._hold(
                units,
                turn,
                fragment.id,
                fragment.text,
                fragment.lod,
                fragment.entities,
                fragment.cost_tokens,
                benefit,
                (),
            )
        if reply.kv_policy is None:
            applied, conflicts = Applied(evicted=_evict_excess(units, turn, self._capacity)), self._conflicts
        else:
            applied, conflicts = self._apply(units, turn, reply.kv_policy)
        self._units, self._turn, self._conflicts = units, turn, conflicts
        return replace(applied, warnings=self.notices())

    def _hold(
        self,
        units: dict[str, Kept],
        turn: int,
        key: str,
        text: str | None,
        lod: Lod,
        entities: Iterable[str],
        cost: int | None,
        benefit: float,
        variants: Iterable[Variant],
    ) -> None:
        """Put a fragment into `units` as the newest one, used in a turn; a pin on its key stays."""
        previous = units.pop(parse_text(key, "key", min_chars=1, max_chars=4096), None)  # the newest is last
        if cost is None:
            cost = 0 if text is None else self._counter.count(text)
        units[key] = Kept(
            key=key,
            lod=lod,
            text=text,
            entities=tuple(entities),
            cost=parse_integer(cost, "cost"),
            benefit=float(parse_number(benefit, "benefit", minimum=0, maximum=1)),
            used=turn,
            pinned=previous is not None and previous.pinned,
            variants=() if text is None else tuple(variants),
        )

    def _apply(self, units: dict[str, Kept], turn: int, policy: KVPolicy) -> tuple[Applied, dict[int, bool]]:
        """Apply a policy to `units`; return its effect, and which of the recent turns had conflicts."""
        resolved, conflicts = resolve_conflicts(policy)
        ignored = [key for key in (*resolved.pin, *resolved.compress, *resolved.evict) if key not in units]
        pinned = tuple(key for key in resolved.pin if key in units)
        compressed = tuple(key for key in resolved.compress if key in units)
        evicted = tuple(key for key in resolved.evict if key in units)
        for key in evicted:
            del units[key]
        for key in compressed:
            units[key] = self._compress(units[key])
        for key, unit in units.items():
            is_pinned = key in pinned
            if unit.pinned != is_pinned:
                units[key] = replace(unit, pinned=is_pinned)
        excess = _evict_excess(units, turn, self._capacity)
        history = dict(self._conflicts)
        history[turn] = bool(conflicts) or history.get(turn, False)
        applied = Applied(
            pinned=pinned,
            compressed=tuple(key for key in compressed if key in units),
            evicted=evicted + excess,
            conflicts=conflicts,
            ignored=tuple(ignored),
        )
        return applied, dict(list(history.items())[-RECENT_POLICIES:])

    def _compress(self, unit: Kept) -> Kept:
        """Return a fragment with a shorter text under the same key, or unchanged if there is no shorter text."""
        if unit.compressed or not unit.text:
            return unit
        own_tokens = max(1, self._counter.count(unit.text))  # as this cache counts
        # The engine may count tokens differently: `scale` converts its tokens into those of this cache.
        scale = own_tokens / unit.cost if unit.cost else 1.0
        # At most half, and less than what counts as large: otherwise the next policy would compress it again.
        budget = int(min((unit.cost or own_tokens) // 2, LARGE_TOKENS - 1) * scale)
        text = "" if self._shorten is None else self._shorten(unit.text, budget)
        if text and self._counter.count(text) < own_tokens:
            return self._with_shorter_text(unit, text, scale)
        if unit.variants:
            shortest = min(unit.variants, key=lambda variant: (variant.cost_tokens, variant.lod.rank))
            if shortest.cost_tokens < unit.cost:
                shorter = replace(unit, text=shortest.text, lod=shortest.lod, cost=shortest.cost_tokens)
                return replace(shorter, compressed=True, variants=())
        text = cut_middle(unit.text, budget, self._counter)
        if not text or len(text) >= len(unit.text):
            return unit
        return self._with_shorter_text(unit, text, scale)

    def _with_shorter_text(self, unit: Kept, text: str, scale: float) -> Kept:
        lod = Lod.MICRO if unit.lod is Lod.ATOMIC else unit.lod
        cost = min(unit.cost, math.ceil(self._counter.count(text) / scale))
        return replace(unit, text=text, lod=lod, cost=cost, compressed=True, variants=())

    # ── serialization ─────────────────────────────────────────────────────────────────────────────────────────────────

    def to_wire(self) -> dict[str, Json]:
        """Write the cache as JSON, including its texts."""
        return {
            "version": 1,
            "capacity": self._capacity,
            "turn": self._turn,
            "conflicts": [list(conflict) for conflict in self._conflicts.items()],
            "units": [nouns.encode_noun(unit, wire=False) for unit in self._units.values()],
        }

    @classmethod
    def of(
        cls,
        data: object,
        *,
        counter: TokenCounter | None = None,
        shorten: Callable[[str, int], str] | None = None,
    ) -> KVCache:
        """Parse a cache that `to_wire` serialized; raise `ValidationError` with the name of an invalid field."""
        body = Fields(data, "", _STATE)
        if body.value("version", None) != 1:
            raise ValidationError("must be 1: another release wrote this state", field="version")
        cache = cls(capacity=body.integer("capacity", minimum=1), counter=counter, shorten=shorten)
        cache._turn = body.integer("turn")
        for item, path in body.objects("conflicts"):
            if not isinstance(item, Sequence) or isinstance(item, str | bytes) or len(item) != 2:
                raise ValidationError("must be a turn, and whether it had conflicts", field=path)
            turn, had_conflicts = item
            cache._conflicts[parse_integer(turn, path)] = had_conflicts is True
        for item, path in body.objects("units"):
            fragment = _parse_fragment(item, path)
            cache._units[fragment.key] = fragment
        return cache


def _estimate_benefit(fragment: Fragment, requested_names: frozenset[str]) -> float:
    if not requested_names:
        return DEFAULT_BENEFIT
    own_names = {name.strip().lower() for name in fragment.entities}
    return DEFAULT_BENEFIT + OVERLAP * len(own_names & requested_names) / len(requested_names)


def _evict_excess(units: dict[str, Kept], turn: int, capacity: int) -> tuple[str, ...]:
    """Evict the unpinned fragments above capacity, highest evict score first; return their keys."""
    excess = max(0, len(units) - capacity)
    unpinned = [unit.held(turn) for unit in units.values() if not unit.pinned]
    unpinned.sort(key=eviction_sort_key)
    keys = tuple(cached_key.key for cached_key in unpinned[:excess])
    for key in keys:
        del units[key]
    return keys


def _parse_fragment(data: object, path: str) -> Kept:
    """Parse a fragment of a stored cache; raise `ValidationError` with the name of an invalid field."""
    body = Fields(data, path, _UNIT)
    text = body.value("text")
    variants: list[Variant] = []
    for item, item_path in body.objects("variants"):
        variant = Fields(item, item_path, ("lod", "text", "cost_tokens"))
        lod = variant.choice(Lod, "lod")
        cost = variant.integer("cost_tokens")
        variants.append(Variant(lod=lod, text=variant.text("text"), cost_tokens=cost))
    return Kept(
        key=body.text("key", min_chars=1, max_chars=4096),
        lod=body.choice(Lod, "lod"),
        text=None if text is None else body.text("text"),
        entities=body.strings("entities"),
        cost=body.integer("cost"),
        benefit=float(body.number("benefit", minimum=0, maximum=1)),
        used=body.integer("used"),
        pinned=body.value("pinned") is True,
        compressed=body.value("compressed") is True,
        variants=tuple(variants),
    )
