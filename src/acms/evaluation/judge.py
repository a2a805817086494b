"""Evaluation: here when the distribution acms-eval is installed."""

from acms_eval.judge import *
from acms_eval.judge import __all__ as __all__
