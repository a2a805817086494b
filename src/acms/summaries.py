"""Stored summaries in prompts."""

from acms.prompt.summaries import *
from acms.prompt.summaries import __all__ as __all__
