"""Compaction over HTTP: ask for one, list them, take one back, and the policy that says when."""

from __future__ import annotations

from dataclasses import dataclass, make_dataclass
from typing import Annotated, Literal

from pydantic import Field

from acms.errors import EntryNotFoundError, ValidationError
from acms.log import policy as policy_levels
from acms.log import validation
from acms.log.policy import FIELDS, HOLD, RETENTION, CompactionPolicy, ResolvedPolicy
from acms.model import Entry, Job, JobQuery, Kind
from acms.nouns import encode_noun
from acms.results import Compaction
from acms.server.operation import Body, Call, Operations, Reply, Scope
from acms.server.replies import describe_list_reply, describe_single_reply, paginate_reply, reply_with_data
from acms.server.routes.contexts import PolicyBody
from acms.server.routes.jobs import wait_for_requested_job
from acms.server.versions import VersionQuery, view_at
from acms.session import ACMS

__all__ = ["Rewrite", "operations", "version_of"]

operations = Operations("compaction")

_CONTEXT = "/contexts/{context_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedCompaction:
    """A requested compaction."""

    job: Job
    #: Its result; null while it is in progress, and if there was nothing worth compacting.
    compaction: Compaction | None


class ListCompactions(VersionQuery):
    """Which compactions to list."""

    cursor: Annotated[int, Field(ge=0)] = 0
    """Version after which the page begins: `nextCursor` of the previous page."""
    limit: Annotated[int, Field(ge=1, le=500)] = 50
    """Largest number of items in the page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """The entry that a rewrite added to the log."""

    #: Version of the new entry; undoing it makes the replaced entries active again.
    version: int


# ── compactions ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def _answer_repeated_compaction(call: Call[None, PolicyBody], location: str) -> Reply | None:
    """Answer a repeated request with the job of the first one."""
    session = await call.tenant.session(call.path["context_id"])
    jobs = (await call.tenant.handle.jobs(JobQuery(ids=(location.rpartition("/")[2],)))).items
    return await _job_reply(call, session, jobs[0]) if jobs else None


@operations(
    "POST",
    f"{_CONTEXT}/compact",
    answer_repeated=_answer_repeated_compaction,
    scope=Scope.COMPACT,
    body=PolicyBody,
    optional=True,
    reply=describe_single_reply(RequestedCompaction),
    status=202,
    takes=("Idempotency-Key", "Prefer"),
    also={200: "It ended while it was waited for."},
    example={"preserveRecentCount": 20, "summaryTokens": 400},
)
async def compact_context(call: Call[None, PolicyBody]) -> Reply:
    """Request a compaction of the older part of a log now, whatever the threshold.

    The body overrides the policy for this compaction only. The reply names a job; `GET /jobs/{id}` returns its state.
    With `Prefer: wait=n` the reply comes when the job has ended, or after n seconds. Nothing is deleted: earlier
    versions read as before, and `undo` makes the replaced entries active again. While a compaction is in progress its
    job is returned, or 409 if the body has other settings.
    """
    session = await call.tenant.session(call.path["context_id"])
    return await _job_reply(call, session, await session.compact(**call.body.set_fields()))


async def _job_reply(call: Call[None, PolicyBody], session: ACMS, job: Job) -> Reply:
    """Return a job as a reply, with its compaction if it ended within the wait."""
    requested_job = await wait_for_requested_job(call, session, job)
    requested = RequestedCompaction(job=requested_job.job, compaction=requested_job.compaction)
    return reply_with_data(
        requested, status=200 if requested_job.ended else 202, headers=requested_job.headers
    )


@operations(
    "GET",
    f"{_CONTEXT}/compactions",
    scope=Scope.READ,
    query=ListCompactions,
    reply=describe_list_reply(Compaction, int),
)
async def list_compactions(call: Call[ListCompactions, None]) -> Reply:
    """List the compactions of a context, oldest first, including those that were undone.

    `inForce` is false for a compaction that was undone or replaced by a later one. The cursor is the version of the
    last compaction of a page.
    """
    query = call.query
    session = await view_at(call, query)
    following = [
        compaction for compaction in await session.compactions() if compaction.version > query.cursor
    ]
    return paginate_reply(following, query.limit, lambda compaction: compaction.version)


def version_of(text: str) -> int:
    """Parse a version in a path."""
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise ValidationError("must be a whole number", field="version")
    return validation.validate_integer(int(text), "version")


@operations(
    "GET",
    f"{_CONTEXT}/compactions/{{version}}/entries",
    scope=Scope.READ,
    query=VersionQuery,
    reply=describe_list_reply(Entry),
)
async def expand_compaction(call: Call[VersionQuery, None]) -> Reply:
    """Return the entries that a summary replaced, as they were read before: messages and earlier summaries.

    `version` is the version of the summary. The entries are still in the log; undoing the summary makes them active
    again.
    """
    version = version_of(call.path["version"])
    entries = await (await view_at(call, call.query)).expand(version)
    return Reply(body={"data": [encode_noun(entry, Entry) for entry in entries]})


@operations(
    "POST",
    f"{_CONTEXT}/compactions/{{version}}/undo",
    scope=Scope.COMPACT,
    reply=describe_single_reply(Rewrite),
)
async def undo_compaction(call: Call[None, None]) -> Reply:
    """Undo a compaction: the entries that its summary replaced are active again.

    Repeating it changes nothing and returns the same. 410 if retention has deleted the replaced entries, 409 if a later
    entry replaced the summary.
    """
    id, version = call.path["context_id"], version_of(call.path["version"])
    session = await call.tenant.session(id)
    entries = await call.tenant.handle.read(id, after=version - 1, before=version + 1) if version else []
    if not entries or entries[0].kind is not Kind.SUMMARY or not entries[0].replaces:
        raise EntryNotFoundError(f"there is no compaction at v{version}")
    return reply_with_data(Rewrite(version=await session.undo(version)))


# ── policy ──────────────────────────────────────────────────────────────────────────────────────────────────────────


_Level = Literal["service", "namespace", "context"]
_Levels = make_dataclass(
    "Levels",
    [(name, _Level) for name in (*FIELDS, RETENTION, HOLD)],
    namespace={"__doc__": "Where each field of a policy was decided."},
)
_PolicyInForce = make_dataclass(
    "ResolvedPolicy",
    [
        ("policy", CompactionPolicy),
        (RETENTION, float | None),
        (HOLD, bool),
        ("levels", _Levels),
    ],
    namespace={"__doc__": ResolvedPolicy.__doc__},
)


@operations("GET", f"{_CONTEXT}/policy", scope=Scope.READ, reply=describe_single_reply(_PolicyInForce))
async def get_policy(call: Call[None, None]) -> Reply:
    """Return the effective compaction policy of a context, with its retention and legal hold.

    `levels` names for every field the level that decided it: the service, the namespace or the context.
    """
    return reply_with_data(await (await call.tenant.session(call.path["context_id"])).policy())


@operations(
    "PUT",
    f"{_CONTEXT}/policy",
    scope=Scope.COMPACT,
    body=PolicyBody,
    reply=describe_single_reply(_PolicyInForce),
    example={"budget": 8000, "threshold": 0.8},
)
async def replace_policy(call: Call[None, PolicyBody]) -> Reply:
    """Replace the context's own policy: the levels above decide every omitted field.

    The levels are the context, its namespace and the configuration of the service. The reply has the value of every
    field and the level that sets it.
    """
    session = await call.tenant.session(call.path["context_id"])
    return reply_with_data(await session.set_policy(**{**dict.fromkeys(FIELDS), **call.body.set_fields()}))


@operations(
    "PATCH",
    f"{_CONTEXT}/policy",
    scope=Scope.COMPACT,
    body=PolicyBody,
    reply=describe_single_reply(_PolicyInForce),
    example={"preserveRecentCount": 20, "budget": None},
)
async def change_policy(call: Call[None, PolicyBody]) -> Reply:
    """Change fields of a context's policy; null leaves a field to the levels above (RFC 7396).

    Omitted fields stay unchanged. The levels are the context, its namespace and the configuration of the service.
    """
    session = await call.tenant.session(call.path["context_id"])
    return reply_with_data(await session.set_policy(**call.body.set_fields()))


class NamespacePolicyBody(Body):
    """Changes of a namespace's policy."""

    policy: PolicyBody | None = None
    """Fields of the policy to change; null resets one."""
    retention_seconds: Annotated[int, Field(ge=0)] | None = None
    """Seconds after which the content behind a summary is deleted."""
    legal_hold: bool | None = None
    """Whether content may neither expire nor be erased."""


@operations(
    "GET", "/namespaces/{namespace}/policy", scope=Scope.READ, reply=describe_single_reply(_PolicyInForce)
)
async def get_namespace_policy(call: Call[None, None]) -> Reply:
    """Return the policy of a namespace, with its retention and legal hold; it needs no context.

    `levels` names for every field the level that decided it: the service or the namespace.
    """
    namespace = validation.validate_namespace(call.path["namespace"])
    call.tenant.check(namespace)
    config = call.tenant.engine.config
    resolved = await policy_levels.resolve_policy(
        call.tenant.handle,
        namespace=namespace,
        service=config.compaction,
        service_retention=config.retention_seconds,
    )
    return reply_with_data(resolved)


@operations(
    "PATCH",
    "/namespaces/{namespace}/policy",
    scope=Scope.ADMIN,
    body=NamespacePolicyBody,
    reply=describe_single_reply(_PolicyInForce),
    example={"policy": {"keep": 0.5}, "retentionSeconds": 7776000, "legalHold": True},
)
async def change_namespace_policy(call: Call[None, NamespacePolicyBody]) -> Reply:
    """Change fields of a namespace's policy, its retention or its legal hold; null resets a field (RFC 7396).

    Omitted fields stay unchanged. A legal hold forbids that content of the namespace expires or is erased.
    """
    namespace, body = validation.validate_namespace(call.path["namespace"]), call.body
    changes = {} if body.policy is None else body.policy.set_fields()
    for name in (RETENTION, HOLD):
        if name in body.model_fields_set:
            changes[name] = getattr(body, name)
    await policy_levels.change_namespace(call.tenant.handle, namespace, changes)
    return await get_namespace_policy(call)
