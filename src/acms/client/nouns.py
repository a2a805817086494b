"""Answers of the service as the nouns they were: names are camelCase on the wire, unknown ones are passed over."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar, get_origin

from acms.errors import ACMSError, ConfigurationError
from acms.log.merges import Merged
from acms.model import Json
from acms.nouns import read
from acms.results import Branch, Certainty, ContextItem, ContextItems, Diff, Ledger, Tree, Verdict

__all__ = ["diff", "items", "merged", "noun", "nouns", "reading", "tree", "value"]

T = TypeVar("T")


@contextmanager
def reading(what: str) -> Generator[None]:
    """Read an answer inside the block; `ACMSError` when it says something that this release does not understand."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        failure = ACMSError(
            f"the service's {what} cannot be read ({type(error).__name__}: {error})",
            options=("let client and service have the same release",),
        )
    else:
        return
    raise failure


def noun(kind: type[T], written: Json, **known: Any) -> T:
    """Read one noun; `known` are fields that the service does not write."""
    with reading(kind.__name__):
        return read(kind, written, **known)


def nouns(kind: type[T], written: Json) -> list[T]:
    """Read a list of them."""
    with reading(kind.__name__):
        return [read(kind, one) for one in written]


def value(kind: type[T], written: Json, name: str) -> T:
    """Read what stands under a name."""
    with reading(name):
        found = written[name]
        if not isinstance(found, get_origin(kind) or kind):
            raise TypeError(f"{type(found).__name__} where {kind.__name__} belongs")
        return found


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

    return ContextItems(
        nouns(ContextItem, written[shown]),
        budget=written["budget"],
        ledger=Ledger(
            verdicts,
            tuple(written["warnings"]),
            omitted=written["omitted"],
            certainty=lambda: noun(Certainty, sure),
        ),
        context=context,
        version=written["version"],
        coverage=written.get("coverage", 1.0),
        tier=written.get("tier", "words"),
    )


def _side(name: str, shown: str) -> str:
    """Return the name of a side with its version: the service knows it by its id."""
    return f"{name} {shown.rpartition(' ')[2]}"


@reading("merge")
def merged(written: Mapping[str, Any], ours: str, theirs: str) -> Merged:
    """Read what a merge did between two sides with these names."""
    found = read(Merged, written)
    return replace(found, ours=_side(ours, found.ours), theirs=_side(theirs, found.theirs))


@reading("diff")
def diff(written: Mapping[str, Any], left: str, right: str) -> Diff:
    """Read a difference between two sides with these names."""
    found = read(Diff, written)
    return replace(found, left=_side(left, found.left), right=_side(right, found.right))


@reading("tree")
def tree(written: Sequence[Mapping[str, Any]]) -> Tree:
    """Read a tree from its branches, each with its depth, parents before their forks."""
    below: dict[int, list[Tree]] = {}
    for one in reversed(written):
        depth = one["depth"]
        forks = tuple(reversed(below.pop(depth + 1, [])))
        below.setdefault(depth, []).append(Tree(branch=read(Branch, one), forks=forks))
    (found,) = below[0]
    return found
