"""The log of renders: which data it keeps, which it must not keep, how long, and the effect of erasure."""

from __future__ import annotations

import json
import zlib
from base64 import b64decode
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from acms import (
    ACMS,
    ACMSConfig,
    ConfigurationError,
    ConflictError,
    NotFoundError,
    Privacy,
    PrivacyConfig,
    Prompt,
    RenderLogConfig,
    State,
)
from acms.acs import ACS
from acms.codecs import AnthropicMessages, OpenAIChat, Tool
from acms.observability import correlation
from acms.ports import Handle, HasRecords
from acms.prompt import render_log
from acms.storage import MemoryStorage

KEPT = ACMSConfig(renders=RenderLogConfig(enabled=True))
REQUEST = {
    "version": "v0",
    "id": "6f3b6f21-7a5f-4e3f-9af0-1b2c3d4e5f60",
    "request_id": "req-acs",
    "intent": "the magenta kettle",
    "budgets": {"tokens_max": 500, "time_ms": 5000},
    "risk_profile": {"level": "medium"},
    "privacy_mode": "allow",
}


def open_session(storage: Handle, config: ACMSConfig = KEPT, name: str = "s", **more: object) -> ACMS:
    return ACMS(name, storage, None, config=config, **more)


async def render_query(of: ACMS, query: str, budget: int = 400) -> None:
    prompt = Prompt(OpenAIChat("gpt-4o")).system("You are the zirconium assistant.")
    await prompt.history(of).recall(of, query).user(query).render(budget=budget)


async def raw_render_log(of: ACMS) -> str:
    """Return all that the store keeps of the log of renders, unpacked."""
    storage, context = of.storage, await of.context_id()
    assert isinstance(storage, HasRecords)
    assert context
    found: list[str] = []
    for name in ("renders", *(f"renders:{slot}" for slot in range(15))):
        record = await storage.record(context, name)
        for row in () if record is None else record.data.get("rows", ()):
            found += [
                json.dumps(list(row[:4])),
                *(zlib.decompress(b64decode(one)).decode() for one in row[4:6]),
            ]
    return "\n".join(found)


async def say_turns(of: ACMS, turns: int = 40) -> list[str]:
    return [
        await of.ingest(
            "user" if turn % 2 else "assistant", f"turn {turn}: the magenta kettle number {turn} whistles"
        )
        for turn in range(turns)
    ]


async def test_what_was_sent_is_kept_by_reference_and_compared_with_the_one_before(storage: Handle) -> None:
    async with open_session(storage) as of:
        ids = await say_turns(of)
        with correlation("req-17"):
            await render_query(of, "which magenta kettle whistles?")
        await of.ingest("user", "and the next one?")
        await render_query(of, "which kettle is number 3?")
        await of.messages("which kettle is number 4?", budget=300)
        await ACS([of]).render(REQUEST)
        kept = await of.renders()
        assert [(one.kind, one.request_id) for one in kept] == [
            ("acs", "req-acs"), ("messages", ""), ("prompt", ""), ("prompt", "req-17"),
        ]  # fmt: skip
        assert await of.renders(limit=2, after=kept[1].id) == kept[2:]
        last, first = kept[2], kept[3]
        assert (last.previous, first.previous, first.version, last.version) == (first.id, None, 40, 41)
        assert last.cache
        assert last.cache.compared
        parts = last.use
        whole = parts.system + parts.written + parts.history + parts.recalled + parts.pins + parts.tools
        assert (whole, parts.free) == (last.tokens, 400 - last.upper_bound)
        details = await of.sent(last.id)
        assert sum(one.tokens for one in details.blocks) + parts.tools == last.tokens
        assert details.blocks[0].text == "You are the zirconium assistant."
        assert any("magenta kettle number" in (one.text or "") for one in details.blocks)
        shown = {id for one in details.blocks for id in one.sources}
        assert {one.id for one in details.verdicts if one.included} >= shown
        assert {one.id for one in details.verdicts if not one.included} & set(ids)
        assert "turn 39" not in await raw_render_log(of)
        with pytest.raises(NotFoundError):
            await of.sent("nothing")
        assert await of.at(41).renders() == []
        assert await (await of.fork()).renders() == []


TOOL = Tool(name="boil", description="Boils a kettle.", parameters={"type": "object", "properties": {}})


async def test_the_request_is_kept_as_it_was_sent(storage: Handle) -> None:
    async with open_session(storage) as of:
        await say_turns(of)
        question = "which magenta kettle whistles?"
        codecs = (OpenAIChat("gpt-4o"), AnthropicMessages("claude-sonnet-4-5", max_tokens=300))
        for codec in codecs:
            prompt = Prompt(codec).system("You are the zirconium assistant.").tools([TOOL]).history(of)
            rendered = await prompt.recall(of, question).user(question).render(budget=2500)
            newest, *_ = await of.renders()
            details = await of.sent(newest.id)
            assert details.payload == rendered.payload
            assert details.payload_note == ""
        await of.messages(question, budget=300)
        newest, *_ = await of.renders()
        details = await of.sent(newest.id)
        assert details.payload is None
        assert "of messages only what it showed is kept" in details.payload_note


async def test_a_request_that_shows_other_sessions_is_written_from_their_logs(storage: Handle) -> None:
    async with (
        open_session(storage, namespace="n") as of,
        open_session(storage, name="other", namespace="n") as other,
    ):
        await say_turns(of)
        gone = await other.ingest(
            "user", "Decision: the magenta kettle of Ada whistles in B flat.", actor_id="Ada"
        )
        await other.ingest({"role": "user", "content": "the secret of the kettle is a [… crack in B flat]"})
        await say_turns(other, 60)
        prompt = Prompt(OpenAIChat("gpt-4o")).history(of).recall(of, "the magenta kettle in B flat")
        rendered = await prompt.user("and?").render(budget=900)
        assert rendered.seen(gone)
        details = await of.sent((await of.renders())[0].id)
        assert details.payload == rendered.payload
        assert "text of other sessions is read from their logs" in details.payload_note
        kept = await raw_render_log(of)
        assert "Ada" not in kept
        assert "crack" not in kept
        await other.erase(gone)
        details = await of.sent((await of.renders())[0].id)
        assert details.payload is None
        assert "shows text that the log does not hold any more" in details.payload_note


async def test_facts_of_other_sessions_are_written_as_they_were_sent(storage: Handle) -> None:
    async with (
        open_session(storage, namespace="n") as of,
        open_session(storage, name="other", namespace="n") as other,
    ):
        await say_turns(of)
        await other.state("kettle", "colour", "magenta", scope="namespace")
        prompt = Prompt(OpenAIChat("gpt-4o")).history(of).recall(of, "Which colour has the kettle?")
        rendered = await prompt.user("and?").render(budget=400)
        assert "known now" in str(rendered.payload)
        details = await of.sent((await of.renders())[0].id)
        assert details.payload == rendered.payload


async def test_what_the_caller_wrote_is_kept_in_the_mode_of_the_session(storage: Handle) -> None:
    private = replace(KEPT, privacy=PrivacyConfig(mode=Privacy.REDACT))
    async with open_session(storage, private) as of:
        await say_turns(of)
        prompt = Prompt(OpenAIChat("gpt-4o")).system("Write to ada@example.org.").history(of)
        rendered = await prompt.user("Done?").render(budget=500)
        details = await of.sent((await of.renders())[0].id)
        assert "ada@example.org" in str(rendered.payload)
        assert "ada@example.org" not in await raw_render_log(of)
        assert details.payload is not None
        assert "ada@example.org" not in str(details.payload)
        assert "what was redacted" in details.payload_note


async def test_of_a_request_too_large_to_be_kept_what_it_showed_is_kept(storage: Handle) -> None:
    async with open_session(storage) as of:
        await say_turns(of)
        noise = "".join(chr(0x4E00 + (n * 7919 + n * n) % 20_000) for n in range(40_000))
        rendered = await Prompt(OpenAIChat("gpt-4o")).system(noise).history(of).render(budget=200_000)
        (kept,) = await of.renders()
        details = await of.sent(kept.id)
        assert kept.tokens == rendered.tokens.tokens
        assert "too large to be kept" in details.payload_note
        assert len(details.blocks) == len(rendered.payload["messages"])


async def test_erasing_a_message_leaves_nothing_of_it(storage: Handle) -> None:
    async with (
        open_session(storage, namespace="n") as of,
        open_session(storage, name="other", namespace="n") as other,
    ):
        ids = await say_turns(of)
        gone = await other.ingest(
            "user", "Decision: the magenta kettle of Ada whistles in B flat.", actor_id="Ada"
        )
        fork = await of.fork(session_id="fork")
        await render_query(of, "which magenta kettle whistles?")
        await render_query(fork, "which magenta kettle whistles?")
        prompt = Prompt(OpenAIChat("gpt-4o")).recall(
            of, "Ada and the decision about B flat", tokens=300, scope="namespace"
        )
        shown = (await prompt.user("x").render(budget=800)).seen(gone)
        assert shown
        assert len(await of.renders()) == 2
        before = (await of.sent((await of.renders())[0].id)).blocks
        assert any("B flat" in (one.text or "") for one in before)
        await other.erase(gone)  # of another tree: what is kept is its id, and nothing of what it said
        blocks = (await of.sent((await of.renders())[0].id)).blocks
        assert all("B flat" not in (one.text or "") for one in blocks)
        assert "Ada" not in await raw_render_log(of)
        await of.erase(ids[3])
        assert await raw_render_log(of) == await raw_render_log(fork) == ""
        assert await of.renders() == []


async def test_a_render_that_was_under_way_when_something_was_erased_is_not_kept(storage: Handle) -> None:
    async with open_session(storage) as of:
        ids = await say_turns(of)
        assert of.internals.render_log
        found = await of.internals.render_log.begin()
        assert found
        manifest = (await Prompt(OpenAIChat("gpt-4o")).history(of).render(budget=900)).manifest
        await of.renders()
        await of.erase(ids[0])
        found.add("prompt", lambda: manifest)
        assert await of.renders() == []


async def test_it_is_bounded_by_bytes_and_age_and_can_be_forgotten(
    storage: Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(render_log, "ROWS_BYTES", 6000)
    small = replace(KEPT, renders=RenderLogConfig(enabled=True, max_bytes=131_072, max_age_seconds=3600))
    async with open_session(storage, small) as of:
        await say_turns(of)
        for turn in range(12):
            await render_query(of, f"kettle {turn}?")
            kept = await of.renders()
        assert 2 <= len(kept) < 12
        assert [one.created_at for one in kept] == sorted([one.created_at for one in kept], reverse=True)

        class Later(datetime):
            @classmethod
            def now(cls, tz: object = None) -> datetime:
                return datetime.now(UTC) + timedelta(hours=2)

        monkeypatch.setattr(render_log, "datetime", Later)
        assert await of.renders() == []
        assert await raw_render_log(of) == ""
        monkeypatch.undo()
        await render_query(of, "kettle?")
        assert len(await of.renders()) == 1
        await of.forget_renders()
        assert await of.renders() == []


async def test_of_a_session_without_a_word_nothing_is_kept(storage: Handle) -> None:
    async with open_session(storage) as of:
        await render_query(of, "kettle?")
        assert await of.renders() == []
        await of.forget_renders()
        assert await of.renders() == []


async def test_of_a_render_with_very_many_candidates_the_best_are_kept(
    storage: Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[tuple[int, int, int]] = []
    for name in ("whole", "few"):
        async with open_session(storage, name=name) as of:
            await say_turns(of)
            await render_query(of, "which magenta kettle whistles?")
            (kept,) = await of.renders()
            found.append((kept.tokens, kept.left_out, len((await of.sent(kept.id)).verdicts)))
        monkeypatch.setattr(render_log, "ROW_BYTES", 1)
    (whole, few) = found
    assert whole[:2] == few[:2]
    assert 0 < few[2] < whole[2]


async def test_a_render_that_cannot_be_kept_for_others_is_rendered_all_the_same() -> None:
    async with open_session(MemoryStorage()) as of:
        await say_turns(of)
        records = of.storage
        assert isinstance(records, HasRecords)
        put = records.put_record

        async def busy(context: str, name: str, data: Any, *, rev: int) -> Any:
            raise ConflictError("the record has changed")

        records.put_record = busy  # type: ignore[method-assign]
        prompt = Prompt(OpenAIChat("gpt-4o")).history(of).recall(of, "kettle?").user("kettle?")
        rendered = await prompt.render(budget=400)
        assert [one for one in rendered.warnings if "other renders of the prompt stored theirs first" in one]
        assert await of.renders() == []
        records.put_record = put  # type: ignore[method-assign]
        assert not (await prompt.render(budget=400)).warnings
        assert len(await of.renders()) == 1


async def test_renders_that_cannot_be_forgotten_for_others_are_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with open_session(MemoryStorage()) as of:
        await say_turns(of)
        await render_query(of, "kettle?")
        assert len(await of.renders()) == 1
        records = of.storage
        assert isinstance(records, HasRecords)
        put = records.put_record

        async def busy(context: str, name: str, data: Any, *, rev: int) -> Any:
            raise ConflictError("the record has changed")

        records.put_record = busy  # type: ignore[method-assign]
        with caplog.at_level("WARNING", logger="acms"):
            await of.forget_renders()
        assert "render_log_not_changed" in caplog.text
        records.put_record = put  # type: ignore[method-assign]
        await of.forget_renders()
        assert await of.renders() == []


async def test_a_render_is_not_kept_when_something_is_erased_while_it_is_put() -> None:
    storage = MemoryStorage()
    async with open_session(storage) as of:
        await say_turns(of)
        records = of.storage
        assert isinstance(records, HasRecords)
        put, first = records.put_record, True

        async def erased(context: str, name: str, data: Any, *, rev: int) -> Any:
            nonlocal first
            if first and name == render_log.NEWEST:
                first = False
                await storage.blank(context, [1], to=State.ERASED, audit={})
            return await put(context, name, data, rev=rev)

        records.put_record = erased  # type: ignore[method-assign]
        await render_query(of, "which magenta kettle whistles?")
        assert await of.renders() == []
        assert await raw_render_log(of) == ""
        assert not first
        await render_query(of, "which magenta kettle whistles?")
        assert len(await of.renders()) == 1


async def test_nothing_is_kept_unless_it_is_asked_for(storage: Handle) -> None:
    async with open_session(storage, ACMSConfig()) as of:
        await say_turns(of)
        await render_query(of, "kettle?")
        assert await of.renders() == []
    with pytest.raises(ConfigurationError, match="at most 1048576"):
        RenderLogConfig(max_bytes=2_000_000)
    assert ACMSConfig.from_env({"ACMS_RENDERS_ENABLED": "1"}).renders.enabled
