"""Facts of sessions: listed at any version, retracted, undone, revoked with their sources, adopted by forks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

import acms.sync
from acms import (
    ACMS,
    ACMSConfig,
    ConflictError,
    Entry,
    EntryNotFoundError,
    Fact,
    Kind,
    NotFoundError,
    Origin,
    State,
    ValidationError,
    WorkerConfig,
    open_storage,
)
from acms.facts import adopt as late
from acms.log.read import PROFILE, find_profile
from acms.model import Append, ContextDraft, Draft, Expect
from acms.ports import Proposal
from acms.testing.logs import WHEN, append_drafts, draft_retraction
from tests.support import talk
from tests.support.factlog import RULES, consolidate_proposals, single_value_proposal
from tests.support.talk import LONG_EPISODES, Storage, contents_of, ingest_texts

NAMESPACE = "team"


def session_on(storage: Any, name: str = "user_123", **given: Any) -> ACMS:
    return talk.session_on(storage, name, namespace=NAMESPACE, **given)


async def consolidate_facts(
    storage: Any, session: ACMS, *proposals: Proposal, sources: Sequence[str] = (), into: str | None = None
) -> list[str]:
    """Append what the rules make of proposals, from the newest message or from some; return the new ids."""
    context = await context_of(storage, session)
    log = await storage.read(context, at=(await storage.head(context)).version)
    said = [entry for entry in log if entry.kind is Kind.MESSAGE]
    read = [entry for entry in said if entry.id in sources] or said[-1:]
    where = into or context
    head = await storage.head(where)
    known = await known_of(storage, where)
    made = consolidate_proposals(proposals, known, said, read, RULES)
    drafts = tuple(without_key(draft) for draft in made.drafts)
    (result,) = await storage.append(
        [Append(context=where, drafts=drafts, expect=Expect(version=head.version))]
    )
    return list(result.ids)


def without_key(draft: Draft) -> Draft:
    values = {name: getattr(draft, name) for name in Draft.__slots__}
    return Draft(**{**values, "key": None})


async def known_of(storage: Any, context: str) -> list[Fact]:
    from acms.facts.request import read_facts

    return await read_facts(storage, context, None)


async def context_of(storage: Any, session: ACMS) -> str:
    return str((await storage.context(session.session_id, namespace=NAMESPACE)).id)


async def fact_values(session: Any, **given: Any) -> list[str]:
    return [fact.value for fact in await session.facts(**given)]


def by_hand(storage: Any) -> ACMS:
    """A session whose jobs are worked off by the test."""
    return session_on(storage, config=ACMSConfig(episodes=LONG_EPISODES, worker=WorkerConfig(enabled=False)))


async def session_with_cities(
    storage: Storage, session: ACMS | None = None
) -> tuple[ACMS, list[str], list[str]]:
    """A session that was told of three cities, one after the other."""
    session = session or session_on(storage)
    said: list[str] = []
    made: list[str] = []
    for city in ("Rome", "Oslo", "Bern"):
        said += await ingest_texts(session, f"I live in {city}.")
        made += await consolidate_facts(storage, session, single_value_proposal("city", city))
    return session, said, made


# ── listing ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_facts_in_force_and_their_history_are_listed(storage: Storage) -> None:
    session, said, made = await session_with_cities(storage)
    (fact,) = await session.facts()
    assert (fact.value, fact.id, fact.version, fact.sources) == ("Bern", made[2], 6, (said[2],))
    assert fact.replaces == (made[1], made[0])
    history = await session.facts(history=True)
    assert [one.value for one in history] == ["Rome", "Oslo", "Bern"]
    assert [one.retired.by if one.retired else None for one in history] == [made[1], made[2], None]
    assert history[0].retired is not None
    assert history[0].retired.evidence == (said[1],)
    assert (await session.get(fact.id)).content == fact.content
    assert (await session.get_session_stats()).facts == 1


async def test_facts_are_as_of_a_version(storage: Storage) -> None:
    session, _, _ = await session_with_cities(storage)
    said = [await fact_values(session.at(version)) for version in range(7)]
    assert said == [[], [], ["Rome"], ["Rome"], ["Oslo"], ["Oslo"], ["Bern"]]
    await session.retract((await session.facts())[0].id)
    assert [await fact_values(session.at(version)) for version in range(7)] == said
    assert await fact_values(session.at(4), history=True) == ["Rome", "Oslo"]


async def test_facts_are_found_by_address_and_type(storage: Storage) -> None:
    session = session_on(storage)
    await ingest_texts(session, "x")
    await consolidate_facts(
        storage, session, single_value_proposal("city", "Rome"),
        single_value_proposal("allergy", "nuts", fact_type="constraint", cardinality="many"),
        single_value_proposal("host", "db1", action="add"),
    )  # fmt: skip
    assert await fact_values(session, attribute="Cities") == ["Rome"]
    assert await fact_values(session, subject="The Project") == ["Rome", "nuts", "db1"]
    assert await fact_values(session, subject="project", attribute="allergies") == ["nuts"]
    assert await fact_values(session, fact_type="constraint") == ["nuts"]
    assert await fact_values(session, subject="somebody else") == []


async def test_a_session_that_does_not_exist_yet_knows_nothing(storage: Storage) -> None:
    session = session_on(storage)
    assert await session.facts() == await session.facts(scope="namespace") == []
    with pytest.raises(NotFoundError):
        await session.at(1).facts()
    for wrong in ({"scope": "world"}, {"subject": 3}, {"fact_type": "\0"}):
        with pytest.raises(ValidationError):
            await session.facts(**wrong)  # type: ignore[arg-type]


def test_facts_are_listed_for_blocking_code(any_url: str) -> None:
    with acms.sync.ACMS("user_123", open_storage(any_url)) as session:
        session.ingest("user", "hello")
        assert session.facts() == session.at(1).facts(history=True) == []


# ── retract and undo ────────────────────────────────────────────────────────────────────────────────────────────────


async def test_retracting_a_fact_takes_all_it_stands_in_for(storage: Storage) -> None:
    session, _, made = await session_with_cities(storage)
    version = await session.retract(made[2], reason="wrong")
    assert await session.facts() == []
    last = (await session.facts(history=True))[2]
    assert last.retired is not None
    assert (last.retired.reason, last.retired.version) == ("wrong", version)
    assert await session.retract(made[2]) == version
    await session.undo(version)
    assert await fact_values(session) == ["Bern"]


async def test_undoing_an_update_brings_the_fact_before_it_back(storage: Storage) -> None:
    session, _, made = await session_with_cities(storage)
    with pytest.raises(ConflictError, match="v6") as caught:
        await session.undo(4)
    assert caught.value.options == ("undo(6) first",)
    first = await session.undo(6)
    assert await fact_values(session) == ["Oslo"]
    await session.undo(4)
    assert await fact_values(session) == ["Rome"]
    with pytest.raises(ConflictError):
        await session.undo(first)  # Bern would come back where Rome is
    assert (await session.facts(history=True))[2].id == made[2]


async def test_a_fact_that_was_removed_does_not_come_back_to_a_filled_address(storage: Storage) -> None:
    session = session_on(storage)
    await ingest_texts(session, "I live in Rome.")
    (old,) = await consolidate_facts(storage, session, single_value_proposal("city", "Rome"))
    await ingest_texts(session, "I live nowhere.")
    await consolidate_facts(storage, session, Proposal(action="remove", fact_id=old))
    removed = (await session.get_session_stats()).version
    await ingest_texts(session, "I live in Oslo.")
    (new,) = await consolidate_facts(storage, session, single_value_proposal("city", "Oslo"))
    with pytest.raises(ConflictError) as caught:
        await session.undo(removed)
    assert caught.value.options == (f'retract("{new}") first', f"undo({removed + 2}) first")
    assert not caught.value.retryable
    await session.retract(new)
    await session.undo(removed)
    assert await fact_values(session) == ["Rome"]


async def test_a_fact_that_replaces_nothing_is_retracted_not_undone(storage: Storage) -> None:
    session, _, made = await session_with_cities(storage)
    with pytest.raises(ValidationError) as caught:
        await session.undo(2)
    assert caught.value.options == (f'retract("{made[0]}") makes it inactive',)


async def test_a_fact_that_comes_while_an_undo_is_decided_is_seen(storage: Storage) -> None:
    session = session_on(storage)
    await ingest_texts(session, "I live in Rome.")
    (old,) = await consolidate_facts(storage, session, single_value_proposal("city", "Rome"))
    gone = await session.retract(old)
    context = await context_of(storage, session)

    inner = session._shared.storage
    raced = False

    class Racing:
        def __getattr__(self, name: str) -> Any:
            return getattr(inner, name)

        async def read(self, *given: Any, **named: Any) -> Any:
            nonlocal raced
            found = await inner.read(*given, **named)
            if named.get("kinds") == (Kind.FACT,) and not raced:
                raced = True
                data = {"subject": "project", "attribute": "city", "value": "Oslo", "cardinality": "one"}
                await put_fact(storage, context, data)
            return found

    session._shared.storage = Racing()  # type: ignore[assignment]
    with pytest.raises(ConflictError, match="would come back"):
        await session.undo(gone)
    assert raced
    assert await fact_values(session) == ["Oslo"]


async def put_fact(storage: Any, context: str, data: dict[str, Any], **given: Any) -> None:
    draft = Draft(
        kind=Kind.FACT, content="a fact", created_at=WHEN, origin=Origin.DERIVED, data=data, **given
    )
    await storage.append([Append(context=context, drafts=(draft,))])


# ── revoking a source ───────────────────────────────────────────────────────────────────────────────────────────────


async def test_retracting_a_message_retires_what_was_made_from_it_in_one_commit(storage: Storage) -> None:
    session, said, _ = await session_with_cities(storage)
    before = (await session.get_session_stats()).version
    version = await session.retract(said[2])
    assert (await session.get_session_stats()).version == before + 2
    assert await fact_values(session) == ["Oslo"]
    last = (await session.facts(history=True))[2]
    assert last.retired is not None
    assert (last.retired.reason, last.retired.evidence) == ("revoked", (said[2],))
    undone = await session.undo(version)
    assert await fact_values(session) == ["Bern"]
    assert [entry.id for entry in await session.entries()] == said
    await session.undo(undone)
    assert await fact_values(session) == ["Oslo"]


async def test_an_edit_retires_what_the_old_text_taught_and_undo_brings_it_back(storage: Storage) -> None:
    session, said, _ = await session_with_cities(storage)
    edit = await session.replace(said[2], "I live in Bonn.")
    assert await fact_values(session) == ["Oslo"]
    await consolidate_facts(storage, session, single_value_proposal("city", "Bonn"), sources=[edit])
    assert await fact_values(session) == ["Bonn"]
    again = await session.replace(said[2], "I live in Basel.")
    assert await fact_values(session) == ["Oslo"]
    await session.retract(again)  # the first edit is read again
    assert await fact_values(session) == ["Bonn"]
    await session.retract(said[2])
    assert await fact_values(session) == ["Oslo"]


async def test_a_fact_made_from_a_message_that_a_summary_stands_for_goes_with_it(storage: Storage) -> None:
    session, said, _ = await session_with_cities(storage)
    context = await storage.context(session.session_id, namespace=NAMESPACE)
    draft = Draft(
        kind=Kind.SUMMARY, content="cities", created_at=WHEN, covers=(1, 5), replaces=((1, 1), (3, 3), (5, 5))
    )
    await append_drafts(storage, context, draft)
    await session.retract(said[2])
    assert await fact_values(session) == ["Oslo"]
    assert await fact_values(session, history=True) == ["Rome", "Oslo", "Bern"]


async def test_undoing_the_retraction_of_a_message_does_not_fill_an_address_twice(storage: Storage) -> None:
    session, said, _ = await session_with_cities(storage)
    version = await session.retract(said[2])
    await ingest_texts(session, "I live in Basel.")
    (new,) = await consolidate_facts(storage, session, single_value_proposal("city", "Basel"))
    with pytest.raises(ConflictError) as caught:
        await session.undo(version)
    assert caught.value.options[0] == f'retract("{new}") first'


async def test_the_facts_of_a_namespace_follow_their_sources(storage: Storage) -> None:
    session = session_on(storage)
    first, second = await ingest_texts(session, "I live in Rome.", "I moved to Oslo.")
    home = await storage.create(
        ContextDraft(key=PROFILE, namespace=NAMESPACE, counter="utf8-bytes", created_at=WHEN)
    )
    for city, source in (("Rome", first), ("Oslo", second)):
        await consolidate_facts(
            storage,
            session,
            single_value_proposal("city", city, scope="namespace"),
            sources=[source],
            into=home.id,
        )
    assert await fact_values(session) == []
    assert await fact_values(session, scope="namespace") == ["Oslo"]
    version = await session.retract(second)
    assert await fact_values(session, scope="namespace") == ["Rome"]
    size = (await storage.head(home.id)).version
    assert await session.retract(second) == version  # completes what was cut short: nothing was
    assert (await storage.head(home.id)).version == size
    await session.undo(version)
    assert await fact_values(session, scope="namespace") == ["Oslo"]
    edit = await session.replace(second, "I moved to Bern.")
    assert await fact_values(session, scope="namespace") == ["Rome"]
    await consolidate_facts(
        storage,
        session,
        single_value_proposal("city", "Bern", scope="namespace"),
        sources=[edit],
        into=home.id,
    )
    await session.undo((await session.get(edit)).version)
    assert await fact_values(session, scope="namespace") == ["Oslo"]
    with pytest.raises(ValidationError):
        await session.at(1).facts(scope="namespace")
    found = await find_profile(storage, NAMESPACE)
    assert found is not None
    assert found.id == home.id


async def test_a_retraction_that_was_cut_short_is_completed_by_doing_it_again(storage: Storage) -> None:
    session = session_on(storage)
    (source,) = await ingest_texts(session, "I live in Rome.")
    version = await session.retract(source)
    home = await storage.create(
        ContextDraft(key=PROFILE, namespace=NAMESPACE, counter="utf8-bytes", created_at=WHEN)
    )
    await put_fact(storage, home.id, {"attribute": "city", "value": "Rome"}, sources=(source,))
    assert await fact_values(session, scope="namespace") == ["Rome"]
    assert await session.retract(source) == version
    assert await fact_values(session, scope="namespace") == []


async def test_a_retraction_of_an_edited_message_that_was_cut_short_is_completed_too(
    storage: Storage,
) -> None:
    session = session_on(storage)
    (source,) = await ingest_texts(session, "I live in Rome.")
    edit = await session.replace(source, "I live in Oslo.")
    version = await session.retract(source)
    home = await storage.create(
        ContextDraft(key=PROFILE, namespace=NAMESPACE, counter="utf8-bytes", created_at=WHEN)
    )
    await put_fact(storage, home.id, {"attribute": "city", "value": "Oslo"}, sources=(edit,))
    assert await session.retract(source) == version
    assert await fact_values(session, scope="namespace") == []


async def test_clearing_a_session_clears_what_it_knows(storage: Storage) -> None:
    session, _, _ = await session_with_cities(storage)
    version = await session.clear()
    assert await session.facts() == []
    await session.undo(version)
    assert await fact_values(session) == ["Bern"]


async def profile_of(storage: Storage, **sources: Sequence[str]) -> str:
    """Make a profile that knows cities, each from some messages."""
    home = await storage.create(
        ContextDraft(key=PROFILE, namespace=NAMESPACE, counter="utf8-bytes", created_at=WHEN)
    )
    for city, cited in sources.items():
        data = {"attribute": f"city {city}", "value": city, "cardinality": "one"}
        await put_fact(storage, home.id, data, sources=tuple(cited))
    return home.id


async def test_clearing_a_session_takes_back_what_it_alone_taught_the_profile(storage: Storage) -> None:
    session, other = session_on(storage), session_on(storage, "other")
    rome, oslo = await ingest_texts(session, "I live in Rome.", "And in Oslo.")
    also, bern = await ingest_texts(other, "He lives in Oslo.", "And in Bern.")
    home = await profile_of(
        storage, Rome=[rome], Both=[rome, oslo], Oslo=[oslo, also], Bern=[bern], Nowhere=[]
    )
    version = await session.clear()
    assert await fact_values(other, scope="namespace") == ["Oslo", "Bern", "Nowhere"]
    size = (await storage.head(home)).version
    await session.clear()  # nothing was left to do
    assert (await storage.head(home)).version == size
    with pytest.raises(ConflictError):
        await session.undo(version)  # it was cleared once more since


async def test_undoing_the_clearing_of_a_session_brings_back_what_it_taught(storage: Storage) -> None:
    session = session_on(storage)
    (rome,) = await ingest_texts(session, "I live in Rome.")
    await profile_of(storage, Rome=[rome])
    version = await session.clear()
    assert await fact_values(session, scope="namespace") == []
    await session.undo(version)
    assert await fact_values(session, scope="namespace") == ["Rome"]


async def test_clearing_a_fork_leaves_alone_what_its_parent_taught(storage: Storage) -> None:
    session = session_on(storage)
    (rome,) = await ingest_texts(session, "I live in Rome.")
    child = await session.fork(session_id="what-if")
    (oslo,) = await ingest_texts(child, "I live in Oslo.")
    await profile_of(storage, Rome=[rome], Oslo=[oslo])
    await child.clear()
    assert await fact_values(session, scope="namespace") == ["Rome"]


async def test_a_clearing_that_was_cut_short_is_completed_by_doing_it_again(storage: Storage) -> None:
    session = session_on(storage)
    (rome,) = await ingest_texts(session, "I live in Rome.")
    await session.clear()
    await profile_of(storage, Rome=[rome])  # as if the profile had not followed
    await session.clear()
    assert await fact_values(session, scope="namespace") == []


async def test_an_undo_is_done_once_however_often_it_is_asked_for(storage: Storage) -> None:
    session = session_on(storage)
    (source,) = await ingest_texts(session, "I live in Rome.")
    gone = await session.retract(source)
    back = await session.undo(gone)
    assert await session.undo(gone) == back
    assert (await session.get_session_stats()).version == back
    again = await session.undo(back)
    assert again > back
    assert contents_of(await session.window(100)) == []
    assert await session.undo(back) == again


async def test_an_undo_that_was_cut_short_is_completed_by_doing_it_again(storage: Storage) -> None:
    session = session_on(storage)
    (source,) = await ingest_texts(session, "I live in Rome.")
    home = await profile_of(storage, Rome=[source])
    gone = await session.retract(source)
    assert await fact_values(session, scope="namespace") == []
    revoked = (await storage.read(home))[-1]
    back = await session.undo(gone)
    undone = (await storage.read(home))[-1]
    await append_drafts(
        storage, await storage.context(home), draft_retraction(undone.version)
    )  # as if it had not followed
    assert await fact_values(session, scope="namespace") == []
    assert await session.undo(gone) == back
    assert await fact_values(session, scope="namespace") == ["Rome"]
    assert revoked.data["reason"] == "revoked"


async def test_an_edit_that_was_cut_short_is_completed_by_doing_it_again(storage: Storage) -> None:
    session = session_on(storage)
    (source,) = await ingest_texts(session, "I live in Rome.")
    await session.replace(source, "I live in Oslo.")
    await profile_of(storage, Rome=[source])  # as if the profile had not followed
    await session.replace(source, "I live in Oslo.")
    assert await fact_values(session, scope="namespace") == []


# ── erasing ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_erasing_a_message_erases_its_facts_and_what_they_replaced_is_known_again(
    storage: Storage,
) -> None:
    session, said, made = await session_with_cities(storage)
    done = await session.erase(said[2], verify=True)
    assert set(done.ids) == {said[2], made[2]}
    assert done.residue == ()
    assert await fact_values(session) == ["Oslo"]
    assert await fact_values(session, history=True) == ["Rome", "Oslo"]


async def test_erasing_the_middle_of_a_chain_leaves_its_end_alone(storage: Storage) -> None:
    session, said, made = await session_with_cities(storage)
    await session.erase(said[1])
    assert await fact_values(session) == ["Bern"]
    assert (await session.get(made[1])).state is State.ERASED
    first = (await session.facts(history=True))[0]
    assert first.retired is not None
    assert first.retired.by == made[1]


# ── forks ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def run_adopt_jobs(storage: Any) -> None:
    for lease in await storage.claim(["adopt"], lease=timedelta(minutes=1), limit=10):
        outcome = await late.handle_adopt_job(storage, lease)
        if outcome is not None:
            await storage.settle(lease, outcome)


async def test_a_fork_has_its_own_facts(storage: Storage) -> None:
    session, _, made = await session_with_cities(storage, by_hand(storage))
    child = await session.fork(at=4)
    assert await fact_values(child) == ["Oslo"]
    await child.retract(made[1])
    assert await fact_values(child) == []
    assert await fact_values(session) == ["Bern"]


async def test_a_fork_adopts_what_it_would_have_learned_and_not_what_was_learned_after_it(
    storage: Storage,
) -> None:
    session = by_hand(storage)
    first, second = await ingest_texts(session, "I live in Rome.", "I moved to Oslo.")
    await consolidate_facts(storage, session, single_value_proposal("city", "Rome"), sources=[first])
    await consolidate_facts(storage, session, single_value_proposal("city", "Oslo"), sources=[second])
    await ingest_texts(session, "I moved to Bern.")
    await consolidate_facts(storage, session, single_value_proposal("city", "Bern"))
    child = await session.fork(at=2)
    await run_adopt_jobs(storage)
    assert await fact_values(child) == ["Oslo"]
    assert (await child.facts())[0].sources == (second,)
    assert await fact_values(session) == ["Bern"]
    await run_adopt_jobs(storage)
    assert await fact_values(child) == ["Oslo"]


async def test_a_fork_adopts_a_chain_over_what_it_inherits(storage: Storage) -> None:
    session = by_hand(storage)
    (first,) = await ingest_texts(session, "We use Flask.")
    (flask,) = await consolidate_facts(storage, session, single_value_proposal("framework", "Flask"))
    second, third = await ingest_texts(session, "We use Django.", "We use FastAPI for the web.")
    for name, source in (("Django", second), ("FastAPI", third)):
        known = (await session.facts())[0].id
        update = single_value_proposal(f"{name} framework", name, action="update", fact_id=known)
        await consolidate_facts(storage, session, update, sources=[source])
    child = await session.fork(at=4)
    await run_adopt_jobs(storage)
    assert await fact_values(child) == ["FastAPI"]
    (copy,) = await child.facts()
    entry = await child.get(copy.id)
    assert entry.replaces == ((2, 2),)
    assert {id for id, _ in entry.data["demotes"]} == {first, second}
    assert flask in copy.replaces


async def test_a_fork_adopts_the_end_of_a_fact(storage: Storage) -> None:
    session = by_hand(storage)
    await ingest_texts(session, "We use Flask.")
    (flask,) = await consolidate_facts(storage, session, single_value_proposal("framework", "Flask"))
    (said,) = await ingest_texts(session, "No framework any more.")
    await consolidate_facts(storage, session, Proposal(action="remove", fact_id=flask), sources=[said])
    child = await session.fork(at=3)
    assert await fact_values(child) == ["Flask"]
    await run_adopt_jobs(storage)
    assert await child.facts() == []
    await run_adopt_jobs(storage)


def episode_mark(episode: int, first: int, last: int) -> Draft:
    return Draft(
        kind=Kind.SUMMARY, content=f"episode {episode}", created_at=WHEN, origin=Origin.DERIVED, covers=(first, last),
        key=f"episode:{episode}", episode=episode,
        data={"episode": episode, "upto": last, "reflector": "r", "summarizer": "s"},
    )  # fmt: skip


async def test_a_fork_adopts_the_marks_of_the_episodes_that_had_ended(storage: Storage) -> None:
    session = by_hand(storage)
    await ingest_texts(session, "a", "b", close=True)  # v3 closes it
    await ingest_texts(session, "c", "d", close=True)  # v6
    context = await storage.context(session.session_id, namespace=NAMESPACE)
    await append_drafts(storage, context, episode_mark(1, 1, 2), episode_mark(2, 4, 5))
    for fork_at, episodes in ((6, [1, 2]), (5, [1]), (4, [1]), (3, [1]), (2, [])):
        child = await session.fork(at=fork_at)
        await run_adopt_jobs(storage)
        own = await storage.read(await context_of(storage, child), after=fork_at)
        assert [entry.data["episode"] for entry in own] == episodes, fork_at
        assert await child.compactions() == []
        assert (await child.get_session_stats()).summaries == 0
    assert await session.compactions() == []
    with pytest.raises(EntryNotFoundError):
        await session.expand(7)
    difference = await session.diff(6)
    assert (difference.summaries.added, difference.summaries.removed) == ((), ())


async def test_erasing_takes_marks_along_everywhere(storage: Storage) -> None:
    session = by_hand(storage)
    ids = await ingest_texts(session, "a", "b", close=True)
    context = await storage.context(session.session_id, namespace=NAMESPACE)
    await append_drafts(storage, context, episode_mark(1, 1, 2))
    child = await session.fork(at=3)
    await run_adopt_jobs(storage)
    await session.erase(ids[0], verify=True)

    async def states(of: ACMS) -> list[State]:
        log: list[Entry] = await storage.read(await context_of(storage, of), kinds=(Kind.SUMMARY,))
        return [entry.state for entry in log]

    assert await states(session) == await states(child) == [State.ERASED]


async def test_a_copy_demotes_its_own_messages(storage: Storage) -> None:
    session, _, _ = await session_with_cities(storage)
    copy = await session.copy()
    assert await fact_values(copy) == ["Bern"]
    entries = await copy.entries()
    (demoted,) = [id for id, _ in (await copy.get((await copy.facts())[0].id)).data["demotes"]]
    assert demoted == entries[1].id
    assert contents_of(entries)[1] == "I live in Oslo."
