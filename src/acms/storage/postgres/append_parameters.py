"""Build the parameters of an append: JSON rows with their distance from the head, since no version is known yet."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from acms.errors import ACMSError, ValidationError
from acms.log.encoding import Entropy, Stamp, dump, parse_entry_id, stamp_draft, to_microseconds
from acms.log.validation import validate_name
from acms.model import ANY, Append, Draft, Kind, Receipt
from acms.storage import append_rules
from acms.storage.sql import DRAFT_COLUMNS, VERSION_MASK, draft_columns, write_parts


class PendingAppend:
    """One operation on its way."""

    __slots__ = (
        "cited",
        "drafts",
        "future",
        "has_inherited_key",
        "jobs",
        "keys",
        "lineage",
        "op",
        "size",
        "stamps",
        "summary",
    )  # fmt: skip

    def __init__(self, op: Append, entropy: Entropy, future: asyncio.Future[Receipt | ACMSError]) -> None:
        self.op = op
        self.future = future
        self.stamps = [stamp_draft(draft, entropy) for draft in op.drafts]
        self.keys = [validate_name(draft.key, "key") for draft in op.drafts if draft.key is not None]
        if len(set(self.keys)) != len(self.keys):
            raise ValidationError("is used twice in one append", field="key")
        #: What the context inherits; looked up only for an operation with keys.
        self.lineage: Sequence[tuple[str, int]] = ()
        #: Whether a log that it inherits has one of the keys: no unique index refuses that.
        self.has_inherited_key = False
        self.cited = append_rules.collect_source_ids(op)
        self.drafts = _build_append_rows(op, self.stamps)
        self.summary = _summarize_append(op, self.drafts)
        self.jobs = [
            {
                "kind": job.kind,
                "dedupe": job.dedupe,
                "payload": dump(dict(job.payload)) if job.payload else None,
                "due": None if job.not_before is None else to_microseconds(job.not_before),
            }
            for job in op.jobs
        ]
        self.size = sum(len(draft.content) for draft in op.drafts)

    @property
    def needs_own_transaction(self) -> bool:
        """Whether it needs a transaction of several statements."""
        return bool(self.cited) or self.op.finish is not None or self.has_inherited_key

    @property
    def repeatable(self) -> bool:
        """Whether the operation may be sent again after a lost answer: a second copy would be refused or recognised."""
        expect = self.op.expect
        if self.op.finish is not None or expect.version is not None:
            return True
        # An append without a message does not change which message is the newest: a second one would be accepted.
        changes_last_message = self.summary["last"] is not None
        if expect.last_message is not ANY and changes_last_message:
            return True
        all_have_keys = bool(self.keys) and len(self.keys) == len(self.op.drafts)
        return all_have_keys

    def answer(self, result: Receipt | ACMSError) -> None:
        """Answer the caller, unless it gave up or was answered before."""
        if not self.future.done():
            self.future.set_result(result)


def build_draft_row(draft: Draft) -> dict[str, Any]:
    """Return the columns of a row that a draft determines; empty ones are left out."""
    row: dict[str, Any] = {
        "kind": draft.kind._value_,
        "created_at": to_microseconds(draft.created_at),
        "tokens": draft.tokens,
        "key": draft.key,
        "content": draft.content,
    }
    if draft.parts:
        row["parts"] = write_parts(draft.parts, draft.content)
    for column, value in zip(DRAFT_COLUMNS, draft_columns(draft), strict=True):
        if value is not None:
            row[column] = value
    return row


def _build_append_rows(op: Append, stamps: Sequence[Stamp]) -> list[dict[str, Any]]:
    """Return the rows of an append; `k` is a row's distance from the head, `prefix` the digest over the rows so far.

    Positions and totals count from the head: the statement adds the numbers of the head.
    """
    rows: list[dict[str, Any]] = []
    position = total = 0
    prefix = sha256()
    for distance, (draft, stamp) in enumerate(zip(op.drafts, stamps, strict=True), 1):
        prefix.update(stamp.digest)
        message_position: int | None = None
        if draft.kind is Kind.MESSAGE:
            position, total = position + 1, total + draft.tokens
            message_position = position
        row = build_draft_row(draft)
        row.update(
            k=distance, position=message_position, nonce=stamp.nonce, total=total, prefix=prefix.hexdigest()
        )
        row.update(salt=stamp.salt.hex(), digest=stamp.digest.hex())
        rows.append(row)
    return rows


def _summarize_append(op: Append, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the parameters of the statement for an append as a whole.

    `last` and `nonce` are the newest message's distance from the head and its nonce, `prefix` is the digest over all
    entries, and `reach` the newest version that a draft replaces: the log must have it.
    """
    messages, tokens, rewrites = append_rules.count_drafts(op.drafts)
    message_rows = [row for row in rows if row["position"] is not None]
    expect = op.expect
    spans = [span for draft in op.drafts for span in draft.replaces]
    if any(not 1 <= first <= last_replaced for first, last_replaced in spans):
        reach = VERSION_MASK + 1  # refused by the statement; `check_append` raises the error
    else:
        reach = max((last_replaced for _, last_replaced in spans), default=0)
    summary: dict[str, Any] = {
        "context": op.context,
        "n": len(op.drafts),
        "said": messages,
        "tokens": tokens,
        "rewrites": rewrites,
        "last": message_rows[-1]["k"] if message_rows else None,
        "nonce": message_rows[-1]["nonce"] if message_rows else None,
        "expect_last": expect.last_message is not ANY,
        "expect_rewrites": expect.rewrites,
        "expect_version": expect.version,
        "reach": reach,
        "keep": op.tail is None,
        "tail": dump(op.tail) if op.tail else None,
        "prefix": rows[-1]["prefix"] if rows else sha256().hexdigest(),
    }
    if isinstance(expect.last_message, str):
        location = parse_entry_id(expect.last_message)
        # No entry has the version -1, so an id of another form is refused.
        summary["last_version"] = -1 if location is None else location[1]
        summary["last_nonce"] = expect.last_message.rpartition("_")[2]
    return summary


@dataclass(slots=True)
class AppendGroup:
    """Operations on one context that go into one statement, in order."""

    members: list[PendingAppend]
    #: What they become behind the head this handle left; empty for a single one, which goes behind any head.
    receipts: list[Receipt] = field(default_factory=list)
    #: The chain they were computed for, and the count of rewrites, which moves without it.
    chain: bytes | None = None
    rewrites: int = 0

    @property
    def context(self) -> str:
        """Whose log it is."""
        return self.members[0].op.context

    def summarize(self, number: int) -> dict[str, Any]:
        """Return the parameters of the statement for the group as a whole.

        A group of several operations was planned behind a known head: it has that head's chain, which the statement
        expects.
        """
        if self.chain is None:
            return {"op": number, **self.members[0].summary}
        parameters: dict[str, Any] = {"op": number, "context": self.context}
        parameters.update(expect_last=False, reach=0, keep=True)
        entries = messages = tokens = rewrites = 0
        for pending in self.members:
            summary = pending.summary
            if summary["last"] is not None:
                parameters.update(last=entries + summary["last"], nonce=summary["nonce"])
            if not summary["keep"]:
                parameters.update(keep=False, tail=summary["tail"])
            entries += summary["n"]
            messages += summary["said"]
            tokens += summary["tokens"]
            rewrites += summary["rewrites"]
        chain = self.receipts[-1].head.chain.hex()
        parameters.update(n=entries, said=messages, tokens=tokens, rewrites=rewrites, chain=chain)
        parameters.update(expect_chain=self.chain.hex(), expect_rewrites=self.rewrites)
        return parameters

    def drafts(self, number: int) -> Iterator[dict[str, Any]]:
        """Yield the rows of the group; `k` is a row's distance from the head, `batch` that of its append's first row.

        Distances, positions and totals of an operation count on from the operation before it.
        """
        if self.chain is None:
            for row in self.members[0].drafts:
                yield {"op": number, "batch": 1, **row}
            return
        entries = messages = tokens = 0
        for pending, receipt in zip(self.members, self.receipts, strict=True):
            for row, chain in zip(pending.drafts, receipt.chains, strict=True):
                position = row["position"]
                yield {
                    **row,
                    "op": number,
                    "batch": entries + 1,
                    "k": entries + row["k"],
                    "position": None if position is None else messages + position,
                    "total": tokens + row["total"],
                    "chain": chain.hex(),
                }
            entries += pending.summary["n"]
            messages += pending.summary["said"]
            tokens += pending.summary["tokens"]


def build_append_statement(batch: Sequence[AppendGroup]) -> tuple[str, dict[str, Any]]:
    """Return the statement that appends the operations of different contexts: its name and its values."""
    contexts: list[str] = []
    ops: list[dict[str, Any]] = []
    drafts: list[dict[str, Any]] = []
    jobs: list[dict[str, Any]] = []
    for number, group in enumerate(batch):
        contexts.append(group.context)
        ops.append(group.summarize(number))
        drafts.extend(group.drafts(number))
        for pending in group.members:
            jobs.extend({"op": number, **job} for job in pending.jobs)
    values = {"contexts": contexts, "ops": serialize_rows(ops), "drafts": serialize_rows(drafts)}
    if not jobs:
        return "append", values
    return "append_with_jobs", {**values, "jobs": serialize_rows(jobs)}


def serialize_rows(values: Sequence[Mapping[str, Any]]) -> str:
    """Serialize rows as JSON."""
    return json.dumps(values, ensure_ascii=False, separators=(",", ":"))
