"""The generated scenarios: the same every time, fair to who remembers, and silent about their answers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from acms import ValidationError
from acms.text.markers import detect_markers
from acms.text.tokenizer import content_terms, split_words
from acms_eval import (
    SCENARIOS,
    WEIGHTS,
    MostRecent,
    Probe,
    Recalled,
    Said,
    Scenario,
    carries,
    measure,
    phrases,
    spread,
)
from acms_eval.scenarios import DISTANCES, temporal_degradation

NAMES = list(SCENARIOS)
STATED = ("fact", "correction")


def make_scenario(name: str, turns: int = 200, seed: int = 0) -> Scenario:
    return SCENARIOS[name](turns=turns, seed=seed)


class Oracle:
    """Knows a scenario, and recalls the statement that answers the question, and nothing else."""

    name = "oracle"

    def __init__(self, scenario: Scenario) -> None:
        self.probes = {probe.question: probe for probe in scenario.probes}
        self.told: list[Said] = []

    async def tell(self, said: Said) -> None:
        if said.part in STATED:
            self.told.append(said)

    async def settle(self) -> None: ...

    async def ask(self, question: str, budget: int) -> Sequence[Recalled]:
        probe = self.probes[question]
        topics = probe.topic.split(" + ")
        newest = {said.topic: said.text for said in self.told if said.topic in topics}
        return [Recalled(text=text, score=1.0) for text in newest.values()]


class Amnesiac(Oracle):
    """Remembers nothing."""

    async def ask(self, question: str, budget: int) -> Sequence[Recalled]:
        return []


@pytest.mark.parametrize("name", NAMES)
async def test_who_remembers_everything_gives_every_answer(name: str) -> None:
    for seed in range(3):
        scenario = make_scenario(name, seed=seed)
        report = await measure(scenario, Oracle(scenario))
        assert len(report.scores) == len(scenario.probes) > 0
        for score in report.scores:
            assert score.hit, score.probe
            assert score.hit_at_5
            assert not score.outdated
            assert score.answered
            assert score.ndcg == 1.0


@pytest.mark.parametrize("name", NAMES)
async def test_who_remembers_nothing_gives_none(name: str) -> None:
    scenario = make_scenario(name)
    for score in (await measure(scenario, Amnesiac(scenario))).scores:
        assert not score.hit
        assert not score.answered
        assert score.precision is None


@pytest.mark.parametrize("name", NAMES)
async def test_the_newest_messages_do_not_know_what_was_said_long_ago(name: str) -> None:
    report = await measure(make_scenario(name, turns=1000), MostRecent(), budget=500)
    far = [score for score in report.scores if score.probe.after >= 100]
    assert sum(score.hit for score in far) <= 0.1 * len(far)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(name=st.sampled_from(NAMES), turns=st.integers(100, 400), seed=st.integers(0, 10**6))
def test_nothing_gives_an_answer_away(name: str, turns: int, seed: int) -> None:
    scenario = make_scenario(name, turns, seed)
    assert len(scenario.said) == turns
    assert all(one.text and one.role in ("user", "assistant") for one in scenario.said)
    assert [one.created_at for one in scenario.said] == sorted(one.created_at for one in scenario.said)
    said = {one.text for one in scenario.said}
    words_of = {word for probe in scenario.probes for word in (*probe.expected, *probe.forbidden)}
    decoys = {text for probe in scenario.probes for text in probe.decoys}
    for one in scenario.said:
        if one.part not in (*STATED, "reply"):
            assert one.text in decoys or not any(carries(one.text, word) for word in words_of), one
    for probe in scenario.probes:
        assert probe.question not in said
        assert not any(
            carries(probe.question, word) for word in (*probe.expected, *probe.forbidden, *probe.bonus)
        )
        assert 0 < probe.after <= turns
        stated = [one for one in scenario.said[: probe.after] if one.part in STATED]
        assert all(any(carries(one.text, word) for one in stated) for word in probe.expected)


@given(name=st.sampled_from(NAMES), turns=st.integers(100, 300), seed=st.integers(0, 10**6))
def test_the_same_turns_and_seed_give_the_same_conversation(name: str, turns: int, seed: int) -> None:
    assert make_scenario(name, turns, seed) == make_scenario(name, turns, seed)
    assert make_scenario(name, turns, seed).said != make_scenario(name, turns, seed + 1).said


@pytest.mark.slow
def test_it_is_the_same_in_another_process() -> None:
    code = (
        "from hashlib import sha256; from acms_eval import SCENARIOS;"
        "print(sha256(repr([one(turns=100, seed=7) for one in SCENARIOS.values()]).encode()).hexdigest())"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": hashed},
        ).stdout
        for hashed in ("1", "2")
    }
    assert len(found) == 1


@pytest.mark.parametrize("name", NAMES)
def test_what_is_proposed_follows_from_the_message(name: str) -> None:
    scenario = make_scenario(name, seed=3)
    assert [index for index, _ in scenario.proposals] == [
        index for index, one in enumerate(scenario.said) if one.part in STATED
    ]
    for index, proposal in scenario.proposals:
        value = proposal.value.lstrip("$")
        assert carries(scenario.said[index].text, value)
        assert carries(proposal.content, value)
        assert proposal.action == ("add" if scenario.said[index].part == "fact" else "update")


def _parts_of_scenario(scenario: Scenario, part: str = "fact") -> list[Said]:
    return [one for one in scenario.said if one.part == part]


@pytest.mark.parametrize("name", [*NAMES[:3], "goal_tracking", "semantic_distractors", "budget_pressure"])
def test_marked_scenarios_say_every_fact_with_a_marker(name: str) -> None:
    assert all(detect_markers(one.text) for one in _parts_of_scenario(make_scenario(name)))


@pytest.mark.parametrize("name", NAMES)
def test_nothing_but_a_statement_has_a_marker(name: str) -> None:
    for one in make_scenario(name, seed=5).said:
        assert one.part in STATED or not detect_markers(one.text), one


def test_unmarked_facts_have_no_marker_and_hardly_a_word_of_their_question() -> None:
    shared: list[int] = []
    for seed in range(12):
        scenario = make_scenario("unmarked_facts", seed=seed)
        for one in _parts_of_scenario(scenario):
            assert not detect_markers(one.text)
        for probe in scenario.probes:
            fact = next(one for one in _parts_of_scenario(scenario) if one.topic == probe.topic)
            shared.append(
                len(
                    set(content_terms(split_words(probe.question)))
                    & set(content_terms(split_words(fact.text)))
                )
            )
    assert max(shared) <= 2
    assert shared.count(0) == len(shared) / 4


def test_a_correction_comes_later_in_many_words_and_leaves_the_rest_alone() -> None:
    texts: list[str] = []
    for seed in range(10):
        scenario = make_scenario("fact_correction", seed=seed)
        later = _parts_of_scenario(scenario, "correction")
        assert len(_parts_of_scenario(scenario)) == 8
        assert len(later) == 5
        assert all(detect_markers(one.text) for one in later)
        assert sum(bool(probe.forbidden) for probe in scenario.probes) == 5
        texts += [one.text for one in later]
        for probe in scenario.probes:
            facts = [one for one in _parts_of_scenario(scenario) if one.topic == probe.topic]
            if probe.forbidden:
                assert all(carries(facts[0].text, word) for word in probe.forbidden)
                assert not all(carries(facts[0].text, word) for word in probe.expected)
    beginnings = {text.split(": ", 1)[1].split()[0] for text in texts}
    assert len(beginnings) >= 10


def test_a_contradiction_may_come_twice_and_without_a_word_of_change() -> None:
    scenario = make_scenario("contradiction")
    assert sorted(len(probe.forbidden) for probe in scenario.probes) == [1, 1, 2]
    for probe in scenario.probes:
        told = [one for one in scenario.said if one.topic == probe.topic and one.part in STATED]
        assert all(carries(told[-1].text, word) for word in probe.expected)


def test_a_chain_is_said_step_by_step_and_its_beginning_is_the_bonus() -> None:
    scenario = make_scenario("cascading_decisions", seed=2)
    assert sorted(len(probe.bonus) for probe in scenario.probes) == [0, 0, 1, 1, 2, 2]
    for probe in scenario.probes:
        places = [
            next(i for i, one in enumerate(scenario.said) if one.part == "fact" and carries(one.text, word))
            for word in (*probe.bonus, *probe.expected)
        ]
        assert places == sorted(places)


def test_distractors_are_all_there_is_beside_the_facts() -> None:
    scenario = make_scenario("semantic_distractors")
    topics = {probe.topic for probe in scenario.probes}
    assert {one.part for one in scenario.said} == {"fact", "reply", "noise"}
    assert {one.topic for one in scenario.said} == topics


def test_overlapping_facts_take_their_values_from_one_category() -> None:
    scenario = make_scenario("overlapping_facts")
    found = phrases()
    values = {value for domain in found.domains for value in domain.values}
    assert len(scenario.probes) == 10
    answers = [probe.expected[0] for probe in scenario.probes]
    assert set(answers) <= values
    assert len(set(answers)) == 10


def test_dense_facts_are_all_said_in_the_first_twenty_exchanges() -> None:
    scenario = make_scenario("high_density")
    assert [index for index, one in enumerate(scenario.said) if one.part == "fact"] == list(range(0, 40, 2))
    assert len(scenario.probes) == 20


async def test_twenty_long_facts_are_more_than_a_thousand_tokens() -> None:
    scenario = make_scenario("budget_pressure")
    assert scenario.budget == 1000
    told = MostRecent()
    for one in _parts_of_scenario(scenario):
        await told.tell(one)
    assert sum(item.tokens for item in await told.ask("everything?", 10**6)) > 1000


def test_half_of_the_noise_names_the_value_as_hearsay_and_does_not_count() -> None:
    scenario = make_scenario("noise_injection")
    users = [one for one in scenario.said if one.role == "user"]
    noise = [one for one in users if one.part in ("noise", "echo")]
    assert abs(len(noise) - (len(users) - 8) / 2) <= 1
    assert any(probe.decoys for probe in scenario.probes)
    for probe in scenario.probes:
        for text in probe.decoys:
            assert any(carries(text, word) for word in probe.expected)


async def test_who_recalls_nothing_but_hearsay_gives_no_answer() -> None:
    scenario = make_scenario("noise_injection")

    class Gossip(Oracle):
        async def ask(self, question: str, budget: int) -> Sequence[Recalled]:
            return [Recalled(text=f"user: {text}") for text in self.probes[question].decoys]

    for score in (await measure(scenario, Gossip(scenario))).scores:
        assert not score.hit
        assert not score.precision
        assert score.ndcg == 0.0


def test_one_question_is_asked_at_every_distance_that_fits() -> None:
    scenario = temporal_degradation(turns=1001, seed=1, noise=0.5)
    assert scenario.budget == 300
    assert tuple(probe.after - 1 for probe in scenario.probes) == tuple(
        one for one in DISTANCES if one <= 1000
    )
    assert len({probe.question for probe in scenario.probes}) == 1
    assert [index for index, one in enumerate(scenario.said) if one.part == "fact"] == [0]
    parts = [one.part for one in scenario.said if one.role == "user"]
    assert parts.count("noise") == 250
    assert not {one.part for one in temporal_degradation(turns=300).said} & {"noise"}


def test_probes_can_be_spread_over_what_follows_the_last_statement() -> None:
    scenario = spread(make_scenario("high_density", turns=500))
    last = max(index for index, one in enumerate(scenario.said) if one.part in STATED)
    dues = [probe.after for probe in scenario.probes]
    assert last < dues[0]
    assert dues == sorted(set(dues))
    assert dues[-1] == 500


def test_a_short_conversation_has_fewer_facts() -> None:
    assert len(make_scenario("decision_tracking", turns=10).probes) == 2
    assert len(make_scenario("decision_tracking", turns=80).probes) == 5


@pytest.mark.parametrize("name", NAMES)
def test_too_short_a_conversation_is_refused(name: str) -> None:
    with pytest.raises(ValidationError, match="at least") as caught:
        make_scenario(name, turns=9)
    assert caught.value.field == "turns"


def test_every_scenario_of_the_composite_is_there() -> None:
    assert set(WEIGHTS) < set(SCENARIOS)


async def test_an_answer_in_two_items_counts_for_a_double_question() -> None:
    scenario = make_scenario("multi_fact_tracking")
    double = [probe for probe in scenario.probes if " + " in probe.topic]
    assert len(double) == 5
    assert all(isinstance(probe, Probe) and len(probe.expected) >= 2 for probe in double)
    report = await measure(replace(scenario, probes=tuple(double)), Oracle(scenario))
    assert all(score.hit and not score.hit_at_1 for score in report.scores)
