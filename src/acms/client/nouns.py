"""Parse answers of the service as nouns (the dataclasses of `acms`); unknown fields are ignored.

Field names are camelCase in HTTP.
"""

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
def wrap_read_errors(part_name: str) -> Generator[None]:
    """Turn errors while parsing an answer inside the block into an `ACMSError`, which names the parsed part."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        failure = ACMSError(
            f"the service's {part_name} cannot be read ({type(error).__name__}: {error})",
            options=("use the same release of client and service",),
        )
    else:
        return
    raise failure  # outside the except block, so that the error does not hold the answer


def read_noun(kind: type[T], data: Json, **other_fields: Any) -> T:
    """Parse one noun; `other_fields` are values of fields that the service does not send."""
    with wrap_read_errors(kind.__name__):
        return decode_noun(kind, data, **other_fields)


def read_noun_list(kind: type[T], data: Json) -> list[T]:
    """Parse a list of nouns of one kind."""
    with wrap_read_errors(kind.__name__):
        return [decode_noun(kind, item) for item in data]


def read_typed_field(kind: type[T], data: Json, name: str) -> T:
    """Return the value of a field of JSON data; raise `ACMSError` if it is missing or not of a type."""
    with wrap_read_errors(name):
        value = data[name]
        if not isinstance(value, get_origin(kind) or kind):
            raise TypeError(f"{type(value).__name__} where {kind.__name__} belongs")
        return value


# ── nouns whose shape on the wire is another one ────────────────────────────────────────────────────────────────────


@wrap_read_errors("items")
def read_context_items(context: str, data: Mapping[str, Any], items_field: str) -> ContextItems:
    """Parse the items of a recall or a window from a field; the ledger is parsed on first access."""
    certainty = data.get("certainty") or {"confidence": data.get("confidence", 0.0)}

    def parse_verdicts() -> Mapping[str, Verdict]:
        verdicts = data.get("verdicts")
        if verdicts is None:
            raise ConfigurationError("the reasons were not requested", options=("Client(…, why=True)",))
        return {verdict.id: verdict for verdict in read_noun_list(Verdict, verdicts)}

    return ContextItems(
        read_noun_list(ContextItem, data[items_field]),
        budget=data["budget"],
        ledger=Ledger(
            parse_verdicts,
            tuple(data["warnings"]),
            omitted=data["omitted"],
            certainty=lambda: read_noun(Certainty, certainty),
        ),
        context=context,
        version=data["version"],
        coverage=data.get("coverage", 1.0),
        tier=data.get("tier", "words"),
    )


def _name_side(name: str, side: str) -> str:
    """Return the caller's name of a side, with the version from the service's name, which begins with the id."""
    return f"{name} {side.rpartition(' ')[2]}"


@wrap_read_errors("merge")
def read_merge_result(data: Mapping[str, Any], our_name: str, their_name: str) -> Merged:
    """Parse the result of a merge between two sides with these names."""
    merged = decode_noun(Merged, data)
    return replace(
        merged, ours=_name_side(our_name, merged.ours), theirs=_name_side(their_name, merged.theirs)
    )


@wrap_read_errors("diff")
def read_diff(data: Mapping[str, Any], left_name: str, right_name: str) -> Diff:
    """Parse a difference between two sides with these names."""
    diff = decode_noun(Diff, data)
    return replace(diff, left=_name_side(left_name, diff.left), right=_name_side(right_name, diff.right))


@wrap_read_errors("tree")
def read_tree(branches: Sequence[Mapping[str, Any]]) -> Tree:
    """Parse a tree from its branches, each with its depth, parents before their forks."""
    trees_by_depth: dict[int, list[Tree]] = {}  # trees whose parent is not parsed yet
    for branch in reversed(branches):  # from the end, so that forks are parsed before their parent
        depth = branch["depth"]
        forks = tuple(reversed(trees_by_depth.pop(depth + 1, [])))
        tree = Tree(branch=decode_noun(Branch, branch), forks=forks)
        trees_by_depth.setdefault(depth, []).append(tree)
    (root,) = trees_by_depth[0]
    return root
