"""Commands for the events of a log: `events` and `webhook`."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import contextmanager
from typing import Annotated

import typer

from acms.cli import output
from acms.cli.base import Session, Shell, create_group, define_command
from acms.cli.output import Column, count_noun, fields_of
from acms.errors import NotFoundError
from acms.log.active_entries import preview_text
from acms.model import Webhook
from acms.results import LogEvent

events = create_group("events", "List the events of a session, or send events to URLs.", default="list")
webhook = create_group("webhook", "Send events to URLs.", parent=events)

WEBHOOKS = (
    Column("id", "cyan"),
    Column("url", wide=True),
    Column("events", value=lambda webhook: " ".join(webhook["events"])),
    Column("private", value=lambda webhook: "private" if webhook["private"] else ""),
    Column("made", "dim", value="created_at"),
)
WebhookId = Annotated[str, typer.Argument(metavar="ID", help="Id of the webhook.")]


@define_command("list", "acms events user_123 --after 40 --follow", group=events)
async def list_events(
    shell: Shell,
    session: Session,
    after: Annotated[
        str,
        typer.Option("--after", metavar="CURSOR", help="Start after this event or version."),
    ] = "0",
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for new events until interrupted.")
    ] = False,
) -> None:
    """List the appended entries and the job changes of a session.

    One line per event, in the order of versions. A line begins with the cursor for --after. With --json, each line is a
    JSON object.
    """
    async with shell.open_session(session) as reader:
        async for event in reader.events(after=after.removeprefix("v"), follow=follow):
            _write_event(shell, event)


def _write_event(shell: Shell, event: LogEvent) -> None:
    """Write one line and flush it, because the output may be a pipe."""
    if not shell.as_json:
        line = output.strip_control_characters(f"{event.cursor}\t{_event_text(event)}")
        print(line, flush=True)
        return
    change = {"entry": event.entry} if event.job is None else {"job": event.job}
    value = output.to_json_value({"cursor": event.cursor, **change})
    print(json.dumps(value, ensure_ascii=False), flush=True)


def _event_text(event: LogEvent) -> str:
    job, entry = event.job, event.entry
    if job is not None:
        return f"job {job.id} {job.kind} {job.state}"
    assert entry is not None
    speaker = entry.actor or entry.role or entry.kind
    text = preview_text(entry.content, 100) if entry.state == "live" else f"({entry.state})"
    return f"{entry.kind} v{entry.version} {speaker}: {text}"


UrlArgument = Annotated[str, typer.Argument(metavar="URL", help="URL that receives the requests.")]
EventsOption = Annotated[
    str | None,
    typer.Option("--events", metavar="KIND,...", help="Kinds of entries, or job; default: all."),
]
PrivateOption = Annotated[bool, typer.Option("--private", help="Allow plain HTTP and private addresses.")]


@define_command(
    "add",
    "acms events webhook add https://example.com/acms --events message,fact",
    group=webhook,
    namespace=None,
)
async def add_webhook(
    shell: Shell,
    url: UrlArgument,
    events: EventsOption = None,
    private: PrivateOption = False,
) -> None:
    """Send new entries and job changes to a URL, and show its secret once.

    Requests contain ids, kinds and versions, but no text. They are signed according to Standard Webhooks and sent by
    `acms serve` or `acms worker`.
    """
    from acms.events.webhooks import KINDS, Webhooks

    kinds = KINDS if events is None else [kind.strip() for kind in events.split(",")]
    async with shell.open_store(write=True) as storage:
        new_webhook, secret = await Webhooks(storage).add(url, events=kinds, private=private)

    def draw() -> None:
        shell.line(secret)
        shell.line(f"webhook {new_webhook.id} is told of {' '.join(new_webhook.events)}", "dim")
        shell.line("keep it now: it cannot be shown again", "dim")

    shell.show({"webhook": _webhook_json(new_webhook), "secret": secret}, draw)


@define_command("list", "acms events webhook list", group=webhook, namespace=None)
async def list_webhooks(shell: Shell) -> None:
    """List the webhooks, oldest first, without their secrets.

    Failed deliveries are jobs: `acms jobs --state failed`.
    """
    from acms.events.webhooks import Webhooks

    async with shell.open_store() as storage:
        rows = [_webhook_json(hook) for hook in await Webhooks(storage).list()]
    if_empty = "there are no webhooks: acms events webhook add URL"
    shell.show_list({"webhooks": rows}, WEBHOOKS, rows, if_empty=if_empty)


@define_command("remove", "acms events webhook remove 7kq2m9xd4c1a", group=webhook, namespace=None)
async def remove_webhook(shell: Shell, id: WebhookId) -> None:
    """Remove a webhook and drop its pending deliveries."""
    from acms.events.webhooks import Webhooks

    async with shell.open_store() as storage:
        with _name_list_command():
            await Webhooks(storage).remove(id)
    shell.show_line({"removed": id}, f"the webhook {id} is removed")


@define_command("replay", "acms events webhook replay 7kq2m9xd4c1a", group=webhook, namespace=None)
async def replay_webhook(shell: Shell, id: WebhookId) -> None:
    """Retry failed deliveries, from the first undelivered entry of each session."""
    from acms.events.webhooks import Webhooks

    async with shell.open_store() as storage:
        with _name_list_command():
            jobs = await Webhooks(storage).replay(id)
    shell.show_line({"jobs": jobs}, f"{count_noun(len(jobs), 'session')} to be delivered again")


@contextmanager
def _name_list_command() -> Generator[None]:
    """Let the error for an unknown id name the command that lists the webhooks."""
    try:
        yield
    except NotFoundError as error:
        raise NotFoundError(str(error), options=("acms events webhook list",)) from error


def _webhook_json(webhook: Webhook) -> dict[str, object]:
    return {**fields_of(webhook), "events": list(webhook.events)}
