"""Rerank: a model that reads query and text together has the last word on the best candidates of the past.

Which texts it is asked about and what its scores change is decided here; who asks it is told by the plan, which yields
the question. What is not its to read stays as it was ranked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from acms.log.in_force import Demotion, shown_role
from acms.model import Entry, Kind, Privacy
from acms.prompt_types import speak
from acms.recall.candidates import Offer
from acms.recall.planner import Candidate, Choice, Pairs, Rows, Scores, Steps, trimmed
from acms.recall.selection import best_first, external_last

SIGNAL = "rerank"
"""Name of its score among the parts of a relevance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reranked:
    """What a reranker is asked, and what stands whatever it says."""

    query: str
    #: Candidates it is asked about, at most.
    most: int
    #: Holds for what comes out.
    min_relevance: float = 0.0
    #: Share of these candidates that external text has while other text is left out.
    external_share: float


def reranked(offered: Offer, asked: Reranked, warnings: list[str]) -> Steps[Offer]:
    """Let a reranker score the best candidates of the past; why it did not is added to `warnings`.

    Its score is the relevance of a candidate, and markers raise it as they raise any other; what takes the place of an
    earlier statement stays above it. Without an answer all stays as it was. Of blocked messages nothing is shown to it.
    """
    order = sorted(range(len(offered.past)), key=lambda index: best_first(offered.past[index]))
    external = [index for index in order if offered.past[index].external]
    order = external_last(order, external, int(asked.most * asked.external_share))[: asked.most]
    entries = [entry for index in order for entry in offered.past[index].unit.entries]
    known = {entry.id: entry for entry in entries if isinstance(entry, Entry)}
    wanted = [entry.id for entry in entries if entry.id not in known]
    rows: Mapping[str, Entry] = known
    if wanted:
        found: Rows = yield wanted
        rows = {**known, **found.entries}
    texts = {index: text for index in order if (text := _text(offered.past[index], rows, offered.trims))}
    past = list(offered.past)
    if texts:
        scores: Scores = yield Pairs(asked.query, tuple(texts.values()))
        if scores.warning:
            warnings.append(scores.warning)
        else:
            for index, value in zip(texts, scores.values, strict=True):
                past[index] = _scored(past[index], value)
    kept = [one for one in past if one.relevance >= asked.min_relevance]
    reason = f"below the least relevance of {asked.min_relevance:.2f}"
    low = [Choice(one, False, "min_relevance", reason) for one in past if one.relevance < asked.min_relevance]
    return replace(offered, past=kept, rejected=[*offered.rejected, *low])


def _scored(one: Candidate, value: float) -> Candidate:
    return one._replace(
        relevance=value,
        score=raise_score(value, one.boost),
        parts=lambda: {SIGNAL: round(value, 4), **one.parts()},
    )


def _text(one: Candidate, rows: Mapping[str, Entry], trims: Mapping[str, Demotion]) -> str:
    """Return what a reranker reads of a candidate; "" when nothing of it is its to read."""
    found = [rows[entry.id] for entry in one.unit.entries]
    if any(entry.privacy is Privacy.BLOCK for entry in found):
        return ""
    shown = [trimmed(entry, trims[entry.id].spans) if entry.id in trims else entry for entry in found]
    return "\n".join(_said(entry) for entry in shown if entry.content.strip())


def _said(entry: Entry) -> str:
    """Return a message under the name of its speaker; a fact and a summary speak for themselves."""
    speaker = entry.actor or shown_role(entry) if entry.kind is Kind.MESSAGE else None
    return speak(speaker, entry.content)


def raise_score(value: float, boost: float) -> float:
    """Return the score of a reranker, brought nearer to 1 by the marks of a candidate that are about the query."""
    return 1 - (1 - value) / (1 + boost)
