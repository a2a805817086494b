"""Evaluation: here when the distribution acms-eval is installed."""

from acms_eval.suite import *
from acms_eval.suite import __all__ as __all__
