"""What answers the question of a turn stays in its requests while the outputs of its tools grow."""

from __future__ import annotations

import json
import random

import pytest

from acms import ACMS, Prompt, open_storage
from acms.codecs import OpenAIChat

ASKED = "| db-pedino-2 | 14.3 | 91 % | north-3 |"
QUESTION = "How full was the disk of db-pedino-2?"


async def list_hosts(session: ACMS, page: int, *, asked: bool = False) -> None:
    """Store a call with a table of sixty hosts, of some 1,200 tokens."""
    rng = random.Random(page)
    rows = [
        f"| {rng.choice(('web', 'db', 'queue'))}-h{page}x{number}-{rng.randrange(1, 9)} | {rng.randrange(9, 19)}.1 | "
        f"{rng.randrange(100)} % | south-{rng.randrange(1, 4)} |"
        for number in range(60)
    ]
    if asked:
        rows[30] = ASKED
    call = {"id": f"call_{page}", "name": "list_hosts", "arguments": json.dumps({"page": page})}
    await session.ingest("assistant", "", tool_calls=[call])
    table = "\n".join(["| host | version | disk | zone |", "| --- | --- | --- | --- |", *rows])
    await session.ingest("tool", table, tool_call_id=f"call_{page}")


async def ingest_tickets(session: ACMS) -> None:
    """Store eight turns of two calls each; the third holds the row that is asked for later."""
    for turn in range(8):
        await session.ingest("user", "Please go on with this ticket.")
        await list_hosts(session, 2 * turn, asked=turn == 2)
        await list_hosts(session, 2 * turn + 1)
        await session.ingest("assistant", "I would leave it like that for now, so let us go on.")


@pytest.mark.parametrize("budget", [1200, 2000, 4000])
async def test_the_answer_stays_while_tools_run(budget: int) -> None:
    async with ACMS("s", "memory://", None) as session:
        await ingest_tickets(session)
        await session.ingest("user", QUESTION)
        for page in (90, 91, 92, 93):
            rendered = (
                await Prompt(OpenAIChat("gpt-5"))
                .history(session)
                .recall(session, QUESTION)
                .render(budget=budget)
            )
            assert ASKED in json.dumps(rendered.payload, ensure_ascii=False)
            assert rendered.tokens.upper_bound <= budget
            await list_hosts(session, page)


@pytest.mark.parametrize("budget", [120, 300])
async def test_a_tool_call_competes_with_the_tokens_of_its_excerpt(budget: int) -> None:
    async with ACMS("s", "memory://", None) as session:
        await ingest_tickets(session)
        items = await session.recall(QUESTION, budget=budget, relevant_only=True)
    assert ASKED in items.text()


async def test_a_small_number_in_a_question_is_no_topic() -> None:
    """The day of the month is a word of every message of that day, so "2" matched all messages of a second."""
    async with ACMS("s", "memory://", None) as session:
        for number in range(12):
            await session.ingest(
                "user", "Please go on with this ticket.", created_at=f"2026-06-02T10:{number:02d}:00Z"
            )
            await session.ingest(
                "assistant", "I looked at that again.", created_at=f"2026-06-02T11:{number:02d}:00Z"
            )
        answer = await session.ingest(
            "user", "db-pedino-2 has its disk full.", created_at="2026-06-02T12:00:00Z"
        )
        await session.ingest("assistant", "Noted.", created_at="2026-06-02T12:01:00Z")
        items = await session.recall(QUESTION, budget=200, relevant_only=True)
        assert next(item.id for item in items) == answer
        assert not [item for item in items if "go on with" in item.content]


@pytest.mark.parametrize("pages", [6, 9])
@pytest.mark.parametrize("budget", [1200, 2000, 2800, 3000])
async def test_cut_outputs_of_earlier_turns_leave_room_for_what_answers(budget: int, pages: int) -> None:
    storage = open_storage("memory://")
    async with ACMS("earlier", storage, None, namespace="team") as session:
        await session.ingest("user", "The hint for the deploy password is the name of the first dog.")
        await session.ingest("assistant", "Noted.")
        await session.ingest("user", "New hint for the deploy password: the street of the old office.")
        await session.ingest("assistant", "Noted.")
    question = "What is the hint for the deploy password?"
    async with ACMS("now", storage, None, namespace="team") as session:
        for page in range(pages):
            await session.ingest("user", "Please go on with this ticket.")
            await list_hosts(session, page)
            await session.ingest("assistant", "I would leave it like that for now, so let us go on.")
        await session.ingest("user", question)
        rendered = (
            await Prompt(OpenAIChat("gpt-5")).history(session).recall(session, question).render(budget=budget)
        )
    assert "the street of the old office" in json.dumps(rendered.payload)
    assert rendered.tokens.upper_bound <= budget


async def chat_about_reports(session: ACMS, count: int) -> None:
    for number in range(count):
        await session.ingest("user", f"Run report {number}, please.")
        await session.ingest("assistant", f"Report {number}: all 14 checks of the night have passed.")


PHONE_QUESTION = "What is the on-call phone number?"


@pytest.mark.parametrize("free_tokens", [20, 60, 100, 200])
async def test_a_session_that_just_fits_leaves_room_for_what_other_sessions_answer(free_tokens: int) -> None:
    storage = open_storage("memory://")
    async with ACMS("earlier", storage, None, namespace="team") as session:
        await chat_about_reports(session, 40)
        await session.ingest("user", "Our on-call phone is 0144.")
        await chat_about_reports(session, 40)
        await session.ingest("user", "The on-call phone changed to 0199.")
    async with ACMS("now", storage, None, namespace="team") as session:
        await chat_about_reports(session, 60)
        prompt = Prompt(OpenAIChat("gpt-4o")).history(session)
        whole = (await prompt.user(PHONE_QUESTION).render(budget=10_000)).tokens.upper_bound
        prompt = prompt.recall(session, PHONE_QUESTION).user(PHONE_QUESTION)
        rendered = await prompt.render(budget=whole + free_tokens)
    text = json.dumps(rendered.payload)
    assert "0144" in text
    assert "0199" in text


async def test_a_recall_without_tokens_is_made_again_for_a_larger_budget() -> None:
    async with ACMS("now", open_storage("memory://"), None) as session:
        await session.ingest("user", "Our on-call phone is 0144.")
        await chat_about_reports(session, 40)
        prompt = Prompt(OpenAIChat("gpt-4o")).history(session)
        prompt = prompt.recall(session, PHONE_QUESTION).user(PHONE_QUESTION)
        texts = [json.dumps((await prompt.render(budget=budget)).payload) for budget in (75, 90, 108, 125)]
    assert "0144" not in texts[0]
    assert "0144" in texts[-1]
