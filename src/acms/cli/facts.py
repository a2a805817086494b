"""Commands about what is known: facts with their history and evidence, and the reflection that finds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
from acms.errors import EntryNotFoundError
from acms.knowledge import Fact, Scope
from acms.log.encoding import locate
from acms.log.in_force import preview
from acms.log.read import profile
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
    db: Db = None,
    namespace: Namespace = "default",
    as_json: AsJson = False,
) -> None:
    """List what is known, and why; take a change back.

    FACT is the id of a fact, or its version. undo takes back the entry at VERSION: what it replaced is known again.
    """
    verb, *rest = words
    if verb not in (LIST, HISTORY, WHY, UNDO):
        verb, rest = LIST, words
    _check(verb, rest, scope=scope, narrowed=bool(subject or attribute or fact_type), at=at)
    about, side = ([*rest[1:], None, None] if verb == HISTORY else [None, None])[:2]
    asked = _Asked(
        session=rest[0],
        subject=about or subject,
        attribute=side or attribute,
        fact_type=fact_type,
        scope="namespace" if scope == "namespace" else "session",
        at=at,
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
        )


# ── what is known ───────────────────────────────────────────────────────────────────────────────────────────────────

FACTS = (
    Column("value", wide=True, of=lambda fact: preview(fact.value or fact.content, 160)),
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
    places = [place for place in map(locate, ids) if place is not None]
    own = [f"v{version}" for owner, version in places if owner == context]
    others = len(ids) - len(own)
    return " ".join([*own, *([f"{others} elsewhere"] if others else [])])


async def _list(asked: _Asked) -> None:
    found = await _found(asked, history=False)
    screen = Screen(asked.as_json)

    def draw() -> None:
        screen.list(FACTS, found, none="no facts; acms reflect finds them")

    screen.show({"session": asked.session, "scope": asked.scope, "facts": found}, draw)


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


async def _history(asked: _Asked) -> None:
    found = await _found(asked, history=True)
    screen = Screen(asked.as_json)

    def draw() -> None:
        screen.list(CHANGES, found, none="nothing was ever known about it")

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
            screen.list(FACTS, before)
        if gone is not None:
            screen.title(f"No longer in force since v{gone.version}: {gone.reason}")
            if after is not None:
                screen.list(FACTS, [after])
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
        Column("text", wide=True, of="preview"),
        Column("version", "cyan", right=True, of=lambda one: f"v{one['version'] or '?'}"),
        Column("speaker", "yellow"),
        Column("session", "magenta"),
    )
    if found:
        screen.list(columns, found)


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


# ── reflect ─────────────────────────────────────────────────────────────────────────────────────────────────────────

DECISIONS = (
    Column("value", wide=True, of=lambda one: preview(one.proposal.value or one.proposal.content, 80)),
    Column("outcome", "magenta"),
    Column("subject", of=lambda one: one.proposal.subject),
    Column("attribute", of=lambda one: one.proposal.attribute),
    Column("reason"),
    Column("asked", of=lambda one: one.proposal.action),
)


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
        screen = Screen(as_json)
        with screen.progress("reflecting") as progress:

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

        def draw() -> None:
            if not wait:
                screen.line(f"job {job.id} is waiting for a worker: acms worker")
                return
            if decisions:
                screen.list(DECISIONS, decisions)
            screen.line(f"{waiting - left} episodes reflected on, {left} wait for more to be said", "dim")

        value = {"session": session, "job": job.id, "waiting": left, "reflected": done}
        screen.show(value, draw)

    run(as_json, work())
