"""An erasure names the entries that repeat an erased message word for word; it does not erase them."""

from __future__ import annotations

from pathlib import Path

import pytest

from acms.erasure import erase_context, erase_subject, quotes
from tests.cli.test_cli import call, run
from tests.support.talk import Storage, session_on

PHONE = "My phone is 0171 2345678, please call me."


async def test_other_messages_that_repeat_it_are_named_and_stay(storage: Storage) -> None:
    async with session_on(storage, "talk") as session:
        said = await session.ingest("user", PHONE)
        number = await session.ingest("assistant", "I will call 0171 2345678 today.")
        whole = await session.ingest("tool", 'You said: "my phone is 0171 2345678, please\n call me".')
        await session.ingest("assistant", "I will call the number 990171 23456789 today.")
        await session.ingest("user", "Please call me, my phone is broken.")
        erased = await session.erase(said)
        assert [(one.id, one.kind, one.of) for one in erased.remaining] == [
            (number, "quote", said),
            (whole, "quote", said),
        ]
        assert erased.ids == (said,)
        assert (await session.get(number)).content == "I will call 0171 2345678 today."


async def test_an_erasure_with_quotes_is_not_verified(storage: Storage) -> None:
    async with session_on(storage, "talk") as session:
        said = await session.ingest("user", PHONE)
        quote = await session.ingest("assistant", "I will call 0171 2345678 today.")
        erased = await session.erase(said, verify=True)
        assert (erased.verified, erased.residue) == (False, ())
        assert (await session.erase(quote, verify=True)).verified


async def test_an_address_or_six_words_in_a_row_are_a_quote_and_a_common_phrase_is_none(
    storage: Storage,
) -> None:
    async with session_on(storage, "talk") as session:
        said = await session.ingest(
            "user", "My address is 7 Rua das Flores, 4050-262 Porto. The gate is behind the old red barn."
        )
        address = await session.ingest("assistant", "Delivery goes to 7 Rua das Flores, 4050-262 Porto.")
        gate = await session.ingest(
            "assistant", "Noted: the gate is behind the old barn. And behind the old red barn."
        )
        await session.ingest("assistant", "My address is the same as yours, and the gate is behind us.")
        erased = await session.erase(said, verify=True)
        assert [one.id for one in erased.remaining] == [address, gate]
        assert not erased.verified


async def test_an_erasure_that_cannot_search_for_all_quotes_is_not_verified(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quotes, "MAX_PIECES", 5)
    async with session_on(storage, "talk") as session:
        said = await session.ingest("user", "My address is 7 Rua das Flores, 4050-262 Porto, Portugal.")
        erased = await session.erase(said, verify=True)
        assert erased.residue == (
            "the erased texts are too many: quotes of the last ones were not searched for",
        )
        assert not erased.verified


async def test_short_texts_occur_again_by_chance(storage: Storage) -> None:
    async with session_on(storage, "talk") as session:
        for text in ("Yes.", "Thank you", "Hm, ok"):
            said = await session.ingest("user", text)
            await session.ingest("assistant", f"You say: {text}")
            assert (await session.erase(said, verify=True)).verified


async def test_a_fork_and_the_sessions_of_an_actor_are_searched(storage: Storage) -> None:
    async with session_on(storage, "talk") as session:
        await session.ingest("user", PHONE, actor_id="ana")
        fork = await session.fork(session_id="fork")
        quote = await fork.ingest("assistant", "I will call 0171 2345678 today.")
        erased = await erase_subject(storage, actor="ana", verify=True)
        assert [(one.id, one.kind) for one in erased.remaining] == [(quote, "quote")]
        assert not erased.verified
        await fork.close()


async def test_a_session_that_is_erased_whole_quotes_nothing(storage: Storage) -> None:
    async with session_on(storage, "talk") as session:
        await session.ingest("user", PHONE)
        await session.ingest("assistant", "I will call 0171 2345678 today.")
        assert (await erase_context(storage, "talk", verify=True)).verified


async def test_a_name_that_is_not_found_is_not_verified(storage: Storage) -> None:
    async with session_on(storage, "talk") as session:
        await session.ingest("user", PHONE, actor_id="ana")
        for unknown in ({"actor": "anna"}, {"namespace": "nobody"}):
            erased = await erase_subject(storage, **unknown, verify=True)
            assert (erased.ids, erased.verified, erased.proof) == ((), False, None)


def test_the_command_names_quotes_with_the_command_that_erases_them(tmp_path: Path) -> None:
    db = str(tmp_path / "log.db")
    run("add", "talk", "user", PHONE, "--db", db)
    run("add", "talk", "assistant", "I will call 0171 2345678 today.", "--db", db)
    quote = call("history", "talk", "--db", db)["entries"][1]["id"]
    done = run("erase", "talk", "--message", "v1", "--verify", "--yes", "--db", db, code=1)
    assert "talk v2 stays: it repeats the text, or personal data in it, word for word" in done.stdout
    assert f"to erase it too: acms erase talk --message {quote}" in done.stdout
    assert "besides these entries, nothing of it is left in the store" in " ".join(done.stdout.split())
    done = run("erase", "--actor", "nobody", "--verify", "--yes", "--db", db, code=1)
    assert "nothing was found to erase" in done.stderr
    assert "nothing of it is left" not in done.stdout
