"""A session as a context provider, both of the project and of experience.

The project (L2) is the session's own log and the profile of its namespace: facts, summaries of compactions, messages.
Experience (L4) is past work: summaries of its past episodes, and the facts, summaries and marked messages of other
sessions in the same namespace.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from typing import NamedTuple, TypeAlias

from acms.contract.admission import redact_excerpt
from acms.contract.entities import extract_entities, gaze_of_request
from acms.contract.schema import Candidate, Layer, Lod, Purpose, RenderRequest, Variant, size
from acms.errors import SessionNotFoundError
from acms.log import trust, validation
from acms.log.in_force import preview_text
from acms.log.policy import PRIVATE
from acms.log.read import PROFILE, read_active_sequence, valid_times_at
from acms.log.validity import Labels, attach_label, label_of
from acms.model import Entry, Kind, Privacy, Role, Search, State
from acms.model import Origin as Trust
from acms.model import Source as Origin
from acms.privacy.detect import redact_text, strictest_mode
from acms.prompt_types import prefix_speaker
from acms.recall.patience import patience
from acms.results import ContextItem, ContextItems, resolve_speaker
from acms.runtime.threads import off_loop, pause_if_busy
from acms.session import ACMS
from acms.text.tokenizer import find_sentence_spans
from acms.view import View
from acms.write.episodes import is_mark

TITLE = 100
"""Characters of a message's shortest rendition."""
LONG = 400
"""Characters from which a message has shorter renditions."""
NEWEST = 0.125
"""Share of the budget that is reserved for the newest messages."""
LEAST_BUDGET = 4_000
"""Least token budget of the recall for filling candidates: shorter renditions of long messages may still fit."""
TURN = 64
"""Newest messages among which the query is searched."""
ELSEWHERE = 8_000
"""Most tokens of a recall over the sessions of a namespace."""
PAST = 64
"""Newest episodes whose summaries are considered."""

_Work: TypeAlias = tuple[Entry, Callable[[], Candidate]]
"""An entry, and the function that builds its candidate."""


class Found(NamedTuple):
    """The candidates of a session."""

    candidates: tuple[Candidate, ...]
    #: Approximate number of characters in the candidates.
    size: int


class Recalled(NamedTuple):
    """The result of a session's recall."""

    #: The log and its version that were read.
    context: str
    version: int
    #: The best recalled items, within the budget less the share for the newest messages.
    answers: tuple[ContextItem, ...]
    #: The other recalled items, the newest messages, and further items.
    rest: tuple[ContextItem, ...]


def _split_recalled(found: ContextItems, others: ContextItems, room: int) -> Recalled:
    """Split recalled items into answers, with `room` tokens of their own, and items that fill the rest."""
    over = found.tokens - room
    answers = {item.id for item in found}
    worth = {item.version: item.score for item in found}
    for item in sorted(found, key=lambda item: (worth[item.version], item.version)):
        if over <= 0 or len(answers) == 1:
            break
        answers.remove(item.id)
        over -= item.token_count
    return Recalled(
        found.context,
        found.version,
        tuple(item for item in found if item.id in answers),
        tuple(item for item in (*found, *others) if item.id not in answers),
    )


class Memory:
    """A session as a provider for one reply: its recalled facts, summaries and messages, and its past episodes.

    A history that fits the budget is offered whole: recall is for larger histories (decision 17 of the design).
    """

    def __init__(self, session: View, request: RenderRequest, mode: Privacy) -> None:
        self._session = session
        self._query = request.intent
        self._tokens_max = request.tokens_max
        self._budget = max(LEAST_BUDGET, request.tokens_max)
        self._mode = mode
        self._asked = frozenset(gaze_of_request(request))
        self._recalling = asyncio.Lock()
        self._recalled: Recalled | None = None

    async def project(self) -> Found:
        """Return the candidates of this log and its profile for the query."""
        found = await self._recall()
        storage = self._session.storage
        labels = await self._labels()
        whole: list[Entry] = []
        if found.version and (await storage.head(found.context)).tokens <= self._tokens_max:
            whole = await read_active_sequence(storage, found.context, found.version, None)
        there = {one.id for one in whole}
        offered = [(item, Purpose.ANSWER) for item in found.answers]
        offered += [(item, Purpose.FILL) for item in found.rest]
        beyond = await self._rows([item.id for item, _ in offered if item.id not in there])

        def work() -> Iterator[_Work]:
            rows = beyond | {one.id: one for one in whole if _has_live_content(one)}
            for item, purpose in offered:
                row = rows.pop(item.id, None)
                if row is not None and (stored := _as_stored(item, row)).content.strip():
                    yield row, partial(self._item, stored, row, purpose=purpose)
            for row in rows.values():
                yield row, partial(self._message, row, labels.of(row))

        return await off_loop(
            lambda: _build_candidates(work()),
            _estimate_characters(whole) + _estimate_characters(beyond.values()),
        )

    async def experience(self) -> Found:
        """Return the summaries of past episodes, and the candidates of other sessions of the namespace."""
        own = await self._recall()
        work: list[_Work] = []
        if own.version:
            found = await self._session.storage.read(
                own.context, at=own.version, kinds=(Kind.SUMMARY,), newest=PAST
            )
            marks = [one for one in found if is_mark(one) and _has_live_content(one)]
            labels = await self._labels()
            work = [(one, partial(self._episode, one, label=labels.of(one))) for one in marks]
        work += await self._elsewhere(own)
        return await off_loop(partial(_build_candidates, work), _estimate_characters(row for row, _ in work))

    async def _elsewhere(self, own: Recalled) -> list[_Work]:
        """Recall facts, summaries and marked messages of other sessions of the namespace.

        All callers share the unnamed namespace and must not read each other's messages: for it the result is empty.
        """
        session = self._session
        if not isinstance(session, ACMS) or session.namespace == validation.UNNAMED:
            return []
        items = await session.recall(
            self._query, token_budget=min(self._budget, ELSEWHERE), scope="namespace", relevant_only=True
        )
        search = Search(namespace=session.namespace, terms=tuple(self._query.split()), limit=PAST)
        hits = {hit.id: hit.score for hit in await session.storage.search(search)}
        rows = await self._rows([*(item.id for item in items), *hits])
        ours = await self._contexts(own, {row.context for row in rows.values()})
        known = {item.id for item in (*own.answers, *own.rest)}
        for id in [id for id, row in rows.items() if id in known or row.version <= ours.get(row.context, 0)]:
            del rows[id]
        work: list[_Work] = [
            (row, partial(self._item, stored, row, Layer.L4))
            for item in items
            if (row := rows.get(item.id)) is not None
            and (stored := _as_stored(item, row)).content.strip()
            and (row.kind is not Kind.MESSAGE or row.markers)
        ]
        marks = [(row, hits[id]) for id, row in rows.items() if id in hits and is_mark(row)]
        told = await self._labels_of({row.context for row, _ in marks})
        return work + [
            (row, partial(self._episode, row, score, told[row.context].of(row))) for row, score in marks
        ]

    async def _contexts(self, own: Recalled, found: Collection[str]) -> dict[str, float]:
        """Return up to which version each log is no experience: this one, its ancestors, the profile, private ones."""
        storage = self._session.storage
        ours: dict[str, float] = {}
        if own.version:
            ours = dict((await storage.context(own.context)).lineage)
            ours[own.context] = inf
        for id in found:
            try:
                if id not in ours:
                    context = await storage.context(id)
                    if context.key == PROFILE or context.settings.get(PRIVATE):
                        ours[id] = inf
            except SessionNotFoundError:  # deleted meanwhile
                ours[id] = inf
        return ours

    async def _recall(self) -> Recalled:
        """Recall the answers within the budget, and the items that may fill the remaining tokens.

        If the query is in the log, messages after it are excluded from the answers: the caller already has them.
        """
        async with self._recalling:
            if self._recalled is None:
                recall, turn = self._session.recall, await self._turn()
                found = await recall(
                    self._query, token_budget=self._tokens_max, exclude=turn, relevant_only=True
                )
                waited = patience.set(0.0)  # for vectors, once
                try:
                    others = await recall(
                        self._query,
                        token_budget=self._budget,
                        exclude=[*turn[:1], *(item.id for item in found)],
                    )
                finally:
                    patience.reset(waited)
                self._recalled = _split_recalled(
                    found, others, self._tokens_max - int(NEWEST * self._tokens_max)
                )
            return self._recalled

    async def _turn(self) -> list[str]:
        """Return the ids of the newest user message, if it is the query, and of all entries after it."""
        found = await self._session.entries(newest=TURN)
        asked = [place for place, one in enumerate(found) if one.role is Role.USER][-1:]
        if not asked or found[asked[0]].content.strip() != self._query.strip():
            return []
        return [one.id for one in found[asked[0] :]]

    async def _rows(self, ids: Sequence[str]) -> dict[str, Entry]:
        """Return the entries by id that still have content."""
        found = await self._session.storage.get(list(dict.fromkeys(ids)))
        return {one.id: one for one in found if one is not None and _has_live_content(one)}

    async def _labels(self) -> Labels:
        """Return the staleness labels of its messages and summaries."""
        return (await self._session.said(messages=1)).labels

    async def _labels_of(self, contexts: Collection[str]) -> dict[str, Labels]:
        """Return the staleness labels of the messages and summaries of some logs."""
        storage = self._session.storage

        async def of(context: str) -> Labels:
            head = await storage.head(context)
            made = head.version > head.messages
            return Labels(await valid_times_at(storage, context, head, head.version) if made else {})

        return dict(zip(contexts, await asyncio.gather(*map(of, contexts)), strict=True))

    def _episode(self, row: Entry, relevance: float | None = None, label: str = "") -> Candidate:
        return self._candidate(
            row,
            attach_label(row.content, label),
            source=Layer.L4,
            lod=Lod.MICRO,
            citations=(f"episode:{row.episode}",),
            relevance=relevance,
        )

    def _item(
        self, item: ContextItem, row: Entry, source: Layer = Layer.L2, purpose: Purpose | None = None
    ) -> Candidate:
        """Return a recalled item as a candidate, with its score as relevance if it was ranked.

        The newest messages that are not answers have no relevance: they fill the budget regardless of their content.
        """
        newest = purpose is Purpose.FILL and item.source is Origin.CURRENT
        relevance = None if newest else item.score or None
        if item.source is Origin.FACT:
            data = row.data
            about = f"{data.get('subject', '')} {data.get('attribute', '')} "
            return self._candidate(
                row,
                item.content,
                source=source,
                lod=Lod.MACRO,
                citations=row.sources,
                about=about,
                relevance=relevance,
                purpose=purpose,
            )
        found = self._entry_candidate(
            row, item.content, prefix_speaker(item.speaker, ""), shortened=item.truncated
        )
        return replace(found, source=source, relevance=relevance, purpose=purpose)

    def _message(self, row: Entry, label: str) -> Candidate:
        lead = "" if row.kind is Kind.SUMMARY else prefix_speaker(resolve_speaker(row.actor, row.role), "")
        found = self._entry_candidate(row, attach_label(row.content, label), lead)
        return replace(found, purpose=Purpose.FILL)

    def _entry_candidate(self, row: Entry, content: str, lead: str, *, shortened: bool = False) -> Candidate:
        summary = row.kind is Kind.SUMMARY
        return self._candidate(
            row,
            content,
            lod=Lod.MICRO if summary or shortened else Lod.ATOMIC,
            citations=row.sources if summary else (row.id,),
            lead=lead,
        )

    def _candidate(
        self,
        row: Entry,
        content: str,
        *,
        lod: Lod,
        citations: tuple[str, ...],
        source: Layer = Layer.L2,
        lead: str = "",
        about: str = "",
        relevance: float | None = None,
        purpose: Purpose | None = None,
    ) -> Candidate:
        """Return an entry as a candidate, redacted before it is shortened: a cut could split a secret.

        A blocked entry keeps only the entities that the caller has named: the others are words of its text.
        """
        external = trust.trust_of_entry(row) is Trust.EXTERNAL
        mode = strictest_mode(self._mode, self._session.stage.mode or Privacy.ALLOW, row.privacy)
        if mode is Privacy.BLOCK:
            names = tuple(name for name in extract_entities(about + content) if name in self._asked)
            return Candidate(
                id=row.id,
                source=source,
                lod=lod,
                entities=names,
                timestamp=row.created_at,
                relevance=relevance,
                privacy=mode,
                purpose=purpose,
                external=external,
            )
        clean = (
            redact_text(content, mode).text
            if content == row.content
            else redact_excerpt(content, row.content, mode)
        )
        if clean is None:
            clean = redact_text(row.content, mode).text + _label_in(content, row)
        text = redact_text(lead, mode).text + clean
        return Candidate(
            id=row.id,
            source=source,
            lod=lod,
            text=text,
            entities=extract_entities(about + clean),
            timestamp=row.created_at,
            citations=citations,
            variants=_build_variants(text, lod),
            relevance=relevance,
            privacy=row.privacy,
            purpose=purpose,
            external=external,
        )


def _estimate_characters(rows: Iterable[Entry]) -> int:
    """Return the approximate number of characters to read: both the shown and the stored text of each entry."""
    return sum([2 * len(one.content) for one in rows])


def _build_candidates(work: Iterable[_Work]) -> Found:
    """Build the candidates."""
    candidates: list[Candidate] = []
    for _, make in work:
        candidates.append(make())
        pause_if_busy()
    return Found(tuple(candidates), sum(map(size, candidates)))


def _as_stored(item: ContextItem, row: Entry) -> ContextItem:
    """Return a redacted item with its stored content: a reply applies its own redaction stage."""
    if item.redaction is None:
        return item
    return replace(item, content=row.content + _label_in(item.content, row))


def _label_in(content: str, row: Entry) -> str:
    """Return the label that was added to an entry's text, with the space before it, or an empty string."""
    label = label_of(content)
    return "" if row.content.endswith(label) else label


def _has_live_content(row: Entry) -> bool:
    return row.state is State.LIVE and bool(row.content.strip())


def _build_variants(shown: str, lod: Lod) -> tuple[Variant, ...]:
    """Return shorter renditions of a long text: its first line and its first sentences, each with the label."""
    if len(shown) < LONG or lod is Lod.MACRO:
        return ()
    told = label_of(shown)
    shown = shown.removesuffix(told)
    title = Variant(lod=Lod.MACRO, text=preview_text(shown, TITLE) + told, cost_tokens=0)
    if lod is Lod.MICRO:
        return (title,)
    end = 0
    for _, stop in find_sentence_spans(shown):
        if stop > len(shown) // 3:
            break
        end = stop
    if end <= TITLE:
        return (title,)
    return (title, Variant(lod=Lod.MICRO, text=f"{shown[:end].rstrip()} […]{told}", cost_tokens=0))
