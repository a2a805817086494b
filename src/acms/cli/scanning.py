"""The command that looks for something sensitive in what is stored, and says how to take it away."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Annotated

import typer

from acms.cli.base import Shell, command, known
from acms.cli.render import Column, plain, version
from acms.model import Json
from acms.privacy import scan as scanning
from acms.privacy.detect import KINDS, safe_key
from acms.privacy.scan import Finding, Scan

_AT_ONCE = 20
"""Entries that one proposed command erases."""


def _kinds(given: list[str] | None) -> list[str]:
    found = [kind.strip() for some in given or () for kind in some.split(",")]
    for kind in found:
        if kind not in KINDS:
            raise typer.BadParameter(f"{kind!r} is none of {', '.join(KINDS)}")
    return found


@command("acms scan --session user_123 --kinds password,api_key", namespace=None)
async def scan(
    shell: Shell,
    session: Annotated[
        str | None,
        typer.Option("--session", metavar="SESSION", help="Only this session, by its name or its id."),
    ] = None,
    kinds: Annotated[
        list[str] | None,
        typer.Option(
            "--kinds", metavar="KIND,…", callback=_kinds, help=f"Only these kinds, of {', '.join(KINDS)}."
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=0, metavar="N", help="Findings to list; the counts are of all.")
    ] = 1000,
    fail: Annotated[
        bool, typer.Option("--fail-on-findings", help="Leave with 1 when something was found.")
    ] = False,
    namespace: Annotated[
        str | None, typer.Option("--namespace", metavar="NAME", help="Only the sessions of this group.")
    ] = None,
) -> int:
    """Find secrets and personal data in what is stored.

    Where they are, never what they say. Messages with their parts and metadata, facts and summaries are searched, of
    deleted sessions, too. Nothing is changed: each finding comes with the command that erases its entry.
    """
    async with shell.opened() as storage:
        context = None if session is None else await known(storage, session, namespace or "default")
        with shell.progress("scanning") as tell:
            done = await scanning.scan(
                storage,
                context=context,
                namespace=None if context else namespace,
                kinds=kinds or [],
                limit=limit,
                progress=tell,
            )
    findings = [{**plain(one), "erase": _erase([one], shell.db)} for one in done.findings]
    value: dict[str, Json] = {**plain(done), "found": done.found, "findings": findings}
    shell.show(value, lambda: _draw(shell, done))
    return 1 if fail and done.found else 0


def _erase(some: Sequence[Finding], db: str | None) -> str:
    """Return the command that erases the entries of some findings in one session."""
    first = some[0]
    words = ["acms", "erase", first.session]
    for id in dict.fromkeys(one.entry for one in some):
        words += ["--message", id]
    if first.session != first.context and first.namespace != "default":
        words += ["--namespace", first.namespace]
    if db is not None and safe_key(db):  # an address with a password is left to the reader
        words += ["--db", db]
    return shlex.join(words)


FINDINGS = (
    Column("kind", "magenta"),
    Column("session", "yellow", wide=True),
    Column("version", "cyan", right=True, of=version),
    Column("entry"),
    Column("what", of=lambda one: one.entry_kind.value),
    Column("hidden", of=lambda one: "always" if one.clear else "redact"),
    Column("field"),
    Column("namespace"),
)
COUNTS = Column("kind", "magenta"), Column("findings", right=True), Column("entries", right=True)


def _draw(shell: Shell, done: Scan) -> None:
    read = f"{done.entries} entries of {done.contexts} sessions were read, by the rules of {done.rules}"
    if not done.found:
        shell.line(f"nothing sensitive was found: {read}", "green")
        return
    if done.findings:
        shell.list(FINDINGS, done.findings)
    if len(done.findings) < done.found:
        shell.line(f"… and {done.found - len(done.findings)} more: --limit lists them")
    shell.title("found")
    shell.list(COUNTS, done.kinds)
    shell.line(f"{done.found} findings in {done.affected} entries: {read}", "bold")
    if done.findings:
        shell.title("to erase an entry for ever, in every fork, with what was made from it")
        by_session: dict[str, dict[str, Finding]] = {}
        for one in done.findings:
            by_session.setdefault(one.context, {})[one.entry] = one
        for some in map(list, (entries.values() for entries in by_session.values())):
            for start in range(0, len(some), _AT_ONCE):
                shell.line(_erase(some[start : start + _AT_ONCE], shell.db))
