"""A session as a context provider, both of the project and of experience.

The project (L2) is the session's own log and the profile of its namespace: facts, summaries of compactions, messages.
Experience (L4) is past work: summaries of its past episodes, and the facts, summaries and marked messages of other
sessions in the same namespace.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from math import inf
from typing import NamedTuple

from acms.contract.admission import redact_excerpt
from acms.contract.entities import extract_entities, gaze_of_request
from acms.contract.schema import Candidate, Layer, Lod, Purpose, RenderRequest, Variant, size
from acms.errors import SessionNotFoundError
from acms.log import trust, validation
from acms.log.active_entries import preview_text
from acms.log.policy import PRIVATE
from acms.log.read import PROFILE, read_active_sequence, valid_times_at
from acms.log.validity import Labels, attach_label, label_at_end
from acms.model import Entry, Kind, Privacy, Role, Search, State
from acms.model import Origin as Trust
from acms.model import Source as Origin
from acms.privacy.detect import redact_text
from acms.privacy.modes import strictest_mode
from acms.prompt_types import prefix_speaker
from acms.results import ContextItem, ContextItems, resolve_speaker
from acms.runtime.patience import patience
from acms.runtime.threads import off_loop, pause_if_busy
from acms.session import ACMS
from acms.text.tokenizer import find_sentence_spans
from acms.view import View
from acms.write.episodes import is_reflection_mark

TITLE_CHARS = 100
"""Characters of a message's shortest rendition: one line."""
MAX_PAST_EPISODES = 64
"""Newest episodes whose summaries are considered."""


class SessionCandidates(NamedTuple):
    """The candidates of a session."""

    candidates: tuple[Candidate, ...]
    #: Approximate number of characters in the candidates.
    size: int


class SessionRecall(NamedTuple):
    """The result of a session's recall."""

    #: The log and its version that were read.
    context: str
    version: int
    #: The best recalled items, within the budget less the share for the newest messages.
    answers: tuple[ContextItem, ...]
    #: The other recalled items, the newest messages, and further items.
    filling: tuple[ContextItem, ...]


def _split_recalled(relevant: ContextItems, filling_items: ContextItems, budget: int) -> SessionRecall:
    """Split recalled items into answers, within `budget` tokens, and items that may fill the remaining tokens.

    The relevant items with the best scores are the answers, at least one of them; `filling_items` are only for filling.
    """
    excess = relevant.tokens - budget
    answers = {item.id for item in relevant}
    # Drop the worst answers until the rest fits; at least one remains.
    for item in sorted(relevant, key=lambda item: (item.score, item.version)):
        if excess <= 0 or len(answers) == 1:
            break
        answers.remove(item.id)
        excess -= item.token_count
    return SessionRecall(
        relevant.context,
        relevant.version,
        tuple(item for item in relevant if item.id in answers),
        tuple(item for item in (*relevant, *filling_items) if item.id not in answers),
    )


class _OtherSessions(NamedTuple):
    """The experience of other sessions of a namespace."""

    #: Recalled items, each with its entry.
    items: list[tuple[ContextItem, Entry]]
    #: Summaries of episodes (marks), each with its score.
    marks: list[tuple[Entry, float]]
    #: Staleness labels of the marks' logs, by context.
    labels: dict[str, Labels]


class SessionMemory:
    """A session as a provider for one reply: its recalled facts, summaries and messages, and its past episodes.

    A history that fits the budget is offered whole: recall is for larger histories (decision 17 of the design).
    """

    def __init__(self, session: View, request: RenderRequest, mode: Privacy) -> None:
        self._session = session
        self._query = request.intent
        self._tokens_max = request.tokens_max
        #: Tokens of the recall for filling candidates: shorter renditions of long messages may still fit.
        self._budget = max(4_000, request.tokens_max)
        self._mode = mode
        self._requested_names = frozenset(gaze_of_request(request))
        self._recalling = asyncio.Lock()
        self._recalled: SessionRecall | None = None

    async def project(self) -> SessionCandidates:
        """Return the candidates of this log and its profile: recalled items, and of a short log all other messages."""
        recalled = await self._recall()
        storage = self._session.storage
        labels = await self._labels()
        whole_log: list[Entry] = []
        if recalled.version and (await storage.head(recalled.context)).tokens <= self._tokens_max:
            whole_log = await read_active_sequence(storage, recalled.context, recalled.version, None)
        offered_items = [(item, Purpose.ANSWER) for item in recalled.answers]
        offered_items += [(item, Purpose.FILL) for item in recalled.filling]
        known_ids = {entry.id for entry in whole_log}
        further_entries = await self._read_entries(
            [item.id for item, _ in offered_items if item.id not in known_ids]
        )

        def build() -> Iterator[Candidate]:
            entries = further_entries | {entry.id: entry for entry in whole_log if _has_live_content(entry)}
            for item, purpose in offered_items:
                entry = entries.pop(item.id, None)
                candidate = None if entry is None else self._item_candidate(item, entry, purpose=purpose)
                if candidate is not None:
                    yield candidate
            for entry in entries.values():  # the rest of a short log
                yield self._message_candidate(entry, labels.label_of_entry(entry))

        size = _estimate_characters(whole_log) + _estimate_characters(further_entries.values())
        return await off_loop(lambda: _collect_candidates(build()), size)

    async def experience(self) -> SessionCandidates:
        """Return the summaries of past episodes, and the candidates of other sessions of the namespace."""
        recalled = await self._recall()
        marks: list[Entry] = []
        labels = Labels()
        if recalled.version:
            summaries = await self._session.storage.read(
                recalled.context, at=recalled.version, kinds=(Kind.SUMMARY,), newest=MAX_PAST_EPISODES
            )
            marks = [entry for entry in summaries if is_reflection_mark(entry) and _has_live_content(entry)]
            labels = await self._labels()
        foreign = await self._read_other_sessions(recalled)

        def build() -> Iterator[Candidate]:
            for entry in marks:
                yield self._episode_candidate(entry, labels.label_of_entry(entry))
            for item, entry in foreign.items:
                candidate = self._item_candidate(item, entry, source=Layer.L4)
                if candidate is not None:
                    yield candidate
            for entry, score in foreign.marks:
                yield self._episode_candidate(
                    entry, foreign.labels[entry.context].label_of_entry(entry), score
                )

        entries = [*marks, *(entry for _, entry in foreign.items), *(entry for entry, _ in foreign.marks)]
        return await off_loop(lambda: _collect_candidates(build()), _estimate_characters(entries))

    async def _read_other_sessions(self, recalled_here: SessionRecall) -> _OtherSessions:
        """Recall facts, summaries, marked messages and summaries of episodes of other sessions of the namespace.

        The result is empty for the unnamed namespace, which unrelated callers share.
        """
        session = self._session
        if not isinstance(session, ACMS) or session.namespace == validation.UNNAMED:
            return _OtherSessions([], [], {})
        budget = min(self._budget, 8_000)  # as many as the largest request of a caller
        recalled = await session.recall(
            self._query, token_budget=budget, scope="namespace", relevant_only=True
        )
        search = Search(
            namespace=session.namespace, terms=tuple(self._query.split()), limit=MAX_PAST_EPISODES
        )
        scores = {hit.id: hit.score for hit in await session.storage.search(search)}
        foreign = await self._read_foreign_entries([*(item.id for item in recalled), *scores], recalled_here)
        items: list[tuple[ContextItem, Entry]] = []
        for item in recalled:
            entry = foreign.get(item.id)
            if entry is not None and (entry.kind is not Kind.MESSAGE or entry.markers):
                items.append((item, entry))
        marks = [
            (entry, scores[id]) for id, entry in foreign.items() if id in scores and is_reflection_mark(entry)
        ]
        contexts = {entry.context for entry, _ in marks}
        labels = await asyncio.gather(*map(self._labels_of, contexts))
        return _OtherSessions(items, marks, dict(zip(contexts, labels, strict=True)))

    async def _read_foreign_entries(
        self, ids: Sequence[str], recalled_here: SessionRecall
    ) -> dict[str, Entry]:
        """Return the entries with these ids that belong to other sessions and were not recalled here, by id."""
        entries = await self._read_entries(ids)
        excluded = await self._excluded_versions(recalled_here, {entry.context for entry in entries.values()})
        recalled_ids = {item.id for item in (*recalled_here.answers, *recalled_here.filling)}
        foreign: dict[str, Entry] = {}
        for id, entry in entries.items():
            if id not in recalled_ids and entry.version > excluded.get(entry.context, 0):
                foreign[id] = entry
        return foreign

    async def _excluded_versions(
        self, recalled_here: SessionRecall, contexts: Collection[str]
    ) -> dict[str, float]:
        """Return for some logs the version up to which their entries are excluded from experience.

        This excludes this log with the entries it inherits, profiles, and private or deleted sessions.
        """
        storage = self._session.storage
        excluded: dict[str, float] = {}
        if recalled_here.version:
            excluded = dict((await storage.context(recalled_here.context)).lineage)
            excluded[recalled_here.context] = inf
        for id in contexts:
            if id in excluded:
                continue
            try:
                context = await storage.context(id)
            except SessionNotFoundError:  # deleted since the recall
                excluded[id] = inf
                continue
            if context.key == PROFILE or context.settings.get(PRIVATE):
                excluded[id] = inf
        return excluded

    async def _recall(self) -> SessionRecall:
        """Recall the answers within the budget, and the items that may fill the remaining tokens.

        If the query is in the log, messages after it are excluded from the answers: the caller already has them.
        """
        async with self._recalling:
            if self._recalled is None:
                recall, turn = self._session.recall, await self._current_turn()
                relevant = await recall(
                    self._query, token_budget=self._tokens_max, exclude=turn, relevant_only=True
                )
                token = patience.set(0.0)  # the first recall has waited for the vectors
                try:
                    # Messages after the query may fill the budget, but not the query itself, `turn[0]`.
                    exclude = [*turn[:1], *(item.id for item in relevant)]
                    filling_items = await recall(self._query, token_budget=self._budget, exclude=exclude)
                finally:
                    patience.reset(token)
                tokens_for_newest = int(self._tokens_max / 8)  # reserved for the newest messages
                self._recalled = _split_recalled(
                    relevant, filling_items, self._tokens_max - tokens_for_newest
                )
            return self._recalled

    async def _current_turn(self) -> list[str]:
        """Return the ids of the newest user message, if it is the query, and of all entries after it."""
        newest = await self._session.entries(newest=64)
        ids: list[str] = []
        for entry in reversed(newest):
            ids.insert(0, entry.id)
            if entry.role is Role.USER:
                return ids if entry.content.strip() == self._query.strip() else []
        return []

    async def _read_entries(self, ids: Sequence[str]) -> dict[str, Entry]:
        """Return the entries by id that still have content."""
        entries = await self._session.storage.get(list(dict.fromkeys(ids)))
        return {entry.id: entry for entry in entries if entry is not None and _has_live_content(entry)}

    async def _labels(self) -> Labels:
        """Return the staleness labels of its messages and summaries."""
        return (await self._session.internals.read_span(messages=1)).labels

    async def _labels_of(self, context: str) -> Labels:
        """Return the staleness labels of the messages and summaries of a log."""
        storage = self._session.storage
        head = await storage.head(context)
        has_derived = head.version > head.messages
        return Labels(await valid_times_at(storage, context, head, head.version) if has_derived else {})

    def _episode_candidate(self, entry: Entry, label: str, relevance: float | None = None) -> Candidate:
        content = attach_label(entry.content, label)
        candidate = self._candidate(entry, content, lod=Lod.MICRO, citations=(f"episode:{entry.episode}",))
        return replace(candidate, source=Layer.L4, relevance=relevance)

    def _item_candidate(
        self, item: ContextItem, entry: Entry, source: Layer = Layer.L2, purpose: Purpose | None = None
    ) -> Candidate | None:
        """Return a recalled item as a candidate, with its score as relevance if it was ranked; None if it is blank.

        The newest messages that are not answers have no relevance: they fill the budget regardless of their content.
        """
        if item.redaction is not None:  # a reply applies its own redaction stage
            item = replace(item, content=entry.content + _label_in(item.content, entry))
        if not item.content.strip():
            return None
        is_newest = purpose is Purpose.FILL and item.source is Origin.CURRENT
        if item.source is Origin.FACT:
            about = f"{entry.data.get('subject', '')} {entry.data.get('attribute', '')} "
            candidate = self._candidate(
                entry, item.content, lod=Lod.MACRO, citations=entry.sources, about=about
            )
        else:
            lead = prefix_speaker(item.speaker, "")
            candidate = self._entry_candidate(entry, item.content, lead, shortened=item.truncated)
        relevance = None if is_newest else item.score or None
        return replace(candidate, source=source, relevance=relevance, purpose=purpose)

    def _message_candidate(self, entry: Entry, label: str) -> Candidate:
        lead = (
            "" if entry.kind is Kind.SUMMARY else prefix_speaker(resolve_speaker(entry.actor, entry.role), "")
        )
        candidate = self._entry_candidate(entry, attach_label(entry.content, label), lead)
        return replace(candidate, purpose=Purpose.FILL)

    def _entry_candidate(
        self, entry: Entry, content: str, lead: str, *, shortened: bool = False
    ) -> Candidate:
        is_summary = entry.kind is Kind.SUMMARY
        return self._candidate(
            entry,
            content,
            lod=Lod.MICRO if is_summary or shortened else Lod.ATOMIC,
            citations=entry.sources if is_summary else (entry.id,),
            lead=lead,
        )

    def _candidate(
        self,
        entry: Entry,
        content: str,
        *,
        lod: Lod,
        citations: tuple[str, ...],
        lead: str = "",
        about: str = "",
    ) -> Candidate:
        """Return an entry as a candidate; it is redacted before it is shortened, as a cut could split a secret.

        `lead` is put before the text, and `about` only adds entities. A blocked entry has no text, and only the
        entities that the request names.
        """
        mode = strictest_mode(
            self._mode, self._session.internals.redactor.mode or Privacy.ALLOW, entry.privacy
        )
        candidate = Candidate(
            id=entry.id,
            source=Layer.L2,
            lod=lod,
            timestamp=entry.created_at,
            external=trust.trust_of_entry(entry) is Trust.EXTERNAL,
        )
        if mode is Privacy.BLOCK:
            names = tuple(name for name in extract_entities(about + content) if name in self._requested_names)
            return replace(candidate, entities=names, privacy=mode)
        redacted: str | None = None
        if content != entry.content:
            redacted = redact_excerpt(content, entry.content, mode)
        if redacted is None:
            redacted = redact_text(entry.content, mode).text + _label_in(content, entry)
        text = redact_text(lead, mode).text + redacted
        return replace(
            candidate,
            text=text,
            entities=extract_entities(about + redacted),
            citations=citations,
            variants=_build_variants(text, lod),
            privacy=entry.privacy,
        )


def _estimate_characters(entries: Iterable[Entry]) -> int:
    """Return the approximate number of characters to read: both the shown and the stored text of each entry."""
    return sum(2 * len(entry.content) for entry in entries)


def _collect_candidates(candidates: Iterable[Candidate]) -> SessionCandidates:
    """Collect candidates as they are built, and let other threads run in between."""
    collected: list[Candidate] = []
    for candidate in candidates:
        collected.append(candidate)
        pause_if_busy()
    return SessionCandidates(tuple(collected), sum(map(size, collected)))


def _label_in(content: str, entry: Entry) -> str:
    """Return the label that was added to an entry's text, with the space before it, or an empty string."""
    label = label_at_end(content)
    return "" if entry.content.endswith(label) else label


def _has_live_content(entry: Entry) -> bool:
    return entry.state is State.LIVE and bool(entry.content.strip())


def _build_variants(text: str, lod: Lod) -> tuple[Variant, ...]:
    """Return shorter renditions of a long text: its first line and its first sentences, each with the label."""
    if len(text) < 4 * TITLE_CHARS or lod is Lod.MACRO:
        return ()
    label = label_at_end(text)
    text = text.removesuffix(label)
    title = Variant(lod=Lod.MACRO, text=preview_text(text, TITLE_CHARS) + label, cost_tokens=0)
    if lod is Lod.MICRO:
        return (title,)
    end = 0
    for _, stop in find_sentence_spans(text):
        if stop > len(text) // 3:
            break
        end = stop
    if end <= TITLE_CHARS:
        return (title,)
    summary = f"{text[:end].rstrip()} […]{label}"
    return (title, Variant(lod=Lod.MICRO, text=summary, cost_tokens=0))
