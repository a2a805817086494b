"""Branches: forks, their tree, named versions, and differences between two sides.

A fork is one row in one commit (decision 0002). Everything else here only reads: the tree of forks, the tagged
versions, the entries that are active on one side and not on the other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from acms.branches import diff as differing
from acms.branches.diff import LogState
from acms.branches.export import PAGE
from acms.errors import ACMSError, ConflictError, NotFoundError, SessionNotFoundError, ValidationError
from acms.facts import adopt
from acms.log import policy, read, validation
from acms.log.active_entries import join_spans
from acms.log.settings import MAX_TAGS, TAGS, read_setting, validate_tag_name
from acms.model import (
    Append,
    Context,
    ContextDraft,
    ContextQuery,
    Entry,
    Head,
    JobDraft,
    Json,
    Kind,
)
from acms.observability.logging import log_event
from acms.ports import StorageBackend
from acms.results import Branch, Change, Delta, Diff, Tree
from acms.storage.append_rules import split_segments
from acms.storage.records import deleted_session_error
from acms.storage.sessions import ERASED, count_erased

if TYPE_CHECKING:
    from acms.privacy.redactor import Redactor
    from acms.session_state import SharedSession

COLLECT = "collect"
COLLECT_AFTER = timedelta(days=30)
"""How long a deleted context can still be brought back."""
_LISTED = 20
"""Known tags that an error lists: more do not help to find a misspelled one."""
_COMPARED = (Kind.MESSAGE, Kind.FACT, Kind.SUMMARY)


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison: a session at its head, or at a version or tag."""

    shared: SharedSession
    at: int | str | None


# ── forks ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def create_fork(shared: SharedSession, at: int | str | None, session_id: str | None) -> Context:
    """Create a fork of a session in one commit and return it; a fork of the same name is returned if it exists.

    `ConflictError` if the name belongs to another session. A fork of a past version adopts facts that its parent
    learned later from earlier messages.
    """
    storage = shared.storage
    name = None if session_id is None else validation.validate_new_session_name(session_id, "session_id")
    parent = await shared.require_context()
    version = head = None
    if at is not None:
        version, head = await _resolve_version(storage, await load_live_context(storage, parent), at)
    child = await storage.create(
        ContextDraft(
            key=name,
            namespace=shared.namespace,
            counter=shared.counter.name,
            created_at=datetime.now(UTC),
            parent=parent,
            fork=version,
            inherit=(policy.POLICY, policy.PRIVATE, ERASED),
        )
    )
    if version is not None and ERASED in child.settings:
        # The inherited count is the parent's at its head. A fork of a past version inherits fewer erased entries.
        await count_erased(storage, child.id)
    if child.parent != parent or version not in (None, child.fork):  # the name existed, for another session
        raise ConflictError(
            f"the name {name!r} belongs to {await _describe_context(storage, child)}",
            retryable=False,
            options=("choose another session_id",),
        )
    if head is not None and version is not None:
        # A log of nothing but messages has no facts to adopt: its version equals its number of messages.
        has_other_entries = head.version > max(version, head.messages)
        if has_other_entries and await adopt.enqueue_adoption(storage, parent, child):
            shared.start_worker()
    log_event(logging.DEBUG, "fork", context=child.id, parent=parent, version=child.fork)
    return child


async def _describe_context(storage: StorageBackend, context: Context) -> str:
    if context.parent is None:
        return "a session that is no fork"
    parent = await storage.context(context.parent)
    return f"a fork of {parent.key or parent.id!r} at version {context.fork}"


# ── the tree ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def list_live_forks(storage: StorageBackend, context: str, at: int | None) -> list[Branch]:
    """List the forks of a context that are not deleted, oldest first; with `at`, only forks up to that version."""
    forks = await list_contexts(storage, ContextQuery(parent=context))
    return await _load_branches(storage, [fork for fork in forks if at is None or (fork.fork or 0) <= at])


async def read_ancestry(storage: StorageBackend, context: str) -> list[Branch]:
    """List a context and its ancestors, from the oldest ancestor to the context itself."""
    ancestors = await _list_ancestor_contexts(storage, await storage.context(context))
    return await _load_branches(storage, ancestors[::-1])


async def read_fork_tree(storage: StorageBackend, context: str) -> Tree:
    """Return the fork tree that a context belongs to, from its root, deleted branches too."""
    root = (await storage.context(context)).root
    contexts = await list_contexts(storage, ContextQuery(root=root, deleted=True))
    branches = await _load_branches(storage, contexts)
    forks: dict[str | None, list[Tree]] = {}
    # Newest first: the forks of a branch are complete before the branch itself.
    for branch in reversed(branches):
        subtrees = reversed(forks.get(branch.context_id, ()))  # back to oldest first
        forks.setdefault(branch.parent, []).append(Tree(branch=branch, forks=tuple(subtrees)))
    return forks[None][0]


async def hide_context(storage: StorageBackend, context: str) -> list[Branch]:
    """Hide a context, to be collected later, and return the live forks that read entries it owns.

    To collect a context is to erase the entries of it that no fork reads any more.
    """
    # The job comes first, because a hidden context takes no job. It does nothing for a context that is not hidden.
    due = datetime.now(UTC) + COLLECT_AFTER
    job = JobDraft(kind=COLLECT, dedupe=f"{COLLECT}:{context}", not_before=due)
    (result,) = await storage.append([Append(context=context, drafts=(), jobs=(job,))])
    if isinstance(result, ACMSError):
        raise result
    while True:
        current = await load_live_context(storage, context)
        try:
            await storage.settings(current.id, {"deleted": True}, rev=current.settings_rev)
            break
        except ConflictError:  # another write changed the settings meanwhile: read their new revision
            continue
    log_event(logging.INFO, "deleted", context=context)
    tree = await list_contexts(storage, ContextQuery(root=current.root))
    readers = [member for member in tree if context in dict(member.lineage)]
    return await _load_branches(storage, readers)


async def find_context(storage: StorageBackend, id_or_key: str, **lookup: Any) -> Context | None:
    """Return a context, or None if the store does not have it."""
    try:
        return await storage.context(id_or_key, **lookup)
    except SessionNotFoundError:
        return None


async def find_context_to_erase(storage: StorageBackend, id_or_key: str, *, namespace: str) -> Context:
    """Return a context by its id or key; if no live context has the key, the deleted one that had it.

    `ConflictError` names the ids if several deleted contexts had the key.
    """
    live = await find_context(storage, id_or_key, namespace=namespace)
    if live is not None:
        return live
    deleted: list[Context] = []
    for context in await list_contexts(storage, ContextQuery(namespace=namespace, deleted=True)):
        if context.key == id_or_key:
            deleted.append(context)
    if not deleted:
        raise SessionNotFoundError(
            f"no session is named {id_or_key!r} in namespace {namespace!r}, and none was",
            options=("acms sessions --all --deleted lists them",),
        )
    if len(deleted) > 1:
        raise ConflictError(
            f"{len(deleted)} deleted sessions had the name {id_or_key!r}",
            retryable=False,
            options=[f"give the id {context.id}, deleted at {context.deleted_at}" for context in deleted],
        )
    return deleted[0]


async def list_contexts(storage: StorageBackend, query: ContextQuery) -> list[Context]:
    """Return every context of a query, oldest first: a parent before its forks."""
    query = replace(query, limit=PAGE)
    contexts: list[Context] = []
    while True:
        page = await storage.contexts(query)
        contexts += page.items
        if page.next_after is None:
            return contexts[::-1]
        query = replace(query, after=page.next_after)


async def _list_ancestor_contexts(storage: StorageBackend, context: Context) -> list[Context]:
    """Return a context and its ancestors, the nearest first."""
    line = [context]
    while line[-1].parent is not None:
        line.append(await storage.context(line[-1].parent))
    return line


async def _load_branches(storage: StorageBackend, contexts: Sequence[Context]) -> list[Branch]:
    branches: list[Branch] = []
    for context in contexts:
        branches.append(await _load_branch(storage, context))
        # Reading a cached head does not yield to the event loop: let other tasks run.
        if len(branches) % 100 == 0:
            await asyncio.sleep(0)
    return branches


async def _load_branch(storage: StorageBackend, context: Context) -> Branch:
    """Return a context with its newest version, as a branch of the tree."""
    deleted = context.deleted_at is not None
    if deleted:  # the head of a deleted context cannot be read: take the version of its newest entry
        newest = await storage.read(context.id, newest=1, deleted=True)
        version = newest[0].version if newest else 0
    else:
        try:
            version = (await storage.head(context.id)).version
        except SessionNotFoundError:  # it was deleted since it was listed
            return await _load_branch(storage, await storage.context(context.id))
    return Branch(
        context_id=context.id,
        session_id=context.key or context.id,
        parent=context.parent,
        fork=context.fork,
        version=version,
        created_at=context.created_at,
        deleted=deleted,
    )


# ── named versions ──────────────────────────────────────────────────────────────────────────────────────────────────


async def resolve_version(storage: StorageBackend, context: str, at: int | str | None) -> int:
    """Return the version that a number or a tag names, or the newest one for None.

    Raises `NotFoundError` for a version after the end of the log, and for an unknown tag.
    """
    return (await _resolve_version(storage, await storage.context(context), at))[0]


async def version_of_tag(storage: StorageBackend, context: str | None, tag: str) -> int:
    """Return the version that a tag names. `context` is None for a log that was never written: it has no tags."""
    if context is None:
        raise _unknown_tag_error(tag, {})
    return await resolve_version(storage, context, tag)


async def tag_version(
    storage: StorageBackend, context: str, name: str, version: int | None, *, move: bool
) -> int:
    """Name a version (the newest one for None) and return it; `move` takes the name from another version."""
    name = validate_tag_name(name)
    validation.require_flag(move, "move")
    head = await storage.head(context)
    version = None if version is None else validation.validate_integer(version, "version")
    number = read.version_to_read(head, version)
    value = {"version": number, "chain": await _chain_at_version(storage, context, head, number)}
    inherited = await _read_visible_tags(storage, await storage.context(context))

    def add_tag(settings: Mapping[str, Json]) -> Mapping[str, Json]:
        own_tags: dict[str, Json] = dict(read_setting(settings, TAGS, {}))
        existing_tag = own_tags.get(name) or inherited.get(name)
        if existing_tag is not None and existing_tag["version"] != number and not move:
            raise ConflictError(
                f"{name!r} names version {existing_tag['version']}, not {number}",
                retryable=False,
                options=("tag it with move=True", "choose another name"),
            )
        if name not in own_tags and len(own_tags) >= MAX_TAGS:
            raise ValidationError(f"the session has {MAX_TAGS} tags, which is the limit", field="name")
        return {TAGS: {**own_tags, name: value}}

    await policy.update_settings(storage, context, add_tag)
    return number


async def remove_tag(storage: StorageBackend, context: str, name: str) -> None:
    """Remove a tag that this context gave. The tags of its ancestors cannot be removed here."""
    name = validation.validate_name(name, "name")

    def drop_tag(settings: Mapping[str, Json]) -> Mapping[str, Json]:
        own_tags: dict[str, Json] = dict(read_setting(settings, TAGS, {}))
        if name not in own_tags:
            raise NotFoundError(f"this session has no tag {name!r}", options=_describe_tags(own_tags))
        del own_tags[name]
        return {TAGS: own_tags or None}

    await policy.update_settings(storage, context, drop_tag)


async def read_tags(storage: StorageBackend, context: str, at: int | None) -> dict[str, int]:
    """Return the named versions of a context, inherited ones too, oldest first; with `at` those up to it."""
    tags = _sort_tags(await _read_visible_tags(storage, await storage.context(context)))
    return {name: version for version, name in tags if at is None or version <= at}


async def _read_visible_tags(storage: StorageBackend, context: Context) -> dict[str, Mapping[str, Json]]:
    """Return a context's own tags and its ancestors' tags on inherited versions; for equal names the nearest wins."""
    tags: dict[str, Mapping[str, Json]] = {}
    # The last inherited version; None for the context itself, all of whose tags are read.
    limit: int | None = None
    for ancestor in await _list_ancestor_contexts(storage, context):
        for name, tagged in read_setting(ancestor.settings, TAGS, {}).items():
            if limit is None or tagged["version"] <= limit:
                tags.setdefault(name, tagged)
        if ancestor.fork is not None:
            limit = ancestor.fork if limit is None else min(limit, ancestor.fork)
    return tags


async def _resolve_version(
    storage: StorageBackend, context: Context, at: int | str | None
) -> tuple[int, Head]:
    """Return the version that a number or a tag names, or the newest one for None, and the head of the log."""
    head = await storage.head(context.id)
    if not isinstance(at, str):
        return read.version_to_read(head, None if at is None else validation.validate_integer(at, "at")), head
    at = validation.validate_name(at, "at")
    tags = await _read_visible_tags(storage, context)
    if at not in tags:
        raise _unknown_tag_error(at, tags)
    version: int = tags[at]["version"]
    # The tag has the hash of its version: a log that was restored to an earlier state may have other entries there.
    chain = None
    if version <= head.version:
        chain = await _chain_at_version(storage, context.id, head, version)
    if chain != tags[at]["chain"]:
        raise ConflictError(
            f"the tag {at!r} was given to a version {version} that is not in this log any more",
            retryable=False,
            options=("tag a version of this log with move=True",),
        )
    return version, head


def _unknown_tag_error(name: str, tags: Mapping[str, Mapping[str, Json]]) -> NotFoundError:
    existing_names = "there are no tags"
    if tags:
        existing_names = f"there are: {', '.join(sorted(tags)[:_LISTED])}"
    if len(tags) > _LISTED:
        existing_names += ", …"
    options = _describe_tags(tags)
    number = name.removeprefix("v")
    if number.isdecimal():
        options.insert(0, f"a version is a number: {number}")
    return NotFoundError(f"no version has the tag {name!r}; {existing_names}", options=options)


def _sort_tags(tags: Mapping[str, Mapping[str, Json]]) -> list[tuple[int, str]]:
    return sorted((tagged["version"], name) for name, tagged in tags.items())


def _describe_tags(tags: Mapping[str, Mapping[str, Json]]) -> list[str]:
    return [f"{name!r} is version {version}" for version, name in _sort_tags(tags)[:_LISTED]]


async def _chain_at_version(storage: StorageBackend, context: str, head: Head, version: int) -> str:
    """Return the chain hash of a version as hex. It is empty at version 0, the empty beginning that all logs share."""
    if version in (0, head.version):
        return head.chain.hex() if version else ""
    (entry,) = await storage.read(context, after=version - 1, before=version + 1)
    return entry.chain.hex()


# ── differences ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def diff_sessions(left: Side, right: Side) -> Diff:
    """Compare the active entries of two sides, from left to right.

    Reads each side's own entries, and of the shared ones only those that are inactive on one side alone.
    """
    require_same_storage(left.shared, right.shared)
    storage = left.shared.storage
    left_state = await _read_log_state(storage, left)
    right_state = await _read_log_state(storage, right)
    common = differing.find_common_version(left_state.runs, right_state.runs)
    spans = differing.find_disputed_spans(left_state.replacements, right_state.replacements, common)
    inherited: list[Entry] = []
    for first, last in join_spans(spans, differing.READ_GAP):
        inherited += await storage.read(left_state.context, at=last, after=first - 1, kinds=_COMPARED)
    entries_of_sides: list[list[Entry]] = []
    for state in (left_state, right_state):
        own_entries = await storage.read(state.context, at=state.version, after=common, kinds=_COMPARED)
        entries_of_sides.append([*inherited, *own_entries])
    deltas = differing.compute_deltas(left_state, right_state, *entries_of_sides)
    left_redactor, right_redactor = left.shared.redactor, right.shared.redactor
    return Diff(
        left=f"{left.shared.session_id} v{left_state.version}",
        right=f"{right.shared.session_id} v{right_state.version}",
        common=common,
        messages=_redact_delta(deltas[Kind.MESSAGE], left_redactor, right_redactor),
        facts=_redact_delta(deltas[Kind.FACT], left_redactor, right_redactor),
        summaries=_redact_delta(deltas[Kind.SUMMARY], left_redactor, right_redactor),
    )


def require_same_storage(left: SharedSession, right: SharedSession) -> None:
    """Raise `ValidationError` if two sessions cannot be compared or merged because their stores differ."""
    if left.storage is not right.storage:
        raise ValidationError(
            "both sides must be sessions on one storage handle",
            field="other",
            options=("open both with the same storage object",),
        )


def _redact_delta(delta: Delta, left_redactor: Redactor, right_redactor: Redactor) -> Delta:
    """Return a difference with its entries redacted, each by the redactor of its own session."""
    return Delta(
        added=tuple(right_redactor.redact_entries(delta.added)),
        removed=tuple(left_redactor.redact_entries(delta.removed)),
        changed=tuple(
            [
                Change(
                    before=left_redactor.redact_entry(change.before),
                    after=right_redactor.redact_entry(change.after),
                )
                for change in delta.changed
            ]
        ),
    )


async def _read_log_state(storage: StorageBackend, side: Side) -> LogState:
    context = await load_live_context(storage, await side.shared.require_context())
    version, head = await _resolve_version(storage, context, side.at)
    runs = split_segments(context.id, context.lineage, 1, version)
    replacements = await read.replacements_at(storage, context.id, head, version)
    return LogState(runs, replacements, context.id, version)


async def load_live_context(storage: StorageBackend, context: str) -> Context:
    """Return a context by its id; `SessionNotFoundError` if it was deleted."""
    loaded = await storage.context(context)
    if loaded.deleted_at is not None:
        raise deleted_session_error(loaded.key or loaded.id)
    return loaded
