"""What the Messages API refuses, so that it is refused here, with the place at fault.

From platform.claude.com/docs: "Messages" (shape), "Handle tool calls" (pairs and their order), "Errors" (prefill),
"Mid-conversation system messages", "Prompt caching" (breakpoints), "Define tools", and error messages of the API.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from acms.errors import PayloadError
from acms.model import Json
from acms.providers.codecs.anthropic_blocks import USERS, serves, text_of
from acms.providers.codecs.framing import check_strings

__all__ = ["Claude", "check", "claude"]

OLD, NEW = 2.3, 2.4
"""Tokens of Claude for each of o200k_base, at most, until there are reports: by its earlier and its newer tokenizer.

The highest of 2 kB pieces of conversations, code and messages in fourteen languages were 2.27 (Thai) and 2.34; English
has 1.15-1.2 and 1.4-1.6, code up to 1.6 and 2.2. Measured with ctok 1.3.0, which reproduces the provider's own counts.
"""


class Claude(NamedTuple):
    """What a prompt depends on in one family of models."""

    #: Tokens that a prefix must have to be cached.
    least: int = 4_096
    #: Tokens of the system prompt that comes with tools.
    tools: int = 804
    #: Tokens for each of o200k_base, at most and in English.
    ratio: float = NEW
    typical: float = 1.5
    #: Tokens of an image of unknown size, at most.
    image: int = 4_784
    #: Whether it goes on from a last message of the assistant.
    prefill: bool = False
    #: Whether it takes system messages behind the first message of the user.
    system: bool = False
    #: Whether signed reasoning can be sent back, and whether it is refused unless all before it is as it was.
    reasoning: bool = True
    binds: bool = False
    #: Price of a token that is read from the cache, in units of the input's.
    cached: float = 0.1


_5_5 = Claude(least=512, system=True, binds=True, cached=0.05)
_4_8 = Claude(least=1_024, tools=410, system=True)
_4_5 = Claude(least=4_096, tools=588, ratio=OLD, typical=1.2, image=1_600, prefill=True)
_4 = _4_5._replace(least=1_024, tools=346)

_FAMILIES = (
    (r"(?:fable|mythos)-5-[1-9](?!\d)", _5_5._replace(cached=0.025)),
    (r"(?:fable|mythos)-5", _5_5._replace(binds=False, cached=0.1)),
    (r"(?:opus|sonnet)-5-[1-9](?!\d)", _5_5),
    (r"haiku-5-[1-9](?!\d)", _5_5._replace(cached=0.1)),
    (r"opus-5", Claude(least=512, tools=410, system=True)),
    (r"mythos-preview", Claude(least=2_048)),
    (r"sonnet-5", Claude(least=1_024, tools=474)),
    (r"opus-4-8(?!\d)", _4_8),
    (r"opus-4-7(?!\d)", Claude(least=2_048)),
    (r"opus-4-6(?!\d)", _4_5._replace(tools=589, prefill=False)),
    (r"sonnet-4-6(?!\d)", _4_5._replace(least=1_024, tools=589, prefill=False)),
    (r"(?:opus|haiku)-4-5(?!\d)", _4_5),
    (r"sonnet-4-5(?!\d)", _4_5._replace(least=1_024)),
    (r"(?:opus|sonnet)-4", _4),
    (r"haiku-3|3-haiku|3-5-haiku", _4._replace(least=2_048, tools=340)),
    (r"opus-3|3-opus", _4._replace(tools=530)),
    (r"claude-3|sonnet-3", _4),
    # Newer than this table: as the newest are, without what they need not have in common.
    (r"(?:opus|sonnet|haiku|fable|mythos)-\d", Claude(binds=True)),
)
"""Families by a pattern in the model's name, the first that fits.

From platform.claude.com/docs, November 2026: "Prompt caching" (least prefix), the models' pages (prices), "Preserved
thinking" (binding), "Mid-conversation system messages".
"""
_DOT = re.compile(r"(?<=\d)\.(?=\d)")


def claude(model: str) -> Claude:
    """Return what is known of a model, also under the names that other platforms give it."""
    name = _DOT.sub("-", model.lower())
    for pattern, family in _FAMILIES:
        if re.search(pattern, name):
            return family
    return Claude(reasoning=False)


_ID = re.compile(r"[a-zA-Z0-9_-]{1,128}\Z")
_TOOL = re.compile(r"[a-zA-Z0-9_-]{1,64}\Z")
_THINKING = frozenset(("thinking", "redacted_thinking"))
_ROLES = frozenset(("user", "assistant", "system"))
_ASSISTANT_ONLY = frozenset(("tool_use", "compaction", *_THINKING))
_USER_ONLY = frozenset(("tool_result", *USERS))
_TTLS = {None: 0, "5m": 0, "1h": 1}
_COMBINED = frozenset(("oneOf", "anyOf", "allOf"))
MESSAGES = 100_000
BREAKPOINTS = 4


def check(payload: Mapping[str, Json], model: Claude) -> None:
    """Raise `PayloadError` when a request would be refused by such a model."""
    messages = payload.get("messages")
    if not isinstance(messages, list) or not messages:
        raise PayloadError(
            "there must be a message",
            field="messages",
            options=("add a message of the user: what the system says is not one",),
        )
    if len(messages) > MESSAGES:
        raise PayloadError(f"there may be at most {MESSAGES}", field="messages")
    most = payload.get("max_tokens")
    if most is not None and (not isinstance(most, int) or most < 0):
        raise PayloadError("must be a number of tokens", field="max_tokens")
    if "system" in payload:
        _system(payload["system"], "system")
    _tools(payload.get("tools", ()))
    for at, message in enumerate(messages):
        _message(message, f"messages[{at}]")
    _order(messages, model)
    _pairs(messages)
    _served_pairs(messages)
    _marks(payload)
    check_strings(payload)


def _refuse(reason: str, field: str) -> None:
    raise PayloadError(reason, field=field)


def _blocks(content: Json, field: str) -> Sequence[Mapping[str, Json]]:
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    if not isinstance(content, list) or not content:
        raise PayloadError("must be a text or a list of blocks, and not empty", field=field)
    for at, block in enumerate(content):
        if not isinstance(block, Mapping) or not isinstance(block.get("type"), str):
            _refuse("must be a block with a type", f"{field}[{at}]")
        if block["type"] == "text" and not str(block.get("text", "")).strip():
            _refuse("a text must say something", f"{field}[{at}].text")
    return content


def _system(content: Json, field: str) -> None:
    for at, block in enumerate(_blocks(content, field)):
        if block["type"] != "text":
            _refuse("the system speaks in text only", f"{field}[{at}].type")


def _message(message: Json, field: str) -> None:
    if not isinstance(message, Mapping) or message.get("role") not in _ROLES:
        raise PayloadError("must be a message of the user, the assistant or the system", field=field)
    role = message["role"]
    if role == "system":
        return _system(message.get("content"), f"{field}.content")
    blocks = _blocks(message.get("content"), f"{field}.content")
    others = _USER_ONLY if role == "assistant" else _ASSISTANT_ONLY
    for at, block in enumerate(blocks):
        if block["type"] in others or (role == "user" and serves(block["type"])):
            _refuse(f"the {role} cannot have a block of this type", f"{field}.content[{at}].type")
    if role == "user":
        return None
    kinds = [block["type"] for block in blocks]
    if not _THINKING.isdisjoint(kinds):
        first = next(at for at, kind in enumerate(kinds) if kind != "compaction")
        if kinds[first] not in _THINKING:
            _refuse("reasoning must come first", f"{field}.content[{first}].type")
        if kinds[-1] in _THINKING:
            _refuse("reasoning must not come last", f"{field}.content[{len(kinds) - 1}].type")
        for at, block in enumerate(blocks):
            if block["type"] == "thinking" and not block.get("signature"):
                _refuse("must be signed", f"{field}.content[{at}].signature")
    calls = [at for at, kind in enumerate(kinds) if kind == "tool_use"]
    if calls and calls != list(range(calls[0], len(kinds))):
        _refuse("nothing may follow a tool call but another", f"{field}.content[{calls[0] + 1}]")
    return None


def _compactions(messages: Sequence[Mapping[str, Json]]) -> None:
    """Raise for a signed compaction that is not the first block of all, or not the only compaction."""
    said = [
        (f"messages[{at}].content[{number}]", block)
        for at, message in enumerate(messages)
        for number, block in enumerate(message["content"] if isinstance(message["content"], list) else ())
        if block["type"] == "compaction" and block.get("content") is not None
    ]
    if any(block.get("signature") for _, block in said):
        for field, _ in [one for one in said if one[0] != "messages[0].content[0]"]:
            _refuse("a signed compaction must come first, in place of what it stands for, and alone", field)


def _order(messages: Sequence[Mapping[str, Json]], model: Claude) -> None:
    _compactions(messages)
    if messages[0]["role"] != "user" and not _block_of(messages[0], 0, "compaction"):
        _refuse("the first message must be the user's", "messages[0].role")
    for at, message in enumerate(messages):
        if message["role"] != "system":
            continue
        field = f"messages[{at}].role"
        if not model.system:
            _refuse("this model takes no system message here", field)
        if messages[at - 1]["role"] != "user" or [
            one for one in messages[at + 1 : at + 2] if one["role"] != "assistant"
        ]:
            _refuse("a system message must stand between the user and the assistant, or be last", field)
    last = messages[-1]
    if last["role"] != "assistant" or _block_of(last, -1, "compaction"):
        return
    if not isinstance(last["content"], str) and serves(last["content"][-1]["type"]):
        return  # a turn that the provider paused in the middle of its own tools
    field = f"messages[{len(messages) - 1}]"
    if not model.prefill:
        raise PayloadError(
            "this model does not go on with an answer: the last message must be the user's",
            field=field,
            options=("add a message of the user", "choose a model that takes a prefill"),
        )
    content = last["content"]
    if not isinstance(content, str):
        if not _THINKING.isdisjoint([block["type"] for block in content]):
            _refuse("an answer to go on with must hold no reasoning", f"{field}.content")
        content = text_of(content[-1:])
    if content != content.rstrip():
        _refuse("an answer to go on with must not end in white space", f"{field}.content")


def _block_of(message: Mapping[str, Json], at: int, kind: str) -> bool:
    """Return whether a block of a message is of a kind."""
    content = message["content"]
    return isinstance(content, list) and content[at]["type"] == kind


def _pairs(messages: Sequence[Mapping[str, Json]]) -> None:
    taken: set[str] = set()
    waiting: list[str] = []
    for at, message in enumerate(messages):
        content = message["content"]
        blocks = content if isinstance(content, list) else ()
        results = [block for block in blocks if block["type"] == "tool_result"]
        field = f"messages[{at}].content"
        if results and any(block["type"] != "tool_result" for block in blocks[: len(results)]):
            _refuse("tool results must come first", field)
        _result_texts(results, field)
        answered = [block.get("tool_use_id") for block in results]
        if sorted(map(str, answered)) != sorted(waiting):
            _refuse("every tool call must have its result in the next message, and no other", field)
        waiting = []
        for number, block in enumerate(blocks):
            if block["type"] == "tool_use":
                id_ = block.get("id")
                if not isinstance(id_, str) or not _ID.match(id_):
                    _refuse("must be letters, digits, _ and -", f"{field}[{number}].id")
                if id_ in taken:
                    _refuse("is used twice", f"{field}[{number}].id")
                if not _TOOL.match(str(block.get("name", ""))):
                    _refuse("must be 1 to 64 letters, digits, _ and -", f"{field}[{number}].name")
                if not isinstance(block.get("input"), Mapping):
                    _refuse("must be an object", f"{field}[{number}].input")
                taken.add(str(id_))
                waiting.append(str(id_))
    if waiting:
        _refuse("every tool call must have its result in the next message", f"messages[{len(messages) - 1}]")


def _result_texts(results: Sequence[Mapping[str, Json]], field: str) -> None:
    """Raise for an empty text among the blocks of a result."""
    for block in results:
        inner = block.get("content")
        for one in inner if isinstance(inner, list) else ():
            if one.get("type") == "text" and not one.get("text"):
                _refuse("a text must say something", field)


def _served_pairs(messages: Sequence[Mapping[str, Json]]) -> None:
    """Raise for a call of a tool that the provider runs without its result, and for a result without its call.

    The last call may be open: there the provider paused, and goes on.
    """
    waiting: dict[str, str] = {}
    last = ""
    for at, message in enumerate(messages):
        content = message["content"]
        for number, block in enumerate(content if isinstance(content, list) else ()):
            field, last = f"messages[{at}].content[{number}]", ""
            if block["type"] in ("tool_use", "tool_result") or not serves(block["type"]):
                continue
            if "tool_use_id" not in block:
                last = str(block.get("id"))
                waiting[last] = field
            elif waiting.pop(str(block["tool_use_id"]), None) is None:
                _refuse("answers no call before it of a tool that the provider runs", f"{field}.tool_use_id")
    if messages[-1]["role"] == "assistant":
        waiting.pop(last, None)
    for field in waiting.values():
        _refuse("is a call of a tool that the provider runs, and has no result", field)


def _tools(tools: Sequence[Mapping[str, Json]]) -> None:
    taken: set[str] = set()
    for at, tool in enumerate(tools):
        name = tool.get("name")
        if not isinstance(name, str) or not _TOOL.match(name):
            _refuse("must be 1 to 64 letters, digits, _ and -", f"tools[{at}].name")
        if name in taken:
            _refuse("is used twice", f"tools[{at}].name")
        taken.add(str(name))
        if tool.get("type", "custom") != "custom":
            continue
        schema = tool.get("input_schema")
        field = f"tools[{at}].input_schema"
        if not isinstance(schema, Mapping) or schema.get("type") != "object":
            raise PayloadError('must be a schema of type "object"', field=field)
        if not _COMBINED.isdisjoint(schema):
            _refuse("may not combine schemas at its top", field)
        if tool.get("strict") and schema.get("additionalProperties") is not False:
            raise PayloadError(
                "a strict tool must rule out further properties",
                field=field,
                options=('set "additionalProperties" to false', "make the tool not strict"),
            )


def _marks(payload: Mapping[str, Json]) -> None:
    found: list[tuple[str, Json]] = []
    for field, block in _markable(payload):
        mark = block.get("cache_control")
        if mark is None:
            continue
        if block["type"] in _THINKING:
            _refuse("reasoning cannot end a cached prefix", field)
        if not isinstance(mark, Mapping) or mark.get("type") != "ephemeral" or mark.get("ttl") not in _TTLS:
            _refuse("is no cache mark", field)
        found.append((field, mark.get("ttl")))
    if len(found) > BREAKPOINTS:
        _refuse(f"there may be at most {BREAKPOINTS} cache marks", found[BREAKPOINTS][0])
    for (_, before), (field, ttl) in pairwise(found):
        if _TTLS[ttl] > _TTLS[before]:
            _refuse("what is kept for an hour must come before what is not", field)


def _markable(payload: Mapping[str, Json]) -> Iterator[tuple[str, Mapping[str, Json]]]:
    for at, tool in enumerate(payload.get("tools", ())):
        yield f"tools[{at}]", {"type": "custom", **tool}
    system = payload.get("system", ())
    if not isinstance(system, str):
        for at, block in enumerate(system):
            yield f"system[{at}]", block
    for at, message in enumerate(payload["messages"]):
        if not isinstance(message["content"], str):
            for number, block in enumerate(message["content"]):
                yield f"messages[{at}].content[{number}]", block
