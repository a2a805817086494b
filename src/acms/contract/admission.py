"""Admission: apply privacy to the candidates of a reply, then select among them.

Privacy comes before the choice. A blocked item is reduced to its id, its level of detail and names that reveal nothing.
Any other item is redacted and its tokens are counted again. Redaction reads every character, so only chosen items are
redacted; if that changes a text, the choice is repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

from acms.contract.kv_policy import Held, policy
from acms.contract.renditions import Counts, release_in_chunks
from acms.contract.schema import Candidate, KVPolicy, RiskLevel, Variant
from acms.contract.selection import Profile, Selection, select_fragments
from acms.model import Privacy
from acms.privacy.detect import Redacted, redact_text, safe_key, strictest_mode
from acms.results import Ledger, Verdict

MARK = "[REDACTED: "
"""How the mark of a redaction begins."""
PIECE = 8
"""Consecutive characters of a secret that reveal it."""
ROUNDS = 3
"""Rounds in which only the chosen items are redacted; after that, all remaining items are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The parameters of a choice."""

    #: The stricter of the request's and the tenant's mode.
    mode: Privacy
    gaze: tuple[str, ...]
    tokens_max: int
    now: datetime
    count: Callable[[str], int]
    #: Counts many texts at once, where that is faster.
    counts: Counts | None = None
    profile: Profile = "quality"
    order: Literal["selection", "lod"] = "selection"
    risk: RiskLevel = RiskLevel.MEDIUM
    #: Texts that belong to no candidate and must not be revealed either.
    unread: tuple[str, ...] = ()
    #: The caller's cache entries, and the capacity of that cache in keys.
    cache: tuple[Held, ...] = ()
    capacity: int | None = None
    #: Share of the tokens that external text of sessions may take while other text that answers is left out.
    external_share: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """The chosen fragments, and the effects of privacy on the candidates."""

    selection: Selection
    #: The candidates of the fragments by id, as they were admitted.
    candidates: dict[str, Candidate]
    #: Fragments of which only the id is shown.
    blocked: int = 0
    #: Fragments in which something was redacted, by us or before.
    redacted: int = 0
    #: Candidates that are not shown at all: their id or their names would reveal their content.
    withheld: int = 0
    #: Advice for the caller's cache.
    advice: KVPolicy


def admit_candidates(candidates: Iterable[Candidate], terms: Terms) -> Admitted:
    """Choose the fragments of a reply. The order of the candidates does not matter."""
    under = {mode: strictest_mode(terms.mode, mode) for mode in Privacy}
    pool, withheld = _without_blocked(candidates, under, terms.unread)
    clean: set[str] = set()
    asked = frozenset(terms.gaze)
    tells = {mode: _Sensitive(mode) for mode in Privacy}
    rounds = 0
    while True:
        selection = select_fragments(
            pool,
            gaze=terms.gaze,
            tokens_max=terms.tokens_max,
            now=terms.now,
            count=terms.count,
            counts=terms.counts,
            profile=terms.profile,
            risk=terms.risk,
            order=terms.order,
            external_share=terms.external_share,
        )
        fresh = {one.id for one in selection.fragments if one.id not in clean}
        if not fresh:
            break
        rounds += 1
        if rounds > ROUNDS:
            fresh = {one.id for one in pool} - clean
        modes = [under[one.privacy] for one in pool]
        cleaned = [
            _redact_candidate(one, mode, asked, tells[mode]) if one.id in fresh else one
            for one, mode in zip(pool, modes, strict=True)
        ]
        changed = any(found is not one for found, one in zip(cleaned, pool, strict=True))
        clean |= fresh
        pool = [one for one in cleaned if one is not None]
        withheld += len(cleaned) - len(pool)
        if not changed:
            break
    shown = {one.id for one in selection.fragments}
    by_id = {one.id: one for one in pool if one.id in shown}
    release_in_chunks(pool)
    return Admitted(
        selection=selection,
        advice=policy(
            selected=selection.fragments,
            tokens_max=terms.tokens_max,
            gaze=terms.gaze,
            benefits=selection.benefits,
            cache=terms.cache,
            capacity=terms.capacity,
        ),
        candidates=by_id,
        blocked=sum(1 for one in selection.fragments if under[by_id[one.id].privacy] is Privacy.BLOCK),
        redacted=sum(1 for one in selection.fragments if one.text is not None and MARK in one.text),
        withheld=withheld,
    )


def _without_blocked(
    candidates: Iterable[Candidate], under: Mapping[Privacy, Privacy], unread: Iterable[str]
) -> tuple[list[Candidate], int]:
    """Return the candidates, the blocked ones without their texts, and how many blocked ones are withheld."""
    pool: list[Candidate] = []
    hidden: list[Candidate] = []
    for one in candidates:
        (hidden if under[one.privacy] is Privacy.BLOCK else pool).append(one)
    texts = Windows((*(text for one in hidden for text in _candidate_texts(one)), *unread))
    shown = [found for one in hidden if (found := _strip_blocked(one, texts)) is not None]
    return pool + shown, len(hidden) - len(shown)


def best_candidates(candidates: Iterable[Candidate], most: int) -> tuple[list[Candidate], tuple[str, ...]]:
    """Return the best of some candidates by their providers' judgement, then the freshest; and the ids of the rest."""
    ordered = sorted(candidates, key=_best_first)
    return ordered[:most], tuple(one.id for one in ordered[most:])


def _best_first(one: Candidate) -> tuple[float, float, str, str]:
    stamp = 0.0 if one.timestamp is None else one.timestamp.timestamp()
    return -(one.relevance or 0.0), -stamp, one.id, repr(one)


def build_ledger(admitted: Admitted, beyond: Sequence[str] = ()) -> Ledger:
    """Return the verdict on each candidate, in the terms of a recall; built when it is first read.

    `beyond` are ids of units of experience above the requested number. The ledger contains no text. An id that holds
    something sensitive is redacted; an id that reveals blocked text is not listed.
    """
    weighed, withheld = admitted.selection.weighed, admitted.withheld

    def write() -> dict[str, Verdict]:
        found = [
            _omission_verdict(id, "top_k", "experience_top_k asked for fewer units of experience")
            for id in beyond
        ]
        found += weighed.verdicts()
        reason = "its id or its names would tell what may not be shown"
        found += [
            _omission_verdict(f"withheld:{number}", "hidden", reason) for number in range(1, withheld + 1)
        ]
        safe = [
            replace(one, id=redact_text(one.id, Privacy.REDACT).text)
            if _is_sensitive_id(one.id, Privacy.REDACT)
            else one
            for one in found
        ]
        return {one.id: one for one in safe}

    shown = len(admitted.selection.fragments)
    return Ledger(write, omitted=weighed.single + withheld + len(beyond) - shown)


def _omission_verdict(id: str, rule: str, reason: str) -> Verdict:
    return Verdict(id=id, version=0, included=False, rule=rule, reason=reason)


def _candidate_texts(one: Candidate) -> Iterator[str]:
    """Yield all renditions of a candidate."""
    if one.text:
        yield one.text
    for variant in one.variants:
        yield variant.text


def _strip_blocked(one: Candidate, texts: Windows) -> Candidate | None:
    """Return a blocked item without its texts, or None if its id alone would reveal a blocked text or a secret."""
    if texts.give_away(one.id) or _is_sensitive_id(one.id, Privacy.REDACT):
        return None
    return replace(
        one,
        text=None,
        variants=(),
        cost_tokens=0,
        citations=(),
        entities=tuple(name for name in one.entities if safe_key(name) and not texts.give_away(name)),
        privacy=Privacy.BLOCK,
    )


def _is_sensitive_id(id: str, mode: Privacy) -> bool:
    """Return whether an id holds something sensitive; "phone" is ignored, because long numbers in ids look like one."""
    return any(one.kind != "phone" for one in redact_text(id, mode).spans)


def redact_excerpt(part: str, whole: str, mode: Privacy) -> str | None:
    """Return a redacted excerpt of a text, or None if the excerpt cuts through a secret of the whole text.

    The rules do not find half a key, but half a key must not be shown either.
    """
    shown = redact_text(part, mode).text
    for span in redact_text(whole, mode).spans:
        secret = whole[span.start : span.end]
        if any(secret[at : at + PIECE] in shown for at in range(max(1, len(secret) - PIECE + 1))):
            return None
    return shown


class _Sensitive(dict[str, bool]):
    """A cache of whether names hold something sensitive: many items share the same names."""

    def __init__(self, mode: Privacy) -> None:
        super().__init__()
        self._mode = mode

    def __missing__(self, name: str) -> bool:
        found = self[name] = bool(redact_text(name, self._mode).spans)
        return found


def _redact_candidate(
    one: Candidate, mode: Privacy, asked: frozenset[str], sensitive: Mapping[str, bool]
) -> Candidate | None:
    """Return a redacted item, the item itself if nothing in it is sensitive, or None if its id is sensitive."""
    if _is_sensitive_id(one.id, mode):
        return None
    citations = tuple(name for name in one.citations if not _is_sensitive_id(name, mode))
    text = None if one.text is None else redact_text(one.text, mode)
    variants: list[Variant] = []
    secret = _redacted_texts(one.text, text)
    for variant in one.variants:
        read = redact_text(variant.text, mode)
        secret += _redacted_texts(variant.text, read)
        shown = (
            redact_excerpt(variant.text, one.text, mode)
            if text is not None and one.text and text.spans
            else read.text
        )
        if shown is not None:
            variants.append(variant if shown == variant.text else replace(variant, text=shown, cost_tokens=0))
    left = [] if text is None else [text.text.lower()]
    left += [variant.text.lower() for variant in variants]
    entities = tuple(
        name
        for name in one.entities
        if not sensitive[name]
        and (name.lower() in asked or not _is_redacted_entity(name.lower(), secret, left))
    )
    if not secret and entities == one.entities and citations == one.citations:
        return one
    return replace(
        one,
        text=None if text is None else text.text,
        # The claimed cost was that of another text.
        cost_tokens=0 if text is not None and text.spans else one.cost_tokens,
        variants=tuple(variants),
        entities=entities,
        citations=citations,
    )


def _redacted_texts(before: str | None, after: Redacted | None) -> list[str]:
    if before is None or after is None:
        return []
    return [before[span.start : span.end].lower() for span in after.spans]


def _is_redacted_entity(name: str, secret: Sequence[str], left: Sequence[str]) -> bool:
    """Return whether an entity occurs in the removed text and nowhere else."""
    return any(name in one for one in secret) and not any(name in one for one in left)


WINDOW = 20
"""Consecutive characters that reveal a text."""
GRAM = 10
STRIDE = WINDOW - GRAM + 1
MOST = 64
"""Occurrences of one gram that are compared; a gram with more counts as revealing its text."""


class Windows:
    """Texts that must not be revealed, indexed by grams."""

    def __init__(self, texts: Iterable[str]) -> None:
        #: By gram, its contexts: up to `GRAM` characters on either side.
        self._around: dict[str, set[tuple[str, str]]] = {}
        for text in texts:
            for at in range(0, len(text) - GRAM + 1, STRIDE):
                found = self._around.setdefault(text[at : at + GRAM], set())
                if len(found) <= MOST:
                    found.add((text[max(0, at - GRAM) : at], text[at + GRAM : at + 2 * GRAM]))

    def __bool__(self) -> bool:
        """Return whether there is any text."""
        return bool(self._around)

    def give_away(self, name: str) -> bool:
        """Return whether a name holds `WINDOW` consecutive characters of a text."""
        if len(name) < WINDOW or not self._around:
            return False
        for at in range(len(name) - GRAM + 1):
            around = self._around.get(name[at : at + GRAM])
            if around is None:
                continue
            before, after = name[max(0, at - GRAM) : at], name[at + GRAM : at + 2 * GRAM]
            if len(around) > MOST or any(
                _common_prefix_length(reversed(left), reversed(before)) + _common_prefix_length(right, after)
                >= WINDOW - GRAM
                for left, right in around
            ):
                return True
        return False


def _common_prefix_length(one: Iterable[str], other: Iterable[str]) -> int:
    """Return how many characters two texts have in common at their start."""
    count = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        count += 1
    return count
