"""The extractive summary: sentences and details of a conversation, letter by letter, within a hard token limit.

Nothing is paraphrased, so nothing can be made up. An earlier summary is parsed line by line, so marked messages and
details survive repeated summaries.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from heapq import nsmallest
from itertools import accumulate
from math import log
from operator import attrgetter, itemgetter
from typing import NamedTuple, TypeAlias

import numpy as np

from acms.ports import Turn
from acms.text.details import Detail, find_details
from acms.text.markers import sum_marker_weights
from acms.text.summary_form import (
    CUT,
    Line,
    Piece,
    format_marked_line,
    format_summary,
    parse_turn,
    sentences_of,
)
from acms.text.tokenizer import content_term

ANCHOR_SHARE = 0.5
"""Share of the token limit that marked messages may fill verbatim."""
GIST_SHARE = 0.15
"""Share of the remaining tokens for the most central sentences, with or without details."""
MIN_TOKENS_LEFT = 10
"""Remaining tokens below which no further sentence is looked for."""
BARE_NUMBER_WORTH = 0.4
"""Worth of a number without a unit; that of any other detail is 1."""
REPETITION_EXPONENT = -0.7
"""Exponent of the number of times a detail occurs: a detail that occurs once is worth most."""
RARITY_EXPONENT = 3.0
"""Exponent of the rarity of the words around a detail."""
EARLIER_FACTOR = 2.0
"""Factor for the worth of details in a line of an earlier summary, which was chosen once before."""
SIZE_EXPONENT = 0.7
"""Exponent of its tokens by which the worth of a detail is divided, so that long ids are not punished in full."""
MIN_LISTED_WORTH = 0.01
"""Worth from which tokens are reserved for a detail before sentences are chosen."""
_NAMING_KINDS = frozenset(("url", "email", "path", "host", "id", "code", "name"))
"""Kinds of details that say what a sentence is about."""
WORDS_BEFORE, WORDS_AFTER = 5, 3
"""Numbers of words kept before and after a detail."""

#: Ends of clauses. It starts with a set, not with alternatives, which makes it fast on long texts.
_CLAUSE_BREAK = re.compile(r"[.,;:!?()\[\]{}—–，；：。！？、（）-](?:(?<![.!?—–-])|(?= ))")
_LETTERS, _ASCII_LETTERS = re.compile(r"[^\W\d_]+"), re.compile(r"[a-z]+")
_MOST_BEFORE, _MOST_AFTER = 60, 40
"""Most characters of the words before and after a detail."""


_Mention: TypeAlias = tuple[int, int, int, float]
"""One occurrence of a detail: (number, start, end, worth); `text[start:end]` is the detail with the words around it.

Plain tuples of numbers, because there are a hundred thousand of them and the garbage collector skips these.
"""


class _Sentence:
    """A sentence that may be chosen."""

    __slots__ = (
        "centrality", "line_number", "line_tokens", "mentions", "name", "number", "occurrences", "subject", "terms",
        "text", "tokens",
    )  # fmt: skip

    def __init__(self, number: int, line_number: int, text: str) -> None:
        self.number = number
        self.line_number = line_number
        self.text = text
        #: How often the same text occurs.
        self.occurrences = 1
        self.tokens = 0
        #: Tokens of a line of the summary with this sentence alone.
        self.line_tokens = 0
        self.mentions: Sequence[_Mention] = ()
        #: The last detail in it that names something, or "".
        self.name = ""
        #: If it names nothing, the last name before it in its message: "It has 40 rows" is about something.
        self.subject = ""
        #: Its words without the details, as numbers: sentences that differ only in details have the same terms.
        self.terms: frozenset[int] = frozenset()
        #: Similarity to the whole conversation, in [0, 1].
        self.centrality = 0.0

    def detail_numbers(self) -> list[int]:
        """Return the numbers of the details in the sentence."""
        return [number for number, *_ in self.mentions]


def extract_summary(turns: Sequence[Turn], max_tokens: int, count: Callable[[str], int]) -> str:
    """Return a summary of some turns with at most `max_tokens` tokens, or "" if nothing fits."""
    if max_tokens <= 0:
        return ""
    lines = [line for turn in turns for line in parse_turn(turn)]
    cost = cache(count)
    split = _split_sentences(lines, cost)
    tokens_of_all = sum([sentence.tokens * sentence.occurrences for sentence in split.sentences])
    # The tokens of sentences do not add up to those of the text, so the text is counted if it is near the limit.
    may_fit_whole = tokens_of_all <= 1.1 * max_tokens
    if may_fit_whole:
        whole_summary = format_summary(_collect_all_pieces(lines, split))
        if count(whole_summary) <= max_tokens:
            return whole_summary
    details = _weigh_details(lines, split.sentences)
    _set_subjects(split)
    pieces = _choose_pieces(lines, split, max_tokens, cost)
    summary = _fit_to_limit(pieces, max_tokens, count)
    return summary or _choose_fragment(split.sentences, details, max_tokens, count)


# ── weighing ────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Split(NamedTuple):
    """The sentences of all lines."""

    #: Each text once.
    sentences: list[_Sentence]
    #: The sentences of each line.
    by_line: list[list[_Sentence]]


def _split_sentences(lines: Sequence[Line], cost: Callable[[str], int]) -> _Split:
    """Split all lines into sentences, and count the tokens and occurrences of each; `cost` counts tokens."""
    speaker_costs = {speaker: cost(f"\n- {speaker}: ") for speaker in {line.speaker for line in lines}}
    by_text: dict[str, _Sentence] = {}
    by_line: list[list[_Sentence]] = []
    for line_number, line in enumerate(lines):
        sentences_in_line: list[_Sentence] = []
        for text in sentences_of(line):
            sentence = by_text.get(text)
            if sentence is None:
                sentence = by_text[text] = _Sentence(len(by_text), line_number, text)
                sentence.tokens = cost(text)
                sentence.line_tokens = sentence.tokens + speaker_costs[line.speaker]
            else:
                sentence.occurrences += 1
            sentences_in_line.append(sentence)
        by_line.append(sentences_in_line)
    return _Split(list(by_text.values()), by_line)


def _weigh_details(lines: Sequence[Line], sentences: Sequence[_Sentence]) -> list[str]:
    """Set the terms, the centrality and the mentions of each sentence; return the details, each once."""
    contexts = _Contexts()
    numbers: dict[str, int] = {}
    worth_by_number: list[float] = []
    occurrences_by_number: list[int] = []
    contexts_by_sentence: dict[int, list[int]] = {}
    speaker_prefixes = _list_speaker_prefixes(lines)
    for sentence in sentences:
        text = sentence.text
        details = [
            detail
            for detail in find_details(text)
            if detail.kind != "name" or detail.text.casefold() not in speaker_prefixes
        ]
        if not details:
            sentence.terms = _collect_terms(text)
            continue
        blanked_text = _blank_details(text, details)
        sentence.terms = contexts.terms[contexts.find_index(blanked_text)]
        breaks = [match.span() for match in _CLAUSE_BREAK.finditer(blanked_text)]
        mentions: list[_Mention] = []
        context_indexes: list[int] = []
        for kind, name, start, end in details:
            number = numbers.setdefault(name, len(worth_by_number))
            if number == len(worth_by_number):
                has_no_unit = kind == "number" and name.isdigit()
                worth_by_number.append(BARE_NUMBER_WORTH if has_no_unit else 1.0)
                occurrences_by_number.append(0)
            occurrences_by_number[number] += sentence.occurrences
            first = _find_context_start(text, breaks, start)
            last = _find_context_end(text, breaks, end)
            context = contexts.find_index(blanked_text[first:last])
            mentions.append((number, first, last, 0.0))
            context_indexes.append(context)
            if kind in _NAMING_KINDS:
                sentence.name = name
        sentence.mentions = mentions
        contexts_by_sentence[sentence.number] = context_indexes
    idf = _measure_centrality(sentences, lines)
    rarity = contexts.measure_rarity(idf, log(1 + len(sentences)))
    for number, count in enumerate(occurrences_by_number):
        worth_by_number[number] *= count**REPETITION_EXPONENT
    for sentence in sentences:
        factor = EARLIER_FACTOR if lines[sentence.line_number].is_earlier else 1.0
        context_indexes = contexts_by_sentence.get(sentence.number, [])
        sentence.mentions = [
            (number, first, last, factor * worth_by_number[number] * rarity[context])
            for (number, first, last, _), context in zip(sentence.mentions, context_indexes, strict=True)
        ]
    return list(numbers)


def _set_subjects(split: _Split) -> None:
    """Set the subject of each sentence that names nothing, from the sentences before it in its message."""
    for line_number, sentences in enumerate(split.by_line):
        last_name = ""
        for sentence in sentences:
            if sentence.name:
                last_name = sentence.name
            elif sentence.line_number == line_number:  # not a repetition of what another message said first
                sentence.subject = last_name


def _list_speaker_prefixes(lines: Sequence[Line]) -> set[str]:
    """Return the beginnings of the speakers' names, from three letters to the whole name.

    Speakers address each other by these. They are no details, because every line names its speaker anyway.
    """
    names = {line.speaker.casefold() for line in lines}
    return {name[:end] for name in names for end in range(3, len(name) + 1)}


class _Contexts:
    """The different texts around details, numbered: programs write the same line a thousand times."""

    def __init__(self) -> None:
        self._indexes: dict[str, int] = {}
        #: The terms of each text, by its index.
        self.terms: list[frozenset[int]] = []

    def find_index(self, text: str) -> int:
        """Return the index of a text, and add the text if it is new."""
        normalized = " ".join(text.split())
        index = self._indexes.get(normalized)
        if index is None:
            index = self._indexes[normalized] = len(self.terms)
            self.terms.append(_collect_terms(normalized))
        return index

    def measure_rarity(self, idf: Mapping[int, float], default: float) -> list[float]:
        """Return the rarity of each text by its index; `default` is the IDF of an unknown term."""
        rarity: list[float] = []
        for terms in self.terms:
            relative_idf = 0.5
            if terms:
                mean_idf = sum(idf.get(term, default) for term in terms) / len(terms)
                relative_idf = mean_idf / default
            rarity.append(relative_idf**RARITY_EXPONENT)
        return rarity


def _collect_terms(text: str) -> frozenset[int]:
    """Return the terms of the words in a text without stop words."""
    letters = _ASCII_LETTERS if text.isascii() else _LETTERS
    terms = frozenset(map(content_term, letters.findall(text.lower())))
    return terms - _STOP_WORD if 0 in terms else terms


_STOP_WORD = frozenset((0,))
"""The term of every stop word."""


def _blank_details(text: str, details: Sequence[Detail]) -> str:
    """Return a text with spaces instead of its details, so that all positions stay the same."""
    parts: list[str] = []
    position = 0
    for detail in details:
        if detail.start >= position:
            parts += (text[position : detail.start], " " * (detail.end - detail.start))
            position = detail.end
    parts.append(text[position:])
    return "".join(parts)


def _find_context_start(text: str, breaks: Sequence[tuple[int, int]], start: int) -> int:
    """Return the start of the last words before a detail, in its clause; `breaks` are the spans that end clauses."""
    clause_start = max(0, start - _MOST_BEFORE)
    # A label right before a detail, such as "path: ", belongs to its clause.
    label_end = clause_start + len(text[clause_start:start].rstrip(" ,:=(\"'“„`[{"))
    index = bisect_right(breaks, (label_end, 0)) - 1
    if index >= 0:
        _, end_of_break = breaks[index]
        if end_of_break <= label_end:
            clause_start = max(clause_start, end_of_break)
    may_cut_word = clause_start == start - _MOST_BEFORE and clause_start > 0
    if may_cut_word:
        space = text.find(" ", clause_start, start)
        clause_start = clause_start if space < 0 else space + 1
    clause = text[clause_start:start]
    parts = clause.rsplit(None, WORDS_BEFORE)
    length_of_rest = len(parts[0]) if len(parts) > WORDS_BEFORE else 0
    return start - len(clause[length_of_rest:].lstrip())


def _find_context_end(text: str, breaks: Sequence[tuple[int, int]], end: int) -> int:
    """Return the end of the first words after a detail, in its clause."""
    clause_end = min(len(text), end + _MOST_AFTER)
    index = bisect_left(breaks, (end, 0))
    if index < len(breaks):
        start_of_break, _ = breaks[index]
        clause_end = min(clause_end, start_of_break)
    text_after = text[end:clause_end]
    parts = text_after.split(None, WORDS_AFTER)
    may_cut_word = clause_end == end + _MOST_AFTER and clause_end < len(text)
    if len(parts) > WORDS_AFTER:
        last_part = parts[-1]
        text_after = text_after[: len(text_after) - len(last_part)]
    elif may_cut_word:
        text_after = text_after[: max(0, text_after.rfind(" "))]
    return end + len(text_after.rstrip(" \t.,;:!?。，"))


def _measure_centrality(sentences: Sequence[_Sentence], lines: Sequence[Line]) -> dict[int, float]:
    """Set the centrality of each sentence; return the inverse document frequency (IDF) of each term.

    Centrality is the cosine between the IDF vector of the sentence and the sum of all, in [0, 1]; it is lower for short
    and repeated sentences and 1.2 times higher at the beginning and the end of the conversation.
    """
    count = len(sentences)
    term_counts = np.array([len(sentence.terms) for sentence in sentences], np.int64)
    terms = np.array([term for sentence in sentences for term in sentence.terms], np.int64)
    if not len(terms):
        return {}
    sentence_of_term = np.repeat(np.arange(count), term_counts)
    unique_terms, columns = np.unique(terms, return_inverse=True)
    idf = np.log(1 + count / np.bincount(columns))
    # Lines that a program wrote a thousand times count as one line.
    repetitions = Counter(sentence.terms for sentence in sentences)
    weights = np.array([1 / repetitions[sentence.terms] for sentence in sentences])
    values = idf[columns]
    sum_of_all = np.bincount(columns, weights=values * weights[sentence_of_term])
    length_of_sum = max(float(np.sqrt(sum_of_all @ sum_of_all)), 1e-9)
    lengths = np.sqrt(np.bincount(sentence_of_term, weights=values * values, minlength=count))
    products = np.bincount(sentence_of_term, weights=values * sum_of_all[columns], minlength=count)
    cosines = products / (np.maximum(lengths, 1e-9) * length_of_sum)
    # Very short sentences are similar to anything.
    length_factors = np.minimum(1.0, term_counts / 6)
    centralities = cosines * (length_factors * weights**0.5)
    edge = max(1, len(lines) // 50)
    for sentence, centrality in zip(sentences, centralities.tolist(), strict=True):
        is_at_edge = sentence.line_number < edge or sentence.line_number >= len(lines) - edge
        sentence.centrality = centrality * (1.2 if is_at_edge else 1.0)
    return dict(zip(unique_terms.tolist(), idf.tolist(), strict=True))


# ── choosing ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _choose_pieces(
    lines: Sequence[Line], split: _Split, limit: int, cost: Callable[[str], int]
) -> list[Piece]:
    """Choose marked messages, then central sentences, then details, then more sentences, up to `limit` tokens."""
    selection = _Selection(lines, split, limit, cost)
    gist_budget = int(selection.remaining * GIST_SHARE)
    selection.add_sentences(_choose_central_sentences(selection.free_sentences(), gist_budget))
    snippets = selection.build_snippets()
    whole_sentences = _choose_whole_sentences(snippets, selection.free_sentences(), selection.remaining)
    selection.add_sentences(whole_sentences)
    snippets = [snippet for snippet in snippets if snippet.sentence.number not in selection.chosen_numbers]
    in_details = selection.add_snippets([snippet for snippet in snippets if snippet.is_valuable])
    if selection.remaining > MIN_TOKENS_LEFT:
        other_sentences = [
            sentence for sentence in selection.free_sentences() if sentence.number not in in_details
        ]
        selection.add_sentences(_choose_central_sentences(other_sentences, selection.remaining))
    selection.add_snippets([snippet for snippet in snippets if not snippet.is_valuable])
    return selection.pieces


def _tokens_of_valuable(snippets: Sequence[_Snippet]) -> int:
    return sum([snippet.tokens for snippet in snippets if snippet.is_valuable])


class _Selection:
    """The pieces chosen for a summary so far."""

    def __init__(self, lines: Sequence[Line], split: _Split, limit: int, cost: Callable[[str], int]) -> None:
        self._lines = lines
        self._sentences = split.sentences
        self._cost = cost
        #: The chosen pieces, and the numbers of the chosen sentences.
        self.pieces, self.chosen_numbers = _choose_anchors(lines, split, limit, cost)
        self.remaining = limit - sum(piece.tokens for piece in self.pieces)
        #: Numbers of the details in chosen sentences.
        self._covered_details: set[int] = set()
        for sentence in self._sentences:
            if sentence.number in self.chosen_numbers:
                self._covered_details.update(sentence.detail_numbers())

    def free_sentences(self) -> list[_Sentence]:
        """Return the sentences that are not chosen, without the details of earlier summaries."""
        free_sentences = [
            sentence for sentence in self._sentences if sentence.number not in self.chosen_numbers
        ]
        return [sentence for sentence in free_sentences if not self._lines[sentence.line_number].is_detail]

    def build_snippets(self) -> list[_Snippet]:
        """Return the details that no chosen sentence contains, with the words around them."""
        free = [
            sentence
            for sentence in self._sentences
            if sentence.mentions and sentence.number not in self.chosen_numbers
        ]
        return _build_snippets(free, self._lines, self._covered_details, self._cost)

    def add_sentences(self, sentences: Sequence[_Sentence]) -> None:
        """Choose all of some sentences, which are given best first."""
        for rank, sentence in enumerate(sentences):
            keep = 1 - rank / len(sentences)
            order = (sentence.line_number, sentence.number, 0)
            line = self._lines[sentence.line_number]
            self.pieces.append(Piece(order, line, sentence.text, sentence.line_tokens, keep))
            self.chosen_numbers.add(sentence.number)
            self._covered_details.update(sentence.detail_numbers())
            self.remaining -= sentence.line_tokens

    def add_snippets(self, snippets: Sequence[_Snippet]) -> set[int]:
        """Choose the snippets that fit, which are given best first; return the numbers of their sentences."""
        sentence_numbers: set[int] = set()
        for rank, snippet in enumerate(snippets):
            sentence = snippet.sentence
            if snippet.tokens > self.remaining or sentence.number in self.chosen_numbers:
                continue
            keep = 1 - rank / len(snippets)
            order = (sentence.line_number, sentence.number, snippet.start)
            line = self._lines[sentence.line_number]
            self.pieces.append(Piece(order, line, snippet.text, snippet.tokens, keep, is_detail=True))
            self.remaining -= snippet.tokens
            sentence_numbers.add(sentence.number)
        return sentence_numbers


def _choose_central_sentences(sentences: Sequence[_Sentence], budget: int) -> list[_Sentence]:
    """Return the sentences with the highest centrality per token, as long as they fit `budget` tokens.

    A sentence is left out if the ones before it have more than half of its terms.
    """

    def centrality_per_token(sentence: _Sentence) -> float:
        return sentence.centrality / max(1, sentence.line_tokens)

    chosen: list[_Sentence] = []
    covered_terms: set[int] = set()
    for sentence in sorted(sentences, key=centrality_per_token, reverse=True):
        if budget <= MIN_TOKENS_LEFT:
            break
        is_new = len(sentence.terms - covered_terms) * 2 >= len(sentence.terms) > 0
        if is_new and sentence.line_tokens <= budget:
            budget -= sentence.line_tokens
            chosen.append(sentence)
            covered_terms |= sentence.terms
    return chosen


class _Snippet(NamedTuple):
    """A part of a sentence: one or more details with the words around them."""

    sentence: _Sentence
    start: int
    text: str
    tokens: int
    worth: float

    @property
    def is_valuable(self) -> bool:
        """Whether tokens are reserved for it before sentences are chosen."""
        return self.worth >= MIN_LISTED_WORTH


def _build_snippets(
    sentences: Sequence[_Sentence],
    lines: Sequence[Line],
    covered_details: set[int],
    cost: Callable[[str], int],
) -> list[_Snippet]:
    """Return a snippet for each detail not in `covered_details`, from the sentence where it is worth most, best first.

    Details whose contexts overlap share a snippet.
    """
    best = _find_best_mentions(sentences, covered_details)
    snippets: list[_Snippet] = []
    for index, sentence in enumerate(sentences):
        mentions = [mention for mention in sentence.mentions if best.get(mention[0]) == index]
        if not mentions:
            continue
        text = sentence.text
        merged_spans: list[tuple[int, int, float]] = []  # start, end and worth
        for _, first, last, worth in mentions:
            if lines[sentence.line_number].is_detail:
                first, last = 0, len(text)
            if merged_spans and first <= merged_spans[-1][1]:
                previous_first, previous_last, previous_worth = merged_spans.pop()
                first, last = min(first, previous_first), max(last, previous_last)
                worth = max(worth, previous_worth)
            merged_spans.append((first, last, worth))
        for first, last, worth in merged_spans:
            snippet_text = text[first:last]
            if sentence.subject:
                snippet_text = f"{sentence.subject}{CUT}{snippet_text}"
            snippets.append(_Snippet(sentence, first, snippet_text, cost(f"; {snippet_text}"), worth))
    snippets.sort(key=_most_valuable_first)
    return snippets


def _find_best_mentions(sentences: Sequence[_Sentence], covered_details: set[int]) -> dict[int, int]:
    """Return {number of a detail: index of the sentence where it is worth most}, without `covered_details`."""
    best_sentences: dict[int, int] = {}
    best_worth: dict[int, float] = {}
    for index, sentence in enumerate(sentences):
        for number, _, _, worth in sentence.mentions:
            if number not in covered_details and worth > best_worth.get(number, -1.0):
                best_sentences[number], best_worth[number] = index, worth
    return best_sentences


def _most_valuable_first(snippet: _Snippet) -> tuple[float, int, int]:
    """Order snippets by worth for their size; of equals, such as the lines of a routine, the newest comes first."""
    worth_by_size = snippet.worth / max(1, snippet.tokens) ** SIZE_EXPONENT
    return -worth_by_size, -snippet.sentence.number, snippet.start


def _choose_whole_sentences(
    snippets: Sequence[_Snippet], sentences: Sequence[_Sentence], budget: int
) -> list[_Sentence]:
    """Return the sentences to show whole instead of their snippets, while all other valuable snippets still fit."""
    budget -= _tokens_of_valuable(snippets)
    if budget <= 0:
        return []
    snippet_tokens: dict[int, int] = {}
    worth_by_number: dict[int, float] = {}
    for snippet in snippets:
        number = snippet.sentence.number
        worth_by_number[number] = worth_by_number.get(number, 0.0) + snippet.worth
        if snippet.is_valuable:
            snippet_tokens[number] = snippet_tokens.get(number, 0) + snippet.tokens

    def worth_by_size(sentence: _Sentence) -> float:
        return (worth_by_number[sentence.number] + sentence.centrality) / max(1, sentence.line_tokens)

    chosen: list[_Sentence] = []
    with_snippets = [sentence for sentence in sentences if sentence.number in snippet_tokens]
    for sentence in sorted(with_snippets, key=worth_by_size, reverse=True):
        extra_tokens = sentence.line_tokens - snippet_tokens[sentence.number]
        if extra_tokens <= budget:
            budget -= extra_tokens
            chosen.append(sentence)
    return chosen


def _choose_anchors(
    lines: Sequence[Line], split: _Split, limit: int, cost: Callable[[str], int]
) -> tuple[list[Piece], set[int]]:
    """Return a piece for each marked message, shortened if it exceeds its share, and the numbers of its sentences."""
    budget = int(limit * ANCHOR_SHARE)
    pieces: list[Piece] = []
    chosen_numbers: set[int] = set()
    anchors = _select_anchors(lines, split, budget, cost)
    for index, (line_number, tokens) in enumerate(anchors):
        line = lines[line_number]
        sentences = split.by_line[line_number]
        share = budget // (len(anchors) - index)
        text = line.text
        if tokens > share:
            frame_tokens = cost("\n" + format_marked_line(line, ""))
            sentences = _choose_informative_sentences(sentences, share - frame_tokens)
            if not sentences:
                continue
            text = _join_sentences(split.by_line[line_number], sentences)
            tokens = sum([sentence.tokens + 2 for sentence in sentences]) + frame_tokens
        chosen_numbers.update([sentence.number for sentence in sentences])
        keep = 2 + sum_marker_weights(line.markers)
        pieces.append(Piece((line_number, 0, 0), line, text, tokens, keep, is_marked=True))
        budget -= tokens
    return pieces, chosen_numbers


def _select_anchors(
    lines: Sequence[Line], split: _Split, budget: int, cost: Callable[[str], int]
) -> list[tuple[int, int]]:
    """Return (line number, tokens) of the marked messages to keep, the smallest first; equal texts count once.

    If they do not all fit the budget, the ones with the greatest marker weights are kept. The smallest come first
    because they leave a part of their equal share, which the others get.
    """
    by_text: dict[str, tuple[int, int]] = {}
    for line_number, line in enumerate(lines):
        if line.is_marked and line.text not in by_text and split.by_line[line_number]:
            by_text[line.text] = (line_number, cost("\n" + format_marked_line(line, line.text)))

    def weightiest_first(anchor: tuple[int, int]) -> tuple[float, int]:
        line_number, _ = anchor
        return -sum_marker_weights(lines[line_number].markers), -line_number

    anchors = sorted(by_text.values(), key=weightiest_first)
    # Each counts with its first 40 tokens at most, so that a long one does not displace the others.
    total_tokens = list(accumulate(min(tokens, 40) for _, tokens in anchors))
    number_that_fits = bisect_right(total_tokens, budget)
    return sorted(anchors[: max(1, number_that_fits)], key=itemgetter(1))


def _choose_informative_sentences(sentences: Sequence[_Sentence], budget: int) -> list[_Sentence]:
    """Return the sentences of a marked message with the greatest worth per token that fit `budget` tokens."""

    def worth_by_size(sentence: _Sentence) -> float:
        worth_of_details = sum([worth for *_, worth in sentence.mentions])
        return (worth_of_details + sentence.centrality + 0.05) / (sentence.tokens + 2)

    chosen: list[_Sentence] = []
    for sentence in sorted(sentences, key=worth_by_size, reverse=True):
        tokens = sentence.tokens + 2  # with a mark where text is omitted
        if tokens <= budget:
            budget -= tokens
            chosen.append(sentence)
    return chosen


def _join_sentences(sentences: Sequence[_Sentence], chosen: Sequence[_Sentence]) -> str:
    """Join the chosen sentences in order, with a mark where sentences are omitted between them."""
    to_join = {sentence.number for sentence in chosen}
    text = ""
    has_gap = False
    for sentence in sentences:
        if sentence.number not in to_join:
            has_gap = True
            continue
        to_join.discard(sentence.number)
        if text:
            text += CUT if has_gap else " "
        text += sentence.text
        has_gap = False
    return text


# ── writing ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _collect_all_pieces(lines: Sequence[Line], split: _Split) -> list[Piece]:
    """Return everything as pieces of a summary: marked lines whole, others by their sentences."""
    pieces: list[Piece] = []
    for number, line in enumerate(lines):
        texts = [line.text] if line.is_marked else [sentence.text for sentence in split.by_line[number]]
        for index, text in enumerate(texts):
            order = (number, index, 0)
            pieces.append(
                Piece(order, line, text, 0, 0.0, is_detail=line.is_detail, is_marked=line.is_marked)
            )
    return pieces


def _fit_to_limit(pieces: list[Piece], limit: int, count: Callable[[str], int]) -> str:
    """Write the summary, without the least important pieces if the whole text exceeds `limit` tokens.

    The tokens of the pieces do not add up to those of the text, so the text is counted again after every removal.
    """
    kept_pieces = sorted(pieces, key=attrgetter("keep"), reverse=True)
    while kept_pieces:
        text = format_summary(kept_pieces)
        excess = count(text) - limit
        if excess <= 0:
            return text
        least_removed = len(kept_pieces) // 16  # so that the text is counted only a few times
        while kept_pieces and (excess > 0 or least_removed > 0):
            excess -= max(1, kept_pieces.pop().tokens)
            least_removed -= 1
    return ""


def _choose_fragment(
    sentences: Sequence[_Sentence], details: Sequence[str], limit: int, count: Callable[[str], int]
) -> str:
    """Return the most valuable detail that fits `limit` tokens, else the start of the first sentence, else ""."""
    details_by_worth: list[tuple[float, int]] = []
    for sentence in sentences:
        details_by_worth += [(-worth, number) for number, *_, worth in sentence.mentions]
    for _, number in nsmallest(32, details_by_worth):  # counting the tokens of all details takes long
        if count(details[number]) <= limit:
            return details[number]
    text = sentences[0].text if sentences else ""
    while text and count(text) > limit:
        text = text[: len(text) // 2].rstrip()
    return text
