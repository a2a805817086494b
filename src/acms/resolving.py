"""Resolving: the steps of a prompt as a tree of messages, once sessions are read and plugins are asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from acms.assembly import Gathered
from acms.core import content
from acms.core.content import Fixed, Hint, Log, Plugged, Recalling, Said, Shrinking, Standing, Step
from acms.core.nodes import Atom, Keep, Node, Piece, Scope, Truncate, Window
from acms.events import Event
from acms.protocols import Codec

MARGIN = 1.25
"""How much more of a log is read than a budget holds by the session's own count."""

PLACES = 16
"""Pieces that stand for what is still to be recalled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a plugin is told about the render that asks it."""

    render_id: str
    #: Tokens the whole prompt may have; None without a budget.
    budget: int | None
    codec: Codec
    #: Gives an event to whoever listens to this render.
    tell: Callable[[Event], None]


@dataclass(slots=True)
class Resolved:
    """A tree, and what is still open in it."""

    tree: Scope
    #: What is to be recalled, by the path of its scope.
    recalls: dict[str, Recalling] = field(default_factory=dict)
    #: Cache hints, each with the names of the scopes before it.
    hints: list[tuple[Hint, frozenset[str]]] = field(default_factory=list)
    #: Logs that were read.
    logs: list[Gathered] = field(default_factory=list)
    #: Contents that a summary may stand for, by its name.
    standing: dict[str, Any] = field(default_factory=dict)


class Resolver:
    """Reads what the steps of one render need; every render has its own."""

    def __init__(self, request: Request, limit: int | None, read: Callable[[object], Sequence[Step]]) -> None:
        self._request = request
        self._limit = limit
        self._read = read
        self._found = Resolved(Scope(id="prompt"))

    async def resolve(self, steps: Sequence[Step]) -> Resolved:
        """Return the tree of a prompt: a scope for each step."""
        found = self._found
        names = content.named(steps)
        for index, step in enumerate(steps):
            if isinstance(step, Hint):
                found.hints.append((step, frozenset(names[:index])))
        made = await self._each(steps, names, found.tree.id, self._limit, None)
        children = [
            nodes[0] if len(nodes) == 1 and _is(nodes[0], name) else Scope(id=name, children=nodes)
            for name, nodes in zip(names, made, strict=True)
            if nodes
        ]
        found.tree = replace(found.tree, children=tuple(children))
        return found

    async def _nodes(
        self, steps: Sequence[Step], path: str, room: int | None, newest: int | None = None
    ) -> tuple[Node, ...]:
        """Return the nodes of some steps, in order."""
        made = await self._each(steps, content.named(steps), path, room, newest)
        return tuple([node for nodes in made for node in nodes])

    async def _each(
        self, steps: Sequence[Step], names: Sequence[str], path: str, room: int | None, newest: int | None
    ) -> Sequence[tuple[Node, ...]]:
        """Return the nodes of each step; what has to be waited for is waited for at the same time."""
        return await asyncio.gather(
            *(
                self._node(step, name, f"{path}/{name}", room, newest)
                for step, name in zip(steps, names, strict=True)
            )
        )

    async def _node(
        self, step: Step, name: str, path: str, room: int | None, newest: int | None
    ) -> tuple[Node, ...]:
        match step:
            case Said(message):
                return (Atom((message,)),)
            case Fixed(node):
                return (replace(node, id=name) if isinstance(node, Scope) else node,)
            case Log():
                return tuple(await self._log(step, room, newest))
            case Shrinking():
                return (await self._shrinking(step, name, path, room, newest),)
            case Plugged(plugin):
                made = self._read(await plugin.render(self._request))
                nodes = await self._nodes(made, f"{path}", room, newest)
                only = nodes[0] if len(nodes) == 1 else None
                return (replace(only, id=name) if isinstance(only, Scope) else Scope(id=name, children=nodes),)
            case Recalling():
                self._found.recalls[path] = step
                return (waiting(step, name),)
            case Standing():
                return (await self._standing(step, name, path, room),)
            case Hint():
                return ()

    async def _shrinking(
        self, step: Shrinking, name: str, path: str, room: int | None, newest: int | None
    ) -> Scope:
        ceiling = step.ceiling
        if step.share is not None and self._limit is not None:
            part = int(step.share * self._limit)
            ceiling = part if ceiling is None else min(ceiling, part)
        keeps_start = isinstance(step.strategy, Truncate) and step.strategy.keep is Keep.START
        caps = [room, ceiling, step.strategy.tokens if isinstance(step.strategy, Truncate) else None]
        least = None if keeps_start else min((cap for cap in caps if cap is not None), default=None)
        count = step.newest if newest is None else min(newest, step.newest or newest)
        nodes = await self._nodes(step.steps, path, least, count)
        if isinstance(step.strategy, Window):
            units = content.flat(nodes)
            nodes = tuple(content.kept(units if step.newest is None else content.newest(units, step.newest)))
        return Scope(
            id=name,
            children=nodes,
            priority=step.priority,
            strategy=step.strategy,
            ceiling=ceiling,
            floor=step.floor if ceiling is None else min(step.floor, ceiling),
        )

    async def _standing(self, step: Standing, name: str, path: str, room: int | None) -> Scope:
        from acms.summaries import standing

        return await standing(self, step, name, path, room)

    async def _log(self, step: Log, room: int | None, newest: int | None) -> list[Atom]:
        """Read of a log what could be shown."""
        view, codec = step.session, self._request.codec
        count = step.newest if newest is None else newest
        if count is not None:
            gathered = await view.said(messages=count)
        elif room is None:
            gathered = await view.said()
        else:
            wanted = int(room * MARGIN)
            while True:
                gathered = await view.said(budget=wanted)
                if gathered.whole or _cost(gathered, view.counter.name, codec) > room:
                    break
                wanted *= 2
        self._found.logs.append(gathered)
        return content.atoms(gathered.units, view.counter.name)


def _cost(gathered: Gathered, counter: str, codec: Codec) -> int:
    units = content.atoms(gathered.units, counter)
    return sum([codec.cost(message) for unit in units for message in unit.messages])


def _is(node: Node, name: str) -> bool:
    return isinstance(node, Scope) and node.id == name


def waiting(step: Recalling, name: str) -> Scope:
    """Return the scope of a recall before it is made: as large as it may become."""
    size = -(-step.tokens // PLACES)
    places = tuple([Piece("", f"{name}:{place}", tokens=size) for place in range(PLACES)]) if size else ()
    return Scope(
        id=name,
        children=(content.recalled(places),),
        priority=step.priority,
        strategy=Truncate(),
        moves=not step.in_place,
    )
