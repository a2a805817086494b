"""Rules of the Messages API, checked here so that an error names the field at fault.

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
from acms.providers.codecs.anthropic_blocks import USERS, is_server_tool_block, text_of
from acms.providers.codecs.framing import check_strings

__all__ = ["Claude", "check_payload", "find_claude_family"]

OLD, NEW = 2.3, 2.4
"""Tokens of Claude for each of o200k_base, at most, until there are reports: by its earlier and its newer tokenizer.

The highest of 2 kB pieces of conversations, code and messages in fourteen languages were 2.27 (Thai) and 2.34; English
has 1.15-1.2 and 1.4-1.6, code up to 1.6 and 2.2. Measured with ctok 1.3.0, which reproduces the provider's own counts.
"""


class Claude(NamedTuple):
    """The traits of a family of models that a prompt depends on."""

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


def find_claude_family(model: str) -> Claude:
    """Return the known traits of a model, also under the names that other platforms give it."""
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


def check_payload(payload: Mapping[str, Json], model: Claude) -> None:
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
        _check_system(payload["system"], "system")
    _check_tools(payload.get("tools", ()))
    for at, message in enumerate(messages):
        _check_message(message, f"messages[{at}]")
    _check_message_order(messages, model)
    _check_tool_pairs(messages)
    _check_server_tool_pairs(messages)
    _check_cache_marks(payload)
    check_strings(payload)


def _raise_payload_error(reason: str, field: str) -> None:
    raise PayloadError(reason, field=field)


def _validate_blocks(content: Json, field: str) -> Sequence[Mapping[str, Json]]:
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    if not isinstance(content, list) or not content:
        raise PayloadError("must be a text or a list of blocks, and not empty", field=field)
    for at, block in enumerate(content):
        if not isinstance(block, Mapping) or not isinstance(block.get("type"), str):
            _raise_payload_error("must be a block with a type", f"{field}[{at}]")
        if block["type"] == "text" and not str(block.get("text", "")).strip():
            _raise_payload_error("a text must say something", f"{field}[{at}].text")
    return content


def _check_system(content: Json, field: str) -> None:
    for at, block in enumerate(_validate_blocks(content, field)):
        if block["type"] != "text":
            _raise_payload_error("the system speaks in text only", f"{field}[{at}].type")


def _check_message(message: Json, field: str) -> None:
    if not isinstance(message, Mapping) or message.get("role") not in _ROLES:
        raise PayloadError("must be a message of the user, the assistant or the system", field=field)
    role = message["role"]
    if role == "system":
        return _check_system(message.get("content"), f"{field}.content")
    blocks = _validate_blocks(message.get("content"), f"{field}.content")
    others = _USER_ONLY if role == "assistant" else _ASSISTANT_ONLY
    for at, block in enumerate(blocks):
        if block["type"] in others or (role == "user" and is_server_tool_block(block["type"])):
            _raise_payload_error(
                f"the {role} cannot have a block of this type", f"{field}.content[{at}].type"
            )
    if role == "user":
        return None
    kinds = [block["type"] for block in blocks]
    if not _THINKING.isdisjoint(kinds):
        first = next(at for at, kind in enumerate(kinds) if kind != "compaction")
        if kinds[first] not in _THINKING:
            _raise_payload_error("reasoning must come first", f"{field}.content[{first}].type")
        if kinds[-1] in _THINKING:
            _raise_payload_error("reasoning must not come last", f"{field}.content[{len(kinds) - 1}].type")
        for at, block in enumerate(blocks):
            if block["type"] == "thinking" and not block.get("signature"):
                _raise_payload_error("must be signed", f"{field}.content[{at}].signature")
    calls = [at for at, kind in enumerate(kinds) if kind == "tool_use"]
    if calls and calls != list(range(calls[0], len(kinds))):
        _raise_payload_error("nothing may follow a tool call but another", f"{field}.content[{calls[0] + 1}]")
    return None


def _check_compactions(messages: Sequence[Mapping[str, Json]]) -> None:
    """Raise for a signed compaction that is not the first block of all, or not the only compaction."""
    said = [
        (f"messages[{at}].content[{number}]", block)
        for at, message in enumerate(messages)
        for number, block in enumerate(message["content"] if isinstance(message["content"], list) else ())
        if block["type"] == "compaction" and block.get("content") is not None
    ]
    if any(block.get("signature") for _, block in said):
        for field, _ in [one for one in said if one[0] != "messages[0].content[0]"]:
            _raise_payload_error(
                "a signed compaction must come first, in place of what it stands for, and alone", field
            )


def _check_message_order(messages: Sequence[Mapping[str, Json]], model: Claude) -> None:
    _check_compactions(messages)
    if messages[0]["role"] != "user" and not _block_of(messages[0], 0, "compaction"):
        _raise_payload_error("the first message must be the user's", "messages[0].role")
    for at, message in enumerate(messages):
        if message["role"] != "system":
            continue
        field = f"messages[{at}].role"
        if not model.system:
            _raise_payload_error("this model takes no system message here", field)
        if messages[at - 1]["role"] != "user" or [
            one for one in messages[at + 1 : at + 2] if one["role"] != "assistant"
        ]:
            _raise_payload_error(
                "a system message must stand between the user and the assistant, or be last", field
            )
    last = messages[-1]
    if last["role"] != "assistant" or _block_of(last, -1, "compaction"):
        return
    if not isinstance(last["content"], str) and is_server_tool_block(last["content"][-1]["type"]):
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
            _raise_payload_error("an answer to go on with must hold no reasoning", f"{field}.content")
        content = text_of(content[-1:])
    if content != content.rstrip():
        _raise_payload_error("an answer to go on with must not end in white space", f"{field}.content")


def _block_of(message: Mapping[str, Json], at: int, kind: str) -> bool:
    """Return whether a block of a message is of a kind."""
    content = message["content"]
    return isinstance(content, list) and content[at]["type"] == kind


def _check_tool_pairs(messages: Sequence[Mapping[str, Json]]) -> None:
    taken: set[str] = set()
    waiting: list[str] = []
    for at, message in enumerate(messages):
        content = message["content"]
        blocks = content if isinstance(content, list) else ()
        results = [block for block in blocks if block["type"] == "tool_result"]
        field = f"messages[{at}].content"
        if results and any(block["type"] != "tool_result" for block in blocks[: len(results)]):
            _raise_payload_error("tool results must come first", field)
        _check_result_texts(results, field)
        answered = [block.get("tool_use_id") for block in results]
        if sorted(map(str, answered)) != sorted(waiting):
            _raise_payload_error(
                "every tool call must have its result in the next message, and no other", field
            )
        waiting = []
        for number, block in enumerate(blocks):
            if block["type"] == "tool_use":
                id_ = block.get("id")
                if not isinstance(id_, str) or not _ID.match(id_):
                    _raise_payload_error("must be letters, digits, _ and -", f"{field}[{number}].id")
                if id_ in taken:
                    _raise_payload_error("is used twice", f"{field}[{number}].id")
                if not _TOOL.match(str(block.get("name", ""))):
                    _raise_payload_error(
                        "must be 1 to 64 letters, digits, _ and -", f"{field}[{number}].name"
                    )
                if not isinstance(block.get("input"), Mapping):
                    _raise_payload_error("must be an object", f"{field}[{number}].input")
                taken.add(str(id_))
                waiting.append(str(id_))
    if waiting:
        _raise_payload_error(
            "every tool call must have its result in the next message", f"messages[{len(messages) - 1}]"
        )


def _check_result_texts(results: Sequence[Mapping[str, Json]], field: str) -> None:
    """Raise for an empty text among the blocks of a result."""
    for block in results:
        inner = block.get("content")
        for one in inner if isinstance(inner, list) else ():
            if one.get("type") == "text" and not one.get("text"):
                _raise_payload_error("a text must say something", field)


def _check_server_tool_pairs(messages: Sequence[Mapping[str, Json]]) -> None:
    """Raise for a call of a tool that the provider runs without its result, and for a result without its call.

    The last call may be open: there the provider paused, and goes on.
    """
    waiting: dict[str, str] = {}
    last = ""
    for at, message in enumerate(messages):
        content = message["content"]
        for number, block in enumerate(content if isinstance(content, list) else ()):
            field, last = f"messages[{at}].content[{number}]", ""
            if block["type"] in ("tool_use", "tool_result") or not is_server_tool_block(block["type"]):
                continue
            if "tool_use_id" not in block:
                last = str(block.get("id"))
                waiting[last] = field
            elif waiting.pop(str(block["tool_use_id"]), None) is None:
                _raise_payload_error(
                    "answers no call before it of a tool that the provider runs", f"{field}.tool_use_id"
                )
    if messages[-1]["role"] == "assistant":
        waiting.pop(last, None)
    for field in waiting.values():
        _raise_payload_error("is a call of a tool that the provider runs, and has no result", field)


def _check_tools(tools: Sequence[Mapping[str, Json]]) -> None:
    taken: set[str] = set()
    for at, tool in enumerate(tools):
        name = tool.get("name")
        if not isinstance(name, str) or not _TOOL.match(name):
            _raise_payload_error("must be 1 to 64 letters, digits, _ and -", f"tools[{at}].name")
        if name in taken:
            _raise_payload_error("is used twice", f"tools[{at}].name")
        taken.add(str(name))
        if tool.get("type", "custom") != "custom":
            continue
        schema = tool.get("input_schema")
        field = f"tools[{at}].input_schema"
        if not isinstance(schema, Mapping) or schema.get("type") != "object":
            raise PayloadError('must be a schema of type "object"', field=field)
        if not _COMBINED.isdisjoint(schema):
            _raise_payload_error("may not combine schemas at its top", field)
        if tool.get("strict") and schema.get("additionalProperties") is not False:
            raise PayloadError(
                "a strict tool must rule out further properties",
                field=field,
                options=('set "additionalProperties" to false', "make the tool not strict"),
            )


def _check_cache_marks(payload: Mapping[str, Json]) -> None:
    found: list[tuple[str, Json]] = []
    for field, block in _iterate_markable_blocks(payload):
        mark = block.get("cache_control")
        if mark is None:
            continue
        if block["type"] in _THINKING:
            _raise_payload_error("reasoning cannot end a cached prefix", field)
        if not isinstance(mark, Mapping) or mark.get("type") != "ephemeral" or mark.get("ttl") not in _TTLS:
            _raise_payload_error("is no cache mark", field)
        found.append((field, mark.get("ttl")))
    if len(found) > BREAKPOINTS:
        _raise_payload_error(f"there may be at most {BREAKPOINTS} cache marks", found[BREAKPOINTS][0])
    for (_, before), (field, ttl) in pairwise(found):
        if _TTLS[ttl] > _TTLS[before]:
            _raise_payload_error("what is kept for an hour must come before what is not", field)


def _iterate_markable_blocks(payload: Mapping[str, Json]) -> Iterator[tuple[str, Mapping[str, Json]]]:
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
