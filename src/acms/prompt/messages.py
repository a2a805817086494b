"""A whole prompt: the history when it fits, else its newest messages and the past messages that match the query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from acms.errors import TokenBudgetExceededError
from acms.log.active_entries import EntryGroup
from acms.model import Entry, Json, Kind, Role
from acms.ports import Frame, TokenCounter
from acms.prompt.excerpts import note_current_fact
from acms.prompt.history.cache_window import MOST_BUDGETS_SEARCHED
from acms.prompt.history.tool_outputs import LEAST_SHOWN
from acms.recall.pipeline import ContentGone, build_recall_result, rank_log, remove_gone_content, run_plan
from acms.recall.planner import (
    SUMMARIES_SHARE,
    Candidate,
    Choice,
    PlanSteps,
    build_choice_ledger,
    choose_newest_suffix,
    fit_to_budget,
    render_choice,
)
from acms.recall.request import RankedLog, Reader, Recall
from acms.recall.selection import divide_budget
from acms.recall.window import (
    LogSpan,
    build_window_candidate,
    count_group_tokens,
    gather_newest,
    list_cut_warnings,
    load_instructions,
    load_labels,
)
from acms.results import ContextItem, ContextItems, join_items
from acms.runtime.threads import EACH, off_loop
from acms.text import chat_messages

if TYPE_CHECKING:  # it brings numpy: loaded by the first prompt that needs it
    from acms.recall.candidates import CandidateSet
    from acms.recall.fact_candidates import FactIndex

RECALL_SHARE = 0.8
"""Share of a prompt that retrieval may use when the history does not fit."""


@dataclass(frozen=True, slots=True)
class ChatPlan:
    """Provider-ready messages, their cost, and the decisions behind them."""

    messages: chat_messages.ChatMessages
    tokens: int
    items: ContextItems


@dataclass(frozen=True, slots=True)
class Material:
    """The material of a prompt: leading units, the newest ones, and candidates of the past if these are not all."""

    span: LogSpan
    leading_units: Sequence[EntryGroup[Entry]]
    other_units: Sequence[EntryGroup[Entry]]
    ranked: RankedLog | None = None
    candidates: CandidateSet | None = None
    facts: Sequence[FactIndex] = ()
    #: Labels of some of these units, by id.
    labels: Mapping[str, str] = dataclass_field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class _Selection:
    """The decisions about the newest messages, and the recalled items shown with them."""

    window_choices: list[Choice]
    items: Sequence[ContextItem] = ()
    past_choices: Sequence[Choice] = ()
    rejected_choices: Sequence[Choice] = ()


async def chat_plan(reader: Reader, context: str, at: int | None, request: Recall) -> ChatPlan:
    """Write the whole history when it fits, else the newest messages and, before the last turn, recalled ones.

    Leading system and developer messages stay. Recalled text goes right before the newest user message, so the text
    before it is the same from turn to turn. `TokenBudgetExceededError` when not even the newest unit fits.
    """
    from acms.recall.candidates import (
        Conditions,
        collect_candidates,
        collect_fact_candidates,
        merge_candidate_sets,
    )
    from acms.recall.pipeline import KnownFacts, gather_known_facts
    from acms.recall.ranking import MIN_CANDIDATES

    frame = chat_messages.ChatFrame(reader.counter)
    while True:
        span = await _gather_turn(reader, context, at, frame, request.budget)
        leading_units = await load_instructions(reader.storage, reader.redactor, span)
        leading_versions = {entry.version for unit in leading_units for entry in unit.entries}
        units = (*span.older_summaries, *span.units)
        other_units = [unit for unit in units if unit.entries[0].version not in leading_versions]
        ranked: RankedLog | None = None
        candidates: CandidateSet | None = None
        facts = KnownFacts()
        cost = await off_loop(partial(count_group_tokens, span.units, frame), len(span.units) * EACH)
        fits = span.whole and cost + chat_messages.PRIMER_TOKENS <= request.budget
        needs_recall = not fits
        repeated_facts: frozenset[str] = frozenset()
        if fits and request.profile:
            needs_recall = await reader.indexes.profiles.find(request.profile) is not None
        if fits and span.non_messages:
            stated_facts, repeated_facts = await _divide_facts(reader, span)
            needs_recall = needs_recall or bool(stated_facts)
        if needs_recall:
            size = MIN_CANDIDATES + len(
                other_units
            )  # the shown messages are ranked too, but are no candidates
            markers, weights = request.markers, request.weights
            ranked = await rank_log(reader, context, span.version, request.query, size, markers, weights)
            facts = await gather_known_facts(reader, ranked, request)
            conditions = Conditions(
                answers_only=True,
                exclude=repeated_facts,
                shown=leading_versions,
                episode=False,
                stale=ranked.stale,
                profile=facts.stale,
                labels=ranked.labels(request.moment),
            )
            collect = partial(collect_candidates, ranked.corpus, ranked.ranking, conditions, reader.frame)
            messages = await off_loop(collect, size)
            fact_candidates = collect_fact_candidates(facts.indexes, conditions, reader.frame)
            candidates = merge_candidate_sets(fact_candidates, messages)
        moment = request.moment or span.newest
        labels = await load_labels(reader.indexes, context, span.version, moment)
        labels_by_id = labels.by_id(other_units, leading_units)
        material = Material(span, leading_units, other_units, ranked, candidates, facts.indexes, labels_by_id)
        try:
            steps = plan_chat(material, request, reader.counter, reader.frame)
            return await run_plan(steps, reader, request.budget)
        except ContentGone as gone:
            assert ranked is not None  # without a ranking the plan requests no entries
            remove_gone_content(reader, gone, ranked, facts)


async def _divide_facts(reader: Reader, span: LogSpan) -> tuple[frozenset[str], frozenset[str]]:
    """Return the ids of the facts of a log that were stated by hand, and of those made from its messages.

    A log that is shown whole says the latter already.
    """
    rows = await reader.storage.read(span.context, at=span.version, kinds=(Kind.FACT,))
    made_from_messages = frozenset([row.id for row in rows if row.sources])
    return frozenset([row.id for row in rows]) - made_from_messages, made_from_messages


async def _gather_turn(
    reader: Reader, context: str, at: int | None, frame: chat_messages.ChatFrame, budget: int
) -> LogSpan:
    """Read the newest messages that a budget could hold, and on to the question before them if they are tool calls.

    A message that is too long for the budget will be cut, which leaves tokens for older ones.
    """
    read_budget = budget
    while True:
        span = await gather_newest(reader.storage, context, at, frame, read_budget, reader.redactor)
        units = span.units
        # Only a turn that ends with tool calls can begin further back.
        has_turn_start = not _ends_with_call(units) or _find_turn_start(units) is not None
        is_enough = has_turn_start and _cost_when_cut(units, frame, budget // 2) > budget
        if span.whole or is_enough or read_budget > MOST_BUDGETS_SEARCHED * budget:
            return span
        read_budget *= 4


def _cost_when_cut(units: Sequence[EntryGroup[Entry]], frame: chat_messages.ChatFrame, most: int) -> int:
    """Return the tokens of units of which each is cut to `most`."""
    return sum(min(count_group_tokens([unit], frame), most) for unit in units)


def _ends_with_call(units: Sequence[EntryGroup[Entry]]) -> bool:
    """Return whether the newest unit is a call of a tool with its answer."""
    return bool(units) and len(units[-1].entries) > 1


def _find_turn_start(units: Sequence[EntryGroup[Entry]]) -> int | None:
    """Return the index of the user's question after which only the assistant and its tools spoke.

    None if the units do not end with a tool call, or if no question is among them.
    """
    if not _ends_with_call(units):
        return None
    index = len(units) - 1
    while index >= 0 and units[index].entries[0].role in (Role.ASSISTANT, Role.TOOL):
        index -= 1
    is_question = 0 <= index < len(units) - 1 and units[index].entries[0].role is Role.USER
    return index if is_question else None


def plan_chat(
    material: Material, request: Recall, counter: TokenCounter, text_frame: Frame
) -> PlanSteps[ChatPlan]:
    """Choose and write a prompt within the budget; try again with less while the written messages exceed it."""
    if material.ranked is not None and material.candidates is not None and request.rerank:
        from acms.recall.rerank import rerank_candidates

        warnings = list(material.ranked.warnings)
        candidates = yield from rerank_candidates(material.candidates, request, warnings)
        ranked = replace(material.ranked, warnings=tuple(warnings))
        material = replace(material, ranked=ranked, candidates=candidates)
    planner = _ChatPlanner(material, request, counter, text_frame)
    limit = request.budget
    while True:
        plan = yield from planner.plan_within(limit)
        excess = plan.tokens - request.budget
        if excess <= 0:
            return plan
        limit -= excess
        if limit <= 0:
            raise _too_much(request.budget, plan.tokens)


def _too_much(budget: int, required: int) -> TokenBudgetExceededError:
    return TokenBudgetExceededError(
        budget=budget,
        required=required,
        options=(
            f"raise the budget to {required}",
            "shorten the system messages, if the log begins with some",
        ),
    )


def _find_excerpt_ids(items: Sequence[ContextItem]) -> frozenset[str]:
    """Return the ids of excerpts, and of the calls and results that belong to one."""
    groups = {item.group or item.id for item in items if item.truncated}
    return frozenset(item.id for item in items if (item.group or item.id) in groups)


class _TurnReserve(NamedTuple):
    """What the newest turn takes of a prompt before the past is given any tokens."""

    #: Tokens that are not given to the past.
    tokens: int
    #: The question of a turn that is too long to be shown whole: it is shown in any case, beside these tokens.
    question: Choice | None = None
    #: Its index among the newest messages.
    question_index: int = 0


def _reserve_turn(
    units: Sequence[EntryGroup[Entry]], newest: Sequence[Candidate], remaining: int
) -> _TurnReserve:
    """Return what the newest turn takes of the remaining tokens; `newest` are the candidates of the units."""
    start = _find_turn_start(units)
    if start is None:
        is_question = bool(newest) and units[-1].entries[0].role is Role.USER
        return _TurnReserve(min(newest[-1].tokens, remaining // 2) if is_question else 0)
    turn_tokens = sum(candidate.tokens for candidate in newest[start:])
    if turn_tokens <= remaining * 2 / 3:
        return _TurnReserve(turn_tokens)
    question = newest[start]
    limit = _limit_tokens(remaining, [*newest[:start], *newest[start + 1 :]])
    if question.tokens <= limit:
        limit = question.tokens
        choice = Choice(question, True, "keep", "the message that began the newest turn")
    else:
        reason = "the message that began the newest turn, cut because it is too long"
        choice = Choice(question, True, "cut", reason, limit)
    return _TurnReserve((remaining - limit) // 2, choice, start)


class _ChatPlanner:
    """Chooses and writes a prompt of some material for one request."""

    def __init__(self, material: Material, request: Recall, counter: TokenCounter, text_frame: Frame) -> None:
        self._material = material
        self._request = request
        self._counter = counter
        #: What surrounds a message, and what surrounds a recalled item.
        self._frame = chat_messages.ChatFrame(counter)
        self._text_frame = text_frame

    def plan_within(self, limit: int) -> PlanSteps[ChatPlan]:
        """Choose and write a prompt whose messages, each counted alone, have at most `limit` tokens.

        Shown are the leading system messages, the newest messages, and answers from the past before the question.
        """
        material, counter = self._material, self._counter
        frame = self._frame
        leading_candidates = [
            build_window_candidate(unit, frame, material.labels) for unit in material.leading_units
        ]
        newest = [build_window_candidate(unit, frame, material.labels) for unit in material.other_units]
        kept = [
            Choice(candidate, True, "keep", "a leading system message") for candidate in leading_candidates
        ]
        remaining = limit - sum(candidate.tokens for candidate in leading_candidates)
        if leading_candidates or newest:
            remaining -= chat_messages.PRIMER_TOKENS
        turn = _reserve_turn(material.other_units, newest, remaining)
        pinned = kept
        if turn.question is not None:
            del newest[turn.question_index]
            pinned = [*kept, turn.question]
            remaining -= _count_included([turn.question])
        if material.candidates is None:
            selection = _Selection(self._choose_newest(newest, remaining))
        else:
            selection = yield from self._choose_past(
                material.candidates, newest, pinned, remaining, turn.tokens
            )
        window = selection.window_choices
        if turn.question is not None:
            window.insert(turn.question_index, turn.question)
        choices = [*kept, *window]
        items = [
            item for choice in choices if choice.included for item in render_choice(choice, counter, frame)
        ]
        if (
            items and items[-1].truncated and not items[-1].token_count
        ):  # the newest message was cut to nothing
            budget = self._request.budget
            raise _too_much(budget, max(budget + 1, limit - remaining + newest[-1].tokens))
        messages, tokens = _write_messages(items, selection.items, counter)
        return ChatPlan(messages, tokens, self._explain_choices(selection, choices, items))

    def _choose_past(
        self,
        candidates: CandidateSet,
        newest: Sequence[Candidate],
        pinned: Sequence[Choice],
        remaining: int,
        turn_tokens: int,
    ) -> PlanSteps[_Selection]:
        """Choose answers from the past within their share, then the newest messages in the remaining tokens.

        `pinned` are shown in any case, `remaining` are the tokens beside them. `turn_tokens` are those of the newest
        turn if it calls tools: the turn is not cut for the past.
        """
        unused_tokens = remaining - sum(candidate.tokens for candidate in newest)
        past_budget = _share_of_past(newest, remaining, turn_tokens)
        if (
            self._material.span.whole and unused_tokens >= 0
        ):  # the history fits: it is not cut for other facts
            past_budget = min(past_budget, unused_tokens)
        newest_choices = choose_newest_suffix(newest, remaining - past_budget)
        if unused_tokens < 0:  # the newest messages leave tokens because the next one does not fit
            included_tokens = sum(choice.candidate.tokens for choice in newest_choices if choice.included)
            past_budget = max(past_budget, remaining - included_tokens)
        shown_ids = _included_ids([*pinned, *newest_choices])
        answers = [
            candidate for candidate in candidates.past if shown_ids.isdisjoint(_ids_of_candidate(candidate))
        ]
        empty_block = [chat_messages.render_recalled_text("")]
        overhead = (
            chat_messages.count_message_tokens(empty_block, self._counter) - chat_messages.PRIMER_TOKENS
        )
        past_items, past_choices = yield from fit_to_budget(
            lambda limit: divide_budget(answers, (), limit, 0.0, self._request.external_share),
            max(0, past_budget - overhead),
            self._counter,
            self._text_frame,
            self._request.query,
            candidates.trims,
            with_days=candidates.has_several_days,
        )
        if past_items:
            remaining -= overhead + sum(item.token_count for item in past_items)
        excerpt_ids = _find_excerpt_ids(past_items)
        window = self._choose_newest(
            newest, remaining, {item.id for item in past_items if item.id not in excerpt_ids}
        )
        shown_ids = _included_ids(window)
        whole_ids = _included_ids([choice for choice in window if choice.rule != "cut"])
        return _Selection(
            window,
            [
                item
                for item in past_items
                if item.id not in (whole_ids if item.id in excerpt_ids else shown_ids)
            ],
            _drop_choices(past_choices, shown_ids),
            _drop_choices(candidates.rejected, shown_ids),
        )

    def _choose_newest(
        self, newest: Sequence[Candidate], budget: int, recalled_ids: AbstractSet[str] = frozenset()
    ) -> list[Choice]:
        """Choose the newest messages within a budget; a long one is cut, or left out if it is recalled whole.

        A question often refers to such a message, a document or the output of a tool, and also to what came before it.
        """
        if not newest:
            return []
        choices = self._choose_whole(newest, budget)
        unused_tokens = budget - _count_included(choices)
        for index in reversed(range(len(choices))):
            candidate = choices[index].candidate
            is_summary = candidate.unit.entries[0].kind is Kind.SUMMARY
            is_recalled = not recalled_ids.isdisjoint(_ids_of_candidate(candidate))
            if choices[index].included or is_summary or is_recalled:
                continue
            if candidate.tokens <= unused_tokens:
                choices[index] = Choice(candidate, True, "window", "among the newest messages that fit")
                unused_tokens -= candidate.tokens
                continue
            limit = _limit_tokens(unused_tokens, newest[:index])
            if limit < LEAST_SHOWN:
                break
            choices[index], tokens = self._cut_candidate(candidate, limit)
            unused_tokens -= tokens
        return choices

    def _choose_whole(self, newest: Sequence[Candidate], budget: int) -> list[Choice]:
        """Choose the newest messages that fit a budget whole; the latest is cut if it leaves nothing for the others."""
        latest = newest[-1]
        if latest.tokens > budget:
            choice, tokens = self._cut_candidate(latest, _limit_tokens(budget, newest[:-1]))
            if tokens:
                shortened = latest._replace(tokens=tokens)
                return [*choose_newest_suffix([*newest[:-1], shortened], budget)[:-1], choice]
        return choose_newest_suffix(newest, budget)

    def _cut_candidate(self, candidate: Candidate, limit: int) -> tuple[Choice, int]:
        """Return the choice of a message cut to a limit, and its tokens; it is left out if nothing of it fits."""
        choice = Choice(candidate, True, "cut", "too long to be shown whole", limit)
        tokens = sum(item.token_count for item in render_choice(choice, self._counter, self._frame))
        if tokens:
            return choice, tokens
        reason = f"needs {candidate.tokens} tokens, and cannot be cut to {limit}"
        return Choice(candidate, False, "budget", reason), 0

    def _explain_choices(
        self, selection: _Selection, choices: Sequence[Choice], items: Sequence[ContextItem]
    ) -> ContextItems:
        """Return the items a prompt shows, with a reason for every entry that was considered."""
        material, request = self._material, self._request
        decided_ids: set[str] = set()
        for choice in (*selection.past_choices, *selection.rejected_choices):
            decided_ids.update(_ids_of_candidate(choice.candidate))
        window_choices = _drop_choices(choices, decided_ids)
        shown_items = [*selection.items, *items]
        ranked, candidates = material.ranked, material.candidates
        if ranked is not None and candidates is not None:
            return build_recall_result(
                ranked,
                replace(candidates, rejected=selection.rejected_choices),
                shown_items,
                [*selection.past_choices, *window_choices],
                request.budget,
                ranked.warnings,
                material.facts,
            )
        span = material.span
        return ContextItems(
            shown_items,
            budget=request.budget,
            ledger=build_choice_ledger(window_choices, span.hidden, list_cut_warnings(items)),
            context=span.context,
            version=span.version,
        )


def _limit_tokens(available: int, others: Sequence[Candidate]) -> int:
    """Return the tokens that a long message may have: half of those available, or all that others do not need."""
    return max(available // 2, available - sum(candidate.tokens for candidate in others))


def _write_messages(
    items: Sequence[ContextItem], recalled_items: Sequence[ContextItem], counter: TokenCounter
) -> tuple[chat_messages.ChatMessages, int]:
    """Return the messages, with recalled text before the newest user message, and their tokens."""
    messages = chat_messages.render_chat_messages(items)
    if recalled_items:
        text = chat_messages.render_recalled_text(join_items(map(note_current_fact, recalled_items)))
        shown_ids = tuple(item.id for item in recalled_items if item.content)
        messages.show(text, shown_ids, at=_before_last_turn(messages))
    if not messages:
        return messages, 0
    media_tokens = chat_messages.media_tokens_by_ref(items)
    return messages, chat_messages.count_message_tokens(messages, counter, media_tokens)


def _share_of_past(newest: Sequence[Candidate], remaining: int, turn_tokens: int) -> int:
    """Return the tokens that answers from the past may take: their share, but not those of the newest turn."""
    has_summary = any(candidate.unit.entries[0].kind is Kind.SUMMARY for candidate in newest)
    share = RECALL_SHARE - SUMMARIES_SHARE if has_summary else RECALL_SHARE
    newest_tokens = max(turn_tokens, min(newest[-1].tokens, LEAST_SHOWN) if newest else 0)
    return max(0, min(int(max(0, remaining) * share), remaining - newest_tokens))


def _drop_choices(choices: Sequence[Choice], ids: AbstractSet[str]) -> list[Choice]:
    """Return choices without those of entries with some ids."""
    return [choice for choice in choices if ids.isdisjoint(_ids_of_candidate(choice.candidate))]


def _count_included(choices: Sequence[Choice]) -> int:
    """Return the tokens of the messages and summaries that are shown."""
    total = 0
    for choice in choices:
        if choice.included:
            total += min(choice.candidate.tokens, choice.max_tokens or choice.candidate.tokens)
    return total


def _included_ids(choices: Sequence[Choice]) -> set[str]:
    """Return the ids of the entries that some choices show."""
    return {id for choice in choices if choice.included for id in _ids_of_candidate(choice.candidate)}


def _ids_of_candidate(candidate: Candidate) -> list[str]:
    return [entry.id for entry in candidate.unit.entries]


def _before_last_turn(messages: Sequence[Mapping[str, Json]]) -> int:
    """Return the index of the newest user message; the end when there is none."""
    for index in range(len(messages) - 1, -1, -1):
        if messages[index]["role"] == "user":
            return index
    return len(messages)
