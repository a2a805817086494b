"""A manifest holds no text of the log and is enough to have every message back; its ledger answers for everything."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acms import (
    Entry,
    EntryNotFoundError,
    Kind,
    Ledger,
    Media,
    Raw,
    Reasoning,
    Role,
    Source,
    Text,
    ToolCall,
    ToolResult,
    ValidationError,
    Verdict,
)
from acms.codecs import Count, Exactness, Tool
from acms.log.summary_levels import LEVELS
from acms.model import Part
from acms.plan.nodes import Omission, Piece, PlacedMessage, Step
from acms.ports import Codec
from acms.prompt.manifest import FORMAT, Manifest, Read, Written
from acms.prompt.manifest_writer import (
    add_candidates,
    fingerprint_message,
    ledger_of_manifest,
    revive_messages,
    write_manifest,
)
from acms.prompt_types import SEPARATOR, CacheMark, PromptMessage, prefix_speaker
from acms.providers.tokens import default_counter
from acms.recall import planner, shortening
from acms.text import chat_messages
from tests.support.logs import CONTEXT as LOG
from tests.support.logs import make_entry

COUNTER = default_counter()
CODEC = cast("Codec", SimpleNamespace(name="openai-chat", model="gpt-5", counter=COUNTER))
COUNT = Count(tokens=100, exactness=Exactness.EXACT, upper_bound=100)
_CHARACTERS = st.characters(exclude_categories=("Cc", "Cs"))


def make_manifest(
    placed: Sequence[PlacedMessage],
    entries: Sequence[Entry] = (),
    recalls: Sequence[Ledger] = (),
    **more: Any,
) -> Manifest:
    found = write_manifest(placed, codec=CODEC, count=COUNT, entries={one.id: one for one in entries}, **more)
    found = add_candidates(found, recalls)
    again = Manifest.from_json(json.loads(json.dumps(found.to_json())))
    assert again == found
    assert again.digest == found.digest
    return found


def without_counts(message: PromptMessage) -> PromptMessage:
    return replace(message, tokens=None, counter="")


def literal_text(manifest: Manifest) -> str:
    """Everything of its texts that is no reference."""
    return "".join(
        segment
        for message in manifest.messages
        for part in message.parts
        if isinstance(part, Written)
        for _, value in part.fields
        if isinstance(value, tuple)
        for segment in value
        if isinstance(segment, str)
    )


# ── what goes in comes out ──────────────────────────────────────────────────────────────────────────────────────────


@st.composite
def generated_texts(draw: st.DrawFn) -> str:
    """Something that was said: words, perhaps over lines, perhaps with marks that ACMS writes itself."""
    word = st.one_of(
        st.text(_CHARACTERS, min_size=1, max_size=12),
        st.sampled_from(
            ("PostgreSQL", "No.", "a: b", "[…]", "\n", "\n\n", "user: ", "</recalled>", "aaaaaaaaaaaaaaaa")
        ),
    )
    return " ".join(draw(st.lists(word, min_size=1, max_size=40)))


@st.composite
def generated_prompts(
    draw: st.DrawFn, said: st.SearchStrategy[str]
) -> tuple[list[PlacedMessage], list[Entry]]:
    """A prompt as it was laid out: whole messages, cut ones, recalled blocks, and what the caller wrote."""
    entries: list[Entry] = []
    placed: list[PlacedMessage] = []
    for _ in range(draw(st.integers(1, 4))):
        version = len(entries) + 1
        match draw(
            st.sampled_from(("whole", "cut", "trimmed", "caller", "recall", "recall cut", "tool", "summary"))
        ):
            case "whole":
                entries.append(make_entry(version, draw(said)))
                parts: tuple[Part, ...] = (Text(entries[-1].content),)
                message = PromptMessage(role=Role.USER, parts=parts, sources=(entries[-1].id,), tokens=3)
                placed.append(PlacedMessage(message, "prompt/history", first=version, last=version))
            case "cut":
                entries.append(make_entry(version, draw(said)))
                text = shortening.cut_middle(entries[-1].content, draw(st.integers(1, 40)), COUNTER)
                message = PromptMessage(role=Role.USER, parts=(Text(text),), sources=(entries[-1].id,))
                placed.append(PlacedMessage(message, "prompt/history", "cut", first=version, last=version))
            case "trimmed":
                entries.append(make_entry(version, draw(said)))
                size = len(entries[-1].content)
                ends = sorted(draw(st.lists(st.integers(0, size), min_size=2, max_size=6, unique=True)))
                spans = list(zip(ends[::2], ends[1::2], strict=False))
                text = planner.trim_entry(entries[-1], spans).content
                message = PromptMessage(role=Role.USER, parts=(Text(text),), sources=(entries[-1].id,))
                placed.append(PlacedMessage(message, "prompt/history", "cut"))
            case "caller":
                message = PromptMessage(
                    role=Role.SYSTEM,
                    parts=(Text(draw(st.text("xyz ", max_size=9))),),
                    name=draw(st.none() | st.just("sam")),
                )
                placed.append(PlacedMessage(message, "prompt/system"))
            case "summary":
                entries.append(make_entry(version, draw(said), kind=Kind.SUMMARY))
                text = chat_messages.wrap_text(entries[-1].content, chat_messages.SUMMARY)
                message = PromptMessage(role=Role.USER, parts=(Text(text),), sources=(entries[-1].id,))
                placed.append(PlacedMessage(message, "prompt/history"))
            case "tool":
                calls = (
                    Reasoning("why", "sig"),
                    ToolCall("c1", "disk", draw(said)),
                    Raw("x", "{}"),
                    Media("image/png", "s3://a", "", 3),
                )
                entries.append(make_entry(version, "", parts=calls))
                message = PromptMessage(
                    role=Role.ASSISTANT, parts=calls, sources=(entries[-1].id,), group="g1"
                )
                placed.append(PlacedMessage(message, "prompt/history", group=1))
                output = draw(said)
                entries.append(make_entry(version + 1, output, parts=(ToolResult("c1", output),)))
                answer = ToolResult(
                    "c1",
                    shortening.cut_middle(output, draw(st.integers(1, 30)), COUNTER),
                    draw(st.booleans()),
                )
                message = PromptMessage(
                    role=Role.TOOL, parts=(answer,), sources=(entries[-1].id,), group="g1"
                )
                placed.append(PlacedMessage(message, "prompt/history", "cut", group=1))
            case kind:
                found = [make_entry(version + n, draw(said)) for n in range(draw(st.integers(1, 4)))]
                entries += found
                pieces = tuple(
                    Piece(
                        prefix_speaker(draw(st.sampled_from(("user", None, "Ann: B"))), one.content),
                        one.id,
                        sources=(one.id,),
                    )
                    for one in found
                )
                texts = [piece.text for piece in pieces]
                if kind == "recall cut":
                    texts[-1] = shortening.cut_middle(texts[-1], draw(st.integers(1, 30)), COUNTER)
                text = chat_messages.wrap_text(SEPARATOR.join(texts), chat_messages.RECALLED)
                sources = tuple(one.id for one in found)
                message = PromptMessage(role=Role.USER, parts=(Text(text),), sources=sources)
                placed.append(PlacedMessage(message, "prompt/recall", "pieces", pieces=pieces, moves=True))
    return placed, entries


@given(generated_prompts(generated_texts()))
def test_the_messages_come_back_from_the_manifest_and_the_entries(
    prompt: tuple[list[PlacedMessage], list[Entry]],
) -> None:
    placed, entries = prompt
    manifest = make_manifest(placed, entries)
    told = {one.id: one for one in entries}
    assert list(revive_messages(manifest, told)) == [without_counts(one.message) for one in placed]
    assert set(manifest.entries) == set(told)


@given(generated_prompts(generated_texts()))
def test_without_the_entries_the_text_itself_is_kept(prompt: tuple[list[PlacedMessage], list[Entry]]) -> None:
    placed, _ = prompt
    assert list(revive_messages(make_manifest(placed), {})) == [without_counts(one.message) for one in placed]


greek = st.lists(st.text("αβγδεζηθικλμνξο", min_size=1, max_size=9), min_size=1, max_size=60).map(". ".join)


@given(generated_prompts(greek))
def test_a_manifest_holds_no_text_of_the_log(prompt: tuple[list[PlacedMessage], list[Entry]]) -> None:
    placed, entries = prompt
    kept = literal_text(make_manifest(placed, entries))
    assert not set(kept) & set("αβγδεζηθικλμνξο"), kept


@given(st.text("αβγδ ", min_size=60, max_size=400), st.data())
def test_a_text_that_was_changed_is_quoted_where_it_is_the_same(said: str, data: st.DataObject) -> None:
    """Whatever a plugin does to a text of the log, the manifest is right, and long stretches are found."""
    source = make_entry(1, said)
    start = data.draw(st.integers(0, 20))
    end = data.draw(st.integers(start + 31, len(said)))
    text = f"As said before — {said[start:end]} — and so on, {said[:9]}."
    message = PromptMessage(role=Role.USER, parts=(Text(text),), sources=(source.id,))
    manifest = make_manifest([PlacedMessage(message, "prompt/plugin")], [source])
    assert revive_messages(manifest, {source.id: source}) == (message,)
    assert len(literal_text(manifest)) < len(text) - 30


# ── the file ────────────────────────────────────────────────────────────────────────────────────────────────────────


def placed_parts(
    *parts: Part, role: Role = Role.USER, path: str = "prompt/user", **more: Any
) -> PlacedMessage:
    return PlacedMessage(PromptMessage(role=role, parts=parts), path, tokens=7, **more)


def test_the_address_follows_from_what_it_says_and_from_nothing_else() -> None:
    tool = Tool(name="disk", parameters={"type": "object", "properties": {"host": {"type": "string"}}})
    more: dict[str, Any] = {
        "payload": {"messages": []},
        "budget": 0,
        "tools": (tool,),
        "marks": (CacheMark(messages=1, version="2", ttl=300),),
        "reads": (Read(LOG, 12, 3, (("c_parent", 4),)),),
        "omissions": (Omission(("a", "b"), "prompt/pins", "truncate", "no room", 30),),
        "steps": (Step("prompt/pins", 1, "truncate", 90, 60),),
    }
    assert (
        make_manifest([placed_parts(Text("hello"))], **more).digest
        == make_manifest([placed_parts(Text("hello"))], **more).digest
    )
    changes: list[dict[str, Any]] = [
        {"budget": 1},
        {"steps": ()},
        {"tools": ()},
        {"payload": {"messages": [1]}},
    ]
    for changed in changes:
        assert (
            make_manifest([placed_parts(Text("hello"))], **{**more, **changed}).digest
            != make_manifest([placed_parts(Text("hello"))], **more).digest
        )


@pytest.mark.parametrize("found", [FORMAT + 1, 0, None, "1"])
def test_another_format_is_refused_in_words(found: object) -> None:
    with pytest.raises(ValidationError, match=f"this release reads {FORMAT}") as error:
        Manifest.from_json({**make_manifest([]).to_json(), "format": found})
    assert error.value.field == "manifest"
    assert error.value.options


@pytest.mark.parametrize(
    "damage",
    [
        {"codec": None},
        {"tokens": "many"},
        {"messages": [{"role": "user"}]},
        {"messages": [{"path": "p", "role": "robot", "hash": "", "tokens": 1}]},
        {"messages": [{"path": "p", "role": "user", "hash": "", "tokens": 1, "parts": [[9, 0]]}]},
        {
            "messages": [
                {"path": "p", "role": "user", "hash": "", "tokens": 1, "parts": [{"text": [[9, 0, 1]]}]}
            ]
        },
        {"messages": [{"path": "p", "role": "user", "hash": "", "tokens": 1, "parts": [{"text": 1.5}]}]},
        {"entries": "m_1", "messages": 3},
        {"candidates": [["m_1", True]]},
        {"left": [[["a"], "p", "omit", None, 3, True]]},
        {"marks": [[-1, "prompt", "", None]]},
        {"tools": [{"called": "x"}]},
        {"tools": [{"name": "x", "description": "", "parameters": "y", "strict": False}]},
    ],
)
def test_a_damaged_file_is_refused_in_words(damage: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="is damaged"):
        Manifest.from_json({**make_manifest([]).to_json(), **damage})


def test_messages_that_say_the_same_have_the_same_hash_wherever_it_comes_from() -> None:
    said = make_entry(1, "hello")
    quoted = PromptMessage(role=Role.USER, parts=(Text("hello"),), sources=(said.id,), group="g", tokens=3)
    ours, theirs = (
        make_manifest([PlacedMessage(quoted, "prompt/history")], [said]),
        make_manifest([placed_parts(Text("hello"))]),
    )
    assert ours.messages[0].hash == theirs.messages[0].hash == fingerprint_message(quoted)
    others = [
        PromptMessage(role=Role.ASSISTANT, parts=(Text("hello"),)),
        PromptMessage(role=Role.USER, parts=(Text("hello"),), name="sam"),
        PromptMessage(role=Role.USER, parts=(Text("hel"), Text("lo"))),
        PromptMessage(role=Role.USER, parts=(Reasoning("hello"),)),
        PromptMessage(role=Role.USER),
    ]
    assert len({fingerprint_message(one) for one in [quoted, *others]}) == 6


def test_what_a_part_or_a_level_says_is_quoted_from_there() -> None:
    outputs = tuple([" ".join(f"{name}{n}" for n in range(99)) for name in ("row", "line")])
    parts = tuple([ToolResult(f"c{n}", output) for n, output in enumerate(outputs)])
    long, short = " ".join(f"word{n}" for n in range(99)), "they chose PostgreSQL"
    entries = [
        make_entry(1, "", role=Role.TOOL, parts=parts),
        make_entry(2, long, kind=Kind.SUMMARY, data={LEVELS: [{"content": short, "tokens": 4}]}),
    ]
    cut = tuple([replace(part, output=shortening.cut_middle(part.output, 20, COUNTER)) for part in parts])
    shown = (
        PromptMessage(role=Role.TOOL, parts=cut, sources=(entries[0].id,), group="g1"),
        PromptMessage(role=Role.USER, parts=(Text(f"so far: {short}"),), sources=(entries[1].id,)),
    )
    manifest = make_manifest([PlacedMessage(one, "prompt/history", "cut") for one in shown], entries)
    assert revive_messages(manifest, {one.id: one for one in entries}) == shown
    assert "".join(literal_text(manifest).split()) == "c0[…]c1[…]sofar:"


def test_text_that_changed_under_a_manifest_is_told_apart() -> None:
    said = make_entry(1, "we chose MySQL")
    message = PromptMessage(role=Role.USER, parts=(Text("we chose MySQL"),), sources=(said.id,))
    manifest = make_manifest([PlacedMessage(message, "prompt/history")], [said])
    with pytest.raises(ValidationError, match="is not the text that was sent") as error:
        revive_messages(manifest, {said.id: replace(said, content="we chose SQLite")})
    assert error.value.field == "messages[0]"
    with pytest.raises(ValidationError, match="does not have"):
        revive_messages(manifest, {})


# ── the ledger ──────────────────────────────────────────────────────────────────────────────────────────────────────


def make_verdict(id: str, included: bool, rule: str = "score") -> Verdict:
    return Verdict(
        id=id, version=1, included=included, rule=rule, source=Source.SIMILAR, relevance=0.61234, boost=0,
        score=0.7, parts={"words": 0.5}, tokens=9, reason="answers the query",
    )  # fmt: skip


def explained_prompt(*, older: bool = True) -> tuple[Ledger, list[Entry]]:
    """A prompt of everything: rules, pins, history, recall; with something left out of each."""
    log = [make_entry(version, f"message {version}") for version in range(1, 13)]
    ids = [one.id for one in log]
    recalled = Ledger(
        lambda: {
            ids[0]: make_verdict(ids[0], True),
            ids[1]: make_verdict(ids[1], True),
            ids[2]: make_verdict(ids[2], False, "budget"),
            ids[9]: make_verdict(ids[9], True),
        },
        omitted=1,
    )
    pins = (Piece("- profile", "profile"),)
    found = (Piece("user: message 1", ids[0], sources=(ids[0],)),)
    shown = [
        PromptMessage(role=Role.USER, parts=(Text(one.content),), sources=(one.id,)) for one in log[9:11]
    ]
    pinned = PromptMessage(role=Role.DEVELOPER, parts=(Text("- profile"),))
    recall = PromptMessage(role=Role.USER, parts=(Text("user: message 1"),), sources=(ids[0],))
    placed = [
        placed_parts(Text("rules"), role=Role.SYSTEM, path="prompt/system"),
        PlacedMessage(pinned, "prompt/pins", "pieces", 5, pieces=pins),
        *[
            PlacedMessage(one, "prompt/history", tokens=4, first=10 + n, last=10 + n)
            for n, one in enumerate(shown)
        ],
        PlacedMessage(recall, "prompt/recall", "pieces", 6, True, 0, found),
    ]
    left = (
        Omission(("preferences",), "prompt/pins", "truncate", "the block holds 5 tokens", 40),
        Omission((ids[1],), "prompt/recall", "pieces", "lowest score", 12),
        Omission((ids[7], ids[8]), "prompt/history", "window", "older than the start", 8),
        Omission((ids[10],), "prompt/history", "window", "cut to 4 tokens", 8, gone=False),
        Omission(("prompt/examples",), "prompt/examples", "omit", "no room", 100),
    )
    manifest = make_manifest(
        placed,
        log,
        omissions=left,
        recalls=(recalled,) if older else (),
        reads=(Read(LOG, 11, 8, (("c_parent", 4),)),),
    )
    return ledger_of_manifest(lambda: manifest, (recalled,) if older else (), ("a warning",), omitted=5), log


def test_a_ledger_says_why_for_everything_that_is_shown() -> None:
    found, log = explained_prompt()
    shown = {log[9].id: "history", log[10].id: "history", log[0].id: "recall", "profile": "pin"}
    assert {id: found.why(id).rule for id in shown} == shown
    assert all(found.why_not(id) is None for id in shown)
    recalled = found.why(log[0].id)
    assert (recalled.score, recalled.relevance, recalled.source) == (0.7, 0.6123, Source.SIMILAR)
    assert recalled.reason == "answers the query; in message 5 (prompt/recall)"
    assert "in part: cut to 4 tokens" in found.why(log[10].id).reason
    assert found.why("prompt/system").rule == "required"
    assert found.why("prompt/history").reason == "2 messages of it; 2 left out (window)"
    assert found.why("prompt").tokens == 7 + 5 + 4 + 4 + 6
    assert found.warnings == ("a warning",)
    assert found.omitted == 5


def test_a_ledger_says_why_not_for_everything_that_is_left_out() -> None:
    found, log = explained_prompt()
    rules = {
        "preferences": "truncate",
        log[1].id: "pieces",  # chosen by the recall, and dropped by the fit
        log[2].id: "budget",  # a candidate that the recall rejected
        log[7].id: "window",
        "prompt/examples": "omit",
        log[4].id: "unread",
        log[11].id: "later",
    }
    verdicts = {id: found.why_not(id) for id in rules}
    assert {id: one and one.rule for id, one in verdicts.items()} == rules
    assert all(one is not None and one.reason for one in verdicts.values())
    assert "older than v8" in found.why(log[4].id).reason
    inherited = log[2].id.replace(LOG[2:], "parent")
    assert found.why(inherited).rule == "unread"
    for unknown in (log[5].id.replace(LOG[2:], "parent"), "nobody", "m_other_1_0a1b2c", "prompt/nothing"):
        with pytest.raises(EntryNotFoundError):
            found.why(unknown)


def test_what_a_stored_summary_stands_for_is_told_apart_from_what_was_too_old() -> None:
    old = make_entry(3, "long ago")
    manifest = make_manifest([], reads=(Read(LOG, 11, 8, summary="history"),))
    assert ledger_of_manifest(lambda: manifest).why(old.id).rule == "summary"
    assert "'history' replaces it" in ledger_of_manifest(lambda: manifest).why(old.id).reason


def test_what_the_recall_chose_and_the_history_shows_is_in_the_history() -> None:
    found, log = explained_prompt()
    assert found.why(log[9].id).included
    assert found.why(log[9].id).rule == "history"


def test_a_ledger_lists_every_decision_once() -> None:
    found, _ = explained_prompt()
    ids = [one.id for one in found]
    assert len(ids) == len(set(ids)) == len(found)
    assert found.why(ids[0]).included
    assert not found.why(ids[-1]).included


def test_a_manifest_that_was_kept_answers_like_the_prompt_itself() -> None:
    found, log = explained_prompt(older=False)
    kept = explained_prompt(older=False)[0]
    assert [str(one) for one in kept] == [str(one) for one in found]
    assert kept.why(log[4].id).rule == "unread"


def test_a_ledger_that_nobody_reads_is_never_written() -> None:
    def never() -> Manifest:
        raise AssertionError("the manifest was written")

    assert ledger_of_manifest(never, omitted=3).omitted == 3
