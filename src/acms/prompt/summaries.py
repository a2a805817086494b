"""Summaries inside a prompt: a stored text that replaces the oldest messages and grows with them.

summaries = Summaries(kv, summarizer=HTTPSummarizer("http://localhost:11434/v1", "llama3.2"))
await summaries.write("trip", history)                  # now, without waiting for a prompt that is too long
await summaries.get("trip")
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakValueDictionary

from acms.compaction import job
from acms.errors import ACMSError, ProviderError, ValidationError
from acms.jobs.requests import model_name
from acms.log import validation
from acms.model import Entry, Json, KVEntry, Role
from acms.observability.logging import log_event, safe_error
from acms.plan.nodes import MessageGroup, NeedSummary, Summarise
from acms.plan.tool_groups import join_answers
from acms.ports import KVMemory, Summarizer, TokenCounter
from acms.prompt import steps as contents
from acms.prompt import summary_coverage
from acms.prompt.content import steps_of
from acms.prompt.fit_state import build_summary_message
from acms.prompt.steps import FixedNode, Log, Readable, Step, WrittenMessage
from acms.prompt.summary_coverage import Match, Watermark
from acms.providers.tokens import default_counter
from acms.recall.window import LogSpan, count_tokens_before
from acms.storage.kv import change_entry
from acms.text.summary_form import RECIPE

if TYPE_CHECKING:
    from acms.prompt.content import Content
    from acms.prompt.pins import PinRegistry

__all__ = ["Loaded", "Summaries", "SummaryRun"]


class Summaries:
    """Stored summaries: a text under its id in a key-value memory, with a record of the messages it covers.

    The key is the id, the value the text, so that it can be pinned and read like any other value. The metadata hold a
    `watermark`, beside the `metadata` given here. Without a `summarizer` the extractive one writes, which needs no
    model. The summarizer sets its own timeout. With `pin`, a pin registry, a stored summary is pinned too.

    It holds no state: any number of renders may use it concurrently. The caller owns the store.
    """

    def __init__(
        self,
        store: KVMemory,
        *,
        summarizer: Summarizer | None = None,
        pin: PinRegistry | None = None,
        metadata: Mapping[str, Json] = MappingProxyType({}),
    ) -> None:
        if not callable(getattr(store, "get", None)) or not callable(getattr(store, "set", None)):
            raise ValidationError(
                f"{store!r} is not a key-value store", field="store", options=("open_kv(url)",)
            )
        if summarizer is not None and not callable(getattr(summarizer, "summarize", None)):
            raise ValidationError(f"{summarizer!r} has no method summarize", field="summarizer")
        if summary_coverage.FIELD in metadata:
            raise ValidationError(
                f"{summary_coverage.FIELD!r} is reserved for the watermark", field="metadata"
            )
        self._store = store
        self._summarizer = summarizer
        self._pin = pin
        self._metadata = dict(validation.validate_metadata(metadata))

    async def get(self, id: str) -> str | None:
        """Return a stored summary without space around it; None when there is none or it is blank.

        `ValidationError` when something else is stored under the id.
        """
        entry = await self._store.get(validation.validate_key(id, "id"))
        return None if entry is None else _text_of_entry(entry) or None

    async def write(
        self, id: str, content: Content, *, tokens: int = 400, counter: TokenCounter | None = None
    ) -> str:
        """Summarise a whole content now, store the text and return it.

        A content is anything a prompt accepts: a session or a view, a text, messages, or a list of these. Messages that
        an earlier summary covers are not read again; when it covers all of them, the summarizer is not called. A
        failure of the summarizer is raised as `ProviderError`, and nothing is stored.
        """
        tokens = validation.validate_integer(tokens, "tokens", minimum=1, maximum=validation.BUDGET)
        steps = tuple(steps_of(content, "content", []))
        session = steps[0].session if len(steps) == 1 and isinstance(steps[0], Log) else None
        if counter is None:
            counter = default_counter() if session is None else session.counter
        run = self.run(id, counter, tokens=tokens)
        loaded: Loaded | None
        if session is not None:
            loaded, _ = await run.of_log(session)
        else:
            loaded = await run.load(await _groups_of_steps(steps))
        assert loaded is not None  # the content is whole
        if not loaded.groups:
            raise ValidationError("has no messages", field="content")
        existing = loaded.strategy
        new_groups = loaded.groups[existing.covers :]
        if not new_groups:
            return existing.text
        text = await run.summarize(NeedSummary(id, existing.text, new_groups, tokens))
        await run.put(text, len(loaded.groups))
        return text

    def run(
        self, id: str, counter: TokenCounter, *, tokens: int = 400, role: Role = Role.SYSTEM, path: str = ""
    ) -> SummaryRun:
        """Begin a render that may use one summary, of at most so many tokens of its codec's `counter`."""
        return SummaryRun(
            id=validation.validate_key(id, "id"),
            path=path,
            tokens=tokens,
            role=role,
            counter=counter,
            store=self._store,
            summarizer=self._summarizer,
            pin=self._pin,
            metadata=self._metadata,
        )


class Loaded(NamedTuple):
    """The data a scope of a prompt needs to be summarised."""

    strategy: Summarise
    #: Its children: the content, which begins with the stored text where only the end of a log was read.
    groups: tuple[MessageGroup, ...]


@dataclass(slots=True)
class _LoadedContent:
    """A summary as loaded for a render."""

    groups: Sequence[MessageGroup]
    entries: Mapping[str, Entry]
    stamp: str
    #: The stored text, its watermark, and how many of the groups it covers; "", None and 0 if it does not match.
    text: str
    watermark: Watermark | None
    covers: int
    #: How many of the groups the scope does not have, since one group with the stored text replaces them.
    hidden: int = 0


@dataclass(slots=True, weakref_slot=True, eq=False)
class _Question:
    """One question to a summarizer, shared by all renders that ask it at the same time."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    text: str = ""
    error: ACMSError | None = None


_questions: WeakValueDictionary[tuple[int, int, str], _Question] = WeakValueDictionary()
"""By event loop, summarizer and question; it stays as long as a render that asked it."""
_guard = threading.Lock()


@dataclass(kw_only=True, slots=True, eq=False)
class SummaryRun:
    """One summary of one render: read before the fit, asked for by it, stored when the prompt is rendered.

    Made by `Summaries.run`, and used once.
    """

    id: str
    #: Path of its scope in the prompt.
    path: str
    tokens: int
    role: Role
    counter: TokenCounter
    store: KVMemory
    summarizer: Summarizer | None
    pin: PinRegistry | None
    metadata: Mapping[str, Json]
    #: Descriptions of failures that did not end the render.
    warnings: list[str] = field(default_factory=list)
    #: Why a stored text was not used, for the ledger; "" when it was, or when there is none.
    reason: str = ""
    #: The text stored under its id, or "".
    stored_text: str = ""
    _entry: KVEntry | None = None
    _is_read: bool = False
    _content: _LoadedContent | None = None
    _asked_questions: list[_Question] = field(default_factory=list)

    @property
    def model(self) -> str:
        """Who writes it."""
        return RECIPE if self.summarizer is None else model_name(self.summarizer)

    async def reach(self, *, stamp: str) -> int:
        """Return how far back a log must be read for `load`: to a group with at most so many tokens before it.

        0 when it must be read from its beginning. `stamp` identifies the state of the log: it changes when anything in
        the log is rewritten, not when the log grows.
        """
        entry = await self._read_entry()
        watermark = None if entry is None else summary_coverage.parse_watermark(entry.metadata)
        return summary_coverage.find_resume_offset(watermark, model=self.model, stamp=stamp)

    async def load(
        self,
        groups: Sequence[MessageGroup],
        *,
        stamp: str = "",
        whole: bool = True,
        entries: Iterable[Entry] = (),
    ) -> Loaded | None:
        """Return how a content is summarised: the stored text, and how many of its groups it covers.

        `groups` are the whole content, or with `whole=False` the part of a log that `reach` returns: the stored text
        stands in front of that part for all messages it covers. Return None if the part does not continue the stored
        text; the caller then reads the whole log and loads that.
        `entries` are those that the groups show: the summarizer is given their markers, and their privacy is respected.
        """
        entry = await self._read_entry()
        text = self.stored_text
        watermark = summary_coverage.parse_watermark(entry.metadata) if entry is not None else None
        if not text:
            match = Match()  # nothing is stored, which needs no reason
        elif self.counter.count(text) > self.tokens:
            match = Match(reason=f"it has more than {self.tokens} tokens")
        else:
            match = summary_coverage.match_watermark(
                watermark, groups, model=self.model, stamp=stamp, whole=whole
            )
        self.reason = match.reason
        if not match.covers:
            if not whole:
                return None  # the messages that the stored text covers were not read
            text, watermark = "", None
        hidden = 0 if whole else match.covers - 1  # one group, the summary, stands for the groups it covers
        entries_by_id = {shown.id: shown for shown in entries}
        self._content = _LoadedContent(groups, entries_by_id, stamp, text, watermark, match.covers, hidden)
        role = summary_coverage.role_of_summary(self.role, groups, whole=whole)
        if whole:
            return Loaded(Summarise(self.id, text, match.covers, self.tokens, role), tuple(groups))
        first = MessageGroup((build_summary_message(text, role),))
        return Loaded(Summarise(self.id, text, 1, self.tokens, role), (first, *groups[match.covers :]))

    async def of_log(self, view: Readable, *, room: int | None = 0) -> tuple[Loaded, LogSpan]:
        """Read a log from where its stored summary ends, or all of it if the summary does not match, and load it.

        The newest messages that fill `room` tokens are read in any case, all of them for None: a log that fits as a
        whole is shown without a summary.
        """
        span = await view.read_span() if room is None else await view.read_span(budget=room)
        reach = await self.reach(stamp=span.stamp)
        if not span.whole and count_tokens_before(span.units[0]) > reach:
            span = await view.read_span(since=reach) if reach else await view.read_span()
        while True:
            units = contents.build_groups(span.units, view.counter.name)
            entries = [entry for unit in span.units for entry in unit.entries]
            loaded = await self.load(units, stamp=span.stamp, whole=span.whole, entries=entries)
            if loaded is not None:
                return loaded, span
            span = await view.read_span()

    async def answer(self, need: NeedSummary) -> str | None:
        """Return a text for a question of the fit; None when the summarizer has none, and `warnings` says why."""
        try:
            return await self.summarize(need)
        except ACMSError as error:
            log_event(logging.WARNING, "summary_failed", summary=self.id, error=safe_error(error))
            self.warnings.append(f"there is no new summary {self.id!r}: {safe_error(error)}")
            return None

    async def summarize(self, need: NeedSummary) -> str:
        """Return a text of the summarizer; renders that need the same one at the same time share one call."""
        turns = summary_coverage.turns_of_groups(need.groups, need.existing, self._require_content().entries)
        turns_of_existing = 1 if need.existing else 0
        if len(turns) == turns_of_existing:
            raise ProviderError("there is no text to summarise", provider=self.model)
        counter_name = getattr(self.counter, "name", "")
        digest = summary_coverage.chain_digests(
            need.groups, f"{self.id}\n{need.tokens}\n{counter_name}\n{need.existing}"
        )
        key = (id(asyncio.get_running_loop()), id(self.summarizer), digest)
        with _guard:
            question = _questions.setdefault(key, _Question())
        self._asked_questions.append(question)  # it lives as long as a render refers to it
        async with question.lock:
            if not question.text and question.error is None:
                try:
                    question.text, _ = await job.shorten_turns(
                        await job.resolve_summarizer(self.summarizer),
                        turns,
                        limit=need.tokens,
                        below=sum(self.counter.count(turn.text) for turn in turns),
                        counter=self.counter,
                        uses_model=self.summarizer is not None,
                    )
                except ACMSError as error:
                    question.error = error
        if question.error is not None:
            raise question.error
        return question.text

    async def commit(self, summaries: Iterable[tuple[str, str, int]]) -> None:
        """Store the summaries a fit used, (id, text, groups it covers); call it once the prompt is rendered.

        Of two concurrent renders, the text that covers more is kept. A failing store is reported in `warnings`: the
        prompt is not affected, and the next render asks again.
        """
        new_summary = next(((text, covers) for id, text, covers in summaries if id == self.id), None)
        try:
            if new_summary is not None:
                await self.put(*new_summary)
            else:
                await self._stamp()
        except Exception as error:
            log_event(logging.WARNING, "summary_not_stored", summary=self.id, error=safe_error(error))
            self.warnings.append(f"the summary {self.id!r} could not be stored: {safe_error(error)}")

    async def put(self, text: str, covers: int) -> None:
        """Store a text that covers so many groups of the scope, and pin it."""
        content = self._require_content()
        covers += content.hidden
        watermark = summary_coverage.build_watermark(
            content.watermark, content.covers, content.groups, covers, model=self.model, stamp=content.stamp
        )
        await self._write(text, watermark)
        if self.pin is not None:
            pinned_keys = [getattr(pin, "key", None) for pin in await self.pin.list()]
            if self.id not in pinned_keys:
                await self.pin.pin(self.id)

    async def _stamp(self) -> None:
        """Store the current state of the log with a text that still matches it: the next render reads only its end."""
        content = self._content
        if (
            content is None
            or content.watermark is None
            or not content.stamp
            or content.watermark.stamp == content.stamp
        ):
            return
        watermark = summary_coverage.build_watermark(
            content.watermark,
            content.covers,
            content.groups,
            content.covers,
            model=self.model,
            stamp=content.stamp,
        )
        if watermark.stamp:
            await self._write(content.text, watermark)

    async def _write(self, text: str, watermark: Watermark) -> None:
        """Store a text, unless one that another process stored meanwhile covers at least as much."""

        def change(entry: KVEntry | None) -> tuple[Json, Mapping[str, Json]] | None:
            metadata: dict[str, Json] = {}
            if entry is not None:
                metadata = dict(entry.metadata)
                was_replaced = entry != self._entry and bool(_text_of_entry(entry))
                if was_replaced and not summary_coverage.covers_more_groups(
                    watermark, summary_coverage.parse_watermark(entry.metadata)
                ):
                    return None
            return text, {**metadata, **self.metadata, summary_coverage.FIELD: watermark.to_json()}

        is_stored = await change_entry(self.store, self.id, change)
        name = "summary_stored" if is_stored else "summary_superseded"
        log_event(logging.INFO, name, summary=self.id, atoms=watermark.atoms)

    async def _read_entry(self) -> KVEntry | None:
        """Read the stored entry, once: a render continues with the first version it read."""
        if not self._is_read:
            self._entry, self._is_read = await self.store.get(self.id), True
            self.stored_text = "" if self._entry is None else _text_of_entry(self._entry)
        return self._entry

    def _require_content(self) -> _LoadedContent:
        if self._content is None:
            raise ACMSError(f"the summary {self.id!r} was not loaded")
        return self._content


def _text_of_entry(entry: KVEntry) -> str:
    if not isinstance(entry.data, str):
        raise ValidationError(
            f"{entry.key!r} has a value that is not a summary",
            field="id",
            options=("choose another id", "delete the value"),
        )
    return entry.data.strip()


async def _groups_of_steps(steps: Sequence[Step]) -> list[MessageGroup]:
    """Return the messages of some steps of a prompt, every tool call with its answers."""
    groups: list[MessageGroup] = []
    for step in steps:
        if isinstance(step, WrittenMessage):
            groups.append(MessageGroup((step.message,)))
        elif isinstance(step, Log):
            groups += contents.build_groups((await step.session.read_span()).units, step.session.counter.name)
        elif isinstance(step, FixedNode):
            groups += contents.flatten_nodes([step.node])
        else:
            raise ValidationError(
                "only sessions and messages can be summarised now",
                field="content",
                options=("give the session itself", "render it as part of a prompt"),
            )
    return join_answers(groups)
