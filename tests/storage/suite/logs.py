"""Logs with everything in them, and helpers for calls that are refused."""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine, Iterable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

from acms import Kind, Media, Origin, Privacy, Raw, Reasoning, Role, Text, ToolCall, ToolResult
from acms.model import Context, Draft, Head
from acms.ports import StorageBackend
from acms.testing.logs import (
    WHEN,
    append_drafts,
    create_log,
    draft_fact,
    draft_message,
    draft_retraction,
    draft_summary,
    fork_log,
)


def settled(head: Head) -> tuple[object, ...]:
    """Return what a restored head has in common with the one that was exported."""
    return head.version, head.messages, head.tokens, head.last_message, head.chain


async def is_refused(call: Awaitable[object], *errors: type[Exception]) -> bool:
    """Return whether a call was refused with one of some errors; any other error is raised."""
    try:
        await call
    except errors:
        return True
    return False


async def all_refused(calls: Iterable[Coroutine[Any, Any, object]], *errors: type[Exception]) -> None:
    """Assert that every call is refused with one of some errors."""
    waiting = list(calls)
    try:
        for number, call in enumerate(waiting):
            assert await is_refused(call, *errors), f"call {number} was accepted"
    finally:
        for call in waiting:
            call.close()


async def mixed(store: StorageBackend) -> tuple[Context, Context]:
    """Write a log with every kind of entry and a fork of it at version 7 that went on; return both."""
    parent = await create_log(store, "mixed")
    await append_drafts(store, parent, draft_message("one"), draft_message("two"), draft_fact("three"))
    await append_drafts(store, parent, draft_message("four", replaces=((1, 1),)))
    await append_drafts(store, parent, draft_summary(1, 2), draft_message("six"))
    await append_drafts(
        store,
        parent,
        draft_retraction(5),
        Draft(kind=Kind.EPISODE, created_at=WHEN, covers=(1, 6), closes="manual"),
    )
    await append_drafts(store, parent, draft_message("nine"))
    child = await fork_log(store, parent, 7)
    await append_drafts(
        store, child, draft_message("eight of the child"), draft_fact("nine of the child", replaces=((3, 3),))
    )
    await append_drafts(
        store,
        child,
        draft_message("ten of the child"),
        draft_summary(4, 8),
        draft_message("twelve of the child"),
    )
    return parent, child


def every_draft() -> list[Draft]:
    """Return drafts that between them use every field, every part, and values near every limit."""
    return [*_message_drafts(), *_part_drafts(), *_record_drafts()]


def _message_drafts() -> list[Draft]:
    """Return messages of plain text, with every label a message can have."""
    return [
        draft_message(""),
        draft_message("plain"),
        draft_message(
            "\u202eright to left \u0645\u0631\u062d \U0001f469\u200d\U0001f680 e\u0301 \ufeff \r\n\t\x01 \u2028"
        ),
        draft_message("".join(chr(0x4E00 + n % 20_000) for n in range(300_000))),
        draft_message("first of all times", created_at=datetime(1, 1, 1, tzinfo=UTC)),
        draft_message("before the epoch", created_at=datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)),
        draft_message(
            "last of all times", created_at=datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
        ),
        draft_message(
            "elsewhere", created_at=datetime(2026, 3, 1, 0, 30, 0, 1, tzinfo=timezone(timedelta(hours=14)))
        ),
        draft_message("dear", tokens=2**40),
        draft_message("", role=None, tokens=0),
        *(
            draft_message(role.value, role=role, origin=origin)
            for role, origin in zip(Role, Origin, strict=False)
        ),
        *(draft_message(level.value, privacy=level, origin=Origin.DERIVED) for level in Privacy),
        draft_message(
            "marked",
            markers=("decision", "custom:a.b-c"),
            detected=True,
            actor="Ana \u00d1",
            episode=7,
            closes="x",
        ),
        draft_message("keyed", key="k \U0001f511 ' \" %"),
    ]


def _part_drafts() -> list[Draft]:
    """Return messages of every kind of part."""
    return [
        Draft(
            content="look\nlookup({})",
            created_at=WHEN,
            role=Role.ASSISTANT,
            origin=Origin.ASSISTANT,
            group="g1",
            parts=(
                Text("look"),
                Text(""),
                Reasoning("because", None),
                Reasoning("", "sig=="),
                ToolCall("call 1", "lookup", "{}"),
                ToolCall("call 1", "lookup", '{"not": json, \u00fc'),
            ),
        ),
        Draft(
            content="42",
            created_at=WHEN,
            role=Role.TOOL,
            origin=Origin.TOOL,
            group="g1",
            parts=(
                ToolResult("call 1", "42"),
                ToolResult("call 1", "", is_error=True),
                Text("42"),
                Text("43"),
            ),
        ),
        Draft(
            content="",
            created_at=WHEN,
            role=Role.USER,
            origin=Origin.EXTERNAL,
            parts=(
                Media("image/png", "https://example.com/\u00fc.png", "ab" * 32, 1105),
                Media("a/b", ""),
                Raw("vendor", '{"keys": "in\\u0020 this order",   "b":1, "a" : 2}'),
            ),
        ),
    ]


def _record_drafts() -> list[Draft]:
    """Return a message with data and metadata, and an entry of every other kind."""
    return [
        draft_message(
            "nested",
            data={"null": None, "list": [1, [2.5, {"x": []}], True], "big": 2**63 - 1, "small": -(2**63)},
            metadata={
                "\u00fc": "\U0001f600",
                "": "",
                "float": 1e308,
                "tiny": 5e-324,
                "zero": -0.0,
                "b": False,
            },
        ),
        draft_fact("cites", sources=("m_abc_1_000000", "elsewhere"), privacy=Privacy.REDACT),
        draft_summary(1, 3),
        draft_retraction(4, 6, 7),
        Draft(kind=Kind.EPISODE, created_at=WHEN, covers=(1, 2), closes="manual", content="the start"),
    ]
