"""Causes: why a probe was not answered.

*budget*: what answers was recalled with eight times the room; *words*: the question has no word in common with what
was said; *stale*: what is no longer so ranks above the answer; *rank*: anything else, the words were there, and other
things were taken for the answer.
"""

from __future__ import annotations

from acms.text.tokenizer import content_terms, split_words
from acms_eval.metrics import carries
from acms_eval.nouns import Scenario, Score

__all__ = ["CAUSES", "cause"]

CAUSES = {
    "budget": "no room: with eight times the budget it is recalled",
    "words": "the question has no word in common with what was said",
    "stale": "what is no longer so ranks above it",
    "rank": "its words were there, others were taken for the answer",
}


def cause(scenario: Scenario, score: Score, roomy: Score) -> str | None:
    """Return why a probe was not answered; None when it was. `roomy` is the same probe asked with more room."""
    if score.answered:
        return None
    if score.hit:
        return "stale"
    if roomy.hit:
        return "budget"
    probe = score.probe
    asked = set(content_terms(split_words(probe.question)))
    told = [
        said.text
        for said in scenario.said[: probe.after]
        if said.part in ("fact", "correction") and any(carries(said.text, word) for word in probe.expected)
    ]
    return "rank" if any(asked.intersection(content_terms(split_words(text))) for text in told) else "words"
