"""Recovery: the time limits of providers, the error of a reply, and the options it offers (acs-contract §3, §5).

An option is offered only if it could succeed: attempts and time are left, its layer has not been used, and privacy
allows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from acms.contract.schema import Action, Code, ErrorEnvelope, Layer, Option, RenderRequest, RiskLevel
from acms.model import Privacy

DEFAULTS = {Layer.L2: 300.0, Layer.L1: 400.0, Layer.L4: 50.0, Layer.CACHED: 50.0}
"""Default time limit of a provider by layer, in milliseconds."""
SHARE = 0.6
"""Share of the whole time that one provider may take."""
LEAST_MS = 20.0
"""Milliseconds; a provider with less time is not queried."""
LEAST_TOP_K = 5
RAISED = 4 / 3
"""A retry with a reduced scope may take this much longer."""
MAX_TOP_K = 100


class Outcome(NamedTuple):
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
    own: bool = False


class Situation(NamedTuple):
    """The state of a request whose attempt has failed."""

    request: RenderRequest
    #: The stricter of the request's and the tenant's mode.
    mode: Privacy
    attempt: int
    max_attempts: int
    outcomes: Sequence[Outcome]
    #: Layers that have a provider.
    layers: frozenset[Layer]
    #: Number of candidates collected in spite of the failure.
    collected: int = 0


def reserve_ms(time_ms: float) -> float:
    """Return the milliseconds reserved for planning."""
    return max(10.0, 0.05 * time_ms)


def slice_ms(deadline_ms: float | None, layer: Layer, time_ms: float, left_ms: float, *, own: bool) -> float:
    """Return a provider's time limit in milliseconds, or 0 if it must not be queried."""
    if own:
        return max(0.0, left_ms)
    usual = DEFAULTS[layer] if deadline_ms is None else deadline_ms
    found = min(usual, SHARE * time_ms, left_ms)
    return found if found >= LEAST_MS else 0.0


def retry_slice_ms(old_ms: float, left_ms: float, *, own: bool) -> float:
    """Return a provider's time limit in a retry with reduced scope, in milliseconds, or 0 if it must not be queried."""
    if own:
        return max(0.0, left_ms)
    found = min(old_ms * RAISED, left_ms)
    return found if found >= LEAST_MS else 0.0


def reduce_top_k(top_k: int) -> int:
    """Return the number of items that a retry with reduced scope requests: 50 become 20."""
    return min(top_k, max(LEAST_TOP_K, top_k * 2 // 5))


def primary_failed(outcomes: Sequence[Outcome]) -> bool:
    """Return whether L2 providers were queried and none of them answered."""
    project = [one for one in outcomes if one.layer is Layer.L2]
    return bool(project) and all(one.code is not None for one in project)


def select_error_code(outcomes: Sequence[Outcome], risk: RiskLevel, *, obtained: bool) -> Code | None:
    """Return the error code that a reply must carry, or None if the obtained candidates suffice.

    A failed provider alone is not an error. It is one if nothing was obtained, or if the risk is high and no L2
    provider has answered.
    """
    failed = [one for one in outcomes if one.code is not None]
    if not failed:
        return None
    if obtained and not (risk is RiskLevel.HIGH and primary_failed(outcomes)):
        return None
    if len(failed) == len(outcomes) > 1 and len({one.layer for one in failed}) > 1:
        started = [one for one in failed if one.code is not Code.DEADLINE_EXCEEDED]
        return Code.ALL_PROVIDERS_FAILED if started else Code.DEADLINE_EXCEEDED
    return find_main_failure(failed).code


def find_main_failure(failed: Sequence[Outcome]) -> Outcome:
    """Return the most important failure: of an L2 provider first, then in the order of the sources."""
    return min(failed, key=lambda one: (one.layer is not Layer.L2, one.code is Code.DEADLINE_EXCEEDED))


_SAID = {
    Code.PROVIDER_TIMEOUT: "exceeded its deadline",
    Code.PROVIDER_ERROR: "failed or gave an answer that cannot be read",
    Code.PROVIDER_UNAVAILABLE: "cannot be reached",
    Code.DEADLINE_EXCEEDED: "was not asked: too little time was left",
}


def describe_outcome(outcome: Outcome) -> str:
    """Describe the failure of a provider, without any text from its answer."""
    what = _SAID.get(outcome.code or Code.PROVIDER_ERROR, "failed")
    limit = ""
    if outcome.code is Code.PROVIDER_TIMEOUT and not outcome.own:
        limit = f" ({outcome.slice_ms:.0f} ms budgeted)"
    return f"{outcome.layer} provider {outcome.name!r} {what}{limit}"


def describe_outcomes(outcomes: Sequence[Outcome]) -> str:
    """Describe every failed provider."""
    return "; ".join(describe_outcome(one) for one in outcomes if one.code is not None)


#: The options for each error code, most useful first.
_OFFERS = {
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


def build_envelope(code: Code, message: str, now: Situation) -> ErrorEnvelope:
    """Return the error of a reply, with every option that could succeed."""
    options = [
        option for action in _OFFERS.get(code, ()) if (option := _build_option(action, code, now)) is not None
    ]
    again = code in _RETRIABLE and now.attempt < now.max_attempts
    if code is Code.DEADLINE_EXCEEDED:  # the same time would be too short again
        again = again and any(option.action in _RETRIES for option in options)
    return ErrorEnvelope(
        code=code,
        message=message,
        retriable=again,
        attempt=now.attempt,
        max_attempts=now.max_attempts,
        options=tuple(options),
    )


def _build_option(action: Action, code: Code, now: Situation) -> Option | None:
    """Return an action with its hint, or None if it could not succeed."""
    if action in _RETRIES and now.attempt >= now.max_attempts:
        return None
    left = now.request.time_ms - reserve_ms(now.request.time_ms)
    if action is Action.RETRY_WITH_REDUCED_SCOPE:
        return _build_retry_option(action, left, now)
    if action is Action.EXPLICIT_L1_EXPANSION:
        return _build_expansion_option(action, left, now)
    if action is Action.RETURN_L4_ONLY:
        return _build_experience_option(action, now)
    if action is Action.RETURN_MINIMAL:
        what = f"the {now.collected} items collected so far" if now.collected else "an empty context"
        return Option(action=action, hint=f"Stop here and return {what}")
    if code is Code.INTERNAL and now.attempt > 1:
        return None
    return Option(action=action, hint="Ask once more, unchanged")


def _build_retry_option(action: Action, left: float, now: Situation) -> Option | None:
    failed = [one for one in now.outcomes if one.code is not None]
    if not failed:
        return None
    one = find_main_failure(failed)
    time = retry_slice_ms(one.slice_ms, left, own=one.own)
    if not time:
        return None
    return Option(
        action=action,
        hint=f"Ask {one.layer} for {reduce_top_k(one.top_k)} instead of {one.top_k} items, within {time:.0f} ms",
    )


def _build_expansion_option(action: Action, left: float, now: Situation) -> Option | None:
    used = any(one.layer is Layer.L1 for one in now.outcomes)
    if Layer.L1 not in now.layers or used or now.mode is Privacy.BLOCK or left < LEAST_MS:
        return None
    return Option(
        action=action, hint="Skip L2 and ask L1, knowledge from outside of the project; tell the user"
    )


def _build_experience_option(action: Action, now: Situation) -> Option | None:
    asked = [one for one in now.outcomes if one.layer is Layer.L4]
    if Layer.L4 not in now.layers or now.request.experience_top_k == 0:
        return None
    if asked and not any(one.found for one in asked):
        return None
    return Option(action=action, hint="Return what was learned from past tasks, and nothing else")
