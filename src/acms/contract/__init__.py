"""The ACS v0 contract: requests in, fragments within a budget out, errors with options, cache advice."""

from acms.contract.schema import *
from acms.contract.schema import __all__ as __all__
