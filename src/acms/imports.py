"""Readers of conversations from elsewhere."""

from acms.branches.importers import *
from acms.branches.importers import __all__ as __all__
