"""The ports of ACMS."""

from acms.ports import *
from acms.ports import __all__ as __all__
