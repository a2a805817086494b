"""Formats of model providers."""

from typing import TYPE_CHECKING

from acms.providers.codecs import __all__ as __all__
from acms.providers.codecs import __dir__ as __dir__
from acms.providers.codecs import __getattr__ as __getattr__

if TYPE_CHECKING:
    from acms.providers.codecs import *
