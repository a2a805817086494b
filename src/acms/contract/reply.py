"""Replies: the parts of a reply other than its fragments: warnings, experience, log records."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping

from acms.contract import recovery
from acms.contract.admission import Admitted, best_candidates
from acms.contract.providers import Answer
from acms.contract.recovery import Outcome
from acms.contract.schema import Candidate, Code, Experience, Layer, Lod, Notice

LOW = 0.5
"""Coverage below which the caller is warned."""


def outcome_of_answer(answer: Answer) -> Outcome:
    """Return the outcome of a call."""
    call = answer.call
    return Outcome(
        name=call.provider.name,
        layer=call.provider.layer,
        top_k=call.request.top_k,
        slice_ms=call.slice_ms,
        code=answer.code,
        found=len(answer.candidates),
        own=call.provider.own,
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
    late = answer.code is Code.PROVIDER_TIMEOUT
    yield "provider.timeout" if late else "provider.replied", logging.DEBUG, fields
    if answer.disobeyed:
        yield "privacy.violation", logging.WARNING, {"provider": name, "candidates": answer.disobeyed}


def count_candidates(answers: Mapping[int, Answer], most: int | None) -> int:
    """Return the number of candidates to choose from, with at most `most` units of experience."""
    past = sum(len(one.candidates) for one in answers.values() if _is_experience(one))
    rest = sum(len(one.candidates) for one in answers.values() if not _is_experience(one))
    return rest + (past if most is None else min(past, most))


def merge_candidates(answers: Iterable[Answer], most: int | None) -> tuple[list[Candidate], tuple[str, ...]]:
    """Return the candidates to choose from, with the best `most` units of experience, and the ids of other units."""
    rest: list[Candidate] = []
    past: list[Candidate] = []
    for answer in answers:
        (past if _is_experience(answer) else rest).extend(answer.candidates)
    beyond: tuple[str, ...] = ()
    if most is not None and len(past) > most:
        past, beyond = best_candidates(past, most)
    return rest + past, beyond


def _is_experience(answer: Answer) -> bool:
    return answer.call.provider.layer is Layer.L4


def notices_for_answers(answers: Mapping[int, Answer]) -> tuple[Notice, ...]:
    """Return the warnings about degraded answers, in the order of the sources."""
    found: dict[Notice, None] = {}

    def warn(code: Code, message: str) -> None:
        found[Notice(code=code.value, message=message)] = None

    disobeyed: list[str] = []
    for _, answer in sorted(answers.items()):
        name = f"{answer.call.provider.layer} provider {answer.call.provider.name!r}"
        if answer.code is not None:
            warn(Code.PARTIAL_DATA, recovery.describe_outcome(outcome_of_answer(answer)))
        elif answer.dropped:
            warn(Code.PARTIAL_DATA, f"{answer.dropped} candidates of {name} were not usable")
        if answer.partial or Code.PARTIAL_DATA in answer.warnings:
            warn(Code.PARTIAL_DATA, f"{name} did not finish its search")
        if answer.disobeyed:
            disobeyed.append(name)
    project = [one for one in answers.values() if one.call.provider.layer is Layer.L2]
    if any(one.code is None for one in project) and not any(one.candidates for one in project):
        warn(Code.PROJECT_EMPTY, "the project knows nothing about it; explicit_l1_expansion asks the world")
    if any(one.call.request.expansion for one in answers.values()):
        warn(Code.L1_EXPANSION, "knowledge from outside of the project was asked for; tell the user")
    for name in disobeyed:
        warn(Code.PRIVACY_VIOLATION, f"{name} sent texts although none were allowed; they were dropped")
    return tuple(found)


def notices_for_selection(admitted: Admitted, *, too_large: bool) -> tuple[Notice, ...]:
    """Return the warnings about privacy, the budget and low coverage.

    `too_large` states that a candidate was left out because it did not fit the budget.
    """
    found: list[Notice] = []

    def warn(code: Code, message: str) -> None:
        found.append(Notice(code=code.value, message=message))

    selection = admitted.selection
    if admitted.withheld:
        warn(Code.PRIVACY_BLOCKED, f"{admitted.withheld} items were left out: their names tell too much")
    if admitted.blocked:
        warn(Code.PRIVACY_BLOCKED, f"of {admitted.blocked} fragments only the id may be shown")
    if admitted.redacted:
        warn(Code.REDACTED, f"{admitted.redacted} fragments were redacted")
    if not selection.fragments and too_large:
        warn(Code.TRUNCATED_BY_BUDGET, "nothing that was found fits the token budget")
    if selection.coverage is not None and selection.coverage < LOW:
        warn(Code.LOW_COVERAGE, f"the fragments cover {selection.coverage:.0%} of what was asked for")
    return tuple(found)


def build_experience(admitted: Admitted) -> tuple[Experience, ...]:
    """Return the units of experience among the chosen fragments."""
    return tuple(
        Experience(
            unit_id=one.id,
            score=admitted.selection.scores[one.id],
            summary=one.text,
            refs=admitted.candidates[one.id].citations,
            reason=_REASON[one.lod],
        )
        for one in admitted.selection.fragments
        if one.source is Layer.L4
    )


_REASON = {
    Lod.MACRO: "a title of what was done before",
    Lod.MICRO: "a summary of what was done before",
    Lod.ATOMIC: "the record of what was done before",
}
