"""A whole prompt: the history when it fits, else its newest messages and the past messages that match the query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from dataclasses import field as given
from functools import partial
from typing import TYPE_CHECKING

from acms.errors import TokenBudgetExceededError
from acms.log.in_force import EntryGroup
from acms.model import Entry, Json, Kind, Role
from acms.ports import Frame, TokenCounter
from acms.prompt.cache_window import MOST_BUDGETS_SEARCHED
from acms.prompt.tool_outputs import LEAST_SHOWN
from acms.recall.pipeline import (
    Gone,
    LogSpan,
    build_recall_result,
    build_window_candidate,
    cost_of,
    gather_newest,
    list_cut_warnings,
    load_instructions,
    load_labels,
    rank_log,
    remove_gone_content,
    run_plan,
)
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
from acms.recall.request import Ranked, Reader, Recall
from acms.recall.selection import divide_budget
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

    gathered: LogSpan
    leading: Sequence[EntryGroup[Entry]]
    rest: Sequence[EntryGroup[Entry]]
    ranked: Ranked | None = None
    candidates: CandidateSet | None = None
    facts: Sequence[FactIndex] = ()
    #: Labels of some of these units, by id.
    labels: Mapping[str, str] = given(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The decisions about the newest messages, and the recalled items shown with them."""

    window: list[Choice]
    items: Sequence[ContextItem] = ()
    past: Sequence[Choice] = ()
    rejected: Sequence[Choice] = ()


async def chat_plan(reader: Reader, context: str, at: int | None, asked: Recall) -> ChatPlan:
    """Write the whole history when it fits, else the newest messages and, before the last turn, recalled ones.

    Leading system and developer messages stay. Recalled text goes right before the newest user message, so the text
    before it is the same from turn to turn. `TokenBudgetExceededError` when not even the newest unit fits.
    """
    from acms.recall.candidates import (
        Terms,
        collect_candidates,
        collect_fact_candidates,
        merge_candidate_sets,
    )
    from acms.recall.pipeline import KnownFacts, gather_known_facts
    from acms.recall.ranking import CANDIDATES

    frame = chat_messages.ChatFrame(reader.counter)
    while True:
        gathered = await _gather_turn(reader, context, at, frame, asked.budget)
        leading = await load_instructions(reader.storage, reader.redactor, gathered)
        leading_versions = {entry.version for unit in leading for entry in unit.entries}
        units = (*gathered.older, *gathered.units)
        rest = [unit for unit in units if unit.entries[0].version not in leading_versions]
        ranked: Ranked | None = None
        candidates: CandidateSet | None = None
        known = KnownFacts()
        cost = await off_loop(partial(cost_of, gathered.units, frame), len(gathered.units) * EACH)
        fits = gathered.whole and cost + chat_messages.PRIMER <= asked.budget
        needs_recall = not fits
        if fits and asked.profile:
            needs_recall = await reader.indexes.profiles.find(asked.profile) is not None
        if needs_recall:
            size = CANDIDATES + len(rest)  # the shown messages are ranked too, but are no candidates
            ranked = await rank_log(
                reader, context, gathered.version, asked.query, size, asked.markers, asked.weights
            )
            known = await gather_known_facts(reader, ranked, asked)
            if fits:  # the facts of this log are left out: the messages they were made from are shown
                known = replace(known, known=[fact for fact in known.known if fact.context != context])
            terms = Terms(
                answers_only=True,
                shown=leading_versions,
                episode=False,
                stale=ranked.stale,
                profile=known.stale,
                labels=ranked.labels(asked.moment),
            )
            collect = partial(collect_candidates, ranked.corpus, ranked.ranking, terms, reader.frame)
            messages = await off_loop(collect, size)
            facts = collect_fact_candidates(known.known, terms, reader.frame)
            candidates = merge_candidate_sets(facts, messages)
        moment = asked.moment or gathered.newest
        labels = await load_labels(reader.indexes, context, gathered.version, moment)
        shown = labels.by_id(rest, leading)
        material = Material(gathered, leading, rest, ranked, candidates, known.known, shown)
        try:
            steps = plan_chat(material, asked, reader.counter, reader.frame)
            return await run_plan(steps, reader, asked.budget)
        except Gone as gone:
            assert ranked is not None  # else nothing is asked for
            remove_gone_content(reader, gone, ranked, known)


async def _gather_turn(
    reader: Reader, context: str, at: int | None, frame: chat_messages.ChatFrame, budget: int
) -> LogSpan:
    """Read the newest messages that a budget could hold, and on to the question before them if they are tool calls."""
    wanted = budget
    while True:
        gathered = await gather_newest(reader.storage, context, at, frame, wanted, reader.redactor)
        units = gathered.units
        # Only a turn that ends with tool calls can begin further back.
        has_turn_start = not _ends_with_call(units) or _find_turn_start(units) is not None
        if gathered.whole or has_turn_start or wanted > MOST_BUDGETS_SEARCHED * budget:
            return gathered
        wanted *= 4


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


def plan_chat(material: Material, asked: Recall, counter: TokenCounter, text: Frame) -> PlanSteps[ChatPlan]:
    """Choose and write a prompt within the budget; try again with less while the written messages exceed it."""
    if material.ranked is not None and material.candidates is not None and asked.rerank:
        from acms.recall.rerank import rerank_candidates

        warnings = list(material.ranked.warnings)
        candidates = yield from rerank_candidates(material.candidates, asked, warnings)
        ranked = replace(material.ranked, warnings=tuple(warnings))
        material = replace(material, ranked=ranked, candidates=candidates)
    limit = asked.budget
    while True:
        plan = yield from _plan_within(material, asked, counter, text, limit)
        over = plan.tokens - asked.budget
        if over <= 0:
            return plan
        limit -= over
        if limit <= 0:
            raise _too_much(asked.budget, plan.tokens)


def _too_much(budget: int, required: int) -> TokenBudgetExceededError:
    return TokenBudgetExceededError(
        budget=budget, required=required, options=("raise the budget", "shorten the leading system messages")
    )


def _plan_within(
    material: Material, asked: Recall, counter: TokenCounter, text: Frame, limit: int
) -> PlanSteps[ChatPlan]:
    """Choose and write a prompt whose messages, each counted alone, have at most `limit` tokens.

    Shown are the leading system messages (`kept`), the newest messages, and answers from the past before the question.
    """
    frame = chat_messages.ChatFrame(counter)
    leading = [build_window_candidate(unit, frame, material.labels) for unit in material.leading]
    newest = [build_window_candidate(unit, frame, material.labels) for unit in material.rest]
    kept = [Choice(candidate, True, "keep", "a leading system message") for candidate in leading]
    room = limit - sum(candidate.tokens for candidate in leading)
    if leading or newest:
        room -= chat_messages.PRIMER
    turn_start = _find_turn_start(material.rest)
    turn_tokens = 0
    if turn_start is not None:
        turn_tokens = sum(candidate.tokens for candidate in newest[turn_start:])
    if turn_start is not None and _belongs_in_front(newest[turn_start], turn_tokens, room):
        question = newest.pop(turn_start)
        kept.append(Choice(question, True, "keep", "what the newest turn began with"))
        room -= question.tokens
        turn_tokens = room // 2
    chosen = _Chosen(_show_cut(choose_newest_suffix(newest, room), room))
    if material.candidates is not None:
        chosen = yield from _choose_past(
            material, material.candidates, asked, counter, text, newest, kept, room, turn_tokens
        )
    choices = [*kept, *chosen.window]
    items = [item for choice in choices if choice.included for item in render_choice(choice, counter, frame)]
    if items and items[-1].truncated and not items[-1].token_count:
        raise _too_much(asked.budget, max(asked.budget + 1, limit - room + newest[-1].tokens))
    written, tokens = _write_messages(items, chosen.items, counter)
    return ChatPlan(written, tokens, _explain_choices(material, asked, chosen, choices, items))


def _belongs_in_front(question: Candidate, turn_tokens: int, room: int) -> bool:
    """Return whether a turn is too long to be shown whole, so that its question goes in front of its newest part."""
    is_long_turn = turn_tokens > room * 2 / 3
    return is_long_turn and question.tokens <= room // 2


def _write_messages(
    items: Sequence[ContextItem], recalled: Sequence[ContextItem], counter: TokenCounter
) -> tuple[chat_messages.ChatMessages, int]:
    """Return the messages, with recalled text before the newest user message, and their tokens."""
    written = chat_messages.render_chat_messages(items)
    if recalled:
        text = chat_messages.render_recalled_text(join_items(recalled))
        shown_ids = tuple(item.id for item in recalled if item.content)
        written.show(text, shown_ids, at=_before_last_turn(written))
    if not written:
        return written, 0
    media_tokens = chat_messages.media_tokens_by_ref(items)
    return written, chat_messages.count_message_tokens(written, counter, media_tokens)


def _choose_past(
    material: Material,
    candidates: CandidateSet,
    asked: Recall,
    counter: TokenCounter,
    text: Frame,
    newest: Sequence[Candidate],
    kept: Sequence[Choice],
    room: int,
    turn_tokens: int,
) -> PlanSteps[_Chosen]:
    """Choose answers from the past within their share, then the newest messages in the remaining tokens.

    `kept` are shown in any case, `room` are the tokens left beside them. `turn_tokens` are those of the newest turn
    if it calls tools: it is not cut for the past.
    """
    has_summary = any(candidate.unit.entries[0].kind is Kind.SUMMARY for candidate in newest)
    share = RECALL_SHARE - SUMMARIES_SHARE if has_summary else RECALL_SHARE
    reserved = max(0, min(int(max(0, room) * share), room - turn_tokens))
    left = room - sum(candidate.tokens for candidate in newest)
    if material.gathered.whole and left >= 0:  # the history fits: it is not cut for other facts
        reserved = min(reserved, left)
    newer = choose_newest_suffix(newest, room - reserved)
    if left < 0:  # the newest messages leave tokens because the next one does not fit
        included = sum(choice.candidate.tokens for choice in newer if choice.included)
        reserved = max(reserved, room - included)
    shown_ids = _included_ids([*kept, *newer])
    answers = [one for one in candidates.past if shown_ids.isdisjoint(_ids_of_candidate(one))]
    empty_block = [chat_messages.render_recalled_text("")]
    overhead = chat_messages.count_message_tokens(empty_block, counter) - chat_messages.PRIMER
    found, past = yield from fit_to_budget(
        lambda limit: divide_budget(answers, (), limit, 0.0, asked.external_share),
        max(0, reserved - overhead),
        counter,
        text,
        asked.query,
        candidates.trims,
        dated=candidates.dated,
    )
    if found:
        room -= overhead + sum(item.token_count for item in found)
    window = _show_cut(choose_newest_suffix(newest, room), room, {item.id for item in found})
    shown_ids = _included_ids(window)
    return _Chosen(
        window,
        [item for item in found if item.id not in shown_ids],
        [choice for choice in past if shown_ids.isdisjoint(_ids_of_candidate(choice.candidate))],
        [
            choice
            for choice in candidates.rejected
            if shown_ids.isdisjoint(_ids_of_candidate(choice.candidate))
        ],
    )


def _show_cut(window: list[Choice], room: int, recalled: AbstractSet[str] = frozenset()) -> list[Choice]:
    """Return the newest messages with a part of the first one that did not fit, unless an answer in it is recalled.

    A question often refers to it: to a document, or to the output of a tool.
    """
    left = room - sum(choice.candidate.tokens for choice in window if choice.included)
    excluded = [index for index, choice in enumerate(window) if choice.rule == "budget"]
    if not excluded or left < LEAST_SHOWN:
        return window
    one = window[excluded[-1]].candidate
    is_summary = one.unit.entries[0].kind is Kind.SUMMARY
    if is_summary or not recalled.isdisjoint(_ids_of_candidate(one)):
        return window
    window[excluded[-1]] = Choice(one, True, "cut", "too long to be shown whole", left)
    return window


def _explain_choices(
    material: Material,
    asked: Recall,
    chosen: _Chosen,
    choices: Sequence[Choice],
    items: Sequence[ContextItem],
) -> ContextItems:
    """Return the items a prompt shows, with a reason for every entry that was considered."""
    decided = {
        id for choice in (*chosen.past, *chosen.rejected) for id in _ids_of_candidate(choice.candidate)
    }
    windowed = [choice for choice in choices if decided.isdisjoint(_ids_of_candidate(choice.candidate))]
    shown = [*chosen.items, *items]
    ranked, candidates = material.ranked, material.candidates
    if ranked is not None and candidates is not None:
        repeats = bool(chosen.window) and _repeats_query(chosen.window[-1].candidate, asked.query)
        return build_recall_result(
            ranked,
            replace(candidates, rejected=chosen.rejected),
            shown,
            [*chosen.past, *windowed],
            asked.budget,
            ranked.warnings,
            material.facts,
            asks=repeats,
        )
    gathered = material.gathered
    return ContextItems(
        shown,
        budget=asked.budget,
        ledger=build_choice_ledger(windowed, gathered.hidden, list_cut_warnings(items)),
        context=gathered.context,
        version=gathered.version,
    )


def _repeats_query(one: Candidate, query: str) -> bool:
    last = one.unit.entries[-1]
    return isinstance(last, Entry) and last.content.strip() == query.strip()


def _included_ids(choices: Sequence[Choice]) -> set[str]:
    """Return the ids of the entries that some choices show."""
    return {id for choice in choices if choice.included for id in _ids_of_candidate(choice.candidate)}


def _ids_of_candidate(candidate: Candidate) -> list[str]:
    return [entry.id for entry in candidate.unit.entries]


def _before_last_turn(written: Sequence[Mapping[str, Json]]) -> int:
    """Return the index of the newest user message; the end when there is none."""
    for index in range(len(written) - 1, -1, -1):
        if written[index]["role"] == "user":
            return index
    return len(written)
