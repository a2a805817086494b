"""Errors and privacy: what fails is contained and told, with options that could help (checks 22, 24, 25, 32 to 35)."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any
from unittest.mock import Mock

import pytest

from acms import ACMS, ProviderError, open_storage
from acms.acs import ACS
from acms.contract import Action, admission
from acms.providers import OfflineReflector
from tests.support.sources import (
    Source,
    checked_reply,
    fragment_ids,
    make_engine,
    make_item,
    offered_actions,
    request,
    warning_codes,
)

CATALOGUE = {action.value for action in Action}
PAST = [make_item("exp:1", "We moved the orders before.", "orders", source="L4")]
WORLD = [make_item("global:1", "Orders everywhere.", "orders", source="L1")]


async def error_of_reply(*sources: Any, **more: Any) -> Any:
    """Return the error of a reply, after checking what holds for all of them."""
    given = {name: more.pop(name) for name in ("action", "attempt") if name in more}
    reply = await make_engine(*sources).render(request(**more), **given)
    checked_reply(reply)
    assert reply.error is not None
    assert set(offered_actions(reply)) <= CATALOGUE
    assert len(set(offered_actions(reply))) == len(offered_actions(reply))
    return reply


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RuntimeError("the secret is out"), "PROVIDER_ERROR"),
        (ConnectionRefusedError(), "PROVIDER_UNAVAILABLE"),
        (TimeoutError(), "PROVIDER_TIMEOUT"),
        (asyncio.CancelledError(), "PROVIDER_ERROR"),
        (ProviderError("no", provider="x"), "PROVIDER_ERROR"),
        (RecursionError(), "PROVIDER_ERROR"),
    ],
    ids=lambda one: one if isinstance(one, str) else type(one).__name__,
)
async def test_a_source_that_raises_is_told_by_its_code(error: BaseException, code: str) -> None:
    reply = await error_of_reply(Source("L2", error, name="docs"))
    assert (reply.error.code, reply.error.retriable, reply.error.attempt) == (code, True, 1)
    assert reply.error.max_attempts == 2
    assert "docs" in reply.error.message
    assert "secret" not in json.dumps(reply.to_wire())
    kept = await make_engine(Source("L2", error), Source("L4", PAST)).render(request())
    assert (fragment_ids(kept), warning_codes(kept)[0]) == (["exp:1"], "PARTIAL_DATA")


MALFORMED: dict[str, Any] = {
    "no candidates": {"request_id": "req-1", "latency_ms": 1},
    "another request's id": {"request_id": "req-2", "candidates": [], "latency_ms": 1},
    "no id": {"candidates": []},
    "negative cost": [make_item("a", "x", cost=-1)],
    "no entities": [{"id": "a", "cost_tokens": 1, "source": "L2"}],
    "a source there is not": [make_item("a", "x", source="L7")],
    "candidates that are a string": {"request_id": "req-1", "candidates": "aaa"},
    "nothing": None,
    "a list": [[1, 2]],
    "a number": 7,
    "a NUL": [make_item("a", "x\0y")],
    "too many": [make_item(str(n), "x") for n in range(10_001)],
    "too long": [make_item(str(n), "x" * 999_999) for n in range(5)],
    "a naive time": [make_item("a", "x", timestamp="2026-01-01T00:00:00")],
    "relevance beyond 1": [make_item("a", "x", relevance=1.5)],
    "half a token": [make_item("a", "x", cost=1.5)],
    "warnings that are a string": {"request_id": "req-1", "candidates": [], "warnings": "none"},
    "a part of it that is a word": {"request_id": "req-1", "candidates": [], "partial": "no"},
    "too much altogether": [make_item(str(n), "x" * 100_000) for n in range(41)],
}


@pytest.mark.parametrize("kind", MALFORMED)
async def test_check_25_a_malformed_answer_costs_nobody_else_anything(kind: str) -> None:
    reply = await error_of_reply(Source("L2", MALFORMED[kind]))
    assert reply.error.code == "PROVIDER_ERROR"
    assert offered_actions(reply) == ["retry_same", "return_minimal"]
    kept = await make_engine(Source("L2", MALFORMED[kind]), Source("L4", PAST)).render(request())
    assert (fragment_ids(kept), warning_codes(kept)[0]) == (["exp:1"], "PARTIAL_DATA")


async def test_check_25_of_a_list_only_what_is_malformed_is_lost() -> None:
    found = [
        make_item("a", "x", "orders"),
        make_item("b", "y", cost=-1),
        {"id": 3},
        make_item("c", "z", "migration"),
    ]
    reply = await make_engine(Source("L2", found)).render(request())
    assert sorted(fragment_ids(reply)) == ["a", "c"]
    assert [one.message for one in reply.warnings] == [
        "2 candidates of L2 provider 'L2-source' were not usable"
    ]


async def test_a_source_may_answer_at_once() -> None:
    class Plain:
        name, layer = "plain", "L2"

        def search(self, asked: Any) -> Any:
            return {"request_id": asked.request_id, "candidates": [make_item("a", "x", "orders")]}

    assert fragment_ids(await make_engine(Plain()).render(request())) == ["a"]


async def test_a_failure_for_a_passing_reason_is_tried_again_once() -> None:
    project = Source("L2", ConnectionResetError(), [make_item("a", "x", "orders")])
    reply = await make_engine(project, Source("L4", PAST), top_k=50).render(request())
    assert sorted(fragment_ids(reply)) == ["a", "exp:1"]
    assert [call.top_k for call in project.calls] == [50, 20]
    assert [call.request_id for call in project.calls] == ["req-1", "req-1#1.2"]
    project = Source("L2", ConnectionResetError())
    assert (await error_of_reply(project)).error.code == "PROVIDER_UNAVAILABLE"
    assert len(project.calls) == 2


async def test_check_22_a_reduced_scope_asks_for_less_and_may_take_longer() -> None:
    project = Source("L2", RuntimeError(), [make_item("a", "x", "orders")], deadline_ms=None)
    acs = make_engine(project, top_k=50)
    body = request(ms=500)
    await acs.render(body)
    reply = await acs.render(body, action="retry_with_reduced_scope", attempt=2)
    assert fragment_ids(reply) == ["a"]
    first, second = project.calls
    assert (first.top_k, first.deadline_ms) == (50, 300)
    assert second.top_k == 20
    assert 300 < second.deadline_ms <= 400
    project = Source("L2", deadline_ms=None)
    await make_engine(project, top_k=6).render(request(ms=100), action="retry_with_reduced_scope", attempt=2)
    assert project.calls[0].top_k == 5
    assert project.calls[0].deadline_ms <= 80


async def test_the_options_of_the_seeds_second_example_are_offered() -> None:
    reply = await error_of_reply(
        Source("L2", TimeoutError()), Source("L1", WORLD), Source("L4", PAST), risk="high", ms=500
    )
    assert reply.error.code == "PROVIDER_TIMEOUT"
    assert offered_actions(reply) == [
        "retry_with_reduced_scope",
        "explicit_l1_expansion",
        "return_l4_only",
        "return_minimal",
    ]
    assert all(one.hint for one in reply.error.options)


@pytest.mark.parametrize("error", [TimeoutError(), RuntimeError(), ConnectionError()])
async def test_check_24_the_last_attempt_offers_no_retry(error: Exception) -> None:
    sources = Source("L2", error), Source("L1", WORLD), Source("L4", PAST)
    reply = await error_of_reply(*sources, risk="high", attempt=2, action="retry_same")
    assert reply.error.retriable is False
    assert (reply.error.attempt, reply.error.max_attempts) == (2, 2)
    assert not {"retry_same", "retry_with_reduced_scope", "explicit_l1_expansion"} & set(
        offered_actions(reply)
    )


async def test_only_what_could_succeed_is_offered() -> None:
    both = Source("L2", RuntimeError()), Source("L1", WORLD)
    assert "explicit_l1_expansion" in offered_actions(await error_of_reply(*both))
    assert "explicit_l1_expansion" not in offered_actions(await error_of_reply(*both, privacy="block"))
    assert "explicit_l1_expansion" not in offered_actions(await error_of_reply(both[0]))
    used = await error_of_reply(Source("L1", RuntimeError()), action="explicit_l1_expansion")
    assert "explicit_l1_expansion" not in offered_actions(used)
    empty = await error_of_reply(Source("L2", TimeoutError()), Source("L4"))
    assert "return_l4_only" not in offered_actions(empty)
    absent = await error_of_reply(Source("L2", TimeoutError()), Source("L4", PAST), risk="high", top_k=0)
    assert "return_l4_only" not in offered_actions(absent)


async def test_a_high_risk_does_not_do_without_the_project() -> None:
    sources = Source("L2", RuntimeError()), Source("L4", PAST)
    assert (await error_of_reply(*sources, risk="high")).error.code == "PROVIDER_ERROR"
    for risk in ("low", "medium"):
        reply = await make_engine(*sources).render(request(risk=risk))
        assert (reply.error, fragment_ids(reply)) == (None, ["exp:1"])
    two = Source("L2", RuntimeError(), name="a"), Source("L2", [make_item("p", "x", "orders")], name="b")
    assert fragment_ids(await make_engine(*two).render(request(risk="high"))) == ["p"]


async def test_when_all_fail_that_is_the_error() -> None:
    reply = await error_of_reply(
        Source("L2", RuntimeError()), Source("L4", TimeoutError()), Source("L1", WORLD)
    )
    assert reply.error.code == "ALL_PROVIDERS_FAILED"
    assert offered_actions(reply) == ["retry_with_reduced_scope", "explicit_l1_expansion", "return_minimal"]


async def test_only_a_budget_of_nothing_is_too_small() -> None:
    project = Source("L2", [make_item("a", "The orders are moved on Monday.", "orders")])
    reply = await error_of_reply(project, tokens=0)
    assert (reply.error.code, reply.error.retriable, offered_actions(reply)) == (
        "BUDGET_TOO_SMALL",
        False,
        ["return_minimal"],
    )
    assert not project.calls
    reply = await make_engine(project).render(request(tokens=1))
    assert (reply.error, fragment_ids(reply), reply.metrics and reply.metrics.used_tokens) == (None, [], 0)
    assert warning_codes(reply)[0] == "TRUNCATED_BY_BUDGET"
    reply = await make_engine(project).render(request(tokens=0), action="return_minimal")
    assert (reply.error, fragment_ids(reply)) == (None, [])


async def test_a_fault_of_ours_is_an_error_and_no_exception() -> None:
    class Broken:
        name = "broken"

        def count(self, text: str) -> int:
            if text == "load":
                return 1
            raise ZeroDivisionError("the text of a message")

    acs = ACS([Source("L2", [make_item("a", "x", "orders")])], token_counter=Broken(), max_attempts=3)
    for attempt, offered in ((1, ["retry_same"]), (2, [])):  # the same again only once
        reply = await acs.render(request(), attempt=attempt)
        assert reply.error is not None
        assert (reply.error.code, offered_actions(reply)) == ("INTERNAL", offered)
        assert "text of a message" not in json.dumps(checked_reply(reply))


# ── privacy ─────────────────────────────────────────────────────────────────────────────────────────────────────────

SAID = (
    "Write to jane.doe@example.com, use postgresql://admin:hunter22@db.internal/orders "
    "and sk-proj-q7Rz2LmX9vKc4TnB8wYdE1sGfH6jUaPoI3tZ0xVb5N."
)
SECRETS = ("hunter22", "sk-proj-q7Rz2LmX9vKc")


def text_windows(text: str, size: int = 20) -> set[str]:
    return {text[at : at + size] for at in range(len(text) - size + 1)}


async def test_check_32_under_block_no_text_leaves_even_if_a_source_sends_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    long = "The orders of the northern region are moved to the new cluster on the first of May."
    sneaky = make_item("proj:2", long, "orders", "moved to the new cluster on the first", cost=30)
    told = make_item(long[:40], long, "orders")

    async def disobey(asked: Any) -> Any:
        found = [make_item("proj:1", SAID, "orders", "jane.doe@example.com", cost=50), sneaky, told]
        return {"request_id": asked.request_id, "candidates": found}

    with caplog.at_level(logging.DEBUG, logger="acms"):
        reply = await make_engine(Source("L2", disobey)).render(request(privacy="block"))
    wire = checked_reply(reply)
    assert sorted(fragment_ids(reply)) == ["proj:1", "proj:2"]
    assert wire["fragments"][0] == {
        "id": wire["fragments"][0]["id"],
        "lod": "micro",
        "entities": ["orders"],
        "cost_tokens": 0,
        "source": "L2",
    }
    assert {"PRIVACY_VIOLATION", "PRIVACY_BLOCKED"} <= set(warning_codes(reply))
    logged = " ".join(str(vars(record)) for record in caplog.records)
    assert caplog.records
    for place in (json.dumps(wire), logged):
        assert not [piece for piece in text_windows(SAID) | text_windows(long) if piece in place]


async def test_check_32_no_candidate_tells_the_text_of_another() -> None:
    long = "The orders of the northern region are moved to the new cluster on the first of May."
    found = [
        make_item("proj:1", long),
        make_item(f"proj:{long[5:30]}", None, "orders"),
        make_item("proj:2", None, "orders", f"about {long[30:55]}", "new cluster"),
        {**make_item("proj:3", long[::-1]), "cost_tokens": -1},  # is not read, and is not told either
        make_item("proj:4", None, long[::-1][10:40], "may"),
    ]
    reply = await make_engine(Source("L2", found)).render(request(privacy="block"))
    named = {one.id: one.entities for one in reply.fragments or ()}
    assert named == {"proj:1": (), "proj:2": ("orders", "new cluster"), "proj:4": ("may",)}
    place = json.dumps(checked_reply(reply)) + repr(list(reply.ledger))
    assert not [piece for piece in text_windows(long) | text_windows(long[::-1]) if piece in place]


async def test_check_32_no_candidate_tells_a_shorter_rendition_of_another() -> None:
    title = "The northern region goes first, on the first of May."
    found = [
        make_item("proj:1", "The orders are moved.", variants=[{"lod": "macro", "text": title}]),
        make_item(f"proj:{title[4:30]}", None, "orders"),
        make_item("proj:2", None, "orders", title[20:45]),
    ]
    reply = await make_engine(Source("L2", found)).render(request(privacy="block"))
    assert {one.id: one.entities for one in reply.fragments or ()} == {"proj:1": (), "proj:2": ("orders",)}


@pytest.mark.parametrize(
    "large",
    [
        {"text": "orders " * 20_000},
        {"entities": [f"e{n}" for n in range(1_001)]},
        {"citations": ["ref"] * 1_001},
        {"variants": [{"lod": "macro", "text": "orders " * 20_000}]},
    ],
    ids=lambda large: next(iter(large)),
)
async def test_check_25_what_is_larger_than_a_snippet_is_passed_over(large: dict[str, Any]) -> None:
    found = [make_item("good", "The orders.", "orders"), {**make_item("large", "x"), **large}]
    reply = await make_engine(Source("L2", found)).render(request(tokens=1_000_000))
    assert fragment_ids(reply) == ["good"]
    assert [one.message for one in reply.warnings if one.code == "PARTIAL_DATA"] == [
        "1 candidates of L2 provider 'L2-source' were not usable"
    ]


async def test_of_many_warnings_the_first_are_read() -> None:
    async def complain(asked: Any) -> Any:
        many = [{"code": "PARTIAL_DATA", "message": "x"}] * 5_000
        return {
            "request_id": asked.request_id,
            "candidates": [make_item("a", "x", "orders")],
            "warnings": many,
        }

    reply = await make_engine(Source("L2", complain)).render(request())
    assert (fragment_ids(reply), warning_codes(reply).count("PARTIAL_DATA")) == (["a"], 1)


async def test_what_gives_itself_away_by_its_name_is_a_violation() -> None:
    long = "The orders of the northern region are moved on the first of May."
    reply = await error_of_reply(Source("L2", [make_item(long[:30], long, "orders")]), privacy="block")
    assert (reply.error.code, reply.error.retriable, offered_actions(reply)) == (
        "PRIVACY_VIOLATION",
        False,
        [],
    )


@pytest.mark.parametrize("privacy", ["allow", "redact"])
async def test_check_33_secrets_are_redacted_and_the_cost_is_counted_again(privacy: str) -> None:
    short = {"lod": "macro", "text": SAID[:70], "cost_tokens": 3}
    found = [make_item("proj:1", SAID, "orders", "hunter22", "admin", variants=[short])]
    for tokens in (4_000, 45):
        reply = await make_engine(Source("L2", found)).render(request(privacy=privacy, tokens=tokens))
        wire = json.dumps(checked_reply(reply))
        assert not [one for one in SECRETS if one in wire]
        assert ("jane" in wire) is (privacy == "allow" and bool(fragment_ids(reply)))
    reply = await make_engine(Source("L2", found)).render(request(privacy=privacy))
    (shown,) = reply.fragments or ()
    assert "[REDACTED: connection_string]" in (shown.text or "")
    assert "[REDACTED: api_key]" in (shown.text or "")
    assert shown.entities == ("orders",)
    assert "REDACTED" in warning_codes(reply)


async def test_a_key_that_a_rendition_cuts_in_two_is_not_shown_in_part() -> None:
    at = SAID.index("sk-proj") + 20
    half = {"lod": "macro", "text": SAID[at - 30 : at], "cost_tokens": 3}
    found = [make_item("proj:1", SAID, "orders", variants=[half])]
    for tokens in (5, 10, 20, 30, 40):
        reply = await make_engine(Source("L2", found)).render(request(tokens=tokens))
        assert "sk-proj" not in json.dumps(checked_reply(reply))


async def test_a_rendition_that_ends_within_a_secret_is_left_out() -> None:
    """Half a password is nothing that the rules find in the rendition."""
    whole = "The orders database opens with password: swordfish-77-marlin-88, and nobody else may use it."
    half = {"lod": "macro", "text": "Orders: swordfish-77-ma", "cost_tokens": 3}
    found = [make_item("proj:1", whole, "orders", lod="atomic", variants=[half])]
    for tokens in (8, 4_000):
        told = json.dumps(
            checked_reply(await make_engine(Source("L2", found)).render(request(tokens=tokens)))
        )
        assert "swordfish" not in told
    assert "[REDACTED: password]" in told


async def test_what_no_longer_fits_without_its_secrets_makes_room_a_few_times_then_everything_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chosen = Mock(side_effect=admission.select_fragments)
    monkeypatch.setattr(admission, "select_fragments", chosen)
    found = [make_item(f"m:{n}", f"orders{n} a{n}@b.co", "orders", relevance=0.9, cost=0) for n in range(9)]
    found.append(make_item("plain", "The orders move.", "orders", relevance=0.8, cost=0))
    reply = await make_engine(Source("L2", found)).render(request(privacy="redact", tokens=7))
    assert fragment_ids(reply) == ["plain"]
    assert chosen.call_count == admission.SELECTIVE_ROUNDS + 2


async def test_an_id_that_is_a_secret_is_not_shown() -> None:
    found = [
        make_item("postgresql://admin:hunter22@db.internal/orders", "x", "orders"),
        make_item("b", "y", "orders"),
    ]
    reply = await make_engine(Source("L2", found)).render(request())
    assert fragment_ids(reply) == ["b"]
    assert "hunter22" not in json.dumps(checked_reply(reply))


async def test_check_35_an_item_that_is_blocked_stays_so_under_allow() -> None:
    found = [
        make_item("proj:1", "The orders move.", "orders", privacy="block"),
        make_item("proj:2", "Yes.", "orders"),
    ]
    wire = checked_reply(await make_engine(Source("L2", found)).render(request(privacy="allow")))
    by_id = {one["id"]: one for one in wire["fragments"]}
    assert "text" not in by_id["proj:1"]
    assert by_id["proj:1"]["cost_tokens"] == 0
    assert by_id["proj:2"]["text"] == "Yes."


async def test_check_35_a_message_that_is_blocked_gives_away_no_word() -> None:
    async with ACMS("u", open_storage("memory://"), reflector=OfflineReflector()) as session:
        blocked = await session.ingest(
            "user", "Decision: the vault of the orders is under the blue staircase.", privacy="block"
        )
        await session.ingest("user", f"The orders may move. {SAID}")
        await session.close_episode()
        await session.wait_pending()
        for privacy in ("allow", "redact", "block"):
            reply = await ACS([session]).render(request("where are the orders", privacy=privacy))
            wire = json.dumps(checked_reply(reply))
            assert blocked in fragment_ids(reply)
            assert not [word for word in ("vault", "blue", "staircase", *SECRETS) if word in wire], privacy
            if privacy != "allow":
                assert "jane" not in wire
