"""A whole prompt: the history when it fits, else its newest messages and the past messages that match the query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as given
from functools import partial
from typing import TYPE_CHECKING

from acms.errors import TokenBudgetExceededError
from acms.log.in_force import Unit
from acms.model import Entry, Json, Kind, Role
from acms.ports import Frame, TokenCounter
from acms.prompt.cache_window import FAR
from acms.recall.pipeline import (
    Gathered,
    Gone,
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
    Steps,
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
    from acms.recall.candidates import Offer
    from acms.recall.fact_candidates import Known

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

    gathered: Gathered
    lead: Sequence[Unit[Entry]]
    rest: Sequence[Unit[Entry]]
    past: tuple[Ranked, Offer] | None = None
    known: Sequence[Known] = ()
    #: Labels of some of these units, by id.
    told: Mapping[str, str] = given(default_factory=dict[str, str])


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
    from acms.recall.pipeline import Beside, gather_known_facts
    from acms.recall.ranking import CANDIDATES

    frame = chat_messages.ChatFrame(reader.counter)
    while True:
        gathered = await _gather_turn(reader, context, at, frame, asked.budget)
        lead = await load_instructions(reader.storage, reader.stage, gathered)
        led = {entry.version for unit in lead for entry in unit.entries}
        sequence = (*gathered.older, *gathered.units)
        rest = [unit for unit in sequence if unit.entries[0].version not in led]
        past: tuple[Ranked, Offer] | None = None
        known = Beside()
        cost = await off_loop(partial(cost_of, gathered.units, frame), len(gathered.units) * EACH)
        fits = gathered.whole and cost + chat_messages.PRIMER <= asked.budget
        if not fits or (asked.profile and await reader.indexes.profiles.find(asked.profile) is not None):
            size = CANDIDATES + len(rest)
            found = await rank_log(
                reader, context, gathered.version, asked.query, size, asked.markers, asked.weights
            )
            known = await gather_known_facts(reader, found, asked)
            if fits:  # everything else is there as it was said
                known = replace(known, known=[one for one in known.known if one.context != context])
            terms = Terms(
                answers_only=True,
                shown=led,
                episode=False,
                stale=found.stale,
                profile=known.stale,
                labels=found.labels(asked.moment),
            )
            offered = await off_loop(
                partial(collect_candidates, found.field, found.ranking, terms, reader.frame), size
            )
            learned = collect_fact_candidates(known.known, terms, reader.frame)
            past = found, merge_candidate_sets([learned, offered])
        moment = asked.moment or gathered.newest
        told = await load_labels(reader.indexes, context, gathered.version, moment)
        material = Material(gathered, lead, rest, past, known.known, told.by_id(rest, lead))
        try:
            return await run_plan(
                plan_chat(material, asked, reader.counter, reader.frame), reader, asked.budget
            )
        except Gone as gone:
            assert past is not None  # else nothing is asked for
            remove_gone_content(reader, gone, past[0], known)


async def _gather_turn(
    reader: Reader, context: str, at: int | None, frame: chat_messages.ChatFrame, budget: int
) -> Gathered:
    """Read the newest messages that a budget could hold, and on to the message that began the newest turn."""
    wanted = budget
    while True:
        gathered = await gather_newest(reader.storage, context, at, frame, wanted, reader.stage)
        units = gathered.units
        if (
            gathered.whole
            or wanted > FAR * budget
            or not _ends_with_call(units)
            or _find_turn_start(units) < len(units)
        ):
            return gathered
        wanted *= 4


def _ends_with_call(units: Sequence[Unit[Entry]]) -> bool:
    """Return whether the newest unit is a call of a tool with its answer."""
    return bool(units) and len(units[-1].entries) > 1


def _find_turn_start(units: Sequence[Unit[Entry]]) -> int:
    """Return the message of the user that calls of tools came after since; the number of units when there is none."""
    place = len(units)
    while (
        _ends_with_call(units) and place and units[place - 1].entries[0].role in (Role.ASSISTANT, Role.TOOL)
    ):
        place -= 1
    begun = 0 < place < len(units) and units[place - 1].entries[0].role is Role.USER
    return place - 1 if begun else len(units)


def plan_chat(material: Material, asked: Recall, counter: TokenCounter, text: Frame) -> Steps[ChatPlan]:
    """Choose and write a prompt within the budget."""
    limit = asked.budget
    if material.past is not None:
        from acms.recall.rerank import Reranked, rerank_candidates

        past, offered = material.past
        if asked.rerank:
            warnings = list(past.warnings)
            question = Reranked(query=asked.query, most=asked.rerank, external_share=asked.external_share)
            offered = yield from rerank_candidates(offered, question, warnings)
            past = replace(past, warnings=tuple(warnings))
        material = replace(material, past=(past, offered))
    while True:
        plan = yield from _plan_chat(material, asked, counter, text, limit)
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


def _plan_chat(
    material: Material, asked: Recall, counter: TokenCounter, text: Frame, limit: int
) -> Steps[ChatPlan]:
    frame = chat_messages.ChatFrame(counter)
    leading = [build_window_candidate(unit, frame, material.told) for unit in material.lead]
    newest = [build_window_candidate(unit, frame, material.told) for unit in material.rest]
    kept = [Choice(one, True, "keep", "a leading system message") for one in leading]
    room = limit - (chat_messages.PRIMER if leading or newest else 0) - sum(one.tokens for one in leading)
    turn = _find_turn_start(material.rest)
    own = sum(one.tokens for one in newest[turn:])
    if own and own > room * 2 / 3 and newest[turn].tokens <= room // 2:
        question = newest.pop(turn)
        kept.append(Choice(question, True, "keep", "what the newest turn began with"))
        room -= question.tokens
        own = room // 2
    chosen = _Chosen(choose_newest_suffix(newest, room))
    if material.past is not None:
        chosen = yield from _choose_past(material, asked, counter, text, newest, kept, room, own)
    choices = [*kept, *chosen.window]
    items = [item for choice in choices if choice.included for item in render_choice(choice, counter, frame)]
    if items and items[-1].truncated and not items[-1].token_count:
        raise _too_much(asked.budget, max(asked.budget + 1, limit - room + newest[-1].tokens))
    written = chat_messages.render_chat_messages(items)
    if chosen.items:
        recalled = chat_messages.render_recalled_text(join_items(chosen.items))
        shown = tuple(item.id for item in chosen.items if item.content)
        written.show(recalled, shown, at=_before_last_turn(written))
    tokens = (
        chat_messages.count_message_tokens(written, counter, chat_messages.media_tokens_by_ref(items))
        if written
        else 0
    )
    return ChatPlan(written, tokens, _explain_choices(material, asked, chosen, choices, items))


def _choose_past(
    material: Material,
    asked: Recall,
    counter: TokenCounter,
    text: Frame,
    newest: Sequence[Candidate],
    kept: Sequence[Choice],
    room: int,
    own: int,
) -> Steps[_Chosen]:
    """Choose answers from the past within their share, then the newest messages in the remaining tokens.

    `own` is the number of tokens of the newest turn, which calls tools and is not cut for the past.
    """
    assert material.past is not None
    offered = material.past[1]
    summarised = any(one.unit.entries[0].kind is Kind.SUMMARY for one in newest)
    reserved = int(max(0, room) * (RECALL_SHARE - SUMMARIES_SHARE * summarised))
    reserved = max(0, min(reserved, room - own))
    left = room - sum(one.tokens for one in newest)
    if material.gathered.whole and left >= 0:  # the history fits: it is not cut for other facts
        reserved = min(reserved, left)
    newer = choose_newest_suffix(newest, room - reserved)
    if left < 0:  # what the newest messages leave because the next one does not fit
        reserved = max(reserved, room - sum(one.candidate.tokens for one in newer if one.included))
    narrow = _entry_ids([*kept, *newer])
    answers = [one for one in offered.past if narrow.isdisjoint(entry.id for entry in one.unit.entries)]
    overhead = (
        chat_messages.count_message_tokens([chat_messages.render_recalled_text("")], counter)
        - chat_messages.PRIMER
    )
    found, chosen = yield from fit_to_budget(
        lambda limit: divide_budget(answers, (), limit, 0.0, asked.external_share),
        max(0, reserved - overhead),
        counter,
        text,
        asked.query,
        offered.trims,
        dated=offered.dated,
    )
    window = choose_newest_suffix(
        newest, room - (overhead + sum(item.token_count for item in found) if found else 0)
    )
    shown = _entry_ids(window)
    return _Chosen(
        window,
        [item for item in found if item.id not in shown],
        [choice for choice in chosen if shown.isdisjoint(_ids_of_choice(choice))],
        [choice for choice in offered.rejected if shown.isdisjoint(_ids_of_choice(choice))],
    )


def _explain_choices(
    material: Material,
    asked: Recall,
    chosen: _Chosen,
    choices: Sequence[Choice],
    items: Sequence[ContextItem],
) -> ContextItems:
    """Return the items a prompt shows, with a reason for every entry that was considered."""
    decided = {id for choice in (*chosen.past, *chosen.rejected) for id in _ids_of_choice(choice)}
    windowed = [choice for choice in choices if decided.isdisjoint(_ids_of_choice(choice))]
    shown = [*chosen.items, *items]
    if material.past is not None:
        past, offered = material.past
        return build_recall_result(
            past,
            replace(offered, rejected=chosen.rejected),
            shown,
            [*chosen.past, *windowed],
            asked.budget,
            past.warnings,
            material.known,
            asks=bool(chosen.window) and _repeats_query(chosen.window[-1].candidate, asked.query),
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


def _entry_ids(choices: Sequence[Choice]) -> set[str]:
    """Return the ids that some choices show."""
    return {id for choice in choices if choice.included for id in _ids_of_choice(choice)}


def _ids_of_choice(choice: Choice) -> list[str]:
    """Return the ids of a choice."""
    return [entry.id for entry in choice.candidate.unit.entries]


def _before_last_turn(written: Sequence[Mapping[str, Json]]) -> int:
    """Return the index of the newest user message; the end when there is none."""
    for index in range(len(written) - 1, -1, -1):
        if written[index]["role"] == "user":
            return index
    return len(written)
