"""An OpenAI Agents SDK session on an ACMS log.

    session = ACMSSession("user_123", open_storage("sqlite:///memory.db"))
    config = RunConfig(call_model_input_filter=session.within(8000))
    await Runner.run(agent, "…", session=session, run_config=config)

Items come back exactly as they went in, whatever their type: each is kept verbatim in a `Raw` part beside what ACMS
understands of it, so the same log can be recalled, windowed and rewound.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Literal

from acms.config import ACMSConfig
from acms.errors import FitError, MissingExtraError
from acms.integrations.model_input import Request, is_entry_unchanged, make_prompt, raw_of
from acms.log.native_items import AGENTS, is_parsed_into_parts
from acms.log.repair import repair_value
from acms.model import Entry, Json, Part, Raw, Role, Text, ToolCall, ToolResult
from acms.ports import Embedder, StorageBackend, TokenCounter
from acms.prompt import Prompt, Rendered
from acms.prompt_types import PromptMessage, Tool
from acms.providers.codecs import OpenAIResponses
from acms.runtime.loops import PerLoop
from acms.session import ACMS, withdraw_from_session
from acms.text.chat_messages import MEDIA_TOKENS, RECALLED, wrap_summary
from acms.write.intake import read_repaired

try:
    from agents import FunctionTool, SessionSettings
    from agents.memory.session_settings import coerce_session_settings, resolve_session_limit
    from agents.run_config import CallModelData, ModelInputData
except ModuleNotFoundError as error:
    raise MissingExtraError("openai-agents", "openai-agents") from error

__all__ = ["ACMSSession"]


class ACMSSession:
    """The `Session` protocol of the OpenAI Agents SDK (0.24): four methods on one log.

    `memory` is the ACMS session underneath: use it for recall, history and time travel. `session_settings` are the
    SDK's own; their `limit` is the default of `get_items`. A session may be used from several event loops, as by
    `Runner.run_sync`, and inside an `OpenAIResponsesCompactionSession`: the items that this replaces stay in the log.
    """

    def __init__(
        self,
        session_id: str,
        storage: StorageBackend,
        *,
        embedder: Embedder | Literal["auto"] | None = "auto",
        token_counter: TokenCounter | None = None,
        config: ACMSConfig | None = None,
        namespace: str = "default",
        session_settings: SessionSettings | dict[str, Any] | None = None,
    ) -> None:
        self.session_id = session_id
        self.session_settings: SessionSettings | None = coerce_session_settings(session_settings or {})
        self._codec = OpenAIResponses("gpt-5")
        self.memory = ACMS(
            session_id, storage, embedder, token_counter=token_counter, config=config, namespace=namespace
        )
        self._locks: PerLoop[asyncio.Lock] = PerLoop(asyncio.Lock)

    async def get_items(self, limit: int | None = None) -> list[Any]:
        """Return the active items as they read now, oldest first; with a limit the newest of them."""
        limit = resolve_session_limit(limit, self.session_settings)
        entries = await self.memory.entries(limit) if limit is None or limit > 0 else ()
        return [_item_of_entry(entry) for entry in entries]

    async def add_items(self, items: Sequence[Any]) -> None:
        """Append items in order, all or none."""
        if items:
            await self.memory.ingest_many([_message_of_item(item) for item in items])

    async def pop_item(self) -> Any | None:
        """Retract the newest item and return it; None if there is none. History keeps it.

        A summary is retracted with all the messages that it summarizes.
        """
        async with self._locks.here():
            newest = await self.memory.entries(1)
            if not newest:
                return None
            await withdraw_from_session(self.memory, newest, reason="popped")
            return _item_of_entry(newest[0])

    async def clear_session(self) -> None:
        """Retract all items. History keeps them."""
        async with self._locks.here():
            await self.memory.clear()

    def within(self, budget: int) -> Callable[[CallModelData[Any]], Awaitable[ModelInputData]]:
        """Return a `call_model_input_filter` that shows the model at most `budget` tokens of the session.

        Instructions and function tools of the agent are counted too, as the Responses API does with the vocabulary
        o200k. The newest items are sent unchanged, the current turn with its reasoning if that fits; items relevant to
        the newest message of the user are recalled, in a named namespace from its other sessions too. A run must be
        given the session. Raise `FitError` if the required parts do not fit.
        """
        return partial(self._build_input, budget)

    async def close(self) -> None:
        """Close the session underneath; the caller closes the storage."""
        await self.memory.close()

    async def _build_input(self, budget: int, data: CallModelData[Any]) -> ModelInputData:
        """Return the input of a model call within a budget: the log, and given items that are not stored."""
        input_items, instructions = data.model_data.input, data.model_data.instructions or ""
        tools = [
            Tool(name=tool.name, description=tool.description, parameters=tool.params_json_schema)
            for tool in data.agent.tools
            if isinstance(tool, FunctionTool)
        ]
        questions = [item for item in input_items if item.get("role") == "user"]
        request = Request(
            codec=self._codec,
            budget=budget,
            query=str(_content_of_item(questions[-1])[2]) if questions else "",
            instructions=instructions,
            tools=tools,
        )
        instruction_count = 1 if instructions.strip() else 0
        prompt = make_prompt(self.memory, request)
        unstored = _find_unstored_items(input_items, await self.memory.entries(1))
        if unstored:
            prompt = prompt.add([read_repaired(_message_of_item(item))[0] for item in unstored])
        rendered, spare = await self._render_items(prompt, instruction_count, budget)
        items, missing_tokens = self._restore_turn(rendered, spare, input_items)
        if 0 < missing_tokens < budget:
            # The turn as it was given does not fit yet: render again with fewer tokens, to make space for it.
            with suppress(FitError):
                fewer, spare = await self._render_items(prompt, instruction_count, budget - missing_tokens)
                items, _ = self._restore_turn(fewer, spare + missing_tokens, input_items)
        return ModelInputData(repair_value(items), repair_value(data.model_data.instructions))

    async def _render_items(
        self, prompt: Prompt, instruction_count: int, budget: int
    ) -> tuple[list[Any], int]:
        """Return the items of a request behind its first messages, the instructions, and the tokens that are left.

        They are items as they were stored, which may have more fields. If these do not fit, fewer messages are shown.
        """
        rendered = await prompt.render(budget)
        items, spare = await self._restore_rendered_items(rendered, instruction_count, budget)
        if spare >= 0:
            return items, spare
        with suppress(FitError):
            fewer = await prompt.render(budget + spare)
            items, spare = await self._restore_rendered_items(fewer, instruction_count, budget)
            if spare >= 0:
                return items, spare
        return rendered.payload["input"][instruction_count:], budget - rendered.tokens.upper_bound

    async def _restore_rendered_items(
        self, rendered: Rendered, instruction_count: int, budget: int
    ) -> tuple[list[Any], int]:
        messages = rendered.messages[instruction_count:]
        payload_items = rendered.payload["input"]
        # Twice as many, because reasoning in between may not be shown.
        newest = 2 * sum(len(message.sources) for message in messages)
        items = _restore_items(payload_items[instruction_count:], messages, await self.memory.entries(newest))
        payload = {**rendered.payload, "input": [*payload_items[:instruction_count], *items]}
        return items, budget - self._codec.count(payload).upper_bound

    def _restore_turn(
        self, items: list[Any], spare: int, input_items: Sequence[Any]
    ) -> tuple[list[Any], int]:
        """Replace the end of the shown items by the current turn as it was given, if both have the same contents.

        The given turn may hold items that ACMS does not understand, such as those of a hosted tool. Returns the items
        and the tokens that are missing: if the given turn takes more than the `spare` ones, the items are unchanged,
        and the second value is what it takes beside them; it is 0 in all other cases.
        """
        user_indexes = [index for index, item in enumerate(input_items) if item.get("role") == "user"]
        turn = input_items[user_indexes[-1] if user_indexes else 0 :]
        turn_content = _known_contents(turn)
        start, contents_left = len(items), len(turn_content)
        # Go back over as many items with known content as the turn has: the shown items of the turn.
        while start and contents_left:
            start -= 1
            if _has_known_content(items[start]):
                contents_left -= 1
        tail = items[start:]
        if _known_contents(tail) != turn_content:
            return items, 0
        extra_cost = sum(map(self._cost, turn)) - sum(map(self._cost, tail))
        if extra_cost > spare:
            return items, extra_cost
        return [*items[:start], *turn], 0

    def _cost(self, item: Mapping[str, Any]) -> int:
        """Return the maximum cost of an item that is sent unchanged."""
        media_count = 0
        content = item.get("content")
        if isinstance(content, list):
            parts = [part for part in content if isinstance(part, Mapping)]
            texts = [part for part in parts if part.get("type") not in ("input_image", "input_file")]
            media_count = len(parts) - len(texts)
            if media_count:
                item = {**item, "content": texts}
        text = json.dumps(repair_value(item), ensure_ascii=False)
        return self._codec.counter.count(text) + MEDIA_TOKENS * media_count


def _item_of_entry(entry: Entry) -> Any:
    """Return the item that an entry was stored as; if it was edited or withheld, one with the current content."""
    raw = raw_of(entry.parts, AGENTS)
    if raw:
        item = json.loads(raw)
        if is_entry_unchanged(entry, _message_of_item(item)):
            return item
    # Edited or withheld: a call and its result stay what they are, as a provider refuses one without the other.
    for part in entry.parts:
        if isinstance(part, ToolCall):
            return {
                "type": "function_call",
                "call_id": part.call_id,
                "name": part.name,
                "arguments": part.arguments,
            }
        if isinstance(part, ToolResult):
            return {"type": "function_call_output", "call_id": part.call_id, "output": part.output}
    if entry.role is None:
        return {"role": "user", "content": wrap_summary(entry.content)}
    return {"role": "user" if entry.role is Role.TOOL else entry.role.value, "content": entry.content}


def _message_of_item(item: Any) -> dict[str, Any]:
    """Return an item as `ingest` takes it, with the item itself in a `Raw` part."""
    fields: Mapping[str, Json] = item if isinstance(item, Mapping) else item.model_dump(exclude_unset=True)
    raw = Raw(AGENTS, json.dumps(fields))
    if not is_parsed_into_parts(fields):
        return {"role": Role.ASSISTANT, "parts": [raw]}
    message: dict[str, Any] = {}
    if fields.get("type", "message") == "message":
        message["role"] = Role.USER.value
    message |= fields
    message.pop("id", None)  # the SDK generates ids that repeat
    for name in ("content", "output"):
        if isinstance(message.get(name), list | tuple):
            message[name] = [part for part in message[name] if not _is_file(part)]
    message["parts"] = [raw]
    return message


def _is_file(part: Json) -> bool:
    return isinstance(part, Mapping) and part.get("type") in ("input_image", "input_file", "input_audio")


def _content_of_item(item: Mapping[str, Any]) -> tuple[object, ...]:
    """Return the content of an item in any form: its type, role and text, calls and results."""
    turn, _ = read_repaired(_message_of_item(item))
    parts: Sequence[Part] = turn["parts"]
    texts = [part.text for part in parts if isinstance(part, Text)]
    tools = [part for part in parts if isinstance(part, ToolCall | ToolResult)]
    return (item.get("type", "message"), str(turn["role"]), "\n".join(texts), *tools)


def _has_known_content(item: Any) -> bool:
    """Return whether ACMS understands the content of an item; other items are only passed on to their provider.

    Every message of the user counts as understood, even a single image, because a turn begins with it.
    """
    return item.get("role") == "user" or any(_content_of_item(item)[2:])


def _known_contents(items: Sequence[Any]) -> list[tuple[object, ...]]:
    """Return the contents of items that ACMS understands, in a canonical order."""
    return sorted(_content_of_item(item) for item in items if _has_known_content(item))


def _find_unstored_items(input_items: Sequence[Any], newest_entries: Sequence[Entry]) -> Sequence[Any]:
    """Return the items at the end of a request that are not stored yet: those after the newest stored item."""
    newest = _content_of_item(_item_of_entry(newest_entries[-1])) if newest_entries else None
    for count in range(len(input_items)):
        if _content_of_item(input_items[len(input_items) - 1 - count]) == newest:
            return input_items[len(input_items) - count :]
    return input_items


def _restore_items(
    items: Sequence[dict[str, Any]], messages: Sequence[PromptMessage], entries: Sequence[Entry]
) -> list[Any]:
    """Return the shown items as the items that were stored, where their contents are equal.

    An item that was made after reasoning which is not shown is sent without its id: the API wants both or neither.
    """
    entries_by_id = {entry.id: entry for entry in entries}
    originals: dict[tuple[object, ...], list[Entry]] = {}
    for message in messages:
        if message.text.startswith(RECALLED[0]):
            continue
        for id in message.sources:
            if id in entries_by_id:
                entry = entries_by_id[id]
                originals.setdefault(_content_of_item(_item_of_entry(entry)), []).append(entry)
    reasoned = _find_reasoned_ids(entries)
    restored: list[Any] = []
    after_reasoning = False
    for item in items:
        candidates = originals.get(_content_of_item(item))
        if candidates:
            entry = candidates.pop(0)
            item = dict(_item_of_entry(entry))
            if entry.id in reasoned and not after_reasoning:
                item.pop("id", None)
        if item.get("type") == "reasoning":
            after_reasoning = True
        elif item.get("role") == "user":
            after_reasoning = False
        restored.append(item)
    return restored


def _find_reasoned_ids(entries: Sequence[Entry]) -> set[str]:
    """Return the ids of the items that a model answered after reasoning."""
    reasoned: set[str] = set()
    after_reasoning = False
    for entry in entries:
        if entry.role is not Role.ASSISTANT:
            after_reasoning = False
            continue
        if after_reasoning:
            reasoned.add(entry.id)
        elif _item_of_entry(entry).get("type") == "reasoning":
            after_reasoning = True
    return reasoned
