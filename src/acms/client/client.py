"""The client of the HTTP service."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

from acms.client.log import Log
from acms.client.nouns import read_noun, read_noun_list, read_typed_field
from acms.client.prompting import request_rendered_prompt
from acms.client.session import RemoteSession
from acms.client.transport import Transport, build_api_path
from acms.config import RetryConfig
from acms.contract.schema import RenderRequest
from acms.errors import ValidationError
from acms.log import validation
from acms.log.policy import HOLD, RETENTION, ResolvedPolicy
from acms.model import Grant, Json
from acms.nouns import to_camel_case
from acms.prompt.manifest import Manifest
from acms.prompt.render import Rendered
from acms.results import ContextInfo, Erasure, SessionPage
from acms.storage.sessions import build_session_settings, parse_session_filter

if TYPE_CHECKING:
    import ssl

    import httpx2

__all__ = ["Client"]


class HasLog(Protocol):
    """A session at the service, of this module or of `acms.sync`."""

    @property
    def log(self) -> Log:
        """Which log it is."""
        ...


class Client:
    """The service at an address: its sessions and its other operations.

    `api_key` identifies the owner of the data and the permitted actions; it is never shown. `timeout` is in seconds,
    for one attempt. Transient failures (no answer, a broken connection, 429, 503) are retried as `retry` configures,
    and never sooner than the service asks; a change is sent with a key under which it takes effect once. Errors are
    those of `acms.ACMS`; `StorageUnavailableError` if the service does not answer, `DeadlineError` if it takes too
    long. Redirects are not followed. Without `why`, recalls and windows omit the reasons for what they leave out: half
    the bytes. A client belongs to one event loop; close it, or use it in a block. `transport` carries the requests in
    place of the network: `httpx2.ASGITransport(app)` calls a service in this process.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        timeout: float = 60.0,
        retry: RetryConfig | None = None,
        why: bool = True,
        verify: ssl.SSLContext | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self._transport = Transport(
            base_url,
            api_key,
            timeout=timeout,
            retry=retry or RetryConfig(),
            why=why,
            verify=verify,
            carrier=transport,
        )

    def __repr__(self) -> str:
        return f"Client({self._transport.url!r})"

    async def __aenter__(self) -> Client:
        """Keep the connections open until the block ends."""
        return self

    async def __aexit__(self, *error: object) -> None:
        """Close the connections."""
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections; a later call opens new ones. Idempotent."""
        await self._transport.aclose()

    def session(
        self,
        session_id: str,
        *,
        namespace: str = "default",
        name: str | None = None,
        labels: Sequence[str] | None = None,
        metadata: Mapping[str, Json] | None = None,
    ) -> RemoteSession:
        """Return the session with a name, or with the id of its context, without sending a request.

        `name`, `labels` and `metadata` describe it, as for `acms.ACMS`: they are stored with its next write.
        """
        for value, field in ((session_id, "session_id"), (namespace, "namespace")):
            if not isinstance(value, str) or not value.strip():
                raise ValidationError("must be a name", field=field)
        about = build_session_settings(name, labels, metadata)
        return RemoteSession(Log(self._transport, session_id, namespace, description=about))

    async def sessions(
        self,
        *,
        namespace: str | None = None,
        where: Mapping[str, Any] | None = None,
        deleted: bool = False,
        after: str | None = None,
        limit: int = 50,
    ) -> SessionPage:
        """Return a page of the sessions, newest first: of one namespace, or of all; with `deleted`, deleted ones too.

        `where` filters by `label` (one, or a list of which all must match), by `name`, and by metadata values by key.
        `after` is the `next_after` of the page before. See `storage.sessions`.
        """
        parse_session_filter(where)
        query = {
            "namespace": namespace,
            "where": None if where is None else json.dumps(where),
            "deleted": deleted,
            "cursor": after,
            "limit": validation.validate_integer(limit, "limit", minimum=1, maximum=validation.PAGE),
        }
        body = (await self._transport.call("GET", build_api_path("contexts"), query=query)).body
        sessions = tuple(read_noun_list(ContextInfo, read_typed_field(list, body, "data")))
        return SessionPage(
            sessions=sessions, next_after=cast("str | None", read_typed_field(object, body, "nextCursor"))
        )

    async def contexts(
        self, *, namespace: str | None = None, parent: str | None = None
    ) -> AsyncGenerator[ContextInfo]:
        """Yield every live context, newest first: of a namespace, or the forks of one by its id."""
        cursor: str | None = None
        while True:
            query = {"namespace": namespace, "parent": parent, "cursor": cursor, "limit": 500}
            body = (await self._transport.call("GET", build_api_path("contexts"), query=query)).body
            for context in read_noun_list(ContextInfo, read_typed_field(list, body, "data")):
                yield context
            cursor = cast("str | None", read_typed_field(object, body, "nextCursor"))
            if cursor is None:
                return

    async def render(
        self,
        request: RenderRequest | Mapping[str, Json],
        contexts: Sequence[HasLog | str] = (),
        *,
        action: str | None = None,
        attempt: int = 1,
        cache: Sequence[str] = (),
        lenient: bool = False,
        extended: bool = False,
    ) -> dict[str, Json]:
        """Answer a request of the ACS contract from some sessions or context ids; return the reply as JSON.

        `cache` lists the keys in the caller's cache. See `acms.acs.ACS.render`, and `RenderReply.to_wire`.
        """
        ids = [
            context if isinstance(context, str) else await context.log.require_id() for context in contexts
        ]
        query = {
            "contexts": ",".join(ids) or None,
            "action": action,
            "attempt": attempt,
            "cache": ",".join(cache) or None,
            "lenient": lenient,
            "extended": extended,
        }
        body = request.to_wire() if isinstance(request, RenderRequest) else dict(request)
        answer = await self._transport.call(
            "POST", build_api_path("orchestration", "render"), query=query, body=body
        )
        return answer.body

    async def prompt(
        self,
        session: HasLog | str,
        description: Mapping[str, Json],
        *,
        after: Rendered | Manifest | None = None,
    ) -> Rendered:
        """Return the request for a model that a service makes of a session, or of the context with an id.

        `description` is the body of `POST /contexts/{id}/prompt`: `budget`, `codec`, `model`, `system`, `pins`, `last`,
        `recall`, `user`, `tools`, …. With sessions of a client `acms.Prompt` says the same, and in any order.
        """
        context = session if isinstance(session, str) else await session.log.require_id()
        return await request_rendered_prompt(self._transport, context, description, after)

    async def grant(self, namespace: str, principal: str, *, actions: Sequence[str] = ("read",)) -> Grant:
        """Share a namespace with a key, by its id, or with a subject, as `oidc:subject`; replace an earlier grant.

        `actions` are read, write and share; each includes read. Raise `PermissionDeniedError` for more than the caller
        may do, `NotFoundError` for a key that is unknown or another tenant's.
        """
        path = build_api_path("namespaces", namespace, "grants", principal)
        return read_noun(
            Grant, (await self._transport.call("PUT", path, body={"actions": list(actions)})).data
        )

    async def grants(self, namespace: str) -> list[Grant]:
        """Return with whom a namespace is shared, by name; for who may share it."""
        path = build_api_path("namespaces", namespace, "grants")
        return read_noun_list(
            Grant, read_typed_field(list, (await self._transport.call("GET", path)).body, "data")
        )

    async def revoke(self, namespace: str, principal: str) -> None:
        """Take a namespace back with the next request of the other; `NotFoundError` when it was not shared."""
        path = build_api_path("namespaces", namespace, "grants", principal)
        await self._transport.call("DELETE", path, repeatable=False)

    async def namespace_policy(self, namespace: str) -> ResolvedPolicy:
        """Return the policy of a namespace, with its retention and legal hold; it needs no session."""
        path = build_api_path("namespaces", namespace, "policy")
        return read_noun(ResolvedPolicy, (await self._transport.call("GET", path)).data)

    async def set_namespace_policy(self, namespace: str, **changes: Json) -> ResolvedPolicy:
        """Change the policy of a namespace, its `retention_seconds` or its `legal_hold`, and return it.

        None resets a field to that of the service. The key needs the scope admin:config.
        """
        path = build_api_path("namespaces", namespace, "policy")
        rules = {to_camel_case(name): changes.pop(name) for name in (RETENTION, HOLD) if name in changes}
        fields = {to_camel_case(name): value for name, value in changes.items()}
        body: dict[str, Json] = {"policy": fields, **rules}
        return read_noun(ResolvedPolicy, (await self._transport.call("PATCH", path, body=body)).data)

    async def erase_session(self, context: HasLog | str, *, verify: bool = False) -> Erasure:
        """Erase all entries that a session owns; its forks see tombstones.

        A deleted session is named by the id of its context. With `verify` the store is searched for remains afterwards.
        The key needs the scope erase.
        """
        id = context if isinstance(context, str) else await context.log.require_id()
        answer = await self._transport.call(
            "DELETE", build_api_path("contexts", id, "entries"), query={"verify": verify}
        )
        return read_noun(Erasure, answer.data)

    async def export(
        self, context: HasLog | str | None = None, *, namespace: str | None = None
    ) -> AsyncGenerator[str]:
        """Yield a context, by session or id, or all of a namespace, as lines of JSON, the input of `acms restore`.

        They come as they are read: a break in the middle is raised, and the first line of a context has the version at
        which it ends.
        """
        id = context if context is None or isinstance(context, str) else await context.log.require_id()
        async for line in self._transport.lines(
            build_api_path("export"), query={"contextId": id, "namespace": namespace}
        ):
            yield line

    async def restore(
        self, lines: Iterable[str] | AsyncIterable[str], *, trust: bool = False
    ) -> list[ContextInfo]:
        """Write exported contexts verbatim; the same lines again store nothing twice.

        All of it is checked before anything is stored. With `trust` system and developer messages may be among them.
        They are sent once: a failure on the way is raised, not retried.
        """
        path = build_api_path("import") + ("?trust=true" if trust else "")
        answer = await self._transport.send(path, _iterate_lines(lines))
        ids = [
            read_typed_field(str, context, "id")
            for context in read_typed_field(list, answer.data, "contexts")
        ]
        return [
            read_noun(ContextInfo, (await self._transport.call("GET", build_api_path("contexts", id))).data)
            for id in ids
        ]


async def _iterate_lines(lines: Iterable[str] | AsyncIterable[str]) -> AsyncIterator[str]:
    """Yield lines of an iterable or an async iterable."""
    if isinstance(lines, AsyncIterable):
        async for line in lines:
            yield line
    else:
        for line in lines:
            yield line
