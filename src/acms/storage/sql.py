"""Rows to entries and back, once for every SQL dialect; queries from `sql/<dialect>.sql` by name."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any

from acms.errors import CorruptRecordError
from acms.log.encoding import (
    dump,
    entry_id,
    from_microseconds,
    load_mapping,
    parts_from_json,
    parts_to_json,
    spans_from_json,
)
from acms.log.seal import compute_seal
from acms.model import (
    EMPTY,
    Context,
    Derived,
    Draft,
    Entry,
    Job,
    JobState,
    Json,
    Kind,
    Origin,
    Part,
    Privacy,
    Role,
    State,
)

_NONSENSE = (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError, OverflowError)
"""Errors that reading a row not written by ACMS may raise."""

SEAL = "@seal"
"""Name under which the seal of a context lies among its settings in a row; nothing else sees it there."""
ENDLESS = 1 << 62
"""Above every number and version in a store."""
VERSION_BITS = 32
VERSION_MASK = (1 << VERSION_BITS) - 1


@cache
def load_queries(dialect: str) -> Mapping[str, str]:
    """Return the named queries of a dialect.

    `@name` in a query is replaced by the fragment of that name, which the file defines before it.
    """
    source = files("acms.storage").joinpath(f"sql/{dialect}.sql").read_text(encoding="utf-8")
    blocks = re.split(r"^-- (name|fragment): (\w+)\n", source, flags=re.MULTILINE)[1:]
    queries: dict[str, str] = {}
    fragments: dict[str, str] = {}
    for kind, name, body in zip(blocks[::3], blocks[1::3], blocks[2::3], strict=True):
        text = "\n".join(line for line in body.splitlines() if not line.startswith("--")).strip()
        text = re.sub(r"@(\w+)", lambda match: fragments[match[1]], text)
        (fragments if kind == "fragment" else queries)[name] = text
    return queries


@cache
def load_migrations(dialect: str) -> Sequence[tuple[int, str, str]]:
    """Return (version, checksum, script) of the numbered migrations of a dialect, in order."""
    migrations: list[tuple[int, str, str]] = []
    for file in files("acms.storage").joinpath("sql").iterdir():
        match = re.fullmatch(rf"{dialect}_(\d+)\.sql", file.name)
        if match:
            script = file.read_text(encoding="utf-8")
            migrations.append((int(match[1]), sha256(script.encode()).hexdigest(), script))
    return sorted(migrations)


_KINDS = {kind.value: kind for kind in Kind}
_ROLES: Mapping[str | None, Role | None] = {None: None, **{role.value: role for role in Role}}
_ORIGINS = {origin.value: origin for origin in Origin}
_PRIVACY: Mapping[str | None, Privacy] = {None: Privacy.ALLOW, **{level.value: level for level in Privacy}}
_STATES: Mapping[str | None, State] = {None: State.LIVE, **{state.value: state for state in State}}


def write_parts(parts: Sequence[Part], content: str) -> str | None:
    """Serialize parts; a text or tool result that equals the content of the entry is left out."""
    if not parts:
        return None
    items = parts_to_json(parts)
    for item in items:
        for field in ("text", "output"):
            if item.get(field) == content and item["type"] in ("text", "tool_result"):
                del item[field]
    return dump(items)


def read_parts(text: str, content: str) -> tuple[Part, ...]:
    """Parse parts written by `write_parts`; a text or tool result without its text has the content of the entry."""
    items: list[dict[str, Json]] = json.loads(text)
    for item in items:
        if item["type"] == "text":
            item.setdefault("text", content)
        elif item["type"] == "tool_result":
            item.setdefault("output", content)
    return parts_from_json(items)


DRAFT_COLUMNS = (
    "origin", "privacy", "role", "actor", "markers", "detected", "episode", "closes", "grp", "covers", "replaces",
    "sources", "data", "metadata",
)  # fmt: skip
"""The names of the columns that `draft_columns` returns."""


def draft_columns(draft: Draft) -> tuple[Any, ...]:
    """Return the columns of an entry that come from its draft: from `origin` up to and including `metadata`."""
    return (
        draft.origin._value_,
        None if draft.privacy is Privacy.ALLOW else draft.privacy._value_,
        draft.role._value_ if draft.role is not None else None,
        draft.actor,
        dump(draft.markers) if draft.markers else None,
        draft.detected,
        draft.episode,
        draft.closes,
        draft.group,
        dump(draft.covers) if draft.covers else None,
        dump(draft.replaces) if draft.replaces else None,
        dump(draft.sources) if draft.sources else None,
        dump(dict(draft.data)) if draft.data else None,
        dump(dict(draft.metadata)) if draft.metadata else None,
    )


def read_derived(rows: Iterable[Sequence[Any]], space: str) -> list[Derived]:
    """Build derived rows from (version, part, start, end, data, seq)."""
    return [
        Derived(version=version, space=space, part=part, start=start, end=end, data=data, seq=seq)
        for version, part, start, end, data, seq in rows
    ]


def read_entry(row: Sequence[Any], context: str) -> Entry:
    """Build an entry from the columns of the fragment `entry`; `CorruptRecordError` if they are not valid."""
    (
        number, kind_name, position, nonce, batch, total, created_at, tokens, origin, privacy, role, actor,
        markers, detected, episode, closes, group, covers, replaces, sources, data, metadata, state, salt,
        digest, chain, key, parts, content,
    ) = row  # fmt: skip
    # The number holds the context in its high bits and the version in its low bits.
    version = number & VERSION_MASK
    try:
        if type(content) is not str or type(nonce) is not str:
            raise TypeError("a column has the wrong type")
        if type(tokens) is not int or type(total) is not int:
            raise TypeError("a column has the wrong type")
        kind = _KINDS[kind_name]
        return Entry(
            kind=kind,
            content=content,
            key=key,
            created_at=from_microseconds(created_at),
            tokens=tokens,
            origin=_ORIGINS[origin],
            privacy=_PRIVACY[privacy],
            role=_ROLES[role],
            actor=actor,
            parts=read_parts(parts, content) if parts is not None else (),
            markers=tuple(json.loads(markers)) if markers is not None else (),
            detected=bool(detected),
            episode=episode,
            closes=closes,
            group=group,
            covers=None if covers is None else spans_from_json([json.loads(covers)])[0],
            replaces=() if replaces is None else spans_from_json(json.loads(replaces)),
            sources=() if sources is None else tuple(json.loads(sources)),
            data=EMPTY if data is None else load_mapping(data),
            metadata=EMPTY if metadata is None else load_mapping(metadata),
            context=context,
            version=version,
            position=position,
            id=entry_id(kind, context, version, nonce),
            batch=batch,
            total=total,
            salt=salt,
            digest=digest,
            chain=chain,
            state=_STATES[state],
        )
    except (*_NONSENSE, CorruptRecordError) as error:
        raise CorruptRecordError(
            f"entry {version} of {context} cannot be read: {error}",
            options=("restore the file from a backup", "acms verify lists what is damaged"),
        ) from error


def read_context(row: Sequence[Any]) -> Context:
    """Build a context from the columns of the fragment `context`."""
    (
        _ref, id, namespace, key, root, parent, fork, lineage, counter, settings, rev, created_at, deleted_at,
    ) = row  # fmt: skip
    try:
        stored_settings = load_mapping(settings)
        return Context(
            id=id,
            namespace=namespace,
            key=key,
            root=root,
            parent=parent,
            fork=fork,
            lineage=read_lineage(lineage),
            counter=counter,
            settings={name: value for name, value in stored_settings.items() if name != SEAL},
            settings_rev=rev,
            created_at=from_microseconds(created_at),
            deleted_at=None if deleted_at is None else from_microseconds(deleted_at),
        )
    except _NONSENSE as error:
        raise CorruptRecordError(f"context {id} cannot be read: {error}") from error


def seal_columns(id: str, values: Mapping[str, Any]) -> str:
    """Return the column `settings`, with its seal, of a context to be inserted with these columns."""
    settings = {name: value for name, value in load_mapping(values["settings"]).items() if name != SEAL}
    return _write_settings(
        Context(
            id=id,
            namespace=values["namespace"],
            key=values["key"],
            root=id,
            parent=values["parent"],
            fork=values["fork"],
            lineage=read_lineage(values["lineage"]),
            counter=values["counter"],
            settings=settings,
            settings_rev=values["settings_rev"],
            created_at=from_microseconds(values["created_at"]),
            deleted_at=None if values["deleted_at"] is None else from_microseconds(values["deleted_at"]),
        )
    )


def settings_column(row: Sequence[Any], new_context: Context) -> str:
    """Return the column `settings` of a context that is to become `new_context`, given its current row.

    If the seal does not match the row it is kept unchanged: a settings change must not hide earlier changes to the row.
    """
    return _write_settings(new_context, None if seal_fits(row) else load_mapping(row[9])[SEAL])


def seal_fits(row: Sequence[Any]) -> bool:
    """Return whether a context matches its seal; true without one. The row has the columns of `context`."""
    seal = load_mapping(row[9]).get(SEAL)
    return seal is None or seal == compute_seal(read_context(row))


def _write_settings(context: Context, seal: str | None = None) -> str:
    return dump({**context.settings, SEAL: seal or compute_seal(context)})


def read_lineage(text: str) -> tuple[tuple[str, int], ...]:
    """Read the inherited segments of a context."""
    try:
        return tuple((str(owner), int(last)) for owner, last in json.loads(text)) if text != "[]" else ()
    except _NONSENSE as error:
        raise CorruptRecordError(f"a lineage cannot be read: {error}") from error


def read_job(row: Sequence[Any]) -> Job:
    """Build a job from the columns of the fragment `job`."""
    (
        id, kind, dedupe, context, payload, state, attempt, not_before, lease_until, error_or_reason, created_at,
        updated_at,
    ) = row  # fmt: skip
    is_done = state == JobState.DONE
    try:
        return Job(
            id=str(id),
            kind=kind,
            dedupe=dedupe,
            context=context,
            payload=load_mapping(payload),
            state=JobState(state),
            attempt=attempt,
            not_before=from_microseconds(not_before),
            lease_until=None if lease_until is None else from_microseconds(lease_until),
            error=None if is_done else error_or_reason,
            reason=error_or_reason if is_done else None,
            created_at=from_microseconds(created_at),
            updated_at=from_microseconds(updated_at),
        )
    except _NONSENSE as nonsense:
        raise CorruptRecordError(f"job {id} cannot be read: {nonsense}") from nonsense
