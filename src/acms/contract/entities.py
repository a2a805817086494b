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

MAX_ENTITIES = 64
"""Entities of one text: more than any request asks for."""
MAX_ENTITY_CHARS = 128
"""Characters of an entity: a longer word is data."""
MAX_TEXT_CHARS = 20_000
"""Characters of a text that are read, which takes some 10 ms."""

_REDACTED = re.compile(r"\[REDACTED: [a-z_]+\]")
_PIECE = re.compile(r"\w+(?:(?:://|[-./\\:@])\w+)*")
_WORD = re.compile(r"\w+")
_CASE = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")
_NUMBER = re.compile(r"\d+(?:[.:/-]\d+)*[a-zA-Z]?")
#: Scripts whose words are not told apart by spaces.
_SPACELESS_CHARACTERS = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
)
_SPACELESS = re.compile(f"[{_SPACELESS_CHARACTERS}]+")
_SPACELESS_OR_REST = re.compile(f"[{_SPACELESS_CHARACTERS}]+|[^{_SPACELESS_CHARACTERS}]+")
#: Verbs that state the task, not the topic, at the start of an intent.
_TASK_VERBS = frozenset(
    """add build compare create debug describe design explain explore find fix give help how implement investigate list
    make please remember search show summarise summarize tell understand use what write""".split()
)


def extract_entities(text: str) -> tuple[str, ...]:
    """Return the entities of a text, in lower case, in the order of first mention, `MAX_ENTITIES` at most.

    If there are more, names (words with capitals, digits, or several parts) take precedence over plain words. Redaction
    marks have no entities.
    """
    is_name: dict[str, bool] = {}
    without_marks = _REDACTED.sub(" ", text[:MAX_TEXT_CHARS])
    for piece in _PIECE.findall(without_marks):
        for entity, is_name_here in _entities_of_piece(piece):
            is_name[entity] = is_name.get(entity, False) or is_name_here
    names_first = sorted(is_name, key=lambda entity: not is_name[entity])  # stable: else in order of mention
    kept_entities = set(names_first[:MAX_ENTITIES])
    return tuple(entity for entity in is_name if entity in kept_entities)


def gaze_of_request(request: RenderRequest, *, known_names: Collection[str] = ()) -> tuple[str, ...]:
    """Return the entities a request asks for: the stated ones, otherwise those extracted from its intent.

    A slug such as `debug_memory_leak` is split into its words. `known_names` are entity names that candidates use. If
    the words of a known name are adjacent in the intent, the name replaces them: "memory leak" becomes `memory_leak`.
    """
    if request.entities is not None:
        stated = dict.fromkeys(map(normalize_entity, request.entities))
        return tuple(name for name in stated if name)
    intent = request.intent.strip()
    if _WORD.fullmatch(intent):
        parts = list(_split_word(intent))
        is_slug = len(parts) > 2
        if is_slug:
            intent = " ".join(parts)
    entities = list(extract_entities(intent))
    words = [word.lower() for word in _WORD.findall(intent[:MAX_TEXT_CHARS])]
    if len(entities) > 1:
        begins_with_verb = entities[0] in _TASK_VERBS and words[:1] == entities[:1]
        if begins_with_verb:
            del entities[0]
    return _join_known_names(entities, words, known_names) if known_names else tuple(entities)


def normalize_entity(name: str) -> str:
    """Return an entity name for comparison: in lower case, without surrounding whitespace."""
    return name.strip().lower()


def _entities_of_piece(piece: str) -> Iterator[tuple[str, bool]]:
    """Yield (entity, whether it is a name) for the entities in a piece of text without spaces."""
    lowered = piece.lower()
    is_plain_word = lowered.isascii() and lowered.isalpha() and not _is_mixed_case(piece)
    if is_plain_word:
        if _is_meaningful(lowered):
            yield lowered, piece != lowered
    elif _NUMBER.fullmatch(piece):
        yield lowered, True
    else:
        yield from _entities_of_identifier(piece)


def _entities_of_identifier(piece: str) -> Iterator[tuple[str, bool]]:
    """Yield (entity, whether it is a name) for an identifier of several parts, or text in a script without spaces.

    The identifier itself is a name; its parts are plain words.
    """
    lowered = piece.lower()
    lacks_spaces = _SPACELESS.search(lowered) is not None
    parts: list[str] = []
    for word in _WORD.findall(piece):
        parts += _split_word(word)
    is_entity = len(parts) > 1 or _is_meaningful(lowered)
    if is_entity and not lacks_spaces and len(lowered) <= MAX_ENTITY_CHARS:
        yield lowered, True
    meaningful = [part for part in parts if _is_meaningful(part)]
    if len(parts) > 1 and len(meaningful) < 2 and min(map(len, parts)) < 3:
        return  # the only meaningful part of "OAuth" or "v1.2" would be a word of another meaning
    for part in meaningful:
        if part != lowered or lacks_spaces:
            yield part, False


def _is_mixed_case(word: str) -> bool:
    return not (word.islower() or word.istitle() or word.isupper())


def _split_word(word: str) -> Iterator[str]:
    """Yield the parts of an identifier or of a word in a script without spaces, in lower case."""
    if word.isascii():
        for part in word.split("_"):
            pieces = _CASE.findall(part) if _is_mixed_case(part) else [part]
            yield from (piece.lower() for piece in pieces if piece)
        return
    for part in _SPACELESS_OR_REST.findall(word):
        is_one_word = not _SPACELESS.match(part) or len(part) <= 4  # a short run is one word
        if is_one_word:
            yield part.lower()
        else:  # without spaces between words, every pair of characters may be a word
            yield from (part[start : start + 2] for start in range(len(part) - 1))


def _is_meaningful(word: str) -> bool:
    """Return whether a word is meaningful by itself."""
    if not word.isascii():
        return len(word) <= MAX_ENTITY_CHARS
    return 1 < len(word) <= MAX_ENTITY_CHARS and content_term(word) != 0


def _join_known_names(entities: list[str], words: list[str], known_names: Collection[str]) -> tuple[str, ...]:
    """Return the entities with known names in place of their words.

    A word that also occurs outside a known name is kept.
    """
    names = _find_known_names(words, known_names)
    if not names:
        return tuple(entities)
    name_by_first_word: dict[str, str] = {}
    covered_indexes: set[int] = set()
    for start, (name, length) in sorted(names.items()):
        name_by_first_word.setdefault(words[start], name)
        covered_indexes.update(range(start, start + length))
    words_inside = {words[index] for index in covered_indexes}
    words_outside = {word for index, word in enumerate(words) if index not in covered_indexes}
    entities_and_names: list[str] = []
    for entity in entities:
        if entity in name_by_first_word:
            entities_and_names.append(name_by_first_word[entity])
        if entity in words_outside or entity not in words_inside:
            entities_and_names.append(entity)
    entities_and_names += [name for _, (name, _) in sorted(names.items())]
    return tuple(dict.fromkeys(entities_and_names))


def _find_known_names(words: list[str], known_names: Collection[str]) -> dict[int, tuple[str, int]]:
    """Return {index of the first word: (name, number of words)} for known names of several words, longest first."""
    name_by_parts: dict[tuple[str, ...], str] = {}
    for name in sorted(set(map(normalize_entity, known_names))):
        parts: list[str] = []
        for word in _WORD.findall(name):
            parts += _split_word(word)
        if len(parts) > 1:
            name_by_parts.setdefault(tuple(parts), name)
    indexes_by_word: dict[str, list[int]] = {}
    for index, word in enumerate(words):
        indexes_by_word.setdefault(word, []).append(index)
    names: dict[int, tuple[str, int]] = {}
    covered_indexes: set[int] = set()
    for parts_of_name in sorted(name_by_parts, key=lambda parts: (-len(parts), parts)):
        length = len(parts_of_name)
        for start in indexes_by_word.get(parts_of_name[0], ()):
            span = range(start, start + length)
            if tuple(words[start : start + length]) == parts_of_name and covered_indexes.isdisjoint(span):
                covered_indexes.update(span)
                names[start] = name_by_parts[parts_of_name], length
    return names
