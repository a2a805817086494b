"""Entities: the topics of a text, as words that can be compared and shown.

An entity is a word in lower case, or a name of several words: `orders_db`, `src/app.py`, `getUser`. A name counts whole
and by its parts. Entities are not stemmed, because they are shown and sent to providers. The entities that a request
asks for are its gaze.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from acms.contract.schema import RenderRequest
from acms.text.tokenizer import content_term

MOST = 64
"""Entities of one text, at most."""
LONGEST = 128
"""Characters of an entity, at most: a longer word is data."""
READ = 20_000
"""Characters of a text that are read."""

_REDACTED = re.compile(r"\[REDACTED: [a-z_]+\]")
_PIECE = re.compile(r"\w+(?:(?:://|[-./\\:@])\w+)*")
_WORD = re.compile(r"\w+")
_CASE = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")
_NUMBER = re.compile(r"\d+(?:[.:/-]\d+)*[a-zA-Z]?")
#: Scripts whose words are not told apart by spaces.
_RUN = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]+"
)
_SHORT_RUN = 4
#: Words from which on one name that is all of an intent is a sentence.
_SLUG = 3
#: Verbs that state the task, not the topic, at the start of an intent.
_ASKING = frozenset(
    """add build compare create debug describe design explain explore find fix give help how implement investigate list
    make please remember search show summarise summarize tell understand use what write""".split()
)


def extract_entities(text: str) -> tuple[str, ...]:
    """Return the entities of a text, in lower case, in the order of first mention, `MOST` at most.

    If there are more, names (words with capitals, digits, or several parts) take precedence over plain words. Redaction
    marks have no entities.
    """
    named: dict[str, bool] = {}
    for piece in _PIECE.findall(_REDACTED.sub(" ", text[:READ])):
        for name, proper in _entities_of_piece(piece):
            named[name] = named.get(name, False) or proper
    if len(named) <= MOST:
        return tuple(named)
    kept = set(sorted(named, key=lambda name: not named[name])[:MOST])  # stable: ties keep the first
    return tuple(name for name in named if name in kept)


def gaze_of_request(request: RenderRequest, *, known: Collection[str] = ()) -> tuple[str, ...]:
    """Return the entities a request asks for: the stated ones, otherwise those extracted from its intent.

    A slug such as `debug_memory_leak` is split into its words. `known` are entity names that candidates use: if the
    words of one are adjacent in the intent, it replaces them, so `memory_leak` is found if it is known.
    """
    if request.entities is not None:
        return tuple(dict.fromkeys(filter(None, map(normalize_entity, request.entities))))
    intent = request.intent.strip()
    if _WORD.fullmatch(intent) and len(slug := list(_split_word(intent))) >= _SLUG:
        intent = " ".join(slug)
    found = list(extract_entities(intent))
    said = [word.lower() for word in _WORD.findall(intent[:READ])]
    if len(found) > 1 and found[0] in _ASKING and said and said[0] == found[0]:
        del found[0]
    return _join_known_names(found, said, known) if known else tuple(found)


def normalize_entity(name: str) -> str:
    """Return an entity name for comparison: in lower case, without surrounding whitespace."""
    return name.strip().lower()


def _entities_of_piece(piece: str) -> Iterator[tuple[str, bool]]:
    """Yield the entities in one piece of text without spaces, each with whether it is a name."""
    small = piece.lower()
    if small.isascii() and small.isalpha() and (piece == small or piece.istitle() or piece.isupper()):
        if _is_meaningful(small):
            yield small, piece != small
        return
    if _NUMBER.fullmatch(piece):
        yield small, True
        return
    parts = [part for word in _WORD.findall(piece) for part in _split_word(word)]
    if len(small) <= LONGEST and not _RUN.search(small) and (len(parts) > 1 or _is_meaningful(small)):
        yield small, True
    telling = [part for part in parts if _is_meaningful(part)]
    if len(telling) < 2 and any(len(part) < 3 for part in parts) and len(parts) > 1:
        return  # a single part of "OAuth" or "v1.2" would be another word
    for part in telling:
        if part != small or _RUN.search(part):
            yield part, False


def _split_word(word: str) -> Iterator[str]:
    if word.isascii():
        for part in word.split("_"):
            mixed = not (part.islower() or part.isupper() or part.istitle())
            yield from (found.lower() for found in (_CASE.findall(part) if mixed else [part]) if found)
        return
    place = 0
    for run in _RUN.finditer(word):
        if word[place : run.start()]:
            yield word[place : run.start()].lower()
        said, place = run.group(), run.end()
        if len(said) <= _SHORT_RUN:
            yield said
        else:
            yield from (said[at : at + 2] for at in range(len(said) - 1))
    if word[place:]:
        yield word[place:].lower()


def _is_meaningful(word: str) -> bool:
    """Return whether a word is meaningful by itself."""
    if not word.isascii():
        return len(word) <= LONGEST
    return 1 < len(word) <= LONGEST and content_term(word) != 0


def _join_known_names(found: list[str], said: list[str], known: Collection[str]) -> tuple[str, ...]:
    """Return entities in which known names replace their words, longest names first."""
    by_words: dict[tuple[str, ...], str] = {}
    for name in sorted(set(map(normalize_entity, known))):
        words = tuple(part for word in _WORD.findall(name) for part in _split_word(word))
        if len(words) > 1:
            by_words.setdefault(words, name)
    where: dict[str, list[int]] = {}
    for at, word in enumerate(said):
        where.setdefault(word, []).append(at)
    place: dict[int, str] = {}
    taken: set[int] = set()
    for words in sorted(by_words, key=lambda words: (-len(words), words)):
        for at in where.get(words[0], ()):
            here = range(at, at + len(words))
            if tuple(said[at : at + len(words)]) == words and taken.isdisjoint(here):
                taken.update(here)
                place[at] = by_words[words]
    if not place:
        return tuple(found)
    inside = {said[at] for at in taken} - {word for at, word in enumerate(said) if at not in taken}
    result: dict[str, None] = {}
    names = {said[at]: name for at, name in sorted(place.items(), reverse=True)}
    for one in found:
        if one in names:
            result[names[one]] = None
        if one not in inside:
            result[one] = None
    for _, name in sorted(place.items()):
        result[name] = None
    return tuple(result)
