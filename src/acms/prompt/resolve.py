"""Resolving: the steps of a prompt as a tree of messages, once sessions are read and plugins are asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from inspect import isawaitable
from typing import TYPE_CHECKING, NamedTuple

from acms.errors import ValidationError
from acms.log.in_force import Unit
from acms.model import Kind, Role
from acms.observability.events import Event
from acms.plan.nodes import Atom, Composed, Keep, Node, Placed, Scope, Truncate, Window
from acms.plan.prefix_cache import recall_tokens
from acms.plan.tool_groups import join_answers
from acms.ports import Codec
from acms.prompt import excerpts
from acms.prompt import steps as content
from acms.prompt.steps import (
    Fixed,
    Hint,
    Log,
    Plugged,
    Readable,
    Recalling,
    Shrinking,
    Step,
    SummarisedContent,
    WrittenMessage,
)
from acms.prompt_types import CacheMark, Tool
from acms.recall.pipeline import Gathered

if TYPE_CHECKING:
    from acms.prompt.summaries import SummaryRun

MARGIN = 1.25
"""How much more of a log is read than a budget holds by the session's own count."""

SEAM = 8
"""Tokens by which a joined text may have more than its parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The data a plugin receives about the render that calls it."""

    render_id: str
    #: Tokens the whole prompt may have; None without a budget.
    budget: int | None
    codec: Codec
    #: Sends an event to the listeners of this render.
    tell: Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class LogRead:
    """The entries read from a log for a prompt."""

    view: Readable
    gathered: Gathered
    #: Whether it contains all active entries.
    complete: bool
    lineage: tuple[tuple[str, int], ...] = ()
    #: Version from which on it is shown, and the stored summary that replaces older messages, or "".
    first: int = 0
    summary: str = ""

    @property
    def ids(self) -> list[str]:
        """Ids of the entries that were read."""
        return [entry.id for unit in self.gathered.units for entry in unit.entries]


@dataclass(slots=True)
class Resolved:
    """A prompt tree, and the decisions still open in it."""

    tree: Scope
    #: Recalls to be made, by the path of their scope.
    recalls: dict[str, Recalling] = field(default_factory=dict)
    #: Cache hints, each with how many scopes of the tree are before it.
    hints: list[tuple[Hint, int]] = field(default_factory=list)
    #: Logs that were read.
    logs: list[LogRead] = field(default_factory=list)
    #: Contents that a summary may stand for, by its name.
    standing: dict[str, SummaryRun] = field(default_factory=dict)

    def shows(self, view: Readable, seen: set[str]) -> bool:
        """Return whether everything in force in a log is among the entries that are shown."""
        return any(
            log.complete
            and (log.view.session_id, log.view.storage) == (view.session_id, view.storage)
            and seen.issuperset(log.ids)
            for log in self.logs
        )


class ContentBudget(NamedTuple):
    """The size limits of a content."""

    #: Raw tokens; None without a limit.
    tokens: int | None = None
    #: Whether something shrinks when it is too large. Required content is read whole: an error reports its size.
    shrinks: bool = False
    #: Messages; None without a limit.
    newest: int | None = None
    #: Share of it that a start gives up when it moves.
    slack: float = 0.0
    #: Whether its beginning stays when it is cut, so that of two messages the later one may not be shown.
    begins: bool = False


class Resolver:
    """Reads the data that the steps of one render need; every render has its own."""

    def __init__(self, request: Request, limit: int | None, read: Callable[[object], Sequence[Step]]) -> None:
        self._request = request
        self._limit = limit
        self._read = read
        self._found = Resolved(Scope(id="prompt"))

    async def resolve(self, steps: Sequence[Step]) -> Resolved:
        """Return the tree of a prompt: a scope for each step."""
        found = self._found
        names = content.name_steps(steps)
        made = await self._each(steps, names, found.tree.id, ContentBudget(self._limit))
        children: list[Node] = []
        for step, name, nodes in zip(steps, names, made, strict=True):
            if isinstance(step, Hint):
                found.hints.append((step, len(children)))
            elif len(nodes) == 1 and isinstance(nodes[0], Scope):
                children.append(nodes[0])
            else:
                children.append(Scope(id=name, children=nodes))
        found.tree = replace(found.tree, children=_rename_duplicate_scopes(children))
        return found

    async def _nodes(self, steps: Sequence[Step], path: str, room: ContentBudget) -> tuple[Node, ...]:
        """Return the nodes of some steps, in order."""
        made = await self._each(steps, content.name_steps(steps), path, room)
        return _rename_duplicate_scopes([node for nodes in made for node in nodes])

    async def _each(
        self, steps: Sequence[Step], names: Sequence[str], path: str, room: ContentBudget
    ) -> Sequence[tuple[Node, ...]]:
        """Return the nodes of each step; all asynchronous reads run concurrently."""
        return await asyncio.gather(
            *(self._node(step, name, f"{path}/{name}", room) for step, name in zip(steps, names, strict=True))
        )

    async def _node(self, step: Step, name: str, path: str, room: ContentBudget) -> tuple[Node, ...]:
        match step:
            case WrittenMessage(message):
                return (Atom((message,)),)
            case Fixed(node):
                return (node,)
            case Log():
                return tuple(await self._log(step, room))
            case Shrinking():
                return (await self._shrinking(step, name, path, room),)
            case Plugged():
                return (await self._plugged(step, name, path, room),)
            case Recalling():
                if step.tokens is None:
                    step = step._replace(tokens=recall_tokens(self._request.budget))
                self._found.recalls[path] = step
                return (build_recall_scope(step, name, sum(tokens_for_recall(step, self._request.codec))),)
            case SummarisedContent():
                return (await self._summarised_content(step, name, path, room.tokens),)
            case Hint():
                return ()

    async def _plugged(self, step: Plugged, name: str, path: str, room: ContentBudget) -> Scope:
        if path.count("/") > content.DEPTH:
            raise ValidationError(f"plugins ask for plugins more than {content.DEPTH} deep", field="plugin")
        asked = step.plugin.render(self._request)
        if not isawaitable(asked):
            raise ValidationError(f"{name!r} must have an async method render", field="plugin")
        made = self._read(await asked)
        if len(made) == 1 and isinstance(made[0], Fixed) and isinstance(made[0].node, Scope):
            return made[0].node
        return Scope(id=name, children=await self._nodes(made, path, room))

    async def _shrinking(self, step: Shrinking, name: str, path: str, room: ContentBudget) -> Scope:
        ceiling = step.ceiling
        if step.share is not None and self._limit is not None:
            part = int(step.share * self._limit)
            ceiling = part if ceiling is None else min(ceiling, part)
        keeps_start = isinstance(step.strategy, Truncate) and step.strategy.keep is Keep.START
        caps = [room.tokens, ceiling, step.strategy.tokens if isinstance(step.strategy, Truncate) else None]
        least = None if keeps_start else min((cap for cap in caps if cap is not None), default=None)
        count = step.newest if room.newest is None else min(room.newest, step.newest or room.newest)
        shrinks = room.shrinks or step.strategy is not None
        strategy = step.strategy
        slack = strategy.slack if isinstance(strategy, Window) else room.slack
        begins = room.begins or keeps_start
        nodes = await self._nodes(step.steps, path, ContentBudget(least, shrinks, count, slack, begins))
        if isinstance(strategy, Window):
            sessions = [one.session for one in step.steps if isinstance(one, Log)]
            lengths = [log.gathered.length for log in self._found.logs if log.view in sessions]
            strategy = strategy._replace(length=max(lengths, default=0))
            units = content.flatten_nodes(nodes)
            if step.newest is None:
                units = content.mark_summaries_mandatory(
                    units, self._summaries(), self._request.codec.cost, least
                )
            else:
                units = content.select_newest_atoms(units, step.newest)
            nodes = tuple(content.mark_newest_mandatory(units))
        return Scope(
            id=name,
            children=nodes,
            priority=step.priority,
            strategy=strategy,
            ceiling=ceiling,
            floor=step.floor if ceiling is None else min(step.floor, ceiling),
        )

    async def _summarised_content(
        self, step: SummarisedContent, name: str, path: str, room: int | None
    ) -> Scope:
        """Return a content with the summary that is stored for it; of a log no more is read than that goes on from."""
        if step.id in self._found.standing:
            raise ValidationError(f"two summaries of one prompt are named {step.id!r}", field="id")
        run: SummaryRun = step.summaries.run(
            step.id, self._request.codec.counter, tokens=step.tokens, role=step.role, path=path
        )
        self._found.standing[step.id] = run
        only = step.steps[0] if len(step.steps) == 1 else None
        if isinstance(only, Log):
            loaded, gathered = await run.of_log(only.session, room=room)
            stands = "" if gathered.whole else step.id
            first = next((atom.first for atom in loaded.atoms if atom.first), gathered.version + 1)
            await self._note(gathered, only.session, gathered.whole, first=first, summary=stands)
        else:
            loaded = await run.load(
                join_answers(content.flatten_nodes(await self._nodes(step.steps, path, ContentBudget())))
            )
            assert loaded is not None  # the content is whole
        return Scope(
            id=name,
            children=tuple(content.mark_newest_mandatory(loaded.atoms)),
            priority=step.priority,
            strategy=loaded.strategy,
        )

    async def _log(self, step: Log, place: ContentBudget) -> list[Atom]:
        """Read the part of a log that could be shown, and everything that is required."""
        room = place.tokens if place.shrinks else None
        view: Readable = step.session
        counter = view.counter.name
        same = counter == self._request.codec.counter.name
        count = step.newest if place.newest is None else place.newest
        wanted = None if count is not None or room is None else int(room * MARGIN)
        while True:
            gathered = await view.said(budget=wanted, messages=count, scale=room or 0, slack=place.slack)
            units = self._atoms(gathered, counter, place.begins)
            if wanted is None or room is None or gathered.whole or same or self._cost(units) > room:
                break
            wanted = 2 * wanted
        if wanted is not None:
            older = content.find_older_summaries(gathered.units, gathered.cover)
            shown = [Unit(tuple(view.stage.entries(unit.entries))) for unit in older]
            gathered = replace(gathered, units=[*shown, *gathered.units])
        own = (
            content.find_sealed_compaction(view, gathered.cover, self._request.codec.vendors)
            if count is None
            else None
        )
        if own is not None:
            gathered = replace(gathered, units=content.substitute_summary(gathered.units, own))
        if wanted is not None or own is not None:
            units = self._atoms(gathered, counter, place.begins)
        if step.first:
            units = await self._with_first(step, gathered, units, place.begins)
        messages = sum([len(unit.entries) for unit in gathered.units])
        complete = gathered.whole and own is None and (count is None or messages <= count)
        await self._note(gathered, view, complete)
        return units

    async def _with_first(
        self, step: Log, gathered: Gathered, units: Sequence[Atom], begins: bool
    ) -> list[Atom]:
        """Return the units of a log with some in front that are never left out, also when they were not read."""
        rows = await step.session.storage.get(step.first)
        front = [
            Unit((entry,)) for entry in step.session.stage.entries([row for row in rows if row is not None])
        ]
        atoms = self._atoms(replace(gathered, units=front), step.session.counter.name, begins)
        named = set(step.first)
        rest = [unit for unit in units if named.isdisjoint(unit.messages[0].sources)]
        return [*(unit._replace(mandatory=True) for unit in atoms), *rest]

    def _atoms(self, gathered: Gathered, counter: str, begins: bool) -> list[Atom]:
        units = gathered.units
        told = gathered.labels.by_id(units[-1:], units[:-1]) if begins else gathered.labels.by_id(units)
        return content.build_atoms(units, counter, self._request.codec.vendors, told)

    def _cost(self, units: Sequence[Atom]) -> int:
        cost = self._request.codec.cost
        return sum([cost(message) for unit in units for message in unit.messages])

    def _summaries(self) -> set[str]:
        """Return the ids of the summaries that were read, and of the messages that a compaction kept beside them."""
        units = [unit for log in self._found.logs for unit in log.gathered.units]
        found = {one.id for unit in units for one in unit.entries if one.kind is Kind.SUMMARY}
        return found.union(*(log.gathered.stays for log in self._found.logs))

    async def _note(
        self, gathered: Gathered, view: Readable, complete: bool, *, first: int = 0, summary: str = ""
    ) -> None:
        lineage = (await view.storage.context(gathered.context)).lineage if gathered.context else ()
        versions = [entry.version for unit in gathered.units for entry in unit.entries]
        first = first or min(versions, default=0)
        self._found.logs.append(LogRead(view, gathered, complete, lineage, first, summary))


def _rename_duplicate_scopes(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Return nodes of which no two scopes have the same id."""
    known = {node.id for node in nodes if isinstance(node, Scope)}
    seen: set[str] = set()
    found: list[Node] = []
    for node in nodes:
        if isinstance(node, Scope):
            name, number = node.id, 1
            while name in seen or (number > 1 and name in known):
                number += 1
                name = f"{node.id}-{number}"
            seen.add(name)
            node = node if name == node.id else replace(node, id=name)
        found.append(node)
    return tuple(found)


def tokens_for_recall(step: Recalling, codec: Codec, left: int | None = None) -> tuple[int, int]:
    """Return the tokens a recall may fill, and those around them, when so many are left; None is no limit."""
    frame = codec.cost(excerpts.write_frame(codec)) + SEAM
    tokens = step.tokens or 0
    return tokens if left is None else max(0, min(tokens, left - frame)), frame


def build_recall_scope(step: Recalling, name: str, tokens: int, found: Composed | None = None) -> Scope:
    """Return the scope of a recall: the pieces found, or an empty one with its budget before the recall is made.

    It is fitted as moving content even when it is laid out in its place, so that a history leaves tokens for it.
    """
    return Scope(
        id=name,
        children=(found,) if found is not None and found.pieces else (),
        priority=step.priority,
        strategy=Truncate(tokens),
        moves=True,
    )


def lay_out_messages(placed: Sequence[Placed]) -> tuple[Placed, ...]:
    """Return messages with the moving ones before the newest user message, each kind in its order.

    So an answer in progress stays last, and the model's actions in a turn stay after the question. Without a user
    message they go last. The messages of one atom are never separated.
    """
    stable = [one for one in placed if not one.moves]
    moving = [one for one in placed if one.moves]
    if not moving:
        return tuple(placed)
    asked = [place for place, one in enumerate(stable) if one.message.role is Role.USER]
    end = asked[-1] if asked else len(stable)
    while 0 < end < len(stable) and stable[end - 1].atom == stable[end].atom:
        end -= 1
    return (*stable[:end], *moving, *stable[end:])


def cache_marks(
    placed: Sequence[Placed], tree: Scope, resolved: Resolved, tools: Sequence[Tool]
) -> tuple[CacheMark, ...]:
    """Return the cache hints as message counts: the contiguous beginning of the messages before each hint.

    When there is a hint and a log is shown, the end of the content that stays is marked too: the next turn reads up to
    there.
    """
    found: list[CacheMark] = []
    for hint, count in resolved.hints:
        names = {node.id for node in tree.children[:count] if isinstance(node, Scope)}
        messages = 0
        for one in placed:
            if one.path.split("/", 2)[1] not in names:
                break
            messages += 1
        if messages or tools:
            found.append(CacheMark(messages=messages, id=hint.id, version=hint.version, ttl=hint.ttl))
    stays = next((index for index, one in enumerate(placed) if one.moves), len(placed))
    if found and any(one.first for one in placed[found[-1].messages : stays]):
        found.append(CacheMark(messages=stays))
    return tuple(found)


def unused_hints(resolved: Resolved, marks: Sequence[CacheMark]) -> list[str]:
    """Return a warning for each cache hint before which nothing is left."""
    known = {mark.id for mark in marks}
    return [
        f"the cache hint {hint.id!r} marks nothing: all before it was left out"
        for hint, _ in resolved.hints
        if hint.id not in known
    ]
