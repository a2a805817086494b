"""Answers of the service as the nouns they were: names are camelCase on the wire, unknown ones are passed over."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar, get_origin

from acms.errors import ACMSError, ConfigurationError
from acms.log.merges import Merged
from acms.model import Json
from acms.nouns import decode_noun
from acms.results import Branch, Certainty, ContextItem, ContextItems, Diff, Ledger, Tree, Verdict

__all__ = [
    "read_context_items",
    "read_diff",
    "read_merge_result",
    "read_noun",
    "read_noun_list",
    "read_tree",
    "read_typed_field",
    "wrap_read_errors",
]

T = TypeVar("T")


@contextmanager
def wrap_read_errors(what: str) -> Generator[None]:
    """Parse an answer inside the block; raise `ACMSError` if this release does not understand it."""
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


def read_noun(kind: type[T], written: Json, **known: Any) -> T:
    """Read one noun; `known` are fields that the service does not write."""
    with wrap_read_errors(kind.__name__):
        return decode_noun(kind, written, **known)


def read_noun_list(kind: type[T], written: Json) -> list[T]:
    """Read a list of them."""
    with wrap_read_errors(kind.__name__):
        return [decode_noun(kind, one) for one in written]


def read_typed_field(kind: type[T], written: Json, name: str) -> T:
    """Return the value of a field, checked to be of a type."""
    with wrap_read_errors(name):
        found = written[name]
        if not isinstance(found, get_origin(kind) or kind):
            raise TypeError(f"{type(found).__name__} where {kind.__name__} belongs")
        return found


# ── nouns whose shape on the wire is another one ────────────────────────────────────────────────────────────────────


@wrap_read_errors("items")
def read_context_items(context: str, written: Mapping[str, Any], shown: str) -> ContextItems:
    """Parse recalled or windowed items, stored under a name; their reasons are parsed on first access."""
    sure = written.get("certainty") or {"confidence": written.get("confidence", 0.0)}

    def verdicts() -> Mapping[str, Verdict]:
        found = written.get("verdicts")
        if found is None:
            raise ConfigurationError("the reasons were not asked for", options=("Client(…, why=True)",))
        return {one.id: one for one in read_noun_list(Verdict, found)}

    return ContextItems(
        read_noun_list(ContextItem, written[shown]),
        budget=written["budget"],
        ledger=Ledger(
            verdicts,
            tuple(written["warnings"]),
            omitted=written["omitted"],
            certainty=lambda: read_noun(Certainty, sure),
        ),
        context=context,
        version=written["version"],
        coverage=written.get("coverage", 1.0),
        tier=written.get("tier", "words"),
    )


def _name_side(name: str, shown: str) -> str:
    """Return the name of a side with its version: the service knows it by its id."""
    return f"{name} {shown.rpartition(' ')[2]}"


@wrap_read_errors("merge")
def read_merge_result(written: Mapping[str, Any], ours: str, theirs: str) -> Merged:
    """Parse the result of a merge between two sides with these names."""
    found = decode_noun(Merged, written)
    return replace(found, ours=_name_side(ours, found.ours), theirs=_name_side(theirs, found.theirs))


@wrap_read_errors("diff")
def read_diff(written: Mapping[str, Any], left: str, right: str) -> Diff:
    """Read a difference between two sides with these names."""
    found = decode_noun(Diff, written)
    return replace(found, left=_name_side(left, found.left), right=_name_side(right, found.right))


@wrap_read_errors("tree")
def read_tree(written: Sequence[Mapping[str, Any]]) -> Tree:
    """Read a tree from its branches, each with its depth, parents before their forks."""
    below: dict[int, list[Tree]] = {}
    for one in reversed(written):
        depth = one["depth"]
        forks = tuple(reversed(below.pop(depth + 1, [])))
        below.setdefault(depth, []).append(Tree(branch=decode_noun(Branch, one), forks=forks))
    (found,) = below[0]
    return found
