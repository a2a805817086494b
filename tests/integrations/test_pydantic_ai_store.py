"""The store of conversations, call by call beside Pydantic AI's own in memory."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent, Conversation, ModelRequest, ModelResponse, TextPart, UserPromptPart
from pydantic_ai.conversation_store import (
    ConversationConflict,
    ConversationEntry,
    ConversationStore,
    InMemoryConversationStore,
)
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import BinaryContent, ModelMessage, SystemPromptPart
from pydantic_ai.models.test import TestModel

from acms import open_storage
from acms.integrations.pydantic_ai import ACMSConversationStore, ACMSHistory
from acms.kv import open_kv
from tests.integrations import agent as script

USER = "user:1"


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[ACMSConversationStore]:
    url = f"sqlite:///{tmp_path}/m.db"
    async with open_storage(url) as storage, open_kv(url) as kv:
        made = ACMSConversationStore(storage, kv)
        yield made
        await made.aclose()


def messages_of_turn(number: int) -> list[ModelMessage]:
    return [
        ModelRequest(
            [SystemPromptPart("Be brief."), UserPromptPart(f"Question {number}?")], instructions="Now."
        ),
        ModelResponse([TextPart(f"Answer {number}.")]),
    ]


class Both:
    """The same calls on both stores; ids, revisions and times are each store's own, so places stand for them."""

    def __init__(self, ours: ConversationStore, theirs: ConversationStore) -> None:
        self.stores = (ours, theirs)
        self.held: dict[str, tuple[Conversation, Conversation]] = {}

    async def each(self, call: Any, *tell: str) -> list[Any]:
        results: list[Any] = []
        for index, store in enumerate(self.stores):
            try:
                results.append(await call(store, index))
            except (ConversationConflict, UserError) as error:
                results.append(type(error))
        assert _comparable_result(results[0]) == _comparable_result(results[1]), tell
        return results

    async def state(self) -> None:
        """Compare what can be read of everything."""
        ours, theirs = self.stores
        listed = [await store.list_conversations() for store in self.stores]
        assert _comparable_result(listed[0]) == _comparable_result(listed[1])
        for mine, other in zip(*listed, strict=True):
            lines = [await store.load_entries(mine.conversation_id) for store in self.stores]
            assert _comparable_result(lines[0]) == _comparable_result(lines[1])
            assert await ours.load(mine.conversation_id, limit=3) == _with_revision(
                await theirs.load(mine.conversation_id, limit=3), mine.revision
            )
            for tips in zip(mine.branches, other.branches, strict=True):
                left = [await store.read_history(tip) for store, tip in zip(self.stores, tips, strict=True)]
                assert _comparable_result(left[0]) == _comparable_result(left[1])


def _with_revision(conversation: Any, revision: str) -> Any:
    if conversation is not None:
        conversation.revision = revision
    return conversation


def _comparable_result(found: Any) -> Any:
    """Return what must be the same on both sides."""
    if isinstance(found, list | tuple):
        return [_comparable_result(one) for one in found]
    if hasattr(found, "parent_id"):
        return found.message, found.kind, found.parent_id is None
    if hasattr(found, "head_id"):
        kept = (
            found.conversation_id,
            found.usage,
            found.deferred_tool_requests,
            found.scope,
            found.forked_from,
        )
        return *kept, len(found.branches), found.head_id is None, found.forked_at is None
    if isinstance(found, Conversation):
        return found.conversation_id, found.messages, found.usage, found.new_message_index
    return found


async def random_step(both: Both, rng: random.Random, number: int) -> None:
    name = rng.choice(["a", "b", "c"])
    scope = rng.choice([None, None, USER, "user:2"])
    what = rng.choice(["talk", "talk", "talk", "rewrite", "branch", "fork", "delete", "stale", "load"])
    at = rng.randrange(5)

    async def loaded(store: ConversationStore, index: int) -> Conversation:
        return await store.load(name, scope=scope) or Conversation(conversation_id=name)

    if what in ("talk", "rewrite", "stale"):
        found = await both.each(loaded)
        for conversation in found:
            if what == "rewrite":
                conversation.messages[at:] = []
            conversation.messages.extend(messages_of_turn(number))
            if what == "stale":
                conversation.revision = "gone"
        # the same messages, so that both compare as equal
        found[1].messages[-2:] = found[0].messages[-2:]

        async def save(store: ConversationStore, index: int) -> Any:
            return await store.save(found[index], scope=scope)

        await both.each(save, what)
    elif what == "branch":

        async def branch(store: ConversationStore, index: int) -> Any:
            record = await store.read_record(name)
            revision = None if record is None else record.revision
            left = record.branches[at % len(record.branches)] if record and record.branches else None
            there = {"at": at} if left is None or number % 2 else {"from_entry": left}
            return await store.branch(name, expected_revision=revision, scope=scope, **there)

        await both.each(branch, what)
    elif what == "fork":
        new = rng.choice(["a", "b", "c", f"fork-{number}"])

        async def fork(store: ConversationStore, index: int) -> Any:
            return await store.fork(name, at=at, new_conversation_id=new, source_scope=scope)

        await both.each(fork, what)
    elif what == "delete":

        async def delete(store: ConversationStore, index: int) -> Any:
            return await store.delete(name, scope=scope)

        await both.each(delete, what)
    else:
        await both.each(loaded, what)


@pytest.mark.parametrize("seed", range(8))
async def test_same_answers_as_the_store_in_memory(store: ACMSConversationStore, seed: int) -> None:
    both = Both(store, InMemoryConversationStore())
    rng = random.Random(seed)
    for number in range(40):
        await random_step(both, rng, number)
        await both.state()


async def test_two_writers_do_not_overwrite_each_other(store: ACMSConversationStore) -> None:
    conversations = [
        Conversation(conversation_id="a", messages=messages_of_turn(number)) for number in range(4)
    ]
    results = await asyncio.gather(*map(store.save, conversations), return_exceptions=True)
    assert sorted(type(one).__name__ for one in results) == ["ConversationConflict"] * 3 + ["list"]
    kept = await store.load("a")
    session = await store.session("a")
    assert kept is not None
    assert session is not None
    said = [entry.content for entry in await session.entries()]
    assert said == [kept.messages[0].parts[1].content, kept.messages[1].parts[0].content]


async def test_the_session_of_a_conversation_is_its_history(store: ACMSConversationStore) -> None:
    await store.save(
        Conversation(conversation_id="a", messages=[*messages_of_turn(1), *messages_of_turn(2)]), scope=USER
    )
    session = await store.session("a")
    assert session is not None
    assert session.namespace == USER
    found = await store.load("a")
    assert found is not None
    branched = await store.branch("a", at=2, expected_revision=found.revision)
    branched.messages += messages_of_turn(3)
    await store.save(branched)
    said = ["Question 1?", "Answer 1.", "Question 3?", "Answer 3."]
    assert [entry.content for entry in await session.entries()] == said
    (tip,) = [record.branches[0] for record in await store.list_conversations(scope=USER)]
    await store.branch("a", from_entry=tip, expected_revision=branched.revision)
    assert [entry.content for entry in await session.entries()] == [*said[:2], "Question 2?", "Answer 2."]
    await store.fork("a", at=2, new_conversation_id="b")
    fork = await store.session("b")
    assert fork is not None
    assert [entry.content for entry in await fork.entries()] == said[:2]


async def test_what_is_erased_is_missing_and_a_scope_is_erased_whole(
    store: ACMSConversationStore, tmp_path: Path
) -> None:
    picture = ModelRequest(
        [UserPromptPart(["Look:", BinaryContent(b"PIG-marzipan", media_type="application/x-pig")])]
    )
    messages = [
        *messages_of_turn(1),
        picture,
        ModelResponse([TextPart("A marzipan pig.")]),
        *messages_of_turn(2),
    ]
    await store.save(Conversation(conversation_id="a", messages=messages), scope=USER)
    assert (await store.load("a")).messages == messages
    session = await store.session("a")
    assert session is not None
    (pig,) = [entry.id for entry in await session.entries() if "marzipan" in entry.content]
    await session.erase(pig)
    assert (await store.load("a")).messages == [*messages[:3], *messages[4:]]
    other = messages_of_turn(3)
    await store.save(Conversation(conversation_id="b", messages=other), scope="user:2")
    await store.fork("b", new_conversation_id="c", scope=USER)
    await store.delete("a")
    assert (await store.erase(USER, verify=True)).residue == ()
    assert script.left_in(tmp_path, ["marzipan", "bWFyemlwYW4", "Question 1"]) == []
    assert [one.conversation_id for one in await store.list_conversations()] == ["b"]
    assert (await store.load("b")).messages == other


async def test_what_was_erased_and_is_put_again_is_kept_nowhere(
    store: ACMSConversationStore, tmp_path: Path
) -> None:
    secret = [
        ModelRequest([UserPromptPart("The code is marzipan."), SystemPromptPart("Be brief.")]),
        ModelResponse([TextPart("So it is marzipan.")]),
    ]
    messages = [*messages_of_turn(1), *secret, *messages_of_turn(2)]
    await store.save(Conversation(conversation_id="a", messages=messages), scope=USER)
    session = await store.session("a")
    assert session is not None
    for entry in [entry for entry in await session.entries() if "marzipan" in entry.content]:
        await session.erase(entry.id)
    record = await store.read_record("a")
    assert record is not None
    entries = [
        ConversationEntry(id=f"n{at}", parent_id=f"n{at - 1}" if at else None, message=message)
        for at, message in enumerate(messages)
    ]
    again = replace(record, head_id="n5", revision="again")
    await store.write_record(again, new_entries=entries, expected_revision=record.revision)
    assert [one.message for one in await store.read_history("n5")] == [*messages[:2], *messages[4:]]
    await store.aclose()
    assert script.left_in(tmp_path, ["marzipan"]) == []


async def test_history_and_store_share_a_log(store: ACMSConversationStore) -> None:
    await store.save(Conversation(conversation_id="a", messages=messages_of_turn(1)), scope=USER)
    session = await store.session("a")
    assert session is not None
    agent = Agent(TestModel(), capabilities=[ACMSHistory(session, budget=1000)])
    for text in ("Hello?", "Hello again?"):
        found = await store.load("a")
        await store.save(await agent.run(text, conversation=found))
    kept = await store.load("a")
    assert kept is not None
    assert [entry.role for entry in await session.entries()] == ["user", "assistant"] * 3
    assert len(kept.messages) == 6
