"""Evaluation: here when the distribution acms-eval is installed."""

from acms_eval.deliverables import *
from acms_eval.deliverables import __all__ as __all__
