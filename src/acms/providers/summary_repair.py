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
    removed: Counter[str] = Counter()
    text = answer.strip()
    fence = _FENCE.fullmatch(text)
    if fence is not None:
        text = fence[1].strip()
        removed["heading"] += 1
    first, _, rest = text.partition("\n")
    if first.rstrip("*_ ").endswith((":", "：")) and rest.strip():
        text = rest.strip()
        removed["heading"] += 1
    statements = [(turn.text, turn.created_at) for turn in turns]
    speakers = [(turn.speaker, None) for turn in turns]
    evidence = Evidence([*statements, *speakers])
    sentences = [text[start:end] for start, end in find_sentence_spans(text)]
    kept: list[str] = []
    seen: set[str] = set()
    for number, sentence in enumerate(sentences, 1):
        # The sign or number of a list item.
        item = _ITEM.match(sentence)
        body = sentence[item.end() :] if item else sentence
        if item and not body:  # the number of a list is a sentence of its own
            kept.append(sentence)
            continue
        normalized = " ".join(sentence.split()).casefold()
        if normalized in seen:
            removed["repeated"] += 1
        elif evidence.missing_details(body):
            removed["unsaid"] += 1
        elif number == len(sentences) and kept and _is_cut(sentence, kept[-1]):
            removed["cut"] += 1
        else:
            kept.append(sentence)
            seen.add(normalized)
    if removed["repeated"] > len(kept):  # a loop: its beginning is no summary either
        kept = []
    return "".join(kept).strip(), +removed


def _is_cut(sentence: str, before: str) -> bool:
    """Return whether a sentence of prose has no end although the one before it, in the same paragraph, has one."""
    if before.endswith("\n") or _ITEM.fullmatch(before):
        return False
    return _END.search(sentence) is None and _END.search(before) is not None
