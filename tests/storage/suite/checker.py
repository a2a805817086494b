"""Histories: what many tasks and processes asked of a store and were answered, checked for what no store may say.

A version that was acknowledged is a place in the order of all appends, so nothing has to be searched for: a history is
in order or it is not, and 100,000 operations are checked in seconds. Recorded are appends, reads, heads and forks, each
with the moment before it was asked and the moment after it was answered.
"""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias
from zlib import crc32

from acms import ACMSError, Entry, Kind, State
from acms.model import Append, Context, ContextDraft, Head, Receipt
from acms.ports import StorageBackend
from acms.storage import WrapperStorage

__all__ = [
    "Anomaly",
    "Asked",
    "Forked",
    "Operation",
    "Read",
    "RecordingStorage",
    "Wrote",
    "dump_history",
    "find_anomalies",
    "load_history",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrote:
    """An append that was acknowledged."""

    start: int
    end: int
    context: str
    first: int
    ids: tuple[str, ...]
    keys: tuple[str | None, ...]
    repeated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """An append without an answer: it may have been stored or not."""

    start: int
    end: int
    context: str
    drafts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """A read, or a look at the head, which sees nothing but where the log ends."""

    start: int
    end: int
    context: str
    #: Versions above this one were asked for.
    after: int = 0
    #: Versions up to this one were asked for; None: all.
    upto: int | None = None
    #: (Version, id, fingerprint of the text; empty when its content is gone).
    seen: tuple[tuple[int, str, str], ...] = ()
    #: Where the log ends, as a head says it.
    head: int | None = None
    #: From which end of the versions asked for it was cut: "start" by `newest`, "end" by `limit`; "" when it was not.
    cut: str = ""
    #: Whether only some kinds of entries were asked for.
    chosen: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Forked:
    """A fork that was made, or found made."""

    start: int
    end: int
    context: str
    parent: str
    fork: int
    #: Whether it was to be made at the head.
    newest: bool


Operation: TypeAlias = Wrote | Asked | Read | Forked

_VERBS: dict[str, type[Operation]] = {"wrote": Wrote, "asked": Asked, "read": Read, "forked": Forked}


@dataclass(frozen=True, slots=True, kw_only=True)
class Anomaly:
    """Something that no store may say.

    `kind` is "lost" (acknowledged and not there), "duplicate" (one version acknowledged twice), "gap" (a version nobody
    wrote), "reordered" (a version below one that was known before the append was asked for), "stale" (a read without
    what was known before it), "early" (read before it was asked to be written), "changed" (two reads of one version
    differ), "key" (one key, two versions) or "fork" (a fork does not read as its parent did).
    """

    kind: str
    context: str
    version: int
    what: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.context} v{self.version}: {self.what}"


# ── recording ───────────────────────────────────────────────────────────────────────────────────────────────────────


class RecordingStorage(WrapperStorage):
    """Records the calls of the store inside and its answers.

    `now` counts up and is the same clock for everybody whose histories are checked together; the default one is that of
    the machine.
    """

    def __init__(self, inner: StorageBackend, *, now: Callable[[], int] = time.monotonic_ns) -> None:
        super().__init__(inner)
        self._now = now
        #: What happened, in the order in which it was answered.
        self.history: list[Operation] = []

    async def append(self, ops: Sequence[Append]) -> list[Receipt | ACMSError]:
        """Append and record the acknowledgement, or that there was none; a refusal stores nothing."""
        start = self._now()
        try:
            results = await self.inner.append(ops)
        except BaseException:
            end = self._now()
            self.history += [
                Asked(start=start, end=end, context=op.context, drafts=len(op.drafts))
                for op in ops
                if op.drafts
            ]
            raise
        end = self._now()
        for op, result in zip(ops, results, strict=True):
            if isinstance(result, Receipt) and op.drafts:
                self.history.append(
                    Wrote(
                        start=start,
                        end=end,
                        context=op.context,
                        first=result.versions[0],
                        ids=result.ids,
                        keys=tuple(draft.key for draft in op.drafts),
                        repeated=result.repeated,
                    )
                )
        return results

    async def read(
        self,
        context: str,
        *,
        at: int | None = None,
        after: int = 0,
        before: int | None = None,
        kinds: Sequence[Kind] | None = None,
        replacing: bool = False,
        newest: int | None = None,
        limit: int | None = None,
        deleted: bool = False,
    ) -> list[Entry]:
        """Read and record the result."""
        start = self._now()
        entries = await self.inner.read(
            context,
            at=at,
            after=after,
            before=before,
            kinds=kinds,
            replacing=replacing,
            newest=newest,
            limit=limit,
            deleted=deleted,
        )
        ends = [end for end in (at, None if before is None else before - 1) if end is not None]
        cut = "start" if newest == len(entries) else "end" if limit == len(entries) else ""
        self.history.append(
            Read(
                start=start,
                end=self._now(),
                context=context,
                after=after,
                upto=min(ends, default=None),
                seen=tuple((entry.version, entry.id, _content_fingerprint(entry)) for entry in entries),
                cut=cut,
                chosen=kinds is not None or replacing,
            )
        )
        return entries

    async def head(self, context: str) -> Head:
        """Look at the head and write down where the log ends."""
        start = self._now()
        found = await self.inner.head(context)
        self.history.append(Read(start=start, end=self._now(), context=context, head=found.version))
        return found

    async def create(self, context: ContextDraft) -> Context:
        """Create a context; write down a fork."""
        start = self._now()
        found = await self.inner.create(context)
        if found.parent is not None:
            assert found.fork is not None
            made = Forked(
                start=start,
                end=self._now(),
                context=found.id,
                parent=found.parent,
                fork=found.fork,
                newest=context.fork is None and context.parent == found.parent,
            )
            self.history.append(made)
        return found


def _content_fingerprint(entry: Entry) -> str:
    return f"{crc32(entry.content.encode('utf-8', 'replace')):08x}" if entry.state is State.LIVE else ""


def dump_history(history: Iterable[Operation]) -> Iterator[str]:
    """Yield a history as lines of JSON, each with its newline: how a process hands its own over."""
    for one in history:
        yield json.dumps({"verb": type(one).__name__.lower(), **asdict(one)}) + "\n"


def load_history(lines: Iterable[str]) -> Iterator[Operation]:
    """Read what `dump` wrote."""
    for line in lines:
        values: dict[str, Any] = json.loads(line)
        make: Any = _VERBS[values.pop("verb")]
        for name in {"ids", "keys", "seen"} & set(values):
            values[name] = tuple(tuple(one) if isinstance(one, list) else one for one in values[name])
        yield make(**values)


# ── checking ────────────────────────────────────────────────────────────────────────────────────────────────────────


def find_anomalies(history: Iterable[Operation]) -> list[Anomaly]:
    """Return every anomaly of a history: nothing when there is an order of its operations that explains all answers.

    The history must hold everything that was written, from the creation of its contexts on; the histories of several
    recorders are joined by adding them up. Keys of erased entries, which may be used again, are not known to it. Takes
    n log n steps for n operations and entries read.
    """
    found = _Check(list(history))
    found.sweep()
    found.count()
    return found.anomalies


class _Check:
    """One history, walked through in the order of time."""

    def __init__(self, history: list[Operation]) -> None:
        self.history = history
        self.anomalies: list[Anomaly] = []
        self.forks = {one.context: (one.parent, one.fork) for one in history if isinstance(one, Forked)}
        #: Context → highest version that somebody knew of at this moment of the walk.
        self.known: dict[str, int] = {child: fork for child, (_, fork) in self.forks.items()}
        #: (Owner, version) → id, as it was acknowledged; and when its append was asked for.
        self.acked: dict[tuple[str, int], str] = {}
        self.asked: dict[tuple[str, int], int] = {}
        #: (Owner, version) → (id, fingerprint), as it was first read.
        self.read: dict[tuple[str, int], tuple[str, str]] = {}
        #: Id → where it lies.
        self.places: dict[str, tuple[str, int]] = {}
        self.keys: dict[tuple[str, str], tuple[int, str]] = {}
        self.unanswered: Counter[str] = Counter()

    def report(self, kind: str, context: str, version: int, what: str) -> None:
        self.anomalies.append(Anomaly(kind=kind, context=context, version=version, what=what))

    def owner(self, context: str, version: int) -> str:
        """Return the context that owns a version: an ancestor for what a fork inherited."""
        while context in self.forks and version <= self.forks[context][1]:
            context = self.forks[context][0]
        return context

    def sweep(self) -> None:
        """Walk through the operations as they began and ended: what ended before another began must be known to it."""
        for one in self.history:
            if isinstance(one, Wrote):
                self.wrote(one)
        # Of the same moment the beginning comes first: what happened at once may have happened in either order.
        moments = [(one.start, 0, index) for index, one in enumerate(self.history)]
        moments += [(one.end, 1, index) for index, one in enumerate(self.history)]
        floors: dict[int, int] = {}
        for _, ended, index in sorted(moments):
            one = self.history[index]
            context = one.parent if isinstance(one, Forked) else one.context
            if not ended:
                floors[index] = self.known.get(context, 0)
                continue
            self.known[context] = max(self.known.get(context, 0), self.ended(one, floors.pop(index)))

    def ended(self, one: Operation, floor: int) -> int:
        """Check an operation against the known versions when it began; return the highest version it knows of."""
        if isinstance(one, Wrote):
            if not one.repeated and one.first <= floor:
                self.report(
                    "reordered", one.context, one.first, f"v{floor} was known before it was asked for"
                )
            return one.first + len(one.ids) - 1
        if isinstance(one, Forked):
            if one.newest and one.fork < floor:
                self.report(
                    "stale", one.context, one.fork, f"a fork of the newest version, which was {floor} before"
                )
            return one.fork
        if isinstance(one, Asked):
            self.unanswered[one.context] += one.drafts
            return 0
        if one.head is not None:
            if one.head < floor:
                self.report("stale", one.context, one.head, f"the head, although v{floor} was known before")
            return one.head
        for version, id, text in one.seen:
            self.saw(one, version, id, text)
        if not one.chosen:
            self.whole(one, floor)
        return one.seen[-1][0] if one.seen else 0

    def wrote(self, one: Wrote) -> None:
        """Take down an acknowledgement."""
        for version, (id, key) in enumerate(zip(one.ids, one.keys, strict=True), one.first):
            place = (one.context, version)
            if key is not None:
                before = self.keys.setdefault((one.context, key), (version, id))
                if before != (version, id):
                    self.report(
                        "key", one.context, version, f"{key!r} was acknowledged as v{before[0]} before"
                    )
            known = self.acked.setdefault(place, id)
            if not one.repeated:
                if place in self.asked or known != id:
                    self.report(
                        "duplicate", one.context, version, f"acknowledged twice, as {known} and as {id}"
                    )
                self.asked[place] = one.start
            self.lies(one.context, version, id, place)

    def lies(self, context: str, version: int, id: str, place: tuple[str, int]) -> None:
        """Take down where an id lies: nowhere else."""
        other = self.places.setdefault(id, place)
        if other != place:
            self.report("fork", context, version, f"{id} is v{other[1]} of {other[0]}, not of {place[0]}")

    def saw(self, one: Read, version: int, id: str, text: str) -> None:
        """Check one entry that was read."""
        place = (self.owner(one.context, version), version)
        acked = self.acked.get(place)
        if acked is not None and acked != id:
            self.report("lost", one.context, version, f"{acked} was acknowledged, {id} is read")
        before, said = self.read.setdefault(place, (id, text))
        if acked is None and before != id:
            self.report("changed", one.context, version, f"was read as {before}, now as {id}")
        elif before == id and said and text and said != text:
            self.report(
                "changed", one.context, version, f"the text of {id} was another one when it was first read"
            )
        if acked == id and self.asked.get(place, one.end) > one.end:
            self.report("early", one.context, version, "was read before it was asked to be written")
        self.lies(one.context, version, id, place)

    def whole(self, one: Read, floor: int) -> None:
        """Check that a read has everything that was asked for and known before it, without gaps."""
        versions = [version for version, _, _ in one.seen]
        last = floor if one.upto is None else min(floor, one.upto)
        first = one.after + 1
        if one.cut == "start" and versions:
            first = versions[0]
        if one.cut == "end":
            last = versions[-1] if versions else 0
        end = max([last, *versions[-1:]])
        if one.upto is not None and end > one.upto:
            self.report(
                "changed", one.context, end, f"read, although only what v{one.upto} showed was asked for"
            )
        if versions == list(range(first, end + 1)):
            return
        missing = sorted(set(range(first, end + 1)) - set(versions))
        if not missing:
            self.report("changed", one.context, first, f"read {versions[:20]} instead of v{first} to v{end}")
            return
        fork = self.forks.get(one.context, ("", 0))[1]
        seen = versions[-1] if versions else 0
        inherited = [version for version in missing if version <= fork]
        inside = [version for version in missing if fork < version < seen]
        above = [version for version in missing if version > max(fork, seen)]
        if inherited:
            self.report("fork", one.context, inherited[0], f"inherited by a fork at v{fork}, and not read")
        if inside:
            self.report("lost", one.context, inside[0], f"not among what was read up to v{seen}")
        if above:
            self.report("stale", one.context, above[0], f"not read, although v{floor} was known before")

    def count(self) -> None:
        """Check that every version has a writer."""
        highest: defaultdict[str, int] = defaultdict(int)
        for context, version in [*self.acked, *self.read]:
            highest[context] = max(highest[context], version)
        for context, last in highest.items():
            first = self.forks.get(context, ("", 0))[1] + 1
            nobody = [version for version in range(first, last + 1) if (context, version) not in self.acked]
            if len(nobody) > self.unanswered[context]:
                self.report("gap", context, nobody[0], f"{len(nobody)} versions that nobody wrote")
