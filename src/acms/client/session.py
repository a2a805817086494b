"""A session over HTTP: the verbs of `acms.ACMS`, worked off by a service.

What every verb asks for stands in two lists, `Reads` and `Writes`, which the blocking doors inherit too.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from datetime import date, datetime
from typing import Any
from uuid import uuid4

from acms.client import nouns
from acms.client.log import Log
from acms.client.nouns import noun
from acms.client.prompting import Home
from acms.client.transport import Answer, path, rename
from acms.client.verb import Asks, Given, Remote, branching, fill, many, one, plain, upto, verb
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
from acms.log import foreign, validation
from acms.log.merges import Merged, MergeStrategy
from acms.log.policy import ResolvedPolicy
from acms.model import ANY, ONCE, Entry, Job, JobState, Json, Part, Privacy, Role
from acms.nouns import camel, read, write_part
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
from acms.text.citations import cited, texts_of
from acms.view import View

__all__ = ["Reads", "RemoteSession", "RemoteView", "Writes"]

_POLLS = (0.05, 2.0)
"""Seconds after which a job is looked at again, at first and at most."""
_MESSAGE = re.compile(r"m_\w{1,126}", re.ASCII)
"""How the id of a message looks: what looks otherwise is none, and may not fit into a header."""


# ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def _around(of: Remote, _: Given) -> str | None:
    """Return the id of a context in the namespace: what was asked looks at what is around the session too.

    Of a session that nothing was written to the log is created, and stays empty.
    """
    return await (of.log.find() if of.ends_at is not None else _somewhere(of, _))


async def _somewhere(of: Remote, _: Given) -> str:
    """Return the id of the session's context, which is made where there is none, and told what it is called."""
    return (None if of.log.about else await of.log.find()) or await of.log.ensure()


async def _of_facts(of: Remote, given: Given) -> str | None:
    return await (_around(of, given) if given["scope"] == "namespace" else of.log.find())


def _recalling(of: Remote, given: Given) -> Given:
    if isinstance(given["exclude"], str):
        raise ValidationError("must be a list of ids, not a string", field="exclude")
    if given["budget"] is not None and given["token_budget"] is not None:
        raise TypeError("recall() takes budget or token_budget, not both")
    where = given["where"]
    if isinstance(where, Mapping):
        where = {str(name): _written(value, f"where.{name}") for name, value in where.items()}
    return {**given, "where": where, "exclude": list(given["exclude"]), "why": of.log.transport.why}


def _written(value: object, field: str) -> Json:
    """Write what a filter asks for: a time, one thing or several."""
    if isinstance(value, datetime):
        return validation.moment(value, field).isoformat()
    return list(value) if isinstance(value, set | frozenset | tuple) else value


def _timed(_: Remote, given: Given) -> Given:
    """Write times as text."""
    return {name: value.isoformat() if isinstance(value, date) else value for name, value in given.items()}


def _asked_keys(_: Remote, given: Given) -> Given:
    return {"ids": list(validation.ids(given["ids"], "ids"))}


def _stated(of: Remote, given: Given) -> Given:
    for name in ("names", "sources"):
        if isinstance(given[name], str):
            raise ValidationError("must be a list, not str", field=name)
    return {**_timed(of, given), **{name: list(given[name]) for name in ("names", "sources")}}


def _expanded(_: Remote, given: Given) -> Given:
    return {"version": str(validation.whole(given["version"], "version"))}


def _windowed(of: Remote, given: Given) -> Given:
    keep = ",".join([validation.choice(one, Role, "keep") for one in given["keep"]]) or None
    return {"budget": validation.budget(given["budget"], "budget"), "keep": keep, "why": of.log.transport.why}


def _paged(_: Remote, given: Given) -> Given:
    limit = validation.whole(given["limit"], "limit", least=1, most=validation.PAGE)
    return {"limit": limit, "cursor": validation.whole(given["after"], "after")}


def _after(_: Remote, given: Given) -> Given:
    limit = validation.whole(given["limit"], "limit", least=1, most=validation.PAGE)
    return {"limit": limit, "cursor": given["after"]}


def _recalled(answer: Answer, of: Remote) -> ContextItems:
    return nouns.items(of.log.id or "", answer.data, "items")


def _in_window(answer: Answer, of: Remote) -> ContextItems:
    return nouns.items(of.log.id or "", answer.body, "data")


@nouns.reading("messages")
def _chat(answer: Answer, _: Remote) -> ChatMessages:
    found = ChatMessages()
    messages = answer.data["messages"]
    known = answer.data.get("sources") or [()] * len(messages)  # services before this told none
    for message, sources in zip(messages, known, strict=True):
        found.show(message, tuple(sources))
    return found


@nouns.reading("history")
def _page(answer: Answer, _: Remote) -> HistoryPage:
    return read(HistoryPage, {"entries": answer.body["data"], "nextAfter": answer.body["nextCursor"]})


def _forked(answer: Answer, of: Remote) -> list[Branch]:
    found = nouns.nouns(Branch, answer.data)
    return [one for one in reversed(found) if _within(of, one.fork or 0)]


@nouns.reading("tags")
def _tagged(answer: Answer, of: Remote) -> dict[str, int]:
    tags: dict[str, int] = {one["name"]: one["version"] for one in answer.data}
    return {name: at for name, at in tags.items() if _within(of, at)}


def _within(of: Remote, version: int) -> bool:
    return not isinstance(of.ends_at, int) or version <= of.ends_at


def _stats(answer: Answer, of: Remote) -> SessionStats:
    return noun(SessionStats, answer.data, session_id=of.log.session_id)


class Reads:
    """The verbs that read a session, at the head of its log or at a past version."""

    def __init_subclass__(cls) -> None:
        fill(cls)

    recall = verb(View.recall, Asks("POST recall", _recalled, prepare=_recalling, context=_around))
    window = verb(View.window, Asks("GET window", _in_window, prepare=_windowed))
    messages = verb(View.messages, Asks("POST chat", _chat, context=_around))
    history = verb(View.history, Asks("GET history", _page, prepare=_paged))
    episodes = verb(View.episodes, Asks("GET episodes", many(Episode), pages=True))
    facts = verb(View.facts, Asks("GET facts", many(Fact), prepare=_timed, context=_of_facts, pages=True))
    renders = verb(View.renders, Asks("GET renders", many(LoggedRender), prepare=_after, timeless=True))
    sent = verb(View.sent, Asks("GET renders/{id}", one(RenderDetails), timeless=True))
    keys = verb(View.keys, Asks("POST keys", plain(dict[str, str], "keys"), prepare=_asked_keys))
    get = verb(View.get, Asks("GET entries/{id}", one(Entry)))
    forks = verb(View.forks, Asks("GET forks", _forked, pages=True, timeless=True))
    ancestry = verb(View.ancestry, Asks("GET ancestry", many(Branch), timeless=True))
    tree = verb(View.tree, Asks("GET tree", lambda answer, _: nouns.tree(answer.data), timeless=True))
    tags = verb(View.tags, Asks("GET tags", _tagged, timeless=True))
    compactions = verb(View.compactions, Asks("GET compactions", many(Compaction), pages=True))
    expand = verb(View.expand, Asks("GET compactions/{version}/entries", many(Entry), prepare=_expanded))
    citations = verb(View.citations, Asks("GET citations", many(Citation), timeless=True))
    policy = verb(View.policy, Asks("GET policy", one(ResolvedPolicy), context=_somewhere, timeless=True))
    get_session_stats = verb(View.get_session_stats, Asks("GET stats", _stats))


class RemoteView(Remote, Reads):
    """A session at a service as it was at a version; it reads and cannot write. See `acms.View`."""

    def __repr__(self) -> str:
        end = self.ends_at
        at = "" if end is None else f" at {end!r}" if isinstance(end, str) else f" at v{end}"
        return f"<{type(self).__name__} {self.session_id!r}{at}>"

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
        """What asks its service to render a prompt."""
        return Home(self.log.transport)

    async def diff(self, other: RemoteView | int | str) -> Diff:
        """Return how what is in force differs on another side: another session, or a version or tag of this one."""
        await self.log.known()
        asked: Given = {"other_tag" if isinstance(other, str) else "other_version": other}
        if isinstance(other, RemoteView):
            asked = {"other": await other.log.known(), "other_version": await upto(other)}
        right = other.session_id if isinstance(other, RemoteView) else self.session_id
        return await Asks("GET diff", lambda answer, of: nouns.diff(answer.data, of.session_id, right))(
            self, asked
        )


# ── writing ─────────────────────────────────────────────────────────────────────────────────────────────────────────

_version = plain(int, "version")


async def _ingest(of: RemoteSession, given: Given) -> str:
    key, message = given.pop("idempotency_key"), given["role"]
    if isinstance(message, Mapping):  # a provider's: it says all that there is to say
        if given["content"] or given["tool_calls"] or given["tool_call_id"] or given["parts"]:
            raise ValidationError("stands alone: it says all that there is to say", field="message")
        names = ("markers", "actor_id", "metadata", "created_at", "origin", "privacy")
        more = {name: given[name] for name in names if given[name] not in (None, Privacy.ALLOW)}
        given = {**message, **more}
    else:
        validation.spoken(
            message, *(given[name] for name in ("content", "tool_calls", "tool_call_id", "parts"))
        )
    if key is not None:
        given["key"] = key
    return (await _append(of, [given], {}, single=True))[-1].message_id


async def _ingest_many(of: RemoteSession, given: Given) -> list[MessageReceipt]:
    messages, key, seen = given["messages"], given["idempotency_key"], given["last_message"]
    drafts: list[Given] = []
    for index, message in enumerate(_checked(messages)):
        draft = dict(message)
        draft.setdefault("key", draft.pop("idempotency_key", None))
        if draft["key"] is None and key is not None and draft.get("id") is None:
            # In the body: a header has no room for every name.
            draft["key"] = f"{validation.name(key, 'idempotency_key')}:{index}"
        drafts.append(draft)
    if seen is not ANY and seen is not None and not _MESSAGE.fullmatch(str(seen)):
        raise PreconditionError(
            f"the newest message is not {seen}", options=("read what came since, and decide again",)
        )
    headers = {} if seen is ANY else {"if-match": f'"{seen or "empty"}"'}
    return await _append(of, drafts, headers) if drafts else []


async def _append(
    of: RemoteSession, messages: Sequence[Given], headers: Mapping[str, str], *, single: bool = False
) -> list[MessageReceipt]:
    await of.log.ensure()
    headers = {"idempotency-key": f"{ONCE}{uuid4().hex}", **headers}
    try:
        body = {"messages": [_message(one, f"messages[{index}].") for index, one in enumerate(messages)]}
        receipts = await Asks("POST messages", many(MessageReceipt))(of, body, headers)
    except ValidationError as error:
        field = re.sub(r"\.key$", ".idempotency_key", error.field)
        rename(error, field.removeprefix("messages[0].") if single else field)
        raise
    with nouns.reading("receipts"):
        if len(receipts) < len(messages):
            raise ValueError(f"{len(receipts)} for {len(messages)} messages")
    of.last_receipt = receipts[-1]
    return receipts


def _message(given: Mapping[str, Any], at: str) -> dict[str, Json]:
    """Write the arguments of `ingest`; checked here is what cannot be written."""
    values = {str(name): value for name, value in given.items() if value is not None}
    moment = values.get("created_at")
    if isinstance(moment, datetime):
        values["created_at"] = validation.moment(moment, f"{at}created_at").isoformat()
    for name in ("role", "privacy", "origin"):
        if isinstance(values.get(name), str):
            values[name] = str(values[name]).lower()
    for name in ("markers", "tool_calls"):
        if name in values and not isinstance(values[name], str):
            values[name] = list(values[name])
    if "metadata" in values:
        values["metadata"] = validation.metadata(values["metadata"], f"{at}metadata")
    for index, part in enumerate(() if foreign.of_gemini(values) else values.get("parts", ())):
        if not isinstance(part, Part):
            raise ValidationError(f"{type(part).__name__} is not a part", field=f"{at}parts[{index}]")
    if "parts" in values and not foreign.of_gemini(values):
        values["parts"] = [write_part(part) for part in values["parts"]]
    return {camel(name) if name in foreign.FIELDS else name: value for name, value in values.items()}


def _checked(messages: object) -> Sequence[Mapping[str, Any]]:
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        raise ValidationError(f"must be a list, not {type(messages).__name__}", field="messages")
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping):
            wrong = f"must be a mapping, not {type(message).__name__}"
            raise ValidationError(wrong, field=f"messages[{index}]")
    return messages


def _listed(_: Remote, given: Given) -> Given:
    messages = [_message(one, f"messages[{at}].") for at, one in enumerate(_checked(given["messages"]))]
    return {**given, "messages": messages}


def _placed(_: Remote, given: Given) -> Given:
    at = given["at"]
    return {"at_tag" if isinstance(at, str) else "at_version": at, "key": given["session_id"]}


def _branched(answer: Answer, of: RemoteSession) -> RemoteSession:
    found = noun(ContextInfo, answer.data)
    return RemoteSession(Log(of.log.transport, found.key or found.id, found.namespace, found.id))


async def _tag(of: RemoteSession, given: Given) -> int:
    asked = {"name": given["name"], "at_version": given["version"], "move": given["move"]}
    try:
        return await Asks("PUT tags/{name}", _version)(of, asked)
    except ValidationError as error:
        if error.field == "at":
            rename(error, "version")
        raise


def _whether(_: Remote, given: Given) -> Given:
    if not isinstance(given["private"], bool):
        raise ValidationError(f"must be true or false, was {given['private']!r}", field="private")
    return given


def _citing(_: Remote, given: Given) -> Given:
    """Find here what an answer cites of what was shown."""
    found = cited(given["answer"], texts_of(given["shown"]))
    if isinstance(ledger := getattr(given["shown"], "ledger", None), Ledger):
        ledger.cited |= set(found)
    return {"ids": list(found)}


def _cited(answer: Answer, _: Remote) -> tuple[str, ...]:
    return tuple(nouns.value(list, answer.body, "data"))


def _nothing(_: Answer, __: Remote) -> None:
    return None


async def _delete(of: RemoteSession, given: Given) -> list[Branch]:
    forks = await Asks("DELETE", plain(list[Json], "liveForks"), again=False)(of, given)
    of.log.id = None
    live = [nouns.value(str, one, "id") for one in forks]
    calls = [await of.log.transport.call("GET", path("contexts", id)) for id in live]
    return [noun(Branch, one.data) for one in calls]


async def _job(of: RemoteSession, given: Given) -> Job:
    context, id = await of.log.known(), given["id"]
    try:
        found = noun(Job, (await of.log.transport.call("GET", path("jobs", id))).data)
    except NotFoundError:
        found = None
    if found is None or found.context != context:
        raise GoneError(f"job {id} does not exist")
    return found


async def _wait(of: RemoteSession, given: Given) -> Compaction | None:
    wait, most = _POLLS
    async with asyncio.timeout(given["timeout"]):
        while True:
            found = (await of.log.transport.call("GET", path("jobs", given["job"].id))).data
            now = noun(Job, found)
            if now.state not in (JobState.READY, JobState.RUNNING):
                break
            await asyncio.sleep(wait)
            wait = min(most, wait * 1.5)
    if now.state is not JobState.DONE:
        raise JobFailedError(
            f"job {now.id} is {now.state.value} after {now.attempt} attempts: {now.error}",
            job_id=now.id,
            options=("acms jobs retry", "ask for it again"),
        )
    made = nouns.value(object, found, "compaction")
    return None if made is None else noun(Compaction, made)


async def _close(of: RemoteSession, given: Given) -> None:
    """Do nothing: whatever returned is stored, and the connections are the client's."""


class Writes:
    """The verbs that write to a session."""

    ingest = verb(ACMS.ingest, _ingest)
    ingest_many = verb(ACMS.ingest_many, _ingest_many)
    sync = verb(ACMS.sync, Asks("POST sync", one(Synced), prepare=_listed, context=_somewhere))
    close_episode = verb(
        ACMS.close_episode,
        Asks("POST episodes/close", plain(str, "episodeId"), again=False, nulls=True),
    )
    forget_renders = verb(ACMS.forget_renders, Asks("DELETE renders", _nothing))
    retract = verb(ACMS.retract, Asks("POST entries/{message_id}/retract", _version))
    replace = verb(ACMS.replace, Asks("PATCH entries/{message_id}", plain(str, "id"), again=False))
    cite = verb(ACMS.cite, Asks("POST citations", _cited, prepare=_citing, again=False))
    clear = verb(ACMS.clear, Asks("POST clear", _version, again=False))
    erase = verb(ACMS.erase, Asks("DELETE entries/{id}", one(Erasure)))
    fork = branching(ACMS.fork, Asks("POST fork", _branched, prepare=_placed))
    copy = branching(ACMS.copy, Asks("POST copy", _branched, prepare=_placed))
    tag = verb(ACMS.tag, _tag)
    untag = verb(ACMS.untag, Asks("DELETE tags/{name}", _nothing, again=False))
    delete = verb(ACMS.delete, _delete)
    compact = verb(ACMS.compact, Asks("POST compact", one(Job, "job"), nulls=True))
    reflect = verb(ACMS.reflect, Asks("POST reflect", one(Job), again=False))
    wait = verb(ACMS.wait, _wait)
    job = verb(ACMS.job, _job)
    state = verb(ACMS.state, Asks("POST facts", one(Fact), prepare=_stated, context=_somewhere))
    unstate = verb(ACMS.unstate, Asks("POST facts/withdraw", many(Fact), again=False))
    undo = verb(ACMS.undo, Asks("POST undo", _version))
    set_policy = verb(
        ACMS.set_policy, Asks("PATCH policy", one(ResolvedPolicy), context=_somewhere, nulls=True)
    )
    set_private = verb(ACMS.set_private, Asks("PATCH", _nothing, prepare=_whether, context=_somewhere))
    close = verb(ACMS.close, _close)


@nouns.reading("event")
def _event(name: str, cursor: str, data: str) -> LogEvent:
    said = json.loads(data)
    if name == "job":
        return LogEvent(cursor=cursor, job=noun(Job, said))
    return LogEvent(cursor=cursor, entry=noun(Entry, said))


class RemoteSession(RemoteView, Writes):
    """A session at a service: the verbs of `acms.ACMS`, over HTTP.

    Made by `Client.session`. The log is created by the first write. One object is one session; many objects, clients
    and processes may share one. Every change is sent with a key of its own, so that it has its effect once however
    often the connection breaks. Which models are used is the service's choice. `close` does nothing: whatever returned
    is stored, and the connections are the client's. A fork without a `session_id` is named by the key of its call, and
    the ledger of a recall knows what was chosen from, not the rest of the log.
    """

    def __init__(self, log: Log) -> None:
        super().__init__(log)
        #: What the last ingested message became; None before the first one.
        self.last_receipt: MessageReceipt | None = None

    async def __aenter__(self) -> RemoteSession:
        """Use the session in a block."""
        return self

    async def __aexit__(self, *error: object) -> None:
        """Close the session."""

    async def merge(
        self, other: RemoteView, *, strategy: MergeStrategy = "refuse", dry_run: bool = False
    ) -> Merged:
        """Bring in what another session of the same fork tree changed since this one last knew it.

        See `acms.ACMS.merge`.
        """
        if not isinstance(other, RemoteView):
            raise ValidationError("must be a session of a service, or a view of one", field="other")
        await self.log.known()
        asked: Given = {
            "other": await other.log.known(),
            "other_version": await upto(other),
            "strategy": strategy,
        }
        line = f"{'GET' if dry_run else 'POST'} merge"
        asks = Asks(
            line, lambda answer, of: nouns.merged(answer.data, of.session_id, other.session_id), again=dry_run
        )
        try:
            return await asks(self, asked)
        except MergeConflictError as error:  # the service knows the other side by its id
            error.args = (str(error).replace(asked["other"], other.session_id, 1),)
            raise

    async def events(self, *, after: str | int = 0, follow: bool = True) -> AsyncGenerator[LogEvent]:
        """Yield each entry appended behind a cursor and each change of a job; see `acms.ACMS.events`.

        While it follows, a connection that breaks and a service that is started anew are waited for, and it goes on
        behind what was told; only the first request fails as others do.
        """
        transport = self.log.transport
        place, cursor, failed, begun = (
            path("contexts", await self.log.known(), "events"),
            str(after),
            0,
            False,
        )
        while True:
            query = {"after": cursor, "follow": follow}
            wait: float | None = _POLLS[0]
            try:
                async for name, id, data in transport.events(place, query=query):
                    failed, begun, cursor = 0, True, id or cursor
                    if data:
                        yield _event(name, cursor, data)
            except ACMSError as error:
                failed += 1
                if not follow or (not begun and failed >= transport.retry.max_attempts):
                    raise
                if (wait := transport.pause(error, min(failed, 20))) is None:
                    raise
            if not follow:
                return
            await asyncio.sleep(wait)

    def at(self, version: int | str) -> RemoteView:
        """Return a read-only view of the session as if its log ended at a version, or at a tag; see `acms.ACMS.at`."""
        named = isinstance(version, str)
        return RemoteView(
            self.log, validation.name(version, "at") if named else validation.whole(version, "at")
        )
