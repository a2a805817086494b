"""A witness: the version and chain hash of each log of a store, kept outside the store.

A log that lost its end still verifies: every remaining hash is right. Only a record kept elsewhere shows that a file
was rolled back, swapped for another one, or lost its write-ahead log.
A witness is JSON Lines, one log per line, then a closing line:

    {"context": "c_…", "namespace": "user:123", "session": "orders", …, "version": 41, "chain": "9f86d081…"}
    {"witness": "k3v0…", "number": 7, "before": "2c26b46b…", "digest": "fcde2b2e…"}

The digest covers every line of the file. The store records number and digest of the newest witness of each name. So a
witness that was emptied, shortened or rolled back no longer fits itself or the store.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

from acms.branches.export import PAGE, Problem
from acms.branches.forks import find_context
from acms.errors import ACMSError, GoneError, SessionNotFoundError, StorageReadOnlyError, ValidationError
from acms.log.encoding import draw_token
from acms.log.seal import compute_seal
from acms.model import Context, Json
from acms.ports import HasOwnValues, StorageBackend

_RECORD_PREFIX = "witness/"
"""Prefix of the keys under which the store records witnesses."""
_WITNESS_FILE = "witness"
"""`Problem.context` of a problem in the witness file itself, which has no context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Closing:
    """The line that closes a witness."""

    #: Random id of the witness file; it stays the same each time the file is renewed.
    witness: str
    #: How often the file was written, from 1.
    number: int
    #: Digest of the previous witness in this file, or None in the first one.
    before: str | None
    #: SHA-256 of all other lines and of the three fields above.
    digest: str


# ── writing ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def build_witness(
    storage: StorageBackend, contexts: AsyncIterable[Context], previous_lines: Sequence[str] = ()
) -> list[str]:
    """Return the lines of a new witness of some contexts; `previous_lines` is the witness that it replaces."""
    lines: list[str] = []
    async for context in contexts:
        head = await storage.head(context.id)
        record: dict[str, Json] = {
            "context": context.id,
            "namespace": context.namespace,
            "session": context.key,
            "parent": context.parent,
            "fork": context.fork,
            "settings_rev": context.settings_rev,
            "seal": compute_seal(context),
            "version": head.version,
            "chain": head.chain.hex(),
        }
        lines.append(json.dumps(record, ensure_ascii=False))
    previous = _parse_closing_line(previous_lines)
    if previous is None:
        witness_id, number, digest = draw_token(os.urandom, 16), 1, None
    else:
        witness_id, number, digest = previous.witness, previous.number + 1, previous.digest
    closing = {"witness": witness_id, "number": number, "before": digest}
    closing["digest"] = _compute_digest(lines, witness_id, number, digest)
    return [*lines, json.dumps(closing)]


async def record_witness(storage: StorageBackend, lines: Sequence[str]) -> bool:
    """Record in the store that a witness was written; return False if the store keeps no records or is read-only.

    Call it after the file is written. An interruption between the two is no problem: the file says which record it
    follows on.
    """
    closing = _parse_closing_line(lines)
    if closing is None or not isinstance(storage, HasOwnValues):
        return False
    data: Json = {"number": closing.number, "digest": closing.digest}
    try:
        await storage.own_values().set(f"{_RECORD_PREFIX}{closing.witness}", data)
    except StorageReadOnlyError:
        return False
    return True


async def count_recorded_witnesses(storage: StorageBackend) -> int:
    """Return how many witness files the store has recorded. Each counts once, however often it was renewed."""
    return len(await _read_records(storage))


# ── checking ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def check_witness(storage: StorageBackend, witness: Sequence[str]) -> list[Problem]:
    """Return the problems where a store contradicts a witness or has lost entries that it recorded.

    Logs that grew since, settings that ACMS changed since, and content that was erased since are no problems.
    Problems of the witness itself come first. Raises `ValidationError` for a line that is no witness.
    """
    closing = _parse_closing_line(witness)
    problems = await _check_closing(storage, witness, closing)
    records = witness if closing is None else witness[:-1]
    for number, line in enumerate(records, 1):
        try:
            record = json.loads(line)
            context, version, chain = str(record["context"]), int(record["version"]), str(record["chain"])
        except (ValueError, TypeError, KeyError) as error:
            raise ValidationError("is not a line of a witness file", field=f"line {number}") from error
        descriptions = await _check_context(storage, context, record)
        descriptions += await _check_log(storage, context, version, chain)
        problems += [
            Problem(context=context, version=version, what=f"witness: {description}")
            for description in descriptions
        ]
    return problems


async def _check_closing(
    storage: StorageBackend, lines: Sequence[str], closing: Closing | None
) -> list[Problem]:
    """Check that a witness file matches its closing line, and the closing line what the store recorded."""
    records = await _read_records(storage)
    problem = None
    if not lines:
        problem = "is empty"
    elif closing is None:
        if records:
            problem = "has no closing line, and the store has recorded witnesses that have one"
    elif closing.digest != _compute_digest(lines[:-1], closing.witness, closing.number, closing.before):
        problem = "was changed: its lines do not fit its closing line"
    elif records:
        problem = _compare_record(closing, records.get(closing.witness))
    if problem is None:
        return []
    return [Problem(context=_WITNESS_FILE, version=0 if closing is None else closing.number, what=problem)]


def _compare_record(closing: Closing, record: Mapping[str, Json] | None) -> str | None:
    """Compare a closing line with the store's record of the same witness; return the problem, or None."""
    if record is None:
        return "is not one that the store has recorded"
    number, digest = record["number"], record["digest"]
    if closing.number < number:
        return f"was rolled back: it is number {closing.number}, and the store has recorded {number}"
    if closing.number == number:
        return None if closing.digest == digest else "is not the one that the store has recorded"
    # The file is written before its record. If that was interrupted, the file is one number ahead of the store.
    if closing.number == number + 1 and closing.before == digest:
        return None
    return f"is number {closing.number}, and the store has recorded {number}: the store was rolled back"


async def _check_context(storage: StorageBackend, id: str, record: Mapping[str, Json]) -> list[str]:
    """Return how a context differs from its record. Fields that the record lacks are not compared.

    A witness that an earlier release wrote has fewer fields.
    """
    context = await find_context(storage, id)
    if context is None:
        return []  # its log is missing too, which is reported once
    problems: list[str] = []
    for field, name, value in (
        ("namespace", "namespace", context.namespace),
        ("session", "name", context.key),
        ("parent", "parent", context.parent),
        ("fork", "fork version", context.fork),
    ):
        if field in record and record[field] != value:
            problems.append(f"the {name} was {record[field]!r} and is {value!r}")
    rev = record.get("settings_rev")
    if rev is not None and context.settings_rev < rev:
        problems.append(f"the settings are at revision {context.settings_rev} and were at {rev}: rolled back")
    # ACMS raises the revision with every change. The seal covers the fields above too, which are reported already.
    elif rev == context.settings_rev and record.get("seal") != compute_seal(context) and not problems:
        problems.append("the settings were changed by something else than ACMS")
    return problems


async def _check_log(storage: StorageBackend, context: str, version: int, chain: str) -> list[str]:
    """Return the problem if a log has no entry at this version with this chain hash, or an empty list."""
    try:
        if version == 0:  # the log was empty: it is enough that it exists
            await storage.context(context)
            return []
        entries = await storage.read(context, after=version - 1, before=version + 1, deleted=True)
    except (SessionNotFoundError, GoneError):
        return ["the store does not hold this log"]
    except ACMSError as error:
        return [f"cannot be read: {error}"]
    if not entries:
        return ["the log ends before this version: it was cut, or the store was rolled back"]
    if entries[0].chain.hex() != chain:
        return ["the chain hash is another one: the store was rolled back and written to, or swapped"]
    return []


async def _read_records(storage: StorageBackend) -> dict[str, Mapping[str, Json]]:
    """Return what the store has recorded about each witness file, by its id: the newest number and digest."""
    if not isinstance(storage, HasOwnValues):
        return {}
    values = storage.own_values()
    records: dict[str, Mapping[str, Json]] = {}
    after: str | None = None
    while True:
        page = await values.list(_RECORD_PREFIX, after=after, limit=PAGE)
        for entry in page.entries:
            value = await values.get(entry.key)
            if value is not None:
                records[entry.key.removeprefix(_RECORD_PREFIX)] = value.data
        if page.next_after is None:
            return records
        after = page.next_after


def _parse_closing_line(lines: Sequence[str]) -> Closing | None:
    """Return the last line of a witness, which closes it; None if the last line is another one."""
    try:
        closing = json.loads(lines[-1])
        return Closing(
            witness=str(closing["witness"]),
            number=int(closing["number"]),
            before=closing["before"],
            digest=str(closing["digest"]),
        )
    except (IndexError, ValueError, TypeError, KeyError):
        return None


def _compute_digest(lines: Sequence[str], witness: str, number: int, before: str | None) -> str:
    closing = json.dumps([witness, number, before])
    return sha256("\n".join([*lines, closing]).encode()).hexdigest()
