"""What a framework's model is given: the log within a token budget, as messages of the framework again.

An adapter says in a `Dialect` how its messages are written as messages of a log and read back. What a prompt shows as
it was said comes back as the framework's own message, with its ids and all that ACMS does not understand; what ACMS
wrote itself (recalled text, a summary, a message that was cut, edited or redacted) as a message of the prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar

from acms.errors import EntryNotFoundError, FitError, TokenBudgetExceededError
from acms.model import Entry, Media, Part, Raw, Role, Text, ToolCall, ToolResult
from acms.ports import Codec
from acms.prompt import Prompt, Rendered
from acms.prompt_types import PromptMessage, Tool
from acms.session import ACMS

__all__ = ["Dialect", "RenderedMessage", "Request", "model_input", "original", "text_of"]

M = TypeVar("M")

_TRIES = 16
"""How often a prompt is made smaller because of what its codec does not count."""
_STEP = 32
"""By at least one part in so many of the budget each time."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a request has besides the log."""

    #: Counts the request and says what is valid for the provider.
    codec: Codec
    #: Tokens of the whole request, instructions and tools included.
    budget: int
    #: What is recalled for; blank recalls nothing.
    query: str
    instructions: str = ""
    tools: Sequence[Tool] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedMessage(Generic[M]):
    """One message of a request."""

    message: PromptMessage
    #: The framework's own messages that say it, in order; empty when ACMS wrote it.
    originals: Sequence[M] = field(default_factory=tuple)


async def model_input(
    session: ACMS,
    request: Request,
    dialect: Dialect[M],
    *,
    known: Mapping[str, M],
    extra: Callable[[M], int],
) -> list[RenderedMessage[M]]:
    """Return what the model is shown of a session, oldest first, without the instructions of the request.

    `known` are messages the framework has at hand, by key: they are handed back themselves. `extra` counts what of a
    message is sent and is nothing to the codec, such as reasoning and bytes. In a named namespace its other sessions
    are recalled from; after an answer of the model nothing is. `TokenBudgetExceededError` when what must be there does
    not fit.
    """
    newest = await session.entries(1)
    if not newest:
        return []
    if newest[0].role is Role.ASSISTANT:  # the turn is over: what it recalled would stand behind its answer
        request = replace(request, query="")
    budget = room = most = request.budget
    least, over = 0, 0
    for _ in range(_TRIES):
        try:
            rendered = await _prompt(session, request).render(room)
        except FitError:
            if not over:
                raise
            least = room
            room = (least + most) // 2
            continue
        shown = await _rendered(session, rendered, dialect, known)
        more = sum(extra(one) for message in shown for one in message.originals)
        over = rendered.tokens.upper_bound + more - budget
        if over <= 0:
            return shown
        most = room
        room = max((least + most) // 2, most * budget // (budget + over) - budget // _STEP)
    options = ("raise the budget", "leave the reasoning of the model out of the history")
    raise TokenBudgetExceededError(budget=budget, required=budget + over, options=options)


def _prompt(session: ACMS, request: Request) -> Prompt:
    prompt = Prompt(request.codec).tools(request.tools)
    if request.instructions:
        prompt = prompt.system(request.instructions)
    prompt = prompt.history(session)
    if request.query.strip():
        scope = "session" if session.namespace == "default" else "namespace"
        prompt = prompt.recall(session, request.query, scope=scope)
    return prompt


async def _rendered(
    session: ACMS, rendered: Rendered, dialect: Dialect[M], known: Mapping[str, M]
) -> list[RenderedMessage[M]]:
    ids = dict.fromkeys(
        id for message in rendered.messages if _may_be_original(message) for id in message.sources
    )
    keys = await session.keys(ids)
    found: dict[str, M] = {}
    for id in ids:
        one = known.get(keys.get(id, ""))
        if one is None:
            one = await _kept(session, id, dialect)
        if one is not None:
            found[id] = one
    shown: list[RenderedMessage[M]] = []
    for message in _whole(rendered.messages):
        if message.role in (Role.SYSTEM, Role.DEVELOPER) and not message.sources:
            continue  # the instructions of the request
        said = [found[id] for id in message.sources if id in found]
        same = len(said) == len(message.sources) > 0 and _content(message.parts) == _content(
            [part for one in said for part in _parts(dialect.write(one))]
        )
        shown.append(RenderedMessage(message=message, originals=said if same else ()))
    return _paired(shown)


def _whole(messages: Sequence[PromptMessage]) -> list[PromptMessage]:
    """Put the results of tools that one entry holds together again: providers take them one by one."""
    found: list[PromptMessage] = []
    for one in messages:
        if one.role is Role.TOOL and one.sources and found and found[-1].sources == one.sources:
            found[-1] = replace(found[-1], parts=(*found[-1].parts, *one.parts))
        else:
            found.append(one)
    return found


def _paired(shown: Sequence[RenderedMessage[M]]) -> list[RenderedMessage[M]]:
    """Take a call and its answers alike, all as they were made or none: codecs give calls other ids where they must."""
    found: list[RenderedMessage[M]] = []
    for one in shown:
        if one.message.role is Role.TOOL and found and bool(one.originals) != bool(found[-1].originals):
            start = len(found) - 1
            while start and found[start].message.role is Role.TOOL:
                start -= 1
            found[start:] = [RenderedMessage(message=each.message) for each in found[start:]]
            one = RenderedMessage(message=one.message)
        found.append(one)
    return found


async def _kept(session: ACMS, id: str, dialect: Dialect[M]) -> M | None:
    try:
        return original(session.stage.entry(await session.get(id)), dialect)
    except EntryNotFoundError:  # recalled from another session
        return None


def _may_be_original(message: PromptMessage) -> bool:
    """Return whether a message may be what was said: recalled text has many sources and is never looked up."""
    return message.role is not Role.USER or len(message.sources) <= 2


def original(entry: Entry, dialect: Dialect[M]) -> M | None:
    """Return the framework's message that an entry keeps; None where it has none, or it is withheld."""
    for part in entry.parts:
        if isinstance(part, Raw) and part.vendor == dialect.vendor:
            return dialect.read(part.json)
    return None


def _parts(written: Mapping[str, Any]) -> Sequence[Part]:
    return written.get("parts") or (Text(written["content"]),)


def _content(parts: Sequence[Part]) -> tuple[object, ...]:
    """Return what parts say, whatever the codec made of their boundaries and ids."""
    return (
        "\n".join(part.text for part in parts if isinstance(part, Text) and part.text),
        [(part.name, part.arguments) for part in parts if isinstance(part, ToolCall)],
        [part.output for part in parts if isinstance(part, ToolResult)],
        [part.ref for part in parts if isinstance(part, Media)],
    )


def text_of(message: PromptMessage) -> str:
    """Return what a message of a prompt says, the outputs of tools among it."""
    outputs = [part.output for part in message.parts if isinstance(part, ToolResult)]
    return "\n".join([text for text in (message.text, *outputs) if text])
