"""Reflect: which closed episodes are read next, what input a reflector gets, and which parts of its answer are kept.

Pure and independent of the reflector. The newest *mark*, a summary that replaces nothing, records how far a log was
reflected on. An episode that is too short waits for the next one, as does the mark, so no other state is needed.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any, get_args

from acms.knowledge import Action, Cardinality, Decision, Fact, Proposal, Reflection, Scope
from acms.log import trust
from acms.log.in_force import Cover, anchor_version, effective_sequence
from acms.model import EMPTY, Context, Draft, Entry, EpisodeStatus, Json, Kind, Origin, Privacy, Role, State
from acms.nouns import episode_id
from acms.ports import Turn
from acms.privacy.modes import privacy_of_sources
from acms.results import Episode, resolve_speaker
from acms.text.summary_form import LEAST, SHORTER, sanitize_summary
from acms.text.tokenizer import split_words
from acms.write.episodes import build_episodes, is_mark

SHOWN_FACTS = 40
"""Facts in force that a reflector is shown."""


def has_seed_signature(reflector: Any) -> bool:
    """Return whether a reflector has the shape `reflect(episode, turns)`."""
    try:
        found = inspect.signature(reflector.reflect).parameters.values()
    except (TypeError, ValueError):
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return len([one for one in found if one.kind in positional and one.default is one.empty]) == 2


# ── how far it was reflected on ─────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Reached:
    """How far a log was reflected on."""

    #: Ordinal of the last episode, 0 for none, and version of its last message.
    episode: int = 0
    last: int = 0
    #: Version up to which edits were read.
    upto: int = 0
    #: Its mark.
    mark: Entry | None = None


def find_progress(newest: Iterable[Entry]) -> Reached:
    """Return how far a log was reflected on, by its newest summaries; it does not matter whether they are in force."""
    marks = [entry for entry in newest if is_mark(entry) and entry.covers is not None]
    if not marks:
        return Reached()
    # An adopted mark may come after one of a later episode.
    mark = max(marks, key=lambda entry: (entry.episode, entry.version))
    assert mark.covers is not None
    # An erased mark has lost its data; its episode and `covers` stay.
    return Reached(mark.episode, mark.covers[1], int(mark.data.get("upto", mark.covers[1])), mark)


# ── the next episodes ───────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much is read at once."""

    #: An episode with fewer messages waits for the next one.
    least: int
    #: Messages and tokens of one call, unless an indivisible stretch has more.
    turns: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One episode to be reflected on."""

    episode: Episode
    #: Its messages in force that may be shown, as they are read.
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """The input of one reflector call."""

    #: Edits of episodes that were reflected on before.
    edits: tuple[Entry, ...]
    parts: tuple[Part, ...]
    #: Version up to which edits were read.
    upto: int
    #: The mark before it.
    before: Reached

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Everything that is read, in order."""
        return (*self.edits, *(entry for part in self.parts for entry in part.entries))

    @property
    def key(self) -> str:
        """The identifier of the stretch in keys: the same episodes give the same one."""
        if not self.parts:
            return f"{self.before.episode}:{self.upto}"
        return f"{self.parts[0].episode.ordinal}-{self.parts[-1].episode.ordinal}"


def next_stretch(
    context: str,
    entries: Sequence[Entry],
    edits: Sequence[Entry],
    cover: Cover,
    before: Reached,
    upto: int,
    limits: Limits,
    *,
    force: bool,
) -> Stretch | None:
    """Return the next stretch to read, or None if none of these entries is due.

    `entries` are messages and manual closes after the last episode that was reflected on, `edits` those written since.
    With `force` nothing is too short, and edits alone are enough.
    """
    found = [one for one in build_episodes(context, entries) if one.ordinal > before.episode]
    closed = [one for one in found if one.status is EpisodeStatus.CLOSED]
    least = 1 if force else limits.least
    groups: list[list[Episode]] = []
    waiting: list[Episode] = []
    for one in closed:
        waiting.append(one)
        if sum(each.messages for each in waiting) >= least:
            groups.append(waiting)
            waiting = []
    changed = tuple(
        edit
        for edit in edits
        if edit.version > before.upto
        and 0 < edit.episode <= before.episode
        and cover.by(edit.version) is None
        and _is_readable(edit)
    )
    chosen: list[Episode] = []
    turns, tokens = len(changed), sum(edit.tokens for edit in changed)
    for group in groups:
        turns += sum(one.messages for one in group)
        tokens += sum(one.tokens for one in group)
        if chosen and (turns > limits.turns or tokens > limits.tokens):
            break
        chosen += group
    if not chosen and not (force and changed):
        return None
    said: dict[int, list[Entry]] = {one.ordinal: [] for one in chosen}
    for entry in effective_sequence(entries, cover, after=before.last):
        if entry.kind is Kind.MESSAGE and entry.episode in said and _is_readable(entry):
            said[entry.episode].append(entry)
    return Stretch(
        edits=changed,
        parts=tuple(Part(episode=one, entries=tuple(said[one.ordinal])) for one in chosen),
        upto=upto,
        before=before,
    )


def _is_readable(entry: Entry) -> bool:
    return entry.state is State.LIVE and entry.privacy is not Privacy.BLOCK


def is_stretch_current(found: Stretch, cover: Cover, current: Iterable[Entry | None]) -> bool:
    """Return whether everything that was read is still in force and has its content."""
    return all(
        now is not None and now.state is State.LIVE and cover.by(old.version) is None
        for old, now in zip(found.entries, current, strict=True)
    )


def superseded_ids_by_version(found: Stretch, cover: Cover) -> dict[int, frozenset[str]]:
    """Return the ids of the stretch's inactive entries, by the version that replaced or retracted them."""
    by: dict[int, set[str]] = {}
    for entry in found.entries:
        version = cover.by(entry.version)
        if version is not None:
            by.setdefault(version, set()).add(entry.id)
    return {version: frozenset(ids) for version, ids in by.items()}


def build_turn(entry: Entry, text: str) -> Turn:
    """Return a message as a reflector reads it."""
    return Turn(
        speaker=resolve_speaker(entry.actor, entry.role) or Role.USER.value,
        text=text,
        markers=entry.markers,
        version=entry.version,
        created_at=entry.created_at,
        origin=entry.origin,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedTurn(Turn):
    """A turn as `reflect(episode, turns)` reads it: with the names of the implementation plan beside ours."""

    id: str
    session_id: str
    episode_id: str
    role: str
    actor_id: str | None
    metadata: Mapping[str, Json]

    @property
    def content(self) -> str:
        """The text."""
        return self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedEpisode(Episode):
    """An episode as `reflect(episode, turns)` reads it: with the names of the implementation plan beside ours."""

    session_id: str
    metadata: Mapping[str, Json]

    @property
    def turn_count(self) -> int:
        """The number of messages."""
        return self.messages


def seed_turn(entry: Entry, text: str, context: Context) -> SeedTurn:
    """Return a message for `reflect(episode, turns)`."""
    plain = build_turn(entry, text)
    values: dict[str, Any] = {field.name: getattr(plain, field.name) for field in fields(Turn)}
    return SeedTurn(
        **values,
        id=entry.id,
        session_id=context.key or context.id,
        episode_id=episode_id(context.id, entry.episode),
        role=(entry.role or Role.USER).value,
        actor_id=entry.actor,
        metadata=entry.metadata,
    )


def select_known_facts(
    facts: Sequence[Fact], turns: Sequence[Turn], most: int = SHOWN_FACTS
) -> tuple[Fact, ...]:
    """Return the facts a reflector is shown: all of them, or those that share most words with the turns first."""
    if len(facts) <= most:
        return tuple(facts)
    said = {word for one in turns for word in split_words(one.text)}

    def shared(fact: Fact) -> int:
        told = f"{fact.content} {fact.subject} {fact.attribute} {fact.value}"
        return len(said.intersection(split_words(told)))

    return tuple(sorted(facts, key=shared, reverse=True)[:most])


def seed_episode(parts: Sequence[Part], context: Context) -> SeedEpisode:
    """Return the last of some episodes with everything that is read with it, for `reflect(episode, turns)`."""
    last, first = parts[-1].episode, parts[0].episode
    whole = replace(
        last,
        first=first.first,
        messages=sum(part.episode.messages for part in parts),
        tokens=sum(part.episode.tokens for part in parts),
        started_at=first.started_at,
    )
    values: dict[str, Any] = {field.name: getattr(whole, field.name) for field in fields(Episode)}
    return SeedEpisode(**values, session_id=context.key or context.id, metadata=EMPTY)


# ── marks and answers ───────────────────────────────────────────────────────────────────────────────────────────────


def summary_tokens(tokens: int) -> int:
    """Return the tokens a summary of so many may have."""
    return max(LEAST, tokens // SHORTER)


def draft_mark(
    part: Part, found: Stretch, text: str, tokens: int, *, reflector: str, summarizer: str, now: datetime
) -> Draft:
    """Return the mark of one episode: its summary, and that it was reflected on."""
    one = part.episode
    read = found.entries if summarizer == reflector else part.entries
    return Draft(
        kind=Kind.SUMMARY,
        content=text,
        key=f"episode:{one.ordinal}",
        created_at=now,
        tokens=tokens,
        origin=Origin.DERIVED,
        privacy=privacy_of_sources(part.entries),
        episode=one.ordinal,
        covers=(one.first, one.last),
        sources=tuple(entry.id for entry in part.entries),
        data={
            "episode": one.ordinal,
            "upto": found.upto,
            "reflector": reflector,
            "summarizer": summarizer,
            trust.TRUST: trust.lowest_trust(map(trust.trust_of_entry, read)).value,
        },
    )


def draft_extended_mark(found: Stretch, now: datetime) -> Draft:
    """Return the mark of a stretch that has edits only: the newest one again, further on."""
    old = found.before.mark
    assert old is not None
    names = [field.name for field in fields(Draft)]
    return replace(
        Draft(**{name: getattr(old, name) for name in names}),
        key=f"episode:{old.episode}:{found.upto}",
        created_at=now,
        data={**old.data, "episode": old.episode, "upto": found.upto},
    )


# ── answers of a reflector ──────────────────────────────────────────────────────────────────────────────────────────

_CHOICES: Mapping[str, Collection[object]] = {
    "action": get_args(Action),
    "cardinality": (*get_args(Cardinality), None),
    "scope": get_args(Scope),
}
_TEXTS = ("content", "subject", "attribute", "value", "fact_type", "reason")
MOST = 1_000
"""Proposals of one answer that are looked at."""


def parse_answer(answer: object, versions: Mapping[str, int]) -> Reflection:
    """Parse an answer of a reflector as far as possible; `versions` maps the ids that facts may cite to versions.

    A list of proposals or facts is an answer too. Values of a wrong type are skipped, and reported in words.
    """
    unreadable: list[str] = []
    rejected: tuple[Decision, ...] = ()
    summary: str | None = None
    if isinstance(answer, Reflection):
        proposals: object = answer.proposals
        if isinstance(answer.summary, str):
            summary = sanitize_summary(answer.summary) or None
        elif answer.summary is not None:
            unreadable.append(f"summary is a {type(answer.summary).__name__}")
        if isinstance(answer.unreadable, tuple | list):
            unreadable += [sanitize_summary(one)[:500] for one in answer.unreadable if isinstance(one, str)]
        if isinstance(answer.rejected, tuple | list):
            rejected = tuple(one for one in answer.rejected if isinstance(one, Decision))
    else:
        proposals = answer
    if not isinstance(proposals, tuple | list):
        unreadable.append(f"the answer is a {type(proposals).__name__}")
        proposals = ()
    kept: list[Proposal] = []
    for number, one in enumerate(proposals[:MOST], 1):
        proposal = _from_fact(one, versions) if isinstance(one, Fact) else one
        wrong = _find_type_error(proposal)
        if wrong is None:
            kept.append(_clean_proposal(proposal))
        else:
            unreadable.append(f"proposal {number}: {wrong}")
    if len(proposals) > MOST:
        unreadable.append(f"{len(proposals) - MOST} proposals beyond the first {MOST}")
    return Reflection(proposals=tuple(kept), summary=summary, unreadable=tuple(unreadable), rejected=rejected)


def _from_fact(fact: Fact, versions: Mapping[str, int]) -> Any:
    """Return the proposal to add a fact, as a reflector of the seed's shape returns it."""
    cited: Any = fact.sources
    if isinstance(cited, tuple | list):
        cited = tuple(versions[id] for id in cited if isinstance(id, str) and id in versions)
    return Proposal(
        content=fact.content,
        subject=fact.subject,
        attribute=fact.attribute,
        value=fact.value,
        # Not the fact's own, which is never unsaid: the address decides.
        cardinality="one" if fact.cardinality == "one" else None,
        fact_type=fact.fact_type,
        confidence=fact.confidence,
        negative=fact.negative,
        scope=fact.scope,
        valid_from=fact.valid_from,
        valid_to=fact.valid_to,
        sources=cited,
    )


def _find_type_error(one: Any) -> str | None:
    """Return the type error of a proposal, or None if it can be read."""
    if not isinstance(one, Proposal):
        return f"is a {type(one).__name__}"
    for name, choices in _CHOICES.items():
        value = getattr(one, name)
        if not (value is None or isinstance(value, str)) or value not in choices:
            return f"{name} is none of {', '.join(str(choice) for choice in choices)}"
    for name in _TEXTS:
        if not isinstance(getattr(one, name), str):
            return f"{name} is a {type(getattr(one, name)).__name__}"
    if isinstance(one.confidence, bool) or not isinstance(one.confidence, int | float):
        return f"confidence is a {type(one.confidence).__name__}"
    if not isinstance(one.negative, bool):
        return f"negative is a {type(one.negative).__name__}"
    if not (one.fact_id is None or isinstance(one.fact_id, str)):
        return f"fact_id is a {type(one.fact_id).__name__}"
    for name in ("valid_from", "valid_to"):
        value = getattr(one, name)
        if value is not None and (not isinstance(value, datetime) or value.tzinfo is None):
            return f"{name} is no time with a time zone"
    return _find_list_error(one)


def _find_list_error(one: Proposal) -> str | None:
    """Return why a list of a proposal cannot be read, or None if all can."""
    if not isinstance(one.sources, tuple | list) or not all(
        isinstance(version, int) and not isinstance(version, bool) for version in one.sources
    ):
        return "sources are not versions"
    for name in ("names", "depends_on"):
        value = getattr(one, name)
        if not isinstance(value, tuple | list) or not all(isinstance(text, str) for text in value):
            return f"{name} is no list of texts"
    return None


def _clean_proposal(one: Proposal) -> Proposal:
    texts: dict[str, Any] = {name: sanitize_summary(getattr(one, name)) for name in _TEXTS}
    fact_id = None if one.fact_id is None else sanitize_summary(one.fact_id)
    return replace(one, **texts, fact_id=fact_id, sources=tuple(one.sources))


def route_proposals(
    proposals: Sequence[Proposal], own: Collection[str], profile: Collection[str]
) -> tuple[list[int], list[int]]:
    """Return which proposals are about the session's facts, and which about those of the namespace's profile.

    A fact that is named stays where it is; else the scope decides.
    """
    of_profile = [
        number
        for number, one in enumerate(proposals)
        if (
            one.fact_id in profile
            if one.fact_id in own or one.fact_id in profile
            else one.scope == "namespace"
        )
    ]
    taken = set(of_profile)
    return [number for number in range(len(proposals)) if number not in taken], of_profile


def resolve_fact_ids(decisions: Iterable[Decision], ids: Sequence[str]) -> list[Decision]:
    """Return decisions with the ids of the facts they added, once these are stored."""
    return [
        replace(one, fact_id=ids[one.draft])
        if one.outcome in ("added", "updated") and one.draft is not None and one.draft < len(ids)
        else one
        for one in decisions
    ]


def select_adjacent(target: Entry, beside: Iterable[Entry], reach: int = 2) -> list[Entry]:
    """Return a message and those said directly before and after it in its episode, as far as `reach`."""
    said = [
        one
        for one in beside
        if one.kind is Kind.MESSAGE and one.episode == target.episode and not one.replaces
    ]
    place = anchor_version(target)
    before = [one for one in said if one.version < place][-reach:]
    after = [one for one in said if one.version > place][:reach]
    return [*before, target, *after]
