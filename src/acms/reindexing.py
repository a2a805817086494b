"""Vectors of stored entries made anew."""

from acms.recall.reindex import *
from acms.recall.reindex import __all__ as __all__
