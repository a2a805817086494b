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

from acms.branches.export import Problem
from acms.errors import ACMSError, GoneError, SessionNotFoundError, StorageReadOnlyError, ValidationError
from acms.log.encoding import draw_token
from acms.log.seal import compute_seal
from acms.model import Context, Json
from acms.ports import HasOwnValues, StorageBackend

__all__ = ["Closing", "build_witness", "check_witness", "count_known", "record_witness"]

_RECORDS = "witness/"
"""How the keys of the store's own records of witnesses begin."""
_FILE = "witness"
"""In place of a context: a problem of the file itself."""
_PAGE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Closing:
    """The line that closes a witness."""

    #: Random, the same in every witness that follows on the first one in a file.
    witness: str
    #: Counts from 1.
    number: int
    #: Digest of the witness before this one; None of the first.
    before: str | None
    #: SHA-256 of all other lines and of the three fields above.
    digest: str


# ── writing ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def build_witness(
    storage: StorageBackend, contexts: AsyncIterable[Context], before: Sequence[str] = ()
) -> list[str]:
    """Return the lines of a new witness of some contexts; `before` is the witness that it replaces."""
    found: list[str] = []
    async for context in contexts:
        head = await storage.head(context.id)
        said: dict[str, Json] = {
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
        found.append(json.dumps(said, ensure_ascii=False))
    last = _parse_closing_line(before)
    witness, number = (draw_token(os.urandom, 16), 1) if last is None else (last.witness, last.number + 1)
    digest = None if last is None else last.digest
    closing = {"witness": witness, "number": number, "before": digest}
    return [*found, json.dumps({**closing, "digest": _compute_digest(found, witness, number, digest)})]


async def record_witness(storage: StorageBackend, lines: Sequence[str]) -> bool:
    """Let the store record a witness, once its file is written; False if it keeps no records or is read-only.

    An interruption between the two is no problem: the file says which record it follows on.
    """
    closing = _parse_closing_line(lines)
    if closing is None or not isinstance(storage, HasOwnValues):
        return False
    data: Json = {"number": closing.number, "digest": closing.digest}
    try:
        await storage.own_values().set(f"{_RECORDS}{closing.witness}", data)
    except StorageReadOnlyError:
        return False
    return True


async def count_known(storage: StorageBackend) -> int:
    """Return how many witnesses the store has recorded, each counted once."""
    return len(await _read_records(storage))


# ── checking ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def check_witness(storage: StorageBackend, witness: Sequence[str]) -> list[Problem]:
    """Return the problems where a store contradicts a witness or has lost entries that it recorded.

    Logs that grew since, settings that ACMS changed since, and content that was erased since are no problems.
    Problems of the witness itself come first. Raises `ValidationError` for a line that is no witness.
    """
    closing = _parse_closing_line(witness)
    problems = await _check_closing(storage, witness, closing)
    for number, line in enumerate(witness if closing is None else witness[:-1], 1):
        try:
            said = json.loads(line)
            context, version, chain = str(said["context"]), int(said["version"]), str(said["chain"])
        except (ValueError, TypeError, KeyError) as error:
            raise ValidationError("is no line of a witness", field=f"line {number}") from error
        found = [
            *await _check_context(storage, context, said),
            *await _check_log(storage, context, version, chain),
        ]
        problems += [Problem(context=context, version=version, what=f"witness: {what}") for what in found]
    return problems


async def _check_closing(
    storage: StorageBackend, lines: Sequence[str], closing: Closing | None
) -> list[Problem]:
    """Compare a witness with its own closing line, and that with what the store recorded."""
    known = await _read_records(storage)
    what = None
    if not lines:
        what = "is empty"
    elif closing is None:
        what = "has no closing line, and the store has recorded witnesses that have one" if known else None
    elif closing.digest != _compute_digest(lines[:-1], closing.witness, closing.number, closing.before):
        what = "was changed: its lines do not fit its closing line"
    elif known:
        what = _compare_record(closing, known.get(closing.witness))
    number = 0 if closing is None else closing.number
    return [] if what is None else [Problem(context=_FILE, version=number, what=what)]


def _compare_record(closing: Closing, known: Mapping[str, Json] | None) -> str | None:
    """Compare a closing line with the record of the newest witness of its name; return the problem, or None."""
    if known is None:
        return "is not one that the store has recorded"
    number, digest = known["number"], known["digest"]
    if closing.number < number:
        return f"was rolled back: it is number {closing.number}, and the store has recorded {number}"
    if closing.number == number:
        return None if closing.digest == digest else "is not the one that the store has recorded"
    if closing.number == number + 1 and closing.before == digest:  # the record was interrupted
        return None
    return f"is number {closing.number}, and the store has recorded {number}: the store was rolled back"


async def _check_context(storage: StorageBackend, context: str, said: Mapping[str, Json]) -> list[str]:
    """Compare what a context is; a witness of an earlier release says less of it."""
    try:
        found = await storage.context(context)
    except SessionNotFoundError:
        return []  # its log is missing too, which is said once
    now: dict[str, Json] = {
        "namespace": found.namespace,
        "session": found.key,
        "parent": found.parent,
        "fork": found.fork,
    }
    names = {"session": "name", "fork": "fork version"}
    problems = [
        f"the {names.get(field, field)} was {said[field]!r} and is {value!r}"
        for field, value in now.items()
        if field in said and said[field] != value
    ]
    rev = said.get("settings_rev")
    if rev is not None and found.settings_rev < rev:
        problems.append(f"the settings are at revision {found.settings_rev} and were at {rev}: rolled back")
    elif rev == found.settings_rev and said.get("seal") != compute_seal(found) and not problems:
        problems.append("the settings were changed by something else than ACMS")
    return problems


async def _check_log(storage: StorageBackend, context: str, version: int, chain: str) -> list[str]:
    try:
        if version == 0:
            await storage.context(context)
            return []
        found = await storage.read(context, after=version - 1, before=version + 1, deleted=True)
    except (SessionNotFoundError, GoneError):
        return ["the store does not hold this log"]
    except ACMSError as error:
        return [f"cannot be read: {error}"]
    if not found:
        return ["the log ends before this version: it was cut, or the store was rolled back"]
    if found[0].chain.hex() != chain:
        return ["the chain hash is another one: the store was rolled back and written to, or swapped"]
    return []


async def _read_records(storage: StorageBackend) -> dict[str, Mapping[str, Json]]:
    """Return what the store recorded of the newest witness of each name."""
    if not isinstance(storage, HasOwnValues):
        return {}
    values = storage.own_values()
    found: dict[str, Mapping[str, Json]] = {}
    after: str | None = None
    while True:
        page = await values.list(_RECORDS, after=after, limit=_PAGE)
        for entry in page.entries:
            value = await values.get(entry.key)
            if value is not None:
                found[entry.key.removeprefix(_RECORDS)] = value.data
        after = page.next_after
        if after is None:
            return found


def _parse_closing_line(lines: Sequence[str]) -> Closing | None:
    """Return the closing line of a witness; None if it has none."""
    try:
        said = json.loads(lines[-1])
        return Closing(
            witness=str(said["witness"]),
            number=int(said["number"]),
            before=said["before"],
            digest=str(said["digest"]),
        )
    except (IndexError, ValueError, TypeError, KeyError):
        return None


def _compute_digest(lines: Sequence[str], witness: str, number: int, before: str | None) -> str:
    closing = json.dumps([witness, number, before])
    return sha256("\n".join([*lines, closing]).encode()).hexdigest()
