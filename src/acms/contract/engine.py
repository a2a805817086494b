"""ACS: the engine behind the v0 contract. It answers a request for context with fragments in the budget or an error.

    reply = await ACS(sources=[session]).render({"version": "v0", …})
    reply.to_wire()

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
from functools import cache as once
from functools import partial
from importlib import import_module
from time import perf_counter
from typing import Literal, NamedTuple

from acms.contract import recovery
from acms.contract import reply as replying
from acms.contract.admission import Admitted, Terms, admit_candidates, build_ledger
from acms.contract.entities import extract_entities, gaze_of_request
from acms.contract.kv_policy import Held, Holds, parse_cache_keys
from acms.contract.providers import Answer, Call, Desk, KnowledgeSource, ask_providers, build_providers
from acms.contract.recovery import Outcome, Situation
from acms.contract.renditions import release_in_chunks
from acms.contract.schema import (
    Action,
    Code,
    Layer,
    Metrics,
    ProviderRequest,
    RenderReply,
    RenderRequest,
    RiskLevel,
)
from acms.contract.selection import Profile
from acms.contract.session_source import Memory
from acms.errors import ConfigurationError
from acms.log import validation
from acms.model import Json, Privacy
from acms.observability.logging import correlation, correlation_id, log_event, safe_error
from acms.observability.operations import trace_class
from acms.ports import TokenCounter
from acms.privacy.detect import redact_text, strictest_mode
from acms.prompt.manifest import Manifest
from acms.prompt.render_log import RenderLog, manifest_of_reply
from acms.providers.tokens import build_batch_counter, default_counter
from acms.results import Ledger
from acms.runtime.threads import off_loop
from acms.view import View

__all__ = ["ACS"]

ATTEMPTS = 64
"""Most requests whose answers are kept for the next attempt."""
KEPT = 16_000_000
"""Most characters of candidates that are kept for the next attempt."""
LEAVE = 0.015
"""Seconds before its deadline at which a reply stops choosing: the choosing thread still holds the interpreter, and
on a busy machine each turn of the event loop waits for it and for a processor."""


@dataclass(slots=True)
class _Attempt:
    """The answers of one attempt, kept for the next one."""

    intent: str
    mode: Privacy
    #: By index of the source.
    answers: dict[int, Answer] = field(default_factory=dict)
    #: Characters of their texts.
    size: int = 0


class _Asking(NamedTuple):
    """A request under way."""

    request: RenderRequest
    mode: Privacy
    action: Action | None
    attempt: int
    #: Its redacted request_id, for the log.
    id: str
    #: When it began, and when answers are due, in seconds of the event loop's clock.
    began: float
    until: float
    kept: _Attempt | None
    desk: Desk
    #: The entries of the caller's cache, and its capacity in keys.
    cache: tuple[Held, ...]
    capacity: int | None

    def tell(self, name: str, *, level: int = logging.DEBUG, **fields: object) -> None:
        """Log an event of this request: ids, counts and milliseconds since it began, never a text."""
        ms = round(1000 * (asyncio.get_running_loop().time() - self.began), 3)
        log_event(level, name, request_id=self.id, attempt=self.attempt, ms=ms, **fields)


class _Pile:
    """Answers for the choice; the engine releases them after it."""

    def __init__(self, answers: dict[int, Answer], *, spare: bool) -> None:
        self._answers = [answers]
        self._spare = spare
        #: About how many characters there are to read.
        self.size = sum(answer.size for answer in answers.values())

    def __iter__(self) -> Iterator[Answer]:
        """Yield the answers in the order of their sources."""
        for answers in self._answers:
            yield from (answer for _, answer in sorted(answers.items()))

    def take(self) -> dict[int, Answer]:
        """Remove and return the answers by index of the source."""
        try:
            return self._answers.pop()
        except IndexError:
            return {}

    async def let_go(self) -> None:
        """Release the candidates in chunks, in a thread if they are many; a pile that is not `spare` keeps them."""
        if self._spare:
            pile = [one for answer in self.take().values() for one in answer.candidates]
            await off_loop(partial(release_in_chunks, pile), self.size)


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
        self._layers = frozenset(one.layer for one in self._providers)
        self._profile: Profile = profile
        self._order: Literal["selection", "lod"] = order
        self._privacy = validation.parse_choice(privacy, Privacy, "privacy")
        self._top_k = validation.validate_integer(top_k, "top_k", least=1, most=recovery.MAX_TOP_K)
        self._max_attempts = validation.validate_integer(max_attempts, "max_attempts", least=1, most=10)
        sessions = [one.source for one in self._providers if one.own]
        counter: TokenCounter = (
            token_counter
            if token_counter is not None
            else sessions[0].counter
            if sessions
            else default_counter()
        )
        self._count = counter.count
        self._counts = build_batch_counter(counter)
        self._clock = clock
        self._timer = timer
        _preload_rules()
        if sessions:
            _load_memory()
        self._count("load")
        self._kept: OrderedDict[str, _Attempt] = OrderedDict()

    async def render(
        self,
        request: RenderRequest | Mapping[str, Json],
        *,
        action: Action | str | None = None,
        attempt: int = 1,
        cache: Holds | Iterable[Held | str] | None = None,
        lenient: bool = False,
    ) -> RenderReply:
        """Answer a request (`render_request.v0`); `ValidationError` names the invalid field.

        `action` executes an option of an earlier error: in a new request with the same `request_id`, as attempt 2.
        `cache` is the caller's cache, as a `KVCache` or keys: `kv_policy` advises on it. With `lenient` the intent may
        be an object `{goal, entities}` and unknown fields are ignored. Failures of a source are reported in the reply,
        not raised.
        """
        began = asyncio.get_running_loop().time()
        asked = RenderRequest.of(request, lenient=lenient)
        attempt = validation.validate_integer(attempt, "attempt", least=1, most=self._max_attempts)
        chosen = None if action is None else Action.of(action)
        mode = strictest_mode(asked.privacy, self._privacy)
        held = parse_cache_keys(cache)
        capacity = cache.capacity if isinstance(cache, Holds) else None
        kept = self._kept.get(asked.request_id)
        if kept is not None and (kept.intent, kept.mode) != (asked.intent, mode):
            kept = None  # another question, or another exposure
        left = (asked.time_ms - recovery.reserve_ms(asked.time_ms)) / 1000
        now = _Asking(
            request=asked,
            mode=mode,
            action=chosen,
            attempt=attempt,
            id=redact_text(asked.request_id, Privacy.REDACT).text,
            began=began,
            until=began + max(0.0, left),
            kept=kept,
            desk=Desk(),
            cache=held,
            capacity=capacity,
        )
        with correlation(now.id) if correlation_id.get() is None else nullcontext():
            return await self._logged_reply(now)

    async def _logged_reply(self, now: _Asking) -> RenderReply:
        """Answer a request, and log its arrival and its outcome."""
        request = now.request
        now.tell(
            "render.received",
            action=now.action,
            privacy=now.mode.value,
            risk=request.risk.value,
            tokens_max=request.tokens_max,
            time_ms=request.time_ms,
        )
        try:
            log = await self._render_log()
            reply = await self._render(now)
            if log is not None and reply.fragments is not None:
                log.add("acs", partial(_build_manifest, reply, request.tokens_max), request=now.id)
        except Exception as error:
            now.tell("render.broke", level=logging.ERROR, error=safe_error(error))
            reply = self._failed(now, Code.INTERNAL, "the engine failed", [], 0)
        now.tell(
            "render.replied" if reply.error is None else "render.failed",
            level=logging.INFO,
            fragments=len(reply.fragments or ()),
            used_tokens=0 if reply.metrics is None else reply.metrics.used_tokens,
            code=None if reply.error is None else reply.error.code.value,
            warnings=[one.code for one in reply.warnings],
        )
        return reply

    @property
    def _external_share(self) -> float:
        """Share of a reply that external text of sessions may take while other relevant text is left out."""
        shares = [one.source.external_share for one in self._providers if isinstance(one.source, View)]
        return min(shares, default=1.0)

    async def _render_log(self) -> RenderLog | None:
        """Return the render log of the first session that has one, or None."""
        logs = [one.source.render_log for one in self._providers if isinstance(one.source, View)]
        found = next((log for log in logs if log is not None), None)
        return None if found is None else await found.begin()

    # ── asking ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _render(self, now: _Asking) -> RenderReply:
        request, minimal = now.request, now.action is Action.RETURN_MINIMAL
        if request.tokens_max == 0 and now.mode is not Privacy.BLOCK and not minimal:
            failed = self._failed(now, Code.BUDGET_TOO_SMALL, "tokens_max is 0: nothing fits", [], 0)
            return replace(failed, fragments=(), metrics=Metrics(used_tokens=0, planner_ms=0.0))
        answers = {} if minimal else await self._gather(now)
        everything = {**self._reused(now, answers), **answers}
        outcomes = [replying.outcome_of_answer(answer) for _, answer in sorted(answers.items())]
        collected = replying.count_candidates(everything, request.experience_top_k)
        if not collected and not minimal:
            code = recovery.select_error_code(outcomes, request.risk, obtained=False)
            if code is not None:
                self._remember(now, everything)
                return self._failed(now, code, recovery.describe_outcomes(outcomes), outcomes, 0)
        warnings = replying.notices_for_answers(everything)
        if not collected or any(answer.code is not None for answer in everything.values()):
            if not minimal:
                self._remember(now, everything)
            pile = _Pile(everything, spare=False)
        else:
            self._kept.pop(request.request_id, None)
            pile = _Pile(everything, spare=not minimal)
        del answers, everything  # the pile holds the last reference and releases it in chunks
        began = self._timer()
        chosen = await self._chosen(now, pile)
        if chosen is None:
            self._remember(now, pile.take())
            message = "there was no time left to choose from what was found"
            return self._failed(now, Code.DEADLINE_EXCEEDED, message, outcomes, 0)
        admitted, reasons = chosen
        planner_ms = round(1000 * (self._timer() - began), 3)
        _tell_choice(now, admitted, collected, planner_ms)
        too_large = admitted.selection.weighed.too_large()
        if not minimal:
            failed = self._refused(now, admitted, outcomes, collected, too_large=too_large)
            if failed is not None:
                return replace(failed, ledger=reasons)
        advice = admitted.advice
        now.tell("kv.emitted", pin=len(advice.pin), compress=len(advice.compress), evict=len(advice.evict))
        return RenderReply(
            request_id=request.request_id,
            fragments=admitted.selection.fragments,
            kv_policy=advice,
            metrics=Metrics(
                used_tokens=admitted.selection.used_tokens,
                planner_ms=planner_ms,
                coverage_entities=admitted.selection.coverage,
            ),
            warnings=(*warnings, *replying.notices_for_selection(admitted, too_large=too_large)),
            experience=replying.build_experience(admitted),
            ledger=reasons,
        )

    def _refused(
        self,
        now: _Asking,
        admitted: Admitted,
        outcomes: Sequence[Outcome],
        collected: int,
        *,
        too_large: bool,
    ) -> RenderReply | None:
        """Return the error reply if the choice does not satisfy the request, or None if it does."""
        obtained = bool(admitted.selection.fragments) or too_large
        code = recovery.select_error_code(outcomes, now.request.risk, obtained=obtained)
        if code is not None:
            return self._failed(now, code, recovery.describe_outcomes(outcomes), outcomes, collected)
        if admitted.withheld and not obtained:
            message = "what was found would show what must not be shown"
            return self._failed(now, Code.PRIVACY_VIOLATION, message, outcomes, 0)
        return None

    async def _gather(self, now: _Asking) -> dict[int, Answer]:
        """Query the sources, then retry some in a second wave; return the answers by index of the source."""
        loop = asyncio.get_running_loop()
        request = now.request

        def read() -> tuple[RenderRequest, dict[int, Memory]]:
            others = redact_text(request.intent, _privacy_of_query(now.mode)).text
            memories = {
                id(one.source): Memory(one.source, request, now.mode) for one in self._providers if one.own
            }
            stated = replace(request, intent=others)
            return replace(stated, entities=gaze_of_request(stated)), memories

        foreign, memories = await off_loop(read, 4 * len(request.intent))
        calls: dict[int, Call] = {}
        answers: dict[int, Answer] = {}
        for place in self._wave(now):
            call = self._call(now, place, foreign, (now.until - loop.time()) * 1000)
            if call.slice_ms > 0:
                calls[place] = call
            else:
                answers[place] = Answer(call=call, code=Code.DEADLINE_EXCEEDED)
        now.tell(
            "plan.built",
            providers=len(calls),
            not_asked=len(answers),
            until_ms=round((now.until - now.began) * 1000),
        )
        answers |= await self._asked(now, calls, memories)
        second: dict[int, Call] = {}
        left = (now.until - loop.time()) * 1000
        for place in self._again(now, answers):
            old = answers.get(place)
            call = self._call(now, place, foreign, left, expansion=old is None, again=old)
            if call.slice_ms > 0:
                second[place] = call
        answers |= await self._asked(now, second, memories)
        return answers

    async def _asked(
        self, now: _Asking, calls: Mapping[int, Call], memories: Mapping[int, Memory]
    ) -> dict[int, Answer]:
        for call in calls.values():
            now.tell(
                "provider.called",
                provider=call.provider.name,
                layer=call.provider.layer.value,
                top_k=call.request.top_k,
                slice_ms=round(call.slice_ms),
                expansion=call.request.expansion,
            )
        if any(call.request.expansion for call in calls.values()):
            now.tell("expansion.used", asked_for=now.action is Action.EXPLICIT_L1_EXPANSION)
        found = await ask_providers(list(calls.values()), memories, now.desk, until=now.until)
        for one in found:
            for name, level, fields in replying.log_records_for_answer(one):
                now.tell(name, level=level, **fields)
        return dict(zip(calls, found, strict=True))

    def _wave(self, now: _Asking) -> list[int]:
        """Return the indexes of the sources to query first."""
        action = now.action
        wanted: frozenset[Layer]
        if action is Action.RETURN_L4_ONLY:
            wanted = frozenset((Layer.L4,))
        elif action is Action.EXPLICIT_L1_EXPANSION:
            wanted = frozenset((Layer.L1, Layer.L4))
        elif action is Action.SKIP_EXPERIENCE_PATH:
            wanted = frozenset((Layer.L2,))
        else:
            wanted = frozenset((Layer.L2, Layer.L4))
        if now.request.experience_top_k == 0:
            wanted -= {Layer.L4}
        places = [place for place, one in enumerate(self._providers) if one.layer in wanted]
        if now.kept is None or action in (None, Action.RETURN_L4_ONLY, Action.SKIP_EXPERIENCE_PATH):
            return places
        there = now.kept.answers
        if action is Action.EXPLICIT_L1_EXPANSION:
            answered = {place for place, one in there.items() if one.code is None}
            return [
                place for place in places if self._providers[place].layer is Layer.L1 or place not in answered
            ]
        failed = [place for place in places if place not in there or there[place].code is not None]
        return failed or places

    def _again(self, now: _Asking, answers: Mapping[int, Answer]) -> list[int]:
        """Return the indexes of the sources for a second wave: transient failures, and L1 where it may help.

        Without an explicit action L1 is queried only at low risk, not under `block`, and only if the project is empty.
        """
        places = [place for place, answer in answers.items() if answer.passing]
        project = [one for one in answers.values() if one.call.provider.layer is Layer.L2]
        empty = bool(project) and all(one.code is None and not one.candidates for one in project)
        if (
            empty
            and now.action is None
            and now.request.risk is RiskLevel.LOW
            and now.mode is not Privacy.BLOCK
        ):
            places += [place for place, one in enumerate(self._providers) if one.layer is Layer.L1]
        return places

    def _call(
        self,
        now: _Asking,
        place: int,
        foreign: RenderRequest,
        left_ms: float,
        *,
        expansion: bool = False,
        again: Answer | None = None,
    ) -> Call:
        """Return the request to one source and its time limit."""
        provider, request = self._providers[place], now.request
        top_k = self._top_k
        if provider.layer is Layer.L4 and request.experience_top_k is not None:
            top_k = min(recovery.MAX_TOP_K, max(1, request.experience_top_k))
        own = provider.own
        time_ms = request.time_ms
        slice_ms = recovery.slice_ms(provider.deadline_ms, provider.layer, time_ms, left_ms, own=own)
        if again is not None or now.action is Action.RETRY_WITH_REDUCED_SCOPE:
            earlier = again if again is not None else now.kept and now.kept.answers.get(place)
            if earlier:
                top_k = earlier.call.request.top_k
            top_k = recovery.reduce_top_k(top_k)
        if again is None and now.action is Action.RETRY_WITH_REDUCED_SCOPE:
            full = (time_ms - recovery.reserve_ms(time_ms)) if not own else left_ms
            old = recovery.slice_ms(provider.deadline_ms, provider.layer, time_ms, full, own=own)
            slice_ms = recovery.retry_slice_ms(old, left_ms, own=own)
        number = now.attempt if again is None else f"{now.attempt}.2"
        reissued = now.attempt > 1 or again is not None
        return Call(
            provider=provider,
            slice_ms=slice_ms,
            request=ProviderRequest(
                request_id=f"{request.request_id}#{number}" if reissued else request.request_id,
                query=foreign.intent,
                entities=foreign.entities or (),
                top_k=top_k,
                deadline_ms=max(1, int(slice_ms)),
                expansion=expansion
                or (provider.layer is Layer.L1 and now.action is Action.EXPLICIT_L1_EXPANSION),
                privacy=now.mode,
            ),
        )

    # ── answers of earlier attempts ─────────────────────────────────────────────────────────────────────────────────

    def _reused(self, now: _Asking, answers: Mapping[int, Answer]) -> dict[int, Answer]:
        """Return the answers of an earlier attempt that this one does not request again."""
        if now.kept is None or now.action in (None, Action.SKIP_EXPERIENCE_PATH):
            return {}
        only_l4 = now.action is Action.RETURN_L4_ONLY
        return {
            place: answer
            for place, answer in now.kept.answers.items()
            if (place not in answers or (only_l4 and answers[place].code is not None))
            and not (only_l4 and answer.call.provider.layer is not Layer.L4)
        }

    def _remember(self, now: _Asking, answers: Mapping[int, Answer]) -> None:
        size = sum(answer.size for answer in answers.values())
        self._kept.pop(now.request.request_id, None)
        self._kept[now.request.request_id] = _Attempt(now.request.intent, now.mode, dict(answers), size)
        while len(self._kept) > ATTEMPTS or (
            len(self._kept) > 1 and sum(one.size for one in self._kept.values()) > KEPT
        ):
            self._kept.popitem(last=False)

    # ── choosing ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _chosen(self, now: _Asking, pile: _Pile) -> tuple[Admitted, Ledger] | None:
        """Choose the fragments, in a thread if there are many candidates; None if that takes too long."""
        request = now.request
        moment = self._clock()

        def work() -> tuple[Admitted, Ledger]:
            candidates, beyond = replying.merge_candidates(pile, request.experience_top_k)
            names = {name for one in candidates for name in one.entities if not name.isalnum()}
            terms = Terms(
                mode=now.mode,
                gaze=gaze_of_request(request, known=names),
                tokens_max=request.tokens_max,
                now=moment,
                count=self._count,
                counts=self._counts,
                profile=self._profile,
                order=self._order,
                risk=request.risk,
                cache=now.cache,
                capacity=now.capacity,
                unread=tuple(text for answer in pile for text in answer.unread),
                external_share=self._external_share,
            )
            chosen = admit_candidates(candidates, terms)
            release_in_chunks(candidates)
            return chosen, build_ledger(chosen, beyond)

        last = now.began + (request.time_ms + max(0.05 * request.time_ms, 25.0)) / 1000
        left = last - asyncio.get_running_loop().time() - LEAVE
        try:
            async with asyncio.timeout(max(0.0, left)):
                chosen = await off_loop(work, pile.size)
        except TimeoutError:
            return None  # the answers stay available for the next attempt
        await pile.let_go()
        return chosen

    # ── saying what happened ────────────────────────────────────────────────────────────────────────────────────────

    def _failed(
        self, now: _Asking, code: Code, message: str, outcomes: Sequence[Outcome], collected: int
    ) -> RenderReply:
        situation = Situation(
            request=now.request,
            mode=now.mode,
            attempt=now.attempt,
            max_attempts=self._max_attempts,
            outcomes=outcomes,
            layers=self._layers,
            collected=collected,
        )
        return RenderReply(
            request_id=now.request.request_id, error=recovery.build_envelope(code, message, situation)
        )


def _build_manifest(reply: RenderReply, budget: int) -> Manifest:
    fragments = [(one.id, one.source.value, one.lod.value, one.cost_tokens) for one in reply.fragments or ()]
    return manifest_of_reply(fragments, reply.ledger, budget=budget)


def _tell_choice(now: _Asking, admitted: Admitted, collected: int, planner_ms: float) -> None:
    """Log the counts of the choice and of the items that privacy affected."""
    selection = admitted.selection
    now.tell(
        "selection.done",
        candidates=collected,
        fragments=len(selection.fragments),
        used_tokens=selection.used_tokens,
        coverage_entities=selection.coverage,
        planner_ms=planner_ms,
    )
    if admitted.redacted or admitted.blocked or admitted.withheld:
        now.tell(
            "privacy.redacted",
            redacted=admitted.redacted,
            blocked=admitted.blocked,
            withheld=admitted.withheld,
        )


@once
def _preload_rules() -> None:
    """Load the rules, the stemmer and other data that would take half of the first reply's time."""
    extract_entities("load")
    redact_text("password: load; token=load, mail me@example.com or +49 30 1234567", Privacy.REDACT)


@once
def _load_memory() -> None:
    """Import the modules that a first recall needs."""
    for name in ("confidence", "candidates", "companions", "index_cache"):
        import_module(f"acms.recall.{name}")


def _privacy_of_query(mode: Privacy) -> Privacy:
    """Return the mode in which a query is redacted for providers: a blocked query would be empty."""
    return Privacy.REDACT if mode is Privacy.BLOCK else mode
