"""How an entry is written: its JSON, its id, its salted digest, and the hash chain that ties a log together.

    digest   = SHA-256(salt ‖ canonical(draft))
    chain(k) = SHA-256(head before the append ‖ SHA-256(digest(1) ‖ … ‖ digest(k)))     k-th entry of one append

The digests of an append need only the drafts, so a client can send them before the version is known and one SQL
statement can compute every chain value set-wise. Erasing an entry deletes content and salt and keeps the digest: the
chain still verifies, and the content cannot be guessed from the digest (decision 0005).

Stores and exports hold entries as JSON. Reading JSON builds only known classes: an unknown part or kind raises
`CorruptRecordError` and never imports anything (T44).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from hashlib import sha256
from types import MappingProxyType
from typing import NamedTuple

from acms import nouns
from acms.errors import CorruptRecordError
from acms.model import EMPTY, Context, Draft, Entry, Json, Kind, Part, Privacy, Role, State

FORMAT = 1
"""Version of the export format."""


def parts_to_json(parts: Sequence[Part]) -> list[dict[str, Json]]:
    """Return the parts of a message as JSON objects."""
    return [nouns.write_part(part, wire=False) for part in parts]


def parts_from_json(items: Sequence[Mapping[str, Json]]) -> tuple[Part, ...]:
    """Return the parts of a message from their JSON objects."""
    parts: list[Part] = []
    for item in items:
        fields = {name: value for name, value in item.items() if name != "type"}
        parts.append(nouns.PARTS[item["type"]](**fields))
    return tuple(parts)


def spans_from_json(pairs: Sequence[Sequence[int]]) -> tuple[tuple[int, int], ...]:
    """Return spans of versions from their JSON lists."""
    return tuple((int(first), int(last)) for first, last in pairs)


dump = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode
"""Write JSON the way every store writes it."""


def dump_flat(values: Mapping[str, Json]) -> str:
    """Return a mapping as the JSON that `dump` returns; faster if it has only whole numbers under plain names."""
    items: list[str] = []
    for name in sorted(values):
        value = values[name]
        if type(value) is not int or not name.isidentifier():
            return dump(dict(values))
        items.append(f'"{name}":{value}')
    return "{" + ",".join(items) + "}"


def load_mapping(text: str | None) -> Mapping[str, Json]:
    """Parse a JSON object; None gives the shared empty mapping."""
    if text is None:
        return EMPTY
    try:
        value = json.loads(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise CorruptRecordError(f"expected a JSON object: {error}") from error
    if not isinstance(value, dict):
        raise CorruptRecordError("expected a JSON object")
    return MappingProxyType(value)


_REQUIRED_FIELDS = "version id kind created_at content tokens total batch origin digest chain context".split()
_NON_EMPTY_DEFAULTS = {"privacy": Privacy.ALLOW, "state": State.LIVE}
_DECODING_ERRORS = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError)


def entry_to_json(entry: Entry) -> dict[str, Json]:
    """Return an entry as JSON with everything `restore` needs; fields with their default value are left out."""
    fields = nouns.encode_noun(entry, Entry, wire=False)
    fields["salt"] = entry.salt and base64.b64encode(entry.salt).decode()
    record = {name: fields.pop(name) for name in _REQUIRED_FIELDS}
    for name, value in fields.items():
        if value and value != _NON_EMPTY_DEFAULTS.get(name):
            record[name] = value
    return record


def entry_from_json(record: Mapping[str, Json]) -> Entry:
    """Return an exported entry from its JSON; raise `CorruptRecordError` if it is none."""
    try:
        salt = record.get("salt")
        salt = None if salt is None else base64.b64decode(salt)
        for name in _REQUIRED_FIELDS:
            if name not in record:
                raise KeyError(name)
        return nouns.decode_noun(Entry, {"position": None, **record}, wire=False, salt=salt)
    except _DECODING_ERRORS as error:
        raise CorruptRecordError(f"this is not an exported entry: {error}") from error


def context_to_json(context: Context) -> dict[str, Json]:
    """Return a context as the JSON that is the first line of an export."""
    return {"acms": FORMAT, **nouns.encode_noun(context, wire=False)}


def context_from_json(record: Mapping[str, Json]) -> Context:
    """Return an exported context from its JSON; raise `CorruptRecordError` if it is none or has a newer format."""
    try:
        if record["acms"] != FORMAT:
            raise CorruptRecordError(f"this export has format {record['acms']}, this release reads {FORMAT}")
        return nouns.decode_noun(Context, record, wire=False)
    except _DECODING_ERRORS as error:
        raise CorruptRecordError(f"this is not an exported context: {error}") from error


_DIGITS = "0123456789abcdefghjkmnpqrstvwxyz"
_DIGIT_OF_BYTE = (_DIGITS * 8).encode()
"""Table for `bytes.translate`: each byte becomes the digit of its lower five bits."""
_VALUES = {digit: value for value, digit in enumerate(_DIGITS)}
_PREFIX = {Kind.MESSAGE: "m", Kind.FACT: "f", Kind.SUMMARY: "s", Kind.EPISODE: "e", Kind.RETRACTION: "r"}
_PREFIXES = frozenset(_PREFIX.values())
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

_SHA256 = sha256()
"""Hash of nothing, copied for every hash: looking up the algorithm takes longer than hashing a message."""

Entropy = Callable[[int], bytes]


def _sha256_digest(data: bytes) -> bytes:
    digest = _SHA256.copy()
    digest.update(data)
    return digest.digest()


def to_microseconds(moment: datetime) -> int:
    """Return microseconds since 1970 UTC."""
    return (moment - _EPOCH) // _MICROSECOND


def from_microseconds(micros: int) -> datetime:
    """Return the aware UTC time of a number of microseconds since 1970."""
    return _EPOCH + timedelta(microseconds=micros)


def encode_base32(number: int) -> str:
    """Return a number in Crockford's base 32, in lower case."""
    digits = _DIGITS[number & 31]
    while number := number >> 5:
        digits = _DIGITS[number & 31] + digits
    return digits


def draw_token(entropy: Entropy, length: int) -> str:
    """Draw a random string of base-32 digits."""
    return "".join(_DIGITS[byte & 31] for byte in entropy(length))


def context_id(entropy: Entropy) -> str:
    """Draw the id of a new context: 80 random bits."""
    return f"c_{draw_token(entropy, 16)}"


def entry_id(kind: Kind, context: str, version: int, nonce: str) -> str:
    """Return the id of an entry: kind, context, version, and six random digits.

    An entry is found by its context and version, and its whole id is then compared: a version that was used again
    after a failover has other random digits.
    """
    return f"{_PREFIX[kind]}_{context[2:]}_{encode_base32(version)}_{nonce}"


def is_fact_id(id: str) -> bool:
    """Return whether an entry id is that of a fact."""
    return id.startswith(f"{_PREFIX[Kind.FACT]}_")


def is_summary_id(id: str) -> bool:
    """Return whether an entry id is that of a summary."""
    return id.startswith(f"{_PREFIX[Kind.SUMMARY]}_")


@lru_cache(maxsize=8192)
def parse_entry_id(id: str) -> tuple[str, int] | None:
    """Return the context and the version in an entry id, or None if it is no entry id."""
    fields = id.split("_")
    if len(fields) != 4 or not id.isascii():
        return None
    prefix, context, digits, _ = fields
    if prefix not in _PREFIXES or not 1 <= len(digits) <= 13:
        return None
    version = 0
    for digit in digits:
        value = _VALUES.get(digit)
        if value is None:
            return None
        version = version << 5 | value  # five bits for each digit
    return f"c_{context}", version


def genesis_hash(context: str) -> bytes:
    """Return the chain value of an empty log."""
    return sha256(context.encode()).digest()


def canonical_bytes(draft: Draft, nonce: str, created_at: int | None = None) -> bytes:
    """Return everything immutable about a draft as UTF-8: these bytes are hashed.

    Eighteen fields joined by NUL, which no text may contain: kind, nonce, microseconds, role, content, parts, data,
    metadata, actor, origin, privacy, markers, episode, closes, group, covers, replaces, sources. An absent or empty
    value is an empty field; structured fields are JSON with sorted keys. `created_at` is the time in microseconds,
    if the caller has it already.
    """
    has_structure = (
        draft.parts
        or draft.data
        or draft.metadata
        or draft.markers
        or draft.covers
        or draft.replaces
        or draft.sources
    )
    moment = to_microseconds(draft.created_at) if created_at is None else created_at
    if draft.role is not None and not has_structure:
        return _plain_message_bytes(draft, draft.role, nonce, moment)
    return "\0".join(
        (
            draft.kind._value_,  # `value` is a property that costs two Python calls
            nonce,
            str(moment),
            draft.role._value_ if draft.role is not None else "",
            draft.content,
            dump(parts_to_json(draft.parts)) if draft.parts else "",
            dump(dict(draft.data)) if draft.data else "",
            dump(dict(draft.metadata)) if draft.metadata else "",
            draft.actor or "",
            draft.origin._value_,
            draft.privacy._value_,
            dump(draft.markers) if draft.markers else "",
            str(draft.episode),
            draft.closes or "",
            draft.group or "",
            dump(draft.covers) if draft.covers else "",
            dump(draft.replaces) if draft.replaces else "",
            dump(draft.sources) if draft.sources else "",
        )
    ).encode()


def _plain_message_bytes(draft: Draft, role: Role, nonce: str, moment: int) -> bytes:
    """Return the canonical bytes of a message without structured fields, in half the time; the same bytes as above."""
    return (
        f"{draft.kind._value_}\0{nonce}\0{moment}\0"
        f"{role._value_}\0{draft.content}\0\0\0\0{draft.actor or ''}\0{draft.origin._value_}\0"
        f"{draft.privacy._value_}\0\0{draft.episode}\0{draft.closes or ''}\0{draft.group or ''}\0\0\0"
    ).encode()


def digest_draft(draft: Draft, nonce: str, salt: bytes) -> bytes:
    """Return the salted digest of a draft."""
    return sha256(salt + canonical_bytes(draft, nonce)).digest()


class Stamp(NamedTuple):
    """The parts of a draft known before its placement: the random end of its id, its salt and its digest."""

    nonce: str
    salt: bytes
    digest: bytes


def stamp_draft(draft: Draft, entropy: Entropy, created_at: int | None = None) -> Stamp:
    """Draw a salt and a nonce and hash the draft with them; `created_at` is as in `canonical_bytes`."""
    random = entropy(22)
    nonce = random[16:].translate(_DIGIT_OF_BYTE).decode()
    salt = random[:16]
    return Stamp(nonce, salt, _sha256_digest(salt + canonical_bytes(draft, nonce, created_at)))


def chain_values(head: bytes, stamps: Iterable[Stamp]) -> Iterator[bytes]:
    """Yield the chain values of the entries of one append."""
    prefix = _SHA256.copy()
    for stamp in stamps:
        prefix.update(stamp.digest)
        yield _sha256_digest(head + prefix.digest())


def verify_chain(entries: Iterable[Entry], *, head: bytes, version: int) -> Iterator[tuple[int, str]]:
    """Yield (version, problem) for each invalid entry after `version`, whose chain value was `head`.

    `entries` are the entries of one context that owns their rows, ascending. An erased or expired entry has no salt, so
    its stored digest is used.
    """
    # A chain value covers the chain value before its append, and the digests of the append up to its entry.
    batch, head_before, digests = 0, head, sha256()
    for entry in entries:
        version += 1
        if entry.version != version:
            yield version, f"missing: the next entry is {entry.version}"
            version = entry.version  # report a gap once, and go on after it
        if entry.batch != batch:
            batch, head_before, digests = entry.batch, head, sha256()
        problem = find_content_problem(entry)
        if problem is not None:
            yield version, problem
        digests.update(entry.digest)
        head = sha256(head_before + digests.digest()).digest()
        if head != entry.chain:
            yield version, "the hash chain is broken here"
            head = entry.chain  # later entries are checked against the stored value


def find_content_problem(entry: Entry) -> str | None:
    """Return a description of the fault in the content of an entry, or None."""
    if entry.salt is not None:
        nonce = entry.id.rsplit("_", 1)[-1]
        is_same = digest_draft(entry, nonce, entry.salt) == entry.digest
        return None if is_same else "the content does not match its digest"
    if entry.state is State.LIVE:
        return "has no salt"
    if entry.content or entry.parts or entry.data or entry.metadata:
        return f"is {entry.state.value} and still has content"
    return None


def quote_json(text: str) -> str:
    """Return a string as JSON; a lone surrogate, which no store can keep, is written as an escape."""
    quoted = json.dumps(text, ensure_ascii=False)
    try:
        quoted.encode()
    except UnicodeEncodeError:
        return json.dumps(text)
    return quoted
