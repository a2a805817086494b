"""The caller's cache: fragments of past replies by id, kept, shortened and evicted as `kv_policy` advises.

`acms.contract.kv_policy` creates the advice; this module applies it atomically. Pin wins over compress, and compress
over evict. A key that is not in the cache is ignored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from acms import nouns
from acms.contract.kv_policy import CAPACITY, LARGE, Held, eviction_sort_key, resolve_conflicts
from acms.contract.schema import Code, Fragment, KVPolicy, Lod, Notice, RenderReply, Variant
from acms.contract.wire import (
    one_of,
    parse_integer,
    parse_number,
    parse_object,
    parse_strings,
    parse_text,
    require_field,
)
from acms.errors import ValidationError
from acms.model import Json
from acms.ports import TokenCounter
from acms.recall.planner import cut_middle

FREQUENT, RECENT = 3, 8
"""Conflicts are frequent if at least `FREQUENT` of the last `RECENT` policies had one."""
UNJUDGED, OVERLAP = 0.35, 0.6
"""Benefit of a fragment without a stated one: the published benefit of a fresh text without a citation, and the
addition for full coverage."""

_STATE = ("version", "capacity", "turn", "conflicts", "units")
_UNIT = ("key", "lod", "text", "entities", "cost", "benefit", "used", "pinned", "compressed", "variants")


class Quarters:
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

    def held(self, turn: int) -> Held:
        """Return its key, level, cost, benefit, age and entities as of a turn, without its text."""
        return Held(self.key, self.lod, self.cost, self.benefit, turn - self.used, self.entities)


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
        capacity: int = CAPACITY,
        counter: TokenCounter | None = None,
        shorten: Callable[[str, int], str] | None = None,
    ) -> None:
        self._capacity = parse_integer(capacity, "capacity", least=1, most=1_000_000)
        self._counter = counter or Quarters()
        self._shorten = shorten
        self._units: dict[str, Kept] = {}
        self._turn = 0
        #: The last turns with a policy, and whether it had conflicts.
        self._conflicts: dict[int, bool] = {}

    # ── looking ─────────────────────────────────────────────────────────────────────────────────────────────────────

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

    def held(self) -> tuple[Held, ...]:
        """Return the keys with their costs, benefits and ages as of the next turn; never a text."""
        return tuple(one.held(self._turn + 1) for one in self._units.values())

    def notices(self) -> tuple[Notice, ...]:
        """Return the warnings for the next reply: `PARTIAL_DATA` while conflicts are frequent."""
        often = sum(self._conflicts.values())
        if often < FREQUENT:
            return ()
        said = f"{often} of the last {len(self._conflicts)} cache policies named a key in more than one list"
        return (Notice(code=Code.PARTIAL_DATA.value, message=said),)

    # ── changing ────────────────────────────────────────────────────────────────────────────────────────────────────

    def advance(self) -> None:
        """Advance by one turn without a reply; `receive` advances by itself."""
        self._turn += 1

    def get(self, key: str) -> Kept | None:
        """Return the fragment under a key and count it as used in this turn; None if there is none."""
        found = self._units.get(key)
        if found is not None:
            found = self._units[key] = replace(found, used=self._turn)
        return found

    def put(
        self,
        key: str,
        text: str | None,
        *,
        lod: Lod = Lod.MICRO,
        entities: Sequence[str] = (),
        cost: int | None = None,
        benefit: float = UNJUDGED,
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
        asked = frozenset(one.strip().lower() for one in gaze)
        for one in reply.fragments or ():
            benefit = (benefits or {}).get(one.id, _estimate_benefit(one, asked))
            self._hold(units, turn, one.id, one.text, one.lod, one.entities, one.cost_tokens, benefit, ())
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
        said: str | None,
        lod: Lod,
        entities: Iterable[str],
        cost: int | None,
        benefit: float,
        variants: Iterable[Variant],
    ) -> None:
        before = units.pop(parse_text(key, "key", least=1, most=4096), None)  # the newest is last
        units[key] = Kept(
            key=key,
            lod=lod,
            text=said,
            entities=tuple(entities),
            cost=(0 if said is None else self._counter.count(said))
            if cost is None
            else parse_integer(cost, "cost"),
            benefit=float(parse_number(benefit, "benefit", least=0, most=1)),
            used=turn,
            pinned=before is not None and before.pinned,
            variants=() if said is None else tuple(variants),
        )

    def _apply(self, units: dict[str, Kept], turn: int, policy: KVPolicy) -> tuple[Applied, dict[int, bool]]:
        clear, conflicts = resolve_conflicts(policy)
        named = (clear.pin, clear.compress, clear.evict)
        ignored = tuple(key for keys in named for key in keys if key not in units)
        pin, compress, evict = ([key for key in keys if key in units] for keys in named)
        for key in evict:
            del units[key]
        for key in compress:
            units[key] = self._shrunk(units[key])
        pins = frozenset(pin)
        for key, one in units.items():
            if one.pinned != (key in pins):
                units[key] = replace(one, pinned=not one.pinned)
        pressed = _evict_excess(units, turn, self._capacity)
        recent = {**self._conflicts, turn: bool(conflicts) or self._conflicts.get(turn, False)}
        applied = Applied(
            pinned=tuple(pin),
            compressed=tuple(key for key in compress if key in units),
            evicted=(*evict, *pressed),
            conflicts=conflicts,
            ignored=ignored,
        )
        return applied, dict(list(recent.items())[-RECENT:])

    def _shrunk(self, one: Kept) -> Kept:
        """Return a fragment with a shorter text under the same key, or unchanged if there is no shorter text."""
        if one.compressed or not one.text:
            return one
        shortest = min(one.variants, key=lambda each: (each.cost_tokens, each.lod.rank), default=None)
        counted = max(1, self._counter.count(one.text))
        # The engine may count tokens differently: the cost shrinks in proportion to the text.
        scale = counted / one.cost if one.cost else 1.0
        room = int(min((one.cost or counted) // 2, LARGE - 1) * scale)
        if self._shorten is not None:
            written = self._shorten(one.text, room)
            if written and self._counter.count(written) < counted:
                return self._less(one, written, scale)
        if shortest is not None and shortest.cost_tokens < one.cost:
            return replace(
                one,
                text=shortest.text,
                lod=shortest.lod,
                cost=shortest.cost_tokens,
                compressed=True,
                variants=(),
            )
        written = cut_middle(one.text, room, self._counter)
        return self._less(one, written, scale) if written and len(written) < len(one.text) else one

    def _less(self, one: Kept, written: str, scale: float) -> Kept:
        return replace(
            one,
            text=written,
            lod=Lod.MICRO if one.lod is Lod.ATOMIC else one.lod,
            cost=min(one.cost, math.ceil(self._counter.count(written) / scale)),
            compressed=True,
            variants=(),
        )

    # ── keeping ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def to_wire(self) -> dict[str, Json]:
        """Write the cache as JSON, including its texts."""
        return {
            "version": 1,
            "capacity": self._capacity,
            "turn": self._turn,
            "conflicts": [[turn, had] for turn, had in self._conflicts.items()],
            "units": [nouns.encode_noun(one, wire=False) for one in self._units.values()],
        }

    @classmethod
    def of(
        cls,
        data: object,
        *,
        counter: TokenCounter | None = None,
        shorten: Callable[[str, int], str] | None = None,
    ) -> KVCache:
        """Read a cache that `to_wire` wrote; `ValidationError` names the field."""
        body = parse_object(data, "", _STATE, False)
        if body.get("version") != 1:
            raise ValidationError("must be 1: another release wrote this state", field="version")
        cache = cls(
            capacity=parse_integer(require_field(body, "capacity"), "capacity", least=1),
            counter=counter,
            shorten=shorten,
        )
        cache._turn = parse_integer(require_field(body, "turn"), "turn")
        cache._conflicts = dict(_parse_conflicts(require_field(body, "conflicts")))
        for one in _iter_items(require_field(body, "units"), "units"):
            kept = _parse_fragment(*one)
            cache._units[kept.key] = kept
        return cache


def _estimate_benefit(one: Fragment, asked: frozenset[str]) -> float:
    own = {name.strip().lower() for name in one.entities}
    return UNJUDGED + (OVERLAP * len(own & asked) / len(asked) if asked else 0.0)


def _evict_excess(units: dict[str, Kept], turn: int, capacity: int) -> tuple[str, ...]:
    """Evict the unpinned fragments above capacity, highest evict score first; return their keys."""
    excess = len(units) - capacity
    if excess <= 0:
        return ()
    free = sorted((one.held(turn) for one in units.values() if not one.pinned), key=eviction_sort_key)[
        :excess
    ]
    for unit in free:
        del units[unit.key]
    return tuple(unit.key for unit in free)


def _parse_fragment(data: object, field: str) -> Kept:
    body = parse_object(data, field, _UNIT, False)
    within = f"{field}."
    said = require_field(body, "text", within)
    variants: list[Variant] = []
    for each, name in _iter_items(require_field(body, "variants", within), f"{within}variants"):
        one = parse_object(each, name, ("lod", "text", "cost_tokens"), False)
        variants.append(
            Variant(
                lod=one_of(Lod, require_field(one, "lod", f"{name}."), f"{name}.lod"),
                text=parse_text(require_field(one, "text", f"{name}."), f"{name}.text"),
                cost_tokens=parse_integer(
                    require_field(one, "cost_tokens", f"{name}."), f"{name}.cost_tokens"
                ),
            )
        )
    return Kept(
        key=parse_text(require_field(body, "key", within), f"{within}key", least=1, most=4096),
        lod=one_of(Lod, require_field(body, "lod", within), f"{within}lod"),
        text=None if said is None else parse_text(said, f"{within}text"),
        entities=parse_strings(require_field(body, "entities", within), f"{within}entities"),
        cost=parse_integer(require_field(body, "cost", within), f"{within}cost"),
        benefit=float(
            parse_number(require_field(body, "benefit", within), f"{within}benefit", least=0, most=1)
        ),
        used=parse_integer(require_field(body, "used", within), f"{within}used"),
        pinned=require_field(body, "pinned", within) is True,
        compressed=require_field(body, "compressed", within) is True,
        variants=tuple(variants),
    )


def _parse_conflicts(value: object) -> Iterator[tuple[int, bool]]:
    for one, field in _iter_items(value, "conflicts"):
        if not isinstance(one, Sequence) or isinstance(one, str | bytes) or len(one) != 2:
            raise ValidationError("must be a turn, and whether it had conflicts", field=field)
        yield parse_integer(one[0], field), one[1] is True


def _iter_items(value: object, field: str) -> Iterator[tuple[object, str]]:
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise ValidationError("must be a list", field=field)
    return ((one, f"{field}[{index}]") for index, one in enumerate(value))
