"""Build the prompt of a reflection: turns and known facts as data, delimited so that they cannot be anything else.

A turn begins at the left margin and everything else of it is indented; a fact is one line. So no text can close the
block it is in, nor pass for another turn, whatever it contains.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, cast

from acms.knowledge import Fact
from acms.ports import ReflectionRequest, Turn
from acms.prompt_types import escape_tags
from acms.providers.reflection_parser import MAX_CONTENT_CHARS, MAX_VALUE_CHARS, clean_text, map_fact_handles
from acms.text.date_phrases import find_periods
from acms.text.tokenizer import split_words

NAME_CHARS = 80
"""Characters of a subject or an attribute: a few words."""
DATE_CHARS = 25
"""Characters of an ISO 8601 time with its zone."""
GRAMMAR = 1_900
"""Repetitions a bound may allow: llama.cpp refuses a grammar with 2,000 and more, so a longer summary has no bound."""
_CHARS_PER_TOKEN = 4
"""Characters of a token, about: a summary that keeps to its tokens fits."""

_PLACE = re.compile(r"\{\{(\w+)\}\}")
_BLOCKS = ("known_facts", "turns")
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_INDENT = "    "
_SPEAKER = 64  # characters of a name
_BOUNDS = ("minItems", "maxItems", "maxLength")


def answer_schema(request: ReflectionRequest) -> dict[str, object]:
    """Return the JSON schema of an answer to one request: for each turn the facts it states, and a summary.

    Asked for one list, a small model stops after the first fact it finds, and cites any turn. Asked turn by turn, it
    reads all of them, and its citations are right.

    The versions of turns and the handles of known facts are enumerations; lists and texts are bounded. Fields that
    could only be empty are left out: those that change a known fact if there is none, and those for a period of
    validity if no turn names a day or a number. All fields are required and there are no unions, so the strict mode of
    every vendor accepts the schema; `without_bounds` is for servers that accept no bounds.
    """
    versions = [turn.version for turn in request.turns]
    handles = list(map_fact_handles(request))
    properties: dict[str, object] = {
        "content": _text_schema(MAX_CONTENT_CHARS),
        "subject": _text_schema(NAME_CHARS),
        "attribute": _text_schema(NAME_CHARS),
        "value": _text_schema(MAX_VALUE_CHARS),
    }
    if handles:
        properties["action"] = _one_of("add", "update", "remove", "keep")
        properties["fact"] = _one_of("", *handles)
    properties |= {
        "fact_type": _one_of("fact", "decision", "constraint", "failure", "goal", "preference", "event"),
        "cardinality": _one_of("one", "many"),
        "negative": {"type": "boolean"},
        "confidence": {"type": "number"},
        "scope": _one_of("session", "namespace"),
    }
    if any(map(_may_name_a_day, request.turns)):
        properties |= {"valid_from": _text_schema(DATE_CHARS), "valid_to": _text_schema(DATE_CHARS)}
    if handles:
        properties["depends_on"] = _list_of(_one_of(*handles), len(handles))
    facts = _list_of(_object_schema(properties), _most_facts(request))
    turn = _object_schema({"turn": {"type": "integer", "enum": versions}, "facts": facts})
    turns = {**_list_of(turn, len(versions)), "minItems": len(versions)}
    return _object_schema(
        {"turns": turns, "summary": _text_schema(request.max_summary_tokens * _CHARS_PER_TOKEN)}
    )


def without_bounds(schema: Any) -> Any:
    """Return a schema without the maximum lengths of its texts and lists, which some strict modes refuse."""
    if isinstance(schema, Mapping):
        fields = cast("Mapping[str, Any]", schema)
        return {name: without_bounds(value) for name, value in fields.items() if name not in _BOUNDS}
    return schema


def _may_name_a_day(turn: Turn) -> bool:
    spoken_at = turn.created_at or datetime.now(UTC)
    return any(char.isnumeric() for char in turn.text) or bool(find_periods(turn.text, spoken_at))


def _most_facts(request: ReflectionRequest) -> int:
    """Return the most facts that one turn can state: a fact takes two words at least."""
    longest = max((len(split_words(turn.text)) for turn in request.turns), default=0)
    return min(request.max_facts + len(request.facts), max(1, longest // 2))


def _object_schema(properties: Mapping[str, object]) -> dict[str, object]:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }


def _list_of(items: Mapping[str, object], max_items: int) -> dict[str, object]:
    return {"type": "array", "items": dict(items), "maxItems": max_items}


def _one_of(*choices: str) -> dict[str, object]:
    return {"type": "string", "enum": list(choices)}


def _text_schema(max_chars: int) -> dict[str, object]:
    return {"type": "string", "maxLength": max_chars} if max_chars <= GRAMMAR else {"type": "string"}


def build_reflection_prompt(template: str, request: ReflectionRequest) -> tuple[str, str]:
    """Return (system, prompt) for a request: the parts of a template above and below its `---`, filled in."""
    system, _, prompt = template.partition("\n---\n")
    values = {
        "facts": "\n".join(_format_fact(number, fact) for number, fact in enumerate(request.facts, 1))
        or "(none)",
        "turns": "\n".join(map(_format_turn, request.turns)),
        "summary_tokens": str(request.max_summary_tokens),
    }
    return system.strip(), _PLACE.sub(lambda place: values[place[1]], prompt).strip()


def _format_turn(turn: Turn) -> str:
    """Return a turn as lines of the prompt: version, speaker, origin and time, then the indented text."""
    speaker = re.sub(r"[\[\]():<>]", "", " ".join(clean_text(turn.speaker).split()))[:_SPEAKER] or "unknown"
    time_text = ""
    if turn.created_at is not None:
        time_text = f" {_DAYS[turn.created_at.weekday()]} {turn.created_at:%Y-%m-%d %H:%M}"
    text = f"\n{_INDENT}".join(_escape_blocks(turn.text).splitlines())
    return f"[{turn.version}] {speaker} ({turn.origin.value}){time_text}: {text}"


def _format_fact(number: int, fact: Fact) -> str:
    """Return a known fact as a line of the prompt: its handle, such as F2, and its fields as JSON."""
    fields: dict[str, object] = {"content": fact.content}
    fields |= {name: getattr(fact, name) for name in ("subject", "attribute", "value") if getattr(fact, name)}
    fields["cardinality"] = fact.cardinality
    if fact.scope != "session":
        fields["scope"] = fact.scope
    if fact.valid_from is not None:
        fields["valid_from"] = f"{fact.valid_from:%Y-%m-%d}"
    if fact.valid_to is not None:
        fields["valid_to"] = f"{fact.valid_to:%Y-%m-%d}"
    if fact.doubt is not None:
        fields["in_doubt"] = True
    line = json.dumps(fields, ensure_ascii=False)
    return f"F{number} {' '.join(_escape_blocks(line).split())}"


def _escape_blocks(text: str) -> str:
    """Escape the tags of the prompt's blocks in a text, so that the text cannot close its block."""
    return escape_tags(clean_text(text), _BLOCKS)
