"""The command that serves a store over HTTP."""

from __future__ import annotations

from typing import Annotated

import typer

from acms.cli.base import Db, app, data_file, file_url, run
from acms.config import ACMSConfig
from acms.errors import ConfigurationError, MissingExtraError


@app.command(epilog="Example:  acms serve --port 8000")
def serve(
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Where to listen.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, metavar="N", help="0 takes a free one.")
    ] = 8000,
    auth: Annotated[
        str | None,
        typer.Option(
            "--auth", metavar="required|off", help="Whether a key is needed; off on this machine only."
        ),
    ] = None,
    db: Db = None,
) -> None:
    """Serve the store over HTTP until told to stop.

    On this machine alone nobody needs a key unless --auth required; elsewhere everybody does: acms keys create.
    SIGTERM and SIGINT stop it, after what is under way.
    """

    async def work() -> None:
        try:
            import uvicorn
        except ImportError:
            raise MissingExtraError("server", "uvicorn") from None
        from acms.server import ServerConfig, create_app
        from acms.server.config import loopback

        wanted = auth or ("off" if loopback(host) else "required")
        if wanted not in ("required", "off"):
            raise ConfigurationError(f"--auth is required or off, not {wanted!r}")
        if db is None:
            data_file().parent.mkdir(parents=True, exist_ok=True)
        config = ServerConfig(auth="off" if wanted == "off" else "required", host=host)
        made = create_app(db or file_url(data_file()), config, engine=ACMSConfig.from_env())
        server = uvicorn.Server(
            uvicorn.Config(
                made, host=host, port=port, log_level="warning", access_log=False, server_header=False
            )
        )
        await server.serve()

    run(False, work())
