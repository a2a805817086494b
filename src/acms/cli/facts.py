"""Commands about facts, their history and evidence, and the reflection that finds them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from acms.cli import output
from acms.cli.base import (
    At,
    Model,
    ReflectorName,
    Session,
    Shell,
    Url,
    create_group,
    define_command,
    open_reflector,
    parse_scope,
    parse_version,
)
from acms.cli.hints import keep_store
from acms.cli.output import Column, Screen, count_noun
from acms.config import ACMSConfig
from acms.errors import EntryNotFoundError, ValidationError
from acms.facts.manual import parse_valid_time
from acms.knowledge import Fact
from acms.log.active_entries import preview_text
from acms.log.encoding import parse_entry_id
from acms.log.read import find_profile
from acms.log.validity import Period
from acms.model import Entry
from acms.observability.events import Event, Reflected
from acms.ports import StorageBackend
from acms.privacy.modes import mode_of
from acms.privacy.redact_entry import apply_privacy_mode
from acms.session import ACMS

facts = create_group("facts", "List, explain, state, undo or extract the facts of a session.", default="list")

InScope = Annotated[
    str, typer.Option("--scope", metavar="S", help="session, or namespace: the profile of the namespace.")
]


SubjectOption = Annotated[
    str | None, typer.Option("--subject", metavar="TEXT", help="Only facts about this subject.")
]
AttributeOption = Annotated[
    str | None, typer.Option("--attribute", metavar="TEXT", help="Only facts with this attribute.")
]
FactTypeOption = Annotated[
    str | None,
    typer.Option("--type", metavar="TYPE", help="Only facts of this type: decision, constraint…"),
]
ValidAtOption = Annotated[
    str | None,
    typer.Option(
        "--valid-at", metavar="TIME", help="Only facts valid then: a date, an ISO 8601 time or now."
    ),
]


def _parse_moment(value: str | None) -> datetime | None:
    if value is None:
        return None
    if value == "now":
        return datetime.now(UTC)
    try:
        return parse_valid_time(value, "valid_at")
    except ValidationError as error:
        raise typer.BadParameter(str(error), param_hint="--valid-at") from error


# ── list and history ──────────────────────────────────────────────────────────────────────────────────────────────────


def _fact_value(fact: Fact) -> str:
    """Return the value of a fact with its period and the reason for doubt."""
    doubt = "" if fact.doubt is None else fact.doubt.label
    period = Period(fact.valid_from, fact.valid_to, doubt)
    value = preview_text(fact.value or fact.content, 160)
    return f"{value} {period.label(datetime.now(UTC))}".rstrip()


FACTS = (
    Column("value", wide=True, value=_fact_value),
    Column("subject", "magenta"),
    Column("attribute", "magenta"),
    Column("version", "cyan", align_right=True, value=output.format_version),
    Column("sure", "green", align_right=True, value="confidence"),
    Column("from", "yellow", value=lambda fact: _format_sources(fact.sources, fact.context)),
    Column("type", value="fact_type"),
    Column("since", "dim", value="created_at"),
    Column("id", "dim"),
)


def _format_sources(ids: Sequence[str], context: str) -> str:
    """Return the versions of entries in this log, and the number of entries in other logs."""
    versions: list[str] = []
    for id in ids:
        context_and_version = parse_entry_id(id)
        if context_and_version is not None and context_and_version[0] == context:
            versions.append(f"v{context_and_version[1]}")
    count_elsewhere = len(ids) - len(versions)
    if count_elsewhere:
        versions.append(f"{count_elsewhere} elsewhere")
    return " ".join(versions)


@define_command("list", "acms facts user_123 --type decision", group=facts)
async def list_facts(
    shell: Shell,
    session: Session,
    subject: SubjectOption = None,
    attribute: AttributeOption = None,
    fact_type: FactTypeOption = None,
    scope: InScope = "session",
    at: At = None,
    valid_at: ValidAtOption = None,
) -> None:
    """List the active facts of a session."""
    fact_scope, moment = parse_scope(scope), _parse_moment(valid_at)
    async with shell.open_view(session, at) as view:
        active = await view.facts(
            subject=subject, attribute=attribute, fact_type=fact_type, scope=fact_scope, valid_at=moment
        )
    value = {"session": session, "scope": scope, "facts": active}
    shell.show_list(
        value, FACTS, active, if_empty=f"no facts; acms facts reflect {shlex.quote(session)} finds them"
    )


def _retired_at(fact: Fact) -> str:
    return "active" if fact.retired is None else f"v{fact.retired.version}"


def _retirement_reason(fact: Fact) -> str:
    return "" if fact.retired is None else fact.retired.reason


def _retirement_evidence(fact: Fact) -> str:
    return "" if fact.retired is None else _format_sources(fact.retired.evidence, fact.context)


CHANGES = (
    *FACTS[:4],
    Column("until", align_right=True, value=_retired_at),
    Column("reason", value=_retirement_reason),
    FACTS[5],
    Column("evidence", "yellow", value=_retirement_evidence),
)


@define_command("history", 'acms facts history user_123 "orders service" database', group=facts)
async def show_history(
    shell: Shell,
    session: Session,
    about: Annotated[
        str | None, typer.Argument(metavar="[SUBJECT]", help="Only facts about this subject.")
    ] = None,
    detail: Annotated[
        str | None, typer.Argument(metavar="[ATTRIBUTE]", help="Only facts with this attribute.")
    ] = None,
    subject: SubjectOption = None,
    attribute: AttributeOption = None,
    fact_type: FactTypeOption = None,
    scope: InScope = "session",
    at: At = None,
) -> None:
    """List all facts, including replaced ones with the reason."""
    fact_scope = parse_scope(scope)
    async with shell.open_view(session, at) as view:
        all_facts = await view.facts(
            subject=about or subject,
            attribute=detail or attribute,
            fact_type=fact_type,
            scope=fact_scope,
            history=True,
        )
    value = {"session": session, "scope": scope, "facts": all_facts}
    shell.show_list(value, CHANGES, all_facts, if_empty="nothing was ever known about it")


# ── why ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@define_command("why", "acms facts why user_123 v41", group=facts)
async def explain_fact(
    shell: Shell,
    session: Session,
    name: Annotated[str, typer.Argument(metavar="FACT", help="Id or version of the fact.")],
    scope: InScope = "session",
    at: At = None,
) -> None:
    """Explain a fact by its sources.

    Shows the facts that it replaced, and why it is no longer active.
    """
    fact_scope = parse_scope(scope)
    async with shell.open_view(session, at) as view:
        all_facts = await view.facts(scope=fact_scope, history=True)
    fact = _find_fact(all_facts, name)
    if fact is None:
        raise EntryNotFoundError(
            f"{session!r} has no fact {name!r}",
            options=(f"acms facts history {session} lists them", "--scope namespace"),
        )
    replaced = [candidate for candidate in all_facts if candidate.id in fact.replaces]
    retirement = fact.retired
    successor = None
    if retirement is not None:
        successor = next((candidate for candidate in all_facts if candidate.id == retirement.by), None)
    async with shell.open_store() as storage:
        sources = await _read_evidence(storage, fact.sources)
        evidence = await _read_evidence(storage, () if retirement is None else retirement.evidence)

    def draw() -> None:
        _draw_fact(shell, fact)
        shell.title("It was said")
        _write_sources(shell, sources)
        if replaced:
            shell.title("It replaced")
            shell.list(FACTS, replaced)
        if retirement is not None:
            shell.title(f"No longer active since v{retirement.version}: {retirement.reason}")
            if successor is not None:
                shell.list(FACTS, [successor])
            _write_sources(shell, evidence)
            undo = keep_store(f"acms facts undo {session} {retirement.version}")
            shell.line(f"take that back: {undo}", "dim")

    value = {
        "session": session,
        "fact": fact,
        "sources": sources,
        "replaced": replaced,
        "replaced_by": successor,
        "evidence": evidence,
    }
    shell.show(value, draw)


def _find_fact(facts: Sequence[Fact], name: str) -> Fact | None:
    """Return the fact with an id or version."""
    version = name.removeprefix("v")
    for fact in facts:
        if fact.id == name or str(fact.version) == version:
            return fact
    return None


def _draw_fact(screen: Screen, fact: Fact) -> None:
    address = " · ".join(filter(None, (fact.subject, fact.attribute)))
    screen.line(f"v{fact.version} {address or 'no address'}", "bold cyan")
    screen.line(fact.content)
    confidence = f"{fact.confidence:.2f} sure"
    screen.line(f"{fact.fact_type}, {confidence}, as trusted as what the {fact.trust} said", "dim")


async def _read_evidence(storage: StorageBackend, ids: Sequence[str]) -> list[dict[str, Any]]:
    """Return the session, version, speaker and preview of entries of any session, by their ids."""
    rows: list[dict[str, Any]] = []
    session_names: dict[str, str] = {}
    privacy = ACMSConfig.from_env().privacy.mode
    entries: Sequence[Entry | None] = await storage.get(ids) if ids else ()
    for id, entry in zip(ids, entries, strict=True):
        if entry is None:
            rows.append({"id": id, "session": None, "version": None, "speaker": None, "preview": ""})
            continue
        mode = mode_of(privacy, entry.privacy)
        if mode is not None:
            entry = apply_privacy_mode(entry, mode, len)
        if entry.context not in session_names:
            context = await storage.context(entry.context)
            session_names[entry.context] = context.key or context.id
        preview = preview_text(entry.content, 160) if entry.state == "live" else f"({entry.state})"
        row = {
            "id": id,
            "session": session_names[entry.context],
            "version": entry.version,
            "speaker": entry.actor or entry.role or entry.kind,
            "preview": preview,
        }
        rows.append(row)
    return rows


SOURCES = (
    Column("text", wide=True, value="preview"),
    Column("version", "cyan", align_right=True, value=lambda row: f"v{row['version'] or '?'}"),
    Column("speaker", "yellow"),
    Column("session", "magenta"),
)


def _write_sources(screen: Screen, sources: Sequence[Mapping[str, Any]]) -> None:
    if sources:
        screen.list(SOURCES, sources)


@define_command("undo", "acms facts undo user_123 41", group=facts)
async def undo_change(
    shell: Shell,
    session: Session,
    version: Annotated[
        int, typer.Argument(metavar="VERSION", parser=parse_version, help="Version of the change.")
    ],
    scope: InScope = "session",
) -> None:
    """Undo a change; the facts that it replaced are active again."""
    name = session
    if parse_scope(scope) == "namespace":
        async with shell.open_store() as storage:
            await shell.find_session(storage, session)
            profile = await find_profile(storage, shell.namespace)
        if profile is None:
            raise EntryNotFoundError(f"the namespace {shell.namespace!r} has no profile")
        name = profile.id
    async with shell.open_for_writing(name, works=False) as writer:
        undo_version = await writer.undo(version)
    value = {"session": session, "scope": scope, "version": undo_version, "undone": version}
    shell.show_line(value, f"v{undo_version} takes back v{version}")


# ── by hand ─────────────────────────────────────────────────────────────────────────────────────────────────────────

Subject = Annotated[str, typer.Argument(metavar="SUBJECT", help='Subject: "orders service".')]
Attribute = Annotated[str, typer.Argument(metavar="ATTRIBUTE", help="Attribute: database.")]


ValueArgument = Annotated[str, typer.Argument(metavar="VALUE", help="Value of the attribute.")]
NamesOption = Annotated[
    list[str] | None,
    typer.Option("--name", metavar="NAME", help="Alias of the subject; repeatable."),
]
ValidFromOption = Annotated[
    str | None, typer.Option("--valid-from", metavar="TIME", help="Start of its validity.")
]
ValidToOption = Annotated[
    str | None, typer.Option("--valid-to", metavar="TIME", help="End of its validity, exclusive.")
]
ManyOption = Annotated[bool, typer.Option("--many", help="Add a value instead of replacing the old one.")]
ExpectedOption = Annotated[
    int | None,
    typer.Option(
        "--expected",
        parser=parse_version,
        metavar="VERSION",
        help="Require this version of the current fact; 0: none.",
    ),
]


@define_command("state", 'acms facts state user_123 "orders service" database "PostgreSQL 18"', group=facts)
async def state_fact(
    shell: Shell,
    session: Session,
    subject: Subject,
    attribute: Attribute,
    value: ValueArgument,
    names: NamesOption = None,
    valid_from: ValidFromOption = None,
    valid_to: ValidToOption = None,
    adds_value: ManyOption = False,
    scope: InScope = "session",
    expected: ExpectedOption = None,
) -> None:
    """State a fact; it replaces the current value.

    TIME is an ISO 8601 time, or a date, which means midnight UTC. Stating the same fact again changes nothing.
    """
    fact_scope = parse_scope(scope)
    async with shell.open_for_writing(session, works=False) as writer:
        ids_before = {fact.id for fact in await writer.facts(scope=fact_scope)}
        fact = await writer.state(
            subject,
            attribute,
            value,
            names=names or (),
            valid_from=valid_from,
            valid_to=valid_to,
            cardinality="many" if adds_value else "one",
            scope=fact_scope,
            expected=expected,
        )
    is_new = fact.id not in ids_before
    prefix = "" if is_new else "known already, "
    message = f"{prefix}v{fact.version}: {fact.content}"
    shell.show_line({"session": session, "fact": fact, "new": is_new}, message)


@define_command("unstate", 'acms facts unstate user_123 "orders service" database', group=facts)
async def withdraw_facts(
    shell: Shell, session: Session, subject: Subject, attribute: Attribute, scope: InScope = "session"
) -> None:
    """Retract the facts with a subject and an attribute."""
    async with shell.open_for_writing(session, works=False) as writer:
        retracted = await writer.unstate(subject, attribute, scope=parse_scope(scope))

    def draw() -> None:
        if not retracted:
            shell.line("nothing is known about it")
        for fact in retracted:
            version = fact.retired.version if fact.retired else 0
            shell.line(f"v{version} ends v{fact.version}: {fact.content}")

    shell.show({"session": session, "facts": retracted}, draw)


# ── reflect ─────────────────────────────────────────────────────────────────────────────────────────────────────────

DECISIONS = (
    Column(
        "value",
        wide=True,
        value=lambda decision: preview_text(decision.proposal.value or decision.proposal.content, 80),
    ),
    Column("outcome", "magenta"),
    Column("subject", value=lambda decision: decision.proposal.subject),
    Column("attribute", value=lambda decision: decision.proposal.attribute),
    Column("reason"),
    Column("asked", value=lambda decision: decision.proposal.action),
)


@define_command("reflect", "acms facts reflect user_123 --wait", group=facts)
async def reflect_on_session(
    shell: Shell,
    session: Session,
    reflector: ReflectorName = None,
    url: Url = None,
    model: Model = None,
    wait: Annotated[bool, typer.Option("--wait", help="Run the job here and show the result.")] = False,
) -> None:
    """Extract facts from the episodes that have ended.

    Creates a job for `acms worker` with the same --reflector; with --wait, runs it here. The default reflector uses
    rules and no model. API keys of a model are read from the environment only.
    """
    reflections: list[Reflected] = []
    async with shell.open_session(session) as reader:
        waiting = await _count_unreflected(reader)
    with shell.progress("reflecting") as report:

        def on_event(event: Event) -> None:
            if isinstance(event, Reflected):
                reflections.append(event)
                report(sum(len(reflection.episodes) for reflection in reflections), waiting)

        report(0, waiting)
        async with (
            open_reflector(reflector or "offline", url=url, model=model) as chosen,
            shell.open_for_writing(session, works=wait, reflector=chosen, on_event=on_event) as writer,
        ):
            job = await writer.reflect()
            if wait:
                await writer.wait(job)
            remaining = await _count_unreflected(writer)

    def draw() -> None:
        if not wait:
            shell.line(output.describe_waiting_job(job.id))
            return
        decisions = [decision for reflection in reflections for decision in reflection.decisions]
        if decisions:
            shell.list(DECISIONS, decisions)
        shell.line(
            f"{count_noun(waiting - remaining, 'episode')} reflected on; {remaining} are too short yet and wait",
            "dim",
        )

    shell.show({"session": session, "job": job.id, "waiting": remaining, "reflected": reflections}, draw)


async def _count_unreflected(session: ACMS) -> int:
    episodes = await session.episodes("closed")
    return sum(episode.summary is None for episode in episodes)
