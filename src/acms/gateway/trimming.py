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
    """What the next request of a line needs to know of this one."""

    #: The budget, and the tokens of it that the prompt builder was given. They stay the same as long as what it makes
    #: of them fits: another number begins a new placement, and costs the provider's cache.
    budget: int = 0
    builder_budget: int = 0
    #: Chain digest of the list with which the current left-out beginning was first sent; and that beginning.
    since: str = ""
    left_out: str = ""
    #: How many messages at the beginning are always shown; -1 before that is decided. It stays: to pin another one
    #: moves all that follow.
    preamble: int = -1
    #: Whether text of the gateway is in the list: it stays there in later requests.
    has_notes: bool = False

    def choose_builder_budget(self, budget: int, free: int) -> None:
        """Choose the tokens for the prompt builder out of those that system text and tools leave free."""
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
    sent: list[int]
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
    """Count a request as it is sent; the upper bound is what a budget is compared with."""
    assert isinstance(codec, CountingCodec)
    return await codec.count_request(fields)


def newest_question(request: ClientRequest) -> str:
    """Return what the user asked last, without what the client or ACMS put into it."""
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
    """Return a request within the budget; raise `TrimmingError` when there is none."""
    protocol = request.protocol
    layout = _Layout(request, synced)
    frame = await count_body(codec, _with_items(request, [_shortest_message(protocol)]))
    fixed = frame.upper_bound
    if fixed >= budget:
        raise TrimmingError("the system text and the tools alone exceed the budget")
    state.choose_builder_budget(budget, budget - fixed)
    trimmed: Trimmed | None = None
    for number in range(1, _TRIES + 1):
        try:
            rendered = await _render(request, session, codec, config, layout, state)
        except FitError:
            break
        trimmed = layout.compose(rendered, state)
        trimmed.renders = number
        trimmed.count = await count_body(codec, json.loads(trimmed.text))
        if trimmed.tokens <= budget:
            break
        state.builder_budget = int(
            state.builder_budget * _MARGIN * (budget - fixed) / max(1, trimmed.tokens - fixed)
        )
    if trimmed is None or trimmed.tokens > budget:
        raise TrimmingError("what must be shown exceeds the budget")
    if len(request.items) - 1 not in trimmed.sent:
        raise TrimmingError("the newest message would be left out")
    state.has_notes = bool(trimmed.notes)
    problem = protocol.find_problem(json.loads(trimmed.text)[protocol.list_field])
    if problem:
        raise TrimmingError(problem)
    return trimmed


async def _render(
    request: ClientRequest,
    session: ACMS,
    codec: Codec,
    config: GatewayConfig,
    layout: _Layout,
    state: TrimmingState,
) -> Rendered:
    """Let the prompt builder decide what is shown within its tokens."""
    first = layout.preamble(session, state)
    prompt = Prompt(codec).history(session, only=layout.ids, first=first)
    if not why_not_searched(request, config):
        question = newest_question(request)
        prompt = prompt.recall(session, question, **_recall_options(config, question, state.builder_budget))
    return await prompt.render(state.builder_budget)


def _recall_options(config: GatewayConfig, question: str, budget: int) -> dict[str, Any]:
    """Return where a recall looks, and how much it may show."""
    tokens = min(config.recall_tokens, budget // 4)
    if config.recall != "namespace" or len(question) < _SHORTEST_QUESTION:
        return {"scope": "session", "tokens": tokens}
    return {"scope": "namespace", "tokens": tokens, "min_relevance": config.min_relevance}


def _with_items(request: ClientRequest, items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {**request.body.fields, request.protocol.list_field: list(items)}


def _shortest_message(protocol: Protocol) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(protocol.write_note("."))
    return found


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
        #: Entries of the list.
        self.ids = list(self._index)

    def preamble(self, session: ACMS, state: TrimmingState) -> list[str]:
        """Return the entries before the first reply, or only its instructions when they take over a quarter."""
        if state.preamble < 0:
            state.preamble = self._preamble_end()
        end = min(state.preamble, len(self._request.items) - 1)
        written = "".join([self._request.body.slice(index) for index in range(end)])
        indexes = list(range(end))
        if session.counter.count(written.encode("utf-8", "replace").decode()) > state.builder_budget // 4:
            indexes = [index for index in indexes if self._protocol.instructs(self._request.items[index])]
        return [id for index in indexes for id in self._ids[index]]

    def _preamble_end(self) -> int:
        replies = self._request.position.replies
        last = len(self._request.items) - 1
        return min(replies[0], last) if replies else last

    def compose(self, rendered: Rendered, state: TrimmingState) -> Trimmed:
        """Return the request that shows what the prompt builder decided."""
        shown: set[int] = set()
        notes: list[tuple[int, str]] = []
        recalled: list[str] = []
        newest = -1
        for message in rendered.placed:
            if message.text.lstrip().startswith("<recalled"):
                notes.append((newest, message.text))
                recalled += message.sources
                continue
            for id in message.sources:
                if id in self._index:
                    newest = self._index[id]
                    shown.add(newest)
        sent = self._close_groups(shown)
        notes = [(self._end_of_group(index), text) for index, text in notes]
        elements, notes = self._write(sent, notes, state)
        return Trimmed(
            text=self._request.body.with_elements(elements),
            sent=sent,
            notes=notes,
            recalled=recalled,
            rendered=rendered,
        )

    def _close_groups(self, shown: set[int]) -> list[int]:
        """Return the messages of all groups of which some are shown; what has no entry goes with the one before it."""
        groups = {self._groups[index] for index in shown}
        sent: list[int] = []
        previous_sent = True
        for index in range(len(self._request.items)):
            is_sent = self._groups[index] in groups
            is_alone = self._sizes[self._groups[index]] == 1
            if is_alone and not self._ids[index]:
                is_sent = previous_sent
            if is_sent:
                sent.append(index)
            previous_sent = is_sent
        return sent

    def _end_of_group(self, index: int) -> int:
        """Return the last message of the group of a message: nothing is inserted inside."""
        return index if index < 0 else self._ends[self._groups[index]]

    def _write(
        self, sent: Sequence[int], notes: list[tuple[int, str]], state: TrimmingState
    ) -> tuple[list[str], list[tuple[int, str]]]:
        """Return the elements of the list as JSON, and the notes among them."""
        stripped = self._strip_thinking_until(sent, state)
        first = sent[0] if sent else 0
        begins_with_note = any(index < first for index, _ in notes)
        needs_user = self._protocol.begins_with_user and self._protocol.is_reply(self._request.items[first])
        if needs_user and not begins_with_note:
            notes = [(-1, _BEGINNING), *notes]
        elements = [self._protocol.write_note(text) for index, text in notes if index < first]
        marks = self._move_cache_marks(sent)
        for index in sent:
            written = self._write_message(index, strips=index < stripped)
            if index in marks:
                written = self._protocol.with_cache_mark(written, marks[index])
            elements.append(written)
            elements += [self._protocol.write_note(text) for place, text in notes if place == index]
        return elements, notes

    def _move_cache_marks(self, sent: Sequence[int]) -> dict[int, str]:
        """Return the cache marks of messages that are left out, by the next message that is sent.

        A message that has a mark of its own gets no other one, so there are never more marks than the client set.
        """
        marks: dict[int, str] = {}
        pending = ""
        is_sent = set(sent)
        for index, item in enumerate(self._request.items):
            own = self._protocol.cache_mark(item)
            if index not in is_sent:
                pending = own or pending
                continue
            if pending and not own:
                written = self._request.body.slice(index)
                if self._protocol.with_cache_mark(written, pending) == written:
                    continue  # the next one may have it
                marks[index] = pending
            pending = ""
        return marks

    def _write_message(self, index: int, *, strips: bool) -> str:
        """Return a message as the client wrote it, or without thinking that has lost its prefix."""
        written = self._request.body.slice(index)
        item = self._request.items[index]
        thinking = self._protocol.thinking_blocks(item) if strips else []
        if not thinking or len(thinking) == len(item["content"]):
            return written
        return remove_list_elements(written, "content", thinking)

    def _strip_thinking_until(self, sent: Sequence[int], state: TrimmingState) -> int:
        """Return the index before which thinking is dropped: what stood before it is not sent any more.

        Thinking of the current tool loop stays, and thinking that was made since the same beginning was left out.
        """
        chains = self._request.position.chains
        left = set(range(len(chains))).difference(sent)
        left_out = chains[max(left)] if left else ""
        loop = self._start_of_loop()
        if left_out != state.left_out:
            state.left_out = left_out
            state.since = chains[loop]
        if not left or state.since not in chains:
            return loop if left else 0
        return min(loop, chains.index(state.since))

    def _start_of_loop(self) -> int:
        """Return the index of the newest message of the user that answers no call."""
        for index in range(len(self._request.items) - 1, -1, -1):
            item = self._request.items[index]
            if item.get("role") == "user" and not self._protocol.result_ids(item):
                return index
        return 0


def _group_messages(protocol: Protocol, items: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return for each message the number of its group: calls with their results, reasoning with what it led to."""
    groups = list(range(len(items)))
    callers: dict[str, int] = {}
    for index, item in enumerate(items):
        if index and protocol.binds_to_next(items[index - 1]):
            groups[index] = groups[index - 1]
        for call in protocol.call_ids(item):
            callers[call] = groups[index]
        for call in protocol.result_ids(item):
            groups[index] = callers.get(call, groups[index])
    return groups
