"""Markers: find and weigh signals of importance in the text of a message, but not in text that ACMS rendered.

Agents paste rendered text into messages. It is stored unchanged, but no marker is found in it and no fact is learned
from it: it would only repeat an earlier source. Text that cannot be told apart from a message counts as message.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache

from acms.model import MarkerType, Role
from acms.text.chat_messages import FRAMES
from acms.text.tokenizer import content_terms, split_words

_OPENING = tuple(opening.strip() for opening, _ in FRAMES)
_MARKS = tuple(
    re.compile(rf"(?P<open>{re.escape(opening.strip())}\r?\n)|\r?\n{re.escape(closing.strip())}")
    for opening, closing in FRAMES
)
_ROLES = "|".join(role.value for role in Role)
_QUOTED = re.compile(rf"(?:{_ROLES})(?:, \d{{4}}-\d\d-\d\d)?:(?:\s|\Z)")
_DAY = re.compile(r", \d{4}-\d\d-\d\d\Z")
_GAP = re.compile(r"\r?\n(?>(?:[ \t]{0,80}\r?\n)+)")
_FENCE = re.compile(r"^[ \t]{0,3}```", re.MULTILINE)
_LIST = re.compile(r"[ \t]|[-*+\u2022] |\d{1,3}[.)] |```")
_FACT = "fact: "


def strip_rendered_blocks(text: str) -> str:
    """Return a text without the delimited blocks of `messages()`, and itself if it has none.

    A block ends at the mark that closes it, and may contain others. One that is never closed is no block.
    """
    if not any(opening in text for opening in _OPENING):
        return text
    spans = sorted(span for marks in _MARKS for span in _find_blocks(text, marks))
    if not spans:
        return text
    kept_parts: list[str] = []
    position = 0
    for start, end in spans:
        if start > position:
            kept_parts.append(text[position:start])
        position = max(position, end)
    kept_parts.append(text[position:])
    return "\n\n".join(piece.strip("\r\n") for piece in kept_parts if piece.strip())


def _find_blocks(text: str, marks: re.Pattern[str]) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each outermost block of one kind; `marks` matches its opening and closing marks."""
    start = end = -1
    depth = 0
    for mark in marks.finditer(text):
        if mark["open"]:
            if _is_html_summary(text, mark.start()):
                continue
            if depth == 0:
                start = mark.start()
            depth += 1
        elif depth:
            end = mark.end()
            depth -= 1
            if depth == 0:
                yield start, end
                start = end = -1
    # If an opening mark is never closed, the block ends at the last closing mark.
    if depth and end > start:
        yield start, end


def _is_html_summary(text: str, start: int) -> bool:
    """Return whether an opening mark is the `<summary>` of an HTML `<details>` element."""
    text_before = text[max(0, start - 20) : start].rstrip()
    return text_before.endswith(("<details>", "<details open>"))


def remove_rendered_text(
    text: str, *, known: Collection[str] = frozenset(), speakers: Collection[str] = frozenset()
) -> str:
    """Remove the text that ACMS rendered into a message; return "" if nothing else is left.

    Three kinds of text are removed:

    - the delimited blocks of `messages()`;
    - a transcript as `ContextItems.text()` writes it: from the first to the last paragraph that begins with a role in
      small letters, or one of `speakers`, and a colon. Lists, indented paragraphs and an open code block after the last
      one belong to it;
    - paragraphs that equal one of `known`, the contents of active facts and of summaries, with or without `fact:`.
    """
    stripped_text = strip_rendered_blocks(text)
    paragraphs = _GAP.split(stripped_text)
    gaps = [gap[0] for gap in _GAP.finditer(stripped_text)]
    is_rendered = _flag_transcript(paragraphs, speakers)
    if known:
        _flag_known_paragraphs(paragraphs, known, is_rendered)
    if not any(is_rendered):
        return stripped_text if stripped_text.strip() else ""
    kept_parts: list[str] = []
    for index, paragraph in enumerate(paragraphs):
        if is_rendered[index] or not paragraph.strip():
            continue
        if kept_parts:
            kept_parts.append("\n\n" if is_rendered[index - 1] else gaps[index - 1])
        kept_parts.append(paragraph)
    return "".join(kept_parts)


def _flag_transcript(paragraphs: list[str], speakers: Collection[str]) -> list[bool]:
    """Return for each paragraph whether it belongs to a transcript."""
    spoken_indexes = [
        index
        for index, paragraph in enumerate(paragraphs)
        if _QUOTED.match(paragraph) or _begins_with_speaker(paragraph, speakers)
    ]
    if not spoken_indexes:
        return [False] * len(paragraphs)
    first, last = spoken_indexes[0], spoken_indexes[-1]
    fences = sum(len(_FENCE.findall(paragraph)) for paragraph in paragraphs[first : last + 1])
    for following in paragraphs[last + 1 :]:
        # A code block without its end, or a paragraph that ends with a colon, goes on in the next paragraph.
        is_open = fences % 2 == 1 or paragraphs[last].rstrip().endswith(":")
        if not is_open and not _LIST.match(following):
            break
        last += 1
        fences += len(_FENCE.findall(following))
    return [first <= index <= last for index in range(len(paragraphs))]


def _begins_with_speaker(paragraph: str, speakers: Collection[str]) -> bool:
    """Return whether a paragraph begins with the name of a known speaker and a colon."""
    name, colon, _ = paragraph[:300].partition(": ")
    return bool(colon) and _DAY.sub("", name) in speakers


def _flag_known_paragraphs(paragraphs: list[str], known: Collection[str], is_rendered: list[bool]) -> None:
    """Set the flags in `is_rendered` of all paragraphs of known texts; a known text may have several paragraphs."""
    known_texts = {_normalize_gaps(content) for content in known}
    # Numbers of paragraphs of the known texts, by their first paragraph.
    sizes_by_first: dict[str, set[int]] = {}
    for content in known_texts:
        parts = _GAP.split(content)
        sizes_by_first.setdefault(parts[0], set()).add(len(parts))
    normalized = [_normalize_gaps(paragraph) for paragraph in paragraphs]
    for index, paragraph in enumerate(normalized):
        first = paragraph.removeprefix(_FACT)
        for size in sorted(sizes_by_first.get(first, ()), reverse=True):
            joined = "\n\n".join([first, *normalized[index + 1 : index + size]])
            if joined in known_texts:
                is_rendered[index : index + size] = [True] * size
                break


def _normalize_gaps(text: str) -> str:
    """Return a text with equal line ends and gaps, as copying and pasting may change them."""
    return _GAP.sub("\n\n", text.strip()).replace("\r\n", "\n")


#: Words that announce a marker when they start a line and a colon follows.
WORDS: Mapping[str, tuple[str, ...]] = {
    MarkerType.DECISION.value: ("Decision", "Decided", "Choosing", "Selected"),
    MarkerType.CONSTRAINT.value: ("Constraint", "Requirement", "Must", "Cannot", "Budget", "Limit"),
    MarkerType.FAILURE.value: ("Failed", "Error", "Didn't work", "Tried but"),
    MarkerType.GOAL.value: ("Goal", "Objective", "Task", "Need to"),
}

#: Default boosts; custom markers weigh `CUSTOM_WEIGHT`.
WEIGHTS: Mapping[str, float] = {"constraint": 0.4, "decision": 0.3, "goal": 0.3, "failure": 0.2}
CUSTOM_WEIGHT = 0.2


def line_start(words: Sequence[str]) -> str:
    """Return the pattern for any of the words at the start of a line, before a colon.

    List and emphasis signs of Markdown may stand around the word; an apostrophe may be typographic.
    """
    escaped = "|".join(re.escape(word).replace("'", "['\u2019]") for word in words)
    return rf"^[ \t>#*_-]*(?:{escaped})[*_]{{0,3}}:"


PATTERNS: Mapping[str, tuple[str, ...]] = {marker: (line_start(words),) for marker, words in WORDS.items()}
"""Regular expressions per marker, matched without regard to case at every line start."""


def freeze_patterns(patterns: Mapping[str, Sequence[str]]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return patterns as a hashable value for `detect_markers`."""
    frozen = tuple((marker, tuple(expressions)) for marker, expressions in patterns.items())
    return _DEFAULT if frozen == _DEFAULT else frozen


@lru_cache(maxsize=64)
def _compile_patterns(
    patterns: tuple[tuple[str, tuple[str, ...]], ...],
) -> tuple[tuple[str, re.Pattern[str]], ...]:
    return tuple(
        (
            marker,
            re.compile("|".join(f"(?:{pattern})" for pattern in expressions), re.IGNORECASE | re.MULTILINE),
        )
        for marker, expressions in patterns
        if expressions
    )


_DEFAULT = tuple((marker, tuple(found)) for marker, found in PATTERNS.items())


def detect_markers(
    content: str, patterns: tuple[tuple[str, tuple[str, ...]], ...] = _DEFAULT
) -> tuple[str, ...]:
    """Return the markers whose pattern matches a text, in the order of the patterns.

    The delimited blocks of `messages()` are not searched: they repeat earlier entries.
    """
    if patterns is _DEFAULT and ":" not in content:  # each default pattern ends with a colon
        return ()
    compiled = _compile_patterns(patterns)
    markers = tuple(marker for marker, pattern in compiled if pattern.search(content))
    if not markers:
        return ()
    stripped_text = strip_rendered_blocks(content)
    if stripped_text is content:
        return markers
    return tuple(marker for marker, pattern in compiled if pattern.search(stripped_text))


@lru_cache(maxsize=64)
def terms_of_markers(
    patterns: tuple[tuple[str, tuple[str, ...]], ...] = _DEFAULT,
) -> tuple[tuple[int, str], ...]:
    """Return (term, marker) for each term in the names and patterns of the markers, each once."""
    pairs: list[tuple[int, str]] = []
    for marker, expressions in patterns:
        literals = [_NO_WORDS.sub(" ", expression) for expression in expressions]
        words = split_words(" ".join([marker, *literals]))
        pairs += [(term, marker) for term in content_terms(words)]
    return tuple(dict.fromkeys(pairs))


_NO_WORDS = re.compile(r"\\.|\[[^\]]*\]")
"""Escapes and sets of a regular expression, which are no literal text."""


def sum_marker_weights(markers: Sequence[str], weights: Mapping[str, float] = WEIGHTS) -> float:
    """Return the sum of the weights of some markers."""
    return sum([weights.get(marker, CUSTOM_WEIGHT) for marker in markers]) if markers else 0
