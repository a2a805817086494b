"""How much there is to read in a candidate."""

from __future__ import annotations

from acms.contract.schema import Candidate

OBJECT = 200
"""Characters that a candidate counts for besides its texts."""


def size(one: Candidate) -> int:
    """Return about how much there is to read in a candidate, in characters."""
    return OBJECT + letters(one)


def letters(one: Candidate) -> int:
    """Return the characters of all renditions of a candidate."""
    return len(one.text or "") + sum([len(variant.text) for variant in one.variants])
