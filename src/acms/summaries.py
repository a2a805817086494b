"""Stored summaries in prompts."""

from acms.prompt.summaries import *  # noqa: F403
from acms.prompt.summaries import __all__ as __all__
