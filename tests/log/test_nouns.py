"""Nouns as JSON: written by their fields, read strictly, named as they stand there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from acms import (
    Branch,
    Certainty,
    Change,
    Compaction,
    CompactionPolicy,
    ContextItem,
    Delta,
    Diff,
    Entry,
    Fact,
    Job,
    JobState,
    Kind,
    Lost,
    Media,
    Origin,
    Privacy,
    Raw,
    Reasoning,
    Redaction,
    ResolvedPolicy,
    Retired,
    Role,
    Source,
    Text,
    ToolCall,
    ToolResult,
)
from acms.model import Context
from acms.nouns import (
    PARTS,
    declare_wire_names,
    decode_noun,
    encode_noun,
    list_json_members,
    to_camel_case,
    to_snake_case,
)
from acms.privacy.modes import RedactedEntry

NOON = datetime(2026, 11, 24, 12, tzinfo=UTC)
ENTRY = Entry(
    content="run(x)",
    created_at=NOON,
    role=Role.TOOL,
    tokens=3,
    actor="Sam",
    episode=2,
    parts=(
        Text("a"),
        Reasoning("b", "sig"),
        ToolCall("c1", "run", '{"a_b": 1}'),
        ToolResult("c1", "done", True),
        Media("image/png", "s3://x", "0a", 7),
        Raw("openai", '{"x": 1}'),
    ),
    covers=(1, 2),
    replaces=((1, 1), (3, 4)),
    data={"some_name": {"inner_name": 1}},
    metadata={"toolName": "run", "snake_name": 2},
    context="c_0123456789abcdef",
    version=4,
    position=4,
    id="m_1",
    batch=4,
    total=9,
    salt=None,
    digest=b"\x01",
    chain=b"\x02",
)
ITEM = ContextItem(
    id="m_1",
    version=1,
    position=None,
    role=Role.USER,
    content="x",
    source=Source.SIMILAR,
    token_count=4,
    created_at=NOON,
    redaction=Redaction(Privacy.REDACT, (("email", 2), ("phone", 1))),
)
JOB = Job(
    id="j_1", kind="compact", dedupe="", context="c_1", state=JobState.READY, not_before=NOON,
    created_at=NOON, updated_at=NOON,
)  # fmt: skip
COMPACTION = Compaction(
    version=9, id="s_1", summary="…", replaces=(1, 8), spans=((1, 3), (5, 8)), tokens_before=90, tokens_after=9,
    preserved=1, removed=7, policy={"summary_tokens": 400}, lost=Lost(counts={"question": 1}), created_at=NOON,
)  # fmt: skip
POLICY = ResolvedPolicy(policy=CompactionPolicy(), levels={"summary_tokens": "service"})
DIFF = Diff(left="a v1", right="b v2", common=1, messages=Delta(changed=(Change(before=ENTRY, after=ENTRY),)))
FACT = Fact(id="f_1", content="x", retired=Retired(reason="updated", version=3, by="f_2"))
BRANCH = Branch(context_id="c_1", session_id="c_1", version=3, created_at=NOON)


@pytest.mark.parametrize(
    "noun",
    [ENTRY, ITEM, JOB, COMPACTION, POLICY, DIFF, FACT, BRANCH, Certainty(0.5)],
    ids=lambda one: type(one),
)
def test_what_was_written_reads_back(noun: Any) -> None:
    written = json.loads(json.dumps(encode_noun(noun)))
    assert not [name for name in written if "_" in name]
    assert decode_noun(type(noun), written) == noun
    assert decode_noun(type(noun), {**written, "of a newer release": 1}) == noun


def test_names_times_and_bytes_are_those_of_the_wire() -> None:
    written = encode_noun(ENTRY)
    assert written["contextId"] == "c_0123456789abcdef"
    assert written["tokenCount"] == 3
    assert written["createdAt"] == "2026-11-24T12:00:00Z"
    assert written["chainHash"] == "02"
    assert written["toolCallId"] == "c1"
    assert written["toolName"] == "run"
    assert written["episodeId"] == "ep_0123456789abcdef_2"
    assert "episode" not in written
    assert written["parts"][3] == {"type": "tool_result", "callId": "c1", "output": "done", "isError": True}
    assert encode_noun(JOB).keys().isdisjoint({"dedupe", "payload", "leaseUntil"})
    assert encode_noun(ITEM)["redaction"] == {"mode": "redact", "kinds": {"email": 2, "phone": 1}}
    assert encode_noun(BRANCH)["key"] is None


def test_what_is_somebody_elses_is_left_as_it_is() -> None:
    written = encode_noun(ENTRY)
    assert written["data"] == {"some_name": {"inner_name": 1}}
    assert written["metadata"] == {"toolName": "run", "snake_name": 2}
    assert encode_noun(COMPACTION)["policy"] == {"summaryTokens": 400}
    assert encode_noun(POLICY)["levels"] == {"summaryTokens": "service"}


def test_an_entry_keeps_its_salt_to_itself_also_when_it_is_shown_redacted() -> None:
    """With the salt and the digest a guess at a text that was erased meanwhile could be confirmed."""
    salted = replace(ENTRY, salt=b"salt")
    values = {name: getattr(salted, name) for name in Entry.__dataclass_fields__}
    cleared = RedactedEntry(**values, redaction=Redaction(Privacy.REDACT, (("email", 1),)))
    for written in (encode_noun(cleared, Entry), encode_noun(salted)):
        assert written["salt"] is None
        assert written["digest"] == ENTRY.digest.hex()
    assert encode_noun(cleared, Entry).keys() == encode_noun(ENTRY).keys()


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("version", True, "version: bool where int belongs"),
        ("version", "1", "version: str where int belongs"),
        ("content", None, "content: NoneType where str belongs"),
        ("tokenCount", 1.5, "tokenCount: float where int belongs"),
        ("score", "high", "score: str where float or int belongs"),
        ("markers", "decision", "markers: str where list or tuple belongs"),
        ("markers", [1], "int where str belongs"),
        ("role", "narrator", "narrator"),
        ("createdAt", "2026-11-24T12:00:00", "has no time zone"),
        ("parts", [{"type": "video"}], "video"),
        ("parts", [{"type": "text", "text": "a", "size": 1}], "size of a part is not known"),
        ("parts", [{"type": "text", "text": 1}], "text: int where str belongs"),
        ("metadata", [], "metadata: list where dict belongs"),
    ],
)
def test_what_is_of_another_type_is_refused_by_its_name(name: str, value: Any, said: str) -> None:
    with pytest.raises((KeyError, TypeError, ValueError), match=said):
        decode_noun(ContextItem, {**encode_noun(ITEM), name: value})


def test_what_is_missing_is_named() -> None:
    written = encode_noun(ITEM)
    del written["tokenCount"]
    with pytest.raises(KeyError, match="tokenCount"):
        decode_noun(ContextItem, written)
    with pytest.raises(TypeError, match="str where an object belongs"):
        decode_noun(ContextItem, "m_1")


def test_what_a_store_keeps_has_the_names_of_the_fields() -> None:
    zone = timezone(timedelta(hours=2))
    context = Context(
        id="c_1", root="c_1", lineage=(("c_0", 3),), counter="quarters", created_at=NOON.astimezone(zone)
    )
    written = encode_noun(context, wire=False)
    assert written["lineage"] == [["c_0", 3]]
    assert written["created_at"] == "2026-11-24T14:00:00+02:00"
    assert decode_noun(Context, json.loads(json.dumps(written)), wire=False) == context
    assert encode_noun(ENTRY, wire=False)["parts"][2] == {
        "type": "tool_call", "call_id": "c1", "name": "run", "arguments": '{"a_b": 1}',
    }  # fmt: skip


@declare_wire_names(detail=None)
@dataclass(frozen=True, slots=True, kw_only=True)
class Outline(Job):
    """A job in a list."""

    detail: str = ""
    at_once: bool = False


def test_a_class_may_leave_out_fields_and_add_some() -> None:
    names = {one.name for one in list_json_members(Outline)}
    assert names == {one.name for one in list_json_members(Job)} | {"atOnce"}


def test_every_part_has_a_name_and_names_go_both_ways() -> None:
    assert {kind.__name__ for kind in PARTS.values()} == {
        "Text",
        "Reasoning",
        "ToolCall",
        "ToolResult",
        "Media",
        "Raw",
    }
    for name in ("token_count", "id", "created_at"):
        assert to_snake_case(to_camel_case(name)) == name
    assert isinstance(ENTRY.data, Mapping)
    assert ENTRY.kind is Kind.MESSAGE
    assert ENTRY.origin is Origin.USER
