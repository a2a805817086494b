"""Content: the values a caller may put into a prompt, as messages and as steps of a builder.

A prompt is a sequence of steps until it is rendered. Only then are sessions read and plugins called, and each step
becomes a scope of the prompt tree (`acms.plan.nodes`).
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, cast, runtime_checkable

from acms.errors import ValidationError
from acms.knowledge import Scope as SearchScope
from acms.log import compacted, provider_messages, repair, validation
from acms.log.active_entries import EntryGroup, Replacements, rendered_role
from acms.log.encoding import is_summary_id
from acms.log.trust import is_instruction, trust_of_entry
from acms.log.validity import attach_label
from acms.model import Entry, Json, Kind, Media, Origin, Part, Raw, Reasoning, Role, Text, ToolResult
from acms.plan.nodes import MessageGroup, Node, Scope, Strategy, Window
from acms.plan.turns import find_turn_start
from acms.prompt.fit_state import compose_message
from acms.prompt_types import PromptMessage, Tool
from acms.results import ContextItems
from acms.text import chat_messages

if TYPE_CHECKING:
    from acms.ports import StorageBackend, TokenCounter
    from acms.privacy.redactor import Redactor
    from acms.prompt.render_log import RenderLog
    from acms.recall.window import LogSpan

DEPTH = 100
"""Most levels of a prompt tree: functions on it recurse once for each."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")

# ── the steps of a builder ──────────────────────────────────────────────────────────────────────────────────────────


class WrittenMessage(NamedTuple):
    """A message the caller wrote."""

    message: PromptMessage


@runtime_checkable
class Readable(Protocol):
    """What a prompt reads of a session or view: see `acms.session_internals`."""

    @property
    def session_id(self) -> str:
        """The caller's name for the conversation."""
        ...

    @property
    def ends_at(self) -> int | str | None:
        """The version at which it ends, or its tag; None for a session, which goes on."""
        ...

    @property
    def effort(self) -> float:
        """Share of a prompt's budget that the recall for a turn may take."""
        ...

    @property
    def counter(self) -> TokenCounter:
        """How the tokens of its messages are counted."""
        ...

    @property
    def storage(self) -> StorageBackend:
        """Where its log lies."""
        ...

    @property
    def redactor(self) -> Redactor:
        """The redaction applied to its entries."""
        ...

    async def context_id(self) -> str | None:
        """Return the id of its log; None while nothing was written."""
        ...

    async def read_span(
        self,
        *,
        budget: int | None = None,
        messages: int | None = None,
        since: int | None = None,
        began: int | None = None,
    ) -> LogSpan:
        """Return the active entries as units, oldest first: all, or the newest that fill a budget or a number.

        `since` are tokens of the log before the first entry to read, for a window that began at the version `began`.
        """
        ...

    async def recall_for_prompt(
        self,
        query: str,
        *,
        budget: int,
        others_whole: int = 0,
        user_words: int = 0,
        exclude: Iterable[str] = (),
        scope: SearchScope | None = None,
        min_relevance: float = 0.0,
        where: Mapping[str, Any] | None = None,
        limit: int | None = None,
        include_superseded: bool = False,
    ) -> ContextItems:
        """Return the recalled items that a prompt shows with its history."""
        ...


@runtime_checkable
class SessionOrView(Protocol):
    """A session at its head, or a view of it at a version, as a caller puts it in a prompt."""

    @property
    def internals(self) -> Readable:
        """What a prompt reads of it."""
        ...


@runtime_checkable
class SessionAtService(Protocol):
    """A session at a service, which renders the prompts that read it."""

    @property
    def session_id(self) -> str:
        """The caller's name for the conversation."""
        ...

    @property
    def ends_at(self) -> int | str | None:
        """The version at which it ends, or its tag; None for a session, which goes on."""
        ...

    @property
    def home(self) -> Any:
        """The object that requests renders from the service; the same for all sessions of one client."""
        ...


class Inside(Protocol):
    """A blocking session or store of `acms.sync`; a prompt of that module reads the async object inside."""

    @property
    def inner(self) -> Any:
        """The async object that does the work."""
        ...


class Log(NamedTuple):
    """Messages of a session."""

    session: Readable
    #: Ids of entries in front that are never left out.
    first: tuple[str, ...] = ()


class FixedNode(NamedTuple):
    """A node of the prompt tree that the caller made."""

    node: Node


class ShrinkingContent(NamedTuple):
    """A content with a way to make it smaller."""

    name: str
    steps: tuple[Step, ...]
    strategy: Strategy | None
    priority: int
    #: Number of its newest messages to which it is limited; None for all.
    newest: int | None = None
    floor: int = 0
    ceiling: int | None = None
    #: Part of the budget it may have at most.
    share: float | None = None


class SummarisedContent(NamedTuple):
    """A content whose oldest part a stored summary may replace."""

    steps: tuple[Step, ...]
    id: str
    #: The store of the summary and its summarizer, as `acms.prompt.summaries.Summaries`, which is loaded on demand.
    summaries: Any
    tokens: int
    priority: int
    role: Role


class RecallStep(NamedTuple):
    """A recall from a session's past for a query."""

    session: Readable
    query: str
    #: None for a share of the prompt's budget.
    tokens: int | None
    priority: int
    in_place: bool
    #: Whether it stays at its position for the following turns; else it is chosen again each time.
    keeps_position: bool
    options: Mapping[str, Any]


class PluginStep(NamedTuple):
    """A plugin, whose content is requested at each render."""

    plugin: Any
    name: str


class Hint(NamedTuple):
    """The end of a prefix that is to be cached."""

    id: str
    version: str
    ttl: int | None


Step: TypeAlias = (
    WrittenMessage | Log | FixedNode | ShrinkingContent | SummarisedContent | RecallStep | PluginStep | Hint
)


# ── messages ────────────────────────────────────────────────────────────────────────────────────────────────────────


def build_message(
    role: object,
    content: object = "",
    *,
    parts: Sequence[Part] | None = None,
    tool_calls: Sequence[Mapping[str, Json]] | None = None,
    tool_call_id: str | None = None,
    reasoning: str | Reasoning | None = None,
    name: str | None = None,
) -> PromptMessage:
    """Return a message that keeps the rules of its role, or raise `ValidationError` with the field at fault.

    Calls and reasoning belong to the assistant, results to a tool; a message of a tool holds only results and media.
    """
    parsed_role = validation.parse_choice(role, Role, "role")
    given_parts: list[Part] = repair.repair_characters(list(parts or ()))
    if reasoning is not None:
        if not isinstance(reasoning, Reasoning):
            reasoning = Reasoning(_validate_text(reasoning, "reasoning"))
        given_parts.insert(0, reasoning)
    if content is not None and not isinstance(content, str):
        raise validation.content_type_error(content, "content")
    text = "" if content is None else _validate_text(content, "content")
    tool_calls = repair.repair_characters(tool_calls)
    built, text = validation.build_message_parts(parsed_role, text, given_parts, tool_calls, tool_call_id)
    built = built or (Text(text),)
    if reasoning is not None:  # a model thinks before it speaks
        built = tuple(sorted(built, key=lambda part: not isinstance(part, Reasoning)))
    names_call = tool_call_id is not None or bool(given_parts)
    answers_call = names_call and all(isinstance(part, ToolResult | Media) for part in built)
    if parsed_role is Role.TOOL and not answers_call:
        raise ValidationError(
            "a tool message must name its call",
            field="tool_call_id",
            options=("give tool_call_id", "give parts=[ToolResult(…)]"),
        )
    if name is not None:
        name = validation.validate_name(name, "name")
    return PromptMessage(role=parsed_role, parts=built, name=name)


def _validate_text(value: object, field: str) -> str:
    return validation.repair_and_validate_text(value, field)


_FIELDS = frozenset((*validation.MESSAGE_CONTENT, "actor_id", "name", "reasoning", "is_error"))
_OTHERS = frozenset((*validation.MESSAGE_ATTRIBUTES, *validation.MESSAGE_KEYS, "id", "type")) - _FIELDS
"""Fields of a message to be ingested that mean nothing in a prompt."""
_TOOL_FIELDS = frozenset(("type", "name", "description", "parameters", "strict"))


def parse_message_mapping(value: Mapping[str, Any], field: str) -> list[PromptMessage]:
    """Parse a message in our form or a provider's, which may be several messages; bytes in it become data URLs."""
    value = repair.repair_characters(value)
    if value.get("type", "message") == "message" and not isinstance(value.get("content"), list | tuple):
        return [_parse_neutral_message(value, field)]
    messages: list[PromptMessage] = []
    for turn in provider_messages.parse_provider_message(value, field, keep=_encode_data_url):
        turn_parts: Sequence[Part] = turn.get("parts") or ()
        parts = [
            part
            for part in turn_parts
            if not (isinstance(part, Raw) and part.vendor == provider_messages.EXTRA_FIELDS)
        ]
        messages.append(
            build_message(
                turn["role"],
                turn["content"],
                parts=parts,
                tool_call_id=turn.get("tool_call_id"),
                name=turn.get("actor_id"),
            )
        )
    return messages


def _encode_data_url(data: bytes, mime: str) -> str:
    return f"data:{mime};base64,{b64encode(data).decode()}"


def _parse_neutral_message(value: Mapping[str, Any], field: str) -> PromptMessage:
    """Read a message with the fields of `ingest`; `field` names it in errors."""
    unknown = set(value) - _FIELDS - _OTHERS
    if unknown:
        raise provider_messages.unknown_field_error(unknown, field, _FIELDS | _OTHERS)
    if "role" not in value:
        raise ValidationError("needs a role", field=field)
    parts = value.get("parts")
    call_id, content = value.get("tool_call_id"), value.get("content", "")
    try:
        if value.get("is_error"):  # the content becomes a failed result of its own
            call_id = validation.validate_name(call_id, "tool_call_id")
            parts = [ToolResult(call_id, _validate_text(content, "content"), True)]
            call_id = content = None
        return build_message(
            value["role"],
            content,
            parts=parts,
            tool_calls=value.get("tool_calls"),
            tool_call_id=call_id,
            reasoning=value.get("reasoning"),
            name=value.get("name") or value.get("actor_id"),
        )
    except ValidationError as error:
        raise _inside_field(error, field) from error


def _inside_field(error: ValidationError, field: str) -> ValidationError:
    """Return an error of a message with the path of its field: `field` holds the message."""
    problem = str(error).removeprefix(f"{error.field}: ")
    return ValidationError(problem, field=f"{field}.{error.field}", options=error.options)


def validate_message(message: PromptMessage, field: str) -> PromptMessage:
    """Return a message made elsewhere after checking the rules of its role."""
    try:
        rebuilt = build_message(message.role, parts=message.parts)
    except ValidationError as error:
        raise _inside_field(error, field) from error
    return message if rebuilt.parts == message.parts else replace(message, parts=rebuilt.parts)


# ── tools ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def parse_tool(value: object, field: str) -> Tool:
    """Read a function the model may call: a `Tool`, or a mapping in neutral, OpenAI's or Anthropic's form."""
    if isinstance(value, Tool):
        tool = value
    elif isinstance(value, Mapping):
        inner = value.get("function", value)
        if not isinstance(inner, Mapping):
            raise ValidationError("must be a mapping", field=f"{field}.function")
        if value.get("type", "function") != "function":
            raise ValidationError(f"{value['type']!r} is not function", field=f"{field}.type")
        if "input_schema" in inner and "parameters" not in inner:  # Anthropic's name of it
            inner = {**inner, "parameters": inner["input_schema"]}
            del inner["input_schema"]
        unknown = set(inner) - _TOOL_FIELDS
        if unknown:
            raise provider_messages.unknown_field_error(unknown, field, _TOOL_FIELDS)
        tool = Tool(
            name=inner.get("name", ""),
            description=inner.get("description") or "",
            parameters=inner.get("parameters") or {"type": "object", "properties": {}},
            strict=bool(inner.get("strict", False)),
        )
    else:
        raise ValidationError(f"must be a Tool or a mapping, not {type(value).__name__}", field=field)
    if not isinstance(tool.name, str) or not _NAME.match(tool.name):
        raise ValidationError("must be 1 to 64 letters, digits, _ or -", field=f"{field}.name")
    validation.validate_text(tool.description, f"{field}.description")
    if not isinstance(tool.parameters, Mapping):
        raise ValidationError("must be a JSON Schema", field=f"{field}.parameters")
    validation.serialize_document(dict(tool.parameters), f"{field}.parameters")
    return tool


def parse_tools(values: Sequence[object]) -> tuple[Tool, ...]:
    """Read tools, each name once."""
    if not isinstance(values, Sequence) or isinstance(values, str | bytes):
        raise ValidationError(f"must be a list, not {type(values).__name__}", field="tools")
    tools: dict[str, Tool] = {}
    for index, value in enumerate(values):
        tool = parse_tool(value, f"tools[{index}]")
        if tool.name in tools:
            raise ValidationError(f"has two tools named {tool.name!r}", field="tools")
        tools[tool.name] = tool
    return tuple(tools.values())


# ── the log as groups ────────────────────────────────────────────────────────────────────────────────────────────────


def prompt_message_of_entry(entry: Entry, counter: str, label: str = "") -> PromptMessage:
    """Return a message or a summary of a log as it stands in a prompt.

    `counter` names the counter of its stored tokens. `label` says that the entry may be outdated ("" if it is not), and
    is written into its text.
    """
    if entry.kind is Kind.SUMMARY:
        text = chat_messages.wrap_summary(attach_label(entry.content, label))
        return PromptMessage(role=Role.USER, parts=(Text(text),), sources=(entry.id,))
    role = rendered_role(entry) or Role.USER
    name: str | None = None
    if entry.actor is not None and role is not Role.TOOL:
        name = chat_messages.sendable_name(entry.actor, role)
    # The result of a tool whose call is not shown is quoted in a message of the user.
    is_result = entry.role is Role.TOOL or any(isinstance(part, ToolResult) for part in entry.parts)
    if role is Role.USER and is_result:
        text = chat_messages.wrap_text(entry.content, chat_messages.ORPHAN)
        return PromptMessage(role=role, parts=(Text(text),), name=name, sources=(entry.id,))
    tokens: int | None = None
    parts = entry.parts
    if role is Role.USER and trust_of_entry(entry) is Origin.EXTERNAL:
        parts = tuple(map(_wrap_external_part, parts or (Text(entry.content),)))
    elif not parts:
        parts = (Text(attach_label(chat_messages.escape_passages(entry.content), label)),)
        tokens = None if label else entry.tokens
    elif role is Role.USER:
        parts = tuple(map(_escape_part, parts))
    return PromptMessage(
        role=role,
        parts=parts,
        name=name,
        sources=(entry.id,),
        group=entry.group,
        tokens=tokens,
        counter="" if tokens is None else counter,
    )


def _wrap_external_part(part: Part) -> Part:
    return Text(chat_messages.wrap_external_text(part.text)) if type(part) is Text else part


def _escape_part(part: Part) -> Part:
    return Text(chat_messages.escape_passages(part.text)) if type(part) is Text else part


def prompt_messages_of_entry(
    entry: Entry, counter: str, vendors: Sequence[str], label: str = ""
) -> tuple[PromptMessage, ...]:
    """Return an entry of a log as it stands in a prompt.

    A compaction by one of the `vendors` is given back word for word, unless a label says that it is outdated.
    """
    compacted_parts: list[Raw] = []
    if entry.kind is Kind.SUMMARY and not label:
        compacted_parts = [part for part in entry.parts if isinstance(part, Raw) and part.vendor in vendors]
    if not compacted_parts:
        return (prompt_message_of_entry(entry, counter, label),)
    messages: list[PromptMessage] = []
    for part in compacted_parts:
        item = compacted.parse_raw_json(part)
        if isinstance(item, Mapping) and "role" in item:  # a user message, kept beside the compacted rest
            messages += parse_message_mapping(item, "item")
        else:
            messages.append(PromptMessage(role=Role.ASSISTANT, parts=(part,)))
    return tuple([replace(message, sources=(entry.id,)) for message in messages])


def find_sealed_compaction(
    view: Readable, replacements: Replacements, vendors: Sequence[str]
) -> Entry | None:
    """Return the newest compaction that only its provider reads, if that provider is among `vendors`.

    Return None when any message it covers was edited, retracted or summarised since: it would still contain the old
    text.
    """
    for entry in view.redactor.redact_entries(replacements.sealed_summaries):
        if any(isinstance(part, Raw) and part.vendor in vendors for part in entry.parts):
            return None if replacements.is_outdated(entry) else entry
    return None


def substitute_summary(units: Sequence[EntryGroup[Entry]], summary: Entry) -> list[EntryGroup[Entry]]:
    """Return the units of a log with a summary replacing those it covers, after the leading instructions."""
    kept_units: list[EntryGroup[Entry]] = []
    for unit in units:
        version = unit.entries[0].version
        if not any(first <= version <= last for first, last in summary.replaces):
            kept_units.append(unit)
    index = 0
    while index < len(kept_units) and is_instruction(kept_units[index].entries[0]):
        index += 1
    return [*kept_units[:index], EntryGroup((summary,)), *kept_units[index:]]


def build_groups(
    units: Sequence[EntryGroup[Entry]],
    counter: str,
    vendors: Sequence[str] = (),
    labels: Mapping[str, str] = MappingProxyType({}),
) -> list[MessageGroup]:
    """Return the units of a log as groups, each with its position in the log; `vendors` read their own compactions.

    `labels` are those of outdated units, by id. An entry that replaces others, an edit or a summary, has the
    position of the next message that was never edited: that position is known without reading the replaced entries, and
    does not change.
    """
    newest_first: list[MessageGroup] = []
    position = 0  # tokens of the log before the unit
    for unit in reversed(units):
        last_entry = unit.entries[-1]
        if last_entry.kind is Kind.MESSAGE and not last_entry.replaces:
            position = last_entry.total - last_entry.tokens
        elif not position:  # no message follows it: it is at the end of the log
            position = last_entry.total
        versions = [entry.version for entry in unit.entries]
        messages: list[PromptMessage] = []
        for entry in unit.entries:
            messages += prompt_messages_of_entry(entry, counter, vendors, labels.get(entry.id, ""))
        newest_first.append(MessageGroup(tuple(messages), min(versions), max(versions), before=position))
    newest_first.reverse()
    return newest_first


def find_readable(value: object) -> Readable | None:
    """Return what a prompt reads of a session or view; None for any other value.

    A session at a service is returned as it is: it is never read here.
    """
    if isinstance(value, SessionOrView):
        return value.internals
    return cast("Readable", value) if isinstance(value, Readable | SessionAtService) else None


def find_render_service(steps: Sequence[Step]) -> Any:
    """Return the service that renders some steps, or None when all sessions are read in this process."""
    sessions = _sessions_of_steps(steps)
    services = {session.home if isinstance(session, SessionAtService) else None for session in sessions}
    if len(services) > 1:
        raise ValidationError(
            "reads sessions of this process and of a service, or of two: one place must render it",
            field="prompt",
            options=("take all sessions from one Client", "recall(…) first, and add the items as messages"),
        )
    return next(iter(services), None)


def find_render_log(steps: Sequence[Step]) -> RenderLog | None:
    """Return the render log of the first session that is read and keeps one."""
    render_logs = [getattr(session, "render_log", None) for session in _sessions_of_steps(steps)]
    return next(filter(None, render_logs), None)


def _sessions_of_steps(steps: Sequence[Step | Node]) -> Iterator[Readable]:
    """Yield the session of each step that reads one, also of steps inside steps."""
    for step in steps:
        if isinstance(step, Log | RecallStep):
            yield step.session
        yield from _sessions_of_steps(_list_children(step))


# ── steps ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class HistoryAndRecall(NamedTuple):
    """The history that keeps its position between turns, and its recall, among the steps of a prompt."""

    log: Log
    priority: int
    #: Name of the scope of the history, and of those behind it.
    name: str
    names_behind: frozenset[str]
    #: The recall and the name of its scope; None and "" without one.
    recall: RecallStep | None
    recall_name: str
    #: All steps, with empty scopes where the history and its recall are.
    other_steps: Sequence[Step]


def find_history_and_recall(steps: Sequence[Step]) -> HistoryAndRecall | None:
    """Return the history that keeps its position between turns, and its recall.

    None unless exactly one step shows the newest messages of a session in a window with slack. A recall with `in_place`
    does not count, since the caller chose its position.
    """
    logs = [_log_of_history(step) for step in steps]
    indexes = [index for index, log in enumerate(logs) if log is not None]
    if len(indexes) != 1:
        return None
    index = indexes[0]
    history, log = steps[index], logs[index]
    assert isinstance(history, ShrinkingContent)
    assert log is not None
    names = name_steps(steps)
    other_steps = list(steps)
    other_steps[index] = FixedNode(Scope(id=names[index], priority=history.priority))
    recall: RecallStep | None = None
    recall_name = ""
    for number, step in enumerate(steps):
        if isinstance(step, RecallStep) and not step.in_place and _is_same_session(step.session, log.session):
            recall, recall_name = step, names[number]
            other_steps[number] = FixedNode(Scope(id=recall_name))
            break
    names_behind = frozenset(names[index + 1 :])
    return HistoryAndRecall(
        log, history.priority, names[index], names_behind, recall, recall_name, other_steps
    )


def _log_of_history(step: Step) -> Log | None:
    """Return the log if a step shows its newest messages and nothing else."""
    if not isinstance(step, ShrinkingContent) or step.newest is not None or len(step.steps) != 1:
        return None
    strategy, log = step.strategy, step.steps[0]
    if not isinstance(strategy, Window) or not strategy.slack:
        return None
    return log if isinstance(log, Log) else None


def _is_same_session(first: Readable, second: Readable) -> bool:
    has_same_end = first.ends_at == second.ends_at
    return first.session_id == second.session_id and first.storage == second.storage and has_same_end


def has_moving_content(step: Step | Node) -> bool:
    """Return whether a step or node contains content that changes from turn to turn, which is recalled content."""
    if isinstance(step, RecallStep) or (isinstance(step, Scope) and step.moves):
        return True
    return any(map(has_moving_content, _list_children(step)))


def depth_of_steps(steps: Sequence[Step]) -> int:
    """Return how many levels of steps and nodes are in some steps."""
    depth = 0
    level: list[Step | Node] = list(steps)
    while level:
        depth += 1
        level = [child for node in level for child in _list_children(node)]
    return depth


def _list_children(parent: Step | Node) -> Sequence[Step | Node]:
    """Return the steps or nodes directly inside a step or a scope."""
    match parent:
        case ShrinkingContent() | SummarisedContent():
            return parent.steps
        case FixedNode(node):
            return (node,)
        case Scope():
            return parent.children
        case _:
            return ()


def name_steps(steps: Sequence[Step]) -> list[str]:
    """Return a unique name for each step: its own name or else its kind, with a number from the second one on.

    A number that is taken by the own name of an earlier step ("summary-2") is skipped.
    """
    numbers: dict[str, int] = {}
    names: list[str] = []
    for step in steps:
        base = _base_name_of_step(step).replace("/", "-")  # "/" separates the names of a path
        number = numbers.get(base, 0) + 1
        while number > 1 and f"{base}-{number}" in numbers:
            number += 1
        numbers[base] = number
        name = base
        if number > 1:
            name = f"{base}-{number}"
            numbers[name] = 1
        names.append(name)
    return names


def _base_name_of_step(step: Step) -> str:
    """Return the own name of a step, or else its kind."""
    match step:
        case WrittenMessage(message):
            return message.role.value
        case Log():
            return "session"
        case FixedNode(node):
            return node.id if isinstance(node, Scope) else "raw"
        case ShrinkingContent(name) | PluginStep(name=name):
            return name
        case SummarisedContent():
            return "summary"
        case RecallStep():
            return "recall"
        case Hint():
            return "hint"


def flatten_nodes(nodes: Sequence[Node]) -> list[MessageGroup]:
    """Return the messages of some nodes in order, also those of scopes inside scopes, which lose their own rules."""
    groups: list[MessageGroup] = []
    for node in nodes:
        if isinstance(node, Scope):
            groups += flatten_nodes(node.children)
        elif isinstance(node, MessageGroup):
            groups.append(node)
        elif node.pieces:
            groups.append(MessageGroup((compose_message(node, node.pieces),)))
    return groups


def select_newest_groups(units: Sequence[MessageGroup], messages: int) -> list[MessageGroup]:
    """Return the last units that together have `messages` messages, or a few more: units are not divided."""
    count, start = 0, len(units)
    while start and count < messages:
        start -= 1
        count += len(units[start].messages)
    return list(units[start:])


def mark_newest_mandatory(units: Sequence[MessageGroup]) -> list[MessageGroup]:
    """Return units marked so that the newest one stays, the newest that is no system message, and the open question.

    A system message alone is no request: some providers refuse it, and no model can answer it. Calls without the
    question that they serve are none either.
    """
    if not units:
        return []
    turn_start = find_turn_start(units, question_follows=False)
    stay = {len(units) - 1, find_newest_non_system(units), turn_start}
    return [unit._replace(mandatory=True) if index in stay else unit for index, unit in enumerate(units)]


def find_newest_non_system(units: Sequence[MessageGroup]) -> int:
    """Return the index of the newest unit that is not a system message; if all are, of the newest one."""
    for index in reversed(range(len(units))):
        if units[index].messages[0].role is not Role.SYSTEM:
            return index
    return max(0, len(units) - 1)


def mark_summaries_mandatory(
    groups: Sequence[MessageGroup], cost: Callable[[PromptMessage], int], room: int | None
) -> list[MessageGroup]:
    """Return groups in which the newest summaries must stay, as far as they take half of `room` at most.

    With None as `room` all of them must stay.
    """
    tokens = 0
    newest_first: list[MessageGroup] = []
    for group in reversed(groups):
        if any(map(is_summary_id, group.sources)):
            tokens += sum(map(cost, group.messages))
            fits = room is None or tokens <= room // 2
            group = group._replace(mandatory=group.mandatory or fits)
        newest_first.append(group)
    return newest_first[::-1]
