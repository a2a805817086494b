"""What something else than ACMS did to a store, or to its witness, is noticed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest
from typer.testing import CliRunner

from acms.cli.commands import app


def run_command(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == code, (result.output, result.exception)
    return result.stdout


@pytest.fixture
def change(url: str, tmp_path: Path) -> Callable[[str], None]:
    """Run a statement in the database, past ACMS."""

    def work(statement: str) -> None:
        if url.startswith("postgresql"):
            database, _, tenant = url.partition("?tenant=")
            with psycopg.connect(database) as connection:
                connection.execute("SET search_path TO acms")
                changed = connection.execute(f"{statement} AND tenant_id LIKE '%{tenant}'".encode()).rowcount
        else:
            file = apsw.Connection(url.removeprefix("sqlite:///"))
            file.execute(statement).fetchall()
            changed = file.changes()
            file.close()
        assert changed

    return work


@pytest.fixture
def db(url: str) -> str:
    run_command("add", "salaries", "user", "Ana earns 9000", "--namespace", "hr", "--db", url)
    run_command("fork", "salaries", "--as", "aside", "--namespace", "hr", "--db", url)
    run_command("tag", "salaries", "approved", "--namespace", "hr", "--db", url)
    run_command("verify", "--db", url)
    return url


TAMPERED = {
    "namespace": "UPDATE contexts SET namespace = 'public' WHERE key = 'salaries'",
    "name": "UPDATE contexts SET key = 'lunch' WHERE key = 'salaries'",
    "tag": "UPDATE contexts SET settings = replace(settings, 'approved', 'rejected') WHERE key = 'salaries'",
    "fork point": "UPDATE contexts SET fork = 0, lineage = '[]' WHERE key = 'aside'",
    "hidden": "UPDATE contexts SET deleted_at = NULL, key = 'aside', namespace = 'public' WHERE key = 'aside'",
    "counter": "UPDATE contexts SET counter = 'another' WHERE key = 'salaries'",
}
"""What `verify` finds by itself."""


@pytest.mark.parametrize("what", TAMPERED)
def test_a_session_that_was_changed_behind_acms_is_noticed(
    db: str, change: Callable[[str], None], what: str, tmp_path: Path
) -> None:
    run_command("witness", str(tmp_path / "w"), "--db", db)
    change(TAMPERED[what])
    assert "changed by something else than ACMS" in run_command("verify", "--db", db, code=1)
    told = run_command("verify", "--witness", str(tmp_path / "w"), "--db", db, code=1)
    assert "witness:" in told


def test_a_change_of_settings_does_not_hide_it(db: str, change: Callable[[str], None]) -> None:
    change(TAMPERED["namespace"])
    run_command("tag", "salaries", "later", "--namespace", "public", "--db", db)
    assert "changed by something else than ACMS" in run_command("verify", "--db", db, code=1)


def test_a_wrong_fork_tree_is_noticed(db: str, change: Callable[[str], None]) -> None:
    if db.startswith("postgresql"):
        change("UPDATE contexts SET root = context_id WHERE key = 'aside'")
    else:
        change("UPDATE contexts SET root = ref WHERE key = 'aside'")
    assert "is listed in the fork tree of" in run_command("verify", "--db", db, code=1)


def test_what_was_stored_before_there_were_seals_verifies(db: str, change: Callable[[str], None]) -> None:
    change("UPDATE contexts SET settings = NULL WHERE key = 'aside'")
    change("UPDATE contexts SET settings = '{\"name\": \"Pay\"}' WHERE key = 'salaries'")
    run_command("verify", "--db", db)
    run_command("tag", "salaries", "later", "--namespace", "hr", "--db", db)
    run_command("verify", "--db", db)
    change(TAMPERED["namespace"])
    run_command("verify", "--db", db, code=1)


def test_what_acms_does_to_a_session_is_no_finding(db: str, tmp_path: Path) -> None:
    witness = str(tmp_path / "w")
    run_command("witness", witness, "--db", db)
    run_command("tag", "salaries", "later", "--namespace", "hr", "--db", db)
    run_command("copy", db, f"sqlite:///{tmp_path / 'other.db'}", "--verify")
    run_command("delete", "aside", "--namespace", "hr", "--yes", "--db", db)
    run_command("verify", "--witness", witness, "--db", db)
    run_command("verify", "--db", f"sqlite:///{tmp_path / 'other.db'}")
    run_command("witness", witness, "--db", db)
    run_command("verify", "--witness", witness, "--db", db)


def test_settings_that_were_rolled_back_with_their_seal_show_beside_the_witness(
    db: str, change: Callable[[str], None], tmp_path: Path
) -> None:
    """Anyone who knows the format can forge a seal; the witness knows the revision."""
    if db.startswith("postgresql"):
        pytest.skip("a file is kept as it was")
    file = apsw.Connection(db.removeprefix("sqlite:///"))
    ((before,),) = file.execute("SELECT settings FROM contexts WHERE key = 'salaries'")
    file.close()
    run_command("tag", "salaries", "later", "--namespace", "hr", "--db", db)
    run_command("witness", str(tmp_path / "w"), "--db", db)
    earlier = f"settings = '{before}', settings_rev = settings_rev - 1"
    change(f"UPDATE contexts SET {earlier} WHERE key = 'salaries'")  # noqa: S608
    run_command("verify", "--db", db)
    assert "rolled back" in run_command("verify", "--witness", str(tmp_path / "w"), "--db", db, code=1)


SPOILED: dict[str, tuple[Callable[[list[str], list[str]], list[str]], str]] = {
    "emptied": (lambda now, old: [], "is empty"),
    "cut at its end": (lambda now, old: now[:-1], "has no closing line"),
    "cut at its beginning": (lambda now, old: now[1:], "do not fit its closing line"),
    "without sessions": (lambda now, old: now[-1:], "do not fit its closing line"),
    "edited": (lambda now, old: [one.replace('"hr"', '"it"') for one in now], "do not fit its closing line"),
    "rolled back": (lambda now, old: old, "was rolled back: it is number 1, and the store has recorded 2"),
    "of another store": (lambda now, old: [*now[:-1], _stranger_seal(now[:-1])], "is not one that the store"),
}
"""What was done to a witness, and what is said of it."""


def _stranger_seal(lines: list[str]) -> str:
    from hashlib import sha256

    digest = sha256("\n".join([*lines, json.dumps(["else", 9, None])]).encode()).hexdigest()
    return json.dumps({"witness": "else", "number": 9, "before": None, "digest": digest})


@pytest.mark.parametrize("what", SPOILED)
def test_a_witness_that_was_tampered_with_is_noticed(db: str, tmp_path: Path, what: str) -> None:
    witness = tmp_path / "w"
    run_command("witness", str(witness), "--db", db)
    old = witness.read_text().splitlines()
    run_command("add", "salaries", "user", "Ben earns 8000", "--namespace", "hr", "--db", db)
    run_command("witness", str(witness), "--db", db)
    spoil, said = SPOILED[what]
    lines = spoil(witness.read_text().splitlines(), old)
    witness.write_text("".join(f"{line}\n" for line in lines))
    kept = witness.read_bytes()
    assert said in run_command("verify", "--witness", str(witness), "--db", db, code=1)
    assert said in run_command("witness", str(witness), "--db", db, code=1)
    assert witness.read_bytes() == kept, "it is left as it was"


def test_a_new_witness_says_that_the_store_has_recorded_others(db: str, tmp_path: Path) -> None:
    assert "is new" not in run_command("witness", str(tmp_path / "one"), "--db", db)
    assert "recorded 1 other" in run_command("witness", str(tmp_path / "two"), "--db", db)
    for name in ("one", "two"):
        run_command("verify", "--witness", str(tmp_path / name), "--db", db)


def test_a_witness_whose_record_was_interrupted_is_whole(
    db: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from acms.branches import witness as witnessed

    file = str(tmp_path / "w")
    run_command("witness", file, "--db", db)
    recorded = witnessed.record_witness

    async def interrupted(*_: Any) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(witnessed, "record_witness", interrupted)
    assert CliRunner().invoke(app, ["witness", file, "--db", db]).exit_code != 0
    monkeypatch.setattr(witnessed, "record_witness", recorded)
    run_command("verify", "--witness", file, "--db", db)
    run_command("witness", file, "--db", db)
    run_command("verify", "--witness", file, "--db", db)


def test_a_witness_of_an_earlier_release_is_compared_as_far_as_it_goes(
    db: str, change: Callable[[str], None], tmp_path: Path
) -> None:
    witness = tmp_path / "w"
    run_command("witness", str(witness), "--db", db)
    fields = ("context", "namespace", "session", "version", "chain")
    lines = [json.loads(line) for line in witness.read_text().splitlines()[:-1]]
    old = tmp_path / "old"
    old.write_text("".join(json.dumps({name: one[name] for name in fields}) + "\n" for one in lines))
    change("DELETE FROM kv WHERE key LIKE '%witness%'")
    run_command("verify", "--witness", str(old), "--db", db)
    change(TAMPERED["namespace"])
    assert "the namespace was 'hr' and is 'public'" in run_command(
        "verify", "--witness", str(old), "--db", db, code=1
    )
