"""A restore accepts the same values as the API, reports faults before it stores anything, and stores all or nothing."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acms import ACMS, ACMSConfig, ACMSError, ValidationError, WorkerConfig, open_storage
from acms.branches import limits
from acms.branches.copying import copy as copy_store
from acms.branches.export import export, verify
from acms.branches.restoring import restore
from acms.codecs import OpenAIChat
from acms.errors import CorruptRecordError, TooLargeError
from acms.log import encoding
from acms.log.encoding import context_from_json, dump, entry_from_json, entry_to_json
from acms.model import ContextQuery
from acms.prompt import Prompt
from acms.storage import MemoryStorage

QUIET = ACMSConfig(worker=WorkerConfig(enabled=False))
Record = dict[str, Any]


async def _export_eventful_log() -> list[str]:
    """Export a log with every kind of entry in it."""
    async with MemoryStorage() as store, ACMS("s", store, namespace="ana") as session:
        await session.ingest("system", "Be brief.")
        first = await session.ingest("user", "Decision: we use Postgres.", metadata={"n": 1}, actor_id="Ana")
        await session.ingest("assistant", "", tool_calls=[{"id": "c1", "name": "disk", "arguments": "{}"}])
        await session.ingest("tool", "61 %", tool_call_id="c1")
        await session.state("orders service", "database", "Postgres", sources=[first])
        await session.state("orders service", "database", "SQLite", sources=[first])
        await session.close_episode()
        for number in range(12):
            await session.ingest("user", f"Remark {number} about the garden.", idempotency_key=f"k{number}")
        await session.replace(first, "Decision: we use SQLite.")
        await session.close_episode("done")
        await session.ingest("user", "And now?")
        await session.tag("release", 3)
        await session.wait(await session.compact(preserve_recent_count=1))
        await session.set_policy(budget=10_000)
        context = await store.context("s", namespace="ana")
        await store.settings(
            context.id,
            {"labels": ["support"], "name": "Orders", "metadata": {"team": "orders"}},
            rev=context.settings_rev,
        )
        return [line async for line in export(store, context.id)]


@cache
def eventful_lines() -> tuple[str, ...]:
    return tuple(asyncio.run(_export_eventful_log()))


@pytest.fixture(scope="module", autouse=True)
def _written() -> None:
    eventful_lines()  # while no event loop runs


def eventful_records() -> list[Record]:
    return [json.loads(line) for line in eventful_lines()]


def seal_records(found: list[Record]) -> list[str]:
    """Return records as lines, with hashes that fit what they say: anybody can compute these."""
    header, *written = copy.deepcopy(found)
    try:
        chain = encoding.genesis_hash(context_from_json(header).id)
        entries = [entry_from_json(one) for one in written]
        made = [
            replace(one, digest=encoding.digest_draft(one, one.id.rsplit("_", 1)[-1], one.salt or b""))
            for one in entries
        ]
        for batch in sorted({one.batch for one in made}):
            some = [one for one in made if one.batch == batch]
            stamps = [encoding.Stamp("", b"", one.digest) for one in some]
            for one, link in zip(some, encoding.chain_values(chain, stamps), strict=True):
                made[made.index(one)] = replace(one, chain=link)
                chain = link
        written = [entry_to_json(one) for one in made]
        header["end"] = {"version": made[-1].version, "chain": chain.hex()}
    except (ACMSError, TypeError, ValueError, AttributeError, KeyError, OverflowError, IndexError):
        pass  # what cannot be read has no hash
    return [dump(one) + "\n" for one in (header, *written)]


async def store_contents(store: Any) -> list[Any]:
    page = await store.contexts(ContextQuery(deleted=True, limit=500))
    return [(one, await store.read(one.id, deleted=True)) for one in page.items]


async def use_store(store: Any) -> None:
    """Do with everything in a store what a user does."""
    assert (await store.sessions()).sessions
    for context in (await store.contexts(ContextQuery(limit=500))).items:
        assert await verify(store, context) == []
        async with ACMS(context.id, store, namespace=context.namespace, config=QUIET) as session:
            await session.tags()
            await session.facts(history=True)
            await session.compactions()
            await session.episodes()
            await session.history()
            await session.policy()
            await session.messages("Which database do we use?", budget=2_000)
            await session.recall("Which database do we use?", budget=500)
            prompt = Prompt(OpenAIChat("gpt-5")).history(session).recall(session, "database").user("And?")
            await prompt.render(budget=4_000)


# ── what the API refuses ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"settings": {"labels": 5}}, "settings.labels"),
        ({"settings": {"labels": ["x"] * 3 + [""]}}, "settings.labels"),
        ({"settings": {"labels": [str(n) for n in range(33)]}}, "settings.labels"),
        ({"settings": {"name": ["x"]}}, "settings.name"),
        ({"settings": {"metadata": "x"}}, "settings.metadata"),
        ({"settings": {"metadata": {"a": "x" * 20_000}}}, "settings.metadata"),
        ({"settings": {"tags": ["x"]}}, "settings.tags"),
        ({"settings": {"tags": {"7": {"version": 1, "chain": ""}}}}, "settings.tags"),
        ({"settings": {"tags": {"a": 3}}}, "settings.tags"),
        ({"settings": {"tags": {"a": {"version": "1", "chain": ""}}}}, "settings.tags"),
        ({"settings": {"policy": "none"}}, "settings.policy"),
        ({"settings": {"policy": {"budget": -1}}}, "settings.policy"),
        ({"settings": {"policy": {"speed": 1}}}, "settings.policy"),
        ({"settings": {"policy": {"budget": None}}}, "settings.policy"),
        ({"settings": {"private": "yes"}}, "settings.private"),
        ({"settings": {"legal_hold": 1}}, "settings.legal_hold"),
        ({"settings": {"retention_seconds": "soon"}}, "settings.retention_seconds"),
        ({"settings": {"copies": "c_1"}}, "settings.copies"),
        ({"settings": {"copied": {}}}, "settings.copied"),
        ({"settings": {"of others": 1 << 70}}, "settings.of others"),
        ({"namespace": "@acms"}, "namespace"),
        ({"namespace": " "}, "namespace"),
        ({"namespace": "n" * 256}, "namespace"),
        ({"key": "c_0000000000000000"}, "key"),
        ({"key": ""}, "key"),
        ({"id": "c_x"}, "id"),
        ({"counter": ""}, "counter"),
        ({"lineage": [["c_0000000000000000", 3]]}, "root"),
        ({"fork": 3}, "fork"),
        ({"settings_rev": -1}, "settings_rev"),
    ],
)
async def test_a_head_is_refused_that_the_api_would_refuse(change: Record, field: str) -> None:
    found = eventful_records()
    lines = seal_records([found[0] | change, *found[1:]])
    async with MemoryStorage() as store:
        with pytest.raises(ValidationError) as caught:
            await restore(store, lines, name="log.jsonl")
        assert caught.value.field == "log.jsonl:1"
        assert str(caught.value).startswith(f"log.jsonl:1: {field}")
        assert await store_contents(store) == []


@pytest.mark.parametrize(
    ("line", "change", "field"),
    [
        (2, {"metadata": {"a": {"b": {"c": {"d": {"e": {"f": {"g": {"h": {}}}}}}}}}}, "metadata"),
        (2, {"metadata": {str(n): n for n in range(65)}}, "metadata"),
        (2, {"markers": ["importance: 11"]}, "markers"),
        (2, {"actor": " "}, "actor"),
        (2, {"role": None}, "role"),
        (2, {"content": "a" * 5_000_000}, "content"),
        (2, {"content": " "}, "content"),
        (2, {"tokens": -5, "total": -5}, "tokens"),
        (2, {"episode": 99}, "episode"),
        (2, {"key": "k" * 256}, "key"),
        (2, {"replaces": [[1, 99]]}, "replaces"),
        (2, {"covers": [3, 1]}, "covers"),
        (2, {"sources": ["s" * 300]}, "sources"),
        (2, {"data": {"a": 1e999}}, "data"),
        (2, {"parts": [{"type": "tool_result", "call_id": "a", "output": "b"}]}, "parts"),
        (3, {"parts": [{"type": "tool_call", "call_id": "", "name": "a"}]}, "parts[0].call_id"),
    ],
)
async def test_an_entry_is_refused_that_the_api_would_refuse(line: int, change: Record, field: str) -> None:
    found = eventful_records()
    found[line] |= change
    if "tokens" in change:
        found[1]["total"] = 0
    async with MemoryStorage() as store:
        with pytest.raises(ACMSError) as caught:
            await restore(store, seal_records(found), name="log.jsonl")
        if isinstance(caught.value, ValidationError):
            assert caught.value.field == f"log.jsonl:{line + 1}"
            assert field in str(caught.value)
        else:
            assert isinstance(caught.value, CorruptRecordError)
            assert f"line {line + 1}" in str(caught.value) or "tokens" in change
        assert await store_contents(store) == []


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("fact", {"names": 5}),
        ("fact", {"confidence": "sure"}),
        ("fact", {"valid_from": "soon"}),
        ("fact", {"demotes": [["m_1"]]}),
        ("fact", {"trust": "everything"}),
        ("fact", {"mentions": {"a": 1}}),
        ("fact", {"depends_on": "f_1"}),
        ("retraction", {"seen": ["a"], "reason": "merged"}),
        ("retraction", {"merged": ["a"], "reason": "x"}),
    ],
)
async def test_what_derived_entries_say_in_their_data_is_read_before_it_is_stored(
    kind: str, data: Record
) -> None:
    found = eventful_records()
    number = next((at for at, one in enumerate(found) if one.get("kind") == kind), None)
    if number is None:
        number = len(found) - 1
        found[number] |= {"kind": kind, "role": None, "content": "", "position": None, "parts": []}
        found[number]["id"] = f"r{found[number]['id'][1:]}"
        found[number]["total"] = found[number - 1]["total"]
    found[number]["data"] = found[number].get("data", {}) | data
    async with MemoryStorage() as store:
        with pytest.raises(ValidationError, match=rf"export:{number + 1}: data\.{next(iter(data))}"):
            await restore(store, seal_records(found))
        assert await store_contents(store) == []


async def test_a_fork_that_reads_another_session_than_its_parent_is_refused() -> None:
    async with MemoryStorage() as store:
        async with ACMS("a", store) as one, ACMS("secret", store, namespace="bo") as other:
            await one.ingest("user", "hello")
            await other.ingest("user", "secret")
            async with await one.fork(session_id="fork") as fork:
                await fork.ingest("user", "more")
        secret = await store.context("secret", namespace="bo")
        written = [json.loads(line) async for line in export(store, "fork")]
        async with MemoryStorage() as target:
            for name in ("a",):
                await restore(target, [line async for line in export(store, name)])
            lines = [line async for line in export(store, "secret", namespace="bo")]
            await restore(target, lines)
            before = await store_contents(target)
            for change in (
                {"lineage": [[secret.id, 1]]},
                {"parent": secret.id, "root": secret.id, "lineage": [[secret.id, 1]]},
                {"root": secret.id},
            ):
                with pytest.raises(CorruptRecordError, match="is no fork of"):
                    await restore(target, [dump(written[0] | change) + "\n", dump(written[1]) + "\n"])
                assert await store_contents(target) == before


# ── limits ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def long_line(path: Path) -> Path:
    with path.open("wb") as file:
        file.write(b'{"acms":1,"id":"')
        file.truncate(2_000_000_000)  # of which hardly anything is on the disk
    return path


async def test_a_line_of_two_gigabytes_is_not_held(tmp_path: Path) -> None:
    async with MemoryStorage() as store:
        with pytest.raises(TooLargeError, match=r"log\.jsonl:1: has more than 67,108,864 bytes"):
            await restore(store, long_line(tmp_path / "log.jsonl"), name="log.jsonl")
        assert await store_contents(store) == []


@pytest.mark.parametrize("levels", [limits.DEPTH + 1, 100_000])
async def test_json_that_is_nested_too_deep_is_refused(levels: int) -> None:
    deep = "[" * levels + "]" * levels
    lines = [*eventful_lines()[:3], eventful_lines()[3].replace('"content":', f'"more":{deep},"content":')]
    async with MemoryStorage() as store:
        for given_lines in (lines, [deep]):
            with pytest.raises(TooLargeError, match="nested deeper than 128 levels") as caught:
                await restore(store, given_lines)
            assert caught.value.field == f"export:{len(given_lines)}"
        assert await store_contents(store) == []


async def test_a_line_of_too_many_values_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "VALUES", 100)
    async with MemoryStorage() as store:
        with pytest.raises(TooLargeError, match="more than 100 values"):
            await restore(store, [*eventful_lines()[:2], "[" + "1," * 200 + "1]"])
        assert await store_contents(store) == []


async def test_an_append_that_never_ends_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RECORDS", 3)
    found = eventful_records()
    for one in found[1:]:
        one["batch"] = 1
    async with MemoryStorage() as store:
        with pytest.raises(TooLargeError, match="export:5: belongs to an append that is too large"):
            await restore(store, seal_records(found))
        assert await store_contents(store) == []


# ── what is there already ───────────────────────────────────────────────────────────────────────────────────────────

DAMAGE: list[Record] = [
    {"labels": 5},
    {"name": {"a": 1}, "metadata": [1]},
    {"policy": "none"},
    {"policy": {"threshold": "high"}},
    {"tags": [1]},
    {"tags": {"a": 1}, "copies": 7, "copied": 3},
]


@pytest.mark.parametrize("settings", DAMAGE, ids=lambda one: "-".join(one))
async def test_a_damaged_session_hides_no_other_and_verify_names_it(any_url: str, settings: Record) -> None:
    async with open_storage(any_url) as store:
        for name in ("mine", "bad", "other"):
            async with ACMS(name, store, config=QUIET) as session:
                await session.ingest("user", "Which database?")
        context = await store.context("bad")
        context = await store.settings(context.id, settings, rev=context.settings_rev)
        page = await store.sessions()
        assert [one.key for one in page.sessions] == ["other", "bad", "mine"]
        assert page.sessions[1].labels == ()
        assert page.sessions[1].name is None
        assert [one.key for one in (await store.sessions(where={"label": "x"})).sessions] == []
        problems = await verify(store, context)
        assert {str(one).partition(": ")[2].partition(":")[0].split(".")[1] for one in problems} <= set(
            settings
        )
        assert problems
        async with ACMS("bad", store, config=QUIET) as session:
            await session.ingest("user", "more")
            assert await session.tags() == {}
            await session.tag("fine")
            await session.policy()
            await session.recall("database", budget=100)
            await session.erase((await session.history()).entries[0].id)
            await session.delete()


async def test_a_copy_lets_in_no_damaged_session_and_copies_nothing(tmp_path: Path) -> None:
    async with MemoryStorage() as store, MemoryStorage() as target:
        for name in ("mine", "bad"):
            async with ACMS(name, store, config=QUIET) as session:
                await session.ingest("user", "Which database?")
        context = await store.context("bad")
        context = await store.settings(context.id, {"labels": 5}, rev=context.settings_rev)
        with pytest.raises(ValidationError, match=f"{context.id} of the source: settings.labels"):
            await copy_store(store, target)
        assert await store_contents(target) == []
        await store.settings(context.id, {"labels": None}, rev=context.settings_rev)
        await copy_store(store, target)
        assert len(await store_contents(target)) == 2


# ── any damage at all ───────────────────────────────────────────────────────────────────────────────────────────────

Path_ = tuple[str | int, ...]
DEEP: Any = None
for _ in range(300):
    DEEP = [DEEP]
VALUES: list[Any] = [
    None, True, 0, 1, -1, 3, 2**31, 2**63, 2**70, 0.5, 1e999, "", " ", "x", "1", "a\0", "\ud800", "x" * 1_100_000,
    "2026-01-01", "user", "system", "fact", [], {}, [1], ["x"], [[1, 1]], [[1, 2], [2, 1]],
    [["m_x_1_000000", [[0, 3]]]],
    {"a": 1}, {"a": DEEP}, DEEP, [{}] * 300, {"type": "text"}, [{"type": "text", "text": "x"}],
]  # fmt: skip


def iterate_places(value: Any, here: Path_ = ()) -> Iterator[Path_]:
    items: Any = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for name, inner in items:
        yield (*here, name)
        yield from iterate_places(inner, (*here, name))


@cache
def all_places() -> tuple[Path_, ...]:
    return tuple(iterate_places(eventful_records()))


@st.composite
def damaged_records(draw: st.DrawFn) -> list[Record]:
    found: Any = eventful_records()
    for _ in range(draw(st.integers(1, 3))):
        *way, last = draw(st.sampled_from([one for one in all_places() if len(one) > 1]))
        inside = found
        try:
            for step in way:
                inside = inside[step]
            if draw(st.integers(0, 3)):
                inside[last] = copy.deepcopy(draw(st.sampled_from(VALUES)))
            else:
                del inside[last]
        except (KeyError, IndexError, TypeError):
            continue  # it was damaged before
    if not draw(st.integers(0, 9)):
        del found[draw(st.integers(1, len(found) - 1))]
    return found


@given(damaged_records(), st.booleans())
def test_a_damaged_export_is_restored_to_something_sound_or_refused(found: list[Record], fits: bool) -> None:
    try:
        lines = seal_records(found) if fits else [json.dumps(one) + "\n" for one in found]
    except (UnicodeEncodeError, RecursionError):
        return

    async def tried() -> None:
        async with MemoryStorage() as store:
            async with ACMS("mine", store, config=QUIET) as session:
                await session.ingest("user", "my data")
            before = await store_contents(store)
            try:
                await restore(store, lines)
            except ACMSError:
                assert await store_contents(store) == before
            else:
                await use_store(store)

    asyncio.run(tried())


async def test_the_export_that_is_damaged_is_sound_itself() -> None:
    async with MemoryStorage() as store:
        await restore(store, eventful_lines())
        await use_store(store)
        assert seal_records(eventful_records()) == list(eventful_lines())
    assert {one.get("kind") for one in eventful_records()[1:]} >= {"message", "fact", "summary"}
