"""Two sides of a story: the entries in force on one and not on the other."""

from __future__ import annotations

from typing import Any

import pytest

from acms import ACMS, Entry, NotFoundError, ValidationError, open_storage
from acms.storage import WrapperStorage
from acms.testing.logs import append_drafts, draft_fact, draft_retraction, draft_summary
from tests.support.talk import Storage, contents_of, ingest_texts, session_on, tool_turn


async def test_two_forks_differ_by_what_each_did(storage: Storage) -> None:
    parent = session_on(storage)
    ids = await ingest_texts(parent, "orders uses MySQL", "it runs on db1", "anything else?")
    one = await parent.fork(session_id="one")
    other = await parent.fork(session_id="other")
    await one.replace(ids[0], "orders uses PostgreSQL")
    await one.ingest("user", "no, that is all")
    await tool_turn(other, "call_1", "40% used", text="let me look")
    await other.retract(ids[1])
    delta = await one.diff(other)
    assert (delta.left, delta.right, delta.common) == ("one v5", "other v6", 3)
    assert contents_of(delta.messages.removed) == ["it runs on db1", "no, that is all"]
    assert contents_of(delta.messages.added)[-1] == "40% used"
    (change,) = delta.messages.changed
    assert (change.before.content, change.after.content) == ("orders uses PostgreSQL", "orders uses MySQL")
    assert str(delta).startswith("--- one v5\n+++ other v6\n    the same up to v3\n@@ messages: 2 added")
    assert "- v4 user: orders uses PostgreSQL\n+ v1 user: orders uses MySQL" in str(delta)
    assert not await one.diff(one)
    assert not await parent.diff(parent.at(3))


async def test_versions_and_tags_of_one_session_are_sides_too(storage: Storage) -> None:
    session = session_on(storage)
    await ingest_texts(session, "a", "b")
    await session.tag("start")
    await ingest_texts(session, "c")
    for other in (2, "start", session.at(2)):
        delta = await session.diff(other)
        assert contents_of(delta.messages.removed) == ["c"]
        assert (delta.left, delta.right, delta.common) == ("user_123 v3", "user_123 v2", 2)
    assert contents_of((await session.at(1).diff("start")).messages.added) == ["b"]
    assert contents_of((await session.at(0).diff(session)).messages.added) == ["a", "b", "c"]
    with pytest.raises(NotFoundError, match="ends at version 3"):
        await session.diff(9)
    with pytest.raises(NotFoundError):
        await session.at(9).diff(session)
    with pytest.raises(NotFoundError, match="there are: start"):
        await session.diff("nowhere")


async def test_facts_and_summaries_differ_as_what_they_say_and_stand_for(storage: Storage) -> None:
    parent = session_on(storage)
    await ingest_texts(parent, "a", "b", "c")
    child = await parent.fork(at=3, session_id="child")
    mine = await storage.context("user_123")
    theirs = await storage.context("child")
    address = {"subject": "host", "attribute": "name"}
    await append_drafts(
        storage, mine, draft_fact("host is db1", data={**address, "value": "db1"}), draft_fact("same")
    )
    await append_drafts(
        storage, theirs, draft_fact("host is db2", data={**address, "value": "db2"}), draft_fact("same")
    )
    await append_drafts(storage, mine, draft_summary(1, 2))
    delta = await parent.diff(child)
    assert [(change.before.content, change.after.content) for change in delta.facts.changed] == [
        ("host is db1", "host is db2")
    ]
    assert (delta.facts.added, delta.facts.removed) == ((), ())
    assert contents_of(delta.messages.added) == ["a", "b"]
    assert contents_of(delta.summaries.removed) == ["what was said from 1 to 2"]
    await append_drafts(storage, mine, draft_retraction(6))
    assert not (await parent.diff(child)).messages


async def test_unrelated_sessions_and_namespaces_can_be_compared(storage: Storage) -> None:
    one = session_on(storage, "one")
    other = session_on(storage, "other", namespace="elsewhere")
    await ingest_texts(one, "a")
    await ingest_texts(other, "a", "b")
    delta = await one.diff(other)
    assert delta.common == 0
    assert (contents_of(delta.messages.removed), contents_of(delta.messages.added)) == (["a"], ["a", "b"])
    assert "nothing in common" in str(delta)


async def test_sides_on_two_stores_are_refused(storage: Storage) -> None:
    one = session_on(storage)
    await ingest_texts(one, "a")
    async with open_storage("memory://") as elsewhere:
        other = session_on(elsewhere)
        await ingest_texts(other, "a")
        with pytest.raises(ValidationError) as refused:
            await one.diff(other)
        assert refused.value.field == "other"


class Reading(WrapperStorage):
    """Counts the entries it hands out."""

    entries = 0

    async def read(self, context: str, **given: Any) -> list[Entry]:
        found = await self.inner.read(context, **given)
        self.entries += len(found)
        return found


async def test_what_two_forks_share_is_not_read(storage: Storage) -> None:
    parent = session_on(storage)
    for start in range(0, 2000, 500):
        await parent.ingest_many(
            [{"role": "user", "content": f"point {n}"} for n in range(start, start + 500)]
        )
    child = await parent.fork(session_id="child")
    entries = (await parent.history(limit=500)).entries
    await child.replace(entries[100].id, "corrected")
    await child.retract(entries[400].id)
    await parent.ingest("user", "more")
    counted = Reading(storage)
    one: ACMS = session_on(counted)
    delta = await one.diff(session_on(counted, "child"))
    assert len(delta.messages.changed) == 1
    assert len(delta.messages.removed) == 2
    assert counted.entries < 50
