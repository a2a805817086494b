"""A prompt made again from its manifest."""

from acms.prompt.replay import *  # noqa: F403
from acms.prompt.replay import __all__ as __all__
