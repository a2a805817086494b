"""Experience: what other sessions of the same namespace have learnt, and nothing of anybody else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from acms import ACMS, open_storage
from acms.acs import ACS
from acms.contract import Layer, Lod, RenderReply
from acms.providers import OfflineReflector
from tests.support.sources import NOW, checked_reply, fragment_ids, request, warning_codes
from tests.support.virtual_time import REAL_TIME

ASKED = "which database does the orders service use"
DECIDED = "Decision: the orders service uses PostgreSQL 18, because we need transactions."


async def write_decision(
    storage: Any, name: str, namespace: str = "team", said: str = DECIDED, **more: Any
) -> str:
    """Tell a session something, end the episode, and have it reflected on."""
    async with ACMS(name, storage, namespace=namespace, reflector=OfflineReflector()) as session:
        id = await session.ingest("user", said, **more)
        await session.ingest("assistant", "Noted: the orders service is settled.")
        await session.close_episode()
        await session.wait_pending()
        await session.ingest("user", "What about the weather over the orders service?", created_at=NOW)
        await session.wait_pending()
        return id


async def ask_new_session(
    storage: Any, name: str = "new", namespace: str = "team", **more: Any
) -> RenderReply:
    async with ACMS(name, storage, namespace=namespace) as session:
        await session.ingest("user", "We have a new service to plan.")
        reply = await ACS([session]).render(request(ASKED, **more))
        checked_reply(reply)
        return reply


async def test_other_sessions_of_the_namespace_are_experience() -> None:
    storage = open_storage("memory://")
    decided = await write_decision(storage, "old")
    reply = await ask_new_session(storage)
    past = [one for one in reply.fragments or () if one.source is Layer.L4]
    assert {one.lod for one in past} == {Lod.MACRO, Lod.MICRO, Lod.ATOMIC}
    assert decided in {one.id for one in past}
    assert not any("weather" in (one.text or "") for one in past)  # neither marked nor a fact
    assert {one.unit_id for one in reply.experience} == {one.id for one in past}
    assert [one.source for one in reply.fragments or () if "new service" in (one.text or "")] == [Layer.L2]


async def test_a_session_that_has_said_nothing_yet_has_experience_too() -> None:
    storage = open_storage("memory://")
    decided = await write_decision(storage, "old")
    async with ACMS("nobody", storage, namespace="team") as session:
        reply = await ACS([session]).render(request(ASKED))
    assert decided in fragment_ids(reply)
    assert "PROJECT_EMPTY" in warning_codes(reply)


async def test_a_private_session_is_nobodys_experience() -> None:
    storage = open_storage("memory://")
    decided = await write_decision(storage, "old")
    async with ACMS("old", storage, namespace="team") as session:
        await session.set_private()
    reply = await ask_new_session(storage)
    assert decided not in fragment_ids(reply)
    assert all(one.source is Layer.L2 for one in reply.fragments or ())


@REAL_TIME
async def test_another_namespace_and_another_tenant_are_not_asked(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    await write_decision(open_storage(url), "old", "others")
    await write_decision(open_storage(f"{url}?tenant=b"), "old", "team")
    assert all(one.source is Layer.L2 for one in (await ask_new_session(open_storage(url))).fragments or ())


async def test_who_has_named_no_namespace_keeps_to_his_own_log() -> None:
    storage = open_storage("memory://")
    await write_decision(storage, "somebody", "default")
    reply = await ask_new_session(storage, "somebody else", "default")
    assert all(one.source is Layer.L2 for one in reply.fragments or ())


async def test_the_log_of_the_session_and_what_it_was_forked_from_stay_the_project() -> None:
    storage = open_storage("memory://")
    async with ACMS("u", storage, namespace="team") as session:
        await session.ingest("user", DECIDED)
        fork = await session.fork()
        await session.ingest("user", "Decision: the orders service also uses Redis.")
        reply = await ACS([fork]).render(request(ASKED))
        told = {one.text: one.source for one in reply.fragments or ()}
        assert told == {
            f"user: {DECIDED}": Layer.L2,
            "user: Decision: the orders service also uses Redis.": Layer.L4,
        }


async def test_a_past_version_has_no_other_sessions_around_it() -> None:
    storage = open_storage("memory://")
    await write_decision(storage, "old")
    async with ACMS("u", storage, namespace="team") as session:
        await session.ingest("user", "The orders service is new.")
        reply = await ACS([session.at(1)]).render(request(ASKED))
        assert all(one.source is Layer.L2 for one in reply.fragments or ())


@pytest.mark.parametrize("mode", ["allow", "redact", "block"])
async def test_the_privacy_of_the_request_holds_for_it(mode: str) -> None:
    storage = open_storage("memory://")
    said = "Decision: the orders service asks bob@example.com with the password: swordfish77"
    decided = await write_decision(storage, "old", said=said)
    reply = await ask_new_session(storage, privacy=mode)
    (one,) = [one for one in reply.fragments or () if one.id == decided]
    text = one.text or ""
    assert "swordfish77" not in repr(reply)
    assert ("bob@example.com" in text) == (mode == "allow")
    assert (one.text is None) == (mode == "block")


async def test_the_privacy_of_an_entry_holds_for_it() -> None:
    storage = open_storage("memory://")
    hidden = await write_decision(storage, "old", privacy="block")
    reply = await ask_new_session(storage)
    assert [one.text for one in reply.fragments or () if one.id == hidden] == [None]
    assert "PostgreSQL" not in repr(reply.to_wire(extended=True))


async def test_of_experience_come_no_more_units_than_were_asked_for() -> None:
    storage = open_storage("memory://")
    for number in range(3):
        await write_decision(
            storage, f"old{number}", said=f"Decision: the orders service number {number} is done."
        )
    assert len((await ask_new_session(storage, top_k=2)).experience) == 2
    assert (await ask_new_session(storage, top_k=0)).experience == ()
