"""The extractive summary: sentences and details of a conversation, letter by letter, within a hard token limit.

Nothing is said in other words, so nothing can be made up. An earlier summary is read again line by line, so that
neither marked messages nor details are lost by and by.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from heapq import heapify, heappop, heappush, nsmallest
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
from acms.text.tokenizer import content_term, split_words

ANCHORS = 0.5
"""Share of the limit that marked messages may fill verbatim."""
GIST = 0.15
"""Share of what they leave for the sentences most like the whole, whether they hold details or not."""
LEAST = 10
"""Tokens that a sentence more is worth."""
WORTH = {
    "url": 1.0, "email": 1.0, "path": 1.0, "host": 1.0, "id": 1.0, "version": 0.9, "date": 0.9, "number": 0.8,
    "name": 0.8, "code": 0.7, "quote": 0.6,
}  # fmt: skip
"""What a detail is worth by its kind."""
REPEATED = -0.7
"""Exponent of the number of times a detail occurs: a detail that occurs once is worth most."""
ALIKE = -0.5
"""Power of the number of times the words around a detail, or of a sentence, come again with others in it."""
STRANGE = 3.0
"""Power of how rare the words around a detail are."""
EARLIER = 2.0
"""A line of an earlier summary was chosen once before: it is worth this much more."""
MORE = 0.2
"""Share of its worth that a detail adds to a dearer one in the same clause."""
SIZE = 0.7
"""Power of its size that a detail is divided by: a long id is not worth less for being long, but takes more room."""
LISTED = 0.01
"""Worth of a detail from which room is kept for it before sentences are chosen."""
WIDE, TIGHT = (5, 3), (2, 1)
"""Words kept before and after a detail, and when not all of them fit."""

#: It starts with a set, not with alternatives: half a million letters are passed by in no time.
_BREAK = re.compile(r"[.,;:!?()\[\]{}—–，；：。！？、（）-](?:(?<![.!?—–-])|(?= ))")
_LETTERS, _ASCII_LETTERS = re.compile(r"[^\W\d_]+"), re.compile(r"[a-z]+")
_BEFORE, _AFTER = 60, 40
"""Characters that the words around a detail may have."""


_Mention: TypeAlias = tuple[int, int, int, int, int, float]
"""A detail by number, where it starts and ends, where the words around it do, and its worth there.

Plain tuples of numbers: there are a hundred thousand of them, and the garbage collector passes these by.
"""


class _Sentence:
    """A sentence that may be chosen."""

    __slots__ = ("centre", "count", "kinds", "line", "mentions", "order", "size", "text", "tokens")

    def __init__(self, order: int, line: int, text: str) -> None:
        self.order = order
        self.line = line
        self.text = text
        #: How often it occurs, letter by letter.
        self.count = 1
        self.tokens = 0
        #: Tokens of a line with nothing else.
        self.size = 0
        self.mentions: Sequence[_Mention] = ()
        #: Its words without the details, as numbers: sentences that differ in details alone have the same.
        self.kinds: frozenset[int] = frozenset()
        #: How much it is like the whole, in [0, 1].
        self.centre = 0.0


def extract_summary(turns: Sequence[Turn], max_tokens: int, count: Callable[[str], int]) -> str:
    """Return a summary of some turns with at most `max_tokens` tokens, or "" if nothing fits."""
    if max_tokens <= 0:
        return ""
    lines = [line for turn in turns for line in parse_turn(turn)]
    cost = cache(count)
    split = _split_sentences(lines, cost)
    may_fit_whole = sum(one.tokens * one.count for one in split.sentences) <= 1.1 * max_tokens
    if may_fit_whole:
        whole = format_summary(_collect_all_pieces(lines, split))
        if count(whole) <= max_tokens:
            return whole
    details = _weigh_details(lines, split.sentences)
    chosen = _choose_pieces(lines, split, max_tokens, cost)
    summary = _fit_to_limit(chosen, max_tokens, count)
    return summary or _choose_fragment(split.sentences, details, max_tokens, count)


# ── weighing ────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Split(NamedTuple):
    """Every sentence once."""

    sentences: list[_Sentence]
    #: Sentences of each line.
    by_line: list[list[_Sentence]]


def _split_sentences(lines: Sequence[Line], cost: Callable[[str], int]) -> _Split:
    """Return the sentences of all lines, each text once with its cost and how often it occurs."""
    lead_costs = {speaker: cost(f"\n- {speaker}: ") for speaker in {line.speaker for line in lines}}
    unique: dict[str, _Sentence] = {}
    by_line: list[list[_Sentence]] = []
    for number, line in enumerate(lines):
        own: list[_Sentence] = []
        for text in sentences_of(line):
            sentence = unique.get(text)
            if sentence is None:
                sentence = unique[text] = _Sentence(len(unique), number, text)
                sentence.tokens = cost(text)
                sentence.size = sentence.tokens + lead_costs[line.speaker]
            else:
                sentence.count += 1
            own.append(sentence)
        by_line.append(own)
    return _Split(list(unique.values()), by_line)


def _weigh_details(lines: Sequence[Line], sentences: Sequence[_Sentence]) -> list[str]:
    """Set the worth of sentences and of the details in them; return the details, each once."""
    contexts = _Contexts()
    numbers: dict[str, int] = {}
    worth: list[float] = []
    occurrences: list[int] = []
    with_details: list[_Sentence] = []
    speaker_prefixes = _list_speaker_prefixes(lines)
    for sentence in sentences:
        text = sentence.text
        details = [
            one
            for one in find_details(text)
            if one.kind != "name" or one.text.casefold() not in speaker_prefixes
        ]
        if not details:
            sentence.kinds = _collect_terms(text)
            continue
        plain = _blank_details(text, details)
        sentence.kinds = contexts.terms[contexts.find_index(plain)]
        breaks = _find_clause_breaks(plain)
        mentions: list[_Mention] = []
        for kind, name, start, end in details:
            number = numbers.setdefault(name, len(worth))
            if number == len(worth):
                is_bare = kind == "number" and name.isdigit()
                worth.append(WORTH[kind] * (0.4 if is_bare else 1.0))  # a number without a unit is worth less
                occurrences.append(0)
            occurrences[number] += sentence.count
            first, last = _find_context_span(text, breaks, start, end, WIDE)
            context = contexts.find_index(plain[first:last])
            contexts.count(context, sentence.count)
            mentions.append((number, start, end, first, last, context))
        sentence.mentions = mentions
        with_details.append(sentence)
    idf = _measure_centrality(sentences, lines)
    rarity = contexts.measure_rarity(idf, log(1 + len(sentences)))
    for number, count in enumerate(occurrences):
        worth[number] *= count**REPEATED
    for sentence in with_details:
        factor = EARLIER if lines[sentence.line].earlier else 1.0
        sentence.mentions = [
            (number, start, end, first, last, factor * worth[number] * rarity[int(context)])
            for number, start, end, first, last, context in sentence.mentions
        ]
    return list(numbers)


def _list_speaker_prefixes(lines: Sequence[Line]) -> set[str]:
    """Return the names of the speakers and their beginnings.

    Every line begins with its speaker; the forms by which they address each other are no details.
    """
    names = {line.speaker.casefold() for line in lines}
    return {name[:end] for name in names for end in range(3, len(name) + 1)}


class _Contexts:
    """The words around details, each text once: lines of a program repeat a thousand times."""

    def __init__(self) -> None:
        self._indexes: dict[str, int] = {}
        #: The terms of each text, by its index.
        self.terms: list[frozenset[int]] = []
        self._times: Counter[frozenset[int]] = Counter()

    def find_index(self, plain: str) -> int:
        """Return the index of a text."""
        plain = " ".join(plain.split())
        index = self._indexes.get(plain)
        if index is None:
            index = self._indexes[plain] = len(self.terms)
            self.terms.append(_collect_terms(plain))
        return index

    def count(self, index: int, times: int) -> None:
        """Count how often a text stands around a detail."""
        self._times[self.terms[index]] += times

    def measure_rarity(self, idf: Mapping[int, float], default: float) -> list[float]:
        """Return how rare each text is; 0 for one that stands around no detail."""
        rarity: list[float] = []
        for terms in self.terms:
            if terms not in self._times:
                rarity.append(0.0)
                continue
            strangeness = 0.5
            if terms:
                strangeness = sum(idf.get(term, default) for term in terms) / len(terms) / default
            rarity.append(strangeness**STRANGE * self._times[terms] ** ALIKE)
        return rarity


def _collect_terms(text: str) -> frozenset[int]:
    letters = _ASCII_LETTERS if text.isascii() else _LETTERS
    found = frozenset(map(content_term, letters.findall(text.lower())))
    return found - _NOTHING if 0 in found else found


_NOTHING = frozenset((0,))


def _blank_details(text: str, details: Sequence[Detail]) -> str:
    """Return a text with its details blanked, as long as before."""
    parts: list[str] = []
    position = 0
    for detail in details:
        if detail.start >= position:
            parts += (text[position : detail.start], " " * (detail.end - detail.start))
            position = detail.end
    parts.append(text[position:])
    return "".join(parts)


def _find_clause_breaks(plain: str) -> list[tuple[int, int]]:
    """Return where clauses are divided."""
    return [match.span() for match in _BREAK.finditer(plain)]


def _find_context_span(
    text: str, breaks: Sequence[tuple[int, int]], start: int, end: int, words: tuple[int, int]
) -> tuple[int, int]:
    """Return the start and end of the clause around a detail: so many words before and after, at most."""
    tight = words is TIGHT
    first = _find_context_start(text, breaks, start, words[0], tight)
    last = _find_context_end(text, breaks, end, words[1], tight)
    return first, last


def _find_context_start(
    text: str, breaks: Sequence[tuple[int, int]], start: int, words: int, tight: bool
) -> int:
    """Return where the words before a detail begin: within its clause, and so many, or more until one has content."""
    clipped = max(0, start - _BEFORE)
    first = clipped
    # A label right before a detail, such as "path: ", names it and ends no clause.
    label_end = first + len(text[first:start].rstrip(" ,:=(\"'“„`[{"))
    index = bisect_right(breaks, (label_end, 0)) - 1
    if index >= 0 and breaks[index][1] <= label_end:
        first = max(first, breaks[index][1])
    if first == start - _BEFORE and first > 0:  # the clip may be inside of a word
        first = text.find(" ", first, start) + 1 or first
    begin = _start_of_last_words(text, first, start, words)
    if not tight:
        return begin
    # "ends with 5 GB" says nothing without the word before.
    while begin > first and words < WIDE[0] and not _has_content_word(text[begin:start]):
        words += 1
        begin = _start_of_last_words(text, first, start, words)
    return begin


def _find_context_end(text: str, breaks: Sequence[tuple[int, int]], end: int, words: int, tight: bool) -> int:
    """Return where the words after a detail end: within its clause, so many at most."""
    last = min(len(text), end + _AFTER)
    index = bisect_left(breaks, (end, 0))
    if index < len(breaks):
        last = min(last, breaks[index][0])
    after = text[end:last]
    parts = after.split(None, words)
    if len(parts) > words:
        after = after[: len(after) - len(parts[-1])]
    elif last == end + _AFTER < len(text):  # the clip may be inside of a word
        after = after[: max(0, after.rfind(" "))]
    if tight and after[:1].isspace() and not _has_content_word(after):
        after = ""
    return end + len(after.rstrip(" \t.,;:!?。，"))


def _start_of_last_words(text: str, first: int, end: int, count: int) -> int:
    """Return the start of the last words of a text before its end."""
    clause = text[first:end]
    parts = clause.rsplit(None, count)
    start = len(parts[0]) if len(parts) > count else 0
    return end - len(clause[start:].lstrip())


def _has_content_word(text: str) -> bool:
    """Return whether a text has a word that is not a stop word."""
    return any(map(content_term, split_words(text)))


def _measure_centrality(sentences: Sequence[_Sentence], lines: Sequence[Line]) -> dict[int, float]:
    """Set the centrality of each sentence, its similarity to the whole; return how rare each word is."""
    count = len(sentences)
    sizes = np.array([len(one.kinds) for one in sentences], np.int64)
    terms = np.array([term for one in sentences for term in one.kinds], np.int64)
    if not len(terms):
        return {}
    owners = np.repeat(np.arange(count), sizes)
    unique_terms, columns = np.unique(terms, return_inverse=True)
    idf = np.log(1 + count / np.bincount(columns))
    # Lines that a program wrote a thousand times count as one line.
    repetitions = Counter(one.kinds for one in sentences)
    weights = np.array([1 / repetitions[one.kinds] for one in sentences])
    values = idf[columns]
    whole = np.bincount(columns, weights=values * weights[owners])
    whole_length = max(float(np.sqrt(whole @ whole)), 1e-9)
    lengths = np.sqrt(np.bincount(owners, weights=values * values, minlength=count))
    products = np.bincount(owners, weights=values * whole[columns], minlength=count)
    cosines = products / (np.maximum(lengths, 1e-9) * whole_length)
    # Short sentences are like anything; a thought has some words.
    centrality = cosines * (np.minimum(1.0, sizes / 6) * weights**0.5)
    edge = max(1, len(lines) // 50)
    for sentence, centre in zip(sentences, centrality.tolist(), strict=True):
        is_at_edge = sentence.line < edge or sentence.line >= len(lines) - edge
        sentence.centre = centre * (1.2 if is_at_edge else 1.0)
    return dict(zip(unique_terms.tolist(), idf.tolist(), strict=True))


# ── choosing ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _choose_pieces(
    lines: Sequence[Line], split: _Split, limit: int, cost: Callable[[str], int]
) -> list[Piece]:
    """Choose marked messages, then the thread of the talk, then details, and sentences with the remaining tokens."""
    selection = _Selection(lines, split, limit, cost)
    gist_budget = int(selection.remaining * GIST)
    selection.add_sentences(_choose_central_sentences(selection.free_sentences(), gist_budget))
    snippets = selection.build_snippets(WIDE)
    if sum(one.tokens for one in snippets if one.worth >= LISTED) > selection.remaining:
        snippets = selection.build_snippets(TIGHT)
    whole = _choose_whole_sentences(snippets, selection.free_sentences(), selection.remaining)
    selection.add_sentences(whole)
    snippets = [one for one in snippets if one.sentence.order not in selection.taken]
    in_details = selection.add_snippets([one for one in snippets if one.worth >= LISTED])
    if selection.remaining > LEAST:
        others = [one for one in selection.free_sentences() if one.order not in in_details]
        selection.add_sentences(_choose_central_sentences(others, selection.remaining))
    selection.add_snippets([one for one in snippets if one.worth < LISTED])
    return selection.chosen


class _Selection:
    """The pieces chosen for a summary so far."""

    def __init__(self, lines: Sequence[Line], split: _Split, limit: int, cost: Callable[[str], int]) -> None:
        self._lines = lines
        self._sentences = split.sentences
        self._cost = cost
        #: The chosen pieces, and the numbers of the chosen sentences.
        self.chosen, self.taken = _choose_anchors(lines, split, limit, cost)
        self.remaining = limit - sum(piece.tokens for piece in self.chosen)
        #: Numbers of the details in chosen sentences.
        self._covered: set[int] = set()
        for one in self._sentences:
            if one.order in self.taken:
                self._covered.update([mention[0] for mention in one.mentions])

    def free_sentences(self) -> list[_Sentence]:
        """Return the sentences that are not chosen, without lists of details."""
        return [
            one for one in self._sentences if one.order not in self.taken and not self._lines[one.line].listed
        ]

    def build_snippets(self, words: tuple[int, int]) -> list[_Snippet]:
        """Return the details that no chosen sentence holds, with so many words around them."""
        free = [one for one in self._sentences if one.mentions and one.order not in self.taken]
        return _build_snippets(free, self._lines, self._covered, words, self._cost)

    def add_sentences(self, sentences: Sequence[_Sentence]) -> None:
        """Choose some sentences, the best first."""
        for rank, one in enumerate(sentences):
            keep = 1 - rank / len(sentences)
            order = (one.line, one.order, 0)
            self.chosen.append(Piece(order, self._lines[one.line], one.text, one.size, keep))
            self.taken.add(one.order)
            self._covered.update([mention[0] for mention in one.mentions])
            self.remaining -= one.size

    def add_snippets(self, snippets: Sequence[_Snippet]) -> set[int]:
        """Choose the snippets that fit, the best first; return the numbers of their sentences."""
        added: set[int] = set()
        for rank, one in enumerate(snippets):
            sentence = one.sentence
            if one.tokens > self.remaining or sentence.order in self.taken:
                continue
            keep = 1 - rank / len(snippets)
            order = (sentence.line, sentence.order, one.start)
            text = sentence.text[one.start : one.end]
            self.chosen.append(Piece(order, self._lines[sentence.line], text, one.tokens, keep, listed=True))
            self.remaining -= one.tokens
            added.add(sentence.order)
        return added


def _choose_central_sentences(sentences: Sequence[_Sentence], budget: int) -> list[_Sentence]:
    """Return the sentences most like the whole for their size, each for the words that no better one has."""
    heap = _rank_by_centrality(sentences)
    chosen: list[_Sentence] = []
    covered: set[int] = set()
    attempts = 8 * len(heap)  # bounds the comparisons with sentences chosen before
    while heap and budget > LEAST and attempts:
        attempts -= 1
        rank, index = heappop(heap)
        one = sentences[index]
        fresh = len(one.kinds - covered)
        if one.size > budget or not fresh:
            continue
        fresh_rank = -one.centre * fresh / len(one.kinds) / max(1, one.size)
        is_worse = heap and fresh_rank > heap[0][0] and fresh_rank > rank
        if is_worse:
            heappush(heap, (fresh_rank, index))
            continue
        budget -= one.size
        chosen.append(one)
        covered |= one.kinds
    return chosen


def _rank_by_centrality(sentences: Sequence[_Sentence]) -> list[tuple[float, int]]:
    """Return a heap of the best sentence of each kind: minus its centrality for its size, and its index."""
    best: dict[frozenset[int], tuple[float, int]] = {}
    for index, one in enumerate(sentences):
        rank = -one.centre / max(1, one.size)
        if rank < best.get(one.kinds, (0.0, 0))[0]:
            best[one.kinds] = (rank, index)
    heap = list(best.values())
    heapify(heap)
    return heap


class _Snippet(NamedTuple):
    """Details that no chosen sentence holds, with the words around them."""

    sentence: _Sentence
    start: int
    end: int
    tokens: int
    worth: float


def _build_snippets(
    sentences: Sequence[_Sentence],
    lines: Sequence[Line],
    covered: set[int],
    words: tuple[int, int],
    cost: Callable[[str], int],
) -> list[_Snippet]:
    """Return the details not covered where each is worth most, neighbours in one, best for their size first."""
    best = _find_best_mentions(sentences, covered)
    snippets: list[_Snippet] = []
    for index, one in enumerate(sentences):
        mentions = [mention for mention in one.mentions if best.get(mention[0]) == index]
        if not mentions:
            continue
        text = one.text
        breaks = _find_clause_breaks(text) if words is TIGHT else ()
        merged: list[tuple[int, int, float]] = []
        for _, start, end, first, last, worth in mentions:
            if lines[one.line].listed:
                first, last = 0, len(text)
            elif words is TIGHT:
                first, last = _find_context_span(text, breaks, start, end, words)
            if merged and first <= merged[-1][1]:
                previous = merged.pop()
                first, last = min(first, previous[0]), max(last, previous[1])
                worth = max(worth, previous[2]) + MORE * min(worth, previous[2])
            merged.append((first, last, worth))
        for first, last, worth in merged:
            snippets.append(_Snippet(one, first, last, cost(f"; {text[first:last]}"), worth))
    snippets.sort(key=_snippet_order)
    return snippets


def _find_best_mentions(sentences: Sequence[_Sentence], covered: set[int]) -> dict[int, int]:
    """Return the index of the sentence in which each detail that is not covered is worth most."""
    best: dict[int, int] = {}
    best_worth: dict[int, float] = {}
    for index, one in enumerate(sentences):
        for mention in one.mentions:
            number, worth = mention[0], mention[5]
            if number not in covered and worth > best_worth.get(number, -1.0):
                best[number], best_worth[number] = index, worth
    return best


def _snippet_order(one: _Snippet) -> tuple[float, int, int]:
    return -one.worth / max(1, one.tokens) ** SIZE, one.sentence.order, one.start


def _choose_whole_sentences(
    snippets: Sequence[_Snippet], sentences: Sequence[_Sentence], budget: int
) -> list[_Sentence]:
    """Return the sentences to be shown whole instead of their details, while all other details still fit."""
    budget -= sum(one.tokens for one in snippets if one.worth >= LISTED)
    if budget <= 0:
        return []
    saved: dict[int, int] = {}
    worth: dict[int, float] = {}
    for snippet in snippets:
        order = snippet.sentence.order
        worth[order] = worth.get(order, 0.0) + snippet.worth
        if snippet.worth >= LISTED:
            saved[order] = saved.get(order, 0) + snippet.tokens

    def worth_by_size(one: _Sentence) -> float:
        return (worth[one.order] + one.centre) / max(1, one.size)

    chosen: list[_Sentence] = []
    with_details = [one for one in sentences if one.order in saved]
    for one in sorted(with_details, key=worth_by_size, reverse=True):
        extra = one.size - saved[one.order]
        if extra <= budget:
            budget -= extra
            chosen.append(one)
    return chosen


def _choose_anchors(
    lines: Sequence[Line], split: _Split, limit: int, cost: Callable[[str], int]
) -> tuple[list[Piece], set[int]]:
    """Return the marked messages, whole where they fit their share, and the sentences that are in them."""
    budget = int(limit * ANCHORS)
    chosen: list[Piece] = []
    taken: set[int] = set()
    anchors = _select_anchors(lines, split, budget, cost)
    for index, (number, tokens) in enumerate(anchors):
        line = lines[number]
        sentences = split.by_line[number]
        share = budget // (len(anchors) - index)
        text = line.text
        if tokens > share:
            frame = cost("\n" + format_marked_line(line, ""))
            sentences = _choose_informative_sentences(sentences, share - frame)
            if not sentences:
                continue
            text = _join_sentences(split.by_line[number], sentences)
            tokens = sum(one.tokens + 2 for one in sentences) + frame
        taken.update([one.order for one in sentences])
        keep = 2 + sum_marker_weights(line.markers)
        chosen.append(Piece((number, 0, 0), line, text, tokens, keep, anchor=True))
        budget -= tokens
    return chosen, taken


def _select_anchors(
    lines: Sequence[Line], split: _Split, budget: int, cost: Callable[[str], int]
) -> list[tuple[int, int]]:
    """Return the numbers of the marked messages to keep with their tokens, the smallest first; equal texts count once.

    If they do not all fit the budget, the ones with the greatest marker weights are kept. The smallest come first
    because they leave a part of their equal share, which the others get.
    """
    unique: dict[str, tuple[int, int]] = {}
    for number, line in enumerate(lines):
        if line.anchor and line.text not in unique and split.by_line[number]:
            unique[line.text] = (number, cost("\n" + format_marked_line(line, line.text)))

    def weightiest_first(anchor: tuple[int, int]) -> tuple[float, int]:
        return -sum_marker_weights(lines[anchor[0]].markers), -anchor[0]

    anchors = sorted(unique.values(), key=weightiest_first)
    # Each counts with its first 40 tokens at most, so that a long one does not displace the others.
    used = list(accumulate(min(tokens, 40) for _, tokens in anchors))
    anchors = anchors[: max(1, bisect_right(used, budget))]
    return sorted(anchors, key=itemgetter(1))


def _choose_informative_sentences(sentences: Sequence[_Sentence], budget: int) -> list[_Sentence]:
    """Return the sentences of a marked message that say most within a budget."""

    def worth_by_size(one: _Sentence) -> float:
        worth = sum(mention[5] for mention in one.mentions) + one.centre + 0.05
        return worth / (one.tokens + 2)

    chosen: list[_Sentence] = []
    for one in sorted(sentences, key=worth_by_size, reverse=True):
        if one.tokens + 2 <= budget:
            budget -= one.tokens + 2
            chosen.append(one)
    return chosen


def _join_sentences(sentences: Sequence[_Sentence], chosen: Sequence[_Sentence]) -> str:
    """Join the chosen sentences in order, with a mark where sentences are omitted between them."""
    orders = {one.order for one in chosen}
    text = ""
    omitted = False
    for one in sentences:
        if one.order not in orders:
            omitted = True
            continue
        orders.discard(one.order)
        if text:
            text += CUT if omitted else " "
        text += one.text
        omitted = False
    return text


# ── writing ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _collect_all_pieces(lines: Sequence[Line], split: _Split) -> list[Piece]:
    """Return everything as pieces of a summary: marked lines whole, others by their sentences."""
    pieces: list[Piece] = []
    for number, line in enumerate(lines):
        parts = [line.text] if line.anchor else [one.text for one in split.by_line[number]]
        for index, part in enumerate(parts):
            pieces.append(Piece((number, index, 0), line, part, 0, 0.0, line.listed, line.anchor))
    return pieces


def _fit_to_limit(chosen: list[Piece], limit: int, count: Callable[[str], int]) -> str:
    """Drop pieces until the whole summary fits the limit: counts of parts do not add up to its count."""
    chosen = sorted(chosen, key=attrgetter("keep"), reverse=True)
    while chosen:
        text = format_summary(chosen)
        excess = count(text) - limit
        if excess <= 0:
            return text
        to_drop = len(chosen) // 16  # at least so many, to count only a few times
        while chosen and (excess > 0 or to_drop > 0):
            excess -= max(1, chosen.pop().tokens)
            to_drop -= 1
    return ""


def _choose_fragment(
    sentences: Sequence[_Sentence], details: Sequence[str], limit: int, count: Callable[[str], int]
) -> str:
    """Return a single detail, or the start of a sentence, if nothing more fits; "" if not even a letter does."""
    ranked: list[tuple[float, int]] = []
    for sentence in sentences:
        ranked += [(-worth, number) for number, *_, worth in sentence.mentions]
    for _, number in nsmallest(32, ranked):  # the most valuable details; counting all of them takes long
        if count(details[number]) <= limit:
            return details[number]
    text = sentences[0].text if sentences else ""
    while text and count(text) > limit:
        text = text[: len(text) // 2].rstrip()
    return text
