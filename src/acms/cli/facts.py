"""Commands about what is known: facts with their history and evidence, and the reflection that finds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from acms.cli import render
from acms.cli.base import (
    AsJson,
    At,
    Db,
    Model,
    Namespace,
    ReflectorName,
    Session,
    Url,
    app,
    known,
    looking,
    opened,
    reading,
    reflecting,
    run,
    writing,
)
from acms.cli.render import Column, Screen
from acms.config import ACMSConfig
from acms.errors import EntryNotFoundError, ValidationError
from acms.facts.by_hand import when
from acms.knowledge import Decision, Fact, Scope
from acms.log.encoding import locate
from acms.log.in_force import preview
from acms.log.read import profile
from acms.log.validity import Period
from acms.model import Entry
from acms.observability.events import Event, Reflected
from acms.ports import StorageBackend
from acms.privacy.modes import mode_of
from acms.privacy.redact_entry import cleared

LIST, HISTORY, WHY, UNDO = "list", "history", "why", "undo"


@app.command(epilog='Example:  acms facts history user_123 "orders service" database')
def facts(
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
    scope: Annotated[
        str,
        typer.Option("--scope", metavar="S", help="session, or namespace: its profile of facts."),
    ] = "session",
    at: At = None,
    valid_at: Annotated[
        str | None,
        typer.Option(
            "--valid-at", metavar="TIME", help="Only what was so then: a date, an ISO 8601 time or now."
        ),
    ] = None,
    db: Db = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """List what is known, with its history and its evidence; take a change back.

    FACT is the id of a fact, or its version. undo takes back the entry at VERSION: what it replaced is known again.
    """
    verb, *rest = words
    if verb not in (LIST, HISTORY, WHY, UNDO):
        verb, rest = LIST, words
    if valid_at is not None and verb != LIST:
        raise typer.BadParameter(f"{verb} takes no --valid-at", param_hint="--valid-at")
    _check(verb, rest, scope=scope, narrowed=bool(subject or attribute or fact_type), at=at)
    about, side = ([*rest[1:], None, None] if verb == HISTORY else [None, None])[:2]
    asked = _Asked(
        session=rest[0],
        subject=about or subject,
        attribute=side or attribute,
        fact_type=fact_type,
        scope="namespace" if scope == "namespace" else "session",
        at=at,
        valid_at=_moment(valid_at),
        db=db,
        namespace=namespace,
        as_json=as_json,
    )
    if verb == LIST:
        run(as_json, _list(asked))
    elif verb == HISTORY:
        run(as_json, _history(asked))
    elif verb == WHY:
        run(as_json, _why(asked, rest[1]))
    else:
        run(as_json, _undo(asked, int(rest[1].removeprefix("v"))))


def _moment(value: str | None) -> datetime | None:
    if value is None or value == "now":
        return None if value is None else datetime.now(UTC)
    try:
        return when(value, "valid_at")
    except ValidationError as error:
        raise typer.BadParameter(str(error), param_hint="--valid-at") from error


_WORDS = {
    LIST: (1, 1, "one session"),
    HISTORY: (1, 3, "a session, and perhaps a subject and an attribute"),
    WHY: (2, 2, "a session and a fact"),
    UNDO: (2, 2, "a session and a version"),
}


def _check(verb: str, rest: Sequence[str], *, scope: str, narrowed: bool, at: str | None) -> None:
    """Refuse words and options that do not belong together."""
    least, most, wanted = _WORDS[verb]
    if not least <= len(rest) <= most:
        raise typer.BadParameter(f"{verb} takes {wanted}", param_hint="WORDS")
    if scope not in ("session", "namespace"):
        raise typer.BadParameter(f"{scope!r} is not session or namespace", param_hint="--scope")
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
    db: str | None
    namespace: str
    as_json: bool


async def _found(asked: _Asked, *, history: bool) -> list[Fact]:
    async with looking(asked.db, asked.namespace, asked.session, asked.at) as view:
        return await view.facts(
            subject=asked.subject,
            attribute=asked.attribute,
            fact_type=asked.fact_type,
            scope=asked.scope,
            history=history,
            valid_at=asked.valid_at,
        )


# ── what is known ───────────────────────────────────────────────────────────────────────────────────────────────────

FACTS = (
    Column("version", "cyan", right=True),
    Column("id", "dim"),
    Column("subject", "magenta"),
    Column("attribute", "magenta"),
    Column("type"),
    Column("sure", "green", right=True),
    Column("from", "yellow"),
    Column("since", "dim"),
    Column("value"),
)


def fact_row(fact: Fact) -> list[str]:
    """Return a fact as a row of the `FACTS` table."""
    return [
        f"v{fact.version}",
        fact.id,
        fact.subject,
        fact.attribute,
        fact.fact_type,
        f"{fact.confidence:.2f}",
        _versions(fact.sources, fact.context),
        f"{fact.created_at:%Y-%m-%d %H:%M}" if fact.created_at else "",
        _value(fact),
    ]


def _value(fact: Fact) -> str:
    """Return the value of a fact, and from when on or until when it is so."""
    period = Period(fact.valid_from, fact.valid_to)
    return f"{preview(fact.value or fact.content, 160)} {period.label(datetime.now(UTC))}".rstrip()


def _versions(ids: Sequence[str], context: str) -> str:
    """Return where entries stand; those of another log are counted."""
    places = [place for place in map(locate, ids) if place is not None]
    own = [f"v{version}" for owner, version in places if owner == context]
    others = len(ids) - len(own)
    return " ".join([*own, *([f"{others} elsewhere"] if others else [])])


async def _list(asked: _Asked) -> None:
    found = await _found(asked, history=False)
    screen = Screen(asked.as_json)

    def draw() -> None:
        if found:
            screen.table(FACTS, [fact_row(fact) for fact in found])
        else:
            screen.line("no facts; acms reflect finds them")

    screen.show({"session": asked.session, "scope": asked.scope, "facts": found}, draw)


CHANGES = (
    Column("version", "cyan", right=True),
    Column("subject", "magenta"),
    Column("attribute", "magenta"),
    Column("until", right=True),
    Column("reason"),
    Column("from", "yellow"),
    Column("evidence", "yellow"),
    Column("value"),
)


async def _history(asked: _Asked) -> None:
    found = await _found(asked, history=True)
    screen = Screen(asked.as_json)
    rows: list[list[str]] = []
    for fact in found:
        gone = fact.retired
        rows.append(
            [
                f"v{fact.version}",
                fact.subject,
                fact.attribute,
                f"v{gone.version}" if gone else "in force",
                gone.reason if gone else "",
                _versions(fact.sources, fact.context),
                _versions(gone.evidence, fact.context) if gone else "",
                _value(fact),
            ]
        )

    def draw() -> None:
        if rows:
            screen.table(CHANGES, rows)
        else:
            screen.line("nothing was ever known about it")

    screen.show({"session": asked.session, "scope": asked.scope, "facts": found}, draw)


# ── why ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def _why(asked: _Asked, name: str) -> None:
    every = await _found(asked, history=True)
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
    async with opened(asked.db) as storage:
        sources = await _evidence(storage, fact.sources)
        evidence = await _evidence(storage, gone.evidence if gone else ())
    screen = Screen(asked.as_json)

    def draw() -> None:
        where = " · ".join(part for part in (fact.subject, fact.attribute) if part) or "no address"
        screen.line(f"v{fact.version} {where}", "bold cyan")
        screen.line(fact.content)
        screen.line(
            f"{fact.fact_type}, {fact.confidence:.2f} sure, as trusted as what the {fact.trust} said", "dim"
        )
        screen.title("It was said")
        _write_sources(screen, sources)
        if before:
            screen.title("It replaced")
            screen.table(FACTS, [fact_row(one) for one in before])
        if gone is not None:
            screen.title(f"No longer in force since v{gone.version}: {gone.reason}")
            if after is not None:
                screen.table(FACTS, [fact_row(after)])
            _write_sources(screen, evidence)
            screen.line(f"take that back: acms facts undo {asked.session} {gone.version}", "dim")

    value = {"session": asked.session, "fact": fact, "sources": sources, "replaced": before}
    screen.show({**value, "replaced_by": after, "evidence": evidence}, draw)


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
            entry = cleared(entry, shown_under, len)
        if entry.context not in names:
            context = await storage.context(entry.context)
            names[entry.context] = context.key or context.id
        found.append(
            {
                "id": id,
                "session": names[entry.context],
                "version": entry.version,
                "speaker": entry.actor or entry.role or entry.kind,
                "preview": preview(entry.content, 160) if entry.state == "live" else f"({entry.state})",
            }
        )
    return found


def _write_sources(screen: Screen, found: Sequence[Mapping[str, Any]]) -> None:
    columns = (
        Column("session", "magenta"),
        Column("version", "cyan", right=True),
        Column("speaker", "yellow"),
        Column("text"),
    )
    rows = [
        [str(one["session"] or ""), f"v{one['version'] or '?'}", str(one["speaker"] or ""), one["preview"]]
        for one in found
    ]
    if rows:
        screen.table(columns, rows)


async def _undo(asked: _Asked, version: int) -> None:
    name = asked.session
    if asked.scope == "namespace":
        async with opened(asked.db) as storage:
            await known(storage, asked.session, asked.namespace)
            held = await profile(storage, asked.namespace)
        if held is None:
            raise EntryNotFoundError(f"the namespace {asked.namespace!r} has no profile")
        name = held.id
    async with writing(asked.db, asked.namespace, name, works=False) as one:
        undone = await one.undo(version)
    screen = Screen(asked.as_json)
    value = {"session": asked.session, "scope": asked.scope, "version": undone, "undone": version}
    screen.show(value, lambda: screen.line(f"v{undone} takes back v{version}"))


# ── by hand ─────────────────────────────────────────────────────────────────────────────────────────────────────────

Subject = Annotated[str, typer.Argument(metavar="SUBJECT", help='What it is about: "orders service".')]
Attribute = Annotated[str, typer.Argument(metavar="ATTRIBUTE", help="Which side of it: database.")]


@app.command(epilog='Example:  acms state user_123 "orders service" database "PostgreSQL 18"')
def state(
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
    sources: Annotated[
        list[str] | None,
        typer.Option("--source", metavar="ID", help="A message it comes from; may be repeated."),
    ] = None,
    many: Annotated[
        bool, typer.Option("--many", help="Beside what is known there, not in its place.")
    ] = False,
    db: Db = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Write a fact by hand; it takes the place of what is known about the same.

    TIME is a date, which begins at midnight UTC, or a time in ISO 8601. The same again changes nothing.
    """

    async def work() -> None:
        async with writing(db, namespace, session, works=False) as one:
            before = {fact.id for fact in await one.facts()}
            fact = await one.state(
                subject,
                attribute,
                value,
                names=names or (),
                valid_from=valid_from,
                valid_to=valid_to,
                sources=sources or (),
                cardinality="many" if many else "one",
            )
        screen = Screen(as_json)
        new = fact.id not in before
        word = f"v{fact.version}" if new else f"known already, v{fact.version}"
        screen.show(
            {"session": session, "fact": fact, "new": new},
            lambda: screen.line(f"{word}: {fact.content}"),
        )

    run(as_json, work())


@app.command(epilog='Example:  acms unstate user_123 "orders service" database')
def unstate(
    session: Session,
    subject: Subject,
    attribute: Attribute,
    db: Db = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Withdraw what is known about a subject and an attribute: it is no longer so."""

    async def work() -> None:
        async with writing(db, namespace, session, works=False) as one:
            gone = await one.unstate(subject, attribute)
        screen = Screen(as_json)

        def draw() -> None:
            if not gone:
                screen.line("nothing is known about it")
            for fact in gone:
                by = fact.retired.version if fact.retired else 0
                screen.line(f"v{by} ends v{fact.version}: {fact.content}")

        screen.show({"session": session, "facts": gone}, draw)

    run(as_json, work())


# ── reflect ─────────────────────────────────────────────────────────────────────────────────────────────────────────

DECISIONS = (
    Column("outcome", "magenta"),
    Column("asked"),
    Column("subject"),
    Column("attribute"),
    Column("value"),
    Column("reason"),
)


def _decision_row(decision: Decision) -> list[str]:
    proposal = decision.proposal
    return [
        decision.outcome,
        proposal.action,
        proposal.subject,
        proposal.attribute,
        preview(proposal.value or proposal.content, 80),
        decision.reason,
    ]


@app.command(epilog="Example:  acms reflect user_123 --wait")
def reflect(
    session: Session,
    reflector: ReflectorName = None,
    url: Url = None,
    model: Model = None,
    wait: Annotated[bool, typer.Option("--wait", help="Work it off here and show what it did.")] = False,
    db: Db = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """Distil facts from the episodes that have ended.

    Asks for it and leaves: `acms worker` with the same --reflector does it. With --wait it is done here. Without
    --reflector rules do it, which need no model. Keys of a model come from the environment alone.
    """

    async def work() -> None:
        done: list[Reflected] = []
        async with reading(db, namespace, session) as one:
            waiting = sum(episode.summary is None for episode in await one.episodes("closed"))
        with render.progress("reflecting") as progress:

            def heard(event: Event) -> None:
                if isinstance(event, Reflected):
                    done.append(event)
                    progress(sum(len(each.episodes) for each in done), waiting)

            progress(0, waiting)
            async with (
                reflecting(reflector or "offline", url=url, model=model) as chosen,
                writing(db, namespace, session, works=wait, reflector=chosen, on_event=heard) as one,
            ):
                job = await one.reflect()
                if wait:
                    await one.wait(job)
                left = sum(episode.summary is None for episode in await one.episodes("closed"))
        decisions = [decision for each in done for decision in each.decisions]
        screen = Screen(as_json)

        def draw() -> None:
            if not wait:
                screen.line(f"job {job.id} is waiting for a worker: acms worker")
                return
            if decisions:
                screen.table(DECISIONS, [_decision_row(decision) for decision in decisions])
            screen.line(f"{waiting - left} episodes reflected on, {left} wait for more to be said", "dim")

        value = {"session": session, "job": job.id, "waiting": left, "reflected": done}
        screen.show(value, draw)

    run(as_json, work())
