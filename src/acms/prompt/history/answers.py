"""The search for what answers the question of a prompt, beside a history that shows a part of it already."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from acms.log.encoding import parse_entry_id
from acms.model import Context, Entry, Role, Source, ToolCall
from acms.plan.nodes import MessageGroup, Piece
from acms.ports import Codec, TokenCounter
from acms.prompt import excerpts
from acms.prompt.history import cache_window
from acms.prompt.history.earlier_calls import SHORT_CALL
from acms.prompt.resolve import find_last_turn
from acms.prompt.steps import Readable, RecallStep
from acms.recall.selection import USER_WORDS_REASON
from acms.results import ContextItem, ContextItems, is_external
from acms.text import condense
from acms.text.records import Record, split_outermost, split_records
from acms.text.tokenizer import content_terms, split_words

ANSWERS_SHARE = 0.2
"""Share of the budget that the outputs of a turn leave, at most, for what answers its question."""
USER_WORDS_SHARE = 0.15
"""Share of the budget for short messages of the user in the log of an agent, at most."""
MAX_USER_WORDS = 1_000
"""Tokens for them, at most."""
MAX_RECALL_TOKENS = 6_000
"""Tokens that a turn recalls at most: a larger budget holds more turns, which share their recalls."""
SCORE_SHARE = 0.6
"""Share of a recall that is filled by score alone; beyond it an item needs `LEAST_RELEVANCE`."""
LEAST_RELEVANCE = 0.2
"""Share of the best relevance that an item needs beyond `SCORE_SHARE`."""
NEGATIONS = frozenset(
    "no not never none nothing without nor t n't nicht kein keine nie pas jamais nunca não non ne".split()
)
"""Words with which a message that holds the words of a fact says something else."""
LEAST_DROPPED = 40
"""Characters that a recalled text must repeat before they are dropped: a mark takes some, too."""

_BREAK = re.compile(rf"{condense.MARK.pattern}|\n")


class Answers(NamedTuple):
    """What was found for a question: recalled items, and the pieces of a block that quote them."""

    items: Sequence[ContextItem] = ()
    pieces: tuple[Piece, ...] = ()

    def without_entries(self, ids: AbstractSet[str]) -> Answers:
        """Return the answers without the pieces that quote one of some entries."""
        pieces = tuple([piece for piece in self.pieces if ids.isdisjoint(piece.sources)])
        kept_ids = {id for piece in pieces for id in piece.sources}
        return Answers([item for item in self.items if item.id in kept_ids], pieces)


@dataclass(kw_only=True, eq=False)
class AnswerSearch:
    """Searches the past for one question. Results are kept, so a second attempt at a request repeats no search."""

    step: RecallStep
    session: Readable
    codec: Codec
    #: Tokens of the prompt for history and recall together.
    budget: int
    #: Returns the tokens of some pieces as one message.
    block_cost: Callable[[tuple[Piece, ...]], int]
    #: Recalls within so many tokens.
    search: Callable[[int], Awaitable[ContextItems]]

    #: The items recalled last, for the ledger.
    items: ContextItems | None = field(default=None, init=False)
    _items_by_tokens: dict[int, ContextItems] = field(default_factory=dict, init=False)
    #: The last answered message of a log, by the id of the log.
    _last_turns: dict[str, Entry | None] = field(default_factory=dict, init=False)
    #: Tokens within which answers were searched for `measure`; 0 before.
    _measured_tokens: int = field(default=0, init=False)
    _turn_ids: frozenset[str] = field(default=frozenset(), init=False)

    def __post_init__(self) -> None:
        self._frame_cost = excerpts.cost_of_frame(self.codec)

    @property
    def max_tokens(self) -> int:
        """Tokens that may be recalled for a turn."""
        if self.step.tokens is not None:
            return self.step.tokens
        return min(int(self.session.effort * self.budget), MAX_RECALL_TOKENS)

    @property
    def tokens_to_measure(self) -> int:
        """Tokens within which answers are searched to learn how many tokens they need."""
        tokens = int(self.budget * ANSWERS_SHARE) + tokens_for_user_words(self.budget)
        return min(tokens, self.max_tokens)

    async def find(
        self, budget: int, visible: Mapping[str, str], context: Context | None, *, take_all: bool = False
    ) -> Answers:
        """Return answers of at most `budget` tokens that are not visible yet; a search finds visible ones too.

        `visible` has the shown text of entries by id, `context` is the log of the session. With `take_all` everything
        that fits is returned; otherwise answers far below the best are left out.
        """
        if self.step.tokens is not None:
            budget = min(budget, self.step.tokens)
        if budget <= self._frame_cost:
            self.items = None
            return Answers()
        if self._measured_tokens > budget:  # a search within the budget finds a part of what was measured
            answers = await self._find_unseen(self._measured_tokens, visible, context)
            answers = answers.without_entries(self._turn_ids)
            if answers.pieces and self.block_cost(answers.pieces) <= budget:
                return answers
        tokens = budget
        while tokens > self._frame_cost:
            answers = await self._find_unseen(tokens, visible, context, take_all=take_all)
            excess = self.block_cost(answers.pieces) - budget
            if excess <= 0:
                return answers
            # Search again for less; in proportion if the marks around each piece are a large part of the excess.
            tokens = tokens - excess if excess < tokens // 2 else tokens * budget // (budget + excess) - 1
        return Answers()

    async def _find_unseen(
        self, tokens: int, visible: Mapping[str, str], context: Context | None, *, take_all: bool = False
    ) -> Answers:
        """Return the answers found within some tokens, frame included, without what is visible."""
        items: Sequence[ContextItem] = await self._search_cached(tokens - self._frame_cost)
        if not take_all:
            items = _select_answers(items, int(tokens * SCORE_SHARE))
        return await self._quote_unseen(drop_repeated_facts(items), visible, context)

    async def drop_visible(
        self, answers: Answers, visible: Mapping[str, str], context: Context | None
    ) -> Answers:
        """Return answers without what is visible now that more of the history is shown."""
        has_results = any(item.role is Role.TOOL for item in answers.items)
        if not has_results and all(item.id not in visible for item in answers.items):
            return answers
        return await self._quote_unseen(answers.items, visible, context)

    async def _quote_unseen(
        self, items: Sequence[ContextItem], visible: Mapping[str, str], context: Context | None
    ) -> Answers:
        """Return items as answers without what is visible."""
        counter = self.codec.counter
        unseen = _drop_visible_text(items, visible, counter)
        _complete_tool_calls(items, unseen, counter)
        unseen_items: list[ContextItem] = []
        for group in _group_items(items):
            unseen_group = [unseen[item.id] for item in group if item.id in unseen]
            if not _is_bare_question(unseen_group, group):
                unseen_items += unseen_group
        last_turn = None
        if context is not None and unseen_items:
            if context.id not in self._last_turns:
                self._last_turns[context.id] = await find_last_turn(self.session, context)
            last_turn = self._last_turns[context.id]
        same_counter = counter.name == self.session.counter.name
        pieces = excerpts.write_pieces(unseen_items, context, same_counter=same_counter, last_turn=last_turn)
        return Answers(unseen_items, pieces)

    async def measure(self, turn: Sequence[MessageGroup], context: Context | None) -> int:
        """Return the tokens to keep free for what answers the question of a turn beside tool calls.

        These are the tokens of the best answers within `ANSWERS_SHARE` of the budget, without the turn itself, whose
        earlier calls are named apart.
        """
        self._measured_tokens = 0
        self._turn_ids = cache_window.visible_ids(turn)
        if self.tokens_to_measure <= self._frame_cost:
            return 0
        self._measured_tokens = self.tokens_to_measure
        answers = await self._find_unseen(self.tokens_to_measure, {}, context)
        return self.block_cost(answers.without_entries(self._turn_ids).pieces)

    async def measure_unseen(self, visible: Mapping[str, str], context: Context | None) -> int:
        """Return the tokens of the best answers within `ANSWERS_SHARE` of the budget that are not visible."""
        if self.tokens_to_measure <= self._frame_cost:
            return 0
        answers = await self._find_unseen(self.tokens_to_measure, visible, context)
        return self.block_cost(answers.pieces)

    def forget(self) -> None:
        """Forget the results, because the log may have changed."""
        self._items_by_tokens.clear()
        self._last_turns.clear()
        self._measured_tokens = 0

    async def _search_cached(self, tokens: int) -> ContextItems:
        """Search the past within a number of tokens, and note the result in `items`."""
        if tokens not in self._items_by_tokens:
            self._items_by_tokens[tokens] = await self.search(tokens)
        self.items = self._items_by_tokens[tokens]
        return self.items


def _drop_visible_text(
    items: Sequence[ContextItem], visible: Mapping[str, str], counter: TokenCounter
) -> dict[str, ContextItem]:
    """Return items by id with the text that is not visible, without those of which all is.

    Of a line in several outputs of a log the newest is shown.
    """
    unseen: dict[str, ContextItem] = {}
    known_texts = [(parse_entry_id(id), text) for id, text in visible.items()]
    for item in sorted(items, key=lambda item: item.version, reverse=True):
        text = _drop_visible_lines(item.content, visible.get(item.id))
        own_id = parse_entry_id(item.id) if item.role is Role.TOOL else None
        if own_id is not None:
            newer_texts = [known for id, known in known_texts if id and id[0] == own_id[0] and id > own_id]
            text = _drop_repeated_lines(text, newer_texts)
            known_texts.append((own_id, text))
        if text:
            unseen[item.id] = item if text == item.content else _replace_content(item, text, counter)
    return unseen


def _complete_tool_calls(
    items: Sequence[ContextItem], unseen: dict[str, ContextItem], counter: TokenCounter
) -> None:
    """Drop calls whose results are all visible from `unseen`, and name a visible call whose result is not."""
    answered = {_group_of(item) for item in items if item.role is Role.TOOL}
    still_answered = {_group_of(item) for item in unseen.values() if item.role is Role.TOOL}
    for item in items:
        calls = [part for part in item.parts if isinstance(part, ToolCall)]
        if calls and _group_of(item) in answered - still_answered:
            unseen.pop(item.id, None)
        elif calls and item.id not in unseen and _group_of(item) in still_answered:
            unseen[item.id] = _name_calls(item, calls, counter)


def _covers_content(text: str | None, content: str) -> bool:
    """Return whether the shown text of an entry (None if not shown) contains the content a recall would add."""
    if text is None:
        return False
    if not condense.MARK.search(text):
        return True
    return all(fragment.strip() in text for fragment in _BREAK.split(content))


def _drop_visible_lines(content: str, shown_text: str | None) -> str:
    """Return a recalled text without the lines that its entry shows already; "" if it shows every line.

    `shown_text` is the shown text of the entry, None if there is none. Between lines that are not shown, an indented
    line is only dropped with everything below the same line at the outermost depth: no object loses a part.
    """
    if shown_text is None:
        return content
    if _covers_content(shown_text, content):
        return ""
    records = split_records(content)
    is_visible = [_text_of_records(content, [record]) in shown_text for record in records]
    if all(is_visible):
        return ""
    first, last = is_visible.index(False), len(records) - 1 - is_visible[::-1].index(False)
    kept: list[int] = []
    for part in split_outermost(records):
        if _text_of_records(content, records[part.start : part.stop]) not in shown_text:
            kept += [index for index in part if first <= index <= last]
    return _keep_records(content, records, kept)


def _drop_repeated_lines(content: str, newer_texts: Sequence[str]) -> str:
    """Return the output of a tool without long lines that newer texts show too, with the lines indented below them."""
    newer_lines = {line for text in newer_texts for line in text.split("\n")}
    if newer_lines.isdisjoint(content.split("\n")):
        return content
    records = split_records(content)
    kept: list[int] = []
    for part in split_outermost(records):
        text = _text_of_records(content, records[part.start : part.stop])
        is_repeated = len(text) >= LEAST_DROPPED and any(text in newer_text for newer_text in newer_texts)
        if text and not is_repeated:  # marks are set again
            kept += part
    return _keep_records(content, records, kept)


def _text_of_records(content: str, records: Sequence[Record]) -> str:
    """Return successive records of a text without marks around them."""
    return condense.MARK.sub("", content[records[0].start : records[-1].end]).strip()


def _keep_records(content: str, records: Sequence[Record], kept: Sequence[int]) -> str:
    """Return a text with marks for the records that are not kept; unchanged if that saves too little."""
    kept_size = sum([records[index].end - records[index].start for index in kept])
    if len(content) - kept_size < LEAST_DROPPED:
        return content
    text = condense.join_records(content, records, kept)
    return text if condense.MARK.sub("", text).strip() else ""


def _group_of(item: ContextItem) -> tuple[str | None, str | None]:
    """Return the tool call to which an item belongs, and its session."""
    return item.group, item.session_id


def _replace_content(item: ContextItem, content: str, counter: TokenCounter) -> ContextItem:
    """Return an item with a part of its content."""
    saved_tokens = counter.count(item.content) - counter.count(content)
    return replace(item, content=content, token_count=item.token_count - saved_tokens)


def _name_calls(item: ContextItem, calls: Sequence[ToolCall], counter: TokenCounter) -> ContextItem:
    """Return an item with nothing but its calls, whose arguments are short."""
    short_calls = [
        replace(call, arguments=condense.condense_arguments(call.arguments, SHORT_CALL, counter))
        for call in calls
    ]
    names = "\n".join([f"{call.name}({call.arguments})" for call in short_calls])
    return replace(_replace_content(item, names, counter), parts=tuple(short_calls))


def find_repetitions(items: Sequence[ContextItem], query: str) -> set[str]:
    """Return the ids of the messages of the user that only repeat a query; one with its answer says more."""
    return {
        item.id
        for item in items
        if item.role is Role.USER and item.exchange is None and item.content.strip() == query.strip()
    }


def tokens_for_user_words(budget: int) -> int:
    """Return the tokens for short messages of the user in the log of an agent, of a budget for history and recall."""
    return min(int(budget * USER_WORDS_SHARE), MAX_USER_WORDS)


def _select_answers(items: Sequence[ContextItem], min_tokens: int) -> list[ContextItem]:
    """Return the items worth showing, in their order: a recall fills its budget even with items that say little.

    The items with the best scores are chosen until they take `min_tokens` tokens. After that an item needs a share of
    the best relevance (`LEAST_RELEVANCE`). Items that are shown as the user's own words are always chosen. The messages
    of one tool call are one item, and so are a question and its answer.
    """
    best_first = sorted(_group_items(items), key=lambda group: -max(item.score for item in group))
    best_relevance = max((item.relevance for item in items), default=0.0)
    selected_ids: set[str] = set()
    tokens = 0
    for group in best_first:
        relevance = max(item.relevance for item in group)
        is_user_words = any(item.why.endswith(USER_WORDS_REASON) for item in group)
        is_needed = tokens < min_tokens or relevance >= LEAST_RELEVANCE * best_relevance
        if not is_needed and not is_user_words:
            continue
        selected_ids.update(item.id for item in group)
        tokens += sum(item.token_count for item in group)
    return [item for item in items if item.id in selected_ids]


def _group_items(items: Sequence[ContextItem]) -> list[list[ContextItem]]:
    """Return items in groups: a tool call with its results, a question with its answer, or a single item."""
    groups: dict[str, list[ContextItem]] = {}
    for item in items:
        key = item.exchange or item.group or item.id
        groups.setdefault(key, []).append(item)
    return list(groups.values())


def _is_bare_question(shown: Sequence[ContextItem], group: Sequence[ContextItem]) -> bool:
    """Return whether of a question with its answer only the question is left to show."""
    return len(group) == 2 and [item.id for item in shown] == [group[0].exchange]


def drop_repeated_facts(items: Sequence[ContextItem]) -> list[ContextItem]:
    """Drop facts whose words all occur in one short message that is recalled too; a fact of one word stays.

    Not because of a question, a negation or external text: these hold the words without stating the fact.
    """
    if all(item.source is not Source.FACT for item in items):
        return list(items)
    messages: list[set[int]] = []
    for item in items:
        if item.source is Source.FACT or item.group is not None or is_external(item):
            continue
        words = split_words(item.content)
        is_statement = "?" not in item.content and NEGATIONS.isdisjoint(words)
        terms = set(content_terms(words))
        if is_statement and len(terms) <= 60:  # a longer text holds many words by chance
            messages.append(terms)
    kept_items: list[ContextItem] = []
    for item in items:
        if item.source is Source.FACT:
            terms = set(content_terms(split_words(item.content)))
            if len(terms) > 1 and any(terms <= message for message in messages):
                continue
        kept_items.append(item)
    return kept_items
