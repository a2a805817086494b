"""What a model is asked when it reflects: turns and known facts as data that cannot leave their place.

A turn begins at the left margin and everything else of it is indented; a fact is one line. So no text can close the
block it is in, nor pass for another turn, whatever it says.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from acms.knowledge import Fact
from acms.ports import ReflectionRequest, Turn
from acms.prompt_types import escape_tags
from acms.providers.reflection_parser import cleaned

#: The JSON schema of an answer: nothing optional, no unions, so that every vendor's strict mode takes it.
SCHEMA: Mapping[str, object] = {
    "type": "object",
    "properties": {
        "proposals": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "reason": {"type": "string"},
                    "sources": {"type": "array", "items": {"type": "integer"}},
                    "action": {"type": "string", "enum": ["add", "update", "remove", "keep"]},
                    "fact": {"type": "string"},
                    "content": {"type": "string"},
                    "subject": {"type": "string"},
                    "attribute": {"type": "string"},
                    "value": {"type": "string"},
                    "cardinality": {"type": "string", "enum": ["one", "many"]},
                    "fact_type": {"type": "string"},
                    "confidence": {"type": "number"},
                    "negative": {"type": "boolean"},
                    "scope": {"type": "string", "enum": ["session", "namespace"]},
                    "valid_from": {"type": "string"},
                    "valid_to": {"type": "string"},
                    "depends_on": {"type": "array", "items": {"type": "string"}},
                },
                "required": [
                    "reason", "sources", "action", "fact", "content", "subject", "attribute", "value",
                    "cardinality", "fact_type", "confidence", "negative", "scope", "valid_from", "valid_to",
                    "depends_on",
                ],
                "additionalProperties": False,
            },
        },
        "summary": {"type": "string"},
    },
    "required": ["proposals", "summary"],
    "additionalProperties": False,
}  # fmt: skip

_PLACE = re.compile(r"\{\{(\w+)\}\}")
_BLOCKS = ("known_facts", "turns")
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_INDENT = "    "
_SPEAKER = 64  # characters of a name


def question(template: str, request: ReflectionRequest) -> tuple[str, str]:
    """Return (system, prompt) for a request: what stands above and below the `---` of a template, filled in."""
    system, _, prompt = template.partition("\n---\n")
    values = {
        "facts": "\n".join(_fact(number, fact) for number, fact in enumerate(request.facts, 1)) or "(none)",
        "turns": "\n".join(map(_turn, request.turns)),
        "summary_tokens": str(request.max_summary_tokens),
    }
    return system.strip(), _PLACE.sub(lambda place: values[place[1]], prompt).strip()


def _turn(turn: Turn) -> str:
    speaker = re.sub(r"[\[\]():<>]", "", " ".join(cleaned(turn.speaker).split()))[:_SPEAKER] or "unknown"
    when = ""
    if turn.created_at is not None:
        when = f" {_DAYS[turn.created_at.weekday()]} {turn.created_at:%Y-%m-%d %H:%M}"
    text = f"\n{_INDENT}".join(_safe(turn.text).splitlines())
    return f"[{turn.version}] {speaker} ({turn.origin.value}){when}: {text}"


def _fact(number: int, fact: Fact) -> str:
    shown: dict[str, object] = {"content": fact.content}
    shown |= {name: getattr(fact, name) for name in ("subject", "attribute", "value") if getattr(fact, name)}
    shown["cardinality"] = fact.cardinality
    if fact.scope != "session":
        shown["scope"] = fact.scope
    if fact.valid_from is not None:
        shown["valid_from"] = f"{fact.valid_from:%Y-%m-%d}"
    if fact.valid_to is not None:
        shown["valid_to"] = f"{fact.valid_to:%Y-%m-%d}"
    if fact.doubt is not None:
        shown["in_doubt"] = True
    line = json.dumps(shown, ensure_ascii=False)
    return f"F{number} {' '.join(_safe(line).split())}"


def _safe(text: str) -> str:
    """Return a text in which the marks around the blocks are no marks."""
    return escape_tags(cleaned(text), _BLOCKS)
