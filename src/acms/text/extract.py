"""The extractive summary: sentences and details of a conversation, letter by letter, within a hard token limit.

Nothing is said in other words, so nothing can be made up. An earlier summary is read again line by line, so that
neither marked messages nor details are lost by and by.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from heapq import heapify, heappop, heappush, nsmallest
from itertools import accumulate
from math import log
from operator import attrgetter
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
FIRST = 40
"""Tokens of a marked message that come before the next one: when there are too many, only the weightiest stay."""
WORTH = {
    "url": 1.0, "email": 1.0, "path": 1.0, "host": 1.0, "id": 1.0, "version": 0.9, "date": 0.9, "number": 0.8,
    "name": 0.8, "code": 0.7, "quote": 0.6,
}  # fmt: skip
"""What a detail is worth by its kind."""
BARE = 0.4
"""Share of its worth that is left to a number without a unit."""
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
_TRIES = 8
"""How often a sentence is compared again with the sentences chosen before it, on average, at most."""
_TRIED = 32
"""Details that are tried alone when nothing else fits."""


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
        #: How often it is said, letter by letter.
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
    known: dict[str, int] = {}

    def cost(text: str) -> int:
        found = known.get(text)
        if found is None:
            found = known[text] = count(text)
        return found

    split = _split_sentences(lines, cost)
    if sum(one.tokens * one.count for one in split.sentences) <= 1.1 * max_tokens:
        whole = format_summary(_collect_all_pieces(lines, split))
        if count(whole) <= max_tokens:
            return whole
    known_details = _weigh_details(lines, split.sentences)
    chosen = _choose_pieces(lines, split, max_tokens, cost)
    return _fit_to_limit(chosen, max_tokens, count) or _choose_fragment(
        split.sentences, known_details, max_tokens, count
    )


# ── weighing ────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Split(NamedTuple):
    """Every sentence once."""

    sentences: list[_Sentence]
    #: Sentences of each line.
    of: list[list[_Sentence]]


def _split_sentences(lines: Sequence[Line], cost: Callable[[str], int]) -> _Split:
    lead = {speaker: cost(f"\n- {speaker}: ") for speaker in {line.speaker for line in lines}}
    found: dict[str, _Sentence] = {}
    of: list[list[_Sentence]] = []
    for number, line in enumerate(lines):
        own: list[_Sentence] = []
        for text in sentences_of(line):
            sentence = found.get(text)
            if sentence is None:
                sentence = found[text] = _Sentence(len(found), number, text)
                sentence.tokens = cost(text)
                sentence.size = sentence.tokens + lead[line.speaker]
            else:
                sentence.count += 1
            own.append(sentence)
        of.append(own)
    return _Split(list(found.values()), of)


def _weigh_details(lines: Sequence[Line], sentences: Sequence[_Sentence]) -> list[str]:
    """Set what sentences and the details in them are worth; return the details, each once."""
    numbers: dict[str, int] = {}
    worth: list[float] = []
    said: list[int] = []
    places: dict[str, int] = {}
    kinds: list[frozenset[int]] = []
    held: list[_Sentence] = []

    def place_of(plain: str) -> int:
        """Return the place of the words of a text: lines of a program have the same a thousand times."""
        plain = " ".join(plain.split())
        place = places.get(plain)
        if place is None:
            place = places[plain] = len(kinds)
            kinds.append(_collect_terms(plain))
        return place

    # Who speaks is said beside every line; how they call each other is no detail.
    names = {line.speaker.casefold() for line in lines}
    speakers = {name[:end] for name in names for end in range(3, len(name) + 1)}
    around: list[tuple[int, int]] = []
    for sentence in sentences:
        text = sentence.text
        found = [
            one for one in find_details(text) if one.kind != "name" or one.text.casefold() not in speakers
        ]
        if not found:
            sentence.kinds = _collect_terms(text)
            continue
        plain = _blank_details(text, found)
        sentence.kinds = kinds[place_of(plain)]
        breaks = _find_clause_breaks(plain)
        own: list[_Mention] = []
        for kind, name, start, end in found:
            number = numbers.setdefault(name, len(worth))
            if number == len(worth):
                worth.append(WORTH[kind] * (BARE if kind == "number" and name.isdigit() else 1.0))
                said.append(0)
            said[number] += sentence.count
            first, last = _find_context_span(text, breaks, start, end, WIDE)
            place = place_of(plain[first:last])
            around.append((place, sentence.count))
            own.append((number, start, end, first, last, place))
        sentence.mentions = own
        held.append(sentence)
    rare = _measure_context_rarity(
        kinds, around, _measure_centrality(sentences, lines), log(1 + len(sentences))
    )
    worth = [one * often**REPEATED for one, often in zip(worth, said, strict=True)]
    for sentence in held:
        factor = EARLIER if lines[sentence.line].earlier else 1.0
        sentence.mentions = [
            (number, start, end, first, last, factor * worth[number] * rare[int(place)])
            for number, start, end, first, last, place in sentence.mentions
        ]
    return list(numbers)


def _measure_context_rarity(
    kinds: Sequence[frozenset[int]], around: Sequence[tuple[int, int]], idf: Mapping[int, float], usual: float
) -> list[float]:
    """Return how rare words are as the surroundings of details; 0 for words that stand around none.

    `around` holds the place of words among `kinds` and how often they are said.
    """
    times: Counter[frozenset[int]] = Counter()
    for place, often in around:
        times[kinds[place]] += often
    rare: list[float] = []
    for found in kinds:
        strange = sum(idf.get(kind, usual) for kind in found) / len(found) / usual if found else 0.5
        rare.append(strange**STRANGE * times[found] ** ALIKE if found in times else 0.0)
    return rare


def _collect_terms(text: str) -> frozenset[int]:
    letters = _ASCII_LETTERS if text.isascii() else _LETTERS
    found = frozenset(map(content_term, letters.findall(text.lower())))
    return found - _NOTHING if 0 in found else found


_NOTHING = frozenset((0,))


def _blank_details(text: str, held: Sequence[Detail]) -> str:
    """Return a text with its details blanked, as long as before."""
    parts: list[str] = []
    place = 0
    for detail in held:
        if detail.start >= place:
            parts += (text[place : detail.start], " " * (detail.end - detail.start))
            place = detail.end
    parts.append(text[place:])
    return "".join(parts)


def _find_clause_breaks(plain: str) -> list[tuple[int, int]]:
    """Return where clauses are divided."""
    return [match.span() for match in _BREAK.finditer(plain)]


def _find_context_span(
    text: str, breaks: Sequence[tuple[int, int]], start: int, end: int, most: tuple[int, int]
) -> tuple[int, int]:
    """Return where the clause around a detail starts and ends: so many words before and after, at most."""
    first = max(0, start - _BEFORE)
    # A label right before a detail, such as "path: ", names it and ends no clause.
    bare = first + len(text[first:start].rstrip(" ,:=(\"'“„`[{"))
    if breaks:
        place = bisect_right(breaks, (bare, 0)) - 1
        if place >= 0 and breaks[place][1] <= bare:
            first = max(first, breaks[place][1])
    if first and first == start - _BEFORE:
        first = text.find(" ", first, start) + 1 or first  # the clip may be inside of a word
    begin = _start_of_last_words(text, first, start, most[0])
    if most is TIGHT:
        # "ends with 5 GB" says nothing without the word before.
        reach = most[0]
        while begin > first and reach < WIDE[0] and not _has_content_word(text[begin:start]):
            reach += 1
            begin = _start_of_last_words(text, first, start, reach)
    last = min(len(text), end + _AFTER)
    place = bisect_left(breaks, (end, 0))
    if place < len(breaks):
        last = min(last, breaks[place][0])
    after = text[end:last]
    parts = after.split(None, most[1])
    if len(parts) > most[1]:
        after = after[: len(after) - len(parts[-1])]
    elif last == end + _AFTER < len(text):
        after = after[: max(0, after.rfind(" "))]
    if most is TIGHT and after[:1].isspace() and not _has_content_word(after):
        after = ""
    return begin, end + len(after.rstrip(" \t.,;:!?。，"))


def _start_of_last_words(text: str, first: int, place: int, most: int) -> int:
    """Return where the last words before a place start."""
    said = text[first:place]
    parts = said.rsplit(None, most)
    start = len(parts[0]) if len(parts) > most else 0
    return place - len(said[start:].lstrip())


def _has_content_word(text: str) -> bool:
    """Return whether a text has a word that is not a stop word."""
    return any(map(content_term, split_words(text)))


def _measure_centrality(sentences: Sequence[_Sentence], lines: Sequence[Line]) -> dict[int, float]:
    """Set how much each sentence is like the whole; return how rare each word is."""
    sizes = np.fromiter((len(one.kinds) for one in sentences), np.int64, len(sentences))
    flat = np.fromiter((kind for one in sentences for kind in one.kinds), np.int64, int(sizes.sum()))
    if not len(flat):
        return {}
    kinds, where = np.unique(flat, return_inverse=True)
    held = np.bincount(where)
    idf = np.log(1 + len(sentences) / held)
    alike = Counter(one.kinds for one in sentences)
    # Lines that a program wrote a thousand times are one line to the whole.
    weight = np.fromiter((1 / alike[one.kinds] for one in sentences), np.float64, len(sentences))
    owner = np.repeat(np.arange(len(sentences)), sizes)
    weighted = idf[where]
    whole = np.bincount(where, weights=weighted * weight[owner])
    length = np.sqrt(np.bincount(owner, weights=weighted * weighted, minlength=len(sentences)))
    dot = np.bincount(owner, weights=weighted * whole[where], minlength=len(sentences))
    like = dot / (np.maximum(length, 1e-9) * max(float(np.sqrt(whole @ whole)), 1e-9))
    # Short sentences are like anything; a thought has some words.
    like *= np.minimum(1.0, sizes / 6) * weight**0.5
    ends = max(1, len(lines) // 50)
    for sentence, centre in zip(sentences, like.tolist(), strict=True):
        near = sentence.line < ends or sentence.line >= len(lines) - ends
        sentence.centre = centre * (1.2 if near else 1.0)
    return dict(zip(kinds.tolist(), idf.tolist(), strict=True))


# ── choosing ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _choose_pieces(
    lines: Sequence[Line], split: _Split, limit: int, cost: Callable[[str], int]
) -> list[Piece]:
    """Choose marked messages, then the thread of the talk, then details, and sentences with what room is left."""
    chosen, taken = _choose_anchors(lines, split, limit, cost)
    room = limit - sum(one.tokens for one in chosen)
    covered: set[int] = set()
    for one in split.sentences:
        if one.order in taken:
            covered.update([mention[0] for mention in one.mentions])

    def take(sentences: Sequence[_Sentence]) -> int:
        for place, one in enumerate(sentences):
            keep = 1 - place / len(sentences)
            chosen.append(Piece((one.line, one.order, 0), lines[one.line], one.text, one.size, keep))
            taken.add(one.order)
            covered.update([mention[0] for mention in one.mentions])
        return sum(one.size for one in sentences)

    def listed(one: _Sentence) -> bool:
        return lines[one.line].listed

    def left() -> list[_Sentence]:
        return [one for one in split.sentences if one.order not in taken and not listed(one)]

    room -= take(_choose_central_sentences(left(), int(room * GIST)))
    free = [one for one in split.sentences if one.mentions and one.order not in taken]
    snippets = _build_snippets(free, covered, WIDE, cost, listed)
    if sum(one.tokens for one in snippets if one.worth >= LISTED) > room:
        snippets = _build_snippets(free, covered, TIGHT, cost, listed)
    room -= take(_choose_whole_sentences(snippets, left(), room))

    snippets = [one for one in snippets if one.sentence.order not in taken]

    def show(some: Sequence[_Snippet]) -> int:
        spent = 0
        for place, one in enumerate(some):
            if one.tokens <= room - spent and one.sentence.order not in taken:
                spent += one.tokens
                keep = 1 - place / len(some)
                order = (one.sentence.line, one.sentence.order, one.start)
                text = one.sentence.text[one.start : one.end]
                chosen.append(Piece(order, lines[one.sentence.line], text, one.tokens, keep, listed=True))
                shown.add(one.sentence.order)
        return spent

    shown: set[int] = set()
    room -= show([one for one in snippets if one.worth >= LISTED])
    if room > LEAST:
        room -= take(_choose_central_sentences([one for one in left() if one.order not in shown], room))
    show([one for one in snippets if one.worth < LISTED])
    return chosen


def _choose_central_sentences(sentences: Sequence[_Sentence], room: int) -> list[_Sentence]:
    """Return the sentences most like the whole for their size, each for the words that no better one has."""
    best: dict[frozenset[int], tuple[float, int]] = {}
    for place, one in enumerate(sentences):
        if one.centre > 0:
            ratio = -one.centre / max(1, one.size)
            if ratio < best.get(one.kinds, (0.0, 0))[0]:
                best[one.kinds] = (ratio, place)
    heap = list(best.values())
    heapify(heap)
    picked: list[_Sentence] = []
    said: set[int] = set()
    tries = _TRIES * len(heap)
    while heap and room > LEAST and tries:
        tries -= 1
        ratio, place = heappop(heap)
        one = sentences[place]
        if one.size > room:
            continue
        fresh = len(one.kinds - said)
        if not fresh:
            continue
        now = -one.centre * fresh / len(one.kinds) / max(1, one.size)
        if heap and now > heap[0][0] and now > ratio:
            heappush(heap, (now, place))
            continue
        room -= one.size
        picked.append(one)
        said |= one.kinds
    return picked


class _Snippet(NamedTuple):
    """Details that no chosen sentence holds, with the words around them."""

    sentence: _Sentence
    start: int
    end: int
    tokens: int
    worth: float


def _build_snippets(
    sentences: Sequence[_Sentence],
    covered: set[int],
    most: tuple[int, int],
    cost: Callable[[str], int],
    listed: Callable[[_Sentence], bool],
) -> list[_Snippet]:
    """Return the details not covered where each is worth most, neighbours in one, best for their size first."""
    best: dict[int, tuple[float, int]] = {}
    for place, one in enumerate(sentences):
        for mention in one.mentions:
            number = mention[0]
            if number not in covered and (number not in best or mention[5] > best[number][0]):
                best[number] = (mention[5], place)
    found: list[_Snippet] = []
    for place, one in enumerate(sentences):
        here = [mention for mention in one.mentions if mention[0] in best and best[mention[0]][1] == place]
        if not here:
            continue
        text = one.text
        whole = (0, len(text)) if listed(one) else None
        breaks = _find_clause_breaks(text) if most != WIDE else ()
        merged: list[tuple[int, int, float]] = []
        for _, start, end, first, last, worth in here:
            if whole:
                first, last = whole
            elif most != WIDE:
                first, last = _find_context_span(text, breaks, start, end, most)
            if merged and first <= merged[-1][1]:
                before = merged.pop()
                first, last = min(first, before[0]), max(last, before[1])
                worth = max(worth, before[2]) + MORE * min(worth, before[2])
            merged.append((first, last, worth))
        for first, last, worth in merged:
            found.append(_Snippet(one, first, last, cost(f"; {text[first:last]}"), worth))
    found.sort(key=lambda one: (-one.worth / max(1, one.tokens) ** SIZE, one.sentence.order, one.start))
    return found


def _choose_whole_sentences(
    snippets: Sequence[_Snippet], sentences: Sequence[_Sentence], room: int
) -> list[_Sentence]:
    """Return the sentences to be shown whole instead of their details, while all other details still find room."""
    room -= sum(one.tokens for one in snippets if one.worth >= LISTED)
    if room <= 0:
        return []
    saved: dict[int, int] = {}
    worth: dict[int, float] = {}
    for one in snippets:
        order = one.sentence.order
        worth[order] = worth.get(order, 0.0) + one.worth
        if one.worth >= LISTED:
            saved[order] = saved.get(order, 0) + one.tokens
    ranked = [
        (-(worth[one.order] + one.centre) / max(1, one.size), place)
        for place, one in enumerate(sentences)
        if one.order in saved
    ]
    picked: list[_Sentence] = []
    for _, place in sorted(ranked):
        one = sentences[place]
        spent = one.size - saved.get(one.order, 0)
        if spent <= room:
            room -= spent
            picked.append(one)
    return picked


def _choose_anchors(
    lines: Sequence[Line], split: _Split, limit: int, cost: Callable[[str], int]
) -> tuple[list[Piece], set[int]]:
    """Return the marked messages, whole where they fit their share, and the sentences that are in them."""
    room = int(limit * ANCHORS)
    unique: dict[str, tuple[int, int]] = {}
    for number, line in enumerate(lines):
        if line.anchor and line.text not in unique and split.of[number]:
            unique[line.text] = (number, cost("\n" + format_marked_line(line, line.text)))
    # The smallest first: what they leave of an equal share goes to the others; among too many the weightiest.
    waiting = sorted(unique.values(), key=lambda one: (-sum_marker_weights(lines[one[0]].markers), -one[0]))
    used = list(accumulate(min(tokens, FIRST) for _, tokens in waiting))
    waiting = waiting[: max(1, bisect_right(used, room))]
    waiting.sort(key=lambda one: one[1])
    chosen: list[Piece] = []
    taken: set[int] = set()
    for place, (number, tokens) in enumerate(waiting):
        line = lines[number]
        share = room // (len(waiting) - place)
        text = line.text
        if tokens > share:
            own = split.of[number]
            frame = cost("\n" + format_marked_line(line, ""))
            own = _choose_informative_sentences(own, share - frame)
            if not own:
                continue
            text = _join_sentences(split.of[number], own)
            tokens = sum(one.tokens + 2 for one in own) + frame
        else:
            own = split.of[number]
        taken.update([one.order for one in own])
        chosen.append(
            Piece((number, 0, 0), line, text, tokens, 2 + sum_marker_weights(line.markers), anchor=True)
        )
        room -= tokens
    return chosen, taken


def _choose_informative_sentences(sentences: Sequence[_Sentence], room: int) -> list[_Sentence]:
    """Return the sentences of a marked message that say most in the room there is."""

    def ratio(one: _Sentence) -> float:
        return -(sum(mention[5] for mention in one.mentions) + one.centre + 0.05) / (one.tokens + 2)

    picked: list[_Sentence] = []
    for one in sorted(sentences, key=ratio):
        if one.tokens + 2 <= room:
            room -= one.tokens + 2
            picked.append(one)
    return picked


def _join_sentences(sentences: Sequence[_Sentence], picked: Sequence[_Sentence]) -> str:
    """Join the picked sentences in order, with a mark where sentences are omitted between them."""
    orders = {one.order for one in picked}
    text = ""
    gap = False
    for one in sentences:
        if one.order not in orders:
            gap = True
            continue
        orders.discard(one.order)
        if text:
            text += CUT if gap else " "
        text += one.text
        gap = False
    return text


# ── writing ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _collect_all_pieces(lines: Sequence[Line], split: _Split) -> list[Piece]:
    found: list[Piece] = []
    for number, line in enumerate(lines):
        parts = [line.text] if line.anchor else [one.text for one in split.of[number]]
        for place, part in enumerate(parts):
            found.append(Piece((number, place, 0), line, part, 0, 0.0, line.listed, line.anchor))
    return found


def _fit_to_limit(chosen: list[Piece], limit: int, count: Callable[[str], int]) -> str:
    """Drop pieces until the whole summary fits the limit: counts of parts do not add up to its count."""
    chosen = sorted(chosen, key=attrgetter("keep"), reverse=True)
    while chosen:
        text = format_summary(chosen)
        over = count(text) - limit
        if over <= 0:
            return text
        least = len(chosen) // 16
        while chosen and (over > 0 or least > 0):
            over -= max(1, chosen.pop().tokens)
            least -= 1
    return ""


def _choose_fragment(
    sentences: Sequence[_Sentence], known: Sequence[str], limit: int, count: Callable[[str], int]
) -> str:
    """Return a single detail, or the start of a sentence, when nothing more fits; empty when not even a letter does."""
    mentions = [mention for one in sentences for mention in one.mentions]
    for mention in nsmallest(_TRIED, mentions, key=lambda one: (-one[5], one[0])):
        if count(known[mention[0]]) <= limit:
            return known[mention[0]]
    text = sentences[0].text if sentences else ""
    while text and count(text) > limit:
        text = text[: len(text) // 2].rstrip()
    return text
