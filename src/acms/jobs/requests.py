"""Asked: how a reflection is asked for; apart from what it does, because every append imports this."""

from __future__ import annotations

from acms.compaction.span import name_of
from acms.model import JobDraft

KIND = "reflect"
"""Kind of the job that every worker takes; one that needs a certain reflector adds its name."""
OFFLINE = "OfflineReflector"
"""Class of the reflector that every worker has."""


def kind_of(reflector: object) -> str:
    """Return the kind of job that workers with this reflector take; every worker has the offline one."""
    return KIND if type(reflector).__name__ == OFFLINE else f"{KIND}:{name_of(reflector)}"


def named(context: str) -> str:
    """Return the name of a log's reflection among jobs: one at a time."""
    return f"{KIND}:{context}"


def requested(context: str, kind: str, *, force: bool = False) -> JobDraft:
    """Return the request to reflect on a log; `force` reads closed episodes that are too short to be read alone."""
    return JobDraft(kind=kind, dedupe=named(context), payload={"force": True} if force else {})
