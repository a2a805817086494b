"""Export and restore."""

from acms.branches.export import *  # noqa: F403
from acms.branches.export import __all__ as __all__
