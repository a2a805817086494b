"""OpenTelemetry spans of prompts."""

from acms.observability.tracing import *  # noqa: F403
from acms.observability.tracing import __all__ as __all__
