"""Pins in a shell: what every prompt of a namespace shows."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from acms import ACMS, open_storage
from acms.cli.commands import app
from acms.kv import RedisKV, open_kv
from acms.pins import PinnedKV, create_pin_registry
from acms.prompt.pin_index import INDEX_KEY
from acms.providers.tokens import default_counter


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("ACMS_DEBUG", "ACMS_KV", "NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ACMS_DB", f"sqlite:///{tmp_path / 'log.db'}")


@pytest.fixture
def everywhere(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a test on each store that outlives its handles."""
    monkeypatch.setenv("ACMS_DB", url)


def run(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == code, (result.output, result.exception)
    assert "Traceback" not in result.output
    return result


def call(*arguments: str) -> dict[str, Any]:
    return json.loads(run(*arguments, "--json").stdout)


def refused(*arguments: str, code: int = 1) -> dict[str, Any]:
    return json.loads(run(*arguments, "--json", code=code).stderr)["error"]


@pytest.mark.usefixtures("everywhere")
def test_what_is_pinned_is_listed_in_order() -> None:
    made = call(
        "pin", "user:123", "profile", "--label", "User profile", "--priority", "10", "--tag", "person", "--tag", "ui",
        "--role", "user", "--json-value", '{"z": 1, "a": "Sam"}',
    )  # fmt: skip
    assert made["pin"].pop("updated_at") > 1_700_000_000_000
    assert made == {
        "namespace": "user:123",
        "pin": {
            "key": "profile", "label": "User profile", "role": "user", "priority": 10, "tags": ["person", "ui"],
        },
        "missing": False,
    }  # fmt: skip
    run("pin", "user:123", "rules", "--priority", "2.5")
    run("pin", "user:123", "style", "--value", "Be brief.\nBe kind.")
    listed = call("pin", "list", "user:123")
    assert [(one["order"], one["key"], one["missing"]) for one in listed["pins"]] == [
        (1, "profile", False),
        (2, "rules", True),
        (3, "style", False),
    ]
    count = default_counter().count
    style = "- style\n  Be brief.\n  Be kind."
    profile = '- profile (User profile)\n  {"z":1,"a":"Sam"}'
    assert [one["tokens"] for one in listed["pins"]] == [count(profile), None, count(style)]
    assert listed["tokens"] == count(f"Pinned context:\n{profile}\n{style}")

    lines = run("pin", "list", "user:123").stdout.splitlines()
    assert lines[0].split() == ["value", "key", "tokens", "label", "priority", "tags", "pinned", "order"]
    assert '{"z":1,"a":"Sam"}' in lines[1]
    assert lines[2].split()[:3] == ["(missing)", "rules", "2.5"]
    assert lines[3].startswith("Be brief. Be kind.")
    assert lines[4].startswith(f"2 shown, {listed['tokens']} tokens")


@pytest.mark.usefixtures("everywhere")
def test_what_the_shell_pins_a_prompt_shows_and_the_log_beside_it_is_untouched() -> None:
    async def told() -> None:
        async with ACMS("orders", open_storage(os.environ["ACMS_DB"])) as session:
            await session.ingest("user", "hello")

    async def shown() -> str:
        async with open_kv(os.environ["ACMS_DB"]) as store:
            scope = await PinnedKV(store=store, namespace="user:123").render()
        (message,) = scope.children
        return message.opening + message.separator.join(piece.text for piece in message.pieces)

    asyncio.run(told())
    assert "nothing is stored under it yet" in run("pin", "user:123", "style").stdout
    assert "Answer in German." in run("pin", "user:123", "style", "--value", "Answer in German.").stdout
    assert asyncio.run(shown()) == "Pinned context:\n- style\n  Answer in German."
    assert call("sessions", "stats", "orders")["messages"] == 1


def test_unpin_keeps_the_value() -> None:
    run("pin", "user:123", "style", "--value", "Be brief.")
    assert call("pin", "remove", "user:123", "style") == {
        "namespace": "user:123",
        "key": "style",
        "unpinned": True,
    }
    assert call("pin", "remove", "user:123", "style")["unpinned"] is False
    assert "was not pinned" in run("pin", "remove", "user:123", "style").stdout
    assert "nothing is pinned in 'user:123'" in run("pin", "list", "user:123").stdout
    assert "Be brief." in run("pin", "user:123", "style").stdout
    assert "stays" in run("pin", "remove", "user:123", "style").stdout


def test_pins_may_lie_elsewhere(redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("pin", "user:123", "style", "--value", "Be brief.", "--kv", redis_url)

    async def found() -> list[str]:
        async with RedisKV(redis_url) as store:
            return [pin.key for pin in await create_pin_registry(store, namespace="user:123").list()]

    assert asyncio.run(found()) == ["style"]
    monkeypatch.setenv("ACMS_KV", redis_url)
    assert [one["key"] for one in call("pin", "list", "user:123")["pins"]] == ["style"]
    other = f"sqlite:///{tmp_path / 'other.db'}"
    assert call("pin", "user:123", "rules", "--kv", other)["missing"] is True
    assert [one["key"] for one in call("pin", "list", "user:123", "--kv", other)["pins"]] == ["rules"]


def test_a_tenant_of_shards_has_its_pins_where_its_log_is(tmp_path: Path) -> None:
    shards = tmp_path / "shards.toml"
    shards.write_text(f'[shards]\none = "sqlite:///{tmp_path / "one.db"}"\n\n[tenants]\nacme = "one"\n')
    run("pin", "user:123", "style", "--value", "Be brief.", "--db", f"{shards}?tenant=acme")
    with_file = f"sqlite:///{tmp_path / 'one.db'}?tenant="
    assert [one["key"] for one in call("pin", "list", "user:123", "--db", f"{with_file}acme")["pins"]] == [
        "style"
    ]
    assert call("pin", "list", "user:123", "--db", f"{with_file}other")["pins"] == []


def test_the_options_of_a_log_store_are_no_obstacle(tenant_url: str) -> None:
    with_options = f"{tenant_url}&pool_size=2&durability=disk"
    run("pin", "user:123", "style", "--value", "Be brief.", "--db", with_options)
    assert [one["key"] for one in call("pin", "list", "user:123", "--db", tenant_url)["pins"]] == ["style"]


def test_the_file_in_the_data_folder_is_made_by_who_pins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ACMS_DB")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr("sys.platform", "linux")
    for words in (["pin", "list", "user:123"], ["pin", "remove", "user:123", "style"]):
        error = refused(*words)
        assert error["code"] == "STORAGE"
        assert error["options"]
    assert not (tmp_path / "data").exists()
    run("pin", "user:123", "style", "--value", "Be brief.")
    assert [one["key"] for one in call("pin", "list", "user:123")["pins"]] == ["style"]


def test_what_another_program_stored_is_shown_as_far_as_it_can_be() -> None:
    async def theirs() -> None:
        async with open_kv(os.environ["ACMS_DB"]) as store:
            pins = {"a\n\x1b[31m": {"label": "red\x1b[0m", "updatedAt": 9e15}}
            await store.set(f"{INDEX_KEY}:user:123", {"version": 1, "pins": pins, "updatedAt": 1})
            await store.set("a\n\x1b[31m", "\x1b[2Jgone")

    asyncio.run(theirs())
    shown = run("pin", "list", "user:123").stdout
    assert "\x1b" not in shown
    assert "9000000000000000" in shown


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (("pin", " ", "style"), "namespace"),
        (("pin", "user:123", ""), "key"),
        (("pin", "user:123", f"{INDEX_KEY}:user:123"), "key"),
        (("pin", "user:123", "style", "--label", "two\nlines"), "label"),
        (("pin", "user:123", "style", "--role", "boss"), "role"),
        (("pin", "user:123", "style", "--priority", "nan"), "priority"),
        (("pin", "user:123", "style", "--json-value", "NaN"), "data"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_field(words: tuple[str, ...], field: str) -> None:
    error = refused(*words, code=2 if field in ("label", "role", "priority") else 1)
    assert (error["code"], error["field"]) == ("VALIDATION", field)


def test_wrong_usage_is_told_before_anything_is_opened() -> None:
    for words in (
        ("pin", "user:123", "style", "--json-value", "{"),
        ("pin", "user:123", "style", "--json-value", "1", "--value", "1"),
        ("pin", "user:123"),
        ("pin", "list"),
        ("pin", "remove", "user:123"),
    ):
        run(*words, code=2)
    assert refused("pin", "list", "user:123", "--kv", "mysql://host", code=2)["field"] == "kv"


def test_a_store_in_memory_is_refused() -> None:
    for option in ("--db", "--kv"):
        error = refused("pin", "user:123", "style", "--value", "x", option, "memory://", code=2)
        assert "a store in memory ends with this command" in error["message"]
