"""Evaluation: here when the distribution acms-eval is installed."""

from acms_eval.charts import *
from acms_eval.charts import __all__ as __all__
