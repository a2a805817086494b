"""A session of a coding agent: patches, shell calls and reasoning, far larger than any budget."""

from __future__ import annotations

import json
from random import Random

import pytest

from acms import ACMS, Prompt
from acms.codecs import OpenAIResponses
from acms.storage import MemoryStorage
from tests.providers.test_transcripts import CODECS
from tests.providers.transcripts import Edit, Message, coding_session, random_words

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("size", "requests"),
    [(60_000, 40), pytest.param(2_000_000, 1_000, marks=pytest.mark.slow)],
    ids=["short", "2 MB"],
)
async def test_every_request_of_a_coding_session_is_valid_and_within_its_budget(
    size: int, requests: int
) -> None:
    random = Random(1)
    messages, _ = coding_session(random, size)
    async with ACMS("s", MemoryStorage(), None) as session:
        ends = sorted(random.choices(range(1, len(messages) + 1), k=requests))
        stored = 0
        for number, end in enumerate(ends):
            if end > stored:
                await session.ingest_many(messages[stored:end])
            stored = end
            codec, violations = CODECS[number % len(CODECS)] if number % 2 else RESPONSES
            budget = int(2_000 * 32 ** random.random())
            payload = dict((await Prompt(codec).history(session).user("go on").render(budget=budget)).payload)
            assert violations(payload) == [], (codec.name, codec.model, budget, end)
            assert codec.count(payload).upper_bound <= budget


RESPONSES = next(one for one in CODECS if isinstance(one[0], OpenAIResponses))


@pytest.mark.parametrize(
    "size", [60_000, pytest.param(2_000_000, marks=pytest.mark.slow)], ids=["short", "2 MB"]
)
async def test_a_file_that_only_a_patch_names_is_recalled(size: int) -> None:
    messages, edits = coding_session(Random(2), size)
    async with await session_of_messages(messages) as session:
        for edit in Random(3).sample(edits, min(20, len(edits))):
            name = edit.path.rpartition("/")[2]
            found = (await session.recall(f"what changed in {name}?", budget=1_000)).text()
            assert edit.path in found
            assert edit.new in found


@pytest.mark.parametrize(
    "size", [60_000, pytest.param(2_000_000, marks=pytest.mark.slow)], ids=["short", "2 MB"]
)
async def test_compaction_keeps_what_was_changed_where(size: int) -> None:
    messages, edits = coding_session(Random(4), size)
    async with await session_of_messages(messages) as session:
        await session.wait(await session.compact(preserve_recent_count=4))
        entries = await session.entries()
        summary = "\n".join([entry.content for entry in entries if entry.role is None])
        lost = [edit for edit in edits[:-3] if not summary_keeps_edit(summary, edit)]
        assert lost == [], f"{len(lost)} of {len(edits)}"


def summary_keeps_edit(summary: str, edit: Edit) -> bool:
    """Return whether a line of a summary has the file and the change."""
    new = " ".join(edit.new.split())
    return any(edit.path in line and new in line for line in summary.split("\n"))


async def session_of_messages(messages: list[Message]) -> ACMS:
    session = ACMS("s", MemoryStorage(), None)
    await session.sync(messages)
    return session


EDIT = {"file_path": "src/quay.py", "old_string": "    limit = 3", "new_string": "    limit = 9"}
PATCH = "*** Begin Patch\n*** Update File: src/quay.py\n@@\n-    limit = 3\n+    limit = 9\n*** End Patch"


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("Edit", EDIT),
        ("str_replace_editor", {"path": "src/quay.py", "old_str": "limit = 3", "new_str": "limit = 9"}),
        ("apply_patch", {"input": PATCH}),
    ],
)
async def test_compaction_keeps_the_edits_of_any_editing_tool(name: str, arguments: dict[str, str]) -> None:
    call = {"id": "c", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
    random = Random(5)
    messages: list[Message] = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "Done."},
        *[{"role": "user", "content": random_words(random, 200)} for _ in range(30)],
    ]
    async with await session_of_messages(messages) as session:
        for _ in range(2):  # the second summary reads the first one
            await session.wait(await session.compact(preserve_recent_count=2))
            await session.ingest_many(
                [{"role": "user", "content": random_words(random, 200)} for _ in range(10)]
            )
        summary = "\n".join([entry.content for entry in await session.entries() if entry.role is None])
        assert "src/quay.py: -limit = 3 +limit = 9" in summary
