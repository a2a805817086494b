"""A pytest plugin for the tests of LangGraph's SQLite stores: an `ACMSStore` on a file where they open theirs."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import langgraph.store.sqlite

from acms.integrations.langgraph import ACMSStore
from acms.kv import open_kv


def _make_store(kind: type[ACMSStore], path: str, index: dict[str, Any] | None) -> Any:
    options = index and {**index, "fields": index.get("text_fields")}
    return kind(open_kv("memory://" if path == ":memory:" else f"sqlite:///{path}"), index=options)


class SqliteStore(ACMSStore):
    """An `ACMSStore` that is opened as theirs is."""

    @classmethod
    @contextmanager
    def from_conn_string(cls, path: str, index: dict[str, Any] | None = None) -> Generator[Any]:
        yield _make_store(cls, path, index)

    def setup(self) -> None:
        """Do nothing: the first use makes the table."""


class AsyncSqliteStore(ACMSStore):
    """An `ACMSStore` that is opened as theirs is."""

    @classmethod
    @asynccontextmanager
    async def from_conn_string(cls, path: str, index: dict[str, Any] | None = None) -> AsyncGenerator[Any]:
        store = _make_store(cls, path, index)
        yield store
        await store.kv.aclose()

    async def setup(self) -> None:
        """Do nothing: the first use makes the table."""


langgraph.store.sqlite.SqliteStore = SqliteStore
langgraph.store.sqlite.AsyncSqliteStore = AsyncSqliteStore
