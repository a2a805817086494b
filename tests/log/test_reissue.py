"""An entry of one log as an entry of another: computed, and only from what may be known."""

from __future__ import annotations

from dataclasses import replace

from acms import Entry, State
from acms.log.encoding import digest_draft, genesis_hash, parse_entry_id, verify_chain
from acms.log.provenance import copy_batch, id_in_copy, id_of_copy
from acms.storage import MemoryStorage
from acms.testing.logs import append_drafts, create_log, draft_fact, draft_message
from tests.storage.suite.logs import mixed

COPY = id_of_copy("c_original", 3, "default name", 0)


async def sample_logs() -> tuple[list[Entry], list[tuple[str, int, int]]]:
    store = MemoryStorage()
    parent, child = await mixed(store)
    stranger = await append_drafts(store, await create_log(store, "stranger"), draft_message("elsewhere"))
    (first, *_) = await store.read(child.id)
    await append_drafts(store, child, draft_fact("cites", sources=(first.id, stranger.ids[0], "nothing")))
    await store.blank(parent.id, [2], to=State.ERASED, audit={})
    assert child.fork is not None
    return await store.read(child.id), [(parent.id, 1, child.fork), (child.id, child.fork + 1, 99)]


def copy_whole(entries: list[Entry], runs: list[tuple[str, int, int]], copy: str = COPY) -> list[Entry]:
    made: list[Entry] = []
    chain = genesis_hash(copy)
    for batch in dict.fromkeys(entry.batch for entry in entries):
        made += copy_batch([entry for entry in entries if entry.batch == batch], chain, copy, runs)
        chain = made[-1].chain
    return made


async def test_a_copied_log_verifies_and_says_the_same() -> None:
    entries, runs = await sample_logs()
    made = copy_whole(entries, runs)
    assert list(verify_chain(made, head=genesis_hash(COPY), version=0)) == []
    for old, one in zip(entries, made, strict=True):
        assert parse_entry_id(one.id) == (COPY, old.version)
        kept = {name: getattr(old, name) for name in ("id", "context", "salt", "digest", "chain", "sources")}
        assert replace(one, **kept) == old
        assert (one.salt is None) == (old.salt is None)
    assert made[1].digest == entries[1].digest, "of a tombstone the digest is all there is"
    assert made[-1].sources == (made[0].id, entries[-1].sources[1], "nothing")


async def test_the_same_original_gives_the_same_copy_and_another_copy_shares_nothing() -> None:
    entries, runs = await sample_logs()
    assert copy_whole(entries, runs) == copy_whole(entries, runs)
    other = copy_whole(entries, runs, id_of_copy("c_original", 3, "default name", 1))
    for one, two in zip(copy_whole(entries, runs), other, strict=True):
        assert one.id.rsplit("_", 1)[-1] != two.id.rsplit("_", 1)[-1]
        if one.salt is not None:
            assert one.salt != two.salt
            assert one.digest != two.digest


async def test_what_is_not_copied_keeps_its_name() -> None:
    entries, runs = await sample_logs()
    beyond = [(runs[0][0], 1, 3)]
    assert id_in_copy(entries[5].id, COPY, beyond) == entries[5].id
    assert id_in_copy(entries[2].id, COPY, beyond) != entries[2].id
    assert [id_in_copy(id, COPY, runs) for id in ("", "x", "m_a_!_b")] == ["", "x", "m_a_!_b"]


async def test_without_the_salt_of_the_original_no_content_can_be_confirmed() -> None:
    entries, runs = await sample_logs()
    (one,) = copy_batch(entries[:1], genesis_hash(COPY), COPY, runs)
    (guess,) = copy_batch([replace(entries[0], salt=bytes(16))], genesis_hash(COPY), COPY, runs)
    assert one.salt is not None
    assert guess.digest != one.digest
    assert digest_draft(one, one.id.rsplit("_", 1)[-1], one.salt) == one.digest
