"""Pins: values under keys that a prompt always shows."""

from acms.prompt.pins import *
from acms.prompt.pins import __all__ as __all__
