"""The ledger of a reply: why each candidate is shown or not, in the words of a recall, without a text."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from acms import ACMS, EntryNotFoundError, open_storage
from acms.acs import ACS
from acms.contract.benefit import compute_score
from tests.support.sources import Source, fragment_ids, make_engine, make_item, request

TEXT = "Stop the writers first, then copy the orders, then switch the readers over to the new place."


def random_items() -> list[dict[str, Any]]:
    rng = random.Random(5)
    return [
        make_item(
            f"proj:{number}",
            " ".join(rng.choices(["orders", "moved", "fine"], k=30)),
            *rng.sample(["orders", "migration", "other"], rng.randint(0, 2)),
            citations=["ref:1"] * rng.randint(0, 1),
            **({"relevance": rng.random()} if number % 2 else {}),
        )
        for number in range(40)
    ]


@pytest.mark.parametrize("profile", ["quality", "published"])
async def test_every_candidate_is_accounted_for(profile: str) -> None:
    found = random_items()
    reply = await make_engine(Source("L2", found), profile=profile).render(request(tokens=200))
    ledger = reply.ledger
    assert set(ledger.candidates) == {one["id"] for one in found}
    assert {one.id for one in ledger if one.included} == set(fragment_ids(reply))
    assert ledger.omitted == 40 - len(fragment_ids(reply))
    for one in ledger:
        assert one.rule in (("score",) if one.included else ("budget", "irrelevant"))
        assert one.relevance == pytest.approx(sum(one.parts.values()))
        assert one.score == pytest.approx(compute_score(one.relevance, one.tokens))


async def test_why_and_why_not_answer_by_id() -> None:
    found = [
        make_item("near", "The orders move.", "orders", relevance=0.9),
        make_item("far", "The weather is fine.", relevance=0.01),
        make_item("large", "orders " * 500, "orders"),
        make_item("twice", "The migration.", "migration"),
        replace_text("twice", "The migration is over."),
    ]
    ledger = (await make_engine(Source("L2", found)).render(request(tokens=60))).ledger
    assert ledger.why("near").included
    assert ledger.why_not("near") is None
    assert str(ledger.why("near")).startswith(
        "near shown (score): from L2, among the best that fit, as micro"
    )
    rejected = {id: ledger.why_not(id) for id in ("far", "large")}
    assert {id: one.rule for id, one in rejected.items() if one is not None} == {
        "far": "irrelevant",
        "large": "budget",
    }
    assert "tokens at least" in ledger.why("large").reason
    assert "1 more came under its id" in ledger.why("twice").reason
    with pytest.raises(EntryNotFoundError):
        ledger.why("nothing")


def replace_text(id: str, text: str) -> dict[str, Any]:
    return make_item(id, text, "migration")


async def test_experience_beyond_what_was_asked_for_is_named() -> None:
    past = [make_item(f"exp:{n}", f"Past {n}.", "orders", source="L4", relevance=n / 10) for n in range(5)]
    ledger = (
        await make_engine(Source("L4", past[:3]), Source("L4", past[3:])).render(request(top_k=2))
    ).ledger
    assert {one.id: one.rule for one in ledger} == {
        "exp:4": "score",
        "exp:3": "score",
        "exp:2": "top_k",
        "exp:1": "top_k",
        "exp:0": "top_k",
    }


@pytest.mark.parametrize("mode", ["allow", "redact", "block"])
async def test_no_text_and_no_secret_stands_in_it(mode: str) -> None:
    key = "ghp_" + "a7Bc9" * 7 + "d"
    found = [
        make_item("a", f"{TEXT} {key}", "orders"),
        make_item(f"doc:{key}", "The orders.", "orders"),
        make_item(TEXT, TEXT, "orders"),
        make_item("mail:bob@example.com", "word " * 3_000, "orders"),
    ]
    reply = await make_engine(Source("L2", found)).render(request(privacy=mode, tokens=2_000))
    written = repr(list(reply.ledger))
    assert key not in written
    assert "bob@" not in written
    assert len(reply.ledger) == 4
    if mode == "block":
        windows = {TEXT[at : at + 20] for at in range(len(TEXT) - 19)}
        assert not any(window in written for window in windows)
        assert [one.rule for one in reply.ledger if not one.included].count("hidden") == 3


async def test_an_error_has_one_too_and_none_goes_over_the_wire() -> None:
    acs = make_engine(
        Source("L2", ConnectionError()), Source("L4", [make_item("exp:1", "x", "orders", source="L4")])
    )
    reply = await acs.render(request(risk="high"))
    assert reply.error is not None
    assert reply.ledger.why("exp:1").included
    assert "ledger" not in reply.to_wire(extended=True)
    assert replace(reply, ledger=(await make_engine().render(request())).ledger) == reply
    assert list((await make_engine().render(request(tokens=0))).ledger) == []


async def test_a_session_is_accounted_for_by_the_ids_of_its_entries() -> None:
    async with ACMS("u", open_storage("memory://")) as session:
        first = await session.ingest("user", "The orders run on PostgreSQL.")
        reply = await ACS([session]).render(request("which database do the orders use"))
        assert reply.ledger.why(first).included
