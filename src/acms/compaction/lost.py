"""Losses of a compaction: details, instructions and open questions that are missing from its summary.

A detail is kept only verbatim. A sentence is kept if its words are in one line of the summary: a model may rephrase it.
A question is open if no other speaker follows it, or if the reply is also a question.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache

from acms.log.trust import is_instruction
from acms.model import Entry, Kind, Privacy
from acms.results import Lost
from acms.text.details import CORE, find_details
from acms.text.tokenizer import content_terms, find_sentence_spans, split_words

SHOWN = 10
"""Most ids in a report."""


def find_lost(entries: Sequence[Entry], summary: str) -> Lost:
    """Compare messages, oldest first, with the summary that replaces them; return the losses."""
    said = [
        entry
        for entry in entries
        if entry.kind is Kind.MESSAGE and entry.privacy is not Privacy.BLOCK and entry.content.strip()
    ]
    text = _Text(summary)
    found: dict[str, list[str]] = {"instruction": [], "marked": [], "question": []}
    for entry in said:
        if is_instruction(entry) and not text.says(entry.content):
            found["instruction"].append(entry.id)
        elif entry.markers and not text.says(entry.content):
            found["marked"].append(entry.id)
    for id, question in _find_open_questions(said):
        if not text.says(question):
            found["question"].append(id)
    found.update(_find_lost_details(said, text))
    ids = dict.fromkeys(id for some in found.values() for id in some)
    return Lost(counts={kind: len(some) for kind, some in found.items() if some}, ids=tuple(ids)[:SHOWN])


class _Text:
    """The text of a summary, indexed for lookups."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._details = {one.text for one in find_details(text)}

    @cached_property
    def _flat(self) -> str:
        return " ".join(self.text.split())

    @cached_property
    def _lines(self) -> list[frozenset[int]]:
        return [frozenset(content_terms(split_words(line))) for line in self.text.splitlines()]

    def holds(self, detail: str) -> bool:
        """Return whether the summary contains a detail verbatim."""
        return detail in self._details or detail in self.text

    def says(self, sentence: str) -> bool:
        """Return whether the summary contains a sentence verbatim, or all its content words in one line."""
        if " ".join(sentence.split()) in self._flat:
            return True
        asked = frozenset(content_terms(split_words(sentence))) - {0}
        return bool(asked) and any(asked <= line for line in self._lines)


def _find_lost_details(said: Sequence[Entry], text: _Text) -> dict[str, list[str]]:
    """Return by kind the messages that first mention a detail missing from the summary; speaker names do not count."""
    names = {(entry.actor or entry.role or "").casefold() for entry in said}
    known: set[str] = set()
    found: dict[str, list[str]] = {}
    for entry in said:
        for detail in find_details(entry.content):
            if detail.text in known or detail.kind not in CORE or detail.text.casefold() in names:
                continue
            known.add(detail.text)
            if not text.holds(detail.text):
                found.setdefault(detail.kind, []).append(entry.id)
    return {kind: found[kind] for kind in CORE if kind in found}


def _find_open_questions(said: Sequence[Entry]) -> Iterable[tuple[str, str]]:
    """Yield the unanswered questions at the end of messages, each with the id of its message."""
    last = [_last_sentence(entry.content) for entry in said]
    for index, entry in enumerate(said):
        if not _is_question(last[index]):
            continue
        reply = index + 1
        if (
            reply < len(said)
            and _speaker_of_entry(said[reply]) != _speaker_of_entry(entry)
            and not _is_question(last[reply])
        ):
            continue
        yield entry.id, last[index]


def _speaker_of_entry(entry: Entry) -> str:
    return entry.actor or (entry.role or "")


def _last_sentence(text: str) -> str:
    text = text.rstrip()
    found = find_sentence_spans(text)
    return text[slice(*found[-1])].strip() if found else ""


def _is_question(sentence: str) -> bool:
    """Return whether a sentence ends with a question mark of any script."""
    return _is_question_mark(sentence.rstrip("\"')]}*_»”’ ")[-1:])


@lru_cache(maxsize=1_024)
def _is_question_mark(letter: str) -> bool:
    return bool(letter) and "QUESTION MARK" in unicodedata.name(letter, "")
