"""Readers of events and of webhooks, while the processes that tell them are killed.

pytest -m faults tests/faults/test_events.py      the long run: 30 kills
"""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import pytest

from acms.results import LogEvent
from acms.sync import Client

from ._service import Crowd, Service, contexts, service


class Reader:
    """Follows a log in a thread of its own, by a client that is never told of a kill."""

    def __init__(self, where: Service, context: str) -> None:
        self._url, self._context = where.url, context
        self._ends = threading.Event()
        self.found: list[LogEvent] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with Client(self._url) as client:
            for event in client.session(self._context).events():
                self.found.append(event)
                if self._ends.is_set():
                    return

    def versions(self, upto: int) -> list[int]:
        """Return the versions that it was told, once it was told of the last one."""
        ends, told = time.monotonic() + 60, list[int]()
        while time.monotonic() < ends:
            told = [one.entry.version for one in list(self.found) if one.entry is not None]
            if told and told[-1] >= upto:
                self._ends.set()
                return told
            time.sleep(0.02)
        raise AssertionError(f"only {len(told)} of {upto} were told")


def killing(path: Path, kills: int) -> None:
    """Kill a service that streams again and again; each reader is told each entry once, in order."""
    rng = random.Random(kills)
    with service(f"sqlite:///{path}") as one:
        ids = contexts(one, 3)
        readers = [Reader(one, id) for id in ids]
        crowd = Crowd(one, ids)
        for _ in range(kills):
            crowd.wait(rng.randrange(20, 60))
            crowd.pause()
            one.kill()
            one.start()
            crowd.resume()
        crowd.wait(20)
        crowd.end()
        for id, reader in zip(ids, readers, strict=True):
            last = len(crowd.ledger[id])
            assert reader.versions(last) == list(range(1, last + 1))
        began = time.monotonic()
        assert one.stop() == 0
        assert time.monotonic() - began < 5, "streams keep a service from stopping"
    print(f"{kills} kills, {crowd.acknowledged} messages: each was told once to each reader")


def test_a_reader_misses_nothing_and_is_told_nothing_twice_when_the_service_is_killed(tmp_path: Path) -> None:
    killing(tmp_path / "log.db", 1)


@pytest.mark.faults
def test_thirty_kills_leave_no_gap_in_a_stream(tmp_path: Path) -> None:
    killing(tmp_path / "log.db", 30)
