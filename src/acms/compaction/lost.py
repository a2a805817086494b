"""Losses of a compaction: details, instructions and open questions that are missing from its summary.

A detail counts as kept only verbatim. A sentence counts as kept if its words are in one line of the summary: a model
may rephrase it. A question is open if no other speaker follows it, or if the reply is also a question.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from itertools import chain

from acms.log.trust import is_instruction
from acms.model import Entry, Kind, Privacy
from acms.results import Lost
from acms.text.details import CORE, find_details
from acms.text.tokenizer import content_terms, find_sentence_spans, split_words


def find_lost(entries: Sequence[Entry], summary: str) -> Lost:
    """Return what a summary lost of the messages that it replaces, given oldest first."""
    messages = [
        entry
        for entry in entries
        if entry.kind is Kind.MESSAGE and entry.privacy is not Privacy.BLOCK and entry.content.strip()
    ]
    text = _Text(summary)
    lost: dict[str, list[str]] = {"instruction": [], "marked": [], "question": []}
    for message in messages:
        if is_instruction(message):
            kind = "instruction"
        elif message.markers:
            kind = "marked"
        else:
            continue
        if not text.says(message.content):
            lost[kind].append(message.id)
    for id, question in _find_open_questions(messages):
        if not text.says(question):
            lost["question"].append(id)
    lost.update(_find_lost_details(messages, text))
    ids = dict.fromkeys(chain.from_iterable(lost.values()))
    counts = {kind: len(lost_ids) for kind, lost_ids in lost.items() if lost_ids}
    return Lost(counts=counts, ids=tuple(ids)[:10])  # enough to look at


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
        terms = frozenset(content_terms(split_words(sentence))) - {0}
        return bool(terms) and any(terms <= line for line in self._lines)


def _find_lost_details(messages: Sequence[Entry], text: _Text) -> dict[str, list[str]]:
    """Return by kind of detail the ids of the messages that first mention a detail which the summary lacks.

    Names of speakers do not count as details.
    """
    speakers = {_speaker_of_entry(message).casefold() for message in messages}
    seen: set[str] = set()
    lost: dict[str, list[str]] = {kind: [] for kind in CORE}
    for message in messages:
        for detail in find_details(message.content):
            is_speaker = detail.text.casefold() in speakers
            if detail.kind not in CORE or detail.text in seen or is_speaker:
                continue
            seen.add(detail.text)
            if not text.holds(detail.text):
                lost[detail.kind].append(message.id)
    return {kind: ids for kind, ids in lost.items() if ids}


def _find_open_questions(messages: Sequence[Entry]) -> Iterable[tuple[str, str]]:
    """Yield the unanswered questions at the end of messages, each with the id of its message."""
    sentences = [_last_sentence(message.content) for message in messages]
    for index, message in enumerate(messages):
        if not _is_question(sentences[index]):
            continue
        is_answered = False
        if index + 1 < len(messages):
            is_reply = _speaker_of_entry(messages[index + 1]) != _speaker_of_entry(message)
            is_answered = is_reply and not _is_question(sentences[index + 1])
        if not is_answered:
            yield message.id, sentences[index]


def _speaker_of_entry(entry: Entry) -> str:
    return entry.actor or entry.role or ""


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
