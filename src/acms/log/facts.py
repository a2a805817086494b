"""Facts of a log: which are active, what retired the others, and which ones a change would reactivate.

A fact is retired when a newer one supersedes it or a retraction names it. Facts that supersede one another form a
chain: while its newest link has effect, none of the older ones becomes active again (decision 26).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any

from acms.knowledge import Fact, Retired
from acms.log import trust
from acms.log.active_entries import Replacements
from acms.log.doubt import MENTIONS, annotate_doubts
from acms.log.encoding import is_fact_id
from acms.log.validity import Period, ends_older_period, validity_periods
from acms.model import Draft, Entry, Kind, Span, State

REVOKED = "revoked"
"""Reason of the retraction of facts whose source was retracted or edited."""

SAID = "said"
"""Key in the data of a fact or a retraction: when the newest of its sources was stated."""

Address = tuple[str, str]
"""Subject and attribute, normalised."""

#: A letter or digit and its continuation, with the signs that distinguish names: -1, +2, .NET, C++, C#.
_NAME = re.compile(
    r"(?:(?<![\w.-])[-.](?=\d)|(?<![\w.])\.(?=[^\W\d_])|\+(?=\d))?"
    r"[^\W_](?:[^\W_]|[^\x00-\x7f])*"
    r"(?:\+\++|[+#](?!\w))?"
)
_POSSESSIVE = re.compile(r"['’]s\b", re.IGNORECASE)
_ACRONYMS = re.compile(r"[A-Z]{2,}s")
_ARTICLES = frozenset(("a", "an", "the"))
_SIBILANT = re.compile(r"(?:ss|sh|ch|x|zz?)es$")
_MUTE = re.compile(r"(?:ss|sh|ch|x|zz?)e$")
_DRAFT = tuple(field.name for field in fields(Draft))


# ── addresses ───────────────────────────────────────────────────────────────────────────────────────────────────────


def normalize_address(subject: str, attribute: str) -> Address:
    """Return the address shared by facts about the same thing: case, articles, plurals and punctuation are ignored.

    Signs that are part of a name stay, as in C++ and node -1; so does the "s" of a one-word, short subject like Mars.
    """
    return _normalize_label(subject, name=True), _normalize_label(attribute)


def has_address(address: Address) -> bool:
    """Return whether facts can share an address: it needs an attribute, since a subject alone is too broad."""
    return bool(address[1])


def _normalize_label(label: str, *, name: bool = False) -> str:
    """Return a label for comparison, without case, articles and plural endings; `name` is true for a subject."""
    text = _POSSESSIVE.sub("", unicodedata.normalize("NFKC", label)).replace("\N{MINUS SIGN}", "-")
    if not text.isascii():  # letters of many scripts have marks, which make another word
        text = "".join([" " if _is_foreign_sign(character) else character for character in text])
    words: list[str] = []
    for word in _NAME.findall(text):
        singular = word[:-1] if _ACRONYMS.fullmatch(word) else word
        words.append(singular.casefold())
    words = [word for word in words if word not in _ARTICLES] or words  # a label may be only "A"
    # A short single word is hardly a plural: Adams and Mars are names, invoices are not.
    is_short_name = name and len(words) == 1 and len(words[0]) < 6
    return " ".join(words if is_short_name else map(_singularize_word, words))


def _is_foreign_sign(character: str) -> bool:
    """Return whether a character beyond ASCII is punctuation, a symbol, a separator or a control character."""
    return character > "\x7f" and unicodedata.category(character)[0] in "PSZC"


def _singularize_word(word: str) -> str:
    """Return a stem that the singular and the plural of a word share; it is not always a word of the language."""
    if len(word) < 4 or not word.isascii():  # short words and other languages have no reliable plural ending
        return word
    if _SIBILANT.search(word):
        word = word[:-2]
    elif word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-1]
    if _MUTE.search(word):
        word = word[:-1]
    return word[:-2] + "y" if word.endswith("ie") else word


def address_of(entry: Entry) -> Address:
    """Return the address of a fact."""
    return normalize_address(_text_field(entry, "subject"), _text_field(entry, "attribute"))


def _text_field(entry: Entry, name: str) -> str:
    value = entry.data.get(name)
    return value if isinstance(value, str) else ""


# ── which fact supersedes which ─────────────────────────────────────────────────────────────────────────────────────


class FactHistory:
    """The facts of a log at a version: which are active, and what retired the others."""

    def __init__(self, entries: Iterable[Entry], replacements: Replacements) -> None:
        """Take every fact up to a version, and the replacements at that version."""
        facts = [entry for entry in entries if entry.kind is Kind.FACT]
        self.entries = sorted(facts, key=attrgetter("version"))
        self._replacements = replacements
        by_version = {entry.version: entry for entry in self.entries}
        #: By version: the fact with effect that supersedes it, the newest if there are several.
        self._successors: dict[int, Entry] = {}
        for successor in replacements.retirements:
            if successor.kind is Kind.FACT:
                for version in _versions_in_spans(successor.replaces, by_version):
                    self._successors.setdefault(version, successor)
        #: Versions of facts and retractions with effect.
        self._effective_versions = {entry.version for entry in replacements.retirements}
        self._supersede_rivals()
        #: By version of a successor: the facts that it supersedes.
        self._superseded: dict[int, list[Entry]] = {}
        for entry in self.entries:
            successor = self._successors.get(entry.version)
            if successor is not None:
                self._superseded.setdefault(successor.version, []).append(entry)

    def _supersede_rivals(self) -> None:
        """Keep only the newest fact active at an address of cardinality one.

        A fact may be there without replacing the others, so versions decide. Facts that are true at another time stay
        active too.
        """
        unreplaced = [entry for entry in self.entries if self.is_unreplaced(entry)]
        by_address: dict[Address, list[Entry]] = {}
        for entry in unreplaced:
            address = address_of(entry)
            if has_address(address):
                by_address.setdefault(address, []).append(entry)
        superseded: set[int] = set()
        for rivals in by_address.values():
            if all(entry.data.get("cardinality") != "one" for entry in rivals):
                continue
            for index, entry in enumerate(rivals):
                for newer in reversed(rivals[index + 1 :]):
                    if _supersedes_entry(newer, entry):
                        self._successors[entry.version] = newer
                        superseded.add(entry.version)
                        break
        #: The active facts, oldest first.
        self.active = [entry for entry in unreplaced if entry.version not in superseded]

    def is_unreplaced(self, entry: Entry) -> bool:
        """Return whether a fact has its content and no entry has replaced or retracted it."""
        return entry.state is State.LIVE and self._replacements.replaced_by(entry.version) is None

    def find_predecessors(self, entry: Entry) -> list[Entry]:
        """Return the facts that a fact supersedes, directly or indirectly, newest first."""
        predecessors: dict[int, Entry] = {}
        waiting = self.find_direct_predecessors(entry)
        while waiting:
            older = waiting.pop()
            if older.version not in predecessors:
                predecessors[older.version] = older
                waiting += self.find_direct_predecessors(older)
        return [predecessors[version] for version in sorted(predecessors, reverse=True)]

    def find_direct_predecessors(self, entry: Entry) -> list[Entry]:
        """Return the facts that a fact supersedes directly."""
        predecessors = list(self._superseded.get(entry.version, ()))
        # A retired fact has no effect, so the replacements do not have the facts that it replaced.
        if entry.replaces and entry.version not in self._effective_versions:
            versions = _versions_in_spans(entry.replaces, {fact.version: fact for fact in self.entries})
            predecessors += [fact for fact in self.entries if fact.version in versions]
        return predecessors

    def find_retirement(self, entry: Entry, by_version: Mapping[int, Entry]) -> Retired | None:
        """Return why a fact is no longer active, or None if it is; `by_version` has all replacing entries."""
        replacement = self._replacements.replaced_by(entry.version)
        successor = self._successors.get(entry.version)
        if successor is not None:
            # An entry that ended the successor may have ended this fact with it: the successor stays the reason.
            successor_replacement = self._replacements.replaced_by(successor.version)
            if replacement in (None, successor.version, successor_replacement):
                return _make_retired("updated", successor)
        if replacement is None:
            return None
        cause = by_version[replacement]
        if cause.kind is Kind.FACT:
            return _make_retired("updated", cause)
        return _make_retired(_text_field(cause, "reason") or "replaced", cause)


def _make_retired(reason: str, cause: Entry) -> Retired:
    return Retired(
        reason=reason, version=cause.version, by=cause.id, evidence=cause.sources, at=_stated_at(cause)
    )


def _stated_at(entry: Entry) -> datetime:
    """Return when the source of an entry was stated."""
    return _parse_time(entry.data.get(SAID)) or entry.created_at


def _period_of_entry(entry: Entry) -> Period:
    return Period(_parse_time(entry.data.get("valid_from")), _parse_time(entry.data.get("valid_to")))


def _supersedes_entry(newer: Entry, older: Entry) -> bool:
    return ends_older_period(_period_of_entry(newer), _period_of_entry(older), _stated_at(newer))


def _versions_in_spans(spans: Iterable[Span], by_version: Mapping[int, Entry]) -> set[int]:
    """Return the versions of entries that lie in some spans; loop over a span or the entries, whichever is shorter."""
    versions: set[int] = set()
    for first, last in spans:
        if last - first < len(by_version):
            versions.update(version for version in range(first, last + 1) if version in by_version)
        else:
            versions.update(version for version in by_version if first <= version <= last)
    return versions


def active_facts(entries: Iterable[Entry], replacements: Replacements) -> list[Entry]:
    """Return the active facts, oldest first."""
    return FactHistory(entries, replacements).active


def collect_facts(
    entries: Iterable[Entry], replacements: Replacements, replacing: Iterable[Entry]
) -> list[Fact]:
    """Return every fact that has its content, oldest first, each with the entry that retired it.

    `replacing` are the entries that replace or retract others.
    """
    history = FactHistory(entries, replacements)
    by_version = {entry.version: entry for entry in replacing}
    originals: dict[str, str] = {}
    mentions: dict[str, Iterable[str]] = {}
    for entry in history.entries:
        originals.update((id, entry.id) for id in entry.sources if is_fact_id(id))
        if MENTIONS in entry.data:
            mentions[entry.id] = entry.data[MENTIONS]
    facts: list[Fact] = []
    for entry in history.entries:
        if entry.state is State.LIVE:
            retired = history.find_retirement(entry, by_version)
            replaces = tuple(older.id for older in history.find_predecessors(entry))
            facts.append(fact_from_entry(entry, retired=retired, replaces=replaces, originals=originals))
    return annotate_doubts(facts, mentions)


def valid_times(facts: Sequence[Fact]) -> dict[int, Period]:
    """Return by version the period in which each active fact is true; `facts` are all facts, oldest first."""
    periods = validity_periods(facts, find_rival_pairs(facts))
    active = [fact for fact in facts if fact.retired is None and fact.id in periods]
    return {
        fact.version: periods[fact.id]._replace(source=fact.sources[-1] if fact.sources else "")
        for fact in active
    }


def find_rival_pairs(facts: Iterable[Fact]) -> list[tuple[str, str]]:
    """Return pairs of ids, an older and a newer fact of one address that holds one value at a time."""
    by_address: dict[Address, list[Fact]] = {}
    pairs: list[tuple[str, str]] = []
    for fact in facts:
        address = normalize_address(fact.subject, fact.attribute)
        if has_address(address):
            older_facts = by_address.setdefault(address, [])
            for older in older_facts:
                if "one" in (older.cardinality, fact.cardinality):
                    pairs.append((older.id, fact.id))
            older_facts.append(fact)
    return pairs


def fact_from_entry(
    entry: Entry,
    *,
    retired: Retired | None = None,
    replaces: tuple[str, ...] = (),
    originals: Mapping[str, str] = {},
) -> Fact:
    """Convert an entry to a `Fact`; `replaces` are the ids of all facts it supersedes, directly or indirectly.

    `originals` maps the ids of entries adopted from elsewhere to the ids of their copies in this log.
    """
    data = entry.data
    confidence = data.get("confidence", 1.0)
    return Fact(
        id=entry.id,
        version=entry.version,
        content=entry.content,
        subject=_text_field(entry, "subject"),
        attribute=_text_field(entry, "attribute"),
        value=_text_field(entry, "value"),
        cardinality="one" if data.get("cardinality") == "one" else "many",
        fact_type=_text_field(entry, "fact_type") or "fact",
        confidence=float(confidence) if isinstance(confidence, int | float) else 1.0,
        negative=data.get("negative") is True,
        scope="namespace" if data.get("scope") == "namespace" else "session",
        names=tuple(name for name in data.get("names", ()) if isinstance(name, str)),
        valid_from=_parse_time(data.get("valid_from")),
        valid_to=_parse_time(data.get("valid_to")),
        stated_at=_stated_at(entry),
        trust=trust.trust_of_entry(entry),
        # A fact that a fork adopted also cites the original fact, which is not a message.
        sources=tuple(id for id in entry.sources if not is_fact_id(id)),
        replaces=replaces,
        depends_on=tuple(originals.get(id, id) for id in data.get("depends_on", ()) if isinstance(id, str)),
        context=entry.context,
        tokens=entry.tokens,
        created_at=entry.created_at,
        retired=retired,
    )


def _parse_time(value: Any) -> datetime | None:
    if not isinstance(value, str):
        return None
    moment = datetime.fromisoformat(value)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


# ── effects of a log change on facts ────────────────────────────────────────────────────────────────────────────────


def single_spans(entries: Iterable[Entry]) -> tuple[Span, ...]:
    """Return a span of one version for each of some entries, ascending."""
    return tuple((version, version) for version in sorted({entry.version for entry in entries}))


def simulate_append(drafts: Iterable[Draft], version: int) -> list[Entry]:
    """Return drafts as if they were appended behind a version."""
    entries: list[Entry] = []
    for appended, draft in enumerate(drafts, version + 1):
        values = {name: getattr(draft, name) for name in _DRAFT}
        values |= {"version": appended, "batch": appended, "context": "", "id": ""}
        entries.append(Entry(**values, position=None, total=0, salt=None, digest=b"", chain=b""))
    return entries


def find_collision(
    entries: Sequence[Entry], before: Replacements, after: Replacements
) -> tuple[Entry, Entry] | None:
    """Return a fact that a change of the log would restore, and a rival that would be active then; or None.

    `before` and `after` are the replacements without and with the change. Rivals share an address that holds one value.
    """
    now, later = FactHistory(entries, before), FactHistory(entries, after)
    restored: list[Entry] = []
    for entry in entries:
        if later.is_unreplaced(entry) and not now.is_unreplaced(entry):
            restored.append(entry)
    candidate_versions = {entry.version for entry in (*restored, *now.active)}
    remaining: list[Entry] = []
    for entry in entries:
        if entry.version in candidate_versions and later.is_unreplaced(entry):
            remaining.append(entry)
    for entry in restored:
        for other in remaining:
            if are_rivals(entry, other):
                return entry, other
    return None


def are_rivals(fact: Entry, other: Entry) -> bool:
    """Return whether two facts cannot both be active: their address holds one value, and one ends the other."""
    address = address_of(fact)
    if fact.version == other.version or not has_address(address) or address != address_of(other):
        return False
    if "one" not in (fact.data.get("cardinality"), other.data.get("cardinality")):
        return False
    older, newer = sorted((fact, other), key=attrgetter("version"))
    return _supersedes_entry(newer, older)


def find_revoked_facts(
    entries: Sequence[Entry],
    replacements: Replacements,
    removed_ids: frozenset[str],
    *,
    require_all_sources: bool = False,
) -> list[Entry]:
    """Return the facts to retire when some messages are removed: the active facts that were made from them.

    The facts that a retired fact had superseded would become active again. They are retired too if they were made from
    removed messages, or if another fact fills their address. With `require_all_sources`, a fact is retired only if all
    its sources are removed.
    """

    def loses_its_sources(entry: Entry) -> bool:
        if require_all_sources:
            return bool(entry.sources) and removed_ids.issuperset(entry.sources)
        return not removed_ids.isdisjoint(entry.sources)

    history = FactHistory(entries, replacements)
    retired: list[Entry] = []
    remaining: list[Entry] = []
    for entry in history.active:
        if loses_its_sources(entry):
            retired.append(entry)
        else:
            remaining.append(entry)
    waiting = list(reversed(retired))
    while waiting:
        # The newest predecessor is restored first, and then fills the address for the older ones.
        for older in reversed(history.find_direct_predecessors(waiting.pop())):
            if loses_its_sources(older) or any(are_rivals(older, other) for other in remaining):
                retired.append(older)
                waiting.append(older)
            else:
                remaining.append(older)
    return retired
