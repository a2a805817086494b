"""Entries as plain JSON: written values read back, and only known values are revived."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acms import Entry, Kind, Media, Origin, Privacy, Raw, Reasoning, Role, State, Text, ToolCall, ToolResult
from acms.errors import CorruptRecordError
from acms.log.encoding import (
    FORMAT,
    context_from_json,
    context_to_json,
    dump,
    entry_from_json,
    entry_to_json,
    load_mapping,
    parts_from_json,
    parts_to_json,
    spans_from_json,
)
from acms.model import Context
from tests.support.logs import NOON, make_entry

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
names = texts.filter(str.strip)
maybe = st.none() | names
numbers = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(names, values, max_size=4)
spans = st.tuples(st.integers(1, 99), st.integers(1, 99)).map(lambda span: (min(span), max(span)))
parts = (
    st.builds(Text, texts)
    | st.builds(Reasoning, texts, maybe)
    | st.builds(ToolCall, names, names, texts)
    | st.builds(ToolResult, names, texts, st.booleans())
    | st.builds(Media, names, texts, texts, st.integers(0, 9999))
    | st.builds(Raw, names, texts)
)
entries = st.builds(
    Entry,
    kind=st.sampled_from(list(Kind)),
    content=texts,
    key=maybe,
    created_at=st.datetimes(timezones=st.just(UTC)),
    tokens=st.integers(0, 999),
    origin=st.sampled_from(list(Origin)),
    privacy=st.sampled_from(list(Privacy)),
    role=st.none() | st.sampled_from(list(Role)),
    actor=maybe,
    parts=st.lists(parts, max_size=4).map(tuple),
    markers=st.lists(names, max_size=3).map(tuple),
    detected=st.booleans(),
    episode=st.integers(0, 9),
    closes=maybe,
    group=maybe,
    covers=st.none() | spans,
    replaces=st.lists(spans, max_size=3).map(tuple),
    sources=st.lists(names, max_size=3).map(tuple),
    data=objects,
    metadata=objects,
    context=names,
    version=st.integers(1, 2**40),
    position=st.none() | st.integers(1, 2**40),
    id=names,
    batch=st.integers(1, 99),
    total=st.integers(0, 999),
    salt=st.none() | st.binary(min_size=16, max_size=16),
    digest=st.binary(min_size=32, max_size=32),
    chain=st.binary(min_size=32, max_size=32),
    state=st.sampled_from(list(State)),
)
contexts = st.builds(
    Context,
    id=names,
    namespace=names,
    key=maybe,
    root=names,
    parent=maybe,
    fork=st.none() | st.integers(0, 99),
    lineage=st.lists(st.tuples(names, st.integers(0, 99)), max_size=3).map(tuple),
    counter=names,
    settings=objects,
    settings_rev=st.integers(0, 9),
    created_at=st.datetimes(timezones=st.just(UTC)),
    deleted_at=st.none() | st.datetimes(timezones=st.just(UTC)),
)


@given(entries)
def test_an_entry_reads_back_as_it_was_written(one: Entry) -> None:
    assert entry_from_json(json.loads(dump(entry_to_json(one)))) == one


@given(contexts)
def test_a_context_reads_back_as_it_was_written(one: Context) -> None:
    assert context_from_json(json.loads(dump(context_to_json(one)))) == one


@given(st.lists(parts, max_size=6))
def test_parts_read_back_as_they_were_written(found: list[Any]) -> None:
    assert parts_from_json(json.loads(json.dumps(parts_to_json(found)))) == tuple(found)


def test_a_raw_item_is_kept_byte_for_byte() -> None:
    raw = Raw("openai", '{"b" :1,\n"a":"\\u00e9é"}')
    assert parts_from_json(json.loads(dump(parts_to_json([raw])))) == (raw,)


def test_fields_that_say_nothing_are_not_written() -> None:
    written = entry_to_json(make_entry(1, "hello"))
    assert {"key", "parts", "markers", "group", "replaces", "metadata", "privacy", "state"}.isdisjoint(
        written
    )


def test_the_same_value_is_always_written_the_same_way() -> None:
    assert dump({"b": 1, "a": [1, {"y": 2, "x": 1}], "é": "ü"}) == '{"a":[1,{"x":1,"y":2}],"b":1,"é":"ü"}'


def test_what_is_read_cannot_be_changed_by_its_reader() -> None:
    read = entry_from_json(entry_to_json(make_entry(1, "hello", metadata={"run": 1}, data={"a": 1})))
    assert isinstance(read.metadata, MappingProxyType)
    assert isinstance(read.data, MappingProxyType)


# ── what is no entry ────────────────────────────────────────────────────────────────────────────────────────────────

GOOD = entry_to_json(
    make_entry(
        3, "hello", role=Role.TOOL, parts=(ToolResult("c1", "hello"),), replaces=((1, 2),), salt=b"x" * 16
    )
)
MISSING = object()
PLANTED = {"lc": 2, "type": "constructor", "id": ["os", "system"], "kwargs": {"command": "true"}}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("version", MISSING),
        ("version", "x"),
        ("version", None),
        ("id", MISSING),
        ("id", 5),
        ("context", PLANTED),
        ("kind", "thought"),
        ("kind", PLANTED),
        ("kind", MISSING),
        ("content", MISSING),
        ("content", 5),
        ("content", None),
        ("content", PLANTED),
        ("key", 5),
        ("actor", ["Sam"]),
        ("group", {"a": 1}),
        ("closes", 1),
        ("created_at", "yesterday"),
        ("created_at", 5),
        ("created_at", "2026-03-14T12:00:00"),
        ("origin", "nowhere"),
        ("privacy", "secret"),
        ("role", "king"),
        ("state", "undead"),
        ("parts", [{"type": "exec", "code": "1"}]),
        ("parts", [PLANTED]),
        ("parts", [{"text": "no type"}]),
        ("parts", [{"type": "text"}]),
        ("parts", [{"type": "text", "text": "x", "more": 1}]),
        ("parts", [{"type": "text", "text": 5}]),
        ("parts", [{"type": "tool_result", "call_id": "c1", "output": PLANTED}]),
        ("parts", ["text"]),
        ("parts", 5),
        ("parts", {"type": "text"}),
        ("replaces", [[1]]),
        ("replaces", [[1, 2, 3]]),
        ("replaces", ["ab"]),
        ("covers", [1]),
        ("covers", "x"),
        ("markers", 5),
        ("markers", [5]),
        ("sources", [None]),
        ("data", [1]),
        ("metadata", "x"),
        ("salt", "not base 64!"),
        ("salt", 5),
        ("digest", "zz"),
        ("digest", MISSING),
        ("chain", None),
        ("position", "three"),
        ("tokens", "many"),
    ],
)
def test_a_record_that_makes_no_sense_is_corrupt(field: str, value: Any) -> None:
    written = dict(GOOD)
    if value is MISSING:
        del written[field]
    else:
        written[field] = value
    with pytest.raises(CorruptRecordError):
        entry_from_json(written)


@pytest.mark.parametrize("written", [{}, [], None, "x", 5, PLANTED])
def test_what_is_no_object_is_no_entry_and_no_context(written: Any) -> None:
    with pytest.raises(CorruptRecordError):
        entry_from_json(written)
    with pytest.raises(CorruptRecordError):
        context_from_json(written)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("acms", FORMAT + 1),
        ("acms", "x"),
        ("lineage", [["a"]]),
        ("lineage", 5),
        ("settings", 5),
        ("created_at", "x"),
    ],
)
def test_a_context_that_makes_no_sense_is_corrupt(field: str, value: Any) -> None:
    good = Context(id="c_1", root="c_1", counter="x", created_at=datetime(2026, 1, 1, tzinfo=UTC))
    with pytest.raises(CorruptRecordError):
        context_from_json({**context_to_json(good), field: value})


@pytest.mark.parametrize("written", ["[1]", '"x"', "5", "null"])
def test_a_mapping_must_be_an_object(written: str) -> None:
    with pytest.raises(CorruptRecordError):
        load_mapping(written)


def test_no_mapping_is_the_shared_empty_one_and_cannot_be_changed() -> None:
    assert load_mapping(None) == {}
    assert isinstance(load_mapping('{"a": 1}'), MappingProxyType)


def test_spans_are_pairs_of_numbers() -> None:
    assert spans_from_json([[1, 2], [3, 3]]) == ((1, 2), (3, 3))


WATCHED = """
import json, sys
from acms.log.encoding import entry_from_json
from acms.errors import CorruptRecordError
records = json.loads(sys.stdin.read())
entry_from_json(records[0])  # how an entry is read is made of its own annotations, once
events = ("import", "exec", "compile", "open", "os.system", "subprocess.Popen", "pickle.find_class")
seen, watching = [], True
sys.addaudithook(lambda event, args: seen.append((event, args)) if watching and event in events else None)
read = 0
for record in records:
    try:
        entry_from_json(record)
        read += 1
    except CorruptRecordError:
        pass
watching = False
print(json.dumps({"read": read, "seen": [event for event, _ in seen]}))
"""


def test_reading_planted_records_imports_nothing() -> None:
    records = [
        GOOD,
        {**GOOD, "metadata": PLANTED, "data": {"__reduce__": ["os.system", "true"]}},
        {**GOOD, "content": "!!python/object/apply:os.system ['true']"},
        {**GOOD, "version": 10**30},
        {**GOOD, "parts": [PLANTED]},
        {**GOOD, "kind": "__import__('antigravity')"},
    ]
    ran = subprocess.run(
        [sys.executable, "-c", WATCHED], input=json.dumps(records), capture_output=True, text=True, check=True
    )
    assert json.loads(ran.stdout) == {"read": 4, "seen": []}


def test_times_keep_their_microseconds() -> None:
    one = make_entry(1, "x", created_at=NOON.replace(microsecond=123456))
    assert entry_from_json(entry_to_json(one)).created_at.microsecond == 123456
