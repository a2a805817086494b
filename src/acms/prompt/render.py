"""Rendering: a prompt as a provider's request within a budget, with the reasons for everything in it.

Reads come first, decisions after: sessions are read and plugins called, the tree is fitted with every recall at its
largest size, then the past is searched for content not shown yet, and the whole is fitted again. Only `Codec.count`
decides whether it fits. Each render has a state of its own, so any number of them may run concurrently.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from time import perf_counter
from typing import Any, NamedTuple
from uuid import uuid4

from acms.errors import ACMSError, ConfigurationError, FitError, ValidationError
from acms.log import validation
from acms.log.validity import label_at_end
from acms.model import Json, Role, Source
from acms.observability.events import (
    Event,
    PinsLoaded,
    PinsSkipped,
    PromptFailed,
    PromptRendered,
    ScopeShrunk,
)
from acms.observability.logging import emit_event
from acms.observability.tracing import RenderSpan, render_span
from acms.plan.nodes import (
    ComposedMessage,
    FittedPrompt,
    Omission,
    PlacedMessage,
    Scope,
    Window,
    drop_earlier_sections,
    replace_scopes,
    scope_at_path,
)
from acms.plan.nodes import Step as Shrunk
from acms.plan.tool_groups import pair_tool_calls
from acms.ports import Codec
from acms.prompt import excerpts, pin_index, summary_coverage
from acms.prompt import steps as content
from acms.prompt.cache_forecast import describe_cache_mismatch, diagnosis_agrees, predict_cache
from acms.prompt.fit import build_empty_error, fit_prompt
from acms.prompt.history import cache_window
from acms.prompt.history.answers import (
    AnswerSearch,
    drop_repeated_facts,
    find_repetitions,
    tokens_for_user_words,
)
from acms.prompt.history.reader import HistoryRequest
from acms.prompt.history.stable_history import StableHistory
from acms.prompt.manifest import Manifest, part_of_request
from acms.prompt.manifest_writer import add_candidates, ledger_of_manifest, write_manifest
from acms.prompt.resolve import (
    Request,
    Resolved,
    Resolver,
    build_recall_scope,
    cache_marks,
    drop_repeated_recalls,
    find_last_turn,
    lay_out_messages,
    list_reads,
    tokens_for_recall,
    unused_hints,
    visible_entry_ids,
)
from acms.prompt.steps import (
    HistoryAndRecall,
    Readable,
    RecallStep,
    Step,
    find_history_and_recall,
)
from acms.prompt_types import CacheMark, CachePrediction, Count, PromptMessage, Tool, Usage, Use
from acms.results import ContextItems, Ledger

__all__ = ["Rendered", "Report", "Request"]

CONDENSED = "did not fit whole: shown are its ends and, of the output of a tool, what the question names or stands out"
"""Reason given in the ledger for a message that a stable history shows cut."""
OTHERS_WHOLE = 2_000
"""Tokens up to which a prompt shows the other sessions of its namespace whole, and no more than a quarter of it."""
REPEATED_QUESTION = (
    "the question is sent twice: it is the newest message of the log, and the prompt adds it again; "
    "leave out .user()"
)
NOT_STORED = (
    "the next request misses the provider's cache: the positions of recalled messages could not be stored "
    "(other renders of the prompt stored theirs first)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A provider's report about a request, compared with the prediction."""

    usage: Usage
    count: Count
    predicted: CachePrediction
    #: Whether the request asked why the cache was not read.
    asked: bool = False

    @property
    def within(self) -> bool:
        """Whether the request took no more tokens than the upper bound."""
        return self.usage.input_tokens <= self.count.upper_bound

    @property
    def off_by(self) -> int:
        """Tokens the provider counted beyond ours; negative when it counted fewer."""
        return self.usage.input_tokens - self.count.tokens

    @property
    def agrees(self) -> bool | None:
        """Whether the provider's diagnosis matches the prediction; None without a diagnosis of the prompt."""
        return diagnosis_agrees(self.predicted, self.usage, asked=self.asked)

    @property
    def missed(self) -> str:
        """Part of the predicted prefix that missed the cache, with the provider's reason and the predicted one.

        "" when the whole prefix was read and the reasons agree.
        """
        return describe_cache_mismatch(self.predicted, self.usage, asked=self.asked)


class Rendered:
    """A prompt within its budget: the request for a provider, and the reasons for everything in it."""

    def __init__(
        self,
        *,
        payload: dict[str, Json],
        placed: Sequence[PlacedMessage],
        count: Count,
        budget: int | None,
        codec: Codec,
        steps: Sequence[Shrunk],
        warnings: Sequence[str],
        manifest: Callable[[], Manifest],
        recalls: Sequence[Ledger],
        omissions: Sequence[Omission],
        previous: Manifest | None,
        base: int = 0,
        is_unsearched: bool = False,
    ) -> None:
        #: Arguments of the request: messages, tools and cache hints; not the model.
        self.payload = payload
        #: Tokens of the whole request; `tokens.upper_bound` is within the budget.
        self.tokens = count
        self.budget = budget
        self.codec = codec
        #: Steps taken to make it fit, in order.
        self.steps = tuple(steps)
        #: Warnings for the caller.
        self.warnings = tuple(warnings)
        self._placed = tuple(placed)
        self._build_manifest = manifest
        self._recalls = tuple(recalls)
        self._is_unsearched = is_unsearched
        #: Number of entries and pins left out.
        self._omitted = sum(len(omission.ids) for omission in omissions if omission.gone)
        self._previous = previous
        #: Tokens of an empty request with the same tools.
        self._base = base
        #: Whether the request asks why the cache was not read.
        self._asked = False

    def __repr__(self) -> str:
        bound = "" if self.budget is None else f" of {self.budget}"
        return f"<Rendered {len(self._placed)} messages, {self.tokens.upper_bound}{bound} tokens, {self.codec.name}>"

    @property
    def compared(self) -> bool:
        """Whether an earlier render was given to compare with."""
        return self._previous is not None

    @property
    def placed(self) -> tuple[PromptMessage, ...]:
        """The messages in order, before a codec merges them: each with the ids of the entries whose text it shows."""
        return tuple([placement.message for placement in self._placed])

    @cached_property
    def messages(self) -> tuple[PromptMessage, ...]:
        """The messages in the normal form of the codec: the result of `codec.parse(payload)`, with their sources."""
        return self.codec.normal([placement.message for placement in self._placed])

    @cached_property
    def manifest(self) -> Manifest:
        """Where every span of text comes from, without the text of the log; written when it is first read."""
        return add_candidates(self.outline, self._recalls)

    @cached_property
    def outline(self) -> Manifest:
        """The manifest without the candidates of recalls, which is all that another render is compared with."""
        return self._build_manifest()

    @cached_property
    def ledger(self) -> Ledger:
        """Why something is in the prompt, or why not: by id of an entry, key of a pin, or path of a scope."""
        return ledger_of_manifest(
            lambda: self.manifest,
            self._recalls,
            self.warnings,
            omitted=self._omitted,
            is_unsearched=self._is_unsearched,
        )

    @cached_property
    def cache(self) -> CachePrediction:
        """Part of the request the provider can read from its cache after the earlier render given as `after`."""
        key = self.payload.get("prompt_cache_key", "")
        return predict_cache(self.outline, self._previous, self.codec, key=key)

    @cached_property
    def use(self) -> Use:
        """Tokens of the request by use; `free` is the unused part of the budget."""
        tokens = Counter[str]()
        for placement in self._placed:
            message = placement.message
            part = part_of_request(message.role, message.sources, placement.pieces, placement.rendition)
            tokens[part] += placement.tokens
        free = 0 if self.budget is None else self.budget - self.tokens.upper_bound
        return Use(**tokens, tools=self._base, free=free)

    def entry_texts(self) -> dict[str, str]:
        """Return the text the request shows of each entry, by its id."""
        texts: dict[str, list[str]] = {}
        for message in self.messages:
            for id in message.sources:
                texts.setdefault(id, []).append(message.text)
        for placement in self._placed:
            for piece in placement.pieces:
                for id in piece.sources:
                    texts.setdefault(id, []).append(piece.text)
        return {id: "\n".join(parts) for id, parts in texts.items()}

    def seen(self, id: str) -> bool:
        """Return whether an entry is in the request: its text, or the part that its rendition shows."""
        return id in visible_entry_ids(self._placed)

    def diagnosed(self, previous: str | None) -> dict[str, Json]:
        """Return the payload, which from now on asks why the cache was not read; see `Codec.diagnosed`."""
        self.payload = self.codec.diagnosed(self.payload, previous)
        self._asked = previous is not None
        return self.payload

    def report(self, usage: object) -> Report:
        """Learn from an answer, or its usage alone: the object of the provider's SDK, or the same as a mapping."""
        reported = self.codec.usage(usage)
        self.codec.observe(self.tokens, reported)
        return Report(usage=reported, count=self.tokens, predicted=self.cache, asked=self._asked)


async def render_steps(
    steps: Sequence[Step],
    codec: Codec | None,
    budget: int | None,
    *,
    tools: Sequence[Tool],
    read_content: Callable[[object], Sequence[Step]],
    after: Rendered | Manifest | None,
    listeners: Sequence[Callable[[Event], object]],
) -> Rendered:
    """Render the steps of a prompt; see `Prompt.render`."""
    if codec is None:
        raise ConfigurationError(
            "the prompt is bound to no codec",
            options=("Prompt(OpenAIChat(model))", "merge it into a prompt that is bound"),
        )
    if budget is not None:
        budget = validation.validate_integer(budget, "budget", maximum=validation.BUDGET)
    if after is not None and not isinstance(after, Rendered | Manifest):
        raise ValidationError(
            f"must be a Rendered or its manifest, not {type(after).__name__}", field="after"
        )
    previous = after.outline if isinstance(after, Rendered) else after
    service = content.find_render_service(steps)
    if service is not None:
        rendered: Rendered = await service.render(steps, codec, budget, tools=tools, after=previous)
        return rendered
    render_log = content.find_render_log(steps)
    if render_log is not None:
        render_log = await render_log.begin()
    renderer = _Renderer(codec, budget, tools, listeners)
    with render_span(codec=codec.name, model=codec.model, budget=budget) as span:
        try:
            rendered = await renderer.render(steps, read_content, previous, span)
        except Exception as error:
            renderer.emit_failure(error)
            raise
    if render_log is not None:
        render_log.add("prompt", lambda: rendered.manifest)
    return rendered


class _SentPrompt(NamedTuple):
    """A prompt as it is sent."""

    fitted: FittedPrompt
    placed: tuple[PlacedMessage, ...]
    payload: dict[str, Json]
    token_count: Count
    marks: tuple[CacheMark, ...]
    #: Raw tokens it was fitted to.
    limit: int | None


class _Renderer:
    """One render: its request and its results so far."""

    def __init__(
        self,
        codec: Codec,
        budget: int | None,
        tools: Sequence[Tool],
        listeners: Sequence[Callable[[Event], object]],
    ) -> None:
        self._codec = codec
        self._budget = budget
        self._tools = tools
        self._listeners = listeners
        self._id = uuid4().hex
        self._start_time = perf_counter()
        #: Raw tokens that the whole request may have.
        self._limit: int | None = None
        if budget is not None:
            self._limit = codec.limit(budget, codec.base(tools) - codec.base(()))
        self._warnings: list[str] = []
        self._omissions: list[Omission] = []
        self._pin_namespaces: list[str] = []
        #: Answers to questions of the fit, which is made more than once.
        self._summaries: dict[tuple[str, str, int, int], str | None] = {}
        #: The items of each recall, by the path of its scope.
        self._items: dict[str, ContextItems] = {}
        #: Whether the prompt has a recall that searched nothing for this request.
        self._is_unsearched = False
        #: Hashes of the requests that reasoning may have answered; None if nothing before the reasoning ever changes.
        self._sent_hashes: frozenset[str] | None = None
        #: Hash of this request, if the provider binds reasoning to it.
        self._request_hash = ""
        #: Entries that may be shown, by id, for the manifest to quote.
        self._entries: dict[str, Any] = {}

    def _emit(self, event: Event) -> None:
        """Pass an event to the listeners; note which pins were loaded, and which are not shown."""
        for listener in self._listeners:
            emit_event(listener, event)
        if isinstance(event, PinsSkipped):
            self._omissions += pin_index.list_skipped_pins(event)
            for key in event.missing:
                self._warnings.append(f"the pin {key!r} is not shown: nothing is stored under its key")
        elif isinstance(event, PinsLoaded):
            self._pin_namespaces.append(event.namespace)

    def emit_failure(self, error: Exception) -> None:
        """Emit the event of a render that failed."""
        self._emit(
            PromptFailed(
                render_id=self._id,
                codec=self._codec.name,
                model=self._codec.model,
                budget=self._budget,
                code=error.code if isinstance(error, ACMSError) else type(error).__name__,
                seconds=perf_counter() - self._start_time,
            )
        )

    async def render(
        self,
        steps: Sequence[Step],
        read_content: Callable[[object], Sequence[Step]],
        previous: Manifest | None,
        span: RenderSpan,
    ) -> Rendered:
        """Read, decide, write and report; `read_content` turns the content of a plugin into steps."""
        request = Request(render_id=self._id, budget=self._budget, codec=self._codec, tell=self._emit)
        message_limit = None
        stable_steps: HistoryAndRecall | None = None
        if self._limit is not None:
            message_limit = max(0, self._limit - self._codec.base(self._tools))
            stable_steps = find_history_and_recall(steps)
        with span.stage("gather"):
            other_steps = steps if stable_steps is None else stable_steps.other_steps
            resolved = await Resolver(request, message_limit, read_content).resolve(other_steps)
        if stable_steps is None:
            is_whole = not resolved.recalls and all(log.complete for log in resolved.logs)
            self._sent_hashes = None if is_whole else frozenset()
            prompt = await self._recall_and_fit(resolved.tree, resolved, span)
        else:
            prompt = await self._render_stable_history(stable_steps, resolved, span)
        await self._store_summaries(resolved, prompt.fitted)
        return self._build_rendered(resolved, prompt, previous, span)

    async def _recall_and_fit(self, tree: Scope, resolved: Resolved, span: RenderSpan) -> _SentPrompt:
        """Make the recalls that are chosen again each turn, and fit the whole."""
        tree = pair_tool_calls(tree)
        if resolved.recalls:
            with span.stage("recall"):
                tree = await self._add_recalls(tree, resolved)
        with span.stage("fit"):
            return await self._fit_and_count(tree, resolved)

    # ── the history that stays in place ─────────────────────────────────────────────────────────────────────────────

    async def _render_stable_history(
        self, steps: HistoryAndRecall, resolved: Resolved, span: RenderSpan
    ) -> _SentPrompt:
        """Fit a prompt whose history and recall keep their positions, and store these positions."""
        path = f"{resolved.tree.id}/{steps.name}"
        stable_history = await self._build_stable_history(steps, resolved)
        # Without those of this history, which each attempt adds.
        other_logs, other_items = list(resolved.logs), dict(self._items)
        attempts = 0
        while True:
            with span.stage("recall"):
                placed_history = await stable_history.place()
            resolved.logs = other_logs if placed_history.log is None else [*other_logs, placed_history.log]
            self._items = dict(other_items)
            answers = stable_history.answers
            self._is_unsearched = answers is not None and answers.items is None
            if answers is not None and answers.items is not None:
                self._items[f"{resolved.tree.id}/{steps.recall_name}"] = answers.items
            scope = replace(
                scope_at_path(resolved.tree, path),
                children=placed_history.wrap_blocks(),
                strategy=Window(slack=0.0),
            )
            window = placed_history.window
            self._sent_hashes = frozenset(() if window is None else window.request_hashes)
            resolved.continued_history = "" if window is None else path
            tree = replace_scopes(resolved.tree, {path: scope})
            prompt = await self._recall_and_fit(tree, resolved, span)
            committed = await stable_history.commit(placed_history, prompt.fitted, path, self._request_hash)
            attempts += 1
            if committed or attempts == 3:  # again if another process stored its positions meanwhile
                break
        placed_history = placed_history.keep_cuts({id for one in prompt.placed for id in one.message.sources})
        self._omissions += placed_history.list_older(path)
        for id, (whole_tokens, shown_tokens) in placed_history.cut_tokens.items():
            self._omissions.append(
                Omission((id,), path, "condensed", CONDENSED, whole_tokens - shown_tokens, gone=False)
            )
        self._warnings += [*stable_history.warnings, *placed_history.list_cut_warnings()]
        if not committed:
            self._warnings.append(NOT_STORED)
        if _repeats_question(prompt.placed):
            self._warnings.append(REPEATED_QUESTION)
        return prompt

    async def _build_stable_history(self, steps: HistoryAndRecall, resolved: Resolved) -> StableHistory:
        """Return the object that places a history and its recall in the tokens left by everything else."""
        assert self._budget is not None
        assert self._limit is not None
        session, recall = steps.log.session, steps.recall
        tree, floors = drop_earlier_sections(pair_tool_calls(resolved.tree), steps.priority)
        other_content = await self._fit_without_history(tree, resolved)
        question_follows = False
        for placement in other_content.placed:
            is_behind = placement.path.split("/", 2)[1] in steps.names_behind
            if is_behind and placement.message.role is Role.USER and not placement.pieces:
                question_follows = True

        budget = max(0, self._limit - other_content.tokens - floors)
        block_cost = cache(partial(excerpts.cost_of_block, codec=self._codec))
        answers = None
        if recall is not None:
            answers = AnswerSearch(
                step=recall,
                session=session,
                codec=self._codec,
                budget=budget,
                block_cost=block_cost,
                search=lambda tokens: self._recall(
                    recall, tokens, (), user_words=tokens_for_user_words(budget)
                ),
            )
        request = HistoryRequest(
            session=session,
            answers=answers,
            codec=self._codec,
            budget=budget,
            block_cost=block_cost,
            prompt_budget=self._limit,
            question_follows=question_follows,
            has_tools=bool(self._tools),
            entries=self._entries,
            first=steps.log.first,
        )
        record_name = cache_window.name_record(self._codec, steps.name, steps.log, recall)
        return StableHistory(request, record_name=record_name, prompt_budget=self._budget)

    async def _fit_without_history(self, tree: Scope, resolved: Resolved) -> FittedPrompt:
        """Fit everything beside the history; if that alone does not fit, the `FitError` says so."""
        try:
            return await self._fit(tree, resolved, self._limit)
        except FitError as error:
            raise FitError(
                f"{error}, and no message of the history is among them",
                budget=error.budget,
                required=error.required,
                where=error.where,
                tried=error.tried,
                options=error.options,
            ) from error

    # ── recalls that are chosen again each turn ─────────────────────────────────────────────────────────────────────

    async def _add_recalls(self, tree: Scope, resolved: Resolved) -> Scope:
        """Return the tree with recalled content that the prompt does not show anyway.

        A history that fits as a whole is not cut for a recall of itself: the recall gets the remaining tokens.
        """
        recalls = resolved.recalls
        empty_scopes = {path: Scope(id=path.rpartition("/")[2]) for path in recalls}
        fitted = await self._fit(replace_scopes(tree, empty_scopes), resolved, self._limit)
        shown_ids = visible_entry_ids(fitted.placed)
        # Tokens beside a history that is shown whole; None if only the recalls' own limits count.
        free_tokens: int | None = None
        if all(resolved.shows(step.session, shown_ids) for step in recalls.values()):
            free_tokens = None if self._limit is None else self._limit - fitted.tokens
        else:
            fitted = await self._fit(tree, resolved, self._limit)
            shown_ids = visible_entry_ids(fitted.placed)
        scopes = dict(empty_scopes)
        for path, step in recalls.items():
            if not step.tokens:  # the caller allowed it no tokens, so no search is made
                continue
            tokens, frame_tokens = tokens_for_recall(step, self._codec, free_tokens)
            items = await self._recall(step, tokens, shown_ids)
            shown_ids.update(item.id for item in items)
            self._items[path] = items
            block = await self._write_recall(step.session, items)
            max_tokens = tokens + frame_tokens if tokens else 0
            scopes[path] = build_recall_scope(step, empty_scopes[path].id, max_tokens, block)
            if free_tokens is not None:
                free_tokens -= excerpts.cost_of_block(block.pieces, self._codec)
        return replace_scopes(tree, scopes)

    async def _write_recall(self, session: Readable, items: ContextItems) -> ComposedMessage:
        """Return recalled items as one block of excerpts."""
        context_id = await session.context_id()
        context = last_turn = None
        new_items = drop_repeated_facts(items)
        if context_id is not None:
            context = await session.storage.context(context_id)
            last_turn = await find_last_turn(session, context)
        same_counter = self._codec.counter.name == session.counter.name
        pieces = excerpts.write_pieces(new_items, context, same_counter=same_counter, last_turn=last_turn)
        return excerpts.write_block(pieces, self._codec)

    async def _recall(
        self, step: RecallStep, tokens: int, shown_ids: Collection[str], *, user_words: int = 0
    ) -> ContextItems:
        """Recall from the past, without messages of the user that only repeat the query.

        In the log of an agent up to `user_words` tokens of the user come first.
        """
        options = dict(step.options)
        exclude = {*options.pop("exclude"), *shown_ids}
        others_whole = OTHERS_WHOLE
        if self._budget is not None:
            others_whole = min(OTHERS_WHOLE, self._budget // 4)
        while True:
            items: ContextItems = await step.session.recall_for_prompt(
                step.query,
                budget=tokens,
                others_whole=others_whole,
                user_words=user_words,
                exclude=exclude,
                **options,
            )
            echoes = find_repetitions(items, step.query)
            if echoes <= exclude:
                break
            exclude |= echoes
        self._warnings += items.ledger.warnings
        await self._remember_entries(step.session, items)
        return items

    async def _remember_entries(self, session: Readable, items: ContextItems) -> None:
        """Keep the entries of recalled items for the manifest, read again if the text of an item differs."""
        changed_ids: set[str] = set()
        for item in items:
            # The text of these items may differ from the entry's: a fact may carry a note of when it ends.
            if item.truncated or item.source is Source.FACT or label_at_end(item.content):
                changed_ids.add(item.id)
        if changed_ids:
            rows = await session.storage.get(sorted(changed_ids))
            for entry in session.redactor.redact_entries([row for row in rows if row is not None]):
                self._entries[entry.id] = entry
        for item in items:
            if item.id not in changed_ids:
                self._entries.setdefault(item.id, item)  # the history may have noted the whole entry already

    # ── fit ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _fit(self, tree: Scope, resolved: Resolved, limit: int | None) -> FittedPrompt:
        """Fit a tree: answer each request for a summary that the fit yields, the same one only once per render."""
        steps = fit_prompt(tree, self._codec, limit, tools=self._tools, budget=self._budget)
        try:
            need = next(steps)
            while True:
                question = (need.id, need.existing, len(need.groups), need.tokens)
                if question not in self._summaries:
                    self._summaries[question] = await resolved.summary_runs[need.id].answer(need)
                need = steps.send(self._summaries[question])
        except StopIteration as end:
            fitted: FittedPrompt = end.value
            return fitted

    async def _fit_and_count(self, tree: Scope, resolved: Resolved) -> _SentPrompt:
        """Fit, lay out, write and count, until the request is within the budget and shows nothing twice."""
        limit = self._limit
        while True:
            fitted = await self._fit(tree, resolved, limit)
            smaller_tree = self._drop_repeated(tree, fitted, resolved)
            if smaller_tree is not None:
                tree = smaller_tree
                continue
            placed = self._lay_out(tree, fitted, resolved)
            marks = cache_marks(placed, tree, resolved, self._codec, self._tools)
            payload = self._codec.render(
                [placement.message for placement in placed], tools=self._tools, marks=marks
            )
            count = await self._count(payload)
            if limit is None or self._budget is None or count.upper_bound <= self._budget:
                return _SentPrompt(fitted, placed, payload, count, marks, limit)
            # The codec counts more than the fit did: fit again with that much less, and always with less.
            limit = min(limit, fitted.tokens) - max(1, count.upper_bound - self._budget)

    def _drop_repeated(self, tree: Scope, fitted: FittedPrompt, resolved: Resolved) -> Scope | None:
        """Return the tree without recalled pieces and pins that are shown elsewhere too, or None if there are none."""
        without_recalls = drop_repeated_recalls(tree, fitted.placed, resolved.recalls)
        if without_recalls is not None or not resolved.summary_runs:
            return without_recalls
        stored_texts = {id: run.stored_text for id, run in resolved.summary_runs.items()}
        without_pins = summary_coverage.drop_repeated_pins(tree, fitted, stored_texts)
        if without_pins is None:
            return None
        smaller_tree, omissions = without_pins
        self._omissions += omissions
        return smaller_tree

    def _lay_out(self, tree: Scope, fitted: FittedPrompt, resolved: Resolved) -> tuple[PlacedMessage, ...]:
        """Return the messages in their final order, without reasoning that the provider would reject."""
        in_place: list[PlacedMessage] = []
        for placement in fitted.placed:
            step = resolved.recalls.get(placement.path)
            is_fixed = step is not None and step.in_place
            in_place.append(placement._replace(moves=False) if is_fixed else placement)
        placed = lay_out_messages(in_place)
        if self._sent_hashes is not None and self._codec.binds_reasoning:
            placed, self._request_hash = cache_window.drop_unproven_reasoning(
                placed, self._sent_hashes, self._codec, self._tools
            )
        if not placed:
            raise build_empty_error(tree, fitted, self._budget)
        return placed

    async def _count(self, payload: dict[str, Json]) -> Count:
        """Count a request by the codec's request counter, or by its own count if that fails."""
        count_request = getattr(self._codec, "count_request", None)
        if count_request is None:
            return self._codec.count(payload)
        try:
            return await count_request(payload)
        except ACMSError as error:
            self._warnings.append(f"the tokens are estimated, because they could not be counted: {error}")
            return self._codec.count(payload)

    async def _store_summaries(self, resolved: Resolved, fitted: FittedPrompt) -> None:
        """Store the summaries that the fit used, now that there is a prompt."""
        for run in resolved.summary_runs.values():
            await run.commit(fitted.summaries)
            self._warnings += run.warnings
            if run.reason:  # a stored summary exists, but it does not cover these messages
                self._omissions.append(Omission((run.id,), run.path, "stale", run.reason, 0))
                self._warnings.append(f"the stored summary {run.id!r} was not used: {run.reason}")

    # ── results ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _build_rendered(
        self, resolved: Resolved, prompt: _SentPrompt, previous: Manifest | None, span: RenderSpan
    ) -> Rendered:
        """Return the result of a render, with its warnings and how to write its manifest, and emit its events."""
        fitted, codec = prompt.fitted, self._codec
        for namespace in self._pin_namespaces:
            truncated = pin_index.find_truncated_pins(namespace, fitted)
            if truncated is not None:
                self._emit(truncated)
        omissions = (*fitted.omissions, *self._omissions)
        for log in resolved.logs:
            for unit in log.span.units:
                self._entries.update({entry.id: entry for entry in unit.entries})
        shown_ids = visible_entry_ids(prompt.placed)
        warnings = [
            *_warn_of_cuts(prompt.placed),
            *unused_hints(resolved, prompt.marks),
            *self._warnings,
            *codec.notes([placement.message for placement in prompt.placed]),
        ]
        build_manifest = partial(
            write_manifest,
            prompt.placed,
            codec=codec,
            count=prompt.token_count,
            payload=prompt.payload,
            budget=self._budget,
            limit=prompt.limit,
            tools=self._tools,
            marks=prompt.marks,
            entries={id: entry for id, entry in self._entries.items() if id in shown_ids},
            reads=list_reads(resolved, self._items.values()),
            omissions=omissions,
            steps=fitted.steps,
        )
        rendered = Rendered(
            payload=prompt.payload,
            placed=prompt.placed,
            count=prompt.token_count,
            budget=self._budget,
            codec=codec,
            steps=fitted.steps,
            warnings=tuple(dict.fromkeys(warnings)),
            manifest=build_manifest,
            recalls=[items.ledger for items in self._items.values()],
            omissions=omissions,
            previous=previous,
            base=codec.base(self._tools),
            is_unsearched=self._is_unsearched,
        )
        self._emit_results(rendered, fitted, len(omissions), span)
        return rendered

    def _emit_results(
        self, rendered: Rendered, fitted: FittedPrompt, left_out: int, span: RenderSpan
    ) -> None:
        """Emit an event for each step of the fit, and one for the finished prompt."""
        for step in fitted.steps:
            event = ScopeShrunk(
                render_id=self._id,
                path=step.path,
                priority=step.priority,
                strategy=step.strategy,
                tokens_before=step.before,
                tokens_after=step.after,
            )
            self._emit(event)
            span.step(event)
        cache = rendered.cache if rendered.compared else None
        tokens = rendered.tokens.tokens
        rendered_event = PromptRendered(
            render_id=self._id,
            codec=self._codec.name,
            model=self._codec.model,
            budget=self._budget,
            tokens=tokens,
            upper_bound=rendered.tokens.upper_bound,
            messages=len(rendered.messages),
            steps=len(fitted.steps),
            left_out=left_out,
            predicted_cached_tokens=0 if cache is None else cache.predicted_tokens,
            seconds=perf_counter() - self._start_time,
            use=rendered.use,
            paid=float(tokens) if cache is None else cache.paid(),
        )
        self._emit(rendered_event)
        span.record_result(rendered_event, rendered.messages)


def _warn_of_cuts(placed: Sequence[PlacedMessage]) -> list[str]:
    """Return a warning for each message of a log that was cut."""
    return [
        f"a message was cut to fit ({', '.join(placement.message.sources)})"
        for placement in placed
        if placement.rendition == "cut" and placement.message.sources and not placement.pieces
    ]


def _repeats_question(placed: Sequence[PlacedMessage]) -> bool:
    """Return whether a written message of the user says the same as the newest message of the user in the log."""
    from_user = [one for one in placed if one.message.role is Role.USER and not one.pieces]
    logged_texts = [one.message.text for one in from_user if one.message.sources]
    written_texts = [one.message.text for one in from_user if not one.message.sources]
    return bool(logged_texts) and logged_texts[-1] in written_texts
