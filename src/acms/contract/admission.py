"""Admission: apply privacy to the candidates of a reply, then select among them.

Privacy comes before the choice. A blocked item is reduced to its id, its level of detail and names that reveal nothing.
Any other item is redacted and its tokens are counted again. Redaction reads every character, so only chosen items are
redacted; if that changes a text, the choice is repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from operator import is_not
from typing import Literal

from acms.contract.kv_policy import CachedKey, find_quoting_keys, policy
from acms.contract.renditions import Counts, release_in_chunks
from acms.contract.schema import Candidate, KVPolicy, RiskLevel, Variant
from acms.contract.selection import Profile, Selection, select_fragments
from acms.model import Privacy
from acms.privacy.detect import RedactedText, redact_text, safe_key
from acms.privacy.modes import strictest_mode
from acms.results import Ledger, Verdict

REVEALING_CHARS = 8
"""Consecutive characters of a secret that reveal it."""
SELECTIVE_ROUNDS = 3
"""Rounds in which only the chosen items are redacted; after that, all remaining items are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionOptions:
    """The parameters of a choice."""

    #: The stricter of the request's and the tenant's mode.
    mode: Privacy
    #: The entities that the request asks for.
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
    cache: tuple[CachedKey, ...] = ()
    capacity: int | None = None
    #: Share of the tokens that external text of sessions may take while other text that answers is left out.
    external_share: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """The chosen fragments, and the effects of privacy on the candidates."""

    selection: Selection
    #: The candidates of the fragments by id, as they were admission.
    candidates: dict[str, Candidate]
    #: Fragments of which only the id is shown.
    blocked: int = 0
    #: Fragments in which something was redacted, by us or before.
    redacted: int = 0
    #: Candidates that are not shown at all: their id or their names would reveal their content.
    withheld: int = 0
    #: Advice for the caller's cache.
    advice: KVPolicy


def admit_candidates(candidates: Iterable[Candidate], options: AdmissionOptions) -> Admission:
    """Choose the fragments of a reply, redacted, and the advice for the caller's cache."""
    modes = {mode: strictest_mode(options.mode, mode) for mode in Privacy}
    unblocked, blocked_count = _without_blocked(candidates, modes, options.unread)
    redactors = {mode: _Redactor(modes[mode], frozenset(options.gaze)) for mode in Privacy}
    selection, pool = _select_redacted(unblocked, redactors, options)
    withheld = blocked_count + len(unblocked) - len(pool)
    shown_ids = {fragment.id for fragment in selection.fragments}
    by_id = {candidate.id: candidate for candidate in pool if candidate.id in shown_ids}
    release_in_chunks(pool)
    shown_modes = [modes[by_id[fragment.id].privacy] for fragment in selection.fragments]
    advice = policy(
        selected=selection.fragments,
        tokens_max=options.tokens_max,
        gaze=options.gaze,
        benefits=selection.benefits,
        cache=options.cache,
        capacity=options.capacity,
    )
    return Admission(
        selection=selection,
        advice=advice,
        candidates=by_id,
        blocked=shown_modes.count(Privacy.BLOCK),
        redacted=sum("[REDACTED: " in (fragment.text or "") for fragment in selection.fragments),
        withheld=withheld,
    )


def _select_redacted(
    pool: list[Candidate], redactors: Mapping[Privacy, _Redactor], options: AdmissionOptions
) -> tuple[Selection, list[Candidate]]:
    """Select fragments that are redacted; return them with the pool without candidates whose id is sensitive.

    Only chosen candidates are redacted, because redaction takes time. It may change their cost and their names, so the
    choice is repeated until all chosen ones are redacted; after `SELECTIVE_ROUNDS` rounds all candidates are redacted.
    """
    redacted_ids: set[str] = set()
    rounds = 0
    while True:
        selection = select_fragments(
            pool,
            gaze=options.gaze,
            tokens_max=options.tokens_max,
            now=options.now,
            count=options.count,
            counts=options.counts,
            profile=options.profile,
            risk=options.risk,
            order=options.order,
            external_share=options.external_share,
        )
        pending = {fragment.id for fragment in selection.fragments} - redacted_ids
        if not pending:
            return selection, pool
        rounds += 1
        if rounds > SELECTIVE_ROUNDS:  # redacting all of them ends the loop, however the choices change
            pending = {candidate.id for candidate in pool} - redacted_ids
        redacted_ids |= pending
        remaining = _redact_pending(pool, pending, redactors)
        has_changed = len(remaining) < len(pool) or any(map(is_not, remaining, pool))
        pool = remaining
        if not has_changed:
            return selection, pool


def _redact_pending(
    pool: Iterable[Candidate], pending: Collection[str], redactors: Mapping[Privacy, _Redactor]
) -> list[Candidate]:
    """Redact the candidates whose ids are in `pending`, and drop those whose id is sensitive."""
    remaining: list[Candidate] = []
    for candidate in pool:
        redacted: Candidate | None = candidate
        if candidate.id in pending:
            redacted = redactors[candidate.privacy].redact(candidate)
        if redacted is not None:
            remaining.append(redacted)
    return remaining


def _without_blocked(
    candidates: Iterable[Candidate], modes: Mapping[Privacy, Privacy], unread: Iterable[str]
) -> tuple[list[Candidate], int]:
    """Return the candidates, with the text removed from blocked ones, and the number of blocked ones left out.

    A blocked candidate is left out if its id quotes a blocked text or is sensitive itself.
    """
    pool: list[Candidate] = []
    blocked: list[Candidate] = []
    for candidate in candidates:
        group = blocked if modes[candidate.privacy] is Privacy.BLOCK else pool
        group.append(candidate)
    names: set[str] = set()
    texts = list(unread)
    for candidate in blocked:
        names.update((candidate.id, *candidate.entities))
        texts += [candidate.text or "", *(variant.text for variant in candidate.variants)]
    revealing = find_quoting_keys(names, texts)
    withheld = 0
    for candidate in blocked:
        if candidate.id in revealing or _is_sensitive_id(candidate.id, Privacy.REDACT):
            withheld += 1
        else:
            pool.append(_strip_blocked(candidate, revealing))
    return pool, withheld


def best_candidates(
    candidates: Iterable[Candidate], max_count: int
) -> tuple[list[Candidate], tuple[str, ...]]:
    """Return the best of some candidates, by claimed relevance and then freshness, and the ids of the others."""
    ordered = sorted(candidates, key=_best_first)
    return ordered[:max_count], tuple(candidate.id for candidate in ordered[max_count:])


def _best_first(candidate: Candidate) -> tuple[float, float, str, str]:
    stamp = 0.0 if candidate.timestamp is None else candidate.timestamp.timestamp()
    return -(candidate.relevance or 0.0), -stamp, candidate.id, repr(candidate)


def build_ledger(admission: Admission, omitted_experience: Sequence[str] = ()) -> Ledger:
    """Return a ledger with a verdict on each candidate; the verdicts are built when they are first read.

    `omitted_experience` are ids of units of experience above the requested number. The ledger contains no text. A
    sensitive id is redacted; an id that reveals blocked text is not listed.
    """
    record, withheld = admission.selection.record, admission.withheld

    def build_verdicts() -> dict[str, Verdict]:
        too_many = "experience_top_k asked for fewer units of experience"
        revealing = "its id or its names would tell what may not be shown"
        verdicts = [_omission_verdict(id, "top_k", too_many) for id in omitted_experience]
        verdicts += record.verdicts()
        for number in range(1, withheld + 1):
            verdicts.append(_omission_verdict(f"withheld:{number}", "hidden", revealing))
        by_id: dict[str, Verdict] = {}
        for verdict in verdicts:
            if _is_sensitive_id(verdict.id, Privacy.REDACT):
                verdict = replace(verdict, id=redact_text(verdict.id, Privacy.REDACT).text)
            by_id[verdict.id] = verdict
        return by_id

    candidates = record.unique_count + withheld + len(omitted_experience)
    shown_count = len(admission.selection.fragments)
    return Ledger(build_verdicts, omitted=candidates - shown_count)


def _omission_verdict(id: str, rule: str, reason: str) -> Verdict:
    return Verdict(id=id, version=0, included=False, rule=rule, reason=reason)


def _strip_blocked(candidate: Candidate, revealing: Collection[str]) -> Candidate:
    """Return a blocked item without its texts and without names that would reveal one."""
    entities = [name for name in candidate.entities if name not in revealing and safe_key(name)]
    return replace(
        candidate,
        text=None,
        variants=(),
        cost_tokens=0,
        citations=(),
        entities=tuple(entities),
        privacy=Privacy.BLOCK,
    )


def _is_sensitive_id(id: str, mode: Privacy) -> bool:
    """Return whether an id holds something sensitive; "phone" is ignored, because long numbers in ids look like one."""
    return any(span.kind != "phone" for span in redact_text(id, mode).spans)


def redact_excerpt(excerpt_text: str, full_text: str, mode: Privacy) -> str | None:
    """Redact an excerpt of a text; return None if the excerpt still has a part of a secret of the whole text.

    Redaction rules do not recognise half a key, but half a key must not be shown either.
    """
    excerpt = redact_text(excerpt_text, mode).text
    for span in redact_text(full_text, mode).spans:
        secret = full_text[span.start : span.end]
        for start in range(max(1, len(secret) - REVEALING_CHARS + 1)):
            if secret[start : start + REVEALING_CHARS] in excerpt:
                return None
    return excerpt


class _Redactor:
    """Redacts the candidates of a reply in one mode."""

    def __init__(self, mode: Privacy, requested_names: frozenset[str]) -> None:
        self._mode = mode
        self._requested_names = requested_names
        #: Whether names hold something sensitive: many items share the same names.
        self._sensitive_names: dict[str, bool] = {}

    def redact(self, candidate: Candidate) -> Candidate | None:
        """Return a redacted candidate, or None if its id is sensitive.

        If nothing in the candidate is sensitive, it is returned itself.
        """
        mode = self._mode
        if _is_sensitive_id(candidate.id, mode):
            return None
        original = candidate.text
        redacted = RedactedText("", ()) if original is None else redact_text(original, mode)
        secrets = _removed_texts(original or "", redacted)
        variants: list[Variant] = []
        for variant in candidate.variants:
            redacted_variant = redact_text(variant.text, mode)
            secrets += _removed_texts(variant.text, redacted_variant)
            variant_text: str | None = redacted_variant.text
            if original and redacted.spans:
                variant_text = redact_excerpt(variant.text, original, mode)
            if variant_text == variant.text:
                variants.append(variant)
            elif variant_text is not None:
                variants.append(replace(variant, text=variant_text, cost_tokens=0))
        shown_texts = [variant.text.lower() for variant in variants]
        if original is not None:
            shown_texts.append(redacted.text.lower())
        entities = tuple(name for name in candidate.entities if self._may_show(name, secrets, shown_texts))
        citations = tuple(name for name in candidate.citations if not _is_sensitive_id(name, mode))
        if not secrets and (entities, citations) == (candidate.entities, candidate.citations):
            return candidate
        return replace(
            candidate,
            text=None if original is None else redacted.text,
            # The claimed cost of a redacted text is no longer valid.
            cost_tokens=0 if redacted.spans else candidate.cost_tokens,
            variants=tuple(variants),
            entities=entities,
            citations=citations,
        )

    def _may_show(self, name: str, secrets: Sequence[str], texts: Sequence[str]) -> bool:
        """Return whether the name of an entity may be shown.

        It must not be sensitive. A name that occurs in removed text (`secrets`) must have been requested, or occur in a
        shown text too.
        """
        is_sensitive = self._sensitive_names.get(name)
        if is_sensitive is None:
            is_sensitive = bool(redact_text(name, self._mode).spans)
            self._sensitive_names[name] = is_sensitive
        if is_sensitive:
            return False
        name = name.lower()
        if name in self._requested_names or not any(name in secret for secret in secrets):
            return True
        return any(name in text for text in texts)


def _removed_texts(original: str, redacted: RedactedText) -> list[str]:
    return [original[span.start : span.end].lower() for span in redacted.spans]
