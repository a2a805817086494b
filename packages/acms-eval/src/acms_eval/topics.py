"""Word lists: the topics of the evaluation's conversations, and their phrasings.

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

__all__ = ["SHIPPED", "Chain", "Domain", "Phrases", "Topic", "Use", "phrases", "phrases_of_seed"]

SHIPPED = ("software", "household", "practice")
"""The word lists that come with ACMS: a software project, a family at home, a doctor's practice."""

LEAST_VALUES = 5
"""Values that every topic needs: the first one, two that correct it, and two rivals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """One thing that is decided, in several phrasings.

    In a phrasing `{v}` is the value and `{old}` the one before; in noise `{a}` and `{b}` are values of others.
    """

    name: str
    subject: str
    attribute: str
    #: Values of one category; some are decided, one after the other, and noise names the others.
    values: tuple[str, ...]
    #: Whether a value is one keyword. If not, every word of it is one: of a person's name half is no answer.
    whole: bool = True
    #: The fact as a reflector would word it.
    content: str
    fact_type: str
    cardinality: Cardinality = "one"
    #: Statements with a marker at the start, and in plain conversation.
    marked: tuple[str, ...]
    plain: tuple[str, ...]
    #: Corrections; empty for a topic whose value does not change.
    corrected: tuple[str, ...] = ()
    corrected_plain: tuple[str, ...] = ()
    questions: tuple[str, ...]
    #: Questions that share hardly a word with `plain`, drawn in turn: every third one of ours shares none.
    indirect: tuple[str, ...] = ()
    #: Remarks of other people, hearsay and reading: near the attribute, and about another value.
    noise: tuple[str, ...]
    #: Remarks near the attribute that name no value at all.
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
    #: The attributes that are decided, step by step.
    steps: tuple[str, ...]
    #: Values that go together, one a step.
    options: tuple[tuple[str, ...], ...]
    #: Statements with a marker, for every step.
    said: tuple[tuple[str, ...], ...]
    #: The fact of every step as a reflector would word it.
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
    #: Beginnings that carry the marker of a fact type, by the type.
    announced: Mapping[str, tuple[str, ...]]
    #: Two questions as one, `{one}` and `{two}`.
    joins: tuple[str, ...]
    #: Sentences that are added to a fact to make it long.
    details: tuple[str, ...]
    #: Openings of a remark in passing.
    openers: tuple[str, ...]
    #: The assistant's replies to a fact, with or without its value.
    acknowledged: tuple[str, ...]
    #: The assistant's replies to a remark in passing, with or without the value that was named.
    replies: tuple[str, ...]
    #: Small talk of a user, and the assistant's replies to it.
    bland: tuple[str, ...]
    nods: tuple[str, ...]
    #: The name of the list in a report; the name of its file where the list has none.
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
        return _load_shipped(str(path or SHIPPED[0]))
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValidationError(f"cannot read the word list {path}: {error}", field="phrases") from error
    word_list = _parse_phrases(text)
    return word_list if word_list.name else replace(word_list, name=Path(path).stem)


def phrases_of_seed(lists: Phrases | Sequence[Phrases] | None, seed: int) -> Phrases | None:
    """Return the word list of a seed: the lists take turns, so that every list is used equally often."""
    if lists is None or isinstance(lists, Phrases):
        return lists
    return lists[seed % len(lists)] if lists else None


@cache
def _load_shipped(name: str) -> Phrases:
    return _parse_phrases((files("acms_eval") / "data" / f"{name}.json").read_text(encoding="utf-8"))


# ── what a file must hold ───────────────────────────────────────────────────────────────────────────────────────────

_SLOTS_BY_PHRASING: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
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
_ENTRY_TYPES: Mapping[str, type] = {
    "topics": Topic,
    "constraints": Topic,
    "failures": Topic,
    "goals": Topic,
    "domains": Domain,
    "chains": Chain,
    "uses": Use,
}
_MIN_ENTRIES: Mapping[str, int] = {
    # The number of entries that is enough for every scenario, by the name of a list.
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


def _parse_phrases(text: str) -> Phrases:
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValidationError(f"the word list is not JSON: {error}", field="phrases") from error
    word_list = cast("Phrases", _build_instance(Phrases, document, ""))
    _check_phrases(word_list)
    return word_list


def _build_instance(kind: type, parsed: Any, place: str) -> Any:
    """Return an instance of a dataclass read from JSON, every field of the right type."""
    where = place or "phrases"
    if not isinstance(parsed, dict):
        raise ValidationError("must be an object", field=where)
    document = cast("dict[str, Any]", parsed)
    fields_by_name: dict[str, Field[Any]] = {entry.name: entry for entry in fields(kind)}
    if missing := [
        name for name, entry in fields_by_name.items() if entry.default is MISSING and name not in document
    ]:
        raise ValidationError(f"lacks {', '.join(missing)}", field=where)
    if unknown := sorted(set(document) - set(fields_by_name)):
        raise ValidationError(f"has {', '.join(unknown)}, which a word list does not know", field=where)
    return kind(
        **{
            name: _parse_part(
                name, str(fields_by_name[name].type), value, f"{place}.{name}" if place else name
            )
            for name, value in document.items()
        }
    )


def _parse_part(name: str, annotation: str, value: Any, place: str) -> Any:
    """Return one field of a dataclass; `annotation` is its type as the dataclass writes it."""
    if annotation == "bool":
        if not isinstance(value, bool):
            raise ValidationError("must be true or false", field=place)
        return value
    if annotation == "Cardinality":
        if value not in ("one", "many"):
            raise ValidationError('must be "one" or "many"', field=place)
        return value
    if annotation == "str":
        return _parse_text(name, value, place)
    if annotation.startswith("Mapping"):
        if not isinstance(value, dict):
            raise ValidationError("must be an object", field=place)
        parts = cast("dict[str, Any]", value)
        return {
            key: _parse_part("", "tuple[str, ...]", entry, f"{place}.{key}") for key, entry in parts.items()
        }
    if not isinstance(value, list):
        raise ValidationError("must be a list", field=place)
    entries = cast("list[Any]", value)
    if len(entries) < _MIN_ENTRIES.get(name, 1):
        raise ValidationError(f"needs at least {_MIN_ENTRIES.get(name, 1)}, has {len(entries)}", field=place)
    places = [(entry, f"{place}[{index}]") for index, entry in enumerate(entries)]
    if name in _ENTRY_TYPES:
        return tuple(_build_instance(_ENTRY_TYPES[name], entry, entry_place) for entry, entry_place in places)
    if annotation.startswith("tuple[tuple"):
        return tuple(_parse_part("", "tuple[str, ...]", entry, entry_place) for entry, entry_place in places)
    return tuple(_parse_text(name, entry, entry_place) for entry, entry_place in places)


def _parse_text(name: str, value: Any, place: str) -> str:
    if not isinstance(value, str) or not (value.strip() or name == "openers"):
        raise ValidationError("must be a text that is not empty", field=place)
    if name in _SLOTS_BY_PHRASING:
        _check_slots(value, *_SLOTS_BY_PHRASING[name], place)
    return value


def _check_slots(text: str, needed: Sequence[str], allowed: Sequence[str], place: str) -> None:
    """Refuse a phrasing that lacks a slot, or has one that nothing is put into."""
    try:
        slots = {slot for _, slot, _, _ in Formatter().parse(text) if slot is not None}
    except ValueError as error:
        raise ValidationError(f"{text!r} is no phrasing: {error}", field=place) from error
    for slot in needed:
        if slot not in slots:
            raise ValidationError(f"{text!r} lacks {{{slot}}}", field=place)
    if unknown := sorted(slots - {*needed, *allowed}):
        raise ValidationError(f"{text!r} has a slot that nothing fills: {{{unknown[0]}}}", field=place)


# ── what must hold between the parts ────────────────────────────────────────────────────────────────────────────────


def _check_phrases(word_list: Phrases) -> None:
    topics = list(_iterate_topics(word_list))
    for place, topic in topics:
        _check_values(topic.values, LEAST_VALUES, place)
        for name, marked in (
            ("marked", True),
            ("corrected", True),
            ("plain", False),
            ("corrected_plain", False),
        ):
            _check_markers(getattr(topic, name), marked, f"{place}.{name}")
        if topic.fact_type not in word_list.announced:
            raise ValidationError(f"lacks {topic.fact_type}, which {place} is", field="announced")
    for kind, beginnings in word_list.announced.items():
        _check_markers(beginnings, True, f"announced.{kind}")
    _check_no_shared_words([(f"{place}.values", topic.values) for place, topic in topics])
    for index, domain in enumerate(word_list.domains):
        place = f"domains[{index}]"
        _check_values(domain.values, len(domain.uses) + 2, place)
        for use_index, use in enumerate(domain.uses):
            _check_markers(use.marked, True, f"{place}.uses[{use_index}].marked")
            _check_markers(use.plain, False, f"{place}.uses[{use_index}].plain")
    _check_no_shared_words(
        [(f"domains[{index}].values", domain.values) for index, domain in enumerate(word_list.domains)]
    )
    for index, chain in enumerate(word_list.chains):
        _check_chain(chain, f"chains[{index}]")
    _check_no_shared_words(
        [
            (f"chains[{index}].options, {chain.steps[step]}", [option[step] for option in chain.options])
            for index, chain in enumerate(word_list.chains)
            for step in range(len(chain.steps))
        ]
    )
    for name, min_topics in (("corrected", 8), ("indirect", 8), ("related", 5), ("echoes", 8)):
        topic_count = sum(bool(getattr(topic, name)) for topic in word_list.topics)
        if topic_count < min_topics:
            raise ValidationError(
                f"at least {min_topics} of them need {name}, {topic_count} have it", field="topics"
            )
    _check_no_value_named(word_list)


def _iterate_topics(word_list: Phrases) -> Iterator[tuple[str, Topic]]:
    for group in ("topics", "constraints", "failures", "goals"):
        for index, topic in enumerate(getattr(word_list, group)):
            yield f"{group}[{index}]", topic


def _check_values(values: Sequence[str], min_values: int, place: str) -> None:
    if len({value.casefold() for value in values}) < min_values:
        raise ValidationError(
            f"needs at least {min_values} different ones, has {len(values)}", field=f"{place}.values"
        )
    for one in values:
        for other in values:
            if one != other and carries(one, other):
                raise ValidationError(
                    f"{one!r} holds {other!r}, so nothing tells them apart", field=f"{place}.values"
                )


def _check_markers(texts: Sequence[str], marked: bool, place: str) -> None:
    for text in texts:
        if bool(detect_markers(text.replace("{v}", "x"))) != marked:
            problem = "must start with a marker" if marked else "must have no marker"
            raise ValidationError(f"{problem}: {text!r}", field=place)


def _value_words(value: str) -> set[str]:
    return {word.strip("$€£.,").casefold() for word in value.split()}


def _check_no_shared_words(groups: Sequence[tuple[str, Sequence[str]]]) -> None:
    """Refuse two topics whose values share a word: a keyword would be found in messages about the other topic."""
    owners: dict[str, str] = {}
    for place, values in groups:
        for word in sorted(set().union(*map(_value_words, values))):
            if owners.setdefault(word, place) != place:
                raise ValidationError(f"shares the word {word!r} with {owners[word]}", field=place)


def _check_chain(chain: Chain, place: str) -> None:
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
            _check_slots(text, numbers[step : step + 1], numbers[:step], f"{place}.said[{step}]")
        _check_slots(
            chain.contents[step], numbers[step : step + 1], numbers[:step], f"{place}.contents[{step}]"
        )
        _check_markers(chain.said[step], True, f"{place}.said[{step}]")


def _check_no_value_named(word_list: Phrases) -> None:
    """Refuse a statement or a question that names a value: recalling it would answer another probe by accident."""
    values = {value for topic in word_list.everything() for value in topic.values}
    values_by_first_word: dict[str, list[str]] = {}
    for value in values:
        values_by_first_word.setdefault(value.lstrip("$€£").split()[0].casefold(), []).append(
            value.lstrip("$€£")
        )
    for place, topic in _iterate_topics(word_list):
        for name in ("marked", "plain", "corrected", "corrected_plain", "questions", "indirect"):
            for index, text in enumerate(getattr(topic, name)):
                for word in {raw_word.strip("$€£.,;:!?()\"'").casefold() for raw_word in text.split()}:
                    for value in values_by_first_word.get(word, ()):
                        if carries(text, value):
                            raise ValidationError(
                                f"{text!r} names the value {value!r}", field=f"{place}.{name}[{index}]"
                            )
