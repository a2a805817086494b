"""The manifest of a prompt."""

from acms.prompt.manifest import *
from acms.prompt.manifest import __all__ as __all__
