"""Commands that shorten a log: compact, compactions, expand, undo; and the policy that decides when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Annotated, Any

import typer

from acms.cli import render
from acms.cli.base import At, Full, Session, Shell, app, command
from acms.cli.render import Column, Screen
from acms.config import ACMSConfig
from acms.errors import ValidationError
from acms.log import policy as policy_levels
from acms.log.in_force import preview_text
from acms.log.policy import ResolvedPolicy
from acms.results import Compaction

policy = typer.Typer(
    help="See or change when a log is compacted.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(policy, name="policy")

Version = Annotated[int, typer.Argument(metavar="VERSION", min=1, help="Version of the summary or edit.")]

COMPACTIONS = (
    Column("summary", wide=True, of=lambda one: preview_text(one.summary, 160)),
    Column("version", "cyan", right=True, of=render.version),
    Column("stands for", of=lambda one: f"v{one.replaces[0]}-v{one.replaces[1]}"),
    Column("tokens", of=lambda one: f"{one.tokens_before} -> {one.tokens_after}"),
    Column("state", of=lambda one: "" if one.in_force else "replaced"),
    Column("entries", right=True, of="removed"),
    Column("lost", right=True, of=lambda one: sum(one.lost.counts.values()) or ""),
    Column("by", "magenta", of="summarizer"),
    Column("time", "dim", of="created_at"),
)


def _tell_lost(screen: Screen, one: Compaction) -> None:
    """Say what the summary does not: how much of what, and where it stood."""
    if one.lost.counts:
        counts = ", ".join(f"{count} {kind}" for kind, count in one.lost.counts.items())
        screen.line(f"the summary does not say: {counts} ({' '.join(one.lost.ids)})")


def _given(**values: Any) -> dict[str, Any]:
    """Return the options that were given."""
    return {name: value for name, value in values.items() if value is not None}


@command("acms compact user_123 --wait")
async def compact(
    shell: Shell,
    session: Session,
    wait: Annotated[bool, typer.Option("--wait", help="Work it off here and show what it did.")] = False,
    keep: Annotated[
        float | None,
        typer.Option("--keep", min=0, max=1, metavar="SHARE", help="Share of the tokens that stays."),
    ] = None,
    recent: Annotated[
        int | None, typer.Option("--recent", min=0, metavar="N", help="Newest messages that stay.")
    ] = None,
    tokens: Annotated[
        int | None, typer.Option("--tokens", min=1, metavar="N", help="Tokens the summary may have.")
    ] = None,
    full: Full = False,
) -> None:
    """Let a summary stand for the older part of a log.

    Asks for it and leaves: `acms worker` does it. With --wait it is done here. Nothing is lost: undo takes it back.
    """
    overrides = _given(keep=keep, preserve_recent_count=recent, summary_tokens=tokens)
    done: Compaction | None = None
    async with shell.writing(session, works=wait) as one:
        with shell.progress("compacting"):
            job = await one.compact(**overrides)
            if wait:
                done = await one.wait(job)
                job = await one.job(job.id)

    def draw() -> None:
        if not wait:
            shell.line(f"job {job.id} is waiting for a worker: acms worker")
        elif done is None:
            shell.line(f"nothing was compacted: {job.reason}")
        else:
            shell.list(COMPACTIONS, [done])
            _tell_lost(shell, done)
            if full:
                render.block(shell, f"v{done.version}", done.summary)

    shell.show({"session": session, "job": job.id, "compaction": done, "reason": job.reason}, draw)


@command("acms compactions user_123")
async def compactions(shell: Shell, session: Session, full: Full = False, at: At = None) -> None:
    """List the compactions of a session, undone ones too."""
    async with shell.looking(session, at) as one:
        found = await one.compactions()

    def draw() -> None:
        shell.list(COMPACTIONS, found, none="nothing was compacted; acms compact does it")
        for each in found if full else ():
            render.block(shell, f"v{each.version}", each.summary)

    shell.show({"session": session, "compactions": found}, draw)


@command("acms expand user_123 41")
async def expand(shell: Shell, session: Session, version: Version, full: Full = False) -> None:
    """Show what a summary stands for, as it was read before."""
    async with shell.reading(session) as one:
        found = await one.expand(version)

    def draw() -> None:
        for entry in found if full else ():
            who = entry.actor or entry.role or entry.kind
            render.block(shell, f"v{entry.version} {entry.tokens} tokens {who}", entry.content)
        if not full:
            shell.list(render.ENTRIES, found)

    fields = ("id", "version", "kind", "role", "actor", "tokens", "content")
    entries = [{field: getattr(entry, field) for field in fields} for entry in found]
    shell.show({"session": session, "entries": entries}, draw)


@command("acms undo user_123 41")
async def undo(shell: Shell, session: Session, version: Version) -> None:
    """Take back a summary, an edit or a retraction.

    What it replaced is in force again.
    """
    async with shell.writing(session, works=False) as one:
        undone = await one.undo(version)
    value = {"session": session, "version": undone, "undone": version}
    shell.show(value, lambda: shell.line(f"v{undone} takes back v{version}"))


# ── policy ──────────────────────────────────────────────────────────────────────────────────────────────────────────


POLICY = (
    Column("field", "magenta", of=itemgetter(0)),
    Column("value", wide=True, of=itemgetter(1)),
    Column("from", "dim", of=itemgetter(2)),
)


def _show_policy(shell: Shell, session: str, found: ResolvedPolicy) -> None:
    values = found.policy.to_json()
    rows = [
        (name, "" if value is None else str(value).lower(), found.levels[name])
        for name, value in values.items()
    ]
    value = {"session": session, "policy": values, "levels": found.levels}
    shell.show(value, lambda: shell.list(POLICY, rows))


@command("acms policy get user_123", name="get", home=policy)
async def policy_get(shell: Shell, session: Session) -> None:
    """Show the policy in force, and which level each field comes from."""
    async with shell.reading(session) as one:
        found = await one.policy()
    _show_policy(shell, session, found)


@command("acms policy set user_123 --budget 8000 --threshold 0.7", name="set", home=policy)
async def policy_set(
    shell: Shell,
    session: Session,
    threshold: Annotated[
        float | None, typer.Option("--threshold", metavar="SHARE", help="Of the budget.")
    ] = None,
    recent: Annotated[
        int | None, typer.Option("--recent", metavar="N", help="Newest messages that stay.")
    ] = None,
    enabled: Annotated[
        bool | None, typer.Option("--enabled/--disabled", help="Whether an append may ask.")
    ] = None,
    budget: Annotated[
        int | None, typer.Option("--budget", metavar="N", help="Tokens the log in force should stay below.")
    ] = None,
    keep: Annotated[
        float | None, typer.Option("--keep", metavar="SHARE", help="Of the tokens, that stays verbatim.")
    ] = None,
    tokens: Annotated[
        int | None, typer.Option("--tokens", metavar="N", help="Tokens a summary may have.")
    ] = None,
    reset: Annotated[
        list[str] | None,
        typer.Option("--reset", metavar="FIELD", help="Go back to the level above; repeatable."),
    ] = None,
    retention: Annotated[
        float | None,
        typer.Option(
            "--retention", min=0, metavar="SECONDS", help="Namespace: delete what was summarised so long ago."
        ),
    ] = None,
    hold: Annotated[
        bool | None,
        typer.Option("--hold/--no-hold", help="Namespace: forbid that anything expires or is erased."),
    ] = None,
    whole: Annotated[
        bool, typer.Option("--for-namespace", help="For every session of the namespace, not only this one.")
    ] = False,
) -> None:
    """Change fields of a session's policy, or of its namespace's."""
    changes = _given(
        threshold=threshold,
        preserve_recent_count=recent,
        enabled=enabled,
        budget=budget,
        keep=keep,
        summary_tokens=tokens,
    )
    change = _Change(changes | dict.fromkeys(reset or ()), retention, hold, whole)
    change.check()
    _show_policy(shell, session, await change.make(shell, session))


@dataclass(frozen=True, slots=True)
class _Change:
    """What `acms policy set` is to change."""

    fields: Mapping[str, Any]
    retention: float | None
    hold: bool | None
    whole: bool

    def check(self) -> None:
        """Refuse a change of nothing, and one of the namespace that is asked of a session."""
        limits = self.retention is not None or self.hold is not None
        if not self.fields and not limits:
            raise ValidationError(
                "nothing to change was given", field="policy", options=("acms policy set --help",)
            )
        if not self.whole and limits:
            raise ValidationError(
                "is a matter of the whole namespace", field="retention", options=("--for-namespace",)
            )

    async def make(self, shell: Shell, session: str) -> ResolvedPolicy:
        """Make it, and return the policy that the session has then."""
        service, namespace = ACMSConfig.from_env().compaction, shell.namespace
        async with shell.opened() as storage:
            context = await shell.known(storage, session)
            if not self.whole:
                return await policy_levels.change_context_policy(
                    storage, context.id, self.fields, service=service
                )
            await policy_levels.change_namespace(storage, namespace, self.fields)
            if self.retention is not None:
                await policy_levels.set_retention(storage, namespace, self.retention)
            if self.hold is not None:
                await policy_levels.set_hold(storage, namespace, self.hold)
            return await policy_levels.resolve_policy(
                storage, context.id, namespace=namespace, service=service
            )
