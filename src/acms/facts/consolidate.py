"""Consolidate: decide about the facts a reflector proposes (rule 1.16, decision 26).

Pure: the same proposals about the same facts give the same drafts. Addresses and ids decide which fact replaces which,
never similarity. When a fact is retired, the sentences that state it are *demoted* too, and recall leaves them out.

Only the sources of a retired fact are searched for such sentences, and never the sources of the new one: a message that
contradicts an old fact is not outdated because it names it. In a source a value is found by its words, and the
significant ones are compared letter by letter: numbers, dates, ids.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from hashlib import sha256
from typing import Self

from acms.facts.faults import find_fault, to_utc
from acms.knowledge import Cardinality, Decision, Fact, Outcome, Proposal
from acms.log import trust
from acms.log.doubt import MENTIONS, sentence_names
from acms.log.encoding import parse_entry_id
from acms.log.facts import SAID, Address, has_address, normalize_address
from acms.log.validity import Period, ends_older_period, stated_at
from acms.model import Draft, Entry, Json, Kind, MarkerType, Origin, Privacy, Span, State
from acms.text.tokenizer import content_term, find_sentence_spans

ENOUGH = 0.5
"""Share of the words of a fact that a sentence must have to say it, where its value is not found."""

_WORD = re.compile(r"\S+")
_EDGE = " \t\n.,;:!?\"'()[]{}<>“”„«»‘’…*_`–—"
_JOINTS = str.maketrans("", "", "-'’")
_PARTS = re.compile(r"[-/]")
_POSSESSIVE = re.compile(r"['’]s$")


def fold_text(text: str) -> tuple[str, ...]:
    """Return the words of a text as two texts are compared: punctuation at their edges and case of words aside.

    Signs, digits and mixed case stay: `-5` is not `5`, `mW` not `MW`.
    """
    found: list[str] = []
    for match in _WORD.finditer(unicodedata.normalize("NFKC", text)):
        word = _POSSESSIVE.sub("", match[0].strip(_EDGE))
        if word.translate(_JOINTS).isalpha() and (len(word) > 2 or word.istitle() or word.islower()):
            word = word.casefold()
        if word:
            found.append(word)
    return tuple(found)


def mentions_value(sentence: Sequence[str], value: Sequence[str]) -> bool:
    """Whether a folded sentence has all words of a folded value, or all that count where some say nothing."""
    there = set(sentence)
    there.update(part for word in sentence for part in _PARTS.split(word))
    telling = [word for word in value if content_term(word)] or list(value)
    whole = "".join(value)
    if not whole.isascii() and whole in "".join(sentence):  # not everybody puts spaces between words
        return True
    return bool(telling) and all(word in there for word in telling)


class Said:
    """Finds the messages that state facts which are being retired."""

    def __init__(self, known: Sequence[Fact], around: Mapping[str, Sequence[Entry]]) -> None:
        self._known = known
        self._around = around

    def demoted(
        self, ends: Sequence[Fact], instead: Proposal | None, sources: Sequence[Entry]
    ) -> dict[str, list[Span]]:
        """Return the messages that state some facts, each with the spans of it that are still valid.

        `instead` replaces the facts and was made from `sources`, which stay valid; None when they end. A message that
        is wholly valid is not included.
        """
        bad: dict[str, set[int]] = {}
        entries: dict[str, Entry] = {}
        new = fold_text(instead.value) if instead is not None else ()
        evidence = {entry.id for entry in sources}
        for fact in ends:
            old = fold_text(fact.value)
            if old and old == new:
                continue
            shared = {
                id
                for other in self._known
                if other.id != fact.id and fold_text(other.value) == old
                for id in other.sources
            }
            told = self._of_sources(fact, old, new)
            for id in fact.sources:
                for entry in self._around.get(id, ()):
                    if entry.id == id and id not in evidence and id not in shared:
                        entries[id] = entry
                        bad.setdefault(id, set()).update(told.get(id, set()))
        return {
            id: _remaining_spans(entries[id].content, some)
            for id, some in bad.items()
            if some and entries[id].kind is Kind.MESSAGE and entries[id].state is State.LIVE
        }

    def _of_sources(self, fact: Fact, old: Sequence[str], new: Sequence[str]) -> dict[str, set[int]]:
        """Return the sentences of its sources that say a fact.

        A fact may cite all that was read. So where the value or the statement is found, a source without either says
        something else; where nothing is found, the citation alone is believed.
        """
        entries = {id: one for id in fact.sources for one in self._around.get(id, ()) if one.id == id}
        found = {
            id: _sentences_with_value(one, old, new) if old else set[int]() for id, one in entries.items()
        }
        if old and new and mentions_value(new, old):
            return found
        if len(found) > 1:
            for id in [id for id, some in found.items() if not some]:
                found[id] = _overlapping_sentences(entries[id].content, fact.content)
        if not any(found.values()) or len(found) == 1:
            return {
                id: some or _closest_sentences(entries[id].content, fact.content)
                for id, some in found.items()
            }
        return found


def _sentences_with_value(entry: Entry, old: Sequence[str], new: Sequence[str]) -> set[int]:
    """Return which sentences of an entry have a value; one that is part of the new value is not meant with it."""
    inside = bool(new) and mentions_value(new, old)
    found: set[int] = set()
    for number, (start, end) in enumerate(find_sentence_spans(entry.content)):
        said = fold_text(entry.content[start:end])
        if mentions_value(said, old) and not (inside and mentions_value(said, new)):
            found.add(number)
    return found


def _closest_sentences(content: str, statement: str) -> set[int]:
    """Return which sentences are most likely to say a statement: those with enough of its words, or the best one."""
    shares = _sentence_overlaps(content, statement)
    enough = {number for number, share in enumerate(shares) if share >= ENOUGH}
    if enough or not shares or max(shares) == 0:
        return enough or set(range(len(shares)))
    return {shares.index(max(shares))}


def _overlapping_sentences(content: str, statement: str) -> set[int]:
    """Return which sentences have enough of the words of a statement."""
    return {number for number, share in enumerate(_sentence_overlaps(content, statement)) if share >= ENOUGH}


def _sentence_overlaps(content: str, statement: str) -> list[float]:
    wanted = _folded_terms(statement)
    return [
        len(wanted & _folded_terms(content[start:end])) / max(1, len(wanted))
        for start, end in find_sentence_spans(content)
    ]


def _folded_terms(text: str) -> set[int]:
    return {content_term(word.casefold()) for word in fold_text(text)} - {0}


def _remaining_spans(content: str, bad: set[int]) -> list[Span]:
    """Return the spans of a text without some of its sentences."""
    found: list[Span] = []
    for number, (start, end) in enumerate(find_sentence_spans(content)):
        if number in bad:
            continue
        if found and found[-1][1] == start:
            found[-1] = (found[-1][0], end)
        else:
            found.append((start, end))
    return found


FEW = 3
"""Maximum sources of a fact whose sentences are searched for premises: a longer list cites everything read."""
NAMES = 12
"""Names that are noted beside a fact, at most."""
ROUNDS = 8
"""Parts an answer that contradicts itself is divided into, at most."""

_STRICT = (Privacy.ALLOW, Privacy.REDACT, Privacy.BLOCK)
_MARKERS = frozenset(marker.value for marker in MarkerType)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The limits of `ReflectionConfig`."""

    min_confidence: float
    #: Facts that one answer may add.
    max_facts: int
    #: Tokens a fact may have.
    max_tokens: int
    #: Facts in force; beyond, some are archived.
    max_active: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Consolidated:
    """The drafts to append, and the reasons."""

    #: New facts first, then retractions; each with a key, so that a repeated append changes nothing.
    drafts: tuple[Draft, ...]
    #: One for each proposal, in order.
    decisions: tuple[Decision, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """Messages that are needed, each with up to two before and after it of the same episode."""

    ids: tuple[str, ...]


@dataclass(slots=True, eq=False)
class _Change:
    """A proposal that passed the rules about itself."""

    index: int
    proposal: Proposal
    sources: tuple[Entry, ...]
    trust: Origin
    #: When the newest of its sources was said.
    said: datetime
    #: Facts in force that go: named by the proposal, or met at its address.
    named: tuple[Fact, ...] = ()
    met: tuple[Fact, ...] = ()
    #: Ids of the facts it follows from.
    rests: tuple[str, ...] = ()
    where: Address = ("", "")
    cardinality: Cardinality = "many"
    note: str = ""

    @property
    def ends(self) -> tuple[Fact, ...]:
        return tuple({fact.id: fact for fact in (*self.named, *self.met)}.values())

    @property
    def exclusive(self) -> bool:
        return self.cardinality == "one"


@dataclass(slots=True)
class _Book:
    """The decisions made so far."""

    proposals: Sequence[Proposal]
    #: The facts in force, by their ids and those they replace, and by address.
    known: Sequence[Fact]
    by_id: Mapping[str, Fact]
    at: Mapping[Address, Sequence[Fact]]
    now: datetime
    #: Class of the caller who states facts by hand; None for a reflector.
    by: Origin | None = None
    decisions: dict[int, Decision] = field(default_factory=dict)
    changes: list[_Change] = field(default_factory=list)
    #: Places of proposals that keep a fact, and the fact.
    keeps: list[tuple[int, Fact]] = field(default_factory=list)
    #: Cardinality of the addresses that the answer adds to.
    counts: dict[Address, Cardinality] = field(default_factory=dict)

    @classmethod
    def about(
        cls, proposals: Sequence[Proposal], known: Sequence[Fact], now: datetime, by: Origin | None
    ) -> Self:
        """Begin with the facts in force."""
        at: dict[Address, list[Fact]] = {}
        for fact in known:
            at.setdefault(normalize_address(fact.subject, fact.attribute), []).append(fact)
        by_id = {id: fact for fact in known for id in (*fact.replaces, fact.id)}
        return cls(proposals, known, by_id, at, now, by)

    def decide(
        self, index: int, outcome: Outcome, reason: str, fact_id: str | None = None, draft: int | None = None
    ) -> None:
        self.decisions[index] = Decision(
            proposal=self.proposals[index], outcome=outcome, reason=reason, fact_id=fact_id, draft=draft
        )


def split_rounds(proposals: Sequence[Proposal], known: Sequence[Fact]) -> list[list[int]]:
    """Divide an answer so that no part makes two statements about one fact or one address of cardinality one.

    A value that is corrected later in the same answer is stored and then retired, like any correction: each part is
    consolidated and appended on its own, in order. The same holds for a value that is removed later in the answer.
    Returns the indices of the proposals of each part.
    """
    one = {normalize_address(fact.subject, fact.attribute) for fact in known if fact.cardinality == "one"}
    sound = [not find_fault(said) for said in proposals]
    for index, said in enumerate(proposals):
        if sound[index] and said.cardinality == "one":
            one.add(normalize_address(said.subject, said.attribute))
    found: list[list[int]] = [[]]
    values: dict[object, tuple[str, ...]] = {}
    for index, said in enumerate(proposals):
        if sound[index] and said.action in ("add", "update") and len(found) < ROUNDS:
            where = normalize_address(said.subject, said.attribute)
            about: list[object] = [where] if has_address(where) and where in one else []
            about += [said.fact_id] if said.fact_id is not None else []
            value = fold_text(said.value) or fold_text(said.content)
            if any(values.get(one, value) != value for one in about):
                found.append([])
                values.clear()
            values.update(dict.fromkeys(about, value))
            values[where, fold_text(said.value)] = value
        elif sound[index] and said.action == "remove" and len(found) < ROUNDS:
            where = normalize_address(said.subject, said.attribute)
            if (said.fact_id or (where, fold_text(said.value))) in values:
                found.append([])
                values.clear()
        found[-1].append(index)
    return found


def consolidate_proposals(
    proposals: Sequence[Proposal],
    known: Sequence[Fact],
    read: Sequence[Entry],
    rules: Rules,
    *,
    now: datetime,
    count: Callable[[str], int],
    key: str,
    by: Origin | None = None,
) -> Generator[Around, Mapping[str, Sequence[Entry]], Consolidated]:
    """Decide about proposals, in order, and return the drafts to append.

    `known` are the active facts of one log, `read` the messages that the reflector read. Asks at most once for messages
    around others, when a fact is retired; ids without an answer are skipped. `key` begins the keys of all drafts: the
    same for the same answer of a reflector. `by` is the class of a caller who states the facts by hand: they have that
    trust, whatever they cite, and the caller has already checked for duplicates.
    """
    book = _Book.about(proposals, known, now, by)
    for index, proposal in enumerate(proposals):
        _judge_proposal(index, proposal, book, read, rules, count)
    changes = _limit_additions(_drop_overridden(book.changes, book), rules.max_facts, book)
    _decide_keeps(changes, book)
    around: Mapping[str, Sequence[Entry]] = {}
    asked = tuple(dict.fromkeys(id for change in changes for fact in change.ends for id in fact.sources))
    if asked:
        around = yield Around(ids=asked)
    drafts = _build_drafts(changes, known, around, book, now=now, count=count, key=key)
    drafts += _archive_excess(changes, known, rules.max_active, now=now, key=key)
    return Consolidated(
        drafts=tuple(drafts), decisions=tuple(book.decisions[index] for index in range(len(proposals)))
    )


# ── one proposal ────────────────────────────────────────────────────────────────────────────────────────────────────


def _judge_proposal(
    index: int,
    proposal: Proposal,
    book: _Book,
    read: Sequence[Entry],
    rules: Rules,
    count: Callable[[str], int],
) -> None:
    """Decide about a proposal, or note it as a change or as a fact to be kept."""
    wrong = find_fault(proposal)
    if wrong:
        book.decide(index, "invalid", wrong)
        return
    proposal = replace(proposal, content=proposal.content.strip())
    named = book.by_id.get(proposal.fact_id or "")
    if proposal.action == "keep":
        if named is None:
            book.decide(index, "unknown_id", f"no fact in force has the id {proposal.fact_id!r}")
            return
        if named.doubt is None:
            book.keeps.append((index, named))
            return
        proposal = replace(proposal, action="update", content=named.content, value=named.value)
    if proposal.confidence < rules.min_confidence:
        limit = f"{proposal.confidence:g} is less than {rules.min_confidence:g}"
        book.decide(index, "low_confidence", limit, named.id if named else None)
        return
    change = _build_change(index, proposal, named, book, read)
    if proposal.action == "remove":
        if not change.named:
            book.decide(index, "unknown_id", _describe_missing(proposal))
            return
    elif not proposal.content:
        book.decide(index, "invalid", "content: must not be empty")
        return
    elif (size := count(proposal.content)) > rules.max_tokens:
        book.decide(index, "too_long", f"{size} tokens, a fact may have {rules.max_tokens}")
        return
    _record_change(change, book)


def _record_change(change: _Change, book: _Book) -> None:
    """Record a change unless it is a duplicate or would end a fact that is protected from it."""
    safe = next((fact for fact in change.ends if _is_protected(fact.trust, change.trust)), None)
    rival = _find_rival(change, book.changes)
    same = (
        None if book.by else _find_duplicate(change, book.at.get(change.where, ()), book.known, book.changes)
    )
    if same is not None:
        book.decide(change.index, "duplicate", *same)
        _override_changes(same[1], change, book)
    elif safe is not None:
        word = f"what {change.trust.value} says cannot end what {safe.trust.value} said"
        book.decide(change.index, "untrusted", word, safe.id)
    elif rival is not None:
        word = f"what {change.trust.value} says cannot end what {rival.trust.value} said"
        book.decide(change.index, "untrusted", f"{word} (proposal {rival.index + 1})")
    else:
        if has_address(change.where) and change.proposal.action != "remove":
            book.counts.setdefault(change.where, change.cardinality)
        book.changes.append(change)


def _override_changes(fact_id: str | None, by: _Change, book: _Book) -> None:
    """Take back earlier changes that end a fact which a later proposal says stays."""
    for other in tuple(book.changes):
        if fact_id in {fact.id for fact in other.ends} and not _is_protected(other.trust, by.trust):
            book.changes.remove(other)
            book.decide(other.index, "overridden", f"proposal {by.index + 1} says that it stays", fact_id)


def _build_change(
    index: int, proposal: Proposal, named: Fact | None, book: _Book, read: Sequence[Entry]
) -> _Change:
    """Place a proposal among the facts in force."""
    sources, known = _find_sources(proposal, named, read, book.known)
    believed = book.by or trust.lowest_trust(
        [*map(trust.trust_of_entry, sources), *known], default=Origin.DERIVED
    )
    said = max((entry.created_at for entry in sources), default=book.now)
    rests = dict.fromkeys(book.by_id[id].id for id in proposal.depends_on if id in book.by_id)
    change = _Change(
        index, proposal, sources, believed, said, named=(named,) if named else (), rests=tuple(rests)
    )
    if proposal.action == "update" and named is None:
        change.note = f"no fact in force has the id {proposal.fact_id!r}: added"
    if named is not None and proposal.action != "remove":
        change.proposal = proposal = _complete_update(proposal, named)
    change.where = where = normalize_address(proposal.subject, proposal.attribute)
    there = book.at.get(where, ()) if has_address(where) else ()
    if proposal.action == "remove":
        if proposal.fact_id is None:
            change.named = tuple(
                fact
                for fact in there
                if not proposal.value or fold_text(fact.value) == fold_text(proposal.value)
            )
            if not proposal.value and len(there) > 1:
                change.named = ()
        return change
    if has_address(where):
        standing: Cardinality | None = None
        if there:
            standing = "one" if any(fact.cardinality == "one" for fact in there) else "many"
        change.cardinality = standing or book.counts.get(where) or proposal.cardinality or "many"
        if change.exclusive:
            own = stated_period(proposal)
            change.met = tuple(fact for fact in there if ends_older_period(own, stated_period(fact), said))
    return change


def _find_sources(
    proposal: Proposal, named: Fact | None, read: Sequence[Entry], facts: Sequence[Fact]
) -> tuple[tuple[Entry, ...], list[Origin]]:
    """Return the sources of a proposal, cited ones or all that was read, and the classes of facts it repeats.

    The text read can dictate citations: if no cited message states the fact, less trusted ones that do are added.
    """
    cited = tuple(entry for entry in read if entry.version in proposal.sources)
    about = named if named is not None and not proposal.content else proposal
    value = fold_text(about.value)

    def says(entry: Entry) -> bool:
        if value:
            return mentions_value(fold_text(entry.content), value)
        return any(share >= ENOUGH for share in _sentence_overlaps(entry.content, about.content))

    if not cited or any(map(says, cited)):
        return cited or tuple(read), []
    least = trust.RANK[trust.lowest_trust(map(trust.trust_of_entry, cited))]
    sources = [
        one for one in read if one in cited or (trust.RANK[trust.trust_of_entry(one)] < least and says(one))
    ]
    return tuple(sources), [
        fact.trust for fact in facts if value and proposal.content and fold_text(fact.value) == value
    ]


def stated_period(said: Proposal | Fact) -> Period:
    """Return when something is so by its own words."""
    start, end = said.valid_from, said.valid_to
    return Period(None if start is None else to_utc(start), None if end is None else to_utc(end))


def _complete_update(proposal: Proposal, named: Fact) -> Proposal:
    """Return an update with its missing fields taken from the fact it names."""
    if not proposal.attribute:
        cardinality = proposal.cardinality or named.cardinality
        proposal = replace(
            proposal, subject=named.subject, attribute=named.attribute, cardinality=cardinality
        )
    kind = named.fact_type if proposal.fact_type == "fact" else proposal.fact_type
    return replace(proposal, fact_type=kind, scope=named.scope)


def _describe_missing(proposal: Proposal) -> str:
    if proposal.fact_id is not None:
        return f"no fact in force has the id {proposal.fact_id!r}"
    return "it names no id, and no single fact at its address"


def _is_protected(said: Origin, by: Origin) -> bool:
    """Whether a statement is protected: tools and pages cannot end statements made by people (decision 26)."""
    return trust.is_protected_origin(said) and not trust.is_protected_origin(by)


def _find_rival(change: _Change, earlier: Sequence[_Change]) -> _Change | None:
    """Return an earlier change of the answer about the same that is protected from this one; None without one."""
    own = {fact.id for fact in change.named}
    filling = change.proposal.action != "remove" and change.exclusive
    for one in earlier:
        meets = filling and one.exclusive and one.proposal.action != "remove" and one.where == change.where
        if (meets or own & {fact.id for fact in one.named}) and _is_protected(one.trust, change.trust):
            return one
    return None


def _find_duplicate(
    change: _Change, there: Sequence[Fact], known: Sequence[Fact], earlier: Sequence[_Change]
) -> tuple[str, str | None] | None:
    """Return why a proposal is a duplicate, and of which fact or proposal; None if it is not."""
    said = change.proposal
    if said.action == "remove":
        return None
    rivals = there if has_address(change.where) else known
    for fact in rivals:
        if not _is_same_statement(said, fact, exactly=fact in change.named):
            continue
        if stated_period(fact) != stated_period(said) and not stated_period(fact).holds(change.said):
            continue  # it was so, or will be: now it is
        if (
            fact.doubt is not None
            and change.said > stated_at(fact)
            and not _is_protected(fact.trust, change.trust)
        ):
            change.named = (*change.named, fact)  # it was in doubt, and is said again
            change.note = "it was in doubt, and is said again"
            return None
        if trust.RANK[change.trust] > trust.RANK[fact.trust] and _is_protected(change.trust, fact.trust):
            change.named = (*change.named, fact)  # a more trusted source now confirms it
            change.note = f"{change.trust.value} confirms what {fact.trust.value} said"
            return None
        return "it is known already", fact.id
    near = [other for other in earlier if other.where == change.where and other.proposal.action != "remove"]
    for other in near[-1:] if change.exclusive else near:
        if _is_same_statement(said, other.proposal) and (other.named == change.named or not change.named):
            return f"proposal {other.index + 1} says so too", None
    return None


def _is_same_statement(said: Proposal, other: Fact | Proposal, *, exactly: bool = False) -> bool:
    """Whether two statements at one address are the same: in their values where both have one, else word by word."""
    if said.negative != other.negative:
        return False
    for name in ("valid_from", "valid_to"):
        mine, theirs = getattr(said, name), getattr(other, name)
        if mine is not None and (theirs is None or to_utc(mine) != to_utc(theirs)):
            return False
    addressed = has_address(normalize_address(said.subject, said.attribute))
    valued = bool(said.value.strip() and other.value.strip())
    if valued and fold_text(said.value) != fold_text(other.value):
        return False
    if valued and addressed and not exactly:
        return True
    return fold_text(said.content) == fold_text(other.content)


# ── several proposals ───────────────────────────────────────────────────────────────────────────────────────────────


def _drop_overridden(changes: Sequence[_Change], book: _Book) -> list[_Change]:
    """Drop a change if a later one takes its fact, or its address of cardinality one.

    A fact that one proposal removes and another replaces is replaced, in either order.
    """
    kept: list[_Change] = []
    named: dict[str, _Change] = {}
    filled: dict[Address, _Change] = {}
    for change in reversed(changes):
        by = next((named[fact.id] for fact in change.named if fact.id in named), None)
        if change.proposal.action != "remove" and change.exclusive:
            by = by or filled.get(change.where)
        if by is not None:
            reason = f"proposal {by.index + 1} is about the same"
            book.decide(change.index, "overridden", reason, change.named[0].id if change.named else None)
            continue
        for fact in change.named:
            named[fact.id] = change
        if change.proposal.action != "remove" and change.exclusive:
            filled[change.where] = change
        kept.append(change)
    met = {fact.id: change for change in kept for fact in change.met}
    found: list[_Change] = []
    for change in reversed(kept):
        if change.proposal.action == "remove":
            left = tuple(fact for fact in change.named if fact.id not in met)
            if not left:
                gone = change.named[0]
                reason = f"proposal {met[gone.id].index + 1} takes its place"
                book.decide(change.index, "overridden", reason, gone.id)
                continue
            change.named = left
        found.append(change)
    taken = {fact.id for change in found for fact in change.named}
    for change in found:  # a fact that one change names and another meets at its address goes once
        own = {fact.id for fact in change.named}
        change.met = tuple(fact for fact in change.met if fact.id in own or fact.id not in taken)
        taken.update(fact.id for fact in change.met)
    return found


def _decide_keeps(changes: Sequence[_Change], book: _Book) -> None:
    """Decide about proposals that keep a fact: a change of the same answer comes before them."""
    ended = {fact.id: change for change in changes for fact in change.ends}
    for index, fact in book.keeps:
        if fact.id in ended:
            book.decide(index, "overridden", f"proposal {ended[fact.id].index + 1} changes it", fact.id)
        else:
            book.decide(index, "kept", "", fact.id)


def _limit_additions(changes: Sequence[_Change], most: int, book: _Book) -> list[_Change]:
    """Drop the facts that one answer adds beyond a limit: those of tools and pages first, then the last ones."""
    adding = [change for change in changes if change.proposal.action != "remove" and not change.ends]
    adding.sort(key=lambda change: not trust.is_protected_origin(change.trust))
    beyond = sorted(change.index for change in adding[most:])
    for index in beyond:
        book.decide(index, "over_limit", f"one answer may add {most} facts")
    return [change for change in changes if change.index not in beyond]


# ── drafts ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _build_drafts(
    changes: Sequence[_Change],
    known: Sequence[Fact],
    around: Mapping[str, Sequence[Entry]],
    book: _Book,
    *,
    now: datetime,
    count: Callable[[str], int],
    key: str,
) -> list[Draft]:
    """Return new facts, then retractions of facts that ended."""
    drafts: list[Draft] = []
    told = Said(known, around)
    for change in sorted(changes, key=lambda one: one.proposal.action == "remove"):
        proposal, ends = change.proposal, change.ends
        removing = proposal.action == "remove"
        demotes = told.demoted(ends, None if removing else proposal, change.sources)
        data: dict[str, Json] = {"reason": "removed"} if removing else _build_fact_data(change)
        if change.sources:
            data[SAID] = to_utc(change.said).isoformat()
        marks = not removing and proposal.fact_type in _MARKERS and trust.is_protected_origin(change.trust)
        if demotes:
            data["demotes"] = [[id, [list(span) for span in good]] for id, good in demotes.items()]
        draft = Draft(
            kind=Kind.RETRACTION if removing else Kind.FACT,
            content="" if removing else proposal.content,
            key=_draft_key(key, change, ends),
            created_at=now,
            tokens=0 if removing else count(proposal.content),
            origin=Origin.DERIVED,
            privacy=Privacy.ALLOW if removing else _strictest_privacy(change.sources),
            markers=(proposal.fact_type,) if marks else (),
            replaces=_spans_of_facts(ends, chain=removing),
            sources=tuple(entry.id for entry in change.sources),
            data=data,
        )
        outcome: Outcome = "removed" if removing else "updated" if ends else "added"
        way = "it names the fact" if change.named else "its address holds one value"
        reason = change.note or (way if ends else "")
        book.decide(change.index, outcome, reason, ends[0].id if ends else None, len(drafts))
        drafts.append(draft)
    return drafts


def _build_fact_data(change: _Change) -> dict[str, Json]:
    proposal = change.proposal
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
        "valid_from": None if proposal.valid_from is None else to_utc(proposal.valid_from).isoformat(),
        "valid_to": None if proposal.valid_to is None else to_utc(proposal.valid_to).isoformat(),
        "depends_on": [id for id in change.rests if id not in {fact.id for fact in change.ends}],
        MENTIONS: _collect_names(change),
        "episode": max((entry.episode for entry in change.sources), default=0),
    }
    return {
        name: value
        for name, value in data.items()
        if value not in (None, "", False, 0, []) or name == "confidence"
    }


def _collect_names(change: _Change) -> list[Json]:
    """Return the names in the sentences that state a fact but not in the fact itself: they point to its premises."""
    proposal = change.proposal
    found: dict[str, None] = {}
    for entry in change.sources if len(change.sources) <= FEW else ():
        told = _sentences_with_value(entry, fold_text(proposal.value), ()) if proposal.value else set[int]()
        for number, (start, end) in enumerate(find_sentence_spans(entry.content)):
            if number in (told or _closest_sentences(entry.content, proposal.content)):
                found.update(dict.fromkeys(sentence_names(entry.content[start:end], proposal.content)))
    return list(found)[:NAMES]


def _strictest_privacy(sources: Iterable[Entry]) -> Privacy:
    return max((entry.privacy for entry in sources), key=_STRICT.index, default=Privacy.ALLOW)


def _spans_of_facts(facts: Iterable[Fact], *, chain: bool) -> tuple[Span, ...]:
    """Return the spans of facts, with all facts they supersede if none of these may become active again."""
    versions: set[int] = set()
    for fact in facts:
        versions.add(fact.version)
        versions.update(place[1] for place in map(parse_entry_id, fact.replaces if chain else ()) if place)
    return tuple((version, version) for version in sorted(versions))


def _draft_key(key: str, change: _Change, ends: Sequence[Fact]) -> str:
    """Return a key that is the same for the same change alone: two answers about one stretch may differ."""
    proposal = change.proposal
    what = (proposal.action, proposal.content, proposal.value, *change.where, *(fact.id for fact in ends))
    return f"{key}:{change.index}:{sha256(repr(what).encode()).hexdigest()[:12]}"


def _archive_excess(
    changes: Sequence[_Change], known: Sequence[Fact], most: int, *, now: datetime, key: str
) -> list[Draft]:
    """Return the retraction of surplus facts: those of tools and pages first, then the least confident, the oldest."""
    ended = {fact.id for change in changes for fact in change.ends}
    left = [fact for fact in known if fact.id not in ended]
    added = sum(1 for change in changes if change.proposal.action != "remove")
    much = len(left) + added - most
    if much <= 0 or not left:
        return []

    def worth(fact: Fact) -> tuple[bool, bool, float, int]:
        kept = trust.is_protected_origin(fact.trust)
        return kept, kept and fact.fact_type == MarkerType.CONSTRAINT, fact.confidence, fact.version

    left.sort(key=worth)
    places = _spans_of_facts(left[:much], chain=True)
    digest = sha256(repr(places).encode()).hexdigest()[:12]
    return [
        Draft(
            kind=Kind.RETRACTION,
            key=f"{key}:archived:{digest}",
            created_at=now,
            origin=Origin.DERIVED,
            replaces=places,
            data={"reason": "archived"},
        )
    ]
