"""Cache advice of the ACS contract, where it was before."""

from acms.contract.kv_policy import *
from acms.contract.kv_policy import __all__ as __all__
