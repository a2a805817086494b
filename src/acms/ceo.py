"""The caller of the ACS contract: it picks what to do with an error, and applies cache advice."""

from acms.contract.caller import *
from acms.contract.caller import __all__ as __all__
