"""Make a request that is too long fit, out of slices of the client's own body.

The prompt builder decides which messages are shown and what is recalled. Here its decision is mapped back to the
client's messages, which are sent word for word or not at all, and the result is counted and checked.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from acms.errors import FitError
from acms.gateway.config import GatewayConfig
from acms.gateway.json_spans import remove_list_elements
from acms.gateway.protocols import Protocol
from acms.gateway.protocols.base import Element
from acms.gateway.requests import ClientRequest
from acms.ports import Codec
from acms.prompt import Prompt, Rendered
from acms.prompt_types import Count
from acms.providers.codecs.request_count import CountingCodec
from acms.results import Synced
from acms.session import ACMS

__all__ = [
    "Trimmed",
    "TrimmingError",
    "TrimmingState",
    "count_body",
    "newest_question",
    "trim_request",
    "why_not_searched",
]

_BEGINNING = "(Earlier messages of this conversation are left out here.)"
_INSERTED = re.compile(r"<(system-reminder|recalled)>.*?</\1>", re.DOTALL)
_QUERY_CHARS = 8_000
"""Characters of a question that are searched for."""
_SHORTEST_QUESTION = 8
"""Characters from which on a prompt is searched for in other sessions: shorter ones, such as "go on", ask nothing."""
_MARGIN = 0.97
"""Share of a corrected budget that the next render is given: counts do not grow in proportion."""
_GROWTH_STEP = 0.6
"""Share of the free tokens below which the prompt builder is given all of them anew."""
_TRIES = 6
"""Renders of one request. Each one has the budget that the one before exceeded taken off."""


class TrimmingError(Exception):
    """A request cannot be made to fit; the client's own bytes are sent."""


@dataclass(slots=True, kw_only=True)
class TrimmingState:
    """State that the next request of a line takes over from this one."""

    #: The budget, and the tokens of it that the prompt builder was given. Both stay the same as long as its prompts
    #: fit, because another number moves the messages and loses the provider's cache.
    budget: int = 0
    builder_budget: int = 0
    #: Chain digest of the list with which the current left-out beginning was first sent; and that beginning.
    since: str = ""
    left_out: str = ""
    #: Number of messages at the beginning that are always shown; -1 before it is decided. It does not change later,
    #: because all messages after them would move.
    preamble: int = -1
    #: Whether text of the gateway is in the list: it stays there in later requests.
    has_notes: bool = False

    def choose_builder_budget(self, budget: int, free: int) -> None:
        """Choose the tokens for the prompt builder out of those that system text and tools leave free."""
        # Corrections only lower the builder's budget: a single high count must not keep it low for good.
        is_far_below = self.builder_budget < free * _GROWTH_STEP
        if self.budget != budget or is_far_below:
            self.budget = budget
            self.builder_budget = free


@dataclass(slots=True, kw_only=True)
class Trimmed:
    """A request within the budget."""

    text: str
    #: None until it is counted.
    count: Count | None = None
    #: Indexes of the client's messages that are sent, and texts of the gateway by the index they stand behind.
    sent_indexes: list[int]
    notes: list[tuple[int, str]]
    #: The entries that the notes show.
    recalled: list[str] = field(default_factory=list[str])
    rendered: Rendered
    renders: int = 1

    @property
    def tokens(self) -> int:
        """Tokens of the request, an upper bound."""
        return 0 if self.count is None else self.count.upper_bound


async def count_body(codec: Codec, fields: Mapping[str, Any]) -> Count:
    """Count a request as it is sent; a budget is compared with the upper bound."""
    assert isinstance(codec, CountingCodec)
    return await codec.count_request(fields)


def newest_question(request: ClientRequest) -> str:
    """Return the end of the user's newest text, without parts that the client or ACMS inserted, or ""."""
    for item in reversed(request.items):
        text = _INSERTED.sub("", request.protocol.user_text(item)).strip()
        if text:
            clean = text.replace("\0", "").encode("utf-8", "replace").decode()
            return clean[-_QUERY_CHARS:]
    return ""


def why_not_searched(request: ClientRequest, config: GatewayConfig) -> str:
    """Return why nothing is searched for when a request is made to fit; "" if something is."""
    if config.recall == "off":
        return "recall is off"
    return "" if newest_question(request) else "the user asks nothing"


async def trim_request(
    request: ClientRequest,
    session: ACMS,
    synced: Synced,
    codec: Codec,
    config: GatewayConfig,
    budget: int,
    state: TrimmingState,
) -> Trimmed:
    """Return the request with messages left out and notes added, so that it fits `budget` tokens.

    The prompt is rendered with a smaller builder budget until the whole request fits. Raises `TrimmingError` if it does
    not fit or would break a rule of the provider.
    """
    protocol = request.protocol
    layout = _Layout(request, synced)
    # A list of messages must not be empty, so the shortest message takes the place of all.
    without_messages = await count_body(codec, _with_items(request, [_shortest_message(protocol)]))
    fixed_tokens = without_messages.upper_bound
    budget_for_messages = budget - fixed_tokens
    if budget_for_messages <= 0:
        raise TrimmingError("the system text and the tools alone exceed the budget")
    state.choose_builder_budget(budget, budget_for_messages)
    trimmed: Trimmed | None = None
    for attempt in range(1, _TRIES + 1):
        try:
            rendered = await _render_prompt(request, session, codec, config, layout, state)
        except FitError:
            break  # later attempts have even fewer tokens
        trimmed = layout.compose(rendered, state)
        trimmed.renders = attempt
        trimmed.count = await count_body(codec, json.loads(trimmed.text))
        if trimmed.tokens <= budget:
            break
        tokens_of_messages = max(1, trimmed.tokens - fixed_tokens)
        state.builder_budget = int(state.builder_budget * _MARGIN * budget_for_messages / tokens_of_messages)
    if trimmed is None or trimmed.tokens > budget:
        raise TrimmingError("the required messages exceed the budget")
    if len(request.items) - 1 not in trimmed.sent_indexes:
        raise TrimmingError("the newest message would be left out")
    state.has_notes = bool(trimmed.notes)
    problem = protocol.find_problem(json.loads(trimmed.text)[protocol.list_field])
    if problem:
        raise TrimmingError(problem)
    return trimmed


async def _render_prompt(
    request: ClientRequest,
    session: ACMS,
    codec: Codec,
    config: GatewayConfig,
    layout: _Layout,
    state: TrimmingState,
) -> Rendered:
    """Render the session's history, and recalled text if it is searched, within the builder budget."""
    preamble_ids = layout.preamble(session, state)
    prompt = Prompt(codec).history(session, only=layout.ids, first=preamble_ids)
    if not why_not_searched(request, config):
        question = newest_question(request)
        prompt = prompt.recall(session, question, **_recall_options(config, question, state.builder_budget))
    return await prompt.render(state.builder_budget)


def _recall_options(config: GatewayConfig, question: str, budget: int) -> dict[str, Any]:
    """Return where a recall looks, and how much it may show."""
    # At most a quarter: more recalled text would leave less for the next turns, and the beginning would move sooner.
    tokens = min(config.recall_tokens, budget // 4)
    if config.recall != "namespace" or len(question) < _SHORTEST_QUESTION:
        return {"scope": "session", "tokens": tokens}
    return {"scope": "namespace", "tokens": tokens, "min_relevance": config.min_relevance}


def _with_items(request: ClientRequest, items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {**request.body.fields, request.protocol.list_field: list(items)}


def _shortest_message(protocol: Protocol) -> Mapping[str, Any]:
    message: Mapping[str, Any] = json.loads(protocol.write_note("."))
    return message


class _Layout:
    """The list of a request: its groups, its entries in the log, its beginning."""

    def __init__(self, request: ClientRequest, synced: Synced) -> None:
        self._request = request
        self._protocol = request.protocol
        self._ids = synced.ids
        self._index = {id: index for index, ids in enumerate(synced.ids) for id in ids}
        self._groups = _group_messages(request.protocol, request.items)
        self._ends = {group: index for index, group in enumerate(self._groups)}
        self._sizes = Counter(self._groups)
        #: Ids of the entries of all messages in the list.
        self.ids = list(self._index)

    def preamble(self, session: ACMS, state: TrimmingState) -> list[str]:
        """Return the ids of the entries before the first reply.

        If these take over a quarter of the builder budget, return only those of the instructions.
        """
        if state.preamble < 0:
            state.preamble = self._preamble_end()
        newest_index = len(self._request.items) - 1
        indexes = list(range(min(state.preamble, newest_index)))  # never with the newest message
        text = "".join([self._request.body.slice(index) for index in indexes])
        tokens = session.counter.count(text.encode("utf-8", "replace").decode())
        if tokens > state.builder_budget // 4:
            indexes = [index for index in indexes if self._protocol.instructs(self._request.items[index])]
        return [id for index in indexes for id in self._ids[index]]

    def _preamble_end(self) -> int:
        replies = self._request.position.replies
        newest_index = len(self._request.items) - 1
        return min(replies[0], newest_index) if replies else newest_index

    def compose(self, rendered: Rendered, state: TrimmingState) -> Trimmed:
        """Return the request with the messages and notes of a rendered prompt."""
        shown_indexes: set[int] = set()
        notes: list[tuple[int, str]] = []  # index of the message before the note, and its text
        recalled: list[str] = []
        previous = -1
        for message in rendered.placed:
            if message.text.lstrip().startswith("<recalled"):
                notes.append((previous, message.text))
                recalled += message.sources
                continue
            for id in message.sources:
                if id in self._index:
                    previous = self._index[id]
                    shown_indexes.add(previous)
        sent_indexes = self._close_groups(shown_indexes)
        notes = [(self._end_of_group(index), text) for index, text in notes]
        elements, notes = self._write(sent_indexes, notes, state)
        return Trimmed(
            text=self._request.body.with_elements(elements),
            sent_indexes=sent_indexes,
            notes=notes,
            recalled=recalled,
            rendered=rendered,
        )

    def _close_groups(self, shown_indexes: set[int]) -> list[int]:
        """Return the indexes of all messages in the groups of the shown ones, in order.

        A message outside a group that has no entry in the log is sent if the message before it is.
        """
        shown_groups = {self._groups[index] for index in shown_indexes}
        sent_indexes: list[int] = []
        is_sent = True
        for index, group in enumerate(self._groups):
            is_alone = self._sizes[group] == 1
            has_entry = bool(self._ids[index])
            if has_entry or not is_alone:
                is_sent = group in shown_groups
            if is_sent:
                sent_indexes.append(index)
        return sent_indexes

    def _end_of_group(self, index: int) -> int:
        """Return the last message of the group of a message: nothing is inserted inside."""
        return index if index < 0 else self._ends[self._groups[index]]

    def _write(
        self, sent_indexes: Sequence[int], notes: list[tuple[int, str]], state: TrimmingState
    ) -> tuple[list[str], list[tuple[int, str]]]:
        """Return all that is sent, each message and note as JSON, and the notes themselves.

        A note is (index of the message before it, text). If the protocol must begin with the user and the first message
        is a reply, a note is added in front.
        """
        items = self._request.items
        first_with_thinking = self._first_with_thinking(sent_indexes, state)
        first_index = sent_indexes[0] if sent_indexes else 0
        first_spoken_index = next(
            (index for index in sent_indexes if not self._protocol.instructs(items[index])), first_index
        )
        begins_with_note = any(index < first_spoken_index for index, _ in notes)
        # A note in front already is a message of the user.
        needs_user = self._protocol.begins_with_user and self._protocol.is_reply(items[first_spoken_index])
        if needs_user and not begins_with_note:
            notes = [(-1, _BEGINNING), *notes]
        write_note = self._protocol.write_note
        elements = [Element("user", write_note(text)) for index, text in notes if index < first_index]
        marks = self._move_cache_marks(sent_indexes)
        for index in sent_indexes:
            message = self._write_message(index, strips=index < first_with_thinking)
            if index in marks:
                message = self._protocol.with_cache_mark(message, marks[index])
            elements.append(Element(str(items[index].get("role")), message))
            elements += [Element("user", write_note(text)) for previous, text in notes if previous == index]
        return self._protocol.arrange(elements), notes

    def _move_cache_marks(self, sent_indexes: Sequence[int]) -> dict[int, str]:
        """Return the cache marks of omitted messages by the index of the next sent message, which gets the mark.

        A message with its own mark gets no other, so there are never more marks than the client set.
        """
        marks: dict[int, str] = {}
        pending_mark = ""
        sent_index_set = set(sent_indexes)
        for index, item in enumerate(self._request.items):
            own_mark = self._protocol.cache_mark(item)
            if index not in sent_index_set:
                pending_mark = own_mark or pending_mark
                continue
            if pending_mark and not own_mark:
                message = self._request.body.slice(index)
                can_have_mark = self._protocol.with_cache_mark(message, pending_mark) != message
                if not can_have_mark:
                    continue  # the mark goes to the next message
                marks[index] = pending_mark
            pending_mark = ""
        return marks

    def _write_message(self, index: int, *, strips: bool) -> str:
        """Return the JSON of a message as the client wrote it, or with `strips` without its thinking.

        A message that has only thinking keeps it.
        """
        message = self._request.body.slice(index)
        item = self._request.items[index]
        thinking = self._protocol.thinking_blocks(item) if strips else []
        has_only_thinking = bool(thinking) and len(thinking) == len(item["content"])
        if not thinking or has_only_thinking:
            return message
        return remove_list_elements(message, "content", thinking)

    def _first_with_thinking(self, sent_indexes: Sequence[int], state: TrimmingState) -> int:
        """Return the index of the first message that keeps its thinking; 0 if no message is left out.

        Providers check thinking against the messages before it. Thinking is kept in the current tool loop, and in all
        messages since the same beginning of the conversation was first left out.
        """
        chains = self._request.position.chains
        indexes_left_out = set(range(len(chains))).difference(sent_indexes)
        left_out = chains[max(indexes_left_out)] if indexes_left_out else ""
        loop_start = self._start_of_loop()
        if left_out != state.left_out:  # from now on only the current tool loop keeps its thinking
            state.left_out = left_out
            state.since = chains[loop_start]
        if not indexes_left_out:
            return 0
        if state.since not in chains:
            return loop_start
        return min(loop_start, chains.index(state.since))

    def _start_of_loop(self) -> int:
        """Return the index of the user's newest message that is no tool result, or 0."""
        for index in reversed(range(len(self._request.items))):
            item = self._request.items[index]
            if item.get("role") == "user" and not self._protocol.result_ids(item):
                return index
        return 0


def _group_messages(protocol: Protocol, items: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the group number of each message: calls belong with their results, reasoning with the next message."""
    groups = list(range(len(items)))
    group_of_call: dict[str, int] = {}
    for index, item in enumerate(items):
        if index and protocol.binds_to_next(items[index - 1]):
            groups[index] = groups[index - 1]
        for call in protocol.call_ids(item):
            group_of_call[call] = groups[index]
        for call in protocol.result_ids(item):
            groups[index] = group_of_call.get(call, groups[index])
    return groups
