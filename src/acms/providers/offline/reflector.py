"""The reflector that needs no model: it finds marked lines, and which of them supersede earlier ones.

A marked line becomes a fact in its own words, whatever its language. Nothing else does: without a model, an unmarked
sentence cannot be distinguished from a guess, an example or a quotation.

A line supersedes an earlier one in three cases: it has the same subject and attribute; it names the old value ("from
Flask to", "instead of Flask") or the new one ("switching to cookies") and exactly one fact is named beside it; or it
repeats the earlier line with another number or weekday at the end. A line that only mentions an earlier one builds on
it. In doubt both stay: a fact that was retired by mistake is worse than one too many.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from acms.knowledge import Cardinality, Fact, Proposal, Reflection
from acms.log.facts import normalize_address
from acms.log.validity import Period
from acms.model import MarkerType, Origin
from acms.ports import Turn
from acms.text.date_phrases import (
    AHEAD_PATTERN,
    DatedStatement,
    extract_validity,
    is_weekday,
    parse_future_period,
)
from acms.text.markers import WORDS, detect_markers, line_start
from acms.text.tokenizer import compute_idf, content_term, find_sentence_spans, searchable_terms, split_words

if TYPE_CHECKING:
    from acms.ports import ReflectionRequest


MARKED = 0.95
"""The confidence of a fact that a marker announces, such as "Decision:" at the start of a line."""
PROJECT = "project"
"""Subject of facts that belong to no particular person."""
DOCUMENT = 800
"""Characters from which on a text is a document: labels in its lists are headings, and its sentences illustrate."""
LONGEST = 600
"""Characters of a fact, at most: whole sentences from the first one on."""
BELOW = 16
"""Lines below a label that may belong to it."""

_LABELS = {marker: re.compile(line_start(words), re.IGNORECASE) for marker, words in WORDS.items()}
_MORE = re.compile(r"[,;:?!(–—]|\. |\b(?:because|but|so|weil|porque|parce)\b", re.IGNORECASE)
_LABEL = re.compile(r"[ \t>#*_-]*[^\W\d][\w'’-]*+(?: [\w'’-]++){0,2}[*_]{0,3}[:：]")
_OPENING = re.compile(r"[^,:.!?]{1,40}[,:] ")
_EDGES = " \t>#*_-:："

UNREAL = re.compile(
    r"\b(?:not|never|against|if|may|might|could|would|should|nicht|wenn|si|pas)\b|n['’]t\b|[不没若]|如果",
    re.IGNORECASE,
)
"""Words of denied or hypothetical statements, which change nothing."""

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
_IS = r"(?:is|are|will be|becomes?|ist|sind|wird|werden|es|será|est|sera|是)"
_MINE = r"(?P<mine>(?i:my|meine?|mi|mon|ma|我的))"
_USING = r"(?i:(?:we(?:['’]ll|['’]re| will)? )?us(?:e|ing)) (?P<value>\S+(?: \S+){0,4}?)"
_OURS = r"(?i:our|the|unsere?|nuestr[ao]|notre)"

#: Beginnings of a marked line that give its fact an address, and how many values that address holds.
_ADDRESSES: tuple[tuple[Cardinality, re.Pattern[str]], ...] = (
    ("one", re.compile(rf"(?:{_MINE} |{_OURS} )?{_ABOUT} {_IS} (?:(?:a|an|the) )?{_VALUE}")),
    ("one", re.compile(rf"(?:{_MINE} |{_OURS} )?{_ABOUT} {_IS} (?P<value>(?i:{AHEAD_PATTERN})){_BREAK}")),
    ("one", re.compile(rf"(?:{_OURS} )?(?P<attribute>(?P<thing>{_PHRASE}) (?:is|are) \w+ (?:with|by)) {_VALUE}")),
    ("one", re.compile(rf"{_NAME} is (?:our|{_MINE}) {_ABOUT}{_BREAK}")),
    ("one", re.compile(rf"{_USING} as (?:(?:the|our|an?) )?{_ABOUT}{_BREAK}")),
    ("many", re.compile(rf"{_USING} for (?:(?:the|our) )?{_ABOUT}{_BREAK}")),
)  # fmt: skip


def find_statements(turn: Turn) -> list[Proposal]:
    """Return the marked lines of a turn, in order."""
    # Other texts only quote such lines.
    if turn.origin not in (Origin.USER, Origin.ASSISTANT) or turn.summary:
        return []
    return list(_find_marked_lines(turn))


# ── marked lines ────────────────────────────────────────────────────────────────────────────────────────────────────


def _find_marked_lines(turn: Turn) -> Iterator[Proposal]:
    """Yield the facts of lines that begin with a marker.

    A marker of the turn that its text does not show was given by the caller: it applies to the first line with a label,
    or else to the beginning of the text.
    """
    lines = _lines_outside_code(turn.text)
    # In a long document of others, a marker behind a bullet or quote sign may be quoted.
    formatted = turn.origin is Origin.USER or len(turn.text) < DOCUMENT
    for number, line in enumerate(lines):
        marker = _marker_of_line(line)
        if marker is not None and (formatted or line[0].isalpha()):
            yield from _propose_fact(turn, marker, line, lines[number + 1 : number + BELOW])
    announced = detect_markers(turn.text)
    given_marker = next((marker for marker in turn.markers if marker not in announced), None)
    if given_marker is None:
        return
    labelled = next((number for number, line in enumerate(lines) if _LABEL.match(line)), None)
    if labelled is None:
        yield from _propose_fact(turn, given_marker, "", lines[:BELOW])
    else:
        yield from _propose_fact(turn, given_marker, lines[labelled], lines[labelled + 1 : labelled + BELOW])


def _marker_of_line(line: str) -> str | None:
    """Return the marker that the label of a line announces."""
    return next((name for name, label in _LABELS.items() if label.match(line)), None)


def _lines_outside_code(text: str) -> list[str]:
    """Return the lines of a text without those of code blocks."""
    lines: list[str] = []
    in_code_block = False
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            in_code_block = not in_code_block
        elif not in_code_block:
            lines.append(line)
    return lines


def _propose_fact(turn: Turn, marker: str, line: str, following_lines: list[str]) -> Iterator[Proposal]:
    """Yield a marked line as a fact; a label without a text announces the paragraph below it.

    A label that is the name of the marker is dropped, since the type of the fact states it too; other labels, such as
    "Cannot:" or "Budget:", are part of the content.
    """
    label = _LABEL.match(line)
    statement = _take_leading_sentences(line[label.end() :] if label else line)
    if not statement or statement.endswith(":"):
        paragraph = _read_paragraph(following_lines)
        text = " ".join([statement, *paragraph]) if statement else "\n".join(paragraph)
        statement = _take_leading_sentences(text)
    if not statement:
        return
    name = label[0].strip(_EDGES) if label else ""
    repeats_type = name.casefold() == marker.casefold() and len(statement.split()) > 2
    timed = _extract_period(statement, turn)
    proposal = Proposal(
        content=f"{name}: {statement}" if name and not repeats_type else statement,
        subject=PROJECT,
        attribute=marker,
        value=statement,
        cardinality="many",
        fact_type=marker,
        confidence=MARKED,
        valid_from=timed.period.start,
        valid_to=timed.period.end,
        sources=(turn.version,),
        reason="marked",
    )
    opening = _OPENING.match(timed.text)
    start = opening.end() if opening and not UNREAL.search(opening[0]) else 0
    for cardinality, shape in _ADDRESSES:
        match = shape.match(timed.text) or shape.match(timed.text, start)
        if match and _names_something(match["thing"]):
            yield _apply_address(proposal, match, turn, cardinality)
            return
    yield proposal


def _read_paragraph(lines: list[str]) -> list[str]:
    """Return the lines of the first paragraph, up to the next marked line."""
    paragraph: list[str] = []
    for line in lines:
        if _marker_of_line(line) is not None or (paragraph and not line.strip()):
            break
        if line.strip():
            paragraph.append(line.strip())
    return paragraph


def _take_leading_sentences(text: str) -> str:
    """Return the sentences a text begins with, as many as a fact may have, without the questions among them."""
    text = text.strip(" \t*_")
    sentences = ""
    for start, end in find_sentence_spans(text):
        if len(sentences) + end - start > LONGEST:
            break
        if not text[start:end].rstrip("\"')] \t\n").endswith(("?", "？")):
            sentences += text[start:end]
    return " ".join(sentences.split())


def _extract_period(statement: str, turn: Turn) -> DatedStatement:
    """Split a statement into its text and the period in which it is true, which the result has apart.

    The statement stays whole, without a period, if it says more than one thing, or is denied or hypothetical: then it
    is not certain what the date is about.
    """
    if turn.created_at is None or UNREAL.search(statement) or _MORE.search(statement.rstrip(" .!")):
        return DatedStatement(statement, Period())
    return extract_validity(statement, turn.created_at)


# ── addresses ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _apply_address(
    proposal: Proposal, match: re.Match[str], turn: Turn, cardinality: Cardinality
) -> Proposal:
    """Return a fact at the address that its words name; a value on a future day is valid until that day is over."""
    parts = match.groupdict()
    day = None if turn.created_at is None else parse_future_period(parts["value"] or "", turn.created_at)
    if day is not None and proposal.valid_to is None:
        proposal = replace(proposal, valid_to=day.end)
    return replace(
        proposal,
        subject=turn.speaker if parts.get("mine") else PROJECT,
        attribute=parts["attribute"],
        value=(parts["value"] or "").strip(" .!\"'`*_"),
        cardinality=cardinality,
    )


def _names_something(phrase: str | None) -> bool:
    """Return whether every word of a phrase has content, apart from joining words inside; "it" or "this" has none."""
    words = (phrase or "").lower().split()
    return all(
        content_term(word) or (word in _JOINTS and 0 < place < len(words) - 1)
        for place, word in enumerate(words)
    )


_JOINTS = ("of", "for", "the", "in", "and")
"""Words that may join the others of a noun phrase."""


RIVALS = 200
"""Number of the newest facts that a line may replace: twice as many as are active by default."""
TAIL = 3
"""Words from the one that differs to the end of a line, at most: "10 working days"."""
VALUE = 6
"""Words of a value, at most."""

_MOVES = r"(?:switch|mov|migrat|chang|wechsel|cambi|pass)\w*"
_TAKES = r"(?:replac|ersetz|reemplaz|remplac)\w*"
_FROM, _TO = r"(?:from|von|vom|de)", r"(?:to|with|by|auf|zu|durch|a|por|con|à|par)"
_AWAY = r"(?:instead of|rather than|no longer|statt|nicht mehr|en vez de|ya no|au lieu de)"
_DROPS = r"(?:drop|scrap|abandon|forget|streich|verwerf|vergiss|descart|olvid|oubli)\w*"
_INSIDE = r"(?:[^,;:.(–—]|[,.](?=\d))"
_OLD, _NEW = rf"(?P<old>{_INSIDE}{{1,60}}?)", rf"(?P<new>{_INSIDE}{{1,60}})"
#: Words that state the old value, and often the new one. Words of change in five languages, as data: nothing else
#: tells "switching to cookies, JWT was too complex" from "since we chose Python, we take SQLAlchemy".
_GOES = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"\b{_MOVES} (?:\S+ ){{0,3}}?{_FROM} {_OLD} {_TO} {_NEW}",
        rf"\b{_TAKES} {_OLD} {_TO} {_NEW}",
        rf"^(?P<new>{_INSIDE}{{1,60}}?) (?:will )?{_TAKES} (?P<old>(?:[^\s,;:.(–—]+ ?){{1,4}})",
        rf"\btak\w+ over {_FROM} (?P<old>(?:[^\s,;:.(–—]+ ?){{1,4}})",
        rf"\b(?:{_AWAY}|{_DROPS}) (?P<old>(?:[^\s,;:.(–—]+ ?){{1,4}})",
        r"(?:^|[,;:] )(?P<old>(?:[^\s,;:.(–—]+ ){1,4})(?:is|are|ist|sind) (?:out|raus)\b",
        rf", (?:not|nicht|no|pas) (?P<old>(?-i:[A-ZÀ-Þ\d$€£]){_INSIDE}{{0,60}})",
        r"[从把将]\s*(?P<old>\S{1,20}?)\s*(?:换成|改成|改用)\s*(?P<new>[^\s，。；]+)",
        r"(?:不再用|代替)\s*(?P<old>[^\s，。；]+)",
    )
)
#: Words that state only the new value.
_COMES = re.compile(rf"\b{_MOVES} {_TO} {_NEW}|(?:换成|改成|改用)\s*(?P<then>[^\s，。；]+)", re.IGNORECASE)
_INSTEAD = re.compile(rf"\b(?:instead|stattdessen|{_AWAY})\b|不再|改用", re.IGNORECASE)
_DIGIT = re.compile(r"\d")
_CAPITAL = re.compile(r"\w*[A-ZÀ-Þ\d]\w*")
_SENTENCE = re.compile(r"[.!?]\s+")

Known = Fact | Proposal
"""An active fact, or a proposal from an earlier line of the same request."""


def reconcile_statements(statements: Sequence[Proposal], facts: Sequence[Fact]) -> list[Proposal]:
    """Return statements as changes to the known facts, in the order in which they apply.

    A statement that replaces a fact, or an earlier statement, becomes its update; repeated contents are left out.
    """
    known_facts: list[Known] = list(facts)
    contents = {_normalize_text(fact.content) for fact in facts if fact.doubt is None}
    changes: list[Proposal] = []
    for statement in statements:
        content = _normalize_text(statement.content)
        if content in contents:
            continue
        contents.add(content)
        change = statement
        predecessor, value = _find_predecessor(statement, known_facts[-RIVALS:])
        if predecessor is not None:
            known_facts.remove(predecessor)
            contents.discard(_normalize_text(predecessor.content))
            change = _make_successor(statement, predecessor, value)
            names_fact = change.fact_id is not None
            # A proposal has no id yet that its successor could name, so it is removed by a change of its own.
            if (
                isinstance(predecessor, Proposal)
                and not names_fact
                and not _supersedes_by_address(change, predecessor)
            ):
                removal = replace(predecessor, action="remove", sources=change.sources, reason="no longer so")
                changes.append(removal)
        changes.append(change)
        known_facts.append(change)
    return changes


def _make_successor(statement: Proposal, predecessor: Known, value: str) -> Proposal:
    """Return a statement as the update of the fact that it replaces.

    `attribute == fact_type` means that a statement has no address of its own: then it takes over the old one.
    """
    if statement.attribute == statement.fact_type and predecessor.attribute not in (
        "",
        predecessor.fact_type,
    ):
        statement = replace(
            statement,
            subject=predecessor.subject,
            attribute=predecessor.attribute,
            value=value or statement.value,
            cardinality=predecessor.cardinality,
        )
    elif statement.attribute == statement.fact_type and value:
        statement = replace(statement, value=value)
    id = predecessor.id if isinstance(predecessor, Fact) else predecessor.fact_id
    return replace(statement, action="update", fact_id=id) if id else statement


def _supersedes_by_address(newer: Proposal, older: Known) -> bool:
    """Whether a fact takes the place of another one because their address holds one value."""
    same_address = normalize_address(newer.subject, newer.attribute) == normalize_address(
        older.subject, older.attribute
    )
    return same_address and older.cardinality == "one"


def _find_predecessor(statement: Proposal, known_facts: Sequence[Known]) -> tuple[Known | None, str]:
    """Return the fact that a marked line replaces, or None, and the new value if the line states it.

    Tried in turn: the one fact at its address if it says "instead"; the one that differs only in a value; the one
    that it announces as changed ("from X to Y").
    """
    # A failure stays a failure.
    if statement.confidence < MARKED or statement.fact_type == MarkerType.FAILURE:
        return None, ""
    rivals = [rival for rival in known_facts if rival.fact_type in (statement.fact_type, "fact")]
    if statement.attribute != statement.fact_type and _INSTEAD.search(statement.content):
        address = normalize_address(statement.subject, statement.attribute)
        same_address = [
            rival for rival in rivals if normalize_address(rival.subject, rival.attribute) == address
        ]
        if len(same_address) == 1:
            return same_address[0], ""
    same_type = [rival for rival in rivals if rival.fact_type == statement.fact_type]
    with_other_value = [rival for rival in same_type if _changes_only_value(statement.content, rival.content)]
    if len(with_other_value) == 1:
        return with_other_value[0], ""
    return _find_announced_predecessor(list(_find_announced_changes(statement.content)), rivals)


def _find_announced_predecessor(
    announced: Sequence[tuple[frozenset[int], frozenset[int], str]], rivals: Sequence[Known]
) -> tuple[Known | None, str]:
    """Return the one fact that an announced change names best as the old value, and the new value."""
    if not announced:
        return None, ""
    terms_of_rivals = [(rival, _extract_terms(f"{rival.content} {rival.value}")) for rival in rivals]
    frequencies = Counter(term for _, terms in terms_of_rivals for term in terms)
    for old_terms, sufficient_terms, value in announced:
        by_weight: dict[float, list[Known]] = {}
        for rival, terms in terms_of_rivals:
            shared = old_terms & terms
            # One sufficient term names the old value, as does more than half of all terms.
            if shared & sufficient_terms or 2 * len(shared) > len(old_terms):
                weights = [compute_idf(len(rivals), frequencies[term]) for term in sorted(shared)]
                by_weight.setdefault(sum(weights), []).append(rival)
        best = _select_premises(by_weight[max(by_weight)]) if by_weight else ()
        if len(best) == 1:
            return best[0], value
    return None, ""


def _changes_only_value(newer: str, older: str) -> bool:
    """Whether two lines differ only in the number or weekday near their end."""
    new_words = newer.casefold().rstrip(" .!").split()
    old_words = older.casefold().rstrip(" .!").split()
    if len(new_words) != len(old_words):
        return False
    pairs = list(zip(new_words, old_words, strict=True))
    first_difference = next(
        (index for index, (new_word, old_word) in enumerate(pairs) if new_word != old_word), len(pairs)
    )
    tail = pairs[first_difference:]
    # The first two words must be equal: they say what the line is about.
    if first_difference < 2 or not 1 <= len(tail) <= TAIL:
        return False
    if all(word.isdecimal() for word in tail[-1]):
        return False  # "milestone 2" names another thing than "milestone 1"
    differing = [word for new_word, old_word in tail if new_word != old_word for word in (new_word, old_word)]
    shared = [new_word for new_word, old_word in tail if new_word == old_word]
    return all(map(_is_value, differing)) and not any(map(_is_value, shared))


def _is_value(word: str) -> bool:
    return is_weekday(word) or _DIGIT.search(word) is not None


def _select_premises(rivals: Sequence[Known]) -> Sequence[Known]:
    """Return the facts that depend on none of the others: a changed choice is meant, not its consequences."""
    ids = {rival.id for rival in rivals if isinstance(rival, Fact)}
    return [rival for rival in rivals if not isinstance(rival, Fact) or ids.isdisjoint(rival.depends_on)]


def _find_announced_changes(content: str) -> Iterator[tuple[frozenset[int], frozenset[int], str]]:
    """Yield for each announced change the terms of the old value, those of which one suffices, and the new value."""
    for pattern in _GOES:
        for match in pattern.finditer(content):
            if _is_asserted(content, match):
                old_value = match["old"]
                yield (
                    _extract_terms(old_value),
                    _extract_terms(" ".join(_CAPITAL.findall(old_value))),
                    _extract_new_value(match),
                )
    # Only the new value is given: the rest of the line names the old one.
    for match in _COMES.finditer(content):
        if _is_asserted(content, match):
            other_words = f"{content[: match.start()]} {content[match.end() :]}"
            names = [
                word
                for word in _CAPITAL.findall(other_words)
                if not (word.istitle() and content.startswith(word))
            ]
            if names:
                name_terms = _extract_terms(" ".join(names))
                yield name_terms, name_terms, _extract_new_value(match)
            else:
                yield _extract_terms(other_words), frozenset[int](), _extract_new_value(match)


def _is_asserted(content: str, match: re.Match[str]) -> bool:
    """Return whether words of change are neither denied nor hypothetical."""
    return not UNREAL.search(_SENTENCE.split(content[: match.start()])[-1])


def _extract_new_value(match: re.Match[str]) -> str:
    """Return the new value, "" if it is not stated or is no value."""
    parts = match.groupdict()
    value = (parts.get("new") or parts.get("then") or "").strip(" \"'`*_")
    if name := NAME.match(value):  # "Spanner for the orders": the purpose is not part of the value
        return name["value"]
    return value if len(value.split()) <= VALUE else ""


def _normalize_text(text: str) -> str:
    """Return a text without differences in case and spaces."""
    return " ".join(text.casefold().split())


@lru_cache(maxsize=1024)
def _extract_terms(text: str) -> frozenset[int]:
    """Return the search terms of a text, or none if it has only stop words."""
    return frozenset(searchable_terms(text) if any(map(content_term, split_words(text))) else ())


__all__ = ["OfflineReflector"]

_LONG = 100_000  # letters, about 40 ms


class OfflineReflector:
    """Finds facts by rules: every line that a marker announces, in its own words.

    A marked line ("Decision: …", "Constraint: …", "Goal: …", "Tried but: …") is a fact in any language. A later marked
    line supersedes the fact whose subject and attribute it has, or that it names as gone ("switching from Flask to
    FastAPI"); in doubt both stay. Dates state the period in which it is valid ("until March", "the deadline is next
    Friday"), see `acms.text.date_phrases`. The same turns and facts give the same proposals. Needs no network; much
    text is read in a worker thread. It writes no summary, so the extractive one stands.

    Nothing unmarked becomes a fact: use a model for that, or `ACMS.state`.
    """

    #: Names the recipe: another one finds other facts.
    model: str = "offline5"

    async def reflect(self, request: ReflectionRequest) -> Reflection:
        """Return the statements of the turns, as changes to the active facts."""
        if sum(len(turn.text) for turn in request.turns) > _LONG:
            return await asyncio.to_thread(_reflect_turns, request)
        statements: list[Proposal] = []
        for turn in request.turns:
            statements += find_statements(turn)
            await asyncio.sleep(0)  # this runs on the event loop: let other tasks run after each message
        return Reflection(proposals=tuple(reconcile_statements(statements, request.facts)))


def _reflect_turns(request: ReflectionRequest) -> Reflection:
    statements = [statement for turn in request.turns for statement in find_statements(turn)]
    return Reflection(proposals=tuple(reconcile_statements(statements, request.facts)))
