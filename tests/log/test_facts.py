"""Facts of a log: addresses, chains, restored facts, demoted facts."""

from __future__ import annotations

from typing import Any

import pytest

from acms import Entry, Kind, Origin, State
from acms.log.active_entries import Replacements, find_demotions
from acms.log.facts import (
    active_facts,
    collect_facts,
    fact_from_entry,
    find_collision,
    find_revoked_facts,
    has_address,
    normalize_address,
    simulate_append,
)
from acms.model import Draft
from tests.support.factlog import FactLog, single_value_proposal
from tests.support.logs import NOON, make_entry


def fact_entry(version: int, value: str = "x", *, over: tuple[int, ...] = (), **given: Any) -> Entry:
    data = {
        "subject": "user",
        "attribute": "city",
        "value": value,
        "cardinality": "one",
        **given.pop("data", {}),
    }
    return make_entry(
        version, f"The user lives in {value}.", kind=Kind.FACT, origin=Origin.DERIVED, data=data,
        replaces=tuple((old, old) for old in over), **given,
    )  # fmt: skip


def retraction_entry(version: int, *over: int, reason: str = "undo", **data: Any) -> Entry:
    return make_entry(
        version,
        kind=Kind.RETRACTION,
        replaces=tuple((old, old) for old in over),
        data={"reason": reason, **data},
    )


def replacements_of(*entries: Entry) -> Replacements:
    return Replacements(one for one in entries if one.replaces)


def active_versions(*entries: Entry) -> list[int]:
    return [one.version for one in active_facts(entries, replacements_of(*entries))]


# ── addresses ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Orders Service", "the orders service"), ("orders_db", "Orders-DB"), ("allergies", "Allergy"),
        ("caches", "cache"), ("addresses", "address"), ("movies", "movie"), ("boxes", "box"),
        ("The User's city", "user city"),
        ("ﬁle sizes", "file size"), ("Cafe\u0301", "CAFÉ"), ("branches", "branch"), ("houses", "house"),
    ],
)  # fmt: skip
def test_one_address_has_many_spellings(one: str, other: str) -> None:
    assert normalize_address("", one) == normalize_address("", other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("status", "statu"),
        ("plan", "plane"),
        ("car", "care"),
        ("host 1", "host 2"),
        ("Redis", "redi"),
        ("on", "one"),
    ],
)
def test_two_things_are_two_addresses(one: str, other: str) -> None:
    assert normalize_address("", one) != normalize_address("", other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("C", "C++"), ("C++", "C#"), ("C", "C#"), ("g++", "G"), ("C++17", "C 17"), ("NET", ".NET"),
        ("Disney+", "Disney"), ("node 1", "node -1"), ("node 1", "node \N{MINUS SIGN}1"), ("UTC+2", "UTC-2"),
        ("v1.2", "v12"), ("S3", "S 3"), ("Mars", "Mar"), ("mars", "Mar"), ("Adams", "Adam"),
        ("the Adams", "Adam"), ("राम", "रोम"),
    ],
)  # fmt: skip
def test_two_subjects_are_two_addresses(one: str, other: str) -> None:
    assert normalize_address(one, "") != normalize_address(other, "")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("DBs", "the db"), ("Invoices", "the invoice"), ("APIs", "API"), ("Mars", "mars"), ("The C++", "c++"),
        ("C++'s", "C++"), ("C++.", "C++"),
        ("orders_service", "Order Services"), ("issue #12", "Issue 12"), ("Node.js", "node-js"), ("node-1", "node 1"),
        ("*Orders* (EU)", "orders, EU"), ("node \N{MINUS SIGN}1", "node -1"), ("Ada's", "ADA"), ("Ada’S 👩", "ada"),
    ],
)  # fmt: skip
def test_one_subject_has_many_spellings(one: str, other: str) -> None:
    assert normalize_address(one, "") == normalize_address(other, "")


def test_an_attribute_makes_an_address_and_a_subject_alone_does_not() -> None:
    assert has_address(normalize_address("", "city"))
    assert not has_address(normalize_address("user", " - "))


# ── chains ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_a_replaced_fact_replaced_stays_out_of_force() -> None:
    chain = [fact_entry(1), fact_entry(2, over=(1,)), fact_entry(3, over=(2,))]
    assert active_versions(*chain) == [3]
    assert active_versions(*chain, retraction_entry(4, 3)) == [2]
    assert active_versions(*chain, retraction_entry(4, 3), retraction_entry(5, 4)) == [3]
    assert active_versions(*chain, retraction_entry(4, 3), retraction_entry(5, 2)) == [1]


@pytest.mark.parametrize(
    ("reason", "left"), [("removed", []), ("archived", []), ("revoked", [2]), ("wrong", [2])]
)
def test_the_reason_says_what_the_end_of_a_chain_does_to_the_rest(reason: str, left: list[int]) -> None:
    chain = [fact_entry(1), fact_entry(2, over=(1,)), fact_entry(3, over=(2,))]
    assert active_versions(*chain, retraction_entry(4, 3, reason=reason)) == left
    assert active_versions(*chain, retraction_entry(4, 1, 2, 3, reason=reason)) == []


def test_an_erased_fact_is_as_if_it_were_never_learned_unless_a_newer_one_stands_in_for_it() -> None:
    gone = fact_entry(2, over=(1,), state=State.ERASED)
    assert active_versions(fact_entry(1), gone) == [1]
    assert active_versions(fact_entry(1), gone, fact_entry(3, over=(2,))) == [3]


def test_where_two_fill_one_address_the_newest_counts() -> None:
    both = [fact_entry(1, "Rome"), fact_entry(2, "Oslo")]
    assert active_versions(*both) == [2]
    old, new = collect_facts(both, Replacements(()), ())
    assert new.replaces == (old.id,)
    assert old.retired is not None
    assert (old.retired.reason, old.retired.by) == ("updated", new.id)
    many = {"cardinality": "many"}
    assert active_versions(fact_entry(1, "Rome", data=many), fact_entry(2, "Oslo", data=many)) == [1, 2]


def test_a_fact_tells_what_retired_it_and_all_it_stands_in_for() -> None:
    log = [
        fact_entry(1),
        fact_entry(2, over=(1,)),
        fact_entry(3, over=(2,)),
        retraction_entry(4, 1, 2, 3, reason="removed"),
    ]
    one, two, three = collect_facts(log[:3], replacements_of(*log), log)
    assert [one.retired, two.retired, three.retired].count(None) == 0
    assert [f.retired.reason for f in (one, two, three) if f.retired] == ["updated", "updated", "removed"]
    assert [f.retired.version for f in (one, two, three) if f.retired] == [2, 3, 4]
    assert (three.replaces, two.replaces, one.replaces) == ((two.id, one.id), (one.id,), ())


def test_what_has_no_data_of_ours_is_a_fact_all_the_same() -> None:
    found = fact_from_entry(
        make_entry(
            1, "x", kind=Kind.FACT, data={"value": 3, "confidence": "high", "trust": "me", "subject": None}
        )
    )
    assert (found.value, found.confidence, found.trust, found.subject) == ("", 1.0, Origin.EXTERNAL, "")
    assert (found.cardinality, found.fact_type, found.scope) == ("many", "fact", "session")


# ── what a change does ──────────────────────────────────────────────────────────────────────────────────────────────


def test_a_fact_that_would_come_back_to_a_filled_address_is_found() -> None:
    log = [fact_entry(1, "Rome"), retraction_entry(2, 1, reason="removed"), fact_entry(3, "Oslo")]
    back = Draft(kind=Kind.RETRACTION, created_at=NOON, replaces=((2, 2),))
    replacing = [one for one in log if one.replaces]
    found = find_collision(
        [log[0], log[2]],
        Replacements(replacing),
        Replacements(replacing).apply_newer(simulate_append([back], 3)),
    )
    assert found is not None
    assert [one.version for one in found] == [1, 3]
    elsewhere = fact_entry(3, "Oslo", data={"attribute": "office"})
    assert (
        find_collision(
            [log[0], elsewhere],
            Replacements(replacing),
            Replacements(replacing).apply_newer(simulate_append([back], 3)),
        )
        is None
    )


def test_revoking_takes_what_cites_a_message_and_what_would_come_back_with_it() -> None:
    chain = [
        fact_entry(1, sources=("m_1",)), fact_entry(2, over=(1,), sources=("m_1", "m_2")),
            fact_entry(3, over=(2,), sources=("m_2",)),
        fact_entry(4, data={"attribute": "x"}, sources=("m_3",)),
    ]  # fmt: skip

    def taken(*gone: str) -> list[int]:
        return [one.version for one in find_revoked_facts(chain, replacements_of(*chain), frozenset(gone))]

    assert taken("m_2") == [3, 2]
    assert taken("m_1") == []
    assert taken("m_3") == [4]
    assert taken("m_1", "m_2") == [3, 2, 1]


def test_what_comes_back_to_an_address_that_is_filled_is_revoked_too() -> None:
    moved = [
        fact_entry(1, "Rome"),
        fact_entry(2, "x", over=(1,), data={"attribute": "office"}, sources=("m_1",)),
        fact_entry(3, "Oslo"),
    ]
    assert [
        one.version for one in find_revoked_facts(moved, replacements_of(*moved), frozenset(["m_1"]))
    ] == [2, 1]


# ── demotion ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_two_entries_demote_is_good_where_both_say_so() -> None:
    first, second = make_entry(1), make_entry(2)
    one = retraction_entry(4, 3, reason="removed", demotes=[[first.id, [[0, 10], [20, 30]]], [second.id, []]])
    other = retraction_entry(6, 5, reason="removed", demotes=[[first.id, [[5, 25]]]])
    found = find_demotions(Replacements([one, other]))
    assert found.find_demotion([first]) == ("v6", 6, ((5, 10), (20, 25)))
    assert found.find_demotion([second]) == ("v4", 4, ())
    assert not find_demotions(Replacements([one, retraction_entry(7, 4)]))


def test_undo_of_an_update_brings_back_what_was_said() -> None:
    log = FactLog()
    log.told("The city is Rome.")
    log.reflect(single_value_proposal("city", "Rome"))
    log.told("The city is Oslo.")
    log.reflect(single_value_proposal("city", "Oslo"))
    assert log.demoted() == {"The city is Rome.": []}
    log.take_back(log.version)
    assert (log.said(), log.demoted()) == (["Rome"], {})
