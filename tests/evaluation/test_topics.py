"""Word lists: any list works as well as the shipped one, and a broken one is reported with its fault."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from acms import ValidationError
from acms_eval import SCENARIOS, Scenario, phrases
from acms_eval.topics import SHIPPED, phrases_of_seed

Document = dict[str, Any]


def shipped_document() -> Document:
    return json.loads((files("acms_eval") / "data" / "software.json").read_text(encoding="utf-8"))


def save_document(folder: Path, document: Any) -> Path:
    path = folder / "words.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document), encoding="utf-8")
    return path


def coined_document() -> tuple[Document, set[str]]:
    """Return the list with other values, other cues and other small talk; and the values that it had."""
    document = shipped_document()
    count = 0
    old: set[str] = set()

    def coin(values: list[str]) -> list[str]:
        nonlocal count
        old.update(values)
        count += len(values)
        return [f"Quib{number:04d}x" for number in range(count - len(values), count)]

    for group in ("topics", "constraints", "failures", "goals", "domains"):
        for one in document[group]:
            one["values"] = coin(one["values"])
            one["whole"] = True
            if group == "domains":
                del one["whole"]
    for chain in document["chains"]:
        chain["options"] = [coin(option) for option in chain["options"]]
    document["cues"] = ["Nope, the {what} shall henceforth be {v}.", "Rather {v} than {old} for the {what}."]
    document["bland"] = ["Hum.", "Well, well.", "I fed the hens."]
    document["nods"] = ["Aye.", "So it is."]
    return document, old


def test_every_scenario_can_be_written_from_another_list(tmp_path: Path) -> None:
    document, old = coined_document()
    found = phrases(save_document(tmp_path, document))
    values = re.compile(
        "|".join(rf"(?<!\w){re.escape(value)}(?!\w)" for value in sorted(old) if len(value) > 5)
    )
    corrected = ""
    for name, builder in SCENARIOS.items():
        scenario = builder(turns=200, seed=1, phrases=found)
        text = "\n".join(one.text for one in scenario.said)
        assert not values.search(text), name
        assert all(word.startswith("Quib") for probe in scenario.probes for word in probe.expected)
        assert scenario == builder(turns=200, seed=1, phrases=found)
        assert scenario != builder(turns=200, seed=1)
        corrected += "".join(one.text for one in scenario.said if one.part == "correction")
    assert "henceforth" in corrected or "Rather" in corrected


def test_the_list_that_comes_along_is_read_once_and_as_any_other(tmp_path: Path) -> None:
    assert phrases() is phrases()
    assert phrases(save_document(tmp_path, shipped_document())) == phrases()
    document = shipped_document()
    del document["name"]
    assert phrases(save_document(tmp_path, document)).name == "words"


def test_seeds_take_turns_with_lists_that_have_no_value_in_common() -> None:
    lists = [phrases(name) for name in SHIPPED]
    assert [one.name for one in lists] == list(SHIPPED)
    assert [phrases_of_seed(lists, seed) for seed in range(4)] == [*lists, lists[0]]
    assert (phrases_of_seed(lists[1], 0), phrases_of_seed((), 3), phrases_of_seed(None, 3)) == (
        lists[1],
        None,
        None,
    )
    for one in lists:
        for name, builder in SCENARIOS.items():
            assert builder(turns=100, seed=2, phrases=one).words == one.name, name
    values = [{value for topic in one.topics for value in topic.values} for one in lists]
    assert len(set().union(*values)) == sum(map(len, values))


def _topic_values(document: Document) -> list[str]:
    return document["topics"][3]["values"]


def _make_changed_document(change: Callable[[Document], object]) -> Callable[[], Any]:
    def changed() -> Document:
        document = shipped_document()
        change(document)
        return document

    return changed


BROKEN: dict[str, tuple[Callable[[], Any], str, str]] = {
    "no JSON": (lambda: "{", "phrases", "not JSON"),
    "a list": (lambda: [], "phrases", "must be an object"),
    "no section": (
        _make_changed_document(lambda d: (d.pop("cues"), d.pop("chains"))),
        "phrases",
        "lacks chains, cues",
    ),
    "an unknown section": (_make_changed_document(lambda d: d.update(cuse=["x"])), "phrases", "has cuse"),
    "a topic without noise": (
        _make_changed_document(lambda d: d["topics"][3].pop("noise")),
        "topics[3]",
        "lacks noise",
    ),
    "a text instead of a list": (
        _make_changed_document(lambda d: d.update(bland="Well.")),
        "bland",
        "must be a list",
    ),
    "a number in a list": (
        _make_changed_document(lambda d: d["nods"].append(3)),
        "nods[10]",
        "must be a text",
    ),
    "an empty text": (_make_changed_document(lambda d: d["bland"].append(" ")), "bland[24]", "not empty"),
    "too few topics": (_make_changed_document(lambda d: d["topics"].pop()), "topics", "at least 20, has 19"),
    "too few values": (
        _make_changed_document(lambda d: _topic_values(d).__delitem__(slice(4, None))),
        "topics[3].values",
        "5 different",
    ),
    "a value in another": (
        _make_changed_document(lambda d: _topic_values(d).append("Oracle Cloud")),
        "topics[3].values",
        "tells them apart",
    ),
    "a value of two topics": (
        _make_changed_document(lambda d: _topic_values(d).append("Redis Labs")),
        "topics[15].values",
        "redis",
    ),
    "a fact without its value": (
        _make_changed_document(lambda d: d["topics"][3]["plain"].append("We have a database.")),
        "topics[3].plain[2]",
        "lacks {v}",
    ),
    "an unknown slot": (
        _make_changed_document(lambda d: d["topics"][3]["noise"].append("I like {c}.")),
        "topics[3].noise[5]",
        "{c}",
    ),
    "half a slot": (
        _make_changed_document(lambda d: d["cues"].append("It is {v")),
        "cues[18]",
        "no phrasing",
    ),
    "a marked fact without a marker": (
        _make_changed_document(lambda d: d["topics"][3]["marked"].append("We use {v}.")),
        "topics[3].marked",
        "must start with a marker",
    ),
    "a plain fact with one": (
        _make_changed_document(lambda d: d["goals"][0]["plain"].append("Goal: {v}.")),
        "goals[0].plain",
        "must have no marker",
    ),
    "a question that answers": (
        _make_changed_document(lambda d: d["topics"][3]["questions"].append("Is it Oracle?")),
        "topics[3].questions[2]",
        "names the value 'Oracle'",
    ),
    "a fact type that is not announced": (
        _make_changed_document(lambda d: d["announced"].pop("goal")),
        "announced",
        "lacks goal",
    ),
    "a domain with too few values": (
        _make_changed_document(lambda d: d["domains"][0]["values"].__delitem__(slice(5, None))),
        "domains[0].values",
        "at least 7",
    ),
    "a chain with a step too few": (
        _make_changed_document(lambda d: d["chains"][0]["options"][1].pop()),
        "chains[0].options[1]",
        "one a step",
    ),
    "a chain that looks ahead": (
        _make_changed_document(lambda d: d["chains"][0]["said"][0].append("Decision: {0}, then {1}.")),
        "chains[0].said[0]",
        "{1}",
    ),
    "a cardinality that is none": (
        _make_changed_document(lambda d: d["topics"][0].update(cardinality="few")),
        "topics[0].cardinality",
        '"one" or "many"',
    ),
    "whole that is no truth": (
        _make_changed_document(lambda d: d["topics"][0].update(whole="no")),
        "topics[0].whole",
        "true or false",
    ),
    "too little that can change": (
        _make_changed_document(
            lambda d: [one.update(corrected=[], corrected_plain=[]) for one in d["topics"][4:]]
        ),
        "topics",
        "at least 8 of them need corrected",
    ),
}


@pytest.mark.parametrize(("broken", "field", "problem"), BROKEN.values(), ids=BROKEN)
def test_a_broken_list_says_where_and_what(
    tmp_path: Path, broken: Callable[[], Any], field: str, problem: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        phrases(save_document(tmp_path, broken()))
    assert caught.value.field == field
    assert problem in str(caught.value)


def test_a_file_that_is_not_there_is_an_error_of_the_input(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="cannot read the word list"):
        phrases(tmp_path / "nowhere.json")


def test_small_talk_that_names_an_answer_is_left_out(tmp_path: Path) -> None:
    document = shipped_document()
    document["bland"] += [f"Did somebody say {value}?" for value in _topic_values(document)]
    found = phrases(save_document(tmp_path, document))
    for seed in range(5):
        scenario: Scenario = SCENARIOS["high_density"](turns=300, seed=seed, phrases=found)
        answer = next(probe.expected[0] for probe in scenario.probes if probe.topic == "database")
        assert f"Did somebody say {answer}?" not in {one.text for one in scenario.said}


def test_small_talk_that_names_nothing_but_answers_is_refused(tmp_path: Path) -> None:
    document = shipped_document()
    document["bland"] = [" ".join(value for topic in document["topics"] for value in topic["values"])]
    with pytest.raises(ValidationError) as caught:
        SCENARIOS["high_density"](turns=100, phrases=phrases(save_document(tmp_path, document)))
    assert caught.value.field == "bland"
