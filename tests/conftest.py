"""What every test may ask for."""

from __future__ import annotations

import fcntl
import gc
import os
import sys
from collections.abc import Generator, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from zlib import crc32

import httpcore2
import pytest
from httpx2._config import DEFAULT_TIMEOUT_CONFIG
from hypothesis import settings

from acms import compose

ROOT = Path(__file__).parent.parent

# Images of containers often forbid compiled modules. The workers and the hundreds of processes that tests start would
# each compile every module that they import, which took a third of the run.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

pytest_plugins = ["tests.servers.fixtures", "tests.servers.stores", "tests.support.fixtures"]

# Before any test imports a part of it: pytest explains failed assertions only of what it loads itself.
pytest.register_assert_rewrite("acms.testing", "tests.storage.suite")

# Every run tries the same few examples; many new ones with `pytest --hypothesis-profile=random`.
settings.register_profile(
    "fixed", deadline=None, max_examples=20, print_blob=True, derandomize=True, database=None
)
settings.register_profile("random", deadline=None, max_examples=200, print_blob=True)
settings.load_profile("fixed")


# A test that ranks by meaning names its embedder; all others rank by words, also in processes they start.
os.environ["ACMS_EMBEDDER"] = "none"
os.environ.pop("COLUMNS", None)  # workers of a parallel run have a terminal's; a pipe has none


STORES = ("sqlite", "postgres", "memory")
"""Stores that promise the same, which tests/storage holds them to."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Say on how many stores a test runs that holds on each."""
    parser.addoption(
        "--stores", choices=("one", "every"), default="one",
        help="What holds on every store is tried on one of them, SQLite or PostgreSQL, or on every one.",
    )  # fmt: skip
    parser.addoption(
        "--data", metavar="FOLDER", help="The folder of real conversations, for `-m data`; else $ACMS_DATA."
    )


def pytest_configure(config: pytest.Config) -> None:
    """Let golden outputs, which are also recorded without pytest, find the conversations."""
    if folder := config.getoption("data"):
        os.environ["ACMS_DATA"] = str(Path(folder).resolve())


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Choose the tests: mark those that read real conversations; leave out repeated ones and those that lack a package.

    A test that holds on every store is left to one of them, which its name decides; all are tried in tests/storage.
    """
    for item in items:
        if "data_dir" in getattr(item, "fixturenames", ()):
            item.add_marker("data")
    _leave_out(config, items, [item for item in items if not _is_installed(item)])
    if config.getoption("stores") == "every" or any("::" in argument for argument in config.args):
        return
    stores: dict[str, list[str]] = {}
    for item in items:
        if found := _store_of_test(item):
            stores.setdefault(found[0], []).append(found[1])
    left = [
        item
        for item in items
        if (found := _store_of_test(item)) and found[1] != _chosen_store(found[0], stores[found[0]])
    ]
    _leave_out(config, items, left)


def _leave_out(config: pytest.Config, items: list[pytest.Item], left: list[pytest.Item]) -> None:
    """Deselect some tests."""
    config.hook.pytest_deselected(items=left)
    gone = set(map(id, left))
    items[:] = [item for item in items if id(item) not in gone]


def _is_installed(item: pytest.Item) -> bool:
    """Return whether the packages are there that a test needs beside those of the default environment."""
    return all(find_spec(mark.args[0]) for mark in item.iter_markers("needs"))


def _store_of_test(item: pytest.Item) -> tuple[str, str] | None:
    """Return the name of a test without its store, and the store; None where it has none or is about stores."""
    folder, _, name = item.nodeid.partition("[")
    named = [one for one in name.rstrip("]").split("-") if one in STORES]
    if folder.startswith(("tests/storage/", "tests/faults/")) or len(named) != 1:
        return None
    return f"{folder}[{name.replace(named[0], chr(42), 1)}", named[0]


def _chosen_store(name: str, stores: list[str]) -> str:
    """Return the store a test is left to: PostgreSQL, which costs three times as much as SQLite, for one in four."""
    if {"sqlite", "postgres"} <= {*stores}:
        return "sqlite" if crc32(name.encode()) % 4 else "postgres"
    lasting = [one for one in stores if one != "memory"] or stores
    return min(lasting)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Let one worker collect before the others: it compiles every test module, and they find them compiled."""
    with open(__file__) as ours:
        try:
            fcntl.flock(ours, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(ours, fcntl.LOCK_SH)
        return (yield)


def pytest_collection_finish() -> None:
    """Let the garbage collector pass over thousands of collected tests: some tests call it, and each call reads all."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _no_model() -> Iterator[None]:
    """Let `embedder="auto"` be no model, whatever is installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compose, "default_embedder", lambda: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _patient_clients() -> Iterator[None]:
    """Let clients that say nothing else wait a minute for a service, which shares the machine with other tests."""
    with pytest.MonkeyPatch.context() as patch:
        for what in ("connect", "read", "write", "pool"):
            patch.setattr(DEFAULT_TIMEOUT_CONFIG, what, 60.0)
        yield


@pytest.fixture(scope="session", autouse=True)
def _certificates_read_once() -> Iterator[None]:
    """Let all clients share the certificates of the system: reading them takes each of hundreds of clients 30 ms."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(httpcore2, "default_ssl_context", cache(httpcore2.default_ssl_context))
        yield


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Async tests run on asyncio, the one loop ACMS promises."""
    return "asyncio"


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real conversations: that of `--data`, or shared/data beside the repository."""
    folder = Path(os.environ.get("ACMS_DATA") or ROOT.parent / "shared" / "data")
    if not folder.is_dir():
        pytest.fail(
            f"There are no conversations in {folder}. Run: pytest -m data --data FOLDER", pytrace=False
        )
    return folder
