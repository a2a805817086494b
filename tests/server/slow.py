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
        finish_append = Writer.finish_append

        async def finish_late(writer: Writer, context: str, result: AppendResult) -> Embedded:
            self.asked.set()
            await self.may.wait()
            return await finish_append(writer, context, result)

        patch.setattr(Writer, "finish_append", finish_late)
