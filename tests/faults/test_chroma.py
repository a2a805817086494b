"""A real Chroma server that is stopped, goes on, and is killed: T47 with sockets."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from acms import ACMS
from acms.storage import ChromaVectors, SQLiteStorage
from acms.testing import HashEmbedder

pytestmark = pytest.mark.faults


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[tuple[str, subprocess.Popen[bytes]]]:
    """A server of its own process, listening."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    command = Path(sys.executable).with_name("chroma")
    process = subprocess.Popen(
        [command, "run", "--path", tmp_path / "vectors", "--host", "127.0.0.1", "--port", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(300):
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                except OSError:
                    await asyncio.sleep(0.05)  # nothing tells when a foreign process listens
        yield f"http://127.0.0.1:{port}", process
    finally:
        process.kill()
        process.wait()


async def test_t47_recall_answers_whatever_becomes_of_the_server(
    tmp_path: Path, server: tuple[str, subprocess.Popen[bytes]]
) -> None:
    url, process = server
    inner = SQLiteStorage(tmp_path / "a.db")

    async def coverage(seconds: float = 60) -> float:
        async with ACMS("talk", ChromaVectors(inner, url=url, timeout=seconds), HashEmbedder()) as session:
            items = await session.recall("Which queue for invoices?", token_budget=100)
            assert any("RabbitMQ" in item.content for item in items)
            return items.coverage

    async with inner:
        async with ACMS("talk", ChromaVectors(inner, url=url, timeout=60), HashEmbedder()) as session:
            for text in ("Decision: invoices go through RabbitMQ.", "Lunch is at noon.", "The cat sleeps."):
                await session.ingest("user", text)
        assert await coverage() == 1
        process.send_signal(signal.SIGSTOP)
        assert await coverage(1) == 0
        async with ACMS("talk", ChromaVectors(inner, url=url, timeout=0.2), HashEmbedder()) as session:
            await session.ingest("user", "Decision: payroll goes by RabbitMQ too.")
        process.send_signal(signal.SIGCONT)
        async with ACMS("talk", ChromaVectors(inner, url=url, timeout=60), HashEmbedder()) as session:
            await session.recall("RabbitMQ", token_budget=100)
            await session.wait_pending()
        assert await coverage() == 1
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert await coverage(1) == 0
