"""A session over HTTP: the verbs of `acms.ACMS`, run by a service.

A verb is a method of a session. The requests of all verbs are in two lists, `Reads` and `Writes`, which the blocking
proxies inherit too.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from datetime import date, datetime
from typing import Any
from uuid import uuid4

from acms.client import nouns
from acms.client.log import Log
from acms.client.nouns import read_noun
from acms.client.prompting import Home
from acms.client.transport import Answer, build_api_path, rename_error_field
from acms.client.verb import (
    CallArguments,
    Remote,
    ServiceOperation,
    add_verb_methods,
    define_branching_verb,
    define_verb,
    make_list_reader,
    make_noun_reader,
    make_value_reader,
    resolve_end_version,
)
from acms.errors import (
    ACMSError,
    GoneError,
    JobFailedError,
    MergeConflictError,
    NotFoundError,
    PreconditionError,
    ValidationError,
)
from acms.knowledge import Fact
from acms.log import provider_messages, validation
from acms.log.merges import Merged, MergeStrategy
from acms.log.policy import ResolvedPolicy
from acms.model import ANY, ONCE, Entry, Job, JobState, Json, Part, Privacy
from acms.nouns import decode_noun, to_camel_case, write_part
from acms.prompt_types import LoggedRender, RenderDetails
from acms.results import (
    Branch,
    Citation,
    Compaction,
    ContextInfo,
    ContextItems,
    Diff,
    Episode,
    Erasure,
    HistoryPage,
    Ledger,
    LogEvent,
    MessageReceipt,
    SessionStats,
    Synced,
)
from acms.session import ACMS
from acms.text.chat_messages import ChatMessages
from acms.text.citations import find_cited_ids, texts_of
from acms.view import View

__all__ = ["Reads", "RemoteSession", "RemoteView", "Writes"]

_POLLS = (0.05, 2.0)
"""Seconds between two requests for the state of a job: the first wait, and the longest."""
_MESSAGE = re.compile(r"m_\w{1,126}", re.ASCII)
"""The form of a message id. A string of another form matches no message, and may not be valid in a header."""


# ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def _find_surrounding_context(remote: Remote, arguments: CallArguments) -> str | None:
    """Return the id of a context in the namespace, for an operation that also reads the other sessions there.

    If nothing was written to the session, its log is created and stays empty.
    """
    if remote.ends_at is not None:
        return await remote.log.find()
    return await _ensure_context(remote, arguments)


async def _ensure_context(remote: Remote, _: CallArguments) -> str:
    """Return the id of the session's context; create it if it is missing, and store the session's description."""
    found = None if remote.log.description else await remote.log.find()
    return found or await remote.log.ensure()


async def _context_of_facts(remote: Remote, arguments: CallArguments) -> str | None:
    if arguments["scope"] == "namespace":
        return await _find_surrounding_context(remote, arguments)
    return await remote.log.find()


def _prepare_recall(remote: Remote, arguments: CallArguments) -> CallArguments:
    """Return the fields of a recall request; raise an error for arguments that cannot be sent."""
    if isinstance(arguments["exclude"], str):
        raise ValidationError("must be a list of ids, not a string", field="exclude")
    if arguments["budget"] is not None and arguments["token_budget"] is not None:
        raise TypeError("recall() takes budget or token_budget, not both")
    where = arguments["where"]
    if isinstance(where, Mapping):
        where = {str(name): _write_filter_value(value, f"where.{name}") for name, value in where.items()}
    query = arguments["query"]
    return {
        **arguments,
        "query": validation.replace_invalid_characters(query) if isinstance(query, str) else query,
        "where": where,
        "exclude": list(arguments["exclude"]),
        "why": remote.log.transport.why,
    }


def _write_filter_value(value: object, field: str) -> Json:
    """Serialize a value of a filter: a time, one thing or several."""
    if isinstance(value, datetime):
        return validation.parse_moment(value, field).isoformat()
    return list(value) if isinstance(value, set | frozenset | tuple) else value


def _format_times(_: Remote, arguments: CallArguments) -> CallArguments:
    """Return the arguments with times as text."""
    return {
        name: value.isoformat() if isinstance(value, date) else value for name, value in arguments.items()
    }


def _prepare_keys(_: Remote, arguments: CallArguments) -> CallArguments:
    return {"ids": list(validation.validate_ids(arguments["ids"], "ids"))}


def _prepare_fact(remote: Remote, arguments: CallArguments) -> CallArguments:
    for name in ("names", "sources"):
        if isinstance(arguments[name], str):
            raise ValidationError("must be a list, not str", field=name)
    return {
        **_format_times(remote, arguments),
        **{name: list(arguments[name]) for name in ("names", "sources")},
    }


def _prepare_facts(remote: Remote, arguments: CallArguments) -> CallArguments:
    validation.require_flag(arguments["history"], "history")
    return _format_times(remote, arguments)


def _prepare_erase(_: Remote, arguments: CallArguments) -> CallArguments:
    validation.require_flag(arguments["verify"], "verify")
    return arguments


def _prepare_expand(_: Remote, arguments: CallArguments) -> CallArguments:
    return {"version": str(validation.validate_integer(arguments["version"], "version"))}


def _prepare_window(remote: Remote, arguments: CallArguments) -> CallArguments:
    keep = ",".join(validation.parse_roles(arguments["keep"], "keep")) or None
    return {
        "budget": validation.validate_budget(arguments["budget"], "budget"),
        "keep": keep,
        "why": remote.log.transport.why,
    }


def _prepare_history(_: Remote, arguments: CallArguments) -> CallArguments:
    limit = validation.validate_integer(arguments["limit"], "limit", minimum=1, maximum=validation.PAGE)
    return {"limit": limit, "cursor": validation.validate_integer(arguments["after"], "after")}


def _prepare_renders(_: Remote, arguments: CallArguments) -> CallArguments:
    limit = validation.validate_integer(arguments["limit"], "limit", minimum=1, maximum=validation.PAGE)
    return {"limit": limit, "cursor": arguments["after"]}


def _read_recall(answer: Answer, remote: Remote) -> ContextItems:
    return nouns.read_context_items(remote.log.id or "", answer.data, "items")


def _read_window(answer: Answer, remote: Remote) -> ContextItems:
    return nouns.read_context_items(remote.log.id or "", answer.body, "data")


@nouns.wrap_read_errors("messages")
def _read_chat(answer: Answer, _: Remote) -> ChatMessages:
    """Parse chat messages with the ids of the entries that each shows."""
    chat = ChatMessages()
    messages = answer.data["messages"]
    sources = answer.data.get("sources") or [()] * len(messages)  # older services send none
    for message, ids in zip(messages, sources, strict=True):
        chat.show(message, tuple(ids))
    return chat


@nouns.wrap_read_errors("history")
def _read_history_page(answer: Answer, _: Remote) -> HistoryPage:
    return decode_noun(HistoryPage, {"entries": answer.body["data"], "nextAfter": answer.body["nextCursor"]})


def _read_forks(answer: Answer, remote: Remote) -> list[Branch]:
    forks = nouns.read_noun_list(Branch, answer.data)
    forks.reverse()
    return [fork for fork in forks if _is_within_view(remote, fork.fork or 0)]


@nouns.wrap_read_errors("tags")
def _read_tags(answer: Answer, remote: Remote) -> dict[str, int]:
    """Return the versions of the tags that are within the view."""
    tags: dict[str, int] = {}
    for tag in answer.data:
        if _is_within_view(remote, tag["version"]):
            tags[tag["name"]] = tag["version"]
    return tags


def _is_within_view(remote: Remote, version: int) -> bool:
    return not isinstance(remote.ends_at, int) or version <= remote.ends_at


def _read_stats(answer: Answer, remote: Remote) -> SessionStats:
    return read_noun(SessionStats, answer.data, session_id=remote.log.session_id)


class Reads:
    """The verbs that read a session, at the head of its log or at a past version."""

    def __init_subclass__(cls) -> None:
        add_verb_methods(cls)

    recall = define_verb(
        View.recall,
        ServiceOperation(
            "POST recall", _read_recall, prepare=_prepare_recall, context=_find_surrounding_context
        ),
    )
    window = define_verb(View.window, ServiceOperation("GET window", _read_window, prepare=_prepare_window))
    messages = define_verb(
        View.messages, ServiceOperation("POST chat", _read_chat, context=_find_surrounding_context)
    )
    history = define_verb(
        View.history, ServiceOperation("GET history", _read_history_page, prepare=_prepare_history)
    )
    episodes = define_verb(
        View.episodes, ServiceOperation("GET episodes", make_list_reader(Episode), pages=True)
    )
    facts = define_verb(
        View.facts,
        ServiceOperation(
            "GET facts", make_list_reader(Fact), prepare=_prepare_facts, context=_context_of_facts, pages=True
        ),
    )
    renders = define_verb(
        View.renders,
        ServiceOperation(
            "GET renders", make_list_reader(LoggedRender), prepare=_prepare_renders, timeless=True
        ),
    )
    sent = define_verb(
        View.sent, ServiceOperation("GET renders/{id}", make_noun_reader(RenderDetails), timeless=True)
    )
    keys = define_verb(
        View.keys,
        ServiceOperation("POST keys", make_value_reader(dict[str, str], "keys"), prepare=_prepare_keys),
    )
    get = define_verb(View.get, ServiceOperation("GET entries/{id}", make_noun_reader(Entry)))
    forks = define_verb(View.forks, ServiceOperation("GET forks", _read_forks, pages=True, timeless=True))
    ancestry = define_verb(
        View.ancestry, ServiceOperation("GET ancestry", make_list_reader(Branch), timeless=True)
    )
    tree = define_verb(
        View.tree, ServiceOperation("GET tree", lambda answer, _: nouns.read_tree(answer.data), timeless=True)
    )
    tags = define_verb(View.tags, ServiceOperation("GET tags", _read_tags, timeless=True))
    compactions = define_verb(
        View.compactions, ServiceOperation("GET compactions", make_list_reader(Compaction), pages=True)
    )
    expand = define_verb(
        View.expand,
        ServiceOperation(
            "GET compactions/{version}/entries", make_list_reader(Entry), prepare=_prepare_expand
        ),
    )
    citations = define_verb(
        View.citations, ServiceOperation("GET citations", make_list_reader(Citation), timeless=True)
    )
    policy = define_verb(
        View.policy,
        ServiceOperation(
            "GET policy", make_noun_reader(ResolvedPolicy), context=_ensure_context, timeless=True
        ),
    )
    get_session_stats = define_verb(View.get_session_stats, ServiceOperation("GET stats", _read_stats))


class RemoteView(Remote, Reads):
    """A session at a service as it was at a version; it reads and cannot write. See `acms.View`."""

    def __repr__(self) -> str:
        name = f"{type(self).__name__} {self.session_id!r}"
        if self.ends_at is None:
            return f"<{name}>"
        end = repr(self.ends_at) if isinstance(self.ends_at, str) else f"v{self.ends_at}"
        return f"<{name} at {end}>"

    @property
    def session_id(self) -> str:
        """The caller's name for the conversation."""
        return self.log.session_id

    @property
    def namespace(self) -> str:
        """The group of conversations it belongs to: a user, a project."""
        return self.log.namespace

    @property
    def home(self) -> Home:
        """The object that asks this session's service to render a prompt."""
        return Home(self.log.transport)

    async def diff(self, other: RemoteView | int | str) -> Diff:
        """Return how the active content differs from another session, or from a version or tag of this one."""
        await self.log.require_id()
        right_name = self.session_id
        if isinstance(other, RemoteView):
            right_name = other.session_id
            query: CallArguments = {
                "other": await other.log.require_id(),
                "other_version": await resolve_end_version(other),
            }
        else:
            place = validation.validate_version_or_tag(other, "other")
            query = {"other_tag" if isinstance(place, str) else "other_version": place}
        operation = ServiceOperation(
            "GET diff", lambda answer, remote: nouns.read_diff(answer.data, remote.session_id, right_name)
        )
        return await operation(self, query)


# ── writing ─────────────────────────────────────────────────────────────────────────────────────────────────────────

_version = make_value_reader(int, "version")


async def _ingest_message(remote: RemoteSession, arguments: CallArguments) -> str:
    """Append one message and return its id; the argument `role` is a role or a whole message of a provider."""
    key, role = arguments.pop("idempotency_key"), arguments["role"]
    if isinstance(role, Mapping):
        if arguments["content"] or arguments["tool_calls"] or arguments["tool_call_id"] or arguments["parts"]:
            raise ValidationError("stands alone: it says all that there is to say", field="message")
        message: CallArguments = dict(role)
        for name in validation.MESSAGE_ATTRIBUTES:
            if arguments[name] not in (None, Privacy.ALLOW):
                message[name] = arguments[name]
    else:
        validation.require_role_first(
            role, arguments["content"], arguments["tool_calls"], arguments["tool_call_id"], arguments["parts"]
        )
        message = arguments
    if key is not None:
        message["key"] = key
    receipts = await _append_messages(remote, [message], {}, single=True)
    return receipts[-1].message_id


async def _ingest_many(remote: RemoteSession, arguments: CallArguments) -> list[MessageReceipt]:
    """Append messages; a message without a key gets the key of the batch and its index.

    `last_message` is sent as If-Match, so that the append fails if another message was appended in between.
    """
    key, last_message = arguments["idempotency_key"], arguments["last_message"]
    drafts: list[CallArguments] = []
    for index, message in enumerate(_check_messages(arguments["messages"])):
        draft = dict(message)
        draft.setdefault("key", draft.pop("idempotency_key", None))
        has_own_key = draft["key"] is not None or draft.get("id") is not None
        if key is not None and not has_own_key:
            # In the body, because a header cannot hold every name.
            draft["key"] = f"{validation.validate_name(key, 'idempotency_key')}:{index}"
        drafts.append(draft)
    headers: dict[str, str] = {}
    if last_message is not ANY:
        headers["if-match"] = f'"{last_message or "empty"}"'
        if last_message is not None and not _MESSAGE.fullmatch(str(last_message)):
            raise PreconditionError(
                f"the newest message is not {last_message}",
                options=("read the newer messages, and decide again",),
            )
    return await _append_messages(remote, drafts, headers) if drafts else []


async def _append_messages(
    remote: RemoteSession,
    messages: Sequence[CallArguments],
    headers: Mapping[str, str],
    *,
    single: bool = False,
) -> list[MessageReceipt]:
    """Append messages in one request; with `single`, errors name the fields as arguments of `ingest`."""
    await remote.log.ensure()
    # The transport may repeat the request: the key makes a repetition harmless.
    headers = {"idempotency-key": f"{ONCE}{uuid4().hex}", **headers}
    try:
        body = {"messages": _write_messages(messages)}
        receipts = await ServiceOperation("POST messages", make_list_reader(MessageReceipt))(
            remote, body, headers
        )
    except ValidationError as error:
        field = re.sub(r"\.key$", ".idempotency_key", error.field)
        rename_error_field(error, field.removeprefix("messages[0].") if single else field)
        raise
    with nouns.wrap_read_errors("receipts"):
        if len(receipts) < len(messages):
            raise ValueError(f"{len(receipts)} for {len(messages)} messages")
    remote.last_receipt = receipts[-1]
    return receipts


def _write_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Json]]:
    return [_write_message(message, f"messages[{index}].") for index, message in enumerate(messages)]


def _write_message(arguments: Mapping[str, Any], prefix: str) -> dict[str, Json]:
    """Serialize the arguments of `ingest`; `prefix` is the path of the message in errors."""
    values = {str(name): value for name, value in arguments.items() if value is not None}
    created_at = values.get("created_at")
    if isinstance(created_at, datetime):
        values["created_at"] = validation.parse_moment(created_at, f"{prefix}created_at").isoformat()
    for name in ("role", "privacy", "origin"):
        if isinstance(values.get(name), str):
            values[name] = str(values[name]).lower()
    for name in ("markers", "tool_calls"):
        if name in values and isinstance(values[name], Iterable) and not isinstance(values[name], str):
            values[name] = list(values[name])
    if "metadata" in values:
        values["metadata"] = validation.validate_metadata(values["metadata"], f"{prefix}metadata")
    if "parts" in values and not provider_messages.is_gemini_content(values):
        values["parts"] = _write_parts(values["parts"], prefix)
    return {
        to_camel_case(name) if name in provider_messages.FIELDS else name: value
        for name, value in values.items()
    }


def _write_parts(parts: Iterable[Any], prefix: str) -> list[Json]:
    """Serialize the parts of a message; raise `ValidationError` for any other object."""
    serialized: list[Json] = []
    for index, part in enumerate(validation.require_list(parts, f"{prefix}parts")):
        if not isinstance(part, Part):
            raise ValidationError(f"{type(part).__name__} is not a part", field=f"{prefix}parts[{index}]")
        serialized.append(write_part(part))
    return serialized


def _check_messages(messages: object) -> Sequence[Mapping[str, Any]]:
    """Return the messages if they are a list of mappings; raise `ValidationError` if not."""
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        raise ValidationError(f"must be a list, not {type(messages).__name__}", field="messages")
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping):
            problem = f"must be a mapping, not {type(message).__name__}"
            raise ValidationError(problem, field=f"messages[{index}]")
    return messages


def _prepare_sync(_: Remote, arguments: CallArguments) -> CallArguments:
    return {**arguments, "messages": _write_messages(_check_messages(arguments["messages"]))}


def _prepare_fork(_: Remote, arguments: CallArguments) -> CallArguments:
    version = arguments["at"]
    return {"at_tag" if isinstance(version, str) else "at_version": version, "key": arguments["session_id"]}


def _open_branch(answer: Answer, remote: RemoteSession) -> RemoteSession:
    context = read_noun(ContextInfo, answer.data)
    return RemoteSession(Log(remote.log.transport, context.key or context.id, context.namespace, context.id))


async def _set_tag(remote: RemoteSession, arguments: CallArguments) -> int:
    """Set a tag and return its version; errors name the argument `version` as the local method does."""
    fields = {"name": arguments["name"], "at_version": arguments["version"], "move": arguments["move"]}
    try:
        return await ServiceOperation("PUT tags/{name}", _version)(remote, fields)
    except ValidationError as error:
        if error.field == "at":
            rename_error_field(error, "version")
        raise


def _check_private_flag(_: Remote, arguments: CallArguments) -> CallArguments:
    if not isinstance(arguments["private"], bool):
        raise ValidationError(f"must be true or false, was {arguments['private']!r}", field="private")
    return arguments


def _find_citations(_: Remote, arguments: CallArguments) -> CallArguments:
    """Return the ids of the shown entries that an answer cites, found here, so that the answer is not sent."""
    ids = find_cited_ids(arguments["answer"], texts_of(arguments["shown"]))
    if isinstance(ledger := getattr(arguments["shown"], "ledger", None), Ledger):
        ledger.cited |= set(ids)
    return {"ids": list(ids)}


def _read_cited_ids(answer: Answer, _: Remote) -> tuple[str, ...]:
    return tuple(nouns.read_typed_field(list, answer.body, "data"))


def _ignore_answer(_: Answer, __: Remote) -> None:
    return None


async def _delete_context(remote: RemoteSession, arguments: CallArguments) -> list[Branch]:
    """Delete the context, and return its live forks."""
    forks = await ServiceOperation("DELETE", make_value_reader(list[Json], "liveForks"), repeatable=False)(
        remote, arguments
    )
    remote.log.id = None  # the name is free: a later write creates another context
    branches: list[Branch] = []
    for fork in forks:
        id = nouns.read_typed_field(str, fork, "id")
        answer = await remote.log.transport.call("GET", build_api_path("contexts", id))
        branches.append(read_noun(Branch, answer.data))
    return branches


async def _find_job(remote: RemoteSession, arguments: CallArguments) -> Job:
    """Return a job of this session; raise `GoneError` if there is none with this id."""
    context, id = await remote.log.require_id(), arguments["id"]
    try:
        answer = await remote.log.transport.call("GET", build_api_path("jobs", id))
        job = read_noun(Job, answer.data)
    except NotFoundError:
        job = None
    if job is None or job.context != context:
        raise GoneError(f"job {id} does not exist")
    return job


async def _wait_for_job(remote: RemoteSession, arguments: CallArguments) -> Compaction | None:
    """Poll a job at growing intervals until it ends; return its compaction, or None if it made none."""
    seconds, max_seconds = _POLLS
    path = build_api_path("jobs", validation.require_job(arguments["job"]).id)
    async with asyncio.timeout(validation.validate_timeout(arguments["timeout"])):
        while True:
            answer = await remote.log.transport.call("GET", path)
            job = read_noun(Job, answer.data)
            if job.state not in (JobState.READY, JobState.RUNNING):
                break
            await asyncio.sleep(seconds)
            seconds = min(max_seconds, seconds * 1.5)
    if job.state is not JobState.DONE:
        raise JobFailedError(
            f"job {job.id} is {job.state.value} after {job.attempt} attempts: {job.error}",
            job_id=job.id,
            options=("acms jobs retry", "request it again"),
        )
    compaction = nouns.read_typed_field(object, answer.data, "compaction")
    return None if compaction is None else read_noun(Compaction, compaction)


async def _close_session(remote: RemoteSession, arguments: CallArguments) -> None:
    """Do nothing: every call that returned is stored, and the client closes the connections."""


class Writes:
    """The verbs that write to a session."""

    ingest = define_verb(ACMS.ingest, _ingest_message)
    ingest_many = define_verb(ACMS.ingest_many, _ingest_many)
    sync = define_verb(
        ACMS.sync,
        ServiceOperation(
            "POST sync", make_noun_reader(Synced), prepare=_prepare_sync, context=_ensure_context
        ),
    )
    close_episode = define_verb(
        ACMS.close_episode,
        ServiceOperation(
            "POST episodes/close", make_value_reader(str, "episodeId"), repeatable=False, sends_null=True
        ),
    )
    forget_renders = define_verb(ACMS.forget_renders, ServiceOperation("DELETE renders", _ignore_answer))
    retract = define_verb(ACMS.retract, ServiceOperation("POST entries/{message_id}/retract", _version))
    replace = define_verb(
        ACMS.replace,
        ServiceOperation("PATCH entries/{message_id}", make_value_reader(str, "id"), repeatable=False),
    )
    cite = define_verb(
        ACMS.cite,
        ServiceOperation("POST citations", _read_cited_ids, prepare=_find_citations, repeatable=False),
    )
    clear = define_verb(ACMS.clear, ServiceOperation("POST clear", _version, repeatable=False))
    erase = define_verb(
        ACMS.erase, ServiceOperation("DELETE entries/{id}", make_noun_reader(Erasure), prepare=_prepare_erase)
    )
    fork = define_branching_verb(
        ACMS.fork, ServiceOperation("POST fork", _open_branch, prepare=_prepare_fork)
    )
    copy = define_branching_verb(
        ACMS.copy, ServiceOperation("POST copy", _open_branch, prepare=_prepare_fork)
    )
    tag = define_verb(ACMS.tag, _set_tag)
    untag = define_verb(ACMS.untag, ServiceOperation("DELETE tags/{name}", _ignore_answer, repeatable=False))
    delete = define_verb(ACMS.delete, _delete_context)
    compact = define_verb(
        ACMS.compact, ServiceOperation("POST compact", make_noun_reader(Job, "job"), sends_null=True)
    )
    reflect = define_verb(
        ACMS.reflect, ServiceOperation("POST reflect", make_noun_reader(Job), repeatable=False)
    )
    wait = define_verb(ACMS.wait, _wait_for_job)
    job = define_verb(ACMS.job, _find_job)
    state = define_verb(
        ACMS.state,
        ServiceOperation(
            "POST facts", make_noun_reader(Fact), prepare=_prepare_fact, context=_ensure_context
        ),
    )
    unstate = define_verb(
        ACMS.unstate, ServiceOperation("POST facts/withdraw", make_list_reader(Fact), repeatable=False)
    )
    undo = define_verb(ACMS.undo, ServiceOperation("POST undo", _version))
    set_policy = define_verb(
        ACMS.set_policy,
        ServiceOperation(
            "PATCH policy", make_noun_reader(ResolvedPolicy), context=_ensure_context, sends_null=True
        ),
    )
    set_private = define_verb(
        ACMS.set_private,
        ServiceOperation("PATCH", _ignore_answer, prepare=_check_private_flag, context=_ensure_context),
    )
    close = define_verb(ACMS.close, _close_session)


@nouns.wrap_read_errors("event")
def _read_event(name: str, cursor: str, data: str) -> LogEvent:
    fields = json.loads(data)
    if name == "job":
        return LogEvent(cursor=cursor, job=read_noun(Job, fields))
    return LogEvent(cursor=cursor, entry=read_noun(Entry, fields))


class RemoteSession(RemoteView, Writes):
    """A session at a service: the verbs of `acms.ACMS`, over HTTP.

    Created by `Client.session`. The first write creates the log. One object is one session; many objects, clients and
    processes may share one. Every change is sent with its own key, so that it takes effect once however often the
    connection breaks. The service chooses the models. `close` does nothing: a call that returned is stored, and the
    client owns the connections. A fork without a `session_id` is named by the key of its call, and the ledger of a
    recall covers the entries considered, not the rest of the log.
    """

    def __init__(self, log: Log) -> None:
        super().__init__(log)
        #: The receipt of the last ingested message; None before the first one.
        self.last_receipt: MessageReceipt | None = None

    async def __aenter__(self) -> RemoteSession:
        """Use the session in a block."""
        return self

    async def __aexit__(self, *error: object) -> None:
        """Close the session."""

    async def merge(
        self, other: RemoteView, *, strategy: MergeStrategy = "refuse", dry_run: bool = False
    ) -> Merged:
        """Merge the changes of another session of the same fork tree into this session; see `acms.ACMS.merge`."""
        if not isinstance(other, RemoteView):
            raise ValidationError("must be a session of a service, or a view of one", field="other")
        await self.log.require_id()
        fields: CallArguments = {
            "other": await other.log.require_id(),
            "other_version": await resolve_end_version(other),
            "strategy": strategy,
        }
        request_line = f"{'GET' if dry_run else 'POST'} merge"
        operation = ServiceOperation(
            request_line,
            lambda answer, remote: nouns.read_merge_result(answer.data, remote.session_id, other.session_id),
            repeatable=dry_run,
        )
        try:
            return await operation(self, fields)
        except MergeConflictError as error:  # the service knows the other side by its id
            error.args = (str(error).replace(fields["other"], other.session_id, 1),)
            raise

    async def events(self, *, after: str | int = 0, follow: bool = True) -> AsyncGenerator[LogEvent]:
        """Yield each entry appended after a cursor and each change of a job; see `acms.ACMS.events`.

        While following, it waits out broken connections and restarts of the service, and continues after the last event
        received; only the first request fails like any other.
        """
        transport = self.log.transport
        path = build_api_path("contexts", await self.log.require_id(), "events")
        cursor = str(after)
        has_begun = False
        failures = 0
        while True:
            query = {"after": cursor, "follow": follow}
            wait: float | None = _POLLS[0]
            try:
                async for name, id, data in transport.events(path, query=query):
                    has_begun = True
                    failures = 0
                    cursor = id or cursor
                    if data:
                        yield _read_event(name, cursor, data)
            except ACMSError as error:
                failures += 1
                # Once the stream has begun, it is resumed however often it breaks.
                first_request_failed = not has_begun and failures >= transport.retry.max_attempts
                wait = transport.pause(error, min(failures, 20))
                if not follow or first_request_failed or wait is None:
                    raise
            if not follow:
                return
            await asyncio.sleep(wait)

    def at(self, version: int | str) -> RemoteView:
        """Return a read-only view of the session as if its log ended at a version, or at a tag; see `acms.ACMS.at`."""
        return RemoteView(self.log, validation.validate_version_or_tag(version, "at"))
