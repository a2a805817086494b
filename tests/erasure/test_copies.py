"""An erasure reaches, or names, every place that holds the text: merges, copies, adopted facts, imports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from acms import ACMS, Erasure, State, open_storage
from acms.cli.commands import app
from tests.support.talk import Storage, session_on

SECRET = "My account is Zyxquarble-77."


async def entry_of(session: ACMS, text: str = SECRET) -> Any:
    """Return the live entry of a session that says a text."""
    (found,) = [one for one in await session.entries() if one.content == text]
    return found


async def remaining_places(storage: Any, done: Erasure) -> set[tuple[str, int, str]]:
    """Return session, version and kind of what remains, after checking that the version there is that entry."""
    found: set[tuple[str, int, str]] = set()
    for one in done.remaining:
        context = await storage.context(one.context)
        entries = await storage.read(one.context, after=one.version - 1, before=one.version + 1, deleted=True)
        assert [(entry.id, entry.state) for entry in entries] == [(one.id, State.LIVE)]
        found.add((context.key, one.version, one.kind))
    return found


async def test_the_original_of_a_merged_message_is_named_with_all_its_copies(storage: Storage) -> None:
    root = session_on(storage, "root")
    await root.ingest("user", "start")
    fork, beside = await root.fork(session_id="fork"), await root.fork(session_id="beside")
    said = await fork.ingest("user", SECRET)
    await fork.state("account", "number", "Zyxquarble-77", sources=[said])
    await root.merge(fork)
    await beside.merge(fork)
    copy = await entry_of(root)
    done = await root.erase(copy.id, verify=True)
    named = await remaining_places(storage, done)
    assert ("fork", 2, "copy") in named
    assert ("beside", 2, "copy") in named
    assert {one.of for one in done.remaining} <= set(done.ids)
    assert (done.verified, done.residue) == (False, ())
    again = await root.erase(copy.id, verify=True)
    assert await remaining_places(storage, again) == named, "it says so as long as they are there"
    assert not again.verified
    rest = await fork.erase(said, verify=True)
    assert (rest.remaining, rest.residue, rest.verified) == ((), (), True)
    assert (await root.erase(copy.id, verify=True)).verified
    for one in (root, fork, beside):
        assert not [entry for entry in await one.entries() if "Zyx" in entry.content + str(dict(entry.data))]


async def test_an_edit_that_came_by_a_merge_names_the_edit_that_it_was(storage: Storage) -> None:
    root = session_on(storage, "root")
    first = await root.ingest("user", "My account is none of your business.")
    fork = await root.fork(session_id="fork")
    await fork.replace(first, SECRET)
    await root.merge(fork)
    done = await root.erase((await entry_of(root)).id, verify=True)
    # The fork's edit is an edit of the erased message too, and the fork reads that from its parent.
    assert (done.remaining, done.verified) == ((), True)
    assert not [entry for one in (root, fork) for entry in await one.entries() if entry.content == SECRET]


async def test_what_came_through_a_third_branch_names_every_branch(storage: Storage) -> None:
    root = session_on(storage, "root")
    await root.ingest("user", "start")
    fork = await root.fork(session_id="fork")
    middle = await root.fork(session_id="middle")
    await fork.ingest("user", SECRET)
    await middle.merge(fork)
    await root.merge(middle)
    done = await root.erase((await entry_of(root)).id, verify=True)
    assert await remaining_places(storage, done) == {("fork", 2, "copy"), ("middle", 2, "copy")}
    assert not done.verified


async def test_an_entry_of_a_copy_names_the_original_and_its_other_copies(storage: Storage) -> None:
    session = session_on(storage, "original")
    said = await session.ingest("user", SECRET)
    await session.state("account", "number", "Zyxquarble-77", sources=[said])
    one, other = await session.copy(session_id="one"), await session.copy(session_id="other")
    nested = await one.copy(session_id="nested")
    fork = await nested.fork(session_id="fork of nested")
    done = await fork.erase((await entry_of(nested)).id, verify=True)
    assert await remaining_places(storage, done) == {
        (name, version, "copy") for name in ("original", "one", "other") for version in (1, 2)
    }
    assert not done.verified
    assert [entry.content for entry in await other.entries()][:1] == [SECRET], (
        "a copy is its own conversation"
    )
    done = await session.erase(said, verify=True)
    assert (done.remaining, done.verified) == ((), True)


async def test_a_deleted_original_is_named_too(storage: Storage) -> None:
    session = session_on(storage, "original")
    await session.ingest("user", SECRET)
    copy = await session.copy(session_id="copy")
    await session.delete()
    done = await copy.erase((await entry_of(copy)).id, verify=True)
    assert await remaining_places(storage, done) == {("original", 1, "copy")}


async def test_a_fact_that_a_fork_adopted_names_that_of_its_parent(storage: Storage) -> None:
    root = session_on(storage, "root")
    said = await root.ingest("user", SECRET)
    fact = await root.state("account", "number", "Zyxquarble-77", sources=[said])
    fork = await root.fork(at=1, session_id="fork")
    await fork.wait_pending()
    (adopted,) = await fork.facts()
    assert adopted.id != fact.id
    done = await fork.erase(adopted.id, verify=True)
    assert await remaining_places(storage, done) == {("root", 2, "copy"), ("root", 1, "source")}
    assert not done.verified


async def test_the_source_of_an_erased_fact_is_named_with_its_copies(storage: Storage) -> None:
    session = session_on(storage, "original")
    said = await session.ingest("user", SECRET)
    await session.copy(session_id="copy")
    fact = await session.state("account", "number", "Zyxquarble-77", sources=[said])
    done = await session.erase(fact.id, verify=True)
    assert await remaining_places(storage, done) == {("original", 1, "source"), ("copy", 1, "source")}


async def test_a_whole_session_that_merged_another_names_what_it_took(storage: Storage) -> None:
    from acms.erasure import erase_context

    root = session_on(storage, "root")
    await root.ingest("user", "start")
    fork = await root.fork(session_id="fork")
    await fork.ingest("user", SECRET)
    await root.merge(fork)
    done = await erase_context(storage, "root", verify=True)
    assert await remaining_places(storage, done) == {("fork", 2, "copy")}
    assert not done.verified


async def test_what_was_imported_twice_is_named_in_its_tenant_alone(storage: Storage, url: str) -> None:
    moment = "2026-03-01T12:00:00.5+00:00"
    log = [
        {"role": "user", "content": SECRET, "created_at": moment},
        {"role": "assistant", "content": "Noted, thank you.", "created_at": "2026-03-01T12:00:01+00:00"},
    ]
    one, two = session_on(storage, "one"), session_on(storage, "two", namespace="elsewhere")
    await one.ingest_many(log)
    await two.ingest_many(log)
    await two.ingest("user", SECRET)
    await two.ingest("assistant", "Noted, thank you.", metadata={"said": "again"})
    said = (await one.entries())[0].id
    done = await one.erase(said, verify=True)
    assert await remaining_places(storage, done) == {("two", 1, "copy")}
    assert (done.verified, done.residue) == (False, ())


def run_command(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == code, (result.output, result.exception)
    return result.stdout


def test_the_command_names_the_session_and_says_how_to_erase_it_there(url: str, tmp_path: Path) -> None:
    chat = tmp_path / "chat.json"
    chat.write_text(json.dumps([{"role": "user", "content": SECRET}]))
    for name in ("one", "two"):
        run_command("import", str(chat), "--session", name, "--db", url)
    run_command("fork", "one", "--as", "fork", "--db", url)
    run_command("add", "fork", "user", "Another secret of the fork.", "--db", url)
    run_command("merge", "one", "fork", "--db", url)
    entries = json.loads(run_command("history", "one", "--json", "--db", url))["entries"]
    told = run_command(
        "erase", "one", "--message", entries[1]["id"], "--verify", "--yes", "--db", url, code=1
    )
    assert "fork v2 stays: the original" in told
    assert "acms erase fork --message" in told
    done = json.loads(
        run_command(
            "erase", "one", "--message", entries[0]["id"], "--verify", "--yes", "--json", "--db", url, code=1
        )
    )
    (left,) = done["remaining"]
    assert (left["kind"], left["version"], done["verified"]) == ("copy", 1, False)
    run_command("erase", "two", "--message", left["id"], "--verify", "--yes", "--db", url)


@pytest.mark.parametrize("tenant", ["other"])
async def test_another_tenant_is_never_named(url: str, tenant: str) -> None:
    moment = "2026-03-01T12:00:00.5+00:00"
    log = [{"role": "user", "content": SECRET, "created_at": moment, "idempotency_key": "same"}]
    there = f"{url}{'&' if '?' in url else '?'}tenant={tenant}"
    async with ACMS("one", open_storage(url), None) as one, ACMS("one", open_storage(there), None) as two:
        await one.ingest_many(log)
        await two.ingest_many(log)
        done = await one.erase((await one.entries())[0].id, verify=True)
        assert (done.remaining, done.residue, done.verified) == ((), (), True)
        assert (await two.entries())[0].content == SECRET
