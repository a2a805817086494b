"""ACS: the engine behind the v0 contract. It answers a request for context with fragments in the budget or an error.

    reply = await ACS(sources=[session]).render({"version": "v0", …})
    reply_parts.to_wire()

Sources are queried concurrently, each within a slice of the request's time; their candidates are validated, redacted
and selected from. A reply arrives within `time_ms` + max(5 %, 25 ms), regardless of the sources, and stays within
`tokens_max`. The same answers give the same reply, in whatever order they arrive.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache as run_once
from functools import partial
from importlib import import_module
from time import perf_counter
from typing import Literal, NamedTuple

from acms.contract import recovery, reply_parts
from acms.contract.admission import Admission, AdmissionOptions, admit_candidates, build_ledger
from acms.contract.entities import extract_entities, gaze_of_request
from acms.contract.kv_policy import CachedKey, ListsKeys, parse_cache_keys
from acms.contract.providers import Answer, Call, KnowledgeSource, Provider, ask_providers, build_providers
from acms.contract.recovery import FailedAttempt, ProviderOutcome
from acms.contract.renditions import release_in_chunks
from acms.contract.schema import (
    Action,
    Code,
    Layer,
    Metrics,
    Notice,
    ProviderRequest,
    RenderReply,
    RenderRequest,
    RiskLevel,
)
from acms.contract.selection import Profile
from acms.contract.session_source import SessionMemory
from acms.errors import ConfigurationError
from acms.log import validation
from acms.model import Json, Privacy
from acms.observability.logging import correlation, correlation_id, log_event, safe_error
from acms.observability.operations import trace_class
from acms.ports import TokenCounter
from acms.privacy.detect import redact_text
from acms.privacy.modes import strictest_mode
from acms.prompt.manifest import Manifest
from acms.prompt.render_log import RenderLog, manifest_of_reply
from acms.providers.tokens import build_batch_counter, default_counter
from acms.results import Ledger
from acms.runtime.threads import off_loop
from acms.view import View

__all__ = ["ACS"]

MAX_ATTEMPTS = 64
"""Requests whose answers are kept for the next attempt: more than wait for one at a time."""
MAX_CHARACTERS = 16_000_000
"""Characters of candidates that are kept for the next attempt."""
LEAD_SECONDS = 0.015
"""Time before its deadline at which a reply gives up choosing. On a busy machine the event loop needs this time to get
the interpreter back from the choosing thread."""
_LAYERS_BY_ACTION: Mapping[Action | None, Sequence[Layer]] = {
    Action.RETURN_L4_ONLY: (Layer.L4,),
    Action.EXPLICIT_L1_EXPANSION: (Layer.L1, Layer.L4),
    Action.SKIP_EXPERIENCE_PATH: (Layer.L2,),
}
"""Layers that are queried first; the project and experience by default."""


@dataclass(slots=True)
class _Attempt:
    """The answers of one attempt, kept for the next one."""

    intent: str
    mode: Privacy
    #: By index of the source.
    answers: dict[int, Answer] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Characters of their texts."""
        return sum(answer.size for answer in self.answers.values())


class _Rendering(NamedTuple):
    """A request under way."""

    request: RenderRequest
    mode: Privacy
    action: Action | None
    attempt: int
    #: Its redacted request_id, for the log.
    id: str
    #: When it began, and when answers are due, in seconds of the event loop's clock.
    start: float
    answers_due: float
    #: The answers of an earlier attempt at the same request.
    earlier_attempt: _Attempt | None
    #: Under which answers are read, one slice of one answer at a time.
    reading_lock: asyncio.Lock
    #: The entries of the caller's cache, and its capacity in keys.
    cache: tuple[CachedKey, ...]
    capacity: int | None

    def log(self, name: str, *, level: int = logging.DEBUG, **fields: object) -> None:
        """Log an event of this request: ids, counts and milliseconds since it began, never a text."""
        ms = round(1000 * (asyncio.get_running_loop().time() - self.start), 3)
        log_event(level, name, request_id=self.id, attempt=self.attempt, ms=ms, **fields)

    def left_ms(self) -> float:
        """Return the milliseconds until answers are due."""
        return (self.answers_due - asyncio.get_running_loop().time()) * 1000


class _AnswerPile:
    """The answers to choose from, released in chunks afterwards: freeing many objects at once blocks other threads."""

    def __init__(self, answers: dict[int, Answer], *, reusable: bool) -> None:
        self._answers = answers
        self._reusable = reusable
        #: About how many characters there are to read.
        self.size = sum(answer.size for answer in answers.values())

    def __iter__(self) -> Iterator[Answer]:
        """Yield the answers in the order of their sources."""
        return iter([answer for _, answer in sorted(self._answers.items())])

    def take(self) -> dict[int, Answer]:
        """Remove and return the answers by index of the source."""
        answers, self._answers = self._answers, {}
        return answers

    async def release(self) -> None:
        """Release the candidates in chunks, in a thread if they are many, unless the next attempt may use them."""
        if not self._reusable:
            candidates = [candidate for answer in self.take().values() for candidate in answer.candidates]
            await off_loop(partial(release_in_chunks, candidates), self.size)


@trace_class
class ACS:
    """Adaptive context scaling: queries every source, selects within the budget, and reports errors with options.

    `sources` are sessions and objects with an async `search` (`acms.contract.providers.KnowledgeSource`,
    `HTTPSource`). `privacy` is the operator's mode; the strictest mode of operator, request and item applies.
    `profile` is "quality" or the "published" formula; `order` of the fragments is "selection" or "lod". Providers are
    asked for `top_k` items. Without a `token_counter` the counter of the first session is used. One object serves
    concurrent requests; it keeps the answers of recent attempts for `return_minimal` and retries, so tenants must not
    share one. The first object of a process loads rules and vocabulary, which takes a third of a second.
    """

    def __init__(
        self,
        sources: Sequence[View | KnowledgeSource],
        *,
        profile: Profile = "quality",
        order: Literal["selection", "lod"] = "selection",
        privacy: Privacy | str = Privacy.ALLOW,
        top_k: int = 20,
        max_attempts: int = 2,
        token_counter: TokenCounter | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        timer: Callable[[], float] = perf_counter,
    ) -> None:
        if profile not in ("quality", "published"):
            raise ConfigurationError('profile must be "quality" or "published"')
        if order not in ("selection", "lod"):
            raise ConfigurationError('order must be "selection" or "lod"')
        if isinstance(sources, str | bytes) or not isinstance(sources, Sequence):
            raise ConfigurationError("sources must be a list of sessions and sources")
        self._providers = build_providers(sources)
        self._profile: Profile = profile
        self._order: Literal["selection", "lod"] = order
        self._privacy = validation.parse_choice(privacy, Privacy, "privacy")
        self._top_k = validation.validate_integer(top_k, "top_k", minimum=1, maximum=recovery.MAX_TOP_K)
        self._max_attempts = validation.validate_integer(max_attempts, "max_attempts", minimum=1, maximum=10)
        sessions = self._sessions()
        counter = token_counter
        if counter is None:
            counter = sessions[0].counter if sessions else default_counter()
        self._count = counter.count
        self._counts = build_batch_counter(counter)
        self._clock = clock
        self._timer = timer
        _preload_rules()
        if sessions:
            _load_memory()
        self._count("load")  # loads the vocabulary now, not during the first reply
        self._attempts: OrderedDict[str, _Attempt] = OrderedDict()

    async def render(
        self,
        request: RenderRequest | Mapping[str, Json],
        *,
        action: Action | str | None = None,
        attempt: int = 1,
        cache: ListsKeys | Iterable[CachedKey | str] | None = None,
        lenient: bool = False,
    ) -> RenderReply:
        """Answer a request (`render_request.v0`); raise `ValidationError` with the name of an invalid field.

        `action` executes an option of an earlier error: in a new request with the same `request_id`, as attempt 2.
        `cache` is the caller's cache, as a `KVCache` or keys, on which `kv_policy` advises. With `lenient` the intent
        may be an object `{goal, entities}` and unknown fields are ignored. Failures of a source are reported in the
        reply, not raised.
        """
        began = asyncio.get_running_loop().time()
        parsed = RenderRequest.of(request, lenient=lenient)
        attempt = validation.validate_integer(attempt, "attempt", minimum=1, maximum=self._max_attempts)
        chosen_action = None if action is None else Action.of(action)
        mode = strictest_mode(parsed.privacy, self._privacy)
        cached_keys = parse_cache_keys(cache)
        earlier = self._attempts.get(parsed.request_id)
        if earlier is not None and (earlier.intent, earlier.mode) != (parsed.intent, mode):
            earlier = None  # an attempt with another intent or privacy mode cannot be continued
        seconds_for_sources = (parsed.time_ms - recovery.reserve_ms(parsed.time_ms)) / 1000
        rendering = _Rendering(
            request=parsed,
            mode=mode,
            action=chosen_action,
            attempt=attempt,
            id=redact_text(parsed.request_id, Privacy.REDACT).text,
            start=began,
            answers_due=began + max(0.0, seconds_for_sources),
            earlier_attempt=earlier,
            reading_lock=asyncio.Lock(),
            cache=cached_keys,
            capacity=cache.capacity if isinstance(cache, ListsKeys) else None,
        )
        with correlation(rendering.id) if correlation_id.get() is None else nullcontext():
            return await self._logged_reply(rendering)

    async def _logged_reply(self, rendering: _Rendering) -> RenderReply:
        """Answer a request, and log its arrival and its outcome."""
        request = rendering.request
        rendering.log(
            "render.received",
            action=rendering.action,
            privacy=rendering.mode.value,
            risk=request.risk.value,
            tokens_max=request.tokens_max,
            time_ms=request.time_ms,
        )
        try:
            log = await self._render_log()
            reply = await self._render(rendering)
            if log is not None and reply.fragments is not None:
                log.add("acs", partial(_build_manifest, reply, request.tokens_max), request=rendering.id)
        except Exception as error:
            rendering.log("render.broke", level=logging.ERROR, error=safe_error(error))
            reply = self._build_error(rendering, Code.INTERNAL, "the engine failed", [], 0)
        rendering.log(
            "render.replied" if reply.error is None else "render.failed",
            level=logging.INFO,
            fragments=len(reply.fragments or ()),
            used_tokens=0 if reply.metrics is None else reply.metrics.used_tokens,
            code=None if reply.error is None else reply.error.code.value,
            warnings=[warning.code for warning in reply.warnings],
        )
        return reply

    def _sessions(self) -> list[View]:
        """Return the sessions among the sources."""
        return [provider.source for provider in self._providers if isinstance(provider.source, View)]

    async def _render_log(self) -> RenderLog | None:
        """Return the render log of the first session that has one, or None."""
        for session in self._sessions():
            if session.internals.render_log is not None:
                return await session.internals.render_log.begin()
        return None

    # ── querying sources ────────────────────────────────────────────────────────────────────────────────────────────

    async def _render(self, rendering: _Rendering) -> RenderReply:
        """Query the sources, choose fragments and return the reply, or an error with its options."""
        if rendering.action is Action.RETURN_MINIMAL:
            return await self._render_minimal(rendering)
        request = rendering.request
        if request.tokens_max == 0 and rendering.mode is not Privacy.BLOCK:
            error = self._build_error(
                rendering, Code.BUDGET_TOO_SMALL, "tokens_max is 0: nothing fits", [], 0
            )
            return replace(error, fragments=(), metrics=Metrics(used_tokens=0, planner_ms=0.0))
        answers = await self._gather(rendering)
        outcomes = [reply_parts.outcome_of_answer(answer) for _, answer in sorted(answers.items())]
        answers = {**self._reused_answers(rendering, answers), **answers}
        collected = reply_parts.count_candidates(answers, request.experience_top_k)
        is_complete = collected > 0 and all(answer.code is None for answer in answers.values())
        if is_complete:
            self._attempts.pop(request.request_id, None)
        else:
            self._remember(rendering, answers)
        if not collected:
            code = recovery.select_error_code(outcomes, request.risk, obtained=False)
            if code is not None:
                message = recovery.describe_outcomes(outcomes)
                return self._build_error(rendering, code, message, outcomes, 0)
        warnings = reply_parts.notices_for_answers(answers)
        pile = _AnswerPile(answers, reusable=not is_complete)
        del answers  # the pile holds the last reference and releases it in chunks
        return await self._reply_from_pile(rendering, pile, warnings, outcomes, collected)

    async def _render_minimal(self, rendering: _Rendering) -> RenderReply:
        """Return what the answers of the earlier attempt allow, without querying a source."""
        request = rendering.request
        answers = self._reused_answers(rendering, {})
        collected = reply_parts.count_candidates(answers, request.experience_top_k)
        if collected > 0 and all(answer.code is None for answer in answers.values()):
            self._attempts.pop(request.request_id, None)
        warnings = reply_parts.notices_for_answers(answers)
        return await self._reply_from_pile(
            rendering, _AnswerPile(answers, reusable=True), warnings, [], collected
        )

    async def _reply_from_pile(
        self,
        rendering: _Rendering,
        pile: _AnswerPile,
        warnings: Sequence[Notice],
        outcomes: Sequence[ProviderOutcome],
        collected: int,
    ) -> RenderReply:
        """Choose fragments from the answers and return the reply, or an error if the choice is refused or too late.

        The choice for `RETURN_MINIMAL` is not refused.
        """
        began = self._timer()
        choice = await self._choose(rendering, pile)
        if choice is None:
            self._remember(rendering, pile.take())
            message = "there was no time left to choose from what was found"
            return self._build_error(rendering, Code.DEADLINE_EXCEEDED, message, outcomes, 0)
        admission, ledger = choice
        planner_ms = round(1000 * (self._timer() - began), 3)
        _log_choice(rendering, admission, collected, planner_ms)
        if rendering.action is not Action.RETURN_MINIMAL:
            error = self._reject_choice(rendering, admission, outcomes, collected)
            if error is not None:
                return replace(error, ledger=ledger)
        advice, selection = admission.advice, admission.selection
        rendering.log(
            "kv.emitted", pin=len(advice.pin), compress=len(advice.compress), evict=len(advice.evict)
        )
        metrics = Metrics(
            used_tokens=selection.used_tokens, planner_ms=planner_ms, coverage_entities=selection.coverage
        )
        return RenderReply(
            request_id=rendering.request.request_id,
            fragments=selection.fragments,
            kv_policy=advice,
            metrics=metrics,
            warnings=(*warnings, *reply_parts.notices_for_selection(admission)),
            experience=reply_parts.build_experience(admission),
            ledger=ledger,
        )

    def _reject_choice(
        self, rendering: _Rendering, admission: Admission, outcomes: Sequence[ProviderOutcome], collected: int
    ) -> RenderReply | None:
        """Return the error reply if the choice does not satisfy the request, or None if it does."""
        obtained = bool(admission.selection.fragments) or admission.selection.record.has_too_large()
        code = recovery.select_error_code(outcomes, rendering.request.risk, obtained=obtained)
        if code is not None:
            message = recovery.describe_outcomes(outcomes)
            return self._build_error(rendering, code, message, outcomes, collected)
        if admission.withheld and not obtained:
            message = "what was found would show what must not be shown"
            return self._build_error(rendering, Code.PRIVACY_VIOLATION, message, outcomes, 0)
        return None

    async def _gather(self, rendering: _Rendering) -> dict[int, Answer]:
        """Query the sources, then retry some in a second wave; return the answers by index of the source."""
        request, mode = rendering.request, rendering.mode

        def prepare() -> tuple[RenderRequest, dict[int, SessionMemory]]:
            """Return the request for sources other than sessions, with a redacted intent, and a memory per session."""
            redacted_intent = redact_text(request.intent, _privacy_of_query(mode)).text
            redacted = replace(request, intent=redacted_intent)
            sessions = [provider.source for provider in self._providers if provider.is_session]
            memories = {id(session): SessionMemory(session, request, mode) for session in sessions}
            return replace(redacted, entities=gaze_of_request(redacted)), memories

        redacted_request, memories = await off_loop(prepare, 4 * len(request.intent))
        calls: dict[int, Call] = {}
        answers: dict[int, Answer] = {}
        for index in self._first_wave(rendering):
            call = self._build_call(rendering, index, redacted_request)
            if call.slice_ms > 0:
                calls[index] = call
            else:
                answers[index] = Answer(call=call, code=Code.DEADLINE_EXCEEDED)
        rendering.log(
            "plan.built",
            providers=len(calls),
            not_asked=len(answers),
            until_ms=round((rendering.answers_due - rendering.start) * 1000),
        )
        answers |= await self._ask(rendering, calls, memories)
        retries: dict[int, Call] = {}
        for index in self._second_wave(rendering, answers):
            call = self._build_call(
                rendering, index, redacted_request, second=True, previous=answers.get(index)
            )
            if call.slice_ms > 0:
                retries[index] = call
        answers |= await self._ask(rendering, retries, memories)
        return answers

    async def _ask(
        self, rendering: _Rendering, calls: Mapping[int, Call], memories: Mapping[int, SessionMemory]
    ) -> dict[int, Answer]:
        """Make some calls concurrently, log them, and return the answers by index of the source."""
        for call in calls.values():
            rendering.log(
                "provider.called",
                provider=call.provider.name,
                layer=call.provider.layer.value,
                top_k=call.request.top_k,
                slice_ms=round(call.slice_ms),
                expansion=call.request.expansion,
            )
        if any(call.request.expansion for call in calls.values()):
            rendering.log("expansion.used", asked_for=rendering.action is Action.EXPLICIT_L1_EXPANSION)
        answers = await ask_providers(
            list(calls.values()), memories, rendering.reading_lock, until=rendering.answers_due
        )
        for answer in answers:
            for name, level, fields in reply_parts.log_records_for_answer(answer):
                rendering.log(name, level=level, **fields)
        return dict(zip(calls, answers, strict=True))

    def _first_wave(self, rendering: _Rendering) -> list[int]:
        """Return the indexes of the sources to query first: those of the layers that the action names.

        An action that continues an earlier attempt queries those that have not answered, or else all of them again.
        """
        action = rendering.action
        layers = set(_LAYERS_BY_ACTION.get(action, (Layer.L2, Layer.L4)))
        if rendering.request.experience_top_k == 0:
            layers.discard(Layer.L4)
        indexes = [index for index, provider in enumerate(self._providers) if provider.layer in layers]
        if rendering.earlier_attempt is None or action in (
            None,
            Action.RETURN_L4_ONLY,
            Action.SKIP_EXPERIENCE_PATH,
        ):
            return indexes
        earlier_answers = rendering.earlier_attempt.answers
        answered_indexes = {index for index, answer in earlier_answers.items() if answer.code is None}
        unanswered = [index for index in indexes if index not in answered_indexes]
        if action is Action.EXPLICIT_L1_EXPANSION:
            return [index for index in indexes if index in unanswered or self._layer(index) is Layer.L1]
        return unanswered or indexes

    def _layer(self, index: int) -> Layer:
        return self._providers[index].layer

    def _second_wave(self, rendering: _Rendering, answers: Mapping[int, Answer]) -> list[int]:
        """Return the indexes of the sources to query again, after the answers of the first wave.

        They are those that failed transiently, and the L1 sources if the project (L2) answered but found nothing. L1 is
        added only without an action (an action chose its layers for the first wave), at low risk, and not under
        `block`.
        """
        indexes = [index for index, answer in answers.items() if answer.transient]
        may_query_l1 = rendering.request.risk is RiskLevel.LOW and rendering.mode is not Privacy.BLOCK
        if rendering.action is not None or not may_query_l1:
            return indexes
        project_answers = [answer for index, answer in answers.items() if self._layer(index) is Layer.L2]
        is_empty = all(answer.code is None and not answer.candidates for answer in project_answers)
        if project_answers and is_empty:
            indexes += [index for index in range(len(self._providers)) if self._layer(index) is Layer.L1]
        return indexes

    def _build_call(
        self,
        rendering: _Rendering,
        index: int,
        redacted_request: RenderRequest,
        *,
        second: bool = False,
        previous: Answer | None = None,
    ) -> Call:
        """Return the request to one source and its time limit.

        `second` is for the second wave, and `previous` is the failed answer of the source in the first one.
        """
        provider, request, action = self._providers[index], rendering.request, rendering.action
        is_reduced = action is Action.RETRY_WITH_REDUCED_SCOPE
        top_k = self._top_k
        if provider.layer is Layer.L4 and request.experience_top_k is not None:
            top_k = min(recovery.MAX_TOP_K, max(1, request.experience_top_k))
        if previous is not None or is_reduced:
            earlier_answer = previous
            if earlier_answer is None and rendering.earlier_attempt is not None:
                earlier_answer = rendering.earlier_attempt.answers.get(index)
            top_k = recovery.reduce_top_k(
                top_k if earlier_answer is None else earlier_answer.call.request.top_k
            )
        suffix = ""
        if previous is not None:
            suffix = f"#{rendering.attempt}.2"
        elif rendering.attempt > 1:
            suffix = f"#{rendering.attempt}"
        slice_ms = self._slice_ms(rendering, provider, is_reduced=is_reduced and previous is None)
        is_l1 = provider.layer is Layer.L1
        expansion = is_l1 and action is Action.EXPLICIT_L1_EXPANSION
        return Call(
            provider=provider,
            slice_ms=slice_ms,
            request=ProviderRequest(
                request_id=request.request_id + suffix,
                query=redacted_request.intent,
                entities=redacted_request.entities or (),
                top_k=top_k,
                deadline_ms=max(1, int(slice_ms)),
                expansion=expansion or (second and previous is None),
                privacy=rendering.mode,
            ),
        )

    def _slice_ms(self, rendering: _Rendering, provider: Provider, *, is_reduced: bool) -> float:
        """Return the time limit of a call in milliseconds, or 0 if the provider must not be queried."""
        left_ms, time_ms = rendering.left_ms(), rendering.request.time_ms
        if provider.is_session:
            return max(0.0, left_ms)
        if not is_reduced:
            return recovery.slice_ms(provider.deadline_ms, provider.layer, time_ms, left_ms)
        full_ms = time_ms - recovery.reserve_ms(time_ms)
        previous_ms = recovery.slice_ms(provider.deadline_ms, provider.layer, time_ms, full_ms)
        return recovery.retry_slice_ms(previous_ms, left_ms)

    # ── answers of earlier attempts ─────────────────────────────────────────────────────────────────────────────────

    def _reused_answers(self, rendering: _Rendering, answers: Mapping[int, Answer]) -> dict[int, Answer]:
        """Return the answers of an earlier attempt that this one does not request again."""
        if rendering.earlier_attempt is None or rendering.action in (None, Action.SKIP_EXPERIENCE_PATH):
            return {}
        only_l4 = rendering.action is Action.RETURN_L4_ONLY
        reused: dict[int, Answer] = {}
        for index, earlier_answer in rendering.earlier_attempt.answers.items():
            if only_l4 and earlier_answer.call.provider.layer is not Layer.L4:
                continue
            answer = answers.get(index)
            if answer is None or (only_l4 and answer.code is not None):
                reused[index] = earlier_answer
        return reused

    def _remember(self, rendering: _Rendering, answers: Mapping[int, Answer]) -> None:
        """Keep the answers for the next attempt at this request; drop the oldest attempts beyond the limits."""
        attempts, request = self._attempts, rendering.request
        attempts.pop(request.request_id, None)
        attempts[request.request_id] = _Attempt(request.intent, rendering.mode, dict(answers))
        while len(attempts) > 1:
            size = sum(attempt.size for attempt in attempts.values())
            if len(attempts) <= MAX_ATTEMPTS and size <= MAX_CHARACTERS:
                break
            attempts.popitem(last=False)

    # ── choosing ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _choose(self, rendering: _Rendering, pile: _AnswerPile) -> tuple[Admission, Ledger] | None:
        """Choose the fragments, in a thread if there are many candidates; return None if the time runs out."""
        request = rendering.request
        moment = self._clock()

        def choose() -> tuple[Admission, Ledger]:
            candidates, omitted = reply_parts.cap_experience(pile, request.experience_top_k)
            names: set[str] = set()
            for candidate in candidates:
                names.update(name for name in candidate.entities if not name.isalnum())
            shares = [session.internals.external_share for session in self._sessions()]
            options = AdmissionOptions(
                mode=rendering.mode,
                gaze=gaze_of_request(request, known_names=names),
                tokens_max=request.tokens_max,
                now=moment,
                count=self._count,
                counts=self._counts,
                profile=self._profile,
                order=self._order,
                risk=request.risk,
                cache=rendering.cache,
                capacity=rendering.capacity,
                unread=tuple(text for answer in pile for text in answer.unread),
                external_share=min(shares, default=1.0),
            )
            admission = admit_candidates(candidates, options)
            release_in_chunks(candidates)
            return admission, build_ledger(admission, omitted)

        # A reply may take 5 % longer than asked for, but at least 25 ms.
        deadline = rendering.start + (request.time_ms + max(0.05 * request.time_ms, 25.0)) / 1000
        seconds = deadline - asyncio.get_running_loop().time() - LEAD_SECONDS
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                choice = await off_loop(choose, pile.size)
        except TimeoutError:
            return None  # the answers stay available for the next attempt
        await pile.release()
        return choice

    # ── errors ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _build_error(
        self,
        rendering: _Rendering,
        code: Code,
        message: str,
        outcomes: Sequence[ProviderOutcome],
        collected: int,
    ) -> RenderReply:
        failed_attempt = FailedAttempt(
            request=rendering.request,
            mode=rendering.mode,
            attempt=rendering.attempt,
            max_attempts=self._max_attempts,
            outcomes=outcomes,
            layers=frozenset(provider.layer for provider in self._providers),
            collected=collected,
        )
        error = recovery.build_envelope(code, message, failed_attempt)
        return RenderReply(request_id=rendering.request.request_id, error=error)


def _build_manifest(reply: RenderReply, budget: int) -> Manifest:
    fragments = [
        (fragment.id, fragment.source.value, fragment.lod.value, fragment.cost_tokens)
        for fragment in reply.fragments or ()
    ]
    return manifest_of_reply(fragments, reply.ledger, budget=budget)


def _log_choice(rendering: _Rendering, admission: Admission, collected: int, planner_ms: float) -> None:
    """Log the counts of the choice and of the items that privacy affected."""
    selection = admission.selection
    rendering.log(
        "selection.done",
        candidates=collected,
        fragments=len(selection.fragments),
        used_tokens=selection.used_tokens,
        coverage_entities=selection.coverage,
        planner_ms=planner_ms,
    )
    if admission.redacted or admission.blocked or admission.withheld:
        rendering.log(
            "privacy.redacted",
            redacted=admission.redacted,
            blocked=admission.blocked,
            withheld=admission.withheld,
        )


@run_once
def _preload_rules() -> None:
    """Load the rules, the stemmer and other data that would take half of the first reply's time."""
    extract_entities("load")
    redact_text("password: load; token=load, mail me@example.com or +49 30 1234567", Privacy.REDACT)


@run_once
def _load_memory() -> None:
    """Import the modules that a first recall needs."""
    for name in ("confidence", "candidates", "companions", "index_cache"):
        import_module(f"acms.recall.{name}")


def _privacy_of_query(mode: Privacy) -> Privacy:
    """Return the mode in which a query is redacted for providers: a blocked query would be empty."""
    return Privacy.REDACT if mode is Privacy.BLOCK else mode
