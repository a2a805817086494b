"""The seal of a context: a digest of what its hash chain does not cover.

    seal = SHA-256(canonical JSON of id, namespace, name, parent, fork version, lineage, counter, settings, their
                   revision, time of creation, and whether it is deleted)

Stores keep it beside the settings and renew it with every change of them, so a row that something else changed no
longer fits its seal. The seal has no secret: it reveals an edit of the row, but not one whose author also computed a
new seal. A copy of the seal outside the store reveals both.
"""

from __future__ import annotations

import json
from hashlib import sha256

from acms.log.encoding import to_microseconds
from acms.model import Context


def compute_seal(context: Context) -> str:
    """Return the seal of a context in hex. The root is left out: it follows from the parent."""
    covered = [
        context.id,
        context.namespace,
        context.key,
        context.parent,
        context.fork,
        context.lineage,
        context.counter,
        dict(context.settings),
        context.settings_rev,
        to_microseconds(context.created_at),
        context.deleted_at is not None,
    ]
    written = json.dumps(covered, sort_keys=True, separators=(",", ":"))
    return sha256(written.encode()).hexdigest()
