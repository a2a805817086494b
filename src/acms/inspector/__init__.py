"""The inspector: pages that show what the model saw, what was left out and why, and what broke the cache.

`mounted(app)` serves them below `/` of a service. Each is written on the server, from what the service's own operations
answer: they are asked inside the process with the key of whoever looks, so a page shows and does what that key may.
"""

from acms.inspector.pages import ClientRequests, mounted

__all__ = ["ClientRequests", "mounted"]
