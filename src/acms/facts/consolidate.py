"""Consolidation: decide about the facts that a reflector or a caller proposes (rule 1.16, decision 26).

The functions are pure: the same proposals about the same facts give the same drafts. Which fact replaces which is
decided by addresses and ids, never by similarity. When a fact is retired, the sentences that state it are *demoted*:
recall leaves them out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from hashlib import sha256

from acms.facts.proposal_validation import find_fault, to_utc
from acms.facts.statements import (
    Words,
    find_outdated_messages,
    find_sentences_of_fact,
    fold_text,
    states_fact,
)
from acms.knowledge import Cardinality, Decision, Fact, Outcome, Proposal
from acms.log import trust
from acms.log.doubt import MENTIONS, sentence_names
from acms.log.encoding import parse_entry_id
from acms.log.facts import SAID, Address, has_address, normalize_address
from acms.log.validity import Period, ends_older_period, stated_at
from acms.model import Draft, Entry, Json, Kind, MarkerType, Origin, Privacy, Span
from acms.text.tokenizer import find_sentence_spans

MAX_ROUNDS = 8
"""Maximum number of rounds into which an answer that contradicts itself is divided: each costs an append."""

_STRICTEST_FIRST = (Privacy.BLOCK, Privacy.REDACT, Privacy.ALLOW)
_MARKERS = frozenset(marker.value for marker in MarkerType)

_StatedValues = dict[object, Words]
"""Folded values, by the id of their fact, by their exclusive address, and by (address, value)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FactLimits:
    """Limits of the facts that a consolidation adds, from `ReflectionConfig`."""

    min_confidence: float
    #: Facts that one answer may add.
    max_facts: int
    #: Tokens a fact may have.
    max_tokens: int
    #: Active facts; above this number, some are archived.
    max_active: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Consolidated:
    """The drafts to append, and the decisions with their reasons."""

    #: New facts first, then retractions; each with a key, so that a repeated append changes nothing.
    drafts: tuple[Draft, ...]
    #: One for each proposal, in order.
    decisions: tuple[Decision, ...]


@dataclass(slots=True, eq=False)
class _Change:
    """A proposal that is valid by itself; the other proposals of the answer may still override it."""

    index: int
    proposal: Proposal
    sources: tuple[Entry, ...]
    trust: Origin
    #: When the newest of its sources was stated.
    stated_at: datetime
    #: Ids of the facts it follows from.
    depends_on: tuple[str, ...]
    #: Active facts that the proposal names by id; for a removal without an id, the facts it means by its value.
    named_facts: tuple[Fact, ...] = ()
    #: Active facts that it replaces because its address holds one value; none for a removal.
    displaced_facts: tuple[Fact, ...] = ()
    address: Address = ("", "")
    cardinality: Cardinality = "many"
    #: Reason of the decision, if it is not an ordinary one.
    note: str = ""

    @property
    def retired_facts(self) -> tuple[Fact, ...]:
        """The active facts that it retires, each once."""
        return tuple({fact.id: fact for fact in (*self.named_facts, *self.displaced_facts)}.values())

    @property
    def is_removal(self) -> bool:
        """Whether it only removes facts."""
        return self.proposal.action == "remove"

    @property
    def fills_address(self) -> bool:
        """Whether its fact becomes the only one at its address."""
        return self.cardinality == "one" and not self.is_removal

    @property
    def named_ids(self) -> set[str]:
        """The ids of the facts that the proposal names."""
        return {fact.id for fact in self.named_facts}


def split_rounds(proposals: Sequence[Proposal], active_facts: Sequence[Fact]) -> list[list[int]]:
    """Divide an answer into rounds without contradictions; return the indexes of the proposals of each round.

    Two proposals contradict each other if they state different values for one fact or one address of cardinality one,
    or if one removes what the other states. Rounds are consolidated and appended one after the other, so a value that
    is corrected later in the same answer is stored and then retired, like any correction.
    """
    valid = [find_fault(proposal) is None for proposal in proposals]
    exclusive_addresses: set[Address] = set()
    for fact in active_facts:
        if fact.cardinality == "one":
            exclusive_addresses.add(normalize_address(fact.subject, fact.attribute))
    for proposal, is_valid in zip(proposals, valid, strict=True):
        if is_valid and proposal.cardinality == "one":
            exclusive_addresses.add(normalize_address(proposal.subject, proposal.attribute))
    rounds: list[list[int]] = [[]]
    values_of_round: _StatedValues = {}
    for index, proposal in enumerate(proposals):
        if valid[index] and len(rounds) < MAX_ROUNDS:
            stated = _collect_stated_values(proposal, exclusive_addresses)
            if _contradicts_round(proposal, stated, values_of_round):
                rounds.append([])
                values_of_round.clear()
            values_of_round.update(stated)
        rounds[-1].append(index)
    return rounds


def _collect_stated_values(proposal: Proposal, exclusive_addresses: Iterable[Address]) -> _StatedValues:
    """Return the value that a proposal states, under each of its keys; empty if it keeps or removes a fact."""
    if proposal.action in ("keep", "remove"):
        return {}
    address, value = normalize_address(proposal.subject, proposal.attribute), fold_text(proposal.value)
    stated: _StatedValues = {(address, value): value}
    value_or_content = value or fold_text(proposal.content)
    if has_address(address) and address in exclusive_addresses:
        stated[address] = value_or_content
    if proposal.fact_id is not None:
        stated[proposal.fact_id] = value_or_content
    return stated


def _contradicts_round(proposal: Proposal, stated: _StatedValues, values_of_round: _StatedValues) -> bool:
    """Return whether a proposal removes what its round states, or states another value under the same key."""
    if proposal.action == "remove":
        address = normalize_address(proposal.subject, proposal.attribute)
        removed_key = proposal.fact_id or (address, fold_text(proposal.value))
        return removed_key in values_of_round
    return any(values_of_round.get(key, value) != value for key, value in stated.items())


class Consolidation:
    """Decides about the proposals of one answer, in order.

    The caller reads the messages of `cited_ids`, and passes them to `build_drafts`.
    """

    def __init__(
        self,
        proposals: Sequence[Proposal],
        active_facts: Sequence[Fact],
        read_messages: Sequence[Entry],
        limits: FactLimits,
        *,
        now: datetime,
        count: Callable[[str], int],
        key: str,
        stated_by: Origin | None = None,
    ) -> None:
        """Decide about the proposals for the active facts of one log.

        `read_messages` are the messages that the reflector read, or that the caller cites. `count` counts tokens. `key`
        begins the keys of all drafts, and is the same for the same answer of a reflector. `stated_by` is set if a
        caller states the facts by hand: it is their trust, whatever they cite, and the caller has already checked for
        duplicates.
        """
        self._proposals = proposals
        self._active_facts = active_facts
        self._read_messages = read_messages
        self._limits = limits
        self._now = now
        self._count = count
        self._key = key
        self._stated_by = stated_by
        #: The active facts by id: each by its own, and by the ids of the facts that it replaces.
        self._by_id: dict[str, Fact] = {}
        #: The active facts by address.
        self._by_address: dict[Address, list[Fact]] = {}
        for fact in active_facts:
            self._by_address.setdefault(normalize_address(fact.subject, fact.attribute), []).append(fact)
            for id in (*fact.replaces, fact.id):
                self._by_id[id] = fact
        self._decisions: dict[int, Decision] = {}
        #: Index of a proposal that keeps a fact → the fact.
        self._keeps: dict[int, Fact] = {}
        #: Cardinality of the addresses that the answer adds to.
        self._cardinalities: dict[Address, Cardinality] = {}
        self._changes: list[_Change] = []
        for index, proposal in enumerate(proposals):
            self._process_proposal(index, proposal)
        self._drop_overridden()
        self._drop_redundant_removals()
        self._retire_facts_once()
        self._limit_additions()
        self._decide_keeps()

    @property
    def cited_ids(self) -> list[str]:
        """Ids of the messages that retired facts cite."""
        ids: dict[str, None] = {}
        for change in self._changes:
            for fact in change.retired_facts:
                ids.update(dict.fromkeys(fact.sources))
        return list(ids)

    def _decide(
        self, index: int, outcome: Outcome, reason: str, fact_id: str | None = None, draft: int | None = None
    ) -> None:
        self._decisions[index] = Decision(
            proposal=self._proposals[index], outcome=outcome, reason=reason, fact_id=fact_id, draft=draft
        )

    # ── one proposal ────────────────────────────────────────────────────────────────────────────────────────────────

    def _process_proposal(self, index: int, proposal: Proposal) -> None:
        """Reject a proposal, record it as a change, or record that it keeps a fact."""
        fault = find_fault(proposal)
        if fault is not None:
            self._decide(index, "invalid", fault)
            return
        proposal = replace(proposal, content=proposal.content.strip())
        named = self._by_id.get(proposal.fact_id or "")
        if proposal.action == "keep":
            if named is None:
                self._decide(index, "unknown_id", f"no active fact has the id {proposal.fact_id!r}")
                return
            if named.doubt is None:
                self._keeps[index] = named
                return
            # A proposal to keep a fact in doubt states it again, which ends the doubt.
            proposal = replace(proposal, action="update", content=named.content, value=named.value)
        min_confidence = self._limits.min_confidence
        if proposal.confidence < min_confidence:
            reason = f"{proposal.confidence:g} is less than {min_confidence:g}"
            self._decide(index, "low_confidence", reason, named.id if named else None)
            return
        change = self._build_change(index, proposal, named)
        if change.is_removal:
            if not change.named_facts:
                self._decide(index, "unknown_id", _describe_missing(proposal))
                return
        elif not proposal.content:
            self._decide(index, "invalid", "content: must not be empty")
            return
        else:
            tokens, max_tokens = self._count(proposal.content), self._limits.max_tokens
            if tokens > max_tokens:
                self._decide(index, "too_long", f"{tokens} tokens, a fact may have {max_tokens}")
                return
        self._record_change(change)

    def _record_change(self, change: _Change) -> None:
        """Record a change, unless it repeats a fact, or would end a fact or an earlier change of higher trust."""
        index, origin = change.index, change.trust
        protected_facts = [fact for fact in change.retired_facts if _is_protected(fact.trust, origin)]
        rival = self._find_rival(change)
        # This comes last, because it may add a fact to those that the change names.
        duplicate = None if self._stated_by or change.is_removal else self._confirm_or_find_duplicate(change)
        if duplicate is not None:
            reason, fact_id = duplicate
            self._decide(index, "duplicate", reason, fact_id)
            self._override_changes(fact_id, change)
        elif protected_facts:
            protected = protected_facts[0]
            reason = f"what {origin.value} says cannot end what {protected.trust.value} said"
            self._decide(index, "untrusted", reason, protected.id)
        elif rival is not None:
            reason = f"what {origin.value} says cannot end what {rival.trust.value} said"
            self._decide(index, "untrusted", f"{reason} (proposal {rival.index + 1})")
        else:
            if has_address(change.address) and not change.is_removal:
                self._cardinalities.setdefault(change.address, change.cardinality)
            self._changes.append(change)

    def _override_changes(self, fact_id: str | None, later: _Change) -> None:
        """Drop the earlier changes that would retire a fact, because a later change states the fact again."""
        for earlier in tuple(self._changes):
            retired_ids = {fact.id for fact in earlier.retired_facts}
            if fact_id in retired_ids and not _is_protected(earlier.trust, later.trust):
                self._changes.remove(earlier)
                reason = f"proposal {later.index + 1} says that it stays"
                self._decide(earlier.index, "overridden", reason, fact_id)

    def _build_change(self, index: int, proposal: Proposal, named: Fact | None) -> _Change:
        """Build the change that a proposal makes, with its sources, its trust and the active facts that it retires.

        `named` is the active fact with the id `fact_id` of the proposal, or None.
        """
        sources, trust_of_repeated = self._find_sources(proposal, named)
        origins = [*map(trust.trust_of_entry, sources), *trust_of_repeated]
        depends_on = [self._by_id[id].id for id in proposal.depends_on if id in self._by_id]
        change = _Change(
            index,
            proposal,
            sources,
            trust=self._stated_by or trust.lowest_trust(origins, default=Origin.DERIVED),
            stated_at=max((entry.created_at for entry in sources), default=self._now),
            depends_on=tuple(dict.fromkeys(depends_on)),
        )
        if named is not None:
            change.named_facts = (named,)
            if not change.is_removal:
                proposal = _complete_update(proposal, named)
                change.proposal = proposal
        elif proposal.action == "update":
            change.note = f"no active fact has the id {proposal.fact_id!r}: added"
        change.address = normalize_address(proposal.subject, proposal.attribute)
        if not has_address(change.address):
            return change
        facts_at_address = self._by_address.get(change.address, ())
        if not change.is_removal:
            self._apply_to_address(change, facts_at_address)
        elif proposal.fact_id is None:
            change.named_facts = _select_removed(proposal, facts_at_address)
        return change

    def _apply_to_address(self, change: _Change, facts_at_address: Sequence[Fact]) -> None:
        """Set the cardinality of a change, and the active facts at its address that it displaces."""
        proposal = change.proposal
        if any(fact.cardinality == "one" for fact in facts_at_address):
            change.cardinality = "one"
        elif not facts_at_address:  # otherwise several values are known already: the address stays "many"
            set_by_answer = self._cardinalities.get(change.address)
            change.cardinality = set_by_answer or proposal.cardinality or "many"
        if change.cardinality == "one":
            period = stated_period(proposal)
            displaced: list[Fact] = []
            for fact in facts_at_address:
                if ends_older_period(period, stated_period(fact), change.stated_at):
                    displaced.append(fact)
            change.displaced_facts = tuple(displaced)

    def _find_sources(
        self, proposal: Proposal, named: Fact | None
    ) -> tuple[tuple[Entry, ...], Sequence[Origin]]:
        """Return the sources of a proposal, and the trust of active facts whose value it repeats.

        Sources are the cited messages, or all messages that were read if none is cited. A message can make the
        reflector cite another, more trusted one. So if no cited message states the fact, less trusted messages that
        state it are added, and the trust of active facts with the same value counts too.
        """
        cited = tuple(entry for entry in self._read_messages if entry.version in proposal.sources)
        if not cited:
            return tuple(self._read_messages), ()
        statement = named if named is not None and not proposal.content else proposal
        value = fold_text(statement.value)
        if any(states_fact(entry.content, value, statement.content) for entry in cited):
            return cited, ()
        cited_rank = trust.RANK[trust.lowest_trust(map(trust.trust_of_entry, cited))]
        sources: list[Entry] = []
        for entry in self._read_messages:
            is_cited = entry.version in proposal.sources
            is_less_trusted = trust.RANK[trust.trust_of_entry(entry)] < cited_rank
            if is_cited or (is_less_trusted and states_fact(entry.content, value, statement.content)):
                sources.append(entry)
        trust_of_repeated: list[Origin] = []
        if value and proposal.content:
            for fact in self._active_facts:
                if fold_text(fact.value) == value:
                    trust_of_repeated.append(fact.trust)
        return tuple(sources), trust_of_repeated

    def _find_rival(self, change: _Change) -> _Change | None:
        """Return an earlier change that protects its fact or address from a less trusted change, or None."""
        for earlier in self._changes:
            both_fill = change.fills_address and earlier.fills_address
            fills_same_address = both_fill and earlier.address == change.address
            names_same_fact = not change.named_ids.isdisjoint(earlier.named_ids)
            if (fills_same_address or names_same_fact) and _is_protected(earlier.trust, change.trust):
                return earlier
        return None

    def _confirm_or_find_duplicate(self, change: _Change) -> tuple[str, str | None] | None:
        """Return why a change is a duplicate and the id of the fact that it repeats, or None.

        A change that confirms a known fact is not a duplicate: the fact is added to those that the change names.
        """
        fact = self._find_same_fact(change)
        if fact is not None:
            note = _describe_confirmation(fact, change)
            adds_nothing = not note
            if adds_nothing:
                return "it is known already", fact.id
            change.named_facts = (*change.named_facts, fact)
            change.note = note
            return None
        additions = [
            other for other in self._changes if other.address == change.address and not other.is_removal
        ]
        if change.cardinality == "one":
            additions = additions[-1:]  # earlier values are replaced by the last one
        for other in additions:
            same_target = not change.named_facts or other.named_facts == change.named_facts
            if same_target and _is_same_statement(change.proposal, other.proposal):
                return f"proposal {other.index + 1} says so too", None
        return None

    def _find_same_fact(self, change: _Change) -> Fact | None:
        """Return the active fact that a change states again, if it is valid when the change is stated; else None."""
        candidates: Sequence[Fact] = self._active_facts
        if has_address(change.address):
            candidates = self._by_address.get(change.address, ())
        period = stated_period(change.proposal)
        for fact in candidates:
            if not _is_same_statement(change.proposal, fact, exactly=fact in change.named_facts):
                continue
            fact_period = stated_period(fact)
            if fact_period == period or fact_period.holds(change.stated_at):
                return fact
        return None

    # ── several proposals ───────────────────────────────────────────────────────────────────────────────────────────

    def _drop_overridden(self) -> None:
        """Drop each change that names the same fact or fills the same address as a later change."""
        # The changes are read backwards, so the later one of two is known first.
        later_by_fact: dict[str, _Change] = {}
        later_by_address: dict[Address, _Change] = {}
        remaining: list[_Change] = []
        for change in reversed(self._changes):
            overriding = [later_by_fact[fact.id] for fact in change.named_facts if fact.id in later_by_fact]
            if change.fills_address and change.address in later_by_address:
                overriding.append(later_by_address[change.address])
            if overriding:
                reason = f"proposal {overriding[0].index + 1} is about the same"
                fact_id = change.named_facts[0].id if change.named_facts else None
                self._decide(change.index, "overridden", reason, fact_id)
                continue
            later_by_fact.update((fact.id, change) for fact in change.named_facts)
            if change.fills_address:
                later_by_address[change.address] = change
            remaining.append(change)
        self._changes = remaining[::-1]

    def _drop_redundant_removals(self) -> None:
        """Drop the removals of facts that another change of the answer replaces, in any order."""
        displaced_by: dict[str, _Change] = {}
        for change in self._changes:
            displaced_by.update((fact.id, change) for fact in change.displaced_facts)
        remaining: list[_Change] = []
        for change in self._changes:
            if change.is_removal:
                first = change.named_facts[0]  # a removal names at least one fact
                change.named_facts = tuple(fact for fact in change.named_facts if fact.id not in displaced_by)
                if not change.named_facts:
                    reason = f"proposal {displaced_by[first.id].index + 1} takes its place"
                    self._decide(change.index, "overridden", reason, first.id)
                    continue
            remaining.append(change)
        self._changes = remaining

    def _retire_facts_once(self) -> None:
        """Let no change displace a fact that another change names: a fact is retired only once."""
        named_ids: set[str] = set()
        for change in self._changes:
            named_ids |= change.named_ids
        for change in self._changes:
            named_by_others = named_ids - change.named_ids
            change.displaced_facts = tuple(
                fact for fact in change.displaced_facts if fact.id not in named_by_others
            )

    def _limit_additions(self) -> None:
        """Drop the new facts of an answer above a limit: first those of tools and pages, then the last ones."""
        max_facts = self._limits.max_facts
        additions = [change for change in self._changes if not change.is_removal and not change.retired_facts]
        additions.sort(key=lambda change: not trust.is_protected_origin(change.trust))
        for change in sorted(additions[max_facts:], key=lambda change: change.index):
            self._decide(change.index, "over_limit", f"one answer may add {max_facts} facts")
            self._changes.remove(change)

    def _decide_keeps(self) -> None:
        """Decide about proposals that keep a fact: a change of the fact by the same answer overrides them."""
        retired = {fact.id: change for change in self._changes for fact in change.retired_facts}
        for index, fact in self._keeps.items():
            if fact.id in retired:
                reason = f"proposal {retired[fact.id].index + 1} changes it"
                self._decide(index, "overridden", reason, fact.id)
            else:
                self._decide(index, "kept", "", fact.id)

    # ── drafts ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def build_drafts(self, cited: Iterable[Entry | None]) -> Consolidated:
        """Return the drafts to append, new facts before retractions; `cited` are the entries of `cited_ids`."""
        messages: dict[str, Entry] = {}
        for entry in cited:
            if entry is not None and entry.kind is Kind.MESSAGE:
                messages[entry.id] = entry
        drafts: list[Draft] = []
        for change in sorted(self._changes, key=lambda change: change.is_removal):
            self._decide_change(change, len(drafts))
            new_value = "" if change.is_removal else change.proposal.value
            valid_spans = find_outdated_messages(
                change.retired_facts, new_value, change.sources, self._active_facts, messages
            )
            drafts.append(self._draft_change(change, valid_spans))
        archival = self._draft_archival()
        if archival is not None:
            drafts.append(archival)
        decisions = [self._decisions[index] for index in range(len(self._proposals))]
        return Consolidated(drafts=tuple(drafts), decisions=tuple(decisions))

    def _decide_change(self, change: _Change, draft_index: int) -> None:
        """Record the decision about a change that is carried out by a draft."""
        retired = change.retired_facts
        outcome: Outcome = "updated" if retired else "added"
        if change.is_removal:
            outcome = "removed"
        reason = change.note
        if retired and not reason:
            reason = "it names the fact" if change.named_facts else "its address holds one value"
        self._decide(change.index, outcome, reason, retired[0].id if retired else None, draft_index)

    def _draft_change(self, change: _Change, valid_spans: dict[str, list[Span]]) -> Draft:
        """Draft the fact that a change states, or the retraction of the facts that it removes.

        `valid_spans` has the ids of messages that state retired facts, each with its spans that are still valid.
        """
        proposal = change.proposal
        data: dict[str, Json] = {"reason": "removed"} if change.is_removal else _build_fact_data(change)
        if change.sources:
            data[SAID] = to_utc(change.stated_at).isoformat()
        if valid_spans:
            data["demotes"] = [[id, [list(span) for span in spans]] for id, spans in valid_spans.items()]
        retraction = Draft(
            kind=Kind.RETRACTION,
            key=self._build_key(change),
            created_at=self._now,
            origin=Origin.DERIVED,
            replaces=_spans_of_facts(change.retired_facts, with_superseded=change.is_removal),
            sources=tuple(entry.id for entry in change.sources),
            data=data,
        )
        if change.is_removal:
            return retraction
        # A marker raises the rank of a fact, which text of tools and pages must not.
        is_marker = proposal.fact_type in _MARKERS and trust.is_protected_origin(change.trust)
        return replace(
            retraction,
            kind=Kind.FACT,
            content=proposal.content,
            tokens=self._count(proposal.content),
            privacy=_strictest_privacy(change.sources),
            markers=(proposal.fact_type,) if is_marker else (),
        )

    def _build_key(self, change: _Change) -> str:
        """Return the key of a draft; it depends on the content, because two answers about the same input may differ."""
        proposal = change.proposal
        retired_ids = [fact.id for fact in change.retired_facts]
        identity = (proposal.action, proposal.content, proposal.value, *change.address, *retired_ids)
        return f"{self._key}:{change.index}:{_short_digest(identity)}"

    def _draft_archival(self) -> Draft | None:
        """Draft the retraction of facts above the limit of active ones, or return None.

        Facts of tools and pages are archived first, then the least confident ones.
        """
        retired_ids = {fact.id for change in self._changes for fact in change.retired_facts}
        remaining = [fact for fact in self._active_facts if fact.id not in retired_ids]
        added = sum(not change.is_removal for change in self._changes)
        excess = len(remaining) + added - self._limits.max_active
        if excess <= 0 or not remaining:
            return None
        remaining.sort(key=_rank_for_archive)
        spans = _spans_of_facts(remaining[:excess], with_superseded=True)
        return Draft(
            kind=Kind.RETRACTION,
            key=f"{self._key}:archived:{_short_digest(spans)}",
            created_at=self._now,
            origin=Origin.DERIVED,
            replaces=spans,
            data={"reason": "archived"},
        )


def stated_period(statement: Proposal | Fact) -> Period:
    """Return the period in which a statement is true by its own words."""
    start, end = statement.valid_from, statement.valid_to
    return Period(None if start is None else to_utc(start), None if end is None else to_utc(end))


def _select_removed(proposal: Proposal, facts: Sequence[Fact]) -> tuple[Fact, ...]:
    """Return the facts at an address that a removal without an id means: those of its value, or the only one."""
    if proposal.value:
        value = fold_text(proposal.value)
        return tuple(fact for fact in facts if fold_text(fact.value) == value)
    return tuple(facts) if len(facts) == 1 else ()


def _complete_update(proposal: Proposal, named: Fact) -> Proposal:
    """Return an update with its missing fields taken from the fact it names."""
    if not proposal.attribute:
        cardinality = proposal.cardinality or named.cardinality
        proposal = replace(
            proposal, subject=named.subject, attribute=named.attribute, cardinality=cardinality
        )
    fact_type = named.fact_type if proposal.fact_type == "fact" else proposal.fact_type
    return replace(proposal, fact_type=fact_type, scope=named.scope)


def _describe_missing(proposal: Proposal) -> str:
    if proposal.fact_id is not None:
        return f"no active fact has the id {proposal.fact_id!r}"
    return "it names no id, and no single fact at its address"


def _describe_confirmation(fact: Fact, change: _Change) -> str:
    """Return why a change that restates a fact still replaces it, or "" if it does not."""
    is_newer = change.stated_at > stated_at(fact)
    if fact.doubt is not None and is_newer and not _is_protected(fact.trust, change.trust):
        return "it was in doubt, and is said again"
    if _is_protected(change.trust, fact.trust):
        return f"{change.trust.value} confirms what {fact.trust.value} said"
    return ""


def _is_protected(origin: Origin, other: Origin) -> bool:
    """Return whether a statement cannot be ended by another one.

    Tools and pages cannot end statements of the application, the user or the assistant (decision 26).
    """
    return trust.is_protected_origin(origin) and not trust.is_protected_origin(other)


def _is_same_statement(proposal: Proposal, other: Fact | Proposal, *, exactly: bool = False) -> bool:
    """Return whether two statements at one address say the same: by their values if both have one, else by words.

    With `exactly` the words must be the same too.
    """
    if proposal.negative != other.negative:
        return False
    period, other_period = stated_period(proposal), stated_period(other)
    if period.start is not None and period.start != other_period.start:
        return False
    if period.end is not None and period.end != other_period.end:
        return False
    if proposal.value.strip() and other.value.strip():
        if fold_text(proposal.value) != fold_text(other.value):
            return False
        if not exactly and has_address(normalize_address(proposal.subject, proposal.attribute)):
            return True
    return fold_text(proposal.content) == fold_text(other.content)


def _build_fact_data(change: _Change) -> dict[str, Json]:
    """Return the data of the fact that a change states, without empty values."""
    proposal = change.proposal
    period = stated_period(proposal)
    retired_ids = {fact.id for fact in change.retired_facts}
    data: dict[str, Json] = {
        "subject": proposal.subject.strip(),
        "attribute": proposal.attribute.strip(),
        "value": proposal.value.strip(),
        "names": list(proposal.names),
        "cardinality": change.cardinality,
        "fact_type": proposal.fact_type.strip() or "fact",
        "confidence": float(proposal.confidence),
        "negative": proposal.negative,
        "scope": proposal.scope,
        "trust": change.trust.value,
        "valid_from": None if period.start is None else period.start.isoformat(),
        "valid_to": None if period.end is None else period.end.isoformat(),
        "depends_on": [id for id in change.depends_on if id not in retired_ids],
        MENTIONS: _collect_names(change),
        "episode": max((entry.episode for entry in change.sources), default=0),
    }
    return {name: value for name, value in data.items() if value or name == "confidence"}


def _collect_names(change: _Change) -> list[Json]:
    """Return the names in the sentences that state a fact but not in the fact itself: they identify its premises."""
    # More than three sources are probably all messages that were read, not those of this fact.
    if len(change.sources) > 3:
        return []
    statement = change.proposal.content
    value = fold_text(change.proposal.value)
    names: dict[str, None] = {}
    for entry in change.sources:
        stating = find_sentences_of_fact(entry.content, value, statement)
        for index, (start, end) in enumerate(find_sentence_spans(entry.content)):
            if index in stating:
                names.update(dict.fromkeys(sentence_names(entry.content[start:end], statement)))
    return list(names)[:12]  # with more, most later facts would be its premises


def _strictest_privacy(sources: Iterable[Entry]) -> Privacy:
    """Return the strictest privacy of the sources of a fact: a caller may cite a blocked message."""
    return min((entry.privacy for entry in sources), key=_STRICTEST_FIRST.index, default=Privacy.ALLOW)


def _spans_of_facts(facts: Iterable[Fact], *, with_superseded: bool) -> tuple[Span, ...]:
    """Return the spans of facts, and if required of all facts that they supersede, which then stay inactive."""
    versions: set[int] = set()
    for fact in facts:
        versions.add(fact.version)
        superseded_ids = fact.replaces if with_superseded else ()
        for id in superseded_ids:
            parsed = parse_entry_id(id)
            if parsed is not None:
                _, version = parsed
                versions.add(version)
    return tuple((version, version) for version in sorted(versions))


def _rank_for_archive(fact: Fact) -> tuple[bool, bool, float, int]:
    """Return the sort key of facts to archive; the first ones are archived first."""
    protected = trust.is_protected_origin(fact.trust)
    is_constraint = protected and fact.fact_type == MarkerType.CONSTRAINT
    return protected, is_constraint, fact.confidence, fact.version


def _short_digest(value: object) -> str:
    return sha256(repr(value).encode()).hexdigest()[:12]
