"""Exposure: under which mode of privacy an item is shown or stored. What that takes out is decided in `core.sinks`.

Apart from there because every session asks it, and few need the rules that find what is sensitive.
"""

from __future__ import annotations

from acms.model import Privacy

_STRICT = {Privacy.ALLOW: 0, Privacy.REDACT: 1, Privacy.BLOCK: 2}


def mode_of(configured: Privacy | None, item: Privacy) -> Privacy | None:
    """Return the mode an item is shown under: the strictest; None where neither asks for anything (decision 0046)."""
    if configured is None:
        return None if item is Privacy.ALLOW else item
    return max(configured, item, key=_STRICT.__getitem__)


def stored_mode(configured: Privacy | None, item: Privacy) -> Privacy:
    """Return what is taken out of an item before it is stored: of a blocked one as much as under `redact`."""
    found = mode_of(configured or Privacy.ALLOW, item)
    return Privacy.REDACT if found is Privacy.BLOCK else found or Privacy.ALLOW
