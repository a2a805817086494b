"""The HTTP service (extra `server`): `create_app(url)` is an ASGI application, `acms serve` runs it.

Any ASGI server can run the application:

    from acms.server import ServerConfig, create_app

    app = create_app("sqlite:///memory.db", ServerConfig(auth="off"))
"""

from __future__ import annotations

from acms.errors import MissingExtraError

try:
    from acms.server.app import App, create_app
    from acms.server.config import Limits, ServerConfig
    from acms.server.oidc import OIDCConfig
except ImportError as missing:
    package = (missing.name or "").partition(".")[0]
    if package not in ("prometheus_client", "pydantic", "starlette"):
        raise
    raise MissingExtraError("server", package) from None

__all__ = ["App", "Limits", "OIDCConfig", "ServerConfig", "create_app"]
