"""Succession: a later statement that says how something is now stands above the earlier one that it takes the place of.

No model and no fact is needed: a later message of the same speaker that announces a change ("switched", "instead",
"now", "slipped") and is about the same thing inherits the score of the earlier one, and a little. About the same
thing are two statements that share the words which the query and the earlier one have in common, and enough of the
others; or whose vectors are close. Of two that carry the same marker no change need be announced, for what is decided
again is decided otherwise: when the later one says one new thing of what is asked for, or names what was said before.
The earlier one is not hidden, for only facts hide, it comes right below. Recency itself counts for nothing (decision
0007): a later message without such words and markers gains nothing over an earlier one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from acms.log.in_force import Doc
from acms.model import Entry, Kind
from acms.recall.corpus import Field
from acms.recall.planner import Steps
from acms.recall.rank import Question, Raised, Ranking, raise_score, speaks_of, wholes
from acms.recall.vectors import Floats, Ints
from acms.text.chunks import spans
from acms.text.index_record import CHANGES, OURS, QUESTION, TOLD
from acms.text.markers import WORDS, boost, line_start
from acms.text.tokenizer import CHANGES_BY, OURS_BY, TOLD_BY, rarity, term, terms, words

LEADERS = 6
"""Best candidates that may have a successor."""
LOOKED = 48
"""Best candidates that may be one."""
NAMED = 2
"""Best candidates whose successors, where they are marked, are also looked for by the rare words in them."""
RARE = 8
"""Entries that hold a rare word, at most."""
TEXTS = 12
"""Texts that are read at a time, at most."""
STATEMENT = 32
"""Terms of what counts as a statement, at most: a longer text is a document, which tells of many things."""
CLOSE = 0.7
"""Cosine from which two statements of one speaker are about the same thing, date and speaker included."""
SHORT = 12
"""Terms of a message of which a cosine can tell as much, at most: chats turn around the same things at length."""
ANSWERS = 0.5
"""Share of what an earlier statement answers by meaning that such a later one answers at least."""
PART = 0.33
"""Share of the words of a query that are found at all which an earlier statement has at least."""
LEAST = 0.1
"""What an earlier statement answers by meaning at least, where it shares no word with the query."""
FOCUS, OVERLAP, TOGETHER = 0.4, 0.2, 0.9
"""Share of the words which the query and an earlier statement have in common that a later one has too; share of all
its words; the sum of both."""
SOME = 0.15
"""Share of these that is enough where both carry the same marker."""
SAME = 0.7
"""Share of all words of a marked statement that a later one with the same marker has, where no change is announced."""
OWN, HEARSAY = 1.25, 0.7
"""Factors of what speaks of "us", and of what tells of others, where a query asks for what is so here."""
ABOVE = 1e-4
"""How much more than its predecessor a successor is worth."""

_OTHERS = re.compile(
    r"\b(?:heard|they (?:say|said)|their|someone|somebody|somewhere|people say|says?|claims?|argues?|article|blog"
    r"|podcast"
    r"|(?:a|an|another|some|many|most|other|the other) (?:\w+ )?(?:friend|colleague|neighbou?r|team|company|teams"
    r"|companies|people|startup|competitor|customer)"
    r"|(?:my|our) (?:\w+ )?(?:friend|colleague|neighbou?r|cousin|competitor|rival|bank)s?"
    r"|if|whether|might|maybe|perhaps|(?:could|would|should|can)(?!n?['\u2019]t)|wonder(?:ing)?|imagine|suppose|used to"
    r"|years ago|in the past)\b",
    re.I,
)
"""What others do, and what is not so but may be."""
_ITS = re.compile(r"\b(?:its|his|her|their|theirs)\b", re.I)
_OURS = re.compile(r"\b(?:we|our|ours|us|let['\u2019]s)\b", re.I)
"""Words by which one speaks of others, and of oneself."""
_OPENING = re.compile(
    r"^\s*(?:[^:.!?]{1,40}:\s|(?:while|when|before|after|until|as|by the way|that reminds me)\b[^,:.!?]{0,40},\s)",
    re.I,
)
"""What stands before what a sentence says: "While we wait: the bank …" tells of the bank."""
_STRANGERS = frozenset("there he she they".split())
"""Subjects that may be anybody."""
_HOLDS = frozenset(
    "is are was were be been being will shall would has have had gets get got goes go isn aren wasn won".split()
)
_IS = frozenset("is are be becomes remains".split())
_CLAUSE = re.compile(r"[,;:]\s")
_NO_VERBS = frozenset(
    """actually anymore as back currently effective final instead latest longer mistake new newly not now nowadays
    plan plans rather second since these today tomorrow wrong mind delay delays""".split()
)
"""Words of change before which a sentence has not named all of its subject."""
_TIMES = frozenset(
    terms(
        words(
            "day days week weeks weekend month months quarter year years morning afternoon evening night today tomorrow"
            " yesterday monday tuesday wednesday thursday friday saturday sunday immediately next last end ok okay yes"
            " well"
        )
    )
)
"""Terms before a subject that do not belong to it."""
_CHANGE = re.compile(
    r"\b(?:actually|instead|no longer|any ?more|any longer|rather(?: than)?|from now on|as of (?!course)\w+|after all"
    r"|on second thoughts?|these days|(?:effective|starting) (?:immediately|now|today|tomorrow|next|this|with)"
    r"|from (?:today|tomorrow|this \w+|next \w+|\w+day)|scratch that|correct(?:ion|ed| myself| that)"
    r"|change of (?:plans?|mind)"
    r"|i meant|misspoke|(?:my|a) mistake|was wrong|forget (?:what|about|that)|ignore what|make (?:that|it) "
    r"|turn(?:s|ed) out|overruled|supersed\w+|outdated|obsolete|updat(?:e|ed|es|ing)|currently|nowadays|since then"
    r"|newly|latest|final(?:ly)?|now|new|left|quit|resigned|retired|closed|went (?:with|for|on|up|down|back)|gone"
    r"|not (?:[\w.-]+ ){1,5}but|(?:up|down|back) to|decided against|(?:gave|given) up|promoted|took|taken over"
    r"|takes over|switch(?:ed|es|ing)?|migrat\w+|mov(?:e|ed|es|ing)|replac\w+|swap\w*|renam\w+|rewrit\w+|convert\w*"
    r"|revis\w+"
    r"|reconsider\w*|revert\w*|postpon\w+|reschedul\w+|slip(?:s|ped)?|delay\w*|extend\w*|shift\w*|scrap\w*"
    r"|push(?:ed|ing)? (?:\w+ ){0,5}(?:to|back|until|out)|brought forward|bump\w*|rais(?:e|ed|es|ing)|lower(?:ed|ing)"
    r"|reduc\w+|increas\w+|decreas\w+|doubled|halved|upped|upgrad\w+|gr[eo]wn?|shrank|rose|fell|climbed|adjusted"
    r"|amended|altered|exchanged|traded|transferred|transitioned|opted|cut (?:\w+ ){0,4}to"
    r"|drop(?:s|ped|ping)?|ditch\w*|abandon\w+|cancel\w*|stopp?(?:ed)?|chang(?:e|ed|es|ing)|bec(?:a|o)mes?)\b",
    re.I,
)
"""How a statement announces that something is no longer as it was."""
_MARKER = re.compile("|".join(map(line_start, WORDS.values())), re.I | re.M)
_HISTORY = re.compile(
    r"\b(?:did|has|had|have) (?!we\b|i\b|you\b|us\b)"
    r"|\b(?:when|how|why)\b.{0,40}\b(?:did|had) (?:we|i|you)\b|\bever\b"
    r"|\b(?:at first|originally|initially|previous(?:ly)?|used to|formerly|before|earlier|in the past)\b",
    re.I,
)
"""How a question asks for what happened, and not for what is so."""
_ELSEWHERE = frozenset(
    "you your yours he him his she her hers they them their theirs did had said told was were".split()
)
"""Words of a question about somebody else than the one who asks, or about what was."""
_TALKS = frozenset("chat chats conversation conversations discuss discussed talk talked".split())
"""Words of a question about what was talked of: there "we" are not those who decide."""
_GIVEN_UP = (
    r"(?:from|instead of|rather than|in place of|no longer(?: \w+){0,2}?|replac\w+|drop\w*|ditch\w*|abandon\w*"
    r"|away from|swap\w*(?: out)?|stopp?\w*(?: using)?|leav\w+|left|retir\w+|remov\w+|not)"
)


class Said(NamedTuple):
    """A sentence: its terms, whether it announces a change, and whether it tells of others or of what may be."""

    text: str
    terms: frozenset[int]
    changes: bool
    others: bool


def succeed(
    ranking: Ranking, query: str, asked: Question, weights: Mapping[str, float], *, judged: bool = False
) -> Steps[None]:
    """Raise successors among the entries in force above what they take the place of; asks for a few texts.

    `weights` are those of markers: a successor stands above its predecessor whatever markers either carries. Where the
    best are `judged` again, by a reranker, those that stand above theirs already are told too.
    """
    _ours(ranking, query)
    if _HISTORY.search(query):
        return
    field = ranking.field
    looked = _Looked(ranking, weights, judged)
    likely = looked.pairs(asked)
    named = looked.leaders(asked)
    wanted = dict.fromkeys([*named, *(index for pair in likely for index in pair[:2])])
    if not wanted:
        return
    read: dict[int, list[Said]] = {}
    markers: dict[int, tuple[str, ...]] = {}

    def keep(rows: Mapping[str, Entry], places: Sequence[int]) -> None:
        for place in places:
            entry = rows[_doc(field, place).id]
            read[place] = _said(entry.content, bool(entry.markers))
            markers[place] = entry.markers

    places = [looked.places[index] for index in wanted]
    keep((yield [_doc(field, place).id for place in places]), places)
    weigh = _Weights(field)
    found = [(looked.places[earlier], looked.places[after], cosine) for earlier, after, cosine in likely]
    for index in named:
        place = looked.places[index]
        for number in _rare(read[place], asked.terms, field):
            found += [(place, other, -1.0) for other in looked.holding(number, place)]
    more = [place for place in dict.fromkeys(pair[1] for pair in found) if place not in read][:TEXTS]
    if more:
        keep((yield [_doc(field, place).id for place in more]), more)
    named_by = frozenset(asked.terms)
    best: dict[int, tuple[float, int]] = {}
    for earlier, after, cosine in found:
        if after in read:
            marked = bool(markers[earlier]) and markers[earlier] == markers[after]
            firm = bool(markers[earlier])
            alike = _alike(read[earlier], read[after], cosine, named_by, weigh, firm, marked)
            best[after] = max(best.get(after, (0.0, 0)), (alike, earlier))
    for after, (alike, earlier) in sorted(best.items()):
        if alike:
            looked.raise_above(earlier, after)
    looked.settle()


class _Looked:
    """The candidates that may take part, best first."""

    def __init__(self, ranking: Ranking, weights: Mapping[str, float], judged: bool) -> None:
        self._judged = judged
        self.ranking = ranking
        self.field = ranking.field
        codes, labels = self.field.labels
        places = ranking.places[: 2 * LOOKED]
        boosts = [boost(label.markers, weights) for label in labels]
        self._boosts, self._codes = boosts, codes
        relevance, worth = ranking.worth(places)
        self._worth = {
            place: (found, value)
            for place, found, value in zip(places.tolist(), relevance, worth, strict=True)
        }
        gains = ranking.bound(places, worth, [boosts[code] for code in codes[places].tolist()])
        scores = dict(zip(places.tolist(), map(raise_score, worth, gains), strict=True))
        self.places = [
            place for place in sorted(scores, key=lambda place: (-scores[place], place)) if scores[place] > 0
        ][:LOOKED]
        #: The latest successor of a statement that was raised above it.
        self._latest: dict[int, int] = {}
        who: dict[tuple[object, ...], int] = {}
        self._speaker = np.array(
            [who.setdefault((one.kind, one.role, one.actor), len(who)) for one in labels]
        )
        self._message = np.array([one.kind is Kind.MESSAGE for one in labels])
        self._marked = np.array([bool(one.markers) for one in labels])

    def _columns(self, places: Ints) -> tuple[Ints, ...]:
        snapshot = self.field.snapshot
        documents = self.field.documents(places)
        flags = snapshot.column("flags")[documents]
        label = self._codes[places]
        states = self._message[label] & ((flags & QUESTION) == 0)
        states &= snapshot.column("length")[documents] <= STATEMENT
        states &= snapshot.column("group")[documents] < 0
        return documents, label, states, states & ((flags & CHANGES) != 0)

    def pairs(self, asked: Question) -> list[tuple[int, int, float]]:
        """Return which candidates may be followed by which later ones, all or those ranked lower, and how close."""
        size = len(self.places)
        if size < 2:
            return []
        places = np.array(self.places, np.int64)
        documents, label, states, changing = self._columns(places)
        first = slice(0, min(LEADERS, size))
        may = documents[None, :] > documents[first, None]
        may &= states[first, None] & (self._speaker[label][None, :] == self._speaker[label][first, None])
        marked = self._marked[label] & states
        may &= changing[None, :] | (marked[None, :] & marked[first, None])
        lower = np.arange(size)[None, :] > np.arange(size)[first, None]
        if not self._judged:
            may &= lower
        if not may.any():
            return []
        held, weights = _held(self.field, asked.terms, documents)
        shared = (held[first] * weights) @ held.T.astype(np.float32)
        own = shared.diagonal()[:, None]
        least = np.where(marked[None, :] & marked[first, None], np.float32(SOME), np.float32(FOCUS))
        most = float(weights[held.any(axis=0)].sum())
        about = (own >= PART * most) & (own > 0) & (shared >= least * own)
        answers = own > 0
        close = np.zeros(may.shape, np.float32)
        if self.ranking.space is not None:
            meaning = self.ranking.meaning(places)
            answers |= meaning[first, None] >= LEAST
            near = may & answers & (meaning[None, :] >= ANSWERS * meaning[first, None])
            rows, columns = np.flatnonzero(near.any(axis=1)), np.flatnonzero(near.any(axis=0))
            some, others = (
                wholes(self.field, self.ranking.space, self.ranking.dimension, documents[these])
                for these in (rows, columns)
            )
            close[rows[:, None], columns] = some @ others.T
            close[~near] = 0
        may &= answers
        may &= about | (close >= CLOSE)
        kept: list[tuple[int, int, float]] = []
        texts: set[int] = set()
        for earlier, after in [*np.argwhere(may & lower).tolist(), *np.argwhere(may & ~lower).tolist()]:
            if len(texts | {earlier, after}) <= TEXTS:
                texts |= {earlier, after}
                kept.append((earlier, after, float(close[earlier, after])))
        return kept

    def leaders(self, asked: Question) -> list[int]:
        """Return the best candidates that are marked statements and answer by themselves."""
        first = np.array(self.places[:NAMED], np.int64)
        if not self._marked[self._codes[first]].any():
            return []
        documents, label, states, _ = self._columns(first)
        states &= self._marked[label]
        states &= _held(self.field, asked.terms, documents)[0].any(axis=1) | (
            self.ranking.meaning(first) >= LEAST
        )
        return np.flatnonzero(states).tolist()

    def holding(self, number: int, place: int) -> list[int]:
        """Return the later statements of the same speaker that hold a term and may announce a change."""
        places = self.field.postings(number)[0]
        places = places[self.field.documents(places) > self.field.document(place)]
        if not len(places):
            return []
        _, label, states, changing = self._columns(places)
        mine = self._codes[place]
        same = self._speaker[label] == self._speaker[mine]
        return places[same & (changing | (states & self._marked[label] & self._marked[mine]))].tolist()

    def raise_above(self, earlier: int, after: int) -> None:
        """Let a statement inherit what an earlier one is worth, if that is more."""
        before = self._latest.get(earlier, earlier)
        relevance, worth = self._of(before)
        own, less = self._of(after)
        need = (worth + ABOVE) * (1 + self._gain(before, worth))
        if need <= less * (1 + self._gain(after, less)):
            if self._judged:
                self.ranking.above[after] = self.field.document(earlier) + 1
            return
        self._worth[after] = (max(own, relevance), need / (1 + self._boosts[self._codes[after]]))
        self._latest[earlier] = after
        self.ranking.raised[after] = Raised(self.field.document(earlier) + 1, *self._worth[after])

    def _gain(self, place: int, worth: float) -> float:
        """Return by how much its markers raise a statement."""
        return self.ranking.bound(np.array([place], np.int64), [worth], [self._boosts[self._codes[place]]])[0]

    def _of(self, place: int) -> tuple[float, float]:
        found = self._worth.get(place)
        if found is None:
            relevance, worth = self.ranking.worth(np.array([place], np.int64))
            found = self._worth[place] = (relevance[0], worth[0])
        return found

    def settle(self) -> None:
        """Put those that were raised in their place among the candidates."""
        raised = self.ranking.raised
        if not raised:
            return
        order = [place for place in self.ranking.places.tolist() if place not in raised]
        at = {place: index for index, place in enumerate(order)}
        before = {place: self.field.place_of(one.after - 1) for place, one in raised.items()}

        def rank(place: int) -> tuple[float, int]:
            steps = 0
            while place in before:
                place, steps = before[place], steps + 1
            return (at.get(place, len(order)), -steps)

        order = sorted([*order, *raised], key=lambda place: (*rank(place), place))
        self.ranking.places = np.array(order, np.int64)


def _ours(ranking: Ranking, query: str) -> None:
    """Where a query asks for what is so here, prefer what speaks of "us" or is marked to what tells of others."""
    places = ranking.places
    if not len(places) or not _of_here(ranking.field, query):
        return
    snapshot, documents = ranking.field.snapshot, ranking.field.documents(places)
    short = snapshot.column("length")[documents] <= STATEMENT
    flags = np.where(short, snapshot.column("flags")[documents], 0)
    marked = ranking.field.marked()
    said = np.zeros(len(places), bool) if marked is None else marked[places] & short
    factor = np.where(said | ((flags & OURS) != 0), np.float32(OWN), np.float32(1))
    factor[~said & ((flags & TOLD) != 0)] *= np.float32(HEARSAY)
    ranking.adjust(factor)


def _of_here(field: Field, query: str) -> bool:
    """Whether a query asks for what "we" do, or for what is so and for nobody else: "what is the project called?"."""
    asked = words(query)
    if not (TOLD_BY | _TALKS).isdisjoint(asked):
        return False
    if not OURS_BY.isdisjoint(asked):
        return True
    if not _ELSEWHERE.isdisjoint(asked) or _HISTORY.search(query):
        return False
    return not any(speaks_of(actor, asked) for actor in field.speakers)


def _held(field: Field, query: Sequence[int], documents: Ints) -> tuple[Ints, Floats]:
    """Return which of some documents hold which terms of a query, and what these weigh."""
    held = np.zeros((len(documents), len(query)), bool)
    weights = np.zeros(len(query), np.float32)
    keys = (documents << 8).astype(np.uint32)
    for column, number in enumerate(query):
        found = field.snapshot.postings(number)
        weights[column] = rarity(len(field), min(len(found), len(field)))
        if len(found):
            at = np.minimum(found.searchsorted(keys), len(found) - 1)
            held[:, column] = (found[at] >> np.uint32(8)) == documents
    return held, weights


class _Weights(dict[int, float]):
    """How rare terms are."""

    def __init__(self, field: Field) -> None:
        super().__init__()
        self._field = field

    def __missing__(self, number: int) -> float:
        size = len(self._field)
        found = self[number] = rarity(size, min(self.often(number), size))
        return found

    def often(self, number: int) -> int:
        """Return how many entries hold a term."""
        return len(self._field.snapshot.postings(number))

    def of(self, numbers: frozenset[int]) -> float:
        """Return what some terms weigh together."""
        return sum([self[number] for number in numbers])


def _said(content: str, marked: bool) -> list[Said]:
    """Return the sentences of a text that state something."""
    found: list[Said] = []
    for start, end in spans(content):
        text = content[start:end].strip()
        if not text.endswith("?"):
            said = words(_MARKER.sub("", text) if ":" in text else text)
            may = not CHANGES_BY.isdisjoint(said)
            changes = may and _CHANGE.search(text) is not None
            others = (changes or marked) and _of_others(text)
            numbers = terms([word for word in said if word not in CHANGES_BY] if may else said)
            found.append(Said(text, frozenset(numbers), changes, others))
    return found


def _of_others(text: str) -> bool:
    return _OTHERS.search(text) is not None or (_ITS.search(text) is not None and _OURS.search(text) is None)


def _rare(said: Sequence[Said], query: Sequence[int], field: Field) -> list[int]:
    """Return the terms of a statement that few entries hold and that the query does not name."""
    numbers = {number for one in said for number in one.terms}.difference(query)
    return sorted(number for number in numbers if 1 < len(field.snapshot.postings(number)) <= RARE)


def _alike(
    before: Sequence[Said],
    after: Sequence[Said],
    cosine: float,
    query: frozenset[int],
    weigh: _Weights,
    firm: bool,
    marked: bool,
) -> float:
    """Return how much a message is about the same thing as an earlier one of which it takes the place; 0 if not.

    As far as a query is concerned. `firm` says that the earlier one is marked, `marked` that both carry the same
    markers.
    """
    if not before:
        return 0.0
    old = max(before, key=lambda one: weigh.of(one.terms & query))
    whole = weigh.of(old.terms)
    named = weigh.of(old.terms & query)
    short = max(sum(len(one.terms) for one in said) for said in (before, after)) <= SHORT
    if not frozenset().union(*(one.terms for one in after)) - old.terms - query:
        return 0.0  # it says nothing else
    best = 0.0
    for one in after:
        anew = marked and _says_anew(one.text, old, query)
        if not (one.changes or marked) or (one.others and not anew):
            continue
        shared = old.terms & one.terms
        overlap = weigh.of(shared) / whole if whole else 0.0
        focus = weigh.of(shared & query) / named if named else 0.0
        if anew:
            follows = True
        elif one.changes:
            follows = (marked or _of_it(one.text, old, query, shared, weigh, firm)) and (
                (cosine >= CLOSE and short)
                or (focus >= FOCUS and overlap >= OVERLAP and focus + overlap >= TOGETHER)
                or (
                    marked
                    and (focus >= SOME or any(weigh.often(number) <= RARE for number in shared - query))
                )
                or _gives_up(one.text, old)
            )
        else:
            alone = len(old.terms - shared) == len(one.terms - shared) == 1  # one word for another
            again = any(weigh.often(number) <= RARE for number in shared - query)  # names what was said then
            follows = (focus >= FOCUS and (overlap >= SAME or (alone and shared >= old.terms & query))) or (
                again and (focus >= SOME or (cosine >= CLOSE and old.terms - query <= one.terms))
            )
        if follows:
            best = max(best, weigh.of(shared) / weigh.of(old.terms | one.terms) + max(cosine, 0.0) + 1e-9)
    return best


def _of_it(
    text: str, old: Said, query: frozenset[int], shared: frozenset[int], weigh: _Weights, firm: bool
) -> bool:
    """Whether a sentence of change is about what an earlier one tells of, and not about the like of it elsewhere.

    It is when it speaks of "us", when it names something rare that the earlier one does, most of all the old value, or
    when its subject is known from the earlier one or the query. Where the earlier one is not marked it may also do
    something to "the" thing that both the query and the earlier one name.
    """
    if any(weigh.often(number) <= RARE for number in shared - query):
        return True
    text = _OPENING.sub("", text)
    if _OURS.search(text):
        return True
    known = old.terms | query | _TIMES
    said = words(text)
    if not ((firm and said and said[0] in _STRANGERS) or said[:1] == ["there"]):
        verb = next(
            (
                place
                for place, word in enumerate(said)
                if word in _HOLDS or (word in CHANGES_BY and word not in _NO_VERBS)
            ),
            len(said),
        )
        if all(number in known for number in map(term, said[:verb]) if number):
            return True
    if firm or said[:1] == ["there"]:
        return False
    named = old.terms & query
    return any(
        first in ("the", "this", "that", "my") and term(second) in named for first, second in pairwise(said)
    )


def _says_anew(text: str, old: Said, query: frozenset[int]) -> bool:
    """Whether a sentence, or a clause of it, says that what an earlier one told of and the query asks for is one thing.

    "The caterer is Ann", "we eat with Ann, that is our caterer": all that it adds stands together, and a form of "to
    be" between that and what is asked for. What adds two things may be about another case: "of the choir".
    """
    named = old.terms & query
    for clause in (text, *_CLAUSE.split(text)):
        said = words(_MARKER.sub("", clause))
        numbers = [0 if word in CHANGES_BY or term(word) in _TIMES else term(word) for word in said]
        if not named or not named.issubset(numbers) or _of_others(clause):
            continue
        new = [at for at, number in enumerate(numbers) if number and number not in old.terms | query]
        if not new or any(numbers[at] and at not in new for at in range(new[0], new[-1])):
            continue
        before = max((at for at in range(new[0]) if numbers[at] in named), default=new[0])
        after = min((at for at in range(new[-1] + 1, len(said)) if numbers[at] in named), default=new[-1])
        if not _IS.isdisjoint((*said[before : new[0]], *said[new[-1] + 1 : after])):
            return True
    return False


def _gives_up(text: str, old: Said) -> bool:
    """Whether a sentence says that what an earlier one names is given up."""
    for match in re.finditer(_GIVEN_UP + r" (?:the |our |my |using )?([\w.+#-]+)", text, re.I):
        if any(number in old.terms for number in terms(words(match[1]))):
            return True
    return False


def _doc(field: Field, place: int) -> Doc:
    return field.snapshot.doc(field.document(place))
