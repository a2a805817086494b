"""A session of a coding agent: patches, shell calls and reasoning, far larger than any budget."""

from __future__ import annotations

from random import Random

import pytest

from acms import ACMS, Prompt
from acms.codecs import OpenAIResponses
from acms.storage import MemoryStorage
from tests.providers.test_transcripts import CODECS
from tests.providers.transcripts import Edit, Message, coding_session

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
            await session.ingest_many(messages[stored:end]) if end > stored else None
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
    async with await stored(messages) as session:
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
    async with await stored(messages) as session:
        await session.wait(await session.compact(preserve_recent_count=4))
        entries = await session.entries()
        summary = "\n".join([entry.content for entry in entries if entry.role is None])
        lost = [edit for edit in edits[:-3] if not keeps(summary, edit)]
        assert lost == [], f"{len(lost)} of {len(edits)}"


def keeps(summary: str, edit: Edit) -> bool:
    """Return whether a summary has the file and the change near each other."""
    _, found, behind = summary.partition(edit.path)
    return bool(found) and edit.new.strip() in behind[:400]


async def stored(messages: list[Message]) -> ACMS:
    session = ACMS("s", MemoryStorage(), None)
    await session.sync(messages)
    return session
