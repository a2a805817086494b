"""Index records: the index data of an entry, packed, stored as a derived row of the log.

A record holds the terms of the content and the few fields that ranking and planning need, so that a log is opened and
ranked without reading its texts again (rule 2.5). Date and speaker become terms too, but from the fields, not here. A
fact is also found by its subject, its other names and its attribute; its address, and whether that holds one value at
a time, take the place of the tool group. A blocked entry has no terms: it is shown at its position, and never found by
its content.

    header      see `HEADER`, 29 bytes
    label       kind, role, speaker and markers, NUL-separated UTF-8: few different ones in a log
    group       tool group id, NUL, number of calls (u16), CRC-32 of each call id, then of each answered one; of a fact
                its address
    terms       those that do not occur once first, each part ascending, 3 bytes each
    counts      of those that do not occur once, 1 byte each, 255 for more; 0 under which it is found only as a name
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256
from typing import NamedTuple
from zlib import crc32

from acms.log import trust
from acms.log.encoding import to_microseconds
from acms.log.facts import has_address, normalize_address
from acms.model import Draft, Kind, Origin, Privacy, Role, ToolCall, ToolResult
from acms.text.questions import is_only_question
from acms.text.tokenizer import content_terms, count_terms, find_names, searchable_terms, split_words

SPACE = "cards6"
"""Derived space of the records; another recipe is another space."""

#: Minutes since 1970, tokens, episode, random end of the id, flags, signature of the words, and the lengths of
#: label and group in bytes, of all terms and of the repeated ones.
HEADER = struct.Struct("<iII6sBHHHHH")
REPLACES, QUESTION, EMPTY, EXTERNAL = 1, 2, 4, 8
"""Flags: it replaces something; it only asks; it has no content; it is external text, or was made from some."""

ONE, MANY = "1", "*"
"""First character of the name of a fact's address: how many facts may be active there."""

_MAX_TERMS = 65_535
MINUTE_MICROSECONDS = 60_000_000
"""Microseconds of the unit in which the index keeps times."""


class Label(NamedTuple):
    """What many records of a log share."""

    kind: Kind
    role: Role | None
    actor: str | None
    markers: tuple[str, ...]


def encode_index_record(draft: Draft, id: str) -> bytes:
    """Return the packed index record of an entry, which contains the random end of its `id`."""
    nonce = id.rpartition("_")[2]
    label = _encode_label(draft.kind, draft.role, draft.actor, draft.markers)
    group = _encode_group(draft)
    content = "" if draft.privacy is Privacy.BLOCK else draft.content
    words = split_words(content)
    counts = _count_index_terms(draft, content, words)
    repeated_terms = sorted([term for term, count in counts.items() if count != 1])
    single_terms = sorted([term for term, count in counts.items() if count == 1])
    header = HEADER.pack(
        min(to_microseconds(draft.created_at) // MINUTE_MICROSECONDS, 0x7FFFFFFF),
        min(draft.tokens, 0xFFFFFFFF),
        draft.episode,
        nonce.encode(),
        _flags_of(draft),
        sign_words(words),
        len(label),
        len(group),
        len(counts),
        len(repeated_terms),
    )
    terms = bytearray(struct.pack(f"<{len(counts)}I", *repeated_terms, *single_terms))
    del terms[3::4]  # a term has 24 bits: the highest of its four bytes is 0
    repetitions = bytes([min(counts[term], 255) for term in repeated_terms])
    return header + label + group + terms + repetitions


def sign_words(words: Sequence[str]) -> int:
    """Return the signature of some words: texts with the same words, in any order, have the same one."""
    return crc32(" ".join(sorted(set(words))).encode()) & 0xFFFF


def _count_index_terms(draft: Draft, content: str, words: list[str]) -> dict[int, int]:
    """Return how often an entry contains each term; 0 for a term that only a name or a guessed language adds."""
    counts = count_terms(words)
    if draft.kind is Kind.FACT and draft.privacy is not Privacy.BLOCK:
        fact_names = join_fact_names(draft)
        for term in content_terms(split_words(fact_names)):
            counts.setdefault(term, 1)
        for term in searchable_terms(fact_names):
            counts.setdefault(term, 0)
    names = find_names(content)
    # A message with many identifiers is a listing, which is found by whole names: their parts are common words.
    is_listing = sum(1 for name in names if name.parts) > 12
    for name in names:
        for term in name.extra_terms:
            if not is_listing or term not in name.parts:
                counts.setdefault(term, 0)
    if len(counts) > _MAX_TERMS:
        return dict(Counter(counts).most_common(_MAX_TERMS))
    return counts


def _flags_of(draft: Draft) -> int:
    flags = 0
    if draft.replaces:
        flags |= REPLACES
    if not draft.content:
        flags |= EMPTY
    elif draft.privacy is not Privacy.BLOCK and is_only_question(draft.content):
        flags |= QUESTION
    if trust.trust_of_entry(draft) is Origin.EXTERNAL:
        flags |= EXTERNAL
    return flags


@lru_cache(maxsize=1024)
def _encode_label(kind: Kind, role: Role | None, actor: str | None, markers: tuple[str, ...]) -> bytes:
    return "\0".join((kind.value, role.value if role else "", actor or "", *markers)).encode()


def _encode_group(draft: Draft) -> bytes:
    """Return the `group` part of a record: the tool group of a message with its calls, or the address of a fact."""
    if draft.kind is Kind.FACT:
        return _encode_address(draft)
    if draft.group is None:
        return b""
    calls = [crc32(part.call_id.encode()) for part in draft.parts if isinstance(part, ToolCall)]
    answers = [crc32(part.call_id.encode()) for part in draft.parts if isinstance(part, ToolResult)]
    links = struct.pack(f"<H{len(calls) + len(answers)}I", len(calls), *calls, *answers)
    return draft.group.encode() + b"\0" + links


def join_fact_names(draft: Draft) -> str:
    """Return the subject and attribute of a fact as text, and its other names; "" if it has none."""
    names = [str(draft.data[key]) for key in ("subject", "attribute") if draft.data.get(key)]
    return " ".join([*names, *map(str, draft.data.get("names", ()))])


def _encode_address(draft: Draft) -> bytes:
    """Return the `group` part of a fact's record: its cardinality, a hash of its address, and no calls."""
    address = normalize_address(str(draft.data.get("subject", "")), str(draft.data.get("attribute", "")))
    if not has_address(address):
        return b""
    cardinality = ONE if draft.data.get("cardinality") == "one" else MANY
    digest = sha256("\x1f".join(address).encode()).hexdigest()[:16]
    name = cardinality + digest
    return name.encode() + b"\0" + struct.pack("<H", 0)


def read_label(data: bytes) -> Label:
    """Parse a label."""
    kind, role, actor, *markers = data.decode().split("\0")
    return Label(Kind(kind), Role(role) if role else None, actor or None, tuple(markers))


def read_group(data: bytes) -> tuple[str, Sequence[int], Sequence[int]]:
    """Parse a tool group: its id, the hashes of the calls made and of the calls answered."""
    name, _, links = data.partition(b"\0")
    count, *hashes = struct.unpack(f"<H{(len(links) - 2) // 4}I", links)
    return name.decode(), hashes[:count], hashes[count:]
