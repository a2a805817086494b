"""The command that finds sensitive data in a store: scan."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Annotated

import typer

from acms.cli.base import Shell, define_command, find_session
from acms.cli.output import Column, count_noun, format_version, to_json_value
from acms.model import Json
from acms.privacy import scan as scanning
from acms.privacy.detect import KINDS, safe_key
from acms.privacy.scan import Finding, Scan


def _parse_kinds(options: list[str] | None) -> list[str]:
    kinds: list[str] = []
    for option in options or ():
        kinds += [kind.strip() for kind in option.split(",")]
    for kind in kinds:
        if kind not in KINDS:
            raise typer.BadParameter(f"{kind!r} is not one of {', '.join(KINDS)}")
    return kinds


SessionOption = Annotated[
    str | None,
    typer.Option("--session", metavar="SESSION", help="Only this session, by name or id."),
]
KindsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--kinds",
        metavar="KIND,…",
        callback=_parse_kinds,
        help=f"Only these kinds: {', '.join(KINDS)}.",
    ),
]
LimitOption = Annotated[
    int,
    typer.Option("--limit", min=0, metavar="N", help="Maximum number of listed findings; counts cover all."),
]
FailOption = Annotated[bool, typer.Option("--fail-on-findings", help="Exit with 1 if anything is found.")]
NamespaceOption = Annotated[
    str | None, typer.Option("--namespace", metavar="NAME", help="Only the sessions of this namespace.")
]


@define_command("scan", "acms scan --session user_123 --kinds password,api_key", namespace=None)
async def scan_store(
    shell: Shell,
    session: SessionOption = None,
    kinds: KindsOption = None,
    limit: LimitOption = 1000,
    fail: FailOption = False,
    namespace: NamespaceOption = None,
) -> int:
    """Find secrets and personal data in the store.

    Prints the location of each finding, never its text. Searches messages with their parts and metadata, facts and
    summaries, including those of deleted sessions. Nothing is changed; each finding comes with a command that erases
    its entry.
    """
    async with shell.open_store() as storage:
        context = None
        if session is not None:
            context = await find_session(storage, session, namespace or "default")
        with shell.progress("scanning") as report:
            result = await scanning.scan(
                storage,
                context=context,
                namespace=None if context else namespace,
                kinds=kinds or [],
                limit=limit,
                progress=report,
            )
    findings: list[Json] = []
    for finding in result.findings:
        findings.append({**to_json_value(finding), "erase": _erase_command([finding], shell.db)})
    value: dict[str, Json] = {**to_json_value(result), "found": result.found, "findings": findings}
    shell.show(value, lambda: _draw_scan(shell, result))
    return 1 if fail and result.found else 0


def _erase_command(findings: Sequence[Finding], db: str | None) -> str:
    """Return the command that erases the entries of findings in one session."""
    first_finding = findings[0]
    words = ["acms", "erase", first_finding.session]
    for entry in dict.fromkeys(finding.entry for finding in findings):
        words += ["--message", entry]
    is_named = first_finding.session != first_finding.context
    if is_named and first_finding.namespace != "default":
        words += ["--namespace", first_finding.namespace]
    if db is not None and safe_key(db):  # an address with a password is not printed
        words += ["--db", db]
    return shlex.join(words)


FINDINGS = (
    Column("kind", "magenta"),
    Column("session", "yellow", wide=True),
    Column("version", "cyan", align_right=True, value=format_version),
    Column("entry"),
    Column("what", value=lambda finding: finding.entry_kind.value),
    Column("hidden", value=lambda finding: "always" if finding.clear else "redact"),
    Column("field"),
    Column("namespace"),
)
COUNTS = Column("kind", "magenta"), Column("findings", align_right=True), Column("entries", align_right=True)


def _draw_scan(shell: Shell, result: Scan) -> None:
    entries, sessions = count_noun(result.entries, "entry"), count_noun(result.contexts, "session")
    searched = f"read {entries} in {sessions}, by the rules of {result.rules}"
    if not result.found:
        shell.line(f"nothing sensitive was found: {searched}", "green")
        return
    if result.findings:
        shell.list(FINDINGS, result.findings)
    unlisted = result.found - len(result.findings)
    if unlisted > 0:
        shell.line(f"… and {unlisted} more: --limit lists them")
    shell.title("found")
    shell.list(COUNTS, result.kinds)
    shell.line(
        f"{count_noun(result.found, 'finding')} in {count_noun(result.affected, 'entry')}: {searched}", "bold"
    )
    if result.findings:
        shell.title("to erase an entry for ever, in every fork, with what was made from it")
        _draw_erase_commands(shell, result.findings)


def _draw_erase_commands(shell: Shell, findings: Sequence[Finding]) -> None:
    batch = 20  # entries per command: keeps its line below 1,000 characters
    by_context: dict[str, dict[str, Finding]] = {}
    for finding in findings:
        by_context.setdefault(finding.context, {})[finding.entry] = finding
    for by_entry in by_context.values():
        entries = list(by_entry.values())
        for start in range(0, len(entries), batch):
            shell.line(_erase_command(entries[start : start + batch], shell.db))
