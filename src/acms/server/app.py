"""The HTTP service as an ASGI application: `create_app(url)` for any server; `acms serve` runs it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from importlib.metadata import version
from typing import Literal

from acms.config import ACMSConfig
from acms.contract.providers import KnowledgeSource
from acms.observability.logging import log, safe_error
from acms.ports import Embedder, Reflector, Reranker, Summarizer
from acms.server.asgi import Receive, Scope, Send
from acms.server.config import ServerConfig
from acms.server.dispatch import Door
from acms.server.openapi import document
from acms.server.routes.table import OPERATIONS
from acms.server.service import Service
from acms.server.tenants import Engine

__all__ = ["App", "create_app"]


class App(Service):
    """The HTTP service over one store; an ASGI application with a lifespan."""

    def __init__(self, url: str, config: ServerConfig, engine: Engine) -> None:
        super().__init__(url, config, engine, document(OPERATIONS, version("acms-engine")))
        self._door = Door(self, OPERATIONS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or start and stop with the server."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            self.open_requests += 1
            self.idle.clear()
            try:
                await self._door(scope, receive, send)
            finally:
                self.open_requests -= 1
                if not self.open_requests:
                    self.idle.set()
        else:
            await send({"type": "websocket.close", "code": 1000})

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                try:
                    await self.start()
                except Exception as error:
                    log(logging.ERROR, "start_failed", error=safe_error(error))
                    await send({"type": "lifespan.startup.failed", "message": safe_error(error)})
                    return
                await send({"type": "lifespan.startup.complete"})
            else:
                await self.stop()
                await send({"type": "lifespan.shutdown.complete"})
                return


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
