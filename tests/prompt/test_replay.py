"""A prompt is made again from its manifest and the log, byte for byte, as long as nothing of it was erased."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from acms import (
    ACMS,
    Entry,
    EntryNotFoundError,
    GoneError,
    Reasoning,
    State,
    Text,
    ValidationError,
    open_storage,
)
from acms.codecs import AnthropicMessages, OpenAIChat, OpenAIResponses, Tool
from acms.errors import ExpiredError
from acms.kv import InMemoryKV
from acms.pins import create_pin_registry
from acms.ports import Codec
from acms.prompt import Prompt, Rendered
from acms.prompt.manifest import Manifest, Quote, Written
from acms.prompt.manifest_writer import hash_payload
from acms.prompt.replay import BATCH, replay, replay_messages
from acms.providers import OfflineReflector
from tests.support.talk import Storage, session_on

CODECS: list[Codec] = [OpenAIChat("gpt-5"), OpenAIResponses("gpt-5"), AnthropicMessages("claude-sonnet-4-5")]
DISK = Tool(name="disk", description="How full a disk is.", parameters={"type": "object", "properties": {}})


@pytest.fixture(params=CODECS, ids=lambda codec: codec.name)
def codec(request: pytest.FixtureRequest) -> Codec:
    found: Codec = request.param
    return found


async def write_agent_log(session: ACMS, turns: int = 12) -> list[str]:
    """A conversation of an agent: questions, calls of tools with long answers, thoughts, decisions."""
    ids: list[str] = []
    for turn in range(turns):
        question = (
            f"How full is disk {turn}? We chose db{turn} for the orders of region {turn}. " + "And why? " * 9
        )
        ids.append(await session.ingest("user", question, actor_id="Ann"))
        calls = [{"id": f"call_{turn}", "name": "disk", "arguments": f'{{"host": "db{turn}"}}'}]
        ids.append(await session.ingest("assistant", "I look.", tool_calls=calls))
        output = f"/dev/sd{turn} " + " ".join(f"{turn}{number}% used." for number in range(60))
        ids.append(await session.ingest("tool", output, tool_call_id=f"call_{turn}"))
        thoughts = [
            Reasoning("It is full."),
            Text(f"Disk {turn} is {turn} % full. Decision: we keep db{turn}."),
        ]
        ids.append(await session.ingest("assistant", parts=thoughts))
    return ids


async def make_pins() -> InMemoryKV:
    kv = InMemoryKV()
    for key, value in (("profile", {"name": "Sam"}), ("preferences", {"tone": "concise"})):
        await kv.set(key, value)
        await create_pin_registry(kv, namespace="user:123").pin(key)
    return kv


def literal_text(manifest: Manifest) -> str:
    """Every literal text of a manifest."""
    return "".join(
        segment
        for message in manifest.messages
        for part in message.parts
        if isinstance(part, Written)
        for _, value in part.fields
        if isinstance(value, tuple)
        for segment in value
        if isinstance(segment, str)
    )


async def replay_from_file(rendered: Rendered, session: ACMS, codec: Codec) -> Manifest:
    """Replay a prompt from a manifest that was written to a file and read back."""
    manifest = Manifest.from_json(json.loads(json.dumps(rendered.manifest.to_json())))
    assert manifest == rendered.manifest
    assert manifest.digest == rendered.manifest.digest
    payload = await replay(manifest, session.storage, codec)
    assert json.dumps(payload) == json.dumps(rendered.payload)
    assert manifest.payload == hash_payload(payload)
    assert codec.normal(await replay_messages(manifest, session.storage)) == rendered.messages or codec.parse(
        payload
    )
    return manifest


@pytest.mark.parametrize("budget", [None, 1500])
async def test_a_prompt_of_everything_is_made_again_from_its_manifest(
    storage: Storage, codec: Codec, budget: int | None
) -> None:
    session = session_on(storage)
    await write_agent_log(session)
    prompt = (
        Prompt(codec)
        .system("You are the orders team's assistant.")
        .pinned_kv(store=await make_pins(), namespace="user:123")
        .cache_hint(version="1")
        .history(session)
        .recall(session, "Which database did we choose for region 3?", tokens=400)
        .truncate("An example. " * 90, tokens=60)
        .omit("Something that may go. " * 20, priority=9)
        .user("Which database did we choose for region 3?")
        .tools([DISK])
    )
    rendered = await prompt.render(budget=budget)
    manifest = await replay_from_file(rendered, session, codec)
    kept = literal_text(manifest)
    assert "Decision" not in kept
    assert "% used" not in kept
    assert "How full" not in kept
    assert {read.version for read in manifest.reads} == {48}
    once_more = await prompt.render(budget=budget)
    assert once_more.payload == rendered.payload
    assert (await replay_from_file(once_more, session, codec)).payload == manifest.payload


async def test_what_is_cut_inside_a_message_is_quoted_from_its_head_and_tail(
    storage: Storage, codec: Codec
) -> None:
    session = session_on(storage)
    await session.ingest("user", "start " + "of a long story, " * 300 + "the end")
    rendered = await Prompt(codec).history(session).render(budget=200)
    manifest = await replay_from_file(rendered, session, codec)
    (message,) = manifest.messages
    (part,) = message.parts
    assert isinstance(part, Written)
    ((_, segments),) = part.fields
    assert isinstance(segments, tuple)
    quotes = [segment for segment in segments if isinstance(segment, Quote)]
    assert len(quotes) >= 1
    assert "story" not in literal_text(manifest)


async def test_a_prompt_of_a_fork_is_made_again(storage: Storage, codec: Codec) -> None:
    session = session_on(storage)
    await write_agent_log(session, 3)
    child = await session.fork(at=8, session_id="what-if")
    await child.ingest("user", "And if we had chosen another one?")
    prompt = Prompt(codec).history(child).recall(child, "disk 1", tokens=200)
    rendered = await prompt.render(budget=900)
    manifest = await replay_from_file(rendered, session, codec)
    inherited = (await session.history(limit=1)).entries[0].id
    later = (await session.history(limit=1, after=9)).entries[0].id
    assert rendered.ledger.why(inherited)
    assert manifest.reads[0].lineage == ((session_id(inherited), 8),)
    with pytest.raises(EntryNotFoundError):
        rendered.ledger.why(later)


def session_id(entry: str) -> str:
    return f"c_{entry.split('_')[1]}"


async def test_what_was_compacted_retracted_and_edited_since_is_still_there(
    storage: Storage, codec: Codec
) -> None:
    session = session_on(storage)
    ids = await write_agent_log(session, 6)
    rendered = await Prompt(codec).history(session).render()
    await session.retract(ids[1])
    await session.replace(ids[4], "something else")
    done = await session.wait(await session.compact())
    assert done is not None
    await replay_from_file(rendered, session, codec)
    summed = await Prompt(codec).history(session).render()
    manifest = await replay_from_file(summed, session, codec)
    assert done.id in manifest.entries
    assert done.summary not in literal_text(manifest)
    assert summed.ledger.why(done.id).rule == "history"
    assert summed.ledger.why_not(ids[0]) is not None
    await session.undo(done.version)
    await replay_from_file(summed, session, codec)


async def test_what_was_erased_since_is_named(storage: Storage, codec: Codec) -> None:
    session = session_on(storage)
    ids = await write_agent_log(session, 3)
    rendered = await Prompt(codec).history(session).render()
    without = await Prompt(codec).last(session, 2).render()
    await session.erase(ids[5])
    with pytest.raises(GoneError, match=ids[5]):
        await replay(rendered.manifest, session.storage, codec)
    await replay_from_file(without, session, codec)


async def test_what_retention_has_deleted_since_is_named(storage: Storage) -> None:
    codec = CODECS[0]
    session = session_on(storage)
    ids = await write_agent_log(session, 2)
    rendered = await Prompt(codec).history(session).render()
    (context,) = {read.context for read in rendered.manifest.reads}
    await storage.blank(context, [3], to=State.EXPIRED, audit={})
    with pytest.raises(ExpiredError, match=ids[2]):
        await replay(rendered.manifest, session.storage, codec)


async def test_facts_and_what_other_sessions_said_are_quoted_too() -> None:
    codec, storage = CODECS[0], open_storage("memory://")
    async with (
        session_on(storage, "one", reflector=OfflineReflector(), namespace="team") as one,
        session_on(storage, "two", reflector=OfflineReflector(), namespace="team") as two,
    ):
        for session in (one, two):
            await session.ingest(
                "user",
                f"Decision: our database is MySQL.\nThe orders service of {session.session_id} is old.",
            )
            await session.ingest(
                "user", "Decision: our database is MariaDB.\nThe rest of what I said still holds."
            )
            await session.close_episode("manual")
            await session.wait_pending()
            await session.state(f"backup of {session.session_id}", "vault", "Oslo")
        question = "Which is our database, and which vault holds the backup?"
        prompt = Prompt(codec).recall(one, question, tokens=300, scope="namespace")
        rendered = await prompt.render()
        manifest = await replay_from_file(rendered, one, codec)
        kinds = {(id[0], id.split("_")[1]) for id in manifest.entries}
        assert {kind for kind, _ in kinds} == {"f", "m"}
        assert len({context for _, context in kinds}) >= 2
        assert not {"MariaDB", "MySQL"} & set(re.findall(r"\w+", literal_text(manifest)))
        assert {rendered.ledger.why(id).rule for id in manifest.entries} == {"recall"}


async def test_what_a_plugin_wrote_stands_in_the_manifest(storage: Storage) -> None:
    codec = CODECS[0]
    session = session_on(storage)
    await write_agent_log(session, 2)

    class Clock:
        async def render(self, request: object) -> str:
            return "It is noon."

    rendered = await Prompt(codec).use(Clock()).history(session).render()
    manifest = await replay_from_file(rendered, session, codec)
    assert "It is noon." in literal_text(manifest)


async def test_a_prompt_with_a_stored_summary_is_made_again_and_says_what_it_stands_for(
    storage: Storage,
) -> None:
    codec = CODECS[0]
    session = session_on(storage)
    ids = await write_agent_log(session, 12)
    kept = InMemoryKV()
    prompt = Prompt(codec).summary(session, id="history", store=kept, tokens=200).user("And now?")
    for render in ("written", "read again"):
        rendered = await prompt.render(budget=2500)
        manifest = await replay_from_file(rendered, session, codec)
        assert manifest.messages[0].path == "prompt/summary", render
        shown = [id for id in ids if rendered.ledger.why(id).included]
        assert shown == ids[-len(shown) :]
        assert {rendered.ledger.why(id).rule for id in ids if id not in shown} == {"summary"}, render
        assert manifest.reads[0].summary == ("" if render == "written" else "history")


class Counted:
    """A store that notes its reads."""

    def __init__(self, storage: Any) -> None:
        self._storage = storage
        self.asked: list[str] = []

    async def get(self, ids: Sequence[str]) -> list[Entry | None]:
        """Return entries by id, and note them."""
        self.asked += ids
        found: list[Entry | None] = await self._storage.get(ids)
        return found


async def test_every_entry_is_read_once() -> None:
    codec = CODECS[0]
    session = session_on(open_storage("memory://"))
    ids = await write_agent_log(session, BATCH // 4 + 1)
    rendered = await Prompt(codec).history(session).render()
    counted: Any = Counted(session.storage)
    assert await replay(rendered.manifest, counted, codec) == rendered.payload
    assert sorted(counted.asked) == sorted(ids)


async def test_another_codec_model_store_or_release_is_refused_in_words(storage: Storage) -> None:
    codec = CODECS[0]
    session = session_on(storage)
    await write_agent_log(session, 1)
    manifest = (await Prompt(codec).history(session).render()).manifest
    for other in (OpenAIResponses("gpt-5"), OpenAIChat("gpt-4o")):
        with pytest.raises(ValidationError, match="was rendered for") as error:
            await replay(manifest, session.storage, other)
        assert error.value.options
    with pytest.raises(ValidationError, match="another payload"):
        await replay(replace(manifest, payload="0" * 64), session.storage, codec)
    elsewhere: Any = Counted(session.storage)

    async def nothing(ids: Sequence[str]) -> list[Entry | None]:
        return [None for _ in ids]

    elsewhere.get = nothing
    with pytest.raises(GoneError, match="the store has no entry"):
        await replay(manifest, elsewhere, codec)
