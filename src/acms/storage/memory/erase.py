"""A log in memory, and taking content away from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from acms.errors import SessionNotFoundError, ValidationError
from acms.log.hash_chain import locate
from acms.model import EMPTY, Context, Derived, Entry, Head, Job, Json, State
from acms.storage import append_rules


@dataclass(slots=True)
class Log:
    """One context and the entries it owns."""

    context: Context
    head: Head
    entries: list[Entry] = field(default_factory=list)
    keys: dict[str, int] = field(default_factory=dict)
    derived: dict[tuple[str, int, int], Derived] = field(default_factory=dict)
    #: Both count on the root of the fork tree only.
    epoch: int = 0
    seq: int = 0
    #: Chain value before the first entry it owns.
    start: bytes = b""

    @property
    def first(self) -> int:
        """Version of the first entry it owns."""
        return 1 if self.context.fork is None else self.context.fork + 1


class MemoryErase:
    """Logs in memory whose content can be taken away."""

    _logs: dict[str, Log]
    _jobs: dict[str, Job]
    #: One record per erasure or expiry.
    audit: list[Mapping[str, Json]]

    def _log(self, context: str, *, deleted: bool = False) -> Log:
        found = self._logs.get(context)
        if found is None:
            raise SessionNotFoundError(f"no context has the id {context!r}")
        if found.context.deleted_at is not None and not deleted:
            raise SessionNotFoundError(f"the context {context!r} was deleted", options=("undelete it first",))
        return found

    def _get(self, id: str) -> Entry | None:
        place = locate(id)
        found = None if place is None else self._logs.get(place[0])
        if place is None or found is None or not found.first <= place[1] <= found.head.version:
            return None
        entry = found.entries[place[1] - found.first]
        return entry if entry.id == id else None

    async def blank(
        self, context: str, versions: Sequence[int], *, to: State, audit: Mapping[str, Json]
    ) -> int:
        """Delete the content of entries for ever, in every lineage."""
        if to is State.LIVE:
            raise ValidationError("must be expired or erased", field="to")
        found = self._log(context, deleted=True)
        tree = [one for one in self._logs.values() if one.context.root == found.context.root]
        changed: list[int] = []
        for owner, low, high in append_rules.segments(context, found.context.lineage, 1, found.head.version):
            one = self._logs[owner]
            gone: list[Entry] = []
            for version in sorted({version for version in versions if low <= version <= high}):
                entry = one.entries[version - one.first]
                if entry.state is to or entry.state is State.ERASED:
                    continue
                one.entries[version - one.first] = append_rules.blanked(entry, to)
                gone.append(entry)
            if to is State.ERASED:
                self._forget(one, gone, {one.context.id for one in tree})
            changed.extend(entry.version for entry in gone)
        if changed:
            for one in tree:
                one.head = replace(one.head, rewrites=one.head.rewrites + 1)
            self._logs[found.context.root].epoch += 1
            self.audit.append(
                {"context": context, "action": to.value, "versions": changed, "detail": dict(audit)}
            )
        return len(changed)

    def _forget(self, one: Log, gone: Sequence[Entry], tree: set[str]) -> None:
        """Delete what lies beside erased entries of one owner."""
        for entry in gone:
            one.keys.pop(entry.key or "", None)
        versions = {entry.version for entry in gone}
        one.derived = {place: row for place, row in one.derived.items() if row.version not in versions}
        ids = {entry.id for entry in gone}
        for id, job in self._jobs.items():
            if job.context in tree and not ids.isdisjoint(job.payload.get("ids", ())):
                self._jobs[id] = replace(job, payload=EMPTY)

    async def residue(self, ids: Sequence[str], texts: Sequence[bytes]) -> list[str]:
        """Return what is still held of erased entries beside the log; there are no bytes to be searched for texts."""
        found: list[str] = []
        places = {place for id in ids if (place := locate(id)) is not None and place[0] in self._logs}
        for owner in sorted({owner for owner, _ in places}):
            one = self._logs[owner]
            keys = sum((owner, version) in places for version in one.keys.values())
            rows = sum((owner, row.version) in places for row in one.derived.values())
            found += [
                f"{owner}: {count} {what}"
                for what, count in (("keys", keys), ("derived rows", rows))
                if count
            ]
        return found
