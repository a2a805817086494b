"""A request as the log of renders keeps it, and as it reads later.

Text written by the caller, the system text and the tools are kept as they were sent, in the privacy mode of the
session; text of the log is kept by reference. So the request can be written again word for word, and erasing an entry
leaves no trace of it: erasing in the session's own fork tree deletes the kept requests, and of text from other trees
only references are kept, surrounded only by our own framing text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from hashlib import sha256
from typing import Any, NamedTuple

from acms.errors import ACMSError
from acms.log.encoding import parse_entry_id
from acms.model import Entry, Json, Privacy, Role
from acms.privacy.stage import Stage
from acms.prompt.manifest import Manifest, Quote, Segment, Sent, Whole, Written
from acms.prompt.manifest_writer import ACTOR, fingerprint_message, hash_payload, revive_message
from acms.prompt_types import SEPARATOR, PromptMessage, Tool
from acms.text.chat_messages import EXCERPTS, MORE_EXCERPTS, ORPHAN, RECALLED, SUMMARY

_OWN_WORDS = (*RECALLED, *SUMMARY, *ORPHAN, EXCERPTS, MORE_EXCERPTS, "→", "fact", "summary", "tool call")
_OWN_FORMS = (
    r" ?\(external text\)",
    r", \d{4}-\d\d-\d\d",
    r", this session",
    r", session [^\n:]{1,255}",
    r"\[…\]",
    r"\[… \d+ of \d+ lines left out; entry \w+\]",
    r"[\s:.]",
)
_FRAME = re.compile("(?:" + "|".join([*map(re.escape, [*_OWN_WORDS, *Role]), *_OWN_FORMS]) + ")*")
"""Framing text that we write around quotations: nothing in it can come from an entry but the name of its session."""


Change = Callable[[str, str], tuple[Segment, ...]]
"""Returns the part of a literal text to keep, given the id of the entry quoted after it, or ""."""


class Rebuilt(NamedTuple):
    """A request written again."""

    payload: dict[str, Json] | None
    #: How it differs from the request sent, or why it cannot be shown; "" if it is the same, byte for byte.
    note: str


# ── keeping ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def foreign_sources(manifest: Manifest, own: AbstractSet[str]) -> list[str]:
    """Return the ids of the entries of other fork trees that a request shows."""
    return [id for id in manifest.entries if _is_foreign(id, own)]


def keep_request(
    manifest: Manifest, own: AbstractSet[str], stage: Stage, actors: Mapping[str, str]
) -> Manifest:
    """Return a manifest as it may be kept.

    `own` are the logs whose erasures delete it, `actors` the speakers of entries of other logs, by id of the entry.
    """
    messages = [
        _keep_foreign(one, actors)
        if any(_is_foreign(id, own) for id in _sources_of(one))
        else _keep_own(one, stage)
        for one in manifest.messages
    ]
    changed = any(kept.hash != sent.hash for kept, sent in zip(messages, manifest.messages, strict=True))
    tools = [_keep_tool(one, stage) for one in manifest.tools]
    same = not changed and stage.mode is None
    payload = manifest.payload if same else ""
    return replace(manifest, messages=tuple(messages), tools=tuple(tools), payload=payload)


def drop_own_words(manifest: Manifest) -> Manifest:
    """Return a kept request without the caller's own text, for one that is too large to be kept whole."""
    messages = [
        one._replace(
            parts=tuple([part if isinstance(part, Whole) else _blank_literals(part) for part in one.parts]),
            hash=_hash_of_ids(one) if not one.sources else one.hash,
        )
        for one in manifest.messages
    ]
    tools = [
        Tool(name=one.name, description=sha256(repr(one).encode()).hexdigest()[:16], parameters={})
        for one in manifest.tools
    ]
    return replace(manifest, messages=tuple(messages), tools=tuple(tools), payload="")


def _is_foreign(id: str, own: AbstractSet[str]) -> bool:
    place = parse_entry_id(id)
    return place is not None and place[0] not in own


def _sources_of(sent: Sent) -> list[str]:
    quotes = [
        segment.entry
        for part in sent.parts
        if isinstance(part, Written)
        for _, value in part.fields
        if isinstance(value, tuple)
        for segment in value
        if isinstance(segment, Quote)
    ]
    return [*sent.sources, *quotes]


def _keep_own(sent: Sent, stage: Stage) -> Sent:
    """Keep a message that shows nothing of other logs; its literal texts in the mode of the session."""
    if stage.mode is None:
        return sent

    def redact(text: str, quoted: str) -> tuple[Segment, ...]:
        return (stage.text(text),)

    return sent._replace(parts=tuple([_map_literals(part, redact) for part in sent.parts]))


def _keep_foreign(sent: Sent, actors: Mapping[str, str]) -> Sent:
    """Keep a message that shows other logs: only references and our own framing text, and no hash of the text."""

    def keep(text: str, quoted: str) -> tuple[Segment, ...]:
        lead, name, rest = _split_at_speaker(text, actors.get(quoted, ""))
        if not name:
            return (text if _FRAME.fullmatch(text) else " ",)
        if not (_FRAME.fullmatch(lead) and _FRAME.fullmatch(rest)):
            return (" ",)
        return lead, Quote(quoted, 0, len(name), ACTOR), rest

    parts = tuple([_map_literals(part, keep) for part in sent.parts])
    return sent._replace(parts=parts, name=None, hash=_hash_of_ids(sent))


def _split_at_speaker(text: str, actor: str) -> tuple[str, str, str]:
    """Split the text before a quotation at the name of its speaker."""
    start = text.rfind(SEPARATOR)
    start = 0 if start < 0 else start + len(SEPARATOR)
    if not actor or not text.startswith(actor, start):
        return text, "", ""
    return text[:start], actor, text[start + len(actor) :]


def _map_literals(part: Whole | Written, change: Change) -> Whole | Written:
    """Return a part whose literal texts are changed."""
    return part if isinstance(part, Whole) else part._replace(fields=_map_fields(part, change))


def _map_fields(part: Written, change: Change) -> tuple[tuple[str, tuple[Segment, ...] | int | None], ...]:
    return tuple(
        [
            (name, _map_segments(value, change) if isinstance(value, tuple) else value)
            for name, value in part.fields
        ]
    )


def _map_segments(segments: Sequence[Segment], change: Change) -> tuple[Segment, ...]:
    found: list[Segment] = []
    for place, one in enumerate(segments):
        if isinstance(one, Quote):
            found.append(one)
            continue
        following = segments[place + 1] if place + 1 < len(segments) else None
        found += [
            new for new in change(one, following.entry if isinstance(following, Quote) else "") if new != ""
        ]
    return tuple(found)


def _blank_literals(part: Written) -> Written:
    """Return a written part with nothing of its literal texts but whether they end a line."""

    def blank(text: str, quoted: str) -> tuple[Segment, ...]:
        return ("\n" if "\n" in text else " ",)

    return part._replace(fields=_map_fields(part, blank))


def _hash_of_ids(sent: Sent) -> str:
    shown = f"{sent.role} {sent.path} {sent.rendition} {sent.tokens} {' '.join(sent.sources)}"
    return sha256(shown.encode()).hexdigest()[:32]


def _keep_tool(tool: Tool, stage: Stage) -> Tool:
    if stage.mode is None:
        return tool
    if stage.mode is Privacy.BLOCK:
        return Tool(name=tool.name, description=stage.text(tool.description), parameters={})
    parameters = _redact_strings(tool.parameters, stage)
    return replace(tool, description=stage.text(tool.description), parameters=parameters)


def _redact_strings(value: Any, stage: Stage) -> Any:
    if isinstance(value, str):
        return stage.text(value)
    if isinstance(value, Mapping):
        return {name: _redact_strings(one, stage) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_redact_strings(one, stage) for one in value]
    return value


# ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def rebuild_request(manifest: Manifest, told: Mapping[str, Entry]) -> Rebuilt:
    """Write a kept request again from the entries that it shows, as they may leave now."""
    from acms.providers import codecs  # the formats of all providers

    messages: list[PromptMessage] = []
    changed = False
    for number, one in enumerate(manifest.messages, 1):
        try:
            message = revive_message(one, told)
        except (KeyError, IndexError, TypeError, ValueError):
            return Rebuilt(None, f"message {number} shows text that the log does not hold any more")
        changed = changed or fingerprint_message(message) != one.hash
        messages.append(message)
    try:
        codec = codecs.named(manifest.codec, manifest.model, max_tokens=manifest.max_tokens)
        payload = codec.render(messages, tools=manifest.tools, marks=manifest.marks)
    except ACMSError as error:
        return Rebuilt(None, f"the format {manifest.codec!r} cannot write it: {error}")
    if manifest.payload and hash_payload(payload) == manifest.payload:
        return Rebuilt(payload, "")
    if changed:
        return Rebuilt(
            payload,
            "text of other sessions is read from their logs as it is now; what was redacted, or too large to be kept, "
            "is missing",
        )
    return Rebuilt(payload, "another release of ACMS may have written it differently")
