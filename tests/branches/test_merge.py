"""Merging branches: copies, conflicts, retractions, and entries that never come back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from acms import (
    ACMS,
    ACMSConfig,
    ConflictError,
    Fact,
    GoneError,
    Kind,
    MergeConflict,
    MergeConflictError,
    Origin,
    Privacy,
    PrivacyConfig,
    Role,
    SessionNotFoundError,
    State,
    ToolResult,
    ValidationError,
    open_storage,
)
from acms.log.active_entries import is_merge_record
from acms.log.merges import MergeStrategy
from acms.model import ContextQuery, Draft
from acms.storage import append_rules
from acms.testing import HashEmbedder, sound
from acms.testing.logs import append_drafts, draft_fact, draft_summary
from tests.support.talk import LONG_EPISODES, Storage, contents_of, ingest_texts, session_on, tool_turn


async def session_and_fork(storage: Storage, *said: str) -> tuple[ACMS, ACMS, list[str]]:
    """A session and a fork of it, behind some messages."""
    ours = session_on(storage, "ours")
    ids = await ingest_texts(ours, *(said or ("a", "b", "c")))
    return ours, await ours.fork(session_id="theirs"), ids


async def window_contents(session: ACMS) -> list[str]:
    return contents_of(await session.window(10_000))


async def read_entries(session: ACMS, **given: Any) -> list[Any]:
    return await session.storage.read(await session.context_id() or "", **given)


async def only_conflict(conflicts: tuple[MergeConflict, ...]) -> MergeConflict:
    (one,) = conflicts
    return one


def member_draft(value: str, *before: Fact, **data: Any) -> Draft:
    """A member of the team who takes the place of others."""
    data = {"subject": "team", "attribute": "member", "value": value, "cardinality": "many", **data}
    places = tuple((one.version, one.version) for one in before)
    return draft_fact(f"team, member: {value}", data=data, replaces=places)


# ── what comes ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_what_the_other_side_said_comes_in_its_order_with_all_that_is_known_of_it(
    storage: Storage,
) -> None:
    ours, theirs, _ = await session_and_fork(storage)
    await theirs.ingest(
        "user", "d", actor_id="ann", metadata={"run": 1}, markers=["goal"], idempotency_key="k"
    )
    await tool_turn(theirs, "call_1", "40%")
    await ours.ingest("user", "meanwhile")
    before = await read_entries(theirs)
    plan = await ours.merge(theirs, dry_run=True)
    assert (plan.version, plan.common, plan.ours, plan.theirs) == (None, 3, "ours v4", "theirs v6")
    assert len(await window_contents(ours)) == 4
    done = await ours.merge(theirs)
    assert contents_of(done.appended) == contents_of(plan.appended) == contents_of(before)[3:]
    assert (await window_contents(ours))[3:] == ["meanwhile", "d", before[4].content, "40%"]
    copies = (await read_entries(ours))[4:7]
    for copy, original in zip(copies, before[3:], strict=True):
        assert copy.sources == (original.id,)
        for name in ("role", "actor", "metadata", "markers", "parts", "group", "created_at", "key", "origin"):
            assert getattr(copy, name) == getattr(original, name)
    assert (await ours.get("k")).id == copies[0].id
    record = (await read_entries(ours))[-1]
    assert is_merge_record(record)
    assert (record.version, record.data["session"], record.data["version"]) == (done.version, "theirs", 6)
    assert await read_entries(theirs) == before
    await sound(storage, await ours.context_id() or "")


async def test_edits_retractions_and_facts_follow(storage: Storage) -> None:
    ours, theirs, ids = await session_and_fork(storage)
    await ours.state("api", "port", "80")
    theirs = await ours.fork(session_id="second")
    await theirs.replace(ids[0], "A")
    await theirs.retract(ids[1])
    await theirs.state("api", "port", "81")
    await theirs.state("db", "engine", "PostgreSQL")
    new = await theirs.ingest("user", "d")
    await theirs.replace(new, "D")
    done = await ours.merge(theirs)
    assert await window_contents(ours) == ["A", "c", "D"]
    assert {fact.subject: fact.value for fact in await ours.facts()} == {"api": "81", "db": "PostgreSQL"}
    assert contents_of(done.retracted) == ["b"]
    assert next((one.before.content, one.after.content) for one in done.changed) == ("a", "A")
    assert "@@ changed @@" in str(done)
    await theirs.replace(new, "DD")
    assert [one.after.content for one in (await ours.merge(theirs)).changed] == ["DD"]
    assert await window_contents(ours) == ["A", "c", "DD"]


async def test_a_merge_is_done_once_and_goes_on_from_there(storage: Storage) -> None:
    ours, theirs, _ = await session_and_fork(storage)
    await ingest_texts(theirs, "d")
    assert await ours.merge(theirs)
    again = await ours.merge(theirs)
    assert (bool(again), again.version, "already up to date" in str(again)) == (False, None, True)
    await ingest_texts(theirs, "e")
    assert contents_of((await ours.merge(theirs)).appended) == ["e"]
    assert contents_of((await theirs.merge(ours)).appended) == []
    grand = await theirs.fork(session_id="grand")
    await ingest_texts(grand, "f")
    assert contents_of((await ours.merge(grand)).appended) == ["f"]
    assert await window_contents(ours) == ["a", "b", "c", "d", "e", "f"]


async def test_a_side_may_be_a_view(storage: Storage) -> None:
    ours, theirs, _ = await session_and_fork(storage)
    await ingest_texts(theirs, "d")
    await theirs.tag("good")
    await ingest_texts(theirs, "e")
    assert contents_of((await ours.merge(theirs.at("good"))).appended) == ["d"]
    assert contents_of((await ours.merge(theirs)).appended) == ["e"]


async def test_episodes_go_on_and_stay_apart(storage: Storage) -> None:
    ours = session_on(storage, "ours")
    await ingest_texts(ours, "a", close=True)
    theirs = await ours.fork(session_id="theirs")
    await ingest_texts(theirs, "b", close=True)
    await ingest_texts(theirs, "c")
    await ingest_texts(ours, "x")
    await ours.merge(theirs)
    await ingest_texts(ours, "d")
    told = [(one.ordinal, one.messages, one.status, one.reason) for one in await ours.episodes()]
    assert told == [(1, 1, "closed", "manual"), (2, 2, "closed", "manual"), (3, 2, "open", None)]


async def test_an_open_call_of_either_side_can_still_be_answered(storage: Storage) -> None:
    ours, theirs, _ = await session_and_fork(storage)
    await tool_turn(theirs, "there", None)
    await tool_turn(ours, "here", None)
    await ours.merge(theirs)
    await ours.ingest("tool", "one", tool_call_id="here")
    await ours.ingest("tool", "two", tool_call_id="there")
    groups = [one.group for one in await read_entries(ours, kinds=(Kind.MESSAGE,), after=3)]
    assert groups[0] == groups[2] != groups[1] == groups[3]


async def test_a_result_without_a_call_comes_like_any_message(storage: Storage) -> None:
    ours, theirs, _ = await session_and_fork(storage)
    await theirs.ingest("tool", "of nobody", tool_call_id="c1")
    await tool_turn(ours, "c1", None)
    await ours.merge(theirs)
    await ours.ingest("tool", "one", tool_call_id="c1")
    assert [one.group is None for one in await read_entries(ours, kinds=(Kind.MESSAGE,), after=3)] == [
        False,
        True,
        False,
    ]


# ── conflicts ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_answers_to_no_open_call_come_as_what_was_said(storage: Storage) -> None:
    ours, theirs, _ = await session_and_fork(storage)
    await theirs.ingest("tool", "nobody asked", tool_call_id="c9")
    await theirs.ingest("assistant", "", tool_calls=[{"id": "c1", "name": "look", "arguments": "{}"}])
    await theirs.ingest("tool", "40 %", tool_call_id="c1")
    await theirs.ingest("tool", "41 %", tool_call_id="c1")
    done = await ours.merge(theirs)
    assert [entry.content for entry in done.appended if entry.role == "tool"] == [
        "nobody asked",
        "40 %",
        "41 %",
    ]
    assert [entry.group is None for entry in done.appended] == [True, False, False, True]


async def test_two_edits_of_one_message_conflict(storage: Storage) -> None:
    ours, theirs, ids = await session_and_fork(storage)
    await ours.replace(ids[0], "ours")
    await theirs.replace(ids[0], "theirs")
    await ingest_texts(theirs, "d")
    with pytest.raises(MergeConflictError, match="modify/modify") as refused:
        await ours.merge(theirs)
    assert any("theirs" in option for option in refused.value.options)
    one = await only_conflict(refused.value.conflicts)
    assert (one.kind, one.type, one.subject, one.resolution) == ("message", "modify/modify", ids[0], None)
    assert [contents_of(side) for side in (one.base, one.ours, one.theirs)] == [["a"], ["ours"], ["theirs"]]
    assert await window_contents(ours) == ["ours", "b", "c"]
    kept = await ours.merge(theirs, strategy="ours")
    assert (await only_conflict(kept.conflicts)).resolution == "ours"
    assert await window_contents(ours) == ["ours", "b", "c", "d"]
    assert not (await theirs.merge(ours)).conflicts
    assert await window_contents(theirs) == ["ours", "b", "c", "d"]


async def test_an_edit_and_a_retraction_conflict_and_theirs_brings_the_message_back(storage: Storage) -> None:
    ours, theirs, ids = await session_and_fork(storage)
    await ours.retract(ids[0])
    await theirs.replace(ids[0], "A")
    plan = await ours.merge(theirs, strategy="theirs", dry_run=True)
    assert (await only_conflict(plan.conflicts)).type == "modify/delete"
    await ours.merge(theirs, strategy="theirs")
    assert await window_contents(ours) == ["A", "b", "c"]


@pytest.mark.parametrize(("strategy", "answer"), [("ours", "here"), ("theirs", "there")])
async def test_a_tool_group_continued_on_both_sides_is_taken_whole(
    storage: Storage, strategy: Any, answer: str
) -> None:
    ours = session_on(storage, "ours")
    await tool_turn(ours, "call_1", None, text="look")
    theirs = await ours.fork(session_id="theirs")
    await ours.ingest("tool", "here", tool_call_id="call_1")
    await theirs.ingest("tool", "there", tool_call_id="call_1")
    one = await only_conflict((await ours.merge(theirs, dry_run=True)).conflicts)
    assert (one.kind, contents_of(one.ours)[-1], contents_of(one.theirs)[-1]) == (
        "tool_group",
        "here",
        "there",
    )
    await ours.merge(theirs, strategy=strategy)
    await theirs.merge(ours)
    for session in (ours, theirs):
        shown = [part for item in await session.window(10_000) for part in item.parts]
        assert [part.output for part in shown if isinstance(part, ToolResult)] == [answer]


async def test_a_tool_group_continued_there_alone_comes_whole(storage: Storage) -> None:
    ours = session_on(storage, "ours")
    await tool_turn(ours, "call_1", None)
    theirs = await ours.fork(session_id="theirs")
    await theirs.ingest("tool", "40%", tool_call_id="call_1")
    await ingest_texts(ours, "meanwhile")
    await ours.merge(theirs)
    group = [one.group for one in await read_entries(ours, kinds=(Kind.MESSAGE,))]
    assert (group[0], len(group)) == (group[2], 3)
    assert (await window_contents(ours))[-1] == "40%"


async def test_an_erased_answer_is_no_part_of_the_group_that_comes(storage: Storage) -> None:
    ours = session_on(storage, "ours")
    calls = [{"id": id, "name": "disk", "arguments": "{}"} for id in ("c1", "c2", "c3")]
    await ours.ingest("assistant", "", tool_calls=calls)
    common = await ours.ingest("tool", "secret", tool_call_id="c1")
    theirs = await ours.fork(session_id="theirs")
    await ours.erase(common)
    await ours.ingest("tool", "here", tool_call_id="c2")
    await theirs.ingest("tool", "there", tool_call_id="c2")
    await theirs.erase(await theirs.ingest("tool", "a slip", tool_call_id="c3"))
    done = await ours.merge(theirs, strategy="theirs")
    assert (await only_conflict(done.conflicts)).kind == "tool_group"
    assert (contents_of(done.appended), contents_of(done.retracted)) == (["there"], ["here"])
    said = [entry.content for entry in await read_entries(ours, kinds=(Kind.MESSAGE,))]
    assert said[1:] == ["", "here", "there"]


async def test_a_call_that_came_with_an_edit_there_comes_with_its_result(storage: Storage) -> None:
    asked = {"id": "c1", "type": "function", "function": {"name": "disk", "arguments": "{}"}}
    said: list[dict[str, Any]] = [
        {"id": "k1", "role": "user", "content": "disk?"},
        {"id": "k2", "role": "assistant", "content": "let me look"},
    ]
    ours = session_on(storage, "ours")
    await ours.sync(said)
    theirs = await ours.fork(session_id="theirs")
    said[1] = {**said[1], "tool_calls": [asked]}
    await theirs.sync([*said, {"id": "k3", "role": "tool", "tool_call_id": "c1", "content": "40 %"}])
    await ours.merge(theirs)
    messages = await ours.messages("?", budget=1_000)
    assert messages == await theirs.messages("?", budget=1_000)
    assert [one.get("tool_call_id") for one in messages] == [None, None, "c1"]
    await ours.close()


async def test_one_address_with_two_values_conflicts_and_a_set_does_not(storage: Storage) -> None:
    ours, theirs, _ = await session_and_fork(storage)
    for session, value in ((ours, "80"), (theirs, "81")):
        await session.state("api", "port", value)
        await session.state("team", "member", value, cardinality="many")
        await session.state("both", "say", "the same")
    one = await only_conflict((await ours.merge(theirs, dry_run=True)).conflicts)
    assert (one.kind, one.type, one.subject) == ("fact", "add/add", "api / port")
    await ours.merge(theirs, strategy="theirs")
    known = sorted((fact.subject, fact.value) for fact in await ours.facts())
    assert known == [("api", "81"), ("both", "the same"), ("team", "80"), ("team", "81")]


async def test_values_that_stand_beside_others_change_and_go_one_by_one(storage: Storage) -> None:
    ours, _, _ = await session_and_fork(storage)
    known = {
        name: await ours.state("team", "member", name, cardinality="many")
        for name in ("Ann", "Bob", "Cid", "Dan", "Eve")
    }
    theirs = await ours.fork(session_id="second")
    here, there = [await storage.context(name) for name in ("ours", "second")]
    await append_drafts(storage, there, member_draft("Anna", known["Ann"]))
    await theirs.retract(known["Bob"].id)
    for session, context in ((ours, here), (theirs, there)):
        await session.retract(known["Cid"].id)
        await append_drafts(storage, context, member_draft("Dana", known["Dan"]))
    done = await ours.merge(theirs)
    assert done.conflicts == ()
    assert contents_of(done.retracted) == ["team, member: Bob"]
    assert [(one.before.content, one.after.content) for one in done.changed] == [
        ("team, member: Ann", "team, member: Anna")
    ]
    assert sorted(fact.value for fact in await ours.facts()) == ["Anna", "Dana", "Eve"]
    assert not await ours.merge(theirs)


@pytest.mark.parametrize(("strategy", "value"), [("ours", "Anne"), ("theirs", "Anna")])
async def test_a_value_beside_others_that_both_sides_change_conflicts(
    storage: Storage, strategy: MergeStrategy, value: str
) -> None:
    ours, _, _ = await session_and_fork(storage)
    known = [await ours.state("team", "member", name, cardinality="many") for name in ("Ann", "An", "Bob")]
    theirs = await ours.fork(session_id="second")
    await append_drafts(storage, await storage.context("ours"), member_draft("Anne", *known[:2]))
    await append_drafts(storage, await storage.context("second"), member_draft("Anna", *known[:2]))
    found = (await ours.merge(theirs, dry_run=True)).conflicts
    assert {(one.kind, one.type, one.subject) for one in found} == {
        ("fact", "modify/modify", "team / member")
    }
    sides = [
        [entry.data["value"] for side in (one.base, one.ours, one.theirs) for entry in side] for one in found
    ]
    assert sides == [["Ann", "Anne", "Anna"], ["An", "Anne", "Anna"]]
    done = await ours.merge(theirs, strategy=strategy)
    assert {one.resolution for one in done.conflicts} == {strategy}
    assert sorted(fact.value for fact in await ours.facts()) == [value, "Bob"]


@pytest.mark.parametrize(("strategy", "left"), [("ours", ["Anne"]), ("theirs", [])])
async def test_a_value_beside_others_that_one_side_changes_and_the_other_ends_conflicts(
    storage: Storage, strategy: MergeStrategy, left: list[str]
) -> None:
    ours, _, _ = await session_and_fork(storage)
    known = await ours.state("team", "member", "Ann", cardinality="many")
    theirs = await ours.fork(session_id="second")
    await append_drafts(storage, await storage.context("ours"), member_draft("Anne", known, trust="tool"))
    await theirs.retract(known.id)
    one = await only_conflict((await ours.merge(theirs, strategy=strategy)).conflicts)
    assert (one.type, one.theirs, one.resolution) == ("modify/delete", (), strategy)
    assert [fact.value for fact in await ours.facts()] == left


async def test_what_a_tool_said_ends_nothing_that_the_user_said(storage: Storage) -> None:
    ours, theirs, _ = await session_and_fork(storage)
    context = await storage.context("theirs")
    data = {"subject": "db", "attribute": "engine", "value": "EvilDB", "cardinality": "one", "trust": "tool"}
    await append_drafts(storage, context, draft_fact("db, engine: EvilDB", data=data))
    await ours.state("db", "engine", "PostgreSQL")
    one = await only_conflict((await ours.merge(theirs, strategy="theirs")).conflicts)
    assert (one.resolution, one.reason) == ("ours", "tool ends nothing that user said")
    assert [fact.value for fact in await ours.facts()] == ["PostgreSQL"]


async def test_one_key_for_two_messages_conflicts(storage: Storage) -> None:
    ours, theirs, _ = await session_and_fork(storage)
    for session, text in ((ours, "here"), (theirs, "there")):
        await session.ingest("user", text, idempotency_key="k")
        await session.ingest("user", "the same", idempotency_key="s")
    one = await only_conflict((await ours.merge(theirs, dry_run=True)).conflicts)
    assert (one.kind, one.type, one.subject) == ("key", "add/add", "k")
    await ours.merge(theirs, strategy="theirs")
    assert await window_contents(ours) == ["a", "b", "c", "there", "the same"]


@pytest.mark.parametrize("strategy", ["refuse", "ours", "theirs"])
async def test_a_fork_that_did_not_know_the_keys_it_inherits_can_be_merged(
    storage: Storage, strategy: MergeStrategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = session_on(storage, "ours")
    for key in "abc":
        await ours.ingest("user", key, idempotency_key=key)
    await tool_turn(ours, "c1", "answer")
    theirs = await ours.fork(session_id="theirs")
    with monkeypatch.context() as before:
        before.setattr(append_rules, "is_repeated_append", lambda op, known: False)
        for key, text in (("a", "a"), ("b", "another b"), ("c", "c")):
            await theirs.ingest("user", text, idempotency_key=key)
    await theirs.replace((await read_entries(theirs, newest=1))[0].id, "an edited c")
    await theirs.ingest("user", "d", idempotency_key="d")
    plan = await ours.merge(theirs, strategy=strategy, dry_run=True)
    merged = await ours.merge(theirs, strategy=strategy)
    assert (merged.appended, merged.conflicts) == (plan.appended, ())
    assert (await window_contents(ours))[-3:] == ["another b", "an edited c", "d"]
    assert (await window_contents(ours)).count("a") == 1
    assert [entry.key for entry in await read_entries(ours, newest=4)] == [None, None, "d", None]
    assert not await ours.merge(theirs, strategy=strategy)
    assert (await ours.get("b")).content == "b"
    await theirs.merge(ours, strategy=strategy)
    assert await window_contents(theirs) == await window_contents(ours)


async def test_a_key_of_anything_here_is_no_key_of_what_comes(storage: Storage) -> None:
    ours, theirs, _ = await session_and_fork(storage)
    await append_drafts(
        storage, await storage.context(await ours.context_id() or ""), draft_fact("a fact", key="k")
    )
    await theirs.ingest("user", "there", idempotency_key="k")
    await ours.merge(theirs)
    assert await window_contents(ours) == ["a", "b", "c", "there"]


async def test_a_dry_run_raises_what_the_merge_raises(storage: Storage) -> None:
    ours, theirs, _ = await session_and_fork(storage)
    elsewhere = session_on(storage, "elsewhere")
    (evidence,) = await ingest_texts(elsewhere, "the door code is 4711")
    there = await storage.context(await theirs.context_id() or "")
    await append_drafts(storage, there, draft_fact("a fact from elsewhere", sources=(evidence,)))
    await elsewhere.erase(evidence)
    for dry_run in (False, True):
        with pytest.raises(GoneError):
            await ours.merge(theirs, dry_run=dry_run)


# ── taking it back ──────────────────────────────────────────────────────────────────────────────────────────────────


async def test_undo_takes_a_merge_back_whole_and_once(storage: Storage) -> None:
    ours, theirs, ids = await session_and_fork(storage)
    await ours.state("api", "port", "80")
    await theirs.replace(ids[0], "A")
    await theirs.state("db", "engine", "PostgreSQL")
    await ingest_texts(theirs, "d")
    done = await ours.merge(theirs)
    assert done.version is not None
    version = await ours.undo(done.version)
    assert await window_contents(ours) == ["a", "b", "c"]
    assert [fact.subject for fact in await ours.facts()] == ["api"]
    assert await ours.undo(done.version) == version
    assert (await ours.get_session_stats()).version == version
    await ours.undo(version)
    assert await window_contents(ours) == ["A", "b", "c", "d"]
    record = (await read_entries(ours, at=done.version))[-1]
    await ours.retract(record.id)
    assert await window_contents(ours) == ["a", "b", "c"]
    assert contents_of((await ours.merge(theirs)).appended)[-1] == "d"
    assert await window_contents(ours) == ["A", "b", "c", "d"]


async def test_undo_says_what_has_to_be_taken_back_first(storage: Storage) -> None:
    ours, theirs, _ = await session_and_fork(storage)
    await ingest_texts(theirs, "d", "e")
    done = await ours.merge(theirs)
    assert done.version is not None
    receipt = await append_drafts(storage, await storage.context("ours"), draft_summary(3, 5))
    with pytest.raises(ConflictError) as refused:
        await ours.undo(done.version)
    assert refused.value.options == (f"undo({receipt.versions[0]}) first",)
    await ours.undo(receipt.versions[0])
    await ours.undo(done.version)
    assert await window_contents(ours) == ["a", "b", "c"]


async def test_what_the_other_side_took_back_with_a_merge_does_not_come(storage: Storage) -> None:
    ours, theirs, _ = await session_and_fork(storage)
    third = await ours.fork(session_id="third")
    await ingest_texts(third, "x")
    done = await theirs.merge(third)
    assert done.version is not None
    await theirs.undo(done.version)
    await ingest_texts(theirs, "d")
    assert contents_of((await ours.merge(theirs)).appended) == ["d"]
    assert contents_of((await ours.merge(third)).appended) == ["x"]
    assert await window_contents(ours) == ["a", "b", "c", "d", "x"]


async def test_a_merge_that_a_clearing_covers_is_not_undone_before_it(storage: Storage) -> None:
    ours, theirs, _ = await session_and_fork(storage)
    await ingest_texts(theirs, "d")
    done = await ours.merge(theirs)
    assert done.version is not None
    cleared = await ours.clear()
    with pytest.raises(ConflictError) as refused:
        await ours.undo(done.version)
    assert refused.value.options == (f"undo({cleared}) first",)
    await ours.undo(cleared)
    await ours.undo(done.version)
    assert await window_contents(ours) == ["a", "b", "c"]


async def test_a_cleared_session_does_not_get_it_all_again(storage: Storage) -> None:
    ours, theirs, _ = await session_and_fork(storage)
    await ingest_texts(theirs, "d")
    await ours.merge(theirs)
    await ours.clear()
    assert not await ours.merge(theirs)
    assert await window_contents(ours) == []


# ── what stays away ─────────────────────────────────────────────────────────────────────────────────────────────────


async def test_what_is_erased_there_goes_here_and_what_is_erased_here_stays_away(storage: Storage) -> None:
    ours, theirs, _ = await session_and_fork(storage)
    (secret, other) = await ingest_texts(theirs, "secret", "other")
    await ours.merge(theirs)
    await theirs.erase(secret)
    assert await window_contents(ours) == ["a", "b", "c", "other"]
    copy = next(one for one in await read_entries(ours) if other in one.sources)
    await ours.erase(copy.id)
    await theirs.replace(other, "other again")
    done = await ours.merge(theirs)
    assert (bool(done), done.gone) == (False, 1)
    assert await window_contents(ours) == ["a", "b", "c"]
    states = [one.state for one in await read_entries(ours) if one.kind is Kind.MESSAGE]
    assert states == [State.LIVE] * 3 + [State.ERASED] * 2


async def test_a_fact_goes_with_the_copy_of_what_it_was_made_from(storage: Storage) -> None:
    ours, theirs, _ = await session_and_fork(storage)
    said = await theirs.ingest("user", "we use PostgreSQL")
    await theirs.state("db", "engine", "PostgreSQL", sources=[said])
    await ours.merge(theirs)
    copy = next(one for one in await read_entries(ours) if said in one.sources)
    await ours.retract(copy.id)
    assert await ours.facts() == []
    assert len(await theirs.facts()) == 1


async def test_a_private_fork_does_not_leak_into_a_session_that_is_found(storage: Storage) -> None:
    ours, theirs, _ = await session_and_fork(storage)
    await theirs.set_private()
    await ingest_texts(theirs, "d")
    with pytest.raises(ConflictError, match="private") as refused:
        await ours.merge(theirs)
    assert "set_private()" in refused.value.options[0]
    await ours.set_private()
    assert await ours.merge(theirs)


async def test_origin_and_privacy_of_a_copy_are_those_of_the_original(storage: Storage) -> None:
    ours, theirs, _ = await session_and_fork(storage)
    await theirs.ingest("user", "mail ann@example.com", privacy="redact", origin="external")
    done = await ours.merge(theirs)
    assert "ann@example.com" not in contents_of(done.appended)[0]
    copy = (await read_entries(ours, after=3))[0]
    assert (copy.origin, copy.privacy, copy.role) == (Origin.EXTERNAL, "redact", Role.USER)


async def test_what_comes_is_stored_as_this_side_stores_what_is_said(storage: Storage) -> None:
    _, theirs, _ = await session_and_fork(storage)
    privacy = PrivacyConfig(mode=Privacy.REDACT, redact_before_persist=True)
    ours = session_on(storage, "ours", config=ACMSConfig(episodes=LONG_EPISODES, privacy=privacy))
    await ingest_texts(theirs, "write to ann@example.com about it", "nothing to hide")
    await theirs.state("ann", "address", "ann@example.com")
    await ours.merge(theirs)
    mail, plain, fact, _ = await read_entries(ours, after=3)
    there = await read_entries(theirs, after=3)
    assert "ann@example.com" not in repr((mail, plain, fact))
    assert (plain.content, plain.tokens) == ("nothing to hide", there[1].tokens)
    assert mail.content != there[0].content
    assert mail.tokens == ours.counter.count(mail.content)
    assert (fact.kind, fact.tokens) == (Kind.FACT, ours.counter.count(fact.content))


async def test_what_comes_is_embedded_and_compacted_as_if_it_were_said(storage: Storage) -> None:
    _, theirs, _ = await session_and_fork(storage)
    await ingest_texts(theirs, *("the harbour at night, once more" for _ in range(20)))
    async with ACMS("ours", storage, HashEmbedder(), config=ACMSConfig(episodes=LONG_EPISODES)) as ours:
        await ours.set_policy(budget=50)
        await ours.merge(theirs)
        context = await ours.context_id() or ""
        space = ours._shared.embedding.space  # type: ignore[union-attr]
        done = False
        async with asyncio.timeout(300):
            while not done:
                await asyncio.sleep(0.01)
                vectors = {row.version for row in await storage.derived(context, space)}
                done = vectors >= set(range(4, 24)) and any(
                    await storage.read(context, kinds=(Kind.SUMMARY,))
                )


async def test_what_cannot_be_merged_is_refused_with_the_reason(storage: Storage) -> None:
    ours, theirs, _ = await session_and_fork(storage)
    stranger = session_on(storage, "stranger")
    await ingest_texts(stranger, "x")
    with pytest.raises(ValidationError, match="in common"):
        await ours.merge(stranger)
    with pytest.raises(ValidationError, match="itself"):
        await ours.merge(ours)
    with pytest.raises(ValidationError, match="strategy"):
        await ours.merge(theirs, strategy="both")  # type: ignore[arg-type]  # a word of the caller's
    with pytest.raises(SessionNotFoundError):
        await session_on(storage, "nobody").merge(theirs)
    again = session_on(storage, "theirs")
    assert len(await window_contents(again)) == 3
    await theirs.delete()
    with pytest.raises(SessionNotFoundError, match="'theirs' was deleted") as refused:
        await ours.merge(again)
    assert refused.value.options == ('storage.settings(id, {"deleted": False}, rev=…) brings it back',)
    (deleted,) = [one for one in (await storage.contexts(ContextQuery(deleted=True))).items if one.deleted_at]
    await storage.settings(deleted.id, {"deleted": False}, rev=deleted.settings_rev)
    assert (await ours.merge(again)).version is None
    async with open_storage("memory://") as elsewhere:
        far = session_on(elsewhere, "far")
        await ingest_texts(far, "x")
        with pytest.raises(ValidationError, match="one storage handle"):
            await ours.merge(far)
        await far.close()


# ── at the same time ────────────────────────────────────────────────────────────────────────────────────────────────


async def test_what_is_said_while_a_merge_runs_is_not_lost(storage: Storage) -> None:
    ours, theirs, ids = await session_and_fork(storage)
    await ingest_texts(theirs, *(f"there {number}" for number in range(20)))
    await theirs.replace(ids[0], "A")
    second = session_on(storage, "ours")
    said = [second.ingest("user", f"here {number}") for number in range(20)]
    merges = await asyncio.gather(ours.merge(theirs), second.merge(theirs), *said)
    versions = [one.version for one in merges[:2] if not isinstance(one, str)]
    assert sum(version is not None for version in versions) == 1
    shown = await window_contents(ours)
    assert (len(shown), len(set(shown)), shown[0]) == (43, 43, "A")
    assert [text for text in shown if text.startswith("there")] == [f"there {number}" for number in range(20)]
    await second.close()
