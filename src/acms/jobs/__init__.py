"""Jobs: leases, workers, background work of a session, and the operations of an operator."""

from __future__ import annotations

from acms.runtime.lazy import lazy_attributes

__getattr__, __dir__ = lazy_attributes(
    __name__, {"handlers": "acms.compose"}
)  # where programs of before look for it
