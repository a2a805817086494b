"""Summary coverage: the messages of a prompt that a stored text still covers, and the record kept with it.

A watermark records the messages a text was made from. It is trusted only if they can be verified: every message by a
chain of digests, or, where a log says that nothing in it was rewritten since, the last message by its id. If anything
differs, the text does not match and a new one is written: a summary never replaces messages it has not read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TypeGuard

from acms.compaction.plan import turns_of_entries
from acms.log.encoding import parts_to_json
from acms.log.trust import LEADING
from acms.log.validation import canonical_text
from acms.model import Entry, Json, KVEntry, Role
from acms.plan.nodes import (
    ComposedMessage,
    FittedPrompt,
    MessageGroup,
    Node,
    Omission,
    Piece,
    Scope,
    Summarise,
    is_path_inside,
)
from acms.plan.tool_groups import is_placeholder
from acms.ports import Turn
from acms.prompt.fit_state import build_summary_message

FIELD = "watermark"
"""Name of the watermark in the metadata of a stored summary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermark:
    """A record of the messages a stored summary was made from."""

    #: How many leading groups of messages it covers, and the chain of their digests.
    atoms: int
    chain: str
    #: Who wrote it.
    model: str
    #: The rest is known where all of them came from one log, as it was when `stamp` was its state.
    stamp: str = ""
    #: The last entry it covers, and the tokens of the log before that group.
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

    #: Leading groups it covers here; 0 when it does not match.
    covers: int = 0
    #: Why it does not, for the ledger; "" when it does.
    reason: str = ""


def parse_watermark(metadata: Mapping[str, Json]) -> Watermark | None:
    """Read the watermark beside a stored text; None when there is none of this form."""
    fields = metadata.get(FIELD)
    if not isinstance(fields, Mapping):
        return None
    kinds: dict[str, type] = {
        "atoms": int, "chain": str, "model": str, "stamp": str, "entry": str, "before": int, "seen": int,
    }  # fmt: skip
    values = {name: value for name, value in fields.items() if name in kinds}
    if not {"atoms", "chain", "model"} <= values.keys():
        return None
    has_wrong_type = any(type(value) is not kinds[name] for name, value in values.items())
    if has_wrong_type or values["atoms"] < 1:
        return None
    return Watermark(**values)


def is_stored(entry: KVEntry | None) -> bool:
    """Return whether a value is the text of a stored summary."""
    return entry is not None and FIELD in entry.metadata


def chain_digests(groups: Iterable[MessageGroup], start: str = "") -> str:
    """Return the chain of digests over some groups, going on from that of those before them."""
    link = start
    for group in groups:
        messages = [
            [message.role.value, message.name, parts_to_json(message.parts)] for message in group.messages
        ]
        text = json.dumps(messages, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
        link = sha256(f"{link}\n{text}".encode("utf-8", "surrogatepass")).hexdigest()
    return link


def match_watermark(
    watermark: Watermark | None,
    groups: Sequence[MessageGroup],
    *,
    model: str,
    stamp: str = "",
    whole: bool = True,
) -> Match:
    """Return how many of the leading groups a stored summary covers.

    `stamp` is the state of the log they all came from, "" when there is none. Unless they are the `whole` content they
    begin somewhere inside it: then only a summary of the same state matches, and it covers the earlier content too.
    """
    if watermark is None:
        return Match(reason="its stored record is missing")
    if watermark.model != model:
        return Match(reason=f"it was written by {watermark.model}, this prompt is summarised by {model}")
    if stamp and watermark.stamp == stamp:
        covers = _find_covered_groups(watermark, groups, whole=whole)
        if covers:
            return Match(covers=covers)
    if not whole:
        return Match(reason="the log was rewritten since, or the covered part has grown")
    if watermark.atoms > len(groups):
        return Match(reason=f"it covers {watermark.atoms} messages, there are {len(groups)}")
    if chain_digests(groups[: watermark.atoms]) != watermark.chain:
        return Match(reason=f"one of the {watermark.atoms} messages it covers has changed")
    return Match(covers=watermark.atoms)


def _find_covered_groups(watermark: Watermark, groups: Sequence[MessageGroup], *, whole: bool) -> int:
    """Return how many of the first groups a summary covers: those up to the entry where it stopped.

    0 if some of them have changed since.
    """
    entry_ids = [_last_entry_id(group) for group in groups]
    if not watermark.entry or watermark.entry not in entry_ids:
        return 0
    count = entry_ids.index(watermark.entry) + 1
    # If only the end of a log is loaded, some of the covered groups may be missing.
    has_expected_count = count == watermark.atoms if whole else count <= watermark.atoms
    covered_groups = groups[:count]
    if not has_expected_count or not _all_logged(covered_groups):
        return 0
    was_read = all(group.last <= watermark.seen for group in covered_groups)
    return count if was_read else 0


def build_watermark(
    previous: Watermark | None,
    covered_before: int,
    groups: Sequence[MessageGroup],
    covers: int,
    *,
    model: str,
    stamp: str = "",
) -> Watermark:
    """Return the watermark of a text that covers so many leading groups.

    `previous` is that of the text it continues, which covered the first `covered_before` of these groups and everything
    before them.
    """
    count, link, start = covers, "", 0
    if previous is not None and covered_before:
        count, link, start = previous.atoms - covered_before + covers, previous.chain, covered_before
    watermark = Watermark(atoms=count, chain=chain_digests(groups[start:covers], link), model=model)
    if not stamp or not _all_logged(groups[:covers]):
        return watermark
    last = groups[covers - 1]
    seen = max(group.last for group in groups)
    return replace(watermark, stamp=stamp, entry=_last_entry_id(last), before=last.before, seen=seen)


def find_resume_offset(watermark: Watermark | None, *, model: str, stamp: str) -> int:
    """Return how far back a log must be read to go on from a summary: to the group with no more tokens before it.

    0 when it must be read from its beginning.
    """
    if watermark is None or not watermark.entry or (watermark.stamp, watermark.model) != (stamp, model):
        return 0
    return watermark.before


def covers_more_groups(candidate: Watermark, existing: Watermark | None) -> bool:
    """Return whether a text replaces one that another process stored meanwhile: the one covering more stays."""
    return existing is None or candidate.atoms > existing.atoms


def role_of_summary(requested_role: Role, groups: Iterable[MessageGroup], *, whole: bool) -> Role:
    """Return the role of a text that covers some groups: one that instructs only where all of them do."""
    instructing = whole and all(message.role in LEADING for group in groups for message in group.messages)
    return requested_role if instructing or requested_role not in LEADING else Role.USER


def drop_repeated_pins(
    tree: Scope, fitted: FittedPrompt, stored_texts: Mapping[str, str]
) -> tuple[Scope, tuple[Omission, ...]] | None:
    """Return the tree without the pins of summaries that the prompt shows anyway, and these pins; None without any.

    A prompt shows the same text once: a pinned summary is left out when its own scope shows the summary, or shows all
    messages that it covers; not when that scope is left out. `stored_texts` are the summaries by id: a pin with another
    text is another value under the same key.
    """
    scopes = _list_scopes(tree, tree.id)
    path_by_summary: dict[str, str] = {}
    for path, scope in scopes:
        if isinstance(scope.strategy, Summarise) and _is_rendered(path, scope, scope.strategy, fitted):
            path_by_summary[scope.strategy.id] = path
    texts = {id: stored_texts[id] for id in path_by_summary if stored_texts.get(id)}
    omissions: list[Omission] = []
    for path, scope in scopes:
        for node in scope.children:
            for piece in node.pieces if _is_pin_block(node) else ():
                if _contains_text(piece, texts.get(piece.id)):
                    reason = f"{path_by_summary[piece.id]} has it already"
                    omissions.append(Omission((piece.id,), path, "once", reason, piece.tokens or 0))
    return (_drop_pins(tree, texts), tuple(omissions)) if omissions else None


def _is_pin_block(node: Node) -> TypeGuard[ComposedMessage]:
    return isinstance(node, ComposedMessage) and node.kind == "pins"


def _list_scopes(scope: Scope, path: str) -> list[tuple[str, Scope]]:
    """Return a scope and all scopes inside it, with their paths."""
    scopes = [(path, scope)]
    for node in scope.children:
        if isinstance(node, Scope):
            scopes += _list_scopes(node, f"{path}/{node.id}")
    return scopes


def _is_rendered(path: str, scope: Scope, strategy: Summarise, fitted: FittedPrompt) -> bool:
    """Return whether a summary, or everything it covers, is in a prompt."""
    placements = [placement for placement in fitted.placed if is_path_inside(placement.path, path)]
    if not placements:
        return False
    if any(placement.path == path and placement.rendition == "summary" for placement in placements):
        return True
    first = scope.children[0]
    if strategy.text and isinstance(first, MessageGroup):
        summary = build_summary_message(strategy.text, strategy.role)
        if first.messages == (summary,):  # in place of the oldest
            return placements[0].message == summary
    return not any(omission.gone and is_path_inside(omission.path, path) for omission in fitted.omissions)


def _drop_pins(scope: Scope, texts: Mapping[str, str]) -> Scope:
    """Return a scope without the pins that show these texts."""
    children: list[Node] = []
    for node in scope.children:
        if isinstance(node, Scope):
            node = _drop_pins(node, texts)
        elif _is_pin_block(node):
            pieces = [piece for piece in node.pieces if not _contains_text(piece, texts.get(piece.id))]
            if not pieces:
                continue
            node = node._replace(pieces=tuple(pieces))
        children.append(node)
    return replace(scope, children=tuple(children))


def _contains_text(piece: Piece, text: str | None) -> bool:
    return text is not None and all(line.strip() in piece.text for line in text.splitlines())


def turns_of_groups(
    groups: Iterable[MessageGroup], existing: str, entries: Mapping[str, Entry]
) -> tuple[Turn, ...]:
    """Return the input of a summarizer: the earlier summary, then the messages; entries as a compaction reads them."""
    turns: list[Turn] = []
    if existing:
        turns.append(Turn(speaker="summary", text=existing, version=0, summary=True))
    for group in groups:
        for message in group.messages:
            known_entries = [entries[id] for id in message.sources if id in entries]
            if known_entries and len(known_entries) == len(message.sources):
                turns += turns_of_entries(known_entries)
                continue
            text = canonical_text(message.parts)
            if text.strip():
                speaker = message.name or message.role.value
                turns.append(Turn(speaker=speaker, text=text, version=len(turns) + 1))
    return tuple(turns)


def _last_entry_id(group: MessageGroup) -> str:
    """Return the id of the last entry a group shows; "" when it shows none."""
    return next((message.sources[-1] for message in reversed(group.messages) if message.sources), "")


def _all_logged(groups: Sequence[MessageGroup]) -> bool:
    """Return whether nothing in some groups was written by the caller of a prompt."""
    return all(
        group.last > 0 and all(message.sources or is_placeholder(message) for message in group.messages)
        for group in groups
    )
