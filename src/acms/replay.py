"""A prompt made again from its manifest."""

from acms.prompt.replay import *
from acms.prompt.replay import __all__ as __all__
