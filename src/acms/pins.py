"""Pins: values under keys that a prompt always shows."""

from acms.prompt.pins import *  # noqa: F403
from acms.prompt.pins import __all__ as __all__
