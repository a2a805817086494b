"""Webhooks over HTTP: the addresses that are told what is appended to the logs of a tenant, and what jobs do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from acms.events.webhooks import KINDS, URL_CHARS, Told, Webhooks
from acms.model import Job
from acms.nouns import encode_noun
from acms.results import Webhook
from acms.server.operation import Body, Call, Operations, Reply, Scope
from acms.server.replies import describe_list_reply, describe_single_reply, reply_with_page
from acms.server.routes.jobs import filter_visible_jobs

__all__ = ["operations"]

operations = Operations("webhooks")

_PATH = "/webhooks/{webhook_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewWebhook(Webhook):
    """A webhook that was added just now."""

    #: What its receiver checks signatures with; it cannot be shown again.
    secret: str


class WebhookBody(Body):
    """Who is told, and of what."""

    url: Annotated[str, Field(max_length=URL_CHARS)]
    """Public https address that receives the events."""
    events: Annotated[Sequence[Told], Field(min_length=1)] = KINDS
    """Kinds of entries to send; `job` sends changes of jobs."""


def _open_webhooks(call: Call[Any, Any]) -> Webhooks:
    return Webhooks(call.tenant.handle)


@operations(
    "POST",
    "/webhooks",
    scope=Scope.ADMIN,
    body=WebhookBody,
    reply=describe_single_reply(NewWebhook),
    status=201,
    example={"url": "https://example.com/acms", "events": ["message", "fact"]},
)
async def add_webhook(call: Call[None, WebhookBody]) -> Reply:
    """Tell an address what is appended from now on, in each log of the tenant, and how its jobs change.

    It is sent ids, kinds and versions, no text, signed as Standard Webhooks has it with the secret that is shown here,
    this once. An address that is not public is never connected to, whatever its name resolves to by then.
    """
    made, secret = await _open_webhooks(call).add(call.body.url, events=call.body.events)
    return Reply(body={"data": {**encode_noun(made), "secret": secret}})


@operations("GET", "/webhooks", scope=Scope.ADMIN, reply=describe_list_reply(Webhook, str))
async def list_webhooks(call: Call[None, None]) -> Reply:
    """List the webhooks of the tenant, oldest first; never their secrets."""
    return reply_with_page([encode_noun(one) for one in await _open_webhooks(call).list()], None)


@operations("DELETE", _PATH, scope=Scope.ADMIN, status=204)
async def remove_webhook(call: Call[None, None]) -> Reply:
    """Remove a webhook; what was not delivered to it by now is not."""
    await _open_webhooks(call).remove(call.path["webhook_id"])
    return Reply()


@operations("POST", f"{_PATH}/replay", scope=Scope.ADMIN, reply=describe_list_reply(Job, str))
async def replay_webhook(call: Call[None, None]) -> Reply:
    """Deliver again what was given up, each log from the first entry that was not taken; the answer are the jobs.

    What was given up is listed as jobs of the kind `webhook` that failed.
    """
    jobs = await _open_webhooks(call).replay(call.path["webhook_id"])
    call.tenant.work()
    return reply_with_page([encode_noun(job) for job in await filter_visible_jobs(call.tenant, jobs)], None)
