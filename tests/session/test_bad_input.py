"""Bad input is refused with the field at fault, changes nothing, and is judged the same by every store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from itertools import product
from typing import Any

import pytest

from acms import (
    ACMS,
    ACMSConfig,
    CacheConfig,
    ConfigurationError,
    EpisodeBoundaryConfig,
    Media,
    Origin,
    Prompt,
    RecallConfig,
    RetryConfig,
    Text,
    ToolCall,
    ToolResult,
    ValidationError,
    sync,
)
from acms.codecs import OpenAIChat
from acms.kv import InMemoryKV
from acms.log import validation
from acms.storage import MemoryStorage
from tests.support.talk import Storage, comparable_answers, contents_of, ingest_texts, log_of, session_on

NAN = float("nan")
CALL = {"id": "c1", "name": "disk", "arguments": "{}"}


def nest_value(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return value


Bad = tuple[str, dict[str, Any], str]
MESSAGES: list[Bad] = [
    ("empty text", {"content": ""}, "content"),
    ("blank text", {"content": " \n\t"}, "content"),
    ("no text", {"content": None}, "content"),
    ("bytes", {"content": b"x"}, "content"),
    ("ten megabytes", {"content": "x" * 10_000_000}, "content"),
    ("one byte too long", {"content": "x" * (validation.MESSAGE_BYTES + 1)}, "content"),
    ("NUL", {"content": "a\0b"}, "content"),
    ("lone surrogate", {"content": "\ud800"}, "content"),
    ("unknown role", {"role": "bot"}, "role"),
    ("no role", {"role": None}, "role"),
    ("empty tool role", {"role": "tool", "content": ""}, "content"),
    ("unknown marker", {"markers": ["urgent"]}, "markers"),
    ("one marker as text", {"markers": "goal"}, "markers"),
    ("markers that are no list", {"markers": 5}, "markers"),
    ("too many markers", {"markers": [f"custom:{n}" for n in range(17)]}, "markers"),
    ("naive time", {"created_at": datetime(2026, 3, 14)}, "created_at"),
    ("naive time as text", {"created_at": "2026-03-14T12:00:00"}, "created_at"),
    ("no time", {"created_at": "soon"}, "created_at"),
    ("a number as time", {"created_at": 1_700_000_000}, "created_at"),
    ("an answer by a user", {"tool_call_id": "c1"}, "tool_call_id"),
    ("an answer without an id", {"role": "tool", "tool_call_id": ""}, "tool_call_id"),
    ("a call by a user", {"tool_calls": [CALL]}, "parts"),
    ("a call without a name", {"role": "assistant", "tool_calls": [{"id": "c1"}]}, "tool_calls[0].name"),
    ("a call that is no mapping", {"role": "assistant", "tool_calls": ["disk"]}, "tool_calls[0]"),
    ("calls that are no list", {"role": "assistant", "tool_calls": 5}, "tool_calls"),
    ("two calls with one id", {"role": "assistant", "tool_calls": [CALL, CALL]}, "parts"),
    ("arguments that are no JSON", {"role": "assistant", "tool_calls": [{**CALL, "arguments": {"x": {1}}}]},
     "tool_calls[0].arguments"),
    ("a part of a user's call", {"parts": [ToolCall("c1", "x")]}, "parts"),
    ("a result of an assistant", {"role": "assistant", "parts": [ToolResult("c1", "x")]}, "parts"),
    ("no part", {"parts": [{"type": "text"}]}, "parts[0]"),
    ("NUL in a part", {"parts": [Text("fine"), Text("\0")]}, "parts[1].text"),
    ("media without a type", {"parts": [Media("", "ref")]}, "parts[0].mime"),
    ("media of negative size", {"parts": [Media("image/png", "ref", tokens=-1)]}, "parts[0].tokens"),
    ("too many parts", {"parts": [Text("x")] * 257}, "parts"),
    ("NaN in metadata", {"metadata": {"run": NAN}}, "metadata.run"),
    ("deep metadata", {"metadata": nest_value(9)}, "metadata" + ".a" * 8),
    ("many keys", {"metadata": {f"k{n}": n for n in range(65)}}, "metadata"),
    ("large metadata", {"metadata": {f"k{n}": "x" * 999 for n in range(20)}}, "metadata"),
    ("metadata that is no JSON", {"metadata": {"when": datetime(2026, 3, 14, tzinfo=UTC)}}, "metadata.when"),
    ("metadata that is no mapping", {"metadata": [1]}, "metadata"),
    ("NUL in metadata", {"metadata": {"a": {"b": "\0"}}}, "metadata.a.b"),
    ("a number above 64 bits", {"metadata": {"n": 2**63}}, "metadata.n"),
    ("a key that is no text", {"metadata": {1: 2}}, "metadata"),
    ("empty actor", {"actor_id": " "}, "actor_id"),
    ("long actor", {"actor_id": "x" * 256}, "actor_id"),
    ("unknown privacy", {"privacy": "secret"}, "privacy"),
    ("unknown origin", {"origin": "mars"}, "origin"),
    ("empty key", {"idempotency_key": ""}, "idempotency_key"),
    ("NUL in the key", {"idempotency_key": "a\0"}, "idempotency_key"),
    ("long key", {"idempotency_key": "k" * 256}, "idempotency_key"),
]  # fmt: skip


STRICT = ACMSConfig(strict=True)


async def test_a_bad_message_is_refused_and_nothing_is_stored(storage: Storage) -> None:
    async with session_on(storage, config=STRICT) as session:
        await ingest_texts(session, "before")
        before = await comparable_answers(session)
        for name, bad, field in MESSAGES:
            given = {"role": "user", "content": "fine", **bad}
            with pytest.raises(ValidationError) as caught:
                await session.ingest(**given)
            assert caught.value.field == field, name
            assert caught.value.code == "VALIDATION", name
            assert not caught.value.retryable, name
            assert await comparable_answers(session) == before, name
        await ingest_texts(session, "after")
        assert session.last_receipt is not None
        assert session.last_receipt.version == 2


async def test_a_key_of_metadata_that_is_no_text_is_named() -> None:
    async with ACMS("s", MemoryStorage(), None) as session:
        for metadata, problem in (
            ({1: 2}, "the key 1 must be a string"),
            ({"": 2}, "the key '' must not be"),
        ):
            with pytest.raises(ValidationError, match=f"metadata: {problem}"):
                await session.ingest("user", "hello", metadata=metadata)  # type: ignore[arg-type]


async def test_a_batch_with_a_bad_seventh_message_stores_none_of_it(storage: Storage) -> None:
    async with session_on(storage, config=STRICT) as session:
        for name, bad, field in MESSAGES:
            batch: list[dict[str, Any]] = [
                {"role": "user", "content": f"message {number}"} for number in range(10)
            ]
            batch[6].update(bad)
            with pytest.raises(ValidationError) as caught:
                await session.ingest_many(batch)
            assert caught.value.field == f"messages[6].{field}", name
            assert (await session.get_session_stats()).version == 0, name
            assert await log_of(session) == [], name


BATCHES: list[tuple[Any, str]] = [
    (["hello"], "messages[0]"),
    ([None], "messages[0]"),
    ([{}], "messages[0]"),
    ([{"content": "x"}], "messages[0]"),
    ([{"role": "user", "content": "x", "colour": "red"}], "messages[0].colour"),
    ([{"role": "user", "content": "x", 5: 6, "colour": "red"}], "messages[0].5"),
    ([{"role": "user", "content": "x"}] * 1001, "messages"),
    (None, "messages"),
    (5, "messages"),
    ("hello", "messages"),
    ({"role": "user", "content": "x"}, "messages"),
]


async def test_what_is_no_batch_is_refused(storage: Storage) -> None:
    async with session_on(storage, config=STRICT) as session:
        for batch, field in BATCHES:
            with pytest.raises(ValidationError) as caught:
                await session.ingest_many(batch)
            assert caught.value.field == field, batch
            assert (await session.get_session_stats()).version == 0, batch


async def test_a_batch_may_be_as_large_as_the_limit(storage: Storage) -> None:
    async with session_on(storage) as session:
        with pytest.raises(ValidationError, match="has 1001 messages, the limit is 1000") as caught:
            await session.ingest_many([{"role": "user", "content": "x"}] * (validation.BATCH + 1))
        assert caught.value.options == ("split the list into parts of at most 1000 messages",)
        receipts = await session.ingest_many([{"role": "user", "content": "x"}] * validation.BATCH)
        assert [receipt.position for receipt in receipts] == list(range(1, validation.BATCH + 1))


async def test_one_key_twice_in_a_batch_is_refused(storage: Storage) -> None:
    async with session_on(storage) as session:
        with pytest.raises(ValidationError) as caught:
            await session.ingest_many([{"role": "user", "content": "x", "key": "k"}] * 2)
        assert "key" in caught.value.field
        assert (await session.get_session_stats()).version == 0


async def test_a_bad_batch_does_not_spoil_those_it_waits_with(storage: Storage) -> None:
    async with session_on(storage) as session:
        await ingest_texts(session, "first")
        results = await asyncio.gather(
            session.ingest("user", "a"),
            session.ingest("user", "b"),
            session.ingest_many([{"role": "user", "content": "x", "key": "k"}] * 2),
            session.ingest("user", "c"),
            return_exceptions=True,
        )
        assert [type(result) for result in results] == [str, str, ValidationError, str]
        assert contents_of(await session.window(100)) == ["first", "a", "b", "c"]


# ── what looks odd and is fine ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "fine",
    [
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "", "tool_call_id": "c1"},
        {"role": "tool", "content": "from nowhere"},
        {"role": "USER", "content": "x"},
        {"role": "user", "content": "x", "markers": [], "metadata": {}, "parts": [], "tool_calls": []},
        {"role": "user", "content": "x", "created_at": "0001-01-01T00:00:00Z"},
        {"role": "user", "content": "x", "created_at": datetime.max.replace(tzinfo=UTC)},
        {
            "role": "user",
            "content": "'; DROP TABLE entries; --",
            "actor_id": "$.a[*]\"'",
            "idempotency_key": "%_\\",
        },
        {"role": "user", "content": "\u202e\u200b\ufeff\U0010ffff\x01\x7f"},
        {"role": "user", "content": "x" * validation.MESSAGE_BYTES},
        {"role": "user", "content": "x", "metadata": {"__class__": "x", "$ne": None, "a.b": [1.5, True, {}]}},
        {"role": "user", "parts": [Media("image/png", "s3://b/k", tokens=10)]},
    ],
)
async def test_odd_but_honest_input_is_kept_as_it_is(storage: Storage, fine: dict[str, Any]) -> None:
    async with session_on(storage) as session:
        id = await session.ingest(**fine)
        stored = await session.get(id)
        if not fine.get("tool_calls"):
            assert stored.content == fine.get("content", "")
        assert dict(stored.metadata) == fine.get("metadata", {})
        assert len(await session.window(10_000_000)) == 1


# ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────────

BUDGETS = [-1, 0.5, NAN, float("inf"), True, "100", 10**9]


async def test_a_budget_that_makes_no_sense_is_refused(storage: Storage) -> None:
    calls: list[tuple[Callable[[ACMS, Any], Awaitable[Any]], str]] = [
        (lambda s, budget: s.recall("x", token_budget=budget), "token_budget"),
        (lambda s, budget: s.window(budget), "budget"),
        (lambda s, budget: s.messages("x", budget=budget), "budget"),
    ]
    async with session_on(storage) as session:
        for count in (0, 1):
            for (call, field), budget in product(calls, BUDGETS):
                with pytest.raises(ValidationError) as caught:
                    await call(session, budget)
                assert caught.value.field == field, budget
            assert (await session.get_session_stats()).version == count
            await ingest_texts(session, "x")


READS: list[tuple[Callable[[ACMS], Any], str]] = [
    (lambda s: s.recall(None), "query"),
    (lambda s: s.recall("x", min_relevance=-0.1), "min_relevance"),
    (lambda s: s.recall("x", min_relevance=1.5), "min_relevance"),
    (lambda s: s.recall("x", min_relevance=NAN), "min_relevance"),
    (lambda s: s.recall("x", exclude="m_1"), "exclude"),
    (lambda s: s.window(100, keep=["king"]), "keep"),
    (lambda s: s.messages(5, budget=100), "query"),
    (lambda s: s.history(limit=0), "limit"),
    (lambda s: s.history(limit=501), "limit"),
    (lambda s: s.history(limit=1.5), "limit"),
    (lambda s: s.history(after=-1), "after"),
    (lambda s: s.history(after="x"), "after"),
    (lambda s: s.episodes(status="half"), "status"),
    (lambda s: s.close_episode(""), "reason"),
    (lambda s: s.close_episode("x" * 256), "reason"),
]


async def test_a_question_that_makes_no_sense_is_refused(storage: Storage) -> None:
    async with session_on(storage) as session:
        await ingest_texts(session, "x")
        for number, (call, field) in enumerate(READS):
            with pytest.raises(ValidationError) as caught:
                await call(session)
            assert caught.value.field == field, number
            assert (await session.get_session_stats()).version == 1, number


@pytest.mark.parametrize("version", [-1, 1.5, None, True])
def test_a_version_is_a_whole_number(version: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        session_on(MemoryStorage()).at(version)
    assert caught.value.field == "at"


@pytest.mark.parametrize("content", ["", "  ", "\0", "\ud800", None, "x" * (validation.MESSAGE_BYTES + 1)])
async def test_a_correction_is_checked_like_a_message(storage: Storage, content: Any) -> None:
    async with session_on(storage) as session:
        (id,) = await ingest_texts(session, "x")
        with pytest.raises(ValidationError) as caught:
            await session.replace(id, content)
        assert caught.value.field == "content"
        assert (await session.get_session_stats()).version == 1


async def test_only_messages_can_be_corrected(storage: Storage) -> None:
    async with session_on(storage) as session:
        await ingest_texts(session, "x", close=True)
        with pytest.raises(ValidationError) as caught:
            await session.replace((await log_of(session))[1].id, "y")
        assert caught.value.field == "message_id"


@pytest.mark.parametrize("name", ["", " ", "\0", "\ud800", "x" * 256, None, 5])
def test_a_session_has_a_name_every_store_can_keep(name: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        ACMS(name, MemoryStorage())
    assert caught.value.field == "session_id"
    with pytest.raises(ValidationError) as caught:
        ACMS("s", MemoryStorage(), namespace=name)
    assert caught.value.field == "namespace"


# ── configuration ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (EpisodeBoundaryConfig, {"max_turns": 0}),
        (EpisodeBoundaryConfig, {"max_turns": NAN}),
        (EpisodeBoundaryConfig, {"max_turns": True}),
        (EpisodeBoundaryConfig, {"max_time_gap_seconds": -1}),
        (EpisodeBoundaryConfig, {"close_on_patterns": ["("]}),
        (EpisodeBoundaryConfig, {"close_on_patterns": "done"}),
        (RecallConfig, {"token_budget": -1}),
        (RecallConfig, {"token_budget": 1.5}),
        (RecallConfig, {"current_episode_budget_pct": 40}),
        (RecallConfig, {"current_episode_budget_pct": NAN}),
        (CacheConfig, {"max_bytes": -1}),
        (RetryConfig, {"max_attempts": 0}),
        (RetryConfig, {"base_delay": -1}),
        (RetryConfig, {"exponential_base": 0.5}),
        (RetryConfig, {"max_delay": "long"}),
    ],
)
def test_configuration_that_makes_no_sense_is_refused_at_birth(kind: Any, given: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        kind(**given)


def test_configuration_comes_from_the_environment() -> None:
    config = ACMSConfig.from_env(
        {
            "ACMS_AUTO_DETECT_MARKERS": "no",
            "ACMS_EPISODES_MAX_TURNS": "9",
            "ACMS_RECALL_TOKEN_BUDGET": "500",
            "ACMS_CACHE_ENABLED": "0",
            "ACMS_RETRY_BASE_DELAY": "0.25",
            "PATH": "elsewhere",
        }
    )
    assert not config.auto_detect_markers
    assert (config.episodes.max_turns, config.recall.token_budget) == (9, 500)
    assert (config.cache.enabled, config.retry.base_delay) == (False, 0.25)


@pytest.mark.parametrize(
    "environ",
    [
        {"ACMS_RECALL_TOKEN_BUDGET": "many"},
        {"ACMS_RECALL_TOKEN_BUDGET": "-1"},
        {"ACMS_CACHE_ENABLED": "perhaps"},
        {"ACMS_EPISODES_COLOUR": "1"},
        {"ACMS_EPISODES_CLOSE_ON_PATTERNS": "x"},
        {"ACMS_AUTO_DETECT_MARKERS": ""},
    ],
)
def test_an_environment_that_makes_no_sense_is_refused(environ: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError):
        ACMSConfig.from_env(environ)


def test_a_retry_waits_longer_each_time_up_to_a_limit() -> None:
    config = RetryConfig(jitter=False)
    assert [config.delay(attempt, 0.5) for attempt in (1, 2, 3, 9)] == [0.5, 1.0, 2.0, 30.0]
    spread = RetryConfig()
    assert spread.delay(2, 0.0) == 0.5
    assert spread.delay(2, 1.0) == 1.0


@pytest.mark.parametrize("given", [None, 7, InMemoryKV, InMemoryKV()], ids=range(4))
@pytest.mark.parametrize("door", [ACMS, sync.ACMS], ids=["async", "blocking"])
def test_what_is_no_store_is_told_what_would_be_one(door: Any, given: Any) -> None:
    with pytest.raises(ConfigurationError, match="storage must be a URL, a path or an open store") as caught:
        door("x", given)
    assert caught.value.options == ('open_storage("sqlite:///memory.db")',)
    assert caught.value.__notes__ == ['try: open_storage("sqlite:///memory.db")'], (
        "a traceback shows the remedy"
    )


@pytest.mark.parametrize("verb", ["get", "replace", "retract", "erase"])
async def test_an_entry_where_its_id_is_wanted_is_told_so(storage: Storage, verb: str) -> None:
    async with session_on(storage) as session:
        await session.ingest("user", "one")
        (entry,) = await session.entries()
        for given in (entry, None, 7):
            with pytest.raises(
                ValidationError, match=f"id: must be an id or a key, not {type(given).__name__}"
            ):
                await getattr(session, verb)(given, *(["two"] if verb == "replace" else []))
        assert contents_of(await session.entries()) == ["one"]


@pytest.mark.parametrize("name", ["contents", "text"])
async def test_a_message_without_content_names_its_unknown_field(name: str) -> None:
    async with ACMS("s", MemoryStorage(), None) as session:
        misspelled = {"role": "user", name: "The port is 6432."}
        with pytest.raises(ValidationError) as failed:
            await session.ingest(misspelled)
        assert (failed.value.field, failed.value.options) == (name, ("content",))
        answer = {"role": "assistant", "content": "Noted."}
        for batch in ([misspelled], [misspelled, answer]):
            with pytest.raises(ValidationError, match=rf"messages\[0\]\.{name}: is not a field of a message"):
                await session.ingest_many(batch)
        assert (await session.get_session_stats()).messages == 0
        note = f"a message has no content, only unknown fields, which no model sees: {name}"
        # A framework hands its whole list over again: one message must not block the others.
        assert (await session.sync([misspelled, answer])).notes == (note,)


INVALID_MESSAGES: list[tuple[dict[str, Any], str]] = [
    ({"role": "user", "content": 5}, ".content"),
    ({"role": "user", "content": [5]}, ".content[0]"),
    ({"role": "robot", "content": "x"}, ".role"),
    ({"content": "no role"}, ""),
    ({"role": "user"}, ".content"),
    ({"role": "system", "content": ""}, ".content"),
]


@pytest.mark.parametrize(("invalid", "field"), INVALID_MESSAGES)
async def test_an_invalid_message_refuses_its_batch_whatever_the_length(
    invalid: dict[str, Any], field: str
) -> None:
    async with ACMS("s", MemoryStorage(), None) as session:
        for before in ([], [{"role": "user", "content": "fine"}]):
            with pytest.raises(ValidationError) as failed:
                await session.ingest_many([*before, invalid])
            assert failed.value.field == f"messages[{len(before)}]{field}"
        assert (await session.get_session_stats()).version == 0


@pytest.mark.parametrize("door", ["ingest", "ingest_many", "sync"])
async def test_a_text_that_is_cut_is_noted_with_what_is_kept_and_logged_once(
    door: str, caplog: pytest.LogCaptureFixture
) -> None:
    message = {"role": "user", "content": "x" * 2_000_000, "key": "k"}
    note = "of a text of 2,000,000 bytes the first 786,432 and the last 131,072 are stored, "
    note += "1,082,496 characters are left out: "
    note += "hand it over as several messages to keep it whole; ACMSConfig(strict=True) refuses it instead"
    notes: list[tuple[str, ...]] = []
    async with ACMS("s", MemoryStorage(), None) as session:
        for _ in range(2):
            if door == "sync":
                notes.append((await session.sync([message])).notes)
                continue
            await (session.ingest(message) if door == "ingest" else session.ingest_many([message]))
            assert session.last_receipt is not None
            notes.append(session.last_receipt.notes)
    assert notes[0] == (note,)
    (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert (warning.message, warning.__dict__["acms"]["notes"]) == ("text_cut", [note])


async def test_a_message_that_sync_cannot_read_is_stored_as_its_json() -> None:
    async with ACMS("s", MemoryStorage(), None) as session:
        result = await session.sync([{"role": "robot", "content": "x"}, {"role": "user", "content": "fine"}])
        assert result.notes == ("a message that could not be understood is stored as its JSON",)
        entries = await session.entries()
        assert contents_of(entries) == ['{"role": "robot", "content": "x"}', "fine"]
        assert entries[0].origin is Origin.EXTERNAL


async def test_an_answer_whose_content_is_in_a_field_that_is_not_known_yet_is_stored_with_a_note() -> None:
    async with ACMS("s", MemoryStorage(), None) as session:
        answer = {"role": "assistant", "content": None, "hologram": {"ref": "h1"}}
        entry = await session.get(await session.ingest(answer))
        assert session.last_receipt is not None
        assert session.last_receipt.notes[0].endswith("no model sees: hologram")
        assert "h1" in str(entry.parts)


@pytest.mark.parametrize("content", ["", None, " "])
async def test_an_empty_answer_is_stored_with_a_note(content: str | None) -> None:
    note = "an assistant message has no content: it is stored, but no model sees it"
    answer = {"role": "assistant", "content": content}
    async with ACMS("s", MemoryStorage(), None) as session:
        await session.ingest(answer)
        await session.ingest("assistant", content)
        assert session.last_receipt is not None
        assert session.last_receipt.notes == (note,)
        (receipt,) = await session.ingest_many([answer])
        assert receipt.notes == (note,)
        done = await session.sync([{"role": "user", "content": "Hello."}, answer])
        assert (done.ignored, done.notes) == ((1,), ())
        rendered = await Prompt(OpenAIChat("gpt-5")).history(session).render(1000)
        assert [message["role"] for message in rendered.payload["messages"]] == ["user"]


async def test_a_result_without_a_call_is_stored_with_a_note_and_sent_as_text() -> None:
    async with ACMS("s", MemoryStorage(), None) as session:
        await session.ingest("tool", "40% used")
        assert session.last_receipt is not None
        assert session.last_receipt.notes == (
            "no earlier message makes the tool call that this answers: it is shown as text",
        )
        rendered = await Prompt(OpenAIChat("gpt-5")).history(session).render(1000)
        (message,) = rendered.payload["messages"]
        assert (message["role"], "40% used" in message["content"]) == ("user", True)


WRONG_CONTENT: list[Any] = [5, b"x", {"type": "text", "text": "x"}, {"x"}, True]


@pytest.mark.parametrize("content", WRONG_CONTENT, ids=range(len(WRONG_CONTENT)))
async def test_a_content_of_a_wrong_type_is_refused_alike_by_every_method(content: Any) -> None:
    expected = f"must be a text or a list of parts, not {type(content).__name__}"
    message = {"role": "user", "content": content}
    prompt = Prompt(OpenAIChat("gpt-5"))
    async with ACMS("s", MemoryStorage(), None) as session:
        for refused in (
            lambda: session.ingest("user", content),
            lambda: session.ingest(message),
            lambda: session.ingest_many([message]),
        ):
            with pytest.raises(ValidationError, match=expected):
                await refused()
        for build in (prompt.user, prompt.assistant, prompt.system):
            with pytest.raises(ValidationError, match=f"^content: {expected}$"):
                build(content)
        with pytest.raises(ValidationError, match=expected):
            prompt.history([message])


async def test_an_unknown_field_is_named_with_the_nearest_known_one() -> None:
    message = {"role": "user", "content": "x", "nam": "Ada"}
    async with ACMS("s", MemoryStorage(), None, config=ACMSConfig(strict=True)) as session:
        with pytest.raises(ValidationError, match=r"^nam: is not a known field; did you mean name\?$"):
            await session.ingest(message)
        with pytest.raises(
            ValidationError, match=r"^messages\[0\]\.nam: is not a known field; did you mean name\?$"
        ):
            await session.ingest_many([message])
    with pytest.raises(ValidationError, match=r"^content\.nam: is not a known field; did you mean name\?$"):
        Prompt(OpenAIChat("gpt-5")).history(message)


SHARED_ID = {
    "chat": {"role": "assistant", "tool_calls": [{**CALL, "name": "a"}, {**CALL, "name": "b"}]},
    "anthropic": {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": "c1", "name": name, "input": {}} for name in "ab"],
    },
    "gemini": {"role": "model", "parts": [{"functionCall": {"id": "c1", "name": name}} for name in "ab"]},
    "google-genai": {
        "role": "model",
        "parts": [
            {"text": None, "function_call": {"id": "c1", "name": name, "args": {}}, "function_response": None}
            for name in "ab"
        ],
    },
}


@pytest.mark.parametrize("form", SHARED_ID)
@pytest.mark.parametrize("door", ["ingest", "ingest_many", "sync"])
async def test_calls_of_one_message_with_one_id_get_ids_of_their_own(form: str, door: str) -> None:
    question = {"role": "user", "content": "Go."}
    async with ACMS("s", MemoryStorage(), None) as session:
        if door == "sync":
            await session.sync([question, SHARED_ID[form]])
        elif door == "ingest_many":
            await session.ingest_many([question, SHARED_ID[form]])
        else:
            await session.ingest(question)
            await session.ingest(SHARED_ID[form])
            assert session.last_receipt is not None
            assert session.last_receipt.notes == (
                "calls of one message that share an id get ids of their own",
            )
        newest = (await session.entries())[-1]
    calls = [(part.call_id, part.name) for part in newest.parts if isinstance(part, ToolCall)]
    assert calls == [("c1", "a"), ("c1_2", "b")]


async def test_a_list_in_place_of_a_message_names_the_methods_for_lists(storage: Storage) -> None:
    async with session_on(storage) as session:
        with pytest.raises(ValidationError) as caught:
            await session.ingest([{"role": "user", "content": "my diary"}])  # type: ignore[arg-type]
    assert "diary" not in str(caught.value)
    assert caught.value.options[0] == "ingest_many(messages)"


def test_a_mapping_is_no_configuration() -> None:
    with pytest.raises(ConfigurationError, match="config must be an ACMSConfig, not dict"):
        ACMS("s", "memory://", config={"strict": True})  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["cut \ud83d short", "a\0b"])
async def test_half_a_character_and_nul_are_replaced_at_every_door(text: str) -> None:
    repaired = text.replace("\ud83d", "\ufffd").replace("\0", "\ufffd")
    async with ACMS("s", MemoryStorage(), None) as session:
        await session.sync([{"role": "user", "content": text}])
        assert [item.content for item in await session.recall(text, budget=300)] == []
        assert [message["content"] for message in await session.messages(text, budget=300)] == [repaired]
        prompt = (
            Prompt(OpenAIChat("gpt-5"))
            .system(text)
            .history(session)
            .recall(session, text)
            .assistant("", tool_calls=[{**CALL, "arguments": {"host": text}}])
            .tool("c1", text)
            .user([Text(text)])
            .message("user", text)
        )
        rendered = await prompt.render(budget=900)
    sent = [message["content"] for message in rendered.payload["messages"]]
    assert sent == [repaired, repaired, None, repaired, repaired, repaired]
