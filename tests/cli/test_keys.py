"""Keys and the audit trail from a shell."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from acms.cli.commands import app
from acms.server import ServerConfig, create_app


@pytest.fixture
def db(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'log.db'}"


def ran(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == code, done.output
    return done.output


def told(*words: str) -> Any:
    return json.loads(ran(*words, "--json"))


def test_a_key_is_made_listed_rotated_and_revoked(db: str) -> None:
    made = told("keys", "create", "--tenant", "acme", "--name", "bot", "--expires", "90d", "--db", db)
    id, secret = made["key"]["id"], made["secret"]
    assert secret.startswith(f"acms_{id}_")
    assert made["key"]["scopes"] == [
        "context:append", "context:compact", "context:fork", "context:read", "memory:read", "memory:write",
    ]  # fmt: skip
    rotated = told("keys", "rotate", id, "--overlap", "0s", "--db", db)
    new = rotated["key"]["id"]
    assert rotated["key"]["succeeds"] == id
    told("keys", "revoke", new, "--db", db)
    listed = told("keys", "list", "--tenant", "acme", "--db", db)["keys"]
    assert [(one["id"], one["state"]) for one in listed] == [(id, "expired"), (new, "revoked")]
    assert told("keys", "list", "--tenant", "globex", "--db", db)["keys"] == []
    shown = ran("keys", "list", "--db", db) + ran("keys", "audit", "--tenant", "acme", "--db", db)
    assert id in shown
    assert secret not in shown
    assert secret not in json.dumps(listed)
    noted = told("keys", "audit", "--tenant", "acme", "--limit", "2", "--db", db)["entries"]
    assert [(one["step"], one["operation"]) for one in noted] == [
        ("outcome", "revokeKey"),
        ("intent", "revokeKey"),
    ]
    ran("verify", "@audit", "--namespace", "@acms", "--db", f"{db}?tenant=acme")


def test_a_key_made_in_a_shell_opens_the_service(db: str) -> None:
    secret = told("keys", "create", "--tenant", "acme", "--scopes", "all", "--db", db)["secret"]

    async def work() -> None:
        service = create_app(db, ServerConfig(auth="required"))
        await service.start()
        found = await service.keys.find(f"Bearer {secret}")
        await service.stop()
        assert found is not None
        assert (found.tenant, len(found.scopes)) == ("acme", 8)

    asyncio.run(work())


def test_a_key_is_shown_to_people_with_what_it_is_for(db: str) -> None:
    said = ran("keys", "create", "--tenant", "acme", "--scopes", "context:read, erase", "--db", db)
    assert said.splitlines()[0].startswith("acms_")
    assert "context:read erase" in said
    assert "cannot be shown again" in said


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("create", "--tenant", "acme", "--expires", "soon"), 2),
        (("create", "--tenant", "acme", "--expires", "0d"), 2),
        (("create", "--tenant", "acme", "--scopes", "everything"), 2),
        (("create", "--tenant", "@acms"), 2),
        (("revoke", "00000000"), 1),
        (("rotate", "00000000"), 1),
        (("create",), 2),
    ],
)
def test_what_cannot_be_done_is_told(db: str, words: tuple[str, ...], code: int) -> None:
    ran("keys", "create", "--tenant", "other", "--db", db)
    ran("keys", *words, "--db", db, code=code)


def test_looking_creates_no_file(db: str, tmp_path: Path) -> None:
    for words in (("keys", "list"), ("keys", "revoke", "00000000"), ("keys", "audit")):
        assert "there is no database" in ran(*words, "--db", db, code=1)
    assert list(tmp_path.iterdir()) == []


def test_a_key_is_bound_and_a_namespace_shared_with_it_and_taken_back(db: str) -> None:
    key = told("keys", "create", "--tenant", "acme", "--namespaces", "ben, ben-2", "--db", db)["key"]
    assert key["namespaces"] == ["ben", "ben-2"]
    assert (
        told("keys", "create", "--tenant", "acme", "--namespaces", "", "--db", db)["key"]["namespaces"] == []
    )
    where = ("--tenant", "acme", "--db", db)
    made = told("grants", "add", "ana", key["id"], "--allow", "write", *where)["grant"]
    assert (made["namespace"], made["actions"], made["by"]) == ("ana", ["read", "write"], "")
    assert "oidc:rita may read in 'ana'" in ran("grants", "add", "ana", "oidc:rita", *where)
    listed = ran("grants", "list", "ana", *where)
    assert key["id"] in listed
    assert "oidc:rita" in listed
    assert len(told("grants", "list", *where)["grants"]) == 2
    assert "does not see" in ran("grants", "revoke", "ana", key["id"], *where)
    assert "is not shared with" in ran("grants", "revoke", "ana", key["id"], *where, code=1)
    assert "no key has the id" in ran(
        "grants", "add", "ana", key["id"], "--tenant", "globex", "--db", db, code=1
    )
    noted = told("keys", "audit", "--tenant", "acme", "--limit", "4", "--db", db)["entries"]
    assert noted[0]["operation"] == "revokeGrant"
    assert noted[0]["target"] == {"namespace": "ana", "principal": key["id"]}


def test_access_tokens_take_an_issuer_and_an_audience(db: str) -> None:
    for words in (
        ("--oidc-issuer", "https://login.example.org"),
        ("--oidc-audience", "acms"),
        ("--oidc-claim", "tenant=org"),
    ):
        assert "both --oidc-issuer and --oidc-audience" in ran("serve", *words, "--db", db, code=2)
    both = ("--oidc-issuer", "https://login.example.org", "--oidc-audience", "acms", "--db", db)
    assert "is not tenant=CLAIM" in ran("serve", *both, "--oidc-claim", "org", code=2)
    assert "access tokens need auth='required'" in ran("serve", *both, "--auth", "off", code=2)
    plain = ("--oidc-issuer", "http://login.example.org", "--oidc-audience", "acms", "--db", db)
    assert "must be https" in ran("serve", *plain, code=2)
