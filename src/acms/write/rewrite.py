"""The operations that replace or retract entries.

An edit and a retraction are entries like any other: history keeps the replaced entries, and retracting one undoes it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime

from acms.errors import ConflictError, ExpiredError, GoneError, PreconditionError, ValidationError
from acms.log import validation
from acms.log.in_force import UNDO, Cover, anchor_version, group_spans, is_record
from acms.log.read import SHOWN, cover_at
from acms.model import Draft, Entry, Head, Kind, Origin, Part, Receipt, Span, State, Text, ToolResult
from acms.ports import StorageBackend
from acms.privacy.modes import stored_mode
from acms.recall.planner import media_tokens
from acms.session_state import SharedSession
from acms.text.markers import detect_markers
from acms.write import retirement
from acms.write.queue import Writer

DETECTED = (Origin.USER, Origin.ASSISTANT)
"""Whose texts are searched for markers."""


async def retract_by_id(
    shared: SharedSession, writer: Writer, id: str, *, reason: str, alone: bool = False
) -> int:
    """Retract an entry, or its whole tool group; return the version of the retraction."""
    reason = validation.validate_name(reason, "reason")
    while True:
        context, target, cover, head = await _find_target(shared, id)
        if is_record(target):
            return await undo_merge(shared, writer, context, target)
        edit = cover.edit_of(target)
        by = cover.by(target.version)
        members = [target]
        grouped = target.group is not None or (edit is not None and edit.group is not None)
        if grouped and not alone and not target.replaces:
            members = await shared.storage.read(context, kinds=(Kind.MESSAGE,))
        spans = group_spans(target, members)
        if (
            edit is not None and edit.group != target.group
        ):  # it called or answered nothing before it was edited
            spans = (*spans, *group_spans(edit, members))
        targets = [one for one in members if (one.version, one.version) in spans]
        if edit is not None:
            spans, targets = (*spans, *edit.replaces, (edit.version, edit.version)), [*targets, edit]
        if by is not None and edit is None:
            # Repeat the profile update: the first attempt may have been interrupted after its commit.
            first = next(one for one in cover.replacing if one.version == by)
            edits = [one for one in cover.replacing if (one.version, one.version) in first.replaces]
            gone = frozenset(one.id for one in (*targets, *edits) if one.kind is Kind.MESSAGE)
            again = retirement.Rewrite((), gone, target.id)
            await retirement.propagate_to_profile(shared.storage, shared.namespace, again, first.id)
            return by
        if target.kind is Kind.FACT:
            made = await shared.storage.read(context, at=head.version, kinds=(Kind.FACT,))
            shown = await cover_at(shared.storage, context, head, head.version)
            spans = retirement.spans_with_predecessors([target], made, shown)
        draft = Draft(
            kind=Kind.RETRACTION,
            created_at=datetime.now(UTC),
            origin=Origin.DERIVED,
            replaces=spans,
            sources=(target.id,),
            data={"reason": reason},
        )
        receipt = await _append_rewrite(
            shared,
            writer,
            context,
            draft,
            head,
            draft.sources,
            reason,
            gone=targets,
            undone=target if edit is None else None,
        )
        if receipt is not None:
            return receipt.versions[0]


async def withdraw_entries(
    shared: SharedSession, writer: Writer, entries: Sequence[Entry], *, reason: str
) -> int:
    """Permanently retract messages and summaries with one retraction; return its version.

    A message is retracted with its edits, a summary with all entries it replaced, so nothing becomes active again in
    their place. Of a tool group only the named entries are retracted.
    """
    reason = validation.validate_name(reason, "reason")
    while True:
        context = await shared.find()
        assert context is not None
        head = await shared.storage.head(context)
        cover = await cover_at(shared.storage, context, head, head.version, searchable=True)
        found = await _collect_affected(shared.storage, context, cover, entries)
        if not found:
            return await retract_by_id(shared, writer, entries[0].id, reason=reason, alone=True)
        spans = {(one.version, one.version) for one in found}
        draft = Draft(
            kind=Kind.RETRACTION,
            created_at=datetime.now(UTC),
            origin=Origin.DERIVED,
            replaces=tuple(sorted(spans.union(*[one.replaces for one in found if one.kind is Kind.MESSAGE]))),
            sources=tuple([one.id for one in found if one.kind is Kind.SUMMARY or not one.replaces]),
            data={"reason": reason},
        )
        receipt = await _append_rewrite(
            shared, writer, context, draft, head, draft.sources, reason, gone=found
        )
        if receipt is not None:
            return receipt.versions[0]


async def _collect_affected(
    storage: StorageBackend, context: str, cover: Cover, entries: Sequence[Entry]
) -> list[Entry]:
    """Return the active entries to retract with some entries: these, their edits, and the messages behind summaries."""
    found: dict[int, Entry] = {}
    waiting = list(entries)
    while waiting:
        entry = waiting.pop()
        if entry.kind is Kind.MESSAGE and entry.replaces:
            said = anchor_version(entry)
            waiting += await storage.read(context, at=said, after=said - 1)
            continue
        edit = cover.edit_of(entry) or entry
        by = cover.by(edit.version)
        if edit.version in found or (by is not None and by not in found):
            continue
        found |= {entry.version: entry, edit.version: edit}
        for first, last in entry.replaces:
            rows = await storage.read(context, at=last, after=first - 1, kinds=SHOWN)
            waiting += [row for row in rows if row.kind is Kind.SUMMARY or not row.replaces]
    return [found[version] for version in sorted(found)]


async def append_undo(
    shared: SharedSession,
    writer: Writer,
    context: str,
    entry: Entry,
    head: Head,
    *,
    spans: tuple[Span, ...] = (),
    gone: Sequence[Entry] = (),
) -> Receipt | None:
    """Append the retraction of a rewrite; None when something came first: decide again.

    One of several entries has all their `spans`, and the entries themselves as `gone`.
    """
    draft = Draft(
        kind=Kind.RETRACTION,
        created_at=datetime.now(UTC),
        origin=Origin.DERIVED,
        replaces=spans or ((entry.version, entry.version),),
        sources=(entry.id,),
        data={"reason": UNDO},
    )
    return await _append_rewrite(
        shared, writer, context, draft, head, draft.sources, UNDO, gone=gone or [entry], undone=entry
    )


async def undo_merge(shared: SharedSession, writer: Writer, context: str, record: Entry) -> int:
    """Take back all that a merge has appended, by its record; return the version of the retraction."""
    storage = shared.storage
    first, last = record.batch, record.version
    while True:
        head = await storage.head(context)
        cover = await cover_at(storage, context, head, head.version)
        by_version = {one.version: one for one in cover.replacing}
        by = cover.by(last)
        if by is not None:
            if await is_undone_by(shared, record, by_version[by]):
                return by
            raise superseded_error(last, by)
        for version in range(first, last):
            later = by_version.get(cover.by(version) or 0)
            if later is not None and later.version > last and later.kind is not Kind.RETRACTION:
                raise superseded_error(version, later.version)
        came = await storage.read(context, after=first - 1, at=last)
        await refuse_expired(storage, context, came, cover)
        receipt = await append_undo(shared, writer, context, record, head, spans=((first, last),), gone=came)
        if receipt is not None:
            return receipt.versions[0]


def superseded_error(version: int, by: int) -> ConflictError:
    """Return the error for undoing an entry that has already been undone or replaced."""
    return ConflictError(
        f"v{version} was taken back or replaced by v{by}", retryable=False, options=(f"undo v{by} first",)
    )


async def refuse_expired(
    storage: StorageBackend, context: str, entries: Sequence[Entry], cover: Cover
) -> None:
    """Raise `ExpiredError` when an entry that some entries replaced or retracted has lost its content."""
    for entry in entries:
        for first, last in entry.replaces:
            for old in await storage.read(context, at=last, after=first - 1, kinds=SHOWN):
                if old.state is State.EXPIRED and cover.by(old.version) == entry.version:
                    raise ExpiredError(
                        f"retention has deleted the content of v{old.version}, it cannot come back"
                    )


async def is_undone_by(shared: SharedSession, entry: Entry, by: Entry) -> bool:
    """Whether one entry undoes another; if so, complete the profile update that may have been interrupted after it."""
    if by.kind is not Kind.RETRACTION or by.data.get("reason") != UNDO or by.sources != (entry.id,):
        return False
    gone = frozenset((entry.id,) if entry.kind is Kind.MESSAGE else ())
    await retirement.propagate_to_profile(
        shared.storage, shared.namespace, retirement.Rewrite((), gone, entry.id), by.id
    )
    return True


async def _append_rewrite(
    shared: SharedSession,
    writer: Writer,
    context: str,
    draft: Draft,
    head: Head,
    ids: Sequence[str],
    reason: str,
    *,
    gone: Sequence[Entry],
    undone: Entry | None = None,
) -> Receipt | None:
    """Append a rewrite with its effects on facts; None after a concurrent write: decide again."""
    cover = await cover_at(shared.storage, context, head, head.version, searchable=True)
    done = await retirement.plan_rewrite(
        shared.storage, context, draft, cover, version=head.version, gone=gone, undone=undone
    )
    regroups = any(one.group is not None or one.replaces for one in gone)
    delivered = await writer.rewrite(context, done.drafts, head, regroups=regroups)
    if delivered is None:
        return None
    receipt = delivered.receipt
    await retirement.propagate_to_profile(shared.storage, shared.namespace, done, receipt.ids[0])
    for id in ids:
        shared.rewritten(context, receipt.versions[0], id, reason)
    return receipt


async def retract_all(shared: SharedSession, writer: Writer, *, reason: str) -> int:
    """Retract all messages so far; return the version of the retraction, 0 for an empty session."""
    reason = validation.validate_name(reason, "reason")
    while True:
        context = await shared.find()
        head = None if context is None else await shared.storage.head(context)
        if context is None or head is None or head.version == 0:
            return 0
        draft = Draft(
            kind=Kind.RETRACTION,
            created_at=datetime.now(UTC),
            origin=Origin.DERIVED,
            replaces=((1, head.version),),
            data={"reason": reason},
        )
        delivered = await writer.rewrite(context, [draft], head, regroups=True)
        if delivered is not None:
            receipt = delivered.receipt
            await retirement.forget_in_profile(
                shared.storage, shared.namespace, context, head.version, receipt.ids[0]
            )
            return receipt.versions[0]


def _check_readable(id: str, target: Entry, cover: Cover) -> None:
    anew = "store the corrected text as a new message"
    if target.state is not State.LIVE:
        raise GoneError(f"the content of {id} is gone", options=(anew,))
    by = cover.by(target.version)
    if by is not None:
        raise GoneError(f"{id} is out of force", options=(f"undo version {by} first", anew))


async def replace_message(
    shared: SharedSession, writer: Writer, id: str, content: str, *, sha256: str | None = None
) -> str:
    """Correct the text of a message and return the id of the new entry."""
    content = validation.validate_text(content, "content")
    expected = None if sha256 is None else validation.validate_name(sha256, "sha256").lower()
    while True:
        context, target, cover, head = await _find_target(shared, id)
        before = [target, *cover.edits(target)]
        target = cover.edit_of(target) or target
        if target.kind is not Kind.MESSAGE or target.role is None:
            raise ValidationError(
                f"is a {target.kind.value}, only messages can be replaced", field="message_id"
            )
        _check_readable(id, target, cover)
        if expected not in (
            None,
            hashlib.sha256(target.content.encode("utf-8", "surrogatepass")).hexdigest(),
        ):
            raise PreconditionError(
                f"{id} says something else by now", options=("read it again, and decide again",)
            )
        parts, text = _edit_parts(target, content)
        if shared.config.privacy.redact_before_persist:
            from acms.privacy.redact_entry import redact_message  # the rules come with it

            mode = stored_mode(shared.config.privacy.mode, target.privacy)
            text, parts, _ = redact_message(text, parts, mode)
        detects = shared.config.auto_detect_markers and target.origin in DETECTED
        kept = target.markers if not target.detected else ()
        found = detect_markers(text, shared.patterns) if detects and not kept else ()
        draft = Draft(
            content=text,
            created_at=datetime.now(UTC),
            tokens=shared.counter.count(text) + media_tokens(parts),
            origin=target.origin,
            privacy=target.privacy,
            role=target.role,
            actor=target.actor,
            parts=parts,
            markers=kept or found,
            detected=bool(found) and not kept,
            episode=target.episode,
            group=target.group,
            replaces=(*target.replaces, (target.version, target.version)),
            sources=(target.id,),
            metadata=target.metadata,
        )
        receipt = await _append_rewrite(
            shared, writer, context, draft, head, draft.sources, "replaced", gone=before
        )
        if receipt is not None:
            return receipt.ids[0]


async def _find_target(shared: SharedSession, id: str) -> tuple[str, Entry, Cover, Head]:
    """Return an entry and the searchable entries beside it: summarized messages can be corrected, and must end too."""
    context = await shared.find()
    target = await shared.entry(context, None, id)
    assert context is not None
    head = await shared.storage.head(context)
    cover = await cover_at(shared.storage, context, head, head.version, searchable=True)
    return context, target, cover, head


def _edit_parts(target: Entry, content: str) -> tuple[tuple[Part, ...], str]:
    """Return the parts and text of an edit: the first text or the only result changes, calls and media stay."""
    assert target.role is not None
    if not target.parts:
        return validation.build_message_parts(target.role, content, None, None, None)
    parts: list[Part] = []
    done = False
    for part in target.parts:
        if not done and isinstance(part, Text):
            parts.append(Text(content))
            done = True
        elif not done and isinstance(part, ToolResult):
            parts.append(ToolResult(part.call_id, content, part.is_error))
            done = True
        elif not isinstance(part, Text):
            parts.append(part)
    if not done:
        parts.insert(0, Text(content))
    return tuple(parts), validation.validate_text(validation.canonical_text(parts), "content")
