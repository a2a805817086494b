"""Terms: the words of a text as the index counts them, stemmed, without stop words, each a number.

A term is the lower 24 bits of the CRC-32 of a stemmed word, so nothing has to be looked up, stored or shared to know
it. Two of 30,000 words share a number about once in 600 words; they then count as one, which moves no result that
matters and is the same everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any
from zlib import crc32

_WORD = re.compile(r"\w+")
#: ASCII letters in lower case, digits and "_" as they are, a space for everything else.
_ASCII = bytes(byte if _WORD.match(chr(byte)) else 32 for byte in bytes(range(128)).lower()) + bytes(128)
_STOP = frozenset(
    """a about after all also am an and any are as at be because been before being but by can could did do does doing
    done for from get got had has have having he her here hers him his how i if in into is it its just let like me more
    most my no not now of off on once only or other our out over own really said same she should so some such than that
    the their them then there these they this those through to too under until up us very was we were what when where
    which while who whom why will with would you your yours d ll m re s t ve""".split()
)
_MONTHS = (
    "january february march april may june july august september october november december".split()
)  # fmt: skip
#: Forms that a stemmer does not bring together with their word.
_FORMS = {
    form: base
    for base, *forms in map(
        str.split,
        """become became|begin began begun|bite bit bitten|blow blew blown|break broke broken|bring brought|build built|
        burn burnt|buy bought|catch caught|choose chose chosen|come came|deal dealt|dig dug|draw drew drawn|
        dream dreamt|drink drank drunk|drive drove driven|eat ate eaten|fall fell fallen|feed fed|feel felt|
        fight fought|find found|fly flew flown|forget forgot forgotten|forgive forgave forgiven|freeze froze frozen|
        give gave given|go goes went gone|grow grew grown|hang hung|hear heard|hide hid hidden|hold held|keep kept|
        know knew known|lead led|learn learnt|leave left|lend lent|lose lost|make made|mean meant|meet met|pay paid|
        ride rode ridden|ring rang rung|rise rose risen|run ran|see saw seen|seek sought|sell sold|send sent|
        shake shook shaken|shine shone|shoot shot|sing sang sung|sit sat|sleep slept|speak spoke spoken|spend spent|
        stand stood|steal stole stolen|stick stuck|strike struck|sweep swept|swim swam swum|swing swung|
        take took taken|teach taught|tear tore torn|tell told|think thought|throw threw thrown|
        understand understood|wake woke woken|wear wore worn|weep wept|win won|write wrote written|
        child children|foot feet|half halves|knife knives|man men|mouse mice|person people|shelf shelves|tooth teeth|
        wife wives|woman women|bad worse worst|good better best""".split("|"),
    )
    for form in forms
}

CHANGES_BY = frozenset(
    """abandon abandoned abandoning actually adjust adjusted after altered amend amended anymore as back
    became become becomes brought bump bumped bumping cancel canceled cancelled cancelling change changed
    changes changing climbed closed convert converted converting corrected correction currently cut decided
    decreased delay delayed delays ditch ditched ditching doubled down drop dropped dropping drops effective
    ended ends exchanged extend extended extending fell final forget gave given gone grew grown halved ignore
    increase increased increases increasing instead latest left longer lower lowered lowering make meant
    migrate migrated migrates migrating mind misspoke mistake move moved moves moving new newly not now
    nowadays obsolete opted outdated over overruled plan plans postpone postponed postponing promoted push
    pushed pushing quit raise raised raises raising rather reconsider reconsidered reduce reduced reducing
    rename renamed renaming replace replaced replaces replacing reschedule rescheduled resigned retired revert
    reverted reverting revise revised revising rewrite rewriting rewritten rose scrap scrapped scratch second
    shift shifted shifting shifts shrank since slip slipped slips starting stop stopped superseded supersedes
    swap swapped swapping switch switched switches switching taken these today tomorrow took traded
    transferred transitioned turned turns up update updated updates updating upgrade upgraded upped
    went wrong""".split()
)
"""Words by which a statement may say that something is no longer as it was."""

OURS_BY = frozenset("we our ours us".split())
"""Words by which someone speaks of what is their own together with others."""
TOLD_BY = frozenset(
    """agencies agency article articles blog book brother bubble colleague companies competitor competitors conference
    cousin employer everybody everyone folks friend friends heard intern magazine many meetup most neighbor neighbour
    neighbours newspaper nobody other others people plenty podcast read recruiter said salesman say says seen
    some somebody someone somewhere startup startups students survey talk teams textbook their theirs them they thread
    told vendor video watched workshop""".split()
)
"""Words by which someone tells of others, or of what was read and heard."""

BITS = 24
"""Bits of a term."""


@lru_cache(maxsize=1)
def _stemmer() -> Callable[[], Any]:
    from snowballstemmer import EnglishStemmer

    return EnglishStemmer


@lru_cache(maxsize=131_072)
def term(word: str) -> int:
    """Return the term of a word in lower case; 0 for a stop word."""
    # One stemmer a word: it keeps the word in hand, and recalls in threads stem beside the event loop.
    return 0 if word in _STOP else _number(_stemmer()().stemWord(_FORMS.get(word, word)))


def _number(word: str) -> int:
    return (crc32(word.encode()) & (1 << BITS) - 1) or 1


def words(text: str) -> list[str]:
    """Return the words of a text in lower case, in order."""
    if text.isascii():  # the same words in a third of the time
        return text.encode().translate(_ASCII).decode().split()
    return _WORD.findall(text.lower())


def terms(said: Sequence[str]) -> list[int]:
    """Return the terms of some words in order, without stop words; of all words when there are no others."""
    return list(filter(None, map(term, said))) or [_number(word) for word in said]


@lru_cache(maxsize=4096)
def day_terms(day: int) -> tuple[int, ...]:
    """Return the terms of a date, given in days since 1970: day of the month, month, year."""
    year, month, date = _civil(day)
    return tuple(terms([str(date), _MONTHS[month - 1], str(year)]))


def _civil(day: int) -> tuple[int, int, int]:
    from datetime import date

    found = date.fromordinal(min(max(day + 719_163, 1), 3_652_059))
    return found.year, found.month, found.day


def changes(said: Sequence[str]) -> bool:
    """Return whether some words may announce that something has changed."""
    return not CHANGES_BY.isdisjoint(said)
