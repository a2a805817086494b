"""Sessions that adapters have open."""

from __future__ import annotations

import pytest

from acms import open_storage
from acms.errors import HandleError
from acms.integrations import sessions
from acms.integrations.sessions import Sessions

pytestmark = pytest.mark.anyio


async def test_what_was_used_longest_ago_is_closed_and_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MAX_IDLE", 2)
    storage = open_storage("memory://")
    opened = Sessions(storage, embedder=None)
    used = []
    async with opened.use("ana", "a") as first:
        for name in "bcd":
            async with opened.use("ana", name) as session:
                await session.ingest("user", "Hello.")
            used.append(session)
        await first.ingest("user", "Still open.")
    with pytest.raises(HandleError):
        await used[0].entries()
    assert len(await used[1].entries()) == 1
    async with opened.use("ana", "b") as again:
        assert again is not used[0]
        assert [entry.content for entry in await again.entries()] == ["Hello."]
    await opened.aclose()
    with pytest.raises(HandleError):
        await first.entries()


async def test_what_was_handed_out_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MAX_IDLE", 1)
    opened = Sessions(open_storage("memory://"), embedder=None)
    async with opened.use("ana", "kept"):
        lent = opened.hand_out("ana", "kept")
    for name in "abc":
        async with opened.use("ana", name) as session:
            await session.ingest("user", "Hello.")
    async with opened.use("ana", "kept") as session:
        assert session is lent
        await session.ingest("user", "The same one.")
    assert opened.hand_out("ana", "kept") is lent
    await opened.aclose()
    with pytest.raises(HandleError):
        await lent.entries()
