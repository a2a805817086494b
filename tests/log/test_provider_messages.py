"""Messages as providers write them: made by chance from the types of their SDKs, and nothing of them is lost."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, get_args

import pytest
from anthropic.types import MessageParam
from openai.types.chat import ChatCompletionMessageParam
from openai.types.responses import ResponseInputItemParam

from acms import (
    ACMS,
    ACMSConfig,
    ConfigurationError,
    Entry,
    Media,
    Raw,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    ValidationError,
)
from acms.codecs import AnthropicMessages, OpenAIChat, OpenAIResponses
from acms.log import provider_messages
from acms.log.encoding import entry_to_json
from acms.prompt import Prompt
from acms.prompt.steps import (
    build_groups,
    find_sealed_compaction,
    prompt_message_of_entry,
    substitute_summary,
)
from acms.storage import MemoryStorage
from acms.text import chat_messages
from tests.support.typed import BYTES, Values

KINDS = {
    "chat": get_args(ChatCompletionMessageParam),
    "responses": get_args(ResponseInputItemParam),
    "anthropic": (MessageParam,),
}
MARKS = ("cache_control", "prompt_cache_breakpoint")


def keep_media(data: bytes, mime: str) -> str:
    return f"kept:{len(data)}:{mime}"


def text_leaves(value: Any, name: str = "") -> Iterator[str]:
    """Yield every text of a message that says something: not inline bytes, marks of a cache, and words of a format."""
    if isinstance(value, dict):
        for key, one in value.items():
            if key not in MARKS:
                yield from text_leaves(one, key)
    elif isinstance(value, list):
        for one in value:
            yield from text_leaves(one, name)
    elif isinstance(value, str) and value.endswith("-z"):
        yield value


def says_nothing(message: dict[str, Any]) -> bool:
    return not any(text_leaves({name: one for name, one in message.items() if name not in ("id", "name")}))


def random_message(kind: Any, seed: int) -> dict[str, Any]:
    """Return a message made by chance from a type of an SDK."""
    message = Values(seed).of(kind)
    content = message.get("content")
    if isinstance(content, list) and {"thinking", "tool_use"} & {
        one.get("type") for one in content if isinstance(one, dict)
    }:
        message["role"] = "assistant"  # the types allow more than the API does
    return message


async def store_message(session: ACMS, message: dict[str, Any]) -> list[Entry]:
    """Store a message in a conversation that its provider takes, and return the entries it became."""
    turns = provider_messages.parse_provider_message(message, keep=keep_media)
    parts = [part for turn in turns for part in turn.get("parts", ())]
    calls = [part.call_id for part in parts if isinstance(part, ToolCall)]
    answered = [part.call_id for part in parts if isinstance(part, ToolResult)]
    answered += [turn["tool_call_id"] for turn in turns if "tool_call_id" in turn]
    if not answered:
        await session.ingest("user", "Hello.")
    for call in answered:
        await session.ingest("assistant", tool_calls=[{"id": call, "name": "f", "arguments": "{}"}])
    receipts = await session.ingest_many([message])
    for call in calls:
        await session.ingest("tool", "Done.", tool_call_id=call)
    await session.ingest("user", "And now?")
    return [await session.get(one.message_id) for one in receipts]


def missing_leaves(said: Iterable[str], text: str) -> list[str]:
    """Return what a text does not hold."""
    return [leaf for leaf in said if leaf not in text]


async def none_is_lost(name: str, seeds: range) -> None:
    """Payload → log → payload: all of it is in the log, and in the next request but for what the codec says."""
    codec, kinds = CODECS[name], KINDS[name]
    config = ACMSConfig(media=keep_media)
    for seed in seeds:
        message = random_message(kinds[seed % len(kinds)], seed)
        async with ACMS("s", MemoryStorage(), None, config=config) as session:
            try:
                entries = await store_message(session, message)
            except ValidationError:
                assert says_nothing(message), (name, seed, message)
                continue
            stored = "\n".join([json.dumps(entry_to_json(one), ensure_ascii=False) for one in entries])
            assert not missing_leaves(text_leaves(message), stored), (name, seed, message)
            assert BYTES not in stored
            gathered = await session.internals.read_span()
            own = find_sealed_compaction(session.internals, gathered.replacements, codec.vendors)
            units = gathered.units if own is None else substitute_summary(gathered.units, own)
            prompt = [one for group in build_groups(units, "", codec.vendors) for one in group.messages]
            payload = codec.render(prompt)
            codec.check(payload)
            emitted = await session.messages("", budget=1_000_000)
        given = [part for entry in entries for part in entry.parts if isinstance(part, Raw)]
        beside = [part.json for part in given if part.vendor == provider_messages.EXTRA_FIELDS]
        beside += [str(entry.key) for entry in entries]
        silent = missing_leaves(
            text_leaves(message), "\n".join([json.dumps(payload, ensure_ascii=False), *beside])
        )
        assert codec.notes(prompt) or not silent, (name, seed, silent, payload)
        async with ACMS("t", MemoryStorage(), None) as session:
            await session.ingest_many(emitted)
            assert await session.messages("", budget=1_000_000) == emitted, (name, seed)


@pytest.mark.parametrize("name", sorted(KINDS))
async def test_nothing_of_a_message_is_lost(name: str) -> None:
    await none_is_lost(name, range(60))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(KINDS))
async def test_nothing_of_a_thousand_messages_is_lost(name: str) -> None:
    await none_is_lost(name, range(60, 1_060))


# ── there and back ──────────────────────────────────────────────────────────────────────────────────────────────────


def turn_of(name: str, seed: int) -> list[dict[str, Any]]:
    """Return a turn with a call and its answer as a provider writes it, its texts made by chance."""
    new = Values(seed)
    ask, call, answer = new.text("ask"), new.text("call"), new.text("answer")
    picture = f"https://example.org/{new.text('picture')}"
    given = {"host": new.text("host"), "deep": [seed, None, {"a": new.text("b")}]}
    if name == "chat":
        function = {"name": "disk", "arguments": json.dumps(given)}
        return [
            {"role": "user", "content": [{"type": "text", "text": ask},
                                         {"type": "image_url", "image_url": {"url": picture}}], "name": "maya"},
            {"role": "assistant", "content": None,
             "tool_calls": [{"id": call, "type": "function", "function": function}]},
            {"role": "tool", "tool_call_id": call, "content": [{"type": "text", "text": answer}]},
            {"role": "assistant", "content": None, "refusal": new.text("no")},
        ]  # fmt: skip
    if name == "responses":
        return [
            {"role": "user", "content": [{"type": "input_text", "text": ask},
                                         {"type": "input_image", "image_url": picture, "detail": "auto"}]},
            {"type": "reasoning", "id": f"rs_{seed}", "summary": [], "encrypted_content": new.text("secret")},
            {"type": "function_call", "call_id": call, "name": "disk", "arguments": json.dumps(given)},
            {"type": "function_call_output", "call_id": call, "output": answer},
            {"type": "message", "role": "assistant", "id": f"msg_{seed}", "status": "completed",
             "content": [{"type": "output_text", "text": new.text("done"), "annotations": []}]},
        ]  # fmt: skip
    call = f"toolu_{seed}"
    return [
        {"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": picture}},
                                     {"type": "text", "text": ask}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": new.text("hm"), "signature": new.text("signed")},
            {"type": "redacted_thinking", "data": new.text("hidden")},
            {"type": "text", "text": new.text("looking")},
            {"type": "tool_use", "id": call, "name": "disk", "input": given}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": call, "content": [{"type": "text", "text": answer}]},
            {"type": "text", "text": new.text("and now?")}]},
        {"role": "assistant", "content": new.text("done")},
    ]  # fmt: skip


CODECS = {
    "chat": OpenAIChat("gpt-5"),
    "responses": OpenAIResponses("gpt-5"),
    "anthropic": AnthropicMessages("claude-sonnet-4-5"),
}


@pytest.mark.anyio
@pytest.mark.parametrize("name", sorted(CODECS))
async def test_what_is_ingested_is_sent_again(name: str) -> None:
    await there_and_back(name, range(100))


@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.parametrize("name", sorted(CODECS))
async def test_what_a_thousand_times_is_ingested_is_sent_again(name: str) -> None:
    await there_and_back(name, range(100, 1_100))


async def there_and_back(name: str, seeds: range) -> None:
    """Payload → log → payload → log: the same is said, and the second log is the first."""
    codec = CODECS[name]
    for seed in seeds:
        messages = turn_of(name, seed)
        async with ACMS(f"s{seed}", MemoryStorage(), None) as session:
            for message in messages:
                await session.ingest(message)
            payload = codec.render([prompt_message_of_entry(entry, "") for entry in await session.entries()])
            written = payload["input"] if name == "responses" else payload["messages"]
            missing = missing_leaves(
                [one for message in messages for one in text_leaves(message)], json.dumps(written)
            )
            assert not missing, (seed, missing, written)
        async with ACMS(f"s{seed}", MemoryStorage(), None) as session:
            await session.ingest_many(written)
            again = codec.render([prompt_message_of_entry(entry, "") for entry in await session.entries()])
            assert again == payload


@pytest.mark.anyio
async def test_what_messages_emits_is_accepted_unchanged() -> None:
    async with ACMS("s", MemoryStorage(), None) as session:
        for message in turn_of("chat", 1) + turn_of("anthropic", 2):
            await session.ingest(message)
        emitted = await session.messages("", budget=100_000)
        assert {"type": "image_url", "image_url": {"url": "https://example.org/picture4-z"}} in emitted[0][
            "content"
        ]
    async with ACMS("t", MemoryStorage(), None) as session:
        await session.ingest_many(emitted)
        assert await session.messages("", budget=100_000) == emitted
        assert not (await session.sync(emitted)).appended


# ── one by one ──────────────────────────────────────────────────────────────────────────────────────────────────────


def parse_message(message: dict[str, Any], **given: Any) -> list[provider_messages.Turn]:
    return provider_messages.parse_provider_message(message, **given)


def test_several_results_are_several_messages() -> None:
    answers = [
        {"type": "tool_result", "tool_use_id": f"t{n}", "content": f"{n}", "is_error": n == 2} for n in (1, 2)
    ]
    first, second, third = parse_message(
        {"role": "user", "id": "m1", "content": [*answers, {"type": "text", "text": "go on"}]}
    )
    assert first == {"role": "tool", "content": "1", "tool_call_id": "t1", "key": "m1"}
    assert second["parts"] == [ToolResult("t2", "2", True)]
    assert third == {"role": "user", "content": "go on", "key": "m1:2"}


def test_parts_of_a_message() -> None:
    content = [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {
            "type": "text",
            "text": "a",
            "citations": [{"cited_text": "b"}],
            "cache_control": {"type": "ephemeral"},
        },
        {"type": "tool_use", "id": "t1", "name": "disk", "input": {}},
        {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "q"}},
    ]
    (turn,) = parse_message(
        {"role": "assistant", "content": content, "stop_reason": "tool_use", "type": "message"}
    )
    assert turn["parts"] == [
        Reasoning("hm", "s"),
        Text("a"),
        Raw(provider_messages.EXTRA_FIELDS, '{"type": "text", "citations": [{"cited_text": "b"}]}'),
        ToolCall("t1", "disk", "{}"),
        Raw("anthropic", json.dumps(content[3])),
        Raw(provider_messages.EXTRA_FIELDS, '{"stop_reason": "tool_use"}'),
    ]


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ({"role": "user", "content": [{"type": "text", "text": "a"},
                                      {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{BYTES}"}}]},
         "messages[3].content[1].image_url"),
        ({"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": BYTES, "format": "wav"}}]},
         "messages[3].content[0].input_audio.data"),
        ({"role": "user", "content": [{"type": "image", "source": {"type": "base64", "data": BYTES,
                                                                  "media_type": "image/png"}}]},
         "messages[3].content[0].source.data"),
        ({"type": "image_generation_call", "id": "ig_1", "result": BYTES, "status": "completed"}, "messages[3].result"),
        ({"role": "user", "content": [{"type": "unheard_of", "file_data": BYTES}]}, "messages[3].content[0].file_data"),
        ({"type": "unheard_of", "output": [{"input_audio": {"data": BYTES, "format": "wav"}}]},
         "messages[3].output[0].input_audio.data"),
        ({"role": "user", "content": [{"type": "file", "file": {"file_data": f"data:application/pdf;base64,{BYTES}"}}]},
         "messages[3].content[0].file.file_data"),
        ({"role": "user", "content": [{"type": "file", "file": {"file_data": BYTES, "filename": "a.pdf"}}]},
         "messages[3].content[0].file.file_data"),
    ],
)  # fmt: skip
def test_bytes_are_refused_or_kept_elsewhere(message: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError) as caught:
        parse_message(message, field="messages[3]")
    assert caught.value.field == field
    assert any("ACMSConfig(media" in option for option in caught.value.options)
    kept: list[bytes] = []

    def take(data: bytes, mime: str) -> str:
        kept.append(data)
        return "https://example.org/kept"

    (turn,) = parse_message(message, field="messages[3]", keep=take)
    assert kept == [b"hello world"]
    assert BYTES not in repr(turn)
    assert "https://example.org/kept" in repr(turn)


def test_media_are_referred_to_by_the_id_of_a_file_and_what_names_none_is_kept_word_for_word() -> None:
    picture = {"type": "input_image", "file_id": "file_1", "image_url": None, "detail": "high"}
    unnamed = {"type": "input_file", "filename": "a.pdf"}
    (turn,) = parse_message({"role": "user", "content": [picture, unnamed]})
    assert turn["parts"] == [
        Media("image/*", "file_1"),
        Raw(provider_messages.EXTRA_FIELDS, '{"type": "input_image", "detail": "high"}'),
        Raw("openai-responses", json.dumps(unnamed)),
    ]
    document = {"type": "document", "source": {"type": "file", "file_id": "file_2"}}
    unknown = {"type": "image", "source": {"type": "unheard_of", "at": "x"}}
    (turn,) = parse_message({"role": "user", "content": [document, unknown]})
    assert turn["parts"] == [Media("application/pdf", "file_2"), Raw("anthropic", json.dumps(unknown))]


@pytest.mark.parametrize(
    ("message", "field", "what"),
    [
        ({"role": "user", "content": [], "parts": "a"}, "m.parts", "must be a list, not str"),
        ({"role": "user", "content": [{"type": "input_audio", "input_audio": "a"}]}, "m.content[0].input_audio",
         "must be an object"),
        ({"role": "user", "content": [{"type": "file", "file": "a.pdf"}]}, "m.content[0].file", "must be an object"),
        ({"object": "response.compaction", "output": ["a"]}, "m.output[0]", "must be a mapping, not str"),
    ],
)  # fmt: skip
def test_what_no_provider_writes_is_refused_with_its_place(
    message: dict[str, Any], field: str, what: str
) -> None:
    with pytest.raises(ValidationError, match=what) as caught:
        parse_message(message, field="m")
    assert caught.value.field == field


def test_spoken_answers_are_their_transcript_and_a_reference() -> None:
    audio = {"id": "audio_1", "data": BYTES, "transcript": "Hello.", "expires_at": 5}
    (turn,) = parse_message({"role": "assistant", "content": None, "audio": audio}, keep=keep_media)
    assert turn["content"] == "Hello."
    assert [type(part) for part in turn["parts"]] == [Media, Raw]
    assert BYTES not in repr(turn)


@pytest.mark.anyio
async def test_a_session_hands_bytes_to_whom_its_config_names() -> None:
    picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{BYTES}"}}
    async with ACMS("s", MemoryStorage(), None, config=ACMSConfig(media=keep_media)) as session:
        id = await session.ingest(
            {"role": "user", "content": [picture]}, actor_id="maya", idempotency_key="k"
        )
        entry = await session.get("k")
        assert (entry.id, entry.actor) == (id, "maya")
        (media,) = entry.parts
        assert isinstance(media, Media)
        assert (media.mime, media.ref) == ("image/png", "kept:11:image/png")
        with pytest.raises(ValidationError, match="stands alone"):
            await session.ingest({"role": "user", "content": "a"}, "b")
    async with ACMS("s", MemoryStorage(), None, config=ACMSConfig(strict=True)) as session:
        with pytest.raises(ValidationError) as caught:
            await session.ingest({"role": "user", "content": [picture]})
        assert caught.value.field == "content[0].image_url"
    async with ACMS("s", MemoryStorage(), None) as session:
        entry = await session.get(await session.ingest("user", [picture]))
        (media,) = entry.parts
        assert isinstance(media, Media)
        assert media.ref == f"sha256:{media.sha256}"
        assert session.last_receipt is not None
        assert "only their hash" in session.last_receipt.notes[0]
    with pytest.raises(ConfigurationError, match="media"):
        ACMSConfig(media="a folder")  # type: ignore[arg-type]


@pytest.mark.anyio
async def test_media_cost_what_they_state() -> None:
    async with ACMS("s", MemoryStorage(), None) as session:
        for n in range(10):
            picture = Media("image/png", f"https://example.org/{n}.png", tokens=50)
            await session.ingest("user", "look", parts=[picture])
        emitted = await session.messages("", budget=700)
        assert len(emitted) == 10
        plain = Media("image/png", "https://example.org/large.png")
        await session.ingest("user", "look", parts=[plain])
        emitted = await session.messages("", budget=1_600)
        assert 0 < len(emitted) < 11
        assert chat_messages.count_message_tokens(emitted[-1:], session.counter) > chat_messages.MEDIA_TOKENS


@pytest.mark.parametrize(
    "block",
    [
        {
            "type": "document",
            "source": {"type": "text", "media_type": "text/plain", "data": "a"},
            "title": "T",
        },
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "a"}},
        {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "a"}]}},
        {
            "type": "document",
            "source": {"type": "url", "url": "https://e.org/a.pdf"},
            "title": "T",
            "citations": {"enabled": True},
        },
        {
            "type": "search_result",
            "source": "https://e.org",
            "title": "T",
            "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
            "citations": {"enabled": True},
        },
        {"type": "container_upload", "file_id": "file_1"},
    ],
)
async def test_documents_and_search_results_of_the_user_go_back_to_claude_as_they_came(
    block: dict[str, Any],
) -> None:
    session = ACMS("s", MemoryStorage(), None)
    content = [{"type": "text", "text": "see"}, block, {"type": "text", "text": "q"}]
    await session.ingest({"role": "user", "content": content})
    codec = AnthropicMessages("claude-opus-5-5", cache_history=False)
    request = await Prompt(codec).history(session).render(budget=50_000)
    assert request.payload["messages"] == [{"role": "user", "content": content}]
    assert request.warnings == ()
    assert codec.parse(request.payload) == codec.normal(codec.parse(request.payload))
    if block["type"] != "container_upload":  # others read what is in it
        other = await Prompt(OpenAIChat("gpt-5")).history(session).render(budget=50_000)
        assert "a" in json.dumps(other.payload["messages"])
