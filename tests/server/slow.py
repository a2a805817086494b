"""A change that has been committed and takes its time until it is acknowledged."""

from __future__ import annotations

import asyncio

import pytest

from acms.model import Embedded
from acms.write.queue import AppendResult, Writer


class Slow:
    """What a session does behind a commit ends when it may."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.may = asyncio.Event()
        self.may.set()
        self.asked = asyncio.Event()
        note, index = Writer.note, Writer.index

        def noted(writer: Writer, context: str, delivered: AppendResult) -> bool:
            note(writer, context, delivered)
            return True

        async def indexed(writer: Writer, context: str, delivered: AppendResult) -> Embedded:
            self.asked.set()
            await self.may.wait()
            return await index(writer, context, delivered)

        patch.setattr(Writer, "note", noted)
        patch.setattr(Writer, "index", indexed)
