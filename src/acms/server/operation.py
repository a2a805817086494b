"""An operation of the HTTP service: one method of one path, its parameters, its reply and its scope.

Requests are routed by the list of operations, and the OpenAPI document is generated from it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from acms.model import Json
from acms.server.principal import Action, Principal, Scope

if TYPE_CHECKING:
    from acms.server.config import ServerConfig
    from acms.server.rights import Right
    from acms.server.service import Service
    from acms.server.tenants import Tenant

__all__ = ["BASE", "Body", "Call", "Operation", "Operations", "Principal", "Query", "Reply", "Scope", "Shape"]

BASE = "/api/v1"


class Shape(BaseModel):
    """The fields of a request or a reply; names are camelCase on the wire."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", use_attribute_docstrings=True
    )


class Body(Shape):
    """The JSON body of a request: nothing is converted, unknown names are refused."""

    model_config = ConfigDict(strict=True)


class Query(Shape):
    """The query parameters of a request: text is parsed to the type of its field, unknown names are refused."""


Q = TypeVar("Q")
B = TypeVar("B")


@dataclass(slots=True, kw_only=True)
class Call(Generic[Q, B]):
    """One checked request, as a handler receives it."""

    app: Service
    operation: Operation
    principal: Principal
    config: ServerConfig
    #: Parameters of the path by name.
    path: Mapping[str, str]
    query: Q
    body: B
    #: Header fields by lower-case name; of several the last one.
    headers: Mapping[str, str]
    request_id: str
    #: The pieces of the body, for an operation that reads it as a stream.
    stream: AsyncIterator[bytes] | None = None
    #: Callbacks for the end of the request, on success or failure.
    ends: list[Callable[[], object]] = field(default_factory=lambda: [])
    #: The tenant of the caller; unset for an operation without authentication.
    tenant: Tenant = field(init=False)
    #: The right to make the request, which may end before the request does.
    right: Right = field(init=False)

    @property
    def idempotency_key(self) -> str | None:
        """The name under which this request has an effect once; None without the header Idempotency-Key."""
        return self.headers.get("idempotency-key")


@dataclass(slots=True, kw_only=True)
class Reply:
    """The reply of a handler."""

    #: Serialized as JSON unless it is bytes or a stream of them; None for no body.
    body: Json | bytes | AsyncIterator[bytes] | None = None
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=lambda: {})
    media: str = "application/json"


Handler = Callable[[Call[Any, Any]], Awaitable[Reply]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method of one path."""

    #: Name in clients and metrics, as `appendMessages`.
    name: str
    method: str
    #: Below `BASE` unless `rooted`; parameters as `{context_id}`.
    path: str
    #: First line and rest of the handler's docstring.
    summary: str
    description: str
    #: Group in the document.
    tag: str
    #: None: no authentication is needed.
    scope: Scope | None
    handler: Handler
    query: type[Query] | None = None
    #: A `Body`, or `dict` for any JSON object.
    body: type[Any] | None = None
    #: JSON Schema of a body that is no `Body`.
    schema: Json = None
    #: Whether the body is optional.
    optional: bool = False
    reply: Any = None
    status: int = 200
    #: Names of header fields it reads.
    takes: tuple[str, ...] = ()
    #: Other answers with a meaning of their own: status by description.
    also: Mapping[int, str] = field(default_factory=lambda: {})
    #: Media types of a streamed request body, the usual one first; and that of the reply.
    streams: tuple[str, ...] = ()
    media: str = "application/json"
    #: Whether the path is not below `BASE`.
    rooted: bool = False
    #: A body that can be sent unchanged; `reply_examples.json` has a reply to each operation.
    example: Json = None
    #: Whether it implements the v0 contract: errors have the contract's fields too.
    contract: bool = False
    #: Whether it writes.
    writes: bool = False
    #: Whether the audit trail records it.
    audited: bool = False
    #: For an audited operation whose reply holds content, which the trail must not keep: answers a repeated request
    #: under an Idempotency-Key by the Location of the first reply, or with None if that is gone.
    answer_repeated: Callable[[Call[Any, Any], str], Awaitable[Reply | None]] | None = None

    @property
    def action(self) -> Action:
        """The action that a namespace must allow."""
        return Action.READ if self.scope in (Scope.READ, Scope.MEMORY_READ) else Action.WRITE


class Operations:
    """A list of operations; handlers register themselves."""

    def __init__(self, tag: str) -> None:
        self.tag = tag
        self.all: list[Operation] = []

    def __call__(self, method: str, path: str, **options: Any) -> Callable[[Handler], Handler]:
        """Return a decorator that adds an operation; its name and description are those of the handler."""

        def add(handler: Handler) -> Handler:
            summary, _, description = (handler.__doc__ or "").strip().partition("\n")
            lines = [line.strip() for line in description.strip().splitlines()]
            writes = options.pop("writes", method not in ("GET", "HEAD"))
            self.all.append(
                Operation(
                    name=to_camel(handler.__name__),
                    method=method,
                    path=path,
                    summary=summary.strip(),
                    description="\n".join(lines),
                    tag=self.tag,
                    handler=handler,
                    writes=writes,
                    # The log itself records appended messages.
                    audited=options.pop("audited", writes and not path.endswith("/messages")),
                    **options,
                )
            )
            return handler

        return add
