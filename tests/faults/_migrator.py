"""A process that upgrades files and is killed while doing so, started by `_process.py`.

Per line of stdin, PATH WHAT NTH OTHERS, it forks one process that opens the file and kills itself before the n-th SQL
statement (WHAT is "statement") or at the n-th call that changes a file ("file"), and some others that open the file at
the same moment and write one message each; the answer is their exit codes. It never opens a file itself, so forking is
safe, and a kill costs milliseconds instead of the start of an interpreter.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import apsw

from acms.storage import SQLiteStorage

from ._vfs import FaultyVFS
from ._work import append_keys, shared_contexts


def _kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _before_statement(nth: int) -> None:
    left = nth

    def trace(_cursor: apsw.Cursor, _statement: str, _bindings: object) -> bool:
        nonlocal left
        left -= 1
        if left == 0:
            _kill_self()
        return True

    def hook(connection: apsw.Connection) -> None:
        connection.exec_trace = trace

    apsw.connection_hooks.append(hook)


async def _open_file(path: str, key: str | None) -> None:
    async with SQLiteStorage(path) as storage:
        if key is not None:
            (context,) = await shared_contexts(storage, 1)
            await append_keys(storage, context, key)


def _run_process(number: int, path: str, what: str, nth: int, start: int) -> None:
    """Be one of the processes, from the moment at which all of them start."""
    os.read(start, 1)
    faults = FaultyVFS()
    if number == 0 and what == "statement":
        _before_statement(nth)
    elif number == 0:
        faults.arm({"open", "write", "sync", "truncate", "delete"}, nth, _kill_self)
    asyncio.run(_open_file(path, f"key-{number}" if number else None))


def answer_lines() -> None:
    """Answer one line after the other."""
    for line in sys.stdin:
        path, what, nth, others = line.split()
        start, go = os.pipe()
        children: list[int] = []
        for number in range(1 + int(others)):
            child = os.fork()
            if child == 0:
                os.close(go)
                code = 1
                try:
                    _run_process(number, path, what, int(nth), start)
                    code = 0
                finally:
                    os._exit(code)
            children.append(child)
        os.close(go)  # all of them read its end at once
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        os.close(start)
        print(*codes, flush=True)


if __name__ == "__main__":
    answer_lines()
