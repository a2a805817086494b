"""Consolidation of proposals: every outcome, and the demotions that a retirement causes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acms import Kind, Origin, Privacy
from acms.ports import Proposal
from tests.support.factlog import FactLog, make_proposal, single_value_proposal

NO_FACT = "f_0123456789abcdef_1_0a1b2c"

# ── add, update, remove, keep ───────────────────────────────────────────────────────────────────────────────────────


def test_a_fact_says_where_it_came_from() -> None:
    log = FactLog()
    said = log.told("Decision: we use PostgreSQL.", privacy=Privacy.REDACT)
    proposal = Proposal(
        content="  The project uses PostgreSQL. ", subject="project", attribute="database", value="PostgreSQL",
        cardinality="one", fact_type="decision", confidence=0.9, valid_from=datetime(2026, 3, 1, tzinfo=UTC),
        sources=(1,),
    )  # fmt: skip
    made = log.decide(proposal)
    (draft,) = made.drafts
    assert (draft.kind, draft.content, draft.tokens) == (Kind.FACT, "The project uses PostgreSQL.", 4)
    assert (draft.sources, draft.replaces, draft.markers) == ((said.id,), (), ("decision",))
    assert (draft.origin, draft.privacy) == (Origin.DERIVED, Privacy.REDACT)
    assert draft.data == {
        "subject": "project", "attribute": "database", "value": "PostgreSQL", "cardinality": "one",
        "fact_type": "decision", "confidence": 0.9, "scope": "session", "trust": "user",
        "valid_from": "2026-03-01T00:00:00+00:00", "episode": 1, "said": "2026-03-14T12:00:01+00:00",
    }  # fmt: skip
    (decision,) = made.decisions
    assert (decision.outcome, decision.draft, decision.proposal) == ("added", 0, proposal)
    log.add(draft)
    (fact,) = log.known()
    assert (fact.value, fact.confidence, fact.valid_from) == ("PostgreSQL", 0.9, proposal.valid_from)
    assert (fact.trust, fact.sources, fact.version) == (Origin.USER, (said.id,), 2)


def test_a_new_value_at_an_address_of_one_takes_the_old_ones_place() -> None:
    log = FactLog()
    log.told("The deadline is March 15.")
    assert log.reflect(single_value_proposal("deadline", "March 15")) == ["added"]
    log.told("The deadline is March 20.")
    assert log.reflect(single_value_proposal("Deadlines", "March 20")) == ["updated"]
    assert log.said() == ["March 20"]
    old, new = log.facts()
    assert old.retired is not None
    assert (old.retired.reason, old.retired.by, old.retired.version) == ("updated", new.id, new.version)
    assert new.replaces == (old.id,)


def test_an_update_that_names_a_fact_takes_its_place_and_keeps_its_address() -> None:
    log = FactLog()
    log.told("nuts")
    log.reflect(single_value_proposal("allergy", "nuts", cardinality="many", fact_type="constraint"))
    log.told("no, only peanuts")
    proposal = Proposal(action="update", content="Allergic to peanuts.", fact_id=log.known()[0].id)
    assert log.reflect(proposal) == ["updated"]
    (fact,) = log.known()
    assert (fact.attribute, fact.fact_type, fact.cardinality) == ("allergy", "constraint", "many")


def test_an_address_of_many_accumulates() -> None:
    log = FactLog()
    for value in ("nuts", "shellfish"):
        log.told(f"I am allergic to {value}.")
        assert log.reflect(single_value_proposal("allergies", value, cardinality=None)) == ["added"]
    assert log.reflect(single_value_proposal("allergy", "pollen", cardinality="one")) == ["added"]
    assert log.said() == ["nuts", "shellfish", "pollen"]


def test_what_is_in_force_decides_how_many_an_address_holds() -> None:
    log = FactLog()
    log.told("Berlin")
    log.reflect(single_value_proposal("city", "Berlin"))
    assert log.reflect(single_value_proposal("city", "Munich", cardinality="many")) == ["updated"]
    assert log.known()[0].cardinality == "one"


def test_a_removed_fact_is_out_of_force_with_all_it_stood_in_for() -> None:
    log = FactLog()
    for city in ("Berlin", "Munich", "Rome"):
        log.told(f"I live in {city}.")
        log.reflect(single_value_proposal("city", city))
    told = log.told("I live nowhere.")
    assert log.reflect(Proposal(action="remove", fact_id=log.known()[0].id)) == ["removed"]
    assert log.said() == []
    retired = [fact.retired for fact in log.facts()]
    assert [one.reason for one in retired if one] == ["updated", "updated", "removed"]
    assert retired[2] is not None
    assert retired[2].evidence == (told.id,)
    log.take_back(log.version)
    assert log.said() == ["Rome"]


def test_a_removal_may_name_an_address_instead_of_an_id() -> None:
    log = FactLog()
    log.told("x")
    log.reflect(
        single_value_proposal("allergy", "nuts", cardinality="many"),
        single_value_proposal("allergy", "figs", cardinality="many"),
    )
    gone = Proposal(action="remove", subject="project", attribute="allergies")
    assert log.reflect(gone) == ["unknown_id"]  # which of the two?
    assert log.reflect(Proposal(action="remove", subject="Project", attribute="allergies", value="Nuts")) == [
        "removed"
    ]
    assert log.said() == ["figs"]


def test_keep_confirms_and_changes_nothing() -> None:
    log = FactLog()
    log.told("x")
    log.reflect(single_value_proposal("city", "Berlin"))
    (fact,) = log.known()
    made = log.decide(Proposal(action="keep", fact_id=fact.id))
    assert (made.drafts, made.decisions[0].outcome, made.decisions[0].fact_id) == ((), "kept", fact.id)


# ── what does not get in ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "given",
    [
        {"content": "  "}, {"content": None}, {"content": "a\0b"}, {"content": "\ud800"}, {"confidence": float("nan")},
        {"confidence": None}, {"confidence": "high"}, {"confidence": 1.5}, {"confidence": True}, {"action": None},
        {"action": "KEEP!"}, {"subject": 3}, {"attribute": "x" * 300}, {"value": ["a"]}, {"cardinality": "two"},
        {"scope": "world"}, {"fact_type": None}, {"valid_from": "tomorrow"}, {"sources": ("1",)}, {"sources": None},
        {"negative": "no"}, {"fact_id": 7}, {"reason": None}, {"names": (" ",)}, {"names": ("x" * 300,)},
        {"valid_from": datetime(2026, 3, 2, tzinfo=UTC), "valid_to": datetime(2026, 3, 1, tzinfo=UTC)},
    ],
)  # fmt: skip
def test_what_cannot_be_a_fact_is_invalid_and_the_rest_of_the_answer_stands(given: dict[str, Any]) -> None:
    log = FactLog()
    log.told("x")
    bad = Proposal(**{"content": "We use Go.", **given})
    assert log.reflect(bad, make_proposal("We use Rust.")) == ["invalid", "added"]
    assert log.said() == ["We use Rust."]


def test_what_the_reflector_is_not_sure_of_is_passed_over() -> None:
    log = FactLog()
    log.told("x")
    assert log.reflect(make_proposal("maybe", confidence=0.69), make_proposal("surely", confidence=0.7)) == [
        "low_confidence",
        "added",
    ]


def test_a_fact_is_short() -> None:
    log = FactLog()
    log.told("x")
    assert log.reflect(make_proposal("one two three"), make_proposal("one two"), max_tokens=2) == [
        "too_long",
        "added",
    ]


def test_one_answer_adds_no_more_than_it_may_and_updates_what_it_likes() -> None:
    log = FactLog()
    log.told("x")
    log.reflect(single_value_proposal("city", "Berlin"))
    found = log.reflect(
        make_proposal("a"),
        make_proposal("b"),
        single_value_proposal("city", "Rome"),
        make_proposal("c"),
        max_facts=2,
    )
    assert found == ["added", "added", "updated", "over_limit"]


def test_an_unknown_id_is_named_and_an_update_of_it_is_not_lost() -> None:
    log = FactLog()
    log.told("x")
    made = log.decide(
        Proposal(action="update", content="We use Go.", fact_id=NO_FACT),
        Proposal(action="remove", fact_id=NO_FACT),
        Proposal(action="keep", fact_id=NO_FACT),
    )
    assert [one.outcome for one in made.decisions] == ["added", "unknown_id", "unknown_id"]
    assert all(NO_FACT in one.reason for one in made.decisions)
    assert [draft.content for draft in made.drafts] == ["We use Go."]


def test_an_update_of_an_unknown_id_still_meets_what_its_address_holds() -> None:
    log = FactLog()
    log.told("x")
    log.reflect(single_value_proposal("city", "Berlin"))
    assert log.reflect(single_value_proposal("city", "Rome", action="update", fact_id=NO_FACT)) == ["updated"]
    assert log.said() == ["Rome"]


# ── the same again ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("known", "again"),
    [
        (single_value_proposal("city", "Berlin"), single_value_proposal("cities", "berlin")),
        (single_value_proposal("host", "db-7:5432"), single_value_proposal("the host", "“db-7:5432”")),
        (make_proposal("We never deploy on Fridays."), make_proposal("we never deploy on fridays")),
        (
            single_value_proposal("allergy", "Nuts", cardinality="many"),
            single_value_proposal("allergies", "nuts"),
        ),
    ],
)
def test_the_same_again_is_a_duplicate(known: Proposal, again: Proposal) -> None:
    log = FactLog()
    log.told("x")
    log.reflect(known)
    made = log.decide(again)
    assert (made.decisions[0].outcome, made.decisions[0].fact_id) == ("duplicate", log.known()[0].id)
    assert made.drafts == ()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("March 15", "March 20"), ("5", "-5"), ("1.5", "15"), ("10:30", "1030"), ("40k", "40K"), ("$5", "€5"),
        ("/srv/A", "/srv/a"), ("Ann Lee", "Anna Lee"), ("v1.2.3", "v1.2.4"), ("5 mW", "5 MW"), ("C", "C++"),
    ],
)  # fmt: skip
def test_what_differs_is_never_a_duplicate(one: str, other: str) -> None:
    log = FactLog()
    log.told("x")
    log.reflect(
        single_value_proposal("limit", one),
        single_value_proposal("thing", one, cardinality="many"),
        make_proposal(f"It is {one} exactly."),
    )
    found = log.reflect(
        single_value_proposal("limit", other),
        single_value_proposal("thing", other),
        make_proposal(f"It is {other} exactly."),
    )
    assert found == ["updated", "added", "added"]


def test_the_opposite_and_another_time_are_no_duplicates() -> None:
    log = FactLog()
    log.told("x")
    log.reflect(single_value_proposal("cache", "Redis", cardinality="many"))
    later = datetime(2027, 1, 1, tzinfo=UTC)
    found = log.reflect(
        single_value_proposal("cache", "Redis", negative=True),
        single_value_proposal("cache", "Redis", valid_from=later),
    )
    assert found == ["added", "added"]


def test_what_was_so_once_is_no_duplicate_when_it_is_so_again() -> None:
    log = FactLog()
    log.told("I lived in Berlin in February.")
    february = {"valid_from": datetime(2026, 2, 1, tzinfo=UTC), "valid_to": datetime(2026, 3, 1, tzinfo=UTC)}
    log.reflect(single_value_proposal("city", "Berlin", **february))
    log.told("I live in Berlin again.")
    assert log.reflect(single_value_proposal("city", "Berlin", **february)) == ["duplicate"]
    assert log.reflect(single_value_proposal("city", "Berlin")) != ["duplicate"]
    assert log.known()[-1].valid_to is None


def test_an_update_may_say_the_same_value_in_other_words() -> None:
    log = FactLog()
    log.told("The deadline is March 15.")
    log.reflect(single_value_proposal("deadline", "March 15"))
    fact = log.known()[0]
    better = single_value_proposal("deadline", "March 15", action="update", fact_id=fact.id)
    assert log.reflect(better) == ["duplicate"]
    words = Proposal(
        action="update", content="The deadline is March 15 at noon.", value="March 15", fact_id=fact.id
    )
    assert log.reflect(words) == ["updated"]
    assert log.demoted() == {}


# ── several in one answer ───────────────────────────────────────────────────────────────────────────────────────────


def test_of_two_updates_of_one_fact_the_last_one_wins() -> None:
    log = FactLog()
    log.told("x")
    log.reflect(single_value_proposal("city", "Berlin"))
    id = log.known()[0].id
    found = log.reflect(
        single_value_proposal("city", "Munich", action="update", fact_id=id),
        single_value_proposal("city", "Rome", action="update", fact_id=id),
    )
    assert found == ["overridden", "updated"]
    assert log.said() == ["Rome"]


def test_of_two_values_of_one_new_address_the_last_one_wins() -> None:
    log = FactLog()
    log.told("x")
    assert log.reflect(single_value_proposal("city", "Munich"), single_value_proposal("city", "Rome")) == [
        "overridden",
        "added",
    ]
    assert log.said() == ["Rome"]


def test_going_back_and_forth_in_one_answer_ends_where_it_ends() -> None:
    log = FactLog()
    log.told("x")
    log.reflect(single_value_proposal("city", "Berlin"))
    assert log.reflect(single_value_proposal("city", "Rome"), single_value_proposal("city", "Berlin")) == [
        "overridden",
        "duplicate",
    ]
    assert log.said() == ["Berlin"]
    found = log.reflect(
        single_value_proposal("city", "Oslo"),
        single_value_proposal("city", "Rome"),
        single_value_proposal("city", "Oslo"),
    )
    assert found == ["overridden", "overridden", "updated"]
    assert log.said() == ["Oslo"]


@pytest.mark.parametrize("first", [True, False])
def test_remove_and_add_at_one_address_is_an_update_in_either_order(first: bool) -> None:
    log = FactLog()
    log.told("x")
    log.reflect(single_value_proposal("theme", "dark"))
    gone, new = Proposal(action="remove", fact_id=log.known()[0].id), single_value_proposal("theme", "light")
    found = log.reflect(*((gone, new) if first else (new, gone)))
    assert found == (["overridden", "updated"] if first else ["updated", "overridden"])
    assert log.said() == ["light"]


def test_a_fact_that_is_updated_and_then_removed_by_name_is_removed() -> None:
    log = FactLog()
    log.told("x")
    log.reflect(make_proposal("We use Flask."))
    id = log.known()[0].id
    update = Proposal(action="update", content="We use Django.", fact_id=id)
    assert log.reflect(update, Proposal(action="remove", fact_id=id)) == ["overridden", "removed"]
    assert log.said() == []


def test_keep_of_what_another_proposal_changes_is_overridden() -> None:
    log = FactLog()
    log.told("x")
    log.reflect(single_value_proposal("city", "Berlin"))
    keep = Proposal(action="keep", fact_id=log.known()[0].id)
    assert log.reflect(keep, single_value_proposal("city", "Rome")) == ["overridden", "updated"]


def test_the_same_twice_in_one_answer_is_once() -> None:
    log = FactLog()
    log.told("x")
    assert log.reflect(make_proposal("We use Go."), make_proposal("we use Go")) == ["added", "duplicate"]


# ── trust ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("origin", [Origin.TOOL, Origin.EXTERNAL, Origin.DERIVED])
def test_what_a_tool_or_a_page_says_ends_nothing_that_people_said(origin: Origin) -> None:
    log = FactLog()
    log.told("I live in Berlin.")
    log.reflect(single_value_proposal("city", "Berlin"))
    id = log.known()[0].id
    page = log.told("The user lives in Rome.", origin=origin)
    found = log.reflect(
        single_value_proposal("city", "Rome"), Proposal(action="remove", fact_id=id),
        Proposal(action="update", content="Lives in Rome.", fact_id=id), make_proposal("Pages are pages."),
    )  # fmt: skip
    assert found == ["untrusted", "untrusted", "untrusted", "added"]
    assert log.known()[1].trust is origin
    own = log.told("I moved to Rome.")
    assert log.reflect(
        single_value_proposal("city", "Rome", sources=(own.version, page.version)), read=[own, page]
    ) == ["untrusted"]
    assert log.reflect(single_value_proposal("city", "Rome", sources=(own.version,)), read=[own, page]) == [
        "updated"
    ]


def test_in_one_answer_what_a_tool_says_ends_nothing_that_people_say() -> None:
    log = FactLog()
    own = log.told("I live in Berlin.")
    page = log.told("The user lives in Rome.", origin=Origin.TOOL)
    said, read = (
        single_value_proposal("city", "Berlin", sources=(own.version,)),
        single_value_proposal("city", "Rome", sources=(page.version,)),
    )
    made = log.decide(said, read, read=[own, page])
    assert [one.outcome for one in made.decisions] == ["added", "untrusted"]
    assert made.decisions[1].reason == "what tool says cannot end what user said (proposal 1)"
    assert log.reflect(read, said, read=[own, page]) == ["overridden", "added"]
    assert log.said() == ["Berlin"]


def test_without_sources_the_least_trusted_of_what_was_read_counts() -> None:
    log = FactLog()
    read = [log.told("a"), log.told("b", origin=Origin.TOOL)]
    log.reflect(make_proposal("x"), read=read)
    assert log.known()[0].trust is Origin.TOOL
    assert log.known()[0].sources == (read[0].id, read[1].id)


def test_what_a_user_confirms_is_trusted_from_then_on() -> None:
    log = FactLog()
    log.told("The host is db-7.", origin=Origin.TOOL)
    log.reflect(single_value_proposal("host", "db-7"))
    log.told("Right, it is db-7.")
    assert log.reflect(single_value_proposal("host", "db-7")) == ["updated"]
    assert [fact.trust for fact in log.known()] == [Origin.USER]
    assert log.demoted() == {}


# ── too many ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_too_many_facts_are_archived_the_least_sure_first_then_the_oldest_constraints_last() -> None:
    log = FactLog()
    log.told("x")
    log.reflect(
        make_proposal("must", confidence=0.7, fact_type="constraint"), make_proposal("old", confidence=0.9),
        make_proposal("unsure", confidence=0.8), make_proposal("new", confidence=0.9),
    )  # fmt: skip
    assert log.reflect(make_proposal("more"), max_active=4) == ["added"]
    assert log.said() == ["must", "old", "new", "more"]
    log.reflect(make_proposal("still more"), make_proposal("and more"), max_active=4)
    assert log.said() == ["must", "more", "still more", "and more"]
    assert [fact.retired.reason for fact in log.facts() if fact.retired] == ["archived"] * 3
    log.reflect(max_active=1)
    assert log.said() == ["must"]
    log.take_back(log.version)
    assert log.said() == ["must", "more", "still more", "and more"]


def test_what_an_archived_fact_stood_in_for_stays_away() -> None:
    log = FactLog()
    log.told("We use Flask.")
    log.reflect(single_value_proposal("framework", "Flask", confidence=0.7))
    log.told("We use FastAPI.")
    log.reflect(single_value_proposal("framework", "FastAPI", confidence=0.7))
    log.reflect(make_proposal("other"), max_active=1)
    assert log.said() == ["other"]
    assert log.demoted() == {"We use Flask.": []}


# ── what is demoted ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_sentence_that_said_the_old_value_is_demoted_and_the_rest_of_its_message_is_not() -> None:
    log = FactLog()
    log.told("Hello there. The deadline is March 15. Ana reviews it.")
    log.reflect(single_value_proposal("deadline", "March 15"))
    log.told("The deadline is March 20.")
    log.reflect(single_value_proposal("deadline", "March 20"))
    assert log.demoted() == {
        "Hello there. The deadline is March 15. Ana reviews it.": ["Hello there.", "Ana reviews it."]
    }
    log.take_back(log.version)
    assert log.demoted() == {}


def test_what_is_still_good_around_what_is_demoted_stays_in_one_piece() -> None:
    log = FactLog()
    text = "Hello there. It is late. The deadline is March 15. Ana reviews it. Ben does too."
    log.told(text)
    log.reflect(single_value_proposal("deadline", "March 15"))
    log.told("The deadline is March 20.")
    log.reflect(single_value_proposal("deadline", "March 20"))
    assert log.demoted() == {text: ["Hello there. It is late.", "Ana reviews it. Ben does too."]}


def test_a_new_value_that_contains_the_old_one_is_not_demoted_with_it() -> None:
    log = FactLog()
    log.told("We use PostgreSQL.")
    log.reflect(single_value_proposal("database", "PostgreSQL"))
    log.told("We use PostgreSQL 17.")
    log.reflect(single_value_proposal("database", "PostgreSQL 17"))
    assert log.demoted() == {"We use PostgreSQL.": []}


def test_a_source_that_says_it_in_other_words_is_demoted_by_its_closest_sentence() -> None:
    log = FactLog()
    log.told("Nice. The team eats lunch at the fifteenth hour. Bye.")
    log.reflect(
        Proposal(content="The team eats lunch at 15:00.", attribute="lunch", value="15:00", cardinality="one")
    )
    log.told("Lunch is at 13:00 now.")
    log.reflect(Proposal(content="Lunch is at 13:00.", attribute="lunch", value="13:00"))
    assert log.demoted() == {"Nice. The team eats lunch at the fifteenth hour. Bye.": ["Nice.", "Bye."]}


def test_what_a_removal_was_made_from_stays_and_what_was_removed_goes() -> None:
    log = FactLog()
    log.told("We use Flask.")
    log.reflect(single_value_proposal("framework", "Flask"))
    log.told("We do not use Flask any more.")
    log.reflect(Proposal(action="remove", fact_id=log.known()[0].id))
    assert log.demoted() == {"We use Flask.": []}


def test_what_a_chain_demoted_stays_demoted_when_its_end_is_removed() -> None:
    log = FactLog()
    for name in ("Flask", "FastAPI"):
        log.told(f"We use {name}.")
        log.reflect(single_value_proposal("framework", name))
        log.close()
    log.told("No framework.")
    log.reflect(Proposal(action="remove", fact_id=log.known()[0].id))
    assert log.demoted() == {"We use Flask.": [], "We use FastAPI.": []}


def test_the_source_of_another_fact_with_that_value_is_no_neighbour() -> None:
    log = FactLog()
    first = log.told("Service A runs on Flask.")
    second = log.told("Service B runs on Flask.")
    log.reflect(
        single_value_proposal("A framework", "Flask", sources=(1,)),
        single_value_proposal("B framework", "Flask", sources=(2,)),
        read=[first, second],
    )
    log.told("Service A runs on Django.")
    log.reflect(single_value_proposal("A framework", "Django"))
    assert log.demoted() == {"Service A runs on Flask.": []}


def test_values_are_found_where_words_have_no_spaces() -> None:
    log = FactLog()
    log.told("你好。\n我们用数据库甲。")
    log.reflect(single_value_proposal("database", "数据库甲"))
    log.told("我们用数据库乙。")
    log.reflect(single_value_proposal("database", "数据库乙"))
    assert log.demoted() == {"你好。\n我们用数据库甲。": ["你好。"]}


# ── any answer ──────────────────────────────────────────────────────────────────────────────────────────────────────

words = st.sampled_from(["Berlin", "Rome", "15", "", "March 20"])
proposals = st.builds(
    Proposal,
    action=st.sampled_from(["add", "add", "update", "remove", "keep"]),
    content=st.sampled_from(["It is so.", "It is not.", "It was.", ""]),
    subject=st.sampled_from(["user", ""]),
    attribute=st.sampled_from(["city", "cities", "allergy", ""]),
    value=words,
    cardinality=st.sampled_from([None, "one", "many"]),
    confidence=st.sampled_from([1.0, 0.8, 0.5]),
    negative=st.booleans(),
    sources=st.sampled_from([(), (1,), (99,)]),
)


@given(data=st.data())
def test_any_answers_leave_one_fact_at_an_address_of_one_and_lose_none(data: st.DataObject) -> None:
    log = FactLog()
    made = 0
    for _ in range(4):
        log.told(
            data.draw(words) + " is what I say.",
            origin=data.draw(st.sampled_from([Origin.USER, Origin.TOOL])),
        )
        some = data.draw(st.lists(proposals, max_size=5))
        ids = [fact.id for fact in log.facts()] + [None, NO_FACT]
        some = [
            Proposal(
                **{n: getattr(one, n) for n in one.__slots__} | {"fact_id": data.draw(st.sampled_from(ids))}
            )
            for one in some
        ]
        before = log.known()
        decided = log.decide(*some, max_active=4)
        assert len(decided.decisions) == len(some)
        assert decided == log.decide(*some, max_active=4)
        log.reflect(*some, max_active=4)
        made += sum(1 for draft in decided.drafts if draft.kind is Kind.FACT)
        assert len(log.facts()) == made
        known = log.known()
        assert len(known) <= max(4, sum(1 for draft in decided.drafts if draft.kind is Kind.FACT))
        places: dict[Any, int] = {}
        for fact in known:
            if fact.cardinality == "one" and fact.attribute:
                where = (fact.subject, fact.attribute.replace("cities", "city"))
                places[where] = places.get(where, 0) + 1
        assert all(number == 1 for number in places.values())
        for draft in reversed(decided.drafts):
            if draft.replaces:
                log.take_back(next(e.version for e in reversed(log.entries) if e.key == draft.key))
            else:
                log.take_back(next(e.version for e in reversed(log.entries) if e.key == draft.key), "user")
        assert log.known() == before
        for _ in decided.drafts:  # take the taking back back
            log.entries.pop()
        assert log.known() == known
