"""A manifest holds no text of the log and is enough to have every message back; its ledger answers for everything."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from acms.composition import Count, Exactness, PromptMessage
from acms.core import chat, plan
from acms.core.manifest import messages, written
from acms.core.nodes import Piece, Placed
from acms.manifest import Manifest
from acms.model import (
    Entry,
    Kind,
    Media,
    Part,
    Raw,
    Reasoning,
    Role,
    Text,
    ToolCall,
    ToolResult,
)
from acms.projections import SEPARATOR, speak
from acms.protocols import Codec
from acms.providers.tokens import default_counter
from tests.core.logs import entry

COUNTER = default_counter()
CODEC = cast("Codec", SimpleNamespace(name="openai-chat", model="gpt-5", counter=COUNTER))
COUNT = Count(tokens=100, exactness=Exactness.EXACT, upper_bound=100)
_CHARACTERS = st.characters(exclude_categories=("Cc", "Cs"))


def made(placed: Sequence[Placed], entries: Sequence[Entry] = (), **more: Any) -> Manifest:
    found = written(placed, codec=CODEC, count=COUNT, told={one.id: one for one in entries}, **more)
    again = Manifest.from_json(json.loads(json.dumps(found.to_json())))
    assert again == found
    assert again.digest == found.digest
    return found


def bare(message: PromptMessage) -> PromptMessage:
    return replace(message, tokens=None, counter="")


def literals(manifest: Manifest) -> str:
    """Everything of its texts that is no reference."""
    return "".join(
        segment
        for message in manifest.messages
        for part in message.parts
        if hasattr(part, "fields")
        for _, value in part.fields
        if isinstance(value, tuple)
        for segment in value
        if isinstance(segment, str)
    )


# ── what goes in comes out ──────────────────────────────────────────────────────────────────────────────────────────


@st.composite
def sayings(draw: st.DrawFn) -> str:
    """Something that was said: words, perhaps over lines, perhaps with marks that ACMS writes itself."""
    word = st.one_of(
        st.text(_CHARACTERS, min_size=1, max_size=12),
        st.sampled_from(
            ("PostgreSQL", "No.", "a: b", "[…]", "\n", "\n\n", "user: ", "</recalled>", "aaaaaaaaaaaaaaaa")
        ),
    )
    return " ".join(draw(st.lists(word, min_size=1, max_size=40)))


@st.composite
def prompts(draw: st.DrawFn, said: st.SearchStrategy[str]) -> tuple[list[Placed], list[Entry]]:
    """A prompt as it was laid out: whole messages, cut ones, recalled blocks, and what the caller wrote."""
    entries: list[Entry] = []
    placed: list[Placed] = []
    for _ in range(draw(st.integers(1, 4))):
        version = len(entries) + 1
        match draw(
            st.sampled_from(("whole", "cut", "trimmed", "caller", "recall", "recall cut", "tool", "summary"))
        ):
            case "whole":
                entries.append(entry(version, draw(said)))
                parts: tuple[Part, ...] = (Text(entries[-1].content),)
                message = PromptMessage(role=Role.USER, parts=parts, sources=(entries[-1].id,), tokens=3)
                placed.append(Placed(message, "prompt/history", first=version, last=version))
            case "cut":
                entries.append(entry(version, draw(said)))
                text = plan.cut(entries[-1].content, draw(st.integers(1, 40)), COUNTER)
                message = PromptMessage(role=Role.USER, parts=(Text(text),), sources=(entries[-1].id,))
                placed.append(Placed(message, "prompt/history", "cut", first=version, last=version))
            case "trimmed":
                entries.append(entry(version, draw(said)))
                size = len(entries[-1].content)
                ends = sorted(draw(st.lists(st.integers(0, size), min_size=2, max_size=6, unique=True)))
                spans = list(zip(ends[::2], ends[1::2], strict=False))
                text = plan.trimmed(entries[-1], spans).content
                message = PromptMessage(role=Role.USER, parts=(Text(text),), sources=(entries[-1].id,))
                placed.append(Placed(message, "prompt/history", "cut"))
            case "caller":
                message = PromptMessage(
                    role=Role.SYSTEM,
                    parts=(Text(draw(st.text("xyz ", max_size=9))),),
                    name=draw(st.none() | st.just("sam")),
                )
                placed.append(Placed(message, "prompt/system"))
            case "summary":
                entries.append(entry(version, draw(said), kind=Kind.SUMMARY))
                text = chat.wrap(entries[-1].content, chat.SUMMARY)
                message = PromptMessage(role=Role.USER, parts=(Text(text),), sources=(entries[-1].id,))
                placed.append(Placed(message, "prompt/history"))
            case "tool":
                calls = (
                    Reasoning("why", "sig"),
                    ToolCall("c1", "disk", draw(said)),
                    Raw("x", "{}"),
                    Media("image/png", "s3://a", "", 3),
                )
                entries.append(entry(version, "", parts=calls))
                message = PromptMessage(
                    role=Role.ASSISTANT, parts=calls, sources=(entries[-1].id,), group="g1"
                )
                placed.append(Placed(message, "prompt/history", atom=1))
                output = draw(said)
                entries.append(entry(version + 1, output, parts=(ToolResult("c1", output),)))
                answer = ToolResult(
                    "c1", plan.cut(output, draw(st.integers(1, 30)), COUNTER), draw(st.booleans())
                )
                message = PromptMessage(
                    role=Role.TOOL, parts=(answer,), sources=(entries[-1].id,), group="g1"
                )
                placed.append(Placed(message, "prompt/history", "cut", atom=1))
            case kind:
                found = [entry(version + n, draw(said)) for n in range(draw(st.integers(1, 4)))]
                entries += found
                pieces = tuple(
                    Piece(
                        speak(draw(st.sampled_from(("user", None, "Ann: B"))), one.content),
                        one.id,
                        sources=(one.id,),
                    )
                    for one in found
                )
                texts = [piece.text for piece in pieces]
                if kind == "recall cut":
                    texts[-1] = plan.cut(texts[-1], draw(st.integers(1, 30)), COUNTER)
                text = chat.wrap(SEPARATOR.join(texts), chat.RECALLED)
                sources = tuple(one.id for one in found)
                message = PromptMessage(role=Role.USER, parts=(Text(text),), sources=sources)
                placed.append(Placed(message, "prompt/recall", "pieces", pieces=pieces, moves=True))
    return placed, entries


@given(prompts(sayings()))
def test_the_messages_come_back_from_the_manifest_and_the_entries(
    prompt: tuple[list[Placed], list[Entry]],
) -> None:
    placed, entries = prompt
    manifest = made(placed, entries)
    told = {one.id: one for one in entries}
    assert list(messages(manifest, told)) == [bare(one.message) for one in placed]
    assert set(manifest.entries) == set(told)


@given(prompts(sayings()))
def test_without_the_entries_the_text_itself_is_kept(prompt: tuple[list[Placed], list[Entry]]) -> None:
    placed, _ = prompt
    assert list(messages(made(placed), {})) == [bare(one.message) for one in placed]


greek = st.lists(st.text("αβγδεζηθικλμνξο", min_size=1, max_size=9), min_size=1, max_size=60).map(". ".join)


@given(prompts(greek))
def test_a_manifest_holds_no_text_of_the_log(prompt: tuple[list[Placed], list[Entry]]) -> None:
    placed, entries = prompt
    kept = literals(made(placed, entries))
    assert not set(kept) & set("αβγδεζηθικλμνξο"), kept
