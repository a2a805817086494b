"""What a prompt recalls from other sessions: the exchanges with a rare word of the question, and no noise."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from statistics import median

import pytest

from acms import ACMS, open_storage
from acms.codecs import OpenAIChat
from acms.prompt import Prompt, Rendered

STATEMENTS = """
The brass lamp goes to Lindenstrasse 14; please ring twice. | We picked Kafka for the invoice queue.
My new phone number is 0151 2345, and please do not call before ten. | The tiles in the bathroom are slate grey.
Pepper, my dog, gets drops for his ear every night. | The lease of the Leeds office ends in March.
I bought a used cello and take lessons on Tuesdays. | The shade arrived with a dent on the left side.
Our supplier for flour is the mill in Ghent. | The second Polaris was cancelled, my partner bought one.
The dentist moved my visit to the ninth of June. | I am allergic to hazelnuts. | The roof leaks above the attic.
The marathon training starts at six in the park. | We agreed on a deposit of two hundred pounds.
The backup job fails because the disk is full. | My sister Ada marries in Bergen. | The car has a squeaky brake.
The greenhouse needs a heater before November. | Please invoice the Oslo branch separately.
The intern sits next to the window on floor five. | I gave up coffee in January. | The kettle trips the fuse.
Our landlord wants the bikes out of the hallway. | The scanner jams on envelopes. | My passport expires in August.
The canteen closes at three on Fridays. | The choir sings Haydn this term. | The parcel went to the wrong depot.
I keep the spare key under the blue pot. | The gym contract runs until spring. | The printer on floor two is offline.
We named the kitten Biscuit. | The tax adviser asked for the receipts. | The allotment is next to the canal.
The projector in Turin has no remote. | My knee hurts after long runs. | The library fined me four pounds.
The bakery delivers at seven. | The trainee from Lyon starts on Monday. | The pump in the basement hums at night.
I prefer aisle seats on trains. | The curtain rail came loose. | Our team lead is on leave until Easter.
The freezer is set to minus twenty. | The neighbours lend us their ladder. | The museum card covers two people.
The thesis is due in October. | The boiler was serviced last week. | My aunt collects old stamps.
The lift is out of order again. | The ferry to Arran leaves from pier four.
"""
UNRELATED = """
hi | thanks! | ok, go on | tell me a joke | How are you today? | What can you do? | Are you a robot? | I am bored.
lol that is funny | Let's start. | Can you help me? | Never mind. | What time is it? | That was great, thanks so much!
See you tomorrow. | Yes please | Sorry, my mistake. | What do you think? | Please fix this typo: recieve.
Tell me something interesting. | Make it shorter. | Write a regex for email addresses. | What is 17 times 23?
How do I center a div? | Translate "thank you very much" into Japanese. | Give me five name ideas for a bakery.
Who won the world cup in 1998? | Explain quantum entanglement in simple words. | Is it safe to eat raw eggs?
Which planet has the most moons?
"""


def _split(text: str) -> list[str]:
    return text.strip().replace("\n", " | ").split(" | ")


@pytest.fixture
async def new_session() -> AsyncIterator[ACMS]:
    """Return an empty session in a namespace of more than fifty others."""
    storage = open_storage("memory://")
    for number, statement in enumerate(_split(STATEMENTS)):
        async with ACMS(f"talk-{number}", storage, None, namespace="user:1") as session:
            await session.ingest("user", statement)
            await session.ingest("assistant", "Understood, I made a note of it.")
    async with ACMS("new", storage, None, namespace="user:1") as session:
        yield session


async def _render(session: ACMS, question: str, *, budget: int = 2_000) -> Rendered:
    prompt = Prompt(OpenAIChat("gpt-4o")).system("Help.").history(session)
    return await prompt.recall(session, question).user(question).render(budget=budget)


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("How many Polaris did I order in the end?", "cancelled"),
        ("When may you phone me?", "before ten"),
        ("What is my dog's name?", "Pepper"),
        ("Where did my first lamp have to be delivered?", "ring twice"),
    ],
)
async def test_one_word_that_few_exchanges_hold_is_enough(
    new_session: ACMS, question: str, answer: str
) -> None:
    rendered = await _render(new_session, question, budget=1_000)
    assert answer in json.dumps(rendered.payload["messages"][:-1])
    assert rendered.use.recalled < 250


async def test_a_common_word_by_itself_recalls_nothing(new_session: ACMS) -> None:
    rendered = await _render(new_session, "Tell him to write the next chapter tonight.", budget=1_000)
    assert rendered.use.recalled == 0
    assert any("matches enough of the question" in warning for warning in rendered.warnings)


async def test_unrelated_prompts_recall_nothing_as_a_rule_and_little_at_worst(new_session: ACMS) -> None:
    recalled = [
        (await _render(new_session, prompt, budget=1_000)).use.recalled for prompt in _split(UNRELATED)
    ]
    assert len(recalled) == 30
    assert median(recalled) == 0
    assert sum(tokens > 0 for tokens in recalled) <= 5
    assert max(recalled) < 250


async def test_a_rare_word_recalls_before_any_vector_is_stored() -> None:
    storage = open_storage("memory://")
    for number, statement in enumerate(_split(STATEMENTS)):
        async with ACMS(f"talk-{number}", storage, "auto", namespace="user:1") as session:
            await session.ingest("user", statement)
    async with ACMS("new", storage, "auto", namespace="user:1") as session:
        rendered = await _render(session, "What is my dog's name?", budget=1_000)
    assert "Pepper" in json.dumps(rendered.payload["messages"][:-1])


async def _update(session: ACMS) -> None:
    """Say in another session, a day later, what changed."""
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    async with ACMS("later", session.storage, None, namespace="user:1") as later:
        text = "The vet has changed the drops of Pepper to tablets."
        await later.ingest("user", text, created_at=tomorrow)


async def test_an_update_is_shown_with_the_statement_that_a_rare_word_finds(new_session: ACMS) -> None:
    await _update(new_session)
    question = "Which of the two shops near the station sells biscuits for my dog on Sundays?"
    rendered = await _render(new_session, question, budget=1_000)
    excerpts = json.dumps(rendered.payload["messages"][:-1])
    assert "Pepper, my dog" in excerpts
    assert "to tablets" in excerpts


async def test_a_remark_in_this_session_hides_no_update_of_another(new_session: ACMS) -> None:
    await _update(new_session)
    in_two_days = datetime.now(UTC) + timedelta(days=2)
    for role, text in (
        ("user", "Pepper gets drops every night, my dog is tired of it."),
        ("assistant", "Poor Pepper, drops every night are no fun for his ear."),
    ):
        await new_session.ingest(role, text, created_at=in_two_days)
    rendered = await _render(new_session, "What is my dog's name?", budget=1_000)
    assert "to tablets" in json.dumps(rendered.payload["messages"][:-1])


async def test_other_sessions_of_which_nothing_is_near_enough_are_warned_of() -> None:
    storage = open_storage("memory://")
    async with ACMS("earlier", storage, None, namespace="team") as session:
        for number in range(60):
            words = " ".join(f"word{number}x{index}" for index in range(90))
            await session.ingest(
                "user", f"The formatted page is {words}." if number == 5 else f"A page is {words}."
            )
            await session.ingest("assistant", "Read.")
    question = "How do I like my answers formatted for the quarterly board report?"
    async with ACMS("now", storage, None, namespace="team") as session:
        for _ in range(3):
            await session.ingest(
                "user", "I like my answers formatted as a table for the quarterly board report."
            )
            await session.ingest("assistant", "Noted.")
        rendered = (
            await Prompt(OpenAIChat("gpt-4o"))
            .history(session)
            .recall(session, question)
            .user(question)
            .render(budget=2000)
        )
    warnings = [warning for warning in rendered.warnings if "of other sessions" in warning]
    assert rendered.use.recalled == 0
    assert len(warnings) == 1
