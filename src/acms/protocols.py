"""The ports of ACMS."""

from acms.ports import *  # noqa: F403
from acms.ports import __all__ as __all__
