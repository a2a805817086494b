"""Jobs: leases, workers, background work of a session, and the operations of an operator."""

from __future__ import annotations

from acms.runtime.lazy import lazy_attributes

# `handlers` was defined in this package before; existing programs import it from here.
__getattr__, __dir__ = lazy_attributes(__name__, {"handlers": "acms.compose"})
