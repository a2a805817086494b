"""Companions: later statements about the subject of an answer stand next to it, dated, and nothing is claimed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from acms import ACMS, ContextItems, ToolCall, ToolResult
from acms.storage import MemoryStorage
from tests.support.fakes import FakeEmbedder
from tests.support.talk import session_on

QUESTION = "Where does Ada live?"
ANSWER = "Ada does live in Porto, in the flat by the river"
LATER = "They sold the flat by the river and went to Lisbon"
NOISE = (
    "Lunch was late again today",
    "My sister sent photos of tulips",
    "We moved invoices to a bucket",
    "The build is green at last",
    "Somebody left an umbrella here",
    "Football starts at eight",
    "The printer has no paper",
)
START = datetime(2026, 3, 1, 9, tzinfo=UTC)


async def say_daily(session: ACMS, *texts: str) -> None:
    """Say one text a day, and close the episode."""
    for day, text in enumerate(texts):
        await session.ingest("user", text, created_at=START + timedelta(days=day))
    await session.close_episode()


async def recall_question(session: ACMS) -> ContextItems:
    return await session.recall(QUESTION, relevant_only=True)


def contents_without_neighbours(items: ContextItems) -> list[str]:
    """The shown texts, without the neighbours of the answer."""
    return [item.content for item in items if item.content not in (NOISE[0], NOISE[-1])]


def vector_between(subject: float, other: float) -> list[float]:
    """A unit vector that lies so far in the direction of the answer's subject."""
    size = (subject * subject + other * other) ** 0.5
    return [subject / size, other / size, *([0.0] * 30)]


class Subjects(FakeEmbedder):
    """Embeds texts by how far they are about where Ada lives."""

    def __init__(self, subjects: dict[str, float]) -> None:
        super().__init__("subjects-1", 32)
        self.subjects = {QUESTION: 0.9, ANSWER: 1.0, **subjects}

    async def embed(self, texts: list[str]) -> list[list[float]]:
        said = [text.partition("user: ")[2] or text for text in texts]
        return [vector_between(self.subjects.get(text, 0.1 + 0.001 * len(text)), 1.0) for text in said]


def without_embedder() -> ACMS:
    """A session that ranks by words alone."""
    return session_on(MemoryStorage(), embedder=None)


async def test_a_later_statement_about_the_same_subject_stands_beside_the_answer() -> None:
    async with without_embedder() as session:
        await say_daily(session, *NOISE, ANSWER, *NOISE, LATER, *NOISE)
        items = await recall_question(session)
    assert contents_without_neighbours(items) == [ANSWER, LATER]
    answer, companion = (item for item in items if item.content in (ANSWER, LATER))
    assert companion.relevance < 0.25 * answer.relevance  # by itself it would be below the cutoff
    assert companion.score < answer.score


async def test_a_later_statement_without_a_shared_word_is_a_companion_if_its_meaning_stands_out() -> None:
    moved = "Since May it has been Lisbon"
    async with session_on(MemoryStorage(), embedder=Subjects({moved: 0.5})) as session:
        await say_daily(session, *NOISE, ANSWER, *NOISE, moved, *NOISE)
        await session.wait_pending()
        assert contents_without_neighbours(await recall_question(session)) == [ANSWER, moved]


async def test_a_later_remark_that_is_only_a_little_nearer_than_others_is_no_companion() -> None:
    remarks = [f"Ticket {number}: the printer is broken" for number in range(60)]
    subjects = {text: 0.2 + 0.02 * (number % 7) for number, text in enumerate(remarks)}
    async with session_on(MemoryStorage(), embedder=Subjects(subjects)) as session:
        await say_daily(session, *remarks[:30], ANSWER, *remarks[30:])
        await session.wait_pending()
        found = contents_without_neighbours(await recall_question(session))
    assert [text for text in found if text != remarks[29] and text != remarks[30]] == [ANSWER]


async def test_an_answer_and_its_companion_are_dated_and_in_order_and_nothing_is_claimed() -> None:
    async with session_on(MemoryStorage()) as session:
        await say_daily(session, *NOISE, ANSWER, *NOISE, LATER, *NOISE)
        shown = (await recall_question(session)).text()
    answer, companion = f"user, 2026-03-08: {ANSWER}", f"user, 2026-03-16: {LATER}"
    assert -1 < shown.index(answer) < shown.index(companion)
    assert "[" not in shown


async def test_only_what_was_said_later_is_a_companion() -> None:
    async with without_embedder() as session:
        await say_daily(session, *NOISE, LATER, *NOISE, ANSWER, *NOISE)
        assert contents_without_neighbours(await recall_question(session)) == [ANSWER]


async def test_a_later_remark_about_something_else_is_no_companion() -> None:
    async with without_embedder() as session:
        await say_daily(session, *NOISE, ANSWER, *NOISE)
        assert contents_without_neighbours(await recall_question(session)) == [ANSWER]


async def test_the_next_message_is_the_reply_and_no_companion() -> None:
    async with without_embedder() as session:
        await say_daily(session, *NOISE, ANSWER, LATER, *NOISE)
        found = {item.content: item.score for item in await session.recall(QUESTION)}
        assert found.get(LATER, 0) < 0.9 * found[ANSWER]


async def test_a_tool_group_is_no_companion() -> None:
    async with without_embedder() as session:
        await say_daily(session, *NOISE, ANSWER, *NOISE)
        await session.ingest("assistant", "", parts=[ToolCall("c1", "search", "{}")])
        await session.ingest("tool", parts=[ToolResult("c1", LATER)])
        await say_daily(session, *NOISE)
        assert contents_without_neighbours(await recall_question(session)) == [ANSWER]


async def test_a_tool_result_has_no_companion() -> None:
    async with without_embedder() as session:
        await say_daily(session, *NOISE)
        await session.ingest("assistant", "", parts=[ToolCall("c1", "search", "{}")])
        await session.ingest("tool", parts=[ToolResult("c1", ANSWER)])
        await say_daily(session, *NOISE, LATER, *NOISE)
        found = contents_without_neighbours(await recall_question(session))
        assert ANSWER in found
        assert LATER not in found


async def test_a_word_that_most_messages_hold_decides_between_statements_that_share_the_same_rare_one() -> (
    None
):
    noise = [f"{text} in Ghent" for text in NOISE]
    other, nearer = "A violin lay on the shelf all week", "A violin lay on the {} in Ghent"
    later = [other, *noise, nearer.format("floor"), *noise, nearer.format("chair"), *noise]
    async with without_embedder() as session:
        await say_daily(session, *noise, "Ada does live with a violin in Ghent", *noise, *later)
        shown = [item.content for item in await recall_question(session)]
    assert nearer.format("floor") in shown
    assert nearer.format("chair") in shown
    assert other not in shown
