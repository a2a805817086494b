"""Which jobs are asked for: their kinds, their names, and the drafts that ride on an append.

Apart from the work itself, because every append imports this.
"""

from __future__ import annotations

from typing import NamedTuple

from acms.log.policy import CompactionPolicy
from acms.model import JobDraft
from acms.ports import Summarizer

COMPACT = "compact"
REFLECT = "reflect"
"""Kinds of the jobs that every worker takes; one that needs a certain model adds its name."""
OFFLINE = "OfflineReflector"
"""Class of the reflector that every worker has."""


class CompactionRequest(NamedTuple):
    """How an append asks for a compaction when the log in force has grown too long."""

    namespace: str
    #: The service's level of the policy.
    service: CompactionPolicy
    #: Kind of the job.
    kind: str


def model_name(model: object) -> str:
    """Return the name of a summarizer or a reflector: its `model`, else that of its class."""
    name = getattr(model, "model", None)
    return name if isinstance(name, str) and name else type(model).__name__


def compaction_kind(summarizer: Summarizer | None) -> str:
    """Return the kind of job that workers with this summarizer take; every worker has the extractive one."""
    return COMPACT if summarizer is None else f"{COMPACT}:{model_name(summarizer)}"


def compaction(context: str, kind: str, policy: CompactionPolicy, *, force: bool) -> JobDraft:
    """Return the request to compact a log; while one is under way another is the same."""
    return JobDraft(
        kind=kind, dedupe=f"{COMPACT}:{context}", payload={"policy": policy.to_json(), "force": force}
    )


def reflection_kind(reflector: object) -> str:
    """Return the kind of job that workers with this reflector take; every worker has the offline one."""
    return REFLECT if type(reflector).__name__ == OFFLINE else f"{REFLECT}:{model_name(reflector)}"


def reflection_name(context: str) -> str:
    """Return the name of a log's reflection among jobs: one at a time."""
    return f"{REFLECT}:{context}"


def reflection(context: str, kind: str, *, force: bool = False) -> JobDraft:
    """Return the request to reflect on a log; `force` reads closed episodes that are too short to be read alone."""
    return JobDraft(kind=kind, dedupe=reflection_name(context), payload={"force": True} if force else {})
