"""Hints that name a command keep the store that the running command was given."""

from __future__ import annotations

import re
import shlex
from contextvars import ContextVar

from acms.storage.urls import without_password

SUBCOMMANDS = (
    "add", "answers", "at", "audit", "cascades", "create", "diff", "episodes", "expand", "get", "history", "list",
    "log", "policy", "reflect", "remove", "render", "replay", "report", "revoke", "rotate", "run", "scenarios",
    "sessions", "set", "state", "stats", "status", "undo", "unstate", "webhook", "why",
)  # fmt: skip
"""The commands of all groups."""
given_store: ContextVar[str | None] = ContextVar("given_store", default=None)
"""The value of `--db` on the command line, or None if the store is the default one."""

_COMMAND = re.compile(rf"\bacms [a-z]+(?: (?:{'|'.join(SUBCOMMANDS)})\b)*")
_WITHOUT_STORE = ("acms prompt diff", "acms prompt why", "acms copy")
"""Commands that read no store, or name theirs otherwise."""


def keep_store(hint: str) -> str:
    """Return a hint whose commands have the `--db` of the running command."""
    store = given_store.get()
    if store is None or "--db" in hint or "--help" in hint:
        return hint
    shown_store = shlex.quote(store)
    if without_password(store) != store:
        shown_store = "URL"

    def add_store(match: re.Match[str]) -> str:
        command = match[0]
        return command if command.startswith(_WITHOUT_STORE) else f"{command} --db {shown_store}"

    return _COMMAND.sub(add_store, hint)
