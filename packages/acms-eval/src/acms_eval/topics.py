"""What conversations of the evaluation are about, and how it is said: word lists.

Three come with ACMS, in `acms_eval/data/`; all their texts were written for ACMS. Scenarios take all that is said and
asked from a word list and a seed: facts, values, corrections, noise and small talk. Another list is a file of the same
format, which docs/how-to/evaluate.md describes; it is checked before anything is written from it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, replace
from functools import cache
from importlib.resources import files
from os import PathLike
from pathlib import Path
from string import Formatter
from typing import Any, cast

from acms.errors import ValidationError
from acms.knowledge import Cardinality
from acms.text.markers import detect_markers
from acms_eval.metrics import carries

__all__ = ["SHIPPED", "Chain", "Domain", "Phrases", "Topic", "Use", "drawn", "phrases"]

SHIPPED = ("software", "household", "practice")
"""The word lists that come with ACMS: a software project, a family at home, a doctor's practice."""

LEAST_VALUES = 5
"""Of a topic: what holds first, two that correct it, and two rivals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """One thing that is decided, in several phrasings.

    In a phrasing `{v}` is the value and `{old}` the one before; in noise `{a}` and `{b}` are values of others.
    """

    name: str
    subject: str
    attribute: str
    #: Of one category; some are decided, one after the other, the rest is named by noise.
    values: tuple[str, ...]
    #: A value is one keyword; else every word of it is, as of a name, of which half is no answer.
    whole: bool = True
    #: As a reflector would word it.
    content: str
    fact_type: str
    cardinality: Cardinality = "one"
    #: With a marker at the start.
    marked: tuple[str, ...]
    plain: tuple[str, ...]
    #: Empty for what does not change.
    corrected: tuple[str, ...] = ()
    corrected_plain: tuple[str, ...] = ()
    questions: tuple[str, ...]
    #: Questions that share hardly a word with `plain`, drawn in turn: every third one of ours shares none.
    indirect: tuple[str, ...] = ()
    #: Of other people, hearsay and reading: near the attribute, and about another value.
    noise: tuple[str, ...]
    #: Near the attribute, about no value at all.
    related: tuple[str, ...] = ()
    #: Hearsay that names the value itself, and does not say that it was decided.
    echoes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """One of several things of a domain that are decided apart."""

    name: str
    content: str
    marked: tuple[str, ...]
    plain: tuple[str, ...]
    questions: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """Things that take their values from one category, so that they are easily confused."""

    name: str
    subject: str
    #: At least two more than there are uses.
    values: tuple[str, ...]
    uses: tuple[Use, ...]
    noise: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Decisions of which each follows from the one before; `{0}` stands for the first value."""

    name: str
    subject: str
    #: What is decided, step by step.
    steps: tuple[str, ...]
    #: Values that go together, one a step.
    options: tuple[tuple[str, ...], ...]
    #: Of every step: how it is said, with a marker.
    said: tuple[tuple[str, ...], ...]
    #: Of every step: as a reflector would word it.
    contents: tuple[str, ...]
    questions: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Phrases:
    """Everything that scenarios are written from."""

    topics: tuple[Topic, ...]
    constraints: tuple[Topic, ...]
    failures: tuple[Topic, ...]
    goals: tuple[Topic, ...]
    domains: tuple[Domain, ...]
    chains: tuple[Chain, ...]
    #: Corrections of any topic: `{what}` is its attribute, `{v}` the new value, `{old}` the one before.
    cues: tuple[str, ...]
    #: Of every fact type: beginnings that carry its marker.
    announced: Mapping[str, tuple[str, ...]]
    #: Two questions as one, `{one}` and `{two}`.
    joins: tuple[str, ...]
    #: What is added to a fact to make it long.
    details: tuple[str, ...]
    #: What may stand before a remark in passing.
    openers: tuple[str, ...]
    #: What the assistant says to a fact, with or without its value.
    acknowledged: tuple[str, ...]
    #: What it says to a remark in passing, with or without the value that was named.
    replies: tuple[str, ...]
    #: What a user says about nothing in particular, and what an assistant says to it.
    bland: tuple[str, ...]
    nods: tuple[str, ...]
    #: As a report calls the list; that of its file where it has none.
    name: str = ""

    def everything(self) -> tuple[Topic, ...]:
        """Return the topics of every kind."""
        return self.topics + self.constraints + self.failures + self.goals


def phrases(path: str | PathLike[str] | None = None) -> Phrases:
    """Return the word list of a file, or one of `SHIPPED` by its name; by default the first of these.

    A file that cannot be read, or from which no scenario could be written, raises a `ValidationError` whose field
    names the place, such as "topics[3].noise".
    """
    if path is None or path in SHIPPED:
        return _shipped(str(path or SHIPPED[0]))
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValidationError(f"cannot read the word list {path}: {error}", field="phrases") from error
    found = _parsed(text)
    return found if found.name else replace(found, name=Path(path).stem)


def drawn(lists: Phrases | Sequence[Phrases] | None, seed: int) -> Phrases | None:
    """Return the word list that a seed takes of some: they take turns."""
    if lists is None or isinstance(lists, Phrases):
        return lists
    return lists[seed % len(lists)] if lists else None


@cache
def _shipped(name: str) -> Phrases:
    return _parsed((files("acms_eval") / "data" / f"{name}.json").read_text(encoding="utf-8"))


# ── what a file must hold ───────────────────────────────────────────────────────────────────────────────────────────

_SLOTS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    # Phrasing: slots it must have, slots it may have.
    "content": (("v",), ()),
    "marked": (("v",), ()),
    "plain": (("v",), ()),
    "corrected": (("v",), ("old",)),
    "corrected_plain": (("v",), ("old",)),
    "questions": ((), ()),
    "indirect": ((), ()),
    "noise": ((), ("a", "b")),
    "related": ((), ()),
    "echoes": (("v",), ("a",)),
    "cues": (("v", "what"), ("old",)),
    "joins": (("one", "two"), ()),
    "acknowledged": ((), ("v",)),
    "replies": ((), ("a",)),
}
_KINDS: Mapping[str, type] = {
    "topics": Topic,
    "constraints": Topic,
    "failures": Topic,
    "goals": Topic,
    "domains": Domain,
    "chains": Chain,
    "uses": Use,
}
_LEAST: Mapping[str, int] = {
    # Of a list: entries that every scenario finds enough.
    "topics": 20,
    "constraints": 4,
    "failures": 4,
    "goals": 4,
    "domains": 2,
    "chains": 2,
    "uses": 2,
    "options": 1,
    "openers": 0,
    "corrected": 0,
    "corrected_plain": 0,
    "indirect": 0,
    "related": 0,
    "echoes": 0,
}


def _parsed(text: str) -> Phrases:
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValidationError(f"the word list is not JSON: {error}", field="phrases") from error
    found = cast("Phrases", _built(Phrases, document, ""))
    _check(found)
    return found


def _built(kind: type, found: Any, place: str) -> Any:
    """Return a noun read from JSON, every part of the right type."""
    where = place or "phrases"
    if not isinstance(found, dict):
        raise ValidationError("must be an object", field=where)
    document = cast("dict[str, Any]", found)
    known: dict[str, Field[Any]] = {one.name: one for one in fields(kind)}
    if missing := [name for name, one in known.items() if one.default is MISSING and name not in document]:
        raise ValidationError(f"lacks {', '.join(missing)}", field=where)
    if unknown := sorted(set(document) - set(known)):
        raise ValidationError(f"has {', '.join(unknown)}, which a word list does not know", field=where)
    return kind(
        **{
            name: _part(name, str(known[name].type), value, f"{place}.{name}" if place else name)
            for name, value in document.items()
        }
    )


def _part(name: str, annotation: str, value: Any, place: str) -> Any:
    """Return one part of a noun: `annotation` is its type as it is written there."""
    if annotation == "bool":
        if not isinstance(value, bool):
            raise ValidationError("must be true or false", field=place)
        return value
    if annotation == "Cardinality":
        if value not in ("one", "many"):
            raise ValidationError('must be "one" or "many"', field=place)
        return value
    if annotation == "str":
        return _text(name, value, place)
    if annotation.startswith("Mapping"):
        if not isinstance(value, dict):
            raise ValidationError("must be an object", field=place)
        parts = cast("dict[str, Any]", value)
        return {key: _part("", "tuple[str, ...]", one, f"{place}.{key}") for key, one in parts.items()}
    if not isinstance(value, list):
        raise ValidationError("must be a list", field=place)
    entries = cast("list[Any]", value)
    if len(entries) < _LEAST.get(name, 1):
        raise ValidationError(f"needs at least {_LEAST.get(name, 1)}, has {len(entries)}", field=place)
    places = [(one, f"{place}[{index}]") for index, one in enumerate(entries)]
    if name in _KINDS:
        return tuple(_built(_KINDS[name], one, at) for one, at in places)
    if annotation.startswith("tuple[tuple"):
        return tuple(_part("", "tuple[str, ...]", one, at) for one, at in places)
    return tuple(_text(name, one, at) for one, at in places)


def _text(name: str, value: Any, place: str) -> str:
    if not isinstance(value, str) or not (value.strip() or name == "openers"):
        raise ValidationError("must be a text that is not empty", field=place)
    if name in _SLOTS:
        _slots(value, *_SLOTS[name], place)
    return value


def _slots(text: str, needed: Sequence[str], allowed: Sequence[str], place: str) -> None:
    """Refuse a phrasing that lacks a slot, or has one that nothing is put into."""
    try:
        found = {slot for _, slot, _, _ in Formatter().parse(text) if slot is not None}
    except ValueError as error:
        raise ValidationError(f"{text!r} is no phrasing: {error}", field=place) from error
    for slot in needed:
        if slot not in found:
            raise ValidationError(f"{text!r} lacks {{{slot}}}", field=place)
    if unknown := sorted(found - {*needed, *allowed}):
        raise ValidationError(f"{text!r} has a slot that nothing fills: {{{unknown[0]}}}", field=place)


# ── what must hold between the parts ────────────────────────────────────────────────────────────────────────────────


def _check(found: Phrases) -> None:
    topics = list(_topics(found))
    for place, topic in topics:
        _values(topic.values, LEAST_VALUES, place)
        for name, marked in (
            ("marked", True),
            ("corrected", True),
            ("plain", False),
            ("corrected_plain", False),
        ):
            _marked(getattr(topic, name), marked, f"{place}.{name}")
        if topic.fact_type not in found.announced:
            raise ValidationError(f"lacks {topic.fact_type}, which {place} is", field="announced")
    for kind, beginnings in found.announced.items():
        _marked(beginnings, True, f"announced.{kind}")
    _apart([(f"{place}.values", topic.values) for place, topic in topics])
    for index, domain in enumerate(found.domains):
        place = f"domains[{index}]"
        _values(domain.values, len(domain.uses) + 2, place)
        for at, use in enumerate(domain.uses):
            _marked(use.marked, True, f"{place}.uses[{at}].marked")
            _marked(use.plain, False, f"{place}.uses[{at}].plain")
    _apart([(f"domains[{index}].values", domain.values) for index, domain in enumerate(found.domains)])
    for index, chain in enumerate(found.chains):
        _chain(chain, f"chains[{index}]")
    _apart(
        [
            (f"chains[{index}].options, {chain.steps[step]}", [option[step] for option in chain.options])
            for index, chain in enumerate(found.chains)
            for step in range(len(chain.steps))
        ]
    )
    for name, least in (("corrected", 8), ("indirect", 8), ("related", 5), ("echoes", 8)):
        having = sum(bool(getattr(topic, name)) for topic in found.topics)
        if having < least:
            raise ValidationError(f"at least {least} of them need {name}, {having} have it", field="topics")
    _named(found)


def _topics(found: Phrases) -> Iterator[tuple[str, Topic]]:
    for group in ("topics", "constraints", "failures", "goals"):
        for index, topic in enumerate(getattr(found, group)):
            yield f"{group}[{index}]", topic


def _values(values: Sequence[str], least: int, place: str) -> None:
    if len({value.casefold() for value in values}) < least:
        raise ValidationError(
            f"needs at least {least} different ones, has {len(values)}", field=f"{place}.values"
        )
    for one in values:
        for other in values:
            if one != other and carries(one, other):
                raise ValidationError(
                    f"{one!r} holds {other!r}, so nothing tells them apart", field=f"{place}.values"
                )


def _marked(texts: Sequence[str], marked: bool, place: str) -> None:
    for text in texts:
        if bool(detect_markers(text.replace("{v}", "x"))) != marked:
            problem = "must start with a marker" if marked else "must have no marker"
            raise ValidationError(f"{problem}: {text!r}", field=place)


def _words(value: str) -> set[str]:
    return {word.strip("$€£.,").casefold() for word in value.split()}


def _apart(groups: Sequence[tuple[str, Sequence[str]]]) -> None:
    """Refuse two topics whose values share a word: a keyword would be found in what is said about the other."""
    owners: dict[str, str] = {}
    for place, values in groups:
        for word in sorted(set().union(*map(_words, values))):
            if owners.setdefault(word, place) != place:
                raise ValidationError(f"shares the word {word!r} with {owners[word]}", field=place)


def _chain(chain: Chain, place: str) -> None:
    steps = len(chain.steps)
    if steps < 2:
        raise ValidationError("needs at least two", field=f"{place}.steps")
    for name in ("said", "contents", "questions"):
        if len(getattr(chain, name)) != steps:
            raise ValidationError(f"must have {steps}, one a step", field=f"{place}.{name}")
    for index, option in enumerate(chain.options):
        if len(option) != steps:
            raise ValidationError(f"must have {steps} values, one a step", field=f"{place}.options[{index}]")
    numbers = [str(step) for step in range(steps)]
    for step in range(steps):
        for text in chain.said[step]:
            _slots(text, numbers[step : step + 1], numbers[:step], f"{place}.said[{step}]")
        _slots(chain.contents[step], numbers[step : step + 1], numbers[:step], f"{place}.contents[{step}]")
        _marked(chain.said[step], True, f"{place}.said[{step}]")


def _named(found: Phrases) -> None:
    """Refuse a statement or a question that names a value: it would give answers, or be one, all by itself."""
    values = {value for topic in found.everything() for value in topic.values}
    first: dict[str, list[str]] = {}
    for value in values:
        first.setdefault(value.lstrip("$€£").split()[0].casefold(), []).append(value.lstrip("$€£"))
    for place, topic in _topics(found):
        for name in ("marked", "plain", "corrected", "corrected_plain", "questions", "indirect"):
            for index, text in enumerate(getattr(topic, name)):
                for word in {part.strip("$€£.,;:!?()\"'").casefold() for part in text.split()}:
                    for value in first.get(word, ()):
                        if carries(text, value):
                            raise ValidationError(
                                f"{text!r} names the value {value!r}", field=f"{place}.{name}[{index}]"
                            )
