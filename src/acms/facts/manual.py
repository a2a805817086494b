"""Facts by hand: a caller states or withdraws facts, under the same rules as the proposals of a reflector.

No model is called, and each change is atomic. Restating an unchanged fact changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, get_args

from acms.errors import ACMSError, ConflictError, PreconditionError, ValidationError
from acms.facts import proposal_validation, request
from acms.facts.consolidate import Consolidation, FactLimits, stated_period
from acms.facts.request import ensure_profile
from acms.facts.statements import fold_text
from acms.knowledge import Cardinality, Fact, Proposal, Scope
from acms.log import facts as log_facts
from acms.log import validation
from acms.log.policy import PRIVATE
from acms.log.read import find_profile
from acms.log.validity import ends_older_period
from acms.model import Append, Entry, Expect, Kind, Origin, Privacy
from acms.privacy.modes import stored_mode
from acms.recall.index_cache import record_new_profile

if TYPE_CHECKING:
    from acms.session_state import SharedSession

_ProposeChanges = Callable[[Sequence[Fact]], list[Proposal]]
"""Returns the changes to make to the active facts of a log."""


def build_proposal(
    shared: SharedSession,
    texts: Mapping[str, str],
    names: Sequence[str],
    valid_from: datetime | date | str | None,
    valid_to: datetime | date | str | None,
    cardinality: Cardinality,
    scope: Scope,
) -> Proposal:
    """Validate a fact that a caller states, and return it as a proposal.

    `texts` has the subject, the attribute and the value, in this order.
    """
    redacted = [_redact_text(shared, _validate_text(text, field)) for field, text in texts.items()]
    subject, attribute, value = redacted
    aliases: list[str] = []
    for name in _validate_list(names, "names"):
        aliases.append(_redact_text(shared, _validate_text(name, "names")))
    _check_address(subject, attribute)
    if cardinality not in ("one", "many"):
        raise ValidationError(f"{cardinality!r} is not one or many", field="cardinality")
    _check_scope(scope, shared.namespace)
    start = None if valid_from is None else parse_valid_time(valid_from, "valid_from")
    end = None if valid_to is None else parse_valid_time(valid_to, "valid_to")
    if start and end and end <= start:
        raise ValidationError("must come after valid_from", field="valid_to")
    return Proposal(
        scope=scope,
        content=f"{subject}, {attribute}: {value}",
        subject=subject,
        attribute=attribute,
        value=value,
        cardinality=cardinality,
        names=tuple(dict.fromkeys(aliases)),
        valid_from=start,
        valid_to=end,
    )


async def store_fact(
    shared: SharedSession, stated: Proposal, *, sources: Sequence[str], expected: int | None
) -> Fact:
    """Store a fact and return it, or return the active fact that already says exactly that.

    `sources` are ids or keys of messages. `expected` is the version of the newest fact at the same address, or 0 for
    none; `PreconditionError` if the newest one has another version.
    """
    if expected is not None:
        validation.validate_integer(expected, "expected")
    context = await shared.ensure()
    ids = _validate_list(sources, "sources")
    messages = [await shared.entry(context, None, id, newest=True) for id in ids]
    if any(entry.kind is not Kind.MESSAGE for entry in messages):
        raise ValidationError("must be ids or keys of messages", field="sources")
    if stated.scope == "namespace":
        await _check_not_private(shared, context)
        context = await ensure_profile(shared.storage, shared.namespace, shared.counter.name)
        record_new_profile(shared.handle)
    stated_at = max((entry.created_at for entry in messages), default=shared.clock())
    #: Id of the active fact that states exactly the same.
    same_id = ""

    def propose_changes(active_facts: Sequence[Fact]) -> list[Proposal]:
        nonlocal same_id
        at_address = _select_at_address(active_facts, stated.subject, stated.attribute)
        with_same_value = _select_with_same_value(at_address, stated)
        same_id = _find_same_fact_id(with_same_value, stated, messages)
        if same_id:
            return []
        newest = max((fact.version for fact in at_address), default=0)
        if expected not in (None, newest):
            raise PreconditionError(
                f"the newest fact about {stated.subject!r}, {stated.attribute!r} is at version {newest},"
                f" not {expected}",
                options=("read the facts again and decide again",),
            )
        if with_same_value:
            older = with_same_value[-1]
            if ends_older_period(stated_period(stated), stated_period(older), stated_at):
                return [replace(stated, action="update", fact_id=older.id)]
        return [stated]

    added_ids = await _append_changes(shared, context, propose_changes, messages)
    fact_id = added_ids[0] if added_ids else same_id
    facts = await request.read_facts(shared.storage, context, None, history=True, redactor=shared.redactor)
    return next(fact for fact in facts if fact.id == fact_id)


def _select_with_same_value(facts: Iterable[Fact], stated: Proposal) -> list[Fact]:
    """Return the facts that state the same value for a period in common."""
    value, period = fold_text(stated.value), stated_period(stated)
    return [fact for fact in facts if fold_text(fact.value) == value and stated_period(fact).overlaps(period)]


def _find_same_fact_id(facts: Sequence[Fact], stated: Proposal, messages: Iterable[Entry]) -> str:
    """Return the id of the newest fact that already states exactly the same, or "" if there is none.

    All of the `facts` have the stated value. A fact states the same if it also has the same names and the same period,
    and is not in doubt. If none of the facts cites one of the source `messages`, the result is "", because stating the
    fact again adds that source.
    """
    cited_ids: set[str] = set()
    for fact in facts:
        cited_ids.update(fact.sources)
    if not cited_ids.issuperset(entry.id for entry in messages):
        return ""
    for fact in reversed(facts):
        same_names = fact.names == stated.names
        if same_names and stated_period(fact) == stated_period(stated) and fact.doubt is None:
            return fact.id
    return ""


async def withdraw_facts(shared: SharedSession, subject: str, attribute: str, scope: Scope) -> list[Fact]:
    """Withdraw the active facts at an address and return them; an empty list if there are none."""
    subject, attribute = _validate_text(subject, "subject"), _validate_text(attribute, "attribute")
    _check_address(subject, attribute)
    _check_scope(scope, shared.namespace)
    context = await shared.find()
    if scope == "namespace":
        profile = await find_profile(shared.storage, shared.namespace)
        context = None if profile is None else profile.id
    if context is None:
        return []
    withdrawn_ids: list[str] = []

    def propose_changes(active_facts: Sequence[Fact]) -> list[Proposal]:
        withdrawn_ids[:] = [fact.id for fact in _select_at_address(active_facts, subject, attribute)]
        return [Proposal(action="remove", fact_id=id) for id in withdrawn_ids]

    await _append_changes(shared, context, propose_changes, ())
    facts = await request.read_facts(shared.storage, context, None, history=True, redactor=shared.redactor)
    return [fact for fact in facts if fact.id in withdrawn_ids]


def parse_valid_time(value: datetime | date | str, field: str) -> datetime:
    """Return a moment from an aware time or a date, or from either in ISO 8601; a date means midnight UTC."""
    if isinstance(value, str):
        try:
            value = date.fromisoformat(value)
        except ValueError:
            return validation.parse_moment(value, field)
    if isinstance(value, date) and not isinstance(value, datetime):
        return datetime(value.year, value.month, value.day, tzinfo=UTC)
    return validation.parse_moment(value, field)


async def _append_changes(
    shared: SharedSession, context: str, propose_changes: _ProposeChanges, messages: Sequence[Entry]
) -> tuple[str, ...]:
    """Append the changes proposed for the active facts of a log, and return the ids of the new entries.

    `messages` are the sources that the caller named. After a conflict `propose_changes` is called again.
    """
    storage, config = shared.storage, shared.config.reflection
    limits = FactLimits(
        min_confidence=0.0,
        max_facts=config.max_active_facts,
        max_tokens=config.max_fact_tokens,
        max_active=config.max_active_facts,
    )
    while True:
        head = await storage.head(context)
        log = await request.read_active_facts(storage, context, head)
        proposals = propose_changes(log.facts)
        if not proposals:
            return ()
        # Two identical statements at the same state of the log have the same key, so the second appends nothing.
        newest_version = log.entries[-1].version if log.entries else 0
        key = f"state:{head.rewrites}-{newest_version}"
        consolidation = Consolidation(
            proposals,
            log.facts,
            messages,
            limits,
            now=shared.clock(),
            count=shared.counter.count,
            key=key,
            stated_by=Origin.USER,
        )
        consolidated = consolidation.build_drafts(await storage.get(consolidation.cited_ids))
        for decision in consolidated.decisions:
            if decision.draft is None:
                raise ValidationError(f"{decision.outcome}: {decision.reason}", field="value")
        # Of two concurrent statements for one address the second is decided again, so that it replaces the first.
        append = Append(context=context, drafts=consolidated.drafts, expect=Expect(version=head.version))
        (result,) = await storage.append([append])
        if type(result) is ConflictError and (await storage.head(context)).version != head.version:
            continue
        if isinstance(result, ACMSError):
            raise result
        return result.ids


def _select_at_address(facts: Sequence[Fact], subject: str, attribute: str) -> list[Fact]:
    address = log_facts.normalize_address(subject, attribute)
    return [fact for fact in facts if log_facts.normalize_address(fact.subject, fact.attribute) == address]


async def _check_not_private(shared: SharedSession, context: str) -> None:
    """Raise `ConflictError` if a session is private: it must not state facts of its namespace."""
    if (await shared.storage.context(context)).settings.get(PRIVATE):
        raise ConflictError(
            f"{shared.session_id!r} is private: its facts are not shared with its namespace",
            retryable=False,
            options=('state it with scope="session"', "state it in a session that is not private"),
        )


def _check_scope(scope: Scope, namespace: str) -> None:
    if scope not in get_args(Scope):
        raise ValidationError(f"{scope!r} is not session or namespace", field="scope")
    if scope == "namespace":
        validation.require_shared_namespace(namespace)


def _check_address(subject: str, attribute: str) -> None:
    address = log_facts.normalize_address(subject, attribute)
    for field, folded in zip(("subject", "attribute"), address, strict=True):
        if not folded:
            raise ValidationError("must have a letter or a digit", field=field)


def _validate_list(values: Sequence[str], field: str) -> Sequence[str]:
    """Return the values if they are a list; raise `ValidationError` for a single text or another type."""
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise ValidationError(f"must be a list, not {type(values).__name__}", field=field)
    return values


def _validate_text(text: str, field: str) -> str:
    """Return a text without spaces around it; raise `ValidationError` if it is empty or too long for its field."""
    max_chars = (
        proposal_validation.MAX_VALUE_BYTES if field == "value" else proposal_validation.MAX_LABEL_CHARS
    )
    stripped = validation.validate_text(text, field, limit=proposal_validation.MAX_VALUE_BYTES).strip()
    if not stripped or len(stripped) > max_chars:
        raise ValidationError(f"must have 1 to {max_chars} characters", field=field)
    return stripped


def _redact_text(shared: SharedSession, text: str) -> str:
    """Return a text, redacted if the configuration redacts texts before they are stored."""
    privacy = shared.config.privacy
    if not privacy.redact_before_persist:
        return text
    from acms.privacy.detect import redact_text  # imports the redaction rules

    return redact_text(text, stored_mode(privacy.mode, Privacy.ALLOW)).text
