"""The summarizer that needs no model: sentences and details of the conversation itself, letter by letter."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from acms.text.extract import extract_summary
from acms.text.summary_form import RECIPE

if TYPE_CHECKING:
    from acms.ports import SummaryRequest

__all__ = ["ExtractiveSummarizer"]

_LONG = 100_000  # letters, about 2,000 sentences and 50 ms


class ExtractiveSummarizer:
    """Shortens a conversation by choosing from it: nothing is said in other words, so nothing is made up.

    Marked messages come first and stay verbatim; then the sentences most like the whole; then what cannot be guessed
    again (paths, ids, numbers, names, dates), each with the few words around it. Reads any length, needs no network,
    and gives the same text for the same turns. Never more than `max_tokens`; empty only if nothing fits. A long stretch
    is read in a worker thread.
    """

    #: Names the recipe: another one writes another text.
    model: str = RECIPE
    #: It reads everything in one call.
    window: int | None = None

    async def summarize(self, request: SummaryRequest) -> str:
        """Return a text that can replace the turns; summaries of this recipe among them are read line by line."""
        arguments = (request.turns, request.max_tokens, request.counter.count)
        if sum(len(turn.text) for turn in request.turns) > _LONG:
            return await asyncio.to_thread(extract_summary, *arguments)
        return extract_summary(*arguments)
