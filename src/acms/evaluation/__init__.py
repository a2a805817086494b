"""Evaluation: here when the distribution acms-eval is installed."""

from acms_eval import *
from acms_eval import __all__ as __all__
