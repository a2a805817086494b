"""ACMS for blocking code."""

from acms.client.blocking import *  # noqa: F403
from acms.client.blocking import __all__ as __all__
