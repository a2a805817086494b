"""ACMS for blocking code."""

from acms.client.blocking import *
from acms.client.blocking import __all__ as __all__
