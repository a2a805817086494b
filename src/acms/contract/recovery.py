"""Recovery: the time limits of providers, the error of a reply, and the options it offers (acs-contract §3, §5).

An option is offered only if it could succeed: attempts and time are left, its layer has not been used, and privacy
allows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from acms.contract.schema import Action, Code, ErrorEnvelope, Layer, Option, RenderRequest, RiskLevel
from acms.model import Privacy

DEFAULT_LIMITS_MS = {Layer.L2: 300.0, Layer.L1: 400.0, Layer.L4: 50.0, Layer.CACHED: 50.0}
"""Default time limit of a provider by layer, in milliseconds (published)."""
MIN_LIMIT_MS = 20.0
"""Milliseconds; a provider with less time is not queried."""
MAX_TOP_K = 100
"""Items that one provider is asked for."""


class ProviderOutcome(NamedTuple):
    """The result of one provider in one attempt."""

    name: str
    layer: Layer
    top_k: int
    slice_ms: float
    #: None if it answered.
    code: Code | None = None
    #: Number of its candidates.
    found: int = 0
    #: True for a session, which has no deadline of its own.
    is_session: bool = False


class FailedAttempt(NamedTuple):
    """The state of a request whose attempt has failed."""

    request: RenderRequest
    #: The stricter of the request's and the tenant's mode.
    mode: Privacy
    attempt: int
    max_attempts: int
    outcomes: Sequence[ProviderOutcome]
    #: Layers that have a provider.
    layers: frozenset[Layer]
    #: Number of candidates collected in spite of the failure.
    collected: int = 0


def reserve_ms(time_ms: float) -> float:
    """Return the milliseconds reserved for planning."""
    return max(10.0, 0.05 * time_ms)


def slice_ms(deadline_ms: float | None, layer: Layer, time_ms: float, left_ms: float) -> float:
    """Return a provider's time limit in milliseconds, or 0 if it must not be queried."""
    own_limit_ms = DEFAULT_LIMITS_MS[layer] if deadline_ms is None else deadline_ms
    limit = min(own_limit_ms, 0.6 * time_ms, left_ms)  # one provider never takes the whole time
    return limit if limit >= MIN_LIMIT_MS else 0.0


def retry_slice_ms(previous_ms: float, left_ms: float) -> float:
    """Return a provider's time limit in a retry with reduced scope, in milliseconds, or 0 if it must not be queried."""
    limit = min(previous_ms * 4 / 3, left_ms)  # a third more time, for fewer items
    return limit if limit >= MIN_LIMIT_MS else 0.0


def reduce_top_k(top_k: int) -> int:
    """Return the number of items that a retry with reduced scope requests: 50 become 20."""
    return min(top_k, max(5, top_k * 2 // 5))


def primary_failed(outcomes: Sequence[ProviderOutcome]) -> bool:
    """Return whether L2 providers were queried and none of them answered."""
    project_outcomes = [outcome for outcome in outcomes if outcome.layer is Layer.L2]
    return bool(project_outcomes) and all(outcome.code is not None for outcome in project_outcomes)


def select_error_code(outcomes: Sequence[ProviderOutcome], risk: RiskLevel, *, obtained: bool) -> Code | None:
    """Return the error code that a reply must carry, or None if the obtained candidates suffice.

    A failed provider alone is not an error. It is one if nothing was obtained, or if the risk is high and no L2
    provider has answered.
    """
    failures = [outcome for outcome in outcomes if outcome.code is not None]
    if not failures:
        return None
    is_too_risky = risk is RiskLevel.HIGH and primary_failed(outcomes)
    if obtained and not is_too_risky:
        return None
    layers = {outcome.layer for outcome in failures}
    if len(failures) < len(outcomes) or len(layers) == 1:  # a single failure explains the outcome
        return find_main_failure(failures).code
    if all(outcome.code is Code.DEADLINE_EXCEEDED for outcome in failures):
        return Code.DEADLINE_EXCEEDED
    return Code.ALL_PROVIDERS_FAILED


def find_main_failure(failures: Sequence[ProviderOutcome]) -> ProviderOutcome:
    """Return the most important failure: of an L2 provider first, then in the order of the sources."""
    return min(
        failures, key=lambda outcome: (outcome.layer is not Layer.L2, outcome.code is Code.DEADLINE_EXCEEDED)
    )


_FAILURES = {
    Code.PROVIDER_TIMEOUT: "exceeded its deadline",
    Code.PROVIDER_ERROR: "failed or gave an answer that cannot be read",
    Code.PROVIDER_UNAVAILABLE: "cannot be reached",
    Code.DEADLINE_EXCEEDED: "was not asked: too little time was left",
}


def describe_outcome(outcome: ProviderOutcome) -> str:
    """Describe the failure of a provider, without any text from its answer."""
    failure = _FAILURES.get(outcome.code or Code.PROVIDER_ERROR, "failed")
    if outcome.code is Code.PROVIDER_TIMEOUT and not outcome.is_session:
        failure += f" ({outcome.slice_ms:.0f} ms budgeted)"
    return f"{outcome.layer} provider {outcome.name!r} {failure}"


def describe_outcomes(outcomes: Sequence[ProviderOutcome]) -> str:
    """Describe every failed provider."""
    return "; ".join(describe_outcome(outcome) for outcome in outcomes if outcome.code is not None)


#: The options for each error code, most useful first.
_ACTIONS_OF_CODE = {
    Code.PROVIDER_TIMEOUT: (
        Action.RETRY_WITH_REDUCED_SCOPE,
        Action.EXPLICIT_L1_EXPANSION,
        Action.RETURN_L4_ONLY,
        Action.RETURN_MINIMAL,
    ),
    Code.PROVIDER_ERROR: (Action.RETRY_SAME, Action.EXPLICIT_L1_EXPANSION, Action.RETURN_MINIMAL),
    Code.PROVIDER_UNAVAILABLE: (
        Action.EXPLICIT_L1_EXPANSION,
        Action.RETURN_L4_ONLY,
        Action.RETURN_MINIMAL,
    ),
    Code.ALL_PROVIDERS_FAILED: (
        Action.RETRY_WITH_REDUCED_SCOPE,
        Action.EXPLICIT_L1_EXPANSION,
        Action.RETURN_MINIMAL,
    ),
    Code.DEADLINE_EXCEEDED: (Action.RETRY_WITH_REDUCED_SCOPE, Action.RETURN_MINIMAL),
    Code.BUDGET_TOO_SMALL: (Action.RETURN_MINIMAL,),
    Code.INTERNAL: (Action.RETRY_SAME,),
}
_RETRIES = frozenset((Action.RETRY_SAME, Action.RETRY_WITH_REDUCED_SCOPE, Action.EXPLICIT_L1_EXPANSION))
_RETRIABLE = frozenset(
    (
        Code.PROVIDER_TIMEOUT,
        Code.PROVIDER_ERROR,
        Code.PROVIDER_UNAVAILABLE,
        Code.ALL_PROVIDERS_FAILED,
        Code.DEADLINE_EXCEEDED,
        Code.INTERNAL,
    )
)


def build_envelope(code: Code, message: str, failed: FailedAttempt) -> ErrorEnvelope:
    """Return the error of a reply, with every option that could succeed."""
    options: list[Option] = []
    for action in _ACTIONS_OF_CODE.get(code, ()):
        hint = _find_hint(action, code, failed)
        if hint:
            options.append(Option(action=action, hint=hint))
    retriable = code in _RETRIABLE and failed.attempt < failed.max_attempts
    if code is Code.DEADLINE_EXCEEDED:  # the same time would be too short again
        retriable = retriable and any(option.action in _RETRIES for option in options)
    return ErrorEnvelope(
        code=code,
        message=message,
        retriable=retriable,
        attempt=failed.attempt,
        max_attempts=failed.max_attempts,
        options=tuple(options),
    )


def _find_hint(action: Action, code: Code, failed: FailedAttempt) -> str:
    """Return the hint for an action, or "" if it could not succeed."""
    if action in _RETRIES and failed.attempt >= failed.max_attempts:
        return ""
    left_ms = failed.request.time_ms - reserve_ms(failed.request.time_ms)
    match action:
        case Action.RETRY_WITH_REDUCED_SCOPE:
            return _find_retry_hint(left_ms, failed)
        case Action.EXPLICIT_L1_EXPANSION:
            was_used = any(outcome.layer is Layer.L1 for outcome in failed.outcomes)
            has_l1 = Layer.L1 in failed.layers and not was_used
            if not has_l1 or failed.mode is Privacy.BLOCK or left_ms < MIN_LIMIT_MS:
                return ""
            return "Skip L2 and ask L1, knowledge from outside of the project; tell the user"
        case Action.RETURN_L4_ONLY:
            return _find_experience_hint(failed)
        case Action.RETURN_MINIMAL:
            count = failed.collected
            result = f"the {count} items collected so far" if count else "an empty context"
            return f"Stop here and return {result}"
        case _:
            is_repeated = code is Code.INTERNAL and failed.attempt > 1
            return "" if is_repeated else "Ask once more, unchanged"


def _find_retry_hint(left_ms: float, failed: FailedAttempt) -> str:
    """Return the hint for a retry with reduced scope, or "" if there is no failure or no time for it."""
    failures = [outcome for outcome in failed.outcomes if outcome.code is not None]
    if not failures:
        return ""
    main = find_main_failure(failures)
    limit_ms = max(0.0, left_ms) if main.is_session else retry_slice_ms(main.slice_ms, left_ms)
    if not limit_ms:
        return ""
    top_k = reduce_top_k(main.top_k)
    return f"Ask {main.layer} for {top_k} instead of {main.top_k} items, within {limit_ms:.0f} ms"


def _find_experience_hint(failed: FailedAttempt) -> str:
    """Return the hint for returning experience alone, or "" if there is none or the request excluded it."""
    if Layer.L4 not in failed.layers or failed.request.experience_top_k == 0:
        return ""
    experience_outcomes = [outcome for outcome in failed.outcomes if outcome.layer is Layer.L4]
    if experience_outcomes and not any(outcome.found for outcome in experience_outcomes):
        return ""
    return "Return what was learned from past tasks, and nothing else"
