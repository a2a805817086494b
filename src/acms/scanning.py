"""Where secrets and personal data are stored."""

from acms.privacy.scan import *  # noqa: F403
from acms.privacy.scan import __all__ as __all__
