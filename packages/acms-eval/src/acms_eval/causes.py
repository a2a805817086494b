"""Causes: why a probe was not answered.

*budget*: the answer was recalled with eight times the budget; *words*: the question has no word in common with the
messages that state the answer; *stale*: an outdated value ranks above the answer; *rank*: anything else: the words were
there, and other items ranked above the answer.
"""

from __future__ import annotations

from acms.text.tokenizer import content_terms, split_words
from acms_eval.metrics import carries
from acms_eval.nouns import Scenario, Score

__all__ = ["CAUSES", "find_cause"]

CAUSES = {
    "budget": "no room: with eight times the budget it is recalled",
    "words": "the question has no word in common with what was said",
    "stale": "what is no longer so ranks above it",
    "rank": "its words were there, others were taken for the answer",
}


def find_cause(scenario: Scenario, score: Score, roomy: Score) -> str | None:
    """Return why a probe was not answered; None when it was.

    `roomy` is the score of the same probe with eight times the budget: a hit there means that only room was missing.
    """
    if score.answered:
        return None
    if score.hit:
        return "stale"
    if roomy.hit:
        return "budget"
    probe = score.probe
    question_terms = set(content_terms(split_words(probe.question)))
    stated_texts = [
        message.text
        for message in scenario.said[: probe.after]
        if message.part in ("fact", "correction")
        and any(carries(message.text, word) for word in probe.expected)
    ]
    return (
        "rank"
        if any(question_terms.intersection(content_terms(split_words(text))) for text in stated_texts)
        else "words"
    )
