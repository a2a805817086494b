"""Terms: the words of a text as the index counts them, stemmed, without stop words, each a number.

A term is the lower 24 bits of the CRC-32 of a stemmed word, so nothing has to be looked up, stored or shared to know
it. Two of 30,000 words share a number about once in 600 words; they then count as one, which moves no result that
matters and is the same everywhere.

A name is what holds more than a word or less than one: a path, an identifier, a version, an amount, a word with
accents, a run of a script that is written without spaces. It is found whole and by its parts, beside the words it is
made of, so a text that was indexed by words alone is still found by them (decision 0031).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from math import log
from typing import Any, NamedTuple
from unicodedata import combining, normalize
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
    changes changing climbed closed convert converted converting correct corrected correction currently cut
    decided decreased delay delayed delays ditch ditched ditching doubled down drop dropped dropping drops
    effective ended ends exchanged extend extended extending fell final forget gave given gone grew grown
    halved ignore increase increased increases increasing instead latest left longer lower lowered lowering
    make meant migrate migrated migrates migrating mind misspoke mistake move moved moves moving new newly
    not now nowadays obsolete opted outdated over overruled plan plans postpone postponed postponing
    promoted push pushed pushing quit raise raised raises raising rather reconsider reconsidered reduce
    reduced reducing rename renamed renaming replace replaced replaces replacing reschedule rescheduled
    resigned retired revert reverted reverting revise revised revising rewrite rewriting rewritten rose
    scrap scrapped scratch second shift shifted shifting shifts shrank since slip slipped slips starting
    stop stopped superseded supersedes swap swapped swapping switch switched switches switching taken these
    today tomorrow took traded transferred transitioned turned turns up update updated updates updating
    upgrade upgraded upped went wrong""".split()
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


class Terms(dict[str, int]):
    """Terms of the words seen; a dict answers in half the time of a cache that remembers an order."""

    def __missing__(self, word: str) -> int:
        if len(self) >= _KNOWN:
            self.clear()
        # One stemmer a word: it keeps the word in hand, and recalls in threads stem beside the event loop.
        number = 0 if word in _STOP else _number(_stemmer()().stemWord(_FORMS.get(word, word)))
        self[word] = number
        return number


_KNOWN = 131_072
_terms = Terms()


def term(word: str) -> int:
    """Return the term of a word in lower case; 0 for a stop word."""
    return _terms[word]


def _number(word: str) -> int:
    return (crc32(word.encode()) & (1 << BITS) - 1) or 1


def words(text: str) -> list[str]:
    """Return the words of a text in lower case, in order."""
    if text.isascii():  # the same words in a third of the time
        return text.encode().translate(_ASCII).decode().split()
    return _WORD.findall(text.lower())


def terms(said: Sequence[str]) -> list[int]:
    """Return the terms of some words in order, without stop words; of all words when there are no others."""
    return list(filter(None, map(_terms.__getitem__, said))) or [_number(word) for word in said]


def tally(said: Sequence[str]) -> dict[int, int]:
    """Return how often some words hold each of their terms, in the order in which they come."""
    found = Counter(map(_terms.__getitem__, said))
    return found if not found.pop(0, 0) or found else Counter(map(_number, said))


# ── names ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class Name(NamedTuple):
    """Something that is found whole and by its parts."""

    #: As it was written.
    said: str
    #: Terms under which it is found beside those of its words.
    also: tuple[int, ...]
    #: Which of them are parts of a word.
    parts: tuple[int, ...] = ()


#: What a text is made of: "a" for a letter or digit, "." for what joins them within a name, "+" for what ends one.
_JOINED = bytes(
    97 if chr(byte).isalnum() else 46 if chr(byte) in "-./:@\\_," else 43 if chr(byte) in "+#" else 32
    for byte in range(128)
) * 2  # fmt: skip
#: The same: "a" for a small letter, "A" for a capital, "0" for a digit.
_CASED = bytes(
    97 if chr(byte).islower() else 65 if chr(byte).isupper() else 48 if chr(byte).isdigit() else 32
    for byte in range(128)
) * 2  # fmt: skip
#: Letters with accents, signs that are no letters to `re`, and scripts in which words are not told apart by spaces.
_ODD = re.compile(
    "[\u00c0-\u024f\u0300-\u036f\u0386-\u03ce\u0401\u0451\u0591-\u05c7\u0610-\u065f\u0670\u0900-\u0fff\u1000-\u109f"
    "\u1780-\u17ff\u1e00-\u1fff\u2e80-\ua4cf\uac00-\ud7af\uf900-\ufaff\ufb00-\ufb06\uff01-\uffef\U00020000-\U0003ffff]"
)
_RUN = re.compile(
    "([\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
    "\U00020000-\U0003ffff]+)"
)
_HAN = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
#: Words with the signs above and below their letters.
_SIGNED = re.compile(
    "[\\w\u0300-\u036f\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0670\u0900-\u0963\u0966-\u0dff]+"
)
_PLAIN = str.maketrans({"ß": "ss", "ø": "o", "ł": "l", "æ": "ae", "œ": "oe", "đ": "d", "ı": "i", "ё": "е"})
_NAME = re.compile(
    r"(?<![\w.,])(?P<grouped>\d{1,3}(?:,\d{3})+(?:\.\d+)?)(?![\w,])"
    r"|(?<![\w.,])(?P<short>\d{1,6}(?:\.\d{1,3})?)(?P<unit>[kKmM])\b"
    r"|(?P<sharp>(?<!\w)[A-Za-z](?:\+\+|#)(?![\w#+]))"
    r"|(?<!\w)\w++(?:(?:[-./:@\\]|://)\w++)+"
    r"|(?<!\w)\w*(?:[a-z0-9][A-Z]|[A-Z]{2}[a-z]{2}|_)\w*"
)
_ISO = re.compile(r"(?:19|20)\d\d-(?P<month>0[1-9]|1[0-2])-(?P<day>0[1-9]|[12]\d|3[01])")
_DOTTED = re.compile(r"(?P<day>0?[1-9]|[12]\d|3[01])\.(?P<month>0?[1-9]|1[0-2])\.(?:19|20)\d\d")
_CASE = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")
_APART = re.compile(r"[/\\:@?&=#]+")
_ACCENTS = re.compile(
    "[\u00c0-\u024f\u0300-\u036f\u0386-\u03ce\u0401\u0451\u0591-\u05c7\u0610-\u065f\u0670\u1e00-\u1fff]"
)
LONGEST = 256
"""Characters between two spaces that are looked at for names; what is longer is data."""


def found_by(text: str) -> list[int]:
    """Return all terms under which a text is found."""
    found = terms(words(text))
    for name in names(text):
        found.extend(name.also)
    return found


def names(text: str) -> list[Name]:
    """Return the names in a text."""
    data = text.encode("ascii", "replace")
    joined, cased = data.translate(_JOINED), data.translate(_CASED)
    # Most texts have none; one byte is found four times faster than two.
    signs = [(joined, b"a.a")] if b"." in joined else []
    if "+" in text or "#" in text:
        signs.append((joined, b"a+"))
    if capitals := b"A" in cased:
        signs += (cased, b"aA"), (cased, b"AAa")
    if b"0" in cased:
        signs += ((cased, b"0a"), (cased, b"0A")) if capitals else ((cased, b"0a"),)
    pieces: dict[int, int] = {}
    for shape, sign in signs:
        at = shape.find(sign)
        while at >= 0:
            first = joined.rfind(b" ", 0, at) + 1
            last = joined.find(b" ", at)
            pieces[first] = last = last if last >= 0 else len(joined)
            at = shape.find(sign, last)
    found: list[Name] = []
    for first in sorted(pieces):
        found += _compounds(text[first : pieces[first]])
    if not text.isascii() and _ODD.search(text):
        found += _foreign(text)
    return found


@lru_cache(maxsize=32_768)
def _compounds(piece: str) -> tuple[Name, ...]:
    """Return the names in what stands between two spaces."""
    return tuple(_found(piece[:LONGEST]))


def _found(piece: str) -> Iterator[Name]:
    for match in _NAME.finditer(piece):
        said = match.group()
        if match["grouped"] or match["short"]:
            name = Name(said, (_number(_value(match)),))
        elif match["sharp"]:
            name = Name(said, (_number(said.lower()),))
        else:
            name = _compound(said)
        if name.also:
            yield name


def _compound(said: str) -> Name:
    small = said.lower()
    wholes = [small, *(part for part in _APART.split(small) if "." in part or "-" in part)]
    numbers = [_number(one) for one in wholes if not _WORD.fullmatch(one)]
    parts: list[str] = []
    if small != said or "_" in said:
        for word in _WORD.findall(said):
            if "_" in word or not (word.islower() or word.isupper() or word.istitle()):
                parts += _CASE.findall(word)
    if date := _ISO.fullmatch(said) or _DOTTED.fullmatch(said):
        parts += [_MONTHS[int(date["month"]) - 1], str(int(date["day"]))]
    if not parts:
        return Name(said, tuple(dict.fromkeys(numbers)))
    of_words = _beside([term(part.lower()) for part in parts], [*numbers, *terms(words(said))])
    return Name(said, (*_beside(numbers, terms(words(said))), *of_words), of_words)


def _value(match: re.Match[str]) -> str:
    """Return an amount as its digits alone: of 48,000 and of 48k it is 48000."""
    if match["grouped"]:
        return match["grouped"].replace(",", "")
    whole, _, rest = match["short"].partition(".")
    zeros = 3 if match["unit"] in "kK" else 6
    return (whole + rest.ljust(zeros, "0")).lstrip("0") or "0"


def _foreign(text: str) -> Iterator[Name]:
    said = set(words(text))
    for match in _SIGNED.finditer(normalize("NFKC", text).lower()):
        word = match.group()
        if word in said and not _ODD.search(word):
            continue
        numbers = [term(word)]
        first, *pieces = _RUN.split(word)
        for run in pieces[::2]:
            numbers += [_number(run[at : at + 2]) for at in range(max(1, len(run) - 1))]
            numbers += map(_number, _HAN.findall(run))
        if pieces:
            numbers += [term(piece) for piece in (first, *pieces[1::2]) if piece]
        elif _ACCENTS.search(word):
            plain = word.translate(_PLAIN)
            if "й" not in plain:  # a letter of its own
                plain = "".join(sign for sign in normalize("NFD", plain) if not combining(sign))
            numbers.append(term(plain))
        if also := _beside(numbers, [term(word)] if word in said else ()):
            yield Name(word, also)


def _beside(numbers: Sequence[int], own: Sequence[int]) -> tuple[int, ...]:
    """Return the terms that are none of its own, each once."""
    return tuple(dict.fromkeys(number for number in numbers if number and number not in own))


# ── days ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@lru_cache(maxsize=4096)
def day_terms(day: int) -> tuple[int, ...]:
    """Return the terms of a date, given in days since 1970: day of the month, month, year."""
    year, month, date = _civil(day)
    return tuple(terms([str(date), _MONTHS[month - 1], str(year)]))


def _civil(day: int) -> tuple[int, int, int]:
    from datetime import date

    found = date.fromordinal(min(max(day + 719_163, 1), 3_652_059))
    return found.year, found.month, found.day


def rarity(size: int, often: int) -> float:
    """Return what a term weighs that `often` of `size` texts hold: the inverse document frequency of BM25."""
    return log(1 + (size - often + 0.5) / (often + 0.5))


def changes(said: Iterable[str]) -> bool:
    """Return whether some words may announce that something has changed."""
    return not CHANGES_BY.isdisjoint(said)
