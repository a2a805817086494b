"""Copies between stores."""

from acms.branches.copying import *  # noqa: F403
from acms.branches.copying import __all__ as __all__
