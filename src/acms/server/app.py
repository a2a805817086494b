"""The HTTP service as an ASGI application: `create_app(url)` for any server; `acms serve` runs it."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cache
from typing import Literal

from starlette.middleware import Middleware
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.routing import Router
from starlette.types import ASGIApp, Receive, Scope, Send

from acms.config import ACMSConfig
from acms.contract.providers import KnowledgeSource
from acms.errors import NotFoundError
from acms.model import Json
from acms.observability.logging import log_event, safe_error
from acms.ports import Embedder, Reflector, Reranker, Summarizer
from acms.runtime.version import __version__
from acms.server.config import ServerConfig
from acms.server.dispatch import build_operation_routes
from acms.server.middleware import RequestMiddleware
from acms.server.openapi import build_openapi_document
from acms.server.routes.table import OPERATIONS
from acms.server.service import Service
from acms.server.tenants import Engine
from acms.server.token import TokenMiddleware

__all__ = ["App", "create_app"]


class App(Router, Service):
    """The HTTP service over one store: a router of Starlette with a lifespan."""

    def __init__(self, url: str, config: ServerConfig, engine: Engine) -> None:
        Service.__init__(self, url, config, engine, _describe_service)
        self._mounts = Router(default=_reject_unknown_path)
        middleware = [Middleware(RequestMiddleware, service=self)]
        if config.token is not None:
            middleware.append(Middleware(TokenMiddleware, token=config.token))
        super().__init__(
            build_operation_routes(self, OPERATIONS),
            redirect_slashes=False,
            default=ExceptionMiddleware(self._mounts),
            lifespan=self._running,
            middleware=middleware,
        )

    def mount(self, path: str, app: ASGIApp, name: str | None = None) -> None:
        """Serve another ASGI application below a path: an MCP server, `StaticFiles`. The service's own paths go first.

        The service checks host name, origin and its token for it, but *not* keys: the application gets no tenant, and
        authenticates its callers itself. Its answers get the service's header fields unless they set them, so a page
        needs a Content-Security-Policy of its own. Metrics and the log call it `unknown`. Its lifespan is not run, and
        no WebSocket reaches it.
        """
        self._mounts.mount(path, app, name)

    @asynccontextmanager
    async def _running(self, _: object) -> AsyncGenerator[None]:
        """Start the service before the server accepts requests, and stop it afterwards."""
        try:
            await self.start()
        except Exception as error:
            log_event(logging.ERROR, "start_failed", error=safe_error(error))
            raise RuntimeError(safe_error(error)) from None  # without secrets, because the server logs it
        yield
        await self.stop()


@cache
def _describe_service() -> Mapping[str, Json]:
    """Return the OpenAPI document, which is the same for every service of a process."""
    return build_openapi_document(OPERATIONS, __version__)


async def _reject_unknown_path(scope: Scope, receive: Receive, send: Send) -> None:
    """Raise `NotFoundError` for a path without an operation or a mounted application."""
    raise NotFoundError("there is nothing at this path", options=("GET /openapi.json lists the operations",))


def create_app(
    url: str,
    config: ServerConfig | None = None,
    *,
    engine: ACMSConfig | None = None,
    embedder: Embedder | Literal["auto"] | None = "auto",
    reflector: Reflector | None = None,
    reranker: Reranker | None = None,
    summarizer: Summarizer | None = None,
    sources: Sequence[KnowledgeSource] = (),
) -> App:
    """Return the HTTP service over the store a URL names.

    Keys are required unless `config` says otherwise. Models are the operator's choice: no request can change them.
    `sources` are asked by `/orchestration/render` for every tenant, beside the contexts that a request names.
    `ConfigurationError` when it would be open to the network without keys.
    """
    return App(
        url,
        config or ServerConfig(),
        Engine(
            config=engine or ACMSConfig(),
            embedder=embedder,
            reflector=reflector,
            reranker=reranker,
            summarizer=summarizer,
            sources=tuple(sources),
        ),
    )
