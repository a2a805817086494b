"""Scenarios: written by rule, honest in what they hide, and never giving an answer away."""

from __future__ import annotations

from collections import Counter

import pytest

from acms import ValidationError
from acms.text.markers import detect_markers
from acms_eval import Scenario, carries, corrections
from acms_eval.topics import phrases

PHRASES = phrases()
TOPICS = PHRASES.topics
RUNS = [(200, 0, True), (200, 1, False), (101, 2, True), (1000, 3, True), (3000, 4, False)]


@pytest.fixture(params=RUNS, ids=str)
def scenario(request: pytest.FixtureRequest) -> Scenario:
    turns, seed, marked = request.param
    return corrections(turns=turns, seed=seed, marked=marked)


def test_a_scenario_is_the_same_every_time(scenario: Scenario) -> None:
    _, length, variant, seed = scenario.name.split("-")
    again = corrections(turns=int(length), seed=int(seed), marked=variant == "marked")
    assert again == scenario


def test_another_seed_is_another_conversation() -> None:
    assert corrections(seed=1).said != corrections(seed=2).said


def test_it_has_as_many_messages_as_asked_for_facts_early_and_corrections_later() -> None:
    for turns, seed, marked in RUNS:
        scenario = corrections(turns=turns, seed=seed, marked=marked)
        parts = Counter(one.part for one in scenario.said)
        assert len(scenario.said) == turns
        assert parts["fact"] == len(TOPICS) == 20
        assert parts["correction"] == 3
        early = [index for index, one in enumerate(scenario.said) if one.part == "fact"]
        late = [index for index, one in enumerate(scenario.said) if one.part == "correction"]
        assert early[-1] < min(80, turns * 6 // 10)
        assert early[-1] < late[0]
        assert late[-1] < turns * 8 // 10


def test_half_of_the_rest_is_noise_about_other_values_before_and_after_the_corrections() -> None:
    scenario = corrections(turns=200, seed=5)
    parts = Counter(one.part for one in scenario.said)
    assert abs(parts["noise"] - parts["filler"]) <= 16
    for index, one in enumerate(scenario.said):
        if one.part == "correction":
            noise = [
                place
                for place, other in enumerate(scenario.said)
                if other.part == "noise" and other.topic == one.topic
            ]
            assert noise[0] < index < noise[-1]


def test_no_probe_is_ever_in_memory(scenario: Scenario) -> None:
    said = {one.text for one in scenario.said}
    assert not said & {probe.question for probe in scenario.probes}


def test_no_probe_names_its_answer(scenario: Scenario) -> None:
    for probe in scenario.probes:
        assert not any(carries(probe.question, word) for word in probe.expected + probe.forbidden)


def test_every_topic_is_asked_about_once(scenario: Scenario) -> None:
    assert Counter(probe.topic for probe in scenario.probes) == Counter(topic.name for topic in TOPICS)
    assert sum(bool(probe.forbidden) for probe in scenario.probes) == 3


def test_a_correction_contradicts_what_was_said_before(scenario: Scenario) -> None:
    for probe in scenario.probes:
        facts = [one for one in scenario.said if one.topic == probe.topic and one.part == "fact"]
        later = [one for one in scenario.said if one.topic == probe.topic and one.part == "correction"]
        assert len(facts) == 1
        assert len(later) == bool(probe.forbidden)
        told = later[-1] if later else facts[-1]
        assert all(carries(told.text, word) for word in probe.expected)
        if later:
            assert not any(carries(facts[0].text, word) for word in probe.expected)
            assert all(carries(facts[0].text, word) for word in probe.forbidden)


def test_nothing_else_says_an_answer(scenario: Scenario) -> None:
    """Only the facts, their corrections and the replies to them hold the words that are looked for."""
    words = {
        word: probe.topic
        for probe in scenario.probes
        for word in (" ".join(probe.expected), *probe.forbidden)
    }
    for one in scenario.said:
        for word, topic in words.items():
            if carries(one.text, word):
                assert one.topic == topic
                assert one.part in ("fact", "correction", "reply")


def test_texts_without_a_value_name_none() -> None:
    """A value is found only where it was put: no two topics share one, and no phrasing holds one."""
    values = [value.lstrip("$") for topic in TOPICS for value in topic.values]
    assert len({value.casefold() for value in values}) == len(values)
    phrasings = [*PHRASES.acknowledged, *PHRASES.bland, *PHRASES.nods, *PHRASES.openers, *PHRASES.replies]
    for topic in TOPICS:
        phrasings += [topic.content, *topic.marked, *topic.plain, *topic.corrected, *topic.corrected_plain]
        phrasings += [*topic.questions, *topic.noise]
    found = [(text, value) for text in phrasings for value in values if carries(text, value)]
    assert not found
    assert not [(one, other) for one in values for other in values if one != other and carries(one, other)]


def test_marked_facts_carry_markers_and_plain_ones_none() -> None:
    for topic in TOPICS:
        for text in (*topic.marked, *topic.corrected):
            assert detect_markers(text), text
        for text in (*topic.plain, *topic.corrected_plain, *topic.noise):
            assert not detect_markers(text), text
        assert bool(topic.corrected) == bool(topic.corrected_plain)
    assert not any(
        detect_markers(text)
        for text in (*PHRASES.bland, *PHRASES.nods, *PHRASES.replies, *PHRASES.acknowledged)
    )


def test_probes_can_be_spread_over_what_follows_the_last_correction() -> None:
    spread = corrections(turns=1000, seed=1, spread=True)
    last = max(index for index, one in enumerate(spread.said) if one.part == "correction")
    dues = [probe.after for probe in spread.probes]
    assert dues == sorted(dues)
    assert last < dues[0]
    assert dues[-1] == 1000
    assert len(set(dues)) == 20
    assert {probe.after for probe in corrections(turns=1000, seed=1).probes} == {1000}


def test_proposals_are_bound_to_the_messages_that_say_so(scenario: Scenario) -> None:
    assert len(scenario.proposals) == 23
    for index, proposal in scenario.proposals:
        assert scenario.said[index].part in ("fact", "correction")
        assert carries(scenario.said[index].text, proposal.value.lstrip("$"))
        assert carries(proposal.content, proposal.value.lstrip("$"))
    addresses = Counter((proposal.subject, proposal.attribute) for _, proposal in scenario.proposals)
    assert sorted(addresses.values()) == [1] * 17 + [2] * 3


def test_messages_follow_each_other_in_time(scenario: Scenario) -> None:
    times = [one.created_at for one in scenario.said]
    assert times == sorted(times)
    assert len(set(times)) == len(times)


def test_too_short_a_conversation_is_refused() -> None:
    with pytest.raises(ValidationError, match="at least 100") as caught:
        corrections(turns=99)
    assert caught.value.field == "turns"
