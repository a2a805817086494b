"""ACMS over HTTP: the verbs of a session, worked off by a service that `acms serve` runs.

    async with Client("http://127.0.0.1:8000", api_key="acms_…") as client:
        session = client.session("user_123")
        await session.ingest("user", "…")
        items = await session.recall("…", budget=500)

For blocking code: `from acms.sync import Client`.
"""

from acms.client.client import Client
from acms.client.session import RemoteSession, RemoteView
from acms.results import ContextInfo

__all__ = ["Client", "ContextInfo", "RemoteSession", "RemoteView"]
