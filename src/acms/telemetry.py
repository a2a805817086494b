"""OpenTelemetry spans of prompts."""

from acms.observability.tracing import *
from acms.observability.tracing import __all__ as __all__
