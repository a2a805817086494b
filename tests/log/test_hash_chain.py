"""Identity: ids that say where an entry lies, digests that notice every change, a chain that ties a log together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta, timezone
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acms import Entry, Kind, Media, Origin, Privacy, Raw, Reasoning, Role, State, Text, ToolCall, ToolResult
from acms.log.encoding import (
    canonical_bytes,
    chain_values,
    context_id,
    digest_draft,
    draw_token,
    encode_base32,
    entry_id,
    from_microseconds,
    genesis_hash,
    parse_entry_id,
    stamp_draft,
    to_microseconds,
    verify_chain,
)
from acms.model import Draft
from acms.nouns import episode_id

NOON = datetime(2026, 3, 14, 12, tzinfo=UTC)
SALT = bytes(range(16))


def seeded_entropy(seed: int = 7) -> Any:
    return Random(seed).randbytes


def seal_drafts(
    context: str, version: int, head: bytes, drafts: Iterable[Draft], entropy: Any
) -> Iterator[tuple[str, bytes, bytes, bytes]]:
    """Yield (id, salt, digest, chain) for the drafts of one append; the first one gets `version`."""
    stamps = [stamp_draft(draft, entropy) for draft in drafts]
    chains = chain_values(head, stamps)
    for entry_version, (draft, stamp, chain) in enumerate(zip(drafts, stamps, chains, strict=True), version):
        yield entry_id(draft.kind, context, entry_version, stamp.nonce), stamp.salt, stamp.digest, chain


# ── ids ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@given(st.sampled_from(list(Kind)), st.integers(1, 2**40), st.integers(0, 2**32))
def test_an_id_says_where_its_entry_lies(kind: Kind, version: int, seed: int) -> None:
    random = seeded_entropy(seed)
    context = context_id(random)
    id = entry_id(kind, context, version, draw_token(random, 6))
    assert parse_entry_id(id) == (context, version)


@pytest.mark.parametrize(
    "id",
    [
        "",
        "m",
        "m_0123456789abcdef",
        "m_0123456789abcdef_1",
        "m_0123456789abcdef__abcdef",
        "m_0123456789abcdef_u_abcdef",
        "m_0123456789abcdef_1_abcdef_x",
        "x_0123456789abcdef_1_abcdef",
        "ep_0123456789abcdef_1",
        "c_0123456789abcdef",
        "m_0123456789abcdef_" + "1" * 14 + "_abcdef",
        "'; DROP TABLE entries; --",
        "\0",
    ],
)
def test_what_is_no_entry_id_points_nowhere(id: str) -> None:
    assert parse_entry_id(id) is None


def test_ids_of_one_place_differ_by_their_random_part() -> None:
    random = seeded_entropy()
    context = context_id(random)
    ids = {entry_id(Kind.MESSAGE, context, 5, draw_token(random, 6)) for _ in range(50)}
    assert len(ids) == 50


def test_episode_ids_name_the_context_and_the_ordinal() -> None:
    assert episode_id("c_abc", 3) == "ep_abc_3"


@given(st.integers(0, 2**64))
def test_base_32_reads_back(number: int) -> None:
    written = encode_base32(number)
    assert (
        int(written.translate(str.maketrans("abcdefghjkmnpqrstvwxyz", "abcdefghijklmnopqrstuv")), 32)
        == number
    )
    assert written == "0" or not written.startswith("0")


@given(st.datetimes(timezones=st.just(UTC)))
def test_a_time_reads_back_to_the_microsecond(time: datetime) -> None:
    assert from_microseconds(to_microseconds(time)) == time


def test_a_time_is_the_same_in_every_zone() -> None:
    assert to_microseconds(NOON) == to_microseconds(NOON.astimezone(timezone(timedelta(hours=-5))))


# ── digests ─────────────────────────────────────────────────────────────────────────────────────────────────────────

DRAFT = Draft(content="hello", created_at=NOON, role=Role.USER)
CHANGED: dict[str, Any] = {
    "kind": Kind.FACT,
    "content": "hello ",
    "created_at": NOON + timedelta(microseconds=1),
    "origin": Origin.EXTERNAL,
    "privacy": Privacy.REDACT,
    "role": Role.ASSISTANT,
    "actor": "Sam",
    "parts": (Text("hello"),),
    "markers": ("goal",),
    "episode": 1,
    "closes": "pattern",
    "group": "g_1",
    "covers": (1, 2),
    "replaces": ((1, 2),),
    "sources": ("m_1",),
    "data": {"subject": "orders"},
    "metadata": {"run": 12},
}
#: A key is erased with its entry; counts can be made again.
FREE = {"key", "tokens", "detected"}


def test_every_field_of_a_draft_is_either_hashed_or_free_on_purpose() -> None:
    assert {field.name for field in fields(Draft)} == set(CHANGED) | FREE


@pytest.mark.parametrize("field", sorted(CHANGED))
def test_a_digest_notices_a_change_of_any_field(field: str) -> None:
    changed = replace(DRAFT, **{field: CHANGED[field]})
    assert digest_draft(changed, "nonce1", SALT) != digest_draft(DRAFT, "nonce1", SALT)


@pytest.mark.parametrize("field", sorted(FREE))
def test_a_digest_outlives_what_may_be_forgotten(field: str) -> None:
    changed = replace(DRAFT, **{field: {"key": "k", "tokens": 9, "detected": True}[field]})
    assert digest_draft(changed, "nonce1", SALT) == digest_draft(DRAFT, "nonce1", SALT)


PARTS = [
    Text("a"),
    Text("b"),
    Reasoning("a"),
    Reasoning("a", "signed"),
    ToolCall("c1", "a", "{}"),
    ToolCall("c1", "a", '{"x": 1}'),
    ToolCall("c2", "a", "{}"),
    ToolCall("c1", "b", "{}"),
    ToolResult("c1", "a"),
    ToolResult("c1", "a", True),
    Media("image/png", "a"),
    Media("image/png", "a", "00"),
    Media("image/png", "a", "", 5),
    Raw("a", "{}"),
    Raw("a", "{ }"),
]


def test_a_digest_notices_a_change_within_any_part() -> None:
    digests = {digest_draft(replace(DRAFT, parts=(part,)), "nonce1", SALT) for part in PARTS}
    digests |= {
        digest_draft(replace(DRAFT, parts=(Text("ab"),)), "n", SALT),
        digest_draft(replace(DRAFT, parts=()), "n", SALT),
    }
    assert len(digests) == len(PARTS) + 2


def test_neither_the_id_nor_the_salt_can_be_exchanged() -> None:
    assert digest_draft(DRAFT, "nonce1", SALT) != digest_draft(DRAFT, "nonce2", SALT)
    assert digest_draft(DRAFT, "nonce1", SALT) != digest_draft(DRAFT, "nonce1", bytes(16))


def test_text_cannot_move_from_one_field_to_its_neighbour() -> None:
    one = replace(DRAFT, actor="a", group="b")
    two = replace(DRAFT, actor="b", group="a")
    assert canonical_bytes(one, "n") != canonical_bytes(two, "n")
    assert canonical_bytes(replace(DRAFT, metadata={"a": "b"}), "n") != canonical_bytes(
        replace(DRAFT, data={"a": "b"}), "n"
    )


def test_the_order_of_keys_in_metadata_means_nothing() -> None:
    one = replace(DRAFT, metadata={"a": 1, "b": {"x": 1, "y": 2}})
    two = replace(DRAFT, metadata={"b": {"y": 2, "x": 1}, "a": 1})
    assert canonical_bytes(one, "n") == canonical_bytes(two, "n")


# ── the chain ───────────────────────────────────────────────────────────────────────────────────────────────────────


def chained_log(*sizes: int, start: int = 0, head: bytes | None = None) -> list[Entry]:
    """A log of appends of so many messages each."""
    random = seeded_entropy()
    context = context_id(random)
    head = genesis_hash(context) if head is None else head
    made: list[Entry] = []
    version = start
    for size in sizes:
        drafts = [
            Draft(content=f"message {version + n}", created_at=NOON, role=Role.USER) for n in range(size)
        ]
        batch = version + 1
        for draft, (id, salt, value, chain) in zip(
            drafts, seal_drafts(context, batch, head, drafts, random), strict=True
        ):
            version += 1
            given = {field.name: getattr(draft, field.name) for field in fields(Draft)}
            made.append(
                Entry(
                    **given,
                    context=context,
                    version=version,
                    position=version,
                    id=id,
                    batch=batch,
                    total=0,
                    salt=salt,
                    digest=value,
                    chain=chain,
                )
            )
        head = made[-1].chain
    return made


def chain_problems(entries: Sequence[Entry]) -> Iterator[tuple[int, str]]:
    return verify_chain(entries, head=genesis_hash(entries[0].context), version=0)


def test_an_honest_log_verifies() -> None:
    log = chained_log(1, 3, 1, 2)
    assert list(chain_problems(log)) == []
    assert [parse_entry_id(one.id) for one in log] == [(one.context, one.version) for one in log]


def test_the_end_of_a_log_verifies_from_where_the_rest_ends() -> None:
    log = chained_log(1, 3, 2)
    assert list(verify_chain(log[4:], head=log[3].chain, version=4)) == []


def test_a_fork_goes_on_from_the_chain_of_its_parent() -> None:
    parent = chained_log(2)
    child = chained_log(2, 1, start=2, head=parent[-1].chain)
    assert list(verify_chain(child, head=parent[-1].chain, version=2)) == []
    assert list(verify_chain(child, head=parent[0].chain, version=2)) != []


@pytest.mark.parametrize("index", range(5))
def test_a_changed_content_is_reported_at_its_version(index: int) -> None:
    log = chained_log(1, 3, 1)
    log[index] = replace(log[index], content="forged")
    assert list(chain_problems(log)) == [(index + 1, "the content does not match its digest")]


@pytest.mark.parametrize("index", range(5))
def test_a_changed_digest_breaks_the_chain_there(index: int) -> None:
    log = chained_log(1, 3, 1)
    log[index] = replace(log[index], digest=bytes(32))
    assert next(version for version, what in chain_problems(log) if "chain" in what) == index + 1


@pytest.mark.parametrize("index", range(4))
def test_a_missing_entry_is_reported(index: int) -> None:
    log = chained_log(1, 3, 1)
    del log[index]
    assert (index + 1, f"missing: the next entry is {index + 2}") in list(chain_problems(log))


def test_entries_cannot_change_places() -> None:
    log = chained_log(3)
    log[0], log[1] = (
        replace(log[1], version=1, id=log[0].id, chain=log[0].chain),
        replace(log[0], version=2, id=log[1].id, chain=log[1].chain),
    )
    assert list(chain_problems(log)) != []


def test_an_erased_entry_keeps_its_digest_and_the_chain_holds() -> None:
    log = chained_log(1, 3, 1)
    log[2] = replace(log[2], content="", salt=None, state=State.ERASED)
    assert list(chain_problems(log)) == []


def test_a_live_entry_without_a_salt_is_reported() -> None:
    log = chained_log(2)
    log[1] = replace(log[1], salt=None)
    assert list(chain_problems(log)) == [(2, "has no salt")]


def test_equal_messages_have_different_digests() -> None:
    drafts = [DRAFT, DRAFT]
    (_, _, one, _), (_, _, two, _) = seal_drafts("c_x", 1, b"", drafts, seeded_entropy())
    assert one != two


def test_logs_of_two_contexts_start_from_different_values() -> None:
    assert genesis_hash("c_a") != genesis_hash("c_b")
