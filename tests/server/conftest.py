"""Services for the tests of the HTTP service."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.server.document import checked_by_document
from tests.server.serving import OPEN, Service, serving


@pytest.fixture(scope="module", params=["memory", "sqlite", "postgres"])
def service(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service over each kind of store, one for all tests of a module: what they make must not meet.

    What the first one answers is held against the document.
    """
    url, config = "memory://", OPEN
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path_factory.mktemp('service') / 'log.db'}"
    elif request.param == "postgres":
        url = request.getfixturevalue("postgres_home")
        config = replace(OPEN, tenant=f"t-{secrets.token_hex(6)}")
    with serving(url, config) as running:
        yield checked_by_document(running) if request.param == "memory" else running


@pytest.fixture(scope="module")
def sqlite_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service over SQLite, for what does not depend on the store."""
    with serving(f"sqlite:///{tmp_path_factory.mktemp('service') / 'log.db'}") as running:
        yield running
