"""The input of a framework's model: the log within a token budget, as messages of the framework again.

A `Dialect` of an adapter defines how its messages are written as messages of a log and read back. A message that a
prompt shows unchanged comes back as the framework's own message, with its ids and all that ACMS does not understand;
messages written by ACMS (recalled text, a summary, a message that was cut, edited or redacted) are created.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from json import dumps, loads
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from acms.errors import EntryNotFoundError, FitError, TokenBudgetExceededError
from acms.integrations.left_out import hide_entries
from acms.knowledge import Scope
from acms.model import Entry, Media, Part, Raw, Reasoning, Role, Text, ToolCall, ToolResult
from acms.ports import Codec, TokenCounter
from acms.prompt import Prompt, Rendered
from acms.prompt_types import PromptMessage, Tool
from acms.results import ContextItems
from acms.session import ACMS
from acms.write.intake import read_repaired

__all__ = [
    "Dialect",
    "Request",
    "WrittenMessage",
    "build_model_input",
    "is_entry_unchanged",
    "json_object",
    "json_text",
    "make_prompt",
    "message_of_parts",
    "messages_of_entries",
    "original_of_entry",
    "raw_of",
    "recall_items",
]

M = TypeVar("M")


class WrittenMessage(NamedTuple):
    """A message that ACMS wrote: recalled text, a summary, or a message that was cut, edited or redacted."""

    role: Role
    text: str
    calls: Sequence[ToolCall] = ()
    #: Each with the name of its tool, if the call is shown.
    results: Sequence[tuple[str, ToolResult]] = ()


class Dialect(Protocol[M]):
    """Converts the messages of one framework to their stored form and back; each is one message of a log.

    The stored form is the mapping that `sync` and `ingest_many` take.
    """

    #: Vendor of the `Raw` parts that hold the original messages.
    vendor: str

    def write(self, message: M) -> Mapping[str, Any]:
        """Return the stored form of a message, with the message itself in a `Raw` part."""
        ...

    def read(self, json: str) -> M:
        """Parse the message in a `Raw` part."""
        ...

    def make(self, message: WrittenMessage) -> M:
        """Return a message written by ACMS as one of the framework."""
        ...

    def count_unwritten_tokens(self, message: M, counter: TokenCounter) -> int:
        """Count the tokens of a message that are sent besides its written parts, such as bytes."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The parts of a request besides the log."""

    #: Counts the request and knows the rules of the provider.
    codec: Codec
    #: Tokens of the whole request, instructions and tools included.
    budget: int
    #: The query of the recall; blank recalls nothing.
    query: str
    instructions: str = ""
    tools: Sequence[Tool | Mapping[str, Any]] = ()


class _Original(NamedTuple, Generic[M]):
    """A message of the framework, and the parts it is written with."""

    message: M
    parts: Sequence[Part]


class _Sourced(NamedTuple, Generic[M]):
    """One message of a request, and the framework's own ones with its content; none if ACMS wrote it."""

    message: PromptMessage
    originals: Sequence[_Original[M]] = ()


async def build_model_input(
    session: ACMS,
    request: Request,
    dialect: Dialect[M],
    messages_by_key: Mapping[str, M] | None = None,
    hidden: Collection[str] = (),
) -> list[M]:
    """Return the messages of a session for the model, oldest first, without the instructions of the request.

    `messages_by_key` are the framework's own message objects, which are returned themselves. `hidden` are the ids of
    entries that are not shown. In a named namespace, its other sessions are recalled too. After an answer of the model
    nothing is recalled. Raise `TokenBudgetExceededError` if the required parts do not fit.
    """
    visible = [entry for entry in await session.entries(1 + len(hidden)) if entry.id not in hidden]
    if not visible:
        return []
    if visible[-1].role is Role.ASSISTANT:  # the turn is over: a recall would stand behind its answer
        request = replace(request, query="")
    # The codec does not count everything that the framework sends: search for the largest codec budget whose request,
    # with the uncounted tokens, stays within the budget.
    budget = request.budget
    codec_budget = largest = budget
    smallest = excess = 0
    originals: dict[str, _Original[M] | None] = {}
    for _ in range(16):  # attempts; each renders once more
        try:
            rendered = await make_prompt(session, request, hidden).render(codec_budget)
        except FitError:
            if not excess:  # the required parts do not fit in the whole budget
                raise
            smallest = codec_budget
            codec_budget = (smallest + largest) // 2
            continue
        await _load_originals(session, rendered, dialect, messages_by_key or {}, originals)
        sourced = _match_originals(rendered, originals)
        messages, extra_tokens = _build_framework_messages(sourced, dialect, session.counter)
        excess = rendered.tokens.upper_bound + extra_tokens - budget
        if excess <= 0:
            return messages
        largest = codec_budget
        proportional = largest * budget // (budget + excess) - budget // 32  # a little less, to end sooner
        codec_budget = max((smallest + largest) // 2, proportional)
    options = ("raise the budget", "leave the reasoning of the model out of the history")
    raise TokenBudgetExceededError(budget=budget, required=budget + excess, options=options)


def make_prompt(session: ACMS, request: Request, hidden: Collection[str] = ()) -> Prompt:
    """Return the prompt of a request: its instructions in one message, the log, and the recalled entries."""
    prompt = Prompt(request.codec)
    if request.instructions.strip():
        prompt = prompt.system(request.instructions)
    visible_log = hide_entries(session, hidden)
    prompt = prompt.tools(request.tools).history(visible_log)
    if request.query.strip():
        prompt = prompt.recall(visible_log, request.query)
    return prompt


async def recall_items(
    session: ACMS, query: str, budget: int, *, limit: int | None = None, scope: Scope | None = None
) -> ContextItems:
    """Recall the items that match a query, by default from all sessions of a named namespace."""
    return await session.internals.recall_for_prompt(query, budget=budget, scope=scope, limit=limit)


async def _load_originals(
    session: ACMS,
    rendered: Rendered,
    dialect: Dialect[M],
    messages_by_key: Mapping[str, M],
    originals: dict[str, _Original[M] | None],
) -> None:
    """Read the framework's own messages that a prompt shows, except those that an earlier attempt read."""
    ids: dict[str, None] = {}
    for message in rendered.messages:
        if _may_be_original(message):
            ids.update(dict.fromkeys(message.sources))
    unread_ids = [id for id in ids if id not in originals]
    keys = await session.keys(unread_ids)
    for id in unread_ids:
        originals[id] = None
        message = messages_by_key.get(keys.get(id, ""))
        if message is None:
            message = await _find_original(session, id, dialect)
        if message is not None:
            turn, repairs = read_repaired(dialect.write(message))
            # A message that had to be repaired would be refused: it is made from the log instead.
            if not repairs:
                originals[id] = _Original(message, turn["parts"])


def _match_originals(rendered: Rendered, originals: Mapping[str, _Original[M] | None]) -> list[_Sourced[M]]:
    """Return the messages of a prompt, each with the framework's originals if these have the same content."""
    sourced: list[_Sourced[M]] = []
    for message in _join_tool_results(rendered.messages):
        if message.role in (Role.SYSTEM, Role.DEVELOPER) and not message.sources:
            continue  # the instructions of the request
        candidates = [originals.get(id) for id in message.sources]
        own_originals = [original for original in candidates if original is not None]
        parts = [part for original in own_originals for part in original.parts]
        is_complete = bool(own_originals) and len(own_originals) == len(message.sources)
        has_same_content = is_complete and _content_of_parts(message.parts) == _content_of_parts(parts)
        sourced.append(_Sourced(message, own_originals if has_same_content else ()))
    return _align_tool_pairs(sourced)


def _join_tool_results(messages: Sequence[PromptMessage]) -> list[PromptMessage]:
    """Join the results of tools that one entry holds: providers take them one by one."""
    joined: list[PromptMessage] = []
    for message in messages:
        previous = joined[-1] if joined else None
        is_result = message.role is Role.TOOL and bool(message.sources)
        if is_result and previous is not None and previous.sources == message.sources:
            joined[-1] = replace(previous, parts=(*previous.parts, *message.parts))
        else:
            joined.append(message)
    return joined


def _align_tool_pairs(sourced: Sequence[_Sourced[M]]) -> list[_Sourced[M]]:
    """Send a call and its results all as originals or all rebuilt: codecs may give calls other ids."""
    aligned: list[_Sourced[M]] = []
    for pair in sourced:
        is_result = pair.message.role is Role.TOOL and bool(aligned)
        if is_result and bool(pair.originals) != bool(aligned[-1].originals):
            start = len(aligned) - 1
            while start and aligned[start].message.role is Role.TOOL:
                start -= 1
            aligned[start:] = [_Sourced(earlier.message) for earlier in aligned[start:]]
            pair = _Sourced(pair.message)
        aligned.append(pair)
    return aligned


def _build_framework_messages(
    sourced: Sequence[_Sourced[M]], dialect: Dialect[M], counter: TokenCounter
) -> tuple[list[M], int]:
    """Return the framework's own messages and those that ACMS wrote, and their cost beyond the codec's count.

    Codecs of Chat Completions do not send reasoning; a framework does.
    """
    names: dict[str, str] = {}
    messages: list[M] = []
    extra_tokens = 0
    for message, originals in sourced:
        acms_message = message_of_parts(message.role, message.parts, names)
        if originals:
            messages += [original.message for original in originals]
        else:
            messages.append(dialect.make(acms_message))
        for original in originals:
            for part in original.parts:
                if isinstance(part, Reasoning):
                    extra_tokens += counter.count(part.text)
    extra_tokens += sum(dialect.count_unwritten_tokens(message, counter) for message in messages)
    return messages, extra_tokens


def message_of_parts(role: Role, parts: Sequence[Part], names: dict[str, str]) -> WrittenMessage:
    """Return parts as a message that ACMS wrote.

    `names` are the names of called tools by call id: results need them, and the calls among the parts are added.
    """
    calls: list[ToolCall] = []
    results: list[tuple[str, ToolResult]] = []
    texts: list[str] = []
    outputs: list[str] = []
    for part in parts:
        if isinstance(part, ToolCall):
            names[part.call_id] = part.name
            calls.append(part)
    for part in parts:
        if isinstance(part, Text):
            texts.append(part.text)
        elif isinstance(part, ToolResult):
            results.append((names.get(part.call_id, ""), part))
            outputs.append(part.output)
    return WrittenMessage(role, "\n".join(filter(None, [*texts, *outputs])), calls, results)


async def _find_original(session: ACMS, id: str, dialect: Dialect[M]) -> M | None:
    try:
        return original_of_entry(session.internals.redactor.redact_entry(await session.get(id)), dialect)
    except EntryNotFoundError:  # recalled from another session
        return None


def _may_be_original(message: PromptMessage) -> bool:
    """Return whether a message may be an original: recalled text has many sources and is never looked up."""
    return message.role is not Role.USER or len(message.sources) <= 2


def original_of_entry(entry: Entry, dialect: Dialect[M]) -> M | None:
    """Return the framework's own message in an entry, or None if it has none or is withheld."""
    raw = raw_of(entry.parts, dialect.vendor)
    return None if raw is None else dialect.read(raw)


def raw_of(parts: Sequence[Part], vendor: str) -> str | None:
    """Return the content of the `Raw` part of an adapter, or None."""
    for part in parts:
        if isinstance(part, Raw) and part.vendor == vendor:
            return part.json
    return None


def messages_of_entries(entries: Sequence[Entry], dialect: Dialect[M]) -> list[M]:
    """Return entries as the framework's messages; an edited or withheld one with its current content."""
    names: dict[str, str] = {}
    messages: list[M] = []
    for entry in entries:
        acms_message = message_of_parts(entry.role or Role.USER, entry.parts or (Text(entry.content),), names)
        message = original_of_entry(entry, dialect)
        if message is None or not is_entry_unchanged(entry, dialect.write(message)):
            message = dialect.make(acms_message)
        messages.append(message)
    return messages


def is_entry_unchanged(entry: Entry, stored_form: Mapping[str, Any]) -> bool:
    """Return whether an entry still has the content of a message's stored form."""
    return _content_of_parts(read_repaired(stored_form)[0]["parts"]) == _content_of_parts(entry.parts)


def json_text(value: Any) -> str:
    """Return arguments and results of tools as the log has them: JSON of whatever it is, or the text itself."""
    if isinstance(value, str):
        return value
    from pydantic_core import to_jsonable_python  # each of these frameworks brings it along

    try:
        jsonable = to_jsonable_python(value, bytes_mode="base64", inf_nan_mode="null", fallback=str)
    except ValueError:  # bytes in a pydantic model, or an object that contains itself
        jsonable = str(value)
    return dumps(jsonable, ensure_ascii=False)


def json_object(text: str, name: str) -> dict[str, Any]:
    """Return the JSON object in a text, or an object with the text as the value of `name`."""
    with suppress(ValueError):
        value = loads(text)
        if isinstance(value, dict):
            return value
    return {name: text}


def _content_of_parts(parts: Sequence[Part]) -> tuple[object, ...]:
    """Return the content of parts for a comparison, without ids and the boundaries between texts."""
    texts: list[str] = []
    calls: list[tuple[str, str]] = []
    outputs: list[str] = []
    media: list[str] = []
    for part in parts:
        match part:
            case Text() if part.text:
                texts.append(part.text)
            case ToolCall():
                calls.append((part.name, part.arguments))
            case ToolResult():
                outputs.append(part.output)
            case Media():
                media.append(part.ref)
            case _:
                pass
    return "\n".join(texts), calls, outputs, media
