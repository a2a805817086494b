"""Decisions about the requests of each line, without any text: for `acms gateway`, the inspector and HTTP."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

from acms.errors import ConflictError
from acms.gateway.lines import Line
from acms.gateway.requests import ClientRequest
from acms.gateway.trimming import Trimmed
from acms.kv import CompareAndSetKV, KVEntry, ListingKV, list_entries
from acms.prompt import Rendered
from acms.prompt_types import Count
from acms.runtime.threads import in_thread

__all__ = ["Remembered", "list_session_rows", "read_requests", "record_request"]

_NOTED = 40
"""Requests of a line whose decisions are kept."""
_NOTED_IDS = 10
_NOTED_WARNINGS = 2
_NAME_CHARS = 100
"""Ranges and ids of one request, its warnings, and characters of a name or a warning: a value has at most 64 KiB."""
_PREFIX = "requests/"


@dataclass(slots=True, kw_only=True)
class Remembered:
    """A request of a conversation, and the decisions about it."""

    request: ClientRequest
    #: None for a side request, which is not stored.
    line: Line | None
    #: The request that is sent in place of the client's bytes, or None.
    trimmed: Trimmed | None = None
    #: `untouched`, `trimmed`, `recalled` or `bypassed;reason`.
    outcome: str = "untouched"
    budget: int = 0
    #: The count of the client's request, and of the one that is sent; None where they were not needed.
    client_count: Count | None = None
    sent_count: Count | None = None
    #: The prompt builder's result, and the reason why nothing was searched for; "" where something was.
    rendered: Rendered | None = None
    not_searched: str = ""

    @property
    def session_name(self) -> str:
        """The name of its session, or ""."""
        return self.line.name if self.line is not None else ""


async def record_request(kv: CompareAndSetKV, remembered: Remembered, line: Line) -> None:
    """Store the decisions about a request, with those about the last requests of its line.

    Requests of one line may be noted at the same time: none of them overwrites another.
    """
    key = _requests_key(remembered.request.namespace, line.name)
    description = _describe_request(remembered, line)
    if remembered.rendered is not None and not description.get("recalled"):
        # In a thread, because a long log takes a tenth of a second.
        description["search"] = await in_thread(partial(_describe_search, remembered.rendered))
    while True:
        entry = await kv.get(key)
        earlier = [] if entry is None else entry.data["requests"]
        latest = {"requests": [*earlier, description][-_NOTED:]}
        try:
            await kv.compare_and_set(key, latest, expect=None if entry is None else entry.revision)
        except ConflictError:
            continue
        return


async def read_requests(kv: CompareAndSetKV, namespace: str, session: str) -> list[dict[str, Any]]:
    """Return the decisions about the newest requests of a session, oldest first."""
    entry = await kv.get(_requests_key(namespace, session))
    return [] if entry is None else list(entry.data["requests"])


async def list_session_rows(kv: ListingKV) -> list[dict[str, Any]]:
    """Return a row for each session with requests, the newest first."""
    noted = [entry async for entry in list_entries(kv, _PREFIX)]
    noted.sort(key=lambda entry: entry.updated_at, reverse=True)
    return [_describe_session(entry) for entry in noted]


def _describe_request(remembered: Remembered, line: Line) -> dict[str, Any]:
    """Return the decisions about a request as JSON: its client, tokens, outcome, and the messages left out."""
    trimmed, request = remembered.trimmed, remembered.request
    described: dict[str, Any] = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "protocol": request.protocol.name,
        "model": request.model[:_NAME_CHARS],
        "client": request.headers.get("user-agent", "").partition(" ")[0][:_NAME_CHARS],
        "line": line.reason,
        "outcome": remembered.outcome,
        "asked": len(request.items),
        "asked_tokens": None if remembered.client_count is None else remembered.client_count.upper_bound,
        "budget": remembered.budget,
        "not_searched": remembered.not_searched,
    }
    if trimmed is not None:
        left_out = sorted(set(range(len(request.items))).difference(trimmed.sent_indexes))
        described |= {
            "sent": len(trimmed.sent_indexes),
            "tokens": trimmed.tokens,
            "left_out": _join_ranges(left_out)[-_NOTED_IDS:],
            "recalled": trimmed.recalled[:_NOTED_IDS],
            "renders": trimmed.renders,
        }
    return described


def _describe_search(rendered: Rendered) -> dict[str, Any]:
    """Return the free tokens, the number of messages that each rule left out, and the first warnings."""
    shown_ids = {id for message in rendered.placed for id in message.sources}
    left_out_by_rule = Counter[str]()
    for verdict in rendered.ledger:
        if not verdict.included and verdict.id not in shown_ids:
            left_out_by_rule[verdict.rule] += 1
    warnings = [warning[:_NAME_CHARS] for warning in rendered.warnings[:_NOTED_WARNINGS]]
    return {"free": rendered.use.free, "not_shown": dict(left_out_by_rule), "warnings": warnings}


def _describe_session(entry: KVEntry) -> dict[str, Any]:
    requests: Sequence[Mapping[str, Any]] = entry.data["requests"]
    namespace, _, session = entry.key.removeprefix(_PREFIX).rpartition("/")
    newest = requests[-1]
    outcomes = Counter(request["outcome"].partition(";")[0] for request in requests)
    return {
        "session": session,
        "namespace": namespace,
        "model": newest["model"],
        "client": newest["client"],
        "requests": len(requests),
        "newest": newest["at"],
        **{name: outcomes[name] for name in ("untouched", "trimmed", "recalled", "bypassed")},
    }


def _requests_key(namespace: str, session: str) -> str:
    return f"{_PREFIX}{namespace}/{session}"


def _join_ranges(indexes: Sequence[int]) -> list[list[int]]:
    """Return ascending numbers as ranges of consecutive ones, each as [first, last]."""
    ranges: list[list[int]] = []
    for index in indexes:
        if ranges and ranges[-1][1] == index - 1:
            ranges[-1][1] = index
        else:
            ranges.append([index, index])
    return ranges
