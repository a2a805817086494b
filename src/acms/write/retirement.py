"""Retirement: which facts are retired when the messages they were made from are rewritten.

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
from acms.log.encoding import parse_entry_id
from acms.log.facts import REVOKED
from acms.log.in_force import Cover
from acms.log.read import cover_at, find_profile
from acms.model import Append, Context, Draft, Entry, Expect, Kind, Origin, Span
from acms.ports import StorageBackend


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A rewrite of a log with all its effects on facts: the drafts to append, and the changes for the profile."""

    drafts: tuple[Draft, ...]
    #: Ids of the messages that are retracted or replaced.
    gone: frozenset[str]
    #: Id of the rewrite that is taken back.
    undone: str | None = None
    #: Whether a fact goes only when all that it was made from goes.
    whole: bool = False


async def plan_rewrite(
    storage: StorageBackend,
    context: str,
    draft: Draft,
    cover: Cover,
    *,
    version: int,
    gone: Iterable[Entry] = (),
    undone: Entry | None = None,
) -> Rewrite:
    """Return the effects on facts of a draft that replaces or retracts entries, decided at a version.

    Facts that were made from the messages `gone` are retired in an entry of their own after the draft. The rewrite
    `undone` is undone together with the retirements it caused. `ConflictError` when a fact would become active again
    at an address of cardinality one that another one fills. `cover` is the searchable one: summarized messages are
    retired and restored with their facts as if no summary had replaced them.
    """
    if undone is not None:
        caused = [one for one in cover.batch(undone) if _is_revocation(one) and cover.by(one.version) is None]
        draft = replace(draft, replaces=(*draft.replaces, *rules.single_spans(caused)))
    ids = frozenset(entry.id for entry in gone if entry.kind is Kind.MESSAGE)
    drafts = await with_facts(storage, context, [draft], cover, version, ids)
    return Rewrite(drafts, ids, undone.id if undone is not None else None)


async def with_facts(
    storage: StorageBackend,
    context: str,
    drafts: Sequence[Draft],
    cover: Cover,
    version: int,
    gone: frozenset[str],
) -> tuple[Draft, ...]:
    """Return edits and retractions, followed by the retirement of the facts made from the messages that go."""
    made = await storage.read(context, at=version, kinds=(Kind.FACT,))
    if not made:
        return tuple(drafts)
    after = cover.then(rules.simulate_append(drafts, version))
    cited = gone.union(
        *[_citable_ids(entry) for entry in await storage.get(sorted(gone)) if entry is not None]
    )
    revoked = rules.find_revoked_facts(made, after, cited)
    found = (*drafts, _revocation_draft(revoked, gone)) if revoked else tuple(drafts)
    clash = rules.find_collision(made, cover, cover.then(rules.simulate_append(found, version)))
    if clash is not None:
        raise _collision_error(*clash)
    return found


def _citable_ids(entry: Entry) -> tuple[str, ...]:
    """Return the ids under which facts of a log may cite a message: its own, and of a copy those of the original."""
    return (entry.id,) if entry.replaces else (entry.id, *entry.sources)


def _is_revocation(entry: Entry) -> bool:
    """Whether an entry appended after a rewrite retires the facts affected by that rewrite."""
    return entry.kind is Kind.RETRACTION and entry.data.get("reason") == REVOKED


def _collision_error(fact: Entry, other: Entry) -> ConflictError:
    return ConflictError(
        f"the fact v{fact.version} would come back to the address of v{other.version}, which holds one value",
        retryable=False,
        options=(f"retract {other.id} first", f"undo v{other.version} first"),
    )


def _revocation_draft(revoked: Iterable[Entry], gone: Iterable[str], by: str | None = None) -> Draft:
    return Draft(
        kind=Kind.RETRACTION,
        created_at=datetime.now(UTC),
        origin=Origin.DERIVED,
        replaces=rules.single_spans(revoked),
        sources=tuple(sorted(gone)),
        data={"reason": REVOKED} if by is None else {"reason": REVOKED, "by": by},
    )


async def propagate_to_profile(storage: StorageBackend, namespace: str, done: Rewrite, by: str) -> None:
    """Apply a rewrite of a session to the profile of its namespace; `by` is the id of the rewrite's entry.

    Retires the profile's facts made from removed messages, and restores those that an undone rewrite had retired.
    """
    if not done.gone and done.undone is None:
        return
    known = await find_profile(storage, namespace)
    while known is not None:
        head = await storage.head(known.id)
        made = await storage.read(known.id, at=head.version, kinds=(Kind.FACT,))
        if not made:
            return
        cover = await cover_at(storage, known.id, head, head.version)
        drafts = await _with_private_revocations(
            storage, made, cover, _profile_drafts(made, cover, done, by, head.version), head.version
        )
        if not drafts:
            return
        (result,) = await storage.append(
            [Append(context=known.id, drafts=drafts, expect=Expect(version=head.version))]
        )
        if not isinstance(result, ACMSError):
            return
        if type(result) is not ConflictError:
            raise result


async def forget_in_profile(
    storage: StorageBackend, namespace: str, context: str, upto: int, by: str
) -> None:
    """Update the profile of a namespace after a session was cleared up to a version; `by` is the id of that entry.

    Retires the profile's facts made from messages of this session alone; facts with other sources stay.
    """
    known = await find_profile(storage, namespace)
    if known is None or known.id == context:
        return
    made = await storage.read(known.id, kinds=(Kind.FACT,))
    gone = frozenset(id for fact in made if _comes_only_from(fact, context, upto) for id in fact.sources)
    await propagate_to_profile(storage, namespace, Rewrite((), gone, whole=True), by)


async def set_private(storage: StorageBackend, context: str, private: bool) -> None:
    """Hide a session's messages and the facts learned from it from its namespace, or share them again."""
    await follow_private(storage, await policy.set_private(storage, context, private))


async def follow_private(storage: StorageBackend, context: Context) -> None:
    """Update the profile of the namespace for a private session: facts made from this session alone are retired.

    Facts stated without a source belong to no session and stay active. Sharing a session again restores nothing.
    """
    if context.settings.get(policy.PRIVATE):
        head = await storage.head(context.id)
        by = f"{policy.PRIVATE}:{context.id}"
        await forget_in_profile(storage, context.namespace, context.id, head.version, by)


async def _with_private_revocations(
    storage: StorageBackend,
    made: Sequence[Entry],
    before: Cover,
    drafts: tuple[Draft, ...],
    version: int,
) -> tuple[Draft, ...]:
    """Return the drafts for a profile, extended so that facts known only from private sessions stay retired."""
    while True:
        after = before.then(rules.simulate_append(drafts, version))
        back = [
            fact
            for fact in made
            if fact.sources and before.by(fact.version) is not None and after.by(fact.version) is None
        ]
        gone = frozenset([id for fact in back if await _is_private(storage, fact) for id in fact.sources])
        revoked = rules.find_revoked_facts(made, after, gone, whole=True) if gone else ()
        if not revoked:
            return drafts
        drafts = (*drafts, _revocation_draft(revoked, gone, policy.PRIVATE))


async def _is_private(storage: StorageBackend, fact: Entry) -> bool:
    for owner in {place[0] for place in map(parse_entry_id, fact.sources) if place is not None}:
        try:
            context = await storage.context(owner)
        except SessionNotFoundError:
            return False
        if not context.settings.get(policy.PRIVATE):
            return False
    return True


def _comes_only_from(fact: Entry, context: str, upto: int) -> bool:
    """Whether all that a fact was made from is of one context, up to a version."""
    places = [parse_entry_id(id) for id in fact.sources]
    return all(place is not None and place[0] == context and place[1] <= upto for place in places)


def _profile_drafts(
    made: Sequence[Entry], cover: Cover, done: Rewrite, by: str, version: int
) -> tuple[Draft, ...]:
    back = [
        one
        for one in cover.replacing
        if done.undone is not None and one.data.get("by") == done.undone and cover.by(one.version) is None
    ]
    undo = Draft(
        kind=Kind.RETRACTION,
        created_at=datetime.now(UTC),
        origin=Origin.DERIVED,
        replaces=rules.single_spans(back),
        sources=tuple(one.id for one in back),
        data={"reason": "undo"},
    )
    drafts = _with_revocation((undo,), made, cover, done, by, version)
    if back and rules.find_collision(made, cover, cover.then(rules.simulate_append(drafts, version))) is None:
        return drafts
    return _with_revocation((), made, cover, done, by, version)  # an undo does not override later facts


def _with_revocation(
    first: tuple[Draft, ...],
    made: Sequence[Entry],
    cover: Cover,
    done: Rewrite,
    by: str,
    version: int,
) -> tuple[Draft, ...]:
    after = cover.then(rules.simulate_append(first, version))
    revoked = rules.find_revoked_facts(made, after, done.gone, whole=done.whole)
    return (*first, _revocation_draft(revoked, done.gone, by)) if revoked else first


def spans_with_predecessors(
    targets: Sequence[Entry], made: Iterable[Entry], cover: Cover
) -> tuple[Span, ...]:
    """Return the spans of facts that are retracted and of all facts they supersede."""
    found = rules.Succession(made, cover)
    return rules.single_spans([one for target in targets for one in (target, *found.chain(target))])
