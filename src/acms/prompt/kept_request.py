"""A request as the log of renders keeps it, and as it is written again later.

Text written by the caller, the system text and the tools are kept as they were sent, in the privacy mode of the
session; text of the log is kept by reference. So the request can be written again word for word.

Erasing an entry leaves no trace of its text: an erasure in the session's own fork tree deletes the kept requests, and
of text from other trees only references are kept, between our own framing words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from hashlib import sha256
from typing import Any

from acms.errors import ACMSError
from acms.log.encoding import parse_entry_id
from acms.model import Entry, Json, Privacy, Role
from acms.privacy.redactor import Redactor
from acms.prompt.excerpts import ARROW, KNOWN_NOW, LATER, TOOL_CALL
from acms.prompt.manifest import Manifest, Quote, Segment, Sent, Whole, Written
from acms.prompt.manifest_writer import ACTOR, fingerprint_message, hash_payload, revive_message
from acms.prompt_types import SEPARATOR, PromptMessage, Tool
from acms.text.chat_messages import EXPLANATIONS, EXTERNAL_EXPLANATION, FRAMES, SUMMARY_EXPLANATION

_FRAMING_WORDS = (
    *[delimiter for delimiters in FRAMES for delimiter in delimiters],
    *EXPLANATIONS,
    SUMMARY_EXPLANATION,
    EXTERNAL_EXPLANATION,
    ARROW,
    f", {LATER}",
    f", {KNOWN_NOW}",
    TOOL_CALL,
    "fact",
    "summary",
)
_FRAMING_PATTERNS = (
    r" ?\(external text\)",
    r", \d{4}-\d\d-\d\d",
    r", this session",
    r", session [^\n:]{1,255}",
    r"\[…\]",
    r"\[… \d+ of \d+ lines left out; entry \w+\]",
    r"[\s:.]",
)
_FRAME = re.compile("(?:" + "|".join([*map(re.escape, [*_FRAMING_WORDS, *Role]), *_FRAMING_PATTERNS]) + ")*")
"""Framing text that we write around quotations: nothing in it can come from an entry but the name of its session."""


Change = Callable[[str, str], tuple[Segment, ...]]
"""Takes a literal text and the id of the entry quoted right after it ("" if none is); returns the part to keep."""


# ── keeping ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def foreign_sources(manifest: Manifest, own_logs: AbstractSet[str]) -> list[str]:
    """Return the ids of the entries of other fork trees that a request shows."""
    return [id for id in manifest.entries if _is_foreign(id, own_logs)]


def keep_request(
    manifest: Manifest, own_logs: AbstractSet[str], redactor: Redactor, actors: Mapping[str, str]
) -> Manifest:
    """Return a manifest as the privacy mode and the rules on text of other logs let it be kept.

    `own_logs` are the logs whose erasures delete the request, `actors` the speakers of entries of other logs, by the
    id of the entry.
    """
    messages: list[Sent] = []
    # The hash of the payload is kept only if the request can be written again word for word.
    is_changed = redactor.mode is not None
    for sent in manifest.messages:
        if any(_is_foreign(id, own_logs) for id in sent.entries):
            kept_message = _keep_foreign(sent, actors)
        else:
            kept_message = _keep_own(sent, redactor)
        is_changed = is_changed or kept_message.hash != sent.hash
        messages.append(kept_message)
    tools = tuple([_keep_tool(tool, redactor) for tool in manifest.tools])
    payload = "" if is_changed else manifest.payload
    return replace(manifest, messages=tuple(messages), tools=tools, payload=payload)


def drop_own_words(manifest: Manifest) -> Manifest:
    """Return a kept request without the caller's own text, for one that is too large to be kept whole."""

    def blank_text(text: str, _next_entry_id: str) -> tuple[Segment, ...]:
        return ("\n" if "\n" in text else " ",)

    messages: list[Sent] = []
    for sent in manifest.messages:
        hash = sent.hash if sent.sources else _hash_of_ids(sent)
        messages.append(_change_literals(sent, blank_text)._replace(hash=hash))
    tools: list[Tool] = []
    for tool in manifest.tools:
        description = sha256(repr(tool).encode()).hexdigest()[:16]
        tools.append(Tool(name=tool.name, description=description, parameters={}))
    return replace(manifest, messages=tuple(messages), tools=tuple(tools), payload="")


def _is_foreign(id: str, own_logs: AbstractSet[str]) -> bool:
    parsed = parse_entry_id(id)
    return parsed is not None and parsed[0] not in own_logs


def _keep_own(sent: Sent, redactor: Redactor) -> Sent:
    """Keep a message that shows nothing of other logs; its literal texts in the mode of the session."""
    if redactor.mode is None:
        return sent
    return _change_literals(sent, lambda text, _next_entry_id: (redactor.redact_text(text),))


def _keep_foreign(sent: Sent, actors: Mapping[str, str]) -> Sent:
    """Keep a message that shows other logs: only references and our own framing text, and no hash of the text."""

    def keep_frame(text: str, next_entry_id: str) -> tuple[Segment, ...]:
        """Return the part to keep of the text before a quotation of the entry `next_entry_id`.

        That is our framing words, with the speaker's name as a reference. A blank is kept instead if any other text is
        among them, since it may come from an entry.
        """
        before, name, after = _split_at_speaker(text, actors.get(next_entry_id, ""))
        is_framing = _FRAME.fullmatch(before) and _FRAME.fullmatch(after)
        if not is_framing:
            return (" ",)
        if not name:
            return (before,)
        return before, Quote(next_entry_id, 0, len(name), ACTOR), after

    kept_message = _change_literals(sent, keep_frame)
    return kept_message._replace(name=None, hash=_hash_of_ids(sent))


def _split_at_speaker(text: str, actor: str) -> tuple[str, str, str]:
    """Split the text before a quotation into what precedes the speaker's name, the name, and what follows it.

    The name stands at the beginning, or after the last blank line; it is "" if it is not there.
    """
    separator = text.rfind(SEPARATOR)
    start = 0 if separator < 0 else separator + len(SEPARATOR)
    if not actor or not text.startswith(actor, start):
        return text, "", ""
    return text[:start], actor, text[start + len(actor) :]


def _change_literals(sent: Sent, change: Change) -> Sent:
    """Return a message whose literal texts are changed."""
    parts: list[Whole | Written] = []
    for part in sent.parts:
        if isinstance(part, Written):
            fields = dict(part.fields)
            for name, value in part.fields:
                if isinstance(value, tuple):
                    fields[name] = _change_segments(value, change)
            part = part._replace(fields=tuple(fields.items()))
        parts.append(part)
    return sent._replace(parts=tuple(parts))


def _change_segments(segments: Sequence[Segment], change: Change) -> tuple[Segment, ...]:
    """Return segments with their literal texts changed; quotations stay, and empty texts are dropped."""
    changed_segments: list[Segment] = []
    for index, segment in enumerate(segments):
        if isinstance(segment, Quote):
            changed_segments.append(segment)
            continue
        following = segments[index + 1] if index + 1 < len(segments) else None
        next_entry_id = following.entry if isinstance(following, Quote) else ""
        changed_segments += [part for part in change(segment, next_entry_id) if part != ""]
    return tuple(changed_segments)


def _hash_of_ids(sent: Sent) -> str:
    identity = f"{sent.role} {sent.path} {sent.rendition} {sent.tokens} {' '.join(sent.sources)}"
    return sha256(identity.encode()).hexdigest()[:32]


def _keep_tool(tool: Tool, redactor: Redactor) -> Tool:
    """Return a tool as it may be kept in the privacy mode; with "block" its parameters are dropped."""
    if redactor.mode is None:
        return tool
    if redactor.mode is Privacy.BLOCK:
        return Tool(name=tool.name, description=redactor.redact_text(tool.description), parameters={})
    parameters = _redact_strings(tool.parameters, redactor)
    return replace(tool, description=redactor.redact_text(tool.description), parameters=parameters)


def _redact_strings(value: Any, redactor: Redactor) -> Any:
    """Return a JSON value with each string in it redacted; names of fields stay."""
    if isinstance(value, str):
        return redactor.redact_text(value)
    if isinstance(value, Mapping):
        return {name: _redact_strings(item, redactor) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_redact_strings(item, redactor) for item in value]
    return value


# ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def rebuild_request(manifest: Manifest, entries: Mapping[str, Entry]) -> tuple[dict[str, Json] | None, str]:
    """Write a kept request again from the entries that it shows, as they may leave now.

    The second value says how the payload differs from the request sent, or why there is none; "" if it is the same,
    byte for byte.
    """
    from acms.providers import codecs  # the formats of all providers

    messages: list[PromptMessage] = []
    is_changed = False
    for number, sent in enumerate(manifest.messages, 1):
        try:
            message = revive_message(sent, entries)
        except (KeyError, IndexError, TypeError, ValueError):
            return None, f"message {number} shows text that the log does not hold any more"
        is_changed = is_changed or fingerprint_message(message) != sent.hash
        messages.append(message)
    try:
        codec = codecs.named(manifest.codec, manifest.model, max_tokens=manifest.max_tokens)
        payload = codec.render(messages, tools=manifest.tools, marks=manifest.marks)
    except ACMSError as error:
        return None, f"the format {manifest.codec!r} cannot write it: {error}"
    if manifest.payload and hash_payload(payload) == manifest.payload:
        return payload, ""
    note = "another release of ACMS may have written it differently"
    if is_changed:
        note = (
            "text of other sessions is read from their logs as it is now; what was redacted, or too large to be kept, "
            "is missing"
        )
    return payload, note
