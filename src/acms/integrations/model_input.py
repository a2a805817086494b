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
from acms.log.repair import well_formed
from acms.model import Entry, Media, Part, Raw, Reasoning, Role, Text, ToolCall, ToolResult
from acms.ports import Codec, TokenCounter
from acms.prompt import Prompt, Rendered
from acms.prompt_types import PromptMessage, Tool
from acms.results import ContextItems
from acms.session import ACMS
from acms.write.door import read_repaired

__all__ = [
    "Dialect",
    "Made",
    "Request",
    "is_entry_unchanged",
    "json_object",
    "json_text",
    "make_prompt",
    "message_of_parts",
    "messages_of_entries",
    "model_input",
    "original_of_entry",
    "raw_of",
    "recall_items",
]

M = TypeVar("M")

_TRIES = 16
"""How often a prompt is made smaller because of what its codec does not count."""
_STEP = 32
"""By at least one part in so many of the budget each time."""


class Made(NamedTuple):
    """A message that ACMS wrote."""

    role: Role
    text: str
    calls: Sequence[ToolCall] = ()
    #: Each with the name of the tool that was called, where the call is shown.
    results: Sequence[tuple[str, ToolResult]] = ()


class Dialect(Protocol[M]):
    """How a framework's messages are written in a log; each becomes one message there."""

    #: Of the `Raw` parts in which they are kept word for word.
    vendor: str

    def write(self, message: M) -> Mapping[str, Any]:
        """Return a message of the framework as `sync` takes it, itself in a `Raw` part."""
        ...

    def read(self, json: str) -> M:
        """Return the message that a `Raw` part keeps."""
        ...

    def make(self, said: Made) -> M:
        """Return a message written by ACMS as one of the framework."""
        ...

    def unseen(self, message: M, counter: TokenCounter) -> int:
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
    """One message of a request, and the framework's own ones that say it; none when ACMS wrote it."""

    message: PromptMessage
    originals: Sequence[_Original[M]] = ()


async def model_input(
    session: ACMS,
    request: Request,
    dialect: Dialect[M],
    known: Mapping[str, M] | None = None,
    hidden: Collection[str] = (),
) -> list[M]:
    """Return the messages of a session for the model, oldest first, without the instructions of the request.

    `known` are messages the framework has at hand, by key: they are returned themselves; `hidden` are ids of entries
    that are not shown. In a named namespace its other sessions are recalled from; after an answer of the model nothing
    is. Raise `TokenBudgetExceededError` if the required parts do not fit.
    """
    newest = [one for one in await session.entries(1 + len(hidden)) if one.id not in hidden][-1:]
    if not newest:
        return []
    if newest[0].role is Role.ASSISTANT:  # the turn is over: a recall would stand behind its answer
        request = replace(request, query="")
    budget = room = most = request.budget
    least, over = 0, 0
    read: dict[str, _Original[M] | None] = {}
    for _ in range(_TRIES):
        try:
            rendered = await make_prompt(session, request, hidden).render(room)
        except FitError:
            if not over:
                raise
            least = room
            room = (least + most) // 2
            continue
        await _load_originals(session, rendered, dialect, known or {}, read)
        shown = _match_originals(rendered, read)
        messages, more = _build_framework_messages(shown, dialect, session.counter)
        over = rendered.tokens.upper_bound + more - budget
        if over <= 0:
            return messages
        most = room
        room = max((least + most) // 2, most * budget // (budget + over) - budget // _STEP)
    options = ("raise the budget", "leave the reasoning of the model out of the history")
    raise TokenBudgetExceededError(budget=budget, required=budget + over, options=options)


def make_prompt(session: ACMS, request: Request, hidden: Collection[str] = ()) -> Prompt:
    """Return the prompt of a request: its instructions in one message, the log, and the recalled entries."""
    prompt = Prompt(request.codec)
    if request.instructions.strip():
        prompt = prompt.system(well_formed(request.instructions))
    shown = hide_entries(session, hidden)
    prompt = prompt.tools(request.tools).history(shown)
    if request.query.strip():
        prompt = prompt.recall(shown, well_formed(request.query))
    return prompt


async def recall_items(
    session: ACMS, query: str, budget: int, *, limit: int | None = None, scope: str | None = None
) -> ContextItems:
    """Recall the items that match a query, by default from all sessions of a named namespace."""
    return await session.recall_for_prompt(well_formed(query), budget=budget, scope=scope, limit=limit)


async def _load_originals(
    session: ACMS,
    rendered: Rendered,
    dialect: Dialect[M],
    known: Mapping[str, M],
    read: dict[str, _Original[M] | None],
) -> None:
    """Read the framework's own messages that a prompt shows, those that were not read for another try."""
    ids = dict.fromkeys(
        id
        for message in rendered.messages
        if _may_be_original(message)
        for id in message.sources
        if id not in read
    )
    keys = await session.keys(ids)
    for id in ids:
        one = known.get(keys.get(id, ""))
        if one is None:
            one = await _find_original(session, id, dialect)
        turn, repaired = ({}, ()) if one is None else read_repaired(dialect.write(one))
        # A message that had to be repaired would be refused: it is made from the log instead.
        read[id] = None if one is None or repaired else _Original(one, turn["parts"])


def _match_originals(rendered: Rendered, read: Mapping[str, _Original[M] | None]) -> list[_Sourced[M]]:
    shown: list[_Sourced[M]] = []
    for message in _join_tool_results(rendered.messages):
        if message.role in (Role.SYSTEM, Role.DEVELOPER) and not message.sources:
            continue  # the instructions of the request
        said = [one for id in message.sources if (one := read.get(id)) is not None]
        same = len(said) == len(message.sources) > 0 and _content_of_parts(
            message.parts
        ) == _content_of_parts([part for one in said for part in one.parts])
        shown.append(_Sourced(message, said if same else ()))
    return _align_tool_pairs(shown)


def _join_tool_results(messages: Sequence[PromptMessage]) -> list[PromptMessage]:
    """Put the results of tools that one entry holds together again: providers take them one by one."""
    found: list[PromptMessage] = []
    for one in messages:
        if one.role is Role.TOOL and one.sources and found and found[-1].sources == one.sources:
            found[-1] = replace(found[-1], parts=(*found[-1].parts, *one.parts))
        else:
            found.append(one)
    return found


def _align_tool_pairs(shown: Sequence[_Sourced[M]]) -> list[_Sourced[M]]:
    """Take a call and its answers alike, all as they were made or none: codecs give calls other ids where they must."""
    found: list[_Sourced[M]] = []
    for one in shown:
        if one.message.role is Role.TOOL and found and bool(one.originals) != bool(found[-1].originals):
            start = len(found) - 1
            while start and found[start].message.role is Role.TOOL:
                start -= 1
            found[start:] = [_Sourced(each.message) for each in found[start:]]
            one = _Sourced(one.message)
        found.append(one)
    return found


def _build_framework_messages(
    shown: Sequence[_Sourced[M]], dialect: Dialect[M], counter: TokenCounter
) -> tuple[list[M], int]:
    """Return the framework's own messages and those that ACMS wrote, and their cost beyond the codec's count.

    Codecs of Chat Completions do not send reasoning; a framework does.
    """
    names: dict[str, str] = {}
    found: list[M] = []
    more = 0
    for message, originals in shown:
        said = message_of_parts(message.role, message.parts, names)
        made = [one.message for one in originals] or [dialect.make(said)]
        thought = [part.text for one in originals for part in one.parts if isinstance(part, Reasoning)]
        more += sum(map(counter.count, thought)) + sum(dialect.unseen(one, counter) for one in made)
        found += made
    return found, more


def message_of_parts(role: Role, parts: Sequence[Part], names: dict[str, str]) -> Made:
    """Return parts as a message that ACMS wrote; `names` are those of the tools by call, and its calls are added."""
    calls = [part for part in parts if isinstance(part, ToolCall)]
    names.update({one.call_id: one.name for one in calls})
    results = [(names.get(part.call_id, ""), part) for part in parts if isinstance(part, ToolResult)]
    texts = [part.text for part in parts if isinstance(part, Text)] + [one.output for _, one in results]
    return Made(role, "\n".join(filter(None, texts)), calls, results)


async def _find_original(session: ACMS, id: str, dialect: Dialect[M]) -> M | None:
    try:
        return original_of_entry(session.stage.entry(await session.get(id)), dialect)
    except EntryNotFoundError:  # recalled from another session
        return None


def _may_be_original(message: PromptMessage) -> bool:
    """Return whether a message may be an original: recalled text has many sources and is never looked up."""
    return message.role is not Role.USER or len(message.sources) <= 2


def original_of_entry(entry: Entry, dialect: Dialect[M]) -> M | None:
    """Return the framework's message that an entry keeps; None where it has none, or it is withheld."""
    kept = raw_of(entry.parts, dialect.vendor)
    return None if kept is None else dialect.read(kept)


def raw_of(parts: Sequence[Part], vendor: str) -> str | None:
    """Return the content of the `Raw` part of an adapter; None without one."""
    kept = (part.json for part in parts if isinstance(part, Raw) and part.vendor == vendor)
    return next(kept, None)


def messages_of_entries(entries: Sequence[Entry], dialect: Dialect[M]) -> list[M]:
    """Return entries as the framework's messages; an edited or withheld one with its current content."""
    names: dict[str, str] = {}
    found: list[M] = []
    for entry in entries:
        shown = message_of_parts(entry.role or Role.USER, entry.parts or (Text(entry.content),), names)
        kept = original_of_entry(entry, dialect)
        if kept is None or not is_entry_unchanged(entry, dialect.write(kept)):
            kept = dialect.make(shown)
        found.append(kept)
    return found


def is_entry_unchanged(entry: Entry, written: Mapping[str, Any]) -> bool:
    """Return whether an entry still has the written content."""
    return _content_of_parts(read_repaired(written)[0]["parts"]) == _content_of_parts(entry.parts)


def json_text(value: Any) -> str:
    """Return arguments and results of tools as the log has them: JSON of whatever it is, or the text itself."""
    if isinstance(value, str):
        return value
    from pydantic_core import to_jsonable_python  # each of these frameworks brings it along

    try:
        plain = to_jsonable_python(value, bytes_mode="base64", inf_nan_mode="null", fallback=str)
    except ValueError:  # bytes in a model of pydantic, or a circle
        plain = str(value)
    return dumps(plain, ensure_ascii=False)


def json_object(text: str, name: str) -> dict[str, Any]:
    """Return the JSON object that a text holds; a text that holds none as the value of `name`."""
    with suppress(ValueError):
        if isinstance(found := loads(text), dict):
            return found
    return {name: text}


def _content_of_parts(parts: Sequence[Part]) -> tuple[object, ...]:
    """Return the content of parts, whatever boundaries and ids the codec gave them."""
    return (
        "\n".join(part.text for part in parts if isinstance(part, Text) and part.text),
        [(part.name, part.arguments) for part in parts if isinstance(part, ToolCall)],
        [part.output for part in parts if isinstance(part, ToolResult)],
        [part.ref for part in parts if isinstance(part, Media)],
    )
