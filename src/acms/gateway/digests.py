"""Digests of what messages say, whatever form a client sends them back in.

Clients change cache marks, drop thinking, turn a text into a block and back, strip white space, drop ids and
annotations, and write the JSON of arguments with other spaces. None of this changes a digest.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

from acms.gateway.protocols import Protocol

__all__ = ["chain_digests", "digest_of_message", "digest_of_texts", "key_messages", "tools_digest"]

_IGNORED = frozenset(
    (
        "annotations",
        "cache_control",
        "logprobs",
        "refusal",
        "status",
        "internal_chat_message_metadata_passthrough",
    )
)
_WITH_ID = frozenset(("message", "reasoning", "function_call", "custom_tool_call", "local_shell_call"))
_TEXTS = frozenset(("text", "input_text", "output_text"))
_THINKING = frozenset(("thinking", "redacted_thinking"))
_REASONING_FIELDS = frozenset(("reasoning", "reasoning_content", "reasoning_details", "thinking_blocks"))
_dump = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


def digest_of_texts(*texts: str) -> str:
    """Return a digest of some texts, in order."""
    joined = "\0".join(texts).encode("utf-8", "surrogatepass")
    return sha256(joined).hexdigest()[:32]


def digest_of_message(message: Any) -> str:
    """Return a digest of what a message says."""
    return digest_of_texts(_dump(_simplify_value(message, top=True)))


def chain_digests(protocol: Protocol, items: Sequence[Any], digests: Sequence[str], seed: str) -> list[str]:
    """Return for each message the digest of the list up to it, without instructions and reasoning.

    Clients rewrite their instructions and drop reasoning, and the conversation is still the same. `digests` are those
    of the single messages.
    """
    chain = digest_of_texts("acms-gateway-1", seed)
    chains: list[str] = []
    for item, digest in zip(items, digests, strict=True):
        is_ignored = protocol.instructs(item) or protocol.binds_to_next(item)
        if not is_ignored:
            chain = digest_of_texts(chain, digest)
        chains.append(chain)
    return chains


def key_messages(protocol: Protocol, items: Sequence[Any], digests: Sequence[str]) -> list[str]:
    """Return a key for each message, which stays the same when other messages are edited.

    It is a digest of the ids of the message's tool calls and results, or of its content if it has none, and the number
    of times that this digest has occurred in the list so far.
    """
    counts = Counter[str]()
    keys: list[str] = []
    for item, digest in zip(items, digests, strict=True):
        calls, results = protocol.call_ids(item), protocol.result_ids(item)
        base = digest_of_texts("call", *calls, "result", *results) if calls or results else digest
        counts[base] += 1
        keys.append(f"{base}-{counts[base]}")
    return keys


def tools_digest(body: Mapping[str, Any]) -> str:
    """Return a digest of the names of the tools that a request offers; "" without tools."""
    tools = body.get("tools")
    if not isinstance(tools, list) or not tools:
        return ""
    names: list[str] = []
    for tool in tools:
        if isinstance(tool, Mapping):
            function = tool.get("function")
            definition = function if isinstance(function, Mapping) else tool
            names.append(str(definition.get("name") or tool.get("type")))
    return digest_of_texts(*sorted(names))


def _simplify_value(value: Any, *, top: bool = False) -> Any:
    """Return a value without the fields and blanks that clients change; `top` is True for a message itself."""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, list):
        return _simplify_list(value)
    if isinstance(value, dict):
        return _simplify_object(value, top)
    return value


def _simplify_list(values: list[Any]) -> Any:
    """Return a list of blocks without thinking, or the text of its only block: clients write one text either way."""
    blocks: list[Any] = []
    for value in values:
        kind = value.get("type") if isinstance(value, dict) else None
        if kind not in _THINKING:
            blocks.append(_simplify_value(value))
    if len(blocks) == 1 and isinstance(blocks[0], dict) and blocks[0].get("type") == "text":
        return blocks[0]["text"]
    return blocks


def _simplify_object(value: dict[str, Any], top: bool) -> dict[str, Any]:
    """Return a message or a block with only the fields that distinguish it, in one form for all clients."""
    kind = value.get("type")
    dropped_fields = _IGNORED
    if kind in _WITH_ID or (top and "role" in value):
        dropped_fields = dropped_fields | {"id"}
    if top:
        dropped_fields = dropped_fields | _REASONING_FIELDS
    simplified: dict[str, Any] = {}
    for name, inner in value.items():
        if name not in dropped_fields and inner not in (None, "", []):
            simplified[name] = _simplify_value(inner)
    if kind in _TEXTS:
        simplified = {"type": "text", "text": str(value.get("text") or "").strip()}
    if kind == "message":  # the type of a message is optional
        del simplified["type"]
    if isinstance(value.get("arguments"), str):
        simplified["arguments"] = _simplify_arguments(value["arguments"])
    return simplified


def _simplify_arguments(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments
