"""Evaluation: here when the distribution acms-eval is installed."""

from acms_eval.report import *
from acms_eval.report import __all__ as __all__
