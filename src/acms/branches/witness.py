"""A witness: how far each log of a store had come and its chain hash there, kept outside the store.

A log that lost its end verifies: every hash of what is left is right. That a file was rolled back, swapped for another
one, or lost its write-ahead log shows only beside what was written down elsewhere.
A witness is JSON Lines, one log a line:

    {"context": "c_…", "namespace": "user:123", "session": "orders", "version": 41, "chain": "9f86d081…"}
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterable, Iterable

from acms.branches.export import Problem
from acms.errors import ACMSError, GoneError, SessionNotFoundError, ValidationError
from acms.model import Context
from acms.ports import StorageBackend

__all__ = ["check", "lines"]


async def lines(storage: StorageBackend, contexts: AsyncIterable[Context]) -> list[str]:
    """Return the witness of some logs, a line each; those without an entry have none."""
    found: list[str] = []
    async for context in contexts:
        head = await storage.head(context.id)
        if head.version:
            said = {
                "context": context.id,
                "namespace": context.namespace,
                "session": context.key,
                "version": head.version,
                "chain": head.chain.hex(),
            }
            found.append(json.dumps(said, ensure_ascii=False))
    return found


async def check(storage: StorageBackend, witness: Iterable[str]) -> list[Problem]:
    """Return where a store says something else than a witness, or no longer holds what that has seen.

    Logs that grew since, and content that was erased since, are as they should be. `ValidationError` for a line that is
    no witness.
    """
    problems: list[Problem] = []
    for number, line in enumerate(witness, 1):
        try:
            said = json.loads(line)
            context, version, chain = str(said["context"]), int(said["version"]), str(said["chain"])
        except (ValueError, TypeError, KeyError) as error:
            raise ValidationError("is no line of a witness", field=f"line {number}") from error
        what = await _differs(storage, context, version, chain)
        if what is not None:
            problems.append(Problem(context=context, version=version, what=f"witness: {what}"))
    return problems


async def _differs(storage: StorageBackend, context: str, version: int, chain: str) -> str | None:
    try:
        found = await storage.read(context, after=version - 1, before=version + 1, deleted=True)
    except (SessionNotFoundError, GoneError):
        return "the store does not hold this log"
    except ACMSError as error:
        return f"cannot be read: {error}"
    if not found:
        return "the log ends before this version: it was cut, or the store was rolled back"
    if found[0].chain.hex() != chain:
        return "the chain hash is another one: the store was rolled back and written to, or swapped"
    return None
