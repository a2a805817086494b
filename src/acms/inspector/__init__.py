"""The inspector: pages that show the context of each request, the entries left out and why, and cache breaks.

`mount_inspector(app)` serves them below `/` of a service. Pages are rendered on the server from replies of the
service's own operations, called inside the process with the visitor's key, so a page shows and does only what that key
allows.
"""

from acms.inspector.pages import ClientRequests, mount_inspector

__all__ = ["ClientRequests", "mount_inspector"]
