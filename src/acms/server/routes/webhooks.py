"""Webhooks over HTTP: addresses that receive new entries of a tenant's logs and changes of its jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from acms.events.webhooks import KINDS, URL_CHARS, Told, Webhooks
from acms.model import Job, Webhook
from acms.nouns import encode_noun
from acms.server.operation import Body, Call, Operations, Reply, Scope
from acms.server.replies import describe_list_reply, describe_single_reply, reply_with_page
from acms.server.routes.jobs import filter_visible_jobs

__all__ = ["operations"]

operations = Operations("webhooks")

_PATH = "/webhooks/{webhook_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewWebhook(Webhook):
    """A webhook that was just added."""

    #: What its receiver checks signatures with; it cannot be shown again.
    secret: str


class WebhookBody(Body):
    """The address and the events to send."""

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
    """Send new entries of all logs of the tenant, and changes of its jobs, to an address from now on.

    Requests hold ids, kinds and versions, but no text, and are signed according to Standard Webhooks with the secret in
    this reply, which cannot be shown again. Addresses that are not public are never connected to, even if a name
    resolves to one later.
    """
    webhook, secret = await _open_webhooks(call).add(call.body.url, events=call.body.events)
    return Reply(body={"data": {**encode_noun(webhook), "secret": secret}})


@operations("GET", "/webhooks", scope=Scope.ADMIN, reply=describe_list_reply(Webhook, str))
async def list_webhooks(call: Call[None, None]) -> Reply:
    """List the webhooks of the tenant, oldest first, without their secrets.

    A secret is shown once, when its webhook is added.
    """
    return reply_with_page([encode_noun(webhook) for webhook in await _open_webhooks(call).list()], None)


@operations("DELETE", _PATH, scope=Scope.ADMIN, status=204)
async def remove_webhook(call: Call[None, None]) -> Reply:
    """Remove a webhook. Pending deliveries are dropped.

    A webhook that does not exist is an error with status 404.
    """
    await _open_webhooks(call).remove(call.path["webhook_id"])
    return Reply()


@operations("POST", f"{_PATH}/replay", scope=Scope.ADMIN, reply=describe_list_reply(Job, str))
async def replay_webhook(call: Call[None, None]) -> Reply:
    """Retry the failed deliveries of a webhook, each log from its first undelivered entry, and return the jobs.

    Failed deliveries are listed as failed jobs of the kind `webhook`.
    """
    jobs = await _open_webhooks(call).replay(call.path["webhook_id"])
    call.tenant.start_worker()
    return reply_with_page([encode_noun(job) for job in await filter_visible_jobs(call.tenant, jobs)], None)
