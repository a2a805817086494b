"""Retirement: which facts are retired when the messages they were made from are edited or retracted.

A retraction or edit of a message retires the facts that were made from it, in the same commit. The facts in the profile
of the namespace follow in a separate commit; repeating the operation completes one that was interrupted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from acms.errors import ACMSError, ConflictError, SessionNotFoundError
from acms.log import facts as rules
from acms.log import policy
from acms.log.active_entries import UNDO, Replacements
from acms.log.encoding import parse_entry_id
from acms.log.facts import REVOKED
from acms.log.read import find_profile, replacements_at
from acms.model import Append, Context, Draft, Entry, Expect, Kind, Origin, Span
from acms.ports import StorageBackend


@dataclass(frozen=True, slots=True)
class ProfileChange:
    """What the rewrite of a session changes in the profile of its namespace."""

    #: Ids of the messages that are retracted or replaced.
    removed_ids: frozenset[str]
    #: Id of the earlier rewrite that this one undoes.
    undone_id: str | None = None
    #: Whether a fact is retired only if all its sources are removed.
    require_all_sources: bool = False


def draft_retraction(
    spans: Iterable[Span], sources: Iterable[str], reason: str, by: str | None = None
) -> Draft:
    """Draft the retraction of some spans; `by` is the id of the entry in another log that caused it."""
    return Draft(
        kind=Kind.RETRACTION,
        created_at=datetime.now(UTC),
        origin=Origin.DERIVED,
        replaces=tuple(spans),
        sources=tuple(sources),
        data={"reason": reason} if by is None else {"reason": reason, "by": by},
    )


async def plan_rewrite(
    storage: StorageBackend,
    context: str,
    draft: Draft,
    replacements: Replacements,
    *,
    version: int,
    removed: Iterable[Entry] = (),
    undone: Entry | None = None,
) -> tuple[tuple[Draft, ...], ProfileChange]:
    """Return the drafts of a rewrite, and its change of the profile: `draft` replaces or retracts entries.

    Facts that were made from the `removed` messages are retired in an entry of their own after the draft. The rewrite
    `undone` is undone together with the retirements it caused. `ConflictError` if a fact would be restored at an
    address of cardinality one that another fact fills. `replacements` are those for searching: summarized messages are
    retired and restored with their facts as if no summary had replaced them.
    """
    if undone is not None:
        active_revocations: list[Entry] = []
        for entry in replacements.replacing_in_append(undone):
            if _is_revocation(entry) and replacements.replaced_by(entry.version) is None:
                active_revocations.append(entry)
        draft = replace(draft, replaces=(*draft.replaces, *rules.single_spans(active_revocations)))
    removed_ids = frozenset(entry.id for entry in removed if entry.kind is Kind.MESSAGE)
    drafts = await append_retirements(storage, context, [draft], replacements, version, removed_ids)
    return drafts, ProfileChange(removed_ids, undone.id if undone is not None else None)


async def append_retirements(
    storage: StorageBackend,
    context: str,
    drafts: Sequence[Draft],
    replacements: Replacements,
    version: int,
    removed_ids: frozenset[str],
) -> tuple[Draft, ...]:
    """Return edits and retractions, followed by the retirement of the facts made from the removed messages."""
    facts = await storage.read(context, at=version, kinds=(Kind.FACT,))
    if not facts:
        return tuple(drafts)
    cited_ids = set(removed_ids)
    for entry in await storage.get(sorted(removed_ids)):
        # A message that a merge copied has its original as a source, and facts of this log may cite the original.
        if entry is not None and not entry.replaces:
            cited_ids.update(entry.sources)
    after = _replacements_after(replacements, drafts, version)
    revoked = rules.find_revoked_facts(facts, after, frozenset(cited_ids))
    drafts = (*drafts, *_draft_revocation(revoked, removed_ids))
    collision = rules.find_collision(facts, replacements, _replacements_after(replacements, drafts, version))
    if collision is not None:
        raise _collision_error(*collision)
    return drafts


def _replacements_after(replacements: Replacements, drafts: Sequence[Draft], version: int) -> Replacements:
    """Return the replacements after drafts are appended behind a version."""
    return replacements.apply_newer(rules.simulate_append(drafts, version))


def _is_revocation(entry: Entry) -> bool:
    """Return whether an entry is a revocation: the retirement of facts whose messages a rewrite removed."""
    return entry.kind is Kind.RETRACTION and entry.data.get("reason") == REVOKED


def _collision_error(fact: Entry, other: Entry) -> ConflictError:
    return ConflictError(
        f"the fact v{fact.version} would come back to the address of v{other.version}, which holds one value",
        retryable=False,
        options=(f'retract("{other.id}") first', f"undo({other.version}) first"),
    )


def _draft_revocation(
    revoked: Sequence[Entry], removed_ids: Iterable[str], by: str | None = None
) -> tuple[Draft, ...]:
    """Draft the retirement of facts whose messages were removed; nothing if there are no such facts."""
    if not revoked:
        return ()
    return (draft_retraction(rules.single_spans(revoked), sorted(removed_ids), REVOKED, by),)


async def propagate_to_profile(
    storage: StorageBackend, namespace: str, change: ProfileChange, rewrite_id: str
) -> None:
    """Apply a rewrite of a session to the profile of its namespace; `rewrite_id` is the id of the rewrite's entry.

    Retires the profile's facts made from removed messages, and restores those that an undone rewrite had retired.
    """
    if not change.removed_ids and change.undone_id is None:
        return
    profile = await find_profile(storage, namespace)
    while profile is not None:
        head = await storage.head(profile.id)
        facts = await storage.read(profile.id, at=head.version, kinds=(Kind.FACT,))
        if not facts:
            return
        replacements = await replacements_at(storage, profile.id, head, head.version)
        drafts = _profile_drafts(facts, replacements, change, rewrite_id, head.version)
        drafts = await _with_private_revocations(storage, facts, replacements, drafts, head.version)
        if not drafts:
            return
        append = Append(context=profile.id, drafts=drafts, expect=Expect(version=head.version))
        (result,) = await storage.append([append])
        if not isinstance(result, ACMSError):
            return
        if type(result) is not ConflictError:
            raise result
        # The profile has changed meanwhile: decide again.


async def forget_in_profile(
    storage: StorageBackend, namespace: str, context: str, upto: int, rewrite_id: str
) -> None:
    """Update the profile of a namespace after a session was cleared up to a version, by an entry of this id.

    Retires the profile's facts made from messages of this session alone; facts with other sources stay.
    """
    profile = await find_profile(storage, namespace)
    if profile is None or profile.id == context:
        return
    removed_ids: set[str] = set()
    for fact in await storage.read(profile.id, kinds=(Kind.FACT,)):
        if _comes_only_from(fact, context, upto):
            removed_ids.update(fact.sources)
    change = ProfileChange(frozenset(removed_ids), require_all_sources=True)
    await propagate_to_profile(storage, namespace, change, rewrite_id)


async def apply_private_setting(storage: StorageBackend, context: Context) -> None:
    """Retire the facts of the namespace's profile that were made from a session alone, if the session is private.

    Facts stated without a source belong to no session and stay active. Sharing a session again restores nothing.
    """
    if context.settings.get(policy.PRIVATE):
        head = await storage.head(context.id)
        cause = f"{policy.PRIVATE}:{context.id}"
        await forget_in_profile(storage, context.namespace, context.id, head.version, cause)


async def _with_private_revocations(
    storage: StorageBackend,
    facts: Sequence[Entry],
    before: Replacements,
    drafts: tuple[Draft, ...],
    version: int,
) -> tuple[Draft, ...]:
    """Return the drafts for a profile, extended so that facts known only from private sessions stay retired."""
    # A retirement may in turn restore facts that the retired ones had superseded: repeat until none is added.
    while True:
        after = _replacements_after(before, drafts, version)
        removed_ids: set[str] = set()
        for fact in facts:
            is_restored = (
                before.replaced_by(fact.version) is not None and after.replaced_by(fact.version) is None
            )
            if fact.sources and is_restored and await _is_private(storage, fact):
                removed_ids.update(fact.sources)
        if not removed_ids:
            return drafts
        revoked = rules.find_revoked_facts(facts, after, frozenset(removed_ids), require_all_sources=True)
        if not revoked:
            return drafts
        drafts = (*drafts, *_draft_revocation(revoked, removed_ids, policy.PRIVATE))


async def _is_private(storage: StorageBackend, fact: Entry) -> bool:
    """Return whether all sessions that a fact was made from are private."""
    origins = [parse_entry_id(id) for id in fact.sources]
    for owner in {origin[0] for origin in origins if origin is not None}:
        try:
            context = await storage.context(owner)
        except SessionNotFoundError:
            return False
        if not context.settings.get(policy.PRIVATE):
            return False
    return True


def _comes_only_from(fact: Entry, context: str, upto: int) -> bool:
    """Return whether all sources of a fact are entries of one context, up to a version."""
    for origin in map(parse_entry_id, fact.sources):
        if origin is None or origin[0] != context or origin[1] > upto:
            return False
    return True


def _profile_drafts(
    facts: Sequence[Entry], replacements: Replacements, change: ProfileChange, rewrite_id: str, version: int
) -> tuple[Draft, ...]:
    """Return the drafts that apply a session's rewrite to the profile, whose last version is `version`.

    Facts made from removed messages are retired. If the rewrite undoes an earlier one, the retirements that the earlier
    one caused are undone, unless a restored fact would come back to an address that a later fact fills.
    """
    retirements: list[Entry] = []
    if change.undone_id is not None:
        for entry in replacements.replacing:
            is_active = replacements.replaced_by(entry.version) is None
            if is_active and entry.data.get("by") == change.undone_id:
                retirements.append(entry)
    if retirements:
        undo = draft_retraction(rules.single_spans(retirements), [entry.id for entry in retirements], UNDO)
        drafts = _with_revocation((undo,), facts, replacements, change, rewrite_id, version)
        replacements_after = _replacements_after(replacements, drafts, version)
        would_collide = rules.find_collision(facts, replacements, replacements_after) is not None
        if not would_collide:
            return drafts
    return _with_revocation((), facts, replacements, change, rewrite_id, version)


def _with_revocation(
    drafts: tuple[Draft, ...],
    facts: Sequence[Entry],
    replacements: Replacements,
    change: ProfileChange,
    rewrite_id: str,
    version: int,
) -> tuple[Draft, ...]:
    """Return drafts, followed by the retirement of the facts whose messages a rewrite removes, if there are any."""
    after = _replacements_after(replacements, drafts, version)
    revoked = rules.find_revoked_facts(
        facts, after, change.removed_ids, require_all_sources=change.require_all_sources
    )
    return (*drafts, *_draft_revocation(revoked, change.removed_ids, rewrite_id))


def spans_with_predecessors(
    targets: Iterable[Entry], facts: Iterable[Entry], replacements: Replacements
) -> tuple[Span, ...]:
    """Return the spans of facts that are retracted and of all facts they supersede."""
    history = rules.FactHistory(facts, replacements)
    retracted: list[Entry] = []
    for target in targets:
        retracted += [target, *history.find_predecessors(target)]
    return rules.single_spans(retracted)
