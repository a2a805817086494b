"""Export and restore."""

from acms.branches.export import *
from acms.branches.export import __all__ as __all__
