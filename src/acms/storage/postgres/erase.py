"""Erase content from a PostgreSQL database: from its rows at once, from its files when the tables are rewritten."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from acms.errors import ValidationError
from acms.log.encoding import dump, entry_id, parse_entry_id, to_microseconds
from acms.model import Json, Kind, State
from acms.storage import append_rules
from acms.storage.postgres.database import Database
from acms.storage.postgres.pool import Connection
from acms.storage.traces import find_repeating_values


class Eraser:
    """Deletes the content of entries permanently."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def blank(
        self, context: str, versions: Sequence[int], *, to: State, audit: Mapping[str, Json]
    ) -> int:
        """Delete the content of entries permanently, in every lineage."""
        if to is State.LIVE:
            raise ValidationError("must be expired or erased", field="to")
        wanted = sorted(set(versions))
        detail = dump(dict(audit)) if audit else None
        tried: set[int] = (
            set()
        )  # blanked by an attempt whose commit was not confirmed: the next one finds it done

        async def work(connection: Connection) -> int:
            await self._db.rows(connection, "lock_root", {"context": context})
            log = await self._db.log_state(context, deleted=True, within=connection)
            changed: list[int] = []
            tree: list[str] = []
            for owner, low, high in append_rules.split_segments(context, log.lineage, 1, log.head.version):
                here = [version for version in wanted if low <= version <= high]
                if not here:
                    continue
                if not tree:  # before the entries: the lock order
                    rows = await self._db.rows(connection, "lock_tree", {"root": log.root})
                    tree = [id for (id,) in rows]
                values = {"context": owner, "versions": here, "state": to.value}
                blanked = await self._db.rows(connection, "blank_entry", values)
                gone = [version for version, _, _ in blanked]
                changed += gone
                if gone and to is State.ERASED:
                    await self._db.rows(connection, "forget_derived", {"context": owner, "versions": gone})
                    ids = [entry_id(Kind(kind), owner, version, nonce) for version, kind, nonce in blanked]
                    await self._db.rows(connection, "forget_payload", {"contexts": tree, "ids": ids})
            if changed:
                await self._db.rows(connection, "count_rewrite", {"contexts": tree})
                await self._db.rows(connection, "raise_epoch", {"root": log.root})
                if to is State.ERASED:
                    await self._db.rows(connection, "forget_records", {"contexts": tree})
                values = {"context": context, "action": to.value, "detail": detail}
                values["versions"] = dump(sorted(changed))
                await self._db.rows(connection, "insert_audit", values)
            tried.update(changed)
            return len(tried)

        return (await self._db.within(work))[0]

    async def residue(self, ids: Sequence[str], texts: Sequence[bytes]) -> list[str]:
        """Return the remains of erased entries outside the log: keys, derived rows, and values that repeat a text."""
        owned: dict[str, list[int]] = {}
        for place in {place for id in ids if (place := parse_entry_id(id)) is not None}:
            owned.setdefault(place[0], []).append(place[1])
        found: list[str] = []
        for owner, versions in sorted(owned.items()):
            values = {"context": owner, "versions": versions}
            keys, rows = await self._db.ask(("left_keys", values), ("left_derived", values))
            for what, count in (("keys", keys[0][0]), ("derived rows", rows[0][0])):
                if count:
                    found.append(f"{owner}: {count} {what}")
        values = await self._db.one("left_values", {}) if texts else ()
        return [*found, *find_repeating_values(((key, value) for key, value in values), texts)]

    async def find_messages(self, times: Sequence[datetime], keys: Sequence[str]) -> list[str]:
        """Return the ids of the messages with content that have one of these times or keys."""
        rows = await self._db.one(
            "find_messages", {"times": [to_microseconds(time) for time in times], "keys": list(keys)}
        )
        return [entry_id(Kind.MESSAGE, context, version, nonce) for context, version, nonce in rows]
