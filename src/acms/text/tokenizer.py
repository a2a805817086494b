"""Terms: the words of a text as the index counts them, stemmed, without stop words, each a number; and its sentences.

Stems and stop words are those of the language that a text is written in: the one whose function words cover most of it
(Grefenstette 1995), of all that both libraries know; a word that many languages share says less. That takes two
microseconds and no model, and is right for eight or nine sentences of prose in ten. A text too short to tell is read as
English. In scripts that are written without spaces, and in Korean, every two adjacent characters are a word.

A term is the lower 24 bits of the CRC-32 of a stemmed word, so nothing has to be looked up, stored or shared to know
it. Two of 30,000 words share a number about once in 600 words; they then count as one, which moves no result that
matters and is the same everywhere.

A name is what holds more than a word or less than one: a path, an identifier, a version, an amount, a single Chinese
character. It is found whole and by its parts, beside the words it is made of. So is a word of
another language than English by its plain form, without accents and stemmed as English: one word by itself tells no
language, and finds it.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from functools import lru_cache
from importlib import import_module
from math import log
from typing import NamedTuple
from zlib import crc32

UNKNOWN = ""
"""The language of a text that is too short to detect: English stems and function words, and the months of every
language."""
ENGLISH = "english"
LANGUAGES = (
    *"arabic catalan czech danish dutch english finnish french german greek hindi hungarian indonesian italian".split(),
    *"norwegian persian polish portuguese romanian russian spanish swedish turkish".split(),
)
"""Languages that both libraries support: the stems and the function words."""

#: The English function words. The lists of libraries have 1,300 words and would remove the subject of questions.
_ENGLISH = frozenset(
    """a about after all also am an and any are as at be because been before being but by can could did do does
    doing done for from get got had has have having he her here hers him his how i if in into is it its just let like me
    more most my no not now of off on once only or other our out over own really said same she should so some such than
    that the their them then there these they this those through to too under until up us very was we were what when
    where which while who whom why will with would you your yours d ll m re s t ve""".split()
)
#: English forms that a stemmer does not bring together with their word.
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
MONTHS = "january february march april may june july august september october november december".split()
_MONTHS = {
    language: dict(zip(months.split(), MONTHS, strict=True))
    for language, months in {
        "german": "januar februar marz april mai juni juli august september oktober november dezember",
        "spanish": "enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre",
        "french": "janvier fevrier mars avril mai juin juillet aout septembre octobre novembre decembre",
        "italian": "gennaio febbraio marzo aprile maggio giugno luglio agosto settembre ottobre novembre dicembre",
    }.items()
}
_MONTHS[UNKNOWN] = {form: month for months in _MONTHS.values() for form, month in months.items()}
#: Languages of a text without a function word, by its first letter.
_SCRIPTS = {"CYRILLIC": "russian", "GREEK": "greek", "ARABIC": "arabic", "DEVANAGARI": "hindi"}
_LETTERS = re.compile(r"[^\W\d]+")
_ACCENTS = re.compile(
    "[\u00c0-\u024f\u0300-\u036f\u0386-\u03ce\u0401\u0451\u0591-\u05c7\u0610-\u065f\u0670\u1e00-\u1fff]"
)
_PLAIN = str.maketrans({"ß": "ss", "ø": "o", "ł": "l", "æ": "ae", "œ": "oe", "đ": "d", "ı": "i", "ё": "е"})
#: Number of words that are read of a text, and the votes of each, which the languages that have it share.
#: Their product must fit a byte.
_READ, _VOTE = 36, 7
#: Minimum vote of an English word: mistaking English for another language costs more than the reverse.
_LEAST = 4


def detect_language(words: Sequence[str]) -> str:
    """Return the language of some words in lower case, or `UNKNOWN` if function words and script do not show it."""
    packed_votes = _packed_language_votes()
    total = sum([packed_votes.get(word, 0) for word in words[:_READ]])
    if total:
        votes = total.to_bytes(len(LANGUAGES), "little")
        most_votes = max(votes)
        if votes.count(most_votes) == 1:
            return LANGUAGES[votes.index(most_votes)]
    first_foreign_letter = next((letter for word in words for letter in word if letter > "\x7f"), None)
    if first_foreign_letter is None:
        return UNKNOWN
    script = unicodedata.name(first_foreign_letter, "").partition(" ")[0]
    return _SCRIPTS.get(script, UNKNOWN)


@lru_cache(maxsize=1)
def _packed_language_votes() -> Mapping[str, int]:
    """Return for each function word its votes for the languages that have it.

    The votes of a word are one number, with a byte for each language in the order of `LANGUAGES`.
    """
    languages_by_word: dict[str, list[int]] = {}
    for index, language in enumerate(LANGUAGES):
        for word in function_words(language):
            languages_by_word.setdefault(word, []).append(index)
    english = LANGUAGES.index(ENGLISH)
    packed_votes = dict.fromkeys(languages_by_word, 0)
    for word, indexes in languages_by_word.items():
        for index in indexes:
            vote = _VOTE // len(indexes)
            if index == english:
                vote = max(vote, _LEAST)
            packed_votes[word] += vote << 8 * index
    return packed_votes


def function_words(language: str) -> frozenset[str]:
    """Return the stop words of a language, with and without their accents; of English only the function words."""
    return _ENGLISH if language in (UNKNOWN, ENGLISH) else common_words(language)


@lru_cache(maxsize=len(LANGUAGES))
def common_words(language: str) -> frozenset[str]:
    """Return all stop words of a language: words that name no subject by themselves, such as "tell" and "first"."""
    from stop_words import get_stop_words

    # Entries such as "d'" and "c'est" are words with a sign between them.
    words = {word for entry in get_stop_words(language) for word in _LETTERS.findall(entry.lower())}
    return frozenset(words | set(map(strip_accents, words)))


def _stem_english(word: str) -> str:
    """Return the stem of a word as English, its irregular forms included."""
    if word.isascii() and word.isdigit():  # no language has an ending for it
        return word
    return _stem_word(_FORMS.get(word, word), ENGLISH)


def _stem_word(word: str, language: str) -> str:
    # The Python module is used even if the C library is installed. A stemmer keeps the word as its state, and threads
    # stem in parallel, so each word gets a new one.
    stemmer = getattr(import_module(f"snowballstemmer.{language}_stemmer"), f"{language.title()}Stemmer")
    return stemmer().stemWord(word)


def strip_accents(word: str) -> str:
    """Return a word in lower case without its accents."""
    if word.isascii() or not _ACCENTS.search(word):
        return word
    return "".join(
        sign
        for sign in unicodedata.normalize("NFD", word.translate(_PLAIN))
        if not unicodedata.combining(sign)
    )


#: Scripts in which words are not separated by spaces, or are made of many parts.
_JOINED_SIGNS = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
    "\U00020000-\U0003ffff"
)
_RUN = re.compile(f"([{_JOINED_SIGNS}]+)")
_HAN = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
#: Words, with the signs above and below their letters.
_WORD = re.compile(
    f"[\\w{_JOINED_SIGNS}\u0300-\u036f\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0670\u0900-\u0963\u0966-\u0dff]+"
)
#: ASCII letters in lower case, digits and "_" as they are, a space for everything else.
_ASCII = bytes(byte if _WORD.match(chr(byte)) else 32 for byte in bytes(range(128)).lower()) + bytes(128)
#: "5月" and "五月", which are found as May, too.
_MONTH = re.compile("(?<!\\d)(?:(1[0-2]|0?[1-9])|(十[一二]?|[一二三四五六七八九]))[月월]")
_NUMERALS = {word: month for month, word in enumerate("一 二 三 四 五 六 七 八 九 十 十一 十二".split())}

BITS = 24
"""Bits of a term."""


class _Primary(dict[str, int]):
    """The primary term of a word: its plain form, stemmed as English; a dict answers faster than an LRU cache."""

    def __missing__(self, word: str) -> int:
        if len(self) >= _KNOWN:
            self.clear()
        number = self[word] = _hash_word(_stem_english(strip_accents(word)))
        return number


class _Variants(dict[str, tuple[int, ...]]):
    """Additional terms of a word of a language: its own stem, its English month."""

    def __init__(self, language: str) -> None:
        super().__init__()
        self.language = language

    def __missing__(self, word: str) -> tuple[int, ...]:
        if len(self) >= _KNOWN:
            self.clear()
        found = self[word] = tuple(number for number in self._find(word) if number != _primary[word])
        return found

    def _find(self, word: str) -> Iterator[int]:
        if month := _MONTHS.get(self.language, {}).get(strip_accents(word)):
            yield _hash_word(_stem_english(month))
        if self.language not in (UNKNOWN, ENGLISH) and not (word.isascii() and word.isdigit()):
            yield _hash_word(_stem_word(word, self.language))


_KNOWN = 65_536
_primary = _Primary()
_variants = {language: _Variants(language) for language in (UNKNOWN, *LANGUAGES)}


def content_term(word: str) -> int:
    """Return the primary term of a word in lower case; 0 for a function word of English."""
    return 0 if word in function_words(ENGLISH) else _primary[word]


def primary_term(word: str) -> int:
    """Return the term that a word in lower case always has, whatever language the text is in."""
    return _primary[word]


@lru_cache(maxsize=1)
def function_terms() -> frozenset[int]:
    """Return the primary terms of the function words of English."""
    return frozenset(map(primary_term, function_words(ENGLISH)))


@lru_cache(maxsize=1)
def subjectless_terms() -> frozenset[int]:
    """Return the primary terms that name no subject: function words of English, and amounts, days and years."""
    return function_terms() | frozenset(primary_term(str(number)) for number in range(3_000))


def variant_terms(words: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Return, for each of some words of one text, the terms that a guess of its language adds."""
    variants = _variants[detect_language(words)]
    return {word: variants[word] for word in words}


def _hash_word(word: str) -> int:
    return (crc32(word.encode()) & (1 << BITS) - 1) or 1


def split_words(text: str) -> list[str]:
    """Return the words of a text in lower case, in order."""
    if text.isascii():  # the same words in a third of the time
        return text.encode().translate(_ASCII).decode().split()
    text = unicodedata.normalize("NFKC", text).lower()
    if not _RUN.search(text):
        return _WORD.findall(text)
    text = _MONTH.sub(_add_month_name, text)
    return [piece for word in _WORD.findall(text) for piece in _split_joined_script(word)]


def find_joined_runs(text: str) -> list[str]:
    """Return the runs of characters of which `split_words` makes pairs."""
    if text.isascii():
        return []
    text = unicodedata.normalize("NFKC", text).lower()
    return _RUN.findall(_MONTH.sub(_add_month_name, text))


def is_han(character: str) -> bool:
    """Return whether a character is a Chinese one."""
    return _HAN.match(character) is not None


def _add_month_name(match: re.Match[str]) -> str:
    month = int(match[1]) - 1 if match[1] else _NUMERALS[match[2]]
    return f" {MONTHS[month]} {match[0]}"


def _split_joined_script(word: str) -> Iterator[str]:
    """Yield each pair of adjacent characters of the runs in a script without spaces, and the text between the runs."""
    for index, part in enumerate(_RUN.split(word)):
        is_run = index % 2 == 1  # `split` returns text and runs in turn
        if is_run:
            number_of_pairs = max(1, len(part) - 1)
            for start in range(number_of_pairs):
                yield part[start : start + 2]
        elif part:
            yield part


def remove_function_words(words: Sequence[str]) -> Sequence[str]:
    """Return some words without the function words of English; all of them if there are no others.

    Those of other languages stay: the language of a short text is a guess, and "Sam" is a function word of Polish.
    """
    function = function_words(ENGLISH)
    return [word for word in words if word not in function] or words


def content_terms(words: Sequence[str]) -> list[int]:
    """Return the primary terms of the words of a text in order; without English function words if there are others."""
    return [_primary[word] for word in remove_function_words(words)]


def count_terms(words: Sequence[str]) -> dict[int, int]:
    """Return how often each primary term occurs in a text, in order, and 0 for each variant term."""
    counts: dict[int, int] = Counter(map(_primary.__getitem__, words))
    for terms in variant_terms(words).values():
        for term in terms:
            counts.setdefault(term, 0)
    return counts


# ── names ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class Name(NamedTuple):
    """A string that is found whole and by its parts."""

    #: As it was written.
    text: str
    #: Terms under which it is found in addition to those of its words.
    extra_terms: tuple[int, ...]
    #: Those of them that are parts of a word.
    parts: tuple[int, ...] = ()


#: The class of each character: "a" for a letter or digit, "." for a joint within a name, "+" for an end of one.
_JOINED = bytes(
    97 if chr(byte).isalnum() else 46 if chr(byte) in "-./:@\\_," else 43 if chr(byte) in "+#" else 32
    for byte in range(128)
) * 2  # fmt: skip
#: The case of each character: "a" for a small letter, "A" for a capital, "0" for a digit.
_CASED = bytes(
    97 if chr(byte).islower() else 65 if chr(byte).isupper() else 48 if chr(byte).isdigit() else 32
    for byte in range(128)
) * 2  # fmt: skip
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
LONGEST = 256
"""Characters between two spaces that are searched for names; longer strings are data."""


def searchable_terms(text: str) -> list[int]:
    """Return all terms under which a text is found: primary terms in order, variant terms, and terms of its names."""
    words = split_words(text)
    terms = content_terms(words)
    variants = [term for term, count in count_terms(words).items() if count == 0]
    terms += variants
    for name in find_names(text):
        terms += name.extra_terms
    return terms


def find_names(text: str) -> list[Name]:
    """Return the names in a text: identifiers, paths, amounts, dates and single Chinese characters."""
    names: list[Name] = []
    for start, end in sorted(_find_name_pieces(text).items()):
        names += _names_in_piece(text[start:end])
    if not text.isascii() and _HAN.search(text):
        words = split_words(text)
        for character in dict.fromkeys(_HAN.findall(text)):
            if character not in words:
                names.append(Name(character, (_hash_word(character),)))
    return names


def _find_name_pieces(text: str) -> dict[int, int]:
    """Return {start: end} of each piece of a text between two spaces that may contain a name."""
    data = text.encode("ascii", "replace")
    joint_classes, case_classes = data.translate(_JOINED), data.translate(_CASED)
    # Most texts contain no name. One byte is found four times faster than two, so it is looked for first.
    searches: list[tuple[bytes, bytes]] = []
    if b"." in joint_classes:
        searches.append((joint_classes, b"a.a"))
    if "+" in text or "#" in text:
        searches.append((joint_classes, b"a+"))
    has_capital, has_digit = b"A" in case_classes, b"0" in case_classes
    if has_capital:
        searches += (case_classes, b"aA"), (case_classes, b"AAa")
    if has_digit:
        searches.append((case_classes, b"0a"))
    if has_digit and has_capital:
        searches.append((case_classes, b"0A"))
    pieces: dict[int, int] = {}
    for classes, pattern in searches:
        index = classes.find(pattern)
        while index >= 0:
            start = joint_classes.rfind(b" ", 0, index) + 1
            end = joint_classes.find(b" ", index)
            if end < 0:
                end = len(joint_classes)
            pieces[start] = end
            index = classes.find(pattern, end)
    return pieces


@lru_cache(maxsize=32_768)
def _names_in_piece(piece: str) -> tuple[Name, ...]:
    """Return the names in a piece of text between two spaces."""
    return tuple(_match_names(piece[:LONGEST]))


def _match_names(piece: str) -> Iterator[Name]:
    """Yield the names in a piece that have terms besides those of its words, such as amounts, "C++" and paths."""
    for match in _NAME.finditer(piece):
        text = match.group()
        if match["grouped"] or match["short"]:
            name = Name(text, (_hash_word(_expand_amount(match)),))
        elif match["sharp"]:
            name = Name(text, (_hash_word(text.lower()),))
        else:
            name = _parse_compound(text)
        if name.extra_terms:
            yield name


def _parse_compound(text: str) -> Name:
    """Return a name of several parts: a path, an identifier, a date."""
    lowered = text.lower()
    segments = [segment for segment in _APART.split(lowered) if "." in segment or "-" in segment]
    whole_terms = [_hash_word(whole) for whole in (lowered, *segments) if not _WORD.fullmatch(whole)]
    word_terms = [content_term(word) for word in split_words(text)]
    has_capital = lowered != text
    parts = _split_by_case(text) if has_capital or "_" in text else []
    written_date = _ISO.fullmatch(text) or _DOTTED.fullmatch(text)
    if written_date:
        parts += [MONTHS[int(written_date["month"]) - 1], str(int(written_date["day"]))]
    if not parts:
        return Name(text, tuple(dict.fromkeys(whole_terms)))
    part_terms = [content_term(part.lower()) for part in parts]
    part_terms = _exclude_own_terms(part_terms, [*whole_terms, *word_terms])
    return Name(text, (*_exclude_own_terms(whole_terms, word_terms), *part_terms), part_terms)


def _split_by_case(text: str) -> list[str]:
    """Return the parts of words that capitals or underscores divide."""
    parts: list[str] = []
    for word in _WORD.findall(text):
        has_usual_case = word.islower() or word.isupper() or word.istitle()
        if "_" in word or not has_usual_case:
            parts += _CASE.findall(word)
    return parts


def _expand_amount(match: re.Match[str]) -> str:
    """Return an amount as plain digits: 48,000 and 48k both become 48000."""
    if match["grouped"]:
        return match["grouped"].replace(",", "")
    whole, _, fraction = match["short"].partition(".")
    zeros = 3 if match["unit"] in "kK" else 6
    digits = whole + fraction.ljust(zeros, "0")
    return digits.lstrip("0") or "0"


def _exclude_own_terms(terms: Sequence[int], own_terms: Sequence[int]) -> tuple[int, ...]:
    """Return the terms `terms` without 0 and without those in `own_terms`, each once."""
    return tuple(dict.fromkeys(number for number in terms if number and number not in own_terms))


# ── days ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@lru_cache(maxsize=4096)
def day_terms(day: int) -> tuple[int, ...]:
    """Return the terms of a date, given in days since 1970: day of the month, month, year."""
    ordinal = date(1970, 1, 1).toordinal() + day
    day_date = date.fromordinal(min(max(ordinal, date.min.toordinal()), date.max.toordinal()))
    return tuple(map(content_term, (str(day_date.day), MONTHS[day_date.month - 1], str(day_date.year))))


def compute_idf(size: int, holders: int) -> float:
    """Return the weight of a term that `holders` of `size` texts hold: the inverse document frequency of BM25."""
    return log(1 + (size - holders + 0.5) / (holders + 0.5))


# ── sentences ───────────────────────────────────────────────────────────────────────────────────────────────────────

SENTENCE = 1_000
"""Characters of what counts as one sentence: code and JSON have none."""
_END = re.compile(r"[.!?]+[\"')\]]*\s+|\n+")


def find_sentence_spans(content: str) -> list[tuple[int, int]]:
    """Return where the sentences of a text start and end; together they are the whole text."""
    spans: list[tuple[int, int]] = []
    start = 0
    ends = [match.end() for match in _END.finditer(content)]
    for end in (*ends, len(content)):
        if not content[start:end].strip():
            continue
        while end - start > SENTENCE:
            space = content.rfind(" ", start + SENTENCE // 2, start + SENTENCE)
            cut_position = start + SENTENCE if space < 0 else space + 1
            spans.append((start, cut_position))
            start = cut_position
        spans.append((start, end))
        start = end
    return spans
