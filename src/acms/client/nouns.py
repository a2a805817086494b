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
        return [decode_noun(kind, item) for item in written]


def read_typed_field(kind: type[T], written: Json, name: str) -> T:
    """Return the value of a field, checked to be of a type."""
    with wrap_read_errors(name):
        value = written[name]
        if not isinstance(value, get_origin(kind) or kind):
            raise TypeError(f"{type(value).__name__} where {kind.__name__} belongs")
        return value


# ── nouns whose shape on the wire is another one ────────────────────────────────────────────────────────────────────


@wrap_read_errors("items")
def read_context_items(context: str, written: Mapping[str, Any], shown: str) -> ContextItems:
    """Parse recalled or windowed items, stored under a name; their reasons are parsed on first access."""
    sure = written.get("certainty") or {"confidence": written.get("confidence", 0.0)}

    def verdicts() -> Mapping[str, Verdict]:
        items = written.get("verdicts")
        if items is None:
            raise ConfigurationError("the reasons were not asked for", options=("Client(…, why=True)",))
        return {verdict.id: verdict for verdict in read_noun_list(Verdict, items)}

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


def _name_side(name: str, side: str) -> str:
    """Return the name of a side with its version: the service knows it by its id."""
    return f"{name} {side.rpartition(' ')[2]}"


@wrap_read_errors("merge")
def read_merge_result(written: Mapping[str, Any], ours: str, theirs: str) -> Merged:
    """Parse the result of a merge between two sides with these names."""
    merged = decode_noun(Merged, written)
    return replace(merged, ours=_name_side(ours, merged.ours), theirs=_name_side(theirs, merged.theirs))


@wrap_read_errors("diff")
def read_diff(written: Mapping[str, Any], left: str, right: str) -> Diff:
    """Read a difference between two sides with these names."""
    diff = decode_noun(Diff, written)
    return replace(diff, left=_name_side(left, diff.left), right=_name_side(right, diff.right))


@wrap_read_errors("tree")
def read_tree(written: Sequence[Mapping[str, Any]]) -> Tree:
    """Read a tree from its branches, each with its depth, parents before their forks."""
    below: dict[int, list[Tree]] = {}
    for branch in reversed(written):
        # Backwards, the forks of a branch have been read before it.
        depth = branch["depth"]
        forks = tuple(reversed(below.pop(depth + 1, [])))
        below.setdefault(depth, []).append(Tree(branch=decode_noun(Branch, branch), forks=forks))
    (tree,) = below[0]
    return tree
