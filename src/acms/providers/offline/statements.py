"""Statements: the lines of a message that a marker announces, and short sentences of a closed set of shapes.

A marked line becomes a fact in its own words, whatever its language. An unmarked sentence is read only from a user,
only whole, and only where all of it has one of the shapes: a question, a guess, a condition, a report of what others do
and everything that begins or goes on otherwise has none of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from acms.knowledge import Cardinality, Proposal
from acms.model import Origin
from acms.ports import Turn
from acms.text.chunks import spans
from acms.text.markers import WORDS, detect, line_start
from acms.text.tokenizer import term

MARKED, PLAIN = 0.95, 0.8
"""How sure a fact is: what a marker announces, and what has the shape of a plain statement."""
PROJECT = "project"
"""Subject of what belongs to nobody in particular."""
DOCUMENT = 800
"""Characters from which on a text is a document: labels in its lists are headings, and its sentences illustrate."""
LONGEST = 600
"""Characters of a fact, at most: whole sentences from the first one on."""
BELOW = 16
"""Lines below a label that may belong to it."""
SENTENCE = 12
"""Words of a plain sentence, at most."""

_LABELS = {marker: re.compile(line_start(words), re.IGNORECASE) for marker, words in WORDS.items()}
_LABEL = re.compile(r"[ \t>#*_-]*[^\W\d][\w'’-]*+(?: [\w'’-]++){0,2}[*_]{0,3}[:：]")
_OPENING = re.compile(r"[^,:.!?]{1,40}[,:] ")
_EDGES = " \t>#*_-:："

UNREAL = re.compile(
    r"\b(?:not|never|against|if|may|might|could|would|should|nicht|wenn|si|pas)\b|n['’]t\b|[不没若]|如果",
    re.IGNORECASE,
)
"""What is denied or only thought of: it changes nothing."""

_PHRASE = r"[^\W\d_][\w-]*(?: [\w-]+){0,4}?"
_ABOUT = rf"(?P<attribute>(?P<thing>{_PHRASE}))"
_BREAK = r"(?=$|[,;:!?(–—]|\.(?:\s|$)| - | (?:because|but|so|now|instead)\b)"
_WORD = r"(?:[A-ZÀ-Þ][\w.+#/&'’-]*|[$€£]?\d[\w.,:/%-]*)"
#: A name ("Bank of America") or an amount ("12 people").
_NAME = (
    rf"(?P<value>{_WORD}(?: (?:(?:of|de|and) )?{_WORD}){{0,4}}|[$€£]?\d[\w.,:/%-]*(?: [a-z]{{2,12}}){{1,2}})"
)
NAME = re.compile(_NAME)
_VALUE = rf"(?P<value>[A-ZÀ-Þ\d$€£][^,;:!?(–—]*?){_BREAK}"
_IS = r"(?:is|are|ist|sind|es|est|是)"
_MINE = r"(?P<mine>(?i:my|meine?|mi|mon|ma|我的))"
_WHAT = r"(?P<what>[a-z]+(?: [a-z]+){0,3})"
_USING = r"(?i:(?:we(?:['’]ll|['’]re| will)? )?us(?:e|ing)) (?P<value>\S+(?: \S+){0,4}?)"
_OURS = r"(?i:our|the|unsere?|nuestr[ao]|notre)"

#: What a marked line may begin with that gives its fact an address, and how many values that holds.
_ADDRESSES: tuple[tuple[Cardinality, re.Pattern[str]], ...] = (
    ("one", re.compile(rf"(?:{_MINE} |{_OURS} )?{_ABOUT} {_IS} (?:(?:a|an|the) )?{_VALUE}")),
    ("one", re.compile(rf"(?:{_OURS} )?(?P<attribute>(?P<thing>{_PHRASE}) (?:is|are) \w+ (?:with|by)) {_VALUE}")),
    ("one", re.compile(rf"{_NAME} is (?:our|{_MINE}) {_ABOUT}{_BREAK}")),
    ("one", re.compile(rf"{_USING} as (?:(?:the|our|an?) )?{_ABOUT}{_BREAK}")),
    ("many", re.compile(rf"{_USING} for (?:(?:the|our) )?{_ABOUT}{_BREAK}")),
)  # fmt: skip
#: The shapes of a plain sentence.
_SHAPES: tuple[tuple[str, Cardinality, re.Pattern[str]], ...] = (
    ("is", "one", re.compile(rf"(?:{_MINE}|{_OURS}) {_ABOUT} {_IS} {_NAME}")),
    ("use as", "one", re.compile(rf"[Ww]e use {_NAME} as (?:(?:the|our) )?{_ABOUT}")),
    ("use for", "many", re.compile(rf"[Ww]e use {_NAME} for (?:(?:the|our) )?{_ABOUT}")),
    ("live", "one", re.compile(rf"(?P<mine>I) (?P<verb>(?:live|work|study) (?:in|at|for)) {_NAME}")),
    ("am", "many", re.compile(rf"(?P<mine>I(?:['’]m| am)) (?P<verb>from|allergic to) (?:{_NAME}|{_WHAT})")),
)  # fmt: skip


def statements(turn: Turn) -> list[Proposal]:
    """Return what a turn states, in order: its marked lines, or else its plain sentences."""
    if turn.origin not in (Origin.USER, Origin.ASSISTANT) or turn.summary:
        return []
    found = list(_marked(turn))
    if not found and turn.origin is Origin.USER and len(turn.text) < DOCUMENT:
        found = list(_plain(turn))
    return found


# ── marked lines ────────────────────────────────────────────────────────────────────────────────────────────────────


def _marked(turn: Turn) -> Iterator[Proposal]:
    """Yield the lines that a marker announces; for one that the words do not tell, its line is looked for."""
    lines = _lines(turn.text)
    formatted = turn.origin is Origin.USER or len(turn.text) < DOCUMENT
    for number, line in enumerate(lines):
        marker = _marker(line)
        if marker is not None and (formatted or line[0].isalpha()):
            yield from _fact(turn, marker, line, lines[number + 1 : number + BELOW])
    announced = detect(turn.text)
    given = next((marker for marker in turn.markers if marker not in announced), None)
    if given is not None:
        labelled = next((number for number, line in enumerate(lines) if _LABEL.match(line)), None)
        if labelled is not None:
            yield from _fact(turn, given, lines[labelled], lines[labelled + 1 : labelled + BELOW])
        else:
            yield from _fact(turn, given, "", lines[:BELOW])


def _marker(line: str) -> str | None:
    """Return the marker that the label of a line announces."""
    return next((name for name, label in _LABELS.items() if label.match(line)), None)


def _lines(text: str) -> list[str]:
    """Return the lines of a text without those of code blocks."""
    found: list[str] = []
    fenced = False
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            found.append(line)
    return found


def _fact(turn: Turn, marker: str, line: str, below: list[str]) -> Iterator[Proposal]:
    """Yield a marked line as a fact; a label without a text announces the paragraph below it.

    The label goes where it is the name of the marker, which the type of the fact says too; "Cannot:" or "Budget:" is
    part of what is said.
    """
    label = _LABEL.match(line)
    said = _sentences(line[label.end() :] if label else line)
    if not said or said.endswith(":"):
        paragraph: list[str] = []
        for more in below:
            if _marker(more) is not None:
                break
            if more.strip():
                paragraph.append(more.strip())
            elif paragraph:
                break
        said = _sentences(" ".join([said, *paragraph]) if said else "\n".join(paragraph))
    if not said:
        return
    name = label[0].strip(_EDGES) if label else ""
    bare = not name or (name.casefold() == marker.casefold() and len(said.split()) > 2)
    marked = Proposal(
        content=said if bare else f"{name}: {said}",
        subject=PROJECT,
        attribute=marker,
        value=said,
        cardinality="many",
        fact_type=marker,
        confidence=MARKED,
        sources=(turn.version,),
        reason="marked",
    )
    opening = _OPENING.match(said)
    start = opening.end() if opening and not UNREAL.search(opening[0]) else 0
    for cardinality, shape in _ADDRESSES:
        match = shape.match(said) or shape.match(said, start)
        if match and _names_something(match["thing"]):
            yield _addressed(marked, match, turn, cardinality)
            return
    yield marked


def _sentences(text: str) -> str:
    """Return the sentences a text begins with, as many as a fact may have, without the questions among them."""
    text = text.strip(" \t*_")
    found = ""
    for start, end in spans(text):
        if len(found) + end - start > LONGEST:
            break
        if not text[start:end].rstrip("\"')] \t\n").endswith(("?", "？")):
            found += text[start:end]
    return " ".join(found.split())


# ── plain sentences ─────────────────────────────────────────────────────────────────────────────────────────────────


def _plain(turn: Turn) -> Iterator[Proposal]:
    """Yield the sentences that have one of the shapes from their first word to their last."""
    for line in _lines(turn.text):
        for start, end in spans(line):
            said = line[start:end].strip()
            bare = said.rstrip(".!")
            if len(bare.split()) > SENTENCE:
                continue
            for name, cardinality, shape in _SHAPES:
                match = shape.fullmatch(bare)
                if match and _names_something(match.groupdict().get("thing")):
                    told = turn.speaker != turn.origin.value and "mine" in match.groupdict() and match["mine"]
                    stated = Proposal(
                        content=f"{turn.speaker}: {said}" if told else said,
                        confidence=PLAIN,
                        sources=(turn.version,),
                        reason=f"plain: {name}",
                    )
                    yield _addressed(stated, match, turn, cardinality)
                    break


# ── addresses ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _addressed(stated: Proposal, match: re.Match[str], turn: Turn, cardinality: Cardinality) -> Proposal:
    """Return a fact at the address that its words name."""
    parts = match.groupdict()
    return replace(
        stated,
        subject=turn.speaker if parts.get("mine") else PROJECT,
        attribute=parts.get("attribute") or match["verb"],
        value=(parts["value"] or parts.get("what") or "").strip(" .!\"'`*_"),
        cardinality=cardinality,
    )


def _names_something(phrase: str | None) -> bool:
    """Whether a phrase, if there is one, names what is spoken of: no pronoun, and nothing that only points."""
    words = (phrase or "").lower().split()
    return all(
        term(word) or (word in _JOINTS and 0 < place < len(words) - 1) for place, word in enumerate(words)
    )


_JOINTS = ("of", "for", "the", "in", "and")
"""Words that may join the others of a noun phrase."""
