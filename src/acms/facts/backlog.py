"""Backlog of reflection: which closed episodes a reflector reads next, its input, and the parsing of its answer.

The functions are pure and independent of the reflector. A *mark*, a summary that replaces nothing, records how far a
log was reflected on; it is the only state. An episode that is too short is read together with the next one.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any

from acms.facts.proposal_validation import TEXT_FIELDS, find_type_error
from acms.knowledge import Decision, Fact, Proposal, Reflection
from acms.log import trust
from acms.log.active_entries import Replacements, effective_sequence
from acms.model import EMPTY, Context, Draft, Entry, EpisodeStatus, Json, Kind, Origin, Privacy, Role, State
from acms.nouns import episode_id
from acms.ports import Turn
from acms.privacy.modes import privacy_of_sources
from acms.results import Episode, resolve_speaker
from acms.text.summary_form import MIN_SUMMARY_TOKENS, SUMMARY_DIVISOR, sanitize_summary
from acms.text.tokenizer import split_words
from acms.write.episodes import build_episodes, is_reflection_mark

MAX_KNOWN_FACTS = 40
"""Active facts that a reflector reads with a batch: about as many tokens as a batch of short messages has."""


def has_seed_signature(reflector: Any) -> bool:
    """Return whether a reflector has the older signature `reflect(episode, turns)`: two required arguments."""
    try:
        parameters = inspect.signature(reflector.reflect).parameters.values()
    except (TypeError, ValueError):
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required: list[inspect.Parameter] = []
    for parameter in parameters:
        if parameter.kind in positional and parameter.default is parameter.empty:
            required.append(parameter)
    return len(required) == 2


# ── progress ────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a log was reflected on."""

    #: Ordinal of the last episode that was reflected on, 0 for none, and version of its last message.
    episode: int = 0
    last: int = 0
    #: Version up to which edits were read.
    upto: int = 0
    #: The mark of that episode.
    mark: Entry | None = None


def find_progress(newest_summaries: Iterable[Entry]) -> Progress:
    """Return how far a log was reflected on, from its newest summaries, active or not."""
    marks = [entry for entry in newest_summaries if is_reflection_mark(entry) and entry.covers is not None]
    if not marks:
        return Progress()
    # An adopted mark may come after one of a later episode.
    mark = max(marks, key=lambda entry: (entry.episode, entry.version))
    assert mark.covers is not None
    last = mark.covers[1]
    # An erased mark has lost its data; its episode and `covers` stay.
    upto = int(mark.data.get("upto", last))
    return Progress(episode=mark.episode, last=last, upto=upto, mark=mark)


# ── the next episodes ───────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much a reflector reads in one call."""

    #: An episode with fewer messages waits for the next one.
    min_messages: int
    #: Maximum messages and tokens of one call; an indivisible group of episodes may have more.
    max_messages: int
    max_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeInput:
    """One episode to be reflected on."""

    episode: Episode
    #: The active messages of the episode that a reflector may read.
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The input of one reflector call."""

    #: Edits of episodes that were reflected on before.
    edits: tuple[Entry, ...]
    parts: tuple[EpisodeInput, ...]
    #: Version up to which edits were read.
    upto: int
    #: The progress before the batch.
    before: Progress

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All messages of the batch, in the order in which they are read."""
        return (*self.edits, *(entry for part in self.parts for entry in part.entries))

    @property
    def key(self) -> str:
        """The identifier of the batch in the keys of drafts: the same episodes give the same identifier."""
        if not self.parts:
            return f"{self.before.episode}:{self.upto}"
        return f"{self.parts[0].episode.ordinal}-{self.parts[-1].episode.ordinal}"


def find_next_batch(
    context: str,
    entries: Sequence[Entry],
    edits: Sequence[Entry],
    replacements: Replacements,
    before: Progress,
    upto: int,
    limits: Limits,
    *,
    force: bool,
) -> Batch | None:
    """Return the next batch of episodes and edits to read, or None if there is not enough to read.

    `entries` are the messages and manual closes after the last episode that was reflected on, and `edits` the edits
    since then. `before` is the progress so far, and `upto` the version up to which edits are read with this batch. With
    `force` no episode is too short, and edits alone are enough.
    """
    new_edits = _select_unread_edits(edits, replacements, before)
    if force:
        limits = replace(limits, min_messages=1)
    chosen = _choose_episodes(build_episodes(context, entries), new_edits, before, limits)
    edits_are_enough = force and bool(new_edits)
    if not chosen and not edits_are_enough:
        return None
    messages_by_episode: dict[int, list[Entry]] = {episode.ordinal: [] for episode in chosen}
    for entry in effective_sequence(entries, replacements, after=before.last):
        is_chosen = entry.kind is Kind.MESSAGE and entry.episode in messages_by_episode
        if is_chosen and _is_readable(entry):
            messages_by_episode[entry.episode].append(entry)
    parts: list[EpisodeInput] = []
    for episode in chosen:
        parts.append(EpisodeInput(episode=episode, entries=tuple(messages_by_episode[episode.ordinal])))
    return Batch(edits=tuple(new_edits), parts=tuple(parts), upto=upto, before=before)


def _choose_episodes(
    episodes: Iterable[Episode], edits: Sequence[Entry], before: Progress, limits: Limits
) -> list[Episode]:
    """Return the closed episodes after the progress that fit the limits, together with the edits."""
    chosen: list[Episode] = []
    messages, tokens = len(edits), sum(edit.tokens for edit in edits)
    for group in _group_episodes(episodes, before.episode, limits.min_messages):
        messages += sum(episode.messages for episode in group)
        tokens += sum(episode.tokens for episode in group)
        is_too_large = messages > limits.max_messages or tokens > limits.max_tokens
        if chosen and is_too_large:  # the first group is read however large it is
            break
        chosen += group
    return chosen


def _select_unread_edits(edits: Iterable[Entry], replacements: Replacements, before: Progress) -> list[Entry]:
    """Return the active edits of episodes that were reflected on which no reflector has read yet."""
    selected: list[Entry] = []
    for edit in edits:
        is_new = edit.version > before.upto
        is_active = replacements.replaced_by(edit.version) is None
        episode_was_read = 0 < edit.episode <= before.episode
        if is_new and is_active and episode_was_read and _is_readable(edit):
            selected.append(edit)
    return selected


def _group_episodes(episodes: Iterable[Episode], after: int, min_messages: int) -> list[list[Episode]]:
    """Group the closed episodes after an ordinal so that each group has at least `min_messages`; a rest is left out."""
    groups: list[list[Episode]] = []
    group: list[Episode] = []
    for episode in episodes:
        if episode.ordinal <= after or episode.status is not EpisodeStatus.CLOSED:
            continue
        group.append(episode)
        if sum(member.messages for member in group) >= min_messages:
            groups.append(group)
            group = []
    return groups


def _is_readable(entry: Entry) -> bool:
    """Return whether a reflector may read an entry: it has content and is not blocked."""
    return entry.state is State.LIVE and entry.privacy is not Privacy.BLOCK


def is_batch_current(batch: Batch, replacements: Replacements, current: Iterable[Entry | None]) -> bool:
    """Return whether all entries of a batch are still active and have content; `current` are the stored entries."""
    for entry, stored in zip(batch.entries, current, strict=True):
        has_content = stored is not None and stored.state is State.LIVE
        if not has_content or replacements.replaced_by(entry.version) is not None:
            return False
    return True


def superseded_ids_by_version(batch: Batch, replacements: Replacements) -> dict[int, frozenset[str]]:
    """Return the ids of the batch's inactive entries, by the version that replaced or retracted them."""
    ids: dict[int, frozenset[str]] = {}
    for entry in batch.entries:
        version = replacements.replaced_by(entry.version)
        if version is not None:
            ids[version] = ids.get(version, frozenset()) | {entry.id}
    return ids


def build_turn(entry: Entry, text: str) -> Turn:
    """Return the turn that a reflector reads for a message; `text` is its redacted content."""
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
    """A turn for `reflect(episode, turns)`; it also has the names that this older signature used for the fields."""

    id: str
    session_id: str
    episode_id: str
    role: str
    actor_id: str | None
    metadata: Mapping[str, Json]

    @property
    def content(self) -> str:
        """The same as `text`."""
        return self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedEpisode(Episode):
    """An episode for `reflect(episode, turns)`; it also has the names that this older signature used for the fields."""

    session_id: str
    metadata: Mapping[str, Json]

    @property
    def turn_count(self) -> int:
        """The same as `messages`: their number."""
        return self.messages


def build_seed_turn(entry: Entry, text: str, context: Context) -> SeedTurn:
    """Return a message for `reflect(episode, turns)`."""
    turn = build_turn(entry, text)
    turn_fields: dict[str, Any] = {field.name: getattr(turn, field.name) for field in fields(Turn)}
    return SeedTurn(
        **turn_fields,
        id=entry.id,
        session_id=context.key or context.id,
        episode_id=episode_id(context.id, entry.episode),
        role=(entry.role or Role.USER).value,
        actor_id=entry.actor,
        metadata=entry.metadata,
    )


def select_known_facts(facts: Sequence[Fact], turns: Sequence[Turn]) -> tuple[Fact, ...]:
    """Return the facts that a reflector reads: those that share most words with the turns if there are too many."""
    if len(facts) <= MAX_KNOWN_FACTS:
        return tuple(facts)
    words: set[str] = set()
    for turn in turns:
        words.update(split_words(turn.text))

    def count_shared_words(fact: Fact) -> int:
        text = f"{fact.content} {fact.subject} {fact.attribute} {fact.value}"
        return len(words.intersection(split_words(text)))

    return tuple(sorted(facts, key=count_shared_words, reverse=True)[:MAX_KNOWN_FACTS])


def build_seed_episode(parts: Sequence[EpisodeInput], context: Context) -> SeedEpisode:
    """Join the episodes of some parts into one for `reflect(episode, turns)`.

    The result is the last episode, extended to begin with the first.
    """
    last, first = parts[-1].episode, parts[0].episode
    whole = replace(
        last,
        first=first.first,
        messages=sum(part.episode.messages for part in parts),
        tokens=sum(part.episode.tokens for part in parts),
        started_at=first.started_at,
    )
    episode_fields: dict[str, Any] = {field.name: getattr(whole, field.name) for field in fields(Episode)}
    return SeedEpisode(**episode_fields, session_id=context.key or context.id, metadata=EMPTY)


# ── marks ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def limit_summary_tokens(tokens: int) -> int:
    """Return the maximum tokens of a summary of a text that has `tokens`."""
    return max(MIN_SUMMARY_TOKENS, tokens // SUMMARY_DIVISOR)


def draft_mark(
    part: EpisodeInput,
    batch: Batch,
    text: str,
    tokens: int,
    *,
    reflector: str,
    summarizer: str,
    now: datetime,
) -> Draft:
    """Draft the mark of one episode, which holds its summary and records that it was reflected on."""
    episode = part.episode
    # A reflector writes its summary after reading the whole batch, which decides the trust of the summary.
    sources = batch.entries if summarizer == reflector else part.entries
    return Draft(
        kind=Kind.SUMMARY,
        content=text,
        key=f"episode:{episode.ordinal}",
        created_at=now,
        tokens=tokens,
        origin=Origin.DERIVED,
        privacy=privacy_of_sources(part.entries),
        episode=episode.ordinal,
        covers=(episode.first, episode.last),
        sources=tuple(entry.id for entry in part.entries),
        data={
            "episode": episode.ordinal,
            "upto": batch.upto,
            "reflector": reflector,
            "summarizer": summarizer,
            trust.TRUST: trust.lowest_trust(map(trust.trust_of_entry, sources)).value,
        },
    )


def draft_extended_mark(batch: Batch, now: datetime) -> Draft:
    """Draft the mark of a batch that has only edits: a copy of the newest mark with a later `upto`."""
    mark = batch.before.mark
    assert mark is not None
    copy = Draft(**{field.name: getattr(mark, field.name) for field in fields(Draft)})
    return replace(
        copy,
        key=f"episode:{mark.episode}:{batch.upto}",
        created_at=now,
        data={**mark.data, "episode": mark.episode, "upto": batch.upto},
    )


# ── answers of a reflector ──────────────────────────────────────────────────────────────────────────────────────────

MAX_PROPOSALS = 1_000
"""Maximum proposals of one answer that are read: many times more than a useful answer has."""


def parse_answer(answer: object, versions: Mapping[str, int]) -> Reflection:
    """Parse the answer of a reflector: a `Reflection`, or a list of proposals or facts.

    Values of a wrong type are skipped and reported in `unreadable`. `versions` has by id the versions of the messages
    that facts may cite.
    """
    parsed = Reflection()
    proposals: object = answer
    if isinstance(answer, Reflection):
        parsed = _parse_reports(answer)
        proposals = answer.proposals
    unreadable = list(parsed.unreadable)
    if not isinstance(proposals, tuple | list):
        unreadable.append(f"the answer is a {type(proposals).__name__}")
        proposals = ()
    readable: list[Proposal] = []
    for number, item in enumerate(proposals[:MAX_PROPOSALS], 1):
        proposal = _convert_fact_to_proposal(item, versions) if isinstance(item, Fact) else item
        fault = find_type_error(proposal)
        if fault is None:
            readable.append(_sanitize_proposal(proposal))
        else:
            unreadable.append(f"proposal {number}: {fault}")
    if len(proposals) > MAX_PROPOSALS:
        unreadable.append(f"{len(proposals) - MAX_PROPOSALS} proposals beyond the first {MAX_PROPOSALS}")
    return replace(parsed, proposals=tuple(readable), unreadable=tuple(unreadable))


def _parse_reports(answer: Any) -> Reflection:
    """Return the summary of an answer and its reports of rejected and unreadable proposals, without the proposals."""
    summary: str | None = None
    unreadable: list[str] = []
    rejected: tuple[Decision, ...] = ()
    if isinstance(answer.summary, str):
        summary = sanitize_summary(answer.summary) or None
    elif answer.summary is not None:
        unreadable.append(f"summary is a {type(answer.summary).__name__}")
    if isinstance(answer.unreadable, tuple | list):
        reports = [text for text in answer.unreadable if isinstance(text, str)]
        unreadable += [sanitize_summary(report)[:500] for report in reports]  # characters that a log can show
    if isinstance(answer.rejected, tuple | list):
        rejected = tuple(decision for decision in answer.rejected if isinstance(decision, Decision))
    return Reflection(summary=summary, unreadable=tuple(unreadable), rejected=rejected)


def _convert_fact_to_proposal(fact: Fact, versions: Mapping[str, int]) -> Any:
    """Return the proposal to add a fact that a reflector returned instead of a proposal."""
    sources: Any = fact.sources
    if isinstance(sources, tuple | list):  # any other value stays, and is reported as unreadable
        sources = tuple(versions[id] for id in sources if isinstance(id, str) and id in versions)
    return Proposal(
        content=fact.content,
        subject=fact.subject,
        attribute=fact.attribute,
        value=fact.value,
        # "many" may be only the default of the class: with None the other facts at the address decide.
        cardinality="one" if fact.cardinality == "one" else None,
        fact_type=fact.fact_type,
        confidence=fact.confidence,
        negative=fact.negative,
        scope=fact.scope,
        valid_from=fact.valid_from,
        valid_to=fact.valid_to,
        sources=sources,
    )


def _sanitize_proposal(proposal: Proposal) -> Proposal:
    """Return a proposal whose texts are sanitized like summaries."""
    texts: dict[str, Any] = {name: sanitize_summary(getattr(proposal, name)) for name in TEXT_FIELDS}
    fact_id = None if proposal.fact_id is None else sanitize_summary(proposal.fact_id)
    return replace(proposal, **texts, fact_id=fact_id, sources=tuple(proposal.sources))


def route_proposals(
    proposals: Sequence[Proposal], session_ids: Collection[str], profile_ids: Collection[str]
) -> tuple[list[int], list[int]]:
    """Return the indexes of the proposals about the session's facts, and of those about the namespace's profile.

    A proposal that names a fact goes where that fact is; otherwise its scope decides. `session_ids` and `profile_ids`
    are the ids of the facts in each.
    """
    to_session: list[int] = []
    to_profile: list[int] = []
    for index, proposal in enumerate(proposals):
        in_profile = proposal.fact_id in profile_ids
        if proposal.fact_id not in session_ids and not in_profile:
            in_profile = proposal.scope == "namespace"
        target = to_profile if in_profile else to_session
        target.append(index)
    return to_session, to_profile


def resolve_fact_ids(decisions: Iterable[Decision], ids: Sequence[str]) -> list[Decision]:
    """Return decisions with the ids of the facts that they added; `ids` are those of the stored drafts."""
    resolved: list[Decision] = []
    for decision in decisions:
        index = decision.draft
        if decision.outcome in ("added", "updated") and index is not None and index < len(ids):
            decision = replace(decision, fact_id=ids[index])
        resolved.append(decision)
    return resolved
