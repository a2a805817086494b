"""Facts by hand: a caller states or withdraws facts, by the rules that a reflector's proposals follow.

No model is called, and nothing is stored in part. Restating an unchanged fact changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, get_args

from acms.errors import ACMSError, ConflictError, PreconditionError, ValidationError
from acms.facts import consolidate as rules
from acms.facts import faults, request
from acms.facts.consolidate import Consolidated, Rules, fold_text, stated_period
from acms.facts.job import read_adjacent
from acms.knowledge import Cardinality, Fact, Proposal, Scope
from acms.log import facts as log_facts
from acms.log import validation
from acms.log.in_force import Cover
from acms.log.policy import PRIVATE
from acms.log.read import PROFILE, find_profile
from acms.log.validity import ends_older_period
from acms.model import Append, ContextDraft, Entry, Expect, Kind, Origin, Privacy
from acms.privacy.modes import stored_mode
from acms.recall.index_cache import record_new_profile

if TYPE_CHECKING:
    from acms.session_state import SharedSession

_Choose = Callable[[Sequence[Fact]], list[Proposal]]


def build_proposal(
    shared: SharedSession,
    texts: Mapping[str, str],
    names: Sequence[str],
    valid_from: datetime | date | str | None,
    valid_to: datetime | date | str | None,
    cardinality: Cardinality,
    scope: Scope,
) -> Proposal:
    """Validate a stated fact at the public boundary and return it as a proposal."""
    subject, attribute, value = [
        _redact_text(shared, _check_text(said, field)) for field, said in texts.items()
    ]
    others = [_redact_text(shared, _check_text(name, "names")) for name in _check_list(names, "names")]
    _check_address(subject, attribute)
    if cardinality not in ("one", "many"):
        raise ValidationError(f"{cardinality!r} is not one or many", field="cardinality")
    _check_scope(scope, shared.namespace)
    stated = Proposal(
        scope=scope,
        content=f"{subject}, {attribute}: {value}",
        subject=subject,
        attribute=attribute,
        value=value,
        cardinality=cardinality,
        names=tuple(dict.fromkeys(others)),
        valid_from=None if valid_from is None else parse_valid_time(valid_from, "valid_from"),
        valid_to=None if valid_to is None else parse_valid_time(valid_to, "valid_to"),
    )
    if stated.valid_from and stated.valid_to and stated.valid_to <= stated.valid_from:
        raise ValidationError("must come after valid_from", field="valid_to")
    return stated


async def store_fact(
    shared: SharedSession, stated: Proposal, *, sources: Sequence[str], expected: int | None
) -> Fact:
    """Write a fact and return it; the one in force when it says just that."""
    subject, attribute, value = stated.subject, stated.attribute, stated.value
    if expected is not None:
        validation.validate_integer(expected, "expected")
    context = home = await shared.ensure()
    read = [await shared.entry(home, None, id, newest=True) for id in _check_list(sources, "sources")]
    if any(entry.kind is not Kind.MESSAGE for entry in read):
        raise ValidationError("must be ids or keys of messages", field="sources")
    if stated.scope == "namespace":
        await _check_shared(shared, home)
        context = await _ensure_profile(shared)
    said = max((entry.created_at for entry in read), default=shared.clock())
    same: list[Fact] = []

    def choose(known: Sequence[Fact]) -> list[Proposal]:
        there = _facts_at_address(known, subject, attribute)
        alike = [
            fact
            for fact in there
            if fold_text(fact.value) == fold_text(value) and stated_period(fact).meets(stated_period(stated))
        ]
        told = {id for fact in alike for id in fact.sources}
        same[:] = [
            fact
            for fact in alike
            if (fact.names, stated_period(fact)) == (stated.names, stated_period(stated))
            and fact.doubt is None
            and told.issuperset(entry.id for entry in read)
        ]
        if same:
            return []
        newest = max((fact.version for fact in there), default=0)
        if expected not in (None, newest):
            raise PreconditionError(
                f"the newest fact about {subject!r}, {attribute!r} is at version {newest}, not {expected}",
                options=("read the facts again and decide again",),
            )
        if alike and ends_older_period(stated_period(stated), stated_period(alike[-1]), said):
            return [replace(stated, action="update", fact_id=alike[-1].id)]
        return [stated]

    ids = await _append_changes(shared, context, choose, read)
    found = await request.read_facts(shared.storage, context, None, history=True, stage=shared.stage)
    wanted = ids[0] if ids else same[-1].id
    return next(fact for fact in found if fact.id == wanted)


async def withdraw_facts(shared: SharedSession, subject: str, attribute: str, scope: Scope) -> list[Fact]:
    """Withdraw the known facts at an address and return them; an empty list if there are none."""
    subject, attribute = _check_text(subject, "subject"), _check_text(attribute, "attribute")
    _check_address(subject, attribute)
    _check_scope(scope, shared.namespace)
    context = await shared.find()
    if scope == "namespace":
        found = await find_profile(shared.storage, shared.namespace)
        context = None if found is None else found.id
    if context is None:
        return []
    gone: list[str] = []

    def choose(known: Sequence[Fact]) -> list[Proposal]:
        gone[:] = [fact.id for fact in _facts_at_address(known, subject, attribute)]
        return [Proposal(action="remove", fact_id=id) for id in gone]

    await _append_changes(shared, context, choose, ())
    found = await request.read_facts(shared.storage, context, None, history=True, stage=shared.stage)
    return [fact for fact in found if fact.id in gone]


def parse_valid_time(value: datetime | date | str, field: str) -> datetime:
    """Return a moment from an aware time, a date, which begins at midnight UTC, or either in ISO 8601."""
    if isinstance(value, str):
        try:
            value = date.fromisoformat(value)
        except ValueError:
            return validation.parse_moment(value, field)
    if isinstance(value, date) and not isinstance(value, datetime):
        return datetime(value.year, value.month, value.day, tzinfo=UTC)
    return validation.parse_moment(value, field)


async def _append_changes(
    shared: SharedSession, context: str, choose: _Choose, read: Sequence[Entry]
) -> tuple[str, ...]:
    """Consolidate and append the proposals chosen from the active facts, retrying on conflicts; return the ids."""
    storage = shared.storage
    while True:
        head = await storage.head(context)
        made = await storage.read(context, at=head.version, kinds=(Kind.FACT,))
        replacing = await storage.read(context, at=head.version, replacing=True) if head.rewrites else []
        cover = Cover(replacing, searchable=True)
        known = [fact for fact in log_facts.collect_facts(made, cover, replacing) if fact.retired is None]
        proposals = choose(known)
        if not proposals:
            return ()
        # Two concurrent identical statements append once; a later one appends again.
        key = f"state:{head.rewrites}-{made[-1].version if made else 0}"
        plan = await _consolidate_proposals(shared, proposals, known, read, key)
        for decision in plan.decisions:
            if decision.draft is None:
                raise ValidationError(f"{decision.outcome}: {decision.reason}", field="value")
        # Of two concurrent statements for one address the second reads again, so it replaces the first.
        op = Append(context=context, drafts=plan.drafts, expect=Expect(version=head.version))
        (result,) = await storage.append([op])
        if type(result) is ConflictError and (await storage.head(context)).version != head.version:
            continue
        if isinstance(result, ACMSError):
            raise result
        return result.ids


async def _consolidate_proposals(
    shared: SharedSession,
    proposals: Sequence[Proposal],
    known: Sequence[Fact],
    read: Sequence[Entry],
    key: str,
) -> Consolidated:
    config = shared.config.reflection
    limits = Rules(
        min_confidence=0.0,
        max_facts=config.max_active_facts,
        max_tokens=config.max_fact_tokens,
        max_active=config.max_active_facts,
    )
    deciding = rules.consolidate_proposals(
        proposals,
        known,
        read,
        limits,
        now=shared.clock(),
        count=shared.counter.count,
        key=key,
        by=Origin.USER,
    )
    try:
        question = next(deciding)
        while True:
            question = deciding.send(await read_adjacent(shared.storage, question.ids))
    except StopIteration as done:
        found: Consolidated = done.value
        return found


def _facts_at_address(known: Sequence[Fact], subject: str, attribute: str) -> list[Fact]:
    where = log_facts.normalize_address(subject, attribute)
    return [fact for fact in known if log_facts.normalize_address(fact.subject, fact.attribute) == where]


async def _check_shared(shared: SharedSession, context: str) -> None:
    if (await shared.storage.context(context)).settings.get(PRIVATE):
        raise ConflictError(
            f"{shared.session_id!r} is private: what is stated in it is not for its namespace",
            retryable=False,
            options=('state it with scope="session"', "state it in a session that is not private"),
        )


async def _ensure_profile(shared: SharedSession) -> str:
    """Return the id of the log of the namespace's facts; the first one that is stated creates it."""
    storage = shared.storage
    found = await find_profile(storage, shared.namespace)
    if found is None:
        counter, now = shared.counter.name, datetime.now(UTC)
        found = await storage.create(
            ContextDraft(key=PROFILE, namespace=shared.namespace, counter=counter, created_at=now)
        )
        record_new_profile(shared.handle)
    return found.id


def _check_scope(scope: Scope, namespace: str) -> None:
    if scope not in get_args(Scope):
        raise ValidationError(f"{scope!r} is not session or namespace", field="scope")
    if scope == "namespace":
        validation.shared_namespace(namespace)


def _check_address(subject: str, attribute: str) -> None:
    for field, folded in zip(
        ("subject", "attribute"), log_facts.normalize_address(subject, attribute), strict=True
    ):
        if not folded:
            raise ValidationError("must have a letter or a digit", field=field)


def _check_list(given: Sequence[str], field: str) -> Sequence[str]:
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise ValidationError(f"must be a list, not {type(given).__name__}", field=field)
    return given


def _check_text(given: str, field: str) -> str:
    most = faults.VALUE if field == "value" else faults.LABEL
    text = validation.validate_text(given, field, limit=faults.VALUE).strip()
    if not text or len(text) > most:
        raise ValidationError(f"must have 1 to {most} characters", field=field)
    return text


def _redact_text(shared: SharedSession, text: str) -> str:
    """Return a text as it may be stored."""
    privacy = shared.config.privacy
    if not privacy.redact_before_persist:
        return text
    from acms.privacy.detect import redact_text  # the rules come with it

    return redact_text(text, stored_mode(privacy.mode, Privacy.ALLOW)).text
