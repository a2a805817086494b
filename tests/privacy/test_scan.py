"""Scanning stored entries: every field is scanned, and no content is reported."""

from __future__ import annotations

import random
import re
import string
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from acms import ACMS, Kind, Media, Raw, Reasoning, Text, ToolCall, ToolResult, ValidationError, open_storage
from acms.erasure import erase
from acms.ports import Handle
from acms.privacy.detect import KINDS, RULES_VERSION
from acms.privacy.scan import Finding, scan
from acms.testing.logs import append_drafts, create_log, draft_fact, draft_message, draft_summary

MADE = random.Random(11)


def random_secret(size: int) -> str:
    return "".join(MADE.choices(string.ascii_letters + string.digits, k=size)) + "a7"


SECRETS = {
    name: f"ghp_{random_secret(34)}"
    for name in "text reasoning arguments output ref raw fact summary".split()
}


@pytest.fixture
async def store(any_url: str) -> AsyncIterator[Handle]:
    """An empty store of each kind."""
    async with open_storage(any_url) as opened:
        yield opened
    await opened.aclose()


def places_of_findings(findings: tuple[Finding, ...]) -> list[tuple[int, str, str]]:
    return [(one.version, one.field, one.kind) for one in findings]


async def test_every_field_of_every_kind_of_entry_is_looked_into(store: Handle) -> None:
    context = await create_log(store, "user_123")
    await append_drafts(
        store,
        context,
        draft_message(
            SECRETS["text"],
            parts=(
                Text(SECRETS["text"]),
                Reasoning(f"I see {SECRETS['reasoning']}"),
                ToolCall("c1", "push", f'{{"t": "{SECRETS["arguments"]}"}}'),
                ToolResult("c1", SECRETS["output"]),
                Media("image/png", f"https://x.example/a.png?t={SECRETS['ref']}"),
                Raw("openai", f'{{"x": "{SECRETS["raw"]}"}}'),
            ),
            actor="ann@example.com",
            key="tel +49 30 901820",
            metadata={
                "login": {"password": "swordfish"},
                "phone": [4155550199],
                "bob@example.com": True,
                "version": "1.2.3",
                "ok": None,
            },
        ),
        draft_fact(f"the token is {SECRETS['fact']}"),
        draft_message("nothing here"),
    )
    await append_drafts(store, context, draft_summary(1, 1, content=f"they said {SECRETS['summary']}"))
    done = await scan(store)
    assert places_of_findings(done.findings) == [
        (1, "content", "api_key"),
        (1, "parts[1].text", "api_key"),
        (1, "parts[2].arguments", "api_key"),
        (1, "parts[3].output", "api_key"),
        (1, "parts[4].ref", "api_key"),
        (1, "parts[5].json", "api_key"),
        (1, "actor", "email"),
        (1, "key", "phone"),
        (1, "metadata.[REDACTED: email] (name)", "email"),
        (1, "metadata.login.password", "password"),
        (1, "metadata.phone[0]", "phone"),
        (2, "content", "api_key"),
        (4, "content", "api_key"),
    ]
    assert (done.contexts, done.entries, done.affected, done.found) == (1, 4, 3, 13)
    assert [(one.kind, one.findings, one.entries) for one in done.kinds] == [
        ("api_key", 8, 3),
        ("password", 1, 1),
        ("email", 2, 1),
        ("phone", 2, 1),
    ]
    assert done.rules == RULES_VERSION
    told = repr(done)
    for secret in (*SECRETS.values(), "swordfish", "example.com", "4155550199", "901820"):
        assert secret not in told


async def test_the_value_of_a_fact_is_read_with_its_attribute(store: Handle) -> None:
    context = await create_log(store, "user_123")
    data = {"subject": "user", "attribute": "wifi password", "value": "Sonnenblume"}
    await append_drafts(store, context, draft_fact("user: Sonnenblume", data=data))
    assert places_of_findings((await scan(store)).findings) == [(1, "data.value", "password")]


async def test_offsets_are_those_of_the_field(store: Handle) -> None:
    context = await create_log(store, "user_123")
    await append_drafts(
        store, context, draft_message("write to ann@example.com", metadata={"password": "swordfish"})
    )
    first, second = (await scan(store)).findings
    assert "write to ann@example.com"[first.start : first.end] == "ann@example.com"
    assert "swordfish"[second.start : second.end] == "swordfish"


async def test_logs_are_read_a_page_at_a_time_and_counted_to_the_end(store: Handle) -> None:
    context = await create_log(store, "user_123")
    await append_drafts(
        store, context, *(draft_message(f"number {n}, mail user{n}@example.com") for n in range(250))
    )
    told: list[tuple[int, int]] = []

    def tell(done: int, total: int) -> None:
        told.append((done, total))

    done = await scan(store, context=context, limit=3, progress=tell)
    assert [one.version for one in done.findings] == [1, 2, 3]
    assert (done.entries, done.found, done.affected) == (250, 250, 250)
    assert told == [(100, 250), (200, 250), (250, 250)]
    assert len((await scan(store, limit=None)).findings) == 250


async def test_what_a_fork_inherited_is_found_once_or_with_the_fork_alone(store: Handle) -> None:
    async with ACMS("user_123", store) as session:
        await session.ingest("user", "mail ann@example.com")
        fork = await session.fork(session_id="try")
        async with fork:
            await fork.ingest("user", "mail bob@example.com")
    whole = await scan(store)
    assert (whole.contexts, whole.found) == (2, 2)
    assert {(one.session, one.version) for one in whole.findings} == {("user_123", 1), ("try", 2)}
    alone = await scan(store, context=await store.context("try"))
    assert [(one.session, one.version) for one in alone.findings] == [("user_123", 1), ("try", 2)]


async def test_a_namespace_and_kinds_narrow_a_scan(store: Handle) -> None:
    for namespace in ("default", "work"):
        context = await create_log(store, "user_123", namespace=namespace)
        await append_drafts(store, context, draft_message("mail ann@example.com, password: swordfish"))
    assert (await scan(store)).found == 4
    done = await scan(store, namespace="work", kinds=["password"])
    assert [(one.namespace, one.kind, one.clear) for one in done.findings] == [("work", "password", True)]


async def test_names_that_are_sensitive_are_not_told(store: Handle) -> None:
    context = await create_log(store, "ann@example.com", namespace="bob@example.com")
    await append_drafts(store, context, draft_message("mail carl@example.com"))
    (one,) = (await scan(store)).findings
    assert (one.session, one.namespace) == (context.id, "[REDACTED: email]")


async def test_deleted_sessions_are_read_and_what_was_erased_is_not_found(store: Handle) -> None:
    context = await create_log(store, "user_123")
    await append_drafts(
        store, context, draft_message("mail ann@example.com"), draft_message("mail bob@example.com")
    )
    await store.settings(context.id, {"deleted": True}, rev=context.settings_rev)
    first, second = (await scan(store)).findings
    assert first.session == context.id
    await erase.erase_entries(store, first.session, [first.entry])
    assert (await scan(store)).findings == (second,)


async def test_wrong_arguments_are_named(store: Handle) -> None:
    context = await create_log(store, "user_123")
    with pytest.raises(ValidationError, match="not passwords") as wrong:
        await scan(store, kinds=["passwords"])
    assert wrong.value.field == "kinds"
    with pytest.raises(ValidationError, match="not both"):
        await scan(store, context=context, namespace="default")


async def test_facts_and_summaries_are_named_as_what_they_are(store: Handle) -> None:
    context = await create_log(store, "user_123")
    await append_drafts(store, context, draft_message("hello"), draft_fact("mail ann@example.com", data={}))
    await append_drafts(store, context, draft_summary(1, 1, content="the mail is bob@example.com"))
    assert [one.entry_kind for one in (await scan(store)).findings] == [Kind.FACT, Kind.SUMMARY]


def test_every_kind_is_named_in_the_guide() -> None:
    guide = Path(__file__).parents[2] / "docs" / "how-to" / "privacy-scan.md"
    named = set(re.findall(r"`([a-z_]+)`", guide.read_text(encoding="utf-8")))
    assert set(KINDS) <= named
