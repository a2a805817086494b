"""The operations that replace or retract entries.

An edit and a retraction are entries like any other: history keeps the replaced entries, and retracting one undoes it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from acms.errors import ConflictError, ExpiredError, GoneError, PreconditionError, ValidationError
from acms.log import validation
from acms.log.active_entries import UNDO, Replacements, anchor_version, group_spans, is_merge_record
from acms.log.read import CONVERSATION_KINDS, replacements_at
from acms.model import Draft, Entry, Head, Kind, Origin, Part, Receipt, Span, State, Text, ToolResult
from acms.ports import StorageBackend
from acms.privacy.modes import stored_mode
from acms.recall.planner import media_tokens
from acms.session_state import SharedSession
from acms.text.markers import detect_markers
from acms.write import retirement
from acms.write.queue import Writer

MARKED_ORIGINS = (Origin.USER, Origin.ASSISTANT)
"""Origins of the messages in whose text markers are detected."""


async def retract_by_id(
    shared: SharedSession, writer: Writer, id: str, *, reason: str, alone: bool = False
) -> int:
    """Retract an entry, or its whole tool group; return the version of the retraction."""
    reason = validation.validate_name(reason, "reason")
    validation.require_flag(alone, "alone")
    while True:
        context, target, replacements, head = await _find_target(shared, id)
        if is_merge_record(target):
            return await undo_merge(shared, writer, context, target)
        edit = replacements.edit_of(target)
        spans, targets = await _find_group(shared.storage, context, target, edit, alone=alone)
        retraction = replacements.replaced_by(target.version)
        if retraction is not None and edit is None:  # the entry was retracted before
            await _repeat_profile_update(shared, replacements, target, targets, retraction)
            return retraction
        if target.kind is Kind.FACT:
            facts = await shared.storage.read(context, at=head.version, kinds=(Kind.FACT,))
            reading_replacements = await replacements_at(shared.storage, context, head, head.version)
            spans = retirement.spans_with_predecessors([target], facts, reading_replacements)
        draft = retirement.draft_retraction(spans, (target.id,), reason)
        undone = target if edit is None else None
        receipt = await _append_rewrite(shared, writer, context, draft, head, removed=targets, undone=undone)
        if receipt is not None:
            return receipt.versions[0]


async def _find_group(
    storage: StorageBackend, context: str, target: Entry, edit: Entry | None, *, alone: bool
) -> tuple[tuple[Span, ...], list[Entry]]:
    """Return the spans and the entries to retract: an entry, its edit, and the other messages of its tool group.

    With `alone` the other messages of the group stay.
    """
    members = [target]
    is_grouped = target.group is not None or (edit is not None and edit.group is not None)
    if is_grouped and not alone and not target.replaces:
        members = await storage.read(context, kinds=(Kind.MESSAGE,))
    spans = group_spans(target, members)
    if edit is not None and edit.group != target.group:  # the edit moved the message to another tool group
        spans += group_spans(edit, members)
    targets = [entry for entry in members if (entry.version, entry.version) in spans]
    if edit is not None:
        spans += (*edit.replaces, (edit.version, edit.version))
        targets.append(edit)
    return spans, targets


async def _repeat_profile_update(
    shared: SharedSession,
    replacements: Replacements,
    target: Entry,
    targets: Sequence[Entry],
    retraction_version: int,
) -> None:
    """Repeat the profile update of a retraction: the first attempt may have been interrupted after its commit."""
    retraction = next(entry for entry in replacements.replacing if entry.version == retraction_version)
    edits: list[Entry] = []
    for entry in replacements.replacing:
        if (entry.version, entry.version) in retraction.replaces:
            edits.append(entry)
    removed_ids = frozenset(entry.id for entry in (*targets, *edits) if entry.kind is Kind.MESSAGE)
    change = retirement.ProfileChange(removed_ids, target.id)
    await retirement.propagate_to_profile(shared.storage, shared.namespace, change, retraction.id)


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
        replacements = await replacements_at(shared.storage, context, head, head.version, searchable=True)
        affected = await _collect_affected(shared.storage, context, replacements, entries)
        if not affected:  # all were retracted before: this returns the version of that retraction
            return await retract_by_id(shared, writer, entries[0].id, reason=reason, alone=True)
        spans: set[Span] = set()
        for entry in affected:
            spans.add((entry.version, entry.version))
            if entry.kind is Kind.MESSAGE:
                spans.update(entry.replaces)
        sources = [entry.id for entry in affected if entry.kind is Kind.SUMMARY or not entry.replaces]
        draft = retirement.draft_retraction(sorted(spans), sources, reason)
        receipt = await _append_rewrite(shared, writer, context, draft, head, removed=affected)
        if receipt is not None:
            return receipt.versions[0]


async def _collect_affected(
    storage: StorageBackend, context: str, replacements: Replacements, entries: Sequence[Entry]
) -> list[Entry]:
    """Return the active entries to retract: the given ones, their edits, and the messages behind summaries."""
    affected: dict[int, Entry] = {}
    waiting = list(entries)
    while waiting:
        entry = waiting.pop()
        if entry.kind is Kind.MESSAGE and entry.replaces:
            original_version = anchor_version(entry)
            waiting += await storage.read(context, at=original_version, after=original_version - 1)
            continue  # the original leads to the edit that is active
        current = replacements.edit_of(entry) or entry
        replacement = replacements.replaced_by(current.version)
        is_inactive = replacement is not None and replacement not in affected
        if current.version in affected or is_inactive:
            continue
        affected[entry.version] = entry
        affected[current.version] = current
        for first, last in entry.replaces:
            rows = await storage.read(context, at=last, after=first - 1, kinds=CONVERSATION_KINDS)
            waiting += [row for row in rows if row.kind is Kind.SUMMARY or not row.replaces]
    return [affected[version] for version in sorted(affected)]


async def append_undo(
    shared: SharedSession,
    writer: Writer,
    context: str,
    entry: Entry,
    head: Head,
    *,
    spans: tuple[Span, ...] = (),
    removed: Sequence[Entry] = (),
) -> Receipt | None:
    """Append the retraction of a rewrite; None if another write came first, and the caller must decide again.

    For a rewrite of several entries, such as a merge, `spans` are their versions and `removed` the entries.
    """
    draft = retirement.draft_retraction(spans or ((entry.version, entry.version),), (entry.id,), UNDO)
    return await _append_rewrite(
        shared, writer, context, draft, head, removed=removed or [entry], undone=entry
    )


async def undo_merge(shared: SharedSession, writer: Writer, context: str, record: Entry) -> int:
    """Undo everything that a merge has appended, by its record; return the version of the retraction."""
    storage = shared.storage
    first, last = record.batch, record.version
    while True:
        head = await storage.head(context)
        replacements = await replacements_at(storage, context, head, head.version)
        by_version = {entry.version: entry for entry in replacements.replacing}
        replacement = replacements.replaced_by(last)
        if replacement is not None:
            if await complete_earlier_undo(shared, record, by_version[replacement]):
                return replacement
            raise superseded_error(last, replacement)
        for version in range(first, last):
            later = by_version.get(replacements.replaced_by(version) or 0)
            # A merged entry may have been retracted since, but not edited or superseded: that would be lost.
            if later is not None and later.version > last and later.kind is not Kind.RETRACTION:
                raise superseded_error(version, later.version)
        merged = await storage.read(context, after=first - 1, at=last)
        await refuse_expired(storage, context, merged, replacements)
        receipt = await append_undo(
            shared, writer, context, record, head, spans=((first, last),), removed=merged
        )
        if receipt is not None:
            return receipt.versions[0]


def superseded_error(version: int, by: int) -> ConflictError:
    """Return the error for undoing an entry that has already been undone or replaced."""
    return ConflictError(
        f"v{version} was undone or replaced by v{by}", retryable=False, options=(f"undo({by}) first",)
    )


async def refuse_expired(
    storage: StorageBackend, context: str, entries: Sequence[Entry], replacements: Replacements
) -> None:
    """Raise `ExpiredError` if undoing some entries would restore an entry whose content has expired."""
    for entry in entries:
        for first, last in entry.replaces:
            for replaced in await storage.read(context, at=last, after=first - 1, kinds=CONVERSATION_KINDS):
                is_restored = replacements.replaced_by(replaced.version) == entry.version
                if replaced.state is State.EXPIRED and is_restored:
                    raise ExpiredError(
                        f"retention has deleted the content of v{replaced.version}, it cannot be restored"
                    )


async def complete_earlier_undo(shared: SharedSession, entry: Entry, later: Entry) -> bool:
    """If a later entry undoes this one, repeat its update of the profile; return whether it does.

    The first attempt may have been interrupted after it stored the undo.
    """
    is_undo = later.kind is Kind.RETRACTION and later.data.get("reason") == UNDO
    if not is_undo or later.sources != (entry.id,):
        return False
    removed_ids = frozenset((entry.id,) if entry.kind is Kind.MESSAGE else ())
    change = retirement.ProfileChange(removed_ids, entry.id)
    await retirement.propagate_to_profile(shared.storage, shared.namespace, change, later.id)
    return True


async def _append_rewrite(
    shared: SharedSession,
    writer: Writer,
    context: str,
    draft: Draft,
    head: Head,
    *,
    removed: Sequence[Entry],
    undone: Entry | None = None,
) -> Receipt | None:
    """Append a rewrite with its effects on facts; None after a concurrent write: the caller decides again.

    `removed` are the messages that are retracted or replaced, `undone` is the rewrite that is undone. Afterwards the
    profile is updated, and the rewrite is reported as an event.
    """
    replacements = await replacements_at(shared.storage, context, head, head.version, searchable=True)
    drafts, change = await retirement.plan_rewrite(
        shared.storage, context, draft, replacements, version=head.version, removed=removed, undone=undone
    )
    regroups = any(entry.group is not None or entry.replaces for entry in removed)
    delivered = await writer.rewrite(context, drafts, head, regroups=regroups)
    if delivered is None:
        return None
    receipt = delivered.receipt
    await retirement.propagate_to_profile(shared.storage, shared.namespace, change, receipt.ids[0])
    for id in draft.sources:
        shared.emit_rewritten(context, receipt.versions[0], id, draft.data.get("reason", "replaced"))
    return receipt


async def retract_all(shared: SharedSession, writer: Writer, *, reason: str) -> int:
    """Retract all messages so far; return the version of the retraction, 0 for an empty session."""
    reason = validation.validate_name(reason, "reason")
    while True:
        context = await shared.find()
        head = None if context is None else await shared.storage.head(context)
        if context is None or head is None or head.version == 0:
            return 0
        draft = retirement.draft_retraction([(1, head.version)], (), reason)
        delivered = await writer.rewrite(context, [draft], head, regroups=True)
        if delivered is not None:
            receipt = delivered.receipt
            await retirement.forget_in_profile(
                shared.storage, shared.namespace, context, head.version, receipt.ids[0]
            )
            return receipt.versions[0]


async def replace_message(
    shared: SharedSession, writer: Writer, id: str, content: str, *, sha256: str | None = None
) -> str:
    """Correct the text of a message and return the id of the new entry."""
    content = validation.validate_text(content, "content")
    expected = None if sha256 is None else validation.validate_name(sha256, "sha256").lower()
    while True:
        context, original, replacements, head = await _find_target(shared, id)
        target = replacements.edit_of(original) or original
        _check_replaceable(id, target, replacements, expected)
        draft = _draft_edit(shared, target, content)
        removed = [original, *replacements.edits_of(original)]
        receipt = await _append_rewrite(shared, writer, context, draft, head, removed=removed)
        if receipt is not None:
            return receipt.ids[0]


def _check_replaceable(id: str, target: Entry, replacements: Replacements, expected: str | None) -> None:
    """Raise an error unless an entry is an active message with its content, which has the expected digest."""
    if target.kind is not Kind.MESSAGE or target.role is None:
        raise ValidationError(f"is a {target.kind.value}, only messages can be replaced", field="message_id")
    advice = "store the corrected text as a new message"
    if target.state is not State.LIVE:
        raise GoneError(f"the content of {id} is gone", options=(advice,))
    replacement = replacements.replaced_by(target.version)
    if replacement is not None:
        raise GoneError(f"{id} is no longer active", options=(f"undo({replacement}) first", advice))
    digest = hashlib.sha256(target.content.encode("utf-8", "surrogatepass")).hexdigest()
    if expected is not None and expected != digest:
        raise PreconditionError(f"{id} has another text now", options=("read it again, and decide again",))


def _draft_edit(shared: SharedSession, target: Entry, content: str) -> Draft:
    """Draft the edit of a message with another text."""
    config = shared.config
    parts, text = _edit_parts(target, content)
    if config.privacy.redact_before_persist:
        from acms.privacy.redact_entry import redact_message  # imports the redaction rules

        mode = stored_mode(config.privacy.mode, target.privacy)
        text, parts, _ = redact_message(text, parts, mode)
    markers = () if target.detected else target.markers
    detected: tuple[str, ...] = ()
    if not markers and config.auto_detect_markers and target.origin in MARKED_ORIGINS:
        detected = detect_markers(text, shared.patterns)
    return Draft(
        content=text,
        created_at=datetime.now(UTC),
        tokens=shared.counter.count(text) + media_tokens(parts),
        origin=target.origin,
        privacy=target.privacy,
        role=target.role,
        actor=target.actor,
        parts=parts,
        markers=markers or detected,
        detected=bool(detected),
        episode=target.episode,
        group=target.group,
        replaces=(*target.replaces, (target.version, target.version)),
        sources=(target.id,),
        metadata=target.metadata,
    )


async def _find_target(shared: SharedSession, id: str) -> tuple[str, Entry, Replacements, Head]:
    """Return the context, the entry with an id, the replacements and the head.

    The replacements are those for searching, in which summaries hide no message: summarized messages can be edited and
    retracted too.
    """
    context = await shared.find()
    target = await shared.entry(context, None, id)
    assert context is not None
    head = await shared.storage.head(context)
    replacements = await replacements_at(shared.storage, context, head, head.version, searchable=True)
    return context, target, replacements, head


def _edit_parts(target: Entry, content: str) -> tuple[tuple[Part, ...], str]:
    """Return the parts and the text of an edit: `content` replaces all texts, or the result; calls and media stay."""
    assert target.role is not None
    if not target.parts:
        return validation.build_message_parts(target.role, content, None, None, None)
    parts: list[Part] = []
    is_replaced = False
    for part in target.parts:
        if isinstance(part, Text) and not is_replaced:
            parts.append(Text(content))
            is_replaced = True
        elif isinstance(part, ToolResult) and not is_replaced:
            parts.append(replace(part, output=content))
            is_replaced = True
        elif not isinstance(part, Text):
            parts.append(part)
    if not is_replaced:
        parts.insert(0, Text(content))
    return tuple(parts), validation.validate_text(validation.canonical_text(parts), "content")
