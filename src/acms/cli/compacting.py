"""Commands that shorten a log: compact, compactions, expand, undo; and the policy that decides when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from acms.cli import render
from acms.cli.base import (
    AsJson,
    At,
    Db,
    Full,
    Namespace,
    Session,
    app,
    known,
    looking,
    opened,
    reading,
    run,
    writing,
)
from acms.cli.render import Column, Screen
from acms.config import ACMSConfig
from acms.errors import ValidationError
from acms.log import policy as policy_levels
from acms.log.in_force import preview
from acms.log.policy import ResolvedPolicy
from acms.results import Compaction

policy = typer.Typer(
    help="See or change when a log is compacted.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(policy, name="policy")

Version = Annotated[int, typer.Argument(metavar="VERSION", min=1, help="Version of the summary or edit.")]

COMPACTIONS = (
    Column("version", "cyan", right=True),
    Column("stands for"),
    Column("entries", right=True),
    Column("tokens"),
    Column("lost", right=True),
    Column("by", "magenta"),
    Column("time", "dim"),
    Column("state"),
    Column("summary"),
)


def _row(one: Compaction) -> list[str]:
    return [
        f"v{one.version}",
        f"v{one.replaces[0]}-v{one.replaces[1]}",
        str(one.removed),
        f"{one.tokens_before} -> {one.tokens_after}",
        str(sum(one.lost.counts.values()) or ""),
        one.summarizer,
        f"{one.created_at:%Y-%m-%d %H:%M}",
        "" if one.in_force else "replaced",
        preview(one.summary, 160),
    ]


def _tell_lost(screen: Screen, one: Compaction) -> None:
    """Say what the summary does not: how much of what, and where it stood."""
    if one.lost.counts:
        counts = ", ".join(f"{count} {kind}" for kind, count in one.lost.counts.items())
        screen.line(f"the summary does not say: {counts} ({' '.join(one.lost.ids)})")


def _given(**values: Any) -> dict[str, Any]:
    """Return the options that were given."""
    return {name: value for name, value in values.items() if value is not None}


@app.command(epilog="Example:  acms compact user_123 --wait")
def compact(
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
    db: Db = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Let a summary stand for the older part of a log.

    Asks for it and leaves: `acms worker` does it. With --wait it is done here. Nothing is lost: undo takes it back.
    """
    overrides = _given(keep=keep, preserve_recent_count=recent, summary_tokens=tokens)

    async def work() -> None:
        done: Compaction | None = None
        async with writing(db, namespace, session, works=wait) as one:
            with render.progress("compacting"):
                job = await one.compact(**overrides)
                if wait:
                    done = await one.wait(job)
                    job = await one.job(job.id)
        screen = Screen(as_json)

        def draw() -> None:
            if not wait:
                screen.line(f"job {job.id} is waiting for a worker: acms worker")
            elif done is None:
                screen.line(f"nothing was compacted: {job.reason}")
            else:
                screen.table(COMPACTIONS, [_row(done)])
                _tell_lost(screen, done)
                if full:
                    render.block(screen, f"v{done.version}", done.summary)

        screen.show({"session": session, "job": job.id, "compaction": done, "reason": job.reason}, draw)

    run(as_json, work())


@app.command(epilog="Example:  acms compactions user_123")
def compactions(
    session: Session,
    full: Full = False,
    at: At = None,
    db: Db = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """List the compactions of a session, also those that were undone."""

    async def work() -> None:
        async with looking(db, namespace, session, at) as one:
            found = await one.compactions()
        screen = Screen(as_json)

        def draw() -> None:
            screen.table(COMPACTIONS, [_row(each) for each in found])
            for each in found if full else ():
                render.block(screen, f"v{each.version}", each.summary)

        screen.show({"session": session, "compactions": found}, draw)

    run(as_json, work())


@app.command(epilog="Example:  acms expand user_123 41")
def expand(
    session: Session,
    version: Version,
    full: Full = False,
    db: Db = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Show what a summary stands for, as it was read before."""

    async def work() -> None:
        async with reading(db, namespace, session) as one:
            found = await one.expand(version)
        columns = (
            Column("version", "cyan", right=True),
            Column("tokens", right=True),
            Column("speaker", "yellow"),
            Column("text"),
        )
        screen = Screen(as_json)

        def draw() -> None:
            rows = [(entry, entry.actor or entry.role or entry.kind) for entry in found]
            if full:
                for entry, who in rows:
                    render.block(screen, f"v{entry.version} {entry.tokens} tokens {who}", entry.content)
                return
            screen.table(
                columns,
                [[f"v{e.version}", str(e.tokens), str(who), preview(e.content, 160)] for e, who in rows],
            )

        value: dict[str, Any] = {
            "session": session,
            "entries": [
                {"id": e.id, "version": e.version, "kind": e.kind, "role": e.role, "actor": e.actor, "tokens": e.tokens,
                 "content": e.content}
                for e in found
            ],
        }  # fmt: skip
        screen.show(value, draw)

    run(as_json, work())


@app.command(epilog="Example:  acms undo user_123 41")
def undo(
    session: Session,
    version: Version,
    db: Db = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Take back a summary, an edit or a retraction: what it replaced is in force again."""

    async def work() -> None:
        async with writing(db, namespace, session, works=False) as one:
            undone = await one.undo(version)
        screen = Screen(as_json)
        value = {"session": session, "version": undone, "undone": version}
        screen.show(value, lambda: screen.line(f"v{undone} takes back v{version}"))

    run(as_json, work())


# ── policy ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _show_policy(session: str, found: ResolvedPolicy, as_json: bool) -> None:
    values = found.policy.to_json()
    screen = Screen(as_json)
    columns = Column("field", "magenta"), Column("value"), Column("from", "dim")
    rows = [
        [name, "" if value is None else str(value).lower(), found.levels[name]]
        for name, value in values.items()
    ]
    screen.show(
        {"session": session, "policy": values, "levels": found.levels}, lambda: screen.table(columns, rows)
    )


@policy.command("get", epilog="Example:  acms policy get user_123")
def policy_get(
    session: Session, db: Db = None, namespace: Namespace = "default", as_json: AsJson = False
) -> None:
    """Show the policy in force, and which level each field comes from."""

    async def work() -> None:
        async with reading(db, namespace, session) as one:
            found = await one.policy()
        _show_policy(session, found, as_json)

    run(as_json, work())


@policy.command("set", epilog="Example:  acms policy set user_123 --budget 8000 --threshold 0.7")
def policy_set(
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
    prompt: Annotated[int | None, typer.Option("--smallest-prompt", metavar="N", help="In tokens.")] = None,
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
    db: Db = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Change fields of a session's policy, or of its namespace's."""
    changes = _given(
        threshold=threshold,
        preserve_recent_count=recent,
        enabled=enabled,
        budget=budget,
        keep=keep,
        summary_tokens=tokens,
        smallest_prompt=prompt,
    )
    change = _Change(changes | dict.fromkeys(reset or ()), retention, hold, whole)

    async def work() -> None:
        change.check()
        _show_policy(session, await change.make(db, namespace, session), as_json)

    run(as_json, work())


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

    async def make(self, db: str | None, namespace: str, session: str) -> ResolvedPolicy:
        """Make it, and return the policy that the session has then."""
        service = ACMSConfig.from_env().compaction
        async with opened(db) as storage:
            context = await known(storage, session, namespace)
            if not self.whole:
                return await policy_levels.change(storage, context.id, self.fields, service=service)
            await policy_levels.change_namespace(storage, namespace, self.fields)
            if self.retention is not None:
                await policy_levels.set_retention(storage, namespace, self.retention)
            if self.hold is not None:
                await policy_levels.set_hold(storage, namespace, self.hold)
            return await policy_levels.resolve(storage, context.id, namespace=namespace, service=service)
