"""Parse the answer of a model as a `Reflection`: lenient about the form, strict about the meaning.

The answer may stand in prose, in a fence, behind thoughts, with commas too many, or end too early: the first JSON value
that fits is read. Parts that cannot be understood are skipped and listed, never guessed; only an answer in which
nothing can be read is an error.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeAlias, cast

from acms.errors import ProviderError, ValidationError
from acms.knowledge import Action, Proposal, Reflection, Scope
from acms.ports import ReflectionRequest
from acms.text.date_phrases import parse_date_bound

DEFAULT_CONFIDENCE = 0.8
"""Default confidence, for a proposal that states none between 0 and 1."""

MAX_PROPOSALS = 200
"""Number of proposals of one answer that are read; more are the sign of a loop."""

MAX_CONTENT_CHARS = 800
"""Characters of a content: the 200 tokens that `ReflectionConfig.max_fact_tokens` allows by default."""
MAX_VALUE_CHARS = 200
"""Characters of a value: a few words, or a path."""

_LISTS = ("turns", "proposals", "facts", "actions")
_CONFIDENCE_OF_WORD = {"high": 0.9, "medium": 0.6, "low": 0.3}
_FIELDS = frozenset({"subject", "attribute", "fact_type", "confidence", "sources"})
_ACTIONS = frozenset({"add", "update", "remove", "keep"})
_CONTENT = 20_000  # characters; the rules decide which length is too long for a fact
_NAME = 200  # characters of a subject or an attribute
_VALUE = 2_000
_REASON = 500
_LISTED = 20  # parts that are listed one by one as unreadable
_LONGEST = 500_000  # characters of an answer that are read
_WORK = 10_000_000  # steps of the search for JSON values, which then gives up: some tenths of a second

_THOUGHTS = re.compile(r"\A.*</think(?:ing)?>", re.DOTALL | re.IGNORECASE)
_FENCED = re.compile(r"```[a-zA-Z]*[ \t]*\r?\n(.*?)(?:```|\Z)", re.DOTALL)
_OPENING = re.compile(r"[{\[]")
# a comma before a closing bracket, outside strings; one that is never closed reaches to the end
_COMMA = re.compile(r'("(?>(?:[^"\\]|\\(?:.|\Z))*)(?:"|\Z))|,(?=\s*[}\]])', re.DOTALL)
_WORD = re.compile(r"[a-z][a-z0-9_-]{0,31}\Z")
_NUMBER = re.compile(r"[0-9]{1,18}\Z")
_HANDLE = re.compile(r"[\[(#]?\s*(F[0-9]{1,6})\s*[\])]?\Z", re.IGNORECASE)
_UNSTORABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")

_Object: TypeAlias = Mapping[str, Any]


class _Answer(NamedTuple):
    """The readable parts of a model's answer."""

    #: The unparsed proposals; None if there is no place for proposals in it.
    proposals: list[Any] | None
    summary: str | None = None
    #: Problems of the answer as a whole.
    unreadable: Sequence[str] = ()


class _RepeatedField:
    """The different values of a field that a JSON object has more than once."""

    def __init__(self, *values: object) -> None:
        self.values = values


_ISO = re.compile(r"\d{4}-?\d\d")


def map_fact_handles(request: ReflectionRequest) -> dict[str, str]:
    """Return the ids of the known facts by their handles: "F1", "F2" and so on, which a model copies without errors."""
    return {f"F{number}": fact.id for number, fact in enumerate(request.facts, 1)}


def parse_reflection(text: str, request: ReflectionRequest, *, provider: str) -> Reflection:
    """Read an answer to a request. `ProviderError`, retryable, when nothing in it can be read."""
    answer = _find_answer(text[:_LONGEST])
    items, unreadable = answer.proposals, [*answer.unreadable]
    if items is None:
        raise ProviderError(
            "the model's answer contains no readable proposals",
            provider=provider,
            retryable=True,
            options=("try again", "use a larger model, or one with structured output"),
        )
    fact_of_handle = map_fact_handles(request)
    time_of_turn = {turn.version: turn.created_at for turn in request.turns}
    proposals: list[Proposal] = []
    for number, item in enumerate(items[:MAX_PROPOSALS], 1):
        try:
            proposals.append(_parse_proposal(item, fact_of_handle, time_of_turn))
        except ValidationError as error:
            unreadable.append(f"proposal {number}: {error}")
    if len(items) > MAX_PROPOSALS:
        unreadable.append(f"{len(items) - MAX_PROPOSALS} proposals beyond the first {MAX_PROPOSALS}")
    if len(unreadable) > _LISTED:
        unreadable[_LISTED:] = [f"{len(unreadable) - _LISTED} more"]
    return Reflection(proposals=tuple(proposals), summary=answer.summary, unreadable=tuple(unreadable))


def clean_text(text: str) -> str:
    """Return a text without characters that no store can keep, and without space around it."""
    return _UNSTORABLE.sub("", text).strip()


# ── finding the answer ──────────────────────────────────────────────────────────────────────────────────────────────


def _find_answer(text: str) -> _Answer:
    """Find the answer in a model's text.

    Code blocks are searched first, then the text without thoughts, then all of it; each as written, then with trailing
    commas removed. The first complete answer or list of proposals is returned. If there is neither, it is the largest
    number of loose proposals (JSON objects outside of a list) in one of these texts.
    """
    without_thoughts = _THOUGHTS.sub("", text)
    most_loose: list[Any] = []
    for candidate in dict.fromkeys([*_FENCED.findall(without_thoughts), without_thoughts, text]):
        if candidate.strip().lstrip("\ufeff") in ("[]", "{}"):  # a valid answer: there is nothing to propose
            return _Answer([])
        opening = _OPENING.search(candidate)
        if opening is None:
            continue
        as_written = candidate[opening.start() :]
        without_trailing_commas = _COMMA.sub(lambda match: match[1] or "", as_written)
        complete_list: list[Any] | None = None
        for variant in dict.fromkeys([as_written, without_trailing_commas]):
            loose: list[Any] = []
            for value in _iterate_json_values(variant):
                if _is_turn(value):
                    loose += _flatten_turns([value])
                    continue
                answer = _parse_answer(value)
                if answer is not None:
                    return answer
                if isinstance(value, list) and any(_is_proposal(item) for item in value):
                    complete_list = complete_list or cast("list[Any]", value)
                elif _is_proposal(value):
                    loose.append(value)
            most_loose = max(most_loose, loose, key=len)
        if complete_list is not None:
            return _Answer(complete_list)
    if not most_loose:
        return _Answer(None)
    return _Answer(
        most_loose,
        unreadable=["the answer is not one JSON value: the proposals that are whole were read"],
    )


def _parse_answer(value: Any) -> _Answer | None:
    """Parse an object that is an answer: it has a list of proposals, or wraps one that has."""
    # Some models wrap the answer in an object with a single field, such as {"result": …}.
    for _ in range(3):
        if not isinstance(value, dict) or any(name in value for name in _LISTS):
            break
        value = next(iter(value.values())) if len(value) == 1 else None
    if not isinstance(value, dict):
        return None
    fields = cast("_Object", value)
    name = next(name for name in _LISTS if name in fields)
    unreadable: list[str] = []
    items: list[Any] = []
    for field_value in _field_values(fields[name]):
        if isinstance(field_value, list):
            items += _flatten_turns(cast("list[Any]", field_value))
        elif _is_proposal(field_value):
            items.append(field_value)
        elif field_value is not None:
            unreadable.append(f"{name}: is no list")
    summary: str | None = None
    for field_value in _field_values(fields.get("summary")):
        if isinstance(field_value, str):
            summary = summary or clean_text(field_value) or None
        elif field_value is not None:
            unreadable.append("summary: is no text")
    return _Answer(items, summary, unreadable)


def _is_turn(value: Any) -> bool:
    """Return whether a value holds the facts of one turn: {"turn": 3, "facts": […]}."""
    return (
        isinstance(value, dict) and "turn" in value and isinstance(cast("_Object", value).get("facts"), list)
    )


def _flatten_turns(items: Sequence[Any]) -> list[Any]:
    """Return proposals in order, those of one turn with that as their source unless they cite others."""
    proposals: list[Any] = []
    for item in items:
        if not _is_turn(item):
            proposals.append(item)
            continue
        source = {"sources": [item["turn"]]}
        for fact in item["facts"]:
            proposals.append({**source, **fact} if isinstance(fact, dict) else fact)
    return proposals


def _field_values(value: Any) -> Sequence[Any]:
    return value.values if isinstance(value, _RepeatedField) else (value,)


def _is_proposal(value: Any) -> bool:
    """Return whether an object looks like a proposal, wherever it stands.

    "content" alone is not enough: a chat message such as {"role": …, "content": …} has it too.
    """
    return isinstance(value, dict) and (
        "action" in value or ("content" in value and bool(_FIELDS & set(value)))
    )


def _iterate_json_values(text: str) -> Iterator[Any]:
    """Yield every JSON object and list of a text that is not inside one yielded before.

    The work is bounded, because each bracket that is never closed makes the decoder read to the end of the text.
    """
    # `remaining_work` is the work that may still be done, roughly in characters.
    position, remaining_work = 0, _WORK
    while remaining_work > 0 and (opening := _OPENING.search(text, position)):
        start = opening.start()
        try:
            value, position = _DECODER.raw_decode(text, start)
        except json.JSONDecodeError as error:
            position = start + 1
            # The decoder read up to the error, and then counted the lines up to it.
            remaining_work -= 10 * (error.pos - start) + error.pos // 8 + 100
        except (RecursionError, ValueError):
            position = start + 1
            remaining_work -= 10_000
        else:
            yield value


def _collect_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values_by_name: dict[str, list[Any]] = {}
    for name, value in pairs:
        values_by_name.setdefault(name, []).append(value)
    return {
        name: values[-1] if all(value == values[0] for value in values[1:]) else _RepeatedField(*values)
        for name, values in values_by_name.items()
    }


def _parse_integer(digits: str) -> int | float:
    """Parse an integer; a very long one becomes a float, because Python limits the digits of an `int`."""
    return int(digits) if len(digits) <= 18 else float(digits)


# models often write line breaks inside a string
_DECODER = json.JSONDecoder(strict=False, object_pairs_hook=_collect_pairs, parse_int=_parse_integer)


# ── reading a proposal ──────────────────────────────────────────────────────────────────────────────────────────────


def _parse_proposal(
    item: Any, fact_of_handle: Mapping[str, str], time_of_turn: Mapping[int, datetime | None]
) -> Proposal:
    """Parse one proposal; raise `ValidationError` with the reason if its meaning is uncertain."""
    if not isinstance(item, dict):
        raise ValidationError("is not an object")
    fields = cast("_Object", item)
    if any(isinstance(value, _RepeatedField) for value in fields.values()):
        raise ValidationError("has two values for one field")
    fact_id = _parse_fact_id(_first_non_null(fields, "fact", "fact_id"), fact_of_handle)
    action = _parse_action(fields.get("action"), fact_id)
    content = _parse_text(fields.get("content"))
    subject = _parse_short_text(fields.get("subject"), _NAME)
    attribute = _parse_short_text(fields.get("attribute"), _NAME)
    if action in ("add", "update"):
        if not content:
            raise ValidationError("has no content")
        if len(content) > _CONTENT:
            raise ValidationError(f"has more than {_CONTENT} characters")
        if action == "update" and fact_id is not None and fact_id not in fact_of_handle.values():
            raise ValidationError("updates a fact that was not in the request")
        _check_not_cut(content, _parse_text(fields.get("value")))
    elif fact_id is None and not (subject or attribute):
        raise ValidationError(f"does not say which fact to {action}")
    sources = _parse_sources(fields.get("sources"), time_of_turn)
    valid_from, valid_to = _parse_validity(fields, sources, time_of_turn)
    cardinality = _normalize_word(fields.get("cardinality"))
    kind = _normalize_word(_first_non_null(fields, "fact_type", "type"))
    scope: Scope = "namespace" if _normalize_word(fields.get("scope")) == "namespace" else "session"
    return Proposal(
        action=action,
        content=content,
        subject=subject,
        attribute=attribute,
        value=_parse_short_text(fields.get("value"), _VALUE),
        cardinality=cardinality if cardinality in ("one", "many") else None,
        fact_type=kind if _WORD.match(kind) else "fact",
        confidence=_parse_confidence(fields.get("confidence")),
        negative=_parse_negative(fields),
        scope=scope,
        valid_from=valid_from,
        valid_to=valid_to,
        fact_id=fact_id,
        depends_on=_parse_dependencies(fields.get("depends_on"), fact_of_handle),
        sources=sources,
        reason=_parse_text(fields.get("reason"))[:_REASON],
    )


def _check_not_cut(content: str, value: str) -> None:
    """Raise `ValidationError` for a text of exactly the schema's maximum length: the server cut it there."""
    if len(content) == MAX_CONTENT_CHARS or len(value) == MAX_VALUE_CHARS:
        raise ValidationError("was cut at the length the schema allows")


def _parse_validity(
    fields: _Object, sources: Sequence[int], time_of_turn: Mapping[int, datetime | None]
) -> tuple[datetime | None, datetime | None]:
    """Return the first and last moment at which a fact is true, as far as they are stated and agree.

    Dates in words count from the time of the first source, or else of the newest turn.
    """
    versions = sources or tuple(time_of_turn)[::-1]
    spoken_at = time_of_turn[versions[0]] if versions else None
    valid_from = _parse_datetime(fields.get("valid_from"), spoken_at)
    valid_to = _parse_datetime(fields.get("valid_to"), spoken_at, end=True)
    if valid_from and valid_to and valid_to < valid_from:  # at least one is wrong, and which one is unknown
        return None, None
    return valid_from, valid_to


def _first_non_null(fields: _Object, *names: str) -> Any:
    return next((fields[name] for name in names if fields.get(name) is not None), None)


def _parse_action(value: Any, fact_id: str | None) -> Action:
    """Return the action; without one it is "add" unless the proposal names a fact."""
    word = _normalize_word(value)
    if word in _ACTIONS:
        return cast("Action", word)
    if value is None or value == "":
        if fact_id is None:
            return "add"
        raise ValidationError("names a fact without an action")
    raise ValidationError(f"unknown action {word!r}" if _WORD.match(word) else "unknown action")


def _parse_text(value: Any) -> str:
    """Return a cleaned text or the digits of a number; "" for any other value."""
    if isinstance(value, str):
        return clean_text(value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return repr(value) if is_number else ""


def _parse_short_text(value: Any, max_chars: int) -> str:
    """Return a text, or "" if it is too long: a shortened name or value would be a different one."""
    text = _parse_text(value)
    return text if len(text) <= max_chars else ""


def _normalize_word(value: Any) -> str:
    return "_".join(clean_text(value).casefold().split()) if isinstance(value, str) else ""


def _parse_fact_id(value: Any, names: Mapping[str, str]) -> str | None:
    """Return the id of a handle; an unknown name is kept, so that the rules report it."""
    if isinstance(value, int) and not isinstance(value, bool):  # "F" was left out
        value = f"F{value}"
    if not isinstance(value, str):
        return None
    name = clean_text(value)
    handle = _HANDLE.match(name)
    if handle:
        name = f"F{int(handle[1][1:])}"
        return names.get(name, name)
    if name in names.values():
        return name
    return name[:_NAME] or None


def _parse_dependencies(value: Any, names: Mapping[str, str]) -> tuple[str, ...]:
    """Return the ids of the known facts that are named, once each; unknown names are skipped."""
    names_given = cast("list[Any]", value) if isinstance(value, list) else [value]
    known_ids = set(names.values())
    ids = [_parse_fact_id(name_given, names) for name_given in names_given]
    return tuple(dict.fromkeys([id for id in ids if id is not None and id in known_ids]))


def _parse_confidence(value: Any) -> float:
    """Return a confidence from a number, a percentage or a word; the default for anything else."""
    if isinstance(value, str):
        word = _normalize_word(value)
        if word in _CONFIDENCE_OF_WORD:
            return _CONFIDENCE_OF_WORD[word]
        try:
            value = float(word[:-1]) / 100 if word.endswith("%") else float(word)
        except ValueError:
            return DEFAULT_CONFIDENCE
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        return DEFAULT_CONFIDENCE
    return float(value)


def _parse_negative(fields: _Object) -> bool:
    """Return whether a proposal denies something, in any of the forms that models use."""
    value = fields.get("negative")
    if isinstance(value, str):
        return _normalize_word(value) in ("true", "yes")
    if value is None:
        return _normalize_word(fields.get("polarity")) == "negative"
    return value is True or (value == 1 and not isinstance(value, list | dict))


def _parse_datetime(value: Any, spoken_at: datetime | None, *, end: bool = False) -> datetime | None:
    """Return a time in UTC from ISO 8601 or from a date in words; None for other texts.

    Dates in words, such as "next Friday", count from the time `spoken_at`.
    """
    if not isinstance(value, str):
        return None
    text = clean_text(value)
    bound = None if spoken_at is None else parse_date_bound(value, spoken_at, end=end)
    if bound is not None and not _ISO.match(text):
        return bound
    try:
        moment = datetime.fromisoformat(text)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _parse_sources(value: Any, versions: Mapping[int, object]) -> tuple[int, ...]:
    """Return the versions that a model cites, each once; numbers that were not in its request are ignored."""
    cited_versions: dict[int, None] = {}  # keeps their order
    for citation in cast("list[Any]", value) if isinstance(value, list) else [value]:
        number = citation
        if isinstance(citation, str):
            digits = clean_text(citation).strip("[]()#").lower().removeprefix("v").strip()
            number = int(digits) if _NUMBER.match(digits) else None
        if isinstance(number, int | float) and not isinstance(number, bool) and number in versions:
            cited_versions[int(number)] = None
    return tuple(cited_versions)
