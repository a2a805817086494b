"""Answers of the service as the nouns they were: names are camelCase on the wire, unknown ones are passed over."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from functools import cache
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from acms.errors import ACMSError, ConfigurationError
from acms.log.encoding import parts_from_json
from acms.log.policy import ResolvedPolicy
from acms.model import Entry, Job, Json, Privacy, Redaction
from acms.results import (
    Branch,
    Certainty,
    Change,
    Compaction,
    ContextItem,
    ContextItems,
    Delta,
    Diff,
    Ledger,
    Tree,
    Verdict,
)

__all__ = [
    "ContextInfo",
    "branch",
    "camel",
    "compaction",
    "diff",
    "entry",
    "items",
    "job",
    "noun",
    "nouns",
    "policy",
    "reading",
    "tree",
    "value",
]

T = TypeVar("T")
Convert = Callable[[Any], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextInfo:
    """A context as the service shows it: what it is, and where its log stands."""

    id: str
    #: The caller's name for it within its namespace; None for a fork that was given none.
    key: str | None = None
    namespace: str
    #: What it is called for people.
    name: str | None = None
    metadata: Mapping[str, Json] = field(default_factory=lambda: MappingProxyType({}))
    #: Id of the context it was forked from, and at which version.
    parent_id: str | None = None
    fork_version: int | None = None
    #: Messages and their tokens so far; neither ever decreases.
    message_count: int
    total_tokens: int
    latest_version: int
    last_message_id: str | None = None
    #: Name of the token counter.
    counter: str
    created_at: datetime
    deleted_at: datetime | None = None


def camel(name: str) -> str:
    """Return a name as it stands on the wire."""
    first, *rest = name.split("_")
    return first + "".join(part.title() for part in rest)


@contextmanager
def reading(what: str) -> Generator[None]:
    """Read an answer inside the block; `ACMSError` when it says something that this release does not understand."""
    try:
        yield
    except (
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        IndexError,
        OverflowError,
        RecursionError,
    ) as error:
        failure = ACMSError(
            f"the service's {what} cannot be read ({type(error).__name__}: {error})",
            options=("let client and service have the same release",),
        )
    else:
        return
    raise failure


def noun(kind: type[T], written: Json) -> T:
    """Read one noun."""
    with reading(kind.__name__):
        return cast("T", _plan(kind)(written))


def nouns(kind: type[T], written: Json) -> list[T]:
    """Read a list of them."""
    with reading(kind.__name__):
        read = _plan(kind)
        return [cast("T", read(one)) for one in written]


def value(kind: type[T], written: Json, name: str) -> T:
    """Read what stands under a name."""
    with reading(name):
        found = written[name]
        if not isinstance(found, kind):
            raise TypeError(f"{type(found).__name__} where {kind.__name__} belongs")
        return found


@cache
def _plan(kind: type[Any]) -> Convert:
    """Return what makes a dataclass of JSON."""
    hints = get_type_hints(kind)
    plan = [(one.name, _wire(one.name), _convert(hints[one.name]), _needed(one)) for one in fields(kind)]

    def read(written: Any) -> Any:
        if not isinstance(written, Mapping):
            raise TypeError(f"{type(written).__name__} where an object belongs")
        found: dict[str, Any] = {}
        for name, wires, convert, needed in plan:
            for wire in wires:
                if wire in written:
                    found[name] = convert(written[wire])
                    break
            else:
                if needed:
                    raise KeyError(wires[0])
        return kind(**found)

    return read


_OTHERS: Mapping[str, str] = {"tokens": "tokenCount", "context": "contextId", "message_id": "id"}
"""Names by which the service knows some fields."""


def _wire(name: str) -> tuple[str, ...]:
    return (camel(name), _OTHERS[name]) if name in _OTHERS else (camel(name),)


def _needed(one: Any) -> bool:
    return one.default is MISSING and one.default_factory is MISSING


def _convert(hint: Any) -> Convert:
    """Return what reads a value of a type."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        others = [one for one in args if one is not NoneType]
        if len(others) == 1:
            inner = _convert(others[0])
            return lambda value: None if value is None else inner(value)
        return _part  # the one union of nouns there is
    if origin is tuple:
        if len(args) == 2 and args[1] is Ellipsis:
            each = _part if get_origin(args[0]) in (Union, UnionType) else _convert(args[0])
            return lambda value: tuple(each(one) for one in value)
        several = [_convert(one) for one in args]
        return lambda value: tuple(read(one) for read, one in zip(several, value, strict=True))
    if origin is Literal or hint is Any:
        return _same
    if origin is not None and issubclass(origin, Mapping):
        return lambda value: MappingProxyType(dict(value))
    return _convert_class(hint) if isinstance(hint, type) else _same


def _convert_class(hint: type[Any]) -> Convert:
    """Return what reads an instance of a class."""
    if hint is Redaction:
        return _redaction
    if is_dataclass(hint):
        return lambda value: _plan(hint)(value)
    if issubclass(hint, Enum):
        return hint
    if issubclass(hint, datetime):
        return lambda value: datetime.fromisoformat(value).astimezone(UTC)
    if issubclass(hint, bytes):
        return bytes.fromhex
    return float if hint is float else _same


def _same(value: Any) -> Any:
    return value


def _redaction(value: Any) -> Redaction:
    kinds = tuple((str(kind), int(number)) for kind, number in value["kinds"].items())
    return Redaction(mode=Privacy(value["mode"]), kinds=kinds)


def _part(value: Any) -> Any:
    (found,) = parts_from_json([{snake(name): item for name, item in value.items()}])
    return found


def snake(name: str) -> str:
    """Return a name on the wire as it is here."""
    return "".join(f"_{one.lower()}" if one.isupper() else one for one in name)


# ── nouns whose shape on the wire is another one ────────────────────────────────────────────────────────────────────


@reading("items")
def items(context: str, written: Mapping[str, Any], shown: str) -> ContextItems:
    """Read recalled or windowed items, which stand under a name; the reasons when they are first asked for."""
    sure = written.get("certainty") or {"confidence": written.get("confidence", 0.0)}

    def verdicts() -> Mapping[str, Verdict]:
        found = written.get("verdicts")
        if found is None:
            raise ConfigurationError("the reasons were not asked for", options=("Client(…, why=True)",))
        return {one.id: one for one in nouns(Verdict, found)}

    @reading("certainty")
    def certainty() -> Certainty:
        return Certainty(**sure)

    return ContextItems(
        nouns(ContextItem, written[shown]),
        budget=written["budget"],
        ledger=Ledger(
            verdicts,
            tuple(written["warnings"]),
            omitted=written["omitted"],
            certainty=certainty,
        ),
        context=context,
        version=written["version"],
        coverage=written.get("coverage", 1.0),
        tier=written.get("tier", "words"),
    )


@reading("entry")
def entry(written: Mapping[str, Any]) -> Entry:
    """Read an entry of a log."""
    episode = (written.get("episodeId") or "_0").rpartition("_")[2]  # its ordinal
    said = {"actor": written["actorId"], "chain": written["chainHash"], "episode": int(episode)}
    return noun(Entry, {**written, **said})


@reading("diff")
def diff(written: Mapping[str, Any], left: str, right: str) -> Diff:
    """Read a difference between two sides with these names."""

    def delta(kind: str) -> Delta:
        found = written[kind]
        return Delta(
            added=tuple(map(entry, found["added"])),
            removed=tuple(map(entry, found["removed"])),
            changed=tuple(
                Change(before=entry(one["before"]), after=entry(one["after"])) for one in found["changed"]
            ),
        )

    def side(name: str, shown: str) -> str:
        return f"{name} {shown.rpartition(' ')[2]}"  # the service knows it by its id

    return Diff(
        left=side(left, written["left"]),
        right=side(right, written["right"]),
        common=written["common"],
        messages=delta("messages"),
        facts=delta("facts"),
        summaries=delta("summaries"),
    )


@reading("branch")
def branch(written: Mapping[str, Any]) -> Branch:
    """Read a branch, or a context as one."""
    return noun(
        Branch,
        {
            "contextId": written["id"],
            "sessionId": written["key"] or written["id"],
            "parent": written["parentId"],
            "fork": written["forkVersion"],
            "version": written["latestVersion"],
            "createdAt": written["createdAt"],
            "deleted": written.get("deleted", False),
        },
    )


@reading("tree")
def tree(written: Sequence[Mapping[str, Any]]) -> Tree:
    """Read a tree from its branches, each with its depth, parents before their forks."""
    below: dict[int, list[Tree]] = {}
    for one in reversed(written):
        depth = one["depth"]
        forks = tuple(reversed(below.pop(depth + 1, [])))
        below.setdefault(depth, []).append(Tree(branch=branch(one), forks=forks))
    (found,) = below[0]
    return found


@reading("job")
def job(written: Json) -> Job:
    """Read a job; what it is about stays inside the service."""
    return noun(Job, {"dedupe": "", **written})


@reading("compaction")
def compaction(written: Json) -> Compaction:
    """Read a compaction."""
    made_under = {snake(name): value for name, value in written["policy"].items()}
    return noun(Compaction, {**written, "policy": made_under})


@reading("policy")
def policy(written: Json) -> ResolvedPolicy:
    """Read a policy."""
    levels = {snake(name): level for name, level in written["levels"].items()}
    return noun(ResolvedPolicy, {**written, "levels": levels})
