"""Evaluation: here when the distribution acms-eval is installed."""

from acms_eval.sweeps import *
from acms_eval.sweeps import __all__ as __all__
