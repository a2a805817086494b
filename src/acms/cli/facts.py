"""Commands about what is known: facts with their history and evidence, and the reflection that finds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from acms.cli import render
from acms.cli.base import At, Model, ReflectorName, Session, Shell, Url, command, reflecting
from acms.cli.render import Column
from acms.config import ACMSConfig
from acms.errors import EntryNotFoundError, ValidationError
from acms.facts.by_hand import parse_valid_time
from acms.knowledge import Fact, Scope
from acms.log.encoding import parse_entry_id
from acms.log.in_force import preview_text
from acms.log.read import find_profile
from acms.log.validity import Period
from acms.model import Entry
from acms.observability.events import Event, Reflected
from acms.ports import StorageBackend
from acms.privacy.modes import mode_of
from acms.privacy.redact_entry import apply_privacy_mode

LIST, HISTORY, WHY, UNDO = "list", "history", "why", "undo"
InScope = Annotated[
    str, typer.Option("--scope", metavar="S", help="session, or namespace: its profile of facts.")
]


@command('acms facts history user_123 "orders service" database')
async def facts(
    shell: Shell,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[list] SESSION | history SESSION [SUBJECT [ATTRIBUTE]] | why SESSION FACT | "
            "undo SESSION VERSION",
            help="What is known now; what was known; where a fact comes from; take a change back.",
        ),
    ],
    subject: Annotated[
        str | None, typer.Option("--subject", metavar="TEXT", help="Only facts about it.")
    ] = None,
    attribute: Annotated[
        str | None, typer.Option("--attribute", metavar="TEXT", help="Only this side of it.")
    ] = None,
    fact_type: Annotated[
        str | None, typer.Option("--type", metavar="TYPE", help="Only these: decision, constraint…")
    ] = None,
    scope: InScope = "session",
    at: At = None,
    valid_at: Annotated[
        str | None,
        typer.Option(
            "--valid-at", metavar="TIME", help="Only what was so then: a date, an ISO 8601 time or now."
        ),
    ] = None,
) -> None:
    """List what is known, and why; take a change back.

    FACT is the id of a fact, or its version. undo takes back the entry at VERSION: what it replaced is known again.
    """
    verb, *rest = words
    if verb not in (LIST, HISTORY, WHY, UNDO):
        verb, rest = LIST, words
    if valid_at is not None and verb != LIST:
        raise typer.BadParameter(f"{verb} takes no --valid-at", param_hint="--valid-at")
    _check(verb, rest, narrowed=bool(subject or attribute or fact_type), at=at)
    about, side = ([*rest[1:], None, None] if verb == HISTORY else [None, None])[:2]
    asked = _Asked(
        session=rest[0],
        subject=about or subject,
        attribute=side or attribute,
        fact_type=fact_type,
        scope=_scoped(scope),
        at=at,
        valid_at=_moment(valid_at),
    )
    if verb == LIST:
        await _list(shell, asked)
    elif verb == HISTORY:
        await _history(shell, asked)
    elif verb == WHY:
        await _why(shell, asked, rest[1])
    else:
        await _undo(shell, asked, int(rest[1].removeprefix("v")))


def _moment(value: str | None) -> datetime | None:
    if value is None or value == "now":
        return None if value is None else datetime.now(UTC)
    try:
        return parse_valid_time(value, "valid_at")
    except ValidationError as error:
        raise typer.BadParameter(str(error), param_hint="--valid-at") from error


def _scoped(scope: str) -> Scope:
    if scope not in ("session", "namespace"):
        raise typer.BadParameter(f"{scope!r} is not session or namespace", param_hint="--scope")
    return "namespace" if scope == "namespace" else "session"


_WORDS = {
    LIST: (1, 1, "one session"),
    HISTORY: (1, 3, "a session, and perhaps a subject and an attribute"),
    WHY: (2, 2, "a session and a fact"),
    UNDO: (2, 2, "a session and a version"),
}


def _check(verb: str, rest: Sequence[str], *, narrowed: bool, at: str | None) -> None:
    """Refuse words and options that do not belong together."""
    least, most, wanted = _WORDS[verb]
    if not least <= len(rest) <= most:
        raise typer.BadParameter(f"{verb} takes {wanted}", param_hint="WORDS")
    if verb == UNDO and not rest[1].removeprefix("v").isdecimal():
        raise typer.BadParameter(f"{rest[1]!r} is not a version", param_hint="VERSION")
    if verb in (WHY, UNDO) and narrowed:
        raise typer.BadParameter(f"{verb} takes no --subject, --attribute or --type", param_hint="OPTIONS")
    if verb == UNDO and at is not None:
        raise typer.BadParameter("undo takes no --at", param_hint="--at")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What all words of `acms facts` share."""

    session: str
    subject: str | None
    attribute: str | None
    fact_type: str | None
    scope: Scope
    at: str | None
    valid_at: datetime | None


async def _found(shell: Shell, asked: _Asked, *, history: bool) -> list[Fact]:
    async with shell.looking(asked.session, asked.at) as view:
        return await view.facts(
            subject=asked.subject,
            attribute=asked.attribute,
            fact_type=asked.fact_type,
            scope=asked.scope,
            history=history,
            valid_at=asked.valid_at,
        )


# ── what is known ───────────────────────────────────────────────────────────────────────────────────────────────────


def _value(fact: Fact) -> str:
    """Return the value of a fact, from when on or until when it is so, and why that is in doubt."""
    period = Period(fact.valid_from, fact.valid_to, "" if fact.doubt is None else fact.doubt.label)
    return f"{preview_text(fact.value or fact.content, 160)} {period.label(datetime.now(UTC))}".rstrip()


FACTS = (
    Column("value", wide=True, of=_value),
    Column("subject", "magenta"),
    Column("attribute", "magenta"),
    Column("version", "cyan", right=True, of=render.version),
    Column("sure", "green", right=True, of="confidence"),
    Column("from", "yellow", of=lambda fact: _versions(fact.sources, fact.context)),
    Column("type", of="fact_type"),
    Column("since", "dim", of="created_at"),
    Column("id", "dim"),
)


def _versions(ids: Sequence[str], context: str) -> str:
    """Return where entries stand; those of another log are counted."""
    places = [place for place in map(parse_entry_id, ids) if place is not None]
    own = [f"v{version}" for owner, version in places if owner == context]
    others = len(ids) - len(own)
    return " ".join([*own, *([f"{others} elsewhere"] if others else [])])


async def _list(shell: Shell, asked: _Asked) -> None:
    found = await _found(shell, asked, history=False)
    shell.show(
        {"session": asked.session, "scope": asked.scope, "facts": found},
        lambda: shell.list(FACTS, found, none="no facts; acms reflect finds them"),
    )


CHANGES = (
    *FACTS[:4],
    Column("until", right=True, of=lambda fact: f"v{fact.retired.version}" if fact.retired else "in force"),
    Column("reason", of=lambda fact: fact.retired.reason if fact.retired else ""),
    FACTS[5],
    Column(
        "evidence",
        "yellow",
        of=lambda fact: _versions(fact.retired.evidence, fact.context) if fact.retired else "",
    ),
)


async def _history(shell: Shell, asked: _Asked) -> None:
    found = await _found(shell, asked, history=True)
    shell.show(
        {"session": asked.session, "scope": asked.scope, "facts": found},
        lambda: shell.list(CHANGES, found, none="nothing was ever known about it"),
    )


# ── why ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def _why(shell: Shell, asked: _Asked, name: str) -> None:
    every = await _found(shell, asked, history=True)
    number = name.removeprefix("v")
    fact = next((one for one in every if one.id == name or str(one.version) == number), None)
    if fact is None:
        raise EntryNotFoundError(
            f"{asked.session!r} has no fact {name!r}",
            options=(f"acms facts history {asked.session} lists them", "--scope namespace"),
        )
    before = [one for one in every if one.id in fact.replaces]
    gone = fact.retired
    after = next((one for one in every if gone is not None and one.id == gone.by), None)
    async with shell.opened() as storage:
        sources = await _evidence(storage, fact.sources)
        evidence = await _evidence(storage, gone.evidence if gone else ())

    def draw() -> None:
        where = " · ".join(part for part in (fact.subject, fact.attribute) if part) or "no address"
        shell.line(f"v{fact.version} {where}", "bold cyan")
        shell.line(fact.content)
        shell.line(
            f"{fact.fact_type}, {fact.confidence:.2f} sure, as trusted as what the {fact.trust} said", "dim"
        )
        shell.title("It was said")
        _write_sources(shell, sources)
        if before:
            shell.title("It replaced")
            shell.list(FACTS, before)
        if gone is not None:
            shell.title(f"No longer in force since v{gone.version}: {gone.reason}")
            if after is not None:
                shell.list(FACTS, [after])
            _write_sources(shell, evidence)
            shell.line(f"take that back: acms facts undo {asked.session} {gone.version}", "dim")

    value = {"session": asked.session, "fact": fact, "sources": sources, "replaced": before}
    shell.show({**value, "replaced_by": after, "evidence": evidence}, draw)


async def _evidence(storage: StorageBackend, ids: Sequence[str]) -> list[dict[str, Any]]:
    """Return entries of any session by id: where they are, who said them, and how they begin."""
    found: list[dict[str, Any]] = []
    names: dict[str, str] = {}
    mode = ACMSConfig.from_env().privacy.mode
    entries: Sequence[Entry | None] = await storage.get(ids) if ids else ()
    for id, entry in zip(ids, entries, strict=True):
        if entry is None:
            found.append({"id": id, "session": None, "version": None, "speaker": None, "preview": ""})
            continue
        shown_under = mode_of(mode, entry.privacy)
        if shown_under is not None:
            entry = apply_privacy_mode(entry, shown_under, len)
        if entry.context not in names:
            context = await storage.context(entry.context)
            names[entry.context] = context.key or context.id
        found.append(
            {
                "id": id,
                "session": names[entry.context],
                "version": entry.version,
                "speaker": entry.actor or entry.role or entry.kind,
                "preview": preview_text(entry.content, 160) if entry.state == "live" else f"({entry.state})",
            }
        )
    return found


def _write_sources(shell: Shell, found: Sequence[Mapping[str, Any]]) -> None:
    columns = (
        Column("text", wide=True, of="preview"),
        Column("version", "cyan", right=True, of=lambda one: f"v{one['version'] or '?'}"),
        Column("speaker", "yellow"),
        Column("session", "magenta"),
    )
    if found:
        shell.list(columns, found)


async def _undo(shell: Shell, asked: _Asked, version: int) -> None:
    name = asked.session
    if asked.scope == "namespace":
        async with shell.opened() as storage:
            await shell.known(storage, asked.session)
            held = await find_profile(storage, shell.namespace)
        if held is None:
            raise EntryNotFoundError(f"the namespace {shell.namespace!r} has no profile")
        name = held.id
    async with shell.writing(name, works=False) as one:
        undone = await one.undo(version)
    value = {"session": asked.session, "scope": asked.scope, "version": undone, "undone": version}
    shell.show(value, lambda: shell.line(f"v{undone} takes back v{version}"))


# ── by hand ─────────────────────────────────────────────────────────────────────────────────────────────────────────

Subject = Annotated[str, typer.Argument(metavar="SUBJECT", help='What it is about: "orders service".')]
Attribute = Annotated[str, typer.Argument(metavar="ATTRIBUTE", help="Which side of it: database.")]


@command('acms state user_123 "orders service" database "PostgreSQL 18"')
async def state(
    shell: Shell,
    session: Session,
    subject: Subject,
    attribute: Attribute,
    value: Annotated[str, typer.Argument(metavar="VALUE", help="What is so.")],
    names: Annotated[
        list[str] | None,
        typer.Option("--name", metavar="NAME", help="Another name of the subject; may be repeated."),
    ] = None,
    valid_from: Annotated[
        str | None, typer.Option("--valid-from", metavar="TIME", help="It is so from then on.")
    ] = None,
    valid_to: Annotated[
        str | None, typer.Option("--valid-to", metavar="TIME", help="It is so until before then.")
    ] = None,
    many: Annotated[
        bool, typer.Option("--many", help="Beside what is known there, not in its place.")
    ] = False,
    scope: InScope = "session",
    expected: Annotated[
        int | None,
        typer.Option(
            "--expected", min=0, metavar="VERSION", help="Only if the newest fact there is this one; 0: none."
        ),
    ] = None,
) -> None:
    """Write a fact by hand, in place of what was known.

    TIME is a date, which begins at midnight UTC, or a time in ISO 8601. The same again changes nothing.
    """
    known_in = _scoped(scope)
    async with shell.writing(session, works=False) as one:
        before = {fact.id for fact in await one.facts(scope=known_in)}
        fact = await one.state(
            subject,
            attribute,
            value,
            names=names or (),
            valid_from=valid_from,
            valid_to=valid_to,
            cardinality="many" if many else "one",
            scope=known_in,
            expected=expected,
        )
    new = fact.id not in before
    word = f"v{fact.version}" if new else f"known already, v{fact.version}"
    shell.show({"session": session, "fact": fact, "new": new}, lambda: shell.line(f"{word}: {fact.content}"))


@command('acms unstate user_123 "orders service" database')
async def unstate(
    shell: Shell, session: Session, subject: Subject, attribute: Attribute, scope: InScope = "session"
) -> None:
    """Withdraw what is known about a subject and an attribute."""
    known_in = _scoped(scope)
    async with shell.writing(session, works=False) as one:
        gone = await one.unstate(subject, attribute, scope=known_in)

    def draw() -> None:
        if not gone:
            shell.line("nothing is known about it")
        for fact in gone:
            by = fact.retired.version if fact.retired else 0
            shell.line(f"v{by} ends v{fact.version}: {fact.content}")

    shell.show({"session": session, "facts": gone}, draw)


# ── reflect ─────────────────────────────────────────────────────────────────────────────────────────────────────────

DECISIONS = (
    Column("value", wide=True, of=lambda one: preview_text(one.proposal.value or one.proposal.content, 80)),
    Column("outcome", "magenta"),
    Column("subject", of=lambda one: one.proposal.subject),
    Column("attribute", of=lambda one: one.proposal.attribute),
    Column("reason"),
    Column("asked", of=lambda one: one.proposal.action),
)


@command("acms reflect user_123 --wait")
async def reflect(
    shell: Shell,
    session: Session,
    reflector: ReflectorName = None,
    url: Url = None,
    model: Model = None,
    wait: Annotated[bool, typer.Option("--wait", help="Work it off here and show what it did.")] = False,
) -> None:
    """Distil facts from the episodes that have ended.

    Asks for it and leaves: `acms worker` with the same --reflector does it. With --wait it is done here. Without
    --reflector rules do it, which need no model. Keys of a model come from the environment alone.
    """
    done: list[Reflected] = []
    async with shell.reading(session) as one:
        waiting = sum(episode.summary is None for episode in await one.episodes("closed"))
    with shell.progress("reflecting") as progress:

        def heard(event: Event) -> None:
            if isinstance(event, Reflected):
                done.append(event)
                progress(sum(len(each.episodes) for each in done), waiting)

        progress(0, waiting)
        async with (
            reflecting(reflector or "offline", url=url, model=model) as chosen,
            shell.writing(session, works=wait, reflector=chosen, on_event=heard) as one,
        ):
            job = await one.reflect()
            if wait:
                await one.wait(job)
            left = sum(episode.summary is None for episode in await one.episodes("closed"))
    decisions = [decision for each in done for decision in each.decisions]

    def draw() -> None:
        if not wait:
            shell.line(f"job {job.id} is waiting for a worker: acms worker")
            return
        if decisions:
            shell.list(DECISIONS, decisions)
        shell.line(f"{waiting - left} episodes reflected on, {left} wait for more to be said", "dim")

    value = {"session": session, "job": job.id, "waiting": left, "reflected": done}
    shell.show(value, draw)
