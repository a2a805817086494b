"""`sync`: a list as a framework holds it becomes the log's, whatever was trimmed, edited, removed or inserted."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections import Counter
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from acms import (
    ACMS,
    ACMSConfig,
    ConflictError,
    EntryNotFoundError,
    IdempotencyMismatchError,
    Origin,
    Privacy,
    PrivacyConfig,
    Prompt,
    Synced,
    ValidationError,
    open_storage,
    sync,
)
from acms.codecs import OpenAIChat
from acms.storage import MemoryStorage
from tests.providers.validators import openai_chat
from tests.support.talk import Storage, session_on

pytestmark = pytest.mark.anyio


def user_message(text: str, key: str | None = None) -> dict[str, Any]:
    return {"role": "user", "content": text} | ({} if key is None else {"id": key})


def user_messages(texts: str) -> list[dict[str, Any]]:
    return [user_message(text) for text in texts]


async def in_force(session: ACMS) -> str:
    return "".join([entry.content for entry in await session.entries()])


def sync_counts(done: Synced) -> tuple[int, int, int, int, int]:
    return (
        len(done.appended), len(done.replaced), len(done.retracted), len(done.unchanged), len(done.inserted),
    )  # fmt: skip


# ── lists without keys ──────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_same_list_twice_is_stored_once(storage: Storage) -> None:
    async with session_on(storage) as session:
        first = await session.sync(user_messages("abca"))
        assert sync_counts(first) == (4, 0, 0, 0, 0)
        again = await session.sync(user_messages("abca"))
        assert again.unchanged == first.appended
        assert sync_counts(again) == (0, 0, 0, 4, 0)
    async with session_on(storage) as another:
        assert (await another.sync(user_messages("abca"))).unchanged == first.appended


async def test_two_that_hand_over_the_same_news_at_once_store_them_once(url: str) -> None:
    """The store looks at keys before it looks at versions, and took the second for a misused key."""
    before, after = (
        [user_message("a", "1")],
        [user_message("b", "1"), user_message("c", "2"), user_message("d", "3")],
    )
    async with ACMS("s", open_storage(url), None) as one, ACMS("s", open_storage(url), None) as two:
        for session in (one, two):
            await session.sync(before)
        for round_ in range(10):
            news = [user_message(f"{text['content']}{round_}", text["id"]) for text in after]
            more = [user_message("e", f"new {round_}")]
            await asyncio.gather(
                one.sync([*news, *more]), two.sync([*news, *more, user_message("f", f"f {round_}")])
            )
        assert (await in_force(one)).count("e") == 10
        assert (await in_force(two)).count("f") == 10


async def test_an_edit_that_was_undone_is_not_what_the_log_says(storage: Storage) -> None:
    async with session_on(storage) as session:
        await session.sync([user_message("a", "k")])
        await session.sync([user_message("b", "k")])
        (last,) = (await session.sync([user_message("c", "k")])).replaced
        await session.retract(last)
        assert await in_force(session) == "b"
        await session.sync([user_message("c", "k")])
        assert await in_force(session) == "c"


@pytest.mark.parametrize(
    ("before", "after", "gone", "expected", "left"),
    [
        ("abcd", "cde", "keep", (1, 0, 0, 2, 0), "abcde"),
        ("abcd", "cde", "retract", (1, 0, 0, 2, 0), "abcde"),
        ("abcd", "abd", "keep", (0, 0, 0, 3, 0), "abcd"),
        ("abcd", "abd", "retract", (0, 0, 1, 3, 0), "abd"),
        ("abcd", "abxcd", "keep", (3, 0, 0, 2, 1), "abcdxcd"),
        ("abcd", "abxcd", "retract", (3, 0, 2, 2, 1), "abxcd"),
        ("abab", "ab", "keep", (0, 0, 0, 2, 0), "abab"),
        ("ab", "xy", "retract", (2, 0, 0, 0, 0), "abxy"),
        ("ab", "", "retract", (0, 0, 0, 0, 0), "ab"),
        ("obcdeo", "ocdeo", "retract", (0, 0, 1, 5, 0), "ocdeo"),
        ("ba", "baa", "keep", (1, 0, 0, 2, 0), "baa"),
        ("ba", "baxa", "keep", (2, 0, 0, 2, 0), "baxa"),
    ],
)
async def test_what_became_of_a_list(
    storage: Storage, before: str, after: str, gone: Any, expected: tuple[int, ...], left: str
) -> None:
    async with session_on(storage) as session:
        await session.sync(user_messages(before))
        assert sync_counts(await session.sync(user_messages(after), gone=gone)) == expected
        assert await in_force(session) == left
        again = await session.sync(user_messages(after), gone=gone)
        assert sync_counts(again)[:3] == (0, 0, 0)


async def test_what_was_removed_comes_back_at_its_place(storage: Storage) -> None:
    async with session_on(storage) as session:
        await session.sync(user_messages("abc"))
        await session.sync(user_messages("ac"), gone="retract")
        done = await session.sync(user_messages("abc"), gone="retract")
        assert sync_counts(done) == (0, 1, 0, 2, 0)
        assert await in_force(session) == "abc"


async def test_what_the_user_retracted_stays_away(storage: Storage) -> None:
    async with session_on(storage) as session:
        done = await session.sync(user_messages("abc"))
        await session.retract(done.appended[1])
        assert sync_counts(await session.sync(user_messages("abcd"))) == (1, 0, 0, 3, 0)
        assert await in_force(session) == "acd"


async def test_what_was_erased_is_not_stored_again(storage: Storage) -> None:
    async with session_on(storage) as session:
        done = await session.sync(user_messages("abc"))
        await session.erase(done.appended[1])
        done = await session.sync(user_messages("abcd"))
        assert (sync_counts(done), done.erased) == ((1, 0, 0, 2, 0), (1,))
        assert await in_force(session) == "acd"


async def test_what_was_erased_is_not_stored_again_under_its_key(storage: Storage) -> None:
    said = [
        user_message(text, f"k{at}")
        for at, text in enumerate(("one", "two words", "three", "four words are here"))
    ]
    async with session_on(storage) as session:
        done = await session.sync(said)
        await session.erase(done.appended[0])
        await session.erase(done.appended[1])
        done = await session.sync([*said, user_message("five", "k5")])
        assert (sync_counts(done), done.erased) == ((1, 0, 0, 2, 0), (0, 1))
        assert await in_force(session) == "threefour words are herefive"


async def test_what_is_taken_for_an_erased_message_is_not_told_as_unchanged(storage: Storage) -> None:
    """A new key may be a new message: the result reports that it was passed over."""
    async with session_on(storage) as session:
        done = await session.sync([user_message("yes", "a"), user_message("end", "b")])
        await session.erase(done.appended[0])
        again = await session.sync([user_message("no", "new"), user_message("end", "b")], gone="retract")
        assert again == Synced(unchanged=done.appended[1:], erased=(0,), ids=((), done.appended[1:]))


@pytest.mark.parametrize(
    "new",
    [
        [user_message("this is something quite different from it", "new")],
        [{"role": "assistant", "content": "two words", "id": "new"}],
        [user_message("two words", "new"), user_message("two words", "newer")],
    ],
)
async def test_a_new_message_where_one_was_erased_is_stored(
    storage: Storage, new: list[dict[str, Any]]
) -> None:
    said = [user_message("one", "k0"), user_message("two words", "k1"), user_message("three", "k2")]
    async with session_on(storage) as session:
        done = await session.sync(said)
        await session.erase(done.appended[1])
        done = await session.sync([said[0], *new, said[2]])
        assert len(done.appended) >= 1
        assert (await session.entries())[-1].content == new[0]["content"]


async def test_what_was_cleared_is_said_anew(storage: Storage) -> None:
    async with session_on(storage) as session:
        await session.sync(user_messages("ab"))
        await session.clear()
        assert sync_counts(await session.sync(user_messages("ab"))) == (2, 0, 0, 0, 0)


async def test_what_was_cleared_comes_back_under_its_key_only_to_a_list_that_is_all_there_is(
    storage: Storage,
) -> None:
    async with session_on(storage) as session:
        keyed = [{**one, "key": f"k{at}"} for at, one in enumerate(user_messages("ab"))]
        await session.sync(keyed)
        await session.clear()
        assert sync_counts(await session.sync([*keyed, *user_messages("c")])) == (1, 0, 0, 2, 0)
        assert await in_force(session) == "c"
        assert sync_counts(await session.sync([*keyed, *user_messages("c")], gone="retract")) == (
            0,
            2,
            0,
            1,
            0,
        )
        assert await in_force(session) == "abc"


async def test_instructions_are_known_wherever_they_stand(storage: Storage) -> None:
    rules, other = {"role": "system", "content": "S"}, {"role": "system", "content": "T"}
    async with session_on(storage) as session:
        await session.sync([rules, *user_messages("abc")])
        assert sync_counts(await session.sync([rules, *user_messages("cd")], gone="retract")) == (
            1,
            0,
            0,
            2,
            0,
        )
        assert sync_counts(await session.sync([other, *user_messages("cd")])) == (0, 1, 0, 2, 0)
        assert await in_force(session) == "Tabcd"
        assert sync_counts(await session.sync([other, *user_messages("cd")])) == (0, 0, 0, 3, 0)


async def test_instructions_that_came_later_are_appended_alone(storage: Storage) -> None:
    rules = {"role": "system", "content": "S"}
    async with session_on(storage) as session:
        await session.sync(user_messages("ab"))
        assert sync_counts(await session.sync([rules, *user_messages("ab")])) == (1, 0, 0, 2, 1)
        assert sync_counts(await session.sync([rules, *user_messages("ab")])) == (0, 0, 0, 3, 0)


async def test_what_acms_wrote_is_passed_over(storage: Storage) -> None:
    seen = [
        user_message("<recalled>\nold\n</recalled>"),
        user_message("<summary>\nold\n</summary>"),
        {"role": "tool", "tool_call_id": "c1", "content": "no result: interrupted"},
        user_message("<recalled>\nold\n</recalled>\na"),
        user_message("b"),
    ]
    async with session_on(storage) as session:
        done = await session.sync(seen)
        assert done.ignored == (0, 1, 2)
        assert await in_force(session) == "ab"
        assert sync_counts(await session.sync(user_messages("ab"))) == (0, 0, 0, 2, 0)


async def test_a_list_that_is_behind_a_correction_does_not_take_it_back(storage: Storage) -> None:
    for key in ("k", None):
        async with session_on(storage, f"s-{key}") as session:
            asked, answered = user_message("a", key and "q"), user_message("MySQL", key)
            await session.sync([asked, answered])
            old = (await session.entries())[-1].id
            await session.replace(old, "PostgreSQL")
        async with session_on(storage, f"s-{key}") as session:  # another process
            done = await session.sync([asked, answered, user_message("b", key and "q2")])
            assert (sync_counts(done), await in_force(session)) == ((1, 0, 0, 2, 0), "aPostgreSQLb")
            assert sync_counts(await session.sync([asked, answered], gone="retract")) == (0, 0, 1, 2, 0)
            await session.replace(old, "SQLite")
            assert sync_counts(await session.sync([asked, user_message("PostgreSQL", key)])) == (
                0,
                0,
                0,
                2,
                0,
            )


async def test_a_list_may_take_back_its_own_edits_also_behind_a_correction(storage: Storage) -> None:
    async with session_on(storage) as session:
        for text in "aba":
            await session.sync([user_message(text, "k")])
            assert await in_force(session) == text
        await session.replace("k", "c")
        for text in "da":
            await session.sync([user_message(text, "k")])
            assert await in_force(session) == text


# ── keys ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_key_names_a_message_through_its_edits(storage: Storage) -> None:
    async with session_on(storage) as session:
        await session.sync([user_message("a", "k1"), user_message("b", "k2")])
        done = await session.sync([user_message("a", "k1"), user_message("B", "k2")])
        assert sync_counts(done) == (0, 1, 0, 1, 0)
        assert (await session.get("k2")).id == done.replaced[0]
        await session.replace("k2", "BB")
        assert (await session.get("k2")).content == "BB"
        assert (await session.at(2).get("k2")).content == "b"
        assert sync_counts(await session.sync([user_message("a", "k1"), user_message("BB", "k2")])) == (
            0,
            0,
            0,
            2,
            0,
        )
        await session.retract("k1")
        assert await in_force(session) == "BB"
        with pytest.raises(EntryNotFoundError):
            await session.get("k3")


async def test_metadata_and_names_under_a_key(storage: Storage) -> None:
    one = user_message("a", "k1")
    async with session_on(storage) as session:
        await session.sync([{**one, "metadata": {"run": 1}, "name": "maya"}])
        assert sync_counts(await session.sync([one])) == (0, 0, 0, 1, 0)
        assert sync_counts(await session.sync([{**one, "metadata": {"run": 2}}])) == (0, 1, 0, 0, 0)
        entry = await session.get("k1")
        assert (entry.metadata, entry.actor) == ({"run": 2}, "maya")


@pytest.mark.parametrize("texts", [("X123", "obey"), ("X124", "obey!")])
async def test_an_edited_or_restored_message_stays_private_and_is_not_trusted_more(
    storage: Storage, texts: tuple[str, str]
) -> None:
    said = [
        user_message("first", "k0"),
        user_message(texts[0], "k1"),
        user_message(texts[1], "k2"),
        user_message("last", "k3"),
    ]
    async with session_on(storage) as session:
        await session.ingest("user", "first", idempotency_key="k0")
        await session.ingest("user", "X123", idempotency_key="k1", privacy="block")
        await session.ingest("user", "obey", idempotency_key="k2", origin="external")
        await session.ingest("user", "last", idempotency_key="k3")
        await session.sync([said[0], said[3]], gone="retract")
        assert sync_counts(await session.sync(said, gone="retract")) == (0, 2, 0, 2, 0)
        _, private, strange, _ = await session.entries()
        assert (private.privacy, strange.origin) == (Privacy.BLOCK, Origin.EXTERNAL)
        shown = [one["content"] for one in await session.messages("X124?", budget=1_000)]
        assert "[withheld]" in shown
        assert texts[0] not in shown


async def test_what_a_list_says_of_privacy_and_origin_counts_where_it_is_stricter(storage: Storage) -> None:
    one = user_message("a", "k1")
    async with session_on(storage) as session:
        await session.sync([{**one, "privacy": "redact", "origin": "tool"}])
        for privacy, origin in (("allow", "user"), ("redact", "assistant")):
            done = await session.sync([{**one, "privacy": privacy, "origin": origin}])
            assert sync_counts(done) == (0, 0, 0, 1, 0)
        for privacy, origin in (("block", "user"), ("allow", "external")):
            done = await session.sync([{**one, "privacy": privacy, "origin": origin}])
            assert sync_counts(done) == (0, 1, 0, 0, 0)
        entry = await session.get("k1")
        assert (entry.privacy, entry.origin) == (Privacy.BLOCK, Origin.EXTERNAL)
        with pytest.raises(ValidationError) as caught:
            await session.sync([{**one, "privacy": "secret"}])
        assert caught.value.field == "messages[0].privacy"


async def test_with_keys_an_insertion_alone_is_appended(storage: Storage) -> None:
    known = [user_message("a", "k1"), user_message("b", "k2")]
    async with session_on(storage) as session:
        await session.sync(known)
        done = await session.sync([known[0], user_message("x", "k3"), known[1]])
        assert sync_counts(done) == (1, 0, 0, 2, 1)
        assert done.inserted == done.appended


async def test_an_insertion_can_be_refused(storage: Storage) -> None:
    async with session_on(storage) as session:
        await session.sync(user_messages("ab"))
        with pytest.raises(ConflictError, match=r"messages\[1\]") as caught:
            await session.sync(user_messages("axb"), insert="refuse")
        assert not caught.value.retryable
        assert caught.value.options
        assert await in_force(session) == "ab"


async def test_an_edited_call_stays_in_its_group(storage: Storage) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "disk", "arguments": "{}"}}
    said = [
        user_message("disk?", "k1"),
        {"role": "assistant", "content": None, "tool_calls": [call], "id": "k2"},
        {"role": "tool", "tool_call_id": "c1", "content": "40%", "id": "k3"},
    ]
    async with session_on(storage) as session:
        await session.sync(said)
        changed = {"name": "disk", "arguments": '{"host": "db1"}'}
        said[1] = {**said[1], "tool_calls": [{**call, "function": changed}]}
        assert sync_counts(await session.sync(said)) == (0, 1, 0, 2, 0)
        messages = await session.messages("disk?", budget=1_000)
        assert [one.get("tool_call_id") for one in messages] == [None, None, "c1"]
        assert messages[1]["tool_calls"][0]["function"] == changed


def call_message(key: str, *ids: str, text: str | None = None) -> dict[str, Any]:
    calls = [{"id": id, "type": "function", "function": {"name": "disk", "arguments": "{}"}} for id in ids]
    return {"role": "assistant", "content": text, "id": key} | ({"tool_calls": calls} if calls else {})


def result_message(key: str, id: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": f"of {id}", "id": key}


QUESTION, ANSWER = user_message("disk?", "k1"), call_message("k9", text="40 %")
REWRITES: dict[str, list[list[dict[str, Any]]]] = {
    "an answer that becomes a call": [
        [QUESTION, call_message("k2", text="let me look")],
        [QUESTION, call_message("k2", "c1", text="let me look")],
        [QUESTION, call_message("k2", "c1", "c2", text="let me look"), result_message("k3", "c1")],
        [QUESTION, call_message("k2", "c1", "c2", text="let me look"), result_message("k3", "c1"),
            result_message("k4", "c2"), ANSWER],
    ],
    "a call and its result under another id": [
        [QUESTION, call_message("k2", "c1"), result_message("k3", "c1"), ANSWER],
        [QUESTION, call_message("k2", "c2"), result_message("k3", "c2"), ANSWER],
    ],
    "another id before the result came": [
        [QUESTION, call_message("k2", "c1")],
        [QUESTION, call_message("k2", "c2")],
        [QUESTION, call_message("k2", "c2"), result_message("k3", "c2"), ANSWER],
    ],
    "a second call while the first is answered": [
        [QUESTION, call_message("k2", "c1"), result_message("k3", "c1")],
        [QUESTION, call_message("k2", "c1", "c2"), result_message("k3", "c1"), result_message("k4", "c2"), ANSWER],
    ],
    "a call that is found behind its result": [
        [QUESTION, call_message("k2", text="let me look"), result_message("k3", "c1"), ANSWER],
        [QUESTION, call_message("k2", "c1"), result_message("k3", "c1"), ANSWER],
    ],
    "a call that is no longer made": [
        [QUESTION, call_message("k2", "c1"), result_message("k3", "c1"), ANSWER],
        [QUESTION, call_message("k2", text="let me look"), result_message("k3", "c1"), ANSWER],
        [QUESTION, call_message("k2", "c1"), result_message("k3", "c1"), ANSWER],
    ],
    "a result that was removed while the other came twice": [
        [QUESTION, call_message("k2", "c1", "c2"), result_message("k3", "c1"), result_message("k4", "c2"), ANSWER],
        [QUESTION, call_message("k2", "c1", "c2"), result_message("k4", "c2"), ANSWER],
        [QUESTION, call_message("k2", "c1", "c2"), result_message("k4", "c2"), ANSWER, result_message("k5", "c2")],
    ],
    "calls that change places": [
        [QUESTION, call_message("k2", "c1"), result_message("k3", "c1"), call_message("k4", "c2"),
            result_message("k5", "c2"), ANSWER],
        [QUESTION, call_message("k2", "c2"), result_message("k3", "c2"), call_message("k4", "c1"),
            result_message("k5", "c1"), ANSWER],
    ],
}  # fmt: skip


async def shown_at_once(held: list[dict[str, Any]]) -> list[Any]:
    """What a session shows that has seen nothing but a list."""
    async with session_on(MemoryStorage(), "fresh") as fresh:
        await fresh.sync(held)
        return list(await fresh.messages("?", budget=10_000))


@pytest.mark.parametrize("name", REWRITES)
async def test_a_rewritten_call_is_shown_with_its_results(storage: Storage, name: str) -> None:
    async with session_on(storage) as session:
        for held in REWRITES[name]:
            await session.sync(held, gone="retract")
            assert list(await session.messages("?", budget=10_000)) == await shown_at_once(held)
            assert sync_counts(await session.sync(held, gone="retract")) == (0, 0, 0, len(held), 0)
        prompt = Prompt(OpenAIChat("gpt-4o")).history(session).user("next")
        openai_chat((await prompt.render(budget=10_000)).payload)


def call_without_key(id: str, text: str | None = None) -> dict[str, Any]:
    """A call without a key of its own."""
    return {name: value for name, value in call_message("", id, text=text).items() if name != "id"}


def result_without_key(id: str, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": text}


ANYHOW = [
    user_message("a"),
    call_without_key("c0"),
    result_without_key("c0", "x"),
    call_without_key("c0"),
    result_without_key("c0", "y"),
    user_message("b"),
    call_without_key("c0"),
    result_without_key("c0", "z"),
]
PARALLEL = [
    user_message("a"),
    call_message("k", "c1", "c2"),
    result_without_key("c1", "x"),
    result_without_key("c2", "y"),
    user_message("b"),
]
CHANGED: dict[str, tuple[list[Any], list[Any], tuple[int, ...], list[str]]] = {
    "a result": (
        [user_message("a"), call_without_key("c1"), result_without_key("c1", "x"), user_message("b")],
        [user_message("a"), call_without_key("c1"), result_without_key("c1", "-"),
            user_message("b"), user_message("c")],
        (1, 1, 0, 3, 0),
        ["a", "disk({})", "-", "b", "c"],
    ),
    "what is said beside a call": (
        [user_message("a"), call_without_key("c1", "so"), result_without_key("c1", "x")],
        [user_message("a"), call_without_key("c1", "so long"), result_without_key("c1", "x"), user_message("b")],
        (1, 1, 0, 2, 0),
        ["a", "so long\ndisk({})", "x", "b"],
    ),
    "a call and its result at once": (
        [user_message("a"), call_without_key("c1", "so"), result_without_key("c1", "x"), user_message("b")],
        [user_message("a"), call_without_key("c1"), result_without_key("c1", "-"), user_message("b")],
        (0, 2, 0, 2, 0),
        ["a", "disk({})", "-", "b"],
    ),
    "a result in a list trimmed at its start": (
        [user_message("a"), call_without_key("c1", "so"), result_without_key("c1", "x"), user_message("b")],
        [call_without_key("c1"), result_without_key("c1", "-"), user_message("b")],
        (0, 2, 0, 1, 0),
        ["a", "disk({})", "-", "b"],
    ),
    "results under an id that comes again": (
        ANYHOW,
        [*ANYHOW[:2], result_without_key("c0", "-"), call_without_key("c0"),
            result_without_key("c0", "-"), *ANYHOW[5:]],
        (0, 2, 0, 6, 0),
        ["a", "disk({})", "-", "disk({})", "-", "b", "disk({})", "z"],
    ),
    "a new call under an old id": (
        ANYHOW[:3],
        [*ANYHOW[:2], result_without_key("c0", "-"), *ANYHOW[3:]],
        (5, 1, 0, 2, 0),
        ["a", "disk({})", "-", "disk({})", "y", "b", "disk({})", "z"],
    ),
    "another turn under an old id": (
        [user_message("a"), call_without_key("c0", "so"), result_without_key("c0", "x")],
        [user_message("a"), call_without_key("c0", "so"), result_without_key("c0", "x"),
            user_message("b"), call_without_key("c0", "and"), result_without_key("c0", "y")],
        (3, 0, 0, 3, 0),
        ["a", "so\ndisk({})", "x", "b", "and\ndisk({})", "y"],
    ),
    "another turn instead, under an old id": (
        [user_message("a"), user_message("b"), call_without_key("c0", "so"), result_without_key("c0", "x")],
        [user_message("a"), call_without_key("c0", "and"), result_without_key("c0", "y")],
        (2, 0, 0, 1, 0),
        ["a", "b", "so\ndisk({})", "x", "and\ndisk({})", "y"],
    ),
    "results that changed places": (
        PARALLEL[:4],
        [*PARALLEL[:2], PARALLEL[3], result_without_key("c1", "-")],
        (0, 1, 0, 3, 0),
        ["a", "disk({})\ndisk({})", "-", "y"],
    ),
    "both results of one message": (
        PARALLEL,
        [*PARALLEL[:2], result_without_key("c1", "-"), result_without_key("c2", "-"), user_message("b")],
        (0, 2, 0, 3, 0),
        ["a", "disk({})\ndisk({})", "-", "-", "b"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("gone", ["keep", "retract"])
@pytest.mark.parametrize("name", CHANGED)
async def test_a_call_and_its_result_are_known_by_the_id_of_the_call(
    storage: Storage, name: str, gone: Any
) -> None:
    before, after, expected, left = CHANGED[name]
    if gone == "retract" and name == "another turn instead, under an old id":
        expected, left = (2, 0, 3, 1, 0), [left[0], *left[4:]]
    async with session_on(storage) as session:
        await session.sync(before)
        assert sync_counts(await session.sync(after, gone=gone)) == expected
        assert [entry.content for entry in await session.entries()] == left
        assert sync_counts(await session.sync(after, gone=gone)) == (0, 0, 0, len(after), 0)
        prompt = Prompt(OpenAIChat("gpt-4o")).history(session).user("next")
        openai_chat((await prompt.render(budget=10_000)).payload)


async def test_results_that_are_cleared_again_and_again_leave_one_log(storage: Storage) -> None:
    def held(cleared: int) -> list[dict[str, Any]]:
        pairs = [
            (call_without_key(f"c{n}"), result_without_key(f"c{n}", "-" if n < cleared else f"of {n}"))
            for n in range(20)
        ]
        return [user_message("begin"), *[one for pair in pairs for one in pair]]

    async with session_on(storage) as session:
        for cleared in (0, 2, 10, 20):
            done = await session.sync(held(cleared))
            assert done.inserted == ()
        assert list(await session.messages("?", budget=10_000)) == await shown_at_once(held(20))
        assert (await session.get_session_stats()).active_messages == 41


async def test_an_answer_that_was_streamed_is_one_message(storage: Storage) -> None:
    answer = "hello world, how are you"
    async with session_on(storage) as session:
        for length in (5, 10, 12, 24):
            await session.sync([user_message("q"), call_message("", text=answer[:length]) | {"id": None}])
        assert [entry.content for entry in await session.entries()] == ["q", answer]
        looked = call_without_key("c1", answer)
        done = await session.sync(
            [user_message("q"), looked, result_without_key("c1", "x"), user_message("so")]
        )
        assert sync_counts(done) == (2, 1, 0, 1, 0)
        shown = list(await session.messages("?", budget=10_000))
        assert shown == await shown_at_once(
            [user_message("q"), looked, result_without_key("c1", "x"), user_message("so")]
        )


@pytest.mark.parametrize(
    "after",
    [
        [
            user_message("q"),
            {"role": "assistant", "content": "no"},
            {"role": "assistant", "content": "no, yes"},
        ],
        [user_message("q"), {"role": "assistant", "content": "yes"}],
        [{"role": "assistant", "content": "no, yes"}],
        [user_message("q"), user_message("no, yes")],
        [user_message("q"), {"role": "assistant", "content": "no, yes", "id": "k"}],
    ],
)
async def test_what_only_looks_like_a_streamed_answer_is_another_message(
    storage: Storage, after: list[dict[str, Any]]
) -> None:
    async with session_on(storage) as session:
        await session.sync([user_message("q"), {"role": "assistant", "content": "no"}])
        done = await session.sync(after)
        assert (len(done.appended), done.replaced) == (1, ())


# ── answers that were cut short, ids that are made anew ─────────────────────────────────────────────────────────────


def assistant_message(text: str, key: str | None = None) -> dict[str, Any]:
    return {"role": "assistant", "content": text} | ({} if key is None else {"id": key})


async def test_an_answer_that_was_cut_short_replaces_what_it_was_going_to_be(storage: Storage) -> None:
    whole = "Your balance is 5 euros, and your PIN is 4471."
    async with session_on(storage) as session:
        await session.sync(
            [user_message("q"), assistant_message(whole), user_message("and?"), assistant_message("x")]
        )
        listed = [
            user_message("q"),
            assistant_message("Your balance is 5 euros"),
            user_message("and?"),
            assistant_message("x"),
            user_message("stop"),
        ]
        assert sync_counts(await session.sync(listed)) == (1, 1, 0, 3, 0)
        assert [entry.content for entry in await session.entries()] == [one["content"] for one in listed]
        assert sync_counts(await session.sync(listed)) == (0, 0, 0, 5, 0)


@pytest.mark.parametrize(
    "after",
    [
        [user_message("q"), assistant_message("yes")],  # an older list, from when the answer was streamed
        [user_message("q"), assistant_message("sure"), user_message("so")],
        [user_message("q"), user_message("yes"), user_message("so")],
        [assistant_message("yes"), user_message("so")],
    ],
)
async def test_what_only_looks_cut_short_is_another_message(storage: Storage, after: list[Any]) -> None:
    async with session_on(storage) as session:
        await session.sync([user_message("q"), assistant_message("yes, you may")])
        done = await session.sync(after)
        assert done.replaced == ()
        assert "yes, you may" in [entry.content for entry in await session.entries()]


async def test_ids_that_change_with_every_list_name_nothing(storage: Storage) -> None:
    said = ["a", "hello", "b", "ok", "c", "ok", "d"]

    def renamed(run: int, first: int, last: int) -> list[dict[str, Any]]:
        make = [user_message, assistant_message]
        return [make[at % 2](said[at], f"{run}-{at}") for at in range(first, last)]

    async with session_on(storage) as session:
        for run, (first, last) in enumerate([(0, 1), (0, 3), (0, 4), (0, 7), (0, 7), (2, 7)]):
            await session.sync(renamed(run, first, last))
            assert [entry.content for entry in await session.entries()] == said[: max(last, 1)]
        grown = [*renamed(9, 0, 7), assistant_message("I th", "9-7")]
        await session.sync(grown)
        await session.sync([*renamed(10, 0, 7), assistant_message("I think so, I am sure.", "10-7")])
        cut = [*renamed(11, 0, 7), assistant_message("I think so", "11-7"), user_message("stop", "11-8")]
        assert sync_counts(await session.sync(cut)) == (1, 1, 0, 7, 0)
        assert [entry.content for entry in await session.entries()] == [*said, "I think so", "stop"]


async def test_ids_of_answers_may_change_alone(storage: Storage) -> None:
    async with session_on(storage) as session:
        await session.sync(
            [
                user_message("a", "u1"),
                assistant_message("x", "r1"),
                user_message("b", "u2"),
                assistant_message("x", "r2"),
            ]
        )
        done = await session.sync(
            [
                user_message("a", "u1"),
                assistant_message("x", "s1"),
                user_message("b", "u2"),
                assistant_message("x", "s2"),
                user_message("c", "u3"),
            ]
        )
        assert sync_counts(done) == (1, 0, 0, 4, 0)


async def test_a_new_id_beside_ids_that_stay_is_a_new_message(storage: Storage) -> None:
    async with session_on(storage) as session:
        await session.sync([user_message("a", "u1"), user_message("yes", "u2")])
        assert sync_counts(await session.sync([user_message("a", "u1"), user_message("yes", "u3")])) == (
            1,
            0,
            0,
            1,
            0,
        )
        assert sync_counts(await session.sync([user_message("a", "new")])) == (1, 0, 0, 0, 0)


async def test_no_two_messages_of_a_list_are_one_of_the_log(storage: Storage) -> None:
    rules = {"role": "system", "content": "short answers"}
    async with session_on(storage) as session:
        await session.sync([rules, user_message("go on", "1")])
        done = await session.sync([user_message("go on", "2"), rules, user_message("go on", "3")])
        assert len({id for ids in done.ids for id in ids}) == 3
        assert [entry.content for entry in await session.entries()].count("go on") == 2


async def test_one_id_for_all_messages_names_none(storage: Storage) -> None:
    async with session_on(storage) as session:
        for last in (2, 3, 4, 4):
            held = [
                user_message("a", "x"),
                assistant_message("b", "x"),
                user_message("a", "x"),
                assistant_message("c", "x"),
            ][:last]
            await session.sync(held)
            assert await in_force(session) == "abac"[:last]


async def test_what_a_user_goes_on_with_is_another_message(storage: Storage) -> None:
    async with session_on(storage) as session:
        await session.sync([user_message("q"), user_message("no")])
        assert sync_counts(await session.sync([user_message("q"), user_message("no, yes")])) == (
            1,
            0,
            0,
            1,
            0,
        )


async def test_results_of_a_call_that_is_older_than_other_messages_come_with_it(storage: Storage) -> None:
    held = [QUESTION, call_message("k2", "c1"), result_message("k3", "c1"), ANSWER]
    async with session_on(storage) as session:
        await session.sync(held)
        held = [
            QUESTION,
            call_message("k2", "c1", "c2"),
            result_message("k3", "c1"),
            result_message("k4", "c2"),
            ANSWER,
        ]
        assert sync_counts(await session.sync(held)) == (1, 1, 0, 3, 1)
        messages = await session.messages("?", budget=10_000)
        assert [one.get("tool_call_id") for one in messages] == [None, None, None, "c1", "c2"]


@pytest.mark.parametrize("key", ["k2", "k3"])
async def test_a_call_that_came_with_an_edit_is_retracted_with_its_result(storage: Storage, key: str) -> None:
    async with session_on(storage) as session:
        await session.sync([QUESTION, call_message("k2", text="let me look")])
        await session.sync(
            [QUESTION, call_message("k2", "c1", text="let me look"), result_message("k3", "c1")]
        )
        await session.retract(key)
        assert await in_force(session) == "disk?"


@pytest.mark.parametrize("key", [None, "k1"])
async def test_bytes_are_kept_once_wherever_they_go(storage: Storage, key: str | None) -> None:
    kept: list[bytes] = []

    def keep(data: bytes, mime: str) -> str:
        kept.append(data)
        return f"https://example.org/{len(kept)}"

    url = "data:image/png;base64,aGVsbG8="
    picture = {**user_message("look", key), "content": [{"type": "image_url", "image_url": {"url": url}}]}
    for appended in (1, 0):
        async with session_on(storage, config=ACMSConfig(media=keep)) as session:
            assert len((await session.sync([picture])).appended) == appended
            assert sync_counts(await session.sync([picture])) == (0, 0, 0, 1, 0)
    assert kept == [b"hello"]


# ── errors ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ([user_message("a"), {"role": "user", "content": 5}], "messages[1].content"),
        ([user_message("a"), {"role": "bot", "content": "a"}], "messages[1].role"),
        ([{**user_message("a"), "key": "k1"}, {**user_message("b"), "key": "k1"}], "messages[1].key"),
        ([user_message("a"), {"role": "user", "content": [{"type": "image_url", "image_url": 5}]}],
         "messages[1].content[0].image_url"),
        ([user_message("a"), "b"], "messages[1]"),
        ("ab", "messages"),
    ],
)  # fmt: skip
async def test_a_bad_list_changes_nothing(storage: Storage, messages: Any, field: str) -> None:
    async with session_on(storage, config=ACMSConfig(strict=True)) as session:
        with pytest.raises(ValidationError) as caught:
            await session.sync(messages)
        assert caught.value.field == field
        assert await in_force(session) == ""


async def test_another_role_under_a_key_is_refused(storage: Storage) -> None:
    async with session_on(storage) as session:
        await session.sync([user_message("a", "k1")])
        with pytest.raises(ValidationError, match="was of the user"):
            await session.sync([{"role": "assistant", "content": "b", "id": "k1"}])


async def test_a_list_known_in_part_is_told_to_use_sync(storage: Storage) -> None:
    async with session_on(storage) as session:
        await session.ingest_many([user_message("a", "k1")])
        with pytest.raises(IdempotencyMismatchError) as caught:
            await session.ingest_many([user_message("a", "k1"), user_message("b", "k2")])
        assert any("sync(messages)" in option for option in caught.value.options)


async def test_what_is_redacted_before_it_is_stored_is_known_again(storage: Storage) -> None:
    config = ACMSConfig(privacy=PrivacyConfig(mode=Privacy.REDACT, redact_before_persist=True))
    said = [user_message("mail me at maya@example.org", "maya@example.org")]
    async with session_on(storage, config=config) as session:
        await session.sync(said)
        assert sync_counts(await session.sync(said)) == (0, 0, 0, 1, 0)
        assert "maya@" not in (await session.get("maya@example.org")).content


async def test_what_is_redacted_for_its_own_sake_stays_so_and_is_known_again(storage: Storage) -> None:
    config = ACMSConfig(privacy=PrivacyConfig(redact_before_persist=True))
    one, two = user_message("mail me at maya@example.org", "maya@example.org"), user_message("call me", "k2")
    async with session_on(storage, config=config) as session:
        await session.sync([{**one, "privacy": "redact"}, two])
        assert sync_counts(await session.sync([one, two])) == (0, 0, 0, 2, 0)
        changed = {**one, "content": "mail me at maya@example.com"}
        assert sync_counts(await session.sync([changed, {**two, "content": "now"}])) == (0, 1, 0, 1, 0)
        assert "maya@" not in await in_force(session)


# ── many at once, and by chance ─────────────────────────────────────────────────────────────────────────────────────


async def test_sessions_that_sync_at_once_agree(storage: Storage) -> None:
    messages = [user_message(f"message {n}") for n in range(20)]
    sessions = [ACMS("s", storage, None) for _ in range(4)]
    try:
        done = await asyncio.gather(
            *[session.sync(messages[: 5 * n]) for n, session in enumerate(sessions, 1)]
        )
        assert sum(len(one.appended) for one in done) == 20
        assert [entry.content for entry in await sessions[0].entries()] == [
            one["content"] for one in messages
        ]
    finally:
        for session in sessions:
            await session.close()


PROCESS = """
import sys
from acms import open_storage
from acms.sync import ACMS

with ACMS("s", open_storage(sys.argv[1]), None) as session:
    for upto in range(1, 41):
        session.sync([{"role": "user", "content": f"message {n}"} for n in range(upto)])
"""


async def test_two_processes_at_once(tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    command = (sys.executable, "-c", PROCESS, url)
    running = [await asyncio.create_subprocess_exec(*command) for _ in range(2)]
    assert [await process.wait() for process in running] == [0, 0]
    async with ACMS("s", open_storage(url), None) as session:
        assert [entry.content for entry in await session.entries()] == [f"message {n}" for n in range(40)]


KILLED = """
import asyncio, os, signal, sys
from acms import ACMS, open_storage

async def main():
    session = ACMS("s", open_storage(sys.argv[1]), None)
    await session.sync([{"role": "user", "content": f"message {n}", "id": f"k{n}"} for n in range(200)])
    print("ready", flush=True)
    changed = [{"role": "user", "content": f"edited {n}", "id": f"k{n}"} for n in range(0, 200, 2)]
    new = [{"role": "user", "content": f"new {n}"} for n in range(200)]
    asyncio.get_running_loop().call_later(float(sys.argv[2]), os.kill, os.getpid(), signal.SIGKILL)
    await session.sync([*changed, *new], gone="retract")
    await asyncio.sleep(5)

asyncio.run(main())
"""


@pytest.mark.parametrize(
    "after", [0.0, 0.05, 0.3, *(pytest.param(after, marks=pytest.mark.faults) for after in (0.02, 0.1))]
)
async def test_a_killed_sync_leaves_all_or_nothing(tmp_path: Any, after: float) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    command = (sys.executable, "-c", KILLED, url, str(after))
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL)
    assert await process.wait() == -signal.SIGKILL
    old = [f"message {n}" for n in range(200)]
    edited = [f"edited {n}" for n in range(0, 200, 2)]
    async with ACMS("s", open_storage(url), None) as session:
        found = [entry.content for entry in await session.entries()]
    assert found in (old, [*edited, *[f"new {n}" for n in range(200)]])


def test_blocking_code_syncs_too() -> None:
    with sync.ACMS("s", MemoryStorage(), None) as session:
        assert len(session.sync(user_messages("ab")).appended) == 2


Step = tuple[str, int, str]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(("trim", "append", "remove", "insert", "edit")),
        st.integers(0, 9),
        st.sampled_from("abcde"),
    ),
    max_size=12,
)


def change_list(held: list[dict[str, Any]], step: Step, number: int, *, keyed: bool) -> list[dict[str, Any]]:
    """Return the list of a framework after something happened to it."""
    verb, place, text = step
    at = place % len(held) if held else 0
    key = f"k{number}" if keyed else None
    if verb == "trim":
        return held[at:]
    if verb == "remove":
        return held[:at] + held[at + 1 :]
    if verb == "insert":
        return [*held[:at], user_message(text, key), *held[at:]]
    if verb == "edit" and held and keyed:
        return [*held[:at], {**held[at], "content": text * 2}, *held[at + 1 :]]
    return [*held, user_message(text, key)]


@given(STEPS, st.booleans(), st.booleans())
@example([("append", 0, "b"), ("append", 0, "a"), ("append", 0, "a"), ("insert", 0, "a")], False, True)
def test_a_plain_model(steps: list[Step], keyed: bool, retract: bool) -> None:
    async def work() -> None:
        held: list[dict[str, Any]] = []
        async with ACMS("s", MemoryStorage(), None) as session:
            for number, step in enumerate(steps):
                before = [entry.content for entry in await session.entries()]
                held = change_list(held, step, number, keyed=keyed)
                done = await session.sync(held, gone="retract" if retract else "keep")
                after = [entry.content for entry in await session.entries()]
                said = [one["content"] for one in held]
                assert_synced(before, after, said, done, keyed=keyed, retract=retract)
                again = await session.sync(held, gone="retract" if retract else "keep")
                assert sync_counts(again) == (0, 0, 0, len(held), 0)

    asyncio.run(work())


def assert_synced(
    before: list[str], after: list[str], said: list[str], done: Synced, *, keyed: bool, retract: bool
) -> None:
    """What a log holds after a list was handed over."""
    assert len(done.appended) + len(done.replaced) + len(done.unchanged) == len(said)
    assert not Counter(said) - Counter(after)
    if retract and not keyed:
        assert after[len(after) - len(said) :] == said
    if not retract:
        assert done.retracted == ()
        assert len(after) == len(before) + len(done.appended)
        if not keyed:
            rest = iter(after)
            assert all(one in rest for one in said)


# ── calls and results by chance ─────────────────────────────────────────────────────────────────────────────────────


@st.composite
def generated_lists(draw: st.DrawFn) -> list[list[dict[str, Any]]]:
    """A list of a framework again and again: messages come, calls are streamed, renamed, added, dropped, removed."""
    ids = (
        st.sampled_from(["c1", "c2", "c3"])
        if draw(st.booleans())
        else st.integers(0, 10**6).map("c{}".format)
    )
    held = [user_message("begin", "k")]
    lists = [held]
    for number in range(draw(st.integers(1, 12))):
        key, at = f"k{number}", draw(st.integers(1, max(1, len(held) - 1)))
        one = held[at] if at < len(held) else {}
        asked = [ask["id"] for ask in one.get("tool_calls", ())]
        now = draw(
            st.sampled_from(("user", "answer", "call", "result", "result", "recall", "rename", "remove"))
        )
        held = list(held)
        if now == "recall" and one.get("role") == "assistant":
            held[at] = call_message(
                one["id"], *draw(st.lists(ids, max_size=3, unique=True)), text=one["content"]
            )
        elif now == "rename" and asked:
            old, new = draw(st.sampled_from(asked)), draw(ids)
            kept = list(dict.fromkeys(new if id == old else id for id in asked))
            held[at] = call_message(one["id"], *kept, text=one["content"])
            for place, later in enumerate(held[at + 1 :], at + 1):
                if later.get("tool_call_id") == old:
                    held[place] = result_message(later["id"], new)
        elif now == "remove" and one:
            del held[at]
        elif now == "call":
            held.append(
                call_message(key, *draw(st.lists(ids, min_size=1, max_size=2, unique=True)), text="look")
            )
        elif now == "result":
            known = [ask["id"] for said in held for ask in said.get("tool_calls", ())]
            held.append(result_message(key, draw(st.sampled_from(known) if known else ids)))
        elif now == "answer":
            held.append(call_message(key, text=draw(st.sampled_from(("so", "thanks")))))
        else:
            held.append(user_message("and", key))
        lists.append(held)
    return lists


@given(generated_lists())
def test_a_list_is_shown_as_if_it_had_never_been_another(lists: list[list[dict[str, Any]]]) -> None:
    async def work() -> None:
        async with session_on(MemoryStorage()) as session:
            for held in lists:
                await session.sync(held, gone="retract")
                messages = list(await session.messages("?", budget=10_000))
                assert messages == await shown_at_once(held)
                assert sync_counts(await session.sync(held, gone="retract")) == (0, 0, 0, len(held), 0)
            prompt = Prompt(OpenAIChat("gpt-4o")).history(session).user("next")
            openai_chat((await prompt.render(budget=10_000)).payload)

    asyncio.run(work())


@pytest.mark.parametrize("gone", ["keep", "retract"])
async def test_a_list_with_new_ids_may_be_handed_over_again(storage: Storage, gone: Any) -> None:
    talk = [user_message, assistant_message, user_message, assistant_message, user_message]
    texts = ["Which database?", "PostgreSQL.", "Which port?", "5432.", "And the user?"]

    def listed(run: int, count: int) -> list[dict[str, Any]]:
        return [talk[at](texts[at], f"{run}-{at}") for at in range(count)]

    async with session_on(storage) as session:
        await session.sync(listed(1, 4), gone=gone)
        assert sync_counts(await session.sync(listed(2, 5), gone=gone)) == (1, 0, 0, 4, 0)
        # The log knows the last id of this list now, and none of the others.
        assert sync_counts(await session.sync(listed(2, 5), gone=gone)) == (0, 0, 0, 5, 0)
        assert [entry.content for entry in await session.entries()] == texts
        trimmed = listed(3, 5)[2:]
        for _ in range(2):
            assert (
                await session.sync([*trimmed, assistant_message("orders.", "3-5")], gone=gone)
            ).inserted == ()
        assert [entry.content for entry in await session.entries()] == [*texts, "orders."]


async def test_a_key_names_the_newest_edit_of_a_retracted_message(storage: Storage) -> None:
    async with session_on(storage) as session:
        await session.ingest("user", "MySQL.", idempotency_key="m1")
        await session.replace("m1", "PostgreSQL.")
        await session.retract("m1")
        assert (await session.get("m1")).content == "PostgreSQL."
        await session.ingest("user", "Redis.", idempotency_key="m2")
        await session.retract("m2")
        assert (await session.get("m2")).content == "Redis."
