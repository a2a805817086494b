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
from typing import Any

from acms.knowledge import Fact, Retired
from acms.log import trust
from acms.log.doubt import MENTIONS, annotate_doubts
from acms.log.in_force import Cover
from acms.log.validity import Period, ends_older_period, validity_periods
from acms.model import Draft, Entry, Kind, Span, State

REVOKED = "revoked"
"""Reason of the retraction of facts whose source was retracted or edited."""

SAID = "said"
"""Says in the data of a fact, or of a retraction, when the newest of its sources was said."""

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
#: Letters of a word that is hardly a name: Adams and Mars are, invoices are not. Whether it is written so, not all say.
_LONG = 6
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


def has_address(where: Address) -> bool:
    """Whether facts can share the address: an attribute is required, a subject alone is too broad."""
    return bool(where[1])


def _normalize_label(label: str, *, name: bool = False) -> str:
    text = _POSSESSIVE.sub("", unicodedata.normalize("NFKC", label)).replace("\N{MINUS SIGN}", "-")
    if not text.isascii():  # letters of many scripts have marks, which make another word
        text = "".join(
            [" " if one > "\x7f" and unicodedata.category(one)[0] in "PSZC" else one for one in text]
        )
    said = [word[:-1] if _ACRONYMS.fullmatch(word) else word for word in _NAME.findall(text)]
    said = [word.casefold() for word in said]
    said = [word for word in said if word not in _ARTICLES] or said
    short = name and len(said) == 1 and len(said[0]) < _LONG
    return " ".join(said if short else map(_singularize_word, said))


def _singularize_word(word: str) -> str:
    """Return a word as its plural and its singular have it in common; not always a word of the language."""
    if len(word) < 4 or not word.isascii():
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


class Succession:
    """The facts of a log at a version: which are active, and what retired the others."""

    def __init__(self, entries: Iterable[Entry], cover: Cover) -> None:
        """Take every fact up to a version, and the cover at that version."""
        self.entries = sorted((one for one in entries if one.kind is Kind.FACT), key=lambda one: one.version)
        self._cover = cover
        known = {entry.version: entry for entry in self.entries}
        #: Version of a fact → the fact with effect that supersedes it.
        self._heirs: dict[int, Entry] = {}
        for heir in cover.retiring:
            if heir.kind is Kind.FACT:
                for version in _versions_in_spans(heir.replaces, known):
                    self._heirs.setdefault(version, heir)
        self._effect = {heir.version for heir in cover.retiring}
        self._net()
        self._ended: dict[int, list[Entry]] = {}
        for entry in self.entries:
            heir = self._heirs.get(entry.version)
            if heir is not None:
                self._ended.setdefault(heir.version, []).append(entry)

    def _net(self) -> None:
        """Keep only the newest fact active at an address of cardinality one, whatever wrote the others.

        Facts that are true at another time stay active too.
        """
        uncovered = [entry for entry in self.entries if self.uncovered(entry)]
        at: dict[Address, list[Entry]] = {}
        for entry in uncovered:
            where = address_of(entry)
            if has_address(where):
                at.setdefault(where, []).append(entry)
        self._outshone = set[int]()
        for some in at.values():
            if len(some) > 1 and any(entry.data.get("cardinality") == "one" for entry in some):
                for place, entry in enumerate(some):
                    heir = next(
                        (new for new in reversed(some[place + 1 :]) if _supersedes_entry(new, entry)), None
                    )
                    if heir is not None:
                        self._heirs[entry.version] = heir
                        self._outshone.add(entry.version)
        self.in_force = [entry for entry in uncovered if entry.version not in self._outshone]

    def uncovered(self, entry: Entry) -> bool:
        """Whether a fact has its content and no entry has replaced or retracted it."""
        return entry.state is State.LIVE and self._cover.by(entry.version) is None

    def chain(self, entry: Entry) -> list[Entry]:
        """Return the facts that a fact supersedes, directly or indirectly, newest first."""
        found: dict[int, Entry] = {}
        waiting = self.before(entry)
        while waiting:
            one = waiting.pop()
            if one.version not in found:
                found[one.version] = one
                waiting += self.before(one)
        return [found[version] for version in sorted(found, reverse=True)]

    def before(self, entry: Entry) -> list[Entry]:
        """Return the facts that a fact supersedes directly."""
        found = list(self._ended.get(entry.version, ()))
        if entry.replaces and entry.version not in self._effect:  # it stood in for them once
            inside = _versions_in_spans(entry.replaces, {one.version: one for one in self.entries})
            found += [one for one in self.entries if one.version in inside]
        return found

    def retired(self, entry: Entry, by_version: Mapping[int, Entry]) -> Retired | None:
        """Return why a fact is not in force; `by_version` has every entry that replaces something."""
        by = self._cover.by(entry.version)
        heir = self._heirs.get(entry.version)
        if heir is not None and (by is None or by == heir.version or self._cover.by(heir.version) == by):
            return _make_retired("updated", heir)
        if by is None:
            return None
        other = by_version[by]
        return _make_retired(
            "updated" if other.kind is Kind.FACT else _text_field(other, "reason") or "replaced", other
        )


def _make_retired(reason: str, by: Entry) -> Retired:
    return Retired(reason=reason, version=by.version, by=by.id, evidence=by.sources, at=_stated_at(by))


def _stated_at(entry: Entry) -> datetime:
    """Return when the source of an entry was stated."""
    return _parse_time(entry.data.get(SAID)) or entry.created_at


def _period_of_entry(entry: Entry) -> Period:
    return Period(_parse_time(entry.data.get("valid_from")), _parse_time(entry.data.get("valid_to")))


def _supersedes_entry(new: Entry, old: Entry) -> bool:
    return ends_older_period(_period_of_entry(new), _period_of_entry(old), _stated_at(new))


def _versions_in_spans(spans: Iterable[Span], known: Mapping[int, Entry]) -> set[int]:
    found: set[int] = set()
    for first, last in spans:
        if last - first < len(known):
            found.update(version for version in range(first, last + 1) if version in known)
        else:
            found.update(version for version in known if first <= version <= last)
    return found


def active_facts(entries: Iterable[Entry], cover: Cover) -> list[Entry]:
    """Return the facts in force, oldest first."""
    return Succession(entries, cover).in_force


def collect_facts(entries: Iterable[Entry], cover: Cover, replacing: Iterable[Entry]) -> list[Fact]:
    """Return every fact that has its content, oldest first, each with the entry that retired it.

    `replacing` are the entries that replace or retract others.
    """
    found = Succession(entries, cover)
    by_version = {entry.version: entry for entry in replacing}
    originals = {id: entry.id for entry in found.entries for id in entry.sources if id.startswith("f_")}
    return annotate_doubts(
        [
            as_fact(
                entry,
                retired=found.retired(entry, by_version),
                replaces=tuple(old.id for old in found.chain(entry)),
                originals=originals,
            )
            for entry in found.entries
            if entry.state is State.LIVE
        ],
        {entry.id: entry.data[MENTIONS] for entry in found.entries if MENTIONS in entry.data},
    )


def valid_times(found: Sequence[Fact]) -> dict[int, Period]:
    """Return the facts in force by version, and when each of them is so; `found` are all of a log, oldest first."""
    when = validity_periods(found, find_rival_pairs(found))
    return {
        fact.version: when[fact.id]._replace(source="".join(fact.sources[-1:]))
        for fact in found
        if fact.retired is None and fact.id in when
    }


def find_rival_pairs(found: Iterable[Fact]) -> list[tuple[str, str]]:
    """Return pairs of ids, an older and a newer fact of one address that holds one value at a time."""
    at: dict[Address, list[Fact]] = {}
    pairs: list[tuple[str, str]] = []
    for fact in found:
        where = normalize_address(fact.subject, fact.attribute)
        if has_address(where):
            there = at.setdefault(where, [])
            pairs += [(old.id, fact.id) for old in there if "one" in (old.cardinality, fact.cardinality)]
            there.append(fact)
    return pairs


def as_fact(
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
        sources=tuple(
            id for id in entry.sources if not id.startswith("f_")
        ),  # a fork cites the facts it adopted
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
    found = datetime.fromisoformat(value)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


# ── effects of a log change on facts ────────────────────────────────────────────────────────────────────────────────


def single_spans(entries: Iterable[Entry]) -> tuple[Span, ...]:
    """Return the places of some entries as spans."""
    return tuple((version, version) for version in sorted({entry.version for entry in entries}))


def simulate_append(drafts: Iterable[Draft], version: int) -> list[Entry]:
    """Return drafts as if they were appended behind a version."""
    found: list[Entry] = []
    for place, draft in enumerate(drafts, version + 1):
        values = {name: getattr(draft, name) for name in _DRAFT}
        found.append(
            Entry(
                **values, context="", version=place, position=None, id="", batch=place, total=0, salt=None,
                digest=b"", chain=b"",
            )
        )  # fmt: skip
    return found


def find_collision(entries: Sequence[Entry], before: Cover, after: Cover) -> tuple[Entry, Entry] | None:
    """Return a fact that would come back, and another in force at its address of cardinality one; else None."""
    now, later = Succession(entries, before), Succession(entries, after)
    back = {one.version for one in entries if later.uncovered(one) and not now.uncovered(one)}
    there = back.union(one.version for one in now.in_force)
    for entry in entries:
        if entry.version in back:
            for other in entries:
                if other.version in there and later.uncovered(other) and are_rivals(entry, other):
                    return entry, other
    return None


def are_rivals(one: Entry, other: Entry) -> bool:
    """Whether two facts cannot both be in force: they have one address, of cardinality one, and one ends the other."""
    where = address_of(one)
    old, new = sorted((one, other), key=lambda entry: entry.version)
    return (
        one.version != other.version
        and _supersedes_entry(new, old)
        and "one" in (one.data.get("cardinality"), other.data.get("cardinality"))
        and has_address(where)
        and where == address_of(other)
    )


def find_revoked_facts(
    entries: Sequence[Entry], cover: Cover, gone: frozenset[str], *, whole: bool = False
) -> list[Entry]:
    """Return the active facts to retire along with some messages: the facts that were made from them.

    The facts these superseded become active again, unless they were made from the same messages or another fact fills
    their address. With `whole`, only facts that were made from no other messages are retired.
    """

    def goes(entry: Entry) -> bool:
        shared = not gone.isdisjoint(entry.sources)
        return shared and (not whole or gone.issuperset(entry.sources))

    found = Succession(entries, cover)
    taken = [entry for entry in found.in_force if goes(entry)]
    standing = [entry for entry in found.in_force if not goes(entry)]
    waiting = list(reversed(taken))
    while waiting:
        for old in reversed(found.before(waiting.pop())):  # the newest comes back first
            if goes(old) or any(are_rivals(old, other) for other in standing):
                taken.append(old)
                waiting.append(old)
            else:
                standing.append(old)
    return taken
