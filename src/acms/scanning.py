"""Where secrets and personal data are stored."""

from acms.privacy.scan import *
from acms.privacy.scan import __all__ as __all__
