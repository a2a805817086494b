"""The ACS v0 contract: the engine that answers a request for context, and the caller that asks it.

    reply = await ACS(sources=[session]).render({"version": "v0", …})
    outcome = await CEO(ACS(sources=[session]), cache=KVCache()).ask("Debug the memory leak in the importer")

The shapes of requests and replies are in `acms.contract`.
"""

from acms.contract.caller import CEO, Applied, Intent, Kept, KVCache, Outcome, Renderer, Tried, pick
from acms.contract.engine import ACS

__all__ = ["ACS", "CEO", "Applied", "Intent", "KVCache", "Kept", "Outcome", "Renderer", "Tried", "pick"]
