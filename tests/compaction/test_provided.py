"""Compactions of providers: kept as summaries of what stood before them, sent back word for word to who made them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from acms import (
    ACMS,
    ACMSConfig,
    Kind,
    Origin,
    PreconditionError,
    Privacy,
    PrivacyConfig,
    Raw,
    State,
    ValidationError,
    open_storage,
)
from acms.codecs import AnthropicMessages, OpenAIChat, OpenAIResponses
from acms.observability.events import Compacted
from acms.ports import Codec, StorageBackend
from acms.prompt import Prompt
from tests.providers import validators

BLOCK = {"type": "compaction", "content": "They keep lathes on shelf 11.", "signature": "c2ln"}
ITEM = {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAA"}
CLAUDE = AnthropicMessages("claude-opus-5-5")
RESPONSES = OpenAIResponses("gpt-6.2-sol")
CHAT = OpenAIChat("gpt-5")


async def write_conversation(storage: StorageBackend, *, config: ACMSConfig | None = None) -> ACMS:
    session = ACMS("day", storage, None, config=config)
    await session.ingest("system", "Be brief.")
    for number in range(4):
        await session.ingest("user", f"Where is lathe {number}?")
        await session.ingest("assistant", f"Lathe {number} is on shelf {number * 11}.")
    return session


async def render_payload(session: ACMS, codec: Codec, *, recall: str = "", budget: int = 4_000) -> Any:
    prompt = Prompt(codec).system("Rules.").history(session)
    prompt = prompt.recall(session, recall) if recall else prompt
    rendered = await prompt.render(budget=budget)
    assert rendered.tokens.upper_bound <= budget
    return rendered.payload


@pytest.mark.parametrize("recall", ["", "lathe"])
async def test_a_readable_one_takes_the_place_of_what_was_said_and_goes_back_word_for_word(
    recall: str,
) -> None:
    events: list[Any] = []
    session = await write_conversation(open_storage("memory://"), config=ACMSConfig(on_event=events.append))
    answer = {"role": "assistant", "content": [BLOCK, {"type": "text", "text": "Go on."}]}
    id = await session.ingest(answer)
    assert (await session.get(id)).content == "Go on."
    assert session.last_receipt is not None
    assert (session.last_receipt.version, session.last_receipt.position) == (11, 10)
    (made,) = await session.compactions()
    assert (made.summary, made.replaces, made.summarizer) == (BLOCK["content"], (2, 9), "anthropic")
    assert (made.removed, made.preserved, made.in_force, made.trust) == (8, 1, True, Origin.ASSISTANT)
    assert made.lost.counts["number"] > 0  # what the provider's summary does not say
    assert made.tokens_before > made.tokens_after
    assert [event.last for event in events if isinstance(event, Compacted)] == [9]
    assert [one.content for one in await session.expand(10)][:1] == ["Where is lathe 0?"]
    await session.ingest("user", "And now?")

    claude = await render_payload(session, CLAUDE, recall=recall)
    validators.anthropic(claude, system=True)
    assert claude["messages"][0]["content"] == [BLOCK, {"type": "text", "text": "Go on."}]
    others = json.dumps([await render_payload(session, codec, recall=recall) for codec in (RESPONSES, CHAT)])
    assert others.count("They keep lathes on shelf 11.\\n</summary>") == 2
    assert "c2ln" not in others
    assert [one.kind for one in await session.entries()][:2] == [Kind.MESSAGE, Kind.SUMMARY]
    assert "Where is lathe 3?" in [one.content for one in await session.recall("where is lathe 3?")]


@pytest.mark.parametrize("recall", ["", "lathe"])
async def test_a_sealed_one_hides_what_was_said_from_its_provider_only(recall: str) -> None:
    session = await write_conversation(open_storage("memory://"))
    before = await render_payload(session, CHAT)
    id = await session.ingest(ITEM)
    assert (await session.get(id)).kind is Kind.SUMMARY
    (made,) = await session.compactions()
    assert (made.summary, made.replaces, made.summarizer, made.in_force) == (
        "",
        (2, 9),
        "openai-responses",
        True,
    )
    assert made.tokens_before == made.tokens_after  # everybody else reads on
    assert await render_payload(session, CHAT) == before
    for number in range(3):  # the same prefix from turn to turn
        await session.ingest("user", f"And saw {number}?")
        payload = await render_payload(session, RESPONSES, recall=recall)
        assert payload["input"][2] == ITEM
        assert "shelf 11" not in json.dumps(payload["input"][3]) or recall
        assert "cmp_1" not in json.dumps([await render_payload(session, codec) for codec in (CHAT, CLAUDE)])
        await session.ingest("assistant", "In the loft.")
    await session.ingest("user", "Thanks.")
    for codec, sealed in ((RESPONSES, True), (CLAUDE, False)):
        inside = Prompt(codec).system("Rules.").section("talk", Prompt().history(session))
        payload = (await inside.render(budget=4_000)).payload
        assert (ITEM in payload.get("input", ())) is sealed
        assert ("Lathe 1 is on shelf 11." in json.dumps(payload)) is not sealed
    assert "Lathe 1 is on shelf 11." in json.dumps(await render_payload(session, CLAUDE))
    assert "Lathe 1 is on shelf 11." in str(await session.messages("lathe", budget=4_000))
    assert "Where is lathe 3?" in [one.content for one in await session.recall("lathe 3")]


@pytest.mark.parametrize("change", ["retract", "replace", "undo", "compact"])
async def test_a_sealed_one_is_sent_no_more_once_what_it_stands_for_changed(change: str) -> None:
    session = await write_conversation(open_storage("memory://"))
    said = (await session.entries())[4]
    await session.ingest(ITEM)
    await session.ingest("user", "And now?")
    assert ITEM in (await render_payload(session, RESPONSES))["input"]
    if change == "retract":
        await session.retract(said.id)
    elif change == "replace":
        await session.replace(said.id, "Lathe 1 is sold.")
    elif change == "undo":
        await session.undo(10)
    else:
        await session.wait(await session.compact(preserve_recent_count=1, summary_tokens=40))
    payload = await render_payload(session, RESPONSES)
    assert ITEM not in payload["input"]
    assert ("shelf 11" in json.dumps(payload)) == (change in ("undo", "compact"))


async def test_a_window_of_openai_is_sent_back_as_it_was_compacted() -> None:
    session = await write_conversation(open_storage("memory://"))
    user = {
        "type": "message",
        "role": "user",
        "content": [{"type": "input_text", "text": "Where is lathe 3?"}],
    }
    await session.ingest(
        {"id": "resp_1", "object": "response.compaction", "output": [user, ITEM], "created_at": 1}
    )
    await session.ingest("user", "And now?")
    payload = await render_payload(session, RESPONSES)
    said = [(one.get("role"), one.get("content")) for one in payload["input"]]
    assert said[2:] == [("user", "Where is lathe 3?"), (None, None), ("user", "And now?")]
    assert payload["input"][3] == ITEM
    with pytest.raises(ValidationError, match="output"):
        await session.ingest({"object": "response.compaction", "output": []})


async def test_an_erased_message_takes_the_compaction_with_it_and_undoing_brings_all_back() -> None:
    for item in (BLOCK, ITEM):
        session = await write_conversation(open_storage("memory://"))
        said = (await session.entries())[4]
        given = {"role": "assistant", "content": [item]} if item is BLOCK else item
        made = await session.ingest(given)
        version = (await session.get(made)).version
        assert len(await session.at(version - 1).entries()) == 9
        await session.undo(version)
        assert len(await session.entries()) == 9
        await session.ingest(given)
        newest = (await session.compactions())[-1].id
        await session.erase(said.id)
        entry = await session.get(newest)
        assert (entry.state, entry.content, entry.parts) == (State.ERASED, "", ())
        await session.ingest("user", "And now?")
        codec = CLAUDE if item is BLOCK else RESPONSES
        payload = json.dumps(await render_payload(session, codec))
        assert "compaction" not in payload
        assert "Lathe 0" in payload
        assert "shelf 11" not in payload


async def test_repeating_it_changes_nothing_and_a_precondition_holds() -> None:
    session = await write_conversation(open_storage("memory://"))
    answer = {"role": "assistant", "id": "msg_1", "content": [BLOCK, {"type": "text", "text": "Go on."}]}
    first = await session.ingest(answer)
    await session.ingest("user", "And now?")
    receipts = await session.ingest_many([answer])
    assert [one.repeated for one in receipts] == [True, True]
    assert receipts[-1].message_id == first
    assert len(await session.compactions()) == 1
    with pytest.raises(PreconditionError):
        await session.ingest_many([{"role": "assistant", "content": [BLOCK]}], last_message=first)
    assert len(await session.compactions()) == 1


async def test_a_list_with_one_in_its_middle_is_kept_as_it_was_said() -> None:
    session = ACMS("day", open_storage("memory://"), None)
    failed = {"type": "compaction", "content": None}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "Where is the saw?"},
        {"role": "assistant", "content": [failed, {"type": "text", "text": "In the loft."}]},
        {"role": "user", "content": "And the vice?"},
        {"role": "assistant", "content": [{**BLOCK, "cache_control": {"type": "ephemeral"}, "text": None}]},
        {"role": "user", "content": "And the anvil?"},
    ]
    receipts = await session.ingest_many(messages, idempotency_key="import")
    assert [(one.version, one.position) for one in receipts] == [(1, 1), (2, 2), (3, 3), (4, 3), (5, 4)]
    assert [one.repeated for one in await session.ingest_many(messages, idempotency_key="import")] == [
        True
    ] * 5
    (made,) = await session.compactions()
    assert made.replaces == (1, 3)
    payload = await render_payload(session, CLAUDE)
    assert payload["messages"] == [
        {"role": "assistant", "content": [BLOCK]},
        {"role": "user", "content": [{"type": "text", "text": "And the anvil?"}]},
    ]


async def test_with_nothing_before_it_and_with_an_open_call() -> None:
    session = ACMS("day", open_storage("memory://"), None)
    id = await session.ingest({"role": "assistant", "id": "msg_1", "content": [BLOCK]})
    assert (await session.get(id)).kind is Kind.MESSAGE
    assert await session.ingest({"role": "assistant", "id": "msg_1", "content": [BLOCK]}) == id
    assert await session.compactions() == []
    await session.ingest("user", "Count them.")
    await session.ingest("assistant", tool_calls=[{"id": "call_1", "name": "count", "arguments": "{}"}])
    await session.ingest({"role": "assistant", "content": [BLOCK]})
    await session.ingest("tool", "40", tool_call_id="call_1")
    shown = [(one.kind, one.role) for one in await session.entries()]
    assert [kind for kind, _ in shown] == [Kind.SUMMARY, Kind.MESSAGE, Kind.MESSAGE]
    validators.anthropic(await render_payload(session, CLAUDE))


async def test_two_processes_at_once_and_a_restart(tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path}/log.db"
    async with (
        await write_conversation(open_storage(url)) as session,
        ACMS("day", open_storage(url), None) as other,
    ):
        await other.ingest("user", "Wait.")  # the first one's end of the log is out of date
        await session.ingest({"role": "assistant", "content": [BLOCK]})
        await other.ingest("user", "And now?")
    async with ACMS("day", open_storage(url), None) as again:
        assert [one.replaces for one in await again.compactions()] == [(2, 10)]
        assert (await render_payload(again, CLAUDE))["messages"][0]["content"] == [BLOCK]
        fork = await again.fork(session_id="other")
        assert (await render_payload(fork, CLAUDE)) == (await render_payload(again, CLAUDE))


@pytest.mark.parametrize("persist", [True, False])
async def test_what_is_redacted_is_no_longer_signed(persist: bool) -> None:
    privacy = PrivacyConfig(mode=Privacy.REDACT, redact_before_persist=persist)
    session = await write_conversation(open_storage("memory://"), config=ACMSConfig(privacy=privacy))
    told = {**BLOCK, "content": "Write to ada@example.com about the lathe."}
    await session.ingest({"role": "assistant", "content": [told]})
    await session.ingest("user", "And now?")
    payload = json.dumps(await render_payload(session, CLAUDE))
    assert "ada@example.com" not in payload
    assert "about the lathe" in payload
    assert "c2ln" not in payload
    (made,) = await session.compactions()
    stored = (await session.get(made.id)).parts
    assert ("ada@example.com" in str(stored)) is not persist
    assert any(isinstance(part, Raw) for part in stored)


async def test_a_call_that_was_passed_over_is_shown_with_its_answer_behind_it() -> None:
    session = await write_conversation(open_storage("memory://"))
    await session.ingest("assistant", "", tool_calls=[{"id": "c1", "name": "approve", "arguments": "{}"}])
    await session.ingest("user", "Never mind.")
    await session.ingest("assistant", parts=[Raw("anthropic", json.dumps(BLOCK))])
    (made,) = await session.compactions()
    assert made.spans == ((2, 9), (11, 11))
    await session.ingest("tool", "APPROVED by Ann", tool_call_id="c1")
    assert [item.content for item in await session.window(900)][-2:] == ["approve({})", "APPROVED by Ann"]


@pytest.mark.parametrize(
    "compacted",
    [
        {"type": "compaction", "id": "cmp_9", "encrypted_content": "gAAA"},
        {"id": "cmp_9", "role": "assistant", "content": [BLOCK, {"type": "text", "text": "Go on."}]},
    ],
)
async def test_a_list_of_what_was_taken_in_one_by_one_adds_what_is_new(compacted: dict[str, Any]) -> None:
    session = ACMS("day", open_storage("memory://"), None)
    items = [
        {"id": "m_1", "role": "user", "content": "hi"},
        {"id": "m_2", "role": "assistant", "content": "hello"},
        compacted,
        {"id": "m_3", "role": "user", "content": "more"},
    ]
    for item in items:
        await session.ingest(item)
    before = (await session.history()).entries
    done = await session.sync(items)
    assert (done.appended, done.replaced) == ((), ())
    assert (await session.history()).entries == before
    done = await session.sync([*items, {"id": "m_4", "role": "assistant", "content": "yes"}])
    assert (len(done.appended), done.replaced, done.inserted) == (1, (), ())
    assert (await session.get("cmp_9")).version in (3, 4)


async def test_a_window_that_is_handed_over_again_is_known_by_its_compaction() -> None:
    session = await write_conversation(open_storage("memory://"))
    user = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "q"}]}
    window = {"object": "response.compaction", "output": [user, ITEM]}
    first = await session.ingest(window)
    await session.ingest("user", "And lathe 9?")
    assert await session.ingest(window) == first
    assert "And lathe 9?" in json.dumps(await render_payload(session, RESPONSES))
