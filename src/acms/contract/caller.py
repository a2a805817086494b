"""The caller's side of the contract: turns a user's text into context and tries the options that errors offer.

    ceo = CEO(acs, cache=KVCache())
    outcome = await ceo.ask("Debug the memory leak in the importer")
    outcome.reply.fragments

Everything is decided by tables and rules (`acms.contract.intent_defaults`, docs/how-to/kv-policy.md):
the same text, ids and clock make the same request, and the same replies the same outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import Protocol
from uuid import uuid4

from acms.contract.caller_cache import Applied, Kept, KVCache
from acms.contract.entities import gaze_of_request
from acms.contract.intent_defaults import BUDGETS, Complexity, Intent, Urgency, classify_intent
from acms.contract.schema import Action, Code, ErrorEnvelope, Notice, RenderReply, RenderRequest, RiskLevel
from acms.contract.wire import parse_choice, parse_text
from acms.errors import ValidationError
from acms.model import Privacy

__all__ = ["CEO", "Applied", "Intent", "KVCache", "Kept", "Outcome", "Renderer", "Tried", "pick"]

MIN_ATTEMPT_MS = 100.0
"""Least milliseconds for another attempt; with less time left, only options without a retry are taken."""
ACTIONS_BY_PREFERENCE = (
    Action.RETRY_WITH_REDUCED_SCOPE,
    Action.EXPLICIT_L1_EXPANSION,
    Action.RETURN_L4_ONLY,
    Action.RETURN_MINIMAL,
    Action.RETRY_SAME,
    Action.SKIP_EXPERIENCE_PATH,
)
"""The order in which the options of an error are tried."""
_RETRIES = (Action.RETRY_WITH_REDUCED_SCOPE, Action.RETRY_SAME, Action.EXPLICIT_L1_EXPANSION)


class Renderer(Protocol):
    """Answers requests: `acms.acs.ACS`, or a client of a remote one."""

    async def render(
        self,
        request: RenderRequest,
        *,
        action: Action | None = None,
        attempt: int = 1,
        cache: KVCache | None = None,
    ) -> RenderReply:
        """Return context for a request, or an error with options that could help."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One attempt."""

    #: Identity of the message that was sent.
    id: str
    #: From 1.
    attempt: int
    #: The option of an earlier error that it executed; None for the first attempt.
    action: Action | None = None
    #: Why it failed; None if it succeeded.
    code: Code | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of asking for context."""

    intent: Intent
    #: The first request that was sent.
    request: RenderRequest
    #: The last reply; after a failure the one with the most context.
    reply: RenderReply
    #: Every attempt in order.
    tried: tuple[Tried, ...]
    #: The effect of the reply on the cache; None without a cache.
    applied: Applied | None = None


class CEO:
    """The caller of the contract (its context and execution orchestrator): asks for context on behalf of a user.

    The budgets of a request fit the user's question.
    `ids` creates message ids, `clock` returns seconds; replace both to make runs reproducible.
    """

    def __init__(
        self,
        acs: Renderer,
        *,
        cache: KVCache | None = None,
        privacy: Privacy | str = Privacy.ALLOW,
        ids: Callable[[], str] = lambda: str(uuid4()),
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._acs = acs
        #: Fragments of past replies, retained as the `kv_policy` of each reply advises; None for no cache.
        self.cache = cache
        self._privacy = parse_choice(Privacy, privacy, "privacy")
        self._ids = ids
        self._clock = clock

    def request(
        self,
        said: str,
        *,
        privacy: Privacy | str | None = None,
        risk: RiskLevel | str | None = None,
        request_id: str | None = None,
    ) -> RenderRequest:
        """Return the request for a user's text; arguments override the values derived from the text."""
        return self._build_request(_intent_of_text(said), privacy, risk, request_id)

    async def ask(
        self,
        said: str,
        *,
        privacy: Privacy | str | None = None,
        risk: RiskLevel | str | None = None,
        request_id: str | None = None,
    ) -> Outcome:
        """Return context for a user's text.

        After an error, the best action that it offers is tried (see `pick`), each action once, until there is context,
        no attempt is left or no action is allowed. The cache receives only the returned reply; if cache policies
        conflict often, that reply carries the warning `PARTIAL_DATA`.
        """
        intent = _intent_of_text(said)
        request = current_request = self._build_request(intent, privacy, risk, request_id)
        start = self._clock()
        cache = self.cache
        notices = () if cache is None else cache.notices()
        action: Action | None = None
        tried: list[Tried] = []
        replies: list[RenderReply] = []
        while True:
            attempt = len(tried) + 1
            reply = await self._acs.render(current_request, action=action, attempt=attempt, cache=cache)
            error = reply.error
            code = None if error is None else error.code
            tried.append(Tried(id=current_request.id, attempt=attempt, action=action, code=code))
            if action is Action.EXPLICIT_L1_EXPANSION:
                reply = _add_expansion_warning(reply)
            replies.append(reply)
            if error is None or attempt >= error.max_attempts:
                break
            left_ms = request.time_ms - (self._clock() - start) * 1000
            tried_actions = [previous.action for previous in tried if previous.action is not None]
            action = pick(error, request, left=left_ms, done=tried_actions)
            if action is None:
                break
            current_request = replace(request, id=self._ids(), time_ms=max(MIN_ATTEMPT_MS, left_ms))
        final = _add_warnings(_choose_reply(replies), notices)
        applied = None if cache is None else cache.receive(final, gaze=gaze_of_request(request))
        return Outcome(intent=intent, request=request, reply=final, tried=tuple(tried), applied=applied)

    def _build_request(
        self,
        intent: Intent,
        privacy: Privacy | str | None,
        risk: RiskLevel | str | None,
        request_id: str | None,
    ) -> RenderRequest:
        """Build the request for an intent; risk and privacy default to those of the intent and of this caller."""
        tokens_max, time_ms = BUDGETS[intent.complexity]
        if intent.urgency is Urgency.HIGH:
            _, shortest_ms = BUDGETS[Complexity.SIMPLE]
            time_ms = min(time_ms, shortest_ms)
        message_id = self._ids()
        if request_id is None:
            request_id = self._ids()
        return RenderRequest(
            id=message_id,
            request_id=parse_text(request_id, "request_id", min_chars=1, max_chars=512),
            intent=intent.goal,
            tokens_max=tokens_max,
            time_ms=time_ms,
            risk=intent.risk if risk is None else parse_choice(RiskLevel, risk, "risk"),
            privacy=self._privacy if privacy is None else parse_choice(Privacy, privacy, "privacy"),
        )


def pick(
    error: ErrorEnvelope, request: RenderRequest, *, left: float, done: Collection[Action] = ()
) -> Action | None:
    """Return the best action that an error offers, or None if none is allowed.

    In order of preference: a retry with reduced scope, L1 (not at high risk, not under `block`), L4 alone, the items
    collected so far, the same request again. A retry needs a retriable error and enough time; `left` is in
    milliseconds. Actions in `done` are not repeated.
    """
    offered = {option.action for option in error.options}
    excluded = set(done)
    if not error.retriable or left < MIN_ATTEMPT_MS:
        excluded.update(_RETRIES)
    if request.risk is RiskLevel.HIGH or request.privacy is Privacy.BLOCK:
        excluded.add(Action.EXPLICIT_L1_EXPANSION)
    candidates = [action for action in ACTIONS_BY_PREFERENCE if action in offered and action not in excluded]
    return candidates[0] if candidates else None


def _choose_reply(replies: Sequence[RenderReply]) -> RenderReply:
    """Return the last reply; after a failure the newest one with the most context."""
    if replies[-1].error is None:
        return replies[-1]
    return max(
        reversed(replies), key=lambda reply: len(reply.fragments or ())
    )  # reversed: of equals the newest


def _intent_of_text(text: str) -> Intent:
    if not parse_text(text, "text", min_chars=1, max_chars=100_000).strip():
        raise ValidationError("must not be blank", field="text")
    return classify_intent(text)


def _add_expansion_warning(reply: RenderReply) -> RenderReply:
    """Return a reply with a warning that general knowledge was used: users must know."""
    if not reply.fragments or any(warning.code == Code.L1_EXPANSION for warning in reply.warnings):
        return reply
    message = "the project had no answer in time; general knowledge was used instead"
    return _add_warnings(reply, (Notice(code=Code.L1_EXPANSION.value, message=message),))


def _add_warnings(reply: RenderReply, notices: tuple[Notice, ...]) -> RenderReply:
    """Return a reply with more warnings, each once."""
    new_notices = tuple(notice for notice in notices if notice not in reply.warnings)
    return replace(reply, warnings=(*reply.warnings, *new_notices)) if new_notices else reply
