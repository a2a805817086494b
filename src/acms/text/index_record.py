"""Index records: the index data of an entry, packed, stored beside the log as a derived row.

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
from acms.text.tokenizer import content_terms, count_terms, find_names, searchable_terms, split_words

SPACE = "cards5"
"""Derived space of the records; another recipe is another space."""

#: Minutes since 1970, tokens, episode, random end of the id, flags, signature of the words said, and the lengths of
#: label and group in bytes, of all terms and of the repeated ones.
HEADER = struct.Struct("<iII6sBHHHHH")
REPLACES, EMPTY, EXTERNAL = 1, 4, 8
"""Flags: it replaces something; it has no content; it is external text, or was made from some."""

ONE, MANY = "1", "*"
"""What the name of a fact's address begins with: how many facts may be in force there."""

_MOST = 65_535
_MINUTE = 60_000_000
#: Of so many identifiers a message is a listing: that is found by whole names, for their parts are most of a language.
_LISTING = 12


class Label(NamedTuple):
    """What many records of a log share."""

    kind: Kind
    role: Role | None
    actor: str | None
    markers: tuple[str, ...]


def encode_index_record(draft: Draft, nonce: str) -> bytes:
    """Write the index record of an entry; `nonce` is the random end of its id."""
    label = _encode_label(draft.kind, draft.role, draft.actor, draft.markers)
    fact = draft.kind is Kind.FACT
    group = _encode_address(draft) if fact else b"" if draft.group is None else _encode_group(draft)
    content = "" if draft.privacy is Privacy.BLOCK else draft.content
    said = split_words(content)
    counts = count_terms(said)
    if fact and draft.privacy is not Privacy.BLOCK:
        for number in content_terms(split_words(join_fact_names(draft))):
            counts.setdefault(number, 1)
        for number in searchable_terms(join_fact_names(draft)):
            counts.setdefault(number, 0)
    named_in = find_names(content)
    listing = len(named_in) > _LISTING and sum(1 for name in named_in if name.parts) > _LISTING
    for name in named_in:
        for number in name.also:
            if not listing or number not in name.parts:
                counts.setdefault(number, 0)
    if len(counts) > _MOST:
        counts = dict(Counter(counts).most_common(_MOST))
    repeated = sorted([number for number, count in counts.items() if count != 1])
    single = sorted([number for number, count in counts.items() if count == 1])
    once = set(said)
    flags = (REPLACES if draft.replaces else 0) | (0 if draft.content else EMPTY)
    flags |= EXTERNAL if trust.trust_of_entry(draft) is Origin.EXTERNAL else 0
    header = HEADER.pack(
        min(to_microseconds(draft.created_at) // _MINUTE, 0x7FFFFFFF),
        min(draft.tokens, 0xFFFFFFFF),
        draft.episode,
        nonce.encode(),
        flags,
        crc32(" ".join(sorted(once)).encode()) & 0xFFFF if once else 0,
        len(label),
        len(group),
        len(counts),
        len(repeated),
    )
    packed = bytearray(struct.pack(f"<{len(counts)}I", *repeated, *single))
    del packed[3::4]  # terms have 24 bits
    often = [counts[number] for number in repeated]
    if often and max(often) > 255:
        often = [min(count, 255) for count in often]
    return header + label + group + packed + bytes(often)


@lru_cache(maxsize=1024)
def _encode_label(kind: Kind, role: Role | None, actor: str | None, markers: tuple[str, ...]) -> bytes:
    return "\0".join((kind.value, role.value if role else "", actor or "", *markers)).encode()


def _encode_group(draft: Draft) -> bytes:
    calls = [_hash_call_id(part.call_id) for part in draft.parts if isinstance(part, ToolCall)]
    answers = [_hash_call_id(part.call_id) for part in draft.parts if isinstance(part, ToolResult)]
    return (
        (draft.group or "").encode()
        + b"\0"
        + struct.pack(f"<H{len(calls) + len(answers)}I", len(calls), *calls, *answers)
    )


def join_fact_names(draft: Draft) -> str:
    """Return the subject and attribute of a fact as text, and its other names; "" where it has none."""
    said = [str(draft.data[key]) for key in ("subject", "attribute") if draft.data.get(key)]
    return " ".join([*said, *map(str, draft.data.get("names", ()))])


def _encode_address(draft: Draft) -> bytes:
    """Return the name of a fact's address in the place of a group: whether it holds one value at a time, and which."""
    key = normalize_address(str(draft.data.get("subject", "")), str(draft.data.get("attribute", "")))
    if not has_address(key):
        return b""
    alone = ONE if draft.data.get("cardinality") == "one" else MANY
    name = alone + sha256("\x1f".join(key).encode()).hexdigest()[:16]
    return name.encode() + b"\0" + struct.pack("<H", 0)


def _hash_call_id(id: str) -> int:
    return crc32(id.encode())


def read_label(data: bytes) -> Label:
    """Read a label."""
    kind, role, actor, *markers = data.decode().split("\0")
    return Label(Kind(kind), Role(role) if role else None, actor or None, tuple(markers))


def read_group(data: bytes) -> tuple[str, Sequence[int], Sequence[int]]:
    """Read a tool group: its id, the calls made and the calls answered."""
    name, _, links = data.partition(b"\0")
    numbers = struct.unpack(f"<H{(len(links) - 2) // 4}I", links)
    return name.decode(), numbers[1 : 1 + numbers[0]], numbers[1 + numbers[0] :]
