"""Records of a text, and those that are read together."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from acms.text.records import Outline, split_records

PIECES = st.sampled_from(
    ["a b", "{", "}", "[1, 2],", '"x": "y. z",', "# one", "## two", "\n", "\n\n", "  ", ". ", ","]
)


def _block(text: str, needle: str) -> str:
    """Return the block of the record that holds a string."""
    records = split_records(text)
    index = next(index for index, record in enumerate(records) if needle in text[record.start : record.end])
    block = sorted(Outline(text, records).list_block(index))
    return "".join([text[records[index].start : records[index].end] for index in block])


@given(st.lists(PIECES, max_size=40).map("".join))
def test_records_are_the_whole_text_and_a_block_begins_with_its_record(text: str) -> None:
    records = split_records(text)
    assert "".join([text[record.start : record.end] for record in records]) == (text if text.strip() else "")
    outline = Outline(text, records)
    for index in range(len(records)):
        block = outline.list_block(index)
        assert block[0] == index
        assert len(block) == len(set(block))
        assert set(block) <= set(range(len(records)))


def test_the_block_of_a_field_is_its_object() -> None:
    objects = [{"id": number, "address": {"city": f"city {number}"}, "status": "ok"} for number in range(20)]
    text = json.dumps(objects, indent=2)
    assert json.loads(_block(text, "city 7").rstrip(",\n")) == objects[7]


def test_an_object_in_a_long_line_is_one_record() -> None:
    objects = [{"id": number, "tags": ["a", "b"], "status": "ok"} for number in range(40)]
    text = json.dumps({"items": objects})
    assert json.loads(_block(text, '"id": 7,').rstrip(", ")) == objects[7]


def test_the_block_of_a_heading_is_its_section() -> None:
    text = "# Book\n\nAbout it.\n\n## One\n\nFirst.\n\n### Deeper\n\nMore.\n\n## Two\n\nSecond.\n"
    assert _block(text, "## One") == "# Book\n\n## One\n\nFirst.\n\n### Deeper\n\nMore.\n\n"
    assert _block(text, "Second.") == "## Two\n\nSecond.\n"


def test_the_block_of_a_statement_is_its_function() -> None:
    first = "def first(host):\n    port = 1\n\n    return port\n"
    text = f"import os\n\n\n{first}\n\ndef second(host):\n    return 2\n"
    assert _block(text, "port = 1").rstrip() == first.rstrip()


def test_a_line_of_a_log_stands_alone_beside_the_header() -> None:
    rows = "".join(f"{number},host {number},ok\n" for number in range(40))
    assert _block(f"id,host,state\n{rows}", "host 21") == "id,host,state\n0,host 0,ok\n21,host 21,ok\n"


def test_a_sentence_of_a_long_line_stands_alone() -> None:
    text = "One is here. Two is there. Three is gone. " + "Four is everywhere. " * 20
    assert _block(text, "Two") == "Two is there. "


def test_sentences_of_a_line_of_ordinary_length_stay_together() -> None:
    lines = [f'mod{number}.py:7: """Read it. Close file {number}. Return it."""\n' for number in range(40)]
    assert _block("".join(lines), "file 21.").endswith(lines[21])


def test_a_ruled_heading_of_a_report_stands_above_its_lines() -> None:
    failures = [
        f"____ test_{number} ____\n\n    assert total({number})\nE   no total of {number}\n"
        for number in range(9)
    ]
    text = "==== FAILURES ====\n" + "".join(failures)
    assert _block(text, "total of 4").startswith("____ test_4 ____")
