"""A pytest plugin for the tests of the OpenAI Agents SDK's SQLite session: an `ACMSSession` where they make theirs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import agents
import agents.memory

from acms import open_storage
from acms.integrations.openai_agents import ACMSSession


class SQLiteSession(ACMSSession):
    """An `ACMSSession` that is made and closed as theirs is."""

    def __init__(self, session_id: str, db_path: str | Path = ":memory:", **options: Any) -> None:
        url = "memory://" if str(db_path) == ":memory:" else f"sqlite:///{db_path}"
        super().__init__(session_id, open_storage(url), embedder=None, **options)

    def close(self) -> None:  # type: ignore[override]  # theirs blocks
        self._closing = asyncio.ensure_future(super().close())


agents.SQLiteSession = SQLiteSession  # type: ignore[misc]
agents.memory.SQLiteSession = SQLiteSession  # type: ignore[misc]
