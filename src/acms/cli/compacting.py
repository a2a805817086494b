"""Commands that shorten a log, and show or change the policy that decides when; `undo`."""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from typing import Annotated, Any

import typer

from acms.cli import output
from acms.cli.base import At, Full, Session, Shell, create_group, define_command, parse_version
from acms.cli.output import Column, Screen
from acms.config import ACMSConfig
from acms.errors import ValidationError
from acms.log import policy as policy_levels
from acms.log.active_entries import preview_text
from acms.log.policy import ResolvedPolicy
from acms.model import Context
from acms.ports import StorageBackend
from acms.results import Compaction

compactions = create_group("compact", "Replace the older part of a log with a summary.", default="run")
policy = create_group("policy", "Show or change the compaction policy.", parent=compactions)

Version = Annotated[
    int,
    typer.Argument(
        metavar="VERSION", parser=parse_version, help="Version of the summary, edit or retraction."
    ),
]

COMPACTIONS = (
    Column("summary", wide=True, value=lambda compaction: preview_text(compaction.summary, 160)),
    Column("version", "cyan", align_right=True, value=output.format_version),
    Column("replaces", value=lambda compaction: f"v{compaction.replaces[0]}-v{compaction.replaces[1]}"),
    Column("tokens", value=lambda compaction: f"{compaction.tokens_before} -> {compaction.tokens_after}"),
    Column("state", value=lambda compaction: "" if compaction.in_force else "replaced"),
    Column("entries", align_right=True, value="removed"),
    Column("lost", align_right=True, value=lambda compaction: sum(compaction.lost.counts.values()) or ""),
    Column("by", "magenta", value="summarizer"),
    Column("time", "dim", value="created_at"),
)


def _show_lost(screen: Screen, compaction: Compaction) -> None:
    """Write what the summary leaves out: counts by kind, and the ids of the entries."""
    if compaction.lost.counts:
        counts = ", ".join(f"{count} {kind}" for kind, count in compaction.lost.counts.items())
        screen.line(f"the summary does not say: {counts} ({' '.join(compaction.lost.ids)})")


def _drop_unset(**values: Any) -> dict[str, Any]:
    """Return the options that are not None."""
    return {name: value for name, value in values.items() if value is not None}


@define_command("run", "acms compact user_123 --wait", group=compactions)
async def compact_session(
    shell: Shell,
    session: Session,
    wait: Annotated[bool, typer.Option("--wait", help="Run the job here and show the result.")] = False,
    keep: Annotated[
        float | None,
        typer.Option("--keep", min=0, max=1, metavar="SHARE", help="Share of the tokens to keep."),
    ] = None,
    recent: Annotated[
        int | None, typer.Option("--recent", min=0, metavar="N", help="Newest messages to keep.")
    ] = None,
    tokens: Annotated[
        int | None, typer.Option("--tokens", min=1, metavar="N", help="Token budget of the summary.")
    ] = None,
    full: Full = False,
) -> None:
    """Replace the older part of a log with a summary.

    Creates a job for `acms worker`; with --wait, runs it here. Nothing is deleted: `acms undo` reverts a compaction.
    """
    overrides = _drop_unset(keep=keep, preserve_recent_count=recent, summary_tokens=tokens)
    compaction: Compaction | None = None
    async with shell.open_for_writing(session, works=wait) as writer:
        with shell.progress("compacting"):
            job = await writer.compact(**overrides)
            if wait:
                compaction = await writer.wait(job)
                job = await writer.job(job.id)

    def draw() -> None:
        if not wait:
            shell.line(output.describe_waiting_job(job.id))
        elif compaction is None:
            shell.line(f"nothing was compacted: {job.reason}")
        else:
            shell.list(COMPACTIONS, [compaction])
            _show_lost(shell, compaction)
            if full:
                output.write_block(shell, f"v{compaction.version}", compaction.summary)

    shell.show({"session": session, "job": job.id, "compaction": compaction, "reason": job.reason}, draw)


@define_command("list", "acms compact list user_123", group=compactions)
async def list_compactions(shell: Shell, session: Session, full: Full = False, at: At = None) -> None:
    """List the compactions of a session, including undone ones."""
    async with shell.open_view(session, at) as view:
        compaction_list = await view.compactions()

    def draw() -> None:
        shell.list(COMPACTIONS, compaction_list, if_empty="nothing was compacted; acms compact does it")
        if full:
            for compaction in compaction_list:
                output.write_block(shell, f"v{compaction.version}", compaction.summary)

    shell.show({"session": session, "compactions": compaction_list}, draw)


@define_command("expand", "acms compact expand user_123 41", group=compactions)
async def expand_summary(shell: Shell, session: Session, version: Version, full: Full = False) -> None:
    """Show the entries that a summary replaces."""
    async with shell.open_session(session) as reader:
        replaced = await reader.expand(version)

    def draw() -> None:
        if not full:
            shell.list(output.ENTRIES, replaced)
            return
        for entry in replaced:
            speaker = entry.actor or entry.role or entry.kind
            output.write_block(shell, f"v{entry.version} {entry.tokens} tokens {speaker}", entry.content)

    fields = ("id", "version", "kind", "role", "actor", "tokens", "content")
    entries = [{field: getattr(entry, field) for field in fields} for entry in replaced]
    shell.show({"session": session, "entries": entries}, draw)


@define_command("undo", "acms undo user_123 41")
async def undo_change(shell: Shell, session: Session, version: Version) -> None:
    """Undo a summary, an edit or a retraction.

    The entries that it replaced are active again.
    """
    async with shell.open_for_writing(session, works=False) as writer:
        undo_version = await writer.undo(version)
    value = {"session": session, "version": undo_version, "undone": version}
    shell.show_line(value, f"v{undo_version} takes back v{version}")


# ── policy ──────────────────────────────────────────────────────────────────────────────────────────────────────────


POLICY = (
    Column("field", "magenta", value=itemgetter(0)),
    Column("value", wide=True, value=itemgetter(1)),
    Column("from", "dim", value=itemgetter(2)),
)


SessionArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[SESSION]", help="Name of the session, or its id; default: the namespace as a whole."
    ),
]


async def _find_target(shell: Shell, storage: StorageBackend, session: str | None) -> Context | None:
    """Return the context of a session, or None for the namespace as a whole."""
    return None if session is None else await shell.find_session(storage, session)


async def _resolve_policy(shell: Shell, storage: StorageBackend, context: Context | None) -> ResolvedPolicy:
    """Return the policy of a session, or of the namespace without `context`."""
    config = ACMSConfig.from_env()
    return await policy_levels.resolve_policy(
        storage,
        None if context is None else context.id,
        namespace=shell.namespace if context is None else context.namespace,
        service=config.compaction,
        service_retention=config.retention_seconds,
    )


def _write_policy(shell: Shell, session: str | None, resolved: ResolvedPolicy) -> None:
    """Write the policy of a session, or of the namespace without one."""
    values = {
        **resolved.policy.to_json(),
        policy_levels.RETENTION: resolved.retention_seconds,
        policy_levels.HOLD: resolved.legal_hold,
    }
    levels: dict[str, str] = {}
    for name, level in resolved.levels.items():
        levels[name] = "session" if level == "context" else level
    rows: list[tuple[str, str, str]] = []
    for name, value in values.items():
        text = "" if value is None else str(value).lower()
        rows.append((name, text, levels[name]))
    target = {"namespace": shell.namespace} if session is None else {"session": session}
    shell.show_list({**target, "policy": values, "levels": levels}, POLICY, rows)


@define_command("get", "acms compact policy get user_123", group=policy)
async def show_policy(shell: Shell, session: SessionArgument = None) -> None:
    """Show the policy of a session, and the level that sets each field.

    Includes the retention and the legal hold of its namespace. Without SESSION, shows the policy of the namespace.
    """
    async with shell.open_store() as storage:
        context = await _find_target(shell, storage, session)
        resolved = await _resolve_policy(shell, storage, context)
    _write_policy(shell, session, resolved)


ThresholdOption = Annotated[
    float | None,
    typer.Option(
        "--threshold", min=0, max=1, metavar="SHARE", help="Share of the budget that triggers compaction."
    ),
]
RecentOption = Annotated[
    int | None, typer.Option("--recent", min=0, metavar="N", help="Newest messages to keep.")
]
EnabledOption = Annotated[
    bool | None, typer.Option("--enabled/--disabled", help="Whether appends may request a compaction.")
]
BudgetOption = Annotated[
    int | None, typer.Option("--budget", min=1, metavar="N", help="Token limit of the active log.")
]
KeepOption = Annotated[
    float | None,
    typer.Option("--keep", min=0, max=1, metavar="SHARE", help="Share of the tokens to keep verbatim."),
]
TokensOption = Annotated[
    int | None, typer.Option("--tokens", min=1, metavar="N", help="Token budget of a summary.")
]


def _check_fields(fields: list[str] | None) -> list[str] | None:
    for field in fields or ():
        if field not in policy_levels.FIELDS:
            raise typer.BadParameter(f"{field!r} is not one of {', '.join(policy_levels.FIELDS)}")
    return fields


ResetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--reset", metavar="FIELD", callback=_check_fields, help="Inherit this field again; repeatable."
    ),
]
RetentionOption = Annotated[
    float | None,
    typer.Option(
        "--retention",
        min=0,
        metavar="SECONDS",
        help="Namespace: delete entries this long after their summary.",
    ),
]
HoldOption = Annotated[
    bool | None,
    typer.Option("--hold/--no-hold", help="Namespace: forbid expiry and erasure."),
]


@define_command("set", "acms compact policy set user_123 --budget 8000 --threshold 0.7", group=policy)
async def set_policy(
    shell: Shell,
    session: SessionArgument = None,
    threshold: ThresholdOption = None,
    recent: RecentOption = None,
    enabled: EnabledOption = None,
    budget: BudgetOption = None,
    keep: KeepOption = None,
    tokens: TokensOption = None,
    reset: ResetOption = None,
    retention: RetentionOption = None,
    hold: HoldOption = None,
) -> None:
    """Change the policy of a session, or without SESSION that of the namespace.

    Prints the new policy. Retention and legal hold belong to the namespace, which needs no session for them.
    """
    changes = _drop_unset(
        threshold=threshold,
        preserve_recent_count=recent,
        enabled=enabled,
        budget=budget,
        keep=keep,
        summary_tokens=tokens,
    )
    changes |= dict.fromkeys(reset or ())
    rules = _drop_unset(retention_seconds=retention, legal_hold=hold)
    _check_change(session, changes, rules)
    async with shell.open_store() as storage:
        context = await _find_target(shell, storage, session)
        if context is None:
            await policy_levels.change_namespace(storage, shell.namespace, changes | rules)
        else:
            service = ACMSConfig.from_env().compaction
            await policy_levels.change_context_policy(storage, context.id, changes, service=service)
        resolved = await _resolve_policy(shell, storage, context)
    _write_policy(shell, session, resolved)


def _check_change(session: str | None, changes: Mapping[str, Any], rules: Mapping[str, Any]) -> None:
    """Refuse an empty change, and a retention or a legal hold of a session."""
    if not changes and not rules:
        raise ValidationError(
            "nothing to change was given", field="policy", options=("acms compact policy set --help",)
        )
    if session is not None and rules:
        raise ValidationError(
            "applies to the whole namespace",
            field="hold" if policy_levels.HOLD in rules else "retention",
            options=("omit SESSION, and name the namespace with --namespace",),
        )
