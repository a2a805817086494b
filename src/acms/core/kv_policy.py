"""Cache advice of the ACS contract, where it was before."""

from acms.contract.kv_policy import *  # noqa: F403
from acms.contract.kv_policy import __all__ as __all__
