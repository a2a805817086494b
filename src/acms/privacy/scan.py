"""Scanning stored data for sensitive text: reports its position, never the text itself."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from acms.errors import ValidationError
from acms.log import validation
from acms.model import (
    Context,
    ContextQuery,
    Entry,
    Json,
    Kind,
    Media,
    Part,
    Privacy,
    Raw,
    Reasoning,
    State,
    Text,
    ToolCall,
    ToolResult,
)
from acms.ports import Progress, StorageBackend
from acms.privacy.detect import (
    KINDS,
    PERSONAL,
    RULES_VERSION,
    find_sensitive_spans,
    redact_text,
    redaction_mark,
    safe_key,
)

PAGE = 100
"""Page size of entries in memory and of listed contexts."""
MAX_DEPTH = 64
"""Levels of JSON that are searched; a store accepts no deeper ones."""

_Position: TypeAlias = tuple[str, str, int, int]
"""The kind of a finding, its field in an entry, and its start and end offsets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The position of sensitive text. It contains neither the text itself nor any sensitive name."""

    #: One of `acms.privacy.detect.KINDS`, such as "password".
    kind: str
    #: Whether it is hidden under every privacy mode; email addresses and telephone numbers only under `redact`.
    clear: bool
    #: Id of the context that owns the entry: an ancestor's for what a fork inherited.
    context: str
    #: Name of that session, by which a command finds it; its id when it has none, is deleted or has a sensitive name.
    session: str
    namespace: str
    version: int
    #: Id of the entry.
    entry: str
    #: Kind of the entry.
    entry_kind: Kind
    #: Where in the entry: "content", "actor", "key", "parts[0].arguments", "metadata.user.mail", "data.value".
    field: str
    #: Offsets in the text of the field, in characters.
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KindCount:
    """The number of findings of one kind."""

    kind: str
    clear: bool
    findings: int
    #: Entries that hold one or more.
    entries: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """The result of a scan, and the version of its rules."""

    #: Version of the rules: scans by the same rules can be compared.
    rules: str = RULES_VERSION
    #: Contexts and entries that were read; tombstones are counted and hold nothing.
    contexts: int
    entries: int
    #: Entries that hold something sensitive.
    affected: int
    #: The kinds found, most specific first.
    kinds: tuple[KindCount, ...]
    #: In the order of their positions, up to the requested limit; the counts include all findings.
    findings: tuple[Finding, ...]

    @property
    def found(self) -> int:
        """Total number of findings, listed or not."""
        return sum(one.findings for one in self.kinds)


async def scan(
    storage: StorageBackend,
    *,
    context: Context | None = None,
    namespace: str | None = None,
    kinds: Collection[str] = (),
    limit: int | None = 1000,
    progress: Progress | None = None,
) -> Scan:
    """Search stored data for sensitive text: in one context, in a namespace, or in everything of the tenant.

    A context is read with its inherited entries; otherwise every entry is read once, under its owner, including those
    of deleted contexts, which are still stored. Text in several fields of an entry is found once, in the first field.
    `kinds` keeps only these kinds; `limit` lists only the first findings, or all with None. Logs are read a page at a
    time, and each page is searched in a thread. Entries appended meanwhile may be missed. `progress` counts entries for
    one context, contexts otherwise. Not searched: names and settings of sessions, pinned values, jobs.
    """
    _validate_options(context, namespace, kinds)
    tally = _Tally(limit, frozenset(kinds or KINDS))
    total = 0
    if progress is not None:
        total = await _count_total(storage, context, namespace)
    async for scanned in _iter_contexts(storage, context, namespace):
        tally.contexts += 1
        owners = {scanned.id: scanned}
        # Inherited entries are read under their owner, unless only the fork is scanned.
        last_read = 0 if context is not None else scanned.fork or 0
        while page := await storage.read(scanned.id, after=last_read, limit=PAGE, deleted=True):
            last_read = page[-1].version
            for entry, positions in await asyncio.to_thread(_search_page, page, tally.kinds):
                if entry.context not in owners:
                    owners[entry.context] = await storage.context(entry.context)
                tally.add(entry, owners[entry.context], positions)
            tally.entries += len(page)
            if progress is not None and context is not None:
                progress(tally.entries, max(total, tally.entries))
        if progress is not None and context is None:
            progress(tally.contexts, max(total, tally.contexts))
    return tally.to_scan()


def _validate_options(context: Context | None, namespace: str | None, kinds: Collection[str]) -> None:
    """Raise `ValidationError` for unknown kinds, or for both a context and a namespace."""
    unknown = sorted(set(kinds) - set(KINDS))
    if unknown:
        raise ValidationError(f"knows {', '.join(KINDS)}, not {', '.join(unknown)}", field="kinds")
    if context is not None and namespace is not None:
        raise ValidationError("give a context or a namespace, not both", field="namespace")
    if namespace is not None:
        validation.validate_name(namespace, "namespace")


class _Tally:
    """The findings so far: all are counted, the first ones are listed."""

    def __init__(self, limit: int | None, kinds: frozenset[str]) -> None:
        self.max_findings = limit
        self.kinds = kinds
        self.contexts = 0
        self.entries = 0
        self.affected = 0
        self.findings: list[Finding] = []
        #: Findings by kind, and entries with findings by kind.
        self.findings_by_kind = Counter[str]()
        self.entries_by_kind = Counter[str]()

    def add(self, entry: Entry, owner: Context, positions: Sequence[_Position]) -> None:
        """Count and list the findings in an entry."""
        counts = Counter(kind for kind, *_ in positions)
        self.findings_by_kind.update(counts)
        self.entries_by_kind.update(counts.keys())
        self.affected += 1
        session, namespace = _names_for_report(owner)
        for kind, field, start, end in positions:
            if self.max_findings is not None and len(self.findings) >= self.max_findings:
                break
            finding = Finding(
                kind=kind,
                clear=kind not in PERSONAL,
                context=owner.id,
                session=session,
                namespace=namespace,
                version=entry.version,
                entry=entry.id,
                entry_kind=entry.kind,
                field=field,
                start=start,
                end=end,
            )
            self.findings.append(finding)

    def to_scan(self) -> Scan:
        """Return the result; the kinds found are listed most specific first."""
        kinds: list[KindCount] = []
        for kind in KINDS:
            findings, entries = self.findings_by_kind[kind], self.entries_by_kind[kind]
            if findings:
                clear = kind not in PERSONAL
                kinds.append(KindCount(kind=kind, clear=clear, findings=findings, entries=entries))
        return Scan(
            contexts=self.contexts,
            entries=self.entries,
            affected=self.affected,
            kinds=tuple(kinds),
            findings=tuple(self.findings),
        )


async def _iter_contexts(
    storage: StorageBackend, scanned_context: Context | None, namespace: str | None
) -> AsyncIterator[Context]:
    """Yield the contexts of a scan, newest first, a page at a time."""
    if scanned_context is not None:
        yield scanned_context
        return
    query = ContextQuery(namespace=namespace, deleted=True, limit=PAGE)
    while True:
        page = await storage.contexts(query)
        for context in page.items:
            yield context
        if page.next_after is None:
            return
        query = replace(query, after=page.next_after)


async def _count_total(
    storage: StorageBackend, scanned_context: Context | None, namespace: str | None
) -> int:
    """Return the total for the progress: entries of one context, contexts otherwise."""
    if scanned_context is not None:
        newest = await storage.read(scanned_context.id, newest=1, deleted=True)
        return newest[-1].version if newest else 0
    count = 0
    async for _ in _iter_contexts(storage, None, namespace):
        count += 1
    return count


def _names_for_report(context: Context) -> tuple[str, str]:
    """Return the names of the session and the namespace for a report: nothing sensitive, and usable in commands."""
    namespace = redact_text(context.namespace, Privacy.REDACT).text
    key = context.key
    can_be_found = namespace == context.namespace and context.deleted_at is None
    if key is None or not can_be_found or not safe_key(key):
        return context.id, namespace
    return key, namespace


# ── one entry ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _search_page(page: Sequence[Entry], kinds: frozenset[str]) -> list[tuple[Entry, list[_Position]]]:
    """Return the entries of a page with findings, each with their positions."""
    findings: list[tuple[Entry, list[_Position]]] = []
    for entry in page:
        positions = [] if entry.state is State.ERASED else _search_entry(entry, kinds)
        if positions:
            findings.append((entry, positions))
    return findings


def _search_entry(entry: Entry, kinds: frozenset[str]) -> list[_Position]:
    """Return the positions of the wanted kinds in an entry, each secret in the first field that has it."""
    positions: list[_Position] = []
    earlier_secrets: set[str] = set()  # secrets of earlier fields: the content of a message repeats its parts
    for field, name, text in iter_searched_texts(entry):
        # A value is searched together with its name: "hunter2" alone does not look sensitive.
        prefix, suffix = (f'"{name}": "', '"') if name else ("", "")
        new_secrets: list[str] = []
        for span in find_sensitive_spans(prefix + text + suffix):
            start, end = max(0, span.start - len(prefix)), min(len(text), span.end - len(prefix))
            secret = text[start:end]
            if start < end and span.kind in kinds and secret not in earlier_secrets:
                positions.append((span.kind, field, start, end))
                new_secrets.append(secret)
        earlier_secrets.update(new_secrets)
    return positions


def iter_searched_texts(entry: Entry) -> Iterator[tuple[str, str, str]]:
    """Yield (field, name, text) for all text that the writer of an entry chose; `name` is the key of a JSON value."""
    if entry.content:
        yield "content", "", entry.content
    for index, part in enumerate(entry.parts):
        field, text = _text_of_part(part)
        yield f"parts[{index}].{field}", "", text
    if entry.actor:
        yield "actor", "", entry.actor
    if entry.key:
        yield "key", "", entry.key
    for field, name, text in _iter_leaves(entry.data, "data", "", MAX_DEPTH):
        if field == "data.value":
            attribute = entry.data.get("attribute")
            name = attribute if isinstance(attribute, str) else name
        yield field, name, text
    yield from _iter_leaves(entry.metadata, "metadata", "", MAX_DEPTH)


def _text_of_part(part: Part) -> tuple[str, str]:
    """Return the name and the value of the field of a part that has its text."""
    match part:
        case Text(text) | Reasoning(text):
            return "text", text
        case ToolCall():
            return "arguments", part.arguments
        case ToolResult():
            return "output", part.output
        case Media():
            return "ref", part.ref
        case Raw():
            return "json", part.json


def _iter_leaves(value: Json, path: str, name: str, depth: int) -> Iterator[tuple[str, str, str]]:
    """Yield (field, name, text) for the texts, numbers and sensitive keys of a JSON value, `depth` levels deep."""
    if isinstance(value, str):
        yield path, name, value
    elif isinstance(value, bool):
        return
    elif isinstance(value, int | float):
        yield path, name, str(value)
    elif isinstance(value, Mapping) and depth:
        # Stores keep keys in different orders: the findings must not differ.
        for key, item in sorted(value.items()):
            inner_path = f"{path}.{key}"
            if not safe_key(key):
                inner_path = f"{path}.{redaction_mark(find_sensitive_spans(key)[0].kind)}"
                yield f"{inner_path} (name)", "", key
            yield from _iter_leaves(item, inner_path, key, depth - 1)
    elif isinstance(value, list | tuple) and depth:
        for index, item in enumerate(value):
            yield from _iter_leaves(item, f"{path}[{index}]", name, depth - 1)
