"""The engine of the ACS contract."""

from acms.contract.engine import *
from acms.contract.engine import __all__ as __all__
