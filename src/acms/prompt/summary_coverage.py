"""Summary coverage: the messages of a prompt that a stored text still covers, and the record kept with it.

A watermark records the messages a text was made from. It is trusted only if they can be verified: every message by a
chain of digests, or, where a log says that nothing in it was rewritten since, the last message by its id. If anything
differs, the text does not match and a new one is written: a summary never replaces messages it has not read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256

from acms.compaction import span
from acms.log.encoding import parts_to_json
from acms.log.trust import LEADING
from acms.log.validation import canonical_text
from acms.model import Entry, Json, KVEntry, Role, Text
from acms.plan.nodes import Atom, Composed, Fitted, Left, Node, Piece, Scope, Summarise
from acms.plan.tool_groups import is_placeholder
from acms.ports import Turn
from acms.prompt_types import PromptMessage
from acms.text.chat_messages import SUMMARY, wrap_text

FIELD = "watermark"
"""Name of the watermark in the metadata of a stored summary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermark:
    """A record of the messages a stored summary was made from."""

    #: How many leading atoms it stands for, and the chain of their digests.
    atoms: int
    chain: str
    #: Who wrote it.
    model: str
    #: The rest is known where all of them came from one log, as it was when `stamp` was its state.
    stamp: str = ""
    #: The last entry it stands for, and the tokens of the log before that atom.
    entry: str = ""
    before: int = 0
    #: Highest version that was read then: later entries are not in it, wherever they are shown.
    seen: int = 0

    def to_json(self) -> dict[str, Json]:
        """Return the stored form, without empty values."""
        return {name: getattr(self, name) for name in self.__slots__ if getattr(self, name) not in ("", 0)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """How a stored summary and the messages of a prompt fit together."""

    #: Leading atoms it stands for here; 0 when it does not match.
    covers: int = 0
    #: Why it does not, for the ledger; "" when it does.
    reason: str = ""


def parse_watermark(metadata: Mapping[str, Json]) -> Watermark | None:
    """Read the watermark beside a stored text; None when there is none of this form."""
    found = metadata.get(FIELD)
    if not isinstance(found, Mapping):
        return None
    kinds: dict[str, type] = {
        "atoms": int, "chain": str, "model": str, "stamp": str, "entry": str, "before": int, "seen": int,
    }  # fmt: skip
    known = {name: value for name, value in found.items() if name in kinds}
    if not {"atoms", "chain", "model"} <= known.keys():
        return None
    if any(type(value) is not kinds[name] for name, value in known.items()) or known["atoms"] < 1:
        return None
    return Watermark(**known)


def is_stored(entry: KVEntry | None) -> bool:
    """Whether a value is the text of a stored summary."""
    return entry is not None and FIELD in entry.metadata


def chain_digests(atoms: Iterable[Atom], start: str = "") -> str:
    """Return the chain of digests over some atoms, going on from that of those before them."""
    link = start
    for atom in atoms:
        said = [[message.role.value, message.name, parts_to_json(message.parts)] for message in atom.messages]
        text = json.dumps(said, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
        link = sha256(f"{link}\n{text}".encode("utf-8", "surrogatepass")).hexdigest()
    return link


def match_watermark(
    mark: Watermark | None, atoms: Sequence[Atom], *, model: str, stamp: str = "", whole: bool = True
) -> Match:
    """Return how many of the leading atoms a stored summary covers.

    `stamp` is the state of the log they all came from, "" when there is none. Unless they are the `whole` content they
    begin somewhere inside it: then only a summary of the same state matches, and it covers the earlier content too.
    """
    if mark is None:
        return Match(reason="nothing is stored that says what it stands for")
    if mark.model != model:
        return Match(reason=f"it was written by {mark.model}, this prompt is summarised by {model}")
    if stamp and mark.entry and mark.stamp == stamp:
        ends = next((i + 1 for i, atom in enumerate(atoms) if _last_entry_id(atom) == mark.entry), 0)
        known = 0 < ends == mark.atoms if whole else 0 < ends <= mark.atoms
        if known and _all_logged(atoms[:ends]) and max(atom.last for atom in atoms[:ends]) <= mark.seen:
            return Match(covers=ends)
    if not whole:
        return Match(reason="the log was rewritten since, or what it stands for has grown")
    if mark.atoms > len(atoms):
        return Match(reason=f"it stands for {mark.atoms} messages, there are {len(atoms)}")
    if chain_digests(atoms[: mark.atoms]) != mark.chain:
        return Match(reason=f"one of the {mark.atoms} messages it stands for is not what it was")
    return Match(covers=mark.atoms)


def build_watermark(
    old: Watermark | None, known: int, atoms: Sequence[Atom], covers: int, *, model: str, stamp: str = ""
) -> Watermark:
    """Return the watermark of a text that stands for so many leading atoms.

    `old` is that of the text it goes on from, which stood for the first `known` of them and for whatever was before.
    """
    base = old if old is not None and known else None
    start, before = (base.chain, base.atoms - known) if base else ("", 0)
    logged = bool(stamp) and _all_logged(atoms[:covers])
    found = Watermark(
        atoms=before + covers, chain=chain_digests(atoms[known if base else 0 : covers], start), model=model
    )
    if not logged:
        return found
    return Watermark(
        atoms=found.atoms,
        chain=found.chain,
        model=model,
        stamp=stamp,
        entry=_last_entry_id(atoms[covers - 1]),
        before=atoms[covers - 1].before,
        seen=max(atom.last for atom in atoms),
    )


def find_resume_offset(mark: Watermark | None, *, model: str, stamp: str) -> int:
    """Return how far back a log must be read to go on from a summary: to the atom with no more tokens before it.

    0 when it must be read from its beginning.
    """
    fresh = mark is not None and bool(mark.entry) and mark.stamp == stamp and mark.model == model
    return mark.before if mark is not None and fresh else 0


def covers_more_atoms(mine: Watermark, theirs: Watermark | None) -> bool:
    """Return whether a text replaces one that another process stored meanwhile: the one covering more stays."""
    return theirs is None or mine.atoms > theirs.atoms


def role_of_summary(asked: Role, atoms: Iterable[Atom], *, whole: bool) -> Role:
    """Return the role of a text that stands for some atoms: one that instructs only where all of them do."""
    instructing = whole and all(message.role in LEADING for atom in atoms for message in atom.messages)
    return asked if instructing or asked not in LEADING else Role.USER


def build_summary_message(text: str, role: Role) -> PromptMessage:
    """Return a stored text as it stands in a prompt."""
    return PromptMessage(role=role, parts=(Text(wrap_text(text, SUMMARY)),))


def drop_repeated_pins(
    tree: Scope, fitted: Fitted, stored: Mapping[str, str]
) -> tuple[Scope, tuple[Left, ...]] | None:
    """Return the tree without the pins of summaries that are in the prompt anyway, and them; None when there are none.

    In one prompt a thing appears once: a pinned summary is left out when its own scope shows it, or shows all that it
    stands for; not when that scope is left out. `stored` are the texts by id: a pin that does not show the text is
    another thing under the same name.
    """
    scopes = list(_walk_scopes(tree, ""))
    shown = {
        scope.strategy.id: path
        for path, scope in scopes
        if isinstance(scope.strategy, Summarise) and _is_rendered(path, scope, fitted)
    }
    texts = {id: stored[id] for id in shown if stored.get(id)}
    left = tuple(
        Left((piece.id,), path, "once", f"{shown[piece.id]} has it already", piece.tokens or 0)
        for path, scope in scopes
        for node in scope.children
        if isinstance(node, Composed) and node.kind == "pins"
        for piece in node.pieces
        if _contains_text(piece, texts.get(piece.id))
    )
    return (_drop_pins(tree, texts), left) if left else None


def _walk_scopes(scope: Scope, path: str) -> Iterator[tuple[str, Scope]]:
    path = f"{path}/{scope.id}" if path else scope.id
    yield path, scope
    for node in scope.children:
        if isinstance(node, Scope):
            yield from _walk_scopes(node, path)


def _is_rendered(path: str, scope: Scope, fitted: Fitted) -> bool:
    """Whether a summary, or all that it stands for, is in a prompt."""
    inside = [one for one in fitted.placed if one.path == path or one.path.startswith(f"{path}/")]
    if not inside:
        return False
    if any(one.path == path and one.rendition == "summary" for one in inside):
        return True
    how = scope.strategy
    stands = build_summary_message(how.text, how.role) if isinstance(how, Summarise) and how.text else None
    if isinstance(scope.children[0], Atom) and scope.children[0].messages == (
        stands,
    ):  # in place of the oldest
        return inside[0].message == stands
    return not any(one.gone and (one.path == path or one.path.startswith(f"{path}/")) for one in fitted.left)


def _drop_pins(scope: Scope, pins: Mapping[str, str]) -> Scope:
    """Return a scope without pieces that show these pins."""
    children: list[Node] = []
    for node in scope.children:
        if isinstance(node, Scope):
            children.append(_drop_pins(node, pins))
        elif isinstance(node, Composed) and node.kind == "pins":
            kept = tuple([one for one in node.pieces if not _contains_text(one, pins.get(one.id))])
            children += [node._replace(pieces=kept)] if kept else []
        else:
            children.append(node)
    return replace(scope, children=tuple(children))


def _contains_text(piece: Piece, text: str | None) -> bool:
    return text is not None and all(line.strip() in piece.text for line in text.splitlines())


def turns_of_atoms(atoms: Iterable[Atom], existing: str, entries: Mapping[str, Entry]) -> tuple[Turn, ...]:
    """Return the input of a summarizer: the earlier summary, then the messages; entries as a compaction reads them."""
    found: list[Turn] = []
    if existing:
        found.append(Turn(speaker="summary", text=existing, version=0, summary=True))
    for one in (one for atom in atoms for one in atom.messages):
        known = [entries.get(id) for id in one.sources]
        if known and None not in known:
            found += span.turns_of_entries([entry for entry in known if entry is not None])
            continue
        text = canonical_text(one.parts)
        if text.strip():
            found.append(Turn(speaker=one.name or one.role.value, text=text, version=len(found) + 1))
    return tuple(found)


def _last_entry_id(atom: Atom) -> str:
    """Return the id of the last entry an atom shows; "" when it shows none."""
    return next((message.sources[-1] for message in reversed(atom.messages) if message.sources), "")


def _all_logged(atoms: Sequence[Atom]) -> bool:
    """Whether nothing in some atoms was written by the caller of a prompt."""
    return all(
        atom.last > 0 and all(message.sources or is_placeholder(message) for message in atom.messages)
        for atom in atoms
    )
