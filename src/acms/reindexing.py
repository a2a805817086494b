"""Vectors of stored entries made anew."""

from acms.recall.reindex import *  # noqa: F403
from acms.recall.reindex import __all__ as __all__
