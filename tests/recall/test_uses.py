"""Which shown entries an answer used: read from citations of providers and ids in its text, and counted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from acms import ACMS, ConflictError, EntryNotFoundError
from acms.client import Client
from acms.codecs import OpenAIChat
from acms.ports import HasRecords
from acms.prompt import Prompt
from acms.storage import MemoryStorage
from acms.text.citations import find_cited_ids
from tests.server.serving import serving
from tests.support.talk import Bare, Storage

ONE, TWO = "m_zsd64691megncjw7_m_2y74yx", "f_zsd64691megncjw7_n_sc6h59"
SHOWN = {ONE: "The orders service stores its rows\nin PostgreSQL 18.", TWO: "The deadline is October 30."}


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (f"It is PostgreSQL [{ONE}], see ({TWO}).", (ONE, TWO)),
        ("It is PostgreSQL.", ()),
        ({"content": [{"type": "text", "text": "PostgreSQL.", "citations": [
            {"type": "search_result_location", "source": ONE, "title": "recall", "cited_text": "anything at all",
             "search_result_index": 0, "start_block_index": 0, "end_block_index": 1}]}]}, (ONE,)),
        ({"content": [{"type": "text", "text": "On the 30th.", "citations": [
            {"type": "char_location", "cited_text": "The deadline is October 30.", "document_index": 0,
             "document_title": "memory", "start_char_index": 0, "end_char_index": 27}]}]}, (TWO,)),
        ({"content": [{"text": "Rows.", "citations": [
            {"type": "char_location", "cited_text": "stores its rows in PostgreSQL"}]}]}, (ONE,)),
        ({"content": [{"text": "The.", "citations": [{"cited_text": "The"}]}]}, ()),
        ({"output": [{"type": "message", "content": [{"type": "output_text", "text": "On the 30th.", "annotations": [
            {"type": "url_citation", "url": f"acms://memory/{TWO}", "title": "memory"}]}]}]}, (TWO,)),
        ({"choices": [{"message": {"role": "assistant", "content": f"As {ONE} says."}}]}, (ONE,)),
        (SimpleNamespace(model_dump=lambda **_: {"content": [{"text": f"As {ONE} says."}]}), (ONE,)),
        ("By m_aaaaaaaaaaaaaaaa_m_2y74yx.", ()),
        (None, ()),
    ],
)  # fmt: skip
def test_an_answer_says_what_it_used_of_what_was_shown(answer: object, found: tuple[str, ...]) -> None:
    assert find_cited_ids(answer, SHOWN) == found


async def test_what_was_used_is_counted_until_it_is_erased(storage: Storage) -> None:
    async with ACMS("used", storage, None) as session:
        id = await session.ingest("user", "The orders service stores its rows in PostgreSQL 18.")
        other = await session.ingest("user", "Lunch is at noon.")
        items = await session.recall("Where does the orders service store its rows?")
        before = (await session.get_session_stats()).version
        answer = {
            "content": [{"text": "There.", "citations": [{"cited_text": "stores its rows in PostgreSQL"}]}]
        }
        assert await session.cite(answer, items) == (id,)
        assert items.ledger.cited == {id}
        rendered = await Prompt(OpenAIChat("gpt-5")).history(session).user("Where?").render(budget=2000)
        assert await session.cite(f"In PostgreSQL [{id}], and lunch [{other}].", rendered) == (id, other)
        assert await session.cite("Nothing is cited.", rendered) == ()
        assert [(one.id, one.count) for one in await session.citations()] == [(id, 2), (other, 1)]
        stats = await session.get_session_stats()
        assert (stats.version, stats.cited, stats.citations) == (before, 2, 3), (
            "nothing was written to the log"
        )
        with pytest.raises(EntryNotFoundError):
            await session.cite("By m_aaaaaaaaaaaaaaaa_m_2y74yx.")
        await session.erase(other)
        assert await session.citations() == []


async def test_what_others_counted_meanwhile_is_counted_too(storage: Storage) -> None:
    async with ACMS("used", storage, None) as session:
        id = await session.ingest("user", "The orders service stores its rows in PostgreSQL 18.")
        items = await session.recall("Where does the orders service store its rows?")
        records = session.storage
        assert isinstance(records, HasRecords)
        put, first = records.put_record, True

        async def overtaken(context: str, name: str, data: Any, *, rev: int) -> Any:
            nonlocal first
            if first:
                first = False
                others = {"format": 1, "entries": [[id, 4, "2026-03-02T09:00:00+00:00"]]}
                await put(context, name, others, rev=rev)
            return await put(context, name, data, rev=rev)

        records.put_record = overtaken  # type: ignore[method-assign]
        assert await session.cite(f"In PostgreSQL [{id}].", items) == (id,)
        assert [(one.id, one.count) for one in await session.citations()] == [(id, 5)]

        async def busy(context: str, name: str, data: Any, *, rev: int) -> Any:
            raise ConflictError("the record has changed")

        records.put_record = busy  # type: ignore[method-assign]
        with pytest.raises(ConflictError):
            await session.cite(f"In PostgreSQL [{id}].", items)
        records.put_record = put  # type: ignore[method-assign]
        context = str(await session.context_id())
        found = await records.record(context, "citations")
        assert found is not None
        await put(context, "citations", {"format": 2, "entries": "otherwise"}, rev=found.rev)
        assert await session.citations() == []  # of another release


async def test_a_store_without_records_counts_nothing_and_answers_all_the_same() -> None:
    async with ACMS("used", Bare(MemoryStorage()), None) as session:
        id = await session.ingest("user", "The orders service stores its rows in PostgreSQL 18.")
        items = await session.recall("Where does the orders service store its rows?")
        assert await session.cite(f"In PostgreSQL [{id}].", items) == (id,)
        assert await session.citations() == []
        assert (await session.get_session_stats()).citations == 0


async def test_a_service_counts_what_its_clients_answers_used() -> None:
    with serving("memory://") as running:
        async with Client(running.url) as client:
            session = client.session("remote")
            id = await session.ingest("user", "The orders service stores its rows in PostgreSQL 18.")
            items = await session.recall("Where does the orders service store its rows?")
            assert await session.cite(f"In PostgreSQL [{id}].", items) == (id,)
            assert items.ledger.cited == {id}
            assert [one.count for one in await session.citations()] == [1]
            assert (await session.get_session_stats()).citations == 1
        (context,) = running.get("/contexts")["data"]
        at = f"/contexts/{context['id']}/citations"
        assert running.client.post(at, json={"answer": {"text": f"[{id}]"}}).json() == {"data": [id]}
        assert running.get(at)["data"][0]["count"] == 2
        assert running.client.post(at, json={}).status_code == 400
