"""Recovery: how long a provider may take, which error a reply carries, and what could help (acs-contract §3, §5).

An option is offered only when it could succeed: with attempts and time left, where a layer has not been used, where
privacy allows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from acms.contract.schema import Action, Code, ErrorEnvelope, Layer, Option, RenderRequest, RiskLevel
from acms.model import Privacy

DEFAULTS = {Layer.L2: 300.0, Layer.L1: 400.0, Layer.L4: 50.0, Layer.CACHED: 50.0}
"""Milliseconds a provider of a layer may take, unless it says otherwise."""
SHARE = 0.6
"""Share of the whole time that one provider may take."""
LEAST_MS = 20.0
"""A provider that would have less is not asked."""
LEAST_TOP_K = 5
RAISED = 4 / 3
"""A retry with a reduced scope may take this much longer."""
MAX_TOP_K = 100


class Outcome(NamedTuple):
    """What became of one provider in one attempt."""

    name: str
    layer: Layer
    top_k: int
    slice_ms: float
    #: None when it answered.
    code: Code | None = None
    #: Candidates it gave.
    found: int = 0
    #: Of the engine itself: it has no deadline of its own.
    own: bool = False


class Situation(NamedTuple):
    """What is known when an attempt has failed."""

    request: RenderRequest
    #: The strictest of request and tenant.
    mode: Privacy
    attempt: int
    max_attempts: int
    outcomes: Sequence[Outcome]
    #: Layers that have a provider.
    layers: frozenset[Layer]
    #: Candidates there are nevertheless.
    collected: int = 0


def reserve_ms(time_ms: float) -> float:
    """Return what is kept back for planning."""
    return max(10.0, 0.05 * time_ms)


def slice_ms(deadline_ms: float | None, layer: Layer, time_ms: float, left_ms: float, *, own: bool) -> float:
    """Return how long a provider may take; 0 when it is not to be asked."""
    if own:
        return max(0.0, left_ms)
    usual = DEFAULTS[layer] if deadline_ms is None else deadline_ms
    found = min(usual, SHARE * time_ms, left_ms)
    return found if found >= LEAST_MS else 0.0


def retry_slice_ms(old_ms: float, left_ms: float, *, own: bool) -> float:
    """Return how long a provider may take in a retry with a reduced scope; 0 when it is not to be asked."""
    if own:
        return max(0.0, left_ms)
    found = min(old_ms * RAISED, left_ms)
    return found if found >= LEAST_MS else 0.0


def reduce_top_k(top_k: int) -> int:
    """Return how many items a retry with a reduced scope asks for: 50 become 20."""
    return min(top_k, max(LEAST_TOP_K, top_k * 2 // 5))


def primary_failed(outcomes: Sequence[Outcome]) -> bool:
    """Whether the project was asked and no provider of it answered."""
    project = [one for one in outcomes if one.layer is Layer.L2]
    return bool(project) and all(one.code is not None for one in project)


def select_error_code(outcomes: Sequence[Outcome], risk: RiskLevel, *, obtained: bool) -> Code | None:
    """Return the code of the error that a reply must carry; None when what was obtained will do.

    A missing provider alone is no error. It is one when nothing was obtained, or when the risk is high and nobody who
    knows the project has answered.
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
    """Return the failure that matters most: of the project, then in the order of the sources."""
    return min(failed, key=lambda one: (one.layer is not Layer.L2, one.code is Code.DEADLINE_EXCEEDED))


_SAID = {
    Code.PROVIDER_TIMEOUT: "exceeded its deadline",
    Code.PROVIDER_ERROR: "failed or gave an answer that cannot be read",
    Code.PROVIDER_UNAVAILABLE: "cannot be reached",
    Code.DEADLINE_EXCEEDED: "was not asked: too little time was left",
}


def describe_outcome(outcome: Outcome) -> str:
    """Say what became of a provider, without a word of what it said."""
    what = _SAID.get(outcome.code or Code.PROVIDER_ERROR, "failed")
    limit = ""
    if outcome.code is Code.PROVIDER_TIMEOUT and not outcome.own:
        limit = f" ({outcome.slice_ms:.0f} ms budgeted)"
    return f"{outcome.layer} provider {outcome.name!r} {what}{limit}"


def describe_outcomes(outcomes: Sequence[Outcome]) -> str:
    """Say what became of all that failed."""
    return "; ".join(describe_outcome(one) for one in outcomes if one.code is not None)


#: What may be offered for each code, most useful first.
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
    """Return an action with its hint; None when it could not succeed."""
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
