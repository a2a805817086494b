"""Copies between stores."""

from acms.branches.copying import *
from acms.branches.copying import __all__ as __all__
