"""A history whose recall stays in place: read at each render, placed, and kept for the next one.

`acms.prompt.placements` makes the decisions; this module reads the record and the log, recalls, and stores the
positions by compare-and-set once there is a prompt.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from math import ceil
from types import MappingProxyType
from typing import Any, NamedTuple

from acms.errors import FitError, SessionNotFoundError
from acms.log import summary_levels
from acms.log.encoding import is_summary
from acms.log.in_force import Unit, is_sealed
from acms.log.policy import PRIVATE
from acms.log.read import cover_at, valid_times_at
from acms.log.validation import UNNAMED
from acms.log.validity import Period
from acms.model import Context, Entry, Kind, State
from acms.plan.nodes import Atom, Composed, Fitted, Piece, Scope, Window
from acms.ports import Codec, HasRecords
from acms.prompt import excerpts, placements
from acms.prompt import steps as content
from acms.prompt.fit_state import compose_message
from acms.prompt.placement_record import PlacementRecord
from acms.prompt.placements import Block, Placements
from acms.prompt.resolve import MARGIN, LogRead
from acms.prompt.steps import Fixed, Log, Readable, Recalling, Shrinking, Step
from acms.prompt.tool_outputs import CallCutter
from acms.recall.pipeline import Gathered, load_instructions
from acms.recall.planner import SUMMARIES_SHARE
from acms.results import ContextItems

TRIES = 3
"""How often a placement is repeated when another process stored one meanwhile."""


class Pair(NamedTuple):
    """A history and the recall beside it, by their places among the steps of a prompt."""

    history: int
    recall: int | None


def find_history_pair(steps: Sequence[Step]) -> Pair | None:
    """Return the history of a prompt that has one of its own, and the recall of the same session; None without one."""
    histories = [place for place, step in enumerate(steps) if _session_of_history(step) is not None]
    if len(histories) != 1:
        return None
    session = _session_of_history(steps[histories[0]])
    assert session is not None
    recalls = [
        place
        for place, step in enumerate(steps)
        if isinstance(step, Recalling) and not step.in_place and _is_same_session(step.session, session)
    ]
    return Pair(histories[0], recalls[0] if recalls else None)


def _session_of_history(step: Step) -> Readable | None:
    """Return the session whose newest messages a step shows, and nothing else."""
    if not isinstance(step, Shrinking) or step.newest is not None or len(step.steps) != 1:
        return None
    (only,) = step.steps
    moves = isinstance(step.strategy, Window) and step.strategy.slack
    return only.session if moves and isinstance(only, Log) and only.newest is None else None


def _is_same_session(one: Readable, other: Readable) -> bool:
    return (one.session_id, one.storage, one.ends_at) == (other.session_id, other.storage, other.ends_at)


def replace_pair_with_scopes(steps: Sequence[Step], found: Pair) -> list[Step]:
    """Return the steps with empty scopes of the same names where a history and its recall are."""
    names = content.name_steps(steps)
    history = steps[found.history]
    assert isinstance(history, Shrinking)
    left = list(steps)
    left[found.history] = Fixed(Scope(id=names[found.history], priority=history.priority))
    if found.recall is not None:
        left[found.recall] = Fixed(Scope(id=names[found.recall]))
    return left


class Read(NamedTuple):
    """The part of the log that a placement shows."""

    gathered: Gathered
    units: list[Atom]
    lead: list[Atom]
    #: Entries at the front: ids, each with the tokens of the text that is shown of a summary; 0 for a message.
    levels: tuple[tuple[str, int], ...]
    #: Whether the units are all active messages: no summary replaces any of them.
    whole: bool
    #: Labels of some of the units, by id.
    told: Mapping[str, str]


class Placed(NamedTuple):
    """A history with the recalled blocks in it."""

    nodes: tuple[Atom | Composed, ...]
    #: None where nothing is to be stored: at a past version, or in a store that keeps no records.
    kept: Placements | None
    log: LogRead | None
    #: Units that were read and are older than the start of an epoch that begins.
    older: tuple[Atom, ...] = ()
    #: Messages of tool calls that are shown condensed, by id: tokens of the whole, and of what is shown.
    condensed: Mapping[str, tuple[int, int]] = MappingProxyType({})


Ask = Callable[[int, bool], Awaitable[ContextItems]]
"""Recalls within so many tokens; with True, adjacent messages too, in the tokens that the answers leave."""


class Staying:
    """One render's placement of a history and its recall."""

    def __init__(
        self,
        session: Readable,
        recall: Recalling | None,
        codec: Codec,
        *,
        room: int,
        result: int,
        asked: bool,
        tools: bool,
        name: str,
        budget: int,
        told: dict[str, Any],
        ask: Ask,
        first: Sequence[str] = (),
    ) -> None:
        self._session = session
        #: Ids of entries that stand in front and are never left out.
        self._first = first
        self._recall = recall
        self._codec = codec
        #: Raw tokens for all of it.
        self._room = room
        self._calls = CallCutter(codec, room=room, result=result)
        #: Whether the caller wrote a message of the user behind it.
        self._asked = asked
        self._tools = tools
        #: Of the record: it says the shape of the prompt.
        self._name = name
        self._budget = budget
        #: Entries that may be shown, by id.
        self._told = told
        self._ask = ask
        self._context: Context | None = None
        #: None where nothing is kept.
        self._record: PlacementRecord | None = None
        self._was: Placements | None = None
        self._items: dict[tuple[int, bool], ContextItems] = {}
        #: Warnings for the caller about the last placement, see `warnings`.
        self._notes: list[str] = []
        #: Whether an epoch begins in any case, and whether one began.
        self._anew = self._began = False

    @property
    def warnings(self) -> list[str]:
        """Warnings for the caller about the last placement."""
        return [*self._notes, *(() if self._record is None else self._record.warnings)]

    # ── the record ──────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _keeps(self) -> bool:
        stays = self._recall is None or self._recall.stays
        return stays and self._session.ends_at is None and isinstance(self._session.storage, HasRecords)

    async def _load(self, context: Context) -> Placements | None:
        """Read the record of this log, or of the one it was forked from, if its epoch can go on."""
        storage = self._session.storage
        if not self._keeps or not isinstance(storage, HasRecords):
            return None
        self._record = PlacementRecord(storage, self._name, self._budget)
        found = await self._record.load(context)
        self._was = self._record.own
        return found if found is not None and await self._lasts(found, context) else None

    async def _lasts(self, kept: Placements, context: Context) -> bool:
        """Return whether an epoch can go on; the entries it shows are read."""
        storage = self._session.storage
        head = await storage.head(context.id)
        if head.epoch != kept.generation:
            return False
        rows = await storage.get(kept.ids) if kept.ids else []
        shown = await cover_at(storage, context.id, head, head.version)
        found = await cover_at(storage, context.id, head, head.version, searchable=True)
        others = placements.group_foreign_ids(kept, [context.id, *(owner for owner, _ in context.lineage)])
        foreign = {id for ids in others.values() for id in ids}
        own = [row for id, row in zip(kept.ids, rows, strict=True) if id not in foreign]
        if not placements.is_epoch_valid(kept, shown, found, own):
            return False
        known = [row for row in rows if row is not None and row.state is State.LIVE]
        if len(known) < len(rows) or not await self._known_elsewhere(others):
            return False
        self._told.update({row.id: row for row in self._session.stage.entries(known)})
        return await self._still_so(context.id, others, known, kept)

    async def _known_elsewhere(self, others: Mapping[str, Sequence[str]]) -> bool:
        """Return whether the entries shown of other logs are active there, and may still be shown outside of them."""
        storage = self._session.storage
        for owner, ids in others.items():
            try:
                context, head = await storage.context(owner), await storage.head(owner)
            except SessionNotFoundError:
                return False
            if context.settings.get(PRIVATE) or context.namespace == UNNAMED:
                return False
            cover = await cover_at(storage, owner, head, head.version)
            for row in await storage.get(ids):
                if row is None or cover.by(row.version) is not None:
                    return False
        return True

    async def _still_so(
        self, context: str, others: Mapping[str, Sequence[str]], rows: Sequence[Entry], kept: Placements
    ) -> bool:
        """Return whether no fact that is shown has ended by now, and every doubtful entry carries its label."""
        storage = self._session.storage
        labels = (await self._session.said(messages=1)).labels
        shown = placements.collect_visible_texts((), kept.blocks, self._told)
        for owner in {row.context if row.context in others else context for row in rows}:
            head = await storage.head(owner)
            if head.version == head.messages:  # there are no facts
                continue
            when = (
                labels.times if owner == context else await valid_times_at(storage, owner, head, head.version)
            )
            for row in rows:
                if (row.context if row.context in others else context) != owner:
                    continue
                period = when.get(row.version, None if row.kind is Kind.FACT else Period())
                told = self._told[row.id]
                if period is None or not placements.is_label_current(
                    shown.get(row.id), period, told, labels.moment
                ):
                    return False
        return True

    async def keep(self, placed: Placed, fitted: Fitted, path: str, request: str) -> bool:
        """Store the positions; return False when another process stored others meanwhile: place it again.

        Return False too when a continued epoch was cut after all. `request` is the hash of the request, if the provider
        binds reasoning to it. A store that cannot be written costs the next request its cache, not this one.
        """
        kept = placed.kept
        if kept is None or self._context is None or self._record is None:
            return True
        cut = [one for one in fitted.left if one.gone and f"{one.path}/".startswith(f"{path}/")]
        lost = {id for one in cut for id in one.ids}
        if lost and not self._began:
            self._anew = True
            return False
        if lost:
            kept = _drop_lost_entries(kept, placed, lost)
        if request and request not in kept.sent:
            kept = kept._replace(sent=(*kept.sent, request)[-placements.SENT :])
        if kept == self._was:
            return True
        stored = await self._record.store(self._context.id, kept, replaces=self._began)
        if not stored:
            self._items.clear()  # the log may have grown, too
        return stored

    # ── placing ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def place(self) -> Placed:
        """Go on with the epoch that was kept, or begin one: when there is none, or it no longer fits."""
        self._notes = []
        context_id = await self._session.context_id()
        if context_id is None:
            return await self._alone()
        self._context = await self._session.storage.context(context_id)
        kept = await self._load(self._context)
        self._began = False
        before: Sequence[Atom] = ()
        if kept is not None and not self._anew:
            read = await self._read_on(kept)
            placed = await self._go_on(kept, read)
            if placed is not None and self._fills_enough(placed, kept):
                return placed
            before = placements.strip_old_reasoning(read.units, kept.began)
        self._began = True
        return await self._begin(before)

    async def _alone(self) -> Placed:
        """Show matches from other sessions for a session without messages."""
        found = () if self._recall is None else await self._answers(self._room, {}, single=True)
        return Placed((excerpts.write_block(found, self._codec),) if found else (), None, None)

    async def _go_on(self, kept: Placements, read: Read) -> Placed | None:
        """Add the content for the newest turn after the content already shown; None when it does not fit."""
        if not self._same_labels(kept, read):
            return None
        sized = self._outputs_since(kept, read, placements.strip_old_reasoning(read.units, kept.began))
        if sized is None:
            return None
        units, outputs = sized
        kept, read = kept._replace(outputs=tuple(sorted(outputs.items()))), read._replace(units=units)
        place = self._turn(read.lead, units)
        if self._recall is not None and not self._answered(kept.blocks, units, place):
            depth, begun = self._depth, place < len(units) - 1
            if begun and any(
                placements.index_after_version(units, one.after) == place for one in kept.blocks
            ):
                # Something else is asked in the middle of a turn: behind all that was said.
                place = len(units)
                depth = min(depth, int(placements.HALF * self._left(kept, read._replace(units=units))))
            blocks = [one for one in kept.blocks if placements.index_after_version(units, one.after) < place]
            if len(blocks) < len(kept.blocks):  # nothing was said since: a request by itself
                self._was = None
                return None
            seen = placements.collect_visible_texts([*read.lead, *units], blocks, self._told)
            found = await self._answers(depth, seen)
            kept, read = kept._replace(blocks=tuple(blocks)), read._replace(units=units)
            if found and self._left(kept, read) < self._cost([excerpts.write_block(found, self._codec)]):
                return None
            kept = kept._replace(blocks=(*blocks, self._block(read, units, place, found)))
        read = read._replace(units=units)
        return self._placed(kept, read) if self._left(kept, read) >= 0 else None

    def _fills_enough(self, placed: Placed, kept: Placements) -> bool:
        """Return whether an epoch placed for another budget shows as much as one that would begin now."""
        assert self._record is not None
        if not self._record.borrowed:
            return True
        used = self._cost(placed.nodes)
        all_fits = kept.start > 0 and kept.start + used <= self._room
        return used >= self._room * placements.BEGUN and not all_fits

    def _left(self, kept: Placements, read: Read) -> int:
        """Return the tokens of the room that an epoch leaves."""
        return self._room - self._cost(self._placed(kept, read).nodes)

    def _answered(self, blocks: Sequence[Block], units: Sequence[Atom], place: int) -> bool:
        """Return whether the question of the newest turn was recalled already: at its beginning, or since."""
        assert self._recall is not None
        asked = placements.tag_of_query(self._recall.query)
        return any(
            placements.index_after_version(units, one.after) >= place and one.tag == asked for one in blocks
        )

    async def _begin(self, before: Sequence[Atom]) -> Placed:
        """Begin an epoch with the newest messages and a recall; `before` holds the units of the epoch that ended."""
        read = await self._with_instructions(await self._read_newest())
        whole_units = placements.strip_old_reasoning(read.units, read.gathered.version)
        units, outputs = self._outputs(read, whole_units)
        costs = [self._cost([unit]) for unit in units]
        start = self._start(read, units, costs)
        without_question = read
        read = self._with_question(read, units[:start], costs)
        room = self._room - self._cost(read.lead)
        loops, now = self._loops(whole_units, costs, before)
        spare = self._spare(units, costs, loops, now)
        found: tuple[Piece, ...] = ()
        if self._recall is not None:
            left = room - sum(costs[start:])
            depth = left if start == 0 and read.whole else self._first_depth(left, spare, loops, now)
            seen = placements.collect_visible_texts([*read.lead, *units[start:]], (), self._told)
            found = await self._answers(depth, seen, single=spare is not None or loops > 0)
        most = room - spare if spare is not None else int(room * placements.BEGUN)
        if sum(costs[start:]) > placements.HALF * room:  # the next turn will not fit in any case
            most = room
        start, found = self._filled(units, costs, start, most, found)
        if start <= placements.find_turn_start(
            units, asked=self._asked
        ):  # the history reaches back to the question
            read = without_question
        older = tuple(units[:start])
        read = read._replace(
            units=self._calls.cut(whole_units[start:], outputs, placements.question_of(read.lead))
        )
        place = self._turn(read.lead, read.units)
        blocks = () if self._recall is None else (self._block(read, read.units, place, found),)
        whole = start == 0 and read.whole
        storage = self._session.storage
        kept = Placements(
            start=read.units[0].before if read.units and not whole else 0,
            first=read.units[0].first if read.units and not whole else 0,
            began=read.gathered.version,
            generation=(await storage.head(read.gathered.context)).epoch,
            lead=read.levels,
            blocks=blocks,
            labels=tuple(sorted(self._labels_in(read).items())),
            outputs=tuple(
                sorted([(at, outputs[at]) for unit in read.units if (at := unit.first) in outputs])
            ),
        )
        return self._placed(kept, read)._replace(older=older)

    # ── outputs of tools ────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _newest_output_share(self) -> float:
        """Share of the budget for the newest output: half when a newer question needs the rest for its own answer."""
        return placements.HALF if self._asked else placements.NEWEST_RESULT

    def _outputs(self, read: Read, units: Sequence[Atom]) -> tuple[list[Atom], dict[int, int]]:
        """Return the units an epoch may begin with, and the maximum tokens for the outputs of each call.

        All are whole when the whole history fits. Otherwise the newest output may take its share of the tokens that the
        question leaves, the other outputs of the turn the rest of half of the budget; all others are condensed.
        """
        room = self._room - self._cost(read.lead)
        short, tokens = self._calls.condense(units, {})
        if read.whole and self._cost(units) <= room:
            tokens = dict.fromkeys(tokens, self._room)
            return self._calls.cut(units, tokens), tokens
        last = len(units) - 1
        turn = min(placements.find_turn_start(units, asked=self._asked), max(0, last))
        own = self._cost(short[turn:])
        for place in range(last, turn - 1, -1):
            unit = units[place]
            if unit.first not in tokens:
                continue
            besides = own - self._cost([short[place]])
            left = int(room * placements.HALF) - besides
            if place == last:
                asking = self._cost([units[turn]]) if turn < last else 0
                left = max(left, int((room - asking) * self._newest_output_share))
            tokens[unit.first] = self._calls.tokens_within(unit, left)
            own = besides + self._cost(self._calls.cut([unit], tokens))
        return self._calls.cut(units, tokens), tokens

    def _outputs_since(
        self, kept: Placements, read: Read, units: Sequence[Atom]
    ) -> tuple[list[Atom], dict[int, int]] | None:
        """Return the same for an epoch that goes on: outputs already shown stay unchanged.

        New outputs of the current turn are whole where they fit the remaining tokens; all of them where the whole
        history fits. None if a new epoch would show more than twice as much of the newest output.
        """
        known = dict(kept.outputs)
        question = placements.question_of(read.lead)
        short, tokens = self._calls.condense(units, known, question)
        new = [place for place, unit in enumerate(units) if unit.first in tokens and unit.first not in known]
        new = [place for place in new if units[place].first > kept.began]
        if not new:
            return short, tokens
        if read.whole:
            whole = tokens | {units[place].first: self._room for place in new}
            shown = self._calls.cut(units, whole, question)
            if self._left(kept, read._replace(units=shown)) >= 0:
                return shown, whole
        left = self._left(kept, read._replace(units=short))
        turn = min(self._turn(read.lead, units), len(units) - 1)
        for place in reversed([place for place in new if place >= turn]):
            unit = units[place]
            before = self._cost([short[place]])
            whole_fits = self._cost([unit]) - before <= left
            room = before + (left if whole_fits else int(left * self._newest_output_share))
            tokens[unit.first] = self._calls.tokens_within(unit, max(room, before))
            least = placements.HALF * self._newest_output_share * (self._room - self._cost(read.lead))
            if place == len(units) - 1 and tokens[unit.first] < self._room and room < least:
                return None
            left -= self._cost(self._calls.cut([unit], tokens)) - before
        return self._calls.cut(units, tokens, question), tokens

    # ── how much ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _loops(self, units: Sequence[Atom], costs: Sequence[int], before: Sequence[Atom]) -> tuple[int, int]:
        """Return the tokens that the tools of the newest turn may take, and the tokens they took so far.

        They may take as much as the tools of an earlier turn, but no more than a share of the budget; nothing if a
        question follows the log and no tool is offered, since it is answered at once. If the log ends with a question,
        tools may be offered beside the prompt. `costs` are those of the shown units; the estimate uses whole ones.
        """
        known = [[self._cost([unit]) for unit in some] for some in (before, units)]
        *others, _ = placements.call_tokens_by_turn(before, known[0])
        *earlier, last = placements.call_tokens_by_turn(units, known[1])
        now = placements.call_tokens_by_turn(units, costs)[-1]
        if self._asked:
            if not self._tools:
                return 0, 0
            earlier, now = [*earlier, last], 0
        return min(max((0, *earlier, *others)), int(self._room * placements.LOOP)), now

    def _first_depth(self, left: int, spare: int | None, loops: int, now: int) -> int:
        """Return the tokens that an epoch recalls first: not those its loop takes, half of them once it runs."""
        depth = min(self._depth, left - max(0, loops - now)) if spare is None else left - spare
        return max(0, min(depth, left // 2 if now and self._keeps else left))

    def _filled(
        self, units: Sequence[Atom], costs: Sequence[int], start: int, room: int, found: tuple[Piece, ...]
    ) -> tuple[int, tuple[Piece, ...]]:
        """Show more of the history in the tokens that the recall left, and drop recalled pieces it now shows."""
        while True:
            block = self._cost([excerpts.write_block(found, self._codec)]) if found else 0
            left = room - sum(costs[start:]) - block
            earlier = start
            while earlier and costs[earlier - 1] <= left:
                earlier -= 1
                left -= costs[earlier]
            earlier = placements.start_of_exchange(units, earlier, start)
            if earlier == start:
                return start, found
            start = earlier
            seen = placements.collect_visible_texts(units[start:], (), self._told)
            found = tuple(
                [piece for piece in found if not placements.covers_content(seen.get(piece.id), piece.text)]
            )

    def _spare(self, units: Sequence[Atom], costs: Sequence[int], loops: int, now: int) -> int | None:
        """Return the tokens that a filled epoch leaves free for its turn, or None when more turns must fit.

        A request that shares its budget with no later turn is filled: the first of its kind, one that is not stored,
        and one whose turns are so long that the next would not fit, judged by the length of the last epoch. The
        requests of one turn share it in any case: its tools are expected to take as much as those of earlier turns.
        """
        was = self._was
        if self._recall is None or not self._keeps:
            return None if self._keeps else 0
        if self._tools and not loops:
            return None
        if was is not None:
            said = sum(cost for unit, cost in zip(units, costs, strict=True) if unit.first > was.began)
            turns = max(1, len(was.blocks))
            if said <= turns * (self._room * (1 - placements.NEWEST) - self._depth):
                return None
        return max(loops - now, now // 2)

    def _start(self, read: Read, units: Sequence[Atom], costs: Sequence[int]) -> int:
        """Return the first unit that an epoch shows: all of them fit, or the newest, at least those of the turn.

        Of a turn that leaves no room to grow the newest half of a room is shown.
        """
        room = self._room - self._cost(read.lead)
        if (read.whole or (self._recall is None and read.gathered.whole)) and sum(costs) <= room:
            return 0
        share = placements.HALF if self._recall is None else placements.NEWEST
        turn = min(placements.find_turn_start(units, asked=self._asked), max(0, len(units) - 1))
        own = sum(costs[turn:])
        most = room if turn == len(units) - 1 or own <= room * placements.OWN else int(room * placements.HALF)
        return placements.start_of_exchange(
            units, placements.find_newest_start(costs, int(room * share), most, turn), turn
        )

    def _with_question(self, read: Read, older: Sequence[Atom], costs: Sequence[int]) -> Read:
        """Put the message that began the newest turn at the front, when it is older than the messages shown."""
        turn = placements.find_turn_start(read.units, asked=self._asked)
        if turn >= len(older) or costs[turn] > self._room // 2:
            return read
        level = _front_entry_of_atom(older[turn])
        lead = [*read.lead, self._in_front(self._told[level[0]], level[1], read.gathered)]
        return read._replace(lead=lead, levels=(*read.levels, level))

    async def _with_instructions(self, read: Read) -> Read:
        """Put the system messages that the log begins with in front, when not all of it is shown.

        They are never left out: `FitError` if they leave no room for the newest message.
        """
        if read.whole and self._cost(read.units) <= self._room:
            return read
        found = await load_instructions(self._session.storage, self._session.stage, read.gathered)
        if self._first:
            known = {entry.id for unit in found for entry in unit.entries}
            rows = await self._session.storage.get([id for id in self._first if id not in known])
            there = [row for row in rows if row is not None and self._stands(row, read.gathered)]
            found = [*found, *(Unit((entry,)) for entry in self._session.stage.entries(there))]
        units = self._atoms(found, read.gathered.labels.by_id([], found))
        needed = self._cost(units)
        most = int(self._room * placements.INSTRUCTIONS)
        if needed > most:
            raise FitError(
                f"the system messages that the log begins with, and what is to stand first, take {needed} tokens; "
                f"beside everything else the budget leaves {most} for them",
                budget=most,
                required=needed,
                where="prompt/history",
                options=(
                    f"raise the budget by {ceil((needed - most) / placements.INSTRUCTIONS)}",
                    "retract some of them",
                ),
            )
        shown = placements.visible_ids(units, ())
        return read._replace(
            units=[unit for unit in read.units if shown.isdisjoint(unit.messages[0].sources)],
            lead=[*units, *read.lead],
            levels=(*map(_front_entry_of_atom, units), *read.levels),
        )

    def _stands(self, entry: Entry, gathered: Gathered) -> bool:
        """Whether a message of this conversation is in force and stands alone."""
        own = (
            entry.context in excerpts.find_own_logs(self._context)
            and entry.group is None
            and entry.state is State.LIVE
        )
        return own and gathered.cover.by(entry.version) is None

    def _turn(self, lead: Sequence[Atom], units: Sequence[Atom]) -> int:
        """Return the unit before which a block of the newest turn stands, whose beginning may stand in front of all."""
        front = [unit for unit in lead[-1:] if not any(map(is_summary, unit.messages[0].sources))]
        return max(0, placements.find_turn_start([*front, *units], asked=self._asked) - len(front))

    def _block(self, read: Read, units: Sequence[Atom], place: int, found: Sequence[Piece]) -> Block:
        assert self._recall is not None
        after = read.gathered.version if place >= len(units) else units[place].first - 1
        return placements.build_recall_block(after, self._recall.query, found, self._told)

    def _placed(self, kept: Placements, read: Read) -> Placed:
        """Return the nodes of a history with its blocks."""
        shown = [
            (one.after, placements.pieces_of_block(one, self._told)) for one in kept.blocks if one.pieces
        ]
        blocks = [
            (after, excerpts.write_block(pieces, self._codec, first=number == 0))
            for number, (after, pieces) in enumerate(shown)
        ]
        assert self._context is not None
        gathered = replace(read.gathered, whole=read.gathered.whole and not kept.first)
        complete = read.whole and not kept.first
        log = LogRead(self._session, gathered, complete, self._context.lineage, kept.first)
        lead = [unit._replace(mandatory=True) for unit in read.lead]
        nodes = (*lead, *placements.interleave_blocks(content.mark_newest_mandatory(read.units), blocks))
        short = [
            self._calls.cut_calls[unit.first] for unit in read.units if unit.first in self._calls.cut_calls
        ]
        condensed = {id: tokens for one in short for id, tokens in one.items()}
        return Placed(nodes, kept if self._keeps else None, log, condensed=condensed)

    def _cost(self, nodes: Iterable[Atom | Composed]) -> int:
        """Return the raw tokens of some nodes."""
        cost = self._codec.cost
        messages = [
            message
            for node in nodes
            for message in (
                node.messages if isinstance(node, Atom) else (compose_message(node, node.pieces),)
            )
        ]
        return sum(map(cost, messages))

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _read_on(self, kept: Placements) -> Read:
        """Read the part of the log that an epoch shows."""
        gathered = await self._session.said(since=kept.start, began=kept.began)
        lead = [self._in_front(self._told[id], tokens, gathered) for id, tokens in kept.lead]
        own = [self._told[id] for id, _ in kept.lead if is_sealed(self._told[id])]
        shown = content.substitute_summary(gathered.units, own[0]) if own else gathered.units
        told = gathered.labels.by_id(shown)
        units = self._atoms([unit for unit in shown if unit.entries[0] not in own], told)
        if kept.first:  # an edit has the position of the next message: units before it have the same position
            starts = (place for place, unit in enumerate(units) if unit.first == kept.first)
            units = units[next(starts, len(units)) :]
            units = [unit for unit in units if not any(map(is_summary, unit.messages[0].sources))]
        return Read(gathered, units, lead, kept.lead, not kept.first, told)

    async def _read_newest(self) -> Read:
        """Read the newest messages that could fit the budget, and the summaries of older ones."""
        wanted = max(1, int(self._room * MARGIN))  # twice nothing is nothing
        while True:
            gathered = await self._session.said(budget=wanted)
            told = gathered.labels.by_id(gathered.units)
            units = self._atoms(gathered.units, told)
            begun = (
                placements.find_turn_start(units, asked=self._asked) < len(units)
                or self._asked
                or not placements.ends_with_call(units)
            )
            far = wanted > placements.FAR * self._room
            filled = self._cost(self._calls.cut(units, {})) > self._room
            if gathered.whole or far or (filled and begun):
                break
            wanted *= 2
        own = content.find_sealed_compaction(self._session, gathered.cover, self._codec.vendors)
        shown = [*gathered.older, *gathered.units]
        shown = shown if own is None else content.substitute_summary(shown, own)
        found = [unit.entries[0] for unit in shown if unit.entries[0].kind is Kind.SUMMARY]
        if found:
            units = self._atoms([unit for unit in shown if unit.entries[0].kind is not Kind.SUMMARY], told)
        share = int(self._room * SUMMARIES_SHARE)
        spare = self._room - self._cost(self._calls.cut(units, {})) if self._recall is None else 0
        levels = self._levels(found, max(share, spare), gathered)
        if found and not levels:
            self._notes.append("no summary of what is older fits: even the shortest takes half of the room")
        lead = [self._in_front(self._told[id], tokens, gathered) for id, tokens in levels]
        return Read(gathered, units, lead, levels, gathered.whole and not found, told)

    def _levels(self, entries: Sequence[Entry], left: int, gathered: Gathered) -> tuple[tuple[str, int], ...]:
        """Return the newest summaries that fit so many tokens, each with those of the longest of its texts that does.

        The newest is shown also where its shortest text takes more, up to half of the room.
        """
        levels: list[tuple[str, int]] = []
        for entry in reversed(entries):
            level = summary_levels.choose_level(entry, left)
            unit = self._in_front(entry, level.tokens, gathered)
            cost = self._cost([unit])
            if cost > left and (levels or cost > self._room // 2):
                break
            levels.append((entry.id, level.tokens))
            left -= cost
        return tuple(levels[::-1])

    def _in_front(self, entry: Entry, tokens: int, gathered: Gathered) -> Atom:
        """Return an entry for the front with its label; for a summary, use its text of `tokens` tokens."""
        level = next((one for one in summary_levels.levels_of_summary(entry) if one.tokens == tokens), None)
        shown = entry if level is None else summary_levels.at_level(entry, level)
        told = {entry.id: placements.label_in_front(entry, gathered)}
        (unit,) = content.build_atoms([Unit((shown,))], self._session.counter.name, self._codec.vendors, told)
        self._told[entry.id] = entry
        return unit

    def _atoms(self, units: Sequence[Unit[Entry]], told: Mapping[str, str]) -> list[Atom]:
        self._told.update({entry.id: entry for unit in units for entry in unit.entries})
        return content.build_atoms(units, self._session.counter.name, self._codec.vendors, told)

    def _labels_in(self, read: Read) -> dict[str, str]:
        """Return the labels of the history that is shown, by id."""
        front = {id: placements.label_in_front(self._told[id], read.gathered) for id, _ in read.levels}
        found = {id: read.told.get(id, "") for id in placements.visible_ids(read.units, ())} | front
        return {id: label for id, label in found.items() if label}

    def _same_labels(self, kept: Placements, read: Read) -> bool:
        """Return whether of all that is still shown the same is told: else it would be sent again changed."""
        if not kept.labels and not read.gathered.labels.times:
            return True
        shown = placements.visible_ids([*read.lead, *read.units], ())
        return self._labels_in(read) == {id: label for id, label in kept.labels if id in shown}

    # ── asking ──────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _depth(self) -> int:
        """Tokens that may be recalled for a turn."""
        assert self._recall is not None
        if self._recall.tokens is not None:
            return self._recall.tokens
        return min(int(self._session.effort * self._room), placements.MOST_RECALLED)

    async def _answers(
        self, depth: int, seen: Mapping[str, str], *, single: bool = False
    ) -> tuple[Piece, ...]:
        """Return answers within a depth that are not seen yet; seen ones count towards the depth.

        `single` takes everything that fits; otherwise answers far below the best are not worth their tokens.
        """
        assert self._recall is not None
        frame = self._codec.cost(excerpts.write_frame(self._codec))
        tokens = depth if self._recall.tokens is None else min(depth, self._recall.tokens)
        same = self._codec.counter.name == self._session.counter.name
        while tokens > frame:
            items = await self._asked_once(tokens - frame, single)
            chosen = (
                items
                if single
                else placements.select_answers(items, int(tokens * placements.FILLED), placements.CUTOFF)
            )
            told = excerpts.drop_repeated_facts(chosen)
            new = [one for one in told if not placements.covers_content(seen.get(one.id), one.content)]
            found = excerpts.write_pieces(new, excerpts.find_own_logs(self._context), counted=same)
            over = self._cost([excerpts.write_block(found, self._codec)]) - depth if found else 0
            if over <= 0:
                return found
            # Where marks around each piece take more than the pieces, as much less as they take.
            tokens = tokens - over if over < tokens // 2 else tokens * depth // (depth + over) - 1
        return ()

    async def _asked_once(self, tokens: int, beside: bool) -> ContextItems:
        """Ask the past: once for an epoch that cannot go on, and for the one that begins then."""
        found = self._items.get((tokens, beside))
        if found is None:
            found = self._items[tokens, beside] = await self._ask(tokens, beside)
        return found


def _front_entry_of_atom(unit: Atom) -> tuple[str, int]:
    """Return a message that stands in front, whole, as it is kept."""
    return unit.messages[0].sources[0], 0


def _drop_lost_entries(kept: Placements, placed: Placed, lost: AbstractSet[str]) -> Placements:
    """Return an epoch as it was cut to fit."""
    left = [
        node
        for node in placed.nodes
        if isinstance(node, Atom) and node.first and lost.isdisjoint(placements.visible_ids([node], ()))
    ]
    blocks = [
        one._replace(pieces=tuple([piece for piece in one.pieces if lost.isdisjoint(piece.sources)]))
        for one in kept.blocks
    ]
    return kept._replace(
        start=left[0].before if left else kept.start,
        first=left[0].first if left else kept.first,
        lead=tuple([one for one in kept.lead if one[0] not in lost]),
        blocks=tuple(blocks),
    )
