"""Google's Agent Development Kit on ACMS logs: sessions, memory, and the input of the model.

    sessions = ACMSSessionService(storage, kv)
    runner = Runner(
        app=App(name="shop", root_agent=agent, plugins=[ACMSPlugin(sessions, budget=8_000)]),
        session_service=sessions,
        memory_service=ACMSMemoryService(storage),
    )

Each may be used without the others, except the plugin, which shows the events that the session service keeps.
"""

from acms.integrations.google_adk.memory import ACMSMemoryService
from acms.integrations.google_adk.plugin import ACMSPlugin
from acms.integrations.google_adk.sessions import ACMSSessionService

__all__ = ["ACMSMemoryService", "ACMSPlugin", "ACMSSessionService"]
