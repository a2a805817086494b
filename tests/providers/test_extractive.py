"""The summarizer without a model: the promise of `Summarizer`, and an event loop that is never held up."""

from __future__ import annotations

import asyncio
import random
import threading

from acms.ports import Summarizer, SummaryRequest, Turn
from acms.providers import ExtractiveSummarizer
from acms.providers.tokens import default_counter
from acms.text.extract import extract_summary
from tests.support.agentlog import agent_log
from tests.support.counters import Counting


def summary_request(turns: list[Turn], max_tokens: int) -> SummaryRequest:
    return SummaryRequest(turns=tuple(turns), max_tokens=max_tokens, counter=default_counter())


async def test_it_is_a_summarizer() -> None:
    summarizer: Summarizer = ExtractiveSummarizer()
    turns, planted = agent_log(random.Random(1), style="chatter", turns=60)
    text = await summarizer.summarize(summary_request(turns, 1000))
    assert 0 < default_counter().count(text) <= 1000
    assert all(detail in text for detail in planted)
    assert ExtractiveSummarizer.model == "extractive2"
    assert ExtractiveSummarizer.window is None


async def test_the_same_turns_give_the_same_text() -> None:
    turns, _ = agent_log(random.Random(2), style="mixed", turns=300)
    summarizer = ExtractiveSummarizer()
    texts = await asyncio.gather(*(summarizer.summarize(summary_request(turns, 900)) for _ in range(3)))
    assert set(texts) == {extract_summary(turns, 900, default_counter().count)}


async def test_a_long_stretch_is_read_in_another_thread() -> None:
    threads: set[int] = set()

    def count(text: str) -> int:
        threads.add(threading.get_ident())
        return len(text)

    short, _ = agent_log(random.Random(3), style="chatter", turns=50)
    long, _ = agent_log(random.Random(3), style="chatter", turns=1000)
    counter = Counting("letters", count)
    await ExtractiveSummarizer().summarize(
        SummaryRequest(turns=tuple(short), max_tokens=900, counter=counter)
    )
    assert threads == {threading.get_ident()}
    threads.clear()
    await ExtractiveSummarizer().summarize(SummaryRequest(turns=tuple(long), max_tokens=900, counter=counter))
    assert threading.get_ident() not in threads
