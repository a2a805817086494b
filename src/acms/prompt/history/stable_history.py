"""A history that only grows at its end from request to request, with recalled passages among it.

`acms.prompt.history.cache_window` says what is stored of it, `acms.prompt.history.reader` reads the log, and
`acms.prompt.history.new_window` chooses what a window shows that begins. This module continues a window while it fits,
and stores the positions once there is a prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from acms.log.encoding import is_fact_id, parse_entry_id
from acms.model import Context
from acms.plan.nodes import ComposedMessage, FittedPrompt, MessageGroup, Piece
from acms.ports import HasRecords
from acms.prompt import excerpts
from acms.prompt import steps as content
from acms.prompt.history import cache_window
from acms.prompt.history.answers import AnswerSearch
from acms.prompt.history.cache_window import Block, CacheWindow, WindowRecord, load_window_entries
from acms.prompt.history.new_window import MIN_FILLED_SHARE, NewWindow
from acms.prompt.history.placed import HistoryRead, PlacedHistory, find_missing_question
from acms.prompt.history.reader import HistoryReader, HistoryRequest, run_cut
from acms.prompt.history.tool_outputs import CallCutter
from acms.prompt.resolve import LogRead
from acms.runtime.threads import off_loop
from acms.text.chat_messages import EXCERPTS, EXCERPTS_AMONG, EXCERPTS_OF_TURN, FACTS, MORE_EXCERPTS


class StableHistory:
    """The history and recalled passages of one render: `place` chooses them, `commit` stores their positions."""

    def __init__(self, request: HistoryRequest, *, record_name: str, prompt_budget: int) -> None:
        self._request = request
        #: None if the prompt recalls nothing.
        self.answers = request.answers
        #: Name of the record, which identifies the shape of the prompt.
        self._record_name = record_name
        #: Budget of the whole prompt.
        self._prompt_budget = prompt_budget
        self._cutter = CallCutter(
            request.codec, budget=request.budget, condensed_tokens=request.condensed_tokens
        )
        self._reader = HistoryReader(request, self._cutter)
        self._context: Context | None = None
        storage = request.session.storage
        keeps_position = self.answers is None or self.answers.step.keeps_position
        is_stored = keeps_position and request.session.ends_at is None
        #: The store of the positions; None if they are not stored.
        self._records = storage if is_stored and isinstance(storage, HasRecords) else None
        #: None if nothing is stored.
        self._record: WindowRecord | None = None
        #: The stored window of this budget, which a new one replaces.
        self._previous: CacheWindow | None = None
        #: Whether a new window must begin because the stored one did not fit, and whether one began in this render.
        self._must_begin = False
        self._began = False

    @property
    def warnings(self) -> list[str]:
        """Warnings for the caller about the last placement."""
        record_warnings = [] if self._record is None else self._record.warnings
        return [*self._reader.warnings, *record_warnings]

    # ── the stored window ───────────────────────────────────────────────────────────────────────────────────────────

    async def _load_window(self, context: Context) -> CacheWindow | None:
        """Return the stored window of this log or of the nearest ancestor, or None if what it shows has changed."""
        if self._records is None:
            return None
        self._record = WindowRecord(self._records, self._record_name, self._prompt_budget)
        window = await self._record.load(context)
        self._previous = self._record.own_window
        if window is None:
            return None
        if await self._asks_another_question(window, context):
            # It is no next turn of the stored window, by whose turns `_reserve` must not judge it.
            self._previous = None
            return None
        entries = await load_window_entries(self._request.session, window, context)
        if entries is None:
            return None
        self._request.entries.update(entries)
        return window

    async def _asks_another_question(self, window: CacheWindow, context: Context) -> bool:
        """Return whether a question without tools is not the one of the newest block, but nothing was written since.

        Then a new window begins, and nothing of the stored one has to be read.
        """
        request, answers = self._request, self.answers
        is_asked_at_end = request.question_follows and not request.has_tools
        if answers is None or not window.blocks or not is_asked_at_end:
            return False
        newest = window.blocks[-1]
        if newest.tag == cache_window.tag_of_query(answers.step.query):
            return False
        head = await request.session.storage.head(context.id)
        return head.version == newest.after

    async def commit(self, placed: PlacedHistory, fitted: FittedPrompt, path: str, request_hash: str) -> bool:
        """Store the positions; return False if the history must be placed again.

        It must if another process stored other positions meanwhile, or if the fit left out entries of a continued
        window. `request_hash` is "" if the provider does not bind reasoning to a request. A store that cannot be
        written costs the next request its cache, not this one.
        """
        window = placed.window
        if window is None or self._context is None or self._record is None:
            return True
        lost_ids = cache_window.list_lost_entries(fitted, path)
        if lost_ids and not self._began:
            self._must_begin = True
            return False
        if lost_ids:
            window = cache_window.drop_lost_entries(window, placed.nodes, lost_ids)
        if request_hash and request_hash not in window.request_hashes:
            # The hashes of 400 requests are enough for any turn, and small in the record.
            window = window._replace(request_hashes=(*window.request_hashes, request_hash)[-400:])
        if window == self._previous:
            return True
        is_stored = await self._record.store(self._context.id, window, replaces=self._began)
        if not is_stored and self.answers is not None:
            self.answers.forget()  # the log may have grown, too
        return is_stored

    # ── placing ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def place(self) -> PlacedHistory:
        """Continue the stored window, or begin one if there is none or it no longer fits."""
        self._reader.warnings.clear()
        context_id = await self._request.session.context_id()
        if context_id is None:
            return await self._place_without_log()
        self._context = await self._request.session.storage.context(context_id)
        window = await self._load_window(self._context)
        self._began = False
        previous_groups: Sequence[MessageGroup] = ()
        if window is not None and not self._must_begin:
            history = await self._reader.read_window(window)
            placed = await self._continue(window, history)
            if placed is not None and self._shows_enough(placed, window):
                return placed
            previous_groups = history.groups
        self._began = True
        return await self._begin(previous_groups)

    async def _place_without_log(self) -> PlacedHistory:
        """Show matches from other sessions for a session without messages."""
        pieces: tuple[Piece, ...] = ()
        if self.answers is not None:
            pieces = (await self.answers.find(self._request.budget, {}, None, take_all=True)).pieces
        return PlacedHistory((self._write_block(pieces),) if pieces else (), None, None)

    async def _continue(self, window: CacheWindow, history: HistoryRead) -> PlacedHistory | None:
        """Add the content of the newest turn after the content already shown; None if it does not fit."""
        if not self._has_same_labels(window, history):
            return None
        cut_result = await run_cut(partial(self._cut_new_outputs, window, history), history.groups)
        if cut_result is None:
            return None
        groups, limits = cut_result
        window = window._replace(outputs=tuple(sorted(limits.items())))
        history = history._replace(groups=groups)
        index = self._request.find_turn_start(history)
        answers = self.answers
        if answers is not None and not cache_window.has_recalled(answers.step.query, window, groups, index):
            extended_window = await self._add_block(window, history, index, answers)
            if extended_window is None:
                return None
            window = extended_window
        placed = self._lay_out(window, history)
        return placed if self._request.cost(placed.nodes) <= self._request.budget else None

    async def _add_block(
        self, window: CacheWindow, history: HistoryRead, index: int, answers: AnswerSearch
    ) -> CacheWindow | None:
        """Return a window with a block for the newest question; None if it does not fit."""
        groups = history.groups
        recall_budget = answers.max_tokens
        block_positions = [cache_window.index_after_version(groups, block.after) for block in window.blocks]
        if index < len(groups) - 1 and index in block_positions:
            # Something else is asked in the middle of a turn: its block goes behind everything written so far.
            index = len(groups)
            recall_budget = min(recall_budget, int(self._tokens_left(window, history) / 2))
        if any(position >= index for position in block_positions):
            # Nothing was written since the newest block, so this request asks something else of the same log. It is
            # no next turn of the stored window, by whose turns `_reserve` must not judge it.
            self._previous = None
            return None
        visible = cache_window.collect_visible_texts(
            [*history.front, *groups], window.blocks, self._request.entries
        )
        pieces = (await answers.find(recall_budget, visible, self._context)).pieces
        if pieces and self._request.block_cost(pieces) > self._tokens_left(window, history):
            return None
        return window._replace(blocks=(*window.blocks, await self._build_block(history, index, pieces)))

    def _shows_enough(self, placed: PlacedHistory, window: CacheWindow) -> bool:
        """Return whether a window made for another budget shows as much as one that would begin now.

        It does not if its recall was made for much less, if it fills too little of the budget, if the newest output is
        cut although much more of it would fit, or if the messages before it would fit now too.
        """
        assert self._record is not None
        if self._record.made_for == self._record.budget:
            return True
        is_same_question = placed.window is not None and placed.window.blocks == window.blocks
        recalled_nothing = not window.blocks or not window.blocks[-1].pieces
        made_for_less = 1.0 if recalled_nothing else 0.8
        if is_same_question and self._record.made_for < made_for_less * self._record.budget:
            return False  # its recall left out answers that the larger budget has tokens for
        cost = self._request.cost(placed.nodes)
        free_tokens = self._request.budget - cost
        whole_history_fits = 0 < window.start_tokens <= free_tokens
        could_show_more = whole_history_fits or placed.could_show_more(free_tokens)
        return cost >= self._request.budget * MIN_FILLED_SHARE and not could_show_more

    def _tokens_left(self, window: CacheWindow, history: HistoryRead) -> int:
        return self._request.budget - self._request.cost(self._lay_out(window, history).nodes)

    # ── a new window ────────────────────────────────────────────────────────────────────────────────────────────────

    async def _begin(self, previous_groups: Sequence[MessageGroup]) -> PlacedHistory:
        """Begin a window with the newest messages and a recall; `previous_groups` are those of the last window."""
        chosen = NewWindow(
            self._request,
            await self._reader.read_newest(self._context),
            self._reader,
            self._cutter,
            context=self._context,
            is_stored=self._records is not None,
            previous=self._previous,
        )
        await chosen.choose(previous_groups)
        groups = await run_cut(chosen.cut_chosen_groups, chosen.history.groups)
        history = chosen.history._replace(groups=groups)
        pieces = chosen.pieces
        question = find_missing_question(history, chosen.older_groups)
        shown_cost = self._request.cost([*history.front, *history.groups]) + self._request.block_cost(pieces)
        if question and shown_cost + self._request.cost([question]) <= self._request.budget:
            question_id = question.messages[0].sources[0]
            history = self._reader.put_in_front(history, question_id, 0)
            pieces = tuple([piece for piece in pieces if question_id not in piece.sources])
        is_whole = not chosen.older_groups and history.is_complete
        window = await self._new_window(history, chosen.limits, pieces, is_whole=is_whole)
        left_out = [
            group for group in chosen.older_groups if history.front_ids.isdisjoint(group.messages[0].sources)
        ]
        return self._lay_out(window, history)._replace(older=tuple(left_out))

    async def _new_window(
        self, history: HistoryRead, limits: Mapping[int, int], pieces: Sequence[Piece], *, is_whole: bool
    ) -> CacheWindow:
        groups, span = history.groups, history.span
        blocks: tuple[Block, ...] = ()
        if self.answers is not None or pieces:
            blocks = (await self._build_block(history, self._request.find_turn_start(history), pieces),)
        starts_later = bool(groups) and not is_whole
        outputs = [(group.first, limits[group.first]) for group in groups if group.first in limits]
        head = await self._request.session.storage.head(span.context)
        return CacheWindow(
            start_tokens=groups[0].before if starts_later else 0,
            first_version=groups[0].first if starts_later else 0,
            began_at=span.version,
            generation=head.epoch,
            front_entries=history.front_entries,
            blocks=blocks,
            labels=tuple(sorted(history.collect_labels(self._request.entries).items())),
            outputs=tuple(sorted(outputs)),
        )

    # ── outputs of tools in a continued window ──────────────────────────────────────────────────────────────────────

    def _cut_new_outputs(
        self, window: CacheWindow, history: HistoryRead
    ) -> tuple[list[MessageGroup], dict[int, int]] | None:
        """Return the cut groups and the limits by call for a continued window: outputs shown before stay unchanged.

        New outputs of the current turn are whole if they fit the remaining tokens; all new outputs are whole if the
        whole history fits. None if a new window would show more than twice as much of the newest output.
        """
        groups = history.groups
        known_limits = dict(window.outputs)
        question = cache_window.question_of(history.front)
        condensed_groups, limits = self._cutter.condense(groups, known_limits, question)
        new_indexes = [
            index
            for index, group in enumerate(groups)
            if group.first in limits and group.first not in known_limits and group.first > window.began_at
        ]
        if not new_indexes:
            return condensed_groups, limits
        if history.is_complete:
            whole_limits = limits | {groups[index].first: self._request.budget for index in new_indexes}
            whole_groups = self._cutter.cut(groups, whole_limits, question)
            if self._tokens_left(window, history._replace(groups=whole_groups)) >= 0:
                return whole_groups, whole_limits
        free_tokens = self._tokens_left(window, history._replace(groups=condensed_groups))
        turn_start = min(self._request.find_turn_start(history), len(groups) - 1)
        min_tokens = (
            self._request.newest_output_share / 2 * (self._request.budget - self._request.cost(history.front))
        )
        for index in reversed(new_indexes):
            if index < turn_start:
                break
            group = groups[index]
            condensed_cost = self._request.cost([condensed_groups[index]])
            whole_fits = self._request.cost([group]) - condensed_cost <= free_tokens
            growth = free_tokens if whole_fits else int(free_tokens * self._request.newest_output_share)
            available = condensed_cost + growth
            limits[group.first] = self._cutter.limit_within(group, max(available, condensed_cost))
            is_cut = limits[group.first] < self._request.budget
            if index == len(groups) - 1 and is_cut and available < min_tokens:
                return None
            free_tokens -= self._request.cost(self._cutter.cut([group], limits)) - condensed_cost
        return self._cutter.cut(groups, limits, question), limits

    # ── blocks among the messages ───────────────────────────────────────────────────────────────────────────────────

    async def _build_block(self, history: HistoryRead, index: int, pieces: Sequence[Piece]) -> Block:
        groups, entries = history.groups, self._request.entries
        after = history.span.version if index >= len(groups) else groups[index].first - 1
        query = "" if self.answers is None else self.answers.step.query
        sources = [entries[id] for piece in pieces for id in piece.sources if id in entries]
        longest = max([len(entry.content) for entry in sources], default=0)
        return await off_loop(
            partial(cache_window.build_recall_block, after, query, pieces, entries), longest
        )

    def _write_block(self, pieces: tuple[Piece, ...], explanation: str = EXCERPTS) -> ComposedMessage:
        return excerpts.write_block(pieces, self._request.codec, explanation)

    def _explain_block(self, block: Block, history: HistoryRead) -> str:
        """Return the first line of the first block: it says whether the messages around it are newer."""
        assert self._context is not None
        sources = [id for piece in block.pieces for id in piece.sources]
        if all(map(is_fact_id, sources)):
            return FACTS
        index = cache_window.index_after_version(history.groups, block.after)
        if index == 0 and cache_window.question_of(history.front):
            return EXCERPTS_OF_TURN
        own_logs = excerpts.find_own_logs(self._context)
        parsed_ids = [parse_entry_id(id) for id in sources if not is_fact_id(id)]
        quoted_versions = [parsed[1] for parsed in parsed_ids if parsed is not None and parsed[0] in own_logs]
        if index and max(quoted_versions, default=0) > history.groups[0].first:
            return EXCERPTS_AMONG
        return EXCERPTS

    def _lay_out(self, window: CacheWindow, history: HistoryRead) -> PlacedHistory:
        """Return the nodes of a history with its blocks."""
        assert self._context is not None
        blocks: list[tuple[int, ComposedMessage]] = []
        for block in window.blocks:
            if block.pieces:
                explanation = MORE_EXCERPTS if blocks else self._explain_block(block, history)
                pieces = cache_window.pieces_of_block(block, self._request.entries)
                blocks.append((block.after, self._write_block(pieces, explanation)))
        front = [group._replace(mandatory=True) for group in history.front]
        groups = history.groups
        if not self._request.question_follows:  # otherwise the question is enough for a request
            groups = content.mark_newest_mandatory(groups)
        cut_tokens = {id: cut for id, cut in self._cutter.question_cuts.items() if id in history.front_ids}
        for group in history.groups:
            cut_tokens.update(self._cutter.last_cuts.get(group.first, {}))
        from_start = not window.first_version
        span = replace(history.span, whole=history.span.whole and from_start)
        is_complete = history.is_complete and from_start
        log = LogRead(self._request.session, span, is_complete, self._context.lineage, window.first_version)
        nodes = (*front, *cache_window.interleave_blocks(groups, blocks))
        stored_window = None if self._records is None else window
        return PlacedHistory(nodes, stored_window, log, cut_tokens=cut_tokens, front_ids=history.front_ids)

    def _has_same_labels(self, window: CacheWindow, history: HistoryRead) -> bool:
        """Return whether every entry still shown has the label it was sent with: a new label would change its text."""
        if not window.labels and not history.span.labels.times:
            return True
        shown_ids = cache_window.visible_ids([*history.front, *history.groups])
        sent_labels = {id: label for id, label in window.labels if id in shown_ids}
        return history.collect_labels(self._request.entries) == sent_labels
