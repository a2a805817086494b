"""The manifest of a prompt."""

from acms.prompt.manifest import *  # noqa: F403
from acms.prompt.manifest import __all__ as __all__
