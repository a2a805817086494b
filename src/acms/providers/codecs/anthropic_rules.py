"""Rules of the Messages API, checked here so that an error names the field at fault.

From platform.claude.com/docs: "Messages" (shape), "Handle tool calls" (pairs and their order), "Errors" (prefill),
"Mid-conversation system messages", "Prompt caching" (breakpoints), "Define tools", and error messages of the API.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from acms.errors import PayloadError
from acms.model import Json
from acms.providers.codecs.anthropic_blocks import USER_ONLY, is_server_tool_block, text_of
from acms.providers.codecs.checks import refuse, require
from acms.providers.codecs.framing import check_strings
from acms.providers.codecs.weighted_counter import ScriptWeights

__all__ = ["Claude", "check_payload", "find_claude_family"]

EARLIER_WEIGHTS = ScriptWeights(
    token=1.15,
    capital=0.51,
    accented=0.28,
    cyrillic=0.17,
    two_bytes=0.36,
    indic=1.32,
    georgian=0.76,
    symbol=3.4,
    han=0.18,
    hangul=0.35,
    emoji=1.75,
    spaces=0.73,
)
CURRENT_WEIGHTS = ScriptWeights(
    token=1.46,
    capital=1.45,
    cyrillic=0.02,
    two_bytes=0.21,
    indic=1.1,
    georgian=0.14,
    symbol=4.5,
    hangul=0.07,
    emoji=1.75,
    spaces=0.67,
)
"""Weights of raw tokens for the earlier tokenizer of Claude and the newer one.

Fitted 2026-11 by quantile regression to ctok 1.3.0, which reproduces the provider's own counts, and divided by
`ESTIMATE`. docs/figures.md has the texts and the result on pieces held out.
"""
ESTIMATE = 1.15
"""Tokens of Claude for each raw one, at most, until there are reports."""


class Claude(NamedTuple):
    """The traits of a family of models that a prompt depends on."""

    #: Tokens that a prefix must have to be cached.
    min_cached_tokens: int = 4_096
    #: Tokens of the system prompt that comes with tools.
    tool_prompt_tokens: int = 804
    #: Weights of raw tokens for its tokenizer.
    weights: ScriptWeights = CURRENT_WEIGHTS
    #: Tokens of an image of unknown size, at most.
    max_image_tokens: int = 4_784
    #: Whether it goes on from a last message of the assistant.
    takes_prefill: bool = False
    #: Whether it takes system messages behind the first message of the user.
    takes_system_messages: bool = False
    #: Whether signed reasoning can be sent back, and whether it is refused unless all before it is as it was.
    takes_reasoning: bool = True
    binds_reasoning: bool = False
    #: Price of a token that is read from the cache, in units of the input's.
    cache_read_rate: float = 0.1


_5_5 = Claude(min_cached_tokens=512, takes_system_messages=True, binds_reasoning=True, cache_read_rate=0.05)
_4_8 = Claude(min_cached_tokens=1_024, tool_prompt_tokens=410, takes_system_messages=True)
_4_5 = Claude(
    min_cached_tokens=4_096,
    tool_prompt_tokens=588,
    weights=EARLIER_WEIGHTS,
    max_image_tokens=1_600,
    takes_prefill=True,
)
_4 = _4_5._replace(min_cached_tokens=1_024, tool_prompt_tokens=346)

_FAMILIES = (
    (r"(?:fable|mythos)-5-[1-9](?!\d)", _5_5._replace(cache_read_rate=0.025)),
    (r"(?:fable|mythos)-5", _5_5._replace(binds_reasoning=False, cache_read_rate=0.1)),
    (r"(?:opus|sonnet)-5-[1-9](?!\d)", _5_5),
    (r"haiku-5-[1-9](?!\d)", _5_5._replace(cache_read_rate=0.1)),
    (r"opus-5", Claude(min_cached_tokens=512, tool_prompt_tokens=410, takes_system_messages=True)),
    (r"mythos-preview", Claude(min_cached_tokens=2_048)),
    (r"sonnet-5", Claude(min_cached_tokens=1_024, tool_prompt_tokens=474)),
    (r"opus-4-8(?!\d)", _4_8),
    (r"opus-4-7(?!\d)", Claude(min_cached_tokens=2_048)),
    (r"opus-4-6(?!\d)", _4_5._replace(tool_prompt_tokens=589, takes_prefill=False)),
    (
        r"sonnet-4-6(?!\d)",
        _4_5._replace(min_cached_tokens=1_024, tool_prompt_tokens=589, takes_prefill=False),
    ),
    (r"(?:opus|haiku)-4-5(?!\d)", _4_5),
    (r"sonnet-4-5(?!\d)", _4_5._replace(min_cached_tokens=1_024)),
    (r"(?:opus|sonnet)-4", _4),
    (r"haiku-3|3-haiku|3-5-haiku", _4._replace(min_cached_tokens=2_048, tool_prompt_tokens=340)),
    (r"opus-3|3-opus", _4._replace(tool_prompt_tokens=530)),
    (r"claude-3|sonnet-3", _4),
    # A model that is newer than this table: the cautious value of each trait.
    (r"(?:opus|sonnet|haiku|fable|mythos)-\d", Claude(binds_reasoning=True)),
)
"""Families by a pattern in the model's name, the first that fits.

From platform.claude.com/docs, November 2026: "Prompt caching" (least prefix), the models' pages (prices), "Preserved
thinking" (binding), "Mid-conversation system messages".
"""
_DOT = re.compile(r"(?<=\d)\.(?=\d)")


def find_claude_family(model: str) -> Claude:
    """Return what is known about a Claude model, also under the names that other platforms give it."""
    name = _DOT.sub("-", model.lower())
    for pattern, family in _FAMILIES:
        if re.search(pattern, name):
            return family
    return Claude(takes_reasoning=False)  # an unknown model may refuse signed reasoning, so none is sent back


_ID = re.compile(r"[a-zA-Z0-9_-]{1,128}\Z")
_TOOL = re.compile(r"[a-zA-Z0-9_-]{1,64}\Z")
_THINKING = frozenset(("thinking", "redacted_thinking"))
_ROLES = ("user", "assistant", "system")
_ASSISTANT_ONLY = frozenset(("tool_use", "compaction", *_THINKING))
_USER_ONLY = frozenset(("tool_result", *USER_ONLY))
_SECONDS_OF_TTL = {None: 300, "5m": 300, "1h": 3_600}
_COMBINED = frozenset(("oneOf", "anyOf", "allOf"))
BREAKPOINTS = 4
"""Cache marks that a request may have."""


def check_payload(payload: Mapping[str, Json], model: Claude) -> None:
    """Raise `PayloadError` when a request would be refused by such a model."""
    messages = payload.get("messages")
    if not isinstance(messages, list) or not messages:
        raise PayloadError(
            "there must be a message",
            field="messages",
            options=("add a user message: a system message does not count",),
        )
    require(len(messages) <= 100_000, "there may be at most 100000", "messages")
    max_tokens: Json = payload.get("max_tokens", 0)
    is_number = max_tokens is None or (isinstance(max_tokens, int) and max_tokens >= 0)
    require(is_number, "must be a number of tokens", "max_tokens")
    if "system" in payload:
        _check_system(payload["system"], "system")
    _check_tools(payload.get("tools", ()))
    for index, message in enumerate(messages):
        _check_message(message, "messages", index)
    _check_compactions(messages)
    _check_first_message(messages[0])
    _check_system_places(messages, model)
    _check_last_message(messages[-1], model, "messages", len(messages) - 1)
    _check_tool_pairs(messages)
    _check_server_tool_pairs(messages)
    _check_cache_marks(payload)
    check_strings(payload)


# ── one message ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _validate_blocks(content: Json, *path: str | int) -> Sequence[Mapping[str, Json]]:
    """Return content as a list of blocks; `PayloadError` if it is empty, or a block has no type or an empty text."""
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    is_list = isinstance(content, list) and content
    require(is_list, "must be a text or a list of blocks, and not empty", *path)
    for index, block in enumerate(content):
        is_block = isinstance(block, Mapping) and isinstance(block.get("type"), str)
        require(is_block, "must be a block with a type", *path, index)
        if block["type"] == "text":
            text = str(block.get("text", ""))
            require(text.strip(), "a text must say something", *path, index, "text")
    return content


def _check_system(content: Json, *path: str | int) -> None:
    for index, block in enumerate(_validate_blocks(content, *path)):
        require(block["type"] == "text", "the system speaks in text only", *path, index, "type")


def _check_message(message: Json, *path: str | int) -> None:
    """Raise `PayloadError` for an invalid message: its role, its blocks, and where reasoning and calls stand in it."""
    is_message = isinstance(message, Mapping) and message.get("role") in _ROLES
    require(is_message, "must be a message of the user, the assistant or the system", *path)
    role = message["role"]
    path = (*path, "content")
    if role == "system":
        _check_system(message.get("content"), *path)
        return
    blocks = _validate_blocks(message.get("content"), *path)
    for index, block in enumerate(blocks):
        if not _may_have(role, block["type"]):
            refuse(f"the {role} cannot have a block of this type", *path, index, "type")
    if role == "assistant":
        _check_reasoning_places(blocks, *path)
        _check_call_places(blocks, *path)


def _may_have(role: str, kind: str) -> bool:
    """Return whether the user, or the assistant, can have a block of a type."""
    if role == "assistant":
        return kind not in _USER_ONLY
    return kind not in _ASSISTANT_ONLY and not is_server_tool_block(kind)


def _check_reasoning_places(blocks: Sequence[Mapping[str, Json]], *path: str | int) -> None:
    """Raise unless reasoning comes first (behind compactions), does not come last, and is signed."""
    kinds = [block["type"] for block in blocks]
    if _THINKING.isdisjoint(kinds):
        return
    first_index = next(index for index, kind in enumerate(kinds) if kind != "compaction")
    last_index = len(kinds) - 1
    require(kinds[first_index] in _THINKING, "reasoning must come first", *path, first_index, "type")
    require(kinds[last_index] not in _THINKING, "reasoning must not come last", *path, last_index, "type")
    for index, block in enumerate(blocks):
        if block["type"] == "thinking":
            require(block.get("signature"), "must be signed", *path, index, "signature")


def _check_call_places(blocks: Sequence[Mapping[str, Json]], *path: str | int) -> None:
    calls = [index for index, block in enumerate(blocks) if block["type"] == "tool_use"]
    if calls:
        are_last = calls == list(range(calls[0], len(blocks)))
        require(are_last, "nothing may follow a tool call but another", *path, calls[0] + 1)


# ── the order of messages ───────────────────────────────────────────────────────────────────────────────────────────


def _blocks_of(message: Mapping[str, Json]) -> Sequence[Mapping[str, Json]]:
    """Return the blocks of a message; none where its content is a text."""
    content = message["content"]
    return content if isinstance(content, list) else ()


def _check_compactions(messages: Sequence[Mapping[str, Json]]) -> None:
    """Raise for a signed compaction that is not the first block of all, or not the only compaction."""
    places: list[tuple[int, int]] = []
    has_signed = False
    for number, message in enumerate(messages):
        for index, block in enumerate(_blocks_of(message)):
            if block["type"] == "compaction" and block.get("content") is not None:
                places.append((number, index))
                has_signed = has_signed or bool(block.get("signature"))
    # (0, 0) is the first block of the first message.
    later_places = [place for place in places if place != (0, 0)]
    if has_signed and later_places:
        number, index = later_places[0]
        problem = "a signed compaction must come first, in place of the messages it covers, and alone"
        refuse(problem, "messages", number, "content", index)


def _check_first_message(message: Mapping[str, Json]) -> None:
    blocks = _blocks_of(message)
    is_compaction = blocks and blocks[0]["type"] == "compaction"
    is_first = message["role"] == "user" or is_compaction
    require(is_first, "the first message must be the user's", "messages[0].role")


def _check_system_places(messages: Sequence[Mapping[str, Json]], model: Claude) -> None:
    """Raise for a system message that the model does not take, or that is not between user and assistant or last."""
    roles = [message["role"] for message in messages]
    for index, role in enumerate(roles):
        if role == "system":
            require(
                model.takes_system_messages,
                "this model takes no system message here",
                "messages",
                index,
                "role",
            )
            is_in_place = roles[index - 1] == "user" and roles[index + 1 : index + 2] in ([], ["assistant"])
            problem = "a system message must stand between the user and the assistant, or be last"
            require(is_in_place, problem, "messages", index, "role")


def _check_last_message(message: Mapping[str, Json], model: Claude, *path: str | int) -> None:
    """Raise if the model cannot continue a request that ends with an answer of the assistant."""
    if message["role"] != "assistant":
        return
    blocks = _blocks_of(message)
    if blocks and (blocks[-1]["type"] == "compaction" or is_server_tool_block(blocks[-1]["type"])):
        return  # the provider paused: behind a compaction, or in the middle of its own tools
    if not model.takes_prefill:
        raise PayloadError(
            "this model does not continue an answer: the last message must be the user's",
            field=f"messages[{path[-1]}]",
            options=("add a message of the user", "choose a model that supports prefill"),
        )
    has_reasoning = any(block["type"] in _THINKING for block in blocks)
    require(not has_reasoning, "an answer to go on with must hold no reasoning", *path, "content")
    text = text_of(blocks[-1:] or message["content"])
    require(text == text.rstrip(), "an answer to go on with must not end in white space", *path, "content")


# ── tools ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _check_tool_pairs(messages: Sequence[Mapping[str, Json]]) -> None:
    """Raise unless the calls of each message are answered by the next one, all of them and no other."""
    ids: set[str] = set()
    open_calls: list[str] = []
    for number, message in enumerate(messages):
        path = ("messages", number, "content")
        blocks = _blocks_of(message)
        _check_results(blocks, open_calls, *path)
        open_calls = []
        for index, block in enumerate(blocks):
            if block["type"] == "tool_use":
                _check_call(block, ids, *path, index)
                open_calls.append(block["id"])
                ids.add(block["id"])
    is_answered = not open_calls
    require(
        is_answered, "every tool call must have its result in the next message", "messages", len(messages) - 1
    )


def _check_results(blocks: Sequence[Mapping[str, Json]], open_calls: list[str], *path: str | int) -> None:
    """Raise unless a message begins with the results of the calls before it."""
    results = [block for block in blocks if block["type"] == "tool_result"]
    come_first = all(block["type"] == "tool_result" for block in blocks[: len(results)])
    require(come_first, "tool results must come first", *path)
    for block in results:
        content = block.get("content")
        for inner in content if isinstance(content, list) else ():
            has_text = inner.get("type") != "text" or inner.get("text")
            require(has_text, "a text must say something", *path)
    answered_ids = sorted([str(block.get("tool_use_id")) for block in results])
    problem = "every tool call must have its result in the next message, and no other"
    require(answered_ids == sorted(open_calls), problem, *path)


def _check_call(block: Mapping[str, Json], ids: set[str], *path: str | int) -> None:
    """Raise for an invalid call; `ids` are those of the calls before it."""
    id = block.get("id")
    is_id = isinstance(id, str) and _ID.match(id)
    require(is_id, "must be letters, digits, _ and -", *path, "id")
    require(id not in ids, "is used twice", *path, "id")
    is_name = _TOOL.match(str(block.get("name", "")))
    require(is_name, "must be 1 to 64 letters, digits, _ and -", *path, "name")
    require(isinstance(block.get("input"), Mapping), "must be an object", *path, "input")


def _check_server_tool_pairs(messages: Sequence[Mapping[str, Json]]) -> None:
    """Raise for a call without its result, and for a result without its call, of tools that the provider runs.

    The last call may have no result: the provider paused there, and will go on.
    """
    open_calls: dict[str, tuple[str | int, ...]] = {}
    last_call = ""
    for number, message in enumerate(messages):
        for index, block in enumerate(_blocks_of(message)):
            last_call = ""
            kind = block["type"]
            # Tools of the caller are checked elsewhere.
            if kind in ("tool_use", "tool_result") or not is_server_tool_block(kind):
                continue
            path = ("messages", number, "content", index)
            if "tool_use_id" not in block:
                last_call = str(block.get("id"))
                open_calls[last_call] = path
            else:
                call = open_calls.pop(str(block["tool_use_id"]), None)
                problem = "answers no call before it of a tool that the provider runs"
                require(call is not None, problem, *path, "tool_use_id")
    if messages[-1]["role"] == "assistant":
        open_calls.pop(last_call, None)
    for path in open_calls.values():
        refuse("is a call of a tool that the provider runs, and has no result", *path)


def _check_tools(tools: Sequence[Mapping[str, Json]]) -> None:
    """Raise `PayloadError` for tools with an invalid or repeated name, or an invalid schema."""
    names: set[str] = set()
    for index, tool in enumerate(tools):
        path = ("tools", index)
        name: Json = tool.get("name", "")
        is_name = isinstance(name, str) and _TOOL.match(name)
        require(is_name, "must be 1 to 64 letters, digits, _ and -", *path, "name")
        require(name not in names, "is used twice", *path, "name")
        names.add(name)
        if tool.get("type", "custom") == "custom":
            _check_schema(tool, *path, "input_schema")


def _check_schema(tool: Mapping[str, Json], *path: str | int) -> None:
    """Raise `PayloadError` for a schema of a tool's input that would be refused."""
    schema: Json = tool.get("input_schema", {})
    is_object = isinstance(schema, Mapping) and schema.get("type") == "object"
    require(is_object, 'must be a schema of type "object"', *path)
    require(_COMBINED.isdisjoint(schema), "may not combine schemas at its top", *path)
    if tool.get("strict") and schema.get("additionalProperties") is not False:
        raise PayloadError(
            "a strict tool must forbid additional properties",
            field=f"tools[{path[1]}].input_schema",
            options=('set "additionalProperties" to false', "make the tool not strict"),
        )


# ── cache marks ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _check_cache_marks(payload: Mapping[str, Json]) -> None:
    """Raise `PayloadError` for invalid cache marks, too many, or a longer-lived one after a shorter-lived one."""
    seconds: list[int] = []
    for block, path in _iterate_markable_blocks(payload):
        cache_control = block.get("cache_control")
        if cache_control is None:
            continue
        require(block.get("type") not in _THINKING, "reasoning cannot end a cached prefix", *path)
        is_object = isinstance(cache_control, Mapping) and cache_control.get("type") == "ephemeral"
        require(is_object and cache_control.get("ttl") in _SECONDS_OF_TTL, "is no cache mark", *path)
        seconds.append(_SECONDS_OF_TTL[cache_control.get("ttl")])
        require(len(seconds) <= BREAKPOINTS, f"there may be at most {BREAKPOINTS} cache marks", *path)
        # Times may only fall from one mark to the next.
        require(seconds[-1] <= min(seconds), "what is kept for an hour must come before what is not", *path)


def _iterate_markable_blocks(
    payload: Mapping[str, Json],
) -> Iterator[tuple[Mapping[str, Json], tuple[str | int, ...]]]:
    """Yield each block that may hold `cache_control`, in the order of the prefix, with its path in the payload."""
    for index, tool in enumerate(payload.get("tools", ())):
        yield tool, ("tools", index)
    system = payload.get("system", ())
    for index, block in enumerate(system if isinstance(system, list) else ()):
        yield block, ("system", index)
    for number, message in enumerate(payload["messages"]):
        for index, block in enumerate(_blocks_of(message)):
            yield block, ("messages", number, "content", index)
