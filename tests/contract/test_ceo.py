"""The caller's side: the request made from a text, and how errors are handled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

import pytest

from acms import Privacy, ValidationError
from acms.acs import CEO, KVCache, Outcome, pick
from acms.contract import (
    Action,
    Code,
    ErrorEnvelope,
    Fragment,
    KVPolicy,
    Lod,
    Notice,
    Option,
    RenderReply,
    RenderRequest,
    RiskLevel,
)
from acms.contract.intent_defaults import Complexity, Domain, Urgency, Verb, classify_intent

pytestmark = pytest.mark.anyio


def error_envelope(
    *actions: str, attempt: int = 1, most: int = 2, retriable: bool = True, code: Code = Code.PROVIDER_TIMEOUT
) -> ErrorEnvelope:
    return ErrorEnvelope(
        code=code,
        message="L2 timed out",
        retriable=retriable,
        attempt=attempt,
        max_attempts=most,
        options=tuple(Option(action=Action.of(action)) for action in actions),
    )


def failed_reply(*actions: str, ids: Sequence[str] = (), **more: object) -> RenderReply:
    return RenderReply(
        request_id="r", fragments=make_fragments(*ids) or None, error=error_envelope(*actions, **more)
    )


def successful_reply(*ids: str, policy: KVPolicy | None = None, warnings: Sequence[str] = ()) -> RenderReply:
    notices = tuple(Notice(code=code, message="as the engine says") for code in warnings)
    return RenderReply(request_id="r", fragments=make_fragments(*ids), kv_policy=policy, warnings=notices)


def make_fragments(*ids: str) -> tuple[Fragment, ...]:
    return tuple(
        Fragment(id=id, lod=Lod.MICRO, text=f"text of {id}", entities=("orders",), cost_tokens=5)
        for id in ids
    )


@dataclass
class Scripted:
    """An engine with scripted answers, each of which takes a stated time."""

    replies: Sequence[RenderReply]
    seconds: float = 0.0
    now: float = 100.0
    calls: list[tuple[RenderRequest, Action | None, int, KVCache | None]] = field(default_factory=list)

    async def render(
        self,
        request: RenderRequest,
        *,
        action: Action | None = None,
        attempt: int = 1,
        cache: KVCache | None = None,
    ) -> RenderReply:
        self.calls.append((request, action, attempt, cache))
        self.now += self.seconds
        return self.replies[min(len(self.calls), len(self.replies)) - 1]

    @property
    def actions(self) -> list[Action | None]:
        return [action for _, action, _, _ in self.calls]


def generate_ids() -> Iterator[str]:
    return (f"00000000-0000-4000-8000-{number:012}" for number in count(1))


def make_ceo(engine: Scripted, cache: KVCache | None = None, **more: object) -> CEO:
    made = generate_ids()
    return CEO(engine, cache=cache, ids=lambda: next(made), clock=lambda: engine.now, **more)


async def ask_ceo(
    *replies: RenderReply, said: str = "Debug the import", **more: object
) -> tuple[Outcome, Scripted]:
    engine = Scripted(replies, seconds=0.1)
    return await make_ceo(engine).ask(said, **more), engine


# ── what a text asks for ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("said", "verb", "domain", "complexity", "urgency"),
    [
        ("Debug the error in the class that handles orders", "debug", "code", "medium", "medium"),
        ("What is a tenant?", "explain", "general", "simple", "medium"),
        ("Explain the readme as a tutorial, eventually", "explain", "documentation", "medium", "low"),
        ("Find papers for a comparison of vector indexes", "search", "research", "medium", "medium"),
        ("Design the architecture of the system today", "implement", "general", "complex", "medium"),
        ("URGENT: the importer is broken, fix this ASAP", "debug", "general", "medium", "high"),
        ("implementing, refactored functions", "implement", "code", "medium", "medium"),
        ("debug_memory_leak_in_embedding_computation", "debug", "code", "medium", "medium"),
        ("implement_hyperbolic_search_with_performance_constraints", "implement", "code", "medium", "medium"),
        ("orders", "search", "general", "medium", "medium"),
    ],
)
def test_a_text_is_read_by_the_published_words(
    said: str, verb: str, domain: str, complexity: str, urgency: str
) -> None:
    intent = classify_intent(said)
    assert (intent.verb, intent.domain, intent.complexity, intent.urgency) == (
        Verb(verb), Domain(domain), Complexity(complexity), Urgency(urgency)
    )  # fmt: skip


def test_the_words_that_decided_are_told_in_order() -> None:
    intent = classify_intent("How to  build\nintegrations, quickly? Not a classroom.")
    assert intent.goal == "How to build integrations, quickly? Not a classroom."
    assert intent.keywords == ("how to", "build", "integrate", "quick")
    assert intent.complexity is Complexity.COMPLEX


@pytest.mark.parametrize(
    ("said", "confidence", "unclear"),
    [("Debug the crash", 1.0, False), ("Explain the crash", 0.5, True), ("orders", 0.0, True)],
)
def test_what_is_unclear_is_asked_back(said: str, confidence: float, unclear: bool) -> None:
    intent = classify_intent(said)
    assert intent.confidence == confidence
    assert (intent.clarification is not None) is unclear


@pytest.mark.parametrize(
    ("said", "tokens", "time", "risk"),
    [
        ("What is a tenant?", 2048, 500, "medium"),
        ("Implement the importer", 4500, 800, "medium"),
        ("Integrate the systems", 8000, 2000, "medium"),
        ("Integrate the systems immediately", 8000, 500, "medium"),
        ("What is down in production?", 2048, 500, "high"),
        ("Draft a design", 4500, 800, "low"),
    ],
)
def test_complexity_makes_budgets_and_urgency_caps_the_time(
    said: str, tokens: int, time: int, risk: str
) -> None:
    request = make_ceo(Scripted([])).request(said)
    assert (request.tokens_max, request.time_ms, request.risk) == (tokens, time, RiskLevel(risk))
    assert request.intent == said


def test_what_is_stated_counts_and_the_request_is_one_of_the_contract() -> None:
    maker = make_ceo(Scripted([]), privacy="redact")
    request = maker.request("Implement it in production", risk="low", privacy="block", request_id="req-1")
    assert (request.risk, request.privacy, request.request_id) == (RiskLevel.LOW, Privacy.BLOCK, "req-1")
    assert RenderRequest.of(request.to_wire()) == request
    assert maker.request("Implement it").privacy is Privacy.REDACT


@pytest.mark.parametrize(
    "bad", [{"said": " "}, {"said": ""}, {"said": 5}, {"said": "x", "risk": "extreme"},
            {"said": "x", "privacy": "hide"}, {"said": "x", "request_id": ""}],
    ids=str,
)  # fmt: skip
async def test_a_bad_question_is_refused_before_anyone_is_asked(bad: dict[str, object]) -> None:
    engine = Scripted([successful_reply("a")])
    with pytest.raises(ValidationError):
        await make_ceo(engine).ask(bad.pop("said"), **bad)
    assert engine.calls == []


# ── what is done about errors ───────────────────────────────────────────────────────────────────────────────────────


async def test_a_reply_without_an_error_is_returned_as_it_is() -> None:
    reply = successful_reply("a", "b")
    outcome, engine = await ask_ceo(reply)
    assert outcome.reply == reply
    assert outcome.request == engine.calls[0][0]
    assert [(one.attempt, one.action, one.code) for one in outcome.tried] == [(1, None, None)]


async def test_the_example_of_the_seed_is_tried_again_with_less() -> None:
    first = failed_reply("retry_with_reduced_scope", "explicit_l1_expansion", "return_l4_only")
    outcome, engine = await ask_ceo(first, successful_reply("a"))
    assert engine.actions == [None, Action.RETRY_WITH_REDUCED_SCOPE]
    first_sent, second_sent = engine.calls[0][0], engine.calls[1][0]
    assert second_sent.id != first_sent.id
    assert second_sent.request_id == first_sent.request_id
    assert (first_sent.time_ms, second_sent.time_ms) == (800, pytest.approx(700))
    assert second_sent == replace(first_sent, id=second_sent.id, time_ms=second_sent.time_ms)
    assert [one[2] for one in engine.calls] == [1, 2]
    assert [(one.id, one.code) for one in outcome.tried] == [
        (first_sent.id, Code.PROVIDER_TIMEOUT), (second_sent.id, None)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("risk", "privacy", "offered", "picked"),
    [
        ("medium", "allow", "retry_same expand_l1 return_minimal", "explicit_l1_expansion"),
        ("high", "allow", "retry_same expand_l1 return_minimal", "return_minimal"),
        ("medium", "block", "expand_l1 return_l4_only", "return_l4_only"),
        ("medium", "redact", "return_minimal explicit_l1_expansion return_l4_only", "explicit_l1_expansion"),
        ("high", "allow", "retry_same", "retry_same"),
        ("high", "block", "explicit_l1_expansion", None),
        ("low", "allow", "skip_experience_path", "skip_experience_path"),
        ("low", "allow", "", None),
    ],
)
def test_the_best_offer_that_may_be_taken_is_picked(
    risk: str, privacy: str, offered: str, picked: str | None
) -> None:
    request = make_ceo(Scripted([])).request("x", risk=risk, privacy=privacy)
    assert pick(error_envelope(*offered.split()), request, left=100) == picked


def test_a_retry_needs_time_and_an_error_that_is_retriable() -> None:
    request = make_ceo(Scripted([])).request("x")
    offered = ("retry_same", "retry_with_reduced_scope", "explicit_l1_expansion", "return_minimal")
    assert pick(error_envelope(*offered), request, left=99) is Action.RETURN_MINIMAL
    assert pick(error_envelope(*offered[:3], retriable=False), request, left=500) is None
    done = [Action.RETRY_WITH_REDUCED_SCOPE, Action.RETURN_MINIMAL]
    assert pick(error_envelope(*offered), request, left=500, done=done) is Action.EXPLICIT_L1_EXPANSION


async def test_what_needs_no_retry_is_done_even_when_the_time_is_over() -> None:
    engine = Scripted(
        [failed_reply("retry_with_reduced_scope", "return_l4_only"), successful_reply("exp:a")], seconds=2.0
    )
    outcome = await make_ceo(engine).ask("Debug the import")
    assert engine.actions == [None, Action.RETURN_L4_ONLY]
    assert engine.calls[1][0].time_ms == 100
    assert outcome.reply.error is None


async def test_attempts_end_where_the_envelope_says() -> None:
    outcome, engine = await ask_ceo(failed_reply("retry_with_reduced_scope", "return_minimal"))
    assert engine.actions == [None, Action.RETRY_WITH_REDUCED_SCOPE]
    assert outcome.reply.error is not None


async def test_an_engine_that_promises_attempts_without_end_is_asked_each_thing_once() -> None:
    every = failed_reply(*Action, most=1_000_000)
    outcome, engine = await ask_ceo(every, every)
    assert len(engine.calls) == len(outcome.tried) == 7
    assert len(set(engine.actions)) == 7


async def test_after_failures_the_reply_with_the_most_context_is_returned() -> None:
    partial = failed_reply("return_minimal", ids=["a", "b"])
    outcome, _ = await ask_ceo(partial, failed_reply())
    assert outcome.reply == partial
    outcome, _ = await ask_ceo(
        failed_reply("return_minimal"), last := failed_reply(code=Code.ALL_PROVIDERS_FAILED)
    )
    assert outcome.reply == last


async def test_users_are_told_that_general_knowledge_was_used() -> None:
    first = failed_reply("explicit_l1_expansion")
    outcome, _ = await ask_ceo(first, successful_reply("global:a"))
    assert [one.code for one in outcome.reply.warnings] == [Code.L1_EXPANSION]
    outcome, _ = await ask_ceo(first, told := successful_reply("global:a", warnings=[Code.L1_EXPANSION]))
    assert outcome.reply == told
    outcome, _ = await ask_ceo(first, successful_reply())
    assert outcome.reply.warnings == ()


# ── the cache ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_cache_is_handed_over_and_follows_the_reply_that_is_returned() -> None:
    cache = KVCache()
    engine = Scripted(
        [
            failed_reply("retry_same", ids=["lost"]),
            successful_reply("a", "b", policy=KVPolicy(pin=("a",), evict=("b",))),
        ]
    )
    outcome = await make_ceo(engine, cache).ask("Where are the orders?")
    assert [one[3] for one in engine.calls] == [cache, cache]
    assert outcome.applied is not None
    assert (outcome.applied.pinned, outcome.applied.evicted) == (("a",), ("b",))
    assert [(one.key, one.pinned) for one in cache.units()] == [("a", True)]
    assert cache.held()[0].benefit == pytest.approx(0.95)  # it covers all that was asked for


async def test_frequent_conflicts_of_policies_are_told_in_the_next_reply() -> None:
    cache = KVCache()
    asker = make_ceo(Scripted([successful_reply("a", policy=KVPolicy(pin=("a",), compress=("a",)))]), cache)
    for _ in range(3):
        outcome = await asker.ask("Where are the orders?")
        assert outcome.reply.warnings == ()
    outcome = await asker.ask("Where are the orders?")
    assert [one.code for one in outcome.reply.warnings] == [Code.PARTIAL_DATA]
    late = make_ceo(
        Scripted([successful_reply("a", warnings=[Code.PARTIAL_DATA])]), cache
    )  # for a reason of its own
    outcome = await late.ask("Where are the orders?")
    assert [one.code for one in outcome.reply.warnings] == [Code.PARTIAL_DATA] * 2


async def test_the_same_text_and_replies_make_the_same_outcome() -> None:
    replies = [failed_reply("retry_with_reduced_scope"), successful_reply("a", policy=KVPolicy(pin=("a",)))]
    assert (await ask_ceo(*replies))[0] == (await ask_ceo(*replies))[0]


async def test_an_engine_that_raises_leaves_the_cache_as_it_was() -> None:
    class Broken(Scripted):
        async def render(self, request: RenderRequest, **_: object) -> RenderReply:
            raise ConnectionError("gone")

    cache = KVCache()
    cache.put("a", "text")
    before = cache.to_wire()
    with pytest.raises(ConnectionError):
        await make_ceo(Broken([]), cache).ask("Where are the orders?")
    assert cache.to_wire() == before
