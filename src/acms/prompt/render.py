"""Rendering: a prompt as a provider's request within a budget, with the reasons for everything in it.

Reads come first, decisions after: sessions are read and plugins called, the tree is fitted with every recall at its
largest size, then the past is searched for content not shown yet, and the whole is fitted again. Only `Codec.count`
decides whether it fits. Each render has a state of its own, so any number of them may run concurrently.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from time import perf_counter
from typing import Any, NamedTuple
from uuid import uuid4

from acms.errors import ACMSError, ConfigurationError, PayloadError, ValidationError
from acms.log import validation
from acms.log.trust import LEADING
from acms.log.validity import label_of
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
from acms.plan.nodes import Atom, Composed, Fitted, Left, Node, Placed, Scope, Window
from acms.plan.nodes import Step as Shrunk
from acms.plan.tool_groups import pair_tool_calls
from acms.ports import Codec
from acms.prompt import excerpts, pin_index, placements, summary_coverage
from acms.prompt import steps as content
from acms.prompt.cache_forecast import describe_cache_mismatch, diagnosis_agrees, predict_cache
from acms.prompt.fit import fit_prompt
from acms.prompt.fit_state import compose_message
from acms.prompt.manifest import Manifest, Read
from acms.prompt.manifest_writer import add_candidates, ledger_of_manifest
from acms.prompt.manifest_writer import write_manifest as written_manifest
from acms.prompt.resolve import (
    Request,
    Resolved,
    Resolver,
    build_recall_scope,
    cache_marks,
    lay_out_messages,
    tokens_for_recall,
    unused_hints,
)
from acms.prompt.staying import TRIES, Pair, Staying, find_history_pair, replace_pair_with_scopes
from acms.prompt.staying import Placed as History
from acms.prompt.steps import Log, Readable, Recalling, Shrinking, Step, replace_scopes, scope_at_path
from acms.prompt_types import CacheMark, CachePrediction, Count, PromptMessage, Tool, Usage, Use
from acms.results import ContextItems, Ledger

__all__ = ["Rendered", "Report", "Request"]

CONDENSED = (
    "part of a tool call that did not fit whole: its ends, and what the question names or stands out in it"
)
OTHERS_WHOLE = 2_000
"""Tokens up to which a prompt shows the other sessions of its namespace whole, and no more than a quarter of it."""
OVERTAKEN = (
    "the next request of this prompt loses the provider's cache: the record of where this one shows what was recalled "
    "could not be stored (other renders of the prompt stored theirs first)"
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
        """Part of the predicted prefix that missed the cache, and why; "" when all was read and the reasons agree.

        The reason is given by the provider and by us.
        """
        return describe_cache_mismatch(self.predicted, self.usage, asked=self.asked)


class Rendered:
    """A prompt within its budget: the request for a provider, and the reasons for everything in it."""

    def __init__(
        self,
        *,
        payload: dict[str, Json],
        placed: Sequence[Placed],
        count: Count,
        budget: int | None,
        codec: Codec,
        steps: Sequence[Shrunk],
        warnings: Sequence[str],
        manifest: Callable[[], Manifest],
        recalls: Sequence[Ledger],
        left: Sequence[Left],
        after: Manifest | None,
        base: int = 0,
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
        self._write = manifest
        self._recalls = tuple(recalls)
        self._omitted = sum([len(one.ids) for one in left if one.gone])
        self._after = after
        self._base = base
        self._asked = False

    def __repr__(self) -> str:
        bound = "" if self.budget is None else f" of {self.budget}"
        return f"<Rendered {len(self._placed)} messages, {self.tokens.upper_bound}{bound} tokens, {self.codec.name}>"

    @property
    def compared(self) -> bool:
        """Whether an earlier render was given to compare with."""
        return self._after is not None

    @property
    def placed(self) -> tuple[PromptMessage, ...]:
        """The messages in order, before a codec merges them: each with the ids of the entries whose text it shows."""
        return tuple([one.message for one in self._placed])

    @cached_property
    def messages(self) -> tuple[PromptMessage, ...]:
        """The messages in the normal form of the codec: the result of `codec.parse(payload)`, with their sources."""
        return self.codec.normal([one.message for one in self._placed])

    @cached_property
    def manifest(self) -> Manifest:
        """Where every stretch of text comes from, without the text of the log; written when it is first read."""
        return add_candidates(self.outline, self._recalls)

    @cached_property
    def outline(self) -> Manifest:
        """The manifest without the candidates of recalls, which is all that another render is compared with."""
        return self._write()

    @cached_property
    def ledger(self) -> Ledger:
        """Why something is in the prompt, or why not: by id of an entry, key of a pin, or path of a scope."""
        return ledger_of_manifest(lambda: self.manifest, self._recalls, self.warnings, omitted=self._omitted)

    @cached_property
    def cache(self) -> CachePrediction:
        """Part of the request the provider can read from its cache after the earlier render given as `after`."""
        key = self.payload.get("prompt_cache_key", "")
        return predict_cache(self.outline, self._after, self.codec, key=key)

    @cached_property
    def use(self) -> Use:
        """Tokens of the request by use; `free` is the unused part of the budget."""
        found = Counter[str]()
        for one in self._placed:
            found[_part_of(one)] += one.tokens
        free = 0 if self.budget is None else self.budget - self.tokens.upper_bound
        return Use(**found, tools=self._base, free=free)

    def entry_texts(self) -> dict[str, str]:
        """Return the text the request shows of each entry, by its id."""
        found: dict[str, list[str]] = {}
        for message in self.messages:
            for id in message.sources:
                found.setdefault(id, []).append(message.text)
        for one in self._placed:
            for piece in one.pieces:
                for id in piece.sources:
                    found.setdefault(id, []).append(piece.text)
        return {id: "\n".join(texts) for id, texts in found.items()}

    def seen(self, id: str) -> bool:
        """Return whether an entry is in the request: its text, or the part that its rendition shows."""
        return id in _entry_ids(self._placed)

    def diagnosed(self, previous: str | None) -> dict[str, Json]:
        """Return the payload, which from now on asks why the cache was not read; see `Codec.diagnosed`."""
        self.payload = self.codec.diagnosed(self.payload, previous)
        self._asked = previous is not None
        return self.payload

    def report(self, usage: object) -> Report:
        """Learn from an answer, or its usage alone: the object of the provider's SDK, or the same as a mapping."""
        found = self.codec.usage(usage)
        self.codec.observe(self.tokens, found)
        return Report(usage=found, count=self.tokens, predicted=self.cache, asked=self._asked)


async def render_steps(
    steps: Sequence[Step],
    codec: Codec | None,
    budget: int | None,
    *,
    tools: Sequence[Tool],
    read: Callable[[object], Sequence[Step]],
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
        budget = validation.validate_integer(budget, "budget", most=validation.BUDGET)
    if after is not None and not isinstance(after, Rendered | Manifest):
        raise ValidationError(
            f"must be a Rendered or its manifest, not {type(after).__name__}", field="after"
        )
    earlier = after.outline if isinstance(after, Rendered) else after
    if (home := content.find_render_service(steps)) is not None:
        rendered: Rendered = await home.render(steps, codec, budget, tools=tools, after=earlier)
        return rendered
    kept = next(content.render_logs(steps), None)
    log = None if kept is None else await kept.begin()
    work = _Render(codec, budget, tools, listeners)
    with render_span(codec=codec.name, model=codec.model, budget=budget) as span:
        try:
            rendered = await work.run(steps, read, earlier, span)
        except Exception as error:
            work.failed(error)
            raise
    if log is not None:
        log.add("prompt", lambda: rendered.manifest)
    return rendered


class _Render:
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
        self._started = perf_counter()
        of_tools = codec.base(tools) - codec.base(())
        self._limit = None if budget is None else codec.limit(budget, of_tools)
        self._warnings: list[str] = []
        self._left: list[Left] = []
        self._pins: list[str] = []
        #: Answers to questions of the fit, which is made more than once.
        self._answers: dict[tuple[str, str, int, int], str | None] = {}
        #: The items of each recall, by the path of its scope.
        self._found: dict[str, ContextItems] = {}
        #: Hashes of the requests that reasoning may have answered; None where nothing it stands behind ever changes.
        self._sent: frozenset[str] | None = None
        #: That of this one, where the provider holds reasoning to it.
        self._request = ""
        #: Entries that may be shown, by id, for the manifest to quote.
        self._told: dict[str, Any] = {}

    def _tell(self, event: Event) -> None:
        for listener in self._listeners:
            emit_event(listener, event)
        if isinstance(event, PinsSkipped):
            self._left += pin_index.list_skipped_pins(event)
            self._warnings += [
                f"the pin {key!r} is not shown: nothing is stored under its key" for key in event.missing
            ]
        elif isinstance(event, PinsLoaded):
            self._pins.append(event.namespace)

    def failed(self, error: Exception) -> None:
        """Report that there is no prompt."""
        self._tell(
            PromptFailed(
                render_id=self._id,
                codec=self._codec.name,
                model=self._codec.model,
                budget=self._budget,
                code=error.code if isinstance(error, ACMSError) else type(error).__name__,
                seconds=perf_counter() - self._started,
            )
        )

    async def run(
        self,
        steps: Sequence[Step],
        read: Callable[[object], Sequence[Step]],
        after: Manifest | None,
        span: RenderSpan,
    ) -> Rendered:
        """Read, decide, write and report."""
        request = Request(render_id=self._id, budget=self._budget, codec=self._codec, tell=self._tell)
        stays = None if self._limit is None else find_history_pair(steps)
        with span.stage("gather"):
            taken = steps if stays is None else replace_pair_with_scopes(steps, stays)
            resolved = await Resolver(request, self._message_budget, read).resolve(taken)
        if stays is None:
            whole = not resolved.recalls and all(log.complete for log in resolved.logs)
            self._sent = None if whole else frozenset()
            found = await self._decided(resolved.tree, resolved, span)
        else:
            found = await self._stayed(steps, stays, resolved, span)
        await self._commit(resolved, found.fitted)
        return self._made(resolved, found, after, span)

    @property
    def _others_whole(self) -> int:
        """Tokens up to which other sessions are shown whole."""
        return OTHERS_WHOLE if self._budget is None else min(OTHERS_WHOLE, self._budget // 4)

    @property
    def _message_budget(self) -> int | None:
        """Raw tokens that all messages may have."""
        return None if self._limit is None else max(0, self._limit - self._codec.base(self._tools))

    async def _fit(self, tree: Scope, resolved: Resolved, limit: int | None) -> Fitted:
        """Fit a tree; each summary it requests is requested only once per render."""
        steps = fit_prompt(tree, self._codec, limit, tools=self._tools, budget=self._budget)
        try:
            need = next(steps)
            while True:
                question = (need.id, need.existing, len(need.atoms), need.tokens)
                if question not in self._answers:
                    self._answers[question] = await resolved.standing[need.id].answer(need)
                need = steps.send(self._answers[question])
        except StopIteration as end:
            found: Fitted = end.value
            return found

    def _proven(self, placed: tuple[Placed, ...]) -> tuple[Placed, ...]:
        """Return messages without reasoning that the provider would reject because its prefix changed."""
        if self._sent is None or not self._codec.binds_reasoning:
            return placed
        found, self._request = placements.drop_unproven_reasoning(
            placed, self._sent, self._codec, self._tools
        )
        return found

    async def _decided(self, tree: Scope, resolved: Resolved, span: RenderSpan) -> _Fit:
        """Make the recalls that are chosen again each turn, and fit the whole."""
        tree = pair_tool_calls(tree)
        if resolved.recalls:
            with span.stage("recall"):
                tree = await self._recalled(tree, resolved)
        with span.stage("fit"):
            return await self._fitted(tree, resolved)

    # ── recall ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _stayed(self, steps: Sequence[Step], stays: Pair, resolved: Resolved, span: RenderSpan) -> _Fit:
        """Fit a prompt whose history and recall keep their positions, and store these positions."""
        names = content.name_steps(steps)
        path = f"{resolved.tree.id}/{names[stays.history]}"
        staying = await self._staying(steps, stays, resolved, names)
        logs, found = list(resolved.logs), dict(self._found)
        tries = 0
        while True:
            with span.stage("recall"):
                placed = await staying.place()
            resolved.logs = logs if placed.log is None else [*logs, placed.log]
            self._found = {**found, **self._found}
            scope = replace(
                scope_at_path(resolved.tree, path),
                children=_wrap_recalls(placed.nodes),
                strategy=Window(slack=0.0),
            )
            self._sent = frozenset() if placed.kept is None else frozenset(placed.kept.sent)
            done = await self._decided(replace_scopes(resolved.tree, {path: scope}), resolved, span)
            tries += 1
            kept = await staying.keep(placed, done.fitted, path, self._request)
            if not kept and tries < TRIES:
                continue
            self._left += [_report_older_atom(atom, path) for atom in placed.older]
            self._left += [
                Left((id,), path, "condensed", CONDENSED, whole - shown, gone=False)
                for id, (whole, shown) in placed.condensed.items()
            ]
            self._warnings += [*staying.warnings, *_warn_of_newest_cut(placed)]
            self._warnings += [] if kept else [OVERTAKEN]
            return done

    async def _staying(
        self, steps: Sequence[Step], stays: Pair, resolved: Resolved, names: Sequence[str]
    ) -> Staying:
        """Return the object that places a history and its recall in the tokens left by everything else."""
        assert self._budget is not None
        assert self._limit is not None
        history = steps[stays.history]
        assert isinstance(history, Shrinking)
        (log,) = history.steps
        assert isinstance(log, Log)
        recall = None if stays.recall is None else steps[stays.recall]
        if recall is not None:
            assert isinstance(recall, Recalling)
        tree, floors = _drop_earlier_sections(pair_tool_calls(resolved.tree), history.priority)
        rest = await self._fit(tree, resolved, self._limit)
        after = set(names[stays.history + 1 :])
        behind = [one for one in rest.placed if one.path.split("/", 2)[1] in after]
        asked = any(one.message.role is Role.USER and not one.pieces for one in behind)

        async def ask(tokens: int, beside: bool) -> ContextItems:
            assert recall is not None
            assert stays.recall is not None
            items = await self._recall(recall, tokens, (), beside=beside)
            self._found[f"{resolved.tree.id}/{names[stays.recall]}"] = items
            return items

        return Staying(
            log.session,
            recall,
            self._codec,
            room=max(0, self._limit - rest.tokens - floors),
            result=self._limit // placements.RESULT,
            asked=asked,
            tools=bool(self._tools),
            name=placements.hash_prompt_shape(*self._shape(names, stays, log.session, recall, log.first)),
            budget=self._budget,
            told=self._told,
            ask=ask,
            first=log.first,
        )

    def _shape(
        self,
        names: Sequence[str],
        stays: Pair,
        session: Readable,
        recall: Recalling | None,
        first: Sequence[str],
    ) -> list[Json]:
        """Return the properties shared by prompts whose recalls have the same positions."""
        found: list[Json] = [self._codec.name, self._codec.model, names[stays.history]]
        if recall is not None:
            options = recall.options
            where = json.dumps(options["where"], default=str, sort_keys=True)
            found += [recall.tokens, session.effort, options["scope"], options["min_relevance"]]
            found += [where, options["limit"]] if options["where"] or options["limit"] else []
        return [*found, *first, str(session.stage.mode or "")]

    async def _recalled(self, tree: Scope, resolved: Resolved) -> Scope:
        """Return the tree with recalled content that the prompt does not show anyway.

        A history that fits as a whole is not cut for a recall of itself: the recall gets the remaining tokens.
        """
        recalls = resolved.recalls
        without = replace_scopes(tree, {path: Scope(id=path.rpartition("/")[2]) for path in recalls})
        fitted = await self._fit(without, resolved, self._limit)
        seen = _entry_ids(fitted.placed)
        left: int | None = None
        if all(resolved.shows(step.session, seen) for step in recalls.values()):
            left = None if self._limit is None else self._limit - fitted.tokens
        else:
            seen = _entry_ids((await self._fit(tree, resolved, self._limit)).placed)
        made: dict[str, Scope] = {}
        for path, step in recalls.items():
            name = path.rpartition("/")[2]
            if not step.tokens:  # no tokens are asked for, so no search is made
                made[path] = Scope(id=name)
                continue
            tokens, frame = tokens_for_recall(step, self._codec, left)
            items = await self._recall(step, tokens, seen)
            seen.update(item.id for item in items)
            self._found[path] = items
            same = self._codec.counter.name == step.session.counter.name
            items_shown = excerpts.drop_repeated_facts(items)
            id = await step.session.context_id()
            own = excerpts.find_own_logs(None if id is None else await step.session.storage.context(id))
            pieces = excerpts.write_pieces(items_shown, own, counted=same)
            found = excerpts.write_block(pieces, self._codec)
            made[path] = build_recall_scope(step, name, tokens + frame if tokens else 0, found)
            if left is not None:
                left -= self._codec.cost(compose_message(found, found.pieces)) if found.pieces else 0
        return replace_scopes(tree, made)

    async def _recall(
        self, step: Recalling, tokens: int, seen: Collection[str], *, beside: bool = False
    ) -> ContextItems:
        """Recall from the past; a user message that repeats the query is no answer, nor are messages next to it."""
        options = dict(step.options)
        exclude = {*options.pop("exclude"), *seen}
        while True:
            items: ContextItems = await step.session.recall_for_prompt(
                step.query, budget=tokens, others_whole=self._others_whole, exclude=exclude, **options
            )
            query = step.query.strip()
            echoes = {item.id for item in items if item.role is Role.USER and item.content.strip() == query}
            if not echoes - exclude:
                break
            exclude |= echoes
        self._warnings += items.ledger.warnings
        # Their text differs from the original: a fact may carry a note of when it ends.
        other = {
            item.id
            for item in items
            if item.truncated or item.source is Source.FACT or label_of(item.content)
        }
        if other:
            rows = [row for row in await step.session.storage.get(sorted(other)) if row is not None]
            self._told.update({row.id: row for row in step.session.stage.entries(rows)})
        # entries that the history shows too are known whole
        self._told.update({item.id: item for item in items if item.id not in other | self._told.keys()})
        return items

    # ── fit ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _fitted(self, tree: Scope, resolved: Resolved) -> _Fit:
        """Fit, lay out, write and count, until the request is within the budget and shows nothing twice."""
        limit = self._limit
        while True:
            fitted = await self._fit(tree, resolved, limit)
            fewer = _drop_repeated_recalls(tree, fitted.placed, resolved.recalls)
            if fewer is None and resolved.standing:
                stored = {id: run.stored for id, run in resolved.standing.items()}
                found = summary_coverage.drop_repeated_pins(tree, fitted, stored)
                if found is not None:
                    fewer, left = found
                    self._left += left
            if fewer is not None:
                tree = fewer
                continue
            placed = self._proven(
                lay_out_messages([_fix_recall_position(one, resolved.recalls) for one in fitted.placed])
            )
            if not placed:
                raise PayloadError(
                    "there is no message to send: all was left out, or nothing was there",
                    field="messages",
                    options=("add a message that is required, such as user(…)", "raise the budget"),
                )
            marks = cache_marks(placed, tree, resolved, self._tools)
            payload = self._codec.render([one.message for one in placed], tools=self._tools, marks=marks)
            count = await self._count(payload)
            if limit is None or self._budget is None or count.upper_bound <= self._budget:
                return _Fit(fitted, placed, payload, count, marks, limit)
            limit = min(limit, fitted.tokens) - max(1, count.upper_bound - self._budget)

    async def _count(self, payload: dict[str, Json]) -> Count:
        """Count a request by the codec's request counter, or by its own count if that fails."""
        count_request = getattr(self._codec, "count_request", None)
        if count_request is None:
            return self._codec.count(payload)
        try:
            return await count_request(payload)
        except ACMSError as error:
            self._warnings.append(f"the tokens are estimated, since they could not be counted: {error}")
            return self._codec.count(payload)

    async def _commit(self, resolved: Resolved, fitted: Fitted) -> None:
        """Store the summaries that were used: there is a prompt now."""
        for run in resolved.standing.values():
            await run.commit(fitted.summaries)
            self._warnings += run.warnings
            if run.reason:
                self._left.append(Left((run.id,), run.path, "stale", run.reason, 0))
                self._warnings.append(f"the stored summary {run.id!r} was not used: {run.reason}")

    # ── results ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _made(self, resolved: Resolved, found: _Fit, after: Manifest | None, span: RenderSpan) -> Rendered:
        fitted, codec = found.fitted, self._codec
        for namespace in self._pins:
            truncated = pin_index.find_truncated_pins(namespace, fitted)
            if truncated is not None:
                self._tell(truncated)
        left = (*fitted.left, *self._left)
        recalls = [items.ledger for items in self._found.values()]
        for log in resolved.logs:
            self._told.update({entry.id: entry for unit in log.gathered.units for entry in unit.entries})
        shown = _entry_ids(found.placed)
        told = {id: one for id, one in self._told.items() if id in shown}
        reads = _list_reads(resolved, self._found.values())
        warnings = [*_warn_of_cuts(found.placed), *unused_hints(resolved, found.marks), *self._warnings]
        messages = [one.message for one in found.placed]
        warnings += codec.notes(messages)

        def manifest() -> Manifest:
            return written_manifest(
                found.placed,
                codec=codec,
                count=found.counted,
                payload=found.payload,
                budget=self._budget,
                limit=found.limit,
                tools=self._tools,
                marks=found.marks,
                told=told,
                reads=reads,
                left=left,
                steps=fitted.steps,
            )

        rendered = Rendered(
            payload=found.payload,
            placed=found.placed,
            count=found.counted,
            budget=self._budget,
            codec=codec,
            steps=fitted.steps,
            warnings=tuple(dict.fromkeys(warnings)),
            manifest=manifest,
            recalls=recalls,
            left=left,
            after=after,
            base=codec.base(self._tools),
        )
        self._report(rendered, fitted, len(left), span)
        return rendered

    def _report(self, rendered: Rendered, fitted: Fitted, left: int, span: RenderSpan) -> None:
        for step in fitted.steps:
            event = ScopeShrunk(
                render_id=self._id,
                path=step.path,
                priority=step.priority,
                strategy=step.strategy,
                tokens_before=step.before,
                tokens_after=step.after,
            )
            self._tell(event)
            span.step(event)
        cache = rendered.cache if rendered.compared else None
        tokens = rendered.tokens.tokens
        done = PromptRendered(
            render_id=self._id,
            codec=self._codec.name,
            model=self._codec.model,
            budget=self._budget,
            tokens=tokens,
            upper_bound=rendered.tokens.upper_bound,
            messages=len(rendered.messages),
            steps=len(fitted.steps),
            left_out=left,
            predicted_cached_tokens=0 if cache is None else cache.predicted_tokens,
            seconds=perf_counter() - self._started,
            use=rendered.use,
            paid=float(tokens) if cache is None else cache.paid(),
        )
        self._tell(done)
        span.done(done, rendered.messages)


class _Fit(NamedTuple):
    """A prompt as it is sent."""

    fitted: Fitted
    placed: tuple[Placed, ...]
    payload: dict[str, Json]
    counted: Count
    marks: tuple[CacheMark, ...]
    #: Raw tokens it was fitted to.
    limit: int | None


def _part_of(one: Placed) -> str:
    """Return the part of a request that a message belongs to."""
    if one.pieces:
        return "recalled" if one.message.sources else "pins"
    if one.message.sources or one.rendition in ("summary", "placeholder"):
        return "history"
    return "system" if one.message.role in LEADING else "written"


def _entry_ids(placed: Iterable[Placed]) -> set[str]:
    """Return the ids of the entries that some messages show."""
    found = {source for one in placed for source in one.message.sources}
    found.update(source for one in placed for piece in one.pieces for source in piece.sources)
    return found


def _wrap_recalls(nodes: Sequence[Atom | Composed]) -> tuple[Node, ...]:
    """Return the nodes of a history, with each recalled block wrapped in a scope of its own."""
    number = 0
    found: list[Node] = []
    for node in nodes:
        if isinstance(node, Composed):
            number += 1
            node = Scope(id="recall" if number == 1 else f"recall-{number}", children=(node,))
        found.append(node)
    return tuple(found)


def _report_older_atom(atom: Atom, path: str) -> Left:
    """Return that a message is older than the start of a history."""
    ids = tuple([id for message in atom.messages for id in message.sources])
    tokens = sum([message.tokens or 0 for message in atom.messages])
    return Left(ids, path, "window", "older than the newest messages, with which the history begins", tokens)


def _warn_of_newest_cut(placed: History) -> list[str]:
    """Return a warning for each part of the newest tool call that is not shown whole."""
    newest = next((node for node in reversed(placed.nodes) if isinstance(node, Atom)), None)
    shown = () if newest is None else [id for message in newest.messages for id in message.sources]
    found = {id: placed.condensed[id] for id in shown if id in placed.condensed}
    return [
        f"newest tool call: {kept:,} of {whole:,} tokens of {id} are shown"
        for id, (whole, kept) in found.items()
    ]


def _drop_earlier_sections(tree: Scope, priority: int) -> tuple[Scope, int]:
    """Return a tree without the sections that shrink before those of a priority do, and the floors of these."""
    kept: list[Node] = []
    floors = 0
    for node in tree.children:
        if isinstance(node, Scope) and node.strategy is not None and node.priority > priority:
            floors += node.floor
            node = Scope(id=node.id)
        elif isinstance(node, Scope):
            node, below = _drop_earlier_sections(node, priority)
            floors += below
        kept.append(node)
    return replace(tree, children=tuple(kept)), floors


def _drop_repeated_recalls(
    tree: Scope, placed: Sequence[Placed], recalls: Mapping[str, Recalling]
) -> Scope | None:
    """Return the tree without recalled pieces that the history shows too; None when there are none.

    A recall may take fewer tokens than its budget, and then the history shows more entries than foreseen.
    """
    history = _entry_ids(one for one in placed if one.path not in recalls)
    made: dict[str, Scope] = {}
    for one in placed:
        if one.path in recalls and any(not history.isdisjoint(piece.sources) for piece in one.pieces):
            scope = scope_at_path(tree, one.path)
            kept = [
                node._replace(pieces=tuple([one for one in node.pieces if history.isdisjoint(one.sources)]))
                for node in scope.children
                if isinstance(node, Composed)
            ]
            made[one.path] = replace(scope, children=tuple([node for node in kept if node.pieces]))
    return replace_scopes(tree, made) if made else None


def _fix_recall_position(one: Placed, recalls: Mapping[str, Recalling]) -> Placed:
    """Return a recalled message that stays where the caller put it, where that is asked for."""
    step = recalls.get(one.path)
    return one if step is None or not step.in_place else one._replace(moves=False)


def _warn_of_cuts(placed: Sequence[Placed]) -> list[str]:
    """Return a warning for each message of a log that was cut."""
    return [
        f"a message was cut to fit ({', '.join(one.message.sources)})"
        for one in placed
        if one.rendition == "cut" and one.message.sources and not one.pieces
    ]


def _list_reads(resolved: Resolved, recalls: Iterable[ContextItems]) -> tuple[Read, ...]:
    """Return which logs were read, up to which version, and from which on."""
    found: dict[tuple[str, int], Read] = {}
    for log in resolved.logs:
        gathered = log.gathered
        if gathered.context:
            first = 0 if gathered.whole else log.first
            found[gathered.context, gathered.version] = Read(
                gathered.context, gathered.version, first, log.lineage, log.summary
            )
    for items in recalls:
        if items.context:
            found.setdefault((items.context, items.version), Read(items.context, items.version))
    return tuple(found.values())
