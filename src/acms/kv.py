"""Key-value memory for pins and stored summaries."""

from typing import TYPE_CHECKING

from acms.storage.kv import __all__ as __all__
from acms.storage.kv import __dir__ as __dir__
from acms.storage.kv import __getattr__ as __getattr__

if TYPE_CHECKING:
    from acms.storage.kv import *
