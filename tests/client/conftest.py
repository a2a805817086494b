"""The services of the HTTP tests, for the client."""

from tests.server.conftest import service, sqlite_service

__all__ = ["service", "sqlite_service"]
