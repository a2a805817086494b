"""Resolving: turn the steps of a prompt into a tree of messages, by reading sessions and calling plugins."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from inspect import isawaitable
from typing import TYPE_CHECKING, NamedTuple

from acms.errors import ValidationError
from acms.log.active_entries import EntryGroup, find_older_summaries
from acms.model import Context, Entry, Kind, Role
from acms.observability.events import Event
from acms.plan.nodes import (
    ComposedMessage,
    KeptEnd,
    MessageGroup,
    Node,
    PlacedMessage,
    Scope,
    Truncate,
    Window,
    is_path_inside,
    replace_scopes,
    scope_at_path,
)
from acms.plan.tool_groups import join_answers
from acms.ports import Codec
from acms.prompt import excerpts
from acms.prompt import steps as content
from acms.prompt.fit_state import smallest_limit
from acms.prompt.manifest import Read
from acms.prompt.steps import (
    FixedNode,
    Hint,
    Log,
    PluginStep,
    Readable,
    RecallStep,
    ShrinkingContent,
    Step,
    SummarisedContent,
    WrittenMessage,
)
from acms.prompt_types import CacheMark, Tool
from acms.recall.window import LogSpan
from acms.results import ContextItems

if TYPE_CHECKING:
    from acms.prompt.summaries import SummaryRun

JOINING_TOKENS = 8
"""Tokens that a joined text may have more than the sum of its parts: counts of tokens are not additive."""
DEFAULT_RECALL_TOKENS = 2_000
"""Tokens of a recall in a prompt without a budget, unless the caller says otherwise."""
MARGIN = 1.25
"""Factor of the budget with which a log is read, since the session may count more tokens than the codec."""


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
    span: LogSpan
    #: Whether it contains all active entries.
    complete: bool
    lineage: tuple[tuple[str, int], ...] = ()
    #: Version from which on it is shown, and the stored summary that replaces older messages, or "".
    first: int = 0
    summary: str = ""

    @property
    def ids(self) -> list[str]:
        """Ids of the entries that were read."""
        return [entry.id for unit in self.span.units for entry in unit.entries]


@dataclass(slots=True)
class Resolved:
    """A prompt tree, and the decisions still open in it."""

    tree: Scope
    #: Recalls to be made, by the path of their scope.
    recalls: dict[str, RecallStep] = field(default_factory=dict)
    #: Cache hints, each with how many scopes of the tree are before it.
    hints: list[tuple[Hint, int]] = field(default_factory=list)
    #: Logs that were read.
    logs: list[LogRead] = field(default_factory=list)
    #: Path of the history that the next request continues, "" if there is none.
    continued_history: str = ""
    #: Summaries that may replace a part of the content, by name.
    summary_runs: dict[str, SummaryRun] = field(default_factory=dict)

    def shows(self, view: Readable, shown_ids: set[str]) -> bool:
        """Return whether a log was read whole, and all its entries are among those that are shown (`shown_ids`)."""
        return any(
            log.complete
            and (log.view.session_id, log.view.storage) == (view.session_id, view.storage)
            and shown_ids.issuperset(log.ids)
            for log in self.logs
        )


class ContentBudget(NamedTuple):
    """The limits that the steps around a content set for it, so that no more of a log is read than can be shown."""

    #: Raw tokens; None without a limit.
    tokens: int | None = None
    #: Whether a step around it shrinks. Required content is read whole, since the error must report its size.
    shrinks: bool = False
    #: Messages; None without a limit.
    newest: int | None = None
    #: Whether its beginning stays when it is cut, so that of two messages the later one may not be shown.
    keeps_beginning: bool = False


class Resolver:
    """Reads the data that the steps of one render need; every render has its own."""

    def __init__(
        self, request: Request, limit: int | None, read_content: Callable[[object], Sequence[Step]]
    ) -> None:
        self._request = request
        self._codec = request.codec
        self._limit = limit
        self._read_plugin_content = read_content
        self._resolved = Resolved(Scope(id="prompt"))

    async def resolve(self, steps: Sequence[Step]) -> Resolved:
        """Return the tree of a prompt: a scope for each step."""
        resolved = self._resolved
        names = content.name_steps(steps)
        nodes_by_step = await self._read_steps(steps, names, resolved.tree.id, ContentBudget(self._limit))
        children: list[Node] = []
        for step, name, nodes in zip(steps, names, nodes_by_step, strict=True):
            if isinstance(step, Hint):
                resolved.hints.append((step, len(children)))
            elif len(nodes) == 1 and isinstance(nodes[0], Scope):
                children.append(nodes[0])
            else:
                children.append(Scope(id=name, children=nodes))
        resolved.tree = replace(resolved.tree, children=_rename_duplicate_scopes(children))
        return resolved

    async def _read_content(
        self, steps: Sequence[Step], path: str, budget: ContentBudget
    ) -> tuple[Node, ...]:
        """Return the nodes of some steps, in order."""
        nodes_by_step = await self._read_steps(steps, content.name_steps(steps), path, budget)
        return _rename_duplicate_scopes([node for nodes in nodes_by_step for node in nodes])

    async def _read_steps(
        self, steps: Sequence[Step], names: Sequence[str], path: str, budget: ContentBudget
    ) -> Sequence[tuple[Node, ...]]:
        """Return the nodes of each step; all asynchronous reads run concurrently."""
        named_steps = zip(steps, names, strict=True)
        return await asyncio.gather(
            *(self._read_step(step, name, f"{path}/{name}", budget) for step, name in named_steps)
        )

    async def _read_step(self, step: Step, name: str, path: str, budget: ContentBudget) -> tuple[Node, ...]:
        """Return the nodes of a step; `path` is that of its scope. The scope of a recall is empty, and filled later."""
        match step:
            case WrittenMessage(message):
                return (MessageGroup((message,)),)
            case FixedNode(node):
                return (node,)
            case Log():
                return tuple(await self._read_log(step, budget))
            case ShrinkingContent():
                return (await self._build_shrinking_scope(step, name, path, budget),)
            case PluginStep():
                return (await self._call_plugin(step, name, path, budget),)
            case RecallStep():
                if step.tokens is None:
                    budget_tokens = self._request.budget
                    # The other half of a budget is for the prompt around the recall.
                    tokens = DEFAULT_RECALL_TOKENS if budget_tokens is None else budget_tokens // 2
                    step = step._replace(tokens=tokens)
                self._resolved.recalls[path] = step
                return (build_recall_scope(step, name, sum(tokens_for_recall(step, self._codec))),)
            case SummarisedContent():
                return (await self._build_summarised_scope(step, name, path, budget.tokens),)
            case Hint():
                return ()

    async def _call_plugin(self, step: PluginStep, name: str, path: str, budget: ContentBudget) -> Scope:
        """Ask a plugin for its content and read it as a scope; `path` names the plugins that led to it."""
        if path.count("/") > content.DEPTH:
            raise ValidationError(f"plugins are nested more than {content.DEPTH} deep", field="plugin")
        awaitable = step.plugin.render(self._request)
        if not isawaitable(awaitable):
            raise ValidationError(f"{name!r} must have an async method render", field="plugin")
        steps = self._read_plugin_content(await awaitable)
        first = steps[0] if len(steps) == 1 else None
        if isinstance(first, FixedNode) and isinstance(first.node, Scope):
            return first.node  # a single scope keeps its own name, priority and strategy
        return Scope(id=name, children=await self._read_content(steps, path, budget))

    async def _build_shrinking_scope(
        self, step: ShrinkingContent, name: str, path: str, budget: ContentBudget
    ) -> Scope:
        """Read a content that shrinks, no more of it than its limits can show, and return it as a scope."""
        strategy, ceiling = step.strategy, step.ceiling
        if step.share is not None and self._limit is not None:
            ceiling = smallest_limit(ceiling, int(step.share * self._limit))
        cap = strategy.tokens if isinstance(strategy, Truncate) else None
        keeps_start = isinstance(strategy, Truncate) and strategy.keep is KeptEnd.START
        # To keep the start, a log must be read whole: it is read from its end.
        tokens = None if keeps_start else smallest_limit(budget.tokens, ceiling, cap)
        inner = ContentBudget(
            tokens=tokens,
            shrinks=budget.shrinks or strategy is not None,
            newest=smallest_limit(budget.newest, step.newest),
            keeps_beginning=budget.keeps_beginning or keeps_start,
        )
        nodes = await self._read_content(step.steps, path, inner)
        if isinstance(strategy, Window):
            groups = content.flatten_nodes(nodes)
            if step.newest is not None:
                groups = content.select_newest_groups(groups, step.newest)
            else:
                groups = content.mark_summaries_mandatory(groups, self._codec.cost, tokens)
            nodes = tuple(content.mark_newest_mandatory(groups))
        return Scope(
            id=name,
            children=nodes,
            priority=step.priority,
            strategy=strategy,
            ceiling=ceiling,
            floor=step.floor if ceiling is None else min(step.floor, ceiling),
        )

    async def _build_summarised_scope(
        self, step: SummarisedContent, name: str, path: str, room: int | None
    ) -> Scope:
        """Return the scope of a content that may be summarised, with the stored summary of it.

        A log is read only from where its stored summary ends, and as far back as `room` tokens reach.
        """
        if step.id in self._resolved.summary_runs:
            raise ValidationError(f"two summaries of one prompt are named {step.id!r}", field="id")
        run: SummaryRun = step.summaries.run(
            step.id, self._codec.counter, tokens=step.tokens, role=step.role, path=path
        )
        self._resolved.summary_runs[step.id] = run
        only_step = step.steps[0] if len(step.steps) == 1 else None
        if isinstance(only_step, Log):
            loaded, span = await run.of_log(only_step.session, room=room)
            summary = "" if span.whole else step.id
            first = next((group.first for group in loaded.groups if group.first), span.version + 1)
            await self._add_log(span, only_step.session, span.whole, first=first, summary=summary)
        else:
            nodes = await self._read_content(step.steps, path, ContentBudget())
            loaded = await run.load(join_answers(content.flatten_nodes(nodes)))
            assert loaded is not None  # the content is whole
        return Scope(
            id=name,
            children=tuple(content.mark_newest_mandatory(loaded.groups)),
            priority=step.priority,
            strategy=loaded.strategy,
        )

    async def _read_log(self, step: Log, budget: ContentBudget) -> list[MessageGroup]:
        """Return the part of a log that could be shown as groups, with active summaries of what is older."""
        session: Readable = step.session
        # The newest messages are read, by their number or their tokens; None is no limit.
        count = budget.newest
        limit = budget.tokens if budget.shrinks and count is None else None
        span = await self._gather(session, limit, count, budget)
        units = span.units
        if limit is not None:
            older_summaries = find_older_summaries(units, span.replacements)
            redacted = session.redactor.redact_entries(older_summaries)
            units = [*(EntryGroup((entry,)) for entry in redacted), *units]
        sealed_summary = None
        if count is None:
            sealed_summary = content.find_sealed_compaction(session, span.replacements, self._codec.vendors)
        if sealed_summary is not None:
            units = content.substitute_summary(units, sealed_summary)
        span = replace(span, units=units)
        groups = self._build_groups(span, session, budget)
        if step.first:
            groups = await self._with_first(step, span, groups, budget)
        messages = sum([len(unit.entries) for unit in units])
        shows_all = count is None or messages <= count
        await self._add_log(span, session, span.whole and sealed_summary is None and shows_all)
        return groups

    async def _gather(
        self, session: Readable, limit: int | None, count: int | None, budget: ContentBudget
    ) -> LogSpan:
        """Read the newest `count` messages, or those that fill `limit` tokens, or everything if both are None.

        The session's count decides what is read; more is read until the limit is filled by the codec's count too.
        """
        counts_alike = session.counter.name == self._codec.counter.name
        read_budget = None if limit is None else int(limit * MARGIN)
        while True:
            span = await session.read_span(budget=read_budget, messages=count)
            if read_budget is None or limit is None or span.whole or counts_alike:
                return span
            groups = self._build_groups(span, session, budget)
            if sum([self._codec.cost(message) for group in groups for message in group.messages]) > limit:
                return span
            read_budget *= 2

    async def _with_first(
        self, step: Log, span: LogSpan, groups: Sequence[MessageGroup], budget: ContentBudget
    ) -> list[MessageGroup]:
        """Return the groups of a log with those that `step.first` names in front, where they are never left out."""
        session = step.session
        rows = [row for row in await session.storage.get(step.first) if row is not None]
        units = [EntryGroup((entry,)) for entry in session.redactor.redact_entries(rows)]
        front = self._build_groups(replace(span, units=units), session, budget)
        other_groups = [
            group for group in groups if not set(step.first).intersection(group.messages[0].sources)
        ]
        return [*(group._replace(mandatory=True) for group in front), *other_groups]

    def _build_groups(self, span: LogSpan, session: Readable, budget: ContentBudget) -> list[MessageGroup]:
        """Return the units of a log as groups, with labels on those that may be outdated."""
        units = span.units
        # A recent unit gets no label for what a later unit says. If the beginning of the content is kept, units may be
        # shown without the later ones, so only the last unit counts as recent.
        recent_units, older_units = units, units[:0]
        if budget.keeps_beginning:
            recent_units, older_units = units[-1:], units[:-1]
        labels = span.labels.by_id(recent_units, older_units)
        return content.build_groups(units, session.counter.name, self._codec.vendors, labels)

    async def _add_log(
        self, span: LogSpan, view: Readable, complete: bool, *, first: int = 0, summary: str = ""
    ) -> None:
        """Note that a log was read, from version `first` on, for the manifest and the other steps."""
        lineage: tuple[tuple[str, int], ...] = ()
        if span.context:
            lineage = (await view.storage.context(span.context)).lineage
        versions = [entry.version for unit in span.units for entry in unit.entries]
        first = first or min(versions, default=0)
        self._resolved.logs.append(LogRead(view, span, complete, lineage, first, summary))


def _rename_duplicate_scopes(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Return nodes of which no two scopes have the same id."""
    ids = {node.id for node in nodes if isinstance(node, Scope)}
    seen_ids: set[str] = set()
    renamed_nodes: list[Node] = []
    for node in nodes:
        if isinstance(node, Scope):
            id, number = node.id, 1
            while id in seen_ids or (number > 1 and id in ids):
                number += 1
                id = f"{node.id}-{number}"
            seen_ids.add(id)
            node = node if id == node.id else replace(node, id=id)
        renamed_nodes.append(node)
    return tuple(renamed_nodes)


def tokens_for_recall(step: RecallStep, codec: Codec, max_tokens: int | None = None) -> tuple[int, int]:
    """Return the tokens that recalled text may fill, and those of the message around it.

    `max_tokens` are the tokens that both may have together; None is no limit.
    """
    frame = excerpts.cost_of_frame(codec) + JOINING_TOKENS
    tokens = step.tokens or 0
    if max_tokens is not None:
        tokens = max(0, min(tokens, max_tokens - frame))
    return tokens, frame


def build_recall_scope(
    step: RecallStep, name: str, tokens: int, block: ComposedMessage | None = None
) -> Scope:
    """Return the scope of a recall with the block of its pieces, or an empty one before the recall is made.

    It is fitted as moving content even when it is laid out in its place, so that a history leaves tokens for it.
    """
    return Scope(
        id=name,
        children=(block,) if block is not None and block.pieces else (),
        priority=step.priority,
        strategy=Truncate(tokens),
        moves=True,
    )


def lay_out_messages(placed: Sequence[PlacedMessage]) -> tuple[PlacedMessage, ...]:
    """Return messages with the moving ones (recalled content) before the newest user message.

    So an answer in progress stays last, and the model's actions in a turn stay after the question. Without a user
    message the moving ones go last. The order is kept otherwise, and the messages of one group are not separated.
    """
    stable = [placement for placement in placed if not placement.moves]
    moving = [placement for placement in placed if placement.moves]
    if not moving:
        return tuple(placed)
    questions = [index for index, placement in enumerate(stable) if placement.message.role is Role.USER]
    end = questions[-1] if questions else len(stable)
    while 0 < end < len(stable) and stable[end - 1].group == stable[end].group:
        end -= 1
    return (*stable[:end], *moving, *stable[end:])


def cache_marks(
    placed: Sequence[PlacedMessage], tree: Scope, resolved: Resolved, codec: Codec, tools: Sequence[Tool]
) -> tuple[CacheMark, ...]:
    """Return the cache hints as message counts: the contiguous beginning of the messages before each hint.

    When there is a hint and a log is shown, the end of the content that stays is marked too: the next turn reads up to
    there. Without a hint a history that the next request continues is marked, if the codec says so.
    """
    if not resolved.hints:
        marks_history = codec.marks_history and resolved.continued_history
        return _mark_history(placed, resolved.continued_history, codec, tools) if marks_history else ()
    marks: list[CacheMark] = []
    for hint, scope_count in resolved.hints:
        names = {node.id for node in tree.children[:scope_count] if isinstance(node, Scope)}
        messages = 0
        while messages < len(placed) and placed[messages].path.split("/", 2)[1] in names:
            messages += 1
        if messages or tools:
            marks.append(CacheMark(messages=messages, id=hint.id, version=hint.version, ttl=hint.ttl))
    stable_end = next((index for index, placement in enumerate(placed) if placement.moves), len(placed))
    # Only messages of a log have a first version.
    if marks and any(placement.first for placement in placed[marks[-1].messages : stable_end]):
        marks.append(CacheMark(messages=stable_end))
    return tuple(marks)


def _mark_history(
    placed: Sequence[PlacedMessage], path: str, codec: Codec, tools: Sequence[Tool]
) -> tuple[CacheMark, ...]:
    """Return marks at the end of the messages before the history at a path, and at the end of the history.

    The next turn reads up to the second, and the first request of another session up to the first. A prefix that is
    too short to be cached has no mark.
    """
    shown = [index for index, placement in enumerate(placed) if is_path_inside(placement.path, path)]
    if not shown or any(placement.moves for placement in placed[: shown[-1]]):
        return ()
    marks: list[CacheMark] = []
    for end in (shown[0], shown[-1] + 1):
        tokens = codec.base(tools) + sum(placement.tokens for placement in placed[:end])
        if codec.cached(tokens):
            marks.append(CacheMark(messages=end))
    return tuple(marks)


def unused_hints(resolved: Resolved, marks: Sequence[CacheMark]) -> list[str]:
    """Return a warning for each cache hint before which no message is shown."""
    marked_ids = {mark.id for mark in marks}
    return [
        f"the cache hint {hint.id!r} marks nothing: all before it was left out"
        for hint, _ in resolved.hints
        if hint.id not in marked_ids
    ]


def list_reads(resolved: Resolved, recalls: Iterable[ContextItems]) -> tuple[Read, ...]:
    """Return each log that was read or recalled from, with the first and the last version that was read."""
    reads: dict[tuple[str, int], Read] = {}
    for log in resolved.logs:
        span = log.span
        if span.context:
            first = 0 if span.whole else log.first
            read = Read(span.context, span.version, first, log.lineage, log.summary)
            reads[span.context, span.version] = read
    for items in recalls:
        if items.context:
            reads.setdefault((items.context, items.version), Read(items.context, items.version))
    return tuple(reads.values())


TRAILING_EDITS = 8
"""Edits in a row, behind the last turn of a log, that are looked through to find that turn."""


async def find_last_turn(session: Readable, context: Context) -> Entry | None:
    """Return the last message of a session's log before its newest question; excerpts stand between the two."""
    newest = await session.storage.read(context.id, kinds=(Kind.MESSAGE,), newest=TRAILING_EDITS + 2)
    messages = [message for message in newest if not message.replaces]
    answered = messages[:-1] if messages and messages[-1].role is Role.USER else messages
    return answered[-1] if answered else None


def visible_entry_ids(placed: Iterable[PlacedMessage]) -> set[str]:
    """Return the ids of the entries that some messages show."""
    ids: set[str] = set()
    for placement in placed:
        ids.update(placement.message.sources)
        for piece in placement.pieces:
            ids.update(piece.sources)
    return ids


def drop_repeated_recalls(
    tree: Scope, placed: Sequence[PlacedMessage], recalls: Mapping[str, RecallStep]
) -> Scope | None:
    """Return the tree without recalled pieces that the history shows too, or None if there are none.

    A recall may take fewer tokens than its budget, and then the history shows more entries than foreseen.
    """
    history_ids = visible_entry_ids(placement for placement in placed if placement.path not in recalls)
    scopes: dict[str, Scope] = {}
    for placement in placed:
        if placement.path not in recalls or all(
            history_ids.isdisjoint(piece.sources) for piece in placement.pieces
        ):
            continue
        scope = scope_at_path(tree, placement.path)
        blocks: list[Node] = []
        for node in scope.children:
            if isinstance(node, ComposedMessage):
                pieces = tuple([piece for piece in node.pieces if history_ids.isdisjoint(piece.sources)])
                if pieces:
                    blocks.append(node._replace(pieces=pieces))
        scopes[placement.path] = replace(scope, children=tuple(blocks))
    return replace_scopes(tree, scopes) if scopes else None
