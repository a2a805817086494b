"""The scenarios of the evaluation plan, word for word; every run asks in other words.

All that the plan leaves open is drawn: the messages in between, and the wording of questions. No question is said.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import pytest
from hypothesis import settings

from acms import ACMS, ContextItems
from acms.providers import OfflineReflector

SEED = 16 if settings().derandomize else random.SystemRandom().randrange(1_000_000)

BLAND = (
    "Can you elaborate?", "Sounds good, go on.", "Let me think about that for a moment.", "I will be back after lunch.",
    "The meeting moved to the afternoon.", "Please keep it short.",
)  # fmt: skip
OPENINGS = (
    "",
    "Remind me, ",
    "Quick one before the meeting: ",
    "I have lost track. ",
    "For the new colleague: ",
)
ENDINGS = ("", " I need it for the hand-over note.", " One sentence is enough.", " Thanks!")

DISTRACTORS = (
    "I've been reading about MySQL vs MariaDB performance benchmarks.",
    "The database migration strategy should account for schema changes.",
    "SQLite is great for testing but won't scale for production.",
)
REPHRASED = (
    "I've heard that MySQL is a good database choice for many teams.",
    "PostgreSQL is popular but some teams prefer MongoDB.",
)

#: Named by the plan, written by us where it lists topics alone: twenty facts in the first twenty turns.
DENSE = {
    "What is the user's name?": ("My name is Ingrid Solberg.", "Ingrid"),
    "What is the project called?": ("Decision: the project is called Halyard.", "Halyard"),
    "Which framework do we build on?": ("Decision: the framework is Litestar.", "Litestar"),
    "Which database do we use?": ("Decision: the database is PostgreSQL.", "PostgreSQL"),
    "Where do we deploy?": ("The deployment target is Fly.io in Frankfurt.", "Fly.io"),
    "How do users sign in?": ("Decision: users sign in with passkeys.", "passkeys"),
    "Which CSS framework is it?": ("The CSS framework is Tailwind.", "Tailwind"),
    "What are the tests written with?": ("Our tests are written with pytest.", "pytest"),
    "Which tool runs CI/CD?": ("Decision: CI/CD runs on Buildkite.", "Buildkite"),
    "What does the monitoring?": ("The monitoring is done by Grafana.", "Grafana"),
    "How large is the team?": ("The team size is seven people.", "seven"),
    "When is the deadline?": ("Constraint: the deadline is October 30.", "October 30"),
    "What is the budget?": ("Budget: 48,000 euros for the first release.", "48,000"),
    "What is the primary language?": ("The primary language is Kotlin.", "Kotlin"),
    "Which API style do we follow?": ("Decision: the API style is GraphQL.", "GraphQL"),
    "What is the cache layer?": ("The cache layer is Valkey.", "Valkey"),
    "Which message queue is it?": ("Decision: the message queue is NATS.", "NATS"),
    "Which search engine do we run?": ("The search engine is Meilisearch.", "Meilisearch"),
    "Who is the CDN provider?": ("Our CDN provider is Fastly.", "Fastly"),
    "What handles the feature flags?": ("The feature flags are handled by Unleash.", "Unleash"),
}


@pytest.fixture(params=[False, True], ids=["log alone", "with facts"])
def facts(request: pytest.FixtureRequest) -> bool:
    return request.param


@asynccontextmanager
async def session_with_turns(
    said: Mapping[int, str], turns: int, between: Sequence[str] = BLAND, *, facts: bool = False
) -> AsyncIterator[ACMS]:
    """A session in which these turns were said and others in between."""
    drawn = random.Random(SEED)
    async with ACMS("plan", "memory://", None, reflector=OfflineReflector() if facts else None) as session:
        for turn in range(1, turns):
            other = drawn.choice(between)
            await session.ingest("user" if turn in said or turn % 2 else "assistant", said.get(turn, other))
        await session.wait_pending()
        yield session


async def recall_wordings(session: ACMS, *wordings: str, budget: int = 2000) -> ContextItems:
    """Ask in words that were drawn for this run."""
    drawn = random.Random(f"{SEED}{wordings}")
    question = drawn.choice(OPENINGS) + drawn.choice(wordings) + drawn.choice(ENDINGS)
    print(f"seed {SEED}: {question}")  # shown when it fails
    items = await session.recall(question, token_budget=budget)
    assert items.tokens <= budget
    return items


def best_content(items: ContextItems) -> str:
    return max(items, key=lambda item: item.score).content


async def test_e1_1_talk_about_the_topic_does_not_hide_the_decision(facts: bool) -> None:
    said = {1: "Decision: We'll use PostgreSQL for the database."}
    async with session_with_turns(said, 60, DISTRACTORS, facts=facts) as session:
        items = await recall_wordings(
            session, "What database did we choose?", "Which database did we settle on?"
        )
        assert "use PostgreSQL for the database" in items.text()


async def test_e1_2_of_similar_facts_the_one_that_was_asked_for(facts: bool) -> None:
    said = {
        1: "Use PostgreSQL for the users table.",
        4: "Use Redis for the session cache.",
        7: "Use MongoDB for the analytics pipeline.",
    }
    async with session_with_turns(said, 40, facts=facts) as session:
        items = await recall_wordings(
            session, "What database do we use for analytics?", "Which store is behind the analytics?"
        )
        assert best_content(items).startswith(said[7])
        items = await recall_wordings(session, "What stores our sessions?", "Where are the sessions kept?")
        assert best_content(items).startswith(said[4])


async def test_e1_3_a_correction_supersedes_what_it_corrects(facts: bool) -> None:
    said = {
        2: "Decision: We'll use Flask for the API framework.",
        15: "Decision: Actually, we're switching from Flask to FastAPI for async support.",
    }
    async with session_with_turns(said, 30, facts=facts) as session:
        items = await recall_wordings(
            session, "What API framework are we using?", "Which framework is the API built with?"
        )
        shown = [item.content for item in items if item.content in said.values()]
        assert shown[-1] == said[15]
        assert facts is False or "FastAPI" in best_content(items)


async def test_e1_4_facts_without_a_marker_are_found_by_their_words(facts: bool) -> None:
    said = {
        1: "The client specifically asked for a blue color scheme with rounded corners.",
        2: "We agreed to deploy on AWS us-east-1.",
        3: "The team prefers to use Tailwind CSS over Bootstrap.",
    }
    async with session_with_turns(said, 40, facts=facts) as session:
        for turn, wordings in {
            1: ("What color scheme did the client ask for?", "Which colors does the client want?"),
            2: ("Where do we deploy?", "Which region did we agree to deploy in?"),
            3: ("Which CSS framework does the team prefer?", "What CSS does the team like to use?"),
        }.items():
            assert best_content(await recall_wordings(session, *wordings)).startswith(said[turn])


async def test_e1_5_of_twenty_facts_the_one_that_was_asked_for(facts: bool) -> None:
    said = {turn: fact for turn, (fact, _) in enumerate(DENSE.values(), 1)}
    async with session_with_turns(said, 60, facts=facts) as session:
        answers = [
            value in (await recall_wordings(session, question)).text()
            for question, (_, value) in DENSE.items()
        ]
        assert sum(answers) >= 19, [q for q, found in zip(DENSE, answers, strict=True) if not found]


async def test_e5_1_the_later_of_two_contradicting_decisions(facts: bool) -> None:
    said = {
        3: "Decision: Use JWT tokens for auth.",
        25: "Decision: We're switching to session cookies — JWT was too complex.",
    }
    async with session_with_turns(said, 40, facts=facts) as session:
        items = await recall_wordings(session, "What auth method are we using?", "How do we do auth?")
        shown = [item.content for item in items if item.content in said.values()]
        assert shown[-1] == said[25]
        assert facts is False or "session cookies" in best_content(items)
        assert all("Use JWT tokens" not in fact.content for fact in await session.facts())


CHAIN = {
    2: "Decision: We're building a Python backend.",
    5: "Decision: Since we chose Python, we'll use SQLAlchemy as the ORM.",
    8: "Decision: SQLAlchemy needs us to define models — using the declarative base pattern.",
}


async def test_e5_2_the_end_of_a_chain_and_what_it_rests_on(facts: bool) -> None:
    async with session_with_turns(CHAIN, 20, facts=facts) as session:
        items = await recall_wordings(
            session, "What ORM pattern are we using?", "Which pattern do the ORM models follow?"
        )
        assert "declarative base" in best_content(items)
        assert "Since we chose Python" in items.text()
        assert "Python backend" in items.text()


@pytest.mark.parametrize("turns", [10, 20, 30, 50, 75, 100, 150, 200])
async def test_e5_3_a_fact_does_not_fade(turns: int) -> None:
    async with session_with_turns(
        {1: "Decision: We'll use PostgreSQL for the database."}, turns, DISTRACTORS
    ) as session:
        items = await recall_wordings(session, "What database did we choose?", budget=300)
        assert "use PostgreSQL for the database" in best_content(items)


async def test_e5_4_a_small_budget_holds_what_was_asked_for(facts: bool) -> None:
    detail = (
        " It was discussed at length, with everybody in the room, and nobody had a better idea in the end."
    )
    said = {turn: f"Decision: {fact}{detail * 2}" for turn, (fact, _) in enumerate(DENSE.values(), 1)}
    async with session_with_turns(said, 60, facts=facts) as session:
        answers = [
            value in (await recall_wordings(session, question, budget=1000)).text()
            for question, (_, value) in DENSE.items()
        ]
        assert sum(answers) >= 19, [q for q, found in zip(DENSE, answers, strict=True) if not found]


async def test_e5_5_near_copies_of_a_fact_do_not_take_its_place(facts: bool) -> None:
    async with session_with_turns(
        {1: "Decision: Use PostgreSQL."}, 40, (*BLAND[:2], *REPHRASED), facts=facts
    ) as session:
        items = await recall_wordings(
            session, "What database did we choose?", "Which database did we decide on?"
        )
        assert "Use PostgreSQL." in best_content(items)
