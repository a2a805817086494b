"""The same ACMS for blocking code: every verb runs on one event loop in a background thread.

    with ACMS("user_123", "sqlite:///memory.db") as session, open_kv("sqlite:///memory.db") as kv:
        session.ingest("user", "…")
        kv.set("style", "Answer in German.")
        create_pin_registry(kv, namespace="user:123").pin("style")

    with Client("http://127.0.0.1:8000") as client:
        client.session("user_123").ingest("user", "…")

All blocking sessions of a process share that loop, so they can share a storage handle. Not for use inside a running
event loop: await `acms.ACMS` there.
"""

from acms.client.blocking import (
    ACMS,
    KV,
    Client,
    PinRegistry,
    Prompt,
    RemoteSession,
    RemoteView,
    View,
    create_pin_registry,
    open_kv,
)

__all__ = [
    "ACMS",
    "KV",
    "Client",
    "PinRegistry",
    "Prompt",
    "RemoteSession",
    "RemoteView",
    "View",
    "create_pin_registry",
    "open_kv",
]
