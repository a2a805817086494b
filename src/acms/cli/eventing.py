"""Commands for what happens to a log: following it, and telling it to addresses."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from acms.cli import render
from acms.cli.base import Session, Shell, app, command
from acms.cli.render import Column, fields_of
from acms.log.in_force import preview_text
from acms.results import LogEvent, Webhook

webhook = typer.Typer(help="Tell addresses what is appended.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(webhook, name="webhook")

WEBHOOKS = (
    Column("id", "cyan"),
    Column("url", wide=True),
    Column("events", of=lambda one: " ".join(one["events"])),
    Column("private", of=lambda one: "private" if one["private"] else ""),
    Column("made", "dim", of="created_at"),
)
WebhookId = Annotated[str, typer.Argument(metavar="ID", help="Id of the webhook.")]

PREVIEW = 100
"""Characters of a text that a line shows."""


@command("acms events user_123 --after 40 --follow")
async def events(
    shell: Shell,
    session: Session,
    after: Annotated[
        str,
        typer.Option("--after", metavar="CURSOR", help="Start behind this event, or this version."),
    ] = "0",
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what happens, until it is interrupted.")
    ] = False,
) -> None:
    """List what was appended to a session, and how its jobs stand.

    A line each, in the order of versions. It begins with the cursor that --after goes on behind. With --json a line
    is a JSON object.
    """
    async with shell.reading(session) as one:
        async for event in one.events(after=after, follow=follow):
            _write(shell, event)


def _write(shell: Shell, event: LogEvent) -> None:
    """Write one line, at once: whoever reads it may be a pipe."""
    if shell.as_json:
        happened = {"entry": event.entry} if event.job is None else {"job": event.job}
        print(json.dumps(render.plain({"cursor": event.cursor, **happened}), ensure_ascii=False), flush=True)
        return
    print(render.clean(f"{event.cursor}\t{_text(event)}"), flush=True)


def _text(event: LogEvent) -> str:
    if (job := event.job) is not None:
        return f"job {job.id} {job.kind} {job.state}"
    entry = event.entry
    assert entry is not None
    who = entry.actor or entry.role or entry.kind
    text = preview_text(entry.content, PREVIEW) if entry.state == "live" else f"({entry.state})"
    return f"{entry.kind} v{entry.version} {who}: {text}"


@command(
    "acms webhook add https://example.com/acms --events message,fact",
    name="add",
    home=webhook,
    namespace=None,
)
async def add(
    shell: Shell,
    url: Annotated[str, typer.Argument(metavar="URL", help="Where requests are sent.")],
    events: Annotated[
        str | None,
        typer.Option(
            "--events", metavar="KIND,...", help="Kinds of entries it is told of, job; default: all."
        ),
    ] = None,
    private: Annotated[
        bool, typer.Option("--private", help="Allow plain HTTP and an address in your own network.")
    ] = False,
) -> None:
    """Tell an address what is appended from now on and how jobs change, and show its secret, this once.

    It is sent ids, kinds and versions, no text, signed as Standard Webhooks has it, by acms serve or acms worker.
    """
    from acms.events.webhooks import KINDS, Webhooks

    kinds = KINDS if events is None else [one.strip() for one in events.split(",")]
    async with shell.opened(write=True) as storage:
        made, secret = await Webhooks(storage).add(url, events=kinds, private=private)

    def draw() -> None:
        shell.line(secret)
        shell.line(f"webhook {made.id} is told of {' '.join(made.events)}", "dim")
        shell.line("keep it now: it cannot be shown again", "dim")

    shell.show({"webhook": _listed(made), "secret": secret}, draw)


@command("acms webhook list", name="list", home=webhook, namespace=None)
async def list_webhooks(shell: Shell) -> None:
    """List webhooks, oldest first; never their secrets.

    What could not be delivered is among the jobs: acms jobs --state failed.
    """
    from acms.events.webhooks import Webhooks

    async with shell.opened() as storage:
        listed = [_listed(one) for one in await Webhooks(storage).list()]
    none = "there are no webhooks: acms webhook add URL"
    shell.show({"webhooks": listed}, lambda: shell.list(WEBHOOKS, listed, none=none))


@command("acms webhook remove 7kq2m9xd4c1a", name="remove", home=webhook, namespace=None)
async def remove(shell: Shell, id: WebhookId) -> None:
    """Remove a webhook; what was not delivered to it by now is not."""
    from acms.events.webhooks import Webhooks

    async with shell.opened() as storage:
        await Webhooks(storage).remove(id)
    shell.show({"removed": id}, lambda: shell.line(f"the webhook {id} is told nothing any more"))


@command("acms webhook replay 7kq2m9xd4c1a", name="replay", home=webhook, namespace=None)
async def replay(shell: Shell, id: WebhookId) -> None:
    """Deliver again what was given up, each session from the first entry that was not taken."""
    from acms.events.webhooks import Webhooks

    async with shell.opened() as storage:
        jobs = await Webhooks(storage).replay(id)
    shell.show({"jobs": jobs}, lambda: shell.line(f"{len(jobs)} sessions are delivered again"))


def _listed(made: Webhook) -> dict[str, object]:
    return {
        name: list(value) if isinstance(value, tuple) else value for name, value in fields_of(made).items()
    }
