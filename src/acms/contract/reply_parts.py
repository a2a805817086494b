"""Replies: the parts of a reply other than its fragments: warnings, experience, log records."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping

from acms.contract import recovery
from acms.contract.admission import Admission, best_candidates
from acms.contract.providers import Answer
from acms.contract.recovery import ProviderOutcome
from acms.contract.schema import Candidate, Code, Experience, Layer, Lod, Notice


def outcome_of_answer(answer: Answer) -> ProviderOutcome:
    """Return the outcome of a call."""
    call = answer.call
    return ProviderOutcome(
        name=call.provider.name,
        layer=call.provider.layer,
        top_k=call.request.top_k,
        slice_ms=call.slice_ms,
        code=answer.code,
        found=len(answer.candidates),
        is_session=call.provider.is_session,
    )


def log_records_for_answer(answer: Answer) -> Iterator[tuple[str, int, dict[str, object]]]:
    """Yield the log records of an answer: name, level, fields."""
    name = answer.call.provider.name
    code = None if answer.code is None else answer.code.value
    if answer.error is not None:
        yield "provider.failed", logging.WARNING, {"provider": name, "code": code, "error": answer.error}
    if answer.abandoned:
        yield "provider.abandoned", logging.ERROR, {"provider": name}
    fields: dict[str, object] = {
        "provider": name,
        "candidates": len(answer.candidates),
        "dropped": answer.dropped,
        "code": code,
        "took_ms": round(answer.took_ms, 3),
    }
    is_late = answer.code is Code.PROVIDER_TIMEOUT
    yield "provider.timeout" if is_late else "provider.replied", logging.DEBUG, fields
    if answer.disobeyed:
        yield "privacy.violation", logging.WARNING, {"provider": name, "candidates": answer.disobeyed}


def count_candidates(answers: Mapping[int, Answer], max_experience: int | None) -> int:
    """Return the number of candidates to choose from, with at most `max_experience` units of experience."""
    total = experience = 0
    for answer in answers.values():
        total += len(answer.candidates)
        experience += len(answer.candidates) if _is_experience(answer) else 0
    excess = 0 if max_experience is None else max(0, experience - max_experience)
    return total - excess


def cap_experience(
    answers: Iterable[Answer], max_experience: int | None
) -> tuple[list[Candidate], tuple[str, ...]]:
    """Return all candidates, of experience only the best `max_experience`, and the ids of the omitted experience."""
    candidates: list[Candidate] = []
    experience: list[Candidate] = []
    for answer in answers:
        group = experience if _is_experience(answer) else candidates
        group += answer.candidates
    omitted: tuple[str, ...] = ()
    if max_experience is not None and len(experience) > max_experience:
        experience, omitted = best_candidates(experience, max_experience)
    return candidates + experience, omitted


def _is_experience(answer: Answer) -> bool:
    return answer.call.provider.layer is Layer.L4


def notices_for_answers(answers: Mapping[int, Answer]) -> tuple[Notice, ...]:
    """Return the warnings about degraded answers, in the order of the sources."""
    notices: list[Notice] = []
    violations: list[Notice] = []
    for _, answer in sorted(answers.items()):
        notices += _notices_for_answer(answer)
        if answer.disobeyed:
            message = f"{_describe_provider(answer)} sent texts although none were allowed; they were dropped"
            violations.append(_build_notice(Code.PRIVACY_VIOLATION, message))
    project = [answer for answer in answers.values() if answer.call.provider.layer is Layer.L2]
    has_answer = any(answer.code is None for answer in project)
    if has_answer and not any(answer.candidates for answer in project):
        message = "the project knows nothing about it; explicit_l1_expansion asks the world"
        notices.append(_build_notice(Code.PROJECT_EMPTY, message))
    if any(answer.call.request.expansion for answer in answers.values()):
        message = "knowledge from outside of the project was asked for; tell the user"
        notices.append(_build_notice(Code.L1_EXPANSION, message))
    return tuple(dict.fromkeys(notices + violations))


def _notices_for_answer(answer: Answer) -> Iterator[Notice]:
    """Yield the warnings about one answer: a failure, dropped candidates, an unfinished search."""
    name = _describe_provider(answer)
    if answer.code is not None:
        yield _build_notice(Code.PARTIAL_DATA, recovery.describe_outcome(outcome_of_answer(answer)))
    elif answer.dropped:
        yield _build_notice(Code.PARTIAL_DATA, f"{answer.dropped} candidates of {name} were not usable")
    if answer.partial or Code.PARTIAL_DATA in answer.warnings:
        yield _build_notice(Code.PARTIAL_DATA, f"{name} did not finish its search")


def _describe_provider(answer: Answer) -> str:
    return f"{answer.call.provider.layer} provider {answer.call.provider.name!r}"


def _build_notice(code: Code, message: str) -> Notice:
    return Notice(code=code.value, message=message)


def notices_for_selection(admission: Admission) -> Iterator[Notice]:
    """Yield the warnings about privacy, the budget and low coverage."""
    selection = admission.selection
    if admission.withheld:
        message = f"{admission.withheld} items were left out: their names tell too much"
        yield _build_notice(Code.PRIVACY_BLOCKED, message)
    if admission.blocked:
        message = f"of {admission.blocked} fragments only the id may be shown"
        yield _build_notice(Code.PRIVACY_BLOCKED, message)
    if admission.redacted:
        yield _build_notice(Code.REDACTED, f"{admission.redacted} fragments were redacted")
    if not selection.fragments and selection.record.has_too_large():
        yield _build_notice(Code.TRUNCATED_BY_BUDGET, "nothing that was found fits the token budget")
    if selection.coverage is not None and selection.coverage < 0.5:
        message = f"the fragments cover {selection.coverage:.0%} of what was asked for"
        yield _build_notice(Code.LOW_COVERAGE, message)


def build_experience(admission: Admission) -> tuple[Experience, ...]:
    """Return the units of experience among the chosen fragments."""
    units: list[Experience] = []
    for fragment in admission.selection.fragments:
        if fragment.source is Layer.L4:
            unit = Experience(
                unit_id=fragment.id,
                score=admission.selection.scores[fragment.id],
                summary=fragment.text,
                refs=admission.candidates[fragment.id].citations,
                reason=_REASON[fragment.lod],
            )
            units.append(unit)
    return tuple(units)


_REASON = {
    Lod.MACRO: "a title of what was done before",
    Lod.MICRO: "a summary of what was done before",
    Lod.ATOMIC: "the record of what was done before",
}
