"""What users of versioned contexts expect of contexts, versions, windows, forks and policies, as cases of our own.

Taken from the behaviour of the public project that they grew out of and from its
roadmap's criteria of success. Where ours differs, it is on purpose:

- Decision 1: versions count entries, not messages, so a manual close, a fact or a summary takes a version too. A
  message has a position beside it; in a log of plain messages the two are equal, which is how these cases count.
- Decision 4: budgets are hard. A newest message larger than the budget is cut and flagged instead of shown whole, what
  frames a message is counted, and a budget that is no whole number of tokens, or a negative one, is an error and not an
  empty answer.
- Decision 5: tokens are counted by the engine, so a count can be neither missing nor wrong: the cases about messages
  without a count have no counterpart.
- Decision 12: a session comes into being with its first message, so appending to an unknown one is no error; reading an
  unknown one finds nothing, forking it or comparing it is an error.
- The border is stricter than the original's: an empty message, a negative cursor and a page that is too large or empty
  are refused, where the original takes the first two and silently makes the page smaller. A tool's answer that names no
  call is stored and never shown in the role of a tool, because a provider would refuse it.
- History is read oldest first; the newest messages are asked for with `entries(newest=n)`.

Routes, status codes and the format of problems belong to the HTTP door.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from acms import (
    ACMS,
    CompactionPolicy,
    EntryNotFoundError,
    NotFoundError,
    Role,
    SessionNotFoundError,
    ToolCall,
    ToolResult,
    ValidationError,
    open_storage,
)
from acms.model import ContextQuery
from tests.support.talk import Storage, contents_of, session_on, versions_of


def text_of_tokens(tokens: int, mark: str = "w") -> str:
    """A message that costs so many tokens in a window: one of them is for its speaker."""
    return " ".join([mark] * (tokens - 1))


async def session_with_messages(storage: Any, *messages: str, name: str = "user_123") -> ACMS:
    session = session_on(storage, name, words=True)
    if messages:
        await session.ingest_many([{"role": "user", "content": message} for message in messages])
    return session


# ── append ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_versions_count_up_from_one_and_go_on(storage: Storage) -> None:
    session = await session_with_messages(storage)
    first = await session.ingest_many(
        [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    )
    assert [(one.version, one.position) for one in first] == [(1, 1), (2, 2)]
    (third,) = await session.ingest_many([{"role": "user", "content": "c"}])
    assert (third.version, third.position) == (3, 3)


async def test_an_append_counts_messages_tokens_and_version_at_once(storage: Storage) -> None:
    session = await session_with_messages(storage, text_of_tokens(6), text_of_tokens(11))
    stats = await session.get_session_stats()
    assert (stats.messages, stats.tokens, stats.version) == (2, 15, 2)


async def test_appending_nothing_stores_nothing(storage: Storage) -> None:
    session = await session_with_messages(storage)
    assert await session.ingest_many([]) == []
    assert (await storage.contexts(ContextQuery())).items == ()


async def test_what_belongs_to_a_tool_comes_back_as_it_was(storage: Storage) -> None:
    session = await session_with_messages(storage)
    call = {"id": "call_123", "name": "calculator", "arguments": '{"sum": [1, 2]}'}
    asked = await session.ingest("assistant", "", tool_calls=[call], metadata={"model": "gpt-4"})
    told = await session.ingest("tool", "3", tool_call_id="call_123")
    question, answer = await session.get(asked), await session.get(told)
    assert question.parts == (ToolCall("call_123", "calculator", '{"sum": [1, 2]}'),)
    assert dict(question.metadata) == {"model": "gpt-4"}
    assert (answer.role, answer.parts) == (Role.TOOL, (ToolResult("call_123", "3"),))


async def test_an_answer_that_names_no_call_is_never_shown_as_a_tool(storage: Storage) -> None:
    session = await session_with_messages(storage, "hi")
    await session.ingest("tool", "3")
    assert [item.role for item in await session.window(100)] == [Role.USER, Role.USER]


@pytest.mark.parametrize("wrong", [{"content": "x", "privacy": "odd"}, {"content": "x", "origin": "mars"}])
async def test_one_bad_message_refuses_the_batch(storage: Storage, wrong: dict[str, str]) -> None:
    session = await session_with_messages(storage, "a")
    with pytest.raises(ValidationError) as refused:
        await session.ingest_many([{"role": "user", "content": "good"}, {"role": "user", **wrong}])
    assert refused.value.field.startswith("messages[1].")
    assert (await session.get_session_stats()).version == 1


async def test_text_of_any_script_comes_back_and_what_no_store_can_hold_is_replaced(storage: Storage) -> None:
    session = await session_with_messages(storage, "héllo 👋🏽 مرحبا \u2028 x")
    assert contents_of(await session.window(100)) == ["héllo 👋🏽 مرحبا \u2028 x"]
    for wrong in ("a\0b", "a\ud800b"):
        id = await session.ingest("user", wrong)
        assert (await session.get(id)).content == "a\ufffdb"


async def test_concurrent_appends_leave_no_gap(url: str) -> None:
    """Two writers with connections of their own, so that the database really has to keep them apart."""
    async with open_storage(url) as here, open_storage(url) as there:
        one, other = await session_with_messages(here), await session_with_messages(there)
        batch = [
            {"role": "user", "content": text_of_tokens(6)},
            {"role": "user", "content": text_of_tokens(6)},
        ]
        done = await asyncio.gather(
            one.ingest_many(batch), other.ingest_many([{"role": "user", "content": text_of_tokens(11)}])
        )
        stored = [receipt.version for receipts in done for receipt in receipts]
        assert sorted(stored) == [1, 2, 3]
        assert stored[1] == stored[0] + 1, "a batch stays together"
        stats = await one.get_session_stats()
        assert (stats.messages, stats.tokens, stats.version) == (3, 20, 3)
        await one.close()
        await other.close()


# ── history ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_history_is_paged_without_skip_or_repeat(storage: Storage) -> None:
    session = await session_with_messages(storage, *"abcde")
    pages = []
    after: int | None = 0
    while after is not None:
        page = await session.history(limit=2, after=after)
        pages.append((versions_of(page.entries), page.next_after))
        after = page.next_after
    assert pages == [([1, 2], 2), ([3, 4], 4), ([5], None)]


async def test_a_history_line_says_when_who_and_what_in_about_a_hundred_characters(storage: Storage) -> None:
    session = await session_with_messages(storage)
    when = datetime(2026, 3, 1, 12, tzinfo=UTC)
    await session.ingest("assistant", "long " * 100, created_at=when)
    (line,) = (await session.history()).entries
    assert (line.created_at, line.role, line.kind) == (when, Role.ASSISTANT, "message")
    assert 90 <= len(line.preview) <= 100


async def test_the_newest_messages_can_be_asked_for(storage: Storage) -> None:
    session = await session_with_messages(storage, *"abcde")
    assert contents_of(await session.entries(newest=1)) == ["e"]
    assert contents_of(await session.entries(newest=3)) == ["c", "d", "e"]


async def test_an_unknown_session_reads_as_an_empty_one(storage: Storage) -> None:
    session = await session_with_messages(storage)
    assert (await session.history()).entries == ()
    assert list(await session.window(100)) == []
    assert list(await session.recall("anything")) == []
    assert (await session.get_session_stats()).messages == 0
    assert (await storage.contexts(ContextQuery())).items == (), "reading creates nothing"


async def test_a_message_is_found_by_its_version_and_one_that_does_not_exist_is_not(storage: Storage) -> None:
    session = await session_with_messages(storage, "First", "Second")
    (line,) = (await session.history(after=1, limit=1)).entries
    assert (await session.get(line.id)).content == "Second"
    assert (await session.history(after=998, limit=1)).entries == ()
    with pytest.raises(NotFoundError, match="ends at version 2"):
        await session.at(999).window(100)
    with pytest.raises(EntryNotFoundError):
        await session.get(line.id[:-1] + "!")


# ── window ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("sizes", "budget", "shown"),
    [
        ((10, 20, 15, 25), 40, (15, 25)),
        ((10, 20, 15, 25), 39, (25,)),
        ((10, 20, 15, 25), 70, (10, 20, 15, 25)),
        ((10, 20, 15, 25), 1000, (10, 20, 15, 25)),
        ((25, 25), 25, (25,)),
        ((5, 100, 5), 20, (5,)),
    ],
)
async def test_a_window_is_the_newest_contiguous_messages_that_fit(
    storage: Storage, sizes: tuple[int, ...], budget: int, shown: tuple[int, ...]
) -> None:
    session = await session_with_messages(storage, *(text_of_tokens(size) for size in sizes))
    window = await session.window(budget)
    assert tuple(item.token_count for item in window) == shown
    assert versions_of(window) == list(range(len(sizes) - len(shown) + 1, len(sizes) + 1))
    assert window.tokens == sum(shown) <= budget


async def test_a_message_larger_than_the_budget_is_cut_and_flagged(storage: Storage) -> None:
    session = await session_with_messages(storage, text_of_tokens(100))
    window = await session.window(10)
    assert [item.truncated for item in window] == [True]
    assert window.tokens <= 10
    assert (await session.get_session_stats()).tokens == 99, "the log keeps it whole"


async def test_a_budget_of_nothing_shows_nothing_of_a_message(storage: Storage) -> None:
    window = await (await session_with_messages(storage, "a b c")).window(0)
    assert window.tokens == 0
    assert contents_of(window) == []


# ── contexts ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_context_is_born_with_an_id_a_time_and_nothing_in_it(storage: Storage) -> None:
    session = await session_with_messages(storage, "a")
    context = await storage.context("user_123")
    assert context.id.startswith("c_")
    assert context.created_at.utcoffset() is not None
    assert (context.parent, context.fork, context.deleted_at, dict(context.settings)) == (
        None,
        None,
        None,
        {},
    )
    nameless = await session.fork()
    assert (await storage.context(nameless.session_id)).key is None


async def test_the_life_of_a_session_from_its_first_message_to_its_deletion(storage: Storage) -> None:
    session = await session_with_messages(storage, "a")
    context = await storage.context("user_123")
    other = await session_with_messages(storage)
    assert contents_of(await other.window(100)) == ["a"]
    assert await session.delete() == []
    with pytest.raises(SessionNotFoundError):
        await storage.context("user_123")
    for late in (other.ingest("user", "late"), other.window(100), other.history(), other.delete()):
        with pytest.raises(SessionNotFoundError):
            await late
    assert (await session.history()).entries == ()
    assert list(await session.window(100)) == []
    with pytest.raises(SessionNotFoundError):
        await session.delete()
    assert (await storage.context(context.id)).deleted_at is not None


# ── forks and time travel ───────────────────────────────────────────────────────────────────────────────────────────


async def test_a_fork_at_five_holds_exactly_the_first_five_messages(storage: Storage) -> None:
    session = await session_with_messages(storage, *(f"m{n}" for n in range(1, 11)))
    child = await session.fork(at=5, session_id="child")
    page = await child.history()
    assert [(entry.version, entry.preview) for entry in page.entries] == [(n, f"m{n}") for n in range(1, 6)]
    stats = await child.get_session_stats()
    assert (stats.messages, stats.tokens, stats.version) == (5, 5, 5)
    context = await storage.context("child")
    assert (context.parent, context.fork) == ((await storage.context("user_123")).id, 5)


async def test_parent_and_fork_go_their_own_ways(storage: Storage) -> None:
    session = await session_with_messages(storage, "a", "b", "c")
    child = await session.fork(at=2)
    await child.ingest("user", "child")
    await session.ingest("user", "parent")
    assert contents_of(await child.window(100)) == ["a", "b", "child"]
    assert contents_of(await session.window(100)) == ["a", "b", "c", "parent"]
    assert versions_of(await child.window(100)) == [1, 2, 3]


async def test_a_fork_without_a_version_is_at_the_newest_and_one_beyond_it_is_refused(
    storage: Storage,
) -> None:
    session = await session_with_messages(storage, "a", "b")
    assert (await (await session.fork()).get_session_stats()).version == 2
    assert (await (await session.fork(at=0)).get_session_stats()).version == 0
    with pytest.raises(ValidationError) as refused:
        await session.fork(at=-1)
    assert refused.value.field == "at"
    with pytest.raises(NotFoundError):
        await session.fork(at=3)
    with pytest.raises(SessionNotFoundError):
        await session_on(storage, "nobody", words=True).fork()


async def test_forks_can_be_listed_and_so_can_the_line_that_leads_to_one(storage: Storage) -> None:
    session = await session_with_messages(storage, "a", "b", "c")
    one = await session.fork(at=1, session_id="one")
    await session.fork(at=2, session_id="two")
    deeper = await one.fork(session_id="deeper")
    assert [(fork.session_id, fork.fork) for fork in await session.forks()] == [("one", 1), ("two", 2)]
    assert [branch.session_id for branch in await deeper.ancestry()] == ["user_123", "one", "deeper"]


async def test_deleting_a_parent_leaves_its_forks_readable(storage: Storage) -> None:
    session = await session_with_messages(storage, "a", "b", "c")
    child = await session.fork(at=2, session_id="child")
    assert [branch.session_id for branch in await session.delete()] == ["child"]
    assert contents_of(await child.window(100)) == ["a", "b"]
    await child.ingest("user", "more")
    assert [(branch.session_id, branch.deleted) for branch in await child.ancestry()] == [
        ("user_123", True),
        ("child", False),
    ]


async def test_the_state_at_a_version_is_the_messages_up_to_it(storage: Storage) -> None:
    session = await session_with_messages(storage, *(f"m{n}" for n in range(1, 8)))
    for n in range(8):
        view = session.at(n)
        assert contents_of(await view.window(1000)) == [f"m{k}" for k in range(1, n + 1)]
        stats = await view.get_session_stats()
        assert (stats.version, stats.messages, stats.tokens) == (n, n, n)
        assert contents_of(await view.window(6)) == [f"m{k}" for k in range(max(1, n - 2), n + 1)]


async def test_what_was_taken_out_of_force_is_left_out_by_default_and_kept_in_history(
    storage: Storage,
) -> None:
    session = await session_with_messages(storage, "a", "b", "c")
    (_, second, _) = (await session.history()).entries
    await session.retract(second.id)
    assert contents_of(await session.window(100)) == ["a", "c"]
    assert contents_of(await session.at(3).window(100)) == ["a", "b", "c"]
    assert [entry.in_force for entry in (await session.history()).entries] == [True, False, True, True]


# ── policy ──────────────────────────────────────────────────────────────────────────────────────────────────────────

POLICY = ("threshold", "preserve_recent_count", "enabled")


async def policy_of(session: ACMS) -> tuple[Any, ...]:
    policy = (await session.policy()).policy
    return tuple(getattr(policy, name) for name in POLICY)


async def test_a_policy_has_defaults_and_is_changed_field_by_field(storage: Storage) -> None:
    session = await session_with_messages(storage, "a")
    assert await policy_of(session) == (0.8, 10, True)
    await session.set_policy(threshold=0.5)
    assert await policy_of(session) == (0.5, 10, True)
    await session.set_policy(threshold=0.6, preserve_recent_count=5, enabled=False)
    assert await policy_of(session) == (0.6, 5, False)
    assert await policy_of(await session_with_messages(storage)) == (0.6, 5, False)
    await session.set_policy(threshold=None, enabled=None)
    assert await policy_of(session) == (0.8, 5, True)
    found = await session.policy()
    assert [found.levels[name] for name in POLICY] == ["service", "context", "service"]


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("threshold", 1.1),
        ("threshold", 1.5),
        ("threshold", -0.1),
        ("threshold", -1),
        ("threshold", "high"),
        ("preserve_recent_count", -1),
        ("preserve_recent_count", 2.5),
        ("threshold", True),
        ("enabled", "yes"),
        ("budget", -5),
        ("budget", float("nan")),
        ("keep", 2),
        ("summary_tokens", 0),
        ("colour", 1),
    ],
)
async def test_a_policy_out_of_bounds_is_refused_and_changes_nothing(
    storage: Storage, field: str, wrong: Any
) -> None:
    session = await session_with_messages(storage, "a")
    with pytest.raises(ValidationError) as refused:
        await session.set_policy(**{"preserve_recent_count": 3, field: wrong})
    assert refused.value.field == field
    assert await policy_of(session) == (0.8, 10, True)


@pytest.mark.parametrize("edge", [0, 1, 0.0, 1.0])
def test_the_bounds_of_a_threshold_belong_to_it(edge: float) -> None:
    assert CompactionPolicy(threshold=edge).threshold == edge
