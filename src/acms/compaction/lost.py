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
    """Return the details of messages that their summary omits; the messages are given oldest first."""
    messages = [
        entry
        for entry in entries
        if entry.kind is Kind.MESSAGE and entry.privacy is not Privacy.BLOCK and entry.content.strip()
    ]
    text = _SummaryText(summary)
    lost: dict[str, list[str]] = {"instruction": [], "marked": [], "question": []}
    for message in messages:
        if is_instruction(message):
            kind = "instruction"
        elif message.markers:
            kind = "marked"
        else:
            continue
        if not text.has_sentence(message.content):
            lost[kind].append(message.id)
    for id, question in _find_open_questions(messages):
        if not text.has_sentence(question):
            lost["question"].append(id)
    lost.update(_find_lost_details(messages, text))
    unique_ids = dict.fromkeys(chain.from_iterable(lost.values()))
    counts = {kind: len(ids) for kind, ids in lost.items() if ids}
    return Lost(counts=counts, ids=tuple(unique_ids)[:10])  # enough to look at


class _SummaryText:
    """The text of a summary, indexed for lookups."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._details = {detail.text for detail in find_details(text)}

    @cached_property
    def _single_spaced(self) -> str:
        return " ".join(self.text.split())

    @cached_property
    def _terms_of_lines(self) -> list[frozenset[int]]:
        return [frozenset(content_terms(split_words(line))) for line in self.text.splitlines()]

    def has_detail(self, detail: str) -> bool:
        """Return whether the summary contains a detail verbatim."""
        return detail in self._details or detail in self.text

    def has_sentence(self, sentence: str) -> bool:
        """Return whether the summary contains a sentence verbatim, or all its content words in one line."""
        if " ".join(sentence.split()) in self._single_spaced:
            return True
        terms = frozenset(content_terms(split_words(sentence))) - {0}
        return bool(terms) and any(terms <= terms_of_line for terms_of_line in self._terms_of_lines)


def _find_lost_details(messages: Sequence[Entry], text: _SummaryText) -> dict[str, list[str]]:
    """Return by kind of detail the ids of the messages that first mention a detail missing from the summary.

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
            if not text.has_detail(detail.text):
                lost[detail.kind].append(message.id)
    return {kind: ids for kind, ids in lost.items() if ids}


def _find_open_questions(messages: Sequence[Entry]) -> Iterable[tuple[str, str]]:
    """Yield the unanswered questions at the end of messages, each after the id of its message."""
    last_sentences = [_find_last_sentence(message.content) for message in messages]
    for index, message in enumerate(messages):
        question = last_sentences[index]
        if not _is_question(question):
            continue
        is_answered = False
        if index + 1 < len(messages):
            is_reply = _speaker_of_entry(messages[index + 1]) != _speaker_of_entry(message)
            is_answered = is_reply and not _is_question(last_sentences[index + 1])
        if not is_answered:
            yield message.id, question


def _speaker_of_entry(entry: Entry) -> str:
    return entry.actor or entry.role or ""


def _find_last_sentence(text: str) -> str:
    text = text.rstrip()
    spans = find_sentence_spans(text)
    if not spans:
        return ""
    start, end = spans[-1]
    return text[start:end].strip()


def _is_question(sentence: str) -> bool:
    """Return whether a sentence ends with a question mark of any script."""
    without_closing_quotes = sentence.rstrip("\"')]}*_»”’ ")
    return _is_question_mark(without_closing_quotes[-1:])


@lru_cache(maxsize=1_024)
def _is_question_mark(character: str) -> bool:
    return bool(character) and "QUESTION MARK" in unicodedata.name(character, "")
