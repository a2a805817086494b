"""Rendering: the requests to each source, and the reply (checks 1 to 6, 11 to 14, 21, 23, 26, 30)."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any, cast

import pytest

from acms import ACMS, ConfigurationError, ContextItems, ValidationError, open_storage
from acms.acs import ACS, KVCache
from acms.contract import (
    Candidate,
    KVPolicy,
    Layer,
    Lod,
    ProviderResponse,
    Purpose,
    RenderRequest,
)
from acms.contract.kv_policy import CachedKey
from acms.providers import OfflineReflector
from acms.providers.tokens import default_counter
from tests.support.sources import (
    NOW,
    Source,
    checked_reply,
    fragment_ids,
    make_engine,
    make_item,
    request,
    strict_json,
    warning_codes,
)
from tests.support.virtual_time import REAL_TIME

count = default_counter().count


# ── the request ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("field", ["version", "id", "intent", "budgets", "request_id"])
async def test_check_02_a_request_without_a_required_field_asks_nobody(field: str) -> None:
    project, body = Source("L2"), request()
    del body[field]
    with pytest.raises(ValidationError) as raised:
        await make_engine(project).render(body)
    assert raised.value.field == field
    assert not project.calls


@pytest.mark.parametrize("field", ["tokens_max", "time_ms"])
async def test_check_02_a_request_without_a_budget_asks_nobody(field: str) -> None:
    project, body = Source("L2"), request()
    del body["budgets"][field]
    with pytest.raises(ValidationError) as raised:
        await make_engine(project).render(body)
    assert raised.value.field == f"budgets.{field}"
    assert not project.calls


@pytest.mark.parametrize(
    "wrong",
    [
        {"version": "v1"},
        {"privacy": "hide"},
        {"risk": "extreme"},
        {"id": "not-a-uuid"},
        {"surprise": 1},
        {"intent": {"goal": "x"}},
        {"intent": " \n"},
        {"top_k": 1.5},
    ],
    ids=str,
)
async def test_check_03_what_the_contract_does_not_know_is_refused(wrong: dict[str, Any]) -> None:
    project = Source("L2")
    with pytest.raises(ValidationError):
        await make_engine(project).render(request(**wrong))
    assert not project.calls


def test_a_request_reads_back_as_it_was_written() -> None:
    for body in (request(), request(top_k=3, risk="high", privacy="redact")):
        asked = RenderRequest.of(body)
        assert RenderRequest.of(asked.to_wire()) == asked
    assert asked.to_wire()["budgets"] == {"tokens_max": 4500, "time_ms": 10_000, "experience_top_k": 3}


@pytest.mark.parametrize("wrong", ["aaa", 7, [{}] * 10_001], ids=["a string", "a number", "too many"])
def test_an_answer_without_a_list_of_candidates_is_none(wrong: Any) -> None:
    with pytest.raises(ValidationError, match="a list of at most 10000 candidates") as raised:
        ProviderResponse.of({"request_id": "req-1", "candidates": wrong})
    assert raised.value.field == "candidates"


async def test_check_04_privacy_is_allow_where_nothing_is_said() -> None:
    sources = [Source("L2"), Source("L4")]
    await make_engine(*sources).render(request())
    assert [call.to_wire()["privacy_mode"] for one in sources for call in one.calls] == ["allow"] * 2


async def test_the_strictest_of_request_and_tenant_is_forwarded() -> None:
    project = Source("L2")
    await make_engine(project, privacy="redact").render(request(privacy="allow"))
    await make_engine(project, privacy="redact").render(request(privacy="block"))
    assert [call.privacy.value for call in project.calls] == ["redact", "block"]


async def test_check_06_each_source_is_asked_with_all_seven_fields() -> None:
    project, past, world = (Source(layer, deadline_ms=None) for layer in ("L2", "L4", "L1"))
    await make_engine(project, past, world, top_k=30).render(request(ms=1_000, top_k=5))
    wires = [call.to_wire() for one in (project, past, world) for call in one.calls]
    assert [(one["top_k"], one["deadline_ms"], one["expansion"]) for one in wires] == [
        (30, 300, False),
        (5, 50, False),
    ]
    assert wires[0] == {
        "request_id": "req-1",
        "query": "implement orders migration",
        "entities": ["orders", "migration"],
        "top_k": 30,
        "deadline_ms": 300,
        "expansion": False,
        "privacy_mode": "allow",
    }


async def test_a_secret_in_the_question_stays_here() -> None:
    project = Source("L2")
    await make_engine(project).render(request("debug postgresql://admin:hunter22@db.internal/orders please"))
    asked = json.dumps(project.calls[0].to_wire())
    assert "hunter22" not in asked
    assert "[REDACTED: connection_string]" in asked


async def test_an_intent_may_be_an_object_where_that_was_agreed() -> None:
    project = Source("L2")
    body = request({"goal": "move the orders", "entities": ["Orders", "billing"]}, extra=1)
    reply = await make_engine(project).render(body, lenient=True)
    assert project.calls[0].query == "move the orders"
    assert project.calls[0].entities == ("orders", "billing")
    assert reply.error is None


# ── the reply ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _random_items(rng: random.Random, prefix: str, many: int, source: str) -> list[dict[str, Any]]:
    names = ["orders", "migration", "billing", "cache", "queue"]
    return [
        make_item(
            f"{prefix}:{number}",
            " ".join(rng.choices(names, k=rng.randint(3, 60))),
            *rng.sample(names, rng.randint(0, 3)),
            cost=rng.randint(0, 50),
            source=source,
            lod=rng.choice(["macro", "micro", "atomic"]),
            citations=["ref:1"] * rng.randint(0, 2),
        )
        for number in range(many)
    ]


async def _shuffled_replies(profile: Any, turns: int) -> set[bytes]:
    """Return the replies, byte for byte, over shuffled candidates that arrive in another order each time."""
    rng = random.Random(7)
    project, past = _random_items(rng, "proj", 40, "L2"), _random_items(rng, "exp", 15, "L4")
    held = [
        CachedKey("proj:1", turns=9, cost=300),
        CachedKey("exp:2", cost=400, benefit=0.4),
        CachedKey("old", turns=3),
    ]
    seen: set[bytes] = set()
    for _ in range(turns):
        rng.shuffle(project)
        rng.shuffle(past)
        rng.shuffle(held)
        parts = [project[::2], project[1::2], past]
        gates = [asyncio.Event() for _ in parts]
        order = rng.sample(range(3), 3)
        said = [Said([*part], gates, order, place) for place, part in enumerate(parts)]
        gates[order[0]].set()
        two = [Source("L2", said[n].say, name=f"p{n}") for n in range(2)]
        acs = make_engine(*two, Source("L4", said[2].say, name="e"), profile=profile)
        reply = await acs.render(request(tokens=700, ms=20_000), cache=held)
        assert reply.metrics is not None
        assert reply.metrics.used_tokens <= 700
        why = sorted(repr(one) for one in reply.ledger)
        seen.add(strict_json({**checked_reply(reply), "ledger": why}))
    return seen


@pytest.mark.parametrize("profile", ["quality", "published"])
async def test_check_11_the_order_of_arrival_changes_no_byte(profile: str) -> None:
    """The first 40 runs; all 1,000: `pytest -m slow tests/contract/test_render.py`."""
    assert len(await _shuffled_replies(profile, 40)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("profile", ["quality", "published"])
async def test_check_11_the_order_of_arrival_changes_no_byte_in_a_thousand_runs(profile: str) -> None:
    assert len(await _shuffled_replies(profile, 1_000)) == 1


class Said:
    """Waits for its gate, says something, and opens the gate of the next source."""

    def __init__(
        self, found: list[dict[str, Any]], gates: list[asyncio.Event], order: list[int], place: int
    ) -> None:
        self.found = found
        self.gate = gates[place]
        turn = order.index(place) + 1
        self.after = gates[order[turn]] if turn < len(order) else asyncio.Event()

    async def say(self, asked: Any) -> Any:
        await self.gate.wait()
        self.after.set()
        return {"request_id": asked.request_id, "candidates": self.found}


async def test_check_12_no_reply_has_more_tokens_than_it_may() -> None:
    rng = random.Random(3)
    for _ in range(60):
        found = _random_items(rng, "proj", rng.randint(0, 40), "L2")
        tokens = rng.choice([0, 1, rng.randint(0, 500), rng.randint(0, 8_000)])
        reply = await make_engine(Source("L2", found)).render(request(tokens=tokens))
        wire = checked_reply(reply)
        spent = sum(one["cost_tokens"] for one in wire["fragments"])
        assert spent == wire["metrics"]["used_tokens"] <= tokens


async def test_check_13_a_lie_about_the_cost_is_found_out() -> None:
    text = " ".join(f"word{number}" for number in range(250))
    cheap = Source("L2", [make_item("proj:1", text, "orders", cost=10)])
    reply = await make_engine(cheap).render(request(tokens=100))
    assert fragment_ids(reply) == []
    assert "TRUNCATED_BY_BUDGET" in warning_codes(reply)
    reply = await make_engine(cheap).render(request(tokens=4_000))
    assert [one.cost_tokens for one in reply.fragments or ()] == [count(text)]


async def test_check_14_the_metrics_can_be_computed_again() -> None:
    found = [
        make_item("a", "x", "orders", cost=3),
        make_item("b", "y", "migration", "orders"),
        make_item("c", "z", "other"),
    ]
    wire = checked_reply(await make_engine(Source("L2", found)).render(request()))
    named = {name for one in wire["fragments"] for name in one["entities"]}
    assert wire["metrics"]["coverage_entities"] == len(named & {"orders", "migration"}) / 2
    assert wire["metrics"]["used_tokens"] == sum(one["cost_tokens"] for one in wire["fragments"])


async def test_nothing_asked_for_by_name_has_no_coverage() -> None:
    reply = await make_engine(Source("L2", [make_item("a", "x", "orders")])).render(request("do it"))
    wire = checked_reply(reply)
    assert "coverage_entities" not in wire["metrics"]
    assert [one["id"] for one in wire["fragments"]] == ["a"]


async def test_nothing_known_is_an_empty_reply_and_no_error() -> None:
    reply = await make_engine(Source("L2"), Source("L4")).render(request())
    assert (reply.error, fragment_ids(reply)) == (None, [])
    assert warning_codes(reply) == ["PROJECT_EMPTY", "LOW_COVERAGE"]
    checked_reply(reply)


async def test_without_sources_there_is_an_empty_reply() -> None:
    assert warning_codes(await make_engine().render(request())) == ["LOW_COVERAGE"]


async def test_strict_v0_leaves_out_what_is_ours() -> None:
    past = Source("L4", [make_item("exp:1", "We moved the orders before.", "orders", source="L4")])
    reply = await make_engine(past).render(request())
    wire = reply.to_wire()
    assert "slices" not in wire
    assert "source" not in wire["fragments"][0]
    extended = checked_reply(reply)
    assert extended["fragments"][0]["source"] == "L4"
    assert [one["unit_id"] for one in extended["slices"]["experience"]] == ["exp:1"]


async def test_of_experience_come_no_more_units_than_were_asked_for() -> None:
    found = [
        make_item(f"exp:{n}", f"Past {n}.", "orders", source="L4", relevance=n / 10, cost=2) for n in range(8)
    ]
    past = Source("L4", found)
    assert sorted(fragment_ids(await make_engine(past).render(request(top_k=2)))) == ["exp:6", "exp:7"]
    assert past.calls[-1].top_k == 2
    assert fragment_ids(await make_engine(past).render(request(top_k=0))) == []
    assert len(past.calls) == 1


async def test_fragments_may_come_by_level_of_detail() -> None:
    found = [
        make_item("a", "x", "orders", "migration", lod="atomic"),
        make_item("b", "y", "orders", lod="micro"),
        make_item("c", "z", "migration", lod="macro"),
    ]
    reply = await make_engine(Source("L2", found), order="lod").render(request())
    assert [one.lod for one in reply.fragments or ()] == [Lod.MACRO, Lod.MICRO, Lod.ATOMIC]


async def test_objects_in_place_of_json_are_checked_alike() -> None:
    async def say(asked: Any) -> Any:
        good = Candidate(id="good", source=Layer.L2, text="The orders.", entities=("orders",), timestamp=NOW)
        bad = Candidate(id="bad", source=Layer.L2, cost_tokens=-5)
        worse: Any = Candidate(id="worse", source=Layer.L2, text="The orders.", variants=cast("Any", 7))
        return ProviderResponse(request_id=asked.request_id, candidates=(good, bad, worse))

    reply = await make_engine(Source("L2", say)).render(request())
    assert (fragment_ids(reply), warning_codes(reply)[0]) == (["good"], "PARTIAL_DATA")
    assert reply.warnings[0].message.startswith("2 candidates ")


async def test_of_renditions_at_one_level_the_cheapest_counts() -> None:
    variants = [
        {"lod": "macro", "text": text} for text in ("The orders move soon enough.", "Orders.", "Orders move.")
    ]
    found = [make_item("a", "orders " * 300, "orders", lod="atomic", variants=variants)]
    (shown,) = (await make_engine(Source("L2", found)).render(request(tokens=20))).fragments or ()
    assert (shown.text, shown.lod) == ("Orders.", Lod.MACRO)


# ── expansion, and what earlier attempts have brought ───────────────────────────────────────────────────────────────


async def test_check_21_the_world_is_asked_only_when_that_was_chosen() -> None:
    empty = {
        "request_id": "req-1",
        "candidates": [],
        "latency_ms": 3,
        "warnings": [{"code": "PROJECT_EMPTY", "message": "nothing"}],
    }
    project = Source("L2", empty)
    world = Source("L1", [make_item("global:1", "Orders everywhere.", "orders", source="L1")])
    acs = make_engine(project, world)
    reply = await acs.render(request())
    assert (warning_codes(reply)[0], fragment_ids(reply), len(world.calls)) == ("PROJECT_EMPTY", [], 0)

    reply = await acs.render(request(), action="explicit_l1_expansion", attempt=2)
    assert (len(project.calls), len(world.calls)) == (1, 1)
    assert world.calls[0].expansion is True
    assert fragment_ids(reply) == ["global:1"]
    assert "L1_EXPANSION" in warning_codes(reply)
    checked_reply(reply)


@pytest.mark.parametrize(("risk", "asked"), [("low", 1), ("medium", 0), ("high", 0)])
async def test_only_where_the_risk_is_low_an_empty_project_has_the_world_asked(risk: str, asked: int) -> None:
    world = Source("L1", [make_item("global:1", "Orders everywhere.", "orders", source="L1")])
    reply = await make_engine(Source("L2"), world).render(request(risk=risk))
    assert len(world.calls) == asked
    assert ("L1_EXPANSION" in warning_codes(reply)) is bool(asked)
    assert [call.expansion for call in world.calls] == [True] * asked


async def test_a_project_that_knows_something_has_nobody_asked_beside() -> None:
    world = Source("L1", [make_item("global:1", "Orders.", "orders", source="L1")])
    reply = await make_engine(Source("L2", [make_item("a", "x", "orders")]), world).render(
        request(risk="low")
    )
    assert (fragment_ids(reply), world.calls) == (["a"], [])


async def test_the_world_has_no_back_door() -> None:
    project = Source(
        "L2", [make_item("global:1", "x", "orders", source="L1"), make_item("proj:1", "y", "orders")]
    )
    reply = await make_engine(project).render(request())
    assert (fragment_ids(reply), warning_codes(reply)[0]) == (["proj:1"], "PARTIAL_DATA")


async def test_check_23_return_minimal_asks_nobody_and_returns_what_there_is() -> None:
    project = Source("L2", RuntimeError("no"))
    past = Source("L4", [make_item("exp:1", "We did it before.", "orders", source="L4")])
    acs = make_engine(project, past)
    assert (await acs.render(request(risk="high"))).error is not None
    reply = await acs.render(request(risk="high"), action="return_minimal", attempt=2)
    assert (len(project.calls), len(past.calls)) == (1, 1)
    assert (reply.error, fragment_ids(reply)) == (None, ["exp:1"])
    assert warning_codes(reply)[0] == "PARTIAL_DATA"
    other = await acs.render(request("another question"), action="return_minimal", attempt=2)
    assert fragment_ids(other) == []
    assert (len(project.calls), len(past.calls)) == (1, 1)


async def test_only_the_newest_attempts_are_remembered() -> None:
    past = Source("L4", [make_item("exp:1", "We did it before.", "orders", source="L4")])
    acs = make_engine(Source("L2", RuntimeError("no")), past)
    for number in range(70):
        await acs.render(request(request_id=f"req-{number}"))
    found = [
        number
        for number in range(70)
        if fragment_ids(
            await acs.render(request(request_id=f"req-{number}"), action="return_minimal", attempt=2)
        )
    ]
    assert found == list(range(6, 70))
    assert len(past.calls) == 70


async def test_check_23_return_l4_only_asks_experience_alone() -> None:
    project, world = Source("L2", [make_item("a", "x", "orders")]), Source("L1")
    past = Source("L4", [make_item("exp:1", "We did it before.", "orders", source="L4")])
    reply = await make_engine(project, past, world).render(request(), action="return_l4_only", attempt=2)
    assert (len(project.calls), len(past.calls), len(world.calls)) == (0, 1, 0)
    assert fragment_ids(reply) == ["exp:1"]


async def test_experience_can_be_skipped() -> None:
    project, past = Source("L2", [make_item("a", "x", "orders")]), Source("L4")
    reply = await make_engine(project, past).render(request(), action="skip_experience_path")
    assert (fragment_ids(reply), past.calls) == (["a"], [])


async def test_check_26_the_other_name_of_the_expansion_does_the_same() -> None:
    replies: list[bytes] = []
    for action in ("expand_l1", "explicit_l1_expansion"):
        world = Source("L1", [make_item("global:1", "Orders.", "orders", source="L1")])
        reply = await make_engine(Source("L2", RuntimeError()), world).render(
            request(), action=action, attempt=2
        )
        assert len(world.calls) == 1
        replies.append(strict_json(checked_reply(reply)))
    assert replies[0] == replies[1]


async def test_a_retry_asks_again_only_who_failed() -> None:
    project = Source("L2", RuntimeError("no"), [make_item("a", "x", "orders")])
    past = Source("L4", [make_item("exp:1", "We did it before.", "migration", source="L4")])
    acs = make_engine(project, past)
    await acs.render(request(risk="high"))
    reply = await acs.render(request(risk="high"), action="retry_same", attempt=2)
    assert sorted(fragment_ids(reply)) == ["a", "exp:1"]
    assert (len(project.calls), len(past.calls)) == (2, 1)
    assert [call.request_id for call in project.calls] == ["req-1", "req-1#2"]


@pytest.mark.parametrize("wrong", [{"attempt": 3}, {"attempt": 0}, {"action": "give_up"}], ids=str)
async def test_an_action_or_attempt_that_there_is_not_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        await make_engine(Source("L2")).render(request(), **wrong)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"profile": "fast"}, 'profile must be "quality" or "published"'),
        ({"order": "age"}, 'order must be "selection" or "lod"'),
        ({"sources": "memory://"}, "sources must be a list of sessions and sources"),
        ({"sources": iter([])}, "sources must be a list of sessions and sources"),
    ],
)
def test_an_engine_says_what_it_cannot_be_made_with(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        ACS(**{"sources": [], **given})


@pytest.mark.parametrize(
    "wrong",
    [object(), Source, Source("L9"), Source("cached"), Source("L2", deadline_ms=0)],
    ids=["no source", "a class", "no layer", "cached", "no time"],
)
def test_what_is_no_source_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError):
        ACS([wrong])


# ── the caller's cache, and the log ─────────────────────────────────────────────────────────────────────────────────


async def test_check_30_a_reply_advises_only_about_its_ids_and_the_keys_it_was_told() -> None:
    long = "The orders are moved to the new cluster on the first of May, region by region."
    found = [
        make_item("sum", "The orders move.", "orders", lod="macro"),
        make_item("note", long, "orders", "migration", lod="micro"),
        make_item(long[:30], "It says its own text.", "orders", lod="macro"),
        make_item("big", " ".join(["orders"] * 400), "orders", lod="atomic"),
    ]
    cache = [f"old:{number}" for number in range(80)]
    reply = await make_engine(Source("L2", found)).render(request(), cache=cache)
    wire = checked_reply(reply)
    policy = wire["kv_policy"]
    keys = [key for name in ("pin", "compress", "evict") for key in policy[name]]
    assert len(set(keys)) == len(keys)
    assert set(keys) <= {*fragment_ids(reply), *cache}
    assert {"sum", "note"} <= set(policy["pin"])
    assert len(policy["evict"]) >= 16
    texts = [one["text"] for one in wire["fragments"]]
    written = json.dumps(policy)
    assert not [
        text[at : at + 20] for text in texts for at in range(len(text) - 19) if text[at : at + 20] in written
    ]


async def test_nothing_is_advised_where_there_is_nothing() -> None:
    for cache in (None, [], KVCache()):
        reply = await make_engine(Source("L2")).render(request(), cache=cache)
        assert reply.kv_policy == KVPolicy()
    with pytest.raises(ValidationError):
        await make_engine(Source("L2")).render(request(), cache="keys")


# ── our own memory ──────────────────────────────────────────────────────────────────────────────────────────────────


async def _ingest_decisions(session: ACMS) -> None:
    await session.ingest(
        "user", "Decision: the orders service uses PostgreSQL 18, because we need transactions."
    )
    await session.ingest("assistant", "Noted: the orders service uses PostgreSQL 18.")
    await session.close_episode()
    await session.wait_pending()
    await session.ingest("user", "How do we move the orders?", created_at=NOW)


async def test_a_session_gives_facts_summaries_and_messages_at_their_levels() -> None:
    async with ACMS("u", open_storage("memory://"), reflector=OfflineReflector()) as session:
        await _ingest_decisions(session)
        reply = await ACS([session]).render(request("which database does the orders service use"))
        levels = {(one.source, one.lod) for one in reply.fragments or ()}
        assert {(Layer.L2, Lod.MACRO), (Layer.L2, Lod.ATOMIC), (Layer.L4, Lod.MICRO)} <= levels
        text = "\n".join(one.text or "" for one in reply.fragments or ())
        assert "PostgreSQL 18" in text
        wire = checked_reply(reply)
        assert wire["metrics"]["used_tokens"] == sum(count(one["text"]) for one in wire["fragments"])


async def test_a_whole_history_that_fits_is_offered_whole() -> None:
    async with ACMS("u", open_storage("memory://")) as session:
        for number in range(12):
            await session.ingest("user", f"Note {number}: the weather was fine at place {number}.")
        reply = await ACS([session]).render(request("orders database", tokens=4_000))
        assert len(fragment_ids(reply)) == 12


async def test_a_long_message_is_shown_as_short_as_it_must_be() -> None:
    async with ACMS("u", open_storage("memory://")) as session:
        said = " ".join(f"The orders table number {number} moves on day {number}." for number in range(60))
        await session.ingest("user", said)
        await session.ingest("user", "And now?")
        acs = ACS([session])
        seen = {
            one.lod: one.cost_tokens
            for tokens in (3_000, 400, 40)
            for one in (await acs.render(request("orders table", tokens=tokens))).fragments or ()
            if "orders" in (one.text or "")
        }
        assert list(seen) == [Lod.ATOMIC, Lod.MICRO, Lod.MACRO]
        assert seen[Lod.ATOMIC] > seen[Lod.MICRO] > seen[Lod.MACRO]


@pytest.mark.parametrize("tokens", [400, 1_000, 3_000])
async def test_of_a_log_that_is_larger_the_answers_and_the_newest_fill_the_room(tokens: int) -> None:
    query = "Which port does the orders database listen on?"
    async with ACMS("u", open_storage("memory://")) as session:
        answer = await session.ingest("user", "The orders database listens on port 5433.")
        for number in range(400):
            newest = await session.ingest("user", f"Note {number}: the walk to port {number} was fine.")
        await session.ingest("user", query)
        said = await ACS([session]).render(request(query, tokens=tokens))
        metrics = checked_reply(said)["metrics"]
        assert 0.92 * tokens <= metrics["used_tokens"] <= tokens
        assert fragment_ids(said)[0] == answer
        assert newest in fragment_ids(said)
        assert query not in "".join(one.text or "" for one in said.fragments or ())


async def test_the_room_is_for_what_answers_while_a_question_is_worked_on() -> None:
    query = "Which port does the orders database listen on?"
    async with ACMS("u", open_storage("memory://")) as session:
        answer = await session.ingest("user", "The orders database listens on port 5433.")
        for number in range(200):
            await session.ingest("user", f"Note {number}: the walk to place {number} was fine.")
        await session.ingest("user", query)
        calls = [{"id": "c", "name": "grep", "arguments": '{"pattern": "orders database port listen"}'}]
        await session.ingest("assistant", "", tool_calls=calls)
        lines = "\n".join(f"orders.conf {n}: database port listen which on does" for n in range(200))
        await session.ingest("tool", lines, tool_call_id="c")
        said = await ACS([session]).render(request(query, tokens=300))
        assert fragment_ids(said)[0] == answer
        assert query not in "".join(one.text or "" for one in said.fragments or ())


async def test_a_long_result_of_a_tool_is_shown_as_what_in_it_answers() -> None:
    async with ACMS("u", open_storage("memory://")) as session:
        calls = [{"id": "c", "name": "read", "arguments": "{}"}]
        await session.ingest("assistant", "", tool_calls=calls)
        lines = [f"service-{n} replicas={n} state=ready" for n in range(300)]
        lines[170] = "ledger-writer listens on port 7411"
        await session.ingest("tool", "\n".join(lines), tool_call_id="c")
        for number in range(60):
            await session.ingest("user", f"Note {number}: the walk to place {number} was fine.")
        said = await ACS([session]).render(request("port of the ledger-writer", tokens=500))
        (shown,) = [one for one in said.fragments or () if "service-" in (one.text or "")]
        assert "ledger-writer listens on port 7411" in (shown.text or "")
        assert shown.lod is Lod.MICRO
        assert shown.cost_tokens < 250


async def test_a_session_says_alone_what_its_candidates_are_for() -> None:
    offers = [
        Candidate(id=name, source=Layer.L2, text=f"{name} text", relevance=claimed, purpose=purpose)
        for name, claimed, purpose in [("near", 0.9, None), ("noise", 0.01, Purpose.ANSWER)]
    ]
    reply = await make_engine(Source("L2", offers)).render(request("orders database"))
    assert fragment_ids(reply) == ["near"]


class Meanwhile(ACMS):
    """A session in which a message is erased as soon as it was recalled."""

    erased = ""

    async def recall(self, *args: Any, **more: Any) -> ContextItems:
        found = await super().recall(*args, **more)
        if self.erased in [one.id for one in found]:
            await self.erase(self.erased)
        return found


async def test_what_was_erased_since_it_was_recalled_is_not_in_the_reply() -> None:
    async with Meanwhile("u", open_storage("memory://")) as session:
        erased = await session.ingest("user", "The orders database listens on port 5433.")
        for number in range(60):
            await session.ingest("user", f"Note {number}: the walk to port {number} was fine.")
        acs, body = ACS([session]), request("port of the orders database", tokens=200)
        assert erased in fragment_ids(await acs.render(body))
        session.erased = erased
        reply = await acs.render(body)
    assert (reply.error, erased in fragment_ids(reply), len(fragment_ids(reply)) > 5) == (None, False, True)


async def test_an_unknown_session_is_an_empty_project() -> None:
    async with ACMS("nobody", open_storage("memory://")) as session:
        assert warning_codes(await ACS([session]).render(request()))[0] == "PROJECT_EMPTY"


async def test_a_past_version_renders_as_it_was() -> None:
    async with ACMS("u", open_storage("memory://")) as session:
        await session.ingest("user", "The orders run on MySQL.")
        await session.ingest("user", "Now the orders run on PostgreSQL.")
        reply = await ACS([session.at(1)]).render(request("orders database"))
        assert ["MySQL" in (one.text or "") for one in reply.fragments or ()] == [True]


@REAL_TIME
async def test_sources_of_all_kinds_are_chosen_from_together(tmp_path: Path) -> None:
    async with ACMS("u", open_storage(f"sqlite:///{tmp_path}/a.db")) as session:
        await session.ingest("user", "The orders run on PostgreSQL.")
        docs = Source("L2", [make_item("proj:docs#1", "Migration of the orders, step by step.", "migration")])
        reply = await ACS([session, docs]).render(request())
        assert "proj:docs#1" in fragment_ids(reply)
        assert len(fragment_ids(reply)) == 2
