"""A prompt never fails because of its own bookkeeping, the records it keeps for later requests."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from acms import ACMS, ACMSConfig, ConflictError, RenderLogConfig, StorageError, ValidationError, open_storage
from acms.codecs import OpenAIChat
from acms.kv import InMemoryKV
from acms.ports import HasRecords, StorageBackend
from acms.prompt import Prompt, Rendered

WORDS = (
    "ledger invoice harbour cargo printer valve turbine sensor archive tunnel bridge orchard pigment".split()
)
QUESTION = "Which valve of the turbine feeds the harbour printer?"


def small_talk(count: int, words: int = 20) -> list[dict[str, Any]]:
    rng = random.Random(3)
    return [
        {"role": ("user", "assistant")[n % 2], "content": f"m{n}: {' '.join(rng.choices(WORDS, k=words))}"}
        for n in range(count)
    ]


async def ingest_all(session: ACMS, messages: list[dict[str, Any]]) -> None:
    for start in range(0, len(messages), 1000):
        await session.ingest_many(messages[start : start + 1000])


async def render_question(session: ACMS, budget: int, **options: Any) -> Rendered:
    base = Prompt(OpenAIChat("gpt-5")).system("You help.").history(session)
    return await base.recall(session, QUESTION, **options).user(QUESTION).render(budget=budget)


@pytest.mark.parametrize(
    ("scope", "count", "budget"), [("session", 2_000, 32_000), ("namespace", 2_600, 64_000)]
)
async def test_a_long_log_renders_at_a_large_budget(scope: str, count: int, budget: int) -> None:
    async with ACMS("now", open_storage("memory://"), None, namespace="harbour") as session:
        await ingest_all(session, small_talk(count))
        rendered = await render_question(session, budget, scope=scope)
        assert budget / 2 < rendered.tokens.upper_bound <= budget
        assert not [one for one in rendered.warnings if "cache" in one]


@pytest.mark.slow
@pytest.mark.parametrize("scope", ["session", "namespace"])
@pytest.mark.parametrize("words", [20, 70])
async def test_twenty_thousand_messages_render_at_every_budget(
    tmp_path: Path, words: int, scope: str
) -> None:
    storage = open_storage(f"sqlite:///{tmp_path}/long.db")
    async with storage, ACMS("now", storage, None, namespace="harbour") as session:
        await ingest_all(session, small_talk(20_000, words))
        for budget in (32_000, 128_000, 1_000_000):
            rendered = await render_question(session, budget, scope=scope)
            assert rendered.use.history + rendered.use.recalled > min(budget, 400_000) / 2
            assert rendered.tokens.upper_bound <= budget


REFUSALS = [
    ValidationError("is 75447 bytes of JSON, the limit is 65536", field="data"),
    StorageError("the disk is full"),
    ConflictError("another one was there first"),
    RuntimeError("no store of ours"),
]


@pytest.mark.parametrize("error", REFUSALS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("method", ["record", "put_record"])
async def test_a_prompt_renders_whatever_its_record_raises(
    monkeypatch: pytest.MonkeyPatch, method: str, error: Exception
) -> None:
    async with ACMS("now", open_storage("memory://"), None) as session:
        await ingest_all(session, small_talk(300))

        async def refuses(*_: object, **__: object) -> Any:
            raise error

        monkeypatch.setattr(session.storage, method, refuses)
        for _ in range(2):
            rendered = await render_question(session, 3_000)
            assert rendered.use.recalled
            assert rendered.use.history
            told = [one for one in rendered.ledger.warnings if "the provider's cache" in one]
            assert len(told) == 1
            assert told[0] in rendered.warnings
            if not isinstance(error, RuntimeError) and not isinstance(error, ConflictError):
                assert str(error) in told[0]


async def test_a_finished_epoch_is_dropped_when_the_next_one_cannot_be_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with ACMS("now", open_storage("memory://"), None) as session:
        await ingest_all(session, small_talk(300))
        storage = session.storage
        assert isinstance(storage, HasRecords)
        stored: dict[str, Any] = {}
        inner, limit = storage.put_record, 65_536

        async def limited(context: str, name: str, data: Any, *, rev: int) -> Any:
            if len(str(data)) > limit:
                raise ValidationError(f"is {len(str(data))} bytes of JSON", field="data")
            stored[name] = data
            return await inner(context, name, data, rev=rev)

        monkeypatch.setattr(storage, "put_record", limited)
        await render_question(session, 3_000)
        (before,) = stored.values()
        assert before
        limit = 100
        await ingest_all(session, small_talk(300))  # more than the room: a new epoch begins
        rendered = await render_question(session, 3_000)
        assert [one for one in rendered.warnings if "the next request" in one]
        assert list(stored.values()) == [{}]


async def test_a_store_that_fails_for_the_log_of_renders_costs_its_row_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = ACMSConfig(renders=RenderLogConfig(enabled=True))
    async with ACMS("now", open_storage("memory://"), None, config=config) as session:
        await ingest_all(session, small_talk(30))
        inner, calls = session.storage.head, 0

        async def once(context: str) -> Any:
            nonlocal calls
            calls += 1
            if calls == 1:
                raise StorageError("no connection")
            return await inner(context)

        monkeypatch.setattr(session.storage, "head", once)
        rendered = await render_question(session, 3_000)
        assert rendered.use.history
        calls = 0
        assert await session.messages(QUESTION, budget=3_000)


async def test_a_store_of_summaries_may_fail_with_any_error(monkeypatch: pytest.MonkeyPatch) -> None:
    kv = InMemoryKV()
    async with ACMS("now", open_storage("memory://"), None) as session:
        await ingest_all(session, small_talk(300))

        async def broken(*_: object, **__: object) -> Any:
            raise RuntimeError("no store of ours")

        for name in ("set", "compare_and_set"):
            monkeypatch.setattr(kv, name, broken, raising=False)
        prompt = Prompt(OpenAIChat("gpt-5")).summary(session, id="so-far", store=kv)
        rendered = await prompt.user(QUESTION).render(budget=2_000)
        assert rendered.use.history
        assert [one for one in rendered.warnings if "could not be stored" in one]


async def test_index_records_that_cannot_be_stored_cost_no_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    storage: StorageBackend = open_storage("memory://")
    async with ACMS("now", storage, None, namespace="harbour") as session:

        async def broken(*_: object, **__: object) -> Any:
            raise RuntimeError("no store of ours")

        monkeypatch.setattr(session.storage, "put_derived", broken)
        await ingest_all(session, small_talk(3_000))
        rendered = await render_question(session, 3_000, scope="namespace")
        assert rendered.use.recalled
