"""A pytest plugin for the tests of LangGraph's own stores: they make an `ACMSStore` where they name theirs."""

from __future__ import annotations

from typing import Any

import langgraph.store.memory

from acms.integrations.langgraph import ACMSStore
from acms.kv import open_kv


class InMemoryStore(ACMSStore):
    """An `ACMSStore` that is made as theirs is."""

    def __init__(self, **options: Any) -> None:
        super().__init__(open_kv("memory://"), **options)


langgraph.store.memory.InMemoryStore = InMemoryStore
