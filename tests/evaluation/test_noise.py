"""Facts must not push out an answer: leaving out noise is for what no fact answers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from acms.knowledge import Proposal
from acms_eval import PerfectReflector, Probe, Said, Scenario, run

START = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
TALK = (
    "Decision: tests are written with Jasmine.",
    "Decision: we use Flask as the web framework.",
    *(
        f"Somebody tested the {thing} of number {floor}."
        for thing in ("lift", "door", "lamp")
        for floor in range(20)
    ),
    "I will have to ask somebody about that.",
    "The train was late again.",
    "Please go on.",
    "Time for tea.",
    "With milk, please.",
    "Of course.",
)
FACTS = (
    Proposal(
        content="Tests are written with Jasmine.",
        subject="project",
        attribute="tests",
        value="Jasmine",
        cardinality="one",
        fact_type="decision",
    ),
    Proposal(
        content="We use Flask as the web framework.",
        subject="project",
        attribute="web framework",
        value="Flask",
        cardinality="one",
        fact_type="decision",
    ),
)


async def test_an_answer_that_alone_names_a_word_of_the_question_stays_beside_a_better_one() -> None:
    said = tuple(
        Said(role="user", text=text, created_at=START + timedelta(minutes=place))
        for place, text in enumerate(TALK)
    )
    probes = (
        Probe(question="What test framework do we use?", expected=("Jasmine",), after=len(said)),
        Probe(question="Which web framework do we use?", expected=("Flask",), after=len(said)),
    )
    scenario = Scenario(name="tests", said=said, probes=probes, proposals=tuple(enumerate(FACTS)))
    report = await run(scenario, reflector=PerfectReflector(scenario))
    assert [score.hit for score in report.scores] == [True, True]
    assert report.scores[1].precision_past == 1.0
