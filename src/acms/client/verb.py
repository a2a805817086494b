"""Describe a verb once: the session's method, and the request that it makes to a service.

From one description come the method of a remote session, which is awaited, and those of the blocking proxies, each with
the signature and the docstring of the local method: an editor and a type checker see them too.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import KW_ONLY, dataclass
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeAlias, TypeVar, cast, overload
from uuid import uuid4

from acms.client import nouns
from acms.client.log import Log
from acms.client.portal import BlockingProxy, make_blocking_method, set_return_annotation, wrap_in_proxy
from acms.client.transport import Answer, Transport, build_api_path, quote_path_step
from acms.errors import ACMSError, SessionNotFoundError
from acms.log import validation
from acms.model import EMPTY
from acms.nouns import to_camel_case
from acms.session import ACMS
from acms.view import View

__all__ = [
    "CallArguments",
    "Remote",
    "ServiceOperation",
    "Verb",
    "add_verb_methods",
    "define_branching_verb",
    "define_verb",
    "make_list_reader",
    "make_noun_reader",
    "make_value_reader",
    "resolve_end_version",
]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
D = TypeVar("D", bound=BlockingProxy)

CallArguments: TypeAlias = dict[str, Any]
"""The arguments of a call by their names, defaults too."""


class UnwrittenError(SessionNotFoundError):
    """Nothing was ever written to the session."""


class Remote:
    """A log at a service, at its head or at a past version."""

    def __init__(self, log: Log, at: int | str | None = None) -> None:
        self.log = log
        self._at = at
        #: Whether the service is known to have its tag or version.
        self.exists = at is None

    @property
    def ends_at(self) -> int | str | None:
        """The version at which it ends, or its tag until that is looked up; None for a session, which goes on."""
        return self._at

    @ends_at.setter
    def ends_at(self, version: int | str | None) -> None:
        self._at = version


async def resolve_end_version(remote: Remote) -> int | None:
    """Return the version at which a view ends; the service is asked once, `NotFoundError` if it does not have it."""
    at = remote.ends_at
    if remote.exists:
        return None if at is None else int(at)
    context = await remote.log.find()
    if context is None:
        raise validation.missing_session_error(remote.log.session_id, UnwrittenError)
    path = build_api_path("contexts", context, "stats")
    query = {"atTag" if isinstance(at, str) else "atVersion": at}
    answer = await remote.log.transport.call("GET", path, query=query)
    version = nouns.read_typed_field(int, answer.data, "version")
    remote.ends_at, remote.exists = version, True
    return version


def _make_empty_session(remote: Remote) -> View:
    """Return an empty local session, which answers for a log that does not exist yet, with the same errors."""
    session = ACMS(remote.log.session_id, "memory://", None, namespace=remote.log.namespace)
    return session if remote.ends_at is None else session.at(remote.ends_at)


RemoteCall: TypeAlias = Callable[[Any, CallArguments], Coroutine[Any, Any, R]]
"""Runs a verb of a remote session: called with the session and the arguments."""


# ── a verb in every interface ─────────────────────────────────────────────────────────────────────────────────────────


class Verb(Generic[P, R]):
    """A method of a session: it sends a request if the session is remote, and blocks on proxies of `acms.sync`."""

    def __init__(
        self, method: Callable[..., Any], ask: RemoteCall[Any] | None, *, branches: bool = False
    ) -> None:
        self._method = method
        self._ask = ask
        #: Whether it returns another session.
        self.branches = branches

    @overload
    def __get__(self, remote: None, owner: Any = None) -> Verb[P, R]: ...
    @overload
    def __get__(self, remote: BlockingProxy, owner: Any = None) -> Callable[P, R]: ...
    @overload
    def __get__(self, remote: object, owner: Any = None) -> Callable[P, Coroutine[Any, Any, R]]: ...
    def __get__(self, remote: object, owner: Any = None) -> Any:
        return self  # classes with these verbs have the methods that `method_for` returns

    def method_for(self, cls: type) -> Callable[..., Any]:
        """Return the method for a class: a blocking one for a `BlockingProxy`, else one that sends a request."""
        if not issubclass(cls, BlockingProxy):
            return self._remote()
        call = make_blocking_method(self._method)
        if not self.branches:
            return call

        @wraps(self._method)
        def call_and_wrap(self: BlockingProxy, /, *args: Any, **kwargs: Any) -> BlockingProxy:
            return wrap_in_proxy(type(self), call(self, *args, **kwargs))

        return call_and_wrap

    def _remote(self) -> Callable[..., Any]:
        """Return a method that takes the arguments of the local method and sends the request of this verb."""
        ask = self._ask
        assert ask is not None, f"{self._method.__name__} has no operation"
        signature = inspect.signature(self._method)
        kwargs_names = [
            name
            for name, parameter in signature.parameters.items()
            if parameter.kind is inspect.Parameter.VAR_KEYWORD
        ]

        @wraps(self._method)
        async def call(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            arguments = dict(bound.arguments)
            remote: Remote = arguments.pop("self")
            for name in kwargs_names:
                arguments |= arguments.pop(name)
            try:
                return await ask(remote, arguments)
            except UnwrittenError:  # no log exists yet, so an empty local session answers
                return await self._method(_make_empty_session(remote), *args[1:], **kwargs)

        return call


class Branching(Generic[P]):
    """A verb that returns another session, of the same class as the session that it is called on."""

    @overload
    def __get__(self, remote: D, owner: Any = None) -> Callable[P, D]: ...
    @overload
    def __get__(self, remote: T, owner: Any = None) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, remote: object, owner: Any = None) -> Any:
        return self


def define_verb(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]], ask: RemoteCall[R] | None = None
) -> Verb[P, R]:
    """Describe a verb: the method of a session in this process, and the request of a remote one."""
    return Verb(method, ask)


def define_branching_verb(method: Callable[Concatenate[Any, P], Any], ask: RemoteCall[Any]) -> Branching[P]:
    """Describe a verb that returns another session."""
    return cast("Branching[P]", Verb(method, ask, branches=True))


def add_verb_methods(cls: type) -> None:
    """Add a method to a class for each `Verb` that it inherits."""
    for name in dir(cls):
        verb = inspect.getattr_static(cls, name)
        if isinstance(verb, Verb):
            method = verb.method_for(cls)
            method.__qualname__ = f"{cls.__name__}.{name}"
            if verb.branches:
                set_return_annotation(method, cls.__name__)
            setattr(cls, name, method)


# ── the request of a verb ───────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class ServiceOperation(Generic[R]):
    """An operation of the service: its request, and how its answer is parsed."""

    #: `"GET entries/{id}"`, below the context. Arguments that the path does not name go into the query of a GET or a
    #: DELETE, else into the body; None is left out.
    request_line: str
    #: Reads the answer, for the session that asked.
    read_answer: Callable[[Answer, Any], R]
    _: KW_ONLY
    #: Checks the arguments, and converts them to the fields of the operation.
    prepare: Callable[[Any, CallArguments], Mapping[str, Any]] | None = None
    #: Returns the context of the request, if it is not simply the session's; None if there is none yet.
    context: Callable[[Any, CallArguments], Awaitable[str | None]] | None = None
    #: Whether the answer is a list that is read to its end.
    pages: bool = False
    #: Whether it is the same at every version, so that no version is sent.
    timeless: bool = False
    #: Whether None is sent too.
    sends_null: bool = False
    #: Whether it may be sent again under its key, which is the same at every attempt; otherwise only if it certainly
    #: had no effect.
    repeatable: bool = True

    async def __call__(self, remote: Any, arguments: CallArguments, headers: Mapping[str, str] = EMPTY) -> R:
        """Send the request for a session, with the arguments of a call, and parse the answer."""
        if isinstance(remote.ends_at, str):
            await resolve_end_version(remote)
        fields = dict(self.prepare(remote, arguments) if self.prepare else arguments)
        context = await (self.context(remote, arguments) if self.context else remote.log.find())
        if context is None:
            raise validation.missing_session_error(remote.log.session_id, UnwrittenError)
        if remote.ends_at is not None:
            if self.timeless:
                await resolve_end_version(remote)
            else:
                fields["at_version"] = remote.ends_at
        if self.pages:
            fields["limit"] = 500  # the largest page of the service
        transport = remote.log.transport
        try:
            answer = await self._send(transport, context, fields, headers)
            if self.pages:
                await self._add_pages(answer, transport, context, fields, headers)
        except ACMSError as error:
            # The service names the session by its id, the caller by its name.
            error.args = (str(error).replace(repr(context), repr(remote.log.session_id)),)
            raise
        return self.read_answer(answer, remote)

    async def _add_pages(
        self,
        answer: Answer,
        transport: Transport,
        context: str,
        fields: CallArguments,
        headers: Mapping[str, str],
    ) -> None:
        """Add the data of all following pages to the answer with the first one."""
        data = nouns.read_typed_field(list, answer.body, "data")
        cursor = nouns.read_typed_field(object, answer.body, "nextCursor")
        while cursor is not None:
            page = await self._send(transport, context, {**fields, "cursor": cursor}, headers)
            data += nouns.read_typed_field(list, page.body, "data")
            cursor = nouns.read_typed_field(object, page.body, "nextCursor")
        answer.body["data"] = data

    async def _send(
        self, transport: Transport, context: str, fields: CallArguments, headers: Mapping[str, str]
    ) -> Answer:
        """Send the request of a line such as "GET renders/{id}".

        Fields in braces become steps of the path. The other fields become the query, or the body of a POST.
        """
        method, _, relative_path = self.request_line.partition(" ")
        path = build_api_path("contexts", context)
        remaining = dict(fields)
        steps = relative_path.split("/") if relative_path else []
        for step in steps:
            if step.startswith("{"):
                name = step.strip("{}")
                step = quote_path_step(remaining.pop(name), name)
            path += f"/{step}"
        arguments: dict[str, Any] = {}
        for name, value in remaining.items():
            if self.sends_null or value is not None:
                arguments[to_camel_case(name)] = value
        place = "query" if method in ("GET", "DELETE") else "body"
        if method != "GET":
            headers = {"idempotency-key": uuid4().hex, **headers}
        return await transport.call(
            method, path, headers=headers, repeatable=self.repeatable, **{place: arguments}
        )


def make_noun_reader(kind: type[T], *names: str) -> Callable[[Answer, Any], T]:
    """Return a function that parses one noun from an answer; `names` are the nested fields that lead to it."""

    def read(answer: Answer, _: Any) -> T:
        value = answer.data
        for name in names:
            value = nouns.read_typed_field(object, value, name)
        return nouns.read_noun(kind, value)

    return read


def make_list_reader(kind: type[T]) -> Callable[[Answer, Any], list[T]]:
    """Return a function that parses a list of nouns."""
    return lambda answer, _: nouns.read_noun_list(kind, answer.data)


def make_value_reader(kind: type[T], name: str) -> Callable[[Answer, Any], T]:
    """Return a function that parses the value under a name."""
    return lambda answer, _: nouns.read_typed_field(kind, answer.data, name)
