"""The worker that runs jobs."""

from acms.jobs.worker import *
from acms.jobs.worker import __all__ as __all__
