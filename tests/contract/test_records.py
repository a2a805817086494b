"""Log records of a request: each carries its id and its milliseconds, none a text (check 38)."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from acms import ACMS, open_storage
from acms.acs import ACS
from acms.observability import JSONFormatter
from tests.support.sources import Source, make_engine, make_item, never_answer, request

SAID = "The orders of jane.doe@example.com are moved by night, password: swordfish77, and nobody is told."
ALL = {
    "render.received",
    "plan.built",
    "provider.called",
    "provider.replied",
    "provider.timeout",
    "provider.failed",
    "expansion.used",
    "selection.done",
    "kv.emitted",
    "privacy.redacted",
    "privacy.violation",
    "render.replied",
    "render.failed",
}


class Book(logging.Handler):
    """Keeps records as they are and as they are written."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.setFormatter(JSONFormatter())
        self.written = io.StringIO()

    def emit(self, record: logging.LogRecord) -> None:
        self.written.write(self.format(record) + "\n")

    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.written.getvalue().splitlines()]

    def named(self, name: str) -> list[dict[str, Any]]:
        return [one for one in self.records() if one["event"] == name]


@pytest.fixture
def book() -> Iterator[Book]:
    logger, found = logging.getLogger("acms"), Book()
    before = logger.level
    logger.addHandler(found)
    logger.setLevel(logging.DEBUG)
    yield found
    logger.setLevel(before)
    logger.removeHandler(found)


def text_windows(text: str) -> set[str]:
    return {text[at : at + 20] for at in range(len(text) - 19)}


async def render_every_outcome(mode: str, request_id: str = "req-1") -> None:
    """Render whatever may happen to a request: answers, failures, an expansion, an error."""
    found = [make_item("a", SAID, "orders"), make_item("b", SAID, "migration", lod="macro")]

    async def answer(asked: Any) -> Any:
        await asyncio.sleep(0.005)
        return found

    broken = Source("L4", RuntimeError(SAID), name="broken")
    late = Source("L4", never_answer, name="late", deadline_ms=30)
    body = request(f"move the orders of jane.doe@example.com: {SAID}", privacy=mode, request_id=request_id)
    assert (await make_engine(Source("L2", answer), broken, late).render(body)).error is None
    world = Source("L1", answer, name="world")
    await make_engine(Source("L2"), world).render(body, action="explicit_l1_expansion", attempt=2)
    assert (await make_engine(Source("L2", RuntimeError(SAID))).render(body)).error is not None


@pytest.mark.parametrize("mode", ["allow", "redact", "block"])
async def test_check_38_records_carry_the_request_and_its_time_and_no_text(mode: str, book: Book) -> None:
    await render_every_outcome(mode)
    names = {one["event"] for one in book.records()}
    assert names == ALL - ({"privacy.violation"} if mode != "block" else set())
    for one in book.records():
        assert one["request_id"] == one["correlation_id"] == "req-1"
        assert one["ms"] >= 0
    said = book.written.getvalue()
    assert "jane" not in said
    assert "swordfish77" not in said
    assert not any(window in said for window in text_windows(SAID))


async def test_check_38_records_carry_counts(book: Book) -> None:
    await render_every_outcome("block")
    assert book.named("provider.called")[0]["top_k"] == 20
    assert [one["took_ms"] for one in book.named("provider.replied")] == [5, 0, 5, 0]
    assert book.named("selection.done")[0]["candidates"] == 2
    assert book.named("privacy.violation")[0]["candidates"] == 2
    assert book.named("privacy.redacted")[0]["blocked"] == 2
    assert {"pin", "compress", "evict"} <= set(book.named("kv.emitted")[0])
    assert book.named("render.failed")[0]["code"] == "PROVIDER_ERROR"
    assert [one["asked_for"] for one in book.named("expansion.used")] == [True]


async def test_check_38_names_that_hold_something_personal_are_redacted(book: Book) -> None:
    await render_every_outcome("allow", request_id="req-of-jane.doe@example.com")
    async with ACMS("jane.doe@example.com", open_storage("memory://")) as session:
        await session.ingest("user", SAID)
        await ACS([session]).render(request())
    assert "jane" not in book.written.getvalue()
    assert "[REDACTED: email]" in {one.get("request_id") for one in book.records()}


async def test_check_38_our_own_memory_writes_no_text_either(book: Book) -> None:
    async with ACMS("u", open_storage("memory://"), namespace="team") as session:
        await session.ingest("user", SAID)
        await ACS([session]).render(request("when are the orders moved"))
    assert not any(window in book.written.getvalue() for window in text_windows(SAID))
