"""Stores for sessions, on each of which holds what a flow promises; and a terminal for commands."""

from __future__ import annotations

import functools
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from acms import open_storage
from acms.ports import StorageBackend
from tests.support.talk import Storage


@pytest.fixture(scope="session", autouse=True)
def _commands_built_once() -> Iterator[None]:
    """Cache the command objects built from an application: building them takes four times as long as a command."""
    with pytest.MonkeyPatch.context() as patch:
        with suppress(ImportError):  # where an adapter is tested alone there are no commands
            from typer import testing

            patch.setattr(testing, "_get_command", functools.cache(testing._get_command))
        yield


@pytest.fixture
async def storage(any_url: str) -> AsyncIterator[Storage]:
    """A store that stays open for the whole test, and no longer: sessions that were left open hold it no more."""
    async with open_storage(any_url) as store:
        yield store
    await store.aclose()


class Plain:
    """A third-party store: it has the required methods of every store, and cannot list its spaces."""

    def __init__(self, inner: StorageBackend) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        if name == "spaces":
            raise AttributeError(name)
        return getattr(self._inner, name)


@pytest.fixture
def in_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command as in a terminal of 140 columns, and return its output."""

    def seen(*arguments: str) -> str:
        from acms.cli.commands import app

        monkeypatch.setenv("TERM", "xterm-256color")
        monkeypatch.setenv("COLUMNS", "140")
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        with pytest.raises(SystemExit) as left:
            app(list(arguments))
        shown = capsys.readouterr()
        assert not left.value.code, shown.err
        return shown.out

    return seen
