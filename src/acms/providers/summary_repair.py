"""Repair summaries written by a small model: remove and count the parts that do not summarize the turns."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from acms.ports import Turn
from acms.text.grounding import Evidence
from acms.text.tokenizer import find_sentence_spans

_FENCE = re.compile(r"```[a-zA-Z]*[ \t]*\n(.*?)\n?```", re.DOTALL)
_END = re.compile(r"[.!?。！？…][\"')\]”»」]*\s*\Z")
_ITEM = re.compile(r"\s*\d{1,3}[.)]\s+")


def repair_summary(answer: str, turns: Sequence[Turn]) -> tuple[str, Mapping[str, int]]:
    """Return a model's summary without its invalid parts, and how many parts of each kind were removed.

    `heading`: a fence, or a first line that announces the text and ends with a colon. `repeated`: sentences that
    occurred before; an answer that consists mostly of them is a loop, and nothing of it is kept. `unsaid`: sentences
    with a number or a coined name that no turn has. `cut`: an unfinished last sentence after finished ones.
    """
    removed_counts: Counter[str] = Counter()
    text = answer.strip()
    fence = _FENCE.fullmatch(text)
    if fence is not None:
        text = fence[1].strip()
        removed_counts["heading"] += 1
    first_line, _, remaining_text = text.partition("\n")
    if first_line.rstrip("*_ ").endswith((":", "：")) and remaining_text.strip():
        text = remaining_text.strip()
        removed_counts["heading"] += 1
    statements = [(turn.text, turn.created_at) for turn in turns]
    speakers = [(turn.speaker, None) for turn in turns]
    evidence = Evidence([*statements, *speakers])
    sentences = [text[start:end] for start, end in find_sentence_spans(text)]
    kept_sentences: list[str] = []
    seen_sentences: set[str] = set()
    for number, sentence in enumerate(sentences, 1):
        # The sign or number of a list item.
        item = _ITEM.match(sentence)
        body = sentence[item.end() :] if item else sentence
        if item and not body:  # the sentence splitter makes the number of a list item a sentence of its own
            kept_sentences.append(sentence)
            continue
        normalized = " ".join(sentence.split()).casefold()
        if normalized in seen_sentences:
            removed_counts["repeated"] += 1
        elif evidence.missing_details(body):
            removed_counts["unsaid"] += 1
        elif number == len(sentences) and kept_sentences and _is_cut(sentence, kept_sentences[-1]):
            removed_counts["cut"] += 1
        else:
            kept_sentences.append(sentence)
            seen_sentences.add(normalized)
    # The model looped: the beginning is no summary either.
    if removed_counts["repeated"] > len(kept_sentences):
        kept_sentences = []
    return "".join(kept_sentences).strip(), +removed_counts


def _is_cut(sentence: str, previous_sentence: str) -> bool:
    """Return whether a sentence lacks its end mark although the one before it, in the same paragraph, has one."""
    if previous_sentence.endswith("\n") or _ITEM.fullmatch(previous_sentence):
        return False
    return _END.search(sentence) is None and _END.search(previous_sentence) is not None
