"""Erase content from a PostgreSQL database: from its rows at once, from its files when the tables are rewritten."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from acms.errors import ValidationError
from acms.log.encoding import dump, entry_id, to_microseconds
from acms.model import Json, Kind, State
from acms.storage import append_rules
from acms.storage.append_rules import parse_entry_ids
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
        """Delete the content of entries permanently, in every log that inherits them; return how many were blanked.

        Entries belong to the contexts of the lineage; `owned_versions` are those of one of them.
        """
        if to is State.LIVE:
            raise ValidationError("must be expired or erased", field="to")
        sorted_versions = sorted(set(versions))
        detail = dump(dict(audit)) if audit else None
        #: Also those blanked by an attempt whose commit was not confirmed: the next attempt finds them blank.
        blanked: set[int] = set()

        async def work(connection: Connection) -> int:
            await self._db.query_in(connection, "lock_root", {"context": context})
            log = await self._db.log_state(context, deleted=True, connection=connection)
            versions_of_owners: list[tuple[str, list[int]]] = []
            for owner, low, high in append_rules.split_segments(context, log.lineage, 1, log.head.version):
                owned_versions = [version for version in sorted_versions if low <= version <= high]
                if owned_versions:
                    versions_of_owners.append((owner, owned_versions))
            if not versions_of_owners:
                return len(blanked)
            # Before the entries: the lock order.
            tree = [id for (id,) in await self._db.query_in(connection, "lock_tree", {"root": log.root})]
            newly_blanked: list[int] = []
            for owner, owned_versions in versions_of_owners:
                newly_blanked += await self._blank_entries(connection, owner, owned_versions, to, tree)
            if newly_blanked:
                await self._db.query_in(connection, "count_rewrite", {"contexts": tree})
                await self._db.query_in(connection, "raise_epoch", {"root": log.root})
                if to is State.ERASED:
                    await self._db.query_in(connection, "delete_records", {"contexts": tree})
                values = {"context": context, "action": to.value, "detail": detail}
                values["versions"] = dump(sorted(newly_blanked))
                await self._db.query_in(connection, "insert_audit", values)
            blanked.update(newly_blanked)
            return len(blanked)

        return (await self._db.run_transaction(work))[0]

    async def _blank_entries(
        self, connection: Connection, owner: str, versions: Sequence[int], to: State, tree: Sequence[str]
    ) -> list[int]:
        """Blank entries of one context of a fork tree; return the versions that were not blank before.

        For erased entries, what was derived from them and the payloads of jobs that name them are deleted too.
        """
        values = {"context": owner, "versions": versions, "state": to.value}
        rows = await self._db.query_in(connection, "blank_entry", values)
        blanked_versions = [version for version, _, _ in rows]
        if blanked_versions and to is State.ERASED:
            await self._db.query_in(
                connection, "delete_derived", {"context": owner, "versions": blanked_versions}
            )
            ids = [entry_id(Kind(kind), owner, version, nonce) for version, kind, nonce in rows]
            await self._db.query_in(connection, "delete_payload", {"contexts": tree, "ids": ids})
        return blanked_versions

    async def residue(self, ids: Sequence[str], texts: Sequence[bytes]) -> list[str]:
        """Return the remains of erased entries outside the log: keys, derived rows, and values that repeat a text."""
        versions_of: dict[str, list[int]] = {}
        for owner, version in sorted(set(parse_entry_ids(ids).values())):
            versions_of.setdefault(owner, []).append(version)
        remains: list[str] = []
        for owner, versions in versions_of.items():
            values = {"context": owner, "versions": versions}
            ((keys,),), ((rows,),) = await self._db.query_all(("left_keys", values), ("left_derived", values))
            for name, count in (("keys", keys), ("derived rows", rows)):
                if count:
                    remains.append(f"{owner}: {count} {name}")
        stored_values = await self._db.query("left_values", {}) if texts else ()
        return [*remains, *find_repeating_values(((key, value) for key, value in stored_values), texts)]

    async def find_messages(self, times: Sequence[datetime], keys: Sequence[str]) -> list[str]:
        """Return the ids of the messages with content that have one of these times or keys."""
        rows = await self._db.query(
            "find_messages", {"times": [to_microseconds(time) for time in times], "keys": list(keys)}
        )
        return [entry_id(Kind.MESSAGE, context, version, nonce) for context, version, nonce in rows]
